"""Recording what a driver does to a device: every access to its windows, configuration space and DMA memory, in order.

    traced = TracedDevice(device)
    driver = AmdDevice(traced, firmware)
    driver.boot(on_stage=lambda result: traced.recorder.stage_done(result.name))
    traced.recorder.stats()
    traced.recorder.save(path)

A device that is not wrapped costs nothing. A filter sees each write before it happens and may change or drop it, which is how tests
find out whether anybody would notice.

File format: JSON lines. The first is the header {"format", "version", "device", "transport", "bars": [[index, address, size], ...]};
then one array a record, in order:
    ["r" | "w", where, offset, width, value]        one access; where is "bar0".."bar5", "config", "dma0".. (in order of allocation)
    ["R" | "W", where, offset, length, data]        a block; data in hexadecimal, from 257 bytes on "z:" and base64 of zlib
    ["x", where, offset, width, value]              a write that the filter dropped
    ["stage", name]                                 the records since the last such line belong to this stage
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hw.buffer import TransferBuffer
from hw.errors import TghwError
from hw.mmio import Batch, BytesLike, Mmio, Pending
from hw.pci.device import Bar, ConfigSpace, DmaMemory, Irq, PciDevice, check_access

FORMAT = "tghw trace"
VERSION = 1
LONGEST_PLAIN = 256
"""bytes of block data written as plain hexadecimal"""

READ, WRITE, READ_BLOCK, WRITE_BLOCK, DROPPED, STAGE = "r", "w", "R", "W", "x", "stage"


class Access(NamedTuple):
    """One record. `width` is the bytes of the access or the length of the block, `value` a number or the block's bytes."""

    kind: str
    where: str
    offset: int
    width: int
    value: int | bytes

    @property
    def is_write(self) -> bool:
        return self.kind in (WRITE, WRITE_BLOCK)


Filter = Callable[[Access], Access | None]


class TraceInvalid(TghwError):
    code = "trace-invalid"
    default_means = "the file is not a trace of this toolkit, or it was cut short"


class Recorder:
    """Collects records. `filter` gets every write (single or block) first; what it returns happens, None drops the write."""

    def __init__(self, filter: Filter | None = None) -> None:
        self.filter = filter
        self.records: list[Access] = []
        self.add = self.records.append
        self.device: dict[str, Any] = {}

    def stage_done(self, name: str) -> None:
        """What was recorded since the last such call belongs to this stage."""
        self.add(Access(STAGE, name, 0, 0, 0))

    def allow(self, access: Access) -> Access | None:
        """Ask the filter about a write, and record it as it will happen. None: it must not happen."""
        if self.filter is not None:
            wanted = self.filter(access)
            if wanted is None:
                self.add(access._replace(kind=DROPPED))
                return None
            access = wanted
        self.add(access)
        return access

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self.records.clear()

    def stats(self) -> dict[str, Any]:
        """Counts: see stats()."""
        return stats(self.records)

    def save(self, path: Path) -> None:
        """Write a trace file."""
        with path.open("w", encoding="ascii") as file:
            file.write(json.dumps({"format": FORMAT, "version": VERSION} | self.device) + "\n")
            for access in self.records:
                file.write(json.dumps(_to_json(access), separators=(",", ":")) + "\n")


def load(path: Path) -> tuple[dict[str, Any], list[Access]]:
    """A trace file's header and records. Raises TraceInvalid naming the line."""
    records: list[Access] = []
    header: dict[str, Any] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                if number == 1:
                    header = json.loads(line)
                    if header.get("format") != FORMAT or header.get("version") != VERSION:
                        raise ValueError(f"format {header.get('format')!r} version {header.get('version')!r}")
                else:
                    records.append(_from_json(json.loads(line)))
            except (ValueError, TypeError, AttributeError, zlib.error) as error:
                raise TraceInvalid(f"line {number} of {path}", read=str(error)) from error
    if not header:
        raise TraceInvalid(f"{path} is empty")
    return header, records


def _to_json(access: Access) -> list[Any]:
    kind, where, offset, width, value = access
    if kind == STAGE:
        return [STAGE, where]
    if isinstance(value, bytes):
        text = value.hex() if len(value) <= LONGEST_PLAIN else "z:" + base64.b64encode(zlib.compress(value)).decode()
        return [kind, where, offset, width, text]
    return [kind, where, offset, width, value]


