"""Single scalar instructions against values worked out by hand, with what they do to SCC."""

from __future__ import annotations

import pytest

from mocks.isa import layout as L
from tests.mocks.isa.assemble import encode
from tests.mocks.isa.single import ALL, CODE, EXEC_LO, M0, VCC, done

# In the tables below an expected SCC of None means unchanged (it starts as 1).

SOP2 = [
    ("s_add_u32", ALL, 2, 1, 1),
    ("s_add_i32", 0x7FFFFFFF, 1, 0x80000000, 1),
    ("s_add_i32", ALL, 1, 0, 0),
    ("s_sub_u32", 1, 2, ALL, 1),
    ("s_sub_i32", 0x80000000, 1, 0x7FFFFFFF, 1),
    ("s_sub_i32", 5, 0x80000000, 0x80000005, 1),
    ("s_mul_i32", ALL, 3, ALL - 2, None),
    ("s_mul_hi_u32", ALL, 2, 1, None),
    ("s_mul_hi_i32", ALL, 2, ALL, None),
    ("s_absdiff_i32", 3, 10, 7, 1),
    ("s_lshl1_add_u32", 0x80000000, 5, 5, 1),
    ("s_lshl4_add_u32", 3, 2, 50, 0),
    ("s_lshl_b32", 1, 33, 2, 1),
    ("s_lshr_b32", 1, 1, 0, 0),
    ("s_ashr_i32", 0x80000000, 4, 0xF8000000, 1),
    ("s_min_i32", ALL, 1, ALL, 1),
    ("s_min_u32", ALL, 1, 1, 0),
    ("s_max_i32", 4, 4, 4, 1),
    ("s_max_u32", 1, ALL, ALL, 0),
    ("s_and_b32", 0xF0, 0x0F, 0, 0),
    ("s_nand_b32", ALL, ALL, 0, 0),
    ("s_nor_b32", 0xF0, 0x0F, 0xFFFFFF00, 1),
    ("s_xnor_b32", 0xF0, 0xF0, ALL, 1),
    ("s_and_not1_b32", 0xFF, 0x0F, 0xF0, 1),
    ("s_or_not1_b32", 0, 0xFFFFFFF0, 0xF, 1),
    ("s_bfe_u32", 0xABCD1234, 12 << 16 | 8, 0xD12, 1),
    ("s_bfe_i32", 0x00000800, 4 << 16 | 8, 0xFFFFFFF8, 1),
    ("s_bfe_u32", 0xABCD1234, 8, 0, 0),
    ("s_bfe_u32", 0xABCD1234, 40 << 16 | 4, 0x0ABCD123, 1),
    ("s_bfm_b32", 4, 8, 0xF00, None),
    ("s_cselect_b32", 7, 9, 7, None),
    ("s_pack_ll_b32_b16", 0x11112222, 0x33334444, 0x44442222, None),
    ("s_pack_lh_b32_b16", 0x11112222, 0x33334444, 0x33332222, None),
    ("s_pack_hh_b32_b16", 0x11112222, 0x33334444, 0x33331111, None),
    ("s_pack_hl_b32_b16", 0x11112222, 0x33334444, 0x44441111, None),
]


@pytest.mark.parametrize("mnemonic, x, y, expected, scc", SOP2, ids=lambda x: x if isinstance(x, str) else None)
def test_two_operands(mnemonic: str, x: int, y: int, expected: int, scc: int | None) -> None:
    wave = done(encode("SOP2", mnemonic, sdst=10, ssrc0=20, ssrc1=30), s={20: x, 30: y}, scc=1)
    assert (f"{wave.s(10):#x}", wave.scc) == (f"{expected:#x}", 1 if scc is None else scc)


@pytest.mark.parametrize("carry, low, high, out", [(0, ALL, 1, 1), (1, 0xFFFFFFFD, 1, 0), (1, ALL, 0, 1), (1, ALL, ALL, 1)])
def test_carry_in_and_out(carry: int, low: int, high: int, out: int) -> None:
    wave = done(encode("SOP2", "s_addc_u32", sdst=10, ssrc0=20, ssrc1=30), s={20: low, 30: high}, scc=carry)
    assert (wave.s(10), wave.scc) == ((low + high + carry) & ALL, out)
    wave = done(encode("SOP2", "s_subb_u32", sdst=10, ssrc0=20, ssrc1=30), s={20: high, 30: low}, scc=carry)
    assert (wave.s(10), wave.scc) == ((high - low - carry) & ALL, int(high < low + carry))


