"""What can go wrong with a flash. Refusals change nothing."""

from __future__ import annotations

from hw.errors import DeviceError, Refused


class FlashError(DeviceError):
    """A flash, or the way to it, does not do what was asked of it."""

    code = "flash"


class EngineStuck(FlashError):
    """The flash controller does not do what it is told."""

    code = "rom-engine-stuck"
    default_means = "the controller hangs in a transaction, or something else on the card uses the flash at the same time"
    default_remedy = "power-cycle the card and try again; `tghw flash info` shows what answers"


class EngineGated(Refused):
    """The flash controller is closed to the host."""

    code = "rom-engine-gated"
    default_means = "the card's security processor has booted from its flash and keeps the controller for itself: that is so on every healthy card"
    default_remedy = "reading works by --method rom-index; a complete new image goes in by `tghw flash ifwi stream`"


class RomUnreachable(FlashError):
    """The ROM controller's registers are not there."""

    code = "rom-unreachable"
    default_means = "this card does not let the host at its ROM controller; the expansion ROM is not a copy of the flash, so it is no way around"
    default_remedy = "`tghw flash mailbox probe` shows whether the security processor takes images instead"


class ApertureMirrored(Refused):
    """Both halves of the aperture show the same."""

    code = "rom-aperture-mirrored"
    default_means = "the aperture shows the first half of the flash twice: what was read is no copy of the flash, and was not kept"
    default_remedy = "power-cycle the card and read again before anything else has touched it"


class ApertureByteOrder(Refused):
    """The aperture's registers do not take values as known."""

    code = "rom-byte-order"
    default_means = "a test value came back neither as it was written nor byte-swapped, so the next write could do anything"
    default_remedy = "power-cycle the card and look again with `tghw flash info`"


class ChipSilent(FlashError):
    code = "flash-silent"
    default_means = "no flash chip answers: it has no power, is not connected, or the SPI clock is too fast for the wiring"
    default_remedy = "power-cycle the card; with an external clip attached, take it off"


class ChipUnknown(Refused):
    """The chip cannot be identified, so its size and commands are not known."""

    code = "flash-unknown-chip"
    default_means = "its id is not in the table and it has no SFDP description of itself; with guessed commands it could be damaged"
    default_remedy = "add its data sheet's values as a row to firmware/spi/chips.csv"


class ChipProtected(Refused):
    """The chip's own write protection covers what would be written."""

    code = "flash-protected"
    default_means = "erase and program commands to a protected range are ignored by the chip"


class ChipBusy(FlashError):
    code = "flash-busy"
    default_means = "the chip stays busy: its supply is unstable, or it is worn out"
    default_remedy = "power-cycle the card, then run the same command again"


class WriteEnableFailed(FlashError):
    code = "flash-write-enable"
    default_means = "the chip did not take the write enable command: it is write protected, or the bus does not carry commands"
    default_remedy = "look at `tghw flash info`: status registers and protection"


class VerifyFailed(FlashError):
    """What was read is not what should be there. `address` is the first difference."""

    code = "flash-verify"
    default_means = "the flash does not hold what it should"
    default_remedy = "run the same command again; if the same address fails again, the chip is worn out"

    def __init__(self, what: str, *, address: int, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.address = address


class ReadUnstable(FlashError):
    code = "flash-read-unstable"
    default_means = "the same bytes read differently twice: a bad connection, too fast a clock, or cells left half programmed by a power cut"
    default_remedy = "try again; if it stays, write the affected sectors anew (their content is not trustworthy)"


class NotConfirmed(Refused):
    """A flash would be changed, and nobody agreed to that."""

    code = "not-confirmed"
    default_means = "nothing was changed; what would be done is shown above"
    default_remedy = "give --yes to do it"


class NoBackup(Refused):
    """No way back."""

    code = "no-backup"
    default_means = "there is no verified dump of this device's flash, so what gets overwritten could not be restored"
    default_remedy = "make one with `tghw flash dump FILE`; or give --no-backup to go without"


class ImageRefused(Refused):
    """A file or a dump that is not what it would have to be."""

    code = "image-refused"


class StatusUnchanged(FlashError):
    """The chip's protection bits do not change."""

    code = "flash-status-locked"
    default_means = "the status registers are locked by their SRP bits or by the chip's write protect pin"
    default_remedy = "SRP1 locks until the next power cycle: power-cycle the card; a low write protect pin needs the board changed"
