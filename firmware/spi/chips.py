"""Serial flash chips as data: the rows of chips.csv, and what an SFDP table says about a chip that is not among them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from firmware.spi.protection import SCHEMES, Scheme

TABLE = Path(__file__).parent / "chips.csv"

PAGE = 256
"""bytes of a program page of every chip in the table"""
ID_BYTES = 3
KIB = 1024


@dataclass(frozen=True)
class Timing:
    """Seconds an operation usually takes, and after which it has failed."""

    typical: float
    limit: float


@dataclass(frozen=True)
class Chip:
    """Geometry, commands and times of a kind of chip. Sizes in bytes."""

    vendor: str
    name: str
    jedec: bytes
    size: int
    erases: dict[int, int]
    """size -> opcode, smallest first; the smallest is a sector"""
    scheme: Scheme
    program: Timing
    erase: Timing
    """of the smallest erase"""
    status_write: Timing
    page: int = PAGE

    @property
    def sector(self) -> int:
        return next(iter(self.erases))

    @property
    def sectors(self) -> int:
        return self.size // self.sector

    def erase_time(self, size: int) -> float:
        """Typical seconds of an erase of this size: larger ones take longer, but not in proportion."""
        return self.erase.typical * (1 + (size // self.sector - 1) / 7)


def _timing(text: str) -> Timing:
    typical, limit = text.split("/")
    return Timing(float(typical) / 1000, float(limit) / 1000)


@cache
def chips() -> dict[bytes, Chip]:
    """The table by JEDEC id."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        vendor, name, jedec, size, erases, scheme, program, erase, status = line.split(",")
        sizes = {int(kib) * KIB: int(opcode, 16) for opcode, kib in (word.split(":") for word in erases.split())}
        row = Chip(vendor, name, bytes.fromhex(jedec), int(size) * KIB, dict(sorted(sizes.items())), SCHEMES[scheme], _timing(program), _timing(erase), _timing(status))
        found[row.jedec] = row
    return found


def likely_rotation(captured: bytes) -> int:
    """By how many places a capture of an unknown chip is rotated: chips repeat their three bytes, so the fourth equals the first."""
    for turn in range(len(captured)):
        rotated = captured[turn:] + captured[:turn]
        if rotated[0] == rotated[ID_BYTES]:
            return turn
    return 0


def find(captured: bytes) -> tuple[Chip, int] | None:
    """The chip whose id is in the captured bytes, and by how many places they are rotated. None: not in the table."""
    known = chips()
    for turn in range(len(captured)):
        rotated = captured[turn:] + captured[:turn]
        chip = known.get(rotated[:ID_BYTES])
        if chip is not None:
            return chip, turn
    return None
