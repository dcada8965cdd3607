"""The bridge's SRAM as the PCIe side sees it: 512 KiB of data and a few queue pages. It is all the "host memory" the GPU has.

Ranges measured with a GPU on stock firmware, plus the completion page, which working drivers let the GPU write.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import cache

from hw.pci.device import DMA_PAGE
from mocks.memory import SparseMemory

log = logging.getLogger(__name__)

DATA = 0x0020_0000
DATA_SIZE = 512 << 10
ADMIN_PAGE = 0x0080_0000
QUEUE_PAGE = 0x0082_0000
COMPLETION_PAGE = 0x0082_2000
PAGES = (ADMIN_PAGE, 0x0080_8000, QUEUE_PAGE, COMPLETION_PAGE, 0x0082_8000)
LOWEST, HIGHEST = DATA, PAGES[-1] + DMA_PAGE - 1


class Sram:
    """Memory of the bridge by PCIe address. It is a `mocks.pci.DmaTarget` for the functions behind the bridge."""

    def __init__(self, seed: int) -> None:
        self._ranges = [(DATA, DATA_SIZE)] + [(page, DMA_PAGE) for page in PAGES]
        self._memory = SparseMemory(sum(size for _, size in self._ranges))
        self._starts: dict[int, int] = {}
        offset = 0
        for start, size in self._ranges:
            for page in range(start, start + size, DMA_PAGE):
                self._starts[page] = self._memory.address + offset
                offset += DMA_PAGE
        self.window = self._memory.view(0, self._memory.size, "SRAM of the bridge")
        self.window.write(0, _noise(seed, self._memory.size))
        self.errors: list[tuple[str, int, int]] = []
        """accesses of devices that nobody answered: ("read" or "write", PCIe address, bytes)"""
        self.blocked = False
        """the link is down, or a bridge on the way claims these addresses for the bus below: nothing gets up here"""
        self.on_completion: Callable[[], None] = lambda: None
        """a device wrote into the completion page"""

    # --- the chip's own side ---

    def offset(self, address: int) -> int:
        """Where a PCIe address lies in `window`."""
        place = self._starts[address & -DMA_PAGE]
        return place - self._memory.address + (address & DMA_PAGE - 1)

    def read(self, address: int, size: int) -> bytes:
        return self.window.read(self.offset(address), size)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.window.write(self.offset(address), bytes(data))

    # --- accesses of PCIe devices (DmaTarget) ---

    def host_pointer(self, address: int, write: bool = False) -> tuple[int, int] | None:
        place = None if self.blocked else self._starts.get(address & -DMA_PAGE)
        if place is None:
            return None
        if write and address & -DMA_PAGE == COMPLETION_PAGE:
            self.on_completion()
        inside = address & DMA_PAGE - 1
        return place + inside, DMA_PAGE - inside

    def dma_read(self, address: int, size: int) -> bytes:
        parts = []
        for start, length in _pages(address, size):
            if self.blocked or start & -DMA_PAGE not in self._starts:
                self._unanswered("read", start, length)
                parts.append(b"\xff" * length)
            else:
                parts.append(self.read(start, length))
        return b"".join(parts)

    def dma_write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        raw = bytes(data)
        for start, length in _pages(address, len(raw)):
            if self.blocked or start & -DMA_PAGE not in self._starts:
                self._unanswered("write", start, length)
                continue
            if start & -DMA_PAGE == COMPLETION_PAGE:
                self.on_completion()
            self.write(start, raw[start - address : start - address + length])

    def _unanswered(self, kind: str, address: int, size: int) -> None:
        self.errors.append((kind, address, size))
        log.warning("%s of %d bytes at PCIe address %#x by the GPU: no SRAM of the bridge there", kind, size, address)


@cache
def _noise(seed: int, size: int) -> bytes:
    """What is in it at power-on."""
    return random.Random(seed).randbytes(size)


def _pages(address: int, size: int) -> list[tuple[int, int]]:
    """A range cut at page boundaries."""
    pieces = []
    while size > 0:
        length = min(size, DMA_PAGE - (address & DMA_PAGE - 1))
        pieces.append((address, length))
        address += length
        size -= length
    return pieces
