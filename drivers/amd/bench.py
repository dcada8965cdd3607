"""Times of host-side work that grows with the size of buffers: filling page tables."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from drivers.amd.page_entries import GFX11, HOST, PAGE, VRAM
from drivers.amd.pagetables import VA_BASE, PageTables
from hw.alloc import Tlsf
from hw.mmio import LocalMmio

GIB = 1 << 30
_TABLE_MEMORY = 64 << 20
_MISALIGNED = 0x10_0000_1000
"""a physical address that allows only 4 KiB pages"""


def pagetable_bench(repeats: int = 3) -> dict[str, float | int]:
    """CPU seconds, best of `repeats`, to map and unmap with gfx11 tables in plain memory; and counts of the writes that this takes."""
    pages = [page * PAGE for page in range(GIB // PAGE)]
    random.Random(1).shuffle(pages)
    blocks = [(index * 2 << 21, 1 << 21) for index in range(16 * GIB >> 21)]
    cases: dict[str, tuple[int, Callable[[PageTables], None]]] = {
        "map_1gib_small_pages": (GIB, lambda tables: tables.map(VA_BASE, GIB, [(_MISALIGNED, GIB)], VRAM)),
        "map_1gib_scattered_host_pages": (GIB, lambda tables: tables.map_pages(VA_BASE, pages, HOST)),
        "map_16gib_small_pages": (16 * GIB, lambda tables: tables.map(VA_BASE, 16 * GIB, [(_MISALIGNED, 16 * GIB)], VRAM)),
        "map_16gib_scattered_2mib": (16 * GIB, lambda tables: tables.map(VA_BASE, 16 * GIB, blocks, VRAM)),
        "map_16gib_contiguous": (16 * GIB, lambda tables: tables.map(VA_BASE, 16 * GIB, [(0, 16 * GIB)], VRAM)),
    }
    result: dict[str, float | int] = {}
    for name, (size, run) in cases.items():
        best_map = best_unmap = float("inf")
        for _ in range(repeats):
            tables, writes = _fresh_tables()
            start = time.process_time()
            run(tables)
            mapped = time.process_time()
            count = len(writes)
            tables.unmap(VA_BASE, size)
            best_map = min(best_map, mapped - start)
            best_unmap = min(best_unmap, time.process_time() - mapped)
        result[f"{name}_s"] = best_map
        result[f"{name}_writes"] = count
        result[f"un{name}_s"] = best_unmap
    return result


def _fresh_tables() -> tuple[PageTables, list[int]]:
    """Page tables in plain memory, and the sizes of the writes made to it."""
    memory = LocalMmio.anonymous(_TABLE_MEMORY, "table memory")
    allocator = Tlsf(_TABLE_MEMORY, granule=PAGE, name="table memory")
    writes: list[int] = []

    def write(offset: int, data: bytes) -> None:
        writes.append(len(data))
        memory.write(offset, data)

    def free(address: int) -> None:
        allocator.free(address)

    root = allocator.alloc(PAGE)
    tables = PageTables(GFX11, root=root, write=write, alloc_table=lambda: allocator.alloc(PAGE), free_table=free, invalidate=lambda: None)
    return tables, writes
