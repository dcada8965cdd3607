"""The executor as a mock GPU uses it: launch state, budgets, faults, traps, illegal code, translation caches, strict order."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.errors import NotModelled, NotSupported
from mocks.isa import UnknownInstruction, decode
from mocks.isa import layout as L
from mocks.isa.bench import compile_kernel
from mocks.isa.executor import DONE, FAULT, ILLEGAL, RUNNING, TRAP, Dispatch, Executor, mode_from_rsrc1, vgprs_from_rsrc1
from mocks.isa.port import EXEC, PAGE, READ, WRITE, FlatMemory
from mocks.isa.translate import Unit
from tests.mocks.isa import programs
from tests.mocks.isa.assemble import VGPR0, encode
from tests.mocks.isa.kernels import Function, Gpu
from tests.mocks.isa.single import CODE, Wave, done, execute

DATA = 0x20_0000_0000
END = encode("SOPP", "s_endpgm")
LOOP = encode("SOP2", "s_add_u32", sdst=10, ssrc0=10, ssrc1=129) + encode("SOPP", "s_branch", simm16=0xFFFE)


def machine(code: bytes, rights: int = READ | EXEC) -> FlatMemory:
    memory = FlatMemory()
    memory.map(CODE, max(len(code), 1), rights, code)
    return memory


def dispatch(**changes: object) -> Dispatch:
    values: dict[str, object] = {"entry": CODE, "group_size": (32, 1, 1), "grid": (1, 1, 1), "group_ids": (False, False, False)} | changes
    return Dispatch(**values)  # type: ignore[arg-type]


# --- launch ------------------------------------------------------------------------------------------------------------------


def test_registers_that_launch_does_not_set_hold_seeded_garbage() -> None:
    def registers(seed: int) -> tuple[list[int], list[int], bytes]:
        run = Executor(machine(END)).start(dispatch(seed=seed, user_sgprs=[7, 8], group_ids=(True, True, False), grid=(1, 1, 1), lds_bytes=256))
        assert run.run().kind == DONE
        wave = Wave(run, run.run())
        return [wave.s(code) for code in range(106)], wave.lanes(5), wave.lds(0, 256)

    scalars, lanes, lds = registers(1)
    assert scalars[:4] == [7, 8, 0, 0]  # user data, then group ids x and y
    assert 0 not in scalars[4:] and len(set(scalars[4:])) > 95
    assert len(set(lanes)) == 32
    assert len(set(lds)) > 100
    again = registers(1)
    other = registers(2)
    assert again == (scalars, lanes, lds)
    assert other[0][4:] != scalars[4:] and other[1] != lanes and other[2] != lds


def test_a_kernel_that_reads_an_unset_register_is_seen() -> None:
    """The same kernel gives different results with different seeds."""
    code = encode("GLOBAL", "global_store_b32", addr=2, data=6, saddr=0) + END
    results = []
    for seed in (1, 2):
        memory = machine(encode("VOP2", "v_lshlrev_b32", vdst=2, src0=130, vsrc1=0) + code)
        memory.map(DATA, PAGE)
        assert Executor(memory).start(dispatch(seed=seed, user_sgprs=[DATA & 0xFFFFFFFF, DATA >> 32])).run().kind == DONE
        results.append(memory.read(DATA, 128))
    assert results[0] != results[1]


def test_partial_last_wave_has_fewer_lanes() -> None:
    code = encode("GLOBAL", "global_atomic_add_u32", addr=2, data=1, saddr=0)
    zero, one = encode("VOP1", "v_mov_b32", vdst=2, src0=128), encode("VOP1", "v_mov_b32", vdst=1, src0=129)
    memory = machine(zero + one + code + END)
    memory.map(DATA, PAGE)
    assert Executor(memory).start(dispatch(group_size=(45, 1, 1), grid=(3, 1, 1), user_sgprs=[DATA & 0xFFFFFFFF, DATA >> 32])).run().kind == DONE
    assert memory.read(DATA, 4) == struct.pack("<I", 135)


def test_launch_words_of_the_descriptor() -> None:
    assert mode_from_rsrc1(0xE0AF0000) == 0x3F0
    assert mode_from_rsrc1(1 << 12 | 2 << 14 | 1 << 26) == 1 | 2 << 2 | 1 << 23
    assert [vgprs_from_rsrc1(code) for code in (0, 3, 31, 63)] == [8, 32, 256, 256]


def test_what_cannot_be_run_is_refused_at_start() -> None:
    executor = Executor(machine(END))
    with pytest.raises(NotSupported, match="wave64"):
        executor.start(dispatch(wave32=False))
    with pytest.raises(NotModelled, match="kernel entry"):
        executor.start(dispatch(entry=CODE + 4))
    with pytest.raises(NotModelled, match="1025 work-items"):
        executor.start(dispatch(group_size=(1025, 1, 1)))
    with pytest.raises(NotModelled, match="scratch"):
        executor.start(dispatch(group_size=(64, 1, 1), scratch_wave_bytes=1024, scratch_waves=1))


# --- time slices -----------------------------------------------------------------------------------------------------------------


def test_an_endless_loop_uses_its_budget_and_can_be_looked_at() -> None:
    run = Executor(machine(LOOP)).start(dispatch(group_size=(64, 1, 1), user_sgprs=[0] * 11))
    assert run.step(10_000).kind == RUNNING
    assert 10_000 <= run.instructions < 10_100
    reports = run.waves_state()
    assert [(r.group, r.wave, r.status, r.exec_mask) for r in reports] == [((0, 0, 0), 0, "ready", 0xFFFFFFFF), ((0, 0, 0), 1, "ready", 0xFFFFFFFF)]
    assert reports[0].pc in (CODE, CODE + 4)
    assert reports[0].instruction in ("s_add_u32 s10, s10, 1", "s_branch 65534")
    assert run.step(10_000).kind == RUNNING
    assert 20_000 <= run.instructions < 20_200


def test_instructions_are_counted_exactly() -> None:
    code = encode("SOPP", "s_nop") * 5 + encode("SOPP", "s_branch", simm16=1) + encode("SOPP", "s_nop") + END
    run = Executor(machine(code)).start(dispatch(group_size=(96, 1, 1), grid=(4, 1, 1)))
    assert run.run().kind == DONE
    assert run.instructions == 7 * 3 * 4
    assert run.groups_done == 4


def test_waves_that_wait_for_another_group_let_it_run() -> None:
    """Each group spins until the next one has written its flag; the last one writes first."""
    body = [
        encode("SMEM", "s_load_b32", sdata=20, sbase=0, soffset=10),  # my flag
        encode("SOPC", "s_cmp_eq_u32", ssrc0=20, ssrc1=128),
        encode("SOPP", "s_cbranch_scc1", simm16=0x10000 - 4),
        encode("VOP1", "v_mov_b32", vdst=1, src0=129),
        encode("VOP1", "v_mov_b32", vdst=2, src0=10),
        encode("GLOBAL", "global_store_b32", addr=2, data=1, saddr=0, offset=-4 & 0x1FFF),  # the flag of the group before me
        END,
    ]
    head = [encode("SOP2", "s_lshl_b32", sdst=10, ssrc0=2, ssrc1=130), encode("SOP2", "s_add_u32", sdst=10, ssrc0=10, ssrc1=132)]
    memory = machine(b"".join(head + body))
    memory.map(DATA, PAGE, READ | WRITE, struct.pack("<5I", 0, 0, 0, 0, 1))
    run = Executor(memory).start(dispatch(group_size=(32, 1, 1), grid=(4, 1, 1), group_ids=(True, False, False), user_sgprs=[DATA & 0xFFFFFFFF, DATA >> 32]))
    assert run.run(50_000_000).kind == DONE
    assert memory.read(DATA, 20) == struct.pack("<5I", 1, 1, 1, 1, 1)


def test_ended_waves_do_not_hold_up_a_barrier() -> None:
    """Wave 0 ends at once; the other waves still pass their barrier."""
    code = [
        encode("VOP1", "v_readfirstlane_b32", vdst=20, src0=VGPR0),
        encode("SOPC", "s_cmp_eq_u32", ssrc0=20, ssrc1=128),
        encode("SOPP", "s_cbranch_scc1", simm16=1),
        encode("SOPP", "s_barrier"),
        END,
    ]
    run = Executor(machine(b"".join(code))).start(dispatch(group_size=(96, 1, 1)))
    assert run.run(10_000).kind == DONE


# --- stops -----------------------------------------------------------------------------------------------------------------------


def test_code_must_be_executable_and_mapped() -> None:
    state = Executor(machine(END, READ)).start(dispatch()).run()
    assert (state.kind, state.va, state.access, state.pc) == (FAULT, CODE, EXEC, CODE)
    nops = encode("SOPP", "s_nop") * (PAGE // 4)
    run = Executor(machine(nops)).start(dispatch())
    state = run.run()
    assert (state.kind, state.va, state.access, state.pc) == (FAULT, CODE + PAGE, EXEC, CODE + PAGE)
    assert run.instructions == PAGE // 4
    assert run.step(100) == state


def test_an_unknown_instruction_is_only_an_error_when_it_is_reached() -> None:
    bad = struct.pack("<2I", 0xCC7F0000, 0x12345678)
    skip = encode("SOPP", "s_cbranch_scc0", simm16=2)
    assert done([skip, bad], scc=0).state.kind == DONE
    wave = execute([encode("SOPP", "s_nop"), bad])
    assert (wave.state.kind, wave.state.pc, wave.state.words) == (ILLEGAL, CODE + 4, (0xCC7F0000, 0x12345678))
    assert "unknown instruction" in wave.state.reason


def test_running_past_the_end_is_illegal() -> None:
    wave = execute(encode("SOPP", "s_code_end"), end=False)
    assert (wave.state.kind, wave.state.pc) == (ILLEGAL, CODE)
    assert "past the end" in wave.state.reason


def test_registers_beyond_the_allocation_are_illegal() -> None:
    """What a wrong register count in the launch words leads to."""
    wave = execute([encode("VOP1", "v_mov_b32", vdst=7, src0=129), encode("VOP1", "v_mov_b32", vdst=8, src0=129)], vgprs=8)
    assert (wave.state.kind, wave.state.pc) == (ILLEGAL, CODE + 4)
    assert "v8 with 8 VGPRs" in wave.state.reason
    assert wave.v(7) == 1


@pytest.mark.parametrize(
    "code",
    [
        encode("SMEM", "s_load_b512", sdata=120, sbase=0),
        encode("SOP1", "s_mov_b64", sdst=127, ssrc0=128),
        encode("SOP1", "s_mov_b64", sdst=10, ssrc0=127),
        encode("GLOBAL", "global_load_b128", vdst=253, addr=2),
        encode("DS", "ds_cmpstore_b64", addr=1, data0=2, data1=255),
    ],
)
def test_register_tuples_beyond_the_last_register_are_illegal(code: bytes) -> None:
    """They would otherwise reach the executor's own data behind the registers."""
    wave = execute([encode("SOPP", "s_nop"), code])
    assert (wave.state.kind, wave.state.pc) == (ILLEGAL, CODE + 4)


