"""Firmware files of every header version come apart into the right parts; damaged ones are refused with file, field and value."""

from __future__ import annotations

import struct
import zlib

import pytest

from firmware.amd_sums import STALE_SUMS
from firmware.amd_ucode import Ucode, kind_of, parse
from hw.errors import FirmwareInvalid
from tests.firmware.builder import ARRAY_AT, content, patched, ucode

A, B, C, D = content(1, 0x40), content(2, 0x80), content(3, 0x20), content(4, 0x60)


def parts_of(file: Ucode) -> list[tuple[str, bytes, tuple[int, ...]]]:
    return [(part.name, part.data, tuple(int(number) for number in part.types)) for part in file.parts]


def loaded(file: Ucode) -> list[int]:
    return [int(number) for part in file.load_list for number in part.types]


# --- SOS, TOC, ASD, TA ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minor", "names"),
    [(0, []), (1, ["TOC", "KDB"]), (2, ["RES", "KDB"]), (3, ["TOC", "KDB", "SPL", "RL", "SYS_DRV_AUX", "SOS_AUX"])],
)
def test_sos_1_holds_system_driver_then_parts_by_offset_in_the_array(minor: int, names: list[str]) -> None:
    array = A + B + b"".join(content(10 + index, 0x10) for index in range(len(names)))
    fields = {32: 7, 36: len(A), 40: len(B)}
    for index in range(len(names)):
        fields |= {44 + 12 * index: 0x20 + index, 48 + 12 * index: 0xC0 + 0x10 * index, 52 + 12 * index: 0x10}
    file = parse("x_sos.bin", ucode((1, minor), fields, array))
    assert parts_of(file)[:2] == [("SYS_DRV", A, ()), ("SOS", B, ())]
    assert [(part.name, part.data, part.version) for part in file.parts[2:]] == [(name, content(10 + index, 0x10), 0x20 + index) for index, name in enumerate(names)]


def _sos2(bins: list[tuple[int, int, int, int]], array: bytes, *, count: int | None = None, auxiliary: int | None = None) -> bytes:
    at = 36 if auxiliary is None else 40
    fields = {32: len(bins) if count is None else count}
    if auxiliary is not None:
        fields[36] = auxiliary
    for index, descriptor in enumerate(bins):
        fields |= {at + 16 * index + 4 * word: value for word, value in enumerate(descriptor)}
    return ucode((2, 0 if auxiliary is None else 1), fields, array, ip=(13, 0))


def test_sos_2_0_holds_typed_parts() -> None:
    bins = [(3, 5, 0, 0x40), (2, 6, 0x40, 0x80), (1, 7, 0xC0, 0x20), (99, 8, 0xE0, 0x60)]
    file = parse("psp_13_0_0_sos.bin", _sos2(bins, A + B + C + D))
    assert [(part.name, part.number, part.version, part.data) for part in file.parts] == [("KDB", 3, 5, A), ("SYS_DRV", 2, 6, B), ("SOS", 1, 7, C), ("TYPE_99", 99, 8, D)]
    assert file.load_list == []


def test_sos_2_1_names_the_second_set_auxiliary() -> None:
    bins = [(1, 1, 0, 0x40), (2, 1, 0x40, 0x80), (1, 1, 0xC0, 0x20), (2, 1, 0xE0, 0x60)]
    file = parse("psp_13_0_6_sos.bin", _sos2(bins, A + B + C + D, auxiliary=2))
    assert [(part.name, part.data) for part in file.parts] == [("SOS", A), ("SYS_DRV", B), ("AUX_SOS", C), ("AUX_SYS_DRV", D)]


def test_toc_and_asd_are_their_array() -> None:
    assert parts_of(parse("psp_13_0_5_toc.bin", ucode((1, 0), {64: 0}, A))) == [("TOC", A, (24,))]
    assert parts_of(parse("navi10_asd.bin", ucode((1, 1), {64: 0}, A))) == [("ASD", A, ())]


