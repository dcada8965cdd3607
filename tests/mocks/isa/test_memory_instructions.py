"""Single memory instructions: LDS, global, flat, scratch, buffer, scalar; page borders, overlaps, sub-dword forms, atomics."""

from __future__ import annotations

import struct

import pytest

from mocks.isa.executor import FAULT
from mocks.isa.port import PAGE, READ, WRITE, FlatMemory
from tests.mocks.isa.assemble import encode
from tests.mocks.isa.single import ALL, EXEC_LO, M0, done, execute, f32

DATA = 0x20_0000_0000
LANES = list(range(32))


def memory(content: bytes = b"", size: int = 2 * PAGE, rights: int = READ | WRITE) -> FlatMemory:
    port = FlatMemory()
    port.map(DATA, size, rights, content)
    return port


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def at(addresses: list[int] | int, low: int = 2) -> dict[int, list[int]]:
    """A 64-bit address per lane in v[low:low+1]."""
    every = [addresses] * 32 if isinstance(addresses, int) else addresses
    return {low: [a & ALL for a in every], low + 1: [a >> 32 for a in every]}


def g(mnemonic: str, **fields: int) -> bytes:
    return encode("GLOBAL", mnemonic, **({"addr": 2} | fields))


# --- global ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mnemonic, expected",
    [
        ("global_load_u8", 0x84), ("global_load_i8", 0xFFFFFF84), ("global_load_u16", 0x8384), ("global_load_i16", 0xFFFF8384),
        ("global_load_b32", 0x81828384), ("global_load_d16_u8", 0xAAAA0084), ("global_load_d16_i8", 0xAAAAFF84),
        ("global_load_d16_b16", 0xAAAA8384), ("global_load_d16_hi_u8", 0x0084BBBB), ("global_load_d16_hi_i8", 0xFF84BBBB),
        ("global_load_d16_hi_b16", 0x8384BBBB),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [4, 64], ids=["neighbours", "scattered"])
def test_load_forms(mnemonic: str, expected: int, step: int) -> None:
    content = (words(0x81828384) + bytes(step - 4)) * 32
    wave = done(g(mnemonic, vdst=0), v={0: 0xAAAABBBB} | at([DATA + step * lane for lane in LANES]), memory=memory(content), s={EXEC_LO: ALL ^ 2})
    assert [hex(x) for x in wave.lanes(0)] == [hex(0xAAAABBBB if lane == 1 else expected) for lane in LANES]


@pytest.mark.parametrize("mnemonic, count", [("global_load_b64", 2), ("global_load_b96", 3), ("global_load_b128", 4)])
def test_wide_loads_fill_consecutive_registers_even_over_their_own_address(mnemonic: str, count: int) -> None:
    content = words(*range(1000, 1000 + 4 * 32))
    wave = done(g(mnemonic, vdst=2), v=at([DATA + 16 * lane for lane in LANES]), memory=memory(content))
    for k in range(count):
        assert wave.lanes(2 + k) == [1000 + 4 * lane + k for lane in LANES]


@pytest.mark.parametrize(
    "mnemonic, size, value",
    [
        ("global_store_b8", 1, 0x44), ("global_store_b16", 2, 0x3344), ("global_store_b32", 4, 0x11223344), ("global_store_d16_hi_b8", 1, 0x22),
        ("global_store_d16_hi_b16", 2, 0x1122),
    ],
)  # fmt: skip
def test_store_forms(mnemonic: str, size: int, value: int) -> None:
    port = memory(b"\xee" * 512)
    done(g(mnemonic, data=4), v={4: 0x11223344} | at([DATA + size * lane for lane in LANES]), memory=port, s={EXEC_LO: 0xFFFF00FF})
    stored = value.to_bytes(size, "little")
    expected = b"".join(b"\xee" * size if 8 <= lane < 16 else stored for lane in LANES)
    assert port.read(DATA, 32 * size) == expected
    assert port.read(DATA + 32 * size, 1) == b"\xee"


