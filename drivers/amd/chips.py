"""AMD GPUs by PCI id: pure data for probing, before anything on the card has been touched.

Sources: the public PCI id list and published logs. What a chip really is comes from its IP discovery table; this only names it.
"""

from __future__ import annotations

from dataclasses import dataclass

VENDOR_AMD = 0x1002

GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)
"""base class and subclass of functions that can be GPUs: VGA, 3D, other display, processing accelerator"""


@dataclass(frozen=True)
class Chip:
    """A chip family as its PCI device id tells it."""

    name: str
    arch: str
    """LLVM target"""
    product: str
    supported: bool = False
    """True when the driver of this toolkit can boot it"""


CHIPS: dict[int, Chip] = {
    0x744C: Chip("Navi31", "gfx1100", "Radeon RX 7900 series", True),
    0x7448: Chip("Navi31", "gfx1100", "Radeon Pro W7900", True),
    0x747E: Chip("Navi32", "gfx1101", "Radeon RX 7700 / 7800 series", True),
    0x7480: Chip("Navi33", "gfx1102", "Radeon RX 7600 series", True),
    0x7550: Chip("Navi48", "gfx1201", "Radeon RX 9070 series"),
    0x7551: Chip("Navi48", "gfx1201", "Radeon AI Pro R9700"),
    0x7590: Chip("Navi44", "gfx1200", "Radeon RX 9060 series"),
    0x74A1: Chip("MI300X", "gfx942", "Instinct MI300X"),
    0x74A5: Chip("MI325X", "gfx942", "Instinct MI325X"),
    0x75A0: Chip("MI350X", "gfx950", "Instinct MI350X"),
    0x75A3: Chip("MI355X", "gfx950", "Instinct MI355X"),
    0x75A8: Chip("MI350P", "gfx950", "Instinct MI350P"),
}

USUAL_VERSIONS: dict[str, dict[str, tuple[int, int, int]]] = {
    "Navi31": {"GC": (11, 0, 0), "MP0": (13, 0, 0), "MP1": (13, 0, 0), "SDMA0": (6, 0, 0)},
    "Navi32": {"GC": (11, 0, 3), "MP0": (13, 0, 10), "MP1": (13, 0, 10), "SDMA0": (6, 0, 3)},
    "Navi33": {"GC": (11, 0, 2), "MP0": (13, 0, 7), "MP1": (13, 0, 7), "SDMA0": (6, 0, 2)},
}
"""versions that the chips' discovery tables name, for saying which firmware files a card will ask for; a boot goes by the table itself"""

PRODUCTS: dict[tuple[int, int], str] = {
    (0x744C, 0xC8): "Radeon RX 7900 XTX",
    (0x744C, 0xCC): "Radeon RX 7900 XT",
    (0x744C, 0xCE): "Radeon RX 7900 GRE",
    (0x7480, 0xCF): "Radeon RX 7600",
    (0x7550, 0xC0): "Radeon RX 9070 XT",
}
"""exact products by (device id, revision)"""


def chip_of(device_id: int) -> Chip | None:
    """The chip behind a PCI device id of vendor 0x1002, or None when it is not in the list."""
    return CHIPS.get(device_id)


def product_of(device_id: int, revision: int) -> str:
    """The product's name, as exact as the ids allow; "" when unknown."""
    chip = CHIPS.get(device_id)
    return PRODUCTS.get((device_id, revision), chip.product if chip else "")
