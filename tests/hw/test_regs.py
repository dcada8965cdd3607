"""Registers by name: places, fields, and accesses that land on the right dword."""

from __future__ import annotations

from pathlib import Path

import pytest

from hw.errors import WaitTimeout
from hw.mmio import LocalMmio
from hw.regs import RegisterBlock, RegisterSpace, RegisterTable, UnknownRegister, load_table
from tests.hw.test_poll import StepClock

TEXT = """# a comment
CP_ME_CNTL 0 3 me_halt:1c pfp_halt:1a cache:0-3
CP_ME_CNTL_COPY 1 4 =CP_ME_CNTL
RAW 1 ff
SCRATCH abs 20 value:0-1f
RING_LO 0 8
RING_HI 0 9
"""


@pytest.fixture
def table() -> RegisterTable:
    return RegisterTable("GC", TEXT)


@pytest.fixture
def window() -> LocalMmio:
    return LocalMmio.anonymous(0x1000)


@pytest.fixture
def block(table: RegisterTable, window: LocalMmio) -> RegisterBlock:
    return RegisterBlock(table, [0x10, 0x40], RegisterSpace(window, StepClock()))


def test_table_holds_places_and_fields(table: RegisterTable) -> None:
    assert list(table) == ["CP_ME_CNTL", "CP_ME_CNTL_COPY", "RAW", "SCRATCH", "RING_LO", "RING_HI"]
    assert len(table) == 6 and "RAW" in table and "NONE" not in table
    assert table.place("CP_ME_CNTL") == (0, 3)
    assert table.place("SCRATCH") == (None, 0x20)
    assert table.fields("CP_ME_CNTL") == {"me_halt": (28, 28), "pfp_halt": (26, 26), "cache": (0, 3)}
    assert table.fields("CP_ME_CNTL_COPY") is table.fields("CP_ME_CNTL")
    assert table.fields("RAW") == {}


def test_fields_encode_and_decode(table: RegisterTable) -> None:
    assert table.encode("CP_ME_CNTL", me_halt=1, cache=5) == 0x10000005
    assert table.decode("CP_ME_CNTL", 0x14000007) == {"me_halt": 1, "pfp_halt": 1, "cache": 7}
    assert table.mask("CP_ME_CNTL") == 0x1400000F
    assert table.mask("CP_ME_CNTL", ["cache"]) == 0xF
    assert table.encode("SCRATCH", value=0xFFFFFFFF) == 0xFFFFFFFF


def test_wrong_names_and_values_are_refused(table: RegisterTable, block: RegisterBlock, window: LocalMmio) -> None:
    with pytest.raises(UnknownRegister, match="GC has no register CP_NONE") as caught:
        _ = block.CP_NONE
    assert "tghw regs list" in caught.value.remedy
    with pytest.raises(UnknownRegister, match="CP_ME_CNTL has no field halt") as field:
        block.CP_ME_CNTL.write(halt=1)
    assert "me_halt, pfp_halt, cache" in field.value.read
    for wrong in ({"cache": 16}, {"cache": -1}, {"me_halt": 2}):
        with pytest.raises(ValueError, match="does not fit"):
            block.CP_ME_CNTL.update(**wrong)
    with pytest.raises(TypeError, match="either a value or fields"):
        block.CP_ME_CNTL.write(1, cache=1)
    with pytest.raises(UnknownRegister):
        block.CP_ME_CNTL.get("halt")
    with pytest.raises(UnknownRegister, match="needs address base 1") as base:
        RegisterBlock(table, [0x10], RegisterSpace(window)).index("RAW")
    assert "published 1 bases" in base.value.read
    assert window.read(0, 0x1000) == bytes(0x1000)


def test_accesses_land_on_base_plus_offset(block: RegisterBlock, window: LocalMmio) -> None:
    block.CP_ME_CNTL.write(me_halt=1)
    block.CP_ME_CNTL_COPY.write(0x1234)
    block["SCRATCH"].write(value=7)
    assert (window.read32(0x13 * 4), window.read32(0x44 * 4), window.read32(0x20 * 4)) == (1 << 28, 0x1234, 7)
    assert block.SCRATCH.read() == 7
    assert block.CP_ME_CNTL.fields() == {"me_halt": 1, "pfp_halt": 0, "cache": 0}


def test_update_changes_the_named_fields_only(block: RegisterBlock, window: LocalMmio) -> None:
    block.CP_ME_CNTL.write(0xFFFFFFFF)
    assert block.CP_ME_CNTL.update(me_halt=0, cache=2) == 0xEFFFFFF2
    assert window.read32(0x13 * 4) == 0xEFFFFFF2
    assert block.CP_ME_CNTL.get("cache") == 2


def test_pairs_and_blocks_are_written_in_order(block: RegisterBlock, window: LocalMmio) -> None:
    block.write_pair("RING_LO", "RING_HI", 0x1_2345_6789)
    assert window.read64(0x18 * 4) == 0x1_2345_6789
    block._space.write_block(0x30, [1, 2, 3])
    assert [window.read32(0x30 * 4 + 4 * position) for position in range(4)] == [1, 2, 3, 0]


def test_poll_waits_for_fields_and_tells_the_last_value_decoded(block: RegisterBlock, window: LocalMmio) -> None:
    window.write32(0x13 * 4, 1 << 28 | 3)
    assert block.CP_ME_CNTL.poll(within=1.0, me_halt=1) == 1 << 28 | 3
    assert block.CP_ME_CNTL.poll(within=1.0, mask=3, value=3) == 1 << 28 | 3
    assert block.CP_ME_CNTL.poll(within=1.0, until=lambda value: value != 0) == 1 << 28 | 3
    with pytest.raises(WaitTimeout) as caught:
        block.CP_ME_CNTL.poll(within=0.5, me_halt=0, cache=1)
    assert caught.value.what == "CP_ME_CNTL me_halt = 0x0, cache = 0x1 did not happen within 0.5 s"
    assert "CP_ME_CNTL = 0x10000003 (me_halt=0x1, pfp_halt=0x0, cache=0x3)" in caught.value.read
    with pytest.raises(WaitTimeout, match=r"& 0xf == 0x0"):
        block.CP_ME_CNTL.poll(within=0.5, mask=0xF)


def test_names_of_touched_registers_are_known_to_the_space(block: RegisterBlock) -> None:
    _ = block.CP_ME_CNTL
    assert block._space.name_of(0x13) == "CP_ME_CNTL"
    assert block._space.name_of(0x99) == "register 0x99"
    assert "RAW" in dir(block) and "RAW" in block


def test_reads_go_through_a_space_that_has_its_own_way(table: RegisterTable, window: LocalMmio) -> None:
    class Indirect(RegisterSpace):
        def read(self, index: int) -> int:
            return 0x1000 + index

    assert RegisterBlock(table, [0x10, 0x40], Indirect(window)).CP_ME_CNTL.read() == 0x1013


def test_tables_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "GC_11_0_0.reg"
    path.write_text(TEXT)
    table = load_table(path)
    assert table.name == "GC_11_0_0"
    assert load_table(path) is table
