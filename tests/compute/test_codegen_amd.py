"""Code for AMD GPUs: the object files, judged by pyelftools and by what the ISA document says of kernel descriptors."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from helpers import edges

from compute import Tensor, Variable, dtypes, runtime
from compute.errors import CompileError, NotExecuted, NotSupported
from compute.index import constant
from compute.ir import Builder, Kernel, Param

MACHINE_OF = {"gfx1100": 0x41, "gfx1201": 0x4E, "gfx950": 0x4F}
"""Low byte of e_flags (LLVM's AMDGPU usage document)."""
DEVICE = "NULL::gfx1100"


def objects_of(*tensors: Tensor) -> dict[str, bytes]:
    """The objects that realizing these tensors compiles."""
    device = runtime.device(tensors[0].device)
    known = set(device.objects)
    tensors[0].realize(*tensors[1:])
    return {name: code for name, code in device.objects.items() if name not in known}


def empty(*shape: int, dtype: str = "float32", device: str = DEVICE) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=device)


def descriptor_of(code: bytes, name: str) -> bytes:
    elf = ELFFile(io.BytesIO(code))
    symbol = next(s for s in elf.get_section_by_name(".symtab").iter_symbols() if s.name == f"{name}.kd")
    section = elf.get_section(symbol["st_shndx"])
    return section.data()[symbol["st_value"] : symbol["st_value"] + 64]


@pytest.mark.parametrize("arch", MACHINE_OF)
def test_object_exports_the_kernel_and_its_descriptor(arch: str) -> None:
    t = empty(100, 37, device=f"NULL::{arch}")
    ((name, code),) = objects_of(t * 2 + empty(37, device=t.device)).items()
    elf = ELFFile(io.BytesIO(code))
    assert elf["e_type"] == "ET_REL" and elf["e_machine"] == "EM_AMDGPU" and elf["e_flags"] & 0xFF == MACHINE_OF[arch]
    assert elf.header["e_ident"]["EI_ABIVERSION"] == 3
    symbols = {s.name: s for s in elf.get_section_by_name(".symtab").iter_symbols()}
    assert symbols[name]["st_info"]["type"] == "STT_FUNC" and symbols[name]["st_value"] % 256 == 0
    assert symbols[f"{name}.kd"]["st_info"]["type"] == "STT_OBJECT" and symbols[f"{name}.kd"]["st_size"] == 64
    assert all(s["st_shndx"] != "SHN_UNDEF" for n, s in symbols.items() if n)
    lds, private, kernarg = struct.unpack_from("<III", descriptor_of(code, name))
    assert (lds, private, kernarg) == (0, 0, 24)


def test_descriptor_of_a_kernel_with_sizes_and_workgroup_memory() -> None:
    n = Variable("n", 1, 4096)
    ((name, code),) = objects_of(empty(4096)[: n.bind(5)].sum()).items()
    lds, private, kernarg = struct.unpack_from("<III", descriptor_of(code, name))
    assert (lds, private, kernarg) == (256 * 4, 0, 20)
    properties = struct.unpack_from("<H", descriptor_of(code, name), 56)[0]
    assert properties & 0x408 == 0x408, "wave32 with a kernarg pointer"
    assert not properties & 0x33, "no hidden pointers"


