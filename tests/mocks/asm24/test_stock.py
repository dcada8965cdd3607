"""The stock firmware: SCSI commands by bulk-only transport and by UAS, its vendor commands, what it does to misuse."""

from __future__ import annotations

import os
from typing import Any

import pytest
import usb.util

from hw.errors import NotModelled
from mocks.asm24.sram import DATA
from tests.mocks.asm24.bench import Bench, cbw, command_unit
from tests.mocks.asm24.test_usb import fails

PIPE, TIMED_OUT = 32, 110
COMMANDS, STATUS, DATA_IN, DATA_OUT = 0x04, 0x83, 0x81, 0x02
SESSION = ((0x054B, 0x20), (0x054E, 0x04), (0x05A8, 0x02), (0x05F8, 0x04), (0x07EC, 1), (0x07ED, 0), (0x07EE, 0), (0x07EF, 0), (0xC422, 2), (0x0000, 0x33))
STOCK = "navi31-asm24-stock"


def xdata_read(address: int, size: int) -> bytes:
    return bytes([0xE4, size]) + (0x500000 | address).to_bytes(3, "big") + b"\0"


def xdata_write(address: int, value: int) -> bytes:
    return bytes([0xE5, value]) + (0x500000 | address).to_bytes(3, "big") + b"\0"


def write_16(sectors: int) -> bytes:
    return bytes([0x8A, 0]) + bytes(8) + sectors.to_bytes(4, "big") + bytes(2)


class BulkOnly:
    """Bulk-only transport by hand."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.tag = 0

    def send(self, cdb: bytes, size: int = 0, *, to_host: bool = False) -> None:
        self.tag += 1
        self.bench.device.write(DATA_OUT, cbw(self.tag, cdb, size, to_host=to_host))

    def status(self) -> tuple[int, int]:
        """(residue, status) of the command sent last."""
        csw = bytes(self.bench.device.read(DATA_IN, 13))
        assert csw[:8] == b"USBS" + self.tag.to_bytes(4, "little")
        return int.from_bytes(csw[8:12], "little"), csw[12]

    def read(self, cdb: bytes, size: int) -> bytes:
        self.send(cdb, size, to_host=True)
        data = bytes(self.bench.device.read(DATA_IN, size))
        assert self.status() == (size - len(data), 0)
        return data

    def write(self, cdb: bytes, data: bytes = b"") -> None:
        self.send(cdb, len(data))
        if data:
            self.bench.device.write(DATA_OUT, data, 5000)
        assert self.status() == (0, 0)

    def start_session(self) -> None:
        for address, value in SESSION:
            self.write(xdata_write(address, value))


class Uas:
    """UAS by hand, one command at a time or several."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.backend.alloc_streams(bench.handle, 31, [DATA_OUT, DATA_IN, STATUS])

    def submit(self, endpoint: int, what: Any, stream: int = 0, timeout: int = 1000) -> Any:
        return self.bench.backend.submit_bulk(self.bench.handle, endpoint, what, timeout, stream)

    def finish(self, *transfers: Any) -> None:
        for transfer in transfers:
            assert self.bench.bridge.host.wait(transfer) == 0

    def command(self, tag: int, cdb: bytes, *, read: int = 0, write: bytes = b"") -> tuple[bytes, bytes]:
        """(status unit, data)."""
        flying = [self.submit(COMMANDS, command_unit(tag, cdb)), self.submit(STATUS, 64, tag)]
        if read:
            flying.append(self.submit(DATA_IN, read, tag))
        if write:
            flying.append(self.submit(DATA_OUT, write, tag))
        self.finish(*flying)
        return flying[1].data, flying[2].data if read else b""


def good(tag: int) -> bytes:
    return bytes([3, 0]) + tag.to_bytes(2, "big") + bytes(12)


def bulk_only() -> BulkOnly:
    return BulkOnly(Bench(STOCK))


