"""Memory of one GPU for buffers: virtual addresses, video memory, host memory, and the page tables that tie them together.

Video memory is divided into boot memory (bootmem.py), with a small BAR an area for page tables (they must stay reachable by the
CPU), general memory, and a part at the end that belongs to the card's firmware. Virtual addresses come from one window for all GPUs of
the process, so that an address means the same buffer on each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drivers.amd.bootmem import BOOT_SIZE, RESERVED_TOP, BootMemory
from drivers.amd.page_entries import BRIDGE_SRAM, GFX11, HOST, PAGE, PAGE_SHIFT, SHIFTS, VRAM, VRAM_UNCACHED, EntryFormat, Kind, fragment_within
from drivers.amd.pagetables import VA_BASE, VA_SIZE, PageTables
from hw.alloc import Tlsf
from hw.errors import BadFree, NotSupported, OutOfMemory, WrongPhase
from hw.mmio import Mmio
from hw.pci.device import PciDevice

log = logging.getLogger(__name__)

MIB = 1 << 20
LARGE_PAGE = 1 << SHIFTS[2]
"""2 MiB; pieces of at least this size are aligned to it, so that they are mapped with large pages"""
ROUND_TO_LARGE_FROM = 8 * MIB
"""buffers in video memory of at least this size are rounded up to large pages"""
MANAGED_PER_TABLE_BYTE = 512
"""bytes of memory that one byte of page tables maps with 4 KiB pages"""

_va_space: Tlsf | None = None


def va_space() -> Tlsf:
    """The window of virtual addresses that all GPUs of this process share."""
    global _va_space
    if _va_space is None:
        _va_space = Tlsf(VA_SIZE, base=VA_BASE, granule=PAGE, name="GPU virtual addresses")
    return _va_space


class MemoryDevice(Protocol):
    """What memory management needs of a GPU (drivers.amd.device.AmdDevice)."""

    pci: PciDevice
    vram_size: int
    booted: bool
    boot_memory: BootMemory

    @property
    def visible_vram(self) -> int: ...

    def vram_write(self, paddr: int, data: bytes) -> None: ...

    def vram_view(self, paddr: int, size: int) -> Mmio | None: ...

    def boot_alloc(self, size: int, align: int = PAGE, zero: bool = True) -> int: ...

    def flush_hdp(self) -> None: ...

    def invalidate_tlb(self) -> None: ...


@dataclass(eq=False)
class Allocation:
    """A mapped buffer."""

    va: int
    size: int
    """bytes, whole pages: at least what was asked for"""
    kind: Kind
    segments: tuple[tuple[int, int], ...]
    """(address, bytes): offsets in video memory, or bus addresses of host pages, in the order of the buffer"""
    view: Mmio | None
    """the CPU's window onto it, None where it has none"""
    release: Callable[[], None] = field(default=lambda: None, repr=False)


