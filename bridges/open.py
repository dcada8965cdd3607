"""The one door from a DEV string or command options to devices.

`Selection` says where to look; `find()` lists what is there without changing it; `open_pci()`, `open_amd()` and `open_gpu()` open.
Simulated machines are imported here and only when one is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivers.amd.chips import GPU_CLASSES, VENDOR_AMD, chip_of, product_of
from firmware.store import FirmwareStore
from hw.errors import BusLost, NothingFound, NotSupported, TargetError, TghwError, UsageError
from hw.host import HOST, HostFiles
from hw.pci.device import Bar, PciDevice, PciId
from hw.target import Target

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice
    from drivers.amd.gpu import AmdGpu
    from mocks.machine import Machine

TRANSPORTS = ("auto", "pci", "vfio", "usb", "usb4", "remote", "mock")

NOT_BUILT = {
    "vfio": "the VFIO transport is not built yet; the plain sysfs transport (`pci`) is",
    "usb": "the ASM24xx USB bridge is not built yet",
    "usb4": "USB4 tunnels appear as ordinary PCI devices on Linux: use `pci`; the macOS path is not built yet",
    "remote": "PCI over TCP is not built yet",
    "kfd": "the amdgpu kernel driver's interface is not built yet; `PCI+AMD` drives the card without it",
    "nvk": "the NVIDIA kernel driver's interface is not built yet",
}

SIMULATED_POWER_STATES = {0: "D0", 3: "D3hot"}
PROFILE_OF_ARCH = {"gfx1100": "navi31", "gfx1101": "navi32", "gfx1102": "navi33"}
DEFAULT_PROFILE = "navi31"


@dataclass(frozen=True)
class Selection:
    """Where devices are looked for, from the command line, the environment or a DEV string.

    target: parsed DEV string, if any. mock: profile of a simulated machine. device: "0", "0000:03:00.0", "usb:1".
    """

    target: Target | None = None
    mock: str | None = None
    state: Path | None = None
    firmware: Path | None = None
    faults: str = ""
    device: str | None = None
    remote: str | None = None
    seed: int = 0


@dataclass
class Found:
    """A function that answered, as read without touching its memory."""

    address: str
    transport: str
    id: PciId | None
    """None when it could not be read; `problem` says why"""
    opener: Callable[[], PciDevice]
    bars: dict[int, Bar] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    problem: TghwError | None = None
    lock_name: str = ""
    """the address under which its lock is taken (hw/lock.py); "" when it is not shared with other processes"""
    lock_directory: Path | None = None

    @property
    def is_amd_gpu(self) -> bool:
        return self.id is not None and self.id.vendor == VENDOR_AMD and self.id.class_code >> 8 in GPU_CLASSES

    @property
    def name(self) -> str:
        """The product as its ids name it."""
        if self.id is None:
            return "unknown"
        if self.id.vendor == VENDOR_AMD:
            product = product_of(self.id.device, self.id.revision)
            chip = chip_of(self.id.device)
            if product and chip:
                return f"{product} ({chip.name})"
        return f"{self.id.vendor:04x}:{self.id.device:04x}"

    @property
    def arch(self) -> str:
        chip = chip_of(self.id.device) if self.id is not None and self.id.vendor == VENDOR_AMD else None
        return chip.arch if chip else ""


_machines: dict[tuple[str, str, str, int], Machine] = {}


def profile_of(selection: Selection) -> str | None:
    """The simulated machine a selection asks for, or None for the real one."""
    if selection.mock:
        return selection.mock
    target = selection.target
    if target is None or not target.mock:
        return None
    if target.interface not in ("", "PCI"):
        reason = NOT_BUILT.get(target.interface.lower(), "this transport is not built yet")
        raise NotSupported(f"a simulated {target.interface}+{target.device}", means=reason, remedy="use MOCKPCI+AMD")
    if target.device != "AMD":
        raise NotSupported(f"a simulated {target.device}", means="simulated GPUs are AMD ones so far", remedy="use MOCKPCI+AMD")
    if "profile" in target.options:
        return target.options["profile"]
    if target.arch and target.arch not in PROFILE_OF_ARCH:
        raise NotSupported(
            f"a simulated GPU of architecture {target.arch}",
            means=f"simulated GPUs exist for {', '.join(PROFILE_OF_ARCH)}",
            remedy=f"choose one of these, or NULL::{target.arch} to compile only",
        )
    return PROFILE_OF_ARCH[target.arch] if target.arch else DEFAULT_PROFILE


def machine_of(selection: Selection) -> Machine:
    """The simulated machine of a selection; one per process and profile, so that its devices keep their state between opens."""
    from mocks.faults import FaultPlan
    from mocks.machine import Machine

    profile = profile_of(selection)
    if profile is None:
        raise UsageError("no simulated machine was asked for", remedy="give --mock PROFILE")
    options = selection.target.options if selection.target else {}
    seed = int(options.get("seed", str(selection.seed)))
    faults = selection.faults or options.get("fault", "")
    key = (profile, str(selection.state or ""), faults, seed)
    machine = _machines.get(key)
    if machine is None:
        machine = Machine.from_profile(profile, state_dir=selection.state, seed=seed, faults=FaultPlan.parse(faults) if faults else None)
        _machines[key] = machine
    return machine


def transport_of(selection: Selection, transport: str = "auto") -> str:
    """The transport to search: what was asked for, else what the selection implies. Raises NotSupported for one that is not built."""
    if transport not in TRANSPORTS:
        raise UsageError(f"unknown transport {transport}", remedy=f"one of {', '.join(TRANSPORTS)}")
    if profile_of(selection) is not None:
        return "mock" if transport in ("auto", "mock", "pci") else transport
    if transport == "auto":
        interface = selection.target.interface if selection.target else None
        transport = "remote" if selection.remote else (interface or "PCI").lower()
    if transport == "mock":
        raise UsageError("no simulated machine was asked for", remedy="give --mock PROFILE; `tghw mock list` names the profiles")
    return transport


def find(selection: Selection, transport: str = "auto", *, host: HostFiles = HOST, touch: bool = True) -> list[Found]:
    """Every function on the buses of a selection, sorted by address. Changes nothing on any device.

    host: where the kernel's files are. touch: also what needs reads of the devices' configuration space; one that hangs makes that slow.
    """
    kind = transport_of(selection, transport)
    if kind == "mock":
        return _find_mock(selection)
    if kind == "pci":
        return _find_sysfs(host, touch)
    raise NotSupported(f"searching devices over {kind}", means=NOT_BUILT.get(kind, "this transport is not built yet"))


def _find_mock(selection: Selection) -> list[Found]:
    machine = machine_of(selection)
    found = []
    for function in machine.functions():
        opener = lambda address=function.address: machine.open(address)  # noqa: E731
        try:
            identity, problem = function.identity(), None
        except BusLost as error:
            identity, problem = None, error
        details = {"power_state": SIMULATED_POWER_STATES[function.power_state] if problem is None else ""}
        lock_name = machine.lock_name(function.address) if machine.state_dir is not None else ""
        found.append(Found(function.address, "mock", identity, opener, details=details, problem=problem, lock_name=lock_name, lock_directory=machine.state_dir))
    return found


def _find_sysfs(host: HostFiles, touch: bool) -> list[Found]:
    from hw.pci import functions, sysfs

    found = []
    for function in functions.scan(host, touch=touch):
        opener = lambda address=function.address: sysfs.SysfsPciDevice(address, host=host)  # noqa: E731
        found.append(Found(function.address, "pci", function.id, opener, bars=function.bars, details=function.to_dict(), lock_name=function.address))
    return found


def choose(found: list[Found], device: str | None) -> Found:
    """One of the found functions by index ("0") or address. Raises NothingFound, UsageError."""
    if device is None:
        if not found:
            raise NothingFound("no device was found")
        return found[0]
    for each in found:
        if each.address == device or each.address == f"0000:{device}":
            return each
    if device.isdigit():
        if int(device) < len(found):
            return found[int(device)]
        raise NothingFound(f"there is no device {device}", read=f"{len(found)} found, numbered from 0")
    raise NothingFound(f"no device {device}", read=", ".join(each.address for each in found) or "none found")


def amd_gpus(selection: Selection, transport: str = "auto") -> list[Found]:
    """The AMD GPUs of a selection, in address order, and functions that do not answer (they may be GPUs)."""
    return [each for each in find(selection, transport) if each.is_amd_gpu]


def open_pci(selection: Selection, transport: str = "auto") -> PciDevice:
    """Open the selected AMD GPU as a PCI function. Raises NothingFound, BusLost, DeviceBusy, PermissionMissing."""
    everything = find(selection, transport)
    gpus = [each for each in everything if each.is_amd_gpu]
    if not gpus:
        lost = [each for each in everything if each.problem is not None]
        if lost and lost[0].problem is not None:
            raise lost[0].problem
        raise NothingFound(
            "no AMD GPU was found",
            read=f"{len(everything)} PCI functions searched",
            remedy="check `tghw probe` and the power of the card; without hardware: `--mock navi31` or DEV=MOCKPCI+AMD",
        )
    if selection.device is None and selection.target is not None:
        addresses = selection.target.choose([each.address for each in gpus])
        gpus = [each for each in gpus if each.address in addresses]
    return choose(gpus, selection.device).opener()


def firmware_of(selection: Selection) -> FirmwareStore:
    """Where firmware comes from: the user's folder, the simulated machine's own files, or the distribution's."""
    if selection.firmware is not None:
        return FirmwareStore(selection.firmware)
    if profile_of(selection) is not None and not os.environ.get("TGHW_FIRMWARE"):
        from mocks.amd.fw import fabricate

        machine = machine_of(selection)
        return FirmwareStore.from_files(fabricate(machine.profile["gpu"]["chip"], machine.seed))
    return FirmwareStore()


def open_amd(selection: Selection, transport: str = "auto") -> AmdDevice:
    """Open the selected AMD GPU for bring-up; nothing is booted yet."""
    from drivers.amd.device import AmdDevice

    pci = open_pci(selection, transport)
    try:
        return AmdDevice(pci, firmware_of(selection))
    except BaseException:
        pci.close()
        raise


def open_gpu(target: Target | Selection) -> AmdGpu:
    """Open and boot the GPU of a DEV string or selection, ready for kernels. Raises NotSupported for devices that are not built."""
    selection = target if isinstance(target, Selection) else Selection(target=target)
    wanted = selection.target
    if wanted is not None and wanted.device != "AMD":
        raise NotSupported(f"opening {wanted.device} as a GPU", means="NVIDIA bring-up is not built yet" if wanted.device == "NV" else "only GPUs are opened here")
    from drivers.amd.gpu import AmdGpu

    device = open_amd(selection)
    try:
        device.boot()
        if wanted is not None and wanted.arch and device.arch != wanted.arch:
            raise TargetError(f"the device is {device.arch}, the DEV string asks for {wanted.arch}", remedy=f"use {device.arch} or select another device")
        return AmdGpu(device)
    except BaseException:
        device.close()
        raise
