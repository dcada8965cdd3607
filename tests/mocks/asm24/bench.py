"""A simulated bridge in the hands of a test: pyusb on its backend, requests spelled out byte by byte, no driver."""

from __future__ import annotations

from typing import Any

import usb.core
import usb.util

from mocks.asm24.chip import Asm24
from mocks.faults import FaultPlan
from mocks.machine import Machine

IDS = {(0x3801, 0x0001), (0xADD1, 0x0001), (0x3801, 0xB007), (0x174C, 0x2463), (0x174C, 0x2462)}
MEMORY, PREFETCHABLE = 0x1000_0000, 0x8_0000_0000
DOORBELLS = 0x8_1000_0000
DONE = 0
"""result byte of a reply"""


class Bench:
    """One opened bridge."""

    def __init__(self, profile: str = "navi31-asm24", faults: str = "", *, open_it: bool = True, **options: Any) -> None:
        self.machine = Machine.from_profile(profile, faults=FaultPlan.parse(faults), **options)
        assert self.machine.asm24 is not None
        self.bridge: Asm24 = self.machine.asm24
        self.backend: Any = self.machine.usb_backend()
        self.clock = self.machine.clock
        self.device: Any = None
        if open_it:
            self.open()

    @property
    def gpu(self) -> Any:
        return self.machine.gpus[0]

    @property
    def handle(self) -> Any:
        return self.device._ctx.handle

    def find(self) -> Any:
        """The bridge as pyusb finds it, None when it is not there."""
        return next((each for each in usb.core.find(find_all=True, backend=self.backend) if (each.idVendor, each.idProduct) in IDS), None)

    def open(self, alternate: int = 0) -> Any:
        self.device = self.find()
        assert self.device is not None
        if self.device.is_kernel_driver_active(0):
            self.device.detach_kernel_driver(0)
            self.device.reset()
        self.device.set_configuration(1)
        usb.util.claim_interface(self.device, 0)
        self.device.set_interface_altsetting(0, alternate)
        return self.device

    # --- the open firmware's requests ---

    def xdata(self, address: int, size: int = 1, page: int = 0) -> bytes:
        return bytes(self.device.ctrl_transfer(0xC0, 0xE4, address, page << 8, size))

    def poke(self, address: int, *values: int, page: int = 0) -> None:
        for offset, value in enumerate(values):
            self.device.ctrl_transfer(0x40, 0xE5, address + offset, page << 8 | value, None)

    def request(self, fmt: int, address: int, be: int = 0xF, value: int = 0, mode: int = 0) -> None:
        self.device.ctrl_transfer(0x40, 0xF0, be << 8 | fmt, mode, address.to_bytes(8, "little") + value.to_bytes(4, "little"), 5000)

    def reply(self) -> bytes:
        return bytes(self.device.ctrl_transfer(0xC0, 0xF0, 0, 0, 8, 5000))

    def ask(self, fmt: int, address: int, be: int = 0xF, value: int = 0) -> tuple[int, int, int]:
        """(result byte, completion status, data) of one request that is answered."""
        self.request(fmt, address, be, value)
        found = self.reply()
        return found[7], found[4] >> 5, int.from_bytes(found[:4], "little")

    def config(self, bus: int, register: int, value: int | None = None, be: int = 0xF, device: int = 0, function: int = 0) -> tuple[int, int, int]:
        fmt = (0x04 if bus == 0 else 0x05) | (0x40 if value is not None else 0)
        return self.ask(fmt, bus << 24 | device << 19 | function << 16 | register, be, value or 0)

    def power(self, on: bool) -> None:
        self.device.ctrl_transfer(0x40, 0xF3, int(on), 0, None, 10000)

    def link_up(self) -> None:
        self.power(True)
        self.clock.sleep(1.0)
        assert self.xdata(0xB450) == b"\x78"

    def program_port(self, bus: int, last: int = 4) -> None:
        """Bus numbers and windows of the port on a bus, and its command register."""
        self.config(bus, 0x18, last << 16 | bus + 1 << 8)
        self.config(bus, 0x20, 0xFFFF0000 | MEMORY >> 16)
        self.config(bus, 0x24, 0xFFFF0000)
        self.config(bus, 0x28, PREFETCHABLE >> 32)
        self.config(bus, 0x2C, 0xFFFFFFFF)
        self.config(bus, 0x04, 7, be=1)

    def bring_up(self) -> None:
        """Link, ports, BARs of the GPU."""
        self.link_up()
        for bus in range(4):
            self.program_port(bus)
        for register, value in ((0x10, 0), (0x14, 8), (0x18, DOORBELLS & 0xFFFFFFFF), (0x1C, 8), (0x24, MEMORY), (0x04, 7)):
            assert self.config(4, register, value)[:2] == (DONE, 0)

    def read(self, address: int, be: int = 0xF) -> tuple[int, int, int]:
        return self.ask(0x20, address, be)

    def stream_write(self, address: int, data: bytes, count: int | None = None) -> int:
        self.request(0x60, address, value=len(data) // 4 if count is None else count, mode=1)
        return int(self.device.write(0x02, data, 10000))

    def stream_read(self, address: int, size: int) -> bytes:
        self.request(0x20, address, value=size // 4, mode=2)
        return bytes(self.device.read(0x81, size, 10000))

    def arm(self, sectors: int, slot: int = 0, slots: int = 1, *, out_of_sram: bool = False) -> None:
        self.device.ctrl_transfer(0x40, 0xF2, (0x8000 if out_of_sram else 0) | sectors, slots << 8 | slot, None)


def cbw(tag: int, cdb: bytes, size: int = 0, *, to_host: bool = False) -> bytes:
    """A command block wrapper."""
    return b"USBC" + tag.to_bytes(4, "little") + size.to_bytes(4, "little") + bytes([0x80 if to_host else 0, 0, len(cdb)]) + cdb.ljust(16, b"\0")


def command_unit(tag: int, cdb: bytes) -> bytes:
    """A UAS command unit."""
    return bytes([1, 0]) + tag.to_bytes(2, "big") + bytes(12) + cdb.ljust(16, b"\0")
