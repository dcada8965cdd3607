"""NBIO: the bridge between the bus and the chip. Register windows, memory size, doorbell aperture and routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hw.errors import NotModelled
from hw.mmio import BytesLike
from mocks.amd.block import ALL_BITS, Block, Reg, on_read, on_write, stored
from mocks.pci import BarModel

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

MM_APERTURE = 1 << 31
"""in MM_INDEX: the address is one of memory, not of a register"""
MM_OFFSET = MM_APERTURE - 1


class Nbio(Block):
    """Everything a driver meets before it knows the chip."""

    key = "nbio"
    REGISTERS = (
        stored("EARLY", "RCC_IOV_FUNC_IDENTIFIER", mask=0),
        stored("EARLY", "RCC_CONFIG_MEMSIZE", mask=0),
        stored("EARLY", "MM_INDEX", "MM_INDEX_HI", mask=ALL_BITS),
        stored("NBIO", "BIF_BX0_PCIE_INDEX2", "BIF_BX0_PCIE_INDEX2_HI", "BIF_BX_PF0_RSMU_INDEX", "BIF_BX_PF0_RSMU_INDEX_HI"),
        stored("NBIO", "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN"),
        stored("NBIO", "RCC_DEV0_EPF2_STRAP2", mask=ALL_BITS),
        stored("NBIO", "S2A_DOORBELL_ENTRY_*_CTRL"),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        gpu.function.slots[0].model = MemoryBar(gpu)
        gpu.function.slots[5].model = RegisterBar(gpu)

    def power_on(self) -> None:
        self.reg("EARLY", "RCC_IOV_FUNC_IDENTIFIER").value = self.profile.get("function_identifier", 0)

    @on_write("NBIO", "BIF_BX0_BIF_DOORBELL_INT_CNTL")
    def doorbell_interrupts(self, value: int, reg: Reg) -> None:
        """Status bits are set by the hardware alone; writing a clear bit takes its status back and does not stay."""
        written = reg.fields_of(value)
        reg.value = value
        for name, number in reg.fields_of(reg.old).items():
            source, _, kind = name.rpartition("_")
            if kind == "status":
                reg.set_field(name, number & ~written[f"{source}_clear"] & 1)
                reg.set_field(f"{source}_clear", 0)

    # --- windows ---

    def _mm_address(self) -> int:
        return self.reg("EARLY", "MM_INDEX_HI").value << 31 | self.reg("EARLY", "MM_INDEX").value & MM_OFFSET

    @on_read("EARLY", "MM_DATA")
    def read_through_mm(self, reg: Reg) -> int:
        """VRAM, or a register by byte address, as MM_INDEX says."""
        address = self._mm_address()
        if not self.reg("EARLY", "MM_INDEX").value & MM_APERTURE:
            return self.gpu.read_register(address >> 2)
        return ALL_BITS if address % 4 else int.from_bytes(self.gpu.hdp.host_read(address, 4), "little")

    @on_write("EARLY", "MM_DATA")
    def write_through_mm(self, value: int, reg: Reg) -> None:
        address = self._mm_address()
        if not self.reg("EARLY", "MM_INDEX").value & MM_APERTURE:
            self.gpu.write_register(address >> 2, value)
        elif address % 4 == 0:
            self.gpu.hdp.host_write(address, value.to_bytes(4, "little"))

    @on_read("NBIO", "BIF_BX_PF0_RSMU_DATA")
    def read_through_rsmu(self, reg: Reg) -> int:
        """The register whose byte address RSMU_INDEX holds."""
        return self.gpu.read_register(self.reg("NBIO", "BIF_BX_PF0_RSMU_INDEX").value >> 2)

    @on_write("NBIO", "BIF_BX_PF0_RSMU_DATA")
    def write_through_rsmu(self, value: int, reg: Reg) -> None:
        self.gpu.write_register(self.reg("NBIO", "BIF_BX_PF0_RSMU_INDEX").value >> 2, value)

    @on_read("NBIO", "BIF_BX0_PCIE_DATA2")
    def read_through_pcie(self, reg: Reg) -> int:
        """The register whose byte address PCIE_INDEX2 holds; the high part would select another die, of which there is none."""
        if self.reg("NBIO", "BIF_BX0_PCIE_INDEX2_HI").value:
            return ALL_BITS
        return self.gpu.read_register(self.reg("NBIO", "BIF_BX0_PCIE_INDEX2").value >> 2)

    @on_write("NBIO", "BIF_BX0_PCIE_DATA2")
    def write_through_pcie(self, value: int, reg: Reg) -> None:
        if not self.reg("NBIO", "BIF_BX0_PCIE_INDEX2_HI").value:
            self.gpu.write_register(self.reg("NBIO", "BIF_BX0_PCIE_INDEX2").value >> 2, value)


class RegisterBar(BarModel):
    """BAR5: the low part of the register space, 32-bit accesses only."""

    name = "BAR5 (registers)"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def read(self, offset: int, width: int) -> int:
        if width != 4:
            raise NotModelled(f"{8 * width}-bit read at {offset:#x} of {self.name}", means="registers are accessed as 32-bit words")
        return self._gpu.read_register(offset >> 2)

    def write(self, offset: int, value: int, width: int) -> None:
        if width != 4:
            raise NotModelled(f"{8 * width}-bit write at {offset:#x} of {self.name}", means="registers are accessed as 32-bit words")
        self._gpu.write_register(offset >> 2, value)


class MemoryBar(BarModel):
    """BAR0: VRAM from its start."""

    name = "BAR0 (VRAM)"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def read(self, offset: int, width: int) -> int:
        return int.from_bytes(self.read_block(offset, width), "little")

    def write(self, offset: int, value: int, width: int) -> None:
        self.write_block(offset, value.to_bytes(width, "little"))

    def read_block(self, offset: int, size: int) -> bytes:
        return self._gpu.hdp.host_read(offset, size)  # type: ignore[no-any-return]

    def write_block(self, offset: int, data: BytesLike) -> None:
        self._gpu.hdp.host_write(offset, data)


def blocks(gpu: Gpu) -> list[Block]:
    return [Nbio(gpu)]
