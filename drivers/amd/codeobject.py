"""Code objects: from the ELF file that LLVM makes for amdgcn to an image for device memory and its kernels.

Takes relocatable objects (what LLVM gives directly) and shared objects (linked). The file is read with `struct` rather than through
an ELF library: a load costs microseconds, and each kind of damage gets an error that names it. The tests hold it against pyelftools.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hw.errors import KernelImageError, NotSupported

# --- ELF64, little endian (System V ABI; AMDGPU additions from LLVM's AMDGPU usage guide) --------------------------------

_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_REL = struct.Struct("<QQ")

CLASS_64 = 2
LITTLE_ENDIAN = 1
TYPE_RELOCATABLE = 1
TYPE_SHARED = 3
MACHINE_AMDGPU = 0xE0

SHT_PROGBITS = 1
SHT_SYMTAB = 2
SHT_RELA = 4
SHT_NOBITS = 8
SHT_REL = 9
SHT_DYNSYM = 11
SHF_ALLOC = 2
SHN_UNDEF = 0
SHN_LDS = 0xFF00
SHN_ABS = 0xFFF1
SHN_RESERVED = 0xFF00
"""section numbers from here on do not name sections"""

ARCH_FLAGS = {0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950"}
"""low byte of e_flags"""

MAX_IMAGE = 256 << 20
"""bytes; larger ones are refused: no kernel is, a damaged size field may be"""
PAGE = 0x1000

RELOCATION_NAMES = {
    1: "ABS32_LO",
    2: "ABS32_HI",
    3: "ABS64",
    4: "REL32",
    5: "REL64",
    6: "ABS32",
    7: "GOTPCREL",
    8: "GOTPCREL32_LO",
    9: "GOTPCREL32_HI",
    10: "REL32_LO",
    11: "REL32_HI",
    13: "RELATIVE64",
    14: "REL16",
}
R_RELATIVE64 = 13
R_REL16 = 14
ABSOLUTE = {1, 2, 3, 6}
GOT = {7, 8, 9}
RELATIVE_OF_GOT = {7: 4, 8: 10, 9: 11}
"""a GOT relocation is a PC-relative one to the slot"""
GOT_SLOT = 8
SIZES = {1: 4, 2: 4, 3: 8, 4: 4, 5: 8, 6: 4, 10: 4, 11: 4, 13: 8, 14: 2}

# --- kernel descriptor (64 bytes) ----------------------------------------------------------------------------------------

_DESCRIPTOR = struct.Struct("<IIIIq20sIIIHHI")
DESCRIPTOR_BYTES = 64
ENTRY_ALIGN = 256
KERNARG_LIMIT = 1 << 16
PRIVATE_LIMIT = 1 << 20
"""sizes beyond these are damage, not kernels"""

PRIVATE_SEGMENT_BUFFER = 1 << 0
DISPATCH_POINTER = 1 << 1
KERNARG_POINTER = 1 << 3
WAVE32 = 1 << 10
UNSUPPORTED_PROPERTIES = {
    1 << 2: "the queue pointer",
    1 << 4: "a dispatch id",
    1 << 5: "a flat-scratch set-up",
    1 << 6: "the private segment size",
    1 << 11: "a stack that grows at run time",
}
RSRC1_PRIV = 1 << 20
RSRC2_LDS_SHIFT = 15
LDS_GRANULE = 512
LDS_LIMIT = 64 << 10
"""bytes of local memory of a workgroup on gfx11"""
PRIVILEGED_ARCHS = ("gfx11",)
"""where RSRC1 gets the PRIV bit, so that no trap handler interferes"""


@dataclass(frozen=True)
class KernelDescriptor:
    """What the compiler says about a kernel. Sizes in bytes; `private_segment` a lane."""

    group_segment: int
    private_segment: int
    kernarg_size: int
    entry_offset: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    @property
    def wave32(self) -> bool:
        return bool(self.properties & WAVE32)

    @property
    def user_sgprs(self) -> int:
        """scalar registers that are set before the workgroup ids"""
        return self.rsrc2 >> 1 & 0x1F

    def user_layout(self) -> list[tuple[str, int]]:
        """Items in the first scalar registers, in order: name and number of registers."""
        items = ((PRIVATE_SEGMENT_BUFFER, "private segment buffer", 4), (DISPATCH_POINTER, "dispatch pointer", 2), (KERNARG_POINTER, "kernarg pointer", 2))
        return [(name, count) for bit, name, count in items if self.properties & bit]

    def sent_rsrc1(self, arch: str) -> int:
        """COMPUTE_PGM_RSRC1 as it goes to the device."""
        return self.rsrc1 | (RSRC1_PRIV if arch.startswith(PRIVILEGED_ARCHS) else 0)

    def sent_rsrc2(self, dynamic_lds: int = 0) -> int:
        """COMPUTE_PGM_RSRC2 as it goes to the device: with the local memory filled in."""
        return self.rsrc2 | -(-(self.group_segment + dynamic_lds) // LDS_GRANULE) << RSRC2_LDS_SHIFT


class KernelImage(NamedTuple):
    """A kernel of an image: offsets from the start of the image."""

    name: str
    descriptor_offset: int
    entry_offset: int
    descriptor: KernelDescriptor


class _Section(NamedTuple):
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


class _Fixup(NamedTuple):
    """A relocation that needs the address of the image: type, place, and value relative to the image (or absolute)."""

    type: int
    place: int
    value: int
    in_image: bool


@dataclass
class CodeObject:
    """A parsed code object. `image` has everything applied that does not depend on where it will lie."""

    arch: str
    image: bytearray
    kernels: dict[str, KernelImage]
    _fixups: list[_Fixup] = field(default_factory=list)

    @property
    def device_bytes(self) -> int:
        """Device memory to reserve: whole pages."""
        return -(-len(self.image) // PAGE) * PAGE

    @property
    def position_independent(self) -> bool:
        return not self._fixups

    def place(self, base: int) -> bytes:
        """The image as it must lie at device address `base`."""
        if not self._fixups:
            return bytes(self.image)
        image = bytearray(self.image)
        for fixup in self._fixups:
            value = fixup.value + (base if fixup.in_image else 0)
            _store(image, fixup.type, fixup.place, value)
        return bytes(image)


def parse(data: bytes | bytearray | memoryview, arch: str, symbols: Mapping[str, int] | None = None) -> CodeObject:
    """Read a code object for `arch` ("gfx1100").

    symbols: absolute values of symbols that the object leaves undefined. Raises KernelImageError for a damaged or foreign file and
    for a relocation that cannot be applied, NotSupported for a kernel that wants a register set-up that is not offered.
    """
    return _Loader(bytes(data), arch, symbols or {}).load()


class _Loader:
    def __init__(self, data: bytes, arch: str, symbols: Mapping[str, int]) -> None:
        self.data = data
        self.arch = arch
        self.given = symbols
        self.shared = False
        self.sections: list[_Section] = []
        self.places: dict[int, int] = {}
        """section number to its offset in the image"""
        self.image = bytearray()
        self.fixups: list[_Fixup] = []
        self.got: dict[tuple[int, bool], int] = {}
        self.tables: dict[int, list[_Symbol]] = {}

    def load(self) -> CodeObject:
        self.read_header()
        if self.shared:
            self.place_at_addresses()
        else:
            self.place_in_order()
        for section in self.sections:
            if section.type in (SHT_RELA, SHT_REL):
                self.relocate(section)
        kernels = self.find_kernels()
        return CodeObject(self.arch, self.image, kernels, self.fixups)

    # --- file ---------------------------------------------------------------------------------------------------------

    def read_header(self) -> None:
        data = self.data
        if len(data) < _HEADER.size:
            raise KernelImageError("reading the ELF header", read=f"{len(data)} bytes, {_HEADER.size} are needed")
        magic, elf_class, encoding, _, _, kind, machine, _, _, _, table, flags, _, _, _, entry_size, count, names = _HEADER.unpack_from(data)
        if magic != b"\x7fELF":
            raise KernelImageError("reading the ELF header", read=f"magic {magic.hex()}", means="the file is no ELF file")
        if elf_class != CLASS_64 or encoding != LITTLE_ENDIAN or machine != MACHINE_AMDGPU:
            raise KernelImageError("reading the ELF header", read=f"class {elf_class}, encoding {encoding}, machine {machine:#x}", means="the file is not for AMD GPUs")
        if kind not in (TYPE_RELOCATABLE, TYPE_SHARED):
            raise KernelImageError("reading the ELF header", read=f"type {kind}", means="neither a relocatable nor a shared object")
        found = ARCH_FLAGS.get(flags & 0xFF, f"machine {flags & 0xFF:#x}")
        if found != self.arch:
            raise KernelImageError(
                f"loading a kernel for {found} on {self.arch}", read=f"e_flags {flags:#x}", means="the object was compiled for another chip", remedy=f"compile it for {self.arch}"
            )
        self.shared = kind == TYPE_SHARED
        if not count or entry_size != _SECTION.size or table + count * entry_size > len(data):
            raise KernelImageError("reading the section table", read=f"{count} sections of {entry_size} bytes at {table:#x} in a file of {len(data)} bytes")
        if names >= count:
            raise KernelImageError("reading the section names", read=f"name section {names} of {count}")
        raw = list(_SECTION.iter_unpack(data[table : table + count * entry_size]))
        strings = self.body(raw[names][4], raw[names][5], "the section names")
        for name, *rest in raw:
            section = _Section(_string(strings, name), *rest)
            if section.align & section.align - 1:
                raise KernelImageError(f"section {section.name}", read=f"alignment {section.align}", means="alignments are powers of two")
            self.sections.append(section)

    def body(self, offset: int, size: int, what: str) -> bytes:
        """Bytes of the file. Raises KernelImageError when it ends before them."""
        if offset + size > len(self.data):
            raise KernelImageError(f"reading {what}", read=f"bytes {offset:#x} to {offset + size:#x} of a file of {len(self.data):#x}", means="the file was cut short")
        return self.data[offset : offset + size]

    # --- image --------------------------------------------------------------------------------------------------------

    def place_in_order(self) -> None:
        """Relocatable objects have no addresses: sections follow each other in file order, each at its own alignment."""
        image = self.image
        for number, section in enumerate(self.sections):
            if not section.flags & SHF_ALLOC or section.type not in (SHT_PROGBITS, SHT_NOBITS):
                continue
            start = -(-len(image) // (section.align or 1)) * (section.align or 1)
            self.limit(start + section.size, section)
            image.extend(bytes(start - len(image)))
            image.extend(self.contents(section))
            self.places[number] = start

    def place_at_addresses(self) -> None:
        """Shared objects are laid out by the linker."""
        for number, section in enumerate(self.sections):
            if not section.flags & SHF_ALLOC or not section.size or section.type == 0:
                continue
            self.limit(section.address + section.size, section)
            missing = section.address + section.size - len(self.image)
            if missing > 0:
                self.image.extend(bytes(missing))
            self.image[section.address : section.address + section.size] = self.contents(section)
            self.places[number] = section.address

    def contents(self, section: _Section) -> bytes:
        return bytes(section.size) if section.type == SHT_NOBITS else self.body(section.offset, section.size, f"section {section.name}")

    def limit(self, end: int, section: _Section) -> None:
        if end > MAX_IMAGE:
            raise KernelImageError(f"placing section {section.name}", read=f"its end at {end:#x}", means="the size or address of the section is damaged")

    # --- symbols and relocations --------------------------------------------------------------------------------------

    def symbols(self, number: int) -> list[_Symbol]:
        table = self.tables.get(number)
        if table is not None:
            return table
        if number >= len(self.sections) or self.sections[number].type not in (SHT_SYMTAB, SHT_DYNSYM):
            raise KernelImageError("reading the symbol table", read=f"section {number} is none")
        section = self.sections[number]
        if section.size % _SYMBOL.size or section.link >= len(self.sections):
            raise KernelImageError(f"reading the symbol table {section.name}", read=f"{section.size} bytes, names in section {section.link}")
        names = self.sections[section.link]
        strings = self.body(names.offset, names.size, "the symbol names")
        table = [
            _Symbol(_string(strings, name), home, value, size) for name, _, _, home, value, size in _SYMBOL.iter_unpack(self.body(section.offset, section.size, "the symbol table"))
        ]
        self.tables[number] = table
        return table

    def relocate(self, table: _Section) -> None:
        """Apply one relocation table to the section (relocatable object) or addresses (shared object) it is for."""
        if self.shared:
            start, size = 0, len(self.image)
        elif table.info in self.places:
            start, size = self.places[table.info], self.sections[table.info].size
        else:
            return
        layout = _RELA if table.type == SHT_RELA else _REL
        if table.size % layout.size:
            raise KernelImageError(f"reading the relocations {table.name}", read=f"{table.size} bytes, not a multiple of {layout.size}")
        symbols = self.symbols(table.link) if table.size else []
        for entry in layout.iter_unpack(self.body(table.offset, table.size, f"the relocations {table.name}")):
            offset, info = entry[:2]
            kind, index = info & 0xFFFFFFFF, info >> 32
            name = RELOCATION_NAMES.get(kind)
            if name is None:
                raise KernelImageError(f"unknown AMD reloc {kind} in {table.name}", means="this relocation type is not known, so the code would use a wrong address")
            width = SIZES[RELATIVE_OF_GOT.get(kind, kind)]
            if offset + width > size:
                raise KernelImageError(f"relocation {name} in {table.name}", read=f"offset {offset:#x} of {size:#x} bytes", means="it lies outside what it relocates")
            if index >= len(symbols):
                raise KernelImageError(f"relocation {name} in {table.name}", read=f"symbol {index} of {len(symbols)}")
            place = start + offset
            addend = entry[2] if layout is _RELA else int.from_bytes(self.image[place : place + width], "little", signed=True)
            self.apply(kind, place, addend, symbols[index])

    def apply(self, kind: int, place: int, addend: int, symbol: _Symbol) -> None:
        if kind == R_RELATIVE64:
            self.fixups.append(_Fixup(kind, place, addend, True))
            return
        value, in_image = self.value(symbol)
        if kind in GOT:
            value, in_image = self.got_slot(value, in_image), True
            kind = RELATIVE_OF_GOT[kind]
        if kind in ABSOLUTE:
            if in_image:
                self.fixups.append(_Fixup(kind, place, value + addend, True))
            else:
                _store(self.image, kind, place, value + addend)
        elif in_image:
            _store(self.image, kind, place, value + addend - place)
        else:
            raise KernelImageError(f"relocation {RELOCATION_NAMES[kind]} to {symbol.name}", means="a distance from the code to a fixed address depends on where the code lies")

    def value(self, symbol: _Symbol) -> tuple[int, bool]:
        """The value of a symbol, and whether it is an offset in the image (else it is absolute)."""
        if symbol.section == SHN_ABS:
            return symbol.value, False
        if symbol.section == SHN_UNDEF:
            if symbol.name in self.given:
                return self.given[symbol.name], False
            raise KernelImageError(f"undefined symbol {symbol.name or '(unnamed)'}", means="the object calls something that is not in it", remedy="define it in the same module")
        if symbol.section == SHN_LDS:
            raise KernelImageError(f"symbol {symbol.name} in local memory", means="local memory shared between modules needs a linker", remedy="give the variable internal linkage")
        if symbol.section >= SHN_RESERVED or symbol.section not in self.places:
            raise KernelImageError(f"symbol {symbol.name}", read=f"section {symbol.section}", means="it lies in no section that is loaded")
        return (symbol.value if self.shared else self.places[symbol.section] + symbol.value), True

    def got_slot(self, value: int, in_image: bool) -> int:
        """Offset of an 8-byte slot, behind the sections, that holds the address of a symbol."""
        slot = self.got.get((value, in_image))
        if slot is None:
            self.image.extend(bytes(-len(self.image) % GOT_SLOT))
            slot = len(self.image)
            self.image.extend(bytes(GOT_SLOT))
            self.got[value, in_image] = slot
            if in_image:
                self.fixups.append(_Fixup(3, slot, value, True))
            else:
                _store(self.image, 3, slot, value)
        return slot

    # --- kernels ------------------------------------------------------------------------------------------------------

    def find_kernels(self) -> dict[str, KernelImage]:
        kernels: dict[str, KernelImage] = {}
        for number, section in enumerate(self.sections):
            if section.type in (SHT_SYMTAB, SHT_DYNSYM):
                for symbol in self.symbols(number):
                    if symbol.name.endswith(".kd") and symbol.section != SHN_UNDEF:
                        name = symbol.name[:-3]
                        kernels[name] = self.kernel(name, self.value(symbol)[0])
        if not kernels:
            # objects written by hand have no symbols: one descriptor at the start of .rodata
            place = next((self.places[number] for number, section in enumerate(self.sections) if section.name == ".rodata" and number in self.places), None)
            if place is None:
                raise KernelImageError(
                    "looking for a kernel descriptor", read="neither a symbol NAME.kd nor a section .rodata", means=".rodata section not found: the object holds no kernel"
                )
            kernels["kernel"] = self.kernel("kernel", place)
        return kernels

    def kernel(self, name: str, place: int) -> KernelImage:
        if place % DESCRIPTOR_BYTES or place + DESCRIPTOR_BYTES > len(self.image):
            raise KernelImageError(
                f"the descriptor of {name}", read=f"offset {place:#x} in an image of {len(self.image):#x} bytes", means="descriptors are 64 bytes at a multiple of 64"
            )
        group, private, kernarg, reserved0, entry, reserved1, rsrc3, rsrc1, rsrc2, properties, preload, reserved2 = _DESCRIPTOR.unpack_from(self.image, place)
        descriptor = KernelDescriptor(group, private, kernarg, entry, rsrc1, rsrc2, rsrc3, properties, preload)
        if reserved0 or any(reserved1) or reserved2:
            raise KernelImageError(f"the descriptor of {name}", read="reserved bytes are not zero", means="the descriptor is damaged, or of a newer kind")
        start = place + entry
        if start % ENTRY_ALIGN or not 0 <= start < len(self.image):
            raise KernelImageError(
                f"the entry of {name}", read=f"offset {start:#x} in an image of {len(self.image):#x} bytes", means="code starts at a multiple of 256 inside the image"
            )
        if group > LDS_LIMIT:
            raise KernelImageError(
                f"Too many resources requested: group_segment_size of {name}", read=f"{group} bytes of local memory", means=f"a workgroup has at most {LDS_LIMIT}"
            )
        if kernarg > KERNARG_LIMIT or private > PRIVATE_LIMIT:
            raise KernelImageError(f"the descriptor of {name}", read=f"{kernarg} bytes of arguments, {private} of private memory a lane")
        self.check_offered(name, descriptor)
        return KernelImage(name, place, start, descriptor)

    def check_offered(self, name: str, descriptor: KernelDescriptor) -> None:
        wanted = [text for bit, text in UNSUPPORTED_PROPERTIES.items() if descriptor.properties & bit]
        if descriptor.preload:
            wanted.append("preloaded arguments")
        if wanted:
            raise NotSupported(f"kernel {name} wants {', '.join(wanted)} in its registers", read=f"properties {descriptor.properties:#x}, preload {descriptor.preload:#x}")
        needed = sum(count for _, count in descriptor.user_layout())
        if needed > descriptor.user_sgprs:
            raise KernelImageError(f"the descriptor of {name}", read=f"{descriptor.user_sgprs} user registers for {needed} that it asks for")


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset > len(table) or end < 0:
        raise KernelImageError("reading a name", read=f"offset {offset:#x} in a table of {len(table):#x} bytes", means="the string table is damaged")
    return table[offset:end].decode("ascii", "replace")


def _store(image: bytearray, kind: int, place: int, value: int) -> None:
    """Store a computed relocation value in the form its type asks for. Raises KernelImageError when it does not fit."""
    size = SIZES[kind]
    if kind in (1, 10):
        value &= 0xFFFFFFFF
    elif kind in (2, 11):
        value = value >> 32 & 0xFFFFFFFF
    elif kind == R_REL16:
        value = value - 4 >> 2
    bits = size * 8
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise KernelImageError(f"relocation {RELOCATION_NAMES[kind]} at {place:#x}", read=f"value {value:#x}", means=f"it does not fit {bits} bits")
    image[place : place + size] = (value & (1 << bits) - 1).to_bytes(size, "little")
