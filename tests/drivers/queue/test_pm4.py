"""PM4 words against tests/data/amd_pm4.json (recorded from an independent encoder; gfx11 part of the AMD vectors).

Free choices that we make like the recording: poll interval 4, drain in front and acquire behind a time stamp, RELEASE_MEM for plain
writes, the order and packing of the register writes of a launch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from drivers.amd.packets import pm4
from drivers.amd.packets.values import Compare, Gcr
from drivers.amd.pm4 import (
    ACQUIRE_BEFORE_DISPATCH,
    CONFIRM_ONLY,
    RELEASE_FLUSH,
    RELEASE_PLAIN,
    STORE_32,
    STORE_32_AND_INTERRUPT,
    ComputeQueue,
    HdpRegisters,
    ScratchArea,
)
from drivers.queue.builder import PacketError
from drivers.queue.signals import Signal

VECTORS = {vector["id"].removeprefix("gfx1100."): vector for vector in json.loads((Path(__file__).parents[2] / "data/amd_pm4.json").read_text())["vectors"]}
CACHES = {"gli": Gcr.GLI, "glm": Gcr.GLM, "glk": Gcr.GLK, "glv": Gcr.GLV, "gl1": Gcr.GL1, "gl2": Gcr.GL2}


@dataclass
class FakeKernel:
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    wave32: bool
    wants_private_segment_buffer: bool
    wants_dispatch_pointer: bool
    dispatch_packet_offset: int
    wants_kernarg_pointer: bool = True


def number(value: object) -> int:
    return int(value, 0) if isinstance(value, str) else int(value)  # type: ignore[call-overload]


def new_queue(scratch: ScratchArea = ScratchArea(0, 0)) -> ComputeQueue:
    return ComputeQueue(HdpRegisters(0xE26, 0xE27), scratch)


def record(name: str, inputs: dict) -> ComputeQueue:
    queue = new_queue()
    address = number(inputs.get("address", 0)) if not str(inputs.get("size", "")).startswith("2^64") else 0
    value = number(inputs.get("value", 0))
    if name == "wait_memory_ge":
        return queue.wait(Signal(address), value)
    if name.startswith("poll_bit"):
        return queue.poll_bit(address, value, number(inputs["mask"]))
    if name == "wait_register_eq":
        return queue.wait_register(number(inputs["register_dword"]), value, mask=number(inputs["mask"]))
    if name == "wait_register_ge":
        return queue.wait_register(number(inputs["register_dword"]), value, compare=Compare.GREATER_EQUAL)
    if name == "write_register_wait_register":
        return queue.write_then_wait(number(inputs["request_dword"]), number(inputs["done_dword"]), value)
    if name == "signal":
        return queue.signal(Signal(address), value)
    if name == "signal_timeline_of_kernel_driver_device":
        event = inputs["event_id"]
        return queue.signal(Signal(address), value).release_mem(RELEASE_PLAIN, STORE_32_AND_INTERRUPT, number(inputs["mailbox"]), event, event)
    if name == "timestamp":
        return queue.timestamp(Signal(number(inputs["signal_address"])))
    if name == "memory_barrier":
        return queue.memory_barrier()
    if name == "acquire_before_dispatch":
        return queue.acquire_mem(ACQUIRE_BEFORE_DISPATCH)
    if name == "acquire_range":
        return queue.acquire_mem(address=address, size=number(inputs["size"]))
    if name.startswith("acquire"):
        return queue.acquire_mem(sum(bits for cache, bits in CACHES.items() if inputs[cache]))
    if name == "release_plain":
        return queue.release_mem(RELEASE_PLAIN, CONFIRM_ONLY)
    if name == "release_flush":
        return queue.release_mem(RELEASE_FLUSH, STORE_32, address, value)
    if name in ("write_32", "write_64"):
        return queue.write(address, value, b64=name == "write_64")
    if name == "indirect_buffer":
        return queue.append(*queue.call_words(address, inputs["dwords"]))
    assert name.startswith("launch")
    queue = new_queue(ScratchArea(number(inputs["scratch_va"]), number(inputs["tmpring"])))
    kernel = FakeKernel(
        entry=number(inputs["code_entry"]),
        rsrc1=number(inputs["rsrc1"]),
        rsrc2=number(inputs["rsrc2"]),
        rsrc3=number(inputs["rsrc3"]),
        wave32=inputs["wave32"],
        wants_private_segment_buffer=inputs["private_segment_buffer"],
        wants_dispatch_pointer=inputs["dispatch_pointer"],
        dispatch_packet_offset=inputs["kernarg_bytes"],
    )
    return queue.execute(kernel, number(inputs["kernarg_address"]), tuple(inputs["groups"]), tuple(inputs["block"]))


@pytest.mark.parametrize("name", VECTORS)
def test_words_equal_the_recorded_ones(name: str) -> None:
    vector = VECTORS[name]
    queue = record(name, vector["inputs"])
    expected = [int(word, 16) for packet in vector["expected"]["packets"] for word in packet]
    assert [hex(word) for word in queue.words] == [hex(word) for word in expected]
    assert queue.packets == [len(packet) for packet in vector["expected"]["packets"]]


@pytest.mark.parametrize("name", VECTORS)
def test_packet_tables_decode_the_recorded_words_and_encode_them_back(name: str) -> None:
    table = pm4("gfx11")
    for words in VECTORS[name]["expected"]["packets"]:
        numbers = [int(word, 16) for word in words]
        packet = table.by_opcode[numbers[0] >> 8 & 0xFF, 0]
        assert numbers[0] >> 16 & 0x3FFF == len(numbers) - 2
        fields = packet.decode(numbers)
        data = numbers[packet.fields["data0"].dword :] if "data0" in packet.fields else ()
        fields.pop("data0", None)
        if packet.name == "ACQUIRE_MEM":
            # the driver writes all ones where the hardware has 8 bits of range size, and byte units in the range words
            continue
        assert packet.encode(data, **fields) == numbers


def test_registers_outside_the_spaces_of_a_user_queue_are_refused_and_nothing_is_recorded() -> None:
    queue = new_queue()
    for bad in (0x2BFF, 0x3000, 0x2FFF):
        with pytest.raises(PacketError, match="no compute register"):
            queue.set_sh(bad, 1, 2)
    for bad in (0xBFFF, 0x1BFFF):
        with pytest.raises(PacketError, match="cannot be set from a user queue"):
            queue.set_uconfig(bad, 1)
    assert queue.words == []


def test_user_config_registers_of_the_documented_examples() -> None:
    assert new_queue().set_uconfig(0xC200, 0xE0000000).words == [0xC0017900, 0x200, 0xE0000000]
    assert new_queue().set_uconfig(0xC440, 0xC362C688).words == [0xC0017900, 0x440, 0xC362C688]
    assert new_queue().set_uconfig(0xD9EC, 0x80023C41).words == [0xC0017900, 0x19EC, 0x80023C41]


def test_indirect_buffer_larger_than_its_size_field_is_refused() -> None:
    queue = new_queue()
    assert queue.call_words(0x1000, (1 << 20) - 1)[3] == 0x8FFFFF
    with pytest.raises(PacketError, match="indirect buffer"):
        queue.call_words(0x1000, 1 << 20)
