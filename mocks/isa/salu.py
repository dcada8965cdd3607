"""Scalar ALU. Semantic functions take the sources as scalar values and return (result, SCC) with None for "unchanged"."""

from __future__ import annotations

from collections.abc import Callable

from mocks.isa import layout as L
from mocks.isa.context import Context, Unmodelled
from mocks.isa.instruction import EXEC_LO, M0, Instruction
from mocks.isa.ir import Value

Outcome = tuple[Value | None, Value | None]
Semantics = Callable[..., Outcome]
TABLE: dict[str, Semantics] = {}


def define(names: str, fn: Semantics) -> None:
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = fn


def emit_scalar(c: Context, instruction: Instruction) -> None:
    """SOP1, SOP2, SOPC, SOPK arithmetic (no control flow)."""
    c.begin(instruction)
    name = instruction.mnemonic
    if name not in TABLE:
        raise Unmodelled(name)
    result, scc = TABLE[name](c, *_sources(c))
    dst = instruction.dst
    if result is not None and dst is not None:
        if dst.kind.dwords == 2:
            c.regs.write_s64(dst.code, result)
        else:
            c.regs.write_s(dst.code, result)
    if scc is not None:
        c.regs.write_scc(scc)


def _sources(c: Context) -> list[Value]:
    sources = []
    for operand in c.inst.src:
        kind = operand.kind
        if kind.cls == "simm16":
            signed = kind.dtype == "i16"
            sources.append(c.b.i32(operand.code - ((operand.code & 0x8000) << 1) if signed else operand.code))
        elif kind.cls in ("hwreg", "label16", "sendmsg_rtn"):
            sources.append(c.b.i32(operand.code))
        else:
            sources.append(c.scalar64(operand) if kind.dwords == 2 else c.scalar32(operand))
    return sources


def _old(c: Context) -> Value:
    """The destination register before the instruction (read-modify-write)."""
    dst = c.inst.dst
    assert dst is not None
    return c.regs.read_s64(dst.code) if dst.kind.dwords == 2 else c.regs.read_s(dst.code)


def _nonzero(value: Value) -> Outcome:
    return value, value.ne(0)


# --- arithmetic -----------------------------------------------------------------------------------------------------------


def _signed_overflow(x: Value, y: Value, total: Value) -> Value:
    return ((x ^ total) & (y ^ total)).cmp("slt", 0)


def _add_u32(c: Context, x: Value, y: Value) -> Outcome:
    total = x + y
    return total, total.cmp("ult", x)


def _add_i32(c: Context, x: Value, y: Value) -> Outcome:
    total = x + y
    return total, _signed_overflow(x, y, total)


def _sub_i32(c: Context, x: Value, y: Value) -> Outcome:
    result = x - y
    return result, _signed_overflow(x, ~y, result)


def _addc(c: Context, x: Value, y: Value) -> Outcome:
    total = x.zext("i64") + y.zext("i64") + c.regs.read_scc().zext("i64")
    return total.trunc("i32"), total.lshr(32).ne(0)


def _subb(c: Context, x: Value, y: Value) -> Outcome:
    result = x.zext("i64") - y.zext("i64") - c.regs.read_scc().zext("i64")
    return result.trunc("i32"), result.cmp("slt", 0)


define("s_add_u32", _add_u32)
define("s_sub_u32", lambda c, x, y: (x - y, y.cmp("ugt", x)))
define("s_add_i32", _add_i32)
define("s_sub_i32", _sub_i32)
define("s_addk_i32", lambda c, k: _add_i32(c, _old(c), k))
define("s_addc_u32", _addc)
define("s_subb_u32", _subb)
define("s_mul_i32", lambda c, x, y: (x * y, None))
define("s_mulk_i32", lambda c, k: (_old(c) * k, None))
define("s_mul_hi_u32", lambda c, x, y: ((x.zext("i64") * y.zext("i64")).lshr(32).trunc("i32"), None))
define("s_mul_hi_i32", lambda c, x, y: ((x.sext("i64") * y.sext("i64")).lshr(32).trunc("i32"), None))
define("s_abs_i32", lambda c, x: _nonzero(x.cmp("slt", 0).select(-x, x)))


def _absdiff(c: Context, x: Value, y: Value) -> Outcome:
    result = x - y
    return _nonzero(result.cmp("slt", 0).select(-result, result))


define("s_absdiff_i32", _absdiff)


def _shift_add(count: int) -> Semantics:
    def fn(c: Context, x: Value, y: Value) -> Outcome:
        total = (x.zext("i64") << count) + y.zext("i64")
        return total.trunc("i32"), total.lshr(32).ne(0)

    return fn


for _times in (1, 2, 3, 4):
    define(f"s_lshl{_times}_add_u32", _shift_add(_times))


def _minmax(relation: str, biggest: bool) -> Semantics:
    def fn(c: Context, x: Value, y: Value) -> Outcome:
        first = x.cmp(relation, y)
        return first.select(x, y), first

    return fn


define("s_min_i32", _minmax("slt", False))
define("s_min_u32", _minmax("ult", False))
define("s_max_i32", _minmax("sge", True))
define("s_max_u32", _minmax("uge", True))

