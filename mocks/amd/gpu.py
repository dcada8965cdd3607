"""A simulated AMD GPU: register file, memory, and the blocks that live in them."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts.discovery import HW_IDS, OFFSET_FROM_END
from drivers.amd.regs import early_table, table
from hw.errors import NotModelled
from hw.mmio import LocalMmio
from hw.regs import RegisterTable
from mocks.amd.block import Block, Reg
from mocks.amd.discovery import build_image, damaged
from mocks.amd.hub import VmFault
from mocks.amd.vram import Unreachable, Vram
from mocks.clock import Engine

if TYPE_CHECKING:
    from mocks.machine import Machine
    from mocks.pci import MockFunction

log = logging.getLogger(__name__)

BLOCK_MODULES = ("nbio", "hdp", "psp", "rom", "psp_mailbox", "smu", "grbm", "rlc", "hub", "ih", "doorbell", "mec", "sdma")
"""modules of this package, each with blocks(gpu) -> list[Block]; in order of construction"""

Handler = Callable[[], int]


class Gpu:
    """One GPU. Blocks reach everything through it."""

    def __init__(self, machine: Machine, function: MockFunction, profile: dict[str, Any]) -> None:
        self.machine = machine
        self.function = function
        self.profile = profile
        self.faults = machine.faults.at(function.address)
        self.clock = machine.clock
        self.scheduler = machine.scheduler
        self.strict = machine.strict
        self.regs: dict[int, int] = {}
        self.domains_on: set[str] = set()
        self.dropped_writes: list[tuple[str, int]] = []
        """writes to registers without power: (name, value)"""
        self.busy_seconds = {"gfx": 0.0, "memory": 0.0}
        """how long engines have worked, by unit (simulated s)"""
        self._reads: dict[int, Handler] = {}
        self._writes: dict[int, Callable[[int], None]] = {}
        self._declared: dict[int, Reg] = {}
        self._owners: dict[int, Block] = {}
        self._tables: dict[str, RegisterTable] = {"EARLY": early_table()}
        self._bases: dict[str, tuple[int, ...]] = {"EARLY": ()}
        published = {HW_IDS[ip["hw_id"]]: tuple(ip["bases"]) for ip in reversed(profile["discovery"]["ips"]) if ip["hw_id"] in HW_IDS}
        for ip, version in profile["registers"].items():
            major, minor, revision = (int(part) for part in version.split("."))
            self._tables[ip] = table(ip, (major, minor, revision))
            self._bases[ip] = published[ip]
        self.vram_size: int = profile["memory"]["memsize_mib"] << 20
        self.mc_base: int = profile["memory"]["fb_base"] << 24
        self._frame_buffer_size: int = profile["memory"]["fb_top"] + 1 - profile["memory"]["fb_base"] << 24
        self.vram_chips = Vram(self.vram_size, machine.seed)
        self.vram: LocalMmio = self.vram_chips.window
        self.blocks: dict[str, Block] = {}
        for name in BLOCK_MODULES:
            if importlib.util.find_spec(f"mocks.amd.{name}") is None:
                continue
            for block in importlib.import_module(f"mocks.amd.{name}").blocks(self):
                self.blocks[block.key] = block
        for block in self.blocks.values():
            block.attach()
        self._resetting = False
        self.resets = 0
        function.on_bus_reset.append(self.bus_reset)
        self.power_on()

    # --- registers ---

    def table(self, ip: str) -> RegisterTable:
        return self._tables[ip]

    def bases(self, ip: str) -> tuple[int, ...]:
        return self._bases[ip]

    def index(self, ip: str, name: str) -> int:
        """Absolute dword index of a register of the tables."""
        base, offset = self._tables[ip].place(name)
        return offset if base is None else self._bases[ip][base] + offset

    def reg(self, ip: str, name: str) -> Reg:
        """A register that a block declares. KeyError where none does."""
        return self._declared[self.index(ip, name)]

    def name_of(self, index: int) -> str:
        """The name the tables have for an index."""
        if index in self._declared:
            return self._declared[index].name
        for ip, registers in self._tables.items():
            for name in registers:
                base, _ = registers.place(name)
                if (base is None or base < len(self._bases[ip])) and self.index(ip, name) == index:
                    return name
        return "no register of the tables"

    def declared(self, index: int) -> Reg | None:
        """The register at an index, if some block declares one."""
        return self._declared.get(index)

    def stored_value(self, index: int) -> int | None:
        """What a register holds if a write to it does nothing but store; None for registers that act, or do not exist."""
        reg = self._declared.get(index)
        return None if reg is None or reg.acts or not self._selects(reg) else reg.value

    def read_register(self, index: int) -> int:
        """A read by anybody. Raises NotModelled for what no block declares."""
        handler = self._reads.get(index)
        if handler is None:
            raise NotModelled(f"read of {self.name_of(index)} (dword {index:#x}, byte {index * 4:#x})")
        return handler()

    def write_register(self, index: int, value: int) -> None:
        """A write by anybody. Raises NotModelled for what no block declares."""
        handler = self._writes.get(index)
        if handler is None:
            if self.hdp.catches(index):
                return
            raise NotModelled(f"write of {value:#010x} to {self.name_of(index)} (dword {index:#x}, byte {index * 4:#x})")
        handler(value)

    def bind(self, reg: Reg, on_read: Callable[[Reg], int] | None, on_write: Callable[[int, Reg], None] | None, owner: Block) -> None:
        """Make a register exist. One block owns it."""
        index = reg.index
        if index in self._owners:
            raise AssertionError(f"{reg.name} is declared by {type(self._owners[index]).__name__} and by {type(owner).__name__}")
        self._owners[index] = owner
        self._declared[index] = reg
        reg.acts = on_write is not None
        if reg.bank is None and on_read is None and (reg.domain is None or reg.always_on):
            self._reads[index] = partial(self.regs.__getitem__, index)
        else:
            self._reads[index] = partial(self._read, reg, on_read)
        self._writes[index] = partial(self._write, reg, on_write)

    def _selects(self, reg: Reg) -> bool:
        return reg.bank is None or self.bank_key(reg.bank) is not None

    def _read(self, reg: Reg, handler: Callable[[Reg], int] | None) -> int:
        if reg.domain is not None and not reg.always_on and reg.domain not in self.domains_on:
            return 0
        if not self._selects(reg):
            return 0
        return handler(reg) if handler is not None else reg.value

    def _write(self, reg: Reg, handler: Callable[[int, Reg], None] | None, value: int) -> None:
        if reg.domain is not None and not reg.always_on and reg.domain not in self.domains_on:
            self.dropped_writes.append((reg.name, value))
            log.info("write of %#x to %s without power: dropped", value, reg.name)
            return
        if not self._selects(reg):
            return
        old = reg.value
        reg.old = old
        reg.value = old & ~reg.mask | value & reg.mask
        if handler is not None:
            handler(reg.value, reg)

    def bank_key(self, bank: str) -> Any:
        """What GRBM_GFX_CNTL selects now; None when it selects nothing."""
        return self.blocks["grbm"].bank_key(bank)  # type: ignore[attr-defined]

    # --- memory and bus ---

    @property
    def bus_master(self) -> bool:
        return self.function.bus_master

    def raise_msi(self) -> bool:
        """Interrupt the host, if it lets the device."""
        return self.function.raise_msi()

    def dma_read(self, address: int, size: int) -> bytes:
        """Host memory by bus address; all ones when the device may not master the bus or nobody answers."""
        if not self.bus_master:
            return b"\xff" * size
        return self.function.memory.dma_read(address, size)

    def dma_write(self, address: int, data: bytes) -> None:
        """Host memory by bus address; vanishes when the device may not master the bus or nobody answers."""
        if self.bus_master:
            self.function.memory.dma_write(address, data)

    def host_pointer(self, address: int, write: bool = False) -> tuple[int, int] | None:
        """(address in this process, bytes to the end of the page) of a bus address; None when the device cannot reach it."""
        return self.function.memory.host_pointer(address, write) if self.bus_master else None

    # --- named blocks ---

    @property
    def psp(self) -> Any:
        return self.blocks["psp"]

    @property
    def rom(self) -> Any:
        return self.blocks["rom"]

    @property
    def smu(self) -> Any:
        return self.blocks["smu"]

    @property
    def rlc(self) -> Any:
        return self.blocks["rlc"]

    @property
    def ih(self) -> Any:
        return self.blocks["ih"]

    @property
    def doorbell(self) -> Any:
        return self.blocks["doorbell"]

    @property
    def hdp(self) -> Any:
        return self.blocks["hdp"]

    def hub(self, name: str) -> Any:
        """The memory hub "gfx" or "mm"."""
        return self.blocks[f"hub.{name}"]

    # --- firmware engines: memory by MC address ---

    def mc_read(self, address: int, size: int) -> bytes:
        """Memory as PSP, SMU and IH see it: through the multimedia hub, VMID 0. Raises Unreachable."""
        self._check_end(address, size)
        try:
            return self.hub("mm").read(0, address, size, fetch=True)  # type: ignore[no-any-return]
        except VmFault as fault:
            raise Unreachable(str(fault)) from fault

    def mc_write(self, address: int, data: bytes) -> None:
        """The same for writes. Raises Unreachable."""
        self._check_end(address, len(data))
        try:
            self.hub("mm").write(0, address, data, fetch=True)
        except VmFault as fault:
            raise Unreachable(str(fault)) from fault

    def _check_end(self, address: int, size: int) -> None:
        """Firmware looks whether a range at an MC address ends inside the memory there is."""
        offset = address - self.mc_base
        if 0 <= offset < self._frame_buffer_size and offset + size > self.vram_size:
            raise Unreachable(f"MC {address:#x} and {size:#x} bytes behind it go beyond the VRAM's end")

    # --- power and reset ---

    def power_on(self) -> None:
        """Power has come: every block at its reset values, the boot firmware at work."""
        self.scheduler.spawn("boot firmware", self._post_later(self.profile["psp"]["post_time"]))
        for block in self.blocks.values():
            block.power_on()

    def _post_later(self, seconds: float) -> Engine:
        yield seconds
        self._post()

    def _post(self) -> None:
        """The boot firmware has found its image, trained the memory, described the card and started the boot loader."""
        if "rom" in self.blocks and not self.rom.start():
            return
        self.vram.write(self.vram_size - OFFSET_FROM_END, damaged(build_image(self.profile["discovery"]), self.faults))
        if not self.faults.active("memsize-zero"):
            self.reg("EARLY", "RCC_CONFIG_MEMSIZE").value = self.profile["memory"]["memsize_mib"]
        self.psp.post()
        if "psp_mailbox" in self.blocks:
            self.blocks["psp_mailbox"].post()  # type: ignore[attr-defined]

    def mode1_reset(self) -> None:
        """Reset of the whole chip: a moment later nothing answers, then everything is as after power-on, memory scrambled."""
        if not self._resetting:
            self._resetting = True
            self.scheduler.spawn("mode-1 reset", self._reset_sequence())

    def _reset_sequence(self) -> Engine:
        times = self.profile["timings"]
        yield times["reset_start"]
        self.function.in_reset = True
        self._to_reset_values()
        yield times["reset_dark"] - times["reset_start"]
        self.function.in_reset = False
        self._resetting = False
        for block in self.blocks.values():
            block.power_on()
        yield times["reset_ready"] - times["reset_dark"]
        self._post()

    def bus_reset(self) -> None:
        """Hot reset from the bus: as power-on."""
        self._to_reset_values()
        self.function.in_reset = False
        self.power_on()

    def _to_reset_values(self) -> None:
        self.resets += 1
        for block in self.blocks.values():
            block.reset()
        self.domains_on.clear()
        self.vram_chips.scramble()

    # --- what a fault plan or a power model needs to know ---

    def reach(self, place: str) -> None:
        """The boot got to a place: "psp-bootloader", "sos", "ring", "smu", "autoload". Planned bus losses happen here."""
        if self.faults.argument("all-ones-stage") == place:
            self.function.link_up = False

    def note_busy(self, unit: str, seconds: float) -> None:
        """An engine worked for this long (simulated s). unit: "gfx" or "memory"."""
        self.busy_seconds[unit] += seconds