def test_ta_1_holds_five_applications_in_fixed_order() -> None:
    fields = {}
    for index, (offset, size) in enumerate([(0, 0x40), (0x40, 0x80), (0, 0), (0xC0, 0x20), (0xE0, 0x60)]):
        fields |= {32 + 12 * index: index, 36 + 12 * index: offset, 40 + 12 * index: size}
    file = parse("navi10_ta.bin", ucode((1, 0), fields, A + B + C + D))
    assert parts_of(file) == [("XGMI", A, ()), ("RAS", B, ()), ("DTM", C, ()), ("SECUREDISPLAY", D, ())]


def test_ta_2_holds_typed_applications() -> None:
    fields = {32: 2, 36: 1, 40: 9, 44: 0, 48: 0x40, 52: 4, 56: 9, 60: 0x40, 64: 0x80}
    file = parse("psp_13_0_0_ta.bin", ucode((2, 0), fields, A + B))
    assert parts_of(file) == [("ASD", A, ()), ("HDCP", B, ())]


# --- SMU, SDMA, graphics, IMU --------------------------------------------------------------------------------------------


def test_smu_1_0_is_one_image() -> None:
    assert parts_of(parse("x_smc.bin", ucode((1, 0), {32: 0x20000}, A))) == [("SMU", A, (18,))]


def test_smu_2_0_has_a_power_table_at_an_offset_in_the_file() -> None:
    data = ucode((2, 0), {32: 0x20000, 36: ARRAY_AT + len(A), 40: len(B)}, A, behind=B)
    file = parse("smu_14_0_2.bin", data)
    assert parts_of(file) == [("SMU", A, (18,)), ("PPTABLE", B, (73,))]
    assert loaded(file) == [18]


def test_smu_2_1_has_many_power_tables_and_loads_the_one_for_the_psp() -> None:
    at = ARRAY_AT + len(A)
    entries = struct.pack("<6I", 3664, at + 24, len(B), 0x50325358, at + 24 + len(B), len(C))
    file = parse("smu_13_0_6.bin", ucode((2, 1), {32: 0x20000, 36: 2, 40: at}, A, behind=entries + B + C))
    assert parts_of(file) == [("SMU", A, (18,)), ("PPTABLE_3664", B, (73,)), ("P2S_TABLE", C, (129,))]
    assert loaded(file) == [18, 129]


@pytest.mark.parametrize("minor", [0, 1])
def test_sdma_1_is_loaded_once_for_each_engine(minor: int) -> None:
    file = parse("sdma_4_4_2.bin", ucode((1, minor), {44: 0x40, 48: 0} if minor else {44: 0x40}, A))
    assert parts_of(file) == [("SDMA", A, (9, 10, 52, 53))]


def test_sdma_2_loads_control_thread_before_context_thread() -> None:
    fields = {32: 0x3C, 36: len(A), 40: 0x1000, 44: 0x80, 48: ARRAY_AT + len(A), 52: len(B), 56: 0x1000, 60: 0}
    file = parse("sdma_6_0_0.bin", ucode((2, 0), fields, A + B, ip=(6, 0)))
    assert parts_of(file) == [("SDMA_UCODE_TH1", B, (72,)), ("SDMA_UCODE_TH0", A, (71,))]


def test_sdma_3_is_one_thread() -> None:
    assert parts_of(parse("sdma_7_0_1.bin", ucode((3, 0), {32: 1, 36: ARRAY_AT, 40: len(A)}, A))) == [("SDMA_UCODE_TH0", A, (71,))]


