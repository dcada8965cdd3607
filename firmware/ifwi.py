"""IFWI images: what is in the 2 MiB flash of a Navi31 card, judged offline.

An image is looked at item by item, as the security processor asks for them; an item is good or bad on its own, and a bad one names the
offset of the structure that is wrong. Nothing here is ever trusted further than the image is long.

Source: see firmware/ifwi_layout.py.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from firmware import ifwi_layout as layout
from firmware.ifwi_layout import ITEM_NAMES, ITEMS
from hw.errors import FirmwareInvalid

LONGEST_DIRECTORY = 0x1000
"""entries of a directory that a description lists; more are only counted"""


class IfwiInvalid(FirmwareInvalid):
    """An image, or an item of it, that does not follow the layout. `offset` is the place of the structure that is wrong."""

    code = "ifwi-invalid"
    default_means = "the file is not an IFWI image of this card family, or it is damaged"
    default_remedy = "compare it with a dump of a working card: `tghw flash ifwi diff`"

    def __init__(self, what: str, *, offset: int, problem: str, read: str = "", means: str = "", remedy: str = "") -> None:
        super().__init__(what, read=read, means=means, remedy=remedy)
        self.offset = offset
        self.problem = problem
        """a stable phrase for the kind of damage"""


@dataclass(frozen=True)
class Item:
    """One item: where it is. Bytes."""

    number: int
    offset: int
    size: int

    @property
    def name(self) -> str:
        return ITEM_NAMES[self.number]

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Entry:
    """A row of a directory or of the signature table, as four words."""

    offset: int
    words: tuple[int, int, int, int]


@dataclass
class Report:
    """Everything known about an image."""

    size: int
    sha256: str
    items: list[tuple[Item, str]] = field(default_factory=list)
    """good items with their sha256"""
    problems: list[IfwiInvalid] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """things that are allowed but worth knowing"""
    directories: dict[int, list[Entry]] = field(default_factory=dict)
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    """slot header item -> payload offset, payload size"""
    signatures: list[Entry] = field(default_factory=list)


class Ifwi:
    """An image in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    # --- reading ---

    def _word(self, offset: int) -> int:
        return int.from_bytes(self.data[offset : offset + 4], "little")

    def _fail(self, number: int, problem: str, offset: int, read: str = "") -> IfwiInvalid:
        name = f"item {number:#04x} ({ITEM_NAMES[number]})" if number in ITEM_NAMES else f"item {number:#x}"
        return IfwiInvalid(f"{name}: {problem} at {offset:#x}", offset=offset, problem=problem, read=read)

    # --- items ---

    def item(self, number: int) -> Item:
        """Where an item is. Raises IfwiInvalid naming the offset of what is wrong."""
        if number not in ITEMS:
            raise self._fail(number, "unknown item", number)
        if len(self.data) != layout.SIZE:
            raise self._fail(number, "image size", len(self.data), f"{len(self.data):#x} bytes, an image has {layout.SIZE:#x}")
        if number in layout.FIXED:
            offset, size = layout.FIXED[number]
            if number == layout.HEADER and self.data[:4] != layout.MAGIC:
                raise self._fail(number, "header magic", 0, f"{self.data[:4].hex(' ')} instead of {layout.MAGIC.hex(' ')}")
            return Item(number, offset, size)
        if number in layout.DIRECTORIES:
            return self._directory(number)
        if number == layout.PAYLOAD:
            return self._payload(number, layout.SLOTS[0x06])
        table = self._signature_table(number)
        return table if number == layout.SIGNATURE_TABLE else self._signature(number, table)

    def content(self, item: Item) -> bytes:
        return self.data[item.offset : item.end]

    def _directory(self, number: int) -> Item:
        offset = layout.DIRECTORIES[number]
        magic = self.data[offset : offset + 4]
        if magic != layout.DIRECTORY_MAGIC:
            raise self._fail(number, "directory magic", offset, magic.hex(" "))
        count = self._word(offset + layout.TABLE_COUNT)
        size = (count + 1) * layout.TABLE_ENTRY
        if offset + size > layout.SIZE:
            raise self._fail(number, "directory reaches past the image", offset, f"{count:#x} entries")
        return Item(number, offset, size)

    def _payload(self, number: int, slot: int) -> Item:
        at, size_at = slot + layout.SLOT_PAYLOAD_OFFSET, slot + layout.SLOT_PAYLOAD_SIZE
        offset, size = self._word(at), self._word(size_at)
        if offset + size > layout.SIZE:
            raise self._fail(number, "payload reaches past the image", at, f"offset {offset:#x}, size {size:#x}")
        if size == 0:
            raise self._fail(number, "payload empty", size_at)
        if size % 4:
            raise self._fail(number, "payload size not a multiple of 4", size_at, f"{size:#x}")
        return Item(number, offset, size)

    def _signature_table(self, number: int) -> Item:
        pointer_at = layout.FIXED[layout.SIGNATURE_POINTER][0]
        offset = self._word(pointer_at)
        if offset + layout.TABLE_ENTRY > layout.SIZE:
            raise self._fail(number, "signature table pointer past the image", pointer_at, f"{offset:#x}")
        magic = self.data[offset : offset + 4]
        if magic != layout.SIGNATURE_MAGIC:
            raise self._fail(number, "signature table magic", offset, magic.hex(" "))
        count = self._word(offset + layout.TABLE_COUNT)
        size = (count + 1) * layout.TABLE_ENTRY
        if offset + size > layout.SIZE:
            raise self._fail(number, "signature table reaches past the image", offset, f"{count:#x} entries")
        return Item(layout.SIGNATURE_TABLE, offset, size)

    def _signature(self, number: int, table: Item) -> Item:
        wanted = number - layout.SIGNATURE_TYPE_OF_ITEM
        found = [entry for entry in self._entries(table) if entry.words[0] == wanted]
        if not found:
            raise self._fail(number, "signature entry missing", table.offset, f"no entry of type {wanted}")
        if len(found) > 1:
            raise self._fail(number, "signature entry not unique", found[1].offset, f"{len(found)} entries of type {wanted}")
        entry = found[0]
        _, _, size, offset = entry.words
        if offset + size > layout.SIZE:
            raise self._fail(number, "signature reaches past the image", entry.offset, f"offset {offset:#x}, size {size:#x}")
        if size == 0:
            raise self._fail(number, "signature empty", entry.offset)
        if size % 4:
            raise self._fail(number, "signature size not a multiple of 4", entry.offset, f"{size:#x}")
        return Item(number, offset, size)

    def _entries(self, table: Item) -> Iterator[Entry]:
        """The rows of a table, one by one (a damaged image can claim a hundred thousand)."""
        first = table.offset + layout.TABLE_ENTRY
        for number, words in enumerate(struct.iter_unpack("<IIII", memoryview(self.data)[first : table.end])):
            yield Entry(first + number * layout.TABLE_ENTRY, words)

    # --- the whole image ---

    def problems(self) -> list[IfwiInvalid]:
        """What is wrong, item by item; empty: every item can be streamed."""
        return self.report().problems

    def report(self) -> Report:
        """Look at everything. Raises nothing."""
        report = Report(len(self.data), hashlib.sha256(self.data).hexdigest())
        if len(self.data) != layout.SIZE:
            report.problems.append(self._fail(layout.HEADER, "image size", len(self.data), f"{len(self.data):#x} bytes, an image has {layout.SIZE:#x}"))
            return report
        tables: dict[int, Item] = {}
        for number in ITEMS:
            try:
                item = self.item(number)
            except IfwiInvalid as problem:
                report.problems.append(problem)
                continue
            tables[number] = item
            report.items.append((item, hashlib.sha256(self.content(item)).hexdigest()))
        for number in layout.DIRECTORIES:
            if number in tables:
                report.directories[number] = [entry for entry, _ in zip(self._entries(tables[number]), range(LONGEST_DIRECTORY), strict=False)]
        for number, offset in layout.SLOTS.items():
            report.slots[number] = (self._word(offset + layout.SLOT_PAYLOAD_OFFSET), self._word(offset + layout.SLOT_PAYLOAD_SIZE))
            try:
                self._payload(number, offset)
            except IfwiInvalid as problem:
                if number != 0x06:  # the payload item already reports the first slot
                    report.remarks.append(f"{ITEM_NAMES[number]}: {problem.problem} at {problem.offset:#x} (nothing is streamed from it)")
        if layout.SIGNATURE_TABLE in tables:
            report.signatures = [entry for entry, _ in zip(self._entries(tables[layout.SIGNATURE_TABLE]), range(LONGEST_DIRECTORY), strict=False)]
        report.remarks += _overlaps([item for item, _ in report.items])
        return report