def uas() -> Uas:
    bench = Bench(STOCK, open_it=False)
    bench.open(alternate=1)
    return Uas(bench)


# --- vendor commands ---


def test_identity_and_firmware_version() -> None:
    pipe = bulk_only()
    inquiry = pipe.read(bytes([0x12, 0, 0, 0, 36, 0]), 36)
    assert (inquiry[0], inquiry[8:16], inquiry[16:32]) == (0, b"tiny    ", b"TinyEnclosure   ")
    assert pipe.read(xdata_read(0x07F0, 6), 6).hex() == "240417850000"


def test_xdata_by_scsi() -> None:
    pipe = bulk_only()
    pipe.write(xdata_write(0xA800, 0x12))
    assert pipe.read(xdata_read(0xA800, 1), 1) == b"\x12"
    assert pipe.bench.bridge.sram.read(0x820800, 1) == b"\x12"
    pipe.write(bytes([0xE5, 0x80, 0x51, 0x60, 0x25, 0]))
    assert pipe.read(bytes([0xE4, 1, 0x51, 0x60, 0x25, 0]), 1) == b"\x80"
    with pytest.raises(NotModelled, match="NVME_QUEUE_BUSY"):
        pipe.read(xdata_read(0xC471, 1), 1)


def test_without_the_family_tag_it_is_an_illegal_request() -> None:
    pipe = bulk_only()
    pipe.send(bytes([0xE4, 1, 0, 0x07, 0xF0, 0]), 1, to_host=True)
    assert fails(pipe.bench.device.read, DATA_IN, 1) == PIPE
    pipe.bench.device.clear_halt(DATA_IN)
    assert pipe.status() == (1, 1)
    sense = pipe.read(bytes([0x03, 0, 0, 0, 18, 0]), 18)
    assert (sense[2], sense[12]) == (0x05, 0x24)
    assert pipe.read(bytes([0x03, 0, 0, 0, 18, 0]), 18)[2] == 0, "sense data is given once"


def test_a_request_to_the_pcie_side_register_by_register() -> None:
    pipe = bulk_only()
    pipe.bench.clock.sleep(1.0)
    assert pipe.read(xdata_read(0xB450, 1), 1) == b"\x48"
    for address, value in ((0xB217, 0x0F), (0xB210, 0x04), (0xB254, 0x0F), (0xB296, 0x04)):
        pipe.write(xdata_write(address, value))
    assert pipe.read(xdata_read(0xB296, 1), 1) == b"\x02"
    assert pipe.read(xdata_read(0xB284, 1), 1) == b"\x01"
    assert pipe.read(xdata_read(0xB22A, 2), 2) == b"\x00\x04"
    assert pipe.read(xdata_read(0xB220, 4), 4) == bytes.fromhex("24611b21")


@pytest.mark.parametrize("left_out", [0xB254, 0xB296])
def test_trigger_and_kick_are_both_needed(left_out: int) -> None:
    pipe = bulk_only()
    for address, value in ((0xB217, 0x0F), (0xB210, 0x04), (0xB254, 0x0F), (0xB296, 0x04)):
        if address != left_out:
            pipe.write(xdata_write(address, value))
    assert pipe.read(xdata_read(0xB296, 1), 1) == b"\x04"
    pipe.write(xdata_write(left_out, 0x0F if left_out == 0xB254 else 0x04))
    assert pipe.read(xdata_read(0xB296, 1), 1) == b"\x02"


def test_status_bits_are_cleared_by_writing_them() -> None:
    pipe = bulk_only()
    for address, value in ((0xB218, 4), (0xB217, 0x0F), (0xB210, 0x05), (0xB254, 0x0F), (0xB296, 0x04)):
        pipe.write(xdata_write(address, value))
    assert pipe.read(xdata_read(0xB296, 1), 1) == b"\x02"
    assert pipe.read(xdata_read(0xB22A, 1), 1) == b"\x20"
    pipe.write(xdata_write(0xB296, 0x02))
    assert pipe.read(xdata_read(0xB296, 1), 1) == b"\x00"


