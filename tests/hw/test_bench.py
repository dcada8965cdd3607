"""The register benchmark measures what it names; its figures are not judged here."""

from __future__ import annotations

import pytest

from hw import bench


def test_every_layer_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ACCESSES", 200)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    figures = bench.mmio_bench()
    assert set(figures) == {
        "memoryview_read",
        "window_read32",
        "window_write32",
        "register_read",
        "register_write",
        "register_read_fields",
        "register_update",
        "ratio",
    }
    assert all(figure > 0 for figure in figures.values())
