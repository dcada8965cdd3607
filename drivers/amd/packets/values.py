"""Named values of packet fields (PM4 gfx11, SDMA 6) and the register spaces that packets reach. Pure data."""

from __future__ import annotations

from enum import IntEnum, IntFlag

SH_REG_BASE = 0x2C00
SH_REG_END = 0x3000
"""dword registers that SET_SH_REG reaches: base inclusive, end exclusive"""
UCONFIG_REG_BASE = 0xC000
UCONFIG_REG_END = 0x1BFFF
"""dword registers that SET_UCONFIG_REG reaches"""

MAX_IB_DWORDS = (1 << 20) - 1
"""largest indirect buffer, PM4 and SDMA"""
MAX_SDMA_COPY = 1 << 30
"""bytes that one linear copy of SDMA 5 and later moves"""


class Compare(IntEnum):
    """WAIT_REG_MEM.function and POLL_REGMEM.func, on unsigned 32-bit (polled & mask)"""

    ALWAYS = 0
    LESS = 1
    LESS_EQUAL = 2
    EQUAL = 3
    NOT_EQUAL = 4
    GREATER_EQUAL = 5
    GREATER = 6


class WaitSpace(IntEnum):
    """WAIT_REG_MEM.mem_space"""

    REGISTER = 0
    MEMORY = 1


class WaitOperation(IntEnum):
    """WAIT_REG_MEM.operation"""

    WAIT = 0
    WRITE_THEN_WAIT = 1
    PREEMPTABLE_WAIT = 3


class Event(IntEnum):
    """event_type of EVENT_WRITE and RELEASE_MEM"""

    CS_PARTIAL_FLUSH = 0x07
    CACHE_FLUSH_AND_INV_TS = 0x14
    BOTTOM_OF_PIPE_TS = 0x28
    THREAD_TRACE_START = 0x33
    THREAD_TRACE_STOP = 0x34
    THREAD_TRACE_MARKER = 0x35
    THREAD_TRACE_FINISH = 0x37


EVENT_INDEX_PARTIAL_FLUSH = 4
EVENT_INDEX_END_OF_PIPE = 5


class DataSel(IntEnum):
    """RELEASE_MEM.data_sel: what is stored"""

    NONE = 0
    LOW32 = 1
    DATA64 = 2
    GPU_CLOCK = 3


class IntSel(IntEnum):
    """RELEASE_MEM.int_sel"""

    NONE = 0
    INTERRUPT_ONLY = 1
    INTERRUPT_AFTER_CONFIRM = 2
    DATA_AFTER_CONFIRM = 3


class Gcr(IntFlag):
    """ACQUIRE_MEM dword 7 (GCR_CNTL), one name a cache; invalidate and write back where it can do both"""

    GLI = 0x0001
    GLM = 0x0030
    GLK = 0x00C0
    GLV = 0x0100
    GL1 = 0x0200
    GL2 = 0xC000


class Initiator(IntFlag):
    """DISPATCH_DIRECT dword 4"""

    COMPUTE_SHADER_EN = 1 << 0
    FORCE_START_AT_000 = 1 << 2
    USE_THREAD_DIMENSIONS = 1 << 5
    CS_W32_EN = 1 << 15


class ShReg(IntEnum):
    """absolute dword numbers of the compute registers that a dispatch sets"""

    COMPUTE_DISPATCH_INITIATOR = 0x2E00
    COMPUTE_DIM_X = 0x2E01
    COMPUTE_START_X = 0x2E04
    COMPUTE_NUM_THREAD_X = 0x2E07
    COMPUTE_PIPELINESTAT_ENABLE = 0x2E0A
    COMPUTE_PERFCOUNT_ENABLE = 0x2E0B
    COMPUTE_PGM_LO = 0x2E0C
    COMPUTE_DISPATCH_SCRATCH_BASE_LO = 0x2E10
    COMPUTE_PGM_RSRC1 = 0x2E12
    COMPUTE_PGM_RSRC2 = 0x2E13
    COMPUTE_RESOURCE_LIMITS = 0x2E15
    COMPUTE_TMPRING_SIZE = 0x2E18
    COMPUTE_RESTART_X = 0x2E1B
    COMPUTE_PGM_RSRC3 = 0x2E28
    COMPUTE_USER_DATA_0 = 0x2E40


class SdmaMtype(IntEnum):
    """FENCE.mtype"""

    UNCACHED = 3


SDMA_RETRY_FOREVER = 0xFFF
"""POLL_REGMEM.retry_count"""