def _from_json(words: list[Any]) -> Access:
    if words[0] == STAGE:
        return Access(STAGE, words[1], 0, 0, 0)
    kind, where, offset, width, value = words
    if kind not in (READ, WRITE, READ_BLOCK, WRITE_BLOCK, DROPPED):
        raise ValueError(f"unknown kind {kind!r}")
    if isinstance(value, str):
        value = zlib.decompress(base64.b64decode(value[2:])) if value.startswith("z:") else bytes.fromhex(value)
    return Access(kind, where, int(offset), int(width), value)


_KINDS = {READ: "reads", WRITE: "writes", READ_BLOCK: "block_reads", WRITE_BLOCK: "block_writes", DROPPED: "dropped"}


def _zeros() -> dict[str, int]:
    return dict.fromkeys([*_KINDS.values(), "bytes_read", "bytes_written"], 0)


def stats(records: Iterable[Access]) -> dict[str, Any]:
    """Counts of accesses and bytes: {"total": {...}, "where": {"bar5": {...}}, "stages": [{"name": ..., ...}]}.

    Each holds reads, writes, block_reads, block_writes, dropped, bytes_read, bytes_written. The last stage is "" for what came after
    the last mark; it is left out when empty.
    """
    total, segment = _zeros(), _zeros()
    where: dict[str, dict[str, int]] = {}
    stages: list[dict[str, Any]] = []
    for access in records:
        if access.kind == STAGE:
            stages.append({"name": access.where} | segment)
            segment = _zeros()
            continue
        place = where.setdefault(access.where, _zeros())
        size = "bytes_written" if access.is_write else "bytes_read" if access.kind in (READ, READ_BLOCK) else ""
        for counts in (total, segment, place):
            counts[_KINDS[access.kind]] += 1
            if size:
                counts[size] += access.width
    if any(segment.values()):
        stages.append({"name": ""} | segment)
    return {"total": total, "where": where, "stages": stages}


# --- the wrappers -----------------------------------------------------------------------------------------------------


class TracedWindow(Mmio):
    """A window that records. Offsets in the records are those of the whole BAR or DMA allocation."""

    def __init__(self, inner: Mmio, recorder: Recorder, where: str, base: int = 0) -> None:
        self._inner = inner
        self._recorder = recorder
        self._where = where
        self._base = base
        self.name = inner.name
        self.size = inner.size
        self.cost = inner.cost

    def _read(self, offset: int, width: int, value: int) -> int:
        self._recorder.add(Access(READ, self._where, self._base + offset, width, value))
        return value

    def _write(self, offset: int, width: int, value: int, perform: Callable[[int, int], None]) -> None:
        self._inner.check(offset, width, width)
        access = self._recorder.allow(Access(WRITE, self._where, self._base + offset, width, value))
        if access is not None:
            assert isinstance(access.value, int)
            perform(access.offset - self._base, access.value)

    def read8(self, offset: int) -> int:
        return self._read(offset, 1, self._inner.read8(offset))

    def read32(self, offset: int) -> int:
        return self._read(offset, 4, self._inner.read32(offset))

    def read64(self, offset: int) -> int:
        return self._read(offset, 8, self._inner.read64(offset))

    def write8(self, offset: int, value: int) -> None:
        self._write(offset, 1, value, self._inner.write8)

    def write32(self, offset: int, value: int) -> None:
        self._write(offset, 4, value, self._inner.write32)

    def write64(self, offset: int, value: int) -> None:
        self._write(offset, 8, value, self._inner.write64)

    def read(self, offset: int, size: int) -> bytes:
        data = self._inner.read(offset, size)
        self._recorder.add(Access(READ_BLOCK, self._where, self._base + offset, size, data))
        return data

    def write(self, offset: int, data: BytesLike) -> None:
        self._inner.check(offset, len(data))
        access = self._recorder.allow(Access(WRITE_BLOCK, self._where, self._base + offset, len(data), bytes(data)))
        if access is not None:
            assert isinstance(access.value, bytes)
            self._inner.write(access.offset - self._base, access.value)

    def view(self, offset: int = 0, size: int | None = None) -> TracedWindow:
        return TracedWindow(self._inner.view(offset, size), self._recorder, self._where, self._base + offset)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """On windows where an access is a round trip the batch stays one; its reads are recorded when their values arrive."""
        if self.cost == "local":
            yield Batch(self)
            return
        with self._inner.batch() as inner:
            traced = _TracedBatch(inner, self, self._recorder, self._where, self._base)
            yield traced
        traced.finish()


