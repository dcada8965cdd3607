"""Shapes of tensors: views that move no data (see view.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compute.elementwise import broadcast_shapes
from compute.errors import DTypeError, NotSupported, ShapeError, show_shape
from compute.ops import Node, as_kind, const, node
from compute.view import BoundVariable, Dim, Shape, Variable, capacity, product, reshape_groups, size_of

if TYPE_CHECKING:
    from compute.tensor import Tensor

Axis = int | Sequence[int] | None


def normal_axis(axis: int, rank: int, what: str) -> int:
    """An axis counted from the front. Raises ShapeError."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what}: no axis {axis} in {rank} dimensions", means="axes run from 0, or backwards from -1")
    return axis % rank


def normal_axes(axis: Axis, rank: int, what: str) -> tuple[int, ...]:
    """Sorted axes counted from the front; None means all. Raises ShapeError, also for one named twice."""
    if axis is None:
        return tuple(range(rank))
    axes = [normal_axis(a, rank, what) for a in ([axis] if isinstance(axis, int) else axis)]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{what}: an axis is named twice", read=str(axis))
    return tuple(sorted(axes))


class Movement:
    """The part of Tensor that rearranges elements."""

    node: Node
    device: str

    def _self(self) -> Tensor:
        return self  # type: ignore[return-value]

    def _moved(self, op: str, shape: Shape, arg: Any) -> Tensor:
        n = self.node
        if shape == n.shape and op in ("reshape", "expand"):
            return self._self()
        if n.op == "const" and op != "pad":
            return self._self()._derived(const(n.arg, n.dtype, shape))
        if not size_of(shape) or not size_of(n.shape):
            return self._self()._derived(const(arg[1] if op == "pad" else 0, n.dtype, shape))
        if op == n.op == "reshape":
            n = n.src[0]
            if n.shape == shape:
                return self._self()._derived(n)
        return self._self()._derived(node(op, n.dtype, shape, (n,), arg, n.device))

    # --- shape ---

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in row-major order in another shape; one dimension may be -1. Raises ShapeError."""
        me = self._self()
        wanted = me._shape_of(shape)
        if wanted.count(-1) > 1:
            raise ShapeError(f"cannot reshape to {show_shape(wanted)}", means="only one dimension may be -1")
        if -1 in wanted:
            wanted = self._inferred(wanted)
        if any(isinstance(d, int) and d < 0 for d in wanted):
            raise ShapeError(f"cannot reshape to {show_shape(wanted)}", means="a dimension is negative")
        if 0 in (size_of(wanted), size_of(self.node.shape)):
            if size_of(wanted) != size_of(self.node.shape):
                raise ShapeError(f"cannot reshape {show_shape(self.node.shape)} to {show_shape(wanted)}", means="the two shapes hold different numbers of elements")
        else:
            reshape_groups(self.node.shape, wanted)
        return self._moved("reshape", wanted, None)

    def _inferred(self, wanted: Shape) -> Shape:
        """The shape with the -1 replaced by the size, or the symbolic dimension, that is missing."""
        named = [d for d in wanted if isinstance(d, Variable)]
        missing = [d for d in self.node.shape if isinstance(d, Variable) and d not in named]
        have = product([d for d in self.node.shape if isinstance(d, int)])
        used = product([d for d in wanted if isinstance(d, int) and d != -1])
        if len(missing) > 1 or (missing and have != used) or used == 0 or have % used:
            raise ShapeError(f"cannot reshape {show_shape(self.node.shape)} to {show_shape(wanted)}", means="no size fits in place of the -1")
        found: Dim = missing[0] if missing else have // used
        return tuple(found if d == -1 else d for d in wanted)

    def flatten(self) -> Tensor:
        return self.reshape(-1) if size_of(self.node.shape) else self.reshape(0)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without the given axes, which must be of size 1; None: without all such axes."""
        shape = self.node.shape
        axes = [i for i, d in enumerate(shape) if d == 1] if axis is None else normal_axes(axis, len(shape), "squeeze")
        for a in axes:
            if shape[a] != 1:
                raise ShapeError(f"squeeze of axis {a} of {show_shape(shape)}", means="its size is not 1")
        return self._moved("reshape", tuple(d for i, d in enumerate(shape) if i not in axes), None)

    def unsqueeze(self, axis: int) -> Tensor:
        """With an axis of size 1 put in."""
        at = normal_axis(axis, len(self.node.shape) + 1, "unsqueeze")
        return self._moved("reshape", (*self.node.shape[:at], 1, *self.node.shape[at:]), None)

    def permute(self, *order: Any) -> Tensor:
        """Axes in another order. Raises ShapeError unless each is named once."""
        axes = tuple(order[0]) if len(order) == 1 and not isinstance(order[0], int) else order
        rank = len(self.node.shape)
        if len(axes) != rank or len(normal_axes(axes, rank, "permute")) != rank:
            raise ShapeError(f"permute of {show_shape(self.node.shape)} by {show_shape(axes)}", means="every axis must be named once")
        axes = tuple(a % rank for a in axes)
        if axes == tuple(range(rank)):
            return self._self()
        return self._moved("permute", tuple(self.node.shape[a] for a in axes), axes)

    def transpose(self, a: int = -2, b: int = -1) -> Tensor:
        """Two axes exchanged."""
        rank = len(self.node.shape)
        order = list(range(rank))
        a, b = normal_axis(a, rank, "transpose"), normal_axis(b, rank, "transpose")
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    @property
    def T(self) -> Tensor:
        """Axes in reverse order."""
        return self.permute(*reversed(range(len(self.node.shape))))

    def expand(self, *shape: Any) -> Tensor:
        """Axes of size 1 repeated; -1 keeps an axis, new axes are put in front. Raises ShapeError."""
        mine = self.node.shape
        wanted = self._self()._shape_of(shape)
        if len(wanted) < len(mine):
            raise ShapeError(f"cannot expand {show_shape(mine)} to {show_shape(wanted)}", means="the target has fewer dimensions")
        padded = (1,) * (len(wanted) - len(mine)) + mine
        wanted = tuple(m if w == -1 else w for m, w in zip(padded, wanted, strict=True))
        for m, w in zip(padded, wanted, strict=True):
            if m not in (1, w):
                raise ShapeError(f"cannot expand {show_shape(mine)} to {show_shape(wanted)}", means="only axes of size 1 can grow")
        return self._moved("reshape", padded, None)._moved("expand", wanted, None)

    def _broadcast(self, shape: Shape) -> Tensor:
        return self._self() if shape == self.node.shape else self.expand(shape)

    # --- parts ---

    def pad(self, padding: Sequence[tuple[int, int]], value: float = 0) -> Tensor:
        """Elements of `value` put before and after each axis: one (before, after) an axis. Raises ShapeError."""
        shape = self.node.shape
        pairs = tuple((int(b), int(a)) for b, a in padding)
        if len(pairs) != len(shape) or any(n < 0 for pair in pairs for n in pair):
            raise ShapeError(f"pad of {show_shape(shape)} by {pairs}", means="one pair of numbers >= 0 is needed for every axis")
        if not any(n for pair in pairs for n in pair):
            return self._self()
        if any(isinstance(d, Variable) and pair != (0, 0) for d, pair in zip(shape, pairs, strict=True)):
            raise NotSupported(f"padding a symbolic axis of {show_shape(shape)}", means="a symbolic size cannot be added to", remedy="pad the other axes only")
        if self.node.dtype.kind == "bool" and not isinstance(value, bool) and value not in (0, 1):
            raise DTypeError(f"pad of bool with {value}")
        grown = tuple(d if isinstance(d, Variable) else d + b + a for d, (b, a) in zip(shape, pairs, strict=True))
        return self._moved("pad", grown, (pairs, as_kind(value, self.node.dtype)))

    def shrink(self, bounds: Sequence[tuple[Any, Any] | None]) -> Tensor:
        """A block: one (start, end) an axis, None for all of it; an end may be a bound Variable when start is 0. Raises ShapeError."""
        me, shape = self._self(), self.node.shape
        if len(bounds) != len(shape):
            raise ShapeError(f"shrink of {show_shape(shape)} by {len(bounds)} pairs", means="one pair is needed for every axis")
        pairs: list[tuple[int, Dim]] = []
        bound: dict[str, int] = {}
        for d, pair in zip(shape, bounds, strict=True):
            start, end = (0, d) if pair is None else pair
            if isinstance(end, BoundVariable):
                bound[end.variable.name] = end.value
                end = end.variable
            if isinstance(end, Variable):
                if start != 0 or (end != d and (isinstance(d, Variable) or end.hi > d)):
                    raise ShapeError(f"shrink of axis of size {d} to {start}..{end}", means="a symbolic end must start at 0 and fit into the axis at its greatest")
            elif isinstance(d, Variable) or not 0 <= start <= end <= d:
                raise ShapeError(f"shrink of {show_shape(shape)} to {start}..{end}", means="the block lies outside, or cuts a symbolic axis")
            pairs.append((start, end))
        if all(pair == (0, d) for pair, d in zip(pairs, shape, strict=True)):
            return me
        smaller = tuple(end if isinstance(end, Variable) else end - start for start, end in pairs)
        moved = self._moved("shrink", smaller, tuple(pairs))
        return moved._bound(bound)

    def flip(self, axis: Axis = None) -> Tensor:
        """Axes backwards."""
        axes = tuple(a for a in normal_axes(axis, len(self.node.shape), "flip") if self.node.shape[a] != 1)
        return self._moved("flip", self.node.shape, axes) if axes else self._self()

    def cat(self, *others: Tensor, axis: int = 0) -> Tensor:
        """Tensors one after another along an axis. Raises ShapeError when the other axes differ."""
        me = self._self()
        rank = len(self.node.shape)
        at = normal_axis(axis, rank, "cat")
        parts = [me, *others]
        for other in others:
            me._same_device(other)
            rest, theirs = list(me.shape), list(other.shape)
            if len(rest) != len(theirs) or rest[:at] + rest[at + 1 :] != theirs[:at] + theirs[at + 1 :]:
                raise ShapeError(f"cat of {show_shape(me.shape)} and {show_shape(other.shape)} along axis {at}", means="all other axes must be equal")
        if any(isinstance(p.shape[at], Variable) for p in parts):
            raise NotSupported("cat along a symbolic axis", means="a symbolic size cannot be added to", remedy="cat along another axis")
        dtype = me._common_dtype(parts)
        total = sum(capacity(p.shape[at]) for p in parts)
        shape = (*me.shape[:at], total, *me.shape[at + 1 :])
        kept = [p.cast(dtype) for p in parts if size_of(p.shape)]
        if len(kept) < 2:
            return kept[0] if kept else me._derived(const(0, dtype, shape), *others)
        device = next((p.node.device for p in kept if p.node.device), "")
        return me._derived(node("cat", dtype, shape, tuple(p.node for p in kept), at, device), *others)

    def stack(self, *others: Tensor, axis: int = 0) -> Tensor:
        """Tensors of one shape along a new axis."""
        for other in others:
            if other.shape != self.node.shape:
                raise ShapeError(f"stack of {show_shape(self.node.shape)} and {show_shape(other.shape)}", means="all shapes must be equal")
        first, *rest = (t.unsqueeze(axis) for t in (self._self(), *others))
        return first.cat(*rest, axis=normal_axis(axis, len(self.node.shape) + 1, "stack"))

    # --- slices ---

    def __getitem__(self, key: Any) -> Tensor:
        """Integers, slices (also with steps, backwards, or ending at a bound Variable), None and Ellipsis, as numpy. Raises ShapeError."""
        keys = list(key) if isinstance(key, tuple) else [key]
        for k in keys:
            if not (k is None or k is Ellipsis or isinstance(k, slice) or (isinstance(k, int) and not isinstance(k, bool)) or hasattr(k, "__index__")):
                raise NotSupported(f"indexing by {type(k).__name__}", means="tensors are indexed by integers, slices, None and Ellipsis", remedy="use where() with a mask")
        taken = sum(k is not None and k is not Ellipsis for k in keys)
        shape = self.node.shape
        if sum(k is Ellipsis for k in keys) > 1 or taken > len(shape):
            raise ShapeError(f"{taken} indices for shape {show_shape(shape)}", means="there are more indices than axes, or two ellipses")
        if not any(k is Ellipsis for k in keys):
            keys.append(Ellipsis)
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(shape) - taken)
        result = self._self()
        axis = 0
        for k in keys:
            if k is None:
                result = result.unsqueeze(axis)
                axis += 1
            elif isinstance(k, slice):
                result = result._sliced(axis, k)
                axis += 1
            else:
                result = result._picked(axis, int(k))
        return result

    def _picked(self, axis: int, number: int) -> Tensor:
        size = self.node.shape[axis]
        if isinstance(size, Variable) or not -size <= number < size:
            raise ShapeError(f"index {number} of axis {axis} of {show_shape(self.node.shape)}", means="the index lies outside, or the axis is symbolic")
        start = number % size
        return self._part(axis, start, start + 1).squeeze(axis)

    def _part(self, axis: int, start: Any, end: Any) -> Tensor:
        bounds: list[Any] = [None] * len(self.node.shape)
        bounds[axis] = (start, end)
        return self.shrink(bounds)

    def _sliced(self, axis: int, which: slice) -> Tensor:
        size = self.node.shape[axis]
        if which == slice(None):
            return self._self()
        if isinstance(which.stop, (BoundVariable, Variable)):
            if which.start not in (None, 0) or which.step not in (None, 1):
                raise ShapeError("a slice that ends at a variable", means="it must start at 0 and have step 1")
            return self._part(axis, 0, which.stop)
        if isinstance(size, Variable):
            raise ShapeError(f"a slice of symbolic axis {axis} of {show_shape(self.node.shape)}", means="its size is not known before the launch")
        start, stop, step = which.indices(size)
        count = len(range(start, stop, step))
        if count == 0:
            return self._part(axis, 0, 0)
        if step < 0:
            flipped = self._part(axis, start + (count - 1) * step, start + 1).flip(axis)
            return flipped._every(axis, -step, count)
        return self._part(axis, start, start + (count - 1) * step + 1)._every(axis, step, count)

    def _every(self, axis: int, step: int, count: int) -> Tensor:
        """Every step-th of an axis, from the first."""
        if step == 1:
            return self._self()
        shape = self.node.shape
        size = shape[axis]
        assert isinstance(size, int)
        padding = [(0, 0)] * len(shape)
        padding[axis] = (0, count * step - size)
        spread = self.pad(padding).reshape(*shape[:axis], count, step, *shape[axis + 1 :])
        return spread._part(axis + 1, 0, 1).squeeze(axis + 1)


__all__ = ["Axis", "Movement", "broadcast_shapes", "normal_axes", "normal_axis"]
