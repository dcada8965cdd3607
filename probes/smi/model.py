"""What `tghw smi` knows of one GPU at one moment, in a form that a worker process can send to the one that shows it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bridges.open import Found
from drivers.amd.telemetry import Figure, Reading, Throttle
from drivers.amd.usage import Usage
from hw.errors import TghwError
from hw.processes import Hold


@dataclass
class Sample:
    """What looking at a GPU gave. Everything is None or empty where it could not be read; `problem` or `note` says why."""

    boot_state: str | None = None
    link: str | None = None
    link_max: str | None = None
    virtual: bool | None = None
    """True for a virtual function (SR-IOV), whose figures only its host can read"""
    reading: Reading | None = None
    problem: dict[str, str] | None = None
    """a typed error, as in every command's JSON"""
    note: str = ""
    taken: float = field(default_factory=time.time)
    """when: s since 1970"""

    @classmethod
    def failed(cls, problem: TghwError, **known: Any) -> Sample:
        return cls(problem=problem.to_dict(), **known)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, back again with from_dict()."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        reading = data.get("reading")
        return cls(**{**data, "reading": _reading(reading) if reading else None})


def _reading(data: dict[str, Any]) -> Reading:
    throttle = data["throttle"]
    return Reading(
        tuple(Figure(**each) for each in data["figures"]),
        None if throttle is None else tuple(Throttle(**each) for each in throttle),
        data["counter"],
        Usage(**data["memory"]) if data["memory"] else None,
        data["memory_total"],
    )


@dataclass
class Row:
    """One GPU as shown."""

    index: int
    address: str
    name: str
    arch: str
    transport: str
    driver: str | None
    power_state: str | None
    lock_name: str
    sample: Sample = field(default_factory=Sample)
    holds: list[Hold] = field(default_factory=list)

    @classmethod
    def of(cls, index: int, found: Found) -> Row:
        details = found.details
        return cls(index, found.address, found.name, found.arch, found.transport, details.get("driver") or None, details.get("power_state") or None, found.lock_name)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; figures by key, sizes in bytes, times as s since 1970."""
        sample, reading = self.sample, self.sample.reading
        memory = reading.memory if reading else None
        return {
            "index": self.index,
            "address": self.address,
            "name": self.name,
            "arch": self.arch,
            "transport": self.transport,
            "driver": self.driver,
            "power_state": self.power_state,
            "boot_state": sample.boot_state,
            "link": sample.link,
            "link_max": sample.link_max,
            "virtual_function": sample.virtual,
            "taken": sample.taken,
            "figures": {figure.key: {"label": figure.label, "value": figure.value, "unit": figure.unit, "limit": figure.limit} for figure in reading.figures} if reading else {},
            "throttle": None if reading is None or reading.throttle is None else {each.name: each.percent for each in reading.throttle},
            "memory": {"used": memory.mapped if memory and memory.complete else None, "total": reading.memory_total} if reading else None,
            "metrics_counter": reading.counter if reading else None,
            "holders": [hold.to_dict() for hold in self.holds],
            "note": sample.note,
            "problem": sample.problem,
        }
