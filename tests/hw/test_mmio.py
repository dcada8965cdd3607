"""Windows: exact widths, bounds before the bus, views, batches, revocation."""

from __future__ import annotations

import mmap

import pytest

from hw.errors import OutOfWindow
from hw.mmio import LocalMmio, Mmio, SubWindow


@pytest.fixture
def window() -> LocalMmio:
    return LocalMmio.anonymous(0x100, "registers")


def test_values_are_little_endian_of_the_width_asked_for(window: LocalMmio) -> None:
    window.write64(8, 0x1122334455667788)
    assert window.read(8, 8) == bytes.fromhex("8877665544332211")
    assert (window.read32(8), window.read32(12), window.read8(9)) == (0x55667788, 0x11223344, 0x77)
    window.write32(8, 0xAABBCCDD)
    window.write8(12, 0)
    assert window.read64(8) == 0x11223300AABBCCDD


def test_a_write_changes_its_own_bytes_only(window: LocalMmio) -> None:
    window.fill(0, 0x100, 0xEE)
    window.write8(0x11, 1)
    window.write32(0x20, 2)
    window.write64(0x30, 3)
    expected = bytearray(b"\xee" * 0x100)
    expected[0x11] = 1
    expected[0x20:0x24] = (2).to_bytes(4, "little")
    expected[0x30:0x38] = (3).to_bytes(8, "little")
    assert window.read(0, 0x100) == expected


def over_sub_window(parent: LocalMmio) -> Mmio:
    return SubWindow(parent, 0x40, 0x40)


@pytest.mark.parametrize("make", [lambda parent: parent.view(0x40, 0x40), over_sub_window], ids=["local view", "sub-window"])
def test_accesses_outside_or_unaligned_never_reach_the_memory(window: LocalMmio, make) -> None:  # type: ignore[no-untyped-def]
    part = make(window)
    before = window.read(0, 0x100)
    attempts = [
        *((part.read32, (offset,)) for offset in (-4, 0x40, 0x3E, 1, 2)),
        *((part.write32, (offset, 1)) for offset in (-4, 0x40, 1)),
        *((part.read64, (offset,)) for offset in (-8, 0x40, 0x3C, 4)),
        *((part.write64, (offset, 1)) for offset in (0x40, 0x3C, 4)),
        *((part.read8, (offset,)) for offset in (-1, 0x40)),
        *((part.write8, (offset, 1)) for offset in (-1, 0x40)),
        (part.read, (0x3F, 2)),
        (part.read, (-1, 1)),
        (part.read, (0, -1)),
        (part.write, (0x3F, b"ab")),
        (part.view, (0x30, 0x20)),
        (part.fill, (0x30, 0x20)),
    ]
    for method, arguments in attempts:
        with pytest.raises(OutOfWindow) as caught:
            method(*arguments)
        assert "registers" in caught.value.what
    assert window.read(0, 0x100) == before


@pytest.mark.parametrize("make", [lambda parent: parent.view(0x40, 0x40), over_sub_window], ids=["local view", "sub-window"])
def test_a_view_is_its_part_of_the_parent(window: LocalMmio, make) -> None:  # type: ignore[no-untyped-def]
    part = make(window)
    assert (part.size, part.name, part.cost) == (0x40, "registers", "local")
    part.write32(0, 1)
    part.write64(8, 2)
    part.write8(0x10, 3)
    part.write(0x20, b"block")
    inner = part.view(0x20)
    assert inner.read(0, 5) == b"block"
    assert (window.read32(0x40), window.read64(0x48), window.read8(0x50)) == (1, 2, 3)
    assert (part.read32(0), part.read64(8), part.read8(0x10), part.read(0x20, 5)) == (1, 2, 3, b"block")


@pytest.mark.parametrize("data", [b"\1\2\3", bytearray(b"\1\2\3"), memoryview(b"\1\2\3"), memoryview(b"\0\1\2\3\4")[1:4]])
def test_blocks_come_from_any_bytes(window: LocalMmio, data: bytes) -> None:
    window.write(5, data)
    assert window.read(4, 5) == b"\0\1\2\3\0"


def test_fill_works_in_pieces(window: LocalMmio) -> None:
    big = LocalMmio.anonymous((2 << 20) + 4096)
    big.fill(4096, (2 << 20) - 1, 0x5A)
    data = big.read(0, big.size)
    assert data.count(0x5A) == (2 << 20) - 1
    assert data[4095] == 0 and data[4096] == 0x5A


@pytest.mark.parametrize("make", [lambda parent: parent, over_sub_window], ids=["local", "sub-window"])
def test_a_batch_keeps_its_order(window: LocalMmio, make) -> None:  # type: ignore[no-untyped-def]
    part = make(window)
    with part.batch() as batch:
        batch.write32(0, 1)
        first = batch.read32(0)
        batch.write32(0, 2)
        second = batch.read32(0)
        batch.write64(8, 3)
        batch.write(16, b"end")
    assert (first.value, second.value) == (1, 2)
    assert part.read64(8) == 3
    assert part.read(16, 3) == b"end"


def test_a_batch_of_a_part_stays_inside_it(window: LocalMmio) -> None:
    part = over_sub_window(window)
    with part.batch() as batch:
        for attempt in (lambda: batch.write32(0x40, 1), lambda: batch.read32(0x40), lambda: batch.write64(0x3C, 1), lambda: batch.write(0x3F, b"ab")):
            with pytest.raises(OutOfWindow):
                attempt()
    assert window.read(0, 0x100) == bytes(0x100)


def test_a_window_keeps_its_memory_alive() -> None:
    window = LocalMmio.over(bytearray(64))
    assert [window.read8(offset) for offset in range(64)] == [0] * 64
    array = bytearray(b"abcd")
    LocalMmio.over(array).write8(0, ord("X"))
    assert array == b"Xbcd"


def test_read_only_memory_is_no_window() -> None:
    with pytest.raises((BufferError, TypeError)):
        LocalMmio.over(b"constant")


def test_memory_is_the_same_bytes_without_a_copy(window: LocalMmio) -> None:
    window.memory[4:8] = b"abcd"
    assert window.read(4, 4) == b"abcd"


def test_revoking_closes_the_window_its_views_and_the_mapping() -> None:
    memory = mmap.mmap(-1, 4096)
    window = LocalMmio.over(memory, "BAR5", revocable=True)
    part = window.view(0x10, 0x20).view(4, 4)
    part.write32(0, 7)
    window.revoke()
    for closed in (window, part):
        with pytest.raises(OutOfWindow, match=r"BAR5 \(closed\)"):
            closed.read32(0)
        with pytest.raises(OutOfWindow):
            closed.write(0, b"a")
    memory.close()  # raises BufferError while anything still points into it
    with pytest.raises(TypeError, match="not revocable"):
        LocalMmio.anonymous(16).revoke()
