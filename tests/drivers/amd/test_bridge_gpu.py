"""A GPU behind a USB bridge at work: right results, few transfers, faults found, with both firmwares of the bridge."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from drivers.amd.bridge import FILLS_A_SUBMISSION, INLINE_LIMIT, MARK_BYTES, PART
from drivers.amd.direct import READ_LIMIT, WRITE_LIMIT
from drivers.amd.gpu import AmdGpu
from drivers.amd.launch import Kernel
from hw.errors import GpuFault, GpuHang
from tests.bridges.simulated import CUSTOM, STOCK, machine_with, open_gpu
from tests.drivers.queue.kernels import kernel_object

MIB = 1 << 20
FILL = 512 << 10
PAYLOAD = FILL // PART * (PART - MARK_BYTES)
"""bytes of data in one whole fill of the bridge's memory"""


@pytest.fixture(scope="module", params=[CUSTOM, STOCK])
def any_gpu(request: pytest.FixtureRequest) -> Iterator[AmdGpu]:
    gpu = open_gpu(machine_with(request.param))
    yield gpu
    gpu.close()


@pytest.fixture(scope="module")
def gpu() -> Iterator[AmdGpu]:
    gpu = open_gpu(machine_with(CUSTOM))
    yield gpu
    gpu.close()


def transfers(gpu: AmdGpu, action: Callable[[], object]) -> int:
    """USB transfers of an action."""
    before = gpu.dev.pci.counts.copy()  # type: ignore[attr-defined]
    action()
    return gpu.dev.pci.counts.since(before).transfers  # type: ignore[attr-defined, no-any-return]


def load(gpu: AmdGpu, name: str) -> Kernel:
    (kernel,) = gpu.load(kernel_object(name)).kernels.values()
    return kernel


