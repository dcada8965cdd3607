"""Recorded functions: the first call records its launches, later ones replay them with other data."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import EVERYWHERE, RUNNING, assert_same, counted

from compute import Tensor, Variable, capture
from compute.errors import NotSupported, UsageError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_replays_compute_with_new_inputs_and_keep_old_results(device: str) -> None:
    calls = []

    @capture
    def step(a: Tensor, b: Tensor) -> Tensor:
        calls.append(1)
        return (a @ b).relu().sum(0) + a[0]

    kept = []
    for _ in range(4):
        a, b = (RNG.integers(-9, 9, (8, 8), dtype=np.int32) for _ in range(2))
        kept.append((step(Tensor(a, device=device), Tensor(b, device=device)), np.maximum(a @ b, 0).sum(0, dtype=np.int32) + a[0]))
    assert len(calls) == 1
    for got, expected in kept:
        assert_same(got.numpy(), expected)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_a_replay_launches_the_recorded_kernels_and_compiles_nothing(device: str) -> None:
    @capture
    def step(a: Tensor) -> list[Tensor]:
        total = a.sum(0)
        return [a - total, total]

    x = RNG.integers(0, 9, (4, 4), dtype=np.int32)
    step(Tensor(x, device=device))
    with counted(device) as counts:
        difference, total = step(Tensor(x + 1, device=device))
        assert_same(total.numpy(), (x + 1).sum(0, dtype=np.int32))
        assert_same(difference.numpy(), x + 1 - (x + 1).sum(0, dtype=np.int32))
    assert (counts.launched, counts.compiled) == (2, 0)


@pytest.mark.parametrize("device", EVERYWHERE)
def test_results_can_be_fed_back(device: str) -> None:
    @capture
    def double(a: Tensor) -> Tensor:
        return a * 2

    t = Tensor(np.ones(5, np.int32), device=device)
    for _ in range(6):
        t = double(t)
    assert t.tolist() == [64] * 5


@pytest.mark.parametrize("device", RUNNING)
def test_the_same_tensor_twice_and_an_input_as_result(device: str) -> None:
    @capture
    def pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a + b, b

    x, y = Tensor([1, 2], device=device), Tensor([10, 20], device=device)
    assert [r.tolist() for r in pair(x, x)] == [[2, 4], [1, 2]]
    assert [r.tolist() for r in pair(x, y)] == [[11, 22], [10, 20]]
    assert [r.tolist() for r in pair(y, y)] == [[20, 40], [10, 20]]


@pytest.mark.parametrize("device", EVERYWHERE)
def test_sizes_may_change_between_replays(device: str) -> None:
    n = Variable("n", 1, 32)
    x = RNG.integers(-9, 9, (32, 40), dtype=np.int32)
    t = Tensor(x, device=device).realize()

    @capture
    def step(part: Tensor) -> list[Tensor]:
        return [part.sum(0), part * 3]

    with counted(device) as counts:
        for value in (4, 32, 1, 4):
            total, tripled = step(t[: n.bind(value)])
            assert_same(total.numpy(), x[:value].sum(0, dtype=np.int32))
            assert_same(tripled.numpy(), x[:value] * 3)
    assert counts.compiled == 3


@pytest.mark.parametrize("device", RUNNING)
def test_another_kind_of_input_is_recorded_anew(device: str) -> None:
    @capture
    def step(a: Tensor) -> Tensor:
        return a + 1

    assert step(Tensor([1, 2], device=device)).tolist() == [2, 3]
    assert step(Tensor([1, 2, 3], device=device)).tolist() == [2, 3, 4]
    assert step(Tensor([1.5], device=device)).tolist() == [2.5]
    assert step(Tensor([5, 6], device=device)).tolist() == [6, 7]
    assert len(step.recordings) == 3


@pytest.mark.parametrize("device", EVERYWHERE)
def test_a_function_that_assigns_does_so_in_every_replay(device: str) -> None:
    state = Tensor(np.zeros(4, np.int32), device=device).realize()

    @capture
    def accumulate(a: Tensor) -> Tensor:
        state.assign(state + a)
        return state * 10

    for i in range(1, 5):
        result = accumulate(Tensor(np.full(4, i, np.int32), device=device))
        assert result.tolist() == [sum(range(i + 1)) * 10] * 4
    assert state.tolist() == [10] * 4


def test_what_cannot_be_recorded_is_refused_with_a_reason() -> None:
    t = Tensor([1, 2], device="PYTHON")

    @capture
    def reads(a: Tensor) -> Tensor:
        return a + a.sum().item()

    with pytest.raises(UsageError, match="data is read"):
        reads(t)

    @capture
    def copies(a: Tensor) -> Tensor:
        return (a + 1).to("CPU") + 1

    with pytest.raises(NotSupported, match="copy between devices"):
        copies(t)

    @capture
    def returns_numbers(a: Tensor) -> int:
        return 3

    with pytest.raises(UsageError, match="must return a tensor"):
        returns_numbers(t)

    with pytest.raises(UsageError, match="was given a int"):
        returns_numbers(3)
    assert t.tolist() == [1, 2]
