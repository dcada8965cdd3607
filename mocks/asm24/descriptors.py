"""USB descriptors of the bridge's firmwares, as data.

Layouts: USB 3.2 chapter 9, USB Attached SCSI (pipe usage descriptors). Values: what the firmwares show on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICE, CONFIGURATION, STRING, INTERFACE, ENDPOINT, BOS, DEVICE_CAPABILITY = 1, 2, 3, 4, 5, 15, 16
PIPE_USAGE, SS_COMPANION = 0x24, 0x30
LANGUAGES = bytes([4, STRING]) + (0x0409).to_bytes(2, "little")

HIGH, SUPER, SUPER_PLUS = 3, 4, 5
"""speeds, as libusb numbers them"""
MBITS = {HIGH: 480, SUPER: 5000, SUPER_PLUS: 10000}

VENDOR_CLASS = (0xFF, 0xFF, 0xFF)
BULK_ONLY = (0x08, 0x06, 0x50)
UAS = (0x08, 0x06, 0x62)
SELF_POWERED = 0xC0
BURST = 15
STREAMS_32 = 5
"""bits 4:0 of the companion's attributes: 2^5 streams"""


@dataclass(frozen=True)
class Endpoint:
    """One bulk endpoint. pipe: UAS pipe id, 0 for none. streams: exponent of the number of streams."""

    address: int
    pipe: int = 0
    streams: int = 0

    def encode(self, speed: int) -> bytes:
        packet = 512 if speed == HIGH else 1024
        result = bytes([7, ENDPOINT, self.address, 2]) + packet.to_bytes(2, "little") + b"\0"
        if speed != HIGH:
            result += bytes([6, SS_COMPANION, BURST, self.streams, 0, 0])
        if self.pipe:
            result += bytes([4, PIPE_USAGE, self.pipe, 0])
        return result


@dataclass(frozen=True)
class Alternate:
    """One setting of interface 0."""

    kind: tuple[int, int, int]
    endpoints: tuple[Endpoint, ...]

    def encode(self, number: int, speed: int) -> bytes:
        head = bytes([9, INTERFACE, 0, number, len(self.endpoints), *self.kind, 0])
        return head + b"".join(each.encode(speed) for each in self.endpoints)


@dataclass(frozen=True)
class Descriptors:
    """Everything a device says about itself at one speed."""

    vendor: int
    product: int
    release: int
    """bcdDevice"""
    strings: tuple[str, ...]
    """by index, from 1"""
    string_places: tuple[int, int, int]
    """indices of manufacturer, product, serial number"""
    alternates: tuple[Alternate, ...]
    speed: int
    usb_version: int
    bos_capabilities: tuple[bytes, ...] = ()

    @property
    def device(self) -> bytes:
        ep0 = 64 if self.speed == HIGH else 9
        numbers = [self.vendor, self.product, self.release]
        head = bytes([18, DEVICE]) + self.usb_version.to_bytes(2, "little") + bytes([0, 0, 0, ep0])
        return head + b"".join(each.to_bytes(2, "little") for each in numbers) + bytes([*self.string_places, 1])

    @property
    def configuration(self) -> bytes:
        body = b"".join(each.encode(number, self.speed) for number, each in enumerate(self.alternates))
        return bytes([9, CONFIGURATION]) + (9 + len(body)).to_bytes(2, "little") + bytes([1, 1, 0, SELF_POWERED, 0]) + body

    @property
    def bos(self) -> bytes | None:
        if not self.bos_capabilities:
            return None
        body = b"".join(self.bos_capabilities)
        return bytes([5, BOS]) + (5 + len(body)).to_bytes(2, "little") + bytes([len(self.bos_capabilities)]) + body

    def string(self, index: int) -> bytes | None:
        if index == 0:
            return LANGUAGES if self.strings else None
        if not 1 <= index <= len(self.strings):
            return None
        text = self.strings[index - 1].encode("utf-16-le")
        return bytes([2 + len(text), STRING]) + text

    def get(self, kind: int, index: int) -> bytes | None:
        """A descriptor by type and index, None for one there is not."""
        if kind == STRING:
            return self.string(index)
        known = {DEVICE: self.device, CONFIGURATION: self.configuration, BOS: self.bos}
        return known.get(kind) if index == 0 else None

    def endpoints(self, alternate: int) -> tuple[Endpoint, ...]:
        return self.alternates[alternate].endpoints


