"""Hardware rings: memory that a device fetches commands from, its read and write pointers, and the doorbell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hw.clock import Clock
from hw.errors import TghwError
from hw.mmio import Mmio
from hw.poll import poll

SPACE_LIMIT = 10.0
"""seconds without any fetch after which a full ring counts as stuck"""


class RingOverrun(TghwError):
    """One submission larger than the ring. Nothing was sent."""

    code = "ring-overrun"
    default_means = "a single submission must fit into the ring as a whole"
    default_remedy = "submit in several parts, or bind() the queue so that only a short packet goes through the ring"


class Ring:
    """What rings have in common. Pointers count in `unit` bytes and grow for ever; the device may report its read pointer modulo the ring.

    flush: makes earlier writes visible to the device (store fence, HDP flush). doorbell: tells it the new write pointer.
    """

    unit: int

    def __init__(
        self,
        memory: Mmio,
        *,
        read_pointer: Callable[[], int],
        write_pointer: Callable[[int], None],
        flush: Callable[[], None],
        doorbell: Callable[[int], None],
        clock: Clock,
        name: str = "ring",
    ) -> None:
        self.memory = memory
        self.name = name
        self.size = memory.size
        self.units = memory.size // self.unit
        self.put = 0
        """write pointer, in units"""
        self._read_pointer = read_pointer
        self._write_pointer = write_pointer
        self._flush = flush
        self._doorbell = doorbell
        self._clock = clock
        self._done = 0
        """a write-pointer value up to which the device has certainly fetched"""
        self._held = False
        self._announced = 0
        """write pointer that the device was told last, while submissions are held back"""
        self.limit = SPACE_LIMIT
        """seconds without any fetch until a full ring is a timeout"""

    def consumed(self) -> int:
        """How far the device has fetched, as a write-pointer value. Accepts monotonic and wrapped reports."""
        self._done = self.position(self._read_pointer())
        return self._done

    def position(self, reported: int) -> int:
        """A read pointer as the device reports it, as a write-pointer value."""
        return self.put - (self.put - reported) % self.units

    def idle(self) -> bool:
        return self.consumed() == self.put

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Collect submissions: the device is told of all of them at the end, or when somebody waits, with one doorbell."""
        self._held = True
        self._announced = self.put
        try:
            yield
        finally:
            self.catch_up()
            self._held = False

    def catch_up(self) -> None:
        """Tell the device of submissions that were held back."""
        if self._held and self._announced != self.put:
            self._announce()

    def reset(self) -> None:
        """Start again at 0, after the device's side was set up anew."""
        self.put = 0
        self._done = 0
        self._write_pointer(0)

    def _reserve(self, units: int) -> None:
        """Wait for room. One unit always stays free, so that a full ring never looks empty."""
        if units >= self.units:
            raise RingOverrun(f"{units * self.unit} bytes for {self.name} of {self.size} bytes")
        if self.put + units - self._done >= self.units:
            self.catch_up()
            self._await_room(self.put + units - self.units, units)

    def _await_room(self, target: int, units: int) -> None:
        """Wait until the device fetched beyond `target`. Each fetch restarts the limit."""
        done = self.consumed()
        while done <= target:
            before = done
            done = poll(
                self.consumed,
                lambda now: now > target or now != before,  # noqa: B023
                what=f"{self.name} to have room for {units * self.unit} bytes",
                within=self.limit,
                clock=self._clock,
            )

    def _start(self, put: int) -> None:
        if self._held:
            self.put = put  # the device hears of it in catch_up()
            return
        self._write_pointer(put)
        self._flush()
        self._doorbell(put)
        self.put = put

    def _announce(self) -> None:
        self._write_pointer(self.put)
        self._flush()
        self._doorbell(self.put)
        self._announced = self.put


class DwordRing(Ring):
    """A ring counted in dwords whose packets may lie across its end (AMD PM4)."""

    unit = 4

    def submit(self, data: bytes | bytearray) -> None:
        """Put the words in the ring and start them. Raises RingOverrun, WaitTimeout when the device does not make room."""
        count = len(data) >> 2
        put = self.put
        if put + count - self._done >= self.units:
            self._reserve(count)
        offset = put % self.units << 2
        room = self.size - offset
        if len(data) <= room:
            self.memory.write(offset, data)
        else:
            self.memory.write(offset, data[:room])
            self.memory.write(0, data[room:])
        self._start(put + count)


class ByteRing(Ring):
    """A ring counted in bytes whose packets must not lie across its end (AMD SDMA): the tail is filled with zero dwords, which are NOPs."""

    unit = 1

    def submit(self, data: bytes | bytearray, packets: Sequence[int], end_align: int = 4) -> None:
        """Put packets, of so many dwords each, in the ring and start them. Raises RingOverrun, WaitTimeout.

        end_align: bytes of which the end of the last packet must be a multiple; zero dwords are put in front for it. A packet that
        would end exactly at the ring end goes to the start, like one that does not fit.
        """
        offset = self.put % self.size
        room = self.size - offset
        lead = -(offset + len(data)) % end_align
        if lead + len(data) < room:
            self._reserve(lead + len(data))
            self.memory.write(offset, bytes(lead) + data if lead else data)
            self._start(self.put + lead + len(data))
            return
        fitting = 0
        if end_align == 4:
            for dwords in packets:
                if fitting + 4 * dwords >= room:
                    break
                fitting += 4 * dwords
        tail = bytes(-(len(data) - fitting) % end_align) + data[fitting:]
        total = room + len(tail)
        self._reserve(total)
        self.memory.write(offset, data[:fitting] + bytes(room - fitting))
        self.memory.write(0, tail)
        self._start(self.put + total)
