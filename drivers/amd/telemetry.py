"""What a GPU's power controller measures, as figures with units and limits; and how much of its memory is mapped.

decode() is pure: a table's fields in, figures out. Telemetry asks a running GPU; it may be another process's, as long as questions to
the power controller are asked one process at a time (PciDevice.guard). Which figures a generation has: layouts/metrics.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import metrics as layout
from drivers.amd.layouts.metrics import FigureSpec, Generation
from drivers.amd.layouts.smu import Clock
from drivers.amd.page_entries import ADDRESS_MASK, format_of
from drivers.amd.usage import Usage, mapped_vram

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

Fields = Mapping[str, "int | tuple[int, ...]"]
"""a decoded metrics table"""

CLOCKS = {"gfx_clock": Clock.GFXCLK, "memory_clock": Clock.UCLK, "fabric_clock": Clock.FCLK}
"""figure -> clock whose highest frequency is its limit, where the metrics table itself does not tell"""
SAMPLE_WITHIN = 1.0
"""s of the device's clock for one sample"""


@dataclass(frozen=True)
class Figure:
    """One measured value."""

    key: str
    label: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def share(self) -> float | None:
        """Part of the limit, 0..1; None where there is no limit."""
        return min(max(self.value / self.limit, 0.0), 1.0) if self.limit else None

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "label": self.label, "value": self.value, "unit": self.unit, "limit": self.limit}


@dataclass(frozen=True)
class Throttle:
    """Something that holds the GPU back, in percent of the time."""

    name: str
    percent: int


@dataclass(frozen=True)
class Reading:
    """One sample."""

    figures: tuple[Figure, ...]
    throttle: tuple[Throttle, ...] | None
    """what throttles now; None: only a second sample can tell"""
    counter: int
    """updates of the table so far"""
    memory: Usage | None = None
    memory_total: int = 0
    """bytes"""

    def __getitem__(self, key: str) -> Figure:
        """A figure by its key. Raises KeyError."""
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: str) -> Figure | None:
        """A figure by its key; None where this GPU has no such figure."""
        return next((figure for figure in self.figures if figure.key == key), None)

    def group(self, prefix: str) -> tuple[Figure, ...]:
        """The figures of one kind: "temperature", "voltage"."""
        return tuple(figure for figure in self.figures if figure.key.startswith(f"{prefix}_"))


def decode(generation: Generation, fields: Fields, previous: Fields | None = None, limits: Mapping[str, float] = {}) -> Reading:
    """Figures of a metrics table. previous: the table before it, for throttle reasons that are counters. limits: by figure, where the table has none."""
    figures: dict[str, Figure] = {}
    for spec in generation.figures:
        raw = _element(fields, _field_of(spec, figures, generation), spec.element)
        if spec.hide_zero and raw == 0:
            continue
        limit = _limit_of(spec, fields)
        figures[spec.key] = Figure(spec.key, spec.label, _scaled(spec, raw), spec.unit, limits.get(spec.key) if limit is None else limit)
    counter = _element(fields, generation.counter)
    return Reading(tuple(figures.values()), _throttle(generation, fields, previous), counter)


def _field_of(spec: FigureSpec, figures: Mapping[str, Figure], generation: Generation) -> str:
    """While a unit works, its clock before the average over deep sleep is the one that counts."""
    busy = bool(spec.busy_by) and figures[spec.busy_by].value > generation.busy_threshold
    return spec.busy_field if busy else spec.field


def _limit_of(spec: FigureSpec, fields: Fields) -> float | None:
    if not isinstance(spec.limit, str):
        return spec.limit
    raw = fields[spec.limit]
    return _scaled(spec, max(raw) if isinstance(raw, tuple) else raw) or None


def _element(fields: Fields, name: str, element: int = 0) -> int:
    value = fields[name]
    return value[element] if isinstance(value, tuple) else value


def _scaled(spec: FigureSpec, raw: int) -> float:
    if spec.fraction_bits:
        raw = raw + (1 << spec.fraction_bits - 1) >> spec.fraction_bits
    value = raw if spec.factor == 1.0 else round(raw * spec.factor, 3)
    return value if spec.clamp is None else min(max(value, 0.0), spec.clamp)


def _throttle(generation: Generation, fields: Fields, previous: Fields | None) -> tuple[Throttle, ...] | None:
    if generation.residencies:
        return _residencies(generation, fields, previous)
    shares = fields["ThrottlingPercentage"]
    assert isinstance(shares, tuple)
    names = [*generation.throttlers, *(f"UNK_{number}" for number in range(len(generation.throttlers), len(shares)))]
    return tuple(Throttle(name, share) for name, share in zip(names, shares, strict=True) if share > 0)


def _residencies(generation: Generation, fields: Fields, previous: Fields | None) -> tuple[Throttle, ...] | None:
    """Counters run while something throttles: their growth against that of the sample counter. All wrap around at their width."""
    if previous is None:
        return None
    table = layout_table(generation)
    passed = _growth(table[generation.counter], generation.counter, fields, previous)
    if passed == 0:
        return None
    found = []
    for name, field in generation.residencies:
        percent = min((_growth(table[field], field, fields, previous) * 100 + passed // 2) // passed, 100)
        if percent > 0:
            found.append(Throttle(name, percent))
    return tuple(found)


def _growth(size: int, field: str, fields: Fields, previous: Fields) -> int:
    return (_element(fields, field) - _element(previous, field)) % (1 << 8 * size)


def layout_table(generation: Generation) -> dict[str, int]:
    """Bytes of an element of each field of a generation's table."""
    from drivers.amd.layouts.smu import load_metrics

    return {field.name: field.size for field in load_metrics(generation.table).fields}


class Telemetry:
    """Samples one GPU that has been booted. Sends messages to its power controller: take care who else does (PciDevice.guard)."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.generation = layout.generation_of(dev.ip.version("MP1"))
        self._previous: Fields | None = None
        self._limits: dict[str, float] | None = None

    def sample(self, within: float = SAMPLE_WITHIN) -> Reading:
        """All figures as of now. within: s of the device's clock. Raises SmuError, BusLost, WaitTimeout."""
        deadline = self.dev.clock.now() + within
        fields = self.dev.smu.metrics(within=within)
        if self._limits is None:
            self._limits = self._highest_clocks(deadline)
        reading = decode(self.generation, fields, self._previous, self._limits)
        self._previous = fields
        usage = self.memory_usage(deadline)
        return Reading(reading.figures, reading.throttle, reading.counter, usage, self.dev.vram_size)

    def memory_usage(self, deadline: float) -> Usage:
        """What is mapped in VMID 0, by the tables that the graphics hub uses. Raises BusLost."""
        hub = self.dev.gmc.hubs["gfx"]
        base = hub.reg("VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32").read() | hub.reg("VM_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32").read() << 32
        format = format_of(self.dev.ip.version("GC"))
        return mapped_vram(self.dev.vram_read, base & ADDRESS_MASK, format, self.dev.vram_size, expired=lambda: self.dev.clock.now() >= deadline)

    def _highest_clocks(self, deadline: float) -> dict[str, float]:
        """Limits of the clock figures."""
        limits: dict[str, float] = {}
        for key, clock in CLOCKS.items():
            limits[key] = self.dev.smu.highest(clock, within=max(deadline - self.dev.clock.now(), 0.0))
        return limits
