"""What lies behind the bridge is reached only as far as software programmed the way."""

from __future__ import annotations

import pytest

from tests.mocks.asm24.bench import MEMORY, PREFETCHABLE, Bench

OK, UNSUPPORTED, RETRY = (0, 0), (0, 1), (0, 2)
NO_COMPLETION = (1, 0)
MEMSIZE = MEMORY + 4 * 0xDE3
ASMEDIA, UPSTREAM, DOWNSTREAM, GPU = 0x24611B21, 0x14781002, 0x14791002, 0x744C1002


def linked(profile: str = "navi31-asm24", faults: str = "") -> Bench:
    bench = Bench(profile, faults)
    bench.link_up()
    return bench


# --- configuration ---


def test_nothing_is_configured_at_power_on() -> None:
    bench = linked()
    assert bench.config(0, 0x00) == (*OK, ASMEDIA)
    assert bench.config(0, 0x18)[2] == 0
    assert bench.config(0, 0x04)[2] & 7 == 0
    assert bench.config(1, 0)[:2] == UNSUPPORTED
    assert bench.config(4, 0)[:2] == UNSUPPORTED
    function = bench.gpu.function
    assert (function.command & 7, [function.bar_address(slot) for slot in function.slots.values()]) == (0, [0, 0, 0, 0])


def test_the_upstream_port_answers_on_every_device_number_of_bus_0() -> None:
    bench = linked()
    assert {bench.config(0, 0, device=device) for device in (0, 1, 17, 31)} == {(*OK, ASMEDIA)}
    assert bench.config(0, 0, function=1)[:2] == UNSUPPORTED


def test_walking_finds_one_bus_after_the_other() -> None:
    bench = linked()
    found = [bench.config(0, 0)[2]]
    for bus in range(4):
        assert bench.config(bus + 1, 0)[:2] == UNSUPPORTED
        bench.config(bus, 0x18, 0xFF0000 | bus + 1 << 8)
        found.append(bench.config(bus + 1, 0)[2])
    assert found == [ASMEDIA, ASMEDIA, UPSTREAM, DOWNSTREAM, GPU]
    assert bench.config(4, 0x0C)[2] >> 16 & 0x7F == 0
    assert bench.config(5, 0)[:2] == UNSUPPORTED


def test_a_bus_beyond_the_subordinate_number_is_not_reached() -> None:
    bench = linked()
    for bus in range(4):
        bench.program_port(bus, last=4)
    assert bench.config(4, 0) == (*OK, GPU)
    bench.config(1, 0x18, 0x030200)
    assert bench.config(4, 0)[:2] == UNSUPPORTED
    assert bench.config(3, 0) == (*OK, DOWNSTREAM)


def test_bus_numbers_written_byte_by_byte_do_not_take_effect() -> None:
    bench = linked()
    for be, value in ((0x1, 0), (0x2, 0x0100), (0x4, 0x040000)):
        bench.config(0, 0x18, value, be=be)
    assert bench.config(0, 0x18)[2] == 0x040100
    assert bench.config(1, 0)[:2] == UNSUPPORTED
    bench.config(0, 0x18, 0x040100)
    assert bench.config(1, 0) == (*OK, ASMEDIA)


def test_type_0_stays_on_bus_0_and_type_1_leaves_it() -> None:
    bench = linked()
    bench.program_port(0)
    assert bench.ask(0x04, 1 << 24)[:2] == UNSUPPORTED
    assert bench.ask(0x05, 0)[:2] == UNSUPPORTED
    assert bench.ask(0x05, 1 << 24) == (*OK, ASMEDIA)


def test_primary_bus_number_may_stay_0() -> None:
    bench = linked()
    for bus in range(4):
        bench.config(bus, 0x18, 0x040000 | bus + 1 << 8)
    assert bench.config(4, 0) == (*OK, GPU)


def test_first_configuration_requests_after_training_are_answered_with_retry() -> None:
    bench = Bench()
    bench.power(True)
    bench.clock.sleep(0.352)
    assert bench.xdata(0xB450) == b"\x78"
    bench.config(0, 0x18, 0x040100)
    bench.config(1, 0x18, 0x040200)
    assert bench.config(1, 0) == (*OK, ASMEDIA)
    assert bench.config(2, 0)[:2] == RETRY
    bench.clock.sleep(0.03)
    assert bench.config(2, 0) == (*OK, UPSTREAM)


def test_planned_retries() -> None:
    bench = linked(faults="config-retry=2")
    bench.config(0, 0x18, 0x040100)
    bench.config(1, 0x18, 0x040200)
    assert [bench.config(2, 0)[:2] for _ in range(3)] == [RETRY, RETRY, OK]


# --- memory ---


