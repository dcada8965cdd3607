"""Text of memory, image, export and parameter instructions."""

from __future__ import annotations

from mocks.isa.instruction import NULL, Instruction, Operand

EXPORT_TARGETS = {**{n: f"mrt{n}" for n in range(8)}, 8: "mrtz", **{12 + n: f"pos{n}" for n in range(5)}, 20: "prim", 21: "dual_src_blend0", 22: "dual_src_blend1"}
DIMENSIONS = ("1D", "2D", "3D", "CUBE", "1D_ARRAY", "2D_ARRAY", "2D_MSAA", "2D_MSAA_ARRAY")


def _v(number: int, count: int = 1) -> str:
    return f"v{number}" if count <= 1 else f"v[{number}:{number + count - 1}]"


def _s(code: int, count: int = 1) -> str:
    from mocks.isa.text import scalar

    return scalar(code, count)


def _dst(instruction: Instruction) -> list[str]:
    dst = instruction.dst
    return [_v(dst.code - 256, dst.kind.dwords)] if dst is not None else []


def _flags(instruction: Instruction, *names: str) -> str:
    return "".join(f" {name}" for name in names if instruction.fields.get(name))


def _join(instruction: Instruction, operands: list[str]) -> str:
    return f"{instruction.opcode.printed} {', '.join(operands)}".rstrip()


def render_ds(instruction: Instruction) -> str:
    fields = instruction.fields
    operands = _dst(instruction) + [_v(o.code - 256, o.kind.dwords) for o in instruction.src]
    text = _join(instruction, operands)
    name = instruction.mnemonic
    offset = fields["offset0"] | fields["offset1"] << 8
    if "2addr" in name:
        text += "".join(f" offset{i}:{fields[f'offset{i}']}" for i in (0, 1) if fields[f"offset{i}"])
    elif name == "ds_swizzle_b32":
        text += _swizzle(offset)
    elif name in ("ds_permute_b32", "ds_bpermute_b32") or offset:
        text += f" offset:{offset}" if offset else ""
    return text + (" gds" if fields["gds"] or (instruction.family == "ds_gws" and name != "ds_nop") else "")


def _swizzle(offset: int) -> str:
    if not offset:
        return ""
    if 0x8000 <= offset < 0xC000 and offset & 0x7F00 == 0:
        return " offset:swizzle(QUAD_PERM," + ",".join(str(offset >> 2 * i & 3) for i in range(4)) + ")"
    if offset < 0x8000:
        keep, set_, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
        if keep == 31 and set_ == 0 and flip and flip & (flip - 1) == 0:
            return f" offset:swizzle(SWAP,{flip})"
        if keep == 31 and set_ == 0 and flip in (1, 3, 7, 15, 31):
            return f" offset:swizzle(REVERSE,{flip + 1})"
        group = 32 - keep
        if group in (2, 4, 8, 16, 32) and flip == 0 and set_ < group:
            return f" offset:swizzle(BROADCAST,{group},{set_})"
        return ' offset:swizzle(BITMASK_PERM,"' + "".join(_swizzle_bit(keep >> i & 1, set_ >> i & 1, flip >> i & 1) for i in (4, 3, 2, 1, 0)) + '")'
    return f" offset:{offset}"


def _swizzle_bit(keep: int, set_: int, flip: int) -> str:
    if keep and not set_:
        return "i" if flip else "p"
    return str((set_ ^ flip) & 1)


def render_flat(instruction: Instruction) -> str:
    fields = instruction.fields
    name = instruction.mnemonic
    atomic = "_atomic_" in name
    segment = instruction.format
    operands: list[str] = []
    if not atomic or fields["glc"]:
        operands += _dst(instruction)
    saddr = fields["saddr"]
    saddr_off = saddr == NULL
    for operand, field in zip(instruction.src, _flat_fields(instruction), strict=True):
        if field == "addr":
            operands.append(_flat_address(instruction, operand, saddr_off))
        elif field == "data":
            operands.append(_v(fields["data"], operand.kind.dwords))
        elif segment == "SCRATCH":
            operands.append("off" if saddr_off else _s(saddr))
        else:
            operands.append("off" if saddr_off else _s(saddr, 2))
    text = _join(instruction, operands)
    offset = fields["offset"]
    if segment != "FLAT":
        offset -= (offset & 0x1000) << 1
    if offset:
        text += f" offset:{offset}"
    return text + _flags(instruction, "glc", "slc", "dlc")


def _flat_fields(instruction: Instruction) -> tuple[str, ...]:
    from mocks.isa.decoder import source_fields

    return source_fields(instruction.format, instruction.opcode)[: len(instruction.src)]


