"""Figures from metrics tables, for every generation; memory use from page tables; a GPU looked at by somebody who did not boot it."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from drivers.amd.layouts import metrics as layout
from drivers.amd.layouts.metrics import generation_of
from drivers.amd.layouts.smu import load_metrics
from drivers.amd.monitor import attach, is_virtual_function
from drivers.amd.page_entries import GFX9, GFX11, GFX12
from drivers.amd.telemetry import Reading, Telemetry, Throttle, decode
from drivers.amd.usage import mapped_vram
from hw.errors import BusLost, NotReady, NotSupported, SmuError, UnknownHardware
from tests.drivers.amd.support import bench

Q10 = 1024
MIB = 1 << 20


def read(version: tuple[int, int, int], values: dict[str, Any], previous: dict[str, Any] | None = None, variant: int = 0) -> Reading:
    """A table as the controller writes it, decoded. Goes through the bytes, so that offsets and sizes count."""
    generation = generation_of(version, variant)
    table = load_metrics(generation.table)
    before = None if previous is None else table.decode(table.encode(previous))
    return decode(generation, table.decode(table.encode(values)), before)


def shown(reading: Reading) -> dict[str, tuple[float, str, float | None]]:
    return {figure.key: (figure.value, figure.unit, figure.limit) for figure in reading.figures}


NAVI31 = {
    "AverageGfxActivity": 99,
    "AverageUclkActivity": 15,
    "AverageSocketPower": 301,
    "dGPU_W_MAX": 327,
    "AverageGfxclkFrequencyPostDs": 1800,
    "AverageGfxclkFrequencyPreDs": 2450,
    "AverageMemclkFrequencyPostDs": 456,
    "AverageMemclkFrequencyPreDs": 1249,
    "AverageFclkFrequencyPostDs": 500,
    "AverageFclkFrequencyPreDs": 2250,
    "AvgFanRpm": 1800,
    "AvgFanPwm": 50,
    "AvgTemperature": (68, 85, 0, 0, 84, 61, 0, 0, 0, 0, 0, 0, 55),
    "AvgVoltage": (900, 0, 1250, 0, 0),
    "ThrottlingPercentage": tuple(12 if number == 16 else 3 if number == 1 else 0 for number in range(22)),
    "MetricsCounter": 77,
}


def test_navi31_shows_every_figure_of_its_table_with_unit_and_limit() -> None:
    reading = read((13, 0, 0), NAVI31)
    assert shown(reading) == {
        "gfx_activity": (99, "%", 100.0),
        "memory_activity": (15, "%", 100.0),
        "power": (301, "W", 327),
        "gfx_clock": (2450, "MHz", None),  # busy: before the average over deep sleep
        "memory_clock": (456, "MHz", None),  # 15 % is not busy
        "fabric_clock": (500, "MHz", None),
        "fan_speed": (1800, "RPM", None),
        "fan_pwm": (50, "%", 100.0),
        "temperature_edge": (68, "C", 100.0),
        "temperature_hotspot": (85, "C", 110.0),
        "temperature_mem": (84, "C", 108.0),
        "temperature_vr_gfx": (61, "C", None),
        "temperature_plx": (55, "C", None),
        "voltage_gfx": (0.9, "V", None),
        "voltage_vmemp": (1.25, "V", None),
    }
    assert reading.throttle == (Throttle("TEMP_HOTSPOT", 3), Throttle("PPT0", 12))
    assert reading.counter == 77


def test_memory_and_fabric_clock_follow_the_memory_activity() -> None:
    reading = read((13, 0, 0), NAVI31 | {"AverageGfxActivity": 15, "AverageUclkActivity": 16})
    assert [reading[key].value for key in ("gfx_clock", "memory_clock", "fabric_clock")] == [1800, 1249, 2250]


@pytest.mark.parametrize(("version", "clock"), [((14, 0, 2), 2450), ((14, 0, 3), 1800), ((13, 0, 7), 1800), ((13, 0, 10), 1800)])
def test_generations_differ_in_what_counts_as_busy(version: tuple[int, int, int], clock: int) -> None:
    values = {"AverageGfxActivity": 6, "AverageGfxclkFrequencyPostDs": 1800, "AverageGfxclkFrequencyPreDs": 2450}
    assert read(version, values)["gfx_clock"].value == clock


def test_navi48_has_names_of_its_own() -> None:
    values = {
        "AvgTemperature": tuple(range(40, 52)),
        "AvgVoltage": (800, 700, 1100, 1350),
        "ThrottlingPercentage": (0,) * 6 + (9,) + (0,) * 13 + (4,),
        "AverageSocketPower": 250,
        "dGPU_W_MAX": 304,
    }
    reading = read((14, 0, 2), values)
    assert [figure.label for figure in reading.group("temperature")] == [
        "EDGE", "HOTSPOT", "HOTSPOT_GFX", "HOTSPOT_SOC", "MEM", "VR_GFX", "VR_SOC", "VR_MEM0", "VR_MEM1", "LIQUID0", "LIQUID1", "PLX",
    ]  # fmt: skip
    assert [figure.value for figure in reading.group("temperature")] == list(range(40, 52))
    assert {figure.key: figure.value for figure in reading.group("voltage")} == {"voltage_gfx": 0.8, "voltage_soc": 0.7, "voltage_vddci_mem": 1.1, "voltage_vddio_mem": 1.35}
    assert reading.throttle == (Throttle("TEMP_VR_SOC", 9), Throttle("GFX_DVO", 4))
    assert (reading["power"].value, reading["power"].limit) == (250, 304)


MI300X = {
    "SocketGfxBusy": 104 * Q10,
    "DramBandwidthUtilization": 41 * Q10 + 511,
    "SocketPower": 700 * Q10 + 512,
    "MaxSocketPowerLimit": 750 * Q10,
    "GfxclkFrequency": (2100 * Q10, 132 * Q10, 0, 0, 0, 0, 0, 0),
    "UclkFrequency": 1300 * Q10,
    "FclkFrequency": 2100 * Q10,
    "MaxGfxclkFrequency": 2100 * Q10,
    "UclkFrequencyTable": (900 * Q10, 1300 * Q10, 0, 0),
    "FclkFrequencyTable": (1200 * Q10, 2100 * Q10, 0, 0),
    "MaxSocketTemperature": 71 * Q10,
    "MaxHbmTemperature": 0,
    "MaxVrTemperature": 65 * Q10,
    "AccumulationCounter": 1000,
}


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_mi300x_fixed_point_is_rounded_and_shares_are_clamped(variant: int) -> None:
    reading = read((13, 0, 6), MI300X, variant=variant)
    assert shown(reading) == {
        "gfx_activity": (100.0, "%", 100.0),
        "memory_activity": (41, "%", 100.0),
        "power": (701, "W", 750),
        "gfx_clock": (2100, "MHz", 2100),
        "memory_clock": (1300, "MHz", 1300),
        "fabric_clock": (2100, "MHz", 2100),
        "temperature_hotspot": (71, "C", None),
        "temperature_vr": (65, "C", None),
    }
    assert reading.throttle is None


def test_mi350x_takes_its_power_limit_from_another_field() -> None:
    values = {"SocketPower": 900 * Q10, "SocketPowerLimit": 1000 * Q10, "GfxclkFrequency": (2200 * Q10,), "GfxclkFrequencyLimit": 2400 * Q10, "MaxHbmTemperature": 80 * Q10}
    reading = read((13, 0, 12), values)
    assert (reading["power"].value, reading["power"].limit) == (900, 1000)
    assert (reading["gfx_clock"].value, reading["gfx_clock"].limit) == (2200, 2400)
    assert reading["temperature_hbm"].value == 80


@pytest.mark.parametrize("version", [(13, 0, 6), (13, 0, 12)])
def test_residencies_throttle_by_their_growth_between_two_samples(version: tuple[int, int, int]) -> None:
    before = {"AccumulationCounter": 1000, "ProchotResidencyAcc": 5, "PptResidencyAcc": 100, "HbmThmResidencyAcc": 0xFFFF_FFFF, "VrThmResidencyAcc": 7}
    after = {"AccumulationCounter": 1200, "ProchotResidencyAcc": 5, "PptResidencyAcc": 125, "HbmThmResidencyAcc": 199, "VrThmResidencyAcc": 1000}
    reading = read(version, after, before)
    assert reading.throttle == (Throttle("PPT", 13), Throttle("VR Thm", 100), Throttle("HBM Thm", 100))  # 12.5 rounds up; capped; counters wrap
    assert read(version, after, after).throttle is None  # no new sample


def test_unknown_controller_is_refused() -> None:
    with pytest.raises(UnknownHardware, match=r"SMU 12\.0\.1"):
        generation_of((12, 0, 1))


def test_every_generation_names_fields_that_its_table_has() -> None:
    for version in ((13, 0, 0), (13, 0, 6), (13, 0, 12), (14, 0, 2), (14, 0, 3)):
        generation = generation_of(version)
        fields = load_metrics(generation.table).by_name
        for spec in generation.figures:
            assert {spec.field, spec.busy_field or spec.field, spec.limit if isinstance(spec.limit, str) else spec.field} <= set(fields), spec.key
        assert len(generation.throttlers) == (fields["ThrottlingPercentage"].elements if generation.throttlers else 0)
    assert len(layout.TEMPERATURES_14) == load_metrics("14_0_2").by_name["AvgTemperature"].elements


# --- a simulated GPU ------------------------------------------------------------------------------------------------------


def test_sample_is_what_the_simulated_controller_holds() -> None:
    each = bench()
    each.dev.boot()
    reading = Telemetry(each.dev).sample()
    held = each.gpu.smu.power.sample()
    assert reading["power"].value == held["AverageSocketPower"]
    assert reading["power"].limit == each.gpu.smu.ppt_limit
    assert reading["temperature_hotspot"].value == held["AvgTemperature"][1]
    assert reading["gfx_clock"].limit == 2526
    assert reading["memory_clock"].limit == 1249
    assert reading["fabric_clock"].limit == 2250
    assert reading.memory_total == 24560 * MIB


def test_memory_in_use_is_what_page_tables_map_of_the_cards_own() -> None:
    each = bench()
    each.dev.boot()
    telemetry = Telemetry(each.dev)
    before = telemetry.sample().memory
    buffers = [each.dev.memory.alloc(64 * MIB), each.dev.memory.alloc(12345), each.dev.memory.alloc(3 << 30)]
    host = each.dev.memory.alloc(MIB, host=True)
    after = telemetry.sample().memory
    assert before is not None and after is not None
    assert after.mapped - before.mapped == 64 * MIB + 16384 + (3 << 30)
    for buffer in (*buffers, host):
        each.dev.memory.free(buffer)
    assert telemetry.sample().memory == before


def test_power_limit_and_load_show() -> None:
    each = bench()
    each.dev.boot()
    telemetry = Telemetry(each.dev)
    each.dev.smu.set_power_limit(200)
    for _ in range(50):
        each.gpu.note_busy("gfx", 0.1)
        each.machine.clock.sleep(0.1)
        each.gpu.smu.power.update()
    reading = telemetry.sample()
    assert reading["gfx_activity"].value == 100
    assert (reading["power"].value, reading["power"].limit) == (200, 200)
    assert [each.name for each in reading.throttle or ()] == ["PPT0"]
    assert reading["temperature_hotspot"].value > 50


def test_hung_controller_costs_its_deadline_and_no_more() -> None:
    each = bench(faults="smu-hang")
    each.dev.boot()
    start = each.machine.clock.now()
    with pytest.raises(SmuError, match="does not answer TransferTableSmu2Dram"):
        Telemetry(each.dev).sample(within=1.0)
    assert 1.0 <= each.machine.clock.now() - start < 1.1


def test_a_later_run_attaches_to_a_booted_card_without_writing_to_it() -> None:
    each = bench()
    each.dev.boot()
    expected = Telemetry(each.dev).sample()
    before = dict(each.gpu.regs)
    watching = attach(each.pci)
    changed = {index for index, value in each.gpu.regs.items() if before[index] != value}
    assert changed <= {0x0, 0x6, 0x14}, "only index registers may move"
    assert shown(Telemetry(watching).sample()) == shown(expected)


def test_card_that_nobody_booted_is_not_asked() -> None:
    each = bench()
    with pytest.raises(NotReady, match="has not been booted by tghw"):
        attach(each.pci)
    assert each.gpu.smu.history == []


def test_virtual_function_is_recognised_and_not_asked() -> None:
    each = bench("navi31-vf")
    assert is_virtual_function(each.pci)
    with pytest.raises(NotSupported, match="virtual function"):
        attach(each.pci)
    assert each.gpu.smu.history == []


def test_all_ones_is_no_virtual_function_but_a_lost_card() -> None:
    each = bench()
    each.gpu.function.in_reset = True
    with pytest.raises(BusLost):
        is_virtual_function(each.pci)


# --- page tables ----------------------------------------------------------------------------------------------------------


class Tables:
    """Page tables in a sparse memory."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, int]] = {}
        self.reads: list[int] = []

    def put(self, table: int, index: int, entry: int) -> None:
        self.entries.setdefault(table, {})[index] = entry

    def read(self, offset: int, size: int) -> bytes:
        self.reads.append(offset)
        words = [0] * (size // 8)
        for index, entry in self.entries.get(offset, {}).items():
            words[index] = entry
        return struct.pack(f"<{len(words)}Q", *words)


VALID, SYSTEM = 1, 2
SIZE = 16 << 30


@pytest.mark.parametrize(("format", "leaf"), [(GFX11, 1 << 54), (GFX12, 1 << 63), (GFX9, 1 << 54)])
def test_leaves_of_each_level_count_with_their_size(format: Any, leaf: int) -> None:
    tables = Tables()
    further = 1 << 56 if format is GFX9 else 0  # gfx9: an entry of PDB0 points to a table only when it says so
    large = 0 if format is GFX9 else leaf
    tables.put(0x1000, 0, 0x2000 | VALID)
    tables.put(0x1000, 5, VALID | leaf)  # 512 GiB
    tables.put(0x2000, 1, 0x3000 | VALID)
    tables.put(0x2000, 2, VALID | leaf)  # 1 GiB
    tables.put(0x3000, 0, 0x4000 | VALID | further)
    tables.put(0x3000, 1, 0x200000 | VALID | large)  # 2 MiB
    tables.put(0x3000, 2, 0x200000 | VALID | SYSTEM | large)  # host memory
    tables.put(0x4000, 7, 0x5000 | VALID | (leaf if format is GFX12 else 0))  # 4 KiB
    tables.put(0x4000, 8, 0x6000 | SYSTEM | VALID)
    tables.put(0x4000, 9, 0x7000)  # not valid
    usage = mapped_vram(tables.read, 0x1000, format, SIZE)
    assert usage.mapped == (512 << 30) + (1 << 30) + (2 << 20) + (4 << 10)
    assert (usage.tables, usage.broken, usage.complete) == (4, 0, True)


def test_entries_that_lead_nowhere_or_back_are_not_followed() -> None:
    tables = Tables()
    tables.put(0x1000, 0, 0x1000 | VALID)  # itself
    tables.put(0x1000, 1, SIZE | VALID)  # outside
    tables.put(0x1000, 2, 0x2000 | VALID)
    usage = mapped_vram(tables.read, 0x1000, GFX11, SIZE)
    assert tables.reads == [0x1000, 0x2000]
    assert (usage.mapped, usage.broken) == (0, 1)


def test_offsets_of_a_hive_member_are_its_own_again() -> None:
    tables = Tables()
    tables.put(0x1000, 0, 0x10_0000_2000 | VALID)
    tables.put(0x2000, 0, VALID | 1 << 54)
    assert mapped_vram(tables.read, 0x1000, GFX11, SIZE, node_offset=0x10_0000_0000).mapped == 1 << 30


def test_walk_stops_when_its_time_is_up() -> None:
    tables = Tables()
    for index in range(8):
        tables.put(0x1000, index, (0x2000 + index * 0x1000) | VALID)
    left = iter([False, False, True])
    usage = mapped_vram(tables.read, 0x1000, GFX11, SIZE, expired=lambda: next(left))
    assert not usage.complete
    assert len(tables.reads) == 2




# --- taking turns with the owner ------------------------------------------------------------------------------------------


class Turns:
    """A guard that knows whether it is held, and what was accessed meanwhile."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> Turns:
        self.depth += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1


def watched(pci: Any) -> tuple[dict[str, Turns], dict[int, set[str]]]:
    """The guards that a driver takes of this device, and which of them were held at each access to a register."""
    guards: dict[str, Turns] = {}
    held: dict[int, set[str]] = {}
    pci.guard = lambda name: guards.setdefault(name, Turns())
    original = pci.map_bar

    def map_bar(index: int, offset: int = 0, size: int | None = None) -> Any:
        window = original(index, offset, size)
        if index == 5:
            for method in ("read32", "write32"):

                def note(at: int, *rest: int, inner: Any = getattr(window, method)) -> Any:
                    now = {name for name, guard in guards.items() if guard.depth}
                    held[at >> 2] = held.get(at >> 2, now) & now
                    return inner(at, *rest)

                setattr(window, method, note)
        return window

    pci.map_bar = map_bar
    return guards, held


def test_every_message_to_the_controller_is_one_turn() -> None:
    each = bench()
    guards, held = watched(each.pci)
    each.dev.boot()
    Telemetry(each.dev).sample()
    mailbox = {each.dev.mp1[f"MP1_SMN_C2PMSG_{number}"].index for number in (66, 82, 90)}
    assert all(held[index] == {"smu"} for index in mailbox)
    assert guards["smu"].depth == 0


def test_index_and_data_register_are_one_turn() -> None:
    each = bench("navi31-small-bar")
    guards, held = watched(each.pci)
    each.dev.discover()
    assert held[0x0] == held[0x1] == {"index"}  # MM_INDEX, MM_DATA
    assert guards["index"].depth == 0


def test_table_is_read_in_the_turn_in_which_it_was_asked_for() -> None:
    each = bench()
    guards, _ = watched(each.pci)
    each.dev.boot()
    depths: list[int] = []
    original = each.dev.vram.read
    each.dev.vram.read = lambda offset, size: depths.append(guards["smu"].depth) or original(offset, size)  # type: ignore[func-returns-value,method-assign]
    each.dev.smu.metrics()
    assert depths == [1]
