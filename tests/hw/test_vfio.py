"""The VFIO transport against a stand-in for the kernel's side: each way to the device, DMA through the IOMMU, interrupts, resets, refusals."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hw import lock
from hw.dma import PagemapMemory
from hw.errors import (
    EXIT_BUSY,
    EXIT_REFUSED,
    BusLost,
    DeviceBusy,
    DmaError,
    DriverBound,
    DriverInUse,
    GroupNotViable,
    IommuRefused,
    IovaExhausted,
    MapFailed,
    MemlockLimit,
    MemoryDisabled,
    NotSupported,
    OutOfWindow,
    PermissionMissing,
    ResetFailed,
    ResizeRefused,
    TghwError,
    UsageError,
    VfioUnavailable,
)
from hw.pci.device import PciId
from hw.pci.iova import LOWEST, IovaSpace, bus_ranges, subtract
from hw.pci.vfio import VfioPciDevice
from tests.hw.fake_sysfs import FakeBar, FakeFunction, FakeHost
from tests.hw.fake_vfio import DmaFault, FakeVfio
from tests.hw.test_sysfs import AUDIO, GPU, MIB, gpu_bars, gpu_image, image

GROUP = "14"
Opener = Callable[..., VfioPciDevice]


class Bench:
    """A machine with the GPU in an IOMMU group."""

    def __init__(self, tmp_path: Path, *, driver: str = "vfio-pci", noiommu: bool = False, nodes: bool = False, iommu_type: str = "DMA-FQ") -> None:
        self.folder = tmp_path
        self.host = FakeHost(tmp_path / "root")
        data = bytearray(gpu_image())
        data[4] = 2 if driver == "vfio-pci" else 0
        self.gpu = self.host.add_function(GPU, bytes(data), gpu_bars(), driver=driver, iommu_type=iommu_type, iommu_group=GROUP if iommu_type else "")
        self.kernel = FakeVfio(self.host, noiommu=noiommu, nodes=nodes)

    def open(self, **options: object) -> VfioPciDevice:
        return VfioPciDevice(GPU, host=self.host, calls=self.kernel, lock_directory=self.folder, **options)  # type: ignore[arg-type]

    def add_audio(self, driver: str) -> FakeFunction:
        return self.host.add_function(AUDIO, image(5), driver=driver, iommu_type="DMA-FQ", iommu_group=GROUP)

    def refused(self, kind: type[TghwError], **options: object) -> TghwError:
        """Open, expect this refusal with cause and remedy; nothing stays open, no file is changed, the lock is free."""
        before = self.host.snapshot(self.gpu)
        with pytest.raises(kind) as caught:
            self.open(**options)
        assert caught.value.means and caught.value.remedy
        assert self.kernel.open_nodes == 0
        assert self.host.snapshot(self.gpu) == before
        lock.acquire(GPU, self.folder).release()
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(params=["type 1", "iommufd"])
def any_bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path, nodes=request.param == "iommufd")


# --- opening and closing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "mode"), [(False, "type 1"), (True, "iommufd")])
def test_the_best_way_to_the_device_is_taken(tmp_path: Path, nodes: bool, mode: str) -> None:
    bench = Bench(tmp_path, nodes=nodes)
    before = bench.host.snapshot(bench.gpu)
    with bench.open() as device:
        assert (device.mode, device.transport) == (mode, "vfio")
        assert device.id == PciId(0x1002, 0x744C, 0xC8, 0x030000, 0x1002, 0x0E3B)
        assert {index: bar.size for index, bar in device.bars.items()} == {0: 256 * MIB, 2: 2 * MIB, 4: 256, 5: MIB}
        assert device.bar(0).address == 0x8_0000_0000
        device.set_bus_master(True)
        assert bench.host.config_word(bench.gpu, 4) & 4
    assert bench.kernel.open_nodes == 0
    assert bench.host.snapshot(bench.gpu) == before
    device.close()


def test_the_group_is_used_where_the_own_node_may_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, nodes=True)
    monkeypatch.setattr(bench.host, "may_use", lambda path: path.name != "iommu")
    with bench.open() as device:
        assert device.mode == "type 1"


def test_old_type_1_is_enough(bench: Bench) -> None:
    bench.kernel.extensions = (1,)
    with bench.open() as device:
        assert device.alloc_dma(4096).pages


def test_a_function_without_driver_is_bound_and_given_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="")
    before = bench.host.snapshot(bench.gpu)
    with bench.open() as device:
        assert bench.gpu.driver == "vfio-pci"
        device.map_bar(5).write32(0, 1)
    assert bench.host.snapshot(bench.gpu) == before | {"config": bench.host.snapshot(bench.gpu)["config"], "driver": b""}


def test_looking_does_not_bind(tmp_path: Path) -> None:
    error = Bench(tmp_path, driver="").refused(DriverBound, bind=False)
    assert "echo vfio-pci > " in error.remedy and "drivers_probe" in error.remedy


def test_another_driver_is_only_taken_off_with_consent_and_never_in_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="amdgpu")
    error = bench.refused(DriverBound)
    assert (error.exit_status, "amdgpu" in error.what) == (EXIT_REFUSED, True)
    bench.host.put(bench.host.dev / "kfd", "")
    bench.host.add_process(4711, "python train.py", ("/dev/kfd",))
    assert "process 4711" in bench.refused(DriverInUse, unbind=True).what
    (bench.host.proc / "4711" / "fd" / "0").unlink()
    with bench.open(unbind=True):
        assert bench.gpu.driver == "vfio-pci"
    assert bench.gpu.driver == ""


def test_driver_that_is_not_loaded(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="")
    home = bench.host.sys / "bus" / "pci" / "drivers" / "vfio-pci"
    (home / "unbind").unlink()
    home.rmdir()
    assert "modprobe vfio-pci" in bench.refused(VfioUnavailable).remedy


def test_vfio_pci_that_does_not_take_the_function(tmp_path: Path) -> None:
    bench = Bench(tmp_path, driver="")
    bench.host.ignored.add("drivers_probe")
    assert "was not taken by vfio-pci" in bench.refused(DriverBound).what


def test_no_iommu_group_names_both_ways_out(tmp_path: Path) -> None:
    error = Bench(tmp_path, iommu_type="").refused(VfioUnavailable)
    assert "intel_iommu=on" in error.remedy and "enable_unsafe_noiommu_mode" in error.remedy


def test_other_functions_of_the_group_are_named(any_bench: Bench) -> None:
    audio = any_bench.add_audio("snd_hda_intel")
    error = any_bench.refused(GroupNotViable)
    assert f"{AUDIO} (snd_hda_intel)" in error.what
    assert f"echo {AUDIO} > /sys/bus/pci/devices/{AUDIO}/driver/unbind" in error.remedy
    any_bench.host.write(audio.directory / "driver" / "unbind", AUDIO)
    any_bench.open().close()


@pytest.mark.parametrize("driver", ["", "vfio-pci", "pcieport"])
def test_harmless_members_do_not_stand_in_the_way(bench: Bench, driver: str) -> None:
    bench.add_audio(driver)
    bench.open().close()


def test_group_in_use_names_the_holder(bench: Bench) -> None:
    bench.kernel.open(bench.host.dev / "vfio" / GROUP)
    bench.host.add_process(815, "qemu-system-x86_64 -m 4G", (f"/dev/vfio/{GROUP}",))
    with pytest.raises(DeviceBusy) as caught:
        bench.open()
    assert "process 815 (qemu-system-x86_64 -m 4G)" in caught.value.what
    assert (caught.value.exit_status, caught.value.holder) == (EXIT_BUSY, "process 815 (qemu-system-x86_64 -m 4G)")
    lock.acquire(GPU, bench.folder).release()


def test_own_node_in_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nodes=True)
    bench.kernel.open(bench.host.dev / "vfio" / "devices" / "vfio0")
    with pytest.raises(DeviceBusy, match="vfio0 is held by"):
        bench.open()


def test_second_open_in_another_transport_is_refused_by_the_lock(bench: Bench) -> None:
    with bench.open(), pytest.raises(DeviceBusy):
        bench.open()


@pytest.mark.parametrize(("node", "number", "kind", "part"), [
    ("vfio/vfio", errno.EACCES, PermissionMissing, "chown"),
    (f"vfio/{GROUP}", errno.EACCES, PermissionMissing, "chown"),
    ("vfio/vfio", errno.ENODEV, VfioUnavailable, "modprobe vfio-pci"),
    (f"vfio/{GROUP}", errno.ENOENT, VfioUnavailable, "bind the function"),
])  # fmt: skip
def test_nodes_that_cannot_be_opened(bench: Bench, node: str, number: int, kind: type[TghwError], part: str) -> None:
    bench.host.open_faults[node] = number
    error = bench.refused(kind)
    assert os.strerror(number) in error.read and part in error.remedy


def test_missing_interrupt_remapping_is_explained(any_bench: Bench) -> None:
    any_bench.kernel.interrupt_remapping = False
    error = any_bench.refused(IommuRefused)
    assert "allow_unsafe_interrupts=1" in error.remedy


def test_iommu_driver_not_loaded_and_unknown_version(bench: Bench) -> None:
    bench.kernel.extensions = ()
    assert "modprobe vfio_iommu_type1" in bench.refused(VfioUnavailable).remedy
    bench.kernel.version = 1
    assert "version 1" in bench.refused(VfioUnavailable).read


def test_dead_device(bench: Bench) -> None:
    bench.host.set_config(bench.gpu, 0, 0xFFFFFFFF_FFFFFFFF, 8)
    assert "0xffffffff" in bench.refused(BusLost).read


def test_unknown_way(bench: Bench) -> None:
    with pytest.raises(UsageError, match="sideways"):
        bench.open(mode="sideways")


# --- configuration space and BARs ---------------------------------------------------------------------------------------


def test_decode_is_switched_on_before_anything_is_mapped(bench: Bench) -> None:
    bench.host.set_config(bench.gpu, 4, 0)
    with bench.open() as device:
        assert bench.host.config_word(bench.gpu, 4) == 2
        device.set_memory_space(False)
        with pytest.raises(MemoryDisabled):
            device.map_bar(5)


def test_registers_reach_the_device(bench: Bench) -> None:
    with bench.open() as device:
        device.map_bar(5).write32(0x3D8, 0x12345678)
        assert device.map_bar(5, 0x3D0, 0x20).read32(8) == 0x12345678
        assert device.config.size == 4096 and len(device.config.dump()) == 4096
        for offset, size in ((0, MIB + 1), (MIB, 4), (-4, 4)):
            with pytest.raises(OutOfWindow):
                device.map_bar(5, offset, size)
        with pytest.raises(NotSupported, match="BAR4"):
            device.map_bar(4)
        window = device.map_bar(5)
    with pytest.raises(OutOfWindow, match="closed"):
        window.read32(0)
    with (bench.gpu.directory / "resource5").open("rb") as file:
        assert file.read()[0x3D8:0x3DC] == bytes.fromhex("78563412")


def test_pages_that_cannot_be_mapped_are_reached_by_calls(bench: Bench) -> None:
    bench.kernel.device(GPU).sparse[5] = [(0, 0x8000), (0x9000, MIB - 0x9000)]
    with bench.open() as device:
        table = device.map_bar(5, 0x8000, 0x1000)
        assert table.cost == "round_trip"
        table.write32(0x10, 0xFEE00000)
        table.write64(0x18, 0x1122334455667788)
        table.write8(0x20, 7)
        assert (table.read32(0x10), table.read64(0x18), table.read8(0x20)) == (0xFEE00000, 0x1122334455667788, 7)
        assert device.map_bar(5, 0x9000).cost == "local"
        whole = device.map_bar(5)
        assert (whole.cost, whole.size, whole.read32(0x8010)) == ("round_trip", MIB, 0xFEE00000)
    for window in (table, whole):
        with pytest.raises(OutOfWindow, match="closed"):
            window.read32(0)


def test_mapping_refused_by_the_kernel(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as device:
        monkeypatch.setattr(bench.kernel, "map", lambda *arguments: (_ for _ in ()).throw(OSError(errno.EINVAL, "Invalid argument")))
        with pytest.raises(MapFailed, match="BAR5"):
            device.map_bar(5)


def test_resizing_gives_the_device_back_for_a_moment(any_bench: Bench) -> None:
    before = any_bench.host.text(any_bench.gpu.directory / "driver_override")
    with any_bench.open() as device:
        window, irq = device.map_bar(5), device.irq()
        assert device.bar(0).resizable_to[-1] == 16 << 30
        device.resize_bar(0, 16 << 30)
        assert device.bar(0).size == 16 << 30
        with pytest.raises(OutOfWindow):
            window.read32(0)
        device.map_bar(0, (16 << 30) - 4096).write32(0, 1)
        assert irq is not None and device.irq() is not irq
        assert device.alloc_dma(4096).pages
        with pytest.raises(ResizeRefused, match="stays as it is"):
            device.resize_bar(0, 256 * MIB)
        assert device.bar(0).size == 16 << 30
    assert (any_bench.gpu.driver, any_bench.host.text(any_bench.gpu.directory / "driver_override")) == ("vfio-pci", before)
    assert any_bench.kernel.open_nodes == 0


def test_a_resize_that_is_refused_leaves_a_working_device(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as device:
        for size, kind in ((32 << 30, ResizeRefused), (3, ResizeRefused)):
            with pytest.raises(kind, match="cannot have"):
                device.resize_bar(0, size)
        with pytest.raises(NotSupported):
            device.resize_bar(5, 2 * MIB)
        bench.host.write_faults["resource0_resize"] = errno.ENOSPC
        with pytest.raises(ResizeRefused, match="was not made 16GB"):
            device.resize_bar(0, 16 << 30)
        device.map_bar(5).write32(0, 1)
        assert device.bar(0).size == 256 * MIB
        written = len(bench.host.written)
        monkeypatch.setattr(bench.host, "may_use", lambda path: not path.name.endswith("_resize"))
        with pytest.raises(PermissionMissing, match="resource0_resize"):
            device.resize_bar(0, 16 << 30)
        assert len(bench.host.written) == written
        device.map_bar(5).write32(0, 2)


def test_a_device_that_cannot_be_had_again_is_closed(bench: Bench) -> None:
    device = bench.open()
    bench.host.ignored.add("drivers_probe")
    with pytest.raises(VfioUnavailable):
        device.resize_bar(0, 16 << 30)
    assert bench.kernel.open_nodes == 0
    lock.acquire(GPU, bench.folder).release()


# --- DMA ----------------------------------------------------------------------------------------------------------------


def test_the_device_reaches_exactly_what_was_allocated(any_bench: Bench) -> None:
    hardware = any_bench.kernel.device(GPU)
    with any_bench.open() as device:
        memory = device.alloc_dma(3 * 4096 + 1)
        assert len(memory.pages) == 4
        assert memory.pages == list(range(memory.pages[0], memory.pages[0] + 0x4000, 0x1000))
        assert memory.window.read(0, memory.size) == bytes(memory.size)
        with pytest.raises(DmaFault, match="bus mastering is off"):
            hardware.dma_write(memory.pages[0], b"x")
        device.set_bus_master(True)
        hardware.dma_write(memory.pages[3] + 8, b"from the device")
        assert memory.window.read(0x3008, 15) == b"from the device"
        memory.window.write(0x1000, b"from the host")
        assert hardware.dma_read(memory.pages[1], 13) == b"from the host"
        with pytest.raises(DmaFault):
            hardware.dma_write(memory.pages[3] + 4096, b"x")
        address = memory.pages[0]
        memory.release()
        memory.release()
        with pytest.raises(DmaFault):
            hardware.dma_read(address, 1)
        with pytest.raises(OutOfWindow):
            memory.window.read32(0)
        again = device.alloc_dma(4096, contiguous=True)
        assert again.pages == [address]
        device.close()
        with pytest.raises(DmaFault):
            hardware.dma_read(again.pages[0], 1)
        again.release()


def test_addresses_stay_out_of_reserved_places_and_bus_windows(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    reserved = "0x0000000000100000 0x00000000001fffff direct\n0x00000000fee00000 0x00000000feefffff msi"
    bench.host.put(bench.host.sys / "kernel" / "iommu_groups" / GROUP / "reserved_regions", reserved)
    bench.host.add_function("0000:00:02.0", image(6), {0: FakeBar(0x200000, MIB, flags=0x40200)})
    with bench.open() as device:
        assert device.alloc_dma(4096).pages == [0x300000]


def test_refused_mappings_are_typed_and_leave_nothing_behind(any_bench: Bench) -> None:
    with any_bench.open() as device:
        kept = device.alloc_dma(4096)
        any_bench.kernel.memlock = 8192
        with pytest.raises(MemlockLimit) as caught:
            device.alloc_dma(1 << 20)
        assert "limit" in caught.value.read and "ulimit -l" in caught.value.remedy
        any_bench.kernel.memlock = 1 << 40
        any_bench.kernel.entry_limit = 1
        with pytest.raises(IovaExhausted) as full:
            device.alloc_dma(4096)
        assert "dma_entry_limit" in full.value.remedy
        any_bench.kernel.entry_limit = 9
        assert device.alloc_dma(4096).pages == [kept.pages[0] + 4096]
        any_bench.kernel.ranges = []
        with pytest.raises(DmaError, match="device address"):
            device.alloc_dma(4096)


def test_a_small_address_range_is_used_up_with_a_typed_error(bench: Bench) -> None:
    bench.kernel.ranges = [(0, LOWEST + 0x3FFF)]
    with bench.open() as device:
        pieces = [device.alloc_dma(0x2000), device.alloc_dma(0x2000)]
        with pytest.raises(IovaExhausted, match="0x1000 bytes"):
            device.alloc_dma(1)
        pieces[0].release()
        assert device.alloc_dma(0x2000).pages == pieces[0].pages


def test_many_ranges_are_asked_for_again(any_bench: Bench) -> None:
    any_bench.kernel.ranges = [(number << 24, (number << 24) + 0xFFFF) for number in range(1, 60)]
    with any_bench.open() as device:
        assert device.alloc_dma(0x10000).pages[0] == 1 << 24
        assert device.alloc_dma(0x10000).pages[0] == 2 << 24


def test_no_iommu_gives_physical_pages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, noiommu=True)
    memory = PagemapMemory(bench.host, pagemap=lambda address, count: [1 << 63 | 0x1000 + 3 * page for page in range(count)])
    with bench.open(memory=memory) as device:
        assert device.mode == "no IOMMU"
        assert device.alloc_dma(2 * 4096).pages == [0x1000000, 0x1003000]
        assert device.irq() is not None


def test_no_iommu_needs_rawio(tmp_path: Path) -> None:
    bench = Bench(tmp_path, noiommu=True)
    bench.host.open_faults[f"noiommu-{GROUP}"] = errno.EPERM
    assert "CAP_SYS_RAWIO" in bench.refused(PermissionMissing).means


def test_ranges_are_whole_pages_without_the_excluded() -> None:
    assert subtract([(0x1000, 0x8FFF)], [(0x3800, 0x4000), (0x8000, 0x20000)], 0x1000) == [(0x1000, 0x2FFF), (0x5000, 0x7FFF)]
    space = IovaSpace([(0, (1 << 64) - 1)])
    assert space.ranges == [(LOWEST, (1 << 44) - 1)]


def test_bus_ranges_are_memory_only(bench: Bench) -> None:
    assert bus_ranges(bench.host) == [(0x8_0000_0000, 0x8_0FFF_FFFF), (0xA_0000_0000, 0xA_001F_FFFF), (0xFCB0_0000, 0xFCBF_FFFF)]


# --- interrupts ---------------------------------------------------------------------------------------------------------


def test_message_interrupts_are_counted(any_bench: Bench) -> None:
    hardware = any_bench.kernel.device(GPU)
    with any_bench.open() as device:
        irq = device.irq()
        assert irq is not None and device.irq() is irq
        device.set_bus_master(True)
        assert not irq.wait(0)
        hardware.interrupt()
        hardware.interrupt()
        assert irq.wait(1)
        assert irq.count == 2  # type: ignore[attr-defined]
        assert not irq.wait(0)
        threading.Timer(0.02, hardware.interrupt).start()
        assert irq.wait(5)
        irq.close()
        hardware.interrupt()
        assert not hardware.eventfds


def test_a_line_is_opened_again_when_its_interrupt_was_dealt_with(bench: Bench) -> None:
    hardware = bench.kernel.device(GPU)
    hardware.irq_counts[1] = 0
    with bench.open() as device:
        irq = device.irq()
        assert irq is not None and irq.index == 0  # type: ignore[attr-defined]
        hardware.interrupt()
        assert irq.wait(1)
        assert hardware.masked
        hardware.interrupt()
        assert irq.wait(1), "the one that came while the line was masked"
        assert not irq.wait(0)
        assert not hardware.masked
    assert not hardware.eventfds


def test_msi_that_is_refused_falls_back_to_the_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = bench.kernel.device(GPU)
    whole = hardware.set_irqs

    def refuse(data: bytes) -> None:
        if data[8] == 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        whole(data)

    monkeypatch.setattr(hardware, "set_irqs", refuse)
    with bench.open() as device:
        irq = device.irq()
        assert irq is not None and irq.index == 0  # type: ignore[attr-defined]


def test_device_without_interrupts_is_polled(bench: Bench) -> None:
    bench.kernel.device(GPU).irq_counts = dict.fromkeys(range(5), 0)
    with bench.open() as device:
        assert device.irq() is None


# --- reset --------------------------------------------------------------------------------------------------------------


def test_function_reset_and_a_device_that_does_not_come_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = bench.kernel.device(GPU)
    with bench.open() as device:
        device.reset()
        assert hardware.resets == 1
        bench.host.set_config(bench.gpu, 0, 0xFFFFFFFF, 4)
        with pytest.raises(BusLost, match="after a reset"):
            device.reset()


def test_bus_reset_only_when_everything_on_the_bus_is_ours(any_bench: Bench) -> None:
    hardware = any_bench.kernel.device(GPU)
    hardware.flags = 2
    with any_bench.open() as device:
        with pytest.raises(NotSupported, match="bus reset"):
            device.reset()
        hardware.bus = [(14, GPU), (15, AUDIO)]
        with pytest.raises(ResetFailed) as caught:
            device.reset()
        assert f"{GPU}, {AUDIO}" in caught.value.read
        assert hardware.resets == 0
        hardware.bus = [(14, GPU), (14, AUDIO)]
        device.reset()
        assert hardware.resets == 1
