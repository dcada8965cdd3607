"""The register file: unmodelled registers, windows, banks, masks, reset values."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hw.errors import NotModelled
from mocks.machine import Machine
from tests.mocks.amd.card import Card

BOOT_STATE = Path(__file__).parents[2] / "data" / "amd_boot_state.csv"


@pytest.fixture
def card() -> Card:
    return Card(strict=False)


@pytest.fixture
def powered(card: Card) -> Card:
    card.gpu.domains_on.add("gfx")
    return card


def test_an_unmodelled_register_is_named(card: Card) -> None:
    with pytest.raises(NotModelled, match=r"read of GRBM_CHIP_REVISION \(dword 0x2021"):
        card.read("GC", "GRBM_CHIP_REVISION")
    with pytest.raises(NotModelled, match=r"write of 0x00000005 to GRBM_CHIP_REVISION"):
        card.write("GC", "GRBM_CHIP_REVISION", 5)


def test_an_index_of_no_table_is_not_modelled_either(card: Card) -> None:
    with pytest.raises(NotModelled, match=r"no register of the tables \(dword 0x3abcd"):
        card.mmio.read32(4 * 0x3ABCD)


def test_only_32_bit_accesses_reach_registers(card: Card) -> None:
    with pytest.raises(NotModelled, match="64-bit read"):
        card.mmio.read64(4 * 0xDE2)
    with pytest.raises(NotModelled, match="8-bit write"):
        card.mmio.write8(4 * 0xDE2, 1)
    with pytest.raises(NotModelled, match="block read"):
        card.mmio.read(0, 16)


@pytest.mark.parametrize("profile", ["navi31", "navi32", "navi33"])
def test_everything_that_a_boot_writes_is_modelled_and_fits(profile: str) -> None:
    """The recorded writes of a third party's driver: each register exists and none of the written bits is cut off. Navi32 has no
    recording; its tables are checked with Navi31's names."""
    gpu = Machine.from_profile(profile).gpus[0]
    wanted = profile if profile != "navi32" else "navi31"
    with BOOT_STATE.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["chip"] == wanted]
    assert len(rows) > 50
    known = {reg.name: reg for reg in gpu._declared.values()}
    for row in rows:
        value = int(row["last_value"], 16)
        if not row["register"] or row["register"] not in known:
            index = int(row["dword_index"], 16)
            assert index in gpu._writes, row
            continue
        reg = known[row["register"]]
        assert value & ~reg.mask & 0xFFFFFFFF == 0 or reg.name.endswith(("RPTR", "WPTR")), row
        if profile != "navi32":
            assert reg.index == int(row["dword_index"], 16), row


def test_reserved_fields_ignore_writes(powered: Card) -> None:
    powered.write("GC", "GRBM_CNTL", 0xFFFFFFFF)
    assert powered.read("GC", "GRBM_CNTL") == 0x800000FF


def test_read_only_registers_ignore_writes(powered: Card) -> None:
    powered.write("GC", "GB_ADDR_CONFIG", 0)
    assert powered.read("GC", "GB_ADDR_CONFIG") == 0x545
    powered.mmio.write32(4 * 0xDE3, 1)
    assert powered.mmio.read32(4 * 0xDE3) == 0x5FF0
    powered.set_c2p(81, 1)
    assert powered.c2p(81) == 0


def test_vmid_selects_a_copy_of_the_shader_memory_registers(powered: Card) -> None:
    for vmid in range(16):
        powered.write("GC", "GRBM_GFX_CNTL", vmid << 4)
        powered.write("GC", "SH_MEM_BASES", 0x100 + vmid)
    for vmid in (3, 15, 0):
        powered.write("GC", "GRBM_GFX_CNTL", vmid << 4)
        assert powered.read("GC", "SH_MEM_BASES") == 0x100 + vmid


def test_queue_selection_banks_and_selects_nothing_outside(powered: Card) -> None:
    def select(me: int, pipe: int, queue: int) -> None:
        powered.write("GC", "GRBM_GFX_CNTL", me << 2 | pipe | queue << 8)

    select(1, 0, 0)
    powered.write("GC", "CP_MQD_BASE_ADDR", 0x1000)
    select(1, 3, 3)
    assert powered.read("GC", "CP_MQD_BASE_ADDR") == 0
    powered.write("GC", "CP_MQD_BASE_ADDR", 0x2000)
    select(1, 0, 0)
    assert powered.read("GC", "CP_MQD_BASE_ADDR") == 0x1000
    for me, pipe, queue in ((0, 0, 0), (3, 0, 0), (1, 0, 4), (2, 1, 7)):
        select(me, pipe, queue)
        powered.write("GC", "CP_MQD_BASE_ADDR", 0x3000)
        assert powered.read("GC", "CP_MQD_BASE_ADDR") == 0


