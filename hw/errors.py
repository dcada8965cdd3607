"""The one tree of errors.

Every error says four things: what failed, what was read, what that usually means, and what to do. A class carries the usual
meaning and remedy of its kind; the place that raises it adds what it was doing and what it saw, and may replace either text by a
more exact one. `code` is stable: scripts match on it, docs/faults.md and `tghw explain CODE` are keyed by it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOTHING_FOUND = 3
EXIT_REFUSED = 4
EXIT_BUSY = 5
EXIT_INTERRUPTED = 130


class TghwError(Exception):
    """Base of all errors a user can meet.

    what:   what was being done when it failed, one clause
    read:   what the device, file or system answered, decoded where possible; "" where nothing was read
    means:  what this usually means (class default when omitted)
    remedy: what to do about it (class default when omitted)
    """

    code: ClassVar[str] = "failed"
    exit_status: ClassVar[int] = EXIT_FAILED
    default_means: ClassVar[str] = ""
    default_remedy: ClassVar[str] = ""

    def __init__(self, what: str, *, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.read = read
        self.means = means or self.default_means
        self.remedy = remedy or self.default_remedy

    def __str__(self) -> str:
        text = f"{self.code}: {self.what}"
        if self.read:
            text += f" (read: {self.read})"
        return text

    def explain(self) -> str:
        """The whole story in up to four lines: the error, what was read, what it means, what to do."""
        lines = [f"{self.code}: {self.what}"]
        for label, part in (("read", self.read), ("means", self.means), ("do", self.remedy)):
            if part:
                lines.append(f"  {label + ':':<7}{part}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, str]:
        """Stable keys for --json."""
        return {"code": self.code, "what": self.what, "read": self.read, "means": self.means, "remedy": self.remedy}


# --- wrong use, things that are not there -----------------------------------------------------------------------------


class UsageError(TghwError):
    """What was asked for cannot be understood, or does not fit together. Nothing was done."""

    code = "usage"
    exit_status = EXIT_USAGE
    default_remedy = "correct the command line; `--help` lists what is accepted"


class TargetError(UsageError):
    """A DEV string that cannot be understood: names the part, what was found and what is allowed."""

    code = "bad-target"
    default_means = "the device string is not [INTERFACE+]DEVICE[:RENDERER][:ARCH][,KEY=VALUE...]"
    default_remedy = "examples: AMD, USB+AMD, MOCKPCI+AMD::gfx1100, NULL::gfx1100, CPU"


class NotSupported(TghwError):
    """Something that this toolkit does not do, or not yet, with the reason."""

    code = "not-supported"


class NothingFound(TghwError):
    code = "nothing-found"
    exit_status = EXIT_NOTHING_FOUND
    default_means = "no device that this command can use answered on the buses that were searched"
    default_remedy = "run `tghw probe` to see every reachable device, `tghw --mock navi31 probe` for a simulated one"


class Refused(TghwError):
    """Not done for safety; nothing was changed."""

    code = "refused"
    exit_status = EXIT_REFUSED


class Interrupted(TghwError):
    """Ctrl-C, or a signal that asked the process to end."""

    code = "interrupted"
    exit_status = EXIT_INTERRUPTED
    default_means = "Ctrl-C was pressed, or the process was asked to end"


class ProgramFailed(TghwError):
    """A program that was run ended with a mistake of its own."""

    code = "program-failed"
    default_means = "the program itself went wrong, not the device"
    default_remedy = "correct it; `python PROGRAM` shows the whole traceback"


class InternalError(TghwError):
    """Something in tghw itself went wrong in a way that nobody expected."""

    code = "internal"
    default_means = "this is a mistake in tghw, not in the device and not in how it is used"
    default_remedy = "please report it with what the same command shows with -vv"


@dataclass(frozen=True)
class Attempt:
    """One way to a device that was tried: the transport, what was done in words, and how it ended."""

    transport: str
    tried: str
    error: TghwError

    def to_dict(self) -> dict[str, str]:
        return {"transport": self.transport, "tried": self.tried} | self.error.to_dict()


class NoTransport(TghwError):
    """Every way to a device failed; `attempts` says how each did."""

    code = "no-transport"
    default_means = "none of the ways to reach the device works as this machine is set up"
    default_remedy = "do what the table says for the transport you want; `tghw doctor` examines the whole machine"
    columns: ClassVar[tuple[tuple[str, int], ...]] = (("transport", 10), ("tried", 30), ("why it failed", 50), ("remedy", 60))
    """titles and widths (characters) of the table"""

    def __init__(self, what: str, attempts: Sequence[Attempt], *, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what, read=read or "; ".join(f"{each.transport}: {each.error.code}" for each in attempts), means=means, remedy=remedy)
        self.attempts = tuple(attempts)
        if attempts and all(each.error.exit_status == EXIT_NOTHING_FOUND for each in attempts):
            self.exit_status = EXIT_NOTHING_FOUND  # type: ignore[misc]

    def explain(self) -> str:
        """The error, the table of attempts, and what to do."""
        rows = [[title for title, _ in self.columns]]
        rows += [[each.transport, each.tried, str(each.error), each.error.remedy] for each in self.attempts]
        lines = [f"{self.code}: {self.what}"]
        for row in rows:
            cells = [textwrap.wrap(text, width, break_long_words=False) or [""] for text, (_, width) in zip(row, self.columns, strict=True)]
            for number in range(max(map(len, cells))):
                parts = [(cell[number] if number < len(cell) else "").ljust(width) for cell, (_, width) in zip(cells, self.columns, strict=True)]
                lines.append(("  " + "  ".join(parts)).rstrip())
        return "\n".join([*lines, f"  means: {self.means}", f"  do:    {self.remedy}"])

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"attempts": [each.to_dict() for each in self.attempts]}


class PermissionMissing(TghwError):
    code = "no-permission"
    default_means = "this user may not open the device's files"
    default_remedy = "run as root, or give the user access by a udev rule (see docs/permissions.md)"


class DeviceBusy(TghwError):
    """Another process holds the device. `holder` names it, as far as it is known."""

    code = "device-busy"
    exit_status = EXIT_BUSY
    default_means = "one process at a time may drive a device; the lock disappears by itself when its holder ends"
    default_remedy = "stop the process named above, or use another device"

    def __init__(self, what: str, *, read: str = "", means: str = "", remedy: str = "", holder: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.holder = holder


class DriverBound(Refused):
    code = "driver-bound"
    default_means = "a kernel driver owns the device and would be disturbed"
    default_remedy = "unbind it: write the bus address to /sys/bus/pci/devices/ADDRESS/driver/unbind, or allow it with consent"


class DriverInUse(Refused):
    """A kernel driver owns the device, and processes use it through that driver."""

    code = "driver-in-use"
    default_means = "taking the device away now would end these processes' work, and can hang the kernel driver"
    default_remedy = "stop the processes named above (a display manager, a compute job), then try again"


class LockUnavailable(TghwError):
    """The lock file cannot be made or opened, so exclusive use cannot be promised."""

    code = "lock-unavailable"
    default_means = "without its lock file a device is not opened: another process could drive it at the same time"
    default_remedy = "make the directory writable, or set TGHW_LOCK_DIR to one that every user of the device shares"


class ModuleInUse(Refused):
    """A kernel module that something uses cannot be unloaded. Nothing was done."""

    code = "module-in-use"
    default_means = "unloading it would take the devices away from those that use them; the kernel refuses that too"
    default_remedy = "stop what is named above (a display manager, a compute job), then try again; `tghw smi amd --pids` lists processes"


class ModuleLoaded(TghwError):
    """A kernel module is loaded that should not be."""

    code = "module-loaded"
    default_means = "the vendor's kernel driver takes every GPU it finds, also after a reset or a rescan"
    default_remedy = "`tghw smi amd --module unload`, or keep the kernel from loading it (a blacklist line in /etc/modprobe.d)"


class ModuleFailed(TghwError):
    """modprobe did not do what it was told."""

    code = "module-failed"
    default_means = "the kernel refused: the module is in use, is not installed for this kernel, or its signature is not accepted"
    default_remedy = "look at the kernel log"


# --- the bus ----------------------------------------------------------------------------------------------------------


class BusError(TghwError):
    """Something between this process and a device does not work."""

    code = "bus-error"


class BusLost(BusError):
    """Reads answer all ones: the device no longer answers on its bus."""

    code = "bus-lost"
    default_means = "all ones is what a bus returns when nobody answers: the link is down, the device is powered off (D3cold), in reset, or fell off the bus"
    default_remedy = "check power and cable, look for AER or link messages in the kernel log, then power-cycle the device or rescan the bus"


class BarUnassigned(BusError):
    code = "bar-unassigned"
    default_means = "the firmware or kernel gave the device no bus address for this BAR: the bridge window above it is too small"
    default_remedy = "enable 'Above 4G decoding' in the firmware setup, or boot with pci=realloc; behind a hot-plug bridge: remove and rescan the bridge"


class MemoryDisabled(BusError):
    code = "memory-disabled"
    default_means = "the Memory Space bit of the PCI command register is off, so BAR reads answer all ones"
    default_remedy = "write 1 to the device's sysfs `enable` file, or let tghw open the device (it sets the bit)"


class OutOfWindow(BusError):
    """An access outside a mapped window; raised before the bus is touched."""

    code = "out-of-window"
    default_means = "the address lies outside the mapped region: a wrong offset or table"


class ConfigInvalid(BusError):
    """Configuration space that contradicts the specification."""

    code = "config-invalid"
    default_means = "the device is in reset or damaged, or its configuration space was changed by something else"
    default_remedy = "reset the device, or remove and rescan it; a simulated device: its profile is wrong"


class CapabilityLoop(ConfigInvalid):
    code = "capability-loop"
    default_means = "a list of capabilities leads back into itself"


class ConfigTruncated(ConfigInvalid):
    """The space that can be read ends before the data does."""

    code = "config-truncated"
    default_means = "the kernel shows only the first 64 bytes to users without CAP_SYS_ADMIN, and only 256 where it has no access to extended space"
    default_remedy = "run as root or grant CAP_SYS_ADMIN"


class PowerStateError(BusError):
    """The device does not leave a power-saving state."""

    code = "power-state"
    default_means = "in D3hot the BARs read all ones, in D3cold configuration space does too"
    default_remedy = "write `on` to power/control of the device and of the ports above it; if it stays, remove the device and rescan the bus"


class EnableFailed(BusError):
    """The kernel would not enable the device."""

    code = "enable-failed"
    default_means = "the device's BARs have no valid place on the bus, or a kernel driver claims it"
    default_remedy = "look at the kernel log; remove the device and rescan the bus, or boot with pci=realloc"


class BusMasterRefused(BusError):
    """The bus master bit does not stick."""

    code = "bus-master"
    default_means = "the device does not implement bus mastering, or something above it keeps the bit off"
    default_remedy = "check the kernel log for an IOMMU or AER complaint about this device, then reset it"


class VfioUnavailable(BusError):
    """The kernel's VFIO cannot be used for a device."""

    code = "vfio-unavailable"
    default_means = "the kernel's VFIO modules are not loaded, or the machine's IOMMU is off"
    default_remedy = "as root: modprobe vfio-pci; without an IOMMU group: switch the IOMMU on in the firmware setup and boot with intel_iommu=on (AMD: on by default)"


