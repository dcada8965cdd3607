"""The contract that every way of reaching a PCI function fulfils: sysfs, VFIO, USB bridge, TCP, mock. A driver never knows which."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from hw.buffer import TransferBuffer
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BarUnassigned, BusLost, BusMasterRefused, ConfigInvalid, NotSupported
from hw.mmio import Mmio

DMA_PAGE = 4096
"""Granularity of device-visible page lists, bytes."""

COMMAND = 0x04
COMMAND_MEMORY = 1 << 1
COMMAND_BUS_MASTER = 1 << 2


@dataclass(frozen=True)
class PciId:
    """What a function says it is (config space 0x00, 0x08, 0x2c)."""

    vendor: int
    device: int
    revision: int
    class_code: int
    """24 bits: base class, subclass, programming interface"""
    subsystem_vendor: int = 0
    subsystem_device: int = 0


@dataclass(frozen=True)
class Bar:
    """One base address register. `address` is the bus address, 0 when unassigned; size in bytes, 0 when not implemented."""

    index: int
    address: int
    size: int
    is_io: bool = False
    is_64bit: bool = False
    prefetchable: bool = False
    resizable_to: tuple[int, ...] = ()
    """sizes in bytes that the resizable-BAR capability offers, ascending; empty when it has none"""

    @property
    def kind(self) -> str:
        """The type in words: "I/O", "memory 64-bit, prefetchable"."""
        if self.is_io:
            return "I/O"
        return f"memory {64 if self.is_64bit else 32}-bit" + (", prefetchable" if self.prefetchable else "")


@dataclass
class DmaMemory:
    """Host memory that the device can reach.

    window: the CPU's view. pages: device-visible address of each 4 KiB page, in order. release: gives it back.
    """

    window: Mmio
    pages: list[int]
    release: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def size(self) -> int:
        return len(self.pages) * DMA_PAGE


def show_size(size: int) -> str:
    """A power-of-two size as people write it: "256MB", "16GB"."""
    for shift, unit in ((40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return f"{size}B"


def check_access(offset: int, size: int) -> None:
    """Raise ConfigInvalid unless this is an aligned access of 1, 2 or 4 bytes inside 4096 bytes."""
    if size not in (1, 2, 4) or offset % size or not 0 <= offset <= 4096 - size:
        raise ConfigInvalid(
            f"access of {size} bytes at {offset:#x} of configuration space",
            means="configuration space is accessed at 1, 2 or 4 aligned bytes below 0x1000",
            remedy="correct the offset or size",
        )


class ConfigSpace(ABC):
    """Configuration space of one function: 256 or 4096 bytes, accessed at 1, 2 or 4 aligned bytes."""

    size: int = 4096

    @abstractmethod
    def read(self, offset: int, size: int) -> int: ...

    @abstractmethod
    def write(self, offset: int, value: int, size: int) -> None: ...

    def read8(self, offset: int) -> int:
        return self.read(offset, 1)

    def read16(self, offset: int) -> int:
        return self.read(offset, 2)

    def read32(self, offset: int) -> int:
        return self.read(offset, 4)

    def write8(self, offset: int, value: int) -> None:
        self.write(offset, value, 1)

    def write16(self, offset: int, value: int) -> None:
        self.write(offset, value, 2)

    def write32(self, offset: int, value: int) -> None:
        self.write(offset, value, 4)

    def update16(self, offset: int, clear: int = 0, set: int = 0) -> int:
        """Read, change bits, write, and read back (a config read flushes posted writes). Returns what was read back."""
        self.write(offset, self.read(offset, 2) & ~clear | set, 2)
        return self.read(offset, 2)

    def dump(self) -> bytes:
        """The whole space as bytes, read dword by dword."""
        return b"".join(self.read(offset, 4).to_bytes(4, "little") for offset in range(0, self.size, 4))


class Irq(ABC):
    """Interrupts of one function."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; True when at least one interrupt arrived since the last call."""

    def close(self) -> None:
        """Stop delivery."""


