"""The system calls of the VFIO transport, in one place that tests can replace, and the handling of their structures."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hw.host import HOST, HostFiles
from hw.pci.vfio_abi import LAYOUT


class KernelCalls:
    """System calls on device nodes. All raise OSError as the kernel does."""

    def __init__(self, host: HostFiles = HOST) -> None:
        self._host = host

    def open(self, path: Path) -> int:
        return self._host.open(path, os.O_RDWR)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def ioctl(self, descriptor: int, request: int, argument: bytearray | int = 0) -> int:
        """The result of the call; a bytearray is read and changed by the kernel in place."""
        import fcntl

        return fcntl.ioctl(descriptor, request, argument)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def map(self, descriptor: int, length: int, offset: int) -> mmap.mmap:
        return mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)


def ask(calls: KernelCalls, descriptor: int, request: int, ctype: str, *, room: int = 0, **values: int) -> tuple[Any, bytes]:
    """A request whose structure begins with its own size: (structure as the kernel left it, all bytes). Raises OSError.

    room: bytes behind the structure for capabilities; when the kernel wants more it is asked again with as much as it wants.
    """
    size_field = "argsz" if hasattr(LAYOUT.new(f"struct {ctype}"), "argsz") else "size"
    argument = _argument(ctype, size_field, room, values)
    calls.ioctl(descriptor, request, argument)
    wanted = int.from_bytes(argument[:4], "little")
    if wanted > len(argument):
        argument = _argument(ctype, size_field, wanted - LAYOUT.sizeof(f"struct {ctype}"), values)
        calls.ioctl(descriptor, request, argument)
    return LAYOUT.parse(f"struct {ctype}", argument), bytes(argument)


def _argument(ctype: str, size_field: str, room: int, values: dict[str, int]) -> bytearray:
    whole = LAYOUT.sizeof(f"struct {ctype}") + room
    return bytearray(LAYOUT.pack(f"struct {ctype}", **{size_field: whole}, **values)).ljust(whole, b"\0")


def pairs_of(data: bytes, first: int, capability: int) -> list[tuple[int, int]]:
    """The pairs of 64-bit numbers that a capability lists (ranges of addresses, areas of a region); [] when it is not there."""
    for offset in _chain(data, first):
        header = LAYOUT.parse("struct cap_ranges", data, offset)
        if header.id == capability:
            start = offset + LAYOUT.sizeof("struct cap_ranges")
            ranges = [LAYOUT.parse("struct range", data, start + 16 * number) for number in range(header.count)]
            return [(each.start, each.last) for each in ranges]
    return []


def _chain(data: bytes, first: int) -> Iterator[int]:
    """Offsets of a list of capabilities, each of which names the next."""
    seen: set[int] = set()
    while first and first not in seen:
        seen.add(first)
        yield first
        first = LAYOUT.parse("struct cap_header", data, first).next
