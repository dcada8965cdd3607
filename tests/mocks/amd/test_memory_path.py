"""VRAM: its content at power-on, the host's write path with its flush, the discovery image at its top."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest

from drivers.amd.layouts import discovery as layout
from hw.errors import NotModelled
from mocks.amd.discovery import build_image, checksum
from mocks.amd.vram import Unreachable
from mocks.machine import Machine, load_profile
from tests.mocks.amd.card import HDP_FLUSH, Card

DISCOVERY = Path(__file__).parents[2] / "data" / "amd_discovery.json"


def offset_of(card: Card) -> int:
    return card.gpu.vram_size - layout.OFFSET_FROM_END


# --- content ---


def test_fresh_memory_holds_noise_that_depends_on_the_seed() -> None:
    def sample(seed: int) -> list[bytes]:
        vram = Machine.from_profile("navi31", seed=seed).gpus[0].vram
        return [vram.read(offset, 64) for offset in (0, 0x1000, 0x1234_5000, 0x5_FE00_0000)]

    first = sample(1)
    assert first == sample(1)
    for one, other in zip(first, sample(2), strict=True):
        assert one != other
        assert len(set(one)) > 16


def test_the_last_mebibyte_is_quiet_but_for_the_discovery_image() -> None:
    card = Card()
    size = card.gpu.vram_size
    assert card.gpu.vram.read(size - (1 << 20), 0x1000) == bytes(0x1000)
    assert card.gpu.vram.read(size - 16, 16) == bytes(16)
    assert card.gpu.vram.read(size - (1 << 20) - 16, 16) != bytes(16)


def test_memory_of_two_cards_is_not_shared() -> None:
    one, other = Card(), Card()
    one.gpu.vram.write(0x5000, b"mine")
    assert other.gpu.vram.read(0x5000, 4) != b"mine"


def test_beyond_the_memory_there_is_nothing() -> None:
    card = Card()
    card.pci.resize_bar(0, 32 << 30)
    window = card.pci.map_bar(0)
    end = card.gpu.vram_size
    window.write(end - 4, b"\x01\x02\x03\x04\x05\x06\x07\x08")
    card.mmio.write32(HDP_FLUSH, 0)
    assert window.read(end - 4, 8) == b"\x01\x02\x03\x04\xff\xff\xff\xff"
    assert window.read32(32 * 2**30 - 4) == 0xFFFFFFFF


def test_a_stray_address_of_firmware_reaches_nothing_of_this_process() -> None:
    card = Card()
    card.open_hub()
    secret = bytearray(b"python's own memory")
    place = id(secret)
    with pytest.raises(Unreachable):
        card.gpu.mc_write(place, b"overwritten")
    assert secret == b"python's own memory"


# --- HDP ---


def test_host_writes_reach_the_device_only_after_a_flush() -> None:
    card = Card(strict=True)
    before = card.gpu.vram.read(0x3000, 32)
    card.vram.write(0x3004, b"fresh")
    card.vram.write32(0x3010, 0x12345678)
    assert card.vram.read(0x3004, 5) == b"fresh"
    assert card.vram.read32(0x3010) == 0x12345678
    assert card.gpu.vram.read(0x3000, 32) == before
    card.flush()
    assert card.gpu.vram.read(0x3004, 5) == b"fresh"
    assert card.gpu.vram.read32(0x3010) == 0x12345678
    assert card.gpu.vram.read(0x3000, 4) == before[:4]


def test_late_writes_do_not_hide_what_the_device_wrote_beside_them() -> None:
    card = Card(strict=True)
    card.vram.write32(0x3000, 1)
    card.gpu.vram.write32(0x3004, 2)
    assert (card.vram.read32(0x3000), card.vram.read32(0x3004)) == (1, 2)
    card.flush()
    assert card.gpu.vram.read64(0x3000) == 2 << 32 | 1


def test_a_write_across_pages_is_late_as_a_whole_and_in_order() -> None:
    card = Card(strict=True)
    card.vram.write(0x3FF0, bytes(range(64)))
    card.vram.write(0x3FFE, b"\xaa\xbb\xcc\xdd")
    expected = bytes(range(14)) + b"\xaa\xbb\xcc\xdd" + bytes(range(18, 64))
    assert card.vram.read(0x3FF0, 64) == expected
    card.flush()
    assert card.gpu.vram.read(0x3FF0, 64) == expected


def test_the_flush_register_is_where_the_remap_register_says() -> None:
    card = Card(strict=True)
    card.write("NBIO", "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", 0x7E000)
    card.vram.write32(0x3000, 5)
    card.mmio.write32(0x7E000, 0)
    assert card.gpu.vram.read32(0x3000) == 5
    with pytest.raises(NotModelled):
        card.mmio.write32(HDP_FLUSH, 0)


def test_a_flush_aimed_at_offset_0_only_loads_mm_index() -> None:
    card = Card(strict=True)
    card.write("NBIO", "BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", 0)
    before = card.gpu.vram.read32(0x3000)
    card.vram.write32(0x3000, before ^ 1)
    card.mmio.write32(0, 0)
    assert card.gpu.vram.read32(0x3000) == before
    assert card.mmio.read32(0) == 0


def test_the_request_register_flushes_and_done_follows_it() -> None:
    card = Card(strict=True)
    card.vram.write32(0x3000, 9)
    card.write("NBIO", "BIF_BX_PF0_GPU_HDP_FLUSH_REQ", 0xFFFFFFFF)
    assert card.read("NBIO", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE") == 0xFFFFFFFF
    assert card.gpu.vram.read32(0x3000) == 9


def test_a_lenient_machine_counts_missing_flushes() -> None:
    card = Card(strict=False)
    card.open_hub()
    card.vram.write32(0x3000, 9)
    assert card.gpu.vram.read32(0x3000) == 9
    card.gpu.mc_read(card.mc_base + 0x5000, 4)
    assert card.gpu.hdp.missed_flushes == 0
    card.gpu.mc_read(card.mc_base + 0x2FFC, 8)
    assert card.gpu.hdp.missed_flushes == 1
    card.flush()
    card.gpu.mc_read(card.mc_base + 0x3000, 4)
    assert card.gpu.hdp.missed_flushes == 1


# --- discovery image ---


def test_the_navi31_image_has_the_sizes_and_sums_of_the_profile_document() -> None:
    image = build_image(load_profile("navi31")["gpu"]["discovery"])
    header = layout.LAYOUT.parse("struct binary_header", image)
    assert (header.binary_size, header.binary_checksum) == (888, 0x36AB)
    tables = [(info.offset, info.checksum, info.size) for info in header.table_list]
    assert tables == [(0x40, 0x2E6C, 544), (0x260, 0x301, 132), (0x2F0, tables[2][1], 136), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    assert tables[2][1] == checksum(image[0x2F0:])
    die = layout.LAYOUT.parse("struct die_header", image, 0x90)
    assert (die.die_id, die.num_ips) == (0, 23)


def test_the_image_is_in_vram_and_in_the_mm_window() -> None:
    card = Card()
    image = build_image(card.gpu.profile["discovery"])
    assert card.gpu.vram.read(offset_of(card), len(image)) == image
    card.pci.resize_bar(0, 32 << 30)
    assert card.pci.map_bar(0).read(offset_of(card), len(image)) == image


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1102"])
def test_the_vectors_entries_are_rebuilt_bit_by_bit(chip: str) -> None:
    """A plain binary of the vectors, taken apart by the layouts and put together by the mock's builder: the same entries and tables,
    wherever the vectors' builder chose to place them. Cards of this generation have no wide bases, so the mock does not build them."""
    vector = next(each for each in json.loads(DISCOVERY.read_text())["vectors"] if each["id"] == f"{chip}.plain")
    binary = base64.b64decode(vector["inputs"]["binary_base64"])
    header = layout.LAYOUT.parse("struct binary_header", binary)
    ip_at, gc_at = header.table_list[0].offset, header.table_list[1].offset
    die_at = layout.LAYOUT.parse("struct ip_discovery_header", binary, ip_at).die_info[0].die_offset
    count = layout.LAYOUT.parse("struct die_header", binary, die_at).num_ips
    ips = []
    at = die_at + 4
    for _ in range(count):
        entry = layout.LAYOUT.parse("struct ip_entry", binary, at)
        bases = struct.unpack_from(f"<{entry.num_base_address}I", binary, at + 8)
        ips.append({"hw_id": entry.hw_id, "instance": entry.instance_number, "version": [entry.major, entry.minor, entry.revision], "bases": list(bases)})
        at += 8 + 4 * len(bases)
    gc = layout.LAYOUT.parse("struct gc_header", binary, gc_at)
    values = struct.unpack_from(f"<{(gc.size - 12) // 4}I", binary, gc_at + 12)
    mine = build_image({"binary_version": [1, 0], "ip_version": 3, "ips": ips, "harvest": [], "gc": {"version": [gc.version_major, gc.version_minor], "values": list(values)}})
    assert mine[0x94 : 0x94 + at - die_at - 4] == binary[die_at + 4 : at]
    own = layout.LAYOUT.parse("struct binary_header", mine)
    place = own.table_list[1].offset
    assert mine[place : place + gc.size] == binary[gc_at : gc_at + gc.size]
    assert own.table_list[1].checksum == header.table_list[1].checksum
    assert own.binary_checksum == checksum(mine[10:])


@pytest.mark.parametrize(
    ("fault", "where"), [("discovery-magic", slice(0, 4)), ("discovery-size", slice(10, 12)), ("discovery-checksum", slice(0x90, 0x240))], ids=["magic", "size", "checksum"]
)
def test_fault_damaged_image(fault: str, where: slice) -> None:
    card = Card(faults=fault)
    good = build_image(card.gpu.profile["discovery"])
    found = card.gpu.vram.read(offset_of(card), len(good))
    assert found[where] != good[where]
    changed = [at for at in range(len(good)) if good[at] != found[at]]
    assert changed
    assert all(where.start <= at < where.stop for at in changed)


def test_fault_memory_size_never_reported() -> None:
    assert Card(faults="memsize-zero").mmio.read32(4 * 0xDE3) == 0
