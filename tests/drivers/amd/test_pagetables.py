"""Behaviours of a page-table implementation, looked at where the GPU would: in video memory, by a walker that is not the driver's."""

from __future__ import annotations

import numpy as np
import pytest

from drivers.amd import bench
from drivers.amd.page_entries import GFX9, GFX11, GFX12, HOST, VRAM, VRAM_UNCACHED, EntryFormat, format_of, fragment_covering, fragment_within, fragments
from drivers.amd.pagetables import VA_BASE, VA_SIZE, PageTables
from hw.errors import BusLost, HubError, MappingError, OutOfMemory, UnknownHardware
from tests.drivers.amd.page_memory import PAGE, Leaf, Memory, Tables, check_fragments, leaves

MIB = 1 << 20
RANGES = [
    (0x10000, 0x3000),
    (0x11000, 0x300000),
    (0x10000, 0x2000),
    (0x11000, 0x5000),
    (0x2000000, 0x2000),
    (0x4000000, 0x4000000),
    (0x38000, 0x303000),
    (0x8000, 0x1000),
]


class Space:
    """One address space over plain memory; offsets are counted from the start of the window."""

    def __init__(self, format: EntryFormat = GFX11, limit: int | None = None) -> None:
        self.format = format
        self.memory = Memory()
        self.tables = Tables(0x1E00_0000, limit)
        self.invalidations = 0
        self.on_invalidate = lambda: None
        self.pt = PageTables(format, root=0, write=self.memory.write, alloc_table=self.tables.alloc, free_table=self.tables.free, invalidate=self._invalidate)
        self.pt.clear()

    def _invalidate(self) -> None:
        self.invalidations += 1
        self.on_invalidate()

    def map(self, offset: int, size: int, address: int | None = None) -> None:
        self.pt.map(VA_BASE + offset, size, [(offset if address is None else address, size)], VRAM)

    def unmap(self, offset: int, size: int) -> None:
        self.pt.unmap(VA_BASE + offset, size)

    def found(self, start: int = 0, end: int = VA_SIZE) -> list[Leaf]:
        """What the GPU's walker finds, checked against what the driver's own walk says."""
        found = [leaf for leaf in leaves(self.memory, self.format.name) if leaf.offset < end and leaf.offset + leaf.size > start]
        seen = [(entry.va - VA_BASE, entry.size, entry.level, entry.address, entry.value) for entry in self.pt.walk(VA_BASE + start, end - start)]
        assert seen == [(leaf.offset, leaf.size, leaf.level, leaf.address, leaf.entry) for leaf in found]
        return found

    def state(self) -> tuple[dict[int, bytes], set[int], int]:
        return self.memory.snapshot(), set(self.tables.used), self.invalidations

    def is_empty(self) -> bool:
        return not self.found() and not self.tables.used and self.pt.table_count == 1


def fail_once(space: Space, error: BaseException) -> None:
    """The next invalidation raises; later ones work."""

    def fail() -> None:
        space.on_invalidate = lambda: None
        raise error

    space.on_invalidate = fail


@pytest.mark.parametrize("error", [HubError("acknowledge of the invalidation"), BusLost("it fell off"), KeyboardInterrupt()])
@pytest.mark.parametrize(("offset", "size"), [(0x11000, 0x300000), (0x10000, 0x3000), (0x4000000, 0x4000000)])
def test_a_mapping_whose_invalidation_fails_is_none(error: BaseException, offset: int, size: int) -> None:
    space = Space()
    space.map(0x8000, 0x1000)
    before, tables = [leaf.entry for leaf in space.found()], set(space.tables.used)
    fail_once(space, error)
    with pytest.raises(type(error)):
        space.map(offset, size)
    assert [leaf.entry for leaf in space.found()] == before
    assert set(space.tables.used) == tables
    space.map(offset, size)
    assert sum(leaf.size for leaf in space.found(offset, offset + size)) == size


