"""Which way to a card's flash: what its registers answer decides, and every step of the decision is told."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from firmware.spi.controller import Progress, no_progress
from firmware.spi.errors import EngineGated, EngineStuck, RomUnreachable
from firmware.spi.flash import SpiFlash
from firmware.spi.rom_index import RomAperture
from firmware.spi.rom_sw import RomSwEngine
from hw.errors import TghwError, UsageError

METHODS = ("auto", "rom-sw", "rom-index")


class FlashSource(Protocol):
    """Something that a flash can be read through."""

    name: str
    size: int

    def read(self, offset: int, size: int, progress: Progress = no_progress) -> bytes:
        """Bytes of the flash."""

    def session(self) -> AbstractContextManager[None]:
        """Hold it for several reads."""


@dataclass
class Choice:
    """A way, and why."""

    source: FlashSource
    reasons: list[str] = field(default_factory=list)
    read_only: TghwError | None = None
    """why nothing can be written this way; None when it can"""

    @property
    def method(self) -> str:
        return self.source.name

    @property
    def flash(self) -> SpiFlash | None:
        """The chip, where it can be talked to."""
        return self.source if isinstance(self.source, SpiFlash) else None

    @property
    def aperture(self) -> RomAperture | None:
        return self.source if isinstance(self.source, RomAperture) else None


def choose(engine: RomSwEngine, aperture: RomAperture, wanted: str = "auto") -> Choice:
    """A way to the flash. With "auto" the engine is preferred where it serves the host, because only it can write.

    Nothing is written to the chip. Raises UsageError, FlashError, BusLost, and the refusals EngineGated, ChipUnknown, ApertureByteOrder.
    """
    if wanted not in METHODS:
        raise UsageError(f"there is no method {wanted}", remedy=f"one of {', '.join(METHODS)}")
    if wanted == "rom-sw":
        return Choice(SpiFlash.open(engine), ["asked for"])
    if wanted == "rom-index":
        return _through_aperture(aperture, ["asked for"], EngineGated("writing through the ROM_INDEX aperture", means="the aperture only reads", remedy="write by --method rom-sw"))
    if not aperture.reachable():
        raise RomUnreachable("looking for a way to the flash", read="ROM_CNTL = 0xffffffff")
    reasons = ["the ROM controller answers: ROM_CNTL is not all ones"]
    try:
        flash = SpiFlash.open(engine)
    except EngineGated as problem:
        reasons.append(f"rom-sw does not work: {problem.read}, the engine is gated, as on every card that booted from its flash")
        return _through_aperture(aperture, reasons, problem)
    except EngineStuck as problem:
        reasons.append(f"rom-sw does not work: {problem.what} ({problem.read})")
        return _through_aperture(aperture, reasons, problem)
    reasons.append(f"rom-sw works: the engine's status clears and the chip answers {flash.identity.captured.hex(' ')}, so the security processor has not taken the flash")
    return Choice(flash, reasons)


def _through_aperture(aperture: RomAperture, reasons: list[str], read_only: TghwError) -> Choice:
    with aperture.session():
        reasons.append(f"rom-index works: a test value in ROM_INDEX came back {'as written' if aperture.byte_order == 'plain' else 'byte-swapped'}")
    return Choice(aperture, reasons, read_only)
