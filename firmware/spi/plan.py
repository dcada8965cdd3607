"""What a write would do, before anything is touched: which sectors differ, which erases they need, how long it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from firmware.spi.chips import Chip

BLANK = 0xFF
SEAL_BYTES = 4
"""bytes at offset 0 that a card looks for when it boots"""


@dataclass(frozen=True)
class Step:
    """One erase (none: size 0) and the sectors to program and read back after it."""

    offset: int
    size: int
    """bytes to erase; 0: the sectors need no erase"""
    program: tuple[int, ...]
    """sector numbers"""
    touched: tuple[int, ...] = ()
    """sector numbers whose content is not what it was once this step has begun"""


@dataclass
class Plan:
    """Steps in the order in which they are carried out."""

    sector: int
    """bytes"""
    start: int
    count: int
    """range in sectors"""
    differing: list[int] = field(default_factory=list)
    redo: list[int] = field(default_factory=list)
    """sectors that read right but were left half done by an earlier write"""
    steps: list[Step] = field(default_factory=list)
    sealed: bool = False
    """sector 0 is erased first and written last"""
    program_bytes: int = 0
    device_seconds: float = 0.0
    """what the chip's own operations take"""

    @property
    def nothing_to_do(self) -> bool:
        return not self.steps

    @property
    def erases(self) -> dict[int, int]:
        """size in bytes -> how many"""
        counts: dict[int, int] = {}
        for step in self.steps:
            if step.size:
                counts[step.size] = counts.get(step.size, 0) + 1
        return dict(sorted(counts.items()))

    @property
    def sectors(self) -> list[int]:
        """Sectors that get written, ascending."""
        return sorted({number for step in self.steps for number in step.program})

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Byte ranges that erases and programs touch, joined where they meet."""
        spans = [(step.offset, step.offset + step.size) for step in self.steps if step.size]
        spans += [(number * self.sector, (number + 1) * self.sector) for number in self.sectors]
        joined: list[tuple[int, int]] = []
        for start, end in sorted(spans):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((start, end))
        return joined


def make_plan(chip: Chip, current: bytes, image: bytes, start: int, count: int, unfinished: Iterable[int] = ()) -> Plan:
    """Compare what is there with what should be.

    current, image: the whole chip. start, count: sectors. unfinished: sectors that an interrupted write has begun; their cells may be
    marginal even where they read right, so they are erased and written again. Nothing outside the range is touched: an erase larger
    than a sector is used only where all of its sectors are in the range and need erasing.

    When sector 0 is in the range and anything changes, it is erased first and written last (its first bytes last of all): a card whose
    write was interrupted then cannot boot from a half-written image, and the way to finish the write stays open.
    """
    plan = Plan(chip.sector, start, count)
    begun = {number for number in unfinished if start <= number < start + count}
    erase: set[int] = set()
    write: set[int] = set()
    for number in range(start, start + count):
        here = slice(number * chip.sector, (number + 1) * chip.sector)
        old, new = current[here], image[here]
        if old != new:
            plan.differing.append(number)
        elif number in begun:
            plan.redo.append(number)
        else:
            continue
        write.add(number)
        if number in begun or not _programmable(chip, old, new):
            erase.add(number)
    if not write:
        return plan
    plan.sealed = start == 0
    steps = []
    if plan.sealed:
        write.add(0)
        if 0 in erase or not _blank(current[: chip.sector]):
            steps.append(Step(0, chip.sector, (), (0,)))
        erase.discard(0)
        write.discard(0)
    steps += _erase_steps(chip, erase, write)
    if plan.sealed:
        steps.append(Step(0, 0, (0,), (0,)))
    plan.steps = steps
    for step in steps:
        plan.device_seconds += chip.erase_time(step.size) if step.size else 0.0
        for number in step.program:
            pages = [page for page in range(number * chip.sector, (number + 1) * chip.sector, chip.page) if not _blank(image[page : page + chip.page])]
            plan.program_bytes += len(pages) * chip.page
            plan.device_seconds += len(pages) * chip.program.typical
    return plan


def _erase_steps(chip: Chip, erase: set[int], write: set[int]) -> list[Step]:
    """Ascending; the largest erases that touch only sectors which need one."""
    steps = []
    done: set[int] = set()
    sizes = sorted(chip.erases, reverse=True)
    for number in sorted(write):
        if number in done:
            continue
        if number not in erase:
            steps.append(Step(number * chip.sector, 0, (number,), (number,)))
            continue
        for size in sizes:
            covered = size // chip.sector
            group = tuple(range(number, number + covered))
            if number % covered == 0 and all(each in erase for each in group):
                steps.append(Step(number * chip.sector, size, group, group))
                done.update(group)
                break
    return steps


def _programmable(chip: Chip, old: bytes, new: bytes) -> bool:
    """Can the new content be had without an erase: is every page that differs blank?"""
    return all(old[page : page + chip.page] == new[page : page + chip.page] or _blank(old[page : page + chip.page]) for page in range(0, len(old), chip.page))


def _blank(data: bytes) -> bool:
    return data.count(BLANK) == len(data)
