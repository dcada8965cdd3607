"""Carrying out a plan: erase, program, read back, sector by sector, with a journal; stoppable at every byte."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field

from firmware.spi.controller import Progress, no_progress
from firmware.spi.errors import ChipProtected, VerifyFailed
from firmware.spi.flash import SpiFlash, Status
from firmware.spi.journal import Journal
from firmware.spi.plan import BLANK, SEAL_BYTES, Plan
from firmware.spi.protection import Protection
from hw.errors import TghwError

log = logging.getLogger(__name__)


@dataclass
class WriteReport:
    """What a write did."""

    sectors: int = 0
    erases: int = 0
    bytes_programmed: int = 0
    cmp_cleared: bool = False
    device_seconds: float = 0.0
    damaged_elsewhere: list[int] = field(default_factory=list)
    """sectors outside this write's range that an earlier one left half done"""


def first_difference(wanted: bytes, seen: bytes, base: int = 0) -> VerifyFailed | None:
    """The error for the first byte that differs; None when all are equal."""
    if wanted == seen:
        return None
    for place, (expected, found) in enumerate(zip(wanted, seen, strict=False)):
        if expected != found:
            address = base + place
            return VerifyFailed(f"the flash differs at {address:#08x}", address=address, read=f"{found:#04x} where {expected:#04x} should be")
    address = base + min(len(wanted), len(seen))
    return VerifyFailed(f"one ends at {address:#08x}", address=address, read=f"{len(seen):#x} bytes instead of {len(wanted):#x}")


def check_protection(flash: SpiFlash, status: Status, plan: Plan, *, clear_cmp: bool) -> bool:
    """May the plan be carried out? Returns whether CMP has to be cleared first. Raises ChipProtected. Changes nothing."""
    now = flash.protection(status)
    if not any(now.covers(start, end) for start, end in plan.ranges):
        return False
    after = flash.protection_without_cmp(status)
    helps = not any(after.covers(start, end) for start, end in plan.ranges)
    if helps and clear_cmp and not now.locked:
        return True
    raise _protected(now, status, helps, clear_cmp)


def _protected(now: Protection, status: Status, helps: bool, clear_cmp: bool) -> ChipProtected:
    remedy = "clear the protection bits with the tool that set them; this one clears CMP alone"
    if helps and not clear_cmp:
        remedy = "give --clear-cmp to clear that one bit before writing (it stays cleared); nothing else is changed in the status registers"
    return ChipProtected(
        "the flash protects itself against this write",
        read=f"SR1 = {status.sr1:#04x}, SR2 = {status.sr2:#04x}; {now.why}" + (f"; {now.locked}" if now.locked else ""),
        remedy=remedy,
    )


class Writer:
    """Carries out a plan on one chip. `image` is the content of the whole chip."""

    def __init__(self, flash: SpiFlash, image: bytes, plan: Plan, journal: Journal, progress: Progress = no_progress) -> None:
        self._flash = flash
        self._image = image
        self._plan = plan
        self._journal = journal
        self._progress = progress
        self._sector = flash.chip.sector
        self._done: list[int] = []
        self._total = len(plan.sectors) * self._sector
        self.report = WriteReport()

    def run(self, *, name: str = "", clear_cmp: bool = False) -> WriteReport:
        """Clear CMP if wanted, then step by step. The range is read once more at the end.

        On any error, and on KeyboardInterrupt, the journal tells the next run what is left; a TghwError's remedy says so. Raises
        VerifyFailed naming the first wrong address, ChipBusy, WriteEnableFailed, FlashError, BusLost.
        """
        plan = self._plan
        clock = self._flash.controller.clock
        start = clock.now()
        earlier = self._journal.load()
        digest = hashlib.sha256(self._image).hexdigest()
        damaged = earlier.damaged if earlier else set()
        try:
            with self._flash.session():
                if clear_cmp:
                    self._flash.clear_cmp()
                    self.report.cmp_cleared = True
                self._journal.start(image=digest, name=name, start=plan.start, count=plan.count, chip=self._flash.chip.jedec.hex(), damaged=damaged)
                for step in plan.steps:
                    self._journal.begin(step.touched)
                    if step.size:
                        self._flash.erase(step.offset, step.size)
                        self.report.erases += 1
                    for number in step.program:
                        self._write_sector(number)
                        self._journal.done([number])
                        self._done.append(number)
                        self._progress(len(self._done) * self._sector, self._total)
                self._check_range()
            self.report.damaged_elsewhere = sorted(self._journal.finish())
        except TghwError as error:
            error.remedy = f"{self.state()}; then run the same command again: it goes on where this one stopped" + (f". {error.remedy}" if error.remedy else "")
            raise
        finally:
            self._journal.close()
            self.report.sectors = len(self._done)
            self.report.device_seconds = clock.now() - start
        return self.report

    def state(self) -> str:
        """How far the write is, in words."""
        every = self._plan.sectors
        left = [number for number in every if number not in self._done]
        if not left:
            return f"all {len(every)} sectors are written"
        first = f"sector {left[0]} ({left[0] * self._sector:#x})"
        return f"{len(self._done)} of {len(every)} sectors are written and read back, {first} and {len(left) - 1} more are not; see to the cause"

    def _write_sector(self, number: int) -> None:
        """Program the pages that are not blank and read the sector back. Sector 0 begins to look bootable with its very last write."""
        base = number * self._sector
        page = self._flash.chip.page
        wanted = self._image[base : base + self._sector]
        places = range(0, self._sector, page)
        if self._plan.sealed and number == 0:
            for place in reversed(places[1:]):
                self._program(place, wanted[place : place + page])
            self._program(SEAL_BYTES, wanted[SEAL_BYTES:page])
            self._program(0, wanted[:SEAL_BYTES])
        else:
            for place in places:
                self._program(base + place, wanted[place : place + page])
        problem = first_difference(wanted, self._flash.read(base, self._sector), base)
        if problem is not None:
            raise problem

    def _program(self, address: int, data: bytes) -> None:
        if data.count(BLANK) != len(data):
            self._flash.program(address, data)
            self.report.bytes_programmed += len(data)

    def _check_range(self) -> None:
        """Read the whole range once more."""
        start, size = self._plan.start * self._sector, self._plan.count * self._sector
        problem = first_difference(self._image[start : start + size], self._flash.read(start, size), start)
        if problem is not None:
            raise problem
