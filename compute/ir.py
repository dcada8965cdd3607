"""Kernel IR: what one kernel does, spelled out. Typed values in single assignment, structured loops and conditions, explicit memory.

A kernel has parameters (pointers first, then 32-bit sizes), workgroup memory, and a body: a list of statements, each a `Value`, `Loop` or `If`.
A value has a dtype and a lane count (1, or the width of a small vector). Ops of values:

- all ops of compute/ops.py except the expanded ones, plus `cast`, `bitcast`
- `const` (arg: number), `param` (arg: index of a size parameter), `workgroup`, `workitem` (their flat ids, int32)
- `load` (args: index[, gate]; arg: parameter, constant offset, aligned), `store` (args: index, value; arg: the same); offsets count elements;
  with several lanes they access consecutive elements, aligned to their whole size or not; a load whose gate is false gives 0
- `lload`, `lstore` (arg: number of the local array) and `barrier`: memory shared by a workgroup
- `splat`, `extract` (arg: lane), `vector` (one scalar a lane), `lanes` (0, 1, 2, ... as int32)
- `phi`, `result` (arg: position) and `counter` of a loop

Integer index arithmetic is int32 (int64 in kernels that touch more than 2 GiB). `floordiv` and `mod` with arg "index" divide a number that
is known not to be negative by a positive constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from compute import dtypes
from compute.dtypes import DType
from compute.index import Expr
from compute.ops import COMPARISONS, as_kind
from compute.view import Variable


class Value:
    __slots__ = ("arg", "args", "dtype", "lanes", "number", "op")

    def __init__(self, number: int, op: str, dtype: DType, lanes: int, args: tuple[Value, ...], arg: Any) -> None:
        self.number = number
        self.op = op
        self.dtype = dtype
        self.lanes = lanes
        self.args = args
        self.arg = arg

    def __repr__(self) -> str:
        kind = self.dtype.name if self.lanes == 1 else f"{self.dtype.name}x{self.lanes}"
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"%{self.number} = {self.op} {kind}{arg} {' '.join(f'%{a.number}' for a in self.args)}".rstrip()


@dataclass
class Loop:
    """Runs its body `extent` times. counter: 0, 1, ...; phis carry values from one round to the next, starting at inits; results are their last values."""

    counter: Value
    extent: Value
    inits: list[Value]
    phis: list[Value]
    body: list[Statement] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


@dataclass
class If:
    condition: Value
    body: list[Statement] = field(default_factory=list)


Statement = Value | Loop | If


@dataclass(frozen=True)
class Param:
    """One buffer of a kernel. count: elements it must hold at least."""

    dtype: DType
    count: int
    written: bool


@dataclass
class Kernel:
    """A kernel, and how to launch it: `groups` workgroups (an Expr over the sizes) of `block` work-items. Loop kernels have one of each."""

    name: str
    params: list[Param]
    sizes: list[Variable]
    body: list[Statement]
    groups: Expr
    block: int
    locals: list[tuple[DType, int]] = field(default_factory=list)
    index_dtype: DType = dtypes.int32

    @property
    def has_barrier(self) -> bool:
        return any(isinstance(s, Value) and s.op == "barrier" for s in walk(self.body))

    @property
    def uses_ids(self) -> bool:
        return any(isinstance(s, Value) and s.op in ("workgroup", "workitem") for s in walk(self.body))

    def text(self) -> str:
        """The kernel in readable form; equal texts are equal kernels."""
        lines = [f"kernel {self.name} groups={self.groups} block={self.block} index={self.index_dtype}"]
        lines += [f"  p{i}: {'inout' if p.written else 'in'} {p.dtype}[{p.count}]" for i, p in enumerate(self.params)]
        lines += [f"  size {v!r}" for v in self.sizes]
        lines += [f"  local{i}: {d}[{n}]" for i, (d, n) in enumerate(self.locals)]
        _print(self.body, lines, "  ")
        return "\n".join(lines)


def walk(body: list[Statement]) -> Iterator[Statement]:
    """Every statement, outer ones first."""
    for statement in body:
        yield statement
        if isinstance(statement, (Loop, If)):
            yield from walk(statement.body)


def _print(body: list[Statement], lines: list[str], indent: str) -> None:
    for statement in body:
        if isinstance(statement, Value):
            lines.append(f"{indent}{statement!r}")
        elif isinstance(statement, If):
            lines.append(f"{indent}if %{statement.condition.number}")
            _print(statement.body, lines, indent + "  ")
        else:
            carried = " ".join(f"%{p.number}=%{i.number}" for p, i in zip(statement.phis, statement.inits, strict=True))
            lines.append(f"{indent}loop %{statement.counter.number} < %{statement.extent.number} {carried}".rstrip())
            _print(statement.body, lines, indent + "  ")
            if statement.yields:
                ends = " ".join(f"%{y.number}->%{r.number}" for y, r in zip(statement.yields, statement.results, strict=True))
                lines.append(f"{indent}  yield {ends}")


class Builder:
    """Appends statements; reuses a value that is already there in the block or around it."""

    def __init__(self) -> None:
        self.body: list[Statement] = []
        self._block = self.body
        self._scopes: list[dict[Any, Value]] = [{}]
        self._count = 0

    # --- values ---

    def const(self, value: bool | int | float, dtype: DType) -> Value:
        value = as_kind(value, dtype)
        bits = struct.pack("<d", value) if isinstance(value, float) else value
        return self._pure("const", dtype, 1, (), value, ("const", dtype, bits))

    def pure(self, op: str, dtype: DType, lanes: int, args: tuple[Value, ...] = (), arg: Any = None) -> Value:
        """A value that depends on its arguments only."""
        return self._pure(op, dtype, lanes, args, arg, (op, dtype, lanes, tuple(a.number for a in args), arg))

    def alu(self, op: str, *args: Value, arg: Any = None) -> Value:
        """An elementwise op; scalars among vectors are spread. bfloat16 is computed in float32."""
        lanes = max(a.lanes for a in args)
        operand = args[-1].dtype
        if operand is dtypes.bfloat16 and op != "where":
            found = self.alu(op, *(self.cast(a, dtypes.float32) if a.dtype is dtypes.bfloat16 else a for a in args), arg=arg)
            return found if op in COMPARISONS else self.cast(found, dtypes.bfloat16)
        spread = tuple(a if a.lanes == lanes or a.op == "const" else self.splat(a, lanes) for a in args)
        return self.pure(op, dtypes.bool_ if op in COMPARISONS else operand, lanes, spread, arg)

    def cast(self, value: Value, dtype: DType) -> Value:
        if value.dtype is dtype:
            return value
        if value.op == "const" and not (value.dtype.is_float and dtype.is_float):
            return self.const(value.arg, dtype)
        if value.dtype is dtypes.bfloat16 and dtype is not dtypes.float32:
            return self.cast(self.cast(value, dtypes.float32), dtype)
        if dtype in (dtypes.bfloat16, dtypes.float16) and not value.dtype.is_float:
            return self.cast(self.cast(value, dtypes.float32), dtype)
        if dtype.kind == "bool":
            return self.alu("ne", value, self.const(0, value.dtype))
        return self.pure("cast", dtype, value.lanes, (value,))

    def bitcast(self, value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else self.pure("bitcast", dtype, value.lanes, (value,))

    def splat(self, value: Value, lanes: int) -> Value:
        return value if value.lanes == lanes else self.pure("splat", value.dtype, lanes, (value,))

    def extract(self, value: Value, lane: int) -> Value:
        return value if value.lanes == 1 else self.pure("extract", value.dtype, 1, (value,), lane)

    def vector(self, parts: Sequence[Value]) -> Value:
        return parts[0] if len(parts) == 1 else self.pure("vector", parts[0].dtype, len(parts), tuple(parts))

    def load(self, param: int, dtype: DType, index: Value, offset: int, lanes: int, gate: Value | None, aligned: bool = False) -> Value:
        """aligned: the first element's number is a multiple of the lane count."""
        args = (index,) if gate is None else (index, gate)
        return self.pure("load", dtype, lanes, args, (param, offset, aligned))

    # --- effects ---

    def effect(self, op: str, dtype: DType, args: tuple[Value, ...] = (), arg: Any = None) -> Value:
        """A statement that must stay where it is: store, lload, lstore, barrier."""
        value = self._new(op, dtype, args[-1].lanes if args else 1, args, arg)
        self._block.append(value)
        return value

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        statement = If(condition)
        self._block.append(statement)
        with self._inside(statement.body):
            yield

    @contextmanager
    def loop(self, extent: Value, inits: Sequence[Value] = ()) -> Iterator[Loop]:
        """A loop; set its `yields` before leaving, take its `results` afterwards."""
        phis = [self._new("phi", i.dtype, i.lanes, (), None) for i in inits]
        statement = Loop(self._new("counter", extent.dtype, 1, (), None), extent, list(inits), phis)
        self._block.append(statement)
        with self._inside(statement.body):
            yield statement
        assert len(statement.yields) == len(statement.phis)
        statement.results = [self._new("result", p.dtype, p.lanes, (), k) for k, p in enumerate(phis)]

    @contextmanager
    def _inside(self, body: list[Statement]) -> Iterator[None]:
        outer, self._block = self._block, body
        self._scopes.append({})
        yield
        self._scopes.pop()
        self._block = outer

    def _pure(self, op: str, dtype: DType, lanes: int, args: tuple[Value, ...], arg: Any, key: Any) -> Value:
        for scope in self._scopes:
            found = scope.get(key)
            if found is not None:
                return found
        value = self._new(op, dtype, lanes, args, arg)
        self._scopes[-1][key] = value
        self._block.append(value)
        return value

    def _new(self, op: str, dtype: DType, lanes: int, args: tuple[Value, ...], arg: Any) -> Value:
        self._count += 1
        return Value(self._count, op, dtype, lanes, args, arg)
