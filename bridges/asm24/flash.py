"""Writing the bridge's own firmware: by which way, what is kept, in which order, and reading it back.

A bridge is not lost by a write that breaks off: its mask-ROM loader answers whenever the image in the flash is not whole.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from bridges.asm24 import scsi
from bridges.asm24.custom import CustomProtocol
from bridges.asm24.dfu import BootStub, enter_stub
from bridges.asm24.errors import BridgeFlashRefused, CswError, DfuIncompatible, EndpointStall, FlashCommandFailed, FlashError, FlashVerify, UsbTimeout
from bridges.asm24.ids import BOOT_STUB_PRODUCT, Protocol
from bridges.asm24.image import BLOCK_SIZE, Image, Kind, block_problem
from bridges.asm24.session import BridgeSession
from bridges.asm24.spi import SECTOR, BridgeFlash
from hw.signals import guarded_signals, uninterrupted

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""bytes done, bytes in all"""

IMAGE_AT = 0x100
FIRST_PART = 0xFF00
"""bytes of an image that the first of the two commands carries"""
COMMAND_MS = 30000
PART_PAUSE = 1.0
"""seconds after each part of a dump"""
LENGTH_AND_TRAILER = 10
MARGINAL_LIMIT = 3
"""sectors that may read differently each time before nothing is written"""


class Writer(ABC):
    """One way to the flash. Made for a session that was opened by look(); prepare() changes nothing on the flash."""

    title: str

    def __init__(self, session: BridgeSession, image: Image) -> None:
        self.session = session
        self.image = image

    @abstractmethod
    def prepare(self) -> None:
        """Claim the bridge and see whether it takes the image."""

    @abstractmethod
    def backup(self, progress: Progress) -> bytes:
        """What is in the flash now, as much as this way can read; b"" when it cannot."""

    @abstractmethod
    def write(self, progress: Progress) -> None:
        """Write and read back. Raises FlashError."""


class ScsiWriter(Writer):
    """Stock firmware and ROM loader: two commands carry the image, one makes it count."""

    title = "SCSI commands to the firmware that runs"

    def __init__(self, session: BridgeSession, image: Image) -> None:
        super().__init__(session, image)
        self._pipe = scsi.BulkOnly(session.link)
        self._blocks: list[bytes] = []
        self._image_at = 0
        """where the image begins in what the firmware dumps"""

    def prepare(self) -> None:
        self._pipe.start()

    def backup(self, progress: Progress) -> bytes:
        """The flash from its start, or from the image on, as this firmware dumps it. The ROM loader may refuse to read."""
        try:
            self._blocks = self._run(scsi.read_config(0), scsi.read_config(1))
            first = self._run(scsi.read_flash(FIRST_PART, second=False))[0]
            self.session.clock.sleep(PART_PAUSE)
            self._image_at = IMAGE_AT if first[:BLOCK_SIZE] == self._blocks[0] else 0
            length = int.from_bytes(first[self._image_at : self._image_at + 4], "little")
            rest = self._image_at + length + LENGTH_AND_TRAILER - FIRST_PART
            second = b""
            if 0 < rest <= FIRST_PART:
                second = self._run(scsi.read_flash(rest, second=True))[0]
                self.session.clock.sleep(PART_PAUSE)
        except FlashCommandFailed as error:
            log.info("no backup: %s", error)
            return b""
        content = first + second
        progress(len(content), len(content))
        return content

    def write(self, progress: Progress) -> None:
        data = self.image.data
        with guarded_signals(), uninterrupted():
            for number, block in enumerate(self._blocks):
                problem = block_problem(block, number)
                if problem:
                    log.warning("configuration block %d is left as it is: %s", number, problem)
                else:
                    self._run(scsi.write_config(number, block))
            self._run(scsi.write_flash(data[:FIRST_PART], second=False))
            progress(min(FIRST_PART, len(data)), len(data))
            if len(data) > FIRST_PART:
                self._run(scsi.write_flash(data[FIRST_PART:], second=True))
            self._run(scsi.COMMIT_FIRMWARE)
        progress(len(data), len(data))
        self._verify()

    def _verify(self) -> None:
        seen = self.backup(lambda done, total: None)
        if not seen:
            log.warning("what was written cannot be read back here: `tghw bridge info` after a power cycle shows whether it runs")
            return
        _compare(seen[self._image_at :], self.image.data)

    def _run(self, *commands: scsi.Command) -> list[bytes]:
        try:
            return self._pipe.run(commands, timeout_ms=COMMAND_MS)
        except (CswError, EndpointStall) as error:
            name = f"{commands[-1].block[0]:#04x}"
            raise FlashCommandFailed(f"flash command {name} of {self.session.address} failed", read=error.read or error.what) from error


