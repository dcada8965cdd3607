"""PCI functions of a simulated machine: a configuration space that behaves, BARs that decode, interrupts.

Behaviour follows the PCI Express base specification: read-only and write-one-to-clear bits, BAR sizing by all ones, 64-bit BARs,
resizable BARs (only while memory decoding is off), D-states, MSI gated by bus mastering.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hw.errors import BusLost, MemoryDisabled, NotModelled, NotSupported, OutOfWindow, ResizeRefused
from hw.mmio import ALL_ONES_32, ALL_ONES_64, BytesLike, Cost, Mmio
from hw.pci.device import Bar, ConfigSpace, DmaMemory, Irq, PciDevice, PciId

if TYPE_CHECKING:
    from mocks.machine import Machine

log = logging.getLogger(__name__)

CONFIG_SIZE = 4096

COMMAND = 0x04
STATUS = 0x06
BAR0 = 0x10
ROM_BAR = 0x30
CAPABILITIES = 0x34
INTERRUPT_LINE = 0x3C
FIRST_EXTENDED = 0x100

COMMAND_IO = 1 << 0
COMMAND_MEMORY = 1 << 1
COMMAND_MASTER = 1 << 2
COMMAND_INTX_OFF = 1 << 10
COMMAND_WRITABLE = 0x0547
"""I/O, memory, master, parity response, SERR, INTx disable"""
STATUS_CLEARABLE = 0xF900
"""error bits, cleared by writing 1"""

CAP_POWER = 0x01
CAP_MSI = 0x05
CAP_EXPRESS = 0x10
EXT_RESIZABLE_BAR = 0x0015

POWER_STATE_MASK = 0x3
D0 = 0
D3HOT = 3
MSI_ENABLE = 1 << 16
"""in the capability's first dword"""

MIB = 1 << 20

BRIDGE_BUSES = 0x18
BRIDGE_MEMORY = 0x20
BRIDGE_PREFETCHABLE = 0x24
_PORT_KINDS = {"root port": 0x4, "upstream port": 0x5, "downstream port": 0x6}


class ConfigModel:
    """The bytes of a configuration space with what software may do to each bit. Offsets in bytes."""

    def __init__(self) -> None:
        self.data = bytearray(CONFIG_SIZE)
        self.writable = bytearray(CONFIG_SIZE)
        self.clearable = bytearray(CONFIG_SIZE)

    def set(self, offset: int, value: int, size: int = 4, *, writable: int = 0, clearable: int = 0) -> None:
        """Define a field: its reset value and which bits software may write, or clear by writing 1."""
        self.data[offset : offset + size] = value.to_bytes(size, "little")
        self.writable[offset : offset + size] = writable.to_bytes(size, "little")
        self.clearable[offset : offset + size] = clearable.to_bytes(size, "little")

    def get(self, offset: int, size: int = 4) -> int:
        return int.from_bytes(self.data[offset : offset + size], "little")

    def put(self, offset: int, value: int, size: int = 4) -> None:
        """Change a value from the device's side."""
        self.data[offset : offset + size] = value.to_bytes(size, "little")

    def write(self, offset: int, value: int, size: int) -> None:
        """A write by software."""
        for position in range(size):
            at = offset + position
            new = value >> 8 * position & 0xFF
            old = self.data[at]
            kept = old & ~(new & self.clearable[at])
            self.data[at] = kept & ~self.writable[at] & 0xFF | new & self.writable[at]

    def forbid(self, offset: int, bits: int) -> None:
        """Take the writable property away from bits of a 16-bit register and clear them."""
        for position in range(2):
            self.writable[offset + position] &= ~(bits >> 8 * position) & 0xFF
            self.data[offset + position] &= ~(bits >> 8 * position) & 0xFF

    def capability(self, wanted: int) -> int | None:
        """Offset of a standard capability."""
        offset = self.data[CAPABILITIES]
        while offset:
            if self.data[offset] == wanted:
                return offset
            offset = self.data[offset + 1]
        return None

    def extended(self, wanted: int) -> int | None:
        """Offset of an extended capability."""
        offset = FIRST_EXTENDED
        while offset:
            header = self.get(offset)
            if header & 0xFFFF == wanted:
                return offset
            offset = header >> 20
        return None


