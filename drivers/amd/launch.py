"""Kernels in device memory, and the words that launch one: recorded once a kernel, then only the changing words are filled in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from drivers.amd.codeobject import DISPATCH_POINTER, KERNARG_POINTER, PRIVATE_SEGMENT_BUFFER, KernelDescriptor
from drivers.amd.pm4 import ComputeQueue
from drivers.queue.builder import Queue
from drivers.queue.signals import Signal
from drivers.queue.symbols import Expression, Variable, high32, low32
from drivers.queue.timeline import Point
from hw.errors import LaunchRefused

Dimensions = tuple[int, int, int]

MAX_BLOCK = 1024
"""work-items of a workgroup"""
MAX_GRID = 1 << 32
KERNARG_ALIGN = 16
DISPATCH_PACKET_ALIGN = 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_3U32 = struct.Struct("<3I")
_DISPATCH_PACKET = struct.Struct("<HHHHHHIIIIIQQQQ")
"""AQL kernel dispatch: header, setup, workgroup size x, y, z, reserved, grid size x, y, z in work-items, private and group bytes, kernel
object, kernarg address, reserved, completion signal"""

WAIT = Variable("wait")
VALUE = Variable("value")
TIMELINE = Variable("timeline", 64)
ARGS = Variable("args", 64)
STARTED = Variable("started", 64)
ENDED = Variable("ended", 64)
GROUPS = (Variable("groups_x"), Variable("groups_y"), Variable("groups_z"))
BLOCK = (Variable("block_x"), Variable("block_y"), Variable("block_z"))


class Ticket(Point):
    """Submitted work: where it lies on the timeline, and which pair of time stamps is its own."""

    __slots__ = ("serial",)

    def __init__(self, lap: int, value: int, serial: int) -> None:
        self.lap = lap
        self.value = value
        self.serial = serial


@dataclass(eq=False)
class Kernel:
    """A kernel in device memory. Sizes in bytes; `entry` is a device address."""

    name: str
    descriptor: KernelDescriptor
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    template: LaunchTemplate | None = None

    def __post_init__(self) -> None:
        properties = self.descriptor.properties
        self.wave32 = self.descriptor.wave32
        self.wants_private_segment_buffer = bool(properties & PRIVATE_SEGMENT_BUFFER)
        self.wants_dispatch_pointer = bool(properties & DISPATCH_POINTER)
        self.wants_kernarg_pointer = bool(properties & KERNARG_POINTER)
        self.kernarg_size = self.descriptor.kernarg_size
        self.kernarg_room = -(-self.kernarg_size // KERNARG_ALIGN) * KERNARG_ALIGN
        self.private_segment = self.descriptor.private_segment
        self.dispatch_packet_offset = -(-self.kernarg_size // DISPATCH_PACKET_ALIGN) * DISPATCH_PACKET_ALIGN
        self.argument_bytes = self.dispatch_packet_offset + _DISPATCH_PACKET.size if self.wants_dispatch_pointer else self.kernarg_room

    def __str__(self) -> str:
        return f"kernel {self.name}, code at {self.entry:#x}"

    def check_arguments(self, kernarg: bytes | bytearray) -> None:
        """Raises LaunchRefused unless there are as many bytes of arguments as the kernel takes (padding to 16 is let pass)."""
        if not self.kernarg_size <= len(kernarg) <= self.kernarg_room:
            raise LaunchRefused(f"kernel {self.name} takes {self.kernarg_size} bytes of arguments", read=f"{len(kernarg)} bytes given")

    def arguments(self, kernarg: bytes | bytearray, va: int, groups: Dimensions, block: Dimensions) -> bytes | bytearray:
        """What must lie at `va`: the arguments, and behind them the packet that a dispatch pointer points to."""
        if not self.wants_dispatch_pointer:
            return kernarg
        grid = [count * size for count, size in zip(groups, block, strict=True)]
        if max(grid) >= MAX_GRID:
            raise LaunchRefused(f"kernel {self.name} reads the dispatch packet, which counts work-items in 32 bits", read=f"grid {grid}")
        packet = _DISPATCH_PACKET.pack(0, 0, *block, 0, *grid, self.private_segment, self.descriptor.group_segment, 0, va, 0, 0)
        return bytes(kernarg[: self.dispatch_packet_offset]).ljust(self.dispatch_packet_offset, b"\0") + packet


@dataclass(eq=False)
class Program:
    """A code object in device memory."""

    kernels: dict[str, Kernel]
    release: Callable[[], None]


def dimensions(value: int | tuple[int, ...] | list[int], what: str, limit: int) -> Dimensions:
    """One to three sizes as three. Raises LaunchRefused unless each is from 1 to below the limit."""
    given = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(given) <= 3 or any(not isinstance(each, int) or not 0 < each < limit for each in given):
        raise LaunchRefused(f"{what} {given}", means=f"one to three numbers from 1 to {limit - 1} are wanted")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def check_block(block: Dimensions) -> None:
    """Raises LaunchRefused for a workgroup that no compute unit takes."""
    if block[0] * block[1] * block[2] > MAX_BLOCK:
        raise LaunchRefused(f"a workgroup of {block[0]} x {block[1]} x {block[2]} work-items", means=f"at most {MAX_BLOCK} run together")


class LaunchTemplate:
    """The words of one launch with holes for what changes. `generation` tells which addresses they were recorded with."""

    def __init__(self, queue: ComputeQueue, generation: int, fixed: dict[Expression, int]) -> None:
        """queue: the recorded launch. fixed: words that are known now."""
        for expression, value in fixed.items():
            for word in queue.places(expression):
                queue.words[word] = value
        self.buffer = bytearray(queue.data())
        self.generation = generation
        self.given: tuple[object, object] = (None, None)
        """grid and block as last given, so that the same ones need not be checked again"""
        self.shape: tuple[Dimensions, Dimensions] = ((0, 0, 0), (0, 0, 0))
        """the same as three numbers each, as filled in now"""
        self._wait = _place(queue, WAIT)
        self._value = _place(queue, VALUE)
        self._args = _place(queue, low32(ARGS), optional=True)
        self._dispatch_packet = -1
        self._started = _place(queue, low32(STARTED))
        self._ended = _place(queue, low32(ENDED))
        self._groups = _place(queue, GROUPS[0], optional=True)
        self._block = _place(queue, BLOCK[0], optional=True)

    def fill(self, last: int, args: int, stamps: int, packet: int = 0) -> bytearray:
        """The words for the launch after timeline value `last`: arguments at `args`, time stamps to `stamps` and the 8 bytes after it."""
        buffer = self.buffer
        _U32.pack_into(buffer, self._wait, last)
        _U32.pack_into(buffer, self._value, last + 1)
        if self._args >= 0:
            _U64.pack_into(buffer, self._args, args)
        if self._dispatch_packet >= 0:
            _U64.pack_into(buffer, self._dispatch_packet, args + packet)
        _U64.pack_into(buffer, self._started, stamps)
        _U64.pack_into(buffer, self._ended, stamps + 8)
        return buffer

    def use_dispatch_packet(self, queue: ComputeQueue, offset: int) -> None:
        """The kernel also wants a pointer to a packet at args + offset."""
        self._dispatch_packet = _place(queue, low32(ARGS + offset))

    def set_shape(self, grid: tuple[int, ...], block_given: tuple[int, ...]) -> None:
        """Fill in groups and work-items. Raises LaunchRefused."""
        groups, block = dimensions(grid, "grid", MAX_GRID), dimensions(block_given, "block", MAX_GRID)
        check_block(block)
        _3U32.pack_into(self.buffer, self._groups, *groups)
        _3U32.pack_into(self.buffer, self._block, *block)
        self.shape = (groups, block)
        self.given = (tuple(grid), tuple(block_given))


def _place(queue: ComputeQueue, expression: object, optional: bool = False) -> int:
    """Byte offset of the only word that holds this expression; -1 when there is none and that is allowed."""
    if not isinstance(expression, Expression):
        raise TypeError(f"{expression} is no symbolic word")
    places = queue.places(expression)
    if optional and not places:
        return -1
    (word,) = places
    return 4 * word


def record_launch(queue: ComputeQueue, kernel: Kernel) -> ComputeQueue:
    """The whole launch: after all earlier work, with fresh caches, between two time stamps, then the timeline moves on."""
    timeline = Signal(TIMELINE)
    queue.wait(timeline, WAIT).memory_barrier()
    queue.stamp(STARTED)
    queue.execute(kernel, ARGS, GROUPS, BLOCK)
    queue.stamp(ENDED)
    return queue.signal(timeline, VALUE)


def record_call(queue: ComputeQueue, bound: Queue) -> ComputeQueue:
    """The same around a bound queue."""
    timeline = Signal(TIMELINE)
    queue.wait(timeline, WAIT).memory_barrier()
    queue.stamp(STARTED)
    queue.append(*bound.call)
    queue.stamp(ENDED)
    return queue.signal(timeline, VALUE)


def timeline_words(va: int) -> dict[Expression, int]:
    """The words of a recorded launch that hold the timeline's address."""
    low, high = low32(TIMELINE), high32(TIMELINE)
    if not isinstance(low, Expression) or not isinstance(high, Expression):
        raise TypeError("a variable's halves are expressions")
    return {low: va & 0xFFFFFFFF, high: va >> 32}