@pytest.mark.parametrize("bus", range(4))
def test_every_port_needs_its_windows_and_memory_decoding(bus: int) -> None:
    bench = Bench()
    bench.bring_up()
    assert bench.read(MEMSIZE) == (*OK, 0x5FF0)
    bench.config(bus, 0x04, 0x05, be=1)
    assert bench.read(MEMSIZE)[:2] == UNSUPPORTED
    bench.config(bus, 0x04, 0x07, be=1)
    bench.config(bus, 0x20, 0x1FF01FF0)
    assert bench.read(MEMSIZE)[:2] == UNSUPPORTED
    assert bench.read(PREFETCHABLE)[:2] == OK
    bench.config(bus, 0x20, 0xFFFF1000)
    bench.config(bus, 0x2C, 0x7)
    assert bench.read(PREFETCHABLE)[:2] == UNSUPPORTED
    assert bench.read(MEMSIZE)[:2] == OK


def test_the_gpu_needs_memory_decoding_and_power() -> None:
    bench = Bench()
    bench.bring_up()
    bench.config(4, 0x04, 0x04, be=1)
    assert bench.read(MEMSIZE)[:2] == UNSUPPORTED
    bench.config(4, 0x04, 0x06, be=1)
    bench.config(4, 0x54, 0x3, be=1)
    assert bench.read(MEMSIZE)[:2] == UNSUPPORTED
    bench.config(4, 0x54, 0x0, be=1)
    assert bench.read(MEMSIZE)[:2] == OK


def test_bars_are_sized_before_decoding_is_on_and_missing_ones_stay_zero() -> None:
    bench = linked()
    for bus in range(4):
        bench.program_port(bus)
    masks = []
    for register in range(0x10, 0x28, 4):
        bench.config(4, register, 0xFFFFFFFF)
        masks.append(bench.config(4, register)[2])
    assert masks == [0xF000000C, 0xFFFFFFFF, 0xFFE0000C, 0xFFFFFFFF, 0xFFFFFF01, 0xFFF00000]
    bench.config(4, 0x10, 0xFFFFFFFF, function=1)
    assert bench.config(4, 0x10, function=1)[2] == 0xFFFFC000
    bench.config(4, 0x14, 0xFFFFFFFF, function=1)
    assert bench.config(4, 0x14, function=1)[2] == 0


def test_a_resized_bar_reaches_all_of_the_memory() -> None:
    bench = linked()
    for bus in range(4):
        bench.program_port(bus)
    bench.config(4, 0x208, 0x0F40)
    for register, value in ((0x10, 0), (0x14, 8), (0x24, MEMORY), (0x04, 7)):
        bench.config(4, register, value)
    assert bench.read(PREFETCHABLE + (20 << 30))[:2] == OK
    assert bench.read(PREFETCHABLE + (32 << 30))[:2] == UNSUPPORTED
    bench.config(4, 0x208, 0x0840)
    assert bench.config(4, 0x208)[2] == 0x0F40, "not while memory decoding is on"


# --- the GPU's own accesses ---


def test_the_gpu_reaches_the_sram_and_nothing_else() -> None:
    bench = Bench()
    bench.bring_up()
    bench.bridge.sram.write(0x27FFF0, b"0123456789abcdef")
    assert bench.gpu.dma_read(0x27FFF0, 16) == b"0123456789abcdef"
    for address in (0x280000, 0x1FFFFC, 0x801000, 0x1_0000_0000):
        assert bench.gpu.dma_read(address, 4) == b"\xff" * 4
        bench.gpu.dma_write(address, b"\0" * 4)
    assert bench.bridge.sram.errors == [(kind, address, 4) for address in (0x280000, 0x1FFFFC, 0x801000, 0x1_0000_0000) for kind in ("read", "write")]
    assert bench.machine.ram.errors == []
    for page in (0x800000, 0x808000, 0x820000, 0x822000, 0x828000):
        bench.gpu.dma_write(page + 0x10, b"ok")
        assert bench.bridge.sram.read(page + 0x10, 2) == b"ok"


@pytest.mark.parametrize("bus", range(5))
def test_every_function_on_the_way_must_be_bus_master(bus: int) -> None:
    bench = Bench()
    bench.bring_up()
    bench.bridge.sram.write(0x200000, b"data")
    assert bench.gpu.dma_read(0x200000, 4) == b"data"
    bench.config(bus, 0x04, 0x03, be=1)
    assert bench.gpu.dma_read(0x200000, 4) == b"\xff" * 4
    assert bench.gpu.host_pointer(0x200000) is None


def test_a_window_around_the_sram_keeps_the_gpu_from_it() -> None:
    bench = Bench()
    bench.bring_up()
    bench.config(2, 0x20, 0xFFFF0000)
    assert bench.gpu.dma_read(0x200000, 4) == b"\xff" * 4
    bench.config(2, 0x20, 0xFFFF1000)
    assert bench.gpu.dma_read(0x200000, 4) != b"\xff" * 4


def test_interrupts_do_not_get_through() -> None:
    bench = Bench()
    bench.bring_up()
    bench.config(4, 0xA4, 0xFEE00000)
    bench.config(4, 0xA0, 0x00810005)
    assert not bench.gpu.raise_msi()
    assert bench.gpu.function.interrupts == 0
    assert bench.bridge.sram.errors == [("write", 0xFEE00000, 4)]


# --- resets and the link ---


