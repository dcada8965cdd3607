"""The recorder: everything that reaches the device is in the trace, in order, and a filter decides about writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hw.errors import OutOfWindow
from hw.mmio import Batch, LocalMmio, Mmio
from hw.pci.config import BytesConfig
from hw.pci.device import Bar, ConfigSpace, DmaMemory, PciDevice
from hw.trace import Access, Recorder, TracedDevice, TraceInvalid, load


class PlainDevice(PciDevice):
    """A device of plain memory."""

    address = "0000:03:00.0"
    transport = "test"

    def __init__(self) -> None:
        self.config: ConfigSpace = BytesConfig(bytes.fromhex("02104c74") + bytes(60))
        self.memory = LocalMmio.anonymous(0x4000, "BAR5")
        self.ram = LocalMmio.anonymous(0x1000, "RAM")
        self.closed = False

    @property
    def bars(self) -> dict[int, Bar]:
        return {5: Bar(5, 0xFCB00000, 0x4000)}

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> Mmio:
        return self.memory.view(offset, size)

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        return DmaMemory(self.ram, [0x1000])

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def plain() -> PlainDevice:
    return PlainDevice()


@pytest.fixture
def traced(plain: PlainDevice) -> TracedDevice:
    return TracedDevice(plain)


def exercise(device: PciDevice) -> None:
    window = device.map_bar(5, 0x1000)
    window.write32(0x10, 0x11223344)
    assert window.read32(0x10) == 0x11223344
    window.view(0x100, 0x100).write64(8, 7)
    window.write8(3, 0xFF)
    assert window.read8(3) == 0xFF
    assert window.read64(0x108) == 7
    window.write(0x200, bytearray(range(300 % 256)) * 8)
    assert window.read(0x200, 4) == b"\0\1\2\3"
    device.set_bus_master(True)
    memory = device.alloc_dma(4096)
    memory.window.write32(0, 1)


def test_records_say_place_width_and_value_in_order(traced: TracedDevice) -> None:
    exercise(traced)
    assert [tuple(record) for record in traced.recorder.records] == [
        ("w", "bar5", 0x1010, 4, 0x11223344),
        ("r", "bar5", 0x1010, 4, 0x11223344),
        ("w", "bar5", 0x1108, 8, 7),
        ("w", "bar5", 0x1003, 1, 0xFF),
        ("r", "bar5", 0x1003, 1, 0xFF),
        ("r", "bar5", 0x1108, 8, 7),
        ("W", "bar5", 0x1200, 352, bytes(range(44)) * 8),
        ("R", "bar5", 0x1200, 4, b"\0\1\2\3"),
        ("r", "config", 4, 2, 0),
        ("w", "config", 4, 2, 4),
        ("r", "config", 4, 2, 4),
        ("w", "dma0", 0, 4, 1),
    ]


def test_stages_and_places_are_counted(traced: TracedDevice) -> None:
    window = traced.map_bar(5)
    window.write32(0, 1)
    window.read32(0)
    traced.recorder.stage_done("psp")
    window.write(0x100, bytes(64))
    traced.recorder.stage_done("smu")
    window.read8(0)
    stats = traced.recorder.stats()
    assert [stage["name"] for stage in stats["stages"]] == ["psp", "smu", ""]
    assert (stats["stages"][0]["reads"], stats["stages"][0]["writes"]) == (1, 1)
    assert (stats["stages"][1]["block_writes"], stats["stages"][1]["bytes_written"]) == (1, 64)
    assert stats["total"] == {"reads": 2, "writes": 1, "block_reads": 0, "block_writes": 1, "dropped": 0, "bytes_read": 5, "bytes_written": 68}
    assert stats["where"]["bar5"] == stats["total"]


def test_filter_drops_the_nth_write(plain: PlainDevice) -> None:
    seen: list[Access] = []

    def drop_second(access: Access) -> Access | None:
        seen.append(access)
        return None if len(seen) == 2 else access

    traced = TracedDevice(plain, Recorder(drop_second))
    window = traced.map_bar(5)
    for offset in (0, 4, 8):
        window.write32(offset, 0xAA)
    traced.config.write16(4, 7)
    assert plain.memory.read(0, 12) == bytes.fromhex("aa000000 00000000 aa000000")
    assert plain.config.read16(4) == 7
    assert [record.kind for record in traced.recorder.records] == ["w", "x", "w", "w"]
    assert traced.recorder.stats()["total"]["dropped"] == 1
    assert all(access.is_write for access in seen)


def test_filter_flips_bits_of_single_and_block_writes(plain: PlainDevice) -> None:
    def flip(access: Access) -> Access:
        if isinstance(access.value, int):
            return access._replace(value=access.value ^ 1 << 31)
        return access._replace(value=bytes([access.value[0] ^ 1]) + access.value[1:])

    traced = TracedDevice(plain, Recorder(flip))
    window = traced.map_bar(5, 0x1000)
    window.write32(0, 1)
    window.write(8, b"\x10\x20")
    assert plain.memory.read32(0x1000) == 0x80000001
    assert plain.memory.read(0x1008, 2) == b"\x11\x20"
    assert traced.recorder.records[0].value == 0x80000001


def test_an_access_outside_the_window_is_neither_done_nor_recorded(traced: TracedDevice) -> None:
    window = traced.map_bar(5)
    for attempt in (lambda: window.write32(0x4000, 1), lambda: window.read32(2), lambda: window.write(0x3FFF, b"ab"), lambda: window.write64(4, 1)):
        with pytest.raises(OutOfWindow):
            attempt()
    assert traced.recorder.records == []


def test_a_saved_trace_loads_equal(traced: TracedDevice, tmp_path: Path) -> None:
    exercise(traced)
    traced.recorder.stage_done("all")
    path = tmp_path / "boot.trace"
    traced.recorder.save(path)
    header, records = load(path)
    assert records == traced.recorder.records
    assert header == {"format": "tghw trace", "version": 1, "device": "0000:03:00.0", "transport": "test", "bars": [[5, 0xFCB00000, 0x4000]]}
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is empty"),
        ("{}\n", "line 1"),
        ('{"format":"tghw trace","version":9}\n', "line 1"),
        ("[1,2]\n", "line 1"),
        ('{"format":"tghw trace","version":1}\n["w","bar5",0,4,1]\n["w","bar5"\n', "line 3"),
        ('{"format":"tghw trace","version":1}\n["q","bar5",0,4,1]\n', "line 2"),
        ('{"format":"tghw trace","version":1}\n["W","bar5",0,4,"z:AAAA"]\n', "line 2"),
    ],
)
def test_a_damaged_file_is_refused_by_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.trace"
    path.write_text(text)
    with pytest.raises(TraceInvalid, match=line):
        load(path)


class FarWindow(LocalMmio):
    """A window whose batches are sent as one, their reads answered at the end."""

    cost = "round_trip"
    trips = 0

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        late: list[tuple[int, object]] = []
        window = self

        class Late(Batch):
            def read32(self, offset: int):  # type: ignore[no-untyped-def]
                pending = super().read32(offset)
                late.append((offset, pending))
                pending.value = None
                return pending

        yield Late(window)
        for offset, pending in late:
            pending.value = window.read32(offset)  # type: ignore[attr-defined]
        FarWindow.trips += 1


def test_batches_stay_batches_and_late_values_are_recorded(plain: PlainDevice) -> None:
    memory = LocalMmio.anonymous(0x100)
    far = FarWindow(memory.address, 0x100, owner=memory)
    plain.map_bar = lambda index, offset=0, size=None: far  # type: ignore[method-assign]
    traced = TracedDevice(plain)
    before = FarWindow.trips
    with traced.map_bar(5).batch() as batch:
        batch.write32(0, 5)
        value = batch.read32(0)
        batch.write64(8, 9)
        batch.write(16, b"abcd")
    assert FarWindow.trips == before + 1
    assert value.value == 5
    assert [tuple(record) for record in traced.recorder.records] == [("w", "bar5", 0, 4, 5), ("r", "bar5", 0, 4, 5), ("w", "bar5", 8, 8, 9), ("W", "bar5", 16, 4, b"abcd")]


def test_closing_closes_the_device_inside(plain: PlainDevice) -> None:
    with TracedDevice(plain) as traced:
        assert traced.id.device == 0x744C
    assert plain.closed
