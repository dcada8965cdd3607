"""Native helpers that turn lane addresses into host addresses, and move data between lanes and memory.

An access is two calls: an address helper leaves one host pointer per lane in the context (or the address of lane 0 when all lanes
are contiguous) and has checked every lane before anything moves, then a mover copies. Nothing but translated addresses is touched.

Address helpers return CONTIGUOUS, POINTERS, or FAILED with the faulting address in the context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from mocks.isa import layout as L
from mocks.isa.ir import LANES, Builder, Value
from mocks.isa.native import compile_helper

FAILED, CONTIGUOUS, POINTERS = 0, 1, 2
# Flags of address helpers beside the access bits.
MAY_BE_CONTIGUOUS = 8

PARAMETER_TYPES = {"ptr": ("ptr", 1), "i32": ("i32", 1), "i64": ("i64", 1)}


class Helper:
    """A function under construction: its builder and its parameters by name."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self.b = Builder()
        self.parameters = parameters
        self.args = {name: Value(self.b, f"%{name}", *PARAMETER_TYPES[ty]) for name, ty in parameters.items()}

    def __getattr__(self, name: str) -> Value:
        return self.args[name]

    def compile(self, name: str, result: str) -> int:
        text = self.b.function(name, result, [(ty, param) for param, ty in self.parameters.items()])
        return compile_helper(self.b.declarations() + text, name)


def helper(result: str, **parameters: str) -> Callable[[Callable[[Helper], None]], Callable[[], int]]:
    """Makes a function that compiles the helper on first use and returns its address."""

    def wrap(build: Callable[[Helper], None]) -> Callable[[], int]:
        @functools.cache
        def address() -> int:
            h = Helper(parameters)
            build(h)
            return h.compile(build.__name__, result)

        address.__doc__ = build.__doc__
        return address

    return wrap


def call(h: Helper, address: int, result: tuple[str, int] | None, *args: Value) -> Value:
    value = h.b.call(address, result, *args)
    return value if value is not None else h.b.i32(0)


def lane_numbers(b: Builder, ty: str) -> Value:
    return b.vector(ty, list(range(LANES)))


@helper("i64", ctx="ptr", va="i64", access="i32")
def tlb(h: Helper) -> None:
    """Host address of one GPU address, 0 for a fault."""
    b = h.b
    page = h.va.lshr(L.PAGE_SHIFT)
    table = ((h.access & 3) - 1 + h.access.lshr(3) * 3).zext("i64") * L.TLB_TABLE
    number = (page + page.lshr(L.TLB_SET_BITS) * L.TLB_SPREAD) & (L.TLB_SETS - 1)
    entry = h.ctx.at(L.CTX_TLB).load("ptr").at(table + number * (L.TLB_WAYS * L.TLB_ENTRY))
    tag = page | h.ctx.at(L.CTX_EPOCH).load("i64")
    head = b.fresh("look")
    b.br(head)
    b.label(head)
    for way in range(L.TLB_WAYS):
        with b.exit_when(entry.at(way * L.TLB_ENTRY).load("i64").eq(tag)):
            b.ret(h.va + entry.at(way * L.TLB_ENTRY + 8).load("i64"))
    miss = h.ctx.at(L.CTX_MISS).load("ptr")
    found = b.emit(f"call i32 {miss.ref}(i64 {h.va.ref}, i32 {h.access.ref})", "i32")
    with b.exit_when(found.eq(0)):
        h.ctx.at(L.CTX_FAULT_VA).store(h.va)
        h.ctx.at(L.CTX_FAULT_ACCESS).store(h.access)
        b.ret(b.i64(0))
    b.br(head)


@helper("i32", ctx="ptr", lane="i32", index="i32", va="i64", access="i32")
def bounce_byte(h: Helper) -> None:
    """One byte of an access that is not in one piece: remembers its host address, fetches it when reading. 0 for a fault."""
    b = h.b
    where = call(h, tlb(), ("i64", 1), h.ctx, h.va, h.access)
    with b.exit_when(where.eq(0)):
        b.ret(b.i32(0))
    slot = (h.lane * 16 + h.index).zext("i64")
    h.ctx.at(slot * 8 + L.CTX_BYTE_POINTERS).store(where)
    with b.when((h.access & L.READ).ne(0)):
        source = b.emit(f"inttoptr i64 {where.ref} to ptr", "ptr")
        h.ctx.at(slot + L.CTX_BOUNCE).store(source.load("i8"))
    b.ret(b.i32(1))


def to_pointer(value: Value) -> Value:
    return value.b.emit(f"inttoptr i64 {value.ref} to ptr", "ptr")


