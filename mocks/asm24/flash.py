"""The bridge's SPI flash and the controller through which firmware and host reach it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hw.errors import NotModelled
from mocks.asm24 import images
from mocks.asm24.xdata import Xdata
from mocks.lasting import folder_name
from mocks.spi import SpiChip
from mocks.spi_model import BP_SHIFT, SRP0, WIP, ChipModel

if TYPE_CHECKING:
    from mocks.clock import Scheduler
    from mocks.machine import Machine

log = logging.getLogger(__name__)

WRITE_STATUS, PROGRAM, READ, READ_STATUS, WRITE_ENABLE, ERASE_SECTOR = 0x01, 0x02, 0x03, 0x05, 0x06, 0x20
ENTER_OTP, LEAVE_OTP = 0xB1, 0xC1
PROTECTION = 0x7 << BP_SHIFT
SECTOR, PAGE = 0x1000, 0x100
BYTE_TIME = 8 / 25e6
"""s per byte on the SPI bus (25 MHz, one line)"""
ADDRESS = "asm24"
"""what faults of this flash are addressed to: flash-worn@asm24=0x104"""

BUFFER, BUFFER_SIZE = 0x7000, 0x1000
KEPT_HALF = 0x80
"""bytes of a page that stay as staged; firmware activity overwrites what lies above before they are sent"""
DIRECTION_TO_FLASH = 1


class BridgeFlash:
    """The chip on the board, and what firmware does with it. Offsets are bytes from its start."""

    def __init__(self, machine: Machine, profile: dict[str, Any]) -> None:
        self._clock = machine.clock
        entry = dict(profile["flash"]["chip"])
        if machine.faults.active("bridge-flash-protected"):
            entry["status"] = [entry["status"][0] | SRP0, 0, 0]
            entry["wp_low"] = True
        folder = machine.state_dir / "machines" / folder_name(machine.name) / ADDRESS if machine.state_dir else None
        self.chip = SpiChip(
            ChipModel.from_profile(entry),
            machine.clock,
            machine.scheduler,
            factory=lambda: delivered(profile, machine.seed, entry["size"]),
            folder=folder,
            faults=machine.faults.at(ADDRESS),
            seed=machine.seed,
        )
        serial = bytes.fromhex(profile["flash"]["serial"])
        self._otp = (serial + bytes([serial[0] ^ serial[1] ^ serial[2] ^ serial[3]]) if serial else b"").ljust(PAGE, b"\xff")
        self._otp_open = False

    def read(self, offset: int, size: int) -> bytes:
        """The array as it is."""
        return self.chip.memory.read(offset, size)

    def serial(self) -> str:
        """The serial number in the OTP area as the open firmware shows it."""
        serial, check = self._otp[:4], self._otp[4]
        good = serial[0] ^ serial[1] ^ serial[2] ^ serial[3] == check and serial != b"\xff" * 4
        return serial.hex() if good else "ffffffff"

    def command(self, opcode: int, address: int | None, size: int, data: bytes = b"", at: float | None = None) -> bytes:
        """One command on the bus: opcode, three address bytes unless None, data; then `size` bytes come back. Raises NotModelled."""
        if opcode in (ENTER_OTP, LEAVE_OTP):
            self._otp_open = opcode == ENTER_OTP
            return b""
        if self._otp_open and opcode == READ and address is not None:
            return (self._otp[address % PAGE :] + b"\xff" * size)[:size]
        if self._otp_open and opcode != READ_STATUS:
            raise NotModelled(f"SPI flash opcode {opcode:#04x} in the OTP area")
        return self.chip.transact(bytes([opcode]) + (b"" if address is None else address.to_bytes(3, "big")) + data, size, at=at)

    def rewrite(self, offset: int, data: bytes) -> tuple[bool, float]:
        """What a firmware's own update routine does: unprotect, then erase and program sector by sector so that this lies here and the rest
        stays. Returns whether it reads back, and the time it took (s)."""
        start = now = self._clock.now()
        model = self.chip.model
        if self.chip.status(0) & PROTECTION:
            self.command(WRITE_ENABLE, None, 0, at=now)
            self.command(WRITE_STATUS, None, 0, b"\0", at=now)
            now += model.status_time
        for sector in range(offset & -SECTOR, offset + len(data), SECTOR):
            old = self.read(sector, SECTOR)
            low, high = max(offset, sector), min(offset + len(data), sector + SECTOR)
            new = old[: low - sector] + data[low - offset : high - offset] + old[high - sector :]
            if new == old:
                continue
            self.command(WRITE_ENABLE, None, 0, at=now)
            self.command(ERASE_SECTOR, sector, 0, at=now)
            now += model.erase_times[SECTOR]
            for page in range(0, SECTOR, PAGE):
                if new[page : page + PAGE].strip(b"\xff"):
                    self.command(WRITE_ENABLE, None, 0, at=now)
                    self.command(PROGRAM, sector + page, 0, new[page : page + PAGE], at=now)
                    now += model.program_time
        status = self.command(READ_STATUS, None, 1, at=now)[0]
        return not status & WIP and self.read(offset, len(data)) == data, now - start


class FlashController:
    """Registers 0xC8A1 to 0xC8AF and the buffer at 0x7000."""

    def __init__(self, xdata: Xdata, flash: BridgeFlash, scheduler: Scheduler, stale_first: float) -> None:
        self._xdata = xdata
        self._flash = flash
        self._scheduler = scheduler
        self._stale_first = stale_first
        self._busy_until = 0.0
        xdata.hook("FLASH_CSR", lambda _: int(scheduler.clock.now() < self._busy_until), self._start)

    def _start(self, _: int, value: int) -> None:
        if not value & 1:
            return
        memory = self._xdata.memory
        size = memory[0xC8A3] << 8 | memory[0xC8A4]
        if not memory[0xCA81] & 1:
            log.info("flash command while 0xCA81 bit 0 is clear: the controller does not run")
            return
        address = memory[0xC8AB] << 16 | memory[0xC8A2] << 8 | memory[0xC8A1] if memory[0xC8AC] & 3 == 3 else None
        offset = memory[0xC8AF] << 8 | memory[0xC8AE]
        opcode = memory[0xC8AA]
        self._busy_until = self._scheduler.clock.now() + (1 + size) * BYTE_TIME
        start = BUFFER + offset % BUFFER_SIZE
        if memory[0xC8AD] & DIRECTION_TO_FLASH:
            data = bytearray(memory[start : start + size])
            if size > KEPT_HALF:
                data[KEPT_HALF:] = self._scheduler.random.randbytes(len(data) - KEPT_HALF)
            self._flash.command(opcode, address, 0, bytes(data))
            return
        answer = bytearray(self._flash.command(opcode, address, min(size, BUFFER_SIZE - offset)))
        if opcode == READ and answer:
            if size < BUFFER_SIZE:
                # shorter transfers leave the end of the buffer as it was
                del answer[-(-len(answer) // 2) :]
            if answer and self._scheduler.random.random() < self._stale_first:
                answer[0] = memory[start]
        self._xdata.load(start, bytes(answer))


def delivered(profile: dict[str, Any], seed: int, size: int) -> bytes:
    """The content of a new board's chip: config blocks and made-up firmware as the profile says. Firmware "stock", "custom" (newer builds
    with their boot stub), "rom" (nothing that runs); "blank": not even config blocks."""
    usb, board = profile["usb"], profile["board"]
    content = bytearray(b"\xff" * size)
    kind = profile["firmware"]
    if kind == "blank":
        return bytes(content)
    ids = (board["vendor"], board["product_id"], board["release"])
    content[: images.CONFIG_SIZE] = images.config_block(0, ids, **{name: board[name] for name in images.CONFIG_FIELDS})
    content[images.CONFIG_SIZE : 2 * images.CONFIG_SIZE] = images.config_block(1)
    if kind == "rom":
        return bytes(content)
    stub = kind == "custom" and profile["build"] == "newer"
    wrapped = images.wrap(images.made_up("stub" if stub else kind, usb["product"], seed))
    content[images.IMAGE_AT : images.IMAGE_AT + len(wrapped)] = wrapped
    if stub:
        whole = images.application(images.made_up("custom", usb["product"], seed))
        content[images.APPLICATION_AT : images.APPLICATION_AT + len(whole)] = whole
    return bytes(content)
