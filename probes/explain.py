"""`tghw explain CODE`: what an error code means and what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from hw.errors import TghwError, UsageError, all_errors
from probes import render
from probes.context import current


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(code: Annotated[str | None, typer.Argument(help="the word before the colon in an error; none lists all")] = None) -> None:
    """Explain an error code."""
    known: dict[str, type[TghwError]] = {}
    for cls in all_errors():
        known.setdefault(cls.code, cls)
    if code is None:
        if current().json:
            render.document({"codes": sorted(known)})
        render.table(["code", "usually means"], [(name, cls.default_means or _summary(cls)) for name, cls in sorted(known.items())])
        return
    found = known.get(code)
    if found is None:
        raise UsageError(f"no error code {code}", remedy=f"one of: {', '.join(sorted(known))}")
    summary = _summary(found)
    if current().json:
        render.document({"code": code, "means": found.default_means or summary, "remedy": found.default_remedy, "exit_status": found.exit_status})
        return
    render.say(code, style="bold")
    for label, text in (("kind", summary), ("means", found.default_means), ("do", found.default_remedy), ("exit", str(found.exit_status))):
        if text:
            render.say(f"  {label + ':':<7}{text}")


def _summary(cls: type[TghwError]) -> str:
    """The first line of a class's own docstring, "" when it has none."""
    text = cls.__dict__.get("__doc__") or ""
    return next(iter(text.strip().splitlines()), "")
