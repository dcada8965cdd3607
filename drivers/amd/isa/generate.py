"""Makes the compact instruction tables beside this file from the published CSV tables of the specification.

Run once when the CSV files change: `python -m drivers.amd.isa.generate DIR [SAMPLES.json.zst]`, DIR holding `isa_formats.csv`,
`isa_operands.csv` and `isa_opcodes_<family>.csv`. With a second argument the sample encodings (bytes and LLVM's text for them) go
into that file; tests hold the decoder against them. The result is data only; nothing here runs when the tables are used.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

FAMILIES = ("gfx11",)

# A row counts as present on the chip when LLVM accepts it there, or when its sample could not be made but the instruction exists.
PRESENT_UNSAMPLED = {"image_bvh_intersect_ray", "image_bvh64_intersect_ray"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def formats(source: Path, family: str) -> dict[str, Any]:
    """{format: [bits, mask, value, [[field, lsb, msb, kind], ...]]}, encoding fields left out."""
    table: dict[str, Any] = {}
    for row in rows(source / "isa_formats.csv"):
        if row["arch"] != family:
            continue
        entry = table.setdefault(row["format"], [int(row["bits"]), int(row["encoding_mask"], 16), int(row["encoding_value"], 16), []])
        if row["field"] != "encoding":
            entry[3].append([row["field"], int(row["lsb"]), int(row["msb"]), row["field_kind"]])
    return table


def printed_suffix(row: dict[str, str]) -> str:
    """`_e32` or `_e64` where LLVM prints the encoding size as part of the name."""
    if row["sample_llvm_text"]:
        name = row["sample_llvm_text"].split(" ")[0]
        return name[-4:] if name.endswith(("_e32", "_e64")) else ""
    return ""


def opcodes(source: Path, family: str) -> tuple[list[list[Any]], dict[str, list[list[Any]]]]:
    """Operand kinds (class, data type, dwords), and per format rows [opcode, mnemonic, suffix, dst, src0, src1, src2, extra, family, present]."""
    kinds: dict[tuple[str, str, int], int] = {}

    def kind(text: str, dwords: str) -> int:
        if not text:
            return -1
        cls, _, dtype = text.partition(".")
        return kinds.setdefault((cls, dtype, int(dwords or 0)), len(kinds))

    table: dict[str, list[list[Any]]] = {}
    source_rows = rows(source / f"isa_opcodes_{family}.csv")
    for row in source_rows:
        extra = {}
        for part in filter(None, row["extra_operands"].split(";")):
            name, _, rest = part.partition("=")
            text, _, dwords = rest.partition(":")
            extra[name] = kind(text, dwords)
        present = row["llvm_verified"] == "yes" or row["mnemonic"] in PRESENT_UNSAMPLED
        operands = [kind(row[f"{name}_kind"], row[f"{name}_dwords"]) for name in ("dst", "src0", "src1", "src2")]
        entry = [int(row["opcode"], 16), row["mnemonic"], printed_suffix(row), *operands, extra, row["semantics_family"], int(present)]
        table.setdefault(row["format"], []).append(entry)
    return [list(k) for k in kinds], table


def named_codes(source: Path, family: str) -> dict[str, dict[str, str]]:
    """Names of special scalar operands, hardware registers and messages, keyed by their number."""
    names: dict[str, dict[str, str]] = {"operand": {}, "hwreg": {}, "msg": {}, "msg_rtn": {}}
    for row in rows(source / "isa_operands.csv"):
        if row["arch"] != family:
            continue
        space, _, number = row["operand_code_range"].rpartition(":")
        if space:
            names[space][str(int(number, 16))] = row["asm_name"].partition("(")[2].rstrip(")")
        elif "-" not in number:
            names["operand"][str(int(number, 16))] = row["asm_name"].partition(" ")[0]
    return names


def samples(source: Path, family: str) -> list[list[str]]:
    """[format, mnemonic, bytes as hex, LLVM's text, who verified it] of every row that has a sample LLVM decodes for the chip."""
    return [
        [row["format"], row["mnemonic"], row["sample_bytes"].replace(" ", ""), row["sample_llvm_text"], row["verified_by"]]
        for row in rows(source / f"isa_opcodes_{family}.csv")
        if row["sample_bytes"] and row["llvm_verified"] == "yes"
    ]


def main(arguments: list[str]) -> None:
    source = Path(arguments[0])
    for family in FAMILIES:
        kinds, table = opcodes(source, family)
        content = {"formats": formats(source, family), "kinds": kinds, "opcodes": table, "names": named_codes(source, family)}
        target = Path(__file__).with_name(f"{family}.json")
        target.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        if len(arguments) > 1:
            import zstandard

            text = json.dumps({"provenance": f"sample columns of isa_opcodes_{family}.csv", "rows": samples(source, family)}, separators=(",", ":"))
            Path(arguments[1]).write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))


if __name__ == "__main__":
    main(sys.argv[1:])
