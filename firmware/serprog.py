"""A serprog programmer over TCP in front of a flash, so that flashrom can use a GPU as its programmer.

The server passes on commands that it knows and answers others with 0xff bytes, as a chip without them would. It refuses (NAK) what it was
not allowed to do, and every erase and program that the chip's own protection covers: flashrom does not look at CMP and would try one
erase command after the other, chip erase included.

Source: the serprog protocol, version 1, as flashrom 1.3 speaks it.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from firmware.spi.flash import PROGRAM, READ, READ_ID, READ_STATUS, WRITE_ENABLE, WRITE_STATUS, SpiFlash
from firmware.spi.protection import Protection
from hw.errors import TghwError
from hw.signals import guarded_signals

log = logging.getLogger(__name__)

ACK, NAK = b"\x06", b"\x15"
INTERFACE_VERSION = 1
BUS_SPI = 0x08
NAME = b"tghw"
SERIAL_BUFFER = 0xFFFF
MOST_SENT = 4 + 256
"""bytes of one SPI operation: opcode, address, a page"""
MOST_RECEIVED = 0x10000
DEFAULT_PORT = 4444

NOP, QUERY_INTERFACE, QUERY_MAP, QUERY_NAME, QUERY_BUFFER, QUERY_BUS = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05
QUERY_MOST_SENT, SYNC_NOP, QUERY_MOST_RECEIVED, SET_BUS, SPI_OPERATION, PINS = 0x08, 0x10, 0x11, 0x12, 0x13, 0x15
QUERIES = (NOP, QUERY_INTERFACE, QUERY_MAP, QUERY_NAME, QUERY_BUFFER, QUERY_BUS, QUERY_MOST_SENT, SYNC_NOP, QUERY_MOST_RECEIVED)
PARAMETERS = {**dict.fromkeys(QUERIES, 0), SET_BUS: 1, PINS: 1, SPI_OPERATION: 6}
"""command -> bytes of fixed parameters"""

FAST_READ, READ_SFDP, READ_OTP = 0x0B, 0x5A, 0x48
WITH_DUMMY = (FAST_READ, READ_SFDP, READ_OTP)
"""a byte without meaning follows the address"""
WRITE_DISABLE, VOLATILE_ENABLE, ENABLE_RESET, RESET, SLEEP, WAKE, REMS = 0x04, 0x50, 0x66, 0x99, 0xB9, 0xAB, 0x90
WRITE_STATUS_2, WRITE_STATUS_3, PROGRAM_OTP, ERASE_OTP = 0x31, 0x11, 0x42, 0x44
CHIP_ERASES = (0x60, 0xC7)
ASKING = frozenset((READ, READ_ID, REMS, WAKE, *READ_STATUS, *WITH_DUMMY))
"""commands that change nothing"""
ORDERING = frozenset((WRITE_DISABLE, ENABLE_RESET, RESET, SLEEP))
CHANGING = frozenset((WRITE_ENABLE, VOLATILE_ENABLE, WRITE_STATUS, WRITE_STATUS_2, WRITE_STATUS_3, PROGRAM, PROGRAM_OTP, ERASE_OTP, *CHIP_ERASES))
ADDRESS_BYTES = 3


@dataclass
class Counts:
    """What a client did."""

    operations: int = 0
    bytes_read: int = 0
    bytes_programmed: int = 0
    erases: int = 0
    refused: list[str] = field(default_factory=list)


class Programmer:
    """SPI operations of a client, with what is not allowed kept from the chip."""

    def __init__(self, flash: SpiFlash, *, may_write: bool = False, report: Callable[[str], None] = log.warning) -> None:
        self.flash = flash
        self.counts = Counts()
        self._may_write = may_write
        self._report = report
        self._protection: Protection | None = None

    def operate(self, sent: bytes, receive: int) -> bytes | None:
        """One SPI operation; None when it is refused. Raises what the controller raises."""
        self.counts.operations += 1
        opcode = sent[0]
        if opcode in ASKING:
            return self._ask(opcode, sent, receive)
        changing = opcode in CHANGING or opcode in self.flash.chip.erases.values()
        if not changing and opcode not in ORDERING:
            log.debug("flash command %#04x is not passed on", opcode)
            return b"\xff" * receive
        reason = self._reason_against(opcode, sent) if changing else ""
        if reason:
            if reason not in self.counts.refused:
                self.counts.refused.append(reason)
                self._report(reason)
            return None
        self._order(opcode, sent)
        return b"\xff" * receive

    def _ask(self, opcode: int, sent: bytes, receive: int) -> bytes:
        controller = self.flash.controller
        if opcode == READ_ID:
            jedec = self.flash.chip.jedec  # the capture of some boards is rotated; flashrom takes it as it comes
            return (jedec * (receive // len(jedec) + 1))[:receive]
        if len(sent) == 1:
            return controller.receive(opcode, min(receive, controller.longest)).ljust(receive, b"\xff") if receive else b""
        if len(sent) <= ADDRESS_BYTES:
            return b"\xff" * receive
        address = int.from_bytes(sent[1 : 1 + ADDRESS_BYTES], "big")
        if opcode in (READ, FAST_READ):
            self.counts.bytes_read += receive
            skipped = int(opcode == FAST_READ) * max(0, 5 - len(sent))
            return (b"\xff" * skipped + self._read(address, receive - skipped))[:receive]
        dummy = len(sent) - 1 - ADDRESS_BYTES
        return controller.receive(opcode, min(receive + dummy, controller.longest), address)[dummy:].ljust(receive, b"\xff")

    def _read(self, address: int, count: int) -> bytes:
        """The array from an address on; behind its end comes its start."""
        size = self.flash.size
        parts = []
        address %= size
        while count > 0:
            length = min(count, size - address)
            parts.append(self.flash.read(address, length))
            address, count = 0, count - length
        return b"".join(parts)

    def _reason_against(self, opcode: int, sent: bytes) -> str:
        """Why a changing command must not reach the chip; "" when it may."""
        if not self._may_write:
            return "refused: the client wants to change the flash, and writing was not allowed (--yes)"
        span = self._span(opcode, sent)
        if span is None:
            return ""
        if self._protection is None:
            self._protection = self.flash.protection()
        if not self._protection.covers(*span):
            return ""
        return f"refused: an erase or program command ({opcode:#04x}) to a protected range; {self._protection.why}"

    def _span(self, opcode: int, sent: bytes) -> tuple[int, int] | None:
        """What a command would change of the array; None: nothing."""
        chip = self.flash.chip
        if opcode in CHIP_ERASES:
            return 0, chip.size
        address = int.from_bytes(sent[1 : 1 + ADDRESS_BYTES], "big") % chip.size
        if opcode == PROGRAM:
            first = address - address % chip.page
            return first, first + chip.page
        for size, each in chip.erases.items():
            if each == opcode:
                first = address - address % size
                return first, first + size
        return None

    def _order(self, opcode: int, sent: bytes) -> None:
        chip = self.flash.chip
        addressed = opcode in chip.erases.values() or opcode in (PROGRAM, PROGRAM_OTP, ERASE_OTP)
        if addressed and len(sent) > ADDRESS_BYTES:
            self.flash.controller.send(opcode, sent[1 + ADDRESS_BYTES :], int.from_bytes(sent[1 : 1 + ADDRESS_BYTES], "big"))
        else:
            data = sent[1:]
            if opcode == WRITE_STATUS and len(data) == 1:
                data += self.flash.controller.receive(READ_STATUS[1], 1)  # on some chips a one-byte write clears SR2
            self.flash.controller.send(opcode, data)
        if opcode in (WRITE_STATUS, WRITE_STATUS_2, WRITE_STATUS_3, RESET):
            self._protection = None
        if opcode == PROGRAM:
            self.counts.bytes_programmed += len(sent) - 1 - ADDRESS_BYTES
        elif opcode in chip.erases.values() or opcode in CHIP_ERASES:
            self.counts.erases += 1


class Session:
    """The protocol of one connection: bytes in, bytes out."""

    def __init__(self, programmer: Programmer) -> None:
        self._programmer = programmer
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; returns the answers to every command that is complete."""
        self._buffer += data
        answers = []
        while (answer := self._next()) is not None:
            answers.append(answer)
        return b"".join(answers)

    def _next(self) -> bytes | None:
        """The answer to the first command in the buffer, which is taken out of it; None when it is not all there."""
        if not self._buffer:
            return None
        command = self._buffer[0]
        fixed = PARAMETERS.get(command)
        if fixed is None:
            del self._buffer[0]
            return NAK
        if len(self._buffer) < 1 + fixed:
            return None
        parameters = bytes(self._buffer[1 : 1 + fixed])
        more = int.from_bytes(parameters[:3], "little") if command == SPI_OPERATION else 0
        if len(self._buffer) < 1 + fixed + more:
            return None
        sent = bytes(self._buffer[1 + fixed : 1 + fixed + more])
        del self._buffer[: 1 + fixed + more]
        return self._answer(command, parameters, sent)

    def _answer(self, command: int, parameters: bytes, sent: bytes) -> bytes:
        match command:
            case 0x10:  # SYNC_NOP
                return NAK + ACK
            case 0x12:  # SET_BUS
                return ACK if parameters[0] & BUS_SPI else NAK
            case 0x13:  # SPI_OPERATION
                return self._spi(sent, int.from_bytes(parameters[3:6], "little"))
        values = {
            QUERY_INTERFACE: INTERFACE_VERSION.to_bytes(2, "little"),
            QUERY_MAP: sum(1 << number for number in PARAMETERS).to_bytes(32, "little"),
            QUERY_NAME: NAME.ljust(16, b"\0"),
            QUERY_BUFFER: SERIAL_BUFFER.to_bytes(2, "little"),
            QUERY_BUS: bytes([BUS_SPI]),
            QUERY_MOST_SENT: MOST_SENT.to_bytes(3, "little"),
            QUERY_MOST_RECEIVED: MOST_RECEIVED.to_bytes(3, "little"),
        }
        return ACK + values.get(command, b"")

    def _spi(self, sent: bytes, receive: int) -> bytes:
        if not sent or len(sent) > MOST_SENT or receive > MOST_RECEIVED:
            return NAK
        data = self._programmer.operate(sent, receive)
        return NAK if data is None else ACK + data


