"""What a bridge tells about itself, its USB connection and its PCIe link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bridges.asm24.bringup import bring_link_up, walk
from bridges.asm24.config import BridgeConfig
from bridges.asm24.ids import Protocol
from bridges.asm24.protocol import BridgeProtocol
from bridges.asm24.registers import LINK_UP_STATES, table
from bridges.asm24.session import BridgeSession, Release
from bridges.asm24.stock import StockProtocol
from bridges.asm24.usb import UsbBridge
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BusError, TghwError
from hw.pci import caps
from hw.pci.device import PciId

SUPER_SPEED = 5000
"""Mb/s; slower connections work, at a fraction of the speed"""
DOWNSTREAM_BUS = 1
LINK_CAPABILITIES = 0x0C
LINK_STATUS = 0x12
"""offsets in the PCI Express capability"""


@dataclass(frozen=True)
class BridgeInfo:
    """Everything that could be read. Speeds in Mb/s."""

    address: str
    vendor: int
    product_id: int
    manufacturer: str
    product: str
    serial: str
    firmware: str
    """"custom", "stock", "rom", "dfu" """
    version: str
    """"" where the firmware tells none, or was not asked"""
    usb_speed: float
    commands: str
    """how commands are sent: "vendor requests", "UAS", "bulk-only" """
    link_state: int | None
    """LTSSM; None where it cannot be read"""
    link: str
    """"8.0 GT/s PCIe x4"; "" when the link is down or does not tell"""
    link_max: str

    @property
    def link_up(self) -> bool:
        return self.link_state in LINK_UP_STATES

    @property
    def degraded(self) -> str:
        """Why the connection is slower than it should be, "" when it is not."""
        if 0 < self.usb_speed < SUPER_SPEED:
            return f"connected at {self.usb_speed:g} Mb/s: use a SuperSpeed port and cable, or turn the plug over"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Stable keys for --json."""
        return asdict(self) | {"link_up": self.link_up, "degraded": self.degraded}


def read_info(session: BridgeSession) -> BridgeInfo:
    """Read a bridge whose session is ready, or runs a loader. Changes nothing on the PCIe side."""
    link, protocol = session.link, session.protocol
    state, now, most = None, "", ""
    if protocol is not None:
        state = protocol.link_state()
        if state in LINK_UP_STATES:
            now, most = _link(protocol)
            if session.kind is Protocol.CUSTOM:  # its PHY tells better than the port's configuration space
                phy = table().decode("PHY_LINK_INFO", protocol.read_register("PHY_LINK_INFO"))
                now = caps.show_link(phy["generation"], phy["lanes"])
    return BridgeInfo(
        address=session.address,
        vendor=link.bridge.vendor,
        product_id=link.bridge.product,
        manufacturer=link.manufacturer,
        product=session.product,
        serial=link.serial,
        firmware=session.kind.value,
        version=protocol.firmware_version() if session.kind is Protocol.STOCK and protocol is not None else "",
        usb_speed=link.bridge.speed,
        commands=protocol.pipe.name if isinstance(protocol, StockProtocol) else "vendor requests" if protocol is not None else "",
        link_state=state,
        link=now,
        link_max=most,
    )


def _link(protocol: BridgeProtocol) -> tuple[str, str]:
    """Link as it is and as it could be, from the port above the slot; "" where the buses are not numbered yet."""
    try:
        space = BridgeConfig(protocol, DOWNSTREAM_BUS)
        place = caps.find(space, caps.PCIE)
        if place is None:
            return "", ""
        capability, status = space.read32(place + LINK_CAPABILITIES), space.read16(place + LINK_STATUS)
    except BusError:
        return "", ""
    return caps.show_link(status & 0xF, status >> 4 & 0x3F), caps.show_link(capability & 0xF, capability >> 4 & 0x3F)


@dataclass(frozen=True)
class Behind:
    """A bridge and what is behind it, or why nothing is."""

    info: BridgeInfo
    identity: PciId | None
    problem: TghwError | None


def look_behind(bridge: UsbBridge, backend: Any, *, clock: Clock = HOST_CLOCK, lock: Callable[[str], Release] | None = None) -> Behind:
    """Bring the link up and find the device. Bus numbers are given (nobody else does), its own registers are only read."""
    with BridgeSession.look(bridge, backend, clock=clock, lock=lock) as session:
        if session.protocol is None:
            problem: TghwError | None = None
            try:
                session.ready()
            except TghwError as error:
                problem = error
            return Behind(read_info(session), None, problem)
        protocol = session.ready()
        try:
            bring_link_up(protocol)
            topology = walk(protocol)
            return Behind(read_info(session), _identity(protocol, topology.bus), None)
        except BusError as error:
            return Behind(read_info(session), None, error)


def _identity(protocol: BridgeProtocol, bus: int) -> PciId:
    space = BridgeConfig(protocol, bus)
    ids, class_revision, subsystem = space.read32(0x00), space.read32(0x08), space.read32(0x2C)
    return PciId(ids & 0xFFFF, ids >> 16, class_revision & 0xFF, class_revision >> 8, subsystem & 0xFFFF, subsystem >> 16)
