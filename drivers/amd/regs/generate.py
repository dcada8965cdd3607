"""Makes the *.reg files of this folder from register CSV tables.

    python -m drivers.amd.regs.generate TABLE.csv...

Tables of this folder are read too: flash.csv has the flash controller of Navi31, which public headers leave out (offsets from the flash tools of
a GPU project, seen working on device 1002:744c).

The CSV has one row a field: ip, ip_version, register, dword_offset, base_index, field, lsb, msb. A register that repeats lists its
fields for one member only; the others refer to that member. Rows of version "any" sit at absolute places and go to EARLY.reg.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path

from drivers.amd.regs import EARLY

HERE = Path(__file__).parent

DELTA_OF = {("GC", "11.0.3"): "11.0.0"}
"""versions whose CSV rows list only what differs from another version"""

S2A_MEMBER = re.compile(r"S2A_DOORBELL_ENTRY_(\d+)_CTRL$")


class Entry:
    """One register while its rows are collected."""

    def __init__(self, base: str, offset: int) -> None:
        self.base = base
        self.offset = offset
        self.fields: dict[str, tuple[int, int]] = {}
        self.same_as = ""


Registers = dict[str, Entry]


def read_rows(paths: list[Path]) -> dict[tuple[str, str], Registers]:
    blocks: dict[tuple[str, str], Registers] = defaultdict(dict)
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                registers = blocks[row["ip"], row["ip_version"]]
                entry = registers.setdefault(row["register"], Entry(row["base_index"], int(row["dword_offset"], 16)))
                if row["field"]:
                    entry.fields[row["field"]] = (int(row["lsb"]), int(row["msb"]))
    return blocks


def family(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def share_fields(registers: Registers) -> None:
    """Give members of a repeating family that have no fields a reference to the one that has."""
    with_fields: dict[str, str] = {}
    for name, entry in registers.items():
        if entry.fields:
            with_fields.setdefault(family(name), name)
    for name, entry in registers.items():
        if entry.fields or entry.same_as:
            continue
        model = with_fields.get(family(name))
        if model is None:
            continue
        member = S2A_MEMBER.match(name)
        if member:
            model_number = S2A_MEMBER.match(model)
            assert model_number
            old, new = f"portn{model_number[1]}", f"portn{member[1]}"
            old_port, new_port = f"port{model_number[1]}", f"port{member[1]}"
            entry.fields = {field.replace(old, new).replace(old_port, new_port): bits for field, bits in registers[model].fields.items()}
        else:
            entry.same_as = model


def render(registers: Registers) -> str:
    lines = []
    for name, entry in sorted(registers.items(), key=lambda item: (item[1].base, item[1].offset, item[0])):
        words = [name, entry.base, f"{entry.offset:x}"]
        if entry.same_as:
            words.append(f"={entry.same_as}")
        else:
            words += [f"{field}:{low:x}" + (f"-{high:x}" if high != low else "") for field, (low, high) in sorted(entry.fields.items(), key=lambda item: item[1])]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    blocks = read_rows([*(Path(argument) for argument in arguments), *sorted(HERE.glob("*.csv"))])
    early: Registers = {}
    for (_, version), registers in list(blocks.items()):
        if version == "any":
            early.update(registers)
    for (block, version), registers in blocks.items():
        if version == "any":
            continue
        base_version = DELTA_OF.get((block, version))
        full = dict(blocks[block, base_version]) | registers if base_version else registers
        share_fields(full)
        (HERE / f"{block}_{version.replace('.', '_')}.reg").write_text(render(full), encoding="ascii")
    (HERE / f"{EARLY}.reg").write_text(render(early), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
