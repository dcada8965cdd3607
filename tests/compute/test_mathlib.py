"""Accuracy of the functions against wider arithmetic, and their special values against C's math library as numpy shows it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import EVERYWHERE, assert_same, ulps

from compute import Tensor, dtypes

LIMITS = {"exp": (1.0, 1.5), "exp2": (1.0, 1.5), "log": (1.0, 1.5), "log2": (1.0, 1.5), "sin": (1.5, 1.5), "cos": (1.5, 1.5), "tanh": (2.0, 2.5)}
"""Units of the last place in float32 and float64, as mathlib.py states them."""

WIDER = {np.float32: np.float64, np.float64: np.longdouble}
needs_wide_longdouble = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="this machine's long double is no wider than float64, so nothing here can judge it")


def any_floats(kind: type, count: int, seed: int) -> np.ndarray:
    """Floats of random bits: every exponent is as likely."""
    bits = np.uint32 if kind is np.float32 else np.uint64
    return np.random.default_rng(seed).integers(0, np.iinfo(bits).max, count, bits, endpoint=True).view(kind)


def arguments(op: str, kind: type) -> np.ndarray:
    rng = np.random.default_rng(4)
    parts = [any_floats(kind, 6000, 5), rng.normal(size=3000), rng.uniform(-110, 110, 4000), 1 + rng.normal(size=1000) * 1e-4]
    if op in ("sin", "cos"):
        parts.append(np.arange(-3000, 3000) * (math.pi / 2))
    if op in ("exp", "exp2") and kind is np.float64:
        parts.append(rng.uniform(-1080, 1030, 4000))
    return np.concatenate([p.astype(kind) for p in parts])


@needs_wide_longdouble
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("op", LIMITS)
def test_function_is_within_its_stated_error(op: str, kind: type) -> None:
    x = arguments(op, kind)
    with np.errstate(all="ignore"):
        exact = getattr(np, op)(x.astype(WIDER[kind]))
    got = getattr(Tensor(x, device="CPU"), op)().numpy()
    assert ulps(got, exact) <= LIMITS[op][kind is np.float64]


@needs_wide_longdouble
def test_sine_of_the_arguments_nearest_to_multiples_of_half_pi() -> None:
    # the floats closest to a multiple of pi/2, where a reduction with too few digits of pi fails
    nearest32 = np.array([16367173.0 * 2.0**72, 1.6421093e14, 5.0706024e30, 3.4028235e38], np.float32)
    nearest64 = np.array([6381956970095103.0 * 2.0**797, 5319372648326541.0 * 2.0**416, 1.7976931348623157e308, 1e22], np.float64)
    for x in (nearest32, nearest64):
        for op in ("sin", "cos"):
            exact = np.array([_circular(op, v) for v in x], WIDER[x.dtype.type])
            assert ulps(getattr(Tensor(x, device="CPU"), op)().numpy(), exact) <= 1.5


def _circular(op: str, x: float) -> np.longdouble:
    """sin or cos in long double after a reduction by whole-number arithmetic with 1,200 bits of pi."""
    from fractions import Fraction

    digits = 1400
    half_pi = Fraction(_pi_times_power_of_two(digits), 2 << digits)
    turns = Fraction(float(x)) / half_pi
    quarter = round(turns)
    rest = Fraction(float(x)) - quarter * half_pi
    scaled = (rest.numerator << 200) // rest.denominator
    bits = scaled.bit_length()
    head = scaled >> max(bits - 62, 0)
    r = np.ldexp(np.longdouble(head), max(bits - 62, 0) - 200)
    quarter += op == "cos"
    value = np.cos(r) if quarter % 2 else np.sin(r)
    return -value if quarter % 4 in (2, 3) else value


def _pi_times_power_of_two(bits: int) -> int:
    """floor(pi * 2**bits) by Machin's formula."""

    def arctan_inverse(n: int) -> int:
        total = term = (1 << (bits + 32)) // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    return 4 * (4 * arctan_inverse(5) - arctan_inverse(239)) >> 32


