"""The one door from a DEV string or command options to devices.

`Selection` says where to look; `find()` lists what is there without changing it; `open_pci()`, `open_amd()` and `open_gpu()` open.
Simulated machines are imported here and only when one is asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridges import ways
from drivers.amd.chips import GPU_CLASSES, VENDOR_AMD, chip_of, product_of
from firmware.store import FirmwareStore
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BusLost, NothingFound, NotSupported, PermissionMissing, TargetError, TghwError, UsageError
from hw.host import HOST, HostFiles
from hw.lock import acquire
from hw.pci.device import Bar, PciDevice, PciId
from hw.target import Target

if TYPE_CHECKING:
    from bridges.asm24.device import Asm24PciDevice
    from bridges.asm24.usb import UsbBridge
    from drivers.amd.device import AmdDevice
    from drivers.amd.gpu import AmdGpu
    from mocks.machine import Machine

log = logging.getLogger(__name__)

TRANSPORTS = ("auto", "pci", "vfio", "usb", "usb4", "remote", "mock")

NOT_BUILT = {
    "usb4": "USB4 tunnels appear as ordinary PCI devices on Linux: use `pci`; the macOS path is not built yet",
    "remote": "PCI over TCP is not built yet",
    "kfd": "the amdgpu kernel driver's interface is not built yet; `PCI+AMD` drives the card without it",
    "nvk": "the NVIDIA kernel driver's interface is not built yet",
}

ON_THE_BUS = ("pci", "vfio")
"""transports of devices that are on this machine's PCI bus"""
SIMULATED_POWER_STATES = {0: "D0", 3: "D3hot"}
PROFILE_OF_ARCH = {"gfx1100": "navi31", "gfx1101": "navi32", "gfx1102": "navi33"}
DEFAULT_PROFILE = "navi31"
DEFAULT_USB_PROFILE = "navi31-asm24"
MOCK_OPTIONS = ("profile", "seed", "fault")
"""what a DEV string may say of a simulated machine"""
BUILT_MOCKS = ("", "PCI", "USB")
"""interfaces that exist in front of simulated devices"""


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
    if target is None:
        return None
    target.check_options(MOCK_OPTIONS if target.mock else ())
    if not target.mock:
        return None
    if target.interface not in BUILT_MOCKS:
        reason = NOT_BUILT.get(target.interface.lower(), "this transport is not built yet")
        raise NotSupported(f"a simulated {target.interface}+{target.device}", means=reason, remedy="use MOCKPCI+AMD")
    if target.device != "AMD":
        raise NotSupported(f"a simulated {target.device}", means="simulated GPUs are AMD ones so far", remedy="use MOCKPCI+AMD")
    if "profile" in target.options:
        return target.options["profile"]
    if target.interface == "USB":
        if target.arch not in ("", "gfx1100"):
            raise NotSupported(
                f"a simulated {target.arch} behind a USB bridge",
                means="the simulated card behind the bridge is a gfx1100",
                remedy="use MOCKUSB+AMD, or a profile of your own",
            )
        return DEFAULT_USB_PROFILE
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
    target = selection.target
    seed = target.number("seed", selection.seed) if target else selection.seed
    faults = selection.faults or (target.options.get("fault", "") if target else "")
    state = state_folder(selection)
    key = (profile, str(state or ""), faults, seed)
    machine = _machines.get(key)
    if machine is None:
        for other in [each for each, one in _machines.items() if each[:2] == key[:2] and one.idle]:
            del _machines[other]  # the same computer with other faults is that computer switched off and on
        exclusive = selection.state is not None  # in the user's own state folder, simulated machines of several processes may run at the same time
        machine = Machine.from_profile(profile, state_dir=state, seed=seed, faults=FaultPlan.parse(faults) if faults else None, exclusive=exclusive)
        _machines[key] = machine
    return machine


