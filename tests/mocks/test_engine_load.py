"""Work of the engines as the rest of the machine feels it: load in the power model, the planned hang."""

from __future__ import annotations

import pytest

from drivers.amd.gpu import AmdGpu
from hw.errors import GpuHang
from tests.drivers.amd.support import bench


def booted(faults: str = "") -> AmdGpu:
    made = bench(faults=faults)
    made.dev.boot()
    gpu = AmdGpu(made.dev)
    gpu.timeout = 0.5
    return gpu


def test_kernels_and_copies_are_load() -> None:
    gpu = booted()
    card = gpu.dev.pci.machine.gpus[0]  # type: ignore[attr-defined]
    program = gpu.load(gpu.empty_object())
    kernel = next(iter(program.kernels.values()))
    busy = dict(card.busy_seconds)
    gpu.wait(gpu.launch(kernel, (4, 1, 1), (32, 1, 1), bytes(kernel.kernarg_size)))
    assert card.busy_seconds["gfx"] > busy["gfx"]
    busy = dict(card.busy_seconds)
    buffer = gpu.alloc(1 << 20)
    gpu.copy_in(buffer, bytes(1 << 20))
    gpu.synchronize()
    assert card.busy_seconds["memory"] - busy["memory"] > 1e-6
    assert card.busy_seconds["gfx"] == busy["gfx"]


def test_planned_hang_comes_after_a_number_of_launches() -> None:
    gpu = booted("engine-hang=2")
    kernel = next(iter(gpu.load(gpu.empty_object()).kernels.values()))
    for _ in range(2):
        gpu.wait(gpu.launch(kernel, (1, 1, 1), (32, 1, 1), bytes(kernel.kernarg_size)))
    with pytest.raises(GpuHang):
        gpu.wait(gpu.launch(kernel, (1, 1, 1), (32, 1, 1), bytes(kernel.kernarg_size)))
