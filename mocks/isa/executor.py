"""Runs dispatches of machine code: `Executor(port).start(dispatch)` gives a `Run`, whose `step` lets waves execute for a while.

Normally whole groups run natively one after another. In strict mode every instruction is a step of its own and a seeded order
decides which resident wave makes it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import random
import time
from collections.abc import Callable

from hw.errors import NotModelled, NotSupported
from mocks.isa import layout as L
from mocks.isa import rt_schedule
from mocks.isa.decoder import decode
from mocks.isa.dispatch import DONE, FAULT, ILLEGAL, RUNNING, TRAP, Dispatch, RunState, WaveReport, mode_from_rsrc1, vgprs_from_rsrc1
from mocks.isa.instruction import EXEC_LO, UnknownInstruction
from mocks.isa.missing import why_not_executed
from mocks.isa.port import EXEC, MemoryFault, MemoryPort
from mocks.isa.program import CodeReader, Program, find_program
from mocks.isa.rt_memory import SWIZZLED_BUFFER
from mocks.isa.run_memory import Pool, RunMemory, field32, field64, set_field32
from mocks.isa.tlb import Tlb

log = logging.getLogger(__name__)

__all__ = ["DONE", "FAULT", "ILLEGAL", "RUNNING", "TRAP", "Dispatch", "Executor", "Run", "RunState", "WaveReport", "mode_from_rsrc1", "vgprs_from_rsrc1"]

NANOSECONDS_PER_TICK = 10
CLOCK = ctypes.CFUNCTYPE(ctypes.c_int64)

SLICE = 200_000  # instructions a wave may run before waves of other groups get a turn
RESIDENT_GROUPS = 8  # how many groups may be in progress at once
STRICT_GROUPS = 4
LDS_LIMIT = 64 * 1024  # bytes a group can address
MAX_GROUP = 1024  # work-items
ENTRY_ALIGNMENT = 256

STATE_NAMES = {L.STATE_READY: "ready", L.STATE_BARRIER: "at barrier", L.STATE_ENDED: "ended", L.STATE_HALTED: "halted"}


class Native:
    """The scheduler's native functions."""

    def __init__(self) -> None:
        i32, i64, u64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64
        self.drive = ctypes.CFUNCTYPE(i32, u64, i64)(rt_schedule.drive())
        self.run_wave = ctypes.CFUNCTYPE(i32, u64, u64)(rt_schedule.run_wave())
        self.launch = ctypes.CFUNCTYPE(None, u64, i32, i64)(rt_schedule.launch_group())
        self.settle = ctypes.CFUNCTYPE(i32, u64, i32)(rt_schedule.settle_group())


native = functools.cache(Native)


