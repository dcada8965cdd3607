"""A libusb that leads to simulated devices: pyusb runs on it unmodified.

    import usb.core
    device = usb.core.find(idVendor=0x3801, idProduct=0x0001, backend=machine.usb_backend())

Errors are those of pyusb's own libusb 1.0 backend: USBError with libusb's code and an errno, USBTimeoutError, and data that arrived
before a time limit counts instead of raising. Beside pyusb's interface there is what libusb has and pyusb does not: streams, and
transfers in flight (`submit_bulk`, `submit_control`, `handle_events`). Time is the machine's; time limits are simulated ms.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import usb.backend
import usb.core

from mocks.asm24 import transfers
from mocks.asm24.descriptors import ENDPOINT, INTERFACE, Descriptors
from mocks.asm24.device import Setup
from mocks.asm24.host import Handle, Killed, Node, UsbHost
from mocks.asm24.transfers import Transfer

if TYPE_CHECKING:
    from mocks.machine import Machine

IO, INVALID_PARAM, ACCESS, NO_DEVICE, NOT_FOUND, BUSY = -1, -2, -3, -4, -5, -6
TIMEOUT, OVERFLOW, PIPE, NO_MEM = -7, -8, -9, -11
ERRORS = {
    IO: (errno.EIO, "Input/Output Error"),
    INVALID_PARAM: (errno.EINVAL, "Invalid parameter"),
    ACCESS: (errno.EACCES, "Access denied (insufficient permissions)"),
    NO_DEVICE: (errno.ENODEV, "No such device (it may have been disconnected)"),
    NOT_FOUND: (errno.ENOENT, "Entity not found"),
    BUSY: (errno.EBUSY, "Resource busy"),
    TIMEOUT: (errno.ETIMEDOUT, "Operation timed out"),
    OVERFLOW: (errno.EOVERFLOW, "Overflow"),
    PIPE: (errno.EPIPE, "Pipe error"),
    NO_MEM: (errno.ENOMEM, "Insufficient memory"),
}
"""libusb's error codes with errno and text as pyusb gives them"""
OF_STATUS = {
    transfers.ERROR: IO,
    transfers.TIMED_OUT: TIMEOUT,
    transfers.CANCELLED: IO,
    transfers.STALL: PIPE,
    transfers.NO_DEVICE: NO_DEVICE,
    transfers.OVERFLOW: OVERFLOW,
}
MOST_CONTROL = 4096
"""bytes of a control transfer that usbfs takes"""
USBFS_MEMORY = 16 << 20
"""bytes in flight that usbfs allows (usbcore.usbfs_memory_mb)"""
MOST_STREAMS = 31


def error(code: int) -> usb.core.USBError:
    """The exception pyusb raises for a libusb error code."""
    number, text = ERRORS[code]
    kind = usb.core.USBTimeoutError if code == TIMEOUT else usb.core.USBError
    return kind(text, code, number)


