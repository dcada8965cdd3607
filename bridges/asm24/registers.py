"""Registers of the bridge by name: byte addresses in its XDATA space. Bit 16 selects the second page (PHY and internal switch)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hw.regs import RegisterTable, load_table


def table() -> RegisterTable:
    """All registers of the bridge with the fields that are known."""
    return load_table(Path(__file__).parent / "asm24.reg")


@cache
def address(name: str) -> int:
    """XDATA address of a register. Raises UnknownRegister."""
    return table().place(name)[1]


PAGE_BIT = 0x10000
PAGE_MASK = 0xFFFF

LINK_UP_STATES = (0x78, 0x48)
"""LTSSM values of L0: open firmware, some builds of stock firmware"""
