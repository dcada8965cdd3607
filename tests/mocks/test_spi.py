"""The simulated flash chip, at its pins."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from hw.errors import NotModelled, ProfileError
from mocks.spi import SpiChip
from mocks.spi_model import CMP, SRP0, SRP1, WEL, WIP, ChipModel
from tests.firmware.spi.support import GD25LQ16, SIZE, busy_wait, make_chip

PATTERN = bytes(range(256))


def at(opcode: int, address: int) -> bytes:
    return bytes([opcode]) + address.to_bytes(3, "big")


def read(chip: SpiChip, address: int, count: int) -> bytes:
    return chip.transact(at(0x03, address), count)


def program(chip: SpiChip, address: int, data: bytes) -> None:
    chip.transact(b"\x06")
    chip.transact(at(0x02, address) + data)
    busy_wait(chip)


def erase(chip: SpiChip, opcode: int, address: int) -> None:
    chip.transact(b"\x06")
    chip.transact(at(opcode, address))
    busy_wait(chip)


def set_status(chip: SpiChip, *values: int) -> None:
    chip.transact(b"\x06")
    chip.transact(bytes([0x01, *values]))
    busy_wait(chip)


# --- identity and reading ---


def test_identity_is_repeated_for_as_long_as_the_clock_runs() -> None:
    chip = make_chip()
    assert chip.transact(b"\x9f", 7) == bytes.fromhex("c86015c86015c8")
    assert chip.transact(b"\x90\0\0\0", 4) == bytes.fromhex("c814c814")
    assert chip.transact(b"\xab\0\0\0", 2) == b"\x14\x14"


def test_a_read_goes_around_the_end_of_the_array() -> None:
    chip = make_chip(content=PATTERN * (SIZE // 256))
    assert read(chip, SIZE - 2, 4) == b"\xfe\xff\x00\x01"
    assert chip.transact(at(0x0B, 5) + b"\0", 2) == b"\x05\x06"
    assert chip.transact(at(0x0B, 5), 3) == b"\xff\x05\x06", "the dummy byte may also fall into the receiving part"


def test_commands_that_the_chip_does_not_have_float_and_known_ones_without_a_model_say_so() -> None:
    chip = make_chip()
    assert chip.transact(b"\x83\0\0\0", 3) == b"\xff\xff\xff"
    with pytest.raises(NotModelled, match="suspend"):
        chip.transact(b"\x75")


def test_sfdp_is_behind_a_dummy_byte() -> None:
    described = make_chip(ChipModel("x", b"\x0b\x40\x15", SIZE, sfdp=b"SFDP\x06\x01\x00\xff"))
    assert described.transact(at(0x5A, 0), 6) == b"\xffSFDP\x06"
    assert described.transact(at(0x5A, 4) + b"\0", 2) == b"\x06\x01"
    assert make_chip().transact(at(0x5A, 0), 5) == b"\xff" * 5


# --- programming and erasing ---


def test_programming_only_clears_bits_and_needs_write_enable_each_time() -> None:
    chip = make_chip()
    program(chip, 0x100, b"\xf0\x0f")
    assert read(chip, 0x100, 2) == b"\xf0\x0f"
    program(chip, 0x100, b"\x3c\xff")
    assert read(chip, 0x100, 2) == b"\x30\x0f"
    assert not chip.status(0) & WEL
    chip.transact(at(0x02, 0x100) + b"\0\0")
    busy_wait(chip)
    assert read(chip, 0x100, 2) == b"\x30\x0f"


def test_a_page_is_a_ring_and_only_its_last_256_bytes_count() -> None:
    chip = make_chip()
    program(chip, 0x1FE, b"\x01\x02\x03")
    assert read(chip, 0x1FE, 2) == b"\x01\x02"
    assert read(chip, 0x100, 1) == b"\x03"
    assert read(chip, 0x200, 1) == b"\xff"
    program(chip, 0x300, b"\xaa" + PATTERN)
    assert read(chip, 0x300, 2) == b"\xff\x00", "the first byte was overwritten by the 257th"


@pytest.mark.parametrize(("opcode", "size"), [(0x20, 0x1000), (0x52, 0x8000), (0xD8, 0x10000)])
def test_an_erase_covers_its_aligned_unit_and_nothing_else(opcode: int, size: int) -> None:
    chip = make_chip(content=bytes(SIZE))
    erase(chip, opcode, 0x12345)
    start = 0x12345 // size * size
    assert read(chip, 0, SIZE) == bytes(start) + b"\xff" * size + bytes(SIZE - start - size)


@pytest.mark.parametrize("opcode", [0x60, 0xC7])
def test_a_chip_erase_takes_all(opcode: int) -> None:
    chip = make_chip(content=bytes(SIZE))
    chip.transact(b"\x06")
    chip.transact(bytes([opcode]))
    busy_wait(chip)
    assert read(chip, 0, SIZE) == b"\xff" * SIZE


def test_a_busy_chip_answers_status_only() -> None:
    chip = make_chip(content=bytes(SIZE))
    chip.transact(b"\x06")
    assert chip.transact(b"\x05", 1) == bytes([WEL])
    chip.transact(at(0x20, 0))
    assert chip.transact(b"\x05", 2) == bytes([WIP | WEL]) * 2
    assert read(chip, 0x8000, 2) == b"\xff\xff"
    chip.transact(b"\x06")
    chip._clock.sleep(0.049)
    assert chip.busy
    chip._clock.sleep(0.002)
    assert chip.transact(b"\x05", 1) == b"\0"
    assert read(chip, 0x8000, 2) == b"\0\0"


def test_a_stuck_chip_stays_busy() -> None:
    chip = make_chip(faults="flash-stuck-busy")
    chip.transact(b"\x06")
    chip.transact(at(0x20, 0))
    chip._clock.sleep(1000)
    assert chip.busy


# --- protection ---


def test_cmp_with_no_bp_bit_protects_everything_and_clearing_it_frees_everything() -> None:
    chip = make_chip(ChipModel("x", b"\xc8\x60\x15", SIZE, status=(0, CMP, 0)), content=bytes(SIZE))
    for opcode in (0x20, 0x52, 0xD8, 0xC7, 0x60):
        erase(chip, opcode, 0)
    program(chip, 0, b"\xff")
    assert read(chip, 0, SIZE) == bytes(SIZE)
    set_status(chip, 0, 0)
    erase(chip, 0x20, 0)
    assert read(chip, 0, 1) == b"\xff"


@pytest.mark.parametrize(
    ("sr1", "sr2", "start", "end"),
    [
        (0b00000 << 2, 0, 0, 0),
        (0b00001 << 2, 0, 0x1F0000, 0x200000),
        (0b00010 << 2, 0, 0x1E0000, 0x200000),
        (0b00101 << 2, 0, 0x100000, 0x200000),
        (0b00110 << 2, 0, 0, 0x200000),
        (0b00111 << 2, 0, 0, 0x200000),
        (0b01001 << 2, 0, 0, 0x10000),
        (0b01101 << 2, 0, 0, 0x100000),
        (0b10001 << 2, 0, 0x1FF000, 0x200000),
        (0b11001 << 2, 0, 0, 0x1000),
        (0b10100 << 2, 0, 0x1F8000, 0x200000),
        (0b11101 << 2, 0, 0, 0x8000),
        (0b00001 << 2, CMP, 0, 0x1F0000),
        (0b01001 << 2, CMP, 0x10000, 0x200000),
        (0b00111 << 2, CMP, 0, 0),
    ],
)
def test_block_protection_bits_protect_what_the_data_sheet_says(sr1: int, sr2: int, start: int, end: int) -> None:
    """Rows of the data sheet's table for 16 Mbit parts."""
    found = GD25LQ16.protected(sr1, sr2)
    assert found == (start, end) or (found[0] >= found[1] and start >= end)