class Executor:
    """Executes gfx1100 code over one address space.

    clock: ticks of the 100 MHz counter that the code may read. interrupt: gets the payload of s_sendmsg INTERRUPT.
    strict: waves are switched between any two instructions, in an order that follows from the dispatch's seed.
    """

    def __init__(
        self, port: MemoryPort, clock: Callable[[], int] | None = None, interrupt: Callable[[int], None] | None = None, strict: bool = False
    ) -> None:
        self.port = port
        self.strict = strict
        self.interrupt = interrupt
        self.tlb = Tlb(port)
        self._ticks = clock or (lambda: time.monotonic_ns() // NANOSECONDS_PER_TICK)
        self.clock = CLOCK(self._read_clock)
        self.clock_address = ctypes.cast(self.clock, ctypes.c_void_p).value or 0
        self.pool = Pool()

    def _read_clock(self) -> int:
        """Called by native code."""
        try:
            return self._ticks()
        except BaseException as error:  # goes on when native code has returned
            self.tlb.error = error
            return 0

    def raise_pending(self) -> None:
        """What a callback of native code ran into."""
        if self.tlb.error is not None:
            error, self.tlb.error = self.tlb.error, None
            raise error

    def start(self, dispatch: Dispatch) -> Run:
        """Prepares a dispatch; nothing is executed yet. NotSupported for what the executor cannot do (wave64)."""
        if not dispatch.wave32:
            raise NotSupported("executing wave64 code", means="the translating executor models 32-lane waves only", remedy="compile the kernel for wave32")
        if dispatch.entry % ENTRY_ALIGNMENT:
            raise NotModelled(f"a kernel entry at {dispatch.entry:#x}", means="program addresses are multiples of 256 bytes")
        if not 1 <= dispatch.threads <= MAX_GROUP or dispatch.lds_bytes > LDS_LIMIT:
            raise NotModelled(f"a group of {dispatch.threads} work-items with {dispatch.lds_bytes} bytes of LDS", means="a group has 1 to 1024 work-items and up to 64 KiB")
        return Run(self, dispatch)


class Run:
    """One dispatch in progress.

    instructions: executed so far by all waves. groups_done, groups: of the grid.
    """

    def __init__(self, executor: Executor, dispatch: Dispatch) -> None:
        self.executor = executor
        self.dispatch = dispatch
        self.strict = executor.strict
        self.final: RunState | None = None
        self.reader = CodeReader(executor.port, dispatch.entry)
        self.program: Program | None = None
        self.program_version = -1
        self.slots = self._slots()
        self.memory = RunMemory(dispatch, self.slots, executor.pool)
        self.ctx = self.memory.ctx
        tlb = executor.tlb
        self.memory.lay_out(dispatch, self.slots, tlb.callback_address, executor.clock_address, tlb.address, SLICE, self.strict)
        self.native = native()
        self._strict_order: list[int] | None = None
        self._rng: random.Random | None = None
        self._ready: list[tuple[int, int]] = []  # (slot, wave) in strict mode; empty when it has to be looked up again

    # -- set-up --------------------------------------------------------------------------------------------------------------

    def _slots(self) -> int:
        wanted = STRICT_GROUPS if self.strict else RESIDENT_GROUPS
        d = self.dispatch
        if d.scratch_wave_bytes:
            wanted = min(wanted, d.scratch_waves // d.waves)
            if wanted < 1:
                raise NotModelled(f"{d.waves} waves of a group with room for {d.scratch_waves} in scratch memory", means="COMPUTE_TMPRING_SIZE is too small for one group")
        return max(1, min(wanted, d.groups))

    # -- what a caller looks at -------------------------------------------------------------------------------------------------

    @property
    def instructions(self) -> int:
        return self.memory.get64(L.CTX_EXECUTED)

    @property
    def groups(self) -> int:
        return self.dispatch.groups

    @property
    def groups_done(self) -> int:
        return self.memory.get64(L.SCHED_DONE)

    @property
    def lds_out_of_range(self) -> int:
        """LDS accesses beyond the group's allocation (they read 0 and store nothing)."""
        return self.memory.get32(L.CTX_LDS_OUT_OF_RANGE)

    def waves_state(self) -> list[WaveReport]:
        """Every wave of the groups in progress."""
        reports = []
        for slot in range(self.slots):
            for index in range(self.dispatch.waves if self.memory.is_active(slot) else 0):
                wave = self.memory.wave(slot, index)
                pc = self._pc(wave)
                group = (field32(wave + L.WAVE_GROUP), field32(wave + L.WAVE_GROUP + 4), field32(wave + L.WAVE_GROUP + 8))
                status = STATE_NAMES[field32(wave + L.WAVE_STATE)]
                reports.append(WaveReport(group, index, pc, field32(wave + L.WAVE_SGPR + 4 * EXEC_LO), status, self._text(pc)))
        return reports

    def _text(self, pc: int) -> str:
        try:
            return decode(self.reader.read(pc, 20), 0, self.dispatch.arch, pc).text
        except (UnknownInstruction, MemoryFault) as error:
            return f"({error})"

    def _pc(self, wave: int) -> int:
        return self.dispatch.entry + L.key_pc(field64(wave + L.WAVE_KEY))

    def register_s(self, slot: int, wave: int, code: int) -> int:
        """A scalar register of a resident wave, by operand code."""
        return field32(self.memory.wave(slot, wave) + L.WAVE_SGPR + 4 * code)

    # -- running ----------------------------------------------------------------------------------------------------------------

    def step(self, max_instructions: int) -> RunState:
        """Lets waves execute about that many instructions (whole blocks), or until the dispatch is done or cannot go on.

        NotModelled when a wave reaches an instruction that is known but has no model.
        """
        if self.final is not None:
            return self.final
        self.executor.tlb.check_generation()
        self.memory.put64(L.CTX_EPOCH, self.executor.tlb.tag_bits)
        self.reader.extents.clear()
        self._check_program()
        state = self._step_strict(max_instructions) if self.strict else self._step_native(max_instructions)
        if state.kind != RUNNING:
            self.final = state
            if self.lds_out_of_range:
                log.warning("%d LDS accesses outside the %d bytes of the group: they read 0 and stored nothing", self.lds_out_of_range, self.dispatch.lds_bytes)
        return state

    def run(self, max_instructions: int = 1 << 62) -> RunState:
        """Steps to the end or to the limit."""
        return self.step(max_instructions)

    def _check_program(self) -> None:
        """The code may have been translated for another run, or changed since the last step."""
        if self.program is not None and self.program.version == self.program_version and self.program.matches(self.reader):
            return
        try:
            self.program = find_program(self.dispatch.arch, self.dispatch.vgprs, self.strict, self.reader)
        except MemoryFault:
            self.program = Program(self.dispatch.arch, self.dispatch.vgprs, self.strict)
        self._use_table()

    def _use_table(self) -> None:
        assert self.program is not None
        self.program_version = self.program.version
        self.memory.put64(L.CTX_ENTRIES, int(self.program.table.ctypes.data))
        self.memory.put64(L.CTX_ENTRIES_MASK, len(self.program.table) - 1)

    def _step_native(self, limit: int) -> RunState:
        target = self.instructions + limit
        while True:
            left = target - self.instructions
            if left <= 0:
                return RunState(RUNNING)
            code = self.native.drive(self.ctx, left)
            self.executor.raise_pending()
            if code == L.BUDGET:
                return RunState(RUNNING)
            if code == L.END:
                return RunState(DONE)
            state = self._attend(code, self.memory.get64(L.SCHED_STATUS_WAVE))
            if state is not None:
                return state

    def _attend(self, code: int, wave: int) -> RunState | None:
        """A wave needs something that native code cannot do. None: go on. Otherwise the wave is halted where it is."""
        state = self._diagnose(code, wave)
        if state is not None:
            set_field32(wave + L.WAVE_STATE, L.STATE_HALTED)
        return state

    def _diagnose(self, code: int, wave: int) -> RunState | None:
        pc = self._pc(wave)
        if code == L.LOOKUP:
            return self._translate(wave, pc)
        if code == L.MESSAGE:
            if self.executor.interrupt is not None:
                self.executor.interrupt(field32(wave + L.WAVE_STATUS_DATA))
            return None
        if code == L.FAULT:
            va = self.memory.get64(L.CTX_FAULT_VA)
            access = self.memory.get32(L.CTX_FAULT_ACCESS)
            if access == SWIZZLED_BUFFER:
                raise NotModelled(f"{self._text(pc)} at {pc:#x}: a swizzled buffer descriptor")
            return RunState(FAULT, pc, va=va, access=access & ~L.SCALAR)
        if code == L.TRAP:
            return RunState(TRAP, pc, trap=field32(wave + L.WAVE_STATUS_DATA))
        if code == L.HALT:
            return RunState(TRAP, pc, reason="the wave halted itself (s_sethalt)")
        if code == L.ILLEGAL:
            return self._illegal(pc)
        raise AssertionError(f"native code returned {code}")

    def _illegal(self, pc: int) -> RunState:
        assert self.program is not None
        reason = self.program.reasons.get(pc - self.dispatch.entry, "")
        if reason.endswith("is not modelled"):
            why = why_not_executed(self._text(pc).partition(" ")[0]) or "this use of the instruction has no semantics in the executor"
            raise NotModelled(f"executing {self._text(pc)} at {pc:#x}", read=reason, means=why)
        data = self.reader.read(pc, 8)
        words = tuple(int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data) - 3, 4))
        return RunState(ILLEGAL, pc, words=words, reason=reason)

    def _translate(self, wave: int, pc: int) -> RunState | None:
        key = field64(wave + L.WAVE_KEY)
        assert self.program is not None
        if pc % 4:
            return RunState(ILLEGAL, pc, reason="the program counter is not a multiple of 4")
        try:
            self.program.extend(key, self.reader)
        except MemoryFault as fault:
            return RunState(FAULT, pc, va=fault.va, access=EXEC)
        except UnknownInstruction as unknown:
            return RunState(ILLEGAL, pc, words=unknown.words, reason=unknown.what)
        self._use_table()
        return None

    # -- strict mode ----------------------------------------------------------------------------------------------------------------

    def _step_strict(self, limit: int) -> RunState:
        if self._rng is None:
            self._rng = random.Random(self.dispatch.seed)
        if self._strict_order is None:
            self._strict_order = list(range(self.dispatch.groups))
            self._rng.shuffle(self._strict_order)
        executed = 0
        while executed < limit:
            if not self._ready:
                for slot in range(self.slots):
                    if not self.memory.is_active(slot) and self._strict_order:
                        self.native.launch(self.ctx, slot, self._strict_order.pop())
                self._ready = self._ready_waves()
                if not self._ready:
                    return RunState(DONE)
            slot, wave = self._ready[int(self._rng.random() * len(self._ready))]
            used, state = self._one_instruction(slot, wave)
            executed += max(used, 1)
            if state is not None:
                return state
        return RunState(RUNNING)

    def _one_instruction(self, slot: int, wave: int) -> tuple[int, RunState | None]:
        """Lets one wave make one step; translating the code for it first is no step."""
        while True:
            self.memory.put64(L.CTX_BUDGET, 1)
            code = self.native.run_wave(self.ctx, wave)
            self.executor.raise_pending()
            used = (1 - self.memory.get64(L.CTX_BUDGET)) % (1 << 64)
            self.memory.put64(L.CTX_EXECUTED, self.instructions + used)
            if code in (L.END, L.BARRIER):
                set_field32(wave + L.WAVE_STATE, L.STATE_ENDED if code == L.END else L.STATE_BARRIER)
                self.native.settle(self.ctx, slot)
                self._ready = []
            elif code not in (L.BUDGET, L.SLEEP):
                state = self._attend(code, wave)
                if state is None and code == L.LOOKUP and not used:
                    continue
                return used, state
            return used, None

    def _ready_waves(self) -> list[tuple[int, int]]:
        found = []
        for slot in range(self.slots):
            if self.memory.is_active(slot):
                for index in range(self.dispatch.waves):
                    wave = self.memory.wave(slot, index)
                    if field32(wave + L.WAVE_STATE) == L.STATE_READY:
                        found.append((slot, wave))
        return found