def test_a_mapping_that_cannot_even_be_written_is_none() -> None:
    space = Space()
    write = space.pt._write

    def lost(offset: int, data: bytes) -> None:
        raise BusLost("it fell off")

    space.pt._write = lost
    with pytest.raises(BusLost):
        space.map(0x10000, 0x3000)
    space.pt._write = write
    assert space.is_empty()
    space.map(0x10000, 0x3000)


# --- 1 to 6 of the list that comes with the vectors ------------------------------------------------------------------------


@pytest.mark.parametrize("format", [GFX9, GFX11, GFX12])
def test_mapped_range_is_covered_exactly_and_gone_after_unmapping(format: EntryFormat) -> None:
    space = Space(format)
    for offset, size in RANGES:
        space.map(offset, size)
        found = space.found()
        position = offset
        for leaf in found:
            assert (leaf.offset, leaf.address) == (position, position)
            position += leaf.size
        assert position == offset + size
        check_fragments(found)
        space.unmap(offset, size)
        assert space.is_empty()


def test_neighbours_can_be_mapped_side_by_side() -> None:
    space = Space()
    space.map(0x10000, 0x1000)
    space.map(0x11000, 2 * MIB)
    assert sum(leaf.size for leaf in space.found()) == 2 * MIB + 0x1000
    check_fragments(space.found())
    space.unmap(0x11000, 2 * MIB)
    assert [(leaf.offset, leaf.size) for leaf in space.found()] == [(0x10000, 0x1000)]
    space.unmap(0x10000, 0x1000)
    assert space.is_empty()


@pytest.mark.parametrize(("offset", "size"), [(0x10000, 0x3000), (0x1000000, 0x1000000), (0x12000, 0x4000)])
def test_mapping_twice_is_refused_and_changes_nothing(offset: int, size: int) -> None:
    space = Space()
    space.map(offset, size)
    before = space.state()
    for again, length in [(offset, 0x1000), (offset, 0x100000), (offset + 0x1000, 0x1000), (offset + 0x2000, 0x100000)]:
        with pytest.raises(MappingError, match="is mapped already"):
            space.map(again, length)
        assert space.state() == before
    space.unmap(offset, size)
    space.pt.map(VA_BASE + offset + 0x2000, 0x100000, [(0xDEAD0000, 0x1000), (0xDEAD1000, 0xFF000)], VRAM)
    found = space.found()
    assert [leaf.address for leaf in found] == [0xDEAD0000 + leaf.offset - offset - 0x2000 for leaf in found]
    assert sum(leaf.size for leaf in found) == 0x100000
    space.unmap(offset + 0x2000, 0x100000)
    assert space.is_empty()


def test_refusal_names_the_first_address_that_is_taken() -> None:
    space = Space()
    space.map(0x14000, 0x1000)
    with pytest.raises(MappingError) as caught:
        space.map(0x10000, 0x8000)
    assert caught.value.read == f"{VA_BASE + 0x14000:#x} is mapped already"


def test_bad_unmapping_is_refused_any_number_of_times() -> None:
    space = Space()
    for _ in range(3):
        with pytest.raises(MappingError, match="is not mapped"):
            space.unmap(0x10000, 0x3000)
        space.map(0x10000, 0x3000)
        before = space.state()
        with pytest.raises(MappingError, match=f"{VA_BASE + 0x13000:#x} is not mapped"):
            space.unmap(0x10000, 0x4000)
        with pytest.raises(MappingError, match=f"{VA_BASE + 0xF000:#x} is not mapped"):
            space.unmap(0xF000, 0x4000)
        assert space.state() == before
        space.unmap(0x10000, 0x3000)
        with pytest.raises(MappingError, match="is not mapped"):
            space.unmap(0x10000, 0x3000)
        assert space.is_empty()