class BarModel(ABC):
    """What a device does with accesses to one of its BARs. Offsets are from the BAR's start."""

    name = "BAR"

    @abstractmethod
    def read(self, offset: int, width: int) -> int:
        """One access of 1, 4 or 8 bytes."""

    @abstractmethod
    def write(self, offset: int, value: int, width: int) -> None: ...

    def read_block(self, offset: int, size: int) -> bytes:
        raise NotModelled(f"block read of {size} bytes at {offset:#x} of {self.name}", means="only memory takes block accesses; port registers are read one by one")

    def write_block(self, offset: int, data: BytesLike) -> None:
        raise NotModelled(f"block write of {len(data)} bytes at {offset:#x} of {self.name}", means="only memory takes block accesses; port registers are written one by one")


@dataclass
class BarSlot:
    """One base address register as built."""

    index: int
    size: int
    flags: int
    """the type bits that the register shows in 3:0"""
    address: int = 0
    """where the firmware of the machine put it; 0: nowhere"""
    sizes: tuple[int, ...] = ()
    """sizes that the resizable-BAR capability offers, ascending; empty: fixed"""
    control: int = 0
    """offset of its control dword in the resizable-BAR capability"""
    model: BarModel | None = None
    reachable: bool = False
    """memory accesses at `address` get to the device"""

    @property
    def is_io(self) -> bool:
        return bool(self.flags & 1)

    @property
    def is_64bit(self) -> bool:
        return not self.is_io and self.flags & 0x6 == 0x4

    @property
    def register(self) -> int:
        return BAR0 + 4 * self.index


class DmaTarget(Protocol):
    """Memory that a device's own accesses reach, by bus address."""

    def host_pointer(self, address: int, write: bool = False) -> tuple[int, int] | None:
        """(address in this process, bytes to the end of the page); None where nobody answers. `write`: what will be done there."""
        ...

    def dma_read(self, address: int, size: int) -> bytes: ...

    def dma_write(self, address: int, data: bytes | bytearray | memoryview) -> None: ...


@dataclass
class BusCosts:
    """Simulated time of accesses (s, s, bytes/s, bytes/s)."""

    read: float = 1e-6
    write: float = 0.1e-6
    block_read_rate: float = 1e9
    block_write_rate: float = 8e9
    config: float = 1e-6


