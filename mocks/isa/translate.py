"""Machine code to host code: finds the basic blocks reachable from an entry and writes them as one LLVM function, a unit.

A unit is translated for one program, one setting of the float mode per block and one of two cases of EXEC: all ones throughout (no
masking needed), or anything. It enters at any of its block heads, told by the wave's key, and returns one of the codes of
`layout.py` with the wave's memory up to date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from drivers.amd.isa import load
from mocks.isa import layout as L
from mocks.isa.context import Context, Unmodelled
from mocks.isa.decoder import decode
from mocks.isa.instruction import EXEC_HI, EXEC_LO, M0, VCC_LO, Instruction, UnknownInstruction
from mocks.isa.ir import Builder, Value
from mocks.isa.memory import emit_vector_memory
from mocks.isa.native import compile_function
from mocks.isa.packed import emit_packed
from mocks.isa.registers import RegisterOutOfRange, Registers
from mocks.isa.salu import emit_scalar
from mocks.isa.salu_special import emit_scalar_memory, program_address
from mocks.isa.valu import emit_vector

MAX_INSTRUCTIONS = 768  # a unit; what is beyond becomes a unit of its own when it is reached
MAX_BLOCK = 48  # longer blocks cost the host compiler more than they bring

Fetch = Callable[[int, int], bytes]  # (address, wanted bytes) -> up to that many bytes; MemoryFault where nothing can be fetched

NO_EFFECT = {
    "s_nop", "s_setkill", "s_set_inst_prefetch_distance", "s_clause", "s_delay_alu", "s_waitcnt_depctr", "s_waitcnt", "s_wait_idle", "s_wait_event",
    "s_wakeup", "s_setprio", "s_incperflevel", "s_decperflevel", "s_ttracedata", "s_ttracedata_imm", "s_icache_inv", "s_version",
    "s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_expcnt", "s_waitcnt_lgkmcnt",
    "s_cbranch_cdbgsys", "s_cbranch_cdbguser", "s_cbranch_cdbgsys_or_user", "s_cbranch_cdbgsys_and_user",
}  # fmt: skip
MESSAGE_INTERRUPT, MESSAGE_DEALLOC_VGPRS, MESSAGE_GS_ALLOC = 1, 3, 9
TRAP_DEBUG = 3
ENDS = {"endpgm", "branch", "branch_cond", "pc", "barrier", "trap"}


@dataclass(slots=True)
class Block:
    """Straight-line code. `leaves` is the reason the block's last instruction could not be followed by another one."""

    pc: int
    mode: int
    instructions: list[Instruction] = field(default_factory=list)
    next_mode: int = 0

    @property
    def next_pc(self) -> int:
        return self.instructions[-1].next_address


def writes_exec(instruction: Instruction) -> bool:
    if instruction.family in ("saveexec", "wrexec", "vcmpx", "vcmpx_class"):
        return True
    destinations = [d for part in instruction.parts for d in (part.dst, part.sdst) if d is not None]
    return any(d.code in (EXEC_LO, EXEC_HI) and d.kind.cls not in ("vgpr",) for d in destinations)


def mode_after(instruction: Instruction, mode: int) -> int | None:
    """Static float mode after an instruction; None when it is only known at run time."""
    value = instruction.fields.get("simm16", 0)
    if instruction.mnemonic == "s_round_mode":
        return (mode & ~0xF) | (value & 0xF)
    if instruction.mnemonic == "s_denorm_mode":
        return (mode & ~0xF0) | (value & 0xF) << 4
    if instruction.mnemonic in ("s_setreg_imm32_b32", "s_setreg_b32") and value & 63 == 1:
        return None
    return mode


