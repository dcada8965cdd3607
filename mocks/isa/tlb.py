"""The executor's translation cache: filled from Python, read by native code."""

from __future__ import annotations

import ctypes

import numpy as np

from mocks.isa import layout as L
from mocks.isa.port import MemoryFault, MemoryPort

MISS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint32)
PREFETCH_PAGES = 512
NEVER = (1 << 64) - 1
EPOCH_SHIFT = np.uint64(L.TLB_EPOCH_SHIFT)
WRAP = 1 << 64


class Tlb:
    """Sets of 4 KiB translations per kind of access. A miss asks the port and takes in the pages behind that one too, as far as they
    are the same mapping and their places are free."""

    def __init__(self, port: MemoryPort) -> None:
        self.port = port
        self.generation = port.generation
        self.entries = np.full((L.TLB_TABLES, L.TLB_SETS, L.TLB_WAYS, 2), NEVER, dtype=np.uint64)
        self.epoch = 0
        self.victim = 0
        self.misses = 0
        self.error: BaseException | None = None
        self.callback = MISS(self._miss)
        self.callback_address = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        self.address = int(self.entries.ctypes.data)

    @property
    def tag_bits(self) -> int:
        """What native code adds to a page number to get the tag."""
        return self.epoch << L.TLB_EPOCH_SHIFT

    def check_generation(self) -> None:
        """Forgets all translations if the port's have changed."""
        if self.port.generation == self.generation:
            return
        self.generation = self.port.generation
        self.epoch += 1
        if self.epoch == L.TLB_EPOCHS - 1:  # the last one is NEVER's
            self.epoch = 0
            self.entries.fill(NEVER)

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
        ways = table[L.tlb_set(page)]
        free = np.flatnonzero(ways[:, 0] >> EPOCH_SHIFT != self.epoch)
        way = int(free[0]) if len(free) else self.victim
        self.victim = (self.victim + 1) % L.TLB_WAYS
        ways[way] = (page | self.tag_bits, delta)
        if count > 1:
            self._prefetch(table, page + 1, min(count - 1, PREFETCH_PAGES), delta)

    def _prefetch(self, table: np.ndarray, page: int, left: int, delta: int) -> None:
        while left > 0:
            start = L.tlb_set(page)
            same_spread = L.TLB_SETS - (page & (L.TLB_SETS - 1))
            run = min(left, L.TLB_SETS - start, same_spread)
            wanted = np.arange(page, page + run, dtype=np.uint64) | np.uint64(self.tag_bits)
            part = table[start : start + run]
            missing = ~(part[:, :, 0] == wanted[:, None]).any(axis=1)
            for way in range(L.TLB_WAYS - 1):  # one place of each set stays for what is really asked for
                place = missing & (part[:, way, 0] >> EPOCH_SHIFT != self.epoch)
                part[place, way, 0] = wanted[place]
                part[place, way, 1] = delta
                missing &= ~place
            page += run
            left -= run