SOP1 = [
    ("s_not_b32", 0xFFFFFFFF, 0, 0),
    ("s_brev_b32", 1, 0x80000000, None),
    ("s_ctz_i32_b32", 0x80, 7, None),
    ("s_ctz_i32_b32", 0, ALL, None),
    ("s_clz_i32_u32", 0x80, 24, None),
    ("s_cls_i32", 0xFFF00000, 12, None),
    ("s_cls_i32", ALL, ALL, None),
    ("s_sext_i32_i8", 0x80, 0xFFFFFF80, None),
    ("s_sext_i32_i16", 0x18000, 0xFFFF8000, None),
    ("s_abs_i32", ALL, 1, 1),
    ("s_bcnt0_i32_b32", ALL, 0, 0),
    ("s_bcnt1_i32_b32", 0xF0F0, 8, 1),
    ("s_quadmask_b32", 0x80010100, 1 << 7 | 1 << 4 | 1 << 2, 1),
    ("s_wqm_b32", 0x80010100, 0xF00F0F00, 1),
    ("s_bitset0_b32", 3, ALL - 8, None),
    ("s_bitset1_b32", 35, ALL, None),
]


@pytest.mark.parametrize("mnemonic, x, expected, scc", SOP1, ids=lambda x: x if isinstance(x, str) else None)
def test_one_operand(mnemonic: str, x: int, expected: int, scc: int | None) -> None:
    wave = done(encode("SOP1", mnemonic, sdst=10, ssrc0=20), s={20: x, 10: ALL}, scc=1)
    assert (f"{wave.s(10):#x}", wave.scc) == (f"{expected:#x}", 1 if scc is None else scc)


WIDE = [
    ("SOP2", "s_lshl_b64", 0x8000000000000001, 65, 2, 1),
    ("SOP2", "s_lshr_b64", 1 << 63, 63, 1, 1),
    ("SOP2", "s_ashr_i64", 1 << 63, 60, 0xFFFFFFFFFFFFFFF8, 1),
    ("SOP2", "s_bfe_u64", 0x123456789ABCDEF0, 16 << 16 | 36, 0x4567, 1),
    ("SOP2", "s_bfe_i64", 0x8000000000, 8 << 16 | 32, 0xFFFFFFFFFFFFFF80, 1),
    ("SOP1", "s_not_b64", 0xFFFFFFFFFFFFFFFF, 0, 0, 0),
    ("SOP1", "s_brev_b64", 1, 0, 1 << 63, None),
    ("SOP1", "s_mov_b64", 0x123456789, 0, 0x123456789, None),
]


@pytest.mark.parametrize("fmt, mnemonic, x, y, expected, scc", WIDE, ids=lambda x: x if isinstance(x, str) else None)
def test_wide_operands(fmt: str, mnemonic: str, x: int, y: int, expected: int, scc: int | None) -> None:
    fields = {"sdst": 10, "ssrc0": 20} | ({"ssrc1": 30} if fmt == "SOP2" else {})
    wave = done(encode(fmt, mnemonic, **fields), s={20: x & ALL, 21: x >> 32, 30: y}, scc=1)
    assert (f"{wave.s64(10):#x}", wave.scc) == (f"{expected:#x}", 1 if scc is None else scc)


def test_find_bits_in_pairs() -> None:
    s = {20: 0, 21: 0x100}
    assert done(encode("SOP1", "s_ctz_i32_b64", sdst=10, ssrc0=20), s=s).s(10) == 40
    assert done(encode("SOP1", "s_clz_i32_u64", sdst=10, ssrc0=20), s=s).s(10) == 23
    assert done(encode("SOP1", "s_bcnt1_i32_b64", sdst=10, ssrc0=20), s=s).s(10) == 1
    assert done(encode("SOP1", "s_bitreplicate_b64_b32", sdst=10, ssrc0=20), s={20: 0x80000005}).s64(10) == 3 << 62 | 0x33


