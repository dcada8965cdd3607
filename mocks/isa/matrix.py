"""Matrix multiply-accumulate (WMMA 16x16x16 of wave32), one native helper per shape.

Lane l holds row l mod 16 of A and column l mod 16 of B; register r of lane l of C and D is element [2r + l/16][l mod 16]. Lanes
16..31 repeat A and B, which is why only lanes 0..15 of A are read. Sums are taken in k order in f32, or exactly for integers.
EXEC is ignored.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mocks.isa import layout as L
from mocks.isa.context import Unmodelled, constant_bits
from mocks.isa.instruction import VGPR0, Instruction
from mocks.isa.ir import LANES, Builder, Value
from mocks.isa.rt_memory import Helper

if TYPE_CHECKING:
    from mocks.isa.context import Context

SIZE = 16
HALVES = [0] * 16 + [1] * 16  # lanes 0-15 take the even row, 16-31 the odd one


def _elements(h: Helper, base: Value, kind: str, signed: bool) -> Value:
    """Unpacks 16 elements per lane into an array [k][lane] of f32 or i32 on the stack."""
    b = h.b
    array = b.emit(f"alloca [{SIZE * LANES} x i32], align 64", "ptr")
    bits = {"f16": 16, "bf16": 16, "iu8": 8, "iu4": 4}[kind]
    per_word = 32 // bits
    for word_index in range(SIZE // per_word):
        word = base.at(word_index * L.VGPR_ROW).load("i32", LANES, 64)
        for k in range(per_word):
            if kind == "f16":
                value = word.lshr(16 * k).trunc("i16").cast("f16").fpext("f32")
            elif kind == "bf16":
                value = (word << 16 if k == 0 else word & 0xFFFF0000).cast("f32")
            else:
                raised = word << (32 - bits - bits * k)
                value = raised.ashr(32 - bits) if signed else raised.lshr(32 - bits)
            array.at((word_index * per_word + k) * L.VGPR_ROW).store(value, 64)
    return array


def _row_pair(b: Builder, a: Value, k: Value, r: Value, ty: str) -> Value:
    """A[2r][k] in lanes 0-15, A[2r+1][k] in lanes 16-31."""
    two = a.at((k * L.VGPR_ROW + r * 8).zext("i64")).load(ty, 2, 4)
    return two.permute(HALVES)


@functools.cache
def helper_address(kind: str, result: str, signs: int, clamp: bool, half: int) -> int:
    """`void (A rows, B rows, C rows, D rows)`."""
    h = Helper({"a": "ptr", "b_": "ptr", "c": "ptr", "d": "ptr"})
    b = h.b
    float_kind = kind in ("f16", "bf16")
    ty = "f32" if float_kind else "i32"
    a = _elements(h, h.a, kind, bool(signs & 1))
    bb = _elements(h, h.args["b_"], kind, bool(signs & 2))
    # D may overlap A, B or C, so results are kept until the end.
    out = b.emit(f"alloca [{8 * LANES} x i32], align 64", "ptr")
    wide = "i64" if clamp and not float_kind else ty
    total_place = b.emit(f"alloca [{LANES} x i64], align 64", "ptr")
    with b.loop(8) as r:
        start = h.c.at((r * L.VGPR_ROW).zext("i64")).load("i32", LANES, 64)
        total_place.store(_start(start, result, half, wide), 64)
        with b.loop(SIZE) as k:
            left = _row_pair(b, a, k, r, ty)
            right = bb.at((k * L.VGPR_ROW).zext("i64")).load(ty, LANES, 64)
            total = total_place.load(wide, LANES, 64)
            if float_kind:
                total = b.overloaded("fma", left, right, total)
            else:
                product = left * right
                total = total + (product.sext("i64") if wide == "i64" else product)
            total_place.store(total, 64)
        total = total_place.load(wide, LANES, 64)
        out.at((r * L.VGPR_ROW).zext("i64")).store(_final(total, start, result, half), 64)
    with b.loop(8) as r:
        offset = (r * L.VGPR_ROW).zext("i64")
        h.d.at(offset).store(out.at(offset).load("i32", LANES, 64), 64)
    b.ret()
    return h.compile(f"wmma_{result}_{kind}_{signs}_{int(clamp)}_{half}", "void")


def _start(word: Value, result: str, half: int, wide: str) -> Value:
    if result == "f32":
        return word.cast("f32")
    if result == "f16":
        return word.lshr(16 * half).trunc("i16").cast("f16").fpext("f32")
    if result == "bf16":
        return (word & 0xFFFF0000 if half else word << 16).cast("f32")
    return word.sext("i64") if wide == "i64" else word


def _final(total: Value, old: Value, result: str, half: int) -> Value:
    from mocks.isa.valu_float import to_bf16

    if result == "f32":
        return total.cast("i32")
    if result == "i32":
        if total.ty == "i64":
            total = total.cmp("slt", -(1 << 31)).select(-(1 << 31), total)
            total = total.cmp("sgt", (1 << 31) - 1).select((1 << 31) - 1, total)
        return total.trunc("i32")
    narrow = total.fptrunc("f16").as_int() if result == "f16" else to_bf16(total)
    return narrow.zext("i32") << 16 * half | (old & (0xFFFF if half else 0xFFFF0000))


def emit_matrix(c: Context, instruction: Instruction) -> None:
    """v_wmma_<result>_16x16x16_<kind>."""
    words = instruction.mnemonic.split("_")
    result, kind = words[2], words[4]
    fields = instruction.fields
    integer = result == "i32"
    if (not integer and (fields["neg"] or fields["neg_hi"])) or (integer and fields["neg_hi"]):
        raise Unmodelled(f"{instruction.mnemonic} with neg modifiers")
    if any(not operand.is_vgpr for operand in instruction.src[:2]):
        raise Unmodelled(f"{instruction.mnemonic} with a constant factor")
    half = fields["opsel"] >> 2 & 1 if result in ("f16", "bf16") else 0
    c.regs.flush()
    a, b, d = (c.regs.row(op.code - VGPR0) for op in (instruction.src[0], instruction.src[1], instruction.dst))  # type: ignore[union-attr]
    for operand in (*instruction.src[:2], instruction.dst):
        assert operand is not None
        c.regs.check(operand.code - VGPR0, operand.kind.dwords)
    addend = instruction.src[2]
    if addend.is_vgpr:
        c.regs.check(addend.code - VGPR0, 8)
        source = c.regs.row(addend.code - VGPR0)
    else:
        dtype = {"f32": "f32", "i32": "i32", "f16": "pk2_f16", "bf16": "pk2_bf16"}[result]
        bits = constant_bits(addend.code, dtype, instruction.literal)
        if bits is None:
            raise Unmodelled(f"{instruction.mnemonic} with a scalar addend")
        source = c.constant_rows(bits, 8)
    address = helper_address(kind, result, fields["neg"] & 3 if integer else 0, c.clamp and integer, half)
    c.b.call(address, None, a, b, source, d)
    c.regs.forget_vectors()
