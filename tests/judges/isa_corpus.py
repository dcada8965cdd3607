"""Encodings for the decoder judge: every opcode of the tables with random registers, constants and modifiers (seeded)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from drivers.amd.isa import Format, Kind, Opcode, load
from tests.mocks.isa.assemble import VGPR0, encode

DPP_CONTROLS = [*range(0, 256, 27), 0x101, 0x10F, 0x111, 0x11F, 0x121, 0x12F, 0x140, 0x141, 0x150, 0x15F, 0x160, 0x16F]
INLINE = [128, 129, 192, 193, 208, 240, 241, 242, 243, 244, 245, 246, 247, 248]
SPECIAL = [106, 107, 124, 125, 126, 127, 253]
FLOATS = {"f16", "f32", "f64", "bf16"}
SIXTEEN = {"f16", "bf16", "b16", "i16", "u16"}


class Corpus:
    def __init__(self, seed: int, chip: str = "gfx1100") -> None:
        self.rng = random.Random(seed)
        self.tables = load(chip)

    def __iter__(self) -> Iterator[tuple[Opcode, bytes]]:
        for fmt, table in self.tables.opcodes.items():
            for opcode in table.values():
                if not opcode.present:
                    continue
                if fmt.startswith("VOPD"):
                    yield from self.dual(opcode)
                    continue
                for trailer in self.trailers(fmt, opcode):
                    for _ in range(2):
                        yield opcode, self.one(fmt, opcode, trailer)

    def trailers(self, fmt: str, opcode: Opcode) -> list[str]:
        if opcode.mnemonic.rpartition("_")[0] in ("v_fmaak", "v_fmamk") or opcode.mnemonic == "s_setreg_imm32_b32":
            return ["_LIT"]
        found = [""]
        if fmt + "_LIT" in self.tables.formats and fmt not in ("SOPK",) and opcode.src[0] is not None and opcode.src[0].cls in ("src", "ssrc"):
            found.append("_LIT")
        if fmt + "_DPP16" in self.tables.formats and opcode.src[0] is not None and opcode.src[0].cls == "src" and opcode.src[0].dwords == 1:
            found += ["_DPP16", "_DPP8"]
        return found

    def scalar(self, kind: Kind, inline: bool = True) -> int:
        dwords = max(kind.dwords, 1)
        choice = self.rng.random()
        if inline and choice < 0.25:
            return self.rng.choice(INLINE)
        if choice < 0.35:
            return self.rng.choice([106, 124, 126] if dwords == 2 else SPECIAL if inline else SPECIAL[:-1])
        step = min(1 << (dwords - 1).bit_length(), 4)
        return self.rng.randrange(0, (104 - dwords) // step) * step

    def source(self, kind: Kind, low_half_only: bool) -> int:
        if kind.cls in ("src", "vgpr", "vgpr9") and (self.rng.random() < 0.6 or kind.cls != "src" or kind.dtype.startswith("wmma_ab")):
            top = 128 if low_half_only else 256
            return VGPR0 + self.rng.randrange(top - max(kind.dwords, 1))
        if kind.cls == "lanesel":
            return self.rng.randrange(100) if self.rng.random() < 0.5 else 128 + self.rng.randrange(32)
        return self.scalar(kind)

    def one(self, fmt: str, opcode: Opcode, trailer: str) -> bytes:
        layout = self.tables.formats[fmt + trailer]
        fields: dict[str, int] = {}
        for field in layout.fields:
            value = self.value(field.name, fmt, trailer, opcode, layout)
            if value is not None:
                fields[field.name] = value & field.mask
        return encode(fmt, opcode.mnemonic, trailer, **fields)

    def value(self, name: str, fmt: str, trailer: str, opcode: Opcode, layout: Format) -> int | None:
        rng = self.rng
        half = fmt in ("VOP1", "VOP2", "VOPC")
        index = {"src0": 0, "ssrc0": 0, "src1": 1, "ssrc1": 1, "vsrc1": 1, "src2": 2}.get(name)
        if index is not None:
            kind = opcode.src[index]
            if kind is None:
                return 0
            if name in ("src0", "ssrc0") and trailer == "_LIT" and opcode.mnemonic.rpartition("_")[0] not in ("v_fmaak", "v_fmamk"):
                return 255
            if name == "src0" and trailer.startswith("_DPP"):
                return rng.choice([233, 234]) if trailer == "_DPP8" else None
            if trailer.startswith("_DPP") and index and kind.cls == "src":
                return VGPR0 + rng.randrange(255)
            if name == "vsrc1":
                return rng.randrange(128 if kind.dtype in SIXTEEN else 255)
            if kind.cls == "sendmsg_rtn":
                return rng.choice([128, 131, 133])
            if kind.cls in ("sgpr", "ssrc", "mask"):
                return self.scalar(kind, kind.cls == "ssrc") if kind.dtype != "mask" else rng.randrange(100)
            if kind.cls == "vcc":
                return None
            return self.source(kind, half and kind.dtype in SIXTEEN)
        if name == "vdst" and opcode.dst is not None:
            if opcode.dst.cls in ("sgpr", "sdst"):
                return rng.choice([rng.randrange(104), 106])
            if opcode.dst.cls == "exec":
                return 126
            return rng.randrange((128 if half and opcode.dst.dtype in SIXTEEN else 256) - opcode.dst.dwords)
        if name == "sdst" and fmt == "VOP3SD":
            return rng.choice([rng.randrange(100), 106, 124])
        if name in ("sdst", "sdata"):
            kind = opcode.dst or opcode.src[0]
            return self.scalar(kind, False) & ~1 if kind is not None and kind.cls != "simm8" else 0
        if name in ("vsrc0", "addr", "data", "data0", "data1", "vdata", "vaddr"):
            return rng.randrange(240 if name != "vsrc0" else (127 if half else 255))
        return self.modifier(name, fmt, opcode)

    def modifier(self, name: str, fmt: str, opcode: Opcode) -> int | None:
        rng = self.rng
        sources = sum(k is not None for k in opcode.src)
        floats = all(k is None or k.dtype in FLOATS for k in opcode.src) and opcode.src[0] is not None
        rare = rng.random() < 0.3
        if name in ("neg", "abs", "neg_hi", "src0_neg", "src0_abs", "src1_neg", "src1_abs"):
            if opcode.family == "ldexp" and name.startswith("src1"):
                return 0  # the exponent is an integer
            packed = fmt == "VOP3P" and name in ("neg", "neg_hi") and "f16" in opcode.mnemonic and "dot" not in opcode.mnemonic
            if name.endswith(("_neg", "_abs")):
                return int(floats and rare and int(name[3]) < sources and fmt in ("VOP1", "VOP2", "VOPC"))
            return rng.randrange(1 << sources) if (floats and fmt != "VOP3P" and rare and opcode.family not in ("ldexp",)) or (packed and rare) else 0
        if name == "clmp":
            return int(rare and (floats or opcode.family in ("iadd", "pk_f16")) and opcode.family not in ("vcmp", "vcmpx", "vcmp_class", "vcmpx_class", "ldexp", "div_scale"))
        if name == "omod":
            return rng.randrange(4) if rare and floats and fmt == "VOP3" and opcode.family in ("fadd", "fmul", "fma") else 0
        if name == "opsel":
            return 0
        if name in ("opsel_hi", "opsel_hi2"):
            full = (1 << min(sources, 2)) - 1 if name == "opsel_hi" else int(sources > 2)
            if opcode.family == "fma_mix" or (rare and opcode.family in ("pk_f16", "pk_int16")):
                return rng.randrange(full + 1)
            return full if sources > 2 or name == "opsel_hi" else 1
        values = {
            "dpp": rng.choice(DPP_CONTROLS), "fi": int(rare), "bc": rng.randrange(2), "row_mask": rng.randrange(16), "bank_mask": rng.randrange(16),
            "literal": rng.choice([0x42280000, 0x12345678, 0x80000000, 0xFFFFFF00, 0x3E7, 0xABCD]),
            "sbase": rng.randrange(48) & ~1, "srsrc": rng.randrange(24), "ssamp": rng.randrange(24) & ~1, "soffset": rng.choice([0x7C, rng.randrange(100)]),
            "saddr": 0x7C if fmt == "FLAT" else rng.choice([0x7C, rng.randrange(50) * 2]), "sve": int(fmt == "SCRATCH"),
            "offset0": rng.choice([0, rng.randrange(256)]), "offset1": rng.choice([0, rng.randrange(256)]),
            "simm16": rng.choice([0, 1, 4, 0x91, rng.randrange(0x8000), rng.randrange(0x10000)]),
            "attr": rng.randrange(33), "attr_chan": rng.randrange(4), "wait_vdst": rng.randrange(16), "waitexp": rng.randrange(8),
            "target": rng.choice([0, 1, 7, 8, 12, 20]), "en": rng.randrange(16), "done": rng.randrange(2), "format": rng.choice([22]),
            "dmask": 1, "dim": 1, "glc": int(rare), "slc": int(rare), "dlc": int(rare), "offen": rng.randrange(2), "idxen": rng.randrange(2),
        }  # fmt: skip
        if name.startswith("lane_sel"):
            return rng.randrange(8)
        if name == "offset":
            top = {"FLAT": 0x1000, "GLOBAL": 0x2000, "SCRATCH": 0x2000, "SMEM": 0x200000}.get(fmt, 0x1000)
            return rng.choice([0, rng.randrange(top)])
        if name == "gds":
            return int(opcode.family == "ds_gws" and opcode.mnemonic != "ds_nop")
        if name == "glc" and "_atomic_" in opcode.mnemonic and "csub" in opcode.mnemonic:
            return 1
        if name == "simm16" and opcode.family == "hwreg":
            return rng.choice([1, 2, 23, 29]) | rng.randrange(32) << 6 | rng.randrange(32) << 11
        if name == "simm16" and "sendmsg" in opcode.mnemonic:
            return rng.choice([1, 3, 9])
        return values.get(name)

    def dual(self, opcode: Opcode) -> Iterator[tuple[Opcode, bytes]]:
        """Pairs of one opcode with others of the other side. Banks and parity follow the hardware's rules, so that LLVM accepts them."""
        rng = self.rng
        side = opcode.format[-1].lower()
        others = [o for o in self.tables.opcodes["VOPD.Y" if side == "x" else "VOPD.X"].values() if o.present]
        for other in rng.sample(others, 6):
            x, y = (opcode, other) if side == "x" else (other, opcode)
            literal = any(o.mnemonic.rpartition("_")[0] in ("v_dual_fmaak", "v_dual_fmamk") for o in (x, y))
            fields = {
                "second": y.number, "srcx0": VGPR0 + 4 * rng.randrange(60), "srcy0": VGPR0 + 1 + 4 * rng.randrange(60),
                "vsrcx1": 0 if x.src[1] is None else 2 + 4 * rng.randrange(60), "vsrcy1": 0 if y.src[1] is None else 3 + 4 * rng.randrange(60),
                "vdstx": rng.randrange(250), "vdsty": rng.randrange(120),
            }  # fmt: skip
            if rng.random() < 0.3:
                fields["srcx0"] = rng.choice([*INLINE[:5], 3, 60])
            if literal or rng.random() < 0.2:
                fields["literal"] = rng.randrange(1 << 32)
                if not literal:
                    fields["srcx0"] = 255
            yield opcode, encode("VOPD", x.mnemonic, "_LIT" if "literal" in fields else "", **fields)