class MockFunction:
    """One PCI function of the machine: its configuration space and what its BARs lead to."""

    def __init__(self, machine: Machine, address: str, config: ConfigModel, bars: list[BarSlot], role: str = "", parent: MockFunction | None = None) -> None:
        self.machine = machine
        self.address = address
        self.role = role
        """what it is: "gpu", "audio", "usb", "ucsi", "bridge" """
        self.parent = parent
        """the bridge above; None at the root"""
        self.config = config
        self.slots = {slot.index: slot for slot in bars}
        self.memory: DmaTarget = machine.ram
        """what the device's own accesses reach: the host's RAM, or what the bridge it sits behind has"""
        self.interrupts = 0
        """MSI messages that reached the host"""
        self.interrupt = machine.scheduler.signal()
        self.on_bus_reset: list[Callable[[], None]] = []
        self._link_up = True
        self._in_reset = False
        self.bus_master = False
        """may_master() as of the last change; asked for every access to host memory"""
        for slot in bars:
            self._declare_bar(slot)
        self._power_on = bytes(config.data)

    # --- what is the matter with it ---

    @property
    def link_up(self) -> bool:
        """Without a link nothing answers, not even configuration space."""
        return self._link_up and (self.parent is None or self.parent.link_up)

    @link_up.setter
    def link_up(self, up: bool) -> None:
        self._link_up = up
        self.machine.paths_changed()

    @property
    def in_reset(self) -> bool:
        """The device inside is in reset: BARs read all ones, configuration space answers."""
        return self._in_reset

    @in_reset.setter
    def in_reset(self, on: bool) -> None:
        self._in_reset = on
        self.machine.paths_changed()

    def identity(self) -> PciId:
        """Who it says it is, without changing anything. Raises BusLost."""
        ids = self.config_read(0x00, 4)
        if ids & 0xFFFF == 0xFFFF:
            raise BusLost(f"reading the identity of {self.address}", read=f"vendor/device {ids:#010x}")
        class_revision = self.config_read(0x08, 4)
        subsystem = self.config_read(0x2C, 4)
        return PciId(ids & 0xFFFF, ids >> 16, class_revision & 0xFF, class_revision >> 8, subsystem & 0xFFFF, subsystem >> 16)

    # --- configuration space, as the bus sees it ---

    def config_read(self, offset: int, size: int) -> int:
        return self.config.get(offset, size) if self.link_up else (1 << 8 * size) - 1

    def config_write(self, offset: int, value: int, size: int) -> None:
        if not self.link_up:
            return
        sized = next((slot for slot in self.slots.values() if slot.control and offset < slot.control + 4 and slot.control < offset + size), None)
        power = self.config.capability(CAP_POWER)
        if sized is not None:
            self._resize(sized, offset, value, size)
        elif power is not None and offset == power + 4 and value & POWER_STATE_MASK not in (D0, D3HOT):
            log.info("%s: power state D%d does not exist here: ignored", self.address, value & POWER_STATE_MASK)
        else:
            self.config.write(offset, value, size)
        self.machine.paths_changed()

    # --- what the bits mean ---

    @property
    def command(self) -> int:
        return self.config.get(COMMAND, 2)

    def may_master(self) -> bool:
        """May accesses of the device's own get to the host? Every bridge on the way must let them."""
        return bool(self.command & COMMAND_MASTER) and self.link_up and (self.parent is None or self.parent.may_master())

    @property
    def power_state(self) -> int:
        offset = self.config.capability(CAP_POWER)
        return D0 if offset is None else self.config.get(offset + 4) & POWER_STATE_MASK

    def bar_address(self, slot: BarSlot) -> int:
        """The address software programmed."""
        low = self.config.get(slot.register)
        if slot.is_io:
            return low & ~0x3
        high = self.config.get(slot.register + 4) if slot.is_64bit else 0
        return (high << 32 | low & ~0xF) & ~(slot.size - 1)

    def update_paths(self) -> None:
        """Find out anew which BARs answer where the kernel believes them to be, and whether the device reaches the host."""
        self.bus_master = self.may_master()
        answers = bool(self.command & COMMAND_MEMORY) and self.link_up and not self._in_reset and self.power_state == D0
        for slot in self.slots.values():
            here = answers and not slot.is_io and slot.address != 0 and self.bar_address(slot) == slot.address
            slot.reachable = here and (self.parent is None or self.parent.forwards(slot.address, slot.size))

    def forwards(self, address: int, size: int) -> bool:
        """Do this bridge and those above pass memory accesses to such a range on to the bus below?"""
        return self.claims(address, size) and (self.parent is None or self.parent.forwards(address, size))

    def claims(self, address: int, size: int) -> bool:
        """Does this bridge itself take memory accesses to such a range for the bus below?"""
        if not self.command & COMMAND_MEMORY or not self.link_up or self.power_state != D0:
            return False
        memory = self.config.get(BRIDGE_MEMORY)
        prefetchable = self.config.get(BRIDGE_PREFETCHABLE)
        base_high, limit_high = self.config.get(BRIDGE_PREFETCHABLE + 4), self.config.get(BRIDGE_PREFETCHABLE + 8)
        windows = [
            ((memory & 0xFFF0) << 16, (memory >> 16 & 0xFFF0) << 16 | 0xFFFFF),
            (base_high << 32 | (prefetchable & 0xFFF0) << 16, limit_high << 32 | (prefetchable >> 16 & 0xFFF0) << 16 | 0xFFFFF),
        ]
        return any(low <= address and address + size - 1 <= high for low, high in windows)

    def assign(self, slot: BarSlot, address: int) -> None:
        """What the machine's firmware or kernel does: program a BAR."""
        self.config.write(slot.register, address & 0xFFFFFFFF, 4)
        if slot.is_64bit:
            self.config.write(slot.register + 4, address >> 32, 4)
        slot.address = address
        self.machine.paths_changed()

    def raise_msi(self) -> bool:
        """Send the one MSI message. False when software has not enabled it, or may not master the bus, or it gets lost."""
        offset = self.config.capability(CAP_MSI)
        if offset is None or not self.config.get(offset) & MSI_ENABLE or not self.bus_master or self.machine.faults.active("irq-lost"):
            return False
        if self.memory is not self.machine.ram:
            self.memory.dma_write(self.config.get(offset + 8) << 32 | self.config.get(offset + 4), self.config.get(offset + 12, 2).to_bytes(4, "little"))
            return False
        self.interrupts += 1
        self.interrupt.set()
        return True

    def bus_reset(self) -> None:
        """A hot reset from the bridge above: configuration back to power-on, then the device's own reset."""
        self.config_reset()
        for hook in self.on_bus_reset:
            hook()
        self.machine.paths_changed()

    def config_reset(self) -> None:
        """Configuration space alone goes back to power-on."""
        self.config.data[:] = self._power_on
        for slot in self.slots.values():
            if slot.sizes:
                slot.size = self._control_size(slot)
                self._declare_bar(slot)
        self.machine.paths_changed()

    # --- inside ---

    def _declare_bar(self, slot: BarSlot) -> None:
        mask = -slot.size & 0xFFFFFFFFFFFFFFFF
        low_mask = mask & 0xFFFFFFFF & (~0x3 if slot.is_io else ~0xF)
        self.config.set(slot.register, self.config.get(slot.register) & low_mask | slot.flags, writable=low_mask)
        if slot.is_64bit:
            high_mask = mask >> 32
            self.config.set(slot.register + 4, self.config.get(slot.register + 4) & high_mask, writable=high_mask)

    def _control_size(self, slot: BarSlot) -> int:
        return MIB << (self.config.get(slot.control) >> 8 & 0x3F)

    def _resize(self, slot: BarSlot, offset: int, value: int, size: int) -> None:
        """A write to a BAR's size control: taken only while memory decoding is off and for a size that is offered."""
        if self.command & COMMAND_MEMORY:
            log.warning("%s: BAR%d size written while memory decoding is on: ignored", self.address, slot.index)
            return
        old = self.config.get(slot.control)
        self.config.write(offset, value, size)
        if self._control_size(slot) not in slot.sizes:
            self.config.put(slot.control, old)
            return
        slot.size = self._control_size(slot)
        self._declare_bar(slot)


