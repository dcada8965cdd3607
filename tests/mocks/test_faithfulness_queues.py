"""What a mock must make fail, lines 4, 6, 7, 8, 10, 12 and 17: translation, interrupts, doorbells and queues.

The working driver with exactly one write dropped or changed; see test_faithfulness.py for the other lines.
"""

from __future__ import annotations

import os
import struct

import pytest

from drivers.amd.gpu import AmdGpu
from hw.errors import GpuFault, TghwError
from tests.drivers.amd.support import Bench, bench
from tests.drivers.queue.kernels import kernel_object
from tests.mocks.saboteur import DOORBELLS, MEMORY, Rule, Saboteur, Write, keep

SIZE = 64 << 10
UNMAPPED = 0x2000_0000_0000 + (15 << 40)


def machine(rule: Rule = keep) -> tuple[Bench, Saboteur]:
    made = bench(strict=True)
    return made, Saboteur(made.pci, rule)


def work(made: Bench) -> bool:
    """Copies and a kernel; True when all results are right."""
    gpu = AmdGpu(made.dev)
    gpu.timeout = 0.05
    (kernel,) = gpu.load(kernel_object("plus_one")).kernels.values()
    buffers = [gpu.alloc(SIZE) for _ in range(3)]
    contents = [os.urandom(SIZE) for _ in buffers]
    for buffer, content in zip(buffers, contents, strict=True):
        gpu.copy_in(buffer, content)
    right = all(bytes(gpu.copy_out(buffer, SIZE)) == content for buffer, content in zip(buffers, contents, strict=True))
    large = gpu.alloc(4 << 20)
    gpu.copy_in(large, contents[0])
    right = right and bytes(gpu.copy_out(large, SIZE)) == contents[0]
    value = struct.pack("<f", 41)
    gpu.copy_in(buffers[0], value)
    gpu.wait(gpu.launch(kernel, (1, 1, 1), (1, 1, 1), struct.pack("<2Q", buffers[1].va, buffers[0].va)))
    return right and bytes(gpu.copy_out(buffers[1], 4)) == struct.pack("<f", 42)


def noticed(rule: Rule, *, from_boot: bool = True) -> bool:
    """Does the machine make the broken driver fail? The rule applies from the start, or from when the boot is done."""
    made, saboteur = machine(rule if from_boot else keep)
    try:
        made.dev.boot()
        saboteur.rule = rule
        return not work(made)
    except TghwError:
        return True


def without(*names: str, value: int | None = None) -> Rule:
    return lambda write: None if write.register in names and value in (None, write.value) else write.data


def flipped(name: str, bits: int) -> Rule:
    return lambda write: (write.value ^ bits).to_bytes(4, "little") if write.register == name else write.data


def test_the_unbroken_driver_is_not_accused() -> None:
    assert not noticed(keep)


# --- 4: translations are cached ---


@pytest.mark.parametrize(
    "rule",
    [
        without("GCVM_INVALIDATE_ENG17_REQ"),
        flipped("GCVM_INVALIDATE_ENG17_REQ", 0x3),
        flipped("GCVM_INVALIDATE_ENG17_REQ", 0xF << 19),
        flipped("GCVM_INVALIDATE_ENG17_REQ", 1 << 23),
        without("GCVM_INVALIDATE_ENG17_ADDR_RANGE_LO32"),
    ],
    ids=["no request", "another VMID", "without the tables' lines", "without finished translations", "range never set"],
)
def test_4_a_freed_buffer_is_still_reached_without_the_right_invalidation(rule: Rule) -> None:
    faults = []
    for each in (keep, rule):
        made, _ = machine(each)
        hub = made.gpu.hub("gfx")
        try:
            made.dev.boot()
            buffer = made.dev.memory.alloc(4096)
            hub.write(0, buffer.va, b"data")
            made.dev.memory.free(buffer)
        except TghwError:
            return  # the request was never acknowledged
        hub.read(0, buffer.va, 4)
        faults.append(len(hub.fault_log))
    assert faults == [1, 0]


@pytest.mark.parametrize("name", ["MMVM_INVALIDATE_ENG17_SEM", "MMVM_INVALIDATE_ENG17_REQ", "GCVM_CONTEXT0_CNTL"])
def test_4_a_step_of_the_invalidation_that_is_left_out_is_noticed(name: str) -> None:
    assert noticed(without(name))


# --- 6: every page is translated ---


def test_6_host_pages_in_the_wrong_order_are_noticed() -> None:
    """Every two neighbours among the entries of host memory trade places. Host pages are never neighbours on the bus."""
    swapped = 0

    def rule(write: Write) -> bytes | None:
        nonlocal swapped
        if write.bar != MEMORY or len(write.data) < 64 or len(write.data) % 8:
            return write.data
        entries = list(struct.unpack(f"<{len(write.data) // 8}Q", write.data))
        for first in range(0, len(entries) - 1, 2):
            if entries[first] & 0xFFF == entries[first + 1] & 0xFFF == 0x077:
                entries[first], entries[first + 1] = entries[first + 1], entries[first]
                swapped += 1
        return struct.pack(f"<{len(entries)}Q", *entries)

    assert noticed(rule)
    assert swapped


# --- 7: faults ---


def test_7_an_access_nobody_mapped_is_reported_with_its_address() -> None:
    made, _ = machine()
    made.dev.boot()
    gpu = AmdGpu(made.dev)
    gpu.timeout = 0.05
    (kernel,) = gpu.load(kernel_object("store_at")).kernels.values()
    with pytest.raises(GpuFault, match="0x2f"):
        gpu.wait(gpu.launch(kernel, (1, 1, 1), (1, 1, 1), struct.pack("<QI", UNMAPPED, 1)))