def test_gfx_1_compute_engine_has_its_jump_table_behind_the_code() -> None:
    fields = {32: 1, 36: len(A) // 4, 40: len(C) // 4}
    assert parts_of(parse("gc_9_4_3_mec.bin", ucode((1, 0), fields, A + C))) == [("CP_MEC", A, (4,)), ("CP_MEC_ME1", C, (5,))]
    assert parts_of(parse("navi10_mec2.bin", ucode((1, 0), fields, A + C))) == [("CP_MEC2", A, (4,)), ("CP_MEC_ME2", C, (6,))]


@pytest.mark.parametrize(("engine", "number"), [("pfp", 2), ("me", 1), ("ce", 3)])
def test_gfx_1_other_engines_keep_the_jump_table_inside(engine: str, number: int) -> None:
    file = parse(f"navi10_{engine}.bin", ucode((1, 0), {32: 1, 36: 0x10, 40: 4}, A))
    assert parts_of(file) == [(f"CP_{engine.upper()}", A, (number,))]


@pytest.mark.parametrize(("engine", "code", "stack"), [("pfp", 87, 90), ("me", 88, 92), ("mec", 89, 94)])
def test_gfx_2_has_code_stack_and_start_address(engine: str, code: int, stack: int) -> None:
    fields = {32: 0x1D, 36: len(A), 40: ARRAY_AT, 44: len(B), 48: ARRAY_AT + len(A), 52: 0x3000, 56: 0x70000}
    file = parse(f"gc_11_0_0_{engine}.bin", ucode((2, 0), fields, A + B))
    assert parts_of(file) == [(f"RS64_{engine.upper()}", A, (code,)), (f"RS64_{engine.upper()}_P0_STACK", B, (stack,))]
    assert file.start_address == 0x70000_00003000


@pytest.mark.parametrize(("name", "types"), [("gc_11_0_0_mes.bin", (33, 34)), ("gc_11_0_0_mes_2.bin", (33, 34)), ("gc_11_0_0_mes1.bin", (81, 82))])
def test_mes_has_code_and_data_that_no_boot_loads(name: str, types: tuple[int, int]) -> None:
    fields = {32: 5, 36: len(A), 40: ARRAY_AT, 44: 6, 48: len(B), 52: ARRAY_AT + len(A), 56: 0xF0005000, 60: 0xFFFFFFFF, 64: 0, 68: 0}
    file = parse(name, ucode((1, 0), fields, A + B))
    assert [(part.data, part.types, part.version) for part in file.parts] == [(A, (types[0],), 5), (B, (types[1],), 6)]
    assert file.load_list == []
    assert file.start_address == 0xFFFFFFFF_F0005000


def test_imu_data_follows_its_code() -> None:
    file = parse("gc_11_0_0_imu.bin", ucode((1, 0), {32: len(A), 36: 0, 40: len(B), 44: len(A)}, A + B))
    assert parts_of(file) == [("IMU_I", A, (68,)), ("IMU_D", B, (69,))]


def test_display_and_video_files() -> None:
    assert parts_of(parse("dcn_3_2_0_dmcub.bin", ucode((1, 0), {32: len(A), 36: len(B)}, A + B))) == [("DMUB", A, (51,)), ("DMUB_BSS_DATA", B, ())]
    assert parts_of(parse("raven_dmcu.bin", ucode((1, 0), {32: len(A), 36: len(C)}, A + C))) == [("DMCU_ERAM", A, (11,)), ("DMCU_ISR", C, (12,))]
    assert parts_of(parse("vcn_4_0_0.bin", ucode((1, 0), {}, A))) == [("VCN", A, (13,))]


# --- RLC -----------------------------------------------------------------------------------------------------------------

RLC_FIELDS = {
    1: [("RLC_RESTORE_LIST_SRM_CNTL", 22, 116), ("RLC_RESTORE_LIST_GPM_MEM", 20, 132), ("RLC_RESTORE_LIST_SRM_MEM", 21, 148)],
    2: [("RLC_IRAM", 26, 156), ("RLC_DRAM_BOOT", 48, 164)],
    3: [("RLC_P", 25, 180), ("RLC_V", 7, 196)],
    4: [("GLOBAL_TAP_DELAYS", 27, 204), ("SE0_TAP_DELAYS", 28, 212), ("SE1_TAP_DELAYS", 29, 220), ("SE2_TAP_DELAYS", 65, 228), ("SE3_TAP_DELAYS", 66, 236)],
}
"""what each header minor adds: name, type, offset of the size field (the offset field follows it)"""
RLC_LOADED = {0: [8], 1: [22, 20, 21, 8], 2: [26, 48, 8], 3: [26, 48, 25, 7, 8], 4: [26, 48, 8]}


@pytest.mark.parametrize("minor", range(5))
def test_rlc_parts_by_header_minor(minor: int) -> None:
    fields = {100: 0}
    behind = b""
    expected = []
    for level in range(1, minor + 1):
        for name, number, at in RLC_FIELDS[level]:
            data = content(number, 0x10 + number)
            fields |= {at: len(data), at + 4: ARRAY_AT + len(A) + len(behind)}
            expected.append((name, data, (number,)))
            behind += data
    file = parse("gc_11_0_0_rlc.bin", ucode((2, minor), fields, A, behind=behind))
    assert parts_of(file) == [*expected, ("RLC_G", A, (8,))]
    assert loaded(file) == RLC_LOADED[minor]


def test_rlc_parts_of_no_size_are_left_out() -> None:
    file = parse("gc_11_0_0_rlc.bin", ucode((2, 2), {156: len(B), 160: ARRAY_AT + len(A), 168: 0}, A, behind=B))
    assert loaded(file) == [26, 8]


# --- names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("psp_13_0_0_sos_kicker.bin", ("sos", "")),
        ("gc_11_0_0_mec.bin", ("gfx", "MEC")),
        ("aldebaran_mec2.bin", ("gfx", "MEC2")),
        ("gc_11_0_0_me.bin", ("gfx", "ME")),
        ("amdgpu/gc_11_0_0_pfp.bin", ("gfx", "PFP")),
        ("navi10_sdma1.bin", ("sdma", "")),
        ("aldebaran_smc.bin", ("smu", "")),
        ("smu_13_0_0_kicker.bin", ("smu", "")),
        ("picasso_rlc_am4.bin", ("rlc", "")),
    ],
)
def test_kind_follows_from_the_name(name: str, kind: tuple[str, str]) -> None:
    assert kind_of(name) == kind


