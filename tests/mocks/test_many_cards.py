"""Machines with several cards, and faults that happen to one of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from drivers.amd.device import AmdDevice
from drivers.amd.layouts import smu as layout
from firmware.store import FirmwareStore
from hw.errors import ProfileError, SmuError, UsageError
from mocks.amd.fw import fabricate
from mocks.faults import FaultPlan
from mocks.machine import Machine

SECOND = "0000:07:00.0"


def gpu_of(machine: Machine, address: str) -> AmdDevice:
    return AmdDevice(machine.open(address), FirmwareStore.from_files(fabricate("navi31", 0)))


def test_every_card_of_the_eight_has_bars_of_its_own_and_room_to_grow() -> None:
    machine = Machine.from_profile("navi31-8")
    assert len(machine.gpus) == 8
    for gpu in machine.gpus:
        device = machine.open(gpu.function.address)
        device.resize_bar(0, 32 << 30)
    ranges = sorted((slot.address, slot.size) for gpu in machine.gpus for slot in gpu.function.slots.values() if not slot.is_io)
    assert all(address + size <= following for (address, size), (following, _) in pairwise(ranges))
    assert all(slot.reachable for gpu in machine.gpus for slot in gpu.function.slots.values() if not slot.is_io)


def test_a_fault_with_an_address_happens_to_that_card_only() -> None:
    machine = Machine.from_profile("navi31-8", faults=FaultPlan.parse("dead-bus@07:00.0,smu-silent@0000:0b:00.0"))
    assert [gpu.function.link_up for gpu in machine.gpus] == [True, False, *[True] * 6]
    assert [gpu.faults.active("smu-silent") for gpu in machine.gpus] == [False, False, True, *[False] * 5]
    machine.faults.remove("smu-silent@0b:00.0")
    assert not machine.gpus[2].faults.active("smu-silent")


def test_a_cards_own_argument_comes_before_that_of_all() -> None:
    plan = FaultPlan.parse(f"engine-hang=3,engine-hang@{SECOND}=5")
    assert plan.at(SECOND).argument("engine-hang") == "5"
    assert plan.at("0000:03:00.0").argument("engine-hang") == "3"


def test_bus_loss_counts_the_accesses_of_each_card() -> None:
    machine = Machine.from_profile("navi31-8", faults=FaultPlan.parse(f"all-ones-at@{SECOND}=2"))
    windows = [machine.open(gpu.function.address).map_bar(5) for gpu in machine.gpus[:2]]
    seen = [[window.read32(0xDE3 << 2) for _ in range(3)] for window in windows]
    assert seen == [[24560] * 3, [24560, 0xFFFFFFFF, 0xFFFFFFFF]]


def test_unknown_fault_of_a_card_is_refused() -> None:
    with pytest.raises(UsageError, match="gremlins"):
        FaultPlan.parse(f"gremlins@{SECOND}")


def test_hung_power_controller_takes_nothing_until_its_reset() -> None:
    machine = Machine.from_profile("navi31", faults=FaultPlan(["smu-hang"]))
    gpu = gpu_of(machine, "0000:03:00.0")
    gpu.boot()
    assert gpu.smu.version() == 0x004E8500
    with pytest.raises(SmuError, match="does not answer TransferTableSmu2Dram"):
        gpu.smu.metrics()
    with pytest.raises(SmuError, match="does not answer GetSmuVersion"):
        gpu.smu.version()
    machine.faults.remove("smu-hang")
    gpu.reset()
    gpu.boot()
    assert gpu.smu.metrics()["AverageSocketPower"] == 19


def test_other_messages_can_be_the_last_one() -> None:
    number = layout.messages((13, 0, 0))["GetSmuVersion"]
    machine = Machine.from_profile("navi31", faults=FaultPlan.parse(f"smu-hang={number:#x}"))
    gpu = gpu_of(machine, "0000:03:00.0")
    gpu.boot()
    assert gpu.smu.metrics()["AverageSocketPower"] == 19
    with pytest.raises(SmuError, match="GetSmuVersion"):
        gpu.smu.version()


def test_function_like_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text('based_on = "navi31"\n[[functions]]\naddress = "0000:09:00.0"\nlike = "0000:08:00.0"\n')
    with pytest.raises(ProfileError, match=r"0000:09:00\.0 is like 0000:08:00\.0"):
        Machine.from_profile(file)
