"""Machine code of AMD GPUs, decoded and executed."""

from mocks.isa.decoder import decode, disassemble
from mocks.isa.instruction import Instruction, UnknownInstruction

__all__ = ["Instruction", "UnknownInstruction", "decode", "disassemble"]
