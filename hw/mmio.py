"""Windows of bytes on some bus.

An `Mmio` performs accesses of exactly the width asked for. `cost` says whether an access is a CPU instruction ("local") or a
message to somewhere ("round_trip"); code that makes many accesses uses `batch()` or block reads and writes, which cost nothing
extra on local windows. Out of bounds or unaligned accesses raise before the bus is touched.
"""

from __future__ import annotations

import mmap
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from hw.errors import OutOfWindow

Cost = Literal["local", "round_trip"]
ALL_ONES_32 = 0xFFFFFFFF
ALL_ONES_64 = 0xFFFFFFFFFFFFFFFF
BytesLike = bytes | bytearray | memoryview


class Pending:
    """The result of a batched read; `value` is valid once the batch ended."""

    __slots__ = ("value",)

    def __init__(self, value: int | None = None) -> None:
        self.value = value


class Batch:
    """Accesses whose order must hold but whose results are not needed one by one. This base performs them at once."""

    def __init__(self, window: Mmio) -> None:
        self._window = window

    def write32(self, offset: int, value: int) -> None:
        self._window.write32(offset, value)

    def write64(self, offset: int, value: int) -> None:
        self._window.write64(offset, value)

    def read32(self, offset: int) -> Pending:
        return Pending(self._window.read32(offset))

    def write(self, offset: int, data: BytesLike) -> None:
        self._window.write(offset, data)


