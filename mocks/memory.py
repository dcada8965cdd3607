"""Memory of a simulated machine: the host's RAM with its bus addresses, and large sparse ranges for devices.

A device reaches host RAM by bus address, page by page. Pages that lie side by side for the CPU never do so for the device: their
bus addresses are shuffled and have gaps, so that whoever treats a page list as one range hits an address that nobody answers.
"""

from __future__ import annotations

import logging
import random
from typing import Any

from hw.errors import DmaError
from hw.mmio import LocalMmio
from hw.pci.device import DMA_PAGE, DmaMemory

log = logging.getLogger(__name__)

PAGE_SHIFT = 12
PAGE_MASK = DMA_PAGE - 1
FIRST_BUS_ADDRESS = 1 << 32
"""host RAM handed out for DMA starts above the 32-bit window"""
LARGEST_CONTIGUOUS = 2 << 20
"""what a host can promise as one physical range: a huge page (bytes)"""

_PROT_READ_WRITE = 0x3
_MAP_PRIVATE = 0x02
_MAP_FIXED = 0x10
_MAP_ANONYMOUS = 0x20
_MAP_NORESERVE = 0x4000
_MADV_DONTNEED = 4

_libc: Any = None
_ffi: Any = None


def _c() -> tuple[Any, Any]:
    """(ffi, libc) with the memory calls that Python's mmap module does not offer."""
    global _libc, _ffi
    if _libc is None:
        import cffi

        _ffi = cffi.FFI()
        _ffi.cdef(
            """
            void *mmap(void *address, size_t length, int protection, int flags, int fd, int64_t offset);
            int munmap(void *address, size_t length);
            int madvise(void *address, size_t length, int advice);
            int memfd_create(const char *name, unsigned int flags);
            """
        )
        _libc = _ffi.dlopen(None)
    return _ffi, _libc