def test_status_bits_that_lock_the_status_registers() -> None:
    locked = make_chip(ChipModel("x", b"\xc8\x60\x15", SIZE, status=(SRP0, CMP, 0), wp_low=True))
    set_status(locked, 0, 0)
    assert locked.status(1) == CMP
    until_power = make_chip(ChipModel("x", b"\xc8\x60\x15", SIZE, status=(0, SRP1 | CMP, 0)))
    set_status(until_power, 0, 0)
    assert until_power.status(1) == SRP1 | CMP
    free = make_chip(ChipModel("x", b"\xc8\x60\x15", SIZE, status=(SRP0, CMP, 0)))
    set_status(free, 0, 0)
    assert (free.status(0), free.status(1)) == (0, 0)


def test_lock_bits_of_the_one_time_area_only_go_to_one() -> None:
    chip = make_chip()
    set_status(chip, 0, 0x08)
    set_status(chip, 0, 0)
    assert chip.status(1) == 0x08
    chip.transact(b"\x06")
    chip.transact(at(0x42, 0) + b"\0")
    assert chip.transact(at(0x48, 0) + b"\0", 1) == b"\xff"


def test_the_one_time_area_programs_and_erases() -> None:
    chip = make_chip()
    chip.transact(b"\x06")
    chip.transact(at(0x42, 16) + b"board 7")
    busy_wait(chip)
    assert chip.transact(at(0x48, 16) + b"\0", 7) == b"board 7"
    chip.transact(b"\x06")
    chip.transact(at(0x44, 0))
    busy_wait(chip)
    assert chip.transact(at(0x48, 16) + b"\0", 7) == b"\xff" * 7