class _TracedBatch(Batch):
    def __init__(self, inner: Batch, window: TracedWindow, recorder: Recorder, where: str, base: int) -> None:
        self._inner = inner
        self._traced = window
        self._recorder = recorder
        self._where = where
        self._base = base
        self._reads: list[tuple[int, Pending]] = []

    def _allow(self, kind: str, offset: int, width: int, value: int | bytes) -> Access | None:
        self._traced.check(offset, width)
        return self._recorder.allow(Access(kind, self._where, self._base + offset, width, value))

    def write32(self, offset: int, value: int) -> None:
        access = self._allow(WRITE, offset, 4, value)
        if access is not None:
            assert isinstance(access.value, int)
            self._inner.write32(access.offset - self._base, access.value)

    def write64(self, offset: int, value: int) -> None:
        access = self._allow(WRITE, offset, 8, value)
        if access is not None:
            assert isinstance(access.value, int)
            self._inner.write64(access.offset - self._base, access.value)

    def write(self, offset: int, data: BytesLike) -> None:
        access = self._allow(WRITE_BLOCK, offset, len(data), bytes(data))
        if access is not None:
            assert isinstance(access.value, bytes)
            self._inner.write(access.offset - self._base, access.value)

    def read32(self, offset: int) -> Pending:
        pending = self._inner.read32(offset)
        self._reads.append((len(self._recorder.records), pending))
        self._recorder.add(Access(READ, self._where, self._base + offset, 4, 0))
        return pending

    def finish(self) -> None:
        """Fill in the values that arrived."""
        for position, pending in self._reads:
            self._recorder.records[position] = self._recorder.records[position]._replace(value=pending.value or 0)


class TracedConfig(ConfigSpace):
    """Configuration space that records."""

    def __init__(self, inner: ConfigSpace, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder
        self.size = inner.size

    def read(self, offset: int, size: int) -> int:
        value = self._inner.read(offset, size)
        self._recorder.add(Access(READ, "config", offset, size, value))
        return value

    def write(self, offset: int, value: int, size: int) -> None:
        check_access(offset, size)
        access = self._recorder.allow(Access(WRITE, "config", offset, size, value))
        if access is not None:
            assert isinstance(access.value, int)
            self._inner.write(access.offset, access.value, size)


class TracedDevice(PciDevice):
    """A device all of whose accesses are recorded. Closing it closes the one inside."""

    def __init__(self, inner: PciDevice, recorder: Recorder | None = None) -> None:
        self.inner = inner
        self.recorder = recorder or Recorder()
        self.address = inner.address
        self.transport = inner.transport
        self.config = TracedConfig(inner.config, self.recorder)
        self.clock = inner.clock
        self.local = inner.local
        self.peer_group = inner.peer_group
        self._allocations = 0
        self.recorder.device = {
            "device": inner.address,
            "transport": inner.transport,
            "bars": [[bar.index, bar.address, bar.size] for bar in inner.bars.values()],
        }

    @property
    def bars(self) -> dict[int, Bar]:
        return self.inner.bars

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> TracedWindow:
        return TracedWindow(self.inner.map_bar(index, offset, size), self.recorder, f"bar{index}", offset)

    def resize_bar(self, index: int, size: int) -> None:
        self.inner.resize_bar(index, size)

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        memory = self.inner.alloc_dma(size, contiguous=contiguous)
        where = f"dma{self._allocations}"
        self._allocations += 1
        return DmaMemory(TracedWindow(memory.window, self.recorder, where), memory.pages, memory.release)

    def irq(self) -> Irq | None:
        return self.inner.irq()

    def reset(self) -> None:
        self.inner.reset()

    def guard(self, name: str) -> AbstractContextManager[Any]:
        return self.inner.guard(name)

    @property
    def transfer_buffer(self) -> TransferBuffer | None:
        return self.inner.transfer_buffer

    def reconnect(self) -> None:
        self.inner.reconnect()

    def fence(self) -> None:
        self.inner.fence()

    def close(self) -> None:
        self.inner.close()
