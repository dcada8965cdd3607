"""Dumps: read twice, put in place whole, remembered; other files are not lost."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from firmware.spi.backup import Backup, Backups, keep_old, read_twice, save
from firmware.spi.errors import ReadUnstable
from firmware.spi.method import Choice
from hw.files import replace_file
from mocks.spi_model import ChipModel
from tests.firmware.spi.support import make_chip, make_flash

SMALL = ChipModel("GD25LQ80", bytes.fromhex("c86014"), 0x100000)
CONTENT = hashlib.shake_256(b"flash").digest(SMALL.size)


def test_the_whole_chip_is_read_twice() -> None:
    flash = make_flash(make_chip(SMALL, content=CONTENT))
    seen: list[tuple[int, int]] = []
    assert read_twice(Choice(flash), lambda done, total: seen.append((done, total))) == CONTENT
    assert seen[-1] == (2 * SMALL.size, 2 * SMALL.size)
    assert flash.controller.chip.commands[0x03] == 2 * SMALL.size // 256  # type: ignore[attr-defined]


def test_readings_that_differ_are_an_error_with_the_place() -> None:
    flash = make_flash(make_chip(SMALL, content=CONTENT, faults="flash-flip=1048577"))
    with pytest.raises(ReadUnstable) as caught:
        read_twice(Choice(flash))
    assert caught.value.what == "two readings differ at 0x000000"
    first, second = caught.value.read.split(", then ")
    assert int(second, 16) == CONTENT[0]
    assert (int(first, 16) ^ CONTENT[0]).bit_count() == 1


def test_a_dump_is_remembered_while_its_file_is_unchanged(tmp_path: Path) -> None:
    backups = Backups(tmp_path / "records" / "dumps.json")
    assert backups.usable(4) is None
    made, aside = save(b"abcd", tmp_path / "a.bin", "rom-sw", backups)
    assert (aside, backups.usable(4)) == (None, made)
    assert backups.usable(8) is None, "of another chip"
    (tmp_path / "a.bin").write_bytes(b"abcx")
    assert backups.usable(4) is None


def test_a_file_that_holds_something_else_is_kept_under_another_name(tmp_path: Path) -> None:
    backups = Backups(tmp_path / "dumps.json")
    path = tmp_path / "a.bin"
    save(b"old!", path, "rom-sw", backups)
    assert save(b"old!", path, "rom-sw", backups)[1] is None, "the same content is no loss"
    _, aside = save(b"new!", path, "rom-sw", backups)
    assert aside == tmp_path / "a.bin.1"
    assert (aside.read_bytes(), path.read_bytes()) == (b"old!", b"new!")
    assert {Path(each.path).name for each in backups.all()} == {"a.bin", "a.bin.1"}
    assert all(Path(each.path).read_bytes() == {"a.bin": b"new!", "a.bin.1": b"old!"}[Path(each.path).name] for each in backups.all())
    keep_old(path, b"more")
    assert (tmp_path / "a.bin.2").read_bytes() == b"new!"


def test_a_damaged_list_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "dumps.json"
    for text in ("", "{}", '[{"path": "x"}]', "[1]"):
        path.write_text(text)
        assert Backups(path).all() == []
    Backups(path).add(Backup("x", "y", 1, "z"))
    assert len(Backups(path).all()) == 1


def test_a_file_is_replaced_in_one_step_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    replace_file(path, b"one")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
