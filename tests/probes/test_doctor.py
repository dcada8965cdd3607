"""`tghw doctor`: what a person and a script get, and the exit status."""

from __future__ import annotations

import pytest

from probes import doctor
from probes.doctor_software import Software
from probes.schemas import SCHEMAS
from tests.hw.doctor.roots import ALL_TARGETS, Root, conditions
from tests.probes.schema_check import problems

HEALTHY = Software("libusb-1.0.so.0", "22.1.0", ALL_TARGETS)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Puts the command onto a machine with a recorded condition."""
    plain = doctor.diagnose

    def prepare(name: str) -> Root:
        condition = {each.name: each for each in conditions()}[name]
        root = Root(tmp_path / "root", condition.base)
        root.apply(condition)
        monkeypatch.setattr(doctor, "HOST", root)
        monkeypatch.setattr(doctor, "_software", lambda selection: HEALTHY)
        monkeypatch.setattr(doctor, "diagnose", lambda *arguments: plain(*arguments, pagemap=lambda address, count: [1 << 63 | 0x1234] * count, system="Linux"))
        return root

    return prepare


def test_healthy_machine_exits_0(tghw, machine):
    machine("healthy")
    result = tghw("doctor", "amd")
    assert result.status == 0
    assert "checks are fine" in result.out
    assert "0000:03:00.0" in result.out and "BAR0 16GB" in result.out


def test_blocking_condition_exits_1_with_reason_and_remedy(tghw, machine):
    machine("driver-bound")
    result = tghw("doctor")
    assert result.status == 1
    assert "block  kernel driver of 0000:03:00.0  [driver-bound]" in result.out
    for words in ("one driver at a time", "echo 0000:03:00.0 > /sys/bus/pci/devices/0000:03:00.0/driver/unbind", "checks block the way"):
        assert words in result.out


def test_warning_alone_exits_0(tghw, machine):
    machine("console-gpu")
    result = tghw("doctor")
    assert result.status == 0
    assert "nothing blocks; 1 of" in result.out


def test_reasons_of_good_checks_on_request(tghw, machine):
    machine("healthy")
    assert "one process at a time may drive a device" not in tghw("doctor").out
    assert "one process at a time may drive a device" in tghw("doctor", "-v").out


@pytest.mark.parametrize(("name", "status"), [("healthy", 0), ("group-not-viable", 1), ("bridge-on-usb-2", 0)])
def test_json_document(tghw, machine, name, status):
    machine(name)
    result = tghw("doctor", "--json")
    assert result.status == status
    assert problems(SCHEMAS["doctor"], result.json) == []
    assert result.json["usable"] == (status == 0)
    assert sum(result.json["counts"].values()) == len(result.json["findings"])


def test_asked_for_a_kind_that_is_not_there(tghw, machine):
    machine("healthy")
    result = tghw("doctor", "nv", "--json")
    assert result.status == 1
    assert [finding["check"] for finding in result.json["findings"] if finding["state"] == "block"] == ["device-present"]


def test_unknown_kind_and_simulated_machine_are_refused(tghw):
    assert tghw("doctor", "voodoo").status == 2
    result = tghw("--mock", "navi31", "doctor")
    assert result.status == 1
    assert "not-supported" in result.err


def test_real_software_of_this_machine_is_found():
    found = Software.installed()
    assert found.libusb and found.llvm
    assert found.targets == ALL_TARGETS