def test_unknown_name_is_refused() -> None:
    with pytest.raises(FirmwareInvalid, match=r"holiday\.bin: no firmware of a known kind"):
        parse("holiday.bin", ucode((1, 0), {}, A))


# --- refusals ------------------------------------------------------------------------------------------------------------

GOOD = ucode((2, 0), {32: 1, 36: len(A), 40: ARRAY_AT, 44: len(B), 48: ARRAY_AT + len(A), 52: 0, 56: 0}, A + B)
NAME = "gc_11_0_0_mec.bin"


@pytest.mark.parametrize(
    ("damage", "field", "value"),
    [
        (lambda data: data[:31], "too short", "31 bytes"),
        (lambda data: data[:-1], "size_bytes 0x1c0", "0x1bf bytes"),
        (lambda data: patched(data, 0, 0x10000), "size_bytes 0x10000", "0x1c0 bytes"),
        (lambda data: patched(data, 24, 0x20), "ucode_array_offset_bytes 0x20", "header 0x3c bytes"),
        (lambda data: patched(data, 24, 0x4000), "ucode_array_offset_bytes 0x4000", "size_bytes 0x1c0"),
        (lambda data: patched(data, 20, 0x4000), "ucode_size_bytes 0x4000 at 0x100", "size_bytes 0x1c0"),
        (lambda data: patched(data, 8, 9), "header_version 9.0 of a gfx file", "known versions 1.0, 2.0"),
        (lambda data: patched(data, 8, 7 << 16 | 2), "header_version 2.7 of a gfx file", "known versions 1.0, 2.0"),
        (lambda data: patched(data, 44, 0x4000), "part RS64_MEC_P0_STACK of 0x4000 bytes at 0x140", "0x1c0 bytes"),
        (lambda data: patched(data, 48, 0xFFFFFF00), "part RS64_MEC_P0_STACK of 0x80 bytes at 0xffffff00", "0x1c0 bytes"),
        (lambda data: patched(data, 0x104, 0, resum=False), f"crc32 {struct.unpack_from('<I', GOOD, 28)[0]:#010x}", "sum of the bytes 0x"),
    ],
)
def test_damaged_file_is_refused_with_file_field_and_value(damage: object, field: str, value: str) -> None:
    assert callable(damage)
    with pytest.raises(FirmwareInvalid) as caught:
        parse(NAME, damage(GOOD))
    assert caught.value.what.startswith(NAME)
    assert field in caught.value.what
    assert value in caught.value.read
    assert caught.value.means
    assert caught.value.remedy


