"""The figures of `tghw bench flash`: what reading and writing a flash costs on the bus, by method, over PCIe and through a USB bridge."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridges.open import Selection, open_pci, profile_of
from drivers.amd.flash import FlashPort, open_port
from firmware.spi.flash import SpiFlash
from firmware.spi.journal import Journal
from firmware.spi.plan import make_plan
from firmware.spi.writer import Writer
from hw.trace import TracedDevice

PROFILES = {"pcie": "navi31-empty-flash", "usb": "navi31-asm24-empty-flash"}
READ_BYTES = {"pcie": 0x40000, "usb": 0x10000}
APERTURE_BYTES = {"pcie": 0x10000, "usb": 0x1000}
WRITE_SECTORS = 4
METHODS = ("validated", "pipelined")
KIB = 1024


def flash_bench(selection: Selection) -> dict[str, Any]:
    """Accesses per KiB. Writes are measured on simulated cards only, in state folders of their own.

    With nothing selected: a simulated card over PCIe and one behind a USB bridge. On a real card only reading is measured.
    """
    with tempfile.TemporaryDirectory() as state:
        if profile_of(selection) is None and selection.target is None and selection.remote is None and selection.device is None:
            return {name: _measure(Selection(mock=profile, state=Path(state)), name) for name, profile in PROFILES.items()}
        # a state folder of its own is what allows writing: a real card never has one here
        simulated = profile_of(selection) is not None
        return {"selected": _measure(replace(selection, state=Path(state) if simulated else None), "pcie")}


def _measure(selection: Selection, name: str) -> dict[str, Any]:
    """One device; writes only where the selection has a state folder."""
    figures: dict[str, Any] = {}
    device = TracedDevice(open_pci(selection))
    try:
        port = open_port(device)
        flash = SpiFlash.open(port.engine)
        size = READ_BYTES[name]
        for method in METHODS:
            port.engine.pipelined = method == "pipelined"
            with _Counted(device, size) as counted, flash.session():
                flash.read(0, size)
            figures[f"read_rom_sw_{method}"] = counted.figures
        figures["pipelined_share_of_validated"] = figures["read_rom_sw_pipelined"]["accesses_per_kib"] / figures["read_rom_sw_validated"]["accesses_per_kib"]
        size = APERTURE_BYTES[name]
        with _Counted(device, size) as counted:
            port.aperture.read(0, size)
        figures["read_rom_index"] = counted.figures
        if selection.state is not None:
            figures |= _write(device, port, flash, selection.state)
    finally:
        device.close()
    return figures


def _write(device: TracedDevice, port: FlashPort, flash: SpiFlash, folder: Path) -> dict[str, Any]:
    """Writing a blank range, then the same range with other content, reading back by each method. Ranges are clear of the sealed sector 0."""
    figures = {}
    size = WRITE_SECTORS * flash.chip.sector
    image = bytearray(flash.size)
    present = bytearray(b"\xff" * flash.size)
    for number, method in enumerate(METHODS, 1):
        port.engine.pipelined = method == "pipelined"
        start = number * WRITE_SECTORS
        here = slice(start * flash.chip.sector, start * flash.chip.sector + size)
        for kind in ("blank", "erase"):
            image[here] = random.Random(f"{method} {kind}").randbytes(size)
            plan = make_plan(flash.chip, bytes(present), bytes(image), start, WRITE_SECTORS)
            with _Counted(device, size) as counted:
                Writer(flash, bytes(image), plan, Journal(folder / "bench.jsonl")).run()
            present[here] = image[here]
            figures[f"write_{kind}_read_back_{method}"] = counted.figures
    return figures


class _Counted:
    """Counts what happens to a device between entering and leaving."""

    def __init__(self, device: TracedDevice, size: int) -> None:
        self._device = device
        self._size = size
        self.figures: dict[str, float] = {}

    def __enter__(self) -> _Counted:
        self._device.recorder.clear()
        counts = getattr(self._device.inner, "counts", None)
        self._before = counts.copy() if counts is not None else None
        self._start = self._device.clock.now()
        return self

    def __exit__(self, *exception: object) -> None:
        kib = self._size / KIB
        total = self._device.recorder.stats()["total"]
        accesses = sum(total[kind] for kind in ("reads", "writes", "block_reads", "block_writes"))
        self.figures = {
            "accesses_per_kib": accesses / kib,
            "reads_per_kib": (total["reads"] + total["block_reads"]) / kib,
            "writes_per_kib": (total["writes"] + total["block_writes"]) / kib,
            "device_clock_s_per_mib": (self._device.clock.now() - self._start) / kib * KIB,
        }
        if self._before is not None:
            self.figures["usb_transfers_per_kib"] = self._device.inner.counts.since(self._before).transfers / kib  # type: ignore[attr-defined]
