"""Page tables against recorded ones (tests/data/amd_pagetables.json.zst): every entry of 99 mappings, refusals, all flag words.

Free choices of ours, all named as free in the file: a cleared entry is zero; a run may be written in several pieces or together with
its neighbours; the fragment is chosen leaf by leaf (checked to be right, and never below the recorded one).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from drivers.amd.page_entries import GFX9, GFX11, GFX12, LEVEL_NAMES, EntryFormat, Kind
from drivers.amd.pagetables import PageTables
from hw.errors import MappingError
from tests.drivers.amd.page_memory import ADDRESS, SPANS, Memory, Tables, check_fragments, leaves

DATA = json.loads(zstandard.decompress((Path(__file__).parents[2] / "data" / "amd_pagetables.json.zst").read_bytes()))
VECTORS = {vector["id"]: vector for vector in DATA["vectors"]}
FORMATS = {"gfx9.4.3": GFX9, "gfx9.4.3-node3": GFX9, "gfx11": GFX11, "gfx12": GFX12}
FIRST_TABLE = 0x100_0000
FRAGMENT = 31 << 7


class Bench:
    """Page tables over plain memory, as the vectors assume them."""

    def __init__(self, vector: dict[str, Any]) -> None:
        self.memory = Memory()
        self.tables = Tables(FIRST_TABLE)
        self.flushes: list[int] = []
        self.generation = vector["generation"]
        self.node_offset = vector["node_offset"]
        self.under_test = PageTables(
            FORMATS[self.generation],
            root=0,
            write=self.memory.write,
            alloc_table=self.tables.alloc,
            free_table=self.tables.free,
            invalidate=lambda: self.flushes.append(len(self.memory.writes)),
            node_offset=self.node_offset,
        )
        self.under_test.clear()

    def run(self, step: dict[str, Any]) -> None:
        if step["do"] == "unmap":
            self.under_test.unmap(step["va"], step["size"])
            return
        space = step["space"]
        kind = Kind(space, system=space == "system", snooped=step["snooped"], uncached=step["uncached"], own=space == "own VRAM")
        self.under_test.map(step["va"], step["size"], [(address, size) for address, size in step["segments"]], kind)


def expected_leaves(writes: list[dict[str, Any]]) -> dict[int, tuple[int, int, int]]:
    """offset -> (level, entry without fragment, least fragment) after all recorded writes."""
    tables: dict[int, dict[int, tuple[str, int, int]]] = {0: {}}
    for write in writes:
        if write["op"] == "free_table":
            del tables[write["table"]]
        elif write["op"] != "tlb_flush":
            for number in range(write["count"]):
                value = write["value"] + number * write.get("value_step", 0)
                recorded = value >> 7 & 31
                tables.setdefault(write["table"], {})[write["index"] + number] = (write["op"], value, min(recorded, write.get("fragment_limit", 0)))
    found: dict[int, tuple[int, int, int]] = {}

    def visit(table: int, level: int, base: int) -> None:
        for index, (op, value, fragment) in tables[table].items():
            offset = base + index * SPANS[level]
            if op == "table":
                address = value & ADDRESS
                visit(next(candidate for candidate in tables if candidate and (address - candidate) in offsets), level + 1, offset)
            elif op == "leaf":
                found[offset] = (level, value & ~FRAGMENT, fragment)

    offsets = (0, 0x9000000000)  # entries of a node in a hive carry its offset, the recorded table numbers do not
    visit(0, 0, 0)
    return found


def ids(what: str) -> list[str]:
    return [name for name, vector in VECTORS.items() if what in vector]


@pytest.mark.parametrize("name", ids("writes"))
def test_entries_are_as_recorded(name: str) -> None:
    vector = VECTORS[name]
    bench = Bench(vector)
    for number, step in enumerate(vector["steps"]):
        before = len(bench.flushes)
        bench.run(step)
        assert bench.flushes[before:] == [len(bench.memory.writes)], f"step {number}: one invalidation, after all writes"
    found = list(leaves(bench.memory, bench.generation, node_offset=bench.node_offset))
    expected = expected_leaves(vector["writes"])
    assert {leaf.offset: (leaf.level, leaf.entry & ~FRAGMENT) for leaf in found} == {offset: (level, value) for offset, (level, value, _) in expected.items()}
    check_fragments(found)
    for leaf in found:
        assert leaf.fragment >= expected[leaf.offset][2], f"fragment at {leaf.offset:#x} is smaller than the recorded one"
    given_back = sum(write["op"] == "free_table" for write in vector["writes"])
    made = {write["value"] & ADDRESS for write in vector["writes"] if write["op"] == "table"}
    assert len(bench.tables.used) == len(made) - given_back


@pytest.mark.parametrize("name", ids("error_at_step"))
def test_refused_and_nothing_changed(name: str) -> None:
    vector = VECTORS[name]
    bench = Bench(vector)
    for step in vector["steps"][: vector["error_at_step"]]:
        bench.run(step)
    memory, tables, flushes = bench.memory.snapshot(), set(bench.tables.used), list(bench.flushes)
    with pytest.raises(MappingError) as caught:
        bench.run(vector["steps"][vector["error_at_step"]])
    assert caught.value.what.startswith(("mapping", "unmapping"))
    assert caught.value.means
    assert (bench.memory.snapshot(), bench.tables.used, bench.flushes) == (memory, tables, flushes)


@pytest.mark.parametrize("name", ids("result"))
def test_huge_page_needs_aligned_memory(name: str) -> None:
    bench = Bench(VECTORS[name])
    assert VECTORS[name]["result"] == "512 entries of 4 KiB in one PTB, first address 0x4001000, fragment 0"
    bench.run(VECTORS[name]["steps"][0])
    found = list(leaves(bench.memory, bench.generation))
    assert [(leaf.level, leaf.address, leaf.fragment) for leaf in found] == [(3, 0x4001000 + index * 0x1000, 0) for index in range(512)]


@pytest.mark.parametrize("generation", sorted({word["generation"] for word in DATA["flag_words"]}))
def test_flag_words(generation: str) -> None:
    words = [word for word in DATA["flag_words"] if word["generation"] == generation]
    assert len(words) >= 50
    format: EntryFormat = FORMATS[generation]
    for word in words:
        level = LEVEL_NAMES.index(word["level"])
        if word["table"]:
            assert format.table_flags(level) == word["word"], word
            assert not format.is_leaf(word["word"], level)
        else:
            kind = Kind("", system=word["system"], snooped=word["snooped"], uncached=word["uncached"])
            assert format.leaf_flags(level, kind) | word["fragment"] << 7 == word["word"], word
            assert format.is_leaf(word["word"], level)


def test_all_vectors_are_used() -> None:
    assert len(VECTORS) == 120 == len(ids("writes")) + len(ids("error_at_step")) + len(ids("result"))
