"""Which pages a mapping uses: the largest sizes that the alignment of both address spaces allows, found for all pieces at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from drivers.amd.page_entries import LEVELS, PAGE_SHIFT, SHIFTS, Words

_SMALLEST_HUGE = 1 << SHIFTS[LEVELS - 2]


@dataclass
class Run:
    """Neighbouring leaves of one level."""

    level: int
    first: int
    """number of the first one, counted from the start of the window in units of what a leaf covers"""
    addresses: Words


def plan(offset: int, addresses: Words, lengths: Words) -> list[Run]:
    """Leaves of the largest sizes for memory that follows itself from `offset` on: aligned in both address spaces."""
    joints = np.flatnonzero(addresses[1:] != addresses[:-1] + lengths[:-1]) + 1
    heads = np.concatenate((np.zeros(1, np.intp), joints))
    starts = np.cumsum(lengths) - lengths + np.uint64(offset)
    offsets, addresses, lengths = starts[heads], addresses[heads], np.add.reduceat(lengths, heads)
    runs: list[Run] = []
    small_from = 0
    for index in [*np.flatnonzero(lengths >= _SMALLEST_HUGE).tolist(), len(lengths)]:
        if index > small_from:
            pages = _single_pages(addresses[small_from:index], lengths[small_from:index])
            runs.append(Run(LEVELS - 1, int(offsets[small_from]) >> PAGE_SHIFT, pages))
        if index < len(lengths):
            for level, start, address, count in _sizes(0, int(offsets[index]), int(addresses[index]), int(lengths[index])):
                runs.append(Run(level, start >> SHIFTS[level], (np.arange(count, dtype=np.uint64) << np.uint64(SHIFTS[level])) + np.uint64(address)))
        small_from = index + 1
    return list(_join(runs))


def _join(runs: list[Run]) -> Iterator[Run]:
    """Neighbouring runs of one level as one, so that their entries are written together."""
    waiting: list[Run] = []
    following = 0
    for run in runs:
        if waiting and (run.level != waiting[0].level or run.first != following):
            yield _joined(waiting)
            waiting = []
        waiting.append(run)
        following = run.first + len(run.addresses)
    if waiting:
        yield _joined(waiting)


def _joined(runs: list[Run]) -> Run:
    return runs[0] if len(runs) == 1 else Run(runs[0].level, runs[0].first, np.concatenate([run.addresses for run in runs]))


def _single_pages(addresses: Words, lengths: Words) -> Words:
    """Address of every 4 KiB page of pieces that follow one another."""
    counts = (lengths >> np.uint64(PAGE_SHIFT)).astype(np.int64)
    before = (np.cumsum(counts) - counts).astype(np.uint64)
    total = int(counts.sum())
    pages: Words = np.repeat(addresses - (before << np.uint64(PAGE_SHIFT)), counts) + (np.arange(total, dtype=np.uint64) << np.uint64(PAGE_SHIFT))
    return pages


def _sizes(level: int, offset: int, address: int, length: int) -> Iterator[tuple[int, int, int, int]]:
    """(level, offset, address, count): one piece of memory in the largest pages that fit, small ones before and after large ones."""
    span = 1 << SHIFTS[level]
    first = offset + span - 1 & -span
    last = offset + length & -span
    if first >= last or (offset - address) % span:
        if length:
            yield from _sizes(level + 1, offset, address, length)
        return
    if first > offset:
        yield from _sizes(level + 1, offset, address, first - offset)
    yield level, first, address + first - offset, (last - first) // span
    if last < offset + length:
        yield from _sizes(level + 1, last, address + last - offset, offset + length - last)
