"""The SRAM bulk engine (NVMe/MSC DMA block): moves USB bulk data to or from 16 KiB slots of the SRAM without the 8051.

Armed by the write to 0xC429. Into the SRAM it takes data at once; the last packet is visible to PCIe a moment after the USB transfer
has ended. Out of the SRAM it holds everything back until a device writes into the completion page, and only a write after arming counts.
While it runs it uses the lower half of the queue page for its own entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hw.errors import NotModelled
from mocks.asm24.sram import DATA, DATA_SIZE, QUEUE_PAGE, Sram
from mocks.asm24.xdata import Xdata

if TYPE_CHECKING:
    from mocks.clock import Scheduler
    from mocks.faults import FaultPlan

log = logging.getLogger(__name__)

SLOT = 0x4000
SLOTS = DATA_SIZE // SLOT
TO_SRAM, FROM_SRAM = 0x03, 0x02
SLOT_ENABLE = 0x80
CHUNK = 0x4000
"""bytes moved per step of the simulation"""
ENTRY = 64
ENTRIES = 0x800 // ENTRY


class BulkEngine:
    """At most one transfer at a time."""

    def __init__(self, xdata: Xdata, sram: Sram, scheduler: Scheduler, profile: dict[str, Any], faults: FaultPlan, reinitialises: bool, ready: Callable[[], None]) -> None:
        self._memory = xdata.memory
        self._sram = sram
        self._scheduler = scheduler
        self._rate: float = profile["sram_rate"]
        self.wire_rate: Callable[[], float] = lambda: float("inf")
        """what USB brings or takes (bytes/s)"""
        self._settle: float = profile["sram_settle"]
        self._faults = faults
        self._reinitialises = reinitialises
        """a second arming before the first transfer is over starts clean (builds from July 2026 on)"""
        self._ready = ready
        self.direction = 0
        self.done = self.total = 0
        self._first = self._size = 0
        self.released = False
        self.stuck = False
        """armed over an unfinished transfer on an old build: nothing moves until the endpoints are cleared"""
        self._entries = 0
        sram.on_completion = self._completion
        xdata.hook("SLOT_SEL", None, self._arm)

    def reset(self) -> None:
        self.direction = 0
        self.released = self.stuck = False

    @property
    def left(self) -> int:
        """Bytes of the armed transfer that have not gone by."""
        return self.total - self.done if self.direction else 0

    def _arm(self, _: int, slot: int) -> None:
        memory = self._memory
        first, end = memory[0xC414], memory[0xC415]
        sectors = memory[0xC426] << 8 | memory[0xC427]
        sector = memory[0xC422] << 8 | memory[0xC423]
        direction = memory[0xC412]
        if direction not in (TO_SRAM, FROM_SRAM) or not first & SLOT_ENABLE or first & 0x7F != slot or sector != 512:
            raise NotModelled(f"SRAM engine armed with control {direction:#x}, slots {first:#x} to {end:#x}, slot {slot}, sectors of {sector} bytes")
        if not slot < end <= SLOTS:
            raise NotModelled(f"SRAM engine armed for slots {slot} to {end}", means=f"the SRAM has {SLOTS} slots of 16 KiB")
        if self.direction and not self._reinitialises:
            self.stuck = True
            log.info("SRAM engine armed again before its transfer was over: stuck")
            return
        self.direction = direction
        self.done, self.total = 0, sectors * 512
        self._first, self._size = slot * SLOT, (end - slot) * SLOT
        self.released = False
        if self.total == 0:
            self.direction = 0
        self._ready()

    def _completion(self) -> None:
        if self.direction == FROM_SRAM and not self.released and not self._faults.active("completion-lost"):
            self.released = True
            self._ready()

    def take(self, data: memoryview) -> tuple[int, float]:
        """Data from USB: (bytes taken, s it takes). 0: not now."""
        if self.stuck or self.direction != TO_SRAM:
            return 0, 0.0
        length = min(len(data), self.left, CHUNK, self._room())
        address = DATA + self._first + self.done % self._size
        last = bytes(data[max(0, length - 1024) : length])
        self._sram.write(address, data[: length - len(last)])
        seconds = length / min(self._rate, self.wire_rate())
        self._scheduler.call_later(seconds + self._settle, lambda: self._sram.write(address + length - len(last), last), "SRAM write")
        self._advance(length)
        return length, seconds

    def give(self, room: int) -> tuple[bytes | None, float]:
        """Data for USB: (bytes or None for not now, s it takes)."""
        if self.stuck or self.direction != FROM_SRAM or not self.released:
            return None, 0.0
        length = min(max(room, 512), self.left, CHUNK, self._room())
        data = self._sram.read(DATA + self._first + self.done % self._size, length)
        self._advance(length)
        return data, length / self._rate

    def _room(self) -> int:
        """Bytes to the end of the armed slots, where the engine starts over."""
        return self._size - self.done % self._size

    def _advance(self, length: int) -> None:
        entry = self._entries % ENTRIES
        self._entries += 1
        self._sram.write(QUEUE_PAGE + ENTRY * entry, bytes([self.direction - 1, 0]) + self._entries.to_bytes(2, "little") + b"\x5a" * (ENTRY - 4))
        self.done += length
        if self.done == self.total:
            self.direction = 0