RANDOM_HEADS = [
    0xBE800000, 0xBF000000, 0xBF800000, 0xB0000000, 0x80000000, 0x7E000000, 0x7C000000, 0x00000000, 0xD4000000, 0xCC000000, 0xC8000000, 0xF4000000,
    0xD8000000, 0xDC000000, 0xE0000000,
]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(RANDOM_HEADS), st.binary(min_size=20, max_size=20), st.sampled_from([0x3F0, 0x300, 0x305, 0x7FF]), st.booleans())
def test_any_bytes_are_translated_or_refused(head: int, data: bytes, mode: int, full: bool) -> None:
    """Nothing else than "unknown instruction" may come out of decoding, printing and translating."""
    code = struct.pack("<I", head | struct.unpack("<I", data[:4])[0] & 0x007FFFFF) + data[4:]
    try:
        instruction = decode(code)
    except UnknownInstruction as unknown:
        assert unknown.words
        return
    assert instruction.text and 4 <= instruction.size <= 20
    program = code[: instruction.size] + END
    unit = Unit("gfx1100", lambda va, size: program[va : va + size], 0, 256, full, False)
    unit.find_blocks(0, mode)
    llvm.parse_assembly(unit.write("unit")).verify()


def test_an_instruction_without_model_is_named() -> None:
    with pytest.raises(NotModelled, match="image_load") as caught:
        execute(encode("MIMG", "image_load", dmask=1, dim=1))
    assert caught.value.means == "graphics"


