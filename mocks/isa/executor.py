"""Runs dispatches of machine code: `Executor(port).start(dispatch)` gives a `Run`, whose `step` lets waves execute for a while.

Normally whole groups run natively one after another. In strict mode every instruction is a step of its own and a seeded order
decides which resident wave makes it.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from hw.errors import NotModelled, NotSupported
from mocks.isa import layout as L
from mocks.isa import rt_schedule
from mocks.isa.decoder import decode
from mocks.isa.instruction import UnknownInstruction
from mocks.isa.port import EXEC, MemoryFault, MemoryPort
from mocks.isa.program import CodeReader, Program, find_program
from mocks.isa.rt_memory import SWIZZLED_BUFFER
from mocks.isa.tlb import Tlb

RUNNING, DONE, FAULT, TRAP, ILLEGAL = "running", "done", "fault", "trap", "illegal"

CLOCK = ctypes.CFUNCTYPE(ctypes.c_int64)
DRIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64)
RUN_WAVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64)
LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64)
SETTLE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_int32)

SLICE = 200_000  # instructions a wave may run before waves of other groups get a turn
RESIDENT_GROUPS = 8  # how many groups may be in progress at once
STRICT_GROUPS = 4
LDS_LIMIT = 64 * 1024  # bytes a group can address
MAX_GROUP = 1024  # work-items
DEFAULT_MODE = 0x3F0  # denormals kept, DX10_CLAMP, IEEE
SHARED_APERTURE, PRIVATE_APERTURE = 0x0001_0000_0000_0000, 0x0002_0000_0000_0000

STATE_NAMES = {L.STATE_READY: "ready", L.STATE_BARRIER: "at barrier", L.STATE_ENDED: "ended", L.STATE_HALTED: "halted"}


KINDS_OF_GARBAGE = 16


@lru_cache(maxsize=2 * KINDS_OF_GARBAGE)
def _garbage(seed: int, size: int) -> np.ndarray:
    """What registers and LDS hold before anybody wrote them; only read from."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def mode_from_rsrc1(rsrc1: int) -> int:
    """MODE at wave launch from COMPUTE_PGM_RSRC1: rounding, denormals, DX10_CLAMP, IEEE, FP16_OVFL."""
    return (rsrc1 >> 12 & 0xFF) | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9 | (rsrc1 >> 26 & 1) << 23


def vgprs_from_rsrc1(rsrc1: int) -> int:
    """VGPRs of a wave32 from COMPUTE_PGM_RSRC1: granules of 8, minus one, in bits 5:0."""
    return min(((rsrc1 & 0x3F) + 1) * 8, 256)


