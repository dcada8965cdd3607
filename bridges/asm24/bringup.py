"""From a bridge to a device that answers behind it: link, bus numbers, windows, addresses. Nobody else does it on this private bus.

Bus 0 holds the bridge's upstream port, bus 1 its downstream port, bus 2 what is in the slot; AMD cards bring a switch of their own, so that
their GPU is on bus 4. Values are those of the known drivers. Sources: PCI Express base specification, notes of the open bridge firmware.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from bridges.asm24.config import BridgeConfig
from bridges.asm24.errors import BarAssignment, EndpointMissing, LinkDown, TlpError
from bridges.asm24.protocol import BridgeProtocol
from bridges.asm24.registers import LINK_UP_STATES
from hw.errors import NotSupported, ResizeRefused, WaitTimeout
from hw.pci import config as codec
from hw.pci.device import COMMAND, COMMAND_BUS_MASTER, COMMAND_MEMORY, Bar, ConfigSpace
from hw.pci.extcaps import SizableBar
from hw.poll import poll

log = logging.getLogger(__name__)

MEMORY_BASE = 0x1000_0000
PREFETCHABLE_BASE = 0x8_0000_0000
MEMORY_END = 1 << 32
PREFETCHABLE_END = 1 << 40
"""pools of bus addresses; the windows of the bridges are open to the end of the address space, GPUs decode at least 40 bits"""

BUSES = 0x18
MEMORY_WINDOW = 0x20
PREFETCHABLE_WINDOW = 0x24
PREFETCHABLE_BASE_HIGH = 0x28
PREFETCHABLE_LIMIT_HIGH = 0x2C
HEADER = 0x0C
HEADER_TYPE_SHIFT = 16
BRIDGE_HEADER = 1
COMMAND_ALL = codec.COMMAND_IO | COMMAND_MEMORY | COMMAND_BUS_MASTER

USUAL_BUS = 4
"""bus of an AMD GPU"""
LAST_BUS = 31
ANY_BUS = 0xFF

LINK_WITHIN = 5.0
"""seconds for a cold card to train after the slot was powered"""
ENDPOINT_WITHIN = 5.0
"""seconds for the first answer of what is in the slot"""
TYPICAL_TRAINING = 0.1
BAR_ALIGN = 2 << 20


@dataclass
class Topology:
    """What is behind the bridge."""

    bridges: list[int] = field(default_factory=list)
    """vendor and device of each port on the way, as one dword, by bus"""
    bus: int = 0
    """where the device is"""
    ids: int = 0
    """its vendor and device, as one dword"""


def bring_link_up(protocol: BridgeProtocol, *, within: float = LINK_WITHIN) -> None:
    """Power the slot and train the link, unless it is up already. Raises LinkDown."""
    state = protocol.link_state()
    if state in LINK_UP_STATES:
        return
    try:
        protocol.power(True)
    except NotSupported as error:
        log.info("%s", error)
    seen = {state}

    def look() -> int:
        now = protocol.link_state()
        seen.add(now)
        return now

    try:
        poll(
            look,
            lambda now: now in LINK_UP_STATES,
            what="training of the PCIe link",
            within=within,
            typical=TYPICAL_TRAINING,
            clock=protocol.clock,
        )
    except WaitTimeout as error:
        raise LinkDown(max(seen), read=f"link states {', '.join(f'{each:#04x}' for each in sorted(seen))} in {error.waited:.3g} s") from error


def walk(protocol: BridgeProtocol, *, subordinate: int = USUAL_BUS) -> Topology:
    """Number the buses from the bridge down to the first device, and open the windows of every port on the way. Raises EndpointMissing, TlpError."""
    found = Topology()
    for bus in range(LAST_BUS):
        if bus == subordinate:  # deeper than most: ports above must pass on more bus numbers
            return walk(protocol, subordinate=ANY_BUS)
        space = BridgeConfig(protocol, bus)
        if not bus:
            found.bridges.append(_first_answer(protocol, bus, 0.0))
        _program_port(space, bus, subordinate)
        ids = _first_answer(protocol, bus + 1, ENDPOINT_WITHIN if bus else 0.0)
        if BridgeConfig(protocol, bus + 1).read32(HEADER) >> HEADER_TYPE_SHIFT & 0x7F != BRIDGE_HEADER:
            found.bus, found.ids = bus + 1, ids
            return found
        found.bridges.append(ids)
    raise EndpointMissing(f"{LAST_BUS} bridges behind each other and no device", read=", ".join(f"{each:#010x}" for each in found.bridges))


def _program_port(space: ConfigSpace, bus: int, subordinate: int) -> None:
    """Bus numbers in one write, since single bytes would misroute in between; then windows to the end of the address space."""
    space.write32(BUSES, (bus + 1) << 8 | subordinate << 16)
    space.write32(MEMORY_WINDOW, 0xFFFF << 16 | MEMORY_BASE >> 16)
    space.write32(PREFETCHABLE_WINDOW, 0xFFFF << 16 | PREFETCHABLE_BASE >> 16 & 0xFFFF)
    space.write32(PREFETCHABLE_BASE_HIGH, PREFETCHABLE_BASE >> 32)
    space.write32(PREFETCHABLE_LIMIT_HIGH, 0xFFFFFFFF)
    space.write8(COMMAND, COMMAND_ALL)


def _first_answer(protocol: BridgeProtocol, bus: int, within: float) -> int:
    """Vendor and device of the first function on a bus, which may have been powered a moment ago."""
    space = BridgeConfig(protocol, bus)
    failure: list[TlpError] = []

    def read() -> int:
        failure.clear()
        try:
            return space.read32(0)
        except TlpError as error:
            failure.append(error)
            return 0xFFFFFFFF

    try:
        return poll(read, lambda ids: ids & 0xFFFF not in (0xFFFF, 0), what=f"an answer on bus {bus}", within=within, typical=TYPICAL_TRAINING, clock=protocol.clock)
    except WaitTimeout as error:
        protocol.check_link()
        raise EndpointMissing(f"nothing answers on bus {bus} behind the bridge", read=str(failure[0]) if failure else error.read) from error


class AddressPool:
    """Bus addresses handed out in order, each a multiple of its size."""

    def __init__(self, base: int, end: int) -> None:
        self._next = base
        self._end = end

    def take(self, size: int) -> int | None:
        """None when there is no room."""
        start = -(-self._next // size) * size
        if start + size > self._end:
            return None
        self._next = -(-(start + size) // BAR_ALIGN) * BAR_ALIGN
        return start


def largest_first(bar: SizableBar, position: int) -> int | None:
    """The default sizes: the first resizable BAR, which is the device's memory, as large as it goes; the others as they are."""
    return max(bar.supported_sizes, default=None) if position == 0 else None


