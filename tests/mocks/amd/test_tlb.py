"""The page-table walker and its caches, on tables in a dictionary of bytes. Tables come from recorded mappings where there are some."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import zstandard

from mocks.amd.tlb import EXECUTE, MTYPE_UNCACHED, READ, SNOOPED, WRITE, BadAddress, Context, TableCache, WalkFault

BASE = 0x2000_0000_0000
WINDOW = Context(enabled=True, depth=3, block_bits=0, base=0x1, start=BASE, end=0x7FFF_FFFF_FFFF)
ALL_LEVELS = 0xF


class Tables:
    """Physical memory that holds tables: 8-byte entries by address."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, bool], int] = {}
        self.reads: list[int] = []
        self.cache = TableCache(self.read_line)

    def read_line(self, address: int, system: bool) -> bytes:
        self.reads.append(address)
        if address >= 1 << 40:
            raise BadAddress("beyond memory")
        return struct.pack("<8Q", *(self.entries.get((address + 8 * position, system), 0) for position in range(8)))

    def set(self, table: int, index: int, entry: int, system: bool = False) -> None:
        self.entries[table + 8 * index, system] = entry

    def find(self, va: int, context: Context = WINDOW) -> Any:
        return self.cache.translate(0, va, context)


def page_tables(leaf: int = 0x500_0071) -> Tables:
    """One page at BASE + 0x10000 through tables at 0, 0x1000, 0x2000, 0x3000."""
    tables = Tables()
    tables.set(0, 0, 0x1001)
    tables.set(0x1000, 0, 0x2001)
    tables.set(0x2000, 0, 0x3001)
    tables.set(0x3000, 16, leaf)
    return tables


DATA = json.loads(zstandard.decompress((Path(__file__).parents[2] / "data" / "amd_pagetables.json.zst").read_bytes()))
FLAG_WORDS = [each for each in DATA["flag_words"] if each["generation"] == "gfx11"]
LEVELS = ("PDB2", "PDB1", "PDB0", "PTB")


def recorded() -> list[Any]:
    """Mappings of this generation. Its refusals and its misaligned segment are about the mapping code: nothing to walk."""
    return [each for each in DATA["vectors"] if each["generation"] == "gfx11" and "writes" in each]


def test_every_mapping_of_this_generation_is_walked() -> None:
    assert len(recorded()) == 30


