"""Layouts and numbers of AMD firmware files. Pure data: shared by the parser, the PSP driver and the simulated PSP.

A file starts with the common header, then fields of its kind and header version, then (usually at 0x100) the microcode array.
Sources: public amdgpu headers (amdgpu_ucode.h, psp_gfx_if.h) and the published files themselves.
"""

from __future__ import annotations

from enum import IntEnum

from hw.structs import Layout

COMMON = "struct common_header"
COMMON_SIZE = 32
"""bytes; the stored CRC is the last field, and sums begin behind it"""

LAYOUT = Layout(
    """
    struct common_header {
        uint32_t size_bytes; uint32_t header_size_bytes;
        uint16_t header_version_major; uint16_t header_version_minor; uint16_t ip_version_major; uint16_t ip_version_minor;
        uint32_t ucode_version; uint32_t ucode_size_bytes; uint32_t ucode_array_offset_bytes; uint32_t crc32;
    };

    struct legacy_bin { uint32_t fw_version; uint32_t offset_bytes; uint32_t size_bytes; };
    struct typed_bin { uint32_t fw_type; uint32_t fw_version; uint32_t offset_bytes; uint32_t size_bytes; };

    struct sos_v1_0 { struct common_header common; struct legacy_bin sos; };
    struct sos_v1_1 { struct common_header common; struct legacy_bin sos; struct legacy_bin toc; struct legacy_bin kdb; };
    struct sos_v1_2 { struct common_header common; struct legacy_bin sos; struct legacy_bin res; struct legacy_bin kdb; };
    struct sos_v1_3 {
        struct common_header common; struct legacy_bin sos; struct legacy_bin toc; struct legacy_bin kdb; struct legacy_bin spl;
        struct legacy_bin rl; struct legacy_bin sys_drv_aux; struct legacy_bin sos_aux;
    };
    struct sos_v2_0 { struct common_header common; uint32_t bin_count; };
    struct sos_v2_1 { struct common_header common; uint32_t bin_count; uint32_t aux_bin_index; };

    struct ta_v1_0 {
        struct common_header common; struct legacy_bin xgmi; struct legacy_bin ras; struct legacy_bin hdcp; struct legacy_bin dtm;
        struct legacy_bin securedisplay;
    };

    struct smu_v1_0 { struct common_header common; uint32_t ucode_start_addr; };
    struct smu_v2_0 { struct common_header common; uint32_t ucode_start_addr; uint32_t ppt_offset_bytes; uint32_t ppt_size_bytes; };
    struct smu_v2_1 { struct common_header common; uint32_t ucode_start_addr; uint32_t pptable_count; uint32_t pptable_entry_offset; };
    struct pptable_entry { uint32_t id; uint32_t offset_bytes; uint32_t size_bytes; };

    struct sdma_v1_0 {
        struct common_header common; uint32_t feature_version; uint32_t change_version; uint32_t jt_offset; uint32_t jt_size;
    };
    struct sdma_v2_0 {
        struct common_header common; uint32_t feature_version; uint32_t ctx_size_bytes; uint32_t ctx_jt_offset; uint32_t ctx_jt_size;
        uint32_t ctl_offset_bytes; uint32_t ctl_size_bytes; uint32_t ctl_jt_offset; uint32_t ctl_jt_size;
    };
    struct sdma_v3_0 { struct common_header common; uint32_t feature_version; uint32_t ucode_offset_bytes; uint32_t ucode_size_bytes; };

    struct gfx_v1_0 { struct common_header common; uint32_t feature_version; uint32_t jt_offset; uint32_t jt_size; };
    struct gfx_v2_0 {
        struct common_header common; uint32_t feature_version; uint32_t ucode_size_bytes; uint32_t ucode_offset_bytes;
        uint32_t data_size_bytes; uint32_t data_offset_bytes; uint32_t ucode_start_addr_lo; uint32_t ucode_start_addr_hi;
    };
    struct mes_v1_0 {
        struct common_header common; uint32_t mes_ucode_version; uint32_t ucode_size_bytes; uint32_t ucode_offset_bytes;
        uint32_t data_version; uint32_t data_size_bytes; uint32_t data_offset_bytes; uint32_t ucode_start_addr_lo;
        uint32_t ucode_start_addr_hi; uint32_t data_start_addr_lo; uint32_t data_start_addr_hi;
    };
    struct imu_v1_0 {
        struct common_header common; uint32_t iram_size_bytes; uint32_t iram_offset_bytes; uint32_t dram_size_bytes;
        uint32_t dram_offset_bytes;
    };
    struct dmcu_v1_0 { struct common_header common; uint32_t intv_offset_bytes; uint32_t intv_size_bytes; };
    struct dmcub_v1_0 { struct common_header common; uint32_t inst_const_bytes; uint32_t bss_data_bytes; };

    struct rlc_v2_0 {
        struct common_header common; uint32_t feature_version; uint32_t jt_offset; uint32_t jt_size; uint32_t save_and_restore_offset;
        uint32_t clear_state_descriptor_offset; uint32_t avail_scratch_ram_locations; uint32_t reg_restore_list_size;
        uint32_t reg_list_format_start; uint32_t reg_list_format_separate_start; uint32_t starting_offsets_start;
        uint32_t reg_list_format_size_bytes; uint32_t reg_list_format_offset_bytes; uint32_t reg_list_size_bytes;
        uint32_t reg_list_offset_bytes; uint32_t reg_list_format_separate_size_bytes; uint32_t reg_list_format_separate_offset_bytes;
        uint32_t reg_list_separate_size_bytes; uint32_t reg_list_separate_offset_bytes;
    };
    struct rlc_v2_1 {
        struct rlc_v2_0 v2_0; uint32_t reg_list_format_direct_reg_list_length; uint32_t cntl_version; uint32_t cntl_feature_version;
        uint32_t cntl_size_bytes; uint32_t cntl_offset_bytes; uint32_t gpm_version; uint32_t gpm_feature_version;
        uint32_t gpm_size_bytes; uint32_t gpm_offset_bytes; uint32_t srm_version; uint32_t srm_feature_version;
        uint32_t srm_size_bytes; uint32_t srm_offset_bytes;
    };
    struct rlc_v2_2 {
        struct rlc_v2_1 v2_1; uint32_t iram_size_bytes; uint32_t iram_offset_bytes; uint32_t dram_size_bytes; uint32_t dram_offset_bytes;
    };
    struct rlc_v2_3 {
        struct rlc_v2_2 v2_2; uint32_t rlcp_version; uint32_t rlcp_feature_version; uint32_t rlcp_size_bytes; uint32_t rlcp_offset_bytes;
        uint32_t rlcv_version; uint32_t rlcv_feature_version; uint32_t rlcv_size_bytes; uint32_t rlcv_offset_bytes;
    };
    struct rlc_v2_4 {
        struct rlc_v2_3 v2_3; uint32_t global_tap_delays_size_bytes; uint32_t global_tap_delays_offset_bytes;
        uint32_t se0_tap_delays_size_bytes; uint32_t se0_tap_delays_offset_bytes; uint32_t se1_tap_delays_size_bytes;
        uint32_t se1_tap_delays_offset_bytes; uint32_t se2_tap_delays_size_bytes; uint32_t se2_tap_delays_offset_bytes;
        uint32_t se3_tap_delays_size_bytes; uint32_t se3_tap_delays_offset_bytes;
    };

    struct psp_image {
        uint8_t nonce[16]; char magic[4]; uint32_t signed_size_bytes; uint32_t reserved1[6]; uint32_t signature_present;
        uint32_t reserved2; uint8_t key_id[16]; uint32_t reserved3[4]; uint32_t image_id; uint32_t reserved4; uint32_t version;
        uint32_t reserved5[2]; uint32_t total_size_bytes; uint8_t reserved6[144];
    };
    """
)

