"""A short list of computations on the device of DEV, each compared with numpy: `python -m compute.tiny_test`.

Exit status: 0 when every result is right (on NULL: when everything compiled), 1 when one is not, else that of the error that opening the
device raised.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compute import Tensor, Variable, capture, random, runtime
from compute.errors import UsageError
from hw import target
from hw.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, TghwError

DEFAULT_DEVICE = "MOCKPCI+AMD"

Pairs = Iterator[tuple[Tensor, Any]]
"""Results with what numpy says they should be."""


@dataclass(frozen=True)
class Case:
    """run: yields tensors with the expected arrays; tolerance: largest relative difference (0: equal)."""

    name: str
    run: Callable[[np.random.Generator], Pairs]
    tolerance: float = 0.0


@dataclass
class Outcome:
    name: str
    verdict: str
    """"pass", "compiled", or what went wrong."""
    good: bool
    kernels: int
    wall: float
    device: float | None
    difference: float | None


def _const(rng: np.random.Generator) -> Pairs:
    yield Tensor.full((256,), 2.0) + 1, np.full(256, 3.0, np.float32)


def _copy(rng: np.random.Generator) -> Pairs:
    data = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
    yield Tensor(data), data


def _elu(rng: np.random.Generator) -> Pairs:
    x = _normal(rng, 1024)
    yield Tensor(x).elu(), np.where(x > 0, x, np.exp(x.astype(np.float64)) - 1)


def _plus(rng: np.random.Generator) -> Pairs:
    a, b = _normal(rng, 256), _normal(rng, 256)
    yield Tensor(a) + Tensor(b), a + b


def _plus_int(rng: np.random.Generator) -> Pairs:
    a, b = (rng.integers(-(2**31), 2**31, 256, dtype=np.int32) for _ in range(2))
    yield Tensor(a) + Tensor(b), a + b


def _plus_big(rng: np.random.Generator) -> Pairs:
    a, b = _normal(rng, 1 << 20), _normal(rng, 1 << 20)
    yield Tensor(a) + Tensor(b), a + b


def _cat(rng: np.random.Generator) -> Pairs:
    a, b = _normal(rng, 16, 32), _normal(rng, 8, 32)
    yield Tensor(a).cat(Tensor(b)), np.concatenate([a, b])


def _sum(rng: np.random.Generator) -> Pairs:
    x = _normal(rng, 256)
    yield Tensor(x).sum(), x.astype(np.float64).sum()


def _eye(rng: np.random.Generator) -> Pairs:
    yield Tensor.eye(32), np.eye(32)


def _gemm(rng: np.random.Generator) -> Pairs:
    a, b = _normal(rng, 64, 64), _normal(rng, 64, 64)
    yield Tensor(a) @ Tensor(b), a.astype(np.float64) @ b.astype(np.float64)


def _hgemm(rng: np.random.Generator) -> Pairs:
    a, b = _normal(rng, 64, 64).astype(np.float16), _normal(rng, 64, 64).astype(np.float16)
    yield Tensor(a) @ Tensor(b), a.astype(np.float64) @ b.astype(np.float64)


def _gemv(rng: np.random.Generator) -> Pairs:
    a, x = _normal(rng, 64, 64), _normal(rng, 64)
    yield Tensor(a) @ Tensor(x), a.astype(np.float64) @ x.astype(np.float64)


def _random(rng: np.random.Generator) -> Pairs:
    Tensor.manual_seed(1234)
    yield Tensor.rand(1024), random.reference(1024, 1234, 0)


def _symbolic(rng: np.random.Generator) -> Pairs:
    n = Variable("n", 1, 64)
    x = _normal(rng, 64, 16)
    whole = Tensor(x)
    for value in (1, 17, 64):
        yield whole[: n.bind(value)].sum(0), x[:value].astype(np.float64).sum(0)


def _graph(rng: np.random.Generator) -> Pairs:
    @capture
    def step(a: Tensor, b: Tensor) -> Tensor:
        return ((a + b).sum(1) * 2).relu()

    for _ in range(3):
        a, b = _normal(rng, 64, 32), _normal(rng, 64, 32)
        yield step(Tensor(a), Tensor(b)), np.maximum((a.astype(np.float64) + b).sum(1) * 2, 0)


def _mlp(rng: np.random.Generator) -> Pairs:
    x, w1, b1, w2, b2 = (_normal(rng, *shape) for shape in ((16, 64), (64, 32), (32,), (32, 8), (8,)))
    hidden = (Tensor(x) @ Tensor(w1) + Tensor(b1)).relu()
    expected = np.maximum(x.astype(np.float64) @ w1 + b1, 0) @ w2 + b2
    expected = np.exp(expected - expected.max(1, keepdims=True))
    yield (hidden @ Tensor(w2) + Tensor(b2)).softmax(), expected / expected.sum(1, keepdims=True)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape, dtype=np.float32)


CASES = (
    Case("const", _const),
    Case("copy", _copy),
    Case("elu", _elu, 1e-6),
    Case("plus", _plus),
    Case("plus_int", _plus_int),
    Case("plus_big", _plus_big),
    Case("cat", _cat),
    Case("sum 256", _sum, 1e-5),
    Case("eye", _eye),
    Case("gemm 64", _gemm, 1e-5),
    Case("hgemm 64", _hgemm, 1e-3),
    Case("gemv 64", _gemv, 1e-5),
    Case("random", _random),
    Case("symbolic size", _symbolic, 1e-5),
    Case("replayed graph", _graph, 1e-5),
    Case("MLP forward", _mlp, 1e-4),
)


def run_case(case: Case, device: runtime.Device) -> Outcome:
    """One case on the device of DEV, timed and judged. Never raises what the device or the compiler raises."""
    launched, compiled = device.launched, device.compiled
    worst: float | None = None
    start = time.perf_counter()
    verdict, good = ("pass", True) if device.runs else ("compiled", True)
    seconds = None
    try:
        with device.timed() as timing:
            for result, expected in case.run(np.random.default_rng(7)):
                result.realize()
                if device.runs:
                    difference = relative_difference(result.numpy(), np.asarray(expected))
                    worst = max(worst or 0.0, difference)
                    if not difference <= case.tolerance:
                        verdict, good = "wrong result", False
        seconds = timing.seconds
        if case.name == "symbolic size" and device.compiled - compiled > 1:
            verdict, good = "compiled more than once", False
    except TghwError as error:
        verdict, good = error.explain(), False
    return Outcome(case.name, verdict, good, device.launched - launched, time.perf_counter() - start, seconds, worst)


def relative_difference(result: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Largest difference in units of the largest expected number; infinite for another shape or a NaN."""
    if result.shape != expected.shape:
        return float("inf")
    if not np.issubdtype(result.dtype, np.floating):
        return 0.0 if np.array_equal(result, expected) else float("inf")
    scale = float(np.abs(expected).max()) or 1.0
    difference = float(np.abs(result.astype(np.float64) - expected).max()) / scale
    return difference if difference == difference else float("inf")


