"""Which register table and which LLVM target serve which version of a block.

Rule: the table of the same major with the greatest version not above the wanted one; EXCEPTIONS list where that rule is wrong.
"""

from __future__ import annotations

from drivers.amd.regs import table, versions
from hw.errors import NotSupported, UnknownHardware
from hw.regs import RegisterTable

Version = tuple[int, int, int]

EXCEPTIONS: dict[str, dict[Version, Version | None]] = {
    "MMHUB": {
        # 3.0.2 (Navi33) has a layout of its own; every other discrete 3.0.x is laid out like 3.0.0. 3.0.1 is an APU's, not in the tables.
        (3, 0, 1): None,
        (3, 0, 2): (3, 0, 2),
        (3, 0, 3): (3, 0, 0),
    },
    "GC": {(11, 0, 1): None, (11, 0, 4): None},
    "MP1": {(13, 0, 0): (11, 0, 0), (13, 0, 7): (11, 0, 0), (13, 0, 10): (11, 0, 0)},
}
"""block -> version -> version of the table that serves it, None where none does"""

TARGETS: dict[Version, str] = {(11, 0, 0): "gfx1100", (11, 0, 2): "gfx1102", (11, 0, 3): "gfx1101"}
"""LLVM target by version of the graphics block"""

KNOWN_BUT_NOT_BUILT = {9: "gfx9.4 (Instinct MI300/MI350)", 12: "gfx12 (Radeon RX 9000)"}
"""majors of the graphics block whose bring-up is another generation's work"""


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def table_for(block: str, version: Version) -> RegisterTable:
    """The register table of a block of this version. Raises UnknownHardware naming block, version and the tables there are."""
    known = versions(block)
    exceptions = EXCEPTIONS.get(block, {})
    if version in exceptions:
        chosen = exceptions[version]
    else:
        chosen = max((each for each in known if each[0] == version[0] and each <= version), default=None)
    if chosen is None:
        raise UnknownHardware(f"no register table serves {block} {dotted(version)}", read=f"tables of {block}: {', '.join(map(dotted, known)) or 'none'}")
    return table(block, chosen)


def target_of(version: Version) -> str:
    """LLVM target of a graphics block version. Raises NotSupported for generations that are not built, UnknownHardware for unknown ones."""
    target = TARGETS.get(version)
    if target:
        return target
    if version[0] in KNOWN_BUT_NOT_BUILT:
        raise NotSupported(
            f"bring-up of a GPU with graphics block {dotted(version)}",
            means=f"{KNOWN_BUT_NOT_BUILT[version[0]]} starts differently and is not built yet",
            remedy=f"GPUs that work: {', '.join(TARGETS.values())}",
        )
    raise UnknownHardware(f"graphics block {dotted(version)} has no known target", read=f"known: {', '.join(map(dotted, TARGETS))}")
