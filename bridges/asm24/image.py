"""Firmware files for the bridge: what they are, and whether they are whole. Nothing here touches a device.

Wrapped image (what the ROM loader starts, at 0x100 of the flash): u32 length, body, 0xA5, sum of the body modulo 256, u32 CRC-32 of it.
Application image of the boot stub (at 0x4000): "A24F", a header of 0x40 bytes, body; its fields exist in two incompatible drafts.
Configuration block: 128 bytes, a magic and a sum at its end. All little endian. Sources: notes of the open bridge firmware, recomputed
on published images.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum

from bridges.asm24.errors import ImageInvalid


class Kind(Enum):
    """What a file is for."""

    WRAPPED = "wrapped image for the ROM loader"
    APPLICATION_NEW = "application image of the boot stub, newer draft"
    APPLICATION_OLD = "application image of the boot stub, older draft"


WRAPPED_MAGIC = 0xA5
TRAILER = 6
LARGEST_WRAPPED = 0x1FF00
"""bytes between 0x100 and the end of the smallest flash chips in use (1 Mbit)"""
STOCK_BODY = 98006
"""32 KiB common and two banks"""

APPLICATION_MAGIC = b"A24F"
HEADER_SIZE = 0x40
LARGEST_BODY = 0xD000
APPLICATION_ABI = 1


@dataclass(frozen=True)
class _Draft:
    """Places in the header of an application image. `summed`: header bytes that the CRC covers besides the body; `zero`: from here zeros."""

    kind: Kind
    abi: int
    length: int
    crc: int
    summed: int
    zero: int


DRAFTS = (
    _Draft(Kind.APPLICATION_NEW, abi=0x04, length=0x05, crc=0x09, summed=0x09, zero=0x0D),
    _Draft(Kind.APPLICATION_OLD, abi=0x1B, length=0x1C, crc=0x20, summed=0x20, zero=0x24),
)


@dataclass(frozen=True)
class Image:
    """A file that was checked."""

    kind: Kind
    data: bytes
    body: bytes
    crc: int

    @property
    def title(self) -> str:
        """What it is, in words."""
        stock = " (stock size)" if self.kind is Kind.WRAPPED and len(self.body) == STOCK_BODY else ""
        return f"{self.kind.value}{stock}, body of {len(self.body)} bytes, CRC {self.crc:#010x}"


OTHERS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x7fELF", "an ELF file: a program, not a firmware image"),
    (0, b"\x55\xaa", "an expansion ROM (VBIOS) of a PCI card"),
    (0, b"$PSP", "firmware of an AMD security processor"),
    (0x10, b"$PS1", "firmware of an AMD security processor"),
    (0, b"NVGI", "flash contents of an NVIDIA card"),
    (0, b"PK\x03\x04", "a ZIP archive: unpack it first"),
    (0, b"\x1f\x8b", "a gzip archive: unpack it first"),
    (0, b"MZ", "a Windows program: the maker's update tool holds the image inside"),
    (0, b"A24D", "an answer of the boot stub, not an image"),
)
"""(offset, bytes, what it is): files that people mistake for one"""

OLDER_FAMILY = "ASM236x"
OLDER_MAGIC = 0x5A
HOST_CONTROLLER_MARK = b"_RCFG"
"""ends the signature near the start of the maker's host-controller firmware: U2104_RCFG, 2324A_RCFG"""


def parse(data: bytes) -> Image:
    """Check a file. Raises ImageInvalid saying what it is instead, or what is damaged."""
    for offset, magic, what in OTHERS:
        if data[offset : offset + len(magic)] == magic:
            raise ImageInvalid("the file is no firmware for an ASM24xx bridge", read=f"it is {what}", means="it was made for another device")
    if data[:4] == APPLICATION_MAGIC:
        return _application(data)
    if mark := data[:256].find(HOST_CONTROLLER_MARK) + 1:
        chip = data[max(mark - 6, 0) : mark - 1].decode("ascii", "replace")
        raise ImageInvalid(f"the file is firmware of an ASMedia USB host controller ({chip})", read=f"{len(data)} bytes", means="that is another kind of chip")
    if len(data) > 2 * BLOCK_SIZE and not block_problem(data[:BLOCK_SIZE], 0):
        if not block_problem(data[BLOCK_SIZE : 2 * BLOCK_SIZE], 1):
            raise ImageInvalid(
                "the file is a dump of a bridge's whole flash, not an image",
                read=f"{len(data)} bytes, two valid configuration blocks",
                remedy="cut the image out: it begins at 0x100",
            )
        raise _older_family(len(data), "a configuration block in front, which its images have")
    return _wrapped(data)