class GroupNotViable(Refused):
    """Kernel drivers own other functions of the device's IOMMU group."""

    code = "group-not-viable"
    default_means = "the IOMMU cannot keep the functions of a group apart, so all of them must be given away together"
    default_remedy = "unbind the functions named above from their drivers, or bind them to vfio-pci as well"


class IommuRefused(BusError):
    """The kernel does not put the device's IOMMU under this process."""

    code = "iommu-refused"
    default_means = "the IOMMU cannot do what VFIO asks of it"
    default_remedy = "look at the kernel log"


class IrqUnavailable(BusError):
    """The device has interrupts, but they cannot be delivered to this process."""

    code = "interrupts-unavailable"
    default_means = "another user of the device has them, or its interrupt capability is damaged"
    default_remedy = "reset the device and open it again"


class MapFailed(BusError):
    """A BAR that has an address cannot be mapped into this process."""

    code = "map-failed"
    default_means = "the kernel refused the mapping"


class ResetFailed(BusError):
    code = "reset-failed"
    default_means = "the kernel has a way to reset the device, but it did not work"
    default_remedy = "stop the drivers of the card's other functions and try again; otherwise remove and rescan, or power-cycle"


class DmaError(TghwError):
    code = "dma-memory"
    default_means = "memory that the device can reach could not be had"


