"""A serial flash behind a controller: identified, read, erased and programmed. Knows chips by their rows, controllers by their contract."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from firmware.spi import sfdp
from firmware.spi.chips import ID_BYTES, Chip, find, likely_rotation
from firmware.spi.controller import Progress, SpiController, no_progress
from firmware.spi.errors import ChipBusy, ChipSilent, ChipUnknown, StatusUnchanged, WriteEnableFailed
from firmware.spi.protection import CMP, WEL, WIP, Protection
from hw.clock import Clock
from hw.errors import OutOfWindow, WaitTimeout
from hw.poll import poll
from hw.signals import uninterrupted

log = logging.getLogger(__name__)

READ = 0x03
PROGRAM = 0x02
WRITE_ENABLE = 0x06
READ_STATUS = (0x05, 0x35, 0x15)
"""SR1, SR2, SR3"""
WRITE_STATUS = 0x01
READ_ID = 0x9F
READ_SFDP = 0x5A

ID_CAPTURE = 4
SFDP_CAPTURES = (20, 24)
"""bytes asked for: a header with one parameter header and the dummy byte, then the largest capture seen to be used"""
SR1_KEPT = 0xFC
"""bits of SR1 that a status write keeps; WIP and WEL are not writable"""
BLANK = 0xFF
EARLIER_WORK_LIMIT = 10.0
"""s; a large erase"""
SHORTEST_PAUSE = 0.1e-3
"""s between two looks at the status"""


@dataclass(frozen=True)
class Status:
    """The status registers."""

    sr1: int
    sr2: int
    sr3: int

    @property
    def busy(self) -> bool:
        return bool(self.sr1 & WIP)


@dataclass(frozen=True)
class Identity:
    """Who the chip is, and how that was found out."""

    chip: Chip
    captured: bytes
    """the bytes that READ ID gave"""
    rotation: int
    """by how many places they were rotated"""
    sfdp_offset: int | None
    """where "SFDP" began in the capture; None: not looked for, or not there"""


def identify(controller: SpiController) -> Identity:
    """Ask the chip who it is. Sends READ ID, and READ SFDP when the id is not in the table. Raises ChipSilent, ChipUnknown, ChipBusy."""
    captured = controller.receive(READ_ID, ID_CAPTURE)
    if len(set(captured)) == 1:
        _wait_for_earlier_work(controller)
        captured = controller.receive(READ_ID, ID_CAPTURE)
    if len(set(captured)) == 1:
        raise ChipSilent("reading the id of the flash chip", read=f"id bytes {captured.hex(' ')}")
    found = find(captured)
    if found is not None:
        return Identity(found[0], captured, found[1], None)
    turn = likely_rotation(captured)
    described = _by_sfdp(controller, (captured[turn:] + captured[:turn])[:ID_BYTES])
    if described is None:
        raise ChipUnknown("the flash chip", read=f"id bytes {captured.hex(' ')}, no usable SFDP table")
    return Identity(described[0], captured, turn, described[1])


def _wait_for_earlier_work(controller: SpiController) -> None:
    """A chip that is still at what a killed run has started answers its status and nothing else. Raises ChipBusy."""

    def status() -> int:
        return controller.receive(READ_STATUS[0], 1)[0]

    if status() != BLANK:
        _wait_idle(status, controller.clock, "the operation that the chip was found at", 0.0, EARLIER_WORK_LIMIT)


def _wait_idle(status: Callable[[], int], clock: Clock, what: str, typical: float, limit: float) -> None:
    """Wait until WIP clears; the first look comes after the usual time. Raises ChipBusy."""
    if typical:
        clock.sleep(typical)
    try:
        poll(status, lambda sr1: not sr1 & WIP, what=what, within=limit, typical=max(typical / 4, SHORTEST_PAUSE), clock=clock)
    except WaitTimeout as error:
        raise ChipBusy(f"{what} did not end within {limit:g} s", read=error.read) from error


def _by_sfdp(controller: SpiController, jedec: bytes) -> tuple[Chip, int] | None:
    """A row made of the chip's own description, and where in the capture it began."""
    offset = None
    for size in SFDP_CAPTURES:
        header = controller.receive(READ_SFDP, size, 0)
        offset = sfdp.locate(header)
        if offset is not None and len(header) - offset >= sfdp.HEADER_BYTES + sfdp.PARAMETER_HEADER_BYTES:
            break
    if offset is None:
        return None
    place = sfdp.parameter_table(header[offset:])
    if place is None:
        return None
    address, count = place
    capture = controller.receive(READ_SFDP, min(offset + 4 * count, controller.longest), address)[offset:]
    dwords = tuple(int.from_bytes(capture[start : start + 4], "little") for start in range(0, len(capture) - 3, 4))
    if len(dwords) < sfdp.FEWEST_DWORDS:
        return None
    chip = sfdp.chip_from(sfdp.Sfdp((header[offset + 5], header[offset + 4]), dwords, offset), jedec)
    return None if chip is None else (chip, offset)


