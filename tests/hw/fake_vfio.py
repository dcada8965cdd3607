"""The kernel's side of VFIO and iommufd over a FakeHost: nodes, ioctls with their checks, an IOMMU, and a device that does DMA.

    kernel = FakeVfio(host)                       # stands in for hw.pci.vfio_calls.KernelCalls
    device = VfioPciDevice(GPU, host=host, calls=kernel, lock_directory=tmp_path)
    kernel.device(GPU).dma_write(address, b"...")  # as the hardware would: through the IOMMU, only with bus mastering on

Written from the interface's description (numbers, sizes, flags, errors), not from the code that uses it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from hw.pci.groups import VFIO_PCI
from hw.pci.vfio_abi import Container as ContainerRequest
from hw.pci.vfio_abi import Iommufd, Vfio
from tests.hw.fake_sysfs import FakeFunction, FakeHost

FIRST_DESCRIPTOR = 10_000
REGION_SHIFT = 40
"""as the kernel does it: the region's number in the upper bits of the file offset"""
CONFIG, INTX, MSI, MSIX = 7, 0, 1, 2
PAGE = 4096
UINT64 = (1 << 64) - 1


class DmaFault(Exception):
    """The device touched an address that nobody mapped for it."""


def fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass
class Mapping:
    iova: int
    vaddr: int
    size: int
    flags: int


@dataclass
class AddressSpace:
    """What an IOMMU translates for a set of devices."""

    kernel: FakeVfio
    mappings: list[Mapping] = field(default_factory=list)

    def map(self, vaddr: int, iova: int, size: int, flags: int) -> None:
        if not size or (vaddr | iova | size) % PAGE or not any(first <= iova and iova + size - 1 <= last for first, last in self.kernel.ranges):
            raise fail(errno.EINVAL)
        if any(iova < each.iova + each.size and each.iova < iova + size for each in self.mappings):
            raise fail(errno.EEXIST)
        if len(self.mappings) >= self.kernel.entry_limit:
            raise fail(errno.ENOSPC)
        if sum(each.size for each in self.mappings) + size > self.kernel.memlock:
            raise fail(errno.ENOMEM)
        self.mappings.append(Mapping(iova, vaddr, size, flags))

    def unmap(self, iova: int, size: int) -> int:
        if (iova | size) % PAGE:
            raise fail(errno.EINVAL)
        inside = [each for each in self.mappings if iova <= each.iova and each.iova + each.size <= iova + size]
        touched = [each for each in self.mappings if iova < each.iova + each.size and each.iova < iova + size]
        if inside != touched:
            raise fail(errno.EINVAL)  # would cut a mapping in two
        self.mappings = [each for each in self.mappings if each not in inside]
        return sum(each.size for each in inside)

    def host_address(self, iova: int, size: int, flag: int) -> int:
        for each in self.mappings:
            if each.iova <= iova and iova + size <= each.iova + each.size and each.flags & flag:
                return each.vaddr + iova - each.iova
        raise DmaFault(f"{size} bytes at {iova:#x}")


@dataclass
class Container:
    extensions: tuple[int, ...]
    group: Group | None = None
    space: AddressSpace | None = None
    kind: int = 0


@dataclass
class Group:
    number: str
    noiommu: bool
    container: Container | None = None


@dataclass
class IommuFile:
    spaces: dict[int, AddressSpace] = field(default_factory=dict)


