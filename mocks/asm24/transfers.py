"""USB transfers in flight: one queue an endpoint and stream, worked off in simulated time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mocks.asm24.device import NoAnswer, Setup, Stall, UsbDevice
from mocks.clock import Engine

if TYPE_CHECKING:
    from mocks.asm24.host import UsbHost

COMPLETED, ERROR, TIMED_OUT, CANCELLED, STALL, NO_DEVICE, OVERFLOW = range(7)
"""how a transfer ends, as libusb numbers it"""


class Transfer:
    """One transfer. `endpoint` 0 is the control endpoint, with `setup`. Ended when `status` is not None."""

    def __init__(self, host: UsbHost, endpoint: int, payload: bytes, length: int, setup: Setup | None = None, stream: int = 0) -> None:
        self._host = host
        self.endpoint = endpoint
        self.setup = setup
        self.payload = payload
        """what the host sends"""
        self.length = length
        """bytes to send or asked for"""
        self.stream = stream
        self.status: int | None = None
        self.actual = 0
        """bytes that went by"""
        self.buffer = bytearray()
        self.deadline = float("inf")
        self.limit: int | None = None
        """a planned fault ends it after so many bytes"""
        self.killer = False
        """the process dies when the limit is reached"""
        self.lost = False
        """a planned fault: it never gets to the device"""

    @property
    def is_in(self) -> bool:
        return self.setup.is_in if self.setup is not None else bool(self.endpoint & 0x80)

    @property
    def over(self) -> bool:
        return self.status is not None

    @property
    def data(self) -> bytes:
        """What an IN transfer brought."""
        return bytes(self.buffer)

    def cancel(self) -> None:
        """Take it back. What went by stays gone by."""
        self.finish(CANCELLED)

    def finish(self, status: int) -> None:
        if self.status is None:
            self.status = status
            self._host.ended(self)

    def received(self, chunk: bytes) -> bool:
        """Data from the device. False when there was no room for it."""
        room = self.length - self.actual
        self.buffer += chunk[:room]
        self.actual += min(room, len(chunk))
        return len(chunk) <= room


class Pipe:
    """The transfers of one endpoint and stream, in order."""

    def __init__(self, host: UsbHost, device: UsbDevice) -> None:
        self._host = host
        self._device = device
        self._chip = device.chip
        self._queue: deque[Transfer] = deque()
        self._working = False
        self._rate = device.wire_rate

    def add(self, transfer: Transfer) -> None:
        self._queue.append(transfer)
        if not self._working:
            self._working = True
            self._host.scheduler.spawn("USB pipe", self._work())

    def end_all(self, status: int) -> None:
        """Everything queued ends like this."""
        for transfer in list(self._queue):
            transfer.finish(status)

    def _work(self) -> Engine:
        try:
            while self._queue:
                transfer = self._queue[0]
                yield self._host.latency(transfer, self._device.speed)
                while not transfer.over and (transfer.lost or self._chip.wedged):
                    yield self._device.ready
                try:
                    if not transfer.over:
                        yield from self._control(transfer) if transfer.setup is not None else self._bulk(transfer)
                except Exception:
                    transfer.finish(ERROR)  # the simulation itself cannot go on with this one
                    raise
                finally:
                    self._queue.popleft()
        finally:
            self._working = False

    def _control(self, transfer: Transfer) -> Engine:
        assert transfer.setup is not None
        chip = self._chip
        while chip.cpu_wait() > 0:
            yield chip.cpu_wait()
        chip.note_setup(transfer.setup)
        chip.in_request = True
        try:
            data = yield from self._device.control(transfer.setup, transfer.payload)
        except Stall:
            transfer.finish(STALL)
            return
        except NoAnswer:
            while not transfer.over:
                yield self._device.ready
            return
        finally:
            chip.in_request = False
            self._device.wake()
        while chip.cpu_wait() > 0 and not transfer.over:
            yield chip.cpu_wait()
        while chip.wedged and not transfer.over:
            yield self._device.ready
        if transfer.over:
            return
        if transfer.killer:
            self._host.kill()
            return
        if transfer.is_in:
            fits = transfer.received(data if transfer.limit is None else data[: transfer.limit])
            transfer.finish(COMPLETED if fits else OVERFLOW)
        else:
            transfer.actual = len(transfer.payload)
            transfer.finish(COMPLETED)

    def _bulk(self, transfer: Transfer) -> Engine:
        chip = self._chip
        while not transfer.over:
            if chip.wedged or chip.in_request:
                yield self._device.ready
                continue
            wait = chip.cpu_wait()
            if wait > 0:
                yield wait
                continue
            try:
                moved, seconds = self._in(transfer) if transfer.is_in else self._out(transfer)
            except Stall:
                transfer.finish(STALL)
                return
            if moved is None:
                yield self._device.ready
                continue
            yield max(seconds, moved / self._rate)
            self._end_if_due(transfer)

    def _out(self, transfer: Transfer) -> tuple[int | None, float]:
        end = transfer.length if transfer.limit is None else min(transfer.length, transfer.limit)
        if transfer.actual >= end:
            return 0, 0.0
        taken, seconds = self._device.take(transfer.endpoint, memoryview(transfer.payload)[transfer.actual : end], transfer.stream)
        transfer.actual += taken
        return (taken, seconds) if taken else (None, 0.0)

    def _in(self, transfer: Transfer) -> tuple[int | None, float]:
        room = transfer.length - transfer.actual
        if transfer.limit is not None and transfer.actual >= transfer.limit:
            return 0, 0.0
        chunk, seconds = self._device.give(transfer.endpoint, room, transfer.stream)
        if chunk is None:
            return None, 0.0
        if transfer.limit is not None:
            chunk = chunk[: max(0, transfer.limit - transfer.actual)]
        if not transfer.received(chunk):
            transfer.finish(OVERFLOW)
        elif len(chunk) % self._device.packet or not chunk:
            transfer.finish(COMPLETED)
        return len(chunk), seconds

    def _end_if_due(self, transfer: Transfer) -> None:
        if transfer.over:
            return
        if transfer.limit is not None and transfer.actual >= min(transfer.limit, transfer.length):
            if transfer.killer:
                self._host.kill()
            else:
                transfer.finish(COMPLETED)
        elif transfer.actual >= transfer.length:
            transfer.finish(COMPLETED)
