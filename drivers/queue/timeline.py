"""The order of all work of one device: a signal and the number that the next piece of work will store in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drivers.queue.signals import Signal, SignalPool

WRAP_AT = 1 << 31
"""values stay far below 2^32, because devices compare 32 bits"""


@dataclass(slots=True)
class Point:
    """A place on a timeline, kept valid across its wrap-around by the lap it belongs to."""

    lap: int
    value: int


class Timeline:
    """`next_value` is what the next submission signals; everything is done when the signal holds `next_value - 1`."""

    def __init__(self, pool: SignalPool) -> None:
        self.signal: Signal = pool.new(0)
        self._shadow: Signal = pool.new(0)
        self.next_value = 1
        self.lap = 0
        self.done = 0
        """the largest value of this lap that is known to be reached, without looking again"""
        self.on_wrap: list[Callable[[], None]] = []
        """called when the values start again: markers kept by others mean nothing any more"""

    @property
    def last(self) -> int:
        """The value of the last submission."""
        return self.next_value - 1

    @property
    def last_point(self) -> Point:
        return Point(self.lap, self.next_value - 1)

    def advance(self) -> int:
        """Take the next value."""
        value = self.next_value
        self.next_value = value + 1
        return value

    def look(self) -> int:
        """Read the signal."""
        return self.note(self.signal.value)

    def note(self, value: int) -> int:
        """This value is reached."""
        self.done = max(self.done, value)
        return value

    def reached(self, point: Point) -> bool:
        """Whether the work up to this point is done. Work of an earlier lap is: laps only change when the device is idle."""
        return point.lap != self.lap or self.done >= point.value or self.look() >= point.value

    def wrap_if_needed(self) -> bool:
        """Start again with the other signal once the values got large. Only when idle. The old signal keeps its value, so late waits on it pass."""
        if self.next_value <= WRAP_AT:
            return False
        self.signal, self._shadow = self._shadow, self.signal
        self.signal.value = 0
        self.next_value = 1
        self.done = 0
        self.lap += 1
        for forget in self.on_wrap:
            forget()
        return True

    def abandon(self) -> None:
        """Declare all submitted work as done: after a reset of the queues it never will be."""
        self.signal.value = self.note(self.last)
