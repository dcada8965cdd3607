"""What the metrics tables of the power controllers hold that a person watches, by generation. Facts only; drivers/amd/telemetry.py reads them.

A figure names the field of layouts/smu_metrics_*.tbl it comes from. Sources: public amdgpu headers (smu13_driver_if, smu14_driver_if,
smu_v13_0_6_pmfw) and what monitors of these cards show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drivers.amd.layouts.smu import TEMPERATURES, THROTTLERS, VOLTAGES, metrics_table_of

Q10 = 10
"""fractional bits of the fixed-point fields of Instinct tables; figures are rounded to whole units"""
PERCENT = 100.0


@dataclass(frozen=True)
class FigureSpec:
    """Where one figure is. `key` is its stable name in JSON and in the exporter."""

    key: str
    label: str
    unit: str
    field: str
    element: int = 0
    busy_field: str = ""
    """taken instead of `field` while the figure `busy_by` is above the generation's threshold: before the average over deep sleep"""
    busy_by: str = ""
    limit: float | str | None = None
    """in the figure's unit; a string names a field of the table, in the unit of `field`"""
    fraction_bits: int = 0
    factor: float = 1.0
    """from the field's unit to the figure's"""
    hide_zero: bool = False
    """0 means that there is no such sensor"""
    clamp: float | None = None


@dataclass(frozen=True)
class Generation:
    """One metrics table and what to show of it."""

    table: str
    figures: tuple[FigureSpec, ...]
    busy_threshold: int = 0
    """percent"""
    counter: str = "MetricsCounter"
    """field that counts the table's updates"""
    throttlers: tuple[str, ...] = ()
    """names by element of ThrottlingPercentage; empty where the table has residencies"""
    residencies: tuple[tuple[str, str], ...] = ()
    """(name, field) of counters that run while something throttles, against `counter`"""


CRITICAL = {"EDGE": 100.0, "HOTSPOT": 110.0, "MEM": 108.0}
"""degrees C at which RX 7900 boards step in, as their owners publish; a board's own table may say otherwise"""


def _temperatures(names: tuple[str, ...], limits: dict[str, float]) -> tuple[FigureSpec, ...]:
    return tuple(
        FigureSpec(f"temperature_{name.lower()}", name, "C", "AvgTemperature", element, limit=limits.get(name), hide_zero=True) for element, name in enumerate(names)
    )


def _voltages(names: tuple[str, ...]) -> tuple[FigureSpec, ...]:
    return tuple(
        FigureSpec(f"voltage_{name.lower().removeprefix('vdd_')}", name, "V", "AvgVoltage", element, factor=1e-3, hide_zero=True) for element, name in enumerate(names)
    )


_RADEON = (
    FigureSpec("gfx_activity", "GFX activity", "%", "AverageGfxActivity", limit=PERCENT),
    FigureSpec("memory_activity", "MEM activity", "%", "AverageUclkActivity", limit=PERCENT),
    FigureSpec("power", "power", "W", "AverageSocketPower", limit="dGPU_W_MAX"),
    FigureSpec("gfx_clock", "GFXCLK", "MHz", "AverageGfxclkFrequencyPostDs", busy_field="AverageGfxclkFrequencyPreDs", busy_by="gfx_activity"),
    FigureSpec("memory_clock", "MCLK", "MHz", "AverageMemclkFrequencyPostDs", busy_field="AverageMemclkFrequencyPreDs", busy_by="memory_activity"),
    FigureSpec("fabric_clock", "FCLK", "MHz", "AverageFclkFrequencyPostDs", busy_field="AverageFclkFrequencyPreDs", busy_by="memory_activity"),
    FigureSpec("fan_speed", "fan", "RPM", "AvgFanRpm"),
    FigureSpec("fan_pwm", "fan PWM", "%", "AvgFanPwm", limit=PERCENT),
)
"""RDNA 3 and 4"""

SMU_13_0_0 = Generation("13_0_0", _RADEON + _temperatures(TEMPERATURES, CRITICAL) + _voltages(VOLTAGES), busy_threshold=15, throttlers=THROTTLERS)