def test_part_of_a_huge_page_cannot_be_unmapped() -> None:
    space = Space()
    space.map(2 * MIB, 4 * MIB)
    before = space.state()
    for offset, size, page in [(2 * MIB, MIB, 2 * MIB), (3 * MIB, MIB, 2 * MIB), (3 * MIB, 3 * MIB, 2 * MIB), (2 * MIB, 3 * MIB, 4 * MIB)]:
        with pytest.raises(MappingError, match=f"a page of 0x200000 bytes at {VA_BASE + page:#x}"):
            space.unmap(offset, size)
        assert space.state() == before


@pytest.mark.parametrize(("skip_first", "skip_last"), [(0, 0), (0x3000, 0), (0x10000, 0), (0, 0x1000), (0, 0x20000)])
def test_empty_tables_are_given_back_so_that_a_huge_page_fits(skip_first: int, skip_last: int) -> None:
    space = Space()
    start, end = 0x1000000 + skip_first, 0x1200000 - skip_last
    for offset in range(start, end, PAGE):
        space.map(offset, PAGE, 0x123000)
    assert {leaf.address for leaf in space.found()} == {0x123000}
    for offset in range(start, end, PAGE):
        space.unmap(offset, PAGE)
    assert space.is_empty()
    space.map(0x1000000, 2 * MIB)
    assert [(leaf.offset, leaf.level) for leaf in space.found()] == [(0x1000000, 2)]
    space.unmap(0x1000000, 2 * MIB)
    assert space.is_empty()


def test_looking_finds_what_is_mapped_and_creates_nothing() -> None:
    space = Space()
    ranges = [(0x10000, 0x3000), (0x20000, 0x2000), (0x1000000, 2 * MIB)]
    for offset, size in ranges:
        space.map(offset, size)
    before = space.state()
    found = [(entry.va - VA_BASE, entry.size) for entry in space.pt.walk(VA_BASE, 64 * MIB)]
    assert found == [(0x10000, 0x1000), (0x11000, 0x1000), (0x12000, 0x1000), (0x20000, 0x1000), (0x21000, 0x1000), (0x1000000, 2 * MIB)]
    assert [entry.va - VA_BASE for entry in space.pt.walk(VA_BASE + 0x1100000, PAGE)] == [0x1000000], "a huge page is found from its middle"
    assert space.state() == before
    for offset, size in ranges:
        space.unmap(offset, size)
    assert list(space.pt.walk(VA_BASE, 64 * MIB)) == []


# --- 7: fragments ----------------------------------------------------------------------------------------------------------

FRAGMENT_CASES = [
    (0x0, 0x1000),
    (0x1000, 0x2000),
    (0x1000, 0x3000),
    (0x2000, 0x2000),
    (0x4000, 0x8000),
    (0x8000, 0x4000),
    (0x10000, 0x4000),
    (0x0, 0x4000),
    (0x10000, 0x40000),
    (0x10001000, 0x40000),
    (0x100001000, 0x3000),
]


@pytest.mark.parametrize(("va", "size"), FRAGMENT_CASES)
def test_fragment_that_covers_divides_both_and_twice_it_does_not(va: int, size: int) -> None:
    block = PAGE << fragment_covering(va, size)
    assert va % block == 0 and size % block == 0
    assert va % (2 * block) or size % (2 * block)


@pytest.mark.parametrize(("va", "size"), FRAGMENT_CASES)
def test_fragment_within_divides_the_address_and_fits_and_twice_it_does_not(va: int, size: int) -> None:
    block = PAGE << fragment_within(va, size)
    assert va % block == 0 and block <= size
    assert va % (2 * block) or 2 * block > size


def _fragments_one_by_one(first: int, addresses: list[int], span: int) -> list[int]:
    """The rule, leaf by leaf: the largest aligned block around it that is one aligned piece of memory and wholly in the run."""
    result = []
    for place in range(len(addresses)):
        best = 0
        for power in range(1, 10):
            start = (first + place >> power << power) - first
            end = start + (1 << power)
            if start < 0 or end > len(addresses) or addresses[start] % (span << power):
                break
            if any(addresses[start + step] != addresses[start] + step * span for step in range(1 << power)):
                break
            best = power
        result.append(best + (span.bit_length() - 13))
    return result


