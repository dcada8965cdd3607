"""What the semantics of one instruction work with: operands as typed lane values, the destination, MODE, and ways out of the block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.amd.isa import Kind
from mocks.isa import layout as L
from mocks.isa.floats import FloatEnv, float_abs, float_neg
from mocks.isa.instruction import (
    EXECZ,
    LITERAL,
    NULL,
    PRIVATE_BASE,
    PRIVATE_LIMIT,
    SCC,
    SHARED_BASE,
    SHARED_LIMIT,
    VCC_LO,
    VCCZ,
    VGPR0,
    Dpp,
    Instruction,
    Operand,
    Part,
)
from mocks.isa.ir import LANES, Builder, Value
from mocks.isa.registers import Registers

if TYPE_CHECKING:
    from mocks.isa.translate import Unit

# Inline float constants by operand code: f16, f32, f64 bits.
INLINE_FLOATS = {
    240: (0x3800, 0x3F000000, 0x3FE0000000000000),
    241: (0xB800, 0xBF000000, 0xBFE0000000000000),
    242: (0x3C00, 0x3F800000, 0x3FF0000000000000),
    243: (0xBC00, 0xBF800000, 0xBFF0000000000000),
    244: (0x4000, 0x40000000, 0x4000000000000000),
    245: (0xC000, 0xC0000000, 0xC000000000000000),
    246: (0x4400, 0x40800000, 0x4010000000000000),
    247: (0xC400, 0xC0800000, 0xC010000000000000),
    248: (0x3118, 0x3E22F983, 0x3FC45F306DC9C882),
}
WIDTHS = {"f16": 16, "bf16": 16, "i16": 16, "u16": 16, "b16": 16, "pk2_u8": 16, "f64": 64, "i64": 64, "u64": 64, "b64": 64}
VALUE_TYPES = {"f16": "f16", "f32": "f32", "f64": "f64"}


class Unmodelled(Exception):
    """The instruction is known but has no semantics here; executing it stops the wave with its name."""


def width_of(dtype: str) -> int:
    return WIDTHS.get(dtype, 32)


def constant_bits(code: int, dtype: str, literal: int | None) -> int | None:
    """Value of an inline constant or literal at the width of the operand; None where the code is a register."""
    width = width_of(dtype)
    if code == LITERAL:
        assert literal is not None
        if width == 16:
            return literal & 0xFFFF
        if dtype == "f64":
            return literal << 32
        return literal - ((literal >> 31) << 32) if dtype == "i64" else literal
    if 128 <= code <= 192:
        return code - 128
    if 193 <= code <= 208:
        return (192 - code) & ((1 << width) - 1)
    if code in INLINE_FLOATS:
        half, single, double = INLINE_FLOATS[code]
        if dtype == "bf16":
            return single >> 16
        if dtype in ("pk2_f16",):
            return half
        if dtype == "pk2_bf16":
            return single >> 16
        return {16: half, 32: single, 64: double}[width]
    return None


class Context:
    def __init__(self, unit: Unit, b: Builder, regs: Registers, mode_bits: int) -> None:
        self.unit = unit
        self.b = b
        self.regs = regs
        self.env = FloatEnv(b, mode_bits)
        self.mode_bits = mode_bits
        self.wave = Value(b, "%wave", "ptr", 1)
        self.ctx = Value(b, "%ctx", "ptr", 1)
        self.inst: Instruction
        self.part: Part
        self.dpp_mask: Value | None = None

    def begin(self, instruction: Instruction, part: Part | None = None) -> None:
        self.inst = instruction
        self.part = part or instruction.parts[0]
        self.dpp_mask = None

    @property
    def clamp(self) -> bool:
        return bool(self.inst.fields.get("clmp"))

    def exec_value(self) -> Value:
        """EXEC as a scalar, constant where it is known to be all ones."""
        return self.regs.read_s(126)

    # -- scalar operands -------------------------------------------------------------------------------------------------

    def scalar32(self, operand: Operand) -> Value:
        constant = constant_bits(operand.code, operand.kind.dtype, self.inst.literal)
        if constant is not None:
            return self.b.i32(constant)
        return self.special(operand.code) if operand.code >= 128 else self.regs.read_s(operand.code)

    def scalar64(self, operand: Operand) -> Value:
        constant = constant_bits(operand.code, operand.kind.dtype if operand.kind.dtype in WIDTHS else "b64", self.inst.literal)
        if constant is not None:
            return self.b.i64(constant)
        if operand.code >= 128:
            return self.special64(operand.code)
        return self.regs.read_s64(operand.code)

    def special(self, code: int) -> Value:
        if code == SCC:
            return self.regs.read_scc().zext("i32")
        if code == VCCZ:
            return self.regs.read_s(VCC_LO).eq(0).zext("i32")
        if code == EXECZ:
            return self.exec_value().eq(0).zext("i32")
        if code in (SHARED_BASE, SHARED_LIMIT, PRIVATE_BASE, PRIVATE_LIMIT):
            return self.special64(code).trunc("i32")
        raise Unmodelled(f"operand {code:#x}")

    def special64(self, code: int) -> Value:
        if code in (SHARED_BASE, SHARED_LIMIT):
            base = self.ctx.at(L.CTX_SHARED_BASE).load("i64")
            return base if code == SHARED_BASE else base | 0xFFFFFFFF
        if code in (PRIVATE_BASE, PRIVATE_LIMIT):
            base = self.ctx.at(L.CTX_PRIVATE_BASE).load("i64")
            return base if code == PRIVATE_BASE else base | 0xFFFFFFFF
        return self.special(code).zext("i64")

    # -- vector operands -------------------------------------------------------------------------------------------------

    def bits32(self, operand: Operand) -> Value:
        """A 32-bit source as raw lanes."""
        if operand.is_vgpr:
            return self.regs.read_v(operand.code - VGPR0)
        constant = constant_bits(operand.code, operand.kind.dtype, self.inst.literal)
        if constant is not None:
            return self.b.const("i32", constant, LANES)
        return self.regs.splat(self.scalar32(operand))

    def bits64(self, operand: Operand) -> Value:
        if operand.is_vgpr:
            return self.regs.read_pair(operand.code - VGPR0)
        constant = constant_bits(operand.code, operand.kind.dtype, self.inst.literal)
        if constant is not None:
            return self.b.const("i64", constant, LANES)
        return self.regs.splat(self.scalar64(operand))

    def bits16(self, operand: Operand) -> Value:
        """A 16-bit source: one half of its register, or the low half of a constant."""
        if not operand.is_vgpr:
            constant = constant_bits(operand.code, operand.kind.dtype, self.inst.literal)
            if constant is not None:
                return self.b.const("i16", constant, LANES)
        word = self.bits32(operand)
        return (word.lshr(16) if operand.half else word).trunc("i16")

    def source(self, index: int, kind: Kind | None = None) -> Value:
        """Source operand in its natural type with abs, neg and DPP applied."""
        operand = self.part.src[index]
        if kind is not None:
            operand = Operand(kind, operand.code, operand.half, operand.neg, operand.abs)
        dtype = operand.kind.dtype
        width = width_of(dtype)
        if index == 0 and self.inst.dpp is not None:
            value = self._through_dpp(operand, self.inst.dpp, width)
        else:
            value = {16: self.bits16, 32: self.bits32, 64: self.bits64}[width](operand)
        if operand.abs:
            value = float_abs(value.as_float()).as_int()
        if operand.neg:
            value = float_neg(value.as_float()).as_int()
        return value.cast(VALUE_TYPES[dtype]) if dtype in VALUE_TYPES else value

    def mask_source(self, index: int) -> Value:
        """A source that is a lane mask in SGPRs."""
        operand = self.part.src[index]
        if operand.is_sgpr and operand.code != NULL:
            return self.regs.read_mask(operand.code)
        return self.scalar32(operand).mask()

    def _through_dpp(self, operand: Operand, dpp: Dpp, width: int) -> Value:
        if width == 64:
            raise Unmodelled("DPP on a 64-bit operand")
        row, self.dpp_mask = shuffled(self, self.bits32(operand), dpp)
        if width == 16:
            return (row.lshr(16) if operand.half else row).trunc("i16")
        return row

    # -- destination -----------------------------------------------------------------------------------------------------

    def old_dst(self) -> Value:
        """Present contents of the destination in its natural type (accumulating instructions)."""
        operand = self.part.dst
        assert operand is not None
        width = width_of(operand.kind.dtype)
        value = {16: self.bits16, 32: self.bits32, 64: self.bits64}[width](operand)
        return value.cast(VALUE_TYPES[operand.kind.dtype]) if operand.kind.dtype in VALUE_TYPES else value

    def write_dst(self, value: Value) -> None:
        operand = self.part.dst
        assert operand is not None
        number = operand.code - VGPR0
        if width_of(operand.kind.dtype) == 64:
            self.regs.write_pair(number, value, self.dpp_mask)
        elif operand.half is not None:
            self.write_half(number, operand.half, value)
        else:
            self.regs.write_v(number, value, self.dpp_mask)

    def write_half(self, number: int, half: int, value: Value) -> None:
        """16 bits into one half of a register; the other half stays."""
        value = self.b.splat(value.as_int()).zext("i32")
        old = self.regs.read_v(number)
        merged = (old & 0xFFFF0000) | value if half == 0 else (old & 0xFFFF) | value << 16
        self.regs.write_v(number, merged, self.dpp_mask)

    def memory_call(self, address: int, *args: Value) -> Value:
        """Calls a native helper that returns 0 after a fault; the wave then stops at this instruction, which has done nothing yet."""
        result = self.b.call(address, ("i32", 1), *args)
        assert result is not None
        after = self.b.fresh("moved")
        self.b.branch(result.eq(0), self.unit.fault_exit(), after)
        self.b.label(after)
        return result

    def constant_rows(self, bits: int, count: int) -> Value:
        """Pointer to `count` rows whose lanes all hold the same constant (a WMMA addend)."""
        self.b.allocas["%rows"] = f"%rows = alloca [{32 * count} x i32], align 64"
        place = Value(self.b, "%rows", "ptr", 1)
        for index in range(count):
            place.at(index * L.VGPR_ROW).store(self.b.const("i32", bits, LANES), 64)
        return place

    def write_lane_mask(self, code: int, lanes: Value) -> None:
        """Result mask of compares and carries; 0 where inactive or not written through DPP."""
        lanes = self.b.splat(lanes)
        self.regs.write_mask_s(code, lanes if self.dpp_mask is None else lanes & self.dpp_mask)


def dpp_sources(dpp: Dpp) -> list[int | None]:
    """Source lane of each lane, None where there is none."""
    if dpp.selectors:
        return [(lane & ~7) + dpp.selectors[lane & 7] for lane in range(LANES)]
    control = dpp.ctrl
    result: list[int | None] = []
    for lane in range(LANES):
        row, place = lane & ~15, lane & 15
        count = control & 15
        if control < 0x100:
            result.append((lane & ~3) + (control >> 2 * (lane & 3) & 3))
        elif 0x101 <= control <= 0x10F:
            result.append(row + place + count if place + count < 16 else None)
        elif 0x111 <= control <= 0x11F:
            result.append(row + place - count if place >= count else None)
        elif 0x121 <= control <= 0x12F:
            result.append(row + (place - count) % 16)
        elif control == 0x140:
            result.append(row + 15 - place)
        elif control == 0x141:
            result.append(row + (place & 8) + 7 - (place & 7))
        elif 0x150 <= control <= 0x15F:
            result.append(row + count)
        elif 0x160 <= control <= 0x16F:
            result.append(row + (place ^ count))
        else:
            raise Unmodelled(f"DPP control {control:#x}")
    return result


def shuffled(c: Context, value: Value, dpp: Dpp) -> tuple[Value, Value | None]:
    """The source lanes as DPP delivers them, and the lanes that may be written (None: all active ones)."""
    b = c.b
    lanes = dpp_sources(dpp)
    moved = value.permute([lane or 0 for lane in lanes])
    exists = [lane is not None for lane in lanes]
    enabled = [bool(dpp.row_mask >> (lane >> 4) & 1 and dpp.bank_mask >> ((lane & 15) >> 2) & 1) for lane in range(LANES)]
    readable: Value | None = None
    if not (dpp.fi or c.regs.full):
        readable = c.regs.exec_mask().permute([lane or 0 for lane in lanes])
    if not all(exists):
        constant = b.vector("i1", [int(e) for e in exists])
        readable = constant if readable is None else readable & constant
    writable = None if all(enabled) else b.vector("i1", [int(e) for e in enabled])
    if readable is None:
        return moved, writable
    if dpp.bound_ctrl or dpp.selectors:
        return readable.select(moved, 0), writable
    return moved, readable if writable is None else readable & writable
