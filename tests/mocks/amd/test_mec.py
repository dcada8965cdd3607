"""Compute queues: when the micro engine accepts one, and how one ends (mock-faithfulness line 12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hw.errors import NotModelled
from mocks.amd.fw import MEC_START
from tests.mocks.amd.bench import DATA, MQD, POINTERS, RING, Bench, ready, signal, wait

VECTORS = {each["id"]: each for each in json.loads((Path(__file__).parents[2] / "data" / "amd_mqd.json").read_text())["vectors"]}


def powered() -> Bench:
    bench = Bench()
    bench.hub("MM")
    bench.interrupts()
    bench.hub("GC")
    return bench


def with_target(bench: Bench) -> Any:
    window = bench.map_host(DATA, 0x1000)
    bench.invalidate()
    return window


def write_recorded_queue(vector: Any) -> Bench:
    """A bench whose engine got the recorded descriptor, then the recorded register writes."""
    bench = powered()
    bench.engine()
    inputs = vector["inputs"]
    for va in (int(inputs["ring_va"], 16), int(inputs["rptr_va"], 16) & -0x1000, int(inputs["eop_va"], 16)):
        bench.map(va, 0x500_0000 + (va & 0xFFFF000))
    bench.gpu.vram.fill(0x500_0000, 0x400_0000)
    bench.invalidate()
    words = vector["expected"]["mqd"][0]["nonzero_dwords"]
    offset = int(vector["expected"]["mqd"][0]["mqd_vram_offset"], 16)
    bench.gpu.vram.write(offset, b"".join(int(words.get(str(position), "0"), 16).to_bytes(4, "little") for position in range(512)))
    for each in vector["expected"]["register_writes"]:
        if each["kind"] == "w":
            bench.gpu.write_register(int(each["dword"], 16), int(each["value"], 16))
    return bench


@pytest.mark.parametrize("name", ["pm4_16m", "pm4_8k"])
def test_recorded_register_writes_make_a_queue_of_that_ring(name: str) -> None:
    vector = VECTORS[f"gfx1100.{name}"]
    hqd = write_recorded_queue(vector).hqd
    inputs = vector["inputs"]
    assert hqd.active
    assert (hqd.ring, 4 * hqd.ring_dwords) == (int(inputs["ring_va"], 16), int(inputs["ring_bytes"], 16))
    assert (hqd.rptr_address, hqd.wptr_address, hqd.eop) == (int(inputs["rptr_va"], 16), int(inputs["wptr_va"], 16), int(inputs["eop_va"], 16))
    assert 4 * hqd.eop_dwords == int(inputs["eop_bytes"], 16)


def test_the_recorded_queue_of_aql_packets_is_recognised_and_not_modelled() -> None:
    with pytest.raises(NotModelled, match="queue me 1 pipe 0 queue 1 with AQL packets"):
        write_recorded_queue(VECTORS["gfx1100.aql_16m"])


def test_every_vector_of_the_file_is_used() -> None:
    """sdma_0 in test_sdma; sdma_1_refused asks a driver for a second copy queue, which ours never has."""
    assert set(VECTORS) == {f"gfx1100.{name}" for name in ("pm4_16m", "pm4_8k", "aql_16m", "stop", "sdma_0", "sdma_1_refused")}


def test_recorded_stop_takes_both_slots_and_the_copy_queue_off() -> None:
    """Reads that wait for the queue to be off are repeated: here that takes time."""
    vector = VECTORS["gfx1100.stop"]
    bench = ready()
    bench.write("GRBM_GFX_CNTL", 4 | 1 << 8)
    first = bench.gpu.index("GC", "CP_MQD_BASE_ADDR")
    for position in range(128, 184):
        bench.gpu.write_register(first + position - 128, bench.mqd().get(position, 0))
    bench.write("CP_HQD_ACTIVE", 1)
    for access in vector["expected"]["accesses"]:
        index, value = int(access["dword"], 16), int(access["value"], 16)
        if access["kind"] == "w":
            bench.gpu.write_register(index, value & ~0x3E | 10 << 1 if access["reg"] == "SDMA0_QUEUE0_RB_CNTL" else value)
        elif access["reg"] == "CP_HQD_ACTIVE":
            bench.run(1e-4)
            assert bench.gpu.read_register(index) == value
    assert not any(hqd.active for hqd in bench.gpu.blocks["mec"].queues.values())
    assert bench.sdma.task is None
    assert bench.read("SDMA0_F32_CNTL") & 1 == 1


def test_a_queue_is_accepted_while_the_engine_runs() -> None:
    bench = ready()
    assert bench.queue_register("CP_HQD_ACTIVE") == 1


@pytest.mark.parametrize("control", [1 << 30 | 1 << 26, 1 << 26 | 1 << 16, 0], ids=["halted", "in reset", "not active"])
def test_a_queue_is_refused_while_the_engine_does_not_run(control: int) -> None:
    bench = powered()
    bench.engine()
    bench.write("CP_MEC_RS64_CNTL", control)
    bench.run()
    bench.compute_queue()
    assert bench.queue_register("CP_HQD_ACTIVE") == 0


def test_a_queue_is_refused_without_firmware() -> None:
    bench = Bench(firmware=False)
    bench.hub("GC")
    bench.engine()
    bench.compute_queue()
    assert bench.queue_register("CP_HQD_ACTIVE") == 0


def test_a_queue_is_refused_when_the_engine_started_at_the_wrong_place() -> None:
    bench = powered()
    bench.engine()
    bench.write("GRBM_GFX_CNTL", 1 << 2)
    bench.write("CP_MEC_RS64_PRGRM_CNTR_START", MEC_START & 0xFFFFFFFF)  # in bytes, where dwords belong
    bench.write("GRBM_GFX_CNTL", 0)
    bench.write("CP_MEC_RS64_CNTL", 1 << 30 | 1 << 16)
    bench.write("CP_MEC_RS64_CNTL", 1 << 26)
    bench.run(0.05)
    bench.compute_queue()
    assert bench.queue_register("CP_HQD_ACTIVE") == 0


def test_a_queue_is_refused_before_the_engine_has_come_up() -> None:
    bench = powered()
    bench.engine()
    bench.write("CP_MEC_RS64_CNTL", 1 << 30 | 1 << 16)
    bench.write("CP_MEC_RS64_CNTL", 1 << 26)
    bench.compute_queue()
    assert bench.queue_register("CP_HQD_ACTIVE") == 0


def test_a_queue_of_a_slot_that_was_not_selected_does_not_exist() -> None:
    bench = powered()
    bench.engine()
    bench.compute_queue(active=False)
    bench.write("CP_HQD_ACTIVE", 1)  # GRBM_GFX_CNTL is back at 0
    assert bench.queue_register("CP_HQD_ACTIVE") == 0
    assert not bench.hqd.active


def test_an_inactive_queue_does_nothing() -> None:
    bench = powered()
    bench.engine()
    bench.compute_queue(active=False)
    target = with_target(bench)
    bench.submit(signal(DATA, 7))
    bench.run()
    assert (target.read32(0), bench.read_pointer()) == (0, 0)


def test_the_descriptor_is_read_from_memory() -> None:
    """The registers are right but the descriptor is not there: the shader masks that let waves run never arrive."""
    bench = ready()
    assert bench.hqd.shader[0x2E16] == 0xFFFFFFFF
    bench.write("GRBM_GFX_CNTL", 1 << 2)
    bench.write("CP_HQD_ACTIVE", 0)
    bench.gpu.vram.write32(MQD + 4 * 23, 0x5)
    bench.write("CP_HQD_ACTIVE", 1)
    assert bench.hqd.shader[0x2E16] == 5


def test_a_descriptor_without_its_header_is_refused() -> None:
    bench = powered()
    bench.engine()
    bench.compute_queue(d0=0x12345678)
    assert bench.queue_register("CP_HQD_ACTIVE") == 0


def test_a_write_pointer_address_that_is_not_mapped_is_a_fault_and_no_queue() -> None:
    bench = powered()
    bench.engine()
    bench.compute_queue(d141=0, d142=0)
    assert bench.queue_register("CP_HQD_ACTIVE") == 0
    assert (bench.fault_address(), bench.fault_status() >> 9 & 0x1FF) == (0, 5)
    assert bench.queue_register("CP_HQD_ERROR") == 1 << 13


def test_a_write_pointer_in_memory_is_taken_over_when_the_queue_connects() -> None:
    bench = powered()
    bench.engine()
    bench.compute_queue(active=False)
    target = with_target(bench)
    bench.submit(signal(DATA, 7), ring=False)
    bench.load_mqd()
    bench.run()
    assert target.read32(0) == 7


def test_aql_queues_are_not_modelled() -> None:
    bench = powered()
    bench.engine()
    with pytest.raises(NotModelled, match="AQL"):
        bench.compute_queue(d181=1)


@pytest.mark.parametrize("request_kind", [1, 2])
def test_a_dequeue_request_takes_an_idle_queue_off_after_a_moment(request_kind: int) -> None:
    bench = ready()
    bench.write("GRBM_GFX_CNTL", 4)
    bench.write("CP_HQD_DEQUEUE_REQUEST", request_kind)
    assert bench.read("CP_HQD_ACTIVE") == 1
    bench.run(1e-4)
    assert (bench.read("CP_HQD_ACTIVE"), bench.read("CP_HQD_DEQUEUE_REQUEST")) == (0, 0)
    bench.write("GRBM_GFX_CNTL", 0)
    target = with_target(bench)
    bench.submit(signal(DATA, 7))
    bench.run()
    assert target.read32(0) == 0


def test_a_stuck_queue_stays_with_request_1_and_goes_with_request_2() -> None:
    bench = ready()
    with_target(bench)
    bench.submit(wait(DATA, 1))
    bench.run()
    bench.write("GRBM_GFX_CNTL", 4)
    bench.write("CP_HQD_DEQUEUE_REQUEST", 1)
    bench.run(1.0)
    assert bench.read("CP_HQD_ACTIVE") == 1
    bench.write("CP_HQD_DEQUEUE_REQUEST", 2)
    bench.run(1e-3)
    assert bench.read("CP_HQD_ACTIVE") == 0


@pytest.mark.parametrize("bits", [0x00040001, 0x1, 0x40000])
def test_a_soft_reset_of_the_command_processor_drops_queues_and_their_registers(bits: int) -> None:
    bench = ready()
    with_target(bench)
    bench.submit(wait(DATA, 1))
    bench.run()
    bench.write("GRBM_SOFT_RESET", bits)
    bench.run(0.05)
    bench.write("GRBM_SOFT_RESET", 0)
    assert bench.queue_register("CP_HQD_ACTIVE") == 0
    assert bench.queue_register("CP_HQD_PQ_BASE") == 0
    assert bench.hqd.task is None


def test_after_recovery_the_same_slot_works_again() -> None:
    bench = ready()
    target = with_target(bench)
    bench.submit(wait(DATA, 1))
    bench.run()
    bench.write("GRBM_SOFT_RESET", 0x40001)
    bench.run(0.05)
    bench.write("GRBM_SOFT_RESET", 0)
    bench.engine()
    bench.pointers.write64(0x38, 0)
    bench.put = 0
    bench.load_mqd()
    bench.submit(signal(DATA + 8, 9))
    bench.run()
    assert target.read32(8) == 9


def test_halting_the_engine_stops_its_queues_until_it_goes_on() -> None:
    bench = ready()
    target = with_target(bench)
    bench.write("CP_MEC_RS64_CNTL", 1 << 26 | 1 << 30)
    bench.submit(signal(DATA, 7))
    bench.run(0.01)
    assert target.read32(0) == 0
    bench.write("CP_MEC_RS64_CNTL", 1 << 26)
    bench.run(0.01)
    assert target.read32(0) == 7


def test_the_instruction_pointer_moves_only_while_the_engine_runs() -> None:
    bench = ready()
    first = bench.read("CP_MEC_RS64_INSTR_PNTR")
    bench.run(1e-5)
    assert bench.read("CP_MEC_RS64_INSTR_PNTR") != first
    bench.write("CP_MEC_RS64_CNTL", 1 << 30)
    assert bench.read("CP_MEC_RS64_INSTR_PNTR") == bench.read("CP_MEC_RS64_INSTR_PNTR")


def test_registers_are_banked_by_me_pipe_and_queue() -> None:
    bench = ready()
    assert bench.queue_register("CP_HQD_PQ_BASE") == RING >> 8 & 0xFFFFFFFF
    bench.write("GRBM_GFX_CNTL", 1 << 2 | 1 << 8)
    assert bench.read("CP_HQD_PQ_BASE") == 0
    bench.write("GRBM_GFX_CNTL", 0)
    assert bench.read("CP_HQD_PQ_BASE") == 0


def test_the_read_pointer_register_follows_the_queue() -> None:
    bench = ready()
    with_target(bench)
    bench.submit(signal(DATA, 1))
    bench.run()
    assert bench.queue_register("CP_HQD_PQ_RPTR") == 8
    assert bench.queue_register("CP_HQD_PQ_WPTR_LO") == 8


def test_the_hole_between_the_registers_swallows_writes() -> None:
    bench = ready()
    index = bench.gpu.index("GC", "CP_HQD_PQ_DOORBELL_CONTROL") + 1
    bench.gpu.write_register(index, 5)
    assert bench.gpu.read_register(index) == 0


def test_a_queue_without_mapped_read_pointer_report_stops_with_a_fault() -> None:
    bench = powered()
    bench.engine()
    bench.compute_queue(d139=POINTERS + 0x8000 & 0xFFFFFFFF)
    target = with_target(bench)
    bench.submit(signal(DATA, 7))
    bench.run()
    assert target.read32(0) == 7
    assert bench.hqd.stopped_because
    assert bench.fault_address() == POINTERS + 0x8000
