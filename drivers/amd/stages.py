"""Bring-up as a list of named stages: run in order, timed, stopped anywhere, and taken back in reverse order when something goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hw.clock import Clock
from hw.errors import BootError, TghwError, UsageError
from hw.signals import guarded_signals, uninterrupted

log = logging.getLogger(__name__)

Outcome = Literal["done", "skipped", "failed", "undone"]


def _nothing() -> None:
    """A stage that leaves nothing behind on the device has nothing to take back."""


@dataclass(frozen=True)
class Stage:
    """One step of a bring-up.

    check: whether the step is due in the device's present state. run: does it. undo: takes back whatever run() did, also when run()
    stopped half way; it must not assume that the device still answers.
    """

    name: str
    title: str
    """what it does, for a person"""
    run: Callable[[], object]
    check: Callable[[], bool] = lambda: True
    undo: Callable[[], None] = _nothing


@dataclass(frozen=True)
class StageResult:
    """What became of a stage. seconds: by the device's clock."""

    name: str
    title: str
    outcome: Outcome
    seconds: float
    error: str = ""


def position_of(stages: Sequence[Stage], name: str) -> int:
    """Index of a stage by name. Raises UsageError."""
    for position, stage in enumerate(stages):
        if stage.name == name:
            return position
    raise UsageError(f"there is no stage {name}", read=f"stages: {', '.join(stage.name for stage in stages)}")


def run_stages(
    stages: Sequence[Stage],
    clock: Clock,
    *,
    until: str | None = None,
    verify: Callable[[], None] = _nothing,
    on_stage: Callable[[StageResult], None] | None = None,
    on_error: Callable[[BaseException], None] | None = None,
) -> list[StageResult]:
    """Run the stages in order, the last one being `until`; `verify` runs after each and raises when the device is gone.

    When anything raises on the way, KeyboardInterrupt included, on_error hears of it, the stages that began are undone in reverse
    order, and the error goes on. An undo that fails is logged; the first error is the one that is told. Ctrl-C, SIGTERM and SIGHUP
    interrupt the stages, but not the undoing.
    """
    last = len(stages) - 1 if until is None else position_of(stages, until)
    results: list[StageResult] = []
    started: list[Stage] = []
    current: Stage | None = None
    start = clock.now()

    def report(stage: Stage, outcome: Outcome, since: float, error: str = "") -> None:
        result = StageResult(stage.name, stage.title, outcome, clock.now() - since, error)
        results.append(result)
        log.info("stage %s: %s, %.1f ms%s", result.name, outcome, result.seconds * 1e3, f", {error}" if error else "")
        if on_stage:
            on_stage(result)

    def run_all() -> None:
        nonlocal current, start
        for stage in stages[: last + 1]:
            current, start = stage, clock.now()
            if not stage.check():
                current = None
                report(stage, "skipped", start)
                continue
            started.append(stage)
            stage.run()
            verify()
            current = None
            report(stage, "done", start)

    def take_all_back(error: BaseException) -> None:
        if current is not None:
            if isinstance(error, BootError) and not error.stage:
                error.stage = current.name
            report(current, "failed", start, str(error) or type(error).__name__)
        if on_error:
            on_error(error)
        for stage in reversed(started):
            if stage.undo is not _nothing:
                _take_back(stage, clock, report)

    with guarded_signals():
        try:
            run_all()
        except BaseException as error:
            with uninterrupted():
                take_all_back(error)
            raise
    return results


def _take_back(stage: Stage, clock: Clock, report: Callable[[Stage, Outcome, float, str], None]) -> None:
    start = clock.now()
    try:
        stage.undo()
    except TghwError as error:
        log.warning("undo of stage %s: %s", stage.name, error)
        report(stage, "failed", start, f"undo: {error}")
    else:
        report(stage, "undone", start, "")
