"""`tghw smi`: what it shows of simulated cards, and that it harms none."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from bridges import open as door
from drivers.amd.layouts import smu as layout
from mocks.amd.smu import Smu
from mocks.machine import Machine
from mocks.pci_device import MockPciDevice
from probes.schemas import SCHEMAS
from tests.probes.schema_check import problems

HUNG = "0000:0f:00.0"


def the_machine() -> Machine:
    """The machine of the last command."""
    (machine,) = door._machines.values()
    return machine


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The metrics tables that simulated power controllers hand out."""
    tables: list[bytes] = []
    original = Smu.metrics

    def metrics(self: Smu) -> bytes:
        tables.append(original(self))
        return tables[-1]

    monkeypatch.setattr(Smu, "metrics", metrics)
    return tables


@pytest.mark.parametrize(("profile", "lanes"), [("navi31", 16), ("navi32", 16), ("navi33", 8)])
def test_list_shows_what_the_power_controller_holds(tghw, sent, profile, lanes):
    result = tghw("--mock", profile, "smi", "amd", "--list", "--json")
    assert result.status == 0
    assert problems(SCHEMAS["smi"], result.json) == []
    (gpu,) = result.json["gpus"]
    (table,) = [layout.metrics((13, 0, 0)).decode(data) for data in sent]
    figures = {key: figure["value"] for key, figure in gpu["figures"].items()}
    assert figures == {
        "gfx_activity": table["AverageGfxActivity"],
        "memory_activity": table["AverageUclkActivity"],
        "power": table["AverageSocketPower"],
        "gfx_clock": table["AverageGfxclkFrequencyPostDs"],
        "memory_clock": table["AverageMemclkFrequencyPostDs"],
        "fabric_clock": table["AverageFclkFrequencyPostDs"],
        "fan_speed": table["AvgFanRpm"],
        "fan_pwm": table["AvgFanPwm"],
        "temperature_edge": table["AvgTemperature"][0],
        "temperature_hotspot": table["AvgTemperature"][1],
        "temperature_mem": table["AvgTemperature"][4],
        "voltage_gfx": table["AvgVoltage"][0] / 1000,
    }
    assert gpu["figures"]["power"]["limit"] == table["dGPU_W_MAX"]
    assert gpu["metrics_counter"] == table["MetricsCounter"]
    assert gpu["throttle"] == {}
    assert gpu["memory"] == {"used": 0, "total": the_machine().gpus[0].vram_size}
    assert (gpu["boot_state"], gpu["power_state"], gpu["virtual_function"]) == ("running", "D0", False)
    assert gpu["link"] == f"16GT/s x{lanes}"


def test_simulated_card_says_where_it_lives_and_is_left_clean(tghw):
    result = tghw("--mock", "navi31", "smi", "amd")
    assert result.status == 0
    for words in ("simulated: switched on and booted by this command", "19 of 327 W", "39 of 110 C", "23 of 2526 MHz", "0 B of 24.0 GiB", "throttle none"):
        assert words in result.out
    gpu = the_machine().gpus[0]
    assert gpu.reg("GC", "SCRATCH_REG6").value == 0
    assert not gpu.function.bus_master


def test_hung_card_of_eight_is_marked_and_the_others_appear(tghw):
    result = tghw("--mock", "navi31-8", "--fault", f"smu-hang@{HUNG}", "smi", "amd", "--list", "--json")
    assert result.status == 0
    gpus = {gpu["address"]: gpu for gpu in result.json["gpus"]}
    assert len(gpus) == 8
    hung = gpus.pop(HUNG)
    assert hung["figures"] == {}
    assert hung["problem"]["code"] == "smu"
    assert "does not answer TransferTableSmu2Dram" in hung["problem"]["what"]
    assert all(gpu["figures"]["power"]["value"] == 19 and gpu["problem"] is None for gpu in gpus.values())


def test_hung_card_costs_the_others_no_more_than_its_deadline(tghw):
    """By the simulated clock, on which a real card's second would pass."""
    healthy = tghw("--mock", "navi31-8", "smi", "amd", "--list", "--json")
    without = the_machine().clock.now()
    assert healthy.status == 0
    tghw("--mock", "navi31-8", "--fault", f"smu-hang@{HUNG}", "smi", "amd", "--list", "--json")
    assert the_machine().clock.now() - without < 2.0


def test_many_cards_are_lines_and_the_reason_stands_below(tghw):
    result = tghw("--mock", "navi31-8", "--fault", f"bars-unassigned@{HUNG}", "smi", "amd", "--list", "--dev", "0000:03:00.0")
    assert HUNG not in result.out
    result = tghw("--mock", "navi31-8", "--fault", f"dead-bus@{HUNG}", "smi", "amd", "--list", "--json")
    states = {gpu["address"]: gpu["boot_state"] for gpu in result.json["gpus"]}
    assert states[HUNG] == "dead-bus"
    assert sum(state == "running" for state in states.values()) == 7


def test_card_that_does_not_boot_is_marked_once_and_not_tried_again(tghw, monkeypatch):
    monkeypatch.setattr(time, "sleep", stop_after(2))
    result = tghw("--mock", "navi31", "--fault", "smu-silent", "smi", "amd", "--watch", "1", "--json")
    first, second = (json.loads(line) for line in result.out.splitlines())
    assert first["gpus"][0]["problem"]["code"] == "smu"
    assert second["gpus"][0]["problem"] == first["gpus"][0]["problem"]
    assert [name for name, _, _ in the_machine().gpus[0].smu.history] == []


