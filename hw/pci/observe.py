"""Looking at a PCI function of this machine beside the process that owns it, as a monitor does.

Takes no lock, wakes nothing, enables nothing, and leaves configuration space alone. Registers can be written, since a question to a
device's firmware is a register write: hold guard() around what belongs together.
"""

from __future__ import annotations

from pathlib import Path

from hw.errors import BusLost, MemoryDisabled, NotSupported, PowerStateError, Refused
from hw.host import HOST, HostFiles
from hw.pci.device import COMMAND, COMMAND_MEMORY, DmaMemory
from hw.pci.functions import AWAKE, describe, function_directory, read_resources
from hw.pci.sysfs import SysfsConfig, SysfsPciDevice

LOOKS_ONLY = "this process only looks at the device; another one may be using it"


class ObservedPciDevice(SysfsPciDevice):
    """One function, looked at until close(). Raises NothingFound, PermissionMissing, BusLost, PowerStateError (asleep), MemoryDisabled (not enabled)."""

    transport = "sysfs (looking)"

    def __init__(self, address: str, *, host: HostFiles = HOST, lock_directory: Path | None = None) -> None:
        self.address = address
        self._host = host
        self._directory = function_directory(address, host)
        self._prepare(lock_directory)
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def _look(self) -> None:
        state = describe(self.address, self._host).power_state
        if state not in AWAKE:
            raise PowerStateError(
                f"{self.address} is asleep",
                read=f"power state {state}",
                means="its registers answer only in D0, and looking would wake it",
                remedy="wake it by using it, or write `on` to its power/control file",
            )
        config = SysfsConfig(self._directory, self._host, writable=False)
        self._later("close configuration space", config.close)
        self.config = config
        ids = config.read32(0x00)
        if ids & 0xFFFF == 0xFFFF:
            raise BusLost(f"looking at {self.address}", read=f"vendor/device {ids:#010x}")
        command = config.read16(COMMAND)
        if not command & COMMAND_MEMORY:
            raise MemoryDisabled(
                f"{self.address} is not enabled",
                read=f"command register {command:#06x}",
                means="nobody uses the device now, so its registers are switched off",
                remedy="nothing needs to be done; a program that uses it switches them on",
            )
        self._bars = read_resources(self._directory, self._host, with_sizes_offered=False)

    def resize_bar(self, index: int, size: int) -> None:
        raise Refused(f"resizing BAR{index} of {self.address}", means=LOOKS_ONLY)

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        raise NotSupported(f"DMA memory for {self.address}", means=LOOKS_ONLY)

    def set_bus_master(self, on: bool) -> None:
        raise Refused(f"switching bus mastering of {self.address}", means=LOOKS_ONLY)

    def set_memory_space(self, on: bool) -> None:
        raise Refused(f"switching memory decoding of {self.address}", means=LOOKS_ONLY)

    def reset(self) -> None:
        raise Refused(f"resetting {self.address}", means=LOOKS_ONLY)