def test_scalar_base_with_vector_offset() -> None:
    code = encode("GLOBAL", "global_load_b32", vdst=0, addr=2, saddr=20, offset=-8 & 0x1FFF)
    wave = done(code, v={2: [8 + 4 * (31 - lane) for lane in LANES]}, s={20: DATA & ALL, 21: DATA >> 32}, memory=memory(words(*range(32))))
    assert wave.lanes(0) == LANES[::-1]


def test_accesses_may_straddle_pages() -> None:
    """The two pages lie far apart on the host."""
    port = FlatMemory()
    port.map(DATA, PAGE, READ | WRITE, bytes(PAGE - 6) + bytes(range(6)))
    port.map(DATA + PAGE, PAGE, READ | WRITE, bytes(range(6, 100)))
    wave = done(g("global_load_b128", vdst=0), v=at(DATA + PAGE - 6), memory=port, s={EXEC_LO: 0x11})
    assert [hex(wave.v(k, 4)) for k in range(4)] == ["0x3020100", "0x7060504", "0xb0a0908", "0xf0e0d0c"]


def test_stores_may_straddle_pages() -> None:
    port = FlatMemory()
    first, second = port.map(DATA, PAGE, READ | WRITE, b"\xee" * PAGE), port.map(DATA + PAGE, PAGE, READ | WRITE, b"\xee" * PAGE)
    assert first.host + PAGE != second.host
    done(g("global_store_b64", data=4), v={4: 0xA3A2A1A0, 5: 0xA7A6A5A4} | at(DATA + PAGE - 3), memory=port, s={EXEC_LO: 1})
    assert port.read(DATA + PAGE - 4, 4).hex() == "eea0a1a2"
    assert port.read(DATA + PAGE, 6).hex() == "a3a4a5a6a7ee"


def test_a_fault_leaves_no_trace() -> None:
    """One lane of a store is outside: nothing is stored, no register changes, the program counter is the instruction's."""
    port = memory(b"\xee" * PAGE, PAGE)
    addresses = [DATA + 128 * lane for lane in LANES]
    addresses[20] = DATA + 0x10_0000
    code = [encode("VOP1", "v_mov_b32", vdst=9, src0=129), g("global_store_b32", data=4), encode("VOP1", "v_mov_b32", vdst=9, src0=130)]
    wave = execute(code, v={4: 7, 9: 0} | at(addresses), memory=port)
    assert (wave.state.kind, wave.state.va, wave.state.access) == (FAULT, DATA + 0x10_0000, WRITE)
    assert wave.state.pc == wave.run.dispatch.entry + 4
    assert port.read(DATA, PAGE) == b"\xee" * PAGE
    assert wave.v(9) == 1
    assert wave.run.instructions == 1


def test_inactive_lanes_do_not_fault() -> None:
    addresses = [DATA + 4 * lane if lane < 8 else 0xDEAD_0000_0000 for lane in LANES]
    wave = done(g("global_load_b32", vdst=0), v=at(addresses), memory=memory(words(*range(32))), s={EXEC_LO: 0xFF})
    assert wave.lanes(0)[:8] == LANES[:8]
    assert done(g("global_load_b32", vdst=0), v=at(0), memory=memory(), s={EXEC_LO: 0}).state.kind == "done"


def test_writing_read_only_memory_faults() -> None:
    wave = execute(g("global_store_b32", data=4), v={4: 7} | at(DATA), memory=memory(rights=READ))
    assert (wave.state.kind, wave.state.access) == (FAULT, WRITE)


