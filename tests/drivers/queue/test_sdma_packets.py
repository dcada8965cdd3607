"""SDMA words and ring placement against tests/data/amd_sdma.json (recorded from an independent encoder; SDMA 6.0.0 part).

Free choices, all made like the recording: poll interval 4 and endless retries; a packet that would end exactly at the ring end moves to
the start; the count of a fill is bytes minus one element.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from drivers.amd.sdma_packets import CopyQueue
from drivers.queue.builder import PacketError
from drivers.queue.ring import ByteRing, RingOverrun
from drivers.queue.signals import Signal
from hw.clock import HOST_CLOCK
from hw.mmio import LocalMmio

BY_NAME = {vector["id"].rpartition(").")[2]: vector for vector in json.loads((Path(__file__).parents[2] / "data/amd_sdma.json").read_text())["vectors"]}


def number(value: object) -> int:
    return int(value, 0) if isinstance(value, str) else int(value)  # type: ignore[call-overload]


def record(name: str, inputs: dict) -> CopyQueue:
    queue = CopyQueue()
    address = number(inputs.get("address", 0))
    value = number(inputs.get("value", 0))
    if name.startswith("copy"):
        return queue.copy(number(inputs.get("destination", 0)), number(inputs.get("source", 0)), inputs["bytes"])
    if name == "fence":
        return queue.signal(Signal(address), value)
    if name == "fence_and_trap":
        return queue.signal(Signal(address), value).fence(number(inputs["mailbox"]), inputs["event_id"]).trap(inputs["event_id"])
    if name == "poll_ge":
        return queue.wait(Signal(address), value)
    if name == "poll_eq":
        return queue.poll_bit(address, value)
    if name == "timestamp":
        return queue.timestamp(Signal(number(inputs["signal_address"])))
    if name in ("write_32", "write_64"):
        return queue.write(address, value, b64=name == "write_64")
    if name == "trap":
        return queue.trap(inputs["context"])
    if name == "indirect":
        return queue.indirect(address, inputs["dwords"])
    if name == "nop":
        return queue.nop()
    assert name == "const_fill"
    return queue.fill(address, number(inputs["pattern"]), inputs["bytes"])


@pytest.mark.parametrize("name", [name for name in BY_NAME if not name.startswith("ring")])
def test_words_equal_the_recorded_ones(name: str) -> None:
    vector = BY_NAME[name]
    queue = record(name, vector["inputs"])
    assert [hex(word) for word in queue.words] == [hex(int(word, 16)) for word in vector["expected"]["words"]]
    if "packet_dwords" in vector["expected"]:
        assert queue.packets == vector["expected"]["packet_dwords"]


def new_ring(dwords: int, put: int = 0, fill: int = 0xCC) -> tuple[ByteRing, LocalMmio, list[int]]:
    memory = LocalMmio.anonymous(4 * dwords)
    memory.fill(0, 4 * dwords, fill)
    doorbells: list[int] = []
    pointer = {"write": put}
    ring = ByteRing(
        memory,
        read_pointer=lambda: pointer["write"],
        write_pointer=lambda value: pointer.update(write=value),
        flush=lambda: None,
        doorbell=doorbells.append,
        clock=HOST_CLOCK,
    )
    ring.put = put
    return ring, memory, doorbells


def words_of(memory: LocalMmio) -> list[int]:
    return list(struct.unpack(f"<{memory.size // 4}I", memory.read(0, memory.size)))


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.startswith("ring")])
def test_placement_in_the_ring_equals_the_recorded_one(name: str) -> None:
    vector = BY_NAME[name]
    inputs, expected = vector["inputs"], vector["expected"]
    ring, memory, doorbells = new_ring(inputs["ring_dwords"], inputs["put_bytes_before"])
    submitted = [int(word, 16) for word in inputs["submit"]]
    ring.submit(struct.pack(f"<{len(submitted)}I", *submitted), inputs["packets_dwords"])
    wanted = [int(word, 16) for word in expected["ring"]]
    assert words_of(memory) == wanted
    assert doorbells == [expected["put_bytes_after"]]


def test_call_packet_ends_on_a_multiple_of_eight_dwords_also_when_it_has_to_move_to_the_start() -> None:
    ring, memory, doorbells = new_ring(32, 0)
    call = struct.pack("<6I", 4, 1, 2, 3, 5, 6)
    ring.submit(call, [6], end_align=32)
    assert words_of(memory)[:8] == [0, 0, 4, 1, 2, 3, 5, 6]
    ring.put = 108
    ring._done = 108
    ring.submit(call, [6], end_align=32)
    assert words_of(memory)[27:] == [0] * 5
    assert words_of(memory)[:8] == [0, 0, 4, 1, 2, 3, 5, 6]
    assert doorbells == [32, 128 + 32]


def test_submission_larger_than_the_ring_is_refused_and_nothing_is_written() -> None:
    ring, memory, doorbells = new_ring(16)
    with pytest.raises(RingOverrun):
        ring.submit(bytes(64), [8, 8])
    assert words_of(memory) == [0xCCCCCCCC] * 16
    assert doorbells == []


def test_indirect_buffers_that_the_engine_would_not_take_are_refused() -> None:
    for va, dwords in ((0x1000, 7), (0x1000, 0), (0x1010, 8), (0x1000, 1 << 20)):
        with pytest.raises(PacketError):
            CopyQueue().indirect(va, dwords)


@pytest.mark.parametrize("size", [2**32 - 8, 2**32, 2**32 + 8, 5 << 30, (6 << 30) - 0x4642EE0])
def test_large_copies_are_split_into_parts_that_cover_everything_once(size: int) -> None:
    words = CopyQueue().copy(0x300000000000, 0x200000000000, size).words
    at = 0
    for start in range(0, len(words), 7):
        header, count, _, source_low, source_high, target_low, target_high = words[start : start + 7]
        assert header == 1
        assert source_low | source_high << 32 == 0x200000000000 + at
        assert target_low | target_high << 32 == 0x300000000000 + at
        assert count < 1 << 30
        at += count + 1
    assert at == size
