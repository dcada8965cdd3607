"""The ROM_INDEX/ROM_DATA aperture of Navi31's SMUIO: reads the first 2 MiB of the flash, writes nothing.

Writes to its registers arrive byte-swapped on a card that booted from its flash; on one that did not they seem to arrive plain. Which of
the two holds is found out with one harmless value before anything else is written.

Source: the flash tools of a GPU project, seen working on device 1002:744c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from firmware.spi.controller import Progress, no_progress
from firmware.spi.errors import ApertureByteOrder, ApertureMirrored, ImageRefused, RomUnreachable
from firmware.spi.rom_sw import bus_lost
from hw.errors import BusError, OutOfWindow
from hw.mmio import ALL_ONES_32
from hw.regs import RegisterBlock
from hw.signals import guarded_signals, uninterrupted

PAGE = 0x10000
"""bytes between two writes of the index"""
SIZE = 0x200000
INDEX_SHIFT = 8
"""the index counts units of 256 bytes"""
TEST_VALUE = 0x00001200
"""written to ROM_INDEX to see the byte order: the same neither way round, an offset inside the flash"""
IMAGE_MAGIC = bytes.fromhex("aa55aa55")
"""what a flash that a card booted from begins with"""
BATCH = 256
"""dwords read at a time"""


def swapped(value: int) -> int:
    """The four bytes in the other order."""
    return int.from_bytes(value.to_bytes(4, "little"), "big")


Arrange = Callable[[int], int]

ARRANGE: dict[str, Arrange] = {"plain": int, "swapped": swapped}
"""byte order -> how a value must be written to arrive"""


class RomAperture:
    """Reads the flash through an index and a data register. `smuio` has ROM_CNTL, ROM_INDEX, ROM_DATA."""

    name = "rom-index"
    size = SIZE

    def __init__(self, smuio: RegisterBlock, *, lost: Callable[[str, str], BusError] = bus_lost) -> None:
        self._regs = smuio
        self._window = smuio.ROM_DATA.space.window
        self._lost = lost
        self.byte_order = ""
        """"plain" or "swapped", once it is known"""

    def reachable(self) -> bool:
        """Does the ROM controller answer? Reads only."""
        return self._regs.ROM_CNTL.read() != ALL_ONES_32

    @contextmanager
    def session(self) -> Iterator[None]:
        """Reading switched on, the byte order known; both registers as found afterwards."""
        with guarded_signals():
            with uninterrupted():
                control, index = self._regs.ROM_CNTL.read(), self._regs.ROM_INDEX.read()
                if control == ALL_ONES_32:
                    what = "opening the ROM_INDEX aperture"
                    raise self._lost(what, "ROM_CNTL") if index == ALL_ONES_32 else RomUnreachable(what, read="ROM_CNTL = 0xffffffff")
                arrange = self._find_order(index)
            try:
                with uninterrupted():
                    self._regs.ROM_CNTL.write(arrange(control | self._regs.ROM_CNTL.encode(index_enable=1)))
                yield
            finally:
                with uninterrupted(), suppress(BusError):  # on a lost bus what happened before is the error to report
                    self._regs.ROM_INDEX.write(arrange(index))
                    self._regs.ROM_CNTL.write(arrange(control))

    def _find_order(self, index: int) -> Arrange:
        """How values must be written so that they arrive. Leaves ROM_INDEX as found."""
        self._regs.ROM_INDEX.write(TEST_VALUE)
        seen = self._regs.ROM_INDEX.read()
        if seen == TEST_VALUE:
            self.byte_order = "plain"
        elif seen == swapped(TEST_VALUE):
            self.byte_order = "swapped"
        else:
            self._regs.ROM_INDEX.write(index)
            if seen == ALL_ONES_32:
                raise self._lost("testing the byte order of ROM_INDEX", "ROM_INDEX")
            raise ApertureByteOrder("the byte order of ROM_INDEX is not clear", read=f"wrote {TEST_VALUE:#010x}, read {seen:#010x}")
        arrange = ARRANGE[self.byte_order]
        self._regs.ROM_INDEX.write(arrange(index))
        return arrange

    def read(self, offset: int, size: int, progress: Progress = no_progress) -> bytes:
        """Bytes of the flash. ROM_DATA is a port: every dword is one access to the same register. Raises FlashError, BusLost."""
        if offset < 0 or size < 0 or offset + size > SIZE:
            raise OutOfWindow(f"reading {size:#x} bytes at {offset:#x} of a flash of {SIZE:#x}")
        parts = []
        end = offset + size
        done = 0
        with self.session():
            write = ARRANGE[self.byte_order]
            for base in range(offset - offset % PAGE, end, PAGE):
                first, last = max(offset, base) - base, min(end, base + PAGE) - base
                with uninterrupted():
                    self._regs.ROM_INDEX.write(write(base >> INDEX_SHIFT))
                page = b""
                while len(page) < last:
                    page += self._words(min(BATCH, (last - len(page) + 3) // 4))
                    progress(min(size, done + max(0, len(page) - first)), size)
                parts.append(page[first:last])
                done += last - first
        return b"".join(parts)

    def _words(self, count: int) -> bytes:
        """The next dwords of the port."""
        at = self._regs.ROM_DATA.index << 2
        with uninterrupted(), self._window.batch() as batch:
            words = [batch.read32(at) for _ in range(count)]
        data = b"".join((word.value or 0).to_bytes(4, "little") for word in words)
        if data.count(0xFF) == len(data) and self._regs.ROM_CNTL.read() == ALL_ONES_32:
            raise self._lost("reading the ROM_INDEX aperture", "ROM_CNTL")
        return data

    def check(self, content: bytes) -> None:
        """Is this a whole copy of a flash that a card booted from? Raises ImageRefused, ApertureMirrored."""
        if len(content) != SIZE:
            raise ImageRefused(f"the aperture gave {len(content):#x} bytes instead of {SIZE:#x}")
        if content[:4] != IMAGE_MAGIC:
            raise ImageRefused(
                "what the aperture shows does not begin like a flash image",
                read=f"first bytes {content[:4].hex(' ')}, expected {IMAGE_MAGIC.hex(' ')}",
                means="the aperture does not show the flash (or the flash holds no image, and then the card would not have booted)",
                remedy="look at `tghw flash info`; where the security processor has stalled, --method rom-sw reads the chip itself",
            )
        if content[: SIZE // 2] == content[SIZE // 2 :]:
            raise ApertureMirrored("both halves of what the aperture shows are the same", read=f"2 x {SIZE // 2:#x} identical bytes")
