"""A serial NOR flash chip, seen from its pins: chip select cycles in, bits out.

The array lives in a LastingMemory, the non-volatile register bits beside it. An operation changes the array when it starts, and the
chip is busy until it would have ended (nobody can read it meanwhile); what was there before is kept until then. So a killed process
leaves what the chip would hold, because a chip goes on with its operation when its host dies. A power cut leaves what the operation had
done by that moment: bytes programmed so far, cells somewhere between old, zero and one in the middle of an erase. Cells touched by an
interrupted operation are marginal: they read differently from time to time until they are erased again.

Sources: GigaDevice GD25LQ16 class (public data sheets), JEDEC JESD216. Times are orders of magnitude.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hw.errors import NotModelled
from mocks.clock import Scheduler, SimClock
from mocks.faults import FaultPlan
from mocks.lasting import LastingMemory, LastingValues
from mocks.spi_model import LOCK_BITS, SECTOR, SR1_WRITABLE, SR2_WRITABLE, SR3_WRITABLE, SRP0, SRP1, WEL, WIP, ChipModel

log = logging.getLogger(__name__)

FLOATING = b"\xff"
"""what a master reads from a line that nobody drives"""

OTP_SIZE = 1024
NOT_MODELLED = {0x75: "suspend", 0x7A: "resume", 0x3B: "dual output read", 0xBB: "dual read", 0x6B: "quad output read", 0xEB: "quad read", 0x32: "quad program"}
PREPROGRAM_SHARE = 0.25
"""part of an erase in which the chip first brings all cells to 0 (I)"""


@dataclass
class Work:
    """An operation that goes on inside the chip."""

    kind: str
    offset: int
    old: bytes
    new: bytes
    starts: float
    ends: float


class SpiChip:
    """One chip. transact() is one chip select cycle."""

    def __init__(
        self,
        model: ChipModel,
        clock: SimClock,
        scheduler: Scheduler,
        *,
        factory: Callable[[], bytes] | None = None,
        folder: Path | None = None,
        faults: FaultPlan | None = None,
        seed: int = 0,
        on_power_cut: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.powered = True
        self.worked = 0
        """bytes that program, erase and status operations have worked on since power came: the scale of power cut faults"""
        self.cycles = 0
        """chip select cycles so far"""
        self.commands: dict[int, int] = {}
        """opcode -> how often it was carried out"""
        self._clock = clock
        self._scheduler = scheduler
        self._faults = faults or FaultPlan()
        self._random = random.Random(seed)
        self._on_power_cut = on_power_cut
        self.memory = LastingMemory(folder / "flash.bin" if folder else None, model.size, factory or (lambda: FLOATING * model.size))
        self._lasting = LastingValues(folder / "flash.json" if folder else None, {"status": list(model.status), "otp": "", "weak": []})
        self._status = list(self._lasting["status"])
        """SR1, SR2, SR3 without WIP and WEL"""
        self._locked_until_power = bool(self._status[1] & SRP1) and not self._status[0] & SRP0
        self._write_enabled = False
        self._volatile_enabled = False
        self._reset_enabled = False
        self._asleep = False
        self._work: Work | None = None
        self._bytes_read = 0

    # --- pins ---

    def transact(self, sent: bytes, receive: int = 0, *, at: float | None = None) -> bytes:
        """One chip select cycle: `sent` goes in, then `receive` bytes come out. `at`: simulated time at which chip select rises."""
        now = self._clock.now() if at is None else at
        self.cycles += 1
        if not self.powered or not sent:
            return FLOATING * receive
        self._settle(now)
        opcode = sent[0]
        if opcode in NOT_MODELLED:
            raise NotModelled(f"flash command {opcode:#04x} ({NOT_MODELLED[opcode]})")
        handler = self._HANDLERS.get(opcode)
        if handler is None and opcode in self.model.erases:
            handler = SpiChip._erase
        if handler is None or (self._asleep and opcode != 0xAB):
            return FLOATING * receive
        if self._work is not None and opcode not in self._WHILE_BUSY:
            return FLOATING * receive
        if opcode != 0x99:
            self._reset_enabled = False
        self.commands[opcode] = self.commands.get(opcode, 0) + 1
        return handler(self, sent, receive, now)

    @property
    def busy(self) -> bool:
        self._settle(self._clock.now())
        return self._work is not None

    def status(self, number: int) -> int:
        """SR1, SR2 or SR3 (number 0, 1, 2) as the chip would show it now."""
        self._settle(self._clock.now())
        value: int = self._status[number]
        if number == 0:
            value |= (WIP if self._work else 0) | (WEL if self._write_enabled else 0)
        return value

    def power_cut(self) -> None:
        """The supply fails now. Whatever the chip is doing stops where it is."""
        if not self.powered:
            return
        now = self._clock.now()
        self._settle(now)
        if self._work is not None:
            self._interrupt(self._work, min(max((now - self._work.starts) / max(self._work.ends - self._work.starts, 1e-9), 0.0), 1.0))
            self._work = None
        self.powered = False
        self._on_power_cut()

    # --- commands ---

    def _read(self, sent: bytes, receive: int, now: float) -> bytes:
        return self._array(int.from_bytes(sent[1:4], "big"), receive) if len(sent) >= 4 else FLOATING * receive

    def _fast_read(self, sent: bytes, receive: int, now: float) -> bytes:
        """One byte between address and data is skipped, whether the master sends or receives during it."""
        missing = max(0, 5 - len(sent))
        return FLOATING * missing + self._read(sent, max(receive - missing, 0), now)

    def _sfdp(self, sent: bytes, receive: int, now: float) -> bytes:
        missing = max(0, 5 - len(sent))
        address = int.from_bytes(sent[1:4], "big")
        table = self.model.sfdp[address : address + max(receive - missing, 0)]
        return (FLOATING * missing + table).ljust(receive, FLOATING)[:receive]

    def _rdid(self, sent: bytes, receive: int, now: float) -> bytes:
        return _repeat(self.model.jedec, receive)

    def _rems(self, sent: bytes, receive: int, now: float) -> bytes:
        return _repeat(self.model.rems or FLOATING, receive)

    def _res(self, sent: bytes, receive: int, now: float) -> bytes:
        self._asleep = False
        return _repeat(self.model.rems[1:] or FLOATING, receive)

    def _sleep(self, sent: bytes, receive: int, now: float) -> bytes:
        self._asleep = True
        return FLOATING * receive

    def _read_status(self, sent: bytes, receive: int, now: float) -> bytes:
        number = (0x05, 0x35, 0x15).index(sent[0])
        value = self._status[number]
        if number == 0:
            value |= (WIP if self._work else 0) | (WEL if self._write_enabled else 0)
        return bytes([value]) * receive

    def _write_enable(self, sent: bytes, receive: int, now: float) -> bytes:
        self._write_enabled = True
        return FLOATING * receive

    def _write_disable(self, sent: bytes, receive: int, now: float) -> bytes:
        self._write_enabled = self._volatile_enabled = False
        return FLOATING * receive

    def _volatile_enable(self, sent: bytes, receive: int, now: float) -> bytes:
        self._volatile_enabled = True
        return FLOATING * receive

    def _write_status(self, sent: bytes, receive: int, now: float) -> bytes:
        """0x01 with one or two bytes from SR1 on (one byte leaves SR2 alone, (I)); 0x31 SR2; 0x11 SR3. Lock bits only go to 1."""
        lasting, volatile = self._write_enabled, self._volatile_enabled
        self._write_enabled = self._volatile_enabled = False
        values = sent[1:3] if sent[0] == 0x01 else sent[1:2]
        sealed = self._locked_until_power or (self._status[0] & SRP0 and (self._status[1] & SRP1 or self.model.wp_low))
        if not values or not (lasting or volatile) or sealed:
            return FLOATING * receive
        first = {0x01: 0, 0x31: 1, 0x11: 2}[sent[0]]
        new = list(self._status)
        for number, value in enumerate(values, first):
            mask = (SR1_WRITABLE, SR2_WRITABLE, SR3_WRITABLE)[number]
            new[number] = new[number] & ~mask | value & mask
        new[1] |= self._status[1] & LOCK_BITS
        if not lasting:
            self._status = new
            return FLOATING * receive
        self._begin("status", 0, bytes(self._status), bytes(new), now, self.model.status_time)
        self._write_enabled = True
        return FLOATING * receive

    def _program(self, sent: bytes, receive: int, now: float) -> bytes:
        """Bits go from 1 to 0; a page is a ring; more than a page: the last bytes count."""
        enabled, self._write_enabled = self._write_enabled, False
        if not enabled or len(sent) < 5:
            return FLOATING * receive
        address = int.from_bytes(sent[1:4], "big") % self.model.size
        page = self.model.page
        base = address - address % page
        if self._protects(base, base + page):
            return FLOATING * receive
        data = sent[4:]
        if address + len(data) <= base + page:
            start, wanted = address, data
        else:
            ring = bytearray(FLOATING * page)
            for position, byte in enumerate(data):
                ring[(address - base + position) % page] = byte
            start, wanted = base, bytes(ring)
        old = self.memory.read(start, len(wanted))
        new = (int.from_bytes(old, "big") & int.from_bytes(wanted, "big")).to_bytes(len(wanted), "big")
        self._begin("program", start, old, self._worn(start, new), now, self.model.program_time)
        self._write_enabled = True
        return FLOATING * receive

    def _erase(self, sent: bytes, receive: int, now: float) -> bytes:
        enabled, self._write_enabled = self._write_enabled, False
        if not enabled or len(sent) < 4:
            return FLOATING * receive
        size = self.model.erases[sent[0]]
        start = int.from_bytes(sent[1:4], "big") % self.model.size // size * size
        if self._protects(start, start + size):
            return FLOATING * receive
        self._begin("erase", start, self.memory.read(start, size), self._worn(start, FLOATING * size), now, self.model.erase_times.get(size, size / 0x10000 * 0.15))
        self._write_enabled = True
        return FLOATING * receive

    def _chip_erase(self, sent: bytes, receive: int, now: float) -> bytes:
        enabled, self._write_enabled = self._write_enabled, False
        size = self.model.size
        if not enabled or self._protects(0, size):
            return FLOATING * receive
        self._begin("erase", 0, self.memory.read(0, size), self._worn(0, FLOATING * size), now, size / 0x10000 * 0.15)
        self._write_enabled = True
        return FLOATING * receive

    def _read_otp(self, sent: bytes, receive: int, now: float) -> bytes:
        missing = max(0, 5 - len(sent))
        address = int.from_bytes(sent[1:4], "big") % OTP_SIZE
        return (FLOATING * missing + self._otp()[address:])[:receive].ljust(receive, FLOATING)

    def _write_otp(self, sent: bytes, receive: int, now: float) -> bytes:
        enabled, self._write_enabled = self._write_enabled, False
        if not enabled or len(sent) < 4 or self._status[1] & LOCK_BITS:
            return FLOATING * receive
        old = self._otp()
        if sent[0] == 0x44:
            new, seconds = FLOATING * OTP_SIZE, self.model.erase_times.get(SECTOR, 0.05)
        else:
            address = int.from_bytes(sent[1:4], "big") % OTP_SIZE
            data = sent[4 : 4 + OTP_SIZE - address]
            new = old[:address] + bytes(a & b for a, b in zip(old[address:], data, strict=False)) + old[address + len(data) :]
            seconds = self.model.program_time
        self._begin("otp", 0, old, new, now, seconds)
        self._write_enabled = True
        return FLOATING * receive

    def _enable_reset(self, sent: bytes, receive: int, now: float) -> bytes:
        self._reset_enabled = True
        return FLOATING * receive

    def _reset(self, sent: bytes, receive: int, now: float) -> bytes:
        """A reset in the middle of an operation breaks it off."""
        if self._reset_enabled:
            if self._work is not None:
                self._interrupt(self._work, min((now - self._work.starts) / (self._work.ends - self._work.starts), 1.0))
            self._work = None
            self._write_enabled = self._volatile_enabled = self._reset_enabled = self._asleep = False
            self._status = list(self._lasting["status"])
        return FLOATING * receive

    _HANDLERS: dict[int, Callable[[SpiChip, bytes, int, float], bytes]] = {  # noqa: RUF012
        0x03: _read,
        0x0B: _fast_read,
        0x5A: _sfdp,
        0x9F: _rdid,
        0x90: _rems,
        0xAB: _res,
        0xB9: _sleep,
        0x05: _read_status,
        0x35: _read_status,
        0x15: _read_status,
        0x06: _write_enable,
        0x04: _write_disable,
        0x50: _volatile_enable,
        0x01: _write_status,
        0x31: _write_status,
        0x11: _write_status,
        0x02: _program,
        0xC7: _chip_erase,
        0x60: _chip_erase,
        0x48: _read_otp,
        0x42: _write_otp,
        0x44: _write_otp,
        0x66: _enable_reset,
        0x99: _reset,
    }
    _WHILE_BUSY = frozenset((0x05, 0x35, 0x15, 0x66, 0x99))

    # --- inside ---

    def _protects(self, start: int, end: int) -> bool:
        first, last = self.model.protected(self._status[0], self._status[1])
        return first < end and start < last

    def _otp(self) -> bytes:
        stored = self._lasting["otp"]
        return bytes.fromhex(stored) if stored else FLOATING * OTP_SIZE

    def _array(self, address: int, count: int) -> bytes:
        """Bytes of the array from an address on, around its end to its start."""
        address %= self.model.size
        data = self.memory.read(address, count)
        while len(data) < count:
            data += self.memory.read(0, count - len(data))
        if self._lasting["weak"]:
            data = self._flutter(address, data)
        every = self._faults.argument("flash-flip")
        if every is not None:
            data = self._flip(data, int(every or 4096))
        return data

    def _flutter(self, address: int, data: bytes) -> bytes:
        """Marginal cells: one bit in eight reads wrong, another one each time."""
        result = bytearray(data)
        for start, end in self._lasting["weak"]:
            first, last = max(start, address) - address, min(end, address + len(data)) - address
            if first < last:
                noise = _bits(self._random, last - first, 1)
                result[first:last] = bytes(a ^ b for a, b in zip(result[first:last], noise, strict=True))
        return bytes(result)

    def _flip(self, data: bytes, every: int) -> bytes:
        result = bytearray(data)
        position = -self._bytes_read % every
        while position < len(result):
            result[position] ^= 1 << self._random.randrange(8)
            position += every
        self._bytes_read += len(data)
        return bytes(result)

    def _worn(self, start: int, new: bytes) -> bytes:
        """A planned worn-out cell: bit 0 of one byte stays 1 when programmed and 0 when erased."""
        place = self._faults.argument("flash-worn")
        at = int(place or "0", 0) - start
        if place is None or not 0 <= at < len(new):
            return new
        return new[:at] + bytes([new[at] ^ 1]) + new[at + 1 :]

    def _begin(self, kind: str, offset: int, old: bytes, new: bytes, now: float, seconds: float) -> None:
        """Start an operation: its result is in place at once, the chip is busy until it would be there."""
        if self._faults.active("flash-stuck-busy") and kind != "status":
            seconds = float("inf")
        self._work = work = Work(kind, offset, old, new, now, now + seconds)
        self._store(work, new)
        if kind == "erase":
            self._firm(offset, offset + len(new))
        cut = self._faults.argument("flash-power-cut")
        if cut is not None:
            into = int(cut or 0) - self.worked
            if 0 <= into < len(new):
                self._scheduler.call_later(max(now - self._clock.now(), 0.0) + min(seconds, 1.0) * (into + 0.5) / len(new), self.power_cut, "flash power cut")
        self.worked += len(new)

    def _store(self, work: Work, content: bytes) -> None:
        if work.kind == "status":
            self._status = list(content)
            self._lasting.update(status=list(content))
        elif work.kind == "otp":
            self._lasting.update(otp=content.hex())
        else:
            self.memory.write(work.offset, content)

    def _settle(self, now: float) -> None:
        if self._work is not None and now >= self._work.ends:
            self._work = None
            self._write_enabled = False

    def _interrupt(self, work: Work, progress: float) -> None:
        """An operation ends before its time. progress: 0..1 of its duration."""
        done = int(progress * len(work.new))
        if work.kind == "erase":
            content = self._half_erased(work.old, progress)
            weak = (work.offset, work.offset + len(work.new))
        elif work.kind == "status":
            mask = self._random.randbytes(len(work.new))
            content = bytes(old & ~take & 0xFF | new & take for old, new, take in zip(work.old, work.new, mask, strict=True))
            weak = (0, 0)
        else:
            some = bytes([work.old[done] & (work.new[done] | self._random.randrange(256))]) if done < len(work.new) else b""
            content = work.new[:done] + some + work.old[done + 1 :]
            weak = (work.offset + done, work.offset + done + 1) if work.kind == "program" and some else (0, 0)
        self._store(work, content)
        self._write_enabled = False
        if weak[0] < weak[1]:
            self._lasting.update(weak=[*self._lasting["weak"], list(weak)])
        log.info("flash: %s at %#x broken off at %.1f %%", work.kind, work.offset, 100 * progress)

    def _half_erased(self, old: bytes, progress: float) -> bytes:
        """First all cells go to 0, then all to 1; each cell at its own pace."""
        number = int.from_bytes(old, "big")
        if progress < PREPROGRAM_SHARE:
            cleared = int.from_bytes(_bits(self._random, len(old), int(8 * progress / PREPROGRAM_SHARE)), "big")
            return (number & ~cleared).to_bytes(len(old), "big")
        return _bits(self._random, len(old), int(8 * (progress - PREPROGRAM_SHARE) / (1 - PREPROGRAM_SHARE)))

    def _firm(self, start: int, end: int) -> None:
        """An erase makes the cells it covers whole again."""
        weak = self._lasting["weak"]
        if weak:
            left = [[low, high] for first, last in weak for low, high in ((first, min(last, start)), (max(first, end), last)) if low < high]
            self._lasting.update(weak=left)


def _repeat(pattern: bytes, count: int) -> bytes:
    return (pattern * (count // len(pattern) + 1))[:count]


def _bits(source: random.Random, size: int, eighths: int) -> bytes:
    """Random bytes in which each bit is 1 with a probability of so many eighths."""
    if eighths >= 8:
        return FLOATING * size
    mask = 0
    for position in range(3):
        fresh = int.from_bytes(source.randbytes(size), "big")
        mask = mask | fresh if eighths >> position & 1 else mask & fresh
    return mask.to_bytes(size, "big")
