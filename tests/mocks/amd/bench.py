"""A bench for the simulated Navi31: register writes, page tables and rings made by hand, without any driver.

The bench starts where firmware has done its part: images accepted, autoload complete. Everything else is programmed here, register by
register, so that a test can leave out or change any single step.
"""

from __future__ import annotations

import struct
from typing import Any

from firmware.amd_layouts import FirmwareType
from mocks.amd.fw import MEC_START, images
from mocks.amd.psp_commands import LoadedImage
from mocks.machine import Machine

VA_BASE = 0x2000_0000_0000
ROOT = 0x10_0000
"""VRAM offset of the root table; further tables follow"""
DUMMY = 0x8_0000
SCRATCH = 0x8_1000
IH_RING = 0x4_0000
MQD = 0x9_B000
RING = VA_BASE + 0x10_0000
POINTERS = VA_BASE + 0x20_0000
EOP = VA_BASE + 0x20_1000
SDMA_RING = VA_BASE + 0x30_0000
DATA = VA_BASE + 0x100_0000
COMPUTE_DOORBELL = 0x18
SDMA_DOORBELL = 0x800

LEAF = 0x71
"""valid, executable, readable, writable"""
UNCACHED = 3 << 48
HUGE = 1 << 54
SYSTEM = 1 << 1
SNOOPED = 1 << 2
HOST = LEAF | SYSTEM | SNOOPED | UNCACHED

FULL_ACQUIRE = [0xC0065800, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0, 0xC3F1]