class SparseMemory:
    """A large range of this process's address space that costs real memory only where it was touched. Reads as zero until written."""

    address = 0

    def __init__(self, size: int) -> None:
        ffi, libc = _c()
        address = libc.mmap(ffi.NULL, size, _PROT_READ_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
        if int(ffi.cast("intptr_t", address)) == -1:
            raise DmaError(f"reserving {size:#x} bytes of address space for a simulated device", read=f"errno {ffi.errno}")
        self.address = int(ffi.cast("uintptr_t", address))
        self.size = size

    def discard(self, offset: int, size: int) -> None:
        """Forget the content of whole pages: they read as zero again (or as the file below them, where one is mapped)."""
        ffi, libc = _c()
        libc.madvise(ffi.cast("void *", self.address + offset), size, _MADV_DONTNEED)

    def map_file(self, offset: int, size: int, fd: int, file_offset: int = 0) -> None:
        """Let a part show a file's content; writes stay private to this memory."""
        ffi, libc = _c()
        address = ffi.cast("void *", self.address + offset)
        mapped = libc.mmap(address, size, _PROT_READ_WRITE, _MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE, fd, file_offset)
        if mapped != address:
            raise DmaError(f"mapping noise at {offset:#x} of a simulated device's memory", read=f"errno {ffi.errno}")

    def view(self, offset: int, size: int, name: str) -> LocalMmio:
        return LocalMmio(self.address + offset, size, owner=self, name=name)

    def __del__(self) -> None:
        if _libc is not None and self.address:
            _libc.munmap(_ffi.cast("void *", self.address), self.size)
            self.address = 0


def anonymous_file(name: str) -> int:
    """A file descriptor of a nameless file in memory."""
    _, libc = _c()
    fd = int(libc.memfd_create(name.encode(), 1))
    if fd < 0:
        raise DmaError("making a nameless file in memory")
    return fd


class HostRam:
    """The host's memory as devices see it. Freed pages stay inside this arena: a stale device address can never reach Python's own memory."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.errors: list[tuple[str, int, int]] = []
        """accesses that nobody answered: ("read" or "write", bus address, bytes)"""
        self._arena = SparseMemory(size)
        self._pages: dict[int, int] = {}
        """bus page number -> host address"""
        self._next_bus_page = FIRST_BUS_ADDRESS >> PAGE_SHIFT
        self._free: list[tuple[int, int]] = [(0, size)]
        """(offset, size) in the arena, ascending"""
        self._random = random.Random(seed)

    def allocate(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Zeroed memory in whole pages. Raises DmaError when there is none, or when more is wanted in one piece than a host has."""
        length = -(-max(size, 1) // DMA_PAGE) * DMA_PAGE
        if contiguous and length > LARGEST_CONTIGUOUS:
            raise DmaError(f"{length:#x} bytes in one physical piece", read=f"the largest piece is a huge page of {LARGEST_CONTIGUOUS:#x} bytes")
        offset = self._take(length)
        bus_pages = self._bus_pages(length // DMA_PAGE, contiguous)
        host = self._arena.address + offset
        self._pages.update((page, host + position * DMA_PAGE) for position, page in enumerate(bus_pages))
        released = False

        def release() -> None:
            nonlocal released
            if released:
                return
            released = True
            for page in bus_pages:
                del self._pages[page]
            self._arena.discard(offset, length)
            self._give_back(offset, length)

        return DmaMemory(self._arena.view(offset, length, "host memory"), [page << PAGE_SHIFT for page in bus_pages], release)

    def host_pointer(self, address: int, write: bool = False) -> tuple[int, int] | None:
        """(address in this process, bytes to the end of the page) of a bus address, or None where nobody answers."""
        page = self._pages.get(address >> PAGE_SHIFT)
        if page is None:
            return None
        inside = address & PAGE_MASK
        return page + inside, DMA_PAGE - inside

    def dma_read(self, address: int, size: int) -> bytes:
        """What a device reads. All ones where nobody answers (unsupported request), counted in `errors`."""
        parts = []
        while size:
            length = min(size, DMA_PAGE - (address & PAGE_MASK))
            place = self.host_pointer(address)
            if place is None:
                self._unanswered("read", address, length)
                parts.append(b"\xff" * length)
            else:
                parts.append(bytes(_c()[0].buffer(_c()[0].cast("char *", place[0]), length)))
            address += length
            size -= length
        return b"".join(parts)

    def dma_write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """What a device writes. Vanishes where nobody answers, counted in `errors`."""
        position = 0
        raw = bytes(data)
        while position < len(raw):
            length = min(len(raw) - position, DMA_PAGE - (address & PAGE_MASK))
            place = self.host_pointer(address)
            if place is None:
                self._unanswered("write", address, length)
            else:
                _c()[0].memmove(_c()[0].cast("char *", place[0]), raw[position : position + length], length)
            address += length
            position += length

    def _unanswered(self, kind: str, address: int, size: int) -> None:
        self.errors.append((kind, address, size))
        log.warning("DMA %s of %d bytes at bus address %#x: unsupported request", kind, size, address)

    def _bus_pages(self, count: int, contiguous: bool) -> list[int]:
        first = self._next_bus_page
        if contiguous:
            align = 1 << (count - 1).bit_length()
            first = -(-first // align) * align
            self._next_bus_page = first + count + 1
            return list(range(first, first + count))
        self._next_bus_page = first + 2 * count
        pages = list(range(first, first + 2 * count, 2))
        self._random.shuffle(pages)
        return pages

    def _take(self, length: int) -> int:
        for position, (offset, size) in enumerate(self._free):
            if size >= length:
                if size == length:
                    del self._free[position]
                else:
                    self._free[position] = (offset + length, size - length)
                return offset
        raise DmaError(f"{length:#x} bytes of memory for a device", read=f"the simulated host has {self.size:#x} bytes")

    def _give_back(self, offset: int, length: int) -> None:
        self._free.append((offset, length))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged
