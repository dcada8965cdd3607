"""The simulated bridge on the USB bus: what it says it is, who may use it, what happens to those who do."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import usb.core
import usb.util

from mocks.asm24.host import Killed
from tests.mocks.asm24.bench import Bench


def fails(call: Any, *arguments: Any, **keywords: Any) -> int:
    """The errno that a call raises through pyusb."""
    with pytest.raises(usb.core.USBError) as caught:
        call(*arguments, **keywords)
    assert caught.value.errno is not None
    return int(caught.value.errno)


# --- descriptors ---


@pytest.mark.parametrize(
    ("profile", "ids", "version", "ep0", "speed", "total", "bos"),
    [
        ("navi31-asm24", (0x3801, 0x0001), 0x0320, 9, 5, 121, 22),
        ("navi31-asm24-add1", (0xADD1, 0x0001), 0x0320, 9, 5, 121, 22),
        ("asm24-usb2", (0x3801, 0x0001), 0x0200, 64, 3, 46, None),
        ("navi31-asm24-stock", (0xADD1, 0x0001), 0x0320, 9, 5, 121, 42),
    ],
)
def test_descriptors(profile: str, ids: tuple[int, int], version: int, ep0: int, speed: int, total: int, bos: int | None) -> None:
    device = Bench(profile, open_it=False).find()
    assert (device.idVendor, device.idProduct) == ids
    assert (device.bcdUSB, device.bMaxPacketSize0, device.speed, device.bcdDevice) == (version, ep0, speed, 0x0001)
    configuration = device[0]
    assert (configuration.wTotalLength, configuration.bConfigurationValue, configuration.bmAttributes, configuration.bMaxPower) == (total, 1, 0xC0, 0)
    raw = bytes(device.ctrl_transfer(0x80, 6, 0x0200, 0, 255))
    assert len(raw) == total == int.from_bytes(raw[2:4], "little")
    if bos is None:
        assert fails(device.ctrl_transfer, 0x80, 6, 0x0F00, 0, 255) == errno.EPIPE
    else:
        found = bytes(device.ctrl_transfer(0x80, 6, 0x0F00, 0, 255))
        assert len(found) == bos == int.from_bytes(found[2:4], "little")


def test_open_firmware_has_two_plain_endpoints_and_a_setting_shaped_like_uas() -> None:
    device = Bench(open_it=False).find()
    first, second = device[0][0, 0], device[0][0, 1]
    for setting in (first, second):
        assert (setting.bInterfaceClass, setting.bInterfaceSubClass, setting.bInterfaceProtocol) == (0xFF, 0xFF, 0xFF)
    assert [each.bEndpointAddress for each in first] == [0x81, 0x02]
    assert [bytes(each.extra_descriptors) for each in first] == [bytes([6, 0x30, 15, 0, 0, 0])] * 2
    assert sorted(each.bEndpointAddress for each in second) == [0x02, 0x04, 0x81, 0x83]
    assert all(each.wMaxPacketSize == 1024 for each in (*first, *second))


def test_stock_firmware_offers_bulk_only_and_uas_with_32_streams() -> None:
    device = Bench("navi31-asm24-stock", open_it=False).find()
    bulk_only, uas = device[0][0, 0], device[0][0, 1]
    assert (bulk_only.bInterfaceClass, bulk_only.bInterfaceSubClass, bulk_only.bInterfaceProtocol) == (8, 6, 0x50)
    assert (uas.bInterfaceClass, uas.bInterfaceSubClass, uas.bInterfaceProtocol) == (8, 6, 0x62)
    pipes = {each.bEndpointAddress: bytes(each.extra_descriptors) for each in uas}
    assert pipes == {
        0x04: bytes([6, 0x30, 15, 0, 0, 0, 4, 0x24, 1, 0]),
        0x83: bytes([6, 0x30, 15, 5, 0, 0, 4, 0x24, 2, 0]),
        0x81: bytes([6, 0x30, 15, 5, 0, 0, 4, 0x24, 3, 0]),
        0x02: bytes([6, 0x30, 15, 5, 0, 0, 4, 0x24, 4, 0]),
    }


def test_strings_come_from_firmware_and_flash() -> None:
    custom = Bench(open_it=False).find()
    assert (custom.manufacturer, custom.product, custom.serial_number, custom.langids) == ("tiny", "custom 1f2e3d4c-CLEAN", "1a2b3c4d", (0x0409,))
    stock = Bench("navi31-asm24-stock", open_it=False).find()
    assert (stock.manufacturer, stock.product, stock.serial_number) == ("tiny", "USB 3.2 PCIe TinyEnclosure", "SIM00000000000000001")


def test_unknown_descriptor_is_stalled_by_newer_firmware_and_never_answered_by_older() -> None:
    assert fails(Bench(open_it=False).find().ctrl_transfer, 0x80, 6, 0x2200, 0, 64) == errno.EPIPE
    assert fails(Bench("navi31-asm24-add1", open_it=False).find().ctrl_transfer, 0x80, 6, 0x2200, 0, 64) == errno.ETIMEDOUT


def test_it_hangs_on_a_root_hub_that_nobody_may_open() -> None:
    bench = Bench(open_it=False)
    device = bench.find()
    assert (device.bus, device.port_numbers, device.parent.idVendor) == (2, (7,), 0x1D6B)
    assert fails(device.parent.ctrl_transfer, 0x80, 6, 0x0100, 0, 18) == errno.EACCES
    assert Bench("asm24-usb2", open_it=False).find().bus == 1


def test_a_machine_without_a_bridge_has_no_usb() -> None:
    from mocks.machine import Machine

    machine = Machine.from_profile("navi31")
    assert machine.usb_backend() is None
    assert machine.asm24 is None


# --- who may use it ---


def test_kernel_driver_keeps_others_away_until_it_is_detached() -> None:
    bench = Bench("navi31-asm24-stock", open_it=False)
    device = bench.find()
    assert device.is_kernel_driver_active(0)
    assert fails(usb.util.claim_interface, device, 0) == errno.EBUSY
    assert fails(device.set_configuration, 1) == errno.EBUSY
    device.detach_kernel_driver(0)
    assert not device.is_kernel_driver_active(0)
    assert fails(device.detach_kernel_driver, 0) == errno.ENOENT
    usb.util.claim_interface(device, 0)
    assert fails(device.attach_kernel_driver, 0) == errno.EBUSY
    usb.util.release_interface(device, 0)
    device.attach_kernel_driver(0)
    assert device.is_kernel_driver_active(0)


def test_vendor_interface_has_no_kernel_driver_to_attach() -> None:
    device = Bench(open_it=False).find()
    assert not device.is_kernel_driver_active(0)
    assert fails(device.attach_kernel_driver, 0) == errno.ENOENT


def test_a_claimed_interface_belongs_to_one_handle() -> None:
    bench = Bench()
    other = bench.find()
    assert fails(usb.util.claim_interface, other, 0) == errno.EBUSY
    assert fails(other.set_configuration, 1) == errno.EBUSY
    usb.util.release_interface(bench.device, 0)
    usb.util.claim_interface(other, 0)
    assert other.ctrl_transfer(0xC0, 0xE4, 0xB450, 0, 1)[0] == 0


def test_bulk_needs_a_claim() -> None:
    bench = Bench()
    usb.util.release_interface(bench.device, 0)
    with pytest.raises(usb.core.USBError) as caught:
        bench.backend.submit_bulk(bench.handle, 0x81, 64)
    assert caught.value.errno == errno.ENOENT


def test_no_access_and_busy_as_planned() -> None:
    denied = Bench(faults="usb-no-access", open_it=False).find()
    assert fails(denied.ctrl_transfer, 0xC0, 0xE4, 0xB450, 0, 1) == errno.EACCES
    busy = Bench(faults="usb-busy", open_it=False).find()
    assert fails(usb.util.claim_interface, busy, 0) == errno.EBUSY


def test_closing_sets_the_interface_back_to_setting_0() -> None:
    bench = Bench()
    bench.device.set_interface_altsetting(0, 1)
    assert bench.bridge.usb.alternate == 1
    usb.util.dispose_resources(bench.device)
    assert bench.bridge.usb.alternate == 0
    assert bench.machine.idle


# --- standard requests and limits ---


def test_halt_is_shown_and_cleared() -> None:
    bench = Bench()
    assert bytes(bench.device.ctrl_transfer(0x82, 0, 0, 0x81, 2)) == b"\0\0"
    bench.device.ctrl_transfer(0x02, 3, 0, 0x81, None)
    assert bytes(bench.device.ctrl_transfer(0x82, 0, 0, 0x81, 2)) == b"\1\0"
    assert fails(bench.device.read, 0x81, 64) == errno.EPIPE
    bench.device.clear_halt(0x81)
    assert fails(bench.device.read, 0x81, 64, 100) == errno.ETIMEDOUT
    assert fails(bench.device.ctrl_transfer, 0x82, 0, 0, 0x85, 2) == errno.EPIPE


def test_nothing_armed_means_the_host_waits_for_its_own_limit() -> None:
    bench = Bench()
    before = bench.clock.now()
    with pytest.raises(usb.core.USBTimeoutError):
        bench.device.write(0x02, bytes(64), 250)
    assert bench.clock.now() - before == pytest.approx(0.25)
    with pytest.raises(usb.core.USBTimeoutError):
        bench.device.read(0x81, 64, 100)


def test_limits_of_the_system() -> None:
    bench = Bench()
    assert fails(bench.device.ctrl_transfer, 0x40, 0xE5, 0, 0, bytes(5000)) == errno.EINVAL
    assert fails(bench.device.write, 0x02, bytes((16 << 20) + 1)) == errno.ENOMEM


def test_endpoints_of_another_setting_do_not_exist() -> None:
    bench = Bench()
    with pytest.raises(usb.core.USBError) as caught:
        bench.backend.submit_bulk(bench.handle, 0x83, 64)
    assert caught.value.errno == errno.ENOENT
    assert fails(bench.backend.set_interface_altsetting, bench.handle, 0, 2) == errno.EPIPE


# --- coming and going ---


def test_unplugging_ends_what_is_in_flight_and_the_handle() -> None:
    bench = Bench()
    waiting = bench.backend.submit_bulk(bench.handle, 0x81, 64)
    bench.bridge.host.detach()
    assert (waiting.status, waiting.actual) == (5, 0)
    assert bench.find() is None
    assert fails(bench.xdata, 0xB450) == errno.ENODEV
    bench.bridge.host.reconnect()
    bench.clock.sleep(0.5)
    old = bench.device.address
    bench.open()
    assert bench.device.address == old + 1
    assert bench.device.port_numbers == (7,)
    assert bench.xdata(0xB450) == b"\0"


def test_port_reset_keeps_the_place_on_the_bus_and_the_pcie_side() -> None:
    bench = Bench()
    bench.link_up()
    address = bench.device.address
    bench.device.set_interface_altsetting(0, 1)
    bench.backend.reset_device(bench.handle)  # pyusb's reset() gives the interface back first
    assert bench.find().address == address
    assert bench.bridge.usb.alternate == 1
    assert bench.xdata(0xB450) == b"\x78"


def test_cpu_reset_register_takes_it_off_the_bus_for_a_third_of_a_second() -> None:
    bench = Bench()
    bench.link_up()
    bench.poke(0x1000, 0x77)
    before = bench.device.address
    assert fails(bench.poke, 0xCC31, 1) == errno.ENODEV
    assert bench.find() is None
    bench.clock.sleep(0.6)
    bench.open()
    assert bench.device.address != before
    assert bench.xdata(0x1000) == b"\x77"
    assert bench.xdata(0xB450) == b"\x78"


def test_wedged_chip_answers_nothing_and_a_port_reset_loses_it() -> None:
    bench = Bench()
    assert fails(bench.poke, 0x9000, 1) == errno.ETIMEDOUT
    assert fails(bench.xdata, 0xB450) == errno.ETIMEDOUT
    assert fails(bench.device.reset) == errno.ENOENT
    assert bench.find() is None
    bench.bridge.power_cycle()
    bench.clock.sleep(1.0)
    bench.open()
    assert bench.xdata(0xB450) == b"\0"


# --- transfers in flight ---


def test_transfers_in_flight_end_when_their_data_went_by() -> None:
    bench = Bench()
    bench.arm(1)
    out = bench.backend.submit_bulk(bench.handle, 0x02, bytes(range(256)) * 2, 1000)
    control = bench.backend.submit_control(bench.handle, 0xC0, 0xE4, 0xB450, 0, 1, 1000)
    assert (out.status, control.status) == (None, None)
    while out.status is None or control.status is None:
        assert bench.backend.handle_events(1.0)
    assert (out.status, out.actual) == (0, 512)
    assert (control.status, control.data) == (0, b"\0")
    assert bench.bridge.sram.read(0x200000, 256) == bytes(range(256))


def test_cancelled_and_timed_out_transfers_say_so() -> None:
    bench = Bench()
    cancelled = bench.backend.submit_bulk(bench.handle, 0x81, 64)
    late = bench.backend.submit_bulk(bench.handle, 0x81, 64, 50)
    cancelled.cancel()
    assert cancelled.status == 3
    assert bench.backend.handle_events(1.0)
    assert late.status == 2


def test_streams_belong_to_uas_at_super_speed() -> None:
    bench = Bench("navi31-asm24-stock")
    with pytest.raises(usb.core.USBError):
        bench.backend.alloc_streams(bench.handle, 31, [0x81])
    bench.device.set_interface_altsetting(0, 1)
    assert bench.backend.alloc_streams(bench.handle, 93, [0x02, 0x81, 0x83]) == 31
    with pytest.raises(usb.core.USBError):
        bench.backend.alloc_streams(bench.handle, 31, [0x04])
    with pytest.raises(usb.core.USBError):
        bench.backend.submit_bulk(bench.handle, 0x83, 64, 0, 32)
    bench.backend.free_streams(bench.handle, [0x02, 0x81, 0x83])
    with pytest.raises(usb.core.USBError):
        bench.backend.submit_bulk(bench.handle, 0x83, 64, 0, 1)


# --- a process that dies ---


def test_a_dead_process_does_nothing_more_and_the_next_one_opens() -> None:
    bench = Bench()
    bench.arm(4)
    bench.backend.kill()
    with pytest.raises(Killed):
        bench.xdata(0xB450)
    usb.util.dispose_resources(bench.device)
    bench.open()
    assert bench.xdata(0xB450) == b"\0"


def test_death_leaves_a_half_filled_transfer_and_a_claimed_interface_free() -> None:
    bench = Bench(faults="usb-kill-at=5:1024")
    bench.arm(16)  # transfer 3, after SET_CONFIGURATION and SET_INTERFACE
    assert bench.device.write(0x02, b"\x11" * 2048) == 2048
    with pytest.raises(Killed):
        bench.device.write(0x02, b"\x22" * 2048)
    assert bench.bridge.bulk.left == 16 * 512 - 2048 - 1024
    bench.clock.sleep(1e-3)
    assert bench.bridge.sram.read(0x200000 + 2048, 1024) == b"\x22" * 1024
    bench.machine.faults.remove("usb-kill-at")
    usb.util.claim_interface(bench.find(), 0)