class SpiFlash:
    """One identified chip. Sizes and offsets in bytes."""

    def __init__(self, controller: SpiController, identity: Identity) -> None:
        self.controller = controller
        self.identity = identity
        self.chip = identity.chip
        self.size = identity.chip.size
        self.name = controller.name

    @classmethod
    def open(cls, controller: SpiController) -> SpiFlash:
        """Identify the chip behind a controller. Raises ChipSilent, ChipUnknown, FlashError, BusLost."""
        with controller.session():
            return cls(controller, identify(controller))

    @contextmanager
    def session(self) -> Iterator[None]:
        """Hold the controller for several calls."""
        with self.controller.session():
            yield

    # --- reading ---

    def read(self, offset: int, size: int, progress: Progress = no_progress) -> bytes:
        """Bytes of the array. Raises OutOfWindow, FlashError, BusLost."""
        self._check(offset, size)
        if size == 0:
            return b""
        longest = self.controller.longest
        first = offset - offset % longest
        addresses = range(first, offset + size, longest)
        if size <= longest and offset % longest + size <= longest:
            return self.controller.receive(READ, size, offset)
        data = self.controller.receive_many(READ, addresses, longest, progress)
        return data[offset - first : offset - first + size]

    def status(self) -> Status:
        """SR1, SR2 and SR3."""
        sr1, sr2, sr3 = (self.controller.receive(opcode, 1)[0] for opcode in READ_STATUS)
        return Status(sr1, sr2, sr3)

    def protection(self, status: Status | None = None) -> Protection:
        """What the chip's protection bits protect now."""
        seen = status or self.status()
        return self.chip.scheme(seen.sr1, seen.sr2, self.size)

    def protection_without_cmp(self, status: Status) -> Protection:
        """What they would protect with CMP cleared."""
        return self.chip.scheme(status.sr1, status.sr2 & ~CMP, self.size)

    # --- changing ---

    def erase(self, offset: int, size: int) -> None:
        """Erase one unit. Returns when the chip is idle again. Raises ValueError, ChipBusy, WriteEnableFailed, FlashError, BusLost."""
        opcode = self.chip.erases.get(size)
        if opcode is None or offset % size:
            raise ValueError(f"no erase of {size:#x} bytes at {offset:#x}")
        self._check(offset, size)
        with uninterrupted():
            self._enable_write(f"erasing {size:#x} bytes at {offset:#x}")
            self.controller.send(opcode, address=offset)
            limit = self.chip.erase.limit * max(1, size // self.chip.sector / 4)
            self._wait_idle(f"erasing {size:#x} bytes at {offset:#x}", self.chip.erase_time(size), limit)

    def program(self, offset: int, data: bytes) -> None:
        """Program bytes of one page: bits go from 1 to 0. Returns when the chip is idle. Raises ValueError, FlashError, BusLost."""
        page = self.chip.page
        if not data or offset // page != (offset + len(data) - 1) // page:
            raise ValueError(f"{len(data)} bytes at {offset:#x} are not within one page")
        self._check(offset, len(data))
        with uninterrupted():
            self._enable_write(f"programming {len(data)} bytes at {offset:#x}")
            self.controller.send(PROGRAM, data, offset)
            self._wait_idle(f"programming {len(data)} bytes at {offset:#x}", self.chip.program.typical, self.chip.program.limit)

    def clear_cmp(self) -> Status:
        """Clear CMP, keep every other bit. Returns the new status. Raises StatusUnchanged when it stays set."""
        before = self.status()
        with uninterrupted():
            self._enable_write("clearing CMP")
            self.controller.send(WRITE_STATUS, bytes([before.sr1 & SR1_KEPT, before.sr2 & ~CMP]))
            self._wait_idle("writing the status registers", self.chip.status_write.typical, self.chip.status_write.limit)
        after = self.status()
        if after.sr2 & CMP:
            raise StatusUnchanged("CMP stays set after it was cleared", read=f"SR1 = {after.sr1:#04x}, SR2 = {after.sr2:#04x}")
        return after

    # --- inside ---

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise OutOfWindow(f"{size:#x} bytes at {offset:#x} of a flash of {self.size:#x}")

    def _status1(self) -> int:
        return self.controller.receive(READ_STATUS[0], 1)[0]

    def _enable_write(self, what: str) -> None:
        self.controller.send(WRITE_ENABLE)
        seen = self._status1()
        if not seen & WEL or seen == BLANK:
            raise WriteEnableFailed(f"{what}: write enable was not taken", read=f"SR1 = {seen:#04x}")

    def _wait_idle(self, what: str, typical: float, limit: float) -> None:
        _wait_idle(self._status1, self.controller.clock, what, typical, limit)
