"""Which files a chip needs and in which order their parts are loaded; and the fabricated set that a simulated chip boots from."""

from __future__ import annotations

import pytest

from firmware.amd_files import files_for, load_set
from firmware.amd_layouts import FirmwareType
from firmware.amd_ucode import parse
from firmware.store import FirmwareStore
from hw.errors import FirmwareInvalid, FirmwareMissing, PspError, UnknownHardware
from mocks.amd import fw
from tests.drivers.amd.support import bench
from tests.firmware.builder import patched

VERSIONS = {
    "navi31": {"GC": (11, 0, 0), "MP0": (13, 0, 0), "MP1": (13, 0, 0), "SDMA0": (6, 0, 0)},
    "navi32": {"GC": (11, 0, 3), "MP0": (13, 0, 10), "MP1": (13, 0, 10), "SDMA0": (6, 0, 3)},
    "navi33": {"GC": (11, 0, 2), "MP0": (13, 0, 7), "MP1": (13, 0, 7), "SDMA0": (6, 0, 2)},
    "navi48": {"GC": (12, 0, 1), "MP0": (14, 0, 3), "MP1": (14, 0, 3), "SDMA0": (7, 0, 1)},
    "mi300x": {"GC": (9, 4, 3), "MP0": (13, 0, 6), "MP1": (13, 0, 6), "SDMA0": (4, 4, 2)},
    "mi350x": {"GC": (9, 5, 0), "MP0": (13, 0, 12), "MP1": (13, 0, 12), "SDMA0": (4, 4, 4)},
}
GFX11_ORDER = [72, 71, 89, 94, 68, 69, 26, 48, 25, 7, 8]
"""types of LOAD_IP_FW after the SMU's, as recorded from a working driver (navi31-mock-profile section 14)"""


@pytest.mark.parametrize(
    ("chip", "expected"),
    [
        ("navi31", ["psp_13_0_0_sos", "smu_13_0_0", "sdma_6_0_0", "gc_11_0_0_mec", "gc_11_0_0_imu", "gc_11_0_0_rlc"]),
        ("navi33", ["psp_13_0_7_sos", "smu_13_0_7", "sdma_6_0_2", "gc_11_0_2_mec", "gc_11_0_2_imu", "gc_11_0_2_rlc"]),
        ("navi48", ["psp_14_0_3_sos", "smu_14_0_3", "sdma_7_0_1", "gc_12_0_1_pfp", "gc_12_0_1_me", "gc_12_0_1_mec", "gc_12_0_1_imu", "gc_12_0_1_rlc"]),
        ("mi300x", ["psp_13_0_6_sos", "smu_13_0_6", "sdma_4_4_2", "gc_9_4_3_mec", "gc_9_4_3_rlc"]),
        ("mi350x", ["psp_13_0_12_sos", "sdma_4_4_4", "gc_9_5_0_mec", "gc_9_5_0_rlc"]),
    ],
)
def test_file_names_follow_from_the_versions(chip: str, expected: list[str]) -> None:
    assert files_for(VERSIONS[chip]).all == [f"{name}.bin" for name in expected]


def test_unknown_generation_is_refused() -> None:
    with pytest.raises(UnknownHardware, match=r"GC 13\.0\.0 \(read: known are GC 9\.4, 9\.5, 11\.0, 12\.0\)"):
        files_for(VERSIONS["navi31"] | {"GC": (13, 0, 0)})


@pytest.mark.parametrize("chip", fw.CHIPS)
def test_fabricated_set_is_complete_and_in_order(chip: str) -> None:
    firmware = load_set(FirmwareStore.from_files(fw.fabricate(chip, 5)), VERSIONS[chip])
    assert [int(number) for part in firmware.load_list for number in part.types] == GFX11_ORDER
    assert firmware.smu is not None
    assert firmware.mec_start == 0x2_0001_0000
    images = fw.images(chip, 5)
    assert firmware.smu.data == images[FirmwareType.SMU]
    assert all(part.data == images[part.types[0]] for part in firmware.load_list)
    assert [part.number for part in firmware.sos.parts] == [3, 2, 7, 8, 9, 10, 1, 4]
    assert {part.number: part.data for part in firmware.sos.parts} == fw.sos_parts(chip, 5)


