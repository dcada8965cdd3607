"""Packed instructions (VOP3P): two 16-bit lanes a register, mixed-precision fma, integer dot products."""

from __future__ import annotations

from collections.abc import Callable

from mocks.isa.context import INLINE_FLOATS, Context, Unmodelled
from mocks.isa.floats import float_abs, float_neg
from mocks.isa.instruction import VGPR0, Instruction
from mocks.isa.ir import LANES, Value
from mocks.isa.matrix import emit_matrix
from mocks.isa.valu import whole
from mocks.isa.valu_float import dot2
from mocks.isa.valu_int import mad16_saturated, saturating

HalfOp = Callable[..., Value]


def _shift(c: Context, x: Value) -> Value:
    return x & 15


def _mad(signed: bool) -> HalfOp:
    def fn(c: Context, x: Value, y: Value, z: Value) -> Value:
        if not c.clamp:
            return x * y + z
        return mad16_saturated(x, y, z, signed)

    return fn


INTEGER: dict[str, HalfOp] = {
    "v_pk_mad_i16": _mad(True),
    "v_pk_mad_u16": _mad(False),
    "v_pk_mul_lo_u16": lambda c, x, y: x * y,
    "v_pk_add_i16": lambda c, x, y: saturating(c, "add", True, x, y) if c.clamp else x + y,
    "v_pk_add_u16": lambda c, x, y: saturating(c, "add", False, x, y) if c.clamp else x + y,
    "v_pk_sub_i16": lambda c, x, y: saturating(c, "sub", True, x, y) if c.clamp else x - y,
    "v_pk_sub_u16": lambda c, x, y: saturating(c, "sub", False, x, y) if c.clamp else x - y,
    "v_pk_lshlrev_b16": lambda c, x, y: y << _shift(c, x),
    "v_pk_lshrrev_b16": lambda c, x, y: y.lshr(_shift(c, x)),
    "v_pk_ashrrev_i16": lambda c, x, y: y.ashr(_shift(c, x)),
    "v_pk_max_i16": lambda c, x, y: c.b.overloaded("smax", x, y),
    "v_pk_min_i16": lambda c, x, y: c.b.overloaded("smin", x, y),
    "v_pk_max_u16": lambda c, x, y: c.b.overloaded("umax", x, y),
    "v_pk_min_u16": lambda c, x, y: c.b.overloaded("umin", x, y),
}
FLOAT: dict[str, HalfOp] = {
    "v_pk_fma_f16": lambda c, x, y, z: c.env.fma(x, y, z),
    "v_pk_add_f16": lambda c, x, y: c.env.add(x, y),
    "v_pk_mul_f16": lambda c, x, y: c.env.mul(x, y),
    "v_pk_min_f16": lambda c, x, y: c.env.min(x, y),
    "v_pk_max_f16": lambda c, x, y: c.env.max(x, y),
}


def half_of(word: Value, high: bool) -> Value:
    return (word.lshr(16) if high else word).trunc("i16")


def emit_packed(c: Context, instruction: Instruction) -> None:
    c.begin(instruction)
    name = instruction.mnemonic
    if instruction.family == "wmma":
        emit_matrix(c, instruction)
    elif instruction.family == "fma_mix":
        _emit_mix(c, instruction)
    elif instruction.family == "dot":
        _emit_dot(c, instruction)
    elif name in INTEGER or name in FLOAT:
        _emit_halves(c, instruction)
    else:
        raise Unmodelled(name)


def _sources(c: Context) -> list[Value]:
    """Raw words; the modifiers of packed instructions act on their halves later."""
    for operand in c.part.src:
        operand.neg = operand.abs = False
    return [c.source(i) for i in range(len(c.part.src))]


def _high_selects(instruction: Instruction) -> int:
    return instruction.fields["opsel_hi"] | instruction.fields["opsel_hi2"] << 2


