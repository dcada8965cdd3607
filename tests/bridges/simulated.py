"""A GPU behind a simulated USB bridge, at every level: bridge, PCI function, booted GPU."""

from __future__ import annotations

from typing import Any

from bridges.asm24.device import Asm24PciDevice
from bridges.asm24.usb import UsbBridge, attached
from drivers.amd.device import AmdDevice
from drivers.amd.gpu import AmdGpu
from firmware.store import FirmwareStore
from mocks.amd.fw import fabricate
from mocks.faults import FaultPlan
from mocks.machine import Machine

CUSTOM, STOCK = "navi31-asm24", "navi31-asm24-stock"
FIRMWARE = FirmwareStore.from_files(fabricate("navi31", 0))
RETURN_SECONDS = 10.0


def machine_with(profile: str = CUSTOM, faults: str = "", **options: Any) -> Machine:
    return Machine.from_profile(profile, faults=FaultPlan.parse(faults) if faults else None, **options)


def bridge_of(machine: Machine) -> tuple[UsbBridge, Any]:
    """The machine's bridge, waited for when it is just coming back; and the backend."""
    backend = machine.usb_backend()
    deadline = machine.clock.now() + RETURN_SECONDS
    while not (found := attached(backend)):
        assert machine.clock.now() < deadline, "the bridge stays away"
        machine.clock.sleep(0.1)
    return found[0], backend


def open_pci(machine: Machine) -> Asm24PciDevice:
    bridge, backend = bridge_of(machine)
    return Asm24PciDevice.open(bridge, backend, clock=machine.clock)


def open_gpu(machine: Machine) -> AmdGpu:
    device = AmdDevice(open_pci(machine), FIRMWARE)
    try:
        device.boot()
        return AmdGpu(device)
    except BaseException:
        device.close()
        raise
