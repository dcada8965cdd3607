"""Machines from profiles, fault plans, locks."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from hw.errors import DeviceBusy, NothingFound, ProfileError, UsageError
from mocks.faults import FAULTS, FaultPlan
from mocks.machine import Machine, load_profile, profile_names

GPU = "0000:03:00.0"


FIRST_CARD = {
    "0000:00:01.1": "bridge",
    "0000:01:00.0": "bridge",
    "0000:02:00.0": "bridge",
    "0000:03:00.0": "gpu",
    "0000:03:00.1": "audio",
    "0000:03:00.2": "usb",
    "0000:03:00.3": "ucsi",
}


def test_every_profile_makes_a_machine() -> None:
    for name in profile_names():
        machine = Machine.from_profile(name)
        assert machine.name == name
        assert machine.profile["summary"]
        if machine.asm24 is not None:
            continue
        roles = {function.address: function.role for function in machine.functions()}
        assert FIRST_CARD.items() <= roles.items()


@pytest.mark.parametrize(
    ("profile", "device", "memsize", "gc", "mmhub"),
    [("navi31", 0x744C, 0x5FF0, [11, 0, 0], [3, 0, 0]), ("navi32", 0x747E, 0x3FF0, [11, 0, 3], [3, 0, 3]), ("navi33", 0x7480, 0x1FF0, [11, 0, 2], [3, 0, 2])],
)
def test_chips_differ_where_they_should(profile: str, device: int, memsize: int, gc: list[int], mmhub: list[int]) -> None:
    machine = Machine.from_profile(profile)
    assert machine.function(GPU).identity().device == device
    assert machine.open(GPU).map_bar(5).read32(4 * 0xDE3) == memsize
    ips = {(ip["hw_id"], ip["instance"]): ip["version"] for ip in machine.profile["gpu"]["discovery"]["ips"]}
    assert (ips[(11, 0)], ips[(34, 0)]) == (gc, mmhub)
    assert len(ips) == 23


def test_a_profile_merges_with_what_it_is_based_on() -> None:
    base, small = load_profile("navi31"), load_profile("navi33")
    assert small["gpu"]["psp"]["sos_time"] == base["gpu"]["psp"]["sos_time"]
    assert small["gpu"]["smu"]["clocks"]["FCLK"] == base["gpu"]["smu"]["clocks"]["FCLK"]
    gpu = next(entry for entry in small["functions"] if entry["address"] == GPU)
    assert [bar["index"] for bar in gpu["bars"]] == [0, 2, 4, 5]
    assert gpu["bars"][0]["sizes_mib"][-1] == 8192
    assert gpu["bars"][0]["address"] == 0x78_0000_0000


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("navi99")
    assert "navi31" in caught.value.read
    assert caught.value.exit_status == 2


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('based_on = "navi31"\nsummary = "less memory"\n[gpu.memory]\nmemsize_mib = 8176\nfb_top = 0x81FF\n')
    machine = Machine.from_profile(path)
    assert (machine.name, machine.gpus[0].vram_size) == ("mine", 8176 << 20)
    path.write_text("summary = ")
    with pytest.raises(ProfileError, match=r"mine\.toml is not valid TOML"):
        Machine.from_profile(path)


def test_the_same_seed_gives_the_same_machine() -> None:
    def trace(seed: int) -> list[int]:
        machine = Machine.from_profile("navi31", seed=seed)
        pci = machine.open(GPU)
        return [*pci.alloc_dma(8 * 4096).pages, pci.map_bar(0).read32(0x1000)]

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_a_device_is_opened_once() -> None:
    machine = Machine.from_profile("navi31")
    first = machine.open(GPU)
    with pytest.raises(DeviceBusy, match=r"0000:03:00\.0 of machine navi31"):
        machine.open(GPU)
    first.close()
    machine.open(GPU).close()
    with pytest.raises(NothingFound, match=r"0000:09:00\.0"):
        machine.open("0000:09:00.0")


def _hold(state: Path, ready, done) -> None:  # type: ignore[no-untyped-def]
    device = Machine.from_profile("navi31", state_dir=state).open(GPU)
    ready.set()
    done.wait(20)
    device.close()


def test_processes_that_share_a_state_directory_exclude_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, ready, done))
    other.start()
    try:
        assert ready.wait(20)
        machine = Machine.from_profile("navi31", state_dir=tmp_path)
        with pytest.raises(DeviceBusy) as caught:
            machine.open(GPU)
        assert str(other.pid) in caught.value.what
        done.set()
        other.join(20)
        machine.open(GPU).close()
    finally:
        done.set()
        other.join(20)


def test_machines_without_a_state_directory_are_private() -> None:
    Machine.from_profile("navi31").open(GPU)
    Machine.from_profile("navi31").open(GPU)


def test_closing_a_machine_closes_its_devices() -> None:
    machine = Machine.from_profile("navi31")
    device = machine.open(GPU)
    machine.close()
    assert device.closed


# --- fault plans ---


def test_a_plan_is_read_from_text() -> None:
    plan = FaultPlan.parse("psp-never-ready, smu-busy=3 ,psp-command-error=0x6:0xf")
    assert sorted(plan) == ["psp-command-error", "psp-never-ready", "smu-busy"]
    assert plan.active("smu-busy")
    assert plan.argument("smu-busy") == "3"
    assert plan.argument("psp-never-ready") == ""
    assert plan.argument("smu-silent") is None
    assert not FaultPlan.parse("")
    assert not FaultPlan.parse(" , ")


def test_an_unknown_fault_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse("psp-explodes")
    assert "psp-explodes" in caught.value.what
    assert "psp-never-ready" in caught.value.read


def test_a_block_that_asks_for_an_unknown_fault_has_a_bug() -> None:
    with pytest.raises(KeyError):
        FaultPlan().active("psp-explodes")


def test_a_profiles_faults_and_those_asked_for_add_up() -> None:
    machine = Machine.from_profile("navi31-small-bar", faults=FaultPlan.parse("smu-silent"))
    assert machine.faults.active("resize-refused")
    assert machine.faults.active("smu-silent")


def test_every_fault_is_explained() -> None:
    assert all(len(text) > 20 for text in FAULTS.values())