def test_a_volatile_status_write_is_gone_after_a_reset() -> None:
    chip = make_chip()
    chip.transact(b"\x50")
    chip.transact(b"\x01\x1c")
    assert chip.status(0) == 0x1C
    chip.transact(b"\x66")
    chip.transact(b"\x99")
    assert chip.status(0) == 0


# --- losing power, dying, ageing ---


@pytest.mark.parametrize("cut", [0, 1, 100, 255])
def test_power_lost_at_a_byte_of_a_page_program_leaves_the_bytes_before_it(cut: int) -> None:
    chip = make_chip(faults=f"flash-power-cut={cut}")
    chip.transact(b"\x06")
    chip.transact(at(0x02, 0x4000) + bytes(256))
    chip._clock.sleep(0.01)
    assert not chip.powered
    assert read(chip, 0x4000, 4) == b"\xff" * 4, "nobody answers"
    held = chip.memory.read(0x4000, 256)
    assert held[:cut] == bytes(cut)
    assert held[cut + 1 :] == b"\xff" * (255 - cut)


def test_power_lost_in_an_erase_leaves_neither_the_old_nor_the_erased_content() -> None:
    for cut, low, high in ((300, 0.0, 0.5), (2000, 0.05, 0.6), (4000, 0.6, 1.0)):
        chip = make_chip(content=b"\x55" * SIZE, faults=f"flash-power-cut={cut}")
        chip.transact(b"\x06")
        chip.transact(at(0x20, 0x1000))
        chip._clock.sleep(0.1)
        held = chip.memory.read(0x1000, 0x1000)
        assert held not in (b"\x55" * 0x1000, b"\xff" * 0x1000)
        ones = sum(byte.bit_count() for byte in held) / (8 * len(held))
        assert low <= ones <= high
        assert chip.memory.read(0, 0x1000) + chip.memory.read(0x2000, 0x1000) == b"\x55" * 0x2000


def test_cells_touched_by_an_interrupted_operation_are_marginal_until_they_are_erased(tmp_path: Path) -> None:
    first = make_chip(content=bytes(SIZE), folder=tmp_path, faults="flash-power-cut=2000")
    first.transact(b"\x06")
    first.transact(at(0x20, 0x1000))
    first._clock.sleep(0.1)
    again = make_chip(folder=tmp_path)
    assert read(again, 0x1000, 0x1000) != read(again, 0x1000, 0x1000)
    assert read(again, 0x2000, 0x1000) == bytes(0x1000)
    program(again, 0x1000, bytes(256))
    assert any(read(again, 0x1000, 256) != bytes(256) for _ in range(3)), "programming does not cure them"
    erase(again, 0x20, 0x1000)
    assert read(again, 0x1000, 0x1000) == b"\xff" * 0x1000
    assert read(make_chip(folder=tmp_path), 0x1000, 0x1000) == b"\xff" * 0x1000