@pytest.mark.parametrize(
    "op, before, operand, after",
    [
        ("add_u32", ALL, 2, 1), ("sub_u32", 1, 2, ALL), ("min_i32", 1, ALL, ALL), ("min_u32", 1, ALL, 1), ("max_i32", 1, ALL, 1), ("max_u32", 1, ALL, ALL),
        ("and_b32", 0xFF, 0x3C, 0x3C), ("or_b32", 1, 2, 3), ("xor_b32", 3, 6, 5), ("swap_b32", 1, 9, 9), ("inc_u32", 5, 5, 0), ("inc_u32", 4, 5, 5),
        ("dec_u32", 0, 5, 5), ("dec_u32", 9, 5, 5), ("dec_u32", 3, 5, 2), ("csub_u32", 3, 5, 0), ("csub_u32", 7, 5, 2), ("add_f32", f32(1.5), f32(2.0), f32(3.5)),
        ("min_f32", f32(1.0), f32(-1.0), f32(-1.0)), ("max_f32", 0x7FC00000, f32(1.0), 0x7FC00000), ("min_f32", 0, 0x80000000, 0x80000000),
    ],
)  # fmt: skip
def test_atomics(op: str, before: int, operand: int, after: int) -> None:
    port = memory(words(before, before))
    code = [g(f"global_atomic_{op}", vdst=0, data=4, glc=1), g(f"global_atomic_{op}", vdst=9, data=4, offset=4)]
    wave = done(code, v={0: 0, 4: operand, 9: 1234} | at(DATA), memory=port, s={EXEC_LO: 8})
    assert (wave.v(0, 3), wave.v(9, 3), wave.v(0, 0)) == (before, 1234, 0)
    assert [hex(x) for x in struct.unpack("<2I", port.read(DATA, 8))] == [hex(after)] * 2


def test_the_unused_destination_of_an_atomic_does_not_matter() -> None:
    port = memory(words(5))
    assert done(g("global_atomic_add_u32", vdst=255, data=4), v={4: 1} | at(DATA), memory=port, s={EXEC_LO: 1}, vgprs=8).state.kind == "done"
    assert port.read(DATA, 4) == words(6)


def test_atomics_take_lanes_one_after_another() -> None:
    port = memory(words(100))
    wave = done(g("global_atomic_add_u32", vdst=0, data=0, glc=1), v={0: LANES} | at(DATA), memory=port)
    assert wave.lanes(0) == [100 + sum(range(lane)) for lane in LANES]
    assert port.read(DATA, 4) == words(100 + sum(LANES))


def test_compare_and_swap_takes_the_new_value_from_the_low_register() -> None:
    port = memory(struct.pack("<2Q", 5, 6))
    v = {4: 77, 5: 1, 6: 5, 7: 0} | at([DATA, DATA + 8] + [DATA] * 30)
    wave = done(g("global_atomic_cmpswap_b64", vdst=0, data=4, glc=1), v=v, memory=port, s={EXEC_LO: 3})
    assert (wave.v64(0, 0), wave.v64(0, 1)) == (5, 6)
    assert struct.unpack("<2Q", port.read(DATA, 16)) == (77 + (1 << 32), 6)


def test_addtid_addresses_by_lane() -> None:
    code = encode("GLOBAL", "global_load_addtid_b32", vdst=0, saddr=20, offset=4)
    wave = done(code, s={20: DATA & ALL, 21: DATA >> 32}, memory=memory(words(*range(40))))
    assert wave.lanes(0) == list(range(1, 33))


# --- LDS ---------------------------------------------------------------------------------------------------------------


def ds(mnemonic: str, offset: int = 0, **fields: int) -> bytes:
    return encode("DS", mnemonic, offset0=offset & 255, offset1=offset >> 8, **fields)


def test_lds_out_of_range_reads_zero_and_stores_nothing() -> None:
    code = [ds("ds_store_b32", addr=1, data0=2), ds("ds_load_b32", addr=1, vdst=0), ds("ds_load_b32", 0xFFFF, addr=3, vdst=4)]
    wave = done(code, v={0: 9, 1: [4 * lane for lane in LANES], 2: 7, 3: 0xFFFF0005, 4: 9}, lds=bytes(64))
    assert wave.lanes(0) == [7] * 16 + [0] * 16
    assert wave.lanes(4) == [7] * 32  # the address wraps at 32 bits: 4
    assert wave.run.lds_out_of_range == 32


