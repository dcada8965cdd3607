"""`tghw run`: a small kernel on the selected device, checked against numpy."""

from __future__ import annotations

import contextlib
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hw.errors import DeviceError, ProgramFailed, TghwError, UsageError
from probes import atomics, render
from probes.context import current

DEFAULT_DEVICE = "MOCKPCI+AMD"


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(program: Annotated[str, typer.Argument(help="built in: add, matmul, copy, sum, atomics; or a .py file that uses `compute`")] = "add") -> None:
    """Run a small kernel, or a program, on the selected device and check the result."""
    target = current().use_for_compute(DEFAULT_DEVICE)
    device = str(target)
    start = time.perf_counter()
    if program.endswith(".py"):
        if not Path(program).is_file():
            raise UsageError(f"there is no file {program}")
        _run_file(program)
        results: dict[str, Any] = {}
    elif program == "atomics":
        results = atomics.run(target)
    elif program in PROGRAMS:
        results = PROGRAMS[program]()
    else:
        raise UsageError(f"no built-in program {program}", remedy=f"one of {', '.join(PROGRAMS)}, atomics, or a .py file")
    seconds = time.perf_counter() - start
    if current().json:
        render.document({"program": program, "device": device, "ok": True, "seconds": seconds, "results": results})
    else:
        shown = ", ".join(f"{key} {value}" for key, value in results.items())
        render.say(f"{program} on {device}: right{' (' + shown + ')' if shown else ''}, {render.duration(seconds)}", style="bold green")


def _run_file(program: str) -> None:
    """Run somebody's program as `python program` would; what it prints goes to stderr where stdout is for the JSON document."""
    printed = contextlib.redirect_stdout(sys.stderr) if current().json else contextlib.nullcontext()
    try:
        with printed:
            runpy.run_path(program, run_name="__main__")
    except TghwError:
        raise
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise ProgramFailed(f"{program} ended by itself", read=f"exit status {leaving.code}") from leaving
    except Exception as problem:
        own = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == program]
        place = f"line {own[-1].lineno}: {own[-1].line}" if own else f"line {getattr(problem, 'lineno', '?')}"
        raise ProgramFailed(f"{program} raised {type(problem).__name__}: {problem}", read=place) from problem


def _expect(condition: bool, what: str, seen: object) -> None:
    if not condition:
        raise DeviceError(
            f"{what} gave a wrong result",
            read=f"{seen}",
            means="the device computed, but not what numpy computes",
            remedy="`tghw disasm` shows the kernel; please report this",
        )


def _add() -> dict[str, Any]:
    import numpy as np

    from compute import Tensor

    count = 4096
    a, b = np.arange(count, dtype=np.float32), np.full(count, 0.5, dtype=np.float32)
    result = (Tensor(a) + Tensor(b)).numpy()
    _expect(bool((result == a + b).all()), "add", result[:4])
    return {"elements": count}


def _matmul() -> dict[str, Any]:
    import numpy as np

    from compute import Tensor

    side = 64
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((side, side), dtype=np.float32) for _ in range(2))
    result = (Tensor(a) @ Tensor(b)).numpy()
    error = float(np.abs(result - a @ b).max())
    _expect(error < 1e-4, "matmul", f"largest error {error}")
    return {"size": f"{side}x{side}", "largest_error": f"{error:.2g}"}


def _copy() -> dict[str, Any]:
    import numpy as np

    from compute import Tensor

    data = np.random.default_rng(2).integers(0, 256, 1 << 20, dtype=np.uint8)
    result = Tensor(data).realize().numpy()
    _expect(bool((result == data).all()), "copy", "bytes differ")
    return {"bytes": data.nbytes}


def _sum() -> dict[str, Any]:
    import numpy as np

    from compute import Tensor

    data = np.arange(1 << 12, dtype=np.int32)
    result = Tensor(data).sum().item()
    _expect(result == int(data.sum()), "sum", result)
    return {"elements": data.size}


PROGRAMS: dict[str, Callable[[], dict[str, Any]]] = {"add": _add, "matmul": _matmul, "copy": _copy, "sum": _sum}
