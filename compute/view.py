"""Movement ops as maps of indices: each turns an index into its result into an index into its source, and moves no data.

A chain of them on a buffer therefore is one address expression (offset plus strides, see index.py) and a set of conditions (the mask that
padding leaves behind). A condition is an Expr that must be >= 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compute.errors import BindingError, ShapeError, show_shape
from compute.index import Expr, constant, variable


class Variable:
    """A size that is known at launch only: a kernel compiled once serves every value in lo..hi (both inclusive)."""

    __slots__ = ("hi", "lo", "name")

    def __init__(self, name: str, lo: int, hi: int) -> None:
        if not name.isidentifier():
            raise BindingError(f"a variable's name must be an identifier, not {name!r}")
        if not 0 <= lo <= hi:
            raise BindingError(f"variable {name} needs 0 <= lo <= hi", read=f"lo={lo}, hi={hi}")
        self.name = name
        self.lo = lo
        self.hi = hi

    def bind(self, value: int) -> BoundVariable:
        """The variable with a value. Raises BindingError when it lies outside of the range."""
        if not self.lo <= value <= self.hi:
            raise BindingError(f"variable {self.name} cannot be {value}", read=f"its range is {self.lo}..{self.hi}")
        return BoundVariable(self, value)

    def expr(self) -> Expr:
        return variable(self.name, self.lo, self.hi)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variable) and (self.name, self.lo, self.hi) == (other.name, other.lo, other.hi)

    def __hash__(self) -> int:
        return hash((self.name, self.lo, self.hi))

    def __repr__(self) -> str:
        return f"{self.name}[{self.lo}..{self.hi}]"


class BoundVariable:
    """A Variable together with its value, as used in slices and shapes."""

    __slots__ = ("value", "variable")

    def __init__(self, variable: Variable, value: int) -> None:
        self.variable = variable
        self.value = value


Dim = int | Variable
Shape = tuple[Dim, ...]
Index = tuple[Expr, ...]
Conditions = tuple[Expr, ...]


def extent(dim: Dim) -> Expr:
    return dim.expr() if isinstance(dim, Variable) else constant(dim)


def capacity(dim: Dim) -> int:
    """The greatest value of a dimension; memory is laid out with it."""
    return dim.hi if isinstance(dim, Variable) else dim


def capacities(shape: Shape) -> tuple[int, ...]:
    return tuple(capacity(d) for d in shape)


def product(dims: Sequence[int]) -> int:
    total = 1
    for d in dims:
        total *= d
    return total


def size_of(shape: Shape) -> int:
    """Elements that memory for this shape holds."""
    return product(capacities(shape))


def strides_of(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = []
    step = 1
    for d in reversed(dims):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def flat_index(shape: Shape, index: Index) -> Expr:
    """Address, in elements, of an index into contiguous memory of this shape."""
    total = constant(0)
    for i, stride in zip(index, strides_of(capacities(shape)), strict=True):
        total = total + i * stride
    return total


def reshape_groups(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Pairs of ranges of axes with equal element counts, as fine as possible. Raises ShapeError when the shapes hold different counts."""
    if old == new:
        return [(range(i, i + 1), range(i, i + 1)) for i in range(len(old))]
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        count_old, count_new = _Count(), _Count()
        while True:
            if not count_old.same(count_new) or (i == first_i and j == first_j):
                take_old = j >= len(new) or (i < len(old) and count_old.number <= count_new.number)
                if take_old and i < len(old):
                    count_old.take(old[i])
                    i += 1
                elif j < len(new):
                    count_new.take(new[j])
                    j += 1
                else:
                    raise ShapeError(f"cannot reshape {show_shape(old)} to {show_shape(new)}", means="the two shapes hold different numbers of elements")
                continue
            break
        groups.append((range(first_i, i), range(first_j, j)))
    for olds, news in groups:
        sides = ([old[a] for a in olds if old[a] != 1], [new[a] for a in news if new[a] != 1])
        if any(isinstance(d, Variable) for side in sides for d in side) and sides[0] != sides[1]:
            raise ShapeError(f"cannot reshape {show_shape(old)} to {show_shape(new)}", means="a symbolic dimension can be kept or moved, not split or merged")
    return groups


class _Count:
    """Number of elements of some dimensions, symbolic ones by name."""

    def __init__(self) -> None:
        self.number = 1
        self.names: list[str] = []

    def take(self, dim: Dim) -> None:
        if isinstance(dim, Variable):
            self.names.append(dim.name)
            self.number *= max(dim.hi, 1)
        else:
            self.number *= dim

    def same(self, other: _Count) -> bool:
        return self.number == other.number and sorted(self.names) == sorted(other.names)


def through(op: str, arg: Any, source: Shape, shape: Shape, index: Index) -> tuple[Index, Conditions]:
    """Index into the source of a movement op for an index into its result, and the conditions under which it lies inside."""
    if op == "reshape":
        return _through_reshape(source, shape, index), ()
    if op == "permute":
        found: list[Expr] = [constant(0)] * len(arg)
        for position, axis in enumerate(arg):
            found[axis] = index[position]
        return tuple(found), ()
    if op == "expand":
        return tuple(constant(0) if s == 1 else i for i, s in zip(index, source, strict=True)), ()
    if op == "shrink":
        return tuple(i + start for i, (start, _) in zip(index, arg, strict=True)), ()
    if op == "flip":
        return tuple(extent(d) - 1 - i if axis in arg else i for axis, (i, d) in enumerate(zip(index, shape, strict=True))), ()
    assert op == "pad", op
    inner = tuple(i - before for i, (before, _) in zip(index, arg, strict=True))
    conditions: list[Expr] = []
    for i, dim, (before, after) in zip(inner, source, arg, strict=True):
        if before and i.lo < 0:
            conditions.append(i)
        if after and (extent(dim) - 1 - i).lo < 0:
            conditions.append(extent(dim) - 1 - i)
    return inner, tuple(conditions)


def _through_reshape(source: Shape, shape: Shape, index: Index) -> Index:
    found: list[Expr] = [constant(0)] * len(source)
    for olds, news in reshape_groups(source, shape):
        wide_old = [a for a in olds if source[a] != 1]
        wide_new = [a for a in news if shape[a] != 1]
        if [source[a] for a in wide_old] == [shape[a] for a in wide_new]:
            for a, b in zip(wide_old, wide_new, strict=True):
                found[a] = index[b]
            continue
        flat = constant(0)
        for a, stride in zip(wide_new, strides_of([capacity(shape[a]) for a in wide_new]), strict=True):
            flat = flat + index[a] * stride
        dims = [capacity(source[a]) for a in wide_old]
        for position, (a, stride) in enumerate(zip(wide_old, strides_of(dims), strict=True)):
            found[a] = flat // stride if position == 0 else (flat // stride) % dims[position]
    return tuple(found)
