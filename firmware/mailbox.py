"""The PSP's flash mailbox: status queries, and streaming an IFWI image to the security processor item by item.

The early mailbox takes updates between the card's own boot and the secure OS: no driver may have started the secure OS before. Firmware
says which item it wants, and chooses where it goes. The live mailbox (secure OS running) stays disabled, see LIVE_DISABLED.

Sources: the flash tools of a GPU project; Linux amdgpu psp_v13_0 for the registers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from firmware.ifwi import Ifwi
from firmware.mailbox_layout import (
    COMMAND_SHIFT,
    ERROR_MASK,
    ERRORS,
    GATED,
    ITEM_MASK,
    LAST_PHASE,
    LONGEST_ITEM,
    MOST_ITEMS,
    PROBE,
    READY,
    RING,
    SIZE_SHIFT,
    EarlyCommand,
)
from firmware.spi.rom_sw import bus_lost
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BusError, DeviceError, NotSupported, Refused, WaitTimeout
from hw.mmio import ALL_ONES_32
from hw.poll import poll
from hw.regs import Register
from hw.signals import guarded_signals, uninterrupted

log = logging.getLogger(__name__)

ANSWER_LIMIT = 10.0
END_LIMIT = 60.0
"""s; END writes the flash"""
CLOSE_LIMIT = 10.0
"""s for the END that closes a broken transfer"""

LIVE_DISABLED = (
    "a live update (secure OS running, image in video memory) was seen to fail with status 0xC (write to SPI) on a stock image, "
    "after the firmware had already left a cookie in the flash"
)


class MailboxError(DeviceError):
    """The security processor answered a flash command with an error. `error` is its code."""

    code = "psp-mailbox"
    default_remedy = "power-cycle the card, do not boot it, and try again"

    def __init__(self, what: str, *, error: int = 0, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.error = error


class MailboxSilent(MailboxError):
    code = "psp-mailbox-silent"
    default_means = "the security processor does not listen on its flash mailbox: it has stalled before getting there, or it hangs"
    default_remedy = "with an empty or damaged flash use --method rom-sw (`tghw flash write`); otherwise power-cycle the card"


class MailboxGated(Refused):
    """Flash updates are closed because the secure OS runs."""

    code = "psp-mailbox-gated"
    default_means = "the secure OS runs; from then on the security processor takes no update"
    default_remedy = "power-cycle the card, keep every driver off it, and stream the image before anything boots it"


@dataclass(frozen=True)
class Answer:
    """What one command gave."""

    command: EarlyCommand
    error: int
    value: int

    @property
    def error_text(self) -> str:
        return "" if self.error == 0 else describe_error(self.error)


def describe_error(error: int) -> str:
    """An error code in words."""
    return f"{error:#x} ({ERRORS.get(error, 'unknown error')})"


@dataclass
class StreamReport:
    """What a stream did."""

    items: list[int] = field(default_factory=list)
    """item numbers in the order in which the firmware asked for them"""
    bytes_sent: int = 0
    seconds: float = 0.0
    last_state: int = 0
    """what GET_TRANSFER_TYPE answered last: phase << 8 | item"""


class EarlyMailbox:
    """The mailbox of one card. Registers are those named in firmware/mailbox_layout.py."""

    def __init__(self, command: Register, data: Register, doorbell: Register, clock: Clock = HOST_CLOCK, *, lost: Callable[[str, str], BusError] = bus_lost) -> None:
        self.clock = clock
        self._command = command
        self._data = data
        self._doorbell = doorbell
        self._window = command.space.window
        self._lost = lost

    def ask(self, command: EarlyCommand, data: int | None = None, *, within: float = ANSWER_LIMIT) -> Answer:
        """One command, whatever it answers. Raises MailboxSilent, BusLost."""
        with uninterrupted():
            self._wait_ready(f"{command.name}: waiting for the mailbox", within)
            with self._window.batch() as batch:
                if data is not None:
                    batch.write32(self._data.index << 2, data)
                batch.write32(self._command.index << 2, command << COMMAND_SHIFT)
                batch.write32(self._doorbell.index << 2, RING)
            status = self._wait_ready(f"{command.name}: waiting for its end", within)
            return Answer(command, status & ERROR_MASK, self._data.read() if command in PROBE else 0)

    def _wait_ready(self, what: str, within: float) -> int:
        def read() -> int:
            value = self._command.read()
            if value == ALL_ONES_32:
                raise self._lost(what, self._command.name)
            return value

        try:
            return poll(read, lambda value: bool(value & READY), what=what, within=within, clock=self.clock)
        except WaitTimeout as error:
            raise MailboxSilent(what, read=error.read) from error

    def command(self, command: EarlyCommand, data: int | None = None, *, within: float = ANSWER_LIMIT) -> int:
        """One command that must succeed; returns its response. Raises MailboxError, MailboxGated, MailboxSilent, BusLost."""
        answer = self.ask(command, data, within=within)
        if answer.error == 0:
            return answer.value
        if command == EarlyCommand.GET_TRANSFER_TYPE and answer.error == GATED:
            raise MailboxGated("flash updates through the security processor", read=f"{command.name} answers {describe_error(answer.error)}")
        shown = f"{command.name} answers {describe_error(answer.error)}" + (f", data {data:#010x}" if data is not None else "")
        raise MailboxError("the security processor refused a flash command", error=answer.error, read=shown)

    def probe(self) -> list[Answer]:
        """Four questions that start nothing: boot partition, memory state, flash model, wanted item. Raises MailboxSilent, BusLost."""
        return [self.ask(command) for command in PROBE]

    # --- streaming ---

    def stream(self, image: Ifwi, progress: Callable[[int, int, int], None] = lambda item, done, total: None) -> StreamReport:
        """Give the firmware every item it asks for. progress: item, bytes sent of it, its size.

        The image must be checked before: Ifwi.problems() is empty. Raises MailboxGated, MailboxError, MailboxSilent, IfwiInvalid, BusLost.
        """
        report = StreamReport()
        start = self.clock.now()
        with guarded_signals():
            for _ in range(MOST_ITEMS):
                report.last_state = state = self.command(EarlyCommand.GET_TRANSFER_TYPE)
                number, phase = state & ITEM_MASK, state >> SIZE_SHIFT
                item = image.item(number)
                self._send(number, image.content(item), progress)
                report.items.append(number)
                report.bytes_sent += item.size
                report.seconds = self.clock.now() - start
                if phase == LAST_PHASE:
                    return report
        raise MailboxError(
            f"the firmware asked for {MOST_ITEMS} items and did not come to an end",
            read=f"last state {report.last_state:#06x}",
            means="the update was not completed; which parts of the flash were written is not known",
        )

    def _send(self, number: int, content: bytes, progress: Callable[[int, int, int], None]) -> None:
        """One item: START, its dwords, END. A transfer that breaks in between is closed once, so that the firmware does not wait for the rest."""
        size = len(content)
        if not 0 < size <= LONGEST_ITEM or size % 4:
            raise Refused(f"item {number:#04x} of {size:#x} bytes", means="the mailbox takes whole dwords, at least one, up to 16 MiB")
        self.command(EarlyCommand.START_TRANSFER, size << SIZE_SHIFT | number)
        acknowledged = 0
        try:
            for place in range(0, size, 4):
                self.command(EarlyCommand.DATA_TRANSFER, int.from_bytes(content[place : place + 4], "little"))
                acknowledged = place + 4
                if acknowledged % 1024 == 0 or acknowledged == size:
                    progress(number, acknowledged, size)
        except BaseException:
            if acknowledged < size:
                self._close(number, acknowledged)
            raise
        with uninterrupted():
            self.command(EarlyCommand.END_TRANSFER, size << SIZE_SHIFT | number, within=END_LIMIT)

    def _close(self, number: int, acknowledged: int) -> None:
        """Tell the firmware that no more comes. Its own errors do not matter: the one that led here is the one to report."""
        try:
            self.ask(EarlyCommand.END_TRANSFER, acknowledged << SIZE_SHIFT | number, within=CLOSE_LIMIT)
        except (DeviceError, BusError) as error:
            log.info("closing the broken transfer of item %#04x: %s", number, error)


def live_update(image: bytes) -> None:
    """Update through the live mailbox: not done. Raises NotSupported with the reason."""
    raise NotSupported(
        f"a live update of {len(image):#x} bytes",
        means=LIVE_DISABLED,
        remedy="stream the image through the early mailbox: `tghw flash ifwi stream FILE`, before anything boots the card",
    )
