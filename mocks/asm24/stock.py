"""ASMedia's firmware (Protocol S) and the mask ROM's loader: SCSI vendor commands behind BOT, and UAS as alternate setting 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mocks.asm24 import descriptors, images, link
from mocks.asm24.bot import BulkOnly
from mocks.asm24.device import Answer, Firmware, Setup
from mocks.asm24.scsi import ScsiTarget
from mocks.asm24.uas import Uas

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24

VERSION_AT = 0x07F0
RESET_TRANSPORT, MAX_LUN = 0xFF, 0xFE
DEFAULT_IDS = (0x174C, 0x2462, 0x0100)
DEFAULT_STRINGS = ("ASMedia", "ASM2464PD", "0" * 20)
ROM_IDS = (0x174C, 0x2463)


class StockFirmware(Firmware):
    """Protocol S."""

    name = "stock"
    rom = False

    def __init__(self, chip: Asm24) -> None:
        super().__init__(chip)
        self.target = ScsiTarget(chip, self.rom)
        self._bot = BulkOnly(self.target)
        self._uas: Uas | None = None
        self._pipes_dead = False

    def boot(self) -> None:
        self.target.boot()
        self.chip.xdata.load(VERSION_AT, bytes(self.chip.profile["version"]))
        xdata = self.chip.xdata
        steps = [(link.WIDTH_CAP, self.chip.profile["link"]["width_cap"]), (link.POWER, link.SLOT_POWER), (link.LANES, 0x01), (link.TRAIN, link.TRAIN_AND_RETRY)]
        for address, value in (*steps, (0xB298, 0x10), (link.PERST, 0x00), (link.TRAIN, link.TRAIN_STOCK)):
            xdata.write(address, value)

    def _config(self) -> bytes | None:
        block = self.chip.flash.read(0, images.CONFIG_SIZE)
        return block if images.config_valid(block, 0) else None

    def descriptors(self, speed: int) -> descriptors.Descriptors:
        block = self._config()
        if block is None:
            return descriptors.stock(*DEFAULT_IDS, DEFAULT_STRINGS, speed)
        vendor, product, release = (int.from_bytes(block[place : place + 2], "little") for place in (0x74, 0x76, 0x78))
        texts = (images.config_string(block, "manufacturer"), images.config_string(block, "product"), images.config_string(block, "serial"))
        return descriptors.stock(vendor, product, release, texts, speed)

    # --- transport state ---

    def configured(self) -> None:
        self.selected(0)

    def selected(self, alternate: int) -> None:
        self._bot.reset()
        self._uas = Uas(self.target, self.chip.usb.speed != descriptors.HIGH) if alternate else None

    def bus_reset(self) -> None:
        self._pipes_dead = False
        self._bot.reset()
        self._uas = None

    def class_request(self, setup: Setup, data: bytes) -> Answer:
        if setup.request == RESET_TRANSPORT and not setup.is_in:
            self._bot.reset()
            return b""
        if setup.request == MAX_LUN and setup.is_in:
            return b"\0"[: setup.length]
        return self.unknown(setup)

    # --- bulk data ---

    def take(self, endpoint: int, data: memoryview, stream: int) -> tuple[int, float]:
        if self._pipes_dead:
            return 0, 0.0
        packet = self.chip.usb.packet
        if self._uas is not None:
            taken = self._uas.take(endpoint, data, packet, stream)
        else:
            before = self._bot.state
            taken = self._bot.take(data, packet)
            if before == "command" and taken:
                self.chip.busy(self.chip.profile["scsi_command_time"])
        if taken:
            self.chip.usb.wake()
        return taken, 0.0

    def give(self, endpoint: int, room: int, stream: int) -> tuple[bytes | None, float]:
        if self._pipes_dead:
            return None, 0.0
        packet = self.chip.usb.packet
        found = self._uas.give(endpoint, packet, stream) if self._uas is not None else self._bot.give(packet)
        if found is not None:
            self.chip.usb.wake()
        return found, 0.0


class RomLoader(StockFirmware):
    """What answers when the flash holds nothing that runs: BOT with the flash commands. It does not touch PCIe."""

    name = "rom"
    rom = True

    def boot(self) -> None:
        self.target.boot()

    def descriptors(self, speed: int) -> descriptors.Descriptors:
        block = self._config()
        if block is None:
            return descriptors.rom(*ROM_IDS, speed)
        return descriptors.rom(int.from_bytes(block[0x74:0x76], "little"), int.from_bytes(block[0x76:0x78], "little"), speed)

    def driver_left(self) -> None:
        """Its bulk pipes do not work after another driver until the port is reset."""
        self._pipes_dead = True
