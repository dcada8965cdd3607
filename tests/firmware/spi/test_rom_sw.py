"""The ROM_SW engine's driver on the simulated card: effects on the card, and its registers afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridges.open import Selection, open_pci
from drivers.amd.flash import open_port
from firmware.spi.errors import ChipBusy, ChipSilent, EngineGated, EngineStuck, RomUnreachable
from firmware.spi.flash import SpiFlash
from hw.errors import BusLost
from hw.trace import TracedDevice
from mocks.amd.rom import Rom
from tests.firmware.spi.card import GPU, FlashCard


def test_the_chip_is_found_and_the_registers_are_as_before() -> None:
    card = FlashCard()
    before = card.registers()
    flash = SpiFlash.open(card.port.engine)
    assert (flash.chip.name, flash.identity.captured.hex()) == ("GD25LQ16", "c86015c8")
    assert card.registers() == before
    assert before["ROM_CNTL"] >> 24 & 0xF == 0, "the inherited prescaler does not work, so the driver must have set one"


def test_inside_a_session_pins_and_mode_are_led_to_software_and_other_bits_stay() -> None:
    card = FlashCard()
    before = card.registers()
    with card.port.engine.session():
        inside = card.registers()
    for name in ("GPIO_PAD_MASK", "GPIO_PAD_A", "GPIO_PAD_EN"):
        assert inside[name] == before[name] & ~0x780
    assert inside["PAGE_MIRROR_CNTL"] == before["PAGE_MIRROR_CNTL"] & 0xF1FFFFFF | 0x06000000
    assert inside["ROM_CNTL"] == before["ROM_CNTL"] & 0xE0FFFFF0 | 1 << 28 | 8 << 24 | 8
    assert card.registers() == before


def test_registers_are_restored_in_the_known_order() -> None:
    card = FlashCard()
    traced = TracedDevice(card.pci)
    engine = open_port(traced).engine
    with engine.session():
        traced.recorder.clear()
    offsets = [access.offset for access in traced.recorder.records if access.is_write]
    assert offsets == [0x5A3A0, 0x5A3A4, 0x5A380, 0x5A384, 0x5A508, 0x5A510, 0x5A504]


@pytest.mark.parametrize("pipelined", [True, False])
def test_both_reading_forms_give_the_flashs_content(pipelined: bool) -> None:
    card = FlashCard(content="noise")
    card.port.engine.pipelined = pipelined
    flash = SpiFlash.open(card.port.engine)
    assert flash.read(0, 0x8000) == card.content[:0x8000]
    assert flash.read(0x1F0, 0x321) == card.content[0x1F0 : 0x1F0 + 0x321]
    assert flash.read(0x1FFFFF, 1) == card.content[-1:]
    assert flash.read(5, 0) == b""
    assert card.port.engine.remarks == []


def test_the_pipelined_form_needs_about_half_the_transactions() -> None:
    def cycles(pipelined: bool) -> int:
        card = FlashCard()
        card.port.engine.pipelined = pipelined
        flash = SpiFlash.open(card.port.engine)
        before = card.chip.cycles
        flash.read(0, 0x20000)
        return card.chip.cycles - before

    assert cycles(False) == 2 * 512
    assert cycles(True) == 512 + 1 + 2 * 16, "N + 1, and a sample of one in 32 read again the validated way"


def test_an_engine_without_the_quirk_is_noticed_and_read_the_validated_way() -> None:
    """Its window shows the latest capture instead of the one before: pipelined data would be off by one piece."""
    card = FlashCard(content="noise", late_capture=False)
    flash = SpiFlash.open(card.port.engine)
    assert flash.read(0, 0x4000) == card.content[:0x4000]
    assert not card.port.engine.pipelined
    assert "differed from the validated one" in card.port.engine.remarks[0]


def test_sending_and_erasing_change_the_chip() -> None:
    card = FlashCard(content="noise")
    flash = SpiFlash.open(card.port.engine)
    flash.erase(0x10000, 0x1000)
    flash.program(0x10080, bytes(range(128)))
    assert card.content[0x10000:0x10100] == b"\xff" * 128 + bytes(range(128))
    assert card.content[0xFFFF] != 0xFF or card.content[0x11000] != 0xFF


def test_a_chip_that_is_still_at_what_a_killed_run_began_is_waited_for() -> None:
    card = FlashCard(content="noise")
    with card.port.engine.session():
        card.port.engine.send(0x06)
        card.port.engine.send(0x20, address=0x1000)
    assert card.chip.busy
    assert SpiFlash.open(card.port.engine).read(0x1000, 0x1000) == b"\xff" * 0x1000
    stuck = FlashCard(faults="flash-stuck-busy")
    with stuck.port.engine.session():
        stuck.port.engine.send(0x06)
        stuck.port.engine.send(0x20, address=0x1000)
    with pytest.raises(ChipBusy, match="the operation that the chip was found at did not end within 10 s"):
        SpiFlash.open(stuck.port.engine)


def test_a_gated_engine_is_refused_before_anything_is_written() -> None:
    card = FlashCard("navi31")
    traced = TracedDevice(card.pci)
    engine = open_port(traced).engine
    with pytest.raises(EngineGated) as caught, engine.session():
        pass
    assert caught.value.read == "ROM_SW_STATUS = 0x04000800"
    assert not [access for access in traced.recorder.records if access.is_write]


def test_an_engine_whose_status_does_not_clear_is_reported_and_left_as_found() -> None:
    card = FlashCard(faults="rom-stuck")
    before = card.registers()
    with pytest.raises(EngineStuck, match="does not clear") as caught:
        SpiFlash.open(card.port.engine)
    assert "0x00000002" in caught.value.read
    assert card.registers() == before


def test_a_transaction_that_is_never_done_is_given_up_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FlashCard()
    before = card.registers()
    monkeypatch.setattr(Rom, "_set_up", lambda self: False)
    start = card.machine.clock.now()
    with pytest.raises(EngineStuck, match="did not finish command 0x9f within 2 s"):
        SpiFlash.open(card.port.engine)
    assert 2.0 <= card.machine.clock.now() - start < 2.1
    assert card.registers() == before


def test_a_missing_chip_is_not_an_empty_one() -> None:
    with pytest.raises(ChipSilent, match="reading the id"):
        SpiFlash.open(FlashCard(faults="flash-absent").port.engine)


def test_an_unreachable_controller_is_told_from_a_lost_bus() -> None:
    with pytest.raises(RomUnreachable):
        SpiFlash.open(FlashCard("navi31-no-rom").port.engine)
    card = FlashCard()
    card.machine.function(GPU).link_up = False
    with pytest.raises(BusLost):
        SpiFlash.open(card.port.engine)


@pytest.mark.parametrize("at", [1, 10, 40, 75, 200, 1234])
def test_a_bus_that_is_lost_during_a_read_is_an_error_not_data(at: int) -> None:
    card = FlashCard(content="noise")
    flash = SpiFlash.open(card.port.engine)
    card.machine.watch_bus = True
    card.machine.faults.add("all-ones-at", "1")
    remaining = at

    def lose(function: object) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            card.machine.function(GPU).link_up = False

    card.machine.count_access = lose  # type: ignore[method-assign]
    with pytest.raises(BusLost):
        flash.read(0, 0x10000)


def test_a_session_within_a_session_is_the_same_session() -> None:
    card = FlashCard()
    before = card.registers()
    with card.port.engine.session():
        with card.port.engine.session():
            pass
        assert card.registers() != before
    assert card.registers() == before


def test_an_error_inside_restores_too() -> None:
    card = FlashCard()
    before = card.registers()
    with pytest.raises(RuntimeError), card.port.engine.session():
        raise RuntimeError
    assert card.registers() == before


def test_what_a_killed_run_left_changed_is_restored_by_the_next(tmp_path: Path) -> None:
    note = tmp_path / "held.json"
    card = FlashCard(held=note)
    before = card.registers()
    session = card.port.engine.session()
    session.__enter__()
    left = card.registers()
    assert left != before
    assert json.loads(note.read_text())["originals"] == before
    # the process is gone: nothing of it is restored; another one opens the same card
    other = open_port(card.pci, held=note)
    SpiFlash.open(other.engine)
    assert card.registers() == before
    assert not note.exists()


def test_a_note_that_does_not_fit_the_registers_is_ignored(tmp_path: Path) -> None:
    note = tmp_path / "held.json"
    note.write_text(json.dumps({"originals": dict.fromkeys(("ROM_CNTL",), 1), "settings": {}}))
    card = FlashCard(held=note)
    before = card.registers()
    SpiFlash.open(card.port.engine)
    assert card.registers() == before
    note.write_text("not json")
    SpiFlash.open(card.port.engine)
    assert card.registers() == before


def test_more_data_than_the_window_holds_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="up to 256"):
        FlashCard().port.engine.receive(0x03, 257, 0)


def test_over_a_usb_bridge_the_same_flash_is_read(tmp_path: Path) -> None:
    device = open_pci(Selection(mock="navi31-asm24-empty-flash", state=tmp_path))
    try:
        port = open_port(device)
        flash = SpiFlash.open(port.engine)
        flash.program(0x100, b"over the wire")
        before = device.counts.transfers  # type: ignore[attr-defined]
        data = flash.read(0, 0x1000)
        transfers = device.counts.transfers - before  # type: ignore[attr-defined]
        assert data == (b"\xff" * 256 + b"over the wire").ljust(0x1000, b"\xff")
        assert transfers < 16 * 30, "the window goes as one run, not dword by dword"
    finally:
        device.close()
