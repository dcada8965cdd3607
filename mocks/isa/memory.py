"""Vector memory instructions: LDS, FLAT, GLOBAL, SCRATCH, MUBUF. Addresses and data movement are native helpers; here operands are sorted."""

from __future__ import annotations

from mocks.isa import layout as L
from mocks.isa import rt_memory as rt
from mocks.isa.context import Context, Unmodelled
from mocks.isa.instruction import M0, NULL, Instruction
from mocks.isa.ir import LANES, Value
from mocks.isa.rt_atomic import atomic
from mocks.isa.rt_move import LOADS, STORES, Access, load_mover, store_mover
from mocks.isa.valu_cross import gather_lanes


def emit_vector_memory(c: Context, instruction: Instruction) -> None:
    c.begin(instruction)
    if instruction.format == "DS":
        _emit_ds(c, instruction)
    elif instruction.format in ("FLAT", "GLOBAL", "SCRATCH"):
        _emit_flat(c, instruction)
    elif instruction.format == "MUBUF":
        _emit_buffer(c, instruction)
    else:
        raise Unmodelled(instruction.mnemonic)


def _move_in(c: Context, access: Access, mode: Value, number: int) -> None:
    c.b.call(load_mover(access), None, c.ctx, c.exec_value(), mode, c.regs.row(number))


def _move_out(c: Context, access: Access, mode: Value, number: int) -> None:
    c.b.call(store_mover(access), None, c.ctx, c.exec_value(), mode, c.regs.row(number))


def _copied(c: Context, number: int, key: str, count: int = 1) -> Value:
    """A copy of VGPR rows that later writes of the same instruction do not change."""
    c.b.allocas[f"%copy_{key}"] = f"%copy_{key} = alloca [{LANES * count} x i32], align 64"
    place = Value(c.b, f"%copy_{key}", "ptr", 1)
    for k in range(count):
        place.at(k * L.VGPR_ROW).store(c.regs.row(number + k).load("i32", LANES, 64), 64)
    return place


# --- LDS ------------------------------------------------------------------------------------------------------------------


def _lds_address(c: Context, address: Value, imm: int, size: int, flags: int) -> Value:
    return c.memory_call(rt.address_lds(), c.ctx, c.wave, c.exec_value(), address, c.b.i32(imm), c.b.i32(size), c.b.i32(flags))


def _emit_ds(c: Context, instruction: Instruction) -> None:
    family, name = instruction.family, instruction.mnemonic
    fields = instruction.fields
    if fields["gds"]:
        raise Unmodelled(f"{name} gds")
    if name == "ds_nop":
        return
    offset = fields["offset0"] | fields["offset1"] << 8
    special = {"ds_swizzle": _swizzle, "ds_permute": _permute, "ds_bpermute": _bpermute, "ds_append": _append}
    if family in special:
        special[family](c, offset)
        return
    c.regs.flush()
    reading = rt.MAY_BE_CONTIGUOUS | L.READ
    writing = rt.MAY_BE_CONTIGUOUS | L.WRITE
    if family == "ds_load":
        access = LOADS[name.removeprefix("ds_load_")]
        c.regs.check(fields["vdst"], access.dwords)
        mode = _lds_address(c, c.regs.row(fields["addr"]), offset, access.size, reading)
        _move_in(c, access, mode, fields["vdst"])
    elif family == "ds_store":
        access = STORES[name.removeprefix("ds_store_")]
        c.regs.check(fields["data0"], access.dwords)
        mode = _lds_address(c, c.regs.row(fields["addr"]), offset, access.size, writing)
        _move_out(c, access, mode, fields["data0"])
    elif family in ("ds_load2", "ds_store2"):
        _two_addresses(c, family == "ds_load2")
    elif family == "ds_atomic":
        _lds_atomic(c, offset)
    elif family == "ds_addtid":
        _addtid(c, offset)
    else:
        raise Unmodelled(name)
    c.regs.forget_vectors()


def _pair_offsets(c: Context, size: int) -> tuple[int, int]:
    scale = size * (64 if "stride64" in c.inst.mnemonic else 1)
    return c.inst.fields["offset0"] * scale, c.inst.fields["offset1"] * scale


def _two_addresses(c: Context, loading: bool) -> None:
    access = LOADS[c.inst.mnemonic.rpartition("_")[2]]
    for k in (0, 1):
        c.regs.check(c.inst.fields["vdst"] + k * access.dwords if loading else c.inst.fields[f"data{k}"], access.dwords)
    address = _copied(c, c.inst.fields["addr"], "address")
    flags = rt.MAY_BE_CONTIGUOUS | (L.READ if loading else L.WRITE)
    for k, offset in enumerate(_pair_offsets(c, access.size)):
        mode = _lds_address(c, address, offset, access.size, flags)
        if loading:
            _move_in(c, access, mode, c.inst.fields["vdst"] + k * access.dwords)
        else:
            _move_out(c, access, mode, c.inst.fields[f"data{k}"])


