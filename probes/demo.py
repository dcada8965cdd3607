"""`tghw demo`: the main job on one screen, on a simulated machine (or the one selected)."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from bridges.open import Selection, amd_gpus, open_amd, open_pci
from drivers.amd.device import AmdDevice
from drivers.amd.flash import open_port
from drivers.amd.telemetry import Telemetry
from firmware.spi.backup import read_twice
from firmware.spi.method import choose
from hw.errors import DeviceError, NothingFound
from probes import render
from probes.context import current

PROFILE = "navi31"
SIDE = 64
COUNT = 1 << 16
STAGES_A_LINE = 5


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo() -> None:
    """Find a GPU, boot it from nothing, watch it, run kernels on it, check the results against numpy, and save its flash."""
    selection = current().selection()
    if selection.mock is None and selection.target is None:
        selection = replace(selection, mock=PROFILE)
    steps: list[dict[str, Any]] = []
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        if selection.state is None and selection.mock is not None:
            selection = replace(selection, state=Path(folder))
        _find(selection, steps)
        _boot(selection, steps)
        _compute(selection, steps)
        _save_flash(selection, Path(folder), steps)
    seconds = time.perf_counter() - start
    if current().json:
        render.document({"steps": steps, "ok": True, "seconds": seconds})
    render.say()
    render.say(f"done in {render.duration(seconds)}; every byte went through the GPU's registers, page tables, queues and machine code", style="bold green")


def _title(number: int, text: str) -> None:
    render.say(f"\n{number}. {text}", style="bold cyan")


def _find(selection: Selection, steps: list[dict[str, Any]]) -> None:
    where = f"the simulated machine `{selection.mock}`" if selection.mock else "this machine"
    _title(1, f"find: what is on the PCI bus of {where}?")
    gpus = amd_gpus(selection)
    if not gpus:
        raise NothingFound("no AMD GPU was found")
    gpu = gpus[0]
    with gpu.opener() as device:
        bars = ", ".join(f"BAR{bar.index} {render.size(bar.size)}" for bar in device.bars.values() if not bar.is_io)
    render.say(f"   {gpu.address}  {gpu.name}, {gpu.arch}; {bars}")
    steps.append({"step": "find", "address": gpu.address, "name": gpu.name})


def _boot(selection: Selection, steps: list[dict[str, Any]]) -> None:
    _title(2, "boot it from power-on")
    device = open_amd(selection)
    try:
        before = device.state()
        start = time.perf_counter()
        clock = device.clock.now()
        results = device.boot(cold=False)
        seconds = time.perf_counter() - start
        done = [each for each in results if each.outcome == "done"]
        for first in range(0, len(done), STAGES_A_LINE):
            render.say("   " + "".join(f"{each.name:<11}{render.duration(each.seconds):>8}   " for each in done[first : first + STAGES_A_LINE]))
        render.say(f"   {before} -> {device.state()}: {render.duration(device.clock.now() - clock)} of the GPU's time, {render.duration(seconds)} of ours")
        steps.append({"step": "boot", "stages": [{"name": each.name, "seconds": each.seconds} for each in results], "seconds": seconds})
        _watch(device, steps)
        device.finish()
    finally:
        device.close()


def _watch(device: AmdDevice, steps: list[dict[str, Any]]) -> None:
    _title(3, "watch it: what its power controller measures")
    reading = Telemetry(device).sample()
    steps.append({"step": "watch", "figures": [figure.to_dict() for figure in reading.figures], "throttle": [each.name for each in reading.throttle or ()]})
    degrees = ", ".join(f"{figure.label.lower()} {figure.value:g} C" for figure in reading.group("temperature"))
    power, gfx, memory = (reading[key] for key in ("power", "gfx_clock", "memory_clock"))
    render.say(
        f"   {degrees}; {power.value:g} of {power.limit:g} W; graphics clock {gfx.value:g} of {gfx.limit:g} MHz (asleep between kernels), memory clock {memory.value:g} MHz"
    )


def _compute(selection: Selection, steps: list[dict[str, Any]]) -> None:
    _title(4, "compute on it (kernels compiled now by LLVM, executed as GPU machine code)")
    import numpy as np

    current().use_for_compute(f"MOCKPCI+AMD,profile={PROFILE}")
    from compute import Tensor

    random = np.random.default_rng(7)
    a, b = random.standard_normal((2, COUNT), dtype=np.float32)
    x, w = random.standard_normal((2, SIDE, SIDE), dtype=np.float32)
    checks: list[tuple[str, Any, Any, float]] = [
        (f"a * b + 1, {COUNT} floats", lambda: Tensor(a) * Tensor(b) + 1.0, a * b + 1.0, 0.0),
        (f"sum of {COUNT} integers", lambda: Tensor(np.arange(COUNT, dtype=np.int32)).sum(), np.arange(COUNT, dtype=np.int32).sum(), 0.0),
        (f"relu(x @ w), {SIDE}x{SIDE}", lambda: (Tensor(x) @ Tensor(w)).relu(), np.maximum(x @ w, 0), 1e-4),
    ]
    for name, build, expected, tolerance in checks:
        start = time.perf_counter()
        result = build().numpy()
        seconds = time.perf_counter() - start
        error = float(np.abs(np.asarray(result, dtype=np.float64) - expected).max())
        if not error <= tolerance:
            raise DeviceError(f"{name}: the result differs from numpy's", read=f"largest difference {error:g}, allowed {tolerance:g}")
        render.say(f"   {name:<28} agrees with numpy ({'exactly' if error == 0 else f'within {error:.1g}'}), {render.duration(seconds)}")
        steps.append({"step": "compute", "what": name, "largest_difference": error, "seconds": seconds})


def _save_flash(selection: Selection, folder: Path, steps: list[dict[str, Any]]) -> None:
    _title(5, "save its flash (reading changes nothing; `tghw flash dump FILE` keeps the copy)")
    with open_pci(selection) as pci:
        port = open_port(pci, held=folder / "held.json")
        way = choose(port.engine, port.aperture, "auto")
        start = time.perf_counter()
        content = read_twice(way)
        seconds = time.perf_counter() - start
    digest = hashlib.sha256(content).hexdigest()
    render.say(f"   {render.size(len(content))} by {way.method}, read twice and equal, {render.duration(seconds)}; sha256 {digest[:16]}...")
    steps.append({"step": "flash", "size": len(content), "method": way.method, "sha256": digest, "seconds": seconds})
