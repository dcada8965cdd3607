"""Kinds of serial flash chips, as a profile describes them: identity, geometry, times, protection.

Sources: public data sheets of the GigaDevice GD25LQ16 class. Times are orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hw.errors import ProfileError

SECTOR = 0x1000

# SR1
WIP = 1 << 0
WEL = 1 << 1
BP_SHIFT = 2
BP_MASK = 0x7
TB = 1 << 5
SEC = 1 << 6
SRP0 = 1 << 7
SR1_WRITABLE = 0xFC
# SR2
SRP1 = 1 << 0
LOCK_BITS = 0x38
CMP = 1 << 6
SR2_WRITABLE = 0x7B
SR3_WRITABLE = 0x60


@dataclass
class ChipModel:
    """What kind of chip it is: a profile's `chip` table. Times in seconds, sizes in bytes."""

    name: str
    jedec: bytes
    size: int
    rems: bytes = b""
    page: int = 256
    erases: dict[int, int] = field(default_factory=lambda: {0x20: 0x1000, 0x52: 0x8000, 0xD8: 0x10000})
    """opcode -> bytes; chip erase comes on top"""
    protection: str = "sec-tb-cmp"
    """"sec-tb-cmp": BP0-2, top/bottom, sector/block, complement. "bp-all": any BP bit protects everything. "none" """
    status: tuple[int, int, int] = (0, 0, 0)
    """SR1, SR2, SR3 as delivered"""
    wp_low: bool = False
    """the write protect pin is low"""
    sfdp: bytes = b""
    program_time: float = 0.6e-3
    erase_times: dict[int, float] = field(default_factory=lambda: {0x1000: 0.05, 0x8000: 0.12, 0x10000: 0.15})
    status_time: float = 5e-3

    @classmethod
    def from_profile(cls, entry: dict[str, Any]) -> ChipModel:
        """A model from a profile's table. Raises ProfileError for what it does not know."""
        values = dict(entry)
        for key in ("jedec", "rems"):
            values[key] = bytes(values.get(key, ()))
        values["sfdp"] = bytes.fromhex(values.get("sfdp", ""))
        values["status"] = tuple(values.get("status", (0, 0, 0)))
        for key in ("erases", "erase_times"):
            if key in values:
                values[key] = {int(name, 0): value for name, value in values[key].items()}
        try:
            return cls(**values)
        except TypeError as error:
            raise ProfileError("the chip in the profile has a key that is not known", read=str(error)) from error

    def protected(self, sr1: int, sr2: int) -> tuple[int, int]:
        """(start, end) of what the block protection bits protect; start == end: nothing."""
        level = sr1 >> BP_SHIFT & BP_MASK
        if self.protection == "none":
            return 0, 0
        if self.protection == "bp-all":
            return (0, self.size) if sr1 >> BP_SHIFT & 0xF else (0, 0)
        length = 0
        if level:
            block = max(0x10000, self.size // 64)
            if level == BP_MASK or block << level - 1 >= self.size:
                length = self.size
            elif sr1 & SEC:
                length = min(SECTOR << level - 1, 0x8000) if level < 6 else self.size
            else:
                length = block << level - 1
        start, end = (0, length) if sr1 & TB else (self.size - length, self.size)
        if not sr2 & CMP:
            return start, end
        if length == 0:
            return 0, self.size
        if length == self.size:
            return 0, 0
        return (end, self.size) if start == 0 else (0, start)
