"""`tghw explain CODE`: what an error code means, what to do, and how to see it on a simulated machine. docs/faults.md holds the same."""

from __future__ import annotations

from typing import Annotated

import typer

from hw.errors import UsageError
from probes import catalogue, render
from probes.context import current


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(code: Annotated[str | None, typer.Argument(help="the word before the colon in an error; none lists all")] = None) -> None:
    """Explain an error code."""
    if code is None:
        catalogue.load_everything()
        known = sorted(catalogue.entries(), key=lambda entry: entry.code)
        if current().json:
            render.document({"codes": [entry.code for entry in known]})
        render.table(["code", "usually means"], [(entry.code, entry.means or entry.kind) for entry in known])
        return
    found = catalogue.entry_of(code)
    if found is None:
        raise UsageError(f"no error code {code}", remedy=f"one of: {', '.join(sorted(entry.code for entry in catalogue.entries()))}")
    if current().json:
        render.document(found.to_dict())
        return
    render.say(code, style="bold")
    lines = [("kind", found.kind), ("means", found.means), ("do", found.remedy), ("exit", str(found.exit_status))]
    lines.append(("see", f"tghw {found.command}") if found.command else ("seen", found.only))
    for label, text in lines:
        if text:
            render.say(f"  {label + ':':<7}{text}")
