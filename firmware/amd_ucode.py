"""Taking AMD firmware files apart: header checked, every part named, with the types under which the PSP loads it.

    ucode = parse("gc_11_0_0_mec.bin", data)
    ucode.part("RS64_MEC").data, ucode.load_list, ucode.start_address

The kind of a file follows from its name; its layout from the header version. Anything that does not fit is FirmwareInvalid with
the file, the field and its value.
"""

from __future__ import annotations

import logging
import re
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from firmware.amd_cuts import LAYOUTS, WITH_START, Cut, Cutter, UcodeFile
from firmware.amd_layouts import COMMON, COMMON_SIZE, LAYOUT
from firmware.amd_sums import STALE_SUMS
from hw.errors import FirmwareInvalid

log = logging.getLogger(__name__)

Checksum = Literal["whole", "payload", "head", "published", "unverifiable"]
HEAD_END = 512
"""many published files carry the sum of their bytes 32..511 only"""


@dataclass(frozen=True)
class Part:
    """One piece of a firmware file."""

    name: str
    data: bytes
    types: tuple[int, ...] = ()
    """types under which LOAD_IP_FW takes these bytes, one command each; empty for parts that get there another way"""
    version: int = 0
    number: int = 0
    """type in the container's own numbering (sos, ta); 0 elsewhere"""
    loaded: bool = True
    """False for parts that the boot sequence of current chips leaves out"""


