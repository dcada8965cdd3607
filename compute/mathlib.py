"""Functions of real numbers, built from plain IR ops, so that every target computes the same bits.

Largest errors against the exact value, in units of the last place of the result (tests/compute/test_mathlib.py measures them):

| function   | float32 | float64 |
|------------|---------|---------|
| exp, exp2  | 1       | 1.5     |
| log, log2  | 1       | 1.5     |
| sin, cos   | 1.5     | 1.5     | every finite argument, however large
| tanh       | 2       | 2.5     |
| pow        | 0.6     | 16      |
| fmod       | exact   | exact   |

float16 and bfloat16 are computed in float32 and rounded once more. Special values follow C's math.h. Polynomial coefficients are Chebyshev
fits made for this file; reductions are the textbook ones (Cody-Waite for exp, Payne-Hanek for sin and cos).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compute.ir import Builder, Value
from compute.mathtables import (
    ATANH_TAIL_F64,
    ATANH_TAIL_SHORT,
    EXP2_SHORT,
    F32,
    F64,
    FORMATS,
    LOG_TAIL_F32,
    QUARTER,
    QUARTER_LOW,
    TWO_OVER_PI,
    Format,
    f32,
    f64,
    i32,
    i64,
    u32,
    u64,
)


def expand(b: Builder, op: str, args: Sequence[Value]) -> Value:
    """The value of one of the expanded ops of compute/ops.py. Arguments have one dtype: any float; for pow also an integer."""
    dtype = args[0].dtype
    if dtype.is_int:
        assert op == "pow"
        return _integer_pow(b, args[0], args[1])
    if dtype not in FORMATS:
        wide = expand(b, op, [b.cast(a, f32) for a in args])
        return b.cast(wide, dtype)
    return _Math(b, FORMATS[dtype]).call(op, args)


class _Math:
    """The functions for one float format. Short methods below write one IR op each."""

    def __init__(self, b: Builder, form: Format) -> None:
        self.b = b
        self.form = form

    def call(self, op: str, args: Sequence[Value]) -> Value:
        functions: dict[str, Callable[..., Value]] = {
            "exp": self.exp,
            "exp2": self.exp2,
            "log": self.log,
            "log2": self.log2,
            "sin": lambda x: self.sin_cos(x, 0),
            "cos": lambda x: self.sin_cos(x, 1),
            "tanh": self.tanh,
            "pow": self.pow32 if self.form is F32 else self.pow64,
            "fmod": self.fmod,
        }
        return functions[op](*args)

    # --- one op each ---

    def num(self, value: float) -> Value:
        return self.b.const(value, self.form.dtype)

    def whole(self, value: int) -> Value:
        return self.b.const(value, self.form.integer)

    def alu(self, op: str, *args: Value) -> Value:
        return self.b.alu(op, *args)

    def add(self, x: Value, y: Value) -> Value:
        return self.b.alu("add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.b.alu("sub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.b.alu("mul", x, y)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        return self.b.alu("fma", x, y, z)

    def where(self, c: Value, x: Value, y: Value) -> Value:
        return self.b.alu("where", c, x, y)

    def shl(self, x: Value, count: int) -> Value:
        return self.b.alu("shl", x, self.b.const(count, x.dtype), arg="inside")

    def shr(self, x: Value, count: int) -> Value:
        return self.b.alu("shr", x, self.b.const(count, x.dtype), arg="inside")

    def poly(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's rule, coefficients from the constant term up."""
        total = self.num(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.num(c))
        return total

    def clamp(self, x: Value, bounds: tuple[float, float]) -> Value:
        return self.alu("min", self.alu("max", x, self.num(bounds[0])), self.num(bounds[1]))

    def power_of_two(self, k: Value) -> Value:
        """2**k as a float for an integer k in the range of normal numbers."""
        return self.b.bitcast(self.shl(self.add(k, self.whole(self.form.bias)), self.form.mantissa), self.form.dtype)

    def scale(self, x: Value, k: Value) -> Value:
        """x * 2**k with one rounding, also into the denormals: the first of two steps is exact."""
        exponent = self.b.cast(k, self.form.integer)
        half = self.shr(exponent, 1)
        return self.mul(self.mul(x, self.power_of_two(half)), self.power_of_two(self.sub(exponent, half)))

    def copy_sign(self, magnitude: Value, sign: Value) -> Value:
        form = self.form
        top = self.b.const(1 << (form.dtype.bits - 1), form.unsigned)
        bits = self.alu("and", self.b.bitcast(sign, form.unsigned), top)
        rest = self.alu("and", self.b.bitcast(magnitude, form.unsigned), self.b.const((1 << (form.dtype.bits - 1)) - 1, form.unsigned))
        return self.b.bitcast(self.alu("or", bits, rest), form.dtype)

    # --- exponentials ---

    def exp(self, x: Value) -> Value:
        form = self.form
        x = self.clamp(x, form.exp_range)
        k = self.alu("rint", self.mul(x, self.num(form.log2e[0])))
        r = self.fma(k, self.num(-form.ln2[0]), x)
        r = self.fma(k, self.num(-form.ln2[1]), r)
        p = self.add(self.fma(self.mul(r, r), self.poly(r, form.exp_tail), r), self.num(1.0))
        return self.scale(p, k)

    def exp2(self, x: Value) -> Value:
        x = self.clamp(x, self.form.exp2_range)
        k = self.alu("rint", x)
        return self.scale(self.poly(self.sub(x, k), self.form.exp2_poly), k)

    # --- logarithms ---

    def log_parts(self, x: Value) -> tuple[Value, Value]:
        """(e, f) with x == 2**e * (1 + f) and 1 + f between sqrt(1/2) and sqrt(2), for positive finite x. e is a float."""
        form = self.form
        small = self.alu("lt", x, self.num(form.tiny))
        x = self.where(small, self.mul(x, self.num(2.0**form.tiny_exponent)), x)
        bits = self.sub(self.b.bitcast(x, form.integer), self.whole(form.sqrt_half_bits))
        e = self.shr(bits, form.mantissa)
        e = self.where(small, self.sub(e, self.whole(form.tiny_exponent)), e)
        m = self.add(self.alu("and", bits, self.whole((1 << form.mantissa) - 1)), self.whole(form.sqrt_half_bits))
        return self.b.cast(e, form.dtype), self.sub(self.b.bitcast(m, form.dtype), self.num(1.0))

    def log_rest(self, f: Value) -> Value:
        """log(1 + f) - f."""
        half_square = self.mul(self.mul(f, f), self.num(0.5))
        if self.form is F32:
            cube = self.mul(self.mul(f, f), f)
            return self.sub(self.mul(cube, self.poly(f, LOG_TAIL_F32)), half_square)
        s = self.alu("div", f, self.add(f, self.num(2.0)))
        z = self.mul(s, s)
        return self.sub(self.mul(s, self.add(half_square, self.mul(z, self.poly(z, ATANH_TAIL_F64)))), half_square)

    def log_ends(self, x: Value, result: Value) -> Value:
        """The result with the values for 0, negative numbers, infinity and NaN put in."""
        result = self.where(self.alu("lt", x, self.num(float("inf"))), result, x)
        result = self.where(self.alu("eq", x, self.num(0.0)), self.num(-float("inf")), result)
        return self.where(self.alu("lt", x, self.num(0.0)), self.num(float("nan")), result)

    def log(self, x: Value) -> Value:
        e, f = self.log_parts(x)
        high, low = self.form.ln2
        rest = self.fma(e, self.num(low), self.log_rest(f))
        return self.log_ends(x, self.add(self.mul(e, self.num(high)), self.add(f, rest)))

    def log2(self, x: Value) -> Value:
        e, f = self.log_parts(x)
        high, low = self.form.log2e
        product = self.mul(f, self.num(high))
        rest = self.add(self.fma(f, self.num(high), self.alu("neg", product)), self.fma(f, self.num(low), self.mul(self.log_rest(f), self.num(high))))
        total = self.add(e, product)
        rest = self.add(self.add(self.sub(e, total), product), rest)
        return self.log_ends(x, self.add(total, rest))

    # --- circular functions ---

    def sin_cos(self, x: Value, quarter_turns: int) -> Value:
        """sin(x + quarter_turns * pi/2)."""
        form, b = self.form, self.b
        magnitude = self.alu("abs", x)
        q, r = self.reduce_by_quarters(magnitude)
        near = self.alu("lt", magnitude, self.num(0.7853981))
        r = self.where(near, magnitude, r)
        q = self.where(near, b.const(0, u32), q)
        if quarter_turns:
            q = self.add(q, b.const(quarter_turns, u32))
        z = self.mul(r, r)
        sine = self.fma(self.mul(r, z), self.poly(z, form.sin_tail), r)
        half = self.mul(z, self.num(0.5))
        one_less = self.sub(self.num(1.0), half)
        lost = self.sub(self.sub(self.num(1.0), one_less), half)
        cosine = self.add(one_less, self.fma(self.mul(z, z), self.poly(z, form.cos_tail), lost))
        odd = self.alu("ne", self.alu("and", q, b.const(1, u32)), b.const(0, u32))
        negative = self.alu("ne", self.alu("and", q, b.const(2, u32)), b.const(0, u32))
        value = self.where(odd, cosine, sine)
        value = self.where(negative, self.alu("neg", value), value)
        if not quarter_turns:
            value = self.where(self.alu("lt", x, self.num(0.0)), self.alu("neg", value), value)
            value = self.where(self.alu("eq", x, self.num(0.0)), x, value)
        return self.where(self.alu("lt", magnitude, self.num(float("inf"))), value, self.num(float("nan")))

    def reduce_by_quarters(self, x: Value) -> tuple[Value, Value]:
        """(q, r) with x == q * pi/2 + r, |r| <= pi/4, q modulo 4, for x >= pi/4: Payne and Hanek's method in fixed point.

        x is m * 2**e with an integer m. Digits of 2/pi whose product with m * 2**e is a multiple of 4 do not matter; the window behind them is
        multiplied by m, which gives x * 2/pi modulo 4 with its top two bits the quarter.
        """
        form, b = self.form, self.b
        bits = b.bitcast(x, form.unsigned)
        exponent = b.cast(self.shr(bits, form.mantissa), u32)
        mantissa = self.alu("or", self.alu("and", bits, b.const((1 << form.mantissa) - 1, form.unsigned)), b.const(1 << form.mantissa, form.unsigned))
        # the window starts with digit number exponent - bias - mantissa - 1; the table's zero words put digit 1 at position 64 (or, without the first, 32)
        zeros = 1 if form is F32 else 2
        first = self.sub(exponent, b.const(form.bias + form.mantissa + 2 - 32 * zeros, u32))
        shift = self.alu("and", first, b.const(31, u32))
        word = self.shr(first, 5)
        count = 4 if form is F32 else 7
        window = self.digits_of_two_over_pi(word, count, TWO_OVER_PI[2 - zeros :], 5 if form is F32 else 33)
        p = [self.funnel(window[i], window[i + 1], shift) for i in range(count - 1)]
        if form is F32:
            m = b.cast(mantissa, u64)
            product = self.add(
                self.shl(self.mul(m, b.cast(p[0], u64)), 32),
                self.add(self.mul(m, b.cast(p[1], u64)), self.shr(self.mul(m, b.cast(p[2], u64)), 32)),
            )
            fine = None
        else:
            product, fine = self.wide_product(mantissa, p)
        q = self.shr(self.add(product, b.const(1 << 61, u64)), 62)
        fraction = b.bitcast(self.sub(product, self.shl(q, 62)), i64)
        wide = _Math(b, F64)
        turn = b.cast(fraction, f64)
        if fine is None:
            return b.cast(q, u32), b.cast(wide.mul(turn, wide.num(QUARTER)), f32)
        rest = wide.add(
            b.cast(self.sub(fraction, b.cast(turn, i64)), f64),
            wide.mul(b.cast(fine, f64), wide.num(2.0**-64)),
        )
        head = wide.mul(turn, wide.num(QUARTER))
        error = wide.fma(turn, wide.num(QUARTER), wide.alu("neg", head))
        tail = wide.fma(rest, wide.num(QUARTER), wide.fma(turn, wide.num(QUARTER_LOW), error))
        return b.cast(q, u32), wide.add(head, tail)

    def digits_of_two_over_pi(self, word: Value, count: int, table: Sequence[int], choices: int) -> list[Value]:
        """`count` words of the table from position `word` on, which lies below `choices`: a shifter of selects, one level a bit of the position."""
        b = self.b
        words = [b.const(w, u32) for w in table[: choices + count - 1]]
        step = 1 << ((choices - 1).bit_length() - 1)
        while step:
            taken = self.alu("ne", self.alu("and", word, b.const(step, u32)), b.const(0, u32))
            kept = min(len(words), count + step - 1)
            words = [self.where(taken, words[min(i + step, len(words) - 1)], words[i]) for i in range(kept)]
            step >>= 1
        return words

    def funnel(self, high: Value, low: Value, shift: Value) -> Value:
        """The 32 bits that start `shift` (below 32) bits into high:low."""
        b = self.b
        below = b.alu("shr", self.shr(low, 1), b.alu("sub", b.const(31, u32), shift), arg="inside")
        return self.alu("or", b.alu("shl", high, shift, arg="inside"), below)

    def wide_product(self, m: Value, p: Sequence[Value]) -> tuple[Value, Value]:
        """m (53 bits) times the 192-bit fraction p, modulo 1: its first 64 bits and the 64 bits after them."""
        b = self.b
        low_half = b.const(0xFFFFFFFF, u64)
        m0, m1 = self.alu("and", m, low_half), self.shr(m, 32)
        words = [b.cast(w, u64) for w in p]
        # column c holds what has weight 2**(-32 * (c + 1)); a word product at p[i] spreads over columns i and i - 1, m1 moves it one further up
        columns: list[list[Value]] = [[] for _ in range(len(p) + 1)]
        for i, w in enumerate(words):
            for up, part in ((0, m0), (1, m1)):
                full = self.mul(w, part)
                if i - up >= 0:
                    columns[i - up].append(self.alu("and", full, low_half))
                if i - up - 1 >= 0:
                    columns[i - up - 1].append(self.shr(full, 32))
        carry = b.const(0, u64)
        done: list[Value] = []
        for column in reversed(columns[: len(p)]):
            total = carry
            for entry in column:
                total = self.add(total, entry)
            done.append(self.alu("and", total, low_half))
            carry = self.shr(total, 32)
        done.reverse()
        return self.alu("or", self.shl(done[0], 32), done[1]), self.alu("or", self.shl(done[2], 32), done[3])

    # --- the others ---

    def tanh(self, x: Value) -> Value:
        magnitude = self.alu("abs", x)
        z = self.mul(x, x)
        near = self.fma(self.mul(magnitude, z), self.poly(z, self.form.tanh_tail), magnitude)
        far = self.sub(self.num(1.0), self.alu("div", self.num(2.0), self.add(self.exp(self.add(magnitude, magnitude)), self.num(1.0))))
        return self.copy_sign(self.where(self.alu("lt", magnitude, self.num(0.625)), near, far), x)

    def pow32(self, x: Value, y: Value) -> Value:
        """2**(y * log2|x|) in float64, whose 29 more bits make the float32 result right up to rare roundings."""
        b = self.b
        wide = _Math(b, F64)
        magnitude = b.cast(self.alu("abs", x), f64)
        e, f = wide.log_parts(magnitude)
        s = wide.alu("div", f, wide.add(f, wide.num(2.0)))
        z = wide.mul(s, s)
        logarithm = wide.fma(wide.mul(s, z), wide.poly(z, ATANH_TAIL_SHORT), wide.add(s, s))
        logarithm = wide.log_ends(magnitude, wide.fma(logarithm, wide.num(F64.log2e[0]), e))
        t = wide.clamp(wide.mul(b.cast(y, f64), logarithm), (-200.0, 200.0))
        k = wide.alu("rint", t)
        p = wide.mul(wide.poly(wide.sub(t, k), EXP2_SHORT), wide.power_of_two(b.cast(k, i64)))
        return self.pow_ends(x, y, b.cast(p, f32))

    def pow64(self, x: Value, y: Value) -> Value:
        """2**(y * log2|x|) with the logarithm as a sum of two float64."""
        magnitude = self.alu("abs", x)
        e, f = self.log_parts(magnitude)
        d = self.add(f, self.num(2.0))
        d_low = self.sub(f, self.sub(d, self.num(2.0)))
        s = self.alu("div", f, d)
        residue = self.fma(self.alu("neg", s), d, f)
        s_low = self.alu("div", self.fma(self.alu("neg", s), d_low, residue), d)
        z = self.mul(s, s)
        tail = self.fma(self.mul(s, z), self.poly(z, ATANH_TAIL_F64), self.add(s_low, s_low))
        head = self.add(s, s)
        natural = self.add(head, tail)
        natural_low = self.add(self.sub(head, natural), tail)
        high, low = self.form.log2e
        product = self.mul(natural, self.num(high))
        product_low = self.fma(natural, self.num(high), self.alu("neg", product))
        product_low = self.add(product_low, self.fma(natural, self.num(low), self.mul(natural_low, self.num(high))))
        total = self.add(e, product)
        rest = self.add(self.add(self.sub(e, total), product), product_low)
        total = self.log_ends(magnitude, total)
        t = self.mul(y, total)
        finite = self.alu("lt", self.alu("abs", t), self.num(1100.0))
        t_low = self.where(finite, self.fma(y, rest, self.fma(y, total, self.alu("neg", t))), self.num(0.0))
        t = self.clamp(t, self.form.exp2_range)
        k = self.alu("rint", t)
        p = self.poly(self.add(self.sub(t, k), t_low), self.form.exp2_poly)
        return self.pow_ends(x, y, self.scale(p, k))

    def pow_ends(self, x: Value, y: Value, magnitude: Value) -> Value:
        """Sign, and the special cases of C's pow."""
        one, zero = self.num(1.0), self.num(0.0)
        whole = self.alu("eq", self.alu("trunc", y), y)
        half = self.mul(y, self.num(0.5))
        odd = self.alu("and", whole, self.alu("ne", self.alu("trunc", half), half))
        below = self.alu("ne", self.alu("and", self.b.bitcast(x, self.form.unsigned), self.b.const(1 << (self.form.dtype.bits - 1), self.form.unsigned)),
                         self.b.const(0, self.form.unsigned))  # fmt: skip
        result = self.where(self.alu("and", odd, below), self.alu("neg", magnitude), magnitude)
        unreal = self.alu("and", self.alu("lt", x, zero), self.alu("and", self.alu("lt", self.num(-float("inf")), x), self.alu("ne", self.alu("trunc", y), y)))
        result = self.where(unreal, self.num(float("nan")), result)
        unit = self.alu("and", self.alu("eq", self.alu("abs", x), one), self.alu("eq", self.alu("abs", y), self.num(float("inf"))))
        result = self.where(unit, one, result)
        return self.where(self.alu("or", self.alu("eq", x, one), self.alu("eq", y, zero)), one, result)

    def fmod(self, x: Value, y: Value) -> Value:
        """Remainder of the division cut towards zero, with the sign of x: long division of the mantissas, exact."""
        form, b = self.form, self.b
        u = form.unsigned
        ax, ay = self.alu("abs", x), self.alu("abs", y)
        ex, mx = self.integer_parts(ax)
        ey, my = self.integer_parts(ay)
        chunk = 8 if form is F32 else 11
        """Bits a round: the remainder, below 2**(mantissa + 1), stays inside the integer type when shifted by them."""
        rounds = -(-(2 * form.bias + form.mantissa) // chunk)
        zero = b.const(0, u)
        divisor = self.where(self.alu("eq", my, zero), b.const(1, u), my)
        left = self.alu("max", self.sub(ex, ey), self.whole(0))
        lanes = max(mx.lanes, my.lanes)
        start = b.alu("mod", b.splat(mx, lanes), b.splat(divisor, lanes))
        with b.loop(b.const(rounds, i32), [start, b.splat(left, lanes)]) as loop:
            remainder, remaining = loop.phis
            step = self.alu("min", remaining, self.whole(chunk))
            moved = b.alu("shl", remainder, b.bitcast(step, u), arg="inside")
            loop.yields = [b.alu("mod", moved, b.splat(divisor, lanes)), self.sub(remaining, step)]
        remainder = loop.results[0]
        # remainder * 2**(ey - bias - mantissa): two exact steps, because the true remainder is a float
        scaled = self.scale(b.cast(b.bitcast(remainder, form.integer), form.dtype), self.sub(ey, self.whole(form.bias + form.mantissa)))
        result = self.where(self.alu("lt", ax, ay), ax, scaled)
        invalid = self.alu("or", self.alu("eq", ay, self.num(0.0)), self.alu("or", self.alu("ne", y, y), self.alu("not", self.alu("lt", ax, self.num(float("inf"))))))
        return self.where(invalid, self.num(float("nan")), self.copy_sign(result, x))

    def integer_parts(self, x: Value) -> tuple[Value, Value]:
        """(e, m) with x == m * 2**(e - bias - mantissa) for finite x >= 0; e is at least 1, as for denormals."""
        form, b = self.form, self.b
        bits = b.bitcast(x, form.integer)
        e = self.shr(bits, form.mantissa)
        fraction = self.alu("and", bits, self.whole((1 << form.mantissa) - 1))
        normal = self.alu("ne", e, self.whole(0))
        m = self.where(normal, self.alu("or", fraction, self.whole(1 << form.mantissa)), fraction)
        return self.alu("max", e, self.whole(1)), b.bitcast(m, form.unsigned)


def _integer_pow(b: Builder, base: Value, exponent: Value) -> Value:
    """base ** exponent modulo 2**bits by squaring. A negative exponent gives the whole part of the true result: 0, or 1 or -1 for those bases."""
    dtype = base.dtype
    lanes = max(base.lanes, exponent.lanes)
    base, exponent = b.splat(base, lanes), b.splat(exponent, lanes)
    one, zero = b.const(1, dtype), b.const(0, dtype)
    with b.loop(b.const(dtype.bits, i32), [b.splat(one, lanes), base, exponent]) as loop:
        result, power, rest = loop.phis
        odd = b.alu("ne", b.alu("and", rest, one), zero)
        loop.yields = [
            b.alu("where", odd, b.alu("mul", result, power), result),
            b.alu("mul", power, power),
            b.alu("shr", rest, one, arg="inside"),
        ]
    result = loop.results[0]
    if dtype.kind == "uint":
        return result
    minus_one = b.const(-1, dtype)
    unit = b.alu("or", b.alu("eq", base, one), b.alu("eq", base, minus_one))
    sign = b.alu("where", b.alu("and", b.alu("eq", base, minus_one), b.alu("ne", b.alu("and", exponent, one), zero)), minus_one, one)
    fraction = b.alu("where", unit, sign, zero)
    return b.alu("where", b.alu("lt", exponent, zero), fraction, result)
