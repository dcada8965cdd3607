"""The USB side: finding bridges, taking one, moving bytes. Everything goes through pyusb; a simulated bridge brings its own pyusb backend.

A transfer that failed is never repeated here: only who asked for it knows whether that is safe. Errors of libusb become typed ones.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import usb.core
import usb.util

from bridges.asm24.errors import BridgeBusy, BridgeLost, BridgePermission, BridgeWedged, BulkShort, EndpointStall, UsbTimeout, UsbTransferFailed
from bridges.asm24.ids import UDEV_FILE, identity_of, udev_rule
from bridges.asm24.streams import DIRECTION_IN, Result, Streams, Transfer
from hw.clock import HOST_CLOCK, Clock
from hw.errors import NotSupported, TghwError
from hw.mmio import BytesLike
from hw.poll import poll

log = logging.getLogger(__name__)

INTERFACE = 0
CONFIGURATION = 1
BULK_OUT = 0x02
BULK_IN = 0x81
STATUS_IN = 0x83
COMMAND_OUT = 0x04
"""endpoints; the last two exist in the UAS setting only"""

STANDARD_IN = 0x80
GET_DESCRIPTOR = 6
STRING_TYPE = 3
ENGLISH = 0x0409
STRING_LIMIT = 255
VENDOR_OUT = 0x40
VENDOR_IN = 0xC0
TIMEOUT_MS = 1000
RESET_WITHIN = 5.0
"""seconds until a device is back after a reset of its port"""
LEAVES_WITHIN = 2.0
DRAIN_MS = 100

SPEEDS = {1: 1.5, 2: 12, 3: 480, 4: 5000, 5: 10000, 6: 20000}
"""libusb speed code -> Mb/s"""
HIGH_SPEED = 480

_IO, _ACCESS, _NO_DEVICE, _NOT_FOUND, _BUSY, _TIMEOUT, _OVERFLOW, _PIPE, _INTERRUPTED, _UNSUPPORTED = -1, -3, -4, -5, -6, -7, -8, -9, -10, -12
_BY_ERRNO = {
    errno.EIO: _IO,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENODEV: _NO_DEVICE,
    errno.ESHUTDOWN: _NO_DEVICE,
    errno.ENOENT: _NOT_FOUND,
    errno.EBUSY: _BUSY,
    errno.ETIMEDOUT: _TIMEOUT,
    errno.EOVERFLOW: _OVERFLOW,
    errno.EPIPE: _PIPE,
    errno.EINTR: _INTERRUPTED,
}


@dataclass
class TransferCounts:
    """USB transfers by kind and bytes of payload, since the device was opened."""

    control_out: int = 0
    control_in: int = 0
    bulk_out: int = 0
    bulk_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    @property
    def transfers(self) -> int:
        """Each costs a round trip to the bridge."""
        return self.control_out + self.control_in + self.bulk_out + self.bulk_in

    def to_dict(self) -> dict[str, int]:
        """Stable keys for --json."""
        return {"transfers": self.transfers} | {each.name: getattr(self, each.name) for each in fields(self)}

    def copy(self) -> TransferCounts:
        return TransferCounts(**{each.name: getattr(self, each.name) for each in fields(self)})

    def since(self, before: TransferCounts) -> TransferCounts:
        """What was added after `before`."""
        return TransferCounts(**{each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)})


@dataclass(frozen=True)
class UsbBridge:
    """One attached bridge as its descriptors show it; nothing was sent to it."""

    device: Any
    vendor: int
    product: int
    address: str
    """"usb:BUS-PORT.PORT": stays the same when the device starts anew on its port"""
    speed: float
    """Mb/s, 0 when the system does not tell"""
    title: str


def system_backend() -> Any:
    """pyusb's backend on this system's libusb, or on the one that comes with libusb-package. Raises NotSupported without any."""
    import usb.backend.libusb1

    backend = usb.backend.libusb1.get_backend()
    if backend is None:
        import libusb_package

        backend = libusb_package.get_libusb1_backend()
    if backend is None:
        raise NotSupported("USB on this system", means="no libusb can be loaded", remedy="install libusb 1.0 (Debian: libusb-1.0-0)")
    return backend


def attached(backend: Any) -> list[UsbBridge]:
    """Every bridge on the USB of this system, by address. Changes nothing."""
    with _errors("listing USB devices"):
        devices = list(usb.core.find(find_all=True, backend=backend) or ())
    found = []
    for device in devices:
        identity = identity_of(device.idVendor, device.idProduct)
        if identity is not None:
            speed = SPEEDS.get(device.speed or 0, 0)
            found.append(UsbBridge(device, device.idVendor, device.idProduct, _address_of(device), speed, identity.title))
    return sorted(found, key=lambda each: each.address)


def _address_of(device: Any) -> str:
    ports = device.port_numbers
    return f"usb:{device.bus}-" + (".".join(map(str, ports)) if ports else f"@{device.address}")


class UsbLink:
    """An open bridge: control and bulk transfers, in order, one at a time."""

    def __init__(self, bridge: UsbBridge, backend: Any, clock: Clock = HOST_CLOCK) -> None:
        self.bridge = bridge
        self.address = bridge.address
        self.clock = clock
        self.counts = TransferCounts()
        self._backend = backend
        self._device: Any = bridge.device
        self._claimed = False
        self._detached = False

    # --- taking and giving back ---

    def read_string(self, index: int) -> str:
        """A string descriptor, "" when the device has none of this number. Raises BridgePermission, BridgeWedged, BridgeLost."""
        if not index:
            return ""
        try:
            with _errors(f"reading string {index} of {self.address}", self.address):
                raw = bytes(self._device.ctrl_transfer(STANDARD_IN, GET_DESCRIPTOR, STRING_TYPE << 8 | index, ENGLISH, STRING_LIMIT, TIMEOUT_MS))
        except UsbTimeout as error:
            raise BridgeWedged(f"{self.address} does not tell its name", read=error.what) from error
        except EndpointStall:
            return ""
        return raw[2 : raw[0]].decode("utf-16-le", "replace") if len(raw) > 2 else ""

    @property
    def product_string(self) -> str:
        return self.read_string(self._device.iProduct)

    @property
    def serial(self) -> str:
        return self.read_string(self._device.iSerialNumber)

    @property
    def manufacturer(self) -> str:
        return self.read_string(self._device.iManufacturer)

    @property
    def is_usb2(self) -> bool:
        """High speed or slower: smaller packets, shorter control transfers."""
        return 0 < self.bridge.speed <= HIGH_SPEED

    def claim(self, alternate: int = 0) -> None:
        """Take interface 0 from the kernel's storage driver, if that has it, and select a setting. Raises BridgeBusy, BridgePermission."""
        if self._detach():
            self.reset_port()  # the ROM loader's bulk pipes work only after one
            self._detach()  # a device that came back as a new one was given to its driver again
        with _errors(f"claiming {self.address}", self.address):
            self._device.set_configuration(CONFIGURATION)
            usb.util.claim_interface(self._device, INTERFACE)
            self._claimed = True
            self._device.set_interface_altsetting(INTERFACE, alternate)

    def _detach(self) -> bool:
        with _errors(f"taking {self.address} from the kernel driver", self.address):
            if not self._kernel_driver_active():
                return False
            self._device.detach_kernel_driver(INTERFACE)
        self._detached = True
        return True

    def has_setting(self, alternate: int) -> bool:
        """Does interface 0 have this alternate setting?"""
        with _errors(f"reading the descriptors of {self.address}", self.address):
            return any(each.bInterfaceNumber == INTERFACE and each.bAlternateSetting == alternate for each in self._device[0])

    def reset_port(self) -> None:
        """Reset the USB port and wait until the device is there again. PCIe is not touched. The interface has to be claimed anew."""
        self._claimed = False
        try:
            with _errors(f"resetting the port of {self.address}", self.address):
                self._device.reset()
        except BridgeLost:
            log.debug("%s comes back as a new device", self.address)
            self.find_again()

    def find_again(self, within: float = RESET_WITHIN) -> None:
        """The device is about to leave the bus, or has: wait for one on the same port that enumerated anew. Raises BridgeLost.

        One that stays as it is for LEAVES_WITHIN seconds never left, and is taken. One that comes back at another speed is on another
        bus, with the same port numbers.
        """
        before, patience = (self._device.bus, self._device.address), self.clock.now() + LEAVES_WITHIN
        port = self.address.partition("-")[2]
        self._dispose()

        def look() -> UsbBridge | None:
            here = [each for each in attached(self._backend) if each.address.partition("-")[2] == port]
            found = next((each for each in here if each.address == self.address), here[0] if here else None)
            stayed = found is not None and (found.device.bus, found.device.address) == before and self.clock.now() < patience
            return None if stayed else found

        try:
            found = poll(look, lambda each: each is not None, what=f"return of {self.address}", within=within, typical=0.1, clock=self.clock)
        except TghwError as error:
            raise BridgeLost(f"{self.address} did not come back", read=str(error)) from error
        assert found is not None
        self.bridge = found
        self._device = found.device

    def close(self) -> None:
        """Release the interface and give it back to the kernel's driver. A device that is gone is closed too. Closing twice is allowed."""
        if self._claimed:
            self._claimed = False
            self._try("releasing", lambda: usb.util.release_interface(self._device, INTERFACE))
        if self._detached:
            self._detached = False
            self._try("giving back to the kernel driver", lambda: self._device.attach_kernel_driver(INTERFACE))
        self._dispose()

    def _try(self, what: str, action: Any) -> None:
        try:
            with _errors(f"{what} {self.address}", self.address):
                action()
        except TghwError as error:
            log.info("%s", error)

    def _dispose(self) -> None:
        self._claimed = False
        usb.util.dispose_resources(self._device)

    def _kernel_driver_active(self) -> bool:
        try:
            return bool(self._device.is_kernel_driver_active(INTERFACE))
        except NotImplementedError:  # systems without drivers to detach
            return False

    # --- transfers ---

    def control_out(self, request: int, value: int, index: int, data: BytesLike = b"", *, timeout_ms: int = TIMEOUT_MS, kind: int = VENDOR_OUT) -> None:
        """One control transfer to the device. Raises UsbTimeout, EndpointStall, BridgeLost, UsbTransferFailed, BulkShort."""
        self.counts.control_out += 1
        self.counts.bytes_out += len(data)
        with _errors(f"control request {request:#04x}, value {value:#06x}, index {index:#06x}", self.address):
            done = self._device.ctrl_transfer(kind, request, value, index, bytes(data), timeout_ms)
        if done != len(data):
            raise BulkShort(f"control request {request:#04x} of {self.address}", read=f"{done} of {len(data)} bytes taken")
        log.debug("OUT %02x %04x %04x %s", request, value, index, _shown(data))

    def control_in(self, request: int, value: int, index: int, length: int, *, timeout_ms: int = TIMEOUT_MS) -> bytes:
        """One control transfer from the device, exactly `length` bytes. Raises as control_out() does."""
        self.counts.control_in += 1
        with _errors(f"control request {request:#04x} for {length} bytes, value {value:#06x}", self.address):
            data = bytes(self._device.ctrl_transfer(VENDOR_IN, request, value, index, length, timeout_ms))
        self.counts.bytes_in += len(data)
        log.debug("IN  %02x %04x %04x %s", request, value, index, _shown(data))
        if len(data) != length:
            raise BulkShort(f"control request {request:#04x} of {self.address}", read=f"{len(data)} of {length} bytes")
        return data

    def bulk_out(self, data: BytesLike, *, endpoint: int = BULK_OUT, timeout_ms: int = TIMEOUT_MS) -> None:
        """One bulk transfer to the device. Raises as control_out() does."""
        self.counts.bulk_out += 1
        self.counts.bytes_out += len(data)
        with _errors(f"bulk transfer of {len(data)} bytes to endpoint {endpoint:#04x}", self.address):
            done = self._device.write(endpoint, data, timeout_ms)
        log.debug("OUT endpoint %02x %s", endpoint, _shown(data))
        if done != len(data):
            raise BulkShort(f"bulk transfer to endpoint {endpoint:#04x} of {self.address}", read=f"{done} of {len(data)} bytes taken")

    def bulk_in(self, length: int, *, endpoint: int = BULK_IN, timeout_ms: int = TIMEOUT_MS, exact: bool = True) -> bytes:
        """One bulk transfer from the device, exactly `length` bytes unless told otherwise. Raises as control_out() does."""
        self.counts.bulk_in += 1
        with _errors(f"bulk transfer of {length} bytes from endpoint {endpoint:#04x}", self.address):
            data: bytes = self._device.read(endpoint, length, timeout_ms).tobytes()
        self.counts.bytes_in += len(data)
        log.debug("IN  endpoint %02x %s", endpoint, _shown(data))
        if exact and len(data) != length:
            raise BulkShort(f"bulk transfer from endpoint {endpoint:#04x} of {self.address}", read=f"{len(data)} of {length} bytes")
        return data

    def clear_halt(self, endpoint: int) -> None:
        """End a stall of a bulk endpoint; the bridge also forgets what it was streaming there."""
        with _errors(f"clearing endpoint {endpoint:#04x}", self.address):
            self._device.clear_halt(endpoint)

    def resynchronise(self) -> None:
        """After a transfer that broke off: both bulk endpoints empty and unarmed."""
        self.clear_halt(BULK_OUT)
        self.clear_halt(BULK_IN)
        try:
            left = self.bulk_in(1024, timeout_ms=DRAIN_MS, exact=False)
            log.info("%d bytes were left over from a broken transfer", len(left))
        except (UsbTimeout, EndpointStall, UsbTransferFailed):
            log.debug("nothing was left over")
        self.clear_halt(BULK_IN)

    # --- bulk streams, for which pyusb has no call ---

    @property
    def backend(self) -> Any:
        return self._backend

    def alloc_streams(self, streams: Streams, count: int, endpoints: Sequence[int]) -> None:
        """Have bulk streams 1..count on these endpoints. Raises NotSupported when there are fewer."""
        with _errors(f"allocating bulk streams of {self.address}", self.address):
            got = streams.alloc_streams(self._open_handle(), count, endpoints)
        if got < count:
            raise NotSupported(f"{count} bulk streams on {self.address}", read=f"{got} allocated", means="this USB controller offers fewer", remedy="use another port")

    def run_streams(self, streams: Streams, transfers: Sequence[Transfer], timeout_ms: int) -> list[Result]:
        """Submit bulk transfers together and wait for all of them."""
        for endpoint, _, payload in transfers:
            if endpoint & DIRECTION_IN:
                self.counts.bulk_in += 1
            elif isinstance(payload, bytes):
                self.counts.bulk_out += 1
                self.counts.bytes_out += len(payload)
        with _errors(f"{len(transfers)} bulk transfers on streams", self.address):
            results = streams.run_streams(self._open_handle(), transfers, timeout_ms)
        self.counts.bytes_in += sum(len(each) for each in results if isinstance(each, bytes))
        log.debug("%d transfers on streams: %s", len(transfers), [_shown(each) if isinstance(each, bytes) else each for each in results])
        return results

    def _open_handle(self) -> Any:
        context = self._device._ctx
        context.managed_open()
        return context.handle


