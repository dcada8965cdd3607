"""Devices that kernels run on, found by their DEV string.

`device(name)` opens one and keeps it open: CPU (LLVM's JIT), PYTHON (interprets the kernel IR), NULL::ARCH (compiles, runs nothing), and AMD
GPUs, real or simulated, behind bridges/open.py.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from compute.errors import DeviceMismatch, NotSupported
from compute.ir import Kernel, Param
from compute.lower import lower
from compute.ops import Node
from compute.plan import Options
from hw import target
from hw.errors import TghwError, UsageError

log = logging.getLogger(__name__)

_GRANULE = 256
"""Memory is handed out in multiples of this many bytes, so that a vector at the end of a buffer stays inside of it."""
_UNPROVEN = 10_000
"""Results not yet waited for that a device remembers, to mark them lost when its work fails."""
_POOL_BYTES = 64 << 20
"""Freed memory that a device keeps for reuse."""


class Buffer:
    """Memory on a device; given back to it when nobody refers to the buffer any more. size: bytes asked for.

    lost: the error of the work that should have filled it; reading it, or computing with it, raises that again.
    """

    __slots__ = ("__weakref__", "_upload", "device", "handle", "lost", "room", "size")

    def __init__(self, device: Device, size: int, upload: bytes | None = None) -> None:
        self.device = device
        self.size = size
        self.room = max(-(-size // _GRANULE), 1) * _GRANULE
        self.handle: Any = None
        self.lost: TghwError | None = None
        self._upload = upload

    def ready(self) -> Any:
        """The device's handle; allocates, and sends waiting data, on first use."""
        if self.handle is None:
            self.handle = self.device.take(self.room)
            if self._upload is not None:
                self.device.copyin(self, self._upload)
                self._upload = None
        return self.handle

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._upload = None
        self.lost = None
        self.ready()
        self.device.copyin(self, data)

    def read(self) -> bytes | bytearray:
        """The bytes, after all work on them. Raises NotExecuted on a device that runs nothing."""
        if _recorders:
            raise UsageError("data is read while a graph is recorded", means="a recorded function runs on the device alone", remedy="return the tensor and read it afterwards")
        if self.lost is not None:
            raise self.lost
        self.ready()
        with self.device.proving():
            return self.device.copyout(self)

    def __del__(self) -> None:
        if self.handle is not None and self.device.is_open:
            self.device.give_back(self.room, self.handle)


@dataclass
class Program:
    """A kernel loaded on a device. entry: what the device needs to start it."""

    kernel: Kernel
    entry: Any


@dataclass
class Launch:
    """One kernel with its arguments: buffers in parameter order, and values of its sizes by name."""

    program: Program
    buffers: list[Buffer]
    sizes: dict[str, int]

    def groups(self) -> int:
        return self.program.kernel.groups.evaluate(self.sizes)

    def size_values(self) -> list[int]:
        return [self.sizes[v.name] for v in self.program.kernel.sizes]


@dataclass
class Timing:
    """seconds: what the launches took on the device's clock; None where that is not known."""

    seconds: float | None = None


class Graph(ABC):
    """Launches recorded once. replay() runs them again with the buffers and sizes that they hold now."""

    def __init__(self, launches: list[Launch]) -> None:
        self.launches = launches

    @abstractmethod
    def replay(self, changed: Sequence[int]) -> None:
        """changed: numbers of the launches whose buffers or sizes differ from the last time."""


class PlainGraph(Graph):
    """For devices without queues: each launch again."""

    def replay(self, changed: Sequence[int]) -> None:
        for launch in self.launches:
            launch.buffers[0].device.launch(launch)


