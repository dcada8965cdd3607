"""How a kernel's work is laid out: which axes become threads, small vectors, register tiles, unrolled or shared sums.

Decided from the addresses that a kernel touches (found by lower.py in a first walk), and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compute.index import Expr, variable
from compute.view import Conditions, product

_TILE = 4
_UNROLL = 4
_LEAST_THREADS = 64
"""Work-items below which a GPU kernel gives up tiles and vectors: two waves."""
_MOST_ACCUMULATORS = 64
_CHEAP = 64
"""Instructions a lane up to which a GPU kernel computes several elements a work-item."""
_FEW_OUTPUTS = 64
_LONG_SUM = 64


@dataclass(frozen=True)
class Options:
    """What a target wants. work_items: workgroups of work-items (else loops). vector_bytes: width of one memory access."""

    work_items: bool
    vector_bytes: int
    most_items: int = 256


GPU = Options(work_items=True, vector_bytes=16)
CPU = Options(work_items=False, vector_bytes=32)


@dataclass(frozen=True)
class Axis:
    """One loop. extent: how often it runs; size: the most it can run."""

    name: str
    extent: Expr
    size: int

    @property
    def fixed(self) -> bool:
        return self.extent.is_const


@dataclass(frozen=True)
class Access:
    """A load, or the use of an index as a number (size 0)."""

    param: int
    size: int
    address: Expr
    conditions: Conditions

    def expressions(self) -> tuple[Expr, ...]:
        return (self.address, *self.conditions)


@dataclass
class Plan:
    """vector: axis and width of the lane variable; `sums_lanes` when that axis is reduced. tiles: axis to count of elements held in registers.
    unroll: rounds of the innermost reduced axis written out. shared: work-items that share one sum (1: each has its own)."""

    vector: str = ""
    width: int = 1
    sums_lanes: bool = False
    tiles: dict[str, int] = field(default_factory=dict)
    unroll: int = 1
    shared: int = 1


def merge_axes(axes: list[Axis], expressions: list[Expr]) -> tuple[list[Axis], dict[str, Expr]]:
    """Joins neighbours that every expression walks as one, and drops axes of size 1. Returns the rest and the old axes in terms of them."""
    mapping: dict[str, Expr] = {}
    kept = [a for a in axes if a.size != 1]
    position = len(kept) - 2
    while position >= 0:
        outer, inner = kept[position], kept[position + 1]
        if inner.fixed and all(_walks_as_one(e, outer.name, inner.name, inner.size) for e in expressions):
            joined = Axis(outer.name + inner.name, outer.extent * inner.size, outer.size * inner.size)
            whole = variable(joined.name, 0, joined.size - 1)
            change = {outer.name: whole // inner.size, inner.name: whole % inner.size}
            mapping = {name: e.substitute(change) for name, e in mapping.items()} | change
            expressions = [e.substitute(change) for e in expressions]
            kept[position : position + 2] = [joined]
            position = min(position, len(kept) - 2)
            continue
        position -= 1
    return kept, mapping


def _walks_as_one(e: Expr, outer: str, inner: str, size: int) -> bool:
    if e.coefficient(outer) != size * e.coefficient(inner):
        return False
    nested = [atom.expr for atom, _ in e.terms if atom.expr is not None and (outer in atom.names or inner in atom.names)]
    return all(_walks_as_one(each, outer, inner, size) for each in nested)


def make_plan(options: Options, out: Sequence[Axis], reduced: Sequence[Axis], accesses: Sequence[Access], out_size: int, cost: int) -> Plan:
    """The layout of one kernel. out_size: bytes of a result element; cost: instructions an element takes."""
    plan = Plan()
    if any(a.size >= 1 << 31 for a in (*out, *reduced)):
        return plan
    outputs = product([a.size for a in out])
    widest = max([out_size, *(a.size for a in accesses)])
    width = max(1, min(options.vector_bytes // widest, 4 if options.work_items else 8))
    least = _LEAST_THREADS if options.work_items else 1
    if not reduced:
        if out and (cost <= _CHEAP or not options.work_items):
            plan.width = _fitting(out[-1], width, outputs // (least // 2 or 1))
            plan.vector = out[-1].name if plan.width > 1 else ""
        return plan
    length = product([a.size for a in reduced])
    loads = [a for a in accesses if a.size]
    inner = reduced[-1]
    if options.work_items and ((outputs < _FEW_OUTPUTS and length >= _LONG_SUM) or (outputs < 1024 and length >= 4096)):
        _share_sum(plan, options, reduced, loads, width, length)
        return plan
    if out and any(a.address.coefficient(out[-1].name) == 1 for a in loads):
        plan.width = _fitting(out[-1], width, outputs // least)
        plan.vector = out[-1].name if plan.width > 1 else ""
    if not plan.vector and any(_steps_by_one(a, inner.name) for a in loads):
        plan.width = _fitting(inner, width, width)
        plan.vector, plan.sums_lanes = (inner.name, True) if plan.width > 1 else ("", False)
    threads = outputs // (1 if plan.sums_lanes else plan.width)
    held = plan.width
    for axis in reversed(out):
        uses = [axis.name in a.address.names for a in loads]
        if axis.name == plan.vector or not axis.fixed or all(uses) or not any(uses):
            continue
        tile = next((t for t in (_TILE, 2) if axis.size % t == 0 and threads // t >= least and held * t <= _MOST_ACCUMULATORS), 1)
        if tile > 1:
            plan.tiles[axis.name] = tile
            threads //= tile
            held *= tile
    if not plan.sums_lanes and inner.fixed and inner.size % _UNROLL == 0 and cost * held * _UNROLL <= 512:
        plan.unroll = _UNROLL
    return plan


def _share_sum(plan: Plan, options: Options, reduced: Sequence[Axis], loads: Sequence[Access], width: int, length: int) -> None:
    inner = reduced[-1]
    if any(_steps_by_one(a, inner.name) for a in loads):
        plan.width = _fitting(inner, width, width)
        plan.vector, plan.sums_lanes = (inner.name, True) if plan.width > 1 else ("", False)
    plan.shared = 32
    while plan.shared < options.most_items and plan.shared * 2 * plan.width <= length:
        plan.shared *= 2


def _steps_by_one(access: Access, name: str) -> bool:
    return access.address.coefficient(name) == 1 and access.address.is_affine_in(name)


def _fitting(axis: Axis, width: int, limit: int) -> int:
    """The largest power of two up to width and limit that divides the axis."""
    while width > 1 and (not axis.fixed or axis.size % width or width > limit):
        width //= 2
    return max(width, 1)
