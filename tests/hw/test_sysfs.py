"""The sysfs transport against a tree of real files: opening in order, typed refusals that change nothing, and putting everything back."""

from __future__ import annotations

import errno
import json
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
    BarUnassigned,
    BusError,
    BusLost,
    ConfigInvalid,
    ConfigTruncated,
    DeviceBusy,
    DriverBound,
    DriverInUse,
    EnableFailed,
    IommuActive,
    MapFailed,
    MemoryDisabled,
    NothingFound,
    NotSupported,
    OutOfWindow,
    PermissionMissing,
    PowerStateError,
    ResetFailed,
    ResizeRefused,
    TghwError,
    WaitTimeout,
)
from hw.host import HOST
from hw.pci import binding, sysfs
from hw.pci.device import PciId
from hw.pci.sysfs import SysfsPciDevice
from tests.hw.fake_sysfs import FakeBar, FakeFunction, FakeHost

GPU = "0000:03:00.0"
AUDIO = "0000:03:00.1"
MIB = 1 << 20

_VECTORS = json.loads((Path(__file__).parents[1] / "data" / "pci_config.json").read_text())["images"]


def image(number: int) -> bytes:
    vector = _VECTORS[number]
    return bytes.fromhex(vector["image_hex_without_trailing_zeros"]).ljust(vector["bytes"], b"\0")


def gpu_image() -> bytes:
    """The Navi31-like function, all decoders off, as an unused device is."""
    data = bytearray(image(0))
    data[4:6] = b"\0\0"
    return bytes(data)


def gpu_bars() -> dict[int, FakeBar]:
    return {
        0: FakeBar(0x8_0000_0000, 256 * MIB, offered=0x7F00),
        2: FakeBar(0xA_0000_0000, 2 * MIB, offered=0x1FE),
        4: FakeBar(0xE000, 256, flags=0x40101),
        5: FakeBar(0xFCB0_0000, MIB, flags=0x40200),
    }


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path / "root")


@pytest.fixture
def gpu(host: FakeHost) -> FakeFunction:
    return host.add_function(
        GPU,
        gpu_image(),
        gpu_bars(),
        parent="pci0000:00/0000:00:01.1",
        current_link_speed="16.0 GT/s PCIe",
        current_link_width="16",
        max_link_speed="16.0 GT/s PCIe",
        max_link_width="16",
    )


@pytest.fixture
def opened(host: FakeHost, tmp_path: Path) -> Callable[..., SysfsPciDevice]:
    def open_gpu(**options: object) -> SysfsPciDevice:
        return SysfsPciDevice(GPU, host=host, lock_directory=tmp_path, **options)  # type: ignore[arg-type]

    return open_gpu


Opener = Callable[..., SysfsPciDevice]

# --- looking ------------------------------------------------------------------------------------------------------------


def test_scan_describes_without_writing(host: FakeHost, gpu: FakeFunction) -> None:
    host.add_function(AUDIO, image(5), driver="snd_hda_intel", parent="pci0000:00/0000:00:01.1")
    before = host.snapshot(gpu)
    first, second = sysfs.scan(host)
    assert (first.address, second.address) == (GPU, AUDIO)
    assert first.id == PciId(0x1002, 0x744C, 0xC8, 0x030000, 0x1002, 0x0E3B)
    assert first.bars[0].size == 256 * MIB
    assert first.bars[0].resizable_to == tuple(256 * MIB << shift for shift in range(7))
    assert (first.bars[4].is_io, first.bars[5].is_64bit, first.bars[0].prefetchable) == (True, False, True)
    assert (first.link, first.link_max) == ("16.0 GT/s PCIe x16", "16.0 GT/s PCIe x16")
    assert (first.parent, first.siblings, second.driver) == ("0000:00:01.1", (AUDIO,), "snd_hda_intel")
    assert json.loads(json.dumps(first.to_dict()))["bars"][0]["address"] == "0x800000000"
    assert host.snapshot(gpu) == before
    assert host.written == []


