"""What a mock must make fail: the working driver with exactly one thing broken, and the simulated machine notices.

Lines 1, 2, 3, 5, 9, 13 and 15 of the list of what mocks of this field let pass. Each test first knows from the others that the unbroken
driver works (test_the_unbroken_driver_boots_and_copies).
"""

from __future__ import annotations

import os

import pytest

from drivers.amd import versions
from drivers.amd.gpu import AmdGpu
from drivers.amd.layouts.psp import BootLoaderCommand
from firmware.amd_layouts import PSP_IMAGE_HEADER_SIZE
from hw.errors import BusLost, NotModelled, PspError, RlcError, SmuError, TghwError
from mocks.amd.fw import sos_parts
from mocks.amd.hub import VmFault
from tests.drivers.amd.support import Bench, bench
from tests.mocks.saboteur import MEMORY, Rule, Saboteur, Write, keep

SIZE = 64 << 10


def broken(rule: Rule = keep, *, profile: str = "navi31", strict: bool = True) -> Bench:
    """A machine with a driver whose writes pass a rule."""
    made = bench(profile, strict=strict)
    Saboteur(made.pci, rule)
    return made


def without(*names: str, value: int | None = None) -> Rule:
    """Drops writes to registers of these names (of this value only, if given)."""
    return lambda write: None if write.register in names and value in (None, write.value) else write.data


def changed(name: str, old: int, new: int) -> Rule:
    return lambda write: new.to_bytes(4, "little") if (write.register, write.value) == (name, old) else write.data


def copies(made: Bench, timeout: float = 0.2) -> bool:
    """A copy into device memory and back; True when the bytes are right."""
    gpu = AmdGpu(made.dev)
    gpu.timeout = timeout
    buffer = gpu.alloc(SIZE)
    data = os.urandom(SIZE)
    gpu.copy_in(buffer, data)
    return bytes(gpu.copy_out(buffer, SIZE)) == data


@pytest.mark.parametrize("profile", ["navi31", "navi32", "navi33"])
def test_the_unbroken_driver_boots_and_copies(profile: str) -> None:
    made = broken(profile=profile)
    made.dev.boot()
    assert copies(made)
    assert made.gpu.hdp.missed_flushes == 0
    assert made.gpu.dropped_writes == []


# --- 1: power controller ---


def test_1_a_message_that_is_not_sent_is_not_answered() -> None:
    made = broken(without("MP1_SMN_C2PMSG_66", value=0x6))
    with pytest.raises(SmuError, match="EnableAllSmuFeatures"):
        made.dev.boot()


def test_1_a_question_is_not_its_own_answer() -> None:
    """The response of the message before is not cleared: the driver takes its own argument for the number of levels."""
    armed = False

    def rule(write: Write) -> bytes | None:
        nonlocal armed
        armed = armed or (write.register == "MP1_SMN_C2PMSG_66" and write.value == 0x1F)
        return None if write.register == "MP1_SMN_C2PMSG_90" and armed else write.data

    made = broken(rule)
    with pytest.raises(SmuError):
        made.dev.boot()


def test_1_clocks_move_only_when_they_are_told_to() -> None:
    told, untold = broken(), broken(without("MP1_SMN_C2PMSG_66", value=0x19))
    told.dev.boot()
    try:
        untold.dev.boot()
    except SmuError:
        return
    clocks = [made.gpu.smu.power.sample()["CurrClock"][0] for made in (told, untold)]
    assert clocks == [2526, 500]


def test_1_a_reset_that_is_not_sent_leaves_the_card_as_it_was() -> None:
    """After a run that ended without cleaning up the driver resets the card, by the power controller or else by the security
    processor. When both messages get lost, the card is not reset and the driver must not go on."""
    made = broken()
    made.dev.boot()
    made.again()
    Saboteur(made.pci, lambda write: None if write.register == "MP1_SMN_C2PMSG_75" or (write.register, write.value) == ("MP0_SMN_C2PMSG_64", 0x70000) else write.data)
    with pytest.raises(TghwError):
        made.dev.boot()
    assert made.gpu.resets == 0


