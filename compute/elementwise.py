"""Elementwise functions and operators of tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from compute import dtypes
from compute.dtypes import DType
from compute.errors import DTypeError, ShapeError, show_shape
from compute.ops import COMPARISONS, Node, const, node
from compute.view import Shape, size_of

if TYPE_CHECKING:
    from compute.tensor import Tensor

Operand = Any
"""A Tensor, a Python number, or whatever Tensor() takes."""

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def broadcast_shapes(shapes: list[Shape], what: str) -> Shape:
    """The common shape by numpy's rules. Raises ShapeError naming all shapes."""
    rank = max(len(s) for s in shapes)
    result = []
    for axis in range(rank):
        dims = {s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0} - {1}
        if len(dims) > 1:
            raise ShapeError(f"{what}: cannot combine shapes {' and '.join(show_shape(s) for s in shapes)}", means=f"dimension {axis - rank} differs and is not 1")
        result.append(dims.pop() if dims else 1)
    return tuple(result)


def apply_node(op: str, dtype: DType, sources: tuple[Node, ...], device: str) -> Node:
    """An elementwise node; one that has no elements is a constant."""
    shape = sources[0].shape
    if not size_of(shape):
        return const(0, dtype, shape)
    return node(op, dtype, shape, sources, None, device if any(s.device for s in sources) else "")


