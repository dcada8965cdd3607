"""The open firmware of the bridge: vendor control requests for registers and single PCIe requests, bulk streams for runs of memory.

    E4 read XDATA    E5 write one XDATA byte    F0 PCIe request, single or streamed    F2 arm the SRAM engine    F3 slot power

Sources: the open firmware and its notes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from bridges.asm24.errors import BridgeWedged, BulkShort, EndpointStall, UsbTimeout, UsbTransferFailed
from bridges.asm24.protocol import SECTOR, SLOT, SRAM_SIZE, TLP_PAUSE, TLP_TRIES, BridgeProtocol, Run, check_run
from bridges.asm24.registers import PAGE_BIT, PAGE_MASK, address
from bridges.asm24.tlp import DWORD, MEMORY_READ, MEMORY_WRITE, Completion, Tlp, memory_read, memory_write, no_completion, value_of
from bridges.asm24.usb import TIMEOUT_MS
from hw.errors import TghwError
from hw.mmio import BytesLike

log = logging.getLogger(__name__)

READ_XDATA, WRITE_XDATA, PCIE, ARM_SRAM, POWER = 0xE4, 0xE5, 0xF0, 0xF2, 0xF3
SINGLE, STREAM_WRITE, STREAM_READ = 0, 1, 2
TO_HOST = 1 << 15
FULL_DWORD = 0x0F << 8

XDATA_LIMIT = 255
XDATA_LIMIT_USB2 = 64
"""bytes of one read; more is cut off without a word"""
STREAM_LIMIT = 1 << 20
"""bytes of one stream; much longer ones were seen to hang the bridge"""
COMPLETION_SIZE = 8
DONE, NO_COMPLETION, GAVE_UP = 0, 1, 0xFF
"""result byte of a completion"""

PCIE_MS = 5000
POWER_MS = 10000
STREAM_READ_MS = 30000
RECEIVE_MS = 10000
SLOWEST_STREAM = 1000
"""bytes a millisecond that a stream moves at least"""

_BROKEN = (UsbTimeout, EndpointStall, BulkShort, UsbTransferFailed)
"""what a transfer may end with while the device is still there"""

T = TypeVar("T")


class CustomProtocol(BridgeProtocol):
    """See the module. Only alternate setting 0 works."""

    name = "open"
    window_limit = SRAM_SIZE
    receive_limit = SRAM_SIZE

    def start(self) -> None:
        self.link.claim(0)

    def stop(self) -> None:
        """A new stream, a new arming or the next claim cancels whatever is armed."""

    def resynchronise(self) -> None:
        self.link.resynchronise()

    # --- the bridge's registers ---

    def read_xdata(self, start: int, size: int) -> bytes:
        limit = XDATA_LIMIT_USB2 if self.link.is_usb2 else XDATA_LIMIT
        index = (start & PAGE_BIT) >> 8
        pieces = []
        for offset in range(0, size, limit):
            value, length = start + offset & PAGE_MASK, min(limit, size - offset)
            pieces.append(self._again(partial(self.link.control_in, READ_XDATA, value, index, length)))
        return b"".join(pieces)

    def write_xdata(self, start: int, data: BytesLike) -> None:
        index = (start & PAGE_BIT) >> 8
        for offset, byte in enumerate(data):
            self._again(partial(self.link.control_out, WRITE_XDATA, start + offset & PAGE_MASK, index | byte), tries=1)

    # --- PCIe ---

    def request(self, tlp: Tlp, *, repeat: bool = True) -> int:
        if tlp.is_posted:
            self._again(partial(self._ask, tlp), tries=1)
            return 0
        tries = TLP_TRIES if repeat else 1
        result = DONE
        for attempt in range(tries):
            if attempt:
                self.clock.sleep(TLP_PAUSE)
            reply = self._again(partial(self._exchange, tlp), tries=2 if repeat and not tlp.is_write else 1)
            data, status, count, with_data, result = struct.unpack("<I4B", reply)
            if result == DONE:
                return value_of(tlp, Completion(data, status, count, with_data))
        raise no_completion(tlp, tries, "the bridge gave up waiting" if result == GAVE_UP else "error bit of the bridge's PCIe engine")

    def _exchange(self, tlp: Tlp) -> bytes:
        self._ask(tlp)
        return self.link.control_in(PCIE, 0, 0, COMPLETION_SIZE, timeout_ms=PCIE_MS)

    def _ask(self, tlp: Tlp) -> None:
        self._pcie(tlp.kind | tlp.enables << 8, SINGLE, tlp.address, tlp.value)

    def _pcie(self, value: int, mode: int, target: int, word: int) -> None:
        self.link.control_out(PCIE, value, mode, struct.pack("<QI", target, word), timeout_ms=PCIE_MS)

    def write_runs(self, runs: Sequence[Run]) -> None:
        for start, data in runs:
            check_run(start, len(data))
            if len(data) == DWORD:
                self.request(memory_write(start, int.from_bytes(data, "little")))
                continue
            for offset in range(0, len(data), STREAM_LIMIT):
                piece = data[offset : offset + STREAM_LIMIT]
                self._again(partial(self._stream_out, start + offset, piece), tries=1)

    def _stream_out(self, start: int, data: bytes) -> None:
        self._pcie(MEMORY_WRITE | FULL_DWORD, STREAM_WRITE, start, len(data) // DWORD)
        self.link.bulk_out(data, timeout_ms=_time_for(len(data)))

    def read_run(self, start: int, size: int) -> bytes:
        check_run(start, size)
        if size == DWORD:
            return self.request(memory_read(start)).to_bytes(DWORD, "little")
        pieces = []
        for offset in range(0, size, STREAM_LIMIT):
            length = min(STREAM_LIMIT, size - offset)
            pieces.append(self._again(partial(self._stream_in, start + offset, length)))
        return b"".join(pieces)

    def _stream_in(self, start: int, size: int) -> bytes:
        self._pcie(MEMORY_READ | FULL_DWORD, STREAM_READ, start, size // DWORD)
        return self.link.bulk_in(size, timeout_ms=STREAM_READ_MS)

    def power(self, on: bool) -> None:
        self.link.control_out(POWER, int(on), 0, timeout_ms=POWER_MS)

    # --- SRAM ---

    def send(self, data: BytesLike, offset: int = 0) -> None:
        self._check_window(offset, len(data))
        padded = bytes(data) + bytes(-len(data) % SECTOR)

        self._again(partial(self._fill, offset, padded))

    def _fill(self, offset: int, data: bytes) -> None:
        self._arm(0, offset, len(data))
        self.link.bulk_out(data, timeout_ms=_time_for(len(data)))

    def expect(self, size: int) -> None:
        self._check_window(0, size)
        self._again(partial(self._arm, TO_HOST, 0, _whole_sectors(size)), tries=1)

    def receive(self, size: int) -> bytes:
        return self._again(partial(self.link.bulk_in, _whole_sectors(size), timeout_ms=RECEIVE_MS), tries=1)[:size]

    def _arm(self, direction: int, offset: int, size: int) -> None:
        self.link.control_out(ARM_SRAM, direction | size // SECTOR, offset // SLOT | -(-size // SLOT) << 8)

    def _check_window(self, offset: int, size: int) -> None:
        if offset % SLOT or not 0 < size <= SRAM_SIZE - offset:
            raise ValueError(f"a transfer of {size} bytes at {offset:#x} of {SRAM_SIZE:#x} bytes of SRAM")

    # --- the bridge itself ---

    def firmware_version(self) -> str:
        return self.link.product_string

    def restart(self) -> None:
        """By the processor's reset register: code and XDATA stay, the device comes back within half a second."""
        try:
            self.write_register("CPU_RESET", 1)
        except TghwError as error:
            log.debug("the bridge restarted before it answered: %s", error)
        self.link.find_again()

    # --- broken transfers ---

    def _again(self, action: Callable[[], T], tries: int = 2) -> T:
        """Run an action that transfers. One that broke off leaves both sides in step again, and is repeated while tries are left."""
        while True:
            tries -= 1
            try:
                return action()
            except _BROKEN as error:
                self._recover(error)
                if not tries:
                    raise
                log.info("repeating after: %s", error)

    def _recover(self, error: TghwError) -> None:
        """Get in step again. Raises BridgeWedged when the bridge's processor does not answer at all, BridgeLost when it is gone."""
        try:
            self.link.resynchronise()
            if isinstance(error, UsbTimeout):
                self.link.control_in(READ_XDATA, address("LTSSM"), 0, 1)
        except UsbTimeout as silence:
            raise BridgeWedged(f"{self.link.address} answers nothing any more", read=error.what) from silence


def _whole_sectors(size: int) -> int:
    return -(-size // SECTOR) * SECTOR


def _time_for(size: int) -> int:
    """Milliseconds for a bulk transfer."""
    return max(TIMEOUT_MS, size // SLOWEST_STREAM)