TEMPERATURES_14 = ("EDGE", "HOTSPOT", "HOTSPOT_GFX", "HOTSPOT_SOC", "MEM", "VR_GFX", "VR_SOC", "VR_MEM0", "VR_MEM1", "LIQUID0", "LIQUID1", "PLX")
VOLTAGES_14 = ("VDD_GFX", "VDD_SOC", "VDDCI_MEM", "VDDIO_MEM")
THROTTLERS_14 = (*(f"TEMP_{name}" for name in TEMPERATURES_14), "TDC_GFX", "TDC_SOC", "PPT0", "PPT1", "PPT2", "PPT3", "FIT", "GFX_APCC_PLUS", "GFX_DVO")

SMU_14_0_2 = Generation("14_0_2", _RADEON + _temperatures(TEMPERATURES_14, {}) + _voltages(VOLTAGES_14), busy_threshold=5, throttlers=THROTTLERS_14)
SMU_14_0_3 = replace(SMU_14_0_2, busy_threshold=15)


def _instinct(table: str, power_limit: str, *, gfx_limit: str, tables_of_levels: bool) -> Generation:
    """CDNA: fixed-point fields, hottest part of each kind, no fan, no voltages."""

    def figure(key: str, label: str, unit: str, field: str, limit: float | str | None = None, clamp: float | None = None, hide_zero: bool = False) -> FigureSpec:
        return FigureSpec(key, label, unit, field, limit=limit, fraction_bits=Q10, clamp=clamp, hide_zero=hide_zero)

    return Generation(
        table,
        (
            figure("gfx_activity", "GFX activity", "%", "SocketGfxBusy", PERCENT, clamp=PERCENT),
            figure("memory_activity", "MEM activity", "%", "DramBandwidthUtilization", PERCENT, clamp=PERCENT),
            figure("power", "power", "W", "SocketPower", power_limit),
            figure("gfx_clock", "GFXCLK", "MHz", "GfxclkFrequency", gfx_limit),
            figure("memory_clock", "MCLK", "MHz", "UclkFrequency", "UclkFrequencyTable" if tables_of_levels else None),
            figure("fabric_clock", "FCLK", "MHz", "FclkFrequency", "FclkFrequencyTable" if tables_of_levels else None),
            figure("temperature_hotspot", "Hotspot", "C", "MaxSocketTemperature", hide_zero=True),
            figure("temperature_hbm", "HBM", "C", "MaxHbmTemperature", hide_zero=True),
            figure("temperature_vr", "VR", "C", "MaxVrTemperature", hide_zero=True),
        ),
        counter="AccumulationCounter",
        residencies=(
            ("Prochot", "ProchotResidencyAcc"),
            ("PPT", "PptResidencyAcc"),
            ("Socket Thm", "SocketThmResidencyAcc"),
            ("VR Thm", "VrThmResidencyAcc"),
            ("HBM Thm", "HbmThmResidencyAcc"),
        ),
    )


SMU_13_0_6 = _instinct("13_0_6_v0", "MaxSocketPowerLimit", gfx_limit="MaxGfxclkFrequency", tables_of_levels=True)
SMU_13_0_6_V1 = replace(SMU_13_0_6, table="13_0_6_v1")
SMU_13_0_6_V2 = replace(SMU_13_0_6, table="13_0_6_v2")
SMU_13_0_12 = _instinct("13_0_12", "SocketPowerLimit", gfx_limit="GfxclkFrequencyLimit", tables_of_levels=False)

_BY_TABLE = {each.table: each for each in (SMU_13_0_0, SMU_14_0_2, SMU_13_0_6, SMU_13_0_6_V1, SMU_13_0_6_V2, SMU_13_0_12)}
_OTHERWISE = {(14, 0, 3): SMU_14_0_3}
"""versions that differ in more than the table"""


def generation_of(version: tuple[int, int, int], variant: int = 0) -> Generation:
    """What to show of the metrics of an MP1 version; variant: what GetMetricsVersion of 13.0.6 answers. Raises UnknownHardware."""
    if version in _OTHERWISE:
        return _OTHERWISE[version]
    table = metrics_table_of(version)
    return _BY_TABLE[table.replace("_v0", f"_v{variant}")]