def test_lds_pairs_of_addresses() -> None:
    content = words(*range(256))
    two = encode("DS", "ds_load_2addr_b32", vdst=1, addr=1, offset0=2, offset1=5)  # overwrites its own address register
    assert [done(two, v={1: 40}, lds=content).v(k) for k in (1, 2)] == [12, 15]
    far = encode("DS", "ds_load_2addr_stride64_b64", vdst=2, addr=1, offset0=0, offset1=1)
    assert [done(far, v={1: 8}, lds=content).v(k) for k in (2, 3, 4, 5)] == [2, 3, 130, 131]
    store = encode("DS", "ds_store_2addr_b32", addr=1, data0=2, data1=3, offset0=1, offset1=0)
    assert done(store, v={1: 0, 2: 8, 3: 9}, lds=content).lds(0, 8) == words(9, 8)


@pytest.mark.parametrize(
    "mnemonic, before, data0, data1, after",
    [
        ("ds_rsub_rtn_u32", 3, 10, 0, 7), ("ds_mskor_rtn_b32", 0xFF, 0x0F, 0x05, 0xF5), ("ds_cmpstore_rtn_b32", 5, 9, 5, 9), ("ds_cmpstore_rtn_b32", 5, 9, 6, 5),
        ("ds_storexchg_rtn_b32", 5, 9, 0, 9), ("ds_wrap_rtn_b32", 10, 4, 100, 6), ("ds_wrap_rtn_b32", 3, 4, 100, 103), ("ds_add_rtn_f32", f32(1.0), f32(2.0), 0, f32(3.0)),
        ("ds_cmpstore_rtn_f32", f32(0.0), 9, 0x80000000, 9), ("ds_max_rtn_f32", f32(1.0), f32(2.0), 0, f32(2.0)),
    ],
)  # fmt: skip
def test_lds_atomics(mnemonic: str, before: int, data0: int, data1: int, after: int) -> None:
    wave = done(ds(mnemonic, vdst=0, addr=1, data0=2, data1=3), v={1: 8, 2: data0, 3: data1}, lds=words(1, 2, before, 4), s={EXEC_LO: 1})
    assert (hex(wave.v(0)), wave.lds(0, 16).hex()) == (hex(before), words(1, 2, after, 4).hex())


def test_lds_conditional_exchange_and_double_exchange() -> None:
    wave = done(ds("ds_condxchg32_rtn_b64", vdst=0, addr=2, data0=4), v={2: 0, 4: 0x80000007, 5: 9}, lds=words(1, 2), s={EXEC_LO: 1})
    assert (wave.v(0), wave.v(1), wave.lds(0, 8)) == (1, 2, words(7, 2))
    code = encode("DS", "ds_storexchg_2addr_rtn_b32", vdst=0, addr=0, data0=1, data1=2, offset0=0, offset1=3)
    wave = done(code, v={0: 0, 1: 11, 2: 22}, lds=words(1, 2, 3, 4), s={EXEC_LO: 1})
    assert (wave.v(0), wave.v(1), wave.lds(0, 16)) == (1, 4, words(11, 2, 3, 22))


def test_lds_sub_dword_forms() -> None:
    content = words(0x81828384)
    assert done(ds("ds_load_i8", vdst=0, addr=1), v={1: 1}, lds=content).v(0) == 0xFFFFFF83
    assert done(ds("ds_load_u16_d16_hi", vdst=0, addr=1), v={0: 5, 1: 2}, lds=content).v(0) == 0x81820005
    assert done(ds("ds_store_b16_d16_hi", addr=1, data0=2), v={1: 0, 2: 0x11223344}, lds=content).lds(0, 4) == words(0x81821122)


