"""Compiled programs on the executor against numpy: control flow, LDS, barriers, atomics, private memory, matrices, ids."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from mocks.isa.bench import compile_kernel
from mocks.isa.executor import DONE
from tests.mocks.isa import programs
from tests.mocks.isa.kernels import Gpu, linked_kernel


def launch(gpu: Gpu, ir: str, groups: int, *pointers: int, group_size: tuple[int, int, int] = (256, 1, 1), attributes: str = "") -> int:
    size = group_size[0] * group_size[1] * group_size[2]
    kernel = compile_kernel(programs.program(ir, size, attributes))
    run = gpu.start(kernel, groups, struct.pack(f"<{len(pointers)}Q", *pointers), group_size)
    assert run.run().kind == DONE
    assert run.groups_done == groups
    assert run.lds_out_of_range == 0
    return run.instructions


def array(gpu: Gpu, va: int, count: int, dtype: type) -> np.ndarray:
    return np.frombuffer(gpu.memory.read(va, count * np.dtype(dtype).itemsize), dtype=dtype)


@pytest.fixture(params=[False, True], ids=["whole groups", "strict"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return Gpu(strict=request.param)


def test_tree_reduction_needs_every_barrier(gpu: Gpu) -> None:
    groups = 2 if gpu.executor.strict else 40
    data = np.random.default_rng(1).integers(0, 100, groups * 256).astype(np.float32)
    out = gpu.buffer(groups * 4)
    launch(gpu, programs.REDUCE, groups, out, gpu.buffer(data.tobytes()))
    assert np.array_equal(array(gpu, out, groups, np.float32), data.reshape(groups, 256).sum(axis=1))


def collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n = (3 * n + 1) & 0xFFFFFFFF if n & 1 else n >> 1
        steps += 1
    return steps


def test_lanes_leave_a_loop_at_their_own_time(gpu: Gpu) -> None:
    data = np.random.default_rng(2).integers(0, 60 if gpu.executor.strict else 100_000, 256, dtype=np.uint32)
    out = gpu.buffer(1024)
    launch(gpu, programs.COLLATZ, 1, out, gpu.buffer(data.tobytes()))
    assert array(gpu, out, 256, np.uint32).tolist() == [collatz(int(n)) for n in data]


def test_atomics_in_lds_and_global_memory(gpu: Gpu) -> None:
    groups = 2 if gpu.executor.strict else 16
    data = np.random.default_rng(3).integers(0, 256, groups * 256, dtype=np.uint8)
    out = gpu.buffer(258 * 4 + 8)
    launch(gpu, programs.HISTOGRAM, groups, out, gpu.buffer(data.tobytes()))
    assert array(gpu, out, 256, np.uint32).tolist() == np.bincount(data, minlength=256).tolist()
    assert array(gpu, out + 1024, 1, np.uint32)[0] == groups * 256 - 1
    assert array(gpu, out + 1028, 1, np.float32)[0] == data.astype(np.float32).sum()
    assert array(gpu, out + 1032, 1, np.uint64)[0] == data.astype(np.uint64).sum() << 30


def test_private_arrays_are_per_lane(gpu: Gpu) -> None:
    groups = 1 if gpu.executor.strict else 20
    data = np.random.default_rng(4).integers(0, 1 << 16, groups * 256, dtype=np.uint32)
    out = gpu.buffer(groups * 1024)
    launch(gpu, programs.PRIVATE, groups, out, gpu.buffer(data.tobytes()))
    k = np.arange(16, dtype=np.uint32)
    expected = [int(sum(int((i ^ v) & 15) * int(v) * (int(i) + 1) for i in k)) & 0xFFFFFFFF for v in data]
    assert array(gpu, out, len(data), np.uint32).tolist() == expected


def test_generic_pointers_reach_all_three_memories() -> None:
    gpu = Gpu()
    data = np.arange(256, dtype=np.uint32) * 7
    out = gpu.buffer(1024)
    launch(gpu, programs.GENERIC, 1, out, gpu.buffer(data.tobytes()))
    t = np.arange(256)
    assert array(gpu, out, 256, np.uint32).tolist() == (data + 3 * t + 5 * t + 1000).tolist()


def test_ids_in_three_dimensions() -> None:
    gpu = Gpu()
    kernel = compile_kernel(programs.program(programs.IDS, 105))
    out = gpu.buffer(12 * 105 * 4)
    dispatch = gpu.start(kernel, 1, struct.pack("<Q", out), (7, 5, 3)).dispatch
    dispatch.grid = (2, 3, 2)
    assert gpu.executor.start(dispatch).run().kind == DONE
    gz, gy, gx, z, y, x = np.indices((2, 3, 2, 3, 5, 7))
    expected = gx << 20 | gy << 16 | gz << 12 | x << 8 | y << 4 | z
    assert array(gpu, out, 12 * 105, np.uint32).tolist() == expected.ravel().tolist()


def test_lanes_exchange_values() -> None:
    gpu = Gpu()
    v = np.random.default_rng(5).integers(0, 1 << 32, 32, dtype=np.uint32)
    out = gpu.buffer(7 * 128)
    launch(gpu, programs.CROSS, 1, out, gpu.buffer(v.tobytes()), group_size=(32, 1, 1))
    rows = array(gpu, out, 7 * 32, np.uint32).reshape(7, 32)
    lane = np.arange(32)
    assert rows[0].tolist() == np.where(lane % 16 == 0, 0xFFFFFFFF, v[(lane - 1) % 32]).tolist()  # row_shr:1
    assert rows[1].tolist() == v[lane ^ 2].tolist()  # swizzle: and 31, or 0, xor 2
    assert rows[2].tolist() == v[lane * 5 % 32].tolist()
    pushed = np.zeros(32, dtype=np.uint32)
    pushed[lane * 7 % 32] = v
    assert rows[3].tolist() == pushed.tolist()
    assert rows[4].tolist() == [v[11]] * 32
    assert rows[5].tolist() == v[(lane & 15) | (16 - (lane & 16))].tolist()  # selectors 0..15, other row
    assert rows[6].tolist() == [100 + int((v[:i] & 1).sum()) for i in range(32)]


def replicated(matrix: np.ndarray) -> bytes:
    """Rows of A (or columns of B, transposed) for lanes 0-15 and again for lanes 16-31."""
    return matrix.tobytes() * 2


def accumulator(matrix: np.ndarray) -> np.ndarray:
    """[lane, register] of C and D: register r of lane l is element [2r + l/16][l % 16]."""
    return np.array([[matrix[2 * r + lane // 16, lane % 16] for r in range(8)] for lane in range(32)])


@pytest.mark.parametrize("kind", ["f32_f16", "f32_bf16", "f16_f16", "bf16_bf16", "i32_iu8", "i32_iu4"])
def test_matrix_products(kind: str) -> None:
    gpu = Gpu()
    rng = np.random.default_rng(6)
    result, factor = kind.split("_")
    a, b, c = (rng.integers(-8, 8, (16, 16)) for _ in range(3))
    if kind == "i32_iu4":
        b = b + 8
    expected = c + a @ b

    def encode(matrix: np.ndarray, dtype: str) -> np.ndarray:
        if dtype == "f16":
            return matrix.astype(np.float16).view(np.uint16)
        if dtype == "bf16":
            return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if dtype == "iu4":
            nibbles = (matrix & 15).astype(np.uint8)
            return nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        return matrix.astype({"iu8": np.int8, "f32": np.float32, "i32": np.int32}[dtype])

    start = encode(accumulator(c), result)
    if result in ("f16", "bf16"):  # one value per register, in the half that op_sel names; the other half is left alone
        half = int(result == "bf16")
        wide = np.full((32, 8, 2), 0x1234, dtype=np.uint16)
        wide[:, :, half] = start
        start = wide
    out = gpu.buffer(32 * 8 * 4)
    pointers = [gpu.buffer(data) for data in (replicated(encode(a, factor)), replicated(encode(np.ascontiguousarray(b.T), factor)), start.tobytes())]
    launch(gpu, programs.matrix_product(kind), 1, out, *pointers, group_size=(32, 1, 1))
    wanted = encode(accumulator(expected), result)
    if result in ("f16", "bf16"):
        got = array(gpu, out, 512, np.uint16).reshape(32, 8, 2)
        assert np.array_equal(got[:, :, half], wanted)
        assert (got[:, :, 1 - half] == 0x1234).all()
    else:
        assert np.array_equal(array(gpu, out, 256, wanted.dtype.type).reshape(32, 8), wanted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scalar_operands_of_16_bit_instructions() -> None:
    gpu = Gpu()
    data = np.random.default_rng(9).integers(-300, 300, 256).astype(np.int16)
    out = gpu.buffer(512)
    kernel = compile_kernel(programs.program(programs.UNIFORM))
    arguments = struct.pack("<QQheI", out, gpu.buffer(data.tobytes()), 7, 0.5, 3 << 16 | 0x1234)
    assert gpu.start(kernel, 1, arguments).run().kind == DONE
    with np.errstate(over="ignore"):
        product = ((data + np.int16(7)) * np.int16(3)).astype(np.int16).astype(np.float16)
        expected = np.minimum(product * np.float16(0.5) + np.uint16(0x4123).reshape(1).view(np.float16), np.float16(0.5))
    assert np.array_equal(array(gpu, out, 256, np.float16), expected)


def test_wide_values_through_lds(gpu: Gpu) -> None:
    data = np.random.default_rng(7).integers(0, 1 << 32, (256, 4), dtype=np.uint32)
    out = gpu.buffer(256 * 12)
    launch(gpu, programs.WIDE, 1, out, gpu.buffer(data.tobytes()))
    assert np.array_equal(array(gpu, out, 768, np.uint32).reshape(256, 3), data[::-1, :3])


def test_functions_that_are_not_inlined(gpu: Gpu) -> None:
    count = 32 if gpu.executor.strict else 256
    out = gpu.buffer(count * 4)
    kernel, entry = linked_kernel(programs.program(programs.CALLS, count))
    assert gpu.start(kernel, 1, struct.pack("<Q", out), (count, 1, 1), entry).run().kind == DONE
    expected = []
    for item in range(count):
        value = item
        for _ in range(item + 1):
            value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
            value ^= value >> 16
        expected.append(value)
    assert array(gpu, out, count, np.uint32).tolist() == expected


def test_compare_and_swap_loops(gpu: Gpu) -> None:
    data = np.random.default_rng(8).integers(0, 1000, 256).astype(np.float32)
    out = gpu.buffer(16)
    launch(gpu, programs.SWAP_LOOPS, 1, out, gpu.buffer(data.tobytes()))
    assert array(gpu, out, 1, np.float32)[0] == data.max()
    assert array(gpu, out + 8, 1, np.float64)[0] == data.sum()
