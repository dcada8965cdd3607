"""A bare encoder on the instruction tables, so that tests make any instruction without an assembler."""

from __future__ import annotations

from drivers.amd.isa import load

VGPR0 = 256


def encode(fmt: str, mnemonic: str, trailer: str = "", arch: str = "gfx1100", **fields: int) -> bytes:
    """Bytes of one instruction: `fields` by the manual's names, everything else at its default (0; NULL for absent scalar offsets)."""
    tables = load(arch)
    values = dict(fields)
    if fmt == "VOPD":
        second = values.pop("second")
        values |= {"opx": tables.by_name["VOPD.X", mnemonic].number, "opy": second}
    elif fmt != "EXP":
        values["op"] = tables.by_name[fmt, mnemonic].number
    layout = tables.formats[fmt + trailer]
    word = layout.value
    for field in layout.fields:
        default = 0x7C if field.name in ("saddr", "soffset") else 0
        if field.kind.startswith("fixed="):
            continue
        value = values.pop(field.name, None)
        if value is None:
            if field.lsb < 64 and (layout.mask >> field.lsb) & field.mask:
                continue  # part of the encoding, e.g. the DPP marker in src0
            value = default
        assert 0 <= value <= field.mask, (field, value)
        word = word & ~(field.mask << field.lsb) | value << field.lsb
    assert not values, f"{fmt}{trailer} has no fields {sorted(values)}"
    return word.to_bytes(layout.size, "little")