def _overlaps(items: list[Item]) -> list[str]:
    """Items that share bytes."""
    ordered = sorted(items, key=lambda item: (item.offset, item.number))
    found = []
    for number, item in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if other.offset >= item.end:
                break
            found.append(f"items {item.number:#04x} and {other.number:#04x} overlap at {other.offset:#x}")
    return found


# --- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A run of bytes in which two images differ, within one item or outside all of them."""

    offset: int
    size: int
    item: int | None
    where: str
    explained: str
    """why an update by the firmware would leave it; "" when it would not"""

    def to_dict(self) -> dict[str, Any]:
        return {"offset": self.offset, "size": self.size, "item": self.item, "where": self.where, "explained": self.explained}


MERGE_GAP = 16
"""differences closer than this many bytes are one run"""


def diff(first: bytes, second: bytes) -> list[Difference]:
    """Where two images differ, by item, and which of it an update by the security processor explains. Raises IfwiInvalid for a wrong size."""
    for data in (first, second):
        if len(data) != layout.SIZE:
            raise IfwiInvalid(f"an image of {len(data):#x} bytes cannot be compared", offset=len(data), problem="image size", read=f"an image has {layout.SIZE:#x} bytes")
    places = _places(Ifwi(first))
    found = []
    for start, end in _runs(first, second):
        while start < end:
            item, where, stop = _place_of(places, start, end)
            found.append(Difference(start, stop - start, item, where, _explain(first, second, start, stop)))
            start = stop
    return found


