"""Packets of an SDMA 6 ring: the words of each operation, and the queue that records them."""

from __future__ import annotations

import struct
from typing import Self

from drivers.amd.packets import sdma
from drivers.amd.packets.values import MAX_IB_DWORDS, MAX_SDMA_COPY, SDMA_RETRY_FOREVER, Compare, SdmaMtype
from drivers.queue.builder import PacketError, Queue, Submitter
from drivers.queue.signals import TIMESTAMP, Signal
from drivers.queue.symbols import Operand, high32, low32

_S = sdma("sdma6")

COPY_LINEAR = _S["COPY_LINEAR"].word(0)
WRITE = _S["WRITE"].word(0)
FENCE = _S["FENCE"].word(0, mtype=SdmaMtype.UNCACHED)
TRAP = _S["TRAP"].word(0)
POLL_MEMORY_GE = _S["POLL_REGMEM"].word(0, func=Compare.GREATER_EQUAL, mem_poll=1)
POLL_MEMORY_EQ = _S["POLL_REGMEM"].word(0, func=Compare.EQUAL, mem_poll=1)
POLL_FOR_EVER = _S["POLL_REGMEM"].word(5, interval=4, retry_count=SDMA_RETRY_FOREVER)
TIMESTAMP_GLOBAL = _S["TIMESTAMP_GET_GLOBAL"].word(0)
INDIRECT = _S["INDIRECT"].word(0)
FILL_DWORDS = _S["CONST_FILL"].word(0, fillsize=2)
NOP = _S["NOP"].word(0)

ALL_ONES = 0xFFFFFFFF
INDIRECT_ALIGN = 8
INDIRECT_BYTES = 4 * INDIRECT_ALIGN
""" an indirect buffer is a multiple of this long, and the packet that calls it ends on a multiple of it"""


class CopyQueue(Queue):
    """Records commands for an SDMA ring."""

    def __init__(self, device: Submitter | None = None) -> None:
        super().__init__(device)
        self.ends_aligned = False
        """the last packet calls an indirect buffer, so that it must end at a multiple of INDIRECT_BYTES in the ring"""

    def wait(self, signal: Signal, value: Operand) -> Self:
        return self.append(POLL_MEMORY_GE, low32(signal.va), high32(signal.va), value, ALL_ONES, POLL_FOR_EVER)

    def poll_bit(self, address: Operand, value: Operand, mask: Operand = ALL_ONES) -> Self:
        return self.append(POLL_MEMORY_EQ, low32(address), high32(address), value, mask, POLL_FOR_EVER)

    def signal(self, signal: Signal, value: Operand) -> Self:
        return self.fence(signal.va, value)

    def fence(self, address: Operand, value: Operand) -> Self:
        """Store 32 bits after earlier commands."""
        return self.append(FENCE, low32(address), high32(address), value)

    def trap(self, context: int) -> Self:
        """Raise an interrupt that carries 28 bits."""
        return self.append(TRAP, context)

    def timestamp(self, signal: Signal) -> Self:
        address = signal.va + TIMESTAMP
        return self.append(TIMESTAMP_GLOBAL, low32(address), high32(address))

    def copy(self, destination: Operand, source: Operand, size: int) -> Self:
        for start in range(0, size, MAX_SDMA_COPY):
            part = min(MAX_SDMA_COPY, size - start)
            from_, to = source + start, destination + start
            self.append(COPY_LINEAR, part - 1, 0, low32(from_), high32(from_), low32(to), high32(to))
        return self

    def write(self, address: Operand, value: Operand, b64: bool = False) -> Self:
        data = (low32(value), high32(value)) if b64 else (value,)
        return self.append(WRITE, low32(address), high32(address), len(data) - 1, *data)

    def write_block(self, address: Operand, data: bytes) -> Self:
        """Store whole dwords that travel with the commands."""
        words = struct.unpack(f"<{len(data) // 4}I", data)
        return self.append(WRITE, low32(address), high32(address), len(words) - 1, *words)

    def fill(self, address: Operand, pattern: int, size: int) -> Self:
        """Repeat a dword over `size` bytes. Raises PacketError unless that is a multiple of 4 that one packet holds."""
        if size % 4 or not 0 < size <= MAX_SDMA_COPY:
            raise PacketError(f"a fill of {size} bytes with dwords")
        return self.append(FILL_DWORDS, low32(address), high32(address), pattern, size - 4)

    def nop(self) -> Self:
        """One filler dword."""
        return self.append(NOP)

    def indirect(self, va: int, dwords: int) -> Self:
        """Run `dwords` words at `va`. Raises PacketError for a buffer the engine would not take."""
        self.ends_aligned = True
        return self.append(*self.call_words(va, dwords))

    def finish_bound(self) -> None:
        while len(self.words) % INDIRECT_ALIGN:
            self.nop()

    def call_words(self, va: int, dwords: int) -> list[int]:
        if dwords % INDIRECT_ALIGN or not 0 < dwords <= MAX_IB_DWORDS or va % 32:
            raise PacketError(f"an indirect buffer of {dwords} dwords at {va:#x}", means="a multiple of 8 dwords at a multiple of 32 bytes is wanted")
        return [INDIRECT, va & 0xFFFFFFFF, va >> 32, dwords, 0, 0]
