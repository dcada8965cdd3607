"""What a boot must withstand: each fault gives one typed error that tells cause and remedy, and leaves the card as it was or recoverable."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from drivers.amd.device import STATES, AmdDevice
from drivers.amd.stages import StageResult
from firmware.store import FirmwareStore
from hw.errors import (
    BarUnassigned,
    BootError,
    BusLost,
    DeviceBusy,
    DiscoveryInvalid,
    FirmwareInvalid,
    FirmwareMissing,
    GpuFault,
    HubError,
    MemoryDisabled,
    NotReady,
    NotSupported,
    PspError,
    QueueStuck,
    RlcError,
    SmuError,
    TghwError,
    UnknownHardware,
)
from hw.pci.device import COMMAND, COMMAND_BUS_MASTER, COMMAND_MEMORY
from mocks.amd.fw import fabricate
from mocks.machine import Machine
from tests.drivers.amd.support import GPU, Bench, Counting, bench
from tests.drivers.amd.test_boot import RING, map_window

FILES = fabricate("navi31", 0)
POWER_CONTROL = 0x54
TCP = 8
"""client id of the vector memory unit"""


def fails(each: Bench, kind: type[TghwError], *texts: str) -> TghwError:
    """The boot fails with exactly this kind of error, whose explanation holds every text, and gives meaning and remedy."""
    with pytest.raises(TghwError) as caught:
        each.dev.boot()
    error = caught.value
    assert type(error) is kind, error.explain()
    for text in texts:
        assert re.search(text, error.explain()), f"{text!r} not in: {error.explain()}"
    assert error.means and error.remedy
    return error


def recovers(each: Bench, *faults: str) -> None:
    """Once the faults are over, the next start works."""
    for fault in faults:
        each.machine.faults.remove(fault)
    dev = each.again()
    dev.boot()
    assert dev.state() == "running"


# --- the bus ----------------------------------------------------------------------------------------------------------


def test_bars_without_addresses() -> None:
    each = bench("bars-unassigned", firmware=FILES)
    before = each.machine.export_config(GPU)
    assert each.dev.state() == "bars-unassigned"
    fails(each, BarUnassigned, "BAR0 of 0000:03:00.0 has no address", "bridge window above it is too small", "Above 4G decoding")
    assert each.machine.export_config(GPU) == before


def test_memory_space_that_stays_disabled() -> None:
    each = bench("navi31-memory-off", firmware=FILES)
    assert each.dev.state() == "gated"
    before = each.machine.export_config(GPU)
    fails(each, MemoryDisabled, "command register 0x0", "Memory Space bit")
    assert each.machine.export_config(GPU) == before


def test_memory_space_that_was_off_is_switched_on_and_the_boot_works() -> None:
    each = bench()
    each.pci.set_memory_space(False)
    assert each.dev.state() == "gated"
    assert not each.pci.config.read16(COMMAND) & COMMAND_MEMORY, "looking changes nothing"
    each.dev.boot()
    assert each.dev.state() == "running"


def test_memory_space_switched_off_in_the_middle() -> None:
    each = bench()

    def switch_off(result: StageResult) -> None:
        if result.name == "gmc" and result.outcome == "done":
            each.pci.config.update16(COMMAND, clear=COMMAND_MEMORY)

    with pytest.raises(MemoryDisabled, match="does not decode its memory BARs") as caught:
        each.dev.boot(on_stage=switch_off)
    assert "command register" in caught.value.read
    assert "enable" in caught.value.remedy


def test_dead_bus_before_the_boot() -> None:
    machine = Machine.from_profile("dead-bus")
    with pytest.raises(BusLost) as caught:
        machine.open(GPU)
    assert "all ones" in caught.value.means
    assert "power" in caught.value.remedy


def test_bus_lost_after_opening() -> None:
    each = bench()
    each.gpu.function.link_up = False
    assert each.dev.state() == "dead-bus"
    fails(each, BusLost, "0000:03:00.0", "ffff")


@pytest.mark.parametrize("place", ["psp-bootloader", "sos", "ring", "autoload", "smu"])
def test_bus_lost_at_a_place_of_the_boot(place: str) -> None:
    each = bench(faults=f"all-ones-stage={place}")
    started = each.machine.clock.now()
    fails(each, BusLost, "0000:03:00.0 stopped answering while", "config space all ones too", "link is down")
    assert each.machine.clock.now() - started < 1.5, "all ones are not waited for"
    assert each.dev.state() == "dead-bus"


@pytest.mark.parametrize("access", [1, 2, 3, 8, 9, 10, 14, 20, 47, 90, 110, 117, 120, 125, 131, 180, 240, 300, 333, 360, 420, 500, 540, 570, 600, 640, 660, 670])
def test_bus_lost_at_any_access(access: int) -> None:
    each = bench(faults=f"all-ones-at={access}")
    started = each.machine.clock.now()
    error = fails(each, BusLost)
    assert "ffff" in error.read
    assert each.machine.clock.now() - started < 1.5


def test_registers_silent_while_config_space_answers() -> None:
    each = bench()

    def hang(result: StageResult) -> None:
        if result.name == "ih":
            each.gpu.function.in_reset = True

    with pytest.raises(BusLost, match="stopped answering") as caught:
        each.dev.boot(on_stage=hang)
    assert "config space still answers" in caught.value.read
    assert "in reset, hung" in caught.value.means
    assert "--cold" in caught.value.remedy


AFTER_BOOT: dict[str, Callable[[AmdDevice], object]] = {
    "invalidate": lambda dev: dev.invalidate_tlb(),
    "compute ring": lambda dev: dev.setup_compute_ring(0x200000000000, 0x10000, 0x200000020000, 0x200000021000, 0x200000022000, 0x1000),
    "interrupts": lambda dev: dev.drain_interrupts(),
    "metrics": lambda dev: dev.smu.metrics(),
    "finish": lambda dev: dev.finish(),
    "recover": lambda dev: dev.recover(),
    "fault": lambda dev: dev.gmc.hubs["gfx"].read_fault(),
    "reset": lambda dev: dev.reset(),
}


@pytest.mark.parametrize("operation", AFTER_BOOT)
def test_bus_lost_after_the_boot(operation: str) -> None:
    each = bench()
    each.dev.boot()
    each.gpu.function.link_up = False
    started = each.machine.clock.now()
    with pytest.raises(BusLost):
        AFTER_BOOT[operation](each.dev)
    assert each.machine.clock.now() - started < 1.5
    assert each.dev.state() == "dead-bus"
    each.dev.close()


def test_sleeping_card_is_told_from_a_dead_one() -> None:
    each = bench()
    each.pci.config.write16(POWER_CONTROL, 3)
    assert each.dev.state() == "gated"
    fails(each, BusLost, "asleep", "power state D3", "power/control")
    each.pci.config.write16(POWER_CONTROL, 0)
    recovers(each)


def test_every_state_has_a_name() -> None:
    assert set(STATES) == {"cold", "partial", "sos-alive", "running", "gated", "dead-bus", "bars-unassigned"}


def test_second_process_is_told_who_holds_the_device(tmp_path: Path) -> None:
    first = Machine.from_profile("navi31", state_dir=tmp_path)
    held = first.open(GPU)
    second = Machine.from_profile("navi31", state_dir=tmp_path)
    with pytest.raises(DeviceBusy) as caught:
        second.open(GPU)
    assert re.search(r"process \d+", caught.value.explain())
    assert caught.value.remedy
    held.close()
    second.open(GPU).close()


# --- what the card says about itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "text"),
    [("discovery-magic", "signature is 0x[0-9a-f]+, 0x28211407 is due"), ("discovery-checksum", "checksum of the .* is"), ("discovery-size", "announces a size")],
)
def test_damaged_discovery_table(fault: str, text: str) -> None:
    each = bench(faults=fault)
    counting = Counting(each.pci)
    fails(each, DiscoveryInvalid, text, "bytes [0-9a-f ]+ at offset 0x", "damaged", "power-cycle")
    assert counting.writes == []
    assert each.dev.state() == "cold"
    assert not each.pci.config.read16(COMMAND) & COMMAND_BUS_MASTER


def test_memory_size_that_stays_zero() -> None:
    each = bench(faults="memsize-zero")
    counting = Counting(each.pci)
    fails(each, NotReady, "no video memory", "RCC_CONFIG_MEMSIZE = 0", "power-cycle")
    assert counting.writes == []


def test_virtual_function_is_refused() -> None:
    each = bench()
    each.gpu.regs[0xDE5] = 1
    counting = Counting(each.pci)
    fails(each, NotSupported, "SR-IOV virtual function", "physical function")
    assert counting.writes == []


UNKNOWN = [("GC", (12, 0, 1), NotSupported, "gfx12"), ("GC", (11, 0, 1), UnknownHardware, "11.0.1"), ("OSSSYS", (9, 9, 9), UnknownHardware, "OSSSYS 9.9.9")]


@pytest.mark.parametrize(("block", "version", "kind", "text"), UNKNOWN)
def test_unknown_versions_are_named(block: str, version: tuple[int, int, int], kind: type[TghwError], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from drivers.amd import discovery

    original = discovery.Discovery.version
    monkeypatch.setattr(discovery.Discovery, "version", lambda self, name: version if name == block else original(self, name))
    each = bench()
    counting = Counting(each.pci)
    fails(each, kind, text)
    assert counting.writes == []


# --- firmware ---------------------------------------------------------------------------------------------------------


def without(name: str) -> dict[str, bytes]:
    return {key: data for key, data in FILES.items() if key != name}


def with_changed(name: str, change: Callable[[bytearray], None]) -> dict[str, bytes]:
    data = bytearray(FILES[name])
    change(data)
    return FILES | {name: bytes(data)}


@pytest.mark.parametrize("name", ["psp_13_0_0_sos.bin", "smu_13_0_0.bin", "sdma_6_0_0.bin", "gc_11_0_0_mec.bin", "gc_11_0_0_imu.bin", "gc_11_0_0_rlc.bin"])
def test_missing_firmware_is_named_before_the_card_is_touched(name: str) -> None:
    each = bench(firmware=without(name))
    counting = Counting(each.pci)
    fails(each, FirmwareMissing, re.escape(name), "firmware-amd-graphics", "--firmware")
    assert counting.writes == []
    assert each.dev.state() == "cold"
    each.dev.store = FirmwareStore.from_files(FILES)
    recovers(each)


@pytest.mark.parametrize("name", ["psp_13_0_0_sos.bin", "gc_11_0_0_mec.bin", "gc_11_0_0_rlc.bin"])
@pytest.mark.parametrize("length", [0, 20, 100, 5000])
def test_truncated_firmware_is_refused_before_the_card_is_touched(name: str, length: int) -> None:
    each = bench(firmware=FILES | {name: FILES[name][:length]})
    counting = Counting(each.pci)
    fails(each, FirmwareInvalid, re.escape(name))
    assert counting.writes == []
    assert each.dev.state() == "cold"


def test_firmware_of_a_header_version_without_a_layout() -> None:
    def newer(data: bytearray) -> None:
        data[8:10] = (9).to_bytes(2, "little")

    each = bench(firmware=with_changed("gc_11_0_0_mec.bin", newer))
    counting = Counting(each.pci)
    fails(each, FirmwareInvalid, "gc_11_0_0_mec.bin: header_version 9.0", "known versions")
    assert counting.writes == []


def test_firmware_of_another_generation() -> None:
    def older(data: bytearray) -> None:
        data[12:14] = (10).to_bytes(2, "little")

    each = bench(firmware=with_changed("gc_11_0_0_mec.bin", older))
    fails(each, FirmwareInvalid, "gc_11_0_0_mec.bin", "another generation")


def test_corrupt_firmware_is_found_by_its_sum() -> None:
    def flip(data: bytearray) -> None:
        data[len(data) // 2] ^= 1

    each = bench(firmware=with_changed("gc_11_0_0_mec.bin", flip))
    counting = Counting(each.pci)
    fails(each, FirmwareInvalid, "gc_11_0_0_mec.bin: crc32", "damaged")
    assert counting.writes == []


def test_corrupt_firmware_without_a_usable_sum_is_refused_by_the_psp() -> None:
    """Published RLC files carry no usable sum, so the damage shows only when the PSP checks the signature."""

    def flip(data: bytearray) -> None:
        data[len(data) - 0x400] ^= 1

    each = bench(firmware=with_changed("gc_11_0_0_rlc.bin", flip))
    error = fails(each, PspError, "LOAD_IP_FW", "firmware RLC_", "failed", "status 0x", "another chip or release")
    assert isinstance(error, BootError) and error.stage == "psp"
    assert each.dev.state() == "cold", "undo reset the card"
    each.dev.store = FirmwareStore.from_files(FILES)
    recovers(each)


def test_sos_of_another_chip_is_refused_by_the_boot_loader() -> None:
    other = fabricate("navi33", 0)["psp_13_0_7_sos.bin"]
    image = bytearray(other)
    image[0x2000:0x2010] = bytes(16)
    each = bench(firmware=FILES | {"psp_13_0_0_sos.bin": bytes(image)})
    with pytest.raises((PspError, FirmwareInvalid)) as caught:
        each.dev.boot()
    assert caught.value.remedy
    assert each.dev.state() == "cold"
    each.dev.store = FirmwareStore.from_files(FILES)
    recovers(each)


# --- PSP, SMU, RLC ----------------------------------------------------------------------------------------------------


def test_psp_boot_loader_that_never_becomes_ready() -> None:
    each = bench(faults="psp-never-ready")
    error = fails(each, PspError, "boot loader is not ready before KDB", "C2PMSG_35 = 0x00000000", "after 10", "does not run")
    assert isinstance(error, BootError) and error.stage == "psp"
    assert not each.gpu.bus_master, "undo took DMA back"
    assert each.value(each.dev.nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.index) == 0
    assert each.value(each.dev.osssys.IH_RB_CNTL.index) & 1 == 0
    assert each.value(each.dev.mmhub.MMVM_CONTEXT0_CNTL.index) == 0
    each.machine.faults.remove("psp-never-ready")
    each.gpu.psp.post()
    recovers(each)


def test_boot_firmware_of_the_card_that_never_finishes() -> None:
    each = bench()
    each.gpu.regs[0x16061] = 0
    counting = Counting(each.pci)
    fails(each, PspError, r"own firmware \(IFWI\) is not ready", "after 2", "flash")
    assert counting.writes == []


def test_secure_os_without_a_sign_of_life() -> None:
    each = bench(faults="psp-sos-silent")
    fails(each, PspError, r"secure OS \(sOS\) failed to start", "C2PMSG_81", "C2PMSG_35 = 0x80000000", "another chip")
    recovers(each, "psp-sos-silent")


@pytest.mark.parametrize(("number", "name"), [(0x20, "LOAD_TOC"), (0x05, "SETUP_TMR"), (0x06, "LOAD_IP_FW"), (0x21, "AUTOLOAD_RLC")])
def test_psp_command_answered_with_an_error(number: int, name: str) -> None:
    each = bench(faults=f"psp-command-error={number:#x}:0x117")
    fails(each, PspError, rf"PSP command {name} \({number:#x}\).* failed", r"status 0x117 \(TA_REFUSED\)", "another chip or release")
    assert each.dev.state() == "cold"
    recovers(each, "psp-command-error")


@pytest.mark.parametrize("number", [0x20, 0x21])
def test_psp_command_without_an_answer(number: int) -> None:
    each = bench(faults=f"psp-command-silent={number:#x}")
    fails(each, PspError, "does not answer on its ring", "C2PMSG_64 = 0x", "cannot reach the ring")
    recovers(each, "psp-command-silent")


def test_smu_that_answers_nothing() -> None:
    each = bench(faults="smu-silent")
    error = fails(each, SmuError, r"does not answer SetDriverDramAddrHigh \(0xe\), argument 0x80", "after 10", "firmware is not running")
    assert isinstance(error, BootError) and error.stage == "smu"
    assert each.dev.state() == "cold", "the PSP reset the card in the SMU's place"
    recovers(each, "smu-silent")


def test_smu_that_is_busy_for_a_while() -> None:
    each = bench(faults="smu-busy=3")
    each.dev.boot()
    assert [response for _, _, response in each.gpu.smu.history].count(0xFC) == 3


def test_smu_that_stays_busy() -> None:
    each = bench(faults="smu-busy")
    fails(each, SmuError, r"SetDriverDramAddrHigh \(0xe\), argument 0x80: rejected, busy", "response 0xfc", "busy for the whole time limit")
    recovers(each, "smu-busy")


def test_smu_that_does_not_know_a_message() -> None:
    each = bench(faults="smu-unknown=0x6")
    fails(each, SmuError, r"EnableAllSmuFeatures \(0x6\), argument 0x0: unknown command", "response 0xfe", "firmware of another chip")
    assert each.dev.state() == "cold"
    recovers(each, "smu-unknown")


def test_rlc_autoload_that_never_completes() -> None:
    each = bench(faults="rlc-never")
    error = fails(each, RlcError, "RLC autoload timeout", "CP_STAT = 0x80000000", "bootload_complete=0x0", "IMU, RLC_G")
    assert isinstance(error, BootError) and error.stage == "gfx"
    assert each.dev.state() == "cold"
    recovers(each, "rlc-never")


def test_hub_that_does_not_hold_what_is_written() -> None:
    each = bench()
    index = each.gpu.index("MMHUB", "MMVM_CONTEXT0_CNTL")
    each.gpu._writes[index] = lambda value: None
    fails(each, HubError, "multimedia hub does not hold", "MMVM_CONTEXT0_CNTL = 0x00000000 after writing 0x01fffe07", "powered down")
    assert each.dev.state() == "cold"


def test_invalidation_semaphore_that_is_never_free() -> None:
    each = bench()
    each.dev.boot()
    index = each.dev.mmhub.MMVM_INVALIDATE_ENG17_SEM.index
    original = each.gpu._reads[index]
    each.gpu._reads[index] = lambda: 0
    with pytest.raises(HubError, match="acquiring the invalidation semaphore") as caught:
        each.dev.invalidate_tlb()
    assert "never given back" in caught.value.means
    each.gpu._reads[index] = original
    each.dev.invalidate_tlb()


def test_invalidation_semaphore_whose_answer_was_lost_is_given_back_and_taken_again() -> None:
    """A driver that died held it, or a bridge repeated the read that took it: no difference on the device."""
    each = bench()
    each.dev.boot()
    index = each.dev.mmhub.MMVM_INVALIDATE_ENG17_SEM.index
    original = each.gpu._reads[index]
    assert original() == 1  # somebody takes it and is gone
    assert original() == 0
    each.dev.invalidate_tlb()
    assert original() == 1  # free again after the invalidation


def test_page_fault_is_decoded() -> None:
    each = bench()
    each.dev.boot()
    each.gpu.hub("gfx").write(0, 0x200012345000, b"1234", client=TCP)
    each.machine.clock.sleep(1e-3)
    with pytest.raises(GpuFault, match="page fault of the graphics hub at VA 0x200012345000: write by TCP") as caught:
        each.dev.drain_interrupts()
    assert "entry not valid" in str(caught.value)
    assert "not mapped" in caught.value.means
    assert each.dev.gmc.hubs["gfx"].read_fault() is None, "cleared, so that the next one is latched"
    assert each.dev.drain_interrupts() == []


# --- interruptions ----------------------------------------------------------------------------------------------------


def interrupt_after(each: Bench, seconds: float) -> None:
    """Ctrl-C at a moment of simulated time."""

    def press() -> None:
        raise KeyboardInterrupt

    each.machine.scheduler.call_later(seconds, press, "Ctrl-C")


@pytest.mark.parametrize("milliseconds", [0.01, 0.04, 1, 20, 50, 75, 100, 130, 160, 250, 330, 352])
def test_interrupt_in_the_middle_of_a_cold_boot(milliseconds: float) -> None:
    each = bench()
    seen: list[StageResult] = []
    interrupt_after(each, milliseconds * 1e-3)
    with pytest.raises(KeyboardInterrupt):
        each.dev.boot(on_stage=seen.append)
    failed = [result.name for result in seen if result.outcome == "failed"]
    undone = [result.name for result in seen if result.outcome == "undone"]
    done = [result.name for result in seen if result.outcome == "done"]
    assert len(failed) == 1
    assert undone == [name for name in reversed([*done, *failed]) if name in ("pci", "bus-master", "soc", "gmc", "ih", "psp", "gfx")]
    assert each.dev.state() == "cold"
    assert not each.gpu.bus_master
    assert not each.gpu.psp.sos_alive and not each.gpu.psp.components
    recovers(each)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_stop_what_is_being_taken_back(number: int) -> None:
    each = bench()
    for seconds in (0.16, 0.17):  # in the PSP stage; while its undo resets the card
        each.machine.scheduler.call_later(seconds, lambda: os.kill(os.getpid(), number), "signal")
    before = signal.getsignal(number)
    seen: list[StageResult] = []
    with pytest.raises(KeyboardInterrupt):
        each.dev.boot(on_stage=seen.append)
    assert signal.getsignal(number) is before
    assert [result.name for result in seen if result.outcome == "undone"] == ["psp", "ih", "gmc", "soc", "bus-master", "pci"]
    assert each.dev.state() == "cold"
    assert not each.gpu.bus_master
    recovers(each)


@pytest.mark.parametrize("stage", ["pci", "discovery", "memory", "soc", "ih", "psp", "smu", "sdma", "gating"])
def test_interrupt_between_two_stages(stage: str) -> None:
    each = bench()

    def press(result: StageResult) -> None:
        if result.name == stage and result.outcome == "done":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        each.dev.boot(on_stage=press)
    assert each.dev.state() == "cold"
    recovers(each)


@pytest.mark.parametrize("milliseconds", [20, 70])
def test_interrupt_in_the_middle_of_a_warm_start(milliseconds: float) -> None:
    each = bench()
    each.dev.boot()
    each.dev.finish()
    dev = each.again()
    interrupt_after(each, milliseconds * 1e-3)
    with pytest.raises(KeyboardInterrupt):
        dev.boot()
    assert dev.state() == "partial", "as clean as it was found"
    recovers(each)
    assert each.gpu.resets == 0


def test_failure_in_the_middle_of_a_warm_start_leads_to_a_reset_next_time() -> None:
    each = bench()
    each.dev.boot()
    each.dev.finish()
    each.machine.faults.add("smu-silent")
    dev = each.again()
    with pytest.raises(SmuError):
        dev.boot()
    assert dev.state() == "running", "not clean"
    recovers(each, "smu-silent")
    assert each.gpu.resets == 1


def test_a_process_killed_while_it_fed_the_boot_loader() -> None:
    """Nothing undoes that; the next start meets a boot loader in the middle of its sequence, resets the card, and starts once more."""
    each = bench()
    interrupt_after(each, 20e-3)
    each.dev.stages = [stage.__class__(stage.name, stage.title, stage.run, stage.check) for stage in each.dev.stages]
    with pytest.raises(KeyboardInterrupt):
        each.dev.boot()
    assert each.gpu.psp.components
    dev = each.again()
    told: list[tuple[str, str]] = []
    dev.boot(on_stage=lambda result: told.append((result.name, result.outcome)))
    assert ("psp", "failed") in told and told[-1] == ("ready", "done")
    assert each.gpu.psp.components
    dev.finish()


def test_a_card_that_nothing_can_reset() -> None:
    each = bench()
    each.dev.boot()
    dev = each.again()
    each.machine.faults.add("smu-silent")
    each.gpu.regs[each.gpu.index("MP0", "MP0_SMN_C2PMSG_64")] = 0

    def no_reset() -> None:
        raise NotSupported("bus reset of this device")

    each.pci.reset = no_reset  # type: ignore[method-assign]
    fails(each, BootError, "cannot be reset", "the power controller: .*; the security processor: .*; the bus: ", "power-cycle")
    assert dev.state() == "running"


def test_psp_resets_the_card_when_the_smu_is_dead() -> None:
    each = bench()
    each.dev.boot()
    dev = each.again()
    each.machine.faults.add("smu-silent")
    each.dev.boot(until="memory")
    assert each.gpu.resets == 1
    assert dev.state() == "cold"


def test_resize_refused_is_no_failure() -> None:
    each = bench(faults="resize-refused")
    each.dev.boot()
    assert each.dev.state() == "running"
    assert each.dev.visible_vram == 256 << 20


# --- engines that do not follow ---------------------------------------------------------------------------------------


def test_ring_that_the_secure_os_refuses() -> None:
    each = bench()
    each.gpu.psp._create_ring = lambda: 0x0006
    fails(each, PspError, "secure OS did not create its ring", "C2PMSG_64 = 0x80020006|C2PMSG_64 = 0x80000006", "bits 15:0 is its refusal")
    del each.gpu.psp._create_ring
    recovers(each)


def test_invalidation_that_is_never_acknowledged() -> None:
    each = bench()
    each.dev.boot()
    each.gpu._reads[each.dev.gc.GCVM_INVALIDATE_ENG17_ACK.index] = lambda: 0
    with pytest.raises(HubError, match="VMID 0 in the graphics hub: acknowledge") as caught:
        each.dev.invalidate_tlb()
    assert "not set up, its clock is gated, or it hangs" in caught.value.means
    assert "--cold" in caught.value.remedy


def test_compute_queue_on_a_halted_engine() -> None:
    each = bench()
    each.dev.boot()
    map_window(each.dev)
    each.dev.gfx.halt_mec()
    with pytest.raises(QueueStuck, match="did not become active") as caught:
        each.dev.setup_compute_ring(**RING)
    assert "CP_MEC_RS64_CNTL = 0x4" in caught.value.read
    assert each.value(each.dev.gc.GRBM_GFX_CNTL.index) == 0


def test_compute_queue_that_does_not_stop() -> None:
    each = bench()
    each.dev.boot()
    map_window(each.dev)
    each.dev.setup_compute_ring(**RING)
    each.gpu._writes[each.dev.gc.CP_HQD_DEQUEUE_REQUEST.index] = lambda value: None
    with pytest.raises(QueueStuck, match="compute queue 0 of pipe 0, ME 1 does not stop") as caught:
        each.dev.finish()
    assert "CP_HQD_ACTIVE = 0x00000001" in caught.value.read
    assert each.value(each.dev.gc.GRBM_GFX_CNTL.index) == 0
    assert each.value(each.dev.gc.SCRATCH_REG6.index) == 1, "not a clean end"
    recovers(each)


def test_rlc_that_does_not_enter_safe_mode() -> None:
    each = bench()
    index = each.gpu.index("GC", "RLC_SAFE_MODE")
    original = each.gpu._writes[index]
    each.gpu._writes[index] = lambda value: each.gpu.regs.__setitem__(index, value)
    fails(each, RlcError, "RLC does not enter safe mode", "RLC_SAFE_MODE = 0x00000003")
    assert each.dev.state() == "cold"
    each.gpu._writes[index] = original
    recovers(each)


def test_card_that_does_not_come_back_from_its_reset() -> None:
    each = bench()
    each.dev.boot()
    each.again()
    post = each.gpu._post
    each.gpu._post = lambda: None
    fails(each, BootError, "did not come back from the reset by the power controller", "RCC_CONFIG_MEMSIZE = 0x0", "power-cycle")
    each.gpu._post = post
    post()
    recovers(each)


def test_recovery_from_a_stuck_queue_without_a_reset() -> None:
    each = bench()
    each.dev.boot()
    map_window(each.dev)
    each.dev.setup_compute_ring(**RING)
    each.dev.error_state = "hang"
    each.dev.recover()
    assert each.dev.error_state == ""
    assert each.dev.gfx.queue_state()["CP_HQD_ACTIVE"] == 0
    each.dev.setup_compute_ring(**RING)
    assert each.dev.gfx.queue_state()["CP_HQD_ACTIVE"] == 1
    assert each.gpu.resets == 0
