"""The PCIe hierarchy behind the bridge: two ports of the chip itself, then whatever sits on its slot.

Nothing is configured at power-on: bus numbers are 0, windows closed, BARs without address. A request gets exactly as far as software
programmed the way for it:

    configuration   type 0 ends at the chip's upstream port; type 1 follows the secondary/subordinate numbers of each port
    memory          every port must have memory decoding on and a window around the address; then a BAR must decode it
    DMA             every port and the function need the bus master bit, and no port on the way may claim the address itself

What nobody claims is completed as unsupported request. Below a slot whose link is down nobody completes at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hw.errors import NotModelled
from mocks.asm24 import sram
from mocks.pci import BarModel, BarSlot, MockFunction
from mocks.pci_config import BRIDGE_BUSES, BRIDGE_MEMORY, BRIDGE_PREFETCHABLE, COMMAND, COMMAND_MEMORY, D0, ConfigModel, build_bridge, build_config

if TYPE_CHECKING:
    from mocks.machine import Machine

log = logging.getLogger(__name__)

SUCCESS = 0
UNSUPPORTED_REQUEST = 1
CONFIG_RETRY = 2
COMPLETER_ABORT = 4

BRIDGE_CONTROL = 0x3E
BRIDGE_CONTROL_RESET = 1 << 6
BUS_NUMBER_BYTES = 0b0111
MIB = 1 << 20
ALL_ONES = 0xFFFFFFFF

PORTS = (
    {"address": "asm24:00:00.0", "vendor": 0x1B21, "device": 0x2461, "revision": 0, "class": 0x060400, "express": {"offset": 0x80, "kind": "upstream port"}},
    {"address": "asm24:01:00.0", "vendor": 0x1B21, "device": 0x2461, "revision": 0, "class": 0x060400, "express": {"offset": 0x80, "kind": "downstream port"}},
)
"""the chip's own ports; ids as seen on hardware, capability offset invented"""


@dataclass(frozen=True)
class Request:
    """One request as the hierarchy sees it. kind: "CfgRd", "CfgWr" (address = bus, device, function, register), "MRd", "MWr"."""

    kind: str
    address: int
    be: int
    data: bytes = b""


@dataclass(frozen=True)
class Completion:
    """What came back. data: the dword of a read, None for a completion without data."""

    status: int
    data: int | None = None


Answer = Completion | None
"""None: nobody completed the request"""
REFUSED = Completion(UNSUPPORTED_REQUEST)


@dataclass(frozen=True)
class Decoder:
    """A BAR that is reachable now."""

    low: int
    high: int
    function: MockFunction
    slot: BarSlot


