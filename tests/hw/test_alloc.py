"""The range allocators: no overlap, alignment, merging, exact refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.alloc import Tlsf
from hw.errors import BadFree, OutOfMemory


def check_tiling(allocator: Tlsf) -> None:
    """Handed-out and free ranges cover the whole range exactly once, and no two free blocks touch."""
    pieces = sorted([(start, size, True) for start, size in allocator.allocations()] + [(start, size, False) for start, size in allocator.free_blocks()])
    position = allocator.base
    previous_used = True
    for start, size, used in pieces:
        assert start == position
        assert used or previous_used, "two free neighbours were not merged"
        position += size
        previous_used = used
    assert position == allocator.base + allocator.size
    assert allocator.used == sum(size for _, size in allocator.allocations())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 12), st.integers(0, 99)), max_size=60), st.sampled_from([16, 64, 4096]))
def test_ranges_never_overlap_and_free_space_is_whole_again(steps: list[tuple[int, int, int]], granule: int) -> None:
    allocator = Tlsf(1 << 18, base=0x10000, granule=granule)
    live: list[int] = []
    for size, align_bits, choice in steps:
        if choice < 40 and live:
            allocator.free(live.pop(choice % len(live)))
        else:
            try:
                address = allocator.alloc(size, 1 << align_bits)
            except OutOfMemory:
                assert not fits_anywhere(allocator, -(-size // granule) * granule, 1 << align_bits), "refused although a free block fits"
                continue
            assert address % (1 << align_bits) == 0
            assert address % granule == 0
            assert allocator.size_of(address) >= size
            live.append(address)
        check_tiling(allocator)
    for address in live:
        allocator.free(address)
    assert list(allocator.free_blocks()) == [(0x10000, 1 << 18)]


def fits_anywhere(allocator: Tlsf, size: int, align: int) -> bool:
    return any((start + align - 1 & -align) + size <= start + length for start, length in allocator.free_blocks())


def test_the_same_calls_give_the_same_addresses() -> None:
    def run() -> list[int]:
        allocator = Tlsf(1 << 20, granule=4096)
        first = [allocator.alloc(size) for size in (4096, 8192, 65536, 4096, 12288)]
        allocator.free(first[1])
        allocator.free(first[3])
        return [*first, allocator.alloc(4096), allocator.alloc(8192)]

    assert run() == run()


def test_first_allocations_go_from_the_front() -> None:
    allocator = Tlsf(1 << 25, base=0x100000, granule=4096)
    assert [allocator.alloc(0x1000), allocator.alloc(0x3000), allocator.alloc(0x1000)] == [0x100000, 0x101000, 0x104000]


def test_an_exactly_fitting_aligned_block_is_found_when_it_is_the_last() -> None:
    allocator = Tlsf(4 << 20, granule=4096)
    assert allocator.alloc(2 << 20, 2 << 20) == 0
    assert allocator.alloc(2 << 20, 2 << 20) == 2 << 20
    with pytest.raises(OutOfMemory) as caught:
        allocator.alloc(1)
    assert caught.value.read == "0x0 of 0x400000 bytes free, largest block 0x0"


def test_out_of_memory_says_what_is_left_and_changes_nothing() -> None:
    allocator = Tlsf(0x10000, granule=0x1000, name="VRAM")
    kept = [allocator.alloc(0x4000) for _ in range(4)]
    allocator.free(kept[0])
    allocator.free(kept[2])
    with pytest.raises(OutOfMemory, match="0x5000 bytes do not fit into VRAM") as caught:
        allocator.alloc(0x5000)
    assert "0x8000 of 0x10000 bytes free, largest block 0x4000" in caught.value.read
    assert isinstance(caught.value, MemoryError)
    check_tiling(allocator)


def test_freeing_twice_or_freeing_a_stranger_is_refused() -> None:
    allocator = Tlsf(0x10000)
    address = allocator.alloc(0x100)
    other = allocator.alloc(0x100)
    allocator.free(address)
    with pytest.raises(BadFree) as twice:
        allocator.free(address)
    assert "freed twice" in twice.value.read
    with pytest.raises(BadFree) as inside:
        allocator.free(other + 0x10)
    assert "no allocation starts there" in inside.value.read
    check_tiling(allocator)
    assert allocator.used == 0x100


@pytest.mark.parametrize(("size", "align"), [(0, 1), (-1, 1), (16, 0), (16, 3)])
def test_senseless_requests_are_our_own_mistakes(size: int, align: int) -> None:
    with pytest.raises(ValueError, match="cannot allocate"):
        Tlsf(0x1000).alloc(size, align)


def test_very_large_ranges_work() -> None:
    allocator = Tlsf(1 << 44, base=0x2000_0000_0000, granule=4096)
    assert allocator.alloc(1 << 39, 1 << 39) == 0x2000_0000_0000
    assert allocator.alloc(4096) == 0x2000_0000_0000 + (1 << 39)
