"""Every named register of one GPU, for people who look at them by hand: which there are, what they hold, how two looks differ.

A few registers do more when they are read than tell their value; they are only read when named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from drivers.amd.regs import early_table
from drivers.amd.versions import dotted, table_for
from hw.errors import NotModelled, UnknownHardware, UsageError
from hw.mmio import ALL_ONES_32
from hw.regs import Register, RegisterBlock, RegisterTable, UnknownRegister

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

EARLY = "EARLY"
"""block of the registers at fixed places"""
BLOCKS = ("NBIO", "MP0", "MP1", "HDP", "OSSSYS", "MMHUB", "GC", "SMUIO")
"""blocks with register tables, in the order of bring-up"""

ACTING = {
    re.compile(r"MM_DATA|BIF_BX0_PCIE_DATA2|BIF_BX_PF0_RSMU_DATA|IH_(RING1_)?CLIENT_CFG_DATA"): "data half of an index pair: what it holds depends on the index register",
    re.compile(r"ROM_DATA"): "reading it moves ROM_INDEX on",
    re.compile(r"(GC|MM)VM_INVALIDATE_ENG\d+_SEM"): "a semaphore: reading it takes it",
}
"""registers that reading changes something of, and what"""


def acting(name: str) -> str:
    """What reading a register does besides telling its value; "" for all but a few."""
    return next((text for pattern, text in ACTING.items() if pattern.fullmatch(name)), "")


@dataclass(frozen=True)
class Value:
    """One register as read. value None: not read, `reason` says why."""

    block: str
    name: str
    index: int
    """dword index"""
    value: int | None
    fields: Mapping[str, int]
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"block": self.block, "name": self.name, "index": self.index, "value": self.value, "fields": dict(self.fields), "reason": self.reason}


class Registers:
    """The registers of a GPU whose discovery table has been read."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.versions: dict[str, str] = {}
        """block -> version, as the card tells"""
        self.blocks: dict[str, RegisterBlock] = {EARLY: RegisterBlock(early_table(), (), dev.space)}
        self.tables: dict[str, RegisterTable] = {EARLY: early_table()}
        for name in BLOCKS:
            try:
                version = dev.ip.version(name)
                table = table_for(name, version)
            except UnknownHardware:
                continue  # the card has no such block, or nobody knows its registers
            self.versions[name] = dotted(version)
            self.tables[name] = table
            self.blocks[name] = RegisterBlock(table, dev.ip.bases(name), dev.space)

    def names(self, pattern: str = "", block: str | None = None) -> Iterator[tuple[str, str]]:
        """(block, name) of the registers that match: a piece of the name, or a pattern with * and ?; "GC.NAME" means one block's. Raises UsageError."""
        wanted, dot, rest = pattern.rpartition(".")
        if dot:
            block, pattern = wanted, rest
        if block is not None and block.upper() not in self.blocks:
            raise UsageError(f"there is no block {block}", read=f"known: {', '.join(self.blocks)}")
        pattern = pattern.upper()
        if not any(character in pattern for character in "*?["):
            pattern = f"*{pattern}*"
        for name, table in self.tables.items():
            if block is None or name == block.upper():
                yield from ((name, register) for register in table if fnmatchcase(register.upper(), pattern))

    def find(self, name: str) -> tuple[str, Register]:
        """(block, register) of an exact name, "GC.NAME" where several blocks have it. Raises UnknownRegister, UsageError."""
        found = [(block, register) for block, register in self.names(name) if register.upper() == name.rpartition(".")[2].upper()]
        if not found:
            similar = sorted({register for _, register in self.names(name)})[:8]
            raise UnknownRegister(f"no register {name}", read=f"similar: {', '.join(similar)}" if similar else f"blocks: {', '.join(self.blocks)}")
        if len({self.blocks[block].index(register) for block, register in found}) > 1:
            raise UsageError(f"{name} is in several blocks", remedy=f"one of {', '.join(f'{block}.{register}' for block, register in found)}")
        block, register = found[0]
        return block, self.blocks[block][register]

    def read(self, block: str, name: str, *, even_acting: bool = False) -> Value:
        """One register with its fields. even_acting: also one that reading changes something of. Raises BusError when the device is gone."""
        try:
            index = self.blocks[block].index(name)
        except UnknownRegister as error:
            return Value(block, name, -1, None, {}, f"not on this card: {error.read}")
        if not even_acting and (effect := acting(name)):
            return Value(block, name, index, None, {}, effect)
        try:
            value = self.blocks[block][name].read()
        except NotModelled:
            return Value(block, name, index, None, {}, "the simulated card has no model of it")
        if value == ALL_ONES_32:
            self.dev.check_alive(f"reading {name}")
        return Value(block, name, index, value, self.tables[block].decode(name, value))

    def dump(self, block: str | None = None) -> Iterator[Value]:
        """Every register, of one block or of all. Raises BusError when the device goes away on the way."""
        for each, name in self.names("", block):
            yield self.read(each, name)