@pytest.mark.parametrize("chip", fw.CHIPS)
def test_every_fabricated_file_has_a_full_checksum(chip: str) -> None:
    files = fw.fabricate(chip, 5)
    assert set(files_for(VERSIONS[chip]).all) <= set(files)
    assert {parse(name, data).checksum for name, data in files.items()} == {"whole"}


def test_fabricated_files_depend_on_seed_and_chip_only() -> None:
    first = fw.fabricate("navi31", 1)
    fw._made.clear()
    assert fw.fabricate("navi31", 1) == first
    other = fw.fabricate("navi31", 2)
    assert set(other) == set(first)
    assert all(other[name] != first[name] for name in first)
    with pytest.raises(ValueError, match="known chips navi31, navi32, navi33"):
        fw.fabricate("navi99")


@pytest.mark.parametrize("name", files_for(VERSIONS["navi31"]).all)
def test_each_missing_file_is_named(name: str) -> None:
    files = fw.fabricate("navi31")
    del files[name]
    with pytest.raises(FirmwareMissing, match=name):
        load_set(FirmwareStore.from_files(files), VERSIONS["navi31"])


@pytest.mark.parametrize("name", files_for(VERSIONS["navi31"]).all)
def test_each_cut_file_is_named(name: str) -> None:
    files = fw.fabricate("navi31")
    files[name] = files[name][:-16]
    with pytest.raises(FirmwareInvalid, match=f"{name}: size_bytes"):
        load_set(FirmwareStore.from_files(files), VERSIONS["navi31"])


def test_file_of_another_generation_under_the_right_name_is_refused() -> None:
    files = fw.fabricate("navi31")
    files["gc_11_0_0_mec.bin"] = patched(files["gc_11_0_0_mec.bin"], 12, 12)
    with pytest.raises(FirmwareInvalid, match=r"gc_11_0_0_mec\.bin: ip_version_major 12 is not 11"):
        load_set(FirmwareStore.from_files(files), VERSIONS["navi31"])


# --- what the simulated PSP checks ---------------------------------------------------------------------------------------


def test_image_check_accepts_every_fabricated_image_as_its_own_type_only() -> None:
    images = fw.images("navi31")
    for number, image in images.items():
        assert fw.check_image(image, number) == ""
    assert "image id 0x2009 where 0x2048 belongs" in fw.check_image(images[FirmwareType.RLC_G], FirmwareType.RS64_MEC)


def test_image_check_notices_what_the_file_checksum_may_not() -> None:
    """An RLC file's stored sum is not to be relied on; its images are signed."""
    image = bytearray(fw.images("navi31")[FirmwareType.RLC_G])
    image[0x1234] ^= 0x10
    assert fw.check_image(bytes(image), FirmwareType.RLC_G) == "the signature does not fit the content"
    assert "image of 0x6200 bytes in 0x6000 bytes" in fw.check_image(bytes(image)[:0x6000], FirmwareType.RLC_G)
    assert "magic" in fw.check_image(bytes(0x400), FirmwareType.RLC_G)


@pytest.mark.parametrize("name", ["gc_11_0_0_rlc.bin", "smu_13_0_0.bin"])
def test_damage_that_no_checksum_can_show_is_refused_by_the_psp(name: str) -> None:
    """Stored sums of RLC and SMU files mean nothing often enough to be tolerated; the PSP checks the signatures."""
    files = fw.fabricate("navi31")
    files[name] = patched(files[name], 0x1000, 0x12345678, resum=False)
    assert parse(name, files[name]).checksum == "unverifiable"
    each = bench("navi31", firmware=files)
    with pytest.raises(PspError) as caught:
        each.dev.boot()
    assert ("SMU" if name.startswith("smu") else "RLC") in caught.value.explain()
    assert each.gpu.rlc.autoload_done is False
