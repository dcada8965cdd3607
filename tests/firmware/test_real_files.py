"""The parser on files that AMD published. The judge is the signed header inside each part, which the parser does not look at: it
carries a magic and the part's own size. Skipped where the files are not there: the project ships none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from firmware.amd_files import files_for, load_set
from firmware.amd_layouts import IMAGE_IDS
from firmware.amd_ucode import Part, Ucode, kind_of, parse
from firmware.store import FirmwareStore
from hw.errors import FirmwareInvalid
from tests.drivers.amd.support import bench
from tests.firmware.real import OLD_FOLDER, REAL_FOLDER, old_folder, real_folder
from tests.firmware.test_amd_files import GFX11_ORDER, VERSIONS

OLD = old_folder()
REAL = real_folder()
needs_old = pytest.mark.skipif(OLD is None, reason=f"no folder with older firmware files: set {OLD_FOLDER}")
needs_real = pytest.mark.skipif(REAL is None, reason=f"no unpacked firmware package: set {REAL_FOLDER} (Debian's firmware-amd-graphics)")


def is_signed_image(part: Part) -> bool:
    """Does the part hold exactly what its own signed header counts: a header and a signature around the body, little padding?"""
    magic, body = struct.unpack_from("<4sI", part.data, 0x10)
    return bool(magic == b"$PS1" and 0x200 <= len(part.data) - body < 0x400)


@needs_old
@pytest.mark.parametrize(
    ("name", "version", "ucode_version", "parts"),
    [
        ("aldebaran_mec.bin", (1, 0), 63, {"CP_MEC": [4], "CP_MEC_ME1": [5]}),
        ("aldebaran_rlc.bin", (2, 1), 17, {"RLC_RESTORE_LIST_SRM_CNTL": [22], "RLC_RESTORE_LIST_GPM_MEM": [20], "RLC_RESTORE_LIST_SRM_MEM": [21], "RLC_G": [8]}),
        ("aldebaran_sdma.bin", (1, 0), 8, {"SDMA": [9, 10, 52, 53]}),
        ("aldebaran_smc.bin", (2, 1), 0x443600, {"SMU": [18]}),
        ("aldebaran_sos.bin", (1, 3), 0x270080, {"SYS_DRV": [], "SOS": [], "KDB": [], "RL": [], "SYS_DRV_AUX": [], "SOS_AUX": []}),
        ("aldebaran_ta.bin", (2, 0), 0, {"XGMI": [], "RAS": [], "RAP": []}),
        ("psp_13_0_5_toc.bin", (1, 0), 7, {"TOC": [24]}),
        ("yellow_carp_sdma.bin", (1, 0), 37, {"SDMA": [9, 10, 52, 53]}),
        ("yellow_carp_toc.bin", (1, 0), 3, {"TOC": [24]}),
    ],
)
def test_older_files_come_apart(name: str, version: tuple[int, int], ucode_version: int, parts: dict[str, list[int]]) -> None:
    assert OLD is not None
    file = parse(name, (OLD / name).read_bytes())
    assert file.header_version == version
    assert file.version == ucode_version
    assert file.checksum in ("whole", "head")
    assert {part.name: [int(number) for number in part.types] for part in file.parts} == parts


@needs_old
def test_older_rlc_file_whose_header_counts_less_than_it_has() -> None:
    """yellow_carp_rlc.bin: the parts of header 2.2 lie behind what size_bytes counts."""
    assert OLD is not None
    file = parse("yellow_carp_rlc.bin", (OLD / "yellow_carp_rlc.bin").read_bytes())
    assert [int(number) for part in file.load_list for number in part.types] == [26, 48, 8]
    assert [len(part.data) for part in file.load_list] == [0x10200, 0x10200, 0x6200]
    assert all(is_signed_image(part) for part in file.load_list)


@needs_old
@pytest.mark.parametrize("name", ["aldebaran_mec.bin", "aldebaran_sdma.bin", "yellow_carp_sdma.bin", "aldebaran_ta.bin"])
def test_parts_of_older_files_are_whole_signed_images(name: str) -> None:
    assert OLD is not None
    for part in parse(name, (OLD / name).read_bytes()).parts:
        if part.name != "CP_MEC_ME1":  # a jump table, signed together with the code
            assert is_signed_image(part), part.name


@needs_old
def test_every_older_file_is_refused_when_cut() -> None:
    assert OLD is not None
    for path in sorted(OLD.glob("*.bin")):
        data = path.read_bytes()
        with pytest.raises(FirmwareInvalid, match=path.name):
            parse(path.name, data[: len(data) // 4])


# --- the distribution's package ------------------------------------------------------------------------------------------


def _files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in (REAL.glob(pattern) if REAL else []))


def _parse(path: Path) -> Ucode:
    name = path.name.removesuffix(".xz").removesuffix(".zst")
    return parse(name, FirmwareStore(path.parent).find(name))


@needs_real
def test_every_file_of_the_gfx11_generation_comes_apart() -> None:
    files = _files("gc_11_*", "psp_13_*", "smu_13_*", "sdma_6_*")
    assert len(files) >= 30
    checked = 0
    for path in files:
        file = _parse(path)
        assert file.parts, path.name
        for part in file.parts:
            if part.name in ("KDB", "RL", "AUX_KDB", "AUX_RL") or part.name.startswith(("PPTABLE", "P2S")) or part.name.endswith(("_STACK", "CP_MEC_ME1")):
                continue
            assert is_signed_image(part), f"{path.name} {part.name}"
            checked += 1
    assert checked >= 60


@needs_real
@pytest.mark.parametrize("chip", ["navi31", "navi33"])
def test_real_set_has_everything_in_load_order(chip: str) -> None:
    assert REAL is not None
    firmware = load_set(FirmwareStore(REAL), VERSIONS[chip])
    assert [int(number) for part in firmware.load_list for number in part.types] == GFX11_ORDER
    for part in firmware.load_list:
        image_id = struct.unpack_from("<I", part.data, 0x58)[0] & 0xFFFF
        assert image_id == IMAGE_IDS[part.types[0]], part.name
    assert firmware.smu is not None and len(firmware.smu.data) == 0x3FE00
    assert {part.name for part in firmware.sos.parts} >= {"KDB", "SYS_DRV", "SOS", "TOC"}
    assert firmware.mec_start == 0x70000_00003000


@needs_real
@pytest.mark.parametrize("chip", ["navi31", "navi33"])
def test_simulated_gpu_boots_with_the_real_set(chip: str) -> None:
    assert REAL is not None
    store = FirmwareStore(REAL)
    each = bench(chip, firmware={name: store.find(name) for name in files_for(VERSIONS[chip]).all})
    each.dev.boot()
    assert each.dev.state() == "running"
    assert each.gpu.rlc.autoload_done
    each.dev.finish()
    each.dev.close()


@needs_real
@pytest.mark.parametrize("name", ["gc_11_0_0_rlc.bin", "smu_13_0_0.bin", "gc_11_0_0_mec.bin", "sdma_6_0_0.bin", "gc_11_0_0_imu.bin", "psp_13_0_0_sos.bin"])
def test_damage_to_a_published_file_is_noticed(name: str) -> None:
    """Also where the stored sum means nothing, as long as the release is one that is known."""
    assert REAL is not None
    data = bytearray(FirmwareStore(REAL).find(name))
    if parse(name, bytes(data)).checksum in ("unverifiable", "head"):
        pytest.skip(f"this release of {name} carries a sum that does not cover its content")
    data[len(data) // 2] ^= 1
    with pytest.raises(FirmwareInvalid, match="crc32"):
        parse(name, bytes(data))


@needs_real
def test_whole_package_is_either_understood_or_of_a_kind_that_is_not_handled() -> None:
    """Every file of a handled kind and a current header comes apart; old microcode with stale sums is named as damaged."""
    refused = []
    for path in _files("*.bin", "*.bin.xz", "*.bin.zst"):
        name = path.name.split(".bin")[0] + ".bin"
        try:
            kind_of(name)
        except FirmwareInvalid:
            continue
        try:
            _parse(path)
        except FirmwareInvalid as error:
            refused.append(str(error))
    stale = ("polaris1", "vegam_mec", "vcn_4_0_6_1")
    unexpected = [text for text in refused if "header_version 1.0 of a rlc file" not in text and not any(f"{name}" in text and "crc32" in text for name in stale)]
    assert unexpected == []
