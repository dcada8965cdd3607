"""LLVM judges the decoder's text: the sample encodings of the tables, compiled kernels against the printer of the LLVM that compiled
them, and every opcode with random operands against llvm-objdump.

What is normalised before comparing, and why it does not matter:
- branch targets: labels against numbers (their values are checked against the labels' places instead)
- LLVM 19 knows only some 16-bit operands as halves of registers (`v0.l`): our text is asked for its spelling
- LLVM 19 prints a scalar load at offset 0 as `null`, LLVM 22 as `0x0`
- literals of mixed-precision fma: LLVM 19 always cuts them to 16 bits
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import zstandard

from mocks.isa import UnknownInstruction, bench, decode, disassemble
from mocks.isa.text import render
from tests.judges import isa_operations as ops
from tests.judges.isa_corpus import Corpus
from tests.mocks.isa import programs

SAMPLES = Path(__file__).parent.parent / "data" / "isa_gfx11_samples.json.zst"
OBJDUMP = next((path for name in ("llvm-objdump-22", "llvm-objdump-21", "llvm-objdump-20", "llvm-objdump-19", "llvm-objdump") if (path := shutil.which(name))), None)
MACHINE_GFX1100 = 0x41
SEPARATOR = struct.pack("<2I", 0xBF800000, 0xBF800000)  # s_nop: whatever comes before, decoding is in step again


def for_llvm_19(text: str, mnemonic: str) -> str:
    text = re.sub(r"^(s_load_\S+ .*), 0x0(?= |$)", r"\1, null", text)
    text = re.sub(r"^(s_buffer_load_\S+ .*), 0x0(?= |$)|^(s_atc_probe\S* .*), 0x0(?= |$)", lambda m: f"{m[1] or m[2]}, null", text)
    if mnemonic in ("v_mov_b16", "v_swap_b16"):
        text = re.sub(r"(?<=[ |-])v(\d+)(?=[,| ]|$)", r"v\1.l", text)
    return text


def samples() -> list[list[str]]:
    rows = json.loads(zstandard.ZstdDecompressor().decompress(SAMPLES.read_bytes()))["rows"]
    assert len(rows) > 1400
    return rows


def test_samples_of_every_opcode() -> None:
    wrong = []
    for fmt, mnemonic, code, text, _ in samples():
        instruction = decode(bytes.fromhex(code))
        shown = for_llvm_19(render(instruction, true16=False), mnemonic)
        if instruction.format != fmt.partition(".")[0] or shown != text or instruction.size != len(code) // 2:
            wrong.append(f"{code}: {shown!r}, LLVM: {text!r}")
    assert not wrong, "\n".join(wrong)


def kernels() -> list[str]:
    """LLVM IR of about two hundred kernels."""
    found = []
    for ty in ops.INTEGERS:
        found += [ops.function([ty, ty], [o]).gpu_ir() for o in ops.integer_operations(ty)]
        found += [ops.function([ty, ty], group).gpu_ir() for group in (ops.integer_compares(ty), ops.integer_casts(ty))]
    for ty in ops.FLOATS:
        found += [ops.function([ty] * 3, [o]).gpu_ir() for o in ops.float_operations(ty) + ops.float_selections(ty)]
        found += [ops.function([ty] * 2, group).gpu_ir() for group in (ops.float_compares(ty), ops.class_tests(ty), ops.float_casts(ty))]
    whole = (programs.UNIFORM, programs.WIDE, programs.SWAP_LOOPS, programs.REDUCE, programs.COLLATZ, programs.HISTOGRAM, programs.PRIVATE)
    found += [programs.program(p) for p in (*whole, programs.GENERIC, programs.CROSS)]
    found += [programs.program(programs.matrix_product(kind), 32) for kind in ("f32_f16", "f32_bf16", "f16_f16", "bf16_bf16", "i32_iu8", "i32_iu4")]
    return [*found, bench.ADD_IR, bench.MATMUL_IR]


def printed(ir: str) -> list[str]:
    """Instructions and labels as the compiler prints them."""
    module, machine = bench.optimised_module(ir)
    lines = []
    for line in machine.emit_assembly(module).partition(".section")[0].splitlines():
        text = line.partition(";")[0].strip()
        if (text and not text.startswith(".")) or text.startswith(".LBB"):
            lines.append(text)
    return lines[1 + next(i for i, line in enumerate(lines) if line.endswith(":")) :]


def test_compiled_kernels_against_the_compilers_own_text() -> None:
    distinct, wrong = set(), []
    for ir in kernels():
        labels: dict[str, int] = {}
        branches: list[tuple[str, int]] = []
        code = iter(disassemble(bench.compile_kernel(ir).code))
        for line in printed(ir):
            instruction = next(code)
            while instruction.text == "s_nop 0" and line != "s_nop 0":  # alignment of loops
                instruction = next(code)
            if line.startswith(".LBB"):
                labels[line.rstrip(":")] = instruction.address
                code = (i for i in [instruction, *code])
                continue
            distinct.add(line)
            if instruction.family in ("branch", "branch_cond"):
                name, _, label = line.partition(" ")
                branches.append((label, instruction.branch_target))
                assert name == instruction.mnemonic
            elif instruction.text != line:
                wrong.append(f"{instruction.text!r}, LLVM: {line!r}")
        assert all(labels[label] == target for label, target in branches)
    assert not wrong, "\n".join(wrong[:20])
    assert len(distinct) > 1900


def elf(code: bytes) -> bytes:
    """A relocatable object whose .text is `code`, just enough for a disassembler."""
    names = b"\0.text\0.shstrtab\0"
    offset = 256
    table = (offset + len(code) + len(names) + 7) & -8
    header = b"\x7fELF" + bytes([2, 1, 1, 0x40, 3]) + bytes(7)
    header += struct.pack("<HHIQQQIHHHHHH", 1, 0xE0, 1, 0, 0, table, MACHINE_GFX1100, 64, 0, 0, 64, 3, 2)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 6, 0, offset, len(code), 0, 0, 256, 0)
    sections += struct.pack("<IIQQQQIIQQ", 7, 3, 0, 0, offset + len(code), len(names), 0, 0, 1, 0)
    body = header.ljust(offset, b"\0") + code + names
    return body.ljust(table, b"\0") + sections


def objdump(items: list[bytes], folder: Path) -> list[str | None]:
    """llvm-objdump's text of each instruction, None where it refuses to decode it."""
    assert OBJDUMP is not None
    code, places = b"", []
    for item in items:
        places.append(len(code))
        code += item + SEPARATOR
    path = folder / "code.o"
    path.write_bytes(elf(code))
    output = subprocess.run([OBJDUMP, "-d", "--mcpu=gfx1100", str(path)], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in output.splitlines():
        match = re.match(r"\t(.*?)\s*// ([0-9A-F]{12}):", line)
        if match:
            found[int(match[2], 16)] = re.sub(r" <.*>$", "", match[1].strip())
    texts = [found.get(place) for place in places]
    return [None if t is None or t.startswith(".long") or "/*Invalid" in t else t for t in texts]


@pytest.mark.skipif(OBJDUMP is None, reason="llvm-objdump is not installed (Debian: llvm)")
def test_every_opcode_with_random_operands_against_objdump(tmp_path: Path) -> None:
    items = list(dict.fromkeys(code for seed in (1, 2) for _, code in Corpus(seed)))
    texts = objdump(items, tmp_path)
    judged, wrong = 0, []
    for code, text in zip(items, texts, strict=True):
        if text is None:
            continue
        instruction = decode(code)
        if instruction.family == "fma_mix" and instruction.literal is not None:
            continue
        judged += 1
        shown = for_llvm_19(render(instruction, true16=False), instruction.mnemonic)
        if shown != text or instruction.size != len(code):
            wrong.append(f"{code.hex()}: {shown!r}, LLVM: {text!r}")
    assert not wrong, f"{len(wrong)} of {judged}:\n" + "\n".join(wrong[:30])
    assert judged > 10_000
    assert {decode(c).format for c, t in zip(items, texts, strict=True) if t is not None} >= {
        "SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "SMEM", "VOP1", "VOP2", "VOP3", "VOP3P", "VOP3SD", "VOPC", "VOPD", "DS", "FLAT", "GLOBAL", "SCRATCH",
        "MUBUF", "MTBUF", "MIMG", "EXP", "LDSDIR", "VINTERP",
    }  # fmt: skip


@pytest.mark.skipif(OBJDUMP is None, reason="llvm-objdump is not installed (Debian: llvm)")
def test_what_objdump_refuses_in_unused_encoding_space_is_unknown_to_us(tmp_path: Path) -> None:
    """Opcodes that no table row has: both sides must call them unknown."""
    items = []
    for number in range(256):
        items.append(struct.pack("<2I", 0xBE800000 | number << 8, 0))  # SOP1
        items.append(struct.pack("<2I", 0x7E000100 | number << 9, 0))  # VOP1
        for gds in (0, 1):
            items.append(struct.pack("<2I", 0xD8000000 | number << 18 | gds << 17, 0))  # DS
    wrong = []
    for code, text in zip(items, objdump(items, tmp_path), strict=True):
        try:
            ours: str | None = decode(code).text
        except UnknownInstruction:
            ours = None
        if ours is not None and text is None and (decode(code).format == "DS" or decode(code).mnemonic == "v_swap_b16"):
            continue  # LLVM insists on the gds bit where it belongs and refuses it elsewhere, and LLVM 19 lacks the halves of v_swap_b16
        if (text is None) != (ours is None):
            wrong.append(f"{code.hex()}: {ours!r}, LLVM: {text!r}")
    assert not wrong, "\n".join(wrong)


def test_the_judge_notices_a_wrong_operand() -> None:
    row = next(r for r in samples() if r[1] == "v_sub_f32")
    code = bytearray.fromhex(row[2])
    code[0] ^= 1
    assert render(decode(bytes(code)), true16=False) != row[3]
