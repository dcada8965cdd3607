"""Kernels compiled by LLVM, launched through the whole driver on the simulated Navi31; and what happens when they go wrong.

R-numbers as in test_requirements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from drivers.amd.gpu import AmdGpu, Buffer
from drivers.amd.launch import MAX_GRID, Kernel
from drivers.queue.bench import launch_bench
from drivers.queue.graph import GraphArgumentError
from drivers.queue.memory import ArgumentRing, Slice
from drivers.queue.symbols import Variable
from hw.errors import GpuFault, GpuHang, KernelImageError, LaunchRefused, StampsLost
from tests.drivers.queue.conftest import open_gpu, open_on
from tests.drivers.queue.kernels import kernel_object

LoadKernel = Callable[[str], Kernel]
STRAY = 0x2ABC_DEAD_B000
"""an address of the GPU's window that nothing maps"""


@pytest.fixture(scope="module")
def loaded(shared_gpu: AmdGpu) -> dict[str, Kernel]:
    return {}


@pytest.fixture
def kernel(gpu: AmdGpu, loaded: dict[str, Kernel]) -> LoadKernel:
    def load(name: str) -> Kernel:
        if name not in loaded:
            (loaded[name],) = gpu.load(kernel_object(name)).kernels.values()
        return loaded[name]

    return load


@pytest.fixture
def pair(gpu: AmdGpu) -> Iterator[tuple[Buffer, Buffer]]:
    """a = [0, 1], b = [0, 0] as floats."""
    a, b = gpu.alloc(4096), gpu.alloc(4096)
    gpu.copy_in(a, struct.pack("<2f", 0, 1))
    gpu.copy_in(b, struct.pack("<2f", 0, 0))
    gpu.synchronize()
    yield a, b
    gpu.free(a)
    gpu.free(b)


def floats(gpu: AmdGpu, buffer: Buffer, count: int = 2) -> list[float]:
    return list(struct.unpack(f"<{count}f", gpu.copy_out(buffer, 4 * count)))


def words(gpu: AmdGpu, buffer: Buffer, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}I", gpu.copy_out(buffer, 4 * count)))


def pointers(*buffers: Buffer) -> bytes:
    return struct.pack(f"<{len(buffers)}Q", *(buffer.va for buffer in buffers))


