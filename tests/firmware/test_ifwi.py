"""IFWI images, judged offline: recorded images and damages, comparisons, noise."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware import ifwi_layout as layout
from firmware.ifwi import Ifwi, IfwiInvalid, Report, diff
from firmware.ifwi_layout import ITEMS
from mocks.amd import ifwi as fabricated
from probes.flash_ifwi import document, lines

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "ifwi.json").read_text())
IMAGES = {name: zlib.decompress(base64.b64decode(entry["zlib_base64"])) for name, entry in VECTORS["images"].items()}


def outcome(image: Ifwi, number: int) -> dict[str, Any]:
    """What the parser makes of an item, in the words of the recorded vectors."""
    try:
        item = image.item(number)
    except IfwiInvalid as problem:
        return {"error": problem.problem, "offset": hex(problem.offset)}
    size = item.size
    return {
        "offset": hex(item.offset),
        "size": hex(size),
        "sha256": hashlib.sha256(image.content(item)).hexdigest(),
        "start_word": f"{size << 8 | number:#010x}",
        "data_words": size // 4,
        "end_word": f"{size << 8 | number:#010x}",
    }


def build(vector: dict[str, Any]) -> bytes:
    data = bytearray(IMAGES[vector["base"]])
    for offset, text in vector["edits"]:
        at = int(offset, 16)
        data[at : at + len(text) // 2] = bytes.fromhex(text)
    length = vector.get("length", len(data))
    data = data[:length] + b"\xff" * (length - len(data))
    assert hashlib.sha256(data).hexdigest() == vector["image_sha256"]
    return bytes(data)


def expected_items(name: str) -> dict[int, dict[str, Any]]:
    return {int(number, 16): item for number, item in VECTORS["images"][name]["items"].items()}


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_recorded_images_decode_item_by_item(name: str) -> None:
    assert hashlib.sha256(IMAGES[name]).hexdigest() == VECTORS["images"][name]["sha256"]
    image = Ifwi(IMAGES[name])
    assert {number: outcome(image, number) for number in ITEMS} == expected_items(name)
    assert image.problems() == []


@pytest.mark.parametrize("vector", VECTORS["broken"], ids=lambda vector: vector["name"])
def test_recorded_damages_are_named_with_their_offset(vector: dict[str, Any]) -> None:
    image = Ifwi(build(vector))
    changed = {int(number, 16): item for number, item in vector["changed_items"].items()}
    assert {number: outcome(image, number) for number in ITEMS} == expected_items(vector["base"]) | changed
    failed = {number for number, item in changed.items() if "error" in item}
    assert bool(image.problems()) == bool(failed)


def test_a_blank_chip_has_only_what_is_at_fixed_places() -> None:
    image = Ifwi(b"\xff" * layout.SIZE)
    assert {number: outcome(image, number) for number in ITEMS} == {int(number, 16): item for number, item in VECTORS["blank_chip"]["items"].items()}


@pytest.mark.parametrize("vector", VECTORS["unknown_items"], ids=lambda vector: vector["item"])
def test_unknown_items_are_refused(vector: dict[str, Any]) -> None:
    assert outcome(Ifwi(IMAGES["A"]), int(vector["item"], 16)) == {"error": vector["error"], "offset": vector["offset"]}


def test_errors_say_what_where_and_what_to_do() -> None:
    with pytest.raises(IfwiInvalid) as caught:
        Ifwi(fabricated.broken("payload end past the image")).item(0x08)
    assert str(caught.value) == "ifwi-invalid: item 0x08 (payload): payload reaches past the image at 0x12010 (read: offset 0x1a0004, size 0x60000)"
    assert caught.value.exit_status == 1
    assert "flash ifwi diff" in caught.value.remedy


# --- the whole report ---


def test_a_report_lists_directories_slots_and_signatures() -> None:
    report = Ifwi(IMAGES["A"]).report()
    assert (len(report.items), report.problems) == (18, [])
    assert [len(report.directories[number]) for number in (2, 3)] == [6, 4]
    assert report.slots == {0x06: (0x20000, 0x60000), 0x07: (0x100000, 0x60000)}
    assert [entry.words[0] for entry in report.signatures] == [1, 2, 3, 4, 5, 6, 7, 0x55]
    assert report.directories[2][0].words == (1, 0x1000, 0x30000, 0)


def test_overlapping_items_and_a_blank_second_slot_are_remarks_not_problems() -> None:
    report = Ifwi(IMAGES["C"]).report()
    assert report.problems == []
    assert any("overlap" in remark for remark in report.remarks)
    second = Ifwi(fabricated.broken("slot header B blank")).report()
    assert second.problems == []
    assert any(remark.startswith("slot header B") for remark in second.remarks)


@pytest.mark.parametrize("name", sorted(fabricated.BREAKAGES))
def test_every_fabricated_damage_is_judged(name: str) -> None:
    """Each has a problem, except those that only a signature could tell, or that lie where nobody looks."""
    silent = {"header byte", "block 4 byte", "payload byte", "slot header B blank"}
    report = Ifwi(fabricated.broken(name)).report()
    assert bool(report.problems) == (name not in silent), [str(each) for each in report.problems]


def test_fabricated_images_are_valid_and_follow_their_seed() -> None:
    assert Ifwi(fabricated.fabricate(3)).problems() == []
    assert fabricated.fabricate(3) != fabricated.fabricate(4)
    assert fabricated.boot(fabricated.fabricate(3)) == fabricated.Boot("")


# --- comparing ---


def test_equal_images_do_not_differ() -> None:
    assert diff(IMAGES["A"], IMAGES["A"]) == []


def test_differences_are_named_by_item_and_split_where_items_end() -> None:
    first = fabricated.fabricate(0)
    changed = bytearray(first)
    changed[0x10FF0:0x11010] = bytes(0x20)
    changed[0x50] ^= 0xFF
    changed[0x120000] ^= 1
    changed[0x90000] ^= 1
    found = diff(first, bytes(changed))
    assert [(each.offset, each.item) for each in found] == [(0x50, 0x01), (0x10FF0, 0x04), (0x11000, 0x05), (0x90000, None), (0x120000, None)]
    assert [each.where for each in found[-2:]] == ["outside every item", "payload of slot B"]
    assert not any(each.explained for each in found)


def test_an_update_by_the_firmware_is_recognised_and_nothing_else() -> None:
    first = fabricated.fabricate(0)
    updated = bytearray(first)
    updated[0x13004:0x1300C] = bytes.fromhex("1122334402000000")
    updated[0x15000:0x15010] = b"$AMDVBFL" + bytes.fromhex("0200000000000000")
    updated[0x1EF000:0x1EF020] = bytes(range(32))
    assert [each.explained for each in diff(first, bytes(updated))] == [
        "counter and checksum of slot B change with every update",
        "update cookie",
        "update metadata",
    ]
    moved = bytearray(updated)
    moved[0x13010:0x13014] = (0x30000).to_bytes(4, "little")
    assert [each.where for each in diff(first, bytes(moved)) if not each.explained] == ["slot header B"]
    payload = bytearray(updated)
    payload[0x20100] ^= 1
    assert [each.item for each in diff(first, bytes(payload)) if not each.explained] == [0x08]


def test_images_of_another_size_cannot_be_compared() -> None:
    with pytest.raises(IfwiInvalid, match="cannot be compared"):
        diff(IMAGES["A"], IMAGES["A"][:-1])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, layout.SIZE - 1), st.integers(1, 255)), max_size=8))
def test_differences_cover_exactly_the_bytes_that_differ(edits: list[tuple[int, int]]) -> None:
    first = IMAGES["A"]
    second = bytearray(first)
    for offset, change in edits:
        second[offset] ^= change
    found = diff(first, bytes(second))
    covered = {place for each in found for place in range(each.offset, each.offset + each.size)}
    assert {place for place in range(layout.SIZE) if first[place] != second[place]} <= covered if edits else not covered
    for before, after in pairwise(found):
        assert before.offset + before.size <= after.offset


# --- noise ---

STRUCTURES = (0x0, 0x1000, 0x2000, 0x2008, 0x3000, 0x3008, 0x12010, 0x12018, 0x13010, 0x13018, 0x14000, 0x14008, *range(0x14010, 0x14090, 4))
"""places that the parser follows"""
EDGES = (0, 1, 3, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF0, layout.SIZE, layout.SIZE - 1, layout.SIZE - 4, layout.SIZE - 16, 0x1FFF0, 0x14000)


def mutated(source: random.Random, base: bytes) -> bytes:
    """An image with a few damages: words that the parser follows, random bytes, pieces moved, the end cut off."""
    data = bytearray(base)
    for _ in range(source.randrange(1, 6)):
        kind = source.randrange(8)
        if kind < 5:
            value = source.choice(EDGES) if source.random() < 0.5 else source.getrandbits(32)
            place = source.choice(STRUCTURES)
            data[place : place + 4] = value.to_bytes(4, "little")
        elif kind == 5:
            place = source.randrange(len(data))
            data[place] = source.randrange(256)
        elif kind == 6:
            size = source.choice((4, 16, 256))
            first, second = (source.randrange(0, layout.SIZE - size) for _ in range(2))
            data[first : first + size] = data[second : second + size]
        elif source.random() < 0.1:
            del data[source.randrange(len(data)) :]
            break
    return bytes(data)


def check_report(report: Report, data: bytes) -> None:
    """What must hold for every report: items inside the image, problems typed and placed."""
    for item, _ in report.items:
        assert 0 <= item.offset < item.end <= len(data)
        assert item.size % 4 == 0
    assert len(report.items) + len(report.problems) == (len(ITEMS) if len(data) == layout.SIZE else 1)
    assert json.dumps(document(report))
    assert lines(report)


def fuzz(count: int, seed: int) -> int:
    """Reports of mutated images as `tghw flash ifwi show` makes and shows them; how many of the images had a problem."""
    source = random.Random(seed)
    bases = list(IMAGES.values())
    damaged = 0
    for _ in range(count):
        data = mutated(source, source.choice(bases))
        report = Ifwi(data).report()
        check_report(report, data)
        damaged += bool(report.problems)
    return damaged


def test_noise_never_leads_astray() -> None:
    assert fuzz(300, seed=1) > 100


@pytest.mark.slow
def test_a_hundred_thousand_mutated_images() -> None:
    assert fuzz(100_000, seed=2) > 30_000
