"""Three ways to get a function and its IOMMU from the kernel's VFIO: the group's container (type 1), iommufd with the device's own
node, and no IOMMU at all. Each ends with a descriptor of the device and, with an IOMMU, the right to map memory for it.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hw.dma import memlock_limit
from hw.errors import DeviceBusy, DmaError, GroupNotViable, IommuRefused, IovaExhausted, MemlockLimit, PermissionMissing, TghwError, VfioUnavailable
from hw.host import HOST, HostFiles
from hw.pci import groups
from hw.pci.binding import holders_of
from hw.pci.functions import function_directory
from hw.pci.iova import IovaSpace, Range, bus_ranges, reserved_ranges
from hw.pci.vfio_abi import (
    API_VERSION,
    CAP_IOVA_RANGES,
    INFO_CAPS,
    INFO_PAGE_SIZES,
    LAYOUT,
    Container,
    GroupFlag,
    IoasMapFlag,
    Iommufd,
    IommuType,
    MapFlag,
    Vfio,
)
from hw.pci.vfio_calls import KernelCalls, ask, pairs_of

MODES = ("auto", "iommufd", "type1", "noiommu")
NOIOMMU_PREFIX = "noiommu-"
WHOLE_SPACE: Range = (0, (1 << 64) - 1)
ROOM_FOR_RANGES = 32
"""ranges of addresses that a first question leaves room for"""
MOST_RANGES = ROOM_FOR_RANGES * 8**3
"""more than any IOMMU has; ends asking again and again"""

REMAPPING_MEANS = "this machine's IOMMU does not check interrupts, so that a device could forge them"
REMAPPING_REMEDY = "where that is acceptable, as root before vfio-pci is loaded: modprobe vfio_iommu_type1 allow_unsafe_interrupts=1"


class IommuSpace(ABC):
    """An opened function with what stands between it and memory."""

    kind: str
    device: int
    """descriptor of the device"""
    iova: IovaSpace | None = None
    """device addresses; None without an IOMMU: they are physical then"""

    def __init__(self, address: str, host: HostFiles, calls: KernelCalls) -> None:
        self.address = address
        self.group = groups.group_of(address, host)
        self._host = host
        self._calls = calls
        self._stack = ExitStack()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self) -> None:
        """Get the device. What is opened goes onto the stack."""

    def map(self, vaddr: int, iova: int, size: int) -> None:
        """Let the device read and write this memory of the process at `iova`. Raises MemlockLimit, IovaExhausted, DmaError."""
        try:
            self._map(vaddr, iova, size)
        except OSError as error:
            what, read = f"mapping {size:#x} bytes at device address {iova:#x}", os.strerror(error.errno or 0)
            if error.errno == errno.ENOMEM:
                raise MemlockLimit(what, read=f"{read}; limit {memlock_limit()}") from error
            if error.errno == errno.ENOSPC:
                raise IovaExhausted(what, read=read) from error
            raise DmaError(what, read=read, means="the kernel does not accept this mapping", remedy="look at the kernel log") from error

    @abstractmethod
    def _map(self, vaddr: int, iova: int, size: int) -> None: ...

    @abstractmethod
    def unmap(self, iova: int, size: int) -> None:
        """Take a mapping back, whole."""

    def reset_groups(self) -> list[int]:
        """Descriptors that show the kernel, when it resets a whole bus, that everything on it is ours."""
        return []

    def close(self) -> None:
        """Close the device and give its IOMMU back. Closing twice is allowed."""
        self._stack.close()

    # --- helpers ---

    def _node(self, path: Path, means: str, remedy: str) -> int:
        """Open a device node; its descriptor is closed with the space."""
        try:
            descriptor = self._calls.open(path)
        except OSError as error:
            raise self._node_error(path, error.errno or 0, means, remedy) from error
        self._stack.callback(self._calls.close, descriptor)
        return descriptor

    def _node_error(self, path: Path, number: int, means: str, remedy: str) -> TghwError:
        what, read = f"opening {path} for {self.address}", os.strerror(number)
        if number == errno.EBUSY:
            holders = holders_of([f"/dev/{path.relative_to(self._host.dev)}"], self._host)
            who = ", ".join(map(str, holders)) or "a process that cannot be seen from here"
            return DeviceBusy(f"{path} is held by {who}", read=read, means="VFIO gives a group, with all its functions, to one process at a time", holder=who)
        if number == errno.EACCES:
            return PermissionMissing(
                what, read=read, means="the node belongs to root", remedy=f"as root: chown $USER {path}, or a udev rule for the subsystem vfio (see docs/permissions.md)"
            )
        return VfioUnavailable(what, read=read, means=means, remedy=remedy)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """One request on the way to the device; its refusal becomes a typed error."""
        try:
            yield
        except OSError as error:
            raise self._refused(what, error.errno or 0) from error

    def _refused(self, what: str, number: int) -> TghwError:
        read = os.strerror(number)
        others = groups.blockers(self.group, self._host) if self.group else {}
        if others and number in (errno.EBUSY, errno.EPERM, errno.EINVAL):
            return self._not_viable(others, f"{what}: {read}")
        if number == errno.EBUSY:
            return DeviceBusy(f"{self.address} is held by a process that cannot be seen from here", read=f"{what}: {read}", holder="a process that cannot be seen from here")
        if number == errno.EPERM:
            return IommuRefused(f"{what} for {self.address}", read=read, means=REMAPPING_MEANS, remedy=REMAPPING_REMEDY)
        return IommuRefused(f"{what} for {self.address}", read=read)

    def _not_viable(self, others: dict[str, str], read: str) -> GroupNotViable:
        named = ", ".join(f"{address} ({driver})" for address, driver in others.items()) or "functions that are not listed"
        unbind = "; ".join(f"echo {address} > /sys/bus/pci/devices/{address}/driver/unbind" for address in others)
        return GroupNotViable(
            f"IOMMU group {self.group} of {self.address} has functions with kernel drivers: {named}", read=read, remedy=f"as root: {unbind}" if unbind else ""
        )

    def _addresses(self, allowed: list[Range], page_sizes: int) -> IovaSpace:
        """The device addresses that may be used, in units of the smallest page that IOMMU and CPU share."""
        page = max(page_sizes & -page_sizes, os.sysconf("SC_PAGESIZE"))
        excluded = [*reserved_ranges(groups.group_directory(self.group, self._host), self._host), *bus_ranges(self._host)]
        return IovaSpace(allowed or [WHOLE_SPACE], excluded, page=page)


class GroupSpace(IommuSpace):
    """The container of an IOMMU group: what every kernel since 3.6 has."""

    kind = "type 1"
    _types: tuple[IommuType, ...] = (IommuType.TYPE1V2, IommuType.TYPE1)
    _group_prefix = ""

    def _open(self) -> None:
        self._container = self._open_container()
        kind = self._supported()
        self._group = self._open_group()
        with self._step("asking the state of the IOMMU group"):
            status, _ = ask(self._calls, self._group, Vfio.GROUP_GET_STATUS, "group_status")
        if not status.flags & GroupFlag.VIABLE:
            raise self._not_viable(groups.blockers(self.group, self._host), f"group flags {status.flags:#x}")
        with self._step("adding the group to a container"):
            self._calls.ioctl(self._group, Vfio.GROUP_SET_CONTAINER, bytearray(self._container.to_bytes(4, "little")))
        with self._step(f"setting up IOMMU type {int(kind)}"):
            self._calls.ioctl(self._container, Vfio.SET_IOMMU, int(kind))
        with self._step("getting the device from its group"):
            self.device = self._calls.ioctl(self._group, Vfio.GROUP_GET_DEVICE_FD, bytearray(self.address.encode() + b"\0"))
        self._stack.callback(self._calls.close, self.device)
        self._describe()

    def _open_container(self) -> int:
        container = self._node(self._host.dev / "vfio" / "vfio", "the kernel's VFIO is not loaded", "as root: modprobe vfio-pci")
        with self._step("asking the version of VFIO"):
            version = self._calls.ioctl(container, Vfio.GET_API_VERSION)
        if version != API_VERSION:
            raise VfioUnavailable("the kernel's VFIO is another one", read=f"version {version}, known is {API_VERSION}", remedy="use a kernel with VFIO version 0")
        return container

    def _supported(self) -> IommuType:
        for kind in self._types:
            if self._calls.ioctl(self._container, Vfio.CHECK_EXTENSION, int(kind)):
                return kind
        raise VfioUnavailable(
            f"no IOMMU driver of VFIO serves {self.address}",
            read=f"types {', '.join(str(int(kind)) for kind in self._types)} are not offered",
            means="the module that connects VFIO with the IOMMU is not loaded",
            remedy="as root: modprobe vfio_iommu_type1",
        )

    def _open_group(self) -> int:
        return self._node(
            self._host.dev / "vfio" / f"{self._group_prefix}{self.group}",
            "no function of the group is bound to vfio-pci, or the node was not made",
            "bind the function to vfio-pci; in a container: pass the node in",
        )

    def _describe(self) -> None:
        """Learn which addresses the IOMMU translates."""
        with self._step("asking what the IOMMU can do"):
            info, data = ask(self._calls, self._container, Container.IOMMU_GET_INFO, "iommu_info", room=LAYOUT.sizeof("struct cap_ranges") + 16 * ROOM_FOR_RANGES)
        ranges = pairs_of(data, info.cap_offset, CAP_IOVA_RANGES) if info.flags & INFO_CAPS else []
        self.iova = self._addresses(ranges, info.page_sizes if info.flags & INFO_PAGE_SIZES else 0)

    def _map(self, vaddr: int, iova: int, size: int) -> None:
        ask(self._calls, self._container, Container.IOMMU_MAP_DMA, "dma_map", flags=MapFlag.READ | MapFlag.WRITE, vaddr=vaddr, iova=iova, size=size)

    def unmap(self, iova: int, size: int) -> None:
        done, _ = ask(self._calls, self._container, Container.IOMMU_UNMAP_DMA, "dma_unmap", iova=iova, size=size)
        if done.size != size:
            raise DmaError(f"taking back {size:#x} bytes at device address {iova:#x}", read=f"{done.size:#x} bytes were mapped")

    def reset_groups(self) -> list[int]:
        return [self._group]


class NoIommuSpace(GroupSpace):
    """VFIO without an IOMMU: interrupts and resets, but device addresses are physical and nothing is protected. Taints the kernel."""

    kind = "no IOMMU"
    _types = (IommuType.NOIOMMU,)
    _group_prefix = NOIOMMU_PREFIX

    def _describe(self) -> None:
        """There is nothing to learn: no address is translated."""

    def _node_error(self, path: Path, number: int, means: str, remedy: str) -> TghwError:
        if number == errno.EPERM:
            return PermissionMissing(
                f"opening {path} for {self.address}", read=os.strerror(number), means="VFIO without an IOMMU needs CAP_SYS_RAWIO", remedy="run as root, or grant CAP_SYS_RAWIO"
            )
        return super()._node_error(path, number, means, remedy)


class IommufdSpace(IommuSpace):
    """The device's own node and an address space of /dev/iommu: kernels since 6.6."""

    kind = "iommufd"

    def _open(self) -> None:
        name = device_node(self.address, self._host)
        self._iommu = self._node(self._host.dev / "iommu", "the kernel's iommufd is not loaded", "as root: modprobe iommufd")
        self.device = self._node(
            self._host.dev / "vfio" / "devices" / name,
            "the function is not bound to vfio-pci, or the kernel offers no nodes of single devices",
            "bind the function to vfio-pci, or use the group (mode type1)",
        )
        with self._step("binding the device to iommufd"):
            ask(self._calls, self.device, Vfio.DEVICE_BIND_IOMMUFD, "bind_iommufd", iommufd=self._iommu)
        with self._step("making an address space"):
            made, _ = ask(self._calls, self._iommu, Iommufd.IOAS_ALLOC, "ioas_alloc")
        self._ioas = int(made.out_ioas)
        with self._step("attaching the device to its address space"):
            ask(self._calls, self.device, Vfio.DEVICE_ATTACH_IOMMUFD_PT, "attach", pt_id=self._ioas)
        self.iova = self._addresses(*self._ranges())

    def _ranges(self) -> tuple[list[Range], int]:
        """(address ranges that all attached devices reach, alignment of mappings)."""
        count = ROOM_FOR_RANGES
        while True:
            room = LAYOUT.ffi.new("struct range[]", count)
            pointer = int(LAYOUT.ffi.cast("uintptr_t", room))
            try:
                found, _ = ask(self._calls, self._iommu, Iommufd.IOAS_IOVA_RANGES, "ioas_ranges", ioas=self._ioas, count=count, pointer=pointer)
            except OSError as error:
                if error.errno == errno.EMSGSIZE and count < MOST_RANGES:
                    count *= 8
                    continue
                raise self._refused("asking which addresses the IOMMU translates", error.errno or 0) from error
            return [(room[number].start, room[number].last) for number in range(found.count)], int(found.alignment)

    def _map(self, vaddr: int, iova: int, size: int) -> None:
        flags = IoasMapFlag.FIXED_IOVA | IoasMapFlag.WRITEABLE | IoasMapFlag.READABLE
        ask(self._calls, self._iommu, Iommufd.IOAS_MAP, "ioas_map", flags=flags, ioas=self._ioas, vaddr=vaddr, length=size, iova=iova)

    def unmap(self, iova: int, size: int) -> None:
        ask(self._calls, self._iommu, Iommufd.IOAS_UNMAP, "ioas_unmap", ioas=self._ioas, iova=iova, length=size)


