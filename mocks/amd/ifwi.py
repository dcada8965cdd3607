"""IFWI images for simulated cards: valid ones around seeded noise, every way of being invalid, and what a PSP finds in a flash at power-on.

A fabricated image carries simulated signatures, so that the PSP model notices a changed byte in anything it boots from. Of an image
without them it can judge only the structure (nobody but AMD can check a real signature).
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from firmware import ifwi_layout as layout

KEY = b"simulated-flash-key-01"
"""begins every simulated signature"""

TABLE_AT = 0x14000
PAYLOADS = {"A": (0x20000, 0x60000), "B": (0x100000, 0x60000)}
SIGNATURES_AT = 0x182000
SIGNATURE_STEP = 0x2000
COOKIE_AT = 0x15000
SLOT_MARK = 0xA5A50000
SLOT_CHECKSUM, SLOT_COUNTER = 0x4, 0x8
"""u32 each in a slot header; the places are invented, real ones are unknown"""
COVERED_BY = {1: "header", 2: "directory 1", 3: "directory 2", 4: "block 4", 5: "A", 6: "B", 7: "block 5"}
"""signature type -> what it covers, in fabricated images"""


@dataclass(frozen=True)
class Boot:
    """What a PSP makes of a flash."""

    problem: str
    """why it does not boot; "" when it does"""
    partition: int = 0
    """0: A, 1: B"""


@cache
def fabricate(seed: int = 0) -> bytes:
    """A valid image; the same seed gives the same bytes."""
    source = random.Random(f"ifwi {seed}")
    image = bytearray(b"\xff" * layout.SIZE)

    def put(offset: int, data: bytes) -> None:
        image[offset : offset + len(data)] = data

    put(0, layout.MAGIC + source.randbytes(0x50))
    put(layout.FIXED[layout.SIGNATURE_POINTER][0], struct.pack("<I", TABLE_AT))
    for item, count in ((0x02, 6), (0x03, 4)):
        entries = b"".join(struct.pack("<IIII", number, 0x1000 * number, 0x30000 + 0x10000 * number, 0) for number in range(1, count + 1))
        put(layout.DIRECTORIES[item], layout.DIRECTORY_MAGIC + struct.pack("<III", source.getrandbits(32), count, 0) + entries)
    for item in (0x04, 0x05, 0x89):
        offset, size = layout.FIXED[item]
        put(offset, source.randbytes(size))
    for slot, (item, offset) in zip("AB", layout.SLOTS.items(), strict=True):
        payload_at, payload_size = PAYLOADS[slot]
        put(payload_at, source.randbytes(payload_size))
        put(offset, slot_header(item, payload_at, payload_size, counter=1))
    put(PAYLOADS["B"][0], bytes(image[PAYLOADS["A"][0] : sum(PAYLOADS["A"])]))
    entries = b""
    for kind in COVERED_BY:
        size = 0x100 + 0x40 * kind
        offset = SIGNATURES_AT + SIGNATURE_STEP * (kind - 1)
        put(offset, source.randbytes(size))
        put(offset, signature(covered(image, kind)))
        entries += struct.pack("<IIII", kind, 0xEE00 + kind, size, offset)
    put(TABLE_AT, layout.SIGNATURE_MAGIC + struct.pack("<III", source.getrandbits(32), len(COVERED_BY), 0) + entries)
    return bytes(image)


def slot_header(item: int, payload_at: int, payload_size: int, *, counter: int) -> bytes:
    """An image slot header: mark, checksum, counter, payload offset and size."""
    body = struct.pack("<IIIIII", counter, 0, payload_at, 0, payload_size, 0x1234)
    return struct.pack("<II", SLOT_MARK | item, sum(body) & 0xFFFFFFFF) + body


def covered(image: bytes | bytearray, kind: int) -> bytes:
    """What a signature type covers in a fabricated image."""
    if kind in (5, 6):
        offset = layout.SLOTS[0x06 if kind == 5 else 0x07]
        at, size = (_word(image, offset + place) for place in (layout.SLOT_PAYLOAD_OFFSET, layout.SLOT_PAYLOAD_SIZE))
        return bytes(image[at : at + size])
    if kind in (2, 3):
        offset = layout.DIRECTORIES[kind]
        return bytes(image[offset : offset + layout.TABLE_ENTRY * (_word(image, offset + layout.TABLE_COUNT) + 1)])
    offset, size = layout.FIXED[{1: 0x01, 4: 0x04, 7: 0x05}[kind]]
    return bytes(image[offset : offset + size])


def boot(image: bytes) -> Boot:
    """What the boot firmware finds when it reads the flash at power-on."""
    if image[:4] != layout.MAGIC:
        return Boot("no image: the header magic is missing")
    for offset in layout.DIRECTORIES.values():
        if image[offset : offset + 4] != layout.DIRECTORY_MAGIC:
            return Boot(f"no directory at {offset:#x}")
        if offset + layout.TABLE_ENTRY * (_word(image, offset + layout.TABLE_COUNT) + 1) > layout.SIZE:
            return Boot(f"the directory at {offset:#x} is longer than the flash")
    table = _word(image, layout.FIXED[layout.SIGNATURE_POINTER][0])
    if image[table : table + 4] != layout.SIGNATURE_MAGIC or table + layout.TABLE_ENTRY > layout.SIZE:
        return Boot(f"no signature table at {table:#x}")
    signatures = _signatures(image, table)
    for kind in (1, 2, 3, 4, 7):
        if not _fits(image, kind, signatures):
            return Boot(f"the signature of {COVERED_BY[kind]} does not fit")
    for partition, (kind, offset) in enumerate(zip((5, 6), layout.SLOTS.values(), strict=True)):
        at, size = (_word(image, offset + place) for place in (layout.SLOT_PAYLOAD_OFFSET, layout.SLOT_PAYLOAD_SIZE))
        if size > 0 and at + size <= layout.SIZE and _fits(image, kind, signatures):
            return Boot("", partition)
    return Boot("neither partition's payload is good")


def _signatures(image: bytes, table: int) -> dict[int, bytes]:
    """Signature blobs by type."""
    found = {}
    for number in range(min(_word(image, table + layout.TABLE_COUNT), 0x1000)):
        entry = table + layout.TABLE_ENTRY * (number + 1)
        if entry + layout.TABLE_ENTRY > layout.SIZE:
            break
        offset, size = _word(image, entry + layout.SIGNATURE_OFFSET), _word(image, entry + layout.SIGNATURE_SIZE)
        found[_word(image, entry + layout.SIGNATURE_TYPE)] = image[offset : offset + size]
    return found


def _fits(image: bytes, kind: int, signatures: dict[int, bytes]) -> bool:
    """A missing or blank signature never fits; one that is not simulated cannot be judged."""
    blob = signatures.get(kind, b"")
    return bool(blob.strip(b"\xff")) and (not blob.startswith(KEY) or blob.startswith(signature(covered(image, kind))))


def signature(data: bytes) -> bytes:
    return KEY.ljust(32, b"\0") + hashlib.sha256(KEY + data).digest()


def _word(image: bytes | bytearray, offset: int) -> int:
    return int.from_bytes(image[offset : offset + 4], "little")


# --- invalid images ---------------------------------------------------------------------------------------------------


def _edit(offset: int, text: str) -> Callable[[bytearray], None]:
    data = bytes.fromhex(text)

    def change(image: bytearray) -> None:
        image[offset : offset + len(data)] = data

    return change


def _cut(length: int) -> Callable[[bytearray], None]:
    def change(image: bytearray) -> None:
        image[length:] = b"\xff" * (length - len(image))

    return change


def _entry(kind: int, place: int = 0) -> int:
    """Offset of a field of a signature's table entry."""
    return TABLE_AT + layout.TABLE_ENTRY * kind + place


