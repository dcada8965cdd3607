"""Ctrl-C at any moment of a read, a write or a stream: registers as found, the chip idle, the next run finishes."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from firmware.spi.flash import SpiFlash
from firmware.spi.journal import Journal
from firmware.spi.plan import make_plan
from firmware.spi.writer import Writer
from mocks.pci import MockFunction
from tests.firmware.spi.card import FlashCard

IMAGE = random.Random(5).randbytes(0x200000)
SECTORS = 6
SIZE = SECTORS * 0x1000


def interrupt_at(card: FlashCard, number: int) -> None:
    """Send this process a SIGINT at its n-th access to the card's registers."""
    card.machine.watch_bus = True
    left = number

    def count(function: MockFunction) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)

    card.machine.count_access = count  # type: ignore[method-assign]


def accesses_of(action: Any) -> int:
    """How many register accesses something makes on a fresh card."""
    card = FlashCard(content="noise")
    card.machine.watch_bus = True
    made = 0

    def count(function: MockFunction) -> None:
        nonlocal made
        made += 1

    card.machine.count_access = count  # type: ignore[method-assign]
    action(card)
    return made


def open_and_write(card: FlashCard, folder: Path) -> None:
    flash = SpiFlash.open(card.port.engine)
    with flash.session():
        journal = Journal(folder / "write.jsonl")
        unfinished = journal.load()
        present = flash.read(0, SIZE)
        plan = make_plan(flash.chip, present + IMAGE[SIZE:], IMAGE, 0, SECTORS, unfinished.damaged if unfinished else ())
        if plan.nothing_to_do:
            journal.forget_complete(hashlib.sha256(IMAGE).hexdigest())
        else:
            Writer(flash, IMAGE, plan, journal).run()


def points(total: int, count: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(1, total), count))


def check_restored(card: FlashCard, before: dict[str, int]) -> None:
    assert card.registers() == before
    assert not card.chip.busy
    gpu = card.machine.gpus[0]
    assert gpu.reg("SMUIO", "ROM_SW_CNTL").value == 0
    assert gpu.rom.status(gpu.reg("SMUIO", "ROM_SW_STATUS")) == 0


def interrupted_write(number: int, folder: Path) -> bool:
    card = FlashCard(content="noise")
    before, content = card.registers(), card.content
    interrupt_at(card, number)
    stopped = False
    try:
        open_and_write(card, folder)
    except KeyboardInterrupt:
        stopped = True
    check_restored(card, before)
    assert card.content[SIZE:] == content[SIZE:]
    card.machine.watch_bus = False
    open_and_write(card, folder)
    assert card.content == IMAGE[:SIZE] + content[SIZE:]
    assert not (folder / "write.jsonl").exists()
    return stopped


def test_a_write_can_be_interrupted_at_any_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    total = accesses_of(lambda card: open_and_write(card, tmp_path))
    assert sum(interrupted_write(number, tmp_path) for number in [1, 3, *points(total, 8, 1), total]) >= 10


@pytest.mark.slow
def test_a_write_can_be_interrupted_at_hundreds_of_accesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    total = accesses_of(lambda card: open_and_write(card, tmp_path))
    assert sum(interrupted_write(number, tmp_path) for number in [*range(1, 150), *points(total, 250, 2), *range(total - 100, total)]) >= 400


@pytest.mark.parametrize("profile", ["navi31-empty-flash", "navi31"])
def test_a_read_can_be_interrupted_at_any_access(profile: str) -> None:
    for number in [*range(1, 25), 100, 1000, 3000]:
        card = FlashCard(profile)
        gpu = card.machine.gpus[0]
        before = (card.registers(), gpu.reg("SMUIO", "ROM_INDEX").value)
        interrupt_at(card, number)
        with pytest.raises(KeyboardInterrupt):
            (SpiFlash.open(card.port.engine) if profile == "navi31-empty-flash" else card.port.aperture).read(0, 0x10000)
        assert (card.registers(), gpu.reg("SMUIO", "ROM_INDEX").value) == before


def test_signals_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    card = FlashCard()
    interrupt_at(card, 200)
    with pytest.raises(KeyboardInterrupt):
        SpiFlash.open(card.port.engine).read(0, 0x10000)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
