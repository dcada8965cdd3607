"""Simulated time, and the coroutines that live in it.

There are no threads. Whoever uses the machine (a bus access, a sleep, a poll) makes its clock go on; on the way every engine
whose moment has come takes its turn. An engine is a generator. It yields

    a number   to sleep that many simulated seconds
    a Signal   to sleep until somebody sets it
    a Until    to sleep until a condition holds (looked at whenever some engine has run; prefer a Signal)
    None       to let everybody else who is ready go first

Engines that are ready at the same moment run in an order drawn from the scheduler's seed, so that an interleaving can be varied
and replayed from its number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from heapq import heappop, heappush

Engine = Generator["float | Signal | Until | None", None, None]

NEVER = float("inf")
SHORTEST_STEP = 1e-9
"""an engine that does not sleep still uses this much time (s), so that it cannot stop the clock"""


class Signal:
    """Something that engines wait for. Setting it wakes those that wait now; it does not stay set."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Task] = []

    def set(self) -> None:
        """Wake every engine that waits for this."""
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler._schedule(task, self._scheduler.clock.now())


@dataclass(frozen=True)
class Until:
    """A condition to sleep on."""

    holds: Callable[[], bool]


class Task:
    """One running engine."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.done = False
        self.ticket = 0
        """number of the wake-up that counts; older ones in the queue are void"""

    def __repr__(self) -> str:
        return f"Task({self.name}{', done' if self.done else ''})"


class SimClock:
    """The clock of a simulated machine (hw.clock.Clock). Seconds since power was applied."""

    def __init__(self) -> None:
        self._now = 0.0
        self._next = NEVER
        """when the next engine is due; kept by the scheduler"""
        self.scheduler: Scheduler

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass; engines run meanwhile."""
        until = self._now + max(seconds, 0.0)
        if until < self._next and not self.scheduler._conditions:
            self._now = until
        else:
            self.scheduler.run_until(until)

    spend = sleep
    """What a bus access does: the same, named for what it means there."""


class Scheduler:
    """Runs engines in the order of their simulated time."""

    def __init__(self, clock: SimClock, seed: int = 0) -> None:
        self.clock = clock
        clock.scheduler = self
        self.random = random.Random(seed)
        self.tasks: list[Task] = []
        self._queue: list[tuple[float, float, int, Task]] = []
        self._conditions: list[tuple[Until, Task]] = []
        self._running: Task | None = None
        self._count = 0

    @property
    def running(self) -> Task | None:
        """The engine whose turn it is; None while the machine's user runs."""
        return self._running

    def signal(self) -> Signal:
        return Signal(self)

    def spawn(self, name: str, engine: Engine) -> Task:
        """Start an engine; its first turn comes as soon as time passes."""
        task = Task(name, engine)
        self.tasks.append(task)
        self._schedule(task, self.clock.now())
        return task

    def call_later(self, seconds: float, action: Callable[[], None], name: str = "timer") -> Task:
        """Do something once, `seconds` from now."""

        def timer() -> Engine:
            yield seconds
            action()

        return self.spawn(name, timer())

    def stop(self, task: Task | None) -> None:
        """End an engine. It gets no further turn; its `finally` blocks run now."""
        if task is None or task.done:
            return
        self._finish(task)
        if task is not self._running:
            task.engine.close()

    def between(self, low: float, high: float) -> float:
        """A duration drawn from the seed, for timings that a specification gives as a range."""
        return self.random.uniform(low, high)

    def run_until(self, until: float) -> None:
        """Give every engine that is due up to this moment its turns, then set the clock to it."""
        if self._running is not None:
            raise RuntimeError(f"engine {self._running.name} must yield its waiting instead of sleeping on the clock")
        queue = self._queue
        clock = self.clock
        try:
            self._check_conditions()
            while queue and queue[0][0] <= until:
                when, _, ticket, task = heappop(queue)
                if task.done or ticket != task.ticket:
                    continue
                if when > clock._now:
                    clock._now = when
                self._step(task)
                self._check_conditions()
            if until > clock._now:
                clock._now = until
        finally:
            clock._next = queue[0][0] if queue else NEVER

    def _step(self, task: Task) -> None:
        self._running = task
        try:
            wish = next(task.engine)
        except StopIteration:
            self._finish(task)
            return
        except BaseException:
            self._finish(task)
            raise
        finally:
            self._running = None
        if task.done:
            task.engine.close()
        elif isinstance(wish, Signal):
            wish._waiting.append(task)
        elif isinstance(wish, Until):
            self._conditions.append((wish, task))
        else:
            self._schedule(task, self.clock._now + max(wish or 0.0, SHORTEST_STEP))

    def _schedule(self, task: Task, when: float) -> None:
        if task.done:
            return
        self._count += 1
        task.ticket = self._count
        heappush(self._queue, (when, self.random.random(), self._count, task))
        if when < self.clock._next:
            self.clock._next = when

    def next_due(self) -> float:
        """When the next engine wakes up; far away when none will."""
        return self._queue[0][0] if self._queue else NEVER

    def _check_conditions(self) -> None:
        if not self._conditions:
            return
        waiting, self._conditions = self._conditions, []
        for condition, task in waiting:
            if task.done:
                continue
            if condition.holds():
                self._schedule(task, self.clock._now)
            else:
                self._conditions.append((condition, task))

    def _finish(self, task: Task) -> None:
        task.done = True
        if task in self.tasks:
            self.tasks.remove(task)
