"""Code objects against tests/data/amd_elf.json (gfx1100 part of the AMD vectors), pyelftools, hand-made shared objects and damage."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import struct
from pathlib import Path

import pytest

from drivers.amd import codeobject
from drivers.amd.codeobject import CodeObject, parse
from drivers.amd.empty_kernel import empty_object
from hw.errors import KernelImageError, NotSupported, UnknownHardware
from tests.drivers.queue.kernels import ATTRIBUTES, BODIES, HEAD, compile_ir

VECTORS = {vector["id"]: vector for vector in json.loads((Path(__file__).parents[2] / "data/amd_elf.json").read_text())["vectors"]}
OBJECTS = {name: base64.b64decode(vector["inputs"]["object_base64"]) for name, vector in VECTORS.items()}
ADD = OBJECTS["gfx1100.add"]
BASE = 0x200000345000


@pytest.mark.parametrize("name", VECTORS)
def test_image_descriptor_and_registers_equal_the_recorded_ones(name: str) -> None:
    expected = VECTORS[name]["expected"]
    loaded = parse(OBJECTS[name], "gfx1100")
    (kernel,) = loaded.kernels.values()
    descriptor = kernel.descriptor
    assert hashlib.sha256(loaded.place(BASE)).hexdigest() == expected["relocated_image_sha256"]
    assert len(loaded.image) == expected["image_bytes"]
    assert loaded.device_bytes == expected["derived"]["device_bytes"]
    assert kernel.name == name.removeprefix("gfx1100.")
    assert kernel.descriptor_offset == int(expected["descriptor_offset"], 16)
    assert kernel.entry_offset == int(expected["entry_offset"], 16)
    wanted = expected["descriptor"]
    assert descriptor.group_segment == wanted["group_segment_fixed_size"]
    assert descriptor.private_segment == wanted["private_segment_fixed_size"]
    assert descriptor.kernarg_size == wanted["kernarg_size"]
    assert descriptor.entry_offset == wanted["kernel_code_entry_byte_offset"]
    assert [hex(each) for each in (descriptor.rsrc1, descriptor.rsrc2, descriptor.rsrc3, descriptor.properties)] == [
        wanted["compute_pgm_rsrc1"],
        wanted["compute_pgm_rsrc2"],
        wanted["compute_pgm_rsrc3"],
        wanted["kernel_code_properties"],
    ]
    derived = expected["derived"]
    assert hex(descriptor.sent_rsrc1("gfx1100")) == derived["rsrc1_sent"]
    assert hex(descriptor.sent_rsrc2()) == derived["rsrc2_sent"]
    assert descriptor.wave32 == derived["wave32"]
    items = [item for item, _ in descriptor.user_layout()]
    assert ("dispatch pointer" in items, "private segment buffer" in items, "kernarg pointer" in items) == (
        derived["wants_dispatch_ptr"],
        derived["wants_private_segment_buffer"],
        derived["wants_kernarg_ptr"],
    )


@pytest.mark.parametrize("name", VECTORS)
def test_sections_symbols_and_relocations_are_what_pyelftools_reads(name: str) -> None:
    from elftools.elf.elffile import ELFFile

    loader = codeobject._Loader(OBJECTS[name], "gfx1100", {})
    loader.load()
    judge = ELFFile(io.BytesIO(OBJECTS[name]))
    assert [section.name for section in loader.sections] == [section.name for section in judge.iter_sections()]
    for number, section in enumerate(judge.iter_sections()):
        ours = loader.sections[number]
        assert (ours.size, ours.offset, ours.align, ours.flags) == (section["sh_size"], section["sh_offset"], section["sh_addralign"], section["sh_flags"])
        if section["sh_type"] == "SHT_SYMTAB":
            assert [(symbol.name, symbol.value, symbol.size) for symbol in loader.symbols(number)] == [
                (symbol.name, symbol["st_value"], symbol["st_size"]) for symbol in section.iter_symbols()
            ]


# --- hand-made objects ------------------------------------------------------------------------------------------------


class Elf:
    """Builds small AMDGPU ELF files: (name, type, flags, address, body, link, info, align)."""

    def __init__(self, kind: int, flags: int = 0x41) -> None:
        self.kind = kind
        self.flags = flags
        self.sections: list[list] = [["", 0, 0, 0, b"", 0, 0, 0, 0]]

    def add(
        self, name: str, kind: int, body: bytes, *, flags: int = 0, address: int = 0, link: int = 0, info: int = 0, align: int = 1, entry: int = 0, size: int | None = None
    ) -> int:
        self.sections.append([name, kind, flags, address, body, link, info, align, entry, size])
        return len(self.sections) - 1

    def build(self) -> bytes:
        names = b"\0"
        places = []
        for section in self.sections:
            places.append(len(names) if section[0] else 0)
            names += section[0].encode() + b"\0" if section[0] else b""
        places.append(len(names))
        names += b".shstrtab\0"
        body = bytearray(64)
        headers = []
        for section, name in zip([*self.sections, [".shstrtab", 3, 0, 0, names, 0, 0, 1, 0]], places, strict=True):
            body.extend(bytes(-len(body) % max(section[7], 1)))
            size = section[9] if len(section) > 9 and section[9] is not None else len(section[4])
            headers.append(struct.pack("<IIQQQQIIQQ", name, section[1], section[2], section[3], len(body), size, section[5], section[6], section[7], section[8]))
            body.extend(section[4])
        table = len(body)
        header = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0x40, self.kind, 0xE0, 1, 0, 0, table, self.flags, 64, 0, 0, 64, len(headers), len(headers) - 1)
        body[:64] = header
        return bytes(body) + b"".join(headers)


def descriptor(entry: int, **changes: int) -> bytes:
    values = {"group": 0, "private": 0, "kernarg": 8, "rsrc1": 0xC0AF0000, "rsrc2": 0x9E, "rsrc3": 0x10, "properties": 0x408, "preload": 0, "reserved": 0} | changes
    return struct.pack(
        "<IIIIq20xIIIHHI",
        values["group"],
        values["private"],
        values["kernarg"],
        values["reserved"],
        entry,
        values["rsrc3"],
        values["rsrc1"],
        values["rsrc2"],
        values["properties"],
        values["preload"],
        0,
    )


def relocatable(relocations: list[tuple[int, int, int, int]], symbols: list[tuple[str, int, int]], **changes: int) -> bytes:
    """.text of 256 bytes, .rodata with one descriptor "k.kd", .data of 32 bytes. relocations: (offset in .data, symbol, type, addend)."""
    elf = Elf(1)
    text = elf.add(".text", 1, bytes(256), flags=6, align=256)
    rodata = elf.add(".rodata", 1, descriptor(-256, **changes), flags=2, align=64)
    data = elf.add(".data", 1, bytes(32), flags=3, align=8)
    all_symbols = [("", 0, 0), ("k.kd", rodata, 0), ("k", text, 0x10), *symbols]
    strings = b"\0"
    packed = b""
    for name, section, value in all_symbols:
        packed += struct.pack("<IBBHQQ", len(strings) if name else 0, 0x11, 0, section, value, 0)
        strings += name.encode() + b"\0" if name else b""
    names = elf.add(".strtab", 3, strings)
    table = elf.add(".symtab", 2, packed, link=names, entry=24, align=8)
    rela = b"".join(struct.pack("<QQq", offset, symbol << 32 | kind, addend) for offset, symbol, kind, addend in relocations)
    elf.add(".rela.data", 4, rela, link=table, info=data, entry=24, align=8)
    return elf.build()


DATA = 320
"""offset of .data in the image of relocatable()"""
K = 2
"""symbol number of "k", at image offset 0x10"""


def word(image: bytes, offset: int, size: int) -> int:
    return int.from_bytes(image[DATA + offset : DATA + offset + size], "little")


def test_every_relocation_type_computes_its_formula() -> None:
    kinds = [(0, K, 1, 4), (4, K, 2, 4), (8, K, 3, 4), (16, K, 4, 4), (20, K, 10, 4), (24, K, 11, 4)]
    loaded = parse(relocatable(kinds, []), "gfx1100")
    assert not loaded.position_independent
    image = loaded.place(BASE)
    assert word(image, 0, 4) == (BASE + 0x14) & 0xFFFFFFFF
    assert word(image, 4, 4) == (BASE + 0x14) >> 32
    assert word(image, 8, 8) == BASE + 0x14
    assert word(image, 16, 4) == (0x14 - (DATA + 16)) & 0xFFFFFFFF
    assert word(image, 20, 4) == (0x14 - (DATA + 20)) & 0xFFFFFFFF
    assert word(image, 24, 4) == 0xFFFFFFFF
    image = parse(relocatable([(0, K, 5, -8), (8, K, 14, 0)], []), "gfx1100").place(BASE)
    assert word(image, 0, 8) == (0x8 - DATA) & (1 << 64) - 1
    assert word(image, 8, 2) == ((0x10 - (DATA + 8) - 4) >> 2) & 0xFFFF


def test_got_relocations_point_to_a_shared_slot_that_holds_the_address() -> None:
    loaded = parse(relocatable([(0, K, 7, 0), (4, K, 8, 4), (8, K, 9, 12)], []), "gfx1100")
    image = loaded.place(BASE)
    slot = DATA + word(image, 0, 4)
    assert slot == 352
    assert len(image) == 360
    assert int.from_bytes(image[slot : slot + 8], "little") == BASE + 0x10
    assert word(image, 4, 4) == slot + 4 - (DATA + 4)
    assert word(image, 8, 4) == 0


def test_absolute_and_given_symbols_are_used_as_they_are() -> None:
    symbols = [("fixed", 0xFFF1, 0x1234), ("outside", 0, 0)]
    image = parse(relocatable([(0, 3, 3, 1), (8, 4, 3, 0)], symbols), "gfx1100", {"outside": 0xABCD}).place(BASE)
    assert word(image, 0, 8) == 0x1235
    assert word(image, 8, 8) == 0xABCD


@pytest.mark.parametrize(
    ("relocations", "symbols", "text"),
    [
        ([(0, K, 12, 0)], [], "unknown AMD reloc 12"),
        ([(0, K, 99, 0)], [], "unknown AMD reloc 99"),
        ([(30, K, 3, 0)], [], "relocation ABS64"),
        ([(1 << 40, K, 3, 0)], [], "relocation ABS64"),
        ([(0, 77, 3, 0)], [], "symbol 77 of"),
        ([(0, 3, 3, 0)], [("helper", 0, 0)], "undefined symbol helper"),
        ([(0, 3, 3, 0)], [("shared", 0xFF00, 0)], "symbol shared in local memory"),
        ([(0, 3, 3, 0)], [("lost", 0xFFF2, 0)], "symbol lost"),
        ([(0, 3, 5, 0)], [("fixed", 0xFFF1, 0)], "relocation REL64 to fixed"),
        ([(0, K, 4, 1 << 40)], [], "does not fit 32 bits"),
    ],
)
def test_relocations_that_cannot_be_applied_are_refused_by_name(relocations: list, symbols: list, text: str) -> None:
    with pytest.raises(KernelImageError) as caught:
        parse(relocatable(relocations, symbols), "gfx1100")
    assert text in caught.value.explain()


def test_shared_object_is_laid_out_by_its_addresses_and_relocated_to_where_it_lies() -> None:
    elf = Elf(3)
    elf.add(".rodata", 1, descriptor(0x1000 - 0x200), flags=2, address=0x200, align=64)
    text = elf.add(".text", 1, b"\x55" * 16, flags=6, address=0x1000, align=256)
    elf.add(".data", 1, bytes(16), flags=3, address=0x2000, align=8)
    elf.add(".bss", 8, b"", flags=3, address=0x2010, align=8, size=32)
    strings = b"\0k.kd\0v\0"
    names = elf.add(".dynstr", 3, strings, flags=2, address=0x100)
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 1, 0x11, 0, 1, 0x200, 64) + struct.pack("<IBBHQQ", 6, 0x11, 0, text, 0x1004, 0)
    table = elf.add(".dynsym", 11, symbols, flags=2, address=0x110, link=names, entry=24)
    elf.add(".rela.dyn", 4, struct.pack("<QQq", 0x2000, 13, 0x1008) + struct.pack("<QQq", 0x2008, 2 << 32 | 3, 4), flags=2, address=0x180, link=table, entry=24)
    loaded = parse(elf.build(), "gfx1100")
    image = loaded.place(BASE)
    assert len(image) == 0x2030
    assert image[0x1000:0x1010] == b"\x55" * 16
    assert int.from_bytes(image[0x2000:0x2008], "little") == BASE + 0x1008
    assert int.from_bytes(image[0x2008:0x2010], "little") == BASE + 0x1008
    assert loaded.kernels["k"].entry_offset == 0x1000


def test_object_without_symbols_has_its_one_kernel_at_the_start_of_rodata() -> None:
    elf = Elf(1)
    elf.add(".text", 1, bytes(256), flags=6, align=256)
    elf.add(".rodata", 1, descriptor(-256), flags=2, align=64)
    assert parse(elf.build(), "gfx1100").kernels["kernel"].entry_offset == 0


def test_object_with_two_kernels_gives_both_by_name() -> None:
    loaded = parse(compile_ir(HEAD + BODIES["empty"] + "\n" + BODIES["plus_one"] + ATTRIBUTES), "gfx1100")
    assert list(loaded.kernels) == ["empty", "plus_one"]
    empty, plus_one = loaded.kernels.values()
    assert plus_one.descriptor_offset - empty.descriptor_offset == 64
    assert plus_one.entry_offset > empty.entry_offset
    assert (empty.descriptor.kernarg_size, plus_one.descriptor.kernarg_size) == (0, 16)


def test_hand_made_empty_kernel_is_a_valid_object_for_every_gfx11_chip() -> None:
    for arch in ("gfx1100", "gfx1101", "gfx1102"):
        (kernel,) = parse(empty_object(arch), arch).kernels.values()
        assert kernel.descriptor.wave32
        assert kernel.descriptor.kernarg_size == 24
    with pytest.raises(UnknownHardware):
        empty_object("gfx942")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"group": 65537}, "group_segment_size"),
        ({"reserved": 1}, "reserved bytes"),
        ({"private": 1 << 21}, "private memory"),
        ({"rsrc2": 0x82}, "1 user registers for 2"),
    ],
)
def test_damaged_descriptors_are_refused(changes: dict, text: str) -> None:
    with pytest.raises(KernelImageError) as caught:
        parse(relocatable([], [], **changes), "gfx1100")
    assert text in caught.value.explain()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"properties": 0x40C}, "queue pointer"),
        ({"properties": 0x418}, "dispatch id"),
        ({"properties": 0x428}, "flat-scratch"),
        ({"properties": 0x448}, "private segment size"),
        ({"properties": 0xC08}, "stack that grows"),
        ({"preload": 4}, "preloaded arguments"),
    ],
)
def test_register_set_ups_that_are_not_offered_are_named(changes: dict, text: str) -> None:
    with pytest.raises(NotSupported, match=text):
        parse(relocatable([], [], **changes), "gfx1100")


def test_kernel_of_another_chip_names_both() -> None:
    with pytest.raises(KernelImageError, match="loading a kernel for gfx1100 on gfx1102") as caught:
        parse(ADD, "gfx1102")
    assert "compile it for gfx1102" in caught.value.explain()


def test_every_truncation_is_a_kernel_image_error() -> None:
    for length in range(0, len(ADD), 7):
        with pytest.raises(KernelImageError):
            parse(ADD[:length], "gfx1100")


def test_random_damage_gives_a_kernel_image_error_or_an_image_and_nothing_else() -> None:
    source = random.Random(11)
    outcomes = {"refused": 0, "loaded": 0}
    for _ in range(3000):
        data = bytearray(OBJECTS["gfx1100.table"])
        for _ in range(source.randrange(1, 4)):
            place = source.choice((source.randrange(64), source.randrange(len(data) - 900, len(data)), source.randrange(len(data))))
            data[place] = source.choice((0, 0xFF, 0x80, source.randrange(256)))
        try:
            loaded = parse(data, "gfx1100")
        except (KernelImageError, NotSupported):
            outcomes["refused"] += 1
        else:
            assert isinstance(loaded, CodeObject)
            loaded.place(BASE)
            outcomes["loaded"] += 1
    assert outcomes["refused"] > 500
    assert outcomes["loaded"] > 100