def bounce_pointer(h: Helper, lane: Value) -> Value:
    """Address of the lane's bounce buffer as i64."""
    where = h.ctx.at((lane * 16).zext("i64") + L.CTX_BOUNCE)
    return h.b.emit(f"ptrtoint ptr {where.ref} to i64", "i64")


def lane_slot(h: Helper, base: int, lane: Value, size: int) -> Value:
    return h.ctx.at((lane * size).zext("i64") + base)


def mark_bounced(h: Helper, lane: Value) -> None:
    flag = h.ctx.at(L.CTX_BOUNCED)
    flag.store(flag.load("i32") | (h.b.i32(1) << lane))


@helper("i32", ctx="ptr", lane="i32", va="i64", size="i32", access="i32")
def lane_global(h: Helper) -> None:
    """Pointer of one lane for linear memory; accesses over a page border go through the bounce buffer."""
    b = h.b
    offset = h.va & (L.PAGE - 1)
    slot = lane_slot(h, L.CTX_POINTER, h.lane, 8)
    lane_slot(h, L.CTX_STRIDE, h.lane, 4).store(b.i32(4))
    inside = (offset + h.size.zext("i64")).cmp("ule", L.PAGE)
    with b.exit_when(inside):
        where = call(h, tlb(), ("i64", 1), h.ctx, h.va, h.access)
        slot.store(where)
        b.ret(where.ne(0).zext("i32"))
    with b.exit_when(h.access.eq(L.READ | L.WRITE)):  # an atomic has to be aligned
        h.ctx.at(L.CTX_FAULT_VA).store(h.va)
        h.ctx.at(L.CTX_FAULT_ACCESS).store(h.access)
        b.ret(b.i32(0))
    with b.loop(h.size) as index:
        done = call(h, bounce_byte(), ("i32", 1), h.ctx, h.lane, index, h.va + index.zext("i64"), h.access)
        with b.exit_when(done.eq(0)):
            b.ret(b.i32(0))
    slot.store(bounce_pointer(h, h.lane))
    mark_bounced(h, h.lane)
    b.ret(b.i32(1))


@helper("i32", ctx="ptr", exec="i32", size="i32", flags="i32")
def classify(h: Helper) -> None:
    """Host pointers for the GPU addresses in the context's VA array, which is linear memory."""
    b = h.b
    h.ctx.at(L.CTX_BOUNCED).store(b.i32(0))
    with b.exit_when(h.exec.eq(0)):
        b.ret(b.i32(POINTERS))
    access = h.flags & 3
    first = b.overloaded("cttz", h.exec, "i1 true").zext("i64")
    va = h.ctx.at(L.CTX_VA).load("i64", LANES, 64)
    va0 = h.ctx.at(L.CTX_VA).at(first * 8).load("i64")
    size = h.size.zext("i64")
    start = va0 - first * size
    expected = start + lane_numbers(b, "i64") * size
    same = (va.eq(expected).ballot() & h.exec).eq(h.exec)
    last = start + (size * LANES - 1)
    one_page = (start ^ last).lshr(L.PAGE_SHIFT).eq(0)
    allowed = (h.flags & MAY_BE_CONTIGUOUS).ne(0)
    with b.exit_when(same & one_page & allowed):
        where = call(h, tlb(), ("i64", 1), h.ctx, va0, access)
        h.ctx.at(L.CTX_BASE).store(where - first * size)
        b.ret(where.ne(0).select(b.i32(CONTIGUOUS), b.i32(FAILED)))
    page = va0.lshr(L.PAGE_SHIFT)
    pages = (va.lshr(L.PAGE_SHIFT).eq(page) & (va + (size - 1)).lshr(L.PAGE_SHIFT).eq(page)).ballot()
    with b.exit_when((pages & h.exec).eq(h.exec)):
        where = call(h, tlb(), ("i64", 1), h.ctx, va0, access)
        h.ctx.at(L.CTX_POINTER).store(va + (where - va0), 64)
        h.ctx.at(L.CTX_STRIDE).store(b.const("i32", 4, LANES), 64)
        b.ret(where.ne(0).select(b.i32(POINTERS), b.i32(FAILED)))
    with b.each_lane(h.exec) as lane:
        address = lane_slot(h, L.CTX_VA, lane, 8).load("i64")
        done = call(h, lane_global(), ("i32", 1), h.ctx, lane, address, h.size, access)
        with b.exit_when(done.eq(0)):
            b.ret(b.i32(FAILED))
    b.ret(b.i32(POINTERS))