def _emit_halves(c: Context, instruction: Instruction) -> None:
    fields = instruction.fields
    name = instruction.mnemonic
    words = _sources(c)
    results = []
    for selects, negate in ((fields["opsel"], fields["neg"]), (_high_selects(instruction), fields["neg_hi"])):
        parts = [half_of(word, bool(selects >> i & 1)) for i, word in enumerate(words)]
        if name in FLOAT:
            values = [part.cast("f16") for part in parts]
            values = [float_neg(v) if negate >> i & 1 else v for i, v in enumerate(values)]
            result = FLOAT[name](c, *[c.env.flush_in(v) for v in values])
            result = c.env.flush_out(c.env.clamp(result) if c.clamp else result)
        else:
            result = INTEGER[name](c, *parts)
        results.append(result.as_int().zext("i32"))
    c.write_dst(results[0] | results[1] << 16)


@whole("v_pk_fmac_f16")
def pk_fmac(c: Context) -> None:
    """Both halves of the destination accumulate (VOP2 encoding, no modifiers)."""
    assert c.part.dst is not None
    words = [c.source(0), c.source(1), c.bits32(c.part.dst)]
    results = []
    for high in (False, True):
        x, y, z = (c.env.flush_in(half_of(word, high).cast("f16")) for word in words)
        results.append(c.env.flush_out(c.env.fma(x, y, z)).as_int().zext("i32"))
    c.write_dst(results[0] | results[1] << 16)


def _mix_source(c: Context, instruction: Instruction, index: int) -> Value:
    """f32: the whole register, or one of its halves converted."""
    fields = instruction.fields
    operand = c.part.src[index]
    from_half = _high_selects(instruction) >> index & 1
    if from_half and operand.code in INLINE_FLOATS:
        word = c.b.const("i32", INLINE_FLOATS[operand.code][0], LANES)
    else:
        operand.neg = operand.abs = False
        word = c.source(index)
    if from_half:
        value = c.env.flush_in(half_of(word, bool(fields["opsel"] >> index & 1)).cast("f16")).fpext("f32")
    else:
        value = c.env.flush_in(word.cast("f32"))
    if fields["neg_hi"] >> index & 1:
        value = float_abs(value)
    return float_neg(value) if fields["neg"] >> index & 1 else value


def _emit_mix(c: Context, instruction: Instruction) -> None:
    result = c.env.fma(*[_mix_source(c, instruction, i) for i in range(3)])
    if instruction.mnemonic == "v_fma_mix_f32":
        c.write_dst(c.env.flush_out(c.env.clamp(result) if c.clamp else result))
        return
    half = c.env.narrow(result, "f16")
    half = c.env.flush_out(c.env.clamp(half) if c.clamp else half)
    assert c.part.dst is not None
    c.write_half(c.part.dst.code - VGPR0, int(instruction.mnemonic == "v_fma_mixhi_f16"), half)


def _emit_dot(c: Context, instruction: Instruction) -> None:
    name = instruction.mnemonic
    words = _sources(c)
    if name in ("v_dot2_f32_f16", "v_dot2_f32_bf16"):
        neg = instruction.fields["neg"] >> 2 & 1
        addend = words[2].cast("f32")
        result = dot2(c, words[0], words[1], float_neg(addend) if neg else addend, name[11:])
        c.write_dst(c.env.clamp(result) if c.clamp else result)
        return
    bits = 8 if "dot4" in name else 4
    signs = (instruction.fields["neg"] & 1, instruction.fields["neg"] >> 1 & 1) if "iu" in name else (0, 0)
    signed = name.split("_")[2] == "i32"
    total = words[2].sext("i64") if signed else words[2].zext("i64")
    for position in range(0, 32, bits):
        factors = []
        for word, sign in zip(words[:2], signs, strict=True):
            shifted = word << (32 - bits - position)
            factors.append(shifted.ashr(32 - bits) if sign else shifted.lshr(32 - bits))
        total = total + (factors[0] * factors[1]).sext("i64")
    if c.clamp:
        low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)
        total = total.cmp("slt", low).select(low, total)
        total = total.cmp("sgt", high).select(high, total)
    c.write_dst(total.trunc("i32"))
