"""IP discovery binary: the description of itself that a GPU keeps in the top of its memory.

Addresses of blocks ("bases") are dword indexes. Checksums are sums of bytes modulo 2^16. Source: public discovery headers of amdgpu.
"""

from __future__ import annotations

from hw.structs import Layout

OFFSET_FROM_END = 64 << 10
"""bytes between the reported end of VRAM and the binary"""
READ_SIZE = 10 << 10
"""bytes of the binary that a driver reads"""

BINARY_SIGNATURE = 0x28211407
IP_SIGNATURE = 0x53445049
"""'IPDS'"""
HARVEST_SIGNATURE = 0x56524148
"""'HARV'"""
GC_TABLE_ID = 0x4347
MALL_TABLE_ID = 0x4C4C414D
VCN_TABLE_ID = 0x004E4356
NPS_TABLE_ID = 0x0053504E

TABLES = ("IP_DISCOVERY", "GC", "HARVEST_INFO", "VCN_INFO", "MALL_INFO", "NPS_INFO")
"""order of table_list in the binary header"""
IP_DISCOVERY, GC, HARVEST_INFO, VCN_INFO, MALL_INFO, NPS_INFO = range(6)

CHECKSUM_FROM = 10
"""first byte that the binary's checksum covers"""
HARVEST_SIZE = 136
HARVEST_ENTRIES = 32
MAX_DIES = 16
IP_VERSIONS = range(1, 5)
"""versions of the IP table with a known entry format"""
WIDE_BASES_VERSION = 4
"""first IP table version whose flags byte may announce 64-bit bases"""
WIDE_BASES_FLAG = 1 << 0

LAYOUT = Layout(
    """
    struct table_info { uint16_t offset; uint16_t checksum; uint16_t size; uint16_t padding; };
    struct binary_header {
        uint32_t binary_signature; uint16_t version_major; uint16_t version_minor; uint16_t binary_checksum; uint16_t binary_size;
        struct table_info table_list[6];
    };
    struct die_info { uint16_t die_id; uint16_t die_offset; };
    struct ip_discovery_header {
        uint32_t signature; uint16_t version; uint16_t size; uint32_t id; uint16_t num_dies; struct die_info die_info[16];
        uint8_t flags; uint8_t reserved;
    };
    struct die_header { uint16_t die_id; uint16_t num_ips; };
    struct ip_entry { uint16_t hw_id; uint8_t instance_number; uint8_t num_base_address; uint8_t major; uint8_t minor; uint8_t revision; uint8_t variant; };
    struct harvest_entry { uint16_t hw_id; uint8_t instance; uint8_t reserved; };
    struct harvest_table { uint32_t signature; uint32_t version; struct harvest_entry list[32]; };
    struct gc_header { uint32_t table_id; uint16_t version_major; uint16_t version_minor; uint32_t size; };
    """
)

HW_IDS = {
    1: "MP1",
    3: "THM",
    4: "SMUIO",
    6: "CLKA",
    10: "PWR",
    11: "GC",
    12: "VCN",
    21: "VPE",
    34: "MMHUB",
    35: "ATHUB",
    40: "OSSSYS",
    41: "HDP",
    42: "SDMA0",
    43: "SDMA1",
    44: "ISP",
    46: "DF",
    68: "SDMA2",
    69: "SDMA3",
    70: "PCIE",
    91: "LSDMA",
    108: "NBIO",
    150: "UMC",
    200: "XGMI",
    255: "MP0",
    271: "DMU",
}
"""names of the blocks by hardware id; 12 is also UVD, 108 also called NBIF"""

_GC_V1_0 = (
    "num_se num_wgp0_per_sa num_wgp1_per_sa num_rb_per_se num_gl2c num_gprs num_max_gs_thds gs_table_depth gsprim_buff_depth parameter_cache_depth "
    "double_offchip_lds_buffer wave_size max_waves_per_simd max_scratch_slots_per_cu lds_size num_sc_per_se num_sa_per_se num_packer_per_sc num_gl2a"
)
_GC_V1_1 = "num_tcp_per_sa num_sdp_interface num_tcps"
_GC_V1_2 = (
    "num_tcp_per_wgp tcp_l1_size num_sqc_per_wgp l1_instruction_cache_size_per_sqc l1_data_cache_size_per_sqc gl1c_per_sa gl1c_size_per_instance gl2c_per_gpu"
)
_GC_V1_3 = (
    "tcp_size_per_cu tcp_cache_line_size instruction_cache_size_per_sqc instruction_cache_line_size scalar_data_cache_size_per_sqc "
    "scalar_data_cache_line_size tcc_size tcc_cache_line_size"
)
_GC_V2_0 = (
    "num_se num_cu_per_sh num_sh_per_se num_rb_per_se num_tccs num_gprs num_max_gs_thds gs_table_depth gsprim_buff_depth parameter_cache_depth "
    "double_offchip_lds_buffer wave_size max_waves_per_simd max_scratch_slots_per_cu lds_size num_sc_per_se num_packer_per_sc"
)
_GC_V2_1 = (
    "num_tcp_per_sh tcp_size_per_cu num_sdp_interface num_cu_per_sqc instruction_cache_size_per_sqc scalar_data_cache_size_per_sqc tcc_size"
)

_GC_FIELDS: dict[int, tuple[str, ...]] = {
    1: (_GC_V1_0, _GC_V1_1, _GC_V1_2, _GC_V1_3),
    2: (_GC_V2_0, _GC_V2_1),
}


def gc_info_fields(major: int, minor: int) -> tuple[str, ...]:
    """Names of the dwords behind the GC table's header, in order. Minors only append; an unknown minor is read as the highest known one. KeyError for an unknown major."""
    groups = _GC_FIELDS[major]
    return tuple(" ".join(groups[: minor + 1]).split())