def row(pointer: Value) -> Value:
    """A VGPR row as lanes."""
    return pointer.load("i32", LANES, 64)


def pair(low: Value, high: Value) -> Value:
    return low.zext("i64") | high.zext("i64") << 32


def finish(h: Helper, va: Value) -> None:
    h.ctx.at(L.CTX_VA).store(va, 64)
    h.b.ret(call(h, classify(), ("i32", 1), h.ctx, h.exec, h.size, h.flags))


@helper("i32", ctx="ptr", exec="i32", low="ptr", high="ptr", imm="i64", size="i32", flags="i32")
def address_pair(h: Helper) -> None:
    """GLOBAL with a 64-bit VGPR address."""
    finish(h, pair(row(h.low), row(h.high)) + h.imm)


@helper("i32", ctx="ptr", exec="i32", base="i64", offset="ptr", size="i32", flags="i32")
def address_saddr(h: Helper) -> None:
    """GLOBAL with an SGPR base (immediate offset added) and a 32-bit VGPR offset."""
    finish(h, row(h.offset).zext("i64") + h.base)


def lds_pointer(h: Helper, wave: Value, offset: Value, size: Value) -> Value:
    """Host address of LDS bytes (scalar), or of the zero or dump area when they are outside the group's allocation."""
    b = h.b
    limit = wave.at(L.WAVE_LDS_SIZE).load("i32").zext("i64")
    inside = (offset.zext("i64") + size.zext("i64")).cmp("ule", limit)
    reading = (h.flags & 3).eq(L.READ)
    spare = h.ctx.at(reading.select(b.i64(L.CTX_ZERO), b.i64(L.CTX_DUMP)))
    spare = b.emit(f"ptrtoint ptr {spare.ref} to i64", "i64")
    with b.when(~inside):
        count = h.ctx.at(L.CTX_LDS_OUT_OF_RANGE)
        count.store(count.load("i32") + 1)
        for part in range(0, 16, 8):
            h.ctx.at(L.CTX_DUMP + part).store(b.i64(0))
    return inside.select(wave.at(L.WAVE_LDS).load("i64") + offset.zext("i64"), spare)


@helper("i32", ctx="ptr", wave="ptr", exec="i32", addr="ptr", imm="i32", size="i32", flags="i32")
def address_lds(h: Helper) -> None:
    b = h.b
    h.ctx.at(L.CTX_BOUNCED).store(b.i32(0))
    with b.exit_when(h.exec.eq(0)):
        b.ret(b.i32(POINTERS))
    offset = row(h.addr) + h.imm
    limit = h.wave.at(L.WAVE_LDS_SIZE).load("i32")
    fits = limit.cmp("uge", h.size)
    inside = (offset.cmp("ule", limit - h.size).ballot() & h.exec).eq(h.exec) & fits
    base = h.wave.at(L.WAVE_LDS).load("i64")
    with b.exit_when(inside):
        first = b.overloaded("cttz", h.exec, "i1 true")
        start = h.addr.at((first * 4).zext("i64")).load("i32") + h.imm - first * h.size
        expected = start + lane_numbers(b, "i32") * h.size
        same = (offset.eq(expected).ballot() & h.exec).eq(h.exec)
        room = (start.zext("i64") + (h.size * LANES).zext("i64")).cmp("ule", limit.zext("i64"))
        allowed = (h.flags & MAY_BE_CONTIGUOUS).ne(0)
        with b.exit_when(same & room & allowed):
            h.ctx.at(L.CTX_BASE).store(base + start.zext("i64"))
            b.ret(b.i32(CONTIGUOUS))
        h.ctx.at(L.CTX_POINTER).store(offset.zext("i64") + base, 64)
        h.ctx.at(L.CTX_STRIDE).store(b.const("i32", 4, LANES), 64)
        b.ret(b.i32(POINTERS))
    h.ctx.at(L.CTX_STRIDE).store(b.const("i32", 4, LANES), 64)
    with b.each_lane(h.exec) as lane:
        one = h.addr.at((lane * 4).zext("i64")).load("i32") + h.imm
        lane_slot(h, L.CTX_POINTER, lane, 8).store(lds_pointer(h, h.wave, one, h.size))
    b.ret(b.i32(POINTERS))


def scratch_va(h: Helper, wave: Value, offset: Value, lane: Value) -> Value:
    """GPU address of a byte of a lane's private memory: dwords of the 32 lanes lie side by side."""
    base = wave.at(L.WAVE_SCRATCH).load("i64")
    wide = offset.zext("i64")
    return base + wide.lshr(2) * L.VGPR_ROW + (lane * 4).zext("i64") + (wide & 3)