def state_folder(selection: Selection) -> Path | None:
    """Where lasting state is kept: the folder asked for, else the user's state folder (made on demand; XDG_STATE_HOME moves it).

    None when that one cannot be had (a home that is not writable): then nothing lasts. Raises PermissionMissing for one that was asked for.
    """
    folder = selection.state
    if folder is None:
        from platformdirs import user_state_path

        folder = user_state_path("tghw", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        problem = error.strerror or str(error)
    if not problem:
        return folder
    if selection.state is not None:
        raise PermissionMissing(f"the state folder {folder}", read=problem, means="lasting state cannot be kept there", remedy="give --state a folder that can be written")
    log.info("the user's state folder %s cannot be used (%s): nothing lasts; --state names another", folder, problem)
    return None


def transport_of(selection: Selection, transport: str = "auto") -> str:
    """The transport to search: what was asked for, else what the selection implies. Raises NotSupported for one that is not built."""
    if transport not in TRANSPORTS:
        raise UsageError(f"unknown transport {transport}", remedy=f"one of {', '.join(TRANSPORTS)}")
    if profile_of(selection) is not None:
        has_usb = machine_of(selection).usb_backend() is not None
        wants_usb = selection.target is not None and selection.target.interface == "USB"
        if wants_usb and not has_usb:
            raise UsageError(f"the simulated machine {profile_of(selection)} has no USB bridge", remedy="use a profile like navi31-asm24, or MOCKPCI+AMD")
        if transport == "usb" and not has_usb:
            return "usb"
        return ("usb" if has_usb else "mock") if transport in ("auto", "mock", "pci", "usb") else transport
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
    if kind in ON_THE_BUS:
        return _find_on_bus(kind, host, touch)
    if kind == "usb":
        return _find_usb(selection)
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
        lock_name = machine.lock_name(function.address) if machine.lock_dir is not None else ""
        found.append(Found(function.address, "mock", identity, opener, details=details, problem=problem, lock_name=lock_name, lock_directory=machine.lock_dir))
    return found


def _find_on_bus(kind: str, host: HostFiles, touch: bool) -> list[Found]:
    """The functions of this machine's PCI bus. Their openers are for looking: none takes a function from its driver or gives it to another."""
    from hw.pci import functions, sysfs
    from hw.pci.groups import VFIO_PCI
    from hw.pci.vfio import VfioPciDevice

    found = []
    for function in functions.scan(host, touch=touch):
        look: Callable[..., PciDevice] = sysfs.SysfsPciDevice
        if kind == "vfio" or function.driver == VFIO_PCI:
            look = partial(VfioPciDevice, bind=False)
        opener = partial(look, function.address, host=host)
        found.append(Found(function.address, kind, function.id, opener, bars=function.bars, details=function.to_dict(), lock_name=function.address))
    return found


@dataclass(frozen=True)
class Usb:
    """Where USB bridges are: pyusb's backend, the clock they live by, and how they are locked."""

    backend: Any
    clock: Clock
    lock: Callable[[str], Callable[[], None]] | None


def usb_of(selection: Selection) -> Usb:
    """The USB of this machine, or of the simulated one. Raises NotSupported where no libusb can be loaded."""
    from bridges.asm24.usb import system_backend

    if profile_of(selection) is None:
        return Usb(system_backend(), HOST_CLOCK, lambda address: acquire(address).release)
    machine = machine_of(selection)
    directory = machine.lock_dir
    lock = None if directory is None else lambda address: acquire(f"mock:{machine.name}:{address}", directory).release
    return Usb(machine.usb_backend(), machine.clock, lock)


def usb_bridges(selection: Selection) -> list[UsbBridge]:
    """The attached bridges of a selection, by address; nothing is sent to them."""
    from bridges.asm24.usb import attached

    usb = usb_of(selection)
    return attached(usb.backend) if usb.backend is not None else []


def choose_bridge(selection: Selection) -> UsbBridge:
    """The bridge that a selection means: by index ("0", "usb:0") or address ("usb:1-7"). Raises BridgeNotFound, UsageError."""
    from bridges.asm24.errors import BridgeNotFound

    bridges = usb_bridges(selection)
    by_address = {each.address: each for each in bridges}
    if not bridges:
        raise BridgeNotFound("no USB bridge is attached", read=usb_searched())
    wanted = selection.device
    if wanted is None and selection.target is not None:
        return by_address[selection.target.choose(list(by_address))[0]]
    if wanted is None:
        return bridges[0]
    if wanted in by_address:
        return by_address[wanted]
    index = wanted.removeprefix("usb:")
    if index.isdigit() and int(index) < len(bridges):
        return bridges[int(index)]
    raise BridgeNotFound(f"no USB bridge {wanted}", read=f"attached: {', '.join(by_address)}", means="bridges are named by number from 0, or by bus and port")


def usb_searched() -> str:
    """What a search for bridges looks for, in words."""
    from bridges.asm24.ids import IDENTITIES

    ids = ", ".join(f"{each.vendor:04x}:{each.product:04x}"[: 9 if each.product_mask == 0xFFFF else 8].ljust(9, "?") for each in IDENTITIES)
    return f"USB devices with the ids {ids}"


def _find_usb(selection: Selection) -> list[Found]:
    """Each bridge with the device behind it. The link is brought up and buses are numbered, which nobody else does there."""
    from bridges.asm24.info import look_behind

    usb = usb_of(selection)
    found = []
    for bridge in usb_bridges(selection):
        opener = lambda bridge=bridge: open_usb(selection, bridge)  # noqa: E731
        details: dict[str, Any] = {"bridge": {"address": bridge.address, "vendor": bridge.vendor, "product_id": bridge.product, "usb_speed": bridge.speed}}
        identity, problem = None, None
        try:
            behind = look_behind(bridge, usb.backend, clock=usb.clock, lock=usb.lock)
        except TghwError as error:
            problem = error
        else:
            identity, problem = behind.identity, behind.problem
            details = {"bridge": behind.info.to_dict(), "link": behind.info.link, "link_max": behind.info.link_max}
        machine = machine_of(selection) if profile_of(selection) is not None else None
        lock_name = bridge.address if machine is None else machine.lock_name(bridge.address) if machine.lock_dir is not None else ""
        directory = machine.lock_dir if machine is not None else None
        found.append(Found(bridge.address, "usb", identity, opener, details=details, problem=problem, lock_name=lock_name, lock_directory=directory))
    return found


def open_usb(selection: Selection, bridge: UsbBridge) -> Asm24PciDevice:
    """Open the device behind a bridge."""
    from bridges.asm24.device import Asm24PciDevice

    usb = usb_of(selection)
    return Asm24PciDevice.open(bridge, usb.backend, clock=usb.clock, lock=usb.lock)


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


def open_pci(selection: Selection, transport: str = "auto", *, host: HostFiles = HOST) -> PciDevice:
    """Open the selected AMD GPU as a PCI function. On this machine's bus every way is tried, unless one was asked for.

    Raises NothingFound, BusLost, DeviceBusy, PermissionMissing, NoTransport.
    """
    kind = transport_of(selection, transport)
    if kind == "usb":
        return open_usb(selection, choose_bridge(selection))
    try:
        chosen = choose(_selected_gpus(selection, transport, host), selection.device)
    except NothingFound as missing:
        if kind == "pci" and transport == "auto" and not (selection.target and selection.target.interface):
            return _behind_a_bridge(selection, missing)
        raise
    if kind == "pci":
        return ways.first_that_serves(chosen.address, ways.pci_ways(chosen.address, host))
    return ways.open_vfio(chosen.address, host) if kind == "vfio" else chosen.opener()


def _selected_gpus(selection: Selection, transport: str, host: HostFiles) -> list[Found]:
    """The AMD GPUs that the device string allows. Raises NothingFound, BusLost when all that is there does not answer."""
    everything = find(selection, transport, host=host)
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
    return gpus


def _behind_a_bridge(selection: Selection, missing: NothingFound) -> PciDevice:
    """The last place to look when nobody said where: behind a USB bridge. Raises NoTransport telling about both places."""

    def on_the_bus() -> PciDevice:
        raise missing

    return ways.first_that_serves(
        "an AMD GPU",
        [
            ways.Way("pci", "the functions of this machine's PCI bus", on_the_bus),
            ways.Way("usb", "the bridges on this machine's USB", lambda: open_usb(selection, choose_bridge(selection))),
        ],
    )


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


def selection_of(target: Target) -> Selection:
    """A DEV string alone as a selection: where lasting state and firmware are comes from the environment (TGHW_STATE, TGHW_FIRMWARE)."""
    state, firmware = os.environ.get("TGHW_STATE"), os.environ.get("TGHW_FIRMWARE")
    return Selection(target=target, state=Path(state) if state else None, firmware=Path(firmware) if firmware else None)


def open_gpu(target: Target | Selection) -> AmdGpu:
    """Open and boot the GPU of a DEV string or selection, ready for kernels. Raises NotSupported for devices that are not built."""
    selection = target if isinstance(target, Selection) else selection_of(target)
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