class PciDevice(ABC):
    """One opened PCI function, held exclusively by this process."""

    address: str
    """how a person names it: "0000:03:00.0", "usb:1-7", "remote:host:6667:0000:03:00.0" """
    transport: str
    """"sysfs", "vfio", "asm24", "tcp", "mock" ..."""
    config: ConfigSpace
    clock: Clock = HOST_CLOCK
    local: bool = True
    """True when host buffers can be mapped for the device without copying through a bridge"""
    peer_group: str = "local"
    """devices of one group can reach each other's memory"""

    @property
    def id(self) -> PciId:
        """Identity read from config space. Raises BusLost when it reads all ones."""
        ids = self.config.read32(0x00)
        if ids & 0xFFFF == 0xFFFF:
            raise BusLost(f"reading the identity of {self.address}", read=f"vendor/device {ids:#010x}")
        class_revision = self.config.read32(0x08)
        subsystem = self.config.read32(0x2C)
        return PciId(ids & 0xFFFF, ids >> 16, class_revision & 0xFF, class_revision >> 8, subsystem & 0xFFFF, subsystem >> 16)

    @property
    @abstractmethod
    def bars(self) -> dict[int, Bar]:
        """The implemented BARs by index (a 64-bit BAR has the index of its low half)."""

    def bar(self, index: int) -> Bar:
        """One BAR that must exist and have an address. Raises BarUnassigned."""
        bar = self.bars.get(index)
        if bar is None or bar.size == 0 or bar.address == 0:
            raise BarUnassigned(f"BAR{index} of {self.address} has no address", read="not implemented" if bar is None else f"address {bar.address:#x}, size {bar.size:#x}")
        return bar

    @abstractmethod
    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> Mmio:
        """A window onto a BAR. Raises BarUnassigned, MemoryDisabled, PermissionMissing."""

    def resize_bar(self, index: int, size: int) -> None:
        """Give a resizable BAR this size in bytes; windows mapped before are invalid afterwards. Raises ResizeRefused, NotSupported."""
        raise NotSupported(f"resizing BAR{index} of {self.address} over {self.transport}")

    @abstractmethod
    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Zeroed host memory of at least `size` bytes that the device can reach. Raises DmaError."""

    def irq(self) -> Irq | None:
        """Interrupt delivery, or None when this transport has none (the driver then polls)."""
        return None

    def reset(self) -> None:
        """Reset the function by the best means the bus offers. Raises NotSupported."""
        raise NotSupported(f"bus reset of {self.address} over {self.transport}")

    @property
    def transfer_buffer(self) -> TransferBuffer | None:
        """The memory of a bridge that the device sees in place of host memory; None where it reaches host memory itself."""
        return None

    def reconnect(self) -> None:
        """After the device has reset itself: do again what the way to it has lost, where this transport did it (link, bus numbers, addresses)."""

    def guard(self, name: str) -> AbstractContextManager[Any]:
        """A lock to hold while accesses belong together: "smu", a message to the power controller and its answer; "index", an index register
        and its data register. Where another process can look at the device beside its owner, the lock is one between processes.
        """
        guards: dict[str, AbstractContextManager[Any]] = self.__dict__.setdefault("_thread_locks", {})
        return guards.setdefault(name, threading.RLock())

    def set_bus_master(self, on: bool) -> None:
        """Allow or forbid the device to start accesses (DMA, interrupts) of its own. Raises BusMasterRefused when it does not stick.

        Raises BusLost when a device that is to be switched on does not answer; one to be switched off is off then.
        """
        seen = self.config.update16(COMMAND, clear=0 if on else COMMAND_BUS_MASTER, set=COMMAND_BUS_MASTER if on else 0)
        if seen == 0xFFFF:
            if on:
                raise BusLost(f"switching on bus mastering of {self.address}", read=f"command {seen:#06x}")
            return
        if bool(seen & COMMAND_BUS_MASTER) != on:
            raise BusMasterRefused(f"bus mastering of {self.address} stays {'off' if on else 'on'}", read=f"command {seen:#06x}")

    def set_memory_space(self, on: bool) -> None:
        """Let the device answer to its memory BARs, or not."""
        self.config.update16(COMMAND, clear=0 if on else COMMAND_MEMORY, set=COMMAND_MEMORY if on else 0)

    def fence(self) -> None:
        """Make earlier stores to DMA memory visible before later stores to BARs."""

    @abstractmethod
    def close(self) -> None:
        """Unmap, stop bus mastering, release the lock. Closing twice is allowed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
