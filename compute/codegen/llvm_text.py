"""Kernel IR to LLVM IR, as text. What differs between targets is in a `Flavour`.

Values are %vN, helpers %tN. bool is i1 in registers and one byte in memory; bfloat16 is carried as its 16 bits, because its arithmetic is
float32 arithmetic (see ir.Builder.alu).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from compute import dtypes
from compute.codegen.arithmetic import bfloat16_to_bits, round_bfloat16
from compute.dtypes import DType
from compute.ir import If, Kernel, Loop, Statement, Value
from compute.ops import ALU

_TYPES = {dtypes.bool_: "i1", dtypes.float16: "half", dtypes.bfloat16: "i16", dtypes.float32: "float", dtypes.float64: "double"}
_SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}
_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint"}
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_OPS = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_LIMIT_32 = 1 << 31


@dataclass(frozen=True)
class Flavour:
    """What a target's LLVM IR looks like around the arithmetic.

    global_space, local_space: address-space suffix of pointers to buffers and to workgroup memory. header: text of the function up to its
    arguments. footer: attributes and metadata. ids: expressions of workgroup and work-item number, or None where loops stand in for them.
    loop_metadata: attached to loop branches.
    """

    global_space: str
    local_space: str
    header: str
    trailer: str
    footer: str
    ids: tuple[str, str] | None
    barrier: str
    loop_metadata: str = ""


def scalar_type(dtype: DType) -> str:
    return _TYPES.get(dtype) or f"i{dtype.bits}"


def vector_type(dtype: DType, lanes: int) -> str:
    return scalar_type(dtype) if lanes == 1 else f"<{lanes} x {scalar_type(dtype)}>"


def _memory_type(dtype: DType, lanes: int) -> str:
    name = "i8" if dtype is dtypes.bool_ else scalar_type(dtype)
    return name if lanes == 1 else f"<{lanes} x {name}>"


def generate(kernel: Kernel, flavour: Flavour) -> str:
    """The LLVM module of one kernel; it defines one function of the kernel's name."""
    return _Writer(kernel, flavour).module()


