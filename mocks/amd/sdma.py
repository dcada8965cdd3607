"""SDMA: the registers of the two copy engines, queue 0 of each. What the engines do is in sdma_engine.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mocks.amd.block import Block, Reg, on_read, on_write, stored
from mocks.amd.sdma_engine import Engine

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

ENGINES = 2
RB_ENABLE = 1 << 0
"""QUEUE0_RB_CNTL"""
DOORBELL_ENABLE = 1 << 28
DOORBELL_OFFSET = 0x0FFFFFFC


class Sdma(Block):
    """Registers of both engines."""

    key = "sdma"
    domain = "gfx"
    REGISTERS = (
        stored("GC", "SDMA*_CNTL", "SDMA*_WATCHDOG_CNTL", "SDMA*_UTCL1_CNTL", "SDMA*_UTCL1_PAGE"),
        stored("GC", "SDMA*_F32_CNTL", reset=1 << 0 | 1 << 13),
        stored("GC", *(f"SDMA*_QUEUE0_RB_{name}" for name in ("CNTL", "BASE", "BASE_HI", "RPTR", "RPTR_HI", "WPTR", "WPTR_HI", "RPTR_ADDR_LO", "RPTR_ADDR_HI"))),
        stored("GC", "SDMA*_QUEUE0_RB_WPTR_POLL_ADDR_LO", "SDMA*_QUEUE0_RB_WPTR_POLL_ADDR_HI", "SDMA*_QUEUE0_IB_CNTL", "SDMA*_QUEUE0_MINOR_PTR_UPDATE"),
        stored("GC", "SDMA*_QUEUE0_DOORBELL", "SDMA*_QUEUE0_DOORBELL_OFFSET"),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.changed = self.scheduler.signal()
        self.engines = [Engine(self, number) for number in range(ENGINES)]

    def set_pair(self, low: str, high: str, value: int) -> None:
        self.reg("GC", low).value = value & 0xFFFFFFFF
        self.reg("GC", high).value = value >> 32

    def reset(self) -> None:
        for engine in self.engines:
            engine.stop()
        super().reset()

    def soft_reset(self, what: str) -> None:
        """GRBM_SOFT_RESET of one engine."""
        for engine in self.engines:
            if what == f"sdma{engine.number}":
                engine.stop()
                for reg in self.registers.values():
                    if reg.name.startswith(f"SDMA{engine.number}_"):
                        reg.to_reset()

    def doorbell(self, index: int, value: int) -> str:
        """A doorbell by dword index. Returns why nobody took it, "" when somebody did."""
        for engine in self.engines:
            if engine.task is not None and engine.value("QUEUE0_DOORBELL") & DOORBELL_ENABLE and engine.value("QUEUE0_DOORBELL_OFFSET") & DOORBELL_OFFSET == index << 2:
                engine.wptr = value
                engine.bell.set()
                return ""
        return f"no enabled SDMA queue has doorbell index {index:#x}"

    @on_write("GC", "SDMA*_QUEUE0_RB_CNTL")
    def ring_control(self, value: int, reg: Reg) -> None:
        engine = self.engines[reg.number]
        if value & RB_ENABLE:
            engine.start()
        else:
            engine.stop()

    @on_write("GC", "SDMA*_F32_CNTL")
    def engine_control(self, value: int, reg: Reg) -> None:
        self.changed.set()

    @on_read("GC", "SDMA*_QUEUE0_RB_RPTR")
    def read_pointer(self, reg: Reg) -> int:
        engine = self.engines[reg.number]
        return engine.rptr & 0xFFFFFFFF if engine.task is not None else reg.value

    @on_read("GC", "SDMA*_QUEUE0_RB_RPTR_HI")
    def read_pointer_high(self, reg: Reg) -> int:
        engine = self.engines[reg.number]
        return engine.rptr >> 32 if engine.task is not None else reg.value

    @on_read("GC", "SDMA*_QUEUE0_RB_WPTR")
    def write_pointer(self, reg: Reg) -> int:
        engine = self.engines[reg.number]
        return engine.wptr & 0xFFFFFFFF if engine.task is not None else reg.value

    @on_read("GC", "SDMA*_QUEUE0_RB_WPTR_HI")
    def write_pointer_high(self, reg: Reg) -> int:
        engine = self.engines[reg.number]
        return engine.wptr >> 32 if engine.task is not None else reg.value


def blocks(gpu: Gpu) -> list[Block]:
    return [Sdma(gpu)]