P2S_TABLE_ID = 0x50325358
"""id ("P2SX") of a power table entry that the PSP takes as P2S_TABLE"""

PSP_IMAGE_MAGIC = b"$PS1"
PSP_IMAGE_HEADER_SIZE = 0x100
PSP_IMAGE_SIGNATURE_SIZE = 0x100
"""An image is header, signed body, signature: total_size_bytes = 0x200 + signed_size_bytes in all published gfx11 images."""


class SosPart(IntEnum):
    """Types of the parts in a psp_*_sos.bin container."""

    SOS = 1
    SYS_DRV = 2
    KDB = 3
    TOC = 4
    SPL = 5
    RL = 6
    SOC_DRV = 7
    INTF_DRV = 8
    DBG_DRV = 9
    RAS_DRV = 10
    IPKEYMGR_DRV = 11


class TaPart(IntEnum):
    """Types of the trusted applications in a psp_*_ta.bin container."""

    ASD = 1
    XGMI = 2
    RAS = 3
    HDCP = 4
    DTM = 5
    RAP = 6
    SECUREDISPLAY = 7
    XGMI_AUX = 8


class FirmwareType(IntEnum):
    """fw_type of the PSP command LOAD_IP_FW."""

    CP_ME = 1
    CP_PFP = 2
    CP_CE = 3
    CP_MEC = 4
    CP_MEC_ME1 = 5
    CP_MEC_ME2 = 6
    RLC_V = 7
    RLC_G = 8
    SDMA0 = 9
    SDMA1 = 10
    DMCU_ERAM = 11
    DMCU_ISR = 12
    VCN = 13
    SMU = 18
    RLC_RESTORE_LIST_GPM_MEM = 20
    RLC_RESTORE_LIST_SRM_MEM = 21
    RLC_RESTORE_LIST_SRM_CNTL = 22
    UVD1 = 23
    TOC = 24
    RLC_P = 25
    RLC_IRAM = 26
    GLOBAL_TAP_DELAYS = 27
    SE0_TAP_DELAYS = 28
    SE1_TAP_DELAYS = 29
    CP_MES = 33
    MES_STACK = 34
    RLC_SRM_DRAM = 35
    RLC_DRAM_BOOT = 48
    VCN0_RAM = 49
    VCN1_RAM = 50
    DMUB = 51
    SDMA2 = 52
    SDMA3 = 53
    SDMA4 = 54
    SDMA5 = 55
    SDMA6 = 56
    SDMA7 = 57
    VCN1 = 58
    CAP = 62
    SE2_TAP_DELAYS = 65
    SE3_TAP_DELAYS = 66
    REG_LIST = 67
    IMU_I = 68
    IMU_D = 69
    LSDMA = 70
    SDMA_UCODE_TH0 = 71
    SDMA_UCODE_TH1 = 72
    PPTABLE = 73
    TA = 75
    RS64_MES = 76
    RS64_MES_STACK = 77
    RS64_KIQ = 78
    RS64_KIQ_STACK = 79
    CP_MES_KIQ = 81
    MES_KIQ_STACK = 82
    RS64_PFP = 87
    RS64_ME = 88
    RS64_MEC = 89
    RS64_PFP_P0_STACK = 90
    RS64_PFP_P1_STACK = 91
    RS64_ME_P0_STACK = 92
    RS64_ME_P1_STACK = 93
    RS64_MEC_P0_STACK = 94
    RS64_MEC_P1_STACK = 95
    RS64_MEC_P2_STACK = 96
    RS64_MEC_P3_STACK = 97
    JPEG_RAM = 128
    P2S_TABLE = 129


