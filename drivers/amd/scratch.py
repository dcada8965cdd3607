"""Private memory of waves: how much to reserve and the COMPUTE_TMPRING_SIZE that divides it among them (gfx11).

Source: public amdgpu and ROCm runtime code.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 64
"""private memory is always counted for waves of 64"""
GRANULE = 256
"""bytes; unit of WAVESIZE"""
THREAD_ALIGN = GRANULE // LANES
WAVES_BITS = 12
WAVESIZE_BITS = 15
INITIAL_BYTES = 128
"""bytes a lane that are reserved from the start"""


@dataclass(frozen=True)
class ScratchGeometry:
    """The compute units that may run waves. slots: waves a compute unit can have with private memory."""

    compute_units: int
    engines: int
    slots: int

    def per_lane(self, wanted: int) -> int:
        """Bytes a lane that are reserved for a kernel that wants so many."""
        return -(-wanted // THREAD_ALIGN) * THREAD_ALIGN

    def size(self, wanted: int) -> int:
        """Bytes to reserve so that every wave slot has its share."""
        return self.per_lane(wanted) * LANES * self.slots * self.compute_units

    def tmpring(self, wanted: int) -> int:
        """COMPUTE_TMPRING_SIZE: waves a shader engine in bits 11:0, 256-byte units a wave from bit 12. Raises ValueError beyond the field."""
        wave_size = -(-LANES * self.per_lane(wanted) // GRANULE)
        if wave_size >= 1 << WAVESIZE_BITS:
            raise ValueError(f"{wanted} bytes of private memory a lane do not fit the register")
        if not wave_size:
            return 0
        waves = self.size(wanted) // (wave_size * GRANULE) // self.engines
        waves = min(waves, self.compute_units * self.slots, (1 << WAVES_BITS) - 1)
        return waves | wave_size << WAVES_BITS
