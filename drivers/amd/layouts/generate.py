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
METRICS = {
    ("13.0.0", "SmuMetricsExternal_t"): "13_0_0",
    ("13.0.6", "MetricsTableV0_t"): "13_0_6_v0",
    ("13.0.6", "MetricsTableV1_t"): "13_0_6_v1",
    ("13.0.6", "MetricsTableV2_t"): "13_0_6_v2",
    ("13.0.12", "MetricsTable_t"): "13_0_12",
    ("14.0.2", "SmuMetricsExternal_t"): "14_0_2",
}
"""the same for metrics tables, of which one interface may have several"""

ARRAY = re.compile(r"(?:\w+\.)?(\w+)\[(\d+)\]$")
PLAIN = re.compile(r"(?:\w+\.)?(\w+)$")


def messages(path: Path, version: str) -> str:
    lines = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["smu_version"].split("/")[0] == version:
                lines.append(f"{row['mailbox']} {row['message'].split(' ')[0]} {int(row['id'], 16):x}")
    return "\n".join(lines) + "\n"


def metrics(path: Path, version: str, struct: str) -> str:
    lines = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["smu_version"].split("/")[0] != version or row["struct"] != struct:
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
    for (version, struct), suffix in METRICS.items():
        (HERE / f"smu_metrics_{suffix}.tbl").write_text(metrics(metrics_file, version, struct), encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