@dataclass(slots=True)
class Dispatch:
    """Everything wave launch needs.

    entry: GPU address of the first instruction, 256-byte aligned. group_size in work-items, grid in groups.
    user_sgprs: values of s0.. ; the enabled group ids (x, y, z) and the group info word follow in the next SGPRs.
    workitem_components: 1 to 3, how many of x, y, z are packed into v0 (10 bits each).
    vgprs: registers per lane. lds_bytes: LDS of a group. mode: initial MODE register.
    scratch_base: GPU address of scratch memory; scratch_wave_bytes: its bytes per wave (32 lanes interleaved by dword);
    scratch_waves: how many waves it has room for.
    shared_base, private_base: flat apertures. seed: of uninitialised registers and LDS, and of the order in strict mode.
    """

    entry: int
    group_size: tuple[int, int, int]
    grid: tuple[int, int, int]
    user_sgprs: list[int] = field(default_factory=list)
    group_ids: tuple[bool, bool, bool] = (True, False, False)
    group_info: bool = False
    workitem_components: int = 1
    vgprs: int = 256
    lds_bytes: int = 0
    scratch_base: int = 0
    scratch_wave_bytes: int = 0
    scratch_waves: int = 0
    mode: int = DEFAULT_MODE
    wave32: bool = True
    seed: int = 0
    shared_base: int = SHARED_APERTURE
    private_base: int = PRIVATE_APERTURE
    arch: str = "gfx1100"

    @property
    def threads(self) -> int:
        return self.group_size[0] * self.group_size[1] * self.group_size[2]

    @property
    def waves(self) -> int:
        """Waves of one group."""
        return -(-self.threads // 32)

    @property
    def groups(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class RunState:
    """What a step ended with. Anything but running and done is final: the waves stay where they are.

    va, access: of a memory fault (access bits of the port). words: the dwords at pc for an illegal instruction. trap: its number.
    """

    kind: str
    pc: int = 0
    va: int = 0
    access: int = 0
    words: tuple[int, ...] = ()
    trap: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WaveReport:
    """Where one resident wave is."""

    group: tuple[int, int, int]
    wave: int
    pc: int
    exec_mask: int
    status: str
    instruction: str


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
        self.clock = CLOCK(clock or (lambda: time.monotonic_ns() // 10))

    def start(self, dispatch: Dispatch) -> Run:
        """Prepares a dispatch; nothing is executed yet. NotSupported for what the executor cannot do (wave64)."""
        if not dispatch.wave32:
            raise NotSupported("executing wave64 code", means="the translating executor models 32-lane waves only", remedy="compile the kernel for wave32")
        if dispatch.entry % 256:
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
        self.rng = random.Random(dispatch.seed)
        self.slots = self._slots()
        self.context = np.zeros(L.CTX_SIZE + 64, dtype=np.uint8)
        self.ctx = (self.context.ctypes.data + 63) & -64
        self._lay_out()
        self.drive = DRIVE(rt_schedule.drive())
        self.run_wave = RUN_WAVE(rt_schedule.run_wave())
        self.launch = LAUNCH(rt_schedule.launch_group())
        self.settle = SETTLE(rt_schedule.settle_group())
        self._strict_order: list[int] | None = None

    # -- set-up --------------------------------------------------------------------------------------------------------------

    def _slots(self) -> int:
        wanted = STRICT_GROUPS if self.strict else RESIDENT_GROUPS
        d = self.dispatch
        if d.scratch_wave_bytes:
            wanted = min(wanted, d.scratch_waves // d.waves)
            if wanted < 1:
                raise NotModelled(f"{d.waves} waves of a group with room for {d.scratch_waves} in scratch memory", means="COMPUTE_TMPRING_SIZE is too small for one group")
        return max(1, min(wanted, d.groups))

    def _lay_out(self) -> None:
        d = self.dispatch
        stride = -(-L.wave_size(d.vgprs) // 64) * 64
        lds_stride = -(-max(d.lds_bytes, 1) // 64) * 64
        self.wave_stride, self.slot_stride = stride, stride * d.waves
        self.memory = mmap.mmap(-1, self.slots * (self.slot_stride + lds_stride) + 64)
        self._view = np.frombuffer(self.memory, dtype=np.uint8)
        self.waves = (self._view.ctypes.data + 63) & -64
        lds = self.waves + self.slots * self.slot_stride
        window = L.GARBAGE_BYTES - 64
        self.garbage = _garbage(d.seed % KINDS_OF_GARBAGE, L.GARBAGE_BYTES + max(L.VGPR_ROW * d.vgprs, lds_stride) + 64)
        garbage = (self.garbage.ctypes.data + 63) & -64
        self.sgprs = np.zeros(160, dtype=np.uint32)
        users = self.sgprs.ctypes.data + (-self.sgprs.ctypes.data % 64)
        for index, value in enumerate(d.user_sgprs):
            ctypes.c_uint32.from_address(users + 4 * index).value = value & 0xFFFFFFFF
        following = len(d.user_sgprs)
        registers = []
        for wanted in (*d.group_ids, d.group_info):
            registers.append(following if wanted else -1)
            following += bool(wanted)
        executor = self.executor
        for offset, number in (
            (L.CTX_MISS, ctypes.cast(executor.tlb.callback, ctypes.c_void_p).value or 0),
            (L.CTX_CLOCK, ctypes.cast(executor.clock, ctypes.c_void_p).value or 0),
            (L.CTX_TLB, executor.tlb.address),
            (L.CTX_SHARED_BASE, d.shared_base),
            (L.CTX_PRIVATE_BASE, d.private_base),
            (L.CTX_CODE_BASE, d.entry),
            (L.CTX_SLICE, SLICE),
            (L.SCHED_WAVES, self.waves),
            (L.SCHED_WAVE_STRIDE, stride),
            (L.SCHED_SLOT_STRIDE, self.slot_stride),
            (L.SCHED_LDS, lds),
            (L.SCHED_LDS_STRIDE, lds_stride),
            (L.SCHED_GROUPS, d.groups),
            (L.SCHED_GARBAGE, garbage),
            (L.SCHED_GARBAGE_MASK, window),
            (L.SCHED_SGPRS, users),
            (L.SCHED_ENTRY, L.entry_key(0, L.static_mode(d.mode), False)),
            (L.SCHED_SCRATCH, d.scratch_base),
            (L.SCHED_SCRATCH_STRIDE, d.scratch_wave_bytes),
        ):
            self._put64(offset, number)
        for offset, number in (
            (L.CTX_USE_FULL, int(not self.strict)),
            (L.SCHED_LDS_SIZE, d.lds_bytes),
            (L.SCHED_SLOTS, self.slots),
            (L.SCHED_GROUP_WAVES, d.waves),
            (L.SCHED_THREADS, d.threads),
            (L.SCHED_VGPRS, d.vgprs),
            (L.SCHED_COMPONENTS, d.workitem_components),
            (L.SCHED_USER_SGPRS, len(d.user_sgprs)),
            (L.SCHED_MODE, d.mode),
            *((L.SCHED_GRID + 4 * k, d.grid[k]) for k in range(3)),
            *((L.SCHED_SIZE + 4 * k, d.group_size[k]) for k in range(3)),
            *((L.SCHED_ID_SGPRS + 4 * k, registers[k]) for k in range(4)),
        ):
            self._put32(offset, number)

    def _put64(self, offset: int, value: int) -> None:
        ctypes.c_uint64.from_address(self.ctx + offset).value = value % (1 << 64)

    def _get64(self, offset: int) -> int:
        return int(ctypes.c_uint64.from_address(self.ctx + offset).value)

    def _put32(self, offset: int, value: int) -> None:
        ctypes.c_uint32.from_address(self.ctx + offset).value = value % (1 << 32)

    # -- what a caller looks at -------------------------------------------------------------------------------------------------

    @property
    def instructions(self) -> int:
        return self._get64(L.CTX_EXECUTED)

    @property
    def groups(self) -> int:
        return self.dispatch.groups

    @property
    def groups_done(self) -> int:
        return self._get64(L.SCHED_DONE)

    @property
    def lds_out_of_range(self) -> int:
        """LDS accesses beyond the group's allocation (they read 0 and store nothing)."""
        return int(ctypes.c_uint32.from_address(self.ctx + L.CTX_LDS_OUT_OF_RANGE).value)

    def waves_state(self) -> list[WaveReport]:
        """Every wave of the groups in progress."""
        reports = []
        for slot in range(self.slots):
            if not ctypes.c_uint8.from_address(self.ctx + L.SCHED_ACTIVE + slot).value:
                continue
            for index in range(self.dispatch.waves):
                wave = self.waves + slot * self.slot_stride + index * self.wave_stride
                pc = self._pc(wave)
                group = tuple(ctypes.c_uint32.from_address(wave + L.WAVE_GROUP + 4 * k).value for k in range(3))
                status = STATE_NAMES[ctypes.c_uint32.from_address(wave + L.WAVE_STATE).value]
                exec_mask = ctypes.c_uint32.from_address(wave + L.WAVE_SGPR + 4 * 126).value
                reports.append(WaveReport(group, index, pc, exec_mask, status, self._text(pc)))  # type: ignore[arg-type]
        return reports

    def _text(self, pc: int) -> str:
        try:
            return decode(self.reader.read(pc, 20), 0, self.dispatch.arch, pc).text
        except (UnknownInstruction, MemoryFault) as error:
            return f"({error})"

    def _pc(self, wave: int) -> int:
        return self.dispatch.entry + L.key_pc(ctypes.c_uint64.from_address(wave + L.WAVE_KEY).value)

    def register_s(self, slot: int, wave: int, code: int) -> int:
        """A scalar register of a resident wave, by operand code."""
        return int(ctypes.c_uint32.from_address(self.waves + slot * self.slot_stride + wave * self.wave_stride + L.WAVE_SGPR + 4 * code).value)

    # -- running ----------------------------------------------------------------------------------------------------------------

    def step(self, max_instructions: int) -> RunState:
        """Lets waves execute about that many instructions (whole blocks), or until the dispatch is done or cannot go on.

        NotModelled when a wave reaches an instruction that is known but has no model.
        """
        if self.final is not None:
            return self.final
        self.executor.tlb.check_generation()
        self.reader.extents.clear()
        self._check_program()
        state = self._step_strict(max_instructions) if self.strict else self._step_native(max_instructions)
        if state.kind != RUNNING:
            self.final = state
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
        self._put64(L.CTX_ENTRIES, int(self.program.table.ctypes.data))
        self._put64(L.CTX_ENTRIES_MASK, len(self.program.table) - 1)

    def _step_native(self, limit: int) -> RunState:
        target = self.instructions + limit
        while True:
            left = target - self.instructions
            if left <= 0:
                return RunState(RUNNING)
            code = self.drive(self.ctx, left)
            if code == L.BUDGET:
                return RunState(RUNNING)
            if code == L.END:
                return RunState(DONE)
            state = self._attend(code, self._get64(L.SCHED_STATUS_WAVE))
            if state is not None:
                return state

    def _attend(self, code: int, wave: int) -> RunState | None:
        """A wave needs something that native code cannot do. None: go on."""
        if self.executor.tlb.error is not None:
            error, self.executor.tlb.error = self.executor.tlb.error, None
            raise error
        pc = self._pc(wave)
        if code == L.LOOKUP:
            return self._translate(wave, pc)
        if code == L.MESSAGE:
            if self.executor.interrupt is not None:
                self.executor.interrupt(int(ctypes.c_uint32.from_address(wave + L.WAVE_STATUS_DATA).value))
            return None
        if code == L.FAULT:
            va = self._get64(L.CTX_FAULT_VA)
            access = int(ctypes.c_uint32.from_address(self.ctx + L.CTX_FAULT_ACCESS).value)
            if access == SWIZZLED_BUFFER:
                raise NotModelled(f"{self._text(pc)} at {pc:#x}: a swizzled buffer descriptor")
            return RunState(FAULT, pc, va=va, access=access & ~L.SCALAR)
        if code == L.TRAP:
            return RunState(TRAP, pc, trap=int(ctypes.c_uint32.from_address(wave + L.WAVE_STATUS_DATA).value))
        if code == L.HALT:
            return RunState(TRAP, pc, reason="the wave halted itself (s_sethalt)")
        if code == L.ILLEGAL:
            return self._illegal(pc)
        raise AssertionError(f"native code returned {code}")

    def _illegal(self, pc: int) -> RunState:
        assert self.program is not None
        reason = self.program.reasons.get(pc - self.dispatch.entry, "")
        if reason.endswith("is not modelled"):
            raise NotModelled(f"executing {self._text(pc)} at {pc:#x}", read=reason, means="the executor has no semantics for this instruction")
        data = self.reader.read(pc, 8)
        words = tuple(int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data) - 3, 4))
        return RunState(ILLEGAL, pc, words=words, reason=reason)

    def _translate(self, wave: int, pc: int) -> RunState | None:
        key = int(ctypes.c_uint64.from_address(wave + L.WAVE_KEY).value)
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
        if self._strict_order is None:
            self._strict_order = list(range(self.dispatch.groups))
            self.rng.shuffle(self._strict_order)
            self._strict_order.reverse()
        executed = 0
        while executed < limit:
            for slot in range(self.slots):
                if not self._is_active(slot) and self._strict_order:
                    self.launch(self.ctx, slot, self._strict_order.pop())
            ready = self._ready_waves()
            if not ready:
                return RunState(DONE)
            slot, wave = ready[self.rng.randrange(len(ready))]
            used, state = self._one_instruction(slot, wave)
            executed += max(used, 1)
            if state is not None:
                return state
        return RunState(RUNNING)

    def _one_instruction(self, slot: int, wave: int) -> tuple[int, RunState | None]:
        """Lets one wave make one step; translating the code for it first is no step."""
        while True:
            self._put64(L.CTX_BUDGET, 1)
            code = self.run_wave(self.ctx, wave)
            used = 1 - ctypes.c_int64.from_address(self.ctx + L.CTX_BUDGET).value
            self._put64(L.CTX_EXECUTED, self.instructions + used)
            if code in (L.END, L.BARRIER):
                ctypes.c_uint32.from_address(wave + L.WAVE_STATE).value = L.STATE_ENDED if code == L.END else L.STATE_BARRIER
                self.settle(self.ctx, slot)
            elif code not in (L.BUDGET, L.SLEEP):
                state = self._attend(code, wave)
                if state is None and code == L.LOOKUP and not used:
                    continue
                return used, state
            return used, None

    def _is_active(self, slot: int) -> bool:
        return bool(ctypes.c_uint8.from_address(self.ctx + L.SCHED_ACTIVE + slot).value)

    def _ready_waves(self) -> list[tuple[int, int]]:
        found = []
        for slot in range(self.slots):
            if self._is_active(slot):
                for index in range(self.dispatch.waves):
                    wave = self.waves + slot * self.slot_stride + index * self.wave_stride
                    if ctypes.c_uint32.from_address(wave + L.WAVE_STATE).value == L.STATE_READY:
                        found.append((slot, wave))
        return found
