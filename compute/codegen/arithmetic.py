"""What each IR op does to numpy arrays: the executable definition of the ops (see compute/ops.py for them in words)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compute import dtypes
from compute.dtypes import DType

Array = Any
"""numpy array or numpy scalar. bfloat16 values are float32 arrays that hold only bfloat16 values."""


def cast(x: Array, source: DType, target: DType) -> Array:
    x = np.asarray(x)
    if target is dtypes.bool_:
        return x != 0
    if target is dtypes.bfloat16:
        if source is dtypes.float64:
            x = _to_odd_float32(x)
        return round_bfloat16(x.astype(np.float32))
    if source.is_float and target.is_int:
        return _saturate(x, target)
    return x.astype(target.numpy)


def round_bfloat16(x: Array) -> Array:
    """float32 rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    quiet = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x00400000)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint32).view(np.float32)


def bfloat16_to_bits(x: Array) -> Array:
    return (np.asarray(x, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def bits_to_bfloat16(bits: Array) -> Array:
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bitcast(x: Array, source: DType, target: DType) -> Array:
    x = np.ascontiguousarray(bfloat16_to_bits(x) if source is dtypes.bfloat16 else x)
    if target is dtypes.bfloat16:
        return bits_to_bfloat16(x.view(np.uint16))
    return x.view(target.numpy)


def _saturate(x: Array, target: DType) -> Array:
    wide = np.asarray(x, np.float64)
    whole = np.where(np.isnan(wide), 0.0, np.trunc(wide))
    low, high = float(target.min), float(target.max + 1)
    inside = np.where((whole >= low) & (whole < high), whole, 0.0)
    if target.size == 8 and target.kind == "uint":
        upper = inside >= 2.0**63
        found = np.where(upper, (inside - np.where(upper, 2.0**63, 0.0)).astype(np.uint64) + np.uint64(1 << 63), np.where(upper, 0.0, inside).astype(np.uint64))
    else:
        found = inside.astype(target.numpy)
    found = np.where(whole >= high, np.asarray(target.max, target.numpy), found)
    return np.where(whole < low, np.asarray(target.min, target.numpy), found).astype(target.numpy)


def _to_odd_float32(x: Array) -> Array:
    """float64 to float32, inexact results rounded to the neighbour with an odd last bit: a later rounding to fewer bits is then right."""
    near = x.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.int32)
    step = np.where(np.abs(back) < np.abs(x), 1, -1).astype(np.int32)
    move = (back != x) & ~np.isnan(x) & ((bits & 1) == 0)
    return np.where(move, bits + step, bits).astype(np.int32).view(np.float32)


def _fma(a: Array, b: Array, c: Array) -> Array:
    if a.dtype == np.float32:
        product = a.astype(np.float64) * b.astype(np.float64)
        return _sum_rounded_to_odd(product, c.astype(np.float64)).astype(np.float32)
    return _fma64(a, b, c)


def _sum_rounded_to_odd(p: Array, c: Array) -> Array:
    """p + c in float64, an inexact sum moved to the neighbour with an odd last bit."""
    total = p + c
    part = total - p
    error = (p - (total - part)) + (c - part)
    bits = total.view(np.int64)
    away = (error > 0) == (total > 0)
    move = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
    return np.where(move, bits + np.where(away, 1, -1), bits).view(np.float64)


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """float64 with one rounding by exact products and sums; exact while the product and its low half stay inside the normal range."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    splitter = 134217729.0
    ah = a * splitter - (a * splitter - a)
    bh = b * splitter - (b * splitter - b)
    al, bl = a - ah, b - bh
    low = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    simple = product + c
    upper, upper_error = _two_sum(c, low)
    head, head_error = _two_sum(product, upper)
    found = head + _sum_rounded_to_odd(head_error, upper_error)
    return np.where(np.isfinite(found) & np.isfinite(low), found, simple)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _shift(x: Array, count: Array, dtype: DType, left: bool) -> Array:
    inside = count.astype(dtypes.unsigned(dtype.bits).numpy) < dtype.bits
    safe = np.where(inside, count, 0).astype(dtype.numpy)
    if left:
        return np.where(inside, x << safe, 0).astype(dtype.numpy)
    outside = np.where(x < 0, -1, 0) if dtype.kind == "int" else 0
    return np.where(inside, x >> safe, outside).astype(dtype.numpy)


def _extreme(a: Array, b: Array, dtype: DType, largest: bool) -> Array:
    found = np.maximum(a, b) if largest else np.minimum(a, b)
    if dtype.is_float:
        zeros = (a == 0) & (b == 0)
        found = np.where(zeros, a + b if largest else -((-a) + (-b)), found)
    return found


_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "not": np.invert,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def apply(op: str, dtype: DType, args: list[Array]) -> Array:
    """The result of an elementwise op; dtype is that of the last operand."""
    if op in _UNARY:
        return _UNARY[op](args[0])
    if op in ("max", "min"):
        return _extreme(args[0], args[1], dtype, op == "max")
    if op in ("shl", "shr"):
        return _shift(np.asarray(args[0]), np.asarray(args[1]), dtype, op == "shl")
    if op == "where":
        return np.where(args[0], args[1], args[2])
    if op == "fma":
        return _fma(*(np.asarray(a) for a in args))
    return _BINARY[op](args[0], args[1])