# --- dumps and their differences ----------------------------------------------------------------------------------------

FORMAT = "tghw registers"
FORMAT_VERSION = 1


def to_document(registers: Registers, values: list[Value], *, state: str) -> dict[str, Any]:
    """A dump as JSON: what the device is, and every value or why there is none."""
    blocks: dict[str, dict[str, Any]] = {}
    for each in values:
        shown: dict[str, Any] = {"index": each.index}
        shown |= {"skipped": each.reason} if each.value is None else {"value": each.value}
        blocks.setdefault(each.block, {})[each.name] = shown
    dev = registers.dev
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "device": {"address": dev.pci.address, "arch": dev.arch, "boot_state": state, "blocks": registers.versions},
        "registers": blocks,
    }


@dataclass(frozen=True)
class Difference:
    """One register that two dumps show differently. A side without value is None."""

    block: str
    name: str
    before: int | None
    after: int | None
    fields: Mapping[str, tuple[int, int]]
    """fields that differ; the bits that no field names as "" """


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What changed between two dumps, by register and field. Registers that neither could read are no difference. Raises UsageError."""
    first, second = _values(before), _values(after)
    tables = {block: _table_of(block, before, after) for block in {block for block, _ in (*first, *second)}}
    found = []
    for block, name in dict.fromkeys((*first, *second)):
        old, new = first.get((block, name)), second.get((block, name))
        if old != new:
            found.append(Difference(block, name, old, new, _changed(tables[block], name, old, new)))
    return found


def _values(document: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    if document.get("format") != FORMAT or document.get("version") != FORMAT_VERSION:
        read = f"format {document.get('format')!r}, version {document.get('version')!r}"
        raise UsageError("this is no register dump", read=read, remedy="give files that `tghw regs dump` wrote")
    return {(block, name): entry["value"] for block, entries in document["registers"].items() for name, entry in entries.items() if "value" in entry}


def _table_of(block: str, *documents: Mapping[str, Any]) -> RegisterTable | None:
    """The table that decodes both sides; None where they are of different versions, or of one that has none."""
    if block == EARLY:
        return early_table()
    versions = {document["device"]["blocks"].get(block) for document in documents}
    if len(versions) != 1 or None in versions:
        return None
    major, minor, revision = (int(part) for part in str(versions.pop()).split("."))
    try:
        return table_for(block, (major, minor, revision))
    except UnknownHardware:
        return None


def _changed(table: RegisterTable | None, name: str, old: int | None, new: int | None) -> dict[str, tuple[int, int]]:
    if table is None or name not in table or old is None or new is None:
        return {}
    a, b = table.decode(name, old), table.decode(name, new)
    changed = {field: (a[field], b[field]) for field in a if a[field] != b[field]}
    unnamed = ALL_ONES_32 & ~table.mask(name)
    if (old ^ new) & unnamed:
        changed[""] = (old & unnamed, new & unnamed)
    return changed


