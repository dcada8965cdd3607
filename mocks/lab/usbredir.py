"""The simulated USB bridge as a real USB device of a QEMU guest, by the usbredir protocol.

    python -m mocks.lab.usbredir navi31-asm24 /run/bridge.sock

    qemu-system-x86_64 ... -chardev socket,id=ur,path=/run/bridge.sock -device qemu-xhci,id=x -device usb-redir,chardev=ur,bus=x.0

QEMU connects, is told the device's endpoints, and from then on hands over what the guest's host controller does. Protocol: usbredir
0.7 (little endian; a message is type, length, id and a body). Simulated time follows real time while the guest does nothing, and runs
ahead of it while a transfer of the guest waits for something that will happen.
"""

from __future__ import annotations

import argparse
import logging
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mocks.asm24 import transfers
from mocks.asm24.descriptors import HIGH, Endpoint
from mocks.asm24.device import Setup
from mocks.asm24.transfers import Transfer

if TYPE_CHECKING:
    from mocks.machine import Machine

log = logging.getLogger(__name__)

HELLO, CONNECT, DISCONNECT, RESET, INTERFACE_INFO, EP_INFO = 0, 1, 2, 3, 4, 5
SET_CONFIGURATION, GET_CONFIGURATION, CONFIGURATION_STATUS = 6, 7, 8
SET_ALTERNATE, GET_ALTERNATE, ALTERNATE_STATUS = 9, 10, 11
ALLOC_STREAMS, FREE_STREAMS, STREAMS_STATUS, CANCEL, DISCONNECT_ACK = 18, 19, 20, 21, 24
CONTROL_PACKET, BULK_PACKET = 100, 101

CAP_STREAMS, CAP_RELEASE, CAP_DISCONNECT_ACK, CAP_PACKET_SIZE, CAP_LONG_IDS, CAP_LONG_BULK = 0, 1, 3, 4, 5, 6
OFFERED = sum(1 << each for each in (CAP_STREAMS, CAP_RELEASE, CAP_DISCONNECT_ACK, CAP_PACKET_SIZE, CAP_LONG_IDS, CAP_LONG_BULK))
VERSION = b"tghw simulated bridge"

SPEED_HIGH, SPEED_SUPER = 2, 3
TYPE_CONTROL, TYPE_BULK, TYPE_ABSENT = 0, 2, 255
STATUS_GOOD, STATUS_CANCELLED, STATUS_INVALID, STATUS_IO, STATUS_STALL, STATUS_TIMEOUT, STATUS_BABBLE = range(7)
OF_TRANSFER = {
    transfers.COMPLETED: STATUS_GOOD,
    transfers.ERROR: STATUS_IO,
    transfers.TIMED_OUT: STATUS_TIMEOUT,
    transfers.CANCELLED: STATUS_CANCELLED,
    transfers.STALL: STATUS_STALL,
    transfers.NO_DEVICE: STATUS_IO,
    transfers.OVERFLOW: STATUS_BABBLE,
}
CONTROL_HEAD = struct.Struct("<BBBBHHH")
BULK_HEAD = struct.Struct("<BBHIH")
IDLE = 0.002
"""s between two looks at the socket while nothing is to be done"""
STEPS = 200
"""of simulated time between two looks at the socket"""


@dataclass
class Flying:
    """A transfer of the guest on its way."""

    kind: int
    head: bytes
    """its header as QEMU sent it"""
    transfer: Transfer


