"""From power-on to running on the simulated Navi31, and every way of starting again."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest

from drivers.amd.bringup import BOOT_TAG
from drivers.amd.device import AmdDevice
from drivers.amd.layouts.psp import BootLoaderCommand
from drivers.amd.page_entries import VRAM
from drivers.amd.stages import StageResult
from firmware.amd_layouts import FirmwareType
from hw.errors import UsageError
from hw.pci.device import COMMAND, COMMAND_BUS_MASTER
from tests.drivers.amd.recorder import DATA
from tests.drivers.amd.support import Bench, Counting, bench

STAGES = ["pci", "discovery", "firmware", "reset", "memory", "bus-master", "soc", "gmc", "ih", "psp", "smu", "gfx", "sdma", "clocks", "gating", "ready"]
ONLY_COLD = ["soc", "gmc", "ih", "psp", "smu"]

RING = {"ring_va": 0x200000000000, "ring_bytes": 0x10000, "rptr_va": 0x200000020000, "wptr_va": 0x200000021000, "eop_va": 0x200000022000, "eop_bytes": 0x1000}
COPY_RING = (0x200000030000, 0x10000, 0x200000040000, 0x200000041000)

WINDOW = (0x200000000000, 0x50000)
"""virtual addresses and bytes that hold both rings and their pointers"""


def map_window(dev: AmdDevice) -> None:
    """Put cleared video memory behind the addresses of the rings."""
    place = dev.memory.general.alloc(WINDOW[1], 4096)
    dev.vram_write(place, bytes(WINDOW[1]))
    dev.memory.tables.map(WINDOW[0], WINDOW[1], [(place, WINDOW[1])], VRAM)
    dev.invalidate_tlb()


FREE_CHOICES = {
    "SCRATCH_REG7": "the tag of this driver is its own",
}
ONLY_OUR_BITS = {
    "CP_MEC_RS64_CNTL": 1 << 16 | 1 << 26 | 1 << 30,  # read-modify-write: pipes 1 to 3 stay in reset, which the recording's device had at 0
}
"""registers of which only these bits are compared"""


def outcomes(results: list[StageResult]) -> dict[str, str]:
    return {result.name: result.outcome for result in results}


@pytest.fixture
def booted() -> Iterator[Bench]:
    each = bench()
    each.dev.boot()
    yield each
    each.machine.close()


def test_cold_boot_runs_every_stage_and_the_device_works() -> None:
    each = bench()
    assert each.dev.state() == "cold"
    results = each.dev.boot()
    assert [result.name for result in results] == STAGES
    assert outcomes(results) == dict.fromkeys(STAGES, "done") | {"reset": "skipped"}
    assert each.dev.state() == "running"
    assert each.dev.arch == "gfx1100"
    assert each.dev.mc_base == 0x80_0000_0000
    assert each.dev.vram_size == 24560 << 20
    gpu = each.gpu
    assert gpu.psp.sos_alive and gpu.rlc.autoload_done and gpu.smu.running
    assert gpu.psp.refusal == ""
    needed = {FirmwareType.SMU, FirmwareType.SDMA_UCODE_TH1, FirmwareType.SDMA_UCODE_TH0, FirmwareType.RS64_MEC, FirmwareType.RS64_MEC_P0_STACK}
    needed |= {FirmwareType.IMU_I, FirmwareType.IMU_D, FirmwareType.RLC_IRAM, FirmwareType.RLC_DRAM_BOOT, FirmwareType.RLC_G}
    assert needed <= gpu.psp.loaded_types
    assert gpu.psp.components[:3] == [BootLoaderCommand.LOAD_KEY_DATABASE, BootLoaderCommand.LOAD_TOS_SPL_TABLE, BootLoaderCommand.LOAD_SYS_DRV]
    assert not gpu.dropped_writes, "nothing was written to a block without power"


def test_stages_tell_their_time_by_the_devices_clock() -> None:
    each = bench()
    start = each.machine.clock.now()
    seen: list[StageResult] = []
    results = each.dev.boot(on_stage=seen.append)
    assert seen == results
    assert sum(result.seconds for result in results) == pytest.approx(each.machine.clock.now() - start, rel=1e-6)
    assert next(result for result in results if result.name == "psp").seconds > 0.1


@pytest.mark.parametrize("stage", ["discovery", "psp", "gfx"])
def test_until_stops_after_the_named_stage(stage: str) -> None:
    each = bench()
    results = each.dev.boot(until=stage)
    assert results[-1].name == stage
    assert each.gpu.psp.sos_alive == (stage in ("psp", "gfx"))
    assert not each.dev.booted
    assert each.dev.state() == {"discovery": "cold", "psp": "sos-alive", "gfx": "sos-alive"}[stage]


def test_unknown_stage_is_refused_before_anything_happens() -> None:
    each = bench()
    counting = Counting(each.pci)
    with pytest.raises(UsageError, match="no stage warp"):
        each.dev.boot(until="warp")
    assert counting.registers == 0
    assert each.dev.state() == "cold"


def test_boot_twice_is_refused(booted: Bench) -> None:
    with pytest.raises(UsageError, match="running already"):
        booted.dev.boot()


def expected_rows(chip: str) -> list[dict[str, str]]:
    """Rows of the recorded boot; the Navi33 file lists only what differs from Navi31."""
    with (DATA / "amd_boot_state.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    merged = {(row["phase"], row["register"]): row for row in rows if row["chip"] == "navi31"}
    if chip != "navi31":
        merged |= {(row["phase"], row["register"]): row for row in rows if row["chip"] == chip}
    return list(merged.values())


def test_last_values_of_all_registers_are_those_of_a_recorded_boot() -> None:
    """Every register that a third party's driver writes in a boot, a compute queue and a copy queue has the same last value here."""
    each = bench()
    counting = Counting(each.pci)
    each.dev.boot()
    phases = {"boot": dict(counting.last_write)}
    counting.last_write.clear()
    map_window(each.dev)
    each.dev.setup_compute_ring(**RING)
    phases["compute queue"] = dict(counting.last_write)
    counting.last_write.clear()
    each.dev.setup_sdma_ring(*COPY_RING)
    phases["sdma queue"] = dict(counting.last_write)
    differences = []
    for row in expected_rows("navi31"):
        index, wanted = int(row["dword_index"], 16), int(row["last_value"], 16)
        written = phases[row["phase"]].get(index)
        bits = ONLY_OUR_BITS.get(row["register"], 0xFFFFFFFF)
        if row["register"] not in FREE_CHOICES and (written is None or (written ^ wanted) & bits):
            differences.append(f"{row['phase']}: {row['register']} = {written if written is None else hex(written)}, recorded {wanted:#x}")
    assert differences == []
    assert phases["boot"][each.dev.gc.SCRATCH_REG7.index] == BOOT_TAG != 0xA0000008


