"""Host RAM as devices see it."""

from __future__ import annotations

import pytest

from hw.errors import DmaError
from hw.pci.device import DMA_PAGE
from mocks.memory import HostRam


@pytest.fixture
def ram() -> HostRam:
    return HostRam(1 << 30, seed=3)


def test_pages_are_shuffled_and_never_adjacent(ram: HostRam) -> None:
    pages = ram.allocate(256 * DMA_PAGE).pages
    assert len(set(pages)) == 256
    assert pages != sorted(pages)
    assert all(page % DMA_PAGE == 0 and page >= 1 << 32 for page in pages)
    assert not any(page + DMA_PAGE in pages for page in pages)


def test_bus_addresses_depend_on_the_seed_only() -> None:
    def pages(seed: int) -> list[int]:
        return HostRam(1 << 24, seed).allocate(16 * DMA_PAGE).pages

    assert pages(1) == pages(1)
    assert pages(1) != pages(2)


def test_memory_is_zero_at_first_and_sizes_are_whole_pages(ram: HostRam) -> None:
    memory = ram.allocate(5000)
    assert memory.size == 2 * DMA_PAGE
    assert memory.window.read(0, memory.size) == bytes(memory.size)


def test_host_and_device_see_the_same_bytes_page_by_page(ram: HostRam) -> None:
    memory = ram.allocate(3 * DMA_PAGE)
    memory.window.write(DMA_PAGE - 2, b"abcd")
    assert ram.dma_read(memory.pages[0] + DMA_PAGE - 2, 2) == b"ab"
    assert ram.dma_read(memory.pages[1], 2) == b"cd"
    ram.dma_write(memory.pages[2] + 8, b"xyz")
    assert memory.window.read(2 * DMA_PAGE + 8, 3) == b"xyz"


def test_a_range_across_the_end_of_a_page_hits_nobody(ram: HostRam) -> None:
    memory = ram.allocate(4 * DMA_PAGE)
    data = ram.dma_read(memory.pages[0] + DMA_PAGE - 4, 8)
    assert data == bytes(4) + b"\xff" * 4
    assert ram.errors == [("read", memory.pages[0] + DMA_PAGE, 4)]


def test_an_address_that_nobody_has_is_counted_and_changes_nothing(ram: HostRam) -> None:
    memory = ram.allocate(DMA_PAGE)
    ram.dma_write(0x1000, b"lost")
    assert ram.errors == [("write", 0x1000, 4)]
    assert ram.host_pointer(0x1000) is None
    assert memory.window.read(0, DMA_PAGE) == bytes(DMA_PAGE)


def test_host_pointer_runs_to_the_end_of_the_page(ram: HostRam) -> None:
    memory = ram.allocate(DMA_PAGE)
    place = ram.host_pointer(memory.pages[0] + 0x123)
    assert place is not None
    assert place[1] == DMA_PAGE - 0x123
    assert place[0] == memory.window.address + 0x123  # type: ignore[attr-defined]


def test_released_memory_is_no_longer_reachable_and_comes_back_zeroed(ram: HostRam) -> None:
    memory = ram.allocate(2 * DMA_PAGE)
    memory.window.write(0, b"secret")
    old = memory.pages[0]
    memory.release()
    memory.release()
    assert ram.dma_read(old, 6) == b"\xff" * 6
    again = ram.allocate(2 * DMA_PAGE)
    assert again.window.read(0, 6) == bytes(6)
    assert old not in again.pages


def test_contiguous_memory_is_one_range_up_to_a_huge_page(ram: HostRam) -> None:
    memory = ram.allocate(2 << 20, contiguous=True)
    assert memory.pages == [memory.pages[0] + at * DMA_PAGE for at in range(512)]
    with pytest.raises(DmaError, match="one physical piece"):
        ram.allocate((2 << 20) + 1, contiguous=True)


def test_memory_runs_out_with_an_error_and_is_usable_again_after_release() -> None:
    ram = HostRam(64 * DMA_PAGE)
    parts = [ram.allocate(16 * DMA_PAGE) for _ in range(4)]
    with pytest.raises(DmaError):
        ram.allocate(1)
    parts[1].release()
    parts[2].release()
    assert ram.allocate(32 * DMA_PAGE).size == 32 * DMA_PAGE
