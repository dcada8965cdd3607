"""Single vector instructions against values worked out by hand from the instruction-set description."""

from __future__ import annotations

import pytest

from drivers.amd.isa import load
from tests.mocks.isa.assemble import VGPR0, encode
from tests.mocks.isa.single import ALL, EXEC_LO, VCC, Wave, done, f16, f32, f64

QNAN, SNAN, INF, NINF, NZERO = 0x7FC00000, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000
TINY = 1  # smallest denormal


def three(mnemonic: str, *sources: int, wide: tuple[int, ...] = (), **fields: int) -> Wave:
    """A VOP3 instruction on v2, v4, v6 (64-bit sources use two registers) with the result in v0."""
    v = {}
    for index, value in enumerate(sources):
        v[2 + 2 * index] = value & ALL
        v[3 + 2 * index] = value >> 32
    places = {f"src{index}": VGPR0 + 2 + 2 * index for index in range(len(sources))}
    return done(encode("VOP3", mnemonic, vdst=0, **places, **fields), v={0: 0xDEADBEEF, 1: 0xDEADBEEF} | v)


CASES_32 = [
    # integers
    ("v_bfe_u32", (0xABCD1234, 8, 12), 0xD12),
    ("v_bfe_u32", (0xABCD1234, 8, 0), 0),
    ("v_bfe_u32", (0xABCD1234, 40, 36), 0x2),  # offset and width modulo 32: 8 and 4
    ("v_bfe_i32", (0x00000800, 8, 4), 0xFFFFFFF8),
    ("v_bfe_i32", (0x00000700, 8, 4), 7),
    ("v_bfe_i32", (0xFFFFFFFF, 3, 0), 0),
    ("v_bfi_b32", (0xFF00FF00, 0x12345678, 0x9ABCDEF0), 0x12BC56F0),
    ("v_bfm_b32", (5, 4), 0x1F0),
    ("v_bfm_b32", (32, 4), 0),
    ("v_alignbit_b32", (0x11223344, 0x55667788, 8), 0x44556677),
    ("v_alignbit_b32", (0x11223344, 0x55667788, 32), 0x55667788),
    ("v_alignbyte_b32", (0x11223344, 0x55667788, 3), 0x22334455),
    ("v_perm_b32", (0x88776655, 0x44332211, 0x07050301), 0x88664422),
    ("v_perm_b32", (0x80000000, 0x00008000, 0x0B0A0908), 0xFF0000FF),  # signs of bytes 1, 3, 5, 7
    ("v_perm_b32", (0, 0, 0x0D0C0E0C), 0xFF00FF00),
    ("v_mul_lo_u32", (0xFFFFFFFF, 0xFFFFFFFF), 1),
    ("v_mul_hi_u32", (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFE),
    ("v_mul_hi_i32", (0xFFFFFFFF, 2), 0xFFFFFFFF),
    ("v_mul_u32_u24", (0xFF000003, 0x01000004), 12),
    ("v_mul_i32_i24", (0x00FFFFFF, 5), 0xFFFFFFFB),
    ("v_mul_hi_u32_u24", (0xFFFFFF, 0xFFFFFF), 0xFFFF),
    ("v_mul_hi_i32_i24", (0x800000, 0x800000), 0x4000),
    ("v_mad_u32_u24", (3, 4, 5), 17),
    ("v_mad_i32_i24", (0xFFFFFF, 4, 5), 1),
    ("v_add3_u32", (ALL, 2, 3), 4),
    ("v_lshl_add_u32", (3, 33, 1), 7),
    ("v_add_lshl_u32", (1, 2, 4), 0x30),
    ("v_lshl_or_b32", (0xF, 4, 1), 0xF1),
    ("v_and_or_b32", (0xFF, 0x3C, 0x100), 0x13C),
    ("v_or3_b32", (1, 2, 4), 7),
    ("v_xor3_b32", (1, 3, 6), 4),
    ("v_xad_u32", (6, 3, 10), 15),
    ("v_xnor_b32", (0xF0F0F0F0, 0xFF00FF00), 0xF00FF00F),
    ("v_lshlrev_b32", (32, 0x1234), 0x1234),
    ("v_lshrrev_b32", (33, 8), 4),
    ("v_ashrrev_i32", (4, 0x80000000), 0xF8000000),
    ("v_clz_i32_u32", (0x00010000,), 15),
    ("v_clz_i32_u32", (0,), ALL),
    ("v_ctz_i32_b32", (0x00010000,), 16),
    ("v_ctz_i32_b32", (0,), ALL),
    ("v_cls_i32", (0xFFFF0000,), 16),
    ("v_cls_i32", (0,), ALL),
    ("v_cls_i32", (ALL,), ALL),
    ("v_bfrev_b32", (0x00000001,), 0x80000000),
    ("v_bcnt_u32_b32", (0xF0F0, 100), 108),
    ("v_min_i32", (ALL, 1), ALL),
    ("v_min_u32", (ALL, 1), 1),
    ("v_med3_i32", (ALL, 5, 1), 1),
    ("v_med3_u32", (ALL, 5, 1), 5),
    ("v_min3_i32", (3, ALL, 7), ALL),
    ("v_max3_u32", (3, ALL, 7), ALL),
    ("v_maxmin_u32", (3, 9, 7), 7),
    ("v_minmax_i32", (ALL, 9, 7), 7),
    ("v_sad_u8", (0x01020304, 0x04030201, 100), 108),
    ("v_sad_hi_u8", (0x01020304, 0x04030201, 100), (8 << 16) + 100),
    ("v_sad_u16", (0x00100001, 0x00010010, 5), 35),
    ("v_sad_u32", (3, 10, 1), 8),
    ("v_msad_u8", (0x01020304, 0x04000201, 0), 3 + 0 + 1 + 3),
    ("v_lerp_u8", (0x10FF0001, 0x20FF0002, 0x01000100), 0x18FF0001),
    ("v_mad_u32_u16", (0xFFFF, 0xFFFF, 5), 0xFFFE0006),
    ("v_mad_i32_i16", (0xFFFF, 7, 5), ALL - 1),
    ("v_cvt_pk_u16_u32", (0x12345, 7), 0x0007FFFF),
    ("v_cvt_pk_i16_i32", (0xFFFF0000, 0x9000), 0x7FFF8000),
    ("v_sat_pk_u8_i16", (0x0101FFFF,), 0xDEADFF00),
    ("v_not_b32", (0x0F0F0F0F,), 0xF0F0F0F0),
    # floats
    ("v_add_f32", (f32(1.5), f32(2.25)), f32(3.75)),
    ("v_subrev_f32", (f32(1.0), f32(3.0)), f32(2.0)),
    ("v_mul_f32", (f32(3.0), f32(-2.0)), f32(-6.0)),
    ("v_mul_dx9_zero_f32", (0, INF), 0),
    ("v_mul_dx9_zero_f32", (NZERO, QNAN), 0),
    ("v_fma_f32", (0x3F800001, 0x3F800001, 0xBF800002), 0x28800000),  # (1+e)^2 - (1+2e) = e^2, kept by the fused product
    ("v_fma_dx9_zero_f32", (0, INF, f32(7.0)), f32(7.0)),
    ("v_max_f32", (QNAN, f32(1.0)), f32(1.0)),
    ("v_max_f32", (f32(1.0), QNAN), f32(1.0)),
    ("v_max_f32", (SNAN, f32(1.0)), SNAN | 0x400000),
    ("v_min_f32", (f32(1.0), SNAN), SNAN | 0x400000),
    ("v_min_f32", (0, NZERO), NZERO),
    ("v_max_f32", (NZERO, 0), 0),
    ("v_med3_f32", (f32(3.0), f32(1.0), f32(2.0)), f32(2.0)),
    ("v_med3_f32", (QNAN, f32(5.0), f32(4.0)), f32(4.0)),
    ("v_min3_f32", (f32(3.0), QNAN, f32(2.0)), f32(2.0)),
    ("v_maxmin_f32", (f32(1.0), f32(5.0), f32(3.0)), f32(3.0)),
    ("v_trunc_f32", (f32(-1.75),), f32(-1.0)),
    ("v_ceil_f32", (f32(-0.3),), NZERO),
    ("v_floor_f32", (f32(-0.3),), f32(-1.0)),
    ("v_rndne_f32", (f32(2.5),), f32(2.0)),
    ("v_rndne_f32", (f32(3.5),), f32(4.0)),
    ("v_fract_f32", (f32(-0.25),), f32(0.75)),
    ("v_fract_f32", (f32(-1e-20),), 0x3F7FFFFF),
    ("v_fract_f32", (NZERO,), 0),
    ("v_frexp_exp_i32_f32", (f32(8.0),), 4),
    ("v_frexp_exp_i32_f32", (TINY,), -148 & ALL),
    ("v_frexp_exp_i32_f32", (INF,), 0),
    ("v_frexp_mant_f32", (f32(-8.0),), f32(-0.5)),
    ("v_frexp_mant_f32", (NZERO,), NZERO),
    ("v_frexp_mant_f32", (SNAN,), SNAN | 0x400000),
    ("v_ldexp_f32", (f32(1.5), 3), f32(12.0)),
    ("v_ldexp_f32", (0x3F800001, -149 & ALL), 1),
    ("v_ldexp_f32", (0x3FC00000, -149 & ALL), 2),  # 1.5 denormal units: tie to even
    ("v_ldexp_f32", (f32(1.0), 0x7FFFFFFF), INF),
    ("v_ldexp_f32", (f32(-1.0), 0x80000000), NZERO),
    ("v_rcp_f32", (f32(4.0),), f32(0.25)),
    ("v_rcp_f32", (0,), INF),
    ("v_rcp_f32", (0x80000001,), NINF),  # denormals count as zero
    ("v_rcp_f32", (f32(2.0**127),), 0),  # denormal result
    ("v_rcp_f32", (NINF,), NZERO),
    ("v_rsq_f32", (f32(16.0),), f32(0.25)),
    ("v_sqrt_f32", (f32(2.25),), f32(1.5)),
    ("v_sqrt_f32", (NZERO,), NZERO),
    ("v_exp_f32", (f32(-3.0),), f32(0.125)),
    ("v_exp_f32", (f32(-127.0),), 0),
    ("v_exp_f32", (NINF,), 0),
    ("v_exp_f32", (f32(128.0),), INF),
    ("v_log_f32", (f32(32.0),), f32(5.0)),
    ("v_log_f32", (TINY,), NINF),
    ("v_sin_f32", (f32(0.25),), f32(1.0)),
    ("v_cos_f32", (f32(0.5),), f32(-1.0)),
    ("v_sin_f32", (f32(1000.75),), f32(-1.0)),
    # conversions
    ("v_cvt_i32_f32", (f32(-2.9),), -2 & ALL),
    ("v_cvt_i32_f32", (f32(3e9),), 0x7FFFFFFF),
    ("v_cvt_i32_f32", (QNAN,), 0),
    ("v_cvt_u32_f32", (f32(-1.0),), 0),
    ("v_cvt_u32_f32", (f32(5e9),), ALL),
    ("v_cvt_floor_i32_f32", (f32(-2.1),), -3 & ALL),
    ("v_cvt_nearest_i32_f32", (f32(2.5),), 3),
    ("v_cvt_nearest_i32_f32", (f32(-2.5),), -2 & ALL),
    ("v_cvt_f32_i32", (0xFFFFFFFF,), f32(-1.0)),
    ("v_cvt_f32_u32", (0xFFFFFFFF,), f32(4294967296.0)),
    ("v_cvt_f32_ubyte2", (0x12AB3456,), f32(0xAB)),
    ("v_cvt_off_f32_i4", (0xF,), f32(-1 / 16)),
    ("v_cvt_pk_rtz_f16_f32", (f32(65535.0), f32(-1.9999)), 0xBFFF7BFF),
    ("v_cvt_pk_i16_f32", (f32(-40000.0), f32(3.7)), 0x00038000),
    ("v_cvt_pk_u16_f32", (f32(70000.0), f32(-1.0)), 0x0000FFFF),
    ("v_cvt_pk_norm_i16_f32", (f32(-2.0), f32(0.5)), 0x40008001),
    ("v_cvt_pk_norm_u16_f32", (f32(2.0), f32(0.5)), 0x8000FFFF),
    ("v_cvt_pk_u8_f32", (f32(300.0), 2, 0x11223344), 0x11FF3344),
    ("v_pack_b32_f16", (0x1234ABCD, 0x5678EF01), 0xEF01ABCD),
    # division helpers: special cases in their order
    ("v_div_fixup_f32", (f32(2.0), f32(1.0), QNAN | 5), QNAN | 5),
    ("v_div_fixup_f32", (f32(2.0), SNAN, f32(1.0)), SNAN | 0x400000),
    ("v_div_fixup_f32", (f32(2.0), 0, 0), 0xFFC00000),
    ("v_div_fixup_f32", (f32(2.0), INF, INF), 0xFFC00000),
    ("v_div_fixup_f32", (f32(2.0), NZERO, f32(1.0)), NINF),
    ("v_div_fixup_f32", (f32(2.0), f32(-1.0), INF), NINF),
    ("v_div_fixup_f32", (f32(2.0), INF, f32(-1.0)), NZERO),
    ("v_div_fixup_f32", (QNAN, f32(2.0), f32(-1.0)), NINF),
    ("v_div_fixup_f32", (f32(-3.0), f32(1.0), f32(3.0)), f32(3.0)),
    ("v_div_fixup_f32", (f32(7.0), f32(2.0**100), f32(2.0**-60)), 0),
]


@pytest.mark.parametrize("mnemonic, sources, expected", CASES_32, ids=lambda x: x if isinstance(x, str) else None)
def test_result(mnemonic: str, sources: tuple[int, ...], expected: int) -> None:
    assert f"{three(mnemonic, *sources).v(0):#010x}" == f"{expected:#010x}"


CASES_16 = [
    ("v_add_nc_u16", (0xFFFF, 2), 1),
    ("v_sub_nc_i16", (1, 2), 0xFFFF),
    ("v_mul_lo_u16", (0x1234, 0x100), 0x3400),
    ("v_mad_u16", (0x100, 0x100, 7), 7),
    ("v_lshlrev_b16", (17, 3), 6),
    ("v_lshrrev_b16", (4, 0x8000), 0x800),
    ("v_ashrrev_i16", (4, 0x8000), 0xF800),
    ("v_min_i16", (0xFFFF, 1), 0xFFFF),
    ("v_max_u16", (0xFFFF, 1), 0xFFFF),
    ("v_med3_i16", (5, 0xFFFF, 1), 1),
    ("v_and_b16", (0xFF0F, 0x0FFF), 0x0F0F),
    ("v_not_b16", (0x00FF,), 0xFF00),
    ("v_add_f16", (f16(1.5), f16(2.0)), f16(3.5)),
    ("v_fma_f16", (f16(0.0625), 0x0001, f16(1.0)), f16(1.0)),
    ("v_fma_f16", (0x3C01, 0x3C01, 0xBC02), 0x0010),  # 2^-20, kept by the fused product
    ("v_max_f16", (0x7E00, f16(1.0)), f16(1.0)),
    ("v_min_f16", (0x7C01, f16(1.0)), 0x7E01),
    ("v_ldexp_f16", (f16(1.0), 0xFFFE), f16(0.25)),
    ("v_rcp_f16", (f16(4.0),), f16(0.25)),
    ("v_sqrt_f16", (f16(9.0),), f16(3.0)),
    ("v_exp_f16", (f16(3.0),), f16(8.0)),
    ("v_log_f16", (0x0001,), f16(-24.0)),  # f16 keeps denormals
    ("v_fract_f16", (f16(-0.25),), f16(0.75)),
    ("v_frexp_exp_i16_f16", (f16(8.0),), 4),
    ("v_frexp_mant_f16", (f16(12.0),), f16(0.75)),
    ("v_rndne_f16", (f16(0.5),), 0),
    ("v_cvt_f16_f32", (f32(65520.0),), 0x7C00),
    ("v_cvt_f16_f32", (f32(2.0**-24 * 1.5),), 2),
    ("v_cvt_f16_u16", (0xFFFF,), 0x7C00),
    ("v_cvt_f16_i16", (0xFFFF,), f16(-1.0)),
    ("v_cvt_i16_f16", (f16(-2.9),), 0xFFFE),
    ("v_cvt_u16_f16", (f16(-2.9),), 0),
    ("v_cvt_norm_i16_f16", (f16(-1.0),), 0x8001),
    ("v_div_fixup_f16", (f16(1.0), 0, 0), 0xFE00),
]


@pytest.mark.parametrize("mnemonic, sources, expected", CASES_16, ids=lambda x: x if isinstance(x, str) else None)
def test_half_result_leaves_the_other_half(mnemonic: str, sources: tuple[int, ...], expected: int) -> None:
    assert f"{three(mnemonic, *sources).v(0):#010x}" == f"{0xDEAD0000 | expected:#010x}"


CASES_64 = [
    ("v_lshlrev_b64", (65, 0x8000000000000001), 2),
    ("v_ashrrev_i64", (4, 0x8000000000000000), 0xF800000000000000),
    ("v_add_f64", (f64(1.5), f64(2.0**-60)), f64(1.5)),
    ("v_mul_f64", (f64(1.5), f64(-2.0)), f64(-3.0)),
    ("v_fma_f64", (f64(1 + 2.0**-52), f64(1 + 2.0**-52), f64(-1 - 2.0**-51)), f64(2.0**-104)),
    ("v_min_f64", (f64(0.0), f64(-0.0)), f64(-0.0)),
    ("v_max_f64", (0x7FF0000000000001, f64(1.0)), 0x7FF8000000000001),
    ("v_ldexp_f64", (f64(1.0), -1074 & ALL), 1),
    ("v_ldexp_f64", (0x3FF8000000000000, -1074 & ALL), 2),
    ("v_ldexp_f64", (f64(1.0), 0x7FFFFFFF), 0x7FF0000000000000),
    ("v_ldexp_f64", (1, 1074), f64(1.0)),
    ("v_rcp_f64", (f64(4.0),), f64(0.25)),
    ("v_rndne_f64", (f64(-2.5),), f64(-2.0)),
    ("v_frexp_mant_f64", (1,), f64(0.5)),
    ("v_fract_f64", (f64(-1e-300),), 0x3FEFFFFFFFFFFFFF),
    ("v_cvt_f64_f32", (f32(1.25),), f64(1.25)),
    ("v_cvt_f64_i32", (ALL,), f64(-1.0)),
    ("v_cvt_f64_u32", (ALL,), f64(4294967295.0)),
    ("v_div_fixup_f64", (f64(1.0), f64(0.0), f64(0.0)), 0xFFF8000000000000),
    ("v_qsad_pk_u16_u8", (0x0807060504030201, 0x04030201, 0x0001000100010001), 1 | (4 + 1) << 16 | (8 + 1) << 32 | (12 + 1) << 48),
]


@pytest.mark.parametrize("mnemonic, sources, expected", CASES_64, ids=lambda x: x if isinstance(x, str) else None)
def test_wide_result(mnemonic: str, sources: tuple[int, ...], expected: int) -> None:
    assert f"{three(mnemonic, *sources).v64(0):#018x}" == f"{expected:#018x}"


@pytest.mark.parametrize(
    "mnemonic, source, expected",
    [
        ("v_frexp_exp_i32_f64", 1, -1073 & ALL), ("v_cvt_i32_f64", f64(-3e9), 0x80000000), ("v_cvt_u32_f64", f64(3e9), 3000000000),
        ("v_cvt_f32_f64", f64(1 + 2.0**-24 + 2.0**-50), 0x3F800001), ("v_cvt_f32_f64", f64(1e300), INF),
    ],
)  # fmt: skip
def test_wide_source(mnemonic: str, source: int, expected: int) -> None:
    assert three(mnemonic, source).v(0) == expected


CLAMPED = [
    ("v_add_nc_u32", (ALL, 1), ALL),
    ("v_sub_nc_u32", (1, 2), 0),
    ("v_add_nc_i32", (0x7FFFFFFF, 1), 0x7FFFFFFF),
    ("v_sub_nc_i32", (0x80000000, 1), 0x80000000),
    ("v_add_f32", (f32(3.0), f32(1.0)), f32(1.0)),
    ("v_add_f32", (f32(-3.0), f32(1.0)), 0),
    ("v_add_f32", (NZERO, NZERO), 0),
    ("v_mul_f32", (QNAN, f32(1.0)), 0),
    ("v_mad_u32_u24", (0xFFFFFF, 0xFFFFFF, ALL), ALL),
]


@pytest.mark.parametrize("mnemonic, sources, expected", CLAMPED, ids=lambda x: x if isinstance(x, str) else None)
def test_clamp(mnemonic: str, sources: tuple[int, ...], expected: int) -> None:
    assert f"{three(mnemonic, *sources, clmp=1).v(0):#010x}" == f"{expected:#010x}"


def test_modifiers_negate_after_absolute_value() -> None:
    assert three("v_add_f32", f32(-2.0), f32(5.0), abs=1, neg=1).v(0) == f32(3.0)
    assert three("v_cndmask_b32", 0x3F800000, 0x40000000, neg=3, src2=VCC).v(0) in (0xBF800000, 0xC0000000)


def test_op_sel_picks_halves_and_writes_the_high_one() -> None:
    """op_sel bits 0 and 1 take the high halves of the sources, bit 3 writes the high half of the result."""
    wave = three("v_add_nc_u16", 0x0001_0010, 0x0002_0020, opsel=0b1001)
    assert wave.v(0) == (0x0001 + 0x0020) << 16 | 0xBEEF


def test_true16_register_numbers_select_halves() -> None:
    """VOP1/VOP2: VGPR numbers from 128 on are the high halves of v0.."""
    wave = done(encode("VOP2", "v_add_f16", vdst=128 + 5, src0=VGPR0 + 128 + 6, vsrc1=7), v={5: 0x11112222, 6: f16(2.0) << 16, 7: f16(0.5)})
    assert wave.v(5) == f16(2.5) << 16 | 0x2222


def test_mad_64_reports_its_carry() -> None:
    wave = done(
        encode("VOP3SD", "v_mad_u64_u32", vdst=0, sdst=20, src0=VGPR0 + 2, src1=VGPR0 + 3, src2=VGPR0 + 4),
        v={2: ALL, 3: ALL, 4: [ALL] * 16 + [0] * 16, 5: [ALL] * 16 + [1] * 16},
    )
    assert wave.v64(0, 0) == (ALL * ALL + (1 << 64) - 1) % (1 << 64)
    assert wave.v64(0, 31) == ALL * ALL + (1 << 32)
    assert wave.s(20) == 0x0000FFFF


def test_carry_chain() -> None:
    """A 64-bit subtraction: borrow goes through VCC, and inactive lanes report no borrow."""
    code = [
        encode("VOP3SD", "v_sub_co_u32", vdst=0, sdst=VCC, src0=VGPR0 + 2, src1=VGPR0 + 4),
        encode("VOP2", "v_sub_co_ci_u32", vdst=1, src0=VGPR0 + 3, vsrc1=5),
    ]
    wave = done(code, v={0: 7, 1: 8, 2: 0, 3: 5, 4: 1, 5: 2}, s={EXEC_LO: 0x0000FFFF})
    assert (wave.v64(0, 0), wave.v64(0, 31)) == ((5 << 32) - (2 << 32) - 1, 8 << 32 | 7)
    assert wave.s(VCC) == 0
    carry = done(encode("VOP2", "v_add_co_ci_u32", vdst=0, src0=VGPR0 + 2, vsrc1=3), v={2: ALL, 3: 0}, s={VCC: 0xF0F0F0F0})
    assert carry.s(VCC) == 0xF0F0F0F0


def test_compare_masks_inactive_lanes_to_zero() -> None:
    lanes = list(range(32))
    wave = done(encode("VOPC", "v_cmp_gt_u32", src0=VGPR0 + 1, vsrc1=2), v={1: lanes, 2: 3}, s={EXEC_LO: 0xFF, VCC: ALL})
    assert wave.s(VCC) == 0xF0
    wave = done(encode("VOP3", "v_cmp_nlt_f32", vdst=30, src0=VGPR0 + 1, src1=VGPR0 + 2), v={1: [QNAN, f32(1.0)] * 16, 2: f32(2.0)})
    assert wave.s(30) == 0x55555555
    wave = done(encode("VOPC", "v_cmpx_lt_i32", src0=VGPR0 + 1, vsrc1=2), v={1: lanes, 2: 4}, s={VCC: 0x1234})
    assert (wave.s(EXEC_LO), wave.s(VCC)) == (0xF, 0x1234)


CLASSES = [SNAN, QNAN, NINF, f32(-1.0), 0x80000001, NZERO, 0, 1, f32(1.0), INF]


@pytest.mark.parametrize("bit", range(10))
def test_class_bits(bit: int) -> None:
    values = CLASSES + [f32(2.0)] * 22
    wave = done(encode("VOPC", "v_cmp_class_f32", src0=VGPR0 + 1, vsrc1=2), v={1: values, 2: 1 << bit})
    expected = 1 << bit | (0xFFFFFC00 if bit == 8 else 0)
    assert wave.s(VCC) == expected


def test_writes_only_active_lanes() -> None:
    wave = done(encode("VOP1", "v_mov_b32", vdst=0, src0=129), v={0: 9}, s={EXEC_LO: 0x80000001})
    assert wave.lanes(0) == [1] + [9] * 30 + [1]


def test_dual_halves_read_before_either_writes() -> None:
    second = load("gfx1100").by_name["VOPD.Y", "v_dual_mov_b32"].number
    code = encode("VOPD", "v_dual_mov_b32", second=second, srcx0=VGPR0 + 3, vdstx=2, srcy0=VGPR0 + 2, vdsty=1)
    wave = done(code, v={2: 22, 3: 33})  # vdsty 1 with an even vdstx is v3
    assert (wave.v(2), wave.v(3)) == (33, 22)


def test_dual_shares_its_literal() -> None:
    second = load("gfx1100").by_name["VOPD.Y", "v_dual_fmaak_f32"].number
    code = encode("VOPD", "v_dual_add_f32", "_LIT", second=second, srcx0=255, vsrcx1=4, vdstx=0, srcy0=VGPR0 + 5, vsrcy1=6, vdsty=0, literal=f32(10.0))
    wave = done(code, v={4: f32(1.0), 5: f32(2.0), 6: f32(3.0)})
    assert (wave.v(0), wave.v(1)) == (f32(11.0), f32(16.0))


@pytest.mark.parametrize(
    "den, num, src0_is_den, expected, mask",
    [
        (f32(2.0), f32(3.0), True, f32(2.0), 0),  # nothing to scale
        (0, f32(3.0), True, QNAN, 1),
        (f32(2.0**-50), f32(2.0**60), True, f32(2.0**14), 1),  # exponents far apart: the denominator grows
        (f32(2.0**-50), f32(2.0**60), False, f32(2.0**60), 1),
        (1, f32(2.0**-140), True, f32(2.0**-85), 0),  # denormal denominator
        (f32(2.0**127), f32(2.0**10), True, f32(2.0**63), 0),
        (f32(2.0**127), f32(2.0**-10), True, f32(2.0**63), 1),
        (f32(2.0**60), f32(2.0**-100), False, f32(2.0**-36), 1),
        (f32(1.0), f32(2.0**-110), False, f32(2.0**-46), 0),  # tiny numerator
    ],
)
def test_division_scaling(den: int, num: int, src0_is_den: bool, expected: int, mask: int) -> None:
    code = encode("VOP3SD", "v_div_scale_f32", vdst=0, sdst=VCC, src0=VGPR0 + (1 if src0_is_den else 2), src1=VGPR0 + 1, src2=VGPR0 + 2)
    wave = done(code, v={1: den, 2: num})
    assert (f"{wave.v(0):#x}", wave.s(VCC)) == (f"{expected:#x}", ALL * mask)


def test_div_fmas_scales_where_vcc_says() -> None:
    code = encode("VOP3", "v_div_fmas_f32", vdst=0, src0=VGPR0 + 1, src1=VGPR0 + 2, src2=VGPR0 + 3)
    wave = done(code, v={1: f32(2.0), 2: f32(3.0), 3: [f32(4.0)] * 16 + [f32(1.0)] * 16}, s={VCC: 0x80008000})
    assert (wave.v(0, 0), wave.v(0, 15), wave.v(0, 31)) == (f32(10.0), f32(10.0 * 2.0**64), f32(7.0 * 2.0**-64))


def test_packed_operations_select_and_negate_halves() -> None:
    v = {1: f16(1.0) | f16(2.0) << 16, 2: f16(10.0) | f16(20.0) << 16}
    plain = done(encode("VOP3P", "v_pk_add_f16", vdst=0, src0=VGPR0 + 1, src1=VGPR0 + 2, opsel_hi=3, opsel_hi2=1), v=v)
    assert plain.v(0) == f16(11.0) | f16(22.0) << 16
    turned = done(encode("VOP3P", "v_pk_add_f16", vdst=0, src0=VGPR0 + 1, src1=VGPR0 + 2, opsel=1, opsel_hi=2, neg=2, neg_hi=1), v=v)
    assert turned.v(0) == f16(2.0 - 10.0) | f16(20.0 - 1.0) << 16
    constant = done(encode("VOP3P", "v_pk_add_u16", vdst=0, src0=193, src1=VGPR0 + 1, opsel_hi=3), v={1: 0x00050005})
    assert constant.v(0) == 0x00040004  # inline -1 fills both halves
    constant = done(encode("VOP3P", "v_pk_add_u16", vdst=0, src0=133, src1=VGPR0 + 1, opsel_hi=3), v={1: 0x00050005})
    assert constant.v(0) == 0x0005000A  # inline 5 has a zero high half


def test_mixed_precision_fma() -> None:
    v = {1: f16(1.5) | f16(2.0) << 16, 2: f32(3.0), 3: f32(100.0), 0: 0xAAAABBBB}
    fields = {"src0": VGPR0 + 1, "src1": VGPR0 + 2, "src2": VGPR0 + 3, "opsel_hi": 1, "opsel": 1}
    assert done(encode("VOP3P", "v_fma_mix_f32", vdst=0, **fields), v=v).v(0) == f32(106.0)
    assert done(encode("VOP3P", "v_fma_mixlo_f16", vdst=0, **fields), v=v).v(0) == 0xAAAA0000 | f16(106.0)
    assert done(encode("VOP3P", "v_fma_mixhi_f16", vdst=0, **fields), v=v).v(0) == f16(106.0) << 16 | 0xBBBB
    negated = done(encode("VOP3P", "v_fma_mix_f32", vdst=0, neg=5, neg_hi=4, **fields), v=v | {3: f32(-100.0)})
    assert negated.v(0) == f32(-6.0 - 100.0)


def test_dot_products() -> None:
    fields = {"src0": VGPR0 + 1, "src1": VGPR0 + 2, "src2": VGPR0 + 3, "opsel_hi": 3, "opsel_hi2": 1}
    v = {1: 0xFF02FF02, 2: 0x01020304, 3: 10}
    signed = done(encode("VOP3P", "v_dot4_i32_iu8", vdst=0, neg=3, **fields), v=v)
    assert signed.v(0) == (-1 * 1 + 2 * 2 - 1 * 3 + 2 * 4 + 10) & ALL
    mixed = done(encode("VOP3P", "v_dot4_i32_iu8", vdst=0, neg=0, **fields), v=v)
    assert mixed.v(0) == 255 * 1 + 2 * 2 + 255 * 3 + 2 * 4 + 10
    nibbles = done(encode("VOP3P", "v_dot8_i32_iu4", vdst=0, neg=1, **fields), v={1: 0xFFFFFFFF, 2: 0x11111111, 3: 0})
    assert nibbles.v(0) == -8 & ALL
    saturated = done(encode("VOP3P", "v_dot4_i32_iu8", vdst=0, neg=0, clmp=1, **fields), v={1: ALL, 2: ALL, 3: 0x7FFFFFFF})
    assert saturated.v(0) == 0x7FFFFFFF
    halves = done(encode("VOP3P", "v_dot2_f32_f16", vdst=0, **fields), v={1: f16(2.0) | f16(3.0) << 16, 2: f16(4.0) | f16(5.0) << 16, 3: f32(1.0)})
    assert halves.v(0) == f32(24.0)
    brain = done(encode("VOP3P", "v_dot2_f32_bf16", vdst=0, **fields), v={1: 0x40404000, 2: 0x40A04080, 3: f32(1.0)})
    assert brain.v(0) == f32(24.0)


def test_lane_moves_ignore_exec() -> None:
    lanes = list(range(100, 132))
    code = [
        encode("VOP3", "v_readlane_b32", vdst=10, src0=VGPR0 + 1, src1=128 + 9),
        encode("VOP1", "v_readfirstlane_b32", vdst=11, src0=VGPR0 + 1),
        encode("VOP3", "v_writelane_b32", vdst=2, src0=10, src1=30),
    ]
    wave = done(code, v={1: lanes, 2: 0}, s={EXEC_LO: 0x00F0, 30: 33})
    assert (wave.s(10), wave.s(11)) == (109, 104)
    assert wave.lanes(2) == [0, 109] + [0] * 30
    assert done(code[1], v={1: lanes}, s={EXEC_LO: 0}).s(11) == 100


@pytest.mark.parametrize(
    "control, lane, source",
    [(0x1B, 5, 6), (0x101, 3, 4), (0x111, 4, 3), (0x121, 0, 15), (0x121, 16, 31), (0x140, 1, 14), (0x141, 9, 14), (0x153, 20, 19), (0x161, 18, 19)],
)
def test_dpp_source_lane(control: int, lane: int, source: int) -> None:
    code = encode("VOP1", "v_mov_b32", "_DPP16", vdst=0, vsrc0=1, dpp=control, row_mask=15, bank_mask=15)
    assert done(code, v={0: 777, 1: list(range(32))}).v(0, lane) == source


def test_dpp_invalid_and_inactive_sources() -> None:
    """bound_ctrl 0 leaves the lane alone, 1 delivers zero; fi reads inactive lanes all the same."""
    lanes = list(range(1, 33))

    def shifted(**fields: int) -> list[int]:
        code = encode("VOP2", "v_add_nc_u32", "_DPP16", vdst=0, vsrc0=1, vsrc1=2, dpp=0x111, **{"row_mask": 15, "bank_mask": 15} | fields)
        return done(code, v={0: 777, 1: lanes, 2: 1000}, s={EXEC_LO: 0xFFFFFFFB}).lanes(0)

    kept = shifted()
    assert (kept[0], kept[1], kept[2], kept[3], kept[16]) == (777, 1001, 777, 777, 777)
    zeroed = shifted(bc=1)
    assert (zeroed[0], zeroed[2], zeroed[3]) == (1000, 777, 1000)
    fetched = shifted(fi=1)
    assert (fetched[0], fetched[3]) == (777, 1003)
    masked = shifted(row_mask=1, bank_mask=2)
    assert [i for i, value in enumerate(masked) if value != 777] == [4, 5, 6, 7]


def test_dpp8() -> None:
    selectors = {f"lane_sel_{i}": 7 - i for i in range(8)}
    code = encode("VOP1", "v_mov_b32", "_DPP8", vdst=0, src0=233, vsrc0=1, **selectors)
    wave = done(code, v={0: 777, 1: list(range(32))}, s={EXEC_LO: 0x7FFFFFFF})
    assert wave.lanes(0)[:16] == [*range(7, -1, -1), *range(15, 7, -1)]
    assert (wave.v(0, 24), wave.v(0, 31)) == (0, 777)  # lane 31 is inactive: delivers 0, is not written


def test_permlane16_within_and_across_rows() -> None:
    lanes = list(range(32))
    fields = {"vdst": 0, "src0": VGPR0 + 1, "src1": 20, "src2": 21}
    s = {20: 0x76543210, 21: 0x0FEDCBA9}  # lane 8 reads 9, ..., lane 15 reads 0
    wave = done(encode("VOP3", "v_permlane16_b32", **fields), v={1: lanes}, s=s)
    assert wave.lanes(0) == [*range(8), *range(9, 16), 0, *range(16, 24), *range(25, 32), 16]
    wave = done(encode("VOP3", "v_permlanex16_b32", **fields), v={0: 5, 1: lanes}, s=s | {EXEC_LO: 0x0000FFFF})
    assert wave.lanes(0) == [5] * 32  # all sources are in the inactive row
    wave = done(encode("VOP3", "v_permlanex16_b32", opsel=1, **fields), v={0: 5, 1: lanes}, s=s | {EXEC_LO: 0x0000FFFF})
    assert wave.lanes(0)[:16] == [*range(16, 24), *range(25, 32), 16]


def test_swap_and_relative_moves() -> None:
    wave = done(encode("VOP1", "v_swap_b32", vdst=3, src0=VGPR0 + 4), v={3: 33, 4: 44}, s={EXEC_LO: 1})
    assert (wave.lanes(3)[:2], wave.lanes(4)[:2]) == ([44, 33], [33, 44])
    assert done(encode("VOP1", "v_movrels_b32", vdst=0, src0=VGPR0 + 1), v={5: 55}, s={125: 4}).v(0) == 55
    assert done(encode("VOP1", "v_movreld_b32", vdst=0, src0=VGPR0 + 1), v={1: 11}, s={125: 7}).v(7) == 11


def test_flushing_of_denormals_follows_mode() -> None:
    add = encode("VOP2", "v_add_f32", vdst=0, src0=VGPR0 + 1, vsrc1=2)
    move = encode("VOP1", "v_mov_b32", vdst=3, src0=VGPR0 + 1)
    values = {1: 0x80000003, 2: 0x80000001}
    assert done([add, move], v=values, mode=0x3F0).v(0) == 0x80000004
    flushed = done([add, move], v=values, mode=0x3C0)
    assert (flushed.v(0), flushed.v(3)) == (0x80000000, 0x80000003)
    outputs_only = done([add], v={1: 0x00800000, 2: 0x80000001}, mode=0x3D0)  # keeps inputs, flushes outputs
    assert outputs_only.v(0) == 0
    switched = done([encode("SOPP", "s_denorm_mode", simm16=15), add], v=values, mode=0x3C0)
    assert (switched.v(0), switched.mode) == (0x80000004, 0x3F0)


@pytest.mark.parametrize("rounding, expected", [(0, 0x3F800000), (1, 0x3F800001), (2, 0x3F800000), (3, 0x3F800000)])
def test_rounding_modes(rounding: int, expected: int) -> None:
    """1 + 2^-30 in each direction, set at run time; f64 and f16 have their own setting, which stays at nearest."""
    code = [
        encode("SOPP", "s_round_mode", simm16=rounding),
        encode("VOP2", "v_add_f32", vdst=0, src0=VGPR0 + 1, vsrc1=2),
        encode("VOP3", "v_add_f64", vdst=4, src0=VGPR0 + 6, src1=VGPR0 + 8),
    ]
    one, small = f64(1.0), f64(2.0**-60)
    wave = done(code, v={1: f32(1.0), 2: f32(2.0**-30), 6: one & ALL, 7: one >> 32, 8: small & ALL, 9: small >> 32})
    assert (f"{wave.v(0):#x}", wave.v64(4)) == (f"{expected:#x}", one)


@pytest.mark.parametrize("rounding, low, high", [(0, 0x3C00, 0x7C00), (1, 0x3C01, 0x7C00), (2, 0x3C00, 0x7BFF), (3, 0x3C00, 0x7BFF)])
def test_narrowing_follows_the_half_rounding_mode(rounding: int, low: int, high: int) -> None:
    code = [encode("VOP1", "v_cvt_f16_f32", vdst=0, src0=VGPR0 + 1), encode("VOP1", "v_cvt_f16_f32", vdst=2, src0=VGPR0 + 3)]
    wave = done(code, v={0: 0, 1: f32(1 + 2.0**-20), 2: 0, 3: f32(1e6)}, mode=0x3F0 | rounding << 2)
    assert (wave.v(0), wave.v(2)) == (low, high)


def test_nan_rules_without_ieee() -> None:
    code = encode("VOP2", "v_max_f32", vdst=0, src0=VGPR0 + 1, vsrc1=2)
    assert done(code, v={1: SNAN, 2: f32(1.0)}, mode=0x1F0).v(0) == f32(1.0)
