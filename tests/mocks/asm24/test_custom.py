"""The open firmware's requests, from the USB side: what is answered, what is refused, what is left behind."""

from __future__ import annotations

import os
from typing import Any

import pytest
import usb.core

from hw.errors import NotModelled
from mocks.asm24.fabric import Request
from mocks.asm24.sram import DATA
from tests.mocks.asm24.bench import MEMORY, PREFETCHABLE, Bench
from tests.mocks.asm24.test_usb import fails

PIPE, TIMED_OUT, OVERFLOWED = 32, 110, 75
UNSUPPORTED = 1
NOTHING, NO_COMPLETION = 0xFF, 1
MEMSIZE = MEMORY + 4 * 0xDE3
COMPLETION = 0x82200C


def brought_up(*arguments: Any, **keywords: Any) -> Bench:
    bench = Bench(*arguments, **keywords)
    bench.bring_up()
    return bench


# --- XDATA ---


@pytest.mark.parametrize(("profile", "most"), [("navi31-asm24", 512), ("asm24-usb2", 64)])
def test_xdata_reads_are_cut_without_a_word(profile: str, most: int) -> None:
    bench = Bench(profile)
    assert len(bench.xdata(0xF000, 1024)) == most
    assert bench.xdata(0xF000, 32) == bench.bridge.sram.read(DATA, 32)


def test_windows_show_the_sram() -> None:
    bench = Bench()
    for address, place in ((0xF000, 0x200000), (0xFFFF, 0x200FFF), (0xA800, 0x820800), (0xB000, 0x800000), (0xB80C, 0x82200C)):
        bench.poke(address, 0xC3)
        assert bench.bridge.sram.read(place, 1) == b"\xc3"
        bench.bridge.sram.write(place, b"\x3c")
        assert bench.xdata(address) == b"\x3c"


def test_page_1_is_another_space() -> None:
    bench = Bench()
    bench.poke(0x6025, 0x80, page=1)
    assert bench.xdata(0x6025, page=1) == b"\x80"
    with pytest.raises(NotModelled):
        bench.xdata(0x6025)


@pytest.mark.parametrize(("address", "page", "name"), [(0xC471, 0, "NVME_QUEUE_BUSY"), (0x6100, 0, "0x6100"), (0x5084, 1, "PORT1_CFG"), (0xB450, 2, "page 2")])
def test_what_has_no_model_says_its_name(address: int, page: int, name: str) -> None:
    bench = Bench()
    with pytest.raises(NotModelled, match=name):
        bench.xdata(address, page=page)
    with pytest.raises(NotModelled, match=name):
        bench.poke(address, 1, page=page)
    assert bench.xdata(0xB450) == b"\0"


def test_read_only_registers_ignore_writes() -> None:
    bench = Bench()
    bench.poke(0xB450, 0x78)
    assert bench.xdata(0xB450) == b"\0"
    bench.poke(0xC8FF, 0x55)
    assert bench.xdata(0xC8FF) == b"\x04"


@pytest.mark.parametrize(("profile", "without_data"), [("navi31-asm24", "stall"), ("navi31-asm24-add1", "done")])
def test_unknown_requests(profile: str, without_data: str) -> None:
    """Newer builds stall what they do not know. Older ones end requests without data and never answer the others, but take their data."""
    device = Bench(profile).device
    expected = PIPE if without_data == "stall" else TIMED_OUT
    assert fails(device.ctrl_transfer, 0xC0, 0xF4, 0, 0, 16) == expected
    assert fails(device.ctrl_transfer, 0x40, 0xF5, 0, 0, b"abcd", 100) == expected
    if without_data == "stall":
        assert fails(device.ctrl_transfer, 0x40, 0x77, 0, 0, None) == PIPE
    else:
        assert device.ctrl_transfer(0x40, 0x77, 0, 0, None) == 0
        assert bytes(device.ctrl_transfer(0xC0, 0xE4, 0x9E00, 0, 4)) == b"abcd"


# --- single requests ---