@needs_wide_longdouble
def test_pow_is_within_its_stated_error() -> None:
    rng = np.random.default_rng(6)
    for kind, limit in ((np.float32, 0.6), (np.float64, 16.0)):
        x = np.concatenate([np.exp(rng.uniform(-20, 20, 4000)), 1 + rng.normal(size=2000) * 1e-3]).astype(kind)
        y = np.concatenate([rng.uniform(-4, 4, 4000), rng.uniform(-30000, 30000, 2000)]).astype(kind)
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(WIDER[kind]), y.astype(WIDER[kind]))
        normal = np.isfinite(exact.astype(kind)) & (exact > np.finfo(kind).tiny)
        got = (Tensor(x, device="CPU") ** Tensor(y, device="CPU")).numpy()
        assert ulps(got[normal], exact[normal]) <= limit


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_special_values_of_pow_and_the_other_functions_are_those_of_c(kind: type, device: str) -> None:
    tiny = np.finfo(kind).smallest_subnormal
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e30, -1e30, tiny, -tiny], kind)
    a, b = (v.ravel() for v in np.meshgrid(x, x, indexing="ij"))
    with np.errstate(all="ignore"):
        expected = np.power(a, b)
        got = (Tensor(a, device=device) ** Tensor(b, device=device)).numpy()
        assert np.allclose(got, expected, rtol=1e-6, atol=0, equal_nan=True)
        assert (np.signbit(got) == np.signbit(expected))[expected == 0].all()
        for op in LIMITS:
            expected, got = getattr(np, op)(x), getattr(Tensor(x, device=device), op)().numpy()
            assert np.allclose(got, expected, rtol=1e-6, atol=0, equal_nan=True), op
            assert (np.signbit(got) == np.signbit(expected))[expected == 0].all(), op


@pytest.mark.parametrize("op", [*LIMITS, "pow", "mod"])
def test_compiled_functions_equal_interpreted_ones_bit_for_bit(op: str) -> None:
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float64):
        bits = dtypes.unsigned(dtype.bits).numpy
        rng = np.random.default_rng(8)
        x = rng.integers(0, np.iinfo(bits).max, 2048, bits, endpoint=True).view(dtype.numpy)
        y = (rng.normal(size=2048) * 3).astype(dtype.numpy)
        results = []
        for device in ("CPU", "PYTHON"):
            t = Tensor(x, device=device)
            got = (t.abs() ** Tensor(y, device=device) if op == "pow" else t % Tensor(y, device=device) if op == "mod" else getattr(t, op)()).numpy()
            results.append(np.where(got == got, got, np.zeros((), dtype.numpy)).view(bits))
        assert_same(results[0], results[1], f"{op} {dtype}")


@pytest.mark.parametrize("device", EVERYWHERE)
def test_composed_functions(device: str) -> None:
    x = np.linspace(-6, 6, 257, dtype=np.float32)
    wide = x.astype(np.float64)
    t = Tensor(x, device=device)
    cases = {
        "sigmoid": 1 / (1 + np.exp(-wide)),
        "elu": np.where(wide > 0, wide, np.expm1(wide)),
        "gelu": 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))),
        "relu": np.maximum(wide, 0),
    }
    for name, expected in cases.items():
        assert np.abs(getattr(t, name)().numpy() - expected).max() < 4e-7, name
    positive = t.abs() + 0.5
    assert np.allclose(positive.rsqrt().numpy(), 1 / np.sqrt(np.abs(wide) + 0.5), rtol=2e-7)
    assert np.allclose(positive.recip().numpy(), 1 / (np.abs(wide) + 0.5), rtol=2e-7)


def test_sigmoid_and_tanh_of_large_arguments_saturate() -> None:
    t = Tensor(np.array([-1e30, -100, 100, 1e30, np.inf, -np.inf], np.float32), device="CPU")
    assert t.sigmoid().tolist()[2:5] == [1.0, 1.0, 1.0]
    assert t.sigmoid().tolist()[0] == 0.0
    assert t.tanh().tolist() == [-1.0, -1.0, 1.0, 1.0, 1.0, -1.0]
