"""The device-independent parts of the queue model, on plain memory."""

from __future__ import annotations

import struct
from typing import Self

import pytest

from drivers.queue.builder import PLACEHOLDER, Queue, QueueClosed
from drivers.queue.copy import CopyPipeline
from drivers.queue.device import QueueDevice
from drivers.queue.graph import ArgumentBlock, GraphArgumentError, GraphArguments
from drivers.queue.memory import ArgumentRing, Carver, Slice
from drivers.queue.ring import DwordRing, RingOverrun
from drivers.queue.signals import Signal, SignalPool
from drivers.queue.symbols import Expression, Operand, UnboundSymbol, Variable, high32, low32
from drivers.queue.timeline import Point, Timeline
from hw.errors import BusLost, GpuFault, GpuHang, NotSupported, OutOfMemory, WaitTimeout
from hw.mmio import LocalMmio

BASE = 0x200000000000


class StepClock:
    """Time that moves when slept on; things can be made to happen at a time."""

    def __init__(self) -> None:
        self.time = 0.0
        self.events: list[tuple[float, object]] = []

    def now(self) -> float:
        return self.time

    def at(self, time: float, action: object) -> None:
        self.events.append((time, action))

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        due = [event for event in self.events if event[0] <= self.time]
        self.events = [event for event in self.events if event[0] > self.time]
        for _, action in due:
            action()  # type: ignore[operator]


def slice_of(size: int, va: int = BASE) -> Slice:
    return Slice(va, size, LocalMmio.anonymous(size))


class WordQueue(Queue):
    """The simplest queue: one word for the command, then operands."""

    def call_words(self, va: int, dwords: int) -> list[int]:
        return [0xCA11, va & 0xFFFFFFFF, va >> 32, dwords]

    def wait(self, signal: Signal, value: Operand) -> Self:
        return self.append(1, low32(signal.va), high32(signal.va), value)

    def signal(self, signal: Signal, value: Operand) -> Self:
        return self.append(2, low32(signal.va), high32(signal.va), value)

    def timestamp(self, signal: Signal) -> Self:
        return self.append(3, low32(signal.va), high32(signal.va))


