"""Signals: 16 bytes that the CPU and every device of a group see. A value, and a time stamp of the device's clock."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Protocol

from drivers.queue.symbols import Operand
from hw.clock import Clock
from hw.mmio import Mmio
from hw.poll import poll

SIGNAL_BYTES = 16
VALUE = 0
TIMESTAMP = 8
"""byte offsets of the two 64-bit halves"""

PAGE_BYTES = 0x1000
"""signals are allocated a page at a time: 256 of them"""

DEFAULT_WAIT = 30.0
"""seconds that Signal.wait() waits when nothing else is said"""


class SignalMemory(Protocol):
    @property
    def va(self) -> int: ...

    @property
    def view(self) -> Mmio | None: ...


class Signal:
    """One signal. `va` may be symbolic (a virtual signal): such a one only appears in recorded queues and touches no memory."""

    __slots__ = ("_offset", "_pool", "_read", "_view", "va")

    def __init__(self, va: Operand, view: Mmio | None = None, offset: int = 0, pool: SignalPool | None = None) -> None:
        self.va = va
        self._view = view
        self._offset = offset
        self._pool = pool
        self._read = view.read64 if view is not None else None

    @property
    def value(self) -> int:
        """The value now. Devices write its low 32 bits."""
        if self._read is None:
            raise TypeError("a virtual signal has no memory")
        return self._read(self._offset)

    @value.setter
    def value(self, value: int) -> None:
        if self._view is None:
            raise TypeError("a virtual signal has no memory")
        self._view.write64(self._offset, value)

    @property
    def ticks(self) -> int:
        """The time stamp in ticks of the device's clock."""
        if self._read is None:
            raise TypeError("a virtual signal has no memory")
        return self._read(self._offset + TIMESTAMP)

    @property
    def timestamp(self) -> Decimal:
        """The time stamp in microseconds, exactly."""
        if self._pool is None:
            raise TypeError("only signals of a pool know their clock")
        return Decimal(self.ticks) / self._pool.ticks_per_us

    def wait(self, value: int, timeout: float = DEFAULT_WAIT) -> None:
        """Wait until the value is reached, restarting the limit (seconds) whenever it moves. Raises WaitTimeout; changes nothing."""
        if self._pool is None:
            raise TypeError("only signals of a pool know their clock")
        wait_reached(self, value, timeout, self._pool.clock)

    def free(self) -> None:
        """Give the slot back to its pool. Nothing may write the signal any more."""
        if self._pool is not None and self._view is not None:
            self._pool.give_back(self)
            self._view = None
            self._read = None


def wait_reached(signal: Signal, value: int, timeout: float, clock: Clock, idle: Callable[[], None] | None = None, seen: int | None = None) -> int:
    """Wait until the signal reaches the value; the value it has then. Each change of the value restarts the limit.

    idle: called between reads, may raise. seen: the value just now, where it was read already. Raises WaitTimeout naming the value
    wanted and the value seen.
    """
    if seen is None:
        seen = signal.value

    def read() -> int:
        if idle is not None:
            idle()
        return signal.value

    while seen < value:
        before = seen
        seen = poll(
            read,
            lambda now: now >= value or now != before,  # noqa: B023
            what=f"Wait timeout: signal at {signal.va:#x} to reach {value}",
            within=timeout,
            clock=clock,
            describe=str,
        )
    return seen


class SignalPool:
    """Slots of 16 bytes cut from pages that are allocated as needed."""

    def __init__(self, allocate: Callable[[int], SignalMemory], clock: Clock, ticks_per_us: int) -> None:
        self.clock = clock
        self.ticks_per_us = ticks_per_us
        self._allocate = allocate
        self._free: list[tuple[int, Mmio, int]] = []
        """(device address, window, offset in it)"""

    def new(self, value: int = 0) -> Signal:
        """A signal with this value. All 64 bits are set, because devices only write the low half; the time stamp is left as it is."""
        if not self._free:
            self._grow()
        va, view, offset = self._free.pop()
        signal = Signal(va, view, offset, self)
        signal.value = value
        return signal

    def give_back(self, signal: Signal) -> None:
        if isinstance(signal.va, int) and signal._view is not None:
            self._free.append((signal.va, signal._view, signal._offset))

    def _grow(self) -> None:
        page = self._allocate(PAGE_BYTES)
        if page.view is None:
            raise TypeError("signal pages need a CPU window")
        for offset in reversed(range(0, PAGE_BYTES, SIGNAL_BYTES)):
            self._free.append((page.va + offset, page.view, offset))
