"""Semantics of vector integer, bit and move instructions."""

from __future__ import annotations

from collections.abc import Callable

from mocks.isa.context import Context
from mocks.isa.ir import LANES, Value
from mocks.isa.valu import Result, define


def saturating(c: Context, op: str, signed: bool, x: Value, y: Value) -> Value:
    """add or sub with the clamp modifier's saturation."""
    return c.b.overloaded(f"{'s' if signed else 'u'}{op}.sat", x, y)


def _add(signed: bool) -> Callable[..., Result]:
    return lambda c, x, y: saturating(c, "add", signed, x, y) if c.clamp else x + y


def _sub(signed: bool) -> Callable[..., Result]:
    return lambda c, x, y: saturating(c, "sub", signed, x, y) if c.clamp else x - y


define("v_add_nc_u32 v_add_nc_u16", _add(False))
define("v_add_nc_i32 v_add_nc_i16", _add(True))
define("v_sub_nc_u32 v_sub_nc_u16", _sub(False))
define("v_sub_nc_i32 v_sub_nc_i16", _sub(True))
define("v_subrev_nc_u32", lambda c, x, y: _sub(False)(c, y, x))


def _add_carry(c: Context, x: Value, y: Value, carry: Value | None) -> Result:
    total = x + y
    out = total.cmp("ult", x)
    if carry is not None:
        total = total + carry.zext("i32")
        out = out | (total.eq(0) & carry)
    return (out.select(-1, total) if c.clamp else total), out


def _sub_borrow(c: Context, x: Value, y: Value, borrow: Value | None) -> Result:
    result = x - y
    out = y.cmp("ugt", x)
    if borrow is not None:
        out = out | (borrow & x.eq(y))
        result = result - borrow.zext("i32")
    return (out.select(0, result) if c.clamp else result), out


def _carry_in(c: Context, given: tuple[Value, ...]) -> Value:
    return given[0] if given else c.regs.read_mask(106)


define("v_add_co_u32", lambda c, x, y: _add_carry(c, x, y, None))
define("v_sub_co_u32", lambda c, x, y: _sub_borrow(c, x, y, None))
define("v_subrev_co_u32", lambda c, x, y: _sub_borrow(c, y, x, None))
define("v_add_co_ci_u32", lambda c, x, y, *ci: _add_carry(c, x, y, _carry_in(c, ci)))
define("v_sub_co_ci_u32", lambda c, x, y, *ci: _sub_borrow(c, x, y, _carry_in(c, ci)))
define("v_subrev_co_ci_u32", lambda c, x, y, *ci: _sub_borrow(c, y, x, _carry_in(c, ci)))


def _wide(x: Value, signed: bool) -> Value:
    return x.sext("i64") if signed else x.zext("i64")


def _mul_high(signed: bool) -> Callable[..., Result]:
    return lambda c, x, y: (_wide(x, signed) * _wide(y, signed)).lshr(32).trunc("i32")


def _low24(x: Value, signed: bool) -> Value:
    return (x << 8).ashr(8) if signed else x & 0xFFFFFF


define("v_mul_lo_u32 v_mul_lo_u16", lambda c, x, y: x * y)
define("v_mul_hi_u32", _mul_high(False))
define("v_mul_hi_i32", _mul_high(True))
define("v_mul_u32_u24", lambda c, x, y: _low24(x, False) * _low24(y, False))
define("v_mul_i32_i24", lambda c, x, y: _low24(x, True) * _low24(y, True))
define("v_mul_hi_u32_u24", lambda c, x, y: _mul_high(False)(c, _low24(x, False), _low24(y, False)))
define("v_mul_hi_i32_i24", lambda c, x, y: _mul_high(True)(c, _low24(x, True), _low24(y, True)))


def _saturated_sum(c: Context, product: Value, z: Value, signed: bool) -> Value:
    """product (i64 lanes) + z, cut or saturated to 32 bits."""
    total = product + _wide(z, signed)
    if not c.clamp:
        return total.trunc("i32")
    if signed:
        low = total.cmp("slt", -(1 << 31)).select(-(1 << 31), total)
        return low.cmp("sgt", (1 << 31) - 1).select((1 << 31) - 1, low).trunc("i32")
    return total.cmp("ugt", (1 << 32) - 1).select((1 << 32) - 1, total).trunc("i32")


