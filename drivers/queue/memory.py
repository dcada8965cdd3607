"""Small allocators inside device-visible memory: a fixed division at start, and a ring for kernel arguments."""

from __future__ import annotations

from collections.abc import Callable

from hw.errors import OutOfMemory
from hw.mmio import Mmio


class Slice:
    """A part of device-visible memory: device address, size, CPU window."""

    __slots__ = ("size", "va", "view")

    def __init__(self, va: int, size: int, view: Mmio) -> None:
        self.va = va
        self.size = size
        self.view: Mmio = view


class Carver:
    """Hands out the parts of one block in order, once."""

    def __init__(self, va: int, view: Mmio) -> None:
        self._va = va
        self._view = view
        self._used = 0

    def take(self, size: int, align: int = 0x1000) -> Slice:
        """The next `size` bytes. Raises OutOfMemory."""
        start = -(-self._used // align) * align
        if start + size > self._view.size:
            raise OutOfMemory(f"{size} bytes of a block of {self._view.size} bytes", read=f"{self._used} bytes used")
        self._used = start + size
        return Slice(self._va + start, size, self._view.view(start, size))


ARGUMENT_ALIGN = 64
"""bytes; one cache line, more than the 16 that the kernel ABI asks for"""

SEGMENTS = 4


class ArgumentRing:
    """Memory for kernel arguments, used round and round.

    It is divided into segments. Each remembers the timeline value of the last launch whose arguments lie in it, and is only used
    again once that value was reached, so arguments are never overwritten under a running kernel.
    """

    def __init__(self, memory: Slice, *, last_value: Callable[[], int], wait: Callable[[int], None]) -> None:
        self._memory = memory
        self._write = memory.view.write
        self._segment_size = memory.size // SEGMENTS
        self._markers = [0] * SEGMENTS
        self._segment = 0
        self._at = 0
        self._end = self._segment_size
        self._last_value = last_value
        self._wait = wait

    def put(self, arguments: bytes | bytearray) -> int:
        """Store a block of arguments for the next launch; its device address. Raises OutOfMemory when it is larger than a segment."""
        at = self._at
        after = at + len(arguments)
        if after > self._end:
            at = self._next_segment(len(arguments))
            after = at + len(arguments)
        self._write(at, arguments)
        self._at = after + ARGUMENT_ALIGN - 1 & -ARGUMENT_ALIGN
        return self._memory.va + at

    @property
    def next_va(self) -> int:
        """Where the next block will lie if it fits the current segment."""
        return self._memory.va + self._at

    def reserve(self, size: int) -> None:
        """Make sure that the next block of `size` bytes will lie at next_va."""
        if self._at + size > self._end:
            self._at = self._next_segment(size)

    def forget(self) -> None:
        """All work is done, or the timeline started again."""
        self._markers = [0] * SEGMENTS

    def _next_segment(self, size: int) -> int:
        if size > self._segment_size:
            raise OutOfMemory(f"{size} bytes of kernel arguments", read=f"at most {self._segment_size} bytes", remedy="pass large data in a buffer")
        self._markers[self._segment] = self._last_value()
        following = (self._segment + 1) % SEGMENTS
        if self._markers[following]:
            self._wait(self._markers[following])
        self._segment = following
        self._end = (following + 1) * self._segment_size
        return following * self._segment_size