def test_append_counts_active_lanes() -> None:
    wave = done(ds("ds_append", 4, vdst=0), s={EXEC_LO: 0x70, M0: 4}, v={0: 1}, lds=words(0, 0, 50))
    assert (wave.lanes(0)[3:8], wave.lds(8, 4)) == ([1, 50, 50, 50, 1], words(53))
    assert done(ds("ds_consume", 4, vdst=0), s={EXEC_LO: 0x70, M0: 4}, lds=words(0, 0, 50)).lds(8, 4) == words(47)


def test_addtid_in_lds() -> None:
    assert done(ds("ds_load_addtid_b32", 4, vdst=0), s={M0: 8}, lds=words(*range(40))).lanes(0) == list(range(3, 35))


def test_permutes_and_inactive_lanes() -> None:
    value = [100 + lane for lane in LANES]
    pull = done(ds("ds_bpermute_b32", vdst=0, addr=1, data0=2), v={0: 7, 1: [4 * (lane + 1) for lane in LANES], 2: value}, s={EXEC_LO: ALL ^ 0x10})
    assert pull.lanes(0)[2:6] == [103, 0, 7, 106]  # lane 3 pulls from inactive lane 4, which is not written itself
    push = done(ds("ds_permute_b32", vdst=0, addr=1, data0=2), v={0: 7, 1: [8] * 16 + [12] * 16, 2: value}, s={EXEC_LO: 0x0000FFFF})
    assert push.lanes(0)[:4] == [0, 0, 115, 0]  # the highest lane wins


@pytest.mark.parametrize("offset, lane, source", [(0x801F, 3, 0), (0x80E4, 3, 3), (0x041F, 4, 5), (0x0010, 20, 16), (0xC020, 0, 1), (0xC420, 1, 0)])
def test_swizzle(offset: int, lane: int, source: int) -> None:
    assert done(ds("ds_swizzle_b32", offset, vdst=0, addr=1), v={1: LANES}).v(0, lane) == source


# --- flat, scratch, buffer, scalar -----------------------------------------------------------------------------------------


def test_flat_chooses_memory_by_aperture() -> None:
    shared, private = 0x0001_0000_0000_0000, 0x0002_0000_0000_0000
    addresses = [DATA + 4 * lane if lane % 3 == 0 else shared + 4 * lane if lane % 3 == 1 else private + 4 * (lane % 4) for lane in LANES]
    port = memory(words(*range(1000, 1032)))
    scratch = port.map(0x30_0000_0000, PAGE, READ | WRITE, words(*range(5000, 5128)))
    code = encode("FLAT", "flat_load_b32", vdst=0, addr=2)
    wave = done(code, v=at(addresses), memory=port, lds=words(*range(2000, 2032)), scratch_base=scratch.start, scratch_wave_bytes=PAGE, scratch_waves=1)
    expected = [1000 + lane if lane % 3 == 0 else 2000 + lane if lane % 3 == 1 else 5000 + 32 * (lane % 4) + lane for lane in LANES]
    assert wave.lanes(0) == expected


def test_scratch_dwords_of_lanes_lie_side_by_side() -> None:
    port = FlatMemory()
    port.map(0x30_0000_0000, PAGE, READ | WRITE)
    code = [
        encode("SCRATCH", "scratch_store_b64", data=4, addr=0, sve=0, offset=8),
        encode("SCRATCH", "scratch_load_b32", vdst=0, addr=1, sve=1, saddr=20, offset=4),
        encode("SCRATCH", "scratch_load_u16", vdst=2, addr=1, sve=1, offset=6),
    ]
    v = {1: 4, 4: LANES, 5: [100 + lane for lane in LANES]}
    wave = done(code, v=v, s={20: 4}, memory=port, scratch_base=0x30_0000_0000, scratch_wave_bytes=PAGE, scratch_waves=1)
    assert port.read(0x30_0000_0000 + 2 * 128, 256) == words(*LANES, *v[5])
    assert wave.lanes(0) == v[5]
    assert wave.lanes(2) == [0] * 32


