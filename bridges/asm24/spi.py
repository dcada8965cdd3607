"""The bridge's own SPI flash while the open firmware runs: its flash controller by register writes, through a buffer in XDATA.

The firmware runs from RAM, so that the flash may be erased meanwhile. Sources: notes and tools of the open bridge firmware.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridges.asm24.custom import CustomProtocol
from bridges.asm24.errors import FlashBusyTimeout, FlashError, FlashProtected
from hw.errors import WaitTimeout
from hw.poll import poll

log = logging.getLogger(__name__)

SECTOR = 4096
READ_LENGTH = 4096
"""shorter reads do not fill the buffer reliably"""
PROGRAM_LENGTH = 128
PROGRAM_LENGTH_USB2 = 64
PAGE = 256
BUFFER = 0x7000

WRITE_ENABLE, READ_STATUS, WRITE_STATUS, READ, PROGRAM, ERASE_SECTOR, READ_ID = 0x06, 0x05, 0x01, 0x03, 0x02, 0x20, 0x9F
BUSY = 1 << 0
PROTECTION = 0x1C
NO_ADDRESS, THREE_BYTES = 0x04, 0x07
FROM_FLASH, TO_FLASH = 0, 1

CAPACITY_CODES = range(17, 25)
"""third byte of a chip's id: log2 of its bytes, with most makers"""
SMALLEST = 128 << 10

COMMAND_WITHIN = 2.0
WRITE_WITHIN = 10.0
STATUS_SECONDS = 10e-3
UNPROTECT_TRIES = 5
ARM_BULK_OUT = 0x10
STABLE_TRIES = 6


