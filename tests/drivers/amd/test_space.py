"""Register and memory windows, table selection."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from drivers.amd import regs
from drivers.amd.space import AmdSpace
from drivers.amd.versions import table_for, target_of
from hw.errors import NotSupported, UnknownHardware
from hw.regs import RegisterTable
from tests.drivers.amd.recorder import LoggedRegisters
from tests.drivers.amd.support import bench


def test_register_tables_are_small() -> None:
    """All of them together; a card uses nine of eleven."""
    files = sorted(Path(regs.__file__).parent.glob("*.reg"))
    tracemalloc.start()
    try:
        tables = [RegisterTable(file.stem, file.read_text(encoding="ascii")) for file in files]
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert sum(len(table) for table in tables) > 2000
    assert used < 15e6


def logged() -> tuple[AmdSpace, LoggedRegisters]:
    window = LoggedRegisters([], 1 << 20)
    return AmdSpace(window), window


def test_registers_inside_the_bar_are_one_access() -> None:
    space, window = logged()
    space.write(0x3FFFF, 5)
    assert space.read(0x3FFFF) == 5
    assert window.log == [("w", 0x3FFFF, 5), ("r", 0x3FFFF, 5)]


def test_registers_beyond_the_bar_go_through_the_rsmu_pair() -> None:
    space, window = logged()
    space.write(0x507A40, 0x30000007)
    window.values[0x15] = 0x1234
    assert space.read(0x404D102) == 0x1234
    assert window.log == [("w", 0x14, 0x141E900), ("w", 0x15, 0x30000007), ("w", 0x14, 0x10134408), ("r", 0x15, 0x1234)]


def test_registers_of_other_dies_go_through_pcie_index2() -> None:
    space, window = logged()
    space.write_aid(2, 0x1000, 0x55)
    space.read_aid(0, 0x1000)
    assert window.log == [("w", 0x0E, 0x4000), ("w", 0x11, 6), ("w", 0x0F, 0x55), ("w", 0x11, 0), ("w", 0x0E, 0x4000), ("r", 0x0F, 0x55)]


def test_memory_through_index_registers_selects_the_high_part_once() -> None:
    space, window = logged()
    window.values[1] = 0xABCD
    assert space.memory_read(0x1_8000_0000 - 4, 2) == [0xABCD, 0xABCD]
    assert window.log == [("w", 6, 2), ("w", 0, 0xFFFFFFFC), ("r", 1, 0xABCD), ("w", 6, 3), ("w", 0, 0x80000000), ("r", 1, 0xABCD)]
    window.log.clear()
    space.memory_write(0x1000, [1, 2])
    assert window.log == [("w", 6, 0), ("w", 0, 0x80001000), ("w", 1, 1), ("w", 0, 0x80001004), ("w", 1, 2)]


def test_windows_reach_the_same_registers_on_the_simulated_card() -> None:
    each = bench()
    each.dev.discover()
    strap = each.dev.nbio.RCC_DEV0_EPF2_STRAP2
    assert strap.index >= each.dev.space.direct
    strap.write(strap_aer_en_dev0_f2=1)
    assert each.value(strap.index) == strap.encode(strap_aer_en_dev0_f2=1) == strap.read()
    assert each.dev.space.read_aid(0, 0xDE3) == 24560


@pytest.mark.parametrize(
    ("block", "version", "table"),
    [
        ("GC", (11, 0, 0), "GC_11_0_0"),
        ("GC", (11, 0, 2), "GC_11_0_0"),
        ("GC", (11, 0, 3), "GC_11_0_3"),
        ("MMHUB", (3, 0, 0), "MMHUB_3_0_0"),
        ("MMHUB", (3, 0, 2), "MMHUB_3_0_2"),
        ("MMHUB", (3, 0, 3), "MMHUB_3_0_0"),
        ("NBIO", (4, 3, 1), "NBIO_4_3_0"),
        ("MP0", (13, 0, 7), "MP0_13_0_0"),
        ("MP0", (13, 0, 10), "MP0_13_0_0"),
        ("MP1", (13, 0, 7), "MP1_11_0_0"),
        ("HDP", (6, 0, 1), "HDP_6_0_0"),
        ("OSSSYS", (6, 0, 1), "OSSSYS_6_0_0"),
    ],
)
def test_table_of_a_version(block: str, version: tuple[int, int, int], table: str) -> None:
    assert table_for(block, version).name == table


@pytest.mark.parametrize(("block", "version"), [("MMHUB", (3, 0, 1)), ("GC", (11, 0, 1)), ("GC", (10, 3, 0)), ("OSSSYS", (7, 0, 0)), ("NBIO", (4, 2, 0))])
def test_version_without_a_table_is_named_with_those_there_are(block: str, version: tuple[int, int, int]) -> None:
    with pytest.raises(UnknownHardware, match=f"{block} {'.'.join(map(str, version))}") as caught:
        table_for(block, version)
    assert f"tables of {block}" in caught.value.read


def test_targets() -> None:
    assert [target_of(version) for version in ((11, 0, 0), (11, 0, 2), (11, 0, 3))] == ["gfx1100", "gfx1102", "gfx1101"]
    with pytest.raises(NotSupported, match=r"12\.0\.1"):
        target_of((12, 0, 1))
    with pytest.raises(UnknownHardware):
        target_of((11, 5, 0))
