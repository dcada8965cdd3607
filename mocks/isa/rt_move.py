"""Native movers: data between VGPR rows and the host pointers that an address helper left in the context.

A kind of access is (bytes in memory, how they become register contents); LDS, flat, global, scratch and buffer instructions share
them. Register rows are written only after every lane was checked, so a fault leaves no trace.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from mocks.isa import layout as L
from mocks.isa.ir import LANES, Value
from mocks.isa.rt_memory import CONTIGUOUS, Helper, call, commit, lane_slot, row, to_pointer


@dataclass(frozen=True, slots=True)
class Access:
    """size: bytes in memory per lane. signed: sign-extend bytes and words. half: 0/1 goes to (or comes from) only that half of the register."""

    size: int
    signed: bool = False
    half: int | None = None

    @property
    def dwords(self) -> int:
        return max(1, self.size // 4)


# By the last part of the mnemonic, common to all memory instruction families.
LOADS = {
    "u8": Access(1),
    "i8": Access(1, signed=True),
    "u16": Access(2),
    "i16": Access(2, signed=True),
    "b32": Access(4),
    "b64": Access(8),
    "b96": Access(12),
    "b128": Access(16),
    "d16_u8": Access(1, half=0),
    "d16_i8": Access(1, signed=True, half=0),
    "d16_b16": Access(2, half=0),
    "d16_hi_u8": Access(1, half=1),
    "d16_hi_i8": Access(1, signed=True, half=1),
    "d16_hi_b16": Access(2, half=1),
    "u8_d16": Access(1, half=0),
    "u8_d16_hi": Access(1, half=1),
    "i8_d16": Access(1, signed=True, half=0),
    "i8_d16_hi": Access(1, signed=True, half=1),
    "u16_d16": Access(2, half=0),
    "u16_d16_hi": Access(2, half=1),
}
STORES = {
    "b8": Access(1),
    "b16": Access(2),
    "b32": Access(4),
    "b64": Access(8),
    "b96": Access(12),
    "b128": Access(16),
    "d16_hi_b8": Access(1, half=1),
    "d16_hi_b16": Access(2, half=1),
    "b8_d16_hi": Access(1, half=1),
    "b16_d16_hi": Access(2, half=1),
}


def loaded(value: Value, access: Access) -> Value:
    """Memory contents as a register value."""
    if access.half is not None:
        value = value.sext("i16") if access.signed else value.zext("i16")
        return value.zext("i32") << 16 * access.half
    return value.sext("i32") if access.signed else value.zext("i32")


def merged(old: Value, new: Value, access: Access) -> Value:
    if access.half is None:
        return new
    return new | (old & (0xFFFF0000 if access.half == 0 else 0x0000FFFF))


def element(access: Access) -> str:
    return {1: "i8", 2: "i16"}.get(access.size, "i32")


def _contiguous_pointers(h: Helper, size: int) -> None:
    """Turns the contiguous form into the pointer form."""
    b = h.b
    with b.when(h.mode.eq(CONTIGUOUS)):
        offsets = b.vector("i64", [lane * size for lane in range(LANES)])
        h.ctx.at(L.CTX_POINTER).store(offsets + h.ctx.at(L.CTX_BASE).load("i64"), 64)
        h.ctx.at(L.CTX_STRIDE).store(b.const("i32", 4, LANES), 64)


@functools.cache
def load_mover(access: Access) -> int:
    """Address of `void (ctx, exec, mode, destination row)`."""
    h = Helper({"ctx": "ptr", "exec": "i32", "mode": "i32", "target": "ptr"})
    b = h.b
    if access.size <= 4:
        with b.exit_when(h.mode.eq(CONTIGUOUS)):
            data = to_pointer(h.ctx.at(L.CTX_BASE).load("i64")).load(element(access), LANES, 1)
            old = row(h.target)
            h.target.store(h.exec.mask().select(merged(old, loaded(data, access), access), old), 64)
            b.ret()
    else:
        _contiguous_pointers(h, access.size)
    with b.each_lane(h.exec) as lane:
        pointer = to_pointer(lane_slot(h, L.CTX_POINTER, lane, 8).load("i64"))
        place = h.target.at((lane * 4).zext("i64"))
        if access.size <= 4:
            new = loaded(pointer.load(element(access), align=1), access)
            place.store(merged(place.load("i32"), new, access) if access.half is not None else new)
        else:
            stride = lane_slot(h, L.CTX_STRIDE, lane, 4).load("i32").zext("i64")
            parts = [pointer.at(stride * k).load("i32", align=1) for k in range(access.dwords)]
            for k, part in enumerate(parts):
                place.at(k * L.VGPR_ROW).store(part)
    b.ret()
    return h.compile(f"load_{access.size}_{int(access.signed)}_{access.half}", "void")


@functools.cache
def store_mover(access: Access) -> int:
    """Address of `void (ctx, exec, mode, source row)`."""
    h = Helper({"ctx": "ptr", "exec": "i32", "mode": "i32", "source": "ptr"})
    b = h.b
    shift = 16 * (access.half or 0)
    if access.size <= 4:
        with b.when(h.mode.eq(CONTIGUOUS)):
            everyone = h.exec.eq(-1)
            with b.exit_when(everyone):
                data = row(h.source)
                data = (data.lshr(shift) if shift else data).trunc(element(access))
                to_pointer(h.ctx.at(L.CTX_BASE).load("i64")).store(data, 1)
                b.ret()
    _contiguous_pointers(h, access.size)
    with b.each_lane(h.exec) as lane:
        pointer = to_pointer(lane_slot(h, L.CTX_POINTER, lane, 8).load("i64"))
        place = h.source.at((lane * 4).zext("i64"))
        if access.size <= 4:
            data = place.load("i32")
            pointer.store((data.lshr(shift) if shift else data).trunc(element(access)), 1)
        else:
            stride = lane_slot(h, L.CTX_STRIDE, lane, 4).load("i32").zext("i64")
            for k in range(access.dwords):
                pointer.at(stride * k).store(place.at(k * L.VGPR_ROW).load("i32"), 1)
    with b.when(h.ctx.at(L.CTX_BOUNCED).load("i32").ne(0)):
        call(h, commit(), None, h.ctx, b.i32(access.size))
    b.ret()
    return h.compile(f"store_{access.size}_{access.half}", "void")
