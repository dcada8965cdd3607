"""The benchmarks measure what they name; their figures are not judged here."""

from __future__ import annotations

import pytest

from hw import bench


def test_every_layer_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ACCESSES", 200)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    figures = bench.mmio_bench()
    assert set(figures) == {
        "memoryview_read_ns",
        "window_read32_ns",
        "window_write32_ns",
        "register_read_ns",
        "register_write_ns",
        "register_read_fields_ns",
        "register_update_ns",
        "ratio",
    }
    assert all(figure > 0 for figure in figures.values())


def test_every_allocation_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ALLOCATIONS", 100)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    assert bench.alloc_bench()["tlsf_operations_per_s"] > 0
