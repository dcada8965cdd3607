"""LLVM IR of the kernels that the queue tests run, and their code objects (compiled once a process)."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

HEAD = """
target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workitem.id.z()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare void @llvm.amdgcn.s.sleep(i32)
declare void @llvm.amdgcn.s.barrier()
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
!1 = !{}
"""

ATTRIBUTES = """
attributes #0 = { nounwind "amdgpu-flat-work-group-size"="1,1024" "uniform-work-group-size"="true" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr"
"amdgpu-no-dispatch-id" "amdgpu-no-implicitarg-ptr" "amdgpu-no-heap-ptr" "amdgpu-no-hostcall-ptr" "amdgpu-no-default-queue"
"amdgpu-no-completion-action" "amdgpu-no-multigrid-sync-arg" "amdgpu-no-lds-kernel-id" }
"""

BODIES = {
    "empty": "define amdgpu_kernel void @empty() #0 {\n  ret void\n}",
    "add": """define amdgpu_kernel void @add(ptr addrspace(1) %out, ptr addrspace(1) %a, ptr addrspace(1) %b) #0 {
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = mul i32 %group, 256
  %i = add i32 %base, %item
  %pa = getelementptr float, ptr addrspace(1) %a, i32 %i
  %pb = getelementptr float, ptr addrspace(1) %b, i32 %i
  %po = getelementptr float, ptr addrspace(1) %out, i32 %i
  %x = load float, ptr addrspace(1) %pa
  %y = load float, ptr addrspace(1) %pb
  %z = fadd float %x, %y
  store float %z, ptr addrspace(1) %po
  ret void
}""",
    "plus_one": """define amdgpu_kernel void @plus_one(ptr addrspace(1) %out, ptr addrspace(1) %in) #0 {
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %pi = getelementptr float, ptr addrspace(1) %in, i32 %item
  %po = getelementptr float, ptr addrspace(1) %out, i32 %item
  %x = load float, ptr addrspace(1) %pi
  %y = fadd float %x, 1.0
  store float %y, ptr addrspace(1) %po
  ret void
}""",
    "count": """define amdgpu_kernel void @count(ptr addrspace(1) %out) #0 {
  %x = call i32 @llvm.amdgcn.workitem.id.x()
  %y = call i32 @llvm.amdgcn.workitem.id.y()
  %z = call i32 @llvm.amdgcn.workitem.id.z()
  %y3 = mul i32 %y, 3
  %z9 = mul i32 %z, 9
  %xy = add i32 %x, %y3
  %i = add i32 %xy, %z9
  %po = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 1, ptr addrspace(1) %po
  ret void
}""",
    "group_ids": """define amdgpu_kernel void @group_ids(ptr addrspace(1) %out) #0 {
  %x = call i32 @llvm.amdgcn.workgroup.id.x()
  %y = call i32 @llvm.amdgcn.workgroup.id.y()
  %y5 = mul i32 %y, 5
  %i = add i32 %x, %y5
  %po = getelementptr i32, ptr addrspace(1) %out, i32 %i
  %i1 = add i32 %i, 1
  store i32 %i1, ptr addrspace(1) %po
  ret void
}""",
    "store_at": """define amdgpu_kernel void @store_at(ptr addrspace(1) %where, i32 %what) #0 {
  store volatile i32 %what, ptr addrspace(1) %where
  ret void
}""",
    "load_at": """define amdgpu_kernel void @load_at(ptr addrspace(1) %out, ptr addrspace(1) %where) #0 {
  %x = load volatile i32, ptr addrspace(1) %where
  store i32 %x, ptr addrspace(1) %out
  ret void
}""",
    "thorough": """@line = internal addrspace(3) global [64 x float] undef, align 16
define amdgpu_kernel void @thorough(ptr addrspace(1) %out, ptr addrspace(1) %in) #0 {
  %own = alloca [64 x float], align 4, addrspace(5)
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = mul i32 %group, 64
  %i = add i32 %base, %item
  %pi = getelementptr float, ptr addrspace(1) %in, i32 %i
  %x = load float, ptr addrspace(1) %pi
  %slot = getelementptr float, ptr addrspace(5) %own, i32 %item
  store volatile float %x, ptr addrspace(5) %slot
  %kept = load volatile float, ptr addrspace(5) %slot
  %half = fmul float %kept, 0.5
  %mine = getelementptr [64 x float], ptr addrspace(3) @line, i32 0, i32 %item
  store float %half, ptr addrspace(3) %mine
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %other = sub i32 63, %item
  %theirs = getelementptr [64 x float], ptr addrspace(3) @line, i32 0, i32 %other
  %y = load float, ptr addrspace(3) %theirs
  %po = getelementptr float, ptr addrspace(1) %out, i32 %i
  store float %y, ptr addrspace(1) %po
  ret void
}""",
    "spin": """define amdgpu_kernel void @spin() #0 {
  br label %loop
loop:
  call void @llvm.amdgcn.s.sleep(i32 1)
  br label %loop
}""",
}

RECORDED = {vector["id"].removeprefix("gfx1100."): vector for vector in json.loads((Path(__file__).parents[2] / "data/amd_elf.json").read_text())["vectors"]}


@cache
def kernel_object(name: str, cpu: str = "gfx1100") -> bytes:
    """The object file of a kernel of BODIES; "recorded:NAME" gives one of tests/data/amd_elf.json."""
    if name.startswith("recorded:"):
        return base64.b64decode(RECORDED[name.removeprefix("recorded:")]["inputs"]["object_base64"])
    return compile_ir(HEAD + BODIES[name] + ATTRIBUTES, cpu)


def compile_ir(text: str, cpu: str = "gfx1100") -> bytes:
    """LLVM IR to a relocatable object, optimised."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    machine = target.create_target_machine(cpu=cpu, features="+cumode,+wavefrontsize32", opt=2, reloc="pic")
    module = llvm.parse_assembly(text)
    module.verify()
    return machine.emit_object(module)
