"""Random programs of tensor ops against numpy: exact on integers, whatever is fused, stored, or computed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers import GPU, assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compute import Tensor

SHAPES = ((4, 6), (1, 6), (4, 1), (3, 4, 6), (6,))


@dataclass
class Both:
    """One value, as a tensor and as numpy has it."""

    tensor: Tensor
    array: np.ndarray


def _leaf(draw: st.DrawFn, device: str, shape: tuple[int, ...]) -> Both:
    kind = draw(st.sampled_from(["data", "data", "full", "arange"]))
    size = int(np.prod(shape))
    if kind == "full":
        value = draw(st.integers(-9, 9))
        return Both(Tensor.full(shape, value, dtype="int32", device=device), np.full(shape, value, np.int32))
    if kind == "arange":
        return Both(Tensor.arange(size, device=device).reshape(shape), np.arange(size, dtype=np.int32).reshape(shape))
    array = np.random.default_rng(draw(st.integers(0, 99))).integers(-(2**31), 2**31, shape, dtype=np.int32)
    return Both(Tensor(array, device=device), array)


BINARY: dict[str, Any] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "//": lambda x, y: x // y, "%": lambda x, y: x % y, "&": lambda x, y: x & y,
    "|": lambda x, y: x | y, "^": lambda x, y: x ^ y, "<<": lambda x, y: x << (y & 31), ">>": lambda x, y: x >> (y & 31),
}  # fmt: skip


def _step(draw: st.DrawFn, pool: list[Both]) -> Both | None:
    """One more value from those in the pool; None when the draw does not fit."""
    a = draw(st.sampled_from(pool))
    rank = a.array.ndim
    op = draw(st.sampled_from([*BINARY, "max", "min", "where", "neg", "sum", "top", "permute", "flip", "reshape", "pad", "slice", "cat", "realize", "matmul"]))
    if op in BINARY or op in ("max", "min", "where", "cat", "matmul"):
        b = draw(st.sampled_from(pool))
        if op == "matmul":
            if rank != 2 or b.array.ndim != 2 or a.array.shape[1] != b.array.shape[1]:
                return None
            return Both(a.tensor @ b.tensor.T, a.array @ b.array.T)
        if op == "cat":
            return Both(a.tensor.cat(b.tensor), np.concatenate([a.array, b.array])) if rank and a.array.shape[1:] == b.array.shape[1:] and rank == b.array.ndim else None
        try:
            np.broadcast_shapes(a.array.shape, b.array.shape)
        except ValueError:
            return None
        if op == "where":
            return Both((a.tensor > b.tensor).where(a.tensor, b.tensor - 1), np.where(a.array > b.array, a.array, b.array - np.int32(1)))
        if op in ("max", "min"):
            return Both(getattr(a.tensor, f"{op}imum")(b.tensor), getattr(np, f"{op}imum")(a.array, b.array))
        return Both(BINARY[op](a.tensor, b.tensor), BINARY[op](a.array, b.array).astype(np.int32))
    if op == "neg":
        return Both(-a.tensor, -a.array)
    if op == "realize":
        return Both(a.tensor.realize(), a.array)
    if not rank:
        return None
    axis = draw(st.integers(0, rank - 1))
    if op == "sum":
        return Both(a.tensor.sum(axis, keepdim=True), a.array.sum(axis, keepdims=True, dtype=np.int32))
    if op == "top":
        return Both(a.tensor.max(axis, keepdim=True), a.array.max(axis, keepdims=True))
    if op == "permute":
        order = draw(st.permutations(range(rank)))
        return Both(a.tensor.permute(*order), a.array.transpose(order))
    if op == "flip":
        return Both(a.tensor.flip(axis), np.flip(a.array, axis))
    if op == "reshape":
        return Both(a.tensor.reshape(-1, 2), a.array.reshape(-1, 2)) if a.array.size % 2 == 0 else None
    if op == "pad":
        padding = [(0, 0)] * rank
        padding[axis] = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        return Both(a.tensor.pad(padding, value=5), np.pad(a.array, padding, constant_values=5))
    step = draw(st.sampled_from([1, 2, -1, -3]))
    key = tuple(slice(None, None, step) if i == axis else slice(None) for i in range(rank))
    return Both(a.tensor[key], a.array[key])


@st.composite
def programs(draw: st.DrawFn, device: str) -> list[Both]:
    pool = [_leaf(draw, device, draw(st.sampled_from(SHAPES))) for _ in range(draw(st.integers(1, 3)))]
    with np.errstate(all="ignore"):
        for _ in range(draw(st.integers(2, 9))):
            made = _step(draw, pool)
            if made is not None and 0 < made.array.size <= 3000:
                pool.append(made)
    return pool


def _check(pool: list[Both]) -> None:
    pool[-1].tensor.realize(*(b.tensor for b in pool[-3:-1]))
    for both in reversed(pool):
        assert_same(both.tensor.numpy(), np.ascontiguousarray(both.array).reshape(both.array.shape))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs("PYTHON"))
def test_random_programs_are_numpys_interpreted(pool: list[Both]) -> None:
    _check(pool)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs("CPU"))
def test_random_programs_are_numpys_in_machine_code(pool: list[Both]) -> None:
    _check(pool)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(GPU))
def test_random_programs_are_numpys_on_the_simulated_gpu(pool: list[Both]) -> None:
    _check(pool)
