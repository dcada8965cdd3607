"""PM4 packets of a gfx11 compute ring: the words of each operation, and the queue that records them.

Word sequences: gfx11 columns of the packet tables; what each is for is said at its method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from drivers.amd.packets import pm4, pm4_header
from drivers.amd.packets.values import (
    EVENT_INDEX_END_OF_PIPE,
    EVENT_INDEX_PARTIAL_FLUSH,
    MAX_IB_DWORDS,
    SH_REG_BASE,
    SH_REG_END,
    UCONFIG_REG_BASE,
    UCONFIG_REG_END,
    Compare,
    DataSel,
    Event,
    Gcr,
    Initiator,
    IntSel,
    ShReg,
    WaitOperation,
    WaitSpace,
)
from drivers.queue.builder import PacketError, Queue, Submitter
from drivers.queue.signals import TIMESTAMP, Signal
from drivers.queue.symbols import Operand, high32, low32

_P = pm4("gfx11")
_WAIT = _P["WAIT_REG_MEM"]
_RELEASE = _P["RELEASE_MEM"]

ALL_ONES = 0xFFFFFFFF
POLL_INTERVAL = 4
"""WAIT_REG_MEM poll interval; any small number does"""
HDP_ALL_CLIENTS = ALL_ONES
"""request bits of the HDP flush: every engine's, so that the same packet serves every queue"""

WAIT_MEMORY_GE = _WAIT.word(1, function=Compare.GREATER_EQUAL, mem_space=WaitSpace.MEMORY)
WAIT_MEMORY_EQ = _WAIT.word(1, function=Compare.EQUAL, mem_space=WaitSpace.MEMORY)
WRITE_THEN_WAIT_GE = _WAIT.word(1, function=Compare.GREATER_EQUAL, operation=WaitOperation.WRITE_THEN_WAIT)

_END_OF_PIPE = {"event_type": Event.CACHE_FLUSH_AND_INV_TS, "event_index": EVENT_INDEX_END_OF_PIPE}
RELEASE_PLAIN = _RELEASE.word(1, **_END_OF_PIPE)
RELEASE_FLUSH = _RELEASE.word(1, **_END_OF_PIPE, gcr_glm_wb=1, gcr_glm_inv=1, gcr_glv_inv=1, gcr_gl1_inv=1, gcr_gl2_inv=1, gcr_gl2_wb=1, gcr_seq=1)
"""end of pipe, with everything written back so that host and other engines see it"""

STORE_32 = _RELEASE.word(2, data_sel=DataSel.LOW32)
STORE_64 = _RELEASE.word(2, data_sel=DataSel.DATA64)
STORE_CLOCK = _RELEASE.word(2, data_sel=DataSel.GPU_CLOCK)
CONFIRM_ONLY = _RELEASE.word(2, int_sel=IntSel.INTERRUPT_AFTER_CONFIRM)
STORE_32_AND_INTERRUPT = STORE_32 | CONFIRM_ONLY

ACQUIRE_ALL = Gcr.GLI | Gcr.GLM | Gcr.GLK | Gcr.GLV | Gcr.GL1 | Gcr.GL2
ACQUIRE_BEFORE_DISPATCH = Gcr.GLM | Gcr.GLK | Gcr.GLV | Gcr.GL1
"""between kernels: the instruction cache and L2 stay, they are coherent on the device"""
WHOLE_RANGE = (1 << 64) - 1

CS_PARTIAL_FLUSH = _P["EVENT_WRITE"].word(1, event_type=Event.CS_PARTIAL_FLUSH, event_index=EVENT_INDEX_PARTIAL_FLUSH)
DISPATCH_START = Initiator.COMPUTE_SHADER_EN | Initiator.FORCE_START_AT_000
IB_VALID = _P["INDIRECT_BUFFER"].word(3, valid=1)

SCRATCH_DESCRIPTOR_SWIZZLE = 1 << 31
SCRATCH_DESCRIPTOR_RECORDS = 0xFFFFFFFF
SCRATCH_DESCRIPTOR_FORMAT = 0x20C14000
"""words 1 (with the address), 2 and 3 of the buffer descriptor of a kernel that wants its scratch memory described"""


