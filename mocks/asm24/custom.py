"""The open firmware: vendor control requests and two bulk endpoints (Protocol C).

Two generations are told apart by the profile's `build`: "older" (refuses nothing: unknown requests get no answer; waits for the link in
0xF3; powers the slot at boot; a second arming over an unfinished bulk transfer sticks) and "newer" (stalls what it does not know,
returns from 0xF3 at once, re-initialises the bulk engine, has CPU reset and DFU requests).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hw.errors import NotModelled
from mocks.asm24 import descriptors, link, tlp
from mocks.asm24.bulk import TO_SRAM
from mocks.asm24.device import Answer, Control, Firmware, Setup, Stall

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24

log = logging.getLogger(__name__)

XDATA_READ, XDATA_WRITE, TLP, SRAM_ARM, PCIE_POWER, RESET, ENTER_DFU = 0xE4, 0xE5, 0xF0, 0xF2, 0xF3, 0xEB, 0xEC
SINGLE, STREAM_WRITE, STREAM_READ = 0, 1, 2

POLL_TIME = 0.5
"""s that a completion is polled for before the reply says so (500000 looks at 0xB296)"""
RESULT_DONE, RESULT_ERROR, RESULT_NOTHING = 0, 1, 0xFF
L0_SAMPLES, L0_SAMPLE_TIME, L0_ENOUGH = 20, 0.1, 3
EARLY_RETURN = 0.05
"""s that 0xF3 takes on newer builds"""
STATUS_TIME = 0.001
"""s that a request for a restart leaves its own status stage (I)"""
HS_XDATA, SS_XDATA = 64, 512
HS_STAGING = 64
"""bytes of a bulk OUT packet that reach 0x7000 at USB 2 when it is received by hand"""
BULK_OUT, BULK_IN = 0x02, 0x81
EVENT_OUT_COMPLETE, EVENT_IN_COMPLETE = 1 << 1, 1 << 3
EP_CLEAR_IN, EP_ARM_IN, EP_CLEAR_OUT, EP_ARM_OUT = 0x01, 0x02, 0x08, 0x10
LANDING, SENDING = 0x7000, 0x8000
DFU_COOKIE = bytes.fromhex("dec00bdf")
DFU_COOKIE_AT = 0x5FF8


class CustomFirmware(Firmware):
    """Protocol C."""

    name = "custom"

    def __init__(self, chip: Asm24, product: str) -> None:
        super().__init__(chip)
        self._product = product
        profile = chip.profile
        self.newer = profile["build"] == "newer"
        self.stalls_unknown = self.newer
        self._write_rate: float = profile["stream_write_rate"]
        self._read_rate: float = profile["stream_read_rate"]
        self._lockup: int = profile["stream_lockup"]
        self._dwords = 0
        self._mode = SINGLE
        self._address = 0
        self._reply_due = False
        """a single request was sent whose reply nobody fetched yet"""
        self._out_armed = False
        """one packet is to land in the buffer at 0x7000"""
        self._fifo: list[bytes] = []
        """packets ready for the host on the IN endpoint"""
        chip.xdata.hook("EP_CFG2", lambda _: 0, self._endpoint_control)
        self._events = 0
        """0x9093: bulk events since they were cleared"""
        chip.xdata.hook("EP_CFG1", lambda _: self._events, self._clear_events)
        for name in ("BULK_OUT_BC_H", "BULK_OUT_BC_L"):
            chip.xdata.hook(name)

    def descriptors(self, speed: int) -> descriptors.Descriptors:
        usb = self.chip.profile["usb"]
        return descriptors.custom(usb["vendor"], usb["product_id"], self._product, self.chip.flash.serial(), speed)

    def boot(self) -> None:
        if not self.newer:
            self._power_registers(True)

    # --- endpoint state ---

    def _cancel_stream(self) -> None:
        self._dwords = 0

    def configured(self) -> None:
        self.selected(0)

    def selected(self, alternate: int) -> None:
        self.chip.xdata.memory[0x900B] = 0  # switches the bulk engine off, whatever it was armed for
        self.chip.bulk.reset()
        self.cleared(BULK_IN)
        self.cleared(BULK_OUT)

    def bus_reset(self) -> None:
        self.selected(0)

    def cleared(self, endpoint: int) -> None:
        self._cancel_stream()
        if endpoint == BULK_OUT:
            self._out_armed = False
        if endpoint == BULK_IN:
            self._fifo.clear()
        if self.chip.bulk.stuck:
            self.chip.bulk.reset()

    def _endpoint_control(self, _: int, value: int) -> None:
        if value & EP_CLEAR_IN:
            self._fifo.clear()
        if value & EP_CLEAR_OUT:
            self._out_armed = False
        if value & EP_ARM_OUT:
            self._out_armed = True
        if value & EP_ARM_IN:
            memory = self.chip.xdata.memory
            size = memory[0x9007] << 8 | memory[0x9008]
            self._fifo.append(bytes(memory[SENDING : SENDING + size]))
        self.chip.usb.wake()

    def _clear_events(self, _: int, value: int) -> None:
        self._events &= ~value

    # --- bulk data ---

    def take(self, endpoint: int, data: memoryview, stream: int) -> tuple[int, float]:
        if endpoint != BULK_OUT or self.chip.usb.alternate:
            return 0, 0.0
        if self.chip.bulk.stuck or self.chip.bulk.direction == TO_SRAM:
            return self.chip.bulk.take(data)
        packet = bytes(data[: self.chip.usb.packet])
        if self._mode == STREAM_WRITE and self._dwords:
            return len(packet), self._stream_out(packet)
        if self._out_armed:
            self._out_armed = False
            self._land(packet)
            return len(packet), 0.0
        return 0, 0.0

    def _land(self, packet: bytes) -> None:
        xdata = self.chip.xdata
        kept = packet[:HS_STAGING] if self.chip.usb.speed == descriptors.HIGH else packet
        xdata.load(LANDING, kept)
        xdata.memory[0x910D : 0x910F] = len(packet).to_bytes(2, "big")
        self._events |= EVENT_OUT_COMPLETE

    def _stream_out(self, packet: bytes) -> float:
        self._land(packet)
        count = len(packet) // 4
        if count > self._dwords:
            self.chip.note_misuse(f"stream write: a packet of {count} dwords where {self._dwords} remain is dropped")
            self._cancel_stream()
            return 0.0
        if len(packet) % 4:
            self.chip.note_misuse(f"stream write: the last {len(packet) % 4} bytes of a packet of {len(packet)} are lost")
        self.chip.tlp.write_dwords(self._address, packet[: 4 * count])
        self._address = self._address + 4 * count & 0xFFFFFFFFFFFFFFFF
        self._dwords -= count
        return 4 * count / self._write_rate

    def give(self, endpoint: int, room: int, stream: int) -> tuple[bytes | None, float]:
        if endpoint != BULK_IN or self.chip.usb.alternate:
            return None, 0.0
        if self._fifo:
            packet = self._fifo.pop(0)
            self._events |= EVENT_IN_COMPLETE
            busy = self._prepare() if self._mode == STREAM_READ and self._dwords else 0.0
            return packet, busy
        return self.chip.bulk.give(room)

    def _prepare(self) -> float:
        """Fill the next packet of a stream read. Returns how long the 8051 is busy with it."""
        engine = self.chip.tlp
        if not self.chip.link.engine_runs:
            # neither status bit ever rises: the interrupt handler never returns
            self.chip.wedge("a stream read while the TLP engine cannot send")
            return 0.0
        count = min(self._dwords, self.chip.usb.packet // 4)
        data = engine.read_dwords(self._address, count)
        self.chip.xdata.load(SENDING, data)
        self._fifo.append(data)
        self._address = self._address + 4 * count & 0xFFFFFFFFFFFFFFFF
        self._dwords -= count
        busy = 4 * count / self._read_rate
        return busy + (count * engine.pending if engine.pending else 0.0)

    # --- vendor requests ---

    def vendor(self, setup: Setup, data: bytes) -> Answer:
        known: dict[tuple[int, bool], Callable[[Setup, bytes], Answer]] = {
            (XDATA_READ, True): self._xdata_read,
            (XDATA_WRITE, False): self._xdata_write,
            (TLP, False): self._tlp_request,
            (TLP, True): self._tlp_reply,
            (SRAM_ARM, False): self._sram_arm,
            (PCIE_POWER, False): self._pcie_power,
        }
        if self.newer:
            known[RESET, False] = self._reset
            known[ENTER_DFU, False] = self._enter_dfu
        handler = known.get((setup.request, setup.is_in))
        if handler is None:
            if not setup.is_in:
                self.chip.xdata.load(0x9E00, data[:SS_XDATA])
            return self.unknown(setup)
        return handler(setup, data)

    def _xdata_read(self, setup: Setup, data: bytes) -> bytes:
        most = HS_XDATA if self.chip.usb.speed == descriptors.HIGH else SS_XDATA
        return self.chip.xdata.read_block(setup.value, min(setup.length, most), setup.index >> 8)

    def _xdata_write(self, setup: Setup, data: bytes) -> bytes:
        self.chip.xdata.write(setup.value, setup.index & 0xFF, setup.index >> 8)
        return b""

    def _tlp_request(self, setup: Setup, data: bytes) -> bytes:
        if self._dwords:
            self.chip.note_misuse(f"a request while {self._dwords} dwords of a stream had not gone by: the stream is given up")
        self._cancel_stream()
        if len(data) != 12:
            raise Stall
        fmt, be = setup.value & 0xFF, setup.value >> 8
        self._reply_due = False
        self._mode = setup.index & 3
        self._address = int.from_bytes(data[:8], "little")
        last = int.from_bytes(data[8:], "little")
        if self._mode == SINGLE:
            self._single(fmt, be, data)
            self._reply_due = not tlp.is_posted(fmt)
        elif self._mode == STREAM_WRITE and fmt == tlp.MWR64:
            self._dwords = last
            if 4 * last >= self._lockup:
                self.chip.wedge(f"a stream write of {4 * last} bytes in one piece")
        elif self._mode == STREAM_READ and fmt == tlp.MRD64:
            self._dwords = last
            if last:
                self.chip.busy(self._prepare())
        else:
            raise NotModelled(f"request 0xf0 with mode {self._mode} and fmt/type {fmt:#04x}")
        self.chip.usb.wake()
        return b""

    def _single(self, fmt: int, be: int, data: bytes) -> None:
        write = self.chip.xdata.write
        write(tlp.FMT_TYPE, fmt)
        write(tlp.LENGTH_DW, 1)
        write(tlp.TAG, 0x20)
        write(tlp.BE, be)
        for offset in range(4):
            write(tlp.ADDRESS_LOW + offset, data[3 - offset])
            write(tlp.ADDRESS_HIGH + offset, data[7 - offset])
            if fmt & tlp.WRITE:
                write(tlp.DATA + offset, data[11 - offset])
        for value in (tlp.ERROR, tlp.COMPLETE, tlp.KICK):
            write(tlp.STATUS, value)
        write(tlp.TRIGGER, tlp.TRIGGER_VALUE)

    def _tlp_reply(self, setup: Setup, data: bytes) -> Control:
        if not self._reply_due:
            self.chip.note_misuse("a reply was fetched that no request is waiting for: it shows the registers' last values")
        self._reply_due = False
        wait = min(self.chip.tlp.pending, POLL_TIME)
        if wait:
            yield wait
        xdata = self.chip.xdata
        status = xdata.read(tlp.STATUS)
        if status & tlp.ERROR:
            xdata.write(tlp.STATUS, tlp.ERROR)
            return (bytes(7) + bytes([RESULT_ERROR]))[: setup.length]
        if not status & tlp.COMPLETE:
            return (bytes(7) + bytes([RESULT_NOTHING]))[: setup.length]
        carried = xdata.read(tlp.CPL_TYPE)
        value = xdata.read_block(tlp.DATA, 4)[::-1] if carried & 1 else bytes(4)
        return (value + xdata.read_block(tlp.CPL_STATUS, 2) + bytes([carried, RESULT_DONE]))[: setup.length]

    def _sram_arm(self, setup: Setup, data: bytes) -> bytes:
        sectors, slot, count = setup.value & 0x7FFF, setup.index & 0xFF, setup.index >> 8 or 1
        write = self.chip.xdata.write
        write(0xC42A, 0x00)
        write(0xC422, 0x02)
        write(0xC423, 0x00)
        write(0xC414, 0x80 | slot)
        write(0xC415, slot + count)
        write(0xC426, sectors >> 8)
        write(0xC427, sectors & 0xFF)
        write(0xC412, 0x02 if setup.value & 0x8000 else 0x03)
        write(0xC429, slot)
        return b""

    def _pcie_power(self, setup: Setup, data: bytes) -> Control:
        self._power_registers(bool(setup.value & 1))
        if not setup.value & 1:
            return b""
        if self.newer:
            yield EARLY_RETURN
            return b""
        good = 0
        for _ in range(L0_SAMPLES):
            yield L0_SAMPLE_TIME
            good = good + 1 if self.chip.xdata.read(link.LTSSM) == self.chip.profile["link"]["ltssm_l0"] else 0
            if good == L0_ENOUGH:
                break
        return b""

    def _power_registers(self, on: bool) -> None:
        xdata = self.chip.xdata
        if on:
            steps = [(link.WIDTH_CAP, self.chip.profile["link"]["width_cap"]), (0xB403, 0x01), (link.PERST, 0x01), (0xB430, 0x00), (link.POWER, link.SLOT_POWER)]
            steps += [(link.LANES, 0x01), (link.TRAIN, link.TRAIN_AND_RETRY), (0xB298, 0x10), (link.PERST, 0x00)]
            xdata.write(0x6025, 0x80, 1)
        else:
            steps = [(link.PERST, 0x01), (0xB430, 0x00), (link.TRAIN, 0x00), (link.LANES, 0x00), (link.POWER, 0x00)]
        for address, value in steps:
            xdata.write(address, value)

    def _reset(self, setup: Setup, data: bytes) -> bytes:
        self.chip.scheduler.call_later(STATUS_TIME, self.chip.cpu_reset)
        return b""

    def _enter_dfu(self, setup: Setup, data: bytes) -> bytes:
        self.chip.xdata.load(DFU_COOKIE_AT, DFU_COOKIE)
        self.chip.scheduler.call_later(STATUS_TIME, self.chip.cpu_reset)
        return b""
