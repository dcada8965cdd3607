"""`tghw bench`: counts that the documentation promises, and that every benchmark runs."""

from __future__ import annotations

import pytest

from probes import bench_process


def test_boot_and_open_stay_within_the_promised_accesses(tghw):
    """Counts do not depend on the machine: registers a boot and an opening touch, and page tables written in blocks."""
    cold, warm = (tghw("bench", "boot", "--json").json["boot"][kind] for kind in ("cold", "warm"))
    assert registers(cold["boot"]) <= 620
    assert registers(cold["open"]) <= 1100
    assert registers(warm["boot"]) < registers(cold["boot"]) / 1.5
    memory = cold["open"]["where"]["bar0"]
    assert memory["writes"] + memory["block_writes"] <= 500
    assert memory["writes"] == 0, "page tables are written in blocks"


def registers(stats):
    counts = stats["where"]["bar5"]
    return counts["reads"] + counts["writes"]


@pytest.mark.parametrize("name", ["mmio", "launch", "compile"])
def test_benchmarks_report_figures(tghw, name):
    (figures,) = tghw("bench", name, "--json").json.values()
    assert figures


def test_unknown_benchmark_names_those_there_are(tghw):
    result = tghw("bench", "warp")
    assert result.status == 2
    assert "boot, launch" in result.err


def test_whole_processes_are_measured(monkeypatch):
    monkeypatch.setattr(bench_process, "SUITE_DEVICES", ("MOCKPCI+AMD", "NULL::gfx1100"))
    monkeypatch.setattr(bench_process, "REPEATS", 1)
    figures = bench_process.process_bench()
    assert set(figures["import_cpu_s"]) == {"layers", "driver", "command"}
    assert set(figures["first_result"]) == {"open_with_imports_cpu_s", "open_peak_mib", "first_result_cpu_s", "first_result_peak_mib", "second_result_cpu_s"}
    assert set(figures["tiny_test_cpu_s"]) == {"MOCKPCI+AMD", "NULL::gfx1100"}
