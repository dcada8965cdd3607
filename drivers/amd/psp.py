"""Security processor (PSP): from its boot loader over the secure OS (sOS) to the firmware of every engine.

Every blob is put where the PSP can read it (psp_post.py) and named by its address: to the boot loader through a mailbox, to the sOS
through a ring of commands. Sources: public amdgpu code (psp_v13_0, amdgpu_psp), layouts/psp.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import psp as layout
from drivers.amd.layouts.psp import BootLoaderCommand, Command, RingCommand
from drivers.amd.psp_post import BridgePost, Post, VramPost
from firmware.amd_files import FirmwareSet
from firmware.amd_layouts import FirmwareType
from firmware.amd_ucode import Part, Ucode
from hw.errors import PspError, WaitTimeout
from hw.poll import poll
from hw.regs import Register

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

log = logging.getLogger(__name__)

WITHIN = 10.0
TYPICAL_COMPONENT = 4e-3
TYPICAL_SOS = 50e-3
TYPICAL_COMMAND = 0.4e-3
PSP_BYTES_PER_SECOND = 256e6
"""how fast the PSP takes firmware in, for the first pause of a wait"""
RING_PAUSE = 20e-3
"""after a command on the sOS control mailbox"""
FRAME_DWORDS = layout.FRAME_SIZE // 4
TMR_MAX = 0x1300000
"""bytes set aside for the trusted memory region"""
SPATIAL_ONE_PARTITION = 1

COMPONENTS: tuple[tuple[str, BootLoaderCommand], ...] = (
    ("KDB", BootLoaderCommand.LOAD_KEY_DATABASE),
    ("KDB", BootLoaderCommand.LOAD_TOS_SPL_TABLE),
    ("SYS_DRV", BootLoaderCommand.LOAD_SYS_DRV),
    ("SOC_DRV", BootLoaderCommand.LOAD_SOC_DRV),
    ("INTF_DRV", BootLoaderCommand.LOAD_INTF_DRV),
    ("DBG_DRV", BootLoaderCommand.LOAD_DBG_DRV),
    ("RAS_DRV", BootLoaderCommand.LOAD_RAS_DRV),
    ("SOS", BootLoaderCommand.LOAD_SOS),
)
"""parts of the sOS container in the order in which the boot loader of PSP 13.0 takes them: the key database is sent a second time in
place of the SPL table. Parts that the container lacks are left out."""


class HalfStarted(PspError):
    """The boot loader refuses the very first part. Either it is a wrong file, or an earlier start was cut off half way, by a process that
    died or a cable that was pulled; then it works after a reset."""

    code = "psp-half-started"


class Psp:
    """The security processor of one GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.touched = False
        """the boot loader was given something since the last reset"""
        self._wptr = 0
        """dwords; where the next frame goes"""
        self._post: Post | None = None

    def reg(self, number: int) -> Register:
        return self.dev.mp0[f"MP0_SMN_C2PMSG_{number}"]

    # --- boot loader ---

    def sos_alive(self) -> bool:
        """Is the secure OS running? Raises BusLost."""
        value = self.reg(81).read()
        if value == 0xFFFFFFFF:
            raise self.dev.lost("looking for the secure OS", self.reg(81).name)
        return value != 0

    def start_sos(self, sos: Ucode) -> None:
        """Feed the boot loader the parts of the container, the secure OS last, and wait for its sign of life.

        Raises PspError, HalfStarted when a reset is worth trying.
        """
        first = True
        for name, command in COMPONENTS:
            if not sos.has(name):
                log.debug("the container has no %s: left out", name)
                continue
            self._boot_loader_ready(f"before {name}")
            self.post.put_loader_part(sos.part(name).data, name)
            self.touched = True
            self.reg(36).write(self.post.loader_address >> layout.MESSAGE_BUFFER_ALIGN_SHIFT)
            self.reg(35).write(command)
            if command != BootLoaderCommand.LOAD_SOS:
                self._boot_loader_ready(f"after {name}", typical=TYPICAL_COMPONENT, refusal=HalfStarted if first else PspError)
                first = False
        try:
            self.dev.wait(self.reg(81), lambda value: value != 0, what="sign of life of the secure OS (C2PMSG_81)", within=WITHIN, typical=TYPICAL_SOS)
        except WaitTimeout as error:
            raise PspError(
                "the secure OS (sOS) failed to start",
                read=f"{error.read}; C2PMSG_35 = {self.reg(35).read():#010x}",
                means="the boot loader did not accept the secure OS: a firmware file of another chip, or a damaged one",
            ) from error

    def _boot_loader_ready(self, when: str, typical: float = 0.0, refusal: type[PspError] = PspError) -> None:
        register = self.reg(35)
        try:
            value = self.dev.wait(register, lambda value: bool(value & layout.READY), what=f"PSP boot loader ready {when} (C2PMSG_35 bit 31)", within=WITHIN, typical=typical)
        except WaitTimeout as error:
            raise PspError(
                f"the PSP boot loader is not ready {when}",
                read=error.read,
                means="the security processor does not run, or it could not reach the buffer it was pointed to",
            ) from error
        status = value & layout.STATUS_MASK
        if status:
            raise refusal(
                f"the PSP boot loader reports an error {when}",
                read=f"C2PMSG_35 = {value:#010x}, status {status:#x}",
                means="it refused what it was given: a firmware file of another chip, a damaged one, or a wrong order",
            )

    # --- ring ---

    @property
    def post(self) -> Post:
        """The way for blobs and commands, chosen when memory is laid out."""
        if self._post is None:
            buffer = self.dev.pci.transfer_buffer
            self._post = VramPost(self.dev) if buffer is None else BridgePost(buffer, self.dev.bridge_memory.va)
        return self._post

    def create_ring(self) -> None:
        """Make the command ring; one that exists is destroyed first."""
        if self.reg(71).read():
            self.destroy_ring()
        self._control_ready("before creating the ring")
        ring = self.dev.mc_base + self.dev.boot_memory.psp_ring
        with self.dev.space.batch():
            self.reg(69).write(ring & 0xFFFFFFFF)
            self.reg(70).write(ring >> 32)
            self.reg(71).write(layout.RING_SIZE)
            self.reg(64).write(RingCommand.INIT_GPCOM_RING)
        self.dev.clock.sleep(RING_PAUSE)
        register = self.reg(64)
        try:
            self.dev.wait(register, lambda value: value & layout.READY_AND_STATUS == layout.READY, what="creation of the PSP ring (C2PMSG_64)", within=WITHIN)
        except WaitTimeout as error:
            raise PspError(
                "the secure OS did not create its ring",
                read=error.read,
                means="a status in bits 15:0 is its refusal: wrong address or size; without bit 31 it does not answer at all",
            ) from error
        self._wptr = self.reg(67).read()

    def destroy_ring(self) -> None:
        """Tell the secure OS to forget its rings."""
        self.reg(64).write(RingCommand.DESTROY_RINGS)
        self.dev.clock.sleep(RING_PAUSE)

    def _control_ready(self, when: str) -> None:
        try:
            self.dev.wait(self.reg(64), lambda value: bool(value & layout.READY), what=f"secure OS ready {when} (C2PMSG_64 bit 31)", within=WITHIN)
        except WaitTimeout as error:
            raise PspError(f"the secure OS is not ready {when}", read=error.read, means="it hangs, or it never started") from error

    def submit(self, command: Command, payload: bytes = b"", *, what: str = "", typical: float = TYPICAL_COMMAND) -> Any:
        """Run one command and return its response. Raises PspError with the command and the status that it got."""
        post = self.post
        title = f"{command.name} ({int(command):#x})" + (f", {what}" if what else "")
        fence = self._wptr + 1
        header = layout.LAYOUT.pack("struct command_header", cmd_id=command)
        post.put_command(header + payload)
        frame = layout.LAYOUT.pack(
            "struct ring_frame",
            cmd_buf_addr_lo=post.command_address & 0xFFFFFFFF,
            cmd_buf_addr_hi=post.command_address >> 32,
            fence_addr_lo=post.fence_address & 0xFFFFFFFF,
            fence_addr_hi=post.fence_address >> 32,
            fence_value=fence,
        )
        with self.dev.space.batch():
            self.dev.vram_write(self.dev.boot_memory.psp_ring + 4 * self._wptr, frame)
            self.dev.flush_hdp()
            self._wptr = (self._wptr + FRAME_DWORDS) % (layout.RING_SIZE // 4)
            self.reg(67).write(self._wptr)
        self._await_fence(fence, title, typical)
        response = layout.LAYOUT.parse("struct response", post.response())
        if response.status:
            raise PspError(f"PSP command {title} failed", read=f"status {response.status:#x}{_status_name(response.status)}", means=_status_means(response.status))
        return response

    def _await_fence(self, fence: int, title: str, typical: float) -> None:
        def read() -> int:
            value = self.post.fence()
            if value == 0xFFFFFFFF:
                raise self.dev.lost(f"waiting for PSP command {title}", "the fence")
            return value

        what = f"fence of PSP command {title}"
        try:
            poll(read, lambda value: value == fence, what=what, within=WITHIN, typical=typical, clock=self.dev.clock, patient=self.dev.reads_are_dear)
        except WaitTimeout as error:
            self.dev.check_alive(f"waiting for PSP command {title}")
            raise PspError(
                f"the secure OS does not answer on its ring: {title}",
                read=f"{error.read}, {fence:#x} awaited; C2PMSG_64 = {self.reg(64).read():#010x}",
                means="it cannot reach the ring (wrong address, bus mastering off), or it hangs",
            ) from error

    # --- commands ---

    def boot_firmware(self, firmware: FirmwareSet) -> None:
        """The command sequence of a boot: table of contents, SMU, trusted memory, every engine, autoload."""
        tmr_size = TMR_MAX
        if firmware.sos.has("TOC"):
            tmr_size = self.load_toc(firmware.sos.part("TOC").data)
        if firmware.smu:
            self.load_part(firmware.smu)
        self.setup_tmr(tmr_size)
        for part in firmware.load_list:
            self.load_part(part)
        self.submit(Command.AUTOLOAD_RLC)

    def load_toc(self, toc: bytes) -> int:
        """Hand over the table of contents; returns the size of trusted memory that it asks for, bytes."""
        self.post.put_blob(toc, "TOC")
        address = self.post.blob_address
        payload = layout.LAYOUT.pack("struct load_toc", toc_phy_addr_lo=address & 0xFFFFFFFF, toc_phy_addr_hi=address >> 32, toc_size=len(toc))
        size: int = self.submit(Command.LOAD_TOC, payload).tmr_size
        if not 0 < size <= TMR_MAX:
            raise PspError("the table of contents asks for more trusted memory than is set aside", read=f"{size:#x} bytes, {TMR_MAX:#x} are there")
        return size

    def setup_tmr(self, size: int) -> None:
        """Give the PSP its trusted memory region, by MC address and by place in VRAM."""
        place = self.dev.boot_memory.tmr
        address = self.dev.mc_base + place
        payload = layout.LAYOUT.pack(
            "struct setup_tmr",
            buf_phy_addr_lo=address & 0xFFFFFFFF,
            buf_phy_addr_hi=address >> 32,
            buf_size=size,
            flags=layout.TMR_FLAG_VIRT_PHY_ADDR,
            system_phy_addr_lo=place & 0xFFFFFFFF,
            system_phy_addr_hi=place >> 32,
        )
        self.submit(Command.SETUP_TMR, payload)

    def load_part(self, part: Part) -> None:
        """Hand over one part of a firmware file, under every type that it is loaded as."""
        self.post.put_blob(part.data, part.name)
        address = self.post.blob_address
        for number in part.types:
            payload = layout.LAYOUT.pack(
                "struct load_ip_fw",
                fw_phy_addr_lo=address & 0xFFFFFFFF,
                fw_phy_addr_hi=address >> 32,
                fw_size=len(part.data),
                fw_type=number,
            )
            typical = TYPICAL_COMMAND + len(part.data) / PSP_BYTES_PER_SECOND
            self.submit(Command.LOAD_IP_FW, payload, what=f"firmware {layout.firmware_name(FirmwareType(number))}", typical=typical)

    def set_partitions(self, mode: int = SPATIAL_ONE_PARTITION) -> None:
        """How the dies of a multi-die GPU are grouped."""
        self.submit(Command.SRIOV_SPATIAL_PART, layout.LAYOUT.pack("struct spatial_part", mode=mode))

    def request_mode1_reset(self) -> None:
        """Ask the secure OS for a reset of the whole chip. Raises PspError when it is not ready to listen."""
        self._control_ready("before a mode-1 reset")
        self.reg(64).write(RingCommand.MODE1_RESET)


def _status_name(status: int) -> str:
    try:
        return f" ({layout.Status(status).name})"
    except ValueError:
        return ""


def _status_means(status: int) -> str:
    if status == layout.Status.UNKNOWN_COMMAND:
        return "this secure OS does not know the command"
    if status == layout.Status.NOT_SUPPORTED:
        return "this chip does not support the command"
    return "it refused the command: usually a firmware file of another chip or release, or a step out of order"
