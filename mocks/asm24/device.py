"""The chip as a USB device: standard requests, configuration, endpoints that accept, hold back, stall or stay halted.

A firmware is a subclass of `Firmware`. Data moves only when the host asks: `take` gets what the host sends on an OUT endpoint and says
how much of it is accepted, `give` returns what is ready on an IN endpoint. Nothing accepted, nothing ready: the endpoint NAKs, and the
transfer waits until `ready` is set or its host gives up.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from mocks.asm24.descriptors import HIGH, MBITS, SUPER_PLUS, Descriptors, Endpoint

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24

log = logging.getLogger(__name__)

IN = 0x80
STANDARD, CLASS, VENDOR = 0x00, 0x20, 0x40
KIND_MASK = 0x60
TO_DEVICE, TO_INTERFACE, TO_ENDPOINT = 0, 1, 2

FEATURE_HALT = 0
EFFICIENCY = 0.8
"""part of the line rate that bulk data gets"""


class Standard(IntEnum):
    """Standard requests (USB 3.2 chapter 9)."""

    GET_STATUS = 0
    CLEAR_FEATURE = 1
    SET_FEATURE = 3
    SET_ADDRESS = 5
    GET_DESCRIPTOR = 6
    GET_CONFIGURATION = 8
    SET_CONFIGURATION = 9
    GET_INTERFACE = 10
    SET_INTERFACE = 11
    SET_SEL = 0x30
    SET_ISOCH_DELAY = 0x31


Control = Generator[float, None, bytes]
"""A control request at work: yields the time it takes (s), returns the data stage of an IN request."""
Answer = bytes | Control
"""what a request's handler gives: the data stage at once (b"" for none), or the work that leads to it"""


class Stall(Exception):
    """The device refuses: a protocol stall on the control endpoint, a halt on a bulk endpoint."""


class NoAnswer(Exception):
    """The firmware never gets to the status stage: the host waits until it gives up."""


@dataclass(frozen=True)
class Setup:
    """The eight bytes that start a control transfer."""

    kind: int
    request: int
    value: int
    index: int
    length: int

    @property
    def is_in(self) -> bool:
        return bool(self.kind & IN)

    def encode(self) -> bytes:
        return bytes([self.kind, self.request]) + b"".join(each.to_bytes(2, "little") for each in (self.value, self.index, self.length))


class Firmware(ABC):
    """What runs on the chip. The base knows USB chapter 9 and nothing else."""

    name = ""
    stalls_unknown = True
    """refuse unknown requests; False: as older builds, let the host wait"""
    fastest = SUPER_PLUS
    """the highest speed it connects at"""

    def __init__(self, chip: Asm24) -> None:
        self.chip = chip

    def boot(self) -> None:
        """The firmware starts."""

    @abstractmethod
    def descriptors(self, speed: int) -> Descriptors: ...

    # --- what a firmware adds ---

    def vendor(self, setup: Setup, data: bytes) -> Answer:
        """A vendor request."""
        return self.unknown(setup)

    def class_request(self, setup: Setup, data: bytes) -> Answer:
        """A class request."""
        return self.unknown(setup)

    def take(self, endpoint: int, data: memoryview, stream: int) -> tuple[int, float]:
        """Data arrives on an OUT endpoint: (bytes accepted, s it takes). May raise Stall."""
        return 0, 0.0

    def give(self, endpoint: int, room: int, stream: int) -> tuple[bytes | None, float]:
        """The host asks an IN endpoint: (whole packets, the last may be short, or None; s it takes). May raise Stall."""
        return None, 0.0

    def cleared(self, endpoint: int) -> None:
        """The host cleared a halt (it may do so on an endpoint that has none)."""

    def configured(self) -> None:
        """SET_CONFIGURATION."""

    def selected(self, alternate: int) -> None:
        """SET_INTERFACE."""

    def bus_reset(self) -> None:
        """The port was reset."""

    def driver_left(self) -> None:
        """A driver that used the interface let go of it, in the middle of whatever it did."""

    def unknown(self, setup: Setup) -> bytes:
        """A request this firmware does not have."""
        if self.stalls_unknown:
            raise Stall
        if setup.length:
            raise NoAnswer
        return b""


