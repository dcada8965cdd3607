"""The memory hubs: MMHUB and GFXHUB. Every address an engine uses passes one of them.

What is modelled: the system aperture (MC addresses reach VRAM untranslated), sixteen contexts of page tables, permission bits, the
caches of translations with their eighteen invalidation engines, the fault record and the default page, fault interrupts. A request
to an invalidation engine takes effect when its acknowledge appears, not before.

The graphics hub has no power until firmware autoload is complete: its registers read 0 and drop writes, acknowledges never come.
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING

from hw.errors import NotModelled
from mocks.amd.block import ALL_BITS, Block, Reg, on_read, on_write, stored
from mocks.amd.cache import CachedMemory
from mocks.amd.tlb import (
    EXECUTE,
    MTYPE_UNCACHED,
    NO_EXECUTE,
    NO_READ,
    NO_WRITE,
    NOT_VALID,
    PAGE,
    PAGE_SHIFT,
    READ,
    WALKER_NACK,
    WALKER_RANGE,
    WRITE,
    BadAddress,
    Context,
    TableCache,
    Translation,
    WalkFault,
)

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

CONTEXTS = 16
ENGINES = 18
MODE_PHYSICAL = 0
MODE_OUTSIDE_APERTURE = 3
"""SYSTEM_ACCESS_MODE: never translate; translate what lies outside the system aperture"""
APERTURE_UNIT = 18
FB_UNIT = 24
ACK_DELAY = 2e-6
"""from an invalidation request to its acknowledge (s), unless the profile says otherwise"""

CLIENT_CPF = 4
CLIENT_CPC = 5
CLIENT_TCP = 8
CLIENT_SQC_INSTRUCTION = 9
CLIENT_SQC_DATA = 10
CLIENT_SDMA0 = 13
"""client ids of the graphics hub in its fault status register; SDMA1 is the next one"""

IH_CLIENT_GFX = 10
IH_CLIENT_VMC = 18
IH_SOURCE_UTCL2_FAULT = 0

_KINDS = ("range", "dummy_page", "pde0", "valid", "read", "write", "execute")
"""fault kinds in the order of their enable pairs (interrupt, default) in CONTEXTn_CNTL, from bit 9 up"""
_FIRST_ENABLE = 9
_IDENTITY = ("1_IDENTITY_APERTURE_LOW_ADDR", "1_IDENTITY_APERTURE_HIGH_ADDR", "_IDENTITY_PHYSICAL_OFFSET")


class VmFault(Exception):
    """An access that the hub refused. It is recorded in the fault registers already."""

    def __init__(self, hub: str, vmid: int, va: int, access: int, client: int, why: str) -> None:
        super().__init__(f"{hub} hub: {'write' if access & WRITE else 'fetch' if access & EXECUTE else 'read'} of {va:#x} in VMID {vmid} by client {client}: {why}")
        self.vmid = vmid
        self.va = va
        self.access = access
        self.client = client


class Hub(Block):
    """One hub. `translate` is what engines use; addresses of this process come out of it."""

    name: str
    ip: str
    prefix: str

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.generation = 0
        """changes whenever a translation handed out before may not be used any longer"""
        self.cache = TableCache(self._read_line)
        self.memory = CachedMemory(gpu, self.bump) if gpu.strict and self.name == "gfx" else None
        """the GPU's L2 and scalar cache in strict mode; None: memory is used directly"""
        self._contexts: list[Context | None] = [None] * CONTEXTS
        self._vram = gpu.vram_chips.address
        self._fb_base = 0
        self._aperture = range(0)
        self._agp = range(0)
        self._agp_base = 0
        self._mode = MODE_PHYSICAL
        self._latched = False
        self._resets = 0
        self._ones = ctypes.create_string_buffer(b"\xff" * PAGE, PAGE)
        self._sink = ctypes.create_string_buffer(PAGE)
        self.fault_log: list[str] = []

    def attach(self) -> None:
        super().attach()
        memory = self.profile["memory"]
        for name, value in (("FB_LOCATION_BASE", memory["fb_base"]), ("FB_LOCATION_TOP", memory["fb_top"])):
            reg = self.reg(self.ip, f"{self.prefix}MC_VM_{name}")
            reg.reset = value
            reg.to_reset()
        self._settings_changed()

    def reset(self) -> None:
        super().reset()
        self._resets += 1
        self.cache.clear()
        if self.memory is not None:
            self.memory.clear()
        self._contexts = [None] * CONTEXTS
        self._latched = False
        self._settings_changed()
        self.bump()

    def bump(self) -> None:
        self.generation += 1

    # --- translation ---

    def translate(self, vmid: int, va: int, access: int, client: int = 0, *, fetch: bool = False) -> tuple[int, int]:
        """(address in this process, bytes that follow it there) for an access of one kind: READ, WRITE or EXECUTE.

        A refused access is recorded first. Then the context's default-page rule decides: with it, reads see the default page and
        writes vanish; without it, or for a fetch of commands or instructions (which make no sense from there), VmFault is raised.
        """
        found = self.cache.lookup(vmid, va)
        if found is None or not found.flags & access:
            try:
                place = self._untranslated(va, access)
                if place is not None:
                    return place
                found = self._walk(vmid, va, access)
            except WalkFault as fault:
                return self._refuse(vmid, va, access, client, fault, fetch)
        return self._place(found, va, access, client)

    def runs(self, vmid: int, va: int, size: int, access: int, client: int = 0) -> list[tuple[int, int]]:
        """The pieces of memory behind [va, va + size) as (address in this process, length). Every page is translated."""
        pieces: list[tuple[int, int]] = []
        last_end = -1
        while size > 0:
            host, room = self.translate(vmid, va, access, client)
            length = min(room, size)
            if access == READ:
                self._note_read(host, length)
            if host == last_end:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + length)
            else:
                pieces.append((host, length))
            last_end = host + length
            va += length
            size -= length
        return pieces

    def read(self, vmid: int, va: int, size: int, client: int = 0, *, fetch: bool = False) -> bytes:
        """Memory as an engine reads it."""
        host, room = self.translate(vmid, va, READ, client, fetch=fetch)
        self._note_read(host, min(size, room))
        if size <= room:
            return ctypes.string_at(host, size)
        parts = [ctypes.string_at(host, room)]
        done = room
        while done < size:
            host, room = self.translate(vmid, va + done, READ, client, fetch=fetch)
            length = min(room, size - done)
            self._note_read(host, length)
            parts.append(ctypes.string_at(host, length))
            done += length
        return b"".join(parts)

    def write(self, vmid: int, va: int, data: bytes, client: int = 0, *, fetch: bool = False) -> None:
        """Memory as an engine writes it. `fetch`: the engine's own bookkeeping, see translate()."""
        done = 0
        size = len(data)
        while done < size:
            host, room = self.translate(vmid, va + done, WRITE, client, fetch=fetch)
            length = min(room, size - done)
            ctypes.memmove(host, data[done : done + length] if length != size else data, length)
            done += length

    def read32(self, vmid: int, va: int, client: int = 0, *, fetch: bool = False) -> int:
        return int.from_bytes(self.read(vmid, va, 4, client, fetch=fetch), "little")

    def _place(self, found: Translation, va: int, access: int, client: int) -> tuple[int, int]:
        address = found.address + va - found.first
        if not found.system:
            host, room = self._vram + address, found.end - va
            if self.memory is not None:
                return self.memory.place(host, room, access, client, found.mtype != MTYPE_UNCACHED)
            return host, room
        pointer = self.gpu.host_pointer(address, bool(access & WRITE))
        if pointer is None:
            return self._nobody(address, access)
        if self.memory is not None:
            return self.memory.place(pointer[0], pointer[1], access, client, found.mtype != MTYPE_UNCACHED)
        return pointer

    def _nobody(self, address: int, access: int) -> tuple[int, int]:
        """A bus address that nobody answers, or a device that may not master the bus: reads all ones, writes vanish."""
        self.gpu.dma_read(address, 4)  # counts the unsupported request
        room = PAGE - (address & PAGE - 1)
        return ctypes.addressof(self._sink if access & WRITE else self._ones), room

    def _untranslated(self, va: int, access: int) -> tuple[int, int] | None:
        """An address that no page table is asked for: in the AGP window (host memory as one range; it is on from reset until software
        turns it off by putting its bottom above its top), or in the system aperture. Raises WalkFault for one that leads nowhere."""
        if self._mode == MODE_OUTSIDE_APERTURE:
            if va in self._agp:
                bus = self._agp_base + va - self._agp.start
                return self.gpu.host_pointer(bus) or self._nobody(bus, access)
            if va not in self._aperture:
                return None
            offset = va - self._fb_base
            if 0 <= offset < self.gpu.vram_size:
                return self._vram + offset, min(self._aperture.stop - va, self.gpu.vram_size - offset)
            default = (self._value("MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_MSB") << 32 | self._value("MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_LSB")) << PAGE_SHIFT
            inside = va & PAGE - 1
            return self._vram + default % self.gpu.vram_size + inside, PAGE - inside
        if self._mode == MODE_PHYSICAL:
            offset = va - self._fb_base
            if not 0 <= offset < self.gpu.vram_size:
                raise WalkFault("range", WALKER_RANGE, NOT_VALID, why="translation is not enabled (SYSTEM_ACCESS_MODE 0) and no VRAM lies there")
            return self._vram + offset, self.gpu.vram_size - offset
        raise NotModelled(f"{self.prefix}MC_VM_MX_L1_TLB_CNTL with system access mode {self._mode}")

    def _walk(self, vmid: int, va: int, access: int) -> Translation:
        context = self._contexts[vmid]
        if context is None:
            context = self._contexts[vmid] = self._context(vmid)
        found = self.cache.translate(vmid, va, context)
        if not found.system and found.address + va - found.first >= self.gpu.vram_size:
            raise WalkFault("valid", WALKER_NACK, 0, 1, why=f"the entry points to {found.address:#x}, beyond VRAM")
        if not found.flags & access:
            kind, bit = ("write", NO_WRITE) if access & WRITE else ("execute", NO_EXECUTE) if access & EXECUTE else ("read", NO_READ)
            raise WalkFault(kind, 0, bit, why=f"the page does not allow to {kind}")
        return found

    def _refuse(self, vmid: int, va: int, access: int, client: int, fault: WalkFault, fetch: bool) -> tuple[int, int]:
        enables = self._value(f"VM_CONTEXT{vmid}_CNTL") >> _FIRST_ENABLE + 2 * _KINDS.index(fault.kind)
        problem = VmFault(self.name, vmid, va, access, client, str(fault))
        self._record(vmid, va, access, client, fault, bool(enables & 1))
        self.fault_log.append(str(problem))
        log.info("%s", problem)
        if fetch or access & EXECUTE or not enables & 2:
            raise problem
        inside = va & PAGE - 1
        if access & WRITE:
            return ctypes.addressof(self._sink) + inside, PAGE - inside
        default = (self._value("VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32") << 32 | self._value("VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32")) << PAGE_SHIFT
        return self._vram + default % self.gpu.vram_size + inside, PAGE - inside

    def _record(self, vmid: int, va: int, access: int, client: int, fault: WalkFault, interrupt: bool) -> None:
        """The first fault stays until software clears it; later ones only set MORE_FAULTS."""
        status = self.reg(self.ip, f"{self.prefix}VM_L2_PROTECTION_FAULT_STATUS")
        if self._latched and not self._value("VM_L2_PROTECTION_FAULT_CNTL") & 2:
            status.value |= 1
            return
        self._latched = True
        write = int(bool(access & WRITE))
        status.value = fault.walker_error << 1 | fault.permission << 4 | fault.mapping_error << 8 | (client & 0x1FF) << 9 | write << 18 | vmid << 20
        self.reg(self.ip, f"{self.prefix}VM_L2_PROTECTION_FAULT_ADDR_LO32").value = va >> PAGE_SHIFT & ALL_BITS
        self.reg(self.ip, f"{self.prefix}VM_L2_PROTECTION_FAULT_ADDR_HI32").value = va >> PAGE_SHIFT + 32 & 0xF
        if interrupt:
            graphics = self.name == "gfx"
            context = (va >> PAGE_SHIFT & ALL_BITS, va >> PAGE_SHIFT + 32 & 0xF | write << 5, 0, 0)
            self.gpu.ih.raise_interrupt(IH_CLIENT_GFX if graphics else IH_CLIENT_VMC, IH_SOURCE_UTCL2_FAULT, vmid=vmid, data=context, vmid_type=0 if graphics else 1)

    def _read_line(self, address: int, system: bool) -> bytes:
        """What the walker reads: 64 bytes of a page table."""
        if system:
            pointer = self.gpu.host_pointer(address)
            if pointer is None:
                raise BadAddress(f"no host memory at bus address {address:#x}")
            return ctypes.string_at(pointer[0], 64)
        if address + 64 > self.gpu.vram_size:
            raise BadAddress(f"{address:#x} lies beyond VRAM")
        return ctypes.string_at(self._vram + address, 64)

    def _note_read(self, host: int, size: int) -> None:
        """Tell the host data path which VRAM is read: it counts what the host wrote there and did not flush."""
        offset = host - self._vram
        if 0 <= offset < self.gpu.vram_size:
            self.gpu.hdp.note_device_read(offset, size)

    # --- registers ---

    def _value(self, name: str) -> int:
        return self.gpu.regs[self.gpu.index(self.ip, self.prefix + name)]

    def _pair(self, name: str, high: str = "HI32") -> int:
        return self._value(f"{name}_{high}") << 32 | self._value(f"{name}_LO32")

    def _context(self, vmid: int) -> Context:
        control = self._value(f"VM_CONTEXT{vmid}_CNTL")
        table = f"VM_CONTEXT{vmid}_PAGE_TABLE"
        return Context(
            enabled=bool(control & 1),
            depth=control >> 1 & 3,
            block_bits=control >> 3 & 0xF,
            base=self._pair(f"{table}_BASE_ADDR"),
            start=self._pair(f"{table}_START_ADDR") << PAGE_SHIFT,
            end=(self._pair(f"{table}_END_ADDR") << PAGE_SHIFT) + PAGE - 1,
        )

    def _settings_changed(self) -> None:
        self._fb_base = (self._value("MC_VM_FB_LOCATION_BASE") & 0xFFFFFF) << FB_UNIT
        low = self._value("MC_VM_SYSTEM_APERTURE_LOW_ADDR") << APERTURE_UNIT
        self._aperture = range(low, self._value("MC_VM_SYSTEM_APERTURE_HIGH_ADDR") + 1 << APERTURE_UNIT)
        self._agp = range(self._value("MC_VM_AGP_BOT") << FB_UNIT, self._value("MC_VM_AGP_TOP") + 1 << FB_UNIT)
        self._agp_base = self._value("MC_VM_AGP_BASE") << FB_UNIT
        control = self._value("MC_VM_MX_L1_TLB_CNTL")
        self._mode = control >> 3 & 3
        self.cache.keep_pages = bool(control & 1)
        self.cache.keep_lines = bool(self._value("VM_L2_CNTL") & 1)
        self.bump()

    def _context_changed(self, vmid: int) -> None:
        """New register values apply to new walks; what is cached stays."""
        self._contexts[vmid] = None
        self.bump()

    def _request(self, engine: int, value: int) -> None:
        """An invalidation request: acknowledged, and effective, a little later."""
        acknowledge = self.reg(self.ip, f"{self.prefix}VM_INVALIDATE_ENG{engine}_ACK")
        acknowledge.value &= ~(value & 0xFFFF)
        resets = self._resets

        def done() -> None:
            if self._resets != resets:
                return
            first, end = self._range(engine)
            levels = value >> 19 & 0xF
            self.cache.invalidate(value & 0xFFFF, pages=bool(value >> 23 & 1), levels=levels, first=first, end=end)
            if value >> 24 & 1:
                self._clear_fault()
            acknowledge.value |= value & 0xFFFF
            self.bump()

        self.scheduler.call_later(self.profile.get("timings", {}).get("tlb_invalidate", ACK_DELAY), done, f"{self.name} hub invalidation")

    def _range(self, engine: int) -> tuple[int, int]:
        """What an engine's address range covers: one page, or with the S bit a power of two told by the run of low ones in the page number."""
        value = self._pair(f"VM_INVALIDATE_ENG{engine}_ADDR_RANGE")
        page = value >> 1
        if not value & 1:
            return page << PAGE_SHIFT, page + 1 << PAGE_SHIFT
        ones = (~page & page + 1).bit_length() - 1
        pages = 2 << ones
        first = page & ~(pages - 1)
        if ones >= 36:
            return 0, 1 << 64
        return first << PAGE_SHIFT, first + pages << PAGE_SHIFT

    def _clear_fault(self) -> None:
        self._latched = False
        for name in ("STATUS", "ADDR_LO32", "ADDR_HI32"):
            self.reg(self.ip, f"{self.prefix}VM_L2_PROTECTION_FAULT_{name}").value = 0

    def _l2_control(self, value: int, reg: Reg) -> None:
        """VM_L2_CNTL2: bit 0 drops all translations, bit 1 the cached table lines; both fall back by themselves."""
        self.cache.invalidate(0xFFFF, pages=bool(value & 1), levels=0xF if value & 2 else 0)
        reg.value = value & ~3
        self.bump()


