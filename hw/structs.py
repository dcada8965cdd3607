"""Binary layouts, declared once as C text and read by driver and mock alike.

    HEADER = Layout("struct header { uint32_t magic; uint16_t version; uint16_t size; };", packed=True)
    h = HEADER.parse("struct header", data)      # a copy; h.magic
    raw = HEADER.pack("struct header", magic=1)  # bytes
    HEADER.sizeof("struct header")

Parsing of the C text happens on first use. Layouts are little endian, like every host that cffi runs on here.
"""

from __future__ import annotations

import sys
from typing import Any

from hw.errors import TghwError


class ShortData(TghwError):
    code = "short-data"
    default_means = "the data ends before the structure does: it was cut off, or it is not what it was taken for"


class Layout:
    """A set of C declarations."""

    def __init__(self, cdef: str, *, packed: bool = True) -> None:
        self._cdef = cdef
        self._packed = packed
        self._ffi: Any = None

    @property
    def ffi(self) -> Any:
        """The cffi FFI object that knows the declarations."""
        if self._ffi is None:
            if sys.byteorder != "little":
                raise TghwError("binary layouts need a little-endian host")
            import cffi

            ffi = cffi.FFI()
            ffi.cdef(self._cdef, packed=self._packed)
            self._ffi = ffi
        return self._ffi

    def sizeof(self, ctype: str) -> int:
        return int(self.ffi.sizeof(ctype))

    def offsetof(self, ctype: str, *path: str | int) -> int:
        return int(self.ffi.offsetof(ctype, *path))

    def parse(self, ctype: str, data: bytes | bytearray | memoryview, offset: int = 0, *, what: str = "") -> Any:
        """A copy of the structure at `offset`. Raises ShortData when the data ends too early."""
        size = self.sizeof(ctype)
        if offset < 0 or offset + size > len(data):
            raise ShortData(f"{what or ctype} needs {size} bytes at offset {offset:#x}", read=f"{len(data)} bytes")
        instance = self.ffi.new(f"{ctype} *")
        self.ffi.memmove(instance, bytes(data[offset : offset + size]), size)
        return _Owned(instance)

    def new(self, ctype: str, **values: Any) -> _Owned:
        """A zeroed structure with some members set."""
        instance = self.ffi.new(f"{ctype} *")
        for name, value in values.items():
            setattr(instance, name, value)
        return _Owned(instance)

    def pack(self, ctype: str, **values: Any) -> bytes:
        """The bytes of a zeroed structure with some members set."""
        return self.bytes(self.new(ctype, **values))

    def bytes(self, struct: _Owned) -> bytes:
        instance = object.__getattribute__(struct, "_instance")
        return bytes(self.ffi.buffer(instance))


class _Owned:
    """A structure together with the memory it lives in; members are read and set as attributes."""

    __slots__ = ("_instance",)

    def __init__(self, instance: Any) -> None:
        object.__setattr__(self, "_instance", instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_instance"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_instance"), name, value)
