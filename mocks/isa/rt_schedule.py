"""Native part of running a grid: launching groups, giving waves their turns, barriers. Python is only needed when something happens."""

from __future__ import annotations

from mocks.isa import layout as L
from mocks.isa.instruction import EXEC_HI, EXEC_LO
from mocks.isa.ir import LANES, Builder, Value
from mocks.isa.rt_memory import Helper, call, helper, lane_numbers

HASH = 0x9E3779B97F4A7C15 - (1 << 64)


@helper("ptr", ctx="ptr", key="i64")
def entry(h: Helper) -> None:
    """Translated function for an entry key, null if there is none yet."""
    b = h.b
    table = h.ctx.at(L.CTX_ENTRIES).load("ptr")
    mask = h.ctx.at(L.CTX_ENTRIES_MASK).load("i64")
    start = (h.key * HASH).lshr(32) & mask
    slot_place = b.emit("alloca i64", "ptr")
    slot_place.store(start)
    head, miss, again = b.fresh("probe"), b.fresh("miss"), b.fresh("again")
    b.br(head)
    b.label(head)
    slot = slot_place.load("i64")
    place = table.at(slot * L.ENTRY_SLOT)
    found = place.load("i64")
    with b.exit_when(found.eq(h.key)):
        b.ret(place.at(8).load("ptr"))
    b.branch(found.eq(-1), miss, again)
    b.label(again)
    slot_place.store((slot + 1) & mask)
    b.br(head)
    b.label(miss)
    b.ret(b.const("ptr", 0))


@helper("i32", ctx="ptr", wave="ptr")
def run_wave(h: Helper) -> None:
    """Runs one wave until something else than a jump to other translated code happens."""
    b = h.b
    head, run = b.fresh("again"), b.fresh("run")
    function_place = b.emit("alloca ptr", "ptr")
    b.br(head)
    b.label(head)
    key = h.wave.at(L.WAVE_KEY).load("i64") & ~L.KEY_FULL
    full = h.wave.at(L.WAVE_SGPR + 4 * EXEC_LO).load("i32").eq(-1) & h.ctx.at(L.CTX_USE_FULL).load("i32").ne(0)
    key = key | full.select(b.i64(L.KEY_FULL), b.i64(0))
    h.wave.at(L.WAVE_KEY).store(key)
    function = call(h, entry(), ("ptr", 1), h.ctx, key)
    absent = b.emit(f"icmp eq ptr {function.ref}, null", "i1")
    with b.exit_when(absent):
        b.ret(b.i32(L.LOOKUP))
    function_place.store(function)
    b.br(run)
    b.label(run)
    code = b.emit(f"call i32 {function_place.load('ptr').ref}(ptr {h.wave.ref}, ptr {h.ctx.ref})", "i32")
    with b.exit_when(code.ne(L.LOOKUP)):
        b.ret(code)
    b.br(head)


def copy(b: Builder, target: Value, source: Value, size: Value) -> None:
    b.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    b.line(f"call void @llvm.memcpy.p0.p0.i64(ptr align 64 {target.ref}, ptr align 64 {source.ref}, i64 {size.ref}, i1 false)")


def _load32(h: Helper, offset: int) -> Value:
    return h.ctx.at(offset).load("i32")


