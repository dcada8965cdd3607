"""How much of a broken driver the simulated machine notices: `python -m tests.mutation`.

The register and memory writes of a boot and of one kernel launch are recorded. For each of them the whole workout below runs again
without that write, and once more with one bit of it flipped. A broken run counts as noticed when anything raises, when data, interrupts,
clocks or the way of the next start come out wrong. The report gives the score and lists what was not noticed, each with its reason; a
write without a reason makes the exit status 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import logging
import multiprocessing
import random
import struct
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import drivers.amd.memory
from drivers.amd.device import AmdDevice
from drivers.amd.gpu import AmdGpu
from drivers.amd.launch import Kernel
from drivers.amd.layouts import psp as psp_layout
from firmware.amd_layouts import FirmwareType
from hw.errors import GpuFault, PspError
from mocks.amd.fw import images
from mocks.pci_device import MockPciDevice
from tests.drivers.amd.support import GPU, Bench, bench
from tests.mocks.saboteur import Rule, Saboteur, Write, keep

ITEMS = 1024
GROUP = 64
FACTOR = 5
STRAYS = (*(0x2000_0000_0000 + (entry << 39) for entry in (16, 77, 101, 130, 190)), 0x1_0000_0000, 0x1000)
"""addresses that nothing is mapped at: behind five entries of the root table, below its window, and in the null page"""
NOWHERE = 0x80_0000
"""an address that firmware can not reach: below the frame buffer, and in reach of the AGP window where that is not turned off"""
BULK = 9 << 20
"""bytes of a copy that takes every staging buffer"""
GUARD = 4 << 20
"""bytes at the start of the virtual window that stay unmapped, so that half an address leads nowhere"""
LIMIT = 0.2
"""simulated seconds after which work counts as hung"""
TARGET = 0.8

KERNEL = """
target triple = "amdgcn-amd-amdhsa"
@exchange = internal addrspace(3) global [64 x i32] undef, align 4
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
define amdgpu_kernel void @mix(ptr addrspace(1) %out, ptr addrspace(1) %in, i32 %factor) #0 {
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = mul i32 %group, 64
  %index = add i32 %base, %item
  %wide = zext i32 %index to i64
  %from = getelementptr i32, ptr addrspace(1) %in, i64 %wide
  %value = load i32, ptr addrspace(1) %from, align 4
  %slot = getelementptr [64 x i32], ptr addrspace(3) @exchange, i32 0, i32 %item
  %flat = addrspacecast ptr addrspace(3) %slot to ptr
  %elsewhere = addrspacecast ptr addrspace(1) %out to ptr
  %real = icmp ne i32 %factor, 0
  %chosen = select i1 %real, ptr %flat, ptr %elsewhere
  store i32 %value, ptr %chosen
  call void @llvm.amdgcn.s.barrier()
  %mirror = xor i32 %item, 63
  %other = getelementptr [64 x i32], ptr addrspace(3) @exchange, i32 0, i32 %mirror
  %taken = load i32, ptr addrspace(3) %other
  %product = mul i32 %taken, %factor
  %sum = add i32 %product, %index
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %sum, ptr addrspace(1) %to, align 4
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr"
  "amdgpu-no-implicitarg-ptr" "amdgpu-no-hostcall-ptr" "amdgpu-no-multigrid-sync-arg" "amdgpu-no-heap-ptr" "amdgpu-no-default-queue"
  "amdgpu-no-completion-action" "amdgpu-no-lds-kernel-id" "amdgpu-no-workgroup-id-y" "amdgpu-no-workgroup-id-z" "amdgpu-no-workitem-id-y"
  "amdgpu-no-workitem-id-z" "amdgpu-no-flat-scratch-init" }
