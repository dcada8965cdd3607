"""The bridge's 512 KiB of memory that a PCIe device sees in place of host memory.

The host fills and empties it by bulk transfers; only its first 4 KiB also show in XDATA, byte by byte. It is handed out once: as the
transfer buffer of copies, or in slots as DMA memory.
"""

from __future__ import annotations

from collections.abc import Callable

from bridges.asm24.protocol import FLAGS_BUS_ADDRESS, FLAGS_XDATA, RELEASE_BUS_ADDRESS, SECTOR, SLOT, SRAM_BUS_ADDRESS, SRAM_SIZE, BridgeProtocol
from hw.buffer import TransferBuffer
from hw.errors import DmaError, NotSupported
from hw.mmio import BytesLike, Cost, Mmio
from hw.pci.device import DMA_PAGE, DmaMemory

VISIBLE = 4 << 10
"""bytes from the start that XDATA shows"""
VISIBLE_XDATA = 0xF000
FLAGS_SIZE = 16


class SramBuffer(TransferBuffer):
    """The whole SRAM as one transfer buffer. `before`: sends what waits, so that transfers keep their place among other accesses."""

    def __init__(self, protocol: BridgeProtocol, before: Callable[[], None]) -> None:
        self._protocol = protocol
        self._before = before
        self.address = SRAM_BUS_ADDRESS
        self.size = SRAM_SIZE
        self.slot = SLOT
        self.sector = SECTOR
        self.send_limit = protocol.window_limit
        self.receive_limit = protocol.receive_limit
        self.receive_waits = protocol.receive_waits
        self.release_address = RELEASE_BUS_ADDRESS
        self.peek_limit = VISIBLE
        self.flags_address = FLAGS_BUS_ADDRESS
        self.flags_size = FLAGS_SIZE

    def send(self, data: BytesLike, offset: int = 0) -> None:
        self._before()
        self._protocol.send(data, offset)

    def expect(self, size: int) -> None:
        self._before()
        self._protocol.expect(size)

    def receive(self, size: int) -> bytes:
        self._before()
        return self._protocol.receive(size)

    def peek(self, offset: int, size: int) -> bytes:
        if offset < 0 or offset + size > VISIBLE:
            raise ValueError(f"{size} bytes at {offset:#x} of the bridge's memory cannot be looked at")
        self._before()
        return self._protocol.read_xdata(VISIBLE_XDATA + offset, size)

    def read_flags(self, offset: int, size: int) -> bytes:
        self._before()
        return self._protocol.read_xdata(FLAGS_XDATA + offset, size)

    def write_flag(self, offset: int, value: int) -> None:
        self._before()
        self._protocol.write_xdata(FLAGS_XDATA + offset, bytes([value]))


class SramWindow(Mmio):
    """The host's view of a part of the SRAM. What the hardware has no way for raises NotSupported."""

    name = "bridge memory"
    cost: Cost = "round_trip"

    def __init__(self, protocol: BridgeProtocol, before: Callable[[], None], base: int, size: int) -> None:
        self._protocol = protocol
        self._before = before
        self._base = base
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        self._before()
        return self._protocol.read_xdata(self._visible(offset, size), size) if size else b""

    def write(self, offset: int, data: BytesLike) -> None:
        self.check(offset, len(data))
        self._before()
        place = self._base + offset
        if len(data) % SECTOR == 0 and place % SLOT == 0:
            for start in range(0, len(data), self._protocol.window_limit):
                self._protocol.send(data[start : start + self._protocol.window_limit], place + start)
        else:
            self._protocol.write_xdata(self._visible(offset, len(data)), data)

    def _visible(self, offset: int, size: int) -> int:
        """XDATA address of a part that shows there."""
        place = self._base + offset
        if place + size > VISIBLE:
            raise NotSupported(
                f"reaching {size} bytes at {place:#x} of the bridge's memory one by one",
                means=f"the host sees only the first {VISIBLE} bytes; the rest takes whole transfers from a multiple of {SLOT} on, in multiples of {SECTOR}",
                remedy="use the transfer buffer, or memory of the device itself",
            )
        return VISIBLE_XDATA + place

    def read8(self, offset: int) -> int:
        return self.read(offset, 1)[0]

    def write8(self, offset: int, value: int) -> None:
        self.write(offset, bytes([value & 0xFF]))

    def read32(self, offset: int) -> int:
        self.check(offset, 4, 4)
        return int.from_bytes(self.read(offset, 4), "little")

    def write32(self, offset: int, value: int) -> None:
        self.check(offset, 4, 4)
        self.write(offset, value.to_bytes(4, "little"))

    def read64(self, offset: int) -> int:
        self.check(offset, 8, 8)
        return int.from_bytes(self.read(offset, 8), "little")

    def write64(self, offset: int, value: int) -> None:
        self.check(offset, 8, 8)
        self.write(offset, value.to_bytes(8, "little"))


class Sram:
    """Who has which part of the SRAM."""

    def __init__(self, protocol: BridgeProtocol, before: Callable[[], None]) -> None:
        self._protocol = protocol
        self._before = before
        self._used: dict[int, int] = {}
        """first byte -> bytes of parts handed out as DMA memory"""
        self._buffer: SramBuffer | None = None

    def buffer(self) -> SramBuffer | None:
        """The whole SRAM; None while parts of it are in use as DMA memory."""
        if self._buffer is None and not self._used:
            self._buffer = SramBuffer(self._protocol, self._before)
        return self._buffer

    def allocate(self, size: int) -> DmaMemory:
        """Zeroed slots, the lowest that are free. Raises DmaError."""
        length = -(-size // SLOT) * SLOT
        start = 0
        for place, taken in sorted(self._used.items()):
            if place - start >= length:
                break
            start = place + taken
        if size <= 0 or self._buffer is not None or start + length > SRAM_SIZE:
            raise DmaError(
                f"{size:#x} bytes of memory that a device behind the bridge can reach",
                read="it is in use as the buffer of copies" if self._buffer is not None else f"{sum(self._used.values()):#x} of {SRAM_SIZE:#x} bytes are in use",
                means="such a device reaches no host memory, only the bridge's own",
                remedy="use memory of the device itself",
            )
        self._used[start] = length
        window = SramWindow(self._protocol, self._before, start, length)
        window.fill(0, length)
        pages = [SRAM_BUS_ADDRESS + start + offset for offset in range(0, length, DMA_PAGE)]
        return DmaMemory(window, pages, lambda: self._release(start, window))

    def _release(self, start: int, window: SramWindow) -> None:
        window.size = 0
        self._used.pop(start, None)
