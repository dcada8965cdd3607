"""Creation, data out, devices, assignment, random numbers."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import EVERYWHERE, GPU, RUNNING, assert_same, counted

from compute import Tensor, dtypes, random
from compute.errors import DeviceMismatch, DTypeError, ShapeError
from hw.errors import TargetError


@pytest.mark.parametrize("device", EVERYWHERE)
def test_data_of_every_kind_becomes_a_tensor(device: str) -> None:
    assert Tensor(3, device=device).dtype is dtypes.int32 and Tensor(3, device=device).item() == 3
    assert Tensor(2**40, device=device).dtype is dtypes.int64
    assert Tensor(2.5, device=device).dtype is dtypes.float32 and Tensor(True, device=device).dtype is dtypes.bool_
    assert_same(Tensor([[1, 2], [3, 4]], device=device).numpy(), np.array([[1, 2], [3, 4]], np.int32))
    assert_same(Tensor([1, 2**40], device=device).numpy(), np.array([1, 2**40]))
    assert_same(Tensor([1.5, 2], device=device).numpy(), np.array([1.5, 2], np.float32))
    assert_same(Tensor([True, False], device=device).numpy(), np.array([True, False]))
    assert_same(Tensor(b"\x01\xff", device=device).numpy(), np.array([1, 255], np.uint8))
    assert_same(Tensor([], device=device).numpy(), np.zeros(0, np.float32))
    assert_same(Tensor([1, 2], dtype="float16", device=device).numpy(), np.array([1, 2], np.float16))
    for dtype in dtypes.ALL:
        x = np.arange(6).reshape(2, 3).astype(dtype.numpy)
        t = Tensor(x, dtype=dtype, device=device)
        assert t.dtype is dtype
        assert_same(t.numpy(), x)
    strided = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::-3]
    assert_same(Tensor(strided, device=device).numpy(), np.ascontiguousarray(strided))


def test_data_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ShapeError, match="lists of different lengths"):
        Tensor([[1, 2], [3]])
    with pytest.raises(DTypeError, match="NoneType"):
        Tensor(None)
    with pytest.raises(DTypeError, match="complex"):
        Tensor(np.zeros(2, np.complex64))
    with pytest.raises(DTypeError, match="from a tensor"):
        Tensor(Tensor(1))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_creation_functions_are_numpys(device: str) -> None:
    assert_same(Tensor.zeros(2, 3, device=device).numpy(), np.zeros((2, 3), np.float32))
    assert_same(Tensor.ones((4,), dtype="int8", device=device).numpy(), np.ones(4, np.int8))
    assert_same(Tensor.full((2, 2), 7, device=device).numpy(), np.full((2, 2), 7, np.int32))
    assert_same(Tensor.full(3, 0.5, device=device).numpy(), np.full(3, 0.5, np.float32))
    for arguments in ((5,), (2, 9), (9, 2, -3), (0,), (5, 2), (-3, 12, 4)):
        assert_same(Tensor.arange(*arguments, device=device).numpy(), np.arange(*arguments, dtype=np.int32))
    assert_same(Tensor.arange(0, 2, 0.25, device=device).numpy(), np.arange(0, 2, 0.25, dtype=np.float32))
    assert_same(Tensor.arange(300, dtype="uint8", device=device).numpy(), np.arange(300).astype(np.uint8))
    assert_same(Tensor.arange(2**40, 2**40 + 5, dtype="int64", device=device).numpy(), np.arange(2**40, 2**40 + 5))
    assert_same(Tensor.eye(3, device=device).numpy(), np.eye(3, dtype=np.float32))
    assert_same(Tensor.eye(2, 5, dtype="int32", device=device).numpy(), np.eye(2, 5, dtype=np.int32))
    assert np.allclose(Tensor.linspace(-1, 3, 9, device=device).numpy(), np.linspace(-1, 3, 9))
    assert Tensor.linspace(0, 1, 7, device=device).tolist()[-1] == 1.0
    assert Tensor.empty(3, 4, dtype="float64", device=device).numpy().shape == (3, 4)


def test_data_out() -> None:
    t = Tensor([[1, 2], [3, 4]], device="CPU")
    assert t.tolist() == [[1, 2], [3, 4]] and t[1, 0].item() == 3 and len(t) == 2 and t.size == 4 and t.ndim == 2
    assert bool(t.sum() == 10) is True
    with pytest.raises(ShapeError, match=r"\(2, 2\)"):
        t.item()
    copied = t.numpy()
    copied[0, 0] = 99
    assert t.tolist()[0][0] == 1
    assert "lazy" in repr(t + 1) and "in memory" in repr(t.realize())


def test_nothing_is_launched_before_data_is_asked_for() -> None:
    with counted("PYTHON") as counts:
        t = (Tensor.ones(4, device="PYTHON") + Tensor.arange(4, device="PYTHON")).sum()
    assert counts.launched == 0
    with counted("PYTHON") as counts:
        assert t.item() == 10.0
        assert t.item() == 10.0
    assert counts.launched == 1


@pytest.mark.parametrize("device", EVERYWHERE)
def test_assign_overwrites_memory_in_place(device: str) -> None:
    t = (Tensor.arange(8, device=device) + 0).realize()
    memory = t.node.arg.buffer
    t.assign(t * 2)
    assert t.node.arg.buffer is memory
    assert t.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    t.assign(t.flip(0))
    assert t.node.arg.buffer is memory
    assert t.tolist() == [14, 12, 10, 8, 6, 4, 2, 0]
    t.assign(np.ones(8))
    assert t.tolist() == [1] * 8
    t.assign(t[:1] + 4)
    assert t.tolist() == [5] * 8
    t.assign(t + t.sum())
    assert t.tolist() == [45] * 8
    assert t.node.arg.buffer is memory


@pytest.mark.parametrize("device", RUNNING)
def test_lazy_tensors_made_before_an_assignment_keep_the_old_values(device: str) -> None:
    t = Tensor([1, 2, 3], device=device).realize()
    before, view, product = t + 1, t[::-1], t * t
    alias = t.reshape(1, 3).realize()
    t.assign(product)
    t.assign(t + 100)
    assert t.tolist() == [101, 104, 109]
    assert before.tolist() == [2, 3, 4]
    assert view.tolist() == [3, 2, 1]
    assert product.tolist() == [1, 4, 9]
    assert alias.tolist() == [[1, 2, 3]]


def test_assign_to_a_lazy_tensor_and_of_values_that_do_not_fit() -> None:
    t = Tensor.zeros(3, device="CPU")
    t.assign(Tensor([1.0, 2.0, 3.0], device="CPU"))
    assert t.tolist() == [1, 2, 3]
    with pytest.raises(ShapeError, match=r"\(4,\) to \(3,\)"):
        t.assign(Tensor.ones(4, device="CPU"))
    with pytest.raises(ShapeError, match=r"\(2, 3\) to \(3,\)"):
        t.assign(Tensor.ones(2, 3, device="CPU"))
    assert t.tolist() == [1, 2, 3]


def test_tensors_move_between_devices() -> None:
    x = np.arange(6, dtype=np.float32)
    t = (Tensor(x, device="CPU") * 2).to("PYTHON")
    assert t.device == "PYTHON"
    assert_same((t + 1).numpy(), x * 2 + 1)
    assert_same((t + 1).to("CPU").sum().numpy(), np.asarray((x * 2 + 1).sum()))
    assert_same(Tensor.arange(3, device="CPU").to("PYTHON").numpy(), np.arange(3, dtype=np.int32))
    assert Tensor(1, device="CPU").to("CPU").device == "CPU"


@pytest.mark.slow
def test_tensors_move_to_the_simulated_gpu_and_back() -> None:
    x = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    there = Tensor(x, device="CPU").to(GPU)
    assert_same((there * 2).to("CPU").numpy(), x * 2)


def test_operands_on_two_devices_are_refused() -> None:
    with pytest.raises(DeviceMismatch, match="CPU and PYTHON") as caught:
        Tensor.ones(2, device="CPU") + Tensor.ones(2, device="PYTHON")
    assert ".to(device)" in caught.value.remedy
    for make in (lambda a, b: a @ b, lambda a, b: a.cat(b), lambda a, b: (a > 0).where(a, b), lambda a, b: a.assign(b)):
        with pytest.raises(DeviceMismatch):
            make(Tensor.ones(2, 2, device="CPU"), Tensor.ones(2, 2, device="PYTHON"))


def test_the_default_device_is_that_of_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tensor(1).device == "CPU"
    monkeypatch.setenv("DEV", "python")
    assert Tensor(1).device == "PYTHON"
    monkeypatch.setenv("DEV", "TOASTER")
    with pytest.raises(TargetError, match="TOASTER"):
        Tensor(1)


# --- random numbers ---


@pytest.mark.parametrize("device", EVERYWHERE)
def test_random_numbers_are_threefrys_and_the_same_everywhere(device: str) -> None:
    Tensor.manual_seed(42)
    first, second = Tensor.rand(5, 7, device=device), Tensor.rand(35, device=device)
    assert_same(first.numpy().ravel(), random.reference(35, 42, 0))
    assert_same(second.numpy(), random.reference(35, 42, 1))


def test_threefry_gives_the_published_test_vectors() -> None:
    # known answers of the Random123 library for 2 x 32 bits, 20 rounds
    vectors = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ]
    for counter, key, expected in vectors:
        c0, c1, k = (Tensor(np.array(v, np.uint32), device="CPU") for v in ([counter[0]], [counter[1]], key))
        x0, x1 = random.threefry(c0, c1, k)
        assert (x0.item(), x1.item()) == expected


def test_random_numbers_fill_the_unit_interval_evenly() -> None:
    Tensor.manual_seed(7)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = Tensor.rand(20000, dtype=dtype, device="CPU").numpy().astype(np.float64)
        assert x.min() >= 0 and x.max() < 1
        assert abs(x.mean() - 0.5) < 0.01 and abs(x.var() - 1 / 12) < 0.005
        assert np.abs(np.histogram(x, 10, (0, 1))[0] / 2000 - 1).max() < 0.15
    assert Tensor.rand(0, 3).numpy().shape == (0, 3)


def test_draws_differ_and_a_second_draw_compiles_nothing() -> None:
    Tensor.manual_seed(1)
    a = Tensor.rand(64, device="CPU").numpy()
    with counted("CPU") as counts:
        b = Tensor.rand(64, device="CPU").numpy()
    assert counts.compiled == 0
    assert not (a == b).any()


def test_nothing_of_a_tensor_is_left_when_it_is_gone() -> None:
    from compute import ops, tensor

    def work() -> None:
        t = Tensor(np.ones((8, 8), np.float32), device="CPU")
        for _ in range(5):
            t = (t @ t).softmax() + t.flip(0)
        t.numpy()
        t.assign(t * 2)

    work()
    gc.collect()
    before = len(ops._interned), len(tensor._live)
    for _ in range(20):
        work()
    gc.collect()
    assert (len(ops._interned), len(tensor._live)) == before
