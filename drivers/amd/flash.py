"""The ways from the bus to a card's flash, on a card that nobody has booted: registers looked up, nothing else.

Works on any PciDevice that has BAR5. All places are those of device 1002:744c, the only one they are known for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drivers.amd import silence
from drivers.amd.chips import VENDOR_AMD, product_of
from drivers.amd.regs import table
from drivers.amd.space import AmdSpace
from firmware.mailbox import EarlyMailbox
from firmware.spi.held import HeldRegisters
from firmware.spi.rom_index import RomAperture
from firmware.spi.rom_sw import RomSwEngine
from hw.errors import BusError, Refused
from hw.pci.device import PciDevice
from hw.regs import RegisterBlock

DEVICE = 0x744C
"""PCI device id of the boards whose flash controller is known"""
SMUIO_VERSION, SMUIO_BASES = (13, 0, 6), (0x16800, 0x16A00)
MP0_VERSION, MP0_BASES = (13, 0, 0), (0x16000,)
"""as every Navi31 publishes them; a card with an empty flash publishes nothing"""


class WrongDevice(Refused):
    """The registers of this device's flash controller are not known."""

    code = "wrong-device"
    default_means = "the register addresses are known for Navi31 boards with device id 1002:744c only; on another chip they would hit something else"


@dataclass
class FlashPort:
    """What leads to the flash of one card."""

    pci: PciDevice
    smuio: RegisterBlock
    engine: RomSwEngine
    aperture: RomAperture
    mailbox: EarlyMailbox


def open_port(pci: PciDevice, *, held: Path | None = None, pipelined: bool = True) -> FlashPort:
    """Find the flash controllers and the mailbox of an opened card. Maps BAR5 and reads one register; writes nothing.

    held: file for the note about changed registers. Raises WrongDevice, BarUnassigned, MemoryDisabled, BusLost.
    """
    identity = pci.id
    if (identity.vendor, identity.device) != (VENDOR_AMD, DEVICE):
        name = product_of(identity.device, identity.revision) if identity.vendor == VENDOR_AMD else ""
        raise WrongDevice(f"the flash of {pci.address}", read=f"{identity.vendor:04x}:{identity.device:04x}" + (f" ({name})" if name else ""))

    def lost(what: str, place: str) -> BusError:
        return silence.explain(pci, what, place)

    pci.bar(silence.REGISTER_BAR)
    space = AmdSpace(pci.map_bar(silence.REGISTER_BAR), pci.clock)
    smuio = RegisterBlock(table("SMUIO", SMUIO_VERSION), SMUIO_BASES, space)
    mp0 = RegisterBlock(table("MP0", MP0_VERSION), MP0_BASES, space)
    if smuio.GPIO_PAD_MASK.read() == smuio.ROM_INDEX.read() == 0xFFFFFFFF:
        raise lost("looking for the flash controller", "GPIO_PAD_MASK")
    return FlashPort(
        pci,
        smuio,
        RomSwEngine(smuio, pci.clock, lost=lost, held=HeldRegisters(held) if held else None, pipelined=pipelined),
        RomAperture(smuio, lost=lost),
        EarlyMailbox(mp0.MP0_SMN_C2PMSG_115, mp0.MP0_SMN_C2PMSG_116, mp0.MP0_SMN_C2PMSG_73, pci.clock, lost=lost),
    )
