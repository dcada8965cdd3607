"""Casts between all dtypes, bitcasts, and constants."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import EVERYWHERE, assert_same, edges

from compute import Tensor, dtypes
from compute.dtypes import DType

EXTRA = np.array([127.9, -128.9, 255.9, -0.9, 65504, 65519.9, 65520, 70000, 2147483520.0, -2147483648.0, 3e9, -3e9, 9.2e18, 1e19, 1.9e19, 3e38], np.float64)


def expected_cast(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """numpy's cast, with floats to integers cut and saturated, as dtypes.py documents."""
    with np.errstate(all="ignore"):
        if source.is_float and target.is_int:
            found = []
            for v in x.astype(np.float64):
                if v != v:
                    found.append(0)
                else:
                    found.append(int(max(min(np.trunc(v), 2.0**70), -(2.0**70))))
            return np.array([max(min(v, int(target.max)), int(target.min)) for v in found], target.numpy)
        return x.astype(target.numpy)


@pytest.mark.parametrize("device", EVERYWHERE)
@pytest.mark.parametrize("source", [d for d in dtypes.ALL if d is not dtypes.bfloat16], ids=str)
def test_cast_to_every_dtype(source: DType, device: str) -> None:
    x = edges(source)
    if source.is_float:
        with np.errstate(all="ignore"):
            x = np.concatenate([x, EXTRA.astype(source.numpy), -EXTRA.astype(source.numpy)])
    for target in dtypes.ALL:
        got = Tensor(x, device=device).cast(target).numpy()
        if target is dtypes.bfloat16:
            continue
        assert_same(got, expected_cast(x, source, target), f"{source} to {target}")


@pytest.mark.parametrize("device", EVERYWHERE)
def test_float64_to_narrow_floats_rounds_once(device: str) -> None:
    # just above the middle of two float16: through float32 it would land on the middle, and go down
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 3 * 2.0**-11 - 2.0**-40, -(1 + 2.0**-11 + 2.0**-40), 2.0**-25 + 2.0**-60, 65520 - 2.0**-30], np.float64)
    t = Tensor(x, device=device)
    assert_same(t.cast("float16").numpy(), x.astype(np.float16))
    y = np.array([1 + 2.0**-8 + 2.0**-40, -(1 + 2.0**-8 + 2.0**-40)], np.float64)
    assert Tensor(y, device=device).cast("bfloat16").numpy().tolist() == [1 + 2.0**-7, -(1 + 2.0**-7)]


@pytest.mark.parametrize("device", EVERYWHERE)
def test_every_bfloat16_survives_the_way_through_float32(device: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    t = Tensor(bits, device=device).bitcast("bfloat16")
    back = t.cast("float32").cast("bfloat16").bitcast("uint16").numpy()
    number = (bits & 0x7FFF) <= 0x7F80
    assert_same(back[number], bits[number])
    assert ((back[~number] & 0x7FFF) > 0x7F80).all()


@pytest.mark.parametrize("device", EVERYWHERE)
def test_every_float16_survives_the_way_through_float32_and_float64(device: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16)
    t = Tensor(bits, device=device).bitcast("float16")
    for wide in ("float32", "float64"):
        assert_same(t.cast(wide).cast("float16").numpy(), halves)
        assert_same(t.cast(wide).numpy(), halves.astype(wide))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_bitcast_keeps_the_bits(device: str) -> None:
    for a, b in (("float32", "int32"), ("float32", "uint32"), ("float64", "int64"), ("float16", "int16"), ("int8", "uint8"), ("uint64", "float64")):
        x = edges(dtypes.to_dtype(a))
        assert_same(Tensor(x, device=device).bitcast(b).numpy().view(f"u{x.dtype.itemsize}"), x.view(f"u{x.dtype.itemsize}"))


@pytest.mark.parametrize("device", EVERYWHERE)
def test_constants_of_every_dtype_reach_memory_as_they_are(device: str) -> None:
    for dtype in dtypes.ALL:
        values = edges(dtype).tolist()
        for v in values[:8] + values[-3:]:
            got = Tensor.full((3,), v, dtype=dtype, device=device).numpy()
            assert_same(got, np.full(3, v, dtype.numpy), f"{dtype} {v}")
    assert_same(Tensor.full((2,), -1, dtype="uint8", device=device).numpy(), np.array([255, 255], np.uint8))
    assert_same(Tensor.full((2,), 0.1, dtype="float16", device=device).numpy(), np.full(2, 0.1, np.float16))
