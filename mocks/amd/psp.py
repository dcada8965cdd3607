"""PSP: the security processor. Boot loader, then the secure OS (sOS) with its command ring.

What the boot loader checks of a component: its place in the order, that its address can be reached, the image header (sizes, magic,
id) and, for fabricated images, the signature. A refused component leaves the boot loader unable to start the sOS until a reset. An
address that nobody answers stops the boot loader for good, as on the card. The ring's commands are in psp_commands.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from drivers.amd.layouts import psp as layout
from drivers.amd.layouts.psp import READY, BootLoaderCommand, RingCommand
from firmware.amd_layouts import PSP_IMAGE_HEADER_SIZE, PSP_IMAGE_SIGNATURE_SIZE, SOS_IMAGE_IDS, SosPart
from mocks.amd.block import Block, Reg, on_write, stored
from mocks.amd.fw import check_image, is_simulated
from mocks.amd.psp_commands import CommandProcessor
from mocks.amd.vram import Unreachable
from mocks.clock import Engine, Task

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

BAD_IMAGE = 0x000F
"""status of the boot loader for an image that it does not accept (I)"""
BAD_ORDER = 0x000D
"""status for a component whose turn it is not (I)"""
UNKNOWN = 0x0100
"""status for a command that there is not"""
RING_BUSY = 0x0002
"""status of ring creation while a ring exists (I)"""
BAD_RING = 0x0006
"""status of ring creation with an address or size that cannot be (I)"""

COMPONENTS: dict[int, tuple[SosPart, ...]] = {
    BootLoaderCommand.LOAD_KEY_DATABASE: (SosPart.KDB,),
    BootLoaderCommand.LOAD_TOS_SPL_TABLE: (SosPart.SPL, SosPart.KDB),  # older drivers send the key database a second time
    BootLoaderCommand.LOAD_SYS_DRV: (SosPart.SYS_DRV,),
    BootLoaderCommand.LOAD_SOC_DRV: (SosPart.SOC_DRV,),
    BootLoaderCommand.LOAD_INTF_DRV: (SosPart.INTF_DRV,),
    BootLoaderCommand.LOAD_DBG_DRV: (SosPart.DBG_DRV,),
    BootLoaderCommand.LOAD_RAS_DRV: (SosPart.RAS_DRV,),
    BootLoaderCommand.LOAD_SOS: (SosPart.SOS,),
}
"""what each command takes, in the order in which the commands have to come"""
ORDER = list(COMPONENTS)

FRAME_DWORDS = layout.FRAME_SIZE // 4
SMALLEST_RING = 0x1000
RING_ALIGN = 0x1000


class Psp(Block):
    """Security processor."""

    key = "psp"
    REGISTERS = (
        stored("MP0", "MP0_SMN_C2PMSG_33", "MP0_SMN_C2PMSG_81", "MP0_SMN_C2PMSG_58", "MP0_SMN_C2PMSG_59", mask=0),
        stored("MP0", "MP0_SMN_C2PMSG_92", "MP0_SMN_C2PMSG_126", "MP0_SMN_C2PMSG_127", mask=0),
        stored("MP0", "MP0_SMN_C2PMSG_35", "MP0_SMN_C2PMSG_64", "MP0_SMN_C2PMSG_36", "MP0_SMN_C2PMSG_69", "MP0_SMN_C2PMSG_70", "MP0_SMN_C2PMSG_71", "MP0_SMN_C2PMSG_67"),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.numbers = self.profile["psp"]
        self.commands = CommandProcessor(self)
        self.posted = False
        """the boot firmware has finished"""
        self.sos_alive = False
        self.components: list[int] = []
        """boot-loader commands carried out"""
        self.refusal = ""
        """why the boot loader refused a component, or is stuck; "" while all is well"""
        self.known_images: set[bytes] | None = None
        """SHA-256 digests of the only images to accept; None: judge structure and simulated signatures"""
        self._work: Task | None = None
        self._ring: tuple[int, int] | None = None
        """(MC address, bytes) of the command ring"""
        self._read = 0
        """where the sOS goes on in the ring, in dwords"""
        self._new_frames = gpu.scheduler.signal()
        self._ring_task: Task | None = None

    @property
    def _at_work(self) -> bool:
        return self._work is not None and not self._work.done

    @property
    def loaded_types(self) -> set[int]:
        """Firmware types that LOAD_IP_FW accepted."""
        return set(self.commands.loaded)

    def reset(self) -> None:
        super().reset()
        for task in (self._work, self._ring_task):
            self.scheduler.stop(task)
        self._work = self._ring_task = None
        self.posted = self.sos_alive = False
        self.components.clear()
        self.refusal = ""
        self._ring = None
        self._read = 0
        self.commands.reset()

    def post(self) -> None:
        """The boot firmware has brought the card up: the boot loader listens."""
        self.posted = True
        self._set(33, READY)
        self._set(59, self.numbers["boot_loader_version"])
        if not self.faults.active("psp-never-ready"):
            self._set(35, READY)

    # --- boot loader ---

    @on_write("MP0", "MP0_SMN_C2PMSG_35")
    def boot_loader_command(self, value: int, reg: Reg) -> None:
        """A command, if the boot loader is there to take it. Otherwise the register just holds what was written."""
        if value & READY or not self.posted or self.sos_alive or self.faults.active("psp-never-ready"):
            return
        if self._at_work:
            self._refuse(BAD_ORDER, f"command {value:#x} while the boot loader was at work")
            return
        reg.value = 0
        self._work = self.scheduler.spawn("PSP boot loader", self._boot_loader(value))

    def _boot_loader(self, command: int) -> Engine:
        self.gpu.reach("psp-bootloader")
        address = self.reg("MP0", "MP0_SMN_C2PMSG_36").value << layout.MESSAGE_BUFFER_ALIGN_SHIFT
        yield self.scheduler.between(*self.numbers["component_time"])
        status = 0
        try:
            if command not in COMPONENTS:
                status = self._refuse(UNKNOWN, f"unknown boot-loader command {command:#x}")
            elif not self._in_order(command):
                status = self._refuse(BAD_ORDER, f"{BootLoaderCommand(command).name} out of order")
            else:
                image, fault = self._check_component(command, address)
                if fault:
                    status = self._refuse(BAD_IMAGE, f"{BootLoaderCommand(command).name}: {fault}")
                elif command == BootLoaderCommand.LOAD_SOS and is_simulated(image) and self.components != ORDER[:-1]:
                    status = self._refuse(BAD_ORDER, "the fabricated sOS needs every driver of its container")
        except Unreachable as error:
            self.refusal = f"boot loader stuck: {error}"
            log.warning("PSP: %s", self.refusal)
            return
        if not status:
            self.components.append(command)
        self._set(35, READY | status)
        if command == BootLoaderCommand.LOAD_SOS and not status and not self.refusal:
            yield from self._start_sos()

    def _in_order(self, command: int) -> bool:
        """Each component once, in order; those that this chip needs before the sOS are there."""
        position = ORDER.index(command)
        if any(ORDER.index(earlier) >= position for earlier in self.components):
            return False
        needed = [BootLoaderCommand[name] for name in self.numbers["boot_loader_needs"]]
        return all(each in self.components for each in needed if ORDER.index(each) < position)

    def _check_component(self, command: int, address: int) -> tuple[bytes, str]:
        """The image at an address and what is wrong with it, "" when nothing. The header says how long it is."""
        header = self.gpu.mc_read(address, PSP_IMAGE_HEADER_SIZE)
        parts = COMPONENTS[command]
        ids = tuple(SOS_IMAGE_IDS[part] for part in parts)
        total = int.from_bytes(header[0x14:0x18], "little") + PSP_IMAGE_HEADER_SIZE + PSP_IMAGE_SIGNATURE_SIZE
        if total > layout.MESSAGE_BUFFER_SIZE:
            return header, f"the header claims {total:#x} bytes"
        image = self.gpu.mc_read(address, total)
        fault = check_image(image, image_ids=ids, nameless=SosPart.KDB in parts)
        return image, fault or self.commands.unknown_image(image)

    def _refuse(self, status: int, why: str) -> int:
        self.refusal = self.refusal or why
        log.info("PSP boot loader: %s (status %#x)", why, status)
        return status

    def _start_sos(self) -> Engine:
        self.gpu.reach("sos")
        if self.faults.active("psp-sos-silent"):
            return
        yield self.numbers["sos_time"]
        self.sos_alive = True
        self._set(58, self.numbers["sos_version"])
        self._set(64, READY)
        self._set(81, self.numbers["sos_alive"])

    # --- sOS control mailbox ---

    @on_write("MP0", "MP0_SMN_C2PMSG_64")
    def ring_control(self, value: int, reg: Reg) -> None:
        """A control command, if the sOS is there to take it."""
        if value & READY or not self.sos_alive:
            return
        if self._at_work:
            log.warning("PSP: control command %#x while the sOS was at work: lost", value)
            return
        reg.value = 0
        self._work = self.scheduler.spawn("PSP control", self._control(value))

    def _control(self, command: int) -> Engine:
        self.gpu.reach("ring")
        yield self.numbers["ring_time"]
        status = 0
        if command == RingCommand.INIT_GPCOM_RING:
            status = self._create_ring()
        elif command == RingCommand.DESTROY_RINGS:
            self._destroy_ring()
        elif command == RingCommand.MODE1_RESET:
            self.gpu.mode1_reset()
        elif command not in (RingCommand.CAN_INIT_RINGS, RingCommand.ENABLE_INT, RingCommand.DISABLE_INT):
            status = UNKNOWN
        self._set(64, READY | status)

    def _create_ring(self) -> int:
        if self._ring is not None:
            return RING_BUSY
        address = self._get(70) << 32 | self._get(69)
        size = self._get(71)
        if size < SMALLEST_RING or size % SMALLEST_RING or address % RING_ALIGN:
            return BAD_RING
        try:
            self.gpu.mc_read(address, 4)
            self.gpu.mc_read(address + size - 4, 4)
        except Unreachable as error:
            log.warning("PSP ring: %s", error)
            return BAD_RING
        self._ring = (address, size)
        self._read = 0
        self._set(67, 0)
        self._ring_task = self.scheduler.spawn("PSP ring", self._serve_ring())
        return 0

    def _destroy_ring(self) -> None:
        self._ring = None
        self._read = 0
        self.scheduler.stop(self._ring_task)
        self._ring_task = None
        for number in (67, 69, 70, 71):
            self._set(number, 0)

    # --- command ring ---

    @on_write("MP0", "MP0_SMN_C2PMSG_67")
    def ring_write_pointer(self, value: int, reg: Reg) -> None:
        self._new_frames.set()

    def _serve_ring(self) -> Engine:
        """Frame by frame, until something happens that the sOS cannot answer."""
        assert self._ring is not None
        address, size = self._ring
        dwords = size // 4
        while True:
            wanted = self._get(67)
            if wanted > dwords or wanted % FRAME_DWORDS:
                log.warning("PSP ring: write pointer %#x in a ring of %#x dwords: stuck", wanted, dwords)
                return
            if wanted % dwords == self._read:
                yield self._new_frames
                continue
            try:
                frame = self.gpu.mc_read(address + 4 * self._read, layout.FRAME_SIZE)
                yield from self.commands.carry_out(frame)
            except Unreachable as error:
                log.warning("PSP ring, frame at %#x: %s: stuck", self._read, error)
                return
            self._read = (self._read + FRAME_DWORDS) % dwords

    # --- registers ---

    def _set(self, number: int, value: int) -> None:
        self.reg("MP0", f"MP0_SMN_C2PMSG_{number}").value = value

    def _get(self, number: int) -> int:
        return self.reg("MP0", f"MP0_SMN_C2PMSG_{number}").value


def blocks(gpu: Gpu) -> list[Block]:
    return [Psp(gpu)]