@pytest.mark.parametrize("level", [2, 3])
def test_fragments_of_scattered_memory_follow_the_rule(level: int) -> None:
    span = {2: 2 * MIB, 3: PAGE}[level]
    random = np.random.default_rng(7)
    for _ in range(60):
        pieces = []
        while len(pieces) < 80:
            start, count = int(random.integers(0, 4096)), int(random.integers(1, 40))
            start &= -1 << int(random.integers(0, 6))
            pieces += [(start + step) * span for step in range(count)]
        first = int(random.integers(0, 600))
        assert fragments(first, np.array(pieces, np.uint64), level).tolist() == _fragments_one_by_one(first, pieces, span)


def test_unmapping_part_of_a_fragment_shrinks_what_stays() -> None:
    """A TLB entry for the old fragment would still translate the pages that are gone."""
    space = Space()
    space.map(0x100000, 0x100000)
    assert {leaf.fragment for leaf in space.found()} == {8}
    space.unmap(0x140000, 0x3000)
    found = space.found()
    check_fragments(found)
    assert {leaf.offset for leaf in found} == {*range(0x100000, 0x140000, PAGE), *range(0x143000, 0x200000, PAGE)}
    space.unmap(0x180000, 0x1000)
    check_fragments(space.found())
    assert all(leaf.address == leaf.offset and leaf.flags == 0x71 for leaf in space.found())


