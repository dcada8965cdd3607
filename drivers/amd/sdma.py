"""Copy engine (SDMA 6): engine and queue set-up. Only engine 0 with its queue 0 is used. Pointers count bytes.

Sources: public amdgpu code and headers (sdma_v6_0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.amd import soc
from drivers.amd.layouts.mqd import DOORBELL_DWORDS_PER_SLOT

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

DOORBELL = 0x100
"""64-bit doorbell slot of engine 0"""
DOORBELL_RANGE = 4
"""dwords"""
DOORBELL_AWID = 0xE
DOORBELL_ADDRESS = 0x3

HANG_COUNT = 100
"""units of 100 ms after which a stuck queue raises an interrupt"""
RESP_MODE = 3
REDO_DELAY = 9
READ_POLICY = 2
WRITE_POLICY = 3
RPTR_WRITEBACK_TIMER = 4
SOFT_RESET_SECONDS = 10e-3


class Sdma:
    """Engine 0 of one GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev

    def init(self) -> None:
        """Start the engine: watchdog, translation policy, unhalt, trap interrupts, doorbell route."""
        gc = self.dev.gc
        gc.SDMA0_WATCHDOG_CNTL.update(queue_hang_count=HANG_COUNT)
        gc.SDMA0_UTCL1_CNTL.update(resp_mode=RESP_MODE, redo_delay=REDO_DELAY)
        gc.SDMA0_UTCL1_PAGE.update(rd_l2_policy=READ_POLICY, wr_l2_policy=WRITE_POLICY, llc_noalloc=1)
        gc.SDMA0_F32_CNTL.update(halt=0, th1_reset=0)
        gc.SDMA0_CNTL.update(trap_enable=1)
        self.dev.soc.route_doorbells(
            soc.ROUTE_SDMA0, awid=DOORBELL_AWID, address_31_28=DOORBELL_ADDRESS, offset=DOORBELL * DOORBELL_DWORDS_PER_SLOT, size=DOORBELL_RANGE
        )

    def setup_ring(self, ring_va: int, ring_bytes: int, rptr_va: int, wptr_va: int) -> int:
        """Start queue 0 on a ring of a power-of-two size in bytes; returns its 64-bit doorbell slot. Addresses are GPU virtual."""
        gc = self.dev.gc
        with self.dev.space.batch():
            gc.SDMA0_QUEUE0_MINOR_PTR_UPDATE.write(enable=1)
            gc.write_pair("SDMA0_QUEUE0_RB_RPTR", "SDMA0_QUEUE0_RB_RPTR_HI", 0)
            gc.write_pair("SDMA0_QUEUE0_RB_WPTR", "SDMA0_QUEUE0_RB_WPTR_HI", 0)
            gc.write_pair("SDMA0_QUEUE0_RB_BASE", "SDMA0_QUEUE0_RB_BASE_HI", ring_va >> 8)
            gc.write_pair("SDMA0_QUEUE0_RB_RPTR_ADDR_LO", "SDMA0_QUEUE0_RB_RPTR_ADDR_HI", rptr_va)
            gc.write_pair("SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_LO", "SDMA0_QUEUE0_RB_WPTR_POLL_ADDR_HI", wptr_va)
            gc.SDMA0_QUEUE0_DOORBELL_OFFSET.update(offset=DOORBELL * DOORBELL_DWORDS_PER_SLOT)
            gc.SDMA0_QUEUE0_DOORBELL.write(enable=1)
            gc.SDMA0_QUEUE0_MINOR_PTR_UPDATE.write(0)
            gc.SDMA0_QUEUE0_RB_CNTL.write(
                rb_enable=1,
                rb_size=(ring_bytes // 4).bit_length() - 1,
                f32_wptr_poll_enable=1,
                rptr_writeback_enable=1,
                rptr_writeback_timer=RPTR_WRITEBACK_TIMER,
                rb_priv=1,
                rb_vmid=0,
            )
            gc.SDMA0_QUEUE0_IB_CNTL.update(ib_enable=1)
        return DOORBELL

    def stop(self) -> None:
        """Disable queue 0 and reset the engine."""
        gc = self.dev.gc
        gc.SDMA0_QUEUE0_RB_CNTL.update(rb_enable=0)
        gc.SDMA0_QUEUE0_IB_CNTL.update(ib_enable=0)
        gc.SDMA0_QUEUE0_DOORBELL.update(enable=0)
        gc.SDMA0_QUEUE0_DOORBELL_OFFSET.update(offset=0)
        gc.GRBM_SOFT_RESET.write(soft_reset_sdma0=1)
        self.dev.clock.sleep(SOFT_RESET_SECONDS)
        gc.GRBM_SOFT_RESET.write(0)
