"""Floating point as the GPU's MODE register says: rounding, denormals, minimum and maximum, conversions between widths.

All functions take lane values of type f16, f32 or f64 and return the same. With the default mode (round to nearest even, denormals
kept) they become plain IEEE operations. f16 is computed in f32 with one rounding at the end.
"""

from __future__ import annotations

from mocks.isa.ir import BITS, Builder, Value
from mocks.isa.rt_math import directed, vector_function

MANTISSA = {"f16": 10, "f32": 23, "f64": 52}
NEAREST, UP, DOWN, ZERO = range(4)


def sign_mask(ty: str) -> int:
    return 1 << (BITS[ty] - 1)


def exponent_mask(ty: str) -> int:
    """The exponent field, in place; also the bits of +infinity."""
    return sign_mask(ty) - (1 << MANTISSA[ty])


def quiet_bit(ty: str) -> int:
    return 1 << (MANTISSA[ty] - 1)


def float_abs(v: Value) -> Value:
    return (v.as_int() & (sign_mask(v.ty) - 1)).as_float()


def float_neg(v: Value) -> Value:
    return (v.as_int() ^ sign_mask(v.ty)).as_float()


def is_nan(v: Value) -> Value:
    return v.cmp("uno", v)


def is_infinite(v: Value) -> Value:
    return float_abs(v).as_int().eq(exponent_mask(v.ty))


def is_signalling(v: Value) -> Value:
    return is_nan(v) & (v.as_int() & quiet_bit(v.ty)).eq(0)


def quieted(v: Value) -> Value:
    return (v.as_int() | quiet_bit(v.ty)).as_float()


def quiet_nan(b: Builder, model: Value, negative: bool = False) -> Value:
    bits = exponent_mask(model.ty) | quiet_bit(model.ty) | (sign_mask(model.ty) if negative else 0)
    return b.const(f"i{model.bits}", bits, model.n).as_float()


def infinity(b: Builder, model: Value) -> Value:
    return b.const(f"i{model.bits}", exponent_mask(model.ty), model.n).as_float()


def exponent_field(v: Value) -> Value:
    """Biased exponent, as an integer of the value's width."""
    return (v.as_int() & exponent_mask(v.ty)).lshr(MANTISSA[v.ty])


def flushed(v: Value) -> Value:
    """Denormals become zeros of the same sign."""
    bits = v.as_int()
    return (bits & exponent_mask(v.ty)).eq(0).select(bits & sign_mask(v.ty), bits).as_float()


def to_odd_f32(v: Value) -> Value:
    """f64 to f32 so that a further rounding to at most 22 bits gives the same as one rounding: inexact results get an odd last bit."""
    near = v.fptrunc("f32")
    back = near.fpext("f64")
    too_big = float_abs(back).cmp("ogt", float_abs(v))
    bits = near.as_int() - too_big.zext("i32")
    inexact = bits.as_float().fpext("f64").cmp("one", v)
    return (bits | inexact.zext("i32")).as_float()


def two_sum_odd(x: Value, y: Value) -> Value:
    """x + y rounded to odd, so that a further rounding is exact (x and y finite enough not to overflow)."""
    total = x + y
    z = total - x
    error = (x - (total - z)) + (y - z)
    bits = total.as_int()
    even = (bits & 1).eq(0)
    same_sign = (bits ^ error.as_int()).cmp("sge", 0)
    step = same_sign.select(total.b.const(bits.ty, 1, bits.n), -1)
    return (error.cmp("one", 0.0) & even).select(bits + step, bits).as_float()


