"""Writing LLVM IR as text: typed values with operators, and a few control-flow shapes. No LLVM objects are built, so it is fast.

A value is scalar (n = 1) or has one element per lane (n = 32). Types: i1 i8 i16 i32 i64 f16 f32 f64 and ptr.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

LANES = 32
NAMES = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "i128": "i128", "f16": "half", "f32": "float", "f64": "double", "ptr": "ptr"}
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "f16": 16, "f32": 32, "f64": 64, "ptr": 64}


def type_name(ty: str, n: int) -> str:
    return NAMES[ty] if n == 1 else f"<{n} x {NAMES[ty]}>"


class Value:
    """One SSA value. Operators follow the type: + on floats is a plain IEEE add. Signedness is in the method's name."""

    __slots__ = ("b", "n", "ref", "ty")

    def __init__(self, b: Builder, ref: str, ty: str, n: int) -> None:
        self.b = b
        self.ref = ref
        self.ty = ty
        self.n = n

    @property
    def type(self) -> str:
        return type_name(self.ty, self.n)

    @property
    def bits(self) -> int:
        return BITS[self.ty]

    @property
    def is_float(self) -> bool:
        return self.ty[0] == "f"

    def _binary(self, op: str, other: Operand, result: str = "") -> Value:
        other = self.b.like(other, self)
        left = self if self.n == other.n else self.b.splat(self, other.n)
        return self.b.emit(f"{op} {left.type} {left.ref}, {other.ref}", result or self.ty, other.n)

    def _reflected(self, op: str, other: Operand) -> Value:
        return self.b.like(other, self)._binary(op, self)

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd" if self.is_float else "add", other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._reflected("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul" if self.is_float else "mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._reflected("fdiv", other)

    def __and__(self, other: Operand) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("xor", other)

    def __invert__(self) -> Value:
        return self._binary("xor", -1)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary("shl", other)

    def __rlshift__(self, other: Operand) -> Value:
        return self._reflected("shl", other)

    def __neg__(self) -> Value:
        if self.is_float:
            return self.b.emit(f"fneg {self.type} {self.ref}", self.ty, self.n)
        return self._reflected("sub", 0)

    def lshr(self, other: Operand) -> Value:
        return self._binary("lshr", other)

    def ashr(self, other: Operand) -> Value:
        return self._binary("ashr", other)

    def udiv(self, other: Operand) -> Value:
        return self._binary("udiv", other)

    def cmp(self, relation: str, other: Operand) -> Value:
        """relation: eq ne ult ule ugt uge slt sle sgt sge for integers; oeq olt ... une uno ord for floats."""
        return self._binary(f"{'fcmp' if self.is_float else 'icmp'} {relation}", other, "i1")

    def eq(self, other: Operand) -> Value:
        return self.cmp("oeq" if self.is_float else "eq", other)

    def ne(self, other: Operand) -> Value:
        return self.cmp("une" if self.is_float else "ne", other)

    def _convert(self, op: str, ty: str) -> Value:
        return self.b.emit(f"{op} {self.type} {self.ref} to {type_name(ty, self.n)}", ty, self.n)

    def zext(self, ty: str) -> Value:
        return self if ty == self.ty else self._convert("zext", ty)

    def sext(self, ty: str) -> Value:
        return self if ty == self.ty else self._convert("sext", ty)

    def trunc(self, ty: str) -> Value:
        return self if ty == self.ty else self._convert("trunc", ty)

    def fpext(self, ty: str) -> Value:
        return self if ty == self.ty else self._convert("fpext", ty)

    def fptrunc(self, ty: str) -> Value:
        assert (self.ty, ty) != ("f64", "f16"), "hosts do this in a library function; see FloatEnv.narrow"
        return self if ty == self.ty else self._convert("fptrunc", ty)

    def sitofp(self, ty: str) -> Value:
        return self._convert("sitofp", ty)

    def uitofp(self, ty: str) -> Value:
        return self._convert("uitofp", ty)

    def cast(self, ty: str) -> Value:
        """Same bits, other type of the same width."""
        return self if ty == self.ty else self._convert("bitcast", ty)

    def as_int(self) -> Value:
        return self.cast(f"i{self.bits}")

    def as_float(self) -> Value:
        return self.cast(f"f{self.bits}")

    def mask(self) -> Value:
        """A 32-bit scalar as one bit per lane."""
        return self.b.emit(f"bitcast i32 {self.ref} to <{LANES} x i1>", "i1", LANES)

    def ballot(self) -> Value:
        """One bit per lane as a 32-bit scalar."""
        return self.b.emit(f"bitcast <{LANES} x i1> {self.ref} to i32", "i32", 1)

    def select(self, yes: Operand, no: Operand) -> Value:
        """This i1 value decides. At least one of yes and no is a Value."""
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value)
        count = max(self.n, model.n, no.n if isinstance(no, Value) else 1)
        left, right = (self.b.splat(self.b.like(v, model), count) for v in (yes, no))
        return self.b.emit(f"select {self.type} {self.ref}, {left.type} {left.ref}, {right.type} {right.ref}", left.ty, count)

    def lane(self, index: Value | int) -> Value:
        """One lane as a scalar."""
        shown = f"i32 {index.ref}" if isinstance(index, Value) else f"i32 {index}"
        return self.b.emit(f"extractelement {self.type} {self.ref}, {shown}", self.ty, 1)

    def insert(self, scalar: Value, index: Value) -> Value:
        return self.b.emit(f"insertelement {self.type} {self.ref}, {scalar.type} {scalar.ref}, i32 {index.ref}", self.ty, self.n)

    def permute(self, lanes: list[int], other: Value | None = None) -> Value:
        """New vector whose element i is element lanes[i] of self (or of self followed by other)."""
        second = other.ref if other is not None else "poison"
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        count = len(lanes)
        return self.b.emit(f"shufflevector {self.type} {self.ref}, {self.type} {second}, <{count} x i32> <{mask}>", self.ty, count)

    def at(self, offset: Value | int) -> Value:
        """Pointer plus a byte offset."""
        shown = f"i64 {offset.ref}" if isinstance(offset, Value) else f"i64 {offset}"
        return self.b.emit(f"getelementptr i8, ptr {self.ref}, {shown}", "ptr", 1)

    def load(self, ty: str, n: int = 1, align: int = 0) -> Value:
        return self.b.emit(f"load {type_name(ty, n)}, ptr {self.ref}, align {align or max(BITS[ty] // 8, 1)}", ty, n)

    def store(self, value: Value, align: int = 0) -> None:
        self.b.line(f"store {value.type} {value.ref}, ptr {self.ref}, align {align or max(value.bits // 8, 1)}")


