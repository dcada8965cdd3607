"""Page tables as a GPU would find them: video memory in pages, and a walker written from the entry formats alone.

Nothing here comes from the driver: the numbers are those of the specification's entry tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

PAGE = 0x1000
SPANS = (1 << 39, 1 << 30, 1 << 21, 1 << 12)
ADDRESS = 0x0000_FFFF_FFFF_F000


class Memory:
    """Video memory that remembers which 4 KiB pages were ever written."""

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.writes: list[tuple[int, int]] = []

    def write(self, offset: int, data: bytes) -> None:
        self.writes.append((offset, len(data)))
        for start in range(0, len(data), 8):
            at = offset + start
            page = self.pages.setdefault(at // PAGE, bytearray(b"\xee" * PAGE))  # memory that nobody cleared
            page[at % PAGE : at % PAGE + 8] = data[start : start + 8]

    def entry(self, table: int, index: int) -> int:
        page = self.pages[table // PAGE]
        return int.from_bytes(page[index * 8 : index * 8 + 8], "little")

    def snapshot(self) -> dict[int, bytes]:
        return {number: bytes(page) for number, page in self.pages.items()}


@dataclass
class Tables:
    """Hands out table memory; each piece may be given back once."""

    next: int
    limit: int | None = None
    """tables that may be handed out before memory is exhausted; None for no limit"""
    used: set[int] = field(default_factory=set)

    def alloc(self) -> int:
        if self.limit is not None and len(self.used) >= self.limit:
            from hw.errors import OutOfMemory

            raise OutOfMemory("a page table")
        address = self.next
        self.next += PAGE
        self.used.add(address)
        return address

    def free(self, address: int) -> None:
        self.used.remove(address)


@dataclass(frozen=True)
class Leaf:
    """A valid leaf: offset in the window, and the entry."""

    offset: int
    level: int
    entry: int

    @property
    def size(self) -> int:
        return SPANS[self.level]

    @property
    def address(self) -> int:
        return self.entry & ADDRESS

    @property
    def fragment(self) -> int:
        return self.entry >> 7 & 31

    @property
    def flags(self) -> int:
        """Everything but address and fragment."""
        return self.entry & ~(ADDRESS | 31 << 7)


def is_leaf(generation: str, level: int, entry: int) -> bool:
    if level == 3:
        return True
    if generation.startswith("gfx12"):
        return bool(entry >> 63 & 1)
    if generation.startswith("gfx9") and level == 2:
        return not entry >> 56 & 1
    return bool(entry >> 54 & 1)


def leaves(memory: Memory, generation: str, root: int = 0, node_offset: int = 0) -> Iterator[Leaf]:
    """Every valid leaf in ascending order, as a walk through video memory finds them."""
    yield from _visit(memory, generation, root, 0, 0, node_offset)


def _visit(memory: Memory, generation: str, table: int, level: int, base: int, node_offset: int) -> Iterator[Leaf]:
    for index in range(512):
        entry = memory.entry(table, index)
        if not entry & 1:
            continue
        offset = base + index * SPANS[level]
        if is_leaf(generation, level, entry):
            yield Leaf(offset, level, entry)
        else:
            check_table_entry(generation, level, entry)
            yield from _visit(memory, generation, (entry & ADDRESS) - node_offset, level + 1, offset, node_offset)


def check_table_entry(generation: str, level: int, entry: int) -> None:
    """An entry that points to a table holds nothing but the valid bit and what its generation asks for."""
    expected = 1
    if generation.startswith("gfx9"):
        expected |= {0: 0, 1: 9 << 59, 2: 1 << 56}[level]
    assert entry & ~ADDRESS == expected, f"{generation} level {level}: table entry {entry:#018x}"


def check_fragments(found: list[Leaf]) -> None:
    """A fragment of 2^n pages may stand in a leaf only when the aligned block around it is one piece of equal leaves."""
    by_offset = {leaf.offset: leaf for leaf in found}
    for leaf in found:
        size = PAGE << leaf.fragment
        assert size <= leaf.size * 512, "a fragment does not reach beyond a table"
        if size <= leaf.size:
            continue
        start = leaf.offset & -size
        first = by_offset.get(start)
        assert first is not None, f"fragment {leaf.fragment} at {leaf.offset:#x} reaches below what is mapped"
        assert first.address % size == 0, f"fragment {leaf.fragment} at {leaf.offset:#x}: memory at {first.address:#x} is not aligned to it"
        for offset in range(start, start + size, leaf.size):
            other = by_offset.get(offset)
            assert other is not None, f"fragment {leaf.fragment} at {leaf.offset:#x} reaches over {offset:#x}, which is not mapped"
            assert (other.level, other.flags, other.address) == (leaf.level, leaf.flags, first.address + offset - start)
