"""One wave with registers of the test's choice: executes a few instructions and shows every register afterwards."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mocks.isa import layout as L
from mocks.isa.executor import DONE, Dispatch, Executor, Run, RunState
from mocks.isa.port import EXEC, READ, FlatMemory
from tests.mocks.isa.assemble import encode

CODE = 0x10_0000_0000
END = encode("SOPP", "s_endpgm")
VCC, M0, EXEC_LO = 106, 125, 126
ALL = 0xFFFFFFFF


def f32(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def f16(value: float) -> int:
    return int(struct.unpack("<H", struct.pack("<e", value))[0])


def f64(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


@dataclass
class Wave:
    """The wave after it ran."""

    run: Run
    state: RunState

    def s(self, code: int) -> int:
        return self.run.register_s(0, 0, code)

    def s64(self, code: int) -> int:
        return self.s(code) | self.s(code + 1) << 32

    def lanes(self, number: int) -> list[int]:
        """All 32 lanes of a VGPR."""
        return list((ctypes.c_uint32 * 32).from_address(self.run.memory.waves + L.WAVE_VGPR + number * L.VGPR_ROW))

    def v(self, number: int, lane: int = 0) -> int:
        return self.lanes(number)[lane]

    def v64(self, number: int, lane: int = 0) -> int:
        return self.v(number, lane) | self.v(number + 1, lane) << 32

    @property
    def scc(self) -> int:
        return int(ctypes.c_uint32.from_address(self.run.memory.waves + L.WAVE_SCC).value)

    @property
    def mode(self) -> int:
        return int(ctypes.c_uint32.from_address(self.run.memory.waves + L.WAVE_MODE).value)

    def lds(self, offset: int, size: int) -> bytes:
        return ctypes.string_at(ctypes.c_uint64.from_address(self.run.memory.waves + L.WAVE_LDS).value + offset, size)


def execute(
    code: bytes | Sequence[bytes],
    v: dict[int, int | Sequence[int]] | None = None,
    s: dict[int, int] | None = None,
    scc: int = 0,
    lds: bytes = b"",
    memory: FlatMemory | None = None,
    end: bool = True,
    **dispatch: int,
) -> Wave:
    """Runs the instructions and s_endpgm. v: VGPRs, one value for all lanes or one per lane; s: SGPRs by operand code (EXEC is all
    ones unless given)."""
    program = (code if isinstance(code, bytes) else b"".join(code)) + (END if end else b"")
    memory = memory or FlatMemory()
    for region in [r for r in memory.regions if r.start == CODE]:
        memory.unmap(region)
    memory.map(CODE, len(program), READ | EXEC, program)
    options: dict[str, int] = {"lds_bytes": max(len(lds), 64)} | dispatch
    run = Executor(memory).start(Dispatch(CODE, (32, 1, 1), (1, 1, 1), group_ids=(False, False, False), **options))  # type: ignore[arg-type]
    run.native.launch(run.ctx, 0, 0)
    ctypes.c_uint64.from_address(run.ctx + L.SCHED_NEXT_GROUP).value = 1
    wave = run.memory.waves
    for code_number, value in (s or {}).items():
        ctypes.c_uint32.from_address(wave + L.WAVE_SGPR + 4 * code_number).value = value & ALL
    for number, values in (v or {}).items():
        lanes = [values] * 32 if isinstance(values, int) else list(values)
        (ctypes.c_uint32 * 32).from_address(wave + L.WAVE_VGPR + number * L.VGPR_ROW)[:] = [x & ALL for x in lanes]
    ctypes.c_uint32.from_address(wave + L.WAVE_SCC).value = scc
    if lds:
        ctypes.memmove(ctypes.c_uint64.from_address(wave + L.WAVE_LDS).value, lds, len(lds))
    return Wave(run, run.run(1_000_000))


def done(*args: object, **kwargs: object) -> Wave:
    """`execute`, and the wave must have ended."""
    wave = execute(*args, **kwargs)  # type: ignore[arg-type]
    assert wave.state.kind == DONE, wave.state
    return wave
