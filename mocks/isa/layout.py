"""Byte offsets inside the two structures that translated code works on: a wave's state and the context of a run.

Both are plain memory owned by Python (`executor.py`); translated code and the native helpers get pointers to them.
"""

from __future__ import annotations

# --- wave ---------------------------------------------------------------------------------------------------------------
WAVE_SGPR = 0  # 128 dwords by operand code: s0.., vcc 106, ttmp 108, m0 125, exec 126
WAVE_KEY = 512  # i64, where the wave continues: see `entry_key`
WAVE_MODE = 520  # i32, hardware register MODE
WAVE_SCC = 524  # i32, 0 or 1
WAVE_STATE = 528  # i32, one of STATE_*
WAVE_INDEX = 532  # i32, number of the wave in its group
WAVE_LDS = 536  # i64, host address of the group's LDS
WAVE_LDS_SIZE = 544  # i32, bytes
WAVE_STATUS_DATA = 548  # i32: trap number, message
WAVE_SCRATCH = 552  # i64, GPU address of the wave's scratch memory
WAVE_GROUP = 560  # 3 x i32, workgroup id
WAVE_SEED = 576  # i64, state of the wave's garbage generator
WAVE_VGPR = 1024  # rows of 32 dwords

VGPR_ROW = 128

STATE_READY, STATE_BARRIER, STATE_ENDED, STATE_HALTED = range(4)

# --- what a run of translated code ends with ------------------------------------------------------------------------------
END, BARRIER, BUDGET, LOOKUP, FAULT, TRAP, ILLEGAL, SLEEP, HALT, MESSAGE, IDLE = range(11)

# --- run context ----------------------------------------------------------------------------------------------------------
CTX_BUDGET = 0  # i64, instructions left before translated code returns
CTX_MISS = 8  # i64, native callback (va i64, access i32) -> i32, 0 for a fault
CTX_TLB = 16  # i64, host address of the TLB
CTX_FAULT_VA = 24  # i64
CTX_FAULT_ACCESS = 32  # i32
CTX_BOUNCED = 36  # i32, lanes whose data sits in the bounce buffer because the access crosses pages
CTX_BASE = 40  # i64, host address of lane 0's data when lanes are contiguous
CTX_SHARED_BASE = 48  # i64, flat aperture of LDS
CTX_PRIVATE_BASE = 56  # i64, flat aperture of scratch
CTX_CLOCK = 64  # i64, native callback () -> i64, ticks of 10 ns
CTX_ENTRIES = 72  # i64, host address of the table of translated entry points
CTX_ENTRIES_MASK = 80  # i64, number of slots - 1
CTX_USE_FULL = 88  # i32, 1 where code translated for EXEC = all ones may run
CTX_LDS_OUT_OF_RANGE = 92  # i32, count of LDS accesses outside the group's allocation
CTX_CODE_BASE = 96  # i64, GPU address that entry keys are relative to
CTX_SLICE = 104  # i64, instructions a wave may run before another one gets its turn
CTX_EXECUTED = 112  # i64, instructions executed so far
CTX_EPOCH = 120  # i64, epoch of the TLB, in place as part of its tags

CTX_POINTER = 256  # 32 x i64, host address of each lane's data
CTX_STRIDE = 512  # 32 x i32, distance of consecutive dwords of a lane
CTX_VA = 640  # 32 x i64, GPU address of each lane's data
CTX_TEMP = 896  # 128 bytes of scratch: a copied address register
CTX_BOUNCE = 1024  # 32 x 16 bytes
CTX_ZERO = 1536  # 64 bytes of zeros: what LDS loads out of range read
CTX_DUMP = 1600  # 64 bytes: where stores out of range go
CTX_SCALARS = 1664  # 16 dwords: a scalar load before it is committed
CTX_BYTE_POINTERS = 2048  # 32 x 16 x i64, host address of each byte of a bounced lane
CTX_SCHED = 6144  # scheduler, see rt_schedule.py
CTX_SIZE = 8192

# --- TLB: four tables (read, write, read and write, scalar read) of sets of entries (page number, host - GPU address) -------
TLB_TABLES = 4
TLB_SETS = 4096
TLB_WAYS = 4
TLB_ENTRY = 16
TLB_TABLE = TLB_SETS * TLB_WAYS * TLB_ENTRY
# A tag is a page number with the epoch in which it was put in above it: a new epoch empties the TLB.
TLB_EPOCH_SHIFT = 52
TLB_EPOCHS = 1 << 12
# Neighbouring pages use neighbouring sets; each run of TLB_SETS pages starts at another one, so that buffers at round addresses do
# not all meet in the same sets.
TLB_SET_BITS = 12
TLB_SPREAD = 0x9E5
PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT

