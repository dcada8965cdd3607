"""Doorbells: BAR2 and the way of a write to it to the engine that listens there.

Three gates in a row: the doorbell aperture must be on, a routing entry must claim the index, and the engine behind must have a
queue with that index. A write that does not get through is gone without a sign; `ignored` says why, for the people who debug.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from hw.errors import NotModelled
from mocks.amd.block import Block
from mocks.pci import BarModel

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

ENTRIES = 16
ENTRY_GRAPHICS = (0, 3)
"""routing entries of the graphics engine; with size 0 they take what no other entry claims"""
ENTRY_IH = 1
ENTRY_SDMA = 2
NO_64_BIT = 1 << 25
REMEMBERED = 64


class Doorbells(Block):
    """Routing of doorbell writes."""

    key = "doorbell"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.ignored: deque[tuple[int, int, str]] = deque(maxlen=REMEMBERED)
        """(byte offset, value, reason) of writes that reached nobody"""
        gpu.function.slots[2].model = DoorbellBar(self)
        self._first_entry = gpu.index("NBIO", "S2A_DOORBELL_ENTRY_0_CTRL")
        self._aperture = gpu.index("NBIO", "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN")

    def ring(self, offset: int, value: int, width: int) -> None:
        """One write to BAR2: byte offset, value, bytes."""
        regs = self.gpu.regs
        if not regs[self._aperture] & 1:
            self._ignore(offset, value, "the doorbell aperture is off")
            return
        if width not in (4, 8) or offset % width:
            self._ignore(offset, value, f"a write of {width} bytes")
            return
        index = offset >> 2
        entry = self._claims(index)
        if entry is None:
            self._ignore(offset, value, "no routing entry claims the index")
            return
        if regs[self._first_entry + entry] & NO_64_BIT:
            value &= 0xFFFFFFFF
        if entry in ENTRY_GRAPHICS:
            reason = self.gpu.blocks["mec"].doorbell(index, value)  # type: ignore[attr-defined]
        elif entry == ENTRY_SDMA:
            reason = self.gpu.blocks["sdma"].doorbell(index, value)  # type: ignore[attr-defined]
        elif entry == ENTRY_IH:
            reason = self.gpu.ih.doorbell(index, value)
        else:
            raise NotModelled(f"doorbell {index:#x} routed by S2A_DOORBELL_ENTRY_{entry}_CTRL")
        if reason:
            self._ignore(offset, value, reason)

    def _claims(self, index: int) -> int | None:
        """The routing entry that takes a dword index."""
        default = None
        regs = self.gpu.regs
        for entry in range(ENTRIES):
            control = regs[self._first_entry + entry]
            if not control & 1:
                continue
            first, size = control >> 7 & 0x3FF, control >> 17 & 0xFF
            if first <= index < first + size:
                return entry
            if size == 0 and entry == ENTRY_GRAPHICS[0]:
                default = entry
        return default

    def _ignore(self, offset: int, value: int, reason: str) -> None:
        self.ignored.append((offset, value, reason))
        log.info("doorbell write of %#x at byte %#x: %s", value, offset, reason)


class DoorbellBar(BarModel):
    """BAR2. Doorbells are written, never read."""

    name = "BAR2 (doorbells)"

    def __init__(self, doorbells: Doorbells) -> None:
        self._doorbells = doorbells

    def read(self, offset: int, width: int) -> int:
        raise NotModelled(f"read of doorbell at byte {offset:#x}", means="doorbells are written, never read")

    def write(self, offset: int, value: int, width: int) -> None:
        self._doorbells.ring(offset, value, width)


def blocks(gpu: Gpu) -> list[Block]:
    return [Doorbells(gpu)]
