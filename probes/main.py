"""Entry point of `tghw`."""

from __future__ import annotations

import logging
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import typer

from hw.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, InternalError, Interrupted, TghwError, UsageError
from hw.signals import guarded_signals
from probes import context, render

EPILOG = (
    "Common options may stand anywhere: --json, --json-schema, --no-color, -v, -vv, --device N|ADDRESS, --dev DEV, --remote HOST:PORT, --mock PROFILE, --state DIR, "
    "--firmware DIR, --fault LIST. See `tghw options`. Exit status: 0 done, 1 failed, 2 wrong use, 3 nothing found, 4 refused for safety, 5 device in use, 130 interrupted."
)

app = typer.Typer(
    name="tghw",
    help="Find, boot, use, watch and repair GPUs from user space; every bit of it also on simulated machines (--mock).",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("options")
def options() -> None:
    """Explain the options that every command takes."""
    rows = [*(context.VALUE_OPTIONS | context.FLAG_OPTIONS).items()]
    render.table(["option", "meaning"], rows)
    if context.current().json:
        render.document({"options": dict(rows)})


@cache
def _register() -> None:
    """Attach the commands; each module defines one."""
    from probes import bench, boot, bridge, demo, disasm, doctor, explain, flash, mock, probe, regs, run, smi

    for module in (probe, doctor, boot, run, smi, regs, flash, bridge, disasm, mock, bench, demo, explain):
        module.register(app)


def _configure_logging(verbose: int) -> None:
    level = logging.WARNING if verbose == 0 else logging.INFO if verbose == 1 else logging.DEBUG
    logging.basicConfig(level=level, stream=sys.stderr, format="%(name)s: %(message)s" if verbose > 1 else "%(message)s", force=True)


def _print_schema(arguments: list[str]) -> int:
    """Describe what a command writes with --json: its document, or that of an error."""
    from probes.schemas import FAILURE, SCHEMAS

    name = " ".join(word for word in arguments if not word.startswith("-"))
    matching = [key for key in SCHEMAS if name == key or name.startswith(key + " ")]
    if not matching:
        render.error(UsageError(f"no schema for {name!r}", remedy=f"one of: {', '.join(SCHEMAS)}"))
        return EXIT_USAGE
    render.document({"oneOf": [SCHEMAS[max(matching, key=len)], FAILURE]})
    return EXIT_DONE


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit status. Typed errors become text, never a traceback."""
    context.set_current(context.Common(json="--json" in arguments))
    try:
        common, rest = context.take_common(arguments)
    except TghwError as problem:
        render.error(problem)
        return problem.exit_status
    context.set_current(common)
    if common.json_schema:
        return _print_schema(rest)
    _configure_logging(common.verbose)
    _register()
    try:
        with guarded_signals():  # SIGTERM and SIGHUP end a command as Ctrl-C does: with everything put back
            status = app(rest, prog_name="tghw", standalone_mode=False)
        status = status if isinstance(status, int) else EXIT_DONE
    except TghwError as problem:
        render.error(problem)
        return problem.exit_status
    except typer.Exit as leaving:
        status = leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_FAILED
    except Exception as problem:
        if hasattr(problem, "format_message"):  # typer's own complaints about the command line; their class moves between its versions
            return _wrong_use(problem)
        if common.verbose > 1:
            raise
        last = traceback.extract_tb(problem.__traceback__)[-1]
        render.error(InternalError(f"{type(problem).__name__}: {problem}", read=f"in {last.name}, {Path(last.filename).name} line {last.lineno}"))
        return EXIT_FAILED
    if status == EXIT_INTERRUPTED:  # some versions of typer turn Ctrl-C into this status themselves
        render.error(Interrupted("ended by a signal; the device was left restored"))
    return status


def _wrong_use(problem: Any) -> int:
    """Tell what typer does not accept about the command line. A command without the words it needs shows its help."""
    message, where = problem.format_message(), getattr(problem, "ctx", None)
    if message.startswith("Usage:"):
        sys.stderr.write(message + "\n")
    else:
        name = where.command_path if where is not None else "tghw"
        render.error(UsageError(message.rstrip("."), remedy=f"`{name} --help` lists what is accepted"))
    return EXIT_USAGE


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
