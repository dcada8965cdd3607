"""All output of the command. People get text and tables on stdout, scripts get one JSON document; progress goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hw.errors import TghwError
from probes.context import current

PIPE_WIDTH = 240
"""columns where no terminal says how many there are: wide enough that tables are not cut for `grep`"""


def out() -> Console:
    """Where people read results."""
    return Console(no_color=current().no_color or None, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def err() -> Console:
    """Where progress and errors go."""
    return Console(stderr=True, no_color=current().no_color or None, highlight=False, soft_wrap=True)


def document(data: dict[str, Any]) -> None:
    """The one JSON document of a run."""
    current().documented = True
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def say(text: str = "", style: str | None = None) -> None:
    """A line for people; nothing with --json."""
    if not current().json:
        out().print(text, style=style, markup=False)


def note(text: str, style: str | None = "dim") -> None:
    """Progress and remarks, on stderr; nothing with --json."""
    if not current().json:
        err().print(text, style=style, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table for people; nothing with --json."""
    if current().json:
        return
    grid = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    out().print(grid)


def error(problem: TghwError) -> None:
    """An error as a person reads it (stderr: first line with the code, then cause and remedy), and as the JSON document where none was written."""
    if current().json and not current().documented:
        document({"error": problem.to_dict()})
    console = err()
    first, *others = problem.explain().splitlines()
    console.print(f"tghw: {first}", style="bold red", markup=False)
    for line in others:
        console.print(line, markup=False)


def size(count: int) -> str:
    """Bytes as people write them, exact powers of two."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount /= 1024
        unit = larger
    return f"{amount:g} {unit}" if amount == int(amount) else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time span with three digits and a fitting unit."""
    amount, unit = seconds, "s"
    for smaller in ("ms", "us", "ns"):
        if amount == 0 or amount >= 0.9995:
            break
        amount, unit = amount * 1000, smaller
    return f"{amount:.3g} {unit}"
