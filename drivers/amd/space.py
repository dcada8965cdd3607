"""The register space of an AMD GPU and its VRAM as the host reaches them: direct windows, and index/data register pairs for what
lies beyond them.

Sources: public amdgpu headers (nbio_4_3_0, bif_bx): RSMU_INDEX/DATA, PCIE_INDEX2/DATA2, MM_INDEX/DATA.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from hw.clock import HOST_CLOCK, Clock
from hw.errors import OutOfWindow
from hw.mmio import BytesLike, Mmio
from hw.regs import RegisterSpace

log = logging.getLogger(__name__)

MEMSIZE = 0xDE3
"""dword index of RCC_CONFIG_MEMSIZE, MiB; readable before anything is known"""

MM_INDEX = 0x00
MM_DATA = 0x01
MM_INDEX_HI = 0x06
MM_APERTURE_MEMORY = 1 << 31
"""bit 31 of MM_INDEX: the pair reaches memory, not registers; bits 30:0 hold the address, MM_INDEX_HI its bits 31 and up"""
MM_LOW_BITS = 31

PCIE_INDEX2 = 0x0E
PCIE_DATA2 = 0x0F
PCIE_INDEX2_HI = 0x11
AID_SHIFT = 32
AID_REMOTE = 1 << 34
"""set for every AID but the first"""

RSMU_INDEX = 0x14
RSMU_DATA = 0x15
"""where every known card has the pair"""


class AmdSpace(RegisterSpace):
    """Dword-indexed registers. What the register BAR does not reach goes through the RSMU index/data pair."""

    def __init__(self, window: Mmio, clock: Clock = HOST_CLOCK, guard: AbstractContextManager[Any] | None = None) -> None:
        """guard: held while an index register and its data register belong together (PciDevice.guard)."""
        super().__init__(window, clock)
        self.direct = window.size >> 2
        """number of registers that the BAR reaches"""
        self._read32 = window.read32
        self._write32 = window.write32
        self.rsmu_index = RSMU_INDEX
        self.rsmu_data = RSMU_DATA
        """places of the pair; the driver corrects them once the card has told its bases"""
        self._lock = guard or threading.Lock()

    def read(self, index: int) -> int:
        if index < self.direct:
            return self._read32(index << 2)
        with self._lock:
            self._write32(self.rsmu_index << 2, index << 2)
            return self._read32(self.rsmu_data << 2)

    def reader(self, index: int) -> Callable[[], int]:
        return partial(self._read32, index << 2) if index < self.direct else partial(self.read, index)

    def write(self, index: int, value: int) -> None:
        if index < self.direct:
            self._write32(index << 2, value)
            return
        with self._lock:
            self._write32(self.rsmu_index << 2, index << 2)
            self._write32(self.rsmu_data << 2, value)

    def read_aid(self, aid: int, index: int) -> int:
        """A register of another die of the package, through PCIE_INDEX2."""
        with self._lock:
            high = self._select_aid(aid, index)
            value = self._read32(PCIE_DATA2 << 2)
            if high:
                self._write32(PCIE_INDEX2_HI << 2, 0)
            return value

    def write_aid(self, aid: int, index: int, value: int) -> None:
        """Write a register of another die of the package, through PCIE_INDEX2."""
        with self._lock:
            high = self._select_aid(aid, index)
            self._write32(PCIE_DATA2 << 2, value)
            if high:
                self._write32(PCIE_INDEX2_HI << 2, 0)

    def _select_aid(self, aid: int, index: int) -> int:
        address = index << 2
        if aid:
            address |= (aid & 3) << AID_SHIFT | AID_REMOTE
        self._write32(PCIE_INDEX2 << 2, address & 0xFFFFFFFF)
        high = address >> 32 & 0xFF
        if high:
            self._write32(PCIE_INDEX2_HI << 2, high)
        return high

    def memory_read(self, address: int, dwords: int) -> list[int]:
        """Consecutive dwords of VRAM through MM_INDEX: two or three accesses each."""
        values = []
        with self._lock:
            high = None
            for position in range(dwords):
                high = self._select_memory(address + 4 * position, high)
                values.append(self._read32(MM_DATA << 2))
        return values

    def memory_write(self, address: int, values: list[int]) -> None:
        """Consecutive dwords to VRAM through MM_INDEX."""
        with self._lock:
            high = None
            for position, value in enumerate(values):
                high = self._select_memory(address + 4 * position, high)
                self._write32(MM_DATA << 2, value)

    def _select_memory(self, address: int, selected_high: int | None) -> int:
        high = address >> MM_LOW_BITS
        if high != selected_high:
            self._write32(MM_INDEX_HI << 2, high)
        self._write32(MM_INDEX << 2, address & (1 << MM_LOW_BITS) - 1 | MM_APERTURE_MEMORY)
        return high


class Vram:
    """The GPU's memory by offset: through BAR0 where it is visible, through MM_INDEX beyond."""

    def __init__(self, window: Mmio, space: AmdSpace, size: int) -> None:
        self.window = window
        self.space = space
        self.size = size
        self.visible = min(window.size, size)
        """bytes from the start that BAR0 shows"""

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise OutOfWindow(f"access of {size:#x} bytes at {offset:#x} outside the {self.size:#x} bytes of VRAM")

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of VRAM. Raises OutOfWindow."""
        self._check(offset, size)
        log.debug("read  %#x bytes of VRAM at %#x", size, offset)
        seen = max(0, min(size, self.visible - offset))
        data = self.window.read(offset, seen) if seen else b""
        return data if seen == size else data + self._read_hidden(offset + seen, size - seen)

    def write(self, offset: int, data: BytesLike) -> None:
        """Write bytes of VRAM; the GPU sees them after a flush of the HDP. Raises OutOfWindow."""
        size = len(data)
        self._check(offset, size)
        log.debug("write %#x bytes of VRAM at %#x", size, offset)
        seen = max(0, min(size, self.visible - offset))
        if seen:
            self.window.write(offset, data if seen == size else data[:seen])
        if seen != size:
            self._write_hidden(offset + seen, bytes(data[seen:]))

    def fill(self, offset: int, size: int, byte: int = 0) -> None:
        """Set a range to one byte value."""
        self._check(offset, size)
        seen = max(0, min(size, self.visible - offset))
        if seen:
            self.window.fill(offset, seen, byte)
        if seen != size:
            self._write_hidden(offset + seen, bytes([byte]) * (size - seen))

    def view(self, offset: int, size: int) -> Mmio | None:
        """A window onto a visible range, or None when BAR0 does not show all of it."""
        self._check(offset, size)
        return self.window.view(offset, size) if offset + size <= self.visible else None

    def _read_hidden(self, offset: int, size: int) -> bytes:
        start = offset & ~3
        words = self.space.memory_read(start, (offset + size - start + 3) // 4)
        data = b"".join(word.to_bytes(4, "little") for word in words)
        return data[offset - start : offset - start + size]

    def _write_hidden(self, offset: int, data: bytes) -> None:
        start = offset & ~3
        end = offset + len(data) + 3 & ~3
        before = self._read_hidden(start, offset - start) if offset != start else b""
        after = self._read_hidden(offset + len(data), end - offset - len(data)) if end != offset + len(data) else b""
        whole = before + data + after
        self.space.memory_write(start, [int.from_bytes(whole[place : place + 4], "little") for place in range(0, len(whole), 4)])
