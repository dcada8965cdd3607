"""The usbredir server, spoken to as QEMU does, without QEMU."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mocks.lab.usbredir import UsbRedirServer
from mocks.machine import Machine

HELLO, CONNECT, DISCONNECT, RESET, INTERFACE_INFO, EP_INFO, CONFIGURE, CONFIGURED, ALTERNATE, ALTERNATED, CANCEL, CONTROL, BULK = 0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 21, 100, 101
STALL, CANCELLED = 4, 1


class Guest:
    """One connection."""

    def __init__(self, path: Path, capabilities: int = 0xFF) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.width = 8 if capabilities & 0x20 else 4
        self._send(HELLO, 0, b"a test".ljust(64, b"\0") + capabilities.to_bytes(4, "little"), 4)
        kind, _, body = self.receive(4)
        assert (kind, len(body)) == (HELLO, 68)

    def _send(self, kind: int, number: int, body: bytes, width: int) -> None:
        self.socket.sendall(struct.pack("<II", kind, len(body)) + number.to_bytes(width, "little") + body)

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        self._send(kind, number, body, self.width)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data

    def receive(self, width: int | None = None) -> tuple[int, int, bytes]:
        kind, size = struct.unpack("<II", self.exactly(8))
        return kind, int.from_bytes(self.exactly(width or self.width), "little"), self.exactly(size)

    def until(self, wanted: int) -> tuple[int, bytes]:
        while True:
            kind, number, body = self.receive()
            if kind == wanted:
                return number, body

    def control(self, number: int, kind: int, request: int, value: int, index: int, what: bytes | int) -> tuple[int, bytes]:
        """(status, data)"""
        size = what if isinstance(what, int) else len(what)
        self.send(CONTROL, number, struct.pack("<BBBBHHH", kind & 0x80, request, kind, 0, value, index, size) + (b"" if isinstance(what, int) else what))
        answered, body = self.until(CONTROL)
        assert answered == number
        assert int.from_bytes(body[8:10], "little") == (len(body) - 10 if kind & 0x80 else size)
        return body[3], body[10:]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[UsbRedirServer, Path]]:
    server = UsbRedirServer(Machine.from_profile("navi31-asm24"), tmp_path / "ur")
    stop = threading.Event()
    thread = threading.Thread(target=server.serve, args=(stop.is_set,))
    thread.start()
    yield server, tmp_path / "ur"
    stop.set()
    thread.join()
    assert not (tmp_path / "ur").exists()


@pytest.mark.parametrize("capabilities", [0xFF, 0x5F])
def test_device_is_announced_configured_and_used(served: tuple[UsbRedirServer, Path], capabilities: int) -> None:
    guest = Guest(served[1], capabilities)
    _, endpoints = guest.until(EP_INFO)
    assert [place for place in range(32) if endpoints[place] == 2] == [2, 17]
    assert struct.unpack_from("<32H", endpoints, 96)[17] == 1024
    _, about = guest.until(CONNECT)
    assert struct.unpack("<BBBBHHH", about) == (3, 0, 0, 0, 0x3801, 0x0001, 0x0001)
    guest.send(RESET, 0)
    assert guest.control(1, 0x80, 6, 0x0100, 0, 18)[1][8:12] == bytes.fromhex("01380100")
    guest.send(CONFIGURE, 2, b"\x01")
    assert guest.until(CONFIGURED) == (2, b"\x00\x01")
    assert guest.control(3, 0x40, 0xE5, 0x1234, 0x77, b"") == (0, b"")
    assert guest.control(4, 0xC0, 0xE4, 0x1234, 0, 1) == (0, b"\x77")
    assert guest.control(5, 0xC0, 0x55, 0, 0, 1)[0] == STALL
    guest.control(6, 0x40, 0xF2, 0x0001, 0x0100, b"")
    guest.send(BULK, 7, struct.pack("<BBHIH", 0x02, 0, 512, 0, 0) + b"\x42" * 512)
    assert guest.until(BULK) == (7, struct.pack("<BBHIH", 0x02, 0, 512, 0, 0))
    assert served[0].bridge.sram.read(0x200000, 8) == b"\x42" * 8


def test_an_in_transfer_is_held_until_it_is_cancelled(served: tuple[UsbRedirServer, Path]) -> None:
    guest = Guest(served[1])
    guest.until(CONNECT)
    guest.send(CONFIGURE, 1, b"\x01")
    guest.until(CONFIGURED)
    guest.send(BULK, 2, struct.pack("<BBHIH", 0x81, 0, 512, 0, 0))
    assert guest.control(3, 0x80, 8, 0, 0, 1) == (0, b"\x01")
    guest.send(CANCEL, 2)
    number, body = guest.until(BULK)
    assert (number, body[1], len(body)) == (2, CANCELLED, 10)


def test_other_setting_brings_other_endpoints(served: tuple[UsbRedirServer, Path]) -> None:
    guest = Guest(served[1])
    guest.until(CONNECT)
    guest.send(CONFIGURE, 1, b"\x01")
    guest.until(CONFIGURED)
    guest.send(ALTERNATE, 2, b"\x00\x01")
    _, endpoints = guest.until(EP_INFO)
    assert [place for place in range(32) if endpoints[place] == 2] == [2, 4, 17, 19]
    assert struct.unpack_from("<32I", endpoints, 160)[17] == 32
    assert guest.until(ALTERNATED) == (2, b"\x00\x00\x01")


def test_unplugging_and_plugging_in_is_seen(served: tuple[UsbRedirServer, Path]) -> None:
    guest = Guest(served[1])
    guest.until(CONNECT)
    guest.send(CONFIGURE, 1, b"\x01")
    guest.until(CONFIGURED)
    guest.control(2, 0x40, 0xEB, 0, 0, b"")  # the firmware restarts
    guest.until(DISCONNECT)
    assert struct.unpack("<BBBBHHH", guest.until(CONNECT)[1])[4:6] == (0x3801, 0x0001)


def test_a_second_guest_may_follow_the_first(served: tuple[UsbRedirServer, Path]) -> None:
    first = Guest(served[1])
    first.until(CONNECT)
    first.socket.close()
    second = Guest(served[1])
    assert second.until(CONNECT)[0] == 0