"""
"""out[i] = FACTOR * in[mirror of i in its group] + i, the mirroring through LDS, written there by a flat address"""


@dataclass(frozen=True)
class Reason:
    """Why some broken writes are not noticed. `harmless`: the card would not notice either; else the mock has no model of what they do."""

    text: str
    patterns: tuple[str, ...]
    """of Write.what, as fnmatch"""
    harmless: bool = True
    bits: range | None = None
    """only for a flip of one of these bits; None: also for the write left out"""

    def fits(self, result: Result) -> bool:
        if self.bits is not None and result.flipped not in self.bits:
            return False
        return any(fnmatch.fnmatchcase(result.write.what, pattern) for pattern in self.patterns)


REPEATED = Reason("the register or the memory held this value already", ())

REASONS = (
    Reason("invalidation engines 0..16: the driver uses engine 17 only", ("*VM_INVALIDATE_ENG[0-9]_ADDR_RANGE_*", "*VM_INVALIDATE_ENG1[0-6]_ADDR_RANGE_*")),
    Reason("VMIDs 1..15: everything runs in VMID 0", ("GRBM_GFX_CNTL = 0x?0", "GRBM_GFX_CNTL = 0x0", "SH_MEM_* of VMID *")),
    Reason("the next access selects its queue or VMID itself", ("GRBM_GFX_CNTL *",), bits=range(32)),
    Reason("identity aperture of context 1: only context 0 is used", ("*VM_L2_CONTEXT1_IDENTITY_*", "*VM_L2_CONTEXT_IDENTITY_*")),
    Reason("any value flushes, and a later flush comes before the device reads", ("HDP flush *",)),
    Reason("nothing is cached yet when the boot maps its first pages", ("*VM_INVALIDATE_ENG17_REQ *",)),
    Reason("the power controller answers the next message with busy, and the driver repeats it", ("MP1_SMN_C2PMSG_90 *",)),
    Reason("this message has no argument, or the maximum is not limited to begin with", ("MP1_SMN_C2PMSG_82 = 0x0*", "MP1_SMN_C2PMSG_66 = 0x1a*")),
    Reason("the level nearest to the changed frequency is the same one", ("MP1_SMN_C2PMSG_82 = 0x*",), bits=range(16)),
    Reason("a limit of a clock that cannot be set is not worth failing for", ("MP1_SMN_C2PMSG_82 = 0x*", "MP1_SMN_C2PMSG_66 = 0x1?*"), bits=range(32)),
    Reason(
        "0 is there from reset, and nothing came between", ("*ADDR_LO32 = 0x0", "*ADDR_HI32 = 0x0", "*MC_VM_AGP_* = 0x0", "IH_RB_RPTR = 0x0", "CP_HQD_* = 0x0"), bits=range(-1, 0)
    ),
    Reason("read-modify-write through an index window: the index is there already", ("BIF_BX_PF0_RSMU_INDEX *",), bits=range(-1, 0)),
    Reason("the last pulse of a reset that a later write releases", ("CP_MEC_RS64_CNTL = 0x400?0000*",)),
    Reason("the next doorbell of the same ring carries a later write pointer", ("BAR2 + 0x*",), bits=range(-1, 0)),
    Reason("pipes 1..3 are not used", ("CP_MEC_RS64_CNTL *",), bits=range(17, 20)),
    Reason("pipes 1..3 are not used", ("CP_MEC_RS64_CNTL *",), bits=range(27, 30)),
    Reason("kernels ask the hardware where the apertures of flat addresses are", ("SH_MEM_BASES *",)),
    Reason("a place between registers", ("unnamed dword *",)),
    Reason("write pointers count modulo the ring", ("BAR2 + 0x*",), bits=range(16, 64)),
    Reason("a larger window than needed", ("*SYSTEM_APERTURE_HIGH_ADDR *", "*PAGE_TABLE_END_ADDR_* *", "*VM_INVALIDATE_ENG17_ADDR_RANGE_HI32 *", "*MC_VM_AGP_BOT *")),
    Reason("address bits beyond what the card has", ("*PAGE_TABLE_BASE_ADDR_HI32 *", "CP_*_HI = *"), bits=range(12, 32)),
    Reason("the window still covers the doorbell", ("CP_MEC_DOORBELL_RANGE_UPPER *", "S2A_DOORBELL_ENTRY_0_CTRL *"), bits=range(32)),
    Reason("route of a second client that this workout does not use", ("S2A_DOORBELL_ENTRY_3_CTRL *",)),
    Reason("the AGP window is off, whatever it would show", ("*MC_VM_AGP_BASE *", "*MC_VM_AGP_TOP *")),
    Reason("bits of a root table's address that have no meaning on this generation", ("*PAGE_TABLE_BASE_ADDR_LO32 *",), bits=range(1, 12)),
    Reason("the interrupt ring's read pointer only tells when it is full; the driver writes it with the first interrupt", ("IH_RB_RPTR *",)),
    Reason("default page of the system aperture: no address in it lies beyond the memory", ("*SYSTEM_APERTURE_DEFAULT_ADDR_*", "BAR0 + 0x1000, *")),
    Reason("firmware engines do not take the default page of the multimedia hub", ("MMVM_L2_PROTECTION_FAULT_DEFAULT_ADDR_*",)),
    Reason("a page of which the workout reads the start", ("BAR0 + 0x2000, *",), bits=range(256 * 8, 4096 * 8)),
    Reason("only the valid bit of an empty page-table entry counts", ("BAR0 + 0x0, *", "BAR0 + 0x200????, 4096 bytes"), bits=range(4096 * 8)),
    Reason("noise instead of 0 differs from the first fence value just as well", ("BAR0 + 0x86000, *",)),
    Reason("unused bytes of a PSP command buffer", ("BAR0 + 0x85000, *",), bits=range(44 * 8, 1024 * 8)),
    Reason("session id and size of a PSP frame: not looked at, or right both ways", ("BAR0 + 0x87???, *",), bits=range(8 * 8, 32 * 8)),
    Reason("padding behind the bytes that an image's header counts", ("BAR0 + 0x100000, 1392?? bytes",), bits=range(0x1550 * 8, 139300 * 8)),
    Reason("any value but 0 means that the card was not left cleanly", ("SCRATCH_REG6 = 0x1",), bits=range(1, 32)),
    Reason("descriptor fields of queue features that this workout does not use", ("BAR0 + 0x9b000, *",), bits=range(2048 * 8)),
    Reason(
        "queue features that this workout does not use",
        (
            *(
                f"CP_HQD_{name}*"
                for name in (
                    "IB_",
                    "CTX_SAVE",
                    "CNTL_STACK",
                    "WG_STATE",
                    "ATOMIC",
                    "DMA_OFFLOAD",
                    "IQ_",
                    "SEMA",
                    "MSG_TYPE",
                    "HQ_",
                    "GDS_",
                    "DEQUEUE",
                    "AQL",
                    "ERROR",
                    "SUSPEND",
                    "PERSISTENT",
                    "VMID",
                    "ACTIVE",
                    "PQ_CONTROL",
                    "EOP_",
                )
            ),
            "CP_MQD_CONTROL *",
        ),
    ),
    Reason("start pointers of an empty ring: it holds only NOPs, and pointers count modulo the ring", ("SDMA0_QUEUE0_RB_?PTR*", "CP_HQD_PQ_?PTR*")),
    Reason("the ring does not wrap in this workout", ("SDMA0_QUEUE0_RB_CNTL *",), bits=range(1, 6)),
    Reason("entries of pages that this workout does not touch", ("BAR0 + 0x200????, 8 bytes", "BAR0 + 0x200????, 96 bytes")),
    Reason(
        "cache geometry, priorities and retries of a hub: speed only",
        ("*VM_L2_CNTL*", "*VM_L2_PROTECTION_FAULT_CNTL2*", "MMVM_L2_BANK_SELECT_*", "*MC_VM_MX_L1_TLB_CNTL *"),
        harmless=False,
    ),
    Reason(
        "power saving and clock gating",
        ("RLC_CGCG_*", "RLC_CGTT_*", "SDMA?_RLC_CGCG_*", "HDP_MEM_POWER_CTRL*", "MM_ATC_L2_MISC_CG*", "CP_RB_WPTR_POLL_CNTL*", "CP_INT_CNTL*", "RLC_SAFE_MODE*"),
        harmless=False,
    ),
    Reason(
        "save and restore, streaming counters, alignment, debug limits",
        ("RLC_SRM_CNTL*", "RLC_SPM_MC_CNTL*", "TCP_CNTL*", "GRBM_CNTL*", "RCC_DEV0_EPF2_STRAP2*", "SH_MEM_CONFIG *"),
        harmless=False,
    ),
    Reason(
        "interrupt ring 1, storm and flood protection, pointer write-back: not used",
        ("IH_*RING1*", "IH_STORM_*", "IH_INT_FLOOD_*", "IH_MSI_STORM_*", "IH_RB_WPTR_ADDR_*", "IH_DOORBELL_*"),
    ),
    Reason("routing tags of the internal bus", ("S2A_DOORBELL_ENTRY_?_CTRL *",), harmless=False, bits=range(28, 32)),
    Reason("caches, stepping and priorities of the micro engines", ("RLC_CNTL *", "SDMA0_F32_CNTL *"), harmless=False, bits=range(1, 32)),
    Reason("memory space, thresholds and write-back of the interrupt ring", ("IH_RB_CNTL *",), harmless=False),
    Reason("scheduling between queues: there is one", ("CP_HQD_*PRIORITY*", "CP_HQD_QUANTUM*"), harmless=False),
    Reason(
        "copy engine: watchdog, translation retries, pointer updates, indirect buffers, traps",
        ("SDMA0_WATCHDOG_*", "SDMA0_UTCL1_*", "SDMA0_QUEUE0_MINOR_PTR_*", "SDMA0_QUEUE0_IB_CNTL*", "SDMA0_CNTL *"),
        harmless=False,
    ),
)


class Noticed(Exception):
    """The run came out wrong without anything raising."""


@dataclass(frozen=True)
class Result:
    """One broken run."""

    write: Write
    flipped: int
    """bit that was flipped; -1: the write was dropped"""
    noticed: str
    """how; "" when not"""
    repeats: bool
    """the write changed nothing: the register held the value already"""

    @property
    def broken(self) -> str:
        return "without it" if self.flipped < 0 else f"bit {self.flipped} flipped"


def compile_kernel() -> bytes:
    """The kernel's code object for gfx1100."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu="gfx1100", opt=2, reloc="pic")
    code: bytes = target.emit_object(llvm.parse_assembly(KERNEL))
    return code


