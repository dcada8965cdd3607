"""Interrupt handler: two rings in VRAM into which the GPU writes what happened, and what each entry means.

Ring 0 takes everything; ring 1 is set up as the hardware expects it and not read. Sources: public amdgpu code (ih_v6_0), layouts/ih.py.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivers.amd.gmc import PageFault
from drivers.amd.layouts import ih as layout
from hw.mmio import ALL_ONES_32

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

log = logging.getLogger(__name__)

RING_SIZE = 256 << 10
RING_SIZE_LOG2_DWORDS = 16
MC_SPACE_PHYSICAL = 4
"""ring and pointer addresses are MC addresses"""
MSI_STORM_DELAY = 3
STORM_CLIENT = layout.CLIENT_VMC

HARMLESS = {layout.CP_EOP, layout.SDMA_TRAP}
"""sources of the graphics clients that report normal completion"""


@dataclass(frozen=True)
class Interrupt:
    """One entry of the ring, with what it means."""

    entry: layout.Entry
    client: str
    source: str
    text: str
    is_error: bool
    fault: PageFault | None = None


class InterruptRing:
    """The rings of one GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.rptr = 0
        """byte offset in ring 0 up to which entries were taken"""

    def init(self) -> None:
        """Set both rings up and enable them, ring 0 with its interrupt."""
        regs, boot, mc = self.dev.osssys, self.dev.boot_memory, self.dev.mc_base
        common = {"rb_size": RING_SIZE_LOG2_DWORDS, "mc_space": MC_SPACE_PHYSICAL, "mc_snoop": 1, "mc_ro": 0, "mc_vmid": 0, "wptr_overflow_clear": 1}
        own = {"": {"wptr_overflow_enable": 1, "rptr_rearm": 1}, "_RING1": {"rb_full_drain_enable": 1}}
        enable = {"": {"rb_enable": 1, "enable_intr": 1}, "_RING1": {"rb_enable": 1}}
        with self.dev.space.batch():
            for suffix, address in (("", boot.ih_ring0), ("_RING1", boot.ih_ring1)):
                regs.write_pair(f"IH_RB_BASE{suffix}", f"IH_RB_BASE_HI{suffix}", mc + address >> 8)
                regs[f"IH_RB_CNTL{suffix}"].write(**common, **own[suffix])
                if not suffix:
                    regs.write_pair("IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI", mc + boot.ih_pointer0)
                regs[f"IH_RB_WPTR{suffix}"].write(0)
                regs[f"IH_RB_RPTR{suffix}"].write(0)
                regs[f"IH_DOORBELL_RPTR{suffix}"].write(0)
            regs.IH_STORM_CLIENT_LIST_CNTL.update(**{f"client{STORM_CLIENT}_is_storm_client": 1})
            regs.IH_INT_FLOOD_CNTL.update(flood_cntl_enable=1)
            if "IH_MSI_STORM_CTRL" in regs:
                regs.IH_MSI_STORM_CTRL.update(delay=MSI_STORM_DELAY)
            for suffix in own:
                regs[f"IH_RB_CNTL{suffix}"].write(**common, **own[suffix], **enable[suffix])
        self.rptr = 0

    def resume(self) -> None:
        """Go on with rings that an earlier run set up."""
        self.rptr = self.dev.osssys.IH_RB_RPTR.read() & (RING_SIZE - 1) & ~3

    def report_to(self, place: int | None) -> None:
        """Have the write pointer of ring 0 also written to video memory at this offset whenever it moves; None: no more."""
        regs = self.dev.osssys
        control = regs.IH_RB_CNTL
        if place is not None:
            regs.write_pair("IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI", self.dev.mc_base + place)
            control.update(wptr_writeback_enable=1)
        else:
            control.update(wptr_writeback_enable=0)
            regs.write_pair("IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI", self.dev.mc_base + self.dev.boot_memory.ih_pointer0)

    def waiting(self, pointer: int) -> bool:
        """Whether a write pointer, as reported to memory, tells of entries that were not taken."""
        fields = self.dev.osssys.IH_RB_WPTR.table.decode("IH_RB_WPTR", pointer)
        return fields["offset"] << 2 != self.rptr or bool(fields["rb_overflow"])

    def undo(self) -> None:
        """Stop both rings."""
        self.dev.osssys.IH_RB_CNTL.write(0)
        self.dev.osssys.IH_RB_CNTL_RING1.write(0)

    def drain(self) -> list[Interrupt]:
        """Take every waiting entry, decode it, and give its place back. Raises BusLost."""
        pointer = self.dev.osssys.IH_RB_WPTR
        value = pointer.read()
        if value == ALL_ONES_32:
            raise self.dev.lost("reading interrupts", pointer.name)
        fields = pointer.table.decode(pointer.name, value)
        wptr = fields["offset"] << 2
        found = [self.decode(entry) for entry in self._take(wptr)]
        if wptr != self.rptr or fields["rb_overflow"]:
            self.rptr = wptr
            self.dev.osssys.IH_RB_RPTR.write(wptr)
        if fields["rb_overflow"]:
            self._end_overflow()
        self._check_ras(found)
        for each in found:
            log.log(logging.WARNING if each.is_error else logging.DEBUG, "interrupt: %s", each.text)
        return found

    def _take(self, wptr: int) -> list[layout.Entry]:
        if wptr == self.rptr:
            return []
        ring = self.dev.boot_memory.ih_ring0
        if wptr > self.rptr:
            data = self.dev.vram_read(ring + self.rptr, wptr - self.rptr)
        else:
            data = self.dev.vram_read(ring + self.rptr, RING_SIZE - self.rptr)
            data += self.dev.vram_read(ring, wptr) if wptr else b""
        whole = len(data) - len(data) % layout.ENTRY_SIZE
        return [layout.decode_entry(words) for words in struct.iter_unpack(f"<{layout.ENTRY_DWORDS}I", data[:whole])]

    def _end_overflow(self) -> None:
        log.warning("the interrupt ring overflowed: interrupts were lost")
        self.dev.osssys.IH_RB_WPTR.update(rb_overflow=0)
        self.dev.osssys.IH_RB_CNTL.update(wptr_overflow_clear=1)
        self.dev.osssys.IH_RB_CNTL.update(wptr_overflow_clear=0)

    def _check_ras(self, found: list[Interrupt]) -> None:
        """Fatal hardware errors are reported beside the ring."""
        register = self.dev.nbio.BIF_BX0_BIF_DOORBELL_INT_CNTL
        value = register.read()
        if value == ALL_ONES_32:
            raise self.dev.lost("looking for hardware errors", register.name)
        fields = register.table.decode(register.name, value)
        for unit in ("ras_cntlr", "ras_athub_err_event"):
            if fields[f"{unit}_interrupt_status"]:
                register.update(**{f"{unit}_interrupt_clear": 1})
                empty = layout.Entry(3, 0, 0, 0, 0, 0, 0, 0, 0, (0, 0, 0, 0))
                found.append(Interrupt(empty, "BIF", unit, f"fatal hardware error (RAS, {unit})", True))

    def decode(self, entry: layout.Entry) -> Interrupt:
        """What an entry means; a page fault is read from its hub, and the hub cleared."""
        client = layout.CLIENTS.get(entry.client_id, f"client {entry.client_id}")
        if entry.client_id in layout.GFX_CLIENTS:
            source = layout.GFX_SOURCES.get(entry.source_id, f"source {entry.source_id}")
            if entry.source_id == layout.UTCL2_FAULT:
                return self._fault(entry, client, source, "gfx")
            if entry.source_id == layout.SQ_INTERRUPT:
                return self._shader(entry, client, source)
            return Interrupt(entry, client, source, f"{client}: {source}", entry.source_id not in HARMLESS)
        source = f"source {entry.source_id}"
        if entry.client_id == layout.CLIENT_VMC and entry.source_id == layout.UTCL2_FAULT:
            return self._fault(entry, client, "UTCL2_FAULT", "mm")
        return Interrupt(entry, client, source, f"{client}: {source}, data {' '.join(f'{word:#x}' for word in entry.data)}", True)

    def _shader(self, entry: layout.Entry, client: str, source: str) -> Interrupt:
        encoding = entry.data[1] >> 6 & 3
        if encoding != layout.SQ_ENCODING_ERROR:
            name = layout.SQ_ENCODINGS[encoding] if encoding < len(layout.SQ_ENCODINGS) else f"encoding {encoding}"
            return Interrupt(entry, client, source, f"shader message ({name})", False)
        kind = entry.data[0] >> 21 & 0xF
        return Interrupt(entry, client, source, f"shader error: {layout.SQ_ERRORS.get(kind, f'type {kind}')}", True)

    def _fault(self, entry: layout.Entry, client: str, source: str, hub: str) -> Interrupt:
        fault = self.dev.gmc.hubs[hub].read_fault()
        if fault is None:  # an earlier entry's fault was read and cleared already: the entry itself tells the address
            address = (entry.data[0] | (entry.data[1] & 0xF) << 32) << 12
            write = bool(entry.data[1] & layout.FAULT_WRITE)
            fault = PageFault(hub, address, write, "a client not told", -1, entry.vmid, (), False, 0)
        return Interrupt(entry, client, source, fault.describe(), True, fault)
