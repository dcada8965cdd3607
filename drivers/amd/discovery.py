"""The IP discovery binary: which blocks a GPU has, their versions, their register bases, and what was fused off.

`read()` fetches it from the top of VRAM, `parse()` checks and decodes it. Layout and numbers: `layouts/discovery.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drivers.amd.layouts import discovery as layout
from hw.errors import DiscoveryInvalid, UnknownHardware

log = logging.getLogger(__name__)

Version = tuple[int, int, int]

_ALIASES = {"NBIF": "NBIO"}
_SHOWN = 16
"""bytes of the damaged place that an error shows"""

_MEANS_ONES = "all ones: nothing answered there; the memory is not trained yet, or the device fell off the bus"
_MEANS_ZEROS = "all zeros: the card's own firmware has not finished its start, or the memory was wiped"


@dataclass(frozen=True)
class IpEntry:
    """One block of the GPU."""

    name: str
    """as in layouts.discovery.HW_IDS, "HWIDn" where that has no name"""
    hw_id: int
    instance: int
    version: Version
    bases: tuple[int, ...]
    """dword index of each register segment"""


@dataclass(frozen=True)
class GcInfo:
    """The graphics block's own numbers; `info["num_se"]` reads one field."""

    version: tuple[int, int]
    values: dict[str, int]

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    @property
    def cus_per_array(self) -> int:
        """Compute units of one shader array."""
        if self.version[0] >= 2:
            return self["num_cu_per_sh"]
        return 2 * (self["num_wgp0_per_sa"] + self["num_wgp1_per_sa"])

    @property
    def arrays_per_engine(self) -> int:
        return self["num_sh_per_se"] if self.version[0] >= 2 else self["num_sa_per_se"]


