"""Looking at a GPU that somebody booted: this process, another one, or an earlier run. Never initialises anything.

What another run set up lies at the fixed places of bootmem.py, which the tag in SCRATCH_REG7 vouches for.
"""

from __future__ import annotations

from drivers.amd import bootmem, silence
from drivers.amd.bringup import BOOT_TAG
from drivers.amd.device import FUNCTION_IDENTIFIER, AmdDevice
from drivers.amd.space import AmdSpace
from firmware.store import FirmwareStore
from hw.alloc import Tlsf
from hw.errors import NotReady
from hw.mmio import ALL_ONES_32
from hw.pci.device import PciDevice

VIRTUAL = 1 << 0
"""in RCC_IOV_FUNC_IDENTIFIER"""


def is_virtual_function(pci: PciDevice) -> bool:
    """Is this a virtual function (SR-IOV)? The function must be awake. Raises BusLost and what map_bar() raises."""
    value = AmdSpace(pci.map_bar(silence.REGISTER_BAR), pci.clock).read(FUNCTION_IDENTIFIER)
    if value == ALL_ONES_32:
        raise silence.explain(pci, "looking for a virtual function", "RCC_IOV_FUNC_IDENTIFIER")
    return bool(value & VIRTUAL)


def attach(pci: PciDevice) -> AmdDevice:
    """The names and places of a GPU that has been booted. Reads only, but for index registers.

    Raises NotReady when it has not been booted by this driver, NotSupported for virtual functions, and what discover() raises.
    """
    dev = AmdDevice(pci, FirmwareStore.from_files({}))
    dev.discover()
    check_booted(dev)
    dev.boot_memory = bootmem.lay_out(Tlsf(bootmem.BOOT_SIZE, granule=bootmem.PAGE, name="boot memory"))
    return dev


def check_booted(dev: AmdDevice) -> None:
    """Raise NotReady unless the GPU is (still) as this driver booted it, BusLost when it does not answer."""
    tag = dev.gc.SCRATCH_REG7.read()
    if tag == ALL_ONES_32:
        raise dev.lost("looking for the traces of a boot", "SCRATCH_REG7")
    if tag != BOOT_TAG:
        raise NotReady(
            f"{dev.pci.address} has not been booted by tghw",
            read=f"SCRATCH_REG7 = {tag:#010x}",
            means="its power controller is not set up to answer, or another driver's is",
            remedy="`tghw boot amd` boots it",
        )