class FakeDevice:
    """One function and its interrupt state."""

    def __init__(self, kernel: FakeVfio, address: str, function: FakeFunction) -> None:
        self.kernel = kernel
        self.address = address
        self.function = function
        self.space: AddressSpace | None = None
        self.ready = False
        """False for a device's own node until it is bound to an iommufd"""
        self.flags = 3
        """bit 0 can be reset, bit 1 PCI"""
        self.irq_counts = {INTX: 1, MSI: 1, MSIX: 0, 3: 1, 4: 1}
        self.sparse: dict[int, list[tuple[int, int]]] = {}
        """areas of a BAR that may be mapped, where not all of it may"""
        self.eventfds: dict[int, int] = {}
        self.masked = False
        self.pending = False
        self.resets = 0
        self.bus: list[tuple[int, str]] = []
        """(group, address) of everything on its bus, for devices that only a bus reset resets"""

    # --- the hardware ---

    def _bus_master(self) -> bool:
        return bool(self.kernel.host.config_word(self.function, 4) & 4)

    def dma_write(self, iova: int, data: bytes) -> None:
        """Write to host memory as the device sees it."""
        if not self._bus_master() or self.space is None:
            raise DmaFault("bus mastering is off")
        ctypes.memmove(self.space.host_address(iova, len(data), 2), data, len(data))

    def dma_read(self, iova: int, size: int) -> bytes:
        if not self._bus_master() or self.space is None:
            raise DmaFault("bus mastering is off")
        return ctypes.string_at(self.space.host_address(iova, size, 1), size)

    def interrupt(self) -> None:
        """Raise the interrupt that the driver asked for: a message, or the line, which is masked as it is delivered."""
        if MSI in self.eventfds and self._bus_master():
            os.eventfd_write(self.eventfds[MSI], 1)
        elif INTX in self.eventfds:
            if self.masked:
                self.pending = True
            else:
                self.masked = True
                os.eventfd_write(self.eventfds[INTX], 1)

    # --- ioctls ---

    def set_irqs(self, data: bytes) -> None:
        argsz, flags, index, start, count = struct.unpack_from("<5I", data)
        kind, action = flags & 7, flags & ~7
        if flags & ~63 or kind not in (1, 2, 4) or action not in (8, 16, 32) or index not in self.irq_counts:
            raise fail(errno.EINVAL)
        if start + count > self.irq_counts[index] or argsz < 20 + (4 * count if kind == 4 else 0):
            raise fail(errno.EINVAL)
        if action == 32 and count == 0 and kind == 1:
            self.eventfds.pop(index, None)
        elif action == 32 and kind == 4 and count:
            if any(other in self.eventfds for other in (INTX, MSI, MSIX) if other != index) and index < 3:
                raise fail(errno.EINVAL)  # only one kind of interrupt at a time
            self.eventfds[index] = struct.unpack_from("<i", data, 20)[0]
            self.masked = False
        elif action == 16 and index == INTX and kind == 1:
            self.masked = False
            if self.pending:
                self.pending = False
                self.interrupt()
        else:
            raise fail(errno.EINVAL)

    def region(self, index: int) -> tuple[int, int]:
        """(flags, size)"""
        if index == CONFIG:
            return 3, (self.function.directory / "config").stat().st_size
        bar = self.function.bars.get(index)
        if bar is None:
            return 0, 0
        return (3 if bar.flags & 0x100 else 7) | (8 if index in self.sparse else 0), bar.size