def test_hot_reset_takes_configuration_and_state_of_what_is_below() -> None:
    bench = Bench()
    bench.bring_up()
    resets = bench.gpu.resets
    bench.config(1, 0x3C, 0x00400000, be=0xC)
    assert bench.gpu.resets == resets + 1
    bench.config(1, 0x3C, 0x00000000, be=0xC)
    assert bench.config(2, 0x18)[2] == 0
    assert bench.read(MEMSIZE)[:2] == UNSUPPORTED
    assert bench.config(1, 0x18)[2] == 0x040200


def test_power_off_takes_configuration_but_a_card_with_its_own_supply_keeps_its_state() -> None:
    bench = Bench()
    bench.bring_up()
    resets = bench.gpu.resets
    bench.power(False)
    assert bench.xdata(0xB450) == b"\0"
    assert bench.config(0, 0)[0] == 0xFF
    bench.link_up()
    assert bench.config(0, 0) == (*OK, ASMEDIA)
    bench.config(2, 0x18)
    assert bench.gpu.function.command & 7 == 0
    assert bench.gpu.resets == resets


def test_a_card_without_its_own_supply_starts_anew() -> None:
    bench = Bench()
    bench.bridge.link._external = False
    bench.bring_up()
    resets = bench.gpu.resets
    bench.power(False)
    assert bench.gpu.resets == resets + 1


def test_a_gpu_that_resets_itself_takes_the_link_with_it() -> None:
    bench = Bench()
    bench.bring_up()
    bench.gpu.mode1_reset()
    bench.clock.sleep(0.05)
    assert bench.read(MEMSIZE)[:2] == NO_COMPLETION
    assert bench.config(2, 0)[:2] == NO_COMPLETION
    assert bench.config(1, 0) == (*OK, ASMEDIA)
    bench.clock.sleep(1.0)
    assert bench.xdata(0xB450) == b"\x78"
    assert bench.config(2, 0x18) == (*OK, 0)
    for bus in range(2, 4):
        bench.program_port(bus)
    assert bench.config(4, 0) == (*OK, GPU)


def test_link_that_drops_stays_down_until_it_is_trained_again() -> None:
    bench = Bench()
    bench.bring_up()
    bench.machine.faults.add("link-down-at", str(bench.bridge.tlp.sent + 2))
    assert bench.read(MEMSIZE)[:2] == OK
    before = bench.clock.now()
    assert bench.read(MEMSIZE)[:2] == NO_COMPLETION
    assert bench.clock.now() - before > 0.01
    bench.clock.sleep(2.0)
    assert bench.xdata(0xB450) == b"\0"
    bench.power(False)
    bench.bring_up()
    assert bench.read(MEMSIZE) == (*OK, 0x5FF0)


def test_an_empty_slot_never_trains() -> None:
    bench = Bench("asm24-no-gpu")
    bench.power(True)
    bench.clock.sleep(3.0)
    assert bench.xdata(0xB450) == b"\0"
    bench.config(0, 0x18, 0x040100)
    bench.config(1, 0x18, 0x040200)
    assert bench.config(1, 0) == (*OK, ASMEDIA)
    assert bench.config(2, 0)[:2] == NO_COMPLETION


def test_link_that_never_trains_shows_a_receiver_now_and_then() -> None:
    bench = Bench(faults="link-never")
    bench.power(True)
    seen = set()
    for _ in range(50):
        seen.add(bench.xdata(0xB450)[0])
        bench.clock.sleep(0.007)
    assert seen == {0, 1}


def test_slow_link() -> None:
    bench = Bench(faults="link-slow=3")
    bench.power(True)
    bench.clock.sleep(2.0)
    assert bench.xdata(0xB450) == b"\x10"
    bench.clock.sleep(2.0)
    assert bench.xdata(0xB450) == b"\x78"


def test_link_can_be_trained_register_by_register_and_hangs_without_lanes() -> None:
    bench = Bench()
    for address, value in ((0xB431, 0x0E), (0xB480, 1), (0xC656, 0x20), (0xE764, 0x1C), (0xB480, 0)):
        bench.poke(address, value)
    bench.clock.sleep(1.0)
    assert bench.xdata(0xB450) == b"\x4c"
    bench.poke(0xE764, 0x00)
    bench.poke(0xC659, 0x01)
    bench.poke(0xE764, 0x1C)
    bench.clock.sleep(1.0)
    assert bench.xdata(0xB450) == b"\x78"
    assert bench.xdata(0xE765) == b"\x02"
    assert bench.xdata(0x4092, page=1) == b"\x13", "one lane, generation 3"


def test_a_gpu_that_fell_off_the_bus_is_an_unsupported_request_behind_its_port() -> None:
    bench = Bench(faults="dead-bus")
    bench.link_up()
    for bus in range(4):
        bench.program_port(bus)
    assert bench.config(3, 0) == (*OK, DOWNSTREAM)
    assert bench.config(4, 0)[:2] == UNSUPPORTED


def test_the_gpu_lost_in_the_middle_does_not_complete() -> None:
    bench = Bench(faults="all-ones-at=2")
    bench.bring_up()
    assert bench.read(MEMSIZE)[:2] == OK
    assert bench.read(MEMSIZE)[:2] == NO_COMPLETION
