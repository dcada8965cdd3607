"""Sizes that are known at launch only: one kernel for every value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import EVERYWHERE, assert_same, counted

from compute import Tensor, Variable, capture
from compute.errors import BindingError, NotSupported, ShapeError

X = np.random.default_rng(0).integers(-99, 99, (64, 48), dtype=np.int32)
N = Variable("n", 1, 64)
VALUES = (1, 5, 33, 64)


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize(("make", "expected"), [
    (lambda t, n: t[:n] * 2 + 1, lambda x, n: x[:n] * 2 + 1),
    (lambda t, n: t[:n].sum(0), lambda x, n: x[:n].sum(0, dtype=np.int32)),
    (lambda t, n: t[:n].sum(1), lambda x, n: x[:n].sum(1, dtype=np.int32)),
    (lambda t, n: t[:n].sum(), lambda x, n: x[:n].sum(dtype=np.int32)),
    (lambda t, n: t[:n].max(0), lambda x, n: x[:n].max(0)),
    (lambda t, n: t[:n].T @ t[:n], lambda x, n: x[:n].T @ x[:n]),
    (lambda t, n: t[:n] @ t[:48], lambda x, n: x[:n] @ x[:48]),
    (lambda t, n: t.T[:, :n].flip(1), lambda x, n: x.T[:, :n][:, ::-1]),
    (lambda t, n: t[:n].pad(((0, 0), (1, 2))), lambda x, n: np.pad(x[:n], ((0, 0), (1, 2)))),
    (lambda t, n: t[:n].reshape(-1, 6, 8).permute(1, 0, 2), lambda x, n: x[:n].reshape(-1, 6, 8).transpose(1, 0, 2)),
    (lambda t, n: t[:n].argmax(0), lambda x, n: x[:n].argmax(0).astype(np.int32)),
    (lambda t, n: t[:1].expand(n, 48) + t[:n], lambda x, n: x[:1] + x[:n]),
])  # fmt: skip
def test_one_kernel_serves_every_value(make: Callable[..., Tensor], expected: Callable[..., np.ndarray], device: str) -> None:
    t = Tensor(X, device=device).realize()
    make(t, N.bind(VALUES[0])).realize()
    with counted(device) as counts:
        for value in VALUES:
            result = make(t, N.bind(value))
            assert_same(result.numpy(), np.asarray(expected(X, value)), f"n = {value}")
    assert counts.compiled == 0
    assert counts.launched >= len(VALUES)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_mean_divides_by_the_value(device: str) -> None:
    x = X.astype(np.float32)
    t = Tensor(x, device=device)
    for value in VALUES:
        part = t[: N.bind(value)]
        assert np.allclose(part.mean(0).numpy(), x[:value].mean(0, dtype=np.float64), rtol=1e-5, atol=1e-4)
        assert np.allclose(part.mean().numpy(), x[:value].mean(dtype=np.float64), rtol=1e-5, atol=1e-4)
        assert np.allclose(part.softmax(0).sum(0).numpy(), 1, rtol=1e-5)


def test_a_realized_symbolic_tensor_can_be_used_further() -> None:
    t = Tensor(X, device="PYTHON")
    part = (t[: N.bind(20)] + 1).realize()
    assert part.concrete_shape == (20, 48) and part.size == 960 and len(part) == 20
    assert_same((part * 2).sum(0).numpy(), ((X[:20] + 1) * 2).sum(0, dtype=np.int32))


def test_values_for_one_size_are_not_taken_for_another() -> None:
    t = Tensor(X.astype(np.float32), device="PYTHON").realize()
    kept = []
    for value in (5, 9, 64):
        part = t[: N.bind(value)]
        top = part.max(0)
        kept += [part, top]
        assert_same((part - top).numpy(), (X[:value] - X[:value].max(0)).astype(np.float32))
        assert_same(top.numpy(), X[:value].max(0).astype(np.float32))


def test_two_variables_at_once() -> None:
    m = Variable("m", 1, 48)
    t = Tensor(X, device="PYTHON").realize()
    for a, b in ((1, 1), (7, 48), (64, 13)):
        part = t[: N.bind(a), : m.bind(b)]
        assert_same((part + 1).numpy(), X[:a, :b] + 1)
        assert_same(part.sum().numpy(), np.asarray(X[:a, :b].sum(dtype=np.int32)))
        assert_same((part.T @ part).numpy(), X[:a, :b].T @ X[:a, :b])


@pytest.mark.parametrize("device", EVERYWHERE)
def test_a_size_may_be_zero(device: str) -> None:
    n = Variable("n", 0, 64)
    t = Tensor(X, device=device).realize()
    step = capture(lambda part: [part * 2, part.sum(0)])
    for value in (3, 0, 64, 0):
        part = t[: n.bind(value)]
        assert_same((part + 1).numpy(), X[:value] + 1)
        assert_same(part.sum().numpy(), np.asarray(X[:value].sum(dtype=np.int32)))
        doubled, total = step(part)
        assert_same(doubled.numpy(), X[:value] * 2)
        assert_same(total.numpy(), X[:value].sum(0, dtype=np.int32))


def test_misuse_of_variables_is_refused_with_a_reason() -> None:
    with pytest.raises(BindingError, match="cannot be 65"):
        N.bind(65)
    with pytest.raises(BindingError, match="lo <= hi"):
        Variable("x", 5, 2)
    with pytest.raises(BindingError, match="identifier"):
        Variable("no name", 1, 2)
    t = Tensor(X, device="PYTHON")
    with pytest.raises(BindingError, match="two values"):
        t[: N.bind(3)] + t[: N.bind(4)]
    with pytest.raises(BindingError, match="no value"):
        t[:N].sum().realize()
    with pytest.raises(ShapeError, match="n"):
        t[: N.bind(3)] + t[:5]
    with pytest.raises(ShapeError, match=r"to 0\.\.n"):
        t[:, : N.bind(3)]
    with pytest.raises(ShapeError):
        t[: N.bind(3)].reshape(-1)
    with pytest.raises(ShapeError):
        t[: N.bind(3)][0]
    with pytest.raises(NotSupported, match="symbolic"):
        t[: N.bind(3)].pad(((1, 0), (0, 0)))
    with pytest.raises(NotSupported, match="symbolic"):
        t[: N.bind(3)].cat(t)
