"""The memory hubs: apertures, faults, invalidation (mock-faithfulness lines 4, 7, 9). Registers are written by hand."""

from __future__ import annotations

import pytest

from mocks.amd.hub import VmFault
from mocks.amd.tlb import EXECUTE, READ, WRITE
from tests.mocks.amd.bench import DATA, DUMMY, LEAF, ROOT, SCRATCH, Bench

PAGE = 0x400_0000
OTHER = 0x500_0000


@pytest.fixture
def bench() -> Bench:
    """Hubs and interrupts run; one page is mapped at DATA."""
    made = Bench()
    made.hub("MM")
    made.interrupts()
    made.hub("GC")
    made.map(DATA, PAGE)
    made.gpu.vram.write(PAGE, b"first   ")
    made.gpu.vram.write(OTHER, b"second  ")
    made.gpu.vram.write(DUMMY, b"dummy   ")
    return made


def test_a_virtual_address_reaches_its_page(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    assert hub.read(0, DATA, 8) == b"first   "
    hub.write(0, DATA + 8, b"written")
    assert bench.gpu.vram.read(PAGE + 8, 7) == b"written"


def test_an_mc_address_inside_the_aperture_is_not_translated(bench: Bench) -> None:
    assert bench.gpu.hub("mm").read(0, bench.gpu.mc_base + OTHER, 8) == b"second  "


def test_an_address_in_the_aperture_beyond_memory_reads_the_default_page(bench: Bench) -> None:
    bench.gpu.vram.write(SCRATCH, b"scratch ")
    bench.write("MMMC_VM_SYSTEM_APERTURE_HIGH_ADDR", 0x218000, "MMHUB")
    assert bench.gpu.hub("mm").read(0, bench.gpu.mc_base + bench.gpu.vram_size, 8) == b"scratch "


def test_an_mc_address_outside_the_aperture_is_translated_and_faults(bench: Bench) -> None:
    bench.write("MMMC_VM_SYSTEM_APERTURE_HIGH_ADDR", 0x200000, "MMHUB")
    assert bench.gpu.hub("mm").read(0, bench.gpu.mc_base + OTHER, 8) == b"dummy   "
    assert bench.read("MMVM_L2_PROTECTION_FAULT_STATUS", "MMHUB") >> 1 & 7 == 1


def test_the_agp_window_shows_host_memory_as_one_range_until_it_is_turned_off(bench: Bench) -> None:
    memory = bench.device.alloc_dma(4096)
    memory.window.write(0, b"by AGP  ")
    for name, value in (("BASE", memory.pages[0] >> 24), ("BOT", 0x10), ("TOP", 0x10)):
        bench.write(f"GCMC_VM_AGP_{name}", value)
    hub = bench.gpu.hub("gfx")
    inside = 0x1000_0000 + memory.pages[0] % (1 << 24)
    assert hub.read(0, inside, 8) == b"by AGP  "
    bench.write("GCMC_VM_AGP_BOT", 0xFFFFFF)
    with pytest.raises(VmFault):
        hub.read(0, inside, 8, fetch=True)


def test_the_agp_window_covers_the_first_16_mib_after_reset() -> None:
    """A driver that does not turn it off never sees a fault for a null pointer."""
    bench = Bench()
    bench.hub("GC")
    bench.write("GCMC_VM_AGP_BOT", 0)
    assert bench.gpu.hub("gfx").read(0, 0x1000, 4) == b"\xff" * 4
    assert bench.machine.ram.errors == [("read", 0x1000, 4)]


def test_before_translation_is_enabled_only_physical_addresses_work() -> None:
    bench = Bench()
    bench.gpu.vram.write(OTHER, b"second  ")
    assert bench.gpu.hub("mm").read(0, bench.gpu.mc_base + OTHER, 8) == b"second  "
    with pytest.raises(VmFault):
        bench.gpu.hub("mm").read(0, DATA, 8)


def test_the_graphics_hub_has_no_registers_before_autoload() -> None:
    bench = Bench(graphics=False)
    bench.write("GCVM_CONTEXT0_CNTL", 0x01FFFE07)
    assert bench.read("GCVM_CONTEXT0_CNTL") == 0
    with pytest.raises(AssertionError, match="never acknowledged"):
        bench.invalidate("GC")
    bench.invalidate("MM")


def test_frame_buffer_location_is_there_from_power_on() -> None:
    bench = Bench()
    assert (bench.read("MMMC_VM_FB_LOCATION_BASE", "MMHUB"), bench.read("MMMC_VM_FB_LOCATION_TOP", "MMHUB")) == (0x8000, 0x85FF)


# --- line 4: translations are cached ---


def test_a_remapped_page_shows_its_old_content_until_the_invalidation_is_acknowledged(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.map(DATA, OTHER)
    assert hub.read(0, DATA, 8) == b"first   "
    bench.gpu.write_register(bench.gpu.index("GC", "GCVM_INVALIDATE_ENG17_REQ"), 0x00F80001)
    assert hub.read(0, DATA, 8) == b"first   "
    assert bench.gpu.read_register(bench.gpu.index("GC", "GCVM_INVALIDATE_ENG17_ACK")) == 0
    bench.run(3e-6)
    assert bench.read("GCVM_INVALIDATE_ENG17_ACK") == 1
    assert hub.read(0, DATA, 8) == b"second  "


def test_an_unmapped_page_stays_reachable_until_the_invalidation(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.set_entry(DATA, 3, 0)
    assert hub.read(0, DATA, 8) == b"first   "
    bench.invalidate()
    hub.read(0, DATA, 8)
    assert bench.fault_address() == DATA


def test_invalidating_the_other_hub_does_not_help(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.map(DATA, OTHER)
    bench.invalidate("MM")
    assert hub.read(0, DATA, 8) == b"first   "


def test_invalidating_another_vmid_does_not_help(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.map(DATA, OTHER)
    bench.invalidate(request=0x00F80002)
    assert hub.read(0, DATA, 8) == b"first   "


@pytest.mark.parametrize("missing", [1 << 23, 1 << 19], ids=["L1 entries", "L2 page table entries"])
def test_an_invalidation_that_leaves_out_a_cache_does_not_help(bench: Bench, missing: int) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.map(DATA, OTHER)
    bench.invalidate(request=0x00F80001 & ~missing)
    assert hub.read(0, DATA, 8) == b"first   "


def test_an_engine_whose_range_was_never_set_covers_only_page_0(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.map(DATA, OTHER)
    bench.invalidate(engine=3)
    assert hub.read(0, DATA, 8) == b"first   "
    bench.pair("GCVM_INVALIDATE_ENG3_ADDR_RANGE_LO32", "GCVM_INVALIDATE_ENG3_ADDR_RANGE_HI32", DATA >> 12 << 1)
    bench.invalidate(engine=3)
    assert hub.read(0, DATA, 8) == b"second  "


def test_the_semaphore_belongs_to_one_until_it_is_given_back(bench: Bench) -> None:
    name = "MMVM_INVALIDATE_ENG17_SEM"
    assert bench.read(name, "MMHUB") == 1
    assert bench.read(name, "MMHUB") == 0
    bench.write(name, 0, "MMHUB")
    assert bench.read(name, "MMHUB") == 1


def test_writing_the_invalidate_bits_of_l2_cntl2_drops_what_is_cached(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.map(DATA, OTHER)
    bench.write("GCVM_L2_CNTL2", 3)
    assert hub.read(0, DATA, 8) == b"second  "
    assert bench.read("GCVM_L2_CNTL2") == 0


# --- line 7: faults ---


def test_a_fault_is_recorded_with_address_client_and_direction(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.write(0, DATA + 0x5678, b"lost", 13)
    assert bench.fault_status() == 1 << 4 | 13 << 9 | 1 << 18
    assert bench.fault_address() == DATA + 0x5000
    entry = bench.entries()[0]
    assert (entry[0], entry[4], entry[5]) == (10, DATA + 0x5000 >> 12 & 0xFFFFFFFF, DATA >> 44 | 1 << 5)


def test_a_refused_read_sees_the_default_page_and_a_refused_write_vanishes(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    assert hub.read(0, DATA + 0x1000, 8) == b"dummy   "
    hub.write(0, DATA + 0x1000, b"lost")
    assert bench.gpu.vram.read(DUMMY, 8) == b"dummy   "


def test_without_the_default_page_a_refused_access_fails(bench: Bench) -> None:
    bench.hub("GC", control=0x01FFFE07 & ~(1 << 16))
    with pytest.raises(VmFault):
        bench.gpu.hub("gfx").read(0, DATA + 0x1000, 8)


def test_without_the_interrupt_enable_a_fault_is_only_recorded(bench: Bench) -> None:
    bench.hub("GC", control=0x01FFFE07 & ~(1 << 15))
    bench.gpu.hub("gfx").read(0, DATA + 0x1000, 8)
    assert bench.fault_address() == DATA + 0x1000
    assert bench.entries() == []


@pytest.mark.parametrize(
    ("flags", "access", "permission"),
    [(LEAF & ~0x40, WRITE, 4), (LEAF & ~0x20, READ, 2), (LEAF & ~0x10, EXECUTE, 8)],
    ids=["read only", "not readable", "not executable"],
)
def test_permission_bits_are_checked(bench: Bench, flags: int, access: int, permission: int) -> None:
    bench.map(DATA + 0x1000, OTHER, flags=flags)
    hub = bench.gpu.hub("gfx")
    if access == EXECUTE:
        with pytest.raises(VmFault, match="execute"):
            hub.translate(0, DATA + 0x1000, EXECUTE)
    elif access == WRITE:
        hub.write(0, DATA + 0x1000, b"lost")
        assert bench.gpu.vram.read(OTHER, 8) == b"second  "
    else:
        assert hub.read(0, DATA + 0x1000, 8) == b"dummy   "
    assert bench.fault_status() >> 4 & 0xF == permission


def test_only_the_first_fault_stays_and_the_next_sets_more_faults(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA + 0x5000, 4)
    hub.write(0, DATA + 0x9000, b"lost")
    assert bench.fault_status() == 1 << 4 | 1
    assert bench.fault_address() == DATA + 0x5000
    assert len(bench.entries()) == 1


def test_a_cleared_fault_record_takes_the_next_fault(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA + 0x5000, 4)
    bench.write("GCVM_L2_PROTECTION_FAULT_CNTL", 1)
    assert (bench.fault_status(), bench.fault_address()) == (0, 0)
    hub.read(0, DATA + 0x9000, 4)
    assert bench.fault_address() == DATA + 0x9000
    assert len(bench.entries()) == 2


def test_another_vmid_has_no_page_tables(bench: Bench) -> None:
    with pytest.raises(VmFault, match="VMID 1"):
        bench.gpu.hub("gfx").read(1, DATA, 4)
    assert bench.fault_status() >> 20 & 0xF == 1


def test_faults_of_the_multimedia_hub_come_from_its_own_client(bench: Bench) -> None:
    bench.gpu.hub("mm").read(0, DATA + 0x5000, 4)
    assert bench.sources() == [(18, 0)]
    assert bench.entries()[0][0] >> 31 == 1
    assert bench.fault_status() == 0


def test_a_wrong_root_table_makes_every_access_fault(bench: Bench) -> None:
    bench.pair("GCVM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32", "GCVM_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32", ROOT + 0x8_0000 | 1)
    bench.gpu.vram.fill(ROOT + 0x8_0000, 0x1000)
    bench.gpu.hub("gfx").read(0, DATA, 4)
    assert bench.fault_status() >> 1 & 7 == 4


# --- host memory ---


def test_pages_that_are_not_neighbours_are_each_translated(bench: Bench) -> None:
    window = bench.map_host(DATA + 0x10000, 0x4000)
    bench.gpu.hub("gfx").write(0, DATA + 0x10FF0, bytes(range(64)))
    assert window.read(0xFF0, 64) == bytes(range(64))
    assert not bench.machine.ram.errors


def test_host_memory_is_out_of_reach_without_bus_mastering(bench: Bench) -> None:
    window = bench.map_host(DATA + 0x10000, 0x1000)
    window.write32(0, 0x1234)
    bench.device.set_bus_master(False)
    hub = bench.gpu.hub("gfx")
    hub.write(0, DATA + 0x10000, b"lost")
    assert hub.read(0, DATA + 0x10000, 4) == b"\xff" * 4
    assert window.read32(0) == 0x1234


def test_a_bus_address_that_nobody_has_reads_all_ones_and_is_counted(bench: Bench) -> None:
    bench.map(DATA + 0x10000, 0x7_0000_0000, flags=LEAF | 2)
    assert bench.gpu.hub("gfx").read(0, DATA + 0x10000, 4) == b"\xff" * 4
    assert bench.machine.ram.errors == [("read", 0x7_0000_0000, 4)]


def test_a_page_entry_beyond_memory_is_a_fault(bench: Bench) -> None:
    bench.map(DATA + 0x10000, 0x7_0000_0000)
    bench.gpu.hub("gfx").read(0, DATA + 0x10000, 4)
    assert bench.fault_status() >> 1 & 7 == 6


def test_reading_what_the_host_wrote_and_did_not_flush_is_counted(bench: Bench) -> None:
    memory = bench.device.map_bar(0)
    memory.write32(PAGE, 5)
    assert bench.gpu.hub("gfx").read32(0, DATA) == 5
    assert bench.gpu.hdp.missed_flushes == 1
    bench.gpu.write_register(0x7F000 >> 2, 0)
    bench.gpu.hub("gfx").read32(0, DATA)
    assert bench.gpu.hdp.missed_flushes == 1


def test_a_reset_ends_what_was_asked_for_and_forgets_translations(bench: Bench) -> None:
    hub = bench.gpu.hub("gfx")
    hub.read(0, DATA, 8)
    bench.gpu.write_register(bench.gpu.index("GC", "GCVM_INVALIDATE_ENG17_REQ"), 0x00F80001)
    hub.reset()
    bench.run(1e-3)
    assert bench.read("GCVM_INVALIDATE_ENG17_ACK") == 0
    with pytest.raises(VmFault):
        hub.read(0, DATA, 8)
