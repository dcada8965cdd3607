"""The chips of the generation, and cards in unusual circumstances."""

from __future__ import annotations

import pytest

from tests.drivers.amd.support import Counting, bench
from tests.drivers.amd.test_boot import COPY_RING, FREE_CHOICES, ONLY_OUR_BITS, RING, expected_rows, map_window

CHIPS = {
    "navi31": ("gfx1100", 24560, 96),
    "navi32": ("gfx1101", 16368, 60),
    "navi33": ("gfx1102", 8176, 32),
}


@pytest.mark.parametrize("profile", CHIPS)
def test_every_chip_boots_cold_and_warm(profile: str) -> None:
    arch, mib, compute_units = CHIPS[profile]
    each = bench(profile)
    each.dev.boot()
    assert (each.dev.arch, each.dev.vram_size >> 20, each.dev.ip.cu_count) == (arch, mib, compute_units)
    map_window(each.dev)
    each.dev.setup_compute_ring(**RING)
    each.dev.setup_sdma_ring(*COPY_RING)
    each.dev.finish()
    each.again().boot()
    assert each.gpu.resets == 0


def test_navi33_writes_what_was_recorded_for_it() -> None:
    """Its multimedia hub has a register layout of its own."""
    each = bench("navi33")
    counting = Counting(each.pci)
    each.dev.boot()
    differences = []
    for row in expected_rows("navi33"):
        index, wanted = int(row["dword_index"], 16), int(row["last_value"], 16)
        if row["phase"] != "boot" or row["register"] in FREE_CHOICES or index in MOVED:
            continue
        written = counting.last_write.get(index)
        bits = ONLY_OUR_BITS.get(row["register"], 0xFFFFFFFF)
        if written is None or (written ^ wanted) & bits:
            differences.append(f"{row['register']} at {index:#x} = {written}, recorded {wanted:#x}")
    assert differences == [f"MP1_SMN_C2PMSG_82 at 0x16292 = {2655}, recorded 0x9de"], "only the highest clock of the simulated chips differs"


MOVED = {0x1A6CD}
"""MM_ATC_L2_MISC_CG, which this layout has not got"""


def test_a_card_powered_a_moment_ago_is_waited_for() -> None:
    each = bench("navi31-hotplug")
    assert each.dev.state() == "cold"
    each.dev.boot()
    assert each.dev.state() == "running"