class BarWindow(Mmio):
    """A mapped part of a BAR. Every access takes bus time; while the function does not decode memory, reads are all ones and writes vanish."""

    cost: Cost = "local"

    def __init__(self, device: MockPciDevice, slot: BarSlot, base: int, size: int) -> None:
        assert slot.model is not None
        self.name = f"BAR{slot.index} of {device.address}"
        self.size = size
        self._device = device
        self._machine = device.machine
        self._slot = slot
        self._model = slot.model
        self._base = base
        self._bar_size = slot.size
        self._clock = device.machine.clock
        self._costs = device.machine.costs

    def _reaches(self) -> bool:
        if self._device.closed or self._bar_size != self._slot.size:
            state = "closed" if self._device.closed else "resized"
            means = "a window is valid while its device is open and its BAR keeps its size"
            raise OutOfWindow(f"access to {self.name} after it was {state}", means=means, remedy="map the BAR again")
        if self._machine.watch_bus:
            self._machine.count_access(self._device.function)
        return self._slot.reachable

    def _read(self, offset: int, width: int, ones: int) -> int:
        self._clock.spend(self._costs.read)
        return self._model.read(self._base + offset, width) if self._reaches() else ones

    def _write(self, offset: int, value: int, width: int) -> None:
        self._clock.spend(self._costs.write)
        if self._reaches():
            self._model.write(self._base + offset, value, width)

    def read8(self, offset: int) -> int:
        self.check(offset, 1)
        return self._read(offset, 1, 0xFF)

    def write8(self, offset: int, value: int) -> None:
        self.check(offset, 1)
        self._write(offset, value & 0xFF, 1)

    def read32(self, offset: int) -> int:
        if offset & 3 or not 0 <= offset <= self.size - 4:
            self.check(offset, 4, 4)
        return self._read(offset, 4, ALL_ONES_32)

    def write32(self, offset: int, value: int) -> None:
        if offset & 3 or not 0 <= offset <= self.size - 4:
            self.check(offset, 4, 4)
        self._write(offset, value & ALL_ONES_32, 4)

    def read64(self, offset: int) -> int:
        if offset & 7 or not 0 <= offset <= self.size - 8:
            self.check(offset, 8, 8)
        return self._read(offset, 8, ALL_ONES_64)

    def write64(self, offset: int, value: int) -> None:
        if offset & 7 or not 0 <= offset <= self.size - 8:
            self.check(offset, 8, 8)
        self._write(offset, value & ALL_ONES_64, 8)

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        self._clock.spend(self._costs.read + size / self._costs.block_read_rate)
        return self._model.read_block(self._base + offset, size) if self._reaches() else b"\xff" * size

    def write(self, offset: int, data: BytesLike) -> None:
        self.check(offset, len(data))
        self._clock.spend(self._costs.write + len(data) / self._costs.block_write_rate)
        if self._reaches():
            self._model.write_block(self._base + offset, data)

    def view(self, offset: int = 0, size: int | None = None) -> Mmio:
        length = self.size - offset if size is None else size
        self.check(offset, length)
        return BarWindow(self._device, self._slot, self._base + offset, length)


