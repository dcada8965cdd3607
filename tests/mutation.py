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
from hw.errors import GpuFault
from mocks.pci import MockPciDevice
from tests.drivers.amd.support import GPU, Bench, bench
from tests.mocks.saboteur import Saboteur, Write

ITEMS = 1024
GROUP = 64
FACTOR = 5
STRAYS = (0x2800_0000_0000, 0x1_0000_0000)
"""addresses that nothing is mapped at: inside the window of the page tables, and below it"""
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
  store i32 %value, ptr addrspace(3) %slot
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
"""out[i] = FACTOR * in[mirror of i in its group] + i, the mirroring through LDS"""


@dataclass(frozen=True)
class Reason:
    """Why some writes do not matter."""

    pattern: str
    """of Write.what, as fnmatch"""
    text: str


REASONS: tuple[Reason, ...] = ()


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
        self.expected = [FACTOR * self.input[index ^ GROUP - 1] + index & 0xFFFFFFFF for index in range(ITEMS)]

    def run(self, saboteur_rule: object = None) -> list[Write]:
        """Returns the writes of boot and first launch. Raises whatever goes wrong, Noticed for wrong results."""
        drivers.amd.memory._va_space = None
        made = bench(strict=True)
        saboteur = Saboteur(made.pci)
        if saboteur_rule is not None:
            saboteur.rule = saboteur_rule  # type: ignore[assignment]
        made.dev.boot()
        gpu = self._gpu(made)
        kernel = gpu.load(self.code).kernels["mix"]
        self._launch(gpu, kernel)
        recorded = list(saboteur.writes)
        saboteur.rule = lambda write: write.data
        self._remap(gpu)
        for stray in STRAYS:
            self._fault(gpu, kernel, stray)
            self._launch(gpu, kernel)
        self._clocks(gpu)
        if made.gpu.resets:
            raise Noticed("a cold card was reset")
        gpu.close()
        self._next_start(made, resets=0)
        made.pci.close()
        self._next_start(made, resets=1)
        return recorded

    @staticmethod
    def _gpu(made: Bench) -> AmdGpu:
        gpu = AmdGpu(made.dev)
        gpu.timeout = LIMIT
        return gpu

    def _launch(self, gpu: AmdGpu, kernel: object) -> None:
        source, target = gpu.alloc(4 * ITEMS), gpu.alloc(4 * ITEMS)
        gpu.copy_in(source, struct.pack(f"<{ITEMS}I", *self.input))
        gpu.wait(gpu.launch(kernel, (ITEMS // GROUP, 1, 1), (GROUP, 1, 1), struct.pack("<QQI", target.va, source.va, FACTOR)))  # type: ignore[arg-type]
        if list(struct.unpack(f"<{ITEMS}I", gpu.copy_out(target, 4 * ITEMS))) != self.expected:
            raise Noticed("a kernel's results are wrong")

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

    @staticmethod
    def _fault(gpu: AmdGpu, kernel: object, stray: int) -> None:
        """A stray pointer must come back as a decoded fault."""
        try:
            gpu.wait(gpu.launch(kernel, (1, 1, 1), (GROUP, 1, 1), struct.pack("<QQI", stray, stray, FACTOR)))  # type: ignore[arg-type]
        except GpuFault as fault:
            if f"{stray:#x}" not in fault.what or "TCP" not in fault.what:
                raise Noticed(f"the fault is reported wrongly: {fault.what}") from fault
            return
        raise Noticed("a stray pointer was not reported")

    @staticmethod
    def _clocks(gpu: AmdGpu) -> None:
        """The card runs at its highest clocks, as the driver wants it."""
        clocks = gpu.dev.smu.metrics()["CurrClock"]
        assert isinstance(clocks, tuple)
        if clocks[:4] != (2526, 1200, 1249, 2250):
            raise Noticed(f"clocks are {clocks[:4]}")

    def _next_start(self, made: Bench, *, resets: int) -> None:
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


def broken_run(workout: Workout, number: int, bit: int) -> str:
    """What was noticed of a run without write `number`, or with one of its bits flipped."""

    def rule(write: Write) -> bytes | None:
        if write.number != number:
            return write.data
        if bit < 0:
            return None
        data = bytearray(write.data)
        data[bit >> 3] ^= 1 << (bit & 7)
        return bytes(data)

    try:
        workout.run(rule)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def chosen_bit(write: Write) -> int:
    """The bit to flip: any of a memory write, one that the register has of a register write."""
    return random.Random(write.number).randrange(8 * len(write.data))


def reason_of(write: Write) -> str:
    for reason in REASONS:
        if fnmatch.fnmatchcase(write.what, reason.pattern):
            return reason.text
    return ""


_workout: Workout


def _prepare(code: bytes) -> None:
    global _workout
    logging.disable(logging.CRITICAL)
    _workout = Workout(code)


def _one(job: tuple[Write, int]) -> Result:
    write, bit = job
    result = Result(write, bit, broken_run(_workout, write.number, bit))
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
    recorded = workout.run()
    again = workout.run()
    if [write.what for write in recorded] != [write.what for write in again]:
        raise AssertionError("two runs of the same machine differ")
    jobs = [(write, -1) for write in recorded[:: options.every]]
    if not options.drop_only:
        jobs += [(write, chosen_bit(write)) for write in recorded[:: options.every]]
    with multiprocessing.get_context("fork").Pool(options.jobs, _prepare, (code,), maxtasksperchild=100) as pool:
        results = pool.map(_one, jobs, chunksize=4)
    return report(results, as_json=options.json)


def report(results: list[Result], *, as_json: bool) -> int:
    """Prints score and rest; the exit status: 0 when nothing is left unexplained and enough was noticed."""
    missed = [result for result in results if not result.noticed]
    explained = [result for result in missed if reason_of(result.write)]
    unexplained = [result for result in missed if not reason_of(result.write)]
    mattering = len(results) - len(explained)
    score = (len(results) - len(missed)) / mattering if mattering else 1.0
    if as_json:
        json.dump(
            {
                "runs": len(results),
                "noticed": len(results) - len(missed),
                "explained": dict(Counter(reason_of(result.write) for result in explained)),
                "unexplained": [f"{result.write.what} ({result.broken})" for result in unexplained],
                "score": score,
            },
            sys.stdout,
            indent=1,
        )
        return 0 if not unexplained and score >= TARGET else 1
    out = sys.stdout.write
    out(f"broken runs: {len(results)}, noticed: {len(results) - len(missed)}, harmless for a reason: {len(explained)}, unexplained: {len(unexplained)}\n")
    out(f"score: {score:.1%} of the runs that matter, {(len(results) - len(missed)) / len(results):.1%} of all\n")
    for text, count in Counter(reason_of(result.write) for result in explained).most_common():
        out(f"  {count:4d}  {text}\n")
    for result in unexplained:
        out(f"unexplained: write {result.write.number} {result.write.what}, {result.broken}\n")
    return 0 if not unexplained and score >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
