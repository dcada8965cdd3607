"""Every refusal of the flash commands: exit status, words, and a flash and registers that are as before."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bridges import open as door
from mocks.amd import ifwi
from mocks.machine import Machine
from probes import main

IMAGE = ifwi.fabricate(4)
HELD = ("GPIO_PAD_MASK", "GPIO_PAD_A", "GPIO_PAD_EN", "PAGE_MIRROR_CNTL", "ROM_CNTL", "ROM_INDEX")
FEW = ("--start-sector", "0", "--sector-count", "4")
"""a range, so that little has to be read"""
REFUSED = 4
FAILED = 1
USAGE = 2


@dataclass
class Result:
    status: int
    out: str
    err: str
    untouched: bool
    """the chip's content and status registers, and the controller's registers, are as before the command"""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Bench:
    """Command lines against one state folder; each is a new process, so the card is switched on anew."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self._machine_of = door.machine_of
        self.image = folder / "image.bin"
        self.image.write_bytes(IMAGE)

    def run(self, profile: str, *arguments: str, fault: str = "") -> Result:
        snapshots: list[Any] = []
        used: list[Machine] = []
        machine_of = self._machine_of

        def watched(selection: door.Selection) -> Machine:
            machine = machine_of(selection)
            if not used:
                used.append(machine)
                snapshots.append(snapshot(machine))
            return machine

        self._monkeypatch.setattr(door, "_machines", {})
        self._monkeypatch.setattr(door, "machine_of", watched)
        self._capsys.readouterr()
        line = ["--mock", profile, "--state", str(self.folder / "state"), "flash", *arguments] + (["--fault", fault] if fault else [])
        status = main.run(line)
        out, err = self._capsys.readouterr()
        return Result(status, out, err, all(each == snapshot(used[0]) for each in snapshots))


def snapshot(machine: Machine) -> Any:
    """Flash content, status registers, and the controller's registers, from the inside."""
    gpu = machine.gpus[0]
    content = gpu.rom.chip.memory.read(0, gpu.rom.chip.model.size)
    return hashlib.sha256(content).hexdigest(), gpu.rom.chip._lasting["status"], [gpu.reg("SMUIO", name).value for name in HELD]


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    for variable in ("DEV", "TGHW_MOCK", "TGHW_STATE", "REMOTE"):
        monkeypatch.delenv(variable, raising=False)
    return Bench(tmp_path, capsys, monkeypatch)


def refused(result: Result, status: int, code: str, *words: str) -> None:
    assert result.status == status, result.err
    assert f"tghw: {code}: " in result.err
    for word in words:
        assert word in result.err, result.err
    assert "\n  means: " in result.err
    assert result.untouched


# --- writing ---


@pytest.mark.parametrize("length", [0, 1, 0x1FFFFF, 0x200001, 0x100000])
def test_an_image_of_another_size(bench: Bench, length: int) -> None:
    bench.image.write_bytes((IMAGE + b"\xff")[:length])
    result = bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes", "--no-backup")
    refused(result, REFUSED, "image-refused", f"{length:#x} bytes, the flash has 0x200000", "complete image")


def test_no_yes(bench: Bench) -> None:
    result = bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--no-backup")
    refused(result, REFUSED, "not-confirmed", "nothing was changed", "--yes")
    assert "sectors differ" in result.out


def test_no_backup(bench: Bench) -> None:
    result = bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes")
    refused(result, REFUSED, "no-backup", "0 dumps of this device are recorded", "tghw flash dump", "--no-backup")