class MockConfigSpace(ConfigSpace):
    """Configuration space of an open device."""

    size = CONFIG_SIZE

    def __init__(self, function: MockFunction) -> None:
        self._function = function

    def read(self, offset: int, size: int) -> int:
        self._check(offset, size)
        machine = self._function.machine
        machine.clock.spend(machine.costs.config)
        return self._function.config_read(offset, size)

    def write(self, offset: int, value: int, size: int) -> None:
        self._check(offset, size)
        machine = self._function.machine
        machine.clock.spend(machine.costs.config)
        self._function.config_write(offset, value & (1 << 8 * size) - 1, size)

    def _check(self, offset: int, size: int) -> None:
        if size not in (1, 2, 4) or offset % size or not 0 <= offset <= self.size - size:
            raise OutOfWindow(f"config access of {size} bytes at {offset:#x} of {self._function.address}")


class MockIrq(Irq):
    """MSI delivery, as VFIO gives it: enabling delivery programs the capability."""

    def __init__(self, function: MockFunction) -> None:
        self._function = function
        self._seen = function.interrupts
        self._set_enable(True)

    def wait(self, timeout: float) -> bool:
        clock = self._function.machine.clock
        scheduler = self._function.machine.scheduler
        deadline = clock.now() + timeout
        while self._function.interrupts == self._seen and clock.now() < deadline:
            clock.sleep(min(scheduler.next_due(), deadline) - clock.now())
        arrived = self._function.interrupts != self._seen
        self._seen = self._function.interrupts
        return arrived

    def close(self) -> None:
        self._set_enable(False)

    def _set_enable(self, on: bool) -> None:
        offset = self._function.config.capability(CAP_MSI)
        if offset is None:
            raise NotSupported(f"interrupts of {self._function.address}", read="no MSI capability")
        value = self._function.config.get(offset)
        self._function.config.put(offset, value | MSI_ENABLE if on else value & ~MSI_ENABLE)


@dataclass
class Lease:
    """What gives an opened function back."""

    release: Callable[[], None] = field(default=lambda: None)


