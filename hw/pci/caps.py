"""The capability lists of PCI configuration space: walking them, and the capabilities of the first 256 bytes.

    for entry in standard_entries(config): ...      # (offset, id); raises where the list is damaged
    decode_standard(config, entry).to_dict()        # plain data for --json

Layouts: PCI Express Base Specification. Extended capabilities (from 0x100 on) are decoded by extcaps.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hw.errors import CapabilityLoop, ConfigInvalid, ConfigTruncated
from hw.pci.device import ConfigSpace

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STATUS = 0x06
STATUS_CAPABILITY_LIST = 1 << 4
CAPABILITY_POINTER = 0x34
FIRST_CAPABILITY = 0x40
"""The header ends here; no capability can lie before."""
STANDARD_SIZE = 0x100
EXTENDED_START = 0x100

PM = 0x01
VPD = 0x03
MSI = 0x05
VENDOR = 0x09
BRIDGE_SUBSYSTEM = 0x0D
PCIE = 0x10
MSIX = 0x11
ADVANCED_FEATURES = 0x13
ENHANCED_ALLOCATION = 0x14


@dataclass(frozen=True)
class Entry:
    """One element of a list. `version` is 0 for standard capabilities."""

    offset: int
    id: int
    version: int = 0
    extended: bool = False


def standard_entries(config: ConfigSpace) -> Iterator[Entry]:
    """Walk the standard list in order. Raises ConfigTruncated, CapabilityLoop, ConfigInvalid where it is damaged, after the good part."""
    if not config.read16(STATUS) & STATUS_CAPABILITY_LIST:
        return
    source = CAPABILITY_POINTER
    offset = config.read8(source) & 0xFC
    seen: set[int] = set()
    while offset:
        if offset in seen:
            raise CapabilityLoop(f"capability list loops from {source & 0xFC:#x} back to {offset:#x}", read=f"next pointer {offset:#x}")
        if offset < FIRST_CAPABILITY:
            raise ConfigInvalid(f"capability list points into the header at {offset:#x}", read=f"pointer at {source:#x}")
        if offset + 4 > config.size:
            raise ConfigTruncated(f"capability at {offset:#x} cannot be read", read=f"{config.size} bytes of configuration space")
        seen.add(offset)
        identity = config.read8(offset)
        if identity == 0xFF:
            raise ConfigInvalid(f"capability id 0xff at {offset:#x}", read="0xff")
        yield Entry(offset, identity)
        source = offset + 1
        offset = config.read8(source) & 0xFC


def extended_entries(config: ConfigSpace) -> Iterator[Entry]:
    """Walk the extended list in order. Empty where there is no extended space. Raises like standard_entries()."""
    if config.size <= EXTENDED_START:
        return
    source, offset = 0, EXTENDED_START
    seen: set[int] = set()
    while offset:
        if offset in seen:
            raise CapabilityLoop(f"extended capability list loops from {source:#x} back to {offset:#x}", read=f"next pointer {offset:#x}")
        if offset < EXTENDED_START:
            raise ConfigInvalid(f"extended capability list points below 0x100, to {offset:#x}", read=f"header at {source:#x}")
        if offset + 4 > config.size:
            raise ConfigTruncated(f"extended capability at {offset:#x} cannot be read", read=f"{config.size} bytes of configuration space")
        seen.add(offset)
        header = config.read32(offset)
        if header == 0xFFFFFFFF:
            raise ConfigInvalid(
                f"extended space reads all ones at {offset:#x}",
                read="0xffffffff",
                means="requests to extended space are not answered: a bridge on the way has none, or the device left the bus",
            )
        if header == 0:
            return
        yield Entry(offset, header & 0xFFFF, header >> 16 & 0xF, extended=True)
        source, offset = offset, header >> 20 & 0xFFC


def find(config: ConfigSpace, identity: int) -> int | None:
    """Offset of the first standard capability with this id, None when there is none. Raises like standard_entries()."""
    return next((entry.offset for entry in standard_entries(config) if entry.id == identity), None)


def find_extended(config: ConfigSpace, identity: int) -> int | None:
    """Offset of the first extended capability with this id, None when there is none. Raises like extended_entries()."""
    return next((entry.offset for entry in extended_entries(config) if entry.id == identity), None)


# --- decoded forms ----------------------------------------------------------------------------------------------------


def plain(value: Any, digits: int = 0) -> Any:
    """Data that json.dumps() takes. A dataclass names in `hexadecimal` the fields shown as hexadecimal text, with their digits."""
    if digits and isinstance(value, int):
        return f"{value:#0{digits + 2}x}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, (tuple, list)):
        return [plain(item, digits) for item in value]
    return value


def fields_of(value: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass as plain data."""
    shown: dict[str, int] = getattr(value, "hexadecimal", {})
    return {item.name: plain(getattr(value, item.name), shown.get(item.name, 0)) for item in dataclasses.fields(value)}