@dataclass(frozen=True)
class HdpRegisters:
    """Absolute dword numbers of the register pair through which the command processor flushes the host data path."""

    request: int
    done: int


@dataclass(frozen=True)
class ScratchArea:
    """Private memory of the waves: its device address and the COMPUTE_TMPRING_SIZE that divides it."""

    va: Operand
    tmpring: Operand


class Launchable(Protocol):
    """What a dispatch needs to know of a loaded kernel."""

    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    wave32: bool
    wants_private_segment_buffer: bool
    wants_dispatch_pointer: bool
    wants_kernarg_pointer: bool
    dispatch_packet_offset: int


class ComputeQueue(Queue):
    """Records commands for a PM4 compute ring."""

    def __init__(self, hdp: HdpRegisters, scratch: ScratchArea, device: Submitter | None = None) -> None:
        super().__init__(device)
        self._hdp = hdp
        self._scratch = scratch

    def packet(self, name: str, *payload: Operand) -> Self:
        """A packet by name: the words after its header."""
        return self.append(pm4_header(_P[name].opcode, len(payload)), *payload)

    # --- synchronisation ----------------------------------------------------------------------------------------------

    def wait_memory(self, address: Operand, value: Operand, *, control: int = WAIT_MEMORY_GE, mask: Operand = ALL_ONES) -> Self:
        """Stall until the masked word at the address compares with the value."""
        return self.packet("WAIT_REG_MEM", control, low32(address), high32(address), value, mask, POLL_INTERVAL)

    def wait_register(self, register: int, value: int, *, mask: int = ALL_ONES, compare: Compare = Compare.EQUAL) -> Self:
        """Stall until the masked register (absolute dword number) compares with the value."""
        return self.packet("WAIT_REG_MEM", _WAIT.word(1, function=compare), register, 0, value, mask, POLL_INTERVAL)

    def write_then_wait(self, request: int, done: int, value: int) -> Self:
        """Write a register, then stall until another one reaches the value."""
        return self.packet("WAIT_REG_MEM", WRITE_THEN_WAIT_GE, request, done, value, ALL_ONES, POLL_INTERVAL)

    def release_mem(self, event: int, selects: int, address: Operand = 0, value: Operand = 0, context: int = 0) -> Self:
        """An end-of-pipe event: after all earlier work, cache action, store and interrupt as selected."""
        return self.packet("RELEASE_MEM", event, selects, low32(address), high32(address), low32(value), high32(value), context)

    def acquire_mem(self, caches: int = ACQUIRE_ALL, address: Operand = 0, size: Operand = WHOLE_RANGE) -> Self:
        """Invalidate (and write back) caches, so that later commands see what others wrote."""
        return self.packet("ACQUIRE_MEM", 0, low32(size), high32(size), low32(address), high32(address), 0, int(caches))

    def wait(self, signal: Signal, value: Operand) -> Self:
        return self.wait_memory(signal.va, value)

    def signal(self, signal: Signal, value: Operand) -> Self:
        return self.packet("RELEASE_MEM", RELEASE_FLUSH, STORE_32, low32(signal.va), high32(signal.va), value, 0, 0)

    def timestamp(self, signal: Signal) -> Self:
        """A drain in front makes sure that earlier work has ended; the acquire behind keeps later work from starting early."""
        self.release_mem(RELEASE_PLAIN, CONFIRM_ONLY)
        self.stamp(signal.va + TIMESTAMP)
        return self.acquire_mem()

    def stamp(self, address: Operand) -> Self:
        """Store the 64-bit clock once earlier work has ended; later work may start meanwhile."""
        return self.release_mem(RELEASE_PLAIN, STORE_CLOCK, address)

    def memory_barrier(self) -> Self:
        """HDP flush, then all caches: writes of the host through the BAR and of other engines become visible."""
        self.write_then_wait(self._hdp.request, self._hdp.done, HDP_ALL_CLIENTS)
        return self.acquire_mem()

    def write(self, address: Operand, value: Operand, b64: bool = False) -> Self:
        upper = high32(value) if b64 else 0
        lower = low32(value) if b64 else value
        return self.packet("RELEASE_MEM", RELEASE_PLAIN, STORE_64 if b64 else STORE_32, low32(address), high32(address), lower, upper, 0)

    def poll_bit(self, address: Operand, value: Operand, mask: Operand) -> Self:
        return self.wait_memory(address, value, control=WAIT_MEMORY_EQ, mask=mask)

    # --- registers and launches ---------------------------------------------------------------------------------------

    def set_sh(self, register: int, *values: Operand) -> Self:
        """Write consecutive compute registers (absolute dword numbers). Raises PacketError outside their space."""
        if not SH_REG_BASE <= register <= SH_REG_END - len(values):
            raise PacketError(f"register {register:#x} is no compute register", read=f"space: {SH_REG_BASE:#x} to {SH_REG_END - 1:#x}")
        return self.packet("SET_SH_REG", register - SH_REG_BASE, *values)

    def set_uconfig(self, register: int, *values: Operand) -> Self:
        """Write consecutive user-config registers (absolute dword numbers). Raises PacketError outside their space."""
        if not UCONFIG_REG_BASE <= register <= UCONFIG_REG_END - len(values):
            raise PacketError(f"register {register:#x} cannot be set from a user queue", read=f"space: {UCONFIG_REG_BASE:#x} to {UCONFIG_REG_END - 1:#x}")
        return self.packet("SET_UCONFIG_REG", register - UCONFIG_REG_BASE, *values)

    def execute(self, kernel: Launchable, args: Operand, groups: tuple[Operand, Operand, Operand], block: tuple[Operand, Operand, Operand]) -> Self:
        scratch = self._scratch
        initiator = DISPATCH_START | (Initiator.CS_W32_EN if kernel.wave32 else 0)
        self.acquire_mem(ACQUIRE_BEFORE_DISPATCH)
        self.set_sh(ShReg.COMPUTE_PGM_LO, *_pair(kernel.entry >> 8))
        self.set_sh(ShReg.COMPUTE_PGM_RSRC1, kernel.rsrc1, kernel.rsrc2)
        self.set_sh(ShReg.COMPUTE_PGM_RSRC3, kernel.rsrc3)
        self.set_sh(ShReg.COMPUTE_TMPRING_SIZE, scratch.tmpring)
        self.set_sh(ShReg.COMPUTE_DISPATCH_SCRATCH_BASE_LO, *_pair(scratch.va >> 8))
        self.set_sh(ShReg.COMPUTE_RESTART_X, 0, 0, 0)
        user_data = self._user_data(kernel, args)
        if user_data:
            self.set_sh(ShReg.COMPUTE_USER_DATA_0, *user_data)
        self.set_sh(ShReg.COMPUTE_RESOURCE_LIMITS, 0)
        # start, threads per group, then pipeline statistics and performance counters off: neighbours in one packet
        self.set_sh(ShReg.COMPUTE_START_X, 0, 0, 0, *block, 0, 0)
        self.packet("DISPATCH_DIRECT", *groups, int(initiator))
        # the next command must not start before the waves ended: launches of one queue see each other's results
        return self.packet("EVENT_WRITE", CS_PARTIAL_FLUSH)

    def call_words(self, va: int, dwords: int) -> list[int]:
        if dwords > MAX_IB_DWORDS:
            raise PacketError(f"an indirect buffer of {dwords} dwords", read=f"at most {MAX_IB_DWORDS}")
        return [pm4_header(_P["INDIRECT_BUFFER"].opcode, 3), *map(int, (low32(va), high32(va), IB_VALID | dwords))]  # type: ignore[arg-type]

    def _user_data(self, kernel: Launchable, args: Operand) -> list[Operand]:
        """Initial scalar registers, in the order of the kernel ABI."""
        words: list[Operand] = []
        if kernel.wants_private_segment_buffer:
            va = self._scratch.va
            words += [low32(va), high32(va) | SCRATCH_DESCRIPTOR_SWIZZLE, SCRATCH_DESCRIPTOR_RECORDS, SCRATCH_DESCRIPTOR_FORMAT]
        if kernel.wants_dispatch_pointer:
            words += _pair(args + kernel.dispatch_packet_offset)
        if kernel.wants_kernarg_pointer:
            words += _pair(args)
        return words


def _pair(value: Operand) -> list[Operand]:
    return [low32(value), high32(value)]
