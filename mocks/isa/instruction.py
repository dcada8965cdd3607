"""What a decoded instruction is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from drivers.amd.isa import Kind, Opcode
from hw.errors import DeviceError

# Scalar operand codes with a name of their own (table isa_operands of the specification).
VCC_LO, VCC_HI = 106, 107
TTMP0 = 108
NULL, M0, EXEC_LO, EXEC_HI = 124, 125, 126, 127
SHARED_BASE, SHARED_LIMIT, PRIVATE_BASE, PRIVATE_LIMIT, POPS_ID = 235, 236, 237, 238, 239
VCCZ, EXECZ, SCC, LDS_DIRECT, LITERAL = 251, 252, 253, 254, 255
DPP8, DPP8_FI, DPP16 = 233, 234, 250
VGPR0 = 256


class UnknownInstruction(DeviceError):
    """Bytes that are no instruction of the chip, or that end in the middle of one."""

    code: ClassVar[str] = "illegal-instruction"
    default_means: ClassVar[str] = "the program runs into data or padding, was compiled for another chip, or was damaged on its way into memory"
    default_remedy: ClassVar[str] = "check the entry address and the chip the kernel was compiled for; `tghw disasm` shows the code"

    def __init__(self, chip: str, address: int, words: tuple[int, ...], why: str) -> None:
        shown = " ".join(f"{w:08x}" for w in words)
        super().__init__(f"{why} at {address:#x} ({chip})", read=shown)
        self.address = address
        self.words = words


@dataclass(slots=True)
class Operand:
    """One register or constant operand.

    code: 0..255 scalar operand code, 256+n is VGPR n; for immediates the value itself
    half: 0 or 1 where a 16-bit operand names the low or high half of its register, None for whole registers
    """

    kind: Kind
    code: int
    half: int | None = None
    neg: bool = False
    abs: bool = False

    @property
    def is_vgpr(self) -> bool:
        return self.code >= VGPR0

    @property
    def is_sgpr(self) -> bool:
        return self.code < 128


@dataclass(frozen=True, slots=True)
class Dpp:
    """Lane shuffle of src0. `selectors` is set for DPP8 (eight lane numbers), `ctrl` and the masks for DPP16."""

    selectors: tuple[int, ...]
    ctrl: int
    row_mask: int
    bank_mask: int
    bound_ctrl: bool
    fi: bool


@dataclass(slots=True)
class Part:
    """An operation with its operands: an instruction is one, a VOPD instruction is two."""

    opcode: Opcode
    dst: Operand | None
    src: tuple[Operand, ...]
    sdst: Operand | None = None


@dataclass(slots=True)
class Instruction:
    """One decoded instruction. `fields` are the raw bit fields by the manual's names."""

    chip: str
    address: int
    size: int
    words: tuple[int, ...]
    format: str
    parts: tuple[Part, ...]
    fields: dict[str, int]
    literal: int | None = None
    dpp: Dpp | None = None
    _text: str = field(default="", repr=False)

    @property
    def opcode(self) -> Opcode:
        return self.parts[0].opcode

    @property
    def mnemonic(self) -> str:
        return self.parts[0].opcode.mnemonic

    @property
    def family(self) -> str:
        return self.parts[0].opcode.family

    @property
    def dst(self) -> Operand | None:
        return self.parts[0].dst

    @property
    def src(self) -> tuple[Operand, ...]:
        return self.parts[0].src

    @property
    def sdst(self) -> Operand | None:
        return self.parts[0].sdst

    @property
    def modifiers(self) -> dict[str, int]:
        """Bit fields that are set and are neither opcode nor register numbers."""
        skip = {"op", "opx", "opy", "vdst", "sdst", "src0", "src1", "src2", "ssrc0", "ssrc1", "vsrc0", "vsrc1", "addr", "data", "data0", "data1", "literal"}
        return {name: value for name, value in self.fields.items() if value and name not in skip}

    @property
    def text(self) -> str:
        """Assembly text in LLVM's spelling."""
        if not self._text:
            from mocks.isa.text import render

            self._text = render(self)
        return self._text

    @property
    def next_address(self) -> int:
        return self.address + self.size

    @property
    def branch_target(self) -> int:
        """Target of a SOPP/SOPK branch: address after the instruction plus the signed dword offset."""
        offset = self.fields["simm16"]
        return self.next_address + 4 * (offset - ((offset & 0x8000) << 1))

    def __str__(self) -> str:
        return self.text
