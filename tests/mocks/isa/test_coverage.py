"""Which instructions are executed: everything but the documented list; and that the host code for all of them stands on its own."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from drivers.amd.isa import Opcode, load
from mocks.isa import layout as L
from mocks.isa import native, program
from mocks.isa.missing import why_not_executed
from mocks.isa.translate import Unit
from tests.judges import isa_operations as ops
from tests.mocks.isa.assemble import VGPR0, encode
from tests.mocks.isa.kernels import gpu_results, host_results

END = encode("SOPP", "s_endpgm")
DEFAULT, FLUSH_ROUND_UP, OVERFLOW = 0x3F0, 0x305, 0x7F0

# What LLVM 22 emitted for the kernels of the specification's section 14 (isa_llvm_usage, gfx1100), without encoding suffixes.
EMITTED = re.findall(
    r"\S+",
    """
    buffer_gl0_inv buffer_gl1_inv ds_add_f32 ds_add_u32 ds_add_u64 ds_bpermute_b32 ds_cmpstore_rtn_b64 ds_load_2addr_b32 ds_load_b128 ds_load_b32 ds_load_b64
    ds_load_u16_d16_hi ds_max_u32 ds_store_b128 ds_store_b16 ds_store_b16_d16_hi ds_store_b32 ds_store_b64 ds_store_b8 ds_storexchg_rtn_b32 ds_swizzle_b32 flat_load_b32
    flat_store_b32 global_atomic_add_f32 global_atomic_add_u32 global_atomic_add_u64 global_atomic_cmpswap_b32 global_atomic_cmpswap_b64 global_atomic_max_u32
    global_atomic_swap_b32 global_load_b128 global_load_b32 global_load_b64 global_load_b96 global_load_d16_b16 global_load_d16_hi_b16 global_load_d16_hi_i8
    global_load_d16_hi_u8 global_load_d16_i8 global_load_d16_u8 global_load_i16 global_load_i8 global_load_u16 global_load_u8 global_store_b128 global_store_b16
    global_store_b32 global_store_b64 global_store_b8 global_store_b96 global_store_d16_hi_b16 s_add_i32 s_add_u32 s_addc_u32 s_addk_i32 s_and_b32 s_and_not1_b32
    s_and_not1_saveexec_b32 s_and_saveexec_b32 s_ashr_i32 s_barrier s_bfe_u32 s_branch s_cbranch_execnz s_cbranch_execz s_cbranch_scc1 s_cbranch_vccnz s_clause
    s_cmp_eq_u32 s_cmpk_lg_i32 s_cselect_b32 s_delay_alu s_endpgm s_load_b128 s_load_b256 s_load_b32 s_load_b64 s_lshl_b32 s_lshl_b64 s_lshr_b32 s_mov_b32 s_mov_b64
    s_mul_i32 s_nop s_or_b32 s_sendmsg s_set_inst_prefetch_distance s_waitcnt s_waitcnt_depctr s_waitcnt_vscnt s_xor_b32 scratch_load_b32 scratch_store_b32 v_add3_u32
    v_add_co_ci_u32 v_add_co_u32 v_add_f16 v_add_f32 v_add_f64 v_add_nc_i16 v_add_nc_i32 v_add_nc_u16 v_add_nc_u32 v_alignbit_b32 v_and_b16 v_and_b32 v_and_or_b32
    v_ashrrev_i16 v_ashrrev_i32 v_ashrrev_i64 v_bcnt_u32_b32 v_bfe_i32 v_bfe_u32 v_bfi_b32 v_bfrev_b32 v_ceil_f16 v_ceil_f32 v_ceil_f64 v_cls_i32 v_clz_i32_u32
    v_cmp_class_f32 v_cmp_class_f64 v_cmp_eq_f16 v_cmp_eq_f32 v_cmp_eq_f64 v_cmp_eq_u16 v_cmp_eq_u32 v_cmp_eq_u64 v_cmp_ge_f16 v_cmp_ge_f32 v_cmp_ge_f64 v_cmp_ge_u32
    v_cmp_gt_f32 v_cmp_gt_f64 v_cmp_gt_i32 v_cmp_gt_i64 v_cmp_gt_u64 v_cmp_le_i32 v_cmp_lg_f16 v_cmp_lg_f32 v_cmp_lg_f64 v_cmp_lt_f16 v_cmp_lt_f32 v_cmp_lt_f64
    v_cmp_lt_i32 v_cmp_lt_i64 v_cmp_lt_u64 v_cmp_ne_u16 v_cmp_ne_u32 v_cmp_ne_u64 v_cmp_neq_f16 v_cmp_neq_f32 v_cmp_ngt_f32 v_cmp_nlg_f64 v_cmp_nlt_f32 v_cmp_o_f16
    v_cmp_o_f32 v_cmp_o_f64 v_cmp_u_f16 v_cmp_u_f32 v_cmp_u_f64 v_cmpx_eq_u32 v_cndmask_b16 v_cndmask_b32 v_cos_f16 v_cos_f32 v_ctz_i32_b32 v_cvt_f16_f32 v_cvt_f16_i16
    v_cvt_f16_u16 v_cvt_f32_f16 v_cvt_f32_f64 v_cvt_f32_i32 v_cvt_f32_u32 v_cvt_f32_ubyte0 v_cvt_f64_f32 v_cvt_f64_i32 v_cvt_f64_u32 v_cvt_i16_f16 v_cvt_i32_f32
    v_cvt_i32_f64 v_cvt_u16_f16 v_cvt_u32_f32 v_cvt_u32_f64 v_div_fixup_f16 v_div_fixup_f32 v_div_fixup_f64 v_div_fmas_f32 v_div_fmas_f64 v_div_scale_f32 v_div_scale_f64
    v_dot4_i32_iu8 v_exp_f16 v_exp_f32 v_floor_f16 v_floor_f32 v_floor_f64 v_fma_f32 v_fma_f64 v_fma_mix_f32 v_fmaak_f32 v_fmac_f16 v_fmac_f32 v_fmamk_f32 v_fract_f32
    v_frexp_mant_f32 v_ldexp_f32 v_ldexp_f64 v_log_f16 v_log_f32 v_lshl_add_u32 v_lshl_or_b32 v_lshlrev_b16 v_lshlrev_b32 v_lshlrev_b64 v_lshrrev_b16 v_lshrrev_b32
    v_lshrrev_b64 v_mad_u16 v_mad_u64_u32 v_max3_f32 v_max3_i32 v_max_f16 v_max_f32 v_max_f64 v_max_i16 v_max_i32 v_max_u16 v_max_u32 v_mbcnt_lo_u32_b32 v_med3_f32
    v_med3_i32 v_min3_u32 v_min_f16 v_min_f32 v_min_f64 v_min_i16 v_min_i32 v_min_u16 v_min_u32 v_mov_b16 v_mov_b32 v_mul_f16 v_mul_f32 v_mul_f64 v_mul_hi_i32
    v_mul_hi_u32 v_mul_i32_i24 v_mul_lo_u16 v_mul_lo_u32 v_mul_u32_u24 v_or_b16 v_or_b32 v_perm_b32 v_pk_add_u16 v_pk_fma_f16 v_pk_max_f16 v_pk_min_u16 v_rcp_f16
    v_rcp_f32 v_rcp_f64 v_rcp_iflag_f32 v_readfirstlane_b32 v_readlane_b32 v_rndne_f16 v_rndne_f32 v_rndne_f64 v_rsq_f32 v_rsq_f64 v_sin_f16 v_sin_f32 v_sqrt_f16
    v_sqrt_f32 v_sub_co_ci_u32 v_sub_co_u32 v_sub_f16 v_sub_f32 v_sub_nc_u16 v_sub_nc_u32 v_subrev_co_ci_u32 v_subrev_nc_u32 v_trunc_f16 v_trunc_f32 v_trunc_f64
    v_wmma_bf16_16x16x16_bf16 v_wmma_f16_16x16x16_f16 v_wmma_f32_16x16x16_bf16 v_wmma_f32_16x16x16_f16 v_wmma_i32_16x16x16_iu4 v_wmma_i32_16x16x16_iu8 v_xad_u32
    v_xor_b16 v_xor_b32 v_dual_add_f32 v_dual_add_nc_u32 v_dual_and_b32 v_dual_cndmask_b32 v_dual_fmac_f32 v_dual_fmamk_f32 v_dual_lshlrev_b32 v_dual_max_f32
    v_dual_mov_b32 v_dual_sub_f32
    """,
)


def plain(fmt: str, opcode: Opcode) -> bytes:
    """The instruction with ordinary registers and no modifiers."""
    tables = load("gfx1100")
    if fmt.startswith("VOPD"):
        literal = "_LIT" if "fmaak" in opcode.mnemonic or "fmamk" in opcode.mnemonic else ""
        other = tables.by_name["VOPD.Y" if fmt == "VOPD.X" else "VOPD.X", "v_dual_mov_b32"]
        x, y = (opcode, other) if fmt == "VOPD.X" else (other, opcode)
        return encode("VOPD", x.mnemonic, literal, second=y.number, srcx0=VGPR0 + 4, srcy0=VGPR0 + 5, vdstx=2)
    literal = "_LIT" if opcode.mnemonic.startswith(("v_fmaak", "v_fmamk", "s_setreg_imm32")) else ""
    fields: dict[str, int] = {}
    for field in tables.formats[fmt + literal].fields:
        index = {"src0": 0, "src1": 1, "src2": 2}.get(field.name)
        if index is not None and opcode.src[index] is not None:
            kind = opcode.src[index]
            assert kind is not None
            fields[field.name] = VGPR0 + 32 * (index + 1) if kind.cls in ("src", "vgpr", "vgpr9") else 20
        elif field.name in ("vsrc1", "addr", "data", "data0", "data1", "vdata", "vaddr"):
            fields[field.name] = 64
        elif field.name in ("opsel_hi", "opsel_hi2"):
            fields[field.name] = field.mask
        elif (field.name == "simm16" and opcode.family in ("hwreg", "sendmsg")) or (field.name == "gds" and opcode.family == "ds_gws" and opcode.mnemonic != "ds_nop"):
            fields[field.name] = 1
    return encode(fmt, opcode.mnemonic, literal, **fields)


def every_instruction() -> Iterator[tuple[Opcode, bytes]]:
    for fmt, table in load("gfx1100").opcodes.items():
        for opcode in table.values():
            if opcode.present:
                yield opcode, plain(fmt, opcode)


def unit_of(code: bytes, mode: int, full: bool) -> tuple[Unit, str]:
    program_bytes = code + END
    unit = Unit("gfx1100", lambda va, size: program_bytes[va : va + size], 0, 256, full, False)
    unit.find_blocks(0, mode)
    return unit, unit.write("unit")


def test_everything_is_executed_but_the_documented_list() -> None:
    seen = set()
    for opcode, code in every_instruction():
        unit, _ = unit_of(code, DEFAULT, False)
        reasons = " ".join(unit.reasons.values())
        missing = "is not modelled" in reasons
        assert missing == bool(why_not_executed(opcode.mnemonic)), (opcode.format, opcode.mnemonic, reasons)
        if not missing:
            seen.add(opcode.mnemonic)
    assert len(seen) > 700
    assert not set(EMITTED) - seen


@pytest.mark.parametrize("mode", [DEFAULT, FLUSH_ROUND_UP, OVERFLOW], ids=["default mode", "flush, round up", "f16 overflow"])
@pytest.mark.parametrize("full", [False, True], ids=["any EXEC", "full EXEC"])
def test_host_code_needs_no_library(mode: int, full: bool) -> None:
    """An unresolved symbol would crash the process when it is called, so there must not be any."""
    import llvmlite.binding as llvm

    machine = native.target_machine(0)
    batch: list[bytes] = []
    undefined: set[str] = set()

    def flush() -> None:
        unit, text = unit_of(b"".join(batch), mode, full)
        assert unit.instruction_count == len(batch) + 1
        assert not unit.reasons
        image = ELFFile(io.BytesIO(machine.emit_object(llvm.parse_assembly(text))))
        undefined.update(s.name for s in image.get_section_by_name(".symtab").iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name)
        batch.clear()

    for opcode, code in every_instruction():
        control = opcode.format == "SOPP" or opcode.family in ("pc", "hwreg", "mode")
        if not why_not_executed(opcode.mnemonic) and not control and opcode.format not in ("DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF"):
            batch.append(code)
        if len(batch) == 120:
            flush()
    flush()
    assert undefined == set()


def test_hosts_without_wide_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86-64-v3 host (AVX2) gives the same results as the judge."""
    import llvmlite.binding as llvm

    if not llvm.get_default_triple().startswith("x86_64"):
        pytest.skip("not an x86-64 host")
    native.target_machine(0)
    monkeypatch.setattr(native, "_host", lambda: ("x86-64-v3", ""))
    monkeypatch.setattr(program, "_programs", {})
    for ty in ("i32", "float", "half"):
        operations = ops.integer_operations(ty)[:10] if ty[0] == "i" else ops.float_operations(ty)
        function = ops.function([ty] * 3, operations)
        inputs = ops.raw_inputs(ty, 3, seed=20)
        for (name, result, _), got, wanted in zip(operations, gpu_results(function, inputs), host_results(function, inputs), strict=True):
            x, y = (np.frombuffer(raw, dtype=ops.NUMPY[result]) for raw in (got, wanted))
            same = (x == y) | (x != x) & (y != y)
            assert same.all(), name


def test_layout_areas_do_not_overlap() -> None:
    ends = [(L.CTX_POINTER, 256), (L.CTX_STRIDE, 128), (L.CTX_VA, 256), (L.CTX_TEMP, 128), (L.CTX_BOUNCE, 512), (L.CTX_ZERO, 64), (L.CTX_DUMP, 64)]
    ends += [(L.CTX_SCALARS, 64), (L.CTX_BYTE_POINTERS, 4096), (L.CTX_SCHED, 320)]
    for (start, size), (following, _) in itertools.pairwise(ends):
        assert start + size <= following
    assert L.CTX_SCHED + 320 <= L.CTX_SIZE