def test_boot_and_queues_cost_few_register_accesses() -> None:
    each = bench()
    counting = Counting(each.pci)
    each.dev.boot()
    assert counting.registers <= 620
    assert counting.accesses[0, "write"] <= 80, "blobs, frames and commands are written as blocks"


def test_doorbells_and_dma_are_allowed_only_by_the_boot() -> None:
    each = bench()
    assert not each.pci.config.read16(COMMAND) & COMMAND_BUS_MASTER
    each.dev.boot()
    assert each.gpu.bus_master
    assert each.value(each.dev.nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.index) == 1


def test_selection_of_queues_is_left_at_zero(booted: Bench) -> None:
    map_window(booted.dev)
    booted.dev.setup_compute_ring(**RING)
    assert booted.value(booted.dev.gc.GRBM_GFX_CNTL.index) == 0
    booted.dev.gfx.queue_state()
    assert booted.value(booted.dev.gc.GRBM_GFX_CNTL.index) == 0


def test_clean_finish_makes_the_next_start_warm(booted: Bench) -> None:
    map_window(booted.dev)
    booted.dev.setup_compute_ring(**RING)
    booted.dev.finish()
    assert booted.dev.state() == "partial"
    sos_starts = len(booted.gpu.psp.components)
    dev = booted.again()
    assert dev.state() == "partial"
    results = dev.boot()
    assert outcomes(results) == dict.fromkeys(STAGES, "done") | dict.fromkeys(["reset", *ONLY_COLD], "skipped")
    assert booted.gpu.resets == 0
    assert len(booted.gpu.psp.components) == sos_starts
    assert dev.state() == "running"
    map_window(dev)
    dev.setup_compute_ring(**RING)
    dev.setup_sdma_ring(*COPY_RING)
    dev.invalidate_tlb()


def test_warm_start_costs_few_accesses(booted: Bench) -> None:
    booted.dev.finish()
    dev = booted.again()
    counting = Counting(booted.pci)
    dev.boot()
    assert counting.accesses[5, "write"] <= 180
    assert counting.registers <= 310


def test_finish_stops_the_queues(booted: Bench) -> None:
    dev = booted.dev
    map_window(dev)
    dev.setup_compute_ring(**RING)
    dev.setup_sdma_ring(*COPY_RING)
    dev.finish()
    assert dev.gfx.queue_state()["CP_HQD_ACTIVE"] == 0
    assert booted.value(dev.gc.SDMA0_QUEUE0_RB_CNTL.index) & 1 == 0
    assert booted.value(dev.gc.SCRATCH_REG6.index) == 0