@dataclass(frozen=True)
class Discovery:
    """What a GPU says about itself."""

    entries: tuple[IpEntry, ...]
    harvested: frozenset[tuple[int, int]]
    """(hw_id, instance) of blocks that are fused off"""
    gc_info: GcInfo
    size: int
    """bytes of the binary"""
    warnings: tuple[str, ...] = ()
    """failed checks that were let pass"""
    _by_name: dict[str, list[IpEntry]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for entry in self.entries:
            if (entry.hw_id, entry.instance) not in self.harvested:
                self._by_name.setdefault(entry.name, []).append(entry)

    def __contains__(self, block: str) -> bool:
        return _ALIASES.get(block, block) in self._by_name

    def instances(self, block: str) -> list[IpEntry]:
        """The living instances of a block, in the table's order. Raises UnknownHardware when there is none."""
        found = self._by_name.get(_ALIASES.get(block, block))
        if not found:
            raise UnknownHardware(f"the GPU lists no {block}", read=f"blocks: {', '.join(self._by_name)}")
        return found

    def version(self, block: str) -> Version:
        """(major, minor, revision); of several instances the last one listed."""
        return self.instances(block)[-1].version

    def bases(self, block: str, instance: int = 0) -> tuple[int, ...]:
        """Register segments of one instance, dword indexes."""
        for entry in self.instances(block):
            if entry.instance == instance:
                return entry.bases
        raise UnknownHardware(f"the GPU lists no instance {instance} of {block}", read=f"instances: {', '.join(str(each.instance) for each in self.instances(block))}")

    @property
    def xcc_count(self) -> int:
        """Living graphics dies."""
        return len(self.instances("GC"))

    @property
    def array_count(self) -> int:
        """Shader arrays of the whole GPU."""
        return self.gc_info.arrays_per_engine * self.gc_info["num_se"] * self.xcc_count

    @property
    def cu_count(self) -> int:
        return self.gc_info.cus_per_array * self.array_count

    @property
    def simd_count(self) -> int:
        """Two SIMDs a compute unit."""
        return 2 * self.cu_count


def checksum(data: bytes) -> int:
    """Sum of bytes modulo 2^16."""
    return sum(data) & 0xFFFF


def _show(data: bytes, offset: int) -> str:
    part = data[offset : offset + _SHOWN]
    return f"bytes {part.hex(' ')} at offset {offset:#x}" if part else f"nothing at offset {offset:#x} of {len(data):#x} bytes"


class _Parser:
    """One pass over a binary. Every access is checked against its size."""

    def __init__(self, data: bytes, verify: bool) -> None:
        self.data = data
        self.verify = verify
        self.warnings: list[str] = []

    def fail(self, what: str, offset: int) -> DiscoveryInvalid:
        part = self.data[offset : offset + _SHOWN]
        means = ""
        if part and not any(part):
            means = _MEANS_ZEROS
        elif part and all(byte == 0xFF for byte in part):
            means = _MEANS_ONES
        return DiscoveryInvalid(f"IP discovery table: {what}", read=_show(self.data, offset), means=means)

    def doubt(self, what: str, offset: int) -> None:
        """A check that a switch can let pass."""
        if self.verify:
            raise self.fail(what, offset)
        log.warning("IP discovery table: %s; going on as asked", what)
        self.warnings.append(what)

    def struct(self, ctype: str, offset: int, what: str) -> Any:
        if offset + layout.LAYOUT.sizeof(ctype) > len(self.data):
            raise self.fail(f"{what} lies outside the {len(self.data):#x} bytes of the table", offset)
        return layout.LAYOUT.parse(ctype, self.data, offset)

    def check_sum(self, what: str, offset: int, size: int, expected: int) -> None:
        if offset + size > len(self.data):
            self.doubt(f"{what} of {size:#x} bytes lies outside the {len(self.data):#x} bytes of the table", offset)
            return
        found = checksum(self.data[offset : offset + size])
        if found != expected:
            self.doubt(f"checksum of {what} is {found:#06x}, {expected:#06x} is announced", offset)

    def parse(self) -> Discovery:
        header = binary_header(self.data)
        if header.binary_size > len(self.data):
            raise self.fail(f"announces {header.binary_size:#x} bytes, {len(self.data):#x} are there", 10)
        self.data = self.data[: header.binary_size]
        self.check_sum("the binary", layout.CHECKSUM_FROM, header.binary_size - layout.CHECKSUM_FROM, header.binary_checksum)
        entries = self.ip_entries(header.table_list[layout.IP_DISCOVERY])
        gc_info = self.gc_info(header.table_list[layout.GC])
        harvested = self.harvest(header.table_list[layout.HARVEST_INFO])
        for number, identity in ((layout.VCN_INFO, layout.VCN_TABLE_ID), (layout.MALL_INFO, layout.MALL_TABLE_ID), (layout.NPS_INFO, layout.NPS_TABLE_ID)):
            self.other_table(layout.TABLES[number], header.table_list[number], identity)
        return Discovery(tuple(entries), frozenset(harvested), gc_info, header.binary_size, tuple(self.warnings))

    def ip_entries(self, place: Any) -> list[IpEntry]:
        if place.offset == 0:
            raise self.fail("the list of blocks is absent", 0x0C)
        header = self.struct("struct ip_discovery_header", place.offset, "the list of blocks")
        if header.signature != layout.IP_SIGNATURE:
            raise self.fail(f"signature of the list of blocks is {header.signature:#010x}, {layout.IP_SIGNATURE:#010x} is due", place.offset)
        if header.version not in layout.IP_VERSIONS:
            raise self.fail(f"version {header.version} of the list of blocks is not known", place.offset + 4)
        self.check_sum("the list of blocks", place.offset, header.size, place.checksum)
        if not 1 <= header.num_dies <= layout.MAX_DIES:
            raise self.fail(f"{header.num_dies} dies are announced, 1 to {layout.MAX_DIES} are possible", place.offset + 12)
        wide = header.version >= layout.WIDE_BASES_VERSION and bool(header.flags & layout.WIDE_BASES_FLAG)
        entries = []
        for die in range(header.num_dies):
            entries += self.die(header.die_info[die].die_offset, wide)
        return entries

    def die(self, offset: int, wide: bool) -> list[IpEntry]:
        header = self.struct("struct die_header", offset, "a die")
        offset += layout.LAYOUT.sizeof("struct die_header")
        base_size = 8 if wide else 4
        fixed = layout.LAYOUT.sizeof("struct ip_entry")
        entries = []
        for position in range(header.num_ips):
            entry = self.struct("struct ip_entry", offset, f"block {position} of {header.num_ips}")
            first = offset + fixed
            offset = first + entry.num_base_address * base_size
            if offset > len(self.data):
                raise self.fail(f"the bases of block {position} (hardware id {entry.hw_id}) lie outside the table", first)
            bases = tuple(int.from_bytes(self.data[start : start + base_size], "little") for start in range(first, offset, base_size))
            name = layout.HW_IDS.get(entry.hw_id, f"HWID{entry.hw_id}")
            entries.append(IpEntry(name, entry.hw_id, entry.instance_number, (entry.major, entry.minor, entry.revision), bases))
        return entries

    def gc_info(self, place: Any) -> GcInfo:
        if place.offset == 0:
            raise self.fail("the table of the graphics block is absent", 0x14)
        header = self.struct("struct gc_header", place.offset, "the table of the graphics block")
        if header.table_id != layout.GC_TABLE_ID:
            raise self.fail(f"id of the graphics block's table is {header.table_id:#x}, {layout.GC_TABLE_ID:#x} is due", place.offset)
        self.check_sum("the graphics block's table", place.offset, header.size, place.checksum)
        try:
            names = layout.gc_info_fields(header.version_major, header.version_minor)
        except KeyError:
            raise self.fail(f"version {header.version_major}.{header.version_minor} of the graphics block's table is not known", place.offset + 4) from None
        first = place.offset + layout.LAYOUT.sizeof("struct gc_header")
        end = min(place.offset + header.size, len(self.data))
        values = {}
        for position, name in enumerate(names):
            start = first + 4 * position
            if start + 4 > end:
                raise self.fail(f"the graphics block's table ends before {name}", start)
            values[name] = int.from_bytes(self.data[start : start + 4], "little")
        return GcInfo((header.version_major, header.version_minor), values)

    def harvest(self, place: Any) -> set[tuple[int, int]]:
        if place.offset == 0:
            return set()
        table = self.struct("struct harvest_table", place.offset, "the harvest table")
        if table.signature != layout.HARVEST_SIGNATURE:
            self.doubt(f"signature of the harvest table is {table.signature:#010x}, {layout.HARVEST_SIGNATURE:#010x} is due", place.offset)
            return set()
        self.check_sum("the harvest table", place.offset, layout.HARVEST_SIZE, place.checksum)
        harvested = set()
        for entry in table.list:
            if entry.hw_id == 0:
                break
            harvested.add((entry.hw_id, entry.instance))
        return harvested

    def other_table(self, name: str, place: Any, identity: int) -> None:
        if place.offset == 0:
            return
        header = self.struct("struct gc_header", place.offset, name)
        if header.table_id != identity:
            self.doubt(f"id of {name} is {header.table_id:#x}, {identity:#x} is due", place.offset)
            return
        self.check_sum(name, place.offset, header.size, place.checksum)


def binary_header(data: bytes) -> Any:
    """The header, its signature and size checked. Raises DiscoveryInvalid."""
    parser = _Parser(data, verify=True)
    header = parser.struct("struct binary_header", 0, "the header")
    if header.binary_signature != layout.BINARY_SIGNATURE:
        raise parser.fail(f"signature is {header.binary_signature:#010x}, {layout.BINARY_SIGNATURE:#010x} is due", 0)
    smallest = layout.LAYOUT.sizeof("struct binary_header")
    if not smallest <= header.binary_size <= layout.READ_SIZE:
        raise parser.fail(f"announces a size of {header.binary_size:#x} bytes, {smallest:#x} to {layout.READ_SIZE:#x} are possible", 10)
    return header


def parse(data: bytes, *, verify: bool = True) -> Discovery:
    """Check and decode a discovery binary.

    Raises DiscoveryInvalid, naming the offset and the bytes there. With verify=False a wrong checksum is logged and let pass;
    what cannot be decoded is refused all the same.
    """
    return _Parser(bytes(data), verify).parse()


def read(vram_read: Callable[[int, int], bytes], vram_size: int, *, verify: bool = True) -> Discovery:
    """Fetch and parse the binary of a GPU whose reported memory size is `vram_size` bytes. Reads the header first, then what it announces."""
    place = vram_size - layout.OFFSET_FROM_END
    size = layout.LAYOUT.sizeof("struct binary_header")
    start = vram_read(place, size)
    header = binary_header(start)
    rest = -(-header.binary_size // 4) * 4 - size
    return parse((start + vram_read(place + size, rest))[: header.binary_size], verify=verify)
