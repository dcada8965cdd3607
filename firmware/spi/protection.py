"""Which part of a chip its block protection bits protect.

Sources: public data sheets of GigaDevice GD25LQ16 and GD25Q16, Winbond W25Q16 to W25Q128; Macronix MX25 tables differ from part to part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# SR1
WIP = 1 << 0
WEL = 1 << 1
BP_SHIFT = 2
BP_MASK = 0x1F
"""BP0 to BP4"""
LEVEL_MASK = 0x7
"""BP0 to BP2: how much; BP3: from the bottom; BP4: in sectors instead of blocks"""
BOTTOM = 1 << 3
SECTORS = 1 << 4
SRP0 = 1 << 7
# SR2
SRP1 = 1 << 0
CMP = 1 << 6

BLOCK = 0x10000
SECTOR = 0x1000
MOST_SECTOR_BYTES = 0x8000


@dataclass(frozen=True)
class Protection:
    """What is protected. start == end: nothing. Offsets in bytes."""

    start: int
    end: int
    why: str
    """in words, for a person"""
    exact: bool = True
    """False: some of the range may be writable, the data sheet of the exact part would tell"""
    by_cmp: bool = False
    """only because CMP is set: clearing it leaves nothing protected"""
    locked: str = ""
    """why the bits cannot be changed; "" when they can"""

    def covers(self, start: int, end: int) -> bool:
        """Does it protect any of [start, end)?"""
        return self.start < end and start < self.end

    @property
    def nothing(self) -> bool:
        return self.start >= self.end


Scheme = Callable[[int, int, int], Protection]
"""SR1, SR2, chip size -> what is protected"""


def _locked(sr1: int, sr2: int) -> str:
    if sr2 & SRP1:
        return "SRP0 and SRP1 are set: the status registers are locked for good" if sr1 & SRP0 else "SRP1 is set: the status registers are locked until the next power cycle"
    return "SRP0 is set: the status registers are locked while the write protect pin is low" if sr1 & SRP0 else ""


def complemented(sr1: int, sr2: int, size: int) -> Protection:
    """BP0-BP2 give an amount, BP3 the end it is counted from, BP4 the unit, CMP turns it round (GD25, W25Q)."""
    bits = sr1 >> BP_SHIFT & BP_MASK
    level = bits & LEVEL_MASK
    amount = 0
    if level:
        block = max(BLOCK, size // 64)
        if level == LEVEL_MASK or block << level - 1 >= size:
            amount = size
        elif bits & SECTORS:
            amount = size if level == LEVEL_MASK - 1 else min(SECTOR << level - 1, MOST_SECTOR_BYTES)
        else:
            amount = block << level - 1
    start, end = (0, amount) if bits & BOTTOM else (size - amount, size)
    shown = f"BP4..BP0 = {bits:05b}, CMP = {int(bool(sr2 & CMP))}"
    if sr2 & CMP:
        start, end = (0, size) if amount == 0 else (0, 0) if amount == size else (end, size) if start == 0 else (0, start)
    locked = _locked(sr1, sr2)
    by_cmp = bool(sr2 & CMP) and amount == 0
    if start >= end:
        return Protection(0, 0, f"{shown}: nothing is protected", locked=locked)
    if (start, end) == (0, size):
        return Protection(0, size, f"{shown}: the whole array is protected" + (", because CMP turns 'nothing' into 'everything'" if by_cmp else ""), by_cmp=by_cmp, locked=locked)
    return Protection(start, end, f"{shown}: {start:#x} to {end - 1:#x} is protected", locked=locked)


def any_bit(sr1: int, sr2: int, size: int) -> Protection:
    """BP0-BP3 with a meaning that differs from part to part (MX25): any of them set counts as everything protected."""
    bits = sr1 >> BP_SHIFT & 0xF
    if not bits:
        return Protection(0, 0, "BP3..BP0 = 0000: nothing is protected")
    return Protection(0, size, f"BP3..BP0 = {bits:04b}: some part is protected; which one differs between parts with this id", exact=False)


def unknown(sr1: int, sr2: int, size: int) -> Protection:
    """A chip that is known by SFDP alone: the usual places of protection bits must be 0."""
    bits = sr1 >> BP_SHIFT & BP_MASK
    if not bits and not sr2 & CMP:
        return Protection(0, 0, "no usual protection bit is set (this chip's own scheme is not known)", exact=False)
    return Protection(0, size, f"SR1 = {sr1:#04x}, SR2 = {sr2:#04x}: bits that usually protect are set (this chip's own scheme is not known)", exact=False)


SCHEMES: dict[str, Scheme] = {"sec-tb-cmp": complemented, "bp": any_bit, "unknown": unknown}
