"""A BAR0 of 256 MiB: the rest of the memory is reached through index registers."""

from __future__ import annotations

import pytest

from hw.errors import OutOfWindow
from tests.drivers.amd.support import Bench, Counting, bench

MIB = 1 << 20


@pytest.fixture
def small() -> Bench:
    each = bench(faults="resize-refused")
    each.dev.boot()
    return each


def test_boot_goes_on_with_the_small_window(small: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert small.dev.state() == "running"
    assert small.dev.visible_vram == 256 * MIB
    assert small.dev.vram_size == 24560 * MIB


def test_refused_resize_is_told_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    each = bench(faults="resize-refused")
    before = each.machine.export_config(each.pci.address)[0x10:0x28]
    with caplog.at_level("WARNING"):
        each.dev.boot(until="pci")
    assert "going on with a window of 256 MiB" in caplog.text
    assert each.machine.export_config(each.pci.address)[0x10:0x28] == before


def test_discovery_through_index_registers_reads_only_the_announced_bytes() -> None:
    each = bench(faults="resize-refused")
    counting = Counting(each.pci)
    each.dev.boot(until="discovery")
    assert each.dev.ip.size == 888
    assert counting.reads[0x01] == 888 // 4
    assert counting.accesses[0, "read"] == 0


def test_everything_the_boot_touches_is_visible(small: Bench) -> None:
    boot = small.dev.boot_memory
    assert max(boot.tmr + 0x1300000, boot.smu_table, *boot.mqds) < 32 * MIB
    buffer = small.dev.memory.alloc(4 * MIB)
    assert buffer.segments[0][0] >= (32 + 48) * MIB, "the area for page tables lies between boot memory and buffers"


@pytest.mark.parametrize("offset", [256 * MIB, 256 * MIB - 8, 3 << 30, (24 << 30) - (200 << 20) + 2, 256 * MIB - 3])
@pytest.mark.parametrize("size", [1, 4, 7, 64])
def test_memory_beyond_the_window(small: Bench, offset: int, size: int) -> None:
    data = bytes((7 * position + size) & 0xFF for position in range(size))
    around = small.gpu.vram.read(offset - 8, size + 16)
    small.dev.vram_write(offset, data)
    assert small.dev.vram_read(offset, size) == data
    small.dev.flush_hdp()
    assert small.gpu.vram.read(offset - 8, size + 16) == around[:8] + data + around[8 + size :], "neighbours are untouched"


def test_views_end_where_the_window_ends(small: Bench) -> None:
    assert small.dev.vram_view(255 * MIB, MIB) is not None
    assert small.dev.vram_view(255 * MIB, MIB + 4) is None


def test_outside_of_memory_is_refused(small: Bench) -> None:
    with pytest.raises(OutOfWindow, match="outside the 0x5ff000000 bytes of VRAM"):
        small.dev.vram_read(24560 * MIB - 4, 8)


def test_warm_start_with_a_small_window(small: Bench) -> None:
    small.dev.finish()
    small.again().boot()
    assert small.gpu.resets == 0


def test_state_of_a_card_with_a_small_window() -> None:
    each = bench(faults="resize-refused")
    assert each.dev.state() == "cold"
