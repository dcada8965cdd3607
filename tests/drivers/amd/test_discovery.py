"""The IP discovery parser against fabricated binaries of known content, whole and damaged."""

from __future__ import annotations

import base64

import pytest

from drivers.amd import discovery
from drivers.amd.layouts import discovery as layout
from hw.errors import DiscoveryInvalid, UnknownHardware
from tests.drivers.amd.recorder import vectors

VECTORS = vectors("amd_discovery")
GOOD = [name for name, vector in VECTORS.items() if "error" not in vector["expected"]]
DAMAGED = [name for name, vector in VECTORS.items() if "error" in vector["expected"]]
LISTED_AS = {"NBIO": "NBIF"}


def binary(name: str) -> bytes:
    return base64.b64decode(VECTORS[name]["inputs"]["binary_base64"])


def as_listed(entry: discovery.IpEntry) -> dict[str, object]:
    name = LISTED_AS.get(entry.name, entry.name)
    return {"block": name, "hw_id": entry.hw_id, "instance": entry.instance, "version": list(entry.version), "bases": [hex(base) for base in entry.bases]}


def resum(data: bytearray) -> bytes:
    """Make the binary's own checksum right again."""
    data[8:10] = discovery.checksum(bytes(data[layout.CHECKSUM_FROM : int.from_bytes(data[10:12], "little")])).to_bytes(2, "little")
    return bytes(data)


@pytest.mark.parametrize("name", GOOD)
def test_blocks_versions_and_bases_are_those_of_the_binary(name: str) -> None:
    expected = VECTORS[name]["expected"]
    found = discovery.parse(binary(name))
    assert found.size == expected["header"]["size"]
    assert [as_listed(entry) for entry in found.entries] == expected["ip_entries"]
    info = dict(expected["gc_info"])
    assert list(found.gc_info.version) == info.pop("version")
    assert list(found.gc_info.values.values()) == list(info.values())


@pytest.mark.parametrize("name", GOOD)
def test_derived_counts(name: str) -> None:
    derived = VECTORS[name]["expected"]["derived"]
    found = discovery.parse(binary(name))
    assert found.xcc_count == derived["xccs"]
    assert found.gc_info.cus_per_array == derived["cus_per_array"]
    assert found.array_count == derived["array_count"]
    assert found.simd_count == derived["simd_count"]
    assert found.cu_count == derived["cu_count"]


def test_harvested_instances_are_left_out() -> None:
    found = discovery.parse(binary("gfx942.harvest"))
    expected = VECTORS["gfx942.harvest"]["expected"]["harvested"]
    assert len(found.harvested) == len(expected) == 6
    assert len(found.instances("GC")) == 6
    assert len(found.instances("SDMA0")) == 12
    assert not {(e.hw_id, e.instance) for e in found.instances("GC")} & found.harvested


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refused_with_offset_and_bytes(name: str) -> None:
    with pytest.raises(DiscoveryInvalid) as caught:
        discovery.parse(binary(name))
    assert "at offset 0x" in caught.value.read
    assert caught.value.remedy


def test_bad_signature_names_both_values() -> None:
    with pytest.raises(DiscoveryInvalid, match="signature is 0x28211406, 0x28211407 is due") as caught:
        discovery.parse(binary("gfx1100.bad_signature"))
    assert caught.value.read.startswith("bytes 06 14 21 28 ")


def test_wrong_checksum_can_be_let_pass() -> None:
    found = discovery.parse(binary("gfx1100.bad_checksum"), verify=False)
    assert any("checksum" in warning for warning in found.warnings)
    assert found.version("GC") == (11, 0, 0)


def test_all_ones_and_all_zeros_are_told_apart() -> None:
    with pytest.raises(DiscoveryInvalid) as ones:
        discovery.parse(b"\xff" * 1024)
    assert "not trained" in ones.value.means
    with pytest.raises(DiscoveryInvalid) as zeros:
        discovery.parse(bytes(1024))
    assert "has not finished" in zeros.value.means


@pytest.mark.parametrize("size", [0, 59, layout.READ_SIZE + 1, 0xFFFF])
def test_impossible_size_is_refused(size: int) -> None:
    data = bytearray(binary("gfx1100.plain"))
    data[10:12] = size.to_bytes(2, "little")
    with pytest.raises(DiscoveryInvalid, match="announces a size"):
        discovery.parse(bytes(data))


def test_announced_size_beyond_the_data_is_refused() -> None:
    with pytest.raises(DiscoveryInvalid, match="announces 0x290 bytes, 0x190 are there"):
        discovery.parse(binary("gfx1100.plain")[:400])


@pytest.mark.parametrize(("offset", "value", "text"), [(0x3C, 1, "signature of the list"), (0x148, 1, "id of the graphics"), (0x1CC, 1, "signature of the harvest")])
def test_inner_signatures_are_checked(offset: int, value: int, text: str) -> None:
    data = bytearray(binary("gfx1100.plain"))
    place = int.from_bytes(data[12 + 8 * {0x3C: 0, 0x148: 1, 0x1CC: 2}[offset] :][:2], "little")
    data[place] ^= value
    with pytest.raises(DiscoveryInvalid, match=text):
        discovery.parse(resum(data))


def test_block_count_beyond_the_table_is_refused() -> None:
    data = bytearray(binary("gfx1100.plain"))
    die = int.from_bytes(data[0x3C + 16 : 0x3C + 18], "little")
    data[die + 2 : die + 4] = (500).to_bytes(2, "little")
    with pytest.raises(DiscoveryInvalid, match=r"lies? outside"):
        discovery.parse(resum(data), verify=False)


def test_damage_of_every_single_byte_is_noticed() -> None:
    whole = binary("gfx1100.plain")
    for position in (place for place in range(len(whole)) if place not in range(4, 8)):  # the binary's own version is covered by nothing
        data = bytearray(whole)
        data[position] ^= 0x5A
        with pytest.raises(DiscoveryInvalid):
            discovery.parse(bytes(data))


def test_missing_block_is_named() -> None:
    found = discovery.parse(binary("gfx1100.plain"))
    with pytest.raises(UnknownHardware, match="no XGMI"):
        found.version("XGMI")
    with pytest.raises(UnknownHardware, match="no instance 3 of GC"):
        found.bases("GC", 3)


def test_only_the_announced_bytes_are_read() -> None:
    whole = binary("gfx1100.plain")
    vram_size = 24560 << 20
    reads: list[tuple[int, int]] = []

    def vram_read(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        start = offset - (vram_size - (64 << 10))
        return whole.ljust(layout.READ_SIZE, b"\0")[start : start + size]

    assert discovery.read(vram_read, vram_size).version("MMHUB") == (3, 0, 0)
    assert sum(size for _, size in reads) == len(whole)