class Bench:
    """One simulated card."""

    def __init__(self, *, strict: bool = False, seed: int = 0, firmware: bool = True, graphics: bool = True) -> None:
        self.machine = Machine.from_profile("navi31", seed=seed, strict=strict)
        self.gpu = self.machine.gpus[0]
        self.device = self.machine.open(self.gpu.function.address)
        self.device.set_bus_master(True)
        self.clock = self.machine.clock
        self.doorbells = self.device.map_bar(2)
        self._next_table = ROOT + 0x1000
        self.gpu.vram.fill(ROOT, 0x1000)
        self.host: list[Any] = []
        if firmware:
            for kind, image in images("navi31").items():
                self.gpu.psp.commands.loaded[kind] = LoadedImage(image, 0, True)
        if graphics:
            self.gpu.domains_on.add("gfx")

    # --- registers ---

    def write(self, name: str, value: int, ip: str = "GC") -> None:
        self.gpu.write_register(self.gpu.index(ip, name), value)
        self.clock.sleep(1e-7)

    def read(self, name: str, ip: str = "GC") -> int:
        self.clock.sleep(1e-6)
        return int(self.gpu.read_register(self.gpu.index(ip, name)))

    def pair(self, low: str, high: str, value: int, ip: str = "GC") -> None:
        self.write(low, value & 0xFFFFFFFF, ip)
        self.write(high, value >> 32, ip)

    # --- memory ---

    def map(self, va: int, address: int, size: int = 0x1000, flags: int = LEAF) -> None:
        """Pages of 4 KiB, tables as needed."""
        for offset in range(0, size, 0x1000):
            self.set_entry(va + offset, 3, address + offset | flags)

    def entry_place(self, va: int, level: int) -> int:
        """VRAM offset of the entry of a level (0 root .. 3) for an address; tables above it are made."""
        table = ROOT
        offset = va - VA_BASE
        for above in range(3, 3 - level, -1):
            place = table + 8 * (offset >> 12 + 9 * above & 511)
            entry = self.gpu.vram.read64(place)
            if not entry & 1:
                entry = self._next_table | 1
                self.gpu.vram.fill(self._next_table, 0x1000)
                self._next_table += 0x1000
                self.gpu.vram.write64(place, entry)
            table = entry & 0xFFFFFFFFF000
        return table + 8 * (offset >> 12 + 9 * (3 - level) & 511)

    def set_entry(self, va: int, level: int, entry: int) -> None:
        self.gpu.vram.write64(self.entry_place(va, level), entry)

    def map_host(self, va: int, size: int, flags: int = HOST) -> Any:
        """Fresh host memory at a GPU address; returns its window."""
        memory = self.device.alloc_dma(size)
        self.host.append(memory)
        for position, page in enumerate(memory.pages):
            self.set_entry(va + 0x1000 * position, 3, page | flags)
        return memory.window

    def invalidate(self, hub: str = "GC", request: int = 0x00F80001, engine: int = 17) -> None:
        """The sequence of a TLB invalidation, acknowledge included."""
        ip, prefix = ("GC", "GCVM") if hub == "GC" else ("MMHUB", "MMVM")
        self.write(f"{prefix}_INVALIDATE_ENG{engine}_REQ", request, ip)
        for _ in range(10):
            if self.read(f"{prefix}_INVALIDATE_ENG{engine}_ACK", ip) & request & 0xFFFF == request & 0xFFFF:
                return
        raise AssertionError("the invalidation was never acknowledged")

    # --- blocks ---

    def hub(self, which: str = "GC", control: int = 0x01FFFE07) -> None:
        """A hub as a driver sets it up."""
        ip, vm, mc = ("GC", "GCVM", "GCMC_VM") if which == "GC" else ("MMHUB", "MMVM", "MMMC_VM")
        self.write(f"{mc}_AGP_BOT", 0xFFFFFF, ip)
        self.write(f"{mc}_SYSTEM_APERTURE_LOW_ADDR", 0x200000, ip)
        self.write(f"{mc}_SYSTEM_APERTURE_HIGH_ADDR", 0x217FC0, ip)
        self.write(f"{mc}_SYSTEM_APERTURE_DEFAULT_ADDR_LSB", SCRATCH >> 12, ip)
        self.write(f"{vm}_L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32", DUMMY >> 12, ip)
        self.write(f"{mc}_MX_L1_TLB_CNTL", 0x1859, ip)
        self.write(f"{vm}_L2_CNTL", 0x80801, ip)
        self.pair(f"{vm}_CONTEXT0_PAGE_TABLE_START_ADDR_LO32", f"{vm}_CONTEXT0_PAGE_TABLE_START_ADDR_HI32", VA_BASE >> 12, ip)
        self.pair(f"{vm}_CONTEXT0_PAGE_TABLE_END_ADDR_LO32", f"{vm}_CONTEXT0_PAGE_TABLE_END_ADDR_HI32", 0x7FFFFFFFF, ip)
        self.pair(f"{vm}_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32", f"{vm}_CONTEXT0_PAGE_TABLE_BASE_ADDR_HI32", ROOT | 1, ip)
        self.write(f"{vm}_CONTEXT0_CNTL", control, ip)
        self.pair(f"{vm}_INVALIDATE_ENG17_ADDR_RANGE_LO32", f"{vm}_INVALIDATE_ENG17_ADDR_RANGE_HI32", 0x1FFFFFFFFF, ip)

    def interrupts(self, control: int = 0xC0330021) -> None:
        """Ring 0 of 256 KiB at its MC address."""
        self.write("IH_RB_BASE", self.gpu.mc_base + IH_RING >> 8, "OSSSYS")
        self.write("IH_RB_BASE_HI", self.gpu.mc_base + IH_RING >> 40, "OSSSYS")
        self.write("IH_RB_CNTL", control, "OSSSYS")

    def entries(self) -> list[tuple[int, ...]]:
        """The interrupt entries between read and write pointer, as dwords."""
        size = 4 << (self.read("IH_RB_CNTL", "OSSSYS") >> 1 & 0x1F)
        position = self.read("IH_RB_RPTR", "OSSSYS") & 0x3FFFC
        end = self.read("IH_RB_WPTR", "OSSSYS") & 0x3FFFC
        found = []
        while position != end:
            found.append(struct.unpack("<8I", self.gpu.vram.read(IH_RING + position, 32)))
            position = (position + 32) % size
        return found

    def sources(self) -> list[tuple[int, int]]:
        """(client, source) of the entries."""
        return [(entry[0] & 0xFF, entry[0] >> 8 & 0xFF) for entry in self.entries()]

    def engine(self) -> None:
        """Start the micro engine, route doorbells."""
        self.write("GRBM_GFX_CNTL", 1 << 2)
        self.write("CP_MEC_RS64_PRGRM_CNTR_START", MEC_START >> 2)
        self.write("CP_MEC_RS64_PRGRM_CNTR_START_HI", MEC_START >> 34)
        self.write("GRBM_GFX_CNTL", 0)
        self.write("CP_MEC_RS64_CNTL", 1 << 30 | 1 << 16)
        self.write("CP_MEC_RS64_CNTL", 1 << 30)
        self.write("CP_MEC_DOORBELL_RANGE_UPPER", 0xF8)
        self.write("CP_MEC_RS64_CNTL", 1 << 26)
        self.clock.sleep(0.05)
        self.route()

    def route(self) -> None:
        self.write("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 1, "NBIO")
        for entry, value in ((0, 0x30000007), (3, 0x3000000D), (2, 0x3009001D)):
            self.write(f"S2A_DOORBELL_ENTRY_{entry}_CTRL", value, "NBIO")

    def mqd(self, **changes: int) -> dict[int, int]:
        """The descriptor's dwords that are not 0."""
        mc = self.gpu.mc_base + MQD
        words = {0: 0xC0310800} | dict.fromkeys((23, 24, 26, 27, 44, 45, 46, 47), 0xFFFFFFFF)
        words |= {128: mc & 0xFFFFFFFF, 129: mc >> 32, 132: 0x5501, 143: 0x40000000 | COMPUTE_DOORBELL, 145: 0x509, 162: 0x100, 167: 9}
        for low, value in ((136, RING >> 8), (139, POINTERS + 0x80), (141, POINTERS + 0x38), (165, EOP >> 8)):
            words[low], words[low + 1] = value & 0xFFFFFFFF, value >> 32
        words.update({int(name[1:]): value for name, value in changes.items()})
        return words

    def compute_queue(self, *, active: bool = True, **changes: int) -> None:
        """Memory of a 4 KiB ring and its queue in slot (1, 0, 0). changes: d145=... sets a dword of the descriptor."""
        self.ring_window = self.map_host(RING, 0x1000)
        self.pointers = self.map_host(POINTERS, 0x1000)
        self.map_host(EOP, 0x1000)
        self.invalidate()
        self.load_mqd(active=active, **changes)
        self.put = 0

    def load_mqd(self, *, active: bool = True, **changes: int) -> None:
        words = self.mqd(**changes)
        self.gpu.vram.write(MQD, b"".join(words.get(position, 0).to_bytes(4, "little") for position in range(512)))
        self.write("GRBM_GFX_CNTL", 1 << 2)
        first = self.gpu.index("GC", "CP_MQD_BASE_ADDR")
        for position in range(128, 184):
            self.gpu.write_register(first + position - 128, words.get(position, 0))
        if active:
            self.write("CP_HQD_ACTIVE", 1)
        self.write("GRBM_GFX_CNTL", 0)

    @property
    def hqd(self) -> Any:
        return self.gpu.blocks["mec"].queues[1, 0, 0]

    def queue_register(self, name: str) -> int:
        self.write("GRBM_GFX_CNTL", 1 << 2)
        value = self.read(name)
        self.write("GRBM_GFX_CNTL", 0)
        return value

    def submit(self, words: list[int], *, ring: bool = True) -> None:
        """Words into the compute ring of 1024 dwords, then the doorbell."""
        for word in words:
            self.ring_window.write32(4 * (self.put % 1024), word)
            self.put += 1
        self.pointers.write64(0x38, self.put)
        if ring:
            self.doorbells.write64(COMPUTE_DOORBELL, self.put)

    def run(self, seconds: float = 1e-3) -> None:
        self.clock.sleep(seconds)

    def read_pointer(self) -> int:
        return int(self.pointers.read32(0x80))

    def copy_engine(self, *, halted: bool = False) -> None:
        self.write("SDMA0_WATCHDOG_CNTL", 100)
        self.write("SDMA0_F32_CNTL", 1 if halted else 0)
        self.write("SDMA0_CNTL", 1)
        self.route()

    def copy_queue(self, *, control: int = 0x00841815) -> None:
        """A ring of 4 KiB (1024 dwords) for SDMA0."""
        self.sdma_window = self.map_host(SDMA_RING, 0x1000)
        self.sdma_pointers = self.map_host(SDMA_RING + 0x1000, 0x1000)
        self.invalidate()
        q = "SDMA0_QUEUE0"
        self.write(f"{q}_MINOR_PTR_UPDATE", 1)
        self.pair(f"{q}_RB_RPTR", f"{q}_RB_RPTR_HI", 0)
        self.pair(f"{q}_RB_WPTR", f"{q}_RB_WPTR_HI", 0)
        self.pair(f"{q}_RB_BASE", f"{q}_RB_BASE_HI", SDMA_RING >> 8)
        self.pair(f"{q}_RB_RPTR_ADDR_LO", f"{q}_RB_RPTR_ADDR_HI", SDMA_RING + 0x1080)
        self.pair(f"{q}_RB_WPTR_POLL_ADDR_LO", f"{q}_RB_WPTR_POLL_ADDR_HI", SDMA_RING + 0x1038)
        self.write(f"{q}_DOORBELL_OFFSET", SDMA_DOORBELL)
        self.write(f"{q}_DOORBELL", 1 << 28)
        self.write(f"{q}_MINOR_PTR_UPDATE", 0)
        self.write(f"{q}_RB_CNTL", control)
        self.write(f"{q}_IB_CNTL", 1)
        self.sdma_put = 0

    def copy_submit(self, words: list[int], *, ring: bool = True) -> None:
        for word in words:
            self.sdma_window.write32(self.sdma_put % 0x1000, word)
            self.sdma_put += 4
        if ring:
            self.doorbells.write64(SDMA_DOORBELL, self.sdma_put)

    @property
    def sdma(self) -> Any:
        return self.gpu.blocks["sdma"].engines[0]

    def fault_status(self) -> int:
        return self.read("GCVM_L2_PROTECTION_FAULT_STATUS")

    def fault_address(self) -> int:
        return (self.read("GCVM_L2_PROTECTION_FAULT_ADDR_HI32") << 32 | self.read("GCVM_L2_PROTECTION_FAULT_ADDR_LO32")) << 12


def ready(**options: Any) -> Bench:
    """Both hubs and interrupts running, compute and copy engine with a queue each."""
    bench = Bench(**options)
    bench.hub("MM")
    bench.interrupts()
    bench.hub("GC")
    bench.engine()
    bench.compute_queue()
    bench.copy_engine()
    bench.copy_queue()
    return bench


def low_high(address: int) -> list[int]:
    return [address & 0xFFFFFFFF, address >> 32]


def signal(address: int, value: int) -> list[int]:
    """RELEASE_MEM of 32 bits with cache write-back."""
    return [0xC0064900, 0x0070F514, 0x20000000, *low_high(address), value, 0, 0]


def wait(address: int, value: int, function: int = 5) -> list[int]:
    return [0xC0053C00, 0x10 | function, *low_high(address), value, 0xFFFFFFFF, 4]


def copy(source: int, target: int, size: int) -> list[int]:
    return [1, size - 1, 0, *low_high(source), *low_high(target)]


def fence(address: int, value: int) -> list[int]:
    return [0x30005, *low_high(address), value]


SDMA_FIRMWARE = (FirmwareType.SDMA_UCODE_TH0, FirmwareType.SDMA_UCODE_TH1)