# --- moves and bits ---------------------------------------------------------------------------------------------------------

define("s_mov_b32 s_mov_b64 s_movk_i32", lambda c, x: (x, None))
define("s_cmov_b32 s_cmov_b64 s_cmovk_i32", lambda c, x: (c.regs.read_scc().select(x, _old(c)), None))
define("s_cselect_b32 s_cselect_b64", lambda c, x, y: (c.regs.read_scc().select(x, y), None))

for _bits in ("b32", "b64"):
    define(f"s_and_{_bits}", lambda c, x, y: _nonzero(x & y))
    define(f"s_or_{_bits}", lambda c, x, y: _nonzero(x | y))
    define(f"s_xor_{_bits}", lambda c, x, y: _nonzero(x ^ y))
    define(f"s_nand_{_bits}", lambda c, x, y: _nonzero(~(x & y)))
    define(f"s_nor_{_bits}", lambda c, x, y: _nonzero(~(x | y)))
    define(f"s_xnor_{_bits}", lambda c, x, y: _nonzero(~(x ^ y)))
    define(f"s_and_not1_{_bits}", lambda c, x, y: _nonzero(x & ~y))
    define(f"s_or_not1_{_bits}", lambda c, x, y: _nonzero(x | ~y))
    define(f"s_not_{_bits}", lambda c, x: _nonzero(~x))
    define(f"s_brev_{_bits}", lambda c, x: (c.b.overloaded("bitreverse", x), None))


def _count(x: Value, y: Value) -> Value:
    """Shift amount y modulo the width of x, in its type."""
    amount = y & (x.bits - 1)
    return amount.zext(x.ty) if amount.bits < x.bits else amount


define("s_lshl_b32 s_lshl_b64", lambda c, x, y: _nonzero(x << _count(x, y)))
define("s_lshr_b32 s_lshr_b64", lambda c, x, y: _nonzero(x.lshr(_count(x, y))))
define("s_ashr_i32 s_ashr_i64", lambda c, x, y: _nonzero(x.ashr(_count(x, y))))


def _bfe(signed: bool) -> Semantics:
    def fn(c: Context, x: Value, y: Value) -> Outcome:
        offset, width = _count(x, y), y.lshr(16) & 0x7F
        bits = x.bits
        kept = width.cmp("ugt", bits).select(bits, width)
        # A field that reaches beyond the top: the missing bits are 0 (unsigned), the sign sits at width-1 (signed).
        moved = x.lshr(offset)
        left = (bits - kept) & (bits - 1)
        left = left.zext(x.ty) if bits > 32 else left
        shifted = moved << left
        value = shifted.ashr(left) if signed else shifted.lshr(left)
        return _nonzero(width.eq(0).select(0, value))

    return fn


define("s_bfe_u32 s_bfe_u64", _bfe(False))
define("s_bfe_i32 s_bfe_i64", _bfe(True))


def _bfm(c: Context, x: Value, y: Value) -> Outcome:
    dst = c.inst.dst
    assert dst is not None
    ty = "i64" if dst.kind.dwords == 2 else "i32"
    mask = 63 if ty == "i64" else 31
    width, offset = (x & mask).zext(ty), (y & mask).zext(ty)
    return ((c.b.const(ty, 1) << width) - 1) << offset, None


define("s_bfm_b32 s_bfm_b64", _bfm)


def _bitset(value: bool) -> Semantics:
    def fn(c: Context, x: Value) -> Outcome:
        old = _old(c)
        bit = c.b.const(old.ty, 1) << _count(old, x)
        return (old | bit if value else old & ~bit), None

    return fn


define("s_bitset0_b32 s_bitset0_b64", _bitset(False))
define("s_bitset1_b32 s_bitset1_b64", _bitset(True))


def _narrow(value: Value) -> Value:
    return value.trunc("i32")


def _find(intrinsic: str) -> Semantics:
    def fn(c: Context, x: Value) -> Outcome:
        return x.eq(0).select(-1, _narrow(c.b.overloaded(intrinsic, x, "i1 false"))), None

    return fn


define("s_ctz_i32_b32 s_ctz_i32_b64", _find("cttz"))
define("s_clz_i32_u32 s_clz_i32_u64", _find("ctlz"))
define("s_cls_i32 s_cls_i32_i64", lambda c, x: _find("ctlz")(c, x ^ x.ashr(x.bits - 1)))
define("s_sext_i32_i8", lambda c, x: ((x << 24).ashr(24), None))
define("s_sext_i32_i16", lambda c, x: ((x << 16).ashr(16), None))
define("s_bcnt1_i32_b32 s_bcnt1_i32_b64", lambda c, x: _nonzero(_narrow(c.b.overloaded("ctpop", x))))
define("s_bcnt0_i32_b32 s_bcnt0_i32_b64", lambda c, x: _nonzero(_narrow(c.b.overloaded("ctpop", ~x))))


def _spread(c: Context, x: Value) -> Outcome:
    """Each source bit twice."""
    value = x.zext("i64")
    for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333), (1, 0x5555555555555555)):
        value = (value | value << shift) & mask
    return value | value << 1, None