def test_traps_and_halts() -> None:
    wave = execute([encode("SOPP", "s_trap", simm16=3), encode("SOPP", "s_trap", simm16=2)])
    assert (wave.state.kind, wave.state.trap, wave.state.pc) == (TRAP, 2, CODE + 4)
    assert [r.status for r in wave.run.waves_state()] == ["halted"]
    assert execute(encode("SOPP", "s_sethalt", simm16=1)).state.kind == TRAP


def test_message_reaches_the_host() -> None:
    payloads: list[int] = []
    code = encode("SOP1", "s_mov_b32", "_LIT", sdst=125, ssrc0=255, literal=0xAB123456) + encode("SOPP", "s_sendmsg", simm16=1) + END
    run = Executor(machine(code), interrupt=payloads.append).start(dispatch())
    assert run.run().kind == DONE
    assert payloads == [0x123456]


def test_an_error_inside_the_port_comes_out_of_step() -> None:
    class Broken(FlatMemory):
        def translate(self, va: int, access: int) -> tuple[int, int]:
            if va >= DATA:
                raise NotModelled("this page")
            return super().translate(va, access)

    memory = Broken()
    code = encode("SMEM", "s_load_b32", sdata=20, sbase=0) + END
    memory.map(CODE, len(code), READ | EXEC, code)
    with pytest.raises(NotModelled, match="this page"):
        Executor(memory).start(dispatch(user_sgprs=[DATA & 0xFFFFFFFF, DATA >> 32])).run()