@dataclass(frozen=True)
class Capability:
    """A capability of which only the place is known, and the base of those that are decoded further."""

    entry: Entry
    name: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Stable keys: offset, id, name, for extended ones also version and extended, then the fields."""
        name = self.name or (EXTENDED_NAMES if self.entry.extended else STANDARD_NAMES).get(self.entry.id, "unknown")
        result: dict[str, Any] = {"offset": f"{self.entry.offset:#x}", "id": f"{self.entry.id:#0{6 if self.entry.extended else 4}x}", "name": name}
        if self.entry.extended:
            result |= {"version": self.entry.version, "extended": True}
        fields = fields_of(self)
        del fields["entry"]
        return result | fields


@dataclass(frozen=True)
class PowerManagement(Capability):
    name: ClassVar[str] = "power management"
    version: int
    d1_supported: bool
    d2_supported: bool
    pme_from: tuple[str, ...]
    state: str
    """D0, D1, D2 or D3 (D3hot: the device still answers to configuration space)"""
    no_soft_reset: bool
    pme_enabled: bool
    pme_pending: bool


@dataclass(frozen=True)
class Msi(Capability):
    name: ClassVar[str] = "MSI"
    hexadecimal: ClassVar[dict[str, int]] = {"address": 1, "data": 4}
    vectors: int
    """how many the device can use"""
    vectors_enabled: int
    enabled: bool
    is_64bit: bool
    maskable: bool
    address: int
    data: int


@dataclass(frozen=True)
class MsiX(Capability):
    name: ClassVar[str] = "MSI-X"
    vectors: int
    enabled: bool
    masked: bool
    table: str
    """place of the vector table as "BARn+0xoffset" """
    pending: str


@dataclass(frozen=True)
class Vendor(Capability):
    name: ClassVar[str] = "vendor specific"
    length: int


@dataclass(frozen=True)
class BridgeSubsystem(Capability):
    name: ClassVar[str] = "bridge subsystem id"
    hexadecimal: ClassVar[dict[str, int]] = {"subsystem_vendor": 4, "subsystem_device": 4}
    subsystem_vendor: int
    subsystem_device: int


@dataclass(frozen=True)
class AdvancedFeatures(Capability):
    name: ClassVar[str] = "advanced features"
    flr: bool
    transactions_pending: bool


@dataclass(frozen=True)
class EnhancedAllocation(Capability):
    name: ClassVar[str] = "enhanced allocation"
    entries: int


@dataclass(frozen=True)
class Pcie(Capability):
    """The PCI Express capability: what kind of function, its link and limits. Sizes are bytes."""

    name: ClassVar[str] = "PCI Express"
    version: int
    kind: str
    slot: bool
    slot_number: int
    port_number: int
    max_payload_supported: int
    max_payload: int
    max_read_request: int
    flr: bool
    extended_tag: bool
    relaxed_ordering: bool
    no_snoop: bool
    errors: tuple[str, ...]
    """error kinds recorded in the device status since they were last cleared"""
    transactions_pending: bool
    link_capability: str
    link_status: str
    link_degraded: bool
    """the link runs slower or narrower than this end of it could (GPUs lower the speed when idle)"""
    link_speeds: tuple[str, ...]
    aspm: str
    aspm_supported: str
    link_training: bool
    link_active: bool
    completion_timeout: int
    ltr_supported: bool
    ltr_enabled: bool
    ari_forwarding: bool
    atomics: tuple[str, ...]
    """sizes of atomic operations that the function completes, and "routing" """
    atomic_requester: bool


LINK_SPEEDS = {1: "2.5GT/s", 2: "5GT/s", 3: "8GT/s", 4: "16GT/s", 5: "32GT/s", 6: "64GT/s"}
PORT_KINDS = {
    0: "endpoint",
    1: "legacy endpoint",
    4: "root port",
    5: "upstream port",
    6: "downstream port",
    7: "PCIe to PCI bridge",
    8: "PCI to PCIe bridge",
    9: "root complex integrated endpoint",
    10: "root complex event collector",
}
ASPM = ("off", "L0s", "L1", "L0s L1")
DEVICE_ERRORS = ("correctable", "non-fatal", "fatal", "unsupported request")
POWER_STATES = ("D0", "D1", "D2", "D3")
PME_STATES = ("D0", "D1", "D2", "D3hot", "D3cold")


def names_of(value: int, names: tuple[str, ...] | dict[int, str]) -> tuple[str, ...]:
    """Names of the bits that are set; bits without a name are left out."""
    table = dict(enumerate(names)) if isinstance(names, tuple) else names
    return tuple(name for bit, name in table.items() if value >> bit & 1)


def show_link(speed: int, width: int) -> str:
    """Speed code and width as "16GT/s x16"; "no link" when the width is 0."""
    return f"{LINK_SPEEDS.get(speed, f'speed {speed}')} x{width}" if width else "no link"


def _power_management(config: ConfigSpace, entry: Entry) -> Capability:
    capabilities = config.read16(entry.offset + 2)
    control = config.read16(entry.offset + 4)
    return PowerManagement(
        entry,
        version=capabilities & 7,
        d1_supported=bool(capabilities >> 9 & 1),
        d2_supported=bool(capabilities >> 10 & 1),
        pme_from=names_of(capabilities >> 11, PME_STATES),
        state=POWER_STATES[control & 3],
        no_soft_reset=bool(control >> 3 & 1),
        pme_enabled=bool(control >> 8 & 1),
        pme_pending=bool(control >> 15 & 1),
    )


def _msi(config: ConfigSpace, entry: Entry) -> Capability:
    flags = config.read16(entry.offset + 2)
    is_64bit = bool(flags >> 7 & 1)
    require(config, entry, 14 if is_64bit else 10, min(config.size, STANDARD_SIZE))
    address = config.read32(entry.offset + 4) | (config.read32(entry.offset + 8) << 32 if is_64bit else 0)
    return Msi(
        entry,
        vectors=1 << (flags >> 1 & 7),
        vectors_enabled=1 << (flags >> 4 & 7),
        enabled=bool(flags & 1),
        is_64bit=is_64bit,
        maskable=bool(flags >> 8 & 1),
        address=address,
        data=config.read16(entry.offset + (12 if is_64bit else 8)),
    )


def _msix(config: ConfigSpace, entry: Entry) -> Capability:
    flags = config.read16(entry.offset + 2)
    table, pending = (config.read32(entry.offset + place) for place in (4, 8))
    return MsiX(
        entry,
        vectors=(flags & 0x7FF) + 1,
        enabled=bool(flags >> 15),
        masked=bool(flags >> 14 & 1),
        table=f"BAR{table & 7}+{table & ~7:#x}",
        pending=f"BAR{pending & 7}+{pending & ~7:#x}",
    )


def _pcie(config: ConfigSpace, entry: Entry) -> Capability:
    at = entry.offset
    flags = config.read16(at + 2)
    version = flags & 0xF
    require(config, entry, 0x34 if version >= 2 else 0x18, min(config.size, STANDARD_SIZE))
    slot = bool(flags >> 8 & 1)
    device_capability = config.read32(at + 0x04)
    device_control, device_status = config.read16(at + 0x08), config.read16(at + 0x0A)
    link_capability = config.read32(at + 0x0C)
    link_control, link_status = config.read16(at + 0x10), config.read16(at + 0x12)
    # Version 1 structures end before the second set of registers.
    device_capability2 = config.read32(at + 0x24) if version >= 2 else 0
    device_control2 = config.read16(at + 0x28) if version >= 2 else 0
    link_capability2 = config.read32(at + 0x2C) if version >= 2 else 0
    speed, width = link_capability & 0xF, link_capability >> 4 & 0x3F
    now_speed, now_width = link_status & 0xF, link_status >> 4 & 0x3F
    return Pcie(
        entry,
        version=version,
        kind=PORT_KINDS.get(flags >> 4 & 0xF, f"kind {flags >> 4 & 0xF}"),
        slot=slot,
        slot_number=config.read32(at + 0x14) >> 19 if slot else 0,
        port_number=link_capability >> 24,
        max_payload_supported=128 << (device_capability & 7),
        max_payload=128 << (device_control >> 5 & 7),
        max_read_request=128 << (device_control >> 12 & 7),
        flr=bool(device_capability >> 28 & 1),
        extended_tag=bool(device_control >> 8 & 1),
        relaxed_ordering=bool(device_control >> 4 & 1),
        no_snoop=bool(device_control >> 11 & 1),
        errors=names_of(device_status & 0xF, DEVICE_ERRORS),
        transactions_pending=bool(device_status >> 5 & 1),
        link_capability=show_link(speed, width),
        link_status=show_link(now_speed, now_width),
        link_degraded=now_speed < speed or now_width < width,
        link_speeds=names_of(link_capability2, LINK_SPEEDS),
        aspm=ASPM[link_control & 3],
        aspm_supported=ASPM[link_capability >> 10 & 3],
        link_training=bool(link_status >> 11 & 1),
        link_active=bool(link_status >> 13 & 1),
        completion_timeout=device_control2 & 0xF,
        ltr_supported=bool(device_capability2 >> 11 & 1),
        ltr_enabled=bool(device_control2 >> 10 & 1),
        ari_forwarding=bool(device_control2 >> 5 & 1),
        atomics=names_of(device_capability2, {6: "routing", 7: "32-bit", 8: "64-bit", 9: "128-bit CAS"}),
        atomic_requester=bool(device_control2 >> 6 & 1),
    )


def _undecoded(config: ConfigSpace, entry: Entry) -> Capability:
    return Capability(entry)


STANDARD_NAMES = {
    0x00: "null",
    PM: "power management",
    0x02: "AGP",
    VPD: "vital product data",
    0x04: "slot identification",
    MSI: "MSI",
    0x06: "CompactPCI hot swap",
    0x07: "PCI-X",
    0x08: "HyperTransport",
    VENDOR: "vendor specific",
    0x0A: "debug port",
    0x0C: "hot-plug controller",
    BRIDGE_SUBSYSTEM: "bridge subsystem id",
    0x0E: "AGP 8x",
    0x0F: "secure device",
    PCIE: "PCI Express",
    MSIX: "MSI-X",
    0x12: "SATA",
    ADVANCED_FEATURES: "advanced features",
    ENHANCED_ALLOCATION: "enhanced allocation",
}

EXTENDED_NAMES = {
    0x0001: "advanced error reporting",
    0x0002: "virtual channel",
    0x0003: "device serial number",
    0x0004: "power budgeting",
    0x000B: "vendor specific",
    0x000D: "access control services",
    0x000E: "alternative routing id",
    0x000F: "address translation services",
    0x0010: "SR-IOV",
    0x0013: "page request",
    0x0015: "resizable BAR",
    0x0018: "latency tolerance reporting",
    0x0019: "secondary PCI Express",
    0x001B: "process address space id",
    0x001D: "downstream port containment",
    0x001E: "L1 PM substates",
    0x001F: "precision time measurement",
    0x0023: "designated vendor specific",
    0x0024: "VF resizable BAR",
    0x0025: "data link feature",
    0x0026: "physical layer 16.0 GT/s",
    0x0027: "lane margining",
    0x002A: "physical layer 32.0 GT/s",
    0x002E: "data object exchange",
    0x0030: "integrity and data encryption",
}

_STANDARD: dict[int, tuple[int, Callable[[ConfigSpace, Entry], Capability]]] = {
    # id: (bytes that the decoder reads, decoder)
    PM: (8, _power_management),
    MSI: (4, _msi),
    VENDOR: (4, lambda config, entry: Vendor(entry, length=config.read8(entry.offset + 2))),
    BRIDGE_SUBSYSTEM: (8, lambda config, entry: BridgeSubsystem(entry, config.read16(entry.offset + 4), config.read16(entry.offset + 6))),
    PCIE: (4, _pcie),
    MSIX: (12, _msix),
    ADVANCED_FEATURES: (6, lambda config, entry: AdvancedFeatures(entry, bool(config.read8(entry.offset + 3) >> 1 & 1), bool(config.read8(entry.offset + 5) & 1))),
    ENHANCED_ALLOCATION: (4, lambda config, entry: EnhancedAllocation(entry, config.read8(entry.offset + 2) & 0x3F)),
}


def decode_standard(config: ConfigSpace, entry: Entry) -> Capability:
    """One capability with its fields; ids without a decoder give the plain Capability. Raises ConfigTruncated."""
    size, decoder = _STANDARD.get(entry.id, (0, _undecoded))
    require(config, entry, size, min(config.size, STANDARD_SIZE))
    return decoder(config, entry)


def require(config: ConfigSpace, entry: Entry, size: int, end: int) -> None:
    """Raise ConfigTruncated when a capability of this size does not end before `end`."""
    if entry.offset + size > end:
        raise ConfigTruncated(
            f"capability {entry.id:#x} at {entry.offset:#x} needs {size} bytes",
            read=f"{config.size} bytes of configuration space",
            means="" if config.size < end else "the list points to a place where this capability does not fit",
        )
