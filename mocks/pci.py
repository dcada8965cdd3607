"""PCI functions of a simulated machine: BARs that decode, bridges that forward, interrupts.

Behaviour follows the PCI Express base specification: BAR sizing by all ones, 64-bit BARs, resizable BARs (only while memory decoding is
off), D-states, MSI gated by bus mastering.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hw.errors import BusLost, NotModelled
from hw.mmio import BytesLike
from hw.pci.device import PciId
from mocks.pci_config import (
    BAR0,
    BRIDGE_MEMORY,
    BRIDGE_PREFETCHABLE,
    CAP_MSI,
    CAP_POWER,
    COMMAND,
    COMMAND_MASTER,
    COMMAND_MEMORY,
    D0,
    D3HOT,
    MIB,
    MSI_ENABLE,
    POWER_STATE_MASK,
    ConfigModel,
)

if TYPE_CHECKING:
    from mocks.machine import Machine

log = logging.getLogger(__name__)


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