class MemoryManager:
    """Buffers of one GPU. Addresses and sizes are bytes."""

    def __init__(self, dev: MemoryDevice, format: EntryFormat = GFX11, *, reserved: int = RESERVED_TOP, node_offset: int = 0) -> None:
        self.dev = dev
        managed = dev.vram_size - reserved
        self.small_bar = dev.visible_vram < dev.vram_size
        """the CPU sees only the first part of video memory"""
        table_area = _round_up(managed // MANAGED_PER_TABLE_BYTE, MIB) if self.small_bar else 0
        start = BOOT_SIZE + table_area
        if managed < start + LARGE_PAGE:
            raise NotSupported(f"managing {dev.vram_size:#x} bytes of video memory", means=f"{reserved + start:#x} bytes are needed by the firmware and for booting alone")
        self.general = Tlsf(managed - start, base=start, granule=PAGE, name="video memory")
        self._table_area = Tlsf(table_area, base=BOOT_SIZE, granule=PAGE, name="page-table memory") if table_area else self.general
        self._live: set[Allocation] = set()
        self.tables = PageTables(
            format,
            root=dev.boot_memory.root_table,
            write=dev.vram_write,
            alloc_table=self._alloc_table,
            free_table=self._free_table,
            invalidate=lambda: dev.invalidate_tlb(),
            node_offset=node_offset,
        )

    # --- buffers --------------------------------------------------------------------------------------------------------

    def alloc(self, size: int, *, host: bool = False, contiguous: bool = False, uncached: bool = False, cpu_access: bool = False, zero: bool = True) -> Allocation:
        """A buffer of at least `size` bytes, mapped for this GPU.

        host: in system memory (zeroed). contiguous: in one physical piece (zeroed). uncached: not kept in the GPU's caches; system
        memory never is. cpu_access: the CPU needs a view; where the BAR is small, or the buffer uncached, that means system memory.
        Other video memory has undefined content, also with zero=False. Raises OutOfMemory, DmaError, WrongPhase, changing nothing.
        """
        if size <= 0:
            raise ValueError(f"cannot allocate {size} bytes")
        if not self.dev.booted:
            raise WrongPhase(f"a buffer of {size:#x} bytes was asked for", read="the GPU is not booted")
        if self.dev.pci.local and (host or (cpu_access and (self.small_bar or uncached))):
            return self._alloc_host(_round_up(size, PAGE), contiguous)
        size = _round_up(size, LARGE_PAGE if size >= ROUND_TO_LARGE_FROM else PAGE)
        cpu_access = cpu_access or host  # behind a bridge the device reaches no host memory: its own, with a view, takes the place
        return self._alloc_vram(size, contiguous or cpu_access, VRAM_UNCACHED if uncached else VRAM, cpu_access, zero)

    def map_host(self, pages: Sequence[int], view: Mmio | None = None, kind: Kind = HOST) -> Allocation:
        """Map memory on the bus that someone else owns, given by the addresses of its 4 KiB pages. free() only unmaps it.

        Raises MappingError, OutOfMemory, changing nothing.
        """
        size = len(pages) * PAGE
        va = self._alloc_va(size)
        try:
            self.tables.map_pages(va, pages, kind)
        except BaseException:
            va_space().free(va)
            raise
        return self._keep(Allocation(va, size, kind, tuple((page, PAGE) for page in pages), view))

    def map_bridge(self, pieces: Sequence[tuple[int, int]], align: int = PAGE) -> Allocation:
        """Map memory of a bridge, (bus address, bytes) one after the other, also while booting. Raises MappingError, OutOfMemory, changing nothing."""
        size = sum(length for _, length in pieces)
        va = va_space().alloc(size, align)
        try:
            self.tables.map(va, size, pieces, BRIDGE_SRAM)
        except BaseException:
            va_space().free(va)
            raise
        return self._keep(Allocation(va, size, BRIDGE_SRAM, tuple(pieces), None))

    def free(self, allocation: Allocation) -> None:
        """Unmap a buffer and give its memory back. Nothing on the GPU may use it any more. Raises BadFree when it is not allocated."""
        if allocation not in self._live:
            raise BadFree(f"the buffer at {allocation.va:#x} is not allocated on this GPU")
        self.tables.unmap(allocation.va, allocation.size)
        self._forget(allocation)
        self._free_blocks(allocation)

    def close(self) -> None:
        """Give back what this process holds, addresses and host memory, without touching the GPU, which must be idle."""
        for allocation in list(self._live):
            self._forget(allocation)

    @property
    def available(self) -> int:
        """Bytes of video memory that are free, in one piece or many."""
        return self.general.available

    def _forget(self, allocation: Allocation) -> None:
        self._live.discard(allocation)
        va_space().free(allocation.va)
        allocation.release()

    def _keep(self, allocation: Allocation) -> Allocation:
        self._live.add(allocation)
        return allocation

    def _alloc_va(self, size: int) -> int:
        """Addresses aligned to the largest power of two in the size, so that large buffers get large pages."""
        return va_space().alloc(size, PAGE << fragment_within(0, size))

    # --- system memory --------------------------------------------------------------------------------------------------

    def _alloc_host(self, size: int, contiguous: bool) -> Allocation:
        memory = self.dev.pci.alloc_dma(size, contiguous=contiguous)
        try:
            allocation = self.map_host(memory.pages[: size >> PAGE_SHIFT], memory.window.view(0, size))
        except BaseException:
            memory.release()
            raise
        allocation.release = memory.release
        return allocation

    # --- video memory ---------------------------------------------------------------------------------------------------

    def _alloc_vram(self, size: int, contiguous: bool, kind: Kind, cpu_access: bool, zero: bool) -> Allocation:
        va = self._alloc_va(size)
        blocks: list[tuple[int, int]] = []
        try:
            if contiguous:
                blocks = [(self._alloc_piece(size), size)]
            else:
                self._gather(size, blocks)
            view = self.dev.vram_view(*blocks[0]) if cpu_access else None
            if cpu_access and view is None:
                raise NotSupported(
                    f"a buffer of {size:#x} bytes of video memory that the CPU can reach",
                    read=f"it would lie at {blocks[0][0]:#x}, the CPU sees {self.dev.visible_vram:#x} bytes",
                    means="this way of reaching the GPU offers neither system memory nor a large enough BAR",
                )
            self.tables.map(va, size, blocks, kind)
        except BaseException:
            for address, _ in blocks:
                self.general.free(address)
            va_space().free(va)
            raise
        if contiguous and zero:
            self._zero(*blocks[0])
        return self._keep(Allocation(va, size, kind, tuple(blocks), view))

    def _alloc_piece(self, size: int) -> int:
        return self.general.alloc(size, LARGE_PAGE if size >= LARGE_PAGE else PAGE)

    def _gather(self, size: int, blocks: list[tuple[int, int]]) -> None:
        """Collect pieces for a buffer: always the largest power of two that is still needed and to be had. Raises OutOfMemory."""
        left = size
        power = size.bit_length() - 1
        while left:
            power = min(power, left.bit_length() - 1)
            if power < PAGE_SHIFT:
                raise OutOfMemory(f"a buffer of {size:#x} bytes of video memory", read=f"{left:#x} bytes of it are missing; {self.general.size:#x} are managed")
            try:
                blocks.append((self._alloc_piece(1 << power), 1 << power))
            except OutOfMemory:
                power -= 1
                continue
            left -= 1 << power

    def _free_blocks(self, allocation: Allocation) -> None:
        if allocation.kind.own:
            for address, _ in allocation.segments:
                self.general.free(address)

    def _zero(self, address: int, size: int) -> None:
        zeros = bytes(min(size, MIB))
        for start in range(0, size, MIB):
            self.dev.vram_write(address + start, zeros[: size - start])
        self.dev.flush_hdp()

    def _alloc_table(self) -> int:
        """4 KiB for a page table: boot memory while booting, then general memory, or the table area of a small BAR."""
        if not self.dev.booted:
            return self.dev.boot_alloc(PAGE, zero=False)
        return self._table_area.alloc(PAGE)

    def _free_table(self, address: int) -> None:
        if address >= BOOT_SIZE:  # boot memory is never given back
            self._table_area.free(address)


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