_A = layout.SLOTS[0x06]

BREAKAGES: dict[str, Callable[[bytearray], None]] = {
    "empty": _cut(0),
    "half": _cut(layout.SIZE // 2),
    "one byte short": _cut(layout.SIZE - 1),
    "one byte long": _cut(layout.SIZE + 1),
    "header magic blank": _edit(0, "ffffffff"),
    "header magic other order": _edit(0, "55aa55aa"),
    "header byte": _edit(0x20, "00112233"),
    "directory 1 magic": _edit(0x2000, "24505351"),
    "directory 2 magic": _edit(0x3000, "ffffffff"),
    "directory of another kind": _edit(0x2000, "24504c32"),
    "directory longer than the image": _edit(0x2008, "01fe0100"),
    "directory with 2^32 - 1 entries": _edit(0x3008, "ffffffff"),
    "block 4 byte": _edit(0x10800, "5a5a5a5a"),
    "payload offset past the image": _edit(_A + 0x10, "00002000"),
    "payload end past the image": _edit(_A + 0x10, "04001a00"),
    "payload offset wraps": _edit(_A + 0x10, "f0ffffff"),
    "payload empty": _edit(_A + 0x18, "00000000"),
    "payload size odd": _edit(_A + 0x18, "feff0500"),
    "payload byte": _edit(PAYLOADS["A"][0] + 0x1234, "00ff00ff"),
    "slot header A blank": _edit(_A, "ff" * 0x20),
    "slot header B blank": _edit(layout.SLOTS[0x07], "ff" * 0x20),
    "signature pointer past the image": _edit(0x1000, "f8ff1f00"),
    "signature pointer blank": _edit(0x1000, "ffffffff"),
    "signature pointer elsewhere": _edit(0x1000, "00200000"),
    "signature table magic": _edit(TABLE_AT, "2453474d"),
    "signature table too long": _edit(TABLE_AT + 8, "00ec0100"),
    "signature table with 2^32 - 1 entries": _edit(TABLE_AT + 8, "ffffffff"),
    "signature table empty": _edit(TABLE_AT + 8, "00000000"),
    "signature missing": _edit(_entry(3), "33000000"),
    "signature twice": _edit(_entry(7), "03000000"),
    "signature past the image": _edit(_entry(5, 0xC), "ffff1f00"),
    "signature offset wraps": _edit(_entry(5, 0xC), "00ffffff"),
    "signature of no bytes": _edit(_entry(1, 8), "00000000"),
    "signature size odd": _edit(_entry(7, 8), "c2010000"),
    "all blank": _edit(0, "ff" * layout.SIZE),
    "all zero": _edit(0, "00" * layout.SIZE),
}
"""name -> what is done to a valid image"""


def broken(name: str, seed: int = 0) -> bytes:
    """A valid image with one of BREAKAGES."""
    image = bytearray(fabricate(seed))
    BREAKAGES[name](image)
    return bytes(image)
