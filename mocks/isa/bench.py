"""Speed of the executor on two kernels compiled on the spot: an element-wise add and a matrix product."""

from __future__ import annotations

import io
import struct
import time
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
from elftools.elf.elffile import ELFFile

from mocks.isa.executor import DONE, Dispatch, Executor, mode_from_rsrc1, vgprs_from_rsrc1
from mocks.isa.port import EXEC, READ, WRITE, FlatMemory
from mocks.isa.program import forget_programs


@dataclass(frozen=True, slots=True)
class Kernel:
    """Machine code of one kernel and what its descriptor says."""

    code: bytes
    lds_bytes: int
    private_bytes: int
    kernarg_bytes: int
    rsrc1: int
    rsrc2: int

    def dispatch(self, entry: int, group_size: tuple[int, int, int], grid: tuple[int, int, int], kernarg: int, **more: object) -> Dispatch:
        users = (self.rsrc2 >> 1 & 31) * [0]
        users[:2] = [kernarg & 0xFFFFFFFF, kernarg >> 32]
        ids = (bool(self.rsrc2 >> 7 & 1), bool(self.rsrc2 >> 8 & 1), bool(self.rsrc2 >> 9 & 1))
        return Dispatch(
            entry, group_size, grid, users, ids, bool(self.rsrc2 >> 10 & 1), (self.rsrc2 >> 11 & 3) + 1, vgprs_from_rsrc1(self.rsrc1),
            self.lds_bytes, mode=mode_from_rsrc1(self.rsrc1), **more,  # type: ignore[arg-type]
        )  # fmt: skip


def optimised_module(ir: str, chip: str = "gfx1100", opt: int = 2) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """LLVM IR for the chip through the optimiser. Code generation changes the module, so one module makes one output."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu=chip, opt=opt)
    module = llvm.parse_assembly(ir)
    module.triple = "amdgcn-amd-amdhsa"
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(opt))
    builder.getModulePassManager().run(module, builder)
    return module, machine


def compile_kernel(ir: str, chip: str = "gfx1100", opt: int = 2) -> Kernel:
    """Compiles LLVM IR with one amdgpu_kernel. Data layout and triple are set here."""
    module, machine = optimised_module(ir, chip, opt)
    image = ELFFile(io.BytesIO(machine.emit_object(module)))
    sections = {section.name: section.data() for section in image.iter_sections() if section.name in (".text", ".rodata")}
    code, rodata = sections[".text"], sections[".rodata"]
    lds, private, kernarg = struct.unpack_from("<3I", rodata, 0)
    rsrc1, rsrc2, properties = struct.unpack_from("<IIH", rodata, 48)
    assert properties & 0x3FF == 8, f"only the kernel-argument pointer is expected in user SGPRs, not {properties:#x}"
    return Kernel(code, lds, private, kernarg, rsrc1, rsrc2)


ADD_IR = """
define amdgpu_kernel void @add(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %a, ptr addrspace(1) noalias readonly %b) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = mul i32 %g, 256
  %i = add i32 %base, %t
  %x = zext i32 %i to i64
  %pa = getelementptr float, ptr addrspace(1) %a, i64 %x
  %pb = getelementptr float, ptr addrspace(1) %b, i64 %x
  %po = getelementptr float, ptr addrspace(1) %out, i64 %x
  %va = load float, ptr addrspace(1) %pa
  %vb = load float, ptr addrspace(1) %pb
  %s = fadd float %va, %vb
  store float %s, ptr addrspace(1) %po
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
attributes #0 = { nounwind "amdgpu-flat-work-group-size"="256,256" "uniform-work-group-size"="true" }
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""

