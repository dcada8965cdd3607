"""Semantics of vector floating-point and conversion instructions."""

from __future__ import annotations

from collections.abc import Callable

from mocks.isa import floats
from mocks.isa.context import Context, Unmodelled
from mocks.isa.floats import NEAREST, ZERO, exponent_field, float_abs, float_neg, infinity, is_infinite, is_nan, quiet_nan, quieted
from mocks.isa.ir import LANES, Value
from mocks.isa.valu import Result, define

define("v_add_f16 v_add_f32 v_add_f64", lambda c, x, y: c.env.add(x, y))
define("v_sub_f16 v_sub_f32", lambda c, x, y: c.env.sub(x, y))
define("v_subrev_f16 v_subrev_f32", lambda c, x, y: c.env.sub(y, x))
define("v_mul_f16 v_mul_f32 v_mul_f64", lambda c, x, y: c.env.mul(x, y))
define("v_fma_f16 v_fma_f32 v_fma_f64", lambda c, x, y, z: c.env.fma(x, y, z))
define("v_fmac_f16 v_fmac_f32", lambda c, x, y: c.env.fma(x, y, c.env.flush_in(c.old_dst())))


def _literal(c: Context, model: Value) -> Value:
    """The dword behind the instruction as a float of the model's type."""
    assert c.inst.literal is not None
    bits = c.inst.literal & ((1 << model.bits) - 1)
    return c.env.flush_in(c.b.const(f"i{model.bits}", bits, model.n).as_float())


define("v_fmaak_f16 v_fmaak_f32", lambda c, x, y: c.env.fma(x, y, _literal(c, x)))
define("v_fmamk_f16 v_fmamk_f32", lambda c, x, y: c.env.fma(x, _literal(c, x), y))


def _either_zero(x: Value, y: Value) -> Value:
    return x.eq(0.0) | y.eq(0.0)


def _mul_dx9(c: Context, x: Value, y: Value) -> Value:
    return _either_zero(x, y).select(0.0, c.env.mul(x, y))


def _fma_dx9(c: Context, x: Value, y: Value, z: Value) -> Value:
    return _either_zero(x, y).select(c.env.add(z, c.b.const(z.ty, 0.0, z.n)), c.env.fma(x, y, z))


define("v_mul_dx9_zero_f32", _mul_dx9)
define("v_fma_dx9_zero_f32", _fma_dx9)
define("v_fmac_dx9_zero_f32", lambda c, x, y: _fma_dx9(c, x, y, c.env.flush_in(c.old_dst())))

define("v_min_f16 v_min_f32 v_min_f64", lambda c, x, y: c.env.min(x, y))
define("v_max_f16 v_max_f32 v_max_f64", lambda c, x, y: c.env.max(x, y))
define("v_min3_f16 v_min3_f32", lambda c, x, y, z: c.env.min(c.env.min(x, y), z))
define("v_max3_f16 v_max3_f32", lambda c, x, y, z: c.env.max(c.env.max(x, y), z))
define("v_maxmin_f16 v_maxmin_f32", lambda c, x, y, z: c.env.min(c.env.max(x, y), z))
define("v_minmax_f16 v_minmax_f32", lambda c, x, y, z: c.env.max(c.env.min(x, y), z))
define("v_med3_f16 v_med3_f32", lambda c, x, y, z: c.env.med3(x, y, z))

for _name, _how in (("trunc", "trunc"), ("ceil", "ceil"), ("floor", "floor"), ("rndne", "roundeven")):
    define(f"v_{_name}_f16 v_{_name}_f32 v_{_name}_f64", lambda c, x, how=_how: c.env.round_to_integer(x, how))


def _fract(c: Context, x: Value) -> Value:
    wide = x.fpext("f32") if x.ty == "f16" else x
    part = wide - c.b.overloaded("floor", wide)
    largest = {"f16": 0x3BFF, "f32": 0x3F7FFFFF, "f64": 0x3FEFFFFFFFFFFFFF}[x.ty]
    part = part.fptrunc("f16") if x.ty == "f16" else part
    top = c.b.const(f"i{x.bits}", largest, x.n).as_float()
    return part.cmp("ogt", top).select(top, part)


