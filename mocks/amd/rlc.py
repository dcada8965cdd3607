"""RLC: starts the graphics engine from the firmware that the PSP put in place, and looks after its power.

Before autoload is complete the graphics engine has no power: its registers read 0 and drop writes (see Block.domain).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mocks.amd.block import Block, Reg, on_write, stored
from mocks.clock import Engine, Task

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

BUSY = 0x80000000
BOOTLOAD_COMPLETE = 0x80000002
"""RLC_RLCS_BOOTLOAD_STATUS once everything runs (I: the low bits)"""
SAFE_MODE_COMMAND = 1 << 0
SAFE_MODE_ENTER = 1 << 1


class Rlc(Block):
    """Run list controller."""

    key = "rlc"
    domain = "gfx"
    REGISTERS = (
        stored("GC", "CP_STAT", reset=BUSY, mask=0, always_on=True),
        stored("GC", "RLC_RLCS_BOOTLOAD_STATUS", mask=0, always_on=True),
        stored("GC", "RLC_CNTL", "RLC_SRM_CNTL", "RLC_SPM_MC_CNTL"),
        stored("GC", "RLC_CGCG_CGLS_CTRL", "RLC_CGTT_MGCG_OVERRIDE"),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.autoload_done = False
        self.safe_mode = False
        self._tasks: list[Task] = []

    def reset(self) -> None:
        super().reset()
        for task in self._tasks:
            self.scheduler.stop(task)
        self._tasks.clear()
        self.autoload_done = self.safe_mode = False
        self.gpu.domains_on.discard("gfx")

    def start_autoload(self) -> None:
        """The PSP has all firmware: load the engines and start them."""
        self._tasks.append(self.scheduler.spawn("RLC autoload", self._autoload()))

    def _autoload(self) -> Engine:
        self.reg("GC", "CP_STAT").value = BUSY
        yield self.profile["psp"]["autoload_time"]
        if self.faults.active("rlc-never"):
            return
        self.autoload_done = True
        self.gpu.domains_on.add("gfx")
        self.reg("GC", "CP_STAT").value = 0
        self.reg("GC", "RLC_RLCS_BOOTLOAD_STATUS").value = BOOTLOAD_COMPLETE

    @on_write("GC", "RLC_SAFE_MODE")
    def safe_mode_request(self, value: int, reg: Reg) -> None:
        """The RLC clears the command bit when it has entered or left safe mode; it does nothing while it is not enabled."""
        if value & SAFE_MODE_COMMAND and self.reg("GC", "RLC_CNTL").value & 1:
            self._tasks.append(self.scheduler.spawn("RLC safe mode", self._change_safe_mode(bool(value & SAFE_MODE_ENTER), reg)))

    def _change_safe_mode(self, enter: bool, reg: Reg) -> Engine:
        yield self.profile["timings"]["safe_mode"]
        self.safe_mode = enter
        reg.value &= ~SAFE_MODE_COMMAND


def blocks(gpu: Gpu) -> list[Block]:
    return [Rlc(gpu)]
