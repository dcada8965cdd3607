"""All checks over the kernel's files, by what kind of device they are for."""

from __future__ import annotations

from hw.doctor import pci, system, thunderbolt, usb, vfio
from hw.doctor.families import Family
from hw.doctor.findings import Check

_ON_PCI = (*system.CHECKS, *thunderbolt.CHECKS, *pci.CHECKS, *vfio.CHECKS)
_OFF_PCI = ("operating-system", "container", "kernel-log")


def checks_for(family: Family) -> tuple[Check, ...]:
    """The checks of a family, in the order in which their findings are shown."""
    if family.on_pci:
        return _ON_PCI
    return (*(check for check in system.CHECKS if check.name in _OFF_PCI), *usb.CHECKS)
