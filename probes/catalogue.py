"""The catalogue of faults, docs/faults.md and `tghw explain`, made from the error classes and faults.toml.

    python -m probes.catalogue docs/faults.md

runs every command of faults.toml on its simulated machine and writes the page, with what the commands printed.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import shlex
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hw.errors import TghwError, all_errors

DATA = Path(__file__).with_name("faults.toml")
ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "hw": "Command line, buses, memory, devices",
    "firmware": "Firmware files and the card's flash",
    "bridges": "GPUs behind a USB bridge",
    "drivers": "Drivers and queues",
    "compute": "Tensors and kernels",
}
"""top-level package -> title of its section"""
NOT_IMPORTED = ("__main__", "generate")
"""modules that do something when they are imported, or only serve to build the project"""
WIDTH = 140
LONGEST_LINE = 220
"""characters of a line of output that the page shows"""


@dataclass(frozen=True)
class Entry:
    """One error code."""

    code: str
    part: str
    kind: str
    """what it is, from the class's own docstring; may be empty"""
    means: str
    remedy: str
    exit_status: int
    command: str
    """what shows it on a simulated machine: the words after `tghw`; empty: `only` says where it happens"""
    only: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "kind": self.kind,
            "means": self.means or self.kind,
            "remedy": self.remedy,
            "exit_status": self.exit_status,
            "reproduced_by": f"tghw {self.command}" if self.command else None,
            "seen": self.only or None,
        }


@cache
def _data() -> dict[str, dict[str, str]]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def load_everything() -> None:
    """Import every module of the packages, so that every error class exists."""
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            words = path.relative_to(ROOT).with_suffix("").parts
            if words[-1] not in NOT_IMPORTED:
                importlib.import_module(".".join(words[:-1] if words[-1] == "__init__" else words))


def entries() -> list[Entry]:
    """Every code of the classes that are imported, by part and place in the source. A code of several classes is the first one's."""
    found: dict[str, type[TghwError]] = {}
    for cls in all_errors():
        if "code" in cls.__dict__ and _part(cls) in PARTS:
            found.setdefault(cls.code, cls)
    ordered = sorted(found.values(), key=lambda cls: (list(PARTS).index(_part(cls)), cls.__module__, inspect.getsourcelines(cls)[1]))
    return [_entry(cls) for cls in ordered]


def entry_of(code: str) -> Entry | None:
    """The entry of a code; loads everything when the code is not known yet."""
    for attempt in (0, 1):
        found = next((entry for entry in entries() if entry.code == code), None)
        if found is not None or attempt:
            return found
        load_everything()
    return None


def _part(cls: type[TghwError]) -> str:
    return cls.__module__.partition(".")[0]


def _entry(cls: type[TghwError]) -> Entry:
    data = _data()
    command = data["run"].get(cls.code, "")
    only = "" if command else data["only"].get(cls.code, data["parts"][_part(cls)])
    return Entry(cls.code, _part(cls), _kind(cls), cls.default_means, cls.default_remedy, cls.exit_status, command, only)


def _kind(cls: type[TghwError]) -> str:
    """First paragraph of a class's own docstring."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return " ".join(text.split("\n\n")[0].split())


# --- the page -----------------------------------------------------------------------------------------------------------

INTRODUCTION = """\
# Faults

What tghw can say went wrong, by the code that stands first in an error. Made by `make faults` from the error classes and
`probes/faults.toml`; what the commands print was recorded on simulated machines. `tghw explain CODE` prints an entry.

Every error is up to four lines on stderr: `tghw: CODE: what failed`, then `read:` what was found, `means:` what that usually
means here, `do:` what to do. With `--json` the same is in the document's `error`. An error may carry a closer meaning and
remedy than its entry below, which is what the code means in general.
"""


def page(outputs: dict[str, str]) -> str:
    """The whole page; outputs: code -> what its command printed."""
    lines = [INTRODUCTION]
    part = ""
    for entry in entries():
        if entry.part != part:
            part = entry.part
            lines.append(f"## {PARTS[part]}\n")
        lines.append(section(entry, outputs.get(entry.code, "")))
    return "\n".join(lines)


def section(entry: Entry, output: str) -> str:
    """One entry."""
    lines = [f"### `{entry.code}`", ""]
    if entry.kind:
        lines += [*_wrapped(entry.kind), ""]
    if entry.means:
        lines += _wrapped(f"- means: {entry.means}")
    if entry.remedy:
        lines += _wrapped(f"- do: {entry.remedy}")
    lines += _wrapped(f"- exit status {entry.exit_status}")
    if not entry.command:
        return "\n".join([*lines, *_wrapped(f"- seen: {entry.only}"), ""])
    lines += ["- to see it:", "", "```", f"$ tghw {entry.command}", *output.splitlines(), "```", ""]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def run(command: str) -> tuple[int, str]:
    """(exit status, what went to stderr) of a command line on a simulated machine that nobody used before."""
    from bridges import open as door
    from probes.main import run as run_command

    machines, door._machines = door._machines, {}
    errors = io.StringIO()
    try:
        with _alone(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = run_command(shlex.split(command))
    finally:
        for machine in door._machines.values():
            machine.close()
        door._machines = machines
    return status, errors.getvalue()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Environment and folders of a user who sets nothing."""
    before = dict(os.environ)
    folder = os.getcwd()
    with tempfile.TemporaryDirectory() as state:
        for name in ("DEV", "TGHW_MOCK", "TGHW_FIRMWARE", "REMOTE"):
            os.environ.pop(name, None)
        os.environ.update(TGHW_STATE=state, TGHW_LOCK_DIR=state, COLUMNS=str(WIDTH), NO_COLOR="1")
        os.chdir(ROOT)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)


def told(output: str) -> str:
    """The error itself, without the lines of progress and logging before it; long lines are cut."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("tghw: ")), 0)
    return "\n".join(line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " ..." for line in lines[first:])


def main(file: str) -> None:
    load_everything()
    outputs: dict[str, str] = {}
    for entry in entries():
        if entry.command:
            _, output = run(entry.command)
            if f"tghw: {entry.code}: " not in output:
                raise SystemExit(f"`tghw {entry.command}` does not show {entry.code}: {output}")
            outputs[entry.code] = told(output)
    Path(file).write_text(page(outputs), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