class Mmio(ABC):
    """One window. Offsets and sizes are bytes; values are unsigned, little endian on the bus."""

    name: str = "window"
    size: int
    cost: Cost = "local"

    def check(self, offset: int, size: int, align: int = 1) -> None:
        """Raise OutOfWindow unless [offset, offset + size) lies inside and offset is a multiple of align."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise OutOfWindow(f"access of {size} bytes at {offset:#x} outside {self.name} of {self.size:#x} bytes")
        if offset % align:
            raise OutOfWindow(f"unaligned access of {align} bytes at {offset:#x} in {self.name}", means="devices answer only aligned accesses")

    @abstractmethod
    def read32(self, offset: int) -> int: ...

    @abstractmethod
    def write32(self, offset: int, value: int) -> None: ...

    @abstractmethod
    def read64(self, offset: int) -> int: ...

    @abstractmethod
    def write64(self, offset: int, value: int) -> None: ...

    @abstractmethod
    def read8(self, offset: int) -> int: ...

    @abstractmethod
    def write8(self, offset: int, value: int) -> None: ...

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """A block of memory (never of port registers: the width of the accesses is the window's choice)."""

    @abstractmethod
    def write(self, offset: int, data: BytesLike) -> None:
        """A block to memory (never to port registers)."""

    def fill(self, offset: int, size: int, byte: int = 0) -> None:
        """Set a block of memory to one byte value."""
        chunk = 1 << 20
        self.check(offset, size)
        pattern = bytes([byte]) * min(size, chunk)
        for start in range(0, size, chunk):
            length = min(chunk, size - start)
            self.write(offset + start, pattern[:length])

    def view(self, offset: int = 0, size: int | None = None) -> Mmio:
        """A window onto a part of this one."""
        length = self.size - offset if size is None else size
        self.check(offset, length)
        return SubWindow(self, offset, length)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Group accesses: `with window.batch() as b: b.write32(...)`. Their order is kept."""
        yield Batch(self)


class SubWindow(Mmio):
    """A part of another window."""

    def __init__(self, parent: Mmio, offset: int, size: int) -> None:
        self._parent = parent
        self._offset = offset
        self.size = size
        self.name = parent.name
        self.cost = parent.cost

    def read32(self, offset: int) -> int:
        self.check(offset, 4, 4)
        return self._parent.read32(self._offset + offset)

    def write32(self, offset: int, value: int) -> None:
        self.check(offset, 4, 4)
        self._parent.write32(self._offset + offset, value)

    def read64(self, offset: int) -> int:
        self.check(offset, 8, 8)
        return self._parent.read64(self._offset + offset)

    def write64(self, offset: int, value: int) -> None:
        self.check(offset, 8, 8)
        self._parent.write64(self._offset + offset, value)

    def read8(self, offset: int) -> int:
        self.check(offset, 1)
        return self._parent.read8(self._offset + offset)

    def write8(self, offset: int, value: int) -> None:
        self.check(offset, 1)
        self._parent.write8(self._offset + offset, value)

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        return self._parent.read(self._offset + offset, size)

    def write(self, offset: int, data: BytesLike) -> None:
        self.check(offset, len(data))
        self._parent.write(self._offset + offset, data)

    def view(self, offset: int = 0, size: int | None = None) -> Mmio:
        length = self.size - offset if size is None else size
        self.check(offset, length)
        return self._parent.view(self._offset + offset, length)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        with self._parent.batch() as inner:
            yield _OffsetBatch(inner, self)


class _OffsetBatch(Batch):
    def __init__(self, inner: Batch, window: SubWindow) -> None:
        self._inner = inner
        self._sub = window

    def write32(self, offset: int, value: int) -> None:
        self._sub.check(offset, 4, 4)
        self._inner.write32(self._sub._offset + offset, value)

    def write64(self, offset: int, value: int) -> None:
        self._sub.check(offset, 8, 8)
        self._inner.write64(self._sub._offset + offset, value)

    def read32(self, offset: int) -> Pending:
        self._sub.check(offset, 4, 4)
        return self._inner.read32(self._sub._offset + offset)

    def write(self, offset: int, data: BytesLike) -> None:
        self._sub.check(offset, len(data))
        self._inner.write(self._sub._offset + offset, data)


_ffi: Any = None


def _get_ffi() -> Any:
    """cffi's FFI object, made on first use (importing cffi costs time that a plain import of hw should not)."""
    global _ffi
    if _ffi is None:
        import cffi

        _ffi = cffi.FFI()
    return _ffi


class LocalMmio(Mmio):
    """A window in this process's address space: a mapped BAR, or plain memory that a device also sees.

    Uses volatile pointers, so that one call is one access of that width. `owner` is kept alive with the window (an mmap, a
    bytearray); its memory must not move or be unmapped while the window is in use. A revocable window can be taken back by
    whoever made it: it and its views then refuse every access.
    """

    cost: Cost = "local"

    def __init__(self, address: int, size: int, owner: object = None, name: str = "window", *, revocable: bool = False) -> None:
        ffi = _get_ffi()
        self.address = address
        self.size = size
        self.name = name
        self._owner = owner
        self._family: weakref.WeakSet[LocalMmio] | None = weakref.WeakSet([self]) if revocable else None
        self._p8 = ffi.cast("volatile uint8_t *", address)
        self._p32 = ffi.cast("volatile uint32_t *", address)
        self._p64 = ffi.cast("volatile uint64_t *", address)
        self._raw = ffi.buffer(ffi.cast("char *", address), size)

    @classmethod
    def over(cls, memory: Any, name: str = "window", *, revocable: bool = False) -> LocalMmio:
        """A window over a writable buffer object (mmap, bytearray, numpy array)."""
        ffi = _get_ffi()
        handle = ffi.from_buffer(memory, require_writable=True)
        return cls(int(ffi.cast("uintptr_t", handle)), len(handle), owner=(memory, handle), name=name, revocable=revocable)

    @classmethod
    def anonymous(cls, size: int, name: str = "memory") -> LocalMmio:
        """A window over fresh zeroed memory of this process."""
        return cls.over(mmap.mmap(-1, size), name)

    def read32(self, offset: int) -> int:
        if offset & 3 or not 0 <= offset <= self.size - 4:
            self.check(offset, 4, 4)
        return self._p32[offset >> 2]  # type: ignore[no-any-return]

    def write32(self, offset: int, value: int) -> None:
        if offset & 3 or not 0 <= offset <= self.size - 4:
            self.check(offset, 4, 4)
        self._p32[offset >> 2] = value

    def read64(self, offset: int) -> int:
        if offset & 7 or not 0 <= offset <= self.size - 8:
            self.check(offset, 8, 8)
        return self._p64[offset >> 3]  # type: ignore[no-any-return]

    def write64(self, offset: int, value: int) -> None:
        if offset & 7 or not 0 <= offset <= self.size - 8:
            self.check(offset, 8, 8)
        self._p64[offset >> 3] = value

    def read8(self, offset: int) -> int:
        if not 0 <= offset < self.size:
            self.check(offset, 1)
        return self._p8[offset]  # type: ignore[no-any-return]

    def write8(self, offset: int, value: int) -> None:
        if not 0 <= offset < self.size:
            self.check(offset, 1)
        self._p8[offset] = value

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        return bytes(self._raw[offset : offset + size])

    def write(self, offset: int, data: BytesLike) -> None:
        self.check(offset, len(data))
        self._raw[offset : offset + len(data)] = bytes(data) if isinstance(data, memoryview) else data

    def view(self, offset: int = 0, size: int | None = None) -> LocalMmio:
        length = self.size - offset if size is None else size
        self.check(offset, length)
        view = LocalMmio(self.address + offset, length, owner=self._owner, name=self.name)
        if self._family is not None:
            view._family = self._family
            self._family.add(view)
        return view

    def revoke(self) -> None:
        """Make this revocable window and all its views refuse every access from now on, and let go of their memory.

        Memoryviews taken from `memory` do not know of it: only windows that nobody took one from may be revoked.
        """
        if self._family is None:
            raise TypeError(f"{self.name} is not revocable")
        for window in list(self._family):
            window.size = 0
            window.name = f"{window.name} (closed)"
            window._raw = b""
            window._owner = None
        self._family.clear()

    @property
    def memory(self) -> memoryview:
        """The window's bytes without copying. For memory only, never for registers."""
        return memoryview(self._raw)
