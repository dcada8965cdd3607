"""SCSI commands to the stock firmware and the ROM loader: the vendor's command blocks, and the plain way to send them (bulk-only transport)."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from bridges.asm24.errors import CswError, EndpointStall
from bridges.asm24.usb import BULK_IN, BULK_OUT, TIMEOUT_MS, UsbLink

CONFIG_READ, CONFIG_WRITE, FLASH_READ, FLASH_WRITE, XDATA_READ, XDATA_WRITE, RESET = 0xE0, 0xE1, 0xE2, 0xE3, 0xE4, 0xE5, 0xE8
WRITE_16 = 0x8A
FAMILY = 0x50
"""246x bridges want this in their vendor commands; older families do not know it"""
SECOND_PART = 0xD0
XDATA_TAG = 0x500000
XDATA_ADDRESS_MASK = 0x1FFFF
XDATA_LIMIT = 255
CONFIG_BLOCK = 128
COMMIT = 0x51
SECTOR = 512


@dataclass(frozen=True)
class Command:
    """One command: its block, and either bytes to send or a number of bytes to get."""

    block: bytes
    read: int = 0
    data: bytes = b""


def read_xdata(start: int, size: int) -> Command:
    """Up to 255 bytes of XDATA; bit 16 of the address reaches the second 64 KiB."""
    return Command(struct.pack(">BBI", XDATA_READ, size, (XDATA_TAG | start & XDATA_ADDRESS_MASK) << 8), read=size)


def write_xdata(start: int, value: int) -> Command:
    """One byte of XDATA."""
    return Command(struct.pack(">BBI", XDATA_WRITE, value, (XDATA_TAG | start & XDATA_ADDRESS_MASK) << 8))


def write_sectors(data: bytes) -> Command:
    """WRITE(16) to block 0: without a drive attached the data lands in SRAM."""
    return Command(struct.pack(">BBQIBB", WRITE_16, 0, 0, len(data) // SECTOR, 0, 0), data=data)


def read_config(block: int) -> Command:
    """One of the two configuration blocks of the flash."""
    return Command(bytes([CONFIG_READ, FAMILY, block]), read=CONFIG_BLOCK)


def write_config(block: int, data: bytes) -> Command:
    """The same, written."""
    return Command(bytes([CONFIG_WRITE, FAMILY, block]) + bytes(12), data=data)


def read_flash(size: int, second: bool) -> Command:
    """The first part of the firmware image in the flash, or the rest."""
    return Command(struct.pack(">BBI", FLASH_READ, SECOND_PART if second else FAMILY, size), read=size)


def write_flash(data: bytes, second: bool) -> Command:
    """The same, written."""
    return Command(struct.pack(">BBI", FLASH_WRITE, SECOND_PART if second else FAMILY, len(data)), data=data)


RESTART = Command(bytes([RESET, 0]) + bytes(10))
COMMIT_FIRMWARE = Command(bytes([RESET, COMMIT]) + bytes(13))


class CommandPipe(ABC):
    """A way to get commands to the bridge."""

    name: str
    alternate: int
    """setting of interface 0 that it needs"""

    def __init__(self, link: UsbLink) -> None:
        self.link = link

    def start(self) -> None:
        """Claim the interface."""
        self.link.claim(self.alternate)

    @abstractmethod
    def run(self, commands: Sequence[Command], *, timeout_ms: int = TIMEOUT_MS) -> list[bytes]:
        """Carry the commands out in order; what each read. Raises CswError and the errors of transfers."""


CBW_SIGNATURE = 0x43425355
CSW_SIGNATURE = 0x53425355
CSW_SIZE = 13
DEVICE_TO_HOST = 0x80
CBW = struct.Struct("<IIIBBB16s")
CSW = struct.Struct("<IIIB")


class BulkOnly(CommandPipe):
    """Command block, data, status: three bulk transfers, one command after the other."""

    name = "bulk-only"
    alternate = 0

    def __init__(self, link: UsbLink) -> None:
        super().__init__(link)
        self._tag = 0

    def run(self, commands: Sequence[Command], *, timeout_ms: int = TIMEOUT_MS) -> list[bytes]:
        return [self._run(command, timeout_ms) for command in commands]

    def _run(self, command: Command, timeout_ms: int) -> bytes:
        self._tag = self._tag + 1 & 0xFFFFFFFF
        length = command.read or len(command.data)
        direction = DEVICE_TO_HOST if command.read else 0
        self.link.bulk_out(CBW.pack(CBW_SIGNATURE, self._tag, length, direction, 0, len(command.block), command.block), timeout_ms=TIMEOUT_MS)
        data = b""
        try:
            if command.read:
                data = self.link.bulk_in(command.read, timeout_ms=timeout_ms, exact=False)
            elif command.data:
                self.link.bulk_out(command.data, timeout_ms=max(timeout_ms, len(command.data) // 1000))
        except EndpointStall:  # the device ends the data early; its status tells why
            self.link.clear_halt(BULK_IN if command.read else BULK_OUT)
        self._status(command, 2 * timeout_ms)
        if len(data) != command.read:
            raise CswError(f"{_title(command)} of {self.link.address}", read=f"{len(data)} of {command.read} bytes")
        return data

    def _status(self, command: Command, timeout_ms: int) -> None:
        try:
            raw = self.link.bulk_in(CSW_SIZE, timeout_ms=timeout_ms)
        except EndpointStall:
            self.link.clear_halt(BULK_IN)
            raw = self.link.bulk_in(CSW_SIZE, timeout_ms=timeout_ms)
        signature, tag, _, status = CSW.unpack(raw)
        if signature != CSW_SIGNATURE or tag != self._tag:
            raise CswError(f"{_title(command)} of {self.link.address}", read=f"status block of command {tag}, {self._tag} was sent")
        if status:
            raise CswError(f"{_title(command)} of {self.link.address}", read=f"status {status}")


def _title(command: Command) -> str:
    return f"SCSI command {command.block[0]:#04x}"
