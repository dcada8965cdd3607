"""A recorded list of launches that is replayed from device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drivers.amd.launch import MAX_GRID, Kernel, LaunchTemplate, Ticket, check_block, dimensions, record_call, timeline_words
from drivers.amd.pm4 import ComputeQueue, ScratchArea
from drivers.queue.graph import ArgumentBlock, GraphArguments
from drivers.queue.memory import ARGUMENT_ALIGN, Slice
from drivers.queue.symbols import Variable
from hw.errors import LaunchRefused, OutOfMemory

if TYPE_CHECKING:
    from drivers.amd.gpu import AmdGpu

SCRATCH_VA = Variable("scratch_va", 64)
TMPRING = Variable("tmpring")

LaunchItem = tuple[Kernel, tuple[int, ...], tuple[int, ...], bytes]
"""kernel, groups, block, argument block"""


class Graph:
    """Launches in a fixed order. Made by AmdGpu.record().

    Each launch keeps its own argument block, of which replay() can change 8-byte places. The words lie in device memory; a replay sends
    one short packet that calls them.
    """

    def __init__(self, gpu: AmdGpu, launches: Sequence[LaunchItem]) -> None:
        if not launches:
            raise LaunchRefused("a graph of no launches")
        self._gpu = gpu
        self._name = f"graph of {len(launches)} launches"
        self._kernels = [kernel for kernel, *_ in launches]
        blocks: list[ArgumentBlock] = []
        contents: list[tuple[int, bytes | bytearray]] = []
        at = 0
        shapes = []
        for kernel, grid, block, kernarg in launches:
            kernel.check_arguments(kernarg)
            shape = dimensions(grid, "grid", MAX_GRID), dimensions(block, "block", MAX_GRID)
            check_block(shape[1])
            shapes.append(shape)
            blocks.append(ArgumentBlock(at, len(kernarg)))
            at += kernel.argument_bytes + ARGUMENT_ALIGN - 1 & -ARGUMENT_ALIGN
        self._memory = gpu.dev.memory.alloc(max(at, ARGUMENT_ALIGN), host=True, uncached=True)
        view = self._memory.view
        if view is None:
            raise OutOfMemory("graph memory that the CPU reaches")
        self._queue = ComputeQueue(gpu.hdp, ScratchArea(SCRATCH_VA, TMPRING), gpu)
        for (kernel, _, _, kernarg), shape, place in zip(launches, shapes, blocks, strict=True):
            va = self._memory.va + place.offset
            contents.append((place.offset, kernel.arguments(kernarg, va, *shape)))
            self._queue.execute(kernel, va, *shape)
        for offset, data in contents:
            view.write(offset, data)
        self._queue.patch(gpu.scratch_values())
        self._queue.bind()
        self._arguments = GraphArguments(Slice(self._memory.va, self._memory.size, view), blocks, gpu.wait_point)
        self._template = self._record()

    def replay(self, values: Mapping[tuple[int, int], int] | None = None) -> Ticket:
        """Run all launches after everything submitted before; returns at once.

        values: (number of the launch, offset in its arguments) to an 8-byte value; places not named keep what they had. Raises
        GraphArgumentError before anything is changed.
        """
        gpu = self._gpu
        gpu.check()
        if self._template.generation != gpu.generation:
            self._follow()
        if values:
            self._arguments.patch(values)
        ticket = gpu.start(self._template, 0, 0, self._name)
        self._arguments.last_run = ticket
        return ticket

    def release(self) -> None:
        """Wait for the last run and give the memory back."""
        if self._arguments.last_run is not None:
            self._gpu.wait_point(self._arguments.last_run)
        self._queue.unbind()
        self._gpu.dev.memory.free(self._memory)

    def _record(self) -> LaunchTemplate:
        gpu = self._gpu
        queue = record_call(gpu.compute_queue(), self._queue)
        return LaunchTemplate(queue, gpu.generation, timeline_words(gpu.timeline_va))

    def _follow(self) -> None:
        """Scratch memory moved, or the timeline changed its signal: write the new addresses, once the previous run does not read them."""
        if self._arguments.last_run is not None:
            self._gpu.wait_point(self._arguments.last_run)
        self._queue.patch(self._gpu.scratch_values())
        self._template = self._record()
