"""The builder that all queues share: a list of words, some of them symbolic, that can be submitted again and again.

A device adds the packet encoders (one method a command) and the ring that takes the words.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, Self

from drivers.queue.signals import Signal
from drivers.queue.symbols import Expression, Operand, UnboundSymbol, evaluate
from hw.errors import NotSupported, TghwError
from hw.mmio import Mmio

PLACEHOLDER = 0xBADC0DED
"""stands where a symbolic word is not filled yet; never sent"""

NOTHING: Mapping[str, int] = {}


class QueueClosed(TghwError):
    code = "queue-closed"
    default_means = "a bound queue lives in device memory at its final size; nothing can be added to it"
    default_remedy = "record all commands before bind()"


class PacketError(TghwError):
    """A command that cannot be put in a packet of this queue. Nothing was added."""

    code = "packet"
    default_means = "the command asks for more, or for something else, than the queue's packets can carry"
    default_remedy = "split the command, or use the queue that has a packet for it"


class Memory(Protocol):
    """Device-visible memory with a window for the CPU."""

    @property
    def va(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> Mmio | None: ...


class Submitter(Protocol):
    """What a queue needs of its device: a ring for its words, and memory to be bound in."""

    def submit_words(self, queue: Queue, data: bytes) -> None:
        """Put the words of one submission into the hardware ring and start it."""

    def alloc_commands(self, size: int) -> Memory:
        """Uncached memory that the CPU writes and the device fetches commands from."""

    def free_commands(self, memory: Any) -> None:
        """Give back what alloc_commands() returned."""


class External:
    """A symbolic value outside the words: an element of a window (a kernel argument, a descriptor field)."""

    __slots__ = ("mask", "offset", "size", "symbol", "window")

    def __init__(self, window: Mmio, offset: int, size: int, symbol: int, mask: int | None) -> None:
        self.window = window
        self.offset = offset
        self.size = size
        self.symbol = symbol
        self.mask = mask

    def store(self, value: int) -> None:
        store(self.window, self.offset, self.size, value, self.mask)


def store(window: Mmio, offset: int, size: int, value: int, mask: int | None = None) -> None:
    """Store 4 or 8 bytes; with a mask only those bits (read, change, write)."""
    if size == 8:
        window.write64(offset, value if mask is None else window.read64(offset) & ~mask | value)
    else:
        window.write32(offset, value if mask is None else window.read32(offset) & ~mask | value)


class Queue(ABC):
    """Commands in the order in which one hardware queue executes them. Command methods return the queue, so that calls chain.

    The same object may be submitted many times. With changed values it must not be submitted again before the device consumed the
    previous contents of anything patched in place (bound words, external values); unbound words are copied at each submission.
    """

    def __init__(self, device: Submitter | None = None) -> None:
        self.device = device
        self.words: list[int] = []
        self.packets: list[int] = []
        """dwords of each packet, for rings that may not split one"""
        self._symbols: dict[Expression, int] = {}
        self._places: list[tuple[int, int]] = []
        """(word, symbol)"""
        self._externals: list[External] = []
        self._seen: list[int] | None = None
        """symbol values of the previous submission"""
        self._memory: Memory | None = None
        self._call: bytes = b""

    # --- recording ----------------------------------------------------------------------------------------------------

    def append(self, *words: Operand) -> Self:
        """Add one packet. Symbolic words are remembered and filled at submission. Raises QueueClosed after bind()."""
        if self._memory is not None:
            raise QueueClosed("adding a command to a bound queue")
        for word in words:
            if isinstance(word, Expression):
                self._places.append((len(self.words), self._symbol(word)))
                self.words.append(PLACEHOLDER)
            else:
                self.words.append(word)
        self.packets.append(len(words))
        return self

    def patch_later(self, window: Mmio, offset: int, value: Operand, size: int = 8, mask: int | None = None) -> Self:
        """Store a value of 4 or 8 bytes in a window: numbers at once, symbolic ones at each submission that changes them."""
        if isinstance(value, Expression):
            self._externals.append(External(window, offset, size, self._symbol(value), mask))
        else:
            store(window, offset, size, value, mask)
        return self

    def places(self, expression: Expression) -> list[int]:
        """Word positions that hold this expression."""
        symbol = self._symbols.get(expression)
        return [word for word, each in self._places if each == symbol]

    def _symbol(self, expression: Expression) -> int:
        return self._symbols.setdefault(expression, len(self._symbols))

    # --- patching and submission --------------------------------------------------------------------------------------

    def bind(self, device: Submitter | None = None) -> Self:
        """Move the words to device memory once; from then on a submission is one short packet that calls them."""
        target = device or self.device
        if target is None:
            raise TypeError("bind() of a queue without a device")
        if self._memory is not None:
            return self
        self.finish_bound()
        memory = target.alloc_commands(4 * len(self.words))
        view = memory.view
        if view is None:
            raise TypeError("command memory needs a CPU window")
        view.write(0, self.data())
        self._memory = memory
        self.device = target
        call = self.call_words(memory.va, len(self.words))
        self._call = struct.pack(f"<{len(call)}I", *call)
        return self

    def submit(self, values: Mapping[str, int] = NOTHING) -> Self:
        """Fill the symbolic words and hand the queue to its device. Raises UnboundSymbol before anything is changed or sent."""
        if self.device is None:
            raise TypeError("submit() of a queue without a device")
        if self._symbols:
            self.patch(values)
        self.device.submit_words(self, self._call if self._memory is not None else self.data())
        return self

    def data(self) -> bytes:
        """The words as bytes, as they would be sent now."""
        return struct.pack(f"<{len(self.words)}I", *self.words)

    @property
    def bound(self) -> bool:
        return self._memory is not None

    def unbind(self) -> None:
        """Give back the memory of a bound queue; the device must have finished with it."""
        if self._memory is not None and self.device is not None:
            self.device.free_commands(self._memory)
            self._memory = None
            self._call = b""

    @property
    def call(self) -> tuple[int, ...]:
        """The short packet that runs a bound queue."""
        return struct.unpack(f"<{len(self._call) // 4}I", self._call)

    def patch(self, values: Mapping[str, int]) -> None:
        """Fill the symbolic words and external values that changed. Raises UnboundSymbol before anything is changed."""
        now = [evaluate(expression, values) for expression in self._symbols]
        for (word, symbol) in self._places:
            if not 0 <= now[symbol] < 1 << 32:
                raise UnboundSymbol(f"word {word} of the queue holds 32 bits, {now[symbol]:#x} does not fit")
        before = self._seen
        view = self._memory.view if self._memory is not None else None
        for word, symbol in self._places:
            value = now[symbol]
            if before is None or before[symbol] != value:
                self.words[word] = value
                if view is not None:
                    view.write32(4 * word, value)
        for external in self._externals:
            if before is None or before[external.symbol] != now[external.symbol]:
                external.store(now[external.symbol])
        self._seen = now

    # --- commands -----------------------------------------------------------------------------------------------------

    def finish_bound(self) -> None:
        """Add what the engine wants at the end of an indirect buffer."""

    @abstractmethod
    def call_words(self, va: int, dwords: int) -> list[int]:
        """The packet that runs an indirect buffer."""

    @abstractmethod
    def wait(self, signal: Signal, value: Operand) -> Self:
        """Stall until the signal holds at least this value."""

    @abstractmethod
    def signal(self, signal: Signal, value: Operand) -> Self:
        """After earlier commands ended and their writes are visible to the system, store the value."""

    @abstractmethod
    def timestamp(self, signal: Signal) -> Self:
        """After earlier commands ended, store the device clock beside the signal's value."""

    def memory_barrier(self) -> Self:
        """Make writes of the host and of other agents visible."""
        raise NotSupported(f"memory_barrier on {type(self).__name__}")

    def execute(self, kernel: Any, args: Operand, groups: tuple[Operand, Operand, Operand], block: tuple[Operand, Operand, Operand]) -> Self:
        """Run a kernel: `groups` workgroups of `block` work-items, its arguments at device address `args`."""
        raise NotSupported(f"execute on {type(self).__name__}")

    def copy(self, destination: Operand, source: Operand, size: int) -> Self:
        """Linear copy of `size` bytes; none for 0."""
        raise NotSupported(f"copy on {type(self).__name__}")

    def write(self, address: Operand, value: Operand, b64: bool = False) -> Self:
        """Store 32 or 64 bits after earlier commands."""
        raise NotSupported(f"write on {type(self).__name__}")

    def poll_bit(self, address: Operand, value: Operand, mask: Operand) -> Self:
        """Stall until (word at address & mask) == value."""
        raise NotSupported(f"poll_bit on {type(self).__name__}")
