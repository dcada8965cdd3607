"""Copies between the host and a GPU behind a bridge with memory of its own: no host memory is shared, VRAM is reached one dword at a time.

The host moves data to and from the bridge's memory in long transfers, the GPU's copy engine between that and VRAM. Commands for all of
a copy are queued first; the engine then waits for the data.

Host to device: the bridge's memory is filled whole, in parts that each end in a mark. The engine waits for a mark, copies its part while
the next ones still arrive, and counts the whole fill as drained. Before it is filled again that count is awaited.
Device to host: the engine fills the memory and releases it; for all fills but the first it waits for a flag of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivers.amd.sdma_packets import CopyQueue
from hw.buffer import TransferBuffer
from hw.errors import TghwError, WaitTimeout
from hw.mmio import BytesLike
from hw.poll import poll

if TYPE_CHECKING:
    from drivers.amd.gpu import AmdGpu
    from drivers.amd.memory import MemoryManager

PAGE = 4096
VA_ALIGN = 1 << 20
"""the PSP's boot loader is told addresses in MiB"""

PART = 128 << 10
"""bytes of the bridge's memory that end in one mark"""
MARK_BYTES = 4
MARK = 0x51000000
MARK_MASK = 0xFFFFFF
"""marks are numbered for ever, so that what an earlier copy left behind is never taken for one"""
SAFE_DISTANCE = 1 << 16
"""how far the numbers of a new process are from those of one that died: more than it can have queued"""
INLINE_LIMIT = 1024
"""bytes that go with the commands rather than need one more fill"""
FILLS_A_SUBMISSION = 32

DRAINED = 0
"""place of the count of drained fills among the flags, 32 bits"""
GO = 8
"""place of the byte by which the host lets the engine fill again"""
DRAIN_RATE = 2e9
"""bytes per second, about; for the first pause of a wait"""


@dataclass(frozen=True)
class BridgeMemory:
    """A transfer buffer as the GPU sees it."""

    buffer: TransferBuffer
    va: int
    """of the buffer; a multiple of 1 MiB"""
    flags_va: int
    release_va: int


def map_bridge_memory(memory: MemoryManager, buffer: TransferBuffer) -> BridgeMemory:
    """Make the buffer, its flags and its release word visible to the GPU, in one mapping; possible while booting."""
    pieces = [(buffer.address, buffer.size), (buffer.flags_address & -PAGE, PAGE), (buffer.release_address & -PAGE, PAGE)]
    va = memory.map_bridge(pieces, VA_ALIGN).va
    flags_va = va + buffer.size + buffer.flags_address % PAGE
    release_va = va + buffer.size + PAGE + buffer.release_address % PAGE
    return BridgeMemory(buffer, va, flags_va, release_va)


@dataclass(frozen=True)
class Fill:
    """One fill of the bridge's memory: pieces of (offset in the memory, destination, data, mark), and the image that holds them."""

    parts: list[tuple[int, int, memoryview, int]]

    def image(self, sector: int) -> bytes:
        """What is sent: each part's data, and its mark in the part's last dword."""
        last_place, _, last_data, _ = self.parts[-1]
        image = bytearray(last_place + part_size(len(last_data), sector))
        for place, _, data, mark in self.parts:
            image[place : place + len(data)] = data
            end = place + part_size(len(data), sector)
            image[end - MARK_BYTES : end] = mark.to_bytes(MARK_BYTES, "little")
        return bytes(image)


