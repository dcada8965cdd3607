"""What one launch writes, how many bus accesses it costs, and that each written word matters.

The words of a launch are changed one at a time on a strict machine; a run is noticed when its result is wrong, when it faults or hangs,
when the mock refuses, or when its time stamps are implausible. Words that do not matter are listed with their reason.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from drivers.amd.device import AmdDevice
from drivers.amd.gpu import AmdGpu
from drivers.amd.launch import Kernel
from drivers.amd.packets import pm4
from firmware.store import FirmwareStore
from hw.errors import TghwError
from hw.trace import WRITE, WRITE_BLOCK, Recorder, TracedDevice
from mocks.amd.fw import fabricate
from mocks.machine import Machine
from tests.drivers.queue.conftest import open_gpu
from tests.drivers.queue.kernels import kernel_object


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[AmdGpu, Recorder]]:
    machine = Machine.from_profile("navi31")
    address = next(function.address for function in machine.functions() if function.identity().class_code >> 16 == 0x03)
    device = TracedDevice(machine.open(address))
    dev = AmdDevice(device, FirmwareStore.from_files(fabricate("navi31", 0)))
    dev.boot()
    gpu = AmdGpu(dev)
    yield gpu, device.recorder
    gpu.close()


def load(gpu: AmdGpu, name: str) -> Kernel:
    (kernel,) = gpu.load(kernel_object(name)).kernels.values()
    return kernel


def kinds(recorder: Recorder) -> list[tuple[str, str]]:
    """Kind and window of each access; bar0 video memory, bar2 doorbells, bar5 registers, dma host memory."""
    return [(access.kind, access.where.rstrip("0123456789") if access.where.startswith("dma") else access.where) for access in recorder.records]


def test_launch_is_two_blocks_a_pointer_a_flush_and_a_doorbell_and_no_read(traced: tuple[AmdGpu, Recorder]) -> None:
    gpu, recorder = traced
    kernel = load(gpu, "plus_one")
    buffer = gpu.alloc(4096)
    arguments = struct.pack("<2Q", buffer.va, buffer.va)
    gpu.launch(kernel, (1, 1, 1), (2, 1, 1), arguments)
    gpu.synchronize()
    recorder.clear()
    gpu.launch(kernel, (1, 1, 1), (2, 1, 1), arguments)
    assert kinds(recorder) == [(WRITE_BLOCK, "dma"), (WRITE_BLOCK, "dma"), (WRITE, "dma"), (WRITE, "bar5"), (WRITE, "bar2")]
    gpu.synchronize()


def test_replay_of_a_graph_is_one_block_a_pointer_a_flush_and_a_doorbell(traced: tuple[AmdGpu, Recorder]) -> None:
    gpu, recorder = traced
    kernel = load(gpu, "plus_one")
    buffer = gpu.alloc(4096)
    graph = gpu.record([(kernel, (1, 1, 1), (2, 1, 1), struct.pack("<2Q", buffer.va, buffer.va))] * 10)
    graph.replay()
    gpu.synchronize()
    recorder.clear()
    graph.replay({(3, 0): buffer.va, (3, 8): buffer.va})
    first = kinds(recorder)
    assert Counter(first)[(WRITE, "dma")] == 3, "two patched arguments and the write pointer"
    recorder.clear()
    graph.replay({(3, 0): buffer.va, (3, 8): buffer.va})
    assert kinds(recorder) == [(WRITE_BLOCK, "dma"), (WRITE, "dma"), (WRITE, "bar5"), (WRITE, "bar2")]
    graph.release()


def test_small_copy_to_the_device_reads_nothing_either(traced: tuple[AmdGpu, Recorder]) -> None:
    gpu, recorder = traced
    buffer = gpu.alloc(4096)
    gpu.synchronize()
    recorder.clear()
    gpu.copy_in(buffer, b"abc")
    assert [kind for kind, _ in kinds(recorder)] == [WRITE_BLOCK, WRITE_BLOCK, WRITE, WRITE, WRITE]
    gpu.synchronize()


# --- each word matters ------------------------------------------------------------------------------------------------

HELD_SECONDS = 5e-3
"""how long the work before the launch is held back: longer than the kernel takes"""
GROUPS = 3
ITEMS = 64 * GROUPS

UNIMPORTANT = {
    "poll_interval": "how often a condition is looked at",
    "coher_cntl": "not used on this generation",
    "coher_size": "ranges: the mock acquires everything, as hardware does for ranges it cannot narrow",
    "coher_size_hi": "as coher_size",
    "coher_base_lo": "as coher_size",
    "coher_base_hi": "as coher_size",
    "int_ctxid": "carried by an interrupt that is not asked for",
    "data_lo of the clock": "a clock store takes no data",
    "data_hi": "a 32-bit or clock store takes no upper half",
    "COMPUTE_PGM_RSRC3": "instruction prefetch, a hint",
    "COMPUTE_RESTART": "used by restarted dispatches only",
    "COMPUTE_RESOURCE_LIMITS": "a limit makes a launch slower, not wrong",
    "COMPUTE_START": "force_start_at_000 is set",
    "PIPELINESTAT": "counters that nobody reads",
    "PERFCOUNT": "counters that nobody reads",
    "second ACQUIRE_MEM": "the full one shortly before covers it; it matters between launches of one queue",
    "first ACQUIRE_MEM gli": "the second one and the release that ended the work before cover it, but for new code at an old address (test_strict)",
    "COMPUTE_TMPRING_SIZE": "half of the share that is laid out for wave64 is enough for wave32; smaller shares collide only by chance",
    "second WAIT_REG_MEM": "the host flushed HDP too before its doorbell; without both it is noticed (test_strict)",
}
"""words that may be wrong without effect, by what names them, with the reason"""

SH_NAMES = {
    0x2E04: "COMPUTE_START_X",
    0x2E05: "COMPUTE_START_Y",
    0x2E06: "COMPUTE_START_Z",
    0x2E0A: "COMPUTE_PIPELINESTAT_ENABLE",
    0x2E0B: "COMPUTE_PERFCOUNT_ENABLE",
    0x2E15: "COMPUTE_RESOURCE_LIMITS",
    0x2E18: "COMPUTE_TMPRING_SIZE",
    0x2E1B: "COMPUTE_RESTART_X",
    0x2E1C: "COMPUTE_RESTART_Y",
    0x2E1D: "COMPUTE_RESTART_Z",
    0x2E28: "COMPUTE_PGM_RSRC3",
}

SIGNAL_BIT = 4
"""of an address: another signal; the lowest bits are ignored"""
MASK = 5
"""position of the mask in WAIT_REG_MEM"""
ORDINALS = ("", "first", "second")

IN_USE = {0x2E10: 20, 0x2E12: 16, 0x2E18: 18, 0x2E40: 6}
"""a bit of these registers that means something here: scratch address, denormal mode, size of a wave's scratch, argument address"""


