"""The tensor: a lazy array on a device. Nothing is computed before its data is asked for."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from compute import dtypes, random, runtime
from compute.codegen.arithmetic import bfloat16_to_bits, bits_to_bfloat16, round_bfloat16
from compute.dtypes import DType
from compute.elementwise import Elementwise
from compute.errors import DeviceMismatch, DTypeError, ShapeError, show_shape
from compute.movement import Movement
from compute.ops import ELEMENTWISE, Node, Storage, const, node, toposort
from compute.realize import combined, leaf, reads, realize
from compute.reductions import Reductions
from compute.runtime import Buffer
from compute.view import BoundVariable, Dim, Shape, Variable, capacities, size_of
from hw import target

_live: dict[int, weakref.ref[Tensor]] = {}
"""Every tensor there is, so that assign() can keep the others' values."""


@functools.cache
def _device_name(name: str) -> str:
    return str(target.parse(name))


class Tensor(Elementwise, Movement, Reductions):
    """A lazy array. data: number, nested lists, numpy array, or bytes (as uint8). dtype: by default numpy's, with int32 and float32 for Python's numbers.

    device: a DEV string; by default the environment variable DEV, else CPU.
    """

    node: Node
    device: str
    sizes: dict[str, int]
    """Values of the variables in its shape."""

    def __init__(self, data: Any, dtype: Any = None, device: str | None = None) -> None:
        wanted = None if dtype is None else dtypes.to_dtype(dtype)
        self._set(None, _device_name(device or runtime.default_name()), {})
        if isinstance(data, Tensor):
            raise DTypeError("a tensor made from a tensor", remedy="use cast() or to()")
        if isinstance(data, (bool, int, float)):
            self.node = const(data, wanted or dtypes.of_scalar(data))
            return
        array = _as_array(data)
        found = wanted or _dtype_of(array, data)
        if not array.size:
            self.node = const(0, found, array.shape)
            return
        buffer = Buffer(runtime.device(self.device), array.size * found.size, _to_bytes(array, found))
        self.node = node("buffer", found, array.shape, (), Storage(buffer), self.device)

    def _set(self, n: Node | None, device: str, sizes: Mapping[str, int]) -> None:
        if n is not None:
            self.node = n
        self.device = device
        self.sizes = dict(sizes)
        key = id(self)
        _live[key] = weakref.ref(self, lambda _: _live.pop(key, None))

    @staticmethod
    def _of(n: Node, device: str, sizes: Mapping[str, int]) -> Tensor:
        made = Tensor.__new__(Tensor)
        made._set(n, device, sizes)
        return made

    def _derived(self, n: Node, *others: Tensor) -> Tensor:
        """A tensor computed from this one and others."""
        for other in others:
            self._same_device(other)
        return Tensor._of(n, self.device, combined([self.sizes, *(o.sizes for o in others)]))

    def _same_device(self, other: Tensor) -> None:
        if other.device != self.device:
            raise DeviceMismatch(f"tensors on {self.device} and {other.device} in one operation")

    def _bound(self, values: Mapping[str, int]) -> Tensor:
        self.sizes = combined([self.sizes, values])
        return self

    def _shape_of(self, given: tuple[Any, ...]) -> Shape:
        dims = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
        shape: list[Dim] = []
        for d in dims:
            if isinstance(d, BoundVariable):
                self.sizes = combined([self.sizes, {d.variable.name: d.value}])
                d = d.variable
            shape.append(d if isinstance(d, Variable) else int(d))
        return tuple(shape)

    @staticmethod
    def _common_dtype(parts: list[Tensor]) -> DType:
        found = parts[0].dtype
        for p in parts[1:]:
            found = dtypes.promote(found, p.dtype)
        return found

    # --- what it is ---

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def size(self) -> int:
        """Number of elements, with the values its variables have now."""
        total = 1
        for d in self.concrete_shape:
            total *= d
        return total

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The shape with the values its variables have now."""
        return tuple(self.sizes[d.name] if isinstance(d, Variable) else d for d in self.node.shape)

    def __len__(self) -> int:
        if not self.node.shape:
            raise ShapeError("the length of a scalar", means="it has no axes")
        return self.concrete_shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        return f"Tensor({show_shape(self.shape)}, {self.dtype}, {self.device!r}, {'in memory' if self.node.op == 'buffer' else 'lazy'})"

    # --- its data ---

    def realize(self, *others: Tensor) -> Tensor:
        """Computes this tensor (and others, together), and keeps the values on the device."""
        together = [self, *others]
        for device in dict.fromkeys(t.device for t in together):
            mine = [t for t in together if t.device == device]
            found = realize([t.node for t in mine], device, combined([t.sizes for t in mine]))
            for t in mine:
                t.node = t.node if t.node.op == "buffer" else leaf(t.node, found[t.node], device)
        return self

    def contiguous(self) -> Tensor:
        """The same values, stored in memory of their own when they are computed."""
        return self._derived(node("contiguous", self.dtype, self.shape, (self.node,), None, self.device)) if size_of(self.shape) else self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a numpy array (bfloat16 as float32). Raises NotExecuted on a device that only compiles."""
        self.realize()
        buffer = self.node.arg.buffer
        raw = np.frombuffer(buffer.read(), self.dtype.storage).reshape(capacities(self.shape))
        values = bits_to_bfloat16(raw) if self.dtype is dtypes.bfloat16 else raw
        return values[tuple(slice(0, d) for d in self.concrete_shape)].copy()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def item(self) -> Any:
        """The only element as a Python number. Raises ShapeError when there is not exactly one."""
        if self.size != 1:
            raise ShapeError(f"item of a tensor of shape {show_shape(self.concrete_shape)}", means="there is not exactly one element")
        return self.numpy().item()

    def to(self, device: str) -> Tensor:
        """This tensor on another device."""
        name = _device_name(device)
        if name == self.device:
            return self
        if not self.node.device or not size_of(self.shape):
            return Tensor._of(self.node, name, self.sizes)
        return Tensor._of(node("copy", self.dtype, self.shape, (self.node,), None, name), name, self.sizes)

    def assign(self, value: Any) -> Tensor:
        """Overwrites this tensor's memory with other values, at once. Lazy tensors that were made from the old values keep them.

        value: a tensor or data, broadcast and cast to this one. A tensor that is not yet in memory just becomes the value.
        """
        new = value if isinstance(value, Tensor) else Tensor(value, dtype=self.dtype, device=self.device)
        self._same_device(new)
        if len(new.shape) > len(self.shape) or any(d not in (1, mine) for d, mine in zip(reversed(new.shape), reversed(self.shape), strict=False)):
            raise ShapeError(f"assign of {show_shape(new.shape)} to {show_shape(self.shape)}", means="the value does not fit into the tensor")
        new = new._broadcast(self.shape).cast(self.dtype)
        if self.node.op != "buffer" or not size_of(self.shape):
            self.node, self.sizes = new.node, new.sizes
            return self
        if new.node is self.node:
            return self
        buffer = self.node.arg.buffer
        self._detach_others(buffer, {id(self), id(new)})
        is_read = reads(new.node, buffer)
        sizes = combined([self.sizes, new.sizes])
        source = new.node
        if is_read and not _elementwise_over(source, buffer):
            source = leaf(source, realize([source], self.device, sizes)[source], self.device)
        copied = node("contiguous", self.dtype, self.shape, (source,), None, self.device)
        written = realize([copied], self.device, sizes, {copied: buffer})[copied]
        copied.storage = None
        self.node = leaf(self.node, written, self.device)
        if is_read and new.node.op != "buffer":
            new.node = self.node
        return self

    @staticmethod
    def _detach_others(buffer: Buffer, without: set[int]) -> None:
        """Gives every other tensor that depends on this memory, or is it, its values in memory of its own."""
        for key, reference in list(_live.items()):
            t = reference()
            if t is None or key in without or not hasattr(t, "node") or not reads(t.node, buffer):
                continue
            if buffer.lost is not None:
                gone = Buffer(buffer.device, size_of(t.shape) * t.dtype.size)
                gone.lost = buffer.lost
                t.node = leaf(t.node, Storage(gone), t.device)
                continue
            if t.node.op == "buffer":
                t.node = t.contiguous().node
            t.realize()

    # --- new ones ---

    @staticmethod
    def full(shape: Any, value: float, dtype: Any = None, device: str | None = None) -> Tensor:
        """A tensor of one value."""
        found = dtypes.of_scalar(value) if dtype is None else dtypes.to_dtype(dtype)
        made = Tensor(value, found, device)
        return made.expand(made._shape_of((shape,) if isinstance(shape, (tuple, list)) else ((shape,),)))

    @staticmethod
    def zeros(*shape: Any, dtype: Any = None, device: str | None = None) -> Tensor:
        return Tensor.full(_one_shape(shape), 0, dtype or dtypes.default_float, device)

    @staticmethod
    def ones(*shape: Any, dtype: Any = None, device: str | None = None) -> Tensor:
        return Tensor.full(_one_shape(shape), 1, dtype or dtypes.default_float, device)

    @staticmethod
    def empty(*shape: Any, dtype: Any = None, device: str | None = None) -> Tensor:
        """Memory with undefined values."""
        found = dtypes.to_dtype(dtype or dtypes.default_float)
        made = Tensor(0, found, device)
        dims = made._shape_of((_one_shape(shape),))
        if size_of(dims):
            made.node = node("buffer", found, dims, (), Storage(Buffer(runtime.device(made.device), size_of(dims) * found.size)), made.device)
            return made
        return made.expand(dims)

    @staticmethod
    def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None, device: str | None = None) -> Tensor:
        """start, start + step, ... below stop (or above, for a negative step); with one argument from 0."""
        if stop is None:
            start, stop = 0, start
        if step == 0:
            raise ShapeError("arange with step 0", means="it would never end")
        count = max(0, int(np.ceil((stop - start) / step)))
        whole = all(isinstance(v, int) for v in (start, stop, step))
        found = dtypes.to_dtype(dtype) if dtype is not None else dtypes.default_int if whole else dtypes.default_float
        made = Tensor._iota(count, device)
        work = dtypes.promote(found, dtypes.int32) if found.is_int else found if found.is_float else dtypes.default_int if whole else dtypes.default_float
        made = made.cast(dtypes.float32 if work.is_float and work.size == 2 else work)
        if step != 1:
            made = made * step
        return (made + start if start != 0 else made).cast(found)

    @staticmethod
    def linspace(start: float, stop: float, count: int, dtype: Any = None, device: str | None = None) -> Tensor:
        """count values from start to stop, both included."""
        found = dtypes.to_dtype(dtype or dtypes.default_float)
        numbers = Tensor._iota(count, device).cast(dtypes.float64 if found is dtypes.float64 else dtypes.float32)
        if count < 2:
            return (numbers + start).cast(found)
        last = Tensor._iota(count, device) == count - 1
        return last.where(stop, numbers * ((stop - start) / (count - 1)) + start).cast(found)

    @staticmethod
    def _iota(count: int, device: str | None) -> Tensor:
        name = _device_name(device or runtime.default_name())
        if not count:
            return Tensor._of(const(0, dtypes.int32, (0,)), name, {})
        return Tensor._of(node("iota", dtypes.int32, (count,), (), None, name), name, {})

    @staticmethod
    def eye(rows: int, columns: int | None = None, dtype: Any = None, device: str | None = None) -> Tensor:
        """Ones on the diagonal."""
        width = rows if columns is None else columns
        return (Tensor._iota(rows, device).reshape(rows, 1) == Tensor._iota(width, device).reshape(1, width)).cast(dtype or dtypes.default_float)

    @staticmethod
    def rand(*shape: Any, dtype: Any = None, device: str | None = None) -> Tensor:
        """Random numbers, uniform in [0, 1). See manual_seed()."""
        found = dtypes.to_dtype(dtype or dtypes.default_float)
        if not found.is_float:
            raise DTypeError(f"rand of {found}", means="random numbers in [0, 1) need a float type")
        dims = tuple(int(d) for d in _one_shape(shape))
        key = Tensor(np.array(random.next_key(), np.uint32), device=device)
        return random.uniform(Tensor._iota(size_of(dims), device).cast(dtypes.uint32), key, found).reshape(dims)

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Makes the following calls of rand() give the same numbers each time, on every device."""
        random.set_seed(seed)


def _one_shape(shape: tuple[Any, ...]) -> Any:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


def _as_array(data: Any) -> np.ndarray[Any, Any]:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.frombuffer(bytes(data), np.uint8)
    if not isinstance(data, (np.ndarray, np.generic, list, tuple)):
        raise DTypeError(f"a tensor made from {type(data).__name__}", remedy="give a number, nested lists, a numpy array or bytes")
    try:
        return np.asarray(data)
    except ValueError as error:
        raise ShapeError("a tensor made from lists of different lengths", read=str(error)) from None


def _dtype_of(array: np.ndarray[Any, Any], data: Any) -> DType:
    if isinstance(data, (list, tuple)):
        if array.dtype == np.float64:
            return dtypes.default_float
        if array.dtype == np.int64:
            return dtypes.int32 if array.size == 0 or (array.min() >= dtypes.int32.min and array.max() <= dtypes.int32.max) else dtypes.int64
    return dtypes.to_dtype(array.dtype)


def _to_bytes(array: np.ndarray[Any, Any], dtype: DType) -> bytes:
    if dtype is dtypes.bfloat16:
        return bytes(bfloat16_to_bits(round_bfloat16(array.astype(np.float32))).tobytes())
    return bytes(np.ascontiguousarray(array.astype(dtype.numpy, copy=False)).tobytes())


def _elementwise_over(n: Node, buffer: Buffer) -> bool:
    """True when every way from the node down to this memory is elementwise, so that it may be overwritten on the way."""
    for below in toposort([n], lambda m: () if m.storage is not None else m.src):
        if below.op not in ELEMENTWISE and below.op not in ("buffer", "contiguous") and any(reads(s, buffer) for s in below.src):
            return False
    return True
