"""Simulated machines for bring-up tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from drivers.amd.device import AmdDevice
from firmware.store import FirmwareStore
from hw.mmio import Mmio
from mocks.amd.fw import fabricate
from mocks.faults import FaultPlan
from mocks.machine import Machine
from mocks.pci_device import MockPciDevice

GPU = "0000:03:00.0"


@dataclass
class Bench:
    """A machine, its GPU as the mock sees it, and a driver on it."""

    machine: Machine
    pci: MockPciDevice
    dev: AmdDevice

    @property
    def gpu(self) -> Any:
        return self.machine.gpus[0]

    def value(self, index: int) -> int:
        """What the device's register holds, without an access."""
        value: int = self.gpu.regs[index]
        return value

    def again(self) -> AmdDevice:
        """The next process: a new driver on the same machine."""
        self.pci.close()
        self.pci = self.machine.open(GPU)
        self.dev = AmdDevice(self.pci, self.dev.store)
        return self.dev


def bench(profile: str = "navi31", *, faults: str = "", seed: int = 0, strict: bool = False, firmware: dict[str, bytes] | None = None) -> Bench:
    """A machine that was just switched on, its GPU opened, nothing booted."""
    machine = Machine.from_profile(profile, faults=FaultPlan.parse(faults), seed=seed, strict=strict)
    pci = machine.open(GPU)
    files = fabricate(profile.split("-")[0], machine.seed) if firmware is None else firmware
    return Bench(machine, pci, AmdDevice(pci, FirmwareStore.from_files(files)))


class Counting:
    """Counts accesses through the windows of an open device, and keeps the last value written to every register."""

    def __init__(self, pci: MockPciDevice) -> None:
        self.accesses: Counter[tuple[int, str]] = Counter()
        self.last_write: dict[int, int] = {}
        self.writes: list[tuple[int, int]] = []
        self.reads: Counter[int] = Counter()
        self._indexed = 0
        original = pci.map_bar

        def map_bar(index: int, offset: int = 0, size: int | None = None) -> Mmio:
            window = original(index, offset, size)
            self._watch(window, index)
            return window

        pci.map_bar = map_bar  # type: ignore[method-assign]

    def _watch(self, window: Mmio, bar: int) -> None:
        for width in ("8", "32", "64", ""):
            for kind in ("read", "write"):
                inner = getattr(window, kind + width)

                def counted(offset: int, *rest: Any, inner: Any = inner, kind: str = kind) -> Any:
                    self.accesses[bar, kind] += 1
                    if bar == 5:
                        self._note(kind, offset >> 2, *rest)
                    return inner(offset, *rest)

                setattr(window, kind + width, counted)

    def _note(self, kind: str, index: int, *rest: Any) -> None:
        if kind == "read":
            self.reads[index] += 1
            return
        self.writes.append((index, rest[0]))
        if index == RSMU_INDEX:
            self._indexed = rest[0] >> 2
        self.last_write[self._indexed if index == RSMU_DATA else index] = rest[0]

    @property
    def registers(self) -> int:
        """Register accesses."""
        return self.accesses[5, "read"] + self.accesses[5, "write"]

    def clear(self) -> None:
        self.accesses.clear()
        self.last_write.clear()
        self.writes.clear()
        self.reads.clear()


RSMU_INDEX, RSMU_DATA = 0x14, 0x15