def test_a_driver_that_died_makes_the_next_start_reset_the_card(booted: Bench) -> None:
    map_window(booted.dev)
    booted.dev.setup_compute_ring(**RING)
    dev = booted.again()
    assert dev.state() == "running"
    results = dev.boot()
    assert outcomes(results) == dict.fromkeys(STAGES, "done")
    assert booted.gpu.resets == 1
    assert dev.state() == "running"


def test_a_card_of_another_driver_is_reset_first() -> None:
    each = bench()
    each.dev.boot()
    each.dev.gc.SCRATCH_REG7.write(0xA0000008)
    each.dev.gc.SCRATCH_REG6.write(0)
    dev = each.again()
    assert dev.state() == "sos-alive"
    assert outcomes(dev.boot())["reset"] == "done"
    assert each.gpu.resets == 1


def test_a_latched_fault_spoils_a_clean_finish(booted: Bench) -> None:
    booted.dev.finish()
    booted.gpu.regs[booted.dev.gc.GCVM_L2_PROTECTION_FAULT_STATUS.index] = 0x40011
    dev = booted.again()
    assert outcomes(dev.boot())["reset"] == "done"


def test_cold_start_on_demand(booted: Bench) -> None:
    booted.dev.finish()
    dev = booted.again()
    assert outcomes(dev.boot(cold=True)) == dict.fromkeys(STAGES, "done")
    assert booted.gpu.resets == 1


def test_reset_on_demand_brings_the_card_to_its_power_on_state(booted: Bench) -> None:
    booted.dev.reset()
    assert booted.dev.state() == "cold"
    assert not booted.gpu.psp.sos_alive and not booted.gpu.rlc.autoload_done
    assert not booted.gpu.bus_master
    booted.dev.boot()
    assert booted.dev.state() == "running"


def test_an_error_before_the_end_is_remembered(booted: Bench) -> None:
    booted.dev.error_state = "shader error: illegal instruction"
    booted.dev.finish()
    assert booted.value(booted.dev.gc.SCRATCH_REG6.index) == 1
    assert outcomes(booted.again().boot())["reset"] == "done"


def test_clocks_are_high_while_running_and_low_afterwards(booted: Bench) -> None:
    assert booted.dev.smu.metrics()["CurrClock"][2] == 1249  # type: ignore[index]
    booted.dev.finish()
    assert booted.dev.smu.metrics()["CurrClock"][2] == 96  # type: ignore[index]


def test_interrupts_are_read_after_a_warm_start(booted: Bench) -> None:
    booted.gpu.ih.raise_interrupt(10, 49)
    booted.machine.clock.sleep(1e-3)
    assert [each.source for each in booted.dev.drain_interrupts()] == ["SDMA_TRAP"]
    booted.dev.finish()
    dev = booted.again()
    dev.boot()
    booted.gpu.ih.raise_interrupt(20, 181)
    booted.machine.clock.sleep(1e-3)
    assert [each.source for each in dev.drain_interrupts()] == ["CP_EOP_INTERRUPT"]


@pytest.mark.parametrize("seed", range(4))
def test_any_interleaving_boots_the_same(seed: int) -> None:
    each = bench(seed=seed)
    each.dev.boot()
    assert each.dev.state() == "running"


def test_strict_machine_boots() -> None:
    """Host writes are seen only after a flush, translations are cached, memory holds noise: nothing of that disturbs."""
    each = bench(strict=True)
    each.dev.boot()
    map_window(each.dev)
    each.dev.setup_compute_ring(**RING)
    each.dev.finish()
    each.again().boot()


def test_windows_cover_what_the_device_says(booted: Bench) -> None:
    dev: AmdDevice = booted.dev
    assert dev.visible_vram == dev.vram_size, "BAR0 was resized"
    data = bytes(range(256))
    place = dev.vram_size - (128 << 20)
    dev.vram_write(place, data)
    assert dev.vram_read(place, 256) == data
    view = dev.vram_view(place, 256)
    assert view is not None and view.read(0, 256) == data


def test_a_reset_that_begins_before_the_answer_is_read_is_no_error(booted: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "drivers.amd.reset")
    dev = booted.again()
    booted.gpu.profile["timings"]["reset_start"] = 1e-7
    booted.gpu.profile["smu"]["message_time"] = [2e-3, 2e-3]
    results = dev.boot(until="memory")
    assert outcomes(results)["reset"] == "done"
    assert "began before the answer was read" in caplog.text
    assert dev.error_state == ""


@pytest.mark.parametrize("stage", ["discovery", "soc", "psp", "sdma"])
def test_a_boot_that_was_stopped_on_purpose_can_be_followed_by_a_whole_one(stage: str) -> None:
    each = bench()
    each.dev.boot(until=stage)
    each.dev.boot()
    assert each.dev.state() == "running"
    assert each.gpu.resets == (1 if stage in ("psp", "sdma") else 0)