def ends_block(instruction: Instruction, full: bool) -> bool:
    if instruction.mnemonic in NO_EFFECT:
        return False
    if instruction.family in ENDS or instruction.mnemonic in ("s_sleep", "s_sethalt", "s_sendmsg", "s_sendmsghalt", "s_code_end"):
        return instruction.mnemonic != "s_getpc_b64"
    return instruction.family in ("mode",) or instruction.mnemonic.startswith("s_setreg") or (full and writes_exec(instruction))


class Unit:
    """One translation. `keys` are the entry points it offers once compiled; `reasons` say why some addresses stop a wave."""

    def __init__(self, chip: str, fetch: Fetch, base: int, vgprs: int, full: bool, single_step: bool) -> None:
        self.chip = chip
        self.tables = load(chip)
        self.fetch = fetch
        self.base = base
        self.vgprs = vgprs
        self.full = full
        self.block_limit = 1 if single_step else MAX_BLOCK
        self.blocks: dict[tuple[int, int], Block] = {}
        self.reasons: dict[int, str] = {}
        self.instruction_count = 0
        self.deferred: list[str] = []
        self.b = Builder()
        self.c: Context

    # -- finding blocks ----------------------------------------------------------------------------------------------------

    def find_blocks(self, pc: int, mode: int) -> None:
        """All blocks reachable without an indirect jump, up to the size limit. The first instruction must be decodable."""
        decoded: dict[tuple[int, int], Instruction] = {}
        leaders = {(pc, mode)}
        pending = [(pc, mode)]
        first = True
        while pending:
            place = pending.pop()
            while place not in decoded and len(decoded) < MAX_INSTRUCTIONS:
                try:
                    instruction = decode(self.fetch(place[0], 20), 0, self.chip, place[0])
                except (UnknownInstruction, OSError, LookupError):
                    if first:
                        raise
                    break
                first = False
                decoded[place] = instruction
                targets = self._static_targets(instruction, place[1])
                leaders.update(targets)
                pending.extend(targets)
                if ends_block(instruction, self.full):
                    break
                place = (instruction.next_address, place[1])
        for leader in sorted(leaders):
            if leader in decoded:
                self._cut(leader, decoded, leaders)
        self.instruction_count = len(decoded)

    def _static_targets(self, instruction: Instruction, mode: int) -> list[tuple[int, int]]:
        """Block heads that follow an instruction which ends a block."""
        family = instruction.family
        if not ends_block(instruction, self.full) or family == "endpgm" or instruction.mnemonic == "s_code_end":
            return []
        if family == "branch":
            return [(instruction.branch_target, mode)]
        if family == "pc":
            return [(instruction.branch_target, mode)] if instruction.mnemonic == "s_call_b64" else []
        after = mode_after(instruction, mode)
        if after is None:
            return []
        targets = [(instruction.next_address, after)]
        if family == "branch_cond":
            targets.append((instruction.branch_target, mode))
        return targets

    def _cut(self, leader: tuple[int, int], decoded: dict[tuple[int, int], Instruction], leaders: set[tuple[int, int]]) -> None:
        """The block that starts at a leader; over-long ones are cut, which makes new leaders."""
        while leader not in self.blocks:
            pc, mode = leader
            block = Block(pc, mode, next_mode=mode)
            self.blocks[leader] = block
            place = leader
            while place in decoded and (place == leader or place not in leaders) and len(block.instructions) < self.block_limit:
                instruction = decoded[place]
                block.instructions.append(instruction)
                if ends_block(instruction, self.full):
                    block.next_mode = mode_after(instruction, mode) or 0
                    return
                place = (instruction.next_address, mode)
            if place not in decoded:
                return
            leader = place

    # -- writing code --------------------------------------------------------------------------------------------------------

    def key(self, pc: int, mode: int, full: bool | None = None) -> int:
        return L.entry_key(pc - self.base, mode, self.full if full is None else full)

    @property
    def keys(self) -> list[int]:
        return [self.key(pc, mode) for pc, mode in self.blocks]

    def write(self, name: str) -> str:
        """LLVM module text with one function `i32 name(wave, ctx)`."""
        b = self.b
        regs = Registers(b, Value(b, "%wave", "ptr", 1), self.vgprs, self.full)
        wave = regs.wave
        labels = {place: f"block{index}" for index, place in enumerate(self.blocks)}
        self.labels = labels
        key = wave.at(L.WAVE_KEY).load("i64")
        cases = " ".join(f"i64 {self.key(*place)}, label %{label}" for place, label in labels.items())
        b.line(f"switch i64 {key.ref}, label %unknown [ {cases} ]")
        b.label("unknown")
        b.line(f"ret i32 {L.IDLE}")
        for place, block in self.blocks.items():
            regs.reset()
            self.c = Context(self, b, regs, block.mode)
            b.label(labels[place])
            self._write_block(block)
        b.lines.extend(self.deferred)
        return b.declarations() + b.function(name, "i32", [("ptr noalias", "wave"), ("ptr noalias", "ctx")])

    def _write_block(self, block: Block) -> None:
        b, c = self.b, self.c
        self.block = block
        self.position = 0
        budget = c.ctx.at(L.CTX_BUDGET)
        left = budget.load("i64")
        self._leave_when(left.cmp("sle", 0), self.key(block.pc, block.mode), L.BUDGET)
        budget.store(left - len(block.instructions))
        for self.position, instruction in enumerate(block.instructions):
            try:
                if self._emit(instruction):
                    return
            except Unmodelled as missing:
                self._stop(instruction, L.ILLEGAL, f"{instruction.mnemonic}: {missing} is not modelled")
                return
            except RegisterOutOfRange as error:
                self._stop(instruction, L.ILLEGAL, str(error))
                return
        self._go(block.next_pc, block.next_mode)
        assert b.lines

    def _emit(self, instruction: Instruction) -> bool:
        """One instruction; True if it ended the block by itself."""
        fmt, c = instruction.format, self.c
        if instruction.mnemonic in NO_EFFECT:
            return False
        if fmt == "SOPP" or (instruction.family == "pc" and instruction.mnemonic != "s_getpc_b64"):
            return self._control(instruction)
        if instruction.mnemonic.startswith("s_setreg"):
            return self._setreg(instruction)
        if fmt in ("SOP1", "SOP2", "SOPC", "SOPK"):
            emit_scalar(c, instruction)
        elif fmt == "SMEM":
            emit_scalar_memory(c, instruction)
        elif fmt in ("VOP1", "VOP2", "VOP3", "VOP3SD", "VOPC", "VOPD"):
            emit_vector(c, instruction)
        elif fmt == "VOP3P":
            emit_packed(c, instruction)
        elif fmt in ("DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF"):
            emit_vector_memory(c, instruction)
        else:
            raise Unmodelled(instruction.mnemonic)
        return False

    # -- leaving a block --------------------------------------------------------------------------------------------------------

    def _deferred_exit(self, key: int, code: int, unused: int = 0) -> str:
        """A block at the end of the function that returns `code`; `unused` instructions go back to the budget."""
        label = self.b.fresh("exit")
        lines = [f"{label}:", f"%{label}k = getelementptr i8, ptr %wave, i64 {L.WAVE_KEY}", f"store i64 {key}, ptr %{label}k, align 8"]
        if unused:
            lines += [
                f"%{label}p = getelementptr i8, ptr %ctx, i64 {L.CTX_BUDGET}",
                f"%{label}b = load i64, ptr %{label}p, align 8",
                f"%{label}s = add i64 %{label}b, {unused}",
                f"store i64 %{label}s, ptr %{label}p, align 8",
            ]
        self.deferred += [*lines, f"ret i32 {code}"]
        return label

    def _leave_when(self, condition: Value, key: int, code: int) -> None:
        after = self.b.fresh("stay")
        self.b.branch(condition, self._deferred_exit(key, code), after)
        self.b.label(after)

    def fault_exit(self) -> str:
        """Label to go to when the current instruction faults; it counts as not executed."""
        instruction = self.block.instructions[self.position]
        return self._deferred_exit(self.key(instruction.address, self.block.mode), L.FAULT, len(self.block.instructions) - self.position)

    def _leave(self, key: int, code: int) -> None:
        self.c.regs.flush()
        self.b.br(self._deferred_exit(key, code))

    def _stop(self, instruction: Instruction, code: int, reason: str) -> None:
        """The wave stops at an instruction that is not carried out."""
        self.reasons[instruction.address - self.base] = reason
        unused = len(self.block.instructions) - self.position
        self.c.regs.flush()
        self.b.br(self._deferred_exit(self.key(instruction.address, self.block.mode), code, unused))

    def _target(self, pc: int, mode: int) -> str:
        label = self.labels.get((pc, mode))
        return label if label is not None else self._deferred_exit(self.key(pc, mode), L.LOOKUP)

    def _go(self, pc: int, mode: int) -> None:
        """Unconditionally to another block. Code for full EXEC is left when EXEC has changed."""
        regs = self.c.regs
        written = regs.s.get(EXEC_LO) if self.full else None
        regs.flush()
        if written is None:
            self.b.br(self._target(pc, mode))
            return
        masked = self._deferred_exit(self.key(pc, mode, full=False), L.LOOKUP)
        self.b.branch(written.eq(-1), self._target(pc, mode), masked)

    # -- control flow -------------------------------------------------------------------------------------------------------------

    def _control(self, instruction: Instruction) -> bool:
        c, name, mode = self.c, instruction.mnemonic, self.block.mode
        c.begin(instruction)
        following = self.key(instruction.next_address, mode)
        value = instruction.fields.get("simm16", 0)
        if instruction.family == "endpgm":
            self._leave(self.key(instruction.address, mode), L.END)
        elif instruction.family == "branch":
            self._go(instruction.branch_target, mode)
        elif instruction.family == "branch_cond":
            self._conditional(instruction)
        elif instruction.family == "pc":
            self._jump(instruction)
        elif name == "s_barrier":
            self._leave(following, L.BARRIER)
        elif name == "s_sleep":
            self._leave(following, L.SLEEP)
        elif name in ("s_round_mode", "s_denorm_mode"):
            register = c.wave.at(L.WAVE_MODE)
            shift = 0 if name == "s_round_mode" else 4
            register.store((register.load("i32") & ~(0xF << shift)) | (value & 0xF) << shift)
            return False
        elif name == "s_trap":
            if value == TRAP_DEBUG:
                return False
            c.wave.at(L.WAVE_STATUS_DATA).store(c.b.i32(value))
            self._leave(self.key(instruction.address, mode), L.TRAP)
        elif name == "s_sethalt":
            if value & 1 == 0:
                return False
            self._leave(following, L.HALT)
        elif name in ("s_sendmsg", "s_sendmsghalt"):
            return self._message(instruction, following)
        elif name == "s_code_end":
            self._stop(instruction, L.ILLEGAL, "execution ran past the end of the program into its padding")
        else:
            raise Unmodelled(name)
        return True

    def _conditional(self, instruction: Instruction) -> None:
        c, mode = self.c, self.block.mode
        kind = instruction.mnemonic.removeprefix("s_cbranch_")
        if kind.startswith("scc"):
            taken = c.regs.read_scc() if kind == "scc1" else ~c.regs.read_scc()
        elif kind.startswith("exec") and self.full:
            self._go(instruction.branch_target if kind == "execnz" else instruction.next_address, mode)
            return
        else:
            mask = c.regs.read_s(VCC_LO if kind.startswith("vcc") else EXEC_LO)
            taken = mask.eq(0) if kind.endswith("cz") else mask.ne(0)
        c.regs.flush()
        self.b.branch(taken, self._target(instruction.branch_target, mode), self._target(instruction.next_address, mode))

    def _jump(self, instruction: Instruction) -> None:
        """s_setpc, s_swappc, s_call: to an address only known when it happens, except for the call."""
        c, mode = self.c, self.block.mode
        if instruction.mnemonic == "s_rfe_b64":
            raise Unmodelled("s_rfe_b64")
        target = None if instruction.mnemonic == "s_call_b64" else c.scalar64(instruction.src[0])
        if instruction.dst is not None:
            c.regs.write_s64(instruction.dst.code, program_address(c, instruction.next_address))
        if target is None:
            self._go(instruction.branch_target, mode)
            return
        relative = target - c.ctx.at(L.CTX_CODE_BASE).load("i64")
        c.regs.flush()
        fixed = L.entry_key(0, mode, self.full)
        c.wave.at(L.WAVE_KEY).store((relative & ((1 << L.KEY_PC_BITS) - 1)) | fixed)
        self.b.line(f"ret i32 {L.LOOKUP}")

    def _message(self, instruction: Instruction, following: int) -> bool:
        message = instruction.fields["simm16"]
        halting = instruction.mnemonic == "s_sendmsghalt"
        if message in (MESSAGE_DEALLOC_VGPRS, MESSAGE_GS_ALLOC) and not halting:
            return False
        if message != MESSAGE_INTERRUPT:
            raise Unmodelled(f"message {message}")
        self.c.wave.at(L.WAVE_STATUS_DATA).store(self.c.regs.read_s(M0) & 0xFFFFFF)
        self._leave(following, L.MESSAGE)
        return True

    def _setreg(self, instruction: Instruction) -> bool:
        """Only MODE can be written from a kernel; the key that the wave goes on with follows from its new value."""
        c = self.c
        c.begin(instruction)
        selector = instruction.fields["simm16"]
        number, offset, size = selector & 63, selector >> 6 & 31, (selector >> 11) + 1
        if number != 1:
            return False
        mask = (((1 << size) - 1) << offset) & 0xFFFFFFFF
        new = c.b.i32(instruction.literal or 0) if instruction.mnemonic == "s_setreg_imm32_b32" else c.regs.read_s(instruction.src[0].code)
        register = c.wave.at(L.WAVE_MODE)
        mode = (register.load("i32") & ~mask) | (new << offset) & mask
        register.store(mode)
        c.regs.flush()
        bits = (mode & L.MODE_MASK) | ((mode & L.MODE_FP16_OVFL).ne(0).zext("i32") << 10)
        fixed = L.entry_key(instruction.next_address - self.base, 0, self.full)
        c.wave.at(L.WAVE_KEY).store(bits.zext("i64") << L.KEY_PC_BITS | fixed)
        self.b.line(f"ret i32 {L.LOOKUP}")
        return True


@dataclass(frozen=True, slots=True)
class Translation:
    """address: of the native function, alive as long as `owner` is. keys: the entry points it offers."""

    address: int
    owner: object
    keys: tuple[int, ...]
    reasons: dict[int, str]
    instructions: int


def translate(chip: str, fetch: Fetch, base: int, vgprs: int, key: int, single_step: bool = False, opt: int = 0) -> Translation:
    """Translates the unit that starts at an entry key. UnknownInstruction or the fetch's own error when there is no code there.

    opt is LLVM's effort: registers are managed here already, so more than 0 doubles the time and gains nothing measurable.
    """
    full = bool(key & L.KEY_FULL)
    unit = Unit(chip, fetch, base, vgprs, full, single_step)
    unit.find_blocks(base + L.key_pc(key), key >> L.KEY_PC_BITS & 0xFFFF)
    name = f"unit_{key:x}"
    text = unit.write(name)
    address, owner = compile_function(text, name, opt)
    return Translation(address, owner, tuple(unit.keys), unit.reasons, unit.instruction_count)


__all__ = ["Translation", "Unit", "translate"]
