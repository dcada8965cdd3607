"""What the queues of a GPU are doing, in words: for the error of a hang.

Where single waves stand (their program counters) is not told: the register tables have no way to read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivers.amd.packets import pm4, sdma
from drivers.queue.ring import Ring

if TYPE_CHECKING:
    from drivers.amd.gpu import AmdGpu


def describe(gpu: AmdGpu) -> str:
    """The submission that does not end, where each ring stands and at which packet, and what the engines say."""
    timeline = gpu.timeline
    done = timeline.signal.value
    parts = [f"timeline {done} of {timeline.last}"]
    stuck = next((str(what) for value, what in gpu.recent if value == done + 1), "")
    if stuck:
        parts.append(f"unfinished: {stuck}")
    for ring, table in ((gpu.rings.compute, "pm4"), (gpu.rings.sdma, "sdma")):
        parts.append(_ring_state(ring, table))
    parts.append("engines: " + ", ".join(f"{name} = {value:#x}" for name, value in gpu.dev.gfx.queue_state().items()))
    return "; ".join(parts)


def _ring_state(ring: Ring, table: str) -> str:
    consumed = ring.consumed()
    state = f"{ring.name} read {consumed:#x} of {ring.put:#x}"
    if consumed == ring.put:
        return state + " (all fetched)"
    header = ring.memory.read32(consumed * ring.unit % ring.size)
    if table == "pm4":
        packet = pm4().by_opcode.get((header >> 8 & 0xFF, 0))
    else:
        packet = sdma().by_opcode.get((header & 0xFF, header >> 8 & 0xFF))
    return state + f", next packet {packet.name if packet else f'header {header:#010x}'}"