def test_scan_does_not_wake_a_sleeping_device(host: FakeHost, gpu: FakeFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    host.put(gpu.directory / "power_state", "D3cold")
    touched: list[str] = []
    real = FakeHost.text

    def watch(self: FakeHost, path: Path) -> str | None:
        touched.append(path.name)
        return real(self, path)

    monkeypatch.setattr(FakeHost, "text", watch)
    (function,) = sysfs.scan(host)
    assert (function.power_state, function.link, function.bars[0].resizable_to) == ("D3cold", "", ())
    # These read the device, so the kernel would wake it for them.
    assert not {name for name in touched if "link" in name or "resize" in name or name == "config"}


def test_no_pci_bus_is_explained(tmp_path: Path) -> None:
    with pytest.raises(NothingFound, match="no PCI bus") as caught:
        sysfs.scan(type(HOST)(tmp_path))
    assert "container" in caught.value.means


def test_scan_reads_this_machine() -> None:
    if not HOST.pci.is_dir():
        pytest.skip("this machine shows no PCI bus")
    assert [function.address for function in sysfs.scan()] == sorted(path.name for path in HOST.pci.iterdir())


# --- opening and closing ------------------------------------------------------------------------------------------------


def test_open_wakes_enables_and_close_puts_everything_back(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    host.put(gpu.directory / "power_state", "D3hot")
    before = host.snapshot(gpu)
    device = opened()
    assert host.text(gpu.directory / "power_state") == "D0"
    assert host.text(gpu.directory / "power" / "control") == "on"
    assert host.text(gpu.directory / "enable") == "1"
    assert device.id.device == 0x744C
    assert device.transport == "sysfs" and device.irq() is None
    device.set_bus_master(True)
    assert host.config_word(gpu, 4) == 7
    device.close()
    device.close()
    after = host.snapshot(gpu)
    after["power_state"] = before["power_state"]
    assert after == before


def test_registers_reach_the_file_and_nothing_else(gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        registers = device.map_bar(5)
        registers.write32(0x3D8, 0x12345678)
        assert device.map_bar(5, 0x3D0, 0x20).read32(8) == 0x12345678
        assert registers.size == MIB
        vram = device.map_bar(0, 0x1234 & ~3, 0x100)
        vram.write64(4 + 4, 0x1122334455667788)
        assert vram.size == 0x100
    with (gpu.directory / "resource5").open("rb") as file:
        data = file.read()
    assert data[0x3D8:0x3DC] == bytes.fromhex("78563412")
    assert data.count(0) == MIB - 4
    with (gpu.directory / "resource0").open("rb") as file:
        file.seek(0x1234 + 8)
        assert file.read(8) == bytes.fromhex("8877665544332211")


def test_windows_of_a_closed_device_refuse_instead_of_crashing(gpu: FakeFunction, opened: Opener) -> None:
    device = opened()
    window = device.map_bar(5)
    part = window.view(0x1000, 0x100)
    device.close()
    for closed in (window, part):
        with pytest.raises(OutOfWindow, match="closed"):
            closed.read32(0)
    with pytest.raises(BusError, match="was closed"):
        device.config.read32(0)


def test_a_second_open_names_the_holder(opened: Opener, gpu: FakeFunction, host: FakeHost, tmp_path: Path) -> None:
    with opened():
        before = host.snapshot(gpu)
        with pytest.raises(DeviceBusy) as caught:
            SysfsPciDevice(GPU, host=host, lock_directory=tmp_path)
        assert caught.value.exit_status == EXIT_BUSY
        assert host.snapshot(gpu) == before
    lock.acquire(GPU, tmp_path).release()


def refused(opened: Opener, host: FakeHost, gpu: FakeFunction, kind: type[TghwError], tmp_path: Path, **options: object) -> TghwError:
    """Open, expect this refusal with a cause and a remedy, and find the files as they were and the lock free."""
    before = host.snapshot(gpu)
    with pytest.raises(kind) as caught:
        opened(**options)
    assert caught.value.means and caught.value.remedy
    after = host.snapshot(gpu)
    after["power_state"] = before["power_state"]  # waking is not undone: the kernel suspends the device when it likes
    assert after == before
    lock.acquire(GPU, tmp_path).release()
    return caught.value


def test_a_bound_driver_is_not_disturbed_without_consent(host: FakeHost, opened: Opener, tmp_path: Path) -> None:
    data = bytearray(image(0))
    data[4] = 7
    function = host.add_function(GPU, bytes(data), gpu_bars(), driver="amdgpu", enabled=1)
    error = refused(opened, host, function, DriverBound, tmp_path)
    assert "amdgpu" in error.what
    assert error.exit_status == EXIT_REFUSED
    assert host.config_word(function, 4) == 7, "its bus mastering is the driver's"
    assert host.written == []


def test_consent_unbinds_an_idle_driver(host: FakeHost, opened: Opener) -> None:
    host.add_function(GPU, gpu_image(), gpu_bars(), driver="amdgpu")
    with opened(unbind=True) as device:
        assert binding.driver_of(GPU, host) == ""
        assert host.written[0] == (f"sys/bus/pci/devices/{GPU}/driver/unbind", GPU)
        device.map_bar(5)


def test_a_driver_in_use_is_left_alone_even_with_consent(host: FakeHost, opened: Opener, tmp_path: Path) -> None:
    function = host.add_function(GPU, gpu_image(), gpu_bars(), driver="amdgpu")
    host.put(function.directory / "drm" / "renderD128" / "dev", "226:128")
    host.put(host.dev / "kfd", "")
    host.add_process(4711, "Xorg :0", ("/dev/dri/renderD128",))
    host.add_process(4712, "python train.py", ("/dev/null", "/dev/kfd"))
    host.add_process(4713, "bystander", ("/dev/null",))
    error = refused(opened, host, function, DriverInUse, tmp_path, unbind=True)
    assert "process 4711 (Xorg :0), process 4712 (python train.py)" in error.what
    assert "4713" not in error.what
    assert host.written == []


def test_a_driver_that_does_not_let_go_is_reported(host: FakeHost, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "RELEASE_SECONDS", 0.02)
    function = host.add_function(GPU, gpu_image(), gpu_bars(), driver="nvidia")
    host.ignored.add("unbind")
    error = refused(opened, host, function, DriverBound, tmp_path, unbind=True)
    assert "still bound to nvidia" in error.what


def test_a_hanging_write_is_given_up(host: FakeHost, gpu: FakeFunction) -> None:
    release = threading.Event()

    def hang(path: Path, text: str) -> None:
        release.wait(10)

    host.on_write["reset"] = hang
    with pytest.raises(WaitTimeout) as caught:
        binding.write_within(gpu.directory / "reset", "1", 0.05, "reset of the GPU", host)
    release.set()
    assert caught.value.what == "reset of the GPU did not end within 0.05 s"
    assert "still blocked" in caught.value.read


def test_all_ones_configuration_is_a_lost_device(host: FakeHost, opened: Opener, tmp_path: Path) -> None:
    function = host.add_function(GPU, b"\xff" * 4096, gpu_bars())
    error = refused(opened, host, function, BusLost, tmp_path)
    assert "0xffffffff" in error.read
    assert host.written == []


def test_absent_function_is_not_found(host: FakeHost, opened: Opener) -> None:
    with pytest.raises(NothingFound, match="no PCI function"):
        opened()


@pytest.mark.parametrize(
    ("path", "number", "part"),
    [("enable", errno.EACCES, "Permission denied"), ("config", errno.EACCES, "Permission denied"), ("enable", errno.EROFS, "Read-only file system")],
)
def test_missing_permission_is_typed_before_anything_is_written(host: FakeHost, gpu: FakeFunction, opened: Opener, tmp_path: Path, path: str, number: int, part: str) -> None:
    host.open_faults[path] = number
    error = refused(opened, host, gpu, PermissionMissing, tmp_path)
    assert part in error.read
    assert host.written == []
    if number == errno.EROFS:
        assert "container" in error.means


def test_enable_refused_by_the_kernel(host: FakeHost, gpu: FakeFunction, opened: Opener, tmp_path: Path) -> None:
    host.write_faults["enable"] = errno.EIO
    error = refused(opened, host, gpu, EnableFailed, tmp_path)
    assert "Input/output error" in error.read


def test_a_device_that_stays_asleep(host: FakeHost, gpu: FakeFunction, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "WAKE_SECONDS", 0.02)
    host.put(gpu.directory / "power_state", "D3cold")
    host.ignored |= {"control", "enable"}
    error = refused(opened, host, gpu, PowerStateError, tmp_path)
    assert error.read == "power state D3cold"


def test_memory_decode_that_was_switched_off_is_switched_on(host: FakeHost, opened: Opener) -> None:
    function = host.add_function(GPU, gpu_image(), gpu_bars(), enabled=1)
    with opened() as device:
        assert host.config_word(function, 4) == 2
        device.config.write16(4, 0)
        with pytest.raises(MemoryDisabled) as caught:
            device.map_bar(5)
        assert "command 0x0000" in caught.value.read


def test_device_lost_after_opening_is_not_mapped(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        host.set_config(gpu, 0, 0xFFFFFFFF_FFFFFFFF, 8)
        with pytest.raises(BusLost):
            device.map_bar(5)
        with pytest.raises(BusLost):
            device.id  # noqa: B018


# --- BARs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bars", [{5: FakeBar(0, MIB, flags=0x40200)}, {5: FakeBar(0xFCB0_0000, MIB, flags=0x20040200)}, {}])
def test_unassigned_or_absent_bar(host: FakeHost, opened: Opener, bars: dict[int, FakeBar]) -> None:
    host.add_function(GPU, gpu_image(), bars)
    with opened() as device:
        with pytest.raises(BarUnassigned) as caught:
            device.map_bar(5)
        assert "BAR5 of 0000:03:00.0" in caught.value.what
        assert "pci=realloc" in caught.value.remedy


def test_port_bar_and_bad_ranges_are_refused(gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        with pytest.raises(NotSupported, match="BAR4"):
            device.map_bar(4)
        for offset, size in ((0, MIB + 1), (MIB, 4), (-4, 4), (0, 0)):
            with pytest.raises(OutOfWindow):
                device.map_bar(5, offset, size)


def test_lockdown_forbids_mapping_and_says_so(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    host.open_faults["resource5"] = errno.EPERM
    with opened() as device:
        with pytest.raises(PermissionMissing) as caught:
            device.map_bar(5)
        assert "locked down" in caught.value.means
        assert "VFIO" in caught.value.remedy


def test_mapping_failures_are_typed(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        os.truncate(gpu.directory / "resource5", 4096)
        with pytest.raises(MapFailed) as short:
            device.map_bar(5)
        assert "claimed by a kernel driver" in short.value.means
        (gpu.directory / "resource5").unlink()
        with pytest.raises(MapFailed) as gone:
            device.map_bar(5)
        assert "rescan" in gone.value.remedy


# --- resizing -----------------------------------------------------------------------------------------------------------


def test_resize_asks_the_kernel_and_revokes_old_windows(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        registers = device.map_bar(5)
        device.resize_bar(0, 16 << 30)
        assert (f"sys/bus/pci/devices/{GPU}/resource0_resize", "14") in host.written
        assert device.bar(0).size == 16 << 30
        with pytest.raises(OutOfWindow):
            registers.read32(0)
        device.map_bar(0, (16 << 30) - 4096).write32(0, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EBUSY, errno.ENOMEM])
def test_resize_refused_by_the_kernel_leaves_a_working_window(host: FakeHost, gpu: FakeFunction, opened: Opener, number: int) -> None:
    host.add_function(AUDIO, image(5), driver="snd_hda_intel", parent="pci0000:00/0000:00:01.1")
    host.write_faults["resource0_resize"] = number
    with opened() as device:
        with pytest.raises(ResizeRefused) as caught:
            device.resize_bar(0, 16 << 30)
        assert os.strerror(number) in caught.value.read
        assert "0000:03:00.1 (snd_hda_intel)" in caught.value.read
        assert caught.value.means and "goes on with the small window" in caught.value.remedy
        assert device.bar(0).size == 256 * MIB
        device.map_bar(0).write32(256 * MIB - 4, 1)


def test_sizes_not_offered_and_bars_without_choice(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        window = device.map_bar(5)
        with pytest.raises(ResizeRefused) as size:
            device.resize_bar(0, 32 << 30)
        assert "offered: 256MB, 512MB, 1GB, 2GB, 4GB, 8GB, 16GB" in size.value.read
        with pytest.raises(NotSupported) as fixed:
            device.resize_bar(5, 2 * MIB)
        assert "6.1" in fixed.value.means
        device.resize_bar(0, 256 * MIB)
        assert not any("resize" in path for path, _ in host.written)
        window.read32(0)


def test_a_resize_without_effect_is_noticed(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    host.ignored.add("resource0_resize")
    with opened() as device, pytest.raises(ResizeRefused, match="did not become 512MB"):
        device.resize_bar(0, 512 * MIB)


# --- siblings, reset, driver choice ---------------------------------------------------------------------------------------


def test_idle_siblings_are_removed_with_consent_and_come_back(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    usb = "0000:03:00.2"
    host.add_function(AUDIO, image(5), driver="snd_hda_intel", parent="pci0000:00/0000:00:01.1")
    host.add_function(usb, image(5), parent="pci0000:00/0000:00:01.1")
    with opened() as device:
        assert device.siblings() == {AUDIO: "snd_hda_intel", usb: ""}
    with opened(remove_siblings=True) as device:
        assert device.siblings() == {AUDIO: "snd_hda_intel"}
    assert (host.pci / usb).exists()


def test_reset_uses_the_kernel_and_checks_that_the_device_is_back(host: FakeHost, gpu: FakeFunction, opened: Opener) -> None:
    with opened() as device:
        device.reset()
        assert host.written[-1][0].endswith("/reset")
        host.write_faults["/reset"] = errno.ENOTTY
        with pytest.raises(ResetFailed) as failed:
            device.reset()
        assert "methods: bus" in failed.value.read
        del host.write_faults["/reset"]
        host.on_write["reset"] = lambda path, text: host.set_config(gpu, 0, 0xFFFFFFFF, 4)
        with pytest.raises(BusLost, match="after a reset"):
            device.reset()
        (gpu.directory / "reset").unlink()
        with pytest.raises(NotSupported, match="bus reset"):
            device.reset()


def test_driver_override_is_written_and_probed(host: FakeHost, gpu: FakeFunction) -> None:
    binding.override_driver(GPU, "vfio-pci", host)
    assert host.text(gpu.directory / "driver_override") == "vfio-pci"
    assert host.written[-1] == ("sys/bus/pci/drivers_probe", GPU)
    binding.override_driver(GPU, None, host)
    assert host.text(gpu.directory / "driver_override") == "(null)"
    host.write_faults["drivers_probe"] = errno.EINVAL
    with pytest.raises(DriverBound) as caught:
        binding.override_driver(GPU, "vfio-pci", host)
    assert caught.value.remedy == "modprobe vfio-pci"


# --- configuration space and DMA ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readable", [4096, 256, 64])
def test_readable_size_of_configuration_space(host: FakeHost, gpu: FakeFunction, opened: Opener, readable: int) -> None:
    os.truncate(gpu.directory / "config", readable)
    with opened() as device:
        assert device.config.size == readable
        assert len(device.config.dump()) == readable
        with pytest.raises(ConfigTruncated if readable < 4096 else ConfigInvalid):
            device.config.read32(readable)


def test_translated_addresses_are_not_handed_out(host: FakeHost, opened: Opener) -> None:
    host.add_function(GPU, gpu_image(), gpu_bars(), iommu_type="DMA-FQ")
    with opened() as device:
        with pytest.raises(IommuActive) as caught:
            device.alloc_dma(4096)
        assert caught.value.read == "IOMMU group type DMA-FQ"
        assert "VFIO" in caught.value.remedy


def test_dma_memory_comes_with_page_addresses(host: FakeHost, opened: Opener) -> None:
    host.add_function(GPU, gpu_image(), gpu_bars(), iommu_type="identity")
    memory = PagemapMemory(host, pagemap=lambda address, count: [1 << 63 | 0x1000 + 3 * page for page in range(count)])
    with opened(memory=memory) as device:
        got = device.alloc_dma(3 * 4096)
        assert got.pages == [0x1000000, 0x1003000, 0x1006000]
        device.fence()
