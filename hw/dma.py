"""Host memory that a device can reach by its physical address: locked pages whose frames the kernel tells through pagemap.

This needs CAP_SYS_ADMIN (to see frame numbers), an IOMMU that does not translate for the device, and a kernel that leaves locked
pages where they are. Each is checked before memory is handed out; a page whose frame is unknown is never given to a device.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
import struct
from collections.abc import Callable
from functools import cache

from hw.errors import DmaError, HugepagesExhausted, IommuActive, MemlockLimit, MemoryMovable, NotSupported, PagemapHidden
from hw.host import HOST, HostFiles
from hw.mmio import LocalMmio
from hw.pci.device import DMA_PAGE, DmaMemory

MAP_LOCKED = 0x2000
MAP_POPULATE = 0x8000
MAP_HUGETLB = 0x40000
"""linux/mman.h; the mmap module of older Pythons lacks the names"""
HUGEPAGE = 2 << 20
"""bytes; the largest piece that is contiguous for certain"""

PAGEMAP_ENTRY = 8
FRAME_MASK = (1 << 55) - 1
SWAPPED = 1 << 62
PRESENT = 1 << 63
"""Bits of a /proc/self/pagemap entry (Linux documentation, admin-guide/mm/pagemap)."""

TRANSLATING = ("DMA", "DMA-FQ", "blocked")
"""IOMMU group types for which a device address is not a physical one"""

PagemapReader = Callable[[int, int], list[int]]
"""(virtual address, number of host pages) -> their pagemap entries"""


def check_iommu(iommu_type: str, address: str) -> None:
    """Raise IommuActive when the IOMMU group type of this device says that its addresses are translated."""
    if iommu_type in TRANSLATING:
        raise IommuActive(f"{address} cannot be given physical addresses", read=f"IOMMU group type {iommu_type}")


class PagemapMemory:
    """Allocates locked host memory with known physical addresses."""

    def __init__(self, host: HostFiles = HOST, pagemap: PagemapReader | None = None) -> None:
        self._host = host
        self._pagemap = pagemap or self.read_pagemap
        self._page = mmap.PAGESIZE

    def alloc(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Zeroed memory of at least `size` bytes, rounded up to pages. contiguous: one physical range, at most 2 MiB.

        Raises MemoryMovable, MemlockLimit, HugepagesExhausted, PagemapHidden, DmaError.
        """
        if size <= 0:
            raise ValueError(f"cannot allocate {size} bytes")
        if contiguous and size > self._page:
            return self._alloc_hugepage(size)
        self._check_compaction()
        length = -(-size // self._page) * self._page
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_LOCKED | MAP_POPULATE)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EPERM):
                raise MemlockLimit(f"locking {length:#x} bytes", read=f"{os.strerror(error.errno)}; limit {memlock_limit()}") from error
            raise DmaError(f"allocating {length:#x} bytes", read=os.strerror(error.errno or 0), remedy="free memory on this host") from error
        return self._finish(memory, length)

    def _alloc_hugepage(self, size: int) -> DmaMemory:
        if size > HUGEPAGE:
            raise DmaError(
                f"{size:#x} bytes in one physical piece",
                means=f"pieces of more than {HUGEPAGE:#x} bytes are contiguous only by chance",
                remedy="ask for memory that need not be contiguous; every page's address is listed",
            )
        try:
            memory = mmap.mmap(-1, HUGEPAGE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE)
        except OSError as error:
            raise HugepagesExhausted(f"{size:#x} contiguous bytes", read=f"{os.strerror(error.errno or 0)}; {self._free_hugepages()}") from error
        return self._finish(memory, HUGEPAGE)

    def _finish(self, memory: mmap.mmap, length: int) -> DmaMemory:
        """Learn the frames before anything touches the memory: a page that the kernel could not provide must not be accessed."""
        memory.madvise(mmap.MADV_DONTFORK)  # a child's copy-on-write could move the parent's page
        window = LocalMmio.over(memory, "DMA memory", revocable=True)
        entries = self._pagemap(window.address, length // self._page)
        pages = [address for entry in entries for address in self._addresses(entry)]
        return DmaMemory(window, pages, window.revoke)

    def _addresses(self, entry: int) -> list[int]:
        """Device-visible 4 KiB pages of one host page."""
        if entry & SWAPPED or not entry & PRESENT:
            raise DmaError(
                "a page of freshly allocated memory is not in RAM",
                read=f"pagemap entry {entry:#018x}",
                means="the host ran out of memory, or of 2 MiB pages, while providing it",
                remedy="free memory on this host, or enlarge the pool of 2 MiB pages (/proc/sys/vm/nr_hugepages)",
            )
        frame = entry & FRAME_MASK
        if frame == 0:
            raise PagemapHidden("the physical address of a page is hidden", read=f"pagemap entry {entry:#018x}, frame 0")
        return [frame * self._page + offset for offset in range(0, self._page, DMA_PAGE)]

    def read_pagemap(self, address: int, count: int) -> list[int]:
        """Entries of this process's pages from a virtual address on. Raises PagemapHidden."""
        path = self._host.proc / "self" / "pagemap"
        try:
            descriptor = self._host.open(path, os.O_RDONLY)
        except OSError as error:
            raise PagemapHidden(f"opening {path}", read=os.strerror(error.errno or 0)) from error
        try:
            data = os.pread(descriptor, count * PAGEMAP_ENTRY, address // self._page * PAGEMAP_ENTRY)
        finally:
            os.close(descriptor)
        if len(data) != count * PAGEMAP_ENTRY:
            raise PagemapHidden(f"reading {path}", read=f"{len(data)} of {count * PAGEMAP_ENTRY} bytes")
        return list(struct.unpack(f"<{count}Q", data))

    def _check_compaction(self) -> None:
        path = self._host.proc / "sys" / "vm" / "compact_unevictable_allowed"
        value = self._host.text(path)
        if value not in (None, "0"):
            raise MemoryMovable("locked memory may be moved", read=f"{path} is {value}")

    def _free_hugepages(self) -> str:
        lines = (self._host.text(self._host.proc / "meminfo") or "").splitlines()
        return next((" ".join(line.split()) for line in lines if line.startswith("HugePages_Free")), "no count in /proc/meminfo")


def memlock_limit() -> str:
    """How much memory this process may lock, in words."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"


SEQUENTIALLY_CONSISTENT = 5
"""memory_order_seq_cst of C11"""
ORDERED_MACHINES = ("x86_64", "AMD64", "i686")


def memory_fence() -> None:
    """Make earlier stores to DMA memory visible before later stores to device registers. Raises NotSupported where it cannot.

    x86 keeps stores in program order, also from write-back to uncached memory, so nothing is needed there.
    """
    if platform.machine() not in ORDERED_MACHINES:
        _fence_function()(SEQUENTIALLY_CONSISTENT)


@cache
def _fence_function() -> Callable[[int], None]:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef("void atomic_thread_fence(int);")
    try:
        library = ffi.dlopen("libatomic.so.1")
        function: Callable[[int], None] = library.atomic_thread_fence
    except (OSError, AttributeError) as error:
        raise NotSupported(
            "a memory fence on this machine",
            read=f"{platform.machine()}: {error}",
            means="without one a device could be told about commands before they are in memory",
            remedy="install libatomic (Debian: libatomic1)",
        ) from error
    return function
