"""IH: interrupts become 32-byte entries in rings in memory, and MSI messages.

Ring pointers are byte offsets. An entry is written at the ring's memory address, then the write pointer moves, then (ring 0, when
enabled) the message goes out. With RPTR_REARM a further message needs a write of the read pointer first.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

from drivers.amd.layouts.ih import ENTRY_SIZE, Entry, encode_entry
from mocks.amd.block import Block, Reg, on_read, on_write, stored

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

RB_ENABLE = 1 << 0
WPTR_WRITEBACK = 1 << 8
WPTR_OVERFLOW_ENABLE = 1 << 16
ENABLE_INTR = 1 << 17
RPTR_REARM = 1 << 21
WPTR_OVERFLOW_CLEAR = 1 << 31
"""bits of IH_RB_CNTL"""
RB_OVERFLOW = 1 << 0
"""in IH_RB_WPTR"""
POINTER_MASK = 0x3FFFC
DOORBELL_ENABLE = 1 << 28
DOORBELL_OFFSET = (1 << 26) - 1
REDIRECTIONS = 8
MATCH_SOURCE = 1 << 16


class Ih(Block):
    """Interrupt handler block with its two rings."""

    key = "ih"
    REGISTERS = (
        stored("OSSSYS", "IH_RB_BASE", "IH_RB_BASE_HI", "IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI", "IH_DOORBELL_RPTR", "IH_RB_WPTR"),
        stored("OSSSYS", "IH_RB_BASE_RING1", "IH_RB_BASE_HI_RING1", "IH_DOORBELL_RPTR_RING1", "IH_RB_RPTR_RING1", "IH_RB_WPTR_RING1"),
        stored("OSSSYS", "IH_STORM_CLIENT_LIST_CNTL", "IH_INT_FLOOD_CNTL", "IH_MSI_STORM_CTRL", "IH_CNTL", "IH_CNTL2"),
        stored("OSSSYS", "IH_RING1_CLIENT_CFG_INDEX"),
        stored("OSSSYS", "IH_VERSION", reset=0x00000600, mask=0),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.delivered = 0
        self.lost: list[tuple[int, int]] = []
        """(client, source) of interrupts that no ring took"""
        self._armed = True
        self._writing = False
        self._redirect = [0] * REDIRECTIONS

    def reset(self) -> None:
        super().reset()
        self._armed = True
        self._redirect = [0] * REDIRECTIONS

    # --- what engines call ---

    def raise_interrupt(
        self, client_id: int, source_id: int, ring_id: int = 0, vmid: int = 0, pasid: int = 0, data: tuple[int, int, int, int] = (0, 0, 0, 0), *, vmid_type: int = 0
    ) -> None:
        """Deliver one interrupt: into a ring if one is enabled, with a message if software asked for it. `data`: the four context dwords."""
        ring = "_RING1" if self._redirected(client_id, source_id) else ""
        ticks = int(self.clock.now() * self.profile["engine"]["clock_hz"]) & (1 << 48) - 1
        entry = Entry(client_id, source_id, ring_id, vmid, vmid_type, ticks, 1, pasid, 0, data)
        if not self._store(ring, struct.pack("<8I", *encode_entry(entry))):
            self.lost.append((client_id, source_id))
            log.info("interrupt of client %d, source %d: no ring takes it", client_id, source_id)
            return
        self.delivered += 1
        if ring == "":
            self._message()

    # --- rings ---

    def _redirected(self, client: int, source: int) -> bool:
        return any(each and each & 0xFF == client and (not each & MATCH_SOURCE or each >> 8 & 0xFF == source) for each in self._redirect)

    def _store(self, ring: str, entry: bytes) -> bool:
        """Write an entry. False when the ring is off, full without overflow mode, or its memory cannot be reached."""
        control = self.reg("OSSSYS", f"IH_RB_CNTL{ring}").value
        if not control & RB_ENABLE or self._writing:
            return False
        size = 4 << (control >> 1 & 0x1F)
        pointer = self.reg("OSSSYS", f"IH_RB_WPTR{ring}")
        offset = pointer.value & POINTER_MASK
        after = (offset + ENTRY_SIZE) % size
        overflow = after == self.reg("OSSSYS", f"IH_RB_RPTR{ring}").value & POINTER_MASK
        if overflow and not control & WPTR_OVERFLOW_ENABLE:
            return False
        base = (self.reg("OSSSYS", f"IH_RB_BASE_HI{ring}").value << 32 | self.reg("OSSSYS", f"IH_RB_BASE{ring}").value) << 8
        if not self._write_memory(control >> 24 & 0xF, base + offset, entry):
            return False
        pointer.value = after | (pointer.value | overflow) & RB_OVERFLOW
        if ring == "" and control & WPTR_WRITEBACK:
            address = self.reg("OSSSYS", "IH_RB_WPTR_ADDR_HI").value << 32 | self.reg("OSSSYS", "IH_RB_WPTR_ADDR_LO").value
            self._write_memory(control >> 24 & 0xF, address, pointer.value.to_bytes(4, "little"))
        return True

    def _write_memory(self, vmid: int, address: int, data: bytes) -> bool:
        """Through the multimedia hub. A fault there would want an interrupt itself: it is recorded, but cannot be delivered."""
        from mocks.amd.hub import VmFault

        self._writing = True
        try:
            self.gpu.hub("mm").write(vmid, address, data, fetch=True)
        except VmFault as fault:
            log.warning("interrupt ring: %s", fault)
            return False
        finally:
            self._writing = False
        return True

    def _message(self) -> None:
        control = self.reg("OSSSYS", "IH_RB_CNTL").value
        if control & ENABLE_INTR and self._armed:
            self._armed = not control & RPTR_REARM
            self.gpu.raise_msi()

    def _read_pointer_moved(self) -> None:
        self._armed = True
        if self.reg("OSSSYS", "IH_RB_RPTR").value & POINTER_MASK != self.reg("OSSSYS", "IH_RB_WPTR").value & POINTER_MASK:
            self._message()

    def doorbell(self, index: int, value: int) -> None:
        """A doorbell routed here: with IH_DOORBELL_RPTR enabled for this dword index it moves the read pointer."""
        for ring in ("", "_RING1"):
            setting = self.reg("OSSSYS", f"IH_DOORBELL_RPTR{ring}").value
            if setting & DOORBELL_ENABLE and setting & DOORBELL_OFFSET == index:
                self.reg("OSSSYS", f"IH_RB_RPTR{ring}").value = value & POINTER_MASK
                if ring == "":
                    self._read_pointer_moved()

    # --- registers ---

    @on_write("OSSSYS", "IH_RB_CNTL", "IH_RB_CNTL_RING1")
    def control(self, value: int, reg: Reg) -> None:
        if value & WPTR_OVERFLOW_CLEAR:
            pointer = self.reg("OSSSYS", reg.name.replace("CNTL", "WPTR"))
            pointer.value &= ~RB_OVERFLOW

    @on_write("OSSSYS", "IH_RB_RPTR")
    def read_pointer(self, value: int, reg: Reg) -> None:
        self._read_pointer_moved()

    @on_write("OSSSYS", "IH_RING1_CLIENT_CFG_DATA")
    def redirect(self, value: int, reg: Reg) -> None:
        """Sends a client (and source) to ring 1; IH_RING1_CLIENT_CFG_INDEX says which of the eight entries is meant."""
        self._redirect[self.reg("OSSSYS", "IH_RING1_CLIENT_CFG_INDEX").value & REDIRECTIONS - 1] = value

    @on_read("OSSSYS", "IH_RING1_CLIENT_CFG_DATA")
    def redirection(self, reg: Reg) -> int:
        return self._redirect[self.reg("OSSSYS", "IH_RING1_CLIENT_CFG_INDEX").value & REDIRECTIONS - 1]


def blocks(gpu: Gpu) -> list[Block]:
    return [Ih(gpu)]
