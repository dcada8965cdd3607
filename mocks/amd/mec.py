"""MEC: the micro engines that run compute queues.

A queue exists from the moment CP_HQD_ACTIVE is set until it is taken off again, by a dequeue request, a pipe reset or a soft reset.
The engine accepts it only while it runs: graphics engine powered, its firmware loaded, started at that firmware's entry, pipe active,
not halted.
"""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import ih
from drivers.amd.regs import table as register_table
from hw.errors import NotModelled
from mocks.amd.block import ALL_BITS, Block, Reg, on_read, on_write, stored
from mocks.amd.dispatch import Launch, read_launch
from mocks.amd.fw import MEC_START
from mocks.amd.grbm import PIPES, QUEUES
from mocks.amd.hqd import Hqd
from mocks.amd.hub import VmFault
from mocks.amd.pm4 import Pm4
from mocks.amd.waves import WaveEngine

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

ME = 1
"""the micro engine whose control registers are in the tables"""
HQD_FIRST = 0x1FA9
HQD_LAST = 0x1FE0
HQD_HOLE = 0x1FB9
"""offsets in segment 0: CP_MQD_BASE_ADDR, CP_HQD_PQ_WPTR_HI, and the dword between them that has no name (errata 9)"""
SHADER_FIRST = 0x1BA0
SHADER_LAST = 0x1C9F
SHADER_PATTERNS = tuple(name for name in register_table("GC", (11, 0, 0)) if name.startswith("COMPUTE_"))
"""the compute shader registers; every gfx11 chip has the same names"""

FIRMWARE_CODE = 89
FIRMWARE_STACK = 94
"""types of LOAD_IP_FW that the engine runs"""
HALT = 1 << 30
PIPE_RESET = 16
PIPE_ACTIVE = 26
"""bits of CP_MEC_RS64_CNTL; of pipe 0, the others follow"""

DOORBELL_ENABLE = 1 << 30
DOORBELL_OFFSET = 0x0FFFFFFC
"""CP_HQD_PQ_DOORBELL_CONTROL; the offset counts dwords, in bits 27:2"""
RANGE_MASK = 0xFFC
AQL_SLOTS = 3 << 18
"""CP_HQD_PQ_CONTROL.SLOT_BASED_WPTR"""
TIME_STAMP_INTERRUPT = 1 << 26
"""CP_INT_CNTL: interrupts of end-of-pipe events"""
LDS_LIMIT = 64 << 10
"""bytes of LDS that one group can have"""
DEQUEUE_DRAIN = 1
DEQUEUE_RESET = 2
MEMORY_SHARE = 0.6
"""how much of the time that waves run the memory is busy (I)"""
DEQUEUE_TIME = 5e-6
"""from a dequeue request to the queue being off (s)"""


