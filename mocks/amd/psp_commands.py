"""What the secure OS does with the commands of its ring.

Refusals carry the status codes that the firmware's interface knows: 0x100 for an unknown command, GlobalPlatform TEE codes for bad
parameters and states, 0xF for an image that does not fit its type or size.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import psp as layout
from drivers.amd.layouts.psp import Command, Status
from firmware.amd_layouts import SOS_IMAGE_IDS, FirmwareType, SosPart
from hw.errors import NotModelled
from mocks.amd.fw import check_image, is_simulated
from mocks.amd.vram import Unreachable
from mocks.clock import Engine

if TYPE_CHECKING:
    from mocks.amd.psp import Psp

log = logging.getLogger(__name__)

TEE_BAD_FORMAT = 0xFFFF0005
TEE_BAD_PARAMETERS = 0xFFFF0006
TEE_BAD_STATE = 0xFFFF0007
TEE_NOT_SUPPORTED = 0xFFFF000A
TEE_SECURITY = 0xFFFF000F
"""codes of the GlobalPlatform TEE internal core interface, which the firmware's own codes follow"""

BUFFER_ALIGN = 0x1000
"""firmware and tables are taken from whole pages"""
TMR_ALIGN = 1 << 20
TMR_SLOT = 0x1000
"""images lie in the TMR at multiples of this (bytes)"""
COMMAND_VERSIONS = (0, 1)
SPATIAL_SINGLE = 1


class Refused(Exception):
    """A command that is answered with a status other than 0."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class DecodedCommand:
    """A ring frame with the command buffer that it points to."""

    command: int
    command_buffer: int
    command_buffer_size: int
    fence_address: int
    fence_value: int
    vmid: int
    frame_type: int
    buffer_version: int
    payload: bytes
    reserved: bool
    """something is in fields that have to be 0: the frame's reserved words, the header's fields of another kind of ring"""


@dataclass(frozen=True)
class LoadedImage:
    """Firmware that was accepted."""

    data: bytes
    tmr_address: int
    simulated: bool
    """fabricated for simulated GPUs, its signature checked"""


def decode_frame(frame: bytes) -> Any:
    """The ring frame's fields."""
    return layout.LAYOUT.parse("struct ring_frame", frame)


def decode_command(frame: bytes, buffer: bytes) -> DecodedCommand:
    """What a frame and its command buffer say."""
    f = decode_frame(frame)
    header = layout.LAYOUT.parse("struct command_header", buffer)
    return DecodedCommand(
        command=header.cmd_id,
        command_buffer=f.cmd_buf_addr_hi << 32 | f.cmd_buf_addr_lo,
        command_buffer_size=f.cmd_buf_size,
        fence_address=f.fence_addr_hi << 32 | f.fence_addr_lo,
        fence_value=f.fence_value,
        vmid=f.vmid,
        frame_type=f.frame_type,
        buffer_version=header.buf_version,
        payload=buffer[layout.COMMAND_PAYLOAD : layout.COMMAND_RESPONSE],
        reserved=any(f.reserved1) or any(f.reserved2) or any(header.rbi),
    )