def _flat_address(instruction: Instruction, operand: Operand, saddr_off: bool) -> str:
    number = instruction.fields["addr"]
    if instruction.format == "SCRATCH":
        return _v(number) if instruction.fields["sve"] else "off"
    if instruction.format == "GLOBAL" and not saddr_off:
        return _v(number)
    return _v(number, 2)


def render_smem(instruction: Instruction) -> str:
    fields = instruction.fields
    if not instruction.src:
        return instruction.opcode.printed
    operands = []
    if instruction.dst is not None:
        plain = instruction.dst.kind.cls == "simm8"
        operands.append(str(instruction.dst.code) if plain else _s(instruction.dst.code, instruction.dst.kind.dwords))
    for operand in instruction.src:
        if operand.kind.cls != "smem_offset":
            operands.append(_s(operand.code, operand.kind.dwords))
    offset = fields["offset"] - ((fields["offset"] & 0x100000) << 1)
    shown = f"-{-offset:#x}" if offset < 0 else f"{offset:#x}"
    tail = ""
    if fields["soffset"] == NULL:
        operands.append(shown)
    else:
        operands.append(_s(fields["soffset"]))
        tail = f" offset:{shown}" if offset else ""
    return _join(instruction, operands) + tail + _flags(instruction, "glc", "dlc")


def render_buffer(instruction: Instruction) -> str:
    fields = instruction.fields
    if not instruction.src:
        return instruction.opcode.printed
    data = instruction.dst.kind if instruction.dst is not None else next(
        (o.kind for o, f in zip(instruction.src, ("vaddr", "vdata"), strict=False) if f == "vdata" and "store" in instruction.mnemonic), None
    )
    operands = []
    if data is not None:
        operands.append(_v(fields["vdata"], data.dwords))
    count = fields["offen"] + fields["idxen"]
    operands.append(_v(fields["vaddr"], count) if count else "off")
    operands.append(_s(fields["srsrc"] * 4, 4))
    operands.append(_s(fields["soffset"]))
    text = _join(instruction, operands)
    if instruction.format == "MTBUF":
        text += f" format:{_buffer_format(fields['format'])}" if fields["format"] != 1 else ""
    text += _flags(instruction, "idxen", "offen")
    if fields["offset"]:
        text += f" offset:{fields['offset']}"
    return text + _flags(instruction, "glc", "slc", "dlc", "tfe")


BUFFER_FORMATS = {22: "BUF_FMT_32_FLOAT"}


def _buffer_format(number: int) -> str:
    return f"[{BUFFER_FORMATS[number]}]" if number in BUFFER_FORMATS else str(number)


def render_image(instruction: Instruction) -> str:
    fields = instruction.fields
    operands = [_v(fields["vdata"], _image_data(instruction))]
    operands.append(_v(fields["vaddr"], instruction.src[0].kind.dwords))
    operands.append(_s(fields["srsrc"] * 4, instruction.src[1].kind.dwords))
    if len(instruction.src) > 2 and instruction.src[2].kind.dtype == "samp":
        operands.append(_s(fields["ssamp"] * 4, 4))
    text = _join(instruction, operands) + f" dmask:{fields['dmask']:#x} dim:SQ_RSRC_IMG_{DIMENSIONS[fields['dim']]}"
    names = ("unrm", "glc", "slc", "dlc", "r128", "a16", "tfe", "lwe", "d16")
    return text + _flags(instruction, *names).replace("unrm", "unorm")


def _image_data(instruction: Instruction) -> int:
    if instruction.dst is not None:
        return instruction.dst.kind.dwords
    return instruction.opcode.extra["vdata"].dwords


def render_export(instruction: Instruction) -> str:
    fields = instruction.fields
    sources = [_v(fields[f"vsrc{i}"]) if fields["en"] >> i & 1 else "off" for i in range(4)]
    target = EXPORT_TARGETS.get(fields["target"], f"invalid_target_{fields['target']}")
    return f"exp {target} {', '.join(sources)}" + _flags(instruction, "done") + (" row_en" if fields["row"] else "")


def render_ldsdir(instruction: Instruction) -> str:
    fields = instruction.fields
    operands = [_v(fields["vdst"])]
    if instruction.src:
        operands.append(f"attr{fields['attr']}.{'xyzw'[fields['attr_chan']]}")
    return f"{instruction.opcode.printed} {', '.join(operands)} wait_vdst:{fields['wait_vdst']}"


MEMORY_RENDERERS = {
    "DS": render_ds,
    "FLAT": render_flat,
    "GLOBAL": render_flat,
    "SCRATCH": render_flat,
    "SMEM": render_smem,
    "MUBUF": render_buffer,
    "MTBUF": render_buffer,
    "MIMG": render_image,
    "EXP": render_export,
    "LDSDIR": render_ldsdir,
}