# --- translations -----------------------------------------------------------------------------------------------------------------


def test_address_translations_are_cached_until_the_generation_changes() -> None:
    memory = machine(encode("SMEM", "s_load_b32", sdata=20, sbase=0) + encode("SOPP", "s_branch", simm16=0xFFFD))
    first = memory.map(DATA, PAGE, READ, struct.pack("<I", 1))
    run = Executor(memory).start(dispatch(user_sgprs=[DATA & 0xFFFFFFFF, DATA >> 32]))
    run.step(1000)
    before = memory.translations
    run.step(1000)
    assert memory.translations - before <= 1  # the code page only
    memory.unmap(first)
    memory.map(DATA, PAGE, READ, struct.pack("<I", 2))
    run.step(1000)
    assert run.register_s(0, 0, 20) == 2
    memory.generation -= 1  # a driver that forgot to invalidate: the stale page stays in use
    memory.unmap(memory.regions[-1])
    memory.generation -= 1
    assert run.step(1000).kind in (RUNNING, FAULT)


def test_buffers_at_round_addresses_do_not_evict_each_other() -> None:
    """Twelve outputs, each 256 MiB from the next: every mapping is asked for a few times, not once per wave."""
    operations = [(f"f{k}", "i32", f"  %r = add i32 %a, {k}") for k in range(12)]
    function = Function(["i32"], operations)
    kernel = compile_kernel(function.gpu_ir())
    gpu = Gpu()
    outputs = [gpu.buffer(1 << 18) for _ in operations]
    pointers = [*outputs, gpu.buffer(np.arange(1 << 16, dtype=np.int32).tobytes())]
    assert gpu.start(kernel, 256, struct.pack("<13Q", *pointers)).run().kind == DONE
    assert gpu.executor.tlb.misses < 60
    assert [struct.unpack("<I", gpu.memory.read(out + 4000, 4))[0] for out in outputs] == [1000 + k for k in range(12)]


def test_programs_are_found_again_by_their_bytes() -> None:
    code = encode("SOP1", "s_mov_b32", "_LIT", sdst=20, ssrc0=255, literal=0xC0DE0001) + END
    first = Executor(machine(code)).start(dispatch())
    first.run()
    second = Executor(machine(code)).start(dispatch())
    second.run()
    assert second.program is first.program
    assert first.program is not None and first.program.version == 1
    changed = code[:4] + struct.pack("<I", 0xC0DE0002) + code[8:]
    third = Executor(machine(changed)).start(dispatch())
    third.run()
    assert third.program is not first.program
    assert (second.register_s(0, 0, 20), third.register_s(0, 0, 20)) == (0xC0DE0001, 0xC0DE0002)


def test_code_that_moves_still_runs() -> None:
    """Translations do not depend on where the code lies."""
    code = encode("SOP1", "s_getpc_b64", sdst=20) + END
    for base in (CODE, CODE + 0x12300):
        memory = FlatMemory()
        memory.map(base & -PAGE, 2 * PAGE, READ | EXEC, bytes(base & (PAGE - 1)) + code)
        run = Executor(memory).start(dispatch(entry=base))
        assert run.run().kind == DONE
        assert run.register_s(0, 0, 20) | run.register_s(0, 0, 21) << 32 == base + 4