DS_UPDATES = {"cmpstore": "cmpswap", "storexchg": "swap", "condxchg32": "condxchg"}


def update_name(words: list[str], dtype: str) -> str:
    """Key of rt_atomic.UPDATES for an operation and its data type."""
    op = DS_UPDATES.get(words[0], words[0])
    if op in ("min", "max"):
        return f"{op}_{dtype[0]}"
    return f"{op}_f" if dtype[0] == "f" and op in ("add", "cmpswap") else op


def _lds_atomic(c: Context, offset: int) -> None:
    """ds_<op>[_2addr[_stride64]][_rtn]_<type>."""
    fields = c.inst.fields
    words = c.inst.mnemonic.removeprefix("ds_").split("_")
    returning = "rtn" in words
    dtype = words[-1]
    dwords = int(dtype[1:]) // 32
    function = atomic(update_name(words, dtype), dwords)
    flags = L.READ | L.WRITE
    null = c.b.const("ptr", 0)
    target = null
    if returning:
        assert c.part.dst is not None
        c.regs.check(fields["vdst"], c.part.dst.kind.dwords)
        target = c.regs.row(fields["vdst"])
    c.regs.check(fields["data0"], dwords)
    if "2addr" in words:
        address = _copied(c, fields["addr"], "address")
        data = [_copied(c, fields[f"data{k}"], f"data{k}", dwords) for k in (0, 1)]
        for k, where in enumerate(_pair_offsets(c, 4 * dwords)):
            _lds_address(c, address, where, 4 * dwords, flags)
            c.b.call(function, None, c.ctx, c.exec_value(), data[k], data[k], target.at(k * dwords * L.VGPR_ROW))
        return
    _lds_address(c, c.regs.row(fields["addr"]), offset, 4 * dwords, flags)
    second = c.regs.row(fields["data0"])
    if len(c.part.src) > 2:
        c.regs.check(fields["data1"], dwords)
        second = c.regs.row(fields["data1"])
    c.b.call(function, None, c.ctx, c.exec_value(), c.regs.row(fields["data0"]), second, target)


def _addtid(c: Context, offset: int) -> None:
    """LDS at offset + M0[15:0] + 4 * lane."""
    start = c.regs.splat(c.regs.read_s(M0) & 0xFFFF) + c.b.vector("i32", [4 * lane for lane in range(LANES)])
    address = c.ctx.at(L.CTX_TEMP)
    address.store(start, 64)
    loading = c.inst.mnemonic == "ds_load_addtid_b32"
    c.regs.check(c.inst.fields["vdst" if loading else "data0"])
    mode = _lds_address(c, address, offset, 4, rt.MAY_BE_CONTIGUOUS | (L.READ if loading else L.WRITE))
    if loading:
        _move_in(c, LOADS["b32"], mode, c.inst.fields["vdst"])
    else:
        _move_out(c, STORES["b32"], mode, c.inst.fields["data0"])


def _append(c: Context, offset: int) -> None:
    """A counter in LDS at M0[15:0] + offset goes up (append) or down (consume) by the number of active lanes, which all get the old value."""
    b = c.b
    place = (c.regs.read_s(M0) & 0xFFFF) + offset
    limit = c.wave.at(L.WAVE_LDS_SIZE).load("i32")
    inside = (place + 4).cmp("ule", limit)
    lds = c.wave.at(L.WAVE_LDS).load("i64")
    dump = b.emit(f"ptrtoint ptr {c.ctx.at(L.CTX_DUMP).ref} to i64", "i64")
    pointer = rt.to_pointer(inside.select(lds + place.zext("i64"), dump))
    old = pointer.load("i32", align=1)
    count = b.overloaded("ctpop", c.exec_value())
    pointer.store(old + count if c.inst.mnemonic == "ds_append" else old - count, 1)
    c.regs.write_v(c.inst.fields["vdst"], c.regs.splat(old))


def _readable(c: Context, moved: Value, lanes: Value) -> Value:
    """Inactive source lanes deliver 0."""
    if c.regs.full:
        return moved
    active = (c.regs.splat(c.exec_value()).lshr(lanes & (LANES - 1)) & 1).ne(0)
    return active.select(moved, 0)


