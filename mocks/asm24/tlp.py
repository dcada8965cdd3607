"""The TLP engine: one PCIe request with one dword of data, described byte by byte in registers.

A request leaves when both the trigger (0xB254 = 0x0F) and the kick (bit 2 of 0xB296) were given, in either order; that clears the
status of the one before. Then either "complete" rises, or "error" when nobody answered in time. With the link off or PERST# asserted
neither rises, ever. The data registers keep what was written or read last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hw.errors import NotModelled
from mocks.asm24.fabric import Completion, Fabric
from mocks.asm24.xdata import Xdata

if TYPE_CHECKING:
    from mocks.asm24.faults import BridgeFaults
    from mocks.clock import SimClock

log = logging.getLogger(__name__)

FMT_TYPE, LENGTH_DW, TAG, BE = 0xB210, 0xB213, 0xB216, 0xB217
ADDRESS_LOW, ADDRESS_HIGH, DATA = 0xB218, 0xB21C, 0xB220
CPL_STATUS, CPL_BYTES = 0xB22A, 0xB22B
TRIGGER, CPL_TYPE, STATUS = 0xB254, 0xB284, 0xB296

ERROR = 1 << 0
COMPLETE = 1 << 1
KICK = 1 << 2
REARM = 1 << 3
TRIGGER_VALUE = 0x0F

MRD32, MRD64, MWR32, MWR64 = 0x00, 0x20, 0x40, 0x60
CFG_TYPE0, CFG_TYPE1 = 0x04, 0x05
WRITE = 0x40


def is_posted(fmt: int) -> bool:
    """Does nobody answer a request of this fmt/type? Memory writes and messages."""
    return fmt & 0xDF == 0x40 or fmt & 0xB8 == 0x30


class TlpEngine:
    """Registers 0xB210 to 0xB298 and what they start."""

    def __init__(self, xdata: Xdata, fabric: Fabric, clock: SimClock, running: Callable[[], bool], faults: BridgeFaults, timeout: float) -> None:
        self._xdata = xdata
        self._fabric = fabric
        self._clock = clock
        self._running = running
        self._faults = faults
        self._timeout = timeout
        """s until a request that nobody completes counts as failed"""
        self._triggered = self._kicked = False
        self._status = 0
        self._due = 0.0
        """when `_status` becomes visible"""
        self.sent = 0
        """requests that left so far"""
        self.lose_link: Callable[[], None] = lambda: None
        """the link drops, as a fault plans"""
        self.note_misuse: Callable[[str], None] = lambda _: None
        xdata.hook("TLP_TRIGGER", lambda _: 0, self._trigger)
        xdata.hook("TLP_STATUS", lambda _: self.status, self._write_status)
        self.reset()

    def reset(self) -> None:
        self._xdata.memory[FMT_TYPE : DATA + 16] = bytes(DATA + 16 - FMT_TYPE)
        self._xdata.memory[LENGTH_DW] = 1
        self._xdata.memory[CPL_TYPE] = 0
        self._triggered = self._kicked = False
        self._status = 0

    # --- registers ---

    @property
    def status(self) -> int:
        """0xB296 as it reads: bit 2 while one of trigger and kick waits for the other."""
        if self._triggered or self._kicked:
            return KICK
        return self._status if self._clock.now() >= self._due else 0

    @property
    def pending(self) -> float:
        """s until the status of the request on its way is known."""
        return max(0.0, self._due - self._clock.now())

    def _trigger(self, _: int, value: int) -> None:
        if value != TRIGGER_VALUE:
            raise NotModelled(f"write of {value:#04x} to XDATA {TRIGGER:#06x} TLP_TRIGGER", means="only 0x0f is known to send a request")
        self._triggered = True
        self._start_if_ready()

    def _write_status(self, _: int, value: int) -> None:
        if value & ~(ERROR | COMPLETE | KICK):
            raise NotModelled(f"write of {value:#04x} to XDATA {STATUS:#06x} TLP_STATUS", means="bit 3 and above have no model")
        self._status &= ~(value & (ERROR | COMPLETE))
        if value & KICK:
            self._kicked = True
            self._start_if_ready()

    def _start_if_ready(self) -> None:
        if self._triggered and self._kicked:
            self._triggered = self._kicked = False
            memory = self._xdata.memory
            if memory[LENGTH_DW] != 1 or any(memory[FMT_TYPE + 1 : LENGTH_DW]):
                raise NotModelled(f"TLP with header bytes {memory[FMT_TYPE : BE + 1].hex()}", means="the engine sends one dword, no attributes")
            low = int.from_bytes(memory[ADDRESS_LOW : ADDRESS_LOW + 4], "big")
            high = int.from_bytes(memory[ADDRESS_HIGH : ADDRESS_HIGH + 4], "big")
            self.send(memory[FMT_TYPE], memory[BE], high << 32 | low, int.from_bytes(memory[DATA : DATA + 4], "big"))

    # --- requests ---

    def send(self, fmt: int, be: int, address: int, data: int) -> None:
        """Send one request; the outcome goes to the registers."""
        memory = self._xdata.memory
        self.sent += 1
        self._status = 0
        self._due = self._clock.now()
        if self._faults.hits("link-down-at", self.sent):
            self.lose_link()
        fault = self._faults.next_completion(self.sent)
        if be >> 4:
            self.note_misuse(f"byte enables {be:#04x}: a request of one dword has none for a last dword; an access across a dword loses bytes")
        if address & 3:
            self.note_misuse(f"request to unaligned address {address:#x}: malformed")
        if not self._running():
            self._due = float("inf")
            return
        if is_posted(fmt):
            if fmt not in (MWR32, MWR64):
                raise NotModelled(f"PCIe message, fmt/type {fmt:#04x}")
            if fault is None and address & 3 == 0:
                self._fabric.write(address, data, be & 0xF)
            self._status = COMPLETE
            return
        answer = self._answer(fmt, be, address, data) if fault is None else fault.completion
        if answer is None:
            self._status = ERROR
            self._due = self._clock.now() + self._timeout
            return
        self._status = COMPLETE
        count = 4 if fmt & 0xBE == CFG_TYPE0 else _byte_count(be)
        memory[CPL_STATUS] = answer.status << 5 | count >> 8
        memory[CPL_BYTES] = count & 0xFF
        memory[CPL_TYPE] = int(answer.data is not None)
        if answer.data is not None:
            memory[DATA : DATA + 4] = answer.data.to_bytes(4, "big")

    def _answer(self, fmt: int, be: int, address: int, data: int) -> Completion | None:
        if address & 3:
            return None
        if fmt in (MRD32, MRD64):
            return self._fabric.read(address, be & 0xF)
        if fmt & ~WRITE in (CFG_TYPE0, CFG_TYPE1):
            return self._fabric.config(bool(fmt & 1), address & 0xFFFFFFFF, be, data if fmt & WRITE else None)
        raise NotModelled(f"TLP with fmt/type {fmt:#04x}")

    def read_dwords(self, address: int, count: int) -> bytes:
        """A run of reads as the streaming loop does them: what fails leaves the dword of the read before it."""
        found = self._fabric.memory_at(address, 4 * count) if self._running() and not self._faults.completions_planned else None
        if found is not None:
            model, offset = found
            data = model.read_block(offset, 4 * count)
            self.sent += count
            self._fabric.note_block("MRd", address, data)
            self._xdata.memory[DATA : DATA + 4] = data[-4:][::-1]
            return data
        parts = []
        for index in range(count):
            self.send(MRD64, 0xF, address + 4 * index, 0)
            parts.append(bytes(self._xdata.memory[DATA : DATA + 4])[::-1])
        return b"".join(parts)

    def write_dwords(self, address: int, data: bytes) -> None:
        """A run of posted writes as the streaming loop does them."""
        found = self._fabric.memory_at(address, len(data)) if self._running() and not self._faults.completions_planned else None
        if found is not None:
            model, offset = found
            model.write_block(offset, data)
            self.sent += len(data) // 4
            self._fabric.note_block("MWr", address, data)
            return
        for index in range(0, len(data), 4):
            self.send(MWR64, 0xF, address + index, int.from_bytes(data[index : index + 4], "little"))


def _byte_count(be: int) -> int:
    """The byte count of a completion: from the first to the last enabled byte. Bits of the high nibble (which a request of one dword must
    not have) count each; this is what a recorded driver that sets them gets back."""
    low = be & 0xF
    span = low.bit_length() - ((low & -low).bit_length() - 1) if low else 0
    return span + (be >> 4).bit_count()
