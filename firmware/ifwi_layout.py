"""Where things are in a Navi31 IFWI image, the content of the card's 2 MiB flash. Facts only; offsets and sizes in bytes.

Source: the flash tools of a GPU project (items as its early PSP mailbox asks for them). Fields that are not named there are unknown.
"""

from __future__ import annotations

SIZE = 0x200000
MAGIC = bytes.fromhex("aa55aa55")
"""first bytes of a bootable image"""
DIRECTORY_MAGIC = b"$PSP"
SIGNATURE_MAGIC = b"$SGN"
COOKIE_MAGIC = b"$AMDVBFL"
"""what the firmware leaves in the flash when it updates it"""

HEADER = 0x01
DIRECTORIES = {0x02: 0x2000, 0x03: 0x3000}
SLOTS = {0x06: 0x12000, 0x07: 0x13000}
"""image slot headers (ISH) of the two partitions"""
PAYLOAD = 0x08
SIGNATURE_POINTER = 0x80
SIGNATURE_TABLE = 0x81
FIRST_SIGNATURE, LAST_SIGNATURE = 0x82, 0x88

FIXED: dict[int, tuple[int, int]] = {
    HEADER: (0x0, 0x54),
    0x04: (0x10000, 0x1000),
    0x05: (0x11000, 0x1000),
    0x06: (SLOTS[0x06], 0x20),
    0x07: (SLOTS[0x07], 0x20),
    SIGNATURE_POINTER: (0x1000, 0x4),
    0x89: (0x1F0000, 0x100),
}
"""items at fixed places: offset, size"""

ITEMS = (*range(0x01, 0x09), *range(0x80, 0x8A))

TABLE_COUNT = 8
"""offset of the entry count (u32) in directories and in the signature table; one entry of the header and each entry have this size:"""
TABLE_ENTRY = 16

SLOT_PAYLOAD_OFFSET = 0x10
SLOT_PAYLOAD_SIZE = 0x18
"""u32 each, in a slot header"""

SIGNATURE_TYPE, SIGNATURE_SIZE, SIGNATURE_OFFSET = 0x0, 0x8, 0xC
"""u32 each, in an entry of the signature table"""
SIGNATURE_TYPE_OF_ITEM = 0x81
"""the signature for item n has type n - 0x81"""

UPDATE_METADATA = (0x1EF000, 0x1F0000)
"""start and end of the place whose content the firmware changes when it updates the flash"""

ITEM_NAMES = {
    0x01: "header",
    0x02: "PSP directory 1",
    0x03: "PSP directory 2",
    0x04: "block at 0x10000",
    0x05: "block at 0x11000",
    0x06: "slot header A",
    0x07: "slot header B",
    0x08: "payload",
    0x80: "pointer to the signature table",
    0x81: "signature table",
    **{item: f"signature of type {item - SIGNATURE_TYPE_OF_ITEM}" for item in range(FIRST_SIGNATURE, LAST_SIGNATURE + 1)},
    0x89: "block at 0x1f0000",
}
