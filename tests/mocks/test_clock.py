"""Simulated time and the engines that live in it."""

from __future__ import annotations

import pytest

from hw.errors import WaitTimeout
from hw.poll import poll
from mocks.clock import Engine, Scheduler, SimClock, Until


@pytest.fixture
def clock() -> SimClock:
    made = SimClock()
    Scheduler(made, seed=0)
    return made


def test_time_moves_only_when_it_is_used(clock: SimClock) -> None:
    assert clock.now() == 0
    clock.sleep(1.5)
    assert clock.now() == 1.5
    clock.sleep(-1)
    assert clock.now() == 1.5


def test_an_engine_sees_its_own_moments(clock: SimClock) -> None:
    seen = []

    def engine() -> Engine:
        for _ in range(3):
            yield 0.25
            seen.append(clock.now())

    task = clock.scheduler.spawn("engine", engine())
    clock.sleep(0.6)
    assert seen == [0.25, 0.5]
    assert not task.done
    clock.sleep(0.2)
    assert seen == [0.25, 0.5, 0.75]
    assert task.done
    assert clock.scheduler.tasks == []


def test_a_signal_wakes_those_who_wait_and_does_not_stay(clock: SimClock) -> None:
    signal = clock.scheduler.signal()
    woken = []

    def engine(name: str) -> Engine:
        yield signal
        woken.append((name, clock.now()))

    clock.scheduler.spawn("a", engine("a"))
    clock.sleep(1)
    signal.set()
    clock.scheduler.spawn("b", engine("b"))
    clock.sleep(1)
    assert woken == [("a", 1)]
    signal.set()
    clock.sleep(1)
    assert woken == [("a", 1), ("b", 2)]


def test_a_condition_is_noticed_after_any_engine_ran(clock: SimClock) -> None:
    state = {"ready": False}
    noticed = []

    def setter() -> Engine:
        yield 0.5
        state["ready"] = True

    def waiter() -> Engine:
        yield Until(lambda: state["ready"])
        noticed.append(clock.now())

    clock.scheduler.spawn("waiter", waiter())
    clock.scheduler.spawn("setter", setter())
    clock.sleep(1)
    assert noticed == [0.5]


def test_an_engine_that_never_sleeps_cannot_stop_the_clock(clock: SimClock) -> None:
    turns = 0

    def busy() -> Engine:
        nonlocal turns
        while True:
            turns += 1
            yield 0

    clock.scheduler.spawn("busy", busy())
    clock.sleep(1e-6)
    assert clock.now() == 1e-6
    assert 900 < turns < 1100


def test_an_engine_may_not_sleep_on_the_clock(clock: SimClock) -> None:
    def wrong() -> Engine:
        yield 0.1
        clock.sleep(1)

    clock.scheduler.spawn("wrong", wrong())
    with pytest.raises(RuntimeError, match="wrong must yield"):
        clock.sleep(2)


def test_an_error_in_an_engine_reaches_whoever_made_time_pass(clock: SimClock) -> None:
    def failing() -> Engine:
        yield 0.1
        raise ZeroDivisionError

    clock.scheduler.spawn("failing", failing())
    with pytest.raises(ZeroDivisionError):
        clock.sleep(1)
    assert clock.scheduler.tasks == []
    clock.sleep(1)
    assert clock.now() == pytest.approx(1.1)


def test_a_stopped_engine_cleans_up_and_gets_no_turn(clock: SimClock) -> None:
    log = []

    def engine() -> Engine:
        try:
            yield 1
            log.append("turn")
        finally:
            log.append("end")

    task = clock.scheduler.spawn("engine", engine())
    clock.sleep(0.5)
    clock.scheduler.stop(task)
    clock.sleep(2)
    assert log == ["end"]


def order(seed: int) -> list[int]:
    clock = SimClock()
    scheduler = Scheduler(clock, seed)
    ran: list[int] = []

    def engine(number: int) -> Engine:
        for _ in range(4):
            yield 1.0
            ran.append(number)

    for number in range(5):
        scheduler.spawn(str(number), engine(number))
    clock.sleep(10)
    return ran


def test_the_seed_decides_who_goes_first_among_equals() -> None:
    assert order(7) == order(7)
    assert len({tuple(order(seed)) for seed in range(8)}) > 4
    for seed in range(3):
        assert [sorted(order(seed)[at : at + 5]) for at in range(0, 20, 5)] == [[0, 1, 2, 3, 4]] * 4


def test_poll_lets_engines_run_and_times_out_in_simulated_time(clock: SimClock) -> None:
    state = {"value": 0}
    clock.scheduler.call_later(0.3, lambda: state.update(value=5))
    assert poll(lambda: state["value"], lambda value: value == 5, what="five", within=1, clock=clock) == 5
    assert 0.3 <= clock.now() < 0.31
    with pytest.raises(WaitTimeout) as caught:
        poll(lambda: state["value"], lambda value: value == 6, what="six", within=10, clock=clock)
    assert caught.value.last == 5
    assert 10.3 < clock.now() < 10.4
