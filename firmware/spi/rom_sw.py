"""The ROM_SW engine of Navi31's SMUIO: SPI transactions through registers, while the security processor is not using the flash.

A run of transactions happens in a session: the five registers that lead the pins and the controller to software are saved and set once,
and restored in a fixed order at its end. Receive quirk: the data window shows what the receive transaction BEFORE the latest one
captured. So a receive is done twice and the second window counts (this form was validated on hardware), or a run of equal receives
takes each chunk from the window of the next transaction (follows from the same quirk; always checked against the validated form on a
sample, and redone that way when they differ).

Source: the flash tools of a GPU project, seen working on device 1002:744c.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from firmware.spi.controller import Progress, SpiController, no_progress
from firmware.spi.errors import EngineGated, EngineStuck, RomUnreachable
from firmware.spi.held import HeldRegisters
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BusError, BusLost, WaitTimeout
from hw.mmio import ALL_ONES_32, Mmio
from hw.poll import poll
from hw.regs import Register, RegisterBlock
from hw.signals import guarded_signals, uninterrupted

log = logging.getLogger(__name__)

SAFE_PRESCALER = 8
"""slow enough for any chip seen; an inherited one may be unusable"""
NORMAL_MODE = 1
SOFTWARE_MODE = 8
SOFTWARE_MIRROR = 3
ADDRESS_BYTES = 3
WINDOW = 256
"""bytes of the data window"""
DONE_LIMIT = 2.0
"""s for one transaction"""
GATED_STATUS = 0x04000800
"""what ROM_SW_STATUS reads on a card that booted from its flash"""
LEARNING = 0.98
"""the next transaction of a size is looked at after this share of what the latest took, so that one slow answer is forgotten soon"""

SETTINGS = {
    "GPIO_PAD_MASK": {"spi_pins": 0},
    "GPIO_PAD_A": {"spi_pins": 0},
    "GPIO_PAD_EN": {"spi_pins": 0},
    "PAGE_MIRROR_CNTL": {"page_mirror": SOFTWARE_MIRROR},
    "ROM_CNTL": {"prescaler_set": 1, "prescaler": SAFE_PRESCALER, "mode": SOFTWARE_MODE},
}
"""fields that lead the pins and the controller to software, in the order in which they are set; other fields keep their values"""
SAVED = tuple(SETTINGS)
RESTORE_ORDER = ("ROM_CNTL", "PAGE_MIRROR_CNTL", "GPIO_PAD_A", "GPIO_PAD_EN", "GPIO_PAD_MASK")

SAMPLE_SHARE = 32
"""one chunk in so many of a pipelined run is read again in the validated form"""

SHORTEST_PRIMER = 2
"""bytes of the first of two transactions"""


def bus_lost(what: str, place: str) -> BusError:
    """The error for all ones when nobody can say more about the device."""
    return BusLost(what, read=f"{place} = 0xffffffff")


class RomSwEngine(SpiController):
    """SPI through ROM_SW registers. `smuio` is the register block with ROM_CNTL and the others; `lost` makes the error for all ones."""

    name = "rom-sw"
    longest = WINDOW

    def __init__(
        self,
        smuio: RegisterBlock,
        clock: Clock = HOST_CLOCK,
        *,
        lost: Callable[[str, str], BusError] = bus_lost,
        held: HeldRegisters | None = None,
        pipelined: bool = True,
    ) -> None:
        self.clock = clock
        self.pipelined = pipelined
        """use the N + 1 form for runs of reads"""
        self.remarks: list[str] = []
        """things worth telling that happened on the way"""
        self._regs = smuio
        self._window: Mmio = smuio.ROM_SW_STATUS.space.window
        self._data = smuio.ROM_SW_DATA_0.index << 2
        self._lost = lost
        self._held = held
        self._depth = 0
        self._typical: dict[int, float] = {}
        """bytes on the wire -> s that such a transaction took"""

    # --- session ---

    @contextmanager
    def session(self) -> Iterator[None]:
        if self._depth:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            return
        saved: dict[str, int] | None = None
        with guarded_signals():
            try:
                with uninterrupted():
                    saved = self._take_over()
                    self._depth = 1
                yield
            finally:
                if saved is not None:
                    with uninterrupted():
                        self._depth = 0
                        self._give_back(saved)

    def _take_over(self) -> dict[str, int]:
        """Save the registers, look whether the engine is free, then lead pins and controller to software."""
        saved = {}
        for name in SAVED:
            saved[name] = self._regs[name].read()
            if saved[name] == ALL_ONES_32:
                what = "taking over the flash controller"
                raise RomUnreachable(what, read="ROM_CNTL = 0xffffffff") if name == "ROM_CNTL" else self._lost(what, name)
        status = self._regs.ROM_SW_STATUS.read()
        if status == GATED_STATUS:
            raise EngineGated("the ROM_SW engine does not serve the host", read=f"ROM_SW_STATUS = {status:#010x}")
        settings = {}
        for name in SAVED:
            mask, bits = self._regs[name].table.select(name, SETTINGS[name])
            settings[name] = saved[name] & ~mask | bits
        if self._held is not None:
            saved = self._held.take(saved, settings)
        try:
            for name in SAVED:
                self._regs[name].write(settings[name])
            self._clear()
        except BaseException:
            self._give_back(saved)
            raise
        return saved

    def _give_back(self, saved: dict[str, int]) -> None:
        """Idle the engine and put the five registers back. A bus that no longer answers is no new error: what happened before is reported."""
        try:
            self._regs.ROM_SW_CNTL.write(0)
            self._regs.ROM_SW_STATUS.write(0)
            for name in RESTORE_ORDER:
                self._regs[name].write(saved[name])
            answers = self._regs[RESTORE_ORDER[-1]].read() != ALL_ONES_32
        except BusError as error:
            log.info("restoring the flash controller's registers: %s", error)
            answers = False
        if not answers:
            log.warning("the bus is lost: the flash controller's registers could not be restored")
        elif self._held is not None:
            self._held.release()

    def _clear(self) -> None:
        """Idle the engine and clear its status."""
        with self._window.batch() as batch:
            batch.write32(self._place(self._regs.ROM_SW_CNTL), 0)
            batch.write32(self._place(self._regs.ROM_SW_STATUS), 0)
            status = batch.read32(self._place(self._regs.ROM_SW_STATUS))
        self._check_cleared(status.value or 0)

    def _check_cleared(self, status: int) -> None:
        if status == ALL_ONES_32:
            raise self._lost("clearing the flash controller", "ROM_SW_STATUS")
        if status:
            raise EngineStuck("the ROM_SW engine's status does not clear", read=f"ROM_SW_STATUS = {status:#010x} after writing 0")

    @staticmethod
    def _place(register: Register) -> int:
        return register.index << 2

    # --- transactions ---

    def receive(self, opcode: int, count: int, address: int | None = None) -> bytes:
        """The validated form: the transaction twice, the second one's window."""
        self._check_size(count)
        with self.session(), uninterrupted():
            self._transact(opcode, address, receive=max(SHORTEST_PRIMER, count))
            return self._transact(opcode, address, receive=count)

    def send(self, opcode: int, data: bytes = b"", address: int | None = None) -> None:
        self._check_size(len(data))
        with self.session(), uninterrupted():
            self._transact(opcode, address, payload=data)

    def receive_many(self, opcode: int, addresses: Sequence[int], count: int, progress: Progress = no_progress) -> bytes:
        if not self.pipelined or len(addresses) < 2:
            with self.session():
                return super().receive_many(opcode, addresses, count, progress)
        self._check_size(count)
        with self.session():
            data = self._pipeline(opcode, addresses, count, progress)
            wrong = self._sample_differs(opcode, addresses, count, data)
            if wrong is None:
                return data
            self.pipelined = False
            remark = f"the pipelined read differed from the validated one at {wrong:#x}; everything was read again the validated way"
            log.warning("%s", remark)
            self.remarks.append(remark)
            return super().receive_many(opcode, addresses, count, progress)

    def _pipeline(self, opcode: int, addresses: Sequence[int], count: int, progress: Progress) -> bytes:
        """N equal receives by N + 1 transactions: the window after each holds the one before."""
        parts = []
        total = len(addresses) * count
        with uninterrupted():
            self._transact(opcode, addresses[0], receive=count, take=False)
        for address in (*addresses[1:], addresses[-1]):
            with uninterrupted():
                parts.append(self._transact(opcode, address, receive=count))
            progress(len(parts) * count, total)
        return b"".join(parts)

    def _sample_differs(self, opcode: int, addresses: Sequence[int], count: int, data: bytes) -> int | None:
        """Read some chunks again the validated way; the address of one that differs. Chunks that equal their neighbours prove little."""
        wanted = max(1, len(addresses) // SAMPLE_SHARE)
        chunks = [data[number * count : number * count + count] for number in range(len(addresses))]
        telling = [number for number in range(len(chunks)) if chunks[number] != chunks[number - 1]] or list(range(len(chunks)))
        for number in telling[:: max(1, len(telling) // wanted)][:wanted]:
            if self.receive(opcode, count, addresses[number]) != chunks[number]:
                return addresses[number]
        return None

    def _check_size(self, count: int) -> None:
        if not 0 <= count <= WINDOW:
            raise ValueError(f"a transaction carries up to {WINDOW} data bytes, not {count}")

    def _transact(self, opcode: int, address: int | None, *, payload: bytes = b"", receive: int = 0, take: bool = True) -> bytes:
        """One transaction of the engine, idle and cleared before and after. Returns the window after a receive."""
        regs = self._regs
        try:
            return self._perform(opcode, address, payload, receive, take)
        except BaseException:
            with suppress(BusError):
                regs.ROM_SW_CNTL.write(0)
                regs.ROM_SW_STATUS.write(0)
            raise

    def _perform(self, opcode: int, address: int | None, payload: bytes, receive: int, take: bool) -> bytes:
        regs = self._regs
        status_at = self._place(regs.ROM_SW_STATUS)
        control = regs.ROM_SW_CNTL.encode(data_size=receive or len(payload), command_size=0 if address is None else ADDRESS_BYTES, return_data_en=int(receive > 0))
        with self._window.batch() as batch:
            batch.write32(self._place(regs.ROM_SW_COMMAND), regs.ROM_SW_COMMAND.encode(opcode=opcode, address=address or 0))
            for place in range(0, len(payload), 4):
                batch.write32(self._data + place, int.from_bytes(payload[place : place + 4].ljust(4, b"\0"), "big"))  # the first byte leaves first, from the top
            batch.write32(self._place(regs.ROM_SW_CNTL), control)
            batch.read32(self._place(regs.ROM_SW_CNTL))  # pushes the posted writes to the engine
        self._wait_done(opcode, len(payload) + receive)
        with self._window.batch() as batch:
            words = [batch.read32(self._data + place) for place in range(0, receive, 4)] if take else []
            batch.write32(self._place(regs.ROM_SW_CNTL), 0)
            batch.write32(status_at, 0)
            status = batch.read32(status_at)
        self._check_cleared(status.value or 0)
        return b"".join((word.value or 0).to_bytes(4, "little") for word in words)[:receive]

    def _wait_done(self, opcode: int, size: int) -> None:
        status = self._regs.ROM_SW_STATUS

        def read() -> int:
            value = status.read()
            if value == ALL_ONES_32:
                raise self._lost(f"waiting for flash command {opcode:#04x}", "ROM_SW_STATUS")
            return value

        start = self.clock.now()
        try:
            poll(read, lambda value: bool(value & 1), what=f"flash command {opcode:#04x}", within=DONE_LIMIT, typical=self._typical.get(size, 0.0), clock=self.clock)
        except WaitTimeout as error:
            raise EngineStuck(f"the ROM_SW engine did not finish command {opcode:#04x} within {DONE_LIMIT:g} s", read=error.read) from error
        self._typical[size] = (self.clock.now() - start) * LEARNING