define("v_fract_f16 v_fract_f32 v_fract_f64", _fract)

# --- transcendental -----------------------------------------------------------------------------------------------------

define("v_rcp_f16 v_rcp_f32 v_rcp_iflag_f32 v_rcp_f64", lambda c, x: c.env.reciprocal(x), arithmetic=False)
define("v_sqrt_f16 v_sqrt_f32 v_sqrt_f64", lambda c, x: c.env.square_root(x), arithmetic=False)
define("v_rsq_f16 v_rsq_f32 v_rsq_f64", lambda c, x: c.env.transcendental("rsq", x), arithmetic=False)
for _name, _function in (("exp", "exp2"), ("log", "log2"), ("sin", "sin"), ("cos", "cos")):
    define(f"v_{_name}_f16 v_{_name}_f32", lambda c, x, f=_function: c.env.transcendental(f, x), arithmetic=False)

# --- exponent and mantissa --------------------------------------------------------------------------------------------------


def _normal(x: Value) -> tuple[Value, Value]:
    """x as a normal f64 and the power of two (i64) that was taken out to make it one."""
    if x.ty != "f64":
        return x.fpext("f64"), x.b.const("i64", 0, x.n)
    tiny = exponent_field(x).eq(0)
    return tiny.select(x * 2.0**54, x), tiny.select(x.b.const("i64", 54, x.n), 0)


def _frexp_exponent(c: Context, x: Value) -> Value:
    wide, taken = _normal(x)
    exponent = exponent_field(wide) - 1022 - taken
    special = x.eq(0.0) | is_nan(x) | is_infinite(x)
    result = special.select(0, exponent)
    return result.trunc("i16" if x.ty == "f16" else "i32")


def _frexp_mantissa(c: Context, x: Value) -> Value:
    wide, _ = _normal(x)
    mantissa = ((wide.as_int() & 0x800FFFFFFFFFFFFF) | 0x3FE0000000000000).as_float()
    mantissa = mantissa.fptrunc("f32").fptrunc("f16") if x.ty == "f16" else mantissa.fptrunc(x.ty)  # exact
    result = (x.eq(0.0) | is_infinite(x)).select(x, mantissa)
    return is_nan(x).select(quieted(x), result)


define("v_frexp_exp_i16_f16 v_frexp_exp_i32_f32 v_frexp_exp_i32_f64", _frexp_exponent)
define("v_frexp_mant_f16 v_frexp_mant_f32 v_frexp_mant_f64", _frexp_mantissa)


def _power_of_two(n: Value) -> Value:
    """2^n as f64 for n (i64) in the normal range."""
    return ((n + 1023) << 52).cast("f64")


def _limit(n: Value, low: int, high: int) -> Value:
    n = n.cmp("slt", low).select(low, n)
    return n.cmp("sgt", high).select(high, n)


def _ldexp(c: Context, x: Value, n: Value) -> Value:
    n = n.as_int().sext("i64")
    if x.ty != "f64":
        # Exact in f64, so the only rounding is the last one.
        return c.env.narrow(x.fpext("f64") * _power_of_two(_limit(n, -500, 500)), x.ty)
    n = _limit(n, -2200, 2200)
    for _ in range(2):  # at most two steps stay outside the range of one multiplication; neither rounds
        high, low = n.cmp("sgt", 1023), n.cmp("slt", -1022)
        x = high.select(x * 2.0**1023, low.select(x * 2.0**-969, x))
        n = high.select(n - 1023, low.select(n + 969, n))
    return c.env.mul(x, _power_of_two(_limit(n, -1022, 1023)))


define("v_ldexp_f16 v_ldexp_f32 v_ldexp_f64", _ldexp)

# --- division helpers -----------------------------------------------------------------------------------------------------

# thresholds of v_div_scale and friends per type: exponent distance, log2 of the largest denominator with a normal reciprocal,
# smallest useful numerator exponent, power of two of the scale factor, scale of v_div_fmas
DIVISION = {"f32": (96, 126, 23, 64, 127), "f64": (768, 1022, 53, 128, 1023)}


