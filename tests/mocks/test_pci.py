"""PCI functions of a simulated machine, poked through their configuration space and BARs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hw.errors import BarUnassigned, BusLost, MemoryDisabled, NotSupported, OutOfWindow, ResizeRefused
from mocks.faults import FaultPlan
from mocks.machine import Machine
from mocks.pci_device import MockPciDevice

GPU = "0000:03:00.0"
MIB = 1 << 20
MEMSIZE = 4 * 0xDE3
ONES = 0xFFFFFFFF


def opened(faults: str = "", profile: str = "navi31") -> tuple[Machine, MockPciDevice]:
    machine = Machine.from_profile(profile, faults=FaultPlan.parse(faults))
    return machine, machine.open(GPU)


# --- configuration space ---


def test_standard_capabilities_as_on_the_board() -> None:
    _, pci = opened()
    assert pci.config.read8(0x34) == 0x48
    found = []
    offset = 0x48
    while offset:
        found.append((offset, pci.config.read8(offset)))
        offset = pci.config.read8(offset + 1)
    assert found == [(0x48, 0x09), (0x50, 0x01), (0x64, 0x10), (0xA0, 0x05)]
    assert pci.config.read32(0x48) == 0x00085009
    assert (pci.config.read32(0x50), pci.config.read32(0x54)) == (0xF0036401, 0x00000008)
    assert [pci.config.read32(offset) for offset in (0x64, 0x68, 0x70, 0x74, 0x90)] == [0x0012A010, 0x00008FA1, 0x00400D04, 0x11040040, 0x0000001E]
    assert pci.config.read32(0xA0) == 0x00800005


def test_extended_capabilities_as_on_the_board() -> None:
    _, pci = opened()
    expected = {
        0x100: 0x1501000B,
        0x150: 0x20020001,
        0x200: 0x24010015,
        0x240: 0x27010004,
        0x270: 0x2A010019,
        0x2A0: 0x2D01000D,
        0x2D0: 0x3201001B,
        0x320: 0x41010018,
        0x410: 0x45010026,
        0x450: 0x00010027,
    }
    offset = 0x100
    walked = {}
    while offset:
        walked[offset] = pci.config.read32(offset)
        offset = walked[offset] >> 20
    assert walked == expected
    assert (pci.config.read32(0x104), pci.config.read32(0x2D4)) == (0x01010001, 0x00000A06)


def test_identity_bits_are_read_only() -> None:
    _, pci = opened()
    before = pci.config.dump()
    for offset in (0x00, 0x08, 0x2C, 0x34, 0x48, 0x70, 0x100, 0x204):
        pci.config.write32(offset, ONES)
    assert pci.config.dump() == before
    assert (pci.id.vendor, pci.id.device, pci.id.revision, pci.id.class_code) == (0x1002, 0x744C, 0xC8, 0x030000)
    assert (pci.id.subsystem_vendor, pci.id.subsystem_device) == (0x1002, 0x0E3B)
    assert pci.config.read8(0x0E) == 0x80


def test_command_has_its_writable_bits_only() -> None:
    _, pci = opened()
    pci.config.write16(4, 0xFFFF)
    assert pci.config.read16(4) == 0x0547
    pci.config.write16(4, 0)
    assert pci.config.read16(4) == 0


def test_error_bits_of_the_status_register_clear_by_writing_one() -> None:
    machine, pci = opened()
    machine.function(GPU).config.put(6, 0x2010, 2)
    pci.config.write16(6, 0x0010)
    assert pci.config.read16(6) == 0x2010
    pci.config.write16(6, 0x2000)
    assert pci.config.read16(6) == 0x0010


def test_accesses_must_be_aligned_and_inside() -> None:
    _, pci = opened()
    for offset, size in ((1, 2), (2, 4), (0, 3), (4096, 4), (-4, 4)):
        with pytest.raises(OutOfWindow):
            pci.config.read(offset, size)


def test_interrupt_line_is_unassigned_and_writable() -> None:
    _, pci = opened()
    assert (pci.config.read8(0x3C), pci.config.read8(0x3D)) == (0xFF, 1)
    pci.config.write8(0x3C, 11)
    assert pci.config.read8(0x3C) == 11


# --- BARs ---


def test_sizing_by_all_ones() -> None:
    _, pci = opened()
    originals = {index: pci.config.read32(0x10 + 4 * index) for index in range(6)}
    for index in range(6):
        pci.config.write32(0x10 + 4 * index, ONES)
    assert [pci.config.read32(0x10 + 4 * index) for index in range(6)] == [0xF000000C, ONES, 0xFFE0000C, ONES, 0xFFFFFF01, 0xFFF00000]
    pci.config.write32(0x30, 0xFFFFF800)
    assert pci.config.read32(0x30) == 0xFFFE0000
    for index, value in originals.items():
        pci.config.write32(0x10 + 4 * index, value)
    assert pci.map_bar(5).read32(MEMSIZE) == 0x5FF0


def test_a_bar_that_was_moved_away_answers_no_longer() -> None:
    _, pci = opened()
    window = pci.map_bar(5)
    pci.config.write32(0x24, ONES)
    assert window.read32(MEMSIZE) == ONES
    pci.config.write32(0x24, 0xFCB00000)
    assert window.read32(MEMSIZE) == 0x5FF0


def test_bars_as_the_kernel_lists_them() -> None:
    _, pci = opened()
    bars = pci.bars
    assert {index: (bar.address, bar.size) for index, bar in bars.items()} == {
        0: (0x78_0000_0000, 256 * MIB),
        2: (0x80_0000_0000, 2 * MIB),
        4: (0xE000, 256),
        5: (0xFCB0_0000, MIB),
    }
    assert (bars[0].is_64bit, bars[0].prefetchable, bars[4].is_io, bars[5].is_64bit, bars[5].prefetchable) == (True, True, True, False, False)
    assert bars[0].resizable_to == tuple(each * MIB for each in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768))


def test_memory_space_off_means_all_ones_and_lost_writes() -> None:
    _, pci = opened()
    registers, memory = pci.map_bar(5), pci.map_bar(0)
    memory.write32(0x1000, 7)
    pci.set_memory_space(False)
    assert registers.read32(MEMSIZE) == ONES
    assert memory.read(0x1000, 8) == b"\xff" * 8
    assert memory.read64(0x1000) == 0xFFFFFFFFFFFFFFFF
    memory.write32(0x1000, 8)
    with pytest.raises(MemoryDisabled):
        pci.map_bar(5)
    pci.set_memory_space(True)
    assert memory.read32(0x1000) == 7


def test_a_sleeping_function_answers_config_only() -> None:
    _, pci = opened()
    window = pci.map_bar(5)
    pci.config.write16(0x54, 0x3)
    assert window.read32(MEMSIZE) == ONES
    assert pci.config.read32(0) == 0x744C1002
    pci.config.write16(0x54, 0x1)
    assert pci.config.read16(0x54) & 3 == 3
    pci.config.write16(0x54, 0x0)
    assert window.read32(MEMSIZE) == 0x5FF0


def test_a_bridge_that_forwards_nothing_makes_all_ones() -> None:
    machine, pci = opened()
    window = pci.map_bar(5)
    bridge = machine.function("0000:02:00.0")
    bridge.config_write(4, 0x0004, 2)
    assert window.read32(MEMSIZE) == ONES
    bridge.config_write(4, 0x0006, 2)
    assert window.read32(MEMSIZE) == 0x5FF0
    bridge.config_write(0x20, 0x0000FFF0, 4)
    assert window.read32(MEMSIZE) == ONES
    assert machine.function(GPU).bus_master is False
    pci.set_bus_master(True)
    assert machine.function(GPU).bus_master is True
    bridge.config_write(4, 0x0002, 2)
    assert machine.function(GPU).bus_master is False


def test_resizing_takes_effect_with_decoding_off_only() -> None:
    _, pci = opened()
    pci.config.write32(0x208, 0xF40)
    assert pci.config.read32(0x208) == 0x840
    pci.set_memory_space(False)
    pci.config.write32(0x208, 0x1040)
    assert pci.config.read32(0x208) == 0x840
    pci.config.write32(0x208, 0xF40)
    assert pci.config.read32(0x208) == 0xF40
    pci.config.write32(0x10, ONES)
    pci.config.write32(0x14, ONES)
    assert (pci.config.read32(0x10), pci.config.read32(0x14)) == (0x0000000C, 0xFFFFFFF8)


def test_resize_bar_gives_a_larger_window_and_ends_the_old_one() -> None:
    _, pci = opened()
    old = pci.map_bar(0)
    old.write32(0x10_0000, 77)
    pci.resize_bar(0, 32 << 30)
    with pytest.raises(OutOfWindow, match="resized"):
        old.read32(0)
    new = pci.map_bar(0)
    assert new.size == 32 << 30
    assert new.read32(0x10_0000) == 77
    assert pci.config.read32(0x208) == 0xF40
    assert pci.config.read16(4) & 2 == 2
    with pytest.raises(NotSupported, match="offered: 256 MiB"):
        pci.resize_bar(0, 3 << 30)


def test_resize_refused_changes_nothing() -> None:
    _, pci = opened(profile="navi31-small-bar")
    before = pci.config.dump()
    with pytest.raises(ResizeRefused) as caught:
        pci.resize_bar(0, 32 << 30)
    assert "goes on" in caught.value.remedy or "go on" in caught.value.remedy
    assert pci.config.dump() == before
    assert pci.map_bar(0).size == 256 * MIB


def test_a_window_ends_with_its_device() -> None:
    machine, pci = opened()
    window = pci.map_bar(5)
    pci.set_bus_master(True)
    pci.close()
    pci.close()
    with pytest.raises(OutOfWindow, match="closed"):
        window.read32(MEMSIZE)
    assert machine.function(GPU).command & 4 == 0
    machine.open(GPU)


def test_windows_check_bounds_before_the_bus_is_touched() -> None:
    machine, pci = opened()
    window = pci.map_bar(5)
    before = machine.clock.now()
    for offset in (-4, 2, MIB - 2, MIB):
        with pytest.raises(OutOfWindow):
            window.read32(offset)
    assert machine.clock.now() == before
    with pytest.raises(OutOfWindow):
        pci.map_bar(5, MIB - 16, 32)


def test_accesses_take_bus_time() -> None:
    machine, pci = opened()
    window, memory = pci.map_bar(5), pci.map_bar(0)
    start = machine.clock.now()
    window.read32(MEMSIZE)
    assert machine.clock.now() - start == pytest.approx(1e-6)
    start = machine.clock.now()
    window.write32(0, 0)
    assert machine.clock.now() - start == pytest.approx(0.1e-6)
    start = machine.clock.now()
    memory.write(0, bytes(8_000_000))
    assert machine.clock.now() - start == pytest.approx(1e-3, rel=0.01)


def test_sub_windows_reach_the_same_place() -> None:
    _, pci = opened()
    view = pci.map_bar(5).view(MEMSIZE - 8, 16).view(4, 12)
    assert view.read32(4) == 0x5FF0


# --- interrupts and DMA ---


def test_msi_needs_enabling_and_bus_mastering() -> None:
    machine, pci = opened()
    gpu = machine.gpus[0]
    assert gpu.raise_msi() is False
    irq = pci.irq()
    assert irq is not None
    assert pci.config.read32(0xA0) & 1 << 16
    assert gpu.raise_msi() is False
    pci.set_bus_master(True)
    assert gpu.raise_msi() is True
    assert irq.wait(0.1) is True
    assert irq.wait(0.01) is False


def test_waiting_for_an_interrupt_runs_the_machine() -> None:
    machine, pci = opened()
    pci.set_bus_master(True)
    irq = pci.irq()
    assert irq is not None
    machine.scheduler.call_later(0.5, lambda: machine.gpus[0].raise_msi() and None)
    start = machine.clock.now()
    assert irq.wait(2.0) is True
    assert machine.clock.now() - start == pytest.approx(0.5, abs=1e-6)
    start = machine.clock.now()
    assert irq.wait(2.0) is False
    assert machine.clock.now() - start == pytest.approx(2.0)


def test_lost_interrupts_do_not_arrive() -> None:
    machine, pci = opened("irq-lost")
    pci.set_bus_master(True)
    irq = pci.irq()
    assert irq is not None
    assert machine.gpus[0].raise_msi() is False
    assert irq.wait(0.1) is False


def test_dma_needs_bus_mastering() -> None:
    machine, pci = opened()
    gpu = machine.gpus[0]
    memory = pci.alloc_dma(4096)
    gpu.dma_write(memory.pages[0], b"abc")
    assert memory.window.read(0, 3) == bytes(3)
    assert gpu.dma_read(memory.pages[0], 3) == b"\xff" * 3
    assert gpu.host_pointer(memory.pages[0]) is None
    pci.set_bus_master(True)
    gpu.dma_write(memory.pages[0], b"abc")
    assert memory.window.read(0, 3) == b"abc"


# --- faults ---


def test_dead_bus_reads_all_ones_everywhere() -> None:
    machine = Machine.from_profile("dead-bus")
    with pytest.raises(BusLost):
        machine.open(GPU)
    with pytest.raises(BusLost):
        machine.function(GPU).identity()
    assert machine.function("0000:02:00.0").identity().device == 0x1479


def test_unassigned_bars_cannot_be_mapped() -> None:
    _, pci = opened(profile="bars-unassigned")
    with pytest.raises(BarUnassigned, match="BAR5"):
        pci.map_bar(5)
    assert [pci.config.read32(0x10 + 4 * index) for index in range(6)] == [0xC, 0, 0xC, 0, 0x1, 0]


def test_memory_decoding_that_cannot_be_switched_on() -> None:
    _, pci = opened(profile="navi31-memory-off")
    pci.set_memory_space(True)
    assert pci.config.read16(4) & 2 == 0
    with pytest.raises(MemoryDisabled):
        pci.map_bar(5)


def test_bus_lost_at_the_nth_access() -> None:
    _, pci = opened("all-ones-at=3")
    window = pci.map_bar(5)
    assert [window.read32(MEMSIZE) for _ in range(4)] == [0x5FF0, 0x5FF0, ONES, ONES]
    assert pci.config.read32(0) == ONES


# --- judge ---


def dump(machine: Machine, address: str) -> str:
    raw = machine.export_config(address)
    assert len(raw) == 4096
    lines = [f"{address[5:]} simulated"] + [f"{offset:02x}: {raw[offset : offset + 16].hex(' ')}" for offset in range(0, len(raw), 16)]
    return "\n".join(lines) + "\n\n"


@pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci (pciutils) is not installed")
def test_lspci_reads_the_exported_tree(tmp_path) -> None:  # type: ignore[no-untyped-def]
    machine, pci = opened()
    pci.set_bus_master(True)
    path = tmp_path / "dump"
    path.write_text("".join(dump(machine, function.address) for function in machine.functions()))
    shown = subprocess.run(["lspci", "-F", str(path), "-nn", "-vvv"], capture_output=True, text=True, check=True)
    problems = [line for line in shown.stderr.splitlines() if "libkmod" not in line]
    assert problems == []
    gpu = shown.stdout.split("03:00.0 ")[1].split("03:00.1 ")[0]
    for wanted in (
        "[1002:744c] (rev c8) (prog-if 00 [VGA controller])",
        "[1002:0e3b]",
        "Mem+ BusMaster+",
        "Memory at 7800000000 (64-bit, prefetchable)",
        "Memory at fcb00000 (32-bit, non-prefetchable)",
        "Express (v2) Legacy Endpoint",
        "Speed 16GT/s, Width x16",
        "MSI: Enable- Count=1/1 Maskable- 64bit+",
        "Physical Resizable BAR",
        "BAR 0: current size: 256MB, supported: 256MB 512MB 1GB 2GB 4GB 8GB 16GB 32GB",
        "BAR 2: current size: 2MB, supported: 2MB 4MB 8MB 16MB 32MB 64MB 128MB 256MB",
        "Process Address Space ID (PASID)",
        "FLReset-",
    ):
        assert wanted in gpu, wanted
    assert "[1002:1478]" in shown.stdout
    assert "Bus: primary=02, secondary=03, subordinate=03" in shown.stdout
    assert "[1002:ab30]" in shown.stdout
