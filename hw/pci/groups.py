"""IOMMU groups: functions that the IOMMU cannot keep apart, so that they can only be given to a program together."""

from __future__ import annotations

from pathlib import Path

from hw.host import HOST, HostFiles
from hw.pci.functions import function_directory

VFIO_PCI = "vfio-pci"
HARMLESS_DRIVERS = (VFIO_PCI, "pci-stub", "pcieport")
"""kernel drivers that start no DMA of their own, so that their functions do not stand in a group's way (Linux: driver-managed DMA)"""


def group_of(address: str, host: HostFiles = HOST) -> str:
    """Number of the IOMMU group of a function, "" when it is in none. Raises NothingFound."""
    return host.link_name(function_directory(address, host) / "iommu_group")


def group_directory(group: str, host: HostFiles = HOST) -> Path:
    return host.sys / "kernel" / "iommu_groups" / group


def members(group: str, host: HostFiles = HOST) -> dict[str, str]:
    """Functions of a group with their kernel drivers ("" for none), by address."""
    directory = group_directory(group, host) / "devices"
    if not directory.is_dir():
        return {}
    return {path.name: host.link_name(host.pci / path.name / "driver") for path in sorted(directory.iterdir())}


def blockers(group: str, host: HostFiles = HOST) -> dict[str, str]:
    """Functions whose kernel drivers keep the group from being given to a program."""
    return {address: driver for address, driver in members(group, host).items() if driver and driver not in HARMLESS_DRIVERS}