def _div_scale(c: Context, x: Value, den: Value, num: Value) -> Result:
    """x is the denominator or the numerator, whichever is to be scaled. Rows of the specification's table, last one first."""
    far, top, small, power, _ = DIVISION[x.ty]
    up, down = c.env.mul(x, c.b.const(x.ty, 2.0**power, LANES)), c.env.mul(x, c.b.const(x.ty, 2.0**-power, LANES))
    distance = exponent_field(num) - exponent_field(den)
    is_den, is_num = x.eq(den), x.eq(num)
    big = float_abs(den).cmp("ogt", 2.0**top)
    below = distance.cmp("slt", -top)
    denormal = exponent_field(den).eq(0)
    zero = den.eq(0.0) | num.eq(0.0)
    wide = distance.cmp("sge", far)
    rows = [
        (exponent_field(num).cmp("ule", small), up, False),
        (below, is_num.select(up, x), True),
        (big, down, False),
        (big & below, is_den.select(down, x), True),
        (denormal, up, False),
        (wide, is_den.select(up, x), True),
        (zero, quiet_nan(c.b, x), True),
    ]
    value, mask = x, c.b.const("i1", 0, LANES)
    for condition, scaled, flag in rows:
        value = condition.select(scaled, value)
        mask = mask | condition if flag else mask & ~condition
    return value, mask


define("v_div_scale_f32 v_div_scale_f64", _div_scale)


def _div_fmas(c: Context, x: Value, y: Value, z: Value) -> Value:
    """fma, scaled by 2^64 (f64: 2^128) or its inverse where VCC says so, with one rounding at the end."""
    power, bias = DIVISION[x.ty][3:]
    grow = exponent_field(z).cmp("ugt", bias)
    scale = grow.select(c.b.const(x.ty, 2.0**power, LANES), 2.0**-power)
    plain = c.env.fma(x, y, z)
    if x.ty == "f32":
        exact = floats.two_sum_odd(x.fpext("f64") * y.fpext("f64"), z.fpext("f64"))
        scaled = c.env.narrow(exact * scale.fpext("f64"), "f32")
    else:
        scaled = _scaled_fma_f64(c, x, y, z, scale)
    return c.regs.read_mask(106).select(scaled, plain)


def _scaled_fma_f64(c: Context, x: Value, y: Value, z: Value, scale: Value) -> Value:
    """(x*y + z) * scale as if rounded once. Only a denormal result is rounded by the scaling; it is corrected where that second
    rounding met a tie that the first rounding had made."""
    near = c.env.fma(x, y, z)
    product = x * y
    product_error = c.b.overloaded("fma", x, y, float_neg(product))
    total = product + z
    part = total - product
    total_error = (product - (total - part)) + (z - part)
    left_over = ((total - near) + total_error) + product_error
    result = near * scale
    lost = near - result * (1.0 / scale)
    tie = float_abs(lost).eq(2.0 ** (-1075 + DIVISION["f64"][3]))
    same_side = (left_over.as_int() ^ lost.as_int()).cmp("sge", 0) & left_over.cmp("one", 0.0)
    step = lost.cmp("ogt", 0.0).select(c.b.const("f64", 2.0**-1074, LANES), -(2.0**-1074))
    return (tie & same_side).select(result + step, result)


define("v_div_fmas_f32 v_div_fmas_f64", _div_fmas)


