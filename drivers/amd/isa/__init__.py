"""Instruction tables of AMD GPUs: encodings, fields, operand kinds and names. Data only; meaning lives with whoever executes or prints.

`load("gfx1100")` reads one compact JSON file on first use (a few milliseconds). Source: AMD's machine-readable ISA, verified row by
row with LLVM; made by `generate.py`.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from importlib import resources

# chip -> table file. A new family is a new table and one line here.
FAMILY_OF_CHIP = {"gfx1100": "gfx11", "gfx1101": "gfx11", "gfx1102": "gfx11"}

TRAILERS = ("_LIT", "_DPP16", "_DPP8", "_SDST")


@dataclass(frozen=True, slots=True)
class Field:
    """One bit field of an encoding; bit n is bit n of the little-endian integer of the whole instruction."""

    name: str
    lsb: int
    msb: int
    kind: str

    @property
    def mask(self) -> int:
        return (1 << (self.msb - self.lsb + 1)) - 1

    def get(self, word: int) -> int:
        return (word >> self.lsb) & self.mask


@dataclass(frozen=True, slots=True)
class Format:
    """One encoding (or an encoding with its trailing dword, e.g. `VOP2_DPP16`)."""

    name: str
    bits: int
    mask: int
    value: int
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.bits // 8


@dataclass(frozen=True, slots=True)
class Kind:
    """What an operand is: class of register or constant, data type, dwords (0 for immediates)."""

    cls: str
    dtype: str
    dwords: int


@dataclass(frozen=True, slots=True)
class Opcode:
    """One instruction of one encoding. `printed` is LLVM's spelling, with `_e32`/`_e64` where it shows one."""

    format: str
    number: int
    mnemonic: str
    printed: str
    dst: Kind | None
    src: tuple[Kind | None, Kind | None, Kind | None]
    extra: dict[str, Kind]
    family: str
    present: bool


@dataclass(frozen=True, slots=True)
class IsaTables:
    """All tables of one family. `base` lists the encodings in decoding order: most selective mask first."""

    family: str
    formats: dict[str, Format]
    base: tuple[Format, ...]
    opcodes: dict[str, dict[int, Opcode]]
    operand_names: dict[int, str]
    hwregs: dict[int, str]
    messages: dict[int, str]
    messages_rtn: dict[int, str]
    by_name: dict[tuple[str, str], Opcode] = field(repr=False)


def load(chip: str) -> IsaTables:
    """Tables of a chip (`gfx1100`). KeyError names the chips there are tables for."""
    if chip not in FAMILY_OF_CHIP:
        raise KeyError(f"no instruction tables for {chip!r}; there are tables for {', '.join(sorted(FAMILY_OF_CHIP))}")
    return _load_family(FAMILY_OF_CHIP[chip])


@functools.cache
def _load_family(family: str) -> IsaTables:
    raw = json.loads(resources.files(__package__).joinpath(f"{family}.json").read_text())
    formats = {
        name: Format(name, bits, mask, value, tuple(Field(*f) for f in fields)) for name, (bits, mask, value, fields) in raw["formats"].items()
    }
    kinds: list[Kind | None] = [*(Kind(*k) for k in raw["kinds"]), None]  # index -1 is "no operand"
    opcodes: dict[str, dict[int, Opcode]] = {}
    by_name: dict[tuple[str, str], Opcode] = {}
    for name, entries in raw["opcodes"].items():
        table = opcodes[name] = {}
        for number, mnemonic, suffix, dst, src0, src1, src2, extra, semantics, present in entries:
            extras = {key: kind for key, index in extra.items() if (kind := kinds[index]) is not None}
            sources = (kinds[src0], kinds[src1], kinds[src2])
            opcode = Opcode(name, number, mnemonic, mnemonic + suffix, kinds[dst], sources, extras, semantics, bool(present))
            table[number] = by_name[name, mnemonic] = opcode
    base = sorted((f for f in formats.values() if not f.name.endswith(TRAILERS)), key=lambda f: f.mask.bit_count(), reverse=True)
    names = {space: {int(number): name for number, name in entries.items()} for space, entries in raw["names"].items()}
    return IsaTables(family, formats, tuple(base), opcodes, names["operand"], names["hwreg"], names["msg"], names["msg_rtn"], by_name)
