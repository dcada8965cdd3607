"""pyusb as judge of the simulated backend: its interface is fulfilled, and its libusb backend and this one look alike to a program."""

from __future__ import annotations

import ctypes
import errno
import inspect
from typing import Any

import libusb_package
import pytest
import usb.backend
import usb.backend.libusb1
import usb.core

from mocks.asm24.backend import ERRORS, MockBackend
from mocks.machine import Machine

ABSENT = {"intr_read", "intr_write", "iso_read", "iso_write"}
"""for endpoints that the bridge does not have"""


def methods(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_every_method_of_the_interface_is_there_with_its_parameters() -> None:
    wanted = {name: value for name, value in methods(usb.backend.IBackend).items() if name != "finalize"}
    ours = methods(MockBackend)
    for name, value in wanted.items():
        if name not in ABSENT:
            assert ours[name] is not value, f"{name} is not implemented"
            assert len(inspect.signature(ours[name]).parameters) == len(inspect.signature(value).parameters), name


def test_errors_are_those_of_the_libusb_backend() -> None:
    library = ctypes.CDLL(str(libusb_package.get_library_path()))
    library.libusb_strerror.restype = ctypes.c_char_p
    for code, (number, text) in ERRORS.items():
        assert usb.backend.libusb1._libusb_errno[code] == number
        assert library.libusb_strerror(code).decode() == text


@pytest.mark.parametrize("profile", ["navi31-asm24", "navi31-asm24-add1", "navi31-asm24-stock", "asm24-usb2", "asm24-rom"])
def test_pyusb_prints_the_whole_device(profile: str) -> None:
    """str() of a device walks every descriptor and string through the backend."""
    machine = Machine.from_profile(profile)
    for device in usb.core.find(find_all=True, backend=machine.usb_backend()):
        text = str(device)
        assert text.count("CONFIGURATION 1") == 1
        assert "Error" not in text or device.idVendor == 0x1D6B, text
        assert usb.core.show_devices(backend=machine.usb_backend())


def test_pyusb_finds_by_class_string_and_port() -> None:
    machine = Machine.from_profile("navi31-asm24-stock")
    backend = machine.usb_backend()
    found = usb.core.find(backend=backend, custom_match=lambda each: each.idVendor != 0x1D6B and usb.util.find_descriptor(each[0], bInterfaceClass=8) is not None)
    assert found is not None and (found.port_numbers, found.product) == ((7,), "USB 3.2 PCIe TinyEnclosure")
    assert usb.core.find(backend=backend, idVendor=0x174C) is None


def test_pyusb_takes_configuration_interface_and_endpoints_by_itself() -> None:
    """No set-up at all: pyusb claims the interface on the first transfer, and endpoint objects read and write."""
    machine = Machine.from_profile("navi31-asm24")
    device = usb.core.find(backend=machine.usb_backend(), idVendor=0x3801)
    assert device is not None
    interface = device.get_active_configuration()[0, 0]
    out = usb.util.find_descriptor(interface, bEndpointAddress=0x02)
    assert out is not None
    device.ctrl_transfer(0x40, 0xF2, 1, 0x0100, None)
    assert out.write(bytes(512)) == 512
    with pytest.raises(usb.core.USBTimeoutError) as caught:
        interface[0].read(64, 50)
    assert (caught.value.errno, caught.value.backend_error_code) == (errno.ETIMEDOUT, -7)
    with pytest.raises(NotImplementedError):
        machine.usb_backend().intr_read(None, 0x81, 0, None, 0)  # type: ignore[union-attr]
