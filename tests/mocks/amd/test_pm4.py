"""The PM4 processor (mock-faithfulness lines 13, 17): packets by their effect, waits, errors, ring ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hw.errors import NotModelled
from mocks.amd.dispatch import Launch
from tests.mocks.amd.bench import DATA, FULL_ACQUIRE, Bench, copy, fence, low_high, ready, signal, wait

VECTORS = {
    each["id"].removeprefix("gfx1100."): each
    for each in json.loads((Path(__file__).parents[2] / "data" / "amd_pm4.json").read_text())["vectors"]
    if each["id"].startswith("gfx1100.")
}
SIGNAL = 0x2000_000A_BCD0
MAILBOX = 0x2000_0040_0010


def words_of(name: str) -> list[int]:
    return [int(each, 16) for packet in VECTORS[name]["expected"]["packets"] for each in packet]


@pytest.fixture
def bench() -> Bench:
    made = ready()
    made.signal_page = made.map_host(SIGNAL & -0x1000, 0x1000)  # type: ignore[attr-defined]
    made.mailbox_page = made.map_host(MAILBOX & -0x1000, 0x1000)  # type: ignore[attr-defined]
    made.invalidate()
    return made


def word(bench: Bench, va: int = SIGNAL) -> int:
    return int(bench.gpu.hub("gfx").read32(0, va))


def store(bench: Bench, value: int, va: int = SIGNAL) -> None:
    bench.gpu.hub("gfx").write(0, va, value.to_bytes(4, "little"))


def done(bench: Bench) -> bool:
    return bool(bench.read_pointer() == bench.put % 1024 and not bench.hqd.stopped_because)


# --- recorded packets ---


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("wait_memory_ge", 4659, 4660), ("wait_memory_ge", 0, 0x80000000), ("poll_bit_set", 0xF7, 0xF8), ("poll_bit_clear", 0x1200, 0xFFFF00FF)],
)
def test_recorded_memory_wait_holds_the_queue_until_the_word_compares(bench: Bench, name: str, before: int, after: int) -> None:
    store(bench, before)
    bench.submit(words_of(name) + signal(MAILBOX, 1))
    bench.run(0.01)
    assert (word(bench, MAILBOX), bench.queue_register("CP_HQD_PQ_RPTR")) == (0, 0)
    store(bench, after)
    bench.run(0.01)
    assert (word(bench, MAILBOX), done(bench)) == (1, True)


@pytest.mark.parametrize(("name", "before", "after"), [("wait_register_eq", 0x104, 0x105), ("wait_register_ge", 4, 0x10000)])
def test_recorded_register_wait_looks_at_the_queues_own_shader_registers(bench: Bench, name: str, before: int, after: int) -> None:
    bench.hqd.shader[0x2E12] = before
    bench.submit(words_of(name) + signal(MAILBOX, 1))
    bench.run(0.01)
    assert word(bench, MAILBOX) == 0
    bench.hqd.shader[0x2E12] = after
    bench.run(0.01)
    assert word(bench, MAILBOX) == 1


def test_recorded_hdp_flush_and_barrier_make_host_writes_visible() -> None:
    for name in ("write_register_wait_register", "memory_barrier"):
        bench = ready(strict=True)
        bench.map(DATA, 0xA00_0000)
        bench.invalidate()
        bench.gpu.vram.fill(0xA00_0000, 0x1000)
        memory = bench.device.map_bar(0)
        memory.write32(0xA00_0000, 5)
        bench.submit(wait(DATA, 5))
        bench.run()
        assert not done(bench)
        memory.write32(0xA00_0000, 0)
        bench = ready(strict=True)
        bench.map(DATA, 0xA00_0000)
        bench.invalidate()
        bench.gpu.vram.fill(0xA00_0000, 0x1000)
        bench.device.map_bar(0).write32(0xA00_0000, 5)
        bench.submit(words_of(name) + wait(DATA, 5))
        bench.run()
        assert done(bench)


@pytest.mark.parametrize(("name", "size", "value"), [("signal", 4, 119), ("release_flush", 4, 1), ("write_32", 4, 0xDEADBEEF), ("write_64", 8, 0x1122334455667788)])
def test_recorded_release_stores_its_value_and_nothing_beside_it(bench: Bench, name: str, size: int, value: int) -> None:
    bench.gpu.hub("gfx").write(0, SIGNAL, b"\xee" * 16)
    bench.submit(words_of(name))
    bench.run()
    assert bench.gpu.hub("gfx").read(0, SIGNAL, 16) == value.to_bytes(size, "little") + b"\xee" * (16 - size)
    assert done(bench)


def test_recorded_timeline_signal_interrupts_where_end_of_pipe_interrupts_are_enabled(bench: Bench) -> None:
    bench.submit(words_of("signal_timeline_of_kernel_driver_device"))
    bench.run()
    assert (word(bench), word(bench, MAILBOX), bench.entries()) == (119, 2, [])
    bench.write("CP_INT_CNTL", 1 << 26)
    bench.submit(words_of("signal_timeline_of_kernel_driver_device"))
    bench.run()
    entry = bench.entries()[0]
    assert (entry[0] & 0xFFFF, entry[4]) == (181 << 8 | 20, 2)


def test_recorded_timestamp_is_the_gpu_clock(bench: Bench) -> None:
    before = int(bench.clock.now() * 100e6)
    bench.submit(words_of("timestamp"))
    bench.run()
    stamp = int.from_bytes(bench.gpu.hub("gfx").read(0, SIGNAL + 8, 8), "little")
    assert before < stamp < int(bench.clock.now() * 100e6)


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("acquire") or name == "release_plain"])
def test_recorded_cache_actions_go_through(bench: Bench, name: str) -> None:
    bench.submit(words_of(name) + signal(SIGNAL, 1))
    bench.run()
    assert word(bench) == 1


def test_recorded_indirect_buffer_runs_its_dwords(bench: Bench) -> None:
    """0x123 dwords: a signal, and the rest filler."""
    buffer = signal(MAILBOX, 7) + [0xFFFF1000] * (0x123 - 8)
    bench.gpu.hub("gfx").write(0, SIGNAL, b"".join(each.to_bytes(4, "little") for each in buffer[:12]))
    bench.map_host((SIGNAL & -0x1000) + 0x1000, 0x1000)
    bench.invalidate()
    bench.gpu.hub("gfx").write(0, SIGNAL, b"".join(each.to_bytes(4, "little") for each in buffer))
    bench.submit(words_of("indirect_buffer"))
    bench.run()
    assert (word(bench, MAILBOX), done(bench)) == (7, True)


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("launch")])
def test_recorded_launch_is_understood(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every register of the launch arrives in what the dispatch starts."""
    inputs = VECTORS[name]["inputs"]
    launched: list[Launch] = []
    monkeypatch.setattr(bench.gpu.blocks["mec"], "start_waves", lambda hqd, launch: launched.append(launch))
    bench.submit(words_of(name))
    bench.run()
    assert done(bench)
    launch = launched[0]
    assert (launch.program, launch.groups, launch.block) == (int(inputs["code_entry"], 16), tuple(inputs["groups"]), tuple(inputs["block"]))
    assert (launch.rsrc1, launch.rsrc2, launch.rsrc3) == tuple(int(inputs[each], 16) for each in ("rsrc1", "rsrc2", "rsrc3"))
    assert launch.wave32 == inputs["wave32"]
    assert launch.lds_bytes == (0 if name == "launch_dispatch_ptr" else inputs["group_segment_bytes"])  # recorded with an empty LDS field
    assert launch.scratch_base == int(inputs["scratch_va"], 16)
    sent = next(packet for packet in VECTORS[name]["expected"]["packets"] if packet[1] == "0x00000240")
    assert launch.user_data[: len(sent) - 2] == tuple(int(each, 16) for each in sent[2:])
    assert len(launch.user_data) == launch.rsrc2 >> 1 & 0x1F
    if launch.rsrc2 & 1:
        lanes = inputs["scratch_reserved_per_lane"]
        assert launch.scratch_wave_bytes == -(-64 * lanes // 256) * 256
    assert launch.impossible == ""


# --- packets without a recording ---


def test_write_data_stores_words_in_memory_and_registers(bench: Bench) -> None:
    bench.submit([0xC0043700, 0x500, *low_high(SIGNAL), 1, 2])
    scratch = bench.gpu.index("GC", "SCRATCH_REG6")
    bench.submit([0xC0033700, 0x000, scratch, 0, 0x77])
    bench.run()
    assert (word(bench), word(bench, SIGNAL + 4), bench.read("SCRATCH_REG6")) == (1, 2, 0x77)


def test_copy_data_moves_registers_memory_and_constants(bench: Bench) -> None:
    store(bench, 0x55)
    scratch = bench.gpu.index("GC", "SCRATCH_REG6")
    bench.submit([0xC0044000, 0x002, *low_high(SIGNAL), scratch, 0])
    bench.submit([0xC0044000, 0x200, scratch, 0, *low_high(MAILBOX)])
    bench.submit([0xC0044000, 0x10205, 0x44332211, 0x88776655, *low_high(MAILBOX + 8)])
    bench.run()
    assert (bench.read("SCRATCH_REG6"), word(bench, MAILBOX)) == (0x55, 0x55)
    assert bench.gpu.hub("gfx").read(0, MAILBOX + 8, 8) == bytes.fromhex("1122334455667788")


def test_cond_exec_passes_over_dwords_while_its_word_is_zero(bench: Bench) -> None:
    conditional = [0xC0032200, *low_high(SIGNAL), 0, 8, *signal(MAILBOX, 1)]
    bench.submit(conditional + signal(MAILBOX + 8, 2))
    bench.run()
    assert (word(bench, MAILBOX), word(bench, MAILBOX + 8)) == (0, 2)
    store(bench, 1)
    bench.submit(conditional)
    bench.run()
    assert word(bench, MAILBOX) == 1


def test_pred_exec_runs_only_what_is_meant_for_this_die(bench: Bench) -> None:
    bench.submit([0xC0002300, 8 | 2 << 24, *signal(MAILBOX, 1), 0xC0002300, 8 | 1 << 24, *signal(MAILBOX + 8, 2)])
    bench.run()
    assert (word(bench, MAILBOX), word(bench, MAILBOX + 8)) == (0, 2)


def test_wait_reg_mem64_compares_64_bits(bench: Bench) -> None:
    bench.submit([0xC0079300, 0x15, *low_high(SIGNAL), 0, 2, 0xFFFFFFFF, 0xFFFFFFFF, 4, *signal(MAILBOX, 1)])
    store(bench, 0xFFFFFFFF)
    bench.run()
    assert word(bench, MAILBOX) == 0
    store(bench, 2, SIGNAL + 4)
    bench.run()
    assert word(bench, MAILBOX) == 1


def test_dma_data_copies_and_fills(bench: Bench) -> None:
    bench.gpu.hub("gfx").write(0, SIGNAL, b"payload!")
    bench.submit([0xC0055000, 0, *low_high(SIGNAL), *low_high(MAILBOX), 8])
    bench.submit([0xC0055000, 2 << 29, 0x41414141, 0, *low_high(MAILBOX + 8), 8])
    bench.run()
    assert bench.gpu.hub("gfx").read(0, MAILBOX, 16) == b"payload!AAAAAAAA"


def test_nops_of_any_length_are_passed_over(bench: Bench) -> None:
    bench.submit([0xFFFF1000, 0xC0031000, 1, 2, 3, 4, 0x80000000, *signal(SIGNAL, 1)])
    bench.run()
    assert word(bench) == 1


def test_a_register_that_set_sh_reg_does_not_know_is_not_modelled(bench: Bench) -> None:
    with pytest.raises(NotModelled, match="SET_SH_REG"):
        bench.submit([0xC0017600, 0x100, 1])
        bench.run()


def test_a_user_config_register_without_model_is_named(bench: Bench) -> None:
    with pytest.raises(NotModelled, match="SQ_THREAD_TRACE_CTRL"):
        bench.submit([0xC0017900, 0x19EC, 1])
        bench.run()


# --- errors ---


def rejected(bench: Bench, words: list[int], source: int | None) -> str:
    """The queue stops at these words, with an interrupt of that source; what follows is not carried out."""
    start = bench.put
    bench.submit(words + signal(SIGNAL, 1))
    bench.run()
    assert word(bench) == 0
    assert bench.hqd.rptr == start
    assert bench.sources() == ([(20, source)] if source else [])
    return str(bench.hqd.stopped_because)


@pytest.mark.parametrize("header", [0xC0000000, 0xC000FF00, 0xC0006900], ids=hex)
def test_an_unknown_opcode_stops_the_queue(bench: Bench, header: int) -> None:
    assert "means nothing" in rejected(bench, [header, 0], 183)


@pytest.mark.parametrize("header", [0x00000000, 0x00010000, 0x40000000], ids=hex)
def test_what_is_no_packet_header_stops_the_queue(bench: Bench, header: int) -> None:
    assert "no packet header" in rejected(bench, [header], 183)


@pytest.mark.parametrize(
    "words",
    [
        [0xC0054900, 0x70F514, 0x20000000, 0, 0, 0, 0],
        [0xC0043C00, 0x15, 0, 0, 0, 0],
        [0xC0055800, 0, 0, 0, 0, 0, 0],
        [0xC0021500, 1, 1, 1],
        [0xC0014600, 0x407, 0],
        [0xC0013F00, 0, 0],
        [0xC0034000, 0, 0, 0, 0],
    ],
    ids=["RELEASE_MEM", "WAIT_REG_MEM", "ACQUIRE_MEM of gfx9", "DISPATCH_DIRECT", "EVENT_WRITE", "INDIRECT_BUFFER", "COPY_DATA"],
)
def test_a_packet_with_a_wrong_count_stops_the_queue(bench: Bench, words: list[int]) -> None:
    assert "belong there" in rejected(bench, words, 180)


def test_a_packet_of_a_whole_wrong_count_swallows_what_follows_and_waits(bench: Bench) -> None:
    """A count that reaches beyond the write pointer: the processor waits for the rest."""
    bench.submit([0xC0FF1000, *signal(SIGNAL, 1)])
    bench.run()
    assert (word(bench), bench.hqd.rptr, bench.hqd.stopped_because) == (0, 0, "")


@pytest.mark.parametrize("control", [0x007, 0x085, 0x025], ids=["function 7", "operation 2", "space 2"])
def test_a_wait_with_reserved_values_stops_the_queue(bench: Bench, control: int) -> None:
    assert "WAIT_REG_MEM" in rejected(bench, [0xC0053C00, control, *low_high(MAILBOX), 0, 0, 4], 180)


@pytest.mark.parametrize(
    "words",
    [
        [0xC0064901, 0x0070F514, 0x20000000, *low_high(MAILBOX), 1, 0, 0],
        [0xC0064900, 0x0070F514, 0x20000001, *low_high(MAILBOX), 1, 0, 0],
        [0xC0065800, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0, 0x80000000],
        [0xC0004600, 0x1407],
        [0xC0027600, 0x0001020C, 0, 0],
    ],
    ids=["predicated", "RELEASE_MEM", "ACQUIRE_MEM", "EVENT_WRITE", "SET_SH_REG"],
)
def test_a_packet_with_reserved_bits_set_stops_the_queue(bench: Bench, words: list[int]) -> None:
    assert "belong to no field" in rejected(bench, words, 180)


def test_a_release_to_an_unaligned_address_stops_the_queue(bench: Bench) -> None:
    assert "unaligned" in rejected(bench, [0xC0064900, 0x514, 0x40000000, *low_high(MAILBOX + 4), 1, 0, 0], 180)


def test_an_indirect_buffer_inside_an_indirect_buffer_stops_the_queue(bench: Bench) -> None:
    inner = [0xC0023F00, *low_high(MAILBOX), 4 | 1 << 23]
    bench.gpu.hub("gfx").write(0, MAILBOX, b"".join(each.to_bytes(4, "little") for each in inner))
    assert "inside" in rejected(bench, inner, 180)


def test_an_indirect_buffer_without_its_valid_bit_stops_the_queue(bench: Bench) -> None:
    assert "valid" in rejected(bench, [0xC0023F00, *low_high(MAILBOX), 4], 180)


def test_an_indirect_buffer_that_is_not_mapped_is_a_fault(bench: Bench) -> None:
    assert "page fault" not in rejected_by_fault(bench, [0xC0023F00, *low_high(DATA), 4 | 1 << 23])
    assert bench.queue_register("CP_HQD_ERROR") == 1 << 9


def rejected_by_fault(bench: Bench, words: list[int]) -> str:
    bench.submit(words + signal(SIGNAL, 1))
    bench.run()
    assert (word(bench), bench.sources()) == (0, [(10, 0)])
    return str(bench.hqd.stopped_because)


def test_a_privileged_register_is_out_of_reach_for_a_queue_that_is_not_privileged() -> None:
    bench = Bench()
    bench.hub("MM")
    bench.interrupts()
    bench.hub("GC")
    bench.engine()
    bench.compute_queue(d162=0)
    bench.map_host(SIGNAL & -0x1000, 0x1000)
    bench.invalidate()
    assert "not privileged" in rejected(bench, words_of("write_register_wait_register"), 184)


def test_a_release_without_an_eop_buffer_faults_at_address_0() -> None:
    bench = Bench()
    bench.hub("MM")
    bench.interrupts()
    bench.hub("GC")
    bench.engine()
    bench.compute_queue(d165=0, d166=0)
    bench.map_host(SIGNAL & -0x1000, 0x1000)
    bench.invalidate()
    bench.submit(signal(SIGNAL, 1))
    bench.run()
    assert word(bench) == 0
    assert (bench.fault_address(), bench.fault_status() >> 9 & 0x1FF, bench.fault_status() >> 18 & 1) == (0, 5, 1)


def test_a_ring_that_is_not_mapped_is_a_fault_of_the_fetcher() -> None:
    bench = Bench()
    bench.hub("MM")
    bench.interrupts()
    bench.hub("GC")
    bench.engine()
    bench.compute_queue(d136=0, d137=0)
    bench.submit(signal(SIGNAL, 1))
    bench.run()
    assert (bench.fault_address(), bench.fault_status() >> 9 & 0x1FF) == (0, 4)
    assert bench.read_pointer() == 0


def test_a_store_to_an_unmapped_address_is_a_fault_and_the_queue_goes_on(bench: Bench) -> None:
    bench.submit(signal(DATA, 1) + signal(SIGNAL, 1))
    bench.run()
    assert (word(bench), bench.fault_address(), bench.sources()) == (1, DATA, [(10, 0)])


# --- ring ends and pointers (line 17) ---


def test_a_packet_across_the_end_of_the_ring_is_carried_out(bench: Bench) -> None:
    bench.submit([0xFFFF1000] * 1020)
    bench.run()
    bench.submit(signal(SIGNAL, 5) + signal(MAILBOX, 6))
    bench.run()
    assert (word(bench), word(bench, MAILBOX), bench.read_pointer()) == (5, 6, 12)


def test_a_write_pointer_in_the_middle_of_a_packet_waits_for_the_rest(bench: Bench) -> None:
    bench.submit(signal(SIGNAL, 1), ring=False)
    bench.doorbells.write64(0x18, 5)
    bench.run()
    assert (word(bench), bench.hqd.rptr, bench.hqd.stopped_because) == (0, 0, "")
    bench.doorbells.write64(0x18, 8)
    bench.run()
    assert word(bench) == 1


def test_a_write_pointer_beyond_the_ring_is_taken_modulo_the_ring(bench: Bench) -> None:
    bench.submit(signal(SIGNAL, 1), ring=False)
    bench.doorbells.write64(0x18, 1024 + 8)
    bench.run()
    assert (word(bench), bench.read_pointer()) == (1, 8)


def test_many_laps_of_the_ring_keep_their_order(bench: Bench) -> None:
    for value in range(1, 600):
        bench.submit(signal(SIGNAL, value))
        bench.run(2e-6)
        assert word(bench) == value


def test_the_read_pointer_is_reported_when_the_ring_runs_empty_or_a_wait_holds(bench: Bench) -> None:
    bench.submit(signal(SIGNAL, 1) + wait(MAILBOX, 1))
    bench.run()
    assert bench.read_pointer() == 8
    store(bench, 1, MAILBOX)
    bench.run()
    assert bench.read_pointer() == 15


# --- caches and interleaving ---


def test_two_queues_of_work_in_strict_mode_take_turns_in_an_order_that_the_seed_decides() -> None:
    """Line 13: a copy and a compute queue store to the same word; which is last depends on the seed, and the same seed repeats."""

    def outcome(seed: int) -> int:
        bench = ready(strict=True, seed=seed)
        bench.map_host(DATA, 0x1000)
        bench.invalidate()
        bench.submit([each for value in range(20) for each in (0xC0033700, 0x500, *low_high(DATA), 0x100 + value)], ring=False)
        bench.copy_submit([each for value in range(20) for each in (2, *low_high(DATA), 0, 0x200 + value)], ring=False)
        bench.pointers.write64(0x38, bench.put)
        bench.gpu.blocks["sdma"].doorbell(0x200, bench.sdma_put)
        bench.gpu.blocks["mec"].doorbell(6, bench.put)
        # Not so long that both are through: what is there now shows who went first.
        bench.run(0.5e-6)
        return int(bench.gpu.hub("gfx").read32(0, DATA))

    assert outcome(3) == outcome(3)
    assert len({outcome(seed) for seed in range(6)}) > 1


def test_a_copy_and_a_compute_queue_hand_over_to_each_other(bench: Bench) -> None:
    bench.submit(FULL_ACQUIRE + signal(SIGNAL, 1) + wait(MAILBOX, 7) + signal(SIGNAL + 8, 3))
    bench.copy_submit([0xD0000008, *low_high(SIGNAL), 1, 0xFFFFFFFF, 0x0FFF0004, *copy(SIGNAL, SIGNAL + 4, 4), *fence(MAILBOX, 7)])
    bench.run()
    assert [word(bench, SIGNAL + offset) for offset in (0, 4, 8)] == [1, 1, 3]


def test_vectors_of_this_generation_are_all_covered() -> None:
    covered: set[Any] = {"wait_memory_ge", "poll_bit_set", "poll_bit_clear", "wait_register_eq", "wait_register_ge", "write_register_wait_register", "memory_barrier"}
    covered |= {"signal", "release_flush", "write_32", "write_64", "signal_timeline_of_kernel_driver_device", "timestamp", "indirect_buffer", "release_plain"}
    assert {name for name in VECTORS if name not in covered and not name.startswith(("acquire", "launch"))} == set()
