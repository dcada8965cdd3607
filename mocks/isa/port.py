"""How executed machine code reaches memory: the contract that a simulated GPU implements, and a plain implementation for tests."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

from mocks.isa.layout import EXEC, PAGE, READ, SCALAR, WRITE

__all__ = ["EXEC", "PAGE", "READ", "SCALAR", "WRITE", "FlatMemory", "MemoryFault", "MemoryPort"]


class MemoryFault(LookupError):
    """No access of this kind at this GPU address. `access` is a set of READ, WRITE, EXEC."""

    def __init__(self, va: int, access: int) -> None:
        kinds = " and ".join(name for bit, name in ((READ, "read"), (WRITE, "write"), (EXEC, "execute")) if access & bit)
        super().__init__(f"{kinds} at {va:#x}")
        self.va = va
        self.access = access


class MemoryPort(Protocol):
    """One address space as waves see it (an MMU with the page tables of one VM id).

    translate(va, access): host address of the byte at `va`, and how many bytes from there on lie side by side on the host with the
    same rights (to the end of the mapping's page at least; pages are multiples of 4 KiB and 4 KiB aligned). access is READ, WRITE,
    READ | WRITE, READ | SCALAR (a scalar load) or EXEC. MemoryFault where the access is not allowed. The host memory must stay where it is until `generation`
    changes, which also tells that translations may have changed; it is looked at before waves run.
    """

    @property
    def generation(self) -> int: ...

    def translate(self, va: int, access: int) -> tuple[int, int]: ...


@dataclass(slots=True)
class Region:
    start: int
    size: int
    rights: int
    memory: ctypes.Array[ctypes.c_char]
    host: int


class FlatMemory:
    """Regions of GPU address space backed by buffers of their own; nothing else is mapped."""

    def __init__(self) -> None:
        self.generation = 0
        self.regions: list[Region] = []
        self.translations = 0

    def map(self, va: int, size: int, rights: int = READ | WRITE, content: bytes = b"") -> Region:
        """Maps [va, va + size), page aligned, filled with `content` and then zeros."""
        assert va % PAGE == 0 and size > 0
        size = -(-size // PAGE) * PAGE
        memory = (ctypes.c_char * (size + PAGE))()
        host = (ctypes.addressof(memory) + PAGE - 1) & -PAGE
        ctypes.memmove(host, content, len(content))
        region = Region(va, size, rights, memory, host)
        self.regions.append(region)
        self.generation += 1
        return region

    def unmap(self, region: Region) -> None:
        self.regions.remove(region)
        self.generation += 1

    def translate(self, va: int, access: int) -> tuple[int, int]:
        self.translations += 1
        access &= ~SCALAR
        for region in self.regions:
            if region.start <= va < region.start + region.size and region.rights & access == access:
                offset = va - region.start
                return region.host + offset, region.size - offset
        raise MemoryFault(va, access)

    def read(self, va: int, size: int) -> bytes:
        host, valid = self.translate(va, 0)
        assert size <= valid
        return ctypes.string_at(host, size)

    def write(self, va: int, data: bytes) -> None:
        host, valid = self.translate(va, 0)
        assert len(data) <= valid
        ctypes.memmove(host, data, len(data))