@helper("i32", ctx="ptr", wave="ptr", lane="i32", offset="i32", size="i32", access="i32")
def lane_scratch(h: Helper) -> None:
    """Pointer of one lane for private memory."""
    b = h.b
    va = scratch_va(h, h.wave, h.offset, h.lane)
    rows = (h.size + 3).lshr(2)
    last = va + ((rows - 1) * L.VGPR_ROW).zext("i64") + 3
    whole = (h.offset & 3).eq(0) | ((h.offset & 3) + h.size).cmp("ule", 4)
    one_page = (va ^ last).lshr(L.PAGE_SHIFT).eq(0)
    slot = lane_slot(h, L.CTX_POINTER, h.lane, 8)
    with b.exit_when(whole & one_page):
        where = call(h, tlb(), ("i64", 1), h.ctx, va, h.access)
        slot.store(where)
        lane_slot(h, L.CTX_STRIDE, h.lane, 4).store(b.i32(L.VGPR_ROW))
        b.ret(where.ne(0).zext("i32"))
    with b.loop(h.size) as index:
        byte = scratch_va(h, h.wave, h.offset + index, h.lane)
        done = call(h, bounce_byte(), ("i32", 1), h.ctx, h.lane, index, byte, h.access)
        with b.exit_when(done.eq(0)):
            b.ret(b.i32(0))
    slot.store(bounce_pointer(h, h.lane))
    lane_slot(h, L.CTX_STRIDE, h.lane, 4).store(b.i32(4))
    mark_bounced(h, h.lane)
    b.ret(b.i32(1))


@helper("i32", ctx="ptr", wave="ptr", exec="i32", voffset="ptr", soffset="i32", size="i32", flags="i32")
def address_scratch(h: Helper) -> None:
    """SCRATCH: VGPR offset (null pointer: none) plus the sum of SGPR and immediate offset."""
    b = h.b
    h.ctx.at(L.CTX_BOUNCED).store(b.i32(0))
    present = b.emit(f"icmp ne ptr {h.voffset.ref}, null", "i1")
    access = h.flags & 3
    with b.each_lane(h.exec) as lane:
        # Without a VGPR the SGPR row of zeros in the context stands in for it.
        source = b.emit(f"select i1 {present.ref}, ptr {h.voffset.ref}, ptr {h.ctx.at(L.CTX_ZERO).ref}", "ptr")
        index = present.select((lane * 4).zext("i64"), b.i64(0))
        offset = source.at(index).load("i32") + h.soffset
        done = call(h, lane_scratch(), ("i32", 1), h.ctx, h.wave, lane, offset, h.size, access)
        with b.exit_when(done.eq(0)):
            b.ret(b.i32(FAILED))
    b.ret(b.i32(POINTERS))


@helper("i32", ctx="ptr", wave="ptr", exec="i32", low="ptr", high="ptr", imm="i64", size="i32", flags="i32")
def address_flat(h: Helper) -> None:
    """FLAT: each lane's address is in LDS, private memory or global memory, told by its upper bits."""
    b = h.b
    va = pair(row(h.low), row(h.high)) + h.imm
    shared = h.ctx.at(L.CTX_SHARED_BASE).load("i64").lshr(48)
    private = h.ctx.at(L.CTX_PRIVATE_BASE).load("i64").lshr(48)
    top = va.lshr(48)
    special = (top.eq(shared) | top.eq(private)).ballot() & h.exec
    h.ctx.at(L.CTX_VA).store(va, 64)
    with b.exit_when(special.eq(0)):
        b.ret(call(h, classify(), ("i32", 1), h.ctx, h.exec, h.size, h.flags))
    h.ctx.at(L.CTX_BOUNCED).store(b.i32(0))
    access = h.flags & 3
    with b.each_lane(h.exec) as lane:
        address = lane_slot(h, L.CTX_VA, lane, 8).load("i64")
        upper = address.lshr(48)
        in_lds, not_lds, in_private, in_global, joined = (b.fresh(stem) for stem in ("lds", "other", "private", "global", "joined"))
        b.branch(upper.eq(shared), in_lds, not_lds)
        b.label(in_lds)
        lane_slot(h, L.CTX_POINTER, lane, 8).store(lds_pointer(h, h.wave, address.trunc("i32"), h.size))
        lane_slot(h, L.CTX_STRIDE, lane, 4).store(b.i32(4))
        b.br(joined)
        b.label(not_lds)
        b.branch(upper.eq(private), in_private, in_global)
        for label, function, middle in ((in_private, lane_scratch(), [h.wave]), (in_global, lane_global(), [])):
            b.label(label)
            where = address.trunc("i32") if middle else address
            done = call(h, function, ("i32", 1), h.ctx, *middle, lane, where, h.size, access)
            with b.exit_when(done.eq(0)):
                b.ret(b.i32(FAILED))
            b.br(joined)
        b.label(joined)
    b.ret(b.i32(POINTERS))


