"""PCI functions through the kernel's VFIO: DMA behind an IOMMU, interrupts, resets; works under kernel lockdown and, with the node's
permissions, without root.

Opening takes the device's lock, makes vfio-pci the function's driver (only with consent where another one has it), and gets the device
with its IOMMU. Closing stops bus mastering, takes every mapping back, and gives the function back to whom it belonged: to nobody.
"""

from __future__ import annotations

import logging
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from hw import lock
from hw.dma import PagemapMemory, memory_fence
from hw.errors import (
    BusError,
    BusLost,
    DmaError,
    DriverBound,
    MapFailed,
    MemoryDisabled,
    NotSupported,
    OutOfWindow,
    PermissionMissing,
    ResetFailed,
    ResizeRefused,
    TghwError,
    UsageError,
    VfioUnavailable,
)
from hw.host import HOST, HostFiles
from hw.mmio import LocalMmio
from hw.pci import binding, resize
from hw.pci.device import COMMAND, COMMAND_MEMORY, DMA_PAGE, Bar, DmaMemory, Irq, PciDevice
from hw.pci.functions import function_directory, read_resources
from hw.pci.groups import VFIO_PCI
from hw.pci.vfio_abi import LAYOUT, DeviceFlag, HotResetFlag, Vfio
from hw.pci.vfio_calls import KernelCalls, ask
from hw.pci.vfio_iommu import MODES, SPACES, IommufdSpace, IommuSpace, mode_of
from hw.pci.vfio_irq import VfioIrq, open_irq
from hw.pci.vfio_regions import Region, RegionWindow, VfioConfig, read_region

log = logging.getLogger(__name__)

MAP_POPULATE = 0x8000
"""linux/mman.h"""
ROOM_FOR_ENTRIES = 256
"""functions that one bus can have"""


