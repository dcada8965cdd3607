"""Device addresses for memory behind an IOMMU: which ranges may be used, and handing them out.

An address is not enough by being free in the IOMMU: one that lies in the window of a bridge may be answered by another device before
it ever gets there. So the memory ranges of every PCI function are left out too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hw.alloc import Tlsf
from hw.errors import IovaExhausted, OutOfMemory
from hw.host import HOST, HostFiles
from hw.pci.functions import RESOURCE_MEMORY
from hw.pci.vfio_abi import MSI_WINDOW

Range = tuple[int, int]
"""first and last address"""

LOWEST = 1 << 20
"""addresses below 1 MiB are left alone: legacy ranges of PCs, and address 0 that devices take for "none" """
HIGHEST = (1 << 44) - 1
"""last address that the GPUs and NICs of this toolkit reach, whatever the IOMMU offers"""


class IovaSpace:
    """Hands out addresses of the allowed ranges, the lowest that fit: devices with few address bits are served as long as there are any."""

    def __init__(self, allowed: Iterable[Range], excluded: Iterable[Range] = (), *, page: int = 4096) -> None:
        self.page = page
        self.ranges = subtract([(max(first, LOWEST), min(last, HIGHEST)) for first, last in allowed], excluded, page)
        self._pools = [Tlsf(last + 1 - first, base=first, granule=page, name="device addresses") for first, last in self.ranges]

    def alloc(self, size: int) -> int:
        """First address of a free range of this many bytes. Raises IovaExhausted."""
        for pool in self._pools:
            try:
                return pool.alloc(size)
            except OutOfMemory:
                continue
        raise IovaExhausted(
            f"{size:#x} bytes of device addresses",
            read=f"{sum(pool.size - pool.used for pool in self._pools):#x} bytes are free, in {len(self._pools)} ranges",
        )

    def free(self, address: int) -> None:
        """Give a range back by its first address. Raises BadFree."""
        next(pool for pool in self._pools if pool.base <= address < pool.base + pool.size).free(address)


def subtract(allowed: Iterable[Range], excluded: Iterable[Range], page: int) -> list[Range]:
    """What is left of the allowed ranges, in whole pages, ascending."""
    left = sorted((first, last) for first, last in allowed if first <= last)
    for low, high in excluded:
        left = [piece for first, last in left for piece in ((first, min(last, low - 1)), (max(first, high + 1), last)) if piece[0] <= piece[1]]
    whole = [(-(-first // page) * page, (last + 1) // page * page - 1) for first, last in left]
    return [(first, last) for first, last in whole if first < last]


def reserved_ranges(group: Path, host: HostFiles = HOST) -> list[Range]:
    """Addresses that the kernel keeps back in an IOMMU group, and the window for interrupts."""
    lines = (host.text(group / "reserved_regions") or "").splitlines()
    return [MSI_WINDOW, *((int(words[0], 16), int(words[1], 16)) for words in map(str.split, lines) if len(words) >= 2)]


def bus_ranges(host: HostFiles = HOST) -> list[Range]:
    """Memory ranges of all PCI functions and of the windows of all bridges. Reads files of the kernel only, no device."""
    found = []
    for function in sorted(host.pci.iterdir()):
        for line in (host.text(function / "resource") or "").splitlines():
            first, last, flags = (int(word, 16) for word in line.split())
            if flags & RESOURCE_MEMORY and last > first:
                found.append((first, last))
    return found
