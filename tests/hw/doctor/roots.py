"""Machines as trees of files, each with one thing wrong: a healthy base, and what a condition of tests/data/doctor changes in it.

Paths are relative to the root; "D/" is the GPU's directory in sysfs, "P/" that of the port above it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firmware.amd_files import files_for
from probes.doctor import diagnose
from probes.doctor_software import Software
from tests.hw.fake_sysfs import FakeBar, FakeHost
from tests.hw.test_sysfs import gpu_image, image

DATA = Path(__file__).parents[2] / "data" / "doctor"
GPU, AUDIO, PORT = "0000:03:00.0", "0000:03:00.1", "0000:00:01.1"
PRESENT = 1 << 63
ALL_TARGETS = frozenset(("amdgcn-amd-amdhsa", "nvptx64-nvidia-cuda", ""))
NAVI31 = {"GC": (11, 0, 0), "MP0": (13, 0, 0), "MP1": (13, 0, 0), "SDMA0": (6, 0, 0)}
GIB = 1 << 30

STATUS = "Name:\ttghw\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-15"
LIMITS = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         unlimited            unlimited            bytes"


@dataclass
class Condition:
    """expect: check -> state, of everything that is not ok. words: what the findings must say. shown: check -> words of a finding that is ok."""

    name: str
    expect: dict[str, str]
    base: str = "sysfs"
    family: str = "amd"
    files: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    frames: str = "shown"
    system: str = "Linux"
    software: dict[str, Any] = field(default_factory=dict)


class Root(FakeHost):
    """A machine with a GPU behind a port."""

    def __init__(self, folder: Path, base: str) -> None:
        super().__init__(folder)
        self.unusable: set[Path] = set()
        group = {"iommu_type": "DMA-FQ", "iommu_group": "14"} if base == "vfio" else {}
        link = {f"{which}_link_{what}": text for which in ("current", "max") for what, text in (("speed", "16.0 GT/s PCIe"), ("width", "16"))}
        errors = {f"aer_dev_{kind}": f"TOTAL_ERR_{name} 0" for kind, name in (("fatal", "FATAL"), ("nonfatal", "NONFATAL"), ("correctable", "COR"))}
        common = {"power/control": "on", "boot_vga": "0", "local_cpulist": "0-15", "numa_node": "0"} | link
        self.add_function(PORT, image(8), driver="pcieport", parent="pci0000:00", **common)
        self.put(self.pci / PORT / "resource", _port_resources(0x78_0000_0000, 32 * GIB))
        bars = {0: FakeBar(0x78_0000_0000, 16 * GIB, offered=0x7F00), 2: FakeBar(0x7C_0000_0000, 2 << 20), 5: FakeBar(0xFCB0_0000, 1 << 20, flags=0x40200)}
        below = f"pci0000:00/{PORT}"
        self.add_function(GPU, gpu_image(), bars, parent=below, **common, **errors, **group)
        self.add_function(AUDIO, image(5), parent=below, **common, **group)
        for path, text in {
            "proc/self/status": STATUS,
            "proc/self/limits": LIMITS,
            "proc/meminfo": "HugePages_Total:      64\nHugePages_Free:       64" if base != "vfio" else "HugePages_Free:        0",
            "proc/sys/kernel/osrelease": "6.12.9-amd64",
            "proc/sys/vm/compact_unevictable_allowed": "0" if base != "vfio" else "1",
            "proc/cpuinfo": "flags\t\t: fpu sse2 avx2",
            "sys/kernel/security/lockdown": "[none] integrity confidentiality",
            "dev/kmsg": "6,1,0,-;Linux version 6.12.9",
            "etc/os-release": "ID=debian",
        }.items():
            self.put(self.root / path, text)
        for name in files_for(NAVI31).all:
            self.put(self.root / "lib" / "firmware" / "amdgpu" / name, "firmware")
        if base == "vfio":
            self._add_vfio()
        if base == "usb":
            self._add_bridge()

    def _add_vfio(self) -> None:
        for module in ("vfio_pci", "vfio_iommu_type1"):
            (self.sys / "module" / module).mkdir(parents=True)
        self.put(self.sys / "module" / "vfio_pci" / "parameters" / "disable_idle_d3", "Y")
        for node in ("vfio", "14"):
            self.put(self.dev / "vfio" / node, "")

    def _add_bridge(self) -> None:
        bridge = self.sys / "bus" / "usb" / "devices" / "1-7"
        for name, text in {"idVendor": "add1", "idProduct": "0001", "product": "custom pcie", "speed": "10000", "power/control": "on", "busnum": "1", "devnum": "9"}.items():
            self.put(bridge / name, text)
        (bridge / "1-7:1.0").mkdir()
        self.put(self.dev / "bus" / "usb" / "001" / "009", "")
        self.put(self.sys / "module" / "usbcore" / "parameters" / "usbfs_memory_mb", "256")

    def at(self, path: str) -> Path:
        for short, address in (("D/", GPU), ("P/", PORT)):
            if path.startswith(short):
                return self.pci / address / path[len(short) :]
        return self.root / path

    def apply(self, condition: Condition) -> None:
        """Make one thing wrong."""
        for path in condition.remove:
            target = self.at(path)
            assert target.exists() or target.is_symlink(), f"{path} is not there to be removed"
            shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
        for path, text in condition.files.items():
            self.put(self.at(path), text)
        for path, hexadecimal in condition.copies.items():
            self.at(path).write_bytes(bytes.fromhex(hexadecimal))
        for path, target in condition.links.items():
            self.at(path).parent.mkdir(parents=True, exist_ok=True)
            self.at(path).symlink_to(self.root / target[1:] if target.startswith("/sys") else target)
        self.unusable = {self.at(path) for path in condition.unusable}

    def may_use(self, path: Path) -> bool:
        return path not in self.unusable and super().may_use(path)

    def open(self, path: Path, flags: int) -> int:
        if path in self.unusable:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().open(path, flags)


def _port_resources(start: int, size: int) -> str:
    """Lines of a port: two BARs, four that it has not, ROM, then (behind those of virtual functions) its windows."""
    windows = [(0, 0, 0), (0xFCB0_0000, 0xFCCF_FFFF, 0x200), (start, start + size - 1, 0x102201)]
    return "\n".join(f"{first:#018x} {last:#018x} {flags:#018x}" for first, last, flags in [(0, 0, 0)] * 13 + windows)


def conditions() -> list[Condition]:
    """Every recorded condition."""
    return [Condition(name=name, **values) for name, values in tomllib.loads((DATA / "conditions.toml").read_text()).items()]


def examine(root: Root, condition: Condition, lock_directory: Path) -> list[Any]:
    """All findings of a machine under a condition."""
    frame = 0x1234 if condition.frames == "shown" else 0
    given = {"libusb": "libusb-1.0.so.0", "llvm": "22.1.0", "targets": ALL_TARGETS} | condition.software
    software = Software(given["libusb"], given["llvm"], frozenset(given["targets"]))
    return diagnose(condition.family, root, software, lock_directory=lock_directory, pagemap=lambda address, count: [PRESENT | frame] * count, system=condition.system)