def test_link_trains_at_boot_with_one_lane() -> None:
    pipe = bulk_only()
    pipe.bench.clock.sleep(1.0)
    assert pipe.read(bytes([0xE4, 1, 0x51, 0x40, 0x92, 0]), 1) == b"\x13"


def test_reset_command_restarts_the_chip() -> None:
    pipe = bulk_only()
    pipe.write(bytes([0xE8, 0]) + bytes(10))
    pipe.bench.clock.sleep(1.0)
    assert fails(pipe.bench.device.read, DATA_IN, 1) == 19
    pipe.bench.open()
    pipe.read(xdata_read(0x07F0, 6), 6)


def test_commands_without_model_or_device() -> None:
    pipe = bulk_only()
    with pytest.raises(NotModelled):
        pipe.send(bytes([0x88]) + bytes(15), 512, to_host=True)
    pipe = bulk_only()
    with pytest.raises(NotModelled):
        pipe.write(bytes([0xE8, 1]) + bytes(10))
    pipe = bulk_only()
    for cdb, code in ((bytes(6), 0x3A), (bytes([0xE6, 6]) + bytes(14), 0x3A), (bytes([0xFD]) + bytes(5), 0x20)):
        pipe.send(cdb)
        assert pipe.status() == (0, 1)
        assert pipe.read(bytes([0x03, 0, 0, 0, 18, 0]), 18)[12] == code


# --- WRITE(16) into the SRAM ---


def test_write_16_lands_in_the_sram() -> None:
    pipe = bulk_only()
    pipe.start_session()
    data = os.urandom(8192)
    pipe.write(write_16(16), data)
    assert pipe.bench.bridge.sram.read(DATA, 8192) == data


def test_write_16_never_completes_before_the_session_was_started() -> None:
    pipe = bulk_only()
    pipe.send(write_16(1), 512)
    pipe.bench.device.write(DATA_OUT, bytes(512))
    assert fails(pipe.bench.device.read, DATA_IN, 13, 500) == TIMED_OUT


def test_write_16_never_completes_before_the_one_before_was_acknowledged() -> None:
    pipe = bulk_only()
    pipe.start_session()
    pipe.write(write_16(1), bytes(512))
    pipe.send(write_16(1), 512)
    pipe.bench.device.write(DATA_OUT, bytes(512))
    assert fails(pipe.bench.device.read, DATA_IN, 13, 500) == TIMED_OUT


def acknowledge(pipe: BulkOnly) -> None:
    for address, value in ((0x0171, 0xFF), (0x0172, 0xFF), (0x0173, 0xFF), (0xCE6E, 0), (0xCE6F, 0)):
        pipe.write(xdata_write(address, value))


def test_large_writes_go_on_behind_each_other_until_the_place_is_reset() -> None:
    pipe = bulk_only()
    pipe.start_session()
    first, second, third = (os.urandom(0x10000) for _ in range(3))
    pipe.write(write_16(128), first)
    acknowledge(pipe)
    pipe.write(write_16(128), second)
    acknowledge(pipe)
    assert pipe.bench.bridge.sram.read(DATA, 0x20000) == first + second
    for address in range(0xCE40, 0xCE44):
        pipe.write(xdata_write(address, 0))
    pipe.write(write_16(128), third)
    assert pipe.bench.bridge.sram.read(DATA, 0x20000) == third + second


def test_small_writes_start_at_the_same_place() -> None:
    pipe = bulk_only()
    pipe.start_session()
    pipe.write(write_16(32), b"\x11" * 0x4000)
    acknowledge(pipe)
    pipe.write(write_16(1), b"\x22" * 512)
    assert pipe.bench.bridge.sram.read(DATA, 1024) == b"\x22" * 512 + b"\x11" * 512