def test_requests_before_power_are_never_completed() -> None:
    bench = Bench()
    before = bench.clock.now()
    assert bench.config(0, 0) == (NOTHING, 0, 0)
    assert bench.clock.now() - before > 0.4


def test_absent_functions_and_addresses_outside_every_bar_are_unsupported_requests() -> None:
    bench = brought_up()
    assert bench.config(4, 0) == (0, 0, 0x744C1002)
    assert bench.config(4, 0, function=1) == (0, 0, 0xAB301002)
    assert bench.config(4, 0, function=5) == (0, UNSUPPORTED, 0)
    assert bench.config(4, 0, device=3) == (0, UNSUPPORTED, 0)
    assert bench.config(5, 0) == (0, UNSUPPORTED, 0)
    assert bench.read(MEMSIZE) == (0, 0, 0x5FF0)
    for address in (MEMORY - 4, MEMORY + (1 << 20), PREFETCHABLE + (1 << 36), 0x1000):
        assert bench.read(address) == (0, UNSUPPORTED, 0)


def test_reply_carries_byte_count_and_whether_there_was_data() -> None:
    bench = brought_up()
    bench.request(0x05, 4 << 24)
    assert bench.reply() == bytes.fromhex("02104c7400040100")
    assert bench.reply() == bytes.fromhex("02104c7400040100"), "registers keep their values"
    bench.request(0x45, 4 << 24 | 0x3C, be=0x1, value=0x0B)
    assert bench.reply() == bytes.fromhex("0000000000040000")
    bench.request(0x20, PREFETCHABLE + 1, be=0x2)
    assert bench.reply() == bytes(7) + b"\x01", "an unaligned address is no request that anybody completes"
    for be, count in ((0x1, 1), (0xC, 2), (0x6, 2), (0xF, 4)):
        bench.request(0x20, PREFETCHABLE, be=be)
        assert bench.reply()[5] == count


def test_byte_enables_decide_what_is_written() -> None:
    bench = brought_up()
    bench.gpu.vram.write(0x1000, bytes(8))
    bench.request(0x60, PREFETCHABLE + 0x1000, be=0x6, value=0x44332211)
    bench.clock.sleep(1e-3)
    assert bench.gpu.vram.read(0x1000, 8) == bytes.fromhex("0022330000000000")
    bench.config(4, 0x3C, 0x11223344, be=0x1)
    assert bench.config(4, 0x3C)[2] & 0xFFFF == 0x0144


def test_registers_of_the_gpu_are_written_and_read_back() -> None:
    bench = brought_up()
    scratch = MEMORY + 4 * bench.gpu.index("NBIO", "BIF_BX0_PCIE_INDEX2")
    bench.request(0x60, scratch, value=0x0DF00D00)
    assert bench.read(scratch) == (0, 0, 0x0DF00D00)


def test_posted_write_to_nowhere_is_lost_without_a_sign() -> None:
    bench = brought_up()
    bench.request(0x60, 0x9000_0000, value=1)
    assert bench.bridge.fabric.lost_writes == [0x9000_0000]


def test_what_goes_wrong_without_a_sign_is_noted() -> None:
    bench = brought_up()
    assert bench.bridge.misuse == []
    bench.reply()
    bench.stream_write(PREFETCHABLE, bytes(16), count=3)
    bench.request(0x60, PREFETCHABLE, value=2, mode=1)
    bench.request(0x20, PREFETCHABLE, be=0x18)
    bench.reply()
    assert [each.split(":")[0] for each in bench.bridge.misuse] == [
        "a reply was fetched that no request is waiting for",
        "stream write",
        "a request while 2 dwords of a stream had not gone by",
        "byte enables 0x18",
    ]


def test_request_of_another_length_is_stalled() -> None:
    bench = Bench()
    assert fails(bench.device.ctrl_transfer, 0x40, 0xF0, 0x0F20, 0, bytes(8)) == PIPE


# --- streams ---


