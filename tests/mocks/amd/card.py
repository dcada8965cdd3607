"""A simulated card operated by hand over its BARs: register by register, as the steps of a boot say. No driver code takes part, so that a
test can leave out or change any single step."""

from __future__ import annotations

from collections.abc import Callable

from drivers.amd.layouts import psp as psp_layout
from drivers.amd.layouts.psp import BootLoaderCommand, Command
from firmware.amd_layouts import SosPart
from mocks.amd.fw import images, sos_parts
from mocks.faults import FaultPlan
from mocks.machine import Machine

ADDRESS = "0000:03:00.0"
READY = 1 << 31
MESSAGE = 0x100000
COMMAND_BUFFER = 0x85000
FENCE = 0x86000
RING = 0x87000
RING_BYTES = 0x10000
TMR = 0x200000
TMR_BYTES = 0x1300000
SMU_TABLE = 0x97000
"""VRAM offsets of boot memory"""
HDP_FLUSH = 0x7F000
"""where REMAP_HDP_MEM_FLUSH_CNTL puts the flush register (byte offset in BAR5)"""
ENGINE_TYPES = (72, 71, 89, 94, 68, 69, 26, 48, 25, 7, 8)

BOOT_COMPONENTS = (
    (BootLoaderCommand.LOAD_KEY_DATABASE, SosPart.KDB),
    (BootLoaderCommand.LOAD_TOS_SPL_TABLE, SosPart.KDB),
    (BootLoaderCommand.LOAD_SYS_DRV, SosPart.SYS_DRV),
    (BootLoaderCommand.LOAD_SOC_DRV, SosPart.SOC_DRV),
    (BootLoaderCommand.LOAD_INTF_DRV, SosPart.INTF_DRV),
    (BootLoaderCommand.LOAD_DBG_DRV, SosPart.DBG_DRV),
    (BootLoaderCommand.LOAD_RAS_DRV, SosPart.RAS_DRV),
    (BootLoaderCommand.LOAD_SOS, SosPart.SOS),
)


class NeverHappened(AssertionError):
    """What was waited for did not come within its time."""