@helper("void", ctx="ptr", slot="i32", group="i64")
def launch_group(h: Helper) -> None:
    """Puts a group into a slot: wave launch state of every wave, garbage in LDS and in all registers that launch does not set."""
    b = h.b
    slot = h.slot.zext("i64")
    waves = h.ctx.at(L.SCHED_WAVES).load("ptr").at(slot * h.ctx.at(L.SCHED_SLOT_STRIDE).load("i64"))
    lds = h.ctx.at(L.SCHED_LDS).load("ptr").at(slot * h.ctx.at(L.SCHED_LDS_STRIDE).load("i64"))
    garbage = h.ctx.at(L.SCHED_GARBAGE).load("ptr")
    window = h.ctx.at(L.SCHED_GARBAGE_MASK).load("i64")
    copy(b, lds, garbage.at((h.group * HASH).lshr(20) & window), _load32(h, L.SCHED_LDS_SIZE).zext("i64"))
    nx, ny = _load32(h, L.SCHED_GRID).zext("i64"), _load32(h, L.SCHED_GRID + 4).zext("i64")
    row = h.group.udiv(nx)
    plane = row.udiv(ny)
    ids = [(h.group - row * nx).trunc("i32"), (row - plane * ny).trunc("i32"), plane.trunc("i32")]
    threads = _load32(h, L.SCHED_THREADS)
    group_waves = _load32(h, L.SCHED_GROUP_WAVES)
    vgpr_bytes = (_load32(h, L.SCHED_VGPRS) * L.VGPR_ROW).zext("i64")
    with b.loop(group_waves) as index:
        wave = waves.at(index.zext("i64") * h.ctx.at(L.SCHED_WAVE_STRIDE).load("i64"))
        seed = (h.group * 64 + index.zext("i64")) * HASH
        copy(b, wave.at(L.WAVE_VGPR), garbage.at(seed.lshr(20) & window), vgpr_bytes)
        copy(b, wave, garbage.at(seed.lshr(40) & window), b.i64(512))
        users = (_load32(h, L.SCHED_USER_SGPRS) * 4).zext("i64")
        copy(b, wave, h.ctx.at(L.SCHED_SGPRS).load("ptr"), users)
        info = group_waves | index << 6  # wave count and number of the wave
        for k, value in enumerate([*ids, info]):
            register = _load32(h, L.SCHED_ID_SGPRS + 4 * k)
            with b.when(register.cmp("sge", 0)):
                wave.at((register * 4).zext("i64")).store(value)
        first = index * LANES
        remaining = threads - first
        mask = remaining.cmp("uge", LANES).select(-1, (b.i32(1) << remaining) - 1)
        wave.at(L.WAVE_SGPR + 4 * EXEC_LO).store(mask)
        wave.at(L.WAVE_SGPR + 4 * EXEC_HI).store(b.i32(0))
        _write_ids(h, wave, first)
        wave.at(L.WAVE_KEY).store(h.ctx.at(L.SCHED_ENTRY).load("i64"))
        wave.at(L.WAVE_MODE).store(_load32(h, L.SCHED_MODE))
        wave.at(L.WAVE_SCC).store(seed.lshr(63).trunc("i32"))
        wave.at(L.WAVE_STATE).store(b.i32(L.STATE_READY))
        wave.at(L.WAVE_INDEX).store(index)
        wave.at(L.WAVE_LDS).store(b.emit(f"ptrtoint ptr {lds.ref} to i64", "i64"))
        wave.at(L.WAVE_LDS_SIZE).store(_load32(h, L.SCHED_LDS_SIZE))
        resident = (h.slot * group_waves + index).zext("i64")
        wave.at(L.WAVE_SCRATCH).store(h.ctx.at(L.SCHED_SCRATCH).load("i64") + resident * h.ctx.at(L.SCHED_SCRATCH_STRIDE).load("i64"))
        for k, value in enumerate(ids):
            wave.at(L.WAVE_GROUP + 4 * k).store(value)
    h.ctx.at(slot + L.SCHED_ACTIVE).store(b.const("i8", 1))
    b.ret()


def _write_ids(h: Helper, wave: Value, first: Value) -> None:
    """v0 = x | y << 10 | z << 20 of each work-item; components that are not wanted stay 0."""
    b = h.b
    item = b.splat(first) + lane_numbers(b, "i32")
    size_x, size_y = _load32(h, L.SCHED_SIZE), _load32(h, L.SCHED_SIZE + 4)
    one, many, joined = b.fresh("line"), b.fresh("box"), b.fresh("ids")
    components = _load32(h, L.SCHED_COMPONENTS)
    target = wave.at(L.WAVE_VGPR)
    b.branch(size_x.eq(_load32(h, L.SCHED_THREADS)), one, many)
    b.label(one)
    target.store(item, 64)
    b.br(joined)
    b.label(many)
    row = item.udiv(b.splat(size_x))
    plane = row.udiv(b.splat(size_y))
    x, y = item - row * b.splat(size_x), row - plane * b.splat(size_y)
    packed = x | components.cmp("ugt", 1).select(y << 10, 0) | components.cmp("ugt", 2).select(plane << 20, 0)
    target.store(packed, 64)
    b.br(joined)
    b.label(joined)


@helper("i32", ctx="ptr", slot="i32")
def settle_group(h: Helper) -> None:
    """After waves of a group ran: 2 if all have ended (the slot is free then), 1 if a barrier was released, 0 otherwise."""
    b = h.b
    waves = h.ctx.at(L.SCHED_WAVES).load("ptr").at(h.slot.zext("i64") * h.ctx.at(L.SCHED_SLOT_STRIDE).load("i64"))
    stride = h.ctx.at(L.SCHED_WAVE_STRIDE).load("i64")
    count = _load32(h, L.SCHED_GROUP_WAVES)
    ended, waiting = b.emit("alloca i32", "ptr"), b.emit("alloca i32", "ptr")
    ended.store(b.i32(0))
    waiting.store(b.i32(0))
    with b.loop(count) as index:
        state = waves.at(index.zext("i64") * stride + L.WAVE_STATE).load("i32")
        ended.store(ended.load("i32") + state.eq(L.STATE_ENDED).zext("i32"))
        waiting.store(waiting.load("i32") + state.eq(L.STATE_BARRIER).zext("i32"))
    with b.exit_when(ended.load("i32").eq(count)):
        h.ctx.at(h.slot.zext("i64") + L.SCHED_ACTIVE).store(b.const("i8", 0))
        done = h.ctx.at(L.SCHED_DONE)
        done.store(done.load("i64") + 1)
        b.ret(b.i32(2))
    with b.exit_when((ended.load("i32") + waiting.load("i32")).ne(count)):
        b.ret(b.i32(0))
    with b.loop(count) as index:
        place = waves.at(index.zext("i64") * stride + L.WAVE_STATE)
        with b.when(place.load("i32").eq(L.STATE_BARRIER)):
            place.store(b.i32(L.STATE_READY))
    b.ret(b.i32(1))


