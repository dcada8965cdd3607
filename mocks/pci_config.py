"""Configuration space bit by bit: what a function shows, and what software may do to it.

Behaviour follows the PCI Express base specification: read-only and write-one-to-clear bits, capability lists.
"""

from __future__ import annotations

from typing import Any

CONFIG_SIZE = 4096

COMMAND = 0x04
STATUS = 0x06
BAR0 = 0x10
ROM_BAR = 0x30
CAPABILITIES = 0x34
INTERRUPT_LINE = 0x3C
FIRST_EXTENDED = 0x100

COMMAND_IO = 1 << 0
COMMAND_MEMORY = 1 << 1
COMMAND_MASTER = 1 << 2
COMMAND_INTX_OFF = 1 << 10
COMMAND_WRITABLE = 0x0547
"""I/O, memory, master, parity response, SERR, INTx disable"""
STATUS_CLEARABLE = 0xF900
"""error bits, cleared by writing 1"""

CAP_POWER = 0x01
CAP_MSI = 0x05
CAP_EXPRESS = 0x10
EXT_RESIZABLE_BAR = 0x0015

POWER_STATE_MASK = 0x3
D0 = 0
D3HOT = 3
MSI_ENABLE = 1 << 16
"""in the capability's first dword"""

MIB = 1 << 20

BRIDGE_BUSES = 0x18
BRIDGE_MEMORY = 0x20
BRIDGE_PREFETCHABLE = 0x24
_PORT_KINDS = {"root port": 0x4, "upstream port": 0x5, "downstream port": 0x6}


class ConfigModel:
    """The bytes of a configuration space with what software may do to each bit. Offsets in bytes."""

    def __init__(self) -> None:
        self.data = bytearray(CONFIG_SIZE)
        self.writable = bytearray(CONFIG_SIZE)
        self.clearable = bytearray(CONFIG_SIZE)

    def set(self, offset: int, value: int, size: int = 4, *, writable: int = 0, clearable: int = 0) -> None:
        """Define a field: its reset value and which bits software may write, or clear by writing 1."""
        self.data[offset : offset + size] = value.to_bytes(size, "little")
        self.writable[offset : offset + size] = writable.to_bytes(size, "little")
        self.clearable[offset : offset + size] = clearable.to_bytes(size, "little")

    def get(self, offset: int, size: int = 4) -> int:
        return int.from_bytes(self.data[offset : offset + size], "little")

    def put(self, offset: int, value: int, size: int = 4) -> None:
        """Change a value from the device's side."""
        self.data[offset : offset + size] = value.to_bytes(size, "little")

    def write(self, offset: int, value: int, size: int) -> None:
        """A write by software."""
        for position in range(size):
            at = offset + position
            new = value >> 8 * position & 0xFF
            old = self.data[at]
            kept = old & ~(new & self.clearable[at])
            self.data[at] = kept & ~self.writable[at] & 0xFF | new & self.writable[at]

    def forbid(self, offset: int, bits: int) -> None:
        """Take the writable property away from bits of a 16-bit register and clear them."""
        for position in range(2):
            self.writable[offset + position] &= ~(bits >> 8 * position) & 0xFF
            self.data[offset + position] &= ~(bits >> 8 * position) & 0xFF

    def capability(self, wanted: int) -> int | None:
        """Offset of a standard capability."""
        offset = self.data[CAPABILITIES]
        while offset:
            if self.data[offset] == wanted:
                return offset
            offset = self.data[offset + 1]
        return None

    def extended(self, wanted: int) -> int | None:
        """Offset of an extended capability."""
        offset = FIRST_EXTENDED
        while offset:
            header = self.get(offset)
            if header & 0xFFFF == wanted:
                return offset
            offset = header >> 20
        return None


