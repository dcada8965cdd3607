"""Random numbers from a counter: Threefry-2x32 with 20 rounds, written as tensor ops, so that every device draws the same ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from compute import dtypes
from compute.dtypes import DType

if TYPE_CHECKING:
    from compute.tensor import Tensor

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_ROUNDS = 20

_seed = int.from_bytes(os.urandom(4), "little")
_calls = 0


def set_seed(seed: int) -> None:
    global _seed, _calls
    _seed = seed & 0xFFFFFFFF
    _calls = 0


def next_key() -> tuple[int, int]:
    """The key of the next draw: the seed, and how many draws came before it."""
    global _calls
    _calls += 1
    return _seed, (_calls - 1) & 0xFFFFFFFF


def threefry(first: Tensor, second: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Encrypts counters (two uint32 tensors of one shape) under a key of two uint32."""
    k0, k1 = key[0:1].expand(first.shape), key[1:2].expand(first.shape)
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = first + k0, second + k1
    for r in range(_ROUNDS):
        turn = _ROTATIONS[r // 4 % 2][r % 4]
        x0 = x0 + x1
        x1 = ((x1 << turn) | (x1 >> (32 - turn))) ^ x0
        if r % 4 == 3:
            step = r // 4 + 1
            x0 = x0 + keys[step % 3]
            x1 = x1 + keys[(step + 1) % 3] + step
    return x0, x1


def reference(count: int, seed: int, call: int) -> np.ndarray[Any, Any]:
    """What uniform() draws as float32, computed by numpy alone."""
    k0, k1 = np.uint32(seed), np.uint32(call)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    x0 = np.arange(count, dtype=np.uint32) + k0
    x1 = np.zeros(count, np.uint32) + k1
    for r in range(_ROUNDS):
        turn = np.uint32(_ROTATIONS[r // 4 % 2][r % 4])
        x0 = x0 + x1
        x1 = ((x1 << turn) | (x1 >> (np.uint32(32) - turn))) ^ x0
        if r % 4 == 3:
            step = r // 4 + 1
            x0 = x0 + keys[step % 3]
            x1 = x1 + keys[(step + 1) % 3] + np.uint32(step)
    return (x0 >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def uniform(counter: Tensor, key: Tensor, dtype: DType) -> Tensor:
    """Floats in [0, 1) with as many random bits as the type has: one encryption an element."""
    if not counter.size:
        return counter.cast(dtype)
    x0, x1 = threefry(counter, counter * 0, key)
    if dtype is dtypes.float64:
        bits = (x0.cast(dtypes.uint64) << 21) ^ (x1.cast(dtypes.uint64) >> 11)
        return bits.cast(dtype) * 2.0**-53
    kept = {dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}[dtype]
    return (x0 >> (32 - kept)).cast(dtypes.float32).mul(2.0**-kept).cast(dtype)