@helper("i32", ctx="ptr", total="i64")
def drive(h: Helper) -> None:
    """Runs the grid until `total` instructions are used up, all groups are done (END), or a wave needs Python's attention.

    One group at a time; another slot gets its turn when a wave of the group has used its slice or sleeps, so that waves which wait
    for each other in memory make progress.
    """
    b = h.b
    ctx = h.ctx
    idle, left_place = b.emit("alloca i32", "ptr"), b.emit("alloca i64", "ptr")
    yielded = b.emit("alloca i32", "ptr")
    idle.store(b.i32(0))
    left_place.store(h.total)
    slot_head, have_group, empty, wave_head, wave_body, wave_next, wave_done, next_slot = (
        b.fresh(stem) for stem in ("slot", "group", "empty", "wave", "body", "next", "settle", "turn")
    )
    b.br(slot_head)
    b.label(slot_head)
    slot = _load32(h, L.SCHED_SLOT)
    active = ctx.at(slot.zext("i64") + L.SCHED_ACTIVE).load("i8")
    b.branch(active.ne(0), have_group, empty)

    b.label(empty)
    following = ctx.at(L.SCHED_NEXT_GROUP).load("i64")
    nothing, start = b.fresh("nothing"), b.fresh("start")
    b.branch(following.cmp("uge", ctx.at(L.SCHED_GROUPS).load("i64")), nothing, start)
    b.label(start)
    call(h, launch_group(), None, ctx, slot, following)
    ctx.at(L.SCHED_NEXT_GROUP).store(following + 1)
    ctx.at(L.SCHED_WAVE).store(b.i32(0))
    b.br(have_group)
    b.label(nothing)
    count = idle.load("i32") + 1
    idle.store(count)
    with b.exit_when(count.cmp("uge", _load32(h, L.SCHED_SLOTS))):
        b.ret(b.i32(L.END))
    b.br(next_slot)

    b.label(have_group)
    idle.store(b.i32(0))
    yielded.store(b.i32(0))
    b.br(wave_head)
    b.label(wave_head)
    index = _load32(h, L.SCHED_WAVE)
    b.branch(index.cmp("ult", _load32(h, L.SCHED_GROUP_WAVES)), wave_body, wave_done)
    b.label(wave_body)
    offset = slot.zext("i64") * ctx.at(L.SCHED_SLOT_STRIDE).load("i64") + index.zext("i64") * ctx.at(L.SCHED_WAVE_STRIDE).load("i64")
    wave = ctx.at(L.SCHED_WAVES).load("ptr").at(offset)
    ready = wave.at(L.WAVE_STATE).load("i32").eq(L.STATE_READY)
    run = b.fresh("run")
    b.branch(ready, run, wave_next)
    b.label(run)
    left = left_place.load("i64")
    with b.exit_when(left.cmp("sle", 0)):
        b.ret(b.i32(L.BUDGET))
    quantum = ctx.at(L.CTX_SLICE).load("i64")
    quantum = left.cmp("slt", quantum).select(left, quantum)
    ctx.at(L.CTX_BUDGET).store(quantum)
    code = call(h, run_wave(), ("i32", 1), ctx, wave)
    used = quantum - ctx.at(L.CTX_BUDGET).load("i64")
    left_place.store(left - used)
    executed = ctx.at(L.CTX_EXECUTED)
    executed.store(executed.load("i64") + used)
    state = wave.at(L.WAVE_STATE)
    ended, waits, slept, others = b.fresh("ended"), b.fresh("waits"), b.fresh("slept"), b.fresh("others")
    b.line(f"switch i32 {code.ref}, label %{others} [ i32 {L.END}, label %{ended} i32 {L.BARRIER}, label %{waits} i32 {L.BUDGET}, label %{slept} i32 {L.SLEEP}, label %{slept} ]")
    b.label(ended)
    state.store(b.i32(L.STATE_ENDED))
    b.br(wave_next)
    b.label(waits)
    state.store(b.i32(L.STATE_BARRIER))
    b.br(wave_next)
    b.label(slept)
    yielded.store(b.i32(1))
    b.br(wave_next)
    b.label(others)
    ctx.at(L.SCHED_STATUS_WAVE).store(b.emit(f"ptrtoint ptr {wave.ref} to i64", "i64"))
    b.ret(code)
    b.label(wave_next)
    ctx.at(L.SCHED_WAVE).store(index + 1)
    b.br(wave_head)

    b.label(wave_done)
    ctx.at(L.SCHED_WAVE).store(b.i32(0))
    settled = call(h, settle_group(), ("i32", 1), ctx, slot)
    stay = settled.ne(0) | yielded.load("i32").eq(0)
    b.branch(stay, slot_head, next_slot)
    b.label(next_slot)
    following_slot = _load32(h, L.SCHED_SLOT) + 1
    ctx.at(L.SCHED_SLOT).store(following_slot.cmp("uge", _load32(h, L.SCHED_SLOTS)).select(b.i32(0), following_slot))
    b.br(slot_head)
