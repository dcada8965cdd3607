"""Choosing a way to a PCI function: the one that the machine's state calls for, the next when it does not serve, one table when none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.open import Selection, find, open_pci
from bridges.ways import Way, first_that_serves, pci_ways
from hw import lock
from hw.dma import PagemapMemory
from hw.errors import EXIT_FAILED, EXIT_NOTHING_FOUND, BarUnassigned, BusLost, DeviceBusy, DriverBound, NothingFound, NoTransport, TghwError, VfioUnavailable
from hw.pci.device import PciDevice
from hw.target import parse
from tests.hw.fake_sysfs import FakeBar
from tests.hw.test_sysfs import GPU, MIB
from tests.hw.test_vfio import Bench

PRESENT = 1 << 63


def open_by_any(bench: Bench, frame: int = 0x1234) -> PciDevice:
    memory = PagemapMemory(bench.host, pagemap=lambda address, count: [PRESENT | frame] * count)
    return first_that_serves(GPU, pci_ways(GPU, bench.host, lock_directory=bench.folder, calls=bench.kernel, memory=memory))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("driver", "iommu_type", "transport"),
    [("", "", "sysfs"), ("", "identity", "sysfs"), ("", "DMA-FQ", "vfio"), ("vfio-pci", "identity", "vfio"), ("vfio-pci", "DMA", "vfio")],
)
def test_the_machine_decides(tmp_path: Path, driver: str, iommu_type: str, transport: str) -> None:
    bench = Bench(tmp_path, driver=driver, iommu_type=iommu_type)
    with open_by_any(bench) as device:
        assert device.transport == transport
        assert (bench.gpu.driver == "vfio-pci") == (transport == "vfio")
    assert bench.gpu.driver == driver
    assert bench.kernel.open_nodes == 0


def test_lockdown_calls_for_vfio(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="", iommu_type="identity")
    bench.host.put(bench.host.sys / "kernel" / "security" / "lockdown", "none [integrity] confidentiality")
    with open_by_any(bench) as device:
        assert device.transport == "vfio"


def test_the_next_way_is_taken_when_the_first_gives_no_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="", iommu_type="identity")
    with open_by_any(bench, frame=0) as device:
        assert device.transport == "vfio"
        assert bench.host.text(bench.gpu.directory / "enable") == "0", "sysfs was closed again"
    lock.acquire(GPU, tmp_path).release()


def test_one_table_tells_about_every_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="amdgpu")
    before = bench.host.snapshot(bench.gpu)
    with pytest.raises(NoTransport) as caught:
        open_by_any(bench)
    error = caught.value
    assert [(each.transport, each.error.code) for each in error.attempts] == [("vfio", "driver-bound"), ("sysfs", "iommu-active")]
    assert error.exit_status == EXIT_FAILED
    lines = error.explain().splitlines()
    assert lines[0] == f"no-transport: no way to {GPU} works"
    assert lines[1].split() == ["transport", "tried", "why", "it", "failed", "remedy"]
    columns = [lines[1].index(title) for title in ("transport", "tried", "why it failed", "remedy")]
    [sysfs] = [line for line in lines if line.startswith("  sysfs")]
    assert sysfs[columns[1] :].startswith("the device's files in /sys") and sysfs[columns[2] :].startswith("iommu-active:") and sysfs[columns[3] :].startswith("boot with iommu=pt")
    assert "Traceback" not in error.explain()
    document = error.to_dict()
    assert document["attempts"][0]["code"] == "driver-bound" and document["attempts"][0]["remedy"]
    assert bench.host.snapshot(bench.gpu) == before
    assert bench.host.written == []
    lock.acquire(GPU, tmp_path).release()


def test_lockdown_without_an_iommu_closes_both_ways(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="", iommu_type="")
    bench.host.put(bench.host.sys / "kernel" / "security" / "lockdown", "none [integrity] confidentiality")
    with pytest.raises(NoTransport) as caught:
        open_by_any(bench)
    assert [(each.transport, each.error.code) for each in caught.value.attempts] == [("sysfs", "no-permission"), ("vfio", "vfio-unavailable")]
    assert bench.gpu.driver == "", "a function that was bound for the attempt was given back"


def test_what_is_about_the_device_itself_is_told_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with open_by_any(bench), pytest.raises(DeviceBusy):
        open_by_any(bench)
    bench.host.set_config(bench.gpu, 0, 0xFFFFFFFF, 4)
    with pytest.raises(BusLost):
        open_by_any(bench)
    other = Bench(tmp_path / "other", driver="", iommu_type="")
    other.gpu.bars = {0: FakeBar(0, 256 * MIB)}
    other.host._write_resources(other.gpu)
    with pytest.raises(BarUnassigned):
        open_by_any(other)


def test_nothing_found_anywhere_has_its_own_exit_status() -> None:
    def nothing() -> PciDevice:
        raise NothingFound("nothing here")

    with pytest.raises(NoTransport) as caught:
        first_that_serves("a GPU", [Way("pci", "looking", nothing), Way("usb", "looking", nothing)])
    assert caught.value.exit_status == EXIT_NOTHING_FOUND
    assert NoTransport("x", []).exit_status == EXIT_FAILED


# --- through the door ---------------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TGHW_LOCK_DIR", str(tmp_path))


def test_looking_at_functions_of_vfio_uses_vfio(tmp_path: Path, quiet: None) -> None:
    bench = Bench(tmp_path)
    [found] = find(Selection(), host=bench.host)
    assert (found.transport, found.is_amd_gpu) == ("pci", True)
    with pytest.raises(TghwError) as caught:
        found.opener()
    assert "asking the version of VFIO" in caught.value.what, "the real ioctl was made, on a file that is no VFIO node"


def test_vfio_alone_when_it_was_asked_for(tmp_path: Path, quiet: None) -> None:
    bench = Bench(tmp_path, driver="", iommu_type="")
    [found] = find(Selection(), "vfio", host=bench.host)
    with pytest.raises(DriverBound, match="is not bound to vfio-pci"):
        found.opener()
    for selection, transport in ((Selection(), "vfio"), (Selection(target=parse("VFIO+AMD")), "auto")):
        with pytest.raises(VfioUnavailable, match="no IOMMU group"):
            open_pci(selection, transport, host=bench.host)
    assert bench.gpu.driver == ""


def test_every_way_is_tried_by_default(tmp_path: Path, quiet: None) -> None:
    bench = Bench(tmp_path, driver="nvidia")
    for selection in (Selection(), Selection(target=parse("PCI+AMD"))):
        with pytest.raises(NoTransport) as caught:
            open_pci(selection, host=bench.host)
        assert {each.transport for each in caught.value.attempts} == {"sysfs", "vfio"}


def test_a_machine_without_a_gpu_is_searched_on_the_usb_too(tmp_path: Path, quiet: None) -> None:
    bench = Bench(tmp_path)
    bench.host.put(bench.gpu.directory / "class", "0x020000")
    with pytest.raises(NoTransport) as caught:
        open_pci(Selection(), host=bench.host)
    assert [each.transport for each in caught.value.attempts] == ["pci", "usb"]
    with pytest.raises(NothingFound, match="no AMD GPU"):
        open_pci(Selection(target=parse("PCI+AMD")), host=bench.host)