def _bpermute(c: Context, offset: int) -> None:
    lanes = (c.regs.read_v(c.inst.fields["addr"]) + offset).lshr(2)
    moved = gather_lanes(c, c.regs.read_v(c.inst.fields["data0"]), lanes)
    c.regs.write_v(c.inst.fields["vdst"], _readable(c, moved, lanes))


def _permute(c: Context, offset: int) -> None:
    """Active lanes in ascending order put their value into the lane they name; the last one wins."""
    b = c.b
    lanes = (c.regs.read_v(c.inst.fields["addr"]) + offset).lshr(2) & (LANES - 1)
    values = c.regs.read_v(c.inst.fields["data0"])
    for name in ("%push_lanes", "%push_values", "%push_result"):
        b.allocas[name] = f"{name} = alloca [{LANES} x i32], align 64"
    where, what, result = (Value(b, name, "ptr", 1) for name in ("%push_lanes", "%push_values", "%push_result"))
    where.store(lanes, 64)
    what.store(values, 64)
    result.store(b.const("i32", 0, LANES), 64)
    with b.each_lane(c.exec_value()) as lane:
        slot = (lane * 4).zext("i64")
        target = where.at(slot).load("i32").zext("i64")
        result.at(target * 4).store(what.at(slot).load("i32"))
    c.regs.write_v(c.inst.fields["vdst"], result.load("i32", LANES, 64))


def swizzle_lanes(offset: int) -> list[int]:
    """Source lane of each lane for ds_swizzle_b32."""
    if offset >= 0xE000:
        raise Unmodelled("ds_swizzle_b32 in FFT mode")
    if offset >= 0xC000:  # rotate
        keep, count = offset & 31, offset >> 5 & 31
        step = -count if offset >> 10 & 1 else count
        return [(lane & keep) | ((lane + step) & 31 & ~keep) for lane in range(LANES)]
    if offset >= 0x8000:
        return [(lane & ~3) + (offset >> 2 * (lane & 3) & 3) for lane in range(LANES)]
    keep, set_, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return [((lane & keep) | set_) ^ flip for lane in range(LANES)]


def _swizzle(c: Context, offset: int) -> None:
    lanes = swizzle_lanes(offset)
    moved = c.regs.read_v(c.inst.fields["addr"]).permute(lanes)
    if not c.regs.full:
        moved = c.regs.exec_mask().permute(lanes).select(moved, 0)
    c.regs.write_v(c.inst.fields["vdst"], moved)


# --- FLAT, GLOBAL, SCRATCH ----------------------------------------------------------------------------------------------------


def _emit_flat(c: Context, instruction: Instruction) -> None:
    name = instruction.mnemonic
    operation = name.partition("_")[2]
    c.regs.flush()
    if operation.startswith("load_") and operation[5:] in LOADS:
        access = LOADS[operation[5:]]
        c.regs.check(instruction.fields["vdst"], access.dwords)
        mode = _flat_address(c, access.size, rt.MAY_BE_CONTIGUOUS | L.READ)
        _move_in(c, access, mode, instruction.fields["vdst"])
    elif operation.startswith("store_") and operation[6:] in STORES:
        access = STORES[operation[6:]]
        c.regs.check(instruction.fields["data"], access.dwords)
        mode = _flat_address(c, access.size, rt.MAY_BE_CONTIGUOUS | L.WRITE)
        _move_out(c, access, mode, instruction.fields["data"])
    elif operation.startswith("atomic_"):
        _flat_atomic(c, operation[7:])
    elif operation in ("load_addtid_b32", "store_addtid_b32"):
        _flat_addtid(c, operation.startswith("load"))
    else:
        raise Unmodelled(name)
    c.regs.forget_vectors()


def _immediate(c: Context) -> int:
    offset = c.inst.fields["offset"]
    return offset & 0xFFF if c.inst.format == "FLAT" else offset - ((offset & 0x1000) << 1)


def _flat_address(c: Context, size: int, flags: int) -> Value:
    b, fields = c.b, c.inst.fields
    imm = _immediate(c)
    saddr = fields["saddr"]
    sizes = (b.i32(size), b.i32(flags))
    if c.inst.format == "SCRATCH":
        row = c.regs.row(fields["addr"]) if fields["sve"] else b.const("ptr", 0)
        start = b.i32(imm) if saddr == NULL else c.regs.read_s(saddr) + imm
        return c.memory_call(rt.address_scratch(), c.ctx, c.wave, c.exec_value(), row, start, *sizes)
    if c.inst.format == "GLOBAL" and saddr != NULL:
        base = c.regs.read_s64(saddr) + imm
        return c.memory_call(rt.address_saddr(), c.ctx, c.exec_value(), base, c.regs.row(fields["addr"]), *sizes)
    c.regs.check(fields["addr"], 2)
    low, high = c.regs.row(fields["addr"]), c.regs.row(fields["addr"] + 1)
    if c.inst.format == "FLAT":
        return c.memory_call(rt.address_flat(), c.ctx, c.wave, c.exec_value(), low, high, b.i64(imm), *sizes)
    return c.memory_call(rt.address_pair(), c.ctx, c.exec_value(), low, high, b.i64(imm), *sizes)


