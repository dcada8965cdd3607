"""A simulated card and the driver's ways to its flash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drivers.amd.flash import FlashPort, open_port
from mocks.faults import FaultPlan
from mocks.machine import Machine, load_profile

GPU = "0000:03:00.0"
HELD = ("GPIO_PAD_MASK", "GPIO_PAD_A", "GPIO_PAD_EN", "PAGE_MIRROR_CNTL", "ROM_CNTL")


class FlashCard:
    """A machine, its card's flash from the inside (`rom`, `chip`), and the opened port."""

    def __init__(self, profile: str = "navi31-empty-flash", *, faults: str = "", state: Path | None = None, held: Path | None = None, **flash: Any) -> None:
        loaded = load_profile(profile)
        loaded["gpu"]["flash"].update(flash)
        self.machine = Machine(loaded, faults=FaultPlan.parse(faults), state_dir=state)
        self.rom = self.machine.gpus[0].rom
        self.chip = self.rom.chip
        self.pci = self.machine.open(GPU)
        self.port: FlashPort = open_port(self.pci, held=held)

    @property
    def content(self) -> bytes:
        """What the chip holds, from the inside."""
        return self.chip.memory.read(0, self.chip.model.size)

    def registers(self) -> dict[str, int]:
        """The five registers that a session changes, as the card holds them."""
        gpu = self.machine.gpus[0]
        return {name: gpu.reg("SMUIO", name).value for name in HELD}