class BridgeFlash:
    """Made for one session; call begin() first."""

    def __init__(self, protocol: CustomProtocol) -> None:
        self._p = protocol
        self.size = 0
        """bytes of the chip, known after begin()"""
        self._program_length = PROGRAM_LENGTH_USB2 if protocol.link.is_usb2 else PROGRAM_LENGTH

    def begin(self) -> bytes:
        """Switch the controller on; the chip's id. Raises FlashError when no chip answers."""
        self._p.write_register("CPU_EXEC_STATUS2", 0x04)
        self._p.write_register("CPU_CTRL_CA81", self._p.read_register("CPU_CTRL_CA81") | 1)
        self._p.write_register("INT_AUX", 0x02)
        self._p.write_register("FLASH_DIV", 0x04)
        self._command(READ_ID, length=3)
        jedec = self._p.read_xdata(BUFFER, 3)
        if jedec in (b"\x00\x00\x00", b"\xff\xff\xff"):
            raise FlashError("the bridge's flash chip does not answer", read=f"id {jedec.hex()}", means="the chip is not soldered, or broken")
        self.size = 1 << jedec[2] if jedec[2] in CAPACITY_CODES else SMALLEST
        return jedec

    def unprotect(self) -> None:
        """Clear the block protection bits. Raises FlashProtected when they stay."""
        status = self.status()
        for _ in range(UNPROTECT_TRIES):
            if not status & PROTECTION:
                return
            self._enable_writing()
            self._p.write_xdata(BUFFER, b"\0")
            self._command(WRITE_STATUS, length=1, mode=TO_FLASH)
            self._p.clock.sleep(STATUS_SECONDS)
            status = self.status()
        if status & PROTECTION:
            raise FlashProtected("the bridge's flash chip stays write-protected", read=f"status {status:#04x}")

    def status(self) -> int:
        """The chip's status register. The first byte of the buffer is known to be stale at times: read until two agree."""
        return self._stable(lambda: self._command(READ_STATUS, length=1), 1)[0]

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the flash."""
        data = b""
        first = start & -SECTOR
        while first + len(data) < start + size:
            data += self._read_sector(first + len(data))
        return data[start - first : start - first + size]

    def _read_sector(self, start: int) -> bytes:
        return self._stable(lambda: self._command(READ, address=start, length=READ_LENGTH), SECTOR)

    def read_marginal(self, start: int) -> tuple[bytes, bool]:
        """A sector, and whether it reads the same each time. One in which a write was cut off may not, until it is erased again."""
        try:
            return self._read_sector(start), True
        except FlashError as error:
            log.warning("the sector at %#x: %s: a write was cut off there", start, error.what)
            self._command(READ, address=start, length=READ_LENGTH)
            return self._p.read_xdata(BUFFER, SECTOR), False

    def _stable(self, command: Callable[[], None], size: int) -> bytes:
        """What a command puts into the buffer, read again until two results in a row agree. Before each the buffer's first byte is set to
        another value, so that one that the transfer did not replace cannot agree with itself."""
        last = None
        for attempt in range(STABLE_TRIES):
            self._p.write_xdata(BUFFER, bytes([0x55 if attempt & 1 else 0xAA]))
            command()
            data = self._p.read_xdata(BUFFER, size)
            if data == last:
                return data
            last = data
        raise FlashError("reading the bridge's flash gives something else every time", read=f"{size} bytes, {STABLE_TRIES} times", means="the connection or the chip is bad")

    def erase_sector(self, start: int) -> None:
        """4 KiB to all ones."""
        self._enable_writing()
        self._command(ERASE_SECTOR, address=start)
        self._await_idle(f"erase at {start:#x}")

    def program(self, start: int, data: bytes) -> None:
        """Write erased bytes, in the pieces that the buffer takes whole. Pieces that are all ones are left out."""
        for offset in range(0, len(data), self._program_length):
            piece = data[offset : offset + self._program_length]
            if piece.strip(b"\xff"):
                self._program_piece(start + offset, piece)

    def _program_piece(self, start: int, piece: bytes) -> None:
        """One page program; start and length keep it inside a page."""
        self._p.write_register("EP_CFG2", ARM_BULK_OUT)
        self._p.link.bulk_out(piece + bytes(-len(piece) % 4))
        self._enable_writing()
        self._command(PROGRAM, address=start, length=len(piece), mode=TO_FLASH)
        self._await_idle(f"program at {start:#x}")

    def _enable_writing(self) -> None:
        """Without data: a transfer would disturb the buffer."""
        self._command(WRITE_ENABLE)

    def _command(self, opcode: int, *, address: int | None = None, length: int = 0, mode: int = FROM_FLASH) -> None:
        """One command of the chip; returns when the controller has done it. Raises FlashBusyTimeout."""
        p = self._p
        p.write_register("FLASH_MODE", mode)
        p.write_register("FLASH_BUF_OFS_L", 0)
        p.write_register("FLASH_BUF_OFS_H", 0)
        p.write_register("FLASH_CMD", opcode)
        p.write_register("FLASH_ADDR_LEN", NO_ADDRESS if address is None else THREE_BYTES)
        if address is not None:
            p.write_register("FLASH_ADDR0", address & 0xFF)
            p.write_register("FLASH_ADDR1", address >> 8 & 0xFF)
            p.write_register("FLASH_ADDR2", address >> 16 & 0xFF)
        p.write_register("FLASH_LEN_H", length >> 8)
        p.write_register("FLASH_LEN_L", length & 0xFF)
        p.write_register("FLASH_CSR", 1)
        try:
            poll(lambda: p.read_register("FLASH_CSR"), lambda value: not value & 1, what=f"flash command {opcode:#04x}", within=COMMAND_WITHIN, clock=p.clock)
        except WaitTimeout as error:
            raise FlashBusyTimeout(f"the bridge's flash controller does not finish command {opcode:#04x}", read=error.read) from error
        for _ in range(4):
            p.write_register("FLASH_MODE", 0)

    def _await_idle(self, what: str) -> None:
        def read() -> int:
            self._p.write_xdata(BUFFER, b"\xff")  # a stale byte must look busy
            self._command(READ_STATUS, length=1)
            return self._p.read_xdata(BUFFER, 1)[0]

        try:
            poll(read, lambda status: not status & BUSY, what=what, within=WRITE_WITHIN, clock=self._p.clock)
        except WaitTimeout as error:
            raise FlashBusyTimeout(f"the bridge's flash chip does not finish: {what}", read=error.read) from error