def test_every_single_flipped_bit_of_the_content_is_noticed() -> None:
    for at in range(32, len(GOOD), 7):
        broken = bytearray(GOOD)
        broken[at] ^= 1 << at % 8
        with pytest.raises(FirmwareInvalid):
            parse(NAME, bytes(broken))


def test_file_of_another_generation_is_refused() -> None:
    with pytest.raises(FirmwareInvalid, match=r"ip_version_major 12 is not 11"):
        parse(NAME, ucode((2, 0), {32: 1, 36: len(A), 40: ARRAY_AT, 44: 0, 48: 0, 52: 0, 56: 0}, A, ip=(12, 0)), ip_major=11)


def test_too_many_descriptors_are_refused() -> None:
    with pytest.raises(FirmwareInvalid, match="bin_count 100"):
        parse("psp_13_0_0_sos.bin", _sos2([(1, 1, 0, 0x40)], A, count=100))
    with pytest.raises(FirmwareInvalid, match=r"pptable_count 99 at pptable_entry_offset 0x140"):
        parse("smu_13_0_0.bin", ucode((2, 1), {32: 0, 36: 99, 40: ARRAY_AT + len(A)}, A, behind=B))


def test_jump_table_larger_than_the_code_is_refused() -> None:
    with pytest.raises(FirmwareInvalid, match=r"jt_size 0x100 dwords"):
        parse("navi10_mec.bin", ucode((1, 0), {32: 1, 36: 0, 40: 0x100}, A))


def test_missing_part_is_named() -> None:
    with pytest.raises(FirmwareInvalid, match=r"gc_11_0_0_mec.bin has no part CP_MEC \(read: parts RS64_MEC, RS64_MEC_P0_STACK\)"):
        parse(NAME, GOOD).part("CP_MEC")


# --- sums ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("covered", "found"), [("whole", "whole"), ("payload", "payload"), ("head", "head")])
def test_sums_over_the_usual_ranges_are_accepted(covered: str, found: str) -> None:
    data = ucode((1, 0), {40: 0, 64: 0}, content(9, 0x400), covered=covered)
    assert parse("psp_13_0_5_toc.bin", data).checksum == found


def test_meaningless_sum_is_tolerated_only_where_published_files_have_them() -> None:
    assert parse("x_smc.bin", ucode((1, 0), {32: 0}, A, covered="nothing")).checksum == "unverifiable"
    assert parse("gc_11_0_0_rlc.bin", ucode((2, 0), {100: 0}, A, covered="nothing")).checksum == "unverifiable"
    with pytest.raises(FirmwareInvalid, match="crc32"):
        parse("x_toc.bin", ucode((1, 0), {64: 0}, A, covered="nothing"))


def test_stored_sum_of_a_published_file_pins_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ucode((2, 0), {100: 0}, A, covered="nothing")
    stored = struct.unpack_from("<I", data, 28)[0]
    monkeypatch.setitem(STALE_SUMS, stored, zlib.crc32(data[32:]))
    assert parse("gc_11_0_0_rlc.bin", data).checksum == "published"
    with pytest.raises(FirmwareInvalid, match="published file with other content"):
        parse("gc_11_0_0_rlc.bin", patched(data, 0x108, 0, resum=False))
