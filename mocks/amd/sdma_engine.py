"""One copy engine: fetches packets from its ring and carries them out.

Pointers count bytes and never wrap; no packet may lie across the end of the ring. An engine fetches while its queue is enabled, its
firmware is loaded and it is not halted. Copies translate every page on both sides and take simulated time by their size. Whatever
an engine cannot carry out stops it there; the watchdog then reports a queue hang.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import ih
from drivers.amd.packets.values import SDMA_RETRY_FOREVER
from firmware.amd_layouts import FirmwareType
from hw.errors import NotModelled
from mocks.amd.hub import CLIENT_SDMA0, VmFault
from mocks.amd.pm4 import COMPARE, FIRST_PAUSE, LONGEST_PAUSE
from mocks.amd.tlb import READ, WRITE

if TYPE_CHECKING:
    from mocks.amd.sdma import Sdma
    from mocks.clock import Task

log = logging.getLogger(__name__)

Steps = Generator[Any, None, None]

FIRMWARE = (FirmwareType.SDMA_UCODE_TH0, FirmwareType.SDMA_UCODE_TH1)

POLL_WPTR = 1 << 8 | 1 << 11
"""RB_CNTL: wptr polling by the hardware or by the firmware"""
RPTR_WRITEBACK = 1 << 12
RB_PRIVILEGED = 1 << 23
HALTED = 1 << 0 | 1 << 9 | 1 << 13
"""F32_CNTL: halt, or either thread in reset"""
TRAP_ENABLE = 1 << 0
WATCHDOG_UNIT = 0.1
"""WATCHDOG_CNTL.QUEUE_HANG_COUNT counts these (s)"""

PACKET_TIME = 100e-9
COPY_START_TIME = 500e-9
COPY_RATE = 25e9
"""bytes per second that a copy moves (I)"""
CHUNK = 1 << 20
"""bytes of a copy that are moved in one step"""
IB_ALIGN = 8

OP_NOP, OP_COPY, OP_WRITE, OP_INDIRECT, OP_FENCE, OP_TRAP, OP_POLL, OP_COND_EXE = 0, 1, 2, 4, 5, 6, 8, 9
OP_CONST_FILL, OP_TIMESTAMP, OP_SRBM_WRITE, OP_GPUVM_INV, OP_GCR, OP_DUMMY_TRAP = 11, 13, 14, 16, 17, 32
HDP_FLUSH = 1 << 26
MEM_POLL = 1 << 31
BROADCAST = 1 << 27
BACKWARDS = 1 << 25
SWAPS = 3 << 24 | 3 << 16 | 3 << 8
ENCRYPT_OR_TMZ = 1 << 16 | 1 << 18


class EngineStop(Exception):
    """The engine cannot go on from here."""


class Engine:
    """One copy engine with its queue."""

    def __init__(self, block: Sdma, number: int) -> None:
        self.block = block
        self.gpu = block.gpu
        self.number = number
        self.client = CLIENT_SDMA0 + number
        self.hub = block.gpu.hub("gfx")
        self.bell = block.scheduler.signal()
        self.task: Task | None = None
        self.rptr = 0
        self.wptr = 0
        self.stopped_because = ""
        self._reported = 0
        self._spent = 0.0
        self._skip = 0
        self.vmid = 0
        self.ring = 0
        self.ring_bytes = 4

    def __repr__(self) -> str:
        return f"SDMA{self.number} queue 0"

    def value(self, name: str) -> int:
        return self.block.reg("GC", f"SDMA{self.number}_{name}").value

    def pair(self, low: str, high: str) -> int:
        return self.value(high) << 32 | self.value(low)

    # --- the queue ---

    def start(self) -> None:
        """RB_ENABLE was set."""
        if self.task is None:
            self.task = self.block.scheduler.spawn(repr(self), self._run())

    def stop(self) -> None:
        """The queue is off; its position stays in the registers."""
        if self.task is None:
            return
        self.block.scheduler.stop(self.task)
        self.task = None
        self.block.set_pair(f"SDMA{self.number}_QUEUE0_RB_RPTR", f"SDMA{self.number}_QUEUE0_RB_RPTR_HI", self.rptr)
        self.block.set_pair(f"SDMA{self.number}_QUEUE0_RB_WPTR", f"SDMA{self.number}_QUEUE0_RB_WPTR_HI", self.wptr)

    def ready(self) -> bool:
        """Does the engine fetch?"""
        loaded = self.gpu.psp.commands.loaded
        return not self.value("F32_CNTL") & HALTED and all(kind in loaded for kind in FIRMWARE)

    def _connect(self) -> None:
        control = self.value("QUEUE0_RB_CNTL")
        self.vmid = control >> 24 & 0xF
        self.ring = self.pair("QUEUE0_RB_BASE", "QUEUE0_RB_BASE_HI") << 8
        self.ring_bytes = 4 << (control >> 1 & 0x1F)
        self.privileged = bool(control & RB_PRIVILEGED)
        self.writes_back = bool(control & RPTR_WRITEBACK)
        self.rptr_address = self.pair("QUEUE0_RB_RPTR_ADDR_LO", "QUEUE0_RB_RPTR_ADDR_HI") & ~3
        self.rptr = self._reported = self.pair("QUEUE0_RB_RPTR", "QUEUE0_RB_RPTR_HI")
        self.wptr = self.pair("QUEUE0_RB_WPTR", "QUEUE0_RB_WPTR_HI")
        self.stopped_because = ""
        self._skip = 0
        if control & POLL_WPTR:
            address = self.pair("QUEUE0_RB_WPTR_POLL_ADDR_LO", "QUEUE0_RB_WPTR_POLL_ADDR_HI") & ~3
            polled = int.from_bytes(self.hub.read(self.vmid, address, 8, self.client, fetch=True), "little")
            self.wptr = max(self.wptr, polled)

    def _run(self) -> Steps:
        try:
            while not self.ready():
                yield self.block.changed
            self._connect()
            while True:
                while not self.ready():
                    yield self.block.changed
                if self._available() == 0:
                    self._report()
                    yield self.bell
                    continue
                yield from self._ring()
        except VmFault as fault:
            self._stop(str(fault))
        except EngineStop as stop:
            self._stop(str(stop))

    def _stop(self, reason: str) -> None:
        self.stopped_because = f"{reason} (ring byte {self.rptr % self.ring_bytes:#x})"
        log.warning("%r stops: %s", self, self.stopped_because)
        count = self.value("WATCHDOG_CNTL") & 0xFF
        task = self.task
        if count:
            self.block.scheduler.call_later(count * WATCHDOG_UNIT, lambda: self._report_hang(task), "SDMA watchdog")

    def _report_hang(self, task: Task | None) -> None:
        if self.task is task and self.stopped_because:
            self.gpu.ih.raise_interrupt(ih.CLIENT_GFX, ih.SDMA_QUEUE_HANG, ring_id=self.number, vmid=self.vmid)

    def _available(self) -> int:
        ahead = self.wptr - self.rptr
        if not 0 <= ahead <= self.ring_bytes:
            log.warning("%r: write pointer %#x is not within a ring of %#x bytes ahead of read pointer %#x", self, self.wptr, self.ring_bytes, self.rptr)
            ahead %= self.ring_bytes
            self.wptr = self.rptr + ahead
        return ahead & ~3

    def _ring(self) -> Steps:
        """Carry out what lies in the ring between here and its end."""
        start = self.rptr % self.ring_bytes
        count = min(self._available(), self.ring_bytes - start) // 4
        words = struct.unpack(f"<{count}I", self.hub.read(self.vmid, self.ring + start, 4 * count, self.client, fetch=True))
        position = 0
        while position < count:
            size = self._size(words, position)
            if position + size > count:
                if start + 4 * count == self.ring_bytes:
                    raise EngineStop(f"packet {words[position]:#010x} of {size} dwords lies across the end of the ring")
                self._report()
                yield self.bell  # the write pointer covers only a part of the packet
                return
            if self._skip:
                self._skip = max(0, self._skip - size)
            else:
                more = self._packet(words[position : position + size], start // 4 + position)
                if more is not None:
                    yield from more
            position += size
            self.rptr += 4 * size
            if self.gpu.strict or self._spent >= 5e-6:
                yield self._take_time()
            if not self.ready():
                return
        if self._spent:
            yield self._take_time()

    def _take_time(self) -> float:
        """Time used since the last step. A strict machine stretches it at random, so that engines overtake each other."""
        spent, self._spent = self._spent, 0.0
        return spent * self.block.scheduler.between(0.5, 2.0) if self.gpu.strict else spent

    def _report(self) -> None:
        if self.writes_back and self.rptr != self._reported:
            self.hub.write(self.vmid, self.rptr_address, self.rptr.to_bytes(8, "little"), self.client, fetch=True)
            self._reported = self.rptr

    def _until(self, holds: Callable[[], bool], retries: int) -> Steps:
        pause = FIRST_PAUSE
        while not holds():
            self._report()
            yield self._take_time() + pause
            pause = min(pause * 1.5, LONGEST_PAUSE)
            if retries != SDMA_RETRY_FOREVER:
                retries -= 1
                if retries < 0:
                    raise EngineStop("POLL_REGMEM gave up after its number of retries")

    # --- packets ---

    def _size(self, words: tuple[int, ...], position: int) -> int:
        """Dwords of the packet at a position."""
        header = words[position]
        operation, sub = header & 0xFF, header >> 8 & 0xFF
        if operation == OP_NOP:
            return 1 + (header >> 16 & 0x3FFF)
        if operation == OP_WRITE and sub == 0:
            return 4 + (words[position + 3] & 0xFFFFF) + 1 if position + 3 < len(words) else 5
        if operation == OP_COPY and sub == 0:
            return 9 if header & BROADCAST else 7
        size = _SIZES.get((operation, sub))
        if size is None:
            raise EngineStop(f"packet {header:#010x}: operation {operation}, sub-operation {sub} is not known to this engine")
        return size

    def _packet(self, packet: tuple[int, ...], place: int) -> Steps | None:
        """Carry out one packet, `place` being its dword in the ring; what takes time comes back to be stepped."""
        self._spent += PACKET_TIME
        operation = packet[0] & 0xFF
        if operation in (OP_NOP, OP_DUMMY_TRAP):
            return None
        return _HANDLERS[operation](self, packet, place)

    def _copy(self, packet: tuple[int, ...], place: int) -> Steps:
        if packet[2] & SWAPS or packet[0] & ENCRYPT_OR_TMZ:
            raise NotModelled(f"SDMA copy with byte swap or encryption ({packet[0]:#x}, {packet[2]:#x})")
        size = (packet[1] & 0x3FFFFFFF) + 1
        source = packet[4] << 32 | packet[3]
        targets = [packet[6] << 32 | packet[5]]
        if packet[0] & BROADCAST:
            targets.append(packet[8] << 32 | packet[7])
        return self._move(source, targets, size, bool(packet[0] & BACKWARDS))

    def _move(self, source: int, targets: list[int], size: int, backwards: bool) -> Steps:
        self._spent += COPY_START_TIME
        starts = range(0, size, CHUNK)
        for start in reversed(starts) if backwards else starts:
            length = min(CHUNK, size - start)
            pieces = self.hub.runs(self.vmid, source + start, length, READ, self.client)
            for target in targets:
                self._move_pieces(pieces, self.hub.runs(self.vmid, target + start, length, WRITE, self.client), backwards)
            self._spent += length / COPY_RATE
            self.block.gpu.note_busy("memory", length / COPY_RATE)
            yield self._take_time()

    @staticmethod
    def _move_pieces(sources: list[tuple[int, int]], targets: list[tuple[int, int]], backwards: bool) -> None:
        """Copy between two lists of pieces of memory of the same total length."""
        moves = []
        rest = iter(sources)
        host, left = 0, 0
        for target, length in targets:
            while length:
                if not left:
                    host, left = next(rest)
                part = min(left, length)
                moves.append((target, host, part))
                host += part
                left -= part
                target += part
                length -= part
        for move in reversed(moves) if backwards else moves:
            ctypes.memmove(*move)

    def _write(self, packet: tuple[int, ...], place: int) -> None:
        data = packet[4:]
        self.hub.write(self.vmid, packet[2] << 32 | packet[1] & ~3, struct.pack(f"<{len(data)}I", *data), self.client)

    def _indirect(self, packet: tuple[int, ...], place: int) -> Steps:
        count = packet[3] & 0xFFFFF
        address = packet[2] << 32 | packet[1] & ~0x1F
        if not self.value("QUEUE0_IB_CNTL") & 1:
            raise EngineStop("INDIRECT while indirect buffers are not enabled (IB_CNTL)")
        if (place + len(packet)) % IB_ALIGN:
            raise EngineStop(f"INDIRECT ends at ring dword {place + len(packet):#x}, which is not a multiple of {IB_ALIGN}")
        if count % IB_ALIGN:
            raise EngineStop(f"indirect buffer of {count} dwords, which is not a multiple of {IB_ALIGN}")
        vmid = packet[0] >> 16 & 0xF
        words = struct.unpack(f"<{count}I", self.hub.read(vmid, address, 4 * count, self.client, fetch=True))
        position = 0
        while position < count:
            size = self._size(words, position)
            if position + size > count:
                raise EngineStop(f"a packet runs over the end of the indirect buffer at {address:#x}")
            if words[position] & 0xFF == OP_INDIRECT:
                raise EngineStop("an indirect buffer inside an indirect buffer")
            if self._skip:
                self._skip = max(0, self._skip - size)
            else:
                more = self._packet(words[position : position + size], position)
                if more is not None:
                    yield from more
            position += size

    def _fence(self, packet: tuple[int, ...], place: int) -> Steps:
        yield self._take_time()
        self.hub.write(self.vmid, packet[2] << 32 | packet[1] & ~3, packet[3].to_bytes(4, "little"), self.client)

    def _trap(self, packet: tuple[int, ...], place: int) -> None:
        if self.value("CNTL") & TRAP_ENABLE:
            self.gpu.ih.raise_interrupt(ih.CLIENT_GFX, ih.SDMA_TRAP, ring_id=self.number, vmid=self.vmid, data=(packet[1] & 0xFFFFFFF, 0, 0, 0))

    def _poll(self, packet: tuple[int, ...], place: int) -> Steps | None:
        header, low, high = packet[:3]
        sub = header >> 8 & 0xFF
        if sub == 1:
            self.hub.write(self.vmid, packet[3] << 32 | packet[2] & ~3, self._read_register(low >> 2).to_bytes(4, "little"), self.client)
            return None
        if header & HDP_FLUSH:
            self._write_register(high >> 2, packet[3])
        elif packet == (OP_POLL, 0, 0x80000000, 0, 0, 0):  # the parameterless form
            self.gpu.hdp.flush()
            return None
        function = header >> 28 & 7
        if function > 6:
            raise EngineStop(f"POLL_REGMEM with function {function}")
        compare, reference, mask = COMPARE[function], packet[3], packet[4]
        retries = packet[5] >> 16 & 0xFFF
        if header & MEM_POLL:
            address = high << 32 | low & ~3
            return self._until(lambda: compare(self.hub.read32(self.vmid, address, self.client) & mask, reference), retries)
        return self._until(lambda: compare(self._read_register(low >> 2) & mask, reference), retries)

    def _cond_exe(self, packet: tuple[int, ...], place: int) -> None:
        if self.hub.read32(self.vmid, packet[2] << 32 | packet[1] & ~3, self.client) != packet[3]:
            self._skip = packet[4] & 0x3FFF

    def _const_fill(self, packet: tuple[int, ...], place: int) -> Steps:
        """Element size 1 repeats the low 16 bits of the pattern, 0 and 2 all 32: drivers fill with dwords under either code."""
        element = packet[0] >> 30
        if element == 3 or packet[0] >> 16 & 3:
            raise NotModelled(f"CONST_FILL with element size {element}, swap {packet[0] >> 16 & 3}")
        size = (packet[4] & 0x3FFFFFFF) + (1 << element)
        pattern = packet[3].to_bytes(4, "little")
        if element == 1:
            pattern = pattern[:2] * 2
        block = pattern * (CHUNK // 4)
        address = packet[2] << 32 | packet[1]
        for start in range(0, size, CHUNK):
            length = min(CHUNK, size - start)
            done = 0
            for host, part in self.hub.runs(self.vmid, address + start, length, WRITE, self.client):
                ctypes.memmove(host, block[done % 4 : done % 4 + part] if done % 4 + part <= len(block) else (pattern * (part // 4 + 2))[done % 4 : done % 4 + part], part)
                done += part
            self._spent += length / COPY_RATE
            self.block.gpu.note_busy("memory", length / COPY_RATE)
            yield self._take_time()

    def _timestamp(self, packet: tuple[int, ...], place: int) -> Steps:
        yield self._take_time()
        address = packet[2] << 32 | packet[1] & ~7
        ticks = int(self.block.clock.now() * self.block.profile["engine"]["clock_hz"])
        self.hub.write(self.vmid, address, ticks.to_bytes(8, "little"), self.client)

    def _srbm_write(self, packet: tuple[int, ...], place: int) -> None:
        if packet[0] >> 28 != 0xF:
            raise NotModelled(f"SRBM_WRITE with byte enables {packet[0] >> 28:#x}")
        self._write_register(packet[1] & 0x3FFFF, packet[2])

    def _gpuvm_inv(self, packet: tuple[int, ...], place: int) -> None:
        request = packet[1]
        self.hub.cache.invalidate(request & 0xFFFF, pages=bool(request >> 23 & 1), levels=request >> 19 & 0xF)
        self.hub.bump()

    def _gcr(self, packet: tuple[int, ...], place: int) -> None:
        self.gpu.blocks["mec"].cache_action(packet[2] >> 16 | (packet[3] & 7) << 16)  # type: ignore[attr-defined]

    def _read_register(self, index: int) -> int:
        return self.gpu.read_register(index)

    def _write_register(self, index: int, value: int) -> None:
        if not self.privileged:
            raise EngineStop(f"write of {self.gpu.name_of(index)} (dword {index:#x}) by a queue that is not privileged")
        self.gpu.write_register(index, value)


Handler = Callable[[Engine, tuple[int, ...], int], "Steps | None"]

_HANDLERS: dict[int, Handler] = {
    OP_COPY: Engine._copy,
    OP_WRITE: Engine._write,
    OP_INDIRECT: Engine._indirect,
    OP_FENCE: Engine._fence,
    OP_TRAP: Engine._trap,
    OP_POLL: Engine._poll,
    OP_COND_EXE: Engine._cond_exe,
    OP_CONST_FILL: Engine._const_fill,
    OP_TIMESTAMP: Engine._timestamp,
    OP_SRBM_WRITE: Engine._srbm_write,
    OP_GPUVM_INV: Engine._gpuvm_inv,
    OP_GCR: Engine._gcr,
}

_SIZES = {
    (OP_INDIRECT, 0): 6,
    (OP_FENCE, 0): 4,
    (OP_TRAP, 0): 2,
    (OP_POLL, 0): 6,
    (OP_POLL, 1): 4,
    (OP_COND_EXE, 0): 5,
    (OP_CONST_FILL, 0): 5,
    (OP_TIMESTAMP, 1): 3,
    (OP_TIMESTAMP, 2): 3,
    (OP_SRBM_WRITE, 0): 3,
    (OP_GPUVM_INV, 0): 4,
    (OP_GCR, 0): 5,
    (OP_DUMMY_TRAP, 0): 2,
}
"""(operation, sub-operation) -> dwords, of packets with a fixed length"""