class Fabric:
    """Ports, functions, routing."""

    def __init__(self, machine: Machine, entries: list[dict[str, Any]], link_up: Callable[[], bool], memory: sram.Sram) -> None:
        self.machine = machine
        self.memory = memory
        self._slot_link = link_up
        self.record: list[Request] | None = None
        """set to a list to collect every request in the order in which it reaches the hierarchy"""
        self.lost_writes: list[int] = []
        """addresses of posted writes that nobody took"""
        self.retry_until = 0.0
        """configuration requests below the slot complete with "retry" until this moment (simulated s)"""
        self.retries_left = int(machine.faults.argument("config-retry") or 0)
        self.upstream = self._port(PORTS[0], None)
        self.downstream = self._port(PORTS[1], self.upstream)
        self._latched: dict[MockFunction, int] = {}
        self.behind: list[MockFunction] = []
        """functions on the slot, outermost first"""
        self._children: dict[MockFunction, list[MockFunction]] = {self.upstream: [self.downstream], self.downstream: []}
        self._decoders: list[Decoder] | None = None
        self._populate(entries)

    # --- building ---

    def _port(self, entry: dict[str, Any], parent: MockFunction | None) -> MockFunction:
        config = build_bridge({**entry, "buses": [0, 0, 0]}, {"memory": [0, 1], "prefetchable": [0, 1]})
        config.set(COMMAND, 0, 2, writable=0x0547)
        config.set(BRIDGE_MEMORY, 0, writable=0xFFF0FFF0)
        config.set(BRIDGE_PREFETCHABLE, 0x00010001, writable=0xFFF0FFF0)
        config.set(BRIDGE_CONTROL, 0, 2, writable=0x0F7F)
        function = MockFunction(self.machine, entry["address"], config, [], "bridge", parent)
        function.memory = self.memory
        return function

    def _populate(self, entries: list[dict[str, Any]]) -> None:
        """Put the entries of a profile onto the slot. Their bus numbers say who is below whom; on the real bus they mean nothing yet."""
        below: dict[int, MockFunction] = {}
        depth = {self.downstream: 2}
        for entry in entries:
            bus, place = entry["address"].split(":")[1:]
            parent = below.get(int(bus, 16), self.downstream)
            named = {**entry, "address": f"asm24:{depth[parent]:02x}:{place}"}
            if entry.get("role") == "bridge":
                function = self._port(named, parent)
                below[entry["buses"][1]] = function
                depth[function] = depth[parent] + 1
                self._children[function] = []
            else:
                function = self._endpoint(named, parent)
            self._children[parent].append(function)
            self.behind.append(function)

    def _endpoint(self, entry: dict[str, Any], parent: MockFunction) -> MockFunction:
        slots = []
        for bar in entry.get("bars", []):
            sizes = tuple(each * MIB for each in bar.get("sizes_mib", []))
            slots.append(BarSlot(bar["index"], bar["size"], bar["flags"], sizes=sizes, control=bar.get("control", 0)))
        config: ConfigModel = build_config(entry)
        function = MockFunction(self.machine, entry["address"], config, slots, entry.get("role", ""), parent)
        function.memory = self.memory
        return function

    # --- changes ---

    def paths_changed(self) -> None:
        """Configuration, link or reset changed: find the ways anew when somebody asks."""
        self._decoders = None
        for function in (self.upstream, self.downstream, *self.behind):
            function.update_paths()
        ports = [self.upstream, *(each for each in (self.downstream, *self.behind) if each.role == "bridge")]
        self.memory.blocked = not self._slot_link() or any(_window_meets(port, sram.LOWEST, sram.HIGHEST) for port in ports)

    def fundamental_reset(self, power_lost: bool) -> None:
        """PERST# was asserted: configuration behind the slot is gone; with the power also what the devices inside hold."""
        for function in self.behind:
            if power_lost:
                function.bus_reset()
            else:
                function.config_reset()

    def hot_reset(self, port: MockFunction) -> None:
        """Everything below a port is reset through the link."""
        for child in self._children.get(port, []):
            child.bus_reset()
            self.hot_reset(child)

    def chip_reset(self) -> None:
        """The chip's own ports lose their configuration."""
        self._latched.clear()
        for port in (self.upstream, self.downstream):
            port.config_reset()

    # --- configuration requests ---

    def config(self, type1: bool, address: int, be: int, value: int | None) -> Answer:
        """One configuration request. `address`: bus 31:24, device 23:19, function 18:16, register 11:0. `value` None: a read."""
        be &= 0xF
        register = address & 0xFFC
        data = b"" if value is None else value.to_bytes(4, "little")
        self._note("CfgRd" if value is None else "CfgWr", address & 0xFFFF0FFC, be, data)
        bus, device, number = address >> 24, address >> 19 & 0x1F, address >> 16 & 7
        found: MockFunction | Answer
        if not type1:
            found = self.upstream if bus == 0 and number == 0 else REFUSED
        else:
            found = self._route(self.upstream, bus, device, number) if bus else REFUSED
        if not isinstance(found, MockFunction):
            return found
        if found.parent not in (None, self.upstream) and self._must_retry():
            return Completion(CONFIG_RETRY)
        if value is None:
            return Completion(SUCCESS, found.config_read(register, 4))
        self._config_write(found, register, value, be)
        return Completion(SUCCESS)

    def _must_retry(self) -> bool:
        if self.retries_left > 0:
            self.retries_left -= 1
            return True
        return self.machine.clock.now() < self.retry_until

    def _route(self, port: MockFunction, bus: int, device: int, number: int) -> MockFunction | Answer:
        numbers = self._latched.get(port, 0) if port in (self.upstream, self.downstream) else port.config.get(BRIDGE_BUSES)
        secondary, subordinate = numbers >> 8 & 0xFF, numbers >> 16 & 0xFF
        if secondary == 0 or not secondary <= bus <= subordinate:
            return REFUSED
        if port is self.downstream and not self._slot_link():
            return None
        children = self._children[port]
        if bus == secondary:
            wanted = f"{device:02x}.{number}"
            return next((each for each in children if each.link_up and each.address.endswith(wanted)), REFUSED)
        for child in children:
            if child.role == "bridge" and child.link_up:
                found = self._route(child, bus, device, number)
                if found is not REFUSED:
                    return found
        return REFUSED

    def _config_write(self, function: MockFunction, register: int, value: int, be: int) -> None:
        held = function.config.get(BRIDGE_CONTROL, 2) & BRIDGE_CONTROL_RESET if function.role == "bridge" else 0
        for offset, size in _pieces(be):
            function.config_write(register + offset, value >> 8 * offset & (1 << 8 * size) - 1, size)
        if function in (self.upstream, self.downstream) and register == BRIDGE_BUSES and be & BUS_NUMBER_BYTES == BUS_NUMBER_BYTES:
            # the chip's ports take new bus numbers only when all three come in one request
            self._latched[function] = function.config.get(BRIDGE_BUSES)
        if function.role == "bridge" and not held and function.config.get(BRIDGE_CONTROL, 2) & BRIDGE_CONTROL_RESET:
            self.hot_reset(function)

    # --- memory requests ---

    def read(self, address: int, be: int = 0xF) -> Answer:
        """One dword of memory space."""
        self._note("MRd", address, be)
        found = self._decode(address)
        if not isinstance(found, Decoder):
            return found
        self._count(found)
        if not found.function.link_up:
            return None
        if found.function.in_reset:
            return Completion(SUCCESS, ALL_ONES)
        return Completion(SUCCESS, _model(found).read(address - found.low, 4))

    def write(self, address: int, data: int, be: int = 0xF) -> None:
        """One dword of memory space; posted, so nobody learns what becomes of it."""
        self._note("MWr", address, be, data.to_bytes(4, "little"))
        found = self._decode(address)
        if isinstance(found, Decoder):
            self._count(found)
        if not isinstance(found, Decoder) or not found.function.link_up or found.function.in_reset:
            self._lost(address)
            return
        model = _model(found)
        if be == 0xF:
            model.write(address - found.low, data, 4)
            return
        for offset in range(4):
            if be >> offset & 1:
                model.write(address - found.low + offset, data >> 8 * offset & 0xFF, 1)

    def memory_at(self, address: int, size: int) -> tuple[BarModel, int] | None:
        """(model, offset in it) where a whole range is plain memory of a device that answers, so that order inside it does not matter."""
        found = self._decode(address)
        if not isinstance(found, Decoder) or address + size - 1 > found.high or self.machine.watch_bus:
            return None
        if not found.function.link_up or found.function.in_reset:
            return None
        model = _model(found)
        return (model, address - found.low) if type(model).write_block is not BarModel.write_block else None

    def note_block(self, kind: str, address: int, data: bytes) -> None:
        """A range went by as a run of dwords."""
        self._note(kind, address, 0xF, data)

    def _decode(self, address: int) -> Decoder | Answer:
        if self._decoders is None:
            self._decoders = self._find_decoders()
        for each in self._decoders:
            if each.low <= address <= each.high:
                return each
        if self.upstream.claims(address, 4) and self.downstream.claims(address, 4) and not self._slot_link():
            return None
        return REFUSED

    def _find_decoders(self) -> list[Decoder]:
        """Every BAR that decodes and that all ports above pass its start and end on to."""
        found: list[Decoder] = []
        if not self._slot_link():
            return found
        for function in self.behind:
            if function.role == "bridge" or not function.command & COMMAND_MEMORY or function.power_state != D0:
                continue
            for slot in function.slots.values():
                low = function.bar_address(slot)
                if slot.is_io or function.parent is None or not low:
                    continue
                if function.parent.forwards(low, 4) and function.parent.forwards(low + slot.size - 4, 4):
                    found.append(Decoder(low, low + slot.size - 1, function, slot))
        return found

    # --- book keeping ---

    def _count(self, found: Decoder) -> None:
        if self.machine.watch_bus:
            self.machine.count_access(found.function)

    def _note(self, kind: str, address: int, be: int, data: bytes = b"") -> None:
        if self.record is not None:
            self.record.append(Request(kind, address, be, data))

    def _lost(self, address: int) -> None:
        self.lost_writes.append(address)
        log.info("posted write to %#x: nobody there", address)


def _model(found: Decoder) -> BarModel:
    if found.slot.model is None:
        raise NotModelled(f"access to BAR{found.slot.index} of {found.function.address}", read="nothing is behind it")
    return found.slot.model


def _window_meets(port: MockFunction, low: int, high: int) -> bool:
    """Does a port claim any of a range for the bus below it?"""
    return any(port.claims(address, 4) for address in (low, *range(low & -MIB, high, MIB), high & ~3) if address >= low)


def _pieces(be: int) -> list[tuple[int, int]]:
    """Byte enables as the accesses of 4, 2 or 1 bytes they stand for: (offset in the dword, size)."""
    whole = {0xF: [(0, 4)], 0x3: [(0, 2)], 0xC: [(2, 2)]}
    return whole.get(be, [(offset, 1) for offset in range(4) if be >> offset & 1])
