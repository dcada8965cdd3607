"""Windows onto BARs behind the bridge. An access costs at least one USB transfer, so writes of a batch wait until they can go out together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bridges.asm24.protocol import BridgeProtocol, Run
from bridges.asm24.tlp import DWORD, memory_read, memory_write
from hw.mmio import Batch, BytesLike, Cost, Mmio, Pending

HOLD_LIMIT = 1 << 20
"""bytes of waiting writes that are sent even inside a batch"""


class PendingAccesses:
    """Accesses of one device that wait to be sent, oldest first. Neighbours in ascending order become one run.

    Outside a batch nothing waits. Whoever reads, or makes an access of another kind, sends what waits first: the device sees everything
    in the order in which it was asked for.
    """

    def __init__(self, protocol: BridgeProtocol) -> None:
        self._protocol = protocol
        self._depth = 0
        self._writes: list[tuple[int, bytearray]] = []
        self._reads: list[tuple[int, list[Pending]]] = []
        self._bytes = 0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Writes may wait until the end. They are sent even when an exception ends it: on a local window they would have happened too."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.flush()

    def write(self, address: int, data: BytesLike) -> None:
        """Whole dwords."""
        if self._reads:
            self.flush()
        if self._writes and self._writes[-1][0] + len(self._writes[-1][1]) == address:
            self._writes[-1][1].extend(data)
        else:
            self._writes.append((address, bytearray(data)))
        self._bytes += len(data)
        if not self._depth or self._bytes > HOLD_LIMIT:
            self.flush()

    def read(self, address: int, pending: Pending) -> None:
        """One dword, whose value arrives with flush()."""
        if self._writes:
            self.flush()
        if self._reads and self._reads[-1][0] + DWORD * len(self._reads[-1][1]) == address:
            self._reads[-1][1].append(pending)
        else:
            self._reads.append((address, [pending]))
        if not self._depth:
            self.flush()

    def flush(self) -> None:
        """Send everything that waits."""
        if self._writes:
            runs: list[Run] = [(address, bytes(data)) for address, data in self._writes]
            self._writes = []
            self._bytes = 0
            self._protocol.write_runs(runs)
        if self._reads:
            reads, self._reads = self._reads, []
            for address, waiting in reads:
                data = self._protocol.read_run(address, DWORD * len(waiting))
                for position, pending in enumerate(waiting):
                    pending.value = int.from_bytes(data[DWORD * position : DWORD * (position + 1)], "little")


class BridgeWindow(Mmio):
    """A window onto a BAR. `base`: its bus address. Reads of one register tell errors of the PCIe side, blocks do not."""

    cost: Cost = "round_trip"

    def __init__(self, protocol: BridgeProtocol, pending: PendingAccesses, base: int, size: int, name: str) -> None:
        self._protocol = protocol
        self._pending = pending
        self._base = base
        self.size = size
        self.name = name

    def close(self) -> None:
        """Refuse every access from now on; the BAR may have moved."""
        self.size = 0
        self.name += " (closed)"

    def read32(self, offset: int) -> int:
        self.check(offset, 4, 4)
        self._pending.flush()
        return self._protocol.request(memory_read(self._base + offset))

    def write32(self, offset: int, value: int) -> None:
        self.check(offset, 4, 4)
        self._pending.write(self._base + offset, (value & 0xFFFFFFFF).to_bytes(4, "little"))

    def read64(self, offset: int) -> int:
        self.check(offset, 8, 8)
        self._pending.flush()
        return int.from_bytes(self._protocol.read_run(self._base + offset, 8), "little")

    def write64(self, offset: int, value: int) -> None:
        self.check(offset, 8, 8)
        data = (value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
        if self._protocol.wide_high_first:
            self._pending.write(self._base + offset + 4, data[4:])
            self._pending.write(self._base + offset, data[:4])
        else:
            self._pending.write(self._base + offset, data)

    def read8(self, offset: int) -> int:
        self.check(offset, 1)
        self._pending.flush()
        return self._protocol.request(memory_read(self._base + offset, 1))

    def write8(self, offset: int, value: int) -> None:
        self.check(offset, 1)
        self._write_part(self._base + offset, bytes([value & 0xFF]))

    def read(self, offset: int, size: int) -> bytes:
        self.check(offset, size)
        if not size:
            return b""
        self._pending.flush()
        start = self._base + offset & ~3
        end = self._base + offset + size + 3 & ~3
        skip = self._base + offset - start
        return self._protocol.read_run(start, end - start)[skip : skip + size]

    def write(self, offset: int, data: BytesLike) -> None:
        size = len(data)
        self.check(offset, size)
        start = self._base + offset
        head = min(-start % DWORD, size)
        tail = (size - head) % DWORD
        if head:
            self._write_part(start, bytes(data[:head]))
        if size - head - tail:
            self._pending.write(start + head, data[head : size - tail] if head or tail else data)
        if tail:
            self._write_part(start + size - tail, bytes(data[size - tail :]))

    def _write_part(self, address: int, data: bytes) -> None:
        """A few bytes inside one dword: a request of its own, with byte enables."""
        self._pending.flush()
        self._protocol.request(memory_write(address, int.from_bytes(data, "little"), len(data)))

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Writes of any window of this device wait until the end, or until somebody reads."""
        with self._pending.batch():
            yield _WindowBatch(self, self._pending)


class _WindowBatch(Batch):
    def __init__(self, window: BridgeWindow, pending: PendingAccesses) -> None:
        super().__init__(window)
        self._base = window._base
        self._pending = pending

    def read32(self, offset: int) -> Pending:
        self._window.check(offset, 4, 4)
        result = Pending()
        self._pending.read(self._base + offset, result)
        return result