def test_one_mebi_floats_are_added(gpu: AmdGpu, kernel: LoadKernel) -> None:
    count = 1 << 20
    random = np.random.default_rng(1)
    x, y = random.standard_normal(count, dtype=np.float32), random.standard_normal(count, dtype=np.float32)
    a, b, out = (gpu.alloc(4 * count) for _ in range(3))
    gpu.copy_in(a, x)
    gpu.copy_in(b, y)
    ticket = gpu.launch(kernel("add"), (count // 256, 1, 1), (256, 1, 1), pointers(out, a, b))
    result = np.frombuffer(gpu.copy_out(out), dtype=np.float32)
    assert np.array_equal(result, x + y)
    assert 0 < gpu.elapsed(ticket) < 1
    for buffer in (a, b, out):
        gpu.free(buffer)


def test_r6_one_launch(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(b, a))
    assert floats(gpu, b) == [1.0, 2.0]


def test_r7_a_queue_submitted_100_times_runs_in_order(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    plus_one = kernel("plus_one")
    arguments = gpu.alloc(4096)
    gpu.copy_in(arguments, pointers(b, a).ljust(64, b"\0") + pointers(a, b))
    value = Variable("value")
    timeline = gpu.timeline
    queue = gpu.compute_queue().wait(timeline.signal, value - 1)
    queue.memory_barrier()
    queue.execute(plus_one, arguments.va, (1, 1, 1), (2, 1, 1)).execute(plus_one, arguments.va + 64, (1, 1, 1), (2, 1, 1)).signal(timeline.signal, value)
    for _ in range(100):
        queue.submit({"value": timeline.advance()})
    assert floats(gpu, a) == [200.0, 201.0]


def test_r8_symbolic_sizes_run_exactly_one_work_item(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    arguments = gpu.alloc(4096)
    gpu.copy_in(arguments, pointers(b, a))
    timeline = gpu.timeline
    last = timeline.last
    queue = gpu.compute_queue().wait(timeline.signal, last)
    queue.execute(kernel("plus_one"), Variable("args", 64), (Variable("groups"), 1, 1), (Variable("items"), 1, 1)).signal(timeline.signal, timeline.advance())
    queue.submit({"args": arguments.va, "groups": 1, "items": 1})
    assert floats(gpu, b) == [1.0, 0.0]


def test_r9_three_dimensional_blocks_run_every_work_item_once(gpu: AmdGpu, kernel: LoadKernel) -> None:
    out = gpu.alloc(4096)
    count = kernel("count")
    x, y, z = Variable("x"), Variable("y"), Variable("z")
    arguments = gpu.alloc(4096)
    gpu.copy_in(arguments, pointers(out))
    for sizes in [(i, j, k) for i in (1, 2, 3) for j in (1, 2, 3) for k in (1, 2, 3)]:
        gpu.copy_in(out, bytes(4 * 27))
        timeline = gpu.timeline
        queue = gpu.compute_queue().wait(timeline.signal, timeline.last)
        queue.memory_barrier()
        queue.execute(count, arguments.va, (1, 1, 1), (x, y, z)).signal(timeline.signal, Variable("value"))
        queue.submit(dict(zip("xyz", sizes, strict=True)) | {"value": timeline.advance()})
        assert sum(words(gpu, out, 27)) == sizes[0] * sizes[1] * sizes[2]


def test_every_group_of_a_grid_runs(gpu: AmdGpu, kernel: LoadKernel) -> None:
    out = gpu.alloc(4096)
    gpu.copy_in(out, bytes(60))
    gpu.launch(kernel("group_ids"), (5, 3), (1,), pointers(out))
    assert words(gpu, out, 15) == list(range(1, 16))


def test_r17_time_stamps_around_a_launch(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    arguments = gpu.alloc(4096)
    gpu.copy_in(arguments, pointers(b, a))
    timeline = gpu.timeline
    start, end = gpu.signals.new(), gpu.signals.new()
    before = gpu.clock.now()
    queue = gpu.compute_queue().wait(timeline.signal, timeline.last)
    queue.timestamp(start).execute(kernel("plus_one"), arguments.va, (1, 1, 1), (2, 1, 1)).timestamp(end).signal(timeline.signal, timeline.advance())
    queue.submit()
    gpu.synchronize()
    assert 0.1 <= float(end.timestamp - start.timestamp) <= (gpu.clock.now() - before) * 1e6
    ticket = gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(b, a))
    assert 1e-7 <= gpu.elapsed(ticket) <= 1e-3


def test_r24_host_writes_to_video_memory_are_seen_by_the_next_launch(gpu: AmdGpu, kernel: LoadKernel) -> None:
    visible = gpu.dev.memory.alloc(4096, cpu_access=True)
    out = gpu.alloc(4096)
    assert visible.view is not None
    arguments = struct.pack("<2Q", out.va, visible.va)
    for number in range(1, 256):
        visible.view.write(0, struct.pack("<f", number))
        gpu.launch(kernel("plus_one"), (1, 1, 1), (1, 1, 1), arguments)
        assert floats(gpu, out, 1) == [number + 1.0]
    gpu.dev.memory.free(visible)


def test_forty_launches_each_waited_for(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, _ = pair
    for number in range(1, 41):
        gpu.wait(gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a)))
        gpu.synchronize()
        assert gpu.timeline.signal.value == gpu.timeline.last
        if number % 10 == 0:
            assert floats(gpu, a) == [number, number + 1.0]


def test_launches_go_on_while_the_timeline_wraps(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, _ = pair
    graph = gpu.record([(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a))])
    gpu.timeline.next_value = 2**32 - 20
    gpu.timeline.signal.value = 2**32 - 21
    lap = gpu.timeline.lap
    for _ in range(40):
        gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a))
        graph.replay()
        gpu.synchronize()
    assert gpu.timeline.lap == lap + 1
    assert gpu.timeline.last < 100
    assert floats(gpu, a) == [80.0, 81.0]
    graph.release()


def test_launches_and_copies_are_ordered_without_waiting(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    for _ in range(60):
        gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(b, a))
        gpu.copy(a, b, 8)
    assert floats(gpu, a) == [60.0, 61.0]


def test_kernel_arguments_are_not_overwritten_under_launches_that_still_wait(gpu: AmdGpu, kernel: LoadKernel) -> None:
    """All held back by a gate, then all run with their own arguments."""
    store = kernel("store_at")
    count = 600
    out = gpu.alloc(4 * count)
    gate = gpu.signals.new(0)
    timeline = gpu.timeline
    gpu.compute_queue().wait(gate, 1).signal(timeline.signal, timeline.advance()).submit()
    for number in range(count):
        gpu.launch(store, (1, 1, 1), (1, 1, 1), struct.pack("<QI", out.va + 4 * number, number))
    gate.value = 1
    assert words(gpu, out, count) == list(range(count))


def test_kernel_that_reads_its_dispatch_packet(gpu: AmdGpu, kernel: LoadKernel) -> None:
    out = gpu.alloc(4096)
    for block in (1, 32, 96, 1024):
        gpu.launch(kernel("recorded:sizes"), (1, 1, 1), (block, 1, 1), pointers(out))
        assert words(gpu, out, 1) == [block]
    graph = gpu.record([(kernel("recorded:sizes"), (1, 1, 1), (77, 1, 1), pointers(out))])
    graph.replay()
    assert words(gpu, out, 1) == [77]
    graph.release()
    with pytest.raises(LaunchRefused, match="work-items in 32 bits"):
        gpu.launch(kernel("recorded:sizes"), (MAX_GRID - 1, 1, 1), (2, 1, 1), pointers(out))


def test_kernel_with_local_and_private_memory_makes_scratch_grow(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    graph = gpu.record([(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a))])
    out = gpu.alloc(4096)
    reverse = kernel("recorded:lds_reverse")
    assert reverse.private_segment == 260
    assert gpu.scratch_values()["tmpring"] == 0x41200
    gpu.launch(reverse, (1, 1, 1), (64, 1, 1), struct.pack("<QI", out.va, 1000))
    assert words(gpu, out, 64) == [1000 + 63 - item for item in range(64)]
    gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(b, a))
    graph.replay()
    assert floats(gpu, b) == [1.0, 2.0]
    assert floats(gpu, a) == [1.0, 2.0]
    graph.release()