@pytest.mark.parametrize(("bit", "what"), [(0, "valid"), (5, "readable"), (6, "writable"), (4, "executable")])
def test_7_an_entry_without_one_of_its_rights_is_noticed(bit: int, what: str) -> None:
    """Every leaf entry loses one right."""

    def rule(write: Write) -> bytes | None:
        if write.bar != MEMORY or len(write.data) % 8 or not write.data:
            return write.data
        entries = struct.unpack(f"<{len(write.data) // 8}Q", write.data)
        return struct.pack(f"<{len(entries)}Q", *(entry & ~(1 << bit) if entry & 0x71 == 0x71 and entry >> 56 == 0 else entry for entry in entries))

    assert noticed(rule, from_boot=False)


# --- 8: doorbells ---


def _other_doorbell(write: Write) -> bytes | None:
    return write.data if write.bar != DOORBELLS else None


def _half_the_value(write: Write) -> bytes | None:
    return struct.pack("<Q", write.value // 2) if write.bar == DOORBELLS and len(write.data) == 8 else write.data


@pytest.mark.parametrize(
    "rule",
    [
        _other_doorbell,
        _half_the_value,
        without("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN"),
        without("S2A_DOORBELL_ENTRY_0_CTRL"),
        without("S2A_DOORBELL_ENTRY_2_CTRL"),
        without("CP_MEC_DOORBELL_RANGE_UPPER"),
        flipped("CP_HQD_PQ_DOORBELL_CONTROL", 1 << 30),
        flipped("CP_HQD_PQ_DOORBELL_CONTROL", 1 << 3),
        without("SDMA0_QUEUE0_DOORBELL"),
        flipped("SDMA0_QUEUE0_DOORBELL_OFFSET", 1 << 3),
    ],
    ids=["never rung", "half the value", "aperture off", "no way to graphics", "no way to the copy engine", "range", "enable", "index", "copy enable", "copy index"],
)
def test_8_a_doorbell_that_does_not_reach_its_queue_is_a_hang(rule: Rule) -> None:
    assert noticed(rule)


# --- 10: interrupts ---


@pytest.mark.parametrize(
    "rule", [flipped("IH_RB_CNTL", 1), without("IH_RB_BASE"), flipped("IH_RB_BASE", 0x1000)], ids=["ring not enabled", "no ring address", "another ring address"]
)
def test_10_the_entry_of_a_fault_is_not_where_the_driver_looks(rule: Rule) -> None:
    found = []
    for each in (keep, rule):
        made, saboteur = machine(each)
        made.dev.boot()
        ring = next(write.value << 8 for write in saboteur.writes if write.register == "IH_RB_BASE") - made.gpu.mc_base
        made.gpu.hub("gfx").read(0, UNMAPPED, 4)
        assert len(made.gpu.hub("gfx").fault_log) == 1
        found.append(made.gpu.vram.read(ring, 2))
    assert found[0] == bytes([10, 0])
    assert found[1] != bytes([10, 0])


def test_10_without_moving_the_read_pointer_no_further_message_comes() -> None:
    messages = []
    for rule in (keep, without("IH_RB_RPTR")):
        made, saboteur = machine()
        made.dev.boot()
        made.pci.irq()
        saboteur.rule = rule
        for _ in range(3):
            made.gpu.ih.raise_interrupt(20, 181)
            made.dev.drain_interrupts()
        messages.append(made.gpu.function.interrupts)
    assert messages == [3, 1]


# --- 12: queue descriptors ---


def _no_descriptor(write: Write) -> bytes | None:
    return None if write.bar == MEMORY and len(write.data) == 2048 else write.data


@pytest.mark.parametrize(
    "rule",
    [
        _no_descriptor,
        without("CP_HQD_ACTIVE", value=1),
        without("GRBM_GFX_CNTL", value=4),
        flipped("CP_MQD_BASE_ADDR", 0x1000),
        flipped("CP_HQD_PQ_BASE", 0x10),
        flipped("CP_HQD_PQ_WPTR_POLL_ADDR_HI", 1),
        flipped("CP_HQD_PQ_RPTR_REPORT_ADDR_HI", 1),
        flipped("CP_HQD_EOP_BASE_ADDR_HI", 1),
        flipped("CP_HQD_VMID", 1),
        without("CP_MEC_RS64_PRGRM_CNTR_START"),
        flipped("CP_MEC_RS64_CNTL", 1 << 30),
    ],
    ids=["no descriptor", "not activated", "not selected", "descriptor elsewhere", "ring elsewhere", "write pointer", "read pointer", "EOP", "VMID", "start", "halted"],
)
def test_12_a_queue_that_is_set_up_wrongly_does_not_work(rule: Rule) -> None:
    assert noticed(rule)


# --- 17: ring ends ---


@pytest.mark.parametrize("name", ["CP_HQD_PQ_CONTROL", "SDMA0_QUEUE0_RB_CNTL"])
def test_17_a_ring_that_the_device_believes_shorter_goes_wrong_at_its_end(name: str) -> None:
    """A ring size of a few dwords: the device wraps where the driver goes on."""
    bits = 0x3F if name.startswith("CP") else 0x3E
    short = 4 if name.startswith("CP") else 4 << 1

    def rule(write: Write) -> bytes | None:
        if write.register == name and write.value & bits:
            return (write.value & ~bits | short).to_bytes(4, "little")
        return write.data

    assert noticed(rule)
