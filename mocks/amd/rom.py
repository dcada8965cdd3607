"""The card's flash chip and the ways from the bus to it: the ROM_SW engine and the ROM_INDEX/ROM_DATA aperture of SMUIO.

What the boot firmware finds in the flash decides which way is open. With an image that boots, the engine is gated and writes to the
aperture's registers arrive byte-swapped; with an empty or damaged one the boot stalls, the engine works, and writes arrive plain.
"""

from __future__ import annotations

import logging
import random
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from firmware import ifwi_layout as layout
from hw.errors import NotModelled, ProfileError
from mocks.amd import ifwi
from mocks.amd.block import ALL_BITS, Block, Reg, on_read, on_write, stored
from mocks.lasting import folder_name
from mocks.spi import SpiChip
from mocks.spi_model import ChipModel

if TYPE_CHECKING:
    from pathlib import Path

    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

GATED_STATUS = 0x04000800
STUCK_STATUS = 0x00000002
SOFTWARE_MODE = 8
MIRROR_FOR_SOFTWARE = 3
WINDOW = 256
"""bytes of the data window"""
INDEX_SHIFT = 8
"""the index register counts 256-byte units"""
APERTURE_PAGE = 0x10000
APERTURE_SIZE = 0x200000
ENGINE_OVERHEAD = 4e-6
"""s a transaction takes beyond the bits on the wire (I)"""

CONTENTS = ("ifwi", "blank", "noise")

boot_of = lru_cache(maxsize=8)(ifwi.boot)