class MockBackend(usb.backend.IBackend):  # type: ignore[misc]
    """The USB buses of a simulated machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        assert machine.asm24 is not None
        self.machine = machine
        self.host: UsbHost = machine.asm24.host
        self.clock = machine.clock

    # --- what is there ---

    def enumerate_devices(self) -> list[Node]:
        return self.host.nodes()

    def get_parent(self, dev: Node) -> Node | None:
        return dev.parent

    def get_device_descriptor(self, dev: Node) -> SimpleNamespace:
        kinds = "bLength bDescriptorType bcdUSB:2 bDeviceClass bDeviceSubClass bDeviceProtocol bMaxPacketSize0"
        found = _fields(dev.descriptors.device, f"{kinds} idVendor:2 idProduct:2 bcdDevice:2 iManufacturer iProduct iSerialNumber bNumConfigurations")
        found.bus, found.address, found.speed = dev.bus, dev.address, dev.descriptors.speed
        found.port_number = dev.ports[-1] if dev.ports else 0
        found.port_numbers = dev.ports or None
        return found

    def get_configuration_descriptor(self, dev: Node, config: int) -> SimpleNamespace:
        if config:
            raise IndexError(f"Invalid configuration index {config}")
        found = _fields(dev.descriptors.configuration, "bLength bDescriptorType wTotalLength:2 bNumInterfaces bConfigurationValue iConfiguration bmAttributes bMaxPower")
        found.MaxPower = found.bMaxPower
        found.extra_descriptors = []
        return found

    def get_interface_descriptor(self, dev: Node, intf: int, alt: int, config: int) -> SimpleNamespace:
        settings = _settings(dev.descriptors)
        if config or intf or alt >= len(settings):
            raise IndexError(f"Invalid interface {intf} or alternate setting index {alt}")
        return settings[alt][0]

    def get_endpoint_descriptor(self, dev: Node, ep: int, intf: int, alt: int, config: int) -> SimpleNamespace:
        self.get_interface_descriptor(dev, intf, alt, config)
        endpoints = _settings(dev.descriptors)[alt][1]
        if ep >= len(endpoints):
            raise IndexError(f"Invalid endpoint index {ep}")
        return endpoints[ep]

    # --- handles ---

    def open_device(self, dev: Node) -> Handle:
        if not dev.present:
            raise error(NO_DEVICE)
        if dev.device is None or self.machine.faults.active("usb-no-access"):
            raise error(ACCESS)
        handle = Handle(dev, self.host.process)
        self.host.handles.append(handle)
        return handle

    def close_device(self, dev_handle: Handle) -> None:
        if dev_handle.process == self.host.process:
            self.host.close(dev_handle)

    def kill(self) -> None:
        """The process that uses this backend dies here. Whoever opens next finds the bridge as it was left."""
        self.host.kill()

    def _live(self, handle: Handle) -> Node:
        if handle.process != self.host.process:
            raise Killed
        if handle.closed:
            raise error(INVALID_PARAM)
        if not handle.node.present:
            raise error(NO_DEVICE)
        return handle.node

    def _owned(self, handle: Handle, interface: int = 0) -> Node:
        node = self._live(handle)
        if interface or node.claimed_by is not handle:
            raise error(NOT_FOUND)
        return node

    def _check(self, status: int) -> None:
        if status != transfers.COMPLETED:
            raise error(OF_STATUS[status])

    def set_configuration(self, dev_handle: Handle, config_value: int) -> None:
        node = self._live(dev_handle)
        if node.claimed_by is not None or node.kernel_driver is not None:
            raise error(BUSY)
        self._check(self.host.set_configuration(node, config_value))

    def get_configuration(self, dev_handle: Handle) -> int:
        device = self._live(dev_handle).device
        assert device is not None
        return device.configuration

    def claim_interface(self, dev_handle: Handle, intf: int) -> None:
        node = self._live(dev_handle)
        if intf:
            raise error(NOT_FOUND)
        if node.claimed_by is dev_handle:
            return
        if node.kernel_driver is not None or node.claimed_by is not None or self.machine.faults.active("usb-busy"):
            raise error(BUSY)
        node.claimed_by = dev_handle

    def release_interface(self, dev_handle: Handle, intf: int) -> None:
        if dev_handle.process != self.host.process:
            return  # the clean-up of a process that is dead already
        self._owned(dev_handle, intf)
        self.host.release(dev_handle)

    def set_interface_altsetting(self, dev_handle: Handle, intf: int, altsetting: int) -> None:
        node = self._owned(dev_handle, intf)
        dev_handle.streams.clear()
        self._check(self.host.set_interface(node, altsetting))

    def clear_halt(self, dev_handle: Handle, ep: int) -> None:
        self._check(self.host.clear_halt(self._owned(dev_handle), ep))

    def reset_device(self, dev_handle: Handle) -> None:
        dev_handle.streams.clear()
        if not self.host.reset_port(self._live(dev_handle)):
            raise error(NOT_FOUND)

    def is_kernel_driver_active(self, dev_handle: Handle, intf: int) -> bool:
        return self._live(dev_handle).kernel_driver is not None

    def detach_kernel_driver(self, dev_handle: Handle, intf: int) -> None:
        node = self._live(dev_handle)
        if node.kernel_driver is None:
            raise error(NOT_FOUND)
        node.kernel_driver = None
        assert node.device is not None
        node.device.driver_left()

    def attach_kernel_driver(self, dev_handle: Handle, intf: int) -> None:
        node = self._live(dev_handle)
        if node.claimed_by is not None or node.kernel_driver is not None:
            raise error(BUSY)
        assert node.device is not None
        driver = self.host.driver_for(node.device)
        if driver is None:
            raise error(NOT_FOUND)
        node.kernel_driver = driver

    # --- transfers, one at a time ---

    def ctrl_transfer(self, dev_handle: Handle, bmRequestType: int, bRequest: int, wValue: int, wIndex: int, data: Any, timeout: int) -> int:
        is_in = bool(bmRequestType & 0x80)
        size = len(data) * data.itemsize
        transfer = self.submit_control(dev_handle, bmRequestType, bRequest, wValue, wIndex, size if is_in else data.tobytes(), timeout)
        self._check(self.host.wait(transfer))
        if is_in:
            _fill(data, transfer.data)
        return transfer.actual

    def bulk_write(self, dev_handle: Handle, ep: int, intf: int, data: Any, timeout: int) -> int:
        return self._bulk(self.submit_bulk(dev_handle, ep, data.tobytes(), timeout))

    def bulk_read(self, dev_handle: Handle, ep: int, intf: int, buff: Any, timeout: int) -> int:
        transfer = self.submit_bulk(dev_handle, ep, len(buff) * buff.itemsize, timeout)
        count = self._bulk(transfer)
        _fill(buff, transfer.data)
        return count

    def _bulk(self, transfer: Transfer) -> int:
        status = self.host.wait(transfer)
        if not (transfer.actual and status == transfers.TIMED_OUT):
            self._check(status)
        return transfer.actual

    # --- streams and transfers in flight: libusb has them, pyusb does not ---

    def alloc_streams(self, dev_handle: Handle, count: int, endpoints: Sequence[int]) -> int:
        """Ask for `count` streams on each endpoint (libusb_alloc_streams). Returns how many each got."""
        device = self._owned(dev_handle).device
        assert device is not None
        known = device.endpoints()
        if any(each not in known for each in endpoints):
            raise error(NOT_FOUND)
        if count < 1 or any(not known[each].streams for each in endpoints) or any(dev_handle.streams.get(each) for each in endpoints):
            raise error(INVALID_PARAM)
        got = min(count, MOST_STREAMS, *((1 << known[each].streams) - 1 for each in endpoints))
        dev_handle.streams.update(dict.fromkeys(endpoints, got))
        return got

    def free_streams(self, dev_handle: Handle, endpoints: Sequence[int]) -> None:
        self._owned(dev_handle)
        for each in endpoints:
            dev_handle.streams.pop(each, None)

    def submit_control(self, dev_handle: Handle, bmRequestType: int, bRequest: int, wValue: int, wIndex: int, data_or_length: bytes | int, timeout_ms: int = 0) -> Transfer:
        """Start a control transfer: the bytes to send, or how many to ask for."""
        self._live(dev_handle)
        payload = b"" if isinstance(data_or_length, int) else bytes(data_or_length)
        size = data_or_length if isinstance(data_or_length, int) else len(payload)
        if size > MOST_CONTROL:
            raise error(INVALID_PARAM)
        setup = Setup(bmRequestType, bRequest, wValue & 0xFFFF, wIndex & 0xFFFF, size)
        return self.host.submit(Transfer(self.host, 0, payload, size, setup), timeout_ms / 1000)

    def submit_bulk(self, dev_handle: Handle, endpoint: int, data_or_length: bytes | int, timeout_ms: int = 0, stream: int = 0) -> Transfer:
        """Start a bulk transfer: the bytes to send, or how many to ask for."""
        device = self._owned(dev_handle).device
        assert device is not None
        if endpoint not in device.endpoints():
            raise error(NOT_FOUND)
        if not 0 <= stream <= dev_handle.streams.get(endpoint, 0):
            raise error(INVALID_PARAM)
        payload = b"" if isinstance(data_or_length, int) else bytes(data_or_length)
        size = data_or_length if isinstance(data_or_length, int) else len(payload)
        if self.host.in_flight() + size > USBFS_MEMORY:
            raise error(NO_MEM)
        return self.host.submit(Transfer(self.host, endpoint, payload, size, stream=stream), timeout_ms / 1000)

    def run_streams(self, dev_handle: Handle, wanted: Sequence[tuple[int, int, bytes | int]], timeout_ms: int) -> list[bytes | int]:
        """Several bulk transfers at once: (endpoint, stream, bytes to send or number of bytes to get). Returns the bytes that came or the
        number sent, one each. When one fails the others are taken back, and its error is raised."""
        running = [self.submit_bulk(dev_handle, endpoint, what, timeout_ms, stream) for endpoint, stream, what in wanted]
        try:
            for transfer in running:
                self._check(self.host.wait(transfer))
        finally:
            for transfer in running:
                transfer.cancel()
        return [transfer.data if transfer.is_in else transfer.actual for transfer in running]

    def handle_events(self, timeout_s: float) -> bool:
        """Let time pass until some transfer has ended, at most so long. True when one did."""
        process = self.host.process
        before = self.host.finished
        limit = self.clock.now() + timeout_s
        while self.host.finished == before and self.clock.now() < limit:
            self.host.pass_time(limit)
        if self.host.process != process:
            raise Killed
        return self.host.finished != before


def _fill(target: Any, data: bytes) -> None:
    """Put received bytes at the start of an array."""
    raw = memoryview(target).cast("B")
    raw[: len(data)] = data


def _fields(data: bytes, names: str) -> SimpleNamespace:
    """Decode consecutive fields: "name" is a byte, "name:2" two."""
    result = SimpleNamespace()
    position = 0
    for word in names.split():
        name, _, size = word.partition(":")
        length = int(size or "1")
        setattr(result, name, int.from_bytes(data[position : position + length], "little"))
        position += length
    return result


def _settings(about: Descriptors) -> list[tuple[SimpleNamespace, list[SimpleNamespace]]]:
    """The alternate settings of a configuration descriptor with their endpoints; other descriptors go to the one they follow."""
    data = about.configuration
    found: list[tuple[SimpleNamespace, list[SimpleNamespace]]] = []
    position = 9
    last: SimpleNamespace | None = None
    while position < len(data):
        one = data[position : position + data[position]]
        if one[1] == INTERFACE:
            last = _fields(one, "bLength bDescriptorType bInterfaceNumber bAlternateSetting bNumEndpoints bInterfaceClass bInterfaceSubClass bInterfaceProtocol iInterface")
            last.extra_descriptors = []
            found.append((last, []))
        elif one[1] == ENDPOINT:
            last = _fields(one, "bLength bDescriptorType bEndpointAddress bmAttributes wMaxPacketSize:2 bInterval")
            last.bRefresh = last.bSynchAddress = 0
            last.extra_descriptors = []
            found[-1][1].append(last)
        elif last is not None:
            last.extra_descriptors += list(one)
        position += data[position]
    return found
