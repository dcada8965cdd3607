"""The same function compiled for the simulated GPU and for this host, and run on the same data."""

from __future__ import annotations

import ctypes
import io
import struct
from dataclasses import dataclass, replace

import llvmlite.binding as llvm
import numpy as np
from elftools.elf.elffile import ELFFile

from mocks.isa.bench import Kernel, compile_kernel, optimised_module
from mocks.isa.executor import DONE, Executor, Run
from mocks.isa.native import target_machine
from mocks.isa.port import EXEC, READ, WRITE, FlatMemory

RELOCATION_LOW, RELOCATION_HIGH = 10, 11  # R_AMDGPU_REL32_LO, _HI


def linked_kernel(ir: str) -> tuple[Kernel, int]:
    """A kernel whose code refers to other functions of the module, and the offset of its first instruction."""
    kernel = compile_kernel(ir)
    module, machine = optimised_module(ir)
    image = ELFFile(io.BytesIO(machine.emit_object(module)))
    symbols = image.get_section_by_name(".symtab")
    code = bytearray(kernel.code)
    for relocation in image.get_section_by_name(".rela.text").iter_relocations():
        place, addend = relocation["r_offset"], relocation["r_addend"]
        value = (symbols.get_symbol(relocation["r_info_sym"])["st_value"] + addend - place) % (1 << 64)
        assert relocation["r_info_type"] in (RELOCATION_LOW, RELOCATION_HIGH)
        struct.pack_into("<I", code, place, value >> 32 if relocation["r_info_type"] == RELOCATION_HIGH else value & 0xFFFFFFFF)
    entry = symbols.get_symbol_by_name("kernel")[0]["st_value"]
    return replace(kernel, code=bytes(code)), entry


CODE, KERNARG, DATA, SCRATCH = 0x10_0000_0000, 0x11_0000_0000, 0x20_0000_0000, 0x30_0000_0000
STEP = 0x1000_0000
GROUP = 256

BYTES = {"<2 x half>": 4, "<2 x i16>": 4, "<4 x i8>": 4, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8}