class Device(ABC):
    """One device. Work is done in order; launch() may return before it is done, copyout() and synchronize() wait."""

    name: str
    options: Options

    def __init__(self, name: str) -> None:
        self.name = name
        self.compiled = 0
        """Kernels compiled so far; a cache hit does not count."""
        self.launched = 0
        self.is_open = True
        self._unproven: deque[weakref.ref[Buffer]] = deque(maxlen=_UNPROVEN)
        self._by_graph: dict[Any, Program] = {}
        self._by_text: dict[str, Program] = {}
        self._pool: dict[int, list[Any]] = {}
        self._pooled = 0

    # --- what each kind of device does ---

    @abstractmethod
    def alloc(self, size: int) -> Any:
        """A handle of new memory. Raises OutOfMemory."""

    @abstractmethod
    def free(self, handle: Any) -> None: ...

    @abstractmethod
    def copyin(self, buffer: Buffer, data: bytes | bytearray | memoryview) -> None: ...

    @abstractmethod
    def copyout(self, buffer: Buffer) -> bytes | bytearray: ...

    @abstractmethod
    def compile(self, kernel: Kernel) -> Any:
        """Machine code of a kernel, or whatever load() takes."""

    @abstractmethod
    def load(self, kernel: Kernel, code: Any) -> Program: ...

    @abstractmethod
    def start(self, launch: Launch) -> None: ...

    def synchronize(self) -> None:
        """Returns when all work is done."""

    @contextmanager
    def timed(self) -> Iterator[Timing]:
        """Context in which launches are timed on the device's own clock, where it has one."""
        yield Timing()

    def graph(self, launches: list[Launch]) -> Graph:
        return PlainGraph(launches)

    def close(self) -> None:
        """Releases the device; it cannot be used afterwards."""

    # --- common ---

    @property
    def runs(self) -> bool:
        """False for a device that only compiles."""
        return True

    def program(self, graph: Node, params: list[Param]) -> Program:
        """The loaded kernel for a kernel graph, compiled unless the same IR was before."""
        key = (graph, tuple(params))
        found = self._by_graph.get(key)
        if found is None:
            found = self.build(lower(graph, params, self.options))
            self._by_graph[key] = found
        return found

    def build(self, kernel: Kernel) -> Program:
        """The loaded kernel for kernel IR, compiled unless the same IR was before."""
        text = kernel.text()
        found = self._by_text.get(text)
        if found is None:
            before = time.perf_counter()
            found = self.load(kernel, self.compile(kernel))
            self._by_text[text] = found
            self.compiled += 1
            log.debug("%s: compiled %s in %.1f ms", self.name, kernel.name, (time.perf_counter() - before) * 1e3)
        return found

    def launch(self, launch: Launch) -> None:
        """Starts a kernel after all earlier work; recorded when a capture is going on."""
        for buffer in launch.buffers:
            if buffer.device is not self:
                raise DeviceMismatch(f"memory of {buffer.device.name} in a kernel on {self.name}", means="the tensor's device was closed, or another one of that name is open now")
            if buffer.lost is not None and buffer is not launch.buffers[0]:
                raise buffer.lost
        for recorder in _recorders:
            recorder.append(launch)
        self.launched += 1
        self.wrote(launch.buffers[0])
        if launch.groups():
            with self.failing():
                self.start(launch)

    def wrote(self, buffer: Buffer) -> None:
        """Remembers that work which was started fills this buffer."""
        buffer.lost = None
        self._unproven.append(weakref.ref(buffer))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Context whose error marks all results lost that were not waited for."""
        try:
            yield
        except TghwError as error:
            for reference in self._unproven:
                buffer = reference()
                if buffer is not None:
                    buffer.lost = error
            self._unproven.clear()
            raise

    @contextmanager
    def proving(self) -> Iterator[None]:
        """Context that waits for all work: afterwards the results are known to be there, or lost."""
        with self.failing():
            yield
        self._unproven.clear()

    def take(self, room: int) -> Any:
        """Memory from the pool of freed blocks, or new."""
        free = self._pool.get(room)
        if free:
            self._pooled -= room
            return free.pop()
        return self.alloc(room)

    def give_back(self, room: int, handle: Any) -> None:
        """Keeps a block for reuse, which is safe because work is done in order; frees it when the pool is full."""
        if self._pooled + room > _POOL_BYTES:
            self.synchronize()
            self.free(handle)
            return
        self._pool.setdefault(room, []).append(handle)
        self._pooled += room


_recorders: list[list[Launch]] = []


def is_recording() -> bool:
    return bool(_recorders)


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Context in which every launch is also appended to the list that it yields."""
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders.pop()


# --- the registry -----------------------------------------------------------------------------------------------------

_open: dict[str, Device] = {}

def default_name() -> str:
    """The device of tensors that name none: the environment variable DEV, else the CPU."""
    return str(target.from_env("CPU"))


def device(name: str) -> Device:
    """The device of a DEV string, opened on first use. Raises TargetError, NotSupported, or what opening the hardware raises."""
    found = _open.get(name)
    if found is None:
        wanted = target.parse(name)
        found = _open.get(str(wanted))
        if found is None:
            found = _open_device(wanted)
            _open[str(wanted)] = found
    return found


def _open_device(wanted: target.Target) -> Device:
    from compute import devices

    name = str(wanted)
    if not wanted.has_hardware:
        wanted.check_options(())
    if wanted.device == "CPU":
        return devices.CpuDevice(name, wanted.arch)
    if wanted.device == "PYTHON":
        return devices.PythonDevice(name)
    if wanted.device == "NULL":
        return devices.NullDevice(name, wanted.arch)
    if wanted.device == "AMD":
        return devices.AmdDevice(name, wanted)
    raise NotSupported(f"tensors on {wanted.device} devices", means="code generation for this family is not built yet", remedy="use DEV=MOCKPCI+AMD or DEV=CPU")


def close_all() -> None:
    """Closes every open device, also at the end of the process."""
    while _open:
        _, found = _open.popitem()
        found.is_open = False
        try:
            found.close()
        except TghwError as error:
            log.warning("%s did not close cleanly: %s", found.name, error)


atexit.register(close_all)
