"""Native read-modify-write of one memory location per active lane, in ascending lane order."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mocks.isa import layout as L
from mocks.isa.ir import Builder, Value
from mocks.isa.rt_memory import Helper, lane_slot, to_pointer

# op(b, old, data, second data) -> new memory contents; integers of the operand's width
Update = Callable[[Builder, Value, Value, Value], Value]


def _minmax(relation: str) -> Update:
    return lambda b, old, data, second: data.cmp(relation, old).select(data, old)


def _float_minmax(relation: str) -> Update:
    """src < mem ? src : mem: a NaN on either side leaves memory unchanged. -0 counts as less than +0."""

    def update(b: Builder, old: Value, data: Value, second: Value) -> Value:
        left, right = data.as_float(), old.as_float()
        wins = left.cmp(relation, right)
        negative_first = data.cmp("slt", 0) if relation == "olt" else old.cmp("slt", 0)
        tie = left.cmp("oeq", right) & negative_first
        return (wins | tie).select(data, old)

    return update


def _increment(b: Builder, old: Value, data: Value, second: Value) -> Value:
    return old.cmp("uge", data).select(b.const(old.ty, 0), old + 1)


def _decrement(b: Builder, old: Value, data: Value, second: Value) -> Value:
    return (old.eq(0) | old.cmp("ugt", data)).select(data, old - 1)


def _float_compare_swap(b: Builder, old: Value, data: Value, second: Value) -> Value:
    return old.as_float().eq(second.as_float()).select(data, old)


def _conditional_exchange(b: Builder, old: Value, data: Value, second: Value) -> Value:
    """Two dwords; each is replaced where bit 31 of its data is set, with that bit cleared."""
    result = b.const("i64", 0)
    for shift in (0, 32):
        new = data.lshr(shift) & 0xFFFFFFFF
        kept = old.lshr(shift) & 0xFFFFFFFF
        result = result | (new & 0x80000000).ne(0).select(new & 0x7FFFFFFF, kept) << shift
    return result


UPDATES: dict[str, Update] = {
    "add": lambda b, old, data, second: old + data,
    "sub": lambda b, old, data, second: old - data,
    "rsub": lambda b, old, data, second: data - old,
    "csub": lambda b, old, data, second: old.cmp("ult", data).select(b.const(old.ty, 0), old - data),
    "inc": _increment,
    "dec": _decrement,
    "min_i": _minmax("slt"),
    "min_u": _minmax("ult"),
    "max_i": _minmax("sgt"),
    "max_u": _minmax("ugt"),
    "min_f": _float_minmax("olt"),
    "max_f": _float_minmax("ogt"),
    "and": lambda b, old, data, second: old & data,
    "or": lambda b, old, data, second: old | data,
    "xor": lambda b, old, data, second: old ^ data,
    "mskor": lambda b, old, data, second: (old & ~data) | second,
    "swap": lambda b, old, data, second: data,
    "cmpswap": lambda b, old, data, second: old.eq(second).select(data, old),
    "cmpswap_f": _float_compare_swap,
    "wrap": lambda b, old, data, second: old.cmp("uge", data).select(old - data, old + second),
    "condxchg": _conditional_exchange,
    "add_f": lambda b, old, data, second: (old.as_float() + data.as_float()).as_int(),
}


@functools.cache
def atomic(update: str, dwords: int) -> int:
    """Address of `void (ctx, exec, data row, second data row, destination row or null)`, rows in the wave's registers."""
    h = Helper({"ctx": "ptr", "exec": "i32", "data": "ptr", "second": "ptr", "target": "ptr"})
    b = h.b
    ty = "i32" if dwords == 1 else "i64"
    returns = b.emit(f"icmp ne ptr {h.target.ref}, null", "i1")
    # Results go to a buffer first: the destination may be one of the data registers of a later lane.
    results = b.emit("alloca [64 x i32], align 16", "ptr")

    def fetch(place: Value, lane: Value) -> Value:
        low = place.at((lane * 4).zext("i64")).load("i32")
        if dwords == 1:
            return low
        high = place.at((lane * 4).zext("i64") + L.VGPR_ROW).load("i32")
        return low.zext("i64") | high.zext("i64") << 32

    with b.each_lane(h.exec) as lane:
        pointer = to_pointer(lane_slot(h, L.CTX_POINTER, lane, 8).load("i64"))
        old = pointer.load(ty, align=1)
        pointer.store(UPDATES[update](b, old, fetch(h.data, lane), fetch(h.second, lane)), 1)
        results.at((lane * 4 * dwords).zext("i64")).store(old)
    with b.when(returns), b.each_lane(h.exec) as lane:
        for k in range(dwords):
            value = results.at((lane * 4 * dwords).zext("i64") + 4 * k).load("i32")
            h.target.at((lane * 4).zext("i64") + k * L.VGPR_ROW).store(value)
    b.ret()
    return h.compile(f"atomic_{update}_{dwords}", "void")
