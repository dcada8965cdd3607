"""The boot of one GPU as a list of stages.

A card that an earlier run of this driver left cleanly is taken over warm: its PSP, SMU, hubs and interrupt rings are as they were, only
the graphics block starts anew. One in any other state in which firmware runs is reset first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drivers.amd import bootmem
from drivers.amd.silence import REGISTER_BAR
from drivers.amd.smu import HIGHEST
from drivers.amd.space import AmdSpace
from drivers.amd.stages import Stage
from firmware.amd_files import load_set
from hw.alloc import Tlsf
from hw.errors import BusLost, MemoryDisabled, NotSupported, PermissionMissing, PspError, ResizeRefused, WaitTimeout
from hw.mmio import ALL_ONES_32
from hw.pci.device import COMMAND, COMMAND_BUS_MASTER, COMMAND_MEMORY
from hw.poll import poll

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

log = logging.getLogger(__name__)

VRAM_BAR = 0

IFWI_READY = 0x16061
"""dword index of C2PMSG_33; bit 31: the card's own firmware has finished"""
IFWI_READY_BIT = 1 << 31
IFWI_WITHIN = 2.0

BOOT_TAG = 0x54474831
"""SCRATCH_REG7 of a card that this driver initialised; to be changed with the boot memory's layout or the sequence"""
CLEAN, RUNNING = 0, 1
"""SCRATCH_REG6"""


