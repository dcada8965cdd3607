"""What the bridge's SPI flash holds: config blocks, wrapped firmware, boot-stub applications; and made-up ones for a simulated bridge.

The simulated chip cannot run 8051 code. It looks at an image as its boot code would (lengths, magic, checksums) and then runs the model
of the firmware that the image is: `identify` says which.
"""

from __future__ import annotations

import random
import re
import zlib
from dataclasses import dataclass

CONFIG_SIZE = 0x80
CONFIG_MAGIC = (0x5A, 0xA5)
CONFIG_FIELDS = {"serial": (0x04, 20), "manufacturer": (0x18, 36), "t10_vendor": (0x3C, 8), "product": (0x44, 32), "t10_product": (0x64, 16)}
"""strings of block 0: offset, size, 0xFF padded"""
IMAGE_AT = 0x100
LARGEST_IMAGE = 0x20000
"""bytes that the boot ROM looks at"""
WRAPPED_MAGIC = 0xA5
TRAILER = 6
STUB_MARK = b"boot stub"
STUB_SIZE = 0x3000
APPLICATION_AT, APPLICATION_HEADER, APPLICATION_END = 0x4000, 0x40, 0x11040
APPLICATION_MAGIC = b"A24F"
APPLICATION_ABI = 1
STOCK_BODY = 0x8000 + 2 * 0x7F6B
CUSTOM_BODY = 0x9000


@dataclass(frozen=True)
class Identity:
    """Which firmware an image is. kind: "stock", "custom", "stub". product: its product string where it has one."""

    kind: str
    product: str = ""


def config_block(number: int, ids: tuple[int, int, int] = (0, 0, 0), **strings: str) -> bytes:
    """One config block. ids: vendor, product, bcdDevice (block 0)."""
    block = bytearray(b"\xff" * CONFIG_SIZE)
    if number == 0:
        for name, text in strings.items():
            offset, size = CONFIG_FIELDS[name]
            block[offset : offset + size] = text.encode("ascii")[:size].ljust(size, b"\xff")
        for position, value in enumerate(ids):
            block[0x74 + 2 * position : 0x76 + 2 * position] = value.to_bytes(2, "little")
        block[0x7A:0x7E] = bytes([0xCF, 0xFF, 0x02, 0xFF])
    else:
        block[0x04:0x04 + 8] = b"SIMBOARD"
        block[0x2C:0x2C + 8] = b"BRIDGE 1"
    block[0x7E] = CONFIG_MAGIC[number]
    block[0x7F] = sum(block[0x04:0x7F]) & 0xFF
    return bytes(block)


def config_valid(block: bytes, number: int) -> bool:
    """Magic and sum of a config block."""
    return block[0x7E] == CONFIG_MAGIC[number] and block[0x7F] == sum(block[0x04:0x7F]) & 0xFF


def config_string(block: bytes, name: str) -> str:
    offset, size = CONFIG_FIELDS[name]
    return block[offset : offset + size].rstrip(b"\xff\0 ").decode("latin-1")


def wrap(body: bytes) -> bytes:
    """A body as ROM and stock firmware want it in the flash: length, body, magic, sum, CRC-32."""
    return len(body).to_bytes(4, "little") + body + bytes([WRAPPED_MAGIC, sum(body) & 0xFF]) + zlib.crc32(body).to_bytes(4, "little")


def unwrap(image: bytes) -> bytes | None:
    """The body of a wrapped image that starts here; None when it is not whole."""
    size = int.from_bytes(image[:4], "little")
    end = 4 + size
    if not 0 < size <= len(image) - 4 - TRAILER:
        return None
    body = image[4:end]
    good = image[end] == WRAPPED_MAGIC and image[end + 1] == sum(body) & 0xFF and image[end + 2 : end + 6] == zlib.crc32(body).to_bytes(4, "little")
    return body if good else None


def application(body: bytes) -> bytes:
    """A boot-stub application, newer draft: magic, ABI, length, CRC over the header's start and the body."""
    start = APPLICATION_MAGIC + bytes([APPLICATION_ABI]) + len(body).to_bytes(4, "little")
    return (start + zlib.crc32(start + body).to_bytes(4, "little")).ljust(APPLICATION_HEADER, b"\0") + body


def application_body(image: bytes) -> bytes | None:
    """The body of a boot-stub application that starts here; None when header or CRC are bad."""
    size = int.from_bytes(image[5:9], "little")
    if image[:4] != APPLICATION_MAGIC or image[4] != APPLICATION_ABI or not 0 < size <= APPLICATION_END - APPLICATION_AT - APPLICATION_HEADER:
        return None
    body = image[APPLICATION_HEADER : APPLICATION_HEADER + size]
    return body if zlib.crc32(image[:9] + body).to_bytes(4, "little") == image[9:13] else None


def identify(body: bytes) -> Identity | None:
    """Which firmware a body is, None for one that nobody knows."""
    if STUB_MARK in body[:0x100]:
        return Identity("stub")
    plain = body.replace(b"\0", b"")
    found = re.search(rb"custom [0-9A-Za-z.\-]{2,40}", body) or re.search(rb"custom [0-9A-Za-z.\-]{2,40}", plain)
    if found is not None and len(body) < 0x10000:
        return Identity("custom", found.group().decode("ascii"))
    return Identity("stock") if len(body) == STOCK_BODY else None


def made_up(kind: str, product: str, seed: int) -> bytes:
    """A body of noise that `identify` knows."""
    size = {"stock": STOCK_BODY, "custom": CUSTOM_BODY, "stub": STUB_SIZE}[kind]
    body = bytearray(random.Random(f"{kind} {seed}").randbytes(size))
    mark = {"stock": b"ASMedia", "custom": product.encode("ascii") + b"\0", "stub": STUB_MARK + b"\0"}[kind]
    body[0x40 : 0x40 + len(mark)] = mark
    return bytes(body)
