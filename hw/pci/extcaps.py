"""The extended capabilities of PCI Express configuration space (from 0x100 on). Layouts: PCI Express Base Specification.

All offsets in the decoders are relative to the capability's header.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hw.pci.caps import Capability, Entry, names_of, require
from hw.pci.device import ConfigSpace

AER = 0x0001
VIRTUAL_CHANNEL = 0x0002
SERIAL_NUMBER = 0x0003
POWER_BUDGETING = 0x0004
VENDOR_SPECIFIC = 0x000B
ACS = 0x000D
ARI = 0x000E
ATS = 0x000F
SRIOV = 0x0010
PAGE_REQUEST = 0x0013
RESIZABLE_BAR = 0x0015
LTR = 0x0018
SECONDARY_PCIE = 0x0019
PASID = 0x001B
DPC = 0x001D
L1_SUBSTATES = 0x001E
PRECISION_TIME = 0x001F
DESIGNATED_VENDOR = 0x0023
VF_RESIZABLE_BAR = 0x0024
DATA_LINK_FEATURE = 0x0025
PHYSICAL_16GT = 0x0026
LANE_MARGINING = 0x0027
PHYSICAL_32GT = 0x002A
DOE = 0x002E
IDE = 0x0030

UNCORRECTABLE = {
    4: "data link protocol",
    5: "surprise down",
    12: "poisoned TLP",
    13: "flow control protocol",
    14: "completion timeout",
    15: "completer abort",
    16: "unexpected completion",
    17: "receiver overflow",
    18: "malformed TLP",
    19: "ECRC",
    20: "unsupported request",
    21: "ACS violation",
}
CORRECTABLE = {0: "receiver", 6: "bad TLP", 7: "bad DLLP", 8: "replay rollover", 12: "replay timeout", 13: "advisory non-fatal"}
ACS_BITS = (
    "source validation",
    "translation blocking",
    "P2P request redirect",
    "P2P completion redirect",
    "upstream forwarding",
    "P2P egress control",
    "direct translated P2P",
)
L1_BITS = ("PCI-PM L1.2", "PCI-PM L1.1", "ASPM L1.2", "ASPM L1.1")
EQUALIZATION = ("complete", "phase 1", "phase 2", "phase 3", "requested")
DPC_TRIGGERS = ("off", "fatal", "non-fatal or fatal", "reserved")
DPC_REASONS = ("unmasked uncorrectable error", "ERR_NONFATAL message", "ERR_FATAL message", "see the extension field")


@dataclass(frozen=True)
class Aer(Capability):
    """Advanced error reporting. Status bits stay until 1 is written to them."""

    name: ClassVar[str] = "advanced error reporting"
    hexadecimal: ClassVar[dict[str, int]] = {
        "uncorrectable_status": 8,
        "correctable_status": 8,
        "uncorrectable_mask": 8,
        "uncorrectable_severity": 8,
        "correctable_mask": 8,
        "header_log": 8,
    }
    uncorrectable_status: int
    correctable_status: int
    uncorrectable: tuple[str, ...]
    correctable: tuple[str, ...]
    uncorrectable_mask: int
    uncorrectable_severity: int
    correctable_mask: int
    first_error: int
    header_log: tuple[int, ...]


@dataclass(frozen=True)
class VirtualChannel(Capability):
    name: ClassVar[str] = "virtual channel"
    extended_channels: int


@dataclass(frozen=True)
class SerialNumber(Capability):
    name: ClassVar[str] = "device serial number"
    hexadecimal: ClassVar[dict[str, int]] = {"serial": 16}
    serial: int


@dataclass(frozen=True)
class PowerBudgeting(Capability):
    name: ClassVar[str] = "power budgeting"
    system_allocated: bool


@dataclass(frozen=True)
class VendorSpecific(Capability):
    name: ClassVar[str] = "vendor specific"
    vsec_id: int
    revision: int
    length: int


@dataclass(frozen=True)
class Acs(Capability):
    """Access control services. P2P request redirect on sends traffic between devices to the root complex."""

    name: ClassVar[str] = "access control services"
    hexadecimal: ClassVar[dict[str, int]] = {"capability": 4, "control": 4}
    capability: int
    control: int
    supported: tuple[str, ...]
    enabled: tuple[str, ...]


@dataclass(frozen=True)
class Ari(Capability):
    name: ClassVar[str] = "alternative routing id"
    next_function: int


@dataclass(frozen=True)
class Ats(Capability):
    name: ClassVar[str] = "address translation services"
    queue_depth: int
    enabled: bool
    smallest_translation: int
    """bytes"""


@dataclass(frozen=True)
class Sriov(Capability):
    name: ClassVar[str] = "SR-IOV"
    hexadecimal: ClassVar[dict[str, int]] = {"vf_device": 4, "vf_bars": 8}
    total_vfs: int
    initial_vfs: int
    enabled_vfs: int
    enabled: bool
    memory_enabled: bool
    vf_offset: int
    vf_stride: int
    vf_device: int
    vf_bars: tuple[int, ...]


@dataclass(frozen=True)
class PageRequest(Capability):
    name: ClassVar[str] = "page request"
    enabled: bool
    capacity: int
    allocation: int


@dataclass(frozen=True)
class SizableBar:
    """One BAR of a resizable BAR capability. Sizes in bytes, ascending. `control_offset` is the register's place in the space."""

    hexadecimal: ClassVar[dict[str, int]] = {"control_offset": 1}
    bar: int
    supported_sizes: tuple[int, ...]
    current: int
    control_offset: int


