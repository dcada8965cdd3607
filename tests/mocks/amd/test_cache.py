"""Caches in strict mode (mock-faithfulness line 11): what the CPU and the GPU's shaders see of each other's writes, and when."""

from __future__ import annotations

import ctypes

import pytest

from mocks.amd.hub import CLIENT_CPC, CLIENT_SDMA0, CLIENT_SQC_DATA, CLIENT_SQC_INSTRUCTION, CLIENT_TCP
from mocks.amd.tlb import EXECUTE
from tests.mocks.amd.bench import DATA, FULL_ACQUIRE, Bench, copy, fence, ready, signal

VRAM = 0xA00_0000
HOST = DATA + 0x10_0000
BEFORE_EXEC = [*FULL_ACQUIRE[:7], 0x3F0]
"""acquire without instruction cache and L2"""
UNCACHED = 0x71 | 3 << 48


@pytest.fixture
def bench() -> Bench:
    """One cacheable page of VRAM, one page of host memory, both zero."""
    made = ready(strict=True)
    made.map(DATA, VRAM)
    made.gpu.vram.fill(VRAM, 0x1000)
    made.host_page = made.map_host(HOST, 0x1000)  # type: ignore[attr-defined]
    made.invalidate()
    return made


def shader_reads(bench: Bench, va: int = DATA, size: int = 4, client: int = CLIENT_TCP) -> int:
    return int.from_bytes(bench.gpu.hub("gfx").read(0, va, size, client), "little")


def shader_writes(bench: Bench, value: int, va: int = DATA) -> None:
    bench.gpu.hub("gfx").write(0, va, value.to_bytes(4, "little"), CLIENT_TCP)


def cpu_reads(bench: Bench) -> int:
    return int(bench.gpu.vram.read32(VRAM))


def cpu_writes(bench: Bench, value: int, offset: int = 0) -> None:
    """As if flushed through HDP already."""
    bench.gpu.vram.write32(VRAM + offset, value)


def execute(bench: Bench, words: list[int]) -> None:
    bench.submit(words)
    bench.run()
    assert not bench.hqd.stopped_because


def test_what_a_shader_wrote_is_in_memory_only_after_a_write_back(bench: Bench) -> None:
    shader_writes(bench, 5)
    assert (cpu_reads(bench), shader_reads(bench)) == (0, 5)
    execute(bench, BEFORE_EXEC)
    assert cpu_reads(bench) == 0
    execute(bench, signal(HOST, 1))
    assert cpu_reads(bench) == 5


def test_a_release_without_cache_actions_writes_nothing_back(bench: Bench) -> None:
    shader_writes(bench, 5)
    execute(bench, [0xC0064900, 0x514, 0x20000000, HOST & 0xFFFFFFFF, HOST >> 32, 1, 0, 0])
    assert (bench.host_page.read32(0), cpu_reads(bench)) == (1, 0)  # type: ignore[attr-defined]


def test_what_the_cpu_wrote_is_seen_only_after_an_invalidation(bench: Bench) -> None:
    assert shader_reads(bench) == 0
    cpu_writes(bench, 7)
    assert shader_reads(bench) == 0
    execute(bench, BEFORE_EXEC)
    assert shader_reads(bench) == 0
    execute(bench, FULL_ACQUIRE)
    assert shader_reads(bench) == 7


def test_an_invalidation_alone_keeps_bytes_that_were_not_written_back(bench: Bench) -> None:
    shader_writes(bench, 5)
    cpu_writes(bench, 9, offset=64)
    execute(bench, [*FULL_ACQUIRE[:7], 1 << 14])
    assert (shader_reads(bench), shader_reads(bench, DATA + 64), cpu_reads(bench)) == (5, 9, 0)


def test_a_write_back_touches_only_bytes_that_were_written(bench: Bench) -> None:
    """The CPU writes another part of the same line meanwhile."""
    shader_writes(bench, 5)
    cpu_writes(bench, 9, offset=4)
    execute(bench, [*FULL_ACQUIRE[:7], 1 << 15])
    assert bench.gpu.vram.read64(VRAM) == 9 << 32 | 5


def test_discarding_loses_what_was_written(bench: Bench) -> None:
    shader_writes(bench, 5)
    execute(bench, [*FULL_ACQUIRE[:7], 1 << 13])
    assert (shader_reads(bench), cpu_reads(bench)) == (0, 0)