def part_size(data: int, sector: int) -> int:
    """Bytes of the bridge's memory that so much data takes, its mark included."""
    return min(PART, -(-(data + MARK_BYTES) // sector) * sector)


class BridgeCopies:
    """Copies of one GPU through its bridge."""

    def __init__(self, gpu: AmdGpu, memory: BridgeMemory) -> None:
        self._gpu = gpu
        self._memory = memory
        self._buffer = memory.buffer
        flags = self._buffer.read_flags(0, GO + 1)
        self._drained = int.from_bytes(flags[DRAINED : DRAINED + 4], "little") + SAFE_DISTANCE & 0xFFFFFFFF
        """number of the last fill that was sent"""
        self._mark = self._drained & MARK_MASK
        self._go = flags[GO]
        self._last_copy = 0
        """timeline value of the last copy into the device: once it is reached, its fills are drained"""
        self._fill_limit = self._buffer.send_limit // PART * PART or self._buffer.send_limit

    def forget(self) -> None:
        """The queues were reset, or the timeline started again: nothing is queued any more."""
        self._last_copy = 0

    # --- host to device -----------------------------------------------------------------------------------------------

    def to_device(self, destination: int, data: BytesLike) -> None:
        """Copy host data to a device address, after all work submitted so far. Returns when the data is on its way."""
        source = memoryview(data).cast("B")
        step = FILLS_A_SUBMISSION * self._payload
        for start in range(0, len(source), step):
            self._submit_in(destination + start, source[start : start + step])

    @property
    def _payload(self) -> int:
        """Bytes of data in one whole fill."""
        return self._fill_limit // PART * (PART - MARK_BYTES) if self._fill_limit >= PART else self._fill_limit - MARK_BYTES

    def _submit_in(self, destination: int, data: memoryview) -> None:
        gpu = self._gpu
        timeline = gpu.timeline
        lead = self._lead(destination, len(data))
        before = self._drained
        fills = list(self._fills(destination + lead, data[lead:]))
        queue = CopyQueue(gpu).wait(timeline.signal, timeline.last)
        if lead:
            queue.write_block(destination, bytes(data[:lead]))
        for fill in fills:
            for place, target, part, mark in fill.parts:
                at = self._memory.va + place
                queue.poll_bit(at + part_size(len(part), self._buffer.sector) - MARK_BYTES, mark)
                queue.copy(target, at, len(part))
            self._drained = self._drained + 1 & 0xFFFFFFFF
            queue.fence(self._memory.flags_va + DRAINED, self._drained)
        queue.signal(timeline.signal, timeline.next_value)
        value = gpu.submit_queue(queue, f"copy of {len(data)} bytes to {destination:#x}")
        self._send(fills, before)
        self._last_copy = value

    def _lead(self, destination: int, size: int) -> int:
        """Bytes to put into the commands, when that saves a fill."""
        rest = size % self._payload
        aligned = -(-rest // 4) * 4
        return aligned if size > self._payload and 0 < aligned <= INLINE_LIMIT and destination % 4 == 0 else 0

    def _fills(self, destination: int, data: memoryview) -> Iterator[Fill]:
        """The data cut into parts, and these into fills."""
        size = min(PART, self._fill_limit) - MARK_BYTES
        parts: list[tuple[int, int, memoryview, int]] = []
        for start in range(0, len(data), size):
            if len(parts) * PART >= self._fill_limit:
                yield Fill(parts)
                parts = []
            self._mark = self._mark + 1 & MARK_MASK
            parts.append((len(parts) * PART, destination + start, data[start : start + size], MARK | self._mark))
        if parts:
            yield Fill(parts)

    def _send(self, fills: list[Fill], number: int) -> None:
        """Fill after fill, each once the one before was drained."""
        try:
            for fill in fills:
                image = fill.image(self._buffer.sector)
                self._await_drain(number, len(image))
                self._buffer.send(image)
                self._last_copy = self._gpu.timeline.last
                number = number + 1 & 0xFFFFFFFF
        except WaitTimeout as error:
            raise self._gpu.hung(error) from error
        except TghwError as error:
            self._gpu.interrupted(error)
            raise

    def _await_drain(self, number: int, size: int) -> None:
        """Wait until the engine has emptied fill `number`."""
        timeline = self._gpu.timeline
        if self._last_copy <= timeline.done:
            return
        poll(
            lambda: int.from_bytes(self._buffer.read_flags(DRAINED, 4), "little"),
            lambda seen: seen == number,
            what=f"the copy engine to drain the bridge's memory ({number})",
            within=self._gpu.timeout,
            clock=self._gpu.clock,
        )

    # --- device to host -----------------------------------------------------------------------------------------------

    def from_device(self, source: int, size: int, into: bytearray | memoryview) -> None:
        """The bytes at a device address, after all work submitted so far, which is waited for first."""
        target = memoryview(into).cast("B")
        step = FILLS_A_SUBMISSION * self._buffer.receive_limit
        for start in range(0, size, step):
            self._submit_out(source + start, target[start : start + step])

    def _submit_out(self, source: int, target: memoryview) -> None:
        gpu, buffer = self._gpu, self._buffer
        gpu.wait_value(gpu.timeline.last)  # the transfer over the bridge has a limit of its own, which must not run while others work
        timeline = gpu.timeline
        limit = buffer.receive_limit
        sizes = [min(limit, len(target) - start) for start in range(0, len(target), limit)]
        queue = CopyQueue(gpu).wait(timeline.signal, timeline.last)
        flags, numbers = [], []
        for position, size in enumerate(sizes):
            if position:
                self._go = self._go + 1 & 0xFF
                flags.append(self._go)
                queue.poll_bit(self._memory.flags_va + GO, self._go, 0xFF)
            queue.copy(self._memory.va, source + position * limit, size)
            if position == len(sizes) - 1:
                queue.signal(timeline.signal, timeline.next_value)  # before the release: who has the data knows that the work is done
            if buffer.receive_waits:
                queue.write(self._memory.release_va, 0)
            else:
                self._drained = self._drained + 1 & 0xFFFFFFFF
                numbers.append(self._drained)
                queue.fence(self._memory.flags_va + DRAINED, self._drained)
        try:
            buffer.expect(sizes[0])
            value = gpu.submit_queue(queue, f"copy of {len(target)} bytes from {source:#x}")
            for position, size in enumerate(sizes):
                if position:
                    buffer.expect(size)
                    buffer.write_flag(GO, flags[position - 1])
                if numbers:
                    self._last_copy = value
                    self._await_drain(numbers[position], size)
                target[position * limit : position * limit + size] = buffer.receive(size)
        except WaitTimeout as error:
            raise gpu.hung(error) from error
        except TghwError as error:
            gpu.interrupted(error)
            raise
        timeline.note(value)