def assign_bars(config: ConfigSpace, *, resize: Callable[[SizableBar, int], int | None] = largest_first) -> dict[int, Bar]:
    """Size and place every memory BAR of a device, resizable ones at the size that `resize` picks (None: as it is), and let it answer.

    resize: gets the BAR and its position in the capability. Bus mastering is off afterwards. Raises BarAssignment, ResizeRefused.
    """
    if config.read16(COMMAND) & (COMMAND_MEMORY | COMMAND_BUS_MASTER):
        config.write8(COMMAND, 0)
    sizable = {bar.bar: bar for bar in codec.resizable_bars(config)}
    for position, bar in enumerate(sizable.values()):
        _choose_size(config, bar, resize(bar, position))
    pools = {False: AddressPool(MEMORY_BASE, MEMORY_END), True: AddressPool(PREFETCHABLE_BASE, PREFETCHABLE_END)}
    bars: dict[int, Bar] = {}
    index = 0
    while index < codec.BAR_COUNT[0]:
        mask = _mask(config, index)
        wide = mask & 7 == 4
        if mask & 1:
            config.write32(codec.FIRST_BAR + 4 * index, 0)  # port addresses are not forwarded here
        elif mask:
            offered = sizable[index].supported_sizes if index in sizable else ()
            bars[index] = _place(config, index, mask | (_mask(config, index + 1) << 32 if wide else 0), wide, pools, tuple(offered))
        index += 2 if wide else 1
    config.write8(COMMAND, codec.COMMAND_IO | COMMAND_MEMORY)
    return bars


def _choose_size(config: ConfigSpace, bar: SizableBar, size: int | None) -> None:
    if size is None or size == bar.current:
        return
    if size not in bar.supported_sizes:
        raise ResizeRefused(f"BAR{bar.bar} cannot have {size:#x} bytes", means="the device does not support this size")
    control = config.read32(bar.control_offset)
    config.write32(bar.control_offset, control & ~0x3F00 | (size.bit_length() - 21) << 8)


def _mask(config: ConfigSpace, index: int) -> int:
    """What all ones leave in a BAR register."""
    place = codec.FIRST_BAR + 4 * index
    config.write32(place, codec.ALL_ONES)
    return config.read32(place)


def _place(config: ConfigSpace, index: int, mask: int, wide: bool, pools: dict[bool, AddressPool], offered: tuple[int, ...]) -> Bar:
    width = 64 if wide else 32
    prefetchable = bool(mask & 8)
    size = (1 << width) - (mask & ~0xF)
    if size & (size - 1):
        raise BarAssignment(f"sizing BAR{index} gives no power of two", read=f"mask {mask:#x}")
    address = pools[prefetchable and wide].take(size)
    if address is None:
        raise BarAssignment(f"BAR{index} of {size:#x} bytes finds no room", means="the pool of bus addresses behind the bridge is too small", remedy="choose a smaller size for it")
    place = codec.FIRST_BAR + 4 * index
    config.write32(place, address & 0xFFFFFFFF)
    if wide:
        config.write32(place + 4, address >> 32)
    seen = config.read32(place)
    if seen & ~0xF != address & 0xFFFFFFFF:
        raise BarAssignment(f"BAR{index} does not hold its address", read=f"{seen:#010x} after writing {address:#x}")
    return Bar(index, address, size, is_64bit=wide, prefetchable=prefetchable, resizable_to=offered)
