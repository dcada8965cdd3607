"""Movement ops against numpy: each alone, and random chains of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import EVERYWHERE, RUNNING, assert_same, counted
from hypothesis import given, settings
from hypothesis import strategies as st

from compute import Tensor
from compute.errors import NotSupported, ShapeError

X = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_each_movement_op_is_numpys(device: str) -> None:
    t = Tensor(X, device=device)
    cases: list[tuple[Tensor, Any]] = [
        (t.reshape(6, 4), X.reshape(6, 4)),
        (t.reshape(-1), X.reshape(-1)),
        (t.reshape((4, -1)), X.reshape(4, -1)),
        (t.flatten(), X.ravel()),
        (t.permute(2, 0, 1), X.transpose(2, 0, 1)),
        (t.permute((-1, 0, 1)), X.transpose(-1, 0, 1)),
        (t.transpose(), X.swapaxes(-2, -1)),
        (t.transpose(0, 2), X.swapaxes(0, 2)),
        (t.T, X.T),
        (t.unsqueeze(1), X[:, None]),
        (t.unsqueeze(-1), X[..., None]),
        (t.unsqueeze(0).unsqueeze(2).squeeze(), X),
        (t.unsqueeze(0).squeeze(0), X),
        (t[:, :1].expand(2, 5, 4), np.broadcast_to(X[:, :1], (2, 5, 4))),
        (t.expand(3, -1, -1, -1), np.broadcast_to(X, (3, 2, 3, 4))),
        (t.pad(((1, 0), (0, 2), (1, 1))), np.pad(X, ((1, 0), (0, 2), (1, 1)))),
        (t.pad(((0, 0), (0, 0), (2, 3)), value=-7), np.pad(X, ((0, 0), (0, 0), (2, 3)), constant_values=-7)),
        (t.shrink(((0, 1), None, (1, 3))), X[0:1, :, 1:3]),
        (t.flip(), X[::-1, ::-1, ::-1]),
        (t.flip(1), X[:, ::-1]),
        (t.flip((0, -1)), X[::-1, :, ::-1]),
        (t.cat(t * 2, t[:, :, :1].expand(2, 3, 4), axis=1), np.concatenate([X, X * 2, np.broadcast_to(X[:, :, :1], (2, 3, 4))], 1)),
        (t.cat(t[:, :, :2], axis=-1), np.concatenate([X, X[:, :, :2]], -1)),
        (t.cat(t[:0], t), np.concatenate([X, X])),
        (t.stack(t + 1, axis=1), np.stack([X, X + 1], 1)),
        (t.stack(t + 1, axis=-1), np.stack([X, X + 1], -1)),
    ]
    for position, (got, expected) in enumerate(cases):
        assert_same(got.numpy(), np.ascontiguousarray(expected), f"case {position}")


@pytest.mark.parametrize("key", [
    0, -1, (1, 2), (1, -1, 0), (slice(None), 1), slice(1, None), (..., slice(1, 3)), (slice(None, None, -1), slice(None, None, 2)), (0, ..., slice(3, 0, -2)),
    (None, 0), (..., None), (slice(5, 9), ...), (slice(None), slice(None, None, -2), slice(-3, -1)), (slice(0, 0), 1), (slice(None), slice(None), slice(0, None, 3)),
])  # fmt: skip
def test_indexing_is_numpys(key: Any) -> None:
    for device in RUNNING:
        assert_same(Tensor(X, device=device)[key].numpy(), np.ascontiguousarray(X[key]) if X[key].ndim else np.asarray(X[key]), str(key))


def test_movement_alone_makes_no_kernel_before_data_is_asked_for_and_one_then() -> None:
    t = Tensor(X, device="PYTHON").realize()
    with counted("PYTHON") as counts:
        moved = t.permute(2, 1, 0).flip(0).reshape(12, 2).pad(((1, 1), (0, 0)))[::3].expand(3, 5, 2)
    assert counts.launched == 0
    with counted("PYTHON") as counts:
        moved.numpy()
    assert counts.launched == 1


@pytest.mark.parametrize(("misuse", "named"), [
    (lambda t: t.reshape(5, 5), ("(2, 3, 4)", "(5, 5)")),
    (lambda t: t.reshape(-1, -1), ("-1",)),
    (lambda t: t.reshape(-1, 7), ("(2, 3, 4)", "7")),
    (lambda t: t.reshape(-2, -12), ("-2",)),
    (lambda t: t.permute(0, 1), ("(0, 1)",)),
    (lambda t: t.permute(0, 1, 1), ("(0, 1, 1)",)),
    (lambda t: t.expand(2, 6, 4), ("(2, 3, 4)", "(2, 6, 4)")),
    (lambda t: t.expand(4), ("(2, 3, 4)", "(4,)")),
    (lambda t: t.pad(((1, 1),)), ("(2, 3, 4)",)),
    (lambda t: t.pad(((0, 0), (0, 0), (-1, 0))), ("-1",)),
    (lambda t: t.shrink(((0, 3), None, None)), ("(2, 3, 4)", "0..3")),
    (lambda t: t.shrink((None,)), ("(2, 3, 4)",)),
    (lambda t: t.flip(3), ("no axis 3",)),
    (lambda t: t.squeeze(0), ("(2, 3, 4)",)),
    (lambda t: t.cat(t[:, :2], axis=0), ("(2, 3, 4)", "(2, 2, 4)")),
    (lambda t: t.cat(t[0]), ("(2, 3, 4)", "(3, 4)")),
    (lambda t: t.stack(t[:1]), ("(2, 3, 4)", "(1, 3, 4)")),
    (lambda t: t[2], ("index 2", "(2, 3, 4)")),
    (lambda t: t[0, 0, 0, 0], ("4 indices", "(2, 3, 4)")),
    (lambda t: t[..., ...], ("(2, 3, 4)",)),
    (lambda t: len(t.sum()), ("scalar",)),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused_and_named(misuse: Callable[[Tensor], Any], named: tuple[str, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        misuse(Tensor(X, device="PYTHON"))
    for text in named:
        assert text in str(caught.value)
    assert caught.value.means and caught.value.remedy


def test_indexing_by_a_tensor_is_refused_with_a_reason() -> None:
    t = Tensor(X, device="PYTHON")
    with pytest.raises(NotSupported, match="indexing by"):
        t[t[0]]


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    """A starting shape and movement ops that fit, as data."""
    start = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    array = np.zeros(start)
    steps: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        op = draw(st.sampled_from(["reshape", "permute", "flip", "pad", "slice", "expand", "double"]))
        rank = array.ndim
        arg: Any = None
        if op == "reshape":
            size = array.size
            factors = [f for f in (1, 2, 3, 4, 6) if f and size % f == 0]
            first = draw(st.sampled_from(factors))
            second = draw(st.sampled_from([f for f in factors if (size // first) % f == 0]))
            arg = (first, second, size // first // second)
        elif op == "permute":
            arg = tuple(draw(st.permutations(range(rank))))
        elif op == "flip":
            arg = draw(st.integers(0, rank - 1)) if rank else None
        elif op == "pad":
            arg = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank))
        elif op == "slice":
            arg = tuple(slice(draw(st.integers(0, d - 1)), None, draw(st.sampled_from([1, 2, 3, -1, -2]))) for d in array.shape)
        elif op == "expand":
            arg = (draw(st.integers(1, 3)), *array.shape)
        moved = _apply_numpy(array, op, arg)
        if moved.size == 0 or moved.size > 4000:
            continue
        array = moved
        steps.append((op, arg))
    return start, steps


def _apply_numpy(a: np.ndarray, op: str, arg: Any) -> np.ndarray:
    if op == "reshape":
        return a.reshape(arg)
    if op == "permute":
        return a.transpose(arg)
    if op == "flip":
        return np.flip(a, arg) if arg is not None else a
    if op == "pad":
        return np.pad(a, arg) if a.ndim else a
    if op == "slice":
        return a[arg]
    if op == "expand":
        return np.broadcast_to(a, arg)
    return a + a


def _apply_tensor(t: Tensor, op: str, arg: Any) -> Tensor:
    if op == "slice":
        return t[arg]
    if op == "double":
        return t + t
    if op == "flip" and arg is None:
        return t
    return getattr(t, op)(arg)


@settings(max_examples=150, deadline=None)
@given(chains())
def test_random_chains_of_movement_ops_are_numpys(chain: tuple[tuple[int, ...], list[tuple[str, Any]]]) -> None:
    start, steps = chain
    array = np.arange(1, 1 + int(np.prod(start)), dtype=np.int32).reshape(start)
    tensor = Tensor(array, device="PYTHON")
    for op, arg in steps:
        array, tensor = _apply_numpy(array, op, arg), _apply_tensor(tensor, op, arg)
    assert_same(tensor.numpy(), np.ascontiguousarray(array), str(steps))


@settings(max_examples=40, deadline=None)
@given(chains(), st.data())
def test_random_chains_that_end_in_a_sum_are_numpys_in_machine_code(chain: tuple[tuple[int, ...], list[tuple[str, Any]]], data: st.DataObject) -> None:
    start, steps = chain
    array = np.arange(1, 1 + int(np.prod(start)), dtype=np.int32).reshape(start)
    tensor = Tensor(array, device="CPU")
    for op, arg in steps:
        array, tensor = _apply_numpy(array, op, arg), _apply_tensor(tensor, op, arg)
    axis = data.draw(st.integers(0, array.ndim - 1)) if array.ndim else None
    with counted("CPU") as counts:
        got = (tensor.sum(axis) + 1).numpy()
    assert counts.launched == 1
    assert_same(got, np.asarray(array.sum(axis, dtype=np.int32) + np.int32(1)), str(steps))
