"""Functions of tensors that are recorded once and replayed with new inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compute import runtime
from compute.errors import NotSupported, UsageError
from compute.ops import Node, Storage
from compute.realize import combined, leaf
from compute.runtime import Buffer, Launch
from compute.tensor import Tensor


@dataclass
class _Output:
    """node: what a result looks like; buffer: its memory at the last run; from_input: number of the input whose memory it is."""

    node: Node
    sizes: dict[str, int]
    buffer: Buffer
    from_input: int | None


class Recording:
    """The launches of one call of a function, to be run again.

    What the function read besides its arguments (weights, constants, keys of random numbers) keeps its memory: replays see what is there then.
    """

    def __init__(self, function: Callable[..., Any], inputs: list[Tensor]) -> None:
        self._buffers = [_separate(t, i, inputs) for i, t in enumerate(inputs)]
        stand_ins = [Tensor._of(leaf(t.node, Storage(b), t.device), t.device, t.sizes) for t, b in zip(inputs, self._buffers, strict=True)]
        with runtime.recording() as launches:
            result = function(*stand_ins)
            self._single = isinstance(result, Tensor)
            results = [result] if self._single else list(result) if isinstance(result, (list, tuple)) else []
            if not results or not all(isinstance(r, Tensor) for r in results):
                raise UsageError("a recorded function must return a tensor, or several", read=type(result).__name__, remedy="return the tensors it computes")
            results[0].realize(*results[1:])
        devices = {launch.buffers[0].device for launch in launches}
        if len(devices) > 1:
            raise NotSupported("a recorded function on several devices", read=", ".join(d.name for d in devices), remedy="record one function a device")
        self._launches = [Launch(launch.program, list(launch.buffers), dict(launch.sizes)) for launch in launches]
        self._graph = devices.pop().graph(self._launches) if devices else None
        self._outputs = [self._output(r) for r in results]
        self.results = result

    def _output(self, t: Tensor) -> _Output:
        buffer = t.node.arg.buffer
        position = next((i for i, b in enumerate(self._buffers) if b is buffer), None)
        return _Output(t.node, dict(t.sizes), buffer, position)

    @property
    def kernels(self) -> int:
        """Number of launches of one replay."""
        return len(self._launches)

    def replay(self, inputs: list[Tensor]) -> Any:
        """Runs the launches with other inputs of the same kind; results are new tensors."""
        exchange: dict[int, Buffer] = {}
        for i, t in enumerate(inputs):
            new = _separate(t, i, inputs)
            exchange[id(self._buffers[i])] = new
            self._buffers[i] = new
        for output in self._outputs:
            if output.from_input is None:
                new = exchange.setdefault(id(output.buffer), Buffer(output.buffer.device, output.buffer.size))
                output.buffer = new
        sizes = combined([t.sizes for t in inputs])
        changed = []
        for number, launch in enumerate(self._launches):
            buffers = [exchange.get(id(b), b) for b in launch.buffers]
            values = {name: sizes.get(name, value) for name, value in launch.sizes.items()}
            if values != launch.sizes or any(a is not b for a, b in zip(buffers, launch.buffers, strict=True)):
                launch.buffers[:] = buffers
                launch.sizes.update(values)
                changed.append(number)
        if self._graph is not None:
            self._graph.replay(changed)
        results = []
        for output in self._outputs:
            buffer = output.buffer if output.from_input is None else self._buffers[output.from_input]
            own = {name: sizes.get(name, value) for name, value in output.sizes.items()}
            results.append(Tensor._of(leaf(output.node, Storage(buffer), buffer.device.name), buffer.device.name, own))
        return results[0] if self._single else results


def _separate(t: Tensor, position: int, inputs: list[Tensor]) -> Buffer:
    """The memory of an input; of one that appears twice, a copy for the later place, because places are told apart by their memory."""
    t.realize()
    buffer: Buffer = t.node.arg.buffer
    if any(other.node.op == "buffer" and other.node.arg.buffer is buffer for other in inputs[:position]):
        copied = t.contiguous().realize()
        return copied.node.arg.buffer  # type: ignore[no-any-return]
    return buffer


def capture(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the first call with arguments of a kind (shapes, dtypes, devices) runs the function and records its launches; later ones replay.

    Arguments must be tensors; the function must return a tensor or a list of them, and must not read data or copy between devices.
    A tensor that it assigns to is assigned to again by each replay.
    """
    recordings: dict[Any, Recording] = {}

    @functools.wraps(function)
    def call(*inputs: Tensor) -> Any:
        for t in inputs:
            if not isinstance(t, Tensor):
                raise UsageError(f"a recorded function was given a {type(t).__name__}", means="it is replayed for tensors", remedy="bind other values in the function")
        kind = tuple((t.shape, t.dtype, t.device) for t in inputs)
        known = recordings.get(kind)
        if known is not None:
            return known.replay(list(inputs))
        recordings[kind] = made = Recording(function, list(inputs))
        results, made.results = made.results, None
        return results

    call.recordings = recordings  # type: ignore[attr-defined]
    return call
