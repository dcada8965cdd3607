"""Registers by name: tables of facts on disk, a typed front in code.

A table file (`*.reg`) has one register a line:

    NAME base_index dword_offset field:lsb-msb field:lsb ...
    NAME base_index dword_offset =OTHER          (same fields as OTHER)

Numbers are hexadecimal. base_index is "abs" for registers whose offset is already absolute. Loading splits lines and nothing
more; the fields of a register are parsed when it is first used.

    gc = RegisterBlock(load_table(path), bases, space)
    gc.CP_MEC_RS64_CNTL.write(mec_halt=1)
    gc.RLC_RLCS_BOOTLOAD_STATUS.poll(bootload_complete=1, within=10)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any

from hw.clock import HOST_CLOCK, Clock
from hw.errors import TghwError
from hw.mmio import Batch, Mmio
from hw.poll import poll

log = logging.getLogger(__name__)

Field = tuple[int, int]
"""lsb and msb, both inclusive"""


class UnknownRegister(TghwError):
    code = "unknown-register"
    default_means = "the register tables of this IP version do not have that name"
    default_remedy = "`tghw regs list` shows the names there are"


class RegisterTable:
    """The registers of one IP block version. Names to places and fields; no device."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._lines = dict(line.split(" ", 1) for line in text.splitlines() if line and line[0] != "#")
        self._fields: dict[str, dict[str, Field]] = {}
        self._plans: dict[str, list[tuple[str, int, int]]] = {}  # name, shift, mask of each field, for decode()

    def __contains__(self, register: str) -> bool:
        return register in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def place(self, register: str) -> tuple[int | None, int]:
        """(base index, dword offset); base index None for an absolute one. Raises UnknownRegister."""
        line = self._lines.get(register)
        if line is None:
            raise UnknownRegister(f"{self.name} has no register {register}")
        base, offset = line.split(" ", 2)[:2]
        return (None if base == "abs" else int(base, 16)), int(offset, 16)

    def fields(self, register: str) -> dict[str, Field]:
        """The fields by name, in table order."""
        known = self._fields.get(register)
        if known is None:
            self.place(register)
            words = self._lines[register].split(" ")[2:]
            if words and words[0].startswith("="):
                known = self.fields(words[0][1:])
            else:
                known = {}
                for word in words:
                    name, _, bits = word.partition(":")
                    low, _, high = bits.partition("-")
                    known[name] = (int(low, 16), int(high or low, 16))
            self._fields[register] = known
        return known

    def select(self, register: str, values: Mapping[str, int]) -> tuple[int, int]:
        """(mask, bits) of the named fields. Raises UnknownRegister for an unknown field, ValueError for a value that does not fit."""
        fields = self.fields(register)
        mask = bits = 0
        for name, value in values.items():
            place = fields.get(name)
            if place is None:
                raise UnknownRegister(f"{register} has no field {name}", read=f"fields: {', '.join(fields) or 'none'}")
            low, high = place
            ones = (2 << high - low) - 1
            if not 0 <= value <= ones:
                raise ValueError(f"{register}.{name} holds {high - low + 1} bits, {value:#x} does not fit")
            mask |= ones << low
            bits |= value << low
        return mask, bits

    def encode(self, register: str, **values: int) -> int:
        """A register value from field values; fields not named are 0. Raises UnknownRegister, ValueError like select()."""
        return self.select(register, values)[1]

    def decode(self, register: str, value: int) -> dict[str, int]:
        """Field values of a register value."""
        plan = self._plans.get(register)
        if plan is None:
            plan = self._plans[register] = [(name, low, (2 << high - low) - 1) for name, (low, high) in self.fields(register).items()]
        return {name: value >> low & ones for name, low, ones in plan}

    def mask(self, register: str, names: Sequence[str] | None = None) -> int:
        """Bits that the named fields (default: all) cover. Raises UnknownRegister for an unknown field."""
        return self.select(register, dict.fromkeys(self.fields(register) if names is None else names, 0))[0]


@cache
def load_table(path: Path) -> RegisterTable:
    """A table file, read once per process."""
    return RegisterTable(path.stem, path.read_text(encoding="ascii"))


class RegisterSpace:
    """The dword-indexed register space of one device: the single place through which register accesses go.

    Devices with index/data windows subclass it. `names` maps absolute dword indexes to names as blocks are bound.
    """

    def __init__(self, window: Mmio, clock: Clock = HOST_CLOCK) -> None:
        self.window = window
        self.clock = clock
        self.names: dict[int, str] = {}

    def read(self, index: int) -> int:
        """Read the register at this dword index."""
        return self.window.read32(index << 2)

    def write(self, index: int, value: int) -> None:
        """Write the register at this dword index."""
        self.window.write32(index << 2, value)

    def reader(self, index: int) -> Callable[[], int]:
        """A function that reads one register: the fastest way to it that still goes through the window."""
        if type(self).read is RegisterSpace.read:
            return partial(self.window.read32, index << 2)
        return partial(self.read, index)

    def write_block(self, index: int, values: Sequence[int]) -> None:
        """Write consecutive registers in ascending order; one batch where an access is a round trip."""
        with self.window.batch() as batch:
            for position, value in enumerate(values):
                log.debug("write %s = %#010x", self.name_of(index + position), value)
                batch.write32(index + position << 2, value)

    def batch(self) -> AbstractContextManager[Batch]:
        """Writes until its end may go out together where an access is a round trip. Their order stays; a read sends what waits first.

        It must end before anything that counts on the writes without reading: a sleep, a doorbell of another device.
        """
        return self.window.batch()

    def name_of(self, index: int) -> str:
        return self.names.get(index, f"register {index:#x}")