class UsbDevice:
    """Standard device state around a firmware."""

    def __init__(self, chip: Asm24, firmware: Firmware, speed: int) -> None:
        self.chip = chip
        self.firmware = firmware
        self.speed = speed
        self.descriptors = firmware.descriptors(speed)
        self.configuration = 0
        self.alternate = 0
        self.halted: set[int] = set()
        self.ready = chip.scheduler.signal()

    @property
    def packet(self) -> int:
        """Bytes of a full bulk packet."""
        return 512 if self.speed == HIGH else 1024

    @property
    def wire_rate(self) -> float:
        """Bytes of bulk data a second that the bus allows."""
        return MBITS[self.speed] * 1e6 / 8 * EFFICIENCY

    def wake(self) -> None:
        """Something may have become ready."""
        self.ready.set()

    def endpoints(self) -> dict[int, Endpoint]:
        """The bulk endpoints that exist now."""
        if not self.configuration:
            return {}
        return {each.address: each for each in self.descriptors.endpoints(self.alternate)}

    def driver_left(self) -> None:
        """The kernel driver of the interface let go of it."""
        self.alternate = 0
        self.firmware.driver_left()

    def bus_reset(self) -> None:
        self.configuration = 0
        self.alternate = 0
        self.halted.clear()
        self.firmware.bus_reset()

    # --- bulk ---

    def take(self, endpoint: int, data: memoryview, stream: int) -> tuple[int, float]:
        if endpoint in self.halted:
            raise Stall
        try:
            return self.firmware.take(endpoint, data, stream)
        except Stall:
            self.halted.add(endpoint)
            raise

    def give(self, endpoint: int, room: int, stream: int) -> tuple[bytes | None, float]:
        if endpoint in self.halted:
            raise Stall
        try:
            return self.firmware.give(endpoint, room, stream)
        except Stall:
            self.halted.add(endpoint)
            raise

    # --- control ---

    def control(self, setup: Setup, data: bytes) -> Control:
        """One control request. Raises Stall, NoAnswer."""
        kind = setup.kind & KIND_MASK
        handlers = {VENDOR: self.firmware.vendor, CLASS: self.firmware.class_request, STANDARD: self._standard}
        if kind not in handlers:
            raise Stall
        answer = handlers[kind](setup, data)
        return answer if isinstance(answer, bytes) else (yield from answer)

    def _standard(self, setup: Setup, data: bytes) -> Answer:
        recipient = setup.kind & 0x1F
        match setup.request:
            case Standard.GET_DESCRIPTOR if setup.is_in:
                found = self.descriptors.get(setup.value >> 8, setup.value & 0xFF)
                return found[: setup.length] if found is not None else self.firmware.unknown(setup)
            case Standard.GET_STATUS if setup.is_in:
                return self._status(recipient, setup.index)[: setup.length]
            case Standard.GET_CONFIGURATION if setup.is_in:
                return bytes([self.configuration])
            case Standard.GET_INTERFACE if setup.is_in:
                return bytes([self.alternate])
            case Standard.SET_CONFIGURATION:
                self.set_configuration(setup.value)
            case Standard.SET_INTERFACE:
                self.set_interface(setup.value)
            case Standard.CLEAR_FEATURE:
                self._clear_feature(recipient, setup)
            case Standard.SET_FEATURE:
                self._set_feature(recipient, setup)
            case Standard.SET_ADDRESS | Standard.SET_SEL | Standard.SET_ISOCH_DELAY:
                pass
            case _:
                return self.firmware.unknown(setup)
        return b""

    def set_configuration(self, value: int) -> None:
        if value not in (0, 1):
            raise Stall
        self.configuration = value
        self.alternate = 0
        self.halted.clear()
        self.firmware.configured()

    def set_interface(self, alternate: int) -> None:
        if not self.configuration or alternate >= len(self.descriptors.alternates):
            raise Stall
        self.alternate = alternate
        self.halted.clear()
        self.firmware.selected(alternate)

    def _status(self, recipient: int, index: int) -> bytes:
        if recipient == TO_ENDPOINT:
            if index and index not in self.endpoints():
                raise Stall
            return bytes([int(index in self.halted), 0])
        return bytes([int(recipient == TO_DEVICE), 0])

    def _clear_feature(self, recipient: int, setup: Setup) -> None:
        if recipient != TO_ENDPOINT or setup.value != FEATURE_HALT:
            return
        if setup.index not in self.endpoints():
            raise Stall
        self.halted.discard(setup.index)
        self.firmware.cleared(setup.index)
        self.wake()

    def _set_feature(self, recipient: int, setup: Setup) -> None:
        if recipient == TO_ENDPOINT and setup.value == FEATURE_HALT:
            if setup.index not in self.endpoints():
                raise Stall
            self.halted.add(setup.index)
