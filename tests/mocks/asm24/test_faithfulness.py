"""A driver that works, with one of its transfers lost: the simulated bridge must show it, as hardware would."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import usb.core

from bridges.asm24.device import Asm24PciDevice
from bridges.asm24.usb import attached
from hw.errors import TghwError
from mocks.asm24.backend import MockBackend
from mocks.machine import Machine
from tests.mocks.asm24.replay import pattern

MEMSIZE = 4 * 0xDE3
DATA = pattern(2048)


class Losing(MockBackend):
    """Swallows one transfer to the device; the driver is told that it went well."""

    def __init__(self, machine: Machine, lose: int) -> None:
        super().__init__(machine)
        self._lose = lose
        self.sent: list[bytes] = []
        """what went to the device, by number from 1: request bytes and data"""

    def _lost(self, what: bytes) -> bool:
        self.sent.append(what)
        return len(self.sent) == self._lose

    def ctrl_transfer(self, dev_handle: Any, bmRequestType: int, bRequest: int, wValue: int, wIndex: int, data: Any, timeout: int) -> int:
        if not bmRequestType & 0x80 and self._lost(bytes([bRequest]) + data.tobytes()):
            return len(data)
        return super().ctrl_transfer(dev_handle, bmRequestType, bRequest, wValue, wIndex, data, timeout)

    def bulk_write(self, dev_handle: Any, ep: int, intf: int, data: Any, timeout: int) -> int:
        if self._lost(data.tobytes()):
            return len(data)
        return super().bulk_write(dev_handle, ep, intf, data, timeout)


@dataclass
class Outcome:
    """How a session ended: the error, if any; what stands in configuration space; what it took."""

    error: str = ""
    state: list[bytes] = field(default_factory=list)
    misuse: list[str] = field(default_factory=list)
    transfers: int = 0
    sent: list[bytes] = field(default_factory=list)


def session(lose: int = 0) -> Outcome:
    """Open, read a register, write and read VRAM, exchange data with the GPU through the SRAM, close."""
    machine = Machine.from_profile("navi31-asm24")
    backend = Losing(machine, lose)
    bridge = machine.asm24
    assert bridge is not None
    outcome = Outcome()
    try:
        with Asm24PciDevice.open(attached(backend)[0], backend, clock=machine.clock) as device:
            device.set_bus_master(True)
            assert device.map_bar(5).read32(MEMSIZE) == 0x5FF0
            memory = device.map_bar(0)
            memory.write(0x5000, DATA)
            assert memory.read(0x5000, len(DATA)) == DATA
            shared = device.alloc_dma(8192)
            shared.window.write(0, DATA)
            machine.clock.sleep(1e-3)
            assert machine.gpus[0].dma_read(shared.pages[0], len(DATA)) == DATA
            machine.gpus[0].dma_write(shared.pages[0], b"x" * 64)
            assert shared.window.read(0, 64) == b"x" * 64
    except (TghwError, usb.core.USBError, AssertionError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    fabric = bridge.fabric
    outcome.state = [bytes(each.config.data) for each in (fabric.upstream, fabric.downstream, *fabric.behind)]
    outcome.misuse, outcome.transfers, outcome.sent = bridge.misuse, bridge.faults.transfers, backend.sent
    return outcome


def test_every_lost_transfer_is_noticed() -> None:
    good = session()
    assert (good.error, good.misuse) == ("", [])
    unnoticed = []
    for number, what in enumerate(good.sent, 1):
        found = session(number)
        repeated = found.transfers + 1 > good.transfers
        if not found.error and not found.misuse and found.state == good.state and not repeated:
            unnoticed.append(what)
    # clearing memory that is then written as a whole does not matter
    assert [what for what in unnoticed if any(what)] == []
    assert len(unnoticed) < len(good.sent) / 20
