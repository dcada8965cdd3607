"""The kinds of devices that are examined, by what their PCI ids say."""

from __future__ import annotations

from dataclasses import dataclass

from hw.pci.functions import PciFunction

DISPLAY, ACCELERATOR, NETWORK = 0x03, 0x12, 0x02
"""PCI base classes"""
VENDOR_AMD, VENDOR_NVIDIA, VENDOR_MELLANOX, VENDOR_BROADCOM = 0x1002, 0x10DE, 0x15B3, 0x14E4


@dataclass(frozen=True)
class Family:
    """vendors and base classes that a function must have, both empty for devices that are not on PCI."""

    name: str
    title: str
    vendors: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()

    @property
    def on_pci(self) -> bool:
        return bool(self.vendors)

    def matches(self, function: PciFunction) -> bool:
        return function.id is not None and function.id.vendor in self.vendors and function.id.class_code >> 16 in self.classes


AMD = Family("amd", "AMD GPU", (VENDOR_AMD,), (DISPLAY, ACCELERATOR))
NV = Family("nv", "NVIDIA GPU", (VENDOR_NVIDIA,), (DISPLAY,))
RDMA = Family("rdma", "RDMA network card", (VENDOR_MELLANOX, VENDOR_BROADCOM), (NETWORK,))
USB = Family("usb", "USB bridge")

FAMILIES = {family.name: family for family in (AMD, NV, RDMA, USB)}
