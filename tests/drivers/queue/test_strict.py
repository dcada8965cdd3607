"""The queues on a strict machine, where every flush and every wait counts; and broken drivers that it must notice."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from drivers.amd import pm4
from drivers.amd.gpu import AmdGpu
from drivers.amd.launch import Kernel
from drivers.amd.pm4 import ComputeQueue
from drivers.amd.sdma_packets import CopyQueue
from hw.errors import GpuFault, GpuHang
from tests.drivers.queue.conftest import open_gpu
from tests.drivers.queue.kernels import kernel_object


@pytest.fixture
def gpu() -> Iterator[AmdGpu]:
    gpu = open_gpu(strict=True)
    gpu.timeout = 0.1
    yield gpu
    gpu.close()


def load(gpu: AmdGpu, name: str) -> Kernel:
    (kernel,) = gpu.load(kernel_object(name)).kernels.values()
    return kernel


def host_writes_seen(gpu: AmdGpu, rounds: int = 20) -> bool:
    """R24: each value that the host writes to video memory is seen by the launch after it."""
    plus_one = load(gpu, "plus_one")
    visible = gpu.dev.memory.alloc(4096, cpu_access=True)
    out = gpu.alloc(4096)
    assert visible.view is not None
    for number in range(1, rounds):
        visible.view.write(0, struct.pack("<f", number))
        gpu.launch(plus_one, (1, 1, 1), (1, 1, 1), struct.pack("<2Q", out.va, visible.va))
        if struct.unpack("<f", gpu.copy_out(out, 4)) != (number + 1.0,):
            return False
    return True


def chain(gpu: AmdGpu, rounds: int = 10) -> list[float]:
    """Launches and copies that take turns without the host waiting."""
    plus_one = load(gpu, "plus_one")
    a, b = gpu.alloc(4096), gpu.alloc(4096)
    gpu.copy_in(a, struct.pack("<2f", 0, 1))
    for _ in range(rounds):
        gpu.launch(plus_one, (1, 1, 1), (2, 1, 1), struct.pack("<2Q", b.va, a.va))
        gpu.copy(a, b, 8)
    return list(struct.unpack("<2f", gpu.copy_out(a, 8)))


def test_kernels_and_copies_are_right(gpu: AmdGpu) -> None:
    count = 4096
    random = np.random.default_rng(2)
    x, y = random.standard_normal(count, dtype=np.float32), random.standard_normal(count, dtype=np.float32)
    a, b, out = (gpu.alloc(4 * count) for _ in range(3))
    gpu.copy_in(a, x)
    gpu.copy_in(b, y)
    gpu.launch(load(gpu, "add"), (count // 256, 1, 1), (256, 1, 1), struct.pack("<3Q", out.va, a.va, b.va))
    assert np.array_equal(np.frombuffer(gpu.copy_out(out), dtype=np.float32), x + y)
    assert chain(gpu) == [10.0, 11.0]
    assert host_writes_seen(gpu)


def test_graph_is_right_when_its_arguments_change_between_replays(gpu: AmdGpu) -> None:
    plus_one = load(gpu, "plus_one")
    a, b = gpu.alloc(4096), gpu.alloc(4096)
    gpu.copy_in(a, struct.pack("<2f", 0, 1))
    gpu.copy_in(b, struct.pack("<2f", 100, 200))
    graph = gpu.record([(plus_one, (1, 1, 1), (2, 1, 1), struct.pack("<2Q", a.va, a.va))] * 3)
    for _ in range(4):
        graph.replay({(number, place): a.va for number in range(3) for place in (0, 8)})
        graph.replay({(number, place): b.va for number in range(3) for place in (0, 8)})
    assert struct.unpack("<2f", gpu.copy_out(a, 8)) == (12.0, 13.0)
    assert struct.unpack("<2f", gpu.copy_out(b, 8)) == (112.0, 212.0)


def test_missing_flush_of_host_writes_is_noticed(gpu: AmdGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ComputeQueue, "write_then_wait", lambda self, *registers: self)
    gpu.rings.compute._flush = lambda: None  # type: ignore[method-assign]
    gpu.rings.sdma._flush = lambda: None  # type: ignore[method-assign]
    assert not host_writes_seen(gpu)


def test_missing_wait_for_the_timeline_is_noticed(gpu: AmdGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ComputeQueue, "wait", lambda self, signal, value: self.append(pm4.pm4_header(0x10, 1), value))
    monkeypatch.setattr(CopyQueue, "wait", lambda self, signal, value: self)
    assert chain(gpu) != [10.0, 11.0]


def test_doorbell_that_nobody_rings_is_a_hang(gpu: AmdGpu) -> None:
    empty = load(gpu, "empty")
    gpu.synchronize()
    gpu.rings.compute._doorbell = lambda value: None  # type: ignore[method-assign]
    gpu.launch(empty, (1, 1, 1), (1, 1, 1), b"")
    with pytest.raises(GpuHang) as caught:
        gpu.synchronize()
    assert "CP_HQD_PQ_WPTR_LO = 0x0" in caught.value.read


def test_wrong_code_address_is_a_fault(gpu: AmdGpu) -> None:
    empty = load(gpu, "empty")
    empty.entry += 1 << 32
    gpu.launch(empty, (1, 1, 1), (1, 1, 1), b"")
    with pytest.raises(GpuFault) as caught:
        gpu.synchronize()
    assert f"{empty.entry:#x}" in str(caught.value)


def new_code_runs(gpu: AmdGpu) -> bool:
    """A program whose memory held another program that ran."""
    out = gpu.alloc(4096)
    gpu.copy_in(out, bytes(8))
    first = gpu.load(kernel_object("store_at"))
    (store,) = first.kernels.values()
    gpu.launch(store, (1, 1, 1), (1, 1, 1), struct.pack("<QI", out.va, 1))
    gpu.unload(first)
    second = gpu.load(kernel_object("group_ids"))
    (ids,) = second.kernels.values()
    assert ids.entry == store.entry
    gpu.launch(ids, (2, 1, 1), (1, 1, 1), struct.pack("<Q", out.va))
    return gpu.copy_out(out, 8) == struct.pack("<2I", 1, 2)


def test_new_code_at_an_old_address_runs(gpu: AmdGpu) -> None:
    assert new_code_runs(gpu)


def test_missing_invalidation_of_the_instruction_cache_is_noticed(gpu: AmdGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ComputeQueue.acquire_mem
    monkeypatch.setattr(ComputeQueue, "acquire_mem", lambda self, caches=pm4.ACQUIRE_ALL, *range: original(self, caches & ~pm4.Gcr.GLI, *range))
    try:
        assert not new_code_runs(gpu)
    except GpuFault:
        return


def test_missing_invalidation_of_the_caches_is_noticed(gpu: AmdGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second launch reads the first one's arguments, or data, from a cache."""
    monkeypatch.setattr(ComputeQueue, "acquire_mem", lambda self, *arguments, **named: self)
    try:
        assert not host_writes_seen(gpu) or chain(gpu) != [10.0, 11.0]
    except GpuFault:
        return
