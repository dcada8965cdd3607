"""SOC and NBIO: doorbell aperture and routing, flushing host writes (HDP), power gating of the HDP.

Sources: public amdgpu code and headers (soc21, nbio_v4_3, hdp_v6_0).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hw.mmio import ALL_ONES_32

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

log = logging.getLogger(__name__)

HDP_FLUSH_DEFAULT = 0x7F000
"""byte offset in the register BAR where the flush register is put when the card has not placed it: the last page of 512 KiB"""

ROUTE_GFX = 0
ROUTE_GFX_SECOND = 3
ROUTE_SDMA0 = 2
"""entries of the doorbell router"""


class Soc:
    """Bus interface of the GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self._hdp_flush = 0

    def init(self) -> None:
        """Let function 2 survive resets of the others, and let doorbell writes in."""
        self.dev.nbio.RCC_DEV0_EPF2_STRAP2.update(strap_no_soft_reset_dev0_f2=0)
        self.dev.nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.write(bif_doorbell_aper_en=1)

    def undo(self) -> None:
        """Keep doorbell writes out again."""
        self.dev.nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.write(0)

    def route_doorbells(self, entry: int, *, awid: int, address_31_28: int, offset: int = 0, size: int = 0) -> None:
        """Program one routing entry: doorbells [offset, offset + size), counted in dwords, go to the client of that entry; size 0: all that no other entry claims."""
        prefix = f"s2a_doorbell_port{entry}"
        fields = {
            f"{prefix}_enable": 1,
            f"{prefix}_awid": awid,
            f"{prefix}_awaddr_31_28_value": address_31_28,
            f"{prefix}_range_offset": offset,
            f"{prefix}_range_size": size,
        }
        self.dev.nbio[f"S2A_DOORBELL_ENTRY_{entry}_CTRL"].write(**fields)

    def forget(self) -> None:
        """After a reset: what was read before may not hold any more."""
        self._hdp_flush = 0

    def flush_hdp(self) -> None:
        """Make what the host wrote through BAR0 visible to the GPU. Raises BusLost when the device does not answer."""
        if not self._hdp_flush:
            self._hdp_flush = self._find_flush_register()
        self.dev.pci.fence()
        self.dev.space.window.write32(self._hdp_flush, 0)

    def _find_flush_register(self) -> int:
        register = self.dev.nbio.BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL
        value = register.read()
        if value == ALL_ONES_32:
            raise self.dev.lost("looking for the HDP flush register", register.name)
        offset: int = value & register.table.mask(register.name)
        if offset == 0:
            log.info("the HDP flush register is not placed: putting it at %#x", HDP_FLUSH_DEFAULT)
            register.write(HDP_FLUSH_DEFAULT)
            offset = HDP_FLUSH_DEFAULT
        return offset

    def gate_power(self) -> None:
        """Let the HDP's atomic memory sleep deeply when idle."""
        self.dev.hdp.HDP_MEM_POWER_CTRL.update(atomic_mem_power_ctrl_en=1, atomic_mem_power_ds_en=1)
        if "MM_ATC_L2_MISC_CG" in self.dev.mmhub:
            self.dev.mmhub.MM_ATC_L2_MISC_CG.write(enable=1, mem_ls_enable=1)