def test_stream_write_and_read_are_dwords_in_order() -> None:
    bench = brought_up()
    data = os.urandom(3000)
    assert bench.stream_write(PREFETCHABLE + 0x2000, data) == 3000
    assert bench.gpu.vram.read(0x2000, 3000) == data
    assert bench.stream_read(PREFETCHABLE + 0x2000, 3000) == data
    record: list[Request] = []
    bench.bridge.fabric.record = record
    bench.stream_write(MEMORY + 4 * bench.gpu.index("NBIO", "BIF_BX0_PCIE_INDEX2"), b"\1\0\0\0")
    assert [(each.kind, each.be, each.data) for each in record] == [("MWr", 0xF, b"\1\0\0\0")]


def test_stream_carries_into_the_upper_half_of_the_address() -> None:
    bench = brought_up()
    record: list[Request] = []
    bench.bridge.fabric.record = record
    bench.stream_write(0xFFFF_FFFC, bytes(8))
    assert [each.address for each in record] == [0xFFFF_FFFC, 0x1_0000_0000]


def test_doorbell_of_64_bits_is_one_stream_low_dword_first() -> None:
    bench = brought_up()
    record: list[Request] = []
    bench.bridge.fabric.record = record
    bench.stream_write(0x8_1000_0018, (0x1122334455667788).to_bytes(8, "little"))
    assert [(each.address, each.data) for each in record] == [(0x8_1000_0018, bytes.fromhex("88776655")), (0x8_1000_001C, bytes.fromhex("44332211"))]


def test_packet_with_more_dwords_than_announced_is_dropped_and_ends_the_stream() -> None:
    bench = brought_up()
    bench.gpu.vram.write(0x3000, bytes(64))
    bench.stream_write(PREFETCHABLE + 0x3000, b"\xaa" * 32, count=4)
    assert bench.gpu.vram.read(0x3000, 64) == bytes(64)
    assert fails(bench.device.write, 0x02, b"\xaa" * 16, 50) == TIMED_OUT


def test_stream_of_fewer_dwords_waits_for_the_rest() -> None:
    bench = brought_up()
    bench.stream_write(PREFETCHABLE + 0x3000, b"\xbb" * 16, count=8)
    assert bench.gpu.vram.read(0x3000, 16) == b"\xbb" * 16
    assert bench.device.write(0x02, b"\xcc" * 16) == 16
    assert bench.gpu.vram.read(0x3010, 16) == b"\xcc" * 16


@pytest.mark.parametrize("what", ["new request", "clear halt", "set interface", "set configuration"])
def test_a_stream_is_given_up_by(what: str) -> None:
    bench = brought_up()
    bench.request(0x60, PREFETCHABLE + 0x3000, value=8, mode=1)
    if what == "new request":
        bench.read(MEMSIZE)
    elif what == "clear halt":
        bench.device.clear_halt(0x02)
    elif what == "set interface":
        bench.device.set_interface_altsetting(0, 0)
    else:
        bench.bridge.host.set_configuration(bench.bridge.host.node, 1)  # type: ignore[arg-type]
    assert fails(bench.device.write, 0x02, bytes(32), 50) == TIMED_OUT


def test_stream_of_nothing_arms_nothing() -> None:
    bench = brought_up()
    bench.request(0x60, PREFETCHABLE, value=0, mode=1)
    assert fails(bench.device.write, 0x02, bytes(4), 50) == TIMED_OUT


def test_abandoned_stream_read_leaves_a_packet_for_the_next_reader() -> None:
    bench = brought_up()
    bench.gpu.vram.write(0x4000, b"\x11" * 4096 + b"\x22" * 4096)
    bench.request(0x20, PREFETCHABLE + 0x4000, value=1024, mode=2)
    assert bytes(bench.device.read(0x81, 1024)) == b"\x11" * 1024
    bench.request(0x20, PREFETCHABLE + 0x5000, value=16, mode=2)
    assert fails(bench.device.read, 0x81, 64) == OVERFLOWED
    bench.device.clear_halt(0x81)
    assert bench.stream_read(PREFETCHABLE + 0x5000, 64) == b"\x22" * 64


