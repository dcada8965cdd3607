"""What a mode-1 reset, a soft reset and a lack of power do to the simulated card."""

from __future__ import annotations

import pytest

from drivers.amd.layouts.psp import BootLoaderCommand
from firmware.amd_layouts import SosPart
from tests.mocks.amd.card import MESSAGE, READY, Card, NeverHappened

ONES = 0xFFFFFFFF
SCRATCH = "SCRATCH_REG7"
MODE1 = 2


@pytest.fixture
def booted() -> Card:
    card = Card(strict=False)
    card.boot_to_autoload()
    card.write("GC", SCRATCH, 0x1234)
    return card


def test_mode1_reset_answers_then_goes_dark_then_comes_back_cold(booted: Card) -> None:
    start = booted.clock.now()
    assert booted.smu(MODE1, debug=True)[0] == 1
    assert booted.read("GC", SCRATCH) == 0x1234
    booted.wait(lambda: booted.read("GC", SCRATCH) == ONES, "dark", 0.01)
    assert 0.0009 < booted.clock.now() - start < 0.0015
    assert booted.mmio.read32(4 * 0xDE3) == ONES
    assert booted.vram.read(MESSAGE, 16) == b"\xff" * 16
    assert booted.pci.id.device == 0x744C
    booted.wait(lambda: booted.read("GC", SCRATCH) != ONES, "light")
    assert 0.199 < booted.clock.now() - start < 0.203
    assert booted.read("GC", SCRATCH) == 0
    assert booted.c2p(35) == 0
    booted.wait(lambda: bool(booted.c2p(35) & READY), "boot loader")
    assert 0.299 < booted.clock.now() - start < 0.303
    assert (booted.c2p(33), booted.c2p(81), booted.c2p(64), booted.c2p(71)) == (READY, 0, 0, 0)
    assert booted.read("GC", "CP_STAT") == 0x80000000
    assert booted.read("GC", "RLC_RLCS_BOOTLOAD_STATUS") == 0
    assert booted.mmio.read32(4 * 0xDE3) == 0x5FF0


def test_memory_is_scrambled_by_a_reset_except_the_discovery_table(booted: Card) -> None:
    booted.vram.write(0x2000, b"keep me?" * 16)
    discovery = booted.gpu.vram.read(booted.gpu.vram_size - 0x10000, 888)
    before = booted.gpu.vram.read(0x1000000, 64)
    booted.smu(MODE1, debug=True)
    booted.clock.sleep(0.5)
    assert b"keep" not in booted.vram.read(0x2000, 128)
    assert booted.gpu.vram.read(0x1000000, 64) != before
    assert booted.gpu.vram.read(booted.gpu.vram_size - 0x10000, 888) == discovery


def test_after_a_reset_everything_has_to_be_loaded_again(booted: Card) -> None:
    booted.smu(MODE1, debug=True)
    booted.clock.sleep(0.5)
    assert booted.gpu.psp.loaded_types == set()
    with pytest.raises(NeverHappened):
        booted.smu(1)
    assert booted.load_component(BootLoaderCommand.LOAD_SYS_DRV, booted.parts[SosPart.SYS_DRV]) == 0xD


def test_a_card_boots_again_after_a_reset(booted: Card) -> None:
    booted.smu(MODE1, debug=True)
    booted.clock.sleep(0.5)
    booted.boot_to_autoload()
    assert booted.read("GC", "CP_STAT") == 0
    assert booted.gpu.resets == 1


def test_the_psp_can_reset_too(booted: Card) -> None:
    booted.set_c2p(64, 0x70000)
    booted.clock.sleep(0.5)
    assert (booted.c2p(81), booted.c2p(35)) == (0, READY)


def test_the_main_mailbox_message_resets_as_well(booted: Card) -> None:
    assert booted.smu(0x2F)[0] == 1
    booted.clock.sleep(0.5)
    assert (booted.c2p(81), booted.read("GC", SCRATCH)) == (0, 0)


def test_a_bus_reset_is_a_power_on(booted: Card) -> None:
    booted.pci.reset()
    booted.clock.sleep(0.1)
    assert (booted.c2p(81), booted.c2p(35), booted.read("GC", SCRATCH)) == (0, READY, 0)
    assert booted.pci.bar(5).address == 0xFCB00000


def test_graphics_registers_have_no_power_before_autoload() -> None:
    card = Card(strict=False)
    card.write("GC", "SH_MEM_BASES", 0x00010002)
    card.write("GC", "RLC_CNTL", 1)
    card.write("GC", "GCVM_CONTEXT0_CNTL", 0x01FFFE07)
    assert [card.read("GC", name) for name in ("SH_MEM_BASES", "RLC_CNTL", "GCVM_CONTEXT0_CNTL")] == [0, 0, 0]
    card.boot_to_autoload()
    assert [card.read("GC", name) for name in ("SH_MEM_BASES", "RLC_CNTL", "GCVM_CONTEXT0_CNTL")] == [0, 0, 0]
    card.write("GC", "RLC_CNTL", 1)
    assert card.read("GC", "RLC_CNTL") == 1
    assert [name for name, _ in card.gpu.dropped_writes] == ["SH_MEM_BASES", "RLC_CNTL", "GCVM_CONTEXT0_CNTL"]


def test_scratch_registers_work_without_graphics_power() -> None:
    card = Card(strict=False)
    card.write("GC", "SCRATCH_REG6", 1)
    assert card.read("GC", "SCRATCH_REG6") == 1


def test_autoload_takes_20_ms_and_reports_busy_meanwhile() -> None:
    card = Card(strict=False)
    card.boot_to_tmr()
    for kind in (72, 71, 89, 94, 68, 69, 26, 48, 8):
        card.load_ip_fw(kind)
    card.submit(0x21)
    assert card.read("GC", "CP_STAT") == 0x80000000
    assert 0.019 < card.wait(lambda: card.read("GC", "CP_STAT") == 0, "autoload") < 0.021


def test_fault_autoload_never_completes() -> None:
    card = Card(strict=False, faults="rlc-never")
    with pytest.raises(NeverHappened, match="autoload"):
        card.boot_to_autoload()
    assert card.read("GC", "RLC_RLCS_BOOTLOAD_STATUS") == 0


def test_safe_mode_is_entered_and_left_by_a_running_rlc(booted: Card) -> None:
    booted.write("GC", "RLC_CNTL", 1)
    booted.write("GC", "RLC_SAFE_MODE", 3)
    assert booted.read("GC", "RLC_SAFE_MODE") & 1 == 1
    booted.clock.sleep(60e-6)
    assert booted.read("GC", "RLC_SAFE_MODE") & 1 == 0
    assert booted.gpu.rlc.safe_mode
    booted.write("GC", "RLC_SAFE_MODE", 1)
    booted.clock.sleep(60e-6)
    assert not booted.gpu.rlc.safe_mode


def test_safe_mode_command_sticks_when_the_rlc_is_not_enabled(booted: Card) -> None:
    booted.write("GC", "RLC_SAFE_MODE", 3)
    booted.clock.sleep(0.01)
    assert booted.read("GC", "RLC_SAFE_MODE") & 1 == 1


def test_fault_bus_lost_at_a_stage() -> None:
    card = Card(strict=False, faults="all-ones-stage=autoload")
    with pytest.raises(AssertionError):
        card.boot_to_autoload()
    assert card.c2p(35) == ONES
    assert card.pci.config.read32(0) == ONES