def _div_fixup(c: Context, quotient: Value, den: Value, num: Value) -> Value:
    """Special cases of a division; the first that matches wins, so they are applied last to first."""
    sign = (den.as_int() ^ num.as_int()) & floats.sign_mask(den.ty)

    def signed(magnitude: Value) -> Value:
        return ((magnitude.as_int() & (floats.sign_mask(den.ty) - 1)) | sign).as_float()

    infinite = signed(infinity(c.b, den))
    nothing = signed(c.b.const(den.ty, 0.0, LANES))
    result = signed(quotient)
    result = is_nan(quotient).select(infinite, result)
    limit = {"f16": -1000, "f32": -150, "f64": -1075}[den.ty]
    distance = exponent_field(num).zext("i64") - exponent_field(den).zext("i64")
    result = distance.cmp("slt", limit).select(nothing, result)
    result = (is_infinite(den) | num.eq(0.0)).select(nothing, result)
    result = (den.eq(0.0) | is_infinite(num)).select(infinite, result)
    invalid = quiet_nan(c.b, den, negative=True)
    result = ((is_infinite(den) & is_infinite(num)) | (den.eq(0.0) & num.eq(0.0))).select(invalid, result)
    result = is_nan(den).select(quieted(den), result)
    return is_nan(num).select(quieted(num), result)


define("v_div_fixup_f16 v_div_fixup_f32 v_div_fixup_f64", _div_fixup)

# --- conversions ------------------------------------------------------------------------------------------------------------

define("v_cvt_i32_f32 v_cvt_i32_f64", lambda c, x: c.env.to_int(x, "i32", True))
define("v_cvt_u32_f32 v_cvt_u32_f64", lambda c, x: c.env.to_int(x, "i32", False))
define("v_cvt_i16_f16", lambda c, x: c.env.to_int(x, "i16", True))
define("v_cvt_u16_f16", lambda c, x: c.env.to_int(x, "i16", False))


def _nearest_i32(c: Context, x: Value) -> Value:
    """floor(x + 0.5); the sum is exact in f64."""
    return c.env.to_int(c.b.overloaded("floor", x.fpext("f64") + 0.5), "i32", True)


define("v_cvt_nearest_i32_f32", _nearest_i32)
define("v_cvt_floor_i32_f32", lambda c, x: c.env.to_int(c.b.overloaded("floor", x), "i32", True))
define("v_cvt_f64_i32", lambda c, x: x.sitofp("f64"))
define("v_cvt_f64_u32", lambda c, x: x.uitofp("f64"))


def _int_to_float(ty: str, signed: bool) -> Callable[..., Result]:
    def fn(c: Context, x: Value) -> Value:
        if c.env.rounds[ty] == NEAREST and ty == "f32":
            return x.sitofp("f32") if signed else x.uitofp("f32")
        return c.env.narrow(x.sitofp("f64") if signed else x.uitofp("f64"), ty)

    return fn


define("v_cvt_f32_i32", _int_to_float("f32", True))
define("v_cvt_f32_u32", _int_to_float("f32", False))


def _short_to_half(signed: bool) -> Callable[..., Result]:
    def fn(c: Context, x: Value) -> Value:
        wide = x.sext("i32") if signed else x.zext("i32")
        return c.env.narrow(wide.sitofp("f32"), "f16")

    return fn


define("v_cvt_f16_i16", _short_to_half(True))
define("v_cvt_f16_u16", _short_to_half(False))
for _byte in range(4):
    define(f"v_cvt_f32_ubyte{_byte}", lambda c, x, shift=8 * _byte: (x.lshr(shift) & 0xFF).sitofp("f32"))
define("v_cvt_off_f32_i4", lambda c, x: (x << 28).ashr(28).sitofp("f32") * 0.0625)
define("v_cvt_f16_f32", lambda c, x: c.env.narrow(x, "f16"))
define("v_cvt_f32_f64", lambda c, x: c.env.narrow(x, "f32"))
define("v_cvt_f32_f16", lambda c, x: x.fpext("f32"))
define("v_cvt_f64_f32", lambda c, x: x.fpext("f64"))


def _join(low: Value, high: Value) -> Value:
    return low.as_int().zext("i32") | high.as_int().zext("i32") << 16


define("v_cvt_pk_rtz_f16_f32", lambda c, x, y: _join(c.env.narrow(x, "f16", ZERO), c.env.narrow(y, "f16", ZERO)))
define("v_cvt_pk_i16_f32", lambda c, x, y: _join(c.env.to_int(x, "i16", True), c.env.to_int(y, "i16", True)))
define("v_cvt_pk_u16_f32", lambda c, x, y: _join(c.env.to_int(x, "i16", False), c.env.to_int(y, "i16", False)))