class Mec(Block):
    """Compute micro engines with all their queue slots."""

    key = "mec"
    domain = "gfx"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        table = gpu.table("GC")
        queue_registers = [name for name in table if table.place(name)[0] == 0 and HQD_FIRST <= table.place(name)[1] <= HQD_LAST]
        self.REGISTERS = (  # type: ignore[misc]
            stored("GC", *queue_registers, bank="queue", mask=ALL_BITS),
            stored("GC", "SPI_COMPUTE_QUEUE_RESET", bank="queue"),
            stored("GC", "CP_MEC_RS64_PRGRM_CNTR_START", "CP_MEC_RS64_PRGRM_CNTR_START_HI", bank="pipe"),
            stored("GC", "CP_MEC_DOORBELL_RANGE_LOWER", "CP_MEC_DOORBELL_RANGE_UPPER"),
            stored("GC", "CP_MEC_RS64_CNTL", reset=HALT | 0xF << PIPE_RESET),
        )
        first = gpu.bases("GC")[0]
        self.shader_registers = {first + table.place(name)[1]: name for name in table if table.place(name)[0] == 0 and SHADER_FIRST <= table.place(name)[1] <= SHADER_LAST}
        """absolute dword -> name of what SET_SH_REG may set"""
        self.hole("GC", 0, HQD_HOLE, "unnamed dword among the queue registers", bank="queue")
        self.changed = self.scheduler.signal()
        """set when engines start or stop running"""
        self.queues: dict[tuple[int, int, int], Hqd] = {}
        self._queue_registers: dict[str, Reg] = {}
        self._started = [False] * PIPES
        self._runs = [False] * PIPES
        self._engines = gpu.profile["discovery"]["gc"]["values"][0]
        """shader engines"""
        self._up_at = 0.0
        """when the engine has come up after it was last let go"""
        self._tasks: list[Any] = []
        self._waves = WaveEngine(self)
        self._launches = 0

    def attach(self) -> None:
        super().attach()
        self._queue_registers = {reg.name: reg for reg in self.registers.values() if reg.bank == "queue"}
        # One place may have two names; the later one of the table is an alias.
        table = self.gpu.table("GC")
        for name in table:
            base, offset = table.place(name)
            if base == 0 and HQD_FIRST <= offset <= HQD_LAST:
                self._queue_registers.setdefault(name, self.registers[self.gpu.index("GC", name)])
        self._control = self.reg("GC", "CP_MEC_RS64_CNTL")
        self._interrupt_control = self.gpu.index("GC", "CP_INT_CNTL")
        self._range = (self.gpu.index("GC", "CP_MEC_DOORBELL_RANGE_LOWER"), self.gpu.index("GC", "CP_MEC_DOORBELL_RANGE_UPPER"))
        self._hub = self.gpu.hub("gfx")
        for pipe in range(PIPES):
            for queue in range(QUEUES):
                key = (ME, pipe, queue)
                self.queues[key] = Hqd(key, self._queue_registers, self._hub, self.scheduler.signal())

    def reset(self) -> None:
        self._drop_queues("reset", clear=True)
        super().reset()
        self._started = [False] * PIPES
        self._update()

    def soft_reset(self, what: str) -> None:
        """GRBM_SOFT_RESET of the command processor: queues are gone, their registers 0."""
        if what in ("cp", "cpc", "gfx"):
            self._drop_queues(f"soft reset of {what}", clear=True)

    # --- what others ask ---

    def running(self, key: tuple[int, int, int]) -> bool:
        """Does the micro engine run the pipe of this queue?"""
        return self._runs[key[1]]

    def _update(self) -> None:
        """Which pipes run now."""
        control = self._control.value
        up = not control & HALT and self.clock.now() >= self._up_at
        self._runs = [up and self._started[pipe] and bool(control >> PIPE_ACTIVE + pipe & 1) and not control >> PIPE_RESET + pipe & 1 for pipe in range(PIPES)]
        self.changed.set()

    def ticks(self) -> int:
        """The GPU clock counter."""
        return int(self.clock.now() * self.profile["engine"]["clock_hz"])

    def doorbell(self, index: int, value: int) -> str:
        """A doorbell by dword index. Returns why nobody took it, "" when somebody did."""
        regs = self.gpu.regs
        byte = index << 2
        low, high = self._range
        if not regs[low] & RANGE_MASK <= byte <= regs[high] & RANGE_MASK | 3:
            return f"byte {byte:#x} lies outside CP_MEC_DOORBELL_RANGE"
        for hqd in self.queues.values():
            if hqd.active:
                control = hqd.register("CP_HQD_PQ_DOORBELL_CONTROL")
                if control & DOORBELL_ENABLE and control & DOORBELL_OFFSET == byte:
                    hqd.wptr = value
                    hqd.bell.set()
                    return ""
        return f"no active compute queue has doorbell index {index:#x}"

    def cache_action(self, control: int) -> None:
        """A GCR_CNTL value from ACQUIRE_MEM or RELEASE_MEM."""
        if self._hub.memory is not None:
            self._hub.memory.action(control)

    def end_of_pipe(self, ring_id: int, vmid: int, context: int) -> None:
        """The interrupt of an end-of-pipe event, where it is enabled."""
        if self.gpu.regs[self._interrupt_control] & TIME_STAMP_INTERRUPT:
            self.gpu.ih.raise_interrupt(ih.CLIENT_GRBM_CP, ih.CP_EOP, ring_id=ring_id, vmid=vmid, data=(context, 0, 0, 0))

    @staticmethod
    def bytes_of(pieces: list[tuple[int, int]]) -> list[bytes]:
        return [ctypes.string_at(host, length) for host, length in pieces]

    @staticmethod
    def put(host: int, data: bytes) -> None:
        ctypes.memmove(host, data, len(data))

    # --- waves ---

    def dispatch(self, hqd: Hqd, dims: tuple[int, int, int], initiator: int) -> None:
        """What a dispatch packet asks for, with the queue's shader registers as they are now."""
        launch = read_launch(hqd.shader, dims, initiator, engines=self._engines, lds_limit=LDS_LIMIT)
        if launch is not None:
            self.start_waves(hqd, launch)

    def start_waves(self, hqd: Hqd, launch: Launch) -> None:
        self._launches += 1
        self._waves.start(hqd, launch)

    def step_waves(self, hqd: Hqd) -> float:
        """Let the queue's waves go on; the time that took (s)."""
        seconds = self._waves.step(hqd)
        self.gpu.note_busy("gfx", seconds)
        self.gpu.note_busy("memory", MEMORY_SHARE * seconds)
        return seconds

    def hangs(self) -> bool:
        """A planned fault: the engine stops fetching, after a number of launches."""
        after = self.faults.argument("engine-hang")
        return after is not None and self._launches >= int(after or 0)

    # --- queues come and go ---

    @on_write("GC", "CP_HQD_ACTIVE")
    def activate(self, value: int, reg: Reg) -> None:
        hqd = self._selected()
        if hqd is None:
            return
        if not value & 1:
            self._disconnect(hqd)
        elif not hqd.active and not self._connect(hqd):
            reg.value = 0

    def _selected(self) -> Hqd | None:
        """The slot that GRBM_GFX_CNTL selects; None for one of the second micro engine, which runs nothing here."""
        return self.queues.get(self.gpu.bank_key("queue"))

    def _connect(self, hqd: Hqd) -> bool:
        if not self.running(hqd.key):
            log.warning("%r: not activated, the micro engine does not run", hqd)
            return False
        if hqd.register("CP_HQD_AQL_CONTROL") & 1 or hqd.register("CP_HQD_PQ_CONTROL") & AQL_SLOTS:
            raise NotModelled(f"{hqd!r} with AQL packets")
        try:
            hqd.connect()
        except VmFault as fault:
            log.warning("%r: not activated, %s", hqd, fault)
            return False
        if hqd.stopped_because:
            hqd.active = False
            return False
        hqd.task = self.scheduler.spawn(repr(hqd), Pm4(self, hqd).run())
        return True

    def _disconnect(self, hqd: Hqd) -> None:
        """The queue is off: what it was doing has ended, its position is in its registers."""
        if not hqd.active:
            return
        hqd.active = False
        hqd.waves.clear()
        self.scheduler.stop(hqd.task)
        hqd.task = None
        hqd.set_register("CP_HQD_ACTIVE", 0)
        hqd.set_register("CP_HQD_PQ_RPTR", hqd.rptr % hqd.ring_dwords)

    def _drop_queues(self, why: str, *, clear: bool, pipe: int | None = None) -> None:
        for hqd in self.queues.values():
            if pipe is not None and hqd.key[1] != pipe:
                continue
            if hqd.active:
                log.info("%r: dropped by %s", hqd, why)
            self._disconnect(hqd)
            hqd.shader = {}
            if clear:
                for reg in self._queue_registers.values():
                    reg.set_of(hqd.key, 0)

    @on_write("GC", "CP_HQD_DEQUEUE_REQUEST")
    def dequeue(self, value: int, reg: Reg) -> None:
        """1: stop when what was submitted is done. 2: end the waves and stop now. Either takes a moment."""
        hqd = self._selected()
        request = value & 0xF
        if hqd is None or request == 0 or not hqd.active:
            return
        if request not in (DEQUEUE_DRAIN, DEQUEUE_RESET):
            raise NotModelled(f"CP_HQD_DEQUEUE_REQUEST {request}")

        def take_off() -> Any:
            yield DEQUEUE_TIME
            while request == DEQUEUE_DRAIN and hqd.active and (hqd.waves or hqd.available()):
                yield DEQUEUE_TIME
            hqd.set_register("CP_HQD_DEQUEUE_REQUEST", 0)
            self._disconnect(hqd)

        self._tasks = [each for each in self._tasks if not each.done]
        self._tasks.append(self.scheduler.spawn(f"dequeue of {hqd!r}", take_off()))

    @on_write("GC", "SPI_COMPUTE_QUEUE_RESET")
    def reset_waves(self, value: int, reg: Reg) -> None:
        hqd = self._selected()
        if hqd is not None and value & 1:
            hqd.waves.clear()
            reg.value = 0

    @on_read("GC", *SHADER_PATTERNS)
    def read_shader_register(self, reg: Reg) -> int:
        """What the selected queue's dispatches use."""
        hqd = self._selected()
        return hqd.shader.get(reg.index, 0) if hqd is not None else 0

    @on_write("GC", *SHADER_PATTERNS)
    def write_shader_register(self, value: int, reg: Reg) -> None:
        raise NotModelled(f"write of {reg.name} over the bus instead of by SET_SH_REG")

    @on_read("GC", "CP_HQD_PQ_RPTR")
    def read_pointer(self, reg: Reg) -> int:
        hqd = self._selected()
        return hqd.rptr % hqd.ring_dwords if hqd is not None and hqd.active else reg.value

    @on_read("GC", "CP_HQD_PQ_WPTR_LO")
    def write_pointer_low(self, reg: Reg) -> int:
        hqd = self._selected()
        return hqd.wptr & ALL_BITS if hqd is not None and hqd.active else reg.value

    @on_read("GC", "CP_HQD_PQ_WPTR_HI")
    def write_pointer_high(self, reg: Reg) -> int:
        hqd = self._selected()
        return hqd.wptr >> 32 if hqd is not None and hqd.active else reg.value

    # --- the engine itself ---

    @on_write("GC", "CP_MEC_RS64_CNTL")
    def control(self, value: int, reg: Reg) -> None:
        """A pipe begins at its program counter when its reset ends."""
        for pipe in range(PIPES):
            was, is_now = reg.old >> PIPE_RESET + pipe & 1, value >> PIPE_RESET + pipe & 1
            if is_now:
                self._started[pipe] = False
                self._drop_queues("pipe reset", clear=False, pipe=pipe)
            elif was:
                self._started[pipe] = self._starts_right(pipe)
        if value & HALT == 0 and (reg.old & HALT or any(reg.old >> PIPE_RESET + pipe & 1 for pipe in range(PIPES))):
            self._up_at = self.clock.now() + self.profile["timings"]["mec_start"]
            self.scheduler.call_later(self.profile["timings"]["mec_start"] + 1e-9, self._update, "MEC start")
        self._update()

    def _starts_right(self, pipe: int) -> bool:
        """Is there firmware, and does the program counter name its entry? Of firmware that was not fabricated, the entry is not known: then any but 0."""
        loaded = self.gpu.psp.commands.loaded
        if FIRMWARE_CODE not in loaded or FIRMWARE_STACK not in loaded:
            log.info("MEC pipe %d starts without firmware", pipe)
            return False
        key = (ME, pipe)
        start = self.reg("GC", "CP_MEC_RS64_PRGRM_CNTR_START_HI").of(key) << 32 | self.reg("GC", "CP_MEC_RS64_PRGRM_CNTR_START").of(key)
        right = start == MEC_START >> 2 if loaded[FIRMWARE_CODE].simulated else start != 0
        if not right:
            log.info("MEC pipe %d starts at %#x, where no program begins", pipe, start << 2)
        return right

    @on_read("GC", "CP_MEC_RS64_INSTR_PNTR")
    def instruction_pointer(self, reg: Reg) -> int:
        """Moves while the engine runs."""
        return self.ticks() & 0xFFFFF if self.running((ME, 0, 0)) else 0


def blocks(gpu: Gpu) -> list[Block]:
    return [Mec(gpu)]