@dataclass(frozen=True)
class ResizableBars(Capability):
    name: ClassVar[str] = "resizable BAR"
    bars: tuple[SizableBar, ...]


@dataclass(frozen=True)
class VfResizableBars(ResizableBars):
    name: ClassVar[str] = "VF resizable BAR"


@dataclass(frozen=True)
class Ltr(Capability):
    name: ClassVar[str] = "latency tolerance reporting"
    max_snoop_ns: int
    max_no_snoop_ns: int


@dataclass(frozen=True)
class SecondaryPcie(Capability):
    name: ClassVar[str] = "secondary PCI Express"
    hexadecimal: ClassVar[dict[str, int]] = {"lane_errors": 8}
    lane_errors: int


@dataclass(frozen=True)
class Pasid(Capability):
    name: ClassVar[str] = "process address space id"
    execute_supported: bool
    privileged_supported: bool
    width: int
    """bits"""
    enabled: bool


@dataclass(frozen=True)
class Dpc(Capability):
    """Downstream port containment: after such an error the port switches its link off until `triggered` is cleared."""

    name: ClassVar[str] = "downstream port containment"
    hexadecimal: ClassVar[dict[str, int]] = {"source": 4}
    trigger: str
    triggered: bool
    reason: str
    source: int


@dataclass(frozen=True)
class L1Substates(Capability):
    name: ClassVar[str] = "L1 PM substates"
    supported: tuple[str, ...]
    enabled: tuple[str, ...]


@dataclass(frozen=True)
class PrecisionTime(Capability):
    name: ClassVar[str] = "precision time measurement"
    requester: bool
    responder: bool
    root: bool
    enabled: bool


@dataclass(frozen=True)
class DesignatedVendor(Capability):
    name: ClassVar[str] = "designated vendor specific"
    hexadecimal: ClassVar[dict[str, int]] = {"vendor": 4, "dvsec_id": 4}
    vendor: int
    revision: int
    length: int
    dvsec_id: int


@dataclass(frozen=True)
class DataLinkFeature(Capability):
    name: ClassVar[str] = "data link feature"
    scaled_flow_control: bool
    exchange_enabled: bool


@dataclass(frozen=True)
class Physical16(Capability):
    name: ClassVar[str] = "physical layer 16.0 GT/s"
    equalization: tuple[str, ...]


@dataclass(frozen=True)
class Physical32(Capability):
    name: ClassVar[str] = "physical layer 32.0 GT/s"
    equalization: tuple[str, ...]


@dataclass(frozen=True)
class LaneMargining(Capability):
    name: ClassVar[str] = "lane margining"
    ready: bool
    software_ready: bool


@dataclass(frozen=True)
class DataObjectExchange(Capability):
    name: ClassVar[str] = "data object exchange"
    interrupts: bool
    busy: bool
    error: bool
    ready: bool


@dataclass(frozen=True)
class Ide(Capability):
    name: ClassVar[str] = "integrity and data encryption"
    link_streams: bool
    selective_streams: bool


def bit(value: int, position: int) -> bool:
    return bool(value >> position & 1)