class IommuActive(DmaError):
    code = "iommu-active"
    default_means = "an IOMMU translates this device's addresses, so that physical addresses of host memory mean nothing to it"
    default_remedy = "boot with iommu=pt (or amd_iommu=off / intel_iommu=off), or use the VFIO transport, which programs the IOMMU"


class IovaExhausted(DmaError):
    code = "iova-exhausted"
    default_means = "the range of addresses that the IOMMU and the device share is used up, or the IOMMU takes no more mappings"
    default_remedy = "free DMA memory; for many small pieces raise vfio_iommu_type1's option dma_entry_limit"


class PagemapHidden(DmaError):
    code = "pagemap-hidden"
    default_means = "the kernel hides physical addresses from processes without CAP_SYS_ADMIN"
    default_remedy = "run as root or grant CAP_SYS_ADMIN, or use the VFIO transport"


class MemoryMovable(DmaError):
    code = "memory-movable"
    default_means = "the kernel may move locked pages to other places while the device still uses the old ones: silent corruption"
    default_remedy = "as root: echo 0 > /proc/sys/vm/compact_unevictable_allowed"


class MemlockLimit(DmaError):
    code = "memlock-limit"
    default_means = "the pages a device uses must be locked in memory, and this process may not lock that much"
    default_remedy = "raise the limit (ulimit -l, or memlock in limits.conf), or grant CAP_IPC_LOCK"