READ, WRITE, EXEC = 1, 2, 4
SCALAR = 8  # with READ: by the scalar unit, which has a cache of its own

# --- entry keys: program counter relative to the code base (40 bits), float mode (16 bits), 1 bit "EXEC is all ones" ------
KEY_PC_BITS = 40
KEY_FULL = 1 << 56
MODE_MASK = 0x3FF
MODE_FP16_OVFL = 1 << 23


def tlb_set(page: int) -> int:
    return (page + (page >> TLB_SET_BITS) * TLB_SPREAD) % TLB_SETS


def static_mode(mode: int) -> int:
    """The bits of MODE that translation depends on: rounding, denormals, clamp, IEEE, f16 overflow."""
    return (mode & MODE_MASK) | (1 << 10 if mode & MODE_FP16_OVFL else 0)


def entry_key(relative_pc: int, mode_bits: int, full: bool) -> int:
    return (relative_pc & ((1 << KEY_PC_BITS) - 1)) | mode_bits << KEY_PC_BITS | (KEY_FULL if full else 0)


def key_pc(key: int) -> int:
    """Relative program counter of a key, sign-extended."""
    value = key & ((1 << KEY_PC_BITS) - 1)
    return value - ((value >> (KEY_PC_BITS - 1)) << KEY_PC_BITS)


def wave_size(vgprs: int) -> int:
    """Bytes of one wave's state."""
    return WAVE_VGPR + vgprs * VGPR_ROW

# --- scheduler, from CTX_SCHED ----------------------------------------------------------------------------------------------
SCHED_WAVES = CTX_SCHED  # i64, host address of the wave states: slot by slot, wave by wave
SCHED_WAVE_STRIDE = CTX_SCHED + 8  # i64
SCHED_SLOT_STRIDE = CTX_SCHED + 16  # i64
SCHED_LDS = CTX_SCHED + 24  # i64, host address of the slots' LDS
SCHED_LDS_STRIDE = CTX_SCHED + 32  # i64
SCHED_LDS_SIZE = CTX_SCHED + 40  # i32, bytes a group has
SCHED_SLOTS = CTX_SCHED + 44  # i32, groups that may be resident at once
SCHED_GROUP_WAVES = CTX_SCHED + 48  # i32
SCHED_SLOT = CTX_SCHED + 52  # i32, slot whose turn it is
SCHED_WAVE = CTX_SCHED + 56  # i32, wave of it to go on with
SCHED_NEXT_GROUP = CTX_SCHED + 64  # i64, linear number of the next group to launch
SCHED_GROUPS = CTX_SCHED + 72  # i64
SCHED_DONE = CTX_SCHED + 80  # i64, groups finished
SCHED_GRID = CTX_SCHED + 88  # 3 x i32, groups in x, y, z
SCHED_SIZE = CTX_SCHED + 100  # 3 x i32, work-items of a group in x, y, z
SCHED_THREADS = CTX_SCHED + 112  # i32, work-items of a group
SCHED_ID_SGPRS = CTX_SCHED + 116  # 4 x i32, SGPR that gets group id x, y, z, group info; -1 for none
SCHED_VGPRS = CTX_SCHED + 132  # i32
SCHED_COMPONENTS = CTX_SCHED + 136  # i32, work-item id components wanted, 1 to 3
SCHED_GARBAGE = CTX_SCHED + 144  # i64, host address of random bytes for fresh registers and LDS
SCHED_GARBAGE_MASK = CTX_SCHED + 152  # i64, where a fresh wave may start in them
SCHED_SGPRS = CTX_SCHED + 160  # i64, host address of 128 dwords: the user SGPRs, garbage behind
SCHED_USER_SGPRS = CTX_SCHED + 168  # i32
SCHED_ENTRY = CTX_SCHED + 176  # i64, entry key without the FULL bit
SCHED_MODE = CTX_SCHED + 184  # i32
SCHED_STATUS_WAVE = CTX_SCHED + 192  # i64, host address of the wave that the last return is about
SCHED_SCRATCH = CTX_SCHED + 200  # i64, GPU address of the scratch memory
SCHED_SCRATCH_STRIDE = CTX_SCHED + 208  # i64, bytes per wave
SCHED_ACTIVE = CTX_SCHED + 256  # one byte per slot: 1 while a group is in it
MAX_SLOTS = 64

GARBAGE_BYTES = 1 << 16  # random pool; a wave's registers are copied from a window that starts anywhere in it
ENTRY_SLOT = 16  # bytes of an entry-table slot: key, function
EMPTY_KEY = (1 << 64) - 1