def test_recorded_add_kernel(gpu: AmdGpu, kernel: LoadKernel) -> None:
    add = kernel("recorded:add")
    assert add.kernarg_size == 24
    out, a, b = (gpu.alloc(4096) for _ in range(3))
    gpu.copy_in(a, struct.pack("<64f", *range(64)))
    gpu.copy_in(b, struct.pack("<64f", *(100.0 * item for item in range(64))))
    gpu.launch(add, (1, 1, 1), (64, 1, 1), pointers(out, a, b))
    assert floats(gpu, out, 64) == [101.0 * item for item in range(64)]


def test_kernel_with_a_relocated_constant_table(gpu: AmdGpu, kernel: LoadKernel) -> None:
    out = gpu.alloc(4096)
    gpu.launch(kernel("recorded:table"), (1, 1, 1), (16, 1, 1), pointers(out))
    assert words(gpu, out, 16) == [3, 1, 4, 1, 5, 9, 2, 6] * 2


def test_graph_replays_with_swapped_buffers(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    plus_one = kernel("plus_one")
    graph = gpu.record([(plus_one, (1, 1, 1), (2, 1, 1), pointers(b, a)), (plus_one, (1, 1, 1), (2, 1, 1), pointers(a, b))])
    for _ in range(5):
        graph.replay()
    assert floats(gpu, a) == [10.0, 11.0]
    c, d = gpu.alloc(4096), gpu.alloc(4096)
    gpu.copy_in(c, struct.pack("<2f", 100, 200))
    other = {(0, 0): d.va, (0, 8): c.va, (1, 0): c.va, (1, 8): d.va}
    first = {(0, 0): b.va, (0, 8): a.va, (1, 0): a.va, (1, 8): b.va}
    for _ in range(3):
        ticket = graph.replay(other)
        graph.replay(first)
    assert floats(gpu, c) == [106.0, 206.0]
    assert floats(gpu, a) == [16.0, 17.0]
    assert gpu.elapsed(ticket) > 0
    with pytest.raises(GraphArgumentError):
        graph.replay({(2, 0): 1})
    assert floats(gpu, a) == [16.0, 17.0]
    graph.release()


def test_long_graph_of_many_launches(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, _ = pair
    graph = gpu.record([(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a))] * 200)
    graph.replay()
    graph.replay()
    assert floats(gpu, a) == [400.0, 401.0]
    graph.release()


def test_launches_that_make_no_sense_are_refused_and_nothing_is_submitted(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, b = pair
    plus_one = kernel("plus_one")
    good = pointers(b, a)
    before = gpu.timeline.last
    for grid, block, arguments in (
        ((0, 1, 1), (1, 1, 1), good),
        ((1, 1, 1), (0, 1, 1), good),
        ((1, 1, 1), (1025, 1, 1), good),
        ((1, 1, 1), (32, 32, 2), good),
        ((1 << 32, 1, 1), (1, 1, 1), good),
        ((-1, 1, 1), (1, 1, 1), good),
        ((1, 1, 1, 1), (1, 1, 1), good),
        ((), (1, 1, 1), good),
        ((1, 1, 1), (1, 1, 1), good[:-1]),
        ((1, 1, 1), (1, 1, 1), good + b"\0"),
    ):
        with pytest.raises(LaunchRefused):
            gpu.launch(plus_one, grid, block, arguments)
        with pytest.raises(LaunchRefused):
            gpu.record([(plus_one, grid, block, arguments)])
    with pytest.raises(LaunchRefused):
        gpu.record([])
    assert gpu.timeline.last == before
    gpu.launch(plus_one, (1, 1, 1), (2, 1, 1), good)
    assert floats(gpu, b) == [1.0, 2.0]


def test_object_of_another_chip_is_refused(gpu: AmdGpu) -> None:
    with pytest.raises(KernelImageError, match="gfx1102 on gfx1100"):
        gpu.load(kernel_object("empty", "gfx1102"))


def test_time_of_a_launch_long_ago_is_not_made_up(gpu: AmdGpu, kernel: LoadKernel) -> None:
    empty = kernel("empty")
    ticket = gpu.launch(empty, (1, 1, 1), (1, 1, 1), b"")
    gpu.wait(ticket)
    gpu._serial += 5000  # as after 5000 more launches
    with pytest.raises(StampsLost):
        gpu.elapsed(ticket)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def assert_works(gpu: AmdGpu, kernel: LoadKernel) -> None:
    """The next copy, launch, graph and synchronize are clean."""
    a, b = gpu.alloc(4096), gpu.alloc(4096)
    gpu.copy_in(a, struct.pack("<2f", 7, 8))
    gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(b, a))
    assert floats(gpu, b) == [8.0, 9.0]
    gpu.synchronize()


def test_page_fault_of_a_store_is_decoded_and_the_next_launch_works(gpu: AmdGpu, kernel: LoadKernel) -> None:
    ticket = gpu.launch(kernel("store_at"), (1, 1, 1), (1, 1, 1), struct.pack("<QI", STRAY, 1))
    with pytest.raises(GpuFault) as caught:
        gpu.wait(ticket)
    text = str(caught.value)
    assert f"{STRAY:#x}" in text
    assert "write by TCP" in text
    assert "not mapped" in caught.value.means
    assert "the next launch starts clean" in caught.value.remedy
    assert_works(gpu, kernel)


def test_page_fault_of_a_load_is_decoded_and_the_next_launch_works(gpu: AmdGpu, kernel: LoadKernel) -> None:
    out = gpu.alloc(4096)
    gpu.copy_in(out, struct.pack("<I", 0x600D))
    gpu.launch(kernel("load_at"), (1, 1, 1), (1, 1, 1), struct.pack("<2Q", out.va, STRAY))
    with pytest.raises(GpuFault) as caught:
        gpu.synchronize()
    assert f"{STRAY:#x}" in str(caught.value)
    assert "read by TCP" in str(caught.value)
    assert words(gpu, out, 1) == [0], "the load was served by the dummy page"
    assert_works(gpu, kernel)


def test_page_fault_of_a_copy_is_decoded_and_the_next_copy_works(gpu: AmdGpu, kernel: LoadKernel) -> None:
    a = gpu.alloc(4096)
    gpu.submit_copy(a.va, STRAY, 64)
    with pytest.raises(GpuFault) as caught:
        gpu.copy_out(a, 4)
    assert f"{STRAY:#x}" in str(caught.value)
    assert "SDMA" in str(caught.value)
    assert_works(gpu, kernel)


def test_endless_kernel_is_a_hang_with_the_state_of_the_queue_and_the_next_launch_works(gpu: AmdGpu, kernel: LoadKernel) -> None:
    gpu.timeout = 0.5
    spin = kernel("spin")
    before = gpu.clock.now()
    ticket = gpu.launch(spin, (1, 1, 1), (32, 1, 1), b"")
    follower = gpu.launch(kernel("empty"), (1, 1, 1), (1, 1, 1), b"")
    with pytest.raises(GpuHang) as caught:
        gpu.wait(follower)
    assert 0.5 <= gpu.clock.now() - before < 1.0
    state = caught.value.read
    assert f"unfinished: kernel spin, code at {spin.entry:#x}" in state
    assert "next packet EVENT_WRITE, which waits for the waves to end" in state
    assert "CP_HQD_ACTIVE = 0x1" in state
    assert "raise the limit" in caught.value.remedy
    gpu.wait(ticket)
    assert_works(gpu, kernel)


def test_wait_that_nobody_satisfies_is_a_hang_of_the_copy_queue_and_names_its_packet(gpu: AmdGpu, kernel: LoadKernel) -> None:
    gpu.timeout = 0.2
    gate = gpu.signals.new(0)
    gpu.copy_queue().wait(gate, 1).signal(gpu.timeline.signal, gpu.timeline.advance()).submit()
    a = gpu.alloc(4096)
    with pytest.raises(GpuHang, match="no progress") as caught:
        gpu.copy_out(a, 4)
    assert "next packet POLL_REGMEM" in caught.value.read
    gate.value = 1
    assert_works(gpu, kernel)


def test_many_failures_in_a_row_are_each_survived(gpu: AmdGpu, kernel: LoadKernel) -> None:
    gpu.timeout = 0.05
    for _ in range(3):
        gpu.launch(kernel("spin"), (1, 1, 1), (1, 1, 1), b"")
        with pytest.raises(GpuHang):
            gpu.synchronize()
        gpu.launch(kernel("store_at"), (1, 1, 1), (1, 1, 1), struct.pack("<QI", STRAY, 1))
        with pytest.raises(GpuFault):
            gpu.synchronize()
        assert_works(gpu, kernel)


# --- other machines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "arch"), [("navi31-small-bar", "gfx1100"), ("navi32", "gfx1101"), ("navi33", "gfx1102")])
def test_launch_copy_and_graph_on_other_machines(profile: str, arch: str) -> None:
    with open_gpu(profile) as gpu:
        assert gpu.arch == arch
        (plus_one,) = gpu.load(kernel_object("plus_one", arch)).kernels.values()
        a = gpu.alloc(4096)
        gpu.copy_in(a, struct.pack("<2f", 0, 1))
        gpu.launch(plus_one, (1, 1, 1), (2, 1, 1), pointers(a, a))
        graph = gpu.record([(plus_one, (1, 1, 1), (2, 1, 1), pointers(a, a))] * 3)
        graph.replay()
        assert floats(gpu, a) == [4.0, 5.0]


def test_gpu_opened_again_after_a_clean_close_works() -> None:
    first = open_gpu()
    machine = first.machine  # type: ignore[attr-defined]
    (spin,) = first.load(kernel_object("spin")).kernels.values()
    first.timeout = 0.05
    first.launch(spin, (1, 1, 1), (1, 1, 1), b"")
    with pytest.raises(GpuHang):
        first.synchronize()
    first.close()
    for _ in range(2):
        with open_on(machine) as gpu:
            (add,) = gpu.load(kernel_object("add")).kernels.values()
            a, out = gpu.alloc(4096), gpu.alloc(4096)
            gpu.copy_in(a, np.arange(1024, dtype=np.float32))
            gpu.launch(add, (4, 1, 1), (256, 1, 1), pointers(out, a, a))
            assert np.array_equal(np.frombuffer(gpu.copy_out(out), dtype=np.float32), 2 * np.arange(1024, dtype=np.float32))


def test_close_of_a_gpu_that_hangs_does_not_raise() -> None:
    gpu = open_gpu()
    (spin,) = gpu.load(kernel_object("spin")).kernels.values()
    gpu.timeout = 0.05
    gpu.launch(spin, (1, 1, 1), (1, 1, 1), b"")
    gpu.close()


def test_arguments_that_wrap_around_their_ring_stay_right(gpu: AmdGpu, kernel: LoadKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = gpu.rings.arguments
    small = ArgumentRing(Slice(memory.va, 4096, memory.view.view(0, 4096)), last_value=lambda: gpu.timeline.last, wait=gpu.wait_value)
    monkeypatch.setattr(gpu, "_arguments", small)
    store = kernel("store_at")
    count = 300
    out = gpu.alloc(4 * count)
    for number in range(count):
        gpu.launch(store, (1, 1, 1), (1, 1, 1), struct.pack("<QI", out.va + 4 * number, number))
    assert words(gpu, out, count) == list(range(count))


def test_held_launches_run_when_somebody_waits(gpu: AmdGpu, kernel: LoadKernel, pair: tuple[Buffer, Buffer]) -> None:
    a, _ = pair
    with gpu.rings.compute.hold():
        for _ in range(5):
            ticket = gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a))
        gpu.clock.sleep(1e-3)
        assert not gpu.timeline.reached(ticket)
        gpu.wait(ticket)
        gpu.launch(kernel("plus_one"), (1, 1, 1), (2, 1, 1), pointers(a, a))
    gpu.synchronize()
    assert floats(gpu, a) == [6.0, 7.0]


def test_benchmark_reports_every_figure(gpu: AmdGpu) -> None:
    figures = launch_bench(gpu)
    assert figures["launch_ring_dwords"] == 101
    assert all(value > 0 for value in figures.values())
    gpu.synchronize()
