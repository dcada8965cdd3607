"""Element types and how they combine.

Promotion of two tensors (`promote`):
- equal types stay; bool gives way to anything
- two integers of one signedness: the wider; of both: the narrowest signed type that holds both, and float32 for uint64 with a signed one
- a float with an integer or bool: the float; two floats: the wider, and float32 for float16 with bfloat16
Python numbers are weak: they take the tensor's type unless they are of a higher kind (bool < int < float); then they count as int32 or float32.
Casts: float to integer cuts towards zero, saturates at the type's range, and NaN gives 0; integer to integer wraps; anything to bool is `!= 0`;
float to a narrower float rounds to nearest even, and so do bfloat16 results, which are computed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compute.errors import DTypeError

_KINDS = {"bool": 0, "uint": 1, "int": 1, "float": 2}


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. bits: significant storage; kind: bool, int, uint or float. Compared by identity."""

    name: str
    kind: str
    size: int
    numpy: Any
    """numpy type of the values as numpy() shows them (bfloat16 is shown as float32)."""

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer; bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def bits(self) -> int:
        return self.size * 8

    @property
    def min(self) -> float | int:
        """Least value: of floats minus infinity."""
        if self.is_float:
            return -float("inf")
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> float | int:
        """Greatest value: of floats infinity."""
        if self.is_float:
            return float("inf")
        if self.kind == "bool":
            return 1
        return (1 << (self.bits - (self.kind == "int"))) - 1

    @property
    def storage(self) -> Any:
        """numpy type of the bytes in memory; bfloat16 is stored as its 16 bits."""
        return np.uint16 if self is bfloat16 else self.numpy


bool_ = DType("bool", "bool", 1, np.bool_)
int8 = DType("int8", "int", 1, np.int8)
int16 = DType("int16", "int", 2, np.int16)
int32 = DType("int32", "int", 4, np.int32)
int64 = DType("int64", "int", 8, np.int64)
uint8 = DType("uint8", "uint", 1, np.uint8)
uint16 = DType("uint16", "uint", 2, np.uint16)
uint32 = DType("uint32", "uint", 4, np.uint32)
uint64 = DType("uint64", "uint", 8, np.uint64)
float16 = DType("float16", "float", 2, np.float16)
bfloat16 = DType("bfloat16", "float", 2, np.float32)
float32 = DType("float32", "float", 4, np.float32)
float64 = DType("float64", "float", 8, np.float64)

ALL = (bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64)
INTS = tuple(d for d in ALL if d.is_int)
FLOATS = tuple(d for d in ALL if d.is_float)

default_int = int32
default_float = float32

_BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {np.dtype(d.numpy): d for d in ALL if d is not bfloat16}
_SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}
_UNSIGNED = {8: uint8, 16: uint16, 32: uint32, 64: uint64}


def signed(bits: int) -> DType:
    return _SIGNED[bits]


def unsigned(bits: int) -> DType:
    return _UNSIGNED[bits]


def to_dtype(which: Any) -> DType:
    """A DType from itself, its name, or a numpy type. Raises DTypeError."""
    if isinstance(which, DType):
        return which
    if isinstance(which, str) and which in _BY_NAME:
        return _BY_NAME[which]
    try:
        return _BY_NUMPY[np.dtype(which)]
    except (TypeError, KeyError):
        raise DTypeError(f"no such element type: {which!r}", read=f"known: {', '.join(_BY_NAME)}", remedy="name one of the known types") from None


def of_scalar(value: bool | int | float) -> DType:
    """The type that a Python number counts as when it stands alone."""
    if isinstance(value, (bool, np.bool_)):
        return bool_
    if isinstance(value, (int, np.integer)):
        return default_int if int32.min <= int(value) <= int32.max else int64
    return default_float


def promote(a: DType, b: DType) -> DType:
    """The type that two tensors are brought to before they are combined."""
    if a is b:
        return a
    if _KINDS[a.kind] != _KINDS[b.kind]:
        return a if _KINDS[a.kind] > _KINDS[b.kind] else b
    if a.kind == b.kind:
        if a.size == b.size:
            return float32
        return a if a.size > b.size else b
    signed_one, unsigned_one = (a, b) if a.kind == "int" else (b, a)
    if signed_one.size > unsigned_one.size:
        return signed_one
    return _SIGNED[unsigned_one.bits * 2] if unsigned_one.size < 8 else float32


def promote_scalar(tensor: DType, value: bool | int | float) -> DType:
    """The type that a tensor and a Python number are brought to."""
    number = of_scalar(value)
    return tensor if _KINDS[number.kind] <= _KINDS[tensor.kind] else number


def float_of(dtype: DType) -> DType:
    """The type in which functions with real results are computed: floats stay, the rest becomes float32."""
    return dtype if dtype.is_float else default_float


def sum_type(dtype: DType) -> DType:
    """Result type of sum and prod: bool and narrow integers widen to 32 bit, all else stays."""
    if dtype.kind in ("bool", "int"):
        return dtype if dtype.size == 8 else int32
    if dtype.kind == "uint":
        return dtype if dtype.size == 8 else uint32
    return dtype
