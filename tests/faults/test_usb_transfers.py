"""Faults on the USB in any transfer of a boot, a launch and copies: a typed error or a right result, and the device works in the next session."""

from __future__ import annotations

import struct

import pytest

from bridges.asm24.errors import (
    BridgeBusy,
    BridgeLost,
    BridgePermission,
    BridgeWedged,
    BulkShort,
    CswError,
    EndpointStall,
    UsbTimeout,
    UsbTransferFailed,
)
from hw.errors import BusError, BusLost, DeviceError, TghwError
from mocks.asm24.host import Killed
from mocks.machine import Machine
from tests.bridges.simulated import CUSTOM, STOCK, machine_with, open_gpu, open_pci
from tests.drivers.queue.kernels import kernel_object

MIB = 1 << 20
DATA = bytes((7 * index + index // 251) & 0xFF for index in range(MIB))


def session(machine: Machine) -> int:
    """Open, boot, run a kernel, copy both ways, close: right results or an exception. The number of USB transfers."""
    gpu = open_gpu(machine)
    try:
        (kernel,) = gpu.load(kernel_object("plus_one")).kernels.values()
        small = gpu.alloc(4096)
        gpu.copy_in(small, bytes(4096))
        gpu.launch(kernel, (1, 1, 1), (4, 1, 1), struct.pack("<2Q", small.va, small.va))
        assert gpu.copy_out(small, 16) == struct.pack("<4f", 1, 1, 1, 1)
        large = gpu.alloc(len(DATA))
        gpu.copy_in(large, DATA)
        assert gpu.copy_out(large) == DATA
        return gpu.dev.pci.counts.transfers  # type: ignore[attr-defined, no-any-return]
    finally:
        gpu.close()


def outcome(machine: Machine) -> BaseException | None:
    """What the first session ends with."""
    try:
        session(machine)
    except (TghwError, Killed) as error:
        return error
    return None


def attach(machine: Machine) -> None:
    open_pci(machine).close()


# Transfers of a session: 1..150 link and addresses, ..755 boot, ..860 rings, ..990 kernel and copies.
SPREAD = [3, 149, 330, 700, 931, *(pytest.param(number, marks=pytest.mark.slow) for number in range(5, 1000, 31))]


@pytest.mark.parametrize("number", SPREAD)
@pytest.mark.parametrize(
    ("fault", "errors"),
    [
        ("usb-timeout-at={}", (UsbTimeout,)),
        ("usb-stall-at={}", (EndpointStall,)),
        ("usb-short-at={}", (BulkShort,)),
        ("usb-overflow-at={}", (BulkShort, UsbTransferFailed)),
        ("usb-error-at={}", (UsbTransferFailed,)),
    ],
    ids=["timeout", "stall", "short", "overflow", "error"],
)
def test_one_bad_transfer_is_repeated_where_that_is_safe_and_told_where_not(fault: str, errors: tuple[type[TghwError], ...], number: int) -> None:
    machine = machine_with(CUSTOM, fault.format(number))
    error = outcome(machine)
    assert error is None or isinstance(error, errors), repr(error)
    session(machine)


@pytest.mark.parametrize("number", SPREAD)
@pytest.mark.parametrize("fault", ["usb-disconnect-at={}:1", "usb-bus-reset-at={}"], ids=["pulled", "bus reset"])
def test_device_that_leaves_the_usb_is_lost_at_once_and_opened_anew_when_it_is_back(fault: str, number: int) -> None:
    machine = machine_with(CUSTOM, fault.format(number))
    assert isinstance(outcome(machine), BridgeLost)
    session(machine)


@pytest.mark.parametrize("number", SPREAD)
def test_process_killed_at_any_point_leaves_a_bridge_that_the_next_one_opens(number: int) -> None:
    machine = machine_with(CUSTOM, f"usb-kill-at={number}")
    assert isinstance(outcome(machine), Killed)
    session(machine)


@pytest.mark.parametrize(
    ("fault", "errors"),
    [
        ("usb-timeout-at={}", (UsbTimeout,)),
        ("usb-stall-at={}", (EndpointStall,)),
        ("usb-short-at={}", (BulkShort, CswError)),
        ("usb-error-at={}", (UsbTransferFailed,)),
        ("usb-disconnect-at={}:1", (BridgeLost,)),
        ("usb-kill-at={}", (Killed,)),
        ("scsi-fail-at={}", (CswError,)),
        ("scsi-wrong-tag-at={}", (CswError,)),
    ],
    ids=["timeout", "stall", "short", "error", "pulled", "killed", "command fails", "wrong tag"],
)
@pytest.mark.parametrize("number", [40, 1500])
def test_stock_firmware_survives_the_same(fault: str, errors: tuple[type[BaseException], ...], number: int) -> None:
    machine = machine_with(STOCK, fault.format(number))
    caught: BaseException | None = None
    try:
        attach(machine)
    except (TghwError, Killed) as error:
        caught = error
    assert caught is None or isinstance(caught, errors), repr(caught)
    attach(machine)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7, 9000, 1801))
@pytest.mark.parametrize("fault", ["usb-timeout-at={}", "usb-short-at={}", "usb-kill-at={}", "scsi-fail-at={}", "scsi-wrong-tag-at={}"])
def test_stock_firmware_survives_it_at_work_too(fault: str, number: int) -> None:
    machine = machine_with(STOCK, fault.format(number))
    error = outcome(machine)
    assert error is None or isinstance(error, (BusError, DeviceError, Killed)), repr(error)
    session(machine)


# --- what does not go away by itself ----------------------------------------------------------------------------------


def test_wedged_processor_is_told_from_a_slow_one() -> None:
    machine = machine_with(CUSTOM, "usb-wedge-at=300")
    error = outcome(machine)
    assert isinstance(error, BridgeWedged) and "power-cycle" in error.remedy
    with pytest.raises(BridgeWedged):
        open_pci(machine)


def test_interface_held_by_another_process() -> None:
    machine = machine_with(CUSTOM, "usb-busy")
    with pytest.raises(BridgeBusy):
        open_pci(machine)


def test_missing_permission_comes_with_the_rule_that_gives_it() -> None:
    machine = machine_with(CUSTOM, "usb-no-access")
    with pytest.raises(BridgePermission) as caught:
        open_pci(machine)
    assert 'ATTR{idVendor}=="3801"' in caught.value.remedy


def test_lost_device_fails_every_later_call_without_touching_the_bus() -> None:
    machine = machine_with(CUSTOM)
    gpu = open_gpu(machine)
    buffer = gpu.alloc(4096)
    assert machine.asm24 is not None
    machine.faults.add("usb-disconnect-at", str(machine.asm24.faults.transfers + 1))
    with pytest.raises(BusLost):
        gpu.copy_in(buffer, bytes(4096))
    counts = gpu.dev.pci.counts.copy()  # type: ignore[attr-defined]
    for again in (lambda: gpu.copy_out(buffer, 4), gpu.synchronize, lambda: gpu.copy_in(buffer, b"1234")):
        with pytest.raises(BusLost):
            again()
    assert gpu.dev.pci.counts == counts  # type: ignore[attr-defined]
    with pytest.raises(BusLost):
        gpu.close()
