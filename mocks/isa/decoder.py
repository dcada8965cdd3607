"""Machine code of AMD GPUs to instructions, driven by the tables of `drivers/amd/isa`.

A format is found by its encoding mask, most selective first, among those that have the opcode; what follows the base dwords
(literal, DPP16, DPP8) is told by the source fields. A new chip family is a new table.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from drivers.amd.isa import Format, IsaTables, Kind, Opcode, load
from mocks.isa.instruction import DPP8, DPP8_FI, DPP16, LITERAL, VGPR0, Dpp, Instruction, Operand, Part, UnknownInstruction

SIXTEEN_BIT = {"f16", "bf16", "b16", "i16", "u16", "pk2_u8"}
DPP_FORMATS = {"VOP1", "VOP2", "VOPC", "VOP3", "VOP3SD", "VOP3P"}
LITERAL_FORMATS = {"SOP1", "SOP2", "SOPC", "VOP1", "VOP2", "VOPC", "VOP3", "VOP3SD", "VOP3P", "VOPD"}
# Instructions whose third constant is always the dword after them.
ALWAYS_LITERAL = {"v_fmaak_f32", "v_fmamk_f32", "v_fmaak_f16", "v_fmamk_f16", "s_setreg_imm32_b32", "s_fmaak_f32", "s_fmamk_f32"}
ALWAYS_LITERAL_DUAL = {"v_dual_fmaak_f32", "v_dual_fmamk_f32"}

# Where the sources of each format sit, in operand order. SOPK and SOPP immediates are operands too.
SOURCE_FIELDS: dict[str, tuple[str, ...]] = {
    "SOP1": ("ssrc0",),
    "SOP2": ("ssrc0", "ssrc1"),
    "SOPC": ("ssrc0", "ssrc1"),
    "VOP1": ("src0",),
    "VOP2": ("src0", "vsrc1"),
    "VOPC": ("src0", "vsrc1"),
    "VOP3": ("src0", "src1", "src2"),
    "VOP3SD": ("src0", "src1", "src2"),
    "VOP3P": ("src0", "src1", "src2"),
    "VINTERP": ("src0", "src1", "src2"),
    "SMEM": ("sbase", "soffset"),
    "DS": ("addr", "data0", "data1"),
}
# LDS instructions without an address register.
DS_DATA_ONLY = {"ds_store_addtid_b32", "ds_add_gs_reg_rtn", "ds_sub_gs_reg_rtn"}
VGPR_FIELDS = {"vsrc1", "addr", "data0", "data1", "data", "vdata", "vaddr"}
SGPR_SCALE = {"sbase": 2, "srsrc": 4, "ssamp": 4}


def decode(code: bytes | bytearray | memoryview, offset: int = 0, arch: str = "gfx1100", address: int | None = None) -> Instruction:
    """The instruction at `offset` bytes into `code`. `address` is where that byte lies for the GPU (default: the offset).

    UnknownInstruction when the bytes are no instruction of `arch` or end in the middle of one.
    """
    where = offset if address is None else address
    available = min(len(code) - offset, 20) // 4
    if available < 1:
        raise UnknownInstruction(arch, where, (), "no instruction: the code ends")
    words = struct.unpack_from(f"<{available}I", code, offset)
    tables = load(arch)
    for fmt in tables.base:
        if (words[0] & fmt.mask) == fmt.value:
            found = _match(tables, fmt, words)
            if found is not None:
                return _build(tables, fmt, found, words, where, arch)
    raise UnknownInstruction(arch, where, words[:2], "unknown instruction")


def disassemble(code: bytes | bytearray | memoryview, base: int = 0, arch: str = "gfx1100") -> Iterator[Instruction]:
    """Every instruction of a block of code that starts at GPU address `base`, in order."""
    offset = 0
    while offset < len(code):
        instruction = decode(code, offset, arch, base + offset)
        yield instruction
        offset += instruction.size


def _match(tables: IsaTables, fmt: Format, words: tuple[int, ...]) -> tuple[Opcode, ...] | None:
    """The opcode (two for VOPD) if the format has it."""
    low = words[0] | (words[1] << 32 if len(words) > 1 else 0)
    if fmt.name == "VOPD":
        numbers = [f.get(low) for f in fmt.fields if f.name in ("opx", "opy")]
        both = (tables.opcodes["VOPD.X"].get(numbers[0]), tables.opcodes["VOPD.Y"].get(numbers[1]))
        if both[0] is None or both[1] is None or not (both[0].present and both[1].present):
            return None
        return (both[0], both[1])
    table = tables.opcodes[fmt.name]
    if fmt.name == "EXP":
        return (table[0],)
    opcode = table.get(next(f for f in fmt.fields if f.name == "op").get(low))
    return (opcode,) if opcode is not None and opcode.present else None


def _build(tables: IsaTables, fmt: Format, opcodes: tuple[Opcode, ...], words: tuple[int, ...], address: int, chip: str) -> Instruction:
    base_dwords = fmt.bits // 32
    value = 0
    for index, word in enumerate(words):
        value |= word << (32 * index)
    fields = {f.name: f.get(value) for f in fmt.fields}
    trailer = _trailer(fmt.name, opcodes, fields)
    size = fmt.size + (4 if trailer else 0)
    if fmt.name == "MIMG" and fields["nsa"]:
        size += 4
    if len(words) * 4 < size:
        raise UnknownInstruction(chip, address, words, "the code ends inside an instruction")
    literal = None
    dpp = None
    if trailer == "_LIT":
        literal = words[base_dwords]
    elif trailer:
        fields |= {f.name: f.get(value) for f in tables.formats[fmt.name + trailer].fields}
        dpp = _dpp(trailer, fields)
    instruction = Instruction(chip, address, size, words[: size // 4], fmt.name, (), fields, literal, dpp)
    if fmt.name == "VOPD":
        instruction.parts = (_dual_part(opcodes[0], "x", fields), _dual_part(opcodes[1], "y", fields))
    else:
        instruction.parts = (_part(fmt.name, opcodes[0], fields),)
    if dpp is not None:
        instruction.src[0].code = VGPR0 + fields["vsrc0"]
        _apply_half(instruction.src[0], fmt.name, fields, 0)
        if fmt.name in ("VOP1", "VOP2", "VOPC") and trailer == "_DPP16":
            for index, operand in enumerate(instruction.src[:2]):
                operand.neg = bool(fields[f"src{index}_neg"])
                operand.abs = bool(fields[f"src{index}_abs"])
    return instruction


def _trailer(name: str, opcodes: tuple[Opcode, ...], fields: dict[str, int]) -> str:
    """Suffix of the format variant: what follows the base dwords."""
    if opcodes[0].mnemonic in ALWAYS_LITERAL:
        return "_LIT"
    if name == "VOPD":
        dual = any(op.mnemonic in ALWAYS_LITERAL_DUAL for op in opcodes)
        return "_LIT" if dual or LITERAL in (fields["srcx0"], fields["srcy0"]) else ""
    if name in DPP_FORMATS and opcodes[0].src[0] is not None:
        if fields["src0"] == DPP16:
            return "_DPP16"
        if fields["src0"] in (DPP8, DPP8_FI):
            return "_DPP8"
    if name in LITERAL_FORMATS:
        for field, kind in zip(SOURCE_FIELDS[name], opcodes[0].src, strict=False):
            if kind is not None and field not in VGPR_FIELDS and fields[field] == LITERAL and kind.cls not in IMMEDIATES:
                return "_LIT"
    return ""


def _dpp(trailer: str, fields: dict[str, int]) -> Dpp:
    if trailer == "_DPP8":
        return Dpp(tuple(fields[f"lane_sel_{i}"] for i in range(8)), 0, 15, 15, False, fields["src0"] == DPP8_FI)
    return Dpp((), fields["dpp"], fields["row_mask"], fields["bank_mask"], bool(fields["bc"]), bool(fields["fi"]))


def _part(name: str, opcode: Opcode, fields: dict[str, int]) -> Part:
    """Operands of every format but VOPD and the memory formats with optional addresses, which keep to `fields`."""
    dst = None
    sdst = None
    if opcode.dst is not None:
        field = next((f for f in ("vdst", "sdst", "sdata", "vdata") if f in fields), "")
        if field == "vdst" and opcode.dst.cls not in ("sgpr", "sdst", "exec"):
            dst = Operand(opcode.dst, VGPR0 + fields["vdst"])
            _apply_half(dst, name, fields, 3)
        elif field == "vdata":
            dst = Operand(opcode.dst, VGPR0 + fields["vdata"])
        elif opcode.dst.cls == "simm8":
            dst = Operand(opcode.dst, fields["sdata"])
        else:
            dst = Operand(opcode.dst, fields[field] & 0x7F)
    if "sdst" in opcode.extra:
        sdst = Operand(opcode.extra["sdst"], fields["sdst"])
    sources: list[Operand] = []
    for index, kind in enumerate(opcode.src):
        if kind is not None:
            sources.append(_source(name, opcode, kind, index, fields))
    return Part(opcode, dst, tuple(sources), sdst)


IMMEDIATES = {"simm16", "label16", "hwreg", "waitcnt", "sendmsg", "sendmsg_rtn", "clause", "delay", "depctr", "wait_event"}


def source_fields(name: str, opcode: Opcode) -> tuple[str, ...]:
    """Names of the bit fields that hold the sources, in operand order."""
    if name == "DS" and opcode.mnemonic in DS_DATA_ONLY:
        return ("data0",)
    if name in SOURCE_FIELDS:
        return SOURCE_FIELDS[name]
    if name in ("FLAT", "GLOBAL", "SCRATCH"):
        if "addtid" in opcode.mnemonic:
            return ("data", "saddr") if "store" in opcode.mnemonic else ("saddr",)
        return ("addr", "saddr") if "load" in opcode.mnemonic else ("addr", "data", "saddr")
    if name in ("MUBUF", "MTBUF"):
        return ("vaddr", "vdata", "srsrc") if "store" in opcode.mnemonic else ("vaddr", "srsrc", "soffset")
    return {"MIMG": ("vaddr", "srsrc", "ssamp"), "EXP": ("vsrc0", "vsrc1", "vsrc2"), "LDSDIR": ("attr",)}[name]


def _source(name: str, opcode: Opcode, kind: Kind, index: int, fields: dict[str, int]) -> Operand:
    if kind.cls in IMMEDIATES:
        return Operand(kind, fields["ssrc0"] if kind.cls == "sendmsg_rtn" else fields["simm16"])
    if name == "SOPK":
        return Operand(kind, fields["sdst"])
    field = source_fields(name, opcode)[index]
    if name == "SMEM" and kind.cls != "smem_offset":
        field = "sbase"
    code = fields[field] * SGPR_SCALE.get(field, 1)
    if field in VGPR_FIELDS or name == "EXP":
        code += VGPR0
    operand = Operand(kind, code)
    _apply_half(operand, name, fields, index)
    if name in ("VOP3", "VOP3SD", "VINTERP", "VOP3P") and "neg" in fields:
        operand.neg = bool(fields["neg"] >> index & 1)
        operand.abs = bool(fields.get("abs", 0) >> index & 1)
    return operand


def _apply_half(operand: Operand, name: str, fields: dict[str, int], index: int) -> None:
    """16-bit operands: VOP1/VOP2/VOPC keep the half in bit 7 of the VGPR number, VOP3 in op_sel (index 3 is the destination)."""
    if operand.kind.dtype not in SIXTEEN_BIT:
        return
    if name in ("VOP1", "VOP2", "VOPC"):
        operand.half = 0
        if operand.is_vgpr:
            operand.half = (operand.code - VGPR0) >> 7
            operand.code = VGPR0 + ((operand.code - VGPR0) & 0x7F)
    elif name in ("VOP3", "VINTERP"):
        operand.half = fields["opsel"] >> index & 1


def _dual_part(opcode: Opcode, side: str, fields: dict[str, int]) -> Part:
    vdst = fields["vdstx"] if side == "x" else fields["vdsty"] << 1 | (~fields["vdstx"] & 1)
    assert opcode.dst is not None
    dst = Operand(opcode.dst, VGPR0 + vdst)
    sources: list[Operand] = []
    codes = (fields[f"src{side}0"], VGPR0 + fields[f"vsrc{side}1"])
    for kind, code in zip(opcode.src[:2], codes, strict=True):
        if kind is not None:
            sources.append(Operand(kind, code))
    return Part(opcode, dst, tuple(sources))
