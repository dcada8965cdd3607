"""What a person sees of a GPU behind a USB bridge: `probe`, `bridge`, `bench`, and errors."""

from __future__ import annotations

import pytest

from bridges import open as door
from bridges.asm24.image import wrap
from probes.schemas import SCHEMAS
from tests.probes.schema_check import problems

PROFILES = ["navi31-asm24", "navi31-asm24-stock", "navi31-asm24-add1", "asm24-usb2"]
IMAGE = wrap(bytes(range(256)) * 100)


@pytest.fixture
def no_usb(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose libusb sees nothing."""

    class Nothing:
        def enumerate_devices(self) -> list[object]:
            return []

    monkeypatch.setattr("bridges.asm24.usb.system_backend", Nothing)


def test_no_bridge_says_what_was_looked_for_and_how_to_get_access(tghw, no_usb):
    result = tghw("probe", "--transport", "usb")
    assert result.status == 3
    rule = 'SUBSYSTEM=="usb", ATTR{idVendor}=="3801", ATTR{idProduct}=="0001"'
    for text in ("3801:0001", "add1:0001", "174c:246?", "/etc/udev/rules.d/60-tghw-bridge.rules", rule, "navi31-asm24"):
        assert text in result.err
    told = tghw("probe", "--transport", "usb", "--json")
    assert told.status == 3 and told.json["error"]["code"] == "bridge-not-found"
    assert tghw("bridge", "info").status == 3
    assert tghw("boot", "amd", "--dev", "USB+AMD").status == 3


def test_rule_lines_are_whole_udev_rules(tghw, no_usb):
    rules = [line for line in tghw("probe", "--transport", "usb").err.splitlines() if line.startswith("SUBSYSTEM")]
    assert len(rules) == 5
    for rule in rules:
        parts = dict(part.strip().replace("==", "=").replace("+=", "=").split("=", 1) for part in rule.split(","))
        assert {"SUBSYSTEM", "ATTR{idVendor}", "ATTR{idProduct}", "MODE", "GROUP", "TAG"} <= parts.keys()


@pytest.mark.parametrize("profile", PROFILES)
def test_probe_shows_bridge_gpu_link_and_speeds(tghw, profile):
    result = tghw("--mock", profile, "probe", "--transport", "usb", "--json")
    assert result.status == 0 and problems(SCHEMAS["probe"], result.json) == []
    [gpu] = result.json["devices"]
    assert (gpu["transport"], gpu["arch"], gpu["boot_state"]) == ("usb", "gfx1100", "cold")
    assert gpu["bridge"]["usb_speed"] == (480 if profile == "asm24-usb2" else 10000)
    assert gpu["bridge"]["link_up"] and gpu["link"]
    assert gpu["bridge"]["firmware"] == ("stock" if "stock" in profile else "custom")
    assert bool(gpu["bridge"]["degraded"]) == (profile == "asm24-usb2")
    text = tghw("--mock", profile, "probe").out
    assert "Navi31" in text and "Mb/s" in text and "link" in text


def test_probe_of_a_bridge_with_an_empty_slot(tghw):
    result = tghw("--mock", "asm24-no-gpu", "probe", "--json")
    assert result.status == 1
    text = tghw("--mock", "asm24-no-gpu", "probe")
    assert "slot is empty" in text.out and "3801:0001" in text.out
    assert "pcie-link-down" in text.err


@pytest.mark.parametrize("fault", ["usb-no-access", "usb-busy"])
def test_probe_of_a_bridge_that_cannot_be_opened(tghw, fault):
    result = tghw("--mock", "navi31-asm24", "--fault", fault, "probe")
    assert result.status in (1, 5)
    assert ("udev" in result.out + result.err) == (fault == "usb-no-access")


def test_usb_device_string_needs_a_machine_with_a_bridge(tghw):
    assert tghw("--dev", "MOCKUSB+AMD,profile=navi31", "probe").status == 2
    assert tghw("--dev", "MOCKUSB+AMD::gfx1201", "probe").status == 1
    assert tghw("--dev", "MOCKUSB+AMD,profile=nowhere", "probe").status == 2


def test_bridge_is_chosen_by_number_or_port(tghw):
    for device in ("0", "usb:0", "usb:2-7"):
        assert tghw("--mock", "navi31-asm24", "--device", device, "bridge", "info").status == 0
    missing = tghw("--mock", "navi31-asm24", "--device", "usb:9-9", "bridge", "info")
    assert missing.status == 3 and "usb:2-7" in missing.err


@pytest.mark.parametrize("profile", [*PROFILES, "asm24-no-gpu"])
def test_bridge_info(tghw, profile):
    result = tghw("--mock", profile, "bridge", "info", "--json")
    assert result.status == 0 and problems(SCHEMAS["bridge info"], result.json) == []
    [bridge] = result.json["bridges"]
    assert bridge["serial"] and bridge["product"] and bridge["usb_speed"]
    assert (bridge["behind"] is None) == (profile == "asm24-no-gpu") == (bridge["problem"] is not None)
    assert tghw("--mock", profile, "bridge", "info").status == 0


def test_bridge_resets(tghw):
    for kind, state in (("slot", 0x78), ("cpu", 0), ("usb", 0)):
        result = tghw("--mock", "navi31-asm24", "bridge", "reset", "--kind", kind, "--json")
        assert result.status == 0 and result.json == {"address": "usb:2-7", "reset": kind, "link_state": state}
    assert tghw("--mock", "navi31-asm24-stock", "bridge", "reset", "--json").json["reset"] == "cpu"
    assert tghw("--mock", "navi31-asm24-stock", "bridge", "reset", "--kind", "slot").status == 1
    assert tghw("--mock", "navi31-asm24", "bridge", "reset", "--kind", "warp").status == 2


def test_flash_wants_consent_and_keeps_a_backup(tghw, tmp_path):
    image = tmp_path / "image.bin"
    image.write_bytes(IMAGE)
    state = tmp_path / "state"
    plain = tghw("--mock", "navi31-asm24-stock", "--state", str(state), "bridge", "flash", str(image))
    assert plain.status == 4 and "--yes" in plain.err and "wrapped image" in plain.out
    assert not list(state.glob("bridge-backups/*"))
    kept = tmp_path / "before.bin"
    done = tghw("--mock", "navi31-asm24-stock", "--state", str(state), "bridge", "flash", str(image), "--yes", "--backup", str(kept), "--json")
    assert done.status == 0 and problems(SCHEMAS["bridge flash"], done.json) == []
    assert done.json["written"] and done.json["backup"] == str(kept) and kept.stat().st_size > 0xFF00
    again = tghw("--mock", "navi31-asm24-stock", "--state", str(tmp_path / "other"), "bridge", "flash", str(image), "--yes", "--backup", str(kept))
    assert again.status == 4 and "exists already" in again.err


def test_flash_refuses_a_file_of_another_family_by_name(tghw, tmp_path):
    image = tmp_path / "image.bin"
    damaged = bytearray(IMAGE)
    damaged[-6] = 0x5A
    image.write_bytes(damaged)
    result = tghw("--mock", "navi31-asm24", "bridge", "flash", str(image), "--yes")
    assert result.status == 4 and "ASM236x" in result.err
    assert tghw("--mock", "navi31-asm24", "bridge", "flash", str(tmp_path / "absent.bin")).status == 2


# --- counts that the documentation promises ---------------------------------------------------------------------------


def test_bench_boot_reports_usb_transfers_a_stage(tghw):
    cold, warm = (tghw("bench", "boot", "--dev", "MOCKUSB+AMD", "--json").json["boot"][kind]["usb"] for kind in ("cold", "warm"))
    assert cold["boot"]["transfers"] <= 700 and cold["open"]["transfers"] <= 1800
    assert sum(stage["transfers"] for stage in cold["stages"]) == cold["boot"]["transfers"]
    assert {"name", "transfers", "control_out", "control_in", "bulk_out", "bulk_in", "bytes_out", "bytes_in"} == cold["stages"][0].keys()
    assert warm["boot"]["transfers"] < cold["boot"]["transfers"] / 2


@pytest.mark.slow
def test_bench_launch_reports_usb_transfers(tghw):
    launch = tghw("bench", "launch", "--dev", "MOCKUSB+AMD", "--json").json["launch"]["usb"]
    assert launch["launch"]["transfers"] <= 8 and launch["launch_and_wait"]["transfers"] <= 10


def test_bench_copy_reports_usb_transfers(tghw):
    copy = tghw("bench", "copy", "--dev", "MOCKUSB+AMD", "--json").json["copy"]
    assert copy["4_bytes_in"]["usb"]["transfers"] <= 4 and copy["4_bytes_out"]["usb"]["transfers"] <= 4
    for direction in ("in", "out"):
        assert copy[f"4194304_bytes_{direction}"]["usb"]["transfers_per_mib"] <= 7.25


def test_local_devices_report_no_usb(tghw):
    assert "usb" not in tghw("bench", "boot", "--json").json["boot"]["cold"]


def test_bridge_errors_are_explained(tghw):
    import bridges.asm24.errors as errors

    for code in ("bridge-wedged", "pcie-link-down", "tlp-unsupported-request", "usb-stall"):
        assert any(getattr(each, "code", "") == code for each in vars(errors).values())
        assert tghw("explain", code).status == 0


def test_door_finds_no_bridge_on_a_machine_without_one(tghw):
    from bridges.open import Selection, usb_bridges

    assert usb_bridges(Selection(mock="navi31")) == []
    assert door.usb_searched().count(":") == 5