def test_reset_values(card: Card) -> None:
    assert card.read("NBIO", "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL") == 0x7F000
    assert card.read("GC", "GRBM_STATUS") == 0x3028
    assert card.read("GC", "CP_STAT") == 0x80000000
    assert card.mmio.read32(4 * 0xDE5) == 0
    assert card.read("MMHUB", "MMMC_VM_FB_LOCATION_BASE") == 0x8000
    assert card.read("MMHUB", "MMMC_VM_FB_LOCATION_TOP") == 0x85FF
    assert card.read("NBIO", "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN") == 0


# --- windows ---


def test_registers_beyond_bar5_are_reached_through_the_rsmu_window(card: Card) -> None:
    index = card.gpu.index("NBIO", "S2A_DOORBELL_ENTRY_2_CTRL")
    assert index == 0x507A42
    assert 4 * index >= card.mmio.size
    card.write("NBIO", "BIF_BX_PF0_RSMU_INDEX", 4 * index)
    card.write("NBIO", "BIF_BX_PF0_RSMU_DATA", 0x3009001D)
    assert card.gpu.regs[index] == 0x3009001D
    card.write("NBIO", "BIF_BX_PF0_RSMU_INDEX", 4 * (index + 1))
    assert card.read("NBIO", "BIF_BX_PF0_RSMU_DATA") == 0
    assert card.read("NBIO", "BIF_BX_PF0_RSMU_INDEX") == 4 * (index + 1)


def test_the_pcie_window_reaches_the_same_registers_of_this_die_only(card: Card) -> None:
    index = card.gpu.index("NBIO", "RCC_DEV0_EPF2_STRAP2")
    assert index == 0x404D102
    card.write("NBIO", "BIF_BX0_PCIE_INDEX2", 4 * index)
    card.write("NBIO", "BIF_BX0_PCIE_DATA2", 0x80)
    assert card.read("NBIO", "BIF_BX0_PCIE_DATA2") == 0x80
    card.write("NBIO", "BIF_BX0_PCIE_INDEX2_HI", 5)
    assert card.read("NBIO", "BIF_BX0_PCIE_DATA2") == 0xFFFFFFFF
    card.write("NBIO", "BIF_BX0_PCIE_DATA2", 0x11)
    assert card.gpu.regs[index] == 0x80


def test_an_unmodelled_register_behind_a_window_is_named(card: Card) -> None:
    card.write("NBIO", "BIF_BX_PF0_RSMU_INDEX", 4 * card.gpu.index("GC", "GRBM_CHIP_REVISION"))
    with pytest.raises(NotModelled, match="GRBM_CHIP_REVISION"):
        card.read("NBIO", "BIF_BX_PF0_RSMU_DATA")


def mm(card: Card, address: int) -> None:
    card.mmio.write32(4 * 6, address >> 31)
    card.mmio.write32(0, address & 0x7FFFFFFF | 0x80000000)


def test_vram_is_reached_through_mm_index_everywhere(card: Card) -> None:
    top = card.gpu.vram_size - 0x10000
    mm(card, top)
    assert card.mmio.read32(4) == 0x28211407
    mm(card, 0x1_2345_6780)
    card.mmio.write32(4, 0xCAFEF00D)
    assert card.gpu.vram.read32(0x1_2345_6780) == 0xCAFEF00D
    mm(card, card.gpu.vram_size)
    assert card.mmio.read32(4) == 0xFFFFFFFF


def test_mm_index_with_bit_31_clear_reaches_registers(card: Card) -> None:
    card.mmio.write32(4 * 6, 0)
    card.mmio.write32(0, 4 * 0xDE3)
    assert card.mmio.read32(4) == 0x5FF0


def test_a_soft_reset_acts_when_its_bit_rises(powered: Card) -> None:
    seen: list[str] = []
    powered.gpu.blocks["rlc"].soft_reset = seen.append  # type: ignore[method-assign]
    powered.write("GC", "GRBM_SOFT_RESET", 0x40001)
    powered.write("GC", "GRBM_SOFT_RESET", 0x40001)
    powered.write("GC", "GRBM_SOFT_RESET", 0)
    powered.write("GC", "GRBM_SOFT_RESET", 1 << 23)
    assert seen == ["cp", "cpc", "sdma0"]


def test_fields_that_the_tables_call_reserved_ignore_writes(powered: Card) -> None:
    powered.write("GC", "RLC_CNTL", 0xFFFFFFFF)
    assert powered.read("GC", "RLC_CNTL") == 0xF
    powered.write("GC", "CP_INT_CNTL", 0xFFFFFFFF)
    assert powered.read("GC", "CP_INT_CNTL") & 1 << 27
