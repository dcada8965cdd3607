"""Kernel IR to LLVM IR, as text: the function, its blocks and its memory. What differs between targets is in a `Flavour`.

bool is i1 in registers and one byte in memory; bfloat16 is carried as its 16 bits, because its arithmetic is float32 arithmetic (see
ir.Builder.alu).
"""

from __future__ import annotations

from dataclasses import dataclass

from compute import dtypes
from compute.codegen.llvm_ops import Operations, scalar_type, spread, vector_type
from compute.dtypes import DType
from compute.ir import If, Kernel, Loop, Statement, Value
from compute.ops import ALU

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


def _memory_type(dtype: DType, lanes: int) -> str:
    name = "i8" if dtype is dtypes.bool_ else scalar_type(dtype)
    return name if lanes == 1 else f"<{lanes} x {name}>"


def generate(kernel: Kernel, flavour: Flavour) -> str:
    """The LLVM module of one kernel; it defines one function of the kernel's name."""
    return _Writer(kernel, flavour).module()


class _Writer(Operations):
    def __init__(self, kernel: Kernel, flavour: Flavour) -> None:
        super().__init__()
        self.kernel = kernel
        self.flavour = flavour
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

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, target: str) -> None:
        self.put(f"br label %{target}")

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
            read = f"icmp ne {memory} {self.temp(read)}, {spread(0, dtypes.uint8, v.lanes)}"
        if gate:
            zero = spread(0, v.dtype, v.lanes)
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
