"""Planned faults: each hits the transfer, command or request it names, shows as hardware would show it, and leaves a bridge that can be opened again."""

from __future__ import annotations

import pytest
import usb.core
import usb.util

from hw.errors import UsageError
from mocks.asm24.host import Killed
from mocks.faults import FaultPlan
from tests.mocks.asm24.bench import MEMORY, PREFETCHABLE, Bench
from tests.mocks.asm24.test_stock import STOCK, BulkOnly, xdata_read
from tests.mocks.asm24.test_usb import fails

IO, GONE, PIPE, TOO_MUCH, TIMED_OUT = 5, 19, 32, 75, 110
MEMSIZE = MEMORY + 4 * 0xDE3


def hit_next(bench: Bench, kind: str, argument: str = "") -> None:
    """Plan a fault for the next transfer."""
    bench.machine.faults.add(f"usb-{kind}-at", f"{bench.bridge.faults.transfers + 1}{argument}")


def still_works(bench: Bench) -> None:
    assert len(bench.xdata(0xB450)) == 1


def test_wrong_arguments_are_refused() -> None:
    for text in ("usb-stall-at=soon", "usb-disconnect-at=3:", "tlp-completion=1:nonsense", "tlp-completion=ur", "link-slow=x", "usb-nonsense-at=1"):
        with pytest.raises(UsageError):
            FaultPlan.parse(text)


def test_disconnect_for_good_and_for_a_while() -> None:
    bench = Bench()
    hit_next(bench, "disconnect")
    assert fails(bench.xdata, 0xB450) == GONE
    assert fails(bench.xdata, 0xB450) == GONE
    bench.clock.sleep(10.0)
    assert bench.find() is None
    bench.bridge.host.reconnect()
    bench.clock.sleep(0.5)
    bench.open()
    hit_next(bench, "disconnect", ":2")
    assert fails(bench.xdata, 0xB450) == GONE
    bench.clock.sleep(3.0)
    bench.open()
    still_works(bench)


def test_disconnect_in_a_bulk_transfer() -> None:
    bench = Bench()
    bench.bring_up()
    bench.request(0x60, PREFETCHABLE, value=1024, mode=1)
    hit_next(bench, "disconnect", ":1")
    assert fails(bench.device.write, 0x02, bytes(4096)) == GONE
    bench.clock.sleep(2.0)
    bench.open()
    assert fails(bench.device.write, 0x02, bytes(64), 50) == TIMED_OUT, "the stream did not survive"
    assert bench.read(MEMSIZE)[0] == 0, "the PCIe side did"


def test_bus_reset_enumerates_anew() -> None:
    bench = Bench()
    address = bench.device.address
    hit_next(bench, "bus-reset")
    assert fails(bench.xdata, 0xB450) == GONE
    bench.clock.sleep(1.0)
    bench.open()
    assert bench.device.address != address
    still_works(bench)


def test_stall_of_a_control_request_is_over_with_the_next() -> None:
    bench = Bench()
    hit_next(bench, "stall")
    assert fails(bench.xdata, 0xB450) == PIPE
    still_works(bench)


def test_stall_of_a_bulk_endpoint_lasts_until_it_is_cleared() -> None:
    bench = Bench()
    bench.arm(2)
    hit_next(bench, "stall")
    assert fails(bench.device.write, 0x02, bytes(512)) == PIPE
    assert fails(bench.device.write, 0x02, bytes(512)) == PIPE
    bench.device.clear_halt(0x02)
    assert bench.device.write(0x02, bytes(512)) == 512


def test_timeouts_that_a_retry_gets_over() -> None:
    bench = Bench()
    hit_next(bench, "timeout", ":2")
    before = bench.clock.now()
    assert fails(bench.xdata, 0xB450) == TIMED_OUT
    assert fails(bench.xdata, 0xB450) == TIMED_OUT
    assert bench.clock.now() - before == pytest.approx(2.0, abs=0.01)
    still_works(bench)


def test_short_transfers() -> None:
    bench = Bench()
    hit_next(bench, "short", ":3")
    assert len(bench.xdata(0xF000, 16)) == 3
    assert len(bench.xdata(0xF000, 16)) == 16
    bench.arm(4)
    hit_next(bench, "short")
    assert bench.device.write(0x02, bytes(2048)) == 1024
    assert bench.bridge.bulk.left == 1024


def test_overflow_and_cable_error() -> None:
    bench = Bench()
    bench.bring_up()
    bench.request(0x20, PREFETCHABLE, value=16, mode=2)
    hit_next(bench, "overflow")
    assert fails(bench.device.read, 0x81, 64) == TOO_MUCH
    bench.device.clear_halt(0x81)
    hit_next(bench, "error")
    assert fails(bench.xdata, 0xB450) == IO
    still_works(bench)