def _aer(config: ConfigSpace, entry: Entry) -> Capability:
    uncorrectable, mask, severity, correctable, correctable_mask, control = (config.read32(entry.offset + place) for place in range(0x04, 0x1C, 4))
    return Aer(
        entry,
        uncorrectable_status=uncorrectable,
        correctable_status=correctable,
        uncorrectable=names_of(uncorrectable, UNCORRECTABLE),
        correctable=names_of(correctable, CORRECTABLE),
        uncorrectable_mask=mask,
        uncorrectable_severity=severity,
        correctable_mask=correctable_mask,
        first_error=control & 0x1F,
        header_log=tuple(config.read32(entry.offset + place) for place in range(0x1C, 0x2C, 4)),
    )


def _serial(config: ConfigSpace, entry: Entry) -> Capability:
    return SerialNumber(entry, config.read32(entry.offset + 4) | config.read32(entry.offset + 8) << 32)


def _vendor_specific(config: ConfigSpace, entry: Entry) -> Capability:
    header = config.read32(entry.offset + 4)
    return VendorSpecific(entry, vsec_id=header & 0xFFFF, revision=header >> 16 & 0xF, length=header >> 20)


def _acs(config: ConfigSpace, entry: Entry) -> Capability:
    capability, control = config.read16(entry.offset + 4), config.read16(entry.offset + 6)
    return Acs(entry, capability, control, names_of(capability & 0x7F, ACS_BITS), names_of(control & 0x7F, ACS_BITS))


def _ats(config: ConfigSpace, entry: Entry) -> Capability:
    capability, control = config.read16(entry.offset + 4), config.read16(entry.offset + 6)
    return Ats(entry, queue_depth=capability & 0x1F or 32, enabled=bit(control, 15), smallest_translation=4096 << (control & 0x1F))


def _sriov(config: ConfigSpace, entry: Entry) -> Capability:
    at = entry.offset
    control = config.read16(at + 0x08)
    return Sriov(
        entry,
        total_vfs=config.read16(at + 0x0E),
        initial_vfs=config.read16(at + 0x0C),
        enabled_vfs=config.read16(at + 0x10),
        enabled=bit(control, 0),
        memory_enabled=bit(control, 3),
        vf_offset=config.read16(at + 0x14),
        vf_stride=config.read16(at + 0x16),
        vf_device=config.read16(at + 0x1A),
        vf_bars=tuple(config.read32(at + 0x24 + 4 * index) for index in range(6)),
    )


def _page_request(config: ConfigSpace, entry: Entry) -> Capability:
    return PageRequest(entry, bit(config.read16(entry.offset + 4), 0), config.read32(entry.offset + 8), config.read32(entry.offset + 12))


def _resizable(config: ConfigSpace, entry: Entry) -> Capability:
    """Entries of 8 bytes: supported sizes from bit 4 (1 MiB) on, continued in bits 31:16 of the control register (from 256 TiB on)."""
    count = config.read32(entry.offset + 8) >> 5 & 7
    require(config, entry, 4 + 8 * count, config.size)
    bars = []
    for place in range(entry.offset + 4, entry.offset + 4 + 8 * count, 8):
        capability, control = config.read32(place), config.read32(place + 4)
        exponents = capability >> 4 | control >> 16 << 28
        sizes = tuple(1 << (20 + exponent) for exponent in range(exponents.bit_length()) if exponents >> exponent & 1)
        bars.append(SizableBar(control & 7, sizes, 1 << (20 + (control >> 8 & 0x3F)), place + 4))
    kind = VfResizableBars if entry.id == VF_RESIZABLE_BAR else ResizableBars
    return kind(entry, tuple(bars))


def _ltr(config: ConfigSpace, entry: Entry) -> Capability:
    snoop, no_snoop = (config.read16(entry.offset + place) for place in (4, 6))
    return Ltr(entry, *((word & 0x3FF) << 5 * (word >> 10 & 7) for word in (snoop, no_snoop)))


def _pasid(config: ConfigSpace, entry: Entry) -> Capability:
    capability = config.read16(entry.offset + 4)
    return Pasid(entry, bit(capability, 1), bit(capability, 2), capability >> 8 & 0x1F, bit(config.read16(entry.offset + 6), 0))


