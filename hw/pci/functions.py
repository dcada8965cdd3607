"""The PCI functions of this machine as the kernel describes them in sysfs. Looking never touches a device and never wakes one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hw.errors import NothingFound
from hw.host import HOST, HostFiles
from hw.pci.device import Bar, PciId

RESOURCE_IO = 0x100
RESOURCE_MEMORY = 0x200
RESOURCE_PREFETCH = 0x2000
RESOURCE_64BIT = 0x100000
RESOURCE_UNSET = 0x20000000
"""flags of the third column of the `resource` file (linux/ioport.h)"""
BAR_LINES = 6
"""the first lines of `resource` are BAR0 to BAR5"""

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
AWAKE = ("D0", "")
"""power states in which attributes that read the device may be read; "" on kernels before 5.11, which do not tell"""


@dataclass(frozen=True)
class PciFunction:
    """One function as sysfs describes it. Links and resizable sizes are "" and () while the device sleeps: reading them would wake it."""

    address: str
    id: PciId | None
    """None when the kernel holds no valid ids"""
    bars: dict[int, Bar] = field(default_factory=dict)
    driver: str = ""
    """kernel driver that owns it, "" for none"""
    power_state: str = ""
    """D0, D3hot, D3cold, unknown ...; "" when the kernel does not tell"""
    link: str = ""
    """"16.0 GT/s PCIe x16" """
    link_max: str = ""
    iommu_type: str = ""
    """"" without an IOMMU; DMA, DMA-FQ, identity, blocked"""
    numa_node: int = -1
    is_console: bool = False
    """the firmware's boot display"""
    siblings: tuple[str, ...] = ()
    """other functions of the same card"""
    parent: str = ""
    """address of the port above it, "" at the root"""

    def to_dict(self) -> dict[str, Any]:
        """Stable keys for --json; sizes in bytes."""
        return {
            "driver": self.driver,
            "power_state": self.power_state,
            "link": self.link,
            "link_max": self.link_max,
            "iommu": self.iommu_type,
            "numa_node": self.numa_node,
            "console": self.is_console,
            "siblings": list(self.siblings),
            "parent": self.parent,
            "bars": [{"bar": bar.index, "address": f"{bar.address:#x}", "size": bar.size, "kind": bar.kind, "resizable_to": list(bar.resizable_to)} for bar in self.bars.values()],
        }


def scan(host: HostFiles = HOST, *, touch: bool = True) -> list[PciFunction]:
    """Every PCI function of this machine, by address. Raises NothingFound when the kernel shows no PCI bus at all.

    touch: also what the kernel asks the device for, see describe().
    """
    try:
        names = sorted(path.name for path in host.pci.iterdir())
    except OSError as error:
        raise NothingFound(
            "no PCI bus",
            read=f"{host.pci}: {error.strerror}",
            means="this system has no PCI, or a container hides /sys",
            remedy="run outside the container, or mount /sys into it; without hardware: `--mock navi31`",
        ) from error
    found = []
    for name in names:
        if ADDRESS.fullmatch(name):
            with suppress(NothingFound):  # removed meanwhile
                found.append(describe(name, host, names, touch=touch))
    return found


def describe(address: str, host: HostFiles = HOST, names: Iterable[str] | None = None, *, touch: bool = True) -> PciFunction:
    """One function. Raises NothingFound when the kernel has none at this address.

    touch: also link and resizable sizes, for which the kernel reads the device's configuration space: a device that hangs makes that slow.
    """
    directory = function_directory(address, host)
    power_state = host.text(directory / "power_state") or ""
    awake = touch and power_state in AWAKE
    card = address.rpartition(".")[0]
    others = names if names is not None else (path.name for path in host.pci.iterdir())
    group = host.link_name(directory / "iommu_group")
    parent = directory.resolve().parent.name
    return PciFunction(
        address=address,
        id=_identity(directory, host),
        bars=read_resources(directory, host, with_sizes_offered=awake),
        driver=host.link_name(directory / "driver"),
        power_state=power_state,
        link=_link(directory, host, "current") if awake else "",
        link_max=_link(directory, host, "max") if awake else "",
        iommu_type=(host.text(host.sys / "kernel" / "iommu_groups" / group / "type") or "unknown") if group else "",
        numa_node=_default(host.number(directory / "numa_node"), -1),
        is_console=host.text(directory / "boot_vga") == "1",
        siblings=tuple(sorted(name for name in others if name != address and name.rpartition(".")[0] == card)),
        parent=parent if ADDRESS.fullmatch(parent) else "",
    )


def function_directory(address: str, host: HostFiles = HOST) -> Path:
    """The sysfs directory of a function. Raises NothingFound."""
    directory = host.pci / address
    if not ADDRESS.fullmatch(address) or not directory.is_dir():
        raise NothingFound(
            f"no PCI function {address}",
            read=f"{directory} does not exist",
            means="the address is wrong, or the device fell off the bus or was removed",
            remedy="`tghw probe` lists the functions there are; after a removal: echo 1 > /sys/bus/pci/rescan",
        )
    return directory


def read_resources(directory: Path, host: HostFiles = HOST, *, with_sizes_offered: bool = True) -> dict[int, Bar]:
    """The implemented BARs with address (0 when unassigned) and size, from the kernel's `resource` file; the device is not touched.

    with_sizes_offered: also read which sizes a resizable BAR offers, which does touch it.
    """
    bars: dict[int, Bar] = {}
    for index, line in enumerate((host.text(directory / "resource") or "").splitlines()[:BAR_LINES]):
        words = line.split()
        if len(words) != 3:
            continue
        start, end, flags = (int(word, 16) for word in words)
        if not flags & (RESOURCE_IO | RESOURCE_MEMORY):
            continue
        offered = host.number(directory / f"resource{index}_resize", 16) if with_sizes_offered else None
        bars[index] = Bar(
            index,
            0 if flags & RESOURCE_UNSET else start,
            end - start + 1,
            is_io=bool(flags & RESOURCE_IO),
            is_64bit=bool(flags & RESOURCE_64BIT),
            prefetchable=bool(flags & RESOURCE_PREFETCH),
            resizable_to=tuple(1 << (bit + 20) for bit in range(64) if (offered or 0) >> bit & 1),
        )
    return bars


def _identity(directory: Path, host: HostFiles) -> PciId | None:
    numbers = [host.number(directory / name) for name in ("vendor", "device", "revision", "class", "subsystem_vendor", "subsystem_device")]
    vendor, device, revision, class_code, subsystem_vendor, subsystem_device = numbers
    if vendor is None or device is None or vendor == 0xFFFF:
        return None
    return PciId(vendor, device, revision or 0, class_code or 0, subsystem_vendor or 0, subsystem_device or 0)


def _link(directory: Path, host: HostFiles, which: str) -> str:
    speed, width = host.text(directory / f"{which}_link_speed"), host.text(directory / f"{which}_link_width")
    # Ports without a link, and dead ones, show widths like 0, 63 or 255.
    return f"{speed} x{width}" if speed and width and width not in ("0", "63", "255") else ""


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
