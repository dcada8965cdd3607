"""Page tables as the GPU sees them: the walker of a hub, and the caches in front of it.

Geometry and entry bits of gfx11: four levels of 512 entries, a leaf at any level. What the walker has read stays: 64-byte lines
of tables (eight entries, valid or not) and finished translations are used until an invalidation names them. A driver that
changes an entry and does not invalidate meets its old tables here, as on the card.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT
TABLE_BITS = 9
ENTRY_BYTES = 8
LINE_ENTRIES = 8
LINE_BITS = 3

VALID = 1 << 0
SYSTEM = 1 << 1
SNOOPED = 1 << 2
EXECUTE = 1 << 4
READ = 1 << 5
WRITE = 1 << 6
FRAGMENT_SHIFT = 7
FRAGMENT_MASK = 0x1F
ADDRESS_MASK = 0x0000_FFFF_FFFF_F000
MTYPE_SHIFT = 48
MTYPE_MASK = 7
MTYPE_UNCACHED = 3
IS_PAGE = 1 << 54
TRANSLATE_FURTHER = 1 << 56
RESERVED = 1 << 3 | 3 << 52 | 1 << 57
"""bits that a gfx11 entry of an unprotected address space has at 0 (bit 3 is TMZ, which nothing here set up)"""

WALKER_RANGE = 1
WALKER_PDE2 = 4
WALKER_FURTHER = 5
WALKER_NACK = 6
"""walker error codes of the fault status register; 0 for an entry of the last level, 2 to 4 for directories: one more than the levels below"""

NOT_VALID = 1
"""permission fault bits of the status register: no valid entry, and below: read, write, execute not allowed"""
NO_READ = 2
NO_WRITE = 4
NO_EXECUTE = 8


class WalkFault(Exception):
    """Why there is no translation, in terms of the fault status register."""

    def __init__(self, kind: str, walker_error: int = 0, permission: int = 0, mapping_error: int = 0, why: str = "") -> None:
        super().__init__(why or kind)
        self.kind = kind
        """which pair of fault enables of CONTEXTn_CNTL applies: range, pde0, valid, read, write, execute, dummy_page"""
        self.walker_error = walker_error
        self.permission = permission
        self.mapping_error = mapping_error


class BadAddress(Exception):
    """Nothing answers at a physical address."""


class Context(NamedTuple):
    """What the CONTEXTn registers say about one VMID. Addresses in bytes, `end` is the last one inside."""

    enabled: bool
    depth: int
    """levels of directories above the page tables"""
    block_bits: int
    """additional index bits of the last directory's tables (PAGE_TABLE_BLOCK_SIZE)"""
    base: int
    """PAGE_TABLE_BASE: address of the root with its valid and system bits"""
    start: int
    end: int


class Translation(NamedTuple):
    """A run of addresses that one entry translates."""

    first: int
    end: int
    """virtual addresses [first, end)"""
    address: int
    """physical address of `first`"""
    system: bool
    flags: int
    """the entry's low flag bits"""
    mtype: int


ReadLine = Callable[[int, bool], bytes]
"""(physical address of a 64-byte line, in system memory?) to its bytes; raises BadAddress"""

_unpack_line = struct.Struct("<8Q").unpack