@pytest.mark.parametrize("vector", recorded(), ids=lambda each: each["id"])
def test_recorded_tables_translate_every_page_that_the_mapping_names(vector: Any) -> None:
    tables = Tables()
    for write in vector["writes"]:
        for position in range(write.get("count", 0)):
            tables.set(write["table"], write["index"] + position, write["value"] + position * write.get("value_step", 0))
    mapped: dict[int, Any] = {}
    for step in vector["steps"]:
        if step["do"] == "unmap":
            mapped.pop(step["va"], None)
        else:
            mapped[step["va"]] = step
    for va, step in mapped.items():
        for first, length in step["segments"]:
            for offset in sorted({0, length // 2 & -0x1000, length - 0x1000}):
                found = tables.find(va + offset)
                assert found.address + va + offset - found.first == first + offset
                assert found.system == (step["space"] == "system")
                assert found.flags & READ and found.flags & WRITE
                assert (found.mtype == MTYPE_UNCACHED) == step["uncached"]
            va += length
    for step in vector["steps"]:
        if step["do"] == "unmap" and step["va"] not in mapped:
            with pytest.raises(WalkFault):
                tables.find(step["va"])


def test_recorded_flag_words_mean_what_they_were_made_from() -> None:
    assert len(FLAG_WORDS) == 59
    for word in FLAG_WORDS:
        level = LEVELS.index(word["level"])
        span = 1 << 39 - 9 * level
        tables = page_tables()
        if word["table"]:
            tables.set([0, 0x1000, 0x2000][level], 0, 0x1000 * (level + 1) | word["word"])
            assert tables.find(BASE + 0x10000).address == 0x500_0000
            continue
        tables.set([0, 0x1000, 0x2000, 0x3000][level], 16 if level == 3 else 0, word["word"])
        found = tables.find(BASE + 0x10000)
        assert found.end - found.first == max(span, 0x1000 << word["fragment"])
        assert (found.system, bool(found.flags & SNOOPED)) == (word["system"], word["snooped"])
        assert (found.mtype == MTYPE_UNCACHED) == word["uncached"]
        assert found.flags & READ and found.flags & WRITE and found.flags & EXECUTE


def test_a_page_is_found_through_four_levels() -> None:
    tables = page_tables()
    found = tables.find(BASE + 0x10ABC)
    assert (found.first, found.end, found.address) == (BASE + 0x10000, BASE + 0x11000, 0x5000000)
    assert tables.reads == [0, 0x1000, 0x2000, 0x3000 + 16 * 8]


@pytest.mark.parametrize(("level", "walker"), [(0, 4), (1, 3), (2, 2), (3, 0)])
def test_an_entry_that_is_not_valid_names_its_level(level: int, walker: int) -> None:
    tables = page_tables()
    tables.set([0, 0x1000, 0x2000, 0x3000][level], 16 if level == 3 else 0, 0x70)
    with pytest.raises(WalkFault) as fault:
        tables.find(BASE + 0x10000)
    assert (fault.value.walker_error, fault.value.permission) == (walker, 1)
    assert fault.value.kind == ("valid" if level == 3 else "pde0")


@pytest.mark.parametrize("va", [BASE - 1, 0, 0x8000_0000_0000])
def test_addresses_outside_the_window_are_range_faults(va: int) -> None:
    with pytest.raises(WalkFault) as fault:
        page_tables().find(va)
    assert (fault.value.kind, fault.value.walker_error) == ("range", 1)


def test_a_context_that_is_not_enabled_translates_nothing() -> None:
    with pytest.raises(WalkFault, match="no context"):
        page_tables().find(BASE + 0x10000, WINDOW._replace(enabled=False))


def test_the_root_address_needs_its_valid_bit() -> None:
    with pytest.raises(WalkFault) as fault:
        page_tables().find(BASE + 0x10000, WINDOW._replace(base=0))
    assert fault.value.walker_error == 4


@pytest.mark.parametrize(("level", "span"), [(0, 1 << 39), (1, 1 << 30), (2, 2 << 20)])
def test_a_leaf_at_any_level_covers_its_span(level: int, span: int) -> None:
    tables = page_tables()
    tables.set([0, 0x1000, 0x2000][level], 0, 0x0040_0000_0000_0071)
    found = tables.find(BASE + 0x12345)
    assert (found.first, found.end - found.first, found.address) == (BASE, span, 0)


def test_a_huge_page_at_an_address_that_is_not_aligned_is_refused() -> None:
    tables = page_tables()
    tables.set(0x2000, 0, 0x0040_0000_0000_1071)
    with pytest.raises(WalkFault) as fault:
        tables.find(BASE)
    assert fault.value.mapping_error == 1


@pytest.mark.parametrize("bit", [3, 52, 53, 57])
def test_reserved_bits_in_a_leaf_are_refused(bit: int) -> None:
    with pytest.raises(WalkFault) as fault:
        page_tables(0x5000071 | 1 << bit).find(BASE + 0x10000)
    assert fault.value.mapping_error == 1


def test_a_table_pointer_that_leads_nowhere_is_a_walker_nack() -> None:
    tables = page_tables()
    tables.set(0x1000, 0, (1 << 41) | 1)
    with pytest.raises(WalkFault) as fault:
        tables.find(BASE + 0x10000)
    assert fault.value.walker_error == 6


def test_a_directory_entry_may_not_translate_further() -> None:
    tables = page_tables()
    tables.set(0x2000, 0, 0x3001 | 1 << 56)
    with pytest.raises(WalkFault) as fault:
        tables.find(BASE + 0x10000)
    assert fault.value.walker_error == 5


def test_tables_can_lie_in_system_memory() -> None:
    tables = page_tables()
    tables.set(0x2000, 0, 0x9003)
    tables.set(0x9000, 16, 0x7000071, system=True)
    assert tables.find(BASE + 0x10000).address == 0x7000000


def test_a_fragment_stands_for_its_neighbours() -> None:
    tables = page_tables(0x5000071 | 2 << 7)
    found = tables.find(BASE + 0x10000)
    assert (found.first, found.end, found.address) == (BASE + 0x10000, BASE + 0x14000, 0x5000000)


def test_a_fragment_that_claims_too_much_translates_wrongly() -> None:
    """The entry of page 17 says that four pages around it are one run, which page 16 was not part of."""
    tables = page_tables()
    tables.set(0x3000, 17, 0x9000071 | 2 << 7)
    found = tables.find(BASE + 0x11000)
    assert found.first == BASE + 0x10000
    assert found.address == 0x9000000 - 0x1000


def test_a_changed_entry_is_not_seen_before_an_invalidation() -> None:
    tables = page_tables()
    tables.find(BASE + 0x10000)
    tables.set(0x3000, 16, 0x7000071)
    assert tables.find(BASE + 0x10000).address == 0x5000000
    tables.cache.invalidate(1, pages=True, levels=ALL_LEVELS)
    assert tables.find(BASE + 0x10000).address == 0x7000000


def test_a_new_neighbour_of_a_cached_entry_is_not_seen_before_an_invalidation() -> None:
    """Entries are cached eight at a time, also those that are not valid."""
    tables = page_tables()
    tables.find(BASE + 0x10000)
    tables.set(0x3000, 17, 0x7000071)
    with pytest.raises(WalkFault):
        tables.find(BASE + 0x11000)
    tables.cache.invalidate(1, pages=True, levels=ALL_LEVELS)
    assert tables.find(BASE + 0x11000).address == 0x7000000


def test_an_invalidation_of_another_vmid_changes_nothing() -> None:
    tables = page_tables()
    tables.find(BASE + 0x10000)
    tables.set(0x3000, 16, 0x7000071)
    tables.cache.invalidate(2, pages=True, levels=ALL_LEVELS)
    assert tables.find(BASE + 0x10000).address == 0x5000000


def test_an_invalidation_of_another_range_changes_nothing() -> None:
    tables = page_tables()
    tables.find(BASE + 0x10000)
    tables.set(0x3000, 16, 0x7000071)
    tables.cache.invalidate(1, pages=True, levels=ALL_LEVELS, first=0, end=0x1000)
    assert tables.find(BASE + 0x10000).address == 0x5000000
    tables.cache.invalidate(1, pages=True, levels=ALL_LEVELS, first=BASE + 0x10000, end=BASE + 0x11000)
    assert tables.find(BASE + 0x10000).address == 0x7000000


def test_an_invalidation_without_the_page_table_level_leaves_the_cached_line() -> None:
    tables = page_tables()
    tables.find(BASE + 0x10000)
    tables.set(0x3000, 16, 0x7000071)
    tables.cache.invalidate(1, pages=True, levels=0xE)
    assert tables.find(BASE + 0x10000).address == 0x5000000


def test_without_caches_every_change_is_seen_at_once() -> None:
    tables = page_tables()
    tables.cache.keep_lines = tables.cache.keep_pages = False
    tables.find(BASE + 0x10000)
    tables.set(0x3000, 16, 0x7000071)
    assert tables.find(BASE + 0x10000).address == 0x7000000