class UsbRedirServer:
    """Serves one machine's bridge to one QEMU at a time."""

    def __init__(self, machine: Machine, path: Path) -> None:
        assert machine.asm24 is not None
        self.machine = machine
        self.bridge = machine.asm24
        self._host = machine.asm24.host
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._peer: socket.socket | None = None
        self._buffer = bytearray()
        self._greeted = False
        """QEMU has said hello, so both know how messages look"""
        self._long_ids = False
        self._flying: dict[int, Flying] = {}
        self._announced: object = None
        self._real = time.monotonic()
        self.messages = 0
        """messages from QEMU so far"""

    def serve(self, stop: Callable[[], bool]) -> None:
        """Until told to stop. A QEMU that goes away may be followed by another."""
        try:
            while not stop():
                self._step()
        finally:
            self.close()

    def close(self) -> None:
        for each in (self._peer, self._socket):
            if each is not None:
                each.close()
        self._peer = None
        self._path.unlink(missing_ok=True)

    def _step(self) -> None:
        if self._peer is None:
            if select.select([self._socket], [], [], 0.05)[0]:
                self._welcome()
            return
        busy = bool(self._flying)
        if select.select([self._peer], [], [], 0 if busy else IDLE)[0]:
            try:
                received = self._peer.recv(1 << 20)
            except ConnectionResetError:
                received = b""
            if not received:
                self._farewell()
                return
            self._buffer += received
            while self._peer is not None and self._one_message():
                pass
        self._pass_time()
        self._answer_finished()
        self._announce()

    def _welcome(self) -> None:
        self._peer, _ = self._socket.accept()
        self._buffer.clear()
        self._flying.clear()
        self._greeted = self._long_ids = False
        self._announced = None
        self._real = time.monotonic()
        self._send(HELLO, 0, VERSION.ljust(64, b"\0") + OFFERED.to_bytes(4, "little"))

    def _farewell(self) -> None:
        log.info("QEMU is gone")
        for each in list(self._flying.values()):
            each.transfer.cancel()
        self._flying.clear()
        if self._peer is not None:
            self._peer.close()
        self._peer = None

    # --- time ---

    def _pass_time(self) -> None:
        """Let the machine live: as long as real time went by, and further while a transfer waits for something that is due."""
        clock, scheduler = self.machine.clock, self.machine.scheduler
        now = time.monotonic()
        clock.sleep(now - self._real)
        self._real = now
        for _ in range(STEPS):
            if not self._flying or any(each.transfer.over for each in self._flying.values()):
                return
            due = scheduler.next_due()
            if due == float("inf"):
                time.sleep(IDLE)
                return
            clock.sleep(due - clock.now())

    # --- messages ---

    def _send(self, kind: int, number: int, body: bytes) -> None:
        assert self._peer is not None
        head = struct.pack("<II", kind, len(body)) + number.to_bytes(8 if self._long_ids and kind != HELLO else 4, "little")
        try:
            self._peer.sendall(head + body)
        except OSError:
            self._farewell()

    def _one_message(self) -> bool:
        """Handle the next whole message, if there is one."""
        width = 8 if self._long_ids else 4
        head = 8 + width
        if len(self._buffer) < head:
            return False
        kind, size = struct.unpack_from("<II", self._buffer)
        if len(self._buffer) < head + size:
            return False
        number = int.from_bytes(self._buffer[8:head], "little")
        body = bytes(self._buffer[head : head + size])
        del self._buffer[: head + size]
        self.messages += 1
        self._handle(kind, number, body)
        return True

    def _handle(self, kind: int, number: int, body: bytes) -> None:
        device = self.bridge.usb
        if kind == HELLO:
            offered = int.from_bytes(body[64:68], "little")
            log.info("QEMU: %s, capabilities %#x", body[:64].rstrip(b"\0").decode("latin-1"), offered)
            self._long_ids = bool(offered >> CAP_LONG_IDS & 1)
            self._greeted = True
        elif kind == RESET:
            for each in list(self._flying.values()):
                each.transfer.cancel()
            device.bus_reset()
        elif kind == SET_CONFIGURATION:
            status = self._host.run(Transfer(self._host, 0, b"", 0, Setup(0, 9, body[0], 0, 0)), 5.0)
            self._send_endpoints()
            self._send(CONFIGURATION_STATUS, number, bytes([OF_TRANSFER[status], device.configuration]))
        elif kind == GET_CONFIGURATION:
            self._send(CONFIGURATION_STATUS, number, bytes([STATUS_GOOD, device.configuration]))
        elif kind == SET_ALTERNATE:
            status = self._host.run(Transfer(self._host, 0, b"", 0, Setup(1, 11, body[1], body[0], 0)), 5.0)
            self._send_endpoints()
            self._send(ALTERNATE_STATUS, number, bytes([OF_TRANSFER[status], body[0], device.alternate]))
        elif kind == GET_ALTERNATE:
            self._send(ALTERNATE_STATUS, number, bytes([STATUS_GOOD, body[0], device.alternate]))
        elif kind in (ALLOC_STREAMS, FREE_STREAMS):
            endpoints, count = struct.unpack_from("<II", body.ljust(8, b"\0"))
            self._send(STREAMS_STATUS, number, struct.pack("<IIB", endpoints, count if kind == ALLOC_STREAMS else 0, STATUS_GOOD))
        elif kind == CANCEL:
            flying = self._flying.get(number)
            if flying is not None:
                flying.transfer.cancel()
        elif kind == CONTROL_PACKET:
            self._control(number, body)
        elif kind == BULK_PACKET:
            self._bulk(number, body)
        elif kind != DISCONNECT_ACK:
            log.warning("usbredir message %d of %d bytes: not served", kind, len(body))

    def _control(self, number: int, body: bytes) -> None:
        endpoint, request, kind, _, value, index, length = CONTROL_HEAD.unpack_from(body)
        payload = b"" if endpoint & 0x80 else body[CONTROL_HEAD.size :]
        transfer = Transfer(self._host, 0, payload, length, Setup(kind, request, value, index, length))
        self._start(number, CONTROL_PACKET, body[: CONTROL_HEAD.size], transfer)

    def _bulk(self, number: int, body: bytes) -> None:
        endpoint, _, low, stream, high = BULK_HEAD.unpack_from(body)
        length = high << 16 | low
        payload = b"" if endpoint & 0x80 else body[BULK_HEAD.size :]
        self._start(number, BULK_PACKET, body[: BULK_HEAD.size], Transfer(self._host, endpoint, payload, length, stream=stream))

    def _start(self, number: int, kind: int, head: bytes, transfer: Transfer) -> None:
        self._flying[number] = Flying(kind, head, transfer)
        self._host.submit(transfer, 0)

    def _answer_finished(self) -> None:
        for number, each in list(self._flying.items()):
            transfer = each.transfer
            if transfer.status is None or self._peer is None:
                continue
            del self._flying[number]
            status = OF_TRANSFER[transfer.status]
            data = transfer.data if transfer.is_in else b""
            if each.kind == CONTROL_PACKET:
                endpoint, request, kind, _, value, index, _ = CONTROL_HEAD.unpack(each.head)
                head = CONTROL_HEAD.pack(endpoint, request, kind, status, value, index, transfer.actual)
            else:
                endpoint, _, _, stream, _ = BULK_HEAD.unpack(each.head)
                head = BULK_HEAD.pack(endpoint, status, transfer.actual & 0xFFFF, stream, transfer.actual >> 16)
            self._send(each.kind, number, head + data)

    # --- what the guest is shown ---

    def _announce(self) -> None:
        """Tell QEMU when the device came or went."""
        node = self._host.node
        if node is self._announced or self._peer is None or not self._greeted:
            return
        if self._announced is not None:
            self._send(DISCONNECT, 0, b"")
        self._announced = node
        if node is None or node.device is None:
            return
        about = node.device.descriptors
        self._send_endpoints()
        speed = SPEED_HIGH if about.speed == HIGH else SPEED_SUPER
        self._send(CONNECT, 0, struct.pack("<BBBBHHH", speed, 0, 0, 0, about.vendor, about.product, about.release))

    def _send_endpoints(self) -> None:
        device = self.bridge.usb
        alternate = device.descriptors.alternates[device.alternate]
        kinds, packets, streams = [TYPE_ABSENT] * 32, [0] * 32, [0] * 32
        kinds[0] = kinds[16] = TYPE_CONTROL
        packets[0] = packets[16] = 64 if device.speed == HIGH else 512
        for each in alternate.endpoints:
            place = _place(each)
            kinds[place], packets[place], streams[place] = TYPE_BULK, device.packet, (1 << each.streams) if each.streams else 0
        body = bytes(kinds) + bytes(32) + bytes(32) + struct.pack("<32H", *packets) + struct.pack("<32I", *streams)
        interface, subclass, protocol = alternate.kind
        self._send(INTERFACE_INFO, 0, struct.pack("<I", 1) + bytes(32) + bytes([interface]) + bytes(31) + bytes([subclass]) + bytes(31) + bytes([protocol]) + bytes(31))
        self._send(EP_INFO, 0, body)


def _place(endpoint: Endpoint) -> int:
    """Where usbredir lists an endpoint: OUT 0 to 15, IN 16 to 31."""
    return (endpoint.address & 0xF) + (16 if endpoint.address & 0x80 else 0)


def main() -> None:
    """Serve a profile's bridge until interrupted."""
    from mocks.machine import Machine

    parser = argparse.ArgumentParser(description="The simulated USB bridge of a profile as a usbredir server.")
    parser.add_argument("profile")
    parser.add_argument("socket", type=Path)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    UsbRedirServer(Machine.from_profile(chosen.profile), chosen.socket).serve(lambda: False)


if __name__ == "__main__":
    main()
