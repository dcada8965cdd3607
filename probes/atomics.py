"""`tghw run atomics`: many work-items add to, and compare with, the same two words of a GPU's memory."""

from __future__ import annotations

import struct
from typing import Any

from bridges.open import open_gpu
from hw.errors import DeviceError, NotSupported
from hw.target import Target

GROUPS = 64
GROUP = 64
ITEMS = GROUPS * GROUP

KERNEL = """
target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
define amdgpu_kernel void @atomics(ptr addrspace(1) %words) #0 {
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = mul i32 %group, 64
  %number = add i32 %base, %item
  %sum = atomicrmw add ptr addrspace(1) %words, i32 %number syncscope("agent") monotonic
  %second = getelementptr i32, ptr addrspace(1) %words, i64 1
  %largest = atomicrmw umax ptr addrspace(1) %second, i32 %number syncscope("agent") monotonic
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "amdgpu-no-implicitarg-ptr" "amdgpu-no-dispatch-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" }
"""
"""words[0] += number and words[1] = max(words[1], number) for every work-item's number"""


def run(target: Target) -> dict[str, Any]:
    """Run the kernel on a GPU and check both words. Raises NotSupported for devices that are no GPU, DeviceError for a wrong result."""
    if not target.has_hardware:
        raise NotSupported(f"atomics on {target.device}", means="the program is a GPU kernel", remedy="choose a GPU, for example --mock navi31")
    import llvmlite.binding as llvm

    gpu = open_gpu(target)
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu=gpu.arch, opt=2)
        kernel = gpu.load(machine.emit_object(llvm.parse_assembly(KERNEL))).kernels["atomics"]
        words = gpu.alloc(8)
        gpu.copy_in(words, bytes(8))
        gpu.launch(kernel, (GROUPS, 1, 1), (GROUP, 1, 1), struct.pack("<Q", words.va))
        total, largest = struct.unpack("<2I", gpu.copy_out(words, 8))
    finally:
        gpu.close()
    if (total, largest) != (ITEMS * (ITEMS - 1) // 2, ITEMS - 1):
        raise DeviceError("atomics gave a wrong result", read=f"sum {total}, largest {largest}", means="concurrent additions were lost, or the GPU did not run every work-item")
    return {"work_items": ITEMS, "sum": total, "largest": largest}
