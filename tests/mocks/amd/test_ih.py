"""Interrupts: the ring in memory, its pointers, and messages (mock-faithfulness lines 9, 10)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.mocks.amd.bench import IH_RING, Bench

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "amd_ih.json").read_text())["vectors"]
ENTRIES = [each for each in VECTORS if each["id"].startswith("gfx1100.") and "entry" in each["inputs"]]
RING_BYTES = 256 << 10
SMALL = 0xC033_0021 & ~(0x1F << 1) | 5 << 1
"""ring control with 32 dwords: four entries"""


def prepared(control: int = 0xC0330021, *, msi: bool = True) -> Bench:
    bench = Bench()
    bench.hub("MM")
    bench.interrupts(control)
    if msi:
        bench.device.irq()
    return bench


def messages(bench: Bench) -> int:
    return int(bench.gpu.function.interrupts)


@pytest.mark.parametrize("vector", ENTRIES, ids=lambda each: each["id"])
def test_recorded_entries_are_what_the_ring_holds(vector: Any) -> None:
    decoded = vector["expected"]["decoded"]
    data = tuple(int(each, 16) for each in decoded["context"])
    bench = prepared()
    bench.gpu.ih.raise_interrupt(decoded["client"], decoded["source"], decoded["ring"], decoded["vmid"], decoded["pasid"], data, vmid_type=decoded["vmid_type"])
    words = struct.unpack("<8I", bytes.fromhex(vector["inputs"]["entry"]))
    got = bench.entries()[0]
    assert got[0] == words[0]
    assert got[3] & 0xFFFF == words[3] & 0xFFFF  # node 0: this chip has one die
    assert got[4:] == words[4:]


def test_an_entry_carries_the_gpu_clock_of_its_moment() -> None:
    bench = prepared()
    moment = bench.clock.now()
    bench.gpu.ih.raise_interrupt(10, 49)
    bench.run(0.5)
    entry = bench.entries()[0]
    assert (entry[2] & 0xFFFF) << 32 | entry[1] == int(moment * 100e6)


def test_the_write_pointer_counts_bytes_and_wraps() -> None:
    bench = prepared()
    for _ in range(3):
        bench.gpu.ih.raise_interrupt(20, 181)
    assert bench.read("IH_RB_WPTR", "OSSSYS") == 96
    bench.write("IH_RB_RPTR", 96, "OSSSYS")
    for _ in range(RING_BYTES // 32 - 2):
        bench.gpu.ih.raise_interrupt(20, 181)
    assert bench.read("IH_RB_WPTR", "OSSSYS") == 32
    assert len(bench.entries()) == RING_BYTES // 32 - 2


def test_a_full_ring_overwrites_and_says_so() -> None:
    bench = prepared(SMALL)
    for number in range(4):
        bench.gpu.ih.raise_interrupt(20, number)
    assert bench.read("IH_RB_WPTR", "OSSSYS") == 1
    bench.write("IH_RB_CNTL", SMALL, "OSSSYS")
    assert bench.read("IH_RB_WPTR", "OSSSYS") == 0


def test_a_full_ring_without_overflow_mode_loses_the_newest() -> None:
    bench = prepared(SMALL & ~(1 << 16))
    for number in range(5):
        bench.gpu.ih.raise_interrupt(20, number)
    assert [source for _, source in bench.sources()] == [0, 1, 2]
    assert bench.gpu.ih.lost == [(20, 3), (20, 4)]


def test_nothing_arrives_while_the_ring_is_off() -> None:
    bench = prepared(0xC0330020)
    before = bench.gpu.vram.read(IH_RING, 32)
    bench.gpu.ih.raise_interrupt(20, 181)
    assert (bench.read("IH_RB_WPTR", "OSSSYS"), messages(bench)) == (0, 0)
    assert bench.gpu.vram.read(IH_RING, 32) == before


def test_a_message_goes_out_only_when_interrupts_are_enabled() -> None:
    bench = prepared(0xC0330021 & ~(1 << 17))
    bench.gpu.ih.raise_interrupt(20, 181)
    assert (len(bench.entries()), messages(bench)) == (1, 0)


def test_a_message_goes_out_only_while_the_device_may_master_the_bus() -> None:
    bench = prepared()
    bench.device.set_bus_master(False)
    bench.gpu.ih.raise_interrupt(20, 181)
    assert messages(bench) == 0


def test_without_msi_enabled_no_message_goes_out() -> None:
    bench = prepared(msi=False)
    bench.gpu.ih.raise_interrupt(20, 181)
    assert (len(bench.entries()), messages(bench)) == (1, 0)


def test_a_second_message_needs_the_read_pointer_to_move() -> None:
    bench = prepared()
    bench.gpu.ih.raise_interrupt(20, 1)
    bench.gpu.ih.raise_interrupt(20, 2)
    assert messages(bench) == 1
    bench.write("IH_RB_RPTR", 64, "OSSSYS")
    bench.gpu.ih.raise_interrupt(20, 3)
    assert messages(bench) == 2


def test_a_read_pointer_that_leaves_entries_behind_brings_another_message() -> None:
    bench = prepared()
    bench.gpu.ih.raise_interrupt(20, 1)
    bench.gpu.ih.raise_interrupt(20, 2)
    bench.write("IH_RB_RPTR", 32, "OSSSYS")
    assert messages(bench) == 2


def test_without_rearm_every_interrupt_is_a_message() -> None:
    bench = prepared(0xC0330021 & ~(1 << 21))
    bench.gpu.ih.raise_interrupt(20, 1)
    bench.gpu.ih.raise_interrupt(20, 2)
    assert messages(bench) == 2


def test_the_write_pointer_is_written_back_when_asked_for() -> None:
    bench = prepared(0xC0330021 | 1 << 8)
    bench.write("IH_RB_WPTR_ADDR_LO", 0x3_0000, "OSSSYS")
    bench.write("IH_RB_WPTR_ADDR_HI", bench.gpu.mc_base >> 32, "OSSSYS")
    bench.gpu.ih.raise_interrupt(20, 1)
    assert bench.gpu.vram.read32(0x3_0000) == 32


def test_a_client_can_be_sent_to_ring_1() -> None:
    bench = prepared()
    bench.write("IH_RB_BASE_RING1", bench.gpu.mc_base + 0x2_0000 >> 8, "OSSSYS")
    bench.write("IH_RB_CNTL_RING1", 0xC0100221, "OSSSYS")
    bench.write("IH_RING1_CLIENT_CFG_INDEX", 0, "OSSSYS")
    bench.write("IH_RING1_CLIENT_CFG_DATA", 0x1000A, "OSSSYS")
    bench.gpu.ih.raise_interrupt(10, 0)
    bench.gpu.ih.raise_interrupt(10, 49)
    assert bench.sources() == [(10, 49)]
    assert bench.read("IH_RB_WPTR_RING1", "OSSSYS") == 32
    assert bench.gpu.vram.read32(0x2_0000) & 0xFFFF == 0x000A


def test_a_ring_at_an_address_that_leads_nowhere_loses_interrupts() -> None:
    bench = prepared()
    bench.write("IH_RB_BASE", 0x1000, "OSSSYS")
    bench.gpu.ih.raise_interrupt(20, 1)
    assert bench.gpu.ih.lost == [(18, 0), (20, 1)]  # the page fault has nowhere to go either
    assert bench.read("IH_RB_WPTR", "OSSSYS") == 0


def test_a_doorbell_moves_the_read_pointer_where_that_is_enabled() -> None:
    bench = prepared()
    bench.write("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 1, "NBIO")
    bench.write("S2A_DOORBELL_ENTRY_1_CTRL", 1 | 0x2F0 << 7 | 2 << 17, "NBIO")
    bench.gpu.ih.raise_interrupt(20, 1)
    bench.doorbells.write32(0xBC0, 32)
    assert len(bench.entries()) == 1
    bench.write("IH_DOORBELL_RPTR", 0x2F0 | 1 << 28, "OSSSYS")
    bench.doorbells.write32(0xBC0, 32)
    assert bench.entries() == []


def test_recorded_ring_set_up_delivers_to_the_recorded_addresses() -> None:
    vector = next(each for each in VECTORS if each["id"] == "gfx1100.ring_init")
    bench = Bench()
    bench.hub("MM")
    for write in vector["expected"]["register_writes"]:
        bench.gpu.write_register(int(write["dword"], 16), int(write["value"], 16))
    bench.gpu.ih.raise_interrupt(20, 181)
    offset = int(vector["inputs"]["ring0_mc"], 16) - bench.gpu.mc_base
    assert bench.gpu.vram.read(offset, 2) == bytes([20, 181])
    bench.write("IH_RING1_CLIENT_CFG_DATA", 0x1000A, "OSSSYS")
    bench.gpu.ih.raise_interrupt(10, 0)
    assert bench.gpu.vram.read(int(vector["inputs"]["ring1_mc"], 16) - bench.gpu.mc_base, 2) == bytes([10, 0])


def test_every_vector_of_the_file_is_used() -> None:
    assert {each["id"] for each in VECTORS} == {*(each["id"] for each in ENTRIES), "gfx1100.ring_init", "gfx1100.overflow"}
    assert len(ENTRIES) == 10


def test_recorded_overflow_handling_clears_the_flag() -> None:
    vector = next(each for each in VECTORS if each["id"] == "gfx1100.overflow")
    bench = prepared()
    bench.write("IH_RB_WPTR", int(vector["inputs"]["write_pointer_register"], 16), "OSSSYS")
    for access in vector["expected"]["accesses"]:
        if access["kind"] == "w":
            bench.write(access["reg"], int(access["value"], 16), "OSSSYS")
        else:
            assert bench.read(access["reg"], "OSSSYS") == int(access["value"], 16)
    assert bench.read("IH_RB_WPTR", "OSSSYS") == int(vector["expected"]["read_pointer_register_after"], 16)