def test_write_16_moves_about_100_mb_a_second() -> None:
    pipe = bulk_only()
    pipe.start_session()
    before = pipe.bench.clock.now()
    pipe.write(write_16(128), bytes(0x10000))
    assert 0x10000 / (pipe.bench.clock.now() - before) == pytest.approx(100e6, rel=0.5)


# --- bulk-only transport ---


@pytest.mark.parametrize("raw", [b"USBX" + bytes(27), cbw(1, bytes(6))[:30], cbw(1, bytes(6)) + b"\0"])
def test_what_is_no_command_stalls_both_pipes_until_reset_recovery(raw: bytes) -> None:
    pipe = bulk_only()
    device = pipe.bench.device
    assert fails(device.write, DATA_OUT, raw) == PIPE
    device.clear_halt(DATA_OUT)
    assert fails(device.write, DATA_OUT, cbw(1, bytes(6))) == PIPE
    assert fails(device.read, DATA_IN, 13) == PIPE
    device.ctrl_transfer(0x21, 0xFF, 0, 0, None)
    device.clear_halt(DATA_OUT)
    device.clear_halt(DATA_IN)
    assert pipe.read(xdata_read(0x07F0, 6), 6).hex() == "240417850000"


def test_max_lun_is_0() -> None:
    assert bytes(bulk_only().bench.device.ctrl_transfer(0xA1, 0xFE, 0, 0, 1)) == b"\0"


def test_less_data_than_asked_for_leaves_a_residue() -> None:
    pipe = bulk_only()
    pipe.send(xdata_read(0x07F0, 6), 64, to_host=True)
    assert len(pipe.bench.device.read(DATA_IN, 64)) == 6
    assert pipe.status() == (58, 0)


def test_more_data_than_asked_for_is_a_phase_error() -> None:
    pipe = bulk_only()
    pipe.send(xdata_read(0x07F0, 6), 2, to_host=True)
    assert fails(pipe.bench.device.read, DATA_IN, 2) == PIPE
    pipe.bench.device.clear_halt(DATA_IN)
    assert pipe.status()[1] == 2


def test_a_dead_host_leaves_a_command_that_waits_for_its_data() -> None:
    pipe = bulk_only()
    pipe.send(write_16(1), 512)
    pipe.bench.backend.kill()
    device = pipe.bench.find()
    usb.util.claim_interface(device, 0)
    device.write(DATA_OUT, cbw(77, bytes(6)))  # taken as data of the old command
    device.ctrl_transfer(0x21, 0xFF, 0, 0, None)
    device.clear_halt(DATA_IN)
    device.clear_halt(DATA_OUT)
    device.write(DATA_OUT, cbw(78, xdata_read(0x07F0, 6), 6, to_host=True))
    assert bytes(device.read(DATA_IN, 6)).hex() == "240417850000"
    assert bytes(device.read(DATA_IN, 13)) == b"USBS" + (78).to_bytes(4, "little") + bytes(5)


# --- UAS ---


def test_commands_on_streams() -> None:
    pipe = uas()
    assert pipe.command(5, xdata_read(0x07F0, 6), read=6) == (good(5), bytes.fromhex("240417850000"))
    assert pipe.command(31, xdata_write(0xA800, 0x99)) == (good(31), b"")
    assert pipe.bench.bridge.sram.read(0x820800, 1) == b"\x99"


def test_31_commands_in_flight() -> None:
    pipe = uas()
    flying = []
    for tag in range(1, 32):
        flying.append(pipe.submit(COMMANDS, command_unit(tag, xdata_write(0xA800 + tag, tag))))
        flying.append(pipe.submit(STATUS, 64, tag))
    pipe.finish(*flying)
    assert [each.data for each in flying[1::2]] == [good(tag) for tag in range(1, 32)]
    assert pipe.bench.bridge.sram.read(0x820801, 31) == bytes(range(1, 32))


