"""Assembly text of decoded instructions in LLVM's spelling (version 22, 16-bit operands as `v0.l`/`v0.h`)."""

from __future__ import annotations

from collections.abc import Callable

from drivers.amd.isa import Kind, load
from mocks.isa.instruction import EXEC_LO, LITERAL, NULL, TTMP0, VCC_LO, VGPR0, Dpp, Instruction, Operand, Part
from mocks.isa.text_control import render_sopk, render_sopp, sendmsg_rtn
from mocks.isa.text_memory import MEMORY_RENDERERS

INLINE_FLOATS = {240: "0.5", 241: "-0.5", 242: "1.0", 243: "-1.0", 244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0"}
INV_2PI = 248
# Inline float constants as 16-bit integers see them.
HALF_BITS = {240: 0x3800, 241: 0xB800, 242: 0x3C00, 243: 0xBC00, 244: 0x4000, 245: 0xC000, 246: 0x4400, 247: 0xC400, 248: 0x3118}
OMOD = ("", " mul:2", " mul:4", " div:2")
HALF_FLOAT = Kind("src", "f16", 1)


def render(instruction: Instruction, true16: bool = True) -> str:
    """One line of text. With `true16` off, halves of registers are shown as `op_sel`, as LLVM 19 does."""
    fmt = instruction.format
    if fmt in MEMORY_RENDERERS:
        return MEMORY_RENDERERS[fmt](instruction)
    if fmt == "SOPP":
        return render_sopp(instruction)
    if fmt == "SOPK":
        return render_sopk(instruction)
    if fmt in ("SOP1", "SOP2", "SOPC"):
        return _render_scalar(instruction)
    if fmt == "VOPD":
        return " :: ".join(_render_dual(instruction, part) for part in instruction.parts)
    return _render_vector(instruction, true16)


def vgprs(number: int, count: int = 1) -> str:
    return f"v{number}" if count <= 1 else f"v[{number}:{number + count - 1}]"


def scalar(code: int, count: int = 1) -> str:
    """A scalar register or constant operand without literal."""
    if count == 2 and code in (VCC_LO, EXEC_LO):
        return "vcc" if code == VCC_LO else "exec"
    if code < VCC_LO or TTMP0 <= code < NULL:
        prefix, number = ("s", code) if code < VCC_LO else ("ttmp", code - TTMP0)
        return f"{prefix}{number}" if count <= 1 else f"{prefix}[{number}:{number + count - 1}]"
    if 128 <= code <= 192:
        return str(code - 128)
    if 193 <= code <= 208:
        return str(192 - code)
    if code in INLINE_FLOATS:
        return INLINE_FLOATS[code]
    return load("gfx1100").operand_names.get(code, f"src{code}")


def operand_text(operand: Operand, literal: int | None, halves: bool = False) -> str:
    """A source or destination with its modifiers."""
    count = operand.kind.dwords
    if operand.is_vgpr:
        text = vgprs(operand.code - VGPR0, count)
        if halves and operand.half is not None:
            text += ".h" if operand.half else ".l"
    elif operand.code == LITERAL and literal is not None:
        text = _literal(operand, literal)
    elif operand.code in HALF_BITS and operand.kind.dtype in ("i16", "u16") and operand.half is not None:
        text = f"{HALF_BITS[operand.code]:#x}"
    elif operand.code == INV_2PI:
        text = "0.15915494309189532" if operand.kind.dtype in ("f64", "u64", "i64", "b64") else "0.15915494"
    else:
        text = scalar(operand.code, count)
    constant = not operand.is_vgpr and operand.code >= 128 and operand.code not in (251, 252, 253, 254, 235, 236, 237, 238, 239)
    if operand.abs:
        text = f"|{text}|"
    if operand.neg:
        text = f"neg({text})" if constant and not operand.abs else f"-{text}"
    return text


def _literal(operand: Operand, literal: int) -> str:
    """16-bit operands use the low half of the literal."""
    if operand.half is not None:
        literal &= 0xFFFF
        if not literal and operand.kind.dtype == "f16":
            return "0"
    return f"{literal:#x}"


def _render_scalar(instruction: Instruction) -> str:
    parts = []
    if instruction.dst is not None:
        parts.append(operand_text(instruction.dst, None))
    for operand in instruction.src:
        parts.append(sendmsg_rtn(operand.code) if operand.kind.cls == "sendmsg_rtn" else operand_text(operand, instruction.literal))
    return f"{instruction.opcode.printed} {', '.join(parts)}".rstrip()


def _with_constant(part: Part, sources: list[str], literal: int | None) -> list[str]:
    """fmaak ends with the literal, fmamk has it in the middle."""
    if part.opcode.mnemonic.rpartition("_")[0].endswith("fmaak"):
        return [*sources, f"{literal:#x}"]
    if part.opcode.mnemonic.rpartition("_")[0].endswith("fmamk"):
        return [sources[0], f"{literal:#x}", *sources[1:]]
    return sources


def _render_dual(instruction: Instruction, part: Part) -> str:
    assert part.dst is not None
    sources = [operand_text(operand, instruction.literal) for operand in part.src]
    sources = _with_constant(part, sources, instruction.literal)
    return f"{part.opcode.mnemonic} {', '.join([operand_text(part.dst, None), *sources])}"


def _render_vector(instruction: Instruction, true16: bool) -> str:
    part = instruction.parts[0]
    name = part.opcode.printed
    if instruction.dpp is not None:
        if instruction.format == "VOPC":
            name = part.opcode.mnemonic
        elif instruction.format in ("VOP1", "VOP2"):
            name = part.opcode.mnemonic + "_dpp"
        else:
            name = part.opcode.mnemonic + "_e64_dpp"
    operands = _destinations(instruction, true16)
    sources = [operand_text(operand, instruction.literal, true16) for operand in part.src if operand.kind.cls != "exec"]
    if part.opcode.family == "align" and not part.src[2].is_vgpr:
        sources[2] = operand_text(Operand(part.src[0].kind, part.src[2].code), instruction.literal)  # the shift is shown as a 32-bit constant
    if instruction.format == "VOP3P":
        sources = [_packed_source(instruction, index, operand) for index, operand in enumerate(part.src)]
    operands += _with_constant(part, sources, instruction.literal)
    if instruction.format in ("VOP2",) and part.opcode.family in ("cndmask", "iadd_carry_in"):
        operands.append("vcc_lo")
    text = f"{name} {', '.join(operands)}".rstrip()
    text += _modifiers(instruction, true16)
    if instruction.dpp is not None:
        text += _dpp_text(instruction.dpp)
    return text


def _packed_source(instruction: Instruction, index: int, operand: Operand) -> str:
    """neg and neg_hi of a packed operand are printed behind; in the mix forms they negate and take the absolute value."""
    shown = Operand(operand.kind, operand.code)
    if instruction.family == "fma_mix":
        if (instruction.fields["opsel_hi"] | instruction.fields["opsel_hi2"] << 2) >> index & 1 and not operand.is_vgpr:
            shown = Operand(HALF_FLOAT, operand.code, half=0)
        shown.neg = bool(instruction.fields["neg"] >> index & 1)
        shown.abs = bool(instruction.fields["neg_hi"] >> index & 1)
    return operand_text(shown, instruction.literal)


def _destinations(instruction: Instruction, true16: bool) -> list[str]:
    part = instruction.parts[0]
    operands: list[str] = []
    if part.dst is not None and part.dst.kind.cls != "exec":
        operands.append(operand_text(part.dst, None, true16))
    if part.sdst is not None:
        operands.append(scalar(part.sdst.code))
    if instruction.format == "VOPC" and part.opcode.family in ("vcmp", "vcmp_class"):
        operands.append("vcc_lo")
    if instruction.format == "VOP2" and part.opcode.family == "iadd_carry_in":
        operands.append("vcc_lo")
    return operands


def _bits(value: int, count: int) -> str:
    return "[" + ",".join(str(value >> i & 1) for i in range(count)) + "]"


def _modifiers(instruction: Instruction, true16: bool) -> str:
    fields = instruction.fields
    part = instruction.parts[0]
    count = len(part.src)
    text = ""
    if instruction.format == "VOP3P":
        text += _packed_modifiers(instruction, count)
    elif instruction.format == "VOP3":
        selectable = [o for o in (*part.src, part.dst) if o is not None and o.half is not None]
        shown = fields["opsel"]
        if true16:
            for index, operand in enumerate(part.src):
                if operand.half is not None and operand.is_vgpr:
                    shown &= ~(1 << index)
            if part.dst is not None and part.dst.half is not None:
                shown &= ~8
        if part.opcode.family == "permlane":
            text += f" op_sel:{_bits(shown, 2)}" if shown & 3 else ""
        elif shown:
            low = shown & ((1 << count) - 1)
            text += f" op_sel:{_bits(low | (shown >> 3 & 1) << count, count + 1)}" if selectable else ""
    elif instruction.format == "VINTERP":
        if fields["opsel"]:
            text += f" op_sel:{_bits(fields['opsel'], 4)}"
        return text + (" clamp" if fields["clmp"] else "") + f" wait_exp:{fields['waitexp']}"
    if fields.get("clmp"):
        text += " clamp"
    if fields.get("omod") and instruction.format in ("VOP3", "VOP3SD"):
        text += OMOD[fields["omod"]]
    return text


def _packed_modifiers(instruction: Instruction, count: int) -> str:
    fields = instruction.fields
    family = instruction.family
    high = fields["opsel_hi"] | fields["opsel_hi2"] << 2
    every = (1 << count) - 1
    text = ""
    if fields["opsel"] & every:
        text += f" op_sel:{_bits(fields['opsel'], count)}"
    default = 0 if family == "fma_mix" else every
    if high & every != default:
        text += f" op_sel_hi:{_bits(high, count)}"
    if family == "fma_mix":
        return text
    if fields["neg"] & every:
        text += f" neg_lo:{_bits(fields['neg'], count)}"
    if fields["neg_hi"] & every:
        text += f" neg_hi:{_bits(fields['neg_hi'], count)}"
    return text


ROW_CONTROLS: list[tuple[range, Callable[[int], str]]] = [
    (range(0x100), lambda c: "quad_perm:[" + ",".join(str(c >> 2 * i & 3) for i in range(4)) + "]"),
    (range(0x101, 0x110), lambda c: f"row_shl:{c & 15}"),
    (range(0x111, 0x120), lambda c: f"row_shr:{c & 15}"),
    (range(0x121, 0x130), lambda c: f"row_ror:{c & 15}"),
    (range(0x140, 0x141), lambda c: "row_mirror"),
    (range(0x141, 0x142), lambda c: "row_half_mirror"),
    (range(0x150, 0x160), lambda c: f"row_share:{c & 15}"),
    (range(0x160, 0x170), lambda c: f"row_xmask:{c & 15}"),
]


def _dpp_text(dpp: Dpp) -> str:
    if dpp.selectors:
        return " dpp8:[" + ",".join(map(str, dpp.selectors)) + "]" + (" fi:1" if dpp.fi else "")
    control = next((show(dpp.ctrl) for codes, show in ROW_CONTROLS if dpp.ctrl in codes), f"dpp_ctrl:{dpp.ctrl:#x}")
    text = f" {control} row_mask:{dpp.row_mask:#x} bank_mask:{dpp.bank_mask:#x}"
    return text + (" bound_ctrl:1" if dpp.bound_ctrl else "") + (" fi:1" if dpp.fi else "")
