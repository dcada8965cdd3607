"""The packet processor of a compute queue: fetches PM4 from the ring, carries it out, reports its read pointer.

Packets are taken in order. A wait whose condition is false leaves the read pointer at its packet and looks again later. Dispatches
start waves and the processor goes on; CS_PARTIAL_FLUSH and end-of-pipe events wait for them. Whatever cannot be carried out stops
the queue there, with the interrupt that the card sends and the reason in `Hqd.stopped_because` and the log.
"""

from __future__ import annotations

import logging
import operator
import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import ih
from drivers.amd.packets import pm4 as packet_table
from drivers.amd.packets.values import SH_REG_BASE, UCONFIG_REG_BASE, UCONFIG_REG_END, DataSel, Event, IntSel
from hw.errors import NotModelled
from mocks.amd.hqd import ERROR_EOP, ERROR_INDIRECT, ERROR_RING, ERROR_RPTR_REPORT, Hqd
from mocks.amd.hub import CLIENT_CPC, CLIENT_CPF, VmFault
from mocks.amd.tlb import READ, WRITE

if TYPE_CHECKING:
    from mocks.amd.mec import Mec

log = logging.getLogger(__name__)

Steps = Generator[Any, None, None]

PACKET_TIME = 40e-9
"""what one packet takes the processor (s)"""
EVENT_TIME = 500e-9
"""from the end of all waves to the store of an end-of-pipe event (s)"""
FIRST_PAUSE = 0.2e-6
LONGEST_PAUSE = 100e-6
"""between two looks at a condition that is not met (s); the packet's own poll interval is shorter"""
FETCH_DWORDS = 1 << 16
"""most that is fetched at once"""

COMPARE: tuple[Callable[[int, int], bool], ...] = (lambda _seen, _wanted: True, operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt)
"""functions 0..6 of WAIT_REG_MEM, seen against reference"""

NOP = 0x10
INDIRECT_BUFFER = 0x3F
SINGLE_NOP = 0x3FFF
IB_VALID = 1 << 23
IB_CHAIN = 1 << 20
IB_NESTING = 1
"""indirect buffers do not call indirect buffers, they only chain"""

_RELEASE_TO_GCR = ((12, 4), (13, 5), (14, 8), (15, 9), (19, 13), (20, 14), (21, 15))
"""RELEASE_MEM dword 1 bit -> GCR_CNTL bit: GLM write back and invalidate, GLV, GL1, GL2 discard, invalidate, write back"""
_RELEASE_ACTIONS = sum(1 << source for source, _ in _RELEASE_TO_GCR)

INTERRUPT_RESERVED_BITS = 180
INTERRUPT_PRIVILEGED_REGISTER = 184


NOT_IN_HEADER = 0xFD
"""header bits that are 0 on a compute ring: 7:2 are reserved, 0 is predication, which graphics rings have"""
ACQUIRE_MEM = 0x58


@cache
def _reserved_bits() -> dict[int, tuple[int, ...]]:
    """opcode -> for each dword after the header, the bits that no field has. Of a range to acquire, drivers write all bits of the upper halves."""
    found = {}
    for packet in packet_table():
        used = [0] * packet.length
        for dword, low, high in packet.fields.values():
            used[dword] |= (1 << high + 1) - (1 << low)
        if packet.opcode == ACQUIRE_MEM:
            used[3] = used[5] = 0xFFFFFFFF
        found[packet.opcode] = tuple(0xFFFFFFFF & ~bits for bits in used[1:])
    return found


class QueueStop(Exception):
    """The queue cannot go on from here."""

    def __init__(self, reason: str, interrupt: int | None = None) -> None:
        super().__init__(reason)
        self.interrupt = interrupt


