"""Register tables of AMD IP blocks, one file per block and version. Pure data: drivers, mocks and tools share it.

`generate.py` makes the files from CSV fact tables. `table(block, version)` loads one.
"""

from __future__ import annotations

from pathlib import Path

from hw.errors import UnknownHardware
from hw.regs import RegisterTable, load_table

_HERE = Path(__file__).parent

EARLY = "EARLY"
"""registers at absolute places, usable before the GPU has described itself"""


def versions(block: str) -> list[tuple[int, int, int]]:
    """The versions of a block that have a table, ascending."""
    found = [tuple(int(part) for part in path.stem[len(block) + 1 :].split("_")) for path in _HERE.glob(f"{block}_*.reg")]
    return sorted((major, minor, revision) for major, minor, revision in found)


def table(block: str, version: tuple[int, int, int]) -> RegisterTable:
    """The table of exactly this version. Raises UnknownHardware; which table serves which chip is the driver's decision."""
    path = _HERE / f"{block}_{version[0]}_{version[1]}_{version[2]}.reg"
    if not path.exists():
        known = ", ".join(".".join(map(str, each)) for each in versions(block)) or "none"
        raise UnknownHardware(f"no register table for {block} {'.'.join(map(str, version))}", read=f"tables of {block}: {known}")
    return load_table(path)


def early_table() -> RegisterTable:
    """Registers at fixed absolute places."""
    return load_table(_HERE / f"{EARLY}.reg")
