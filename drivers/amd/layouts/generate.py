"""Makes the *.tbl files of this folder from fact tables.

    python -m drivers.amd.layouts.generate MESSAGES.csv METRICS.csv

smu_messages_V.tbl   mailbox name id            one message a line, id hexadecimal
smu_metrics_V.tbl    name offset size count unit  one field a line, offset hexadecimal, size of one element in bytes
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent

INTERFACES = {"13.0.0": "13_0_0"}
"""interface version, the first in the CSV's version list, and its file suffix"""

ARRAY = re.compile(r"(?:\w+\.)?(\w+)\[(\d+)\]$")
PLAIN = re.compile(r"(?:\w+\.)?(\w+)$")


def messages(path: Path, version: str) -> str:
    lines = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["smu_version"].split("/")[0] == version:
                lines.append(f"{row['mailbox']} {row['message'].split(' ')[0]} {int(row['id'], 16):x}")
    return "\n".join(lines) + "\n"


def metrics(path: Path, version: str) -> str:
    lines = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["smu_version"].split("/")[0] != version:
                continue
            array = ARRAY.match(row["field"])
            plain = PLAIN.match(row["field"])
            match = array or plain
            if match is None:
                raise SystemExit(f"field {row['field']} not understood")
            count = int(array[2]) if array else 1
            lines.append(f"{match[1]} {int(row['offset'], 16):x} {int(row['size']) // count} {count} {row['unit']}".rstrip())
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    message_file, metrics_file = (Path(argument) for argument in arguments)
    for version, suffix in INTERFACES.items():
        (HERE / f"smu_messages_{suffix}.tbl").write_text(messages(message_file, version), encoding="ascii")
        (HERE / f"smu_metrics_{suffix}.tbl").write_text(metrics(metrics_file, version), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
