"""SCSI commands of ASMedia's firmware and of the mask ROM's loader, apart from how they travel (bot, uas).

Meaning of the vendor commands: the bridge's specification. What a WRITE(16) needs from its host before it completes is inferred from the
known working order of accesses: the session variables, the completion flags at 0x0171 and the DMA status at 0xCE6E of the write before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hw.errors import NotModelled
from mocks.asm24 import images
from mocks.asm24.sram import DATA, DATA_SIZE

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24

log = logging.getLogger(__name__)

GOOD, CHECK_CONDITION = 0x00, 0x02
NOT_READY, HARDWARE_ERROR, ILLEGAL_REQUEST = 0x02, 0x04, 0x05
NO_MEDIUM, INVALID_OPCODE, INVALID_FIELD, INTERNAL_FAILURE = 0x3A00, 0x2000, 0x2400, 0x4400

TEST_UNIT_READY, REQUEST_SENSE, INQUIRY, MODE_SENSE, START_STOP, PREVENT, READ_CAPACITY = 0x00, 0x03, 0x12, 0x1A, 0x1B, 0x1E, 0x25
SYNCHRONIZE, MODE_SENSE_10, READ_16, WRITE_16, SERVICE_IN, REPORT_LUNS = 0x35, 0x5A, 0x88, 0x8A, 0x9E, 0xA0
CONFIG_READ, CONFIG_WRITE, FLASH_READ, FIRMWARE_WRITE, XDATA_READ, XDATA_WRITE, NVME_ADMIN, RESET_COMMIT = 0xE0, 0xE1, 0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE8
FAMILY_TAG = 0x50
"""what the 246x family wants where its predecessors have nothing"""
FIRST_PART = 0xFF00
PART_ONE, PART_TWO = 0x50, 0xD0
CPU_RESET, SOFT_RESET, COMMIT = 0x00, 0x01, 0x51

SECTOR = 512
SESSION = {0x054B: 0x20, 0x054E: 0x04, 0x05A8: 0x02, 0x05F8: 0x04, 0x07EC: 0x01, 0x07ED: 0x00, 0x07EE: 0x00, 0x07EF: 0x00, 0xC422: 0x02, 0x0000: 0x33}
"""variables without which WRITE(16) waits for an NVMe device"""
FLAGS = range(0x0171, 0x0174)
FLAGS_READY = 0xFF
DMA_STATUS = range(0xCE6E, 0xCE70)
DMA_OFFSET = range(0xCE40, 0xCE44)
FLASH_SECTOR = 0x1000
SMALL_WRITE = 0x4000
"""bytes up to which a write does not move the engine's place in the SRAM"""


class Task:
    """One command at work. data_in: what it sends. wants: bytes it takes, handed to `sink` as they come. `finish` runs when the data
    went by. `hangs`: its status never comes. `after` runs when the host has its status."""

    def __init__(self, data_in: bytes = b"", *, wants: int = 0, sense: tuple[int, int] | None = None) -> None:
        self.data_in = data_in
        self.wants = wants
        self.got = 0
        self.sink: Callable[[bytes], None] | None = None
        self.finish: Callable[[], None] | None = None
        self.sense = sense
        """sense key, additional code and qualifier; None: GOOD"""
        self.hangs = False
        self.tag = 0
        self.shown_tag = 0
        """the tag in its status, another one when a fault wants it"""
        self.after: Callable[[], None] | None = None

    @property
    def status(self) -> int:
        return GOOD if self.sense is None else CHECK_CONDITION

    def sense_data(self) -> bytes:
        key, code = self.sense or (0, 0)
        return bytes([0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code >> 8, code & 0xFF, 0, 0, 0, 0])

    def accept(self, data: bytes) -> None:
        self.got += len(data)
        if self.sink is not None:
            self.sink(data)

    def end_data(self) -> None:
        """The data phase is over."""
        if self.finish is not None:
            self.finish()


