"""Plans, the journal, and writing on a simulated chip: what ends up in it, and what is said when it does not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware.spi.chips import chips
from firmware.spi.errors import ChipBusy, ChipProtected, StatusUnchanged, VerifyFailed, WriteEnableFailed
from firmware.spi.flash import SpiFlash
from firmware.spi.journal import Journal
from firmware.spi.plan import Plan, make_plan
from firmware.spi.writer import Writer, check_protection, first_difference
from mocks.spi import SpiChip
from mocks.spi_model import CMP, SRP0, ChipModel
from tests.firmware.spi.support import SIZE, make_chip, make_flash

CHIP = chips()[bytes.fromhex("c86015")]
SECTOR = 0x1000
SMALL = ChipModel("GD25LQ80", bytes.fromhex("c86014"), 0x100000)
NOISE = random.Random(7).randbytes(SIZE)


def plan_of(current: bytes, image: bytes, start: int = 0, count: int = 512, unfinished: tuple[int, ...] = ()) -> Plan:
    return make_plan(CHIP, current, image, start, count, unfinished)


def changed(content: bytes, *places: int) -> bytes:
    data = bytearray(content)
    for place in places:
        data[place] ^= 0x55
    return bytes(data)


def write(chip: SpiChip, image: bytes, journal: Journal, start: int = 0, count: int | None = None, *, clear_cmp: bool = False) -> Writer:
    """Plan and write as the command does."""
    flash = make_flash(chip)
    sectors = chip.model.size // SECTOR
    count = sectors - start if count is None else count
    unfinished = journal.load()
    present = flash.read(0, flash.size)
    plan = make_plan(flash.chip, present, image, start, count, unfinished.damaged if unfinished else ())
    if plan.nothing_to_do:
        return Writer(flash, image, plan, journal)
    clear = check_protection(flash, flash.status(), plan, clear_cmp=clear_cmp)
    writer = Writer(flash, image, plan, journal)
    writer.run(name="image.bin", clear_cmp=clear)
    return writer


# --- plans ---


def test_equal_content_needs_nothing() -> None:
    assert plan_of(NOISE, NOISE).nothing_to_do


def test_only_sectors_that_differ_are_touched() -> None:
    plan = plan_of(NOISE, changed(NOISE, 5 * SECTOR + 7, 77 * SECTOR), start=1, count=511)
    assert plan.differing == [5, 77]
    assert plan.sectors == [5, 77]
    assert plan.erases == {SECTOR: 2}
    assert plan.ranges == [(5 * SECTOR, 6 * SECTOR), (77 * SECTOR, 78 * SECTOR)]
    assert not plan.sealed


def test_blank_sectors_are_programmed_without_an_erase() -> None:
    blank = b"\xff" * SIZE
    image = blank[: 8 * SECTOR] + NOISE[8 * SECTOR : 10 * SECTOR] + blank[10 * SECTOR :]
    plan = plan_of(blank, image, start=1, count=511)
    assert plan.erases == {}
    assert plan.sectors == [8, 9]
    assert plan.program_bytes == 2 * SECTOR
    assert plan.device_seconds == pytest.approx(32 * CHIP.program.typical)


def test_a_page_that_is_partly_programmed_needs_an_erase_even_where_bits_would_only_clear() -> None:
    current = b"\xff" * 0x1100 + b"\xf0" + b"\xff" * (SIZE - 0x1101)
    image = b"\xff" * 0x1100 + b"\xf0\x00" + b"\xff" * (SIZE - 0x1102)
    assert plan_of(current, image, 1, 511).erases == {SECTOR: 1}


def test_large_erases_are_used_only_where_all_their_sectors_need_one() -> None:
    other = random.Random(8).randbytes(SIZE)
    image = NOISE[: 0x20000] + other[0x20000:0x30000] + NOISE[0x30000:0x38000] + other[0x38000:0x40000] + NOISE[0x40000:0x41000] + other[0x41000:0x50000] + NOISE[0x50000:]
    assert plan_of(NOISE, image, 1, 511).erases == {SECTOR: 7, 0x8000: 2, 0x10000: 1}
    assert plan_of(NOISE, other).erases == {SECTOR: 8, 0x8000: 1, 0x10000: 31}, "sector 0 is erased by itself, and its block with it"
    assert plan_of(NOISE, other, start=33, count=15).erases == {SECTOR: 7, 0x8000: 1}, "nothing outside the range"


def test_sector_0_is_erased_first_and_written_last() -> None:
    plan = plan_of(NOISE, changed(NOISE, 100 * SECTOR))
    assert plan.sealed
    assert [(step.offset, step.size, step.program) for step in plan.steps] == [(0, SECTOR, ()), (100 * SECTOR, SECTOR, (100,)), (0, 0, (0,))]
    blank = b"\xff" * SIZE
    assert [step.size for step in plan_of(blank, NOISE[:SECTOR] + blank[SECTOR:]).steps] == [0], "a blank one needs no erase"


def test_sectors_that_an_interrupted_write_has_begun_are_done_again_even_where_they_read_right() -> None:
    plan = plan_of(NOISE, NOISE, start=1, count=99, unfinished=(5, 200))
    assert (plan.differing, plan.redo, plan.sectors) == ([], [5], [5])
    assert plan.erases == {SECTOR: 1}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_carrying_out_a_plan_gives_the_image_in_the_range_and_touches_nothing_else(data: st.DataObject) -> None:
    """By hand on plain bytes: erase, then clear bits."""
    source = random.Random(data.draw(st.integers(0, 2**32)))
    sectors = 64
    chip = CHIP
    pools = [b"\xff" * SECTOR, bytes(SECTOR), source.randbytes(SECTOR), source.randbytes(SECTOR)]
    current = b"".join(source.choice(pools) for _ in range(sectors))
    image = b"".join(source.choice([current[n * SECTOR : (n + 1) * SECTOR], *pools]) for n in range(sectors))
    start = data.draw(st.integers(0, sectors - 1))
    count = data.draw(st.integers(1, sectors - start))
    begun = tuple(data.draw(st.lists(st.integers(0, sectors - 1), max_size=5)))
    plan = make_plan(chip, current, image, start, count, begun)
    held = bytearray(current)
    for step in plan.steps:
        assert set(step.touched) >= set(step.program)
        if step.size:
            assert start * SECTOR <= step.offset and step.offset + step.size <= (start + count) * SECTOR
            held[step.offset : step.offset + step.size] = b"\xff" * step.size
        for number in step.program:
            here = slice(number * SECTOR, (number + 1) * SECTOR)
            held[here] = bytes(old & new for old, new in zip(held[here], image[here], strict=True))
    inside = slice(start * SECTOR, (start + count) * SECTOR)
    assert held[inside] == image[inside]
    assert held[: start * SECTOR] == current[: start * SECTOR]
    assert held[(start + count) * SECTOR :] == current[(start + count) * SECTOR :]


# --- the journal ---


def test_the_journal_tells_what_is_left(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sub" / "write.jsonl")
    assert journal.load() is None
    journal.start(image="ab", name="x.bin", start=0, count=8, chip="c86015", damaged=[7])
    journal.begin([0, 1])
    journal.done([0])
    journal.close()
    found = journal.load()
    assert found is not None
    assert (found.image, found.done, found.damaged) == ("ab", {0}, {1, 7})


def test_a_last_line_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "write.jsonl")
    journal.start(image="ab", name="x.bin", start=0, count=8, chip="c86015", damaged=[])
    journal.begin([3])
    journal.close()
    journal.path.write_text(journal.path.read_text() + '["done",[3')
    found = journal.load()
    assert found is not None
    assert found.damaged == {3}


def test_a_damaged_journal_is_not_used(tmp_path: Path) -> None:
    for text in ("", "{}\n", "[1]\n", '{"image": "x"\n', '{"image":"","name":"","start":0,"count":1,"chip":"","damaged":[]}\n["begin"]\n'):
        (tmp_path / "write.jsonl").write_text(text)
        assert Journal(tmp_path / "write.jsonl").load() is None


# --- writing ---


@pytest.mark.parametrize("present", ["blank", "noise"])
def test_a_whole_image_is_written_over_anything(present: str, tmp_path: Path) -> None:
    content = {"blank": b"\xff" * SMALL.size, "noise": NOISE[: SMALL.size]}[present]
    chip = make_chip(SMALL, content=content)
    image = random.Random(3).randbytes(SMALL.size)
    journal = Journal(tmp_path / "write.jsonl")
    writer = write(chip, image, journal)
    assert chip.memory.read(0, SMALL.size) == image
    assert writer.report.sectors == 256
    assert journal.load() is None
    assert write(chip, image, journal).report.sectors == 0, "a second time there is nothing to do"


def test_the_bytes_a_card_boots_by_are_programmed_last_of_all(tmp_path: Path) -> None:
    chip = make_chip(SMALL, content=NOISE[: SMALL.size])
    image = random.Random(3).randbytes(0x4000) + NOISE[0x4000 : SMALL.size]
    seen: list[tuple[int, int]] = []
    original = SpiChip._program

    def watching(self: SpiChip, sent: bytes, receive: int, now: float) -> bytes:
        seen.append((int.from_bytes(sent[1:4], "big"), len(sent) - 4))
        return original(self, sent, receive, now)

    chip._HANDLERS = {**SpiChip._HANDLERS, 0x02: watching}  # type: ignore[misc]
    write(chip, image, Journal(tmp_path / "j"))
    assert seen[-3:] == [(0x100, 256), (4, 252), (0, 4)]


def test_nothing_outside_the_range_changes(tmp_path: Path) -> None:
    chip = make_chip(content=NOISE)
    image = random.Random(3).randbytes(SIZE)
    write(chip, image, Journal(tmp_path / "j"), start=17, count=30)
    held = chip.memory.read(0, SIZE)
    assert held == NOISE[: 17 * SECTOR] + image[17 * SECTOR : 47 * SECTOR] + NOISE[47 * SECTOR :]


def test_a_worn_out_cell_stops_the_write_with_its_address_and_both_bytes(tmp_path: Path) -> None:
    chip = make_chip(content=NOISE, faults="flash-worn=0x5123")
    image = changed(NOISE, *range(0x4000, 0x8000, 0x100))
    journal = Journal(tmp_path / "j")
    with pytest.raises(VerifyFailed) as caught:
        write(chip, image, journal, start=1, count=511)
    assert caught.value.address == 0x5123
    assert caught.value.what == "the flash differs at 0x005123"
    assert caught.value.read == f"{image[0x5123] ^ 1:#04x} where {image[0x5123]:#04x} should be"
    assert caught.value.remedy.startswith("1 of 4 sectors are written and read back, sector 5 (0x5000) and 2 more are not")
    found = journal.load()
    assert found is not None
    assert (found.done, found.damaged) == ({4}, {5})


def test_a_chip_that_stays_busy_is_given_up(tmp_path: Path) -> None:
    chip = make_chip(content=NOISE, faults="flash-stuck-busy")
    with pytest.raises(ChipBusy, match="erasing 0x1000 bytes at 0x5000 did not end within 2 s"):
        write(chip, changed(NOISE, 0x5000), Journal(tmp_path / "j"), start=1, count=511)


def test_a_chip_that_takes_no_write_enable_is_an_error() -> None:
    chip = make_chip(content=NOISE)
    flash = make_flash(chip)
    chip._HANDLERS = {**SpiChip._HANDLERS, 0x06: SpiChip._write_disable}  # type: ignore[misc]
    with pytest.raises(WriteEnableFailed) as caught:
        flash.erase(0, SECTOR)
    assert caught.value.read == "SR1 = 0x00"
    assert chip.memory.read(0, SIZE) == NOISE


def test_marginal_sectors_that_read_right_are_written_again_after_an_interruption(tmp_path: Path) -> None:
    """Cells that a power cut left between two states can read right once; only the journal knows."""
    image = changed(NOISE, 0x5000)
    first = make_chip(content=NOISE, folder=tmp_path / "card", faults="flash-power-cut=4096")
    journal = Journal(tmp_path / "j")
    with pytest.raises(Exception, match="no power"):
        write(first, image, journal, start=1, count=511)
    assert journal.load() is not None
    second = make_chip(folder=tmp_path / "card")
    second.memory.write(0x5000, image[0x5000:0x6000])
    second._flutter = lambda address, data: data  # type: ignore[method-assign] # by chance every marginal cell reads right this time
    writer = write(second, image, journal, start=1, count=511)
    assert (writer.report.sectors, writer.report.erases) == (1, 1)
    assert second._lasting["weak"] == []


def test_an_unfinished_write_elsewhere_stays_noted(tmp_path: Path) -> None:
    chip = make_chip(content=NOISE)
    journal = Journal(tmp_path / "j")
    journal.start(image="other", name="", start=0, count=512, chip="c86015", damaged=[3, 300])
    journal.close()
    image = random.Random(3).randbytes(SIZE)
    writer = write(chip, image, journal, start=290, count=20)
    assert writer.report.damaged_elsewhere == [3]
    found = journal.load()
    assert found is not None
    assert found.damaged == {3}
    write(chip, image, journal, start=0, count=10)
    assert journal.load() is None


# --- protection ---


def protected(status: tuple[int, int, int], **more: bool) -> tuple[SpiChip, SpiFlash, bytes, Plan]:
    chip = make_chip(ChipModel("GD25LQ16", bytes.fromhex("c86015"), SIZE, status=status, **more), content=NOISE)
    image = changed(NOISE, 0x1F5000)
    return chip, make_flash(chip), image, plan_of(NOISE, image, 1, 511)


def test_protection_is_told_before_anything_happens() -> None:
    chip, flash, _, plan = protected((0x04, 0, 0))
    with pytest.raises(ChipProtected) as caught:
        check_protection(flash, flash.status(), plan, clear_cmp=True)
    assert caught.value.read == "SR1 = 0x04, SR2 = 0x00; BP4..BP0 = 00001, CMP = 0: 0x1f0000 to 0x1fffff is protected"
    assert "clears CMP alone" in caught.value.remedy
    assert set(chip.commands) == {0x9F, 0x05, 0x35, 0x15}


def test_protection_elsewhere_does_not_matter() -> None:
    _, flash, _, plan = protected((0x24, 0, 0))
    assert check_protection(flash, flash.status(), plan, clear_cmp=False) is False


def test_cmp_is_cleared_only_with_consent_and_every_other_bit_is_kept(tmp_path: Path) -> None:
    chip, flash, image, plan = protected((0x00, CMP | 0x02, 0x20))
    with pytest.raises(ChipProtected, match="protects itself") as caught:
        check_protection(flash, flash.status(), plan, clear_cmp=False)
    assert "--clear-cmp" in caught.value.remedy
    assert check_protection(flash, flash.status(), plan, clear_cmp=True) is True
    write(chip, image, Journal(tmp_path / "j"), start=1, count=511, clear_cmp=True)
    assert [chip.status(number) for number in range(3)] == [0, 0x02, 0x20]
    assert chip.memory.read(0, SIZE) == image


def test_clearing_cmp_is_refused_where_it_would_not_help() -> None:
    _, flash, _, plan = protected((0x24, CMP, 0))
    assert flash.protection().why.endswith("0x10000 to 0x1fffff is protected")
    assert check_protection(flash, flash.status(), plan, clear_cmp=True) is True
    _, flash, _, plan = protected((0x04, CMP, 0))
    assert check_protection(flash, flash.status(), plan, clear_cmp=False) is False, "its complement is what is protected"
    both = plan_of(NOISE, changed(NOISE, 0x1F5000, 0x5000), 1, 511)
    with pytest.raises(ChipProtected, match="protects itself"):
        check_protection(flash, flash.status(), both, clear_cmp=True)


def test_a_locked_cmp_stays_and_that_is_an_error() -> None:
    chip, flash, _, plan = protected((SRP0, CMP, 0), wp_low=True)
    with pytest.raises(ChipProtected) as caught:
        check_protection(flash, flash.status(), plan, clear_cmp=True)
    assert "write protect pin" in caught.value.read
    with pytest.raises(StatusUnchanged):
        flash.clear_cmp()
    assert chip.status(1) == CMP


def test_the_first_difference_is_named() -> None:
    assert first_difference(b"abc", b"abc") is None
    found = first_difference(b"abc", b"axc", 0x100)
    assert found is not None
    assert (found.address, found.read) == (0x101, "0x78 where 0x62 should be")
    short = first_difference(b"abc", b"ab")
    assert short is not None
    assert short.address == 2
