"""Boot memory: the first 32 MiB of VRAM, laid out the same way in every run, so that a later run finds what an earlier one set up."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.amd.layouts import psp as psp_layout
from drivers.amd.layouts import smu as smu_layout
from hw.alloc import Tlsf

BOOT_SIZE = 32 << 20
PAGE = 4096
MIB = 1 << 20
IH_RING_SIZE = 256 << 10
TMR_SIZE = 0x1300000
RESERVED_TOP = 64 << 20
"""bytes at the end of VRAM that belong to the card's firmware"""


@dataclass(frozen=True)
class BootMemory:
    """VRAM offsets of everything that the bring-up needs."""

    root_table: int
    scratch_page: int
    dummy_page: int
    ih_ring0: int
    ih_pointer0: int
    ih_ring1: int
    ih_pointer1: int
    psp_message: int
    psp_command: int
    psp_fence: int
    psp_ring: int
    tmr: int
    smu_table: int
    mqds: tuple[int, int]
    """descriptors of the PM4 and the AQL queue"""


def lay_out(range_: Tlsf) -> BootMemory:
    """Allocate everything in a fixed order. The order is part of the layout's version: device.BOOT_TAG changes with it."""
    return BootMemory(
        root_table=range_.alloc(PAGE, PAGE),
        scratch_page=range_.alloc(PAGE, PAGE),
        dummy_page=range_.alloc(PAGE, PAGE),
        ih_ring0=range_.alloc(IH_RING_SIZE, PAGE),
        ih_pointer0=range_.alloc(PAGE, PAGE),
        ih_ring1=range_.alloc(IH_RING_SIZE, PAGE),
        ih_pointer1=range_.alloc(PAGE, PAGE),
        psp_message=range_.alloc(psp_layout.MESSAGE_BUFFER_SIZE, 1 << psp_layout.MESSAGE_BUFFER_ALIGN_SHIFT),
        psp_command=range_.alloc(PAGE, PAGE),
        psp_fence=range_.alloc(PAGE, PAGE),
        psp_ring=range_.alloc(psp_layout.RING_SIZE, PAGE),
        tmr=range_.alloc(TMR_SIZE, MIB),
        smu_table=range_.alloc(smu_layout.DRIVER_TABLE_SIZE, PAGE),
        mqds=(range_.alloc(PAGE, PAGE), range_.alloc(PAGE, PAGE)),
    )
