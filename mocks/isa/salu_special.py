"""Scalar instructions that read more than registers: program counter, hardware registers, messages, scalar memory."""

from __future__ import annotations

from mocks.isa import layout as L
from mocks.isa.context import Context, Unmodelled
from mocks.isa.instruction import NULL, VCC_LO, Instruction
from mocks.isa.ir import Value
from mocks.isa.registers import check_scalars
from mocks.isa.rt_memory import scalar_load
from mocks.isa.salu import Outcome, define


def program_address(c: Context, address: int) -> Value:
    """A GPU address inside the program; the code may lie elsewhere next time, so it is relative to the base of the run."""
    return c.ctx.at(L.CTX_CODE_BASE).load("i64") + (address - c.unit.base)


define("s_getpc_b64", lambda c: (program_address(c, c.inst.next_address), None))

HW_MODE, HW_STATUS, HW_FLAT_SCRATCH_LO, HW_FLAT_SCRATCH_HI, HW_ID1, HW_ID2, HW_SHADER_CYCLES = 1, 2, 20, 21, 23, 24, 29
HW_LDS_ALLOC, HW_GPR_ALLOC, HW_TRAPSTS, HW_SH_MEM_BASES, HW_IB_STS, HW_IB_STS2 = 6, 5, 3, 15, 7, 28


def clock(c: Context) -> Value:
    """Ticks of the 100 MHz counter."""
    callback = c.ctx.at(L.CTX_CLOCK).load("ptr")
    return c.b.emit(f"call i64 {callback.ref}()", "i64")


def hardware_register(c: Context, number: int) -> Value:
    if number == HW_MODE:
        return c.wave.at(L.WAVE_MODE).load("i32")
    if number == HW_STATUS:
        scc = c.regs.read_scc().zext("i32")
        exec_zero = c.exec_value().eq(0).zext("i32") << 9
        vcc_zero = c.regs.read_s(VCC_LO).eq(0).zext("i32") << 10
        return scc | exec_zero | vcc_zero | 1 << 16  # VALID
    if number in (HW_FLAT_SCRATCH_LO, HW_FLAT_SCRATCH_HI):
        base = c.wave.at(L.WAVE_SCRATCH).load("i64")
        return (base.lshr(32) if number == HW_FLAT_SCRATCH_HI else base).trunc("i32")
    if number == HW_ID1:
        return c.wave.at(L.WAVE_INDEX).load("i32") & 31
    if number == HW_SHADER_CYCLES:
        return clock(c).trunc("i32") & 0xFFFFF
    if number == HW_LDS_ALLOC:
        return c.wave.at(L.WAVE_LDS_SIZE).load("i32").lshr(9) << 12
    if number == HW_SH_MEM_BASES:
        shared, private = (c.ctx.at(at).load("i64").lshr(48).trunc("i32") for at in (L.CTX_SHARED_BASE, L.CTX_PRIVATE_BASE))
        return private | shared << 16
    if number in (HW_TRAPSTS, HW_IB_STS, HW_IB_STS2, HW_ID2):
        return c.b.i32(0)
    raise Unmodelled(f"hardware register {c.unit.tables.hwregs.get(number, number)}")


def _getreg(c: Context, selector: Value) -> Outcome:
    value = c.inst.fields["simm16"]
    number, offset, size = value & 63, value >> 6 & 31, (value >> 11) + 1
    mask = ((1 << size) - 1) & 0xFFFFFFFF
    return hardware_register(c, number).lshr(offset) & mask, None


define("s_getreg_b32", _getreg)

MSG_RTN_DOORBELL, MSG_RTN_REALTIME = 128, 131


def _sendmsg_rtn(c: Context, message: Value) -> Outcome:
    number = c.inst.src[0].code
    value = clock(c) if number == MSG_RTN_REALTIME else c.b.i64(0)
    dst = c.inst.dst
    assert dst is not None
    return (value if dst.kind.dwords == 2 else value.trunc("i32")), None


define("s_sendmsg_rtn_b32 s_sendmsg_rtn_b64", _sendmsg_rtn)

LOAD_DWORDS = {"b32": 1, "b64": 2, "b128": 4, "b256": 8, "b512": 16}
CACHE_CONTROL = {"s_gl1_inv", "s_dcache_inv"}


def emit_scalar_memory(c: Context, instruction: Instruction) -> None:
    c.begin(instruction)
    name = instruction.mnemonic
    if name in CACHE_CONTROL:
        return
    if instruction.family not in ("smem_load", "smem_buffer_load"):
        raise Unmodelled(name)
    count = LOAD_DWORDS[name.rpartition("_")[2]]
    fields = instruction.fields
    imm = fields["offset"] - ((fields["offset"] & 0x100000) << 1)
    offset = c.b.i64(imm)
    if fields["soffset"] != NULL:
        offset = c.regs.read_s(fields["soffset"]).zext("i64") + imm
    base = fields["sbase"] * 2
    dst = instruction.dst
    assert dst is not None
    check_scalars(dst.code, count)
    c.regs.flush()
    target = c.wave.at(L.WAVE_SGPR + 4 * dst.code)
    if instruction.family == "smem_load":
        va = (c.regs.read_s64(base) + offset) & -4
        c.memory_call(scalar_load(), c.ctx, va, c.b.i32(count), target)
    else:
        _buffer_load(c, base, offset, count, target)
    c.regs.forget_scalars(dst.code, count)


def _buffer_load(c: Context, base: int, offset: Value, count: int, target: Value) -> None:
    """Dwords beyond the buffer's end read 0: all of them are loaded one by one."""
    start = c.regs.read_s64(base) & 0xFFFFFFFFFFFF
    stride = c.regs.read_s(base + 1).lshr(16) & 0x3FFF
    records = c.regs.read_s(base + 2).zext("i64")
    limit = stride.eq(0).select(records, records * stride.zext("i64"))
    offset = offset & -4
    for k in range(count):
        inside = (offset + 4 * k + 4).cmp("ule", limit)
        place = target.at(4 * k)
        load, zero, after = c.b.fresh("load"), c.b.fresh("zero"), c.b.fresh("after")
        c.b.branch(inside, load, zero)
        c.b.label(load)
        c.memory_call(scalar_load(), c.ctx, start + offset + 4 * k, c.b.i32(1), place)
        c.b.br(after)
        c.b.label(zero)
        place.store(c.b.i32(0))
        c.b.br(after)
        c.b.label(after)