class ScsiTarget:
    """Logical unit 0 of stock firmware (`rom` False) or of the ROM loader (`rom` True: flash commands only)."""

    def __init__(self, chip: Asm24, rom: bool = False) -> None:
        self.chip = chip
        self._rom = rom
        self._sense = Task()
        self._count = 0

    def boot(self) -> None:
        memory = self.chip.xdata.memory
        memory[FLAGS.start : FLAGS.stop] = bytes([FLAGS_READY]) * len(FLAGS)
        memory[DMA_STATUS.start : DMA_STATUS.stop] = bytes(len(DMA_STATUS))
        memory[DMA_OFFSET.start : DMA_OFFSET.stop] = bytes(len(DMA_OFFSET))
        for address in SESSION:
            if address < 0x6000:
                memory[address] = 0

    def start(self, cdb: bytes, tag: int) -> Task:
        """Begin a command."""
        self._count += 1
        task = self._dispatch(cdb)
        if self.chip.faults.hits("scsi-fail-at", self._count):
            task = Task(sense=(HARDWARE_ERROR, INTERNAL_FAILURE))
        task.tag = tag
        task.shown_tag = tag % 31 + 1 if self.chip.faults.hits("scsi-wrong-tag-at", self._count) else tag
        if task.sense is not None:
            self._sense = task
        return task

    def _dispatch(self, cdb: bytes) -> Task:
        opcode = cdb[0]
        common = {
            TEST_UNIT_READY: lambda _: Task(sense=(NOT_READY, NO_MEDIUM)),
            REQUEST_SENSE: self._request_sense,
            INQUIRY: self._inquiry,
            CONFIG_READ: self._config_read,
            CONFIG_WRITE: self._config_write,
            FLASH_READ: self._flash_read,
            FIRMWARE_WRITE: self._firmware_write,
            RESET_COMMIT: self._reset_commit,
        }
        stock = {
            MODE_SENSE: lambda _: Task(bytes([3, 0, 0, 0])),
            MODE_SENSE_10: lambda _: Task(bytes([0, 6, 0, 0, 0, 0, 0, 0])),
            START_STOP: lambda _: Task(),
            PREVENT: lambda _: Task(),
            SYNCHRONIZE: lambda _: Task(),
            READ_CAPACITY: lambda _: Task(sense=(NOT_READY, NO_MEDIUM)),
            SERVICE_IN: lambda _: Task(sense=(NOT_READY, NO_MEDIUM)),
            REPORT_LUNS: lambda _: Task(bytes([0, 0, 0, 8, 0, 0, 0, 0]) + bytes(8)),
            XDATA_READ: self._xdata_read,
            XDATA_WRITE: self._xdata_write,
            WRITE_16: self._write_16,
            READ_16: self._read_16,
            NVME_ADMIN: lambda _: Task(sense=(NOT_READY, NO_MEDIUM)),
        }
        handler = common.get(opcode) or (None if self._rom else stock.get(opcode))
        return handler(cdb) if handler is not None else Task(sense=(ILLEGAL_REQUEST, INVALID_OPCODE))

    # --- standard ---

    def _request_sense(self, cdb: bytes) -> Task:
        data = self._sense.sense_data()
        self._sense = Task()
        return Task(data[: cdb[4]])

    def _inquiry(self, cdb: bytes) -> Task:
        if cdb[1] & 1:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        block = self.chip.flash.read(0, images.CONFIG_SIZE)
        valid = images.config_valid(block, 0)
        vendor = images.config_string(block, "t10_vendor") if valid else "ASMT"
        product = images.config_string(block, "t10_product") if valid else "2464"
        data = bytes([0x00, 0x00, 0x06, 0x02, 31, 0, 0, 0]) + vendor.encode().ljust(8)[:8] + product.encode().ljust(16)[:16] + b"0   "
        return Task(data[: int.from_bytes(cdb[3:5], "big")])

    # --- XDATA ---

    def _place(self, cdb: bytes) -> tuple[int, int] | None:
        """(address, page) of an XDATA command; None without the family's tag."""
        where = int.from_bytes(cdb[2:5], "big")
        return (where & 0xFFFF, where >> 16 & 1) if where >> 16 & 0xFE == FAMILY_TAG else None

    def _xdata_read(self, cdb: bytes) -> Task:
        place = self._place(cdb)
        if place is None or cdb[1] == 0:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        return Task(self.chip.xdata.read_block(place[0], cdb[1], place[1]))

    def _xdata_write(self, cdb: bytes) -> Task:
        place = self._place(cdb)
        if place is None:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        self.chip.xdata.write(place[0], cdb[1], place[1])
        return Task()

    # --- bulk data into the SRAM ---

    def _write_16(self, cdb: bytes) -> Task:
        size = SECTOR * int.from_bytes(cdb[10:14], "big")
        memory = self.chip.xdata.memory
        missing = [address for address, value in SESSION.items() if memory[address] != value]
        missing += [address for address in FLAGS if memory[address] != FLAGS_READY] + [address for address in DMA_STATUS if memory[address]]
        start = int.from_bytes(memory[DMA_OFFSET.start : DMA_OFFSET.stop], "little")
        task = Task(wants=size)
        done = 0

        def sink(data: bytes) -> None:
            nonlocal done
            for offset in range(0, len(data), SECTOR):
                self.chip.sram.write(DATA + (start + done + offset) % DATA_SIZE, data[offset : offset + SECTOR])
            done += len(data)
            self.chip.busy(len(data) / self.chip.profile["scsi_write_rate"])

        def finish() -> None:
            memory[FLAGS.start : FLAGS.stop] = bytes(len(FLAGS))
            memory[DMA_STATUS.start : DMA_STATUS.stop] = bytes([1] * len(DMA_STATUS))
            if size > SMALL_WRITE:
                memory[DMA_OFFSET.start : DMA_OFFSET.stop] = ((start + size) % DATA_SIZE).to_bytes(4, "little")

        task.sink, task.finish = sink, finish
        if missing:
            log.info("WRITE(16) will not complete: XDATA %s not as it needs them", ", ".join(f"{address:#06x}" for address in missing))
            task.hangs = True
        return task

    def _read_16(self, cdb: bytes) -> Task:
        raise NotModelled("SCSI READ(16) of the bridge's stock firmware", means="nobody has seen what it does without an NVMe device")

    # --- flash ---

    def _config_read(self, cdb: bytes) -> Task:
        if cdb[1] != FAMILY_TAG or cdb[2] > 1:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        start = images.CONFIG_SIZE * cdb[2]
        return Task(self.chip.flash.read(start, images.CONFIG_SIZE))

    def _config_write(self, cdb: bytes) -> Task:
        if cdb[1] != FAMILY_TAG or cdb[2] > 1:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        return self._collect(images.CONFIG_SIZE, images.CONFIG_SIZE * cdb[2])

    def _flash_read(self, cdb: bytes) -> Task:
        size = int.from_bytes(cdb[2:6], "big")
        if cdb[1] not in (PART_ONE, PART_TWO) or size > FIRST_PART:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        start = 0 if cdb[1] == PART_ONE else FIRST_PART
        return Task(self.chip.flash.read(start, size))

    def _firmware_write(self, cdb: bytes) -> Task:
        size = int.from_bytes(cdb[2:6], "big")
        if cdb[1] not in (PART_ONE, PART_TWO) or not 0 < size <= FIRST_PART:
            return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
        return self._collect(size, images.IMAGE_AT + (0 if cdb[1] == PART_ONE else FIRST_PART))

    def _collect(self, size: int, flash_offset: int) -> Task:
        """Take data and write it to the flash a sector at a time as it comes: when it breaks off, the flash is half written."""
        task = Task(wants=size)
        place = flash_offset
        waiting = bytearray()

        def flush() -> None:
            nonlocal place
            good, seconds = self.chip.flash.rewrite(place, bytes(waiting))
            self.chip.busy(seconds)
            if self.chip.flash.chip.busy:
                task.hangs = True
            elif not good:
                task.sense = (HARDWARE_ERROR, INTERNAL_FAILURE)
            place += len(waiting)
            waiting.clear()

        def sink(data: bytes) -> None:
            while data:
                room = FLASH_SECTOR - (place + len(waiting)) % FLASH_SECTOR
                waiting.extend(data[:room])
                if len(data) >= room:
                    flush()
                data = data[room:]

        def finish() -> None:
            if waiting:
                flush()

        task.sink, task.finish = sink, finish
        return task

    def _reset_commit(self, cdb: bytes) -> Task:
        if cdb[1] == COMMIT:
            whole = images.unwrap(self.chip.flash.read(images.IMAGE_AT, images.LARGEST_IMAGE)) is not None
            return Task() if whole else Task(sense=(HARDWARE_ERROR, INTERNAL_FAILURE))
        if cdb[1] == CPU_RESET:
            task = Task()
            task.after = self.chip.cpu_reset
            return task
        if cdb[1] == SOFT_RESET:
            raise NotModelled("SCSI command E8 01 of the bridge", means="a reset whose extent nobody has verified")
        return Task(sense=(ILLEGAL_REQUEST, INVALID_FIELD))
