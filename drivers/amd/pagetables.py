"""Page tables of one GPU: mapping, unmapping, looking.

The tables live in video memory, which is slow or costly to read; this keeps its own copy and only ever writes. Entries are made and
written in runs: one write for each run of neighbouring entries, and one for neighbouring tables. Tables are written before
the entries that point to them, so that a running GPU never walks into an unfinished one.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from drivers.amd.page_entries import (
    ADDRESS_MASK,
    ENTRIES,
    ENTRY_SIZE,
    FRAGMENT_MAX,
    FRAGMENT_SHIFT,
    INDEX_BITS,
    LEVELS,
    PAGE,
    PAGE_SHIFT,
    SHIFTS,
    VALID,
    EntryFormat,
    Kind,
    Words,
    fragment_covering,
    fragments,
)
from drivers.amd.page_runs import Run, plan
from hw.errors import BusError, MappingError

log = logging.getLogger(__name__)

VA_BASE = 0x2000_0000_0000
"""where the window of GPU virtual addresses begins"""
VA_SIZE = 1 << 44


@dataclass(frozen=True, slots=True)
class Entry:
    """A valid leaf as a walk finds it."""

    va: int
    size: int
    """bytes that it maps"""
    level: int
    address: int
    """address part of the entry"""
    value: int


class _Table:
    """One table and the copy of its entries."""

    __slots__ = ("entries", "level", "number", "paddr", "used")

    def __init__(self, paddr: int, level: int, number: int, entries: Words) -> None:
        self.paddr = paddr
        self.level = level
        self.number = number
        """position in the window in units of what one table covers"""
        self.entries = entries
        self.used = 0
        """valid entries"""


@dataclass
class _Changes:
    """What has to be written: for each level, ranges of entries of its tables."""

    ranges: dict[int, list[tuple[_Table, int, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, table: _Table, start: int, end: int) -> None:
        found = self.ranges[table.level]
        if found and found[-1][0] is table and found[-1][2] == start:
            start = found.pop()[1]
        found.append((table, start, end))


class PageTables:
    """The page tables of VMID 0 of one GPU.

    root: offset in video memory of the root table, which clear() must zero before the GPU uses it.
    write(offset, bytes): stores to video memory. alloc_table() -> offset of 4 KiB for a table, content undefined; raises OutOfMemory.
    free_table(offset). invalidate(): makes writes visible and drops cached translations on all hubs.
    """

    def __init__(
        self,
        format: EntryFormat,
        *,
        root: int,
        write: Callable[[int, bytes], None],
        alloc_table: Callable[[], int],
        free_table: Callable[[int], None],
        invalidate: Callable[[], None],
        va_base: int = VA_BASE,
        va_size: int = VA_SIZE,
        node_offset: int = 0,
    ) -> None:
        self.format = format
        self.va_base = va_base
        self.va_size = va_size
        self.node_offset = node_offset
        """added to offsets of this GPU's video memory in entries; 0 unless it is in a hive"""
        self._write = write
        self._alloc_table = alloc_table
        self._free_table = free_table
        self._invalidate = invalidate
        self._root = _Table(root, 0, 0, np.zeros(ENTRIES, np.uint64))
        self._tables: list[dict[int, _Table]] = [{0: self._root}, {}, {}, {}]

    def clear(self) -> None:
        """Forget every mapping and zero the root table in video memory."""
        for level in range(1, LEVELS):
            for table in self._tables[level].values():
                self._free_table(table.paddr)
            self._tables[level] = {}
        self._root.entries = np.zeros(ENTRIES, np.uint64)
        self._root.used = 0
        self._write(self._root.paddr, self._root.entries.tobytes())
        self._invalidate()

    @property
    def table_count(self) -> int:
        """Tables in use, the root among them."""
        return sum(len(tables) for tables in self._tables)

    # --- mapping --------------------------------------------------------------------------------------------------------

    def map(self, va: int, size: int, segments: Sequence[tuple[int, int]], kind: Kind) -> None:
        """Map [va, va + size) to pieces of memory: (address, length) in order, lengths adding up to size, all whole pages.

        Raises MappingError or OutOfMemory, changing nothing: range outside the window, not whole pages, lengths that do not add up,
        addresses wider than the GPU's, or something mapped there already.
        """
        try:
            flat = np.fromiter(chain.from_iterable(segments), np.uint64, 2 * len(segments)).reshape(-1, 2)
        except (OverflowError, ValueError) as error:
            raise MappingError(f"mapping {size:#x} bytes at {va:#x}", read=f"segments that are not pairs of addresses and lengths: {error}") from error
        self._map(va, size, flat[:, 0], flat[:, 1], kind)

    def map_pages(self, va: int, pages: Sequence[int], kind: Kind) -> None:
        """Map 4 KiB pages, given by their addresses, one after the other from va on. Raises as map() does."""
        try:
            addresses = np.fromiter(pages, np.uint64, len(pages))
        except OverflowError as error:
            raise MappingError(f"mapping {len(pages)} pages at {va:#x}", read=f"a page address that is none: {error}") from error
        self._map(va, len(pages) * PAGE, addresses, np.full(len(pages), PAGE, np.uint64), kind)

    def _map(self, va: int, size: int, addresses: Words, lengths: Words, kind: Kind) -> None:
        what = f"mapping {size:#x} bytes of {kind.name} at {va:#x}"
        offset = self._check_range(what, va, size)
        self._check_segments(what, size, addresses, lengths, kind)
        if kind.own:
            addresses = addresses + np.uint64(self.node_offset)
        taken = next(self._leaf_runs(offset, offset + size), None)
        if taken is not None:
            at = self.va_base + (self._number(taken[0], taken[1]) << SHIFTS[taken[0].level])
            raise MappingError(what, read=f"{at:#x} is mapped already", means="two buffers were given overlapping addresses", remedy="unmap the first one before")
        runs = plan(offset, addresses, lengths)
        new = self._make_tables(runs)
        changes = _Changes()
        for run in runs:
            flags = np.uint64(self.format.leaf_flags(run.level, kind))
            hints = fragments(run.first, run.addresses, run.level).astype(np.uint64) << np.uint64(FRAGMENT_SHIFT)
            self._fill(run, run.addresses | hints | flags, new, changes)
        self._link(new, changes)
        try:
            self._store(changes)
            self._invalidate()
        except BaseException:
            self._take_back(offset, size)
            raise

    def _take_back(self, offset: int, size: int) -> None:
        """A mapping that may not have reached the GPU is none: nothing uses it yet. What can still be written is written."""
        changes, empty = self._clear(list(self._leaf_runs(offset, offset + size)))
        with suppress(BusError):
            self._store(changes)
        for table in empty:
            self._free_table(table.paddr)

    def _clear(self, runs: list[tuple[_Table, int, int]]) -> tuple[_Changes, list[_Table]]:
        """Take leaves out of the copies of their tables. Returns what to write, and the tables that are empty now."""
        changes = _Changes()
        empty: list[_Table] = []
        for table, first, last in runs:
            self._shrink_fragments(table, first, last, changes)
            self._remove(table, first, last, changes, empty)
        return changes, empty

    def _check_range(self, what: str, va: int, size: int) -> int:
        """Offset of va in the window."""
        if size <= 0 or (va | size) % PAGE:
            raise MappingError(what, means=f"ranges are whole pages of {PAGE} bytes")
        if va < self.va_base or va + size > self.va_base + self.va_size:
            raise MappingError(what, read=f"window {self.va_base:#x}..{self.va_base + self.va_size:#x}", means="the range lies outside the window that the GPU translates")
        return va - self.va_base

    def _check_segments(self, what: str, size: int, addresses: Words, lengths: Words, kind: Kind) -> None:
        if not lengths.all() or ((addresses | lengths) & np.uint64(PAGE - 1)).any():
            raise MappingError(what, means=f"every piece of memory is whole pages of {PAGE} bytes at a multiple of {PAGE}")
        limit = (1 << self.format.address_bits) - (self.node_offset if kind.own else 0)
        too_wide = (lengths > limit) | (addresses > limit - np.minimum(lengths, np.uint64(limit)))
        if too_wide.any():
            first = int(np.argmax(too_wide))
            raise MappingError(
                what,
                read=f"a piece of {int(lengths[first]):#x} bytes at {int(addresses[first]):#x}",
                means=f"addresses of {self.format.name} have {self.format.address_bits} bits: the GPU cannot reach it",
                remedy="host memory below that limit is needed: check the IOMMU's settings",
            )
        total = int(lengths.sum())
        if total != size:
            raise MappingError(what, read=f"pieces of memory of {total:#x} bytes in all", means="the pieces do not add up to the range")

    def _make_tables(self, runs: list[Run]) -> dict[_Table, None]:
        """The tables that the runs need and that are not there, linked to nothing yet. Raises OutOfMemory, keeping none."""
        new: dict[_Table, None] = {}
        try:
            for run in runs:
                last = (run.first + len(run.addresses) - 1) >> INDEX_BITS
                for number in range(run.first >> INDEX_BITS, last + 1):
                    if number not in self._tables[run.level]:
                        self._make_path(run.level, number, new)
        except BaseException:
            for table in reversed(new):
                del self._tables[table.level][table.number]
                self._free_table(table.paddr)
            raise
        return new

    def _make_path(self, level: int, number: int, new: dict[_Table, None]) -> None:
        for upper in range(1, level + 1):
            position = number >> INDEX_BITS * (level - upper)
            if position not in self._tables[upper]:
                table = _Table(self._alloc_table(), upper, position, np.zeros(ENTRIES, np.uint64))
                self._tables[upper][position] = table
                new[table] = None

    def _fill(self, run: Run, values: Words, new: dict[_Table, None], changes: _Changes) -> None:
        """Put leaves into the copies of their tables. New tables are written whole later, so only old ones note a change."""
        done = 0
        while done < len(values):
            position = run.first + done
            table = self._tables[run.level][position >> INDEX_BITS]
            start = position & ENTRIES - 1
            count = min(ENTRIES - start, len(values) - done)
            if count == ENTRIES:
                table.entries = values[done : done + count]
            else:
                table.entries[start : start + count] = values[done : done + count]
            table.used += count
            if table not in new:
                changes.add(table, start, start + count)
            done += count

    def _link(self, new: dict[_Table, None], changes: _Changes) -> None:
        for table in new:
            changes.add(table, 0, ENTRIES)
            parent, index = self._parent(table)
            parent.entries[index] = table.paddr + self.node_offset | self.format.table_flags(parent.level)
            parent.used += 1
            if parent not in new:
                changes.add(parent, index, index + 1)

    def _parent(self, table: _Table) -> tuple[_Table, int]:
        return self._tables[table.level - 1][table.number >> INDEX_BITS], table.number & ENTRIES - 1

    def _store(self, changes: _Changes) -> None:
        """Write what changed, lowest tables first; ranges that are neighbours in video memory go out as one write."""
        for level in reversed(range(LEVELS)):
            begin, end, pieces = 0, 0, list[bytes]()
            for table, first, last in changes.ranges.get(level, ()):
                start = table.paddr + first * ENTRY_SIZE
                if pieces and start != end:
                    self._write(begin, b"".join(pieces))
                    pieces = []
                if not pieces:
                    begin = start
                pieces.append(table.entries[first:last].tobytes())
                end = table.paddr + last * ENTRY_SIZE
            if pieces:
                self._write(begin, b"".join(pieces))

    # --- unmapping ------------------------------------------------------------------------------------------------------

    def unmap(self, va: int, size: int) -> None:
        """Unmap [va, va + size), all of which must be mapped, in whole pages of the sizes in use.

        Tables that become empty are given back. Raises MappingError, changing nothing.
        """
        what = f"unmapping {size:#x} bytes at {va:#x}"
        offset = self._check_range(what, va, size)
        runs = list(self._leaf_runs(offset, offset + size))
        self._check_covered(what, offset, size, runs)
        changes, empty = self._clear(runs)
        self._store(changes)
        self._invalidate()
        for table in empty:
            self._free_table(table.paddr)

    def _check_covered(self, what: str, offset: int, size: int, runs: list[tuple[_Table, int, int]]) -> None:
        position = offset
        for table, first, last in runs:
            shift = SHIFTS[table.level]
            start, end = self._number(table, first) << shift, self._number(table, last) << shift
            if start < offset or end > offset + size:
                page = self.va_base + (start if start < offset else end - (1 << shift))
                raise MappingError(what, read=f"a page of {1 << shift:#x} bytes at {page:#x}", means="only whole pages can be unmapped, and this one reaches beyond the range")
            if start != position:
                break
            position = end
        if position != offset + size:
            raise MappingError(what, read=f"{self.va_base + position:#x} is not mapped", means="the range was unmapped before, or never mapped")

    def _remove(self, table: _Table, first: int, last: int, changes: _Changes, empty: list[_Table]) -> None:
        """Clear entries; a table that is empty then goes too, and its entry in the table above."""
        table.entries[first:last] = 0
        table.used -= last - first
        changes.add(table, first, last)
        if table.used == 0 and table.level > 0:
            parent, index = self._parent(table)
            del self._tables[table.level][table.number]
            empty.append(table)
            self._remove(parent, index, index + 1, changes, empty)

    def _shrink_fragments(self, table: _Table, first: int, last: int, changes: _Changes) -> None:
        """Where a fragment reaches over an end of what is unmapped, the part that stays must no longer claim all of it."""
        if first > 0:
            start, end = self._fragment_block(table, first - 1)
            if end > first:
                self._set_fragment(table, start, first, changes)
        if last < ENTRIES:
            start, end = self._fragment_block(table, last)
            if start < last:
                self._set_fragment(table, last, end, changes)

    def _fragment_block(self, table: _Table, index: int) -> tuple[int, int]:
        """Range of entries that share the fragment of a leaf; empty for other entries."""
        entry = int(table.entries[index])
        if not entry & VALID or self._child(table, index):
            return index, index
        power = (entry >> FRAGMENT_SHIFT & FRAGMENT_MAX) - (SHIFTS[table.level] - PAGE_SHIFT)
        start = index >> power << power
        return start, start + (1 << power)

    def _set_fragment(self, table: _Table, start: int, end: int, changes: _Changes) -> None:
        shift = SHIFTS[table.level]
        fragment = fragment_covering(start << shift, (end - start) << shift)
        kept = table.entries[start:end] & np.uint64(~(FRAGMENT_MAX << FRAGMENT_SHIFT) & 0xFFFF_FFFF_FFFF_FFFF)
        table.entries[start:end] = kept | np.uint64(fragment << FRAGMENT_SHIFT)
        changes.add(table, start, end)

    # --- looking --------------------------------------------------------------------------------------------------------

    def walk(self, va: int, size: int) -> Iterator[Entry]:
        """The mapped pages that touch [va, va + size), ascending. Changes nothing."""
        offset = self._check_range(f"looking at {size:#x} bytes at {va:#x}", va, size)
        for table, first, last in self._leaf_runs(offset, offset + size):
            shift = SHIFTS[table.level]
            for index in range(first, last):
                value = int(table.entries[index])
                yield Entry(self.va_base + (self._number(table, index) << shift), 1 << shift, table.level, value & ADDRESS_MASK, value)

    def _number(self, table: _Table, index: int) -> int:
        """Number of an entry in the window, in units of what it covers."""
        return (table.number << INDEX_BITS) + index

    def _child(self, table: _Table, index: int) -> _Table | None:
        return self._tables[table.level + 1].get(self._number(table, index)) if table.level + 1 < LEVELS else None

    def _leaf_runs(self, start: int, end: int, table: _Table | None = None) -> Iterator[tuple[_Table, int, int]]:
        """(table, first, last + 1) of neighbouring leaves that touch the offsets [start, end), ascending."""
        table = table or self._root
        shift = SHIFTS[table.level]
        base = table.number << INDEX_BITS
        low = max((start >> shift) - base, 0)
        high = min((end - 1 >> shift) - base + 1, ENTRIES)
        valid = np.flatnonzero(table.entries[low:high] & np.uint64(VALID)) + low
        if len(valid) == high - low and table.level == LEVELS - 1:
            yield table, low, high
            return
        begin = last = -1
        for index in valid.tolist():
            child = self._child(table, index)
            if begin >= 0 and (child is not None or index != last):
                yield table, begin, last
                begin = -1
            if child is not None:
                yield from self._leaf_runs(start, end, child)
                continue
            if begin < 0:
                begin = index
            last = index + 1
        if begin >= 0:
            yield table, begin, last