class HugepagesExhausted(DmaError):
    code = "hugepages-exhausted"
    default_means = "physically contiguous memory comes from the pool of 2 MiB pages, and none is free"
    default_remedy = "as root: echo 64 > /proc/sys/vm/nr_hugepages"


class ResizeRefused(BusError):
    code = "resize-refused"
    default_means = "the bridge above the device has no room for the larger BAR"
    default_remedy = "nothing needs it: tghw goes on with the small window; for more speed enable Resizable BAR in the firmware setup"


# --- waiting ----------------------------------------------------------------------------------------------------------


class WaitTimeout(TghwError):
    """poll() gave up: what was awaited, the limit, the last value seen, and how long it took."""

    code = "timeout"

    def __init__(self, what: str, *, read: str = "", means: str = "", remedy: str = "", last: object = None, waited: float = 0.0) -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.last = last
        self.waited = waited


# --- devices ----------------------------------------------------------------------------------------------------------


class DeviceError(TghwError):
    """A device answered, but with a failure."""

    code = "device-error"


class DiscoveryInvalid(DeviceError):
    code = "discovery-invalid"
    default_means = "the table in which the GPU describes itself is damaged, or the wrong place was read"
    default_remedy = "power-cycle the card; if it stays, its firmware image is damaged: `tghw flash verify` compares it with a good one"


class UnknownHardware(DeviceError):
    code = "unknown-hardware"
    default_means = "this version of the block is not in the tables"
    default_remedy = "report the ids shown; a table for it may be all that is missing"


class FirmwareError(TghwError):
    code = "firmware"
    default_remedy = "install the distribution's AMD firmware package (Debian: firmware-amd-graphics) or give --firmware DIR"


class FirmwareMissing(FirmwareError):
    code = "firmware-missing"
    default_means = "a firmware file that the device boots from is not on this machine"


class FirmwareInvalid(FirmwareError):
    code = "firmware-invalid"
    default_means = "the file is damaged, cut short, or not the kind of file that its name says"


