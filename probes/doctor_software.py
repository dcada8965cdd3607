"""Conditions that are about installed software: firmware files, libusb, compilers. They need more than the kernel's files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from drivers.amd.chips import USUAL_VERSIONS, chip_of
from firmware.amd_files import files_for
from firmware.store import SYSTEM_FOLDERS, FirmwareStore
from hw.doctor.findings import Answer, Check, Scene, block, ok, warn
from hw.errors import FirmwareError, NotSupported, PermissionMissing
from hw.host import HostFiles
from hw.pci.functions import PciFunction

LLVM_TARGETS = {"amd": ("AMD GPU", "amdgcn-amd-amdhsa"), "nv": ("NVIDIA GPU", "nvptx64-nvidia-cuda"), "cpu": ("this CPU", "")}
"""what kernels are compiled for: name and LLVM triple ("" for the one of this machine)"""

FIRMWARE_PACKAGES = {
    "debian": "apt-get install firmware-amd-graphics (archive component non-free-firmware)",
    "ubuntu": "apt-get install linux-firmware",
    "fedora": "dnf install amd-gpu-firmware",
    "arch": "pacman -S linux-firmware-amdgpu",
    "suse": "zypper install kernel-firmware-amdgpu",
}
LIBUSB_PACKAGES = {
    "debian": "apt-get install libusb-1.0-0",
    "ubuntu": "apt-get install libusb-1.0-0",
    "fedora": "dnf install libusb1",
    "arch": "pacman -S libusb",
    "suse": "zypper install libusb-1_0-0",
}


@dataclass(frozen=True)
class Software:
    """What this Python can load. libusb: where it comes from, "" for none. targets: LLVM triples it can compile for; llvm: its version."""

    libusb: str = ""
    llvm: str = ""
    targets: frozenset[str] = frozenset()
    firmware: tuple[Path, ...] = field(default=())
    """folders that the user named"""

    @classmethod
    def installed(cls, firmware: tuple[Path, ...] = ()) -> Software:
        return cls(_libusb(), *_llvm(), firmware)


def _libusb() -> str:
    from bridges.asm24.usb import system_backend

    try:
        backend = system_backend()
    except (NotSupported, ImportError, OSError):
        return ""
    return str(getattr(getattr(backend, "lib", None), "_name", "") or "found")


def _llvm() -> tuple[str, frozenset[str]]:
    try:
        from llvmlite import binding
    except (ImportError, OSError):
        return "", frozenset()
    binding.initialize_all_targets()
    found = set()
    for _, triple in LLVM_TARGETS.values():
        try:
            binding.Target.from_triple(triple or binding.get_process_triple())
        except RuntimeError:
            continue
        found.add(triple)
    return ".".join(map(str, binding.llvm_version_info)), frozenset(found)


def distribution(host: HostFiles) -> str:
    """Which of the known families of distributions this system belongs to; "debian" where that cannot be told."""
    text = host.text(host.root / "etc" / "os-release") or ""
    names = " ".join(value.strip('"') for key, value in re.findall(r"^(ID|ID_LIKE)=(.*)$", text, re.MULTILINE))
    for name in FIRMWARE_PACKAGES:
        if name in names and not (name == "debian" and "ubuntu" in names):
            return name
    return "debian"


def firmware_files(software: Software) -> Callable[[Scene, PciFunction], Answer | None]:
    """The check of the files that a card boots from, for the folders that are looked in."""

    def run(scene: Scene, device: PciFunction) -> Answer | None:
        chip = chip_of(device.id.device) if device.id is not None and scene.family.name == "amd" else None
        if chip is None or chip.name not in USUAL_VERSIONS:
            return None
        store = FirmwareStore(*software.firmware)
        system = [Path(folder) for folder in SYSTEM_FOLDERS]
        store.folders = [folder if folder not in system else scene.host.root / folder.relative_to("/") for folder in store.folders]
        names = files_for(USUAL_VERSIONS[chip.name]).all
        missing = [name for name in names if not store.has(name)]
        install = FIRMWARE_PACKAGES[distribution(scene.host)]
        if missing:
            return block(f"{chip.name} needs {', '.join(missing)}", f"as root: {install}; or name a folder: --firmware DIR")
        damaged = []
        for name in names:
            try:
                store.find(name)
            except (FirmwareError, PermissionMissing) as error:
                damaged.append(f"{error.what} ({error.read})" if error.read else error.what)
        if damaged:
            return block("; ".join(damaged), f"install the files again, as root: {install}")
        return ok(f"{len(names)} files of {chip.name}")

    return run


def libusb(software: Software) -> Callable[[Scene], Answer]:
    def run(scene: Scene) -> Answer:
        if software.libusb:
            return ok(software.libusb)
        return block("no libusb can be loaded", f"as root: {LIBUSB_PACKAGES[distribution(scene.host)]}; or: pip install libusb-package")

    return run


def llvm_targets(software: Software) -> Callable[[Scene], Answer | None]:
    def run(scene: Scene) -> Answer | None:
        wanted = [LLVM_TARGETS[name] for name in (scene.family.name, "cpu") if name in LLVM_TARGETS]
        missing = [title for title, triple in wanted if triple not in software.targets]
        if not software.llvm:
            return warn("llvmlite cannot be loaded", "pip install llvmlite; without it devices boot, but kernels cannot be compiled")
        if missing:
            return warn(f"LLVM {software.llvm} compiles for no {', '.join(missing)}", "pip install --force-reinstall llvmlite: the wheels of PyPI have all targets")
        return ok(f"LLVM {software.llvm}: {', '.join(title for title, _ in wanted)}")

    return run


def software_checks(software: Software, family: str) -> tuple[Check, ...]:
    """The checks of a family that this module has."""
    usb = Check("libusb", "libusb", "USB bridges are reached through it", on_machine=libusb(software))
    if family == "usb":
        return (usb,)
    return (
        Check("firmware-files", "firmware files", "the card's processors run nothing until these are loaded", on_device=firmware_files(software)),
        Check("llvm-targets", "compilers", "kernels are compiled by LLVM on this machine", on_machine=llvm_targets(software)),
    )
