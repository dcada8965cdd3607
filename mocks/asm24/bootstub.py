"""The open firmware's boot stub (DFU on the control endpoint, Protocol D), and what runs after a start."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING

from hw.errors import NotModelled
from mocks.asm24 import descriptors, flash, images
from mocks.asm24.custom import DFU_COOKIE, DFU_COOKIE_AT, STATUS_TIME, CustomFirmware
from mocks.asm24.device import Answer, Control, Firmware, Setup, Stall
from mocks.asm24.stock import RomLoader, StockFirmware
from mocks.spi_model import WIP

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24

log = logging.getLogger(__name__)



class Request(IntEnum):
    """Vendor requests of the boot stub."""

    ERASE = 0xB0
    SET_ADDRESS = 0xB1
    WRITE = 0xB2
    READ = 0xB3
    INFO = 0xB4
    RESET = 0xEB


LARGEST = 64
INFO_SIZE = 17
SLACK = 1e-4
"""s between two looks at the flash's status"""
AREA = range(images.APPLICATION_AT, 0x12000)
PRODUCT_ID = 0xB007


def firmware_for(chip: Asm24) -> Firmware:
    """Look at the image in code RAM as ROM and stub do, and start what it is."""
    if not chip.body:
        return RomLoader(chip)
    identity = images.identify(chip.body)
    if identity is None:
        raise NotModelled(f"a bridge firmware of {len(chip.body)} bytes", means="neither stock nor open firmware that the simulated chip knows")
    if identity.kind == "stub":
        return _behind_stub(chip)
    return StockFirmware(chip) if identity.kind == "stock" else CustomFirmware(chip, identity.product)


def _behind_stub(chip: Asm24) -> Firmware:
    cookie = chip.xdata.memory[DFU_COOKIE_AT : DFU_COOKIE_AT + len(DFU_COOKIE)]
    chip.xdata.memory[DFU_COOKIE_AT : DFU_COOKIE_AT + len(DFU_COOKIE)] = bytes(len(DFU_COOKIE))
    body = images.application_body(chip.flash.read(images.APPLICATION_AT, images.APPLICATION_END - images.APPLICATION_AT))
    identity = images.identify(body) if body is not None else None
    if cookie == DFU_COOKIE or identity is None or identity.kind != "custom":
        return BootStub(chip)
    return CustomFirmware(chip, identity.product)


class BootStub(Firmware):
    """DFU mode, newer draft: 17 bytes of info, no status request."""

    name = "bootstub"
    fastest = descriptors.HIGH

    def __init__(self, chip: Asm24) -> None:
        super().__init__(chip)
        self._cursor = 0

    def descriptors(self, speed: int) -> descriptors.Descriptors:
        return descriptors.boot_stub(self.chip.profile["usb"]["vendor"], PRODUCT_ID)

    def vendor(self, setup: Setup, data: bytes) -> Answer:
        match setup.request, setup.is_in:
            case (Request.ERASE, False) if len(data) == 8:
                return self._erase(int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little"))
            case (Request.SET_ADDRESS, False) if not data:
                self._cursor = (setup.index & 0xFF) << 16 | setup.value
            case (Request.WRITE, False) if 1 <= len(data) <= LARGEST:
                return self._write(data)
            case (Request.READ, True) if 1 <= setup.length <= LARGEST:
                self._check(self._cursor, setup.length)
                found = self.chip.flash.read(self._cursor, setup.length)
                self._cursor += setup.length
                return found
            case (Request.INFO, True) if setup.length == INFO_SIZE:
                numbers = [(LARGEST, 2), (flash.SECTOR, 2), (images.APPLICATION_AT, 4), (images.APPLICATION_END, 4), (images.APPLICATION_ABI, 1)]
                return b"A24D" + b"".join(value.to_bytes(size, "little") for value, size in numbers)
            case (Request.RESET, False) if not data:
                self.chip.scheduler.call_later(STATUS_TIME, self.chip.cpu_reset)
            case _:
                raise Stall
        return b""

    def _check(self, address: int, size: int) -> None:
        if size < 1 or address not in AREA or address + size - 1 not in AREA:
            raise Stall

    def _erase(self, address: int, size: int) -> Control:
        self._check(address, size)
        if address % flash.SECTOR or size % flash.SECTOR:
            raise Stall
        for sector in range(address, address + size, flash.SECTOR):
            yield from self._operate(flash.ERASE_SECTOR, sector, b"")
        return b""

    def _write(self, data: bytes) -> Control:
        self._check(self._cursor, len(data))
        yield from self._operate(flash.PROGRAM, self._cursor, data)
        self._cursor += len(data)
        return b""

    def _operate(self, opcode: int, address: int, data: bytes) -> Control:
        """One change of the flash, waited for. A chip that stays protected or busy: stall."""
        memory = self.chip.flash
        model = memory.chip.model
        if memory.chip.status(0) & flash.PROTECTION:
            memory.command(flash.WRITE_ENABLE, None, 0)
            memory.command(flash.WRITE_STATUS, None, 0, b"\0")
            yield model.status_time
        memory.command(flash.WRITE_ENABLE, None, 0)
        memory.command(opcode, address, 0, data)
        yield (model.program_time if opcode == flash.PROGRAM else model.erase_times[flash.SECTOR]) + SLACK
        if memory.chip.status(0) & (WIP | flash.PROTECTION):
            raise Stall
        return b""
