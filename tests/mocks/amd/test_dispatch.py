"""Kernels on a compute queue, from hand-written machine code and packets (mock-faithfulness lines 7, 11, 13, 15, 16)."""

from __future__ import annotations

import struct

import pytest

from hw.errors import NotSupported
from mocks.amd.dispatch import read_launch
from tests.mocks.amd.bench import DATA, DUMMY, FULL_ACQUIRE, Bench, copy, fence, low_high, ready, signal

CODE = DATA
ARGS = DATA + 0x1_0000
OUT = DATA + 0x2_0000
FLAG = DATA + 0x3_0000
VRAM = 0xA00_0000
S_ENDPGM = 0xBFB00000

# out[group * 32 + item] = value + item, with the arguments (out, value)
FILL = [
    *(0xF4040100, 0xF8000000),  # s_load_b64 s[4:5], s[0:1], 0x0
    *(0xF4000180, 0xF8000008),  # s_load_b32 s6, s[0:1], 0x8
    0xBF89FC07,  # s_waitcnt lgkmcnt(0)
    *(0x360000FF, 0x3FF),  # v_and_b32 v0, 0x3ff, v0
    0x84028702,  # s_lshl_b32 s2, s2, 7
    *(0xD6460001, 0x00090500),  # v_lshl_add_u32 v1, v0, 2, s2
    0x7E040206,  # v_mov_b32 v2, s6
    0x4A040102,  # v_add_nc_u32 v2, v2, v0
    *(0xDC6A0000, 0x00040201),  # global_store_b32 v1, v2, s[4:5]
    S_ENDPGM,
]
# out[0] = in[0], with the arguments (out, in)
COPY = [
    *(0xF4040100, 0xF8000000),  # s_load_b64 s[4:5], s[0:1], 0x0
    *(0xF4040180, 0xF8000008),  # s_load_b64 s[6:7], s[0:1], 0x8
    0xBF89FC07,
    0x7E000280,  # v_mov_b32 v0, 0
    *(0xDC520000, 0x01060000),  # global_load_b32 v1, v0, s[6:7]
    0xBF8903F7,  # s_waitcnt vmcnt(0)
    *(0xDC6A0000, 0x00040100),  # global_store_b32 v0, v1, s[4:5]
    S_ENDPGM,
]
# out[0] = 7 by way of the wave's scratch memory
SCRATCH = [
    *(0xF4040100, 0xF8000000),
    0xBF89FC07,
    0x7E000280,
    0x7E060287,  # v_mov_b32 v3, 7
    *(0xDC690004, 0x007C0300),  # scratch_store_b32 off, v3, off offset:4
    *(0xDC510004, 0x047C0000),  # scratch_load_b32 v4, off, off offset:4
    0xBF8903F7,
    *(0xDC6A0000, 0x00040400),  # global_store_b32 v0, v4, s[4:5]
    S_ENDPGM,
]
FOREVER = [0xBFA0FFFF]  # s_branch to itself
TRAP = [0xBF900002, S_ENDPGM]  # s_trap 2
INTERRUPT = [0xBEFD0085, 0xBFB60001, S_ENDPGM]  # s_mov_b32 m0, 5; s_sendmsg MSG_INTERRUPT
NO_INSTRUCTION = [0xBFB70000 | 0x7F << 16, S_ENDPGM]


@pytest.fixture
def bench() -> Bench:
    return prepared()


def prepared(**options: object) -> Bench:
    """Code and output in VRAM, arguments and flag in host memory."""
    made = ready(**options)
    made.write("SH_MEM_BASES", 0x00010002)
    made.map(CODE, VRAM, 0x1000)
    made.map(OUT, VRAM + 0x1_0000, 0x4000)
    made.gpu.vram.fill(VRAM, 0x1_4000)
    made.args = made.map_host(ARGS, 0x1000)  # type: ignore[attr-defined]
    made.flag = made.map_host(FLAG, 0x1000)  # type: ignore[attr-defined]
    made.invalidate()
    return made


