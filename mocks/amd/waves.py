"""Waves: dispatches of one GPU carried out by the machine-code executor over the graphics hub.

Waves take simulated time by the instruction (profile key wave_instruction_ns). What goes wrong in one ends as on the card: an
interrupt of the shader block, and waves that never finish, so that their queue hangs until it is reset.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drivers.amd.layouts import ih
from mocks.amd.dispatch import Launch
from mocks.amd.hub import CLIENT_SQC_DATA, CLIENT_SQC_INSTRUCTION, CLIENT_TCP, Hub, VmFault
from mocks.amd.tlb import EXECUTE, READ, WRITE
from mocks.isa.executor import DONE, FAULT, ILLEGAL, RUNNING, Dispatch, Executor, Run, RunState, mode_from_rsrc1, vgprs_from_rsrc1
from mocks.isa.port import EXEC as PORT_EXEC
from mocks.isa.port import READ as PORT_READ
from mocks.isa.port import SCALAR as PORT_SCALAR
from mocks.isa.port import WRITE as PORT_WRITE
from mocks.isa.port import MemoryFault

if TYPE_CHECKING:
    from mocks.amd.hqd import Hqd
    from mocks.amd.mec import Mec

log = logging.getLogger(__name__)

STEP_INSTRUCTIONS = 100_000
STRICT_STEP_INSTRUCTIONS = 16
"""how many instructions waves carry out before other engines get their turn"""
LAUNCH_TIME = 1e-6
"""from the dispatch packet to the first instruction (s)"""
STUCK_PAUSE = 1e-3
"""how often waves that cannot go on are looked at (s)"""

SQ_ERROR_ILLEGAL = 1
SQ_ERROR_MEMORY = 2
SQ_ENCODING_WAVE = 1
SQ_ENCODING_ERROR = 2


class WavePort:
    """The address space of one VMID as waves see it."""

    def __init__(self, hub: Hub, vmid: int) -> None:
        self._hub = hub
        self._vmid = vmid
        self.fault: VmFault | None = None

    @property
    def generation(self) -> int:
        return self._hub.generation

    def translate(self, va: int, access: int) -> tuple[int, int]:
        """See mocks.isa.port.MemoryPort."""
        hub = self._hub
        try:
            if access == PORT_READ:
                return hub.translate(self._vmid, va, READ, CLIENT_TCP)
            if access == PORT_READ | PORT_SCALAR:
                return hub.translate(self._vmid, va, READ, CLIENT_SQC_DATA)
            if access == PORT_WRITE:
                return hub.translate(self._vmid, va, WRITE, CLIENT_TCP)
            if access == PORT_EXEC:
                return hub.translate(self._vmid, va, EXECUTE, CLIENT_SQC_INSTRUCTION)
            hub.translate(self._vmid, va, READ, CLIENT_TCP)
            return hub.translate(self._vmid, va, WRITE, CLIENT_TCP)
        except VmFault as fault:
            self.fault = fault
            raise MemoryFault(va, access) from fault


class Waves:
    """The waves of one dispatch. `stuck` says why they will never end; "" while they may."""

    def __init__(self, launch: Launch, run: Run | None) -> None:
        self.launch = launch
        self.run = run
        self.stuck = launch.impossible
        self.started = False

    def report(self) -> str:
        """What they are doing, for people."""
        done = "" if self.run is None else f", {self.run.groups_done} of {self.run.groups} groups done, {self.run.instructions} instructions"
        return f"kernel at {self.launch.program:#x}{done}" + (f": {self.stuck}" if self.stuck else "")


class WaveEngine:
    """Runs the waves of all queues of a GPU."""

    def __init__(self, mec: Mec) -> None:
        self._mec = mec
        self._gpu = mec.gpu
        engine = mec.profile["engine"]
        self._strict = mec.gpu.strict
        self._instruction_time = 1e-9 * engine["wave_instruction_strict_ns" if self._strict else "wave_instruction_ns"]
        self._executors: dict[int, tuple[Executor, WavePort]] = {}
        self._mastered = False
        self._count = 0

    def start(self, hqd: Hqd, launch: Launch) -> None:
        """Give a dispatch to the compute units. Its waves are part of hqd.waves until they end."""
        run = None
        if not launch.impossible:
            run = self._executor(hqd.vmid)[0].start(self._dispatch(hqd, launch))
        else:
            log.warning("%r: the dispatch can never run: %s", hqd, launch.impossible)
        hqd.waves.append(Waves(launch, run))

    def step(self, hqd: Hqd) -> float:
        """Let waves of a queue go on for a while. Returns the time it took (s)."""
        ready = [each for each in hqd.waves if not each.stuck]
        if not ready:
            return STUCK_PAUSE
        waves: Waves = ready[self._mec.scheduler.random.randrange(len(ready))] if self._strict else ready[0]
        if not waves.started:
            waves.started = True
            return LAUNCH_TIME
        if self._gpu.bus_master != self._mastered:
            self._mastered = self._gpu.bus_master
            hqd.hub.bump()  # pointers to host memory that executors hold are not valid any longer
        run = waves.run
        assert run is not None
        before = run.instructions
        state = run.step(STRICT_STEP_INSTRUCTIONS if self._strict else STEP_INSTRUCTIONS)
        if state.kind == DONE:
            hqd.waves.remove(waves)
        elif state.kind != RUNNING:
            self._error(hqd, waves, state)
        return float((run.instructions - before + 1) * self._instruction_time)

    def _executor(self, vmid: int) -> tuple[Executor, WavePort]:
        known = self._executors.get(vmid)
        if known is None:
            port = WavePort(self._gpu.hub("gfx"), vmid)
            known = self._executors[vmid] = (Executor(port, self._mec.ticks, self._message, self._strict), port)
        return known

    def _dispatch(self, hqd: Hqd, launch: Launch) -> Dispatch:
        bases = self._mec.reg("GC", "SH_MEM_BASES").of(hqd.vmid)
        self._count += 1
        return Dispatch(
            entry=launch.program,
            group_size=launch.block,
            grid=launch.groups,
            user_sgprs=list(launch.user_data),
            group_ids=(bool(launch.rsrc2 >> 7 & 1), bool(launch.rsrc2 >> 8 & 1), bool(launch.rsrc2 >> 9 & 1)),
            group_info=bool(launch.rsrc2 >> 10 & 1),
            workitem_components=min((launch.rsrc2 >> 11 & 3) + 1, 3),
            vgprs=vgprs_from_rsrc1(launch.rsrc1),
            lds_bytes=launch.lds_bytes,
            scratch_base=launch.scratch_base,
            scratch_wave_bytes=launch.scratch_wave_bytes,
            scratch_waves=launch.scratch_waves,
            mode=mode_from_rsrc1(launch.rsrc1),
            wave32=launch.wave32,
            seed=self._gpu.machine.seed * 0x10001 + self._count,
            shared_base=(bases >> 16 & 0xFFFF) << 48,
            private_base=(bases & 0xFFFF) << 48,
            arch=self._gpu.profile["arch"],
        )

    def _error(self, hqd: Hqd, waves: Waves, state: RunState) -> None:
        """Waves met something they cannot get over: tell, and leave them where they are."""
        if state.kind == FAULT:
            fault = self._executor(hqd.vmid)[1].fault
            waves.stuck = f"memory violation at {state.pc:#x}: {fault or f'access {state.access} at {state.va:#x}'}"
            self._interrupt(hqd.vmid, SQ_ERROR_MEMORY << 21, SQ_ENCODING_ERROR)
        elif state.kind == ILLEGAL:
            words = " ".join(f"{word:08x}" for word in state.words)
            waves.stuck = f"illegal instruction at {state.pc:#x}: {words} {state.reason}"
            self._interrupt(hqd.vmid, SQ_ERROR_ILLEGAL << 21, SQ_ENCODING_ERROR)
        else:
            waves.stuck = f"trap {state.trap} at {state.pc:#x} without a trap handler {state.reason}"
            self._interrupt(hqd.vmid, state.trap, SQ_ENCODING_WAVE)
        log.warning("%r: %s", hqd, waves.report())

    def _interrupt(self, vmid: int, context: int, encoding: int) -> None:
        self._gpu.ih.raise_interrupt(ih.CLIENT_GFX, ih.SQ_INTERRUPT, vmid=vmid, data=(context, encoding << 6, 0, 0))

    def _message(self, payload: int) -> None:
        """A wave asked for an interrupt (s_sendmsg)."""
        self._interrupt(0, payload & 0xFFFFFF, SQ_ENCODING_WAVE)