class BootError(DeviceError):
    """A boot stage failed; `stage` names it."""

    code = "boot-failed"

    def __init__(self, what: str, *, read: str = "", means: str = "", remedy: str = "", stage: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.stage = stage

    def to_dict(self) -> dict[str, str]:
        return super().to_dict() | {"stage": self.stage}


class PspError(BootError):
    code = "psp"
    default_means = "the security processor did not accept a step of the boot"
    default_remedy = "power-cycle the card (a mode-1 reset needs a living PSP); check that the firmware files belong to this chip"


class SmuError(BootError):
    code = "smu"
    default_means = "the power controller did not carry out a message"
    default_remedy = "try `tghw boot amd --cold`; if it stays, power-cycle the card"


class RlcError(BootError):
    code = "rlc-autoload"
    default_means = "the graphics firmware did not start: usually a firmware file of another chip or release"
    default_remedy = "use a complete, matching set of firmware files, then power-cycle the card"


class NotReady(DeviceError):
    """The device answers, but its own start has not finished."""

    code = "not-ready"
    default_means = "the card's own firmware (IFWI) has not finished: it was powered a moment ago, or it hangs"
    default_remedy = "wait a few seconds and try again; if it stays, power-cycle the card"


class HubError(BootError):
    """A memory hub (address translation) of the GPU does not work."""

    code = "memory-hub"
    default_means = "the hub's registers do not answer as they should: it is powered down, held by somebody else, or hung"
    default_remedy = "reset the card: `tghw boot amd --cold`"


class QueueStuck(DeviceError):
    """A hardware queue that does not start or stop."""

    code = "queue-stuck"
    default_means = "the queue's engine does not follow its registers: its firmware is not running, or a wave on it does not end"
    default_remedy = "reset the card: `tghw boot amd --cold`"


class GpuFault(DeviceError):
    """The GPU reported a fault, e.g. a page fault (decoded)."""

    code = "gpu-fault"
    default_means = "a kernel or copy touched an address that is not mapped for it"
    default_remedy = "check the addresses and sizes given to the kernel; the next launch starts clean"


class GpuHang(DeviceError):
    code = "gpu-hang"
    default_means = "work on the queue did not finish within its limit: an endless kernel, or a wait that nobody satisfies"
    default_remedy = "the queue was reset; check the kernel's loops and barriers, or raise the limit if the work is really that long"


class LaunchRefused(TghwError):
    """A launch whose sizes or arguments the kernel or the GPU cannot take. Nothing was submitted."""

    code = "launch-refused"
    default_remedy = "pass as many argument bytes as the kernel declares, and sizes within the GPU's limits"


class BufferRange(TghwError):
    """A copy beyond the end of its buffer. Nothing was copied."""

    code = "buffer-range"
    default_remedy = "keep offset + size within the buffer"


class StampsLost(TghwError):
    """The time stamps of a launch were overwritten by those of later ones."""

    code = "stamps-lost"
    default_means = "only the time stamps of the latest launches are kept"
    default_remedy = "ask for the elapsed time soon after the launch"


class OutOfMemory(TghwError, MemoryError):
    code = "out-of-memory"
    default_means = "no free range of that size is left"
    default_remedy = "free buffers, or use smaller ones"


class BadFree(TghwError):
    """An address was given back that is not handed out (a second time, or never)."""

    code = "bad-free"
    default_means = "the owner of this range lost track of it; giving it back anyway would hand it out twice later"
    default_remedy = "this is a mistake in the program: free each allocation once, by the address that alloc() returned"


class WrongPhase(TghwError):
    """Boot memory was asked for on a running GPU, or general memory on one that is not booted. Nothing was changed."""

    code = "memory-phase"
    default_means = "boot memory has a fixed layout that later runs rely on; general memory is usable only while the GPU runs"
    default_remedy = "this is a mistake in the program: allocate buffers after boot() and before finish()"


class MappingError(TghwError):
    """A page-table request that cannot be carried out; nothing was changed."""

    code = "mapping"


class KernelImageError(TghwError):
    """A code object (ELF) that cannot be loaded."""

    code = "kernel-image"
    default_means = "the file is not a kernel for this GPU, or it is damaged"


# --- simulated machines -----------------------------------------------------------------------------------------------


class NotModelled(TghwError):
    """A mock was touched where it has no model. Never answered with a made-up value."""

    code = "not-modelled"
    default_means = "the simulated device has no model of this register or function, so no answer would be honest"
    default_remedy = "extend the mock (docs/mocks.md), or do not touch it"


class ProfileError(UsageError):
    """A profile of a simulated machine that is not there or not right."""

    code = "bad-profile"
    default_remedy = "`tghw mock list` names the profiles there are"


def all_errors() -> list[type[TghwError]]:
    """Every error class of the tree that is imported, base first, in definition order."""
    found: list[type[TghwError]] = [TghwError]
    for cls in found:
        found.extend(sub for sub in cls.__subclasses__() if sub not in found)
    return found
