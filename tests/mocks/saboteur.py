"""Breaks a working driver at one place: a write of its that is dropped or changed on the way to the simulated device.

    with Saboteur(pci) as saboteur:
        saboteur.rule = lambda write: None if write.register == "CP_HQD_ACTIVE" else write.data
        ...

Every write through a BAR window passes the rule, which returns the data to write, or None to drop it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hw.mmio import Mmio
from mocks.pci_device import BarWindow, MockPciDevice

REGISTERS, MEMORY, DOORBELLS = 5, 0, 2


@dataclass(frozen=True)
class Write:
    """One write on its way. `number` counts all writes from 0."""

    number: int
    bar: int
    offset: int
    data: bytes
    register: str
    """name, for a write to a register: through an index window the one behind it"""
    mask: int = -1
    """bits that the register has; all for memory"""

    @property
    def value(self) -> int:
        return int.from_bytes(self.data, "little")

    @property
    def what(self) -> str:
        return f"{self.register} = {self.value:#x}" if self.bar == REGISTERS else f"BAR{self.bar} + {self.offset:#x}, {len(self.data)} bytes"


Rule = Callable[[Write], bytes | None]


def keep(write: Write) -> bytes | None:
    return write.data


class Saboteur:
    """Sits between an open device and its windows. Windows mapped before are not touched."""

    def __init__(self, pci: MockPciDevice, rule: Rule = keep) -> None:
        self.rule = rule
        self.writes: list[Write] = []
        """every write that was tried, as the driver meant it"""
        self.repeats: set[int] = set()
        """numbers of writes that left the device as it was: to a register that only stores, or to memory, holding that value already"""
        self._gpu: Any = pci.machine.gpus[0]
        self._window_index = 4 * self._gpu.index("NBIO", "BIF_BX_PF0_RSMU_INDEX")
        self._indexed = 0
        original = pci.map_bar

        def map_bar(index: int, offset: int = 0, size: int | None = None) -> Mmio:
            window = original(index, offset, size)
            assert isinstance(window, BarWindow)
            self._sit_in(window, index, offset)
            return window

        pci.map_bar = map_bar  # type: ignore[method-assign]

    def _sit_in(self, window: BarWindow, bar: int, base: int) -> None:
        write_block, view = window.write, window.view
        for width in (1, 4, 8):
            name = f"write{8 * width}"
            inner = getattr(window, name)

            def through(offset: int, value: int, inner: Callable[[int, int], None] = inner, width: int = width) -> None:
                data = self._pass(bar, base + offset, (value & (1 << 8 * width) - 1).to_bytes(width, "little"))
                if data is None:
                    return
                number, before = len(self.writes) - 1, self._stored(bar, base + offset)
                inner(offset, int.from_bytes(data, "little"))
                if before is not None and self._stored(bar, base + offset) == before:
                    self.repeats.add(number)

            setattr(window, name, through)

        def block(offset: int, raw: Any) -> None:
            data = self._pass(bar, base + offset, bytes(raw))
            if data is None:
                return
            if bar == MEMORY and self._gpu.hdp.host_read(base + offset, len(data)) == data:
                self.repeats.add(len(self.writes) - 1)
            write_block(offset, data)

        def part(offset: int = 0, size: int | None = None) -> Mmio:
            inner = view(offset, size)
            assert isinstance(inner, BarWindow)
            self._sit_in(inner, bar, base + offset)
            return inner

        window.write = block  # type: ignore[assignment, method-assign]
        window.view = part  # type: ignore[method-assign]

    def _pass(self, bar: int, offset: int, data: bytes) -> bytes | None:
        write = Write(len(self.writes), bar, offset, data, self._name(offset) if bar == REGISTERS else "", self._mask(bar, offset))
        self.writes.append(write)
        if bar == REGISTERS and offset == self._window_index:
            self._indexed = write.value >> 2
        return self.rule(write)

    def _mask(self, bar: int, offset: int) -> int:
        index = self._indexed if offset == self._window_index + 4 else offset >> 2
        reg = self._gpu.declared(index) if bar == REGISTERS else None
        if reg is None:
            return -1
        known = reg.table.mask(reg.name) if reg.table is not None else 0
        return int(reg.mask & known if known else reg.mask)

    def _stored(self, bar: int, offset: int) -> int | None:
        """What a register that does nothing but store holds; None for anything else."""
        index = self._indexed if offset == self._window_index + 4 else offset >> 2
        return self._gpu.stored_value(index) if bar == REGISTERS else None

    def _name(self, offset: int) -> str:
        index = offset >> 2
        if offset == self._window_index + 4:
            index = self._indexed
        elif offset == self._gpu.reg("NBIO", "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL").value:
            return "HDP flush"
        name = str(self._gpu.name_of(index))
        reg = self._gpu.declared(index)
        vmid = self._gpu.bank_key("vmid") if reg is not None and reg.bank == "vmid" else 0
        return f"{name} of VMID {vmid}" if vmid else name
