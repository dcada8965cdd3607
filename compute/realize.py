"""Gives lazy nodes their values: schedules, compiles and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compute import runtime
from compute.errors import BindingError, NotSupported
from compute.ops import Node, Storage, node, toposort
from compute.runtime import Buffer, Launch
from compute.schedule import Step, schedule
from compute.view import Variable, size_of


def leaf(n: Node, storage: Storage, device: str) -> Node:
    """The node of a value that is in memory."""
    return node("buffer", n.dtype, n.shape, (), storage, device)


def realize(nodes: Sequence[Node], device: str, sizes: Mapping[str, int], into: dict[Node, Buffer] | None = None) -> None:
    """Sets the storage of every node. device: where nodes that could be anywhere are computed. into: memory to write a node to."""
    into = into or {}
    for n in nodes:
        if n.op == "buffer":
            n.arg.buffer.ready()
        elif not size_of(n.shape) and n.storage is None:
            n.storage = Storage(Buffer(runtime.device(device), 0))
    wanted = {n: _unshaped(n) for n in nodes if n.storage is None and n.op != "buffer"}
    for step in schedule([base for base in dict.fromkeys(wanted.values()) if base.storage is None and base.op != "buffer"], into):
        _run(step, device, sizes, into)
    for n, base in wanted.items():
        n.storage = base.arg if base.op == "buffer" else base.storage


def _unshaped(n: Node) -> Node:
    """The node whose memory holds the values of n, because only reshapes lie between."""
    while n.op == "reshape" and n.storage is None:
        n = n.src[0]
    return n


def _run(step: Step, device: str, sizes: Mapping[str, int], into: Mapping[Node, Buffer]) -> None:
    root = step.root
    assert root.storage is not None
    where = runtime.device(root.device or device)
    size = size_of(root.shape) * root.dtype.size
    if step.is_copy:
        if runtime.is_recording():
            raise NotSupported("a copy between devices inside a recorded function", remedy="move the tensor before the function is called")
        source = step.inputs[0].buffer
        where.synchronize()
        root.storage.buffer = Buffer(where, size, bytes(source.read()))
        return
    program = where.program(step.graph, step.params)
    buffer = into.get(root) or Buffer(where, size)
    root.storage.buffer = buffer
    where.launch(Launch(program, [buffer, *(s.buffer for s in step.inputs)], _values(program.kernel.sizes, sizes)))


def _values(variables: Sequence[Variable], sizes: Mapping[str, int]) -> dict[str, int]:
    missing = [v.name for v in variables if v.name not in sizes]
    if missing:
        raise BindingError(f"variable {missing[0]} has no value", means="a tensor of symbolic size needs one to be computed")
    return {v.name: sizes[v.name] for v in variables}


def combined(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """One set of variable values from several. Raises BindingError when a variable has two."""
    found: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            if found.setdefault(name, value) != value:
                raise BindingError(f"variable {name} has two values", read=f"{found[name]} and {value}", means="tensors bound to different values were combined")
    return found


def reads(n: Node, buffer: Any) -> bool:
    """True when a node's value, not yet computed, depends on this memory."""
    return any(below.op == "buffer" and below.arg.buffer is buffer for below in toposort([n], lambda m: () if m.storage is not None else m.src))
