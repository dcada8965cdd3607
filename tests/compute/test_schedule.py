"""How many kernels a computation takes, and that views are free: launches are counted on the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import assert_same, counted

from compute import Tensor

DEVICE = "PYTHON"
RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((16, 16), dtype=np.float32), RNG.standard_normal((16, 16), dtype=np.float32)


def kernels(make: Callable[[Tensor, Tensor], Tensor]) -> int:
    """Launches that the expression of two realized 16 x 16 tensors takes."""
    a, b = Tensor(A, device=DEVICE).realize(), Tensor(B, device=DEVICE).realize()
    with counted(DEVICE) as counts:
        make(a, b).realize()
    return counts.launched


@pytest.mark.parametrize(("count", "make"), [
    (1, lambda a, b: a + b),
    (1, lambda a, b: ((a * 2 + b).exp() - a).tanh().where(a, b)),
    (1, lambda a, b: (a.T + b.flip(0)).pad(((1, 1), (2, 2))).reshape(20, 18)[::2]),
    (1, lambda a, b: a.cat(b, a + b, axis=1) * 2),
    (1, lambda a, b: (a * b).sum()),
    (1, lambda a, b: (a * b + 1).relu().sum(0) * 2 + 1),
    (1, lambda a, b: a @ b),
    (1, lambda a, b: (a @ b + b[0]).relu()),
    (1, lambda a, b: (a @ b).gelu()),
    (1, lambda a, b: (a @ b).T.reshape(4, 64)),
    (1, lambda a, b: (a @ b)[2:5]),
    (2, lambda a, b: (a @ b) @ b),
    (2, lambda a, b: (a @ b).relu() @ b),
    (2, lambda a, b: a.sum(0).sum(0)),
    (2, lambda a, b: a.sum(0) + b.sum(1)),
    (2, lambda a, b: a - a.mean(0)),
    (2, lambda a, b: a.var(0)),
    (3, lambda a, b: a.softmax()),
    (2, lambda a, b: a.argmax(0)),
    (2, lambda a, b: (a @ b).pad(((1, 1), (0, 0)))),
    (3, lambda a, b: a.sum(1).stack(b.sum(1))),
    (2, lambda a, b: a.sin() @ b),
    (1, lambda a, b: (a * 2 + 1) @ b),
    (1, lambda a, b: Tensor.eye(16, device=DEVICE) + a),
])  # fmt: skip
def test_kernels_of(count: int, make: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert kernels(make) == count


def test_a_value_that_two_results_need_is_reduced_once() -> None:
    a = Tensor(A, device=DEVICE).realize()
    total = a.sum(0)
    with counted(DEVICE) as counts:
        x, y = total * 2, total + 1
        x.realize(y)
    assert counts.launched == 3
    assert np.allclose(x.numpy(), A.sum(0) * 2, rtol=1e-5, atol=1e-5) and np.allclose(y.numpy(), A.sum(0) + 1, rtol=1e-5, atol=1e-5)


def test_an_intermediate_value_that_was_stored_is_not_computed_again() -> None:
    a = Tensor(A, device=DEVICE).realize()
    total = a.sum(0)
    (a - total).realize()
    with counted(DEVICE) as counts:
        got = (a * total).numpy()
    assert counts.launched == 1
    assert np.allclose(got, A * A.sum(0), rtol=1e-5, atol=1e-5)


def test_a_sum_read_in_two_arrangements_is_stored_first() -> None:
    a = Tensor(A, device=DEVICE).realize()
    total = a.sum(0)
    with counted(DEVICE) as counts:
        got = (total + total.flip(0)).numpy()
    assert counts.launched == 2
    expected = A.astype(np.float64).sum(0)
    assert np.allclose(got, expected + expected[::-1], rtol=1e-4, atol=1e-5)


def test_views_of_memory_are_read_in_place() -> None:
    a = Tensor(A, device=DEVICE).realize()
    with counted(DEVICE) as counts:
        got = (a.T[3] + a[3].flip(0)).numpy()
    assert counts.launched == 1
    assert_same(got, A.T[3] + A[3][::-1])


def test_realized_tensors_and_empty_ones_take_no_kernel() -> None:
    a = (Tensor(A, device=DEVICE) + 1).realize()
    with counted(DEVICE) as counts:
        a.realize()
        a.numpy()
        assert Tensor(np.zeros((0, 4), np.float32), device=DEVICE).exp().numpy().shape == (0, 4)
        assert (a[:0] @ a).numpy().shape == (0, 16)
    assert counts.launched == 0


def test_a_long_sum_into_one_result_is_taken_in_two_steps() -> None:
    for shape in ((1 << 18,), (512, 512), (3 * 2**17,)):
        x = np.random.default_rng(0).integers(-(2**31), 2**31, shape, dtype=np.int32)
        t = Tensor(x, device="CPU").realize()
        with counted("CPU") as counts:
            assert_same(t.sum().numpy(), np.asarray(x.sum(dtype=np.int32)))
            assert_same(t.max().numpy(), np.asarray(x.max()))
        assert counts.launched == 4


def test_contiguous_stores_a_view() -> None:
    a = Tensor(A, device=DEVICE).realize()
    with counted(DEVICE) as counts:
        stored = a.T.contiguous()
        (stored + 1).realize()
    assert counts.launched == 2


def test_equal_kernels_are_compiled_once_whatever_their_data() -> None:
    with counted("CPU") as counts:
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((7, 13), dtype=np.float32)
            (Tensor(x, device="CPU") * 3 - Tensor(x, device="CPU")).realize()
    assert (counts.launched, counts.compiled) == (3, 1)


def test_equal_code_from_different_shapes_is_compiled_once() -> None:
    with counted("CPU") as counts:
        for shape in ((6, 35), (35, 6), (210,), (2, 3, 5, 7)):
            (Tensor(np.ones(shape, np.float32), device="CPU") * 5).realize()
    assert (counts.launched, counts.compiled) == (4, 1)
