"""The ROM_INDEX aperture's driver, and the choice between the ways to a flash."""

from __future__ import annotations

import pytest

from firmware.spi.errors import ApertureByteOrder, ApertureMirrored, ChipUnknown, EngineGated, EngineStuck, ImageRefused, RomUnreachable
from firmware.spi.method import choose
from hw.errors import BusLost, OutOfWindow, UsageError
from tests.firmware.spi.card import GPU, FlashCard


def aperture_state(card: FlashCard) -> tuple[int, int]:
    gpu = card.machine.gpus[0]
    return gpu.reg("SMUIO", "ROM_CNTL").value, gpu.reg("SMUIO", "ROM_INDEX").value


def test_a_booted_cards_flash_is_read_whole_and_the_registers_are_as_before() -> None:
    card = FlashCard("navi31")
    card.machine.gpus[0].reg("SMUIO", "ROM_INDEX").value = 0x340
    before = aperture_state(card)
    content = card.port.aperture.read(0, 0x200000)
    assert content == card.content
    card.port.aperture.check(content)
    assert card.port.aperture.byte_order == "swapped"
    assert aperture_state(card) == before


def test_parts_are_read_from_any_offset() -> None:
    card = FlashCard("navi31")
    for offset, size in ((0, 1), (0xFFFE, 4), (0x14000, 16), (0x1FFFF0, 16), (0x2FFFF, 0x10002)):
        assert card.port.aperture.read(offset, size) == card.content[offset : offset + size]
    with pytest.raises(OutOfWindow):
        card.port.aperture.read(0x1FFFFF, 2)


def test_a_stalled_card_takes_plain_values() -> None:
    card = FlashCard(content="noise")
    before = aperture_state(card)
    assert card.port.aperture.read(0x30000, 64) == card.content[0x30000:0x30040]
    assert card.port.aperture.byte_order == "plain"
    assert aperture_state(card) == before


def test_an_unclear_byte_order_is_refused_with_the_index_put_back() -> None:
    card = FlashCard("navi31", byte_order="garbled")
    control = aperture_state(card)[0]
    with pytest.raises(ApertureByteOrder) as caught:
        card.port.aperture.read(0, 4)
    assert caught.value.exit_status == 4
    assert caught.value.read == "wrote 0x00001200, read 0x00012000"
    assert aperture_state(card) == (control, 0)


def test_a_mirrored_aperture_is_refused() -> None:
    card = FlashCard("navi31-mirrored-rom")
    content = card.port.aperture.read(0, 0x200000)
    with pytest.raises(ApertureMirrored) as caught:
        card.port.aperture.check(content)
    assert caught.value.exit_status == 4


def test_what_does_not_begin_like_an_image_or_is_short_is_refused() -> None:
    card = FlashCard("navi31")
    with pytest.raises(ImageRefused, match="does not begin like"):
        card.port.aperture.check(b"\xff" * 0x200000)
    with pytest.raises(ImageRefused, match="0x10 bytes instead of"):
        card.port.aperture.check(bytes(16))


def test_an_unreachable_controller_and_a_lost_bus() -> None:
    with pytest.raises(RomUnreachable):
        FlashCard("navi31-no-rom").port.aperture.read(0, 4)
    card = FlashCard("navi31")
    card.machine.function(GPU).link_up = False
    with pytest.raises(BusLost):
        card.port.aperture.read(0, 4)


@pytest.mark.parametrize("after", [3, 6, 700, 16500])
def test_a_bus_that_is_lost_while_reading_is_an_error_not_a_blank_flash(after: int) -> None:
    card = FlashCard("navi31")
    card.machine.watch_bus = True
    left = after

    def lose(function: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            card.machine.function(GPU).link_up = False

    card.machine.count_access = lose  # type: ignore[method-assign]
    with pytest.raises(BusLost):
        card.port.aperture.read(0, 0x20000)


# --- choosing ---


def test_a_stalled_card_is_reached_by_the_engine_and_a_booted_one_by_the_aperture() -> None:
    stalled = FlashCard()
    chosen = choose(stalled.port.engine, stalled.port.aperture)
    assert (chosen.method, chosen.read_only) == ("rom-sw", None)
    assert "the chip answers c8 60 15 c8" in chosen.reasons[-1]
    booted = FlashCard("navi31")
    chosen = choose(booted.port.engine, booted.port.aperture)
    assert chosen.method == "rom-index"
    assert isinstance(chosen.read_only, EngineGated)
    assert any("0x04000800" in reason for reason in chosen.reasons)
    assert "byte-swapped" in chosen.reasons[-1]


def test_a_stuck_engine_leaves_the_aperture_to_read_through() -> None:
    card = FlashCard(faults="rom-stuck", content="noise")
    chosen = choose(card.port.engine, card.port.aperture)
    assert chosen.method == "rom-index"
    assert isinstance(chosen.read_only, EngineStuck)
    assert chosen.source.read(0, 16) == card.content[:16]


def test_what_cannot_be_used_says_so() -> None:
    card = FlashCard("navi31")
    with pytest.raises(EngineGated):
        choose(card.port.engine, card.port.aperture, "rom-sw")
    with pytest.raises(UsageError, match="no method jtag"):
        choose(card.port.engine, card.port.aperture, "jtag")
    card = FlashCard("navi31-no-rom")
    with pytest.raises(RomUnreachable):
        choose(card.port.engine, card.port.aperture)
    card = FlashCard("navi31-unknown-flash")
    with pytest.raises(ChipUnknown) as caught:
        choose(card.port.engine, card.port.aperture)
    assert caught.value.exit_status == 4
    assert caught.value.read == "id bytes 1c 30 15 1c, no usable SFDP table"
