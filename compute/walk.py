"""Walks over the graph of one kernel that carry an index along: from a result's index down to addresses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from compute.index import variable
from compute.ops import ELEMENTWISE, MOVEMENT, Node
from compute.plan import Access, Axis
from compute.view import Conditions, Index, capacity, extent, flat_index, through

Request = tuple[Node, Index, Conditions]
"""A node, where it is read, and what must hold there (expressions >= 0) for its value to matter."""


class Walk(ABC):
    """Evaluates nodes at indices: sources first, without recursion, each (node, index, conditions) once a scope."""

    def __init__(self) -> None:
        self.scopes: list[dict[Any, Any]] = [{}]

    def found(self, key: Any) -> Any:
        for scope in self.scopes:
            if key in scope:
                return scope[key]
        return ABSENT

    def evaluate(self, node: Node, index: Index, conditions: Conditions = ()) -> Any:
        first = simplified(node, index, conditions)
        stack = [first]
        while stack:
            request = stack[-1]
            if self.found(request) is not ABSENT:
                stack.pop()
                continue
            below = [simplified(*r) for r in self.requests(*request)]
            missing = [r for r in below if self.found(r) is ABSENT]
            if missing:
                stack.extend(reversed(missing))
                continue
            self.scopes[-1][request] = self.finish(request, below)
            stack.pop()
        return self.found(first)

    def requests(self, node: Node, index: Index, conditions: Conditions) -> list[Request]:
        if node.op in ELEMENTWISE:
            return [(s, index, conditions) for s in node.src]
        if node.op == "cat":
            return [(s, i, conditions + c) for s, (i, c) in zip(node.src, cat_parts(node, index), strict=True) if not never(c)]
        if node.op in MOVEMENT:
            inner, more = through(node.op, movement_arg(node), node.src[0].shape, node.shape, index)
            return [] if never(more) else [(node.src[0], inner, conditions + more)]
        return []

    @abstractmethod
    def finish(self, request: Request, below: list[Request]) -> Any: ...


ABSENT = object()


def simplified(node: Node, index: Index, conditions: Conditions) -> Request:
    if node.op in ("const", "size"):
        return node, (), ()
    return node, index, tuple(sorted({c for c in conditions if c.lo < 0}, key=lambda c: c.key)) if conditions else ()


def never(conditions: Conditions) -> bool:
    return any(c.hi < 0 for c in conditions)


def movement_arg(node: Node) -> Any:
    return node.arg[0] if node.op == "pad" else node.arg


def cat_parts(node: Node, index: Index) -> list[tuple[Index, Conditions]]:
    """Per source: its index, and the conditions under which the result comes from it."""
    axis = node.arg
    parts = []
    start = 0
    for source in node.src:
        size = capacity(source.shape[axis])
        here = index[axis] - start
        conditions = tuple(c for c in (here, size - 1 - here) if c.lo < 0)
        parts.append(((*index[:axis], here, *index[axis + 1 :]), conditions))
        start += size
    return parts


class Probe(Walk):
    """The first walk: which addresses are touched, and where the reduction is."""

    def __init__(self) -> None:
        super().__init__()
        self.accesses: list[Access] = []
        self.reduce: Node | None = None
        self.reduce_index: Index = ()
        self.reduced: list[Axis] = []

    def requests(self, node: Node, index: Index, conditions: Conditions) -> list[Request]:
        if node.op != "reduce":
            return super().requests(node, index, conditions)
        assert self.reduce in (None, node) and not conditions
        if self.reduce is None:
            self.reduce, self.reduce_index = node, index
            source = node.src[0].shape
            self.reduced = [Axis(f".r{a}", extent(source[a]), capacity(source[a])) for a in node.arg[1]]
        assert index == self.reduce_index
        variables = {a: variable(axis.name, 0, axis.size - 1) for a, axis in zip(node.arg[1], self.reduced, strict=True)}
        return [(node.src[0], tuple(variables.get(a, i) for a, i in enumerate(index)), ())]

    def finish(self, request: Request, below: list[Request]) -> None:
        node, index, conditions = request
        if node.op == "buffer":
            self.accesses.append(Access(node.arg, node.dtype.size, flat_index(node.shape, index), conditions))
        elif node.op == "iota":
            self.accesses.append(Access(-1, 0, index[0], conditions))
        elif node.op == "cat":
            self.accesses.append(Access(-1, 0, index[node.arg], conditions))