def build_config(ids: dict[str, Any]) -> ConfigModel:
    """A type 0 configuration space from a profile's entry: ids, capabilities as dwords at their offsets."""
    config = ConfigModel()
    config.set(0x00, ids["vendor"] | ids["device"] << 16)
    config.set(COMMAND, ids.get("command", 0), 2, writable=COMMAND_WRITABLE)
    config.set(STATUS, ids.get("status", 0x10), 2, clearable=STATUS_CLEARABLE)
    config.set(0x08, ids["revision"] | ids["class"] << 8)
    config.set(0x0C, 0, 1, writable=0xFF)
    config.set(0x0E, ids.get("header_type", 0), 1)
    config.set(0x2C, ids["subsystem_vendor"] | ids["subsystem_device"] << 16)
    config.set(INTERRUPT_LINE, 0xFF, 1, writable=0xFF)
    config.set(INTERRUPT_LINE + 1, ids.get("interrupt_pin", 1), 1)
    if ids.get("rom_size"):
        config.set(ROM_BAR, 0, writable=-ids["rom_size"] & 0xFFFFF800 | 1)
    capabilities = ids.get("capabilities", [])
    if capabilities:
        config.set(CAPABILITIES, capabilities[0]["offset"], 1)
    for entry in capabilities:
        _add_capability(config, entry)
    for entry in ids.get("extended", []):
        for position, value in enumerate(entry["dwords"]):
            config.set(entry["offset"] + 4 * position, value)
        if entry["dwords"][0] & 0xFFFF == EXT_RESIZABLE_BAR:
            for position in range(2, len(entry["dwords"]), 2):
                offset = entry["offset"] + 4 * position
                config.set(offset, entry["dwords"][position], writable=0x3F00)
    return config


_CAPABILITY_BITS: dict[int, list[tuple[int, int, int]]] = {
    CAP_POWER: [(4, 0x00000103, 0x00008000)],
    CAP_EXPRESS: [(0x08, 0x0000FFFF, 0x000F0000), (0x10, 0x00000FFB, 0xC0000000), (0x28, 0x0000FFFF, 0), (0x30, 0x0000FFFF, 0)],
    CAP_MSI: [(0x00, 0x00010000, 0), (0x04, 0xFFFFFFFC, 0), (0x08, 0xFFFFFFFF, 0), (0x0C, 0x0000FFFF, 0)],
}
"""capability id -> (offset in it, writable bits, bits cleared by writing 1)"""


def _add_capability(config: ConfigModel, entry: dict[str, Any]) -> None:
    base = entry["offset"]
    for position, value in enumerate(entry["dwords"]):
        config.set(base + 4 * position, value)
    for offset, writable, clearable in _CAPABILITY_BITS.get(entry["dwords"][0] & 0xFF, []):
        config.set(base + offset, config.get(base + offset), writable=writable, clearable=clearable)


def build_bridge(ids: dict[str, Any], windows: dict[str, list[int]]) -> ConfigModel:
    """A type 1 configuration space: bus numbers, memory windows, the port's PCI Express capability."""
    config = ConfigModel()
    config.set(0x00, ids["vendor"] | ids["device"] << 16)
    config.set(COMMAND, COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER, 2, writable=COMMAND_WRITABLE)
    config.set(STATUS, 0x10, 2, clearable=STATUS_CLEARABLE)
    config.set(0x08, ids["revision"] | ids["class"] << 8)
    config.set(0x0E, 1, 1)
    for position, bus in enumerate(ids["buses"]):
        config.set(BRIDGE_BUSES + position, bus, 1, writable=0xFF)
    base, size_mib = windows["memory"]
    config.set(BRIDGE_MEMORY, _window(base, size_mib), writable=0xFFF0FFF0)
    base, size_mib = windows["prefetchable"]
    limit = base + size_mib * MIB - 1
    config.set(BRIDGE_PREFETCHABLE, _window(base, size_mib) | 0x00010001, writable=0xFFF0FFF0)
    config.set(BRIDGE_PREFETCHABLE + 4, base >> 32, writable=0xFFFFFFFF)
    config.set(BRIDGE_PREFETCHABLE + 8, limit >> 32, writable=0xFFFFFFFF)
    config.set(INTERRUPT_LINE, 0xFF, 1, writable=0xFF)
    offset = ids["express"]["offset"]
    config.set(CAPABILITIES, offset, 1)
    kind = _PORT_KINDS[ids["express"]["kind"]]
    dwords = [CAP_EXPRESS | 0x0002 << 16 | kind << 20, 0x00008FE2, 0x00002030, 0x00400D04, 0x11040040, 0, 0, 0, 0, 0, 0, 0x0000001E, 0x00000004]
    _add_capability(config, {"offset": offset, "dwords": dwords})
    return config


def _window(base: int, size_mib: int) -> int:
    """Base and limit of a bridge window as one register: address bits 31:20 in the upper 12 bits of each half."""
    limit = base + size_mib * MIB - 1
    return base >> 16 & 0xFFF0 | (limit >> 16 & 0xFFF0) << 16
