"""Firmware files for the bridge: what is taken, and what each wrong file is called."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from bridges.asm24.errors import ImageInvalid
from bridges.asm24.image import BLOCK_SIZE, Kind, block_problem, parse, wrap
from hw.errors import EXIT_REFUSED

BODY = bytes((13 * index + 5) & 0xFF for index in range(5000))


def application(draft: str, body: bytes = BODY) -> bytes:
    header = bytearray(0x40)
    header[:4] = b"A24F"
    if draft == "new":
        header[4] = 1
        header[5:9] = len(body).to_bytes(4, "little")
        header[9:13] = zlib.crc32(bytes(header[:9]) + body).to_bytes(4, "little")
    else:
        header[4 : 4 + 6] = b"v1.0.0"
        header[0x1B] = 1
        header[0x1C:0x20] = len(body).to_bytes(4, "little")
        header[0x20:0x24] = zlib.crc32(bytes(header[:0x20]) + body).to_bytes(4, "little")
    return bytes(header) + body


def block(number: int) -> bytes:
    data = bytearray(b"\xff" * BLOCK_SIZE)
    data[0x04:0x0A] = b"SERIAL"
    data[0x44:0x4B] = b"A board"
    data[0x74:0x78] = bytes.fromhex("4c176424")
    data[0x7E] = (0x5A, 0xA5)[number]
    data[0x7F] = sum(data[4:0x7F]) & 0xFF
    return bytes(data)


def test_whole_images_are_told_apart() -> None:
    assert parse(wrap(BODY)).kind is Kind.WRAPPED
    assert parse(application("new")).kind is Kind.APPLICATION_NEW
    assert parse(application("old")).kind is Kind.APPLICATION_OLD
    assert parse(wrap(BODY)).body == parse(application("old")).body == BODY


def test_wrapping_gives_the_published_trailer_of_a_known_body() -> None:
    body = bytes(range(256)) * 4
    image = wrap(body)
    assert image[:4] == (1024).to_bytes(4, "little")
    assert image[-6:] == bytes([0xA5, 0x00]) + (0xB70B4C26).to_bytes(4, "little")


def changed(data: bytes, place: int, value: int | None = None) -> bytes:
    result = bytearray(data)
    result[place] = result[place] ^ 1 if value is None else value
    return bytes(result)


WRONG: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "too short"),
    "cut": (lambda: wrap(BODY)[:-1], "length does not fit"),
    "longer": (lambda: wrap(BODY) + b"\0", "length does not fit"),
    "magic": (lambda: changed(wrap(BODY), -6, 0x00), "magic behind the body"),
    "body": (lambda: changed(wrap(BODY), 100), "sum of the body"),
    "crc": (lambda: changed(wrap(BODY), -1), "CRC of the body"),
    "too large": (lambda: wrap(bytes(0x20000)), "too large"),
    "older family by its magic": (lambda: changed(wrap(BODY), -6, 0x5A), "ASM236x"),
    "older family by its header": (lambda: block(0) + (1000).to_bytes(2, "little") + bytes(1002), "ASM236x"),
    "flash dump": (lambda: block(0) + block(1) + wrap(BODY), "dump of a bridge's whole flash"),
    "host controller": (lambda: bytes(6) + b"2324A_RCFG" + bytes(500), "USB host controller .2324A."),
    "expansion ROM": (lambda: b"\x55\xaa" + bytes(500), "no firmware for an ASM24xx"),
    "ELF": (lambda: b"\x7fELF" + bytes(500), "no firmware for an ASM24xx"),
    "application body": (lambda: changed(application("new"), 0x100), "application image is damaged"),
    "application header": (lambda: changed(application("old"), 0x30), "application image is damaged"),
    "application of another ABI": (lambda: changed(application("new"), 4, 9), "application image is damaged"),
    "application cut": (lambda: application("old")[:-1], "application image is damaged"),
    "application too large": (lambda: application("new", bytes(0xD001)), "application is too large"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_file_is_refused_by_name(name: str) -> None:
    data, text = WRONG[name]
    with pytest.raises(ImageInvalid, match=text) as caught:
        parse(data())
    assert caught.value.exit_status == EXIT_REFUSED and caught.value.remedy


def test_configuration_blocks_are_checked() -> None:
    assert block_problem(block(0), 0) == block_problem(block(1), 1) == ""
    assert "magic" in block_problem(block(1), 0)
    assert "sum" in block_problem(changed(block(0), 0x10), 0)
    assert block_problem(changed(block(0), 0x01), 0) == "", "the first four bytes are not summed"