SPACES: dict[str, type[IommuSpace]] = {"iommufd": IommufdSpace, "type1": GroupSpace, "noiommu": NoIommuSpace}


def device_node(address: str, host: HostFiles = HOST) -> str:
    """Name of the function's own VFIO node ("vfio3"), "" when it has none."""
    directory = function_directory(address, host) / "vfio-dev"
    return next((path.name for path in sorted(directory.iterdir())), "") if directory.is_dir() else ""


def mode_of(address: str, host: HostFiles = HOST) -> str:
    """How a function that vfio-pci has can be opened here: by its own node where both nodes may be used, else through its group.

    Raises VfioUnavailable for a function in no IOMMU group.
    """
    node = device_node(address, host)
    if node and host.may_use(host.dev / "iommu") and host.may_use(host.dev / "vfio" / "devices" / node):
        return "iommufd"
    group = groups.group_of(address, host)
    if not group:
        raise VfioUnavailable(
            f"{address} is in no IOMMU group",
            read=f"no iommu_group of {address}",
            means="the IOMMU is off or the machine has none, and VFIO's mode without one is not switched on",
            remedy="switch the IOMMU on in the firmware setup and boot with intel_iommu=on (AMD: on by default); "
            "without one, as root: echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
        )
    return "noiommu" if (host.dev / "vfio" / f"{NOIOMMU_PREFIX}{group}").exists() else "type1"
