"""What the GPU sees of a driver does not depend on how it is reached: the same accesses in the same order, over PCI and over a USB bridge.

Recorded at the device, behind the bridge. Where the ways differ on purpose (firmware goes through the bridge's memory, clock levels are
asked for by their ends, the interrupt write pointer is also written to memory) the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridges.asm24.device import Asm24PciDevice
from bridges.asm24.usb import attached
from drivers.amd.device import AmdDevice
from firmware.store import FirmwareStore
from hw.pci.device import PciDevice
from mocks.amd.fw import fabricate
from mocks.machine import Machine


@dataclass
class Seen:
    """Register writes of a GPU, by stage; each (byte offset, value)."""

    stages: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    now: list[tuple[int, int]] = field(default_factory=list)

    def stage_done(self, name: str) -> None:
        self.stages[name] = self.now
        self.now = []


def watch(machine: Machine) -> Seen:
    """Note every write that reaches the register BAR, dword by dword."""
    seen = Seen()
    bar: Any = machine.gpus[0].function.slots[5].model
    plain: Callable[[int, int, int], None] = bar.write

    def write(offset: int, value: int, width: int) -> None:
        seen.now += [(offset + 4 * part, value >> 32 * part & 0xFFFFFFFF) for part in range(max(width // 4, 1))]
        plain(offset, value, width)

    bar.write = write
    return seen


def over_pci() -> tuple[Machine, PciDevice]:
    machine = Machine.from_profile("navi31")
    return machine, machine.open(machine.gpus[0].function.address)


def over_usb(profile: str = "navi31-asm24") -> tuple[Machine, PciDevice]:
    machine = Machine.from_profile(profile)
    backend = machine.usb_backend()
    (bridge,) = attached(backend)
    return machine, Asm24PciDevice.open(bridge, backend, clock=machine.clock)


def booted(opened: tuple[Machine, PciDevice]) -> Seen:
    machine, pci = opened
    seen = watch(machine)
    device = AmdDevice(pci, FirmwareStore.from_files(fabricate("navi31", 0)))
    device.boot(on_stage=lambda result: seen.stage_done(result.name))
    device.finish()
    device.close()
    return seen


SAME = ("pci", "discovery", "firmware", "bus-master", "soc", "gmc", "ih", "gfx", "sdma", "gating", "ready")


@pytest.fixture(scope="module")
def local() -> Seen:
    return booted(over_pci())


@pytest.mark.parametrize("profile", ["navi31-asm24", pytest.param("navi31-asm24-stock", marks=pytest.mark.slow)])
def test_boot_writes_the_same_registers_in_the_same_order(local: Seen, profile: str) -> None:
    bridged = booted(over_usb(profile))
    for name in SAME:
        assert bridged.stages[name] == local.stages[name], name
    flush = 0x7F000
    assert local.stages["memory"] == [] and {offset for offset, _ in bridged.stages["memory"]} == {flush}, "the bridge's memory is mapped"


def test_smu_is_told_the_same_clocks_and_firmware_is_loaded_in_the_same_order(local: Seen) -> None:
    bridged = booted(over_usb())
    argument, message = 0x16292 << 2, 0x16282 << 2
    soft_limits = (0x19, 0x1A)

    def limits(writes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        told, last = [], 0
        for offset, value in writes:
            if offset == argument:
                last = value
            elif offset == message and value in soft_limits:
                told.append((value, last))
        return told

    assert limits(bridged.stages["clocks"]) == limits(local.stages["clocks"])
    ring_pointer = 0x16083 << 2
    assert [entry for entry in bridged.stages["psp"] if entry[0] == ring_pointer] == [entry for entry in local.stages["psp"] if entry[0] == ring_pointer]


def test_batch_keeps_the_order_of_everything_between_its_ends() -> None:
    machine, pci = over_usb()
    device = AmdDevice(pci, FirmwareStore.from_files(fabricate("navi31", 0)))
    device.boot()
    seen = watch(machine)
    scratch = [device.mmhub[f"MMVM_L2_CONTEXT1_IDENTITY_APERTURE_{end}_ADDR_{half}32"] for end in ("LOW", "HIGH") for half in ("LO", "HI")]
    with device.space.batch():
        for number, register in enumerate(scratch):
            register.write(number)
        scratch[0].write(7)
        assert seen.now == [], "nothing was sent yet"
        assert scratch[3].read() == 3, "a read sends what waits first"
        assert [value for _, value in seen.now] == [0, 1, 2, 3, 7]
        scratch[1].write(8)
        device.doorbells.write64(0x7F8, 0)
        scratch[2].write(9)
    assert [value for _, value in seen.now] == [0, 1, 2, 3, 7, 8, 9]
    device.finish()
    device.close()
