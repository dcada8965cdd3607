"""Vector instructions that move data between lanes, between registers and SGPRs, or write more than one register."""

from __future__ import annotations

from mocks.isa import layout as L
from mocks.isa.context import Context, Unmodelled
from mocks.isa.instruction import M0, VGPR0
from mocks.isa.ir import LANES, Value
from mocks.isa.valu import vgpr_number, whole
from mocks.isa.valu_int import _sliding_sums


@whole("v_nop v_pipeflush")
def nothing(c: Context) -> None:
    pass


@whole("v_readfirstlane_b32")
def readfirstlane(c: Context) -> None:
    """Lowest active lane; lane 0 when none is active."""
    value = c.source(0)
    if c.regs.full:
        lane: Value | int = 0
    else:
        active = c.exec_value()
        lane = active.eq(0).select(0, c.b.overloaded("cttz", active, "i1 false"))
    assert c.part.dst is not None
    c.regs.write_s(c.part.dst.code, value.lane(lane))


def _lane_number(c: Context, index: int) -> Value | int:
    operand = c.part.src[index]
    if 128 <= operand.code <= 192:
        return (operand.code - 128) % LANES
    return c.scalar32(operand) & (LANES - 1)


@whole("v_readlane_b32")
def readlane(c: Context) -> None:
    assert c.part.dst is not None
    value = c.source(0)
    lane = _lane_number(c, 1)
    c.regs.write_s(c.part.dst.code, value.lane(lane))


@whole("v_writelane_b32")
def writelane(c: Context) -> None:
    """One lane of the destination, EXEC or not."""
    number = vgpr_number(c.part)
    lane = _lane_number(c, 1)
    index = c.b.i32(lane) if isinstance(lane, int) else lane
    c.regs.set_v(number, c.regs.read_v(number).insert(c.scalar32(c.part.src[0]), index))


def gather_lanes(c: Context, value: Value, lanes: Value) -> Value:
    """value[lanes[i]] for every lane i."""
    c.b.allocas["%gather"] = f"%gather = alloca [{LANES} x i32], align 64"
    place = Value(c.b, "%gather", "ptr", 1)
    place.store(value, 64)
    offsets = (lanes & (LANES - 1)).zext("i64")
    pointers = c.b.emit(f"getelementptr i32, ptr {place.ref}, {offsets.type} {offsets.ref}", "ptr", LANES)
    name = f"llvm.masked.gather.v{LANES}i32.v{LANES}p0"
    everyone = c.b.const("i1", 1, LANES)
    c.b.declare(name, f"declare <{LANES} x i32> @{name}(<{LANES} x ptr>, i32 immarg, <{LANES} x i1>, <{LANES} x i32>)")
    return c.b.emit(
        f"call <{LANES} x i32> @{name}(<{LANES} x ptr> {pointers.ref}, i32 4, {everyone.type} {everyone.ref}, <{LANES} x i32> zeroinitializer)", "i32", LANES
    )


@whole("v_permlane16_b32 v_permlanex16_b32")
def permlane16(c: Context) -> None:
    """Within each row of 16, lane i reads the lane that nibble i of {src2, src1} names; the x form reads the other row of the pair."""
    value = c.source(0)
    selectors = c.scalar32(c.part.src[1]).zext("i64") | c.scalar32(c.part.src[2]).zext("i64") << 32
    places = c.b.vector("i64", [4 * (lane & 15) for lane in range(LANES)])
    other = 16 if c.inst.mnemonic == "v_permlanex16_b32" else 0
    rows = c.b.vector("i32", [(lane & 16) ^ other for lane in range(LANES)])
    lanes = (c.regs.splat(selectors).lshr(places).trunc("i32") & 15) | rows
    moved = gather_lanes(c, value, lanes)
    opsel = c.inst.fields["opsel"]
    mask = None
    if not (opsel & 1 or c.regs.full):
        active = (c.regs.splat(c.exec_value()).lshr(lanes) & 1).ne(0)
        if opsel & 2:
            moved = active.select(moved, 0)
        else:
            mask = active
    c.regs.write_v(vgpr_number(c.part), moved, mask)


