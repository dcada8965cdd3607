"""Progress of long work: a bar with rate and time left on a terminal, a line every few seconds elsewhere, nothing with --json."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from probes import render
from probes.context import current

EVERY = 3.0
"""seconds between lines"""

Meter = Callable[[int, int], None]
"""bytes done, bytes in all"""


def rate(count: float, seconds: float) -> str:
    """Bytes a second as people read them."""
    return f"{render.size(int(count / seconds))}/s" if seconds > 0 else "-"


@contextmanager
def meter(title: str) -> Iterator[Meter]:
    """Shows how far something is: `with meter("reading") as show: show(done, total)`."""
    if current().json:
        yield lambda done, total: None
        return
    console = render.err()
    if not console.is_terminal:
        yield _lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(title: str) -> Meter:
    start = time.monotonic()
    due = start + EVERY

    def show(done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now < due or done <= 0:
            return
        due = now + EVERY
        left = (total - done) * (now - start) / done
        render.note(f"{title}: {render.size(done)} of {render.size(total)}, {rate(done, now - start)}, {left:.0f} s left")

    return show
