"""Power controller (SMU): messages, clocks, power limit, metrics, mode-1 reset.

A message: clear the response register, write the argument, write the message, wait for the response, read the argument register
when a result is due. Sources: public amdgpu code (smu_cmn, smu_v13_0), layouts/smu.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drivers.amd.layouts import smu as layout
from drivers.amd.layouts.smu import DEBUG_MAILBOX, MAIN_MAILBOX, Clock, Mailbox, Response
from hw.errors import SmuError, WaitTimeout
from hw.regs import Register

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

log = logging.getLogger(__name__)

MESSAGE_WITHIN = 10.0
ALIVE_WITHIN = 0.1
LIMIT_WITHIN = 0.02
"""limit for setting a clock, which need not succeed"""
TYPICAL_MESSAGE = 150e-6
TYPICAL = {"EnableAllSmuFeatures": 40e-3, "TransferTableSmu2Dram": 0.5e-3}
"""seconds that a message usually takes, where it is not TYPICAL_MESSAGE"""
BUSY_PAUSE = 1e-3
SHORTEST_TRY = 5e-3
"""an exchange gets at least this much time, however often the controller was busy before"""

PINNED_CLOCKS = (Clock.UCLK, Clock.FCLK, Clock.SOCCLK, Clock.GFXCLK)
HIGHEST = -1
LOWEST = 0


class Smu:
    """The power controller of one GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        version = dev.ip.version("MP1")
        self._messages = {MAIN_MAILBOX: layout.messages(version), DEBUG_MAILBOX: layout.messages(version, "debug")}
        self._metrics = layout.metrics(version)
        self._guard = dev.pci.guard("smu")
        """held from the first register of a message to the last of its answer: a monitor in another process sends messages too"""
        self._levels: dict[Clock, list[int]] = {}

    def send(self, message: str, argument: int = 0, *, within: float = MESSAGE_WITHIN, mailbox: Mailbox = MAIN_MAILBOX, result: bool = False) -> int:
        """Send a message by name; the result when one is due, else 0. A busy answer is tried again within the limit.

        Raises SmuError naming message, argument and response.
        """
        number = self._messages[mailbox][message]
        deadline = self.dev.clock.now() + within
        while True:
            with self._guard:
                response = self._exchange(message, number, argument, mailbox, max(deadline - self.dev.clock.now(), SHORTEST_TRY))
                if response == Response.OK:
                    return self._register(mailbox.argument).read() if result else 0
            if response != Response.REJECTED_BUSY or self.dev.clock.now() >= deadline:
                raise self._failure(message, number, argument, response)
            self.dev.clock.sleep(BUSY_PAUSE)

    def alive(self) -> bool:
        """Does the controller answer messages? A short question with a short limit. Raises BusLost."""
        try:
            self.send("GetSmuVersion", within=ALIVE_WITHIN)
        except SmuError:
            return self._register(MAIN_MAILBOX.response).read() != Response.IN_PROGRESS
        return True

    def version(self) -> int:
        """Firmware version: program 31:24, major 23:16, minor 15:8, debug 7:0."""
        return self.send("GetSmuVersion", result=True)

    def init(self) -> None:
        """Tell the controller where tables go, then let it manage everything it can."""
        table = self.dev.mc_base + self.dev.boot_memory.smu_table
        self.send("SetDriverDramAddrHigh", table >> 32)
        self.send("SetDriverDramAddrLow", table & 0xFFFFFFFF)
        self.send("EnableAllSmuFeatures")

    def levels(self, clock: Clock) -> list[int]:
        """Frequencies of a clock in MHz, ascending; for a fine-grained clock its two ends. Empty when the chip has not got it."""
        known = self._levels.get(clock)
        if known is None:
            count = self.send("GetDpmFreqByIndex", clock << 16 | layout.COUNT_INDEX, result=True) & ~layout.FINE_GRAINED
            if count > layout.MAX_LEVELS:
                raise SmuError(f"{clock.name} has {count} levels", read=f"GetDpmFreqByIndex answered {count:#x}", means="the controller echoes its argument instead of answering")
            known = [self.send("GetDpmFreqByIndex", clock << 16 | index, result=True) & ~layout.FINE_GRAINED for index in range(count)]
            self._levels[clock] = known
        return known

    def pin_clocks(self, level: int) -> None:
        """Hold every clock at one of its levels: HIGHEST while running, LOWEST when done."""
        wanted = {clock: self._end(clock, level) for clock in PINNED_CLOCKS}
        for clock, frequency in wanted.items():
            if frequency:
                self._limit(clock, frequency, frequency)

    def _end(self, clock: Clock, level: int) -> int:
        """The highest or lowest frequency of a clock, MHz; 0 when the chip has not got it. Where a message is dear, one instead of one a level."""
        if self.dev.reads_are_dear and clock not in self._levels:
            return self.send("GetMaxDpmFreq" if level == HIGHEST else "GetMinDpmFreq", clock << 16, result=True) & ~layout.FINE_GRAINED
        levels = self.levels(clock)
        return levels[level] if levels else 0

    def release_clocks(self) -> None:
        """Let the controller choose every clock."""
        for clock in PINNED_CLOCKS:
            self._limit(clock, 0, layout.SOFT_MAX_RELEASED)

    def set_power_limit(self, watts: float) -> None:
        """Limit the board's power, whole watts, at least 1. Raises SmuError when the board does not allow that much."""
        self.send("SetPptLimit", max(round(watts), 1))

    def highest(self, clock: Clock, *, within: float = MESSAGE_WITHIN) -> int:
        """The highest frequency of a clock, MHz."""
        return self.send("GetMaxDpmFreq", clock << 16, within=within, result=True) & ~layout.FINE_GRAINED

    def metrics(self, *, within: float = MESSAGE_WITHIN) -> dict[str, int | tuple[int, ...]]:
        """One sample of the metrics table, fields as in layouts/smu.py."""
        with self._guard:  # the table in memory is everybody's, too
            self.send("TransferTableSmu2Dram", layout.TableId.SMU_METRICS, within=within)
            return self._metrics.decode(self.dev.vram_read(self.dev.boot_memory.smu_table, self._metrics.size))

    def request_mode1_reset(self) -> None:
        """Ask for a reset of the whole chip. The answer may be lost with it. Raises SmuError when the controller does not take it."""
        self.send("Mode1Reset", mailbox=DEBUG_MAILBOX, within=1.0)

    def _limit(self, clock: Clock, low: int, high: int) -> None:
        for message, frequency in (("SetSoftMinByFreq", low), ("SetSoftMaxByFreq", high)):
            try:
                self.send(message, clock << 16 | frequency, within=LIMIT_WITHIN)
            except SmuError as error:
                log.warning("%s stays as it is: %s", clock.name, error)

    def _register(self, number: int) -> Register:
        return self.dev.mp1[f"MP1_SMN_C2PMSG_{number}"]

    def _exchange(self, message: str, number: int, argument: int, mailbox: Mailbox, within: float) -> int:
        response = self._register(mailbox.response)
        with self.dev.space.batch():
            response.write(Response.IN_PROGRESS)
            self._register(mailbox.argument).write(argument)
            self._register(mailbox.message).write(number)
        try:
            typical = TYPICAL.get(message, TYPICAL_MESSAGE)
            return self.dev.wait(response, lambda value: value != Response.IN_PROGRESS, what=f"SMU answer to {message}", within=within, typical=typical)
        except WaitTimeout as error:
            raise SmuError(
                f"the power controller does not answer {message} ({number:#x}), argument {argument:#x}",
                read=error.read,
                means="its firmware is not running: not loaded yet, or it crashed",
            ) from error

    def _failure(self, message: str, number: int, argument: int, response: int) -> SmuError:
        try:
            text = layout.RESPONSE_TEXT[Response(response)]
        except ValueError:
            text = "not a known response"
        means = {
            Response.UNKNOWN_COMMAND: "its firmware does not know this message: firmware of another chip or release",
            Response.REJECTED_PREREQUISITE: "something that must come before was left out or failed",
            Response.REJECTED_BUSY: "it was busy for the whole time limit: another process talks to it, or it hangs",
        }.get(response, "")  # type: ignore[call-overload]
        return SmuError(f"SMU message {message} ({number:#x}), argument {argument:#x}: {text}", read=f"response {response:#x}", means=means)
