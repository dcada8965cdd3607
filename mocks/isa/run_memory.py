"""The memory that one run works in: context, user SGPRs, wave states, LDS, in one block that is reused by later runs."""

from __future__ import annotations

import ctypes
import mmap
import struct
from functools import lru_cache

import numpy as np

from mocks.isa import layout as L
from mocks.isa.dispatch import Dispatch

KINDS_OF_GARBAGE = 16
USER_SGPRS = 128  # dwords kept for them

# From CTX_TLB on, in the order of layout.py: tlb, fault va, fault access, bounced, base, apertures, clock, entries, mask, full, out of
# range, code base, slice, executed.
_CONTEXT = struct.Struct("<QQIIQQQQQQIIQQQ")
_SCHEDULER = struct.Struct("<QQQQQIIIIIIQQQIII III I iiii II I QQQ I I Q I I Q QQ".replace(" ", ""))


@lru_cache(maxsize=2 * KINDS_OF_GARBAGE)
def _garbage(seed: int, size: int) -> np.ndarray:
    """What registers and LDS hold before anybody wrote them; only read from."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class Pool:
    """Blocks of memory that ended runs have left, by size. A block keeps what was in it: launch writes everything that matters."""

    KEPT = 4

    def __init__(self) -> None:
        self.free: dict[int, list[mmap.mmap]] = {}

    def take(self, size: int) -> mmap.mmap:
        blocks = self.free.get(size)
        return blocks.pop() if blocks else mmap.mmap(-1, size)

    def give(self, size: int, block: mmap.mmap) -> None:
        blocks = self.free.setdefault(size, [])
        if len(blocks) < self.KEPT:
            blocks.append(block)


class RunMemory:
    """Addresses and contents of a run's memory. Native code works on it through raw addresses, so it lives as long as the run."""

    def __init__(self, dispatch: Dispatch, slots: int, pool: Pool) -> None:
        self.pool = pool
        self.wave_stride = -(-L.wave_size(dispatch.vgprs) // 64) * 64
        self.slot_stride = self.wave_stride * dispatch.waves
        self.lds_stride = -(-max(dispatch.lds_bytes, 1) // 64) * 64
        users = L.CTX_SIZE
        waves = users + 4 * USER_SGPRS
        lds = waves + slots * self.slot_stride
        self.size = -(-(lds + slots * self.lds_stride) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.block = pool.take(self.size)
        self._anchor = ctypes.c_char.from_buffer(self.block)
        self.ctx = ctypes.addressof(self._anchor)
        self.users, self.waves, self.lds = self.ctx + users, self.ctx + waves, self.ctx + lds
        self.garbage = _garbage(dispatch.seed % KINDS_OF_GARBAGE, L.GARBAGE_BYTES + max(L.VGPR_ROW * dispatch.vgprs, self.lds_stride) + 64)

    def __del__(self) -> None:
        if hasattr(self, "_anchor"):
            del self._anchor
            self.pool.give(self.size, self.block)

    def lay_out(self, d: Dispatch, slots: int, miss: int, clock: int, tlb: int, slice_: int, strict: bool) -> None:
        """Fills the context for a fresh run."""
        block = self.block
        block[: L.CTX_SIZE] = bytes(L.CTX_SIZE)
        struct.pack_into("<Q", block, L.CTX_MISS, miss)
        _CONTEXT.pack_into(block, L.CTX_TLB, tlb, 0, 0, 0, 0, d.shared_base, d.private_base, clock, 0, 0, int(not strict), 0, d.entry, slice_, 0)
        struct.pack_into(f"<{len(d.user_sgprs)}I", block, L.CTX_SIZE, *(value & 0xFFFFFFFF for value in d.user_sgprs))
        following = len(d.user_sgprs)
        registers = []
        for wanted in (*d.group_ids, d.group_info):
            registers.append(following if wanted else -1)
            following += bool(wanted)
        garbage = (self.garbage.ctypes.data + 63) & -64
        entry = L.entry_key(0, L.static_mode(d.mode), False)
        _SCHEDULER.pack_into(
            block, L.CTX_SCHED, self.waves, self.wave_stride, self.slot_stride, self.lds, self.lds_stride, d.lds_bytes, slots, d.waves, 0, 0, 0,
            0, d.groups, 0, *d.grid, *d.group_size, d.threads, *registers, d.vgprs, d.workitem_components, 0,
            garbage, L.GARBAGE_BYTES - 64, self.users, len(d.user_sgprs), 0, entry, d.mode, 0, 0, d.scratch_base, d.scratch_wave_bytes,
        )  # fmt: skip

    def wave(self, slot: int, index: int) -> int:
        return self.waves + slot * self.slot_stride + index * self.wave_stride

    def get64(self, offset: int) -> int:
        return int(ctypes.c_uint64.from_address(self.ctx + offset).value)

    def put64(self, offset: int, value: int) -> None:
        ctypes.c_uint64.from_address(self.ctx + offset).value = value % (1 << 64)

    def get32(self, offset: int) -> int:
        return int(ctypes.c_uint32.from_address(self.ctx + offset).value)

    def is_active(self, slot: int) -> bool:
        return bool(ctypes.c_uint8.from_address(self.ctx + L.SCHED_ACTIVE + slot).value)


def field32(address: int) -> int:
    """A dword of a wave's state."""
    return int(ctypes.c_uint32.from_address(address).value)


def set_field32(address: int, value: int) -> None:
    ctypes.c_uint32.from_address(address).value = value


def field64(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)
