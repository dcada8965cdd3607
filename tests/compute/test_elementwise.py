"""Every elementwise op on every dtype at edge values, judged by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import EVERYWHERE, RUNNING, assert_same, edges, pairs

from compute import Tensor, dtypes
from compute.errors import DTypeError, ShapeError

NUMPY_FLOATS = tuple(d for d in dtypes.FLOATS if d is not dtypes.bfloat16)
NUMBERS = (*dtypes.INTS, *NUMPY_FLOATS)

UNARY = {
    "neg": (np.negative, NUMBERS),
    "abs": (np.abs, (dtypes.bool_, *NUMBERS)),
    "sqrt": (np.sqrt, NUMPY_FLOATS),
    "floor": (np.floor, NUMPY_FLOATS),
    "ceil": (np.ceil, NUMPY_FLOATS),
    "trunc": (np.trunc, NUMPY_FLOATS),
    "round": (np.rint, NUMPY_FLOATS),
    "bitwise_not": (np.invert, (dtypes.bool_, *dtypes.INTS)),
    "logical_not": (np.logical_not, (dtypes.bool_, *NUMBERS)),
    "isnan": (np.isnan, NUMPY_FLOATS),
}
BINARY = {
    "add": (np.add, (dtypes.bool_, *NUMBERS)),
    "sub": (np.subtract, NUMBERS),
    "mul": (np.multiply, (dtypes.bool_, *NUMBERS)),
    "div": (np.divide, NUMPY_FLOATS),
    "floordiv": (np.floor_divide, dtypes.INTS),
    "mod": (np.remainder, dtypes.INTS),
    "maximum": (np.maximum, (dtypes.bool_, *NUMBERS)),
    "minimum": (np.minimum, (dtypes.bool_, *NUMBERS)),
    "bitwise_and": (np.bitwise_and, (dtypes.bool_, *dtypes.INTS)),
    "bitwise_or": (np.bitwise_or, (dtypes.bool_, *dtypes.INTS)),
    "bitwise_xor": (np.bitwise_xor, (dtypes.bool_, *dtypes.INTS)),
    "lshift": (np.left_shift, dtypes.INTS),
    "rshift": (np.right_shift, dtypes.INTS),
    "__lt__": (np.less, (dtypes.bool_, *NUMBERS)),
    "__le__": (np.less_equal, (dtypes.bool_, *NUMBERS)),
    "__gt__": (np.greater, (dtypes.bool_, *NUMBERS)),
    "__ge__": (np.greater_equal, (dtypes.bool_, *NUMBERS)),
    "__eq__": (np.equal, (dtypes.bool_, *NUMBERS)),
    "__ne__": (np.not_equal, (dtypes.bool_, *NUMBERS)),
}


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize("op", UNARY)
def test_unary_op_is_numpys_for_every_dtype(op: str, device: str) -> None:
    reference, kinds = UNARY[op]
    results = []
    for dtype in kinds:
        x = edges(dtype)
        results.append((dtype, getattr(Tensor(x, device=device), op)(), x))
    results[0][1].realize(*(r for _, r, _ in results[1:]))
    with np.errstate(all="ignore"):
        for dtype, result, x in results:
            assert_same(result.numpy(), reference(x), f"{op} {dtype}")


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize("op", BINARY)
def test_binary_op_is_numpys_for_every_dtype(op: str, device: str) -> None:
    reference, kinds = BINARY[op]
    for dtype in kinds:
        x, y = pairs(edges(dtype), edges(dtype))
        with np.errstate(all="ignore"):
            expected = reference(x, y)
        assert_same(getattr(Tensor(x, device=device), op)(Tensor(y, device=device)).numpy(), expected, f"{op} {dtype}")


@pytest.mark.parametrize("device", EVERYWHERE)
def test_add_mul_div_sqrt_are_rounded_as_numpy_does_for_random_bits(device: str) -> None:
    rng = np.random.default_rng(1)
    for dtype in NUMPY_FLOATS:
        bits = dtypes.unsigned(dtype.bits).numpy
        x, y = (rng.integers(0, np.iinfo(bits).max, 4096, bits, endpoint=True).view(dtype.numpy) for _ in range(2))
        a, b = Tensor(x, device=device), Tensor(y, device=device)
        with np.errstate(all="ignore"):
            for got, expected in ((a + b, x + y), (a * b, x * y), (a / b, x / y), (a.abs().sqrt(), np.sqrt(np.abs(x)))):
                assert_same(got.numpy(), expected, str(dtype))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_float_division_with_floor_is_numpys(device: str) -> None:
    rng = np.random.default_rng(2)
    for dtype in (dtypes.float32, dtypes.float64):
        x, y = pairs(edges(dtype), edges(dtype))
        x = np.concatenate([x, rng.normal(size=500).astype(dtype.numpy) * 1000])
        y = np.concatenate([y, rng.normal(size=500).astype(dtype.numpy)])
        a, b = Tensor(x, device=device), Tensor(y, device=device)
        with np.errstate(all="ignore"):
            assert_same((a % b).numpy(), np.remainder(x, y), f"mod {dtype}")
            finite = np.isfinite(np.floor_divide(x, y))
            assert_same((a // b).numpy()[finite], np.floor_divide(x, y)[finite], f"floordiv {dtype}")


@pytest.mark.parametrize("device", EVERYWHERE)
def test_signs_of_zero_of_mod_are_numpys(device: str) -> None:
    x, y = pairs(np.array([0.0, -0.0, 6.0, -6.0]), np.array([3.0, -3.0]))
    got = (Tensor(x, device=device) % Tensor(y, device=device)).numpy()
    assert np.signbit(got).tolist() == np.signbit(np.remainder(x, y)).tolist()


@pytest.mark.parametrize("device", EVERYWHERE)
def test_integer_powers_wrap_as_numpys(device: str) -> None:
    for dtype in dtypes.INTS:
        x, y = pairs(edges(dtype), np.array([0, 1, 2, 3, 5, 7, 10, 31], dtype.numpy))
        assert_same((Tensor(x, device=device) ** Tensor(y, device=device)).numpy(), x**y, str(dtype))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_bfloat16_is_computed_in_float32_and_rounded_to_nearest_even(device: str) -> None:
    x, y = pairs(edges(dtypes.bfloat16), edges(dtypes.bfloat16))
    a, b = (Tensor(v, dtype="bfloat16", device=device) for v in (x, y))
    with np.errstate(all="ignore"):
        for got, exact in ((a + b, x + y), (a * b, x * y), (a / b, x / y), (a - b, x - y)):
            assert_same(got.numpy(), Tensor(exact, dtype="bfloat16", device="PYTHON").numpy())
        assert_same((a < b).numpy(), x < y)
        assert_same(a.maximum(b).numpy(), np.maximum(x, y))
        assert_same(a.neg().numpy(), -x)


def test_bfloat16_rounding_by_hand() -> None:
    # 1 + 2**-8 lies half way between 1 and 1 + 2**-7: to the even one; a little more goes up
    x = np.array([1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-20, 1 + 3 * 2.0**-8, 3.4e38, 1e-45], np.float32)
    for device in RUNNING:
        got = Tensor(x, device=device).cast("bfloat16").numpy()
        assert got.tolist() == [1.0, 1 + 2.0**-7, 1 + 2.0**-6, float("inf"), 0.0]


@pytest.mark.parametrize("device", EVERYWHERE)
def test_where_and_clip(device: str) -> None:
    x = np.arange(-5, 5, dtype=np.int32).reshape(2, 5)
    t = Tensor(x, device=device)
    assert_same((t > 0).where(t, 0).numpy(), np.where(x > 0, x, 0))
    assert_same((t > 0).where(1.5, t).numpy(), np.where(x > 0, np.float32(1.5), x.astype(np.float32)))
    assert_same((t[0] > -4).where(t, -t).numpy(), np.where(x[0] > -4, x, -x))
    assert_same(t.clip(-2, 3).numpy(), x.clip(-2, 3))
    assert_same(t.clip(high=0).numpy(), np.minimum(x, 0))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_operators_with_numbers_on_either_side(device: str) -> None:
    x = np.array([1, 2, 5], np.int32)
    t = Tensor(x, device=device)
    for got, expected in (
        (7 - t, 7 - x), (7 // t, 7 // x), (7 % t, 7 % x), (2**t, 2**x), (1 << t, 1 << x), (64 >> t, 64 >> x), (3 * t + 1, 3 * x + 1),
        (6 & t, 6 & x), (t | 8, x | 8), (t ^ 1, x ^ 1),
        (abs(-t), x), (~t, ~x), (t**2, x**2), (t**3, x**3), (t**0, x**0),
    ):  # fmt: skip
        assert_same(got.numpy(), expected.astype(np.int32))
    assert_same((1 / t).numpy(), (1 / x.astype(np.float32)))
    assert_same((t / 2).numpy(), x.astype(np.float32) / 2)


def test_broadcasting_is_numpys() -> None:
    rng = np.random.default_rng(3)
    for left, right in (((3, 1), (1, 4)), ((2, 3, 4), (4,)), ((), (2, 2)), ((1,), (5,)), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3)), ((1, 3), (0, 1))):
        x, y = rng.normal(size=left).astype(np.float32), rng.normal(size=right).astype(np.float32)
        assert_same((Tensor(x, device="CPU") + Tensor(y, device="CPU")).numpy(), np.asarray(x + y), f"{left} {right}")


def test_promotion_follows_the_documented_rules() -> None:
    cases = {
        ("bool", "int8"): "int8", ("int8", "int16"): "int16", ("uint8", "int8"): "int16", ("uint16", "int8"): "int32", ("uint32", "int32"): "int64",
        ("uint8", "int64"): "int64", ("uint64", "int64"): "float32", ("int64", "float16"): "float16", ("float16", "bfloat16"): "float32",
        ("float16", "float32"): "float32", ("float32", "float64"): "float64", ("bfloat16", "int32"): "bfloat16", ("uint64", "uint8"): "uint64",
    }  # fmt: skip
    for (a, b), expected in cases.items():
        for x, y in ((a, b), (b, a)):
            assert (Tensor.ones(2, dtype=x, device="CPU") + Tensor.ones(2, dtype=y, device="CPU")).dtype.name == expected, (x, y)


def test_python_numbers_are_weak() -> None:
    assert (Tensor.ones(2, dtype="float16", device="CPU") + 1.5).dtype is dtypes.float16
    assert (Tensor.ones(2, dtype="uint8", device="CPU") + 3).dtype is dtypes.uint8
    assert (Tensor.ones(2, dtype="int64", device="CPU") * 0.5).dtype is dtypes.float32
    assert (Tensor.ones(2, dtype="bool", device="CPU") + 1).dtype is dtypes.int32


def test_shapes_that_do_not_fit_are_named_both() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(4,\)") as caught:
        Tensor.ones(2, 3) + Tensor.ones(4)
    assert "dimension -1" in caught.value.explain()


@pytest.mark.parametrize("misuse", [
    lambda: Tensor.ones(2) & 1,
    lambda: ~Tensor.ones(2),
    lambda: -Tensor.ones(2, dtype="bool"),
    lambda: Tensor.ones(2, dtype="bool") - True,
    lambda: Tensor.ones(2, dtype="int32") ** -1,
    lambda: Tensor.ones(2, dtype="float16").bitcast("float32"),
    lambda: Tensor.ones(2, dtype="bool") << True,
    lambda: Tensor.ones(2).cast("complex64"),
    lambda: Tensor.rand(3, dtype="int32"),
    lambda: Tensor(object()),
])  # fmt: skip
def test_dtypes_that_an_op_is_not_defined_for_are_refused(misuse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DTypeError) as caught:
        misuse()
    assert caught.value.remedy


def test_a_long_chain_of_ops_is_cut_into_several_kernels_and_needs_no_recursion() -> None:
    t = Tensor(np.zeros(4, np.int32), device="CPU")
    for _ in range(2000):
        t = (t + 1) ^ 1
    expected = 0
    for _ in range(2000):
        expected = (expected + 1) ^ 1
    assert t.tolist() == [expected] * 4