def launch(
    bench: Bench, code: list[int], args: bytes = b"", groups: tuple[int, int, int] = (1, 1, 1), block: int = 32, *, rsrc2: int = 0x84, tmpring: int = 0, initiator: int = 0x8005
) -> list[int]:
    """Put code and arguments in place; the packets of the launch."""
    bench.gpu.vram.write(VRAM, struct.pack(f"<{len(code)}I", *code))
    bench.args.write(0, args)  # type: ignore[attr-defined]
    return [
        *FULL_ACQUIRE,
        *(0xC0027600, 0x20C, CODE >> 8 & 0xFFFFFFFF, CODE >> 40),
        *(0xC0027600, 0x212, 0x60AF0000, rsrc2),
        *(0xC0017600, 0x228, 0),
        *(0xC0017600, 0x218, tmpring),
        *(0xC0027600, 0x210, *low_high(OUT + 0x1000 >> 8)),
        *(0xC0027600, 0x240, *low_high(ARGS)),
        *(0xC0087600, 0x204, 0, 0, 0, block, 1, 1, 0, 0),
        *(0xC0031500, *groups, initiator),
        *(0xC0004600, 0x407),
    ]


def output(bench: Bench, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}I", bench.gpu.vram.read(VRAM + 0x1_0000, 4 * count)))


def flag(bench: Bench) -> int:
    return int(bench.flag.read32(0))  # type: ignore[attr-defined]


def two(first: int, second: int) -> bytes:
    return struct.pack("<2Q", first, second)


def test_a_kernel_runs_on_every_group_and_item(bench: Bench) -> None:
    bench.submit(launch(bench, FILL, two(OUT, 100), (3, 1, 1)) + signal(FLAG, 1))
    bench.run()
    assert flag(bench) == 1
    assert output(bench, 128) == [100 + item for _ in range(3) for item in range(32)] + [0] * 32


def test_a_partial_wave_runs_only_its_items(bench: Bench) -> None:
    bench.submit(launch(bench, FILL, two(OUT, 5), block=20) + signal(FLAG, 1))
    bench.run()
    assert output(bench, 32) == [5 + item for item in range(20)] + [0] * 12


def test_scratch_memory_belongs_to_the_wave(bench: Bench) -> None:
    bench.submit(launch(bench, SCRATCH, two(OUT, 0), rsrc2=0x85, tmpring=1 | 4 << 12) + signal(FLAG, 1))
    bench.run()
    assert (flag(bench), output(bench, 1)) == (1, [7])


def test_a_signal_behind_a_kernel_comes_after_its_last_wave(bench: Bench) -> None:
    """CS_PARTIAL_FLUSH and end-of-pipe events wait; without the flush the release does."""
    words = launch(bench, FILL, two(OUT, 1), (64, 1, 1))
    bench.submit(words[:-2] + signal(FLAG, 1))
    while not flag(bench):
        bench.run(1e-7)
    assert output(bench, 2048)[-1] == 32


def test_a_kernel_takes_time(bench: Bench) -> None:
    bench.submit(launch(bench, FILL, two(OUT, 1), (64, 1, 1)) + signal(FLAG, 1))
    bench.run(2e-6)
    assert flag(bench) == 0
    bench.run(1e-3)
    assert flag(bench) == 1