def test_power_lost_in_a_status_write_mixes_old_and_new_bits() -> None:
    chip = make_chip(ChipModel("x", b"\xc8\x60\x15", SIZE, status=(0x54, 0x42, 0)), faults="flash-power-cut=1")
    chip.transact(b"\x06")
    chip.transact(bytes([0x01, 0x28, 0x01]))
    chip._clock.sleep(0.1)
    assert not chip.powered
    sr1, sr2, _ = chip._lasting["status"]
    assert sr1 & ~(0x54 | 0x28) == 0
    assert sr2 & ~(0x42 | 0x01) == 0


def test_the_cut_counts_bytes_over_all_operations() -> None:
    chip = make_chip(faults="flash-power-cut=600")
    program(chip, 0, bytes(256))
    program(chip, 0x100, bytes(256))
    assert chip.powered
    chip.transact(b"\x06")
    chip.transact(at(0x02, 0x200) + bytes(256))
    chip._clock.sleep(1)
    assert not chip.powered
    assert chip.memory.read(0x200, 88) == bytes(88)
    assert chip.memory.read(0x259, 2) == b"\xff\xff"


def test_read_bits_flip_at_the_planned_rate() -> None:
    chip = make_chip(content=bytes(SIZE), faults="flash-flip=1000")
    data = read(chip, 0, 0x10000)
    assert sum(byte.bit_count() for byte in data) == 66


def test_a_worn_cell_neither_programs_nor_erases() -> None:
    chip = make_chip(content=bytes(SIZE), faults="flash-worn=0x1005")
    erase(chip, 0x20, 0x1000)
    assert read(chip, 0x1004, 3) == b"\xff\xfe\xff"
    program(chip, 0x1000, bytes(16))
    assert read(chip, 0x1004, 3) == b"\x00\x01\x00"


def test_content_and_status_last_and_nothing_is_written_before_something_changes(tmp_path: Path) -> None:
    folder = tmp_path / "card"
    chip = make_chip(content=bytes(SIZE), folder=folder)
    assert read(chip, 0, 16) == bytes(16)
    assert not folder.exists()
    erase(chip, 0x20, 0)
    set_status(chip, 0x1C, 0x40)
    other = make_chip(folder=folder)
    assert read(other, 0, 0x1001) == b"\xff" * 0x1000 + b"\0"
    assert (other.status(0), other.status(1)) == (0x1C, 0x40)
    assert sorted(path.name for path in folder.iterdir()) == ["flash.bin", "flash.json"]


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flash.bin").write_bytes(b"short")
    with pytest.raises(ProfileError, match="holds 0x5 bytes"):
        make_chip(folder=tmp_path)
    (tmp_path / "flash.bin").unlink()
    (tmp_path / "flash.json").write_text("{")
    with pytest.raises(ProfileError, match="damaged"):
        make_chip(folder=tmp_path)


def _begin_and_die(folder: Path) -> None:
    chip = make_chip(content=bytes(SIZE), folder=folder)
    chip.transact(b"\x06")
    chip.transact(at(0x20, 0x3000))
    assert chip.busy
    os.kill(os.getpid(), 9)


def test_a_killed_process_does_not_take_the_power_away_from_the_chip(tmp_path: Path) -> None:
    """The erase that the process had started goes on: the next process finds it complete."""
    child = multiprocessing.get_context("fork").Process(target=_begin_and_die, args=(tmp_path,))
    child.start()
    child.join(20)
    assert child.exitcode == -9
    chip = make_chip(folder=tmp_path)
    assert read(chip, 0x2FFF, 0x1002) == b"\0" + b"\xff" * 0x1000 + b"\0"