class MockPciDevice(PciDevice):
    """One opened function of a simulated machine."""

    transport = "mock"

    def __init__(self, machine: Machine, function: MockFunction, lease: Lease) -> None:
        self.machine = machine
        self.function = function
        self.address = function.address
        self.clock = machine.clock
        self.config = MockConfigSpace(function)
        self.closed = False
        self._lease = lease
        self._irq: MockIrq | None = None

    @property
    def bars(self) -> dict[int, Bar]:
        """From the kernel's resource list: what the machine's firmware assigned."""
        return {
            index: Bar(
                index=index,
                address=slot.address,
                size=slot.size,
                is_io=slot.is_io,
                is_64bit=slot.is_64bit,
                prefetchable=bool(not slot.is_io and slot.flags & 0x8),
                resizable_to=slot.sizes,
            )
            for index, slot in self.function.slots.items()
        }

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> Mmio:
        bar = self.bar(index)
        slot = self.function.slots[index]
        if slot.model is None or bar.is_io:
            raise NotModelled(f"mapping BAR{index} of {self.address}", read="an I/O BAR" if bar.is_io else "nothing is behind it")
        if self.config.read32(0) == ALL_ONES_32:
            raise BusLost(f"mapping BAR{index} of {self.address}", read="vendor/device 0xffffffff")
        if not self.config.read16(COMMAND) & COMMAND_MEMORY:
            raise MemoryDisabled(f"mapping BAR{index} of {self.address}", read=f"command register {self.config.read16(COMMAND):#06x}")
        length = bar.size - offset if size is None else size
        if offset < 0 or length < 0 or offset + length > bar.size:
            raise OutOfWindow(f"mapping {length:#x} bytes at {offset:#x} of BAR{index}, which has {bar.size:#x}")
        return BarWindow(self, slot, offset, length)

    def resize_bar(self, index: int, size: int) -> None:
        self.bar(index)
        slot = self.function.slots[index]
        if size == slot.size:
            return
        if size not in slot.sizes:
            offered = ", ".join(f"{each // MIB} MiB" for each in slot.sizes)
            raise NotSupported(f"BAR{index} of {self.address} with {size:#x} bytes", read=f"offered: {offered or 'fixed size'}")
        address = self.machine.place_bar(self.function, slot, size)
        if address is None:
            raise ResizeRefused(f"resizing BAR{index} of {self.address} to {size // MIB} MiB", read=f"bridge window of {self.machine.window_of(slot)[1] // MIB} MiB")
        command = self.config.read16(COMMAND)
        self.config.write16(COMMAND, command & ~COMMAND_MEMORY)
        step = (size // MIB).bit_length() - 1
        self.config.write32(slot.control, self.config.read32(slot.control) & ~0x3F00 | step << 8)
        self.function.assign(slot, address)
        self.config.write16(COMMAND, command)

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        return self.machine.ram.allocate(size, contiguous=contiguous)

    def irq(self) -> Irq | None:
        if self._irq is None:
            self._irq = MockIrq(self.function)
        return self._irq

    def reset(self) -> None:
        """Hot reset through the bridge; the kernel's side restores addresses and command afterwards."""
        command = self.function.command
        self.function.bus_reset()
        self.clock.sleep(0.1)
        for slot in self.function.slots.values():
            if slot.address:
                self.function.assign(slot, slot.address)
        self.config.write16(COMMAND, command)

    def close(self) -> None:
        if self.closed:
            return
        if self._irq is not None:
            self._irq.close()
        self.set_bus_master(False)
        self.closed = True
        self._lease.release()

    def __repr__(self) -> str:
        return f"MockPciDevice({self.address}{', closed' if self.closed else ''})"


def build_config(ids: dict[str, Any]) -> ConfigModel:
    """A type 0 configuration space from a profile's entry: ids, capabilities as dwords at their offsets."""
    config = ConfigModel()
    config.set(0x00, ids["vendor"] | ids["device"] << 16)
    config.set(COMMAND, ids.get("command", 0), 2, writable=COMMAND_WRITABLE)
    config.set(STATUS, ids.get("status", 0x10), 2, clearable=STATUS_CLEARABLE)
    config.set(0x08, ids["revision"] | ids["class"] << 8)
    config.set(0x0C, 0, 1, writable=0xFF)
    config.set(0x0E, ids.get("header_type", 0), 1)
    config.set(0x2C, ids["subsystem_vendor"] | ids["subsystem_device"] << 16)
    config.set(INTERRUPT_LINE, 0xFF, 1, writable=0xFF)
    config.set(INTERRUPT_LINE + 1, ids.get("interrupt_pin", 1), 1)
    if ids.get("rom_size"):
        config.set(ROM_BAR, 0, writable=-ids["rom_size"] & 0xFFFFF800 | 1)
    capabilities = ids.get("capabilities", [])
    if capabilities:
        config.set(CAPABILITIES, capabilities[0]["offset"], 1)
    for entry in capabilities:
        _add_capability(config, entry)
    for entry in ids.get("extended", []):
        for position, value in enumerate(entry["dwords"]):
            config.set(entry["offset"] + 4 * position, value)
        if entry["dwords"][0] & 0xFFFF == EXT_RESIZABLE_BAR:
            for position in range(2, len(entry["dwords"]), 2):
                offset = entry["offset"] + 4 * position
                config.set(offset, entry["dwords"][position], writable=0x3F00)
    return config


_CAPABILITY_BITS: dict[int, list[tuple[int, int, int]]] = {
    CAP_POWER: [(4, 0x00000103, 0x00008000)],
    CAP_EXPRESS: [(0x08, 0x0000FFFF, 0x000F0000), (0x10, 0x00000FFB, 0xC0000000), (0x28, 0x0000FFFF, 0), (0x30, 0x0000FFFF, 0)],
    CAP_MSI: [(0x00, 0x00010000, 0), (0x04, 0xFFFFFFFC, 0), (0x08, 0xFFFFFFFF, 0), (0x0C, 0x0000FFFF, 0)],
}
"""capability id -> (offset in it, writable bits, bits cleared by writing 1)"""


def _add_capability(config: ConfigModel, entry: dict[str, Any]) -> None:
    base = entry["offset"]
    for position, value in enumerate(entry["dwords"]):
        config.set(base + 4 * position, value)
    for offset, writable, clearable in _CAPABILITY_BITS.get(entry["dwords"][0] & 0xFF, []):
        config.set(base + offset, config.get(base + offset), writable=writable, clearable=clearable)


def build_bridge(ids: dict[str, Any], windows: dict[str, list[int]]) -> ConfigModel:
    """A type 1 configuration space: bus numbers, memory windows, the port's PCI Express capability."""
    config = ConfigModel()
    config.set(0x00, ids["vendor"] | ids["device"] << 16)
    config.set(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER, 2, writable=COMMAND_WRITABLE)
    config.set(STATUS, 0x10, 2, clearable=STATUS_CLEARABLE)
    config.set(0x08, ids["revision"] | ids["class"] << 8)
    config.set(0x0E, 1, 1)
    for position, bus in enumerate(ids["buses"]):
        config.set(BRIDGE_BUSES + position, bus, 1, writable=0xFF)
    base, size_mib = windows["memory"]
    config.set(BRIDGE_MEMORY, _window(base, size_mib), writable=0xFFF0FFF0)
    base, size_mib = windows["prefetchable"]
    limit = base + size_mib * MIB - 1
    config.set(BRIDGE_PREFETCHABLE, _window(base, size_mib) | 0x00010001, writable=0xFFF0FFF0)
    config.set(BRIDGE_PREFETCHABLE + 4, base >> 32, writable=0xFFFFFFFF)
    config.set(BRIDGE_PREFETCHABLE + 8, limit >> 32, writable=0xFFFFFFFF)
    config.set(INTERRUPT_LINE, 0xFF, 1, writable=0xFF)
    offset = ids["express"]["offset"]
    config.set(CAPABILITIES, offset, 1)
    kind = _PORT_KINDS[ids["express"]["kind"]]
    dwords = [CAP_EXPRESS | 0x0002 << 16 | kind << 20, 0x00008FE2, 0x00002030, 0x00400D04, 0x11040040, 0, 0, 0, 0, 0, 0, 0x0000001E, 0x00000004]
    _add_capability(config, {"offset": offset, "dwords": dwords})
    return config


def _window(base: int, size_mib: int) -> int:
    """Base and limit of a bridge window as one register: address bits 31:20 in the upper 12 bits of each half."""
    limit = base + size_mib * MIB - 1
    return base >> 16 & 0xFFF0 | (limit >> 16 & 0xFFF0) << 16