define("s_bitreplicate_b64_b32", _spread)


def _quads(x: Value) -> Value:
    """Bit 4k set where any of the four bits of quad k is."""
    folded = x | x.lshr(1)
    return (folded | folded.lshr(2)) & int("1" * 16, 16)


def _quadmask(c: Context, x: Value) -> Outcome:
    value = _quads(x)
    for shift, mask in ((3, 0x0303030303030303), (6, 0x000F000F000F000F), (12, 0x000000FF000000FF), (24, 0xFFFF)):
        if shift < x.bits:
            value = (value | value.lshr(shift)) & mask
    return _nonzero(value)


define("s_quadmask_b32 s_quadmask_b64", _quadmask)
define("s_wqm_b32 s_wqm_b64", lambda c, x: _nonzero(_quads(x) * 15))


def _pack(low_from: int, high_from: int) -> Semantics:
    def fn(c: Context, x: Value, y: Value) -> Outcome:
        low = x.lshr(low_from) & 0xFFFF
        return low | (y.lshr(high_from) & 0xFFFF) << 16, None

    return fn


define("s_pack_ll_b32_b16", _pack(0, 0))
define("s_pack_lh_b32_b16", _pack(0, 16))
define("s_pack_hh_b32_b16", _pack(16, 16))
define("s_pack_hl_b32_b16", _pack(16, 0))

# --- compares ---------------------------------------------------------------------------------------------------------------

for _relation, _llvm in (("eq", "eq"), ("lg", "ne"), ("gt", "gt"), ("ge", "ge"), ("lt", "lt"), ("le", "le")):
    for _sign in ("i", "u"):
        _name = _llvm if _llvm in ("eq", "ne") else {"i": "s", "u": "u"}[_sign] + _llvm
        _names = f"s_cmp_{_relation}_{_sign}32 s_cmpk_{_relation}_{_sign}32"
        if _sign == "u" and _relation in ("eq", "lg"):
            _names += f" s_cmp_{_relation}_u64"
        define(_names, lambda c, x, y, relation=_name: (None, x.cmp(relation, y)))


def _bit(x: Value, y: Value) -> Value:
    return x.lshr(_count(x, y)) & 1


define("s_bitcmp0_b32 s_bitcmp0_b64", lambda c, x, y: (None, _bit(x, y).eq(0)))
define("s_bitcmp1_b32 s_bitcmp1_b64", lambda c, x, y: (None, _bit(x, y).ne(0)))

# --- EXEC -------------------------------------------------------------------------------------------------------------------

EXEC_OPERATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e),
    "xnor": lambda s, e: ~(s ^ e),
    "and_not0": lambda s, e: ~s & e,
    "or_not0": lambda s, e: ~s | e,
    "and_not1": lambda s, e: s & ~e,
    "or_not1": lambda s, e: s | ~e,
}


def _exec_operation(operation: Callable[[Value, Value], Value], return_new: bool) -> Semantics:
    def fn(c: Context, s: Value) -> Outcome:
        if s.bits == 64:
            raise Unmodelled("64-bit EXEC in wave32")
        old = c.exec_value()
        new = operation(s, old)
        c.regs.write_s(EXEC_LO, new)
        return (new if return_new else old), new.ne(0)

    return fn


for _operation, _fn in EXEC_OPERATIONS.items():
    for _bits in ("b32", "b64"):
        define(f"s_{_operation}_saveexec_{_bits}", _exec_operation(_fn, False))
        if _operation in ("and_not0", "and_not1"):
            define(f"s_{_operation}_wrexec_{_bits}", _exec_operation(_fn, True))

# --- indexed by M0 --------------------------------------------------------------------------------------------------------------


def _relative(c: Context, code: int, offset: Value) -> Value:
    """Memory of s[code + offset], limited to the register file."""
    c.regs.flush()
    index = offset + code
    index = index.cmp("ult", 106).select(index, 0).zext("i64")
    return c.wave.at(index * 4 + L.WAVE_SGPR)


def _movrels(ty: str) -> Semantics:
    def fn(c: Context, x: Value) -> Outcome:
        return _relative(c, c.inst.src[0].code, c.regs.read_s(M0)).load(ty, align=4), None

    return fn


define("s_movrels_b32", _movrels("i32"))
define("s_movrels_b64", _movrels("i64"))


def _movreld(c: Context, x: Value) -> Outcome:
    dst = c.inst.dst
    assert dst is not None
    _relative(c, dst.code, c.regs.read_s(M0)).store(x, 4)
    c.regs.forget_scalars(0, 106)
    return None, None


define("s_movreld_b32 s_movreld_b64", _movreld)


def _movrelsd(c: Context, x: Value) -> Outcome:
    dst, offset = c.inst.dst, c.regs.read_s(M0)
    assert dst is not None
    value = _relative(c, c.inst.src[0].code, offset & 0x3FF).load("i32")
    _relative(c, dst.code, offset.lshr(16) & 0x3FF).store(value)
    c.regs.forget_scalars(0, 106)
    return None, None


define("s_movrelsd_2_b32", _movrelsd)
