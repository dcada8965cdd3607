"""How a block of the simulated GPU declares its registers.

A block is a class. What it has is declared; nothing else exists:

    class Rlc(Block):
        key = "rlc"
        domain = "gfx"
        REGISTERS = (
            stored("GC", "RLC_CNTL", "RLC_SRM_CNTL"),
            stored("GC", "SH_MEM_CONFIG", "SH_MEM_BASES", bank="vmid"),
            stored("GC", "CP_STAT", reset=0x80000000, always_on=True),
        )

        @on_write("GC", "RLC_SAFE_MODE")
        def safe_mode(self, value: int, reg: Reg) -> None: ...

        @on_read("GC", "CP_STAT")
        def status(self, reg: Reg) -> int: ...

`stored` registers keep what is written, within their writable bits (the fields that the register table knows and does not call
reserved, all 32 when it knows none). `on_write` and `on_read` add behaviour; they need no `stored` beside them unless something differs from its defaults. A write
is stored first, then the handler runs: it finds the new value in `value` and `reg.value`, the former in `reg.old`, and may set
`reg.value` to something else. A name may hold one `*`; what it stood for is `reg.number`. A register that is declared nowhere raises
NotModelled with its name, read or written.

`bank` says which part of GRBM_GFX_CNTL selects among several copies: "queue" (me, pipe, queue), "pipe" (me, pipe) or "vmid". A
selection that selects nothing reads 0 and drops writes, without calling handlers.

`domain = "gfx"`: until the graphics engine has power (after firmware autoload) the block's registers read 0 and drop writes, except
those declared `always_on`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hw.regs import RegisterTable

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

ALL_BITS = 0xFFFFFFFF
RESERVED = re.compile("reserved(_?[0-9]+)*")
"""names that the tables give to fields without a meaning"""

H = TypeVar("H", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """Some registers of one IP block with the same properties."""

    ip: str
    names: tuple[str, ...]
    reset: int = 0
    mask: int | None = None
    bank: str | None = None
    always_on: bool = False
    optional: bool = False


def stored(ip: str, *names: str, reset: int = 0, mask: int | None = None, bank: str | None = None, always_on: bool = False, optional: bool = False) -> Declaration:
    """Registers that hold a value. mask: bits that software can change (default: the table's fields). optional: some versions of the block lack them."""
    return Declaration(ip, names, reset, mask, bank, always_on, optional)


def on_write(ip: str, *names: str) -> Callable[[H], H]:
    """The method handles writes: method(self, value, reg)."""

    def mark(method: H) -> H:
        method.__dict__.setdefault("_writes", []).extend((ip, name) for name in names)
        return method

    return mark


def on_read(ip: str, *names: str) -> Callable[[H], H]:
    """The method answers reads: method(self, reg) -> value."""

    def mark(method: H) -> H:
        method.__dict__.setdefault("_reads", []).extend((ip, name) for name in names)
        return method

    return mark


class Reg:
    """One register of one simulated GPU. `value` is what it holds, without any handler being called."""

    __slots__ = ("_banks", "_gpu", "_regs", "acts", "always_on", "bank", "domain", "index", "ip", "mask", "name", "number", "old", "reset", "table")

    def __init__(self, gpu: Gpu, ip: str, name: str, index: int, table: RegisterTable | None) -> None:
        self.ip = ip
        self.name = name
        self.index = index
        self.table = table
        self.reset = 0
        self.mask = ALL_BITS
        self.bank: str | None = None
        self.domain: str | None = None
        self.always_on = False
        self.number = 0
        self.acts = False
        """writes do more than store a value"""
        self.old = 0
        self._gpu = gpu
        self._regs = gpu.regs
        self._banks: dict[Any, int] = {}

    @property
    def value(self) -> int:
        if self.bank is None:
            return self._regs[self.index]
        return self._banks.get(self._gpu.bank_key(self.bank), self.reset)

    @value.setter
    def value(self, value: int) -> None:
        if self.bank is None:
            self._regs[self.index] = value & ALL_BITS
        else:
            self._banks[self._gpu.bank_key(self.bank)] = value & ALL_BITS

    def of(self, key: Any) -> int:
        """What a banked register holds for one selection, e.g. (me, pipe, queue)."""
        return self._banks.get(key, self.reset)

    def set_of(self, key: Any, value: int) -> None:
        self._banks[key] = value & ALL_BITS

    def field(self, name: str) -> int:
        """One field of the value held."""
        assert self.table is not None
        low, high = self.table.fields(self.name)[name]
        return self.value >> low & (1 << (high - low + 1)) - 1

    def fields_of(self, value: int) -> dict[str, int]:
        assert self.table is not None
        return self.table.decode(self.name, value)

    def set_field(self, name: str, number: int) -> None:
        assert self.table is not None
        low, high = self.table.fields(self.name)[name]
        bits = ((1 << (high - low + 1)) - 1) << low
        self.value = self.value & ~bits | number << low & bits

    def to_reset(self) -> None:
        """Power-on value, in every bank."""
        self._banks.clear()
        if self.bank is None:
            self._regs[self.index] = self.reset
        self.old = self.reset

    def __repr__(self) -> str:
        return f"Reg({self.name} @ {self.index:#x})"


class Block:
    """A part of the GPU. Subclasses declare registers and behaviour; `key` is its name in gpu.blocks."""

    key: ClassVar[str] = ""
    domain: ClassVar[str | None] = None
    REGISTERS: ClassVar[tuple[Declaration, ...]] = ()

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.clock = gpu.clock
        self.scheduler = gpu.scheduler
        self.profile = gpu.profile
        self.faults = gpu.faults
        self.registers: dict[int, Reg] = {}

    def attach(self) -> None:
        """Bind what the class declares. Called once by the GPU."""
        for declaration in self.REGISTERS:
            for pattern in declaration.names:
                if declaration.optional and pattern not in self.gpu.table(declaration.ip):
                    continue
                for reg in self._match(declaration.ip, pattern):
                    reg.reset = declaration.reset
                    reg.bank = declaration.bank
                    reg.always_on = declaration.always_on
                    if declaration.mask is not None:
                        reg.mask = declaration.mask
        readers: dict[int, Callable[[Reg], int]] = {}
        writers: dict[int, Callable[[int, Reg], None]] = {}
        for name in dir(type(self)):
            method = getattr(type(self), name)
            marks = getattr(method, "__dict__", {})
            for ip, pattern in marks.get("_reads", ()):
                readers.update((reg.index, getattr(self, name)) for reg in self._match(ip, pattern))
            for ip, pattern in marks.get("_writes", ()):
                writers.update((reg.index, getattr(self, name)) for reg in self._match(ip, pattern))
        for index, reg in self.registers.items():
            self.gpu.bind(reg, readers.get(index), writers.get(index), self)
            reg.to_reset()

    def hole(self, ip: str, base_index: int, offset: int, name: str, *, bank: str | None = None) -> None:
        """A place that no table names but that software writes (errata 9): it swallows writes and reads 0. Call before or during attach()."""
        index = self.gpu.bases(ip)[base_index] + offset
        reg = Reg(self.gpu, ip, name, index, None)
        reg.domain = self.domain
        reg.bank = bank
        reg.mask = 0
        self.registers[index] = reg

    def reg(self, ip: str, name: str) -> Reg:
        """A register that some block declares."""
        return self.gpu.reg(ip, name)

    def reset(self) -> None:
        """Everything as after power-on. Subclasses add their own state and stop their engines."""
        for reg in self.registers.values():
            reg.to_reset()

    def power_on(self) -> None:
        """Power or reset has ended; blocks that act by themselves start here."""

    def soft_reset(self, what: str) -> None:
        """GRBM_SOFT_RESET: `what` is a field name without its prefix, e.g. "cp", "cpc", "sdma0"."""

    def _match(self, ip: str, pattern: str) -> list[Reg]:
        table = self.gpu.table(ip)
        found = []
        if "*" in pattern:
            before, after = pattern.split("*")
            shape = re.compile(f"{re.escape(before)}([0-9]+){re.escape(after)}")
            matches = [(name, int(hit.group(1))) for name in table if (hit := shape.fullmatch(name))]
            if not matches:
                raise KeyError(f"{type(self).__name__} declares {pattern}, which no register of {table.name} matches")
        else:
            matches = [(pattern, 0)]
        for name, number in matches:
            index = self.gpu.index(ip, name)
            reg = self.registers.get(index)
            if reg is None:
                reg = Reg(self.gpu, ip, name, index, table)
                reg.domain = self.domain
                reg.mask = _writable(table, name)
                self.registers[index] = reg
            if "*" in pattern:
                reg.number = number
            found.append(reg)
        return found


def _writable(table: RegisterTable, name: str) -> int:
    """Bits of a register that software can change: its fields, except those named as reserved."""
    fields = table.fields(name)
    return table.mask(name, [field for field in fields if not RESERVED.fullmatch(field)]) if fields else ALL_BITS
