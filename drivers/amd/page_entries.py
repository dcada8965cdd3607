"""Page-table entries of AMD's graphics memory controllers: geometry, one table of bits a generation, fragment sizes.

Four levels, each table 512 entries of 8 bytes. Level 0 is the root (PDB2, an entry covers 512 GiB), 1 PDB1 (1 GiB), 2 PDB0 (2 MiB),
3 PTB (4 KiB). A leaf may sit at any level. Sources: public amdgpu headers (amdgpu_vm.h) and code (gmc_v9_0, gmc_v11_0, gmc_v12_0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hw.errors import UnknownHardware

Words = NDArray[np.uint64]

PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT
"""bytes of the smallest page, and of a table"""
SHIFTS = (39, 30, 21, 12)
"""log2 of the bytes that one entry covers, by level"""
LEVELS = len(SHIFTS)
LEVEL_NAMES = ("PDB2", "PDB1", "PDB0", "PTB")
INDEX_BITS = 9
ENTRIES = 1 << INDEX_BITS
ENTRY_SIZE = 8

VALID = 1 << 0
SYSTEM = 1 << 1
SNOOPED = 1 << 2
EXECUTE = 1 << 4
READ = 1 << 5
WRITE = 1 << 6
FRAGMENT_SHIFT = 7
FRAGMENT_MAX = 31
ADDRESS_MASK = 0x0000_FFFF_FFFF_F000

MTYPE_CACHED = 0
MTYPE_UNCACHED = 3


@dataclass(frozen=True)
class Kind:
    """What a mapping points at."""

    name: str
    system: bool = False
    """the address is a bus address, not one of video memory"""
    snooped: bool = False
    """accesses go through the CPU's caches"""
    uncached: bool = False
    """the GPU's caches leave it alone"""
    own: bool = False
    """video memory of this GPU: given as an offset, entries hold its place in the hive"""


VRAM = Kind("video memory", own=True)
VRAM_UNCACHED = Kind("uncached video memory", own=True, uncached=True)
HOST = Kind("host memory", system=True, snooped=True, uncached=True)
BRIDGE_SRAM = Kind("bridge memory", system=True, uncached=True)


@dataclass(frozen=True)
class EntryFormat:
    """The bits in which generations differ. Tuples are indexed by level."""

    name: str
    address_bits: int
    """width of physical addresses"""
    mtype_shift: int
    table_bits: tuple[int, int, int]
    """set in an entry of level 0..2 that points to a table, besides VALID"""
    leaf_bits: tuple[int, int, int, int]
    """set in a leaf of the level, besides the flags common to all"""
    leaf_test: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    """(mask, value): a valid entry of level 0..2 is a leaf when entry & mask == value"""

    def leaf_flags(self, level: int, kind: Kind) -> int:
        """All bits of a leaf but address and fragment."""
        flags = VALID | READ | WRITE | EXECUTE | self.leaf_bits[level]
        flags |= (MTYPE_UNCACHED if kind.uncached else MTYPE_CACHED) << self.mtype_shift
        if kind.system:
            flags |= SYSTEM
        if kind.snooped:
            flags |= SNOOPED
        return flags

    def table_flags(self, level: int) -> int:
        """All bits of an entry that points to a table of the next level, but the address."""
        return VALID | self.table_bits[level]

    def is_leaf(self, entry: int, level: int) -> bool:
        """True when a valid entry of this level maps memory, False when it points to a table."""
        if level == LEVELS - 1:
            return True
        mask, value = self.leaf_test[level]
        return entry & mask == value


_BIT54, _BIT56, _BIT63 = 1 << 54, 1 << 56, 1 << 63

GFX9 = EntryFormat(
    name="gfx9.4",
    address_bits=48,
    mtype_shift=57,
    table_bits=(0, 9 << 59, _BIT56),  # PDB1: block fragment size 9; PDB0: "translate further"
    leaf_bits=(_BIT54, _BIT54, 0, 0),
    leaf_test=((_BIT54, _BIT54), (_BIT54, _BIT54), (_BIT56, 0)),
)
GFX11 = EntryFormat(
    name="gfx11",
    address_bits=44,
    mtype_shift=48,
    table_bits=(0, 0, 0),
    leaf_bits=(_BIT54, _BIT54, _BIT54, 0),
    leaf_test=((_BIT54, _BIT54),) * 3,
)
GFX12 = EntryFormat(
    name="gfx12",
    address_bits=44,
    mtype_shift=54,
    table_bits=(0, 0, 0),
    leaf_bits=(_BIT63,) * 4,
    leaf_test=((_BIT63, _BIT63),) * 3,
)

_FORMATS = {9: GFX9, 10: GFX11, 11: GFX11, 12: GFX12}


def format_of(gc_version: tuple[int, int, int]) -> EntryFormat:
    """The entry format of a graphics block version. Raises UnknownHardware."""
    found = _FORMATS.get(gc_version[0])
    if found is None:
        raise UnknownHardware(f"no page-table format is known for graphics block {'.'.join(map(str, gc_version))}", read=f"known majors {', '.join(map(str, _FORMATS))}")
    return found


# --- fragments: log2 of the 4 KiB pages that one TLB entry may cover -----------------------------------------------------


def fragment_covering(va: int, size: int) -> int:
    """Largest fragment that divides a range: 4 KiB << result divides both va and size. va 0 is divisible by everything."""
    return _log2_divisor(va | size)


def fragment_within(va: int, size: int) -> int:
    """Largest fragment that fits into a range: 4 KiB << result divides va and is not larger than size."""
    fits = size.bit_length() - 1 - PAGE_SHIFT
    return min(fits, _log2_divisor(va)) if va else min(fits, FRAGMENT_MAX)


def _log2_divisor(value: int) -> int:
    return min((value & -value).bit_length() - 1 - PAGE_SHIFT, FRAGMENT_MAX)


def fragments(first: int, addresses: Words, level: int) -> NDArray[np.uint8]:
    """Fragment of each leaf of a run, as large as is right.

    first: number of the first leaf, counted from the start of the window in units of what it covers. A fragment is a block of 2^n
    leaves at a multiple of 2^n whose memory is one piece, aligned in the same way. Blocks do not reach beyond a table.
    """
    shift = SHIFTS[level]
    base = shift - PAGE_SHIFT
    result = np.full(len(addresses), base, np.uint8)
    good = np.ones(len(addresses), np.bool_)
    block = first
    for power in range(1, min(INDEX_BITS, FRAGMENT_MAX - base) + 1):
        skip = block & 1
        block = (block + 1) >> 1
        count = (len(good) - skip) >> 1
        if count <= 0:
            break
        start = (block << power) - first
        step = 1 << power
        heads = addresses[start::step][:count]
        middles = addresses[start + (step >> 1) :: step][:count]
        halves = good[skip : skip + 2 * count]
        good = halves[::2] & halves[1::2]
        good &= middles - heads == np.uint64(1 << (shift + power - 1))
        good &= heads & np.uint64((1 << (shift + power)) - 1) == 0
        if not good.any():
            break
        result[start : start + count * step].reshape(count, step)[good] = base + power
    return result
