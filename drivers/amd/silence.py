"""Why a device reads all ones: the link, memory decoding, the power state, or the device itself."""

from __future__ import annotations

from hw.errors import BarUnassigned, BusError, BusLost, MemoryDisabled
from hw.pci import caps
from hw.pci.device import COMMAND, COMMAND_MEMORY, ConfigSpace, PciDevice

POWER_CONTROL = 4
"""offset of the control register in the power management capability; its bits 1:0 are the D-state"""
POWER_STATE_MASK = 3

REGISTER_BAR = 5


def power_state(config: ConfigSpace) -> int | None:
    """D-state from the power management capability (0..3), None when the function has none. Raises ConfigInvalid for a damaged list."""
    offset = caps.find(config, caps.PM)
    return None if offset is None else config.read16(offset + POWER_CONTROL) & POWER_STATE_MASK


def explain(pci: PciDevice, what: str, place: str) -> BusError:
    """The error for all ones read at `place` while doing `what`: looks into config space (reads only) for the reason."""
    read = f"{place} = 0xffffffff"
    ids = pci.config.read32(0)
    if ids & 0xFFFF == 0xFFFF:
        return BusLost(f"{pci.address} stopped answering while {what}", read=f"{read}, config space all ones too", means="the PCIe link is down or the card lost power")
    command = pci.config.read16(COMMAND)
    if not command & COMMAND_MEMORY:
        return MemoryDisabled(f"{pci.address} does not decode its memory BARs, seen while {what}", read=f"{read}, command register {command:#06x}")
    state = power_state(pci.config)
    if state:
        return BusLost(
            f"{pci.address} is asleep, seen while {what}",
            read=f"{read}, power state D{state}",
            means="the function was put into a sleep state; its registers answer only in D0",
            remedy="write `on` to the device's sysfs power/control file, or power-cycle the card",
        )
    bar = pci.bars.get(REGISTER_BAR)
    if bar is None or bar.address == 0:
        return BarUnassigned(f"BAR{REGISTER_BAR} of {pci.address} has no address, seen while {what}", read=read)
    return BusLost(
        f"{pci.address} stopped answering while {what}",
        read=f"{read}, config space still answers",
        means="config space answers but the registers do not: the GPU is in reset, hung, or lost its power while the link stayed up",
        remedy="wait a second and try again; then reset it (`tghw boot amd --cold`), and power-cycle the card if that does not help",
    )
