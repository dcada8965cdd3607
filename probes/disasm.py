"""`tghw disasm`: machine code of AMD GPUs by our own tables, x86 and Arm by capstone, PTX kernels listed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hw.errors import KernelImageError, NotSupported, UsageError
from probes import render
from probes.context import current

EM_X86_64 = 62
EM_AARCH64 = 183
EM_AMDGPU = 224

AMDGPU_MACH = {0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102"}
"""low byte of e_flags, as LLVM's AMDGPU documentation numbers them; chips whose machine code our tables know"""
TABLE_OF_ARCH = {"gfx1100": "gfx1100", "gfx1101": "gfx1100", "gfx1102": "gfx1100"}
"""chips of one instruction set share a table"""

PTX_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$][\w$]*)")


@dataclass
class Line:
    """One disassembled instruction."""

    address: int
    code: bytes
    text: str


@dataclass
class Section:
    name: str
    arch: str
    lines: list[Line]


def register(app: typer.Typer) -> None:
    app.command("disasm")(disasm)


def disasm(
    file: Annotated[Path, typer.Argument(help="a code object, an ELF file of this host, PTX text, or raw machine code")],
    arch: Annotated[str | None, typer.Option(help="gfx1100, x86_64 or aarch64; needed for raw machine code")] = None,
) -> None:
    """Disassemble machine code."""
    try:
        data = file.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read {file}", read=problem.strerror or str(problem)) from problem
    if not data:
        raise KernelImageError(f"{file} is empty")
    if data[:4] == b"\x7fELF":
        sections = list(_elf_sections(file.name, data, arch))
    elif b".visible .entry" in data or data.lstrip().startswith((b".version", b"//")):
        _list_ptx(data.decode("utf-8", "replace"))
        return
    elif arch is None:
        raise UsageError(f"{file.name} is neither ELF nor PTX", remedy="for raw machine code say which: --arch gfx1100")
    else:
        sections = [Section("raw", arch, list(_decode(data, 0, arch)))]
    if not any(section.lines for section in sections):
        raise KernelImageError(f"{file.name} has no machine code in it", means="no executable section, or all are empty")
    if current().json:
        render.document({"arch": sections[0].arch, "sections": [_section_dict(each) for each in sections]})
        return
    for section in sections:
        render.say(f"{section.name} ({section.arch})", style="bold")
        for line in section.lines:
            render.say(f"  {line.address:08x}  {_words(line.code, section.arch):<27}  {line.text}")


def _words(code: bytes, arch: str) -> str:
    """Machine code as its architecture's manuals print it: bytes, or little-endian dwords for AMD GPUs."""
    if arch not in TABLE_OF_ARCH:
        return code.hex()
    return " ".join(f"{int.from_bytes(code[at : at + 4], 'little'):08x}" for at in range(0, len(code), 4))


def _section_dict(section: Section) -> dict[str, Any]:
    return {"name": section.name, "arch": section.arch, "lines": [{"address": each.address, "code": each.code.hex(), "text": each.text} for each in section.lines]}


def _elf_sections(name: str, data: bytes, arch: str | None) -> Iterator[Section]:
    from elftools.common.exceptions import ELFError
    from elftools.elf.constants import SH_FLAGS
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(data))
        machine = elf.header["e_machine"]
        flags = elf.header["e_flags"]
        chosen = arch or _arch_of(machine, flags)
        for section in elf.iter_sections():
            if section["sh_flags"] & SH_FLAGS.SHF_EXECINSTR and section["sh_type"] == "SHT_PROGBITS" and section["sh_size"]:
                code = section.data()
                symbols = _code_symbols(elf, section, code)
                if chosen in TABLE_OF_ARCH and symbols:
                    for label, start, size in symbols:
                        yield Section(label, chosen, list(_decode(code[start : start + size], section["sh_addr"] + start, chosen)))
                else:
                    yield Section(section.name, chosen, list(_decode(code, section["sh_addr"], chosen)))
    except (ELFError, ValueError, KeyError, UnicodeDecodeError) as problem:
        raise KernelImageError(f"{name} is not a readable ELF file", read=str(problem)) from problem


def _code_symbols(elf: Any, section: Any, code: bytes) -> list[tuple[str, int, int]]:
    """(name, offset in the section, size) of the functions in a section: the padding between them is no code."""
    index = next(number for number, each in enumerate(elf.iter_sections()) if each.name == section.name)
    found = []
    for table in elf.iter_sections():
        if table["sh_type"] not in ("SHT_SYMTAB", "SHT_DYNSYM"):
            continue
        for symbol in table.iter_symbols():
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] == index and symbol["st_size"]:
                start = symbol["st_value"] - section["sh_addr"]
                if start >= 0 and start + symbol["st_size"] <= len(code):
                    found.append((symbol.name, start, symbol["st_size"]))
    return sorted(set(found), key=lambda each: each[1])


def _arch_of(machine: str | int, flags: int) -> str:
    if machine == "EM_X86_64":
        return "x86_64"
    if machine == "EM_AARCH64":
        return "aarch64"
    if machine in ("EM_AMDGPU", EM_AMDGPU):
        mach = flags & 0xFF
        if mach not in AMDGPU_MACH:
            raise NotSupported(f"AMD machine code of kind {mach:#x}", means=f"the tables know {', '.join(TABLE_OF_ARCH)} so far")
        return AMDGPU_MACH[mach]
    raise NotSupported(f"machine code for {machine}", means="AMD RDNA3, x86-64 and 64-bit Arm are known")


def _decode(code: bytes, base: int, arch: str) -> Iterator[Line]:
    if arch in TABLE_OF_ARCH:
        from mocks.isa import disassemble

        for instruction in disassemble(code, base, TABLE_OF_ARCH[arch]):
            yield Line(instruction.address, code[instruction.address - base : instruction.address - base + instruction.size], str(instruction))
        return
    import capstone

    engines = {"x86_64": (capstone.CS_ARCH_X86, capstone.CS_MODE_64), "aarch64": (capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)}
    if arch not in engines:
        raise UsageError(f"unknown architecture {arch}", remedy=f"one of {', '.join([*TABLE_OF_ARCH, *engines])}")
    engine = capstone.Cs(*engines[arch])
    engine.skipdata = True  # what is no instruction is shown as bytes instead of ending the listing
    for each in engine.disasm(code, base):
        yield Line(each.address, bytes(each.bytes), f"{each.mnemonic} {each.op_str}".strip())


def _list_ptx(text: str) -> None:
    names = PTX_ENTRY.findall(text)
    if not names:
        raise KernelImageError("the PTX text has no kernels in it")
    if current().json:
        render.document({"arch": "ptx", "sections": [{"name": name, "arch": "ptx", "lines": []} for name in names]})
        return
    render.say("PTX kernels", style="bold")
    for name in names:
        render.say(f"  {name}")
