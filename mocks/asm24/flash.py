"""The bridge's SPI flash and the controller through which firmware and host reach it.

The chip behaves as serial NOR flash does: programming only clears bits, every change needs "write enable" first, erasing and
programming take time during which only the status can be read, protection bits make it ignore changes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hw.errors import NotModelled
from mocks.asm24 import images
from mocks.asm24.xdata import Xdata

if TYPE_CHECKING:
    from mocks.clock import Scheduler
    from mocks.faults import FaultPlan

log = logging.getLogger(__name__)

WRITE_STATUS, PROGRAM, READ, WRITE_DISABLE, READ_STATUS, WRITE_ENABLE = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
ERASE_SECTOR, ERASE_BLOCK, READ_ID, ENTER_OTP, LEAVE_OTP = 0x20, 0xD8, 0x9F, 0xB1, 0xC1
WIP, WEL, PROTECTION = 0x01, 0x02, 0x1C
SECTOR, BLOCK, PAGE = 0x1000, 0x10000, 0x100
TIMES = {PROGRAM: 0.7e-3, ERASE_SECTOR: 45e-3, ERASE_BLOCK: 150e-3, WRITE_STATUS: 5e-3}
"""typical, s (data sheets of 1 MiB parts)"""
BYTE_TIME = 8 / 25e6
"""s per byte on the SPI bus (25 MHz, one line)"""

BUFFER, BUFFER_SIZE = 0x7000, 0x1000
KEPT_HALF = 0x80
"""bytes of a page that stay as staged; firmware activity overwrites what lies above before they are sent"""
DIRECTION_TO_FLASH = 1


class SpiFlash:
    """The memory chip. Addresses are bytes from its start."""

    def __init__(self, scheduler: Scheduler, profile: dict[str, Any], faults: FaultPlan) -> None:
        self._clock = scheduler.clock
        self._faults = faults
        self.data = bytearray(b"\xff" * profile["size"])
        self.id = bytes(profile["jedec_id"])
        self._protection: int = profile["protection"] & PROTECTION
        serial = bytes.fromhex(profile["serial"])
        self.otp = bytearray(serial + bytes([serial[0] ^ serial[1] ^ serial[2] ^ serial[3]]) if serial else b"\xff" * 5).ljust(0x100, b"\xff")
        self._in_otp = False
        self._enabled = False
        self._busy_until = 0.0

    def serial(self) -> str:
        """The serial number in the OTP area as the open firmware shows it."""
        serial, check = self.otp[:4], self.otp[4]
        good = serial[0] ^ serial[1] ^ serial[2] ^ serial[3] == check and bytes(serial) != b"\xff" * 4
        return serial.hex() if good else "ffffffff"

    @property
    def status(self) -> int:
        return (WIP if self._clock.now() < self._busy_until else 0) | (WEL if self._enabled else 0) | self._protection

    def command(self, opcode: int, address: int, size: int, data: bytes) -> bytes:
        """One SPI command: what it answers (`size` bytes), or b"" for those that answer nothing. Raises NotModelled."""
        if opcode == READ_STATUS:
            return bytes([self.status]) * size
        if self.status & WIP:
            log.info("SPI opcode %#04x while an erase or write is under way: ignored", opcode)
            return b"\xff" * size
        if opcode == READ:
            store = self.otp if self._in_otp else self.data
            return bytes(store[(address + offset) % len(store)] for offset in range(size)) if address + size > len(store) else bytes(store[address : address + size])
        if opcode == READ_ID:
            return (self.id * (size // len(self.id) + 1))[:size]
        if opcode in (WRITE_ENABLE, WRITE_DISABLE):
            self._enabled = opcode == WRITE_ENABLE
        elif opcode in (ENTER_OTP, LEAVE_OTP):
            self._in_otp = opcode == ENTER_OTP
        elif opcode in TIMES:
            self._change(opcode, address, data)
        else:
            raise NotModelled(f"SPI flash opcode {opcode:#04x}")
        return b""

    def _change(self, opcode: int, address: int, data: bytes) -> None:
        if not self._enabled:
            log.info("SPI opcode %#04x without write enable: ignored", opcode)
            return
        self._enabled = False
        self._busy_until = float("inf") if self._faults.active("bridge-flash-busy") else self._clock.now() + TIMES[opcode]
        if opcode == WRITE_STATUS:
            if not self._faults.active("bridge-flash-protected") and data:
                self._protection = data[0] & PROTECTION
            return
        if self._protection:
            log.info("SPI opcode %#04x at %#x: protected", opcode, address)
            return
        if opcode == PROGRAM:
            self.program(address, data)
        else:
            size = SECTOR if opcode == ERASE_SECTOR else BLOCK
            start = address % len(self.data) & -size
            self.data[start : start + size] = b"\xff" * size

    def program(self, address: int, data: bytes) -> None:
        """Clear bits; inside a page the address wraps."""
        store = self.otp if self._in_otp else self.data
        base = address % len(store) & -PAGE
        for offset, value in enumerate(data):
            store[base + (address + offset) % PAGE] &= value
        bad = self._faults.argument("bridge-flash-bad-byte")
        if bad is not None and base <= int(bad, 0) < base + PAGE:
            store[int(bad, 0)] ^= 0x01

    def rewrite(self, address: int, data: bytes) -> None:
        """What a firmware's own update routine does: erase and program so that this lies here, and the rest stays."""
        self.data[address : address + len(data)] = data
        bad = self._faults.argument("bridge-flash-bad-byte")
        if bad is not None and address <= int(bad, 0) < address + len(data):
            self.data[int(bad, 0)] ^= 0x01


class FlashController:
    """Registers 0xC8A1 to 0xC8AF and the buffer at 0x7000."""

    def __init__(self, xdata: Xdata, flash: SpiFlash, scheduler: Scheduler, stale_first: float) -> None:
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
        address = memory[0xC8AB] << 16 | memory[0xC8A2] << 8 | memory[0xC8A1] if memory[0xC8AC] & 3 == 3 else 0
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
        answer = bytearray(self._flash.command(opcode, address, min(size, BUFFER_SIZE - offset), b""))
        if opcode == READ and answer:
            if size < BUFFER_SIZE:
                # shorter transfers leave the end of the buffer as it was
                del answer[-(-len(answer) // 2) :]
            if self._scheduler.random.random() < self._stale_first:
                answer[0] = memory[start]
        self._xdata.load(start, bytes(answer))


def fabricate(flash: SpiFlash, profile: dict[str, Any], seed: int) -> None:
    """Put config blocks and made-up firmware into a new chip, as the profile says: stock, custom (with or without boot stub), or nothing
    that runs (rom)."""
    usb, board = profile["usb"], profile["board"]
    ids = (board["vendor"], board["product_id"], board["release"])
    flash.data[: images.CONFIG_SIZE] = images.config_block(0, ids, **{name: board[name] for name in images.CONFIG_FIELDS})
    flash.data[images.CONFIG_SIZE : 2 * images.CONFIG_SIZE] = images.config_block(1)
    kind = profile["firmware"]
    if kind == "rom":
        return
    stub = kind == "custom" and profile["build"] == "newer"
    body = images.made_up("stub" if stub else kind, usb["product"], seed)
    wrapped = images.wrap(body)
    flash.data[images.IMAGE_AT : images.IMAGE_AT + len(wrapped)] = wrapped
    if stub:
        whole = images.application(images.made_up("custom", usb["product"], seed))
        flash.data[images.APPLICATION_AT : images.APPLICATION_AT + len(whole)] = whole
