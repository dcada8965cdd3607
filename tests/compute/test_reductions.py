"""Reductions and matrix products against numpy, exact for integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import EVERYWHERE, RUNNING, assert_same, edges
from hypothesis import given, settings
from hypothesis import strategies as st

from compute import Tensor, dtypes
from compute.errors import ShapeError

SHAPES = [
    ((7,), 0), ((5, 6), None), ((5, 6), 0), ((5, 6), 1), ((3, 4, 5), (0, 2)), ((3, 4, 5), 1), ((256,), 0), ((1000,), 0), ((3, 130), 1), ((130, 3), 0),
    ((2, 5000), 1), ((1, 1), 0), ((), None),
]  # fmt: skip


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_sum_prod_max_min_of_integers_are_exact(shape: tuple[int, ...], axis: Any, device: str) -> None:
    x = np.asarray(np.random.default_rng(1).integers(-(2**31), 2**31, shape, dtype=np.int32))
    t = Tensor(x, device=device)
    assert_same(t.sum(axis).numpy(), np.asarray(x.sum(axis, dtype=np.int32)))
    assert_same(t.sum(axis, keepdim=True).numpy(), np.asarray(x.sum(axis, dtype=np.int32, keepdims=True)))
    assert_same((t | 1).prod(axis).numpy(), np.asarray((x | 1).prod(axis, dtype=np.int32)))
    assert_same(t.max(axis).numpy(), np.asarray(x.max(axis)))
    assert_same(t.min(axis).numpy(), np.asarray(x.min(axis)))


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_sums_of_floats_are_close_to_those_of_float64(shape: tuple[int, ...], axis: Any, device: str) -> None:
    x = np.asarray(np.random.default_rng(2).standard_normal(shape, dtype=np.float32))
    t = Tensor(x, device=device)
    wide = x.astype(np.float64)
    size = np.abs(wide).sum(axis)
    assert (np.abs(t.sum(axis).numpy() - wide.sum(axis)) <= 1e-6 * size).all()
    assert np.allclose(t.mean(axis).numpy(), wide.mean(axis), rtol=1e-5, atol=1e-6)
    assert np.allclose(t.var(axis).numpy(), wide.var(axis), rtol=1e-4, atol=1e-7)
    assert np.allclose(t.std(axis).numpy(), wide.std(axis), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_result_types_of_sums(device: str) -> None:
    widened = {"bool": "int32", "int8": "int32", "int16": "int32", "uint8": "uint32", "uint16": "uint32"}
    for dtype in dtypes.ALL:
        t = Tensor.ones(300, dtype=dtype, device=device)
        total = t.sum()
        assert total.dtype.name == widened.get(dtype.name, dtype.name)
        assert total.item() == (300 if dtype is not dtypes.bfloat16 else 300.0)
        assert t.max().dtype is dtype
    assert Tensor.ones(3, dtype="int8", device=device).sum(dtype="float64").dtype is dtypes.float64
    assert Tensor.ones(3, dtype="int8", device=device).mean().dtype is dtypes.float32


@pytest.mark.parametrize("device", EVERYWHERE)
def test_half_floats_are_summed_in_float32(device: str) -> None:
    x = np.full(4096, 1.0, np.float16)
    assert Tensor(x, device=device).sum().item() == 4096.0
    assert Tensor(np.full(3000, 0.1, np.float16), device=device).mean().item() == np.float16(0.1)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_extremes_of_every_dtype(device: str) -> None:
    for dtype in dtypes.ALL:
        x = edges(dtype)
        with np.errstate(all="ignore"):
            assert_same(Tensor(x, dtype=dtype, device=device).max().numpy(), np.asarray(x.max()), str(dtype))
            finite = x[x == x]
            assert_same(Tensor(finite, dtype=dtype, device=device).max().numpy(), np.asarray(finite.max()), str(dtype))
            assert_same(Tensor(finite, dtype=dtype, device=device).min().numpy(), np.asarray(finite.min()), str(dtype))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_positions_of_extremes_are_the_first_ones(device: str) -> None:
    x = np.array([[3, 9, 9, 1], [0, 0, 0, 0], [-5, -7, 2, -7]], np.int32)
    t = Tensor(x, device=device)
    for axis in (0, 1, None):
        assert_same(t.argmax(axis).numpy(), np.asarray(x.argmax(axis), np.int32))
        assert_same(t.argmin(axis).numpy(), np.asarray(x.argmin(axis), np.int32))
    assert_same(t.argmax(1, keepdim=True).numpy(), x.argmax(1, keepdims=True).astype(np.int32))
    y = np.array([1.0, np.nan, 5.0, np.nan, -np.inf], np.float32)
    assert Tensor(y, device=device).argmax().item() == int(y.argmax()) == 1
    assert Tensor(y, device=device).argmin().item() == int(y.argmin()) == 1
    assert Tensor(np.full(4, -np.inf, np.float32), device=device).argmax().item() == 0
    assert Tensor(np.array([2**63 - 1, -(2**63)], np.int64), device=device).argmin().item() == 1


@pytest.mark.parametrize("device", EVERYWHERE)
def test_any_and_all(device: str) -> None:
    x = np.array([[0, 1, 2], [0, 0, 0], [3, 4, 5]], np.float32)
    t = Tensor(x, device=device)
    for axis in (0, 1, None):
        assert_same(t.any(axis).numpy(), np.asarray(x.any(axis)))
        assert_same(t.all(axis).numpy(), np.asarray(x.all(axis)))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_softmax(device: str) -> None:
    x = np.random.default_rng(3).standard_normal((5, 33), dtype=np.float32) * 50
    x[0, 0] = 3e38
    wide = x.astype(np.float64)
    for axis in (0, 1):
        spread = np.exp(wide - wide.max(axis, keepdims=True))
        expected = spread / spread.sum(axis, keepdims=True)
        assert np.allclose(Tensor(x, device=device).softmax(axis).numpy(), expected, rtol=2e-5, atol=1e-12)
    y = Tensor(x[1:], device=device).log_softmax().numpy()
    assert np.allclose(y, wide[1:] - wide[1:].max(1, keepdims=True) - np.log(np.exp(wide[1:] - wide[1:].max(1, keepdims=True)).sum(1, keepdims=True)), rtol=1e-5, atol=1e-5)


def test_nothing_reduces_to_the_neutral_element_and_has_no_extreme() -> None:
    t = Tensor(np.zeros((0, 3), np.float32), device="CPU")
    assert_same(t.sum(0).numpy(), np.zeros(3, np.float32))
    assert_same(t.prod(0).numpy(), np.ones(3, np.float32))
    assert_same(t.sum(1).numpy(), np.zeros(0, np.float32))
    assert t.sum().item() == 0.0
    assert np.isnan(t.mean().item())
    assert t.any().item() is False and t.all().item() is True
    for op in ("max", "min", "argmax", "argmin"):
        with pytest.raises(ShapeError, match=r"\(0, 3\)"):
            getattr(t, op)(0)


def test_axes_are_checked() -> None:
    with pytest.raises(ShapeError, match="no axis 2"):
        Tensor.ones(2, 3).sum(2)
    with pytest.raises(ShapeError, match="named twice"):
        Tensor.ones(2, 3).sum((0, -2))


MATMULS = [((4, 4), (4, 4)), ((64, 64), (64, 64)), ((3, 5), (5, 7)), ((1, 9), (9, 1)), ((6,), (6,)), ((6,), (6, 3)), ((3, 6), (6,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
           ((2, 1, 3, 4), (5, 4, 2)), ((65, 33), (33, 17)), ((128, 100), (100, 36)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,))]  # fmt: skip


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize(("left", "right"), MATMULS, ids=str)
def test_matmul_is_numpys(left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-100, 100, left, dtype=np.int32), rng.integers(-100, 100, right, dtype=np.int32)
    assert_same((Tensor(a, device=device) @ Tensor(b, device=device)).numpy(), np.asarray(a @ b))
    x, y = rng.standard_normal(left, dtype=np.float32), rng.standard_normal(right, dtype=np.float32)
    got, exact = (Tensor(x, device=device) @ Tensor(y, device=device)).numpy(), x.astype(np.float64) @ y
    assert got.shape == np.shape(exact)
    assert np.allclose(got, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_matmul_with_transposed_operands(device: str) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-9, 9, (32, 64), dtype=np.int32), rng.integers(-9, 9, (16, 64), dtype=np.int32)
    assert_same((Tensor(a, device=device) @ Tensor(b, device=device).T).numpy(), a @ b.T)
    assert_same((Tensor(a, device=device).T @ Tensor(a, device=device)).numpy(), a.T @ a)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_matmul_of_half_floats_accumulates_in_float32(device: str) -> None:
    a = np.full((4, 2048), 1.0, np.float16)
    b = np.full((2048, 4), 1.0, np.float16)
    b[:, 1] = 2.0**-12
    got = (Tensor(a, device=device) @ Tensor(b, device=device)).numpy()
    assert got.dtype == np.float16
    assert got[0].tolist() == [2048.0, 0.5, 2048.0, 2048.0]
    assert (Tensor(a, dtype="bfloat16", device=device) @ Tensor(b, dtype="bfloat16", device=device)).tolist()[0] == [2048.0, 0.5, 2048.0, 2048.0]


def test_matmul_of_narrow_integers_wraps_as_numpys() -> None:
    a = np.random.default_rng(6).integers(-128, 127, (5, 50), dtype=np.int8)
    assert_same((Tensor(a, device="CPU") @ Tensor(a, device="CPU").T).numpy(), a @ a.T)


def test_matmul_names_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(4, 5\)") as caught:
        Tensor.ones(2, 3) @ Tensor.ones(4, 5)
    assert "3 and 4" in caught.value.means
    with pytest.raises(ShapeError, match="matmul"):
        Tensor.ones(2, 2, 3) @ Tensor.ones(5, 3, 2)
    with pytest.raises(ShapeError, match="matmul"):
        Tensor(2.0) @ Tensor.ones(2)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_reductions_of_expressions_are_numpys(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    device = data.draw(st.sampled_from(RUNNING))
    op = data.draw(st.sampled_from(["sum", "max", "min", "prod"]))
    x = np.random.default_rng(int(np.prod(shape))).integers(-50, 50, shape, dtype=np.int64)
    t = Tensor(x, device=device)
    y = getattr(np, op)(x * 2 + x[..., ::-1], axis=axes, keepdims=True) - x
    got = getattr(t * 2 + t.flip(-1), op)(axes, keepdim=True) - t
    assert_same(got.numpy(), y)