@dataclass(frozen=True)
class Ucode:
    """A firmware file that passed all checks."""

    name: str
    kind: str
    header_version: tuple[int, int]
    ip_version: tuple[int, int]
    version: int
    parts: tuple[Part, ...]
    checksum: Checksum
    """which bytes the stored CRC was found to cover; "unverifiable" where published files of the kind carry a meaningless one"""
    start_address: int = 0
    """where an RS64 engine begins (byte address); 0 for other kinds"""

    def part(self, name: str) -> Part:
        """A part by name. Raises FirmwareInvalid when the file has none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise FirmwareInvalid(f"{self.name} has no part {name}", read="parts " + (", ".join(part.name for part in self.parts) or "none"))

    def has(self, name: str) -> bool:
        return any(part.name == name for part in self.parts)

    @property
    def load_list(self) -> list[Part]:
        """The parts for LOAD_IP_FW, in the order in which they are loaded."""
        return [part for part in self.parts if part.loaded and part.types]


_KINDS: tuple[tuple[str, str, str], ...] = (
    (r"psp_\d+_\d+_\d+_sos|.*_sos", "sos", ""),
    (r".*_toc", "toc", ""),
    (r".*_asd", "asd", ""),
    (r".*_ta", "ta", ""),
    (r".*_pfp(_\d)?", "gfx", "PFP"),
    (r".*_ce(_\d)?", "gfx", "CE"),
    (r".*_mec2(_\d)?", "gfx", "MEC2"),
    (r".*_mec(_\d)?", "gfx", "MEC"),
    (r".*_me(_\d)?", "gfx", "ME"),
    (r".*_mes1", "mes", "KIQ"),
    (r".*_mes(_2)?", "mes", "MES"),
    (r".*_imu", "imu", ""),
    (r".*_rlc(_am4|_\d)?", "rlc", ""),
    (r"sdma_\d+_\d+_\d+|.*_sdma1?", "sdma", ""),
    (r"smu_\d+_\d+_\d+|.*_smc(_sk)?", "smu", ""),
    (r".*_dmcub", "dmcub", ""),
    (r".*_dmcu", "dmcu", ""),
    (r"vcn_.*|.*_vcn", "vcn", ""),
)


def kind_of(name: str) -> tuple[str, str]:
    """(kind, role) of a firmware file by its name. Raises FirmwareInvalid for names of no known kind."""
    stem = name.rsplit("/", 1)[-1].removesuffix(".bin").removesuffix("_kicker")
    for pattern, kind, role in _KINDS:
        if re.fullmatch(pattern, stem):
            return kind, role
    raise FirmwareInvalid(f"{name}: no firmware of a known kind is called that", means="the kind of a firmware file follows from its name, e.g. gc_11_0_0_mec.bin")


def parse(name: str, data: bytes, *, ip_major: int | None = None) -> Ucode:
    """Take a firmware file apart.

    name: the file's name. data: its (decompressed) bytes. ip_major: major version of the block that it must be for, unchecked when
    None. Raises FirmwareInvalid naming file, field and value.
    """
    kind, role = kind_of(name)
    if len(data) < COMMON_SIZE:
        raise FirmwareInvalid(f"{name} is too short for a firmware header of {COMMON_SIZE} bytes", read=f"{len(data)} bytes")
    common = LAYOUT.parse(COMMON, data)
    version = (int(common.header_version_major), int(common.header_version_minor))
    ctype, cut = _layout_of(name, kind, version)
    _check_sizes(name, data, common, LAYOUT.sizeof(ctype))
    if ip_major is not None and common.ip_version_major != ip_major:
        raise FirmwareInvalid(
            f"{name}: ip_version_major {common.ip_version_major} is not {ip_major}",
            read=f"ip version {common.ip_version_major}.{common.ip_version_minor}",
            means="the file belongs to another generation of chips",
        )
    checksum = _check_sum(name, kind, data, common)
    header = LAYOUT.parse(ctype, data, what=f"header of {name}")
    file = UcodeFile(name, data, header, common, version[1], role)
    parts = tuple(_take(file, piece) for piece in cut(file) if piece.size)
    start = int(header.ucode_start_addr_hi) << 32 | int(header.ucode_start_addr_lo) if ctype in WITH_START else 0
    return Ucode(name, kind, version, (int(common.ip_version_major), int(common.ip_version_minor)), int(common.ucode_version), parts, checksum, start)


def _check_sizes(name: str, data: bytes, common: Any, needed: int) -> None:
    size, array, length = int(common.size_bytes), int(common.ucode_array_offset_bytes), int(common.ucode_size_bytes)
    if size > len(data):
        raise FirmwareInvalid(f"{name}: size_bytes {size:#x} is more than the file has", read=f"{len(data):#x} bytes", means="the file was cut short")
    if array < needed or array > size:
        raise FirmwareInvalid(f"{name}: ucode_array_offset_bytes {array:#x} lies outside the bytes behind the header", read=f"header {needed:#x} bytes, size_bytes {size:#x}")
    if array + length > size:
        raise FirmwareInvalid(f"{name}: ucode_size_bytes {length:#x} at {array:#x} runs past the end of the file", read=f"size_bytes {size:#x}")


def _check_sum(name: str, kind: str, data: bytes, common: Any) -> Checksum:
    """Which bytes the stored CRC-32 covers. Published files are not of one mind; any of the usual ranges is accepted."""
    stored = int(common.crc32)
    array, length = int(common.ucode_array_offset_bytes), int(common.ucode_size_bytes)
    whole = zlib.crc32(data[COMMON_SIZE:])
    if whole == stored:
        return "whole"
    published = STALE_SUMS.get(stored)
    if published is not None:
        if published != whole:
            raise FirmwareInvalid(
                f"{name}: crc32 {stored:#010x} is that of a published file with other content",
                read=f"sum of the bytes {whole:#010x}, of the published file {published:#010x}",
                means="the file is damaged",
            )
        return "published"
    if zlib.crc32(data[array : array + length]) == stored:
        return "payload"
    if len(data) >= HEAD_END and zlib.crc32(data[COMMON_SIZE:HEAD_END]) == stored:
        return "head"
    if kind in _OFTEN_STALE:
        log.info("%s: the stored sum %#010x covers no known part of the file; whether it is intact will show when the PSP checks its signature", name, stored)
        return "unverifiable"
    raise FirmwareInvalid(f"{name}: crc32 {stored:#010x} does not fit the file's content", read=f"sum of the bytes {whole:#010x}", means="the file is damaged")


_OFTEN_STALE = ("rlc", "smu")
"""Of these kinds most published files carry a sum that was taken before the file was complete (see amd_sums.py)."""


def _take(file: UcodeFile, cut: Cut) -> Part:
    if cut.offset < 0 or cut.offset + cut.size > len(file.data):
        raise FirmwareInvalid(f"{file.name}: part {cut.name} of {cut.size:#x} bytes at {cut.offset:#x} runs past the end of the file", read=f"{len(file.data):#x} bytes")
    return Part(cut.name, file.data[cut.offset : cut.offset + cut.size], cut.types, cut.version, cut.number, cut.loaded)


def _layout_of(name: str, kind: str, version: tuple[int, int]) -> tuple[str, Cutter]:
    found = LAYOUTS.get((kind, *version))
    if found is None:
        known = ", ".join(f"{major}.{minor}" for of_kind, major, minor in sorted(LAYOUTS) if of_kind == kind)
        raise FirmwareInvalid(
            f"{name}: header_version {version[0]}.{version[1]} of a {kind} file is unknown",
            read=f"known versions {known}",
            means="the file is newer than this toolkit, of another kind than its name says, or not firmware at all",
        )
    return found
