"""Devices: the registry, the shared kernel IR on several of them, what importing loads, errors when opening."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest
from helpers import GPU, assert_same

from compute import Tensor, runtime
from compute.bench import compile_bench
from compute.codegen import interpreter, llvm
from compute.errors import DeviceMismatch, NotSupported
from compute.lower import lower
from compute.plan import CPU
from compute.plan import GPU as GPU_OPTIONS
from compute.runtime import Buffer
from compute.schedule import schedule
from hw.errors import EXIT_USAGE, GpuFault, GpuHang, TargetError


def test_one_device_a_name_however_it_is_written() -> None:
    assert runtime.device("cpu") is runtime.device("CPU")
    assert runtime.device("NULL::GFX1100") is runtime.device("NULL::gfx1100")
    assert runtime.device("CPU") is not runtime.device("PYTHON")


def test_names_that_are_wrong_or_not_built_are_typed_errors() -> None:
    with pytest.raises(TargetError, match="CPUU"):
        runtime.device("CPUU")
    with pytest.raises(NotSupported, match="NV"):
        runtime.device("NV")
    with pytest.raises(NotSupported):
        runtime.device("MOCKKFD+AMD")


def test_memory_is_reused_after_its_owner_is_gone() -> None:
    device = runtime.device("PYTHON")
    buffer = Buffer(device, 5000)
    handle = buffer.ready()
    del buffer
    assert Buffer(device, 5000).ready() is handle


def test_copies_keep_to_the_size_of_the_buffer() -> None:
    device = runtime.device("CPU")
    buffer = Buffer(device, 3)
    buffer.write(b"abc")
    assert bytes(buffer.read()) == b"abc"


@pytest.mark.parametrize("options", [CPU, GPU_OPTIONS], ids=["loops", "work-items"])
def test_the_same_kernel_ir_gives_the_same_bytes_in_machine_code_and_interpreted(options) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 40), dtype=np.float32), rng.standard_normal((40, 36), dtype=np.float32)
    a, b = Tensor(x, device="PYTHON"), Tensor(y, device="PYTHON")
    for result in (a @ b, (a * 2).sin() + a.T.reshape(24, 40), a.max(0), (b.T @ a.T).gelu(), a.pad(((1, 2), (0, 3))), a[::-1, ::2] / 3):
        (step,) = schedule([result.node])
        kernel = lower(step.graph, step.params, options)
        assert not kernel.has_barrier
        memory = [bytearray(p.count * p.dtype.size) for p in kernel.params]
        for raw, storage in zip(memory[1:], step.inputs, strict=True):
            raw[:] = storage.buffer.read()
        interpreted = [bytearray(m) for m in memory]
        interpreter.run(kernel, interpreted, {})
        arrays = [np.frombuffer(m, np.uint8).copy() for m in memory]
        aligned = [runtime.device("CPU").alloc(len(m)) for m in arrays]
        for target, source in zip(aligned, arrays, strict=True):
            target[:] = source
        llvm.compile_host(kernel)([m.ctypes.data for m in aligned], [], kernel.groups.evaluate({}))
        assert aligned[0].tobytes() == bytes(interpreted[0])


def test_a_kernel_with_barriers_is_refused_by_the_host_compiler() -> None:
    (step,) = schedule([Tensor.empty(4096, device="PYTHON").sum().node])
    kernel = lower(step.graph, step.params, GPU_OPTIONS)
    assert kernel.has_barrier
    with pytest.raises(NotSupported, match="barrier"):
        llvm.compile_host(kernel)


def test_importing_loads_no_compiler_and_no_mock() -> None:
    program = "import sys, hw, drivers, compute; print(sorted({'llvmlite', 'mocks', 'rich', 'typer', 'elftools', 'usb'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_compiler_benchmark_makes_loadable_objects() -> None:
    figures = compile_bench(rounds=1)
    assert set(figures) == {"add", "matmul_64"}
    assert all(figure["object_bytes"] > 1000 and min(figure.values()) > 0 for figure in figures.values())


def test_a_processor_that_this_machine_is_not_is_refused() -> None:
    other = "aarch64" if platform.machine() != "aarch64" else "x86_64"
    with pytest.raises(NotSupported, match=f"{other} code on this machine"):
        Tensor([1], device=f"CPU::{other}").tolist()
    assert Tensor([1], device=f"CPU::{platform.machine()}").tolist() == [1]


def test_options_that_no_device_reads_are_refused() -> None:
    with pytest.raises(TargetError, match="option in device string"):
        Tensor([1], device="CPU,threads=4").tolist()


def test_tiny_test_passes_on_the_cpu_and_the_simulated_gpu() -> None:
    for name in ("CPU", GPU):
        done = _tiny_test(name)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "16 of 16 right" in done.stdout


def test_tiny_test_on_null_compiles_and_claims_no_result() -> None:
    done = _tiny_test("NULL::gfx1100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 of 16 compiled" in done.stdout and "no result was checked" in done.stdout
    assert "pass" not in done.stdout and "right" not in done.stdout


def test_tiny_test_names_what_is_wrong_without_a_traceback() -> None:
    for name, status, text in (("FOO", EXIT_USAGE, "allowed: AMD"), ("NV", 1, "not built"), ("MOCKKFD+AMD", 1, "not built")):
        done = _tiny_test(name)
        assert done.returncode == status
        assert text in done.stderr and "do:" in done.stderr and "Traceback" not in done.stderr
    done = _tiny_test("CPU", "no such case")
    assert done.returncode == EXIT_USAGE and "the cases are" in done.stderr


def test_tiny_test_notices_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from compute import tiny_test

    device = runtime.device("PYTHON")
    monkeypatch.setenv("DEV", "PYTHON")
    right = interpreter.run

    def off_by_one(kernel, buffers, sizes) -> None:  # type: ignore[no-untyped-def]
        right(kernel, buffers, sizes)
        buffers[0][0] ^= 1

    monkeypatch.setattr(interpreter, "run", off_by_one)
    case = next(c for c in tiny_test.CASES if c.name == "plus_int")
    outcome = tiny_test.run_case(case, device)
    assert not outcome.good and outcome.verdict == "wrong result"


def _tiny_test(dev: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run([sys.executable, "-m", "compute.tiny_test", *arguments], capture_output=True, text=True, check=False, env={**os.environ, "DEV": dev})


@pytest.mark.slow
def test_work_on_the_simulated_gpu_is_timed_on_its_own_clock() -> None:
    device = runtime.device(GPU)
    x = np.arange(1000, dtype=np.float32)
    with device.timed() as timing:
        result = (Tensor(x, device=GPU) * 2).realize()
    assert timing.seconds is not None and 0 < timing.seconds < 0.1
    assert_same(result.numpy(), x * 2)


def test_results_of_work_that_failed_are_lost_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    device = runtime.device("PYTHON")
    t = Tensor([1, 2, 3], device="PYTHON")
    first, second = t + 1, t + 2
    first.realize(second)
    works = device.copyout
    monkeypatch.setattr(device, "copyout", _raise_fault)
    with pytest.raises(GpuFault):
        first.numpy()
    monkeypatch.setattr(device, "copyout", works)
    for lost in (first, second, second * 2, first.sum()):
        with pytest.raises(GpuFault, match="page fault at"):
            lost.numpy()
    assert (t + 1).tolist() == [2, 3, 4]
    first.assign(t)
    assert first.tolist() == [1, 2, 3]


def test_a_launch_that_fails_leaves_the_tensor_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    device = runtime.device("PYTHON")
    works = device.start
    monkeypatch.setattr(device, "start", _raise_fault)
    t = Tensor([1, 2, 3], device="PYTHON") + 40
    with pytest.raises(GpuFault):
        t.realize()
    monkeypatch.setattr(device, "start", works)
    assert t.tolist() == [41, 42, 43]


def test_memory_of_a_closed_device_is_not_used_on_its_successor() -> None:
    t = Tensor([1, 2], device="PYTHON").realize()
    runtime.close_all()
    with pytest.raises(DeviceMismatch, match="PYTHON"):
        (t + 1).realize()


def _raise_fault(*_: object) -> None:
    raise GpuFault("page fault at 0x1000")


@pytest.mark.slow
def test_a_hang_of_the_simulated_gpu_loses_the_results_and_says_so() -> None:
    name = f"{GPU},fault=engine-hang=1"
    t = Tensor([1, 2, 3], device=name)
    assert (t + 1).tolist() == [2, 3, 4]
    second = t + 2
    third = second * 2
    for lost in (second, third, second):
        with pytest.raises(GpuHang, match="unfinished: kernel map_3"):
            lost.tolist()


@pytest.mark.parametrize("device", ["CPU", "PYTHON", pytest.param(GPU, marks=pytest.mark.slow)])
def test_kernels_over_more_than_two_gigabytes_count_in_64_bits(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from compute import lower as module

    monkeypatch.setattr(module, "_INDEX_LIMIT", 16)
    x = np.random.default_rng(0).integers(-9, 9, (17, 23), dtype=np.int32)
    t = Tensor(x, device=device)
    assert_same((t.T.flip(0)[1:, ::2] * 5).numpy(), x.T[::-1][1:, ::2] * 5)
    assert_same(t.sum(0).numpy(), x.sum(0, dtype=np.int32))
    assert_same(t.pad(((1, 1), (2, 0))).sum().numpy(), np.asarray(x.sum(dtype=np.int32)))
    assert_same((t @ t.T).numpy(), x @ x.T)
    assert_same(t.cat(t, axis=1).numpy(), np.concatenate([x, x], 1))
    assert_same((Tensor.arange(23, device=device) + t).numpy(), np.arange(23, dtype=np.int32) + x)


def test_a_kernel_on_huge_memory_compiles() -> None:
    t = Tensor.empty(3 << 30, dtype="uint8", device="NULL::gfx1100")
    (t + t[-1]).realize()
    (step,) = schedule([(t * 2).node])
    assert lower(step.graph, step.params, GPU_OPTIONS).index_dtype.name == "int64"
