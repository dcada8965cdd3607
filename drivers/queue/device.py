"""What every device with queues has: a timeline, waiting with fault and hang detection, and recovery."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from drivers.queue.signals import wait_reached
from drivers.queue.timeline import Point, Timeline
from hw.clock import Clock
from hw.errors import GpuFault, GpuHang, TghwError, WaitTimeout

log = logging.getLogger(__name__)

HANG_LIMIT = 10.0
"""seconds of the device's clock without progress after which submitted work counts as hung"""

SERVICE_INTERVAL = 5e-3
"""seconds between looks at the interrupt ring while waiting"""


class QueueDevice(ABC):
    """A device whose work is ordered by one timeline. Subclasses add queues and the hooks below.

    Failures: a fault or hang found while waiting resets the queues, drops what was submitted and raises GpuFault or GpuHang once;
    the next call works. A failure of the bus or of the recovery itself is kept and raised by every later call.
    """

    timeout: float
    """seconds (device clock) without progress until GpuHang"""

    def __init__(self, clock: Clock, timeline: Timeline) -> None:
        self.clock = clock
        self.timeline = timeline
        self.timeout = HANG_LIMIT
        self.failure: TghwError | None = None
        """why the device cannot be used any more, if so"""
        self._serviced = 0.0
        self._looked = Point(0, 0)
        """up to where finished work was searched for faults"""

    # --- hooks --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_faults(self) -> None:
        """Raise GpuFault if the device reported one since the last look."""

    def may_have_faulted(self) -> bool:
        """Whether check_faults() is worth its accesses after work that ended. A device that cannot tell more cheaply says yes."""
        return True

    @abstractmethod
    def queue_state(self) -> str:
        """The state of the queues and of what runs on them, for the error of a hang."""

    @abstractmethod
    def reset_queues(self) -> None:
        """Stop what runs and set the queues up again, empty."""

    def catch_up(self) -> None:
        """Start submissions that were held back; called before anything is waited for."""

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_value(self, value: int) -> None:
        """Wait until the timeline reached the value (of the present lap). Raises GpuFault, GpuHang."""
        timeline = self.timeline
        if timeline.done < value and timeline.look() < value:
            self._wait(value, self.timeout)

    def wait_point(self, point: Point, timeout: float | None = None) -> None:
        """Wait for the work up to a point. timeout: seconds of the device's clock without progress (default: self.timeout).

        Raises GpuFault, GpuHang. A fault of work that ended all the same is found here too.
        """
        if self.failure is not None:
            raise self.failure
        timeline = self.timeline
        if not timeline.reached(point):
            self._wait(point.value, self.timeout if timeout is None else timeout)
        looked = self._looked
        if point.value > looked.value or timeline.lap != looked.lap:
            self._looked = Point(timeline.lap, timeline.done)
            if self.may_have_faulted():
                self._look_for_faults()

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until everything submitted is done. Raises GpuFault, GpuHang, or the error that made the device unusable."""
        self.wait_point(self.timeline.last_point, timeout)
        self.timeline.wrap_if_needed()

    def _wait(self, value: int, limit: float) -> None:
        """Wait for a value that was not there at the last look."""
        self.catch_up()
        self._serviced = self.clock.now()
        timeline = self.timeline
        try:
            timeline.note(wait_reached(timeline.signal, value, limit, self.clock, self._service, timeline.done))
        except GpuFault:
            self._recover()
            raise
        except WaitTimeout as timeout:
            raise self.hung(timeout) from timeout
        except TghwError as error:
            self.failure = error
            raise

    def _service(self) -> None:
        now = self.clock.now()
        if now - self._serviced >= SERVICE_INTERVAL:
            self._serviced = now
            self.check_faults()

    def _look_for_faults(self) -> None:
        try:
            self.check_faults()
        except GpuFault:
            self._recover()
            raise

    def hung(self, timeout: WaitTimeout) -> GpuHang:
        """The error for work that makes no progress, after the queues were reset. A fault that explains it takes its place (raised)."""
        self._look_for_faults()
        try:
            state = self.queue_state()
        except TghwError as error:
            state = f"the state of the queues could not be read: {error}"
        self._recover()
        return GpuHang(f"submitted work made no progress for {timeout.waited:.3g} s", read=f"{timeout.read}; {state}")

    def _recover(self) -> None:
        log.warning("resetting the queues, dropping work up to timeline value %d", self.timeline.last)
        try:
            self.reset_queues()
            self.timeline.abandon()
        except TghwError as error:
            self.failure = error
            raise

    def fail(self, error: TghwError) -> None:
        """Keep an error of the bus or of a submission: every later call raises it."""
        self.failure = error