def test_failed_reads_in_a_stream_show_the_data_before_them() -> None:
    bench = brought_up()
    bench.gpu.vram.write(0x4000, bytes.fromhex("a1a2a3a4b1b2b3b4c1c2c3c4d1d2d3d4"))
    start = bench.bridge.tlp.sent
    bench.machine.faults.add("tlp-completion", f"{start + 3}:ur:1")
    assert bench.stream_read(PREFETCHABLE + 0x4000, 16) == bytes.fromhex("a1a2a3a4b1b2b3b4b1b2b3b4d1d2d3d4")


def test_stream_read_without_power_hangs_the_chip() -> None:
    bench = brought_up()
    bench.power(False)
    assert fails(bench.device.ctrl_transfer, 0x40, 0xF0, 0x0F20, 2, PREFETCHABLE.to_bytes(8, "little") + b"\x10\0\0\0", 1000) == TIMED_OUT
    assert bench.bridge.wedged
    assert fails(bench.xdata, 0xB450) == TIMED_OUT


def test_one_stream_write_of_4_mib_hangs_the_chip() -> None:
    bench = brought_up()
    assert fails(bench.device.ctrl_transfer, 0x40, 0xF0, 0x0F60, 1, PREFETCHABLE.to_bytes(8, "little") + (1 << 20).to_bytes(4, "little"), 1000) == TIMED_OUT
    assert bench.bridge.wedged


def test_streams_cost_time_by_the_dword() -> None:
    bench = brought_up()
    before = bench.clock.now()
    bench.stream_write(PREFETCHABLE, bytes(1 << 20))
    middle = bench.clock.now()
    bench.stream_read(PREFETCHABLE, 1 << 20)
    assert (1 << 20) / (middle - before) == pytest.approx(3.6e6, rel=0.01)
    assert (1 << 20) / (bench.clock.now() - middle) == pytest.approx(1.8e6, rel=0.01)


# --- SRAM bulk engine ---


def test_bulk_data_lands_in_its_slots() -> None:
    bench = Bench()
    data = os.urandom(0x4000 + 512)
    bench.arm(33, slot=3, slots=2)
    assert bench.device.write(0x02, data) == len(data)
    bench.clock.sleep(1e-3)
    assert bench.bridge.sram.read(DATA + 3 * 0x4000, len(data)) == data


def test_the_last_packet_is_visible_to_pcie_a_moment_after_usb_is_done() -> None:
    bench = Bench()
    bench.bridge.sram.write(DATA, bytes(4096))
    bench.arm(8)
    bench.device.write(0x02, b"\x5a" * 4096)
    assert bench.bridge.sram.read(DATA, 4096) == b"\x5a" * 3072 + bytes(1024)
    bench.clock.sleep(10e-6)
    assert bench.bridge.sram.read(DATA, 4096) == b"\x5a" * 4096


def test_bulk_data_beyond_the_armed_sectors_waits() -> None:
    bench = Bench()
    bench.arm(1)
    transfer = bench.backend.submit_bulk(bench.handle, 0x02, bytes(1024), 100)
    bench.backend.handle_events(1.0)
    assert (transfer.status, transfer.actual) == (2, 512)
    assert bench.bridge.bulk.left == 0


def test_copy_out_waits_for_the_gpu_to_write_the_completion_page_after_arming() -> None:
    bench = brought_up()
    bench.gpu.dma_write(DATA, b"\x77" * 1024)
    bench.gpu.dma_write(COMPLETION, bytes(4))
    bench.arm(2, out_of_sram=True)
    assert fails(bench.device.read, 0x81, 1024, 100) == TIMED_OUT
    bench.gpu.dma_write(COMPLETION, bytes(4))
    assert bytes(bench.device.read(0x81, 1024, 100)) == b"\x77" * 1024


def test_copy_out_released_while_the_host_waits() -> None:
    bench = brought_up()
    bench.arm(2, out_of_sram=True)
    bench.machine.scheduler.call_later(0.01, lambda: bench.gpu.dma_write(COMPLETION, bytes(4)))
    before = bench.clock.now()
    assert len(bench.device.read(0x81, 1024, 1000)) == 1024
    assert 0.01 < bench.clock.now() - before < 0.02


