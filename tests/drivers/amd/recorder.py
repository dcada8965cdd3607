"""A bare register file with a log, for tests that compare what the driver sends with recorded exchanges.

It is no GPU: registers hold what is written, and a test says what a few of them answer. Behaviour is tested on the simulated machine.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivers.amd.bootmem import BOOT_SIZE, PAGE, lay_out
from drivers.amd.device import AmdDevice
from drivers.amd.space import MEMSIZE
from firmware.store import FirmwareStore
from hw.alloc import Tlsf
from hw.mmio import BytesLike, Mmio
from hw.pci.device import Bar, ConfigSpace, DmaMemory, PciDevice

DATA = Path(__file__).parents[2] / "data"
NAVI31_FB_BASE = 0x8000
NAVI31_FB_TOP = 0x85FF


def vectors(name: str) -> dict[str, dict[str, Any]]:
    """The vectors of a file under tests/data by their id."""
    return {vector["id"]: vector for vector in json.loads((DATA / f"{name}.json").read_text())["vectors"]}


class SteppingClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self._now = 0.0
        self._log = log

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self._log.append(("sleep", round(seconds * 1e3, 3)))


class LoggedRegisters(Mmio):
    """BAR5. `answers` maps a dword index to a function that gives what a read returns."""

    name = "registers"

    def __init__(self, log: list[tuple[Any, ...]], size: int = 1 << 20) -> None:
        self.size = size
        self.log = log
        self.values: dict[int, int] = {}
        self.answers: dict[int, Callable[[], int]] = {}
        self.reactions: dict[int, Callable[[int], None]] = {}

    def read32(self, offset: int) -> int:
        self.check(offset, 4, 4)
        index = offset >> 2
        value = self.answers[index]() if index in self.answers else self.values.get(index, 0)
        self.log.append(("r", index, value))
        return value

    def write32(self, offset: int, value: int) -> None:
        self.check(offset, 4, 4)
        index = offset >> 2
        self.log.append(("w", index, value))
        self.values[index] = value
        if index in self.reactions:
            self.reactions[index](value)

    def read64(self, offset: int) -> int:
        raise AssertionError("registers are accessed as dwords")

    def write64(self, offset: int, value: int) -> None:
        raise AssertionError("registers are accessed as dwords")

    def read8(self, offset: int) -> int:
        raise AssertionError("registers are accessed as dwords")

    def write8(self, offset: int, value: int) -> None:
        raise AssertionError("registers are accessed as dwords")

    def read(self, offset: int, size: int) -> bytes:
        raise AssertionError("registers are accessed as dwords")

    def write(self, offset: int, data: BytesLike) -> None:
        raise AssertionError("registers are accessed as dwords")


class LoggedMemory(LoggedRegisters):
    """BAR0: memory whose block writes are logged."""

    name = "memory"

    def __init__(self, log: list[tuple[Any, ...]], size: int) -> None:
        super().__init__(log, size)
        self.pages: dict[int, bytearray] = {}

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        return bytes(self.pages.get(at >> 12, bytes(PAGE))[at & 0xFFF] for at in range(offset, offset + size))

    def write(self, offset: int, data: BytesLike) -> None:
        self.check(offset, len(data))
        self.log.append(("memory", offset, len(data)))
        for position, byte in enumerate(bytes(data)):
            at = offset + position
            self.pages.setdefault(at >> 12, bytearray(PAGE))[at & 0xFFF] = byte


class PlainConfig(ConfigSpace):
    size = 256

    def __init__(self) -> None:
        self.data = bytearray(256)
        self.data[0:4] = bytes.fromhex("02104c74")
        self.data[4] = 0x06

    def read(self, offset: int, size: int) -> int:
        return int.from_bytes(self.data[offset : offset + size], "little")

    def write(self, offset: int, value: int, size: int) -> None:
        self.data[offset : offset + size] = value.to_bytes(size, "little")


class RecordedDevice(PciDevice):
    """A PCI function made of the logged windows."""

    address = "0000:03:00.0"
    transport = "test"

    def __init__(self, vram_mib: int, register_bytes: int = 1 << 20) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.clock = SteppingClock(self.log)
        self.config = PlainConfig()
        self.registers = LoggedRegisters(self.log, register_bytes)
        self.memory = LoggedMemory(self.log, vram_mib << 20)
        self.registers.values[MEMSIZE] = vram_mib
        self.doorbells = LoggedRegisters([], 1 << 21)

    @property
    def bars(self) -> dict[int, Bar]:
        windows = {0: self.memory, 2: self.doorbells, 5: self.registers}
        return {index: Bar(index, 0x1000000 * (index + 1), window.size) for index, window in windows.items()}

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> Mmio:
        return {0: self.memory, 2: self.doorbells, 5: self.registers}[index]

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        raise AssertionError("no host memory here")

    def close(self) -> None:
        pass


def device(chip: str = "gfx1100", kind: str = "plain") -> tuple[AmdDevice, RecordedDevice]:
    """A discovered device on the discovery binary of the vectors, with its boot memory laid out. The log is empty."""
    vector = vectors("amd_discovery")[f"{chip}.{kind}"]
    binary = base64.b64decode(vector["inputs"]["binary_base64"])
    pci = RecordedDevice(vector["inputs"]["vram_mib"])
    pci.memory.write(pci.memory.size - (64 << 10), binary)
    base = next(entry for entry in vector["expected"]["ip_entries"] if entry["block"] == "MMHUB")
    start = 0x8EC if base["version"] != [3, 0, 2] else 0x86C
    pci.registers.values[int(base["bases"][0], 16) + start] = NAVI31_FB_BASE
    pci.registers.values[int(base["bases"][0], 16) + start + 1] = NAVI31_FB_TOP
    gpu = AmdDevice(pci, FirmwareStore.from_files({}))
    gpu.discover()
    gpu.boot_memory = lay_out(Tlsf(BOOT_SIZE, granule=PAGE, name="boot"))
    pci.registers.values[gpu.nbio.BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL.index] = 0x7F000
    gpu.flush_hdp()
    pci.log.clear()
    return gpu, pci


HDP_FLUSH = 0x7F000 >> 2
