"""What a chip says about itself: Serial Flash Discoverable Parameters (JEDEC JESD216)."""

from __future__ import annotations

from dataclasses import dataclass

from firmware.spi.chips import Chip, Timing
from firmware.spi.protection import SCHEMES

MAGIC = b"SFDP"
HEADER_BYTES = 8
PARAMETER_HEADER_BYTES = 8
BASIC_TABLE = 0xFF00
"""id of the basic flash parameter table (MSB and LSB)"""
FEWEST_DWORDS = 9
"""of the basic table in the first release of the standard"""
LARGEST_24BIT = 1 << 24

TIME_UNITS = (1e-3, 16e-3, 128e-3, 1.0)
"""s, of typical erase times"""


@dataclass(frozen=True)
class Sfdp:
    """The basic table's dwords, and where in a capture the data begin (a dummy byte comes first)."""

    revision: tuple[int, int]
    dwords: tuple[int, ...]
    capture_offset: int


def locate(capture: bytes) -> int | None:
    """Where "SFDP" begins in a capture of address 0; None when it is not there."""
    place = capture.find(MAGIC)
    return None if place < 0 else place


def parameter_table(header: bytes) -> tuple[int, int] | None:
    """(address, dwords) of the basic table from 16 bytes of address 0; None when the header makes no sense."""
    if header[:4] != MAGIC or len(header) < HEADER_BYTES + PARAMETER_HEADER_BYTES:
        return None
    entry = header[HEADER_BYTES : HEADER_BYTES + PARAMETER_HEADER_BYTES]
    identity = entry[7] << 8 | entry[0]
    if identity not in (BASIC_TABLE, 0x0000) or entry[3] < FEWEST_DWORDS:
        return None
    return int.from_bytes(entry[4:7], "little"), entry[3]


def chip_from(found: Sfdp, jedec: bytes) -> Chip | None:
    """A row for a chip that is not in the table. None when it has no sectors, needs 4 address bytes, or contradicts itself."""
    dwords = found.dwords
    density = dwords[1]
    bits = 1 << (density & 0x7FFFFFFF) if density & 0x80000000 and density & 0x7FFFFFFF < 40 else density + 1
    size = bits // 8
    if bits % 8 or size < 0x1000 or size > LARGEST_24BIT or size & size - 1:
        return None
    erases = {}
    times = {}
    for number in range(4):
        entry = dwords[7 + number // 2] >> 16 * (number % 2) & 0xFFFF
        exponent, opcode = entry & 0xFF, entry >> 8
        if 0 < exponent < 24 and opcode not in (0x00, 0xFF):
            erases[1 << exponent] = opcode
            times[1 << exponent] = _erase_time(dwords, number)
    if not erases or min(erases) > 0x1000 or any(size % each for each in erases):
        return None
    page = 1 << (dwords[10] >> 4 & 0xF) if len(dwords) > 10 else 256
    sector = min(erases)
    name = f"chip {jedec.hex(' ')} by its SFDP {found.revision[0]}.{found.revision[1]}"
    return Chip(
        "unknown",
        name,
        jedec,
        size,
        dict(sorted(erases.items())),
        SCHEMES["unknown"],
        program=Timing(_program_time(dwords), 1.0),
        erase=Timing(times[sector], max(2.0, 10 * times[sector])),
        status_write=Timing(10e-3, 1.0),
        page=max(1, min(page, 256)),
    )


def _erase_time(dwords: tuple[int, ...], number: int) -> float:
    """Typical seconds of erase type 1..4 (dword 10 of JESD216A and later), or the usual when it is not said."""
    if len(dwords) < 10:
        return 0.05
    field = dwords[9] >> 4 + 7 * number & 0x7F
    return ((field & 0x1F) + 1) * TIME_UNITS[field >> 5]


def _program_time(dwords: tuple[int, ...]) -> float:
    """Typical seconds of a page program (dword 11)."""
    if len(dwords) < 11:
        return 0.7e-3
    field = dwords[10] >> 8 & 0x3F
    return ((field & 0x1F) + 1) * (64e-6 if field >> 5 else 8e-6)
