"""What the queues of a GPU are doing, in words: for the error of a hang.

Where single waves stand (their program counters) is not told: the register tables have no way to read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.amd.packets import Packet, pm4, sdma
from drivers.queue.ring import Ring

if TYPE_CHECKING:
    from drivers.amd.gpu import AmdGpu

SHOWN_DWORDS = 7
"""of the packet where a ring stands"""
WAITS = {
    "WAIT_REG_MEM": ("addr_lo_or_reg1", "addr_hi_or_reg2", "reference", "mask"),
    "POLL_REGMEM": ("addr_31_0", "addr_63_32", "value", "mask"),
}
"""fields of the packets that wait: address, wanted value, mask"""


def describe(gpu: AmdGpu) -> str:
    """The submission that does not end, where each ring stands and at which packet, and what the engines say."""
    timeline = gpu.timeline
    done = timeline.signal.value
    parts = [f"timeline {done} of {timeline.last}"]
    stuck = next((str(what) for value, what in gpu.recent if value == done + 1), "")
    if stuck:
        parts.append(f"unfinished: {stuck}")
    registers = gpu.dev.gfx.queue_state()
    compute, copies = gpu.rings.compute, gpu.rings.sdma
    # the register is exact, the report in memory comes only every so many dwords
    parts.append(_ring_state(compute, "pm4", compute.position(registers["CP_HQD_PQ_RPTR"])))
    parts.append(_ring_state(copies, "sdma", copies.consumed()))
    parts.append("engines: " + ", ".join(f"{name} = {value:#x}" for name, value in registers.items()))
    return "; ".join(parts)


def _ring_state(ring: Ring, table: str, consumed: int) -> str:
    state = f"{ring.name} read {consumed:#x} of {ring.put:#x}"
    if consumed == ring.put:
        return state + " (all fetched)"
    words = [ring.memory.read32((consumed * ring.unit + 4 * position) % ring.size) for position in range(SHOWN_DWORDS)]
    if table == "pm4":
        packet = pm4().by_opcode.get((words[0] >> 8 & 0xFF, 0))
    else:
        packet = sdma().by_opcode.get((words[0] & 0xFF, words[0] >> 8 & 0xFF))
    if packet is None:
        return state + f", next header {words[0]:#010x}"
    return state + f", next packet {packet.name}{_awaited(packet, words)}"


def _awaited(packet: Packet, words: list[int]) -> str:
    """What a packet that waits for memory waits for."""
    if packet.name == "EVENT_WRITE":
        return ", which waits for the waves to end"
    places = WAITS.get(packet.name)
    if places is None:
        return ""
    low, high, value, mask = (words[packet.place(name).dword] for name in places)
    return f" of the word at {high << 32 | low:#x}: value {value:#x}, mask {mask:#x}"
