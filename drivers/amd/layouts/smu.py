"""Power controller (SMU, block MP1): mailboxes, messages, clocks, metrics table, by interface version.

Mailbox registers are MP1_SMN_C2PMSG_n. Source: public amdgpu headers (smu_v13_0_0_ppsmc, smu13_driver_if).
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hw.errors import UnknownHardware

_HERE = Path(__file__).parent

INTERFACES = {
    (13, 0, 0): "13_0_0",
    (13, 0, 7): "13_0_0",
    (13, 0, 10): "13_0_0",
}
"""which message tables an MP1 version uses"""

METRICS = {
    (13, 0, 0): "13_0_0",
    (13, 0, 7): "13_0_0",
    (13, 0, 10): "13_0_0",
    (13, 0, 6): "13_0_6_v0",
    (13, 0, 12): "13_0_12",
    (14, 0, 2): "14_0_2",
    (14, 0, 3): "14_0_2",
}
"""which metrics table; firmware of 13.0.6 may use v1 or v2 instead, GetMetricsVersion tells"""


class Mailbox(NamedTuple):
    """C2PMSG numbers of one mailbox."""

    message: int
    argument: int
    response: int


MAIN_MAILBOX = Mailbox(message=66, argument=82, response=90)
DEBUG_MAILBOX = Mailbox(message=75, argument=53, response=54)


class Response(IntEnum):
    IN_PROGRESS = 0x00
    OK = 0x01
    REJECTED_BUSY = 0xFC
    REJECTED_PREREQUISITE = 0xFD
    UNKNOWN_COMMAND = 0xFE
    FAILED = 0xFF


RESPONSE_TEXT = {
    Response.IN_PROGRESS: "no answer yet",
    Response.OK: "OK",
    Response.REJECTED_BUSY: "rejected, busy",
    Response.REJECTED_PREREQUISITE: "rejected, a prerequisite is missing",
    Response.UNKNOWN_COMMAND: "unknown command",
    Response.FAILED: "failed",
}


class Clock(IntEnum):
    """Clock ids of interface 13.0.0."""

    GFXCLK = 0
    SOCCLK = 1
    UCLK = 2
    FCLK = 3
    DCLK0 = 4
    VCLK0 = 5
    DCLK1 = 6
    VCLK1 = 7
    DISPCLK = 8
    DPPCLK = 9
    DPREFCLK = 10
    DCFCLK = 11
    DTBCLK = 12


COUNT_INDEX = 0xFF
"""GetDpmFreqByIndex with this index answers the number of levels"""
FINE_GRAINED = 1 << 31
"""in that number: any frequency between the first and the last level"""
MAX_LEVELS = 64
"""more levels than this is no answer of a working SMU"""
SOFT_MAX_RELEASED = 0xFFFF


class TableId(IntEnum):
    """Tables of TransferTableSmu2Dram, interface 13.0.0."""

    PPTABLE = 0
    COMBO_PPTABLE = 1
    WATERMARKS = 2
    AVFS_PSM_DEBUG = 3
    PMSTATUSLOG = 4
    SMU_METRICS = 5
    DRIVER_SMU_CONFIG = 6
    ACTIVITY_MONITOR_COEFF = 7
    OVERDRIVE = 8
    I2C_COMMANDS = 9
    DRIVER_INFO = 10
    ECCINFO = 11
    WIFIBAND = 12


DRIVER_TABLE_SIZE = 16 << 10
"""bytes of the buffer through which tables travel"""

TEMPERATURES = ("EDGE", "HOTSPOT", "HOTSPOT_G", "HOTSPOT_M", "MEM", "VR_GFX", "VR_MEM0", "VR_MEM1", "VR_SOC", "VR_U", "LIQUID0", "LIQUID1", "PLX")
VOLTAGES = ("GFX", "SOC", "VMEMP", "VDDIO_MEM", "U")
THROTTLERS = (*(f"TEMP_{name}" for name in TEMPERATURES), "TDC_GFX", "TDC_SOC", "TDC_U", "PPT0", "PPT1", "PPT2", "PPT3", "FIT", "GFX_APCC_PLUS")


class MetricField(NamedTuple):
    """One field of the metrics table. offset and size (of one element) in bytes."""

    name: str
    offset: int
    size: int
    elements: int
    unit: str


class MetricsTable:
    """Layout of the metrics table of one interface."""

    def __init__(self, fields: tuple[MetricField, ...]) -> None:
        self.fields = fields
        self.by_name = {field.name: field for field in fields}
        self.size = max(field.offset + field.size * field.elements for field in fields)

    def decode(self, data: bytes) -> dict[str, int | tuple[int, ...]]:
        """Every field of a table; arrays as tuples."""
        values: dict[str, int | tuple[int, ...]] = {}
        for field in self.fields:
            elements = tuple(
                int.from_bytes(data[field.offset + position * field.size : field.offset + (position + 1) * field.size], "little") for position in range(field.elements)
            )
            values[field.name] = elements if field.elements > 1 else elements[0]
        return values

    def encode(self, values: dict[str, int | tuple[int, ...]]) -> bytes:
        """A table from field values; fields not named are 0, a short array is filled with 0."""
        data = bytearray(self.size)
        for name, value in values.items():
            field = self.by_name[name]
            for position, element in enumerate(value if isinstance(value, tuple) else (value,)):
                start = field.offset + position * field.size
                data[start : start + field.size] = element.to_bytes(field.size, "little")
        return bytes(data)


def _table(tables: dict[tuple[int, int, int], str], version: tuple[int, int, int], kind: str) -> str:
    suffix = tables.get(version)
    if suffix is None:
        known = ", ".join(".".join(map(str, each)) for each in tables)
        raise UnknownHardware(f"no {kind} table for SMU {'.'.join(map(str, version))}", read=f"known: {known}")
    return suffix


@cache
def messages(version: tuple[int, int, int], mailbox: str = "main") -> dict[str, int]:
    """Message ids by name; mailbox "main" or "debug". Raises UnknownHardware."""
    text = (_HERE / f"smu_messages_{_table(INTERFACES, version, 'message')}.tbl").read_text(encoding="ascii")
    rows = (line.split() for line in text.splitlines())
    return {name: int(number, 16) for box, name, number in rows if box == mailbox}


def metrics_table_of(version: tuple[int, int, int]) -> str:
    """Name of the metrics table of an MP1 version. Raises UnknownHardware."""
    return _table(METRICS, version, "metrics")


def metrics(version: tuple[int, int, int]) -> MetricsTable:
    """The metrics table of this MP1 version. Raises UnknownHardware."""
    return load_metrics(metrics_table_of(version))


@cache
def load_metrics(name: str) -> MetricsTable:
    """A metrics table by its name, one of METRICS or a variant of it."""
    text = (_HERE / f"smu_metrics_{name}.tbl").read_text(encoding="ascii")
    fields = []
    for line in text.splitlines():
        name, offset, size, count, *unit = line.split(" ", 4)
        fields.append(MetricField(name, int(offset, 16), int(size), int(count), unit[0] if unit else ""))
    return MetricsTable(tuple(fields))