class CommandProcessor:
    """The commands and the state that they leave."""

    def __init__(self, psp: Psp) -> None:
        self._psp = psp
        self._gpu = psp.gpu
        self._numbers = psp.profile["psp"]
        self._handlers: dict[int, Callable[[DecodedCommand, Any], float]] = {
            Command.LOAD_TOC: self._load_toc,
            Command.SETUP_TMR: self._setup_tmr,
            Command.DESTROY_TMR: self._destroy_tmr,
            Command.LOAD_IP_FW: self._load_ip_fw,
            Command.AUTOLOAD_RLC: self._autoload_rlc,
            Command.SRIOV_SPATIAL_PART: self._spatial_partition,
        }
        self.loaded: dict[int, LoadedImage] = {}
        """by firmware type"""
        self.tmr: tuple[int, int] | None = None
        """(MC address, bytes) of the trusted memory region"""
        self.toc_size = 0
        """what the table of contents asks for as TMR (bytes); 0 before LOAD_TOC"""
        self.history: list[tuple[int, int]] = []
        """(command id, status) of everything that was answered"""
        self._tmr_used = 0

    def reset(self) -> None:
        self.loaded.clear()
        self.tmr = None
        self.toc_size = 0
        self._tmr_used = 0
        self.history.clear()

    def unknown_image(self, image: bytes) -> str:
        """Why an image of right structure is not accepted, on a machine that was told which images there are."""
        known = self._psp.known_images
        return "not one of the known images" if known is not None and hashlib.sha256(image).digest() not in known else ""

    def carry_out(self, frame: bytes) -> Engine:
        """One frame: read the command, act, write response and fence. Raises Unreachable where the sOS cannot answer."""
        head = decode_frame(frame)
        place = head.cmd_buf_addr_hi << 32 | head.cmd_buf_addr_lo
        if place % 4:
            raise Unreachable(f"command buffer at unaligned {place:#x}")
        command = decode_command(frame, self._gpu.mc_read(place, layout.COMMAND_BUFFER_SIZE))
        if command.fence_address % 4:
            raise Unreachable(f"fence at unaligned {command.fence_address:#x}")
        self._gpu.mc_read(command.fence_address, 4)
        response = layout.LAYOUT.new("struct response")
        yield self._numbers["command_time"]
        if self._is_silent(command.command):
            raise Unreachable(f"command {command.command:#x} is not answered (planned fault)")
        try:
            self._check_frame(command)
            yield self._handler(command.command)(command, response)
        except Refused as refusal:
            response.status = refusal.status
            log.info("PSP command %#x refused: %s (status %#x)", command.command, refusal, refusal.status)
        self.history.append((command.command, response.status))
        self._gpu.mc_write(command.command_buffer + layout.COMMAND_RESPONSE, layout.LAYOUT.bytes(response))
        self._gpu.mc_write(command.fence_address, command.fence_value.to_bytes(4, "little"))

    def _is_silent(self, command: int) -> bool:
        planned = self._psp.faults.argument("psp-command-silent")
        return planned is not None and (planned == "" or int(planned, 0) == command)

    def _check_frame(self, command: DecodedCommand) -> None:
        planned = self._psp.faults.argument("psp-command-error")
        if planned is not None:
            which, _, status = planned.partition(":")
            if not which or int(which, 0) == command.command:
                raise Refused(int(status or "0xFFFF0000", 0), "planned fault")
        if command.command_buffer_size not in (0, layout.COMMAND_BUFFER_SIZE):
            raise Refused(TEE_BAD_PARAMETERS, f"command buffer size {command.command_buffer_size:#x}")
        if command.buffer_version not in COMMAND_VERSIONS:
            raise Refused(TEE_BAD_FORMAT, f"command buffer version {command.buffer_version}")
        if command.vmid or command.frame_type:
            raise Refused(TEE_BAD_PARAMETERS, f"VMID {command.vmid}, frame type {command.frame_type}")
        if command.reserved:
            raise Refused(TEE_BAD_FORMAT, "reserved fields of the ring frame or of the command header are not 0")

    def _handler(self, number: int) -> Callable[[DecodedCommand, Any], float]:
        handler = self._handlers.get(number)
        if handler is None:
            if number in {each.value for each in Command}:
                raise NotModelled(f"PSP command {Command(number).name} ({number:#x})")
            raise Refused(Status.UNKNOWN_COMMAND, "unknown command")
        return handler

    # --- the commands; each returns how long it takes on top (s) ---

    def _load_toc(self, command: DecodedCommand, response: Any) -> float:
        payload = layout.LAYOUT.parse("struct load_toc", command.payload)
        image = self._fetch(payload.toc_phy_addr_hi << 32 | payload.toc_phy_addr_lo, payload.toc_size)
        self._judge(image, check_image(image, image_ids=(SOS_IMAGE_IDS[SosPart.TOC],)))
        self.toc_size = self._numbers["tmr_size"]
        response.tmr_size = self.toc_size
        return self._copy_time(len(image))

    def _setup_tmr(self, command: DecodedCommand, response: Any) -> float:
        payload = layout.LAYOUT.parse("struct setup_tmr", command.payload)
        address = payload.buf_phy_addr_hi << 32 | payload.buf_phy_addr_lo
        physical = payload.system_phy_addr_hi << 32 | payload.system_phy_addr_lo
        if self.tmr is not None or not self.toc_size:
            raise Refused(TEE_BAD_STATE, "there is a TMR already" if self.tmr else "LOAD_TOC has to come first")
        if payload.flags & layout.TMR_FLAG_SRIOV:
            raise Refused(TEE_NOT_SUPPORTED, "SR-IOV TMR")
        if address % TMR_ALIGN or payload.buf_size < self.toc_size:
            raise Refused(TEE_BAD_PARAMETERS, f"TMR of {payload.buf_size:#x} bytes at {address:#x}, {self.toc_size:#x} are needed at a multiple of 1 MiB")
        offset = address - self._gpu.mc_base
        if not 0 <= offset <= self._gpu.vram_size - payload.buf_size:
            raise Refused(TEE_BAD_PARAMETERS, f"TMR at {address:#x} is not in VRAM")
        if payload.flags & layout.TMR_FLAG_VIRT_PHY_ADDR and physical != offset:
            raise Refused(TEE_BAD_PARAMETERS, f"physical address {physical:#x} of the TMR at MC address {address:#x}")
        self.tmr = (address, payload.buf_size)
        self._tmr_used = 0
        return 0.0

    def _destroy_tmr(self, command: DecodedCommand, response: Any) -> float:
        if self.tmr is None:
            raise Refused(TEE_BAD_STATE, "there is no TMR")
        self.tmr = None
        return 0.0

    def _load_ip_fw(self, command: DecodedCommand, response: Any) -> float:
        payload = layout.LAYOUT.parse("struct load_ip_fw", command.payload)
        kind = payload.fw_type
        if kind not in self._numbers["firmware_types"]:
            raise Refused(Status.BAD_FIRMWARE, f"firmware type {kind} does not exist on this chip")
        if self.tmr is None and kind != FirmwareType.SMU:
            raise Refused(TEE_BAD_STATE, f"firmware type {kind} before SETUP_TMR")
        image = self._fetch(payload.fw_phy_addr_hi << 32 | payload.fw_phy_addr_lo, payload.fw_size)
        self._judge(image, check_image(image, kind))
        address = 0
        if self.tmr is not None:
            start, size = self.tmr
            if self._tmr_used + len(image) > size:
                raise Refused(Status.BAD_FIRMWARE, f"{len(image):#x} bytes do not fit the TMR, {size - self._tmr_used:#x} are left")
            address = start + self._tmr_used
            self._gpu.mc_write(address, image)
            self._tmr_used += -(-len(image) // TMR_SLOT) * TMR_SLOT
        self.loaded[kind] = LoadedImage(image, address, is_simulated(image))
        response.fw_addr_lo = address & 0xFFFFFFFF
        response.fw_addr_hi = address >> 32
        if kind == FirmwareType.SMU:
            self._gpu.smu.start()
        return self._copy_time(len(image))

    def _autoload_rlc(self, command: DecodedCommand, response: Any) -> float:
        missing = [kind for kind in self._numbers["autoload_needs"] if kind not in self.loaded]
        if missing:
            raise Refused(TEE_BAD_STATE, f"firmware types {missing} are missing")
        self._gpu.reach("autoload")
        self._gpu.rlc.start_autoload()
        return 0.0

    def _spatial_partition(self, command: DecodedCommand, response: Any) -> float:
        mode = layout.LAYOUT.parse("struct spatial_part", command.payload).mode
        raise Refused(TEE_NOT_SUPPORTED, f"partition mode {mode}: this chip has one compute die")

    # --- shared ---

    def _fetch(self, address: int, size: int) -> bytes:
        if address % BUFFER_ALIGN:
            raise Refused(TEE_BAD_PARAMETERS, f"buffer at unaligned {address:#x}")
        if not 0 < size <= self._numbers["largest_image"]:
            raise Refused(Status.BAD_FIRMWARE, f"{size:#x} bytes")
        try:
            return self._gpu.mc_read(address, size)
        except Unreachable as error:
            raise Refused(TEE_BAD_PARAMETERS, str(error)) from error

    def _judge(self, image: bytes, fault: str) -> None:
        if fault:
            raise Refused(TEE_SECURITY if "signature" in fault else Status.BAD_FIRMWARE, fault)
        unknown = self.unknown_image(image)
        if unknown:
            raise Refused(TEE_SECURITY, unknown)

    def _copy_time(self, size: int) -> float:
        return size / float(self._numbers["command_rate"])