@pytest.mark.parametrize("groups", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_dispatch_of_nothing_does_nothing(bench: Bench, groups: tuple[int, int, int]) -> None:
    bench.submit(launch(bench, FILL, two(OUT, 1), groups) + signal(FLAG, 1))
    bench.run()
    assert (flag(bench), output(bench, 1)) == (1, [0])


def test_an_initiator_without_compute_enable_starts_nothing(bench: Bench) -> None:
    bench.submit(launch(bench, FILL, two(OUT, 1), initiator=0x8004) + signal(FLAG, 1))
    bench.run()
    assert (flag(bench), output(bench, 1)) == (1, [0])


def test_dispatch_indirect_reads_its_size_from_memory(bench: Bench) -> None:
    words = launch(bench, FILL, two(OUT, 9))
    bench.flag.write(0x100, struct.pack("<3I", 2, 1, 1))  # type: ignore[attr-defined]
    at = words.index(0xC0031500)
    bench.submit([*words[:at], 0xC0021600, *low_high(FLAG + 0x100), 0x8005, *signal(FLAG, 1)])
    bench.run()
    assert output(bench, 65)[31:] == [40, *(9 + item for item in range(32)), 0]


# --- what cannot run ---


@pytest.mark.parametrize("spoil", ["thread masks", "scratch size", "LDS size", "group size"])
def test_a_dispatch_that_can_never_be_placed_hangs_the_queue(bench: Bench, spoil: str) -> None:
    options: dict[str, object] = {}
    if spoil == "scratch size":
        options["rsrc2"] = 0x85
    elif spoil == "LDS size":
        options["rsrc2"] = 0x84 | 0x81 << 15
    elif spoil == "group size":
        options["block"] = 1025
    words = launch(bench, FILL, two(OUT, 1), **options)  # type: ignore[arg-type]
    if spoil == "thread masks":
        words = [*(each for index in (0x216, 0x217, 0x219, 0x21A, 0x22B, 0x22C, 0x22D, 0x22E) for each in (0xC0017600, index, 0)), *words]
    bench.submit(words + signal(FLAG, 1))
    bench.run(1.0)
    assert (flag(bench), output(bench, 1)) == (0, [0])
    assert bench.hqd.waves[0].stuck


def test_wave64_is_refused_with_its_reason(bench: Bench) -> None:
    bench.submit(launch(bench, FILL, two(OUT, 1), initiator=0x0005))
    with pytest.raises(NotSupported, match="wave64"):
        bench.run()


def test_an_endless_kernel_hangs_its_queue_in_bounded_real_time_and_goes_with_the_queue(bench: Bench) -> None:
    """What it does until a driver gives up is bounded by the time that an instruction takes: 500 million in ten seconds."""
    bench.submit(launch(bench, FOREVER) + signal(FLAG, 1))
    bench.run(10.0)
    assert 0.99 * 500e6 < bench.hqd.waves[0].run.instructions <= 500e6
    assert flag(bench) == 0
    bench.copy_submit(fence(FLAG + 8, 3))
    bench.run()
    assert bench.flag.read32(8) == 3  # type: ignore[attr-defined]
    bench.write("GRBM_GFX_CNTL", 4)
    bench.write("CP_HQD_DEQUEUE_REQUEST", 1)
    bench.run(0.1)
    assert bench.read("CP_HQD_ACTIVE") == 1
    bench.write("CP_HQD_DEQUEUE_REQUEST", 2)
    bench.run(0.1)
    assert bench.read("CP_HQD_ACTIVE") == 0
    assert bench.hqd.waves == []


def test_an_illegal_instruction_interrupts_and_hangs_the_queue(bench: Bench) -> None:
    bench.submit(launch(bench, NO_INSTRUCTION) + signal(FLAG, 1))
    bench.run(0.1)
    entry = bench.entries()[0]
    assert (flag(bench), entry[0] & 0xFFFF, entry[4], entry[5]) == (0, 239 << 8 | 10, 1 << 21, 2 << 6)
    assert "illegal instruction" in bench.hqd.waves[0].stuck


def test_a_trap_without_handler_interrupts_and_hangs_the_queue(bench: Bench) -> None:
    bench.submit(launch(bench, TRAP) + signal(FLAG, 1))
    bench.run(0.1)
    assert (flag(bench), bench.sources()) == (0, [(10, 239)])


def test_a_message_of_a_wave_is_an_interrupt_and_no_error(bench: Bench) -> None:
    bench.submit(launch(bench, INTERRUPT) + signal(FLAG, 1))
    bench.run(0.1)
    entry = bench.entries()[0]
    assert (flag(bench), entry[0] & 0xFFFF, entry[4], entry[5] >> 6 & 3) == (1, 239 << 8 | 10, 5, 1)


# --- faults (line 7) ---


def test_a_store_to_an_unmapped_page_is_reported_and_vanishes(bench: Bench) -> None:
    target = OUT + 0x8000
    bench.submit(launch(bench, FILL, two(target, 1)) + signal(FLAG, 1))
    bench.run()
    assert flag(bench) == 1
    assert bench.fault_address() == target
    assert bench.fault_status() & ~1 == 1 << 4 | 8 << 9 | 1 << 18
    assert bench.sources() == [(10, 0)]


def test_a_load_from_an_unmapped_page_sees_the_default_page(bench: Bench) -> None:
    bench.gpu.vram.write32(DUMMY, 0xD00D)
    bench.submit(launch(bench, COPY, two(OUT, OUT + 0x40_0000)) + signal(FLAG, 1))
    bench.run()
    assert (output(bench, 1), bench.fault_status() >> 18 & 1) == ([0xD00D], 0)


def test_without_the_default_page_a_fault_is_a_memory_violation(bench: Bench) -> None:
    bench.write("GCVM_CONTEXT0_CNTL", 0x01FFFE07 & ~(1 << 16 | 1 << 14))
    bench.submit(launch(bench, FILL, two(OUT + 0x40_0000, 1)) + signal(FLAG, 1))
    bench.run(0.1)
    assert flag(bench) == 0
    assert bench.sources() == [(10, 0), (10, 239)]
    assert (bench.entries()[1][4], bench.entries()[1][5]) == (2 << 21, 2 << 6)


def test_a_store_to_a_read_only_page_changes_nothing(bench: Bench) -> None:
    bench.map(OUT, VRAM + 0x1_0000, flags=0x31)
    bench.invalidate()
    bench.submit(launch(bench, FILL, two(OUT, 1)) + signal(FLAG, 1))
    bench.run()
    assert (output(bench, 1), bench.fault_status() >> 4 & 0xF) == ([0], 4)


def test_code_in_a_page_that_is_not_executable_does_not_run(bench: Bench) -> None:
    bench.map(CODE, VRAM, flags=0x61)
    bench.invalidate()
    bench.submit(launch(bench, FILL, two(OUT, 1)) + signal(FLAG, 1))
    bench.run(0.1)
    assert (flag(bench), output(bench, 1)) == (0, [0])
    assert (bench.fault_status() >> 4 & 0xF, bench.fault_status() >> 9 & 0x1FF, bench.fault_address()) == (8, 9, CODE)


def test_a_mapping_that_changes_during_a_run_is_seen_after_the_invalidation(bench: Bench) -> None:
    bench.gpu.vram.fill(VRAM + 0x2_0000, 0x1000)
    bench.submit(launch(bench, FILL, two(OUT, 1)) + signal(FLAG, 1))
    bench.run()
    bench.map(OUT, VRAM + 0x2_0000)
    bench.submit(launch(bench, FILL, two(OUT, 50)) + signal(FLAG, 2))
    bench.run()
    assert bench.gpu.vram.read32(VRAM + 0x2_0000) == 0
    bench.invalidate()
    bench.submit(launch(bench, FILL, two(OUT, 90)) + signal(FLAG, 3))
    bench.run()
    assert (flag(bench), output(bench, 1), bench.gpu.vram.read32(VRAM + 0x2_0000)) == (3, [50], 90)


# --- strict mode (lines 11, 13, 15, 16) ---


def test_a_strict_kernel_leaves_its_results_in_l2_until_the_release() -> None:
    bench = prepared(strict=True)
    bench.submit([*launch(bench, FILL, two(OUT, 10)), *(0xC0064900, 0x514, 0x20000000), *low_high(FLAG), 1, 0, 0])
    bench.run(0.1)
    assert (flag(bench), output(bench, 1)) == (1, [0])
    bench.submit(signal(FLAG, 2))
    bench.run()
    assert (flag(bench), output(bench, 2)) == (2, [10, 11])


def test_strict_kernel_arguments_are_stale_without_an_acquire() -> None:
    """The scalar cache holds what the last launch read."""
    bench = prepared(strict=True)
    words = launch(bench, FILL, two(OUT, 10))
    bench.submit(words + signal(FLAG, 1))
    bench.run(0.1)
    without = launch(bench, FILL, two(OUT, 20))[len(FULL_ACQUIRE) :]
    bench.submit(without + signal(FLAG, 2))
    bench.run(0.1)
    assert (flag(bench), output(bench, 1)) == (2, [10])
    bench.submit(words + signal(FLAG, 3))
    bench.run(0.1)
    assert output(bench, 1) == [20]


def test_strict_changed_code_is_stale_without_an_acquire() -> None:
    bench = prepared(strict=True)
    bench.submit(launch(bench, FILL, two(OUT, 10)) + signal(FLAG, 1))
    bench.run(0.1)
    words = launch(bench, COPY, two(OUT + 0x100, OUT))
    bench.submit(words[len(FULL_ACQUIRE) :] + signal(FLAG, 2))
    bench.run(0.1)
    assert (flag(bench), output(bench, 65)[64]) == (2, 0)
    bench.submit(words + signal(FLAG, 3))
    bench.run(0.1)
    assert (flag(bench), output(bench, 65)[64]) == (3, 10)


def test_strict_copy_engine_works_while_waves_run() -> None:
    """A copy submitted after a long kernel is done before it."""
    bench = prepared(strict=True)
    bench.submit(launch(bench, FILL, two(OUT, 1), (16, 1, 1)) + signal(FLAG, 1))
    bench.copy_submit(copy(ARGS, FLAG + 0x40, 16) + fence(FLAG + 8, 1))
    while not bench.flag.read32(8):  # type: ignore[attr-defined]
        bench.run(1e-6)
    assert flag(bench) == 0
    bench.run(0.1)
    assert flag(bench) == 1


def test_two_dispatches_without_a_flush_between_them_may_overlap() -> None:
    """The second one reads what the first one writes; whether it finds it depends on the seed."""

    def outcome(seed: int) -> int:
        bench = prepared(strict=True, seed=seed)
        first = launch(bench, FILL, two(OUT, 77))
        second = [0xC0027600, 0x20C, CODE + 0x100 >> 8 & 0xFFFFFFFF, CODE >> 40, 0xC0027600, 0x240, *low_high(ARGS + 0x40), 0xC0031500, 1, 1, 1, 0x8005]
        bench.gpu.vram.write(VRAM + 0x100, struct.pack(f"<{len(COPY)}I", *COPY))
        bench.args.write(0x40, two(FLAG + 4, OUT))  # type: ignore[attr-defined]
        bench.submit(first[:-2] + second + signal(FLAG, 1))
        bench.run(0.1)
        assert flag(bench) == 1
        return int(bench.flag.read32(4))  # type: ignore[attr-defined]

    outcomes = [outcome(seed) for seed in range(8)]
    assert set(outcomes) == {0, 77}
    assert outcome(3) == outcomes[3]


# --- the registers alone ---


def test_dimensions_in_work_items_are_divided_by_the_group_size() -> None:
    shader = {0x2E07: 32, 0x2E08: 2, 0x2E09: 1, 0x2E16: 1, 0x2E12: 0, 0x2E13: 0}
    launched = read_launch(shader, (64, 4, 3), 0x8025, engines=6, lds_limit=65536)
    assert launched is not None
    assert (launched.groups, launched.block, launched.waves_per_group) == ((2, 2, 3), (32, 2, 1), 2)