def _atomic_call(c: Context, op: str, data: int, target: Value) -> None:
    """`op` is <operation>_<type>, data the first VGPR of the operands (compare values follow the new ones)."""
    words = op.split("_")
    dwords = int(words[-1][1:]) // 32
    second = data + dwords if words[0] == "cmpswap" else data
    function = atomic(update_name(words, words[-1]), dwords)
    c.b.call(function, None, c.ctx, c.exec_value(), c.regs.row(data), c.regs.row(second), target)


def _flat_atomic(c: Context, op: str) -> None:
    fields = c.inst.fields
    dwords = int(op.rpartition("_")[2][1:]) // 32
    c.regs.check(fields["data"], 2 * dwords if "cmpswap" in op else dwords)
    if fields["glc"]:
        c.regs.check(fields["vdst"], dwords)
    _flat_address(c, 4 * dwords, L.READ | L.WRITE)
    target = c.b.const("ptr", 0)
    if fields["glc"]:
        target = c.regs.row(fields["vdst"])
    _atomic_call(c, op, fields["data"], target)


def _flat_addtid(c: Context, loading: bool) -> None:
    b, fields = c.b, c.inst.fields
    c.regs.check(fields["vdst" if loading else "data"])
    row = c.ctx.at(L.CTX_TEMP)
    row.store(b.vector("i32", [4 * lane for lane in range(LANES)]), 64)
    base = (b.i64(0) if fields["saddr"] == NULL else c.regs.read_s64(fields["saddr"])) + _immediate(c)
    flags = rt.MAY_BE_CONTIGUOUS | (L.READ if loading else L.WRITE)
    mode = c.memory_call(rt.address_saddr(), c.ctx, c.exec_value(), base, row, b.i32(4), b.i32(flags))
    if loading:
        _move_in(c, LOADS["b32"], mode, fields["vdst"])
    else:
        _move_out(c, STORES["b32"], mode, fields["data"])


# --- MUBUF --------------------------------------------------------------------------------------------------------------------


def _emit_buffer(c: Context, instruction: Instruction) -> None:
    fields, name = instruction.fields, instruction.mnemonic
    if instruction.family == "cache_ctl":
        return
    operation = name.removeprefix("buffer_")
    if fields["tfe"] or "format" in operation or "lds" in operation:
        raise Unmodelled(name)
    c.regs.flush()
    data = fields["vdata"]
    if operation.startswith("load_"):
        access = LOADS[operation[5:]]
        c.regs.check(data, access.dwords)
        _move_in(c, access, _buffer_address(c, access.size, L.READ), data)
    elif operation.startswith("store_"):
        access = STORES[operation[6:]]
        c.regs.check(data, access.dwords)
        _move_out(c, access, _buffer_address(c, access.size, L.WRITE), data)
    else:
        op = operation.removeprefix("atomic_")
        c.regs.check(data, int(op.rpartition("_")[2][1:]) // 32 * (2 if "cmpswap" in op else 1))
        _buffer_address(c, int(op.rpartition("_")[2][1:]) // 8, L.READ | L.WRITE)
        _atomic_call(c, op, data, c.regs.row(data) if fields["glc"] else c.b.const("ptr", 0))
    c.regs.forget_vectors()


def _buffer_address(c: Context, size: int, access: int) -> Value:
    b, fields = c.b, c.inst.fields
    modes = fields["offen"] | fields["idxen"] << 1
    row = c.regs.row(fields["vaddr"]) if modes else c.ctx.at(L.CTX_TEMP)
    if modes == 3:
        c.regs.check(fields["vaddr"], 2)
    soffset = fields["soffset"]
    start = b.i32(0) if soffset == NULL else b.i32(soffset - 128) if 128 <= soffset <= 192 else c.regs.read_s(soffset)
    if soffset > 192:
        raise Unmodelled(f"{c.inst.mnemonic} with soffset {soffset}")
    rsrc = c.wave.at(L.WAVE_SGPR + 16 * fields["srsrc"])
    arguments = (c.ctx, c.exec_value(), rsrc, row, b.i32(modes), start, b.i32(fields["offset"]), b.i32(size), b.i32(access))
    return c.memory_call(rt.address_buffer(), *arguments)


__all__ = ["emit_vector_memory", "swizzle_lanes"]
