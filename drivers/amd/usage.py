"""How much video memory is in use, found out from the page tables that the GPU itself walks. Reads only.

Another process may be changing the tables meanwhile: an entry that leads outside the memory is counted as broken and not followed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drivers.amd.page_entries import ADDRESS_MASK, ENTRIES, ENTRY_SIZE, LEVELS, SHIFTS, SYSTEM, VALID, EntryFormat, Words

TABLE_BYTES = ENTRIES * ENTRY_SIZE


@dataclass(frozen=True)
class Usage:
    """mapped: bytes of video memory behind valid entries. tables: how many tables were read. broken: entries that lead nowhere."""

    mapped: int
    tables: int
    broken: int
    complete: bool
    """False: the time was up before all tables were read"""


def mapped_vram(
    read: Callable[[int, int], bytes], root: int, format: EntryFormat, vram_size: int, *, node_offset: int = 0, expired: Callable[[], bool] = lambda: False
) -> Usage:
    """Sum of the sizes of all valid leaves without the system bit below the table at `root` (offset in video memory).

    read(offset, bytes) reads video memory. node_offset: what entries have added to offsets (hives). expired: asked before each table.
    """
    waiting = [(root, 0)]
    seen = {root}
    mapped = broken = 0
    while waiting:
        if expired():
            return Usage(mapped, len(seen) - len(waiting), broken, False)
        offset, level = waiting.pop()
        entries = np.frombuffer(read(offset, TABLE_BYTES), "<u8")
        entries = entries[entries & np.uint64(VALID) != 0]
        leaves = _leaves(entries, level, format)
        mapped += int(np.count_nonzero(entries[leaves] & np.uint64(SYSTEM) == 0)) << SHIFTS[level]
        for pointer in (entries[~leaves] & np.uint64(ADDRESS_MASK)).tolist():
            table = pointer - node_offset
            if not 0 <= table <= vram_size - TABLE_BYTES:
                broken += 1
            elif table not in seen:
                seen.add(table)
                waiting.append((table, level + 1))
    return Usage(mapped, len(seen), broken, True)


def _leaves(entries: Words, level: int, format: EntryFormat) -> NDArray[np.bool_]:
    """Which of these valid entries map memory."""
    if level == LEVELS - 1:
        return np.ones(len(entries), np.bool_)
    mask, value = format.leaf_test[level]
    leaves: NDArray[np.bool_] = entries & np.uint64(mask) == np.uint64(value)
    return leaves