Operand = Value | int | float


def float_text(ty: str, value: float) -> str:
    if ty == "f16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if ty == "f32":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Builder:
    """Collects the lines of one function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.allocas: dict[str, str] = {}
        self.count = 0
        self.block = "entry"

    def line(self, text: str) -> None:
        self.lines.append(text)

    def emit(self, text: str, ty: str, n: int = 1) -> Value:
        self.count += 1
        ref = f"%t{self.count}"
        self.lines.append(f"{ref} = {text}")
        return Value(self, ref, ty, n)

    def const(self, ty: str, value: int | float, n: int = 1) -> Value:
        if ty == "ptr":
            return Value(self, f"inttoptr (i64 {value} to ptr)" if value else "null", ty, 1)
        if ty[0] == "f":
            text = float_text(ty, float(value))
        elif ty == "i1":
            text = "true" if value else "false"
        else:
            bits = BITS[ty]
            number = int(value) & ((1 << bits) - 1)
            text = str(number - (1 << bits) if number >> (bits - 1) else number)
        return Value(self, text if n == 1 else f"splat ({NAMES[ty]} {text})", ty, n)

    def i32(self, value: int) -> Value:
        return self.const("i32", value)

    def i64(self, value: int) -> Value:
        return self.const("i64", value)

    def vector(self, ty: str, values: list[int] | list[float]) -> Value:
        """A constant with its own value in each lane."""
        parts = ", ".join(f"{NAMES[ty]} {self.const(ty, value).ref}" for value in values)
        return Value(self, f"<{parts}>", ty, len(values))

    def like(self, value: Operand, model: Value) -> Value:
        if isinstance(value, Value):
            return value if value.n >= model.n else self.splat(value, model.n)
        return self.const(model.ty, value, model.n)

    def splat(self, value: Value, n: int = LANES) -> Value:
        if value.n == n:
            return value
        if not value.ref.startswith("%"):
            return Value(self, f"splat ({NAMES[value.ty]} {value.ref})", value.ty, n)
        wide = self.emit(f"insertelement {type_name(value.ty, n)} poison, {value.type} {value.ref}, i32 0", value.ty, n)
        return self.emit(f"shufflevector {wide.type} {wide.ref}, {wide.type} poison, <{n} x i32> zeroinitializer", value.ty, n)

    def declare(self, name: str, signature: str) -> None:
        self.declared[name] = signature

    def intrinsic(self, name: str, result: tuple[str, int], *args: Value | str) -> Value:
        """Call of an LLVM intrinsic; its name carries the type suffix already. String arguments are immediates with type."""
        returned = type_name(*result)
        types = [a.type if isinstance(a, Value) else a.split(" ")[0] for a in args]
        self.declare(name, f"declare {returned} @{name}({', '.join(types)})")
        shown = ", ".join(f"{a.type} {a.ref}" if isinstance(a, Value) else a for a in args)
        return self.emit(f"call {returned} @{name}({shown})", *result)

    def overloaded(self, name: str, *args: Value | str) -> Value:
        """Intrinsic whose result and overload type are those of the first argument, e.g. llvm.fma."""
        first = args[0]
        assert isinstance(first, Value)
        return self.intrinsic(f"llvm.{name}.{suffix(first)}", (first.ty, first.n), *args)

    def call(self, address: int, result: tuple[str, int] | None, *args: Value) -> Value | None:
        """Call of native code at a fixed address."""
        shown = ", ".join(f"{a.type} {a.ref}" for a in args)
        target = f"inttoptr (i64 {address} to ptr)"
        if result is None:
            self.line(f"call void {target}({shown})")
            return None
        return self.emit(f"call {type_name(*result)} {target}({shown})", *result)

    # -- control flow --------------------------------------------------------------------------------------------------

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def br(self, target: str) -> None:
        self.line(f"br label %{target}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.line(f"br i1 {condition.ref}, label %{yes}, label %{no}")

    def ret(self, value: Value | None = None) -> None:
        self.line(f"ret {value.type} {value.ref}" if value is not None else "ret void")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """The body runs if the condition holds. It must not leave by itself unless it ends in ret (use `exit_when`)."""
        yes, after = self.fresh("then"), self.fresh("after")
        self.branch(condition, yes, after)
        self.label(yes)
        yield
        self.br(after)
        self.label(after)

    @contextmanager
    def exit_when(self, condition: Value) -> Iterator[None]:
        """The body runs if the condition holds and ends with ret or br."""
        yes, after = self.fresh("leave"), self.fresh("stay")
        self.branch(condition, yes, after)
        self.label(yes)
        yield
        self.label(after)

    @contextmanager
    def loop(self, count: Value | int) -> Iterator[Value]:
        """for i in range(count), i is i32; count of at least 1."""
        head, before, latch, index, following = self.fresh("loop"), self.block, self.fresh("latch"), self.fresh("%i"), self.fresh("%j")
        limit = count.ref if isinstance(count, Value) else str(count)
        after = self.fresh("done")
        self.br(head)
        self.label(head)
        self.line(f"{index} = phi i32 [ 0, %{before} ], [ {following}, %{latch} ]")
        yield Value(self, index, "i32", 1)
        self.br(latch)
        self.label(latch)
        self.line(f"{following} = add nuw nsw i32 {index}, 1")
        more = self.emit(f"icmp ult i32 {following}, {limit}", "i1")
        self.branch(more, head, after)
        self.label(after)

    @contextmanager
    def each_lane(self, mask: Value) -> Iterator[Value]:
        """Over the set bits of a 32-bit mask in ascending order; yields the lane number (i32)."""
        check, head, before, latch = self.fresh("lanes"), self.fresh("lane"), self.block, self.fresh("latch")
        after, rest, left = self.fresh("done"), self.fresh("%m"), self.fresh("%l")
        self.br(check)
        self.label(check)
        self.line(f"{rest} = phi i32 [ {mask.ref}, %{before} ], [ {left}, %{latch} ]")
        current = Value(self, rest, "i32", 1)
        self.branch(current.eq(0), after, head)
        self.label(head)
        yield self.overloaded("cttz", current, "i1 true")
        self.br(latch)
        self.label(latch)
        less = current - 1
        self.line(f"{left} = and i32 {rest}, {less.ref}")
        self.br(check)
        self.label(after)

    def function(self, name: str, result: str, parameters: list[tuple[str, str]], attributes: str = "") -> str:
        """Text of the whole function with the collected lines as its body."""
        shown = ", ".join(f"{ty} %{param}" for ty, param in parameters)
        body = "\n".join([*self.allocas.values(), *self.lines])
        return f"define {result} @{name}({shown}) nounwind {attributes} {{\nentry:\n{body}\n}}\n"

    def declarations(self) -> str:
        return "\n".join(self.declared.values()) + "\n"


def suffix(value: Value) -> str:
    """Type suffix of overloaded intrinsics: i32, v32f32, ..."""
    return value.ty if value.n == 1 else f"v{value.n}{value.ty}"