def _older_family(size: int, by: str) -> ImageInvalid:
    return ImageInvalid(
        f"the file is a firmware image for the {OLDER_FAMILY} family",
        read=f"{size} bytes, {by}",
        means="that is another chip with other flash commands; it would not start here",
    )


def _wrapped(data: bytes) -> Image:
    if len(data) < 4 + TRAILER + 1:
        raise ImageInvalid("the file is too short for a firmware image", read=f"{len(data)} bytes")
    length = int.from_bytes(data[:4], "little")
    if 4 + length + TRAILER != len(data):
        raise ImageInvalid("the file's length does not fit its header", read=f"{len(data)} bytes, {4 + length + TRAILER} by the header")
    body, trailer = data[4 : 4 + length], data[4 + length :]
    if trailer[0] == OLDER_MAGIC:
        raise _older_family(len(data), f"magic {OLDER_MAGIC:#04x}")
    if trailer[0] != WRAPPED_MAGIC:
        raise ImageInvalid("the magic behind the body is wrong", read=f"{trailer[0]:#04x}, {WRAPPED_MAGIC:#04x} expected")
    if trailer[1] != sum(body) & 0xFF:
        raise ImageInvalid("the sum of the body is wrong", read=f"{sum(body) & 0xFF:#04x}, {trailer[1]:#04x} in the file")
    crc, told = zlib.crc32(body), int.from_bytes(trailer[2:], "little")
    if crc != told:
        raise ImageInvalid("the CRC of the body is wrong", read=f"{crc:#010x}, {told:#010x} in the file")
    if len(data) > LARGEST_WRAPPED:
        raise ImageInvalid("the image is too large for the bridge's flash", read=f"{len(data)} bytes, {LARGEST_WRAPPED} at most")
    return Image(Kind.WRAPPED, data, body, crc)


def _application(data: bytes) -> Image:
    """By whichever draft it is whole; the boot stub then says which one it takes."""
    if len(data) <= HEADER_SIZE:
        raise ImageInvalid("the file is cut short", read=f"{len(data)} bytes")
    reasons = []
    for draft in DRAFTS:
        length = int.from_bytes(data[draft.length : draft.length + 4], "little")
        told = int.from_bytes(data[draft.crc : draft.crc + 4], "little")
        body = data[HEADER_SIZE:]
        crc = zlib.crc32(data[: draft.summed] + body)
        if data[draft.abi] != APPLICATION_ABI:
            reasons.append(f"ABI {data[draft.abi]}")
        elif length != len(body):
            reasons.append(f"{len(body)} bytes of body, {length} by the header")
        elif crc != told:
            reasons.append(f"CRC {crc:#010x}, {told:#010x} in the file")
        elif any(data[draft.zero : HEADER_SIZE]):
            reasons.append("reserved bytes of the header are not zero")
        elif length > LARGEST_BODY:
            raise ImageInvalid("the application is too large for its place in the flash", read=f"{length} bytes, {LARGEST_BODY} at most")
        else:
            return Image(draft.kind, data, body, crc)
    raise ImageInvalid("the application image is damaged", read="; ".join(f"{draft.kind.value}: {reason}" for draft, reason in zip(DRAFTS, reasons, strict=True)))


def wrap(body: bytes) -> bytes:
    """A wrapped image around a body."""
    return len(body).to_bytes(4, "little") + body + bytes([WRAPPED_MAGIC, sum(body) & 0xFF]) + zlib.crc32(body).to_bytes(4, "little")


# --- configuration blocks ---------------------------------------------------------------------------------------------

BLOCK_SIZE = 128
BLOCK_MAGIC = (0x5A, 0xA5)
"""of block 0 and block 1"""


def block_problem(block: bytes, number: int) -> str:
    """Why a configuration block is not valid, "" when it is."""
    if len(block) != BLOCK_SIZE:
        return f"{len(block)} bytes"
    if block[0x7E] != BLOCK_MAGIC[number]:
        return f"magic {block[0x7E]:#04x}, {BLOCK_MAGIC[number]:#04x} expected"
    total = sum(block[4:0x7F]) & 0xFF
    if block[0x7F] != total:
        return f"sum {block[0x7F]:#04x}, {total:#04x} computed"
    return ""