def test_sleeping_card_is_neither_opened_nor_woken(tghw, monkeypatch):
    monkeypatch.setattr(Machine, "open", lambda self, address: pytest.fail("the card was opened"))
    result = tghw("--mock", "navi31-asleep", "smi", "amd", "--list", "--json")
    assert result.status == 0
    (gpu,) = result.json["gpus"]
    assert (gpu["power_state"], gpu["boot_state"], gpu["figures"]) == ("D3hot", "gated", {})
    assert "not woken" in gpu["note"]
    assert the_machine().gpus[0].function.power_state == 3


def test_virtual_function_is_named_and_its_controller_not_asked(tghw):
    result = tghw("--mock", "navi31-vf", "smi", "amd", "--list", "--json")
    (gpu,) = result.json["gpus"]
    assert gpu["virtual_function"] is True
    assert (gpu["figures"], gpu["problem"]) == ({}, None)
    assert "host" in gpu["note"]
    assert the_machine().gpus[0].smu.history == []


def test_lost_card_is_shown_and_fails(tghw):
    result = tghw("--mock", "dead-bus", "smi", "amd", "--list")
    assert result.status == 1
    assert "bus-lost" in result.out


def test_card_behind_a_usb_bridge_is_shown(tghw):
    result = tghw("--mock", "navi31-asm24", "smi", "amd", "--list", "--json")
    assert result.status == 0
    (gpu,) = result.json["gpus"]
    assert gpu["transport"] == "usb"
    assert gpu["figures"]["power"]["value"] == 19


def stop_after(count: int) -> Any:
    """A sleep that is interrupted by Ctrl-C the n-th time."""
    left = [count]

    def sleep(seconds: float) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return sleep


def test_watching_writes_a_document_a_line_until_interrupted(tghw, monkeypatch):
    monkeypatch.setattr(time, "sleep", stop_after(3))
    result = tghw("--mock", "navi31", "smi", "amd", "--watch", "0.5", "--json")
    assert result.status == 0
    documents = [json.loads(line) for line in result.out.splitlines()]
    assert [problems(SCHEMAS["smi"], document) for document in documents] == [[], [], []]
    assert [document["gpus"][0]["metrics_counter"] for document in documents] == sorted({document["gpus"][0]["metrics_counter"] for document in documents})
    names = [name for name, _, _ in the_machine().gpus[0].smu.history]
    assert names.count("GetMaxDpmFreq") == 3, "limits are asked for once"
    assert names.count("EnableAllSmuFeatures") == 1, "the card is booted once"


def test_without_a_terminal_watching_prints_one_view_after_another(tghw, monkeypatch):
    monkeypatch.setattr(time, "sleep", stop_after(2))
    result = tghw("--mock", "navi31", "smi", "amd", "--watch", "1")
    assert result.out.count("throttle none") == 2


def test_one_card_can_be_chosen(tghw):
    result = tghw("--mock", "navi31-8", "smi", "amd", "--list", "--json", "--dev", HUNG)
    assert [gpu["address"] for gpu in result.json["gpus"]] == [HUNG]
    assert sum(bool(gpu.smu.history) for gpu in the_machine().gpus) == 1
    assert tghw("--mock", "navi31-8", "smi", "amd", "--list", "--dev", "0000:44:00.0").status == 3


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("nv",), 1, "not-supported"),
        (("matrox",), 2, "unknown device family"),
        (("amd", "--pids", "--list"), 2, "exclude each other"),
        (("amd", "--reset", "--kill-pids"), 2, "exclude each other"),
        (("amd", "--watch", "0.001"), 2, "at least 0.1"),
        (("amd", "--module", "unload"), 1, "no kernel runs on it"),
        (("amd", "--hive"), 1, "only MI300X and MI350X"),
        (("amd", "--export", "here"), 2, "cannot serve"),
        (("amd", "--export", "127.0.0.1:99999"), 2, "ports are"),
    ],
)
def test_what_cannot_be_done_is_said(tghw, arguments, status, word):
    result = tghw("--mock", "navi31", "smi", *arguments)
    assert result.status == status
    assert word in result.err


def test_reset_names_its_method_and_looks_afterwards(tghw):
    result = tghw("--mock", "navi31", "smi", "amd", "--reset", "--json")
    assert result.status == 0
    assert problems(SCHEMAS["smi"], result.json) == []
    (reset,) = result.json["resets"]
    assert (reset["before"], reset["after"], reset["method"]) == ("cold", "cold", "the bus")
    assert reset["seconds"] > 0.5
    assert the_machine().gpus[0].resets == 1


def test_reset_of_all_needs_consent_and_of_one_its_name(tghw):
    result = tghw("--mock", "navi31-8", "smi", "amd", "--reset")
    assert result.status == 4
    assert [gpu.resets for gpu in the_machine().gpus] == [0] * 8
    assert tghw("--mock", "navi31-8", "smi", "amd", "--reset", "--dev", HUNG).status == 0
    assert [gpu.resets for gpu in the_machine().gpus] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert tghw("--mock", "navi31-8", "smi", "amd", "--reset", "--yes").status == 0
    assert [gpu.resets for gpu in the_machine().gpus] == [1] * 8


def test_virtual_function_is_not_reset(tghw):
    result = tghw("--mock", "navi31-vf", "smi", "amd", "--reset")
    assert result.status == 1
    assert "virtual function" in result.err
    assert the_machine().gpus[0].resets == 0


def test_nothing_is_left_open(tghw, monkeypatch):
    opened: list[MockPciDevice] = []
    original = Machine.open
    monkeypatch.setattr(Machine, "open", lambda self, address: opened.append(original(self, address)) or opened[-1])
    tghw("--mock", "navi31-8", "--fault", f"smu-hang@{HUNG}", "smi", "amd", "--list")
    assert len(opened) == 8
    assert all(device.closed for device in opened)
