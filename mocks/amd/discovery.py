"""The discovery image that the boot firmware puts 64 KiB below the end of VRAM, built from the profile."""

from __future__ import annotations

import struct
from typing import Any

from drivers.amd.layouts import discovery as layout
from mocks.faults import FaultPlan

IP_TABLE_AT = 0x40
DIE_HEADER_AT = IP_TABLE_AT + 80
TABLE_ALIGN = 16


def build_image(profile: dict[str, Any]) -> bytes:
    """The binary with every size and checksum right. profile: the `discovery` part of a GPU's profile."""
    entries = b"".join(_ip_entry(ip) for ip in profile["ips"])
    ip_size = DIE_HEADER_AT - IP_TABLE_AT + 4 + len(entries)
    ip_header = struct.pack("<IHHIH", layout.IP_SIGNATURE, profile["ip_version"], ip_size, 0, 1)
    ip_header += struct.pack("<HH", 0, DIE_HEADER_AT) + bytes(4 * (layout.MAX_DIES - 1)) + bytes(2)
    ip_table = ip_header + struct.pack("<HH", 0, len(profile["ips"])) + entries

    gc_at = _align(IP_TABLE_AT + len(ip_table))
    gc = profile["gc"]
    gc_table = struct.pack("<IHHI", layout.GC_TABLE_ID, *gc["version"], 12 + 4 * len(gc["values"])) + struct.pack(f"<{len(gc['values'])}I", *gc["values"])

    harvest_at = _align(gc_at + len(gc_table))
    harvest = b"".join(struct.pack("<HBB", hw_id, instance, 0) for hw_id, instance in profile["harvest"])
    harvest_table = struct.pack("<II", layout.HARVEST_SIGNATURE, 0) + harvest.ljust(4 * layout.HARVEST_ENTRIES, b"\0")

    image = bytearray(harvest_at + len(harvest_table))
    tables = [(IP_TABLE_AT, ip_table), (gc_at, gc_table), (harvest_at, harvest_table)]
    header = struct.pack("<IHHHH", layout.BINARY_SIGNATURE, *profile["binary_version"], 0, len(image))
    for at, content in tables:
        image[at : at + len(content)] = content
        header += struct.pack("<HHHH", at, checksum(content), len(content), 0)
    image[: len(header)] = header
    struct.pack_into("<H", image, 8, checksum(image[layout.CHECKSUM_FROM :]))
    return bytes(image)


def damaged(image: bytes, faults: FaultPlan) -> bytes:
    """The image with what a fault plan does to it."""
    result = bytearray(image)
    if faults.active("discovery-magic"):
        result[0:4] = b"\xde\xad\xbe\xef"
    if faults.active("discovery-checksum"):
        result[DIE_HEADER_AT + 8] ^= 0x10
    if faults.active("discovery-size"):
        struct.pack_into("<H", result, 10, 0xFFF0)
    return bytes(result)


def checksum(data: bytes | bytearray) -> int:
    """Sum of the bytes modulo 2^16."""
    return sum(data) & 0xFFFF


def _ip_entry(ip: dict[str, Any]) -> bytes:
    return struct.pack("<HBB4B", ip["hw_id"], ip["instance"], len(ip["bases"]), *ip["version"], 0) + struct.pack(f"<{len(ip['bases'])}I", *ip["bases"])


def _align(offset: int) -> int:
    return -(-offset // TABLE_ALIGN) * TABLE_ALIGN
