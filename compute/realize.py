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


def realize(nodes: Sequence[Node], device: str, sizes: Mapping[str, int], into: dict[Node, Buffer] | None = None) -> dict[Node, Storage]:
    """The values of nodes, in memory. device: where nodes that could be anywhere are computed. into: memory to write a node to."""
    into = into or {}
    bases = {n: _unshaped(n) for n in nodes if size_of(n.shape)}
    steps = schedule([base for base in dict.fromkeys(bases.values()) if base.storage is None and base.op != "buffer"], into)
    passing: set[Storage] = set()
    """Values that hold for these sizes, or on this device, only: their nodes must not keep them."""
    try:
        for step in steps:
            assert step.root.storage is not None
            if _run(step, device, sizes, into) or not step.root.device or not passing.isdisjoint(step.inputs):
                passing.add(step.root.storage)
        found = {n: _value(base) for n, base in bases.items()}
    finally:
        for step in steps:
            storage = step.root.storage
            if storage is not None and (storage.buffer is None or storage in passing):
                step.root.storage = None
    for storage in found.values():
        storage.buffer.ready()
    empty = {n: Storage(Buffer(runtime.device(device), 0)) for n in nodes if n not in bases}
    return found | empty


def _value(base: Node) -> Storage:
    storage: Storage | None = base.arg if base.op == "buffer" else base.storage
    assert storage is not None
    return storage


def _unshaped(n: Node) -> Node:
    """The node whose memory holds the values of n, because only reshapes lie between."""
    while n.op == "reshape" and n.storage is None:
        n = n.src[0]
    return n


def _run(step: Step, device: str, sizes: Mapping[str, int], into: Mapping[Node, Buffer]) -> bool:
    """Starts a step, and says whether its kernel depends on sizes."""
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
        return False
    program = where.program(step.graph, step.params)
    buffer = into.get(root) or Buffer(where, size)
    where.launch(Launch(program, [buffer, *(s.buffer for s in step.inputs)], _values(program.kernel.sizes, sizes)))
    root.storage.buffer = buffer
    return bool(program.kernel.sizes)


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