def test_1_a_reset_really_resets() -> None:
    made = broken()
    made.dev.boot()
    made.gpu.vram.write(0x200_0000, b"left behind")
    made.again().boot()
    assert made.gpu.resets == 1
    assert made.gpu.vram.read(0x200_0000, 11) != b"left behind"
    assert copies(made)


# --- 2: registers that nobody modelled ---


def test_2_the_register_table_of_another_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Navi33's multimedia hub has a layout of its own; Navi31's table hits other registers there."""
    monkeypatch.setitem(versions.EXCEPTIONS["MMHUB"], (3, 0, 2), (3, 0, 0))
    made = broken(profile="navi33")
    with pytest.raises(TghwError) as caught:
        made.dev.boot()
    assert isinstance(caught.value, NotModelled | PspError) or "hub" in str(caught.value)


def test_2_a_write_beside_the_register_is_named() -> None:
    made = broken()
    made.dev.boot()
    with pytest.raises(NotModelled, match="GRBM_STATUS_SE0"):
        made.dev.regs.write(made.dev.gc.GRBM_STATUS.index + 1, 0)
    with pytest.raises(NotModelled, match="GRBM_STATUS_SE0"):
        made.dev.regs.read(made.dev.gc.GRBM_STATUS.index + 1)


# --- 3: security processor ---


@pytest.mark.parametrize(
    "rule",
    [
        changed("MP0_SMN_C2PMSG_35", BootLoaderCommand.LOAD_SYS_DRV, BootLoaderCommand.LOAD_SOC_DRV),
        changed("MP0_SMN_C2PMSG_35", BootLoaderCommand.LOAD_KEY_DATABASE, 0x00770000),
        without("MP0_SMN_C2PMSG_35", value=BootLoaderCommand.LOAD_KEY_DATABASE),
        without("MP0_SMN_C2PMSG_35", value=BootLoaderCommand.LOAD_RAS_DRV),
        changed("MP0_SMN_C2PMSG_36", 0x80001, 0x1),
        changed("MP0_SMN_C2PMSG_36", 0x80001, 0x90001),
        without("MP0_SMN_C2PMSG_36"),
        without("MP0_SMN_C2PMSG_64", value=0x20000),
        without("MP0_SMN_C2PMSG_69"),
        without("MP0_SMN_C2PMSG_70"),
        without("MP0_SMN_C2PMSG_71"),
        without("MP0_SMN_C2PMSG_67"),
    ],
    ids=[
        "wrong order",
        "unknown command",
        "first component missing",
        "a driver missing",
        "VRAM offset for MC address",
        "address outside VRAM",
        "no address",
        "no ring",
        "ring address low half",
        "ring address high half",
        "ring size",
        "write pointer",
    ],
)
def test_3_a_wrong_step_of_the_psp_boot_is_refused(rule: Rule) -> None:
    with pytest.raises(PspError):
        broken(rule).dev.boot()


@pytest.mark.parametrize("at", [0x10, 0x14, 0x58, 0x6C, PSP_IMAGE_HEADER_SIZE + 7], ids=["magic", "signed size", "image id", "total size", "content"])
def test_3_a_changed_bit_of_an_image_on_its_way_is_refused(at: int) -> None:
    first = sos_parts("navi31")[2][:16]

    def rule(write: Write) -> bytes | None:
        if write.bar == MEMORY and write.data[:16] == first:
            return write.data[:at] + bytes([write.data[at] ^ 4]) + write.data[at + 1 :]
        return write.data

    with pytest.raises(PspError):
        broken(rule).dev.boot()


def test_3_firmware_left_out_means_no_graphics_engine() -> None:
    """One LOAD_IP_FW becomes another type: refused at once, or missed by autoload."""

    def rule(write: Write) -> bytes | None:
        if write.bar == MEMORY and len(write.data) >= 44 and write.data[8:12] == b"\x06\0\0\0" and write.data[40:44] == b"\x1a\0\0\0":
            return write.data[:40] + b"\x30\0\0\0" + write.data[44:]
        return write.data

    with pytest.raises((PspError, RlcError)):
        broken(rule).dev.boot()


# --- 5: host data path ---


def test_5_without_any_flush_the_psp_sees_noise() -> None:
    with pytest.raises(PspError):
        broken(without("HDP flush")).dev.boot()


def test_5_a_flush_to_the_wrong_register_is_none() -> None:
    made = broken(lambda write: write.data if write.register != "HDP flush" else None)
    with pytest.raises(PspError):
        made.dev.boot()


def test_5_a_lenient_machine_counts_what_a_strict_one_fails() -> None:
    made = broken(without("HDP flush"), strict=False)
    made.dev.boot()
    assert made.gpu.hdp.missed_flushes > 10


def test_5_page_tables_are_written_late_without_a_flush() -> None:
    """The boot flushes as it should; what is written for the first buffers afterwards does not reach the page walker."""
    made = bench(strict=True)
    saboteur = Saboteur(made.pci)
    made.dev.boot()
    saboteur.rule = without("HDP flush")
    with pytest.raises(TghwError):
        assert copies(made)
        raise AssertionError("the copies worked without a flush")


# --- 9: bus mastering, memory space, config space ---


def test_9_without_bus_mastering_nothing_reaches_the_host() -> None:
    made = broken()
    made.dev.boot()
    made.pci.set_bus_master(False)
    with pytest.raises(TghwError):
        assert copies(made)
        raise AssertionError("copies through host memory worked without bus mastering")


def test_9_memory_space_off_is_a_lost_device() -> None:
    made = broken()
    made.dev.boot()
    made.pci.set_memory_space(False)
    with pytest.raises(TghwError):
        copies(made)


def test_9_a_device_that_fell_off_the_bus_is_noticed_in_the_middle_of_the_boot() -> None:
    made = broken()

    def rule(write: Write) -> bytes | None:
        if write.register == "MP0_SMN_C2PMSG_64":
            made.gpu.function.link_up = False
        return write.data

    made.again()
    Saboteur(made.pci, rule)
    with pytest.raises(BusLost):
        made.dev.boot()


# --- 13: time ---


def test_13_a_boot_takes_time() -> None:
    made = broken()
    start = made.machine.clock.now()
    made.dev.boot()
    assert 0.3 < made.machine.clock.now() - start < 0.6


def test_13_who_does_not_wait_reads_that_it_is_not_done() -> None:
    made = broken()
    made.dev.boot(until="psp")
    response, message = made.dev.mp1.MP1_SMN_C2PMSG_90, made.dev.mp1.MP1_SMN_C2PMSG_66
    response.write(0)
    message.write(0x2)
    assert response.read() == 0
    made.machine.clock.sleep(1e-3)
    assert response.read() == 1


def test_13_the_seed_changes_when_things_happen_but_not_what() -> None:
    def run(seed: int) -> tuple[float, bool]:
        made = bench(seed=seed, strict=True)
        made.dev.boot()
        return made.machine.clock.now(), copies(made)

    times = {run(seed) for seed in range(4)}
    assert len({moment for moment, _ in times}) == 4
    assert {right for _, right in times} == {True}
    assert run(2) in times


# --- 15: memory is the GPU's own, and full of noise ---


def test_15_the_root_page_table_must_be_cleared() -> None:
    """Boot memory holds noise: whoever does not clear the root table finds entries that nobody made."""

    def rule(write: Write) -> bytes | None:
        return None if write.bar == MEMORY and write.offset == 0 and len(write.data) == 4096 else write.data

    made = broken(rule)
    made.dev.boot()
    root = made.gpu.vram.read(0, 4096)
    entries = [int.from_bytes(root[at : at + 8], "little") for at in range(0, 4096, 8)]
    assert sum(entry & 1 for entry in entries) > 100
    hub = made.gpu.hub("gfx")
    with pytest.raises(VmFault, match="gfx hub"):
        for page in range(64):
            hub.read(0, 0x2000_0000_0000 + (page << 39), 8, fetch=True)
    assert made.gpu.machine.ram.errors == []


def test_15_a_new_buffer_holds_noise() -> None:
    made = broken()
    made.dev.boot()
    gpu = AmdGpu(made.dev)
    assert len(set(gpu.copy_out(gpu.alloc(4096), 4096))) > 64
