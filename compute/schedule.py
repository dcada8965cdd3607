"""Cuts the graph into kernels: one a reduction, with all elementwise work before and after it inside.

What is computed after a reduction joins its kernel as long as every result element needs exactly one element of the reduction; where a value
is spread (expand), padded, joined or reduced again, what stands below is stored first. Cheap elementwise work is computed again rather
than stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compute.dtypes import DType
from compute.ir import Param
from compute.ops import COST, ELEMENTWISE, Node, Storage, node, toposort
from compute.view import size_of

_COSTLY = 24
"""Instructions an element from which a value is stored rather than computed again for every place it is spread to."""
_SPREAD = 4
_DEEPEST = 300
"""Longest chain of elementwise ops in one kernel; keeps compile times bounded."""

Owner = tuple[Node, tuple[Any, ...]]
"""The reduction that a node is computed after, and the movement ops between the two."""


@dataclass
class Step:
    """One kernel launch, or a copy between devices. graph: the kernel in canonical form (leaves are parameter numbers), also its cache key."""

    root: Node
    graph: Node
    params: list[Param]
    inputs: list[Storage]
    """Storage of the parameters after the first; for a copy the source alone."""
    is_copy: bool = False


def schedule(outputs: Sequence[Node], into: dict[Node, Any] | None = None) -> list[Step]:
    """Steps that give every output a value, in order; each step's root then has a storage, whose buffer the caller sets.

    into: memory that an output is written to in place. Its kernel may read the same memory, elementwise.
    """
    into = into or {}
    roots = _choose_roots(outputs)
    steps = []
    planned: dict[Node, Storage] = {}
    for root in toposort(list(outputs), _unrealized_sources):
        if root in roots and root.storage is None and root.op != "buffer" and size_of(root.shape):
            storage = Storage(None)
            steps.append(_step(root, roots, planned, into.get(root)))
            planned[root] = storage
    for step in steps:
        step.root.storage = planned[step.root]
    return steps


def _unrealized_sources(n: Node) -> tuple[Node, ...]:
    return () if n.storage is not None else n.src


def _choose_roots(outputs: Sequence[Node]) -> set[Node]:
    order = list(toposort(list(outputs), _unrealized_sources))
    roots = set(outputs)
    for n in order:
        if n.op in ("contiguous", "copy"):
            roots.add(n)
        if n.op == "copy":
            roots.add(n.src[0])
    while True:
        before = len(roots)
        _cut(order, roots)
        if len(roots) == before:
            _store_shared_reductions(order, roots)
            if len(roots) == before:
                return roots


def _cut(order: list[Node], roots: set[Node]) -> None:
    """Adds to the roots what must be stored because a kernel can hold one reduction only."""
    owners: dict[Node, Owner | None] = {}
    costs: dict[Node, int] = {}
    depths: dict[Node, int] = {}

    def visible(n: Node) -> Owner | None:
        return None if n in roots else owners[n]

    for n in order:
        stored = n.storage is not None
        sources = () if stored else n.src
        costs[n] = _cost(n, sources, costs, roots, stored)
        depths[n] = 1 + max((0 if s in roots else depths[s] for s in sources), default=0)
        if depths[n] > _DEEPEST and n.op in ELEMENTWISE:
            roots.update(s for s in sources if depths[s] == depths[n] - 1 and s.op in ELEMENTWISE)
        if n.op in ("reduce", "expand", "pad", "cat"):
            roots.update(s for s in sources if visible(s) is not None)
            if n.op == "expand" and costs[n.src[0]] >= _COSTLY and size_of(n.shape) >= _SPREAD * size_of(n.src[0].shape):
                roots.update(s for s in sources if not stored)
            owners[n] = (n, ()) if n.op == "reduce" else None
        elif n.op in ELEMENTWISE or n.op in ("contiguous", "copy"):
            chosen: Owner | None = None
            for s in reversed(sources):
                owner = visible(s)
                if owner is not None and chosen is not None and owner != chosen:
                    roots.add(s)
                elif owner is not None:
                    chosen = owner
            owners[n] = chosen
        elif sources:
            below = visible(sources[0])
            owners[n] = None if below is None else (below[0], (*below[1], (n.op, n.arg, n.shape)))
        else:
            owners[n] = None


def _cost(n: Node, sources: tuple[Node, ...], costs: dict[Node, int], roots: set[Node], stored: bool) -> int:
    """Instructions to compute an element of n from memory; 0 when it depends on constants only."""
    if stored or n.op in ("const", "size", "buffer"):
        return 0
    if n.op in ("iota", "reduce"):
        return 1
    total = sum(0 if s in roots else costs[s] for s in sources)
    varies = total > 0 or any(s in roots or s.storage is not None or s.op == "buffer" for s in sources)
    return min(total + (COST.get(n.op, 1) if n.op in ELEMENTWISE else 0), 1 << 30) if varies else 0


def _store_shared_reductions(order: list[Node], roots: set[Node]) -> None:
    """Adds reductions that several kernels would compute."""
    users: dict[Node, Node] = {}
    for root in order:
        if root not in roots or root.storage is not None:
            continue
        for n in _region(root, roots):
            if n.op == "reduce" and users.setdefault(n, root) is not root:
                roots.add(n)


def _region(root: Node, roots: set[Node]) -> list[Node]:
    """The nodes that the kernel of this root computes, sources first."""

    def inside(n: Node) -> tuple[Node, ...]:
        return tuple(s for s in n.src if s not in roots and s.storage is None)

    return list(toposort([root], inside))


def _step(root: Node, roots: set[Node], planned: dict[Node, Storage], target: Any) -> Step:
    """The launch that computes one root from what is stored. target: memory that it is written to, when that is given."""

    def stored(n: Node) -> Storage | None:
        if n.op == "buffer":
            found: Storage | None = n.arg
            return found
        return planned.get(n) or n.storage

    if root.op == "copy":
        source = stored(root.src[0])
        assert source is not None
        return Step(root, root, [], [source], is_copy=True)
    inputs: list[Storage] = []
    params = [Param(root.dtype, max(size_of(root.shape), 1), True)]
    numbers: dict[tuple[int, DType], int] = {}
    done: dict[Node, Node] = {}

    def leaf(n: Node, storage: Storage) -> Node:
        if target is not None and storage.buffer is target and n.dtype is root.dtype:
            return node("buffer", n.dtype, n.shape, (), 0)
        key = (id(storage), n.dtype)
        if key not in numbers:
            numbers[key] = len(params)
            params.append(Param(n.dtype, max(size_of(n.shape), 1), False))
            inputs.append(storage)
        return node("buffer", n.dtype, n.shape, (), numbers[key])

    for n in toposort([root], lambda n: () if n is not root and (n in roots or n.storage is not None) else n.src):
        storage = stored(n) if n is not root or n.op == "buffer" else None
        if storage is not None:
            done[n] = leaf(n, storage)
        elif n.op == "contiguous":
            done[n] = done[n.src[0]]
        else:
            done[n] = node(n.op, n.dtype, n.shape, tuple(done[s] for s in n.src), n.arg)
    return Step(root, done[root], params, inputs)