@whole("v_permlane64_b32")
def permlane64(c: Context) -> None:
    """Swaps the halves of a wave64; nothing in wave32."""


@whole("v_swap_b32")
def swap(c: Context) -> None:
    target, source = vgpr_number(c.part), c.part.src[0].code - VGPR0
    first, second = c.regs.read_v(target), c.regs.read_v(source)
    c.regs.write_v(target, second)
    c.regs.write_v(source, first)


@whole("v_swap_b16")
def swap16(c: Context) -> None:
    assert c.part.dst is not None
    target, source = c.part.dst, c.part.src[0]
    first, second = c.bits16(target), c.bits16(source)
    c.write_half(target.code - VGPR0, target.half or 0, second)
    c.write_half(source.code - VGPR0, source.half or 0, first)


def _relative_row(c: Context, number: int, offset: Value) -> Value:
    """Memory of v[number + offset]; outside the allocation v0, as hardware does."""
    index = offset + number
    inside = index.cmp("ult", c.regs.vgprs)
    index = inside.select(index, 0).zext("i64")
    return c.wave.at(index * L.VGPR_ROW + L.WAVE_VGPR)


def _relative_read(c: Context, number: int, offset: Value) -> Value:
    c.regs.flush()
    return _relative_row(c, number, offset).load("i32", LANES, 64)


def _relative_write(c: Context, number: int, offset: Value, value: Value) -> None:
    c.regs.flush()
    place = _relative_row(c, number, offset)
    lanes = c.regs.write_mask(None)
    if lanes is not None:
        value = lanes.select(value, place.load("i32", LANES, 64))
    place.store(c.b.splat(value), 64)
    c.regs.forget_vectors()


def _source_number(c: Context) -> int:
    operand = c.part.src[0]
    if not operand.is_vgpr:
        raise Unmodelled(f"{c.inst.mnemonic} with a scalar source")
    return operand.code - VGPR0


@whole("v_movrels_b32")
def movrels(c: Context) -> None:
    c.regs.write_v(vgpr_number(c.part), _relative_read(c, _source_number(c), c.regs.read_s(M0)))


@whole("v_movreld_b32")
def movreld(c: Context) -> None:
    _relative_write(c, vgpr_number(c.part), c.regs.read_s(M0), c.source(0))


@whole("v_movrelsd_b32")
def movrelsd(c: Context) -> None:
    offset = c.regs.read_s(M0)
    _relative_write(c, vgpr_number(c.part), offset, _relative_read(c, _source_number(c), offset))


@whole("v_movrelsd_2_b32")
def movrelsd_2(c: Context) -> None:
    """M0 bits 9:0 index the source, bits 25:16 the destination."""
    offset = c.regs.read_s(M0)
    value = _relative_read(c, _source_number(c), offset & 0x3FF)
    _relative_write(c, vgpr_number(c.part), offset.lshr(16) & 0x3FF, value)


@whole("v_swaprel_b32")
def swaprel(c: Context) -> None:
    offset = c.regs.read_s(M0)
    target, source = vgpr_number(c.part), _source_number(c)
    first = _relative_read(c, target, offset.lshr(16) & 0x3FF)
    second = _relative_read(c, source, offset & 0x3FF)
    _relative_write(c, target, offset.lshr(16) & 0x3FF, second)
    _relative_write(c, source, offset & 0x3FF, first)


@whole("v_mqsad_u32_u8")
def mqsad_u32(c: Context) -> None:
    """Four 32-bit accumulators in four registers."""
    number = vgpr_number(c.part)
    addend = c.part.src[2]
    sums = _sliding_sums(c, c.source(0), c.source(1), masked=True)
    if not addend.is_vgpr:
        raise Unmodelled("v_mqsad_u32_u8 with a scalar accumulator")
    totals = [total + c.regs.read_v(addend.code - VGPR0 + k) for k, total in enumerate(sums)]
    for k, total in enumerate(totals):
        c.regs.write_v(number + k, total)
