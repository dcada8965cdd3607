"""The PSP's flash mailbox: C2PMSG_115 (command and status), _116 (data), _73 (doorbell).

Early, between the autonomous boot and the secure OS, it takes an image item by item: it says which one it wants, checks the item's
structure (and simulated signatures), chooses where it goes, and writes it to the chip. Once the secure OS runs, update commands are
refused as partition updates, and the live update fails when it writes, as seen on a stock image.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator
from typing import TYPE_CHECKING

from firmware import ifwi_layout, mailbox_layout
from firmware.mailbox_layout import READY, EarlyCommand, LiveCommand
from mocks.amd import ifwi
from mocks.amd.block import Block, Reg, on_read, on_write, stored
from mocks.clock import Engine, Signal, Until

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu
    from mocks.amd.rom import Rom

log = logging.getLogger(__name__)

Work = Generator["float | Signal | Until | None", None, bool]
"""a part of an engine that says whether it succeeded"""

INVALID_PARAMETER = 0x3
OUT_OF_BOUNDS = 0x2
WRITE_FAILED = 0xC
BAD_SIGNATURE = 0xD
INVALID_COMMAND = 0xE
NO_STATE_MACHINE = 0x10
WRONG_STATE = 0x11

QUICK = 3e-6
"""s an answer takes that needs no flash (I)"""
TRAINED = 1
"""answer to GET_FB_STATE (I)"""
SECTOR = 0x1000
PAGE = 256
UNKNOWN_ITEM = 0x0F

MAGICS = {
    ifwi_layout.HEADER: ifwi_layout.MAGIC,
    0x02: ifwi_layout.DIRECTORY_MAGIC,
    0x03: ifwi_layout.DIRECTORY_MAGIC,
    ifwi_layout.SIGNATURE_TABLE: ifwi_layout.SIGNATURE_MAGIC,
}


class PspMailbox(Block):
    """Flash updates by the security processor."""

    key = "psp_mailbox"
    REGISTERS = (stored("MP0", "MP0_SMN_C2PMSG_115", "MP0_SMN_C2PMSG_116", "MP0_SMN_C2PMSG_73"),)

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.numbers = self.profile["flash"]["update"]
        self.items: dict[int, bytes] = {}
        """what was streamed since power came, by item"""
        self.finished = False
        self._position = 0
        self._open: tuple[int, int] | None = None
        """item and size of the transfer that is going on"""
        self._received = bytearray()
        self._answer: tuple[float, int, int | None] | None = None
        """when the firmware answers, its error code, its data"""
        self._counts: dict[int, int] = {}

    @property
    def rom(self) -> Rom:
        return self.gpu.blocks["rom"]  # type: ignore[return-value]

    def attach(self) -> None:
        super().attach()
        self._command = self.reg("MP0", "MP0_SMN_C2PMSG_115")
        self._data = self.reg("MP0", "MP0_SMN_C2PMSG_116")

    def reset(self) -> None:
        super().reset()
        self.items.clear()
        self.finished = False
        self._position = 0
        self._open = None
        self._received.clear()
        self._answer = None
        self._counts.clear()

    def post(self) -> None:
        """The boot firmware listens."""
        self._command.value = READY

    # --- registers ---

    @on_read("MP0", "MP0_SMN_C2PMSG_115")
    def read_command(self, reg: Reg) -> int:
        self._settle()
        return reg.value

    @on_read("MP0", "MP0_SMN_C2PMSG_116")
    def read_data(self, reg: Reg) -> int:
        self._settle()
        return reg.value

    @on_write("MP0", "MP0_SMN_C2PMSG_115")
    def write_command(self, value: int, reg: Reg) -> None:
        """Holds what was written until the doorbell rings."""

    @on_write("MP0", "MP0_SMN_C2PMSG_73")
    def doorbell(self, value: int, reg: Reg) -> None:
        command = self._command.value
        if command & READY or not self.gpu.psp.posted or self._answer is not None or self.faults.active("mailbox-silent"):
            log.info("PSP flash mailbox: doorbell without a command, or nobody there: nothing happens")
            return
        number = command >> mailbox_layout.COMMAND_SHIFT & 0xFF
        self._counts[number] = self._counts.get(number, 0) + 1
        planned = self._planned_error(number)
        if planned is not None:
            self._reply(planned)
            return
        if self.gpu.psp.sos_alive:
            self._live(number)
        else:
            self._early(number, self._data.value)

    def _planned_error(self, number: int) -> int | None:
        """The fault "mailbox-error=COMMAND:CODE[:N]": the N-th such command fails (default: each)."""
        words = (self.faults.argument("mailbox-error") or "").split(":")
        if len(words) < 2 or int(words[0], 0) != number:
            return None
        return int(words[1], 0) if len(words) < 3 or self._counts[number] == int(words[2]) else None

    def _reply(self, error: int, data: int | None = None, after: float = QUICK) -> None:
        self._answer = (self.clock.now() + after, error, data)

    def _settle(self) -> None:
        if self._answer is not None and self.clock.now() >= self._answer[0]:
            _, error, data = self._answer
            self._answer = None
            self._command.value = READY | error
            if data is not None:
                self._data.value = data

    # --- early commands ---

    @property
    def _wanted(self) -> int:
        order: list[int] = self.numbers["order"]
        if self.faults.active("mailbox-strange-item"):
            return UNKNOWN_ITEM
        return order[self._position % len(order)]

    @property
    def _phase(self) -> int:
        last = self._position == len(self.numbers["order"]) - 1
        if self.faults.active("mailbox-endless"):
            return 1
        return mailbox_layout.LAST_PHASE if last else min(self._position, 1)

    def _early(self, number: int, data: int) -> None:
        match number:
            case EarlyCommand.GET_BOOT_PARTITION:
                self._reply(0, self.rom.partition)
            case EarlyCommand.GET_FB_STATE:
                self._reply(0, TRAINED)
            case EarlyCommand.SPI_GET_MODEL_ID:
                self._reply(0, int.from_bytes(self.rom.chip.model.jedec, "little"))
            case EarlyCommand.GET_TRANSFER_TYPE:
                self._reply(NO_STATE_MACHINE if self.finished else 0, self._phase << 8 | self._wanted)
            case EarlyCommand.START_TRANSFER:
                self._reply(self._start(data & mailbox_layout.ITEM_MASK, data >> mailbox_layout.SIZE_SHIFT))
            case EarlyCommand.DATA_TRANSFER:
                self._reply(self._take(data))
            case EarlyCommand.END_TRANSFER:
                self._end(data & mailbox_layout.ITEM_MASK, data >> mailbox_layout.SIZE_SHIFT)
            case _:
                self._reply(INVALID_COMMAND)

    def _start(self, item: int, size: int) -> int:
        if self.finished:
            return NO_STATE_MACHINE
        if self._open is not None:
            return WRONG_STATE
        if item != self._wanted:
            return INVALID_PARAMETER
        if size == 0 or size % 4 or size > ifwi_layout.SIZE:
            return OUT_OF_BOUNDS
        self._open = (item, size)
        self._received.clear()
        return 0

    def _take(self, word: int) -> int:
        if self._open is None:
            return WRONG_STATE
        if len(self._received) + 4 > self._open[1]:
            return OUT_OF_BOUNDS
        self._received += word.to_bytes(4, "little")
        return 0

    def _end(self, item: int, sent: int) -> None:
        """Closes the session; a complete item is checked and written."""
        if self._open is None:
            self._reply(WRONG_STATE)
            return
        wanted, size = self._open
        self._open = None
        content = bytes(self._received)
        if (item, sent) != (wanted, size) or len(content) != size:
            self._reply(WRONG_STATE)
        elif not self._acceptable(item, content):
            self._reply(BAD_SIGNATURE)
        else:
            self._answer = (float("inf"), 0, None)
            self.scheduler.spawn("PSP flash update", self._commit(item, content))

    def _acceptable(self, item: int, content: bytes) -> bool:
        """Structure, and for a payload the simulated signature that was streamed before."""
        if not content.startswith(MAGICS.get(item, b"")):
            return False
        signature = self.items.get(ifwi_layout.SIGNATURE_TYPE_OF_ITEM + 5, b"")
        return item != ifwi_layout.PAYLOAD or not signature.startswith(ifwi.KEY) or signature.startswith(ifwi.signature(content))

    def _commit(self, item: int, content: bytes) -> Engine:
        """Write an item to where it belongs, then ask for the next one; after the last one mark the update."""
        self.items[item] = content
        good = True
        for place, data in self._destinations(item, content):
            good = good and (yield from self._write(place, data))
        last = self._position == len(self.numbers["order"]) - 1 and not self.faults.active("mailbox-endless")
        if good and last:
            good = yield from self._finish()
        if good:
            self._position += 1
            self.finished = last
        self._answer = (self.clock.now(), 0 if good else WRITE_FAILED, None)

    def _destinations(self, item: int, content: bytes) -> list[tuple[int, bytes]]:
        if item == ifwi_layout.PAYLOAD:
            slots = [self._slot(0x07), self._slot(0x06)]  # the partition that was not booted first
            if self.rom.partition == 1:
                slots.reverse()
            return [(place, content) for place in slots]
        if item in ifwi_layout.FIXED:
            return [(ifwi_layout.FIXED[item][0], content)]
        if item in ifwi_layout.DIRECTORIES:
            return [(ifwi_layout.DIRECTORIES[item], content)]
        pointer = self.items.get(ifwi_layout.SIGNATURE_POINTER) or self.rom.chip.memory.read(ifwi_layout.FIXED[ifwi_layout.SIGNATURE_POINTER][0], 4)
        table = int.from_bytes(pointer, "little")
        if item == ifwi_layout.SIGNATURE_TABLE:
            return [(table, content)]
        entries = self.items.get(ifwi_layout.SIGNATURE_TABLE) or self.rom.chip.memory.read(table, SECTOR)
        for place in range(ifwi_layout.TABLE_ENTRY, len(entries) - ifwi_layout.TABLE_ENTRY + 1, ifwi_layout.TABLE_ENTRY):
            kind, _, _, offset = struct.unpack_from("<IIII", entries, place)
            if kind == item - ifwi_layout.SIGNATURE_TYPE_OF_ITEM:
                return [(offset, content)]
        return []

    def _slot(self, item: int) -> int:
        """Payload offset of a slot header, streamed or in the flash."""
        header = self.items.get(item) or self.rom.chip.memory.read(ifwi_layout.SLOTS[item], 0x20)
        return int.from_bytes(header[ifwi_layout.SLOT_PAYLOAD_OFFSET : ifwi_layout.SLOT_PAYLOAD_OFFSET + 4], "little")

    def _finish(self) -> Work:
        """What an update leaves behind: the cookie, a counter and checksum in slot header B, metadata."""
        header = self.rom.chip.memory.read(ifwi_layout.SLOTS[0x07], 0x20)
        at, size, counter = (int.from_bytes(header[place : place + 4], "little") for place in (0x10, 0x18, ifwi.SLOT_COUNTER))
        good = yield from self._write(ifwi_layout.SLOTS[0x07], ifwi.slot_header(0x07, at, size, counter=counter + 1))
        good = good and (yield from self._write(ifwi.COOKIE_AT, ifwi_layout.COOKIE_MAGIC + struct.pack("<II", counter + 1, 0)))
        good = good and (yield from self._write(ifwi_layout.UPDATE_METADATA[0], struct.pack("<IIII", 0x4D455441, counter + 1, at, size)))
        return good

    def _write(self, offset: int, data: bytes) -> Work:
        """Bring bytes into the flash, sector by sector, over the chip's pins. Returns whether they read back."""
        chip = self.rom.chip
        for base in range(offset - offset % SECTOR, offset + len(data), SECTOR):
            old = chip.transact(b"\x03" + base.to_bytes(3, "big"), SECTOR)
            first, last = max(offset, base), min(offset + len(data), base + SECTOR)
            new = old[: first - base] + data[first - offset : last - offset] + old[last - base :]
            if new == old:
                continue
            yield from self._operate(b"\x20" + base.to_bytes(3, "big"), 0.01)
            for page in range(0, SECTOR, PAGE):
                part = new[page : page + PAGE]
                if part != b"\xff" * PAGE:
                    yield from self._operate(b"\x02" + (base + page).to_bytes(3, "big") + part, 0.2e-3)
            if chip.transact(b"\x03" + base.to_bytes(3, "big"), SECTOR) != new:
                return False
        return True

    def _operate(self, command: bytes, step: float) -> Engine:
        chip = self.rom.chip
        chip.transact(b"\x06")
        chip.transact(command)
        while chip.powered and chip.transact(b"\x05", 1)[0] & 1:
            yield step

    # --- live commands ---

    def _live(self, number: int) -> None:
        match number:
            case LiveCommand.ADDRESS_LOW | LiveCommand.ADDRESS_HIGH:
                self._reply(0)
            case LiveCommand.UPDATE:
                self._answer = (float("inf"), 0, None)
                self.scheduler.spawn("PSP live update", self._live_update())
            case EarlyCommand.GET_TRANSFER_TYPE | EarlyCommand.START_TRANSFER | EarlyCommand.DATA_TRANSFER | EarlyCommand.END_TRANSFER:
                self._reply(mailbox_layout.GATED)
            case EarlyCommand.GET_BOOT_PARTITION | EarlyCommand.GET_FB_STATE | EarlyCommand.SPI_GET_MODEL_ID:
                self._early(number, 0)
            case _:
                self._reply(INVALID_COMMAND)

    def _live_update(self) -> Engine:
        """As seen: a cookie gets into the flash, then writing fails."""
        yield from self._write(ifwi.COOKIE_AT, ifwi_layout.COOKIE_MAGIC)
        self._answer = (self.clock.now(), WRITE_FAILED, None)


def blocks(gpu: Gpu) -> list[Block]:
    return [PspMailbox(gpu)] if "flash" in gpu.profile else []
