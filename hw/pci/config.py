"""Configuration space of one PCI function: decoding, BAR sizing, resizable BARs, text dumps.

info = decode(device.config)      # or decode(BytesConfig(image))
info.to_dict()                    # plain data for --json
size_bars(device.config)          # with memory decode off, everything restored
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from hw.errors import BusLost, ConfigInvalid, ConfigTruncated, Refused, ResizeRefused
from hw.pci.caps import (
    STANDARD_SIZE,
    Capability,
    Entry,
    Pcie,
    decode_standard,
    extended_entries,
    find_extended,
    plain,
    standard_entries,
)
from hw.pci.device import COMMAND, COMMAND_BUS_MASTER, COMMAND_MEMORY, Bar, ConfigSpace, PciId, check_access, show_size
from hw.pci.extcaps import RESIZABLE_BAR, ResizableBars, SizableBar, decode_extended

COMMAND_IO = 1 << 0
HEADER_TYPE = 0x0E
HEADER_SIZE = 0x40
FIRST_BAR = 0x10
BAR_COUNT = {0: 6, 1: 2}
"""by header type"""
ALL_ONES = 0xFFFFFFFF


class BytesConfig(ConfigSpace):
    """Configuration space held in memory: an image read from somewhere, or the store of a simulated function."""

    def __init__(self, image: bytes | bytearray) -> None:
        self.image = bytearray(image)
        self.size = len(self.image)

    def read(self, offset: int, size: int) -> int:
        self._check(offset, size)
        return int.from_bytes(self.image[offset : offset + size], "little")

    def write(self, offset: int, value: int, size: int) -> None:
        self._check(offset, size)
        self.image[offset : offset + size] = value.to_bytes(size, "little")

    def dump(self) -> bytes:
        return bytes(self.image)

    def _check(self, offset: int, size: int) -> None:
        check_access(offset, size)
        if offset + size > self.size:
            raise ConfigTruncated(f"configuration space at {offset:#x}", read=f"{self.size} bytes of it")


@dataclass(frozen=True)
class Window:
    """A range that a bridge forwards; disabled when the limit lies below the base. Addresses inclusive."""

    hexadecimal: ClassVar[dict[str, int]] = {"base": 1, "limit": 1}
    base: int
    limit: int
    disabled: bool


@dataclass(frozen=True)
class Bridge:
    hexadecimal: ClassVar[dict[str, int]] = {"control": 4}
    primary: int
    secondary: int
    subordinate: int
    memory: Window
    prefetchable: Window
    io: Window
    control: int


@dataclass(frozen=True)
class ConfigInfo:
    """Configuration space, decoded. `bars` holds addresses only (sizes are not in the registers): size 0 means not known here.

    faults: what was wrong with BARs or capability lists or could not be read; `capabilities` then holds the good part.
    """

    id: PciId
    command: int
    status: int
    header_type: int
    multifunction: bool
    interrupt_pin: int
    interrupt_line: int
    bars: tuple[Bar, ...]
    bridge: Bridge | None
    capabilities: tuple[Capability, ...]
    faults: tuple[ConfigInvalid, ...]

    @property
    def pcie(self) -> Pcie | None:
        """The PCI Express capability, None on conventional functions or where it cannot be read."""
        return next((capability for capability in self.capabilities if isinstance(capability, Pcie)), None)

    @property
    def memory_enabled(self) -> bool:
        return bool(self.command & COMMAND_MEMORY)

    def to_dict(self) -> dict[str, Any]:
        """Stable keys; register values and addresses as hexadecimal text, counts and sizes (bytes) as numbers."""
        identity = self.id
        result: dict[str, Any] = {
            "vendor": f"{identity.vendor:#06x}",
            "device": f"{identity.device:#06x}",
            "class_code": f"{identity.class_code:#08x}",
            "revision": identity.revision,
            "header_type": self.header_type,
            "multifunction": self.multifunction,
            "command": f"{self.command:#06x}",
            "status": f"{self.status:#06x}",
            "interrupt_pin": self.interrupt_pin,
            "interrupt_line": self.interrupt_line,
            "bars": [{"bar": bar.index, "address": f"{bar.address:#x}", "kind": bar.kind} for bar in self.bars],
        }
        if self.bridge is None:
            result["subsystem"] = f"{identity.subsystem_vendor:#06x}:{identity.subsystem_device:#06x}"
        else:
            result["bridge"] = plain(self.bridge)
        result["capabilities"] = [capability.to_dict() for capability in self.capabilities]
        if self.faults:
            result["faults"] = [fault.to_dict() for fault in self.faults]
        return result


def decode(config: ConfigSpace) -> ConfigInfo:
    """Read and decode everything; nothing is written. Raises BusLost when the function does not answer, ConfigTruncated below 64 bytes."""
    if config.size < HEADER_SIZE:
        raise ConfigTruncated("decoding configuration space", read=f"{config.size} bytes of it", means="the header alone has 64 bytes")
    ids = config.read32(0x00)
    if ids & 0xFFFF == 0xFFFF:
        raise BusLost("decoding configuration space", read=f"vendor/device {ids:#010x}")
    class_revision = config.read32(0x08)
    header = config.read8(HEADER_TYPE)
    header_type = header & 0x7F
    subsystem = config.read32(0x2C) if header_type == 0 else 0
    capabilities, faults = _capabilities(config)
    try:
        bars = tuple(read_bars(config).values())
    except ConfigInvalid as fault:
        bars = ()
        faults.append(fault)
    return ConfigInfo(
        id=PciId(ids & 0xFFFF, ids >> 16, class_revision & 0xFF, class_revision >> 8, subsystem & 0xFFFF, subsystem >> 16),
        command=config.read16(COMMAND),
        status=config.read16(0x06),
        header_type=header_type,
        multifunction=bool(header & 0x80),
        interrupt_pin=config.read8(0x3D),
        interrupt_line=config.read8(0x3C),
        bars=bars,
        bridge=_bridge(config) if header_type == 1 else None,
        capabilities=tuple(capabilities),
        faults=tuple(faults),
    )


def _capabilities(config: ConfigSpace) -> tuple[list[Capability], list[ConfigInvalid]]:
    found: list[Capability] = []
    faults: list[ConfigInvalid] = []
    lists: list[tuple[Callable[[ConfigSpace], Iterator[Entry]], Callable[[ConfigSpace, Entry], Capability]]] = [
        (standard_entries, decode_standard),
        (extended_entries, decode_extended),
    ]
    for entries, decoder in lists:
        try:
            for entry in entries(config):
                try:
                    found.append(decoder(config, entry))
                except ConfigTruncated as fault:
                    found.append(Capability(entry))
                    faults.append(fault)
        except ConfigInvalid as fault:
            faults.append(fault)
    if config.size == STANDARD_SIZE and any(isinstance(capability, Pcie) for capability in found):
        faults.append(ConfigTruncated("extended configuration space cannot be read", read=f"{config.size} bytes of configuration space"))
    return found, faults


def _bridge(config: ConfigSpace) -> Bridge:
    def window(base: int, limit: int) -> Window:
        return Window(base, limit, limit < base)

    io_base, io_limit = config.read8(0x1C), config.read8(0x1D)
    wide_io = io_base & 0xF == 1
    io = window(
        (io_base & 0xF0) << 8 | (config.read16(0x30) << 16 if wide_io else 0),
        (io_limit & 0xF0) << 8 | 0xFFF | (config.read16(0x32) << 16 if wide_io else 0),
    )
    memory = window((config.read16(0x20) & 0xFFF0) << 16, (config.read16(0x22) & 0xFFF0) << 16 | 0xFFFFF)
    base, limit = config.read16(0x24), config.read16(0x26)
    wide = base & 0xF == 1
    prefetchable = window(
        (base & 0xFFF0) << 16 | (config.read32(0x28) << 32 if wide else 0),
        (limit & 0xFFF0) << 16 | 0xFFFFF | (config.read32(0x2C) << 32 if wide else 0),
    )
    return Bridge(config.read8(0x18), config.read8(0x19), config.read8(0x1A), memory, prefetchable, io, config.read16(0x3E))


# --- base address registers -------------------------------------------------------------------------------------------


def _bar_count(config: ConfigSpace) -> int:
    return BAR_COUNT.get(config.read8(HEADER_TYPE) & 0x7F, 0)


def _bar(config: ConfigSpace, index: int, size: int, low: int, high: int, resizable_to: tuple[int, ...] = ()) -> Bar:
    """A BAR from its register values (high: the next register, used by 64-bit ones)."""
    if low & 1:
        return Bar(index, low & ~3, size, is_io=True)
    kind = low >> 1 & 3
    if kind == 3 or (kind == 2 and index + 1 >= _bar_count(config)):
        raise ConfigInvalid(f"BAR{index} has type bits {kind:#x}", read=f"{low:#010x}")
    wide = kind == 2
    return Bar(index, low & ~0xF | (high << 32 if wide else 0), size, is_64bit=wide, prefetchable=bool(low >> 3 & 1), resizable_to=resizable_to)


def read_bars(config: ConfigSpace) -> dict[int, Bar]:
    """Addresses and kinds of the BARs as the registers hold them; size 0 (not known). An all-zero register is left out: it may be
    an unimplemented BAR or an unassigned 32-bit one, which only sizing can tell."""
    bars: dict[int, Bar] = {}
    index, count = 0, _bar_count(config)
    while index < count:
        low = config.read32(FIRST_BAR + 4 * index)
        high = config.read32(FIRST_BAR + 4 * index + 4) if low & 7 == 4 and index + 1 < count else 0
        if low:
            bars[index] = _bar(config, index, 0, low, high)
            index += bars[index].is_64bit
        index += 1
    return bars


@contextmanager
def decode_off(config: ConfigSpace) -> Iterator[None]:
    """With I/O and memory decode off, so that changing BARs makes the function answer nowhere; the command register is restored.

    Raises Refused, changing nothing, while the function may start accesses of its own (bus mastering on): something is using it.
    """
    command = config.read16(COMMAND)
    if command & COMMAND_BUS_MASTER:
        raise Refused(
            "changing BARs of a function that masters the bus",
            read=f"command {command:#06x}",
            means="something uses the device now; it would lose its registers in the middle of that",
            remedy="stop its driver, or switch bus mastering off first",
        )
    config.write16(COMMAND, command & ~(COMMAND_IO | COMMAND_MEMORY))
    try:
        yield
    finally:
        config.write16(COMMAND, command)


def size_bars(config: ConfigSpace) -> dict[int, Bar]:
    """Addresses, kinds and sizes of the implemented BARs, by writing all ones to each and reading back what sticks.

    64-bit BARs are sized from both registers together. Decode is off meanwhile; every register is restored, whatever happens.
    Raises BusLost, Refused (see decode_off), ConfigInvalid for a mask that is no size.
    """
    ids = config.read32(0x00)
    if ids & 0xFFFF == 0xFFFF:
        raise BusLost("sizing BARs", read=f"vendor/device {ids:#010x}")
    resizable = {bar.bar: bar.supported_sizes for bar in resizable_bars(config)}
    bars: dict[int, Bar] = {}
    with decode_off(config):
        index, count = 0, _bar_count(config)
        while index < count:
            place = FIRST_BAR + 4 * index
            low, low_mask = _probe(config, place)
            if not low_mask:
                index += 1
                continue
            high, high_mask = _probe(config, place + 4) if low_mask & 7 == 4 and index + 1 < count else (0, 0)
            bars[index] = _bar(config, index, _size_of(index, low_mask, high_mask), low, high, resizable.get(index, ()))
            index += 2 if bars[index].is_64bit else 1
    return bars


def _probe(config: ConfigSpace, place: int) -> tuple[int, int]:
    """(value, what all ones leave behind) of one BAR register, which is restored."""
    value = config.read32(place)
    config.write32(place, ALL_ONES)
    try:
        mask = config.read32(place)
    finally:
        config.write32(place, value)
    return value, mask


def _size_of(index: int, low_mask: int, high_mask: int) -> int:
    if low_mask & 1:
        # I/O decoders may implement only 16 address bits.
        mask, width = low_mask & ~3, 32 if low_mask >> 16 else 16
    elif low_mask & 6 == 4:
        mask, width = low_mask & ~0xF | high_mask << 32, 64
    else:
        mask, width = low_mask & ~0xF, 32
    size = (1 << width) - mask
    if not mask or size & (size - 1):
        raise ConfigInvalid(f"sizing BAR{index} gives no power of two", read=f"mask {high_mask:#x}:{low_mask:#010x}")
    return size


# --- resizable BARs ---------------------------------------------------------------------------------------------------


def resizable_bars(config: ConfigSpace) -> tuple[SizableBar, ...]:
    """The BARs that the resizable BAR capability lists; empty where there is none. Raises ConfigInvalid for a damaged list."""
    offset = find_extended(config, RESIZABLE_BAR)
    if offset is None:
        return ()
    capability = decode_extended(config, Entry(offset, RESIZABLE_BAR, extended=True))
    return capability.bars if isinstance(capability, ResizableBars) else ()


def set_bar_size(config: ConfigSpace, index: int, size: int) -> None:
    """Choose another size (bytes) of a resizable BAR by its control register. Decode is off meanwhile.

    For functions whose addresses are ours to give (behind a USB bridge): the BAR loses the address bits below its size and must be
    assigned anew by the caller. Raises ResizeRefused when the size is not offered or does not stick; Refused, see decode_off().
    """
    bar = next((bar for bar in resizable_bars(config) if bar.bar == index), None)
    if bar is None:
        raise ResizeRefused(f"BAR{index} is not resizable", means="its device has no resizable BAR capability for it")
    if size not in bar.supported_sizes:
        offered = ", ".join(show_size(offer) for offer in bar.supported_sizes)
        raise ResizeRefused(f"BAR{index} cannot have {size:#x} bytes", read=f"offered: {offered}", means="the device does not support this size")
    with decode_off(config):
        control = config.read32(bar.control_offset)
        config.write32(bar.control_offset, control & ~(0x3F << 8) | (size.bit_length() - 21) << 8)
        after = config.read32(bar.control_offset)
    if after >> 8 & 0x3F != size.bit_length() - 21:
        raise ResizeRefused(f"BAR{index} did not take {show_size(size)}", read=f"control register {after:#010x}", means="the device ignored the new size")


# --- text dumps -------------------------------------------------------------------------------------------------------


def hexdump(image: bytes, address: str) -> str:
    """The format that `lspci -F` reads: a line with the address, then 16 bytes a line, then an empty line."""
    lines = [f"{address} configuration space"]
    for offset in range(0, len(image), 16):
        lines.append(f"{offset:02x}: " + " ".join(f"{byte:02x}" for byte in image[offset : offset + 16]))
    return "\n".join(lines) + "\n\n"
