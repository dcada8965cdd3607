"""What a queue implementation must do, on the simulated Navi31: signals, waits, copies, writes, binding, wrap-around.

R-numbers are those of the requirement list that the project follows. Not here: R12 (test_sdma_packets: the split; the copies themselves
move up to 6 GiB), R8, R9, R17, R24 and everything that needs a kernel (test_kernels), R16, R19, R23, R29 to R33 (more than one device,
CPU devices, other vendors: there is one AMD GPU so far), AQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from drivers.amd.gpu import AmdGpu, Buffer
from drivers.queue.builder import PLACEHOLDER, Queue
from drivers.queue.signals import Signal
from drivers.queue.symbols import Variable
from hw.errors import BufferRange, WaitTimeout

NewQueue = Callable[[], Queue]


@pytest.fixture(params=["compute", "copy"])
def new_queue(gpu: AmdGpu, request: pytest.FixtureRequest) -> NewQueue:
    return gpu.compute_queue if request.param == "compute" else gpu.copy_queue


def submit(gpu: AmdGpu, queue: Queue, **values: int) -> int:
    """Close a queue with the next value of the timeline and submit it; that value."""
    value = gpu.timeline.advance()
    queue.signal(gpu.timeline.signal, value).submit(values)
    return value


def both(gpu: AmdGpu, first: bytes, second: bytes) -> tuple[Buffer, Buffer]:
    a, b = gpu.alloc(4096), gpu.alloc(4096)
    gpu.copy_in(a, first)
    gpu.copy_in(b, second)
    gpu.synchronize()
    return a, b


def test_r1_signal_arrives(gpu: AmdGpu, new_queue: NewQueue) -> None:
    value = submit(gpu, new_queue())
    gpu.timeline.signal.wait(value, timeout=1)
    assert gpu.timeline.signal.value == value


def test_r2_symbolic_signal_is_patched_again_when_only_the_value_changes(gpu: AmdGpu, new_queue: NewQueue) -> None:
    signal = gpu.signals.new(0)
    queue = new_queue().signal(Signal(Variable("where", 64)), Variable("value"))
    for value in (41, 42):
        queue.submit({"where": signal.va, "value": value})
        signal.wait(value, timeout=1)
        assert signal.value == value
    assert PLACEHOLDER not in queue.words


def test_r3_wait_that_is_already_true_passes(gpu: AmdGpu, new_queue: NewQueue) -> None:
    gate = gpu.signals.new(1)
    value = submit(gpu, new_queue().wait(gate, 1))
    gpu.timeline.signal.wait(value, timeout=1)


def test_r4_wait_stalls_until_the_host_sets_the_signal(gpu: AmdGpu, new_queue: NewQueue) -> None:
    gate = gpu.signals.new(0)
    value = submit(gpu, new_queue().wait(gate, 1))
    with pytest.raises(WaitTimeout, match="Wait timeout"):
        gpu.timeline.signal.wait(value, timeout=0.5)
    gate.value = 1
    gpu.timeline.signal.wait(value, timeout=0.5)


def test_r5_wait_with_symbolic_address_and_value(gpu: AmdGpu, new_queue: NewQueue) -> None:
    gate = gpu.signals.new(0x30)
    value = submit(gpu, new_queue().wait(Signal(Variable("where", 64)), Variable("value")), where=gate.va, value=0x30)
    gpu.timeline.signal.wait(value, timeout=1)


@pytest.mark.parametrize("size", [8, 64 << 20])
def test_r10_r11_copies_are_exact(gpu: AmdGpu, size: int) -> None:
    data = os.urandom(size)
    a, b = gpu.alloc(size), gpu.alloc(size)
    gpu.copy_in(a, data)
    gpu.copy(b, a, size)
    assert gpu.copy_out(b, size) == data
    gpu.free(a)
    gpu.free(b)
    gpu.release_freed()


@pytest.mark.parametrize(("size", "source", "destination"), [(1, 0, 0), (1, 3, 4094), (4093, 1, 2), (4096, 0, 0), (70001, 4095, 11), ((2 << 20) + 1, 5, 7), (5_000_003, 1, 4097)])
def test_copies_of_odd_sizes_and_offsets_touch_nothing_else(gpu: AmdGpu, size: int, source: int, destination: int) -> None:
    room = size + 3 * 4096
    a, b = gpu.alloc(room), gpu.alloc(room)
    first, second = os.urandom(room), os.urandom(room)
    gpu.copy_in(a, first)
    gpu.copy_in(b, second)
    gpu.copy(b, a, size, destination, source)
    assert gpu.copy_out(b) == second[:destination] + first[source : source + size] + second[destination + size :]
    gpu.copy_in(b, second[:size], offset=destination)
    assert gpu.copy_out(b, size, destination) == second[:size]
    assert gpu.copy_out(b, 1, destination + size) == second[destination + size : destination + size + 1]


@pytest.mark.parametrize("size", [8, 64 << 20])
def test_r13_r14_copy_with_symbolic_addresses(gpu: AmdGpu, size: int) -> None:
    data = os.urandom(size)
    a, b = gpu.alloc(size), gpu.alloc(size)
    gpu.copy_in(a, data)
    gpu.synchronize()
    queue = gpu.copy_queue().copy(Variable("to", 64), Variable("from", 64), size)
    value = submit(gpu, queue, **{"to": b.va, "from": a.va})
    gpu.wait_value(value)
    assert gpu.copy_out(b, size) == data
    gpu.free(a)
    gpu.free(b)
    gpu.release_freed()


def test_r15_bound_queue_is_patched_where_it_lies(gpu: AmdGpu, new_queue: NewQueue) -> None:
    gate = gpu.signals.new(7)
    arrived = gpu.signals.new(0)
    queue = new_queue().wait(Signal(Variable("where", 64)), Variable("wanted")).signal(arrived, Variable("value"))
    queue.bind(gpu)
    for value in range(1, 12):
        queue.submit({"where": gate.va, "wanted": 7, "value": value})
        arrived.wait(value, timeout=1)
    queue.unbind()


def test_r18_time_stamps_around_a_copy_of_200_megabytes(gpu: AmdGpu) -> None:
    size = 200_000_000
    a, b = gpu.alloc(size), gpu.alloc(size)
    start, end = gpu.signals.new(), gpu.signals.new()
    before = gpu.clock.now()
    value = submit(gpu, gpu.copy_queue().timestamp(start).copy(b.va, a.va, size).timestamp(end))
    gpu.wait_value(value)
    seconds = float(end.timestamp - start.timestamp) / 1e6
    assert 0 < seconds <= gpu.clock.now() - before
    assert 10e9 < size / seconds < 1000e9
    gpu.free(a)
    gpu.free(b)
    gpu.release_freed()


def test_r20_timeline_starts_again_before_its_values_reach_32_bits(gpu: AmdGpu, new_queue: NewQueue) -> None:
    first = gpu.timeline.signal
    gpu.timeline.next_value = 2**32 - 20
    first.value = 2**32 - 21
    lap = gpu.timeline.lap
    for number in range(40):
        timeline = gpu.timeline
        submit(gpu, new_queue().wait(timeline.signal, timeline.last))
        gpu.synchronize()
        assert gpu.timeline.lap == lap + 1
        assert gpu.timeline.next_value == number + 1
    assert gpu.timeline.signal is not first
    assert first.value == 2**32 - 20


def test_old_tickets_stay_done_across_two_laps(gpu: AmdGpu) -> None:
    a, b = both(gpu, b"x" * 16, b"y" * 16)
    ticket = gpu.copy(b, a, 16)
    for _ in range(2):
        gpu.timeline.next_value = 2**31 + 5
        gpu.timeline.signal.value = 2**31 + 4
        gpu.synchronize()
    gpu.copy_in(a, b"z")
    gpu.wait(ticket)


def test_copies_go_on_while_the_timeline_wraps(gpu: AmdGpu) -> None:
    a = gpu.alloc(4096)
    gpu.timeline.next_value = 2**32 - 20
    gpu.timeline.signal.value = 2**32 - 21
    for number in range(40):
        gpu.copy_in(a, bytes([number]), offset=number)
        gpu.synchronize()
    assert gpu.copy_out(a, 40) == bytes(range(40))


def test_forty_rounds_of_submit_and_synchronize(gpu: AmdGpu, new_queue: NewQueue) -> None:
    before = gpu.timeline.last
    for _ in range(40):
        timeline = gpu.timeline
        submit(gpu, new_queue().wait(timeline.signal, timeline.last))
        gpu.synchronize()
    assert gpu.timeline.signal.value == before + 40


def test_r21_each_changed_byte_of_the_host_arrives(gpu: AmdGpu) -> None:
    host, device = gpu.alloc(4096, host=True), gpu.alloc(4096)
    view = host.allocation.view
    assert view is not None
    for number in range(256):
        view.write8(0, number)
        gpu.copy(device, host, 1)
        assert gpu.copy_out(device, 1)[0] == number


def test_r22_copies_of_one_queue_see_each_other(gpu: AmdGpu) -> None:
    host, first, second = gpu.alloc(4096, host=True), gpu.alloc(4096), gpu.alloc(4096)
    view = host.allocation.view
    assert view is not None
    for number in range(256):
        view.write8(0, number)
        submit(gpu, gpu.copy_queue().copy(first.va, host.va, 1).copy(second.va, first.va, 1))
        gpu.synchronize()
        assert gpu.copy_out(second, 1)[0] == number


def test_r25_barrier_on_one_queue_then_copies_on_the_other(gpu: AmdGpu) -> None:
    visible = gpu.dev.memory.alloc(4096, cpu_access=True)
    first, second = gpu.alloc(4096), gpu.alloc(4096)
    assert visible.view is not None
    for number in range(256):
        visible.view.write8(0, number)
        timeline = gpu.timeline
        submit(gpu, gpu.compute_queue().wait(timeline.signal, timeline.last).memory_barrier())
        submit(gpu, gpu.copy_queue().wait(timeline.signal, timeline.last).copy(first.va, visible.va, 1).copy(second.va, first.va, 1))
        assert gpu.copy_out(second, 1)[0] == number
    gpu.dev.memory.free(visible)


def test_r26_write_stores_a_word_or_two(gpu: AmdGpu, new_queue: NewQueue) -> None:
    a = gpu.alloc(4096)
    gpu.copy_in(a, b"\xff" * 32)
    gpu.synchronize()
    submit(gpu, new_queue().write(a.va, 0x42).write(a.va + 16, 0x1122334455667788, b64=True))
    assert gpu.copy_out(a, 32) == b"\x42\0\0\0" + b"\xff" * 12 + bytes.fromhex("8877665544332211") + b"\xff" * 8


def test_symbolic_write(gpu: AmdGpu, new_queue: NewQueue) -> None:
    a = gpu.alloc(4096)
    submit(gpu, new_queue().write(Variable("where", 64) + 4, Variable("what", 64), b64=False).write(a.va + 8, Variable("what", 64), b64=True), where=a.va, what=0x42)
    assert gpu.copy_out(a, 12, 4) == b"\x42\0\0\0" + b"\x42\0\0\0\0\0\0\0"


@pytest.mark.parametrize(("stored", "value"), [(0x01000000, 0x01000000), (0xFE000000, 0)])
def test_r27_r28_poll_bit(gpu: AmdGpu, new_queue: NewQueue, stored: int, value: int) -> None:
    a = gpu.alloc(4096)
    done = submit(gpu, new_queue().write(a.va, stored).poll_bit(a.va, value, 0x01000000))
    gpu.wait_value(done)


def test_poll_bit_that_is_false_stalls(gpu: AmdGpu, new_queue: NewQueue) -> None:
    gate = gpu.signals.new(0xFE000000)
    done = submit(gpu, new_queue().poll_bit(gate.va, 0x01000000, 0x01000000))
    with pytest.raises(WaitTimeout):
        gpu.timeline.signal.wait(done, timeout=0.2)
    gate.value = 0x01000000
    gpu.wait_value(done)


def test_the_two_queues_take_turns_by_the_timeline(gpu: AmdGpu) -> None:
    a = gpu.alloc(4096)
    for number in range(64):
        timeline = gpu.timeline
        queue = gpu.compute_queue() if number % 2 else gpu.copy_queue()
        submit(gpu, queue.wait(timeline.signal, timeline.last).write(a.va, number))
        submit(gpu, gpu.copy_queue().wait(timeline.signal, timeline.last).copy(a.va + 4 * (number + 1), a.va, 4))
    assert gpu.copy_out(a, 256, 4) == b"".join(number.to_bytes(4, "little") for number in range(64))


def test_rings_wrap_many_times(gpu: AmdGpu, new_queue: NewQueue) -> None:
    """Each submission is 30 KiB of waits; the rings are 1 MiB and 256 KiB."""
    gate = gpu.signals.new(1)
    for _ in range(80):
        queue = new_queue()
        for _ in range(1100):
            queue.wait(gate, 1)
        submit(gpu, queue)
    gpu.synchronize()
    assert gpu.rings.compute.put * 4 > 2 * gpu.rings.compute.size or gpu.rings.sdma.put > 8 * gpu.rings.sdma.size


def test_copies_beyond_a_buffer_are_refused_and_nothing_is_submitted(gpu: AmdGpu) -> None:
    a, b = gpu.alloc(100), gpu.alloc(50)
    before = gpu.timeline.last
    for attempt in (
        lambda: gpu.copy_in(a, bytes(101)),
        lambda: gpu.copy_in(a, bytes(1), offset=100),
        lambda: gpu.copy_in(a, bytes(1), offset=-1),
        lambda: gpu.copy_out(a, 101),
        lambda: gpu.copy_out(a, -1),
        lambda: gpu.copy(b, a, 51),
        lambda: gpu.copy(b, a, 10, 0, 91),
    ):
        with pytest.raises(BufferRange):
            attempt()
    assert gpu.timeline.last == before
    assert gpu.copy_out(a, 0) == b""
    gpu.copy_in(a, b"")
    assert gpu.timeline.last == before


def test_freed_buffers_are_reused_and_really_freed_on_demand(gpu: AmdGpu) -> None:
    gpu.release_freed()
    free = gpu.dev.memory.available
    a = gpu.alloc(1 << 20)
    va = a.va
    gpu.free(a)
    assert gpu.alloc(1 << 20).va == va
    gpu.free(a)
    gpu.release_freed()
    assert gpu.dev.memory.available == free