def test_unaligned_private_access_goes_byte_by_byte() -> None:
    port = FlatMemory()
    port.map(0x30_0000_0000, PAGE, READ | WRITE)
    options = {"scratch_base": 0x30_0000_0000, "scratch_wave_bytes": PAGE, "scratch_waves": 1}
    code = [encode("SCRATCH", "scratch_store_b32", data=4, addr=0, sve=0, offset=6), encode("SCRATCH", "scratch_load_b32", vdst=0, addr=0, sve=0, offset=6)]
    wave = done(code, v={4: 0x44332211}, memory=port, **options)
    assert wave.v(0, 9) == 0x44332211
    assert port.read(0x30_0000_0000 + 128 + 4 * 9, 4).hex() == "00001122"
    assert port.read(0x30_0000_0000 + 256 + 4 * 9, 4).hex() == "33440000"


def test_buffer_range_check() -> None:
    port = memory(words(*range(32)))
    s = {20: DATA & ALL, 21: DATA >> 32, 22: 40, 23: 0}
    code = [
        encode("MUBUF", "buffer_load_b32", vdata=0, vaddr=1, srsrc=5, soffset=124, offset=4, offen=1),
        encode("MUBUF", "buffer_store_b32", vdata=2, vaddr=1, srsrc=5, soffset=124, offen=1),
    ]
    wave = done(code, v={0: 9, 1: [4 * lane for lane in LANES], 2: 77}, s=s, memory=port)
    assert wave.lanes(0) == [lane + 1 if lane < 9 else 0 for lane in LANES]
    assert struct.unpack("<32I", port.read(DATA, 128)) == (*([77] * 10), *range(10, 32))


def test_structured_buffer_index() -> None:
    s = {20: DATA & ALL, 21: DATA >> 32 | 16 << 16, 22: 3, 23: 0, 24: 4}
    code = encode("MUBUF", "buffer_load_b32", vdata=0, vaddr=1, srsrc=5, soffset=24, idxen=1)
    wave = done(code, v={1: LANES}, s=s, memory=memory(words(*range(64))))
    assert wave.lanes(0)[:4] == [1, 5, 9, 0]


def test_scalar_loads() -> None:
    port = memory(words(*range(64)))
    base = {20: DATA & ALL, 21: DATA >> 32, 30: 16}
    wave = done(encode("SMEM", "s_load_b128", sdata=20, sbase=10, offset=8), s=base, memory=port)  # over its own base
    assert [wave.s(20 + k) for k in range(4)] == [2, 3, 4, 5]
    wave = done(encode("SMEM", "s_load_b32", sdata=40, sbase=10, soffset=30, offset=-6 & 0x1FFFFF), s=base, memory=port)
    assert wave.s(40) == 2  # the low two address bits are dropped
    wave = done(encode("SMEM", "s_load_b512", sdata=40, sbase=10, offset=PAGE - 32), s=base, memory=memory(bytes(PAGE - 32) + words(*range(16))))
    assert [wave.s(40 + k) for k in range(16)] == list(range(16))
    wave = execute(encode("SMEM", "s_load_b64", sdata=40, sbase=10, offset=2 * PAGE - 4), s=base | {40: 5}, memory=port)
    assert (wave.state.kind, wave.state.va, wave.s(40)) == (FAULT, DATA + 2 * PAGE, 5)


def test_scalar_buffer_loads_are_limited() -> None:
    s = {20: DATA & ALL, 21: DATA >> 32, 22: 12, 23: 0, 40: 9, 41: 9}
    wave = done(encode("SMEM", "s_buffer_load_b64", sdata=40, sbase=10, offset=8), s=s, memory=memory(words(1, 2, 3, 4)))
    assert (wave.s(40), wave.s(41)) == (3, 0)