def test_memory_mapped_uncached_bypasses_l2(bench: Bench) -> None:
    bench.map(DATA + 0x1000, VRAM + 0x1000, flags=UNCACHED)
    bench.gpu.vram.fill(VRAM + 0x1000, 0x1000)
    bench.invalidate()
    shader_writes(bench, 5, DATA + 0x1000)
    assert bench.gpu.vram.read32(VRAM + 0x1000) == 5
    shader_writes(bench, 6, HOST)
    assert bench.host_page.read32(0) == 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("client", [CLIENT_CPC, CLIENT_SDMA0])
def test_other_engines_see_what_is_in_l2(bench: Bench, client: int) -> None:
    shader_writes(bench, 5)
    assert shader_reads(bench, client=client) == 5


@pytest.mark.parametrize("client", [CLIENT_CPC, CLIENT_SDMA0])
def test_shaders_see_what_other_engines_wrote(bench: Bench, client: int) -> None:
    shader_reads(bench)
    bench.gpu.hub("gfx").write(0, DATA, (8).to_bytes(4, "little"), client)
    assert (shader_reads(bench), cpu_reads(bench)) == (8, 8)


def test_a_copy_engine_moves_what_shaders_wrote_without_any_flush(bench: Bench) -> None:
    shader_writes(bench, 5)
    bench.copy_submit(copy(DATA, HOST, 4) + fence(HOST + 8, 1))
    bench.run()
    assert bench.host_page.read32(0) == 5  # type: ignore[attr-defined]


def test_scalar_loads_see_old_data_until_the_scalar_cache_is_invalidated(bench: Bench) -> None:
    """Also of memory that L2 does not cache: kernel arguments in host memory."""
    bench.host_page.write32(0, 1)  # type: ignore[attr-defined]
    assert shader_reads(bench, HOST, client=CLIENT_SQC_DATA) == 1
    bench.host_page.write32(0, 2)  # type: ignore[attr-defined]
    assert shader_reads(bench, HOST, client=CLIENT_SQC_DATA) == 1
    execute(bench, [*FULL_ACQUIRE[:7], 0x3F0 & ~0x80])
    assert shader_reads(bench, HOST, client=CLIENT_SQC_DATA) == 1
    execute(bench, BEFORE_EXEC)
    assert shader_reads(bench, HOST, client=CLIENT_SQC_DATA) == 2


def test_a_machine_that_is_not_strict_has_no_stale_data() -> None:
    bench = ready()
    bench.map(DATA, VRAM)
    bench.invalidate()
    shader_writes(bench, 5)
    assert cpu_reads(bench) == 5
    cpu_writes(bench, 6)
    assert shader_reads(bench) == 6


def test_host_writes_through_the_bar_reach_the_walker_only_after_an_hdp_flush() -> None:
    """Line 5 seen from the hub: the page table entry is still in the host's write path."""
    bench = ready(strict=True)
    bench.map(DATA, VRAM)
    place = bench.entry_place(DATA + 0x1000, 3)
    bench.device.map_bar(0).write64(place, VRAM + 0x1000 | 0x71)
    bench.invalidate()
    shader_reads(bench, DATA + 0x1000)
    assert bench.fault_address() == DATA + 0x1000
    bench.gpu.write_register(0x7F000 >> 2, 0)
    bench.write("GCVM_L2_PROTECTION_FAULT_CNTL", 1)
    bench.invalidate()
    shader_reads(bench, DATA + 0x1000)
    assert bench.fault_address() == 0


def test_changed_code_is_fetched_only_after_the_instruction_cache_is_invalidated(bench: Bench) -> None:
    def fetched() -> int:
        host, _ = bench.gpu.hub("gfx").translate(0, DATA, EXECUTE, CLIENT_SQC_INSTRUCTION)
        return int.from_bytes(ctypes.string_at(host, 4), "little")

    assert fetched() == 0
    cpu_writes(bench, 0xBFB00000)
    execute(bench, [*FULL_ACQUIRE[:7], 0xC3F0])
    assert fetched() == 0
    execute(bench, FULL_ACQUIRE)
    assert fetched() == 0xBFB00000
