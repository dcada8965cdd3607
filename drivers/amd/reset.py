"""Mode-1 reset: the whole chip back to its power-on state, by the power controller, by the PSP, or by the bus.

During the reset reads answer all ones. VRAM is lost but for the part that the card's own firmware keeps. Sources: public amdgpu code
(soc21_asic_reset, psp_v13_0_mode1_reset).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drivers.amd.layouts.psp import READY
from drivers.amd.space import MEMSIZE
from hw.errors import BootError, BusError, NotSupported, PermissionMissing, PspError, ResetFailed, SmuError, WaitTimeout
from hw.mmio import ALL_ONES_32
from hw.pci.device import COMMAND
from hw.poll import poll

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.5
"""no access to the registers during this time"""
READY_WITHIN = 5.0
BARS = range(0x10, 0x28, 4)


class Reset:
    """Resets one GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev

    def run(self) -> str:
        """Reset, wait until the chip has started again; returns what did it. Bus mastering is off afterwards. Raises BootError when nothing resets it."""
        pci, dev = self.dev.pci, self.dev
        bars = {offset: pci.config.read32(offset) for offset in BARS}
        pci.set_bus_master(False)
        command = pci.config.read16(COMMAND)
        by = self._trigger()
        log.info("mode-1 reset by %s", by)
        dev.clock.sleep(SETTLE_SECONDS)
        pci.reconnect()
        for offset, value in bars.items():
            if pci.config.read32(offset) != value:
                pci.config.write32(offset, value)
        if pci.config.read16(COMMAND) != command:
            pci.config.write16(COMMAND, command)
        self._await_ready(by)
        dev.soc.forget()
        dev.psp.touched = False
        dev.error_state = ""
        for hub in dev.gmc.hubs.values():
            hub.ready = False
        return by

    def _trigger(self) -> str:
        """Start the reset by the first means that works; returns its name."""
        failures = []
        for name, request in (("the power controller", self._by_smu), ("the security processor", self._by_psp), ("the bus", self.dev.pci.reset)):
            try:
                request()
            except (SmuError, PspError, NotSupported, ResetFailed, PermissionMissing) as error:
                log.warning("no reset by %s: %s", name, error)
                failures.append(f"{name}: {error}")
            else:
                return name
        raise BootError(
            f"{self.dev.pci.address} cannot be reset",
            read="; ".join(failures),
            means="neither its power controller nor its security processor listens, and the bus offers no reset",
            remedy="power-cycle the card",
        )

    def _by_smu(self) -> None:
        if not self.dev.smu.alive():
            raise SmuError("the power controller does not answer", read="GetSmuVersion without response")
        try:
            self.dev.smu.request_mode1_reset()
        except BusError:
            log.debug("the reset began before the answer was read")

    def _by_psp(self) -> None:
        if not self.dev.psp.sos_alive():
            raise PspError("the secure OS is not running", read="C2PMSG_81 = 0")
        try:
            self.dev.psp.request_mode1_reset()
        except BusError:
            log.debug("the reset began before the answer was read")

    def _await_ready(self, by: str) -> None:
        space = self.dev.space
        mp0 = self.dev.mp0
        sign, loader = mp0.MP0_SMN_C2PMSG_33.index, mp0.MP0_SMN_C2PMSG_35.index

        def read() -> tuple[int, int, int]:
            try:
                size = space.read(MEMSIZE)
            except BusError:  # over bridges that tell, a chip in reset does not answer with all ones but not at all
                size = ALL_ONES_32
            return (size, 0, 0) if size in (0, ALL_ONES_32) else (size, space.read(sign), space.read(loader))

        def is_ready(seen: tuple[int, int, int]) -> bool:
            size, mailbox, boot_loader = seen
            return size not in (0, ALL_ONES_32) and all(value != ALL_ONES_32 and value & READY for value in (mailbox, boot_loader))

        def describe(seen: tuple[int, int, int]) -> str:
            return f"RCC_CONFIG_MEMSIZE = {seen[0]:#x}, C2PMSG_33 = {seen[1]:#x}, C2PMSG_35 = {seen[2]:#x}"

        try:
            poll(read, is_ready, what="start of the chip after its reset", within=READY_WITHIN, clock=self.dev.clock, describe=describe)
        except WaitTimeout as error:
            raise BootError(
                f"{self.dev.pci.address} did not come back from the reset by {by}",
                read=error.read,
                means="the chip hangs in its start, or it lost its link",
                remedy="power-cycle the card",
            ) from error
