"""What the flash commands share: the opened card, its records on this computer, files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridges.open import open_pci, profile_of, state_folder
from drivers.amd.flash import FlashPort, open_port
from firmware.spi.backup import Backups
from firmware.spi.chips import Chip, chips
from firmware.spi.flash import Status
from firmware.spi.journal import Journal
from firmware.spi.method import Choice, choose
from hw.errors import PermissionMissing, TghwError, UsageError
from hw.lock import acquire
from hw.pci.device import PciDevice
from hw.signals import guarded_signals
from probes.context import current

BOARD_CHIP = bytes.fromhex("c86015")
"""JEDEC id of the chip on these boards: what is planned with where the chip itself cannot be asked"""


@dataclass
class Card:
    """An opened card and what this computer remembers about its flash."""

    pci: PciDevice
    port: FlashPort
    records: Path

    @property
    def journal(self) -> Journal:
        return Journal(self.records / "write.jsonl")

    @property
    def backups(self) -> Backups:
        return Backups(self.records / "dumps.json")

    def choose(self, method: str) -> Choice:
        """A way to the flash. Raises UsageError and what choose() raises."""
        return choose(self.port.engine, self.port.aperture, method)


@contextmanager
def open_card(*, pipelined: bool = True) -> Iterator[Card]:
    """The selected card; signals end the work at a good moment. One process at a time works on a card's flash."""
    selection = current().selection()
    with ExitStack() as stack:
        stack.enter_context(guarded_signals())
        pci = open_pci(selection)
        stack.callback(pci.close)
        folder = state_folder(selection)
        if folder is None:
            raise PermissionMissing(
                "keeping records about the flash",
                means="the journal of an interrupted write and the list of dumps are kept in the user's state folder, which cannot be written",
                remedy="give --state a folder that can be written",
            )
        records = folder / "flash" / _key(pci, profile_of(selection))
        records.mkdir(parents=True, exist_ok=True)
        stack.enter_context(acquire("flash", records))
        try:
            yield Card(pci, open_port(pci, held=records / "held.json", pipelined=pipelined), records)
        except OSError as error:
            raise TghwError(
                f"writing {error.filename or 'a file'}",
                read=error.strerror or str(error),
                means="a file of this computer could not be written; the card's registers were put back",
                remedy="make room on the disk or choose another folder (--state), then run the same command again",
            ) from error


def _key(pci: PciDevice, profile: str | None) -> str:
    """A folder name for a device: what it is, where it is, and in which machine when that is a simulated one."""
    identity = pci.id
    words = [Path(profile).stem if profile else "", pci.address, f"{identity.device:04x}-{identity.subsystem_vendor:04x}-{identity.subsystem_device:04x}"]
    return re.sub(r"[^A-Za-z0-9.-]", "_", "-".join(word for word in words if word))


def read_file(file: str) -> bytes:
    """A file's content. Raises UsageError."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read", read=error.strerror or str(error)) from error


def plan_chip(choice: Choice) -> Chip:
    """The chip to plan with: the one that is there, or the one on these boards where it cannot be asked."""
    return choice.flash.chip if choice.flash is not None else chips()[BOARD_CHIP]


def identity_of(choice: Choice) -> dict[str, Any] | None:
    """The chip as JSON; None where it cannot be asked."""
    flash = choice.flash
    if flash is None:
        return None
    chip = flash.chip
    return {
        "vendor": chip.vendor,
        "name": chip.name,
        "jedec": chip.jedec.hex(" "),
        "captured": flash.identity.captured.hex(" "),
        "rotation": flash.identity.rotation,
        "sfdp_offset": flash.identity.sfdp_offset,
        "size": chip.size,
        "sector": chip.sector,
        "erases": {str(size): opcode for size, opcode in chip.erases.items()},
    }


def protection_of(choice: Choice, status: Status | None) -> dict[str, Any] | None:
    """The protection as JSON; None where the chip cannot be asked."""
    if choice.flash is None or status is None:
        return None
    found = choice.flash.protection(status)
    return {"start": found.start, "end": found.end, "why": found.why, "exact": found.exact, "by_cmp": found.by_cmp, "locked": found.locked}


@contextmanager
def clocked() -> Iterator[Callable[[], float]]:
    """Seconds of this process's time since it was entered."""
    start = time.monotonic()
    yield lambda: time.monotonic() - start