def _normalized(c: Context, x: Value, signed: bool) -> Value:
    """[-1, 1] to the symmetric signed range or [0, 1] to the unsigned one, ties to even; NaN gives 0."""
    x = x.fpext("f32") if x.ty == "f16" else x
    low = -1.0 if signed else 0.0
    limited = x.cmp("olt", low).select(low, x)
    limited = limited.cmp("ogt", 1.0).select(1.0, limited)
    return c.env.to_int(c.b.overloaded("roundeven", limited * (32767.0 if signed else 65535.0)), "i16", signed)


define("v_cvt_norm_i16_f16", lambda c, x: _normalized(c, x, True))
define("v_cvt_norm_u16_f16", lambda c, x: _normalized(c, x, False))
for _ty in ("f16", "f32"):
    define(f"v_cvt_pk_norm_i16_{_ty}", lambda c, x, y: _join(_normalized(c, x, True), _normalized(c, y, True)))
    define(f"v_cvt_pk_norm_u16_{_ty}", lambda c, x, y: _join(_normalized(c, x, False), _normalized(c, y, False)))


def _pk_u8(c: Context, x: Value, byte: Value, old: Value) -> Value:
    """One byte of `old` replaced by x as a saturated unsigned byte (truncated; the rounding is not verified on hardware)."""
    value = c.env.to_int(x, "i32", False)
    value = value.cmp("ugt", 255).select(255, value)
    shift = (byte & 3) << 3
    hole = ~(c.b.const("i32", 0xFF, LANES) << shift)
    return (old & hole) | value << shift


define("v_cvt_pk_u8_f32", _pk_u8)

# --- dot products of two halves -------------------------------------------------------------------------------------------


def halves(x: Value, ty: str) -> tuple[Value, Value]:
    """The two 16-bit floats of a register as f32. bf16 denormals count as zero."""
    if ty == "f16":
        return x.trunc("i16").cast("f16").fpext("f32"), x.lshr(16).trunc("i16").cast("f16").fpext("f32")
    return floats.flushed((x << 16).cast("f32")), floats.flushed((x & 0xFFFF0000).cast("f32"))


def dot2(c: Context, x: Value, y: Value, z: Value, ty: str) -> Value:
    """z + x0*y0 + x1*y1, added up in f64 and rounded once to f32."""
    (x0, x1), (y0, y1) = halves(x, ty), halves(y, ty)
    total = x0.fpext("f64") * y0.fpext("f64") + x1.fpext("f64") * y1.fpext("f64") + z.fpext("f64")
    return total.fptrunc("f32")


def to_bf16(x: Value) -> Value:
    """f32 to bf16 bits (i16), nearest even; NaN stays NaN."""
    bits = x.as_int()
    rounded = (bits + ((bits.lshr(16) & 1) + 0x7FFF)).lshr(16)
    return is_nan(x).select(bits.lshr(16) | 0x40, rounded).trunc("i16")


def _dot2_bf16(c: Context, x: Value, y: Value, z: Value) -> Value:
    addend = (z.zext("i32") << 16).cast("f32")
    return to_bf16(dot2(c, x, y, addend, "bf16"))


define("v_dot2acc_f32_f16", lambda c, x, y: dot2(c, x, y, c.old_dst(), "f16"))
define("v_dot2_f16_f16", lambda c, x, y, z: c.env.narrow(dot2(c, x, y, z.fpext("f32"), "f16"), "f16", NEAREST))
define("v_dot2_bf16_bf16", _dot2_bf16)


def _not_modelled(name: str) -> Callable[..., Result]:
    def fn(c: Context, *sources: Value) -> Value:
        raise Unmodelled(name)

    return fn


# Graphics and library helpers that no compute kernel is compiled to.
for _name in ("v_cubeid_f32", "v_cubesc_f32", "v_cubetc_f32", "v_cubema_f32", "v_mullit_f32", "v_trig_preop_f64"):
    define(_name, _not_modelled(_name))
__all__ = ["dot2", "float_neg", "halves", "to_bf16"]
