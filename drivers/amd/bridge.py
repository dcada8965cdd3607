"""Copies between the host and a GPU behind a bridge with memory of its own: no host memory is shared, VRAM is reached one dword at a time.

The host moves data to and from the bridge's memory in long transfers, the GPU's copy engine between that and VRAM. Commands for all of
a copy are queued first; the engine then waits for the data.

Host to device: the bridge's memory is filled whole, in parts that each end in a mark. The engine waits for a mark, copies its part while
the next ones still arrive, and counts the whole fill as drained. Before it is filled again that count is awaited.
Device to host: the engine fills the memory and releases it; for all fills but the first it waits for a flag of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
FILLS_A_SUBMISSION = 64

DRAINED = 0
"""place of the count of drained fills among the flags, 32 bits"""
GO = 8
"""place of the byte by which the host lets the engine fill again"""
DRAIN_RATE = 2e9
"""bytes per second that the engine takes out of the bridge's memory, about; how long the last part of a fill needs"""

COMMANDS_PLACE = 8 << 10
"""where commands lie in the bridge's memory when they go through it; what the engine fills lies below"""


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
class Part:
    """A part of one fill: `size` bytes of the bridge's memory from `place` on hold data and, in their last dword, the mark."""

    place: int
    size: int
    destination: int
    data: memoryview
    mark: int

    @property
    def mark_place(self) -> int:
        return self.place + self.size - MARK_BYTES


