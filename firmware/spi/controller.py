"""The contract of an SPI controller: it carries transactions and knows no chip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hw.clock import HOST_CLOCK, Clock

Progress = Callable[[int, int], None]
"""done, total: bytes"""


def no_progress(done: int, total: int) -> None:
    """Nobody is watching."""


class SpiController(ABC):
    """Carries SPI transactions: an opcode, 0 or 3 address bytes, then data one way or the other."""

    name: str
    longest: int = 256
    """data bytes that one transaction carries"""
    clock: Clock = HOST_CLOCK

    @abstractmethod
    def receive(self, opcode: int, count: int, address: int | None = None) -> bytes:
        """Send opcode and address, take `count` bytes. One transaction as the chip sees it. Raises FlashError, BusLost."""

    @abstractmethod
    def send(self, opcode: int, data: bytes = b"", address: int | None = None) -> None:
        """Send opcode, address and data. Raises FlashError, BusLost."""

    def receive_many(self, opcode: int, addresses: Sequence[int], count: int, progress: Progress = no_progress) -> bytes:
        """The same receive at many addresses, joined. Controllers that can do better than one by one override it."""
        parts = []
        for done, address in enumerate(addresses, 1):
            parts.append(self.receive(opcode, count, address))
            progress(done * count, len(addresses) * count)
        return b"".join(parts)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Hold the controller for a run of transactions; it is as found afterwards, whatever happens inside. May be nested."""
        yield
