"""A booted AMD GPU as the layers above use it: memory, programs, launches, graphs.

    gpu = AmdGpu(device)                     # a booted AmdDevice; the GPU owns it from here
    program = gpu.load(object_bytes)
    buffer = gpu.alloc(4096)
    gpu.copy_in(buffer, data)
    ticket = gpu.launch(program.kernels["add"], (16, 1, 1), (256, 1, 1), kernarg)
    gpu.wait(ticket)

All work is ordered: each launch and copy starts after the one before it ended, whichever engine it runs on. One PM4 ring, one SDMA ring.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drivers.amd import codeobject
from drivers.amd.bridge import BridgeCopies
from drivers.amd.direct import DirectAccess, StatusWatch
from drivers.amd.empty_kernel import empty_object
from drivers.amd.graph import SCRATCH_VA, TMPRING, Graph, LaunchItem
from drivers.amd.launch import Kernel, LaunchTemplate, Program, Ticket, record_launch, timeline_words
from drivers.amd.pm4 import ComputeQueue, HdpRegisters, ScratchArea
from drivers.amd.queue_state import describe
from drivers.amd.rings import STAMP_BYTES, STAMPS, Rings
from drivers.amd.scratch import INITIAL_BYTES, ScratchGeometry
from drivers.amd.sdma_packets import INDIRECT_BYTES, CopyQueue
from drivers.queue.builder import Queue
from drivers.queue.copy import Copies, CopyPipeline
from drivers.queue.device import QueueDevice
from drivers.queue.memory import ArgumentRing
from drivers.queue.ring import RingOverrun
from drivers.queue.signals import SignalMemory, SignalPool
from drivers.queue.timeline import Timeline
from hw.errors import BufferRange, BusLost, LaunchRefused, OutOfMemory, StampsLost, TghwError, WaitTimeout
from hw.mmio import BytesLike

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice
    from drivers.amd.memory import Allocation

log = logging.getLogger(__name__)

TICKS_PER_US = 100
"""the GPU's clock counter runs at 100 MHz"""
TICKS_PER_SECOND = TICKS_PER_US * 1_000_000
CACHED_FREES = 256 << 20
"""bytes of freed buffers that are kept for reuse, which costs neither waiting nor page-table writes"""
HISTORY = 64
"""submissions that the error of a hang can name"""


class Buffer:
    """Device memory. `va`: device address, `size`: bytes."""

    __slots__ = ("allocation", "host", "size", "va")

    def __init__(self, allocation: Allocation, size: int, host: bool) -> None:
        self.allocation = allocation
        self.va: int = allocation.va
        self.size = size
        self.host = host