def _hub_class(hub_name: str, block_ip: str, block_prefix: str, block_domain: str | None) -> type[Hub]:
    """The two hubs differ in the names of their registers."""
    p = block_prefix

    class NamedHub(Hub):
        key = f"hub.{hub_name}"
        name = hub_name
        ip = block_ip
        prefix = block_prefix
        domain = block_domain
        REGISTERS = (
            stored(block_ip, f"{p}VM_L2_CNTL3", f"{p}VM_L2_CNTL4", f"{p}VM_L2_CNTL5", f"{p}VM_L2_BANK_SELECT_RESERVED_CID", f"{p}VM_L2_BANK_SELECT_RESERVED_CID2"),
            stored(block_ip, f"{p}VM_L2_PROTECTION_FAULT_CNTL2", f"{p}VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32", f"{p}VM_L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32"),
            stored(block_ip, f"{p}VM_L2_PROTECTION_FAULT_STATUS", f"{p}VM_L2_PROTECTION_FAULT_ADDR_LO32", f"{p}VM_L2_PROTECTION_FAULT_ADDR_HI32", mask=0),
            *(stored(block_ip, f"{p}VM_L2_CONTEXT{which}_LO32", f"{p}VM_L2_CONTEXT{which}_HI32") for which in _IDENTITY),
            stored(block_ip, f"{p}MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_LSB", f"{p}MC_VM_SYSTEM_APERTURE_DEFAULT_ADDR_MSB"),
            stored(block_ip, f"{p}MC_VM_FB_OFFSET", mask=0),
            stored(block_ip, f"{p}VM_CONTEXT*_CNTL", mask=ALL_BITS),
            stored(block_ip, f"{p}VM_INVALIDATE_ENG*_ADDR_RANGE_LO32", f"{p}VM_INVALIDATE_ENG*_ADDR_RANGE_HI32"),
            stored(block_ip, f"{p}VM_INVALIDATE_ENG*_ACK", mask=0),
            *((stored(block_ip, "MM_ATC_L2_MISC_CG", optional=True),) if hub_name == "mm" else ()),
        )

        @on_write(block_ip, f"{p}VM_CONTEXT*_CNTL")
        def context_control(self, value: int, reg: Reg) -> None:
            self._context_changed(reg.number)

        @on_write(block_ip, *(f"{p}VM_CONTEXT*_PAGE_TABLE_{part}_ADDR_{half}" for part in ("BASE", "START", "END") for half in ("LO32", "HI32")))
        def context_table(self, value: int, reg: Reg) -> None:
            self._context_changed(reg.number)

        @on_write(block_ip, f"{p}MC_VM_AGP_BASE", f"{p}MC_VM_AGP_BOT", f"{p}MC_VM_AGP_TOP")
        def agp(self, value: int, reg: Reg) -> None:
            self._settings_changed()

        @on_write(block_ip, f"{p}MC_VM_SYSTEM_APERTURE_LOW_ADDR", f"{p}MC_VM_SYSTEM_APERTURE_HIGH_ADDR", f"{p}MC_VM_FB_LOCATION_BASE", f"{p}MC_VM_FB_LOCATION_TOP")
        def aperture(self, value: int, reg: Reg) -> None:
            self._settings_changed()

        @on_write(block_ip, f"{p}MC_VM_MX_L1_TLB_CNTL", f"{p}VM_L2_CNTL")
        def cache_control(self, value: int, reg: Reg) -> None:
            self._settings_changed()

        @on_write(block_ip, f"{p}VM_L2_CNTL2")
        def cache_invalidate(self, value: int, reg: Reg) -> None:
            self._l2_control(value, reg)

        @on_write(block_ip, f"{p}VM_L2_PROTECTION_FAULT_CNTL")
        def fault_control(self, value: int, reg: Reg) -> None:
            if value & 1:
                self._clear_fault()
                reg.value = value & ~1

        @on_write(block_ip, f"{p}VM_INVALIDATE_ENG*_REQ")
        def request(self, value: int, reg: Reg) -> None:
            self._request(reg.number, value)

        @on_read(block_ip, f"{p}VM_INVALIDATE_ENG*_SEM")
        def take_semaphore(self, reg: Reg) -> int:
            """Bit 0 is 1 for whoever gets it; taken until 0 is written."""
            if reg.value:
                return 0
            reg.value = 1
            return 1

    NamedHub.__name__ = NamedHub.__qualname__ = f"{hub_name.capitalize()}Hub"
    return NamedHub


MmHub = _hub_class("mm", "MMHUB", "MM", None)
GfxHub = _hub_class("gfx", "GC", "GC", "gfx")


def blocks(gpu: Gpu) -> list[Block]:
    return [MmHub(gpu), GfxHub(gpu)]
