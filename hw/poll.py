"""Waiting for a device. The only place that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hw.clock import HOST_CLOCK, Clock
from hw.errors import WaitTimeout

T = TypeVar("T")

BUSY_SECONDS = 200e-6
"""How long to read back to back before sleeping between reads: most answers come within microseconds."""
FIRST_PAUSE = 20e-6
LONGEST_PAUSE = 2e-3


def show(value: object) -> str:
    """A value as an error prints it: integers as hex."""
    return f"{value:#x}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def poll(
    read: Callable[[], T],
    until: Callable[[T], bool],
    *,
    what: str,
    within: float,
    typical: float = 0.0,
    clock: Clock = HOST_CLOCK,
    describe: Callable[[T], str] | None = None,
    means: str = "",
    remedy: str = "",
    patient: bool = False,
) -> T:
    """Call read() until until(value) holds and return that value.

    what: what is awaited, as a clause for the error. within: seconds by `clock`. typical: seconds it usually takes; the first pause is
    that long, so that a slow step costs few reads of the bus. describe: decodes the last value for the error. patient: reads are dear,
    so the typical time passes before the first one.
    Raises WaitTimeout naming what, limit, last value and time waited. One more read is made after the limit, so that a host that
    was asleep does not report a timeout of a device that was ready.
    """
    if patient and typical:
        clock.sleep(typical)
    value = read()
    if until(value):
        return value
    start = clock.now()
    shortest = max(FIRST_PAUSE, typical / 4)
    longest = max(LONGEST_PAUSE, typical / 2)
    pause = shortest if patient else typical
    while True:
        waited = clock.now() - start
        expired = waited >= within
        if pause or waited >= BUSY_SECONDS or clock is not HOST_CLOCK:
            clock.sleep(min(max(pause, FIRST_PAUSE), max(within - waited, FIRST_PAUSE)))
            pause = min(pause * 1.5, longest) if pause and pause != typical else shortest
        value = read()
        if until(value):
            return value
        if expired:
            waited = clock.now() - start
            seen = describe(value) if describe else show(value)
            raise WaitTimeout(f"{what} did not happen within {within:g} s", read=f"last value {seen} after {waited:.3g} s", means=means, remedy=remedy, last=value, waited=waited)