def test_a_backup_that_was_changed_or_is_gone_does_not_count(bench: Bench) -> None:
    dump = bench.folder / "dump.bin"
    assert bench.run("navi31-empty-flash", "dump", str(dump)).status == 0
    dump.write_bytes(b"\0" + dump.read_bytes()[1:])
    refused(bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes"), REFUSED, "no-backup", "1 dumps of this device are recorded, none of them usable")
    dump.unlink()
    refused(bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes"), REFUSED, "no-backup")


def test_a_backup_of_another_device_does_not_count(bench: Bench) -> None:
    assert bench.run("navi31", "dump", str(bench.folder / "other.bin")).status == 0
    refused(bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes"), REFUSED, "no-backup")


def test_a_gated_engine(bench: Bench) -> None:
    result = bench.run("navi31", "write", str(bench.image), *FEW, "--yes", "--no-backup")
    refused(result, REFUSED, "rom-engine-gated", "ROM_SW_STATUS = 0x04000800", "flash ifwi stream")
    refused(bench.run("navi31", "dump", str(bench.folder / "x"), "--method", "rom-sw"), REFUSED, "rom-engine-gated", "--method rom-index")
    assert not (bench.folder / "x").exists()


def test_writing_through_the_aperture(bench: Bench) -> None:
    result = bench.run("navi31", "write", str(bench.image), *FEW, "--yes", "--no-backup", "--method", "rom-index")
    refused(result, REFUSED, "rom-engine-gated", "the aperture only reads")


def test_cmp_without_its_own_consent(bench: Bench) -> None:
    result = bench.run("navi31-protected-flash", "write", str(bench.image), *FEW, "--yes", "--no-backup")
    refused(result, REFUSED, "flash-protected", "SR1 = 0x00, SR2 = 0x40", "the whole array is protected", "--clear-cmp")


def test_cmp_consent_without_yes(bench: Bench) -> None:
    result = bench.run("navi31-protected-flash", "write", str(bench.image), *FEW, "--clear-cmp", "--no-backup")
    refused(result, REFUSED, "not-confirmed")
    assert "CMP will be cleared first" in result.out


def test_block_protection(bench: Bench, tmp_path: Path) -> None:
    profile = tmp_path / "bp.toml"
    profile.write_text('based_on = "navi31-empty-flash"\n[gpu.flash.chip]\nstatus = [0x1C, 0x00, 0x00]\n')
    result = bench.run(str(profile), "write", str(bench.image), *FEW, "--yes", "--no-backup", "--clear-cmp")
    refused(result, REFUSED, "flash-protected", "BP4..BP0 = 00111, CMP = 0: the whole array is protected", "clears CMP alone")


def test_a_chip_that_nobody_knows(bench: Bench) -> None:
    for arguments in (("write", str(bench.image), *FEW, "--yes", "--no-backup"), ("dump", str(bench.folder / "x")), ("info",), ("read", "0", "16")):
        refused(bench.run("navi31-unknown-flash", *arguments), REFUSED, "flash-unknown-chip", "1c 30 15 1c", "chips.csv")
    assert not (bench.folder / "x").exists()


def test_another_gpu(bench: Bench) -> None:
    for arguments in (("write", str(bench.image), *FEW, "--yes", "--no-backup"), ("info",), ("mailbox", "probe")):
        refused(bench.run("navi32", *arguments), REFUSED, "wrong-device", "1002:747e", "1002:744c only")


def test_a_range_outside_the_flash(bench: Bench) -> None:
    for start, count in (("0", "513"), ("-1", "2"), ("5", "0")):
        result = bench.run("navi31-empty-flash", "write", str(bench.image), "--yes", "--no-backup", "--start-sector", start, "--sector-count", count)
        assert (result.status, result.untouched) == (USAGE, True)


def test_a_missing_file(bench: Bench) -> None:
    result = bench.run("navi31-empty-flash", "write", str(bench.folder / "nothing"), "--yes")
    assert (result.status, result.untouched) == (USAGE, True)


# --- reading ---


def test_a_mirrored_aperture(bench: Bench) -> None:
    target = bench.folder / "x.bin"
    refused(bench.run("navi31-mirrored-rom", "dump", str(target)), REFUSED, "rom-aperture-mirrored", "2 x 0x100000 identical bytes")
    assert list(bench.folder.glob("*x.bin*")) == []


def test_an_aperture_that_shows_no_image(bench: Bench) -> None:
    target = bench.folder / "x.bin"
    result = bench.run("navi31-empty-flash", "dump", str(target), "--method", "rom-index")
    refused(result, REFUSED, "image-refused", "first bytes ff ff ff ff, expected aa 55 aa 55")
    assert not target.exists()


def test_an_unclear_byte_order(bench: Bench, tmp_path: Path) -> None:
    profile = tmp_path / "garbled.toml"
    profile.write_text('based_on = "navi31"\n[gpu.flash]\nbyte_order = "garbled"\n')
    result = bench.run(str(profile), "info")
    assert result.status == REFUSED
    assert "rom-byte-order" in result.err


def test_an_unreachable_controller(bench: Bench) -> None:
    refused(bench.run("navi31-no-rom", "dump", str(bench.folder / "x")), FAILED, "rom-unreachable", "ROM_CNTL = 0xffffffff", "mailbox probe")


def test_a_bus_that_is_lost(bench: Bench) -> None:
    result = bench.run("dead-bus", "info")
    assert result.status == FAILED
    assert "bus-lost" in result.err
    for accesses in ("5", "200", "5000", "60000"):
        result = bench.run("navi31-empty-flash", "dump", str(bench.folder / "x"), fault=f"all-ones-at={accesses}")
        assert result.status == FAILED, result.out
        assert "bus-lost" in result.err
        assert not (bench.folder / "x").exists()


def test_a_stuck_engine_with_nothing_to_show(bench: Bench) -> None:
    result = bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes", "--no-backup", fault="rom-stuck")
    refused(result, FAILED, "rom-engine-stuck", "0x00000002 after writing 0")


def test_a_missing_chip(bench: Bench) -> None:
    refused(bench.run("navi31-empty-flash", "info", fault="flash-absent"), FAILED, "flash-silent", "ff ff ff ff")


def test_a_device_in_use(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    holder = Machine.from_profile("navi31-empty-flash", state_dir=bench.folder / "state")
    device = holder.open("0000:03:00.0")
    result = bench.run("navi31-empty-flash", "info")
    device.close()
    assert result.status == 5
    assert "device-busy" in result.err


# --- the security processor ---


def test_streaming_without_consent_or_backup(bench: Bench) -> None:
    refused(bench.run("navi31", "ifwi", "stream", str(bench.image)), REFUSED, "not-confirmed", "--yes")
    refused(bench.run("navi31", "ifwi", "stream", str(bench.image), "--yes"), REFUSED, "no-backup")


@pytest.mark.parametrize("name", ["header magic blank", "one byte short", "payload end past the image", "signature missing"])
def test_streaming_an_invalid_image(bench: Bench, name: str) -> None:
    bench.image.write_bytes(ifwi.broken(name))
    refused(bench.run("navi31", "ifwi", "stream", str(bench.image), "--yes", "--no-backup"), FAILED, "ifwi-invalid")


def test_streaming_to_a_stalled_card(bench: Bench) -> None:
    refused(bench.run("navi31-empty-flash", "ifwi", "stream", str(bench.image), "--yes", "--no-backup"), FAILED, "psp-mailbox-silent", "--method rom-sw")


def test_streaming_to_a_card_that_a_driver_has_booted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from mocks.amd.psp import Psp

    monkeypatch.setattr(Psp, "sos_alive", property(lambda self: True, lambda self, value: None), raising=False)
    refused(bench.run("navi31", "ifwi", "stream", str(bench.image), "--yes", "--no-backup"), REFUSED, "psp-mailbox-gated", "0xa (partition update)", "before anything boots it")
    result = bench.run("navi31", "mailbox", "probe", "--json")
    assert result.json["gated"] is True


# --- serprog ---


def test_lending_without_a_backup(bench: Bench) -> None:
    refused(bench.run("navi31-empty-flash", "serprog", "--yes"), REFUSED, "no-backup")
    refused(bench.run("navi31", "serprog"), REFUSED, "rom-engine-gated")


def test_every_refusal_is_one_json_document(bench: Bench) -> None:
    result = bench.run("navi31-empty-flash", "write", str(bench.image), *FEW, "--yes", "--json")
    assert result.status == REFUSED
    assert result.json["error"]["code"] == "no-backup"
