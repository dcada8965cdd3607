"""The maker's firmware: PCIe requests by writing the engine's registers byte by byte with vendor SCSI commands, SRAM by WRITE(16).

It was made for a drive behind the bridge. A few of its variables have to be set for WRITE(16) to be taken without one (SESSION).
Sources: public drivers of the stock firmware, reverse-engineering notes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bridges.asm24 import scsi
from bridges.asm24.errors import BridgeWedged, BulkShort, CswError, EndpointStall, UsbTimeout, UsbTransferFailed
from bridges.asm24.protocol import SECTOR, SRAM_SIZE, TLP_PAUSE, TLP_TRIES, BridgeProtocol, Run, check_run
from bridges.asm24.registers import address
from bridges.asm24.scsi import Command, CommandPipe
from bridges.asm24.tlp import DWORD, SUCCESS, Completion, Tlp, memory_read, memory_write, no_completion, value_of
from bridges.asm24.usb import UsbLink
from hw.clock import Clock
from hw.errors import NotSupported, WaitTimeout
from hw.mmio import BytesLike
from hw.poll import poll

log = logging.getLogger(__name__)

ERROR, COMPLETE, KICK = 1, 2, 4
"""bits of TLP_STATUS"""
TRIGGER = 0x0F
COMPLETION_WITHIN = 5.0
"""seconds for the engine to say anything"""

SESSION: tuple[tuple[int, bytes], ...] = (
    (0x054B, b"\x20"),
    (0x054E, b"\x04"),
    (0x05A8, b"\x02"),
    (0x05F8, b"\x04"),
    (0x07EC, b"\x01\x00\x00\x00"),
    (0xC422, b"\x02"),
    (0x0000, b"\x33"),
)
"""variables of the firmware, written once a session; what each means is not known"""

PIECE = 64 << 10
"""bytes of one WRITE(16)"""
LARGE = 16 << 10
"""transfers of more than this are padded to whole pieces, and the engine's place is set back after them"""
ENGINE_PLACE = 0xCE40
DWORDS_A_BATCH = 16
VISIBLE_SRAM = 4 << 10
"""bytes of the SRAM that show in XDATA"""
DATA_PAGE = 0xF000

_BROKEN = (UsbTimeout, EndpointStall, BulkShort, UsbTransferFailed)

T = TypeVar("T")


