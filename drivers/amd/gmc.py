"""Graphics memory controller: where VRAM lies, the two hubs that translate addresses, TLB invalidation, faults.

The multimedia hub ("mm") serves PSP, IH and SMU; the graphics hub ("gfx") serves compute and, from generation 11 on, SDMA. Both use
VMID 0 with one set of page tables. Addresses inside the system aperture are physical ("MC addresses": VRAM offset + mc_base).

Sources: public amdgpu code and headers (gfxhub_v3_0, mmhub_v3_0, gmc_v11_0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivers.amd.layouts import ih as ih_layout
from hw.errors import DeviceError, HubError, WaitTimeout
from hw.mmio import ALL_ONES_32
from hw.regs import Register, RegisterBlock

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

VA_BASE = 0x2000_0000_0000
"""first GPU virtual address of the window that VMID 0 translates"""
VA_END = min(VA_BASE + (1 << 48) - 1, 0x7FFF_FFFF_FFFF)
PAGE_SHIFT = 12
LOCATION_SHIFT = 24
"""FB_LOCATION counts 16 MiB"""
LOCATION_MASK = 0xFFFFFF
APERTURE_SHIFT = 18
"""the system aperture counts 256 KiB"""

ENGINES = 18
ENGINE = 17
"""the invalidation engine this driver uses"""
ALL_PAGES = 0x1F_FFFF_FFFF
NO_IDENTITY = 0xF_FFFF_FFFF
"""low end of the identity aperture above its high end (0): off"""
MTYPE_UC = 3
SYSTEM_ACCESS_BY_APERTURE = 3
"""inside the aperture physical, outside translated"""
PAGE_TABLE_DEPTH = 3
SECURE_FAULT_BITS = 0x0180_0000
"""enable bits of CONTEXT0_CNTL that the table does not name"""
L2_BANK_SELECT = 9
BIGK_FRAGMENT = 6
WALKER_PRIORITY_CLIENT = 0x1FF

INVALIDATE_WITHIN = 10.0
HUB_NAMES = ("gfx", "mm")
_PREFIXES = {"gfx": "GC", "mm": "MM"}
_TITLES = {"gfx": "graphics hub", "mm": "multimedia hub"}
_FAULT_KINDS = ("range", "dummy_page", "pde0", "valid", "read", "write", "execute")


@dataclass(frozen=True)
class PageFault:
    """A latched protection fault."""

    hub: str
    address: int
    """virtual address of the page"""
    write: bool
    client: str
    client_id: int
    vmid: int
    reasons: tuple[str, ...]
    more: bool
    """further faults came after this one"""
    status: int

    def describe(self) -> str:
        access = "write" if self.write else "read"
        reasons = ", ".join(self.reasons) or "no reason given"
        more = ", more faults followed" if self.more else ""
        return f"page fault of the {_TITLES[self.hub]} at VA {self.address:#x}: {access} by {self.client}, VMID {self.vmid}: {reasons}{more}"


class Hub:
    """One memory hub."""

    def __init__(self, dev: AmdDevice, name: str, block: RegisterBlock) -> None:
        self.dev = dev
        self.name = name
        self.prefix = _PREFIXES[name]
        self.block = block
        self.ready = False
        """registers are set up, invalidations are possible"""

    def reg(self, suffix: str) -> Register:
        """A register by its name without the hub's prefix, "VM_L2_CNTL"."""
        return self.block[f"{self.prefix}{suffix}"]

    def pair(self, suffix: str, value: int, low: str = "_LO32", high: str = "_HI32") -> None:
        """Write a 64-bit value to a pair of registers, low half first."""
        self.reg(suffix + low).write(value & ALL_ONES_32)
        self.reg(suffix + high).write(value >> 32)

    def init(self) -> None:
        """Set up apertures, caches and the translation of VMID 0. Raises HubError when the registers do not hold what was written."""
        gmc, boot = self.dev.gmc, self.dev.boot_memory
        with self.dev.space.batch():
            self.reg("MC_VM_AGP_BASE").write(0)
            self.reg("MC_VM_AGP_BOT").write(LOCATION_MASK)  # bottom above top: no AGP aperture
            self.reg("MC_VM_AGP_TOP").write(0)
            self.reg("MC_VM_SYSTEM_APERTURE_LOW_ADDR").write(gmc.fb_base >> APERTURE_SHIFT)
            self.reg("MC_VM_SYSTEM_APERTURE_HIGH_ADDR").write(gmc.fb_end >> APERTURE_SHIFT)
            self.pair("MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR", boot.scratch_page >> PAGE_SHIFT, "_LSB", "_MSB")
            self.pair("VM_L2_PROTECTION_FAULT_DEFAULT_ADDR", boot.dummy_page >> PAGE_SHIFT)
            self.reg("VM_L2_PROTECTION_FAULT_CNTL2").update(active_page_migration_pte_read_retry=1)
            self.reg("MC_VM_MX_L1_TLB_CNTL").update(
                enable_l1_tlb=1, system_access_mode=SYSTEM_ACCESS_BY_APERTURE, enable_advanced_driver_model=1, system_aperture_unmapped_access=0, mtype=MTYPE_UC
            )
            self.init_caches()
            self.pair("VM_CONTEXT0_PAGE_TABLE_START_ADDR", VA_BASE >> PAGE_SHIFT)
            self.pair("VM_CONTEXT0_PAGE_TABLE_END_ADDR", VA_END >> PAGE_SHIFT)
            self.pair("VM_CONTEXT0_PAGE_TABLE_BASE_ADDR", boot.root_table | 1)
            self.enable_context()
            self.pair("VM_L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR", NO_IDENTITY)
            self.pair("VM_L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR", 0)
            self.pair("VM_L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET", 0)
            ranges = [ALL_PAGES & ALL_ONES_32, ALL_PAGES >> 32] * ENGINES
            self.dev.space.write_block(self.reg("VM_INVALIDATE_ENG0_ADDR_RANGE_LO32").index, ranges)
        self.ready = True

    def init_caches(self) -> None:
        """Translation caches of the hub."""
        self.reg("VM_L2_CNTL").update(
            enable_l2_cache=1,
            enable_l2_fragment_processing=0,
            enable_default_page_out_to_system_memory=1,
            l2_pde0_cache_tag_generation_mode=0,
            pde_fault_classification=0,
            context1_identity_access_mode=1,
            identity_mode_fragment_size=0,
        )
        self.reg("VM_L2_CNTL2").update(invalidate_all_l1_tlbs=1, invalidate_l2_cache=1)
        self.reg("VM_L2_CNTL3").write(l2_cache_4k_associativity=1, l2_cache_bigk_associativity=1, bank_select=L2_BANK_SELECT, l2_cache_bigk_fragment_size=BIGK_FRAGMENT)
        self.reg("VM_L2_CNTL4").write(l2_cache_4k_partition_count=1)
        self.reg("VM_L2_CNTL5").write(walker_priority_client_id=WALKER_PRIORITY_CLIENT)

    def enable_context(self) -> None:
        """Turn translation of VMID 0 on, every fault reported and sent to the dummy page; then see whether the hub holds it."""
        register = self.reg("VM_CONTEXT0_CNTL")
        faults = {f"{kind}_protection_fault_enable_{action}": 1 for kind in _FAULT_KINDS for action in ("interrupt", "default")}
        value = register.encode(enable_context=1, page_table_depth=PAGE_TABLE_DEPTH, page_table_block_size=0, **faults) | SECURE_FAULT_BITS
        register.write(value)
        seen = register.read()
        if seen == ALL_ONES_32:
            raise self.dev.lost(f"setting up the {_TITLES[self.name]}", register.name)
        known = register.table.mask(register.name)
        if (seen ^ value) & known:
            raise HubError(
                f"the {_TITLES[self.name]} does not hold what is written to it",
                read=f"{register.name} = {seen:#010x} after writing {value:#010x}",
                means="the hub is powered down, or the register table does not fit this chip",
            )

    def disable(self) -> None:
        """Stop translating and caching."""
        self.ready = False
        self.reg("VM_CONTEXT0_CNTL").write(0)
        self.reg("MC_VM_MX_L1_TLB_CNTL").write(0)
        self.reg("VM_L2_CNTL").write(0)

    def invalidate(self, vmid: int = 0) -> None:
        """Forget every cached translation of a VMID. The HDP must have been flushed before. Raises HubError, BusLost."""
        if self.name != "mm":
            self._request_invalidation(vmid)
            return
        semaphore = self.reg(f"VM_INVALIDATE_ENG{ENGINE}_SEM")
        taken = True
        try:
            try:
                self._acquire(semaphore, vmid)
            except HubError:
                taken = False
                raise
            self._request_invalidation(vmid)
        finally:
            if taken:  # or perhaps taken, when interrupted on the way: nobody else would ever give it back
                semaphore.write(0)
        reserved = self.reg("VM_L2_BANK_SELECT_RESERVED_CID2")
        reserved.update(reserved_cache_private_invalidation=1)
        reserved.read()  # the read orders the invalidation before what follows

    def _acquire(self, semaphore: Register, vmid: int) -> None:
        """Take the engine's semaphore: the read that finds it free takes it.

        The engine is this driver's alone. When the semaphore stays taken, a driver that died held it, or the answer to the read that took
        it was lost on the way (a bridge that repeats a read): given back once, it is tried again.
        """

        def wait() -> None:
            self._await(semaphore, lambda value: bool(value & 1), vmid, "acquiring the invalidation semaphore", holder="the semaphore is never given back, or ")

        try:
            wait()
        except HubError:
            semaphore.write(0)
            wait()

    def _request_invalidation(self, vmid: int) -> None:
        self.reg(f"VM_INVALIDATE_ENG{ENGINE}_REQ").write(
            per_vmid_invalidate_req=1 << vmid,
            flush_type=0,
            invalidate_l2_ptes=1,
            invalidate_l2_pde0=1,
            invalidate_l2_pde1=1,
            invalidate_l2_pde2=1,
            invalidate_l1_ptes=1,
        )
        acknowledge = self.reg(f"VM_INVALIDATE_ENG{ENGINE}_ACK")
        self._await(acknowledge, lambda value: bool(value >> vmid & 1), vmid, "acknowledge of the invalidation", typical=2e-6)

    def _await(self, register: Register, until: Callable[[int], bool], vmid: int, what: str, *, typical: float = 0.0, holder: str = "") -> None:
        """Wait for a register of the invalidation. Raises HubError, BusLost."""
        try:
            self.dev.wait(register, until, what=what, within=INVALIDATE_WITHIN, typical=typical)
        except WaitTimeout as error:
            raise HubError(
                f"TLB invalidation of VMID {vmid} in the {_TITLES[self.name]}: {error.what}",
                read=error.read,
                means=f"{holder}the hub is not set up, its clock is gated, or it hangs",
            ) from error

    def read_fault(self, *, clear: bool = True) -> PageFault | None:
        """The latched fault, or None. Clearing lets the hub latch the next one. Raises BusLost."""
        status = self.reg("VM_L2_PROTECTION_FAULT_STATUS")
        value = status.read()
        if value == ALL_ONES_32:
            raise self.dev.lost("reading a page fault", status.name)
        if value == 0:
            return None
        page = self.reg("VM_L2_PROTECTION_FAULT_ADDR_HI32").read() << 32 | self.reg("VM_L2_PROTECTION_FAULT_ADDR_LO32").read()
        if clear:
            self.reg("VM_L2_PROTECTION_FAULT_CNTL").update(clear_protection_fault_status_addr=1)
        return decode_fault(self.name, value, status.table.decode(status.name, value), page << PAGE_SHIFT)