class TableCache:
    """Walker and caches of one hub."""

    def __init__(self, read_line: ReadLine) -> None:
        self._read_line = read_line
        self._pages: dict[int, Translation] = {}
        """L1: page number | vmid << 36 to translation"""
        self._lines: dict[tuple[int, int, int], tuple[int, tuple[int, ...]]] = {}
        """L2: (vmid, levels above the last, offset from the window's start >> line span) to (first address served, the eight entries)"""
        self.keep_lines = True
        """VM_L2_CNTL.ENABLE_L2_CACHE"""
        self.keep_pages = True
        """MX_L1_TLB_CNTL.ENABLE_L1_TLB"""
        self.walks = 0

    def lookup(self, vmid: int, va: int) -> Translation | None:
        """A cached translation."""
        return self._pages.get(va >> PAGE_SHIFT | vmid << 36)

    def translate(self, vmid: int, va: int, context: Context) -> Translation:
        """The translation of an address, cached or walked. Raises WalkFault."""
        key = va >> PAGE_SHIFT | vmid << 36
        found = self._pages.get(key)
        if found is None:
            found = self._walk(vmid, va, context)
            if self.keep_pages:
                self._pages[key] = found
        return found

    def invalidate(self, vmids: int, *, pages: bool, levels: int, first: int = 0, end: int = 1 << 64) -> None:
        """Forget what is cached for the VMIDs of a bit mask within [first, end): translations, and lines of the table levels of a bit mask (bit n: n levels above the last)."""
        whole = first <= 0 and end >= 1 << 48
        if pages:
            if whole and vmids == 0xFFFF:
                self._pages.clear()
            else:
                self._pages = {key: each for key, each in self._pages.items() if not (vmids >> (key >> 36) & 1 and each.first < end and first < each.end)}
        if levels:
            if whole and vmids == 0xFFFF and levels == 0xF:
                self._lines.clear()
            else:
                self._lines = {key: each for key, each in self._lines.items() if not (vmids >> key[0] & 1 and levels >> key[1] & 1 and self._touches(key[1], each[0], first, end))}

    def clear(self) -> None:
        """Forget everything (reset)."""
        self._pages.clear()
        self._lines.clear()

    @staticmethod
    def _touches(above: int, line_first: int, first: int, end: int) -> bool:
        return line_first < end and first < line_first + (1 << PAGE_SHIFT + TABLE_BITS * above + LINE_BITS)

    def _walk(self, vmid: int, va: int, context: Context) -> Translation:
        self.walks += 1
        if not context.enabled:
            raise WalkFault("range", WALKER_RANGE, NOT_VALID, why=f"VMID {vmid} has no context enabled")
        if not context.start <= va <= context.end:
            raise WalkFault("range", WALKER_RANGE, NOT_VALID, why=f"{va:#x} lies outside [{context.start:#x}, {context.end:#x}]")
        if context.block_bits:
            raise WalkFault("range", WALKER_RANGE, NOT_VALID, 1, why="page tables of more than 512 entries do not exist on this generation")
        offset = va - context.start
        if offset >> (PAGE_SHIFT + TABLE_BITS * (context.depth + 1)):
            raise WalkFault("range", WALKER_RANGE, NOT_VALID, why=f"{va:#x} is beyond what {context.depth + 1} levels can translate")
        entry = context.base
        above = context.depth
        cached = self._deepest_cached(vmid, offset, above)
        if cached is not None:
            above, entry = cached
        elif not entry & VALID:
            raise WalkFault("pde0", WALKER_PDE2, NOT_VALID, why="the root table's address is not marked valid")
        else:
            entry = self._entry(vmid, va, offset, entry, above)
        while True:
            shift = PAGE_SHIFT + TABLE_BITS * above
            if not entry & VALID:
                raise WalkFault("valid" if above == 0 else "pde0", above + 1 if above else 0, NOT_VALID, why=f"the entry for {1 << shift:#x} bytes is not valid ({entry:#x})")
            if above == 0 or entry & IS_PAGE:
                return self._leaf(va, entry, shift, above)
            if entry & TRANSLATE_FURTHER:
                raise WalkFault("pde0", WALKER_FURTHER, NOT_VALID, 1, why=f"directory entry {entry:#x} asks to translate further")
            above -= 1
            entry = self._entry(vmid, va, offset, entry, above)

    def _deepest_cached(self, vmid: int, offset: int, depth: int) -> tuple[int, int] | None:
        """(levels above the last, entry) of the lowest level whose line is cached for this address."""
        for above in range(depth + 1):
            shift = PAGE_SHIFT + TABLE_BITS * above
            line = self._lines.get((vmid, above, offset >> shift + LINE_BITS))
            if line is not None:
                return above, line[1][offset >> shift & LINE_ENTRIES - 1]
        return None

    def _entry(self, vmid: int, va: int, offset: int, pointer: int, above: int) -> int:
        """Read the entry for an address from the table that `pointer` names, by its cache line."""
        shift = PAGE_SHIFT + TABLE_BITS * above
        index = offset >> shift & (1 << TABLE_BITS) - 1
        address = (pointer & ADDRESS_MASK) + ((index & ~(LINE_ENTRIES - 1)) * ENTRY_BYTES)
        try:
            line = _unpack_line(self._read_line(address, bool(pointer & SYSTEM)))
        except BadAddress as error:
            raise WalkFault("pde0", WALKER_NACK, NOT_VALID, 1, why=f"table pointer {pointer:#x}: {error}") from None
        if self.keep_lines:
            line_shift = shift + LINE_BITS
            self._lines[vmid, above, offset >> line_shift] = (va - (offset & (1 << line_shift) - 1), line)
        return int(line[index & LINE_ENTRIES - 1])

    @staticmethod
    def _leaf(va: int, entry: int, shift: int, above: int) -> Translation:
        address = entry & ADDRESS_MASK
        if entry & RESERVED:
            raise WalkFault("valid" if above == 0 else "pde0", above + 1 if above else 0, 0, 1, why=f"entry {entry:#x} has reserved bits set")
        if address & (1 << shift) - 1:
            raise WalkFault("pde0", above + 1, 0, 1, why=f"page of {1 << shift:#x} bytes at {address:#x} is not aligned")
        first = va >> shift << shift
        span = 1 << shift
        fragment = 1 << PAGE_SHIFT + (entry >> FRAGMENT_SHIFT & FRAGMENT_MASK)
        if fragment > span:  # the entry vouches for its neighbours: one translation serves them all
            start = va & -fragment
            address -= first - start
            first, span = start, fragment
        return Translation(first, first + span, address, bool(entry & SYSTEM), entry & (EXECUTE | READ | WRITE | SNOOPED), entry >> MTYPE_SHIFT & MTYPE_MASK)
