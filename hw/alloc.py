"""Address ranges handed out in pieces: a two-level segregated fit allocator for memory and addresses. It only does arithmetic; no memory
is touched."""

from __future__ import annotations

from collections.abc import Iterator

from hw.errors import BadFree, OutOfMemory

LEVEL2_BITS = 4
"""Free blocks are sorted into 16 classes between one power of two and the next."""
SMALLEST = 1 << LEVEL2_BITS
"""Smallest block, units of the range (bytes)."""


class Tlsf:
    """Allocates from [base, base + size), first block of the smallest class that surely fits, both operations in constant time.

    The same sequence of calls always gives the same addresses. Sizes are rounded up to `granule`, and every address is a
    multiple of it. Free neighbours are merged at once.
    """

    def __init__(self, size: int, *, base: int = 0, granule: int = SMALLEST, name: str = "memory") -> None:
        if granule < SMALLEST or granule & (granule - 1):
            raise ValueError(f"granule {granule} is not a power of two of at least {SMALLEST}")
        if size < granule or base % granule:
            raise ValueError(f"range of {size:#x} at {base:#x} does not hold whole granules of {granule:#x}")
        self.base = base
        self.size = size - size % granule
        self.name = name
        self._granule = granule
        self._round = granule - 1
        self._used: dict[int, int] = {}  # address -> size
        self._free: dict[int, int] = {}  # address -> size
        self._free_by_end: dict[int, int] = {}  # end -> address
        self._classes: dict[int, dict[int, None]] = {}  # class number -> addresses in the order they became free
        self._bitmap = 0  # bit n: class n has a block
        self.used = 0
        """Bytes handed out, rounding included."""
        self._insert(self.base, self.size)

    def alloc(self, size: int, align: int = 1) -> int:
        """Address of a range of at least `size` bytes that is a multiple of `align` (a power of two). Raises OutOfMemory."""
        if size <= 0 or align <= 0 or align & (align - 1):
            raise ValueError(f"cannot allocate {size} bytes aligned to {align}")
        size = size + self._round & ~self._round
        # A block of `needed` bytes holds `size` aligned ones wherever it starts; the class above it holds only such blocks.
        needed = size if align <= self._granule else size + align - self._granule
        shift = needed.bit_length() - 5
        rounded = needed + (1 << shift) - 1
        level = rounded.bit_length()
        number = level << LEVEL2_BITS | rounded >> level - 5 & 15
        candidates = self._bitmap >> number
        if candidates:
            number += (candidates & -candidates).bit_length() - 1
            start = next(iter(self._classes[number]))
        else:
            start = self._search(size, align, number)
        length = self._remove(start)
        address = start + align - 1 & -align
        if address != start:
            self._insert(start, address - start)
        rest = start + length - (address + size)
        if rest:
            self._insert(address + size, rest)
        self._used[address] = size
        self.used += size
        return address

    def free(self, address: int) -> int:
        """Give a range back. Returns its size. Raises BadFree, changing nothing, when it is not handed out."""
        size = self._used.pop(address, 0)
        if not size:
            raise BadFree(f"{address:#x} of {self.name} is not allocated", read="it lies in a free block: freed twice" if self._in_free(address) else "no allocation starts there")
        self.used -= size
        start, length = address, size
        following = self._free.get(address + size)
        if following is not None:
            self._remove(address + size)
            length += following
        preceding = self._free_by_end.get(address)
        if preceding is not None:
            length += self._remove(preceding)
            start = preceding
        self._insert(start, length)
        return size

    def size_of(self, address: int) -> int:
        """Rounded size of an allocation. Raises BadFree when there is none at this address."""
        size = self._used.get(address)
        if size is None:
            raise BadFree(f"{address:#x} of {self.name} is not allocated")
        return size

    @property
    def available(self) -> int:
        """Bytes free, in one piece or many."""
        return self.size - self.used

    @property
    def largest(self) -> int:
        """Size of the largest free block."""
        return max(self._free.values(), default=0)

    def allocations(self) -> Iterator[tuple[int, int]]:
        """(address, size) of everything handed out, ascending."""
        yield from sorted(self._used.items())

    def free_blocks(self) -> Iterator[tuple[int, int]]:
        """(address, size) of the free blocks, ascending."""
        yield from sorted(self._free.items())

    def _insert(self, start: int, length: int) -> None:
        level = length.bit_length()
        number = level << LEVEL2_BITS | length >> level - 5 & 15
        blocks = self._classes.get(number)
        if blocks is None:
            self._classes[number] = {start: None}
            self._bitmap |= 1 << number
        else:
            if not blocks:
                self._bitmap |= 1 << number
            blocks[start] = None
        self._free[start] = length
        self._free_by_end[start + length] = start

    def _remove(self, start: int) -> int:
        length = self._free.pop(start)
        del self._free_by_end[start + length]
        level = length.bit_length()
        number = level << LEVEL2_BITS | length >> level - 5 & 15
        blocks = self._classes[number]
        del blocks[start]
        if not blocks:
            self._bitmap &= ~(1 << number)
        return length

    def _search(self, size: int, align: int, safe_class: int) -> int:
        """The last resort before giving up: a block below the safe class that happens to fit. Raises OutOfMemory."""
        level = size.bit_length()
        for number in range(level << LEVEL2_BITS | size >> level - 5 & 15, safe_class):
            for start in sorted(self._classes.get(number, ())):
                if (start + align - 1 & -align) + size <= start + self._free[start]:
                    return start
        raise OutOfMemory(
            f"{size:#x} bytes{f' aligned to {align:#x}' if align > self._granule else ''} do not fit into {self.name}",
            read=f"{self.available:#x} of {self.size:#x} bytes free, largest block {self.largest:#x}",
        )

    def _in_free(self, address: int) -> bool:
        return any(start <= address < start + length for start, length in self._free.items())