class Word:
    """One word of a launch: a name, and the bit that is flipped (the lowest of its first field that is in use)."""

    def __init__(self, name: str, bit: int) -> None:
        self.name = name
        self.bit = bit

    @property
    def reason(self) -> str:
        """Why it may be wrong without effect; "" when it may not."""
        return next((reason for part, reason in UNIMPORTANT.items() if part in self.name), "")


def words_of(words: list[int]) -> list[Word]:
    table = pm4()
    named: list[Word] = []
    count: Counter[str] = Counter()
    at = 0
    while at < len(words):
        packet = table.by_opcode[words[at] >> 8 & 0xFF, 0]
        count[packet.name] += 1
        title = (f"{ORDINALS[count[packet.name]]} " if packet.name in ("ACQUIRE_MEM", "WAIT_REG_MEM") else "") + packet.name
        size = (words[at] >> 16 & 0x3FFF) + 2
        first_register = 0x2C00 + words[at + 1]
        for dword in range(size):
            value = words[at + dword]
            fields = {field: place for field, place in packet.fields.items() if place.dword == dword}
            if dword == 0:
                named.append(Word(f"{title} header", 8))
            elif packet.name == "SET_SH_REG":
                register = first_register + dword - 2 if dword > 1 else first_register
                named.append(Word(f"{title} {SH_NAMES.get(register, hex(register))} {'number' if dword == 1 else 'value'}", IN_USE.get(register, 0) if dword > 1 else 0))
            else:
                used = [field for field, place in fields.items() if value >> place.low & (1 << place.high - place.low + 1) - 1] or list(fields)
                clock = " of the clock" if packet.name == "RELEASE_MEM" and words[at + 2] >> 29 == 3 else ""
                bit = fields[used[0]].low
                if packet.name == "WAIT_REG_MEM" and used == ["addr_lo_or_reg1"]:
                    bit = SIGNAL_BIT
                named.append(Word(f"{title} {'/'.join(used)}{clock}", bit))
        at += size
    return named


