"""Copies between host and device memory through staging buffers that both reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from drivers.queue.memory import Slice
from hw.mmio import BytesLike


class CopyEngine(Protocol):
    """What the pipeline needs of a device: one ordered copy at a time, and waiting for one."""

    def submit_copy(self, destination: int, source: int, size: int) -> int:
        """Queue a copy after all work submitted so far; the timeline value that it signals."""

    def wait_value(self, value: int) -> None:
        """Wait until the timeline reached the value. Raises the device's fault or hang."""


class Copies(Protocol):
    """A way to copy between host and device."""

    def to_device(self, destination: int, data: BytesLike) -> None:
        """Copy host data to a device address; work submitted later sees it."""

    def from_device(self, source: int, size: int, into: bytearray | memoryview) -> object:
        """The bytes at a device address, after all work submitted so far."""

    def forget(self) -> None:
        """All copies are done, or the timeline started again."""


class CopyPipeline:
    """Staging buffers used in turn, each with the timeline value of the last copy that uses it.

    Host to device is asynchronous: the call returns when the data lies in staging memory and its copies are queued; while the device
    copies one chunk, the host fills the next. Device to host returns when the data is there; the host reads one chunk while the
    device fills the next.
    """

    def __init__(self, engine: CopyEngine, staging: Sequence[Slice]) -> None:
        if len(staging) < 2:
            raise ValueError("double buffering needs two staging buffers")
        self._engine = engine
        self._staging = staging
        self._chunk = staging[0].size
        self._markers = [0] * len(staging)
        self._next = 0

    def forget(self) -> None:
        """All copies are done, or the timeline started again."""
        self._markers = [0] * len(self._staging)

    def to_device(self, destination: int, data: BytesLike) -> None:
        """Copy host data to a device address."""
        if not len(data):
            return
        source = memoryview(data).cast("B")
        for start in range(0, len(source), self._chunk):
            part = source[start : start + self._chunk]
            index = self._take()
            buffer = self._staging[index]
            buffer.view.write(0, part)
            self._markers[index] = self._engine.submit_copy(destination + start, buffer.va, len(part))

    def from_device(self, source: int, size: int, into: bytearray | memoryview | None = None) -> bytearray | memoryview:
        """The bytes at a device address, after all work submitted so far."""
        result = bytearray(size) if into is None else into
        target = memoryview(result).cast("B")
        pending: list[tuple[int, int, int]] = []
        ahead = len(self._staging) - 1

        def finish() -> None:
            index, start, length = pending.pop(0)
            self._engine.wait_value(self._markers[index])
            target[start : start + length] = self._staging[index].view.read(0, length)

        for start in range(0, size, self._chunk):
            length = min(self._chunk, size - start)
            index = self._take()
            self._markers[index] = self._engine.submit_copy(self._staging[index].va, source + start, length)
            pending.append((index, start, length))
            if len(pending) >= ahead:
                finish()
        while pending:
            finish()
        return result

    def _take(self) -> int:
        """The next staging buffer, once its last copy is done."""
        index = self._next
        self._next = (index + 1) % len(self._staging)
        if self._markers[index]:
            self._engine.wait_value(self._markers[index])
        return index