class Register:
    """One register of one device. `read()` reads it."""

    __slots__ = ("_write", "index", "name", "read", "space", "table")

    read: Callable[[], int]

    def __init__(self, space: RegisterSpace, table: RegisterTable, name: str, index: int) -> None:
        self.space = space
        self.table = table
        self.name = name
        self.index = index
        self.read = space.reader(index)
        self._write = space.write
        if log.isEnabledFor(logging.DEBUG):
            self._log_accesses()

    def _log_accesses(self) -> None:
        """Say each access to the log, decoded. Decided once, so that it costs nothing where nobody listens."""
        read, write = self.read, self._write

        def logged_read() -> int:
            value = read()
            log.debug("read  %s", self._show(value))
            return value

        def logged_write(index: int, value: int) -> None:
            log.debug("write %s", self._show(value))
            write(index, value)

        self.read, self._write = logged_read, logged_write

    def _show(self, value: int) -> str:
        """A value with those of its fields that are not zero."""
        fields = ", ".join(f"{name}={number:#x}" for name, number in self.table.decode(self.name, value).items() if number)
        return f"{self.name} = {value:#010x}" + (f" ({fields})" if fields else "")

    def write(self, value: int | None = None, **fields: int) -> None:
        """Write a whole value, or one made of fields (the others 0)."""
        if value is None:
            value = self.table.encode(self.name, **fields)
        elif fields:
            raise TypeError("either a value or fields")
        self._write(self.index, value)

    def update(self, **fields: int) -> int:
        """Read, change the named fields, write. Returns the value written."""
        mask, bits = self.table.select(self.name, fields)
        value = self.read() & ~mask | bits
        self._write(self.index, value)
        return value

    def get(self, field: str) -> int:
        """Read one field."""
        low, high = self._field(field)
        return self.read() >> low & (1 << (high - low + 1)) - 1

    def fields(self) -> dict[str, int]:
        """Read and decode."""
        return self.table.decode(self.name, self.read())

    def encode(self, **fields: int) -> int:
        return self.table.encode(self.name, **fields)

    def poll(
        self,
        *,
        within: float,
        until: Callable[[int], bool] | None = None,
        mask: int | None = None,
        value: int = 0,
        what: str = "",
        means: str = "",
        remedy: str = "",
        **fields: int,
    ) -> int:
        """Wait until fields have values, or (register & mask) == value, or until(register). Returns the last value. Raises WaitTimeout."""
        if until is None:
            wanted_mask, wanted = self.table.select(self.name, fields) if mask is None else (mask, value)
            until = lambda seen: seen & wanted_mask == wanted  # noqa: E731
            if not what:
                what = f"{self.name} " + (", ".join(f"{name} = {number:#x}" for name, number in fields.items()) or f"& {wanted_mask:#x} == {wanted:#x}")
        return poll(self.read, until, what=what or self.name, within=within, clock=self.space.clock, describe=self.describe, means=means, remedy=remedy)

    def describe(self, value: int) -> str:
        """A value with its fields, for errors and traces."""
        fields = self.table.decode(self.name, value)
        shown = ", ".join(f"{name}={number:#x}" for name, number in fields.items())
        return f"{self.name} = {value:#010x}" + (f" ({shown})" if shown else "")

    def _field(self, field: str) -> Field:
        fields = self.table.fields(self.name)
        if field not in fields:
            raise UnknownRegister(f"{self.name} has no field {field}")
        return fields[field]


class RegisterBlock:
    """The registers of one IP block instance as attributes: `gc.CP_STAT.read()`."""

    def __init__(self, table: RegisterTable, bases: Sequence[int], space: RegisterSpace) -> None:
        self._table = table
        self._bases = tuple(bases)
        self._space = space

    def __getattr__(self, name: str) -> Register:
        if name.startswith("__"):
            raise AttributeError(name)
        register = Register(self._space, self._table, name, self.index(name))
        self._space.names.setdefault(register.index, name)
        self.__dict__[name] = register
        return register

    def __getitem__(self, name: str) -> Register:
        register: Register = getattr(self, name)
        return register

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def index(self, name: str) -> int:
        """Absolute dword index of a register. Raises UnknownRegister when the device published no such base."""
        base, offset = self._table.place(name)
        if base is None:
            return offset
        if base >= len(self._bases):
            raise UnknownRegister(f"{name} needs address base {base} of {self._table.name}", read=f"the device published {len(self._bases)} bases")
        return self._bases[base] + offset

    def write_pair(self, low: str, high: str, value: int) -> None:
        """A 64-bit value to a LO/HI pair, low half first."""
        self[low].write(value & 0xFFFFFFFF)
        self[high].write(value >> 32)

    def __dir__(self) -> list[str]:
        return [*self._table]

    def __reduce__(self) -> Any:
        raise TypeError("a register block belongs to an open device")