IMAGE_IDS: dict[int, int] = {
    FirmwareType.RLC_V: 0x200A,
    FirmwareType.RLC_G: 0x2009,
    FirmwareType.SMU: 0x1001,
    FirmwareType.RLC_RESTORE_LIST_GPM_MEM: 0x200B,
    FirmwareType.RLC_RESTORE_LIST_SRM_MEM: 0x200C,
    FirmwareType.RLC_P: 0x200F,
    FirmwareType.RLC_IRAM: 0x2016,
    FirmwareType.RLC_DRAM_BOOT: 0x2017,
    FirmwareType.IMU_I: 0x203B,
    FirmwareType.IMU_D: 0x203C,
    FirmwareType.SDMA_UCODE_TH0: 0x203E,
    FirmwareType.SDMA_UCODE_TH1: 0x203F,
    FirmwareType.RS64_PFP: 0x2044,
    FirmwareType.RS64_PFP_P0_STACK: 0x2045,
    FirmwareType.RS64_ME: 0x2046,
    FirmwareType.RS64_ME_P0_STACK: 0x2047,
    FirmwareType.RS64_MEC: 0x2048,
    FirmwareType.RS64_MEC_P0_STACK: 0x2049,
}
"""low 16 bits of psp_image.image_id by firmware type, as published gfx11 files carry them"""

SOS_IMAGE_IDS: dict[int, int] = {
    SosPart.SOS: 0x0009,
    SosPart.SYS_DRV: 0x000A,
    SosPart.KDB: 0x004F,
    SosPart.TOC: 0x200E,
    SosPart.SPL: 0x0056,
    SosPart.RL: 0x0135,
    SosPart.SOC_DRV: 0x014A,
    SosPart.INTF_DRV: 0x014C,
    SosPart.DBG_DRV: 0x014B,
    SosPart.RAS_DRV: 0x0152,
}
"""the same for the parts of a psp_*_sos.bin container"""


def firmware_name(number: int) -> str:
    """Name of a firmware type for messages; the bare number where it has none."""
    try:
        return f"{FirmwareType(number).name} ({number})"
    except ValueError:
        return f"type {number}"