MATMUL_IR = """
define amdgpu_kernel void @matmul(ptr addrspace(1) noalias %out, ptr addrspace(1) noalias readonly %a, ptr addrspace(1) noalias readonly %b) #0 {
entry:
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %row = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %row, 256
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %next, %loop ]
  %acc = phi float [ 0.0, %entry ], [ %sum, %loop ]
  %ia = add i32 %start, %k
  %kb = mul i32 %k, 256
  %ib = add i32 %kb, %t
  %xa = zext i32 %ia to i64
  %xb = zext i32 %ib to i64
  %pa = getelementptr float, ptr addrspace(1) %a, i64 %xa
  %pb = getelementptr float, ptr addrspace(1) %b, i64 %xb
  %va = load float, ptr addrspace(1) %pa
  %vb = load float, ptr addrspace(1) %pb
  %sum = call float @llvm.fma.f32(float %va, float %vb, float %acc)
  %next = add i32 %k, 1
  %done = icmp eq i32 %next, 256
  br i1 %done, label %exit, label %loop
exit:
  %io = add i32 %start, %t
  %xo = zext i32 %io to i64
  %po = getelementptr float, ptr addrspace(1) %out, i64 %xo
  store float %sum, ptr addrspace(1) %po
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare float @llvm.fma.f32(float, float, float)
attributes #0 = { nounwind "amdgpu-flat-work-group-size"="256,256" "uniform-work-group-size"="true" }
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""

CODE, KERNARG, A, B, OUT = 0x7F0000000000, 0x7F0000100000, 0x7F1000000000, 0x7F2000000000, 0x7F3000000000


def _measure(ir: str, a: np.ndarray, b: np.ndarray, groups: int) -> tuple[dict[str, float], np.ndarray]:
    kernel = compile_kernel(ir)
    memory = FlatMemory()
    memory.map(CODE, len(kernel.code), READ | EXEC, kernel.code)
    memory.map(A, a.nbytes, READ, a.tobytes())
    memory.map(B, b.nbytes, READ, b.tobytes())
    memory.map(OUT, a.nbytes, READ | WRITE)
    memory.map(KERNARG, 4096, READ, struct.pack("<3Q", OUT, A, B))
    executor = Executor(memory)
    dispatch = kernel.dispatch(CODE, (256, 1, 1), (groups, 1, 1), KERNARG)
    began = time.process_time()
    first = executor.start(dispatch)
    state = first.run()
    first_seconds = time.process_time() - began
    assert state.kind == DONE, state
    forget_programs()  # the native helpers stay, so that what is measured now is the kernel alone
    again = executor.start(dispatch)
    again.run()
    assert again.program is not None
    translation = again.program.seconds
    best = float("inf")
    for _ in range(3):
        run = executor.start(dispatch)
        began = time.process_time()
        run.run()
        best = min(best, time.process_time() - began)
    figures = {
        "instructions": float(run.instructions),
        "seconds": best,
        "wave_instructions_per_second": run.instructions / best,
        "lane_operations_per_second": 32 * run.instructions / best,
        "first_run_seconds": first_seconds,
        "translation_seconds": translation,
    }
    result = np.frombuffer(memory.read(OUT, a.nbytes), dtype=np.float32)
    return figures, result


def emulate_bench() -> dict[str, dict[str, float]]:
    """Figures of the 1 Mi element fp32 add and the 256 x 256 x 256 fp32 matrix product, CPU seconds. Results are checked.

    seconds: best of three runs of the translated kernel. first_run_seconds: with the native helpers compiled and the kernel translated
    on the way. translation_seconds: of the kernel alone.
    """
    rng = np.random.default_rng(1)
    a, b = rng.random((1 << 20,), dtype=np.float32), rng.random((1 << 20,), dtype=np.float32)
    add, total = _measure(ADD_IR, a, b, 4096)
    assert np.array_equal(total, a + b)
    a, b = rng.random((256, 256), dtype=np.float32), rng.random((256, 256), dtype=np.float32)
    matmul, product = _measure(MATMUL_IR, a, b, 256)
    assert np.allclose(product.reshape(256, 256), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5)
    matmul["multiply_adds_per_second"] = 256**3 / matmul["seconds"]
    add["elements_per_second"] = (1 << 20) / add["seconds"]
    return {"add_1mi_f32": add, "matmul_256_f32": matmul}
