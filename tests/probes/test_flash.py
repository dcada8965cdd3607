"""`tghw flash`: the commands as a person or a script uses them, one after the other on one card."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mocks.amd import ifwi
from probes.schemas import SCHEMAS
from tests.probes.schema_check import problems

EMPTY, HEALTHY = "navi31-empty-flash", "navi31"
SIZE = 0x200000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def flash(tghw: Any, tmp_path: Path) -> Any:
    """`tghw --mock PROFILE flash ...` with a state folder of this test; JSON documents are held against their schemas."""

    def run(profile: str, *arguments: str, **options: str) -> Any:
        extra = [word for name, value in options.items() for word in (f"--{name}", value)]
        result = tghw("--mock", profile, "--state", str(tmp_path / "state"), "flash", *arguments, *extra)
        if "--json" in arguments and result.status == 0:
            words = " ".join(["flash", *arguments])
            name = max((each for each in SCHEMAS if words.startswith(each)), key=len)
            assert problems(SCHEMAS[name], result.json) == []
        return result

    return run


def test_info_of_an_empty_and_of_a_healthy_card(flash: Any) -> None:
    empty = flash(EMPTY, "info", "--json").json
    assert (empty["method"], empty["writable"], empty["content"], empty["chip"]["name"]) == ("rom-sw", True, "blank", "GD25LQ16")
    assert empty["protection"]["why"] == "BP4..BP0 = 00000, CMP = 0: nothing is protected"
    healthy = flash(HEALTHY, "info", "--json").json
    assert (healthy["method"], healthy["writable"], healthy["content"], healthy["chip"]) == ("rom-index", False, "an IFWI image", None)
    text = flash(EMPTY, "info")
    assert text.status == 0
    for words in ("method: rom-sw", "c8 60 15", "64 KiB (0xd8)", "nothing is protected", "blank", "no verified dump"):
        assert words in text.out


def test_read_shows_bytes_or_writes_them(flash: Any, tmp_path: Path) -> None:
    image = ifwi.fabricate(0)
    result = flash(HEALTHY, "read", "0x10000", "20", "--json").json
    assert bytes.fromhex(result["data"]) == image[0x10000:0x10014]
    shown = flash(HEALTHY, "read", "0", "17").out
    assert shown.splitlines()[0].startswith("00000000  aa 55 aa 55")
    assert shown.splitlines()[1].startswith("00000010  ")
    assert flash(HEALTHY, "read", "0x14000", "4", "--out", str(tmp_path / "sgn")).status == 0
    assert (tmp_path / "sgn").read_bytes() == b"$SGN"
    assert flash(HEALTHY, "read", "0x1fffff", "2").status == 2
    assert flash(HEALTHY, "read", "nowhere", "2").status == 2
    assert flash(HEALTHY, "read", "-5", "2").status == 2


def test_the_rescue_of_an_empty_card(flash: Any, tmp_path: Path) -> None:
    """Dump what is there, write an image, verify; at its next power-on the card boots from it, and only reading is left."""
    image = tmp_path / "image.bin"
    image.write_bytes(ifwi.fabricate(3))
    dump = flash(EMPTY, "dump", str(tmp_path / "before.bin"), "--json").json  # the backup that lets the write go ahead
    assert (dump["sha256"], dump["content"]) == (hashlib.sha256(b"\xff" * SIZE).hexdigest(), "blank")
    written = flash(EMPTY, "write", str(image), "--yes", "--json").json
    assert written["plan"]["erases"] == {}
    assert written["report"]["sectors"] == written["plan"]["written"] == written["plan"]["differing"]
    verified = flash(EMPTY, "verify", str(image), "--json").json
    assert (verified["ok"], verified["method"], verified["sha256"]) == (True, "rom-index", hashlib.sha256(image.read_bytes()).hexdigest())
    again = flash(EMPTY, "write", str(image), "--yes", "--json").json
    assert again["report"] is None, "nothing to do is no refusal, even on a card whose engine is gated"
    info = flash(EMPTY, "info", "--json").json
    assert info["backup"]["path"] == str(tmp_path / "before.bin")


def test_a_part_is_written_over_and_verified(flash: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(hashlib.shake_256(b"any file").digest(SIZE))
    span = ("--start-sector", "500", "--sector-count", "6")
    result = flash("navi31-corrupt-flash", "write", str(image), "--yes", "--no-backup", *span)
    assert result.status == 0, result.err
    assert "written and read back: 6 sectors" in result.out
    assert flash("navi31-corrupt-flash", "verify", str(image), *span).status == 0
    whole = flash("navi31-corrupt-flash", "verify", str(image))
    assert whole.status == 1
    assert "flash-verify: the flash differs at 0x000000" in whole.err
    assert "bytes differ in all" in whole.err


def test_a_validated_read_gives_the_same(flash: Any) -> None:
    plain = flash("navi31-corrupt-flash", "read", "0", "4096", "--json").json["sha256"]
    assert flash("navi31-corrupt-flash", "read", "0", "4096", "--validated", "--json").json["sha256"] == plain


def test_protection_is_cleared_with_consent_and_written_over(flash: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(hashlib.shake_256(b"any file").digest(SIZE))
    result = flash("navi31-protected-flash", "write", str(image), "--yes", "--clear-cmp", "--no-backup", "--json", "--start-sector", "500", "--sector-count", "2").json
    assert result["report"]["cmp_cleared"] is True
    assert flash("navi31-protected-flash", "info", "--json").json["status"]["sr2"] == 0


def test_an_interrupted_write_is_told_and_goes_on(flash: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(hashlib.shake_256(b"any file").digest(SIZE))
    span = ("--start-sector", "8", "--sector-count", "8")
    cut = flash(EMPTY, "write", str(image), "--yes", "--no-backup", *span, fault="flash-power-cut=10000")
    assert cut.status == 1
    assert "tghw: bus-lost: " in cut.err
    assert "2 of 8 sectors are written and read back, sector 10 (0xa000) and 5 more are not" in cut.err
    info = flash(EMPTY, "info", "--json").json
    assert info["unfinished_write"]["half_done"] == [10]
    assert (info["unfinished_write"]["name"], info["unfinished_write"]["done"]) == ("image.bin", 2)
    done = flash(EMPTY, "write", str(image), "--yes", "--no-backup", *span)
    assert done.status == 0
    assert "goes on with a write of image.bin that was interrupted: 2 sectors were done, 1 half done" in done.out
    assert flash(EMPTY, "info", "--json").json["unfinished_write"] is None


def test_a_power_cut_behind_a_usb_bridge_is_told_with_what_is_left(flash: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(hashlib.shake_256(b"any file").digest(SIZE))
    write = ("write", str(image), "--yes", "--no-backup", "--sector-count", "2")
    cut = flash("navi31-asm24-empty-flash", *write, fault="flash-power-cut=5000")
    assert cut.status == 1
    assert "0 of 2 sectors are written" in cut.err or "1 of 2 sectors are written" in cut.err
    assert flash("navi31-asm24-empty-flash", *write).status == 0
    assert flash("navi31-asm24-empty-flash", "verify", str(image), "--sector-count", "2").status == 0


def test_a_disk_without_room_is_an_error_with_the_card_put_back(flash: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(hashlib.shake_256(b"any file").digest(SIZE))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write = ("write", str(image), "--yes", "--no-backup", "--sector-count", "2")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        result = flash(EMPTY, *write)
    assert result.status == 1
    assert "tghw: failed: writing a file\n  read:  No space left on device" in result.err
    assert flash(EMPTY, *write).status == 0


def test_a_worn_chip_is_told_with_its_address(flash: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(bytes(SIZE))
    result = flash(EMPTY, "write", str(image), "--yes", "--no-backup", "--start-sector", "1", "--sector-count", "2", fault="flash-worn=0x1abc")
    assert result.status == 1
    assert "tghw: flash-verify: the flash differs at 0x001abc\n  read:  0x01 where 0x00 should be" in result.err


# --- images and the security processor ---


def test_an_image_is_shown(flash: Any, tmp_path: Path) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(ifwi.fabricate(0))
    shown = flash(HEALTHY, "ifwi", "show", str(image))
    assert shown.status == 0
    for words in ("0x08     0x20000   0x60000", "directory 0x02: 6 entries", "slot header B", "signature table: 7 entries", "no problem found"):
        assert words in shown.out
    assert len(flash(HEALTHY, "ifwi", "show", str(image), "--json").json["items"]) == 18


@pytest.mark.parametrize("name", sorted(ifwi.BREAKAGES))
def test_a_damaged_image_is_shown_with_its_problems(flash: Any, tmp_path: Path, name: str) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(ifwi.broken(name))
    result = flash(HEALTHY, "ifwi", "show", str(image), "--json")
    assert problems(SCHEMAS["flash ifwi show"], result.json) == []
    assert result.status == (1 if result.json["problems"] else 0)
    if result.json["problems"]:
        text = flash(HEALTHY, "ifwi", "show", str(image))
        assert text.status == 1
        assert "tghw: ifwi-invalid: " in text.err


def test_streaming_and_what_the_firmware_changed(flash: Any, tmp_path: Path) -> None:
    image, after = tmp_path / "image.bin", tmp_path / "after.bin"
    image.write_bytes(ifwi.fabricate(6))
    probe = flash(HEALTHY, "mailbox", "probe", "--json").json
    assert (probe["gated"], probe["wanted"]) == (False, {"item": 0x80, "phase": 0})
    streamed = flash(HEALTHY, "ifwi", "stream", str(image), "--yes", "--no-backup", "--json").json
    assert len(streamed["items"]) == 18
    assert flash(HEALTHY, "dump", str(after)).status == 0
    found = flash(HEALTHY, "ifwi", "diff", str(image), str(after), "--json").json
    assert (found["equal"], found["explained"], len(found["differences"])) == (False, True, 3)
    assert "an update by the security processor explains every difference" in flash(HEALTHY, "ifwi", "diff", str(image), str(after)).out
    changed = bytearray(after.read_bytes())
    changed[0x20000] ^= 1
    after.write_bytes(changed)
    assert "1 of 4 differences (1 bytes) are not explained" in flash(HEALTHY, "ifwi", "diff", str(image), str(after)).out
    assert "the images are equal" in flash(HEALTHY, "ifwi", "diff", str(image), str(image)).out


# --- output ---


def test_nothing_but_the_document_with_json(flash: Any) -> None:
    result = flash("navi31-corrupt-flash", "read", "0", "0x20000", "--json")
    assert json.loads(result.out)["size"] == 0x20000
    assert result.err == ""


def test_lines_with_rate_and_time_left_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from probes import context, meter

    context.set_current(context.Common())
    moments = iter([0.0, 1.0, 4.0, 5.0, 8.0])
    monkeypatch.setattr(meter.time, "monotonic", lambda: next(moments))
    with meter.meter("reading") as show:
        for done in (1, 2, 3, 4):
            show(done * 1024, 8 * 1024)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 2 KiB of 8 KiB, 512 B/s, 12 s left",
        "reading: 4 KiB of 8 KiB, 512 B/s, 8 s left",
    ]


def test_the_benchmark_counts_accesses_and_usb_transfers_of_both_methods(tghw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from probes import flash_bench

    monkeypatch.setattr(flash_bench, "READ_BYTES", {"pcie": 0x8000, "usb": 0x8000})
    monkeypatch.setattr(flash_bench, "WRITE_SECTORS", 1)
    figures = tghw("bench", "flash", "--json").json["flash"]
    assert sorted(figures) == ["pcie", "usb"]
    for name, measured in figures.items():
        assert measured["pipelined_share_of_validated"] <= 0.55
        for figure in ("read_rom_sw_validated", "read_rom_sw_pipelined", "read_rom_index", "write_blank_read_back_pipelined", "write_erase_read_back_validated"):
            assert measured[figure]["accesses_per_kib"] > 0
            assert ("usb_transfers_per_kib" in measured[figure]) == (name == "usb")
    usb = figures["usb"]
    assert usb["read_rom_sw_pipelined"]["usb_transfers_per_kib"] <= 0.55 * usb["read_rom_sw_validated"]["usb_transfers_per_kib"]


# --- processes ---


def test_processes_share_the_flash_through_the_state_folder(tmp_path: Path) -> None:
    """Everything as in a shell: each command a process of its own, the state in the user's folder."""
    image = tmp_path / "image.bin"
    image.write_bytes(b"\xff" * 0x3000 + b"any file" * 0x200 + b"\xff" * (SIZE - 0x4000))

    def tghw(*arguments: str) -> tuple[int, str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "DEV": "", "TGHW_STATE": ""}
        done = subprocess.run([sys.executable, "-m", "probes.main", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    write = ("--mock", EMPTY, "flash", "write", str(image), "--sector-count", "8")
    status, text = tghw("--mock", EMPTY, "flash", "dump", str(tmp_path / "before.bin"))
    assert status == 0, text
    status, text = tghw(*write, "--yes")
    assert status == 0, text
    assert tghw("--mock", EMPTY, "flash", "verify", str(image), "--sector-count", "8")[0] == 0
    assert (tmp_path / "state" / "tghw" / "machines" / EMPTY / "0000_03_00.0" / "flash.bin").read_bytes() == image.read_bytes()


def test_the_chip_is_lent_over_the_loopback_until_it_is_interrupted(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "probes.main", "--mock", EMPTY, "--state", str(tmp_path), "flash", "serprog", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    first, second = server.stderr.readline(), server.stderr.readline()
    assert "reading only (--yes allows writing)" in first
    port = int(second.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"\x10" + b"\x13\x01\x00\x00\x03\x00\x00\x9f" + b"\x13\x01\x00\x00\x00\x00\x00\x06")
        answer = b""
        while len(answer) < 7:
            answer += client.recv(64)
    assert answer == b"\x15\x06" + b"\x06\xc8\x60\x15" + b"\x15"
    server.send_signal(signal.SIGINT)
    _, err = server.communicate(timeout=30)
    assert server.returncode == 130
    assert "refused: the client wants to change the flash" in err
    assert "the device was left restored" in err
