"""Regions of a VFIO device: configuration space and BARs, mapped where the kernel allows it and by single calls elsewhere."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from hw.errors import BusError, BusLost, ConfigTruncated
from hw.mmio import BytesLike, Cost, Mmio
from hw.pci.device import ConfigSpace, check_access
from hw.pci.vfio_abi import CAP_SPARSE_MMAP, CONFIG_REGION, RegionFlag, Vfio
from hw.pci.vfio_calls import KernelCalls, ask, pairs_of

ROOM = 256
"""bytes for capabilities in the first question about a region"""


@dataclass(frozen=True)
class Region:
    """A part of the device as its descriptor offers it. areas: (offset, size) of what can be mapped, in bytes."""

    index: int
    flags: RegionFlag
    size: int
    offset: int
    areas: tuple[tuple[int, int], ...] = ()

    def mappable(self, offset: int, size: int) -> bool:
        return any(start <= offset and offset + size <= start + length for start, length in self.areas)


def read_region(calls: KernelCalls, device: int, index: int) -> Region:
    """One region; size 0 when the device has none of this index. Raises OSError."""
    info, data = ask(calls, device, Vfio.DEVICE_GET_REGION_INFO, "region_info", room=ROOM, index=index)
    flags = RegionFlag(info.flags)
    areas: list[tuple[int, int]] = []
    if flags & RegionFlag.MMAP:
        areas = pairs_of(data, info.cap_offset, CAP_SPARSE_MMAP) if flags & RegionFlag.CAPS else []
        areas = areas or [(0, info.size)]
    return Region(index, flags, info.size, info.offset, tuple(areas))


class VfioConfig(ConfigSpace):
    """Configuration space; the kernel answers for some bits itself (BARs, MSI), and lets writes to them have no effect on the device."""

    def __init__(self, address: str, calls: KernelCalls, device: int) -> None:
        self._address = address
        self._calls = calls
        self._device = device
        self._region = read_region(calls, device, CONFIG_REGION)
        self.size = self._region.size

    def read(self, offset: int, size: int) -> int:
        check_access(offset, size)
        try:
            data = self._calls.read(self._descriptor(), size, self._region.offset + offset) if offset + size <= self.size else b""
        except OSError as error:
            raise BusLost(f"reading {offset:#x} of configuration space of {self._address}", read=os.strerror(error.errno or 0)) from error
        if len(data) != size:
            raise ConfigTruncated(f"reading {offset:#x} of configuration space of {self._address}", read=f"{self.size} bytes are there")
        return int.from_bytes(data, "little")

    def write(self, offset: int, value: int, size: int) -> None:
        check_access(offset, size)
        try:
            written = self._calls.write(self._descriptor(), value.to_bytes(size, "little"), self._region.offset + offset) if offset + size <= self.size else 0
        except OSError as error:
            raise BusLost(f"writing {offset:#x} of configuration space of {self._address}", read=os.strerror(error.errno or 0)) from error
        if written != size:
            raise ConfigTruncated(f"writing {offset:#x} of configuration space of {self._address}", read=f"{self.size} bytes are there")

    def close(self) -> None:
        self._device = -1

    def _descriptor(self) -> int:
        if self._device < 0:
            raise BusError(f"{self._address} was closed", means="the device is used after it was closed", remedy="open it again")
        return self._device


class RegionWindow(Mmio):
    """A part of a BAR that cannot be mapped (pages with the MSI-X table): each access is a call into the kernel, of that width."""

    cost: Cost = "round_trip"

    def __init__(self, calls: KernelCalls, device: int, region: Region, offset: int, size: int, name: str) -> None:
        self._calls = calls
        self._device = device
        self._start = region.offset + offset
        self.size = size
        self.name = name

    def _get(self, offset: int, size: int) -> bytes:
        try:
            data = self._calls.read(self._device, size, self._start + offset)
        except OSError as error:
            raise self._failed("reading", offset, error.errno or 0) from error
        if len(data) != size:
            raise BusLost(f"reading {size} bytes at {offset:#x} of {self.name}", read=f"{len(data)} bytes")
        return data

    def _put(self, offset: int, data: bytes) -> None:
        try:
            written = self._calls.write(self._device, data, self._start + offset)
        except OSError as error:
            raise self._failed("writing", offset, error.errno or 0) from error
        if written != len(data):
            raise BusLost(f"writing {len(data)} bytes at {offset:#x} of {self.name}", read=f"{written} bytes taken")

    def _failed(self, doing: str, offset: int, number: int) -> BusError:
        if number == errno.EINVAL:
            return BusError(f"{doing} {offset:#x} of {self.name}", read=os.strerror(number), means="the kernel keeps this part of the BAR for itself")
        return BusLost(f"{doing} {offset:#x} of {self.name}", read=os.strerror(number))

    def read32(self, offset: int) -> int:
        self.check(offset, 4, 4)
        return int.from_bytes(self._get(offset, 4), "little")

    def write32(self, offset: int, value: int) -> None:
        self.check(offset, 4, 4)
        self._put(offset, value.to_bytes(4, "little"))

    def read64(self, offset: int) -> int:
        self.check(offset, 8, 8)
        return int.from_bytes(self._get(offset, 8), "little")

    def write64(self, offset: int, value: int) -> None:
        self.check(offset, 8, 8)
        self._put(offset, value.to_bytes(8, "little"))

    def read8(self, offset: int) -> int:
        self.check(offset, 1)
        return self._get(offset, 1)[0]

    def write8(self, offset: int, value: int) -> None:
        self.check(offset, 1)
        self._put(offset, bytes([value]))

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        return self._get(offset, size) if size else b""

    def write(self, offset: int, data: BytesLike) -> None:
        self.check(offset, len(data))
        self._put(offset, bytes(data))

    def revoke(self) -> None:
        """Refuse every access from now on."""
        self.size = 0
        self.name = f"{self.name} (closed)"
