"""The GPU's own memory and the ways to it: BAR0 with the HDP write path, MC addresses as firmware engines use them.

What memory holds when power comes is noise that depends on the machine's seed. It costs nothing until it is touched: the whole range
shows one file of noise over and over, privately.
"""

from __future__ import annotations

import os
import random
from functools import cache

from hw.mmio import BytesLike, LocalMmio
from mocks.memory import SparseMemory, anonymous_file

NOISE_PERIOD = 4 << 20
"""bytes after which the noise repeats"""
NOISE_SIZE = 64 << 20
"""bytes of the file that is shown over and over; large, so that few mappings cover a card's memory"""
QUIET_TOP = 1 << 20
"""the last MiB is written by the boot firmware"""


@cache
def _noise_file(seed: int) -> int:
    """A file of noise, made once per process and seed."""
    fd = anonymous_file("noise")
    generator = random.Random(seed)
    pattern = generator.randbytes(NOISE_PERIOD)
    for _ in range(NOISE_SIZE // NOISE_PERIOD):
        os.write(fd, pattern)
    return fd


class Unreachable(Exception):
    """An address that leads a firmware engine nowhere."""


class Vram:
    """The memory chips."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._memory = SparseMemory(size)
        self._phase = seed
        self.window: LocalMmio = self._memory.view(0, size, "VRAM")
        self.address = self._memory.address
        self.scramble()

    def scramble(self) -> None:
        """Power came, or was away: noise everywhere except the last MiB, which is zero."""
        fd = _noise_file(0)
        page = 4096
        rotation = self._phase * 37 % (NOISE_SIZE // page) * page
        self._phase += 1
        offset = 0
        end = self.size - QUIET_TOP
        while offset < end:
            length = min(NOISE_SIZE - rotation, end - offset)
            self._memory.map_file(offset, length, fd, rotation)
            rotation = 0
            offset += length
        self.window.fill(end, QUIET_TOP)

    def read(self, offset: int, size: int) -> bytes:
        return self.window.read(offset, size)

    def write(self, offset: int, data: BytesLike) -> None:
        self.window.write(offset, data)