def test_status_comes_after_the_data_and_on_its_own_stream_only() -> None:
    pipe = uas()
    status, wrong = pipe.submit(STATUS, 64, 3), pipe.submit(STATUS, 64, 4, 200)
    pipe.finish(pipe.submit(COMMANDS, command_unit(3, xdata_read(0x07F0, 6))))
    pipe.bench.clock.sleep(0.05)
    assert status.status is None
    pipe.finish(pipe.submit(DATA_IN, 6, 3), status)
    assert status.data == good(3)
    assert pipe.bench.bridge.host.wait(wrong) == 2


def test_without_stream_nothing_moves_at_super_speed() -> None:
    pipe = uas()
    pipe.finish(pipe.submit(COMMANDS, command_unit(1, xdata_read(0x07F0, 6))))
    assert fails(pipe.bench.device.read, DATA_IN, 6, 100) == TIMED_OUT
    assert fails(pipe.bench.device.read, STATUS, 64, 100) == TIMED_OUT


def test_write_16_holds_up_the_commands_behind_it_until_its_data_is_there() -> None:
    pipe = uas()
    for number, (address, value) in enumerate(SESSION, 1):
        pipe.command(number, xdata_write(address, value))
    write = pipe.submit(COMMANDS, command_unit(1, write_16(1))), pipe.submit(STATUS, 64, 1)
    other = pipe.submit(COMMANDS, command_unit(2, xdata_write(0xA800, 0x42))), pipe.submit(STATUS, 64, 2)
    pipe.bench.clock.sleep(0.05)
    assert (write[1].status, other[1].status) == (None, None)
    pipe.finish(pipe.submit(DATA_OUT, b"\x13" * 512, 1), *write, *other)
    assert (write[1].data, other[1].data) == (good(1), good(2))
    assert pipe.bench.bridge.sram.read(DATA, 512) == b"\x13" * 512


def test_check_condition_brings_its_sense_data() -> None:
    pipe = uas()
    unit, _ = pipe.command(7, bytes(6))
    assert (unit[0], unit[2:4], unit[6], int.from_bytes(unit[14:16], "big")) == (3, b"\0\7", 2, 18)
    assert (unit[18], unit[28]) == (0x02, 0x3A)


@pytest.mark.parametrize(("unit", "code"), [(bytes([9]) + bytes(31), 2), (command_unit(1, bytes(6))[:20], 2)])
def test_units_that_are_no_commands_get_a_response(unit: bytes, code: int) -> None:
    pipe = uas()
    raw = unit[:2] + b"\0\1" + unit[4:]
    status = pipe.submit(STATUS, 64, 1)
    pipe.finish(pipe.submit(COMMANDS, raw), status)
    assert (status.data[0], status.data[7]) == (4, code)


def test_tag_in_use_is_refused() -> None:
    pipe = uas()
    pipe.finish(pipe.submit(COMMANDS, command_unit(1, xdata_read(0x07F0, 6))))
    status = pipe.submit(STATUS, 64, 1)
    pipe.finish(pipe.submit(COMMANDS, command_unit(1, xdata_read(0x07F0, 6))), status)
    assert (status.data[0], status.data[7]) == (4, 0x0A)


def test_set_interface_forgets_commands_of_a_dead_host() -> None:
    pipe = uas()
    pipe.finish(pipe.submit(COMMANDS, command_unit(1, write_16(1))))
    pipe.bench.backend.kill()
    pipe.bench.open(alternate=1)
    again = Uas(pipe.bench)
    assert again.command(1, xdata_read(0x07F0, 6), read=6) == (good(1), bytes.fromhex("240417850000"))


def test_at_usb_2_ready_units_say_which_command_the_data_is_for() -> None:
    bench = Bench("asm24-usb2-stock", open_it=False)
    bench.open(alternate=1)
    device = bench.device
    device.write(COMMANDS, command_unit(9, xdata_read(0x07F0, 6)))
    assert bytes(device.read(STATUS, 64)) == bytes([6, 0, 0, 9])
    assert bytes(device.read(DATA_IN, 6)).hex() == "240417850000"
    assert bytes(device.read(STATUS, 64)) == good(9)
