"""Which USB devices are ASM24xx bridges, and which protocol they speak.

The ids alone do not tell: ADD1:0001 exists with stock and with open firmware. The product string decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Protocol(Enum):
    """What the firmware that runs on the bridge understands."""

    CUSTOM = "custom"
    """open firmware: vendor control requests and bulk streams"""
    STOCK = "stock"
    """the maker's firmware: vendor SCSI commands"""
    ROM = "rom"
    """mask-ROM boot loader: SCSI commands for writing the flash, nothing else"""
    DFU = "dfu"
    """boot stub of the open firmware: writes the flash, nothing else"""


@dataclass(frozen=True)
class Identity:
    """One pair of ids. product: the low byte of a stock product id is free (`product_mask`)."""

    vendor: int
    product: int
    product_mask: int = 0xFFFF
    title: str = ""

    def matches(self, vendor: int, product: int) -> bool:
        return vendor == self.vendor and product & self.product_mask == self.product


IDENTITIES = (
    Identity(0xADD1, 0x0001, title="open firmware, or re-branded stock firmware"),
    Identity(0x3801, 0x0001, title="open firmware"),
    Identity(0x174C, 0x2460, 0xFFF0, title="stock firmware or ROM loader"),
    Identity(0xADD1, 0xB007, title="boot stub of the open firmware"),
    Identity(0x3801, 0xB007, title="boot stub of the open firmware"),
)
"""in the order in which devices are listed"""
BOOT_STUB_PRODUCT = 0xB007

CUSTOM_PREFIX = "custom"
ROM_PREFIX = "AS2462"
STOCK_DEFAULT_PRODUCT = 0x2462
"""product id built into the stock image, which also calls itself AS2462"""


def identity_of(vendor: int, product: int) -> Identity | None:
    """The entry for these ids, None for a device that is no such bridge."""
    return next((each for each in IDENTITIES if each.matches(vendor, product)), None)


def protocol_of(product: int, product_string: str) -> Protocol:
    """The protocol of a bridge with this product id and product string."""
    if product == BOOT_STUB_PRODUCT:
        return Protocol.DFU
    if product_string.startswith(CUSTOM_PREFIX):
        return Protocol.CUSTOM
    if product_string.startswith(ROM_PREFIX) and product != STOCK_DEFAULT_PRODUCT:
        return Protocol.ROM
    return Protocol.STOCK


def udev_rule() -> str:
    """Rules that give the user of this seat access to every bridge; one line a pair of ids."""
    lines = []
    for each in IDENTITIES:
        product = f"{each.product:04x}" if each.product_mask == 0xFFFF else f"{each.product >> 4:03x}?"
        match = f'SUBSYSTEM=="usb", ATTR{{idVendor}}=="{each.vendor:04x}", ATTR{{idProduct}}=="{product}"'
        lines.append(f'{match}, MODE="0660", GROUP="plugdev", TAG+="uaccess", ATTR{{power/control}}="on"')
    return "\n".join(lines)


UDEV_FILE = "/etc/udev/rules.d/60-tghw-bridge.rules"