def image_of(fill: list[Part]) -> bytes:
    """What is sent for one fill."""
    image = bytearray(fill[-1].place + fill[-1].size)
    for part in fill:
        image[part.place : part.place + len(part.data)] = part.data
        image[part.mark_place : part.mark_place + MARK_BYTES] = part.mark.to_bytes(MARK_BYTES, "little")
    return bytes(image)


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
        self._part = PART if self._buffer.receive_waits else self._buffer.send_limit
        """bytes of a part; where every command word is dear, one part a fill"""

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
        return self._buffer.send_limit // self._part * (self._part - MARK_BYTES)

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
            for part in fill:
                queue.poll_bit(self._memory.va + part.mark_place, part.mark)
                queue.copy(part.destination, self._memory.va + part.place, len(part.data))
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

    def _fills(self, destination: int, data: memoryview) -> Iterator[list[Part]]:
        """The data cut into parts, and these into fills."""
        step = self._part - MARK_BYTES
        fill: list[Part] = []
        for start in range(0, len(data), step):
            if (len(fill) + 1) * self._part > self._buffer.send_limit:
                yield fill
                fill = []
            piece = data[start : start + step]
            size = min(self._part, self._whole_sectors(len(piece) + MARK_BYTES))
            fill.append(Part(len(fill) * self._part, size, destination + start, piece, self._next_mark()))
        if fill:
            yield fill

    def _next_mark(self) -> int:
        self._mark = self._mark + 1 & MARK_MASK
        return MARK | self._mark

    def _whole_sectors(self, size: int) -> int:
        return -(-size // self._buffer.sector) * self._buffer.sector

    def _send(self, fills: list[list[Part]], number: int) -> None:
        """Fill after fill, each once the one before was drained."""
        try:
            for fill in fills:
                image = image_of(fill)
                self._await_drain(number)
                self._buffer.send(image)
                self._last_copy = self._gpu.timeline.last
                number = number + 1 & 0xFFFFFFFF
        except WaitTimeout as error:
            raise self._gpu.hung(error) from error
        except TghwError as error:
            self._gpu.interrupted(error)
            raise

    def _await_drain(self, number: int) -> None:
        """Wait until the engine has emptied fill `number`."""
        timeline = self._gpu.timeline
        if self._last_copy <= timeline.done:
            return
        poll(
            lambda: int.from_bytes(self._buffer.read_flags(DRAINED, 4), "little"),
            lambda seen: seen == number,
            what=f"the copy engine to drain the bridge's memory ({number})",
            within=self._gpu.timeout,
            typical=self._part / DRAIN_RATE,
            clock=self._gpu.clock,
            patient=True,
        )

    # --- device to host -----------------------------------------------------------------------------------------------

    def from_device(self, source: int, size: int, into: bytearray | memoryview) -> None:
        """The bytes at a device address, after all work submitted so far, which is waited for first."""
        target = memoryview(into).cast("B")
        step = FILLS_A_SUBMISSION * self._buffer.receive_limit
        for start in range(0, size, step):
            self._submit_out(source + start, target[start : start + step])

    def _submit_out(self, source: int, target: memoryview) -> None:
        gpu = self._gpu
        gpu.wait_value(gpu.timeline.last)  # the transfer over the bridge has a limit of its own, which must not run while others work
        limit = self._buffer.receive_limit
        pieces = [target[start : start + limit] for start in range(0, len(target), limit)]
        what = f"copy of {len(target)} bytes from {source:#x}"
        try:
            value = self._released(source, pieces, what) if self._buffer.receive_waits else self._counted(source, pieces, what)
        except WaitTimeout as error:
            raise gpu.hung(error) from error
        except TghwError as error:
            gpu.interrupted(error)
            raise
        gpu.timeline.note(value)

    def _released(self, source: int, pieces: list[memoryview], what: str) -> int:
        """The engine releases each fill to the host."""
        gpu, buffer = self._gpu, self._buffer
        queue = CopyQueue(gpu).wait(gpu.timeline.signal, gpu.timeline.last)
        flags = self._queue_fills(queue, source, pieces, lambda: queue.write(self._memory.release_va, 0))
        buffer.expect(len(pieces[0]))
        value = gpu.submit_queue(queue, what)
        for flag, piece in zip(flags, pieces, strict=True):
            if flag is not None:
                buffer.expect(len(piece))
                buffer.write_flag(GO, flag)
            piece[:] = buffer.receive(len(piece))
        return value

    def _counted(self, source: int, pieces: list[memoryview], what: str) -> int:
        """The engine counts each fill, the host looks at the count. Here every command word is dear, so that they go through the bridge's
        memory too, marked like data, and the ring only calls them."""
        gpu, buffer, memory = self._gpu, self._buffer, self._memory
        inner = CopyQueue(gpu)
        numbers: list[int] = []

        def count() -> None:
            self._drained = self._drained + 1 & 0xFFFFFFFF
            numbers.append(self._drained)
            inner.fence(memory.flags_va + DRAINED, self._drained)

        flags = self._queue_fills(inner, source, pieces, count)
        inner.finish_bound()
        image = bytearray(COMMANDS_PLACE) + inner.data()
        image += bytes(self._whole_sectors(len(image) + MARK_BYTES) - len(image))
        mark = self._next_mark()
        image[-MARK_BYTES:] = mark.to_bytes(MARK_BYTES, "little")
        buffer.send(bytes(image))
        outer = CopyQueue(gpu).wait(gpu.timeline.signal, gpu.timeline.last).poll_bit(memory.va + len(image) - MARK_BYTES, mark)
        value = gpu.submit_queue(outer.indirect(memory.va + COMMANDS_PLACE, len(inner.words)), what)
        self._last_copy = value
        for flag, number, piece in zip(flags, numbers, pieces, strict=True):
            if flag is not None:
                buffer.write_flag(GO, flag)
            self._await_drain(number)
            piece[:] = buffer.receive(len(piece))
        return value

    def _queue_fills(self, queue: CopyQueue, source: int, pieces: list[memoryview], hand_over: Callable[[], object]) -> list[int | None]:
        """Commands that fill the bridge's memory once for each piece and hand it over; the flags that all but the first wait for.

        The timeline is signalled before the last one is handed over: who has the data knows that the work is done.
        """
        timeline = self._gpu.timeline
        flags: list[int | None] = []
        at = source
        for position, piece in enumerate(pieces):
            if position:
                self._go = self._go + 1 & 0xFF
                queue.poll_bit(self._memory.flags_va + GO, self._go, 0xFF)
            flags.append(self._go if position else None)
            queue.copy(self._memory.va, at, len(piece))
            at += len(piece)
            if position == len(pieces) - 1:
                queue.signal(timeline.signal, timeline.next_value)
            hand_over()
        return flags
