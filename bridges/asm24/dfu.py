"""The boot stub of the open firmware: it writes the application's part of the flash, by control requests only.

Two drafts of it exist, told apart by the length of their answer to INFO; each takes only images of its own draft.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass

from bridges.asm24.errors import DfuIncompatible, EndpointStall, FlashVerify
from bridges.asm24.image import HEADER_SIZE, Image, Kind
from bridges.asm24.usb import UsbLink

log = logging.getLogger(__name__)

ERASE, SET_ADDRESS, WRITE, READ, INFO, RESTART, ENTER = 0xB0, 0xB1, 0xB2, 0xB3, 0xB4, 0xEB, 0xEC
MAGIC = b"A24D"
MAGIC_SIZE = 4
NEWER_INFO = struct.Struct("<4sHHIIB")
OLDER_INFO = struct.Struct("<4sBBBBHHII")
SECTOR = 0x1000
ERASE_MS_A_SECTOR = 2000
ERASE_MS = 5000
RETURN_WITHIN = 60.0
"""seconds until the application is back on the USB"""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class StubInfo:
    """What the boot stub says of itself. Addresses and sizes in bytes of flash."""

    kind: Kind
    """of images it takes"""
    largest: int
    """bytes of one read or write"""
    sector: int
    start: int
    end: int
    abi: int


class BootStub:
    """A bridge in its boot stub. Every refusal of it stalls the request: EndpointStall."""

    def __init__(self, link: UsbLink) -> None:
        self._link = link
        self.info = self._ask()

    def _ask(self) -> StubInfo:
        """The newer draft's answer first; a wrong length is refused."""
        try:
            magic, largest, sector, start, end, abi = NEWER_INFO.unpack(self._link.control_in(INFO, 0, 0, NEWER_INFO.size))
            kind = Kind.APPLICATION_NEW
        except EndpointStall:
            magic, _, abi, _, _, largest, sector, start, end = OLDER_INFO.unpack(self._link.control_in(INFO, 0, 0, OLDER_INFO.size))
            kind = Kind.APPLICATION_OLD
        if magic != MAGIC:
            raise DfuIncompatible(f"{self._link.address} is no boot stub that this toolkit knows", read=f"answer begins with {magic.hex()}")
        return StubInfo(kind, largest, sector, start, end, abi)

    def check(self, image: Image) -> None:
        """Raise DfuIncompatible unless this stub takes this image."""
        if image.kind is not self.info.kind:
            raise DfuIncompatible(f"the boot stub takes the {self.info.kind.value}, the file is a {image.kind.value}")
        if self.info.start + len(image.data) > self.info.end:
            raise DfuIncompatible("the image is longer than the boot stub's area", read=f"{len(image.data)} bytes, {self.info.end - self.info.start} there")

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the application's area."""
        self._seek(start)
        data = b""
        while len(data) < size:
            data += self._link.control_in(READ, 0, 0, min(self.info.largest, size - len(data)))
        return data

    def write(self, image: Image, progress: Progress) -> None:
        """Erase, body, header without its magic, check both, and the magic last: an interrupted write leaves no application that looks whole."""
        start, data = self.info.start, image.data
        length = -(-len(data) // self.info.sector) * self.info.sector
        limit = max(ERASE_MS, ERASE_MS_A_SECTOR * length // self.info.sector)
        self._link.control_out(ERASE, 0, 0, struct.pack("<II", start, length), timeout_ms=limit)
        total = len(data)
        self._program(HEADER_SIZE, data[HEADER_SIZE:], lambda done: progress(done, total))
        self._program(MAGIC_SIZE, data[MAGIC_SIZE:HEADER_SIZE], lambda done: None)
        self._compare(MAGIC_SIZE, data[MAGIC_SIZE:])
        self._program(0, data[:MAGIC_SIZE], lambda done: None)
        self._compare(0, data)
        progress(total, total)

    def restart(self) -> None:
        """Leave for the application; wait until the device is back."""
        self._link.control_out(RESTART, 0, 0)
        self._link.find_again(RETURN_WITHIN)

    def _seek(self, address: int) -> None:
        self._link.control_out(SET_ADDRESS, address & 0xFFFF, address >> 16)

    def _program(self, place: int, data: bytes, progress: Callable[[int], None]) -> None:
        self._seek(self.info.start + place)
        for offset in range(0, len(data), self.info.largest):
            self._link.control_out(WRITE, 0, 0, data[offset : offset + self.info.largest], timeout_ms=ERASE_MS)
            progress(place + offset)

    def _compare(self, place: int, data: bytes) -> None:
        seen = self.read(self.info.start + place, len(data))
        if seen != data:
            offset = next(position for position, (a, b) in enumerate(zip(seen, data, strict=True)) if a != b)
            raise FlashVerify(f"the application reads back differently at {place + offset:#x}", offset=place + offset, read=f"{seen[offset]:#04x}, {data[offset]:#04x} was written")


def enter_stub(link: UsbLink) -> None:
    """Send a running open firmware into its boot stub. Raises EndpointStall or UsbTimeout where the build has none."""
    link.control_out(ENTER, 0, 0)
    link.find_again(RETURN_WITHIN)