class Elementwise:
    """The part of Tensor that works element by element. Operands are brought to one dtype (see dtypes.py) and one shape (numpy's broadcasting)."""

    node: Node
    device: str

    # --- machinery ---

    def _self(self) -> Tensor:
        return self  # type: ignore[return-value]

    def _unary(self, op: str) -> Tensor:
        return self._self()._derived(apply_node(op, self.node.dtype, (self.node,), self.device))

    def _real(self, op: str) -> Tensor:
        """A function with real results: integers become float32 first."""
        x = self._self().cast(dtypes.float_of(self.node.dtype))
        return x._derived(apply_node(op, x.node.dtype, (x.node,), x.device))

    def _operands(self, what: str, *others: Operand, dtype: DType | None = None) -> list[Tensor]:
        """This tensor and the others, of one dtype and shape."""
        from compute.tensor import Tensor

        me = self._self()
        tensors = [me if o is None else o if isinstance(o, (Tensor, bool, int, float)) else Tensor(o, device=me.device) for o in (None, *others)]
        if dtype is None:
            dtype = me.node.dtype
            for o in tensors[1:]:
                dtype = dtypes.promote(dtype, o.dtype) if isinstance(o, Tensor) else dtype
            for o in tensors[1:]:
                dtype = dtype if isinstance(o, Tensor) else dtypes.promote_scalar(dtype, o)
        shape = broadcast_shapes([o.shape for o in tensors if isinstance(o, Tensor)], what)
        return [o._broadcast(shape).cast(dtype) if isinstance(o, Tensor) else me._derived(const(o, dtype, shape)) for o in tensors]

    def _binary(self, op: str, other: Operand, reverse: bool = False, dtype: DType | None = None) -> Tensor:
        x, y = self._operands(op, other, dtype=dtype)
        if reverse:
            x, y = y, x
        result = dtypes.bool_ if op in COMPARISONS else x.node.dtype
        return x._derived(apply_node(op, result, (x.node, y.node), x.device), y)

    def _arithmetic(self, op: str, other: Operand, reverse: bool = False) -> Tensor:
        """Like _binary, with bool counted as int32, which these ops are not defined for."""
        x, y = self._operands(op, other)
        if x.node.dtype is dtypes.bool_:
            x, y = x.cast(dtypes.int32), y.cast(dtypes.int32)
        return x._binary(op, y, reverse)

    def _bits(self, op: str, other: Operand, reverse: bool = False) -> Tensor:
        x, y = self._operands(op, other)
        if x.node.dtype.is_float:
            raise DTypeError(f"{op} of {x.node.dtype}", means="bits of floats are reached by bitcast to an integer type")
        if op in ("shl", "shr") and x.node.dtype is dtypes.bool_:
            raise DTypeError(f"{op} of bool", remedy="cast to an integer type first")
        return x._binary(op, y, reverse)

    # --- types ---

    def cast(self, dtype: Any) -> Tensor:
        """The values in another dtype; dtypes.py says how they are rounded, wrapped or saturated."""
        me, target = self._self(), dtypes.to_dtype(dtype)
        if target is self.node.dtype:
            return me
        if self.node.op == "const" and not (self.node.dtype.is_float and target.is_float):
            return me._derived(const(self.node.arg, target, self.node.shape))
        return me._derived(apply_node("cast", target, (self.node,), self.device))

    def bitcast(self, dtype: Any) -> Tensor:
        """The same bits as another dtype of the same size. Raises DTypeError."""
        me, target = self._self(), dtypes.to_dtype(dtype)
        if target is self.node.dtype:
            return me
        if target.size != self.node.dtype.size or dtypes.bool_ in (target, self.node.dtype):
            raise DTypeError(f"bitcast of {self.node.dtype} to {target}", means="both must have the same size, and bool has no bits of its own")
        return me._derived(apply_node("bitcast", target, (self.node,), self.device))

    # --- one operand ---

    def neg(self) -> Tensor:
        if self.node.dtype is dtypes.bool_:
            raise DTypeError("neg of bool", remedy="use ~ for the logical inverse, or cast to an integer type")
        return self._unary("neg")

    def abs(self) -> Tensor:
        return self._self() if self.node.dtype.kind in ("bool", "uint") else self._unary("abs")

    def logical_not(self) -> Tensor:
        return self._self().cast(dtypes.bool_)._unary("not")

    def bitwise_not(self) -> Tensor:
        if self.node.dtype.is_float:
            raise DTypeError(f"bitwise not of {self.node.dtype}", means="bits of floats are reached by bitcast to an integer type")
        return self._unary("not")

    def sqrt(self) -> Tensor:
        return self._real("sqrt")

    def rsqrt(self) -> Tensor:
        """1 / sqrt(x), with two roundings."""
        return self._real("sqrt").recip()

    def recip(self) -> Tensor:
        return self._binary("div", 1.0, reverse=True, dtype=dtypes.float_of(self.node.dtype))

    def exp(self) -> Tensor:
        return self._real("exp")

    def exp2(self) -> Tensor:
        return self._real("exp2")

    def log(self) -> Tensor:
        return self._real("log")

    def log2(self) -> Tensor:
        return self._real("log2")

    def sin(self) -> Tensor:
        return self._real("sin")

    def cos(self) -> Tensor:
        return self._real("cos")

    def tanh(self) -> Tensor:
        return self._real("tanh")

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
        x = self._self().cast(dtypes.float_of(self.node.dtype))
        return (x.neg().exp() + 1.0).recip()

    def relu(self) -> Tensor:
        return self._binary("max", 0)

    def elu(self, alpha: float = 1.0) -> Tensor:
        """x where positive, else alpha * (exp(x) - 1)."""
        x = self._self().cast(dtypes.float_of(self.node.dtype))
        return (x > 0).where(x, (x.exp() - 1.0) * alpha)

    def gelu(self) -> Tensor:
        """The Gaussian error linear unit in its tanh form, 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))."""
        x = self._self().cast(dtypes.float_of(self.node.dtype))
        return x * 0.5 * (((x + x * x * x * 0.044715) * _SQRT_2_OVER_PI).tanh() + 1.0)

    def _rounded(self, op: str) -> Tensor:
        return self._unary(op) if self.node.dtype.is_float else self._self()

    def floor(self) -> Tensor:
        return self._rounded("floor")

    def ceil(self) -> Tensor:
        return self._rounded("ceil")

    def trunc(self) -> Tensor:
        return self._rounded("trunc")

    def round(self) -> Tensor:
        """To the nearest integer, ties to even."""
        return self._rounded("rint")

    def isnan(self) -> Tensor:
        return self._binary("ne", self)

    # --- two operands ---

    def add(self, other: Operand) -> Tensor:
        return self._binary("add", other)

    def sub(self, other: Operand, reverse: bool = False) -> Tensor:
        x, y = self._operands("sub", other)
        if x.node.dtype is dtypes.bool_:
            raise DTypeError("sub of bool", remedy="use ^, or cast to an integer type")
        return x._binary("sub", y, reverse)

    def mul(self, other: Operand) -> Tensor:
        return self._binary("mul", other)

    def div(self, other: Operand, reverse: bool = False) -> Tensor:
        """True division; integers become float32 first."""
        x, y = self._operands("div", other)
        return x._binary("div", y, reverse, dtype=dtypes.float_of(x.node.dtype))

    def floordiv(self, other: Operand, reverse: bool = False) -> Tensor:
        """Quotient rounded down, as Python's //. Integers by zero give 0."""
        x, y = self._operands("floordiv", other)
        if not x.node.dtype.is_float:
            return x._arithmetic("floordiv", y, reverse)
        return _float_divmod(y, x)[0] if reverse else _float_divmod(x, y)[0]

    def mod(self, other: Operand, reverse: bool = False) -> Tensor:
        """Remainder with the sign of the divisor, as Python's %. Integers by zero give 0."""
        x, y = self._operands("mod", other)
        if not x.node.dtype.is_float:
            return x._arithmetic("mod", y, reverse)
        return _float_divmod(y, x)[1] if reverse else _float_divmod(x, y)[1]

    def pow(self, exponent: Operand, reverse: bool = False) -> Tensor:
        """Power; integers to negative powers are cut to an integer, and a negative number as their exponent is refused."""
        me = self._self()
        if isinstance(exponent, (bool, int, float)) and not reverse:
            if not me.dtype.is_float and not isinstance(exponent, float) and exponent < 0:
                raise DTypeError(f"an integer to the power {exponent}", means="the result is no integer", remedy="cast to a float type first")
            if exponent in (0, 1, 2, 3) and (me.dtype.is_float or not isinstance(exponent, float)):
                return {0: me * 0 + 1 if not me.dtype.is_float else me._derived(const(1.0, me.dtype, me.shape)), 1: me, 2: me * me, 3: me * me * me}[int(exponent)]
        return self._arithmetic("pow", exponent, reverse)

    def maximum(self, other: Operand) -> Tensor:
        return self._binary("max", other)

    def minimum(self, other: Operand) -> Tensor:
        return self._binary("min", other)

    def clip(self, low: Operand = None, high: Operand = None) -> Tensor:
        """Values brought between two bounds, either of which may be None."""
        x = self._self()
        x = x if low is None else x.maximum(low)
        return x if high is None else x.minimum(high)

    def bitwise_and(self, other: Operand) -> Tensor:
        return self._bits("and", other)

    def bitwise_or(self, other: Operand) -> Tensor:
        return self._bits("or", other)

    def bitwise_xor(self, other: Operand) -> Tensor:
        return self._bits("xor", other)

    def lshift(self, other: Operand) -> Tensor:
        """Bits moved up; a count beyond the width gives 0."""
        return self._bits("shl", other)

    def rshift(self, other: Operand) -> Tensor:
        """Bits moved down, with the sign for signed types; a count beyond the width gives 0 or -1."""
        return self._bits("shr", other)

    def where(self, yes: Operand, no: Operand) -> Tensor:
        """This tensor, as bool, chooses between two others."""
        from compute.tensor import Tensor

        me = self._self()
        if isinstance(yes, Tensor):
            a, b = yes._operands("where", no)
        elif isinstance(no, Tensor):
            b, a = no._operands("where", yes)
        else:
            a, b = Tensor(yes, device=me.device)._operands("where", no)
        shape = broadcast_shapes([me.shape, a.shape, b.shape], "where")
        chooser, a, b = me.cast(dtypes.bool_)._broadcast(shape), a._broadcast(shape), b._broadcast(shape)
        chooser._same_device(a)
        chooser._same_device(b)
        return chooser._derived(apply_node("where", a.node.dtype, (chooser.node, a.node, b.node), chooser.device), a, b)

    # --- operators ---

    def __neg__(self) -> Tensor:
        return self.neg()

    def __abs__(self) -> Tensor:
        return self.abs()

    def __invert__(self) -> Tensor:
        return self.bitwise_not()

    def __add__(self, other: Operand) -> Tensor:
        return self.add(other)

    def __radd__(self, other: Operand) -> Tensor:
        return self._binary("add", other, reverse=True)

    def __sub__(self, other: Operand) -> Tensor:
        return self.sub(other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.sub(other, reverse=True)

    def __mul__(self, other: Operand) -> Tensor:
        return self.mul(other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self._binary("mul", other, reverse=True)

    def __truediv__(self, other: Operand) -> Tensor:
        return self.div(other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.div(other, reverse=True)

    def __floordiv__(self, other: Operand) -> Tensor:
        return self.floordiv(other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return self.floordiv(other, reverse=True)

    def __mod__(self, other: Operand) -> Tensor:
        return self.mod(other)

    def __rmod__(self, other: Operand) -> Tensor:
        return self.mod(other, reverse=True)

    def __pow__(self, other: Operand) -> Tensor:
        return self.pow(other)

    def __rpow__(self, other: Operand) -> Tensor:
        return self.pow(other, reverse=True)

    def __and__(self, other: Operand) -> Tensor:
        return self.bitwise_and(other)

    __rand__ = __and__

    def __or__(self, other: Operand) -> Tensor:
        return self.bitwise_or(other)

    __ror__ = __or__

    def __xor__(self, other: Operand) -> Tensor:
        return self.bitwise_xor(other)

    __rxor__ = __xor__

    def __lshift__(self, other: Operand) -> Tensor:
        return self.lshift(other)

    def __rlshift__(self, other: Operand) -> Tensor:
        return self._bits("shl", other, reverse=True)

    def __rshift__(self, other: Operand) -> Tensor:
        return self.rshift(other)

    def __rrshift__(self, other: Operand) -> Tensor:
        return self._bits("shr", other, reverse=True)

    def __lt__(self, other: Operand) -> Tensor:
        return self._binary("lt", other)

    def __le__(self, other: Operand) -> Tensor:
        return self._binary("le", other)

    def __gt__(self, other: Operand) -> Tensor:
        return self._binary("lt", other, reverse=True)

    def __ge__(self, other: Operand) -> Tensor:
        return self._binary("le", other, reverse=True)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._binary("eq", other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._binary("ne", other)

    def __hash__(self) -> int:
        return id(self)


def _float_divmod(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient rounded down and remainder of floats, from the exact remainder of the division cut towards zero."""
    rest = x._binary("fmod", y)
    opposite = (rest != 0) & ((rest < 0) ^ (y < 0))
    remainder = (rest == 0).where(_signed_zero(y), opposite.where(rest + y, rest))
    quotient = (x - rest) / y - opposite.cast(x.node.dtype)
    low = quotient.floor()
    quotient = (quotient - low > 0.5).where(low + 1.0, low)
    return (y == 0).where(x / y, quotient), (y == 0).where(float("nan"), remainder)


def _signed_zero(y: Tensor) -> Tensor:
    return (y < 0).where(-0.0, y._derived(const(0.0, y.node.dtype, y.shape)))


