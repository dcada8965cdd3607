"""How long compiling takes: kernels of new shapes, lowered and compiled for gfx1100, by a compiler that is warm."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from compute import Tensor, runtime

DEVICE = "NULL::gfx1100"
ROUNDS = 7
"""the best counts; the others were disturbed by something"""

_sizes = count(1001)
"""each is used once, so that no kernel is found in the device's cache"""


def compile_bench(rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """CPU milliseconds from a tensor to machine code, for an elementwise add and a 64 x 64 x K matrix product, each of a shape not seen before."""
    (Tensor.empty(3, device=DEVICE) + 1).realize()

    def add(size: int) -> Tensor:
        return Tensor.empty(4 * size, device=DEVICE) + Tensor.empty(4 * size, device=DEVICE)

    def matmul(size: int) -> Tensor:
        return Tensor.empty(64, 4 * size, device=DEVICE) @ Tensor.empty(4 * size, 64, device=DEVICE)

    return {"add": _measure(add, rounds), "matmul_64": _measure(matmul, rounds)}


def _measure(make: Callable[[int], Tensor], rounds: int) -> dict[str, float]:
    device = runtime.device(DEVICE)
    before, best = device.compiled, float("inf")
    for _ in range(rounds):
        tensor = make(next(_sizes))
        start = time.process_time()
        tensor.realize()
        best = min(best, time.process_time() - start)
    return {"cpu_ms": best * 1e3, "kernels": device.compiled - before}
