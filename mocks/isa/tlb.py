"""The executor's translation cache: filled from Python, read by native code."""

from __future__ import annotations

import ctypes

import numpy as np

from mocks.isa import layout as L
from mocks.isa.port import MemoryFault, MemoryPort

MISS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint32)
PREFETCH_PAGES = 512
INVALID = (1 << 64) - 1
WRAP = 1 << 64


class Tlb:
    """Two-way sets of 4 KiB translations per kind of access. A miss asks the port and takes in the pages behind that one too, as far
    as they are the same mapping and their places are free."""

    def __init__(self, port: MemoryPort) -> None:
        self.port = port
        self.generation = port.generation
        self.entries = np.full((4, L.TLB_SETS, 2, 2), INVALID, dtype=np.uint64)
        self.victim = 0
        self.misses = 0
        self.error: BaseException | None = None
        self.callback = MISS(self._miss)

    @property
    def address(self) -> int:
        return int(self.entries.ctypes.data)

    def check_generation(self) -> None:
        if self.port.generation != self.generation:
            self.entries.fill(INVALID)
            self.generation = self.port.generation

    def _miss(self, va: int, access: int) -> int:
        """Called by native code: 1 when the translation is in the table now."""
        try:
            self.fill(va, access)
        except MemoryFault:
            return 0
        except BaseException as error:  # native code is above us; the error goes on when it has returned
            self.error = error
            return 0
        return 1

    def fill(self, va: int, access: int) -> None:
        self.misses += 1
        host, valid = self.port.translate(va, access)
        count = ((va & (L.PAGE - 1)) + valid) >> L.PAGE_SHIFT
        if count < 1:
            raise ValueError(f"the memory port maps only {valid} bytes at {va:#x}; mappings are whole 4 KiB pages")
        page = va >> L.PAGE_SHIFT
        delta = (host - va) % WRAP
        table = self.entries[3 if access & L.SCALAR else access - 1]
        ways = table[page & (L.TLB_SETS - 1)]
        way = 0 if ways[0, 0] == INVALID else 1 if ways[1, 0] == INVALID else self.victim
        self.victim ^= 1
        ways[way] = (page, delta)
        following = page + 1
        left = min(count - 1, PREFETCH_PAGES)
        while left > 0:
            start = following & (L.TLB_SETS - 1)
            run = min(left, L.TLB_SETS - start)
            part = table[start : start + run, 0]
            free = part[:, 0] == INVALID
            part[free, 0] = np.arange(following, following + run, dtype=np.uint64)[free]
            part[free, 1] = delta
            following += run
            left -= run