class SpiWriter(Writer):
    """The open firmware runs: its flash controller is driven from here, sector by sector; only sectors that differ are touched."""

    title = "the flash controller, while the open firmware runs"

    def prepare(self) -> None:
        protocol = self.session.ready()
        if not isinstance(protocol, CustomProtocol):
            raise BridgeFlashRefused(f"{self.session.address} does not run the open firmware")
        self._flash = BridgeFlash(protocol)
        self._marginal: set[int] = set()
        """sectors that do not read the same each time"""
        self.jedec = self._flash.begin()

    def backup(self, progress: Progress) -> bytes:
        """The whole chip."""
        end = self._flash.size
        data = bytearray()
        for start in range(0, end, SECTOR):
            sector, stable = self._flash.read_marginal(start)
            data += sector
            if not stable:
                self._marginal.add(start)
            if len(self._marginal) > MARGINAL_LIMIT:
                raise FlashError(
                    "the bridge's flash reads differently each time",
                    read=f"{len(self._marginal)} sectors so far",
                    means="a write that was cut off spoils one sector, not many: the chip or its connection is bad",
                )
            progress(start + SECTOR, end)
        self._before = bytes(data)
        return self._before

    def write(self, progress: Progress) -> None:
        wanted = self._before[:IMAGE_AT] + self.image.data
        wanted += self._before[len(wanted) :]
        with guarded_signals():
            self._flash.unprotect()
            end = -(-(IMAGE_AT + len(self.image.data)) // SECTOR) * SECTOR
            for start in range(0, end, SECTOR):
                sector = wanted[start : start + SECTOR]
                if start in self._marginal or sector != self._before[start : start + SECTOR]:
                    with uninterrupted():
                        self._flash.erase_sector(start)
                        self._flash.program(start, sector)
                    _compare(self._flash.read(start, SECTOR), sector, start)
                progress(start + SECTOR, end)


class StubWriter(Writer):
    """The boot stub, which is entered first if the open firmware runs."""

    title = "the boot stub"

    def prepare(self) -> None:
        if self.session.kind is Protocol.CUSTOM:
            self._enter()
        self.session.link.claim(0)
        self._stub = BootStub(self.session.link)
        try:
            self._stub.check(self.image)
        except DfuIncompatible:
            if self.session.kind is Protocol.CUSTOM:
                self._stub.restart()  # it was running before, and runs again
            raise

    def _enter(self) -> None:
        """From the application into the stub. Older builds let the request pass and stay as they are."""
        link = self.session.link
        answer = ""
        try:
            enter_stub(link)
        except (EndpointStall, UsbTimeout) as error:
            answer = error.what
        if answer or link.bridge.product != BOOT_STUB_PRODUCT:
            raise BridgeFlashRefused(
                f"{self.session.address} has no boot stub",
                read=answer or f"still {link.bridge.vendor:04x}:{link.bridge.product:04x} after the request",
                means="application images need one; the firmware on this board is a wrapped image",
            )

    def backup(self, progress: Progress) -> bytes:
        """The application's area."""
        info = self._stub.info
        data = self._stub.read(info.start, info.end - info.start)
        progress(len(data), len(data))
        return data

    def write(self, progress: Progress) -> None:
        with guarded_signals(), uninterrupted():
            self._stub.write(self.image, progress)
        self._stub.restart()


def writer_for(session: BridgeSession, image: Image) -> Writer:
    """The way that fits what runs on the bridge and what the file is. Raises BridgeFlashRefused, changing nothing."""
    wrapped = image.kind is Kind.WRAPPED
    if session.kind in (Protocol.STOCK, Protocol.ROM):
        if wrapped:
            return ScsiWriter(session, image)
        raise BridgeFlashRefused(
            f"{session.address} runs {session.kind.value} firmware, which writes wrapped images only",
            read=image.title,
            remedy="flash the boot stub's own wrapped image first",
        )
    if session.kind is Protocol.CUSTOM:
        return SpiWriter(session, image) if wrapped else StubWriter(session, image)
    if wrapped:
        raise BridgeFlashRefused(
            f"{session.address} is in its boot stub, which writes application images only",
            read=image.title,
            remedy="start the application (power cycle), or hold the boot strap for the ROM loader",
        )
    return StubWriter(session, image)


def _compare(seen: bytes, wanted: bytes, start: int = 0) -> None:
    if seen[: len(wanted)] != wanted:
        offset = next((position for position, (a, b) in enumerate(zip(seen, wanted, strict=False)) if a != b), len(seen))
        raise FlashVerify(f"the flash reads back differently at {start + offset:#x}", offset=start + offset)
