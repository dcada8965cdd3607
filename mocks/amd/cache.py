"""The GPU's caches, as far as software can notice them: strict mode only, a page at a time.

L2 (GL2) holds copies of pages that shaders touch through cacheable mappings. What a shader writes stays there until a write-back;
what the CPU writes to memory meanwhile is not seen until an invalidation. The scalar cache (GLK) holds pages that scalar loads have
read, cacheable or not, until it is invalidated; the instruction cache (GLI) likewise for what was fetched. The copy engines and the
command processor look into L2 but leave nothing there. The vector caches of single compute units (GLV, GL1) are not modelled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mocks.amd.tlb import PAGE, WRITE
from mocks.memory import SparseMemory

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

ARENA = 1 << 30
"""address space for cached pages (bytes); only what is used costs memory"""

GLI_INV = 3 << 0
GLK_INV = 1 << 7
GL2_DISCARD = 1 << 13
GL2_INV = 1 << 14
GL2_WB = 1 << 15
"""bits of GCR_CNTL (ACQUIRE_MEM dword 7)"""

CLIENT_TCP = 8
CLIENT_SQC_INSTRUCTION = 9
CLIENT_SQC_DATA = 10
_ALLOCATES = (CLIENT_TCP, CLIENT_SQC_DATA)


class CachedMemory:
    """L2 and scalar cache of one GPU. Pages are named by their address in this process."""

    def __init__(self, gpu: Gpu, changed: Callable[[], None]) -> None:
        self._arena = SparseMemory(ARENA)
        self._top = 0
        self._free: list[int] = []
        self._l2: dict[int, tuple[int, int]] = {}
        """page in memory to (cached copy, what memory held when it was read)"""
        self._written: set[int] = set()
        self._scalar: dict[int, int] = {}
        self._code: dict[int, int] = {}
        """pages that the scalar and the instruction cache hold: page in memory to copy"""
        self._changed = changed

    def place(self, host: int, room: int, access: int, client: int, cacheable: bool) -> tuple[int, int]:
        """Where an access to memory at `host` really goes, and how far that is one piece."""
        inside = host & PAGE - 1
        page = host - inside
        room = min(room, PAGE - inside)
        if client in (CLIENT_SQC_DATA, CLIENT_SQC_INSTRUCTION) and not access & WRITE:
            held_by = self._scalar if client == CLIENT_SQC_DATA else self._code
            copy = held_by.get(page)
            if copy is None:
                copy = held_by[page] = self._copy_of(self._l2[page][0] if page in self._l2 else page)
            return copy + inside, room
        if not cacheable:
            return host, room
        held = self._l2.get(page)
        if client not in _ALLOCATES:
            if held is None:
                return host, room
            if access & WRITE:
                self._write_back(page)
                self._drop(page)
                self._changed()
                return host, room
            return held[0] + inside, room
        if held is None:
            held = self._l2[page] = (self._copy_of(page), self._copy_of(page))
        if access & WRITE:
            self._written.add(page)
        return held[0] + inside, room

    def action(self, control: int) -> None:
        """Carry out a GCR_CNTL value. Ranges are taken as everything: a cache may always do more."""
        if control & GL2_WB:
            for page in tuple(self._written):
                self._write_back(page)
        if control & GL2_DISCARD:
            for page in tuple(self._l2):
                self._drop(page)
            self._changed()
        elif control & GL2_INV:
            for page in tuple(self._l2):
                self._refresh(page)
            self._changed()
        for bits, held_by in ((GLK_INV, self._scalar), (GLI_INV, self._code)):
            if control & bits and held_by:
                self._free.extend(held_by.values())
                held_by.clear()
                self._changed()

    def clear(self) -> None:
        """Power was away: nothing is cached."""
        self._l2.clear()
        self._written.clear()
        self._scalar.clear()
        self._code.clear()
        self._free.clear()
        self._top = 0

    @property
    def dirty(self) -> bool:
        """Does a page hold bytes that memory does not have yet?"""
        return any(self._differences(page).any() for page in self._written)

    def _copy_of(self, source: int) -> int:
        if self._free:
            copy = self._free.pop()
        else:
            copy = self._arena.address + self._top
            self._top += PAGE
            if self._top > ARENA:
                raise MemoryError(f"the cache model holds more than {ARENA:#x} bytes; nothing was ever written back")
        ctypes.memmove(copy, source, PAGE)
        return copy

    @staticmethod
    def _bytes_at(address: int) -> np.ndarray:
        view: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * PAGE).from_address(address))
        return view

    def _differences(self, page: int) -> np.ndarray:
        copy, base = self._l2[page]
        different: np.ndarray = self._bytes_at(copy) != self._bytes_at(base)
        return different

    def _write_back(self, page: int) -> None:
        """The bytes written since the page was read go to memory."""
        if page not in self._written:
            return
        copy, base = self._l2[page]
        changed = self._differences(page)
        if changed.any():
            self._bytes_at(page)[changed] = self._bytes_at(copy)[changed]
            ctypes.memmove(base, copy, PAGE)

    def _refresh(self, page: int) -> None:
        """Forget clean bytes; bytes that were written and not yet written back stay."""
        if page in self._written:
            changed = self._differences(page)
            if changed.any():
                copy, base = self._l2[page]
                kept = self._bytes_at(copy)[changed].copy()
                ctypes.memmove(copy, page, PAGE)
                ctypes.memmove(base, page, PAGE)
                self._bytes_at(copy)[changed] = kept
                # A byte that memory already holds is clean again; the others differ from `base` as before.
                return
        self._drop(page)

    def _drop(self, page: int) -> None:
        copy, base = self._l2.pop(page)
        self._free += (copy, base)
        self._written.discard(page)