class FakeVfio:
    """See the module. The knobs are what a kernel or a machine can be like."""

    def __init__(self, host: FakeHost, *, noiommu: bool = False, nodes: bool = False) -> None:
        self.host = host
        self.noiommu = noiommu
        self.nodes = nodes
        self.interrupt_remapping = True
        self.extensions = (8,) if noiommu else (1, 3, 9)
        self.ranges = [(0, 0xFEDFFFFF), (0xFEF00000, (1 << 39) - 1)]
        self.entry_limit = 65535
        self.memlock = 1 << 40
        self.version = 0
        self._open: dict[int, object] = {}
        self._next = FIRST_DESCRIPTOR
        self._devices: dict[str, FakeDevice] = {}
        host.put(host.dev / "vfio" / "vfio", "")
        host.add_driver(VFIO_PCI)
        for address, function in host.functions.items():
            number = host.link_name(function.directory / "iommu_group")
            if number:
                host.put(host.dev / "vfio" / (f"noiommu-{number}" if noiommu else number), "")
            if nodes:
                self._add_node(address, function)

    def _add_node(self, address: str, function: FakeFunction) -> None:
        name = f"vfio{len(self._devices)}"
        self.host.put(self.host.dev / "iommu", "")
        self.host.put(self.host.dev / "vfio" / "devices" / name, "")
        (function.directory / "vfio-dev" / name).mkdir(parents=True)
        self.device(address)

    def device(self, address: str) -> FakeDevice:
        """The hardware behind a function."""
        return self._devices.setdefault(address, FakeDevice(self, address, self.host.functions[address]))

    @property
    def open_nodes(self) -> int:
        return len(self._open)

    # --- KernelCalls ---

    def open(self, path: Path) -> int:
        os.close(self.host.open(path, os.O_RDWR))
        name = str(path.relative_to(self.host.dev))
        if name == "vfio/vfio":
            return self._new(Container(self.extensions))
        if name == "iommu":
            return self._new(IommuFile())
        if name.startswith("vfio/devices/"):
            [address] = [each for each, function in self.host.functions.items() if (function.directory / "vfio-dev" / path.name).is_dir()]
            self._need_driver(address)
            if self.device(address) in self._open.values():
                raise fail(errno.EBUSY)
            return self._new(self.device(address))
        number = path.name.removeprefix("noiommu-")
        if not any(function.driver == VFIO_PCI for function in self._members(number)):
            raise fail(errno.ENOENT)
        if any(isinstance(each, Group) and each.number == number for each in self._open.values()):
            raise fail(errno.EBUSY)
        return self._new(Group(number, path.name.startswith("noiommu-")))

    def close(self, descriptor: int) -> None:
        if descriptor not in self._open:
            raise fail(errno.EBADF)
        thing = self._open.pop(descriptor)
        if isinstance(thing, FakeDevice):
            thing.eventfds.clear()
            thing.space, thing.ready = None, False

    def ioctl(self, descriptor: int, request: int, argument: bytearray | int = 0) -> int:
        thing = self._open.get(descriptor)
        if isinstance(thing, Container):
            return self._container(thing, request, argument)
        if isinstance(thing, Group):
            return self._group(thing, request, argument)
        assert isinstance(argument, bytearray) or request == Vfio.DEVICE_RESET
        if isinstance(thing, IommuFile):
            return self._iommufd(thing, request, bytearray(argument) if isinstance(argument, int) else argument)
        if isinstance(thing, FakeDevice):
            return self._device(thing, request, bytearray() if isinstance(argument, int) else argument)
        raise fail(errno.EBADF)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._access(descriptor, offset, size, None)

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        self._access(descriptor, offset, len(data), data)
        return len(data)

    def map(self, descriptor: int, length: int, offset: int) -> mmap.mmap:
        device = self._ready(descriptor)
        index, start = offset >> REGION_SHIFT, offset & (1 << REGION_SHIFT) - 1
        flags, size = device.region(index)
        areas = device.sparse.get(index, [(0, size)])
        if not flags & 4 or not any(low <= start and start + length <= low + room for low, room in areas):
            raise fail(errno.EINVAL)
        with (device.function.directory / f"resource{index}").open("r+b") as file:
            return mmap.mmap(file.fileno(), length, offset=start)

    # --- inside ---

    def _new(self, thing: object) -> int:
        self._next += 1
        self._open[self._next] = thing
        return self._next

    def _members(self, number: str) -> list[FakeFunction]:
        return [function for function in self.host.functions.values() if self.host.link_name(function.directory / "iommu_group") == number]

    def _viable(self, number: str) -> bool:
        return all(function.driver in ("", VFIO_PCI, "pci-stub", "pcieport") for function in self._members(number))

    def _need_driver(self, address: str) -> None:
        if address not in self.host.functions or self.host.functions[address].driver != VFIO_PCI:
            raise fail(errno.ENODEV)

    def _ready(self, descriptor: int) -> FakeDevice:
        device = self._open.get(descriptor)
        if not isinstance(device, FakeDevice) or not device.ready:
            raise fail(errno.EINVAL)
        return device

    def _access(self, descriptor: int, offset: int, size: int, data: bytes | None) -> bytes:
        device = self._ready(descriptor)
        index, start = offset >> REGION_SHIFT, offset & (1 << REGION_SHIFT) - 1
        _, room = device.region(index)
        if start + size > room or size not in (1, 2, 4, 8):
            raise fail(errno.EINVAL)
        path = device.function.directory / ("config" if index == CONFIG else f"resource{index}")
        with path.open("r+b") as file:
            file.seek(start)
            if data is None:
                return file.read(size)
            if index == CONFIG and start < 0x40 and start != 4:
                return b""  # BARs and ids are the kernel's own
            file.write(data)
        return b""

    def _checked(self, data: bytearray, smallest: int, *, flags: int = 0) -> None:
        """Every structure begins with its size and flags; unknown flags are refused."""
        if len(data) < smallest or not smallest <= int.from_bytes(data[:4], "little") or int.from_bytes(data[4:8], "little") & ~flags:
            raise fail(errno.EINVAL)

    def _container(self, container: Container, request: int, argument: bytearray | int) -> int:
        if request == Vfio.GET_API_VERSION:
            return self.version
        if request == Vfio.CHECK_EXTENSION:
            return int(argument in container.extensions)
        if request == Vfio.SET_IOMMU:
            if container.group is None or container.space is not None or argument not in container.extensions:
                raise fail(errno.EINVAL)
            if argument in (1, 3) and not self.interrupt_remapping:
                raise fail(errno.EPERM)
            assert isinstance(argument, int)
            container.kind, container.space = argument, AddressSpace(self)
            return 0
        if not isinstance(argument, bytearray) or container.space is None or container.kind == 8:
            raise fail(errno.ENOTTY)
        if request == ContainerRequest.IOMMU_GET_INFO:
            return self._iommu_info(argument)
        if request == ContainerRequest.IOMMU_MAP_DMA:
            self._checked(argument, 32, flags=3)
            _, flags, vaddr, iova, size = struct.unpack_from("<2I3Q", argument)
            if not flags:
                raise fail(errno.EINVAL)
            container.space.map(vaddr, iova, size, flags)
            return 0
        if request == ContainerRequest.IOMMU_UNMAP_DMA:
            self._checked(argument, 24)
            _, _, iova, size = struct.unpack_from("<2I2Q", argument)
            struct.pack_into("<Q", argument, 16, container.space.unmap(iova, size))
            return 0
        raise fail(errno.ENOTTY)

    def _iommu_info(self, argument: bytearray) -> int:
        self._checked(argument, 16)
        ranges = b"".join(struct.pack("<2Q", *each) for each in self.ranges)
        needed = 24 + 16 + len(ranges)
        given = int.from_bytes(argument[:4], "little")
        struct.pack_into("<2IQ2I", argument, 0, max(needed, 24), 3, PAGE | 2 << 20 | 1 << 30, 24 if given >= needed else 0, 0)
        if given >= needed:
            argument[24:needed] = struct.pack("<2H3I", 1, 1, 0, len(self.ranges), 0) + ranges
        return 0

    def _group(self, group: Group, request: int, argument: bytearray | int) -> int:
        assert isinstance(argument, bytearray)
        if request == Vfio.GROUP_GET_STATUS:
            self._checked(argument, 8)
            struct.pack_into("<2I", argument, 0, 8, int(self._viable(group.number)) | (2 if group.container else 0))
            return 0
        if request == Vfio.GROUP_SET_CONTAINER:
            container = self._open.get(int.from_bytes(argument[:4], "little"))
            if not isinstance(container, Container) or group.container is not None:
                raise fail(errno.EINVAL)
            if not self._viable(group.number):
                raise fail(errno.EPERM)
            group.container, container.group = container, group
            return 0
        if request == Vfio.GROUP_GET_DEVICE_FD:
            if group.container is None or group.container.space is None or not argument.endswith(b"\0"):
                raise fail(errno.EINVAL)
            address = argument[:-1].decode()
            self._need_driver(address)
            device = self.device(address)
            device.space, device.ready = None if group.noiommu else group.container.space, True
            return self._new(device)
        raise fail(errno.ENOTTY)

    def _iommufd(self, file: IommuFile, request: int, data: bytearray) -> int:
        def sized(size: int) -> None:
            if int.from_bytes(data[:4], "little") != size:
                raise fail(errno.EINVAL)

        if request == Iommufd.IOAS_ALLOC:
            sized(12)
            number = len(file.spaces) + 1
            file.spaces[number] = AddressSpace(self)
            struct.pack_into("<I", data, 8, number)
            return 0
        space = file.spaces.get(int.from_bytes(data[4:8] if request in (Iommufd.IOAS_IOVA_RANGES, Iommufd.IOAS_UNMAP) else data[8:12], "little"))
        if space is None:
            raise fail(errno.ENOENT)
        if request == Iommufd.IOAS_IOVA_RANGES:
            sized(32)
            room, pointer = struct.unpack_from("<I", data, 8)[0], struct.unpack_from("<Q", data, 16)[0]
            struct.pack_into("<I", data, 8, len(self.ranges))
            if room < len(self.ranges):
                raise fail(errno.EMSGSIZE)
            ctypes.memmove(pointer, b"".join(struct.pack("<2Q", *each) for each in self.ranges), 16 * len(self.ranges))
            struct.pack_into("<Q", data, 24, PAGE)
            return 0
        if request == Iommufd.IOAS_MAP:
            sized(40)
            _, flags, _, reserved, vaddr, length, iova = struct.unpack("<4I3Q", data)
            if flags & ~7 or not flags & 1 or reserved:
                raise fail(errno.EOPNOTSUPP)
            space.map(vaddr, iova, length, (2 if flags & 2 else 0) | (1 if flags & 4 else 0))
            return 0
        if request == Iommufd.IOAS_UNMAP:
            sized(24)
            iova, length = struct.unpack_from("<2Q", data, 8)
            done = space.unmap(iova, length)
            if not done:
                raise fail(errno.ENOENT)
            return 0
        raise fail(errno.ENOTTY)

    def _device(self, device: FakeDevice, request: int, data: bytearray) -> int:
        if request == Vfio.DEVICE_BIND_IOMMUFD:
            self._checked(data, 16)
            if not isinstance(self._open.get(struct.unpack_from("<i", data, 8)[0]), IommuFile):
                raise fail(errno.EBADF)
            if not self._viable(self.host.link_name(device.function.directory / "iommu_group")):
                raise fail(errno.EBUSY)
            device.iommufd = self._open[struct.unpack_from("<i", data, 8)[0]]  # type: ignore[attr-defined]
            device.ready = True
            return 0
        if not device.ready:
            raise fail(errno.EINVAL)
        if request == Vfio.DEVICE_ATTACH_IOMMUFD_PT:
            self._checked(data, 12)
            if not self.interrupt_remapping:
                raise fail(errno.EPERM)
            device.space = device.iommufd.spaces[struct.unpack_from("<I", data, 8)[0]]  # type: ignore[attr-defined]
            return 0
        if request == Vfio.DEVICE_GET_INFO:
            self._checked(data, 16)
            struct.pack_into("<4I", data, 0, 20, device.flags, 9, 5)
            return 0
        if request == Vfio.DEVICE_GET_REGION_INFO:
            return self._region_info(device, data)
        if request == Vfio.DEVICE_GET_IRQ_INFO:
            self._checked(data, 16)
            index = struct.unpack_from("<I", data, 8)[0]
            if index not in device.irq_counts:
                raise fail(errno.EINVAL)
            struct.pack_into("<4I", data, 0, 16, 7 if index == INTX else 9, index, device.irq_counts[index])
            return 0
        if request == Vfio.DEVICE_SET_IRQS:
            device.set_irqs(bytes(data))
            return 0
        if request == Vfio.DEVICE_RESET:
            if not device.flags & 1:
                raise fail(errno.EINVAL)
            device.resets += 1
            return 0
        return self._bus_reset(device, request, data)

    def _region_info(self, device: FakeDevice, data: bytearray) -> int:
        self._checked(data, 32, flags=UINT64)
        index = struct.unpack_from("<I", data, 8)[0]
        if index > 8:
            raise fail(errno.EINVAL)
        flags, size = device.region(index)
        areas = b"".join(struct.pack("<2Q", *each) for each in device.sparse.get(index, ()))
        needed = 32 + (16 + len(areas) if areas else 0)
        given = int.from_bytes(data[:4], "little")
        fits = bool(areas) and given >= needed
        struct.pack_into("<4I2Q", data, 0, needed if areas else given, flags, index, 32 if fits else 0, size, index << REGION_SHIFT)
        if fits:
            data[32:needed] = struct.pack("<2H3I", 1, 1, 0, len(areas) // 16, 0) + areas
        return 0

    def _bus_reset(self, device: FakeDevice, request: int, data: bytearray) -> int:
        if not device.bus:
            raise fail(errno.ENODEV)
        self._checked(data, 12)
        if request == Vfio.DEVICE_GET_PCI_HOT_RESET_INFO:
            needed = 12 + 8 * len(device.bus)
            owned = 3 if self.nodes and all(group == device.bus[0][0] for group, _ in device.bus) else int(self.nodes)
            struct.pack_into("<3I", data, 0, needed, owned, len(device.bus))
            if len(data) < needed:
                raise fail(errno.ENOSPC)
            for number, (group, address) in enumerate(device.bus):
                domain, bus, rest = address.split(":")
                slot, function = rest.split(".")
                struct.pack_into("<IHBB", data, 12 + 8 * number, group, int(domain, 16), int(bus, 16), int(slot, 16) << 3 | int(function))
            return 0
        if request == Vfio.DEVICE_PCI_HOT_RESET:
            given = [self._open.get(fd) for fd in struct.unpack_from(f"<{struct.unpack_from('<I', data, 8)[0]}i", data, 12)]
            numbers = {each.number for each in given if isinstance(each, Group)}
            if not self.nodes and {str(group) for group, _ in device.bus} - numbers:
                raise fail(errno.EINVAL)
            device.resets += 1
            return 0
        raise fail(errno.ENOTTY)
