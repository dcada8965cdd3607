"""PCI functions of a Linux machine through sysfs: no kernel module, no IOMMU, no interrupts; needs root or the capabilities named in errors.

Opening takes the device's lock, refuses while a kernel driver owns it (unless told to unbind), wakes it, and lets the kernel enable
it. Closing stops its bus mastering and puts back what was changed: power control, enable count, removed siblings.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from hw import lock
from hw.clock import HOST_CLOCK
from hw.dma import PagemapMemory, check_iommu, memory_fence
from hw.errors import (
    BusError,
    BusLost,
    ConfigTruncated,
    DriverBound,
    EnableFailed,
    MapFailed,
    MemoryDisabled,
    NotSupported,
    OutOfWindow,
    PermissionMissing,
    PowerStateError,
    Refused,
    ResetFailed,
    WaitTimeout,
)
from hw.host import HOST, HostFiles
from hw.mmio import LocalMmio
from hw.pci import binding, resize
from hw.pci.device import COMMAND, COMMAND_MEMORY, Bar, ConfigSpace, DmaMemory, PciDevice, check_access
from hw.pci.functions import AWAKE, PciFunction, describe, function_directory, read_resources, scan
from hw.poll import poll

__all__ = ["PciFunction", "SysfsConfig", "SysfsPciDevice", "describe", "scan"]

log = logging.getLogger(__name__)

WAKE_SECONDS = 5.0
RESET_SECONDS = 70.0
"""A function may answer "not yet" for up to 60 s after a reset; the kernel waits for it inside the write."""
LOCKDOWN_MEANS = "the kernel is locked down (usually by secure boot), which forbids programs to touch device registers"
LOCKDOWN_REMEDY = "use the VFIO transport, or switch secure boot off"


class SysfsConfig(ConfigSpace):
    """Configuration space through the `config` file. `size` is what this process may read: 4096, 256, or 64 bytes without CAP_SYS_ADMIN."""

    def __init__(self, directory: Path, host: HostFiles = HOST, *, writable: bool = True) -> None:
        self._path = directory / "config"
        self._writable = writable
        try:
            self._descriptor = host.open(self._path, os.O_RDWR if writable else os.O_RDONLY)
        except PermissionError as error:
            raise PermissionMissing(f"opening {self._path}", read=os.strerror(error.errno or 0)) from error
        except OSError as error:
            raise BusError(f"opening {self._path}", read=os.strerror(error.errno or 0), means="the device was removed, or /sys is not complete here") from error
        self.size = next((size for size in (4096, 256) if os.pread(self._descriptor, 4, size - 4)), 64)

    def read(self, offset: int, size: int) -> int:
        check_access(offset, size)
        data = os.pread(self._open(), size, offset)
        if len(data) != size:
            raise ConfigTruncated(f"reading {offset:#x} of {self._path}", read=f"{len(data)} of {size} bytes")
        return int.from_bytes(data, "little")

    def write(self, offset: int, value: int, size: int) -> None:
        check_access(offset, size)
        if not self._writable:
            raise Refused(f"writing {offset:#x} of {self._path}", means="this process only looks at the device; another one may be using it")
        try:
            written = os.pwrite(self._open(), value.to_bytes(size, "little"), offset)
        except PermissionError as error:
            raise PermissionMissing(f"writing {offset:#x} of {self._path}", read=os.strerror(error.errno or 0), means=LOCKDOWN_MEANS, remedy=LOCKDOWN_REMEDY) from error
        if written != size:
            raise ConfigTruncated(f"writing {offset:#x} of {self._path}", read=f"{written} of {size} bytes taken")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        if self._descriptor < 0:
            raise BusError(f"{self._path} was closed", means="the device is used after it was closed", remedy="open it again")
        return self._descriptor


class SysfsPciDevice(PciDevice):
    """One function, held until close().

    unbind: consent to take the function away from an idle kernel driver. remove_siblings: consent to remove the card's other functions
    (audio, USB) from the system while the device is open, where no driver owns them; they stand in the way of resizing and resets.
    Raises NothingFound, DeviceBusy, BusLost, PermissionMissing, DriverBound, DriverInUse, PowerStateError, EnableFailed, MemoryDisabled.
    """

    transport = "sysfs"

    def __init__(
        self,
        address: str,
        *,
        unbind: bool = False,
        remove_siblings: bool = False,
        host: HostFiles = HOST,
        lock_directory: Path | None = None,
        memory: PagemapMemory | None = None,
    ) -> None:
        self.address = address
        self._host = host
        self._directory = function_directory(address, host)
        self._memory = memory or PagemapMemory(host)
        self._prepare(lock_directory)
        self._later("unlock", lock.acquire(address, lock_directory, proc=host.proc).release)
        try:
            self._open(unbind, remove_siblings)
        except BaseException:
            self.close()
            raise

    def _prepare(self, lock_directory: Path | None) -> None:
        self._windows: weakref.WeakSet[LocalMmio] = weakref.WeakSet()
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._guards = lock.Guards(self.address, lock_directory, proc=self._host.proc)
        self._later("close guards", self._guards.close)

    def _open(self, unbind: bool, remove_siblings: bool) -> None:
        config = SysfsConfig(self._directory, self._host)
        self._later("close configuration space", config.close)
        self.config = config
        self._check_alive("opening")
        self._check_writable(self._directory / "enable")
        driver = binding.driver_of(self.address, self._host)
        if driver and not unbind:
            raise DriverBound(f"{self.address} belongs to the kernel driver {driver}")
        if driver:
            binding.unbind(self.address, self._host)
        self._wake()
        if remove_siblings:
            self._remove_siblings()
        self._enable()
        self._later("stop bus mastering", lambda: self.set_bus_master(False))
        self._bars = read_resources(self._directory, self._host)
        self._check_decode()

    # --- opening ------------------------------------------------------------------------------------------------------

    def _later(self, what: str, action: Callable[[], None]) -> None:
        """Remember what close() has to put back."""
        self._undo.append((what, action))

    def _check_alive(self, doing: str) -> None:
        ids = self.config.read32(0x00)
        if ids & 0xFFFF == 0xFFFF:
            raise BusLost(f"{doing} {self.address}", read=f"vendor/device {ids:#010x}")

    def _check_writable(self, path: Path) -> None:
        try:
            os.close(self._host.open(path, os.O_WRONLY))
        except OSError as error:
            if error.errno == errno.EROFS:
                raise PermissionMissing(
                    f"{path} cannot be written",
                    read=os.strerror(error.errno),
                    means="/sys is mounted read-only, as containers do",
                    remedy="run outside the container, or privileged",
                ) from error
            raise PermissionMissing(f"{path} cannot be written", read=os.strerror(error.errno or 0)) from error

    def _write(self, path: Path, text: str) -> None:
        """Write an attribute; a refusal for want of permission is typed, others pass as OSError."""
        try:
            self._host.write(path, text)
        except PermissionError as error:
            raise PermissionMissing(f"writing {path}", read=os.strerror(error.errno or 0)) from error

    def _wake(self) -> None:
        """Forbid runtime suspend, which also wakes a sleeping function."""
        path = self._directory / "power" / "control"
        before = self._host.text(path)
        if before not in (None, "on"):
            try:
                self._write(path, "on")
            except OSError as error:
                raise PowerStateError(f"waking {self.address}", read=f"{path}: {os.strerror(error.errno or 0)}") from error
            self._later("restore power control", lambda: self._host.write(path, str(before)))

    def _enable(self) -> None:
        """Have the kernel power the function up and switch its decoders on, and wait until it is awake."""
        path = self._directory / "enable"
        if not self._host.number(path):
            try:
                self._write(path, "1")
            except OSError as error:
                raise EnableFailed(f"enabling {self.address}", read=os.strerror(error.errno or 0)) from error
            self._later("disable", lambda: self._host.write(path, "0"))
        state = self._directory / "power_state"
        try:
            poll(lambda: self._host.text(state) or "", lambda seen: seen in AWAKE, what=f"waking of {self.address} to D0", within=WAKE_SECONDS, clock=HOST_CLOCK)
        except WaitTimeout as error:
            raise PowerStateError(f"{self.address} does not wake up", read=f"power state {error.last}") from error
        self._check_alive("enabling")

    def _check_decode(self) -> None:
        """Memory decode must be on where there is a BAR to decode; someone may have switched it off behind the kernel's count."""
        if not any(bar.address and not bar.is_io for bar in self._bars.values()):
            return
        if not self.config.read16(COMMAND) & COMMAND_MEMORY:
            log.warning("%s is enabled, but its memory decode is off: switching it on", self.address)
            if not self.config.update16(COMMAND, set=COMMAND_MEMORY) & COMMAND_MEMORY:
                raise MemoryDisabled(
                    f"{self.address} keeps its memory decode off", read=f"command {self.config.read16(COMMAND):#06x}", remedy="reset the device, or remove and rescan it"
                )

    def siblings(self) -> dict[str, str]:
        """The card's other functions with their kernel drivers ("" for none)."""
        function = describe(self.address, self._host)
        return {name: self._host.link_name(self._host.pci / name / "driver") for name in function.siblings}

    def _remove_siblings(self) -> None:
        removed = False
        for name, driver in self.siblings().items():
            if driver:
                log.warning("%s stays: the kernel driver %s uses it", name, driver)
                continue
            try:
                self._write(self._host.pci / name / "remove", "1")
            except OSError as error:
                log.warning("%s was not removed: %s", name, error)
                continue
            removed = True
        if removed:
            self._later("bring removed functions back", lambda: self._host.write(self._host.sys / "bus" / "pci" / "rescan", "1"))

    def _stopping_siblings(self) -> str:
        """A clause for errors about operations that the card's other functions prevent."""
        named = ", ".join(f"{name} ({driver})" if driver else name for name, driver in self.siblings().items())
        return f"; other functions of the card: {named}" if named else ""

    # --- the contract -------------------------------------------------------------------------------------------------

    @property
    def bars(self) -> dict[int, Bar]:
        return self._bars

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> LocalMmio:
        """A window onto a memory BAR, uncached: each access is one bus transaction, in order.

        Raises BarUnassigned, MemoryDisabled, BusLost, OutOfWindow, PermissionMissing, MapFailed, NotSupported (port BARs).
        """
        bar = self.bar(index)
        if bar.is_io:
            raise NotSupported(f"mapping BAR{index} of {self.address}", means="it is a range of I/O ports, which cannot be mapped", remedy="use one of the memory BARs")
        length = bar.size - offset if size is None else size
        if offset < 0 or length <= 0 or offset + length > bar.size:
            raise OutOfWindow(f"mapping {length:#x} bytes at {offset:#x} of BAR{index}", read=f"it has {bar.size:#x} bytes")
        command = self.config.read16(COMMAND)
        if command == 0xFFFF:
            raise BusLost(f"mapping BAR{index} of {self.address}", read=f"command {command:#06x}")
        if not command & COMMAND_MEMORY:
            raise MemoryDisabled(f"mapping BAR{index} of {self.address}", read=f"command {command:#06x}")
        start = offset & -mmap.PAGESIZE
        memory = self._map_resource(index, start, offset + length - start)
        memory.madvise(mmap.MADV_DONTFORK)
        whole = LocalMmio.over(memory, f"BAR{index} of {self.address}", revocable=True)
        self._windows.add(whole)
        return whole.view(offset - start, length) if offset != start else whole

    def _map_resource(self, index: int, start: int, length: int) -> mmap.mmap:
        path = self._directory / f"resource{index}"
        try:
            descriptor = self._host.open(path, os.O_RDWR)
            try:
                return mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
            finally:
                os.close(descriptor)
        except PermissionError as error:
            locked = error.errno == errno.EPERM
            raise PermissionMissing(
                f"mapping {path}", read=os.strerror(error.errno or 0), means=LOCKDOWN_MEANS if locked else "", remedy=LOCKDOWN_REMEDY if locked else ""
            ) from error
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else errno.EINVAL
            means, remedy = {
                errno.ENOENT: ("the kernel offers no file for this BAR: it was removed, or has no address", "remove the device and rescan the bus"),
                errno.EINVAL: ("the range is claimed by a kernel driver, or smaller than the BAR should be", "unbind the kernel driver of the device"),
                errno.ENOMEM: ("this process may not map that much address space", "raise the limit (ulimit -v), or map a part of the BAR"),
            }.get(number or 0, ("", ""))
            raise MapFailed(f"mapping {path}", read=str(error), means=means, remedy=remedy) from error

    def resize_bar(self, index: int, size: int) -> None:
        """Have the kernel give a resizable BAR this size (bytes). The kernel makes all BAR files anew: every window is revoked, also on refusal
        by the kernel, and must be mapped again. Raises ResizeRefused, NotSupported, PermissionMissing.
        """
        if not resize.is_due(self.address, index, self._bars.get(index), size, self._directory, self._host):
            return
        self._revoke_windows()
        try:
            resize.resize(self.address, index, size, self._directory, self._host, others=self._stopping_siblings())
        finally:
            self._bars = read_resources(self._directory, self._host)

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Zeroed, locked host memory with its physical page addresses. Raises IommuActive and what PagemapMemory.alloc() raises."""
        check_iommu(describe(self.address, self._host).iommu_type, self.address)
        return self._memory.alloc(size, contiguous=contiguous)

    def reset(self) -> None:
        """Reset by the kernel's best method; configuration space is saved and restored by the kernel. Raises NotSupported, ResetFailed, BusLost."""
        path = self._directory / "reset"
        methods = self._host.text(self._directory / "reset_method") or ""
        if not path.exists():
            raise NotSupported(
                f"bus reset of {self.address}",
                read=f"no {path}",
                means="the kernel knows no way to reset this function",
                remedy="use the device's own reset (`tghw boot amd --cold`), or power-cycle",
            )
        try:
            binding.write_within(path, "1", RESET_SECONDS, f"reset of {self.address}", self._host)
        except PermissionError as error:
            raise PermissionMissing(f"writing {path}", read=os.strerror(error.errno or 0)) from error
        except OSError as error:
            raise ResetFailed(f"reset of {self.address}", read=f"{os.strerror(error.errno or 0)}; methods: {methods or 'unknown'}{self._stopping_siblings()}") from error
        self._check_alive("after a reset of")

    def fence(self) -> None:
        memory_fence()

    def guard(self, name: str) -> lock.Guard:
        """A lock between processes: monitors (ObservedPciDevice) look at the device beside its owner. Raises DeviceBusy when it is not to be had."""
        return self._guards[name]

    def close(self) -> None:
        self._revoke_windows()
        while self._undo:
            self._put_back(*self._undo.pop())

    def _put_back(self, what: str, action: Callable[[], None]) -> None:
        """One step of closing; a failure is reported and does not keep the others from being done."""
        try:
            action()
        except (OSError, BusError, PermissionMissing) as error:
            log.warning("closing %s: %s failed: %s", self.address, what, error)

    def _revoke_windows(self) -> None:
        for window in list(self._windows):
            window.revoke()
        self._windows.clear()
