"""Interrupt ring entries (block OSSSYS), clients and sources of the gfx11 generation ("soc21").

An entry is 8 dwords; the ring's pointers are byte offsets. Source: public amdgpu headers (soc21_ih_clientid, ivsrcid).
"""

from __future__ import annotations

from typing import NamedTuple

ENTRY_SIZE = 32
"""bytes"""
ENTRY_DWORDS = 8


class Entry(NamedTuple):
    """One interrupt, decoded."""

    client_id: int
    source_id: int
    ring_id: int
    vmid: int
    vmid_type: int
    """0 graphics hub, 1 multimedia hub"""
    timestamp: int
    """48 bits"""
    timestamp_source: int
    pasid: int
    node_id: int
    data: tuple[int, int, int, int]
    """the four context id dwords"""


def decode_entry(words: tuple[int, ...] | list[int]) -> Entry:
    """An entry from its eight dwords."""
    first, low, high, process = words[:4]
    return Entry(
        client_id=first & 0xFF,
        source_id=first >> 8 & 0xFF,
        ring_id=first >> 16 & 0xFF,
        vmid=first >> 24 & 0xF,
        vmid_type=first >> 31,
        timestamp=low | (high & 0xFFFF) << 32,
        timestamp_source=high >> 31,
        pasid=process & 0xFFFF,
        node_id=process >> 16 & 0xFF,
        data=(words[4], words[5], words[6], words[7]),
    )


def encode_entry(entry: Entry) -> tuple[int, ...]:
    """The eight dwords of an entry."""
    return (
        entry.client_id | entry.source_id << 8 | entry.ring_id << 16 | entry.vmid << 24 | entry.vmid_type << 31,
        entry.timestamp & 0xFFFFFFFF,
        entry.timestamp >> 32 & 0xFFFF | entry.timestamp_source << 31,
        entry.pasid | entry.node_id << 16,
        *entry.data,
    )


CLIENTS = {
    0: "IH",
    2: "ATHUB",
    3: "BIF",
    4: "DCN",
    5: "ISP",
    6: "MP3",
    7: "RLC",
    10: "GFX",
    11: "IMU",
    14: "VCN1",
    15: "THM",
    16: "VCN",
    17: "VPE1",
    18: "VMC",
    20: "GRBM_CP",
    22: "ROM_SMUIO",
    23: "DF",
    24: "VPE",
    25: "PWR",
    26: "LSDMA",
    30: "MP0",
    31: "MP1",
}
CLIENT_GFX = 10
CLIENT_VMC = 18
CLIENT_GRBM_CP = 20
GFX_CLIENTS = (CLIENT_GFX, CLIENT_GRBM_CP)
"""clients whose sources are those of GFX_SOURCES"""

GFX_SOURCES = {
    0: "UTCL2_FAULT",
    1: "UTCL2_DATA_POISONING",
    10: "MEM_ACCESS_MONITOR",
    48: "SDMA_ATOMIC_DONE",
    49: "SDMA_TRAP",
    50: "SDMA_SRBM_WRITE",
    51: "SDMA_CONTEXT_EMPTY",
    52: "SDMA_PREEMPT",
    53: "SDMA_IB_PREEMPT",
    54: "SDMA_INVALID_DOORBELL",
    55: "SDMA_QUEUE_HANG",
    56: "SDMA_ATOMIC_TIMEOUT",
    57: "SDMA_POLL_TIMEOUT",
    58: "SDMA_PAGE_TIMEOUT",
    59: "SDMA_PAGE_NULL",
    60: "SDMA_PAGE_FAULT",
    61: "SDMA_VM_HOLE",
    62: "SDMA_ECC",
    63: "SDMA_FROZEN",
    64: "SDMA_SRAM_ECC",
    65: "SDMA_SEM_INCOMPLETE_TIMEOUT",
    66: "SDMA_SEM_WAIT_FAIL_TIMEOUT",
    67: "SDMA_FENCE",
    128: "RLC_GC_FED",
    177: "CP_GENERIC",
    180: "CP_RESERVED_BIT_ERROR",
    181: "CP_EOP_INTERRUPT",
    183: "CP_BAD_OPCODE_ERROR",
    184: "CP_PRIV_REG_FAULT",
    185: "CP_PRIV_INSTR_FAULT",
    186: "CP_WAIT_MEM_SEM_FAULT",
    187: "CP_CTX_EMPTY",
    188: "CP_CTX_BUSY",
    192: "CP_ME_WAIT_REG_MEM_POLL_TIMEOUT",
    193: "CP_SIG_INCOMPLETE",
    194: "CP_PREEMPT_ACK",
    195: "CP_GPF",
    196: "CP_GDS_ALLOC_ERROR",
    197: "CP_ECC_ERROR",
    199: "CP_COMPUTE_QUERY_STATUS",
    200: "CP_VM_DOORBELL",
    201: "CP_FUE_ERROR",
    202: "RLC_STRM_PERF_MONITOR",
    232: "GRBM_RD_TIMEOUT_ERROR",
    233: "GRBM_REG_GUI_IDLE",
    239: "SQ_INTERRUPT",
}
UTCL2_FAULT = 0
SDMA_TRAP = 49
SDMA_QUEUE_HANG = 55
CP_BAD_OPCODE = 183
CP_EOP = 181
SQ_INTERRUPT = 239

SQ_ENCODINGS = ("auto", "wave", "error")
"""bits 7:6 of context id 1 of an SQ interrupt"""
SQ_ENCODING_ERROR = 2
SQ_ERRORS = {0: "EDC_FUE", 1: "illegal instruction", 2: "memory violation", 3: "EDC_FED"}
"""bits 24:21 of context id 0 of an SQ interrupt with encoding "error" """

FAULT_WRITE = 1 << 5
"""context id 1 of a UTCL2 fault: the access was a write; bits 3:0 are bits 47:44 of the address, context id 0 its bits 43:12"""

HUB_CLIENTS_GFX = {
    0: "CB/DB",
    2: "GE1",
    3: "GE2",
    4: "CPF (command processor fetch)",
    5: "CPC (compute command processor)",
    6: "CPG",
    7: "RLC",
    8: "TCP (vector memory)",
    9: "SQC instruction fetch",
    10: "SQC data (scalar memory)",
    11: "SQG",
    13: "SDMA0",
    14: "SDMA1",
    15: "GCR",
    16: "SDMA2",
    17: "SDMA3",
}
"""client ids (cid) of the graphics hub's fault status"""
WALKER_ERRORS = ("none", "range", "PDE0", "PDE1", "PDE2", "translate further", "NACK", "dummy page")
PERMISSION_FAULTS = ("entry not valid", "read not allowed", "write not allowed", "execute not allowed")
"""bits of permission_faults in order"""