def test_lost_completion_as_planned() -> None:
    bench = brought_up(faults="completion-lost")
    bench.arm(1, out_of_sram=True)
    bench.gpu.dma_write(COMPLETION, bytes(4))
    assert fails(bench.device.read, 0x81, 512, 100) == TIMED_OUT


def test_engine_uses_the_lower_half_of_the_queue_page() -> None:
    bench = Bench()
    bench.bridge.sram.write(0x820000, bytes(4096))
    for _ in range(3):
        bench.arm(1)
        bench.device.write(0x02, bytes(512))
    page = bench.bridge.sram.read(0x820000, 4096)
    assert any(page[:0x800])
    assert not any(page[0x800:])


def test_arming_over_an_unfinished_transfer() -> None:
    newer, older = Bench(), Bench("navi31-asm24-add1")
    for bench in (newer, older):
        bench.arm(4)
        bench.device.write(0x02, bytes(512))
        bench.arm(1)
    assert newer.device.write(0x02, b"\1" * 512) == 512
    assert fails(older.device.write, 0x02, b"\1" * 512, 100) == TIMED_OUT
    older.device.clear_halt(0x02)
    older.arm(1)
    assert older.device.write(0x02, b"\1" * 512) == 512


@pytest.mark.parametrize("what", ["set interface", "set configuration", "port reset", "clear halt"])
def test_what_ends_an_armed_bulk_transfer(what: str) -> None:
    """The MSC engine is switched off by a new configuration or setting; clearing a halt leaves it armed."""
    bench = Bench()
    bench.arm(4)
    bench.device.write(0x02, bytes(512))
    if what == "set interface":
        bench.device.set_interface_altsetting(0, 0)
    elif what == "set configuration":
        bench.bridge.host.set_configuration(bench.bridge.host.node, 1)  # type: ignore[arg-type]
    elif what == "port reset":
        bench.backend.reset_device(bench.handle)
    else:
        bench.device.clear_halt(0x02)
    assert bench.bridge.bulk.left == (3 * 512 if what == "clear halt" else 0)


@pytest.mark.parametrize(("sectors", "slot", "slots"), [(1, 32, 1), (1, 31, 2)])
def test_slots_beyond_the_sram_have_no_model(sectors: int, slot: int, slots: int) -> None:
    with pytest.raises(NotModelled):
        Bench().arm(sectors, slot, slots)


def test_bulk_engine_moves_700_mb_a_second_at_10_gbit_and_what_usb_2_allows() -> None:
    for profile, rate in (("navi31-asm24", 700e6), ("asm24-usb2", 48e6)):
        bench = Bench(profile)
        bench.arm(1024, slots=32)
        before = bench.clock.now()
        bench.device.write(0x02, bytes(1 << 19), 10000)
        assert (1 << 19) / (bench.clock.now() - before) == pytest.approx(rate, rel=0.1)


# --- power, reset ---


def test_power_request_of_older_firmware_waits_for_the_link() -> None:
    bench = Bench("navi31-asm24-add1")
    bench.power(False)
    before = bench.clock.now()
    bench.power(True)
    assert 0.3 < bench.clock.now() - before < 0.7
    assert bench.xdata(0xB450) == b"\x78"


def test_power_request_of_newer_firmware_returns_before_the_link_is_up() -> None:
    bench = Bench()
    before = bench.clock.now()
    bench.power(True)
    assert bench.clock.now() - before < 0.1
    assert bench.xdata(0xB450) == b"\x10"
    bench.clock.sleep(0.5)
    assert bench.xdata(0xB450) == b"\x78"


def test_newer_firmware_restarts_on_request() -> None:
    bench = Bench()
    bench.device.ctrl_transfer(0x40, 0xEB, 0, 0, None)
    bench.clock.sleep(1.0)
    with pytest.raises(usb.core.USBError):
        bench.xdata(0xB450)
    bench.open()
    assert bench.device.product == "custom 1f2e3d4c-CLEAN"
