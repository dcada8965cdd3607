"""Doorbells (mock-faithfulness line 8): aperture, routing, range, index and value all matter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hw.errors import NotModelled
from tests.mocks.amd.bench import COMPUTE_DOORBELL, DATA, SDMA_DOORBELL, Bench, fence, ready, signal


@pytest.fixture
def bench() -> Bench:
    made = ready()
    made.target = made.map_host(DATA, 0x1000)  # type: ignore[attr-defined]
    made.invalidate()
    return made


def reached(bench: Bench, *, compute: bool, byte: int | None = None) -> bool:
    """Submit a store to the compute or copy queue and ring at a byte offset; did it happen?"""
    if compute:
        bench.submit(signal(DATA, 0x77), ring=False)
        bench.doorbells.write64(COMPUTE_DOORBELL if byte is None else byte, bench.put)
    else:
        bench.copy_submit(fence(DATA, 0x77), ring=False)
        bench.doorbells.write64(SDMA_DOORBELL if byte is None else byte, bench.sdma_put)
    bench.run()
    return bool(bench.target.read32(0) == 0x77)  # type: ignore[attr-defined]


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "copy"])
def test_the_right_doorbell_starts_the_work(bench: Bench, compute: bool) -> None:
    assert reached(bench, compute=compute)
    assert not bench.gpu.doorbell.ignored


@pytest.mark.parametrize("compute", [True, False], ids=["compute", "copy"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b.write("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 0, "NBIO"),
        lambda b: [b.write(f"S2A_DOORBELL_ENTRY_{entry}_CTRL", 0, "NBIO") for entry in (0, 2)],
    ],
    ids=["aperture off", "no routing"],
)
def test_a_doorbell_without_a_way_is_lost(bench: Bench, compute: bool, spoil: Callable[[Bench], object]) -> None:
    spoil(bench)
    assert not reached(bench, compute=compute)
    assert len(bench.gpu.doorbell.ignored) == 1


@pytest.mark.parametrize(("compute", "byte"), [(True, 0x20), (True, 0x1000), (False, 0x808), (False, 0x20)])
def test_an_index_that_belongs_to_no_queue_there_is_lost(bench: Bench, compute: bool, byte: int) -> None:
    assert not reached(bench, compute=compute, byte=byte)
    assert len(bench.gpu.doorbell.ignored) == 1


def test_a_copy_doorbell_outside_the_routed_range_goes_to_graphics_and_is_lost(bench: Bench) -> None:
    bench.write("S2A_DOORBELL_ENTRY_2_CTRL", 0x3009001D & ~(0x3FF << 7) | 0x210 << 7, "NBIO")
    assert not reached(bench, compute=False)


def test_a_compute_doorbell_outside_the_engines_range_is_lost(bench: Bench) -> None:
    bench.write("CP_MEC_DOORBELL_RANGE_UPPER", 0x10)
    assert not reached(bench, compute=True)
    assert "CP_MEC_DOORBELL_RANGE" in bench.gpu.doorbell.ignored[0][2]


def test_a_queue_whose_doorbell_is_disabled_hears_nothing() -> None:
    bench = ready()
    bench.target = bench.map_host(DATA, 0x1000)  # type: ignore[attr-defined]
    bench.invalidate()
    bench.write("GRBM_GFX_CNTL", 4)
    bench.write("CP_HQD_PQ_DOORBELL_CONTROL", COMPUTE_DOORBELL)
    bench.write("GRBM_GFX_CNTL", 0)
    assert not reached(bench, compute=True)


def test_the_value_of_the_doorbell_is_the_write_pointer(bench: Bench) -> None:
    bench.submit(signal(DATA, 1) + signal(DATA, 2), ring=False)
    bench.doorbells.write64(COMPUTE_DOORBELL, 8)
    bench.run()
    assert bench.target.read32(0) == 1  # type: ignore[attr-defined]
    bench.doorbells.write64(COMPUTE_DOORBELL, 16)
    bench.run()
    assert bench.target.read32(0) == 2  # type: ignore[attr-defined]


def test_slots_that_nobody_uses_are_accepted_and_ignored(bench: Bench) -> None:
    bench.doorbells.write64(0x1800, 5)
    assert bench.gpu.doorbell.ignored[-1][0] == 0x1800


def test_doorbells_cannot_be_read(bench: Bench) -> None:
    with pytest.raises(NotModelled):
        bench.doorbells.read64(0x18)