def _show(outcome: Outcome) -> str:
    device = "" if outcome.device is None else f"{outcome.device * 1e6:.1f} us"
    difference = "" if outcome.difference is None else "exact" if outcome.difference == 0 else f"{outcome.difference:.1e}"
    head, *rest = outcome.verdict.splitlines()
    line = f"{outcome.name:<16}{outcome.kernels:>8}{outcome.wall * 1e3:>11.1f} ms{device:>14}{difference:>12}  {head}"
    return "\n".join([line, *(f"    {text}" for text in rest)])


def main(arguments: Sequence[str] = ()) -> int:
    """Runs the list; arguments select cases by name. Returns the exit status."""
    try:
        os.environ[target.VARIABLE] = str(target.from_env(DEFAULT_DEVICE))
        chosen = [c for c in CASES if not arguments or c.name in arguments]
        if len(chosen) < len(arguments):
            raise UsageError(f"no case of that name among {', '.join(arguments)}", remedy=f"the cases are: {', '.join(c.name for c in CASES)}")
        start = time.perf_counter()
        device = runtime.device(runtime.default_name())
    except TghwError as error:
        print(error.explain(), file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(f"{device.name}: open after {time.perf_counter() - start:.2f} s")
    print(f"{'case':<16}{'kernels':>8}{'wall':>14}{'device':>14}{'difference':>12}  result")
    outcomes = []
    try:
        for case in chosen:
            outcomes.append(run_case(case, device))
            print(_show(outcomes[-1]), flush=True)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        runtime.close_all()
    good = sum(o.good for o in outcomes)
    if device.runs:
        print(f"{good} of {len(outcomes)} right, {device.compiled} kernels compiled, {time.process_time():.1f} s of CPU time")
    else:
        print(f"{good} of {len(outcomes)} compiled, {device.compiled} kernels; this device runs nothing, so no result was checked")
    return EXIT_DONE if good == len(outcomes) else EXIT_FAILED


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(main(sys.argv[1:]))