class Bringup:
    """What each stage checks, does and takes back."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.cold = False
        """a reset and a full boot were asked for"""
        self.warm = False
        """an earlier run's state is taken over"""
        self._command_before: int | None = None

    def stages(self) -> list[Stage]:
        """All stages in order. Blocks of the GPU exist only after discovery, hence the late look-ups."""
        dev = self.dev
        return [
            Stage("pci", "enable the card's memory BARs, try to make BAR0 as large as the memory", self.enable_pci, undo=self.restore_pci),
            Stage("discovery", "read the IP discovery table", self.discover),
            Stage("firmware", "find and check the firmware files", self.load_firmware),
            Stage("reset", "mode-1 reset of a card in an unknown state", dev.reset_control.run, check=self.reset_is_due),
            Stage("memory", "lay out boot memory", self.prepare_memory),
            Stage("bus-master", "allow DMA and interrupts", self.start_bus_master, undo=self.restore_bus_master),
            Stage("soc", "doorbell aperture", lambda: dev.soc.init(), check=self.is_full, undo=lambda: dev.soc.undo()),
            Stage("gmc", "multimedia hub", lambda: dev.gmc.hubs["mm"].init(), check=self.is_full, undo=lambda: dev.gmc.undo()),
            Stage("ih", "interrupt rings", lambda: dev.ih.init(), check=self.is_full, undo=lambda: dev.ih.undo()),
            Stage("psp", "secure OS and firmware of every engine", self.start_psp, check=self.is_full, undo=self.undo_psp),
            Stage("smu", "power controller", lambda: dev.smu.init(), check=self.is_full),
            Stage("gfx", "graphics hub and compute front end", self.start_gfx, undo=self.undo_gfx),
            Stage("sdma", "copy engine", lambda: dev.sdma.init()),
            Stage("clocks", "highest clocks", lambda: dev.smu.pin_clocks(HIGHEST)),
            Stage("gating", "clock gating of idle units", self.gate),
            Stage("ready", "mark the card as running", self.mark_running),
        ]

    def is_full(self) -> bool:
        """Stages of a full boot, left out of a warm start."""
        return not self.warm

    # --- pci ---

    def enable_pci(self) -> None:
        """Memory decoding on; BAR0 as large as it goes, which may fail: the driver works with a small window too."""
        pci = self.dev.pci
        command = pci.config.read16(COMMAND)
        if command == 0xFFFF:
            raise BusLost(f"{pci.address} does not answer", read="command register 0xffff")
        self._command_before = command
        if not command & COMMAND_MEMORY:
            pci.set_memory_space(True)
            command = pci.config.read16(COMMAND)
            if not command & COMMAND_MEMORY:
                raise MemoryDisabled(f"the memory BARs of {pci.address} cannot be switched on", read=f"command register {command:#06x}")
        bar = pci.bar(VRAM_BAR)
        largest = max(bar.resizable_to, default=0)
        if largest > bar.size:
            try:
                pci.resize_bar(VRAM_BAR, largest)
            except (ResizeRefused, NotSupported, PermissionMissing) as error:
                log.warning("%s; going on with a window of %d MiB", error, bar.size >> 20)

    def restore_pci(self) -> None:
        """Memory decoding as it was found."""
        if self._command_before is not None and not self._command_before & COMMAND_MEMORY:
            self.dev.pci.set_memory_space(False)

    def start_bus_master(self) -> None:
        """From here on DMA and interrupts may leave the card. A warm one is marked as running: dying on the way must not look clean."""
        self.dev.pci.set_bus_master(True)
        if self.warm:
            self.dev.gc.SCRATCH_REG6.write(RUNNING)
            self.dev.gmc.hubs["mm"].ready = True
            self.dev.ih.resume()

    def restore_bus_master(self) -> None:
        """Bus mastering as it was found."""
        if self._command_before is not None and not self._command_before & COMMAND_BUS_MASTER:
            self.dev.pci.set_bus_master(False)

    # --- discovery, firmware ---

    def discover(self) -> None:
        """Discovery of a card that may have been powered a moment ago: its own firmware must have finished."""
        dev = self.dev
        space = AmdSpace(dev.pci.map_bar(REGISTER_BAR), dev.clock)

        def read() -> int:
            value = space.read(IFWI_READY)
            if value == ALL_ONES_32:
                raise dev.lost("waiting for the card's own firmware", "C2PMSG_33")
            return value

        try:
            poll(read, lambda value: bool(value & IFWI_READY_BIT), what="start of the card's own firmware (C2PMSG_33 bit 31)", within=IFWI_WITHIN, clock=dev.clock)
        except WaitTimeout as error:
            raise PspError(
                "the card's own firmware (IFWI) is not ready",
                read=error.read,
                means="the security processor did not finish its start: power is unstable, or the flash image is damaged",
                remedy="power-cycle the card; if it stays, `tghw flash verify` compares its image with a good one",
            ) from error
        dev.discover()

    def load_firmware(self) -> None:
        """All files of this chip, checked, before anything on the card is touched."""
        dev = self.dev
        dev.firmware = load_set(dev.store, {block: dev.ip.version(block) for block in ("GC", "MP0", "MP1", "SDMA0")})

    def mec_start(self) -> int:
        """Byte address where the compute front end's firmware begins."""
        if self.dev.firmware is None:
            self.load_firmware()
        assert self.dev.firmware is not None
        return self.dev.firmware.mec_start

    # --- reset, memory ---

    def reset_is_due(self) -> bool:
        """Decide between warm start and full boot; of the latter, one with a living secure OS needs a reset first."""
        gc = self.dev.gc
        tag = gc.SCRATCH_REG7.read()
        if tag == ALL_ONES_32:
            raise self.dev.lost("looking for the traces of an earlier run", "SCRATCH_REG7")
        self.warm = tag == BOOT_TAG and not self.cold and gc.SCRATCH_REG6.read() == CLEAN and gc.GCVM_L2_PROTECTION_FAULT_STATUS.read() == 0
        return not self.warm and self.dev.psp.sos_alive()

    def prepare_memory(self) -> None:
        """Boot memory at its fixed places; pages that must not hold what was there before are cleared."""
        from drivers.amd.bridge import map_bridge_memory
        from drivers.amd.memory import MemoryManager  # brings numpy, which looking at a card does not need

        dev = self.dev
        dev.forget_memory()
        dev.boot_range = Tlsf(bootmem.BOOT_SIZE, granule=bootmem.PAGE, name="boot memory")
        dev.boot_memory = bootmem.lay_out(dev.boot_range)
        pages = [dev.boot_memory.root_table]
        buffer = dev.pci.transfer_buffer
        if not self.warm:
            pages += [dev.boot_memory.scratch_page, dev.boot_memory.dummy_page]
            if buffer is None:  # else the fence is in the bridge's memory
                pages.append(dev.boot_memory.psp_fence)
        for page in pages:
            dev.vram.fill(page, bootmem.PAGE)
        dev.memory = MemoryManager(dev)
        if buffer is not None:
            dev.bridge_memory = map_bridge_memory(dev.memory, buffer)

    # --- firmware engines ---

    def start_psp(self) -> None:
        """Boot loader, secure OS, ring, and the firmware of every engine."""
        dev = self.dev
        assert dev.firmware is not None
        if not dev.psp.sos_alive():
            dev.psp.start_sos(dev.firmware.sos)
        dev.psp.create_ring()
        dev.psp.boot_firmware(dev.firmware)

    def undo_psp(self) -> None:
        """What the PSP was given can only be taken back by a reset of the chip."""
        if self.dev.psp.touched or self.dev.psp.sos_alive():
            self.dev.reset_control.run()

    def start_gfx(self) -> None:
        """The graphics block, once its firmware runs."""
        gfx = self.dev.gfx
        gfx.wait_autoload()
        if self.warm:
            gfx.resume(self.mec_start())
        else:
            gfx.init(self.mec_start())

    def undo_gfx(self) -> None:
        """Full boot: the reset of the PSP stage takes everything. Warm start: back to the clean state in which the card was found."""
        if self.warm and not self.dev.error_state:
            self.dev.gfx.dequeue()
            self.dev.gc.SCRATCH_REG6.write(CLEAN)

    def gate(self) -> None:
        """Idle units may stop their clocks."""
        self.dev.soc.gate_power()
        self.dev.gfx.gate_clocks()

    def mark_running(self) -> None:
        """The traces by which a later run knows this one."""
        self.dev.gc.SCRATCH_REG7.write(BOOT_TAG)
        self.dev.gc.SCRATCH_REG6.write(RUNNING)