class Pm4:
    """Processor of one connected queue."""

    def __init__(self, mec: Mec, hqd: Hqd) -> None:
        self.mec = mec
        self.gpu = mec.gpu
        self.hqd = hqd
        self.hub = hqd.hub
        self.strict = mec.gpu.strict
        self._spent = 0.0
        self._skip = 0
        """dwords that a false condition makes the processor pass over"""

    # --- the loop ---

    def run(self) -> Steps:
        """The engine: ends when the queue stops by itself."""
        hqd = self.hqd
        try:
            while True:
                while not self.mec.running(hqd.key):
                    yield self.mec.changed
                if hqd.available() == 0:
                    if hqd.waves:
                        yield from self._drain()
                        continue
                    self._report()
                    yield hqd.bell
                    continue
                if self.mec.hangs():
                    yield hqd.bell
                    continue
                yield from self._ring()
        except VmFault as fault:
            self._stop(str(fault), None)
        except QueueStop as stop:
            self._stop(str(stop), stop.interrupt)

    def _stop(self, reason: str, interrupt: int | None) -> None:
        hqd = self.hqd
        hqd.stopped_because = f"{reason} (ring dword {hqd.rptr % hqd.ring_dwords:#x})"
        log.warning("%r stops: %s", hqd, hqd.stopped_because)
        if interrupt is not None:
            me, pipe, queue = hqd.key
            self.gpu.ih.raise_interrupt(ih.CLIENT_GRBM_CP, interrupt, ring_id=queue << 4 | me << 2 | pipe, vmid=hqd.vmid)

    def _ring(self) -> Steps:
        """Carry out what lies in the ring now."""
        hqd = self.hqd
        wanted = min(hqd.available(), FETCH_DWORDS)
        words = self._fetch(wanted)
        position = 0
        while position < len(words):
            size = self._size(words[position])
            if position + size > len(words):
                if size <= hqd.available():
                    return  # the rest comes with the next fetch
                self._report()
                yield hqd.bell  # the packet is longer than what the write pointer covers: wait for the rest of it
                return
            if self._skip:
                self._skip = max(0, self._skip - size)
            else:
                more = self._packet(words, position, size, 0)
                if more is not None:
                    yield from more
            position += size
            hqd.rptr += size
            if hqd.rptr - hqd.reported >= hqd.report_every:
                self._report()
            if self.strict or self._spent >= 5e-6:
                yield self._take_time()
            if not self.mec.running(hqd.key):
                return
        if self._spent:
            yield self._take_time()

    def _fetch(self, count: int) -> list[int]:
        """Dwords from the read pointer on, around the end of the ring."""
        hqd = self.hqd
        start = hqd.rptr % hqd.ring_dwords
        first = min(count, hqd.ring_dwords - start)
        hqd.set_register("CP_HQD_ERROR", ERROR_RING)
        data = self.hub.read(hqd.vmid, hqd.ring + 4 * start, 4 * first, CLIENT_CPF, fetch=True)
        if first < count:
            data += self.hub.read(hqd.vmid, hqd.ring, 4 * (count - first), CLIENT_CPF, fetch=True)
        hqd.set_register("CP_HQD_ERROR", 0)
        return list(struct.unpack(f"<{count}I", data))

    def _size(self, header: int) -> int:
        """Dwords of the packet that begins with this header."""
        kind = header >> 30
        if kind == 3:
            count = header >> 16 & 0x3FFF
            return 1 if count == SINGLE_NOP and header >> 8 & 0xFF == NOP else count + 2
        if kind == 2:
            return 1
        raise QueueStop(f"{header:#010x} is no packet header", ih.CP_BAD_OPCODE)

    def _packet(self, words: list[int], position: int, size: int, depth: int) -> Steps | None:
        """Carry out one packet; what takes time comes back to be stepped."""
        header = words[position]
        self._spent += PACKET_TIME
        if header >> 30 == 2:
            return None
        opcode = header >> 8 & 0xFF
        known = _PACKETS.get(opcode)
        if known is None:
            raise QueueStop(f"packet {header:#010x}: opcode {opcode:#04x} means nothing to a compute queue", ih.CP_BAD_OPCODE)
        handler, least, most = known
        payload = size - 1
        if not least <= payload <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise QueueStop(f"packet {header:#010x}: {payload} dwords follow, {expected} belong there", INTERRUPT_RESERVED_BITS)
        body = words[position + 1 : position + size]
        if header & NOT_IN_HEADER or any(map(operator.and_, body, _reserved_bits().get(opcode, ()))):
            raise QueueStop(f"packet {' '.join(f'{word:08x}' for word in words[position : position + size][:9])} has bits set that belong to no field", INTERRUPT_RESERVED_BITS)
        if opcode == INDIRECT_BUFFER:
            return self._indirect_buffer(body, depth)
        return handler(self, body)

    def _take_time(self) -> float:
        """Time used since the last step. A strict machine stretches it at random, so that engines overtake each other."""
        spent, self._spent = self._spent, 0.0
        return spent * self.mec.scheduler.between(0.5, 2.0) if self.strict else spent

    def _report(self) -> None:
        """Store the read pointer where software wants it: 32 bits, modulo the ring."""
        hqd = self.hqd
        if hqd.rptr == hqd.reported or not hqd.reports:
            return
        hqd.set_register("CP_HQD_ERROR", ERROR_RPTR_REPORT)
        self.hub.write(hqd.vmid, hqd.rptr_address, (hqd.rptr % hqd.ring_dwords).to_bytes(4, "little"), CLIENT_CPC, fetch=True)
        hqd.set_register("CP_HQD_ERROR", 0)
        hqd.reported = hqd.rptr

    # --- waves ---

    def _drain(self) -> Steps:
        """Until every wave of this queue has ended."""
        if self._spent:
            yield self._take_time()
        while self.hqd.waves:
            yield self.mec.step_waves(self.hqd)

    def _until(self, holds: Callable[[], bool]) -> Steps:
        """Until a condition holds; waves go on meanwhile, and the read pointer is reported so that a stall can be seen."""
        pause = FIRST_PAUSE
        while not holds():
            self._report()
            if self._spent:
                yield self._take_time()
            if self.hqd.waves:
                yield self.mec.step_waves(self.hqd)
            else:
                yield pause
                pause = min(pause * 1.5, LONGEST_PAUSE)

    # --- packets: each gets the dwords after its header ---

    def _nop(self, payload: list[int]) -> None:
        return

    def _set_sh_reg(self, payload: list[int]) -> None:
        first = SH_REG_BASE + (payload[0] & 0xFFFF)
        names = self.mec.shader_registers
        shader = self.hqd.shader
        for index, value in enumerate(payload[1:], first):
            if index not in names:
                raise NotModelled(f"SET_SH_REG of {self.gpu.name_of(index)} (dword {index:#x})")
            shader[index] = value

    def _set_uconfig_reg(self, payload: list[int]) -> None:
        first = UCONFIG_REG_BASE + (payload[0] & 0xFFFF)
        if first + len(payload) - 1 > UCONFIG_REG_END:
            raise QueueStop(f"SET_UCONFIG_REG beyond dword {UCONFIG_REG_END:#x}", INTERRUPT_PRIVILEGED_REGISTER)
        for index, value in enumerate(payload[1:], first):
            self.gpu.write_register(index, value)

    def _read_register(self, index: int) -> int:
        """A register as this queue sees it: shader registers are its own."""
        if index in self.mec.shader_registers:
            return self.hqd.shader.get(index, 0)
        return self.gpu.read_register(index)

    def _write_register(self, index: int, value: int) -> None:
        """A register outside the spaces of SET_*_REG: only for privileged queues."""
        if not self.hqd.privileged:
            raise QueueStop(f"write of {self.gpu.name_of(index)} (dword {index:#x}) by a queue that is not privileged", INTERRUPT_PRIVILEGED_REGISTER)
        self.gpu.write_register(index, value)

    def _wait_reg_mem(self, payload: list[int]) -> Steps | None:
        info, low, high, reference, mask, _ = payload
        function = info & 7
        if function > 6 or info >> 6 & 3 == 2:
            raise QueueStop(f"WAIT_REG_MEM with control {info:#x}", INTERRUPT_RESERVED_BITS)
        compare = COMPARE[function]
        memory = info >> 4 & 3
        if memory == 1:
            address = high << 32 | low & ~3
            seen: Callable[[], int] = lambda: self.hub.read32(self.hqd.vmid, address, CLIENT_CPC)  # noqa: E731
        elif memory == 0:
            polled = low & 0x3FFFF
            if info >> 6 & 3 == 1:
                self._write_register(polled, reference)
                polled = high & 0x3FFFF
            seen = lambda: self._read_register(polled)  # noqa: E731
        else:
            raise QueueStop(f"WAIT_REG_MEM in space {memory}", INTERRUPT_RESERVED_BITS)
        if compare(seen() & mask, reference):
            return None
        return self._until(lambda: compare(seen() & mask, reference))

    def _wait_reg_mem64(self, payload: list[int]) -> Steps | None:
        info, low, high, reference_low, reference_high, mask_low, mask_high, _ = payload
        function = info & 7
        if function > 6 or info >> 4 & 3 != 1 or low & 7:
            raise QueueStop(f"WAIT_REG_MEM64 with control {info:#x}, address {low:#x}", INTERRUPT_RESERVED_BITS)
        compare = COMPARE[function]
        address, reference, mask = high << 32 | low, reference_high << 32 | reference_low, mask_high << 32 | mask_low
        return self._until(lambda: compare(int.from_bytes(self.hub.read(self.hqd.vmid, address, 8, CLIENT_CPC), "little") & mask, reference))

    def _acquire_mem(self, payload: list[int]) -> None:
        self.mec.cache_action(payload[6])

    def _release_mem(self, payload: list[int]) -> Steps:
        control, selection, low, high, data_low, data_high, context = payload
        event, index = control & 0x3F, control >> 8 & 0xF
        if event not in (Event.CACHE_FLUSH_AND_INV_TS, Event.BOTTOM_OF_PIPE_TS) or index != 5:
            raise QueueStop(f"RELEASE_MEM with event {event:#x}, index {index}", INTERRUPT_RESERVED_BITS)
        data, interrupt = selection >> 29, selection >> 24 & 7
        if data > DataSel.GPU_CLOCK or interrupt > IntSel.DATA_AFTER_CONFIRM or selection >> 16 & 3 > 1:
            raise NotModelled(f"RELEASE_MEM with data select {data}, interrupt select {interrupt}, destination {selection >> 16 & 3}")
        address = high << 32 | low
        if address & (3 if data == DataSel.LOW32 else 7 if data else 0):
            raise QueueStop(f"RELEASE_MEM to unaligned address {address:#x}", INTERRUPT_RESERVED_BITS)
        yield from self._drain()
        if event == Event.CACHE_FLUSH_AND_INV_TS:
            actions = control & _RELEASE_ACTIONS
            if actions:
                self.mec.cache_action(sum((control >> source & 1) << target for source, target in _RELEASE_TO_GCR))
        self._log_event(payload)
        yield EVENT_TIME
        if data == DataSel.LOW32:
            self._store(address, data_low.to_bytes(4, "little"))
        elif data == DataSel.DATA64:
            self._store(address, (data_high << 32 | data_low).to_bytes(8, "little"))
        elif data == DataSel.GPU_CLOCK:
            self._store(address, self.mec.ticks().to_bytes(8, "little"))
        if interrupt in (IntSel.INTERRUPT_ONLY, IntSel.INTERRUPT_AFTER_CONFIRM):
            me, pipe, queue = self.hqd.key
            self.mec.end_of_pipe(queue << 4 | me << 2 | pipe, self.hqd.vmid, context & 0xFFFFFFF)

    def _log_event(self, payload: list[int]) -> None:
        """End-of-pipe events pass through the queue's EOP buffer. Without one the processor faults at whatever the registers name."""
        hqd = self.hqd
        hqd.set_register("CP_HQD_ERROR", ERROR_EOP)
        place = hqd.eop + 4 * (8 * hqd.eop_count % hqd.eop_dwords)
        self.hub.write(hqd.vmid, place, struct.pack("<7I", *payload), CLIENT_CPC, fetch=True)
        hqd.set_register("CP_HQD_ERROR", 0)
        hqd.eop_count += 1

    def _store(self, address: int, data: bytes) -> None:
        self.hub.write(self.hqd.vmid, address, data, CLIENT_CPC)

    def _write_data(self, payload: list[int]) -> None:
        control, low, high, *data = payload
        destination = control >> 8 & 0xF
        same = control >> 16 & 1
        if destination in (2, 5):
            address = high << 32 | low & ~3
            if same:
                self._store(address, data[-1].to_bytes(4, "little"))
            else:
                self._store(address, struct.pack(f"<{len(data)}I", *data))
        elif destination == 0:
            for position, value in enumerate(data):
                self._write_register((low & 0x3FFFF) + (0 if same else position), value)
        else:
            raise NotModelled(f"WRITE_DATA to destination {destination}")

    def _copy_data(self, payload: list[int]) -> None:
        control, source_low, source_high, low, high = payload
        source, destination = control & 0xF, control >> 8 & 0xF
        size = 8 if control >> 16 & 1 else 4
        if source in (1, 2):
            value = int.from_bytes(self.hub.read(self.hqd.vmid, source_high << 32 | source_low & -size, size, CLIENT_CPC), "little")
        elif source in (0, 4):
            index = source_low & 0x3FFFF
            value = self._read_register(index) | (self._read_register(index + 1) << 32 if size == 8 else 0)
        elif source == 5:
            value = source_low | source_high << 32
        elif source in (9, 10):
            value = self.mec.ticks()
        else:
            raise NotModelled(f"COPY_DATA from source {source}")
        value &= (1 << 8 * size) - 1
        if destination in (2, 5):
            self._store(high << 32 | low & -size, value.to_bytes(size, "little"))
        elif destination in (0, 4):
            self._write_register(low & 0x3FFFF, value & 0xFFFFFFFF)
            if size == 8:
                self._write_register((low & 0x3FFFF) + 1, value >> 32)
        else:
            raise NotModelled(f"COPY_DATA to destination {destination}")

    def _event_write(self, payload: list[int]) -> Steps | None:
        event, index = payload[0] & 0x3F, payload[0] >> 8 & 0xF
        if event != Event.CS_PARTIAL_FLUSH:
            raise NotModelled(f"EVENT_WRITE of event {event:#x}")
        return self._drain() if index == 4 else None  # with another index nobody waits

    def _indirect_buffer(self, payload: list[int], depth: int) -> Steps:
        low, high, control = payload
        if depth >= IB_NESTING and not control & IB_CHAIN:
            raise QueueStop("an indirect buffer inside an indirect buffer", INTERRUPT_RESERVED_BITS)
        if not control & IB_VALID:
            raise QueueStop(f"INDIRECT_BUFFER without its valid bit ({control:#010x})", INTERRUPT_RESERVED_BITS)
        count = control & 0xFFFFF
        address = high << 32 | low & ~3
        hqd = self.hqd
        vmid = control >> 24 & 0xF or hqd.vmid
        hqd.set_register("CP_HQD_ERROR", ERROR_INDIRECT)
        words = list(struct.unpack(f"<{count}I", self.hub.read(vmid, address, 4 * count, CLIENT_CPF, fetch=True)))
        hqd.set_register("CP_HQD_ERROR", 0)
        position = 0
        while position < count:
            size = self._size(words[position])
            if position + size > count:
                raise QueueStop(f"a packet runs over the end of the indirect buffer at {address:#x}", INTERRUPT_RESERVED_BITS)
            if self._skip:
                self._skip = max(0, self._skip - size)
            else:
                more = self._packet(words, position, size, depth + 1)
                if more is not None:
                    yield from more
            position += size
            if self.strict or self._spent >= 5e-6:
                yield self._take_time()

    def _cond_exec(self, payload: list[int]) -> None:
        low, high, _, count = payload
        if self.hub.read32(self.hqd.vmid, high << 32 | low & ~3, CLIENT_CPC) == 0:
            self._skip = count & 0x3FFF

    def _pred_exec(self, payload: list[int]) -> None:
        """Only the dies of the mask run the next dwords. This chip has one: bit 0."""
        if not payload[0] >> 24 & 1:
            self._skip = payload[0] & 0x3FFF

    def _dispatch_direct(self, payload: list[int]) -> None:
        self.mec.dispatch(self.hqd, (payload[0], payload[1], payload[2]), payload[3])

    def _dispatch_indirect(self, payload: list[int]) -> None:
        low, high, initiator = payload
        x, y, z = struct.unpack("<3I", self.hub.read(self.hqd.vmid, high << 32 | low & ~3, 12, CLIENT_CPC))
        self.mec.dispatch(self.hqd, (x, y, z), initiator)

    def _dma_data(self, payload: list[int]) -> None:
        control, source_low, source_high, low, high, command = payload
        source, destination = control >> 29 & 3, control >> 20 & 3
        if destination not in (0, 3) or source not in (0, 2, 3) or command >> 26 & 0xF:
            raise NotModelled(f"DMA_DATA with control {control:#x}, command {command:#x}")
        count = command & 0x3FFFFFF
        vmid = self.hqd.vmid
        if source == 2:
            data = (source_low.to_bytes(4, "little") * (count // 4 + 1))[:count]
        else:
            data = b"".join(self.mec.bytes_of(self.hub.runs(vmid, source_high << 32 | source_low, count, READ, CLIENT_CPC)))
        done = 0
        for host, length in self.hub.runs(vmid, high << 32 | low, count, WRITE, CLIENT_CPC):
            self.mec.put(host, data[done : done + length])
            done += length

    def _not_modelled(self, payload: list[int]) -> None:
        raise NotModelled("a PM4 packet whose layout or operation codes are not known here (ATOMIC_MEM, HDP_FLUSH, INVALIDATE_TLBS)")


Handler = Callable[[Pm4, list[int]], Steps | None]
_ANY = 0x4000

_PACKETS: dict[int, tuple[Handler, int, int]] = {
    NOP: (Pm4._nop, 0, _ANY),
    0x15: (Pm4._dispatch_direct, 4, 4),
    0x16: (Pm4._dispatch_indirect, 3, 3),
    0x1E: (Pm4._not_modelled, 8, 8),
    0x22: (Pm4._cond_exec, 4, 4),
    0x23: (Pm4._pred_exec, 1, 1),
    0x37: (Pm4._write_data, 4, _ANY),
    0x3C: (Pm4._wait_reg_mem, 6, 6),
    INDIRECT_BUFFER: (Pm4._not_modelled, 3, 3),  # needs its depth: handled by _packet itself
    0x40: (Pm4._copy_data, 5, 5),
    0x46: (Pm4._event_write, 1, 1),
    0x49: (Pm4._release_mem, 7, 7),
    0x50: (Pm4._dma_data, 6, 6),
    ACQUIRE_MEM: (Pm4._acquire_mem, 7, 7),
    0x76: (Pm4._set_sh_reg, 2, _ANY),
    0x79: (Pm4._set_uconfig_reg, 2, _ANY),
    0x93: (Pm4._wait_reg_mem64, 8, 8),
    0x95: (Pm4._not_modelled, 1, 1),
    0x98: (Pm4._not_modelled, 1, 1),
    0x9B: (Pm4._set_sh_reg, 2, _ANY),
}
"""opcode -> (what it does, fewest and most dwords after the header)"""
