"""What the tests of compute share: devices that run here, numbers at the edges of each type, and comparison by units of the last place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from compute import Tensor, dtypes, runtime
from compute.dtypes import DType

RUNNING = ("CPU", "PYTHON")
"""The machine-code device and the interpreter."""
GPU = "MOCKPCI+AMD"
EVERYWHERE = (*RUNNING, pytest.param(GPU, marks=pytest.mark.slow))
"""And the simulated GPU, which computes the same lists in the long run of the tests."""

Array = Any


def edges(dtype: DType) -> Array:
    """Numbers at which implementations differ, as numpy shows the dtype."""
    if dtype is dtypes.bool_:
        return np.array([False, True])
    if dtype.is_int:
        low, high = int(dtype.min), int(dtype.max)
        picks = {low, low + 1, low // 2, -7, -2, -1, 0, 1, 2, 3, 7, 8, 15, 31, 33, 63, 64, 100, high // 2, high - 1, high}
        return np.array(sorted(v for v in picks if low <= v <= high), dtype.numpy)
    if dtype is dtypes.bfloat16:
        return Tensor(edges(dtypes.float32), dtype="bfloat16", device="PYTHON").numpy()
    info = np.finfo(dtype.numpy)
    picks = [0.0, 1.0, 1.5, 2.0, 0.5, 2.5, 3.0, 0.1, 7.3, 100.0, info.max, info.tiny, info.smallest_subnormal, info.smallest_subnormal * 3, info.eps, np.inf]
    return np.array([*picks, *(-p for p in picks), np.nan], dtype.numpy)


def pairs(a: Array, b: Array) -> tuple[Array, Array]:
    """Every element of one with every element of the other."""
    x, y = np.meshgrid(a, b, indexing="ij")
    return x.ravel(), y.ravel()


def assert_same(got: Array, expected: Array, what: str = "") -> None:
    """Equal in shape, type and value; NaN equals NaN, and zeros may differ in sign."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape, f"{what}: shape {got.shape} instead of {expected.shape}"
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype} instead of {expected.dtype}"
    same = (got == expected) | ((got != got) & (expected != expected))
    assert same.all(), f"{what}: {got[~same][:5]} instead of {expected[~same][:5]} at {np.argwhere(~same)[:5].tolist()}"


def ulps(got: Array, exact: Array) -> float:
    """Largest distance from the exact values (of a wider type) in units of the last place of got's type; infinite where specials differ."""
    kind = got.dtype.type
    with np.errstate(all="ignore"):
        rounded = exact.astype(kind)
        special = ~np.isfinite(rounded) | ~np.isfinite(got)
        if not ((got == rounded) | ((got != got) & (rounded != rounded)) | ~special).all():
            return float("inf")
        spacing = np.spacing(np.abs(rounded[~special])).astype(exact.dtype)
        return float((np.abs(got[~special].astype(exact.dtype) - exact[~special]) / spacing).max(initial=0))


@dataclass
class Counts:
    """launched: kernels started inside the context; compiled: kernels compiled."""

    launched: int = 0
    compiled: int = 0


@contextmanager
def counted(device: str) -> Iterator[Counts]:
    """Counts the kernels of a device."""
    d = runtime.device(device)
    launched, compiled = d.launched, d.compiled
    counts = Counts()
    yield counts
    counts.launched, counts.compiled = d.launched - launched, d.compiled - compiled
