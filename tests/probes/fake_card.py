"""A card of "this machine": files that hold what a booted simulated card's windows hold, and a thread that is its power controller.

The files are mapped by whoever looks at the card, also by other processes. Only the mailbox acts.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivers.amd.device import AmdDevice
from drivers.amd.layouts import smu as layout
from drivers.amd.page_entries import GFX11
from drivers.amd.usage import mapped_vram
from firmware.store import FirmwareStore
from hw.pci.device import COMMAND
from mocks.amd.fw import fabricate
from mocks.machine import Machine
from tests.hw.fake_sysfs import FakeBar, FakeFunction, FakeHost

ADDRESS = "0000:03:00.0"
REGISTERS = 1 << 20
BOOT_MEMORY = 32 << 20
"""bytes from the start of VRAM, where the power controller puts its table"""
DISCOVERY = 64 << 10
"""bytes from the end of VRAM from where the discovery table lies"""
MAPPED = 8 << 20
"""bytes of video memory that "another program" has mapped"""
MESSAGES = layout.messages((13, 0, 0))
MEMORY_DECODE = 0x2


class Card:
    """What a booted card looks like, taken from a simulated one."""

    def __init__(self) -> None:
        machine = Machine.from_profile("navi31")
        device = AmdDevice(machine.open(ADDRESS), FirmwareStore.from_files(fabricate("navi31", 0)))
        device.boot()
        device.memory.alloc(MAPPED)
        gpu = machine.gpus[0]
        for _ in range(20):
            gpu.note_busy("gfx", 0.06)
            machine.clock.sleep(0.1)
            gpu.smu.power.update()
        self.table = gpu.smu.metrics()
        self.metrics = layout.metrics((13, 0, 0)).decode(self.table)
        self.table_at = device.boot_memory.smu_table
        self.vram_size = gpu.vram_size
        self.tables: dict[int, bytes] = {}
        """the page tables, by place"""

        def read(offset: int, size: int) -> bytes:
            self.tables[offset] = gpu.vram.read(offset, size)
            return self.tables[offset]

        mapped_vram(read, device.boot_memory.root_table, GFX11, gpu.vram_size)
        self.high = gpu.vram.read(gpu.vram_size - DISCOVERY, DISCOVERY)
        self.registers = {index: value for index, value in gpu.regs.items() if index < REGISTERS // 4}
        config = bytearray(machine.export_config(ADDRESS))
        config[COMMAND] |= MEMORY_DECODE
        self.config = bytes(config)
        self.mailbox = {number: device.mp1[f"MP1_SMN_C2PMSG_{number}"].index for number in layout.MAIN_MAILBOX}
        self.tag = device.gc.SCRATCH_REG7.index

    def put(self, host: FakeHost, address: str, power_state: str = "D0") -> FakeFunction:
        """The card as a function of a machine of files."""
        bars = {0: FakeBar(0x78_0000_0000, 32 << 30), 2: FakeBar(0x80_0000_0000, 2 << 20), 5: FakeBar(0xFCB0_0000, REGISTERS, 0x40200)}
        function = host.add_function(address, self.config, bars, power_state=power_state, enabled=1)
        with (function.directory / "resource0").open("r+b") as file:
            for offset, content in self.tables.items():
                file.seek(offset)
                file.write(content)
            file.seek(self.vram_size - DISCOVERY)
            file.write(self.high)
        with (function.directory / "resource5").open("r+b") as file:
            for index, value in self.registers.items():
                file.seek(index * 4)
                file.write(value.to_bytes(4, "little"))
        return function


class Controller(threading.Thread):
    """The power controller of a card of files: answers its mailbox until it is stopped."""

    def __init__(self, card: Card, function: FakeFunction) -> None:
        super().__init__(daemon=True)
        self.card = card
        self.seen: list[tuple[int, int]] = []
        """(message, argument)"""
        self._stop_asked = threading.Event()
        self._files = [os.open(function.directory / f"resource{bar}", os.O_RDWR) for bar in (0, 5)]
        self._memory, self._registers = (mmap.mmap(file, size) for file, size in zip(self._files, (BOOT_MEMORY, REGISTERS), strict=True))
        self.set(layout.MAIN_MAILBOX.message, 0)  # the last message of the boot: a real mailbox acts when it is written, this one on what it finds

    def run(self) -> None:
        box = layout.MAIN_MAILBOX
        while not self._stop_asked.wait(0.0005):
            message = self.get(box.message)
            if message and self.get(box.response) == layout.Response.IN_PROGRESS:
                self.set(box.message, 0)
                self._answer(message, self.get(box.argument))

    def _answer(self, message: int, argument: int) -> None:
        self.seen.append((message, argument))
        response = layout.Response.OK
        if message == MESSAGES["TransferTableSmu2Dram"] and argument == layout.TableId.SMU_METRICS:
            self._memory[self.card.table_at : self.card.table_at + len(self.card.table)] = self.card.table
        elif message == MESSAGES["GetMaxDpmFreq"]:
            self.set(layout.MAIN_MAILBOX.argument, {0: 2526, 2: 1249, 3: 2250}[argument >> 16])
        else:
            response = layout.Response.UNKNOWN_COMMAND
        self.set(layout.MAIN_MAILBOX.response, response)

    def get(self, number: int) -> int:
        return self.register(self.card.mailbox[number])

    def set(self, number: int, value: int) -> None:
        self.put(self.card.mailbox[number], value)

    def register(self, index: int) -> int:
        return int.from_bytes(self._registers[index * 4 : index * 4 + 4], "little")

    def put(self, index: int, value: int) -> None:
        self._registers[index * 4 : index * 4 + 4] = value.to_bytes(4, "little")

    def stop(self) -> None:
        self._stop_asked.set()
        if self.is_alive():
            self.join()
        for each in (self._memory, self._registers):
            each.close()
        for file in self._files:
            os.close(file)


@contextmanager
def controller(card: Card, function: FakeFunction) -> Iterator[Controller]:
    """The power controller at work."""
    thread = Controller(card, function)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def use_host(monkeypatch: Any, host: FakeHost) -> None:
    """Commands find this machine instead of the real one."""
    from bridges import open as door
    from probes import smi

    monkeypatch.setitem(door.find.__kwdefaults__, "host", host)
    monkeypatch.setattr(smi, "HOST", host)


def hang(function: FakeFunction) -> Path:
    """Reading this card's configuration space blocks for ever, as a wedged device can."""
    path = function.directory / "config"
    path.unlink()
    os.mkfifo(path)
    return path