class Rom(Block):
    """Flash chip, ROM_SW engine and aperture."""

    key = "rom"
    REGISTERS = (
        stored("SMUIO", "ROM_CNTL", reset=0x00080001, mask=ALL_BITS),
        stored("SMUIO", "PAGE_MIRROR_CNTL", reset=0x02000011, mask=ALL_BITS),
        stored("SMUIO", "GPIO_PAD_MASK", reset=0x00000FF3, mask=ALL_BITS),
        stored("SMUIO", "GPIO_PAD_A", reset=0x00000385, mask=ALL_BITS),
        stored("SMUIO", "GPIO_PAD_EN", reset=0x00000780, mask=ALL_BITS),
        stored("SMUIO", "ROM_INDEX", mask=ALL_BITS),
        stored("SMUIO", "ROM_SW_DATA_*"),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.numbers: dict[str, Any] = self.profile["flash"]
        machine = gpu.machine
        folder: Path | None = machine.state_dir / "machines" / folder_name(machine.name) / folder_name(gpu.function.address) if machine.state_dir else None
        self.chip = SpiChip(
            ChipModel.from_profile(self.numbers["chip"]),
            gpu.clock,
            gpu.scheduler,
            factory=self._factory,
            folder=folder,
            faults=gpu.faults,
            seed=machine.seed,
            on_power_cut=self._power_lost,
        )
        self._random = random.Random(f"rom {machine.seed}")
        self.booted = False
        """the boot firmware found an image it could start"""
        self.partition = 0
        self.boot_problem = ""
        self._pointer = 0
        self._page: tuple[int, ...] = ()
        """dwords of the page that the aperture shows, as the chip gave them"""
        self._page_cycle = 0
        """how many commands the chip had got by then; another one may have changed what it holds"""
        self._capture = b""
        """what the latest receive transaction brought"""
        self._to_show: bytes | None = None
        """what the window shows once the running transaction is done"""
        self._done_at: float | None = None
        self._payload = bytearray(WINDOW)
        self._armed = False
        """a command was written that no transaction has carried yet"""

    def attach(self) -> None:
        super().attach()
        self._window = [self.gpu.index("SMUIO", f"ROM_SW_DATA_{number}") for number in range(WINDOW // 4)]
        self._pads = [self.reg("SMUIO", f"GPIO_PAD_{name}") for name in ("MASK", "A", "EN")]
        self._garbage()

    def reset(self) -> None:
        super().reset()
        self.booted = False
        self._pointer = 0
        self._page = ()
        self._done_at = None
        self._to_show = None
        self._armed = False
        self._garbage()

    def _factory(self) -> bytes:
        content = self.numbers["content"]
        size = self.chip.model.size
        seed = self.gpu.machine.seed
        if content == "blank":
            return b"\xff" * size
        if content == "noise":
            return random.Random(f"flash {seed}").randbytes(size)
        if content == "ifwi":
            return ifwi.fabricate(seed)
        kind, _, name = content.partition(":")
        if kind == "ifwi" and name in ifwi.BREAKAGES:
            return ifwi.broken(name, seed)
        raise ProfileError(f"unknown flash content {content!r}", read=f"known: {', '.join(CONTENTS)}, ifwi:BREAKAGE")

    def start(self) -> bool:
        """The boot firmware reads the flash. True when it can go on."""
        image = self.chip.memory.read(0, layout.SIZE)
        found = boot_of(image)
        self.boot_problem, self.partition = found.problem, found.partition
        self.booted = not found.problem
        if found.problem:
            log.info("boot firmware stalls: %s", found.problem)
        return self.booted

    def _power_lost(self) -> None:
        """The supply of the card failed: nothing answers any more."""
        self.gpu.function.link_up = False

    # --- ROM_SW engine ---

    @property
    def gated(self) -> bool:
        return self.booted

    @on_write("SMUIO", "ROM_SW_CNTL")
    def control(self, value: int, reg: Reg) -> None:
        """Starts the transaction whose command was written before, if everything around is set up for one; without a new command 0 idles.

        A bare command such as write enable has the control word 0, so it is not the value that starts a transaction (I).
        """
        self._settle()
        if not self._armed or self.gated or self.faults.active("rom-stuck"):
            return
        self._armed = False
        if not self._set_up():
            log.info("ROM_SW engine: transaction started with pins, mirror, mode or status not set up: nothing happens")
            return
        count, receive = reg.field("data_size"), bool(reg.field("return_data_en"))
        command = self.reg("SMUIO", "ROM_SW_COMMAND").value
        addressing = reg.field("command_size")
        if addressing not in (0, 3):
            raise NotModelled(f"ROM_SW transaction with {addressing} address bytes", means="which bits of ROM_SW_COMMAND go out then is not known")
        if count > WINDOW:
            raise NotModelled(f"ROM_SW transaction of {count} data bytes", means=f"the data window holds {WINDOW}")
        sent = bytes([command & 0xFF]) + (command >> 8).to_bytes(3, "big")[:addressing]
        if not receive:
            sent += bytes(self._payload[:count])
        control = self.reg("SMUIO", "ROM_CNTL")
        clock = self.numbers["base_clock_hz"] / (2 * (control.field("prescaler") + 1))
        self._done_at = self.clock.now() + ENGINE_OVERHEAD + 8 * (len(sent) + (count if receive else 0)) / clock
        fits = clock <= self.numbers["fastest_hz"] and not self.faults.active("flash-absent")
        captured = self.chip.transact(sent, count if receive else 0, at=self._done_at) if fits else b"\xff" * count
        if receive:
            if sent[0] == 0x9F:
                turn = self.numbers.get("id_rotation", 0) % max(len(captured), 1)
                captured = captured[-turn:] + captured[:-turn] if turn else captured
            self._to_show = self._capture if self.numbers["late_capture"] else captured
            self._capture = captured

    def _set_up(self) -> bool:
        control = self.reg("SMUIO", "ROM_CNTL")
        pins = all(pad.field("spi_pins") == 0 for pad in self._pads)
        mirror = self.reg("SMUIO", "PAGE_MIRROR_CNTL").field("page_mirror") == MIRROR_FOR_SOFTWARE
        return pins and mirror and control.field("mode") == SOFTWARE_MODE and control.field("prescaler_set") == 1 and self._done_at is None

    @on_write("SMUIO", "ROM_SW_COMMAND")
    def command(self, value: int, reg: Reg) -> None:
        self._armed = True

    @on_read("SMUIO", "ROM_SW_STATUS")
    def status(self, reg: Reg) -> int:
        if self.gated:
            return GATED_STATUS
        if self.faults.active("rom-stuck"):
            return STUCK_STATUS
        return int(self._settle())

    @on_write("SMUIO", "ROM_SW_STATUS")
    def clear_status(self, value: int, reg: Reg) -> None:
        """Writing 0 clears."""
        self._settle()
        if value == 0:
            self._done_at = None

    @on_write("SMUIO", "ROM_SW_DATA_*")
    def payload(self, value: int, reg: Reg) -> None:
        """Bytes to send: the first of a dword is its most significant one. Reading the window shows captures, not these."""
        self._payload[4 * reg.number : 4 * reg.number + 4] = value.to_bytes(4, "big")
        reg.value = reg.old

    def _settle(self) -> bool:
        """Is the latest transaction done? If so the window shows what the receive transaction before it captured."""
        if self._done_at is None or self.clock.now() < self._done_at:
            return False
        if self._to_show is not None:
            words = (len(self._to_show) + 3) // 4
            self.gpu.regs.update(zip(self._window, struct.unpack(f"<{words}I", self._to_show.ljust(4 * words, b"\0")), strict=False))
            self._to_show = None
        return True

    def _garbage(self) -> None:
        """What the window holds before the first transaction."""
        for index in self._window:
            self.gpu.regs[index] = self._random.getrandbits(32)
        self._capture = self._random.randbytes(8)

    # --- aperture ---

    def _arrives(self, value: int) -> int:
        """A written value as the aperture's registers get it."""
        order = self.numbers["byte_order"]
        if order == "garbled":
            return (value << 4 | value >> 28) & ALL_BITS
        if order == "swapped" or (order == "by-state" and self.booted):
            return int.from_bytes(value.to_bytes(4, "little"), "big")
        return value

    @on_read("SMUIO", "ROM_CNTL")
    def read_control(self, reg: Reg) -> int:
        return ALL_BITS if self.numbers["aperture"] == "unavailable" else reg.value

    @on_write("SMUIO", "ROM_CNTL")
    def write_control(self, value: int, reg: Reg) -> None:
        reg.value = reg.old if self.numbers["aperture"] == "unavailable" else self._arrives(value)
        self._page = ()

    @on_write("SMUIO", "ROM_INDEX")
    def index(self, value: int, reg: Reg) -> None:
        reg.value = self._arrives(value)
        self._pointer = reg.value << INDEX_SHIFT
        self._page = ()

    @on_read("SMUIO", "ROM_DATA")
    def data(self, reg: Reg) -> int:
        """One dword; the pointer goes on within its 64 KiB page."""
        if not self._page or self._page_cycle != self.chip.cycles:
            self._fetch_page()
        place = self._pointer % APERTURE_PAGE
        self._pointer += 4 if place < APERTURE_PAGE - 4 else 4 - APERTURE_PAGE
        return self._page[place >> 2]

    def _fetch_page(self) -> None:
        """What the port shows from the page that the pointer is in."""
        words = APERTURE_PAGE // 4
        if self.numbers["aperture"] == "unavailable":
            self._page = (ALL_BITS,) * words
        elif not self.reg("SMUIO", "ROM_CNTL").field("index_enable"):
            self._page = (0,) * words
        else:
            base = self._pointer % (APERTURE_SIZE // 2 if self.numbers["aperture"] == "mirrored" else APERTURE_SIZE) // APERTURE_PAGE * APERTURE_PAGE
            self._page = struct.unpack(f"<{words}I", self.chip.transact(b"\x03" + base.to_bytes(3, "big"), APERTURE_PAGE))
        self._page_cycle = self.chip.cycles

    @on_write("SMUIO", "ROM_DATA")
    def write_data(self, value: int, reg: Reg) -> None:
        """The aperture only reads."""
        log.info("write to ROM_DATA: ignored")
        reg.value = reg.old


def blocks(gpu: Gpu) -> list[Block]:
    return [Rom(gpu)] if "flash" in gpu.profile else []
