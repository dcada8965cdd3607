"""The copy engines (mock-faithfulness lines 6, 13, 17): packets by their effect on memory, rings at their ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mocks.amd.tlb import READ, WRITE
from tests.mocks.amd.bench import DATA, SDMA_RING, Bench, copy, fence, low_high, ready

VECTORS = {
    each["id"].split(").")[1]: each
    for each in json.loads((Path(__file__).parents[2] / "data" / "amd_sdma.json").read_text())["vectors"]
    if each["id"].startswith("6.0.0")
}
SIGNAL = 0x2000_000A_BCD0
SOURCE = 0x2000_0040_0000
TARGET = 0x2000_0123_4560


def words_of(name: str) -> list[int]:
    return [int(each, 16) for each in VECTORS[name]["expected"]["words"]]


@pytest.fixture
def bench() -> Bench:
    """Both queues; the addresses of the recorded vectors are mapped to VRAM of zeros."""
    made = ready()
    for va, offset in ((SIGNAL & -0x1000, 0x600_0000), (SOURCE, 0x700_0000), (SOURCE + 0x10_0000, 0x710_0000), (TARGET & -0x1000, 0x800_0000)):
        made.map(va, offset, 0x4000)
        made.gpu.vram.fill(offset, 0x4000)
    made.invalidate()
    return made


def read(bench: Bench, va: int, size: int) -> bytes:
    return bytes(bench.gpu.hub("gfx").read(0, va, size))


def word(bench: Bench, va: int) -> int:
    return int.from_bytes(read(bench, va, 4), "little")


def done(bench: Bench) -> bool:
    """Did the engine take everything that was submitted?"""
    return bool(bench.sdma_pointers.read64(0x80) == bench.sdma_put and not bench.sdma.stopped_because)


# --- recorded packets ---


@pytest.mark.parametrize("name", ["copy_1", "copy_4096"])
def test_recorded_copy_moves_exactly_its_bytes(bench: Bench, name: str) -> None:
    size = VECTORS[name]["inputs"]["bytes"]
    pattern = bytes((position * 7 + 1) & 0xFF for position in range(size + 16))
    bench.gpu.hub("gfx").write(0, SOURCE, pattern)
    bench.copy_submit(words_of(name))
    bench.run()
    assert done(bench)
    assert read(bench, TARGET, size + 16) == pattern[:size] + bytes(16)


@pytest.mark.parametrize("name", ["copy_max", "copy_max_plus_1", "copy_3_parts"])
def test_recorded_long_copies_are_understood(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int], int]] = []
    monkeypatch.setattr(bench.sdma, "_move", lambda source, targets, size, backwards: seen.append((source, targets, size)))
    bench.copy_submit(words_of(name))
    bench.run()
    assert sum(size for _, _, size in seen) == VECTORS[name]["inputs"]["bytes"]
    position = 0
    for source, targets, size in seen:
        assert (source, targets) == (SOURCE + position, [TARGET + position])
        position += size


def test_recorded_fence_stores_four_bytes(bench: Bench) -> None:
    bench.gpu.hub("gfx").write(0, SIGNAL, b"\xee" * 8)
    bench.copy_submit(words_of("fence"))
    bench.run()
    assert read(bench, SIGNAL, 8) == b"\x77\0\0\0\xee\xee\xee\xee"


def test_recorded_fence_and_trap_store_both_and_interrupt(bench: Bench) -> None:
    bench.map(0x2000_0040_0000, 0x700_0000)
    bench.copy_submit(words_of("fence_and_trap"))
    bench.run()
    assert (word(bench, SIGNAL), word(bench, 0x2000_0040_0010)) == (0x77, 2)
    entry = bench.entries()[0]
    assert (entry[0] & 0xFFFF, entry[4]) == (49 << 8 | 10, 2)


@pytest.mark.parametrize(("name", "before", "after"), [("poll_ge", 4659, 4660), ("poll_ge", 0, 0xFFFFFFFF), ("poll_eq", 0x51000004, 0x51000003)])
def test_recorded_poll_waits_until_the_word_compares(bench: Bench, name: str, before: int, after: int) -> None:
    bench.gpu.hub("gfx").write(0, SIGNAL, before.to_bytes(4, "little"))
    bench.copy_submit(words_of(name) + fence(SOURCE, 1))
    bench.run(0.01)
    assert word(bench, SOURCE) == 0
    assert bench.sdma.rptr == 0
    bench.gpu.hub("gfx").write(0, SIGNAL, after.to_bytes(4, "little"))
    bench.run(0.01)
    assert word(bench, SOURCE) == 1


def test_recorded_timestamp_is_the_gpu_clock(bench: Bench) -> None:
    before = int(bench.clock.now() * 100e6)
    bench.copy_submit(words_of("timestamp"))
    bench.run()
    stamp = int.from_bytes(read(bench, SIGNAL + 8, 8), "little")
    assert before <= stamp <= int(bench.clock.now() * 100e6)


@pytest.mark.parametrize(("name", "stored"), [("write_32", 0xDEADBEEF), ("write_64", 0x1122334455667788)])
def test_recorded_write_stores_its_words(bench: Bench, name: str, stored: int) -> None:
    bench.copy_submit(words_of(name))
    bench.run()
    assert int.from_bytes(read(bench, SIGNAL, 8), "little") == stored


def test_recorded_fill_repeats_its_pattern(bench: Bench) -> None:
    bench.copy_submit(words_of("const_fill"))
    bench.run()
    assert read(bench, 0x2000_000A_BC00, 4096) == b"\xa5" * 4096
    assert word(bench, 0x2000_000A_CC00) == 0


def test_recorded_trap_interrupts_only_when_enabled(bench: Bench) -> None:
    bench.write("SDMA0_CNTL", 0)
    bench.copy_submit(words_of("trap"))
    bench.run()
    assert (done(bench), bench.entries()) == (True, [])
    bench.write("SDMA0_CNTL", 1)
    bench.copy_submit(words_of("trap"))
    bench.run()
    assert bench.sources() == [(10, 49)]


def test_recorded_indirect_buffer_runs(bench: Bench) -> None:
    buffer = fence(SIGNAL, 5) + fence(SIGNAL + 4, 6) + [0] * 8
    bench.map(0x2000_0050_0000, 0x900_0000)
    bench.gpu.hub("gfx").write(0, 0x2000_0050_0000, b"".join(each.to_bytes(4, "little") for each in buffer))
    bench.copy_submit([0, 0, *words_of("indirect")])
    bench.run()
    assert (done(bench), word(bench, SIGNAL), word(bench, SIGNAL + 4)) == (True, 5, 6)


@pytest.mark.parametrize("name", ["ring_start", "ring_wrap", "ring_wrap_later_lap", "ring_exact_end"])
def test_recorded_ring_placement_is_executed(name: str) -> None:
    """A ring of 64 dwords as the recorded driver left it: the tail is filled up, packets go on at the start."""
    vector = VECTORS[name]
    bench = ready()
    for va, offset in ((SIGNAL & -0x1000, 0x600_0000), (SOURCE, 0x700_0000), (TARGET & -0x1000, 0x800_0000)):
        bench.map(va, offset, 0x4000)
        bench.gpu.vram.fill(offset, 0x4000)
    bench.invalidate()
    before = vector["inputs"]["put_bytes_before"]
    after = vector["expected"].get("put_bytes_after", vector["expected"].get("put_bytes"))
    ring = [int(each, 16) for each in vector["expected"]["ring"]]
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0)
    bench.pair("SDMA0_QUEUE0_RB_RPTR", "SDMA0_QUEUE0_RB_RPTR_HI", before)
    bench.pair("SDMA0_QUEUE0_RB_WPTR", "SDMA0_QUEUE0_RB_WPTR_HI", before)
    for position, value in enumerate(ring):
        bench.sdma_window.write32(4 * position, value)
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0x00841800 | 6 << 1 | 1)
    bench.gpu.hub("gfx").write(0, SIGNAL, (1).to_bytes(4, "little"))
    bench.doorbells.write64(0x800, after)
    bench.run()
    assert bench.sdma.stopped_because == ""
    assert (bench.sdma_pointers.read64(0x80), word(bench, SIGNAL)) == (after, 2)


def test_recorded_register_writes_make_a_copy_queue() -> None:
    vectors = json.loads((Path(__file__).parents[2] / "data" / "amd_mqd.json").read_text())["vectors"]
    vector = next(each for each in vectors if each["id"] == "gfx1100.sdma_0")
    bench = Bench()
    bench.hub("GC")
    bench.copy_engine()
    ring = bench.map_host(int(vector["inputs"]["ring_va"], 16), 0x1000)
    pointers = bench.map_host(int(vector["inputs"]["rptr_va"], 16) & -0x1000, 0x1000)
    target = bench.map_host(DATA, 0x1000)
    bench.invalidate()
    for write in vector["expected"]["register_writes"]:
        bench.gpu.write_register(int(write["dword"], 16), int(write["value"], 16))
    bench.run()
    assert bench.sdma.ring_bytes == int(vector["inputs"]["ring_bytes"], 16)
    for position, value in enumerate(fence(DATA, 3)):
        ring.write32(4 * position, value)
    bench.doorbells.write64(8 * vector["expected"]["doorbell_index_64bit"], 16)
    bench.run()
    assert (target.read32(0), pointers.read64(0x80)) == (3, 16)


# --- copies ---


def test_a_copy_over_pages_that_are_not_neighbours_moves_the_right_bytes(bench: Bench) -> None:
    """Line 6: both sides scattered, both unaligned."""
    scattered = bench.map_host(DATA, 0x10000)
    for page in range(16):
        bench.map(DATA + 0x10_0000 + 0x1000 * page, 0xA00_0000 + 0x1000 * (page * 7 % 16))
    bench.invalidate()
    pattern = bytes((position * position >> 3) & 0xFF for position in range(0xE000))
    scattered.write(0x123, pattern)
    bench.copy_submit(copy(DATA + 0x123, DATA + 0x10_0777, len(pattern)))
    bench.run()
    assert done(bench)
    assert read(bench, DATA + 0x10_0777, len(pattern)) == pattern


def test_a_broadcast_copy_writes_both_targets(bench: Bench) -> None:
    bench.gpu.hub("gfx").write(0, SOURCE, b"broadcast")
    bench.copy_submit([0x0800_0001, 8, 0, *low_high(SOURCE), *low_high(SIGNAL), *low_high(TARGET)])
    bench.run()
    assert (read(bench, SIGNAL, 9), read(bench, TARGET, 9)) == (b"broadcast", b"broadcast")


def test_a_copy_takes_time_by_its_size(bench: Bench) -> None:
    bench.map(DATA, 0xA00_0000, 8 << 20)
    bench.invalidate()
    bench.copy_submit(copy(DATA, DATA + (4 << 20), 4 << 20) + fence(SIGNAL, 1))
    bench.run(50e-6)
    assert word(bench, SIGNAL) == 0
    bench.run(1e-3)
    assert word(bench, SIGNAL) == 1


def test_a_copy_of_4_mib_translates_every_page_once_on_each_side(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.map_host(DATA, 4 << 20)
    bench.map(DATA + (4 << 20), 0xA00_0000, 4 << 20)
    bench.invalidate()
    hub = bench.gpu.hub("gfx")
    seen: list[tuple[int, int]] = []
    translate = hub.translate

    def counting(vmid: int, va: int, access: int, client: int = 0, *, fetch: bool = False) -> tuple[int, int]:
        if not fetch:
            seen.append((va, access))
        return translate(vmid, va, access, client, fetch=fetch)

    monkeypatch.setattr(hub, "translate", counting)
    bench.copy_submit(copy(DATA, DATA + (4 << 20), 4 << 20))
    bench.run(1e-3)
    pages = [DATA + page * 0x1000 for page in range(1024)]
    assert sorted(seen) == sorted([*((va, READ) for va in pages), *((va + (4 << 20), WRITE) for va in pages)])


def test_a_copy_that_meets_an_unmapped_page_reports_it_and_writes_nothing_there(bench: Bench) -> None:
    bench.gpu.hub("gfx").write(0, SOURCE, b"x" * 0x1000)
    missing = DATA + 0x40_0000
    bench.copy_submit(copy(SOURCE, missing, 0x1000) + fence(SIGNAL, 1))
    bench.run()
    assert bench.fault_address() == missing
    assert (bench.fault_status() >> 9 & 0x1FF, bench.fault_status() >> 18 & 1) == (13, 1)
    assert bench.sources() == [(10, 0)]


# --- the queue ---


@pytest.mark.parametrize("spoil", ["halted", "no firmware", "not enabled"])
def test_an_engine_that_is_not_set_up_does_not_fetch(spoil: str) -> None:
    bench = Bench(firmware=spoil != "no firmware")
    bench.hub("GC")
    bench.copy_engine(halted=spoil == "halted")
    bench.copy_queue(control=0x00841815 & ~(spoil == "not enabled"))
    window = bench.map_host(DATA, 0x1000)
    bench.invalidate()
    bench.copy_submit(fence(DATA, 1))
    bench.run()
    assert (window.read32(0), bench.sdma_pointers.read64(0x80)) == (0, 0)
    if spoil == "halted":
        bench.write("SDMA0_F32_CNTL", 0)
        bench.doorbells.write64(0x800, bench.sdma_put)
        bench.run()
        assert window.read32(0) == 1


def test_a_write_pointer_in_memory_is_taken_over_when_the_queue_starts() -> None:
    bench = ready()
    window = bench.map_host(DATA, 0x1000)
    bench.invalidate()
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0)
    bench.copy_submit(fence(DATA, 1), ring=False)
    bench.sdma_pointers.write64(0x38, bench.sdma_put)
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0x00841815)
    bench.run()
    assert window.read32(0) == 1


def test_a_ring_that_is_not_mapped_is_a_fault_and_the_read_pointer_stays(bench: Bench) -> None:
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0)
    bench.write("SDMA0_QUEUE0_RB_BASE", 0)
    bench.write("SDMA0_QUEUE0_RB_BASE_HI", 0)
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0x00841815)
    bench.copy_submit([0] * 4)
    bench.run()
    assert (bench.fault_address(), bench.sdma_pointers.read64(0x80)) == (0, 0)


def test_a_packet_across_the_end_of_the_ring_stops_the_engine_and_the_watchdog_tells(bench: Bench) -> None:
    """Line 17."""
    bench.copy_submit([0] * 1021)
    bench.run()
    bench.copy_submit(fence(SIGNAL, 1))
    bench.run(0.1)
    assert word(bench, SIGNAL) == 0
    assert bench.sdma.rptr == 4 * 1021
    assert "across the end" in bench.sdma.stopped_because
    assert bench.entries() == []
    bench.run(10.0)
    assert bench.sources() == [(10, 55)]


def test_a_packet_that_ends_exactly_with_the_ring_is_fine(bench: Bench) -> None:
    bench.copy_submit([0] * 1020 + fence(SIGNAL, 1))
    bench.copy_submit(fence(SIGNAL + 4, 2))
    bench.run()
    assert (word(bench, SIGNAL), word(bench, SIGNAL + 4), bench.sdma_pointers.read64(0x80)) == (1, 2, 4 * 1028)


def test_a_write_pointer_in_the_middle_of_a_packet_waits_for_the_rest(bench: Bench) -> None:
    bench.copy_submit(fence(SIGNAL, 1), ring=False)
    bench.doorbells.write64(0x800, 8)
    bench.run()
    assert (word(bench, SIGNAL), bench.sdma.rptr) == (0, 0)
    bench.doorbells.write64(0x800, 16)
    bench.run()
    assert word(bench, SIGNAL) == 1


def test_a_write_pointer_beyond_the_ring_is_taken_modulo_the_ring(bench: Bench) -> None:
    bench.copy_submit(fence(SIGNAL, 1), ring=False)
    bench.doorbells.write64(0x800, 0x1000 + 16)
    bench.run()
    assert (word(bench, SIGNAL), bench.sdma_pointers.read64(0x80)) == (1, 16)


@pytest.mark.parametrize("header", [0x000000FF, 0x00000301, 0x0000000A | 0xFF00])
def test_an_unknown_operation_stops_the_engine(bench: Bench, header: int) -> None:
    bench.copy_submit([header, 0, 0, 0, *fence(SIGNAL, 1)])
    bench.run()
    assert (word(bench, SIGNAL), bench.sdma.rptr) == (0, 0)
    assert "not known" in bench.sdma.stopped_because


def test_an_indirect_buffer_that_does_not_end_on_eight_dwords_stops_the_engine(bench: Bench) -> None:
    bench.copy_submit(words_of("indirect"))
    bench.run()
    assert "not a multiple of 8" in bench.sdma.stopped_because


def test_an_hdp_flush_by_register_makes_host_writes_visible() -> None:
    bench = ready(strict=True)
    target = bench.map_host(DATA, 0x1000)
    bench.map(DATA + 0x1000, 0xA00_0000, flags=0x71 | 3 << 48)
    bench.invalidate()
    memory = bench.device.map_bar(0)
    bench.gpu.vram.fill(0xA00_0000, 0x1000)
    memory.write32(0xA00_0000, 0x1234)
    bench.copy_submit(copy(DATA + 0x1000, DATA, 4))
    bench.run()
    assert target.read32(0) == 0
    bench.copy_submit([0x3400_0008, 0xE27 << 2, 0xE26 << 2, 1 << 10, 1 << 10, 0x0FFF000A, *copy(DATA + 0x1000, DATA, 4)])
    bench.run()
    assert target.read32(0) == 0x1234


def test_a_soft_reset_takes_the_queue_and_the_engines_settings(bench: Bench) -> None:
    bench.write("GRBM_SOFT_RESET", 1 << 23)
    bench.run(0.01)
    bench.write("GRBM_SOFT_RESET", 0)
    assert (bench.read("SDMA0_QUEUE0_RB_CNTL"), bench.read("SDMA0_F32_CNTL") & 1) == (0, 1)
    bench.copy_submit(fence(SIGNAL, 1))
    bench.run()
    assert word(bench, SIGNAL) == 0


def test_disabling_the_ring_stops_it_where_it_is(bench: Bench) -> None:
    bench.copy_submit([*words_of("poll_ge"), *fence(SOURCE, 1)])
    bench.run()
    bench.write("SDMA0_QUEUE0_RB_CNTL", 0x00841814)
    bench.gpu.hub("gfx").write(0, SIGNAL, b"\xff" * 4)
    bench.run()
    assert (word(bench, SOURCE), bench.read("SDMA0_QUEUE0_RB_RPTR")) == (0, 0)


def test_the_copy_engine_and_a_compute_queue_wait_for_each_other(bench: Bench) -> None:
    """Work on one engine goes on while another one waits."""
    bench.submit([0xC0053C00, 0x15, *low_high(SIGNAL), 1, 0xFFFFFFFF, 4, 0xC0064900, 0x0070F514, 0x20000000, *low_high(SIGNAL + 4), 2, 0, 0])
    bench.run()
    bench.copy_submit([*fence(SIGNAL, 1), 0xD0000008, *low_high(SIGNAL + 4), 2, 0xFFFFFFFF, 0x0FFF0004, *fence(SIGNAL + 8, 3)])
    bench.run()
    assert [word(bench, SIGNAL + 4 * each) for each in range(3)] == [1, 2, 3]


def test_the_second_engine_works_the_same_way(bench: Bench) -> None:
    ring = bench.map_host(SDMA_RING + 0x8000, 0x1000)
    pointers = bench.map_host(SDMA_RING + 0x9000, 0x1000)
    bench.invalidate()
    bench.write("SDMA1_F32_CNTL", 0)
    bench.pair("SDMA1_QUEUE0_RB_BASE", "SDMA1_QUEUE0_RB_BASE_HI", SDMA_RING + 0x8000 >> 8)
    bench.pair("SDMA1_QUEUE0_RB_RPTR_ADDR_LO", "SDMA1_QUEUE0_RB_RPTR_ADDR_HI", SDMA_RING + 0x9080)
    bench.pair("SDMA1_QUEUE0_RB_WPTR_POLL_ADDR_LO", "SDMA1_QUEUE0_RB_WPTR_POLL_ADDR_HI", SDMA_RING + 0x9038)
    bench.write("SDMA1_QUEUE0_DOORBELL_OFFSET", 0x808)
    bench.write("SDMA1_QUEUE0_DOORBELL", 1 << 28)
    bench.write("SDMA1_QUEUE0_RB_CNTL", 0x00841815)
    for position, value in enumerate(fence(SIGNAL, 9)):
        ring.write32(4 * position, value)
    bench.doorbells.write64(0x808, 16)
    bench.run()
    assert (word(bench, SIGNAL), pointers.read64(0x80)) == (9, 16)


def test_vectors_of_this_generation_are_all_covered() -> None:
    covered: set[Any] = {"copy_0", "nop"}
    covered |= {"copy_1", "copy_4096", "copy_max", "copy_max_plus_1", "copy_3_parts", "fence", "fence_and_trap", "poll_ge", "poll_eq", "timestamp", "write_32", "write_64"}
    covered |= {"const_fill", "trap", "indirect", "ring_start", "ring_wrap", "ring_wrap_later_lap", "ring_exact_end"}
    assert set(VECTORS) - covered == set()