def pattern(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


# --- results ----------------------------------------------------------------------------------------------------------

SMALL = [1, 3, 4, 7, READ_LIMIT, READ_LIMIT + 1, WRITE_LIMIT, WRITE_LIMIT + 1, 4096, 5001]
PARTS = [PART - MARK_BYTES, PART - MARK_BYTES + 1, PART]
FILLS = [PAYLOAD - 1, PAYLOAD, PAYLOAD + 1, PAYLOAD + INLINE_LIMIT, PAYLOAD + INLINE_LIMIT + 4, FILL, FILL + 1]
LARGE = [*PARTS, *FILLS, 4 * MIB, 3 * FILL + 777]


@pytest.mark.parametrize("size", SMALL)
def test_copies_of_every_small_size_are_exact(any_gpu: AmdGpu, size: int) -> None:
    check_copy(any_gpu, size, 0)


@pytest.mark.parametrize("size", LARGE)
def test_copies_of_every_large_size_are_exact(gpu: AmdGpu, size: int) -> None:
    check_copy(gpu, size, 0)


@pytest.mark.parametrize("offset", [1, 4, 4093])
def test_copies_at_any_offset_leave_their_neighbours_alone(gpu: AmdGpu, offset: int) -> None:
    for size in (6, 3000, FILL + 5000):
        check_copy(gpu, size, offset)


def test_copy_longer_than_one_submission(gpu: AmdGpu) -> None:
    check_copy(gpu, FILLS_A_SUBMISSION * PAYLOAD + 12345, 0)


def check_copy(gpu: AmdGpu, size: int, offset: int) -> None:
    edge = 64
    buffer = gpu.alloc(offset + size + edge)
    around = pattern(buffer.size, 1) if buffer.size < 4 * MIB else None
    if around is not None:
        gpu.copy_in(buffer, around)
    data = pattern(size, size)
    gpu.copy_in(buffer, data, offset)
    assert gpu.copy_out(buffer, size, offset) == data
    if around is not None:
        assert gpu.copy_out(buffer) == around[:offset] + data + around[offset + size :]
    gpu.free(buffer)


def test_copies_and_kernels_are_in_order(any_gpu: AmdGpu) -> None:
    gpu = any_gpu
    kernel = load(gpu, "plus_one")
    a, b = gpu.alloc(8192), gpu.alloc(8192)
    for start in range(3):
        gpu.copy_in(a, np.full(2048, start, np.float32).tobytes())
        gpu.launch(kernel, (1, 1, 1), (16, 1, 1), struct.pack("<2Q", b.va, a.va))
        gpu.copy_in(a, np.full(2048, 100.0, np.float32).tobytes())  # must not overtake the kernel
        assert np.frombuffer(gpu.copy_out(b, 64), np.float32).tolist() == [start + 1] * 16


def test_host_write_of_a_few_bytes_is_seen_by_the_next_kernel(any_gpu: AmdGpu) -> None:
    gpu = any_gpu
    kernel = load(gpu, "plus_one")
    a, b = gpu.alloc(4096), gpu.alloc(4096)
    for value in (1.0, 2.0, 3.0):
        gpu.copy_in(a, struct.pack("<f", value))
        gpu.launch(kernel, (1, 1, 1), (1, 1, 1), struct.pack("<2Q", b.va, a.va))
        assert struct.unpack("<f", gpu.copy_out(b, 4)) == (value + 1,)


def test_strict_machine_accepts_every_flush() -> None:
    gpu = open_gpu(machine_with(CUSTOM, strict=True))
    kernel = load(gpu, "plus_one")
    a, b = gpu.alloc(1 << 16), gpu.alloc(1 << 16)
    data = np.arange(1 << 14, dtype=np.float32)
    gpu.copy_in(a, data.tobytes())
    gpu.launch(kernel, (1, 1, 1), (1024, 1, 1), struct.pack("<2Q", b.va, a.va))
    assert np.array_equal(np.frombuffer(gpu.copy_out(b), np.float32)[:1024], data[:1024] + 1)
    gpu.copy_in(a, struct.pack("<f", 41.0), 40)
    gpu.launch(kernel, (1, 1, 1), (16, 1, 1), struct.pack("<2Q", b.va, a.va))
    assert struct.unpack("<f", gpu.copy_out(b, 4, 40)) == (42.0,)
    gpu.close()


def test_graphs_and_elapsed_times(gpu: AmdGpu) -> None:
    kernel = load(gpu, "plus_one")
    buffer = gpu.alloc(4096)
    gpu.copy_in(buffer, bytes(4))
    graph = gpu.record([(kernel, (1, 1, 1), (1, 1, 1), struct.pack("<2Q", buffer.va, buffer.va))] * 5)
    ticket = graph.replay()
    assert 0 < gpu.elapsed(ticket) < 1e-3
    graph.replay()
    assert struct.unpack("<f", gpu.copy_out(buffer, 4)) == (10.0,)
    graph.release()


# --- transfers --------------------------------------------------------------------------------------------------------


def test_boot_and_open_stay_below_their_targets() -> None:
    from drivers.amd.device import AmdDevice
    from tests.bridges.simulated import FIRMWARE, open_pci

    pci = open_pci(machine_with(CUSTOM))
    before = pci.counts.copy()
    device = AmdDevice(pci, FIRMWARE)
    device.boot()
    assert pci.counts.since(before).transfers <= 700
    gpu = AmdGpu(device)
    opened = pci.counts.since(before)
    assert opened.transfers <= 1800
    assert opened.bytes_out < 2 * MIB, "nothing large is cleared dword by dword"
    gpu.close()


def test_launch_is_eight_transfers_and_waiting_two_more(gpu: AmdGpu) -> None:
    kernel = load(gpu, "plus_one")
    buffer = gpu.alloc(4096)
    arguments = struct.pack("<2Q", buffer.va, buffer.va)
    gpu.wait(gpu.launch(kernel, (1, 1, 1), (1, 1, 1), arguments))
    tickets = []
    assert transfers(gpu, lambda: tickets.append(gpu.launch(kernel, (1, 1, 1), (1, 1, 1), arguments))) <= 8
    assert transfers(gpu, lambda: gpu.wait(tickets[0])) <= 2
    assert transfers(gpu, lambda: gpu.wait(tickets[0])) == 0, "what is known to be done is not looked at again"
    assert transfers(gpu, gpu.synchronize) == 0


def test_four_bytes_are_at_most_four_transfers_each_way_also_after_a_launch(gpu: AmdGpu) -> None:
    kernel = load(gpu, "plus_one")
    buffer = gpu.alloc(4096)
    arguments = struct.pack("<2Q", buffer.va, buffer.va)
    gpu.launch(kernel, (1, 1, 1), (1, 1, 1), arguments)
    assert transfers(gpu, lambda: gpu.copy_in(buffer, b"\0\0\0\0")) <= 4
    assert transfers(gpu, lambda: gpu.copy_in(buffer, b"\0\0\0\0")) == 1
    gpu.launch(kernel, (1, 1, 1), (1, 1, 1), arguments)
    assert transfers(gpu, lambda: gpu.copy_out(buffer, 4)) <= 4
    assert transfers(gpu, lambda: gpu.copy_out(buffer, 4)) == 2


@pytest.mark.parametrize("mib", [1, 4, 16])
def test_large_copies_are_three_transfers_a_fill_and_six_for_the_commands(gpu: AmdGpu, mib: int) -> None:
    """The floor of the bridge's protocol: see docs/usb.md."""
    data = pattern(mib * MIB)
    buffer = gpu.alloc(len(data))
    fills = len(data) // FILL
    gpu.copy_in(buffer, data)
    gpu.synchronize()
    assert transfers(gpu, lambda: gpu.copy_in(buffer, data)) <= 3 * fills - 1 + 6
    gpu.synchronize()
    assert transfers(gpu, lambda: gpu.copy_out(buffer)) <= 3 * fills - 1 + 6


def test_copies_go_at_the_speed_of_the_connection(gpu: AmdGpu) -> None:
    data = pattern(16 * MIB)
    buffer = gpu.alloc(len(data))
    clock = gpu.dev.clock
    start = clock.now()
    gpu.copy_in(buffer, data)
    gpu.synchronize()
    middle = clock.now()
    gpu.copy_out(buffer)
    for seconds in (middle - start, clock.now() - middle):
        assert len(data) / seconds > 400e6, "the simulated bridge moves 700 MB/s"


# --- failures ---------------------------------------------------------------------------------------------------------


def test_fault_of_a_kernel_is_found_by_the_look_at_the_timeline() -> None:
    gpu = open_gpu(machine_with(CUSTOM))
    store = load(gpu, "store_at")
    ticket = gpu.launch(store, (1, 1, 1), (1, 1, 1), struct.pack("<QI", 0x2F00_0000_0000, 7).ljust(store.kernarg_size, b"\0"))
    with pytest.raises(GpuFault, match="page fault"):
        gpu.wait(ticket)
    buffer = gpu.alloc(4096)
    gpu.launch(store, (1, 1, 1), (1, 1, 1), struct.pack("<QI", buffer.va, 7).ljust(store.kernarg_size, b"\0"))
    assert gpu.copy_out(buffer, 4) == b"\x07\0\0\0"
    gpu.close()


def test_hang_is_noticed_and_copies_work_afterwards() -> None:
    gpu = open_gpu(machine_with(CUSTOM))
    gpu.timeout = 0.05
    spin = load(gpu, "spin")
    gpu.launch(spin, (1, 1, 1), (1, 1, 1), b"")
    with pytest.raises(GpuHang):
        gpu.copy_out(gpu.alloc(4096), 4096)
    gpu.timeout = 10.0
    check_copy(gpu, FILL + 4096, 0)
    gpu.close()


def test_next_process_goes_on_with_other_marks_than_one_that_died_in_a_copy() -> None:
    machine = machine_with(CUSTOM)
    first = open_gpu(machine)
    check_copy(first, 4 * MIB, 0)
    numbers = first._copies._drained  # type: ignore[attr-defined]
    first.close()
    second = open_gpu(machine)
    assert second._copies._drained - numbers >= 1 << 16  # type: ignore[attr-defined]
    check_copy(second, 4 * MIB, 0)
    second.close()