COMPARES = [
    ("s_cmp_gt_i32", ALL, 0, 0), ("s_cmp_gt_u32", ALL, 0, 1), ("s_cmp_le_i32", ALL, 0, 1), ("s_cmp_lg_u32", 4, 4, 0),
    ("s_bitcmp1_b32", 8, 35, 1), ("s_bitcmp0_b32", 8, 35, 0),
]  # fmt: skip


@pytest.mark.parametrize("mnemonic, x, y, scc", COMPARES, ids=lambda x: x if isinstance(x, str) else None)
def test_compare(mnemonic: str, x: int, y: int, scc: int) -> None:
    assert done(encode("SOPC", mnemonic, ssrc0=20, ssrc1=30), s={20: x, 30: y}, scc=1 - scc).scc == scc


def test_constants_in_the_instruction() -> None:
    assert done(encode("SOPK", "s_movk_i32", sdst=10, simm16=0x8000)).s(10) == 0xFFFF8000
    wave = done(encode("SOPK", "s_addk_i32", sdst=10, simm16=0xFFFF), s={10: 0x80000000})
    assert (wave.s(10), wave.scc) == (0x7FFFFFFF, 1)
    assert done(encode("SOPK", "s_mulk_i32", sdst=10, simm16=0xFFFE), s={10: 7}).s(10) == -14 & ALL
    assert done(encode("SOPK", "s_cmpk_eq_u32", sdst=10, simm16=0xFFFF), s={10: 0xFFFF}, scc=0).scc == 1
    assert done(encode("SOPK", "s_cmpk_eq_i32", sdst=10, simm16=0xFFFF), s={10: 0xFFFF}, scc=1).scc == 0
    assert done(encode("SOPK", "s_cmovk_i32", sdst=10, simm16=4), s={10: 9}, scc=0).s(10) == 9
    assert done(encode("SOP1", "s_mov_b32", "_LIT", sdst=10, ssrc0=255, literal=0x12345678)).s(10) == 0x12345678
    assert done(encode("SOP1", "s_mov_b64", sdst=10, ssrc0=240)).s64(10) == 0x3FE0000000000000
    assert done(encode("SOP1", "s_mov_b64", sdst=10, ssrc0=208)).s64(10) == (1 << 64) - 16
    assert done(encode("SOP1", "s_mov_b64", "_LIT", sdst=10, ssrc0=255, literal=0xFFFFFFFF)).s64(10) == 0xFFFFFFFF


@pytest.mark.parametrize(
    "name, expected",
    [
        ("and", 0x0C), ("or", 0x3F), ("xor", 0x33), ("nand", ~0x0C), ("nor", ~0x3F), ("xnor", ~0x33),
        ("and_not0", 0x30), ("or_not0", ~0x0F | 0x3C), ("and_not1", 0x03), ("or_not1", 0x0F | ~0x3C),
    ],
)  # fmt: skip
def test_saveexec(name: str, expected: int) -> None:
    """Source 0x0F, EXEC 0x3C."""
    wave = done(encode("SOP1", f"s_{name}_saveexec_b32", sdst=10, ssrc0=20), s={20: 0x0F, EXEC_LO: 0x3C})
    assert (wave.s(10), wave.s(EXEC_LO), wave.scc) == (0x3C, expected & ALL, 1)


def test_wrexec_returns_the_new_mask() -> None:
    wave = done(encode("SOP1", "s_and_not1_wrexec_b32", sdst=10, ssrc0=20), s={20: 0x0F, EXEC_LO: 0x3C})
    assert (wave.s(10), wave.s(EXEC_LO)) == (3, 3)


def test_null_reads_zero_and_swallows_writes() -> None:
    code = [encode("SOP2", "s_add_u32", sdst=124, ssrc0=20, ssrc1=20), encode("SOP1", "s_mov_b32", sdst=10, ssrc0=124)]
    wave = done(code, s={20: ALL, 10: 5})
    assert (wave.s(10), wave.scc) == (0, 1)


def test_relative_moves_index_with_m0() -> None:
    assert done(encode("SOP1", "s_movrels_b32", sdst=10, ssrc0=20), s={M0: 3, 23: 77}).s(10) == 77
    assert done(encode("SOP1", "s_movreld_b32", sdst=10, ssrc0=20), s={M0: 3, 20: 88}).s(13) == 88


