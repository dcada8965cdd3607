"""How blobs and commands get to the security processor (PSP): through VRAM, or through the memory of a USB bridge.

The PSP takes addresses that the multimedia hub translates. Behind a bridge VRAM is reached one dword at a time, while the bridge's own
memory takes half a megabyte in two transfers; it is mapped for the GPU, and blob and command go there together. The ring stays in VRAM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from drivers.amd.layouts import psp as layout
from hw.buffer import TransferBuffer
from hw.errors import FirmwareInvalid

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

PADDING = 16
"""a blob is followed by four zero bytes and filled up to this"""
FENCE_SIZE = 4

COMMAND_PAGE = 4096
"""bytes in front of the blob in a bridge's memory: the command, its response, the fence"""
FENCE_PLACE = layout.COMMAND_BUFFER_SIZE


class Post(Protocol):
    """Addresses are those that the PSP is told."""

    loader_address: int
    """where the boot loader finds a part; a multiple of 1 MiB"""
    blob_address: int
    command_address: int
    fence_address: int

    def put_loader_part(self, data: bytes, name: str) -> None:
        """A part for the boot loader. Raises FirmwareInvalid when it is too large."""

    def put_blob(self, data: bytes, name: str) -> None:
        """A blob for the commands that follow. Raises FirmwareInvalid when it is too large."""

    def put_command(self, data: bytes) -> None:
        """The next command, with room for its response."""

    def fence(self) -> int:
        """The last fence value that the PSP wrote."""

    def response(self) -> bytes:
        """The response of the command whose fence was seen."""


def padded(data: bytes, name: str, limit: int) -> bytes:
    """A blob as the PSP wants it. Raises FirmwareInvalid when it does not fit."""
    size = -(-(len(data) + 4) // PADDING) * PADDING
    if size > limit:
        raise FirmwareInvalid(f"firmware part {name} of {len(data):#x} bytes does not fit the PSP's message buffer of {limit:#x} bytes")
    return data.ljust(size, b"\0")


class VramPost:
    """Everything in VRAM, where BAR0 puts it; a flush of the HDP makes it visible."""

    def __init__(self, dev: AmdDevice) -> None:
        self._dev = dev
        boot = dev.boot_memory
        self._message, self._command, self._fence = boot.psp_message, boot.psp_command, boot.psp_fence
        self.loader_address = self.blob_address = dev.mc_base + boot.psp_message
        self.command_address = dev.mc_base + boot.psp_command
        self.fence_address = dev.mc_base + boot.psp_fence

    def put_loader_part(self, data: bytes, name: str) -> None:
        self.put_blob(data, name)

    def put_blob(self, data: bytes, name: str) -> None:
        self._dev.vram_write(self._message, padded(data, name, layout.MESSAGE_BUFFER_SIZE))
        self._dev.flush_hdp()

    def put_command(self, data: bytes) -> None:
        self._dev.vram_write(self._command, data.ljust(layout.COMMAND_BUFFER_SIZE, b"\0"))

    def fence(self) -> int:
        return int.from_bytes(self._dev.vram_read(self._fence, FENCE_SIZE), "little")

    def response(self) -> bytes:
        return self._dev.vram_read(self._command + layout.COMMAND_RESPONSE, layout.RESPONSE_SIZE)


class BridgePost:
    """Blob, command and fence in a bridge's memory: two transfers a command, one to see fence and response."""

    def __init__(self, buffer: TransferBuffer, address: int) -> None:
        """address: where the GPU sees the buffer; a multiple of 1 MiB."""
        self._buffer = buffer
        self.loader_address = self.command_address = address
        self.blob_address = address + COMMAND_PAGE
        self.fence_address = address + FENCE_PLACE
        self._blob = b""
        """to be sent with the next command"""
        self._answer = b""

    def put_loader_part(self, data: bytes, name: str) -> None:
        self._buffer.send(padded(data, name, self._buffer.send_limit))

    def put_blob(self, data: bytes, name: str) -> None:
        self._blob = padded(data, name, self._buffer.send_limit - COMMAND_PAGE)

    def put_command(self, data: bytes) -> None:
        image = data.ljust(COMMAND_PAGE if self._blob else FENCE_PLACE + FENCE_SIZE, b"\0")
        self._buffer.send(image + self._blob)
        self._blob = b""

    def fence(self) -> int:
        self._answer = self._buffer.peek(layout.COMMAND_RESPONSE, FENCE_PLACE + FENCE_SIZE - layout.COMMAND_RESPONSE)
        return int.from_bytes(self._answer[-FENCE_SIZE:], "little")

    def response(self) -> bytes:
        return self._answer[: layout.RESPONSE_SIZE]