def _dpc(config: ConfigSpace, entry: Entry) -> Capability:
    control, status = config.read16(entry.offset + 6), config.read16(entry.offset + 8)
    triggered = bit(status, 0)
    return Dpc(entry, DPC_TRIGGERS[control & 3], triggered, DPC_REASONS[status >> 1 & 3] if triggered else "", config.read16(entry.offset + 10))


def _l1_substates(config: ConfigSpace, entry: Entry) -> Capability:
    return L1Substates(entry, names_of(config.read32(entry.offset + 4) & 0xF, L1_BITS), names_of(config.read32(entry.offset + 8) & 0xF, L1_BITS))


def _precision_time(config: ConfigSpace, entry: Entry) -> Capability:
    capability = config.read32(entry.offset + 4)
    return PrecisionTime(entry, bit(capability, 0), bit(capability, 1), bit(capability, 2), bit(config.read32(entry.offset + 8), 0))


def _designated_vendor(config: ConfigSpace, entry: Entry) -> Capability:
    header = config.read32(entry.offset + 4)
    return DesignatedVendor(entry, header & 0xFFFF, header >> 16 & 0xF, header >> 20, config.read16(entry.offset + 8))


def _data_link_feature(config: ConfigSpace, entry: Entry) -> Capability:
    capability = config.read32(entry.offset + 4)
    return DataLinkFeature(entry, bit(capability, 0), bit(capability, 31))


def _lane_margining(config: ConfigSpace, entry: Entry) -> Capability:
    status = config.read16(entry.offset + 6)
    return LaneMargining(entry, bit(status, 0), bit(status, 1))


def _doe(config: ConfigSpace, entry: Entry) -> Capability:
    status = config.read32(entry.offset + 12)
    return DataObjectExchange(entry, bit(config.read32(entry.offset + 4), 0), bit(status, 0), bit(status, 2), bit(status, 31))


def _ide(config: ConfigSpace, entry: Entry) -> Capability:
    capability = config.read32(entry.offset + 4)
    return Ide(entry, bit(capability, 0), bit(capability, 1))


_DECODERS: dict[int, tuple[int, Callable[[ConfigSpace, Entry], Capability]]] = {
    # id: (bytes that the decoder reads, decoder)
    AER: (0x2C, _aer),
    VIRTUAL_CHANNEL: (8, lambda config, entry: VirtualChannel(entry, config.read32(entry.offset + 4) & 7)),
    SERIAL_NUMBER: (12, _serial),
    POWER_BUDGETING: (16, lambda config, entry: PowerBudgeting(entry, bit(config.read8(entry.offset + 12), 0))),
    VENDOR_SPECIFIC: (8, _vendor_specific),
    ACS: (8, _acs),
    ARI: (8, lambda config, entry: Ari(entry, config.read8(entry.offset + 5))),
    ATS: (8, _ats),
    SRIOV: (0x40, _sriov),
    PAGE_REQUEST: (16, _page_request),
    RESIZABLE_BAR: (12, _resizable),
    LTR: (8, _ltr),
    SECONDARY_PCIE: (12, lambda config, entry: SecondaryPcie(entry, config.read32(entry.offset + 8))),
    PASID: (8, _pasid),
    DPC: (12, _dpc),
    L1_SUBSTATES: (12, _l1_substates),
    PRECISION_TIME: (12, _precision_time),
    DESIGNATED_VENDOR: (12, _designated_vendor),
    VF_RESIZABLE_BAR: (12, _resizable),
    DATA_LINK_FEATURE: (8, _data_link_feature),
    PHYSICAL_16GT: (16, lambda config, entry: Physical16(entry, names_of(config.read32(entry.offset + 12) & 0x1F, EQUALIZATION))),
    LANE_MARGINING: (8, _lane_margining),
    PHYSICAL_32GT: (16, lambda config, entry: Physical32(entry, names_of(config.read32(entry.offset + 12) & 0x1F, EQUALIZATION))),
    DOE: (16, _doe),
    IDE: (8, _ide),
}


def decode_extended(config: ConfigSpace, entry: Entry) -> Capability:
    """One extended capability with its fields; ids without a decoder give the plain Capability. Raises ConfigTruncated."""
    known = _DECODERS.get(entry.id)
    if known is None:
        return Capability(entry)
    size, decoder = known
    require(config, entry, size, config.size)
    return decoder(config, entry)
