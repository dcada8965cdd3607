"""The kinds of devices that runtime.py opens."""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from compute.codegen import interpreter, llvm
from compute.errors import NotExecuted, NotSupported
from compute.ir import Kernel
from compute.plan import CPU, GPU
from compute.runtime import Buffer, Device, Graph, Launch, Program, Timing
from hw.target import Target

_NULL_ARCH = "gfx1100"
_ALIGNMENT = 64
"""Bytes; the widest vector of a CPU."""


class HostMemory(Device):
    """A device whose memory is this process's."""

    def alloc(self, size: int) -> Any:
        """Bytes at a multiple of 64, so that whole vectors can be read at once."""
        memory = np.zeros(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + size]

    def free(self, handle: Any) -> None:
        pass

    def copyin(self, buffer: Buffer, data: bytes | bytearray | memoryview) -> None:
        buffer.ready()[: len(data)] = np.frombuffer(data, np.uint8)

    def copyout(self, buffer: Buffer) -> bytes | bytearray:
        return bytes(buffer.ready()[: buffer.size].tobytes())


class CpuDevice(HostMemory):
    """Kernels as machine code of this process."""

    options = CPU

    def __init__(self, name: str, arch: str = "") -> None:
        super().__init__(name)
        here = platform.machine()
        if arch not in ("", here):
            raise NotSupported(
                f"{arch} code on this machine",
                read=f"this machine is {here}",
                means="DEV=CPU runs what it compiles, here and now",
                remedy=f"use CPU or CPU::{here}",
            )

    def compile(self, kernel: Kernel) -> Any:
        return llvm.compile_host(kernel)

    def load(self, kernel: Kernel, code: Any) -> Program:
        return Program(kernel, code)

    def start(self, launch: Launch) -> None:
        addresses = [b.ready().ctypes.data for b in launch.buffers]
        launch.program.entry(addresses, launch.size_values(), launch.groups())


class PythonDevice(HostMemory):
    """Kernel IR interpreted with numpy: the reference."""

    options = GPU

    def compile(self, kernel: Kernel) -> Any:
        return None

    def load(self, kernel: Kernel, code: Any) -> Program:
        return Program(kernel, code)

    def start(self, launch: Launch) -> None:
        memory = [memoryview(b.ready()) for b in launch.buffers]
        interpreter.run(launch.program.kernel, memory, launch.sizes)


class NullDevice(Device):
    """Compiles for an architecture and runs nothing; it holds no data."""

    options = GPU

    def __init__(self, name: str, arch: str) -> None:
        super().__init__(name)
        self.arch = arch or _NULL_ARCH
        if self.arch not in llvm.AMD_ARCHITECTURES:
            raise NotSupported(
                f"compiling for {arch}",
                read=f"known: {', '.join(llvm.AMD_ARCHITECTURES)}",
                means="NULL compiles for AMD GPUs; the code of this machine's CPU is made, and run, by DEV=CPU",
                remedy="use NULL::gfx1100",
            )
        self.objects: dict[str, bytes] = {}
        """The objects it compiled, by kernel name."""

    @property
    def runs(self) -> bool:
        return False

    def alloc(self, size: int) -> Any:
        return size

    def free(self, handle: Any) -> None:
        pass

    def copyin(self, buffer: Buffer, data: bytes | bytearray | memoryview) -> None:
        pass

    def copyout(self, buffer: Buffer) -> bytes | bytearray:
        raise NotExecuted(f"no data on {self.name}", read=f"{self.compiled} kernels compiled, none run")

    def compile(self, kernel: Kernel) -> Any:
        return llvm.compile_amd(kernel, self.arch)

    def load(self, kernel: Kernel, code: Any) -> Program:
        self.objects[kernel.name] = code
        return Program(kernel, code)

    def start(self, launch: Launch) -> None:
        pass