class FloatEnv:
    """The static part of MODE that code is translated for."""

    def __init__(self, b: Builder, mode_bits: int) -> None:
        self.b = b
        self.rounds = {"f32": mode_bits & 3, "f16": mode_bits >> 2 & 3, "f64": mode_bits >> 2 & 3}
        self.denormals = {"f32": mode_bits >> 4 & 3, "f16": mode_bits >> 6 & 3, "f64": mode_bits >> 6 & 3}
        self.dx10_clamp = bool(mode_bits >> 8 & 1)
        self.ieee = bool(mode_bits >> 9 & 1)
        self.fp16_ovfl = bool(mode_bits >> 10 & 1)

    def flush_in(self, v: Value) -> Value:
        return v if self.denormals[v.ty] & 1 else flushed(v)

    def flush_out(self, v: Value) -> Value:
        return v if self.denormals[v.ty] & 2 else flushed(v)

    # -- arithmetic ------------------------------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        if x.ty == "f16":
            if self.rounds["f16"]:
                return self.narrow(x.fpext("f64") + y.fpext("f64"), "f16")
            return self.half((x.fpext("f32") + y.fpext("f32")).fptrunc("f16"), x, y)
        if self.rounds[x.ty]:
            return directed(self.b, "fadd", self.rounds[x.ty], x, y)
        return x + y

    def sub(self, x: Value, y: Value) -> Value:
        return self.add(x, float_neg(y))

    def mul(self, x: Value, y: Value) -> Value:
        if x.ty == "f16":
            if self.rounds["f16"]:
                return self.narrow(x.fpext("f64") * y.fpext("f64"), "f16")
            return self.half((x.fpext("f32") * y.fpext("f32")).fptrunc("f16"), x, y)
        if self.rounds[x.ty]:
            return directed(self.b, "fmul", self.rounds[x.ty], x, y)
        return x * y

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        if x.ty == "f16":
            if self.rounds["f16"]:
                return self.narrow(two_sum_odd(x.fpext("f64") * y.fpext("f64"), z.fpext("f64")), "f16")
            total = two_sum_odd(x.fpext("f32") * y.fpext("f32"), z.fpext("f32"))
            return self.half(total.fptrunc("f16"), x, y, z)
        if self.rounds[x.ty]:
            return directed(self.b, "fma", self.rounds[x.ty], x, y, z)
        return self.b.overloaded("fma", x, y, z)

    def half(self, result: Value, *inputs: Value) -> Value:
        """FP16_OVFL: a finite computation that overflows gives the largest finite value."""
        if not self.fp16_ovfl:
            return result
        finite = ~is_infinite(inputs[0])
        for other in inputs[1:]:
            finite = finite & ~is_infinite(other)
        largest = (result.as_int() & 0x8000 | 0x7BFF).as_float()
        return (finite & is_infinite(result)).select(largest, result)

    # -- width -----------------------------------------------------------------------------------------------------------

    def narrow(self, v: Value, ty: str, rounding: int | None = None) -> Value:
        """One rounding to a narrower type, by the mode of the result type unless `rounding` says otherwise."""
        if v.ty == ty:
            return v
        rounding = self.rounds[ty] if rounding is None else rounding
        near = to_odd_f32(v).fptrunc("f16") if (v.ty, ty) == ("f64", "f16") else v.fptrunc(ty)
        if rounding != NEAREST:
            bits = near.as_int()
            back = near.fpext(v.ty)
            if rounding == ZERO:
                bits = bits - float_abs(back).cmp("ogt", float_abs(v)).zext(bits.ty)
            else:
                wrong = back.cmp("olt" if rounding == UP else "ogt", v)
                negative = v.as_int().cmp("slt", 0)
                away = ~negative if rounding == UP else negative
                one = self.b.const(bits.ty, 1, bits.n)
                bits = wrong.select(bits + away.select(one, -1), bits)
            near = bits.as_float()
        return self.half(near, v) if ty == "f16" else near

    # -- minimum and maximum ---------------------------------------------------------------------------------------------

    def minmax(self, x: Value, y: Value, smallest: bool) -> Value:
        """-0 is less than +0. A quiet NaN loses against a number; with IEEE on, a signalling NaN wins and is quieted."""
        xi, yi = x.as_int(), y.as_int()
        x_wins = x.cmp("olt" if smallest else "ogt", y)
        y_wins = x.cmp("ogt" if smallest else "olt", y)
        tie = xi | yi if smallest else xi & yi
        result = x_wins.select(xi, y_wins.select(yi, tie))
        result = is_nan(x).select(yi, result)
        result = is_nan(y).select(xi, result)
        if self.ieee:
            result = is_signalling(y).select(quieted(y).as_int(), result)
            result = is_signalling(x).select(quieted(x).as_int(), result)
        else:
            result = (is_nan(x) & is_nan(y)).select(quieted(x).as_int(), result)
        return result.as_float()

    def min(self, x: Value, y: Value) -> Value:
        return self.minmax(x, y, True)

    def max(self, x: Value, y: Value) -> Value:
        return self.minmax(x, y, False)

    def med3(self, x: Value, y: Value, z: Value) -> Value:
        nan = is_nan(x) | is_nan(y) | is_nan(z)
        low, high = self.min(x, y), self.max(x, y)
        return nan.select(self.min(low, z), self.max(low, self.min(high, z)))

    # -- rounding to integers ----------------------------------------------------------------------------------------------

    def round_to_integer(self, v: Value, how: str) -> Value:
        """how: trunc floor ceil roundeven."""
        if v.ty == "f16":
            return self.b.overloaded(how, v.fpext("f32")).fptrunc("f16")
        return self.b.overloaded(how, v)

    def to_int(self, v: Value, ty: str, signed: bool) -> Value:
        """Truncate toward zero and saturate; NaN gives 0."""
        if v.ty == "f16":
            v = v.fpext("f32")
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat.v{v.n}{ty}.v{v.n}{v.ty}" if v.n > 1 else f"llvm.fpto{'s' if signed else 'u'}i.sat.{ty}.{v.ty}"
        return self.b.intrinsic(name, (ty, v.n), v)

    def clamp(self, v: Value) -> Value:
        """To [0, 1]; -0 becomes +0, NaN becomes 0 with DX10_CLAMP."""
        low = self.b.const(v.ty, 0.0, v.n)
        high = self.b.const(v.ty, 1.0, v.n)
        result = v.cmp("ogt", 1.0).select(high, v.cmp("ogt", 0.0).select(v, low))
        return result if self.dx10_clamp else is_nan(v).select(v, result)

    # -- transcendental ----------------------------------------------------------------------------------------------------

    def transcendental(self, name: str, v: Value) -> Value:
        """exp2, log2, sin, cos (of revolutions) and rsq through f64, one rounding to nearest at the end. f32 flushes denormals."""
        source = flushed(v) if v.ty == "f32" else v
        result = vector_function(self.b, name, source.fpext("f64"))
        if v.ty == "f64":
            return result
        result = self.narrow(result, v.ty, NEAREST)
        return flushed(result) if v.ty == "f32" else result

    def reciprocal(self, v: Value) -> Value:
        if v.ty == "f16":
            return (1.0 / v.fpext("f32")).fptrunc("f16")
        if v.ty == "f64":
            return 1.0 / v
        return flushed(1.0 / flushed(v))

    def square_root(self, v: Value) -> Value:
        if v.ty == "f16":
            return self.b.overloaded("sqrt", v.fpext("f32")).fptrunc("f16")
        if v.ty == "f64":
            return self.b.overloaded("sqrt", v)
        return flushed(self.b.overloaded("sqrt", flushed(v)))
