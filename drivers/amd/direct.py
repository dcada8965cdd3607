"""Shortcuts for a GPU whose registers and memory are a round trip away: small copies through BAR0, and one look that tells all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hw.mmio import BytesLike, Mmio, SubWindow

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice
    from drivers.amd.gpu import AmdGpu
    from drivers.amd.memory import Allocation
    from drivers.amd.rings import Rings
    from drivers.queue.timeline import Timeline

WRITE_LIMIT = 2048
READ_LIMIT = 1024
"""bytes; a copy through the copy engine costs about ten transfers, through BAR0 two, at 3.6 and 1.8 MB/s behind an ASM24xx bridge"""


class DirectAccess:
    """Copies of a few bytes by the host itself, where BAR0 shows the memory. The caches of the GPU are emptied at the end of every kernel
    and filled anew after the flush at the start of the next submission, so that it sees what was written in between."""

    def __init__(self, gpu: AmdGpu) -> None:
        self._gpu = gpu

    def write(self, memory: Allocation, offset: int, data: BytesLike) -> bool:
        """Store host data, after all work submitted so far has ended. False: not here, use the copy engine."""
        source = memoryview(data).cast("B")
        if len(source) > WRITE_LIMIT or not self._visible(memory):
            return False
        self._gpu.wait_value(self._gpu.timeline.last)
        done = 0
        for place, size in pieces(memory, offset, len(source)):
            self._gpu.dev.vram_write(place, source[done : done + size])
            done += size
        return True

    def read(self, memory: Allocation, offset: int, into: bytearray) -> bool:
        """Fetch bytes, after all work submitted so far has ended. False: not here."""
        if len(into) > READ_LIMIT or not self._visible(memory):
            return False
        self._gpu.wait_value(self._gpu.timeline.last)
        done = 0
        for place, size in pieces(memory, offset, len(into)):
            into[done : done + size] = self._gpu.dev.vram_read(place, size)
            done += size
        return True

    def _visible(self, memory: Allocation) -> bool:
        return memory.kind.own and all(address + size <= self._gpu.dev.visible_vram for address, size in memory.segments)


def pieces(memory: Allocation, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """(address, bytes) of a part of an allocation."""
    start = 0
    for address, length in memory.segments:
        first, last = max(offset, start), min(offset + size, start + length)
        if first < last:
            yield address + first - start, last - first
        start += length


POINTER = 8
"""place in the timeline's signal: the half of it that is for time stamps, which the timeline has none of"""


class StatusWatch:
    """The first page of signals. The GPU reports its interrupt write pointer beside the timeline's value: one look reads both."""

    def __init__(self, rings: Rings) -> None:
        page = rings.signal_page
        self.va = page.va
        self.view = _Watched(page.view)
        self._place = rings.bus_offset(page)
        self._dev: AmdDevice | None = None

    def follow(self, dev: AmdDevice, timeline: Timeline) -> None:
        """Have the interrupt handler report beside the timeline's present signal."""
        assert isinstance(timeline.signal.va, int)
        offset = timeline.signal.va - self.va
        self.view.write64(offset + POINTER, dev.osssys.IH_RB_WPTR.read())
        dev.ih.report_to(self._place + offset + POINTER)
        self.view.watched = offset
        self._dev = dev

    @property
    def interrupted(self) -> bool:
        """Whether interrupts were waiting at the last look at the timeline."""
        return self._dev is not None and self._dev.ih.waiting(self.view.pointer)


class _Watched(SubWindow):
    def __init__(self, page: Mmio) -> None:
        super().__init__(page, 0, page.size)
        self.watched = -1
        """offset of the timeline's signal"""
        self.pointer = 0
        """interrupt write pointer as last seen"""

    def read64(self, offset: int) -> int:
        if offset != self.watched:
            return super().read64(offset)
        seen = self.read(offset, POINTER + 4)
        self.pointer = int.from_bytes(seen[POINTER:], "little")
        return int.from_bytes(seen[:8], "little")