def test_status_operands() -> None:
    code = [encode("SOP1", "s_mov_b32", sdst=10 + k, ssrc0=operand) for k, operand in enumerate((253, 251, 252))]
    wave = done(code, s={VCC: 0, EXEC_LO: 1}, scc=1)
    assert [wave.s(10), wave.s(11), wave.s(12)] == [1, 1, 0]
    wave = done([encode("SOP1", "s_mov_b64", sdst=10, ssrc0=235), encode("SOP1", "s_mov_b64", sdst=12, ssrc0=237)])
    assert (wave.s64(10), wave.s64(12)) == (0x0001_0000_0000_0000, 0x0002_0000_0000_0000)


def test_jumps_and_calls() -> None:
    """A subroutine entered through s_swappc, left through s_setpc; s_call to the same place."""
    code = b"".join(
        [
            encode("SOP1", "s_getpc_b64", sdst=10),  # 0: s[10:11] = address of 4
            encode("SOP2", "s_add_u32", sdst=10, ssrc0=10, ssrc1=128 + 16),  # 4: address of 20
            encode("SOP1", "s_swappc_b64", sdst=12, ssrc0=10),  # 8
            encode("SOPK", "s_call_b64", sdst=12, simm16=1),  # 12: to 20
            encode("SOPP", "s_endpgm"),  # 16
            encode("SOP2", "s_add_u32", sdst=14, ssrc0=14, ssrc1=129),  # 20
            encode("SOP1", "s_setpc_b64", ssrc0=12),  # 24
        ]
    )
    wave = done(code, s={14: 100})
    assert (wave.s64(10), wave.s64(12), wave.s(14)) == (CODE + 20, CODE + 16, 102)


def test_branches_on_each_condition() -> None:
    for name, s, scc, taken in [
        ("scc0", {}, 0, True), ("scc0", {}, 1, False), ("scc1", {}, 1, True), ("vccz", {VCC: 0}, 0, True), ("vccz", {VCC: 4}, 0, False),
        ("vccnz", {VCC: 4}, 0, True), ("execz", {EXEC_LO: 0}, 0, True), ("execnz", {EXEC_LO: 2}, 0, True), ("execnz", {EXEC_LO: 0}, 0, False),
        ("execz", {}, 0, False), ("execnz", {}, 0, True),
    ]:  # fmt: skip
        code = [encode("SOPP", f"s_cbranch_{name}", simm16=1), encode("SOP1", "s_mov_b32", sdst=10, ssrc0=129)]
        assert done(code, s={10: 0} | s, scc=scc).s(10) == (0 if taken else 1), name


def test_mode_register_fields() -> None:
    write = encode("SOPK", "s_setreg_imm32_b32", "_LIT", sdst=0, simm16=1 | 4 << 6 | 1 << 11, literal=0)  # denormals of f32
    read = encode("SOPK", "s_getreg_b32", sdst=10, simm16=1 | 4 << 6 | 3 << 11)
    wave = done([write, read])
    assert (wave.s(10), wave.mode) == (0xC, 0x3C0)
    assert done([encode("SOPK", "s_setreg_b32", sdst=20, simm16=1 | 31 << 11)], s={20: 0x2F0}).mode == 0x2F0


def test_clock_is_the_callers() -> None:
    from mocks.isa.executor import Dispatch, Executor
    from mocks.isa.port import EXEC, READ, FlatMemory

    memory = FlatMemory()
    code = encode("SOP1", "s_sendmsg_rtn_b64", sdst=10, ssrc0=131) + encode("SOPP", "s_endpgm")
    memory.map(CODE, len(code), READ | EXEC, code)
    run = Executor(memory, clock=lambda: 0x1234567890).start(Dispatch(CODE, (1, 1, 1), (1, 1, 1)))
    run.run()
    assert run.register_s(0, 0, 10) | run.register_s(0, 0, 11) << 32 == 0x1234567890


def test_static_mode_covers_what_translation_depends_on() -> None:
    assert L.static_mode(0x3F0) == 0x3F0
    assert L.static_mode(0x3F0 | 1 << 23) == 0x7F0
    assert L.static_mode(0x3F0 | 1 << 12) == 0x3F0