BULK_PAIR = (Endpoint(0x81), Endpoint(0x02))
USB2_EXTENSION = bytes([7, DEVICE_CAPABILITY, 0x02]) + (0x02).to_bytes(4, "little")
"""link power management"""
SUPER_SPEED = bytes([10, DEVICE_CAPABILITY, 0x03, 0x00]) + (0x000E).to_bytes(2, "little") + bytes([3, 0x0A, 0xFF, 0x07])
"""full, high and super speed; fully functional from super speed on"""
SUPER_SPEED_PLUS = bytes([20, DEVICE_CAPABILITY, 0x0A, 0]) + b"".join(each.to_bytes(4, "little") for each in (1, 0x1100, 0x000A4030, 0x000A40B0))
"""one lane of 10 Gbit/s each way"""


def _uas(streams: int) -> tuple[Endpoint, ...]:
    return (Endpoint(0x04, 1), Endpoint(0x83, 2, streams), Endpoint(0x81, 3, streams), Endpoint(0x02, 4, streams))


def custom(vendor: int, product_id: int, product: str, serial: str, speed: int) -> Descriptors:
    """The open firmware (Protocol C)."""
    if speed == HIGH:
        alternates: tuple[Alternate, ...] = (Alternate(VENDOR_CLASS, (*BULK_PAIR, Endpoint(0x83), Endpoint(0x04))),)
    else:
        four = (Endpoint(0x81, 3, STREAMS_32), Endpoint(0x02, 4, STREAMS_32), Endpoint(0x83, 2, STREAMS_32), Endpoint(0x04, 1))
        alternates = (Alternate(VENDOR_CLASS, BULK_PAIR), Alternate(VENDOR_CLASS, four))
    version = 0x0200 if speed == HIGH else 0x0320
    capabilities = () if speed == HIGH else (USB2_EXTENSION, SUPER_SPEED)
    return Descriptors(vendor, product_id, 0x0001, ("tiny", product, serial), (1, 2, 3), alternates, speed, version, capabilities)


def stock(vendor: int, product_id: int, release: int, strings: tuple[str, str, str], speed: int) -> Descriptors:
    """ASMedia's firmware (Protocol S): BOT, and UAS as alternate setting 1. strings: manufacturer, product, serial."""
    alternates = (Alternate(BULK_ONLY, BULK_PAIR), Alternate(UAS, _uas(0 if speed == HIGH else STREAMS_32)))
    version = 0x0210 if speed == HIGH else 0x0320
    return Descriptors(vendor, product_id, release, strings, (1, 2, 3), alternates, speed, version, (USB2_EXTENSION, SUPER_SPEED, SUPER_SPEED_PLUS))


def rom(vendor: int, product_id: int, speed: int) -> Descriptors:
    """The mask ROM's loader: BOT only."""
    version = 0x0210 if speed == HIGH else 0x0320
    strings = ("0" * 20, "ASMedia", "AS2462")
    return Descriptors(vendor, product_id, 0x0001, strings, (2, 3, 1), (Alternate(BULK_ONLY, BULK_PAIR),), speed, version, (USB2_EXTENSION, SUPER_SPEED, SUPER_SPEED_PLUS))


def boot_stub(vendor: int, product_id: int) -> Descriptors:
    """The open firmware's boot stub: control endpoint only, USB 2.00 device descriptor, no strings."""
    return Descriptors(vendor, product_id, 0x0001, (), (0, 0, 0), (Alternate(VENDOR_CLASS, ()),), HIGH, 0x0200)
