"""One hardware queue descriptor: the slot (me, pipe, queue) of the compute micro engines, and the queue that is connected to it."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

from drivers.amd.layouts import mqd
from mocks.amd.hub import CLIENT_CPC

if TYPE_CHECKING:
    from mocks.amd.block import Reg
    from mocks.amd.hub import Hub
    from mocks.clock import Signal, Task

log = logging.getLogger(__name__)

SH_FIRST = 0x2E00
"""absolute dword of COMPUTE_DISPATCH_INITIATOR, the first of the compute shader registers"""

ERROR_RING = 1 << 8
ERROR_INDIRECT = 1 << 9
ERROR_EOP = 1 << 10
ERROR_RPTR_REPORT = 1 << 12
ERROR_WPTR_POLL = 1 << 13
ERROR_MQD = 1 << 18
"""bits of CP_HQD_ERROR: which access of the queue's own met a fault (MQD: state upload, SR)"""

PRIVILEGED = 1 << 8
"""CP_MQD_CONTROL.PRIV_STATE"""
NO_RPTR_UPDATE = 1 << 27
"""CP_HQD_PQ_CONTROL.NO_UPDATE_RPTR"""
PRELOAD = 1 << 0
"""CP_HQD_PERSISTENT_STATE.PRELOAD_REQ"""


class Hqd:
    """Registers are the bank of this slot; the rest is what the micro engine knows of a connected queue."""

    def __init__(self, key: tuple[int, int, int], registers: dict[str, Reg], hub: Hub, bell: Signal) -> None:
        self.key = key
        self.hub = hub
        self.bell = bell
        """set when the write pointer moves"""
        self._registers = registers
        self.task: Task | None = None
        self.active = False
        self.rptr = 0
        self.wptr = 0
        """positions in dwords since the queue was connected; the ring position is modulo the ring"""
        self.shader: dict[int, int] = {}
        """compute shader registers by absolute dword"""
        self.waves: list[Any] = []
        """dispatches whose waves have not all ended"""
        self.eop_count = 0
        self.reported = 0
        self.stopped_because = ""
        """why the queue does not go on, for people; "" while it does"""

    def __repr__(self) -> str:
        return f"queue me {self.key[0]} pipe {self.key[1]} queue {self.key[2]}"

    def register(self, name: str) -> int:
        """What a register of this slot holds."""
        return self._registers[name].of(self.key)

    def set_register(self, name: str, value: int) -> None:
        self._registers[name].set_of(self.key, value)

    def pair(self, low: str, high: str) -> int:
        return self.register(high) << 32 | self.register(low)

    def connect(self) -> None:
        """Take over what the registers say. Raises VmFault when the MQD or the write pointer cannot be read."""
        self.vmid = self.register("CP_HQD_VMID") & 0xF
        control = self.register("CP_HQD_PQ_CONTROL")
        self.ring_dwords = 2 << (control & 0x3F)
        self.ring = self.pair("CP_HQD_PQ_BASE", "CP_HQD_PQ_BASE_HI") << 8
        self.rptr_address = self.pair("CP_HQD_PQ_RPTR_REPORT_ADDR", "CP_HQD_PQ_RPTR_REPORT_ADDR_HI")
        self.wptr_address = self.pair("CP_HQD_PQ_WPTR_POLL_ADDR", "CP_HQD_PQ_WPTR_POLL_ADDR_HI")
        self.report_every = 2 << (control >> 8 & 0x3F)
        self.reports = not control & NO_RPTR_UPDATE
        self.eop = self.pair("CP_HQD_EOP_BASE_ADDR", "CP_HQD_EOP_BASE_ADDR_HI") << 8
        self.eop_dwords = 2 << (self.register("CP_HQD_EOP_CONTROL") & 0x3F)
        self.privileged = bool(self.register("CP_MQD_CONTROL") & PRIVILEGED)
        self.rptr = self.register("CP_HQD_PQ_RPTR")
        self.wptr = self.pair("CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_WPTR_HI")
        self.reported = self.rptr
        self.eop_count = 0
        self.waves.clear()
        self.stopped_because = ""
        if self.register("CP_HQD_PERSISTENT_STATE") & PRELOAD:
            self.set_register("CP_HQD_ERROR", ERROR_MQD)
            self._preload()
        self.set_register("CP_HQD_ERROR", ERROR_WPTR_POLL)
        polled = int.from_bytes(self.hub.read(self.vmid, self.wptr_address, 8, CLIENT_CPC, fetch=True), "little")
        self.wptr = max(self.wptr, polled)
        self.set_register("CP_HQD_ERROR", 0)
        self.active = True

    def _preload(self) -> None:
        """The shader registers come from the MQD in memory: dwords 1 to 127 in the order of the registers, as far as they have the same order."""
        address = self.pair("CP_MQD_BASE_ADDR", "CP_MQD_BASE_ADDR_HI")
        words = struct.unpack("<128I", self.hub.read(self.vmid, address, 512, CLIENT_CPC, fetch=True))
        if words[0] != mqd.HEADER:
            self.stopped_because = f"the MQD at {address:#x} begins with {words[0]:#010x}, not {mqd.HEADER:#010x}"
            log.warning("%s: %s", self, self.stopped_because)
        self.shader = {SH_FIRST + position - 1: words[position] for position in range(1, 53)}
        self.shader.update((SH_FIRST + 0x40 + number, words[65 + number]) for number in range(16))

    def available(self) -> int:
        """Dwords between read and write pointer. One that is further ahead than the ring is long, or behind, is taken modulo the ring."""
        ahead = self.wptr - self.rptr
        if not 0 <= ahead <= self.ring_dwords:
            log.warning("%s: write pointer %#x is not within a ring of %#x dwords ahead of read pointer %#x", self, self.wptr, self.ring_dwords, self.rptr)
            ahead %= self.ring_dwords
            self.wptr = self.rptr + ahead
        return ahead
