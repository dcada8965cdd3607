"""Power cuts and killed processes at random points of a write: a resumed write always ends in the exact image, and nothing outside the
requested range ever changes."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firmware.spi.flash import SpiFlash
from firmware.spi.journal import Journal
from firmware.spi.plan import make_plan
from firmware.spi.writer import Writer, check_protection
from hw.errors import BusLost
from mocks.amd import ifwi
from mocks.spi import SpiChip
from mocks.spi_model import CMP, ChipModel
from tests.firmware.spi.card import FlashCard
from tests.firmware.spi.support import GD25LQ16, SIZE, make_chip, make_flash

SECTOR = 0x1000
SECTORS = SIZE // SECTOR
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host keeps its power here, so that waiting for its disk proves nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def old_content(source: random.Random) -> bytes:
    """Blank, programmed, or a patchwork."""
    kind = source.randrange(4)
    if kind == 0:
        return b"\xff" * SIZE
    if kind == 1:
        return source.randbytes(SIZE)
    if kind == 2:
        return ifwi.fabricate(source.randrange(3))
    pools = [b"\xff" * SECTOR, bytes(SECTOR), *(source.randbytes(SECTOR) for _ in range(6))]
    return b"".join(source.choice(pools) for _ in range(SECTORS))


def attempt(chip: SpiChip, image: bytes, journal: Journal, start: int, count: int) -> int:
    """What `tghw flash write` does on a chip; how many bytes of work the plan means. Raises BusLost when the power goes."""
    flash = make_flash(chip)
    unfinished = journal.load()
    present = flash.read(start * SECTOR, count * SECTOR)
    current = image[: start * SECTOR] + present + image[(start + count) * SECTOR :]
    plan = make_plan(flash.chip, current, image, start, count, unfinished.damaged if unfinished else ())
    if plan.nothing_to_do:
        return 0
    clear = check_protection(flash, flash.status(), plan, clear_cmp=True)
    Writer(flash, image, plan, journal).run(clear_cmp=clear)
    return plan.program_bytes + sum(size * number for size, number in plan.erases.items())


def one_case(seed: int, folder: Path) -> int:
    """One write with up to three power cuts at random bytes; how many cuts there were."""
    source = random.Random(seed)
    before = old_content(source)
    image = ifwi.fabricate(7) if source.random() < 0.3 else source.randbytes(SIZE)
    if source.random() < 0.4:
        start = source.randrange(SECTORS - 1)
        count = source.randrange(1, SECTORS - start)
    else:
        start, count = 0, SECTORS
    status = (0, CMP if source.random() < 0.2 else 0, 0)
    model = ChipModel(GD25LQ16.name, GD25LQ16.jedec, SIZE, GD25LQ16.rems, status=status)
    work = attempt(make_chip(model, content=before), image, Journal(folder / "dry"), start, count)
    journal = Journal(folder / "write.jsonl")
    inside = slice(start * SECTOR, (start + count) * SECTOR)
    cuts = 0
    for number in range(source.randrange(1, 4)):
        chip = make_chip(model, content=before, folder=folder / "card", faults=f"flash-power-cut={source.randrange(max(work, 1))}", seed=seed + number)
        try:
            attempt(chip, image, journal, start, count)
        except BusLost:
            cuts += 1
        held = chip.memory.read(0, SIZE)
        assert held[: inside.start] == before[: inside.start], "below the range"
        assert held[inside.stop :] == before[inside.stop :], "above the range"
        if count == SECTORS and held not in (before, image):
            assert ifwi.boot(held).problem, "a card never boots from half an image, so the way to finish the write stays open"
    last = make_chip(model, content=before, folder=folder / "card", seed=seed)
    attempt(last, image, journal, start, count)
    held = last.memory.read(0, SIZE)
    assert held[inside] == image[inside]
    assert held[: inside.start] + held[inside.stop :] == before[: inside.start] + before[inside.stop :]
    touched = [span for span in last._lasting["weak"] if span[0] < inside.stop and inside.start < span[1]]
    assert touched == [], "no marginal cell is left where we wrote"
    assert last._lasting["status"][1] & ~CMP == 0
    assert journal.load() is None
    return cuts


def run_cases(seeds: range, folder: Path) -> int:
    cuts = 0
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        cuts += one_case(seed, place)
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    return cuts


def test_writes_survive_power_cuts(tmp_path: Path) -> None:
    assert run_cases(range(6), tmp_path) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_writes_survive_five_hundred_power_cuts(tmp_path: Path, part: int) -> None:
    assert run_cases(range(1000 + 50 * part, 1050 + 50 * part), tmp_path) >= 50


# --- through the card's registers ---


def on_a_card(seed: int, folder: Path) -> bool:
    """A write through the ROM_SW engine of a card that loses its power; whether it did."""
    source = random.Random(seed)
    before = ifwi.broken("block 4 byte", seed)
    image = bytearray(before)
    image[0x10000:0x18000] = source.randbytes(0x8000)
    image[0x10800:0x10804] = ifwi.fabricate(seed)[0x10800:0x10804]
    state = folder / "state"
    journal = Journal(folder / "write.jsonl")

    def once(faults: str) -> bytes:
        card = FlashCard("navi31-corrupt-flash", faults=faults, state=state)
        try:
            flash = SpiFlash.open(card.port.engine)
            unfinished = journal.load()
            plan = make_plan(flash.chip, flash.read(0, 0x20000) + bytes(image[0x20000:]), bytes(image), 0, 32, unfinished.damaged if unfinished else ())
            if not plan.nothing_to_do:
                Writer(flash, bytes(image), plan, journal).run()
            return card.content
        finally:
            card.machine.close()

    first = FlashCard("navi31-corrupt-flash", state=state)
    first.chip.memory.write(0, before)  # instead of what the profile delivers
    first.machine.close()
    cut = False
    try:
        once(f"flash-power-cut={source.randrange(0xB000)}")
    except BusLost:
        cut = True
    assert once("") == image
    return cut


def test_a_card_that_loses_power_is_written_again(tmp_path: Path) -> None:
    cuts = 0
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        cuts += on_a_card(seed, folder)
    assert cuts >= 1


@pytest.mark.slow
def test_fifty_cards_that_lose_power_are_written_again(tmp_path: Path) -> None:
    cuts = 0
    for seed in range(100, 150):
        folder = tmp_path / str(seed)
        folder.mkdir()
        cuts += on_a_card(seed, folder)
    assert cuts >= 25


# --- whole commands, killed ---


def command(state: Path, *arguments: str, fault: str = "") -> list[str]:
    line = [sys.executable, "-m", "probes.main", "--mock", "navi31-empty-flash", "--state", str(state), "flash", *arguments]
    return [*line, "--fault", fault] if fault else line


def killed_at_random(seed: int, folder: Path, signal_number: int) -> bool:
    """Kill a running `tghw flash write`, then let it finish; whether it was still running when it was killed."""
    source = random.Random(seed)
    image = folder / "image.bin"
    image.write_bytes(source.randbytes(0x30000) + b"\xff" * (SIZE - 0x30000))
    write = ("write", str(image), "--yes", "--no-backup", "--sector-count", "64")
    process = subprocess.Popen(command(folder / "state", *write), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = next(iter([*folder.glob("state/flash/*/write.jsonl")]), None)
    deadline = time.monotonic() + 60
    while journal is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
        journal = next(iter([*folder.glob("state/flash/*/write.jsonl")]), None)
    time.sleep(source.uniform(0, 0.4))
    running = process.poll() is None
    process.send_signal(signal_number)
    process.wait(60)
    finished = subprocess.run(command(folder / "state", *write, "--json"), cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert '"sha256"' in finished.stdout
    held = next(iter(folder.glob("state/machines/*/*/flash.bin"))).read_bytes()
    assert hashlib.sha256(held).hexdigest() == hashlib.sha256(image.read_bytes()).hexdigest()
    assert not list(folder.glob("state/flash/*/write.jsonl"))
    return running


def test_a_killed_command_is_finished_by_the_next(tmp_path: Path) -> None:
    assert killed_at_random(1, tmp_path, 9)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_fifty_killed_commands_are_finished_by_the_next(tmp_path: Path, part: int) -> None:
    killed = 0
    for seed in range(100 + 12 * part, 112 + 12 * part):
        folder = tmp_path / str(seed)
        folder.mkdir()
        killed += killed_at_random(seed, folder, 9 if seed % 3 else 15)
    assert killed >= 10
