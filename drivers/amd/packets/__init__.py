"""Packet layouts of AMD command processors: PM4 (compute rings) and SDMA (copy rings). Pure data: drivers, mocks and tools share it.

`generate.py` makes the `*.pkt` files from CSV fact tables. One packet a line, numbers hexadecimal:

    NAME opcode[.sub_opcode] dword.field:lsb-msb dword.field:lsb ...

Dword 0 is the header. The parts of a header that every packet has (PM4: type, count, opcode; SDMA: op, sub_op) are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hw.errors import TghwError, UnknownHardware

_HERE = Path(__file__).parent

PM4_TYPE3 = 0xC0000000
"""bits 31:30 of the only packet type that compute rings use"""


class UnknownPacket(TghwError):
    code = "unknown-packet"
    default_means = "the packet tables of this generation do not have that packet or field"


class Place(NamedTuple):
    """Where a field lies: dword of the packet, lowest and highest bit (both inclusive)."""

    dword: int
    low: int
    high: int


class Packet:
    """One packet of one engine generation."""

    __slots__ = ("fields", "is_pm4", "length", "name", "opcode", "sub_opcode")

    def __init__(self, line: str, is_pm4: bool) -> None:
        name, code, *places = line.split(" ")
        opcode, _, sub_opcode = code.partition(".")
        self.name = name
        self.is_pm4 = is_pm4
        self.opcode = int(opcode, 16)
        self.sub_opcode = int(sub_opcode or "0", 16)
        self.fields: dict[str, Place] = {}
        """in table order"""
        for place in places:
            dword, _, rest = place.partition(".")
            field, _, bits = rest.partition(":")
            low, _, high = bits.partition("-")
            self.fields[field] = Place(int(dword, 16), int(low, 16), int(high or low, 16))
        self.length = 1 + max((place.dword for place in self.fields.values()), default=0)
        """dwords up to the last named field, header included; packets that carry data may be longer"""

    def encode(self, data: Sequence[int] = (), **values: int) -> list[int]:
        """The words of a packet: named fields, others 0, then `data` from the place of field `data0` on.

        Raises UnknownPacket for an unknown field, ValueError for a value that does not fit.
        """
        length = self.fields["data0"].dword if "data0" in self.fields else self.length
        words = [0] * length
        for name, value in values.items():
            place = self.place(name)
            if not 0 <= value < 1 << (place.high - place.low + 1):
                raise ValueError(f"{self.name}.{name} holds {place.high - place.low + 1} bits, {value:#x} does not fit")
            words[place.dword] |= value << place.low
        words.extend(data)
        if self.is_pm4:
            words[0] |= PM4_TYPE3 | len(words) - 2 << 16 | self.opcode << 8
        else:
            words[0] |= self.sub_opcode << 8 | self.opcode
        return words

    def word(self, dword: int, **values: int) -> int:
        """One dword after the header made of fields. Raises UnknownPacket, ValueError like encode()."""
        misplaced = [name for name in values if self.place(name).dword != dword]
        if misplaced:
            raise UnknownPacket(f"{self.name} has {', '.join(misplaced)} in another dword than {dword}")
        return self.encode((), **values)[dword]

    def decode(self, words: Sequence[int]) -> dict[str, int]:
        """Field values; fields beyond the end of `words` are left out."""
        return {name: words[dword] >> low & (1 << high - low + 1) - 1 for name, (dword, low, high) in self.fields.items() if dword < len(words)}

    def place(self, field: str) -> Place:
        """Where a field lies. Raises UnknownPacket."""
        place = self.fields.get(field)
        if place is None:
            raise UnknownPacket(f"{self.name} has no field {field}", read=f"fields: {', '.join(self.fields)}")
        return place

    def mask(self, *fields: str) -> int:
        """Bits of the dword that these fields cover."""
        return sum((1 << place.high - place.low + 1) - 1 << place.low for place in map(self.place, fields))


class PacketTable:
    """The packets of one engine generation, by name and by opcode."""

    def __init__(self, name: str, text: str, is_pm4: bool) -> None:
        self.name = name
        self.packets = {packet.name: packet for packet in (Packet(line, is_pm4) for line in text.splitlines())}
        self.by_opcode: dict[tuple[int, int], Packet] = {}
        """(opcode, sub-opcode; 0 for PM4) to packet. Where two share a code (SDMA copy and broadcast copy, poll and HDP flush) the plain one."""
        for packet in self.packets.values():
            self.by_opcode.setdefault((packet.opcode, packet.sub_opcode), packet)

    def __getitem__(self, name: str) -> Packet:
        packet = self.packets.get(name)
        if packet is None:
            raise UnknownPacket(f"{self.name} has no packet {name}")
        return packet

    def __contains__(self, name: str) -> bool:
        return name in self.packets

    def __iter__(self) -> Iterator[Packet]:
        return iter(self.packets.values())


@cache
def _load(stem: str, is_pm4: bool) -> PacketTable:
    path = _HERE / f"{stem}.pkt"
    if not path.exists():
        known = ", ".join(sorted(each.stem for each in _HERE.glob("*.pkt")))
        raise UnknownHardware(f"no packet table {stem}", read=f"tables: {known}")
    return PacketTable(stem, path.read_text(encoding="ascii"), is_pm4)


def pm4(generation: str = "gfx11") -> PacketTable:
    """The PM4 packets of a graphics generation. Raises UnknownHardware."""
    return _load(f"pm4_{generation}", True)


def sdma(generation: str = "sdma6") -> PacketTable:
    """The SDMA packets of an engine generation. Raises UnknownHardware."""
    return _load(generation, False)


def pm4_header(opcode: int, payload: int) -> int:
    """Type-3 header of a packet with this many dwords after it (at least one)."""
    return PM4_TYPE3 | payload - 1 << 16 | opcode << 8
