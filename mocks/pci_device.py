"""An opened function of a simulated machine, as drivers use it: windows onto its BARs, configuration space, interrupts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hw.errors import BusLost, MemoryDisabled, NotModelled, NotSupported, OutOfWindow, ResizeRefused
from hw.mmio import ALL_ONES_32, ALL_ONES_64, BytesLike, Cost, Mmio
from hw.pci.device import Bar, ConfigSpace, DmaMemory, Irq, PciDevice
from mocks.pci import BarSlot, MockFunction
from mocks.pci_config import CAP_MSI, COMMAND, COMMAND_MEMORY, CONFIG_SIZE, MIB, MSI_ENABLE

if TYPE_CHECKING:
    from mocks.machine import Machine


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