class Bench:
    """A strict machine with a kernel that uses local, private, argument and global memory, workgroup ids and denormal numbers."""

    def __init__(self) -> None:
        self.gpu = open_gpu(strict=True)
        self.gpu.timeout = 0.02
        self.kernel = load(self.gpu, "thorough")
        self.input = self.gpu.dev.memory.alloc(4096, cpu_access=True)
        self.out, self.zeros = self.gpu.alloc(4096), self.gpu.alloc(4096)
        self.gpu.copy_in(self.zeros, bytes(4096))
        self.gate = self.gpu.signals.new(0)
        self.round = 0
        self.arguments = struct.pack("<2Q", self.out.va, self.input.va)

    def words(self) -> list[int]:
        self.run(None)
        assert self.kernel.template is not None
        return list(struct.unpack(f"<{len(self.kernel.template.buffer) // 4}I", self.kernel.template.buffer))

    def poison(self) -> None:
        """Leave other values in every register that a launch sets."""
        queue = self.gpu.compute_queue().wait(self.gpu.timeline.signal, self.gpu.timeline.last)
        queue.set_sh(0x2E04, 1, 1, 1, 1, 2, 3).set_sh(0x2E0C, 0, 0).set_sh(0x2E10, 0, 0).set_sh(0x2E12, 0, 0).set_sh(0x2E15, 0)
        queue.set_sh(0x2E18, 0).set_sh(0x2E1B, 0, 0, 0).set_sh(0x2E28, 0x3F0).set_sh(0x2E40, *[0] * 16)
        queue.signal(self.gpu.timeline.signal, self.gpu.timeline.advance()).submit()

    def run(self, change: tuple[int, int] | None) -> bool:
        """One launch with one word (position, new value) changed; whether anything was noticed."""
        gpu = self.gpu
        self.round += 1
        values = np.arange(1, ITEMS + 1, dtype=np.float32) * np.float32(1e-44) * np.float32(self.round % 50 + 1)
        assert self.input.view is not None
        self.poison()
        gpu.synchronize()
        self.input.view.write(0, values.tobytes())
        gpu._arguments.put(bytes(16))  # so that the neighbouring argument block is not the same one
        timeline = gpu.timeline
        self.gate.value = 0
        clear = gpu.copy_queue().wait(timeline.signal, timeline.last).wait(self.gate, 1).copy(self.out.va, self.zeros.va, 4096)
        clear.signal(timeline.signal, timeline.advance()).submit()  # not done when the launch comes
        submit = gpu.rings.compute.submit

        def changed(data: bytes | bytearray) -> None:
            words = list(struct.unpack(f"<{len(data) // 4}I", data))
            if change is not None:
                position, bits = change
                if bits and position in (MASK, len(words) - 3):
                    # a bit that is set in the awaited, or in the signalled value
                    value = words[position - 1] if position == MASK else words[position]
                    bits = value & -value
                words[position] = words[position] ^ bits if bits else 0
            submit(struct.pack(f"<{len(words)}I", *words))

        before = gpu.clock.now()
        gpu.rings.compute.submit = changed  # type: ignore[method-assign]
        try:
            ticket = gpu.launch(self.kernel, (GROUPS, 1, 1), (64, 1, 1), self.arguments)
        finally:
            gpu.rings.compute.submit = submit  # type: ignore[method-assign]
        gpu.clock.sleep(HELD_SECONDS)
        self.gate.value = 1
        try:
            result = np.frombuffer(gpu.copy_out(self.out, 4096), dtype=np.float32)
            elapsed = gpu.elapsed(ticket)
            window = gpu.clock.now() - before
            gpu.wait(gpu.launch(self.kernel, (GROUPS, 1, 1), (64, 1, 1), self.arguments))
        except TghwError:
            return True
        good = np.zeros(1024, dtype=np.float32)
        good[:ITEMS] = (values * np.float32(0.5)).reshape(GROUPS, 64)[:, ::-1].ravel()
        return not np.array_equal(result, good) or not 0 < elapsed <= window


@pytest.mark.slow
def test_every_word_of_a_launch_matters_or_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    words = bench.words()
    assert not bench.run(None), "the unchanged launch is fine"
    noticed = tried = 0
    explained: list[str] = []
    unexplained: list[str] = []
    for position, (word, meaning) in enumerate(zip(words, words_of(words), strict=True)):
        for kind, change in (("zero", 0), ("one bit flipped", 1 << meaning.bit)):
            if not change and not word:
                continue
            tried += 1
            try:
                seen = bench.run((position, change))
            except TghwError:
                seen = True
                bench = Bench()
            noticed += seen
            if not seen:
                line = f"word {position}, {meaning.name}, {kind}"
                (explained if meaning.reason else unexplained).append(f"{line}: {meaning.reason}" if meaning.reason else line)
    with capsys.disabled():
        print(f"\nmutation of one launch: {noticed} of {tried} changed words noticed ({100 * noticed // tried} %), {len(explained)} explained, {len(unexplained)} not")
        for line in (*explained, *(f"NOT EXPLAINED: {each}" for each in unexplained)):
            print(f"  {line}")
    assert unexplained == []