def _shown(data: BytesLike) -> str:
    return bytes(data[:32]).hex() + (f".. {len(data)} bytes" if len(data) > 32 else "")


def _permission_remedy() -> str:
    return f"run as root, or write the following to {UDEV_FILE}, run `udevadm control --reload`, and plug the bridge in again:\n{udev_rule()}"


@contextmanager
def _errors(what: str, address: str = "") -> Iterator[None]:
    """Turns pyusb's errors into those of this toolkit."""
    try:
        yield
    except usb.core.USBError as error:
        raise translate(error, what, address) from error


def translate(error: usb.core.USBError, what: str, address: str = "") -> TghwError:
    """The typed error for one of pyusb's."""
    known = error.backend_error_code
    code = known if isinstance(known, int) and known < 0 else _BY_ERRNO.get(error.errno or 0, _IO)
    where = f"{what} ({address})" if address and address not in what else what
    read = str(error)
    if code == _ACCESS:
        return BridgePermission(where, read=read, remedy=_permission_remedy())
    if code in (_NO_DEVICE, _NOT_FOUND):
        return BridgeLost(where, read=read)
    if code == _BUSY:
        return BridgeBusy(where, read=read)
    if code == _TIMEOUT:
        return UsbTimeout(where, read=read)
    if code == _PIPE:
        return EndpointStall(where, read=read)
    if code == _OVERFLOW:
        return BulkShort(where, read=read, means="the bridge sent more than was asked for: bytes left over from an earlier transfer")
    return UsbTransferFailed(where, read=read)