class Recorder:
    """A device that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.memory: list[Slice] = []
        self.freed: list[Slice] = []

    def submit_words(self, queue: Queue, data: bytes | bytearray) -> None:
        self.sent.append(list(struct.unpack(f"<{len(data) // 4}I", data)))

    def alloc_commands(self, size: int) -> Slice:
        self.memory.append(slice_of(size, BASE + 0x100000 * len(self.memory)))
        return self.memory[-1]

    def free_commands(self, memory: Slice) -> None:
        self.freed.append(memory)


# --- symbolic words ---------------------------------------------------------------------------------------------------


def test_expressions_offer_the_operations_that_words_need() -> None:
    address, count = Variable("address", 64), Variable("count")
    values = {"address": 0x1234_5678_9ABC_DEF0, "count": 6}
    assert (address & 0xFFFFFFFF).evaluate(values) == 0x9ABCDEF0
    assert (address >> 32).evaluate(values) == 0x12345678
    assert (address + 8).evaluate(values) == 0x1234_5678_9ABC_DEF8
    assert (8 + count - 1).evaluate(values) == 13
    assert (20 - count).evaluate(values) == 14
    assert (count * count << 2).evaluate(values) == 144
    assert (3 * count | 1).evaluate(values) == 19
    assert [(count < 6).evaluate(values), (count <= 6).evaluate(values), (count > 5).evaluate(values), (count >= 7).evaluate(values)] == [0, 1, 1, 0]


def test_same_expression_is_one_symbol_and_an_expression_has_no_truth() -> None:
    x = Variable("x")
    assert x + 1 == Variable("x") + 1
    assert len({x + 1, Variable("x") + 1, x + 2, Variable("y") + 1}) == 3
    with pytest.raises(TypeError):
        bool(x > 1)


def test_missing_or_too_large_values_are_refused_before_anything_is_sent() -> None:
    device = Recorder()
    queue = WordQueue(device).signal(Signal(Variable("where", 64)), Variable("value"))
    for values in ({}, {"where": 1}, {"where": 1 << 64, "value": 1}, {"where": 1, "value": 1 << 32}, {"where": 1, "value": -1}):
        with pytest.raises(UnboundSymbol):
            queue.submit(values)
    overflow = WordQueue(device).append(1, Variable("a") + Variable("b"))
    with pytest.raises(UnboundSymbol):
        overflow.submit({"a": 0xFFFFFFFF, "b": 1})
    assert device.sent == []
    assert queue.words[1:] == [PLACEHOLDER] * 3


def test_queue_is_patched_at_each_submission_and_the_placeholder_never_leaves() -> None:
    device = Recorder()
    queue = WordQueue(device).wait(Signal(0x1000), 5).signal(Signal(Variable("where", 64)), Variable("value"))
    for value in (7, 7, 8):
        queue.submit({"where": BASE + 0x40, "value": value})
    assert device.sent == [[1, 0x1000, 0, 5, 2, 0x40, 0x2000, value] for value in (7, 7, 8)]
    assert not any(PLACEHOLDER in words for words in device.sent)


def test_values_outside_the_queue_are_patched_with_their_width_and_mask() -> None:
    window = LocalMmio.anonymous(4096)
    window.write64(0, 0xFFFF_FFFF_FFFF_FFFF)
    window.write32(8, 0xAAAAAAAA)
    device = Recorder()
    queue = WordQueue(device).append(9)
    queue.patch_later(window, 0, Variable("pointer", 64)).patch_later(window, 8, Variable("bits") << 8, size=4, mask=0xFF00).patch_later(window, 12, 5, size=4)
    assert window.read32(12) == 5
    queue.submit({"pointer": BASE, "bits": 0x12})
    assert window.read64(0) == BASE
    assert window.read32(8) == 0xAAAA12AA
    window.write64(0, 1)
    queue.submit({"pointer": BASE, "bits": 0x13})
    assert window.read64(0) == 1, "an unchanged value is not stored again"
    assert window.read32(8) == 0xAAAA13AA


def test_bound_queue_lives_in_device_memory_and_sends_only_the_call() -> None:
    device = Recorder()
    queue = WordQueue(device).signal(Signal(0x40), Variable("value"))
    queue.bind()
    queue.submit({"value": 3})
    queue.submit({"value": 4})
    (memory,) = device.memory
    assert device.sent == [[0xCA11, BASE & 0xFFFFFFFF, BASE >> 32, 4]] * 2
    assert struct.unpack("<4I", memory.view.read(0, 16)) == (2, 0x40, 0, 4)
    with pytest.raises(QueueClosed):
        queue.timestamp(Signal(0x40))
    queue.unbind()
    assert device.freed == [memory]


def test_commands_that_a_queue_does_not_have_say_so() -> None:
    queue = WordQueue()
    for attempt in (
        queue.memory_barrier,
        lambda: queue.copy(1, 2, 3),
        lambda: queue.write(1, 2),
        lambda: queue.poll_bit(1, 2, 3),
        lambda: queue.execute(None, 0, (1, 1, 1), (1, 1, 1)),
    ):
        with pytest.raises(NotSupported, match="WordQueue"):
            attempt()
    assert queue.words == []


# --- signals and timelines --------------------------------------------------------------------------------------------


def new_pool(clock: StepClock | None = None) -> tuple[SignalPool, list[Slice]]:
    pages: list[Slice] = []

    def allocate(size: int) -> Slice:
        pages.append(slice_of(size, BASE + 0x10000 * len(pages)))
        return pages[-1]

    return SignalPool(allocate, clock or StepClock(), 100), pages


def test_signal_is_a_value_and_a_time_stamp() -> None:
    pool, (*_,) = new_pool()
    signal = pool.new(5)
    assert isinstance(signal.va, int)
    assert signal.va % 16 == 0
    signal._view.write64(signal._offset + 8, 12345)  # type: ignore[union-attr]
    assert (signal.value, signal.ticks, str(signal.timestamp)) == (5, 12345, "123.45")


def test_new_signal_sets_all_64_bits_of_its_value() -> None:
    pool, pages = new_pool()
    pool.new().free()
    pages[0].view.write64(0, 0xFFFF_FFFF_FFFF_FFFF)
    assert pool.new(3).value == 3


def test_pool_reuses_slots_and_grows_by_pages_of_256() -> None:
    pool, pages = new_pool()
    signals = [pool.new() for _ in range(256)]
    assert len({signal.va for signal in signals}) == 256
    assert len(pages) == 1
    freed = signals[17].va
    signals[17].free()
    assert pool.new().va == freed
    assert len(pages) == 1
    pool.new()
    assert len(pages) == 2


def test_virtual_signal_touches_no_memory() -> None:
    signal = Signal(Variable("address", 64))
    assert isinstance(low32(signal.va), Expression)
    for attempt in (lambda: signal.value, lambda: signal.ticks, lambda: setattr(signal, "value", 1)):
        with pytest.raises(TypeError):
            attempt()
    signal.free()


def test_wait_for_a_reached_value_returns_without_time_passing() -> None:
    clock = StepClock()
    pool, _ = new_pool(clock)
    pool.new(5).wait(5)
    pool.new(0).wait(0)
    assert clock.time == 0


def test_wait_times_out_with_what_was_wanted_and_seen() -> None:
    clock = StepClock()
    pool, _ = new_pool(clock)
    signal = pool.new(3)
    with pytest.raises(WaitTimeout, match=r"Wait timeout.* to reach 9 .*within 0\.5 s") as caught:
        signal.wait(9, timeout=0.5)
    assert "last value 3" in caught.value.read
    assert 0.5 <= clock.time < 0.6
    signal.value = 9
    signal.wait(9, timeout=0.5)


def test_progress_restarts_the_limit() -> None:
    clock = StepClock()
    pool, _ = new_pool(clock)
    signal = pool.new(0)
    for step in range(1, 6):
        clock.at(0.4 * step, lambda step=step: setattr(signal, "value", step))
    signal.wait(5, timeout=0.5)
    assert clock.time >= 2.0


def test_timeline_wraps_to_the_other_signal_and_old_points_stay_reached() -> None:
    pool, _ = new_pool()
    timeline = Timeline(pool)
    forgotten: list[int] = []
    timeline.on_wrap.append(lambda: forgotten.append(1))
    first = timeline.signal
    timeline.next_value = 2**31
    assert not timeline.wrap_if_needed()
    old = Point(timeline.lap, timeline.advance())
    assert not timeline.reached(old)
    first.value = old.value
    assert timeline.wrap_if_needed()
    assert timeline.signal is not first
    assert (timeline.next_value, timeline.signal.value, first.value, forgotten) == (1, 0, 2**31, [1])
    assert timeline.reached(old)
    assert not timeline.reached(Point(timeline.lap, 1))


# --- rings ------------------------------------------------------------------------------------------------------------


class RingDevice:
    def __init__(self, dwords: int, modulo: bool = True) -> None:
        self.clock = StepClock()
        self.memory = LocalMmio.anonymous(4 * dwords)
        self.read = 0
        self.written: list[int] = []
        self.log: list[str] = []
        self.ring = DwordRing(
            self.memory,
            read_pointer=lambda: self.read % dwords if modulo else self.read,
            write_pointer=self._store,
            flush=lambda: self.log.append("flush"),
            doorbell=lambda value: self.log.append(f"doorbell {value}"),
            clock=self.clock,
        )

    def _store(self, value: int) -> None:
        self.written.append(value)
        self.log.append("pointer")


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def test_submission_writes_words_then_pointer_then_flushes_then_rings() -> None:
    device = RingDevice(1024)
    device.ring.submit(words(1, 2, 3))
    assert struct.unpack("<3I", device.memory.read(0, 12)) == (1, 2, 3)
    assert device.log == ["pointer", "flush", "doorbell 3"]


@pytest.mark.parametrize("modulo", [True, False])
def test_packets_lie_across_the_ring_end_and_pointers_keep_growing(modulo: bool) -> None:
    device = RingDevice(1024, modulo)
    device.ring.submit(words(*range(1020)))
    device.read = 1020
    device.ring.submit(words(*range(100, 110)))
    assert struct.unpack("<4I", device.memory.read(4080, 16)) == (100, 101, 102, 103)
    assert struct.unpack("<6I", device.memory.read(0, 24)) == (104, 105, 106, 107, 108, 109)
    assert device.written == [1020, 1030]
    assert device.ring.consumed() == 1020
    device.read = 1030
    assert device.ring.idle()


def test_full_ring_waits_for_the_device_and_never_overwrites_what_it_has_not_read() -> None:
    device = RingDevice(1024)
    device.ring.submit(words(*[7] * 1000))
    device.clock.at(0.25, lambda: setattr(device, "read", 900))
    device.ring.submit(words(*[9] * 200))
    assert device.clock.time >= 0.25
    assert device.written == [1000, 1200]


def test_ring_that_stays_full_is_a_timeout_and_nothing_is_written() -> None:
    device = RingDevice(1024)
    device.ring.submit(words(*[7] * 1023))
    with pytest.raises(WaitTimeout, match="to have room for 4 bytes"):
        device.ring.submit(words(1))
    assert device.written == [1023]
    assert device.log.count("doorbell 1023") == 1


def test_submission_larger_than_the_ring_is_refused() -> None:
    device = RingDevice(1024)
    with pytest.raises(RingOverrun):
        device.ring.submit(words(*[1] * 1024))
    assert device.written == []


# --- arguments --------------------------------------------------------------------------------------------------------


def test_argument_ring_wraps_and_waits_for_the_last_launch_that_uses_a_segment() -> None:
    memory = slice_of(4096)
    last = {"value": 0}
    waited: list[int] = []
    ring = ArgumentRing(memory, last_value=lambda: last["value"], wait=waited.append)
    places = []
    for number in range(40):
        places.append(ring.put(bytes([number]) * 100) - BASE)
        last["value"] = number + 1
    assert places[:9] == [0, 128, 256, 384, 512, 640, 768, 896, 1024]
    assert places[32] == 0
    assert memory.view.read(0, 1) == b"\x20"
    assert waited == [8], "the first segment was last used by launch 8"
    assert all(place % 64 == 0 for place in places)


def test_arguments_larger_than_a_segment_are_refused() -> None:
    ring = ArgumentRing(slice_of(4096), last_value=lambda: 0, wait=lambda value: None)
    with pytest.raises(OutOfMemory, match="kernel arguments"):
        ring.put(bytes(1025))
    assert ring.put(bytes(1024)) == BASE


def test_reserved_arguments_lie_where_announced() -> None:
    ring = ArgumentRing(slice_of(4096), last_value=lambda: 1, wait=lambda value: None)
    ring.put(bytes(1000))
    ring.reserve(100)
    announced = ring.next_va
    assert ring.put(bytes(100)) == announced == BASE + 1024


def test_carver_aligns_and_refuses_more_than_there_is() -> None:
    carver = Carver(BASE, LocalMmio.anonymous(0x4000))
    assert carver.take(16).va == BASE
    assert carver.take(16).va == BASE + 0x1000
    with pytest.raises(OutOfMemory):
        carver.take(0x3000)


# --- copies -----------------------------------------------------------------------------------------------------------


class LazyEngine:
    """A copy engine over one block of memory that does its copies only when somebody waits for them."""

    def __init__(self, size: int, chunk: int, buffers: int = 4) -> None:
        self.memory = LocalMmio.anonymous(size + chunk * buffers)
        self.staging = [Slice(BASE + size + chunk * index, chunk, self.memory.view(size + chunk * index, chunk)) for index in range(buffers)]
        self.queue: list[tuple[int, int, int]] = []
        self.done = 0
        self.waits: list[int] = []

    def submit_copy(self, destination: int, source: int, size: int) -> int:
        self.queue.append((destination - BASE, source - BASE, size))
        return len(self.queue)

    def wait_value(self, value: int) -> None:
        self.waits.append(value)
        while self.done < value:
            destination, source, size = self.queue[self.done]
            self.memory.write(destination, self.memory.read(source, size))
            self.done += 1


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_copies_of_odd_sizes_arrive_through_small_staging_buffers(size: int) -> None:
    engine = LazyEngine(4096, 64)
    pipeline = CopyPipeline(engine, engine.staging)
    data = bytes(index * 7 & 0xFF for index in range(size))
    engine.memory.fill(0, 4096, 0xEE)
    pipeline.to_device(BASE + 5, data)
    engine.wait_value(len(engine.queue))
    assert engine.memory.read(4, size + 2) == b"\xee" + data + b"\xee"
    assert bytes(pipeline.from_device(BASE + 5, size)) == data


def test_host_to_device_returns_before_its_last_copies_are_done() -> None:
    engine = LazyEngine(4096, 64)
    pipeline = CopyPipeline(engine, engine.staging)
    pipeline.to_device(BASE, bytes(range(256)))
    assert engine.waits == []
    pipeline.to_device(BASE + 256, bytes(64))
    assert engine.waits == [1], "a staging buffer is refilled only after its own copy was done"


def test_device_to_host_keeps_copies_in_flight_while_the_host_reads() -> None:
    engine = LazyEngine(4096, 64)
    pipeline = CopyPipeline(engine, engine.staging)
    in_flight = []
    original = engine.wait_value
    engine.wait_value = lambda value: (in_flight.append(len(engine.queue) - value), original(value))[1]  # type: ignore[assignment,misc]
    engine.memory.write(0, bytes(range(256)))
    assert bytes(pipeline.from_device(BASE, 256)) == bytes(range(256))
    assert max(in_flight) == 2


def test_pipeline_needs_two_buffers() -> None:
    engine = LazyEngine(64, 64, buffers=1)
    with pytest.raises(ValueError, match="double buffering"):
        CopyPipeline(engine, engine.staging)


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_graph_arguments_are_stored_only_when_they_change_and_after_the_previous_run() -> None:
    memory = slice_of(4096)
    waited: list[Point] = []
    arguments = GraphArguments(memory, [ArgumentBlock(0, 24), ArgumentBlock(64, 16)], waited.append)
    arguments.patch({(0, 8): 0x1111, (1, 0): 0x2222})
    assert (memory.view.read64(8), memory.view.read64(64), waited) == (0x1111, 0x2222, [])
    arguments.last_run = Point(0, 1)
    arguments.patch({(0, 8): 0x1111})
    assert waited == []
    arguments.patch({(0, 8): 0x3333, (1, 0): 0x2222})
    assert (memory.view.read64(8), waited) == (0x3333, [Point(0, 1)])


@pytest.mark.parametrize("key", [(2, 0), (-1, 0), (0, 24), (0, 4), (1, 16), (0, -8)])
def test_graph_places_that_do_not_exist_are_refused_and_nothing_is_changed(key: tuple[int, int]) -> None:
    memory = slice_of(4096)
    arguments = GraphArguments(memory, [ArgumentBlock(0, 24), ArgumentBlock(64, 16)], lambda point: None)
    with pytest.raises(GraphArgumentError):
        arguments.patch({(0, 8): 1, key: 2})
    assert memory.view.read64(8) == 0


# --- waiting, faults and hangs ----------------------------------------------------------------------------------------


class FakeDevice(QueueDevice):
    def __init__(self) -> None:
        clock = StepClock()
        self.step = clock
        pool, _ = new_pool(clock)
        super().__init__(clock, Timeline(pool))
        self.fault = ""
        self.resets = 0
        self.looks = 0
        self.broken: BusLost | None = None

    def submit(self) -> Point:
        return Point(self.timeline.lap, self.timeline.advance())

    def finish(self, value: int) -> None:
        self.timeline.signal.value = value

    def check_faults(self) -> None:
        self.looks += 1
        if self.broken:
            raise self.broken
        if self.fault:
            text, self.fault = self.fault, ""
            raise GpuFault(text)

    def queue_state(self) -> str:
        return "wave at 0x1234"

    def reset_queues(self) -> None:
        self.resets += 1
        if self.broken:
            raise self.broken


def test_hang_is_found_at_the_limit_with_the_queue_state_and_the_next_work_is_clean() -> None:
    device = FakeDevice()
    device.timeout = 2.0
    point = device.submit()
    with pytest.raises(GpuHang) as caught:
        device.wait_point(point)
    assert 2.0 <= device.step.time < 2.1
    assert "wave at 0x1234" in caught.value.read
    assert "last value 0" in caught.value.read
    assert device.resets == 1
    device.step.at(device.step.time + 0.1, lambda: device.finish(2))
    device.wait_point(device.submit())
    device.synchronize()


def test_fault_while_waiting_is_raised_long_before_the_limit() -> None:
    device = FakeDevice()
    point = device.submit()
    device.step.at(0.05, lambda: setattr(device, "fault", "page fault at 0xdead000"))
    with pytest.raises(GpuFault, match="0xdead000"):
        device.wait_point(point)
    assert device.step.time < 0.2
    assert device.resets == 1
    device.synchronize()


def test_fault_of_work_that_ended_all_the_same_is_raised_by_the_wait_for_it() -> None:
    device = FakeDevice()
    point = device.submit()
    device.finish(1)
    device.fault = "page fault at 0xdead000"
    with pytest.raises(GpuFault):
        device.wait_point(point)
    device.wait_point(point)
    device.synchronize()


def test_idle_synchronize_looks_at_the_device_only_once_for_the_same_work() -> None:
    device = FakeDevice()
    device.finish(device.submit().value)
    for _ in range(5):
        device.synchronize()
    assert device.looks == 1


def test_lost_bus_is_kept_and_raised_by_every_later_call() -> None:
    device = FakeDevice()
    device.submit()
    device.broken = BusLost("reading the ring")
    for _ in range(3):
        with pytest.raises(BusLost):
            device.synchronize()
    assert device.failure is device.broken


def test_recovery_that_fails_makes_the_device_unusable() -> None:
    device = FakeDevice()
    device.submit()
    device.fault = "page fault"
    original = device.check_faults

    def fault_then_break() -> None:
        try:
            original()
        finally:
            device.broken = BusLost("resetting the queues")

    device.check_faults = fault_then_break  # type: ignore[method-assign]
    with pytest.raises(BusLost):
        device.synchronize()
    with pytest.raises(BusLost, match="resetting"):
        device.synchronize()
