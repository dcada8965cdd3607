"""Memory between host and device that the host reaches only in whole transfers: what a bridge with its own memory offers instead of host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hw.mmio import BytesLike


class TransferBuffer(ABC):
    """A buffer that the host fills or empties by long transfers and the device reaches by DMA; and a few bytes that both see at any time.

    Host to device: send(), whose last bytes may still be on their way when it returns: the device waits for a mark behind the data.
    Device to host: expect(), then the device fills the buffer and writes a zero dword to `release_address`, then receive().
    All sizes and offsets are bytes, all addresses bus addresses.
    """

    address: int
    """of the first byte; the buffer is one piece"""
    size: int
    slot: int
    """transfers begin at multiples of this"""
    sector: int
    """what a transfer touches is rounded up to this"""
    send_limit: int
    """longest send()"""
    receive_limit: int
    """longest receive()"""
    release_address: int
    receive_waits: bool
    """receive() waits for the release; where it does not, the caller makes sure first that the device has filled the buffer"""
    peek_limit: int
    """bytes from the start that the host can look at without a transfer of the buffer"""
    flags_address: int
    flags_size: int

    @abstractmethod
    def send(self, data: BytesLike, offset: int = 0) -> None:
        """Fill the buffer from a slot boundary on; rounding up fills with zeros."""

    @abstractmethod
    def expect(self, size: int) -> None:
        """Announce that `size` bytes from the start of the buffer will be received."""

    @abstractmethod
    def receive(self, size: int) -> bytes:
        """The first bytes of the buffer, after expect() and the device's release."""

    @abstractmethod
    def peek(self, offset: int, size: int) -> bytes:
        """A few bytes within peek_limit as they are now, whoever wrote them."""

    @abstractmethod
    def read_flags(self, offset: int, size: int) -> bytes:
        """Bytes that host and device both see."""

    @abstractmethod
    def write_flag(self, offset: int, value: int) -> None:
        """One of these bytes."""
