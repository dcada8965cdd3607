"""Looking at a device beside its owner: takes and changes nothing, and takes turns where it must."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hw import lock
from hw.errors import BusLost, DeviceBusy, MemoryDisabled, NotSupported, PowerStateError, Refused
from hw.lock import Guard
from hw.pci.observe import ObservedPciDevice
from hw.pci.sysfs import SysfsPciDevice
from tests.hw.fake_sysfs import FakeBar, FakeFunction, FakeHost

ADDRESS = "0000:03:00.0"
ROOT = Path(lock.__file__).parents[1]

HOLD_GUARD = """
import sys, time
from pathlib import Path
from hw.lock import Guard
with Guard(sys.argv[1], "smu", Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
"""


def image(command: int = 0x0002) -> bytes:
    data = bytearray(4096)
    data[0:4] = bytes([0x02, 0x10, 0x4C, 0x74])
    data[4:6] = command.to_bytes(2, "little")
    data[8:12] = bytes([0xC8, 0x00, 0x00, 0x03])
    return bytes(data)


def machine(tmp_path: Path, command: int = 0x0002, power_state: str = "D0") -> tuple[FakeHost, FakeFunction]:
    host = FakeHost(tmp_path / "root")
    function = host.add_function(ADDRESS, image(command), {5: FakeBar(0xFCB0_0000, 1 << 20, 0x40200)}, power_state=power_state, enabled=1)
    return host, function


def test_looking_changes_no_file_and_takes_no_lock(tmp_path: Path) -> None:
    host, function = machine(tmp_path)
    before = host.snapshot(function)
    with lock.acquire(ADDRESS, tmp_path), ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path) as device:
        assert device.id.device == 0x744C
        assert device.map_bar(5).read32(0) == 0
    assert host.snapshot(function) == before
    assert host.written == []


def test_owner_and_onlooker_see_the_same_registers(tmp_path: Path) -> None:
    host, _ = machine(tmp_path)
    with SysfsPciDevice(ADDRESS, host=host, lock_directory=tmp_path) as owner, ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path) as onlooker:
        owner.map_bar(5).write32(0x100, 0x1234)
        assert onlooker.map_bar(5).read32(0x100) == 0x1234
        onlooker.map_bar(5).write32(0x104, 0x5678)
        assert owner.map_bar(5).read32(0x104) == 0x5678


def test_sleeping_device_is_left_asleep(tmp_path: Path) -> None:
    host, function = machine(tmp_path, power_state="D3hot")
    host.open_faults["config"] = 5  # reading configuration space would wake it
    before = host.snapshot(function)
    with pytest.raises(PowerStateError, match="is asleep"):
        ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path)
    assert host.snapshot(function) == before


def test_device_that_nobody_enabled_is_left_alone(tmp_path: Path) -> None:
    host, _ = machine(tmp_path, command=0)
    with pytest.raises(MemoryDisabled, match="is not enabled"):
        ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path)
    assert host.written == []


def test_lost_device_is_lost(tmp_path: Path) -> None:
    host, function = machine(tmp_path)
    host.set_config(function, 0, 0xFFFFFFFF, 4)
    with pytest.raises(BusLost):
        ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path)


def test_what_belongs_to_the_owner_is_refused(tmp_path: Path) -> None:
    host, function = machine(tmp_path)
    before = host.snapshot(function)
    with ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path) as device:
        for action in (
            lambda: device.set_bus_master(True),
            lambda: device.set_memory_space(False),
            lambda: device.resize_bar(5, 1 << 21),
            device.reset,
            lambda: device.config.write16(4, 7),
        ):
            with pytest.raises(Refused):
                action()
        with pytest.raises(NotSupported):
            device.alloc_dma(4096)
    assert host.snapshot(function) == before


# --- taking turns ---------------------------------------------------------------------------------------------------------


def hold_elsewhere(folder: Path, seconds: float) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", HOLD_GUARD, ADDRESS, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def test_turn_comes_when_the_other_process_is_done(tmp_path: Path) -> None:
    child = hold_elsewhere(tmp_path, 0.3)
    before = time.monotonic()
    with Guard(ADDRESS, "smu", tmp_path):
        assert time.monotonic() - before > 0.1
    assert child.wait(10) == 0
    assert child.stdout is not None
    child.stdout.close()


def test_other_process_that_does_not_finish_is_named(tmp_path: Path) -> None:
    child = hold_elsewhere(tmp_path, 60)
    try:
        with pytest.raises(DeviceBusy, match=f"process {child.pid}"), Guard(ADDRESS, "smu", tmp_path, within=0.2):
            pass
        with Guard(ADDRESS, "index", tmp_path, within=0.2):
            pass  # another guard of the same device
    finally:
        child.kill()
        child.wait(10)
        assert child.stdout is not None
        child.stdout.close()


def test_holder_enters_again_and_leaves_as_often(tmp_path: Path) -> None:
    mine, other = Guard(ADDRESS, "smu", tmp_path), Guard(ADDRESS, "smu", tmp_path, within=0.05)
    with mine:
        with mine:
            pass
        with pytest.raises(DeviceBusy), other:
            pass
    with other:
        pass
    mine.close()
    with mine:
        pass


def test_guards_are_no_device_locks(tmp_path: Path) -> None:
    with Guard(ADDRESS, "smu", tmp_path):
        assert lock.holders(tmp_path) == []


def test_owner_and_onlooker_share_their_guards(tmp_path: Path) -> None:
    host, _ = machine(tmp_path)
    with SysfsPciDevice(ADDRESS, host=host, lock_directory=tmp_path) as owner, ObservedPciDevice(ADDRESS, host=host, lock_directory=tmp_path) as onlooker:
        assert owner.guard("smu").path == onlooker.guard("smu").path
        assert owner.guard("smu") is owner.guard("smu")
