"""Makes the *.pkt files of this folder from packet CSV tables.

    python -m drivers.amd.packets.generate PM4.csv SDMA.csv

The CSV has one row a field: generation, packet, opcode, dword, field, lsb, msb, meaning.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent

GENERATIONS = {"gfx11": "pm4_gfx11", "sdma6": "sdma6"}
"""generation in the CSV to file stem; the others get a file when a driver for them exists"""

PM4_HEADER = {"shader_type", "predicate", "opcode", "count", "type"}
SDMA_HEADER = {"op", "sub_op"}

MISSING = {("sdma6", "WRITE"): {"count": (3, 0, 19)}}
"""fields that the CSV leaves out: dword 3 of an SDMA write is the number of data dwords minus 1"""

SKIP = {"HDP_FLUSH(ROCr 6-dword form)"}
"""constant packets of other generations"""


def packets_of(rows: Iterable[dict[str, str]], generation: str) -> dict[str, list[str]]:
    """Packet name to its line, as words."""
    lines: dict[str, list[str]] = {}
    header = PM4_HEADER if generation.startswith("gfx") else SDMA_HEADER
    for row in rows:
        if row["generation"] != generation or row["packet"] in SKIP:
            continue
        name = row["packet"].partition("(")[0]
        words = lines.setdefault(name, [name, f"{int(row['opcode'], 16):x}"])
        if row["dword"] == "0" and row["field"] in header:
            sub_opcode = re.match(r"sub-opcode (\d+)$", row["meaning"])
            if row["field"] == "sub_op" and sub_opcode and sub_opcode[1] != "0":
                words[1] += f".{int(sub_opcode[1]):x}"
            continue
        words.append(place(row["field"], int(row["dword"]), int(row["lsb"]), int(row["msb"])))
    for (owner, name), fields in MISSING.items():
        if owner == generation:
            lines[name] += [place(field, *where) for field, where in fields.items()]
            lines[name][2:] = sorted(lines[name][2:], key=lambda word: int(word.partition(".")[0], 16))
    return lines


def place(field: str, dword: int, low: int, high: int) -> str:
    return f"{dword:x}.{field}:{low:x}" + (f"-{high:x}" if high != low else "")


def main(arguments: list[str]) -> None:
    rows: list[dict[str, str]] = []
    for argument in arguments:
        with Path(argument).open(newline="") as file:
            rows += csv.DictReader(file)
    for generation, stem in GENERATIONS.items():
        lines = packets_of(rows, generation)
        (HERE / f"{stem}.pkt").write_text("".join(" ".join(words) + "\n" for words in lines.values()), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
