"""The simulated card's flash controller, from its registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hw.errors import NotModelled, ProfileError
from mocks.amd import ifwi
from mocks.amd.rom import GATED_STATUS
from mocks.machine import Machine, load_profile

ROM_CNTL, PAGE_MIRROR, ROM_INDEX, ROM_DATA = 0x5A380, 0x5A384, 0x5A390, 0x5A394
SW_CNTL, SW_STATUS, SW_COMMAND, SW_DATA = 0x5A3A0, 0x5A3A4, 0x5A3A8, 0x5A3B0
PADS = (0x5A504, 0x5A508, 0x5A510)
GPU = "0000:03:00.0"
RECEIVE = 1 << 19
WITH_ADDRESS = 3 << 16


def swap(value: int) -> int:
    return int.from_bytes(value.to_bytes(4, "little"), "big")


class Registers:
    """BAR5 of a fresh machine."""

    def __init__(self, profile: str = "navi31-empty-flash", **flash: Any) -> None:
        loaded = load_profile(profile)
        loaded["gpu"]["flash"].update(flash)
        self.machine = Machine(loaded)
        self.bar = self.machine.open(GPU).map_bar(5)
        self.rom = self.machine.gpus[0].rom
        self.chip = self.rom.chip

    def __getitem__(self, offset: int) -> int:
        return self.bar.read32(offset)

    def __setitem__(self, offset: int, value: int) -> None:
        self.bar.write32(offset, value)

    def prepare(self, prescaler: int = 8) -> None:
        """Pins, mirror and mode as a transaction needs them."""
        for pad in PADS:
            self[pad] &= ~0x780
        self[PAGE_MIRROR] = self[PAGE_MIRROR] & 0xF1FFFFFF | 0x06000000
        self[ROM_CNTL] = self[ROM_CNTL] & 0xE0FFFFF0 | 1 << 28 | prescaler << 24 | 8

    def start(self, command: int, control: int, payload: bytes = b"") -> bool:
        """One transaction; whether it was ever done."""
        self[SW_CNTL] = 0
        self[SW_STATUS] = 0
        self[SW_COMMAND] = command
        for place in range(0, len(payload), 4):
            self[SW_DATA + place] = int.from_bytes(payload[place : place + 4].ljust(4, b"\0"), "big")
        self[SW_CNTL] = control
        self.machine.clock.sleep(0.01)
        return bool(self[SW_STATUS] & 1)

    def window(self, count: int) -> bytes:
        return b"".join(self[SW_DATA + place].to_bytes(4, "little") for place in range(0, count, 4))[:count]


def test_the_window_shows_what_the_receive_before_the_latest_captured() -> None:
    regs = Registers(content="noise")
    flash = regs.chip.memory.read(0, 0x1000)
    regs.prepare()
    shown = []
    for page in (0, 1, 2, 3):
        assert regs.start(0x03 | page << 16, 256 | WITH_ADDRESS | RECEIVE)
        shown.append(regs.window(256))
    assert shown[0][:8] != flash[:8], "what was captured before power came is noise"
    assert shown[1:] == [flash[0:256], flash[256:512], flash[512:768]]


def test_a_shorter_receive_shows_the_longer_one_before_it() -> None:
    regs = Registers()
    regs.prepare()
    assert regs.start(0x9F, 4 | RECEIVE)
    assert regs.start(0x05, 1 | RECEIVE)
    assert regs.window(4) == bytes.fromhex("c86015c8")


def test_sent_bytes_leave_from_the_top_of_each_dword() -> None:
    regs = Registers()
    regs.prepare()
    assert regs.start(0x06, 0)
    assert regs.start(0x02 | 0x000100 << 8, 6 | WITH_ADDRESS, b"\x01\x02\x03\x04\x05\x06")
    assert regs.chip.memory.read(0x100, 8) == b"\x01\x02\x03\x04\x05\x06\xff\xff"


def test_the_address_goes_out_most_significant_byte_first() -> None:
    regs = Registers(content="noise")
    regs.prepare()
    for _ in range(2):
        assert regs.start(0x03 | 0x012345 << 8, 4 | WITH_ADDRESS | RECEIVE)
    assert regs.window(4) == regs.chip.memory.read(0x012345, 4)


@pytest.mark.parametrize("missing", ["pins mask", "pins a", "pins en", "mirror", "mode", "prescaler"])
def test_the_engine_does_nothing_unless_everything_around_is_set_up(missing: str) -> None:
    regs = Registers()
    regs.prepare()
    place, value = {
        "pins mask": (PADS[0], 0x80),
        "pins a": (PADS[1], 0x100),
        "pins en": (PADS[2], 0x400),
        "mirror": (PAGE_MIRROR, 0x02000000),
        "mode": (ROM_CNTL, 0x18000001),
        "prescaler": (ROM_CNTL, 0x08000008),
    }[missing]
    regs[place] = value
    before = regs.chip.cycles
    assert not regs.start(0x9F, 4 | RECEIVE)
    assert regs.chip.cycles == before


def test_a_status_that_was_not_cleared_keeps_the_engine_from_starting() -> None:
    regs = Registers()
    regs.prepare()
    assert regs.start(0x9F, 4 | RECEIVE)
    regs[SW_COMMAND] = 0x06
    regs[SW_CNTL] = 0
    assert not regs.chip.status(0) & 2


def test_writing_zero_idles_unless_a_bare_command_waits() -> None:
    regs = Registers()
    regs.prepare()
    assert regs.start(0x06, 0), "write enable has the control word 0"
    assert regs.chip.status(0) & 2
    assert regs.start(0x04, 0)
    for _ in range(3):
        regs[SW_CNTL] = 0
    assert regs.chip.commands == {0x06: 1, 0x04: 1}


def test_a_clock_that_the_wiring_does_not_carry_captures_nothing() -> None:
    regs = Registers()
    regs.prepare(prescaler=0)
    for _ in range(2):
        assert regs.start(0x9F, 4 | RECEIVE)
    assert regs.window(4) == b"\xff" * 4
    assert regs.chip.cycles == 0


def test_what_is_not_known_about_the_engine_is_not_modelled() -> None:
    regs = Registers()
    regs.prepare()
    with pytest.raises(NotModelled, match="300 data bytes"):
        regs.start(0x03, 300 | WITH_ADDRESS | RECEIVE)
    with pytest.raises(NotModelled, match="2 address bytes"):
        regs.start(0x03, 4 | 2 << 16 | RECEIVE)


def test_after_an_autonomous_boot_the_engine_is_gated() -> None:
    regs = Registers("navi31")
    assert regs[SW_STATUS] == GATED_STATUS
    regs.prepare()
    regs[SW_STATUS] = 0
    assert regs[SW_STATUS] == GATED_STATUS
    assert not regs.start(0x9F, 4 | RECEIVE)
    assert regs.chip.cycles == 0


def test_a_captured_id_can_come_rotated() -> None:
    regs = Registers(id_rotation=1)
    regs.prepare()
    for _ in range(2):
        regs.start(0x9F, 4 | RECEIVE)
    assert regs.window(4) == bytes.fromhex("c8c86015")


# --- the aperture ---


def test_a_booted_cards_aperture_takes_swapped_values_and_gives_plain_ones() -> None:
    regs = Registers("navi31")
    flash = regs.chip.memory.read(0, 0x200000)
    before = regs[ROM_CNTL]
    assert regs[ROM_DATA] == 0, "reading is off"
    regs[ROM_CNTL] = swap(before | 1 << 29)
    assert regs[ROM_CNTL] == before | 1 << 29
    regs[ROM_INDEX] = swap(0x100)
    assert regs[ROM_INDEX] == 0x100
    assert [regs[ROM_DATA] for _ in range(3)] == [int.from_bytes(flash[0x10000 + place : 0x10004 + place], "little") for place in (0, 4, 8)]


def test_the_aperture_goes_on_within_its_page() -> None:
    regs = Registers("navi31")
    regs[ROM_CNTL] = swap(regs[ROM_CNTL] | 1 << 29)
    regs[ROM_INDEX] = 0
    words = [regs[ROM_DATA] for _ in range(0x4000)]
    assert b"".join(word.to_bytes(4, "little") for word in words) == regs.chip.memory.read(0, 0x10000)
    assert regs[ROM_DATA] == words[0]


def test_a_stalled_cards_aperture_takes_plain_values() -> None:
    regs = Registers(content="noise")
    regs[ROM_INDEX] = 0x200
    assert regs[ROM_INDEX] == 0x200
    regs[ROM_CNTL] |= 1 << 29
    regs[ROM_INDEX] = 0x200
    assert regs[ROM_DATA].to_bytes(4, "little") == regs.chip.memory.read(0x20000, 4)


def test_the_byte_order_is_a_switch() -> None:
    for order, arrives in (("plain", 0x1200), ("swapped", 0x00120000), ("garbled", 0x12000)):
        regs = Registers(byte_order=order)
        regs[ROM_INDEX] = 0x1200
        assert regs[ROM_INDEX] == arrives


def test_a_mirrored_aperture_shows_the_first_half_twice() -> None:
    regs = Registers("navi31-mirrored-rom")
    regs[ROM_CNTL] = swap(regs[ROM_CNTL] | 1 << 29)
    halves = []
    for page in (0x182000 >> 16 << 8, 0x082000 >> 16 << 8):
        regs[ROM_INDEX] = swap(page)
        halves.append([regs[ROM_DATA] for _ in range(0x900)])
    assert halves[0] == halves[1]


def test_an_unreachable_rom_controller_reads_all_ones_while_the_card_answers() -> None:
    regs = Registers("navi31-no-rom")
    assert regs[ROM_CNTL] == regs[ROM_DATA] == 0xFFFFFFFF
    assert regs[PADS[0]] != 0xFFFFFFFF


def test_the_port_cannot_be_read_as_a_block() -> None:
    regs = Registers("navi31")
    with pytest.raises(NotModelled):
        regs.bar.read(ROM_DATA, 64)


# --- what the flash holds decides ---


WHOLE = [name for name in ifwi.BREAKAGES if len(ifwi.broken(name)) == 0x200000]


@pytest.mark.parametrize("name", [name for name in WHOLE if ifwi.boot(ifwi.broken(name)).problem])
def test_a_card_does_not_boot_from_a_damaged_image(name: str) -> None:
    regs = Registers(content=f"ifwi:{name}")
    assert not regs.rom.booted
    assert regs[SW_STATUS] == 0
    assert regs[0xDE3 * 4] == 0, "no memory was trained"
    assert regs[0x582CC] == 0, "nobody listens on the mailbox"


@pytest.mark.parametrize("name", ["payload byte", "payload empty", "slot header A blank"])
def test_a_damaged_first_partition_boots_from_the_second(name: str) -> None:
    regs = Registers("navi31", content=f"ifwi:{name}")
    assert (regs.rom.booted, regs.rom.partition) == (True, 1)


def test_unknown_contents_are_refused() -> None:
    for content in ("nothing", "ifwi:unheard of"):
        with pytest.raises(ProfileError, match="unknown flash content"):
            Registers(content=content)


def test_a_rescued_card_boots_at_its_next_power_on(tmp_path: Path) -> None:
    machine = Machine.from_profile("navi31-empty-flash", state_dir=tmp_path)
    gpu = machine.gpus[0]
    assert not gpu.rom.booted
    gpu.rom.chip.memory.write(0, ifwi.fabricate(0))
    assert not gpu.rom.booted
    machine.open(GPU).reset()
    machine.clock.sleep(1)
    assert gpu.rom.booted, "a reset lets the boot firmware look again"
    machine.close()
    assert Machine.from_profile("navi31-empty-flash", state_dir=tmp_path).gpus[0].rom.booted
    assert not Machine.from_profile("navi31-empty-flash", state_dir=tmp_path / "other").gpus[0].rom.booted


def test_losing_power_takes_the_card_off_the_bus() -> None:
    regs = Registers()
    regs.prepare()
    regs.chip._faults.add("flash-power-cut", "10")
    regs.start(0x06, 0)
    regs.start(0x20, WITH_ADDRESS)
    regs.machine.clock.sleep(1)
    assert regs[SW_STATUS] == regs[ROM_CNTL] == 0xFFFFFFFF
