"""The stage runner."""

from __future__ import annotations

import pytest

from drivers.amd.stages import Stage, StageResult, run_stages
from hw.errors import BusLost, PspError, UsageError
from mocks.clock import Scheduler, SimClock


def clock() -> SimClock:
    each = SimClock()
    Scheduler(each)
    return each


class Trail:
    """Stages that leave a trail; one of them may fail."""

    def __init__(self, names: str = "abc", fails: str = "", error: BaseException | None = None, undo_fails: str = "") -> None:
        self.trail: list[str] = []
        self.clock = clock()
        self._fails, self._error, self._undo_fails = fails, error, undo_fails
        self.stages = [Stage(name, name.upper(), lambda name=name: self.run(name), undo=lambda name=name: self.undo(name)) for name in names]  # type: ignore[misc]

    def run(self, name: str) -> None:
        self.trail.append(f"run {name}")
        self.clock.sleep(1.0)
        if name == self._fails and self._error is not None:
            raise self._error

    def undo(self, name: str) -> None:
        self.trail.append(f"undo {name}")
        if name == self._undo_fails:
            raise BusLost("undo met a dead bus")


def test_stages_run_in_order_and_are_timed() -> None:
    each = Trail()
    results = run_stages(each.stages, each.clock)
    assert each.trail == ["run a", "run b", "run c"]
    assert [(result.name, result.outcome, result.seconds) for result in results] == [("a", "done", 1.0), ("b", "done", 1.0), ("c", "done", 1.0)]


def test_stage_that_is_not_due_is_skipped_and_never_undone() -> None:
    each = Trail(fails="c", error=PspError("no"))
    each.stages[1] = Stage("b", "B", lambda: each.run("b"), check=lambda: False, undo=lambda: each.undo("b"))
    seen: list[StageResult] = []
    with pytest.raises(PspError):
        run_stages(each.stages, each.clock, on_stage=seen.append)
    assert each.trail == ["run a", "run c", "undo c", "undo a"]
    assert [(result.name, result.outcome) for result in seen] == [("a", "done"), ("b", "skipped"), ("c", "failed"), ("c", "undone"), ("a", "undone")]


@pytest.mark.parametrize("error", [PspError("no"), KeyboardInterrupt(), ValueError("a bug")])
def test_anything_that_stops_a_stage_undoes_it_and_those_before(error: BaseException) -> None:
    each = Trail(fails="b", error=error)
    noted: list[BaseException] = []
    with pytest.raises(type(error)):
        run_stages(each.stages, each.clock, on_error=noted.append)
    assert each.trail == ["run a", "run b", "undo b", "undo a"]
    assert noted == [error]


def test_boot_error_learns_the_name_of_its_stage() -> None:
    error = PspError("no")
    each = Trail(fails="b", error=error)
    with pytest.raises(PspError):
        run_stages(each.stages, each.clock)
    assert error.stage == "b"


def test_first_error_is_told_when_an_undo_fails_too() -> None:
    each = Trail(fails="c", error=PspError("the first"), undo_fails="b")
    seen: list[StageResult] = []
    with pytest.raises(PspError, match="the first"):
        run_stages(each.stages, each.clock, on_stage=seen.append)
    assert each.trail[-3:] == ["undo c", "undo b", "undo a"]
    assert [result.error for result in seen if result.error.startswith("undo")] == ["undo: bus-lost: undo met a dead bus"]


def test_interrupt_in_a_callback_between_stages_undoes_too() -> None:
    each = Trail()

    def press(result: StageResult) -> None:
        if result.outcome == "done" and result.name == "b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stages(each.stages, each.clock, on_stage=press)
    assert each.trail == ["run a", "run b", "undo b", "undo a"]


def test_failed_verification_counts_as_failure_of_the_stage() -> None:
    each = Trail()

    def verify() -> None:
        if each.trail[-1] == "run b":
            raise BusLost("gone")

    with pytest.raises(BusLost):
        run_stages(each.stages, each.clock, verify=verify)
    assert each.trail == ["run a", "run b", "undo b", "undo a"]


def test_until_names_the_last_stage_and_leaves_everything_as_it_is() -> None:
    each = Trail()
    run_stages(each.stages, each.clock, until="b")
    assert each.trail == ["run a", "run b"]


def test_unknown_last_stage_is_refused_before_anything_runs() -> None:
    each = Trail()
    with pytest.raises(UsageError, match="no stage z") as caught:
        run_stages(each.stages, each.clock, until="z")
    assert "a, b, c" in caught.value.read
    assert each.trail == []