def decode_fault(hub: str, status: int, fields: dict[str, int], address: int) -> PageFault:
    """A fault from its status register's fields."""
    reasons = [text for bit, text in enumerate(ih_layout.PERMISSION_FAULTS) if fields["permission_faults"] >> bit & 1]
    if fields["walker_error"]:
        reasons.append(f"walker error: {ih_layout.WALKER_ERRORS[fields['walker_error']]}")
    if fields["mapping_error"]:
        reasons.append("mapping error")
    cid = fields["cid"]
    client = ih_layout.HUB_CLIENTS_GFX.get(cid, f"client {cid}") if hub == "gfx" else f"client {cid}"
    return PageFault(hub, address, bool(fields["rw"]), client, cid, fields["vmid"], tuple(reasons), bool(fields["more_faults"]), status)


class Gmc:
    """Both hubs and the place of VRAM in their address space."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev
        self.hubs = {"gfx": Hub(dev, "gfx", dev.gc), "mm": Hub(dev, "mm", dev.mmhub)}
        self.fb_base = 0
        self.fb_end = 0
        """last 16 MiB unit of VRAM, as an address"""

    def locate(self) -> None:
        """Read where VRAM lies. Raises BusLost, DeviceError for a place that makes no sense."""
        base, top, offset = (self.dev.mmhub[f"MMMC_VM_FB_{name}"] for name in ("LOCATION_BASE", "LOCATION_TOP", "OFFSET"))
        base_value, top_value, offset_value = base.read(), top.read(), offset.read()
        if ALL_ONES_32 in (base_value, top_value, offset_value):
            raise self.dev.lost("reading where the video memory lies", base.name)
        self.fb_base = (base_value & LOCATION_MASK) << LOCATION_SHIFT
        self.fb_end = (top_value & LOCATION_MASK) << LOCATION_SHIFT
        if self.fb_end < self.fb_base or self.fb_base + self.dev.vram_size > self.fb_end + (1 << LOCATION_SHIFT):
            raise DeviceError(
                "the video memory's place does not hold its size",
                read=f"FB_LOCATION {self.fb_base:#x}..{self.fb_end:#x}, size {self.dev.vram_size:#x}",
                means="the card's own firmware (IFWI) has not set the memory up",
                remedy="power-cycle the card",
            )
        own_offset = (offset_value & LOCATION_MASK) << LOCATION_SHIFT
        if own_offset:
            raise DeviceError(
                "the hub adds an offset to the video memory of a single card",
                read=f"{offset.name} = {own_offset:#x}",
                means="the card is set up as a member of a hive, which gfx11 cards cannot be",
                remedy="power-cycle the card",
            )

    @property
    def mc_base(self) -> int:
        """MC address of VRAM offset 0."""
        return self.fb_base

    def invalidate(self, names: tuple[str, ...] = HUB_NAMES) -> None:
        """Flush host writes, then forget cached translations in the named hubs that are set up."""
        self.dev.soc.flush_hdp()
        for name in names:
            hub = self.hubs[name]
            if hub.ready:
                hub.invalidate()

    def undo(self) -> None:
        """Turn the multimedia hub off."""
        self.hubs["mm"].disable()
