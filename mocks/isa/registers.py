"""Registers of the wave as translated code sees them: values live in SSA form within a block and in the wave's memory between blocks.

Writes are kept back until `flush`, which runs before anything that may leave the block, so the wave's memory is exact whenever
control returns to Python.
"""

from __future__ import annotations

from mocks.isa import layout as L
from mocks.isa.instruction import EXEC_LO, NULL
from mocks.isa.ir import LANES, Builder, Value

# How many VGPR values stay in SSA form; more would only be spilled to the host's stack.
KEPT_VGPRS = 14

INTERLEAVE = [lane + half * LANES for lane in range(LANES) for half in (0, 1)]


SGPR_CODES = 128  # operand codes of scalar registers


class RegisterOutOfRange(Exception):
    """The instruction names a register that the wave was not given."""


def check_scalars(code: int, count: int = 1) -> None:
    if code + count > SGPR_CODES:
        raise RegisterOutOfRange(f"scalar register tuple of {count} dwords from operand code {code}")


class Registers:
    def __init__(self, b: Builder, wave: Value, vgprs: int, full: bool) -> None:
        self.b = b
        self.wave = wave
        self.vgprs = vgprs
        self.full = full
        self.reset()

    def reset(self) -> None:
        """Forgets everything: the start of a block."""
        self.v: dict[int, Value] = {}
        self.v_dirty: set[int] = set()
        self.pairs: dict[int, Value] = {}
        self.s: dict[int, Value] = {}
        self.s_dirty: set[int] = set()
        self.masks: dict[int, Value] = {}
        self.splats: dict[str, Value] = {}
        self._scc: Value | None = None
        self.scc_dirty = False

    # -- vector ----------------------------------------------------------------------------------------------------------

    def row(self, number: int) -> Value:
        """Pointer to a VGPR's memory."""
        self.check(number)
        return self.wave.at(L.WAVE_VGPR + number * L.VGPR_ROW)

    def check(self, number: int, count: int = 1) -> None:
        if number + count > self.vgprs:
            raise RegisterOutOfRange(f"v{number + count - 1} with {self.vgprs} VGPRs allocated")

    def read_v(self, number: int) -> Value:
        self.check(number)
        value = self.v.pop(number, None)
        if value is None:
            value = self.row(number).load("i32", LANES, 64)
        self.v[number] = value  # most recently used last
        if len(self.v) > KEPT_VGPRS:
            self._evict()
        return value

    def _evict(self) -> None:
        oldest = next(iter(self.v))
        if oldest in self.v_dirty:
            self.row(oldest).store(self.v[oldest], 64)
            self.v_dirty.discard(oldest)
        del self.v[oldest]

    def write_v(self, number: int, value: Value, mask: Value | None = None) -> None:
        """Active lanes get the value; `mask` (i1 lanes) narrows them further."""
        self.check(number)
        value = self.b.splat(value.as_int())
        lanes = self.write_mask(mask)
        if lanes is not None:
            value = lanes.select(value, self.read_v(number))
        self.set_v(number, value)

    def write_mask(self, mask: Value | None) -> Value | None:
        if self.full:
            return mask
        return self.exec_mask() if mask is None else mask & self.exec_mask()

    def set_v(self, number: int, value: Value) -> None:
        """All lanes, EXEC or not."""
        self.check(number)
        self.v.pop(number, None)
        self.v[number] = value
        self.v_dirty.add(number)
        self.pairs.pop(number, None)
        self.pairs.pop(number - 1, None)
        if len(self.v) > KEPT_VGPRS:
            self._evict()

    def read_pair(self, number: int) -> Value:
        """v[n:n+1] as i64 lanes."""
        self.check(number, 2)
        if number not in self.pairs:
            words = self.read_v(number).permute(INTERLEAVE, self.read_v(number + 1))
            self.pairs[number] = self.b.emit(f"bitcast {words.type} {words.ref} to <{LANES} x i64>", "i64", LANES)
        return self.pairs[number]

    def write_pair(self, number: int, value: Value, mask: Value | None = None) -> None:
        self.check(number, 2)
        value = self.b.splat(value.as_int())
        lanes = self.write_mask(mask)
        if lanes is not None:
            value = lanes.select(value, self.read_pair(number))
        words = self.b.emit(f"bitcast <{LANES} x i64> {value.ref} to <{2 * LANES} x i32>", "i32", 2 * LANES)
        self.set_v(number, words.permute(list(range(0, 2 * LANES, 2))))
        self.set_v(number + 1, words.permute(list(range(1, 2 * LANES, 2))))
        self.pairs[number] = value

    # -- scalar ----------------------------------------------------------------------------------------------------------

    def read_s(self, code: int) -> Value:
        if code == NULL:
            return self.b.i32(0)
        check_scalars(code)
        if code == EXEC_LO and self.full:
            return self.b.i32(-1)
        if code not in self.s:
            self.s[code] = self.wave.at(L.WAVE_SGPR + 4 * code).load("i32")
        return self.s[code]

    def write_s(self, code: int, value: Value) -> None:
        if code == NULL:
            return
        check_scalars(code)
        self.s[code] = value.as_int()
        self.s_dirty.add(code)
        self.masks.pop(code, None)

    def read_s64(self, code: int) -> Value:
        low, high = self.read_s(code).zext("i64"), self.read_s(code if code == NULL else code + 1).zext("i64")
        return low | high << 32

    def write_s64(self, code: int, value: Value) -> None:
        if code == NULL:
            return
        value = value.as_int()
        self.write_s(code, value.trunc("i32"))
        self.write_s(code + 1, value.lshr(32).trunc("i32"))

    def read_mask(self, code: int) -> Value:
        """An SGPR as one bit per lane."""
        if code not in self.masks:
            self.masks[code] = self.read_s(code).mask()
        return self.masks[code]

    def write_mask_s(self, code: int, lanes: Value) -> None:
        """One bit per lane to an SGPR; inactive lanes give 0."""
        lanes = self.b.splat(lanes)
        if not self.full:
            lanes = lanes & self.exec_mask()
        self.write_s(code, lanes.ballot())
        if code != NULL:
            self.masks[code] = lanes

    def exec_mask(self) -> Value:
        return self.read_mask(EXEC_LO)

    def splat(self, value: Value) -> Value:
        """A scalar in all lanes, made once per block."""
        if value.n == LANES:
            return value
        key = f"{value.ty} {value.ref}"
        if key not in self.splats:
            self.splats[key] = self.b.splat(value)
        return self.splats[key]

    def read_scc(self) -> Value:
        if self._scc is None:
            self._scc = self.wave.at(L.WAVE_SCC).load("i32").ne(0)
        return self._scc

    def write_scc(self, value: Value) -> None:
        self._scc = value
        self.scc_dirty = True

    # -- memory ----------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Brings the wave's memory up to date."""
        for number in sorted(self.v_dirty):
            self.row(number).store(self.v[number], 64)
        self.v_dirty.clear()
        for code in sorted(self.s_dirty):
            self.wave.at(L.WAVE_SGPR + 4 * code).store(self.s[code])
        self.s_dirty.clear()
        if self.scc_dirty and self._scc is not None:
            self.wave.at(L.WAVE_SCC).store(self._scc.zext("i32"))
        self.scc_dirty = False

    def forget_vectors(self) -> None:
        """After a call: lane values would have to survive on the stack, so they are read again from the wave's memory."""
        assert not self.v_dirty
        self.v.clear()
        self.pairs.clear()
        self.masks.clear()
        self.splats.clear()

    def forget_scalars(self, first: int, count: int) -> None:
        """SGPRs that native code wrote."""
        for code in range(first, first + count):
            self.s.pop(code, None)
            self.masks.pop(code, None)
