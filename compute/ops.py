"""The graph that tensors are: nodes that say what a value is, and nothing about how or when it is computed.

Nodes are interned: two equal descriptions are one object, so identity is equality. The ops and their meaning on the elements:

- neg abs sqrt floor ceil trunc rint (to nearest even) not (bitwise; logical on bool)
- add sub mul (integers wrap), div (floats only, correctly rounded), floordiv mod (integers only; floor, as Python; by zero gives 0)
- max min (NaN if either is NaN), lt le eq ne (to bool; with NaN only ne holds), and or xor (no floats)
- shl shr (shr keeps the sign of signed types; counts beyond the width shift everything out), where (bool, a, b), fma (one rounding)
- exp exp2 log log2 sin cos tanh pow fmod: floats (pow also integers); built from the others in mathlib.py, which states their accuracy
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from compute.dtypes import DType
from compute.view import Shape

UNARY = frozenset({"neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "not"})
BINARY = frozenset({"add", "sub", "mul", "div", "floordiv", "mod", "max", "min", "lt", "le", "eq", "ne", "and", "or", "xor", "shl", "shr"})
TERNARY = frozenset({"where", "fma"})
COMPARISONS = frozenset({"lt", "le", "eq", "ne"})
EXPANDED_COST = {"exp": 14, "exp2": 12, "log": 24, "log2": 26, "sin": 70, "cos": 70, "tanh": 40, "pow": 90, "fmod": 120}
"""Functions that mathlib.py builds from the ops above, with about how many of them it takes."""
ALU = UNARY | BINARY | TERNARY | frozenset(EXPANDED_COST)
ELEMENTWISE = ALU | {"cast", "bitcast"}
MOVEMENT = frozenset({"reshape", "permute", "expand", "pad", "shrink", "flip"})

COST = {"div": 10, "sqrt": 10, "floordiv": 20, "mod": 20, **EXPANDED_COST}
"""About how many machine instructions an op takes per element; 1 where it is not listed."""


class Storage:
    """A realized value: memory on a device. Assigning to a tensor makes a new Storage on the same memory, so that identity means equal data."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer


class Node:
    """One value of the graph. `storage` is set once the node's value exists in memory."""

    __slots__ = ("__weakref__", "arg", "device", "dtype", "op", "shape", "src", "storage")

    op: str
    dtype: DType
    shape: Shape
    src: tuple[Node, ...]
    arg: Any
    device: str
    storage: Storage | None

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(s.op for s in self.src)}) {self.dtype} {self.shape} {self.arg if self.arg is not None else ''}".rstrip()


_interned: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()


def node(op: str, dtype: DType, shape: Shape, src: tuple[Node, ...] = (), arg: Any = None, device: str = "") -> Node:
    """The node of this description. device: where it lives ("" when anywhere, like constants)."""
    key = (op, dtype, shape, src, _arg_key(op, arg), device)
    found = _interned.get(key)
    if found is None:
        found = Node()
        found.op = op
        found.dtype = dtype
        found.shape = shape
        found.src = src
        found.arg = arg
        found.device = device
        found.storage = None
        _interned[key] = found
    return found


def _arg_key(op: str, arg: Any) -> Any:
    if op in ("const", "pad"):
        value = arg if op == "const" else arg[1]
        bits = struct.pack("<d", value) if isinstance(value, float) else value
        return (type(value), bits) if op == "const" else (arg[0], type(value), bits)
    return arg


def const(value: bool | int | float, dtype: DType, shape: Shape = ()) -> Node:
    """One number in every element, brought to the range and kind of the dtype."""
    return node("const", dtype, shape, (), as_kind(value, dtype))


def as_kind(value: bool | int | float, dtype: DType) -> bool | int | float:
    """A Python number as the dtype would hold it (integers wrap, floats are not yet rounded)."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.is_float:
        return float(value)
    if isinstance(value, float):
        if value != value:
            return 0
        value = int(max(dtype.min, min(dtype.max, value)))
        return value
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if dtype.kind == "int" and wrapped >> (dtype.bits - 1) else wrapped


def toposort(roots: list[Node], children: Callable[[Node], tuple[Node, ...]] = lambda n: n.src) -> Iterator[Node]:
    """Every node below the roots once, sources first. No recursion, so depth is no limit."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        current, ready = stack.pop()
        if ready:
            yield current
            continue
        if current in seen:
            continue
        seen.add(current)
        stack.append((current, True))
        stack.extend((child, False) for child in reversed(children(current)) if child not in seen)
