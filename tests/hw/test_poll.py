"""Waiting: on the clock given, with the whole story in the timeout."""

from __future__ import annotations

import pytest

from hw.clock import HOST_CLOCK
from hw.errors import WaitTimeout
from hw.poll import poll


class StepClock:
    """Simulated seconds that pass only in sleep()."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds


def test_a_value_that_is_there_needs_no_waiting() -> None:
    clock = StepClock()
    assert poll(lambda: 5, lambda value: value == 5, what="five", within=1.0, clock=clock) == 5
    assert clock.sleeps == []


def test_time_passes_on_the_clock_of_the_device() -> None:
    clock = StepClock()
    assert poll(lambda: clock.seconds > 3.0, bool, what="three seconds", within=10.0, clock=clock) is True
    assert 3.0 < clock.seconds < 3.1


def test_timeout_names_what_limit_last_value_and_time() -> None:
    clock = StepClock()
    with pytest.raises(WaitTimeout) as caught:
        poll(lambda: 0xDEAD, lambda value: False, what="PSP ready", within=0.25, clock=clock, means="it sleeps", remedy="wake it")
    error = caught.value
    assert error.what == "PSP ready did not happen within 0.25 s"
    assert error.read.startswith("last value 0xdead after 0.25")
    assert (error.last, error.means, error.remedy) == (0xDEAD, "it sleeps", "wake it")
    assert 0.25 <= error.waited < 0.26


def test_timeout_shows_the_decoded_value() -> None:
    with pytest.raises(WaitTimeout) as caught:
        poll(lambda: 3, lambda value: False, what="state", within=0.01, clock=StepClock(), describe=lambda value: f"state={value} (busy)")
    assert "state=3 (busy)" in caught.value.read


def test_a_host_that_was_asleep_reads_once_more() -> None:
    """The limit passes inside one sleep, and the device is ready by then: that is no timeout."""
    clock = StepClock()
    asleep = iter([0.0, 0.0, 100.0])
    clock.now = lambda: next(asleep, 100.0)  # type: ignore[method-assign]
    answers = iter([0, 0, 1])
    assert poll(lambda: next(answers), bool, what="ready", within=1.0, clock=clock) == 1


def test_a_slow_step_costs_few_reads() -> None:
    def reads(typical: float) -> int:
        clock = StepClock()
        count = 0

        def read() -> bool:
            nonlocal count
            count += 1
            return clock.seconds >= 1.0

        poll(read, bool, what="slow", within=10.0, typical=typical, clock=clock)
        return count

    assert reads(1.0) <= 4
    assert reads(0.0) > 100


def test_host_clock_moves_and_does_not_go_back() -> None:
    start = HOST_CLOCK.now()
    HOST_CLOCK.sleep(0.001)
    assert HOST_CLOCK.now() - start >= 0.001
    with pytest.raises(WaitTimeout):
        poll(lambda: 0, bool, what="never", within=0.002)
