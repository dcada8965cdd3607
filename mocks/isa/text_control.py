"""Text of SOPK and SOPP instructions: waits, delays, messages, hardware registers."""

from __future__ import annotations

from drivers.amd.isa import load
from mocks.isa.instruction import Instruction

DELAYS = {
    **{n: f"VALU_DEP_{n}" for n in range(1, 5)},
    **{n: f"TRANS32_DEP_{n - 4}" for n in range(5, 8)},
    8: "FMA_ACCUM_CYCLE_1",
    **{n: f"SALU_CYCLE_{n - 8}" for n in range(9, 12)},
}
INVALID_SKIP = "/* invalid instskip value */"
INVALID_DELAY = "/* invalid instid value */"
SKIPS = {0: "SAME", 1: "NEXT", 2: "SKIP_1", 3: "SKIP_2", 4: "SKIP_3", 5: "SKIP_4"}
# (name, lsb, bits) of s_waitcnt_depctr in the order LLVM shows them; a field of all ones waits for nothing.
DEPCTR = (("hold_cnt", 7, 1), ("sa_sdst", 0, 1), ("va_vdst", 12, 4), ("va_sdst", 9, 3), ("va_ssrc", 8, 1), ("va_vcc", 1, 1), ("vm_vsrc", 2, 3))
DECIMAL = {"s_nop", "s_setkill", "s_sethalt", "s_sleep", "s_setprio", "s_trap", "s_denorm_mode", "s_incperflevel", "s_decperflevel"}


def delay_alu(value: int) -> str:
    first, skip, second = value & 15, value >> 4 & 7, value >> 7 & 15
    parts = []
    if first:
        parts.append(f"instid0({DELAYS.get(first, INVALID_DELAY)})")
    if skip:
        parts.append(f"instskip({SKIPS.get(skip, INVALID_SKIP)})")
    if second:
        parts.append(f"instid1({DELAYS.get(second, INVALID_DELAY)})")
    return " | ".join(parts) or "0"


def waitcnt(value: int) -> str:
    counters = (("vmcnt", value >> 10 & 63, 63), ("expcnt", value & 7, 7), ("lgkmcnt", value >> 4 & 63, 63))
    shown = [f"{name}({count})" for name, count, top in counters if count != top]
    return " ".join(shown or [f"{name}({count})" for name, count, _ in counters])


def depctr(value: int) -> str:
    shown = [(f"depctr_{name}", value >> lsb & ((1 << bits) - 1), (1 << bits) - 1) for name, lsb, bits in DEPCTR]
    used = sum(((1 << bits) - 1) << lsb for _, lsb, bits in DEPCTR)
    if value | used != 0xFFFF and value & ~used & 0xFFFF:
        return f"{value:#x}"
    parts = [f"{name}({count})" for name, count, top in shown if count != top]
    return " ".join(parts or [f"{name}({count})" for name, count, _ in shown])


def sendmsg(value: int) -> str:
    message, operation, stream = value & 15, value >> 4 & 7, value >> 8 & 3
    name = load("gfx1100").messages.get(value)
    return f"sendmsg({name})" if name else f"sendmsg({message}, {operation}, {stream})"


def sendmsg_rtn(value: int) -> str:
    return f"sendmsg({load('gfx1100').messages_rtn.get(value, value)})"


def hwreg(value: int) -> str:
    register, offset, size = value & 63, value >> 6 & 31, (value >> 11 & 31) + 1
    name = load("gfx1100").hwregs.get(register, str(register))
    return f"hwreg({name})" if (offset, size) == (0, 32) else f"hwreg({name}, {offset}, {size})"


def small_decimal(value: int) -> str:
    """Small numbers are shown in decimal, others in hexadecimal."""
    return str(value) if value <= 64 else f"{value:#x}"


def render_sopp(instruction: Instruction) -> str:
    name = instruction.opcode.printed
    if not instruction.src:
        return f"{name} {instruction.fields['simm16']}" if name == "s_endpgm" and instruction.fields["simm16"] else name
    kind = instruction.src[0].kind
    value = instruction.fields["simm16"]
    if kind.cls == "delay":
        shown = delay_alu(value)
    elif kind.cls == "waitcnt":
        shown = waitcnt(value)
    elif kind.cls == "depctr":
        shown = depctr(value)
    elif kind.cls == "sendmsg":
        shown = sendmsg(value)
    elif kind.cls == "label16":
        shown = str(value)
    elif name in DECIMAL:
        shown = small_decimal(value)
    else:
        shown = f"{value:#x}"
    return f"{name} {shown}"


def render_sopk(instruction: Instruction) -> str:
    from mocks.isa.text import scalar

    name = instruction.opcode.printed
    value = instruction.fields["simm16"]
    pair = instruction.opcode.dst is not None and instruction.opcode.dst.dwords == 2
    register = scalar(instruction.fields["sdst"], 2 if pair else 1)
    if name == "s_getreg_b32":
        return f"{name} {register}, {hwreg(value)}"
    if name == "s_setreg_b32":
        return f"{name} {hwreg(value)}, {register}"
    if name == "s_setreg_imm32_b32":
        return f"{name} {hwreg(value)}, {_setreg_value(instruction.literal or 0)}"
    if name == "s_version":
        return f"{name} {VERSIONS.get(value, value if value < 256 else hex(value))}"
    if name in ("s_call_b64", "s_subvector_loop_begin", "s_subvector_loop_end"):
        return f"{name} {register}, {value}"
    return f"{name} {register}, {value:#x}"


VERSIONS = {0: "UC_VERSION_GFX7", 4: "UC_VERSION_GFX10", 6: "UC_VERSION_GFX11", 9: "UC_VERSION_GFX12"}


def _setreg_value(value: int) -> str:
    return f"{value:#x}"
