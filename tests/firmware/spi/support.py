"""A controller that is a straight wire to a simulated chip, and chips to put behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firmware.spi.controller import SpiController
from firmware.spi.flash import SpiFlash
from hw.errors import BusLost
from mocks.clock import Scheduler, SimClock
from mocks.faults import FaultPlan
from mocks.spi import SpiChip
from mocks.spi_model import ChipModel

GD25LQ16 = ChipModel("GD25LQ16", bytes.fromhex("c86015"), 0x200000, bytes.fromhex("c814"))
SIZE = GD25LQ16.size


def make_chip(model: ChipModel = GD25LQ16, *, content: bytes | None = None, folder: Path | None = None, faults: str = "", seed: int = 0) -> SpiChip:
    """A chip with power, on a clock of its own."""
    clock = SimClock()
    factory = (lambda: content) if content is not None else None
    return SpiChip(model, clock, Scheduler(clock, seed), factory=factory, folder=folder, faults=FaultPlan.parse(faults), seed=seed)


class Wire(SpiController):
    """Chip select cycles as the chip sees them. A chip without power is a lost bus. `watch` is told before every transaction."""

    name = "wire"

    def __init__(self, chip: SpiChip, step: float = 20e-6) -> None:
        self.chip = chip
        self.clock = chip._clock
        self.step = step
        self.transactions = 0
        self.watch: Callable[[int], None] | None = None

    def receive(self, opcode: int, count: int, address: int | None = None) -> bytes:
        return self._cycle(bytes([opcode]) + (b"" if address is None else address.to_bytes(3, "big")), count)

    def send(self, opcode: int, data: bytes = b"", address: int | None = None) -> None:
        self._cycle(bytes([opcode]) + (b"" if address is None else address.to_bytes(3, "big")) + data, 0)

    def _cycle(self, sent: bytes, receive: int) -> bytes:
        self.transactions += 1
        if self.watch is not None:
            self.watch(self.transactions)
        answer = self.chip.transact(sent, receive)
        self.clock.sleep(self.step)
        if not self.chip.powered:
            raise BusLost("a transaction", read="the card has no power")
        return answer


def make_flash(chip: SpiChip) -> SpiFlash:
    return SpiFlash.open(Wire(chip))


def busy_wait(chip: SpiChip) -> None:
    """Let time pass until the chip is idle."""
    while chip.busy:
        chip._clock.sleep(1e-3)
