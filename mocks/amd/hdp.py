"""HDP: the path by which the host reaches the GPU's memory, with its write buffer.

What the host writes through BAR0 is in memory for the host at once, for the GPU and its firmware engines only after a flush: a write
to the flush register (wherever REMAP_HDP_MEM_FLUSH_CNTL puts it in BAR5) or to GPU_HDP_FLUSH_REQ. A strict machine keeps every write
back until then. Otherwise writes go through at once, and a device that reads what was not flushed is counted in `missed_flushes`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hw.mmio import BytesLike
from mocks.amd.block import Block, Reg, on_read, on_write, stored

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT


class Hdp(Block):
    """Host data path."""

    key = "hdp"
    REGISTERS = (
        stored("HDP", "HDP_MEM_POWER_CTRL"),
        stored("NBIO", "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", reset=0x7F000),
        stored("NBIO", "BIF_BX_PF0_GPU_HDP_FLUSH_REQ", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE", mask=0xFFFFFFFF),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.flushes = 0
        self.missed_flushes = 0
        """reads by the device of pages that the host had written and not flushed"""
        self._late: dict[int, list[tuple[int, bytes]]] = {}
        """page number -> writes not yet in memory, in order (strict)"""
        self._unflushed: set[int] = set()
        """pages written since the last flush"""

    def reset(self) -> None:
        super().reset()
        self._late.clear()
        self._unflushed.clear()

    # --- the host's side ---

    def host_read(self, offset: int, size: int) -> bytes:
        """What the host reads through BAR0. Beyond the memory that there is: all ones."""
        size_inside = max(0, min(size, self.gpu.vram_size - offset))
        data: bytes = self.gpu.vram.read(offset, size_inside) if size_inside else b""
        if self._late:
            data = self._with_late_writes(offset, data)
        return data + b"\xff" * (size - size_inside)

    def host_write(self, offset: int, data: BytesLike) -> None:
        """What the host writes through BAR0."""
        size = max(0, min(len(data), self.gpu.vram_size - offset))
        if size == 0:
            return
        first, last = offset >> PAGE_SHIFT, offset + size - 1 >> PAGE_SHIFT
        if first == last:
            self._unflushed.add(first)
        else:
            self._unflushed.update(range(first, last + 1))
        if not self.gpu.strict:
            self.gpu.vram.write(offset, data if size == len(data) else bytes(data)[:size])
            return
        raw = bytes(data)[:size]
        for page in range(first, last + 1):
            start = max(offset, page << PAGE_SHIFT)
            end = min(offset + size, page + 1 << PAGE_SHIFT)
            self._late.setdefault(page, []).append((start, raw[start - offset : end - offset]))

    def _with_late_writes(self, offset: int, data: bytes) -> bytes:
        result = bytearray(data)
        for page in range(offset >> PAGE_SHIFT, offset + len(data) - 1 + PAGE >> PAGE_SHIFT):
            for start, written in self._late.get(page, ()):
                low = max(start, offset)
                high = min(start + len(written), offset + len(data))
                if low < high:
                    result[low - offset : high - offset] = written[low - start : high - start]
        return bytes(result)

    # --- flushing ---

    def flush(self) -> None:
        """Everything the host wrote is in memory now."""
        self.flushes += 1
        self._unflushed.clear()
        if self._late:
            late, self._late = self._late, {}
            for writes in late.values():
                for start, written in writes:
                    self.gpu.vram.write(start, written)

    def note_device_read(self, offset: int, size: int) -> None:
        """Engines call this before they read VRAM; it counts what a flush was missing for."""
        if self._unflushed and any(page in self._unflushed for page in range(offset >> PAGE_SHIFT, offset + max(size, 1) - 1 + PAGE >> PAGE_SHIFT)):
            self.missed_flushes += 1
            log.warning("device reads VRAM %#x (%d bytes), written by the host and not flushed", offset, size)

    def catches(self, index: int) -> bool:
        """A write to a dword that no block declares: is it the place where the flush registers were mapped? Then it flushes."""
        target = self.reg("NBIO", "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL").value >> 2
        if target == 0 or index not in (target, target + 1):
            return False
        if index == target:
            self.flush()
        return True

    @on_write("NBIO", "BIF_BX_PF0_GPU_HDP_FLUSH_REQ")
    def request(self, value: int, reg: Reg) -> None:
        self.flush()
        self.reg("NBIO", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE").value = value

    @on_read("NBIO", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE")
    def done(self, reg: Reg) -> int:
        return reg.value


def blocks(gpu: Gpu) -> list[Block]:
    return [Hdp(gpu)]
