"""LLVM IR text of single values: arithmetic, comparisons and casts, with every input defined as compute/ops.py says."""

from __future__ import annotations

import struct

import numpy as np

from compute import dtypes
from compute.codegen.arithmetic import bfloat16_to_bits, round_bfloat16
from compute.dtypes import DType
from compute.ir import Value

_TYPES = {dtypes.bool_: "i1", dtypes.float16: "half", dtypes.bfloat16: "i16", dtypes.float32: "float", dtypes.float64: "double"}
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_CALLS = {
    "abs": "fabs", "max": "maximum", "min": "minimum", "fma": "fma", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
}  # fmt: skip
_INT_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}


def scalar_type(dtype: DType) -> str:
    """LLVM's type of a value in a register; bfloat16 is carried as its 16 bits."""
    return _TYPES.get(dtype) or f"i{dtype.bits}"


def vector_type(dtype: DType, lanes: int) -> str:
    return scalar_type(dtype) if lanes == 1 else f"<{lanes} x {scalar_type(dtype)}>"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A number as LLVM writes it, rounded to the type."""
    if dtype is dtypes.bool_:
        return "true" if value else "false"
    if dtype.is_int:
        return str(int(value))
    if dtype is dtypes.bfloat16:
        return str(int(bfloat16_to_bits(round_bfloat16(np.float32(value)))))
    with np.errstate(over="ignore"):
        if dtype is dtypes.float16:
            return f"0xH{np.float16(value).view(np.uint16):04X}"
        if dtype is dtypes.float32:
            value = float(np.float32(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def spread(value: bool | int | float, dtype: DType, lanes: int) -> str:
    """A number in every lane."""
    number = literal(value, dtype)
    return number if lanes == 1 else f"splat ({scalar_type(dtype)} {number})"


class Operations:
    """Writes single values: a method returns the text of an instruction, after putting those that it needs before. Values are %vN, helpers %tN."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.counter = 0

    # --- writing ---

    def put(self, text: str) -> None:
        self.lines.append("  " + text)

    def temp(self, text: str) -> str:
        """The name of a helper that an instruction's result is given."""
        self.counter += 1
        name = f"%t{self.counter}"
        self.put(f"{name} = {text}")
        return name

    def call(self, name: str, result: str, args: list[tuple[str, str]]) -> str:
        """Text of a call of an intrinsic, which it declares."""
        if name not in self.declared:
            self.declared[name] = f"declare {result} @{name}({', '.join(t for t, _ in args)})"
        return f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"

    def ref(self, v: Value, lanes: int = 1) -> str:
        """The operand's text; constants are spread over `lanes`."""
        return spread(v.arg, v.dtype, lanes) if v.op == "const" else f"%v{v.number}"

    def typed(self, v: Value, lanes: int = 0) -> str:
        return f"{vector_type(v.dtype, lanes or v.lanes)} {self.ref(v, lanes or v.lanes)}"

    def copy(self, kind: str, operand: str) -> str:
        """A second name for an operand."""
        return f"freeze {kind} {operand}"

    def intrinsic(self, name: str, dtype: DType, lanes: int, refs: list[str]) -> str:
        """An intrinsic whose arguments and result have one type."""
        kind, element = vector_type(dtype, lanes), scalar_type(dtype)
        suffix = ("" if lanes == 1 else f"v{lanes}") + _SUFFIX.get(element, element)
        return self.call(f"llvm.{name}.{suffix}", kind, [(kind, r) for r in refs])

    # --- arithmetic ---

    def alu(self, v: Value) -> str:
        op, lanes = v.op, v.lanes
        dtype = v.args[-1].dtype
        kind = vector_type(dtype, lanes)
        refs = [self.ref(x, lanes) for x in v.args]
        if op == "where":
            return f"select {vector_type(dtypes.bool_, lanes)} {refs[0]}, {kind} {refs[1]}, {kind} {refs[2]}"
        if op in _FLOAT_COMPARE:
            if dtype.is_float:
                return f"fcmp {_FLOAT_COMPARE[op]} {kind} {refs[0]}, {refs[1]}"
            sign = "" if op in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
            return f"icmp {sign}{op} {kind} {refs[0]}, {refs[1]}"
        if dtype.is_float:
            if op in _FLOAT_OPS:
                return f"{_FLOAT_OPS[op]} {kind} {refs[0]}, {refs[1]}"
            return f"fneg {kind} {refs[0]}" if op == "neg" else self.intrinsic(_FLOAT_CALLS[op], dtype, lanes, refs)
        return self.int_alu(v, op, dtype, lanes, refs)

    def int_alu(self, v: Value, op: str, dtype: DType, lanes: int, refs: list[str]) -> str:
        kind = vector_type(dtype, lanes)
        if dtype is dtypes.bool_ and op in ("max", "min", "add", "mul"):
            return f"{'or' if op in ('max', 'add') else 'and'} {kind} {refs[0]}, {refs[1]}"
        if op in _INT_OPS:
            return f"{_INT_OPS[op]} {kind} {refs[0]}, {refs[1]}"
        if op == "neg":
            return f"sub {kind} {spread(0, dtype, lanes)}, {refs[0]}"
        if op == "not":
            return f"xor {kind} {refs[0]}, {spread(1 if dtype is dtypes.bool_ else -1, dtype, lanes)}"
        if op == "abs":
            negative = self.temp(f"sub {kind} {spread(0, dtype, lanes)}, {refs[0]}")
            return self.intrinsic("smax", dtype, lanes, [refs[0], negative]) if dtype.kind == "int" else self.copy(kind, refs[0])
        if op in ("max", "min"):
            return self.intrinsic(("s" if dtype.kind == "int" else "u") + op, dtype, lanes, refs)
        if op in ("shl", "shr"):
            return self.shift(v, op, dtype, lanes, refs)
        assert op in ("floordiv", "mod"), op
        return self.divide(v, op, dtype, lanes, refs)

    def shift(self, v: Value, op: str, dtype: DType, lanes: int, refs: list[str]) -> str:
        kind, flags = vector_type(dtype, lanes), vector_type(dtypes.bool_, lanes)
        plain = "shl" if op == "shl" else "ashr" if dtype.kind == "int" else "lshr"
        count = v.args[1]
        if v.arg == "inside" or (count.op == "const" and 0 <= count.arg < dtype.bits):
            return f"{plain} {kind} {refs[0]}, {refs[1]}"
        if plain == "ashr":
            last = self.temp(self.intrinsic("umin", dtype, lanes, [refs[1], spread(dtype.bits - 1, dtype, lanes)]))
            return f"ashr {kind} {refs[0]}, {last}"
        zero = spread(0, dtype, lanes)
        inside = self.temp(f"icmp ult {kind} {refs[1]}, {spread(dtype.bits, dtype, lanes)}")
        safe = self.temp(f"select {flags} {inside}, {kind} {refs[1]}, {kind} {zero}")
        moved = self.temp(f"{plain} {kind} {refs[0]}, {safe}")
        return f"select {flags} {inside}, {kind} {moved}, {kind} {zero}"

    def divide(self, v: Value, op: str, dtype: DType, lanes: int, refs: list[str]) -> str:
        """Floor division and its remainder, defined for every input: by zero both are 0, and the least number by -1 wraps."""
        kind, flags = vector_type(dtype, lanes), vector_type(dtypes.bool_, lanes)
        if v.arg == "index":
            return f"{'udiv' if op == 'floordiv' else 'urem'} {kind} {refs[0]}, {refs[1]}"
        zero, one = spread(0, dtype, lanes), spread(1, dtype, lanes)
        known = v.args[1].op == "const" and v.args[1].arg not in (0, -1)
        divisor = refs[1]
        is_zero = is_minus = ""
        if not known:
            is_zero = self.temp(f"icmp eq {kind} {refs[1]}, {zero}")
            divisor = self.temp(f"select {flags} {is_zero}, {kind} {one}, {kind} {refs[1]}")
        if dtype.kind == "uint":
            found = self.temp(f"{'udiv' if op == 'floordiv' else 'urem'} {kind} {refs[0]}, {divisor}")
            return self.copy(kind, found) if known else f"select {flags} {is_zero}, {kind} {zero}, {kind} {found}"
        if not known:
            is_minus = self.temp(f"icmp eq {kind} {refs[1]}, {spread(-1, dtype, lanes)}")
            divisor = self.temp(f"select {flags} {is_minus}, {kind} {one}, {kind} {divisor}")
        quotient = self.temp(f"sdiv {kind} {refs[0]}, {divisor}")
        rest = self.temp(f"srem {kind} {refs[0]}, {divisor}")
        mixed = self.temp(f"xor {kind} {rest}, {divisor}")
        opposite = self.temp(f"icmp slt {kind} {mixed}, {zero}")
        inexact = self.temp(f"icmp ne {kind} {rest}, {zero}")
        adjust = self.temp(f"and {flags} {opposite}, {inexact}")
        if op == "mod":
            moved = self.temp(f"add {kind} {rest}, {divisor}")
            return f"select {flags} {adjust}, {kind} {moved}, {kind} {rest}"
        lower = self.temp(f"sub {kind} {quotient}, {one}")
        found = self.temp(f"select {flags} {adjust}, {kind} {lower}, {kind} {quotient}")
        if known:
            return self.copy(kind, found)
        negative = self.temp(f"sub {kind} {zero}, {refs[0]}")
        found = self.temp(f"select {flags} {is_minus}, {kind} {negative}, {kind} {found}")
        return f"select {flags} {is_zero}, {kind} {zero}, {kind} {found}"

    # --- casts ---

    def cast(self, v: Value) -> str:
        a, target, lanes = v.args[0], v.dtype, v.lanes
        source, operand = a.dtype, self.ref(a, lanes)
        kind, from_kind = vector_type(target, lanes), vector_type(source, lanes)
        if source.is_float and target.is_float:
            return self.float_to_float(source, operand, target, lanes)
        if source is dtypes.float16:
            source, operand = dtypes.float32, self.temp(self.float_to_float(source, operand, dtypes.float32, lanes))
        if source.is_float:
            many = "" if lanes == 1 else f"v{lanes}"
            name = f"llvm.fpto{'s' if target.kind == 'int' else 'u'}i.sat.{many}{scalar_type(target)}.{many}{_SUFFIX[scalar_type(source)]}"
            return self.call(name, kind, [(vector_type(source, lanes), operand)])
        if target.is_float:
            return f"{'sitofp' if source.kind == 'int' else 'uitofp'} {from_kind} {operand} to {kind}"
        if source.kind == "bool" or source.bits < target.bits:
            return f"{'sext' if source.kind == 'int' else 'zext'} {from_kind} {operand} to {kind}"
        return self.copy(kind, operand) if source.bits == target.bits else f"trunc {from_kind} {operand} to {kind}"

    def float_to_float(self, source: DType, operand: str, target: DType, lanes: int) -> str:
        single = vector_type(dtypes.float32, lanes)
        if source is dtypes.bfloat16:
            integer = vector_type(dtypes.int32, lanes)
            wide = self.temp(f"zext {vector_type(source, lanes)} {operand} to {integer}")
            moved = self.temp(f"shl {integer} {wide}, {spread(16, dtypes.int32, lanes)}")
            return f"bitcast {integer} {moved} to {single}"
        if source is dtypes.float64 and target.size == 2:
            source, operand = dtypes.float32, self.to_odd(operand, lanes)
        elif source is dtypes.float16 and target is not dtypes.float32:
            source, operand = dtypes.float32, self.temp(f"fpext {vector_type(source, lanes)} {operand} to {single}")
        if target is dtypes.bfloat16:
            return self.to_bfloat16(operand, lanes)
        return f"{'fpext' if target.size > source.size else 'fptrunc'} {vector_type(source, lanes)} {operand} to {vector_type(target, lanes)}"

    def to_bfloat16(self, operand: str, lanes: int) -> str:
        """float32 to the nearest bfloat16, ties to even; a NaN stays one."""
        single, integer, flags = vector_type(dtypes.float32, lanes), vector_type(dtypes.int32, lanes), vector_type(dtypes.bool_, lanes)
        bits = self.temp(f"bitcast {single} {operand} to {integer}")
        upper = self.temp(f"lshr {integer} {bits}, {spread(16, dtypes.int32, lanes)}")
        last = self.temp(f"and {integer} {upper}, {spread(1, dtypes.int32, lanes)}")
        add = self.temp(f"add {integer} {last}, {spread(0x7FFF, dtypes.int32, lanes)}")
        rounded = self.temp(f"add {integer} {bits}, {add}")
        down = self.temp(f"lshr {integer} {rounded}, {spread(16, dtypes.int32, lanes)}")
        quiet = self.temp(f"or {integer} {upper}, {spread(0x40, dtypes.int32, lanes)}")
        nan = self.temp(f"fcmp uno {single} {operand}, {operand}")
        chosen = self.temp(f"select {flags} {nan}, {integer} {quiet}, {integer} {down}")
        return f"trunc {integer} {chosen} to {vector_type(dtypes.bfloat16, lanes)}"

    def to_odd(self, operand: str, lanes: int) -> str:
        """float64 to float32, an inexact result made the neighbour with an odd last bit, so that rounding it further is right."""
        single, double = vector_type(dtypes.float32, lanes), vector_type(dtypes.float64, lanes)
        integer, flags = vector_type(dtypes.int32, lanes), vector_type(dtypes.bool_, lanes)
        zero, one, minus = (spread(n, dtypes.int32, lanes) for n in (0, 1, -1))
        near = self.temp(f"fptrunc {double} {operand} to {single}")
        back = self.temp(f"fpext {single} {near} to {double}")
        inexact = self.temp(f"fcmp one {double} {back}, {operand}")
        size = self.temp(self.intrinsic("fabs", dtypes.float64, lanes, [back]))
        wanted = self.temp(self.intrinsic("fabs", dtypes.float64, lanes, [operand]))
        below = self.temp(f"fcmp olt {double} {size}, {wanted}")
        bits = self.temp(f"bitcast {single} {near} to {integer}")
        last = self.temp(f"and {integer} {bits}, {one}")
        even = self.temp(f"icmp eq {integer} {last}, {zero}")
        move = self.temp(f"and {flags} {inexact}, {even}")
        step = self.temp(f"select {flags} {below}, {integer} {one}, {integer} {minus}")
        moved = self.temp(f"add {integer} {bits}, {step}")
        chosen = self.temp(f"select {flags} {move}, {integer} {moved}, {integer} {bits}")
        return self.temp(f"bitcast {integer} {chosen} to {single}")
