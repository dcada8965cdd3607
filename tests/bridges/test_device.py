"""The PCI function behind a simulated bridge, over both firmwares of it."""

from __future__ import annotations

import pytest

from bridges.asm24.errors import BridgeBusy, LinkDown, TlpUnsupportedRequest
from bridges.asm24.tlp import config_read
from bridges.asm24.usb import attached
from hw.errors import DmaError, NotSupported, OutOfWindow
from hw.pci.device import COMMAND, COMMAND_BUS_MASTER
from tests.bridges.simulated import CUSTOM, STOCK, bridge_of, machine_with, open_pci

PROFILES = (CUSTOM, STOCK, "navi31-asm24-add1", "asm24-usb2")
MIB = 1 << 20


@pytest.mark.parametrize("profile", PROFILES)
def test_gpu_is_found_on_bus_4_with_every_memory_bar_placed(profile: str) -> None:
    with open_pci(machine_with(profile)) as pci:
        assert (pci.topology.bus, pci.id.vendor, pci.id.device) == (4, 0x1002, 0x744C)
        assert not pci.local and pci.transport == "asm24"
        assert {index: bar.address for index, bar in pci.bars.items()} == {0: 0x8_0000_0000, 2: 0x10_0000_0000, 5: 0x1000_0000}
        assert (pci.bars[0].size, pci.bars[5].size) == (32 << 30, MIB), "the memory BAR as large as it goes"
        for bar in pci.bars.values():
            assert bar.address % bar.size == 0
        assert not pci.config.read16(COMMAND) & COMMAND_BUS_MASTER
        memsize = pci.map_bar(5).read32(0xDE3 << 2)
        assert memsize == 24560


@pytest.mark.parametrize("profile", [CUSTOM, STOCK])
def test_memory_holds_what_is_written_at_any_offset_and_length(profile: str) -> None:
    with open_pci(machine_with(profile)) as pci:
        vram = pci.map_bar(0)
        place = 0x100000
        vram.write(place, bytes(range(64)))
        vram.write(place + 5, b"\xaa\xbb\xcc\xdd\xee\xff\x11")
        vram.write8(place + 63, 0x77)
        expected = bytearray(range(64))
        expected[5:12] = b"\xaa\xbb\xcc\xdd\xee\xff\x11"
        expected[63] = 0x77
        assert vram.read(place, 64) == expected
        assert vram.read(place + 3, 10) == expected[3:13]
        assert vram.read32(place + 8) == int.from_bytes(expected[8:12], "little")
        assert vram.read64(place + 56) == int.from_bytes(expected[56:64], "little")
        assert vram.read8(place + 5) == 0xAA
        vram.write64(place, 0x0123456789ABCDEF)
        assert vram.read(place, 8) == 0x0123456789ABCDEF.to_bytes(8, "little")


