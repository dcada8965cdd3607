"""Sums and their relatives, and matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compute import dtypes
from compute.dtypes import DType
from compute.elementwise import broadcast_shapes
from compute.errors import ShapeError, show_shape
from compute.movement import Axis, normal_axes, normal_axis
from compute.ops import Node, const, node
from compute.view import Shape, Variable, capacity, product, size_of

if TYPE_CHECKING:
    from compute.tensor import Tensor


_LONG = 1 << 17
"""Elements a result from which a reduction is done in two steps."""
_FEW_RESULTS = 256
_PARTS = (1024, 512, 256, 128, 64)
"""Into how many short reductions it is split."""


def _wide(dtype: DType) -> DType:
    """The type in which sums are accumulated: half floats in float32."""
    return dtypes.float32 if dtype.is_float and dtype.size == 2 else dtype


class Reductions:
    """The part of Tensor that combines elements along axes. axis: one, several, or None for all; keepdim leaves axes of size 1."""

    node: Node
    device: str

    def _self(self) -> Tensor:
        return self  # type: ignore[return-value]

    def _reduce(self, op: str, axis: Axis, keepdim: bool) -> Tensor:
        me, n = self._self(), self.node
        axes = normal_axes(axis, len(n.shape), op)
        kept = tuple(1 if i in axes else d for i, d in enumerate(n.shape))
        wide = tuple(i for i in axes if n.shape[i] != 1)
        if not size_of(kept):
            result = me._derived(const(0, n.dtype, kept))
        elif not size_of(n.shape):
            result = me._derived(const({"add": 0, "mul": 1, "max": n.dtype.min, "min": n.dtype.max}[op], n.dtype, kept))
        elif wide:
            result = me._in_two_steps(op, kept, wide) or me._derived(node("reduce", n.dtype, kept, (n,), (op, wide), n.device or me.device))
        else:
            result = me
        return result if keepdim else result.reshape(tuple(d for i, d in enumerate(kept) if i not in axes))

    def _in_two_steps(self, op: str, kept: Shape, axes: tuple[int, ...]) -> Tensor | None:
        """A long reduction into few results as many short ones and one over their results: more work-items, and smaller rounding errors of sums."""
        x, shape = self._self(), self.node.shape
        if size_of(kept) > _FEW_RESULTS or product([capacity(shape[a]) for a in axes]) < _LONG:
            return None
        first, dim = axes[0], shape[axes[0]]
        if len(axes) > 1 and capacity(dim) >= _PARTS[-1]:
            return x._reduce(op, axes[1:], True)._reduce(op, first, True)
        parts = next((p for p in _PARTS if isinstance(dim, int) and dim % p == 0 and dim > p), 0)
        if not parts or not isinstance(dim, int):
            return None
        split = x.reshape(*shape[:first], parts, dim // parts, *shape[first + 1 :])
        inner = split._reduce(op, tuple(a + 1 for a in axes), True)
        return inner.reshape(*kept[:first], parts, *kept[first + 1 :])._reduce(op, first, True)

    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        """Sum. Result type: dtypes.sum_type, unless given; half floats are accumulated in float32."""
        target = dtypes.to_dtype(dtype) if dtype is not None else dtypes.sum_type(self.node.dtype)
        return self._self().cast(_wide(target))._reduce("add", axis, keepdim).cast(target)

    def prod(self, axis: Axis = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        """Product, with the result types of sum."""
        target = dtypes.to_dtype(dtype) if dtype is not None else dtypes.sum_type(self.node.dtype)
        return self._self().cast(_wide(target))._reduce("mul", axis, keepdim).cast(target)

    def max(self, axis: Axis = None, keepdim: bool = False) -> Tensor:
        """Greatest element; NaN if there is one. Raises ShapeError for no elements."""
        self._some(axis, "max")
        return self._reduce("max", axis, keepdim)

    def min(self, axis: Axis = None, keepdim: bool = False) -> Tensor:
        """Least element; NaN if there is one. Raises ShapeError for no elements."""
        self._some(axis, "min")
        return self._reduce("min", axis, keepdim)

    def _some(self, axis: Axis, what: str) -> None:
        shape = self.node.shape
        if any(shape[a] == 0 for a in normal_axes(axis, len(shape), what)):
            raise ShapeError(f"{what} of no elements along {axis} of {show_shape(shape)}", means="no elements have no extreme")

    def _count(self, axes: tuple[int, ...]) -> Any:
        """Number of elements along axes: a Python number, or a tensor when one is symbolic."""
        from compute.tensor import Tensor

        shape = self.node.shape
        fixed = product([d for d in (shape[a] for a in axes) if isinstance(d, int)])
        count: Any = fixed
        for d in (shape[a] for a in axes):
            if isinstance(d, Variable):
                count = Tensor._of(node("size", dtypes.int32, (), (), d), self.device, self._self().sizes) * count
        return count

    def mean(self, axis: Axis = None, keepdim: bool = False) -> Tensor:
        """Average; integers become float32, half floats are accumulated in float32."""
        target = dtypes.float_of(self.node.dtype)
        total = self._self().cast(_wide(target)).sum(axis, keepdim)
        return total.div(self._count(normal_axes(axis, len(self.node.shape), "mean"))).cast(target)

    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 0) -> Tensor:
        """Mean square distance from the mean, divided by n - correction."""
        target = dtypes.float_of(self.node.dtype)
        x = self._self().cast(_wide(target))
        squares = (x - x.mean(axis, keepdim=True)) ** 2
        count = self._count(normal_axes(axis, len(self.node.shape), "var")) - correction
        return squares.sum(axis, keepdim).div(count).cast(target)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 0) -> Tensor:
        return self.var(axis, keepdim, correction).sqrt()

    def any(self, axis: Axis = None, keepdim: bool = False) -> Tensor:
        return self._self().cast(dtypes.bool_)._reduce("max", axis, keepdim)

    def all(self, axis: Axis = None, keepdim: bool = False) -> Tensor:
        return self._self().cast(dtypes.bool_)._reduce("min", axis, keepdim)

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Tensor:
        """Position (int32) of the first greatest element, or of the first NaN; without an axis in row-major order."""
        return self._position("max", axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Tensor:
        """Position (int32) of the first least element, or of the first NaN; without an axis in row-major order."""
        return self._position("min", axis, keepdim)

    def _position(self, op: str, axis: int | None, keepdim: bool) -> Tensor:
        from compute.tensor import Tensor

        x = self._self()
        if axis is None:
            flat = x.flatten()._position(op, 0, False)
            return flat.reshape((1,) * len(x.shape)) if keepdim else flat
        at = normal_axis(axis, len(x.shape), f"arg{op}")
        self._some(at, f"arg{op}")
        best = x._reduce(op, at, True)
        found = (x == best) | x.isnan() if x.dtype.is_float else x == best
        size = x.shape[at]
        numbers = Tensor._of(node("iota", dtypes.int32, (size,), (), None, x.device), x.device, x.sizes)
        numbers = numbers.reshape(tuple(size if i == at else 1 for i in range(len(x.shape))))
        return found.where(numbers, dtypes.int32.max)._reduce("min", at, keepdim)

    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x) over its sum, safe for large x."""
        spread, total = self._softmax_parts(axis)
        return (spread.exp() / total).cast(dtypes.float_of(self.node.dtype))

    def log_softmax(self, axis: int = -1) -> Tensor:
        spread, total = self._softmax_parts(axis)
        return (spread - total.log()).cast(dtypes.float_of(self.node.dtype))

    def _softmax_parts(self, axis: int) -> tuple[Tensor, Tensor]:
        x = self._self().cast(_wide(dtypes.float_of(self.node.dtype)))
        spread = x - x.max(axis, keepdim=True)
        return spread, spread.exp().sum(axis, keepdim=True)

    def matmul(self, other: Tensor) -> Tensor:
        """Matrix product by numpy's rules for 1, 2 and more dimensions. Half floats are accumulated in float32. Raises ShapeError."""
        from compute.tensor import Tensor

        x, y = self._self(), other
        if not isinstance(y, Tensor):
            y = Tensor(y, device=x.device)
        if not x.shape or not y.shape:
            raise ShapeError(f"matmul of {show_shape(x.shape)} and {show_shape(y.shape)}", means="a scalar is no matrix", remedy="use *")
        dtype = dtypes.promote(x.dtype, y.dtype)
        a = x.unsqueeze(0) if len(x.shape) == 1 else x
        b = y.unsqueeze(1) if len(y.shape) == 1 else y
        if a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"matmul of {show_shape(x.shape)} and {show_shape(y.shape)}", means=f"the inner dimensions {a.shape[-1]} and {b.shape[-2]} differ")
        batch = broadcast_shapes([a.shape[:-2] or (1,), b.shape[:-2] or (1,)], "matmul") if len(a.shape) > 2 or len(b.shape) > 2 else ()
        rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        wide = dtypes.sum_type(_wide(dtype))
        left = a.unsqueeze(-2).expand(*batch, rows, columns, inner).cast(wide)
        right = b.transpose(-1, -2).unsqueeze(-3).expand(*batch, rows, columns, inner).cast(wide)
        result = (left * right)._reduce("add", -1, False).cast(dtype)
        if len(y.shape) == 1:
            result = result.squeeze(-1)
        return result.squeeze(-1 if len(y.shape) == 1 else -2) if len(x.shape) == 1 else result

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Tensor:
        from compute.tensor import Tensor

        return Tensor(other, device=self.device).matmul(self._self())