class Card:
    """A machine with its card opened, bus mastering on."""

    def __init__(self, profile: str = "navi31", *, faults: str = "", strict: bool = True, seed: int = 0) -> None:
        self.machine = Machine.from_profile(profile, seed=seed, strict=strict, faults=FaultPlan.parse(faults))
        self.gpu = self.machine.gpus[0]
        self.function = self.gpu.function
        self.chip = self.machine.profile["gpu"]["chip"]
        self.clock = self.machine.clock
        self.pci = self.machine.open(ADDRESS)
        self.pci.set_bus_master(True)
        self.mmio = self.pci.map_bar(5)
        self.vram = self.pci.map_bar(0)
        self.mc_base = 0x80_0000_0000
        self.parts = sos_parts(self.chip)
        self.images = images(self.chip)
        self.fence_value = 0

    # --- registers ---

    def read(self, ip: str, name: str) -> int:
        return self.mmio.read32(4 * self.gpu.index(ip, name))

    def write(self, ip: str, name: str, value: int) -> None:
        self.mmio.write32(4 * self.gpu.index(ip, name), value)

    def c2p(self, number: int) -> int:
        return self.read("MP0", f"MP0_SMN_C2PMSG_{number}")

    def set_c2p(self, number: int, value: int) -> None:
        self.write("MP0", f"MP0_SMN_C2PMSG_{number}", value)

    def wait(self, holds: Callable[[], bool], what: str, within: float = 1.0) -> float:
        """Poll every 100 us of simulated time; returns how long it took."""
        start = self.clock.now()
        while not holds():
            if self.clock.now() - start > within:
                raise NeverHappened(f"{what} within {within} s")
            self.clock.sleep(100e-6)
        return self.clock.now() - start

    def flush(self) -> None:
        self.mmio.write32(HDP_FLUSH, 0)

    # --- multimedia hub ---

    def open_hub(self) -> None:
        """The system aperture, through which firmware engines reach VRAM by MC address; the AGP window off."""
        for name, value in (
            ("MMMC_VM_AGP_BOT", 0xFFFFFF),
            ("MMMC_VM_SYSTEM_APERTURE_LOW_ADDR", 0x200000),
            ("MMMC_VM_SYSTEM_APERTURE_HIGH_ADDR", (self.gpu.profile["memory"]["fb_top"] << 24) >> 18),
            ("MMMC_VM_MX_L1_TLB_CNTL", 0x1859),
        ):
            self.write("MMHUB", name, value)

    # --- PSP ---

    def hand_over(self, data: bytes, *, flush: bool = True, offset: int = MESSAGE) -> None:
        self.vram.write(offset, data)
        if flush:
            self.flush()

    def load_component(self, command: int, data: bytes, *, flush: bool = True, address: int | None = None) -> int:
        """One boot-loader step; returns the status."""
        self.wait(lambda: bool(self.c2p(35) & READY), "boot loader ready")
        self.hand_over(data, flush=flush)
        self.set_c2p(36, (self.mc_base + MESSAGE if address is None else address) >> 20)
        self.set_c2p(35, command)
        if command == BootLoaderCommand.LOAD_SOS:
            self.wait(lambda: bool(self.c2p(81)), "sign of life of the sOS")
            return 0
        self.wait(lambda: bool(self.c2p(35) & READY), "boot loader done")
        return self.c2p(35) & 0xFFFF

    def load_sos(self) -> None:
        for command, part in BOOT_COMPONENTS:
            assert self.load_component(command, self.parts[part]) == 0

    def create_ring(self, address: int | None = None, size: int = RING_BYTES) -> int:
        """Returns what C2PMSG_64 shows afterwards."""
        self.wait(lambda: bool(self.c2p(64) & READY), "sOS ready")
        address = self.mc_base + RING if address is None else address
        self.set_c2p(69, address & 0xFFFFFFFF)
        self.set_c2p(70, address >> 32)
        self.set_c2p(71, size)
        self.set_c2p(64, 0x20000)
        self.wait(lambda: bool(self.c2p(64) & READY), "ring command done")
        return self.c2p(64)

    def submit(
        self,
        command: int,
        payload: bytes = b"",
        *,
        flush: bool = True,
        fence: int | None = None,
        buffer: int | None = None,
        version: int = 1,
        buffer_size: int = psp_layout.COMMAND_BUFFER_SIZE,
        vmid: int = 0,
        within: float = 1.0,
    ) -> int:
        """One command through the ring; returns the response's status."""
        pointer = self.c2p(67)
        self.fence_value += 1
        buffer = self.mc_base + COMMAND_BUFFER if buffer is None else buffer
        fence = self.mc_base + FENCE if fence is None else fence
        self.vram.write32(FENCE, 0)
        layout = psp_layout.LAYOUT
        head = layout.pack("struct command_header", buf_size=buffer_size, buf_version=version, cmd_id=command)
        self.vram.write(COMMAND_BUFFER, (head + payload).ljust(psp_layout.COMMAND_BUFFER_SIZE, b"\0"))
        frame = layout.pack(
            "struct ring_frame",
            cmd_buf_addr_lo=buffer & 0xFFFFFFFF,
            cmd_buf_addr_hi=buffer >> 32,
            cmd_buf_size=buffer_size,
            fence_addr_lo=fence & 0xFFFFFFFF,
            fence_addr_hi=fence >> 32,
            fence_value=self.fence_value,
            vmid=vmid,
        )
        self.vram.write(RING + 4 * (pointer % (RING_BYTES // 4)), frame)
        if flush:
            self.flush()
        self.set_c2p(67, pointer + 16)
        self.wait(lambda: self.vram.read32(FENCE) == self.fence_value, f"fence of command {command:#x}", within)
        return self.response().status  # type: ignore[no-any-return]

    def response(self):  # type: ignore[no-untyped-def]
        """The response part of the command buffer."""
        data = self.vram.read(COMMAND_BUFFER + psp_layout.COMMAND_RESPONSE, psp_layout.RESPONSE_SIZE)
        return psp_layout.LAYOUT.parse("struct response", data)

    def load_toc(self) -> int:
        self.hand_over(self.parts[SosPart.TOC])
        address = self.mc_base + MESSAGE
        payload = psp_layout.LAYOUT.pack("struct load_toc", toc_phy_addr_lo=address & 0xFFFFFFFF, toc_phy_addr_hi=address >> 32, toc_size=len(self.parts[SosPart.TOC]))
        return self.submit(Command.LOAD_TOC, payload)

    def setup_tmr(self, **changes: int) -> int:
        address = self.mc_base + TMR
        values = {
            "buf_phy_addr_lo": address & 0xFFFFFFFF,
            "buf_phy_addr_hi": address >> 32,
            "buf_size": TMR_BYTES,
            "flags": psp_layout.TMR_FLAG_VIRT_PHY_ADDR,
            "system_phy_addr_lo": TMR,
            **changes,
        }
        return self.submit(Command.SETUP_TMR, psp_layout.LAYOUT.pack("struct setup_tmr", **values))

    def load_ip_fw(self, kind: int, data: bytes | None = None, *, flush: bool = True, address: int | None = None, size: int | None = None) -> int:
        image = self.images[kind] if data is None else data
        self.hand_over(image, flush=flush)
        address = self.mc_base + MESSAGE if address is None else address
        payload = psp_layout.LAYOUT.pack(
            "struct load_ip_fw", fw_phy_addr_lo=address & 0xFFFFFFFF, fw_phy_addr_hi=address >> 32, fw_size=len(image) if size is None else size, fw_type=kind
        )
        return self.submit(Command.LOAD_IP_FW, payload)

    def boot_to_ring(self) -> None:
        self.open_hub()
        self.load_sos()
        assert self.create_ring() == READY

    def boot_to_tmr(self) -> None:
        self.boot_to_ring()
        assert self.load_toc() == 0
        assert self.load_ip_fw(18) == 0
        assert self.setup_tmr() == 0

    def boot_to_autoload(self) -> None:
        """Everything up to running graphics firmware."""
        self.boot_to_tmr()
        for kind in ENGINE_TYPES:
            assert self.load_ip_fw(kind) == 0
        assert self.submit(Command.AUTOLOAD_RLC) == 0
        self.wait(lambda: self.read("GC", "CP_STAT") == 0, "autoload")

    # --- SMU ---

    def smu(self, message: int, argument: int = 0, *, within: float = 1.0, debug: bool = False) -> tuple[int, int]:
        """One message; returns (response, argument register)."""
        request, argument_number, response = (75, 53, 54) if debug else (66, 82, 90)
        self.write("MP1", f"MP1_SMN_C2PMSG_{response}", 0)
        self.write("MP1", f"MP1_SMN_C2PMSG_{argument_number}", argument)
        self.write("MP1", f"MP1_SMN_C2PMSG_{request}", message)
        self.wait(lambda: self.read("MP1", f"MP1_SMN_C2PMSG_{response}") != 0, f"SMU answer to {message:#x}", within)
        return self.read("MP1", f"MP1_SMN_C2PMSG_{response}"), self.read("MP1", f"MP1_SMN_C2PMSG_{argument_number}")