class AmdGpu(QueueDevice):
    """See the module. After GpuFault or GpuHang the queues were reset and the next call works."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.arch: str = dev.arch
        self.rings = Rings(dev)
        bridged = dev.pci.transfer_buffer is not None
        self._watch = StatusWatch(self.rings) if bridged else None
        self._signal_pages: list[SignalMemory] = [self._watch or self.rings.signal_page]
        self.signals = SignalPool(self._signal_page, dev.clock, TICKS_PER_US)
        super().__init__(dev.clock, Timeline(self.signals))
        if self._watch is not None:
            self._watch.follow(dev, self.timeline)
        self._arguments = ArgumentRing(self.rings.arguments, last_value=lambda: self.timeline.last, wait=self.wait_value)
        self._copies: Copies = BridgeCopies(self, dev.bridge_memory) if bridged else CopyPipeline(self, self.rings.staging)
        self._direct = DirectAccess(self) if bridged else None
        self.timeline.on_wrap += [self._arguments.forget, self._copies.forget, self._timeline_moved]
        nbio = dev.nbio
        self.hdp = HdpRegisters(nbio.BIF_BX_PF0_GPU_HDP_FLUSH_REQ.index, nbio.BIF_BX_PF0_GPU_HDP_FLUSH_DONE.index)

        info = dev.ip.gc_info
        self._geometry = ScratchGeometry(dev.ip.cu_count, info["num_se"], info["max_scratch_slots_per_cu"])
        self.generation = 0
        """counts changes of addresses that recorded launches contain"""
        self._scratch: Allocation | None = None
        self._scratch_bytes = 0
        self._reserve_scratch(INITIAL_BYTES)

        self._serial = 0
        """launches so far; picks the place of their time stamps"""
        self._stamps_va = self.rings.stamps.va
        self._read_stamp = self.rings.stamps.view.read64
        self.recent: deque[tuple[int, Kernel | str]] = deque(maxlen=HISTORY)
        """(timeline value, what) of the latest submissions"""
        self._freed: dict[tuple[int, bool], list[Buffer]] = {}
        self._freed_bytes = 0
        self.rings.start()

    def close(self) -> None:
        """Finish the work, stop the queues, leave the GPU warm and give the device back. Never raises for work that failed."""
        try:
            if self.failure is None:
                self.synchronize()
        except TghwError as error:
            log.warning("%s: synchronization failed before finalizing: %s", self.dev.pci.address, error)
        try:
            if self._watch is not None:
                self.dev.ih.report_to(None)
            self.dev.finish()
            self.dev.memory.close()
        finally:
            self.dev.close()

    @property
    def timeout(self) -> float:
        """Seconds of the device's clock without progress after which submitted work counts as hung."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout = seconds
        self.rings.compute.limit = seconds
        self.rings.sdma.limit = seconds

    def __enter__(self) -> AmdGpu:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- memory -------------------------------------------------------------------------------------------------------

    def alloc(self, size: int, *, host: bool = False) -> Buffer:
        """Memory that kernels and copies reach, with undefined content; `host`: in system memory. Raises OutOfMemory."""
        kept = self._freed.get((size, host))
        if kept:
            buffer = kept.pop()
            self._freed_bytes -= size
            return buffer
        try:
            return Buffer(self.dev.memory.alloc(max(size, 1), host=host, zero=False), size, host)
        except OutOfMemory:
            if not self._freed_bytes:
                raise
        self.release_freed()
        return Buffer(self.dev.memory.alloc(max(size, 1), host=host, zero=False), size, host)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back. Work submitted before may still use it."""
        self._freed.setdefault((buffer.size, buffer.host), []).append(buffer)
        self._freed_bytes += buffer.size
        if self._freed_bytes > CACHED_FREES:
            self.release_freed()

    def release_freed(self) -> None:
        """Really free the buffers that are kept for reuse, once nothing can use them any more."""
        self.synchronize()
        for kept in self._freed.values():
            while kept:  # one after the other, so that an interruption leaves none here that is gone already
                buffer = kept.pop()
                self._freed_bytes -= buffer.size
                self.dev.memory.free(buffer.allocation)
        self._freed.clear()

    def copy_in(self, buffer: Buffer, data: BytesLike, offset: int = 0) -> None:
        """Host to device. Returns when the data was taken; work submitted later sees it. Raises BufferRange."""
        self._check_range(buffer, offset, memoryview(data).nbytes)
        self.check()
        if self._direct is not None and self._direct.write(buffer.allocation, offset, data):
            return
        self._copies.to_device(buffer.va + offset, data)

    def copy_out(self, buffer: Buffer, size: int | None = None, offset: int = 0) -> bytearray:
        """Device to host, after all work submitted so far (size None: the rest of the buffer). Raises BufferRange, GpuFault, GpuHang."""
        length = buffer.size - offset if size is None else size
        self._check_range(buffer, offset, length)
        self.check()
        result = bytearray(length)
        if self._direct is None or not self._direct.read(buffer.allocation, offset, result):
            self._copies.from_device(buffer.va + offset, length, result)
        self.wait_point(self.timeline.last_point)
        return result

    def copy(self, destination: Buffer, source: Buffer, size: int, destination_offset: int = 0, source_offset: int = 0) -> Ticket:
        """Device to device by the copy engine. Raises BufferRange."""
        self._check_range(destination, destination_offset, size)
        self._check_range(source, source_offset, size)
        self.check()
        self.submit_copy(destination.va + destination_offset, source.va + source_offset, size)
        return Ticket(self.timeline.lap, self.timeline.last, -1)

    def submit_copy(self, destination: int, source: int, size: int) -> int:
        """One ordered copy on the SDMA ring; the timeline value that it signals."""
        timeline = self.timeline
        queue = CopyQueue(self).wait(timeline.signal, timeline.last)
        queue.copy(destination, source, size).signal(timeline.signal, timeline.next_value)
        return self.submit_queue(queue, f"copy of {size} bytes from {source:#x} to {destination:#x}")

    def submit_queue(self, queue: CopyQueue, what: str) -> int:
        """Start a queue that signals the next timeline value; that value."""
        queue.submit()
        self.recent.append((self.timeline.next_value, what))
        return self.timeline.advance()

    def interrupted(self, error: TghwError) -> None:
        """A copy broke off between host and bridge: the engine waits for data that does not come. Drop what is queued, go on if that works."""
        if isinstance(error, BusLost):
            self.failure = error
            return
        try:
            self._recover()
        except TghwError as second:
            log.warning("%s after %s: %s", self.dev.pci.address, error, second)

    def submit_words(self, queue: Queue, data: bytes | bytearray) -> None:
        """Put the words of one submission into the ring that the queue was recorded for, and start it."""
        self.check()
        try:
            if not isinstance(queue, CopyQueue):
                self.rings.compute.submit(data)
            elif queue.bound or queue.ends_aligned:
                self.rings.sdma.submit(data, [len(data) // 4], end_align=INDIRECT_BYTES)
            else:
                self.rings.sdma.submit(data, queue.packets)
        except TghwError as error:
            raise self._submission_failed(error) from error

    def _submission_failed(self, error: TghwError) -> TghwError:
        """What to raise for an error while submitting."""
        if isinstance(error, RingOverrun):
            return error  # nothing was sent
        if isinstance(error, WaitTimeout):
            return self.hung(error)
        self.failure = error
        return error

    def alloc_commands(self, size: int) -> Allocation:
        return self.dev.memory.alloc(size, host=True, uncached=True, zero=False)

    def free_commands(self, memory: Any) -> None:
        self.dev.memory.free(memory)

    def _signal_page(self, size: int) -> SignalMemory:
        """The first page of signals is part of the queue memory, further ones are allocated."""
        return self._signal_pages.pop() if self._signal_pages else self.dev.memory.alloc(size, host=True, uncached=True)

    def _check_range(self, buffer: Buffer, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > buffer.size:
            raise BufferRange(f"{size} bytes at offset {offset} of a buffer of {buffer.size} bytes")

    # --- programs and launches ----------------------------------------------------------------------------------------

    def load(self, obj: BytesLike) -> Program:
        """Put a code object into device memory. Raises KernelImageError, NotSupported, OutOfMemory."""
        parsed = self.parse(obj)
        wanted = max(image.descriptor.private_segment for image in parsed.kernels.values())
        self.check()
        if wanted > self._scratch_bytes:
            self._reserve_scratch(wanted)
        buffer = self.alloc(parsed.device_bytes)
        self._copies.to_device(buffer.va, parsed.place(buffer.va))
        kernels = {
            name: Kernel(
                name,
                image.descriptor,
                entry=buffer.va + image.entry_offset,
                rsrc1=image.descriptor.sent_rsrc1(self.arch),
                rsrc2=image.descriptor.sent_rsrc2(),
                rsrc3=image.descriptor.rsrc3,
            )
            for name, image in parsed.kernels.items()
        }
        return Program(kernels, lambda: self.free(buffer))

    def parse(self, obj: BytesLike) -> codeobject.CodeObject:
        """Read a code object for this GPU without loading it. Raises KernelImageError, NotSupported."""
        return codeobject.parse(obj, self.arch)

    def empty_object(self) -> bytes:
        """A code object whose kernel ends at once."""
        return empty_object(self.arch)

    def unload(self, program: Program) -> None:
        """Give the memory of a program back; its kernels must not be launched any more."""
        program.release()

    def launch(self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], kernarg: bytes | bytearray) -> Ticket:
        """Run `grid` workgroups of `block` work-items after everything submitted before; returns at once.

        kernarg: the argument block as the kernel's ABI lays it out. Raises LaunchRefused, or what an earlier submission broke.
        """
        if self.failure is not None:
            raise self.failure
        template = kernel.template
        if template is None or template.generation != self.generation:
            template = self.record_again(kernel)
        if template.given != (grid, block):
            template.set_shape(grid, block)
        if len(kernarg) != kernel.kernarg_size:
            kernel.check_arguments(kernarg)
        if kernel.wants_dispatch_pointer:
            self._arguments.reserve(kernel.argument_bytes)
            kernarg = kernel.arguments(kernarg, self._arguments.next_va, *template.shape)
        args = self._arguments.put(kernarg)
        return self.start(template, args, kernel.dispatch_packet_offset, kernel)

    def start(self, template: LaunchTemplate, args: int, packet: int, what: Kernel | str) -> Ticket:
        """Fill a recorded launch and submit it as the next work of the timeline."""
        timeline = self.timeline
        value = timeline.next_value
        serial = self._serial + 1
        words = template.fill(value - 1, args, self._stamps_va + serial % STAMPS * STAMP_BYTES, packet)
        try:
            self.rings.compute.submit(words)
        except TghwError as error:
            raise self._submission_failed(error) from error
        self._serial = serial
        timeline.next_value = value + 1
        self.recent.append((value, what))
        return Ticket(timeline.lap, value, serial)

    def record(self, launches: Sequence[LaunchItem]) -> Graph:
        """A graph of (kernel, grid, block, kernarg) that runs them in order. Raises LaunchRefused, OutOfMemory."""
        self.check()
        return Graph(self, launches)

    def record_again(self, kernel: Kernel) -> LaunchTemplate:
        """Record the launch of a kernel with the addresses that hold now."""
        queue = record_launch(self.compute_queue(), kernel)
        template = LaunchTemplate(queue, self.generation, timeline_words(self.timeline_va))
        if kernel.wants_dispatch_pointer:
            template.use_dispatch_packet(queue, kernel.dispatch_packet_offset)
        kernel.template = template
        return template

    def compute_queue(self) -> ComputeQueue:
        """An empty queue that records for this GPU."""
        values = self.scratch_values()
        return ComputeQueue(self.hdp, ScratchArea(values[SCRATCH_VA.name], values[TMPRING.name]), self)

    def copy_queue(self) -> CopyQueue:
        """An empty queue that records for this GPU's copy engine."""
        return CopyQueue(self)

    # --- tickets ------------------------------------------------------------------------------------------------------

    def wait(self, ticket: Ticket, timeout: float | None = None) -> None:
        """Wait for submitted work. timeout: seconds of the device's clock without progress. Raises GpuFault, GpuHang."""
        self.wait_point(ticket, timeout)

    def elapsed(self, ticket: Ticket) -> float:
        """Seconds that a launch or replay took on the device; waits for it. Raises StampsLost when too many launches followed it."""
        self.wait_point(ticket)
        if ticket.serial < 0 or self._serial - ticket.serial >= STAMPS:
            raise StampsLost(f"the time of submission {ticket.value}", read=f"{self._serial - ticket.serial} launches since, {STAMPS} are kept")
        place = ticket.serial % STAMPS * STAMP_BYTES
        return (self._read_stamp(place + 8) - self._read_stamp(place)) / TICKS_PER_SECOND

    # --- what the queue model asks for ----------------------------------------------------------------------------------

    @property
    def timeline_va(self) -> int:
        """Device address of the timeline's signal."""
        va = self.timeline.signal.va
        assert isinstance(va, int)
        return va

    def check(self) -> None:
        """Raise the error that made the device unusable, if one did."""
        if self.failure is not None:
            raise self.failure

    def catch_up(self) -> None:
        self.rings.compute.catch_up()
        self.rings.sdma.catch_up()

    def check_faults(self) -> None:
        self.dev.drain_interrupts()

    def may_have_faulted(self) -> bool:
        return self._watch is None or self._watch.interrupted

    def queue_state(self) -> str:
        return describe(self)

    def reset_queues(self) -> None:
        """Kill the waves, reset both engines' queues and start them empty. Lost copies must not run later, so SDMA is reset too."""
        self.dev.recover()
        self.dev.sdma.stop()
        self.dev.sdma.init()
        self.rings.start()
        self._arguments.forget()
        self._copies.forget()

    # --- scratch --------------------------------------------------------------------------------------------------------

    def scratch_values(self) -> dict[str, int]:
        """Values of the symbolic scratch words of a recorded queue."""
        assert self._scratch is not None
        return {SCRATCH_VA.name: self._scratch.va, TMPRING.name: self._geometry.tmpring(self._scratch_bytes)}

    def _reserve_scratch(self, per_lane: int) -> None:
        """Have at least this much private memory a lane. Raises LaunchRefused, OutOfMemory; the present reservation then stays."""
        try:
            self._geometry.tmpring(per_lane)
        except ValueError as error:
            raise LaunchRefused(f"a kernel with {per_lane} bytes of private memory a lane", means=str(error)) from None
        size = self._geometry.size(per_lane)
        if self._scratch is None:
            self._scratch = self.dev.memory.alloc(size)
        else:
            self.synchronize()
            fresh = self.dev.memory.alloc(size)
            self.dev.memory.free(self._scratch)
            self._scratch = fresh
        self._scratch_bytes = per_lane
        self.generation += 1

    def _timeline_moved(self) -> None:
        self.generation += 1
        if self._watch is not None:
            self._watch.follow(self.dev, self.timeline)
