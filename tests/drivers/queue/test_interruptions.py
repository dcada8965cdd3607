"""Ctrl-C at any moment of work on a GPU: what was going on is lost, the next piece of work is right, and so is the next process."""

from __future__ import annotations

import random
import struct

import pytest

from drivers.amd.gpu import AmdGpu
from mocks.machine import Machine
from tests.drivers.queue.conftest import open_on
from tests.drivers.queue.kernels import kernel_object

MIB = 1 << 20


def work(gpu: AmdGpu) -> tuple[float, float]:
    """Buffers, copies, launches and a graph; everything is given back for good."""
    (plus_one,) = gpu.load(kernel_object("plus_one")).kernels.values()
    a, b = gpu.alloc(4096), gpu.alloc(MIB)
    gpu.copy_in(a, struct.pack("<2f", 1, 2))
    gpu.copy_in(b, bytes(MIB))
    arguments = struct.pack("<2Q", a.va, a.va)
    for _ in range(3):
        gpu.launch(plus_one, (1, 1, 1), (2, 1, 1), arguments)
    graph = gpu.record([(plus_one, (1, 1, 1), (2, 1, 1), arguments)] * 4)
    graph.replay()
    result = struct.unpack("<2f", gpu.copy_out(a, 8))
    graph.release()
    gpu.free(a)
    gpu.free(b)
    gpu.release_freed()
    return result  # type: ignore[return-value]


def press_after(machine: Machine, seconds: float) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    machine.scheduler.call_later(seconds, press, "Ctrl-C")


def test_work_after_interrupted_work_is_right() -> None:
    machine = Machine.from_profile("navi31")
    choose = random.Random(1)
    with open_on(machine) as gpu:
        work(gpu)
        start = machine.clock.now()
        assert work(gpu) == (8.0, 9.0)
        takes = machine.clock.now() - start
        for _ in range(60):
            press_after(machine, takes * choose.random())
            with pytest.raises(KeyboardInterrupt):
                work(gpu)
            assert work(gpu) == (8.0, 9.0)
    assert machine.gpus[0].resets == 0


def test_an_interrupted_invalidation_gives_the_semaphore_back() -> None:
    machine = Machine.from_profile("navi31")
    with open_on(machine) as gpu:
        for moment in range(12):
            press_after(machine, moment * 0.5e-6)
            with pytest.raises(KeyboardInterrupt):
                while True:
                    gpu.dev.invalidate_tlb()
            gpu.dev.invalidate_tlb()


@pytest.mark.parametrize("seed", range(6))
def test_the_process_after_an_interrupted_one_works(seed: int) -> None:
    """Anywhere between opening and closing. A card that was left in the middle of something is reset, one that was closed cleanly is not."""
    machine = Machine.from_profile("navi31")
    choose = random.Random(seed)

    def session() -> tuple[float, float]:
        with open_on(machine) as gpu:
            return work(gpu)

    session()
    start = machine.clock.now()
    session()
    takes = machine.clock.now() - start
    for _ in range(3):
        press_after(machine, takes * choose.random())
        with pytest.raises(KeyboardInterrupt):
            session()
        assert session() == (8.0, 9.0)
