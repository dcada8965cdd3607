"""Runs kernel IR on numpy, all work-items of all workgroups at once: slow, simple, and the reference for the compilers.

A scalar value is an array with one element a work-item, or one for all; a vector has a second axis. Statements run in lockstep, so a barrier
has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compute import dtypes
from compute.codegen.arithmetic import Array, apply, bfloat16_to_bits, bitcast, bits_to_bfloat16, cast
from compute.dtypes import DType
from compute.ir import If, Kernel, Loop, Statement, Value
from compute.ops import ALU


def run(kernel: Kernel, buffers: Sequence[bytearray | memoryview], sizes: Mapping[str, int]) -> None:
    """Execute the kernel on raw memory, one block of bytes a parameter."""
    memory = [np.frombuffer(raw, p.dtype.storage, len(raw) // p.dtype.size) for raw, p in zip(buffers, kernel.params, strict=True)]
    with np.errstate(all="ignore"):
        _Run(kernel, memory, sizes).block(kernel.body)


class _Run:
    def __init__(self, kernel: Kernel, memory: list[Any], sizes: Mapping[str, int]) -> None:
        groups = kernel.groups.evaluate(sizes)
        self.memory = memory
        self.sizes = [sizes[v.name] for v in kernel.sizes]
        self.group = np.repeat(np.arange(groups, dtype=np.int32), kernel.block)
        self.item = np.tile(np.arange(kernel.block, dtype=np.int32), groups)
        self.count = len(self.group)
        self.local = [np.zeros((groups, size), d.storage) for d, size in kernel.locals]
        self.env: dict[int, Array] = {}
        self.mask: Array = None

    def block(self, body: list[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Value):
                self.env[statement.number] = self.value(statement)
            elif isinstance(statement, If):
                self.condition(statement)
            else:
                self.loop(statement)

    def condition(self, statement: If) -> None:
        condition = np.broadcast_to(self.env[statement.condition.number], (self.count,))
        outer = self.mask
        self.mask = condition if outer is None else outer & condition
        if self.mask.any():
            self.block(statement.body)
        self.mask = outer

    def loop(self, statement: Loop) -> None:
        for phi, start in zip(statement.phis, statement.inits, strict=True):
            self.env[phi.number] = self.env[start.number]
        extent = self.env[statement.extent.number]
        for i in range(int(extent)):
            self.env[statement.counter.number] = np.asarray(i, statement.counter.dtype.numpy)
            self.block(statement.body)
            ends = [self.env[y.number] for y in statement.yields]
            for phi, end in zip(statement.phis, ends, strict=True):
                self.env[phi.number] = end
        for result, phi in zip(statement.results, statement.phis, strict=True):
            self.env[result.number] = self.env[phi.number]

    def value(self, v: Value) -> Array:
        args = [self.env[a.number] for a in v.args]
        op = v.op
        if op == "const":
            found = np.asarray(v.arg).astype(v.dtype.numpy) if not v.dtype.is_int else np.asarray(v.arg, v.dtype.numpy)
            return cast(found, dtypes.float32, v.dtype) if v.dtype is dtypes.bfloat16 else found
        if op in ALU:
            return apply(op, v.args[-1].dtype, args)
        if op == "cast":
            return cast(args[0], v.args[0].dtype, v.dtype)
        if op == "bitcast":
            return bitcast(args[0], v.args[0].dtype, v.dtype)
        if op == "param":
            return np.asarray(self.sizes[v.arg], np.int32)
        if op == "workgroup":
            return self.group
        if op == "workitem":
            return self.item
        if op == "splat":
            return args[0][:, None] if args[0].ndim else args[0]
        if op == "extract":
            return args[0][..., v.arg] if args[0].ndim else args[0]
        if op == "vector":
            return np.stack([np.broadcast_to(a, (self.count,)) for a in args], axis=-1)
        if op == "lanes":
            return np.arange(v.lanes, dtype=np.int32)[None, :]
        if op == "barrier":
            return None
        return self.access(v, args)

    def access(self, v: Value, args: list[Array]) -> Array:
        if v.op in ("load", "store"):
            number, offset = v.arg[:2]
            where: tuple[Any, ...] = ()
            memory = self.memory[number]
        else:
            number, offset = v.arg, 0
            where = (self.group,)
            memory = self.local[number]
        index = np.broadcast_to(args[0].astype(np.int64) + offset, (self.count,))
        active = self.mask
        if v.op == "load" and len(args) > 1:
            gate = np.broadcast_to(args[1], (self.count,))
            active = gate if active is None else active & gate
        if active is not None:
            index = np.where(active, index, 0)
        if v.lanes > 1:
            index = index[:, None] + np.arange(v.lanes)
            where = tuple(w[:, None] for w in where)
            active = None if active is None else active[:, None]
        assert index.size == 0 or (index.min() >= 0 and index.max() < memory.shape[-1]), f"{v} leaves memory of {memory.shape[-1]} elements"
        if v.op in ("load", "lload"):
            found = _from_storage(memory[(*where, index)], v.dtype)
            return found if active is None else np.where(active, found, np.zeros((), found.dtype))
        data = np.broadcast_to(_to_storage(args[1], v.args[1].dtype), index.shape)
        if active is None:
            memory[(*where, index)] = data
        else:
            chosen = np.broadcast_to(active, index.shape)
            places = tuple(np.broadcast_to(w, index.shape)[chosen] for w in where)
            memory[(*places, index[chosen])] = data[chosen]
        return None


def _from_storage(data: Array, dtype: DType) -> Array:
    return bits_to_bfloat16(data) if dtype is dtypes.bfloat16 else data


def _to_storage(data: Array, dtype: DType) -> Array:
    return bfloat16_to_bits(data) if dtype is dtypes.bfloat16 else data