class VfioPciDevice(PciDevice):
    """One function, held until close().

    bind: consent to make vfio-pci the driver of a function that has none. unbind: also of one that another, idle driver has.
    mode: how to get it (MODES); "auto" takes the device's own node where there is one, else its group.
    Raises NothingFound, DeviceBusy, DriverBound, DriverInUse, VfioUnavailable, GroupNotViable, IommuRefused, PermissionMissing, BusLost.
    """

    transport = "vfio"

    def __init__(
        self,
        address: str,
        *,
        bind: bool = True,
        unbind: bool = False,
        mode: str = "auto",
        host: HostFiles = HOST,
        lock_directory: Path | None = None,
        calls: KernelCalls | None = None,
        memory: PagemapMemory | None = None,
    ) -> None:
        if mode not in MODES:
            raise UsageError(f"unknown way {mode} to open a VFIO device", remedy=f"one of {', '.join(MODES)}")
        self.address = address
        self.peer_group = f"vfio:{address}"
        self._host = host
        self._calls = calls or KernelCalls(host)
        self._directory = function_directory(address, host)
        self._physical = memory or PagemapMemory(host)
        self._windows: weakref.WeakSet[LocalMmio | RegionWindow] = weakref.WeakSet()
        self._mappings: dict[int, int] = {}
        self._irq: VfioIrq | None = None
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._guards = lock.Guards(address, lock_directory, proc=host.proc)
        self._later("close guards", self._guards.close)
        self._later("unlock", lock.acquire(address, lock_directory, proc=host.proc).release)
        try:
            self._open(bind, unbind, mode)
        except BaseException:
            self.close()
            raise

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, bind: bool, unbind: bool, mode: str) -> None:
        self._take_driver(bind, unbind)
        self._mode = mode_of(self.address, self._host) if mode == "auto" else mode
        self._get_device()
        log.info("opened %s by VFIO (%s)", self.address, self._space.kind)

    def _get_device(self) -> None:
        """Get the function, which vfio-pci has, from VFIO, and make it answer."""
        self._space: IommuSpace = SPACES[self._mode](self.address, self._host, self._calls)
        self._later("close the device", self._space.close)
        self._later("take memory back", self._take_memory_back)
        try:
            info, _ = ask(self._calls, self._space.device, Vfio.DEVICE_GET_INFO, "device_info")
            if not info.flags & DeviceFlag.PCI:
                raise VfioUnavailable(f"{self.address} is no PCI device for VFIO", read=f"flags {info.flags:#x}")
            self._can_reset = bool(info.flags & DeviceFlag.RESET)
            self.config = VfioConfig(self.address, self._calls, self._space.device)
            self._later("close configuration space", self.config.close)
            self._regions = {index: read_region(self._calls, self._space.device, index) for index in range(6)}
        except OSError as error:
            raise BusError(f"asking VFIO about {self.address}", read=os.strerror(error.errno or 0), means="the device was lost, or its driver is being removed") from error
        self._check_alive("opening")
        self._later("stop bus mastering", lambda: self.set_bus_master(False))
        self._bars = self._read_bars()
        self._check_decode()

    def _later(self, what: str, action: Callable[[], None]) -> None:
        """Remember what close() has to put back."""
        self._undo.append((what, action))

    def _take_driver(self, bind: bool, unbind: bool) -> None:
        """Make vfio-pci the driver of the function."""
        driver = binding.driver_of(self.address, self._host)
        if driver == VFIO_PCI:
            return
        if driver and not unbind:
            raise DriverBound(f"{self.address} belongs to the kernel driver {driver}")
        if not (self._host.sys / "bus" / "pci" / "drivers" / VFIO_PCI).is_dir():
            raise VfioUnavailable(f"{self.address} cannot be given to {VFIO_PCI}", read="the kernel has no such driver", remedy="as root: modprobe vfio-pci")
        if not bind:
            raise DriverBound(
                f"{self.address} is not bound to {VFIO_PCI}",
                means="opening it by VFIO would change its driver, and only looking was asked for",
                remedy=f"as root: echo {VFIO_PCI} > {self._directory / 'driver_override'}; echo {self.address} > {self._host.sys / 'bus/pci/drivers_probe'}",
            )
        if driver:
            binding.unbind(self.address, self._host)
        self._later("take the function from vfio-pci", self._give_driver_back)
        binding.override_driver(self.address, VFIO_PCI, self._host)
        if binding.driver_of(self.address, self._host) != VFIO_PCI:
            raise DriverBound(f"{self.address} was not taken by {VFIO_PCI}", means="vfio-pci refused the device, or another driver was faster", remedy="look at the kernel log")

    def _give_driver_back(self) -> None:
        if binding.driver_of(self.address, self._host) == VFIO_PCI:
            binding.unbind(self.address, self._host)
        self._host.write(self._directory / "driver_override", "\n")

    def _check_alive(self, doing: str) -> None:
        ids = self.config.read32(0x00)
        if ids & 0xFFFF == 0xFFFF:
            raise BusLost(f"{doing} {self.address}", read=f"vendor/device {ids:#010x}")

    def _read_bars(self) -> dict[int, Bar]:
        """Addresses and kinds as the kernel placed the BARs, for those that VFIO offers."""
        placed = read_resources(self._directory, self._host)
        return {index: bar for index, bar in placed.items() if self._regions[index].size}

    def _check_decode(self) -> None:
        """Memory decode must be on before a BAR is mapped: an access to one that is off would end this process."""
        if not any(bar.address and not bar.is_io for bar in self._bars.values()) or self.config.read16(COMMAND) & COMMAND_MEMORY:
            return
        if not self.config.update16(COMMAND, set=COMMAND_MEMORY) & COMMAND_MEMORY:
            raise MemoryDisabled(
                f"{self.address} keeps its memory decode off", read=f"command {self.config.read16(COMMAND):#06x}", remedy="reset the device, or remove and rescan it"
            )

    # --- the contract -------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """How the device was opened, in words: "type 1", "iommufd", "no IOMMU"."""
        return self._space.kind

    @property
    def bars(self) -> dict[int, Bar]:
        return self._bars

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> LocalMmio | RegionWindow:
        """A window onto a memory BAR. Parts that the kernel does not let be mapped (MSI-X tables) are reached by calls.

        Raises BarUnassigned, MemoryDisabled, BusLost, OutOfWindow, MapFailed, NotSupported (port BARs).
        """
        bar = self.bar(index)
        if bar.is_io:
            raise NotSupported(f"mapping BAR{index} of {self.address}", means="it is a range of I/O ports, which cannot be mapped", remedy="use one of the memory BARs")
        region = self._regions[index]
        length = region.size - offset if size is None else size
        if offset < 0 or length <= 0 or offset + length > region.size:
            raise OutOfWindow(f"mapping {length:#x} bytes at {offset:#x} of BAR{index}", read=f"it has {region.size:#x} bytes")
        command = self.config.read16(COMMAND)
        if command == 0xFFFF:
            raise BusLost(f"mapping BAR{index} of {self.address}", read=f"command {command:#06x}")
        if not command & COMMAND_MEMORY:
            raise MemoryDisabled(f"mapping BAR{index} of {self.address}", read=f"command {command:#06x}", remedy="call set_memory_space(True)")
        name = f"BAR{index} of {self.address}"
        start = offset & -mmap.PAGESIZE
        if not region.mappable(start, offset + length - start):
            window = RegionWindow(self._calls, self._space.device, region, offset, length, name)
            self._windows.add(window)
            return window
        memory = self._map_region(region, start, offset + length - start, name)
        memory.madvise(mmap.MADV_DONTFORK)
        whole = LocalMmio.over(memory, name, revocable=True)
        self._windows.add(whole)
        return whole.view(offset - start, length) if offset != start else whole

    def _map_region(self, region: Region, start: int, length: int, name: str) -> mmap.mmap:
        try:
            return self._calls.map(self._space.device, length, region.offset + start)
        except (OSError, ValueError) as error:
            raise MapFailed(f"mapping {name}", read=str(error), remedy="another process may have the BAR mapped through sysfs: end it") from error

    def resize_bar(self, index: int, size: int) -> None:
        """Give a resizable BAR this size (bytes): the device is given back for that moment, so windows and interrupts end and its memory must be free.

        Raises ResizeRefused, NotSupported, PermissionMissing; what opening raises when the device cannot be had again: it is closed then.
        """
        if not resize.is_due(self.address, index, self._bars.get(index), size, self._directory, self._host):
            return
        if self._mappings:
            raise ResizeRefused(
                f"BAR{index} of {self.address} stays as it is",
                read=f"{len(self._mappings)} pieces of memory are mapped for the device",
                means="VFIO must give the device back while its BARs move",
                remedy="resize before memory is allocated",
            )
        path = self._directory / f"resource{index}_resize"
        if not self._host.may_use(path):
            raise PermissionMissing(f"writing {path}", read="not permitted for this user", remedy=f"as root, before vfio-pci is bound: echo {size.bit_length() - 21} > {path}")
        kept = next(position for position, (what, _) in enumerate(self._undo) if what == "close the device")
        refusal: TghwError | None = None
        try:
            self._stop(kept)
            binding.unbind(self.address, self._host)
            try:
                resize.resize(self.address, index, size, self._directory, self._host)
            except (ResizeRefused, PermissionMissing) as error:
                refusal = error
            self._bind_again()
            self._get_device()
        except BaseException:
            self.close()
            raise
        if refusal is not None:
            raise refusal

    def _bind_again(self) -> None:
        """Give the function to vfio-pci as it was before, and leave the choice of drivers as it was."""
        chosen = self._directory / "driver_override"
        before = self._host.text(chosen)
        binding.override_driver(self.address, VFIO_PCI, self._host)
        if before != VFIO_PCI:
            self._host.write(chosen, "\n")

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Zeroed host memory mapped for the device, always one piece to it. Without an IOMMU: physical pages.

        Raises MemlockLimit, IovaExhausted, DmaError, and without an IOMMU what PagemapMemory.alloc() raises.
        """
        if size <= 0:
            raise ValueError(f"cannot allocate {size} bytes")
        space = self._space
        if space.iova is None:
            return self._physical.alloc(size, contiguous=contiguous)
        length = -(-size // space.iova.page) * space.iova.page
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_POPULATE)
        except OSError as error:
            raise DmaError(f"allocating {length:#x} bytes", read=os.strerror(error.errno or 0), remedy="free memory on this host") from error
        memory.madvise(mmap.MADV_DONTFORK)  # a child's copy-on-write could move the parent's page
        window = LocalMmio.over(memory, "DMA memory", revocable=True)
        iova = space.iova.alloc(length)
        try:
            space.map(window.address, iova, length)
        except BaseException:
            space.iova.free(iova)
            raise
        self._mappings[iova] = length

        def release() -> None:
            if self._mappings.pop(iova, None) is not None:
                self._unmap(iova, length)
            window.revoke()

        return DmaMemory(window, list(range(iova, iova + length, DMA_PAGE)), release)

    def _unmap(self, iova: int, length: int) -> None:
        """Take a mapping back. Its addresses are used again only when the kernel says that it is gone."""
        try:
            self._space.unmap(iova, length)
        except OSError as error:
            raise DmaError(f"taking back {length:#x} bytes at device address {iova:#x}", read=os.strerror(error.errno or 0)) from error
        if self._space.iova is not None:
            self._space.iova.free(iova)

    def _take_memory_back(self) -> None:
        """Whatever is still mapped; its windows stay usable memory of this process."""
        while self._mappings:
            self._unmap(*self._mappings.popitem())

    def irq(self) -> Irq | None:
        """Interrupts as an eventfd, MSI where the device has it; None for a device without any. Raises IrqUnavailable."""
        if self._irq is None or self._irq.descriptor < 0:
            self._irq = open_irq(self.address, self._calls, self._space.device)
        return self._irq

    def reset(self) -> None:
        """Reset the function, or the whole bus where only that works and everything on it is ours. Raises NotSupported, ResetFailed, BusLost."""
        try:
            if self._can_reset:
                self._calls.ioctl(self._space.device, Vfio.DEVICE_RESET)
            else:
                self._reset_bus()
        except OSError as error:
            raise ResetFailed(f"reset of {self.address}", read=os.strerror(error.errno or 0)) from error
        self._check_alive("after a reset of")

    def _reset_bus(self) -> None:
        try:
            info, data = ask(self._calls, self._space.device, Vfio.DEVICE_GET_PCI_HOT_RESET_INFO, "hot_reset", room=LAYOUT.sizeof("struct reset_entry") * ROOM_FOR_ENTRIES)
        except OSError as error:
            raise NotSupported(
                f"bus reset of {self.address}",
                read=os.strerror(error.errno or 0),
                means="the kernel knows no way to reset this function or its bus",
                remedy="use the device's own reset (`tghw boot amd --cold`), or power-cycle",
            ) from error
        size = LAYOUT.sizeof("struct reset_entry")
        entries = [LAYOUT.parse("struct reset_entry", data, LAYOUT.sizeof("struct hot_reset") + size * number) for number in range(info.count)]
        if isinstance(self._space, IommufdSpace):
            ours = bool(info.flags & HotResetFlag.DEV_ID_OWNED)
        else:
            ours = all(str(entry.group) == self._space.group for entry in entries)
        if not ours:
            named = ", ".join(f"{entry.segment:04x}:{entry.bus:02x}:{entry.devfn >> 3:02x}.{entry.devfn & 7}" for entry in entries)
            raise ResetFailed(
                f"reset of {self.address}",
                read=f"a reset of its bus would also reset: {named}",
                means="the function can only be reset with its whole bus, and parts of that belong to others",
                remedy="bind all of them to vfio-pci, or use the device's own reset",
            )
        descriptors = self._space.reset_groups()
        argument = LAYOUT.pack("struct hot_reset", argsz=LAYOUT.sizeof("struct hot_reset") + 4 * len(descriptors), count=len(descriptors))
        self._calls.ioctl(self._space.device, Vfio.DEVICE_PCI_HOT_RESET, bytearray(argument + b"".join(each.to_bytes(4, "little") for each in descriptors)))

    def fence(self) -> None:
        memory_fence()

    def guard(self, name: str) -> lock.Guard:
        """A lock between processes: monitors look at the device beside its owner. Raises DeviceBusy when it is not to be had."""
        return self._guards[name]

    def close(self) -> None:
        self._stop(0)

    def _stop(self, kept: int) -> None:
        """End windows and interrupts, and put back what was done since the first `kept` steps."""
        for window in list(self._windows):
            window.revoke()
        self._windows.clear()
        if self._irq is not None:
            self._irq.close()
        while len(self._undo) > kept:
            self._put_back(*self._undo.pop())

    def _put_back(self, what: str, action: Callable[[], None]) -> None:
        """One step of closing; a failure is reported and does not keep the others from being done."""
        try:
            action()
        except (OSError, TghwError) as error:
            log.warning("closing %s: %s failed: %s", self.address, what, error)