def _mad24(signed: bool) -> Callable[..., Result]:
    def fn(c: Context, x: Value, y: Value, z: Value) -> Value:
        x, y = _low24(x, signed), _low24(y, signed)
        if not c.clamp:
            return x * y + z
        return _saturated_sum(c, _wide(x, signed) * _wide(y, signed), z, signed)

    return fn


define("v_mad_u32_u24", _mad24(False))
define("v_mad_i32_i24", _mad24(True))


def _mad64(signed: bool) -> Callable[..., Result]:
    def fn(c: Context, x: Value, y: Value, z: Value) -> Result:
        product = _wide(x, signed) * _wide(y, signed)
        total = product + z
        if not signed:
            return total, total.cmp("ult", product)
        overflow = ((product ^ total) & (z ^ total)).cmp("slt", 0)
        return total, overflow

    return fn


define("v_mad_u64_u32", _mad64(False))
define("v_mad_i64_i32", _mad64(True))


def mad16_saturated(x: Value, y: Value, z: Value, signed: bool) -> Value:
    """x * y + z of 16-bit values, saturated to 16 bits."""
    total = _wide(x, signed) * _wide(y, signed) + _wide(z, signed)
    low, high = (-0x8000, 0x7FFF) if signed else (0, 0xFFFF)
    total = total.cmp("slt", low).select(low, total)
    return total.cmp("sgt", high).select(high, total).trunc("i16")


def _mad16(signed: bool) -> Callable[..., Result]:
    def fn(c: Context, x: Value, y: Value, z: Value) -> Value:
        return mad16_saturated(x, y, z, signed) if c.clamp else x * y + z

    return fn


define("v_mad_u16", _mad16(False))
define("v_mad_i16", _mad16(True))
define("v_mad_u32_u16", lambda c, x, y, z: _saturated_sum(c, x.zext("i64") * y.zext("i64"), z, False))
define("v_mad_i32_i16", lambda c, x, y, z: _saturated_sum(c, x.sext("i64") * y.sext("i64"), z, True))

# --- three operands, shifts, bits ---------------------------------------------------------------------------------------

define("v_add3_u32", lambda c, x, y, z: x + y + z)
define("v_lshl_add_u32", lambda c, x, y, z: (x << (y & 31)) + z)
define("v_add_lshl_u32", lambda c, x, y, z: (x + y) << (z & 31))
define("v_lshl_or_b32", lambda c, x, y, z: (x << (y & 31)) | z)
define("v_and_or_b32", lambda c, x, y, z: (x & y) | z)
define("v_or3_b32", lambda c, x, y, z: x | y | z)
define("v_xor3_b32", lambda c, x, y, z: x ^ y ^ z)
define("v_xad_u32", lambda c, x, y, z: (x ^ y) + z)


def _amount(value: Value, amount: Value) -> Value:
    """Shift amount modulo the width, in the type of the shifted value."""
    masked = amount & (value.bits - 1)
    return masked.zext(value.ty) if masked.bits < value.bits else masked.trunc(value.ty)


define("v_lshlrev_b32 v_lshlrev_b16 v_lshlrev_b64", lambda c, x, y: y << _amount(y, x))
define("v_lshrrev_b32 v_lshrrev_b16 v_lshrrev_b64", lambda c, x, y: y.lshr(_amount(y, x)))
define("v_ashrrev_i32 v_ashrrev_i16 v_ashrrev_i64", lambda c, x, y: y.ashr(_amount(y, x)))
define("v_and_b32 v_and_b16", lambda c, x, y: x & y)
define("v_or_b32 v_or_b16", lambda c, x, y: x | y)
define("v_xor_b32 v_xor_b16", lambda c, x, y: x ^ y)
define("v_xnor_b32", lambda c, x, y: ~(x ^ y))
define("v_not_b32 v_not_b16", lambda c, x: ~x)
define("v_mov_b32 v_mov_b16", lambda c, x: x)


def _field_mask(width: Value) -> Value:
    """width (0..31) low bits set."""
    return (width.b.const("i32", 1, width.n) << (width & 31)) - 1


def _bfe_signed(c: Context, x: Value, y: Value, z: Value) -> Value:
    width = z & 31
    value = x.lshr(y & 31) & _field_mask(z)
    left = (32 - width) & 31
    extended = (value << left).ashr(left)
    return width.eq(0).select(0, extended)


