"""Ending work at a good moment."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hw.signals import SIGNALS, guarded_signals, uninterrupted


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_interrupts_inside_the_guard(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), guarded_signals():
        send(number)
        raise AssertionError("not interrupted")
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_wait_until_the_outermost_block_ends(number: int) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), guarded_signals():
        with uninterrupted():
            with uninterrupted():
                send(number)
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"]


def test_an_error_inside_goes_on_and_the_signal_is_not_forgotten() -> None:
    with pytest.raises(KeyboardInterrupt), guarded_signals():
        with pytest.raises(RuntimeError), uninterrupted():
            send(signal.SIGINT)
            raise RuntimeError
        with uninterrupted():
            pass
        raise AssertionError("not interrupted")


def test_a_signal_that_nobody_took_ends_the_guard() -> None:
    with pytest.raises(KeyboardInterrupt), guarded_signals():
        try:
            with uninterrupted():
                send(signal.SIGTERM)
                raise RuntimeError
        except RuntimeError:
            pass


def test_further_signals_do_not_disturb_the_cleaning_up() -> None:
    cleaned = []
    with pytest.raises(KeyboardInterrupt), guarded_signals():
        try:
            send(signal.SIGINT)
        finally:
            send(signal.SIGINT)
            send(signal.SIGTERM)
            with uninterrupted():
                send(signal.SIGINT)
            cleaned.append(True)
    assert cleaned == [True]
    with pytest.raises(KeyboardInterrupt), guarded_signals():
        send(signal.SIGINT)


def test_guards_may_be_nested() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with guarded_signals():
        with guarded_signals():
            pass
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
            raise AssertionError("not interrupted")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_other_threads_are_left_alone() -> None:
    result = []

    def work() -> None:
        with guarded_signals(), uninterrupted():
            result.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [before]
