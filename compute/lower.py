"""From the graph of one kernel to kernel IR.

The graph's leaves are `buffer` nodes whose arg is the parameter number; at most one `reduce` lies on the way from the root down. A first
walk pushes the result's index through every node down to addresses; from those the layout is planned; a second walk writes the IR.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from compute import dtypes, mathlib
from compute.dtypes import DType
from compute.index import Expr, constant, variable
from compute.ir import Builder, Kernel, Param, Value
from compute.ops import COST, ELEMENTWISE, EXPANDED_COST, MOVEMENT, Node, toposort
from compute.plan import Access, Axis, Options, make_plan, merge_axes
from compute.view import Conditions, Index, Variable, capacity, extent, flat_index, product, strides_of, through
from compute.walk import ABSENT, Probe, Request, Walk, cat_parts, movement_arg, never

_LANE = ".lane"
_INDEX_LIMIT = 1 << 31


def lower(root: Node, params: list[Param], options: Options) -> Kernel:
    """The kernel that computes root into parameter 0."""
    return _Lower(root, params, options).kernel()


class _Lower(Walk):
    """The second walk."""

    def __init__(self, root: Node, params: list[Param], options: Options) -> None:
        super().__init__()
        self.root = root
        self.params = params
        self.options = options
        self.b = Builder()
        self.env: dict[str, Value] = {}
        self.width = 1
        self.step = ""
        self.locals: list[tuple[DType, int]] = []
        big = max([product([capacity(d) for d in root.shape]), *(p.count for p in params)]) >= _INDEX_LIMIT
        self.index_dtype = dtypes.int64 if big else dtypes.int32

        probe = Probe()
        out = [Axis(f".o{j}", extent(d), capacity(d)) for j, d in enumerate(root.shape)]
        index = tuple(variable(a.name, 0, a.size - 1) for a in out)
        probe.evaluate(root, index)
        self.probe = probe
        expressions = [flat_index(root.shape, index), *probe.reduce_index, *(e for a in probe.accesses for e in a.expressions())]
        self.out, out_map = merge_axes(out, expressions)
        expressions = [e.substitute(out_map) for e in expressions]
        self.reduced, reduced_map = merge_axes(probe.reduced, expressions)
        mapping = out_map | reduced_map
        self.index = tuple(e.substitute(out_map) for e in index)
        """The result's index in terms of the axes; `place` says what each axis is for the element at hand."""
        self.place: dict[str, Expr] = {}
        accesses = [Access(a.param, a.size, a.address.substitute(mapping), tuple(c.substitute(mapping) for c in a.conditions)) for a in probe.accesses]
        nodes = list(toposort([root]))
        self.above_reduce = {probe.reduce} if probe.reduce is not None else set()
        for n in nodes:
            if n.op != "reduce" and not self.above_reduce.isdisjoint(n.src):
                self.above_reduce.add(n)
        self.reduce_index: Index = ()
        self.body_index: Index = ()
        if probe.reduce is not None:
            self.reduce_index = self.index_of_reduce(probe.reduce)
            positions = {a: variable(axis.name, 0, axis.size - 1).substitute(reduced_map) for a, axis in zip(probe.reduce.arg[1], probe.reduced, strict=True)}
            self.body_index = tuple(positions.get(a, i) for a, i in enumerate(self.reduce_index))
        cost = sum(COST.get(n.op, 1) for n in nodes if n.op in ELEMENTWISE)
        self.plan = make_plan(options, self.out, self.reduced, accesses, root.dtype.size, cost)
        self.sizes = sorted({v for n in nodes for v in _variables(n)}, key=lambda v: v.name)

    def kernel(self) -> Kernel:
        b = self.b
        for i, v in enumerate(self.sizes):
            value = b.pure("param", dtypes.int32, 1, (), i)
            self.env[v.name] = b.cast(value, self.index_dtype)
        self.width = self.plan.width
        if self.plan.shared > 1:
            groups, block = self.shared_kernel()
        elif self.options.work_items:
            groups, block = self.item_kernel()
        else:
            groups, block = self.loop_kernel()
        found = Kernel("kernel", self.params, self.sizes, b.body, groups, block, self.locals, self.index_dtype)
        found.name = f"{self.title()}_{hashlib.sha256(found.text().encode()).hexdigest()[:12]}"
        return found

    def title(self) -> str:
        """What the kernel does, as the start of its name: the kind and the sizes of its loops."""
        kind = "map" if self.probe.reduce is None else f"reduce_{self.probe.reduce.arg[0]}"
        sizes = "x".join(str(a.size) for a in self.out) or "1"
        return f"{kind}_{sizes}" + (f"_of_{'x'.join(str(a.size) for a in self.reduced) or '1'}" if self.probe.reduce is not None else "")

    # --- the three kinds of kernel ---

    def item_kernel(self) -> tuple[Expr, int]:
        """One work-item a tile of results."""
        count, block, parts = self.count_items()
        b = self.b
        group = b.cast(b.pure("workgroup", dtypes.int32, 1), self.index_dtype)
        item = b.cast(b.pure("workitem", dtypes.int32, 1), self.index_dtype)
        self.env[".t"] = b.alu("add", b.alu("mul", group, b.const(block, self.index_dtype)), item)
        started = variable(".t", 0, (count.hi + block - 1) // block * block - 1)
        guards = [] if count.is_const and count.const % block == 0 else [count - 1 - started]
        guards += [a.extent - 1 - parts[a.name] for a in self.out[1:] if not a.fixed]
        with self.guarded(guards):
            self.results(parts)
        return (count + (block - 1)) // block, block

    def shared_kernel(self) -> tuple[Expr, int]:
        """One workgroup a result: its items sum apart, then together through workgroup memory."""
        plan, b = self.plan, self.b
        count = product([a.size for a in self.out])
        self.env[".t"] = b.cast(b.pure("workgroup", dtypes.int32, 1), self.index_dtype)
        self.env[".item"] = b.cast(b.pure("workitem", dtypes.int32, 1), self.index_dtype)
        parts = self.split_items(variable(".t", 0, count - 1), [a.size for a in self.out])
        guards = [a.extent - 1 - parts[a.name] for a in self.out if not a.fixed]
        with self.guarded(guards):
            node = self.probe.reduce
            assert node is not None
            sizes = [a.size // (plan.width if a.name == plan.vector else 1) for a in self.reduced]
            flat = self.reduced[0].extent if len(self.reduced) == 1 and plan.width == 1 else constant(product(sizes))
            rounds = (flat + (plan.shared - 1)) // plan.shared
            identity = _identity(node.arg[0], node.dtype)
            with self.loop(".round", rounds, [b.splat(b.const(identity, node.dtype), plan.width)]) as loop:
                position = variable(".round", 0, max(rounds.hi - 1, 0)) * plan.shared + variable(".item", 0, plan.shared - 1)
                values = self.split_items(position, sizes, self.reduced)
                exact = flat.is_const and flat.const % plan.shared == 0
                limits = [] if exact else [flat - 1 - position]
                limits += [a.extent - 1 - values[a.name] for a in self.reduced if not a.fixed]
                inside = tuple(limit for limit in limits if limit.lo < 0)
                loop.yields = [self.combine(node, loop.phis[0], {**parts, **values}, inside)]
            total = self.horizontal(node.arg[0], loop.results[0])
            self.sum_over_items(node, total)
            item = self.env[".item"]
            with self.inside(b.when(b.alu("eq", item, b.const(0, self.index_dtype)))):
                total = b.effect("lload", node.dtype, (b.const(0, dtypes.int32),), 0)
                self.store([(parts, self.result(parts, total))])
        return constant(count), plan.shared

    def loop_kernel(self) -> tuple[Expr, int]:
        """Nested loops over the results."""
        with ExitStack() as stack:
            parts: dict[str, Expr] = {}
            for a in self.out:
                held = self.held(a)
                name = f"{a.name}.loop"
                extent_here = a.extent if held == 1 else constant(a.size // held)
                stack.enter_context(self.loop(name, extent_here, []))
                parts[a.name] = variable(name, 0, a.size // held - 1) * held
            self.results(parts)
        return constant(1), 1

    # --- results ---

    def held(self, axis: Axis) -> int:
        """Elements of an axis that one work-item computes."""
        return self.plan.width if axis.name == self.plan.vector else self.plan.tiles.get(axis.name, 1)

    def count_items(self) -> tuple[Expr, int, dict[str, Expr]]:
        sizes = [a.size // self.held(a) for a in self.out]
        most = product(sizes)
        count = constant(most)
        if self.out and not self.out[0].fixed:
            count = self.out[0].extent * product(sizes[1:])
        block = 32
        while block < self.options.most_items and block < most:
            block *= 2
        t = variable(".t", 0, most - 1)
        return count, block, {name: e * self.held(a) for a, (name, e) in zip(self.out, self.split_items(t, sizes).items(), strict=True)}

    def split_items(self, number: Expr, sizes: Sequence[int], axes: Sequence[Axis] | None = None) -> dict[str, Expr]:
        """The position on each axis for a flat number, the last axis fastest."""
        axes = self.out if axes is None else axes
        parts = {}
        for k, (axis, stride) in enumerate(zip(axes, strides_of(sizes), strict=True)):
            part = number // stride
            parts[axis.name] = part if k == 0 else part % sizes[k]
        return parts

    def index_of_reduce(self, reduce: Node) -> Index:
        """Where the reduction is read for one result, found as evaluate() finds it."""
        node, index = self.root, self.index
        while node is not reduce:
            below = next(s for s in node.src if s in self.above_reduce)
            if node.op in MOVEMENT:
                index, _ = through(node.op, movement_arg(node), below.shape, node.shape, index)
            node = below
        return index

    def results(self, parts: dict[str, Expr]) -> None:
        """Computes and stores the tile that starts at `parts`."""
        tiles = [parts]
        for a in self.out:
            count = self.plan.tiles.get(a.name, 1)
            tiles = [{**t, a.name: t[a.name] + k} for t in tiles for k in range(count)]
        if self.plan.vector and not self.plan.sums_lanes:
            lane = variable(_LANE, 0, self.width - 1)
            tiles = [{**t, self.plan.vector: t[self.plan.vector] + lane} for t in tiles]
        totals: list[Value | None] = [None] * len(tiles)
        if self.probe.reduce is not None:
            totals = [*self.reductions(self.probe.reduce, tiles)]
        self.store([(t, self.result(t, total)) for t, total in zip(tiles, totals, strict=True)])

    def result(self, place: dict[str, Expr], total: Value | None) -> Value:
        """The value of one tile element (or vector); total: that of the reduction there."""
        with self.at(place):
            if total is not None:
                self.scopes[-1][(self.probe.reduce, self.reduce_index, ())] = total
            value: Value = self.evaluate(self.root, self.index)
        return value

    def store(self, results: list[tuple[dict[str, Expr], Value]]) -> None:
        for place, value in results:
            address = flat_index(self.root.shape, self.index).substitute(place)
            lanes = self.width if _LANE in address.names else 1
            if lanes > 1:
                address = address - variable(_LANE, 0, lanes - 1)
                assert _LANE not in address.names
            base, offset = _split_constant(address)
            data = self.b.splat(self.b.cast(value, self.root.dtype), lanes)
            self.b.effect("store", self.root.dtype, (self.emit(base), data), (0, offset, _is_multiple(address, lanes)))

    def reductions(self, node: Node, tiles: list[dict[str, Expr]]) -> list[Value]:
        """The reduction's values for all tiles, from one nest of loops."""
        plan, b = self.plan, self.b
        start = b.splat(b.const(_identity(node.arg[0], node.dtype), node.dtype), plan.width)
        totals = self.nest(node, list(self.reduced), [start for _ in tiles], tiles, {})
        self.step = ""
        return [self.horizontal(node.arg[0], t) for t in totals] if plan.sums_lanes else totals

    def nest(self, node: Node, axes: list[Axis], totals: list[Value], tiles: list[dict[str, Expr]], values: dict[str, Expr]) -> list[Value]:
        """Loops over the given reduced axes, outermost first, that carry the totals."""
        plan = self.plan
        if not axes:
            for k in range(plan.unroll):
                here = {**values, self.reduced[-1].name: values[self.reduced[-1].name] + k} if k else values
                totals = [self.combine(node, total, {**tile, **here}, ()) for total, tile in zip(totals, tiles, strict=True)]
            return totals
        axis, *rest = axes
        held = plan.width if axis.name == plan.vector else 1 if rest else plan.unroll
        name = f"{axis.name}.loop"
        if not rest and plan.unroll > 1:
            self.step = name
        with self.loop(name, axis.extent if held == 1 else constant(axis.size // held), totals) as loop:
            here = {**values, axis.name: variable(name, 0, axis.size // held - 1) * held}
            loop.yields = self.nest(node, rest, list(loop.phis), tiles, here)
            results = loop
        return list(results.results)

    def combine(self, node: Node, total: Value, place: dict[str, Expr], conditions: Conditions) -> Value:
        """total (op) the reduced value at one place; just total where a condition fails."""
        b, op, source = self.b, node.arg[0], node.src[0]
        if self.plan.sums_lanes:
            lane = variable(_LANE, 0, self.width - 1)
            step = self.width if self.plan.shared > 1 else 1
            place = {**place, self.plan.vector: place[self.plan.vector] * step + lane}
        with self.at(place):
            if op == "add" and source.op == "mul" and source.dtype in (dtypes.float32, dtypes.float64) and not conditions:
                x, y = (self.evaluate(s, self.body_index) for s in source.src)
                return b.alu("fma", x, y, total)
            value = self.evaluate(source, self.body_index, conditions)
            if conditions:
                value = self.chosen(conditions, value, b.const(_identity(op, node.dtype), node.dtype))
            return b.alu(op, total, value)

    def horizontal(self, op: str, total: Value) -> Value:
        """One value from the lanes of a vector, by halves."""
        parts = [self.b.extract(total, k) for k in range(total.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self.b.alu(op, parts[k], parts[k + half]) for k in range(half)]
        return parts[0]

    def sum_over_items(self, node: Node, total: Value) -> None:
        """Leaves the workgroup's sum in element 0 of workgroup memory."""
        b, op = self.b, node.arg[0]
        item = self.env[".item"]
        self.locals.append((node.dtype, self.plan.shared))
        b.effect("lstore", node.dtype, (item, total), 0)
        rounds = self.plan.shared.bit_length() - 1
        with self.loop(".halving", constant(rounds), [b.const(self.plan.shared // 2, self.index_dtype)]) as loop:
            half = loop.phis[0]
            b.effect("barrier", dtypes.int32)
            with self.inside(b.when(b.alu("lt", item, half))):
                mine = b.effect("lload", node.dtype, (item,), 0)
                other = b.effect("lload", node.dtype, (b.alu("add", item, half),), 0)
                b.effect("lstore", node.dtype, (item, b.alu(op, mine, other)), 0)
            loop.yields = [b.alu("shr", half, b.const(1, self.index_dtype))]

    # --- nodes ---

    def finish(self, request: Request, below: list[Request]) -> Value:
        node, index, conditions = request
        b = self.b
        if node.op == "buffer":
            return self.load(node, flat_index(node.shape, index), conditions)
        if node.op == "const":
            return b.const(node.arg, node.dtype)
        if node.op == "size":
            return b.cast(self.env[node.arg.name], dtypes.int32)
        if node.op == "iota":
            return b.cast(self.emit(index[0].substitute(self.place)), dtypes.int32)
        assert node.op != "reduce", "a reduction that the scheduler should have cut"
        values: list[Value] = [self.found(r) for r in below]
        if node.op in EXPANDED_COST:
            lanes = max(v.lanes for v in values)
            return mathlib.expand(b, node.op, [b.splat(v, lanes) for v in values])
        if node.op == "cast":
            return b.cast(values[0], node.dtype)
        if node.op == "bitcast":
            return b.bitcast(values[0], node.dtype)
        if node.op == "cat":
            return self.join(node, index, values)
        if node.op == "pad":
            _, more = through("pad", node.arg[0], node.src[0].shape, node.shape, index)
            fill = b.const(node.arg[1], node.dtype)
            if not values:
                return fill
            return self.chosen(more, values[0], fill)
        return values[0] if node.op in MOVEMENT else b.alu(node.op, *values)

    def join(self, node: Node, index: Index, values: list[Value]) -> Value:
        parts = [c for _, c in cat_parts(node, index) if not never(c)]
        result = values[-1]
        for value, conditions in zip(values[-2::-1], parts[-2::-1], strict=True):
            result = self.chosen(conditions, value, result)
        return result

    def chosen(self, conditions: Conditions, inside: Value, outside: Value) -> Value:
        """One value where all conditions hold at this place, else the other."""
        here = self.here(conditions)
        if not here:
            return inside
        return outside if never(here) else self.b.alu("where", self.gate(here), inside, outside)

    def here(self, conditions: Conditions) -> Conditions:
        """Conditions at this place, without those that always hold."""
        return tuple(c for c in (c.substitute(self.place) for c in conditions) if c.lo < 0)

    def gate(self, conditions: Conditions) -> Value:
        """True where all conditions, in terms of loop variables, are >= 0."""
        b = self.b
        zero = b.const(0, self.index_dtype)
        first, *rest = (b.alu("le", zero, self.emit(c)) for c in conditions)
        for holds in rest:
            first = b.alu("and", first, holds)
        return first

    def load(self, node: Node, address: Expr, conditions: Conditions) -> Value:
        b = self.b
        number, dtype = node.arg, node.dtype
        address, conditions = address.substitute(self.place), self.here(conditions)
        if never(conditions):
            return b.const(0, dtype)
        in_gate = any(_LANE in c.names for c in conditions)
        if _LANE in address.names or in_gate:
            if address.coefficient(_LANE) == 1 and address.is_affine_in(_LANE) and not in_gate:
                return self.load_at(number, dtype, address - variable(_LANE, 0, self.width - 1), conditions, self.width)
            lanes = []
            for k in range(self.width):
                here = {_LANE: constant(k)}
                which = tuple(c for c in (c.substitute(here) for c in conditions) if c.lo < 0)
                lanes.append(b.const(0, dtype) if never(which) else self.load_at(number, dtype, address.substitute(here), which, 1))
            return b.vector([b.splat(v, 1) for v in lanes])
        width = self.plan.unroll
        if self.step and not conditions and address.coefficient(self.step) == width and _is_multiple(address - address.const % width, width):
            k = address.const % width
            return b.extract(self.load_at(number, dtype, address - k, conditions, width), k)
        return self.load_at(number, dtype, address, conditions, 1)

    def load_at(self, number: int, dtype: DType, address: Expr, conditions: Conditions, lanes: int) -> Value:
        base, offset = (address, 0) if conditions else _split_constant(address)
        gate = self.gate(conditions) if conditions else None
        return self.b.load(number, dtype, self.emit(base), offset, lanes, gate, _is_multiple(address, lanes))

    # --- index arithmetic ---

    def emit(self, e: Expr) -> Value:
        known: Value = self.found(("index", e.key))
        if known is not ABSENT:
            return known
        b, dtype = self.b, self.index_dtype
        total: Value | None = None
        for atom, c in e.terms:
            if atom.kind == "var":
                value = b.cast(b.pure("lanes", dtypes.int32, self.width), dtype) if atom.key == _LANE else self.env[atom.key]
            else:
                assert atom.expr is not None
                lift = -(atom.expr.lo // atom.divisor) if atom.expr.lo < 0 else 0
                inner = self.emit(atom.expr + lift * atom.divisor)
                value = b.alu("floordiv" if atom.kind == "div" else "mod", inner, b.const(atom.divisor, dtype), arg="index")
                if lift and atom.kind == "div":
                    value = b.alu("sub", value, b.const(lift, dtype))
            if c != 1:
                value = b.alu("mul", value, b.const(c, dtype))
            total = value if total is None else b.alu("add", total, value)
        if total is None:
            total = b.const(e.const, dtype)
        elif e.const:
            total = b.alu("add", total, b.const(e.const, dtype))
        self.scopes[-1]["index", e.key] = total
        return total

    @contextmanager
    def at(self, place: dict[str, Expr]) -> Iterator[None]:
        """Evaluation at one place of the axes."""
        outer, self.place = self.place, place
        self.scopes.append({})
        yield
        self.scopes.pop()
        self.place = outer

    @contextmanager
    def inside(self, block: Any) -> Iterator[Any]:
        """A block of the builder together with a scope of what was evaluated in it."""
        with block as statement:
            self.scopes.append({})
            yield statement
            self.scopes.pop()

    @contextmanager
    def guarded(self, guards: list[Expr]) -> Iterator[None]:
        needed = [g for g in guards if g.lo < 0]
        if not needed:
            yield
            return
        with self.inside(self.b.when(self.gate(tuple(needed)))):
            yield

    @contextmanager
    def loop(self, name: str, count: Expr, inits: list[Value]) -> Iterator[Any]:
        with self.inside(self.b.loop(self.emit(count), inits)) as loop:
            self.env[name] = loop.counter
            yield loop


def _split_constant(address: Expr) -> tuple[Expr, int]:
    """(base, offset) with base never negative."""
    if address.terms and address.const > 0 and address.lo - address.const >= 0:
        return address - address.const, address.const
    return address, 0


def _is_multiple(address: Expr, of: int) -> bool:
    return of > 1 and address.const % of == 0 and all(c % of == 0 for _, c in address.terms)


def _identity(op: str, dtype: DType) -> bool | int | float:
    return {"add": 0, "mul": 1, "max": dtype.min, "min": dtype.max}[op]


def _variables(node: Node) -> Iterator[Variable]:
    if node.op == "size":
        yield node.arg
    for d in node.shape:
        if isinstance(d, Variable):
            yield d
