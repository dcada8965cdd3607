"""One AMD GPU of the gfx11 generation, from power-on to running queues, over any PciDevice.

    with sysfs.SysfsPciDevice(address) as pci:
        gpu = AmdDevice(pci, FirmwareStore())
        gpu.boot()
        ...
        gpu.finish()

The bring-up is the list `stages`. A card that an earlier run left cleanly is taken over warm (only the graphics block starts anew); one
in an unknown state is reset first. Sources: public amdgpu code; each module names its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from drivers.amd import bootmem, discovery, silence
from drivers.amd.bootmem import BootMemory
from drivers.amd.bringup import BOOT_TAG, CLEAN, RUNNING, VRAM_BAR, Bringup
from drivers.amd.chips import VENDOR_AMD
from drivers.amd.gfx import Gfx
from drivers.amd.gmc import HUB_NAMES, Gmc
from drivers.amd.ih import Interrupt, InterruptRing
from drivers.amd.psp import HalfStarted, Psp
from drivers.amd.reset import Reset
from drivers.amd.sdma import Sdma
from drivers.amd.smu import LOWEST, Smu
from drivers.amd.soc import Soc
from drivers.amd.space import MEMSIZE, AmdSpace, Vram
from drivers.amd.stages import Stage, StageResult, run_stages
from drivers.amd.versions import table_for, target_of
from firmware.amd_files import FirmwareSet
from firmware.store import FirmwareStore
from hw.alloc import Tlsf
from hw.errors import (
    BarUnassigned,
    BusError,
    DiscoveryInvalid,
    GpuFault,
    MemoryDisabled,
    NotReady,
    NotSupported,
    UnknownHardware,
    UsageError,
    WrongPhase,
)
from hw.mmio import ALL_ONES_32, Mmio
from hw.pci.device import COMMAND, COMMAND_MEMORY, PciDevice
from hw.poll import poll
from hw.regs import Register, RegisterBlock

if TYPE_CHECKING:
    from drivers.amd.bridge import BridgeMemory
    from drivers.amd.memory import MemoryManager

log = logging.getLogger(__name__)

DOORBELL_BAR = 2

FUNCTION_IDENTIFIER = 0xDE5
"""dword index of RCC_IOV_FUNC_IDENTIFIER; bit 0: this is a virtual function"""
USUAL_BASES = {"GC": (0x1260, 0xA000), "MP0": (0x16000,)}
"""register bases that every gfx11 card publishes, for looking at one whose discovery table cannot be read"""

STATES = ("cold", "partial", "sos-alive", "running", "gated", "dead-bus", "bars-unassigned")


class AmdDevice:
    """One GPU. Nothing is touched before discover(), state() or boot() is called."""

    space: AmdSpace
    doorbells: Mmio
    vram: Vram
    ip: discovery.Discovery
    gc: RegisterBlock
    mmhub: RegisterBlock
    nbio: RegisterBlock
    mp0: RegisterBlock
    mp1: RegisterBlock
    osssys: RegisterBlock
    hdp: RegisterBlock
    soc: Soc
    gmc: Gmc
    ih: InterruptRing
    psp: Psp
    smu: Smu
    gfx: Gfx
    sdma: Sdma
    boot_memory: BootMemory
    boot_range: Tlsf
    memory: MemoryManager
    bridge_memory: BridgeMemory
    """only where the transport has a transfer buffer"""
    arch: str
    """LLVM target, "gfx1100" """
    vram_size: int
    """bytes that the card reports"""

    def __init__(self, pci: PciDevice, firmware: FirmwareStore, *, verify_discovery: bool = True) -> None:
        self.pci = pci
        self.clock = pci.clock
        self.store = firmware
        self.firmware: FirmwareSet | None = None
        self.error_state = ""
        """what went wrong on the device since the last recovery; "" when nothing did"""
        self.booted = False
        self.reset_control = Reset(self)
        self._verify_discovery = verify_discovery
        self._discovered = False
        self._bringup = Bringup(self)
        self.stages: list[Stage] = self._bringup.stages()

    # --- whole life ---

    def boot(self, *, until: str | None = None, cold: bool = False, on_stage: Callable[[StageResult], None] | None = None) -> list[StageResult]:
        """Bring the GPU up, stage by stage; `until` names the last stage to run, `cold` forces a reset and a full boot.

        When anything fails, also KeyboardInterrupt, the stages that ran are undone and the error goes on. Errors: BusError, NotReady,
        DiscoveryInvalid, UnknownHardware, NotSupported, FirmwareError, BootError (PspError, SmuError, RlcError, HubError), QueueStuck.
        """
        if self.booted:
            raise UsageError("the GPU is running already", remedy="finish() it first")
        self._bringup.cold = cold
        try:
            results = self._run_stages(until, on_stage)
        except HalfStarted as error:
            log.warning("%s: once more after the reset, an earlier boot may have been cut off", error)
            results = self._run_stages(until, on_stage)
        self.booted = until is None or until == self.stages[-1].name
        return results

    def _run_stages(self, until: str | None, on_stage: Callable[[StageResult], None] | None) -> list[StageResult]:
        self._discovered = False
        self.error_state = ""
        return run_stages(self.stages, self.clock, until=until, verify=self._verify_alive, on_stage=on_stage, on_error=self._note_error)

    def finish(self) -> None:
        """Stop queues, lower the clocks, and mark the card as cleanly left, so that the next run starts warm. Raises BusLost, QueueStuck."""
        self.check_alive("finishing")
        self.booted = False
        self.sdma.stop()
        self.gfx.dequeue(wait=not self.error_state)
        self.smu.pin_clocks(LOWEST)
        for interrupt in self.ih.drain():
            if interrupt.is_error:
                self.error_state = self.error_state or interrupt.text
        self.gc.SCRATCH_REG6.write(RUNNING if self.error_state else CLEAN)

    def close(self) -> None:
        """Give the PCI function back. The GPU itself stays as it is: finish() before, or the next start needs a reset."""
        self.booted = False
        try:
            self.pci.close()  # stops bus mastering, so that nothing writes to the host memory that is given back now
        finally:
            self.forget_memory()

    def reset(self) -> str:
        """Reset on demand: the whole chip back to its power-on state; returns what did it. The GPU has to be booted again. Raises BootError."""
        if not self._discovered:
            self._bringup.enable_pci()
            self._bringup.discover()
        self.booted = False
        return self.reset_control.run()

    def recover(self) -> list[Interrupt]:
        """After a hang, without a reset of the chip: take the interrupts, kill the waves, restart the compute front end.

        Returns the interrupts that were waiting. Compute queues are gone: zero their pointers and set them up again. Raises BusLost.
        """
        found = self.ih.drain()
        self.gfx.reset_mec(self._bringup.mec_start(), wait=False)
        for hub in self.gmc.hubs.values():
            hub.read_fault()
        self.error_state = ""
        return found

    def state(self) -> str:
        """Which of STATES the card is in, from reads only. "gated": asleep or not decoding memory, so it cannot be looked at."""
        try:
            if self.pci.config.read32(0) & 0xFFFF == 0xFFFF:
                return "dead-bus"
            for index in (VRAM_BAR, DOORBELL_BAR, silence.REGISTER_BAR):
                self.pci.bar(index)
            if not self.pci.config.read16(COMMAND) & COMMAND_MEMORY or silence.power_state(self.pci.config):
                return "gated"
            return self._look()
        except BarUnassigned:
            return "bars-unassigned"
        except MemoryDisabled:
            return "gated"
        except BusError:
            return "dead-bus"

    # --- access to the device ---

    @property
    def regs(self) -> AmdSpace:
        """The dword-indexed register space."""
        return self.space

    @property
    def mc_base(self) -> int:
        """MC address of VRAM offset 0."""
        return self.gmc.fb_base

    @property
    def visible_vram(self) -> int:
        """Bytes of VRAM from its start that BAR0 shows."""
        return self.vram.visible

    def vram_read(self, paddr: int, size: int) -> bytes:
        """Bytes of VRAM, beyond the visible part through index registers."""
        return self.vram.read(paddr, size)

    def vram_write(self, paddr: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes of VRAM. The GPU sees them after flush_hdp()."""
        self.vram.write(paddr, data)

    def vram_view(self, paddr: int, size: int) -> Mmio | None:
        """A window onto VRAM, None where BAR0 does not show all of it."""
        return self.vram.view(paddr, size)

    def boot_alloc(self, size: int, align: int = bootmem.PAGE, zero: bool = True) -> int:
        """VRAM offset of a piece of boot memory, while booting. Raises OutOfMemory, WrongPhase."""
        if self.booted:
            raise WrongPhase(f"boot memory of {size:#x} bytes was asked for", read="the GPU is booted")
        place = self.boot_range.alloc(size, align)
        if zero:
            self.vram.fill(place, size)
        return place

    def flush_hdp(self) -> None:
        """Make host writes to VRAM visible to the GPU."""
        self.soc.flush_hdp()

    def invalidate_tlb(self, hubs: tuple[str, ...] | list[str] = HUB_NAMES) -> None:
        """Flush host writes and forget cached translations in the hubs ("gfx", "mm") that are set up. Raises HubError, BusLost."""
        self.gmc.invalidate(tuple(hubs))

    def setup_compute_ring(self, ring_va: int, ring_bytes: int, rptr_va: int, wptr_va: int, eop_va: int, eop_bytes: int, *, aql: bool = False) -> int:
        """Start the compute queue; returns its 64-bit doorbell slot. Raises QueueStuck, BusLost."""
        return self.gfx.setup_ring(ring_va=ring_va, ring_bytes=ring_bytes, rptr_va=rptr_va, wptr_va=wptr_va, eop_va=eop_va, eop_bytes=eop_bytes, aql=aql)

    def setup_sdma_ring(self, ring_va: int, ring_bytes: int, rptr_va: int, wptr_va: int) -> int:
        """Start the copy queue; returns its 64-bit doorbell slot."""
        return self.sdma.setup_ring(ring_va, ring_bytes, rptr_va, wptr_va)

    def drain_interrupts(self) -> list[Interrupt]:
        """Take all waiting interrupts. Raises GpuFault when one reports a fault (decoded), BusLost."""
        found = self.ih.drain()
        errors = [each for each in found if each.is_error]
        if errors:
            self.error_state = errors[0].text
            further = f"; {len(errors) - 1} more error interrupts" if len(errors) > 1 else ""
            is_page_fault = errors[0].fault is not None
            raise GpuFault(
                errors[0].text,
                read=f"client {errors[0].client}, source {errors[0].source}{further}",
                means="" if is_page_fault else "the work on the GPU did something that the hardware refuses",
            )
        return found

    def wait(self, register: Register, until: Callable[[int], bool], *, what: str, within: float, typical: float = 0.0) -> int:
        """Poll a register that is never all ones. Raises WaitTimeout, or the reason for all ones."""

        def read() -> int:
            value = register.read()
            if value == ALL_ONES_32:
                raise self.lost(f"waiting for {what}", register.name)
            return value

        return poll(read, until, what=what, within=within, typical=typical, clock=self.clock, describe=register.describe, patient=self.reads_are_dear)

    @property
    def reads_are_dear(self) -> bool:
        """Every access is a round trip to somewhere: wait before looking, look once at much."""
        return self.space.window.cost == "round_trip"

    def lost(self, what: str, place: str) -> BusError:
        """The error for all ones read at `place` while doing `what`."""
        self.error_state = self.error_state or f"no answer while {what}"
        return silence.explain(self.pci, what, place)

    def check_alive(self, what: str) -> None:
        """Raise when the registers answer nothing but all ones."""
        if self.space.read(MEMSIZE) == ALL_ONES_32:
            raise self.lost(what, "RCC_CONFIG_MEMSIZE")

    # --- discovery ---

    def discover(self) -> discovery.Discovery:
        """Map the windows, read what the GPU is, and bind register names. Changes nothing but index registers.

        Raises BarUnassigned, MemoryDisabled, BusLost, NotReady, DiscoveryInvalid, UnknownHardware, NotSupported.
        """
        identity = self.pci.id
        if identity.vendor != VENDOR_AMD:
            raise UnknownHardware(f"{self.pci.address} is not an AMD device", read=f"vendor {identity.vendor:#06x}, device {identity.device:#06x}")
        self._map_windows()
        self.vram_size = self._memory_size()
        identifier = self.space.read(FUNCTION_IDENTIFIER)
        if identifier == ALL_ONES_32:
            raise self.lost("looking for a virtual function", "RCC_IOV_FUNC_IDENTIFIER")
        if identifier & 1:
            raise NotSupported(
                f"driving {self.pci.address}, an SR-IOV virtual function",
                means="the firmware of a virtual function belongs to its host; only whole cards can be booted",
                remedy="pass the physical function through instead",
            )
        self.vram = Vram(self.pci.map_bar(VRAM_BAR), self.space, self.vram_size)
        self.ip = discovery.read(self.vram.read, self.vram_size, verify=self._verify_discovery)
        self.arch = target_of(self.ip.version("GC"))
        self._bind_blocks()
        self.gmc.locate()
        self._discovered = True
        return self.ip

    def _map_windows(self) -> None:
        for index in (VRAM_BAR, DOORBELL_BAR, silence.REGISTER_BAR):
            self.pci.bar(index)
        self.space = AmdSpace(self.pci.map_bar(silence.REGISTER_BAR), self.clock, self.pci.guard("index"))
        self.doorbells = self.pci.map_bar(DOORBELL_BAR)

    def _memory_size(self) -> int:
        mib = self.space.read(MEMSIZE)
        if mib == ALL_ONES_32:
            raise self.lost("reading the size of the video memory", "RCC_CONFIG_MEMSIZE")
        if mib == 0:
            raise NotReady("the card reports no video memory", read="RCC_CONFIG_MEMSIZE = 0")
        return mib << 20

    def _bind_blocks(self) -> None:
        def block(name: str) -> RegisterBlock:
            return RegisterBlock(table_for(name, self.ip.version(name)), self.ip.bases(name), self.space)

        self.gc, self.mmhub, self.nbio, self.mp0, self.mp1 = (block(name) for name in ("GC", "MMHUB", "NBIO", "MP0", "MP1"))
        self.osssys, self.hdp = block("OSSSYS"), block("HDP")
        self.space.rsmu_index, self.space.rsmu_data = (self.nbio.index(f"BIF_BX_PF0_RSMU_{name}") for name in ("INDEX", "DATA"))
        self.soc, self.gmc, self.ih, self.psp = Soc(self), Gmc(self), InterruptRing(self), Psp(self)
        self.smu, self.gfx, self.sdma = Smu(self), Gfx(self), Sdma(self)

    # --- state ---

    def _look(self) -> str:
        """Decide between the states of a card that answers."""
        if not self._discovered:
            try:
                self.discover()
            except (DiscoveryInvalid, NotReady, NotSupported, UnknownHardware) as error:
                log.info("looking at %s without its discovery table: %s", self.pci.address, error)
        blocks = {name: RegisterBlock(table_for(name, (11, 0, 0) if name == "GC" else (13, 0, 0)), bases, self.space) for name, bases in USUAL_BASES.items()}
        gc, mp0 = (self.gc, self.mp0) if self._discovered else (blocks["GC"], blocks["MP0"])
        tag, sign_of_life = gc.SCRATCH_REG7.read(), mp0.MP0_SMN_C2PMSG_81.read()
        if tag == ALL_ONES_32 or sign_of_life == ALL_ONES_32:
            return "dead-bus"
        if tag == BOOT_TAG:
            return "running" if gc.SCRATCH_REG6.read() else "partial"
        return "sos-alive" if sign_of_life else "cold"

    def forget_memory(self) -> None:
        """Give back addresses and host memory of buffers that nobody can use any more."""
        if hasattr(self, "memory"):
            self.memory.close()

    def _verify_alive(self) -> None:
        if self._discovered:
            self.check_alive("booting")

    def _note_error(self, error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt):
            self.error_state = self.error_state or str(error)