class StockProtocol(BridgeProtocol):
    """See the module. `pipe` carries the commands: BulkOnly, or Uas with streams."""

    name = "stock"
    window_limit = SRAM_SIZE
    receive_limit = VISIBLE_SRAM
    receive_waits = False
    wide_high_first = True

    def __init__(self, link: UsbLink, clock: Clock, pipe: CommandPipe) -> None:
        super().__init__(link, clock)
        self.pipe = pipe
        self._written: dict[int, int] = {}
        """request registers as last written, so that bytes that stay the same are left out"""

    def start(self) -> None:
        self.pipe.start()
        self._begin_session()

    def _begin_session(self) -> None:
        self._written.clear()
        self.pipe.run([scsi.write_xdata(start + offset, byte) for start, data in SESSION for offset, byte in enumerate(data)])

    def stop(self) -> None:
        """Nothing stays armed."""

    def resynchronise(self) -> None:
        """A reset of the USB port: the only way out of a command that was cut off. PCIe does not notice it."""
        self.link.reset_port()
        self.pipe.start()
        self._begin_session()

    # --- the bridge's registers ---

    def read_xdata(self, start: int, size: int) -> bytes:
        pieces = [scsi.read_xdata(start + offset, min(scsi.XDATA_LIMIT, size - offset)) for offset in range(0, size, scsi.XDATA_LIMIT)]
        return b"".join(self._again(lambda: self.pipe.run(pieces)))

    def write_xdata(self, start: int, data: BytesLike) -> None:
        commands = [scsi.write_xdata(start + offset, byte) for offset, byte in enumerate(data)]
        self._again(lambda: self.pipe.run(commands), tries=1)

    # --- PCIe ---

    def request(self, tlp: Tlp, *, repeat: bool = True) -> int:
        if tlp.is_posted:
            self._run(list(self._send(tlp)))
            return 0
        tries = TLP_TRIES if repeat else 1
        self._run(list(self._send(tlp)))
        for attempt in range(tries):
            if attempt:
                self.clock.sleep(TLP_PAUSE)
                self._run([_set("TLP_STATUS", ERROR)])
                self._run(list(_go()))
            if not self._finish(tlp, repeat and not attempt) & ERROR:
                return self._take(tlp)
        self._run([_set("TLP_STATUS", ERROR)])
        raise no_completion(tlp, tries, "error bit of the bridge's PCIe engine")

    def _send(self, tlp: Tlp) -> Iterator[Command]:
        """The commands that send a request: only those bytes of the header that changed, then the trigger."""
        if tlp.is_write:
            yield from self._change("TLP_DATA31_24", tlp.value.to_bytes(4, "big"))
        yield from self._change("TLP_ADDR31_24", (tlp.address & 0xFFFFFFFF).to_bytes(4, "big"))
        yield from self._change("TLP_ADDR63_56", (tlp.address >> 32).to_bytes(4, "big"))
        yield from self._change("TLP_BE", bytes([tlp.enables]))
        yield from self._change("TLP_FMT_TYPE", bytes([tlp.kind]))
        yield from _go()

    def _change(self, register: str, data: bytes) -> Iterator[Command]:
        for place, byte in enumerate(data, address(register)):
            if self._written.get(place) != byte:
                self._written[place] = byte
                yield scsi.write_xdata(place, byte)

    def _finish(self, tlp: Tlp, may_trigger: bool) -> int:
        """The engine's status once it is done or failed. Raises TlpTimeout when it does not start.

        An engine that only holds a start was left between trigger and start by a session that died: one more trigger sets it right.
        """
        try:
            return self._await_engine(tlp)
        except WaitTimeout as error:
            if error.last == KICK and may_trigger:
                log.info("the engine holds a start that an earlier session left behind: %s", error)
                self._run([_set("TLP_TRIGGER", TRIGGER)])
                return self._finish(tlp, False)
            raise no_completion(tlp, 1, f"{error.read}: the PCIe engine of the bridge does not start") from error

    def _await_engine(self, tlp: Tlp) -> int:
        """Raises WaitTimeout."""
        return poll(
            lambda: self.read_register("TLP_STATUS"),
            lambda value: bool(value & (ERROR | COMPLETE)),
            what=tlp.describe(),
            within=COMPLETION_WITHIN,
            clock=self.clock,
        )

    def _take(self, tlp: Tlp) -> int:
        """The completion of a request that was completed, its data only when there is some."""
        with_data = self.read_register("CPL_TYPE")
        status, count = self.read_xdata(address("CPL_STATUS"), 2)
        completion = Completion(0, status, count, with_data)
        if not tlp.is_write and completion.status == SUCCESS:
            data = int.from_bytes(self.read_xdata(address("TLP_DATA31_24"), 4), "big")
            self._forget_data()
            completion = Completion(data, status, count, with_data)
        return value_of(tlp, completion)

    def _forget_data(self) -> None:
        """The completion's data took the place of what was written."""
        for place in range(address("TLP_DATA31_24"), address("TLP_DATA31_24") + 4):
            self._written.pop(place, None)

    def write_runs(self, runs: Sequence[Run]) -> None:
        batch: list[Command] = []
        held = 0
        for start, data in runs:
            check_run(start, len(data))
            for offset in range(0, len(data), DWORD):
                batch += self._send(memory_write(start + offset, int.from_bytes(data[offset : offset + DWORD], "little")))
                held += 1
                if held == DWORDS_A_BATCH:
                    self._run(batch)
                    batch, held = [], 0
        if batch:
            self._run(batch)

    def read_run(self, start: int, size: int) -> bytes:
        check_run(start, size)
        return b"".join(self.request(memory_read(start + offset)).to_bytes(DWORD, "little") for offset in range(0, size, DWORD))

    def power(self, on: bool) -> None:
        raise NotSupported(
            "switching the slot's power with stock firmware",
            means="the stock firmware trains the link by itself when the bridge is powered, and offers no command for it",
            remedy="power-cycle the bridge; the open firmware can do it without",
        )

    # --- SRAM ---

    def send(self, data: BytesLike, offset: int = 0) -> None:
        if offset or not 0 < len(data) <= SRAM_SIZE:
            raise ValueError(f"the stock firmware puts data at the start of the SRAM only, not {len(data)} bytes at {offset:#x}")
        unit = PIECE if len(data) > LARGE else SECTOR
        padded = bytes(data) + bytes(-len(data) % unit)
        self._again(lambda: self._fill(padded))

    def _fill(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            flags = [scsi.write_xdata(address("FW_COMPLETION_FLAGS") + each, 0xFF) for each in range(3)]
            self.pipe.run([scsi.write_sectors(data[start : start + PIECE]), *flags])
            self.pipe.run([scsi.write_xdata(address("SCSI_DMA_STATUS") + each, 0) for each in range(2)])
        if len(data) > LARGE:
            self.pipe.run([scsi.write_xdata(ENGINE_PLACE + each, 0) for each in range(4)])

    def expect(self, size: int) -> None:
        if not 0 < size <= VISIBLE_SRAM:
            raise ValueError(f"{size} bytes: the stock firmware shows {VISIBLE_SRAM} bytes of the SRAM")

    def receive(self, size: int) -> bytes:
        return self.read_xdata(DATA_PAGE, size)

    # --- the bridge itself ---

    def firmware_version(self) -> str:
        digits = self.read_xdata(address("FW_VERSION"), 6).hex()
        return "_".join([digits[:6], digits[6:8], digits[8:10], digits[10:]])

    def restart(self) -> None:
        try:
            self.pipe.run([scsi.RESTART])
        except (*_BROKEN, CswError) as error:
            log.debug("the bridge restarted before it answered: %s", error)
        self.link.find_again()

    # --- broken transfers ---

    def _run(self, commands: list[Command]) -> None:
        """Commands that write request registers: when one breaks off nobody knows which were carried out, so none is repeated."""
        self._again(lambda: self.pipe.run(commands), tries=1)

    def _again(self, action: Callable[[], T], tries: int = 2) -> T:
        while True:
            tries -= 1
            try:
                return action()
            except (*_BROKEN, CswError) as error:
                try:
                    self.resynchronise()
                except UsbTimeout as silence:
                    raise BridgeWedged(f"{self.link.address} answers nothing any more", read=error.what) from silence
                if not tries:
                    raise
                log.info("repeating after: %s", error)


def _set(register: str, value: int) -> Command:
    return scsi.write_xdata(address(register), value)


def _go() -> Iterator[Command]:
    yield _set("TLP_TRIGGER", TRIGGER)
    yield _set("TLP_STATUS", KICK)