class Workout:
    """A boot and a launch, then everything that shows whether they were right."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.input = [7 * index + 3 for index in range(ITEMS)]
        self.faults: dict[int, str] = {}
        """what the first, unbroken run reported, by address"""
        self.expected = [FACTOR * self.input[index ^ GROUP - 1] + index & 0xFFFFFFFF for index in range(ITEMS)]

    def run(self, rule: Rule = keep, *, crash_first: bool = False) -> tuple[list[Write], set[int]]:
        """Returns the writes of boot and first launch, and the numbers of those that changed nothing.

        crash_first: the first run ends without cleaning up instead of the second. Raises whatever goes wrong, Noticed for wrong results.
        """
        drivers.amd.memory._va_space = None
        drivers.amd.memory.va_space().alloc(GUARD)
        made = bench(strict=True)
        saboteur = Saboteur(made.pci, rule)
        made.dev.boot()
        gpu = self._gpu(made)
        kernel = gpu.load(self.code).kernels["mix"]
        self._launch(gpu, kernel)
        recorded, repeats = list(saboteur.writes), set(saboteur.repeats)
        saboteur.rule = keep
        self._bulk(gpu)
        self._remap(gpu)
        for stray in STRAYS:
            self._fault(gpu, kernel, stray)
            self._launch(gpu, kernel)
        self._security_processor(gpu)
        self._clocks(gpu)
        if made.gpu.resets:
            raise Noticed("a cold card was reset")
        if crash_first:
            made.pci.close()
            self._next_start(made, resets=1).close()
            return recorded, repeats
        gpu.close()
        self._next_start(made, resets=0)
        made.pci.close()
        self._next_start(made, resets=1)
        return recorded, repeats

    @staticmethod
    def _gpu(made: Bench) -> AmdGpu:
        gpu = AmdGpu(made.dev)
        gpu.timeout = LIMIT
        return gpu

    def _launch(self, gpu: AmdGpu, kernel: Kernel) -> None:
        source, target = gpu.alloc(4 * ITEMS), gpu.alloc(4 * ITEMS)
        gpu.copy_in(source, struct.pack(f"<{ITEMS}I", *self.input))
        gpu.wait(gpu.launch(kernel, (ITEMS // GROUP, 1, 1), (GROUP, 1, 1), struct.pack("<QQI", target.va, source.va, FACTOR)))
        if list(struct.unpack(f"<{ITEMS}I", gpu.copy_out(target, 4 * ITEMS))) != self.expected:
            raise Noticed("a kernel's results are wrong")

    @staticmethod
    def _bulk(gpu: AmdGpu) -> None:
        """A large copy there and back; afterwards both engines are idle and have said so."""
        data = random.Random(1).randbytes(BULK)
        buffer = gpu.alloc(BULK)
        gpu.copy_in(buffer, data)
        if bytes(gpu.copy_out(buffer, BULK)) != data:
            raise Noticed("a large copy is wrong")
        gpu.synchronize()
        gpu.clock.sleep(1e-3)
        if not gpu.rings.compute.idle() or not gpu.rings.sdma.idle():
            raise Noticed("an idle engine does not report its read pointer")

    @staticmethod
    def _remap(gpu: AmdGpu) -> None:
        """The same address on other memory: whoever does not invalidate finds the old one."""
        size = 1 << 20
        first = gpu.alloc(size)
        gpu.copy_in(first, b"\x11" * size)
        gpu.copy_out(first, 16)
        place = first.va
        gpu.free(first)
        gpu.release_freed()
        second = gpu.dev.memory.alloc(size, host=True)
        if second.va != place:
            raise AssertionError("the workout expects the address again")
        assert second.view is not None
        second.view.write(0, b"\x22" * size)
        target = gpu.alloc(size)
        gpu.submit_copy(target.va, second.va, size)
        if bytes(gpu.copy_out(target, size)) != b"\x22" * size:
            raise Noticed("stale translations were used")

    def _fault(self, gpu: AmdGpu, kernel: Kernel, stray: int) -> None:
        """A stray pointer must come back as a decoded fault. Until then the kernel read zeros, from the default page."""
        target = gpu.alloc(4 * ITEMS)
        gpu.copy_in(target, b"\xee" * 4 * ITEMS)
        try:
            gpu.wait(gpu.launch(kernel, (1, 1, 1), (GROUP, 1, 1), struct.pack("<QQI", target.va, stray, FACTOR)))
        except GpuFault as fault:
            expected = self.faults.setdefault(stray, fault.what)
            if f"{stray:#x}" not in fault.what or "TCP" not in fault.what or fault.what != expected:
                raise Noticed(f"the fault is reported wrongly: {fault.what}") from fault
        else:
            raise Noticed("a stray pointer was not reported")
        if list(struct.unpack(f"<{GROUP}I", gpu.copy_out(target, 4 * GROUP))) != list(range(GROUP)):
            raise Noticed("the default page does not hold zeros")

    @staticmethod
    def _security_processor(gpu: AmdGpu) -> None:
        """The PSP takes an image from a virtual address, as behind a USB bridge: page tables of the multimedia hub, at one address
        first in host memory, then in VRAM. And it refuses an address that leads nowhere."""
        known = images("navi31")
        size = len(known[FirmwareType.RLC_V])
        psp, memory = gpu.dev.psp, gpu.dev.memory

        def load(kind: FirmwareType, address: int) -> None:
            fields = {"fw_phy_addr_lo": address & 0xFFFFFFFF, "fw_phy_addr_hi": address >> 32, "fw_size": len(known[kind]), "fw_type": kind}
            psp.submit(psp_layout.Command.LOAD_IP_FW, psp_layout.LAYOUT.pack("struct load_ip_fw", **fields))

        first = memory.alloc(size, host=True)
        assert first.view is not None
        first.view.write(0, known[FirmwareType.RLC_V])
        load(FirmwareType.RLC_V, first.va)
        place = first.va
        memory.free(first)
        second = memory.alloc(size, cpu_access=True)
        if second.va != place:
            raise AssertionError("the workout expects the address again")
        assert second.view is not None
        second.view.write(0, known[FirmwareType.RLC_P])
        gpu.dev.flush_hdp()
        load(FirmwareType.RLC_P, second.va)
        try:
            load(FirmwareType.RLC_P, NOWHERE)
        except PspError as error:
            if "0xffff0006" not in error.read:
                raise Noticed(f"an address that leads nowhere is refused with {error.read}") from error
        else:
            raise Noticed("the PSP took an image from nowhere")
        try:
            gpu.check_faults()
        except GpuFault as fault:
            if f"{NOWHERE:#x}" not in fault.what or "multimedia hub" not in fault.what:
                raise Noticed(f"the PSP's fault is reported wrongly: {fault.what}") from fault
        else:
            raise Noticed("the PSP's fault was not reported")
        gpu.reset_queues()

    @staticmethod
    def _clocks(gpu: AmdGpu) -> None:
        """The card runs at its highest clocks, as the driver wants it."""
        clocks = gpu.dev.smu.metrics()["CurrClock"]
        assert isinstance(clocks, tuple)
        if clocks[:4] != (2526, 1200, 1249, 2250):
            raise Noticed(f"clocks are {clocks[:4]}")

    def _next_start(self, made: Bench, *, resets: int) -> AmdGpu:
        """The next process: after a clean end it starts warm, else it resets the card. Then a launch works."""
        made.pci = made.machine.open(GPU)
        assert isinstance(made.pci, MockPciDevice)
        made.dev = AmdDevice(made.pci, made.dev.store)
        components = len(made.gpu.psp.commands.history)
        made.dev.boot()
        if made.gpu.resets != resets:
            raise Noticed(f"{made.gpu.resets} resets instead of {resets}")
        if resets == 0 and len(made.gpu.psp.commands.history) != components:
            raise Noticed("a warm start loaded firmware again")
        gpu = self._gpu(made)
        self._launch(gpu, gpu.load(self.code).kernels["mix"])
        return gpu


def broken_run(workout: Workout, write: Write, bit: int) -> str:
    """What was noticed of a run without a write, or with one of its bits flipped."""

    def rule(each: Write) -> bytes | None:
        if each.number != write.number:
            return each.data
        if bit < 0:
            return None
        data = bytearray(each.data)
        data[bit >> 3] ^= 1 << (bit & 7)
        return bytes(data)

    try:
        workout.run(rule, crash_first=write.register == "SCRATCH_REG6")
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def chosen_bit(write: Write) -> int:
    """The bit to flip: one that the register has, any bit of a write to memory."""
    bits = [bit for bit in range(8 * len(write.data)) if write.mask >> bit & 1] or [0]
    return random.Random(write.number).choice(bits)


def reason_of(result: Result) -> Reason | None:
    """Why a broken run may go unnoticed; None when there is no reason."""
    if result.repeats and result.flipped < 0:
        return REPEATED
    return next((reason for reason in REASONS if reason.fits(result)), None)


_workout: Workout


def _prepare(code: bytes) -> None:
    global _workout
    logging.disable(logging.CRITICAL)
    _workout = Workout(code)
    _workout.run()


def _one(job: tuple[Write, int, bool]) -> Result:
    write, bit, repeats = job
    result = Result(write, bit, broken_run(_workout, write, bit), repeats)
    gc.collect()
    return result


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--every", type=int, default=1, help="take every n-th write only")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--drop-only", action="store_true", help="leave out the runs with a flipped bit")
    options = parser.parse_args(None if arguments is None else list(arguments))
    logging.disable(logging.CRITICAL)
    code = compile_kernel()
    workout = Workout(code)
    recorded, repeats = workout.run()
    again, _ = workout.run()
    workout.run(crash_first=True)
    if [write.what for write in recorded] != [write.what for write in again]:
        raise AssertionError("two runs of the same machine differ")
    chosen = recorded[:: options.every]
    jobs = [(write, -1, write.number in repeats) for write in chosen]
    if not options.drop_only:
        jobs += [(write, chosen_bit(write), write.number in repeats) for write in chosen]
    with multiprocessing.get_context("fork").Pool(options.jobs, _prepare, (code,), maxtasksperchild=100) as pool:
        results = pool.map(_one, jobs, chunksize=4)
    return report(results, as_json=options.json)


def report(results: list[Result], *, as_json: bool) -> int:
    """Prints score and rest; the exit status: 0 when nothing is left unexplained and enough was noticed.

    The score counts the runs that a real card would notice: without those that are harmless there too.
    """
    noticed = [result for result in results if result.noticed]
    reasons = {id(result): reason_of(result) for result in results if not result.noticed}
    explained = Counter(reason for reason in reasons.values() if reason is not None)
    harmless = sum(count for reason, count in explained.items() if reason.harmless)
    unexplained = [result for result in results if not result.noticed and reasons[id(result)] is None]
    score = len(noticed) / max(len(results) - harmless, 1)
    if as_json:
        document = {
            "runs": len(results),
            "noticed": len(noticed),
            "harmless": {reason.text: count for reason, count in explained.items() if reason.harmless},
            "not_modelled": {reason.text: count for reason, count in explained.items() if not reason.harmless},
            "unexplained": [f"{result.write.what} ({result.broken})" for result in unexplained],
            "score": score,
        }
        json.dump(document, sys.stdout, indent=1)
    else:
        show(len(results), len(noticed), harmless, score, explained, unexplained)
    return 0 if not unexplained and score >= TARGET else 1


def show(runs: int, noticed: int, harmless: int, score: float, explained: Counter[Reason], unexplained: list[Result]) -> None:
    """The report as text."""
    out = sys.stdout.write
    out(f"mutation score {score:.1%}: {noticed} of {runs - harmless} broken runs noticed; {harmless} further ones do no harm on a real card either\n")
    for title, kind in (("do no harm", True), ("not modelled", False)):
        out(f"{title}:\n")
        for reason, count in explained.most_common():
            if reason.harmless is kind:
                out(f"  {count:4d}  {reason.text}\n")
    for result in unexplained:
        out(f"unexplained: write {result.write.number} {result.write.what}, {result.broken}\n")


if __name__ == "__main__":
    sys.exit(main())