def test_every_op_and_dtype_compiles_for_gfx1100() -> None:
    # float64 functions, which LLVM cannot compile on this target by itself, are among them
    for dtype in dtypes.ALL:
        a, b = (empty(8, dtype=dtype.name) for _ in range(2))
        results = [a.maximum(b), (a == b).where(a, b), a < b, a.sum(), a.max(), *(a.cast(d) for d in dtypes.ALL)]
        if dtype is not dtypes.bool_:
            results += [a + b, a * b, a // b, a % b, a**b, -a, abs(a)]
        if dtype.is_int:
            results += [a & b, a << b, a >> b, ~a]
        if dtype.is_float:
            results += [getattr(a, op)() for op in ("sqrt", "exp", "exp2", "log", "log2", "sin", "cos", "tanh", "floor", "ceil", "trunc", "round", "sigmoid")]
        device = runtime.device(DEVICE)
        before = device.launched
        results[0].realize(*results[1:])
        assert device.launched > before
        for code in device.objects.values():
            assert code[:4] == b"\x7fELF"


@pytest.mark.skipif(shutil.which("llvm-objdump-19") is None, reason="llvm-objdump-19 (Debian package llvm-19) is not installed")
def test_machine_code_of_the_usual_kernels_is_what_a_gpu_wants(tmp_path: Path) -> None:
    def listing(t: Tensor) -> str:
        ((name, code),) = objects_of(t).items()
        file = tmp_path / f"{name}.o"
        file.write_bytes(code)
        text = subprocess.run(["llvm-objdump-19", "-d", "--mcpu=gfx1100", str(file)], capture_output=True, text=True, check=True).stdout
        return "\n".join(line for line in text.splitlines() if "s_code_end" not in line)

    add = listing(empty(1 << 20) + empty(1 << 20))
    assert add.count("global_load_b128") == 2 and add.count("global_store_b128") == 1
    assert add.count("\n") < 30 and "cbranch" not in add
    product = listing(empty(64, 64) @ empty(64, 64))
    assert product.count("global_load_b128") == 8 and product.count("fmac_f32") >= 60 and "scratch" not in product
    total = listing(empty(256).sum())
    assert "ds_store_b32" in total and "s_barrier" in total and "ds_load" in total


def test_division_and_square_root_are_not_approximations() -> None:
    ((_, text),) = _llvm_of(empty(4096) / empty(4096) + empty(4096).sqrt()).items()
    assert "fdiv <4 x float>" in text and "@llvm.sqrt" in text
    for loose in ("fast", "arcp", "afn", "!fpmath", "reassoc"):
        assert loose not in text


def _llvm_of(t: Tensor) -> dict[str, str]:
    from compute.codegen import llvm
    from compute.lower import lower
    from compute.plan import GPU
    from compute.schedule import schedule

    steps = schedule([t.node])
    kernels = [lower(s.graph, s.params, GPU) for s in steps]
    return {k.name: llvm.amd_text(k) for k in kernels}


def test_data_of_the_null_device_is_refused_not_invented() -> None:
    t = empty(4) + 1
    t.realize()
    with pytest.raises(NotExecuted, match="NULL::gfx1100") as caught:
        t.numpy()
    assert "DEV=CPU" in caught.value.remedy
    for read in (t.tolist, t.sum().item, lambda: t.to("CPU").numpy()):
        with pytest.raises(NotExecuted):
            read()


def test_architectures_that_are_not_known_are_refused() -> None:
    for name in ("NULL::gfx700", "NULL::sm_90", "NULL::x86_64"):
        with pytest.raises(NotSupported, match=name.split("::")[1]):
            Tensor.ones(2, device=name).realize()


def test_a_kernel_that_llvm_refuses_is_reported_with_its_text() -> None:
    from compute.codegen import llvm

    b = Builder()
    b.effect("store", dtypes.float32, (b.const(0, dtypes.int32), b.pure("add", dtypes.float32, 1, (b.const(1, dtypes.int32), b.const(1, dtypes.float32)))), (0, 0, False))
    with pytest.raises(CompileError, match="kernel wrong"):
        llvm.compile_amd(Kernel("wrong", [Param(dtypes.float32, 1, True)], [], b.body, constant(1), 32), "gfx1100")


def test_the_same_ir_compiles_to_the_same_bytes() -> None:
    from compute.codegen import llvm
    from compute.lower import lower
    from compute.plan import GPU
    from compute.schedule import schedule

    (step,) = schedule([(empty(33, 5) * 3).node])
    first, second = (llvm.compile_amd(lower(step.graph, step.params, GPU), "gfx1100") for _ in range(2))
    assert first == second


def test_edges_are_edges() -> None:
    assert np.isnan(edges(dtypes.float32)).any() and edges(dtypes.int8).min() == -128