class AmdDevice(Device):
    """An AMD GPU driven by drivers.amd, real or simulated."""

    options = GPU

    def __init__(self, name: str, wanted: Target) -> None:
        super().__init__(name)
        from bridges.open import open_gpu

        self.gpu = open_gpu(wanted)
        self._tickets: list[Any] | None = None

    def alloc(self, size: int) -> Any:
        return self.gpu.alloc(size)

    def free(self, handle: Any) -> None:
        self.gpu.free(handle)

    def take(self, room: int) -> Any:
        return self.gpu.alloc(room)

    def give_back(self, room: int, handle: Any) -> None:
        """The driver keeps freed memory for reuse itself."""
        self.gpu.free(handle)

    def copyin(self, buffer: Buffer, data: bytes | bytearray | memoryview) -> None:
        self.gpu.copy_in(buffer.ready(), data)

    def copyout(self, buffer: Buffer) -> bytes | bytearray:
        return self.gpu.copy_out(buffer.ready(), buffer.size) if buffer.size else b""

    def compile(self, kernel: Kernel) -> Any:
        return llvm.compile_amd(kernel, self.gpu.arch)

    def load(self, kernel: Kernel, code: Any) -> Program:
        return Program(kernel, self.gpu.load(code).kernels[kernel.name])

    def start(self, launch: Launch) -> None:
        grid, block = (launch.groups(), 1, 1), (launch.program.kernel.block, 1, 1)
        ticket = self.gpu.launch(launch.program.entry, grid, block, arguments(launch))
        self.note(ticket)

    def note(self, ticket: Any) -> None:
        """Remembers work for timed()."""
        if self._tickets is not None:
            self._tickets.append(ticket)

    def synchronize(self) -> None:
        with self.proving():
            self.gpu.synchronize()

    @contextmanager
    def timed(self) -> Iterator[Timing]:
        timing = Timing()
        outer, self._tickets = self._tickets, []
        try:
            yield timing
            self.synchronize()
            if self._tickets:
                timing.seconds = sum(self.gpu.elapsed(ticket) for ticket in self._tickets)
        finally:
            self._tickets = outer

    def graph(self, launches: list[Launch]) -> Graph:
        return _AmdGraph(self, launches)

    def close(self) -> None:
        self.gpu.close()


def arguments(launch: Launch) -> bytes:
    """A kernel's argument block: one 8-byte address a buffer, then one 4-byte number a size, filled up to 8 bytes."""
    sizes = launch.size_values()
    padding = 4 * (len(sizes) % 2)
    return struct.pack(f"<{len(launch.buffers)}Q{len(sizes)}i{padding}x", *(b.ready().va for b in launch.buffers), *sizes)


class _AmdGraph(Graph):
    """Launches recorded in device memory; a replay patches addresses and sizes, and records anew when a grid changed."""

    def __init__(self, device: AmdDevice, launches: list[Launch]) -> None:
        super().__init__(launches)
        self._device = device
        self._record()

    def _record(self) -> None:
        self._blocks = [arguments(launch) for launch in self.launches]
        self._grids = [launch.groups() for launch in self.launches]
        items = [
            (launch.program.entry, (groups, 1, 1), (launch.program.kernel.block, 1, 1), block)
            for launch, groups, block in zip(self.launches, self._grids, self._blocks, strict=True)
        ]
        self._graph = self._device.gpu.record(items) if all(self._grids) else None
        """None while a launch has nothing to do, which a recorded one cannot have."""

    def replay(self, changed: Sequence[int]) -> None:
        values: dict[tuple[int, int], int] = {}
        for number in changed:
            launch = self.launches[number]
            if launch.groups() != self._grids[number]:
                if self._graph is not None:
                    self._graph.release()
                self._record()
                values.clear()
                break
            old, new = self._blocks[number], arguments(launch)
            for offset in range(0, len(new), 8):
                if old[offset : offset + 8] != new[offset : offset + 8]:
                    values[number, offset] = int.from_bytes(new[offset : offset + 8], "little")
            self._blocks[number] = new
        if self._graph is None:
            for launch in self.launches:
                self._device.launch(launch)
            return
        self._device.launched += len(self.launches)
        for launch in self.launches:
            self._device.wrote(launch.buffers[0])
        with self._device.failing():
            self._device.note(self._graph.replay(values))
