"""Translated programs, kept for the life of the process and found again by the bytes of their code."""

from __future__ import annotations

import ctypes
import logging
import time
from dataclasses import dataclass, field

import numpy as np

from mocks.isa import layout as L
from mocks.isa.port import EXEC, MemoryFault, MemoryPort
from mocks.isa.translate import Translation, translate

log = logging.getLogger(__name__)

START_BYTES = 64  # bytes of code by which a program is looked up before all of it is compared
HASH = 0x9E3779B97F4A7C15
KEPT_PROGRAMS = 512


class CodeReader:
    """Reads instructions of one run through the memory port, with execute rights."""

    def __init__(self, port: MemoryPort, base: int) -> None:
        self.port = port
        self.base = base
        self.extents: list[tuple[int, int, int]] = []  # (first address, end, host address of the first)

    def read(self, va: int, size: int) -> bytes:
        """Up to `size` bytes: fewer where the mapping ends. MemoryFault if not even the first can be fetched."""
        parts: list[bytes] = []
        while size > 0:
            try:
                start, end, host = self._extent(va)
            except MemoryFault:
                if not parts:
                    raise
                break
            count = min(size, end - va)
            parts.append(ctypes.string_at(host + va - start, count))
            va += count
            size -= count
        return b"".join(parts)

    def _extent(self, va: int) -> tuple[int, int, int]:
        for extent in self.extents:
            if extent[0] <= va < extent[1]:
                return extent
        host, valid = self.port.translate(va, EXEC)
        self.extents.append((va, va + valid, host))
        return self.extents[-1]


@dataclass(slots=True)
class Program:
    """Units translated so far from one piece of code, and the code bytes they came from (by offset from the entry)."""

    chip: str
    vgprs: int
    single_step: bool
    code: dict[int, bytes] = field(default_factory=dict)
    version: int = 0
    translations: list[Translation] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    table: np.ndarray = field(default_factory=lambda: np.full((64, 2), L.EMPTY_KEY, dtype=np.uint64))
    count: int = 0
    seconds: float = 0.0

    def matches(self, reader: CodeReader) -> bool:
        """Whether the run's code is this program's, as far as it has been translated."""
        try:
            return all(reader.read(reader.base + offset, len(code)) == code for offset, code in self.code.items())
        except MemoryFault:
            return False

    def extend(self, key: int, reader: CodeReader) -> None:
        """Translates the unit at an entry key. MemoryFault or UnknownInstruction if there is no code."""
        fetched: dict[int, bytes] = {}

        def fetch(va: int, size: int) -> bytes:
            data = reader.read(va, size)
            offset = va - reader.base
            fetched[offset] = max(data, fetched.get(offset, b""), key=len)
            return data

        began = time.process_time()
        translation = translate(self.chip, fetch, reader.base, self.vgprs, key, self.single_step)
        self.seconds += time.process_time() - began
        self._remember(fetched)
        self.version += 1
        self.translations.append(translation)
        self.reasons |= translation.reasons
        for entry in translation.keys:
            self._insert(entry, translation.address)
        log.debug("translated %d instructions at %#x", translation.instructions, reader.base + L.key_pc(key))

    def _remember(self, fetched: dict[int, bytes]) -> None:
        """Joins the pieces that were fetched into few long ones."""
        joined: list[tuple[int, bytes]] = []
        for offset, code in sorted((self.code | fetched).items()):
            if joined and offset <= joined[-1][0] + len(joined[-1][1]):
                start, known = joined[-1]
                joined[-1] = (start, known[: offset - start] + code) if offset + len(code) > start + len(known) else joined[-1]
            else:
                joined.append((offset, code))
        self.code = dict(joined)

    def _insert(self, key: int, address: int) -> None:
        if 2 * (self.count + 1) > len(self.table):
            old = self.table
            self.table = np.full((2 * len(old), 2), L.EMPTY_KEY, dtype=np.uint64)
            self.count = 0
            for entry, function in old:
                if entry != L.EMPTY_KEY:
                    self._insert(int(entry), int(function))
        mask = len(self.table) - 1
        slot = (key * HASH % (1 << 64)) >> 32 & mask
        while self.table[slot, 0] not in (L.EMPTY_KEY, key):
            slot = (slot + 1) & mask
        if self.table[slot, 0] == L.EMPTY_KEY:
            self.count += 1
            self.table[slot] = (key, address)


_programs: dict[tuple[str, int, bool, bytes], list[Program]] = {}


def forget_programs() -> None:
    """Every program is translated anew the next time it runs."""
    _programs.clear()


def find_program(chip: str, vgprs: int, single_step: bool, reader: CodeReader) -> Program:
    """The program for the code at the reader's base: one translated before if its bytes are the same, else a new empty one."""
    start = reader.read(reader.base, START_BYTES)
    candidates = _programs.setdefault((chip, vgprs, single_step, start), [])
    for program in candidates:
        if program.matches(reader):
            return program
    program = Program(chip, vgprs, single_step)
    candidates.append(program)
    if len(_programs) > KEPT_PROGRAMS:
        del _programs[next(iter(_programs))]
    return program
