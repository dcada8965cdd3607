"""Firmware files made byte by byte from the published layout: offsets are written out here, not taken from the parser's tables."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

ARRAY_AT = 0x100


def content(label: int, size: int) -> bytes:
    """Bytes that differ from part to part and from place to place."""
    return bytes((label * 37 + index * 11 + index // 256) & 0xFF for index in range(size))


def ucode(
    version: tuple[int, int],
    fields: Mapping[int, int],
    array: bytes,
    *,
    behind: bytes = b"",
    ip: tuple[int, int] = (11, 0),
    ucode_version: int = 0x123,
    array_at: int = ARRAY_AT,
    covered: str = "whole",
) -> bytes:
    """A file: 32-bit fields by offset from the start of the file, the array, and what lies behind it.

    covered: which bytes the CRC is taken over, as published files do it: "whole", "payload", "head", or "nothing" (a wrong sum).
    """
    size = array_at + len(array) + len(behind)
    data = bytearray(size)
    data[array_at : array_at + len(array)] = array
    data[array_at + len(array) :] = behind
    for offset, value in fields.items():
        struct.pack_into("<I", data, offset, value)
    end = max(fields, default=28) + 4
    ranges = {"whole": data[32:], "payload": array, "head": data[32:512], "nothing": b"something else"}
    struct.pack_into("<IIHHHHIIII", data, 0, size, end, *version, *ip, ucode_version, len(array), array_at, zlib.crc32(bytes(ranges[covered])))
    return bytes(data)


def patched(data: bytes, offset: int, value: int, *, resum: bool = True) -> bytes:
    """The file with one 32-bit field changed, and (unless told not to) its sum made right again."""
    changed = bytearray(data)
    struct.pack_into("<I", changed, offset, value)
    if resum:
        struct.pack_into("<I", changed, 28, zlib.crc32(bytes(changed[32:])))
    return bytes(changed)
