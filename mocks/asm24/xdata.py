"""The chip's XDATA space: memory, windows onto the SRAM, and registers, by page and address. What is not in the table does not exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hw.errors import NotModelled
from mocks.asm24.sram import Sram

TABLE = Path(__file__).with_name("xdata.tbl")
PAGE_SIZE = 0x10000

ReadHook = Callable[[int], int]
WriteHook = Callable[[int, int], None]


@dataclass(frozen=True)
class Entry:
    """One row of the table. Addresses include the page: page << 16 | address."""

    first: int
    last: int
    name: str
    kind: str
    value: int = 0


@cache
def table() -> tuple[Entry, ...]:
    """The rows of xdata.tbl."""
    rows = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        where, name, kind, *rest = line.split()
        page, _, span = where.rpartition(":")
        first, _, last = span.partition("-")
        base = int(page or "0") << 16
        rows.append(Entry(base | int(first, 16), base | int(last or first, 16), name, kind, int(rest[0], 16) if rest else 0))
    return tuple(rows)


@cache
def addresses() -> dict[str, int]:
    """Name -> first address, page included."""
    return {entry.name: entry.first for entry in table()}


@cache
def _by_address() -> dict[int, Entry]:
    return {address: entry for entry in table() for address in range(entry.first, entry.last + 1)}


class Xdata:
    """Bytes by address. Hooks see the address within its page; page 1 addresses carry bit 16."""

    def __init__(self, sram: Sram) -> None:
        self._sram = sram
        self._entries = _by_address()
        self.memory = bytearray(2 * PAGE_SIZE)
        self._reads: dict[str, ReadHook] = {}
        self._writes: dict[str, WriteHook] = {}
        self.reset_registers()

    def reset_registers(self) -> None:
        """Registers go to their reset values; memory keeps what it holds."""
        for entry in table():
            if entry.kind == "store":
                self.memory[entry.first : entry.last + 1] = bytes([entry.value]) * (entry.last + 1 - entry.first)

    def hook(self, name: str, read: ReadHook | None = None, write: WriteHook | None = None) -> None:
        """Give a register of the table its behaviour. A side without one keeps the byte."""
        if addresses().get(name) is None:
            raise AssertionError(f"xdata.tbl has no {name}")
        if read is not None:
            self._reads[name] = read
        if write is not None:
            self._writes[name] = write

    def name_of(self, address: int) -> str:
        entry = self._entries.get(address)
        if entry is None:
            return "no name known"
        return entry.name if entry.first == entry.last else f"{entry.name}+{address - entry.first:#x}"

    def read(self, address: int, page: int = 0) -> int:
        """One byte. Raises NotModelled."""
        entry = self._find(address, page, "read")
        where = page << 16 | address
        if entry.kind == "ram" or entry.kind == "store":
            return self.memory[where]
        if entry.kind == "sram":
            return self._sram.read(entry.value + where - entry.first, 1)[0]
        if entry.kind == "const":
            return entry.value
        hook = self._reads.get(entry.name)
        return self.memory[where] if hook is None else hook(where)

    def write(self, address: int, value: int, page: int = 0) -> None:
        """One byte. Raises NotModelled."""
        entry = self._find(address, page, f"write of {value:#04x} to")
        where = page << 16 | address
        if entry.kind == "sram":
            self._sram.write(entry.value + where - entry.first, bytes([value]))
        elif entry.kind != "const":
            self.memory[where] = value
            hook = self._writes.get(entry.name)
            if hook is not None:
                hook(where, value)

    def read_block(self, address: int, size: int, page: int = 0) -> bytes:
        """Bytes one after the other, as the 8051 reads them. The address wraps at the end of its page."""
        return bytes(self.read(address + offset & PAGE_SIZE - 1, page) for offset in range(size))

    def load(self, address: int, data: bytes) -> None:
        """The hardware fills a buffer."""
        self.memory[address : address + len(data)] = data

    def _find(self, address: int, page: int, doing: str) -> Entry:
        entry = self._entries.get(page << 16 | address)
        if entry is None or entry.kind == "none" or page > 1:
            name = "" if entry is None else f" {entry.name}"
            raise NotModelled(f"{doing} XDATA {address:#06x}{name}" + (f" of page {page}" if page else ""))
        return entry
