"""Clocks, power and heat of the simulated GPU: what the SMU controls and measures.

Load comes from what the engines did (Gpu.note_busy). Activity is an average over the last part of a second; power follows activity and
clock within the power limit; temperatures follow power with the inertia of a cooler. All figures between the profile's idle and load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import smu as layout

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

ACTIVITY_TIME = 0.1
"""time constant of the activity average (s)"""
THERMAL_TIME = 8.0
"""time constant of the cooler (s)"""
UPDATE_INTERVAL = 1e-3
"""the figures change at most this often (s)"""
PCIE_GEN = 4
PCIE_WIDTH = 16
NO_LIMIT = layout.SOFT_MAX_RELEASED


@dataclass
class ClockDomain:
    """One clock: its levels in MHz and the limits that software set."""

    levels: list[int]
    fine_grained: bool = False
    soft: list[int] = field(default_factory=list)
    hard: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.soft = [self.levels[0], self.levels[-1]]
        self.hard = [self.levels[0], self.levels[-1]]

    def at_least(self, mhz: int) -> int:
        """The lowest frequency not below this one, inside the list."""
        if self.fine_grained:
            return min(max(mhz, self.levels[0]), self.levels[-1])
        return next((level for level in self.levels if level >= mhz), self.levels[-1])

    def at_most(self, mhz: int) -> int:
        """The highest frequency not above this one, inside the list."""
        if self.fine_grained:
            return min(max(mhz, self.levels[0]), self.levels[-1])
        return next((level for level in reversed(self.levels) if level <= mhz), self.levels[0])

    def set_soft_min(self, mhz: int) -> None:
        """0 releases the limit."""
        self.soft[0] = self.at_least(mhz)

    def set_soft_max(self, mhz: int) -> None:
        """0xFFFF (or 0) releases the limit."""
        self.soft[1] = self.at_most(mhz or NO_LIMIT)

    def set_hard_min(self, mhz: int) -> None:
        self.hard[0] = self.at_least(mhz)

    def set_hard_max(self, mhz: int) -> None:
        self.hard[1] = self.at_most(mhz or NO_LIMIT)

    def frequency(self, wanted: float) -> int:
        """What the clock runs at when the load asks for `wanted` MHz. A minimum above a maximum loses."""
        low = max(self.soft[0], self.hard[0])
        high = min(self.soft[1], self.hard[1])
        return min(self.at_least(int(max(wanted, low))), high)


class PowerModel:
    """Activity, power and temperature over simulated time."""

    def __init__(self, gpu: Gpu, numbers: dict[str, Any], clocks: dict[layout.Clock, ClockDomain]) -> None:
        self._gpu = gpu
        self._idle = numbers["idle"]
        self._load = numbers["load"]
        self._clocks = clocks
        self._limit = numbers["ppt_limit"]
        self._updated = gpu.clock.now()
        self._busy = dict(gpu.busy_seconds)
        self.counter = 0
        self.activity = {"gfx": 0.0, "memory": 0.0}
        """0..1"""
        self.heat = 0.0
        """0 idle .. 1 fully loaded: how warm the cooler is"""
        self.energy = 0.0
        """J"""

    def update(self) -> None:
        """Carry the model on to now; nothing happens within the update interval."""
        now = self._gpu.clock.now()
        passed = now - self._updated
        if passed < UPDATE_INTERVAL:
            return
        self._updated = now
        self.counter += 1
        keep = math.exp(-passed / ACTIVITY_TIME)
        for unit, busy in self._gpu.busy_seconds.items():
            share = min((busy - self._busy[unit]) / passed, 1.0)
            self.activity[unit] = self.activity[unit] * keep + share * (1 - keep)
        self._busy = dict(self._gpu.busy_seconds)
        warm = math.exp(-passed / THERMAL_TIME)
        self.heat = self.heat * warm + self._power_share() * (1 - warm)
        self.energy += self.watts() * passed

    def _power_share(self) -> float:
        """Power between idle (0) and load (1): activity, scaled by the clock it runs at."""
        domain = self._clocks[layout.Clock.GFXCLK]
        return self.activity["gfx"] * self._gfx_clock() / domain.levels[-1]

    def watts(self) -> float:
        """Socket power."""
        return min(self._between("power", self._power_share()), float(self._gpu.smu.ppt_limit))

    def _gfx_clock(self) -> int:
        share = self.activity["gfx"]
        return self._clocks[layout.Clock.GFXCLK].frequency(self._between("gfxclk_pre", share))

    def voltage_at(self, domain: ClockDomain, mhz: int) -> int:
        """mV at a frequency."""
        low, high = domain.levels[0], domain.levels[-1]
        share = (mhz - low) / (high - low) if high > low else 0.0
        return round(self._between("gfx_mv", share))

    def _between(self, name: str, share: float) -> float:
        return float(self._idle[name] + (self._load[name] - self._idle[name]) * min(max(share, 0.0), 1.0))

    def _temperature(self, name: str) -> int:
        low, high = float(self._idle["temperature"][name]), float(self._load["temperature"][name])
        return round(low + (high - low) * self.heat)

    def sample(self) -> dict[str, int | tuple[int, ...]]:
        """Metrics by field name, as of now."""
        self.update()
        gfx, memory = self.activity["gfx"], self.activity["memory"]
        gfx_clock = self._gfx_clock()
        mem_clock = self._clocks[layout.Clock.UCLK].frequency(self._between("memclk", memory))
        fabric = self._clocks[layout.Clock.FCLK].frequency(self._between("fclk", max(gfx, memory)))
        soc = self._clocks[layout.Clock.SOCCLK].frequency(0)
        awake = round(self._idle["gfxclk_post"] + (gfx_clock - self._idle["gfxclk_post"]) * gfx)
        current = {layout.Clock.GFXCLK: gfx_clock, layout.Clock.UCLK: mem_clock, layout.Clock.FCLK: fabric, layout.Clock.SOCCLK: soc}
        temperatures = tuple(self._temperature(name) if name in self._idle["temperature"] else 0 for name in layout.TEMPERATURES)
        watts = round(self.watts())
        return {
            "CurrClock": tuple(current.get(clock, self._clocks[clock].levels[0] if clock in self._clocks else 0) for clock in layout.Clock),
            "AverageGfxclkFrequencyTarget": gfx_clock,
            "AverageGfxclkFrequencyPreDs": gfx_clock,
            "AverageGfxclkFrequencyPostDs": awake,
            "AverageFclkFrequencyPreDs": fabric,
            "AverageFclkFrequencyPostDs": fabric,
            "AverageMemclkFrequencyPreDs": mem_clock,
            "AverageMemclkFrequencyPostDs": mem_clock,
            "MetricsCounter": self.counter,
            "AvgVoltage": (self.voltage_at(self._clocks[layout.Clock.GFXCLK], gfx_clock) if gfx else self._idle["gfx_mv"], 0, 0, 0, 0),
            "AverageGfxActivity": round(100 * gfx),
            "AverageUclkActivity": round(100 * memory),
            "EnergyAccumulator": int(self.energy) & 0xFFFFFFFF,
            "AverageSocketPower": watts,
            "AverageTotalBoardPower": watts,
            "AvgTemperature": temperatures,
            "PcieRate": PCIE_GEN,
            "PcieWidth": PCIE_WIDTH,
            "AvgFanPwm": round(self._between("fan_pwm", self._fan_share())),
            "AvgFanRpm": round(self._between("fan_rpm", self._fan_share())),
            "ThrottlingPercentage": self._throttling(),
        }

    def _fan_share(self) -> float:
        """Fans stand still until the cooler is a third of the way to full load."""
        return 0.0 if self.heat < 1 / 3 else self.heat

    def _throttling(self) -> tuple[int, ...]:
        """Percent by throttler: the power limit holds the socket back when more would be drawn."""
        wish = self._between("power", self._power_share())
        limit = self._gpu.smu.ppt_limit
        held = round(100 * (1 - limit / wish)) if wish > limit else 0
        return tuple(held if name == "PPT0" else 0 for name in layout.THROTTLERS)
