"""`tghw probe`: what it says of healthy and of sick machines."""

from __future__ import annotations

import pytest

from probes.schemas import SCHEMAS
from tests.hw.fake_sysfs import FakeHost
from tests.probes.schema_check import problems


def test_simulated_gpu_is_named_with_its_bars_link_and_state(tghw):
    result = tghw("--mock", "navi31", "probe", "--json")
    assert result.status == 0
    assert problems(SCHEMAS["probe"], result.json) == []
    [gpu] = result.json["devices"]
    assert (gpu["name"], gpu["arch"], gpu["boot_state"]) == ("Radeon RX 7900 XTX (Navi31)", "gfx1100", "cold")
    assert {bar["index"]: bar["size"] for bar in gpu["bars"]} == {0: 256 << 20, 2: 2 << 20, 4: 256, 5: 1 << 20}
    assert gpu["link"] == "16GT/s x16"
    assert gpu["index"] == 0


def test_all_functions_are_listed_on_request(tghw):
    devices = tghw("--mock", "navi31", "probe", "--all", "--json").json["devices"]
    assert [each["address"] for each in devices if each["address"].startswith("0000:03:00")] == [f"0000:03:00.{number}" for number in range(4)]

VRAM_WINDOW = (0x0, 0x6)
"""MM_INDEX and MM_INDEX_HI: where the next access through the window goes. Reading the discovery table through a small BAR moves them."""


@pytest.mark.parametrize(
    ("profile", "state", "status", "words"),
    [
        ("dead-bus", "dead-bus", 1, ("all ones", "link is down", "power")),
        ("bars-unassigned", "bars-unassigned", 0, ("unassigned",)),
        ("navi31-memory-off", "gated", 0, ()),
        ("navi33", "cold", 0, ("Navi33", "gfx1102")),
    ],
)
def test_sick_machines_are_explained(tghw, profile, state, status, words):
    result = tghw("--mock", profile, "probe")
    assert result.status == status
    for word in (state, *words):
        assert word in result.out


def test_machine_without_a_gpu_exits_3_with_what_to_try(tghw, monkeypatch, tmp_path):
    from bridges import open as door

    monkeypatch.setitem(door.find.__kwdefaults__, "host", FakeHost(tmp_path))
    result = tghw("probe")
    assert result.status == 3
    assert "lspci" in result.err
    assert "--mock navi31" in result.err


def test_probing_changes_nothing_on_the_simulated_gpu(tghw, monkeypatch):
    from bridges import open as door
    from mocks.machine import Machine

    machine = Machine.from_profile("navi31")
    monkeypatch.setattr(door, "machine_of", lambda selection: machine)

    def state():
        registers = {index: value for index, value in machine.gpus[0].regs.items() if index not in VRAM_WINDOW}
        return machine.export_config("0000:03:00.0"), registers

    before = state()
    assert tghw("--mock", "navi31", "probe").status == 0
    assert state() == before


def test_capabilities_are_decoded_on_request(tghw):
    assert "PCI Express" not in tghw("--mock", "navi31", "probe").out
    result = tghw("--mock", "navi31", "probe", "-v")
    assert "0x64 PCI Express: " in result.out and "kind legacy endpoint" in result.out
    assert "0x50 power management: " in result.out and "state D0" in result.out
    [gpu] = tghw("--mock", "navi31", "probe", "--json").json["devices"]
    assert [each["offset"] for each in gpu["capabilities"]][:4] == ["0x48", "0x50", "0x64", "0xa0"]
    assert gpu["capabilities"][3] | {"name": "MSI", "vectors": 1, "is_64bit": True} == gpu["capabilities"][3]