@dataclass
class Function:
    """Element-wise functions over the same inputs, as LLVM IR.

    inputs: types of %a, %b, %c. outputs: (name, type, lines that end with the value %r). i1 values are bytes in memory.
    """

    inputs: list[str]
    outputs: list[tuple[str, str, str]]
    declarations: str = ""

    def definitions(self) -> str:
        params = ", ".join(f"{ty} %{name}" for ty, name in zip(self.inputs, "abcd", strict=False))
        text = ""
        for index, (_, ty, body) in enumerate(self.outputs):
            text += f"define internal {ty} @f{index}({params}) alwaysinline {{\n{body}\n  ret {ty} %r\n}}\n"
        return text + self.declarations

    def body(self, space: str, index: str) -> str:
        """Loads, calls and stores for element %index of type i64; pointers are %p0.. and %out0..."""
        lines = []
        args = []
        for k, (ty, name) in enumerate(zip(self.inputs, "abcd", strict=False)):
            memory = "i8" if ty == "i1" else ty
            lines.append(f"  %{name}p = getelementptr {memory}, ptr{space} %p{k}, i64 {index}")
            lines.append(f"  %{name}m = load {memory}, ptr{space} %{name}p, align {BYTES[ty]}")
            lines.append(f"  %{name} = trunc i8 %{name}m to i1" if ty == "i1" else f"  %{name} = freeze {ty} %{name}m")
            args.append(f"{ty} %{name}")
        for k, (_, ty, _) in enumerate(self.outputs):
            memory = "i8" if ty == "i1" else ty
            lines.append(f"  %r{k} = call {ty} @f{k}({', '.join(args)})")
            value = f"%r{k}"
            if ty == "i1":
                lines.append(f"  %z{k} = zext i1 %r{k} to i8")
                value = f"%z{k}"
            lines.append(f"  %o{k} = getelementptr {memory}, ptr{space} %out{k}, i64 {index}")
            lines.append(f"  store {memory} {value}, ptr{space} %o{k}, align {BYTES[ty]}")
        return "\n".join(lines)

    def gpu_ir(self, attributes: str = "") -> str:
        space = " addrspace(1)"
        params = [f"ptr{space} noalias %out{k}" for k in range(len(self.outputs))] + [f"ptr{space} noalias readonly %p{k}" for k in range(len(self.inputs))]
        return f"""
{self.definitions()}
define amdgpu_kernel void @kernel({", ".join(params)}) #0 {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %start = mul i32 %g, {GROUP}
  %i32 = add i32 %start, %t
  %i = zext i32 %i32 to i64
{self.body(space, "%i")}
  ret void
}}
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
attributes #0 = {{ nounwind "amdgpu-flat-work-group-size"="{GROUP},{GROUP}" "uniform-work-group-size"="true" {attributes} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
"""

    def host_ir(self) -> str:
        params = [f"ptr %out{k}" for k in range(len(self.outputs))] + [f"ptr %p{k}" for k in range(len(self.inputs))]
        return f"""
{self.definitions()}
define void @kernel({", ".join(params)}, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{self.body("", "%i")}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def host_results(function: Function, inputs: list[np.ndarray]) -> list[bytes]:
    """What this host computes, compiled without optimisations that could fold or fuse."""
    count = len(inputs[0])
    module = llvm.parse_assembly(function.host_ir())
    machine = target_machine(1)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(1))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    outputs = [(ctypes.c_char * (count * BYTES[ty]))() for _, ty, _ in function.outputs]
    addresses = [ctypes.addressof(o) for o in outputs] + [a.ctypes.data for a in inputs] + [count]
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * len(addresses))(engine.get_function_address("kernel"))
    native(*addresses)
    return [bytes(o) for o in outputs]


class Gpu:
    """An address space with buffers, and launches over it."""

    def __init__(self, **options: object) -> None:
        self.memory = FlatMemory()
        self.next = DATA
        self.executor = Executor(self.memory, **options)  # type: ignore[arg-type]

    def buffer(self, content: bytes | int, rights: int = READ | WRITE) -> int:
        """GPU address of a new buffer with that content, or of that many zero bytes."""
        data = bytes(content) if isinstance(content, int) else content
        va = self.next
        self.memory.map(va, max(len(data), 1), rights, data)
        self.next += max(STEP, -(-len(data) // STEP) * STEP)
        return va

    def start(
        self, kernel: Kernel, groups: int, arguments: bytes, group_size: tuple[int, int, int] = (GROUP, 1, 1), entry: int = 0, **more: object
    ) -> Run:
        for region in [r for r in self.memory.regions if r.start in (CODE, KERNARG, SCRATCH)]:
            self.memory.unmap(region)
        self.memory.map(CODE, len(kernel.code), READ | EXEC, kernel.code)
        self.memory.map(KERNARG, max(len(arguments), 1), READ, arguments)
        if kernel.private_bytes:
            waves = -(-group_size[0] * group_size[1] * group_size[2] // 32) * 8
            wave_bytes = -(-kernel.private_bytes * 32 // 256) * 256
            self.memory.map(SCRATCH, waves * wave_bytes, READ | WRITE)
            more = {"scratch_base": SCRATCH, "scratch_wave_bytes": wave_bytes, "scratch_waves": waves} | more
        return self.executor.start(kernel.dispatch(CODE + entry, group_size, (groups, 1, 1), KERNARG, **more))


def gpu_results(function: Function, inputs: list[np.ndarray], attributes: str = "", **options: object) -> list[bytes]:
    """What the simulated GPU computes from the same functions."""
    count = len(inputs[0])
    assert count % GROUP == 0
    kernel = compile_kernel(function.gpu_ir(attributes))
    gpu = Gpu(**options)
    outputs = [gpu.buffer(count * BYTES[ty]) for _, ty, _ in function.outputs]
    pointers = outputs + [gpu.buffer(a.tobytes(), READ) for a in inputs]
    run = gpu.start(kernel, count // GROUP, struct.pack(f"<{len(pointers)}Q", *pointers))
    state = run.run()
    assert state.kind == DONE, state
    return [gpu.memory.read(va, count * BYTES[ty]) for va, (_, ty, _) in zip(outputs, function.outputs, strict=True)]