def _runs(first: bytes, second: bytes) -> list[tuple[int, int]]:
    """Runs of differing bytes, near ones joined."""
    runs: list[list[int]] = []
    step = 0x1000
    for base in range(0, len(first), step):
        if first[base : base + step] == second[base : base + step]:
            continue
        for offset in range(base, min(base + step, len(first))):
            if first[offset] == second[offset]:
                continue
            if runs and offset - runs[-1][1] < MERGE_GAP:
                runs[-1][1] = offset + 1
            else:
                runs.append([offset, offset + 1])
    return [(start, end) for start, end in runs]


def _places(image: Ifwi) -> list[tuple[int, int, int | None, str]]:
    """Items of an image, and the second slot's payload, as (start, end, item, name), the smallest first."""
    places: list[tuple[int, int, int | None, str]] = [(item.offset, item.end, item.number, item.name) for item, _ in image.report().items]
    try:
        payload = image._payload(0x07, layout.SLOTS[0x07])
        places.append((payload.offset, payload.end, None, "payload of slot B"))
    except IfwiInvalid:
        pass  # no second payload to name
    return sorted(places, key=lambda place: place[1] - place[0])


def _place_of(places: list[tuple[int, int, int | None, str]], start: int, end: int) -> tuple[int | None, str, int]:
    """(item, name, end) of the part of [start, end) that lies in one place."""
    for first, last, number, name in places:
        if first <= start < last:
            return number, name, min(end, last)
    following = min((first for first, _, _, _ in places if start < first < end), default=end)
    return None, "outside every item", following


def _explain(first: bytes, second: bytes, start: int, end: int) -> str:
    """Why the firmware's own update would leave this difference."""
    slot = layout.SLOTS[0x07]
    payload = range(slot + layout.SLOT_PAYLOAD_OFFSET, slot + layout.SLOT_PAYLOAD_SIZE + 4)
    if slot <= start and end <= slot + layout.FIXED[0x07][1] and all(first[at] == second[at] for at in payload):
        return "counter and checksum of slot B change with every update"
    if layout.UPDATE_METADATA[0] <= start and end <= layout.UPDATE_METADATA[1]:
        return "update metadata"
    cookie = layout.COOKIE_MAGIC
    low = max(0, start - len(cookie))
    if any(cookie in data[low : end + len(cookie)] for data in (first, second)) and end - start <= 64:
        return "update cookie"
    return ""
