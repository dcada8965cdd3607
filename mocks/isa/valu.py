"""Vector instructions: the table of semantics, and the way every one of them is carried out.

A semantic function gets the context and the sources as typed lane values and returns the result, or (result, lane mask) where the
instruction also writes a mask. Everything around it (modifiers, denormals, clamp, halves, EXEC) is done here, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mocks.isa.context import VALUE_TYPES, Context, Unmodelled
from mocks.isa.instruction import EXEC_LO, VCC_LO, VGPR0, Instruction, Part
from mocks.isa.ir import Value

Result = Value | tuple[Value, Value]
Semantics = Callable[..., Result]


@dataclass(frozen=True, slots=True)
class Sem:
    """fn: see above. arithmetic: float sources and result follow the denormal mode; omod applies."""

    fn: Semantics
    arithmetic: bool


TABLE: dict[str, Sem] = {}
# Instructions that read or write registers in their own way get the context alone.
WHOLE: dict[str, Callable[[Context], None]] = {}

RELATIONS_INT = {"lt": "lt", "eq": "eq", "le": "le", "gt": "gt", "ne": "ne", "ge": "ge"}
RELATIONS_FLOAT = {
    "lt": "olt", "eq": "oeq", "le": "ole", "gt": "ogt", "lg": "one", "ge": "oge", "o": "ord",
    "u": "uno", "nge": "ult", "nlg": "ueq", "ngt": "ule", "nle": "ugt", "neq": "une", "nlt": "uge",
}  # fmt: skip


def define(names: str, fn: Semantics, arithmetic: bool = True) -> None:
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = Sem(fn, arithmetic)


def whole(names: str) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    def register(fn: Callable[[Context], None]) -> Callable[[Context], None]:
        for name in names.split():
            WHOLE[name] = fn
        return fn

    return register


def comparison(c: Context, relation: str, dtype: str, x: Value, y: Value) -> Value:
    if relation in ("f", "t"):
        return c.b.const("i1", relation == "t", 32)
    if dtype[0] == "f":
        return x.cmp(RELATIONS_FLOAT[relation], y)
    name = RELATIONS_INT[relation]
    return x.cmp(name if name in ("eq", "ne") else {"i": "s", "u": "u"}[dtype[0]] + name, y)


def emit_vector(c: Context, instruction: Instruction) -> None:
    """One vector ALU instruction (VOP1, VOP2, VOP3, VOP3SD, VOPC, VOPD)."""
    if instruction.format == "VOPD":
        _emit_dual(c, instruction)
        return
    c.begin(instruction)
    name = instruction.mnemonic
    if name in WHOLE:
        WHOLE[name](c)
    elif instruction.family in ("vcmp", "vcmpx", "vcmp_class", "vcmpx_class"):
        _emit_compare(c, instruction)
    elif name in TABLE:
        _write(c, _evaluate(c, name, instruction.parts[0]))
    else:
        raise Unmodelled(name)


def _emit_dual(c: Context, instruction: Instruction) -> None:
    """Both halves read their sources before either writes."""
    results = []
    for part in instruction.parts:
        base = single_part(c, part)
        c.begin(instruction, base)
        results.append((base, _evaluate(c, base.opcode.mnemonic, base)))
    for base, result in results:
        c.begin(instruction, base)
        _write(c, result)


def single_part(c: Context, part: Part) -> Part:
    """Half of a VOPD instruction as the single instruction of the same name, whose operand types are more exact."""
    name = part.opcode.mnemonic.replace("dual_", "")
    tables = c.unit.tables
    opcode = tables.by_name.get(("VOP2", name)) or tables.by_name[("VOP1", name)]
    kinds = [kind for kind in opcode.src if kind is not None]
    for operand, kind in zip(part.src, kinds, strict=False):
        operand.kind = kind
    if part.dst is not None and opcode.dst is not None:
        part.dst.kind = opcode.dst
    return Part(opcode, part.dst, part.src)


def _evaluate(c: Context, name: str, part: Part) -> Result:
    sem = TABLE[name]
    sources = [c.mask_source(i) if operand.kind.dtype == "mask" else c.source(i) for i, operand in enumerate(part.src)]
    if sem.arithmetic:
        sources = [c.env.flush_in(v) if v.is_float else v for v in sources]
    result = sem.fn(c, *sources)
    value = result[0] if isinstance(result, tuple) else result
    dtype = part.dst.kind.dtype if part.dst is not None else ""
    if value.is_float and dtype in VALUE_TYPES and sem.arithmetic:
        value = _finish_float(c, value)
    return (value, result[1]) if isinstance(result, tuple) else value


def _finish_float(c: Context, value: Value) -> Value:
    omod = c.inst.fields.get("omod", 0) if c.inst.format in ("VOP3", "VOP3SD") else 0
    if omod and c.env.denormals[value.ty] == 0:
        value = value * (2.0, 4.0, 0.5)[omod - 1]
    if c.clamp:
        value = c.env.clamp(value)
    return c.env.flush_out(value)


def _write(c: Context, result: Result) -> None:
    value, lanes = result if isinstance(result, tuple) else (result, None)
    if lanes is not None:
        c.write_lane_mask(c.part.sdst.code if c.part.sdst is not None else VCC_LO, lanes)
    c.write_dst(value)


def _emit_compare(c: Context, instruction: Instruction) -> None:
    words = instruction.mnemonic.split("_")
    relation, dtype = words[2], words[-1]
    x = c.source(0)
    if relation == "class":
        y = c.source(1)
        lanes = float_class(x, y)
    else:
        y = c.source(1)
        if x.is_float:
            x, y = c.env.flush_in(x), c.env.flush_in(y)
        lanes = comparison(c, relation, dtype, x, y)
    if words[1] == "cmpx":
        c.write_lane_mask(EXEC_LO, lanes)
    elif instruction.format == "VOPC":
        c.write_lane_mask(VCC_LO, lanes)
    else:
        assert c.part.dst is not None
        c.write_lane_mask(c.part.dst.code, lanes)


def float_class(x: Value, wanted: Value) -> Value:
    """Bit of `wanted` that belongs to the class of x: sNaN qNaN -inf -normal -denormal -0 +0 +denormal +normal +inf."""
    from mocks.isa import floats

    bits = x.as_int()
    wanted = wanted.as_int()
    if wanted.bits < 32:
        wanted = wanted.zext("i32")
    b = x.b
    magnitude = bits & (floats.sign_mask(x.ty) - 1)
    negative = bits.cmp("slt", 0)
    zero = magnitude.eq(0)
    denormal = magnitude.cmp("ult", 1 << floats.MANTISSA[x.ty])
    infinite = magnitude.eq(floats.exponent_mask(x.ty))
    nan = magnitude.cmp("ugt", floats.exponent_mask(x.ty))
    quiet = (bits & floats.quiet_bit(x.ty)).ne(0)

    def by_sign(minus: int, plus: int) -> Value:
        return negative.select(b.const("i32", 1 << minus, 32), 1 << plus)

    found = infinite.select(by_sign(2, 9), by_sign(3, 8))
    found = denormal.select(by_sign(4, 7), found)
    found = zero.select(by_sign(5, 6), found)
    found = nan.select(quiet.select(b.const("i32", 2, 32), 1), found)
    return (found & wanted).ne(0)


def vgpr_number(part: Part) -> int:
    assert part.dst is not None
    return part.dst.code - VGPR0