class Server:
    """Listens for one client after the other. The flash controller is held only while one is connected."""

    def __init__(self, programmer: Programmer, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> None:
        self.programmer = programmer
        self._socket = socket.create_server((host, port))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """what it listens on; the port is a free one when 0 was asked for"""

    def serve_forever(self) -> None:
        """Until it is interrupted or the device fails. Raises KeyboardInterrupt, BusLost, FlashError."""
        with guarded_signals():
            while True:
                self.serve_one()

    def serve_one(self) -> None:
        """One client, from connecting to leaving. A device error is answered with NAK and raised."""
        connection, peer = self._socket.accept()
        with connection, self.programmer.flash.session():
            log.info("serprog client %s:%d", *peer[:2])
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = Session(self.programmer)
            clock = self.programmer.flash.controller.clock
            arrived, device_time = time.monotonic(), clock.now()
            while data := _received(connection):
                try:
                    clock.sleep(max(0.0, time.monotonic() - arrived - (clock.now() - device_time)))  # the client's waiting counts on a simulated device too
                    answer = session.feed(data)
                except TghwError:
                    _send(connection, NAK)
                    raise
                if not _send(connection, answer):
                    break
        log.info("serprog client left")

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _received(connection: socket.socket) -> bytes:
    """What arrived; nothing when the client is gone."""
    try:
        return connection.recv(0x10000)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, data: bytes) -> bool:
    """False when the client is gone."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True
