"""The table of chips, protection bits, SFDP, and identification."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware.spi import sfdp
from firmware.spi.chips import chips, find
from firmware.spi.errors import ChipSilent, ChipUnknown
from firmware.spi.flash import SpiFlash
from firmware.spi.protection import SCHEMES, complemented
from mocks.spi_model import ChipModel
from tests.firmware.spi.card import FlashCard
from tests.firmware.spi.support import Wire, make_chip

TABLE = list(chips().values())


def test_the_table_is_complete_and_consistent() -> None:
    assert {chip.vendor for chip in TABLE} == {"GigaDevice", "Winbond", "Macronix"}
    assert {chip.size >> 20 for chip in TABLE} == {1, 2, 4, 8, 16}
    for chip in TABLE:
        assert chip.size == 1 << chip.jedec[2] or chip.jedec[:2] == b"\xc2\x25", "the third id byte tells the size, except in the MX25U family"
        assert (chip.sector, chip.page) == (0x1000, 256)
        assert chip.erases[0x1000] == 0x20
        assert all(chip.size % size == 0 for size in chip.erases)
        assert 0 < chip.program.typical < chip.program.limit
        assert chip.erase_time(0x10000) > chip.erase_time(0x1000) == chip.erase.typical


@pytest.mark.parametrize("turn", range(4))
def test_a_rotated_capture_is_recognised(turn: int) -> None:
    capture = bytes.fromhex("c86015c8")
    rotated = capture[-turn:] + capture[:-turn] if turn else capture
    found = find(rotated)
    assert found is not None
    assert found[0].name == "GD25LQ16"
    card = FlashCard(id_rotation=turn)
    identity = SpiFlash.open(card.port.engine).identity
    assert (identity.chip.name, identity.captured) == ("GD25LQ16", rotated)


@pytest.mark.parametrize("chip", TABLE, ids=lambda chip: chip.name)
def test_every_row_is_found_by_its_id(chip) -> None:  # type: ignore[no-untyped-def]
    model = ChipModel(chip.name, chip.jedec, chip.size)
    assert SpiFlash.open(Wire(make_chip(model))).chip is chip


def test_an_id_of_equal_bytes_is_no_chip() -> None:
    for byte in (0x00, 0xFF):
        with pytest.raises(ChipSilent):
            SpiFlash.open(Wire(make_chip(ChipModel("dead", bytes([byte] * 3), 0x100000))))


@pytest.mark.parametrize("size", sorted({chip.size for chip in TABLE}))
def test_protection_bits_mean_what_the_simulated_chip_makes_of_them(size: int) -> None:
    """Two readings of the same data sheets, compared for every combination of the bits."""
    model = ChipModel("x", b"\xc8\x60\x15", size)
    for sr1 in range(0, 0x80, 4):
        for sr2 in (0, 0x40):
            ours, theirs = complemented(sr1, sr2, size), model.protected(sr1, sr2)
            assert (ours.start, ours.end) == theirs or (ours.nothing and theirs[0] >= theirs[1]), (hex(sr1), hex(sr2))


def test_protection_is_explained() -> None:
    cmp_alone = complemented(0, 0x40, 0x200000)
    assert cmp_alone.by_cmp
    assert cmp_alone.why == "BP4..BP0 = 00000, CMP = 1: the whole array is protected, because CMP turns 'nothing' into 'everything'"
    assert complemented(0x04, 0, 0x200000).why == "BP4..BP0 = 00001, CMP = 0: 0x1f0000 to 0x1fffff is protected"
    assert "write protect pin" in complemented(0x80, 0, 0x200000).locked
    assert "power cycle" in complemented(0, 1, 0x200000).locked
    assert "for good" in complemented(0x80, 1, 0x200000).locked


def test_schemes_that_are_not_known_exactly_take_any_bit_for_protection() -> None:
    for scheme in ("bp", "unknown"):
        assert SCHEMES[scheme](0, 0, 0x100000).nothing
        found = SCHEMES[scheme](0x10, 0, 0x100000)
        assert found.covers(0, 1)
        assert not found.exact
    assert SCHEMES["unknown"](0, 0x40, 0x100000).covers(0xFFFFF, 0x100000)


# --- SFDP ---


def test_a_chip_that_is_in_no_table_is_known_by_its_own_description() -> None:
    card = FlashCard("navi31-sfdp-flash")
    flash = SpiFlash.open(card.port.engine)
    chip = flash.chip
    assert (chip.size, chip.sector, chip.page, chip.erases) == (0x200000, 0x1000, 256, {0x1000: 0x20, 0x8000: 0x52, 0x10000: 0xD8})
    assert chip.jedec.hex() == "0b4015"
    assert flash.identity.sfdp_offset == 1, "the capture keeps the dummy byte"
    assert chip.erase.typical == pytest.approx(0.048)
    assert chip.program.typical == pytest.approx(640e-6)
    flash.erase(0x8000, 0x8000)
    flash.program(0x8000, b"works")
    assert card.content[0x8000:0x8006] == b"works\xff"


def described(dwords: list[int], *, pointer: int = 0x30, length: int | None = None, magic: bytes = b"SFDP") -> bytes:
    """An SFDP area with one basic table."""
    header = magic + bytes([6, 1, 0, 0xFF]) + bytes([0, 6, 1, len(dwords) if length is None else length]) + pointer.to_bytes(3, "little") + b"\xff"
    return header.ljust(pointer, b"\xff") + struct.pack(f"<{len(dwords)}I", *dwords)


GOOD = [0xFFF120E5, 0x00FFFFFF, 0, 0, 0, 0, 0, 0x520F200C, 0x0000D810]


def open_described(area: bytes) -> SpiFlash:
    return SpiFlash.open(Wire(make_chip(ChipModel("x", b"\x0b\x40\x15", 0x200000, sfdp=area))))


def test_a_first_release_table_has_no_times_and_works() -> None:
    chip = open_described(described(GOOD)).chip
    assert (chip.size, chip.erase.typical) == (0x200000, 0.05)


@pytest.mark.parametrize(
    "area",
    [
        described(GOOD, magic=b"SFDX"),
        described(GOOD[:8]),
        described(GOOD, length=8),
        described([*GOOD[:1], 0x80000021, *GOOD[2:]]),
        described([*GOOD[:1], 0x01000000, *GOOD[2:]]),
        described([*GOOD[:7], 0, 0]),
        described([*GOOD[:7], 0xD8100000, 0]),
    ],
    ids=["magic", "table cut short", "header claims too little", "1 GiB", "odd size", "no erase", "no sector erase"],
)
def test_descriptions_that_make_no_sense_are_refused(area: bytes) -> None:
    with pytest.raises(ChipUnknown):
        open_described(area)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=0, max_size=128))
def test_noise_in_place_of_a_description_never_leads_astray(noise: bytes) -> None:
    try:
        chip = open_described(b"SFDP" + noise).chip
    except ChipUnknown:
        return
    assert chip.size <= 1 << 24
    assert all(chip.size % size == 0 for size in chip.erases)


def test_the_basic_tables_place_comes_from_the_header() -> None:
    assert sfdp.parameter_table(described(GOOD, pointer=0x80)[:16]) == (0x80, 9)
    assert sfdp.parameter_table(b"SFDP") is None
    assert open_described(described(GOOD, pointer=0x80)).chip.size == 0x200000
