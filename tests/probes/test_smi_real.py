"""`tghw smi` on this machine's cards, beside their owners: a process for each, nothing booted, nothing woken, nobody waited for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hw import lock
from hw.host import HostFiles
from probes.smi.readers import DEADLINE, MARGIN, WorkerReader, read_all
from tests.hw.fake_sysfs import FakeHost
from tests.probes.fake_card import ADDRESS, MAPPED, MESSAGES, Card, controller, hang, use_host

WEDGED, SLEEPING, COLD = "0000:07:00.0", "0000:0b:00.0", "0000:0f:00.0"


@pytest.fixture(scope="module")
def card() -> Card:
    return Card()


@pytest.fixture
def host(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    host = FakeHost(tmp_path / "root")
    use_host(monkeypatch, host)
    return host


PATIENCE = 4.0
"""s that a card gets in tests that are not about time: machines that run tests are busy"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_all, "__defaults__", (PATIENCE,))


def rows(result: Any) -> dict[str, Any]:
    return {gpu["address"]: gpu for gpu in json.loads(result.out)["gpus"]}


def test_card_in_use_is_read_beside_its_owner(tghw, host, card, tmp_path, patient):
    function = card.put(host, ADDRESS)
    before = host.snapshot(function)
    registers = (function.directory / "resource5").read_bytes()
    with lock.acquire(ADDRESS, tmp_path), controller(card, function) as smu:
        result = tghw("smi", "amd", "--list", "--json")
        seen = [message for message, _ in smu.seen]
    gpu = rows(result)[ADDRESS]
    assert gpu["problem"] is None
    assert gpu["figures"]["power"] == {"label": "power", "value": card.metrics["AverageSocketPower"], "unit": "W", "limit": 327}
    assert gpu["figures"]["gfx_activity"]["value"] == card.metrics["AverageGfxActivity"] > 30
    assert gpu["figures"]["gfx_clock"]["value"] == card.metrics["AverageGfxclkFrequencyPreDs"]
    assert gpu["memory"] == {"used": MAPPED, "total": card.vram_size}
    assert (gpu["boot_state"], gpu["driver"], gpu["link"]) == ("running", None, "16GT/s x16")
    assert seen == [MESSAGES["TransferTableSmu2Dram"], *[MESSAGES["GetMaxDpmFreq"]] * 3]
    assert host.written == []
    assert host.snapshot(function) == before
    after = (function.directory / "resource5").read_bytes()
    changed = {at // 4 for at in range(0, len(after), 4) if after[at : at + 4] != registers[at : at + 4]}
    assert changed <= set(card.mailbox.values())


def test_wedged_card_is_marked_and_the_others_appear_in_time(tghw, host, card, patient):
    hang(card.put(host, WEDGED))
    card.put(host, SLEEPING, power_state="D3cold")
    with controller(card, card.put(host, ADDRESS)):
        result = tghw("smi", "amd", "--list", "--json")
    seen = rows(result)
    assert result.status == 0
    assert seen[ADDRESS]["figures"]["power"]["value"] == card.metrics["AverageSocketPower"]
    assert seen[WEDGED]["problem"]["code"] == "device-error"
    assert "does not answer" in seen[WEDGED]["problem"]["what"]
    assert seen[SLEEPING]["problem"] is None
    assert "not woken" in seen[SLEEPING]["note"]


@pytest.mark.slow
def test_wedged_card_costs_no_more_than_its_deadline_once_its_process_runs(host, card):
    """The bound of two seconds that does not depend on how fast this machine starts processes."""
    hang(card.put(host, WEDGED))
    function = card.put(host, ADDRESS)
    readers = [(0, WorkerReader(WEDGED, host)), (1, WorkerReader(ADDRESS, host))]
    try:
        with controller(card, function):
            samples: dict[int, Any] = {}
            order: list[int] = []

            def take(number: int, sample: Any) -> None:
                samples[number] = sample
                order.append(number)

            read_all(readers, take, within=PATIENCE)
            assert order == [1, 0]
            seconds = []
            for _ in range(4):
                before = time.monotonic()
                read_all(readers, take)
                if samples[1].reading is not None:
                    seconds.append(time.monotonic() - before)
                assert samples[0].problem["read"].startswith("nothing for ")
            assert min(seconds) < DEADLINE + MARGIN < 2.0
    finally:
        for _, reader in readers:
            reader.close()
    assert all(reader._process.wait(10) is not None for _, reader in readers)


def test_card_that_nobody_booted_is_shown_and_not_booted(tghw, host, card, patient):
    function = card.put(host, COLD)
    with controller(card, function) as smu:
        smu.put(card.tag, 0)
        result = tghw("smi", "amd", "--list", "--json")
        assert smu.seen == []
    gpu = rows(result)[COLD]
    assert (gpu["boot_state"], gpu["figures"], gpu["problem"]) == ("sos-alive", {}, None)
    assert "not booted by tghw" in gpu["note"]
    assert host.written == []


def test_card_whose_decoders_are_off_is_said_to_be_unused(tghw, host, card, patient):
    function = card.put(host, ADDRESS)
    host.set_config(function, 4, 0)
    gpu = rows(tghw("smi", "amd", "--list", "--json"))[ADDRESS]
    assert (gpu["boot_state"], gpu["problem"]) == ("gated", None)
    assert "nobody uses it" in gpu["note"]


def test_dead_controller_is_the_cards_problem(tghw, host, card, patient):
    card.put(host, ADDRESS)
    gpu = rows(tghw("smi", "amd", "--list", "--json"))[ADDRESS]
    assert gpu["problem"]["code"] == "smu"
    assert gpu["boot_state"] == "running"


def test_card_is_followed_to_sleep_and_through_a_reboot_by_its_owner(host, card):
    function = card.put(host, ADDRESS)
    reader = WorkerReader(ADDRESS, host)

    def sample() -> Any:
        found = []
        read_all([(0, reader)], lambda _, each: found.append(each), within=5.0)
        return found[0]

    try:
        with controller(card, function) as smu:
            assert sample().reading is not None
            asked = len(smu.seen)
            host.put(function.directory / "power_state", "D3hot")
            asleep = sample()
            assert (asleep.boot_state, asleep.reading, len(smu.seen)) == ("gated", None, asked)
            host.put(function.directory / "power_state", "D0")
            smu.put(card.tag, 0)  # the owner resets it
            assert sample().reading is None
            assert len(smu.seen) == asked
            smu.put(card.tag, card.registers[card.tag])
            assert sample().reading is not None
    finally:
        reader.close()


def test_worker_that_cannot_start_is_told_from_a_card_that_hangs(tmp_path):
    reader = WorkerReader(ADDRESS, HostFiles(tmp_path))
    reader._process.kill()
    found = []
    read_all([(0, reader)], lambda _, each: found.append(each))
    assert "the process that looks ended" in found[0].problem["read"]
    reader.close()


def test_holders_are_shown_with_the_card(tghw, host, card, patient):
    function = card.put(host, ADDRESS, power_state="D3hot")
    (function.directory / "drm" / "renderD128").mkdir(parents=True)
    host.add_process(4000001, "trainer --fast", ("/dev/dri/renderD128",))
    gpu = rows(tghw("smi", "amd", "--list", "--json"))[ADDRESS]
    assert [(holder["pid"], holder["command"], holder["path"]) for holder in gpu["holders"]] == [(4000001, "trainer --fast", "/dev/dri/renderD128")]
    shown = tghw("smi", "amd", "--list").out
    assert "process 4000001 (trainer --fast), /dev/dri/renderD128" in shown
