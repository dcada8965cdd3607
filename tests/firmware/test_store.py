"""Where firmware is looked for, in which order, in which wrapping; and what is said when it is not there or damaged."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import zstandard

from firmware import store
from firmware.store import FirmwareStore
from hw.errors import FirmwareInvalid, FirmwareMissing
from tests.firmware.builder import content, patched, ucode

NAME = "gc_11_0_0_imu.bin"
DATA = ucode((1, 0), {32: 0x40, 36: 0, 40: 0x20, 44: 0x40}, content(1, 0x60))


@pytest.fixture(autouse=True)
def system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's firmware folders are an empty one of the test, the environment names none."""
    folder = tmp_path / "system"
    folder.mkdir()
    monkeypatch.setattr(store, "SYSTEM_FOLDERS", (str(folder),))
    monkeypatch.delenv(store.ENVIRONMENT, raising=False)
    return folder


def put(folder: Path, data: bytes, name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


WRAPPINGS = {"": lambda data: data, ".xz": lambda data: lzma.compress(data, check=lzma.CHECK_CRC32), ".zst": lambda data: zstandard.compress(data)}


@pytest.mark.parametrize("suffix", WRAPPINGS)
def test_plain_and_compressed_files_are_found(tmp_path: Path, suffix: str) -> None:
    found = FirmwareStore(put(tmp_path / "mine", WRAPPINGS[suffix](DATA), NAME + suffix))
    assert found.find(NAME) == DATA
    assert found.has(NAME)
    assert [part.name for part in found.load(NAME, ip_major=11).parts] == ["IMU_I", "IMU_D"]


def test_named_folder_comes_before_environment_before_system(tmp_path: Path, system_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: put(tmp_path / name, name.encode()) for name in ("mine", "first", "second")}
    put(system_folder, b"system")
    assert FirmwareStore().find(NAME) == b"system"
    monkeypatch.setenv("TGHW_FIRMWARE", f"{places['first']}:{places['second']}")
    assert FirmwareStore().find(NAME) == b"first"
    (places["first"] / NAME).unlink()
    assert FirmwareStore().find(NAME) == b"second"
    assert FirmwareStore(places["mine"]).find(NAME) == b"mine"


def test_folder_may_be_the_parent_of_amdgpu(tmp_path: Path) -> None:
    put(tmp_path / "lib" / "amdgpu", DATA)
    assert FirmwareStore(tmp_path / "lib").find(NAME) == DATA


def test_updates_folder_of_the_system_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert store.SYSTEM_FOLDERS[:2] == ("/lib/firmware/updates/amdgpu", "/lib/firmware/amdgpu")


def test_missing_file_names_file_places_and_package(tmp_path: Path, system_folder: Path) -> None:
    with pytest.raises(FirmwareMissing) as caught:
        FirmwareStore(tmp_path / "mine").find(NAME)
    text = caught.value.explain()
    assert NAME in caught.value.what
    assert str(tmp_path / "mine") in text and str(system_folder) in text
    assert "firmware-amd-graphics" in text and "--firmware" in text and "TGHW_FIRMWARE" in text
    assert not FirmwareStore(tmp_path / "mine").has(NAME)


def test_empty_file_is_refused_not_skipped(tmp_path: Path) -> None:
    place = put(tmp_path / "mine", b"")
    with pytest.raises(FirmwareInvalid, match=r"gc_11_0_0_imu\.bin is empty"):
        FirmwareStore(place).find(NAME)
    for suffix in (".xz", ".zst"):
        (place / NAME).unlink(missing_ok=True)
        put(place, b"", NAME + suffix)
        with pytest.raises(FirmwareInvalid, match="is empty"):
            FirmwareStore(place).find(NAME)
        (place / (NAME + suffix)).unlink()


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_cut_compressed_file_is_refused_with_its_path(tmp_path: Path, suffix: str) -> None:
    whole = WRAPPINGS[suffix](DATA)
    place = put(tmp_path / "mine", whole[: len(whole) // 2], NAME + suffix)
    with pytest.raises(FirmwareInvalid, match=r"mine/gc_11_0_0_imu\.bin\.(xz|zst) cannot be decompressed") as caught:
        FirmwareStore(place).find(NAME)
    assert caught.value.means.startswith("the compressed file was cut short")


@pytest.mark.parametrize("suffix", [".xz", ".zst"])
def test_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path: Path, suffix: str) -> None:
    place = put(tmp_path / "mine", b"not compressed at all, whatever the name says", NAME + suffix)
    with pytest.raises(FirmwareInvalid, match="cannot be decompressed") as caught:
        FirmwareStore(place).find(NAME)
    assert caught.value.means == "the compressed file is damaged"


def test_decompression_stops_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_SIZE", 1 << 16)
    for suffix, wrap in WRAPPINGS.items():
        if suffix:
            place = put(tmp_path / suffix[1:], wrap(bytes(1 << 20)), NAME + suffix)
            with pytest.raises(FirmwareInvalid, match="cannot be decompressed"):
                FirmwareStore(place).find(NAME)


def test_damaged_file_is_refused_on_load_and_stays_as_it_is(tmp_path: Path) -> None:
    broken = patched(DATA, 0x104, 0, resum=False)
    place = put(tmp_path / "mine", broken)
    with pytest.raises(FirmwareInvalid, match="crc32"):
        FirmwareStore(place).load(NAME)
    assert (place / NAME).read_bytes() == broken


def test_folder_in_place_of_a_file_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine" / NAME).mkdir(parents=True)
    with pytest.raises(FirmwareMissing):
        FirmwareStore(tmp_path / "mine").find(NAME)


def test_set_of_files_in_memory_looks_nowhere_else(system_folder: Path) -> None:
    put(system_folder, DATA)
    files = FirmwareStore.from_files({"psp_13_0_0_sos.bin": b"x"})
    assert files.find("psp_13_0_0_sos.bin") == b"x"
    assert not files.has(NAME)
    with pytest.raises(FirmwareMissing, match=r"it has psp_13_0_0_sos\.bin"):
        files.find(NAME)