define("v_bfe_u32", lambda c, x, y, z: x.lshr(y & 31) & _field_mask(z))
define("v_bfe_i32", _bfe_signed)
define("v_bfi_b32", lambda c, x, y, z: (x & y) | (~x & z))
define("v_bfm_b32", lambda c, x, y: _field_mask(x) << (y & 31))
define("v_bfrev_b32", lambda c, x: c.b.overloaded("bitreverse", x))
define("v_bcnt_u32_b32", lambda c, x, y: c.b.overloaded("ctpop", x) + y)


def _or_minus_one(none: Value, count: Value) -> Value:
    return none.select(-1, count)


define("v_clz_i32_u32", lambda c, x: _or_minus_one(x.eq(0), c.b.overloaded("ctlz", x, "i1 false")))
define("v_ctz_i32_b32", lambda c, x: _or_minus_one(x.eq(0), c.b.overloaded("cttz", x, "i1 false")))


def _sign_count(c: Context, x: Value) -> Value:
    """Leading bits equal to the sign bit."""
    folded = x ^ x.ashr(31)
    return _or_minus_one(folded.eq(0), c.b.overloaded("ctlz", folded, "i1 false"))


define("v_cls_i32", _sign_count)


def _align(c: Context, x: Value, y: Value, shift: Value) -> Value:
    """Low 32 bits of {x, y} >> shift (0..31)."""
    return c.b.overloaded("fshr", x, y, shift)


def _amount32(z: Value) -> Value:
    return z.zext("i32") if z.bits < 32 else z


define("v_alignbit_b32", lambda c, x, y, z: _align(c, x, y, _amount32(z) & 31))
define("v_alignbyte_b32", lambda c, x, y, z: _align(c, x, y, (_amount32(z) & 3) << 3))


def _perm(c: Context, x: Value, y: Value, z: Value) -> Value:
    """Byte k of the result is chosen by byte k of z from the 8 bytes {x, y}, or is a replicated sign or constant."""
    table = x.zext("i64") << 32 | y.zext("i64")
    result = c.b.const("i32", 0, LANES)
    for k in range(4):
        selector = z.lshr(8 * k) & 0xFF
        byte = table.lshr((selector & 7).zext("i64") << 3).trunc("i32") & 0xFF
        # 8..11: sign of byte 1, 3, 5, 7
        sign_bit = ((selector & 3) << 4) + 15
        sign = (table.lshr(sign_bit.zext("i64")).trunc("i32") & 1).ne(0).select(c.b.const("i32", 0xFF, LANES), 0)
        fixed = selector.eq(12).select(c.b.const("i32", 0, LANES), 0xFF)
        byte = selector.cmp("ult", 8).select(byte, selector.cmp("ult", 12).select(sign, fixed))
        result = result | byte << 8 * k
    return result


define("v_perm_b32", _perm)

# --- minimum, maximum, median -------------------------------------------------------------------------------------------


def _min(signed: bool, c: Context, x: Value, y: Value) -> Value:
    return c.b.overloaded("smin" if signed else "umin", x, y)


def _max(signed: bool, c: Context, x: Value, y: Value) -> Value:
    return c.b.overloaded("smax" if signed else "umax", x, y)


def _define_minmax(signed: bool, letter: str) -> None:
    def low(c: Context, x: Value, y: Value) -> Value:
        return _min(signed, c, x, y)

    def high(c: Context, x: Value, y: Value) -> Value:
        return _max(signed, c, x, y)

    for bits in (16, 32):
        ty = f"{letter}{bits}"
        define(f"v_min_{ty}", low)
        define(f"v_max_{ty}", high)
        define(f"v_min3_{ty}", lambda c, x, y, z: low(c, low(c, x, y), z))
        define(f"v_max3_{ty}", lambda c, x, y, z: high(c, high(c, x, y), z))
        define(f"v_med3_{ty}", lambda c, x, y, z: high(c, low(c, x, y), low(c, high(c, x, y), z)))
    define(f"v_maxmin_{letter}32", lambda c, x, y, z: low(c, high(c, x, y), z))
    define(f"v_minmax_{letter}32", lambda c, x, y, z: high(c, low(c, x, y), z))


_define_minmax(True, "i")
_define_minmax(False, "u")

# --- sums of absolute differences -----------------------------------------------------------------------------------------


def _difference(x: Value, y: Value) -> Value:
    return x.cmp("ugt", y).select(x - y, y - x)


