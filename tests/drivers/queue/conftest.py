"""A booted Navi31 mock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from drivers.amd.device import AmdDevice
from drivers.amd.gpu import AmdGpu
from firmware.store import FirmwareStore
from hw.errors import GpuFault, GpuHang
from mocks.amd.fw import fabricate
from mocks.machine import Machine


def open_gpu(profile: str = "navi31", **options: object) -> AmdGpu:
    """Boot the GPU of a fresh simulated machine."""
    return open_on(Machine.from_profile(profile, **options))  # type: ignore[arg-type]


def open_on(machine: Machine) -> AmdGpu:
    """Boot the display-class function of a machine."""
    address = next(function.address for function in machine.functions() if function.identity().class_code >> 16 == 0x03)
    device = AmdDevice(machine.open(address), FirmwareStore.from_files(fabricate(machine.profile["gpu"]["chip"], machine.seed)))
    try:
        device.boot()
        gpu = AmdGpu(device)
    except BaseException:
        device.close()
        raise
    gpu.machine = machine  # type: ignore[attr-defined]
    return gpu


@pytest.fixture(scope="module")
def shared_gpu() -> Iterator[AmdGpu]:
    gpu = open_gpu()
    yield gpu
    gpu.close()


@pytest.fixture
def gpu(shared_gpu: AmdGpu) -> AmdGpu:
    """The module's GPU, idle and healthy."""
    shared_gpu.timeout = 10.0
    with suppress(GpuFault, GpuHang):
        shared_gpu.synchronize()
    return shared_gpu