@helper("void", ctx="ptr", size="i32")
def commit(h: Helper) -> None:
    """Writes bounced store data to where it belongs."""
    b = h.b
    bounced = h.ctx.at(L.CTX_BOUNCED).load("i32")
    with b.each_lane(bounced) as lane, b.loop(h.size) as index:
        slot = (lane * 16 + index).zext("i64")
        target = to_pointer(h.ctx.at(slot * 8 + L.CTX_BYTE_POINTERS).load("i64"))
        target.store(h.ctx.at(slot + L.CTX_BOUNCE).load("i8"))
    b.ret()


@helper("i32", ctx="ptr", va="i64", count="i32", target="ptr")
def scalar_load(h: Helper) -> None:
    """`count` dwords to consecutive SGPRs; 0 for a fault, and nothing is written then."""
    b = h.b
    with b.loop(h.count) as index:
        where = call(h, tlb(), ("i64", 1), h.ctx, h.va + (index * 4).zext("i64"), b.i32(L.READ | L.SCALAR))
        with b.exit_when(where.eq(0)):
            b.ret(b.i32(0))
        lane_slot(h, L.CTX_SCALARS, index, 4).store(to_pointer(where).load("i32"))
    with b.loop(h.count) as index:
        h.target.at((index * 4).zext("i64")).store(lane_slot(h, L.CTX_SCALARS, index, 4).load("i32"))
    b.ret(b.i32(1))


# What CTX_FAULT_ACCESS holds when a buffer descriptor asks for something that is not modelled.
SWIZZLED_BUFFER = 0x100


@helper("i32", ctx="ptr", exec="i32", rsrc="ptr", vaddr="ptr", modes="i32", soffset="i32", imm="i32", size="i32", flags="i32")
def address_buffer(h: Helper) -> None:
    """MUBUF. modes: bit 0 offen, bit 1 idxen; vaddr is the first of their VGPRs. Out-of-range lanes read zeros, their stores vanish."""
    b = h.b
    h.ctx.at(L.CTX_BOUNCED).store(b.i32(0))
    word1 = h.rsrc.at(4).load("i32")
    records = h.rsrc.at(8).load("i32").zext("i64")
    base = h.rsrc.load("i32").zext("i64") | (word1 & 0xFFFF).zext("i64") << 32
    stride = (word1.lshr(16) & 0x3FFF).zext("i64")
    with b.exit_when(word1.lshr(30).ne(0)):
        h.ctx.at(L.CTX_FAULT_ACCESS).store(b.i32(SWIZZLED_BUFFER))
        b.ret(b.i32(FAILED))
    access = h.flags & 3
    offen, idxen = (h.modes & 1).ne(0), (h.modes & 2).ne(0)
    with b.each_lane(h.exec) as lane:
        slot = (lane * 4).zext("i64")
        first = h.vaddr.at(slot).load("i32")
        second = h.vaddr.at(slot + idxen.select(b.i64(L.VGPR_ROW), b.i64(0))).load("i32")
        index = idxen.select(first, 0).zext("i64")
        offset = (offen.select(second, 0) + h.imm).zext("i64")
        raw_ok = (offset + h.size.zext("i64")).cmp("ule", records)
        inside = stride.eq(0).select(raw_ok, index.cmp("ult", records))
        good, bad, joined = b.fresh("inside"), b.fresh("outside"), b.fresh("joined")
        b.branch(inside, good, bad)
        b.label(bad)
        spare = h.ctx.at(access.eq(L.READ).select(b.i64(L.CTX_ZERO), b.i64(L.CTX_DUMP)))
        lane_slot(h, L.CTX_POINTER, lane, 8).store(b.emit(f"ptrtoint ptr {spare.ref} to i64", "i64"))
        lane_slot(h, L.CTX_STRIDE, lane, 4).store(b.i32(4))
        b.br(joined)
        b.label(good)
        va = base + h.soffset.zext("i64") + stride * index + offset
        done = call(h, lane_global(), ("i32", 1), h.ctx, lane, va, h.size, access)
        with b.exit_when(done.eq(0)):
            b.ret(b.i32(FAILED))
        b.br(joined)
        b.label(joined)
    b.ret(b.i32(POINTERS))