def test_code_changed_between_steps_is_translated_again() -> None:
    memory = machine(LOOP)
    run = Executor(memory).start(dispatch(user_sgprs=[0] * 11))
    assert run.step(100).kind == RUNNING
    memory.write(CODE, END + END)
    assert run.step(100).kind == DONE


# --- strict mode --------------------------------------------------------------------------------------------------------------------

# Two waves add 1 to a word in LDS a hundred times without an atomic: with switches between instructions updates get lost.
RACE = [
    encode("VOP1", "v_mov_b32", vdst=1, src0=128),
    encode("SOP1", "s_mov_b32", sdst=20, ssrc0=128),
    encode("DS", "ds_load_b32", vdst=2, addr=1),
    encode("VOP2", "v_add_nc_u32", vdst=2, src0=129, vsrc1=2),
    encode("DS", "ds_store_b32", addr=1, data0=2),
    encode("SOP2", "s_add_u32", sdst=20, ssrc0=20, ssrc1=129),
    encode("SOPC", "s_cmp_lt_u32", ssrc0=20, ssrc1=128 + 64),
    encode("SOPP", "s_cbranch_scc1", simm16=0x10000 - 8),
    END,
]


def race(strict: bool, seed: int) -> int:
    memory = machine(b"".join(RACE))
    run = Executor(memory, strict=strict).start(dispatch(group_size=(64, 1, 1), lds_bytes=64, seed=seed))
    run.native.launch(run.ctx, 0, 0)
    ctypes.c_uint64.from_address(run.ctx + L.SCHED_NEXT_GROUP).value = 1
    run._strict_order = []  # the one group is in its slot already, so that LDS can be set before it runs
    wave = Wave(run, run.step(0))
    ctypes.memset(ctypes.c_uint64.from_address(run.memory.waves + L.WAVE_LDS).value, 0, 64)
    assert run.run().kind == DONE
    return struct.unpack("<I", wave.lds(0, 4))[0]


def test_strict_mode_switches_waves_between_instructions_in_a_seeded_order() -> None:
    assert race(False, 1) == 128
    results = [race(True, seed) for seed in (1, 2, 3)]
    assert all(64 <= result < 128 for result in results)
    assert len(set(results)) > 1
    assert results == [race(True, seed) for seed in (1, 2, 3)]


def test_strict_mode_finds_a_missing_barrier() -> None:
    """The tree reduction with its barriers taken out: right only as long as waves run one after another by luck."""
    data = np.arange(256, dtype=np.float32)
    kernel = compile_kernel(programs.program(programs.REDUCE))
    barrier = encode("SOPP", "s_barrier")
    assert kernel.code.count(barrier) >= 1
    broken = replace(kernel, code=kernel.code.replace(barrier, encode("SOPP", "s_nop")))
    wrong = 0
    for seed in range(4):
        gpu = Gpu(strict=True)
        out = gpu.buffer(4)
        assert gpu.start(broken, 1, struct.pack("<2Q", out, gpu.buffer(data.tobytes())), seed=seed).run().kind == DONE
        wrong += struct.unpack("<f", gpu.memory.read(out, 4))[0] != data.sum()
    assert wrong >= 2


def test_strict_mode_interleaves_groups() -> None:
    """Every group stores its number to the same word; the last one to do so is not always the same."""
    code = [encode("VOP1", "v_mov_b32", vdst=1, src0=2), encode("VOP1", "v_mov_b32", vdst=2, src0=128), encode("GLOBAL", "global_store_b32", addr=2, data=1, saddr=0), END]
    last = set()
    for seed in range(8):
        memory = machine(b"".join(code))
        memory.map(DATA, PAGE)
        run = Executor(memory, strict=True).start(
            dispatch(grid=(6, 1, 1), group_ids=(True, False, False), user_sgprs=[DATA & 0xFFFFFFFF, DATA >> 32], seed=seed)
        )
        assert run.run().kind == DONE
        last.add(struct.unpack("<I", memory.read(DATA, 4))[0])
    assert len(last) > 2
