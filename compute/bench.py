"""How long it takes from a tensor to machine code of a GPU, and from that to what goes into its memory; by a compiler that is warm."""

from __future__ import annotations

import time
from collections.abc import Callable

from compute import Tensor
from compute.codegen import llvm
from compute.lower import lower
from compute.plan import GPU
from compute.schedule import schedule
from drivers.amd import codeobject

ARCH = "gfx1100"
DEVICE = f"NULL::{ARCH}"
ROUNDS = 7
"""the best counts; the others were disturbed by something"""
LOADS = 20
PLACE = 0x2000_0040_0000
"""any device address"""
SIDE = 64
COUNT = 4096

CASES: dict[str, Callable[[], Tensor]] = {
    "add": lambda: Tensor.empty(COUNT, device=DEVICE) + Tensor.empty(COUNT, device=DEVICE),
    "matmul_64": lambda: Tensor.empty(SIDE, SIDE, device=DEVICE) @ Tensor.empty(SIDE, SIDE, device=DEVICE),
}


def compile_bench(rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """CPU time of each step: scheduling and lowering, LLVM (text, optimiser, code), and reading and placing the object."""
    return {name: _measure(make, rounds) for name, make in CASES.items()}


def _measure(make: Callable[[], Tensor], rounds: int) -> dict[str, float]:
    steps = {"lower_ms": float("inf"), "llvm_ms": float("inf"), "load_us": float("inf")}
    size = 0
    for _ in range(rounds + 1):  # the first one warms up
        tensor = make()
        start = time.process_time()
        (step,) = schedule([tensor.node])
        kernel = lower(step.graph, step.params, GPU)
        lowered = time.process_time()
        image = llvm.compile_amd(kernel, ARCH)
        compiled = time.process_time()
        size = len(image)
        for name, seconds in (("lower_ms", 1e3 * (lowered - start)), ("llvm_ms", 1e3 * (compiled - lowered)), ("load_us", 1e6 * _load(image))):
            steps[name] = min(steps[name], seconds)
    return {name: round(value, 3) for name, value in steps.items()} | {"object_bytes": float(size)}


def _load(image: bytes) -> float:
    """Seconds to read and place an object, when nothing else was done just before."""
    codeobject.parse(image, ARCH).place(PLACE)
    start = time.process_time()
    for _ in range(LOADS):
        codeobject.parse(image, ARCH).place(PLACE)
    return (time.process_time() - start) / LOADS
