"""Time as a device sees it. A real device lives on the host's clock; a simulated one brings its own, which only moves when it is used."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What poll() and drivers wait on. Times are seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let at least this much time pass (simulated machines run their engines meanwhile)."""
        ...


class HostClock:
    """The host's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


HOST_CLOCK = HostClock()