def test_huge_pages_that_stay_after_an_unmapping_keep_right_fragments() -> None:
    space = Space()
    space.map(8 * MIB, 16 * MIB, 64 * MIB)
    assert [leaf.fragment for leaf in space.found()] == [11] * 4 + [11] * 4
    space.unmap(10 * MIB, 2 * MIB)
    check_fragments(space.found())
    assert [(leaf.offset // MIB, leaf.fragment) for leaf in space.found()] == [(8, 9), (12, 10), (14, 10), (16, 11), (18, 11), (20, 11), (22, 11)]


# --- 10 and what else is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "size", "segments", "text"),
    [
        (0x1000, 0x3000, [(0, 0x1000), (0x5000, 0x1000)], "0x2000 bytes in all"),
        (0x1000, 0x1000, [], "0x0 bytes in all"),
        (0x1000, 0x1000, [(0, 0)], ""),
        (0x1000, 0x2000, [(0x800, 0x2000)], ""),
        (0x1000, 0x1800, [(0, 0x1800)], ""),
        (0x1800, 0x1000, [(0, 0x1000)], ""),
        (0x1000, 0, [], ""),
        (-0x1000, 0x2000, [(0, 0x2000)], "window"),
        (VA_SIZE - 0x1000, 0x2000, [(0, 0x2000)], "window"),
        (0x1000, 0x1000, [(1 << 44, 0x1000)], "0x1000 bytes at 0x100000000000"),
        (0x1000, 0x2000, [((1 << 44) - 0x1000, 0x2000)], "0x2000 bytes at 0xffffffff000"),
        (0x1000, 0x1000, [(-0x1000, 0x1000)], "segments that are not"),
        (0x1000, 0x1000, [(0xFFFF_FFFF_FFFF_F000, 0x1000)], "0xfffffffffffff000"),
    ],
)
def test_impossible_request_is_refused_before_anything_is_written(offset: int, size: int, segments: list[tuple[int, int]], text: str) -> None:
    space = Space()
    before = space.state()
    with pytest.raises(MappingError) as caught:
        space.pt.map(VA_BASE + offset, size, segments, VRAM)
    assert text in caught.value.read
    assert space.state() == before


def test_last_page_below_the_address_limit_can_be_mapped() -> None:
    space = Space()
    space.map(0x1000, 0x1000, (1 << 44) - 0x1000)
    assert [leaf.address for leaf in space.found()] == [(1 << 44) - 0x1000]
    wide = Space(GFX9)
    wide.map(0x1000, 0x1000, (1 << 48) - 0x1000)
    assert [leaf.address for leaf in wide.found()] == [(1 << 48) - 0x1000]


def test_running_out_of_tables_gives_all_back() -> None:
    space = Space(limit=5)
    space.map(0, 0x1000)
    before = space.state()
    with pytest.raises(OutOfMemory):
        space.map(4 * MIB - PAGE, 16 * MIB, 0x1000)
    assert (space.state()[1:]) == before[1:]
    assert space.memory.snapshot() == before[0]
    space.map(4 * MIB - PAGE, 2 * PAGE, 0x1000)
    assert len(space.found()) == 3


def test_freed_tables_come_back_only_after_the_invalidation() -> None:
    """A walker may still hold a pointer to a table that is being removed."""
    space = Space()
    space.map(0x10000, 0x3000)
    held: list[int] = []
    space.on_invalidate = lambda: held.append(len(space.tables.used))
    space.unmap(0x10000, 0x3000)
    assert held == [3]
    assert not space.tables.used


def test_tables_are_written_before_what_points_to_them() -> None:
    space = Space()
    count = len(space.memory.writes)
    space.map(0x3FF000, 0x402000, 0x1000)
    order = [offset for offset, _ in space.memory.writes[count:]]
    root_write = order.index(0)
    assert root_write == len(order) - 1
    space.map(0x40000000, 0x1000)
    assert space.memory.writes[-1][0] < 0x1E00_0000 + 0x8000, "the entry in the old PDB1 comes last"


def test_clear_forgets_everything_and_zeroes_the_root() -> None:
    space = Space()
    space.map(0x10000, 0x3000)
    space.map(64 * MIB, 4 * MIB)
    space.pt.clear()
    assert space.is_empty()
    assert bytes(space.memory.pages[0]) == bytes(PAGE)


# --- writes and speed ------------------------------------------------------------------------------------------------------


def test_neighbouring_entries_and_tables_go_out_in_one_write() -> None:
    space = Space()
    count = len(space.memory.writes)
    space.map(0x1000, 64 * MIB, 0x10_0000_0000)  # 33 tables of 4 KiB pages
    assert [size for _, size in space.memory.writes[count:]] == [33 * PAGE, PAGE, PAGE, 8]
    space.map(128 * MIB, 3 * PAGE)
    space.pt.map_pages(VA_BASE + 128 * MIB + 3 * PAGE, [0x7000, 0x3000, 0x9000], HOST)
    assert space.memory.writes[-1][1] == 3 * 8


def test_pages_of_host_memory_are_mapped_one_by_one_in_order() -> None:
    space = Space()
    pages = [0x12345000, 0x9000, 0x7FFFF000, 0x123456000]
    space.pt.map_pages(VA_BASE + 0x20000, pages, HOST)
    assert [(leaf.offset, leaf.entry) for leaf in space.found()] == [(0x20000 + index * PAGE, 0x0003_0000_0000_0077 | page) for index, page in enumerate(pages)]


def test_uncached_video_memory_has_its_memory_type() -> None:
    space = Space()
    space.pt.map(VA_BASE, PAGE, [(0x5000, PAGE)], VRAM_UNCACHED)
    assert space.found()[0].entry == 0x0003_0000_0000_5071


def test_format_follows_from_the_graphics_version() -> None:
    assert [format_of(version).name for version in [(9, 4, 3), (11, 0, 2), (12, 0, 1)]] == ["gfx9.4", "gfx11", "gfx12"]
    with pytest.raises(UnknownHardware, match=r"8\.0\.0"):
        format_of((8, 0, 0))


def test_mapping_writes_one_block_per_run_of_entries() -> None:
    """A gibibyte of small pages is 512 tables of entries: laid side by side, they go out in a handful of writes."""
    figures = bench.pagetable_bench(repeats=1)
    assert figures["map_1gib_small_pages_writes"] <= 4
    assert figures["map_1gib_scattered_host_pages_writes"] <= 4
    assert figures["map_16gib_small_pages_writes"] <= 34
