"""GRBM: the register bus of the graphics engine, with the selection that banks registers, and soft resets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mocks.amd.block import Block, Reg, on_write, stored

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

MECS = (1, 2)
PIPES = 4
QUEUES = 4


class Grbm(Block):
    """Selection and resets."""

    key = "grbm"
    domain = "gfx"
    REGISTERS = (
        stored("GC", "GRBM_GFX_CNTL"),
        stored("GC", "GRBM_CNTL"),
        stored("GC", "GRBM_STATUS", reset=0x00003028, mask=0, always_on=True),
        stored("GC", "SH_MEM_CONFIG", "SH_MEM_BASES", bank="vmid"),
        stored("GC", "SCRATCH_REG6", "SCRATCH_REG7", always_on=True),
        stored("GC", "GB_ADDR_CONFIG", reset=0x545, mask=0),
        stored("GC", "TCP_CNTL"),
        stored("GC", "CP_RB_WPTR_POLL_CNTL", "CP_INT_CNTL"),
        stored("GC", "SDMA0_RLC_CGCG_CTRL", "SDMA1_RLC_CGCG_CTRL"),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self._select = gpu.index("GC", "GRBM_GFX_CNTL")

    def bank_key(self, bank: str) -> Any:
        """The copy that GRBM_GFX_CNTL selects: pipeid 1:0, meid 3:2, vmid 7:4, queueid 10:8."""
        selection = self.gpu.regs[self._select]
        if bank == "vmid":
            return selection >> 4 & 0xF
        me, pipe, queue = selection >> 2 & 3, selection & 3, selection >> 8 & 7
        if bank == "pipe":
            return (me, pipe) if me in MECS or (me == 0 and pipe == 0) else None
        if bank == "queue":
            return (me, pipe, queue) if me in MECS and queue < QUEUES else None
        raise KeyError(bank)

    @on_write("GC", "GRBM_SOFT_RESET")
    def soft_reset_request(self, value: int, reg: Reg) -> None:
        """Engines named by the bits lose their state when a bit goes from 0 to 1."""
        for name, bit in reg.fields_of(value).items():
            if bit and not reg.fields_of(reg.old)[name]:
                for block in self.gpu.blocks.values():
                    block.soft_reset(name.removeprefix("soft_reset_"))


def blocks(gpu: Gpu) -> list[Block]:
    return [Grbm(gpu)]
