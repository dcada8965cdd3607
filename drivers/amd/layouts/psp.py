"""Security processor (PSP, block MP0): boot loader, secure OS (sOS), command ring. Firmware types: firmware/amd_layouts.py.

Mailbox registers are MP0_SMN_C2PMSG_n. Addresses handed over are MC addresses. Source: public amdgpu headers (psp_gfx_if, amdgpu_ucode).
"""

from __future__ import annotations

from enum import IntEnum

from firmware.amd_layouts import FirmwareType
from hw.structs import Layout


class BootLoaderCommand(IntEnum):
    """Values of C2PMSG_35, the boot loader's mailbox; the argument, address >> 20, is in C2PMSG_36."""

    LOAD_SYS_DRV = 0x00010000
    LOAD_SOS = 0x00020000
    LOAD_KEY_DATABASE = 0x00080000
    LOAD_SOC_DRV = 0x000B0000
    LOAD_DBG_DRV = 0x000C0000
    LOAD_INTF_DRV = 0x000D0000
    LOAD_RAS_DRV = 0x000E0000
    LOAD_IPKEYMGR_DRV = 0x000F0000
    DRAM_LONG_TRAIN = 0x00100000
    DRAM_SHORT_TRAIN = 0x00200000
    LOAD_TOS_SPL_TABLE = 0x10000000


MESSAGE_BUFFER_ALIGN_SHIFT = 20
"""the boot loader is told addresses in units of 1 MiB"""
MESSAGE_BUFFER_SIZE = 1 << 20

READY = 1 << 31
"""bit 31 of C2PMSG_33, _35, _64, _115: ready or done"""
STATUS_MASK = 0xFFFF
"""bits 15:0 of the same registers: error status"""
READY_AND_STATUS = READY | STATUS_MASK


class RingCommand(IntEnum):
    """Values of C2PMSG_64, the control mailbox of the sOS."""

    INIT_RBI_RING = 0x00010000
    INIT_GPCOM_RING = 0x00020000
    DESTROY_RINGS = 0x00030000
    CAN_INIT_RINGS = 0x00040000
    ENABLE_INT = 0x00050000
    DISABLE_INT = 0x00060000
    MODE1_RESET = 0x00070000
    GBR_IH_SET = 0x00080000
    CONSUME = 0x00090000
    DESTROY_GPCOM_RING = 0x000C0000


RING_SIZE = 0x10000
"""bytes of the command ring that this driver makes"""
FRAME_SIZE = 64
COMMAND_BUFFER_SIZE = 1024
COMMAND_PAYLOAD = 28
"""offset of the command's own fields in the command buffer"""
COMMAND_RESPONSE = 864
RESPONSE_SIZE = 96


class Command(IntEnum):
    """cmd_id of a command buffer."""

    LOAD_TA = 0x01
    UNLOAD_TA = 0x02
    INVOKE_CMD = 0x03
    LOAD_ASD = 0x04
    SETUP_TMR = 0x05
    LOAD_IP_FW = 0x06
    DESTROY_TMR = 0x07
    SAVE_RESTORE = 0x08
    SETUP_VMR = 0x09
    DESTROY_VMR = 0x0A
    PROG_REG = 0x0B
    GET_FW_ATTESTATION = 0x0F
    LOAD_TOC = 0x20
    AUTOLOAD_RLC = 0x21
    BOOT_CFG = 0x22
    SRIOV_SPATIAL_PART = 0x27


TMR_FLAG_SRIOV = 1 << 0
TMR_FLAG_VIRT_PHY_ADDR = 1 << 1
"""SETUP_TMR also carries the system physical address"""

LAYOUT = Layout(
    """
    struct ring_frame {
        uint32_t cmd_buf_addr_lo; uint32_t cmd_buf_addr_hi; uint32_t cmd_buf_size;
        uint32_t fence_addr_lo; uint32_t fence_addr_hi; uint32_t fence_value;
        uint32_t sid_lo; uint32_t sid_hi;
        uint8_t vmid; uint8_t frame_type; uint8_t reserved1[2]; uint32_t reserved2[7];
    };
    struct command_header { uint32_t buf_size; uint32_t buf_version; uint32_t cmd_id; uint32_t rbi[4]; };
    struct load_ip_fw { uint32_t fw_phy_addr_lo; uint32_t fw_phy_addr_hi; uint32_t fw_size; uint32_t fw_type; };
    struct load_toc { uint32_t toc_phy_addr_lo; uint32_t toc_phy_addr_hi; uint32_t toc_size; };
    struct setup_tmr {
        uint32_t buf_phy_addr_lo; uint32_t buf_phy_addr_hi; uint32_t buf_size; uint32_t flags;
        uint32_t system_phy_addr_lo; uint32_t system_phy_addr_hi;
    };
    struct spatial_part { uint32_t mode; uint32_t override_ips; uint32_t override_xcds_avail; uint32_t override_this_aid; };
    struct response { uint32_t status; uint32_t session_id; uint32_t fw_addr_lo; uint32_t fw_addr_hi; uint32_t tmr_size; uint32_t reserved[11]; uint32_t data[8]; };
    """
)


class Status(IntEnum):
    """Known values of response.status."""

    OK = 0
    BAD_FIRMWARE = 0x0000000F
    """wrong type or size (as the simulated PSP answers it; real codes vary by firmware)"""
    UNKNOWN_COMMAND = 0x00000100
    TA_REFUSED = 0x00000117
    NOT_SUPPORTED = 0xFFFF000A


def firmware_name(number: int) -> str:
    """Name of a firmware type for messages; the bare number where it has none."""
    try:
        return f"{FirmwareType(number).name} ({number})"
    except ValueError:
        return f"type {number}"