def test_wedge_lasts_until_power_is_cycled() -> None:
    bench = Bench()
    hit_next(bench, "wedge")
    assert fails(bench.xdata, 0xB450) == TIMED_OUT
    assert fails(bench.device.ctrl_transfer, 0x80, 6, 0x0302, 0x0409, 255) == TIMED_OUT
    bench.bridge.power_cycle()
    bench.machine.faults.remove("usb-wedge-at")
    bench.clock.sleep(1.0)
    bench.open()
    still_works(bench)


def test_death_before_a_transfer_and_after_its_data() -> None:
    bench = Bench()
    hit_next(bench, "kill")
    with pytest.raises(Killed):
        bench.poke(0x1000, 0x42)
    bench.open()
    assert bench.xdata(0x1000) != b"\x42"
    hit_next(bench, "kill", ":1")
    with pytest.raises(Killed):
        bench.poke(0x1000, 0x43)
    assert bench.bridge.xdata.memory[0x1000] == 0x43
    bench.open()
    still_works(bench)


def test_death_in_a_stream_leaves_dwords_to_come() -> None:
    bench = Bench()
    bench.bring_up()
    bench.gpu.vram.write(0, bytes(4096))
    bench.request(0x60, PREFETCHABLE, value=1024, mode=1)
    hit_next(bench, "kill", ":2048")
    with pytest.raises(Killed):
        bench.device.write(0x02, b"\x55" * 4096)
    assert bench.gpu.vram.read(0, 4096) == b"\x55" * 2048 + bytes(2048)
    device = bench.find()
    usb.util.claim_interface(device, 0)
    assert device.write(0x02, b"\x66" * 1024) == 1024
    assert bench.gpu.vram.read(2048, 1024) == b"\x66" * 1024, "who does not start afresh goes on with the old stream"
    device.set_interface_altsetting(0, 0)
    assert fails(device.write, 0x02, bytes(64), 50) == TIMED_OUT


@pytest.mark.parametrize(("outcome", "result", "status"), [("ur", 0, 1), ("crs", 0, 2), ("reserved", 0, 3), ("ca", 0, 4), ("timeout", 1, 0)])
def test_wrong_completions(outcome: str, result: int, status: int) -> None:
    bench = Bench()
    bench.bring_up()
    bench.machine.faults.add("tlp-completion", f"{bench.bridge.tlp.sent + 1}:{outcome}:2")
    assert [bench.read(MEMSIZE)[:2] for _ in range(3)] == [(result, status), (result, status), (0, 0)]


def test_failed_scsi_command() -> None:
    bench = Bench(STOCK, "scsi-fail-at=2")
    pipe = BulkOnly(bench)
    assert len(pipe.read(xdata_read(0x07F0, 6), 6)) == 6
    pipe.send(xdata_read(0x07F0, 6), 6, to_host=True)
    assert fails(bench.device.read, 0x81, 6) == PIPE
    bench.device.clear_halt(0x81)
    assert pipe.status() == (6, 1)
    assert len(pipe.read(xdata_read(0x07F0, 6), 6)) == 6


def test_status_of_another_command() -> None:
    bench = Bench(STOCK, "scsi-wrong-tag-at=1")
    pipe = BulkOnly(bench)
    pipe.send(bytes(6))
    csw = bytes(bench.device.read(0x81, 13))
    assert csw[:4] == b"USBS"
    assert csw[4:8] != (1).to_bytes(4, "little")


def test_every_usb_fault_in_every_transfer_of_an_opening_leaves_a_bridge_that_opens() -> None:
    """Whatever happens in whichever transfer: plugged in again or powered again, it opens."""
    for kind in ("disconnect", "bus-reset", "stall", "timeout", "short", "overflow", "error", "wedge", "kill"):
        for number in range(1, 8):
            bench = Bench("asm24-no-gpu", open_it=False)
            bench.machine.faults.add(f"usb-{kind}-at", str(number))
            try:
                bench.open()
                bench.xdata(0xB450)
                bench.arm(2)
                bench.device.write(0x02, bytes(1024), 200)
                bench.config(0, 0)
            except (usb.core.USBError, Killed, IndexError):
                pass
            bench.machine.faults.remove(f"usb-{kind}-at")
            usb.util.dispose_resources(bench.device)
            if kind == "wedge":
                bench.bridge.power_cycle()
            if bench.find() is None:
                bench.bridge.host.reconnect()
            bench.clock.sleep(1.0)
            bench.open()
            bench.power(True)
            assert bench.config(0, 0) == (0, 0, 0x24611B21), f"{kind} in transfer {number}"
            bench.arm(1)
            assert bench.device.write(0x02, bytes(512)) == 512
