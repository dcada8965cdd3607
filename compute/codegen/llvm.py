"""LLVM through llvmlite, loaded on first use: target machines, the optimiser, object code for AMD GPUs, and a JIT for this machine."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from compute.codegen.llvm_text import Flavour, generate
from compute.errors import CompileError
from compute.ir import Kernel
from hw.errors import NotSupported

_SPEED_LEVEL = 2
_CODE_OBJECT_VERSION = 500
"""amdhsa code-object version 5."""

_NO_HIDDEN = (
    "dispatch-ptr", "queue-ptr", "dispatch-id", "implicitarg-ptr", "workgroup-id-y", "workgroup-id-z", "workitem-id-y", "workitem-id-z",
    "hostcall-ptr", "default-queue", "completion-action", "multigrid-sync-arg", "heap-ptr", "lds-kernel-id",
)  # fmt: skip
"""Inputs that our kernels never use (amd-isa: the attributes amdgpu-no-*)."""

_BARRIER = """fence syncscope("workgroup") release
call void @llvm.amdgcn.s.barrier()
fence syncscope("workgroup") acquire"""

AMD_ARCHITECTURES = ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1200", "gfx1201", "gfx942", "gfx950")


@functools.cache
def _binding() -> Any:
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


@functools.cache
def _amd_machine(arch: str) -> Any:
    return _binding().Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu=arch, opt=2)


def _new_host_machine() -> Any:
    binding = _binding()
    features = binding.get_host_cpu_features()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features.flatten(), opt=2, jit=True)


@functools.cache
def _host_machine() -> Any:
    return _new_host_machine()


def amd_flavour(kernel: Kernel) -> Flavour:
    hidden = " ".join(f'"amdgpu-no-{name}"' for name in _NO_HIDDEN)
    attributes = f'nounwind "amdgpu-flat-work-group-size"="{kernel.block},{kernel.block}" "uniform-work-group-size"="true" "no-trapping-math"="true" {hidden}'
    return Flavour(
        global_space=" addrspace(1)",
        local_space=" addrspace(3)",
        header="define amdgpu_kernel void",
        trailer="#0",
        footer=f"attributes #0 = {{ {attributes} }}\n"
        f"!llvm.module.flags = !{{!0}}\n"
        f'!0 = !{{i32 1, !"amdhsa_code_object_version", i32 {_CODE_OBJECT_VERSION}}}\n'
        '!1 = distinct !{!1, !2}\n!2 = !{!"llvm.loop.unroll.disable"}',
        ids=("llvm.amdgcn.workgroup.id.x", "llvm.amdgcn.workitem.id.x"),
        barrier=_BARRIER,
        loop_metadata=", !llvm.loop !1",
    )


HOST_FLAVOUR = Flavour(global_space="", local_space="", header="define void", trailer="#0", footer="attributes #0 = { nounwind }", ids=None, barrier="")


def amd_text(kernel: Kernel) -> str:
    """LLVM IR of a kernel for an AMD GPU, before optimisation."""
    return generate(kernel, amd_flavour(kernel))


def compile_amd(kernel: Kernel, arch: str) -> bytes:
    """A relocatable amdgcn object (ELF) with one kernel. Raises NotSupported for an unknown architecture, CompileError when LLVM refuses."""
    if arch not in AMD_ARCHITECTURES:
        raise NotSupported(f"no code generation for {arch}", read=f"known: {', '.join(AMD_ARCHITECTURES)}", remedy="name one of the known architectures")
    machine = _amd_machine(arch)
    module = _optimised(amd_text(kernel), machine, kernel)
    return bytes(machine.emit_object(module))


def _optimised(text: str, machine: Any, kernel: Kernel) -> Any:
    binding = _binding()
    try:
        module = binding.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses kernel {kernel.name}", read=f"{error}\n{kernel.text()}") from error
    options = binding.create_pipeline_tuning_options(speed_level=_SPEED_LEVEL)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


class HostFunction:
    """A kernel compiled for this machine: call it with addresses, sizes and the number of workgroups."""

    def __init__(self, address: int, kernel: Kernel) -> None:
        self._takes_groups = kernel.uses_ids
        count = len(kernel.sizes) + self._takes_groups
        kinds = [ctypes.c_void_p] * len(kernel.params) + [ctypes.c_int32] * count
        self._function = ctypes.CFUNCTYPE(None, *kinds)(address)

    def __call__(self, addresses: list[int], sizes: list[int], groups: int) -> None:
        if groups:
            self._function(*addresses, *sizes, *((groups,) if self._takes_groups else ()))


@functools.cache
def _host_engine() -> Any:
    """The one JIT of this process; it owns its target machine, which therefore is another one than that of the optimiser."""
    binding = _binding()
    return binding.create_mcjit_compiler(binding.parse_assembly(""), _new_host_machine())


def compile_host(kernel: Kernel) -> HostFunction:
    """The kernel as a function of this process; its name must be unique. Raises NotSupported for barriers, and for float16 on a CPU that lacks it."""
    if kernel.has_barrier:
        raise NotSupported(f"kernel {kernel.name} has a barrier", means="the CPU device runs work-items one after another", remedy="lower it with the CPU's own options")
    machine = _host_machine()
    text = generate(kernel, HOST_FLAVOUR)
    if "half" in text and "x86" in machine.triple and not _binding().get_host_cpu_features().get("f16c"):
        raise NotSupported("float16 on a CPU without F16C", means="LLVM would call helper functions that this process does not have")
    engine = _host_engine()
    engine.add_module(_optimised(text, machine, kernel))
    engine.finalize_object()
    return HostFunction(engine.get_function_address(kernel.name), kernel)
