"""The PCIe link of the bridge's slot: supplies, PERST#, training.

Registers: 0xC656 bit 5 slot 3.3 V, 0xB480 bit 0 PERST#, 0xC659 bit 0 lane enable, 0xE764 training control; 0xB450 shows the state.
Training starts when the slot has power, PERST# is released and 0xE764 says so; it ends in L0 when something answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mocks.asm24.xdata import Xdata

if TYPE_CHECKING:
    from mocks.clock import Scheduler, Task
    from mocks.faults import FaultPlan

log = logging.getLogger(__name__)

LTSSM, LTSSM_SPEED, PERST, POWER, LANES, TRAIN, WIDTH_CAP = 0xB450, 0xB455, 0xB480, 0xC656, 0xC659, 0xE764, 0xB431
PERST_ASSERTED = 1 << 0
SLOT_POWER = 1 << 5
LANE_ENABLE = 1 << 0
TRAIN_AND_RETRY = 0x1C
TRAIN_STOCK = 0x19
TRAINING = (TRAIN_AND_RETRY, TRAIN_STOCK)

DETECT_QUIET, DETECT_ACTIVE, POLLING, CONFIGURATION_STUCK = 0x00, 0x01, 0x10, 0x4C
LINK_UP = 1 << 1
WIDTHS = {0x00: 4, 0x0C: 2, 0x0E: 1}
DETECT_TIME = 0.002
FLAP_TIME = 0.012
"""s a state lasts that cannot get further; detect repeats every 12 ms (PCIe)"""


class Link:
    """One slot."""

    def __init__(self, xdata: Xdata, scheduler: Scheduler, profile: dict[str, Any], faults: FaultPlan, populated: bool) -> None:
        self._memory = xdata.memory
        self._scheduler = scheduler
        self._faults = faults
        self.changed: Callable[[], None] = lambda: None
        """it went up or down"""
        self.on_reset: Callable[[bool], None] = lambda _: None
        """PERST# was asserted; True: the power went, too"""
        self._train_time: float = profile["train_time"]
        self._l0: int = profile["ltssm_l0"]
        self.generation: int = profile["generation"]
        self._external: bool = profile["external_power"]
        """the card has its own supply: without the slot's 3.3 V it keeps what it holds"""
        self.populated = populated
        self.is_up = False
        self._started: float | None = None
        """when training began; None while it is not under way"""
        self._timer: Task | None = None
        xdata.hook("LTSSM", lambda _: self.ltssm)
        xdata.hook("LTSSM_SPEED", lambda _: 0x19 if self.is_up else 0x10)
        xdata.hook("SYS_CTRL_E765", lambda _: LINK_UP if self.is_up else 0)
        xdata.hook("PHY_LINK_INFO", lambda _: self.width << 4 | self.generation if self.is_up else 0)
        for name in ("PERST_CTRL", "HDDPC", "LANE_CTRL", "TRAIN_CTRL"):
            xdata.hook(name, None, lambda *_: self._refresh())
        self._was_reset = True
        self._had_power = False
        self.reset_registers()

    def reset_registers(self) -> None:
        """As the chip comes up: no power, PERST# asserted, not training."""
        for address in (POWER, LANES, TRAIN):
            self._memory[address] = 0
        self._memory[PERST] = PERST_ASSERTED
        self._refresh()

    @property
    def width(self) -> int:
        """Lanes, as the width cap register lets them train."""
        return WIDTHS.get(self._memory[WIDTH_CAP], 4)

    @property
    def powered(self) -> bool:
        return bool(self._memory[POWER] & SLOT_POWER)

    @property
    def engine_runs(self) -> bool:
        """Can requests leave at all? Not while the slot is off or PERST# is asserted."""
        return self.powered and not self._memory[PERST] & PERST_ASSERTED

    @property
    def ltssm(self) -> int:
        """0xB450: what the link is doing."""
        if self.is_up:
            return self._l0
        if self._started is None or not self.populated:
            return DETECT_QUIET
        passed = self._scheduler.clock.now() - self._started
        if self._faults.active("link-never"):
            return DETECT_ACTIVE if int(passed / FLAP_TIME) % 2 else DETECT_QUIET
        if passed < DETECT_TIME:
            return DETECT_ACTIVE
        return CONFIGURATION_STUCK if not self._memory[LANES] & LANE_ENABLE and passed > self._train_time else POLLING

    def drop(self) -> None:
        """The link is lost; it stays down until training is started again."""
        self._down()
        self._started = None

    def retrain_later(self, seconds: float) -> None:
        """What is on the slot was reset by itself and trains again."""
        self._down()
        self._begin(seconds)

    def _refresh(self) -> None:
        """A register changed: what does that mean for the link?"""
        if not self.engine_runs:
            lost = self._had_power and not self.powered and not self._external
            if not self._was_reset or lost:
                self._was_reset = True
                self.drop()
                self.on_reset(lost)
            self._had_power = self.powered
            return
        self._was_reset = False
        self._had_power = True
        if self._memory[TRAIN] not in TRAINING:
            if self._started is not None or self.is_up:
                self.drop()
        elif self._started is None and not self.is_up:
            self._begin(self._train_time + float(self._faults.argument("link-slow") or 0))

    def _begin(self, seconds: float) -> None:
        self._started = self._scheduler.clock.now()
        self._scheduler.stop(self._timer)
        self._timer = self._scheduler.call_later(seconds, self._trained, "PCIe link training")

    def _trained(self) -> None:
        if self._started is None or not self.populated or self._faults.active("link-never"):
            return
        if not self._memory[LANES] & LANE_ENABLE:
            return
        self.is_up = True
        self._started = None
        log.info("PCIe link up: generation %d, %d lanes", self.generation, self.width)
        self.changed()

    def _down(self) -> None:
        self._scheduler.stop(self._timer)
        self._timer = None
        if self.is_up:
            self.is_up = False
            log.info("PCIe link down")
            self.changed()
