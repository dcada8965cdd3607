"""The queue memory of one GPU and its two hardware rings: PM4 (compute) and SDMA (copies)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drivers.queue.memory import Carver, Slice
from drivers.queue.ring import ByteRing, DwordRing
from hw.errors import OutOfMemory

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

COMPUTE_RING_BYTES = 1 << 20
SDMA_RING_BYTES = 256 << 10
EOP_BYTES = 0x1000
"""end-of-pipe events of the compute ring; without it RELEASE_MEM faults at address 0"""
POINTERS_BYTES = 0x1000
READ_POINTER = 0x80
WRITE_POINTER = 0x38
"""places in a queue's part of the pointer page, as in an AQL queue descriptor"""
SDMA_POINTERS = 0x100
"""where the SDMA ring's part begins"""
ARGUMENT_BYTES = 1 << 20
STAMPS = 4096
"""launches whose time stamps are kept"""
STAMP_BYTES = 16
SIGNAL_BYTES = 0x1000
STAGING_BYTES = 2 << 20
STAGING_BUFFERS = 4
BLOCK_BYTES = COMPUTE_RING_BYTES + SDMA_RING_BYTES + POINTERS_BYTES + SIGNAL_BYTES + ARGUMENT_BYTES + STAMPS * STAMP_BYTES

DOORBELL_BYTES = 8


class Rings:
    """Both rings and the memory around them, in one block: one mapping, few page-table writes.

    The block is host memory. Behind a bridge it is video memory instead, reached through BAR0, and has no staging buffers (bridge.py).
    """

    def __init__(self, dev: AmdDevice) -> None:
        self._dev = dev
        staging = STAGING_BUFFERS if dev.pci.transfer_buffer is None else 0
        self._block = dev.memory.alloc(BLOCK_BYTES + staging * STAGING_BYTES, host=True, uncached=True, zero=False)
        self._eop = dev.memory.alloc(EOP_BYTES)
        view = self._block.view
        if view is None:
            raise OutOfMemory("queue memory that the CPU reaches")
        carver = Carver(self._block.va, view)
        self._compute_memory = carver.take(COMPUTE_RING_BYTES)
        self._sdma_memory = carver.take(SDMA_RING_BYTES)
        self._pointers = carver.take(POINTERS_BYTES)
        self.signal_page = carver.take(SIGNAL_BYTES)
        self.arguments = carver.take(ARGUMENT_BYTES)
        self.stamps = carver.take(STAMPS * STAMP_BYTES)
        self.staging: list[Slice] = [carver.take(STAGING_BYTES) for _ in range(staging)]
        self._doorbells = {"compute": -1, "sdma": -1}
        """64-bit slots"""
        self.compute = DwordRing(
            self._compute_memory.view,
            name="compute ring",
            read_pointer=self._reader(READ_POINTER),
            write_pointer=self._writer(WRITE_POINTER),
            flush=self._flush,
            doorbell=self._ringer("compute"),
            clock=dev.clock,
        )
        self.sdma = ByteRing(
            self._sdma_memory.view,
            name="SDMA ring",
            read_pointer=self._reader(SDMA_POINTERS + READ_POINTER),
            write_pointer=self._writer(SDMA_POINTERS + WRITE_POINTER),
            flush=self._flush,
            doorbell=self._ringer("sdma"),
            clock=dev.clock,
        )

    def start(self) -> None:
        """Set both hardware queues up on empty rings."""
        self._pointers.view.fill(0, POINTERS_BYTES)
        self.start_compute()
        self.start_sdma()

    def start_compute(self) -> None:
        self._pointers.view.write64(READ_POINTER, 0)
        self.compute.reset()
        va = self._pointers.va
        self._doorbells["compute"] = self._dev.setup_compute_ring(
            self._compute_memory.va, COMPUTE_RING_BYTES, va + READ_POINTER, va + WRITE_POINTER, self._eop.va, EOP_BYTES
        )

    def start_sdma(self) -> None:
        self._pointers.view.write64(SDMA_POINTERS + READ_POINTER, 0)
        self.sdma.reset()
        if not self._dev.pci.local:
            self._flush()  # the engine polls its write pointer, which lies behind the HDP
        va = self._pointers.va + SDMA_POINTERS
        self._doorbells["sdma"] = self._dev.setup_sdma_ring(self._sdma_memory.va, SDMA_RING_BYTES, va + READ_POINTER, va + WRITE_POINTER)

    def free(self) -> None:
        """Give the memory back; the queues must have been stopped."""
        self._dev.memory.free(self._block)
        self._dev.memory.free(self._eop)

    def _reader(self, offset: int) -> Callable[[], int]:
        """Engines report at least 32 bits, PM4 modulo the ring; more is not needed to find the distance to the write pointer."""
        read = self._pointers.view.read32
        return lambda: read(offset)

    def _writer(self, offset: int) -> Callable[[int], None]:
        """Stores a write pointer. Where a store is a round trip, only the half that changes."""
        view = self._pointers.view
        write64, write32 = view.write64, view.write32
        if view.cost == "local":
            return lambda value: write64(offset, value)
        stored_high = -1

        def write(value: int) -> None:
            nonlocal stored_high
            if value >> 32 != stored_high:
                stored_high = value >> 32
                write64(offset, value)
            else:
                write32(offset, value & 0xFFFFFFFF)

        return write

    def bus_offset(self, place: Slice, offset: int = 0) -> int:
        """Offset in video memory of a part of the block, which is one piece there. Only behind a bridge."""
        return self._block.segments[0][0] + place.va - self._block.va + offset

    def _flush(self) -> None:
        """What was stored in host memory, and through the BAR, is visible before the doorbell that follows."""
        self._dev.pci.fence()
        self._dev.flush_hdp()

    def _ringer(self, queue: str) -> Callable[[int], None]:
        return lambda value: self._dev.doorbells.write64(DOORBELL_BYTES * self._doorbells[queue], value)