def test_block_of_more_than_one_stream_arrives_whole() -> None:
    with open_pci(machine_with()) as pci:
        data = bytes((7 * index + index // 251) & 0xFF for index in range(MIB + 4096))
        vram = pci.map_bar(0)
        before = pci.counts.copy()
        vram.write(0, data)
        assert pci.counts.since(before).transfers == 4, "two streams, each a request and its data"
        assert vram.read(0, len(data)) == data


def test_access_outside_a_window_raises_before_anything_is_sent() -> None:
    with open_pci(machine_with()) as pci:
        window = pci.map_bar(5, 0x1000, 0x1000)
        before = pci.counts.transfers
        for action in (lambda: window.read32(0x1000), lambda: window.write32(2, 0), lambda: window.read(0xFFF, 2), lambda: pci.map_bar(5, 0, MIB + 1)):
            with pytest.raises(OutOfWindow):
                action()
        assert pci.counts.transfers == before


def test_reads_of_a_batch_are_gathered_where_they_are_neighbours() -> None:
    with open_pci(machine_with()) as pci:
        vram = pci.map_bar(0)
        vram.write(0x1000, bytes(range(16)))
        before = pci.counts.copy()
        with vram.batch() as batch:
            values = [batch.read32(0x1000 + 4 * position) for position in range(4)]
        assert pci.counts.since(before).transfers == 2
        assert b"".join((each.value or 0).to_bytes(4, "little") for each in values) == bytes(range(16))


def test_batch_of_neighbouring_writes_is_one_stream_and_of_others_one_request_each() -> None:
    with open_pci(machine_with()) as pci:
        vram = pci.map_bar(0)
        before = pci.counts.copy()
        with vram.batch() as batch:
            for position in range(64):
                batch.write32(0x2000 + 4 * position, position)
            batch.write32(0x4000, 1)
            batch.write32(0x3000, 2)
        sent = pci.counts.since(before)
        assert (sent.transfers, sent.control_out, sent.bulk_out) == (4, 3, 1)
        assert vram.read(0x2000, 256) == b"".join(position.to_bytes(4, "little") for position in range(64))


def test_writes_that_wait_are_sent_when_the_batch_ends_with_an_error() -> None:
    with open_pci(machine_with()) as pci:
        vram = pci.map_bar(0)
        with pytest.raises(KeyError), vram.batch():
            vram.write32(0x100, 0x12345678)
            raise KeyError
        assert vram.read32(0x100) == 0x12345678


def test_resized_bar_keeps_its_neighbours_and_old_windows_refuse() -> None:
    with open_pci(machine_with()) as pci:
        old = pci.map_bar(0)
        pci.resize_bar(0, 256 * MIB)
        assert {index: (bar.address, bar.size) for index, bar in pci.bars.items()} == {0: (0x8_0000_0000, 256 * MIB), 2: (0x8_1000_0000, 2 * MIB), 5: (0x1000_0000, MIB)}
        with pytest.raises(OutOfWindow):
            old.read32(0)
        pci.map_bar(0).write32(0, 5)
        assert pci.map_bar(0).read32(0) == 5
        with pytest.raises(NotSupported):
            pci.resize_bar(0, 3 * MIB)
        with pytest.raises(NotSupported):
            pci.resize_bar(5, 2 * MIB)


def test_absent_function_is_an_unsupported_request() -> None:
    with open_pci(machine_with()) as pci, pytest.raises(TlpUnsupportedRequest):
        pci.protocol.request(config_read(5, 3, 1, 0, 4))


def test_empty_slot_is_told_by_the_link() -> None:
    machine = machine_with("asm24-no-gpu")
    with pytest.raises(LinkDown) as caught:
        open_pci(machine)
    assert caught.value.ltssm == 0 and "slot is empty" in caught.value.means
    assert attached(machine.usb_backend()), "and the bridge was given back"
    with pytest.raises(LinkDown):
        open_pci(machine)


def test_bridge_is_held_by_one_at_a_time_and_free_again_after_close() -> None:
    machine = machine_with()
    first = open_pci(machine)
    with pytest.raises(BridgeBusy):
        open_pci(machine)
    assert first.config.read16(0) == 0x1002
    first.close()
    first.close()
    open_pci(machine).close()


def test_lock_is_taken_before_the_bridge_is_touched_and_given_back() -> None:
    from bridges.asm24.device import Asm24PciDevice

    machine = machine_with()
    bridge, backend = bridge_of(machine)
    held: list[str] = []

    def lock(address: str) -> object:
        held.append(address)
        return lambda: held.remove(address)

    pci = Asm24PciDevice.open(bridge, backend, clock=machine.clock, lock=lock)  # type: ignore[arg-type]
    assert held == [pci.address] == ["usb:2-7"]
    pci.close()
    assert held == []


def test_bus_mastering_ends_with_close() -> None:
    machine = machine_with()
    pci = open_pci(machine)
    pci.set_bus_master(True)
    function = machine.gpus[0].function
    assert function.command & COMMAND_BUS_MASTER
    pci.close()
    assert not function.command & COMMAND_BUS_MASTER


def test_bus_reset_puts_everything_back_where_it_was() -> None:
    with open_pci(machine_with()) as pci:
        pci.set_bus_master(True)
        register = pci.map_bar(5)
        bars = pci.bars
        pci.reset()
        assert pci.bars == bars
        assert pci.config.read16(COMMAND) & 6 == 6, "memory decoding and bus mastering"
        assert register.read32(0xDE3 << 2) in (0, 24560), "the register answers, though the card may still start"


# --- the bridge's memory ----------------------------------------------------------------------------------------------


def test_dma_memory_is_in_the_bridge_zeroed_and_limited_to_its_size() -> None:
    with open_pci(machine_with()) as pci:
        memory = pci.alloc_dma(20000)
        assert memory.pages == [0x200000 + 4096 * page for page in range(8)]
        assert memory.window.read(0, 4096) == bytes(4096)
        memory.window.write(0, b"\x01\x02\x03")
        assert memory.window.read(0, 4) == b"\x01\x02\x03\x00"
        with pytest.raises(NotSupported, match="bridge's memory"):
            memory.window.read(4096, 4)
        with pytest.raises(DmaError):
            pci.alloc_dma(512 << 10)
        assert pci.transfer_buffer is None, "while parts of it are handed out"
        memory.release()
        assert pci.transfer_buffer is not None
        with pytest.raises(DmaError, match="copies"):
            pci.alloc_dma(4096)


@pytest.mark.parametrize("profile", [CUSTOM, STOCK])
def test_transfer_buffer_shows_its_first_page_and_flags(profile: str) -> None:
    with open_pci(machine_with(profile)) as pci:
        buffer = pci.transfer_buffer
        assert buffer is not None and buffer.address == 0x200000 and buffer.size == 512 << 10
        data = bytes(range(256)) * 100
        buffer.send(data)
        assert buffer.peek(1000, 300) == data[1000:1300]
        with pytest.raises(ValueError):
            buffer.peek(4000, 200)
        buffer.write_flag(8, 0x5A)
        assert buffer.read_flags(8, 1) == b"\x5a"