class _Writer:
    def __init__(self, kernel: Kernel, flavour: Flavour) -> None:
        self.kernel = kernel
        self.flavour = flavour
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.names: dict[int, str] = {}
        self.counter = 0
        self.block = "entry"

    # --- the frame ---

    def module(self) -> str:
        k, f = self.kernel, self.flavour
        args = []
        for i, p in enumerate(k.params):
            args.append(f"ptr{f.global_space} noalias {'' if p.written else 'readonly '}align 16 %p{i}")
        args += [f"i32 %s{i}" for i in range(len(k.sizes))]
        looped = f.ids is None and k.uses_ids
        if looped:
            args.append("i32 %groups")
        self.lines.append(f"{f.header} @{k.name}({', '.join(args)}) {f.trailer} {{")
        self.lines.append("entry:")
        if looped:
            self.loops_for_ids()
        else:
            self.statements(k.body)
        self.lines.append("  ret void")
        self.lines.append("}")
        locals_ = [
            f"@{k.name}.local{i} = internal unnamed_addr{f.local_space} global [{n} x {_memory_type(d, 1)}] poison, align 16" for i, (d, n) in enumerate(k.locals)
        ]
        return "\n".join([*locals_, *self.declared.values(), *self.lines, f.footer, ""])

    def loops_for_ids(self) -> None:
        """Two loops around the body that count workgroups and work-items, for targets without them."""
        self.branch("group")
        self.label("group")
        self.put("%workgroup = phi i32 [ 0, %entry ], [ %workgroup.next, %group.end ]")
        self.branch("item")
        self.label("item")
        self.put("%workitem = phi i32 [ 0, %group ], [ %workitem.next, %item.end ]")
        self.statements(self.kernel.body)
        self.branch("item.end")
        self.label("item.end")
        self.put("%workitem.next = add nuw nsw i32 %workitem, 1")
        self.put(f"%item.more = icmp ult i32 %workitem.next, {self.kernel.block}")
        self.put("br i1 %item.more, label %item, label %group.end")
        self.label("group.end")
        self.put("%workgroup.next = add nuw nsw i32 %workgroup, 1")
        self.put("%group.more = icmp ult i32 %workgroup.next, %groups")
        self.put("br i1 %group.more, label %group, label %done")
        self.label("done")

    # --- writing ---

    def put(self, text: str) -> None:
        self.lines.append("  " + text)

    def temp(self, text: str) -> str:
        self.counter += 1
        name = f"%t{self.counter}"
        self.put(f"{name} = {text}")
        return name

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, target: str) -> None:
        self.put(f"br label %{target}")

    def call(self, name: str, result: str, args: list[tuple[str, str]]) -> str:
        """Text of a call of an intrinsic, which it declares."""
        if name not in self.declared:
            self.declared[name] = f"declare {result} @{name}({', '.join(t for t, _ in args)})"
        return f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})"

    def typed(self, v: Value, lanes: int = 0) -> str:
        return f"{vector_type(v.dtype, lanes or v.lanes)} {self.ref(v, lanes)}"

    def ref(self, v: Value, lanes: int = 0) -> str:
        """The operand's text; constants are spread over `lanes`."""
        if v.op == "const":
            literal = _literal(v.arg, v.dtype)
            return literal if lanes <= 1 else f"splat ({scalar_type(v.dtype)} {literal})"
        return self.names.get(v.number) or f"%v{v.number}"

    def statements(self, body: list[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Value):
                self.value(statement)
            elif isinstance(statement, If):
                self.condition(statement)
            else:
                self.loop(statement)

    def condition(self, statement: If) -> None:
        self.counter += 1
        inside, after = f"then{self.counter}", f"after{self.counter}"
        self.put(f"br i1 {self.ref(statement.condition)}, label %{inside}, label %{after}")
        self.label(inside)
        self.statements(statement.body)
        self.branch(after)
        self.label(after)

    def loop(self, statement: Loop) -> None:
        self.counter += 1
        head, tail, after = (f"{part}{self.counter}" for part in ("loop", "next", "done"))
        extent = statement.extent
        counter_type = scalar_type(extent.dtype)
        certain = extent.op == "const" and extent.arg >= 1
        before = self.block
        if certain:
            self.branch(head)
        else:
            some = self.temp(f"icmp sgt {self.typed(extent)}, 0")
            self.put(f"br i1 {some}, label %{head}, label %{after}")
        self.label(head)
        self.put(f"%v{statement.counter.number} = phi {counter_type} [ 0, %{before} ], [ %{tail}.count, %{tail} ]")
        for phi, start, end in zip(statement.phis, statement.inits, statement.yields, strict=True):
            self.put(f"%v{phi.number} = phi {vector_type(phi.dtype, phi.lanes)} [ {self.ref(start, phi.lanes)}, %{before} ], [ {self.ref(end, phi.lanes)}, %{tail} ]")
        self.statements(statement.body)
        self.branch(tail)
        self.label(tail)
        self.put(f"%{tail}.count = add nuw nsw {counter_type} %v{statement.counter.number}, 1")
        self.put(f"%{tail}.more = icmp ult {counter_type} %{tail}.count, {self.ref(extent)}")
        self.put(f"br i1 %{tail}.more, label %{head}, label %{after}{self.flavour.loop_metadata}")
        self.label(after)
        for result, start, end in zip(statement.results, statement.inits, statement.yields, strict=True):
            kind = vector_type(result.dtype, result.lanes)
            if certain:
                self.put(f"%v{result.number} = phi {kind} [ {self.ref(end, result.lanes)}, %{tail} ]")
            else:
                self.put(f"%v{result.number} = phi {kind} [ {self.ref(start, result.lanes)}, %{before} ], [ {self.ref(end, result.lanes)}, %{tail} ]")

    # --- values ---

    def value(self, v: Value) -> None:
        op = v.op
        if op == "const":
            return
        if op == "store" or op == "lstore":
            self.store(v)
            return
        if op == "barrier":
            for line in self.flavour.barrier.splitlines():
                self.put(line)
            self.declared.setdefault("llvm.amdgcn.s.barrier", "declare void @llvm.amdgcn.s.barrier()")
            return
        self.put(f"%v{v.number} = {self.text(v)}")

    def text(self, v: Value) -> str:
        op, kind = v.op, vector_type(v.dtype, v.lanes)
        if op in ALU:
            return self.alu(v)
        if op == "cast":
            return self.cast(v)
        if op == "bitcast":
            a = v.args[0]
            return f"bitcast {self.typed(a)} to {kind}" if scalar_type(a.dtype) != scalar_type(v.dtype) else self.copy(kind, self.ref(a))
        if op in ("load", "lload"):
            return self.load(v)
        if op == "splat":
            if v.args[0].op == "const":
                return self.copy(kind, self.ref(v.args[0], v.lanes))
            single = self.temp(f"insertelement {kind} poison, {self.typed(v.args[0])}, i32 0")
            return f"shufflevector {kind} {single}, {kind} poison, <{v.lanes} x i32> zeroinitializer"
        if op == "extract":
            return f"extractelement {self.typed(v.args[0])}, i32 {v.arg}"
        if op == "vector":
            so_far = "poison"
            for i, a in enumerate(v.args[:-1]):
                so_far = self.temp(f"insertelement {kind} {so_far}, {self.typed(a)}, i32 {i}")
            return f"insertelement {kind} {so_far}, {self.typed(v.args[-1])}, i32 {v.lanes - 1}"
        if op == "lanes":
            return self.copy(kind, "<" + ", ".join(f"i32 {i}" for i in range(v.lanes)) + ">")
        if op == "param":
            return self.copy(kind, f"%s{v.arg}")
        assert op in ("workgroup", "workitem"), op
        if self.flavour.ids is None:
            return self.copy(kind, f"%{op}")
        name = self.flavour.ids[op == "workitem"]
        return self.call(name, "i32", [])

    def copy(self, kind: str, operand: str) -> str:
        """A second name for an operand."""
        return f"freeze {kind} {operand}"

    def alu(self, v: Value) -> str:
        op, lanes = v.op, v.lanes
        a = v.args
        dtype = a[-1].dtype
        kind = vector_type(dtype, lanes)
        refs = [self.ref(x, lanes) for x in a]
        if op == "where":
            return f"select {vector_type(dtypes.bool_, lanes)} {refs[0]}, {kind} {refs[1]}, {kind} {refs[2]}"
        if op in ("lt", "le", "eq", "ne"):
            if dtype.is_float:
                return f"fcmp {_FLOAT_COMPARE[op]} {kind} {refs[0]}, {refs[1]}"
            sign = "s" if dtype.kind == "int" else "u"
            return f"icmp {op if op in ('eq', 'ne') else sign + op} {kind} {refs[0]}, {refs[1]}"
        if dtype.is_float:
            return self.float_alu(op, kind, lanes, dtype, refs)
        return self.int_alu(v, op, kind, lanes, dtype, refs)

    def float_alu(self, op: str, kind: str, lanes: int, dtype: DType, refs: list[str]) -> str:
        if op in _FLOAT_OPS:
            return f"{_FLOAT_OPS[op]} {kind} {refs[0]}, {refs[1]}"
        if op == "neg":
            return f"fneg {kind} {refs[0]}"
        names = {"abs": "fabs", "max": "maximum", "min": "minimum", "fma": "fma", **_INTRINSICS}
        return self.intrinsic(names[op], kind, lanes, dtype, refs)

    def intrinsic(self, name: str, kind: str, lanes: int, dtype: DType, refs: list[str]) -> str:
        element = scalar_type(dtype)
        suffix = ("" if lanes == 1 else f"v{lanes}") + _SUFFIX.get(element, element)
        return self.call(f"llvm.{name}.{suffix}", kind, [(kind, r) for r in refs])

    def int_alu(self, v: Value, op: str, kind: str, lanes: int, dtype: DType, refs: list[str]) -> str:
        if dtype is dtypes.bool_ and op in ("max", "min", "add", "mul"):
            return f"{'or' if op in ('max', 'add') else 'and'} {kind} {refs[0]}, {refs[1]}"
        if op in _INT_OPS:
            return f"{_INT_OPS[op]} {kind} {refs[0]}, {refs[1]}"
        if op == "neg":
            return f"sub {kind} {_spread(dtype, lanes, 0)}, {refs[0]}"
        if op == "not":
            return f"xor {kind} {refs[0]}, {_spread(dtype, lanes, 1 if dtype is dtypes.bool_ else -1)}"
        if op == "abs":
            if dtype.kind != "int":
                return self.copy(kind, refs[0])
            negative = self.temp(f"sub {kind} {_spread(dtype, lanes, 0)}, {refs[0]}")
            return self.select_less(kind, lanes, refs[0], negative)
        if op in ("max", "min"):
            return self.intrinsic(("s" if dtype.kind == "int" else "u") + op, kind, lanes, dtype, refs)
        if op in ("shl", "shr"):
            return self.shift(v, op, kind, lanes, dtype, refs)
        assert op in ("floordiv", "mod"), op
        return self.divide(v, op, kind, lanes, dtype, refs)

    def select_less(self, kind: str, lanes: int, x: str, negative: str) -> str:
        below = self.temp(f"icmp slt {kind} {x}, {'0' if lanes == 1 else 'zeroinitializer'}")
        return f"select {vector_type(dtypes.bool_, lanes)} {below}, {kind} {negative}, {kind} {x}"

    def shift(self, v: Value, op: str, kind: str, lanes: int, dtype: DType, refs: list[str]) -> str:
        plain = "shl" if op == "shl" else ("ashr" if dtype.kind == "int" else "lshr")
        count = v.args[1]
        if v.arg == "inside" or (count.op == "const" and 0 <= count.arg < dtype.bits):
            return f"{plain} {kind} {refs[0]}, {refs[1]}"
        if plain == "ashr":
            last = self.temp(self.intrinsic("umin", kind, lanes, dtype, [refs[1], _spread(dtype, lanes, dtype.bits - 1)]))
            return f"ashr {kind} {refs[0]}, {last}"
        inside = self.temp(f"icmp ult {kind} {refs[1]}, {_spread(dtype, lanes, dtype.bits)}")
        flags = vector_type(dtypes.bool_, lanes)
        safe = self.temp(f"select {flags} {inside}, {kind} {refs[1]}, {kind} {_spread(dtype, lanes, 0)}")
        moved = self.temp(f"{plain} {kind} {refs[0]}, {safe}")
        return f"select {flags} {inside}, {kind} {moved}, {kind} {_spread(dtype, lanes, 0)}"

    def divide(self, v: Value, op: str, kind: str, lanes: int, dtype: DType, refs: list[str]) -> str:
        """Floor division and its remainder, defined for every input: by zero both are 0, and the least number by -1 wraps."""
        if v.arg == "index":
            return f"{'udiv' if op == 'floordiv' else 'urem'} {kind} {refs[0]}, {refs[1]}"
        flags = vector_type(dtypes.bool_, lanes)
        zero, one = _spread(dtype, lanes, 0), _spread(dtype, lanes, 1)
        known = v.args[1].op == "const" and v.args[1].arg not in (0, -1)
        divisor = refs[1]
        is_zero = is_minus = ""
        if not known:
            is_zero = self.temp(f"icmp eq {kind} {refs[1]}, {zero}")
            divisor = self.temp(f"select {flags} {is_zero}, {kind} {one}, {kind} {refs[1]}")
        if dtype.kind == "uint":
            found = self.temp(f"{'udiv' if op == 'floordiv' else 'urem'} {kind} {refs[0]}, {divisor}")
            return f"select {flags} {is_zero}, {kind} {zero}, {kind} {found}" if is_zero else self.copy(kind, found)
        if not known:
            is_minus = self.temp(f"icmp eq {kind} {refs[1]}, {_spread(dtype, lanes, -1)}")
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
        a = v.args[0]
        source, target, lanes = a.dtype, v.dtype, v.lanes
        kind = vector_type(target, lanes)
        operand = self.typed(a, lanes)
        if source.is_float and target.is_float:
            return self.float_to_float(a, target, lanes)
        if source.is_float:
            if source is dtypes.float16:
                operand = f"{vector_type(dtypes.float32, lanes)} {self.temp(f'fpext {operand} to {vector_type(dtypes.float32, lanes)}')}"
                source = dtypes.float32
            name = f"llvm.fpto{'s' if target.kind == 'int' else 'u'}i.sat"
            spread = "" if lanes == 1 else f"v{lanes}"
            argument = vector_type(source, lanes)
            return self.call(f"{name}.{spread}{scalar_type(target)}.{spread}{_SUFFIX[scalar_type(source)]}", kind, [(argument, operand[len(argument) + 1 :])])
        if target.is_float:
            return f"{'sitofp' if source.kind == 'int' else 'uitofp'} {operand} to {kind}"
        if source.bits == target.bits and source.kind != "bool":
            return self.copy(kind, self.ref(a, lanes))
        if source.kind != "bool" and source.bits > target.bits:
            return f"trunc {operand} to {kind}"
        return f"{'sext' if source.kind == 'int' else 'zext'} {operand} to {kind}"

    def float_to_float(self, a: Value, target: DType, lanes: int) -> str:
        source = a.dtype
        single = vector_type(dtypes.float32, lanes)
        kind = vector_type(target, lanes)
        operand = self.typed(a, lanes)
        if source is dtypes.bfloat16:
            integer = vector_type(dtypes.int32, lanes)
            wide = self.temp(f"zext {operand} to {integer}")
            moved = self.temp(f"shl {integer} {wide}, {_spread(dtypes.int32, lanes, 16)}")
            return f"bitcast {integer} {moved} to {single}"
        if source is dtypes.float64 and target.size == 2:
            operand = f"{single} {self.to_odd(operand, lanes)}"
        elif source is dtypes.float16 and target is not dtypes.float32:
            operand = f"{single} {self.temp(f'fpext {operand} to {single}')}"
        if target is dtypes.bfloat16:
            return self.to_bfloat16(operand, lanes)
        wider = target.size > (2 if operand.startswith(vector_type(dtypes.float16, lanes)) else 4 if operand.startswith(single) else 8)
        return f"{'fpext' if wider else 'fptrunc'} {operand} to {kind}"

    def to_bfloat16(self, operand: str, lanes: int) -> str:
        integer, flags = vector_type(dtypes.int32, lanes), vector_type(dtypes.bool_, lanes)
        value = operand.split(" ", operand.count(" "))[-1] if lanes == 1 else operand[len(vector_type(dtypes.float32, lanes)) + 1 :]
        single = vector_type(dtypes.float32, lanes)
        bits = self.temp(f"bitcast {operand} to {integer}")
        upper = self.temp(f"lshr {integer} {bits}, {_spread(dtypes.int32, lanes, 16)}")
        last = self.temp(f"and {integer} {upper}, {_spread(dtypes.int32, lanes, 1)}")
        add = self.temp(f"add {integer} {last}, {_spread(dtypes.int32, lanes, 0x7FFF)}")
        rounded = self.temp(f"add {integer} {bits}, {add}")
        down = self.temp(f"lshr {integer} {rounded}, {_spread(dtypes.int32, lanes, 16)}")
        quiet = self.temp(f"or {integer} {upper}, {_spread(dtypes.int32, lanes, 0x40)}")
        nan = self.temp(f"fcmp uno {single} {value}, {value}")
        chosen = self.temp(f"select {flags} {nan}, {integer} {quiet}, {integer} {down}")
        return f"trunc {integer} {chosen} to {vector_type(dtypes.bfloat16, lanes)}"

    def to_odd(self, operand: str, lanes: int) -> str:
        """float64 to float32, an inexact result made the neighbour with an odd last bit, so that rounding it further is right."""
        single, double = vector_type(dtypes.float32, lanes), vector_type(dtypes.float64, lanes)
        integer, flags = vector_type(dtypes.int32, lanes), vector_type(dtypes.bool_, lanes)
        value = operand[len(double) + 1 :]
        near = self.temp(f"fptrunc {operand} to {single}")
        back = self.temp(f"fpext {single} {near} to {double}")
        inexact = self.temp(f"fcmp one {double} {back}, {value}")
        size = self.temp(self.intrinsic("fabs", double, lanes, dtypes.float64, [back]))
        wanted = self.temp(self.intrinsic("fabs", double, lanes, dtypes.float64, [value]))
        below = self.temp(f"fcmp olt {double} {size}, {wanted}")
        bits = self.temp(f"bitcast {single} {near} to {integer}")
        last = self.temp(f"and {integer} {bits}, {_spread(dtypes.int32, lanes, 1)}")
        even = self.temp(f"icmp eq {integer} {last}, {_spread(dtypes.int32, lanes, 0)}")
        move = self.temp(f"and {flags} {inexact}, {even}")
        step = self.temp(f"select {flags} {below}, {integer} {_spread(dtypes.int32, lanes, 1)}, {integer} {_spread(dtypes.int32, lanes, -1)}")
        moved = self.temp(f"add {integer} {bits}, {step}")
        chosen = self.temp(f"select {flags} {move}, {integer} {moved}, {integer} {bits}")
        return self.temp(f"bitcast {integer} {chosen} to {single}")

    # --- memory ---

    def address(self, v: Value, index: str) -> str:
        """A pointer to element index + offset of a buffer; the offset is added last, where instructions have room for it."""
        dtype, number, offset = v.dtype, v.arg[0], v.arg[1]
        space = self.flavour.global_space
        narrow = self.kernel.index_dtype is dtypes.int32 and self.kernel.params[number].count * dtype.size < _LIMIT_32
        if narrow:
            scaled = index if dtype.size == 1 else self.temp(f"mul i32 {index}, {dtype.size}")
            wide = self.temp(f"zext i32 {scaled} to i64")
        else:
            wide = index if self.kernel.index_dtype is dtypes.int64 else self.temp(f"sext i32 {index} to i64")
            wide = self.temp(f"mul i64 {wide}, {dtype.size}")
        pointer = self.temp(f"getelementptr inbounds i8, ptr{space} %p{number}, i64 {wide}")
        return self.temp(f"getelementptr inbounds i8, ptr{space} {pointer}, i64 {offset * dtype.size}") if offset else pointer

    def local_address(self, v: Value) -> str:
        name = f"@{self.kernel.name}.local{v.arg}"
        count = self.kernel.locals[v.arg][1]
        kind = _memory_type(v.dtype, 1)
        return self.temp(f"getelementptr inbounds [{count} x {kind}], ptr{self.flavour.local_space} {name}, i32 0, {self.typed(v.args[0])}")

    def load(self, v: Value) -> str:
        kind, memory = vector_type(v.dtype, v.lanes), _memory_type(v.dtype, v.lanes)
        index = self.ref(v.args[0])
        gate = ""
        if v.op == "load" and len(v.args) > 1:
            gate = self.ref(v.args[1])
            index_type = scalar_type(self.kernel.index_dtype)
            index = self.temp(f"select i1 {gate}, {index_type} {index}, {index_type} 0")
        pointer = self.local_address(v) if v.op == "lload" else self.address(v, index)
        space = self.flavour.local_space if v.op == "lload" else self.flavour.global_space
        read = f"load {memory}, ptr{space} {pointer}, align {self.alignment(v)}"
        if v.dtype is dtypes.bool_:
            read = f"icmp ne {memory} {self.temp(read)}, {'0' if v.lanes == 1 else 'zeroinitializer'}"
        if gate:
            zero = _literal(0, v.dtype) if v.lanes == 1 else "zeroinitializer"
            read = f"select i1 {gate}, {kind} {self.temp(read)}, {kind} {zero}"
        return read

    def alignment(self, v: Value) -> int:
        whole = v.op in ("load", "store") and v.arg[2]
        return v.dtype.size * (v.lanes if whole else 1)

    def store(self, v: Value) -> None:
        data = v.args[1]
        operand = self.typed(data, v.lanes)
        if data.dtype is dtypes.bool_:
            memory = _memory_type(data.dtype, v.lanes)
            operand = f"{memory} {self.temp(f'zext {operand} to {memory}')}"
        pointer = self.local_address(v) if v.op == "lstore" else self.address(v, self.ref(v.args[0]))
        space = self.flavour.local_space if v.op == "lstore" else self.flavour.global_space
        self.put(f"store {operand}, ptr{space} {pointer}, align {self.alignment(v)}")


def _spread(dtype: DType, lanes: int, value: int) -> str:
    literal = _literal(value, dtype)
    return literal if lanes == 1 else f"splat ({scalar_type(dtype)} {literal})"


def _literal(value: bool | int | float, dtype: DType) -> str:
    if dtype is dtypes.bool_:
        return "true" if value else "false"
    if dtype.is_int:
        return str(int(value))
    if dtype is dtypes.float16:
        with np.errstate(over="ignore"):
            return f"0xH{np.float16(value).view(np.uint16):04X}"
    if dtype is dtypes.bfloat16:
        return str(int(bfloat16_to_bits(round_bfloat16(np.float32(value)))))
    if dtype is dtypes.float32:
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