def _fields(x: Value, bits: int) -> list[Value]:
    return [x.lshr(k) & ((1 << bits) - 1) for k in range(0, 32, bits)]


def _sad(c: Context, x: Value, y: Value, bits: int, masked: bool = False) -> Value:
    total = c.b.const("i32", 0, LANES)
    for p, q in zip(_fields(x, bits), _fields(y, bits), strict=True):
        part = _difference(p, q)
        total = total + (q.eq(0).select(0, part) if masked else part)
    return total


define("v_sad_u8", lambda c, x, y, z: _sad(c, x, y, 8) + z)
define("v_msad_u8", lambda c, x, y, z: _sad(c, x, y, 8, masked=True) + z)
define("v_sad_hi_u8", lambda c, x, y, z: (_sad(c, x, y, 8) << 16) + z)
define("v_sad_u16", lambda c, x, y, z: _sad(c, x, y, 16) + z)
define("v_sad_u32", lambda c, x, y, z: _difference(x, y) + z)


def _lerp(c: Context, x: Value, y: Value, z: Value) -> Value:
    result = c.b.const("i32", 0, LANES)
    for k, (p, q, r) in enumerate(zip(_fields(x, 8), _fields(y, 8), _fields(z, 8), strict=True)):
        result = result | ((p + q + (r & 1)).lshr(1) & 0xFF) << 8 * k
    return result


define("v_lerp_u8", _lerp)

# --- selection and lane counting --------------------------------------------------------------------------------------------


def _cndmask(c: Context, x: Value, y: Value, *mask: Value) -> Value:
    return (mask[0] if mask else c.regs.read_mask(106)).select(y, x)


define("v_cndmask_b32 v_cndmask_b16", _cndmask, arithmetic=False)
define("v_mbcnt_lo_u32_b32", lambda c, x, y: c.b.overloaded("ctpop", x & c.b.vector("i32", [(1 << lane) - 1 for lane in range(LANES)])) + y)
define("v_mbcnt_hi_u32_b32", lambda c, x, y: y)


def _saturated(c: Context, x: Value, low: int, high: int) -> Value:
    """Signed clamp."""
    x = x.cmp("slt", low).select(low, x)
    return x.cmp("sgt", high).select(high, x)


def _pack(low: Value, high: Value) -> Value:
    """Two 16-bit values, or the low halves of two 32-bit values."""
    low = low.zext("i32") if low.bits == 16 else low & 0xFFFF
    high = high.zext("i32") if high.bits == 16 else high
    return low | high << 16


define("v_cvt_pk_i16_i32", lambda c, x, y: _pack(_saturated(c, x, -0x8000, 0x7FFF), _saturated(c, y, -0x8000, 0x7FFF)))
define("v_cvt_pk_u16_u32", lambda c, x, y: _pack(_min(False, c, x, c.b.const("i32", 0xFFFF, LANES)), _min(False, c, y, c.b.const("i32", 0xFFFF, LANES))))
define("v_cvt_i32_i16", lambda c, x: x.sext("i32"))
define("v_cvt_u32_u16", lambda c, x: x.zext("i32"))
define("v_pack_b32_f16", lambda c, x, y: _pack(x.as_int(), y.as_int()), arithmetic=False)


def _sat_pk_u8(c: Context, x: Value) -> Value:
    low, high = (x << 16).ashr(16), x.ashr(16)
    return (_saturated(c, low, 0, 255) | _saturated(c, high, 0, 255) << 8).trunc("i16")


define("v_sat_pk_u8_i16", _sat_pk_u8)


def _sliding_sums(c: Context, x: Value, y: Value, masked: bool) -> list[Value]:
    """Four sums of absolute differences of the 4 bytes of y against the bytes of the 8-byte x that start at byte 0, 1, 2, 3."""
    return [_sad(c, x.lshr(8 * k).trunc("i32"), y, 8, masked) for k in range(4)]


def _qsad(masked: bool) -> Callable[..., Result]:
    def fn(c: Context, x: Value, y: Value, z: Value) -> Value:
        result = c.b.const("i64", 0, LANES)
        for k, total in enumerate(_sliding_sums(c, x, y, masked)):
            field = (total.zext("i64") + z.lshr(16 * k)) & 0xFFFF
            result = result | field << 16 * k
        return result

    return fn


define("v_qsad_pk_u16_u8", _qsad(False))
define("v_mqsad_pk_u16_u8", _qsad(True))
