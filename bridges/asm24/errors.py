"""What goes wrong between this host and a device behind an ASM24xx bridge: on USB, in the bridge, on the PCIe link, in a PCIe request."""

from __future__ import annotations

from hw.errors import EXIT_REFUSED, BusError, BusLost, DeviceBusy, NothingFound, PermissionMissing, TghwError, UsageError


class BridgeNotFound(NothingFound):
    code = "bridge-not-found"
    default_means = "no USB device with the ids of an ASM24xx bridge is attached, or its cable or power is missing"
    default_remedy = "check cable and power supply; `lsusb` must show 174c:246x, add1:0001 or 3801:0001; without hardware: `tghw --mock navi31-asm24 probe`"


class BridgePermission(PermissionMissing):
    code = "bridge-permission"
    default_means = "the kernel lets only root open this USB device"


class BridgeBusy(DeviceBusy):
    code = "bridge-busy"
    default_means = "another process has claimed the bridge's USB interface"


class BridgeError(BusError):
    """The bridge, or the USB connection to it, failed."""

    code = "bridge"
    default_remedy = "unplug the bridge and its power, wait a few seconds, plug both in again"


class BridgeLost(BusLost):
    """The bridge is no longer on the USB."""

    code = "bridge-lost"
    default_means = "the USB cable was pulled, the bridge lost its power, or it restarted"
    default_remedy = "check cable and power, then open the device again; `tghw probe --transport usb` shows whether it is back"


class BridgeWedged(BridgeError):
    """The processor of the bridge answers nothing any more."""

    code = "bridge-wedged"
    default_means = "the bridge's processor hangs in an interrupt handler: it streamed to a dead link, or got an oversized stream"
    default_remedy = "power-cycle the bridge (a reset of the USB port does not help)"


class BridgeProtocolMismatch(BridgeError):
    code = "bridge-protocol"
    default_means = "the bridge runs another firmware than the one asked for"
    default_remedy = "`tghw bridge info` tells which; leave the protocol to the product string, or flash the firmware you want"


class UsbTransferFailed(BridgeError):
    """A USB transfer ended with an error that is neither time-out nor stall."""

    code = "usb-transfer"
    default_means = "bits were lost on the cable, or the device was reset meanwhile"
    default_remedy = "try again; if it stays, try another cable or port"


class UsbTimeout(BridgeError):
    code = "usb-timeout"
    default_means = "the bridge did not take or give data in time: the endpoint is not armed, or its processor hangs"


class EndpointStall(BridgeError):
    """The bridge refused a request (endpoint 0) or halted a bulk endpoint."""

    code = "usb-stall"
    default_means = "this firmware does not know the request, or rejects it in its present state"


class BulkShort(BridgeError):
    """A bulk transfer moved another number of bytes than was agreed."""

    code = "usb-short"
    default_means = "the bridge gave up in the middle, or sends something left over from an earlier transfer"


class CswError(BridgeError):
    """A SCSI command to the stock firmware was not carried out."""

    code = "bridge-command"
    default_means = "the stock firmware rejects the command, or the exchange of commands got out of step"


class LinkDown(BusLost):
    """The PCIe link behind the bridge is not up. `ltssm`: state of its link state machine."""

    code = "pcie-link-down"
    default_means = "nothing is in the slot, or it has no power"
    default_remedy = "check the power supply of the card (12 V) and its seat, then `tghw bridge reset`"

    def __init__(self, ltssm: int, *, what: str = "", read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what or "the PCIe link behind the bridge is down", read=read or f"link state {ltssm:#04x}", means=means or _LINK_STATES.get(ltssm, ""), remedy=remedy)
        self.ltssm = ltssm


_LINK_STATES = {
    0x00: "no receiver is detected: the slot is empty, the card has no 12 V, or the slot's power supply failed",
    0x01: "a receiver is detected and does not train: the card is without power, or still starting",
    0x4C: "the lanes were enabled in the wrong order, which old open firmware of the bridge does: update it",
}


class TlpError(BusLost):
    """A PCIe request that was not completed with success. `address`: bus address, or bus/device/function/register of a config request."""

    code = "tlp"

    def __init__(self, what: str, *, address: int = 0, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.address = address


class TlpTimeout(TlpError):
    code = "tlp-timeout"
    default_means = "no completion came back: the link is down, the device is off or hangs, or it is in reset"
    default_remedy = "check the card's power; `tghw bridge reset` brings the link up anew"


class TlpUnsupportedRequest(TlpError):
    code = "tlp-unsupported-request"
    default_means = "no function claims this address: a bus number or bridge window is wrong, memory decoding is off, or the device is absent"
    default_remedy = "open the device again, which assigns addresses anew"


class TlpConfigRetry(TlpError):
    code = "tlp-config-retry"
    default_means = "the device was reset a moment ago and still initialises"
    default_remedy = "wait a second and try again"


class TlpCompleterAbort(TlpError):
    code = "tlp-completer-abort"
    default_means = "the device took the request and refuses it: a register that does not exist in this state, or an internal error"
    default_remedy = "reset the device"


class TlpReserved(TlpError):
    """A completion with a status that the specification does not define, or of a kind that does not fit the request."""

    code = "tlp-reserved"
    default_means = "the bridge's completion registers hold something that no device sends: a stale or damaged completion"
    default_remedy = "try again; if it stays, power-cycle the bridge"


class EndpointMissing(BusLost):
    """The walk over the bridges found no device at its end."""

    code = "pcie-no-endpoint"
    default_means = "the card's own switch or its GPU does not answer: it is powered a moment ago, or broken"
    default_remedy = "wait a few seconds and try again, then power-cycle the card"


class BarAssignment(BusError):
    code = "bar-assignment"
    default_means = "a BAR does not hold the address that was written: the function is not in D0, or another function answered"
    default_remedy = "power-cycle the card"


# --- the bridge's own flash -------------------------------------------------------------------------------------------


class FlashError(BridgeError):
    """Writing or reading the bridge's own flash chip failed."""

    code = "bridge-flash"
    default_remedy = "do not power the bridge off; write again. If it does not start any more: hold its boot strap, its ROM loader takes a new image"


class FlashProtected(FlashError):
    code = "bridge-flash-protected"
    default_means = "the block protection bits of the flash chip do not clear: its write-protect pin is tied low"


class FlashBusyTimeout(FlashError):
    code = "bridge-flash-busy"
    default_means = "the flash chip does not finish an erase or write: it lost power or is worn out"


class FlashVerify(FlashError):
    """What was read back differs from what was written. `offset`: first byte that differs."""

    code = "bridge-flash-verify"

    def __init__(self, what: str, *, offset: int, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.offset = offset


class FlashCommandFailed(FlashError):
    code = "bridge-flash-command"
    default_means = "the firmware of the bridge refused a step of the update"


class DfuIncompatible(FlashError):
    """The boot stub does not take this image. Nothing was changed."""

    code = "bridge-dfu"
    exit_status = EXIT_REFUSED
    default_means = "drafts of the boot stub and of its images exist that do not fit each other"
    default_remedy = "build the application for the boot stub that is on the board"


class ImageInvalid(UsageError):
    """A file that is no firmware for this bridge. Nothing was changed."""

    code = "bridge-image"
    exit_status = EXIT_REFUSED
    default_means = "the file is damaged, cut short, or made for another device"
    default_remedy = "use an image that was built for the ASM2464PD"


class BridgeFlashRefused(TghwError):
    """Not written, for safety; nothing was changed."""

    code = "bridge-flash-refused"
    exit_status = EXIT_REFUSED
