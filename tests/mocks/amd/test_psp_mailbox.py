"""The simulated security processor's flash mailbox, from its registers."""

from __future__ import annotations

import pytest

from firmware import ifwi_layout as layout
from mocks.amd import ifwi
from mocks.amd.psp_mailbox import BAD_SIGNATURE, INVALID_COMMAND, INVALID_PARAMETER, NO_STATE_MACHINE, OUT_OF_BOUNDS, WRITE_FAILED, WRONG_STATE
from mocks.faults import FaultPlan
from mocks.machine import Machine

COMMAND, DATA, DOORBELL = 0x582CC, 0x582D0, 0x58224
READY = 1 << 31
GPU = "0000:03:00.0"
BOOT_PARTITION, FB_STATE, TRANSFER_TYPE, START, WORD, END, MODEL = 0x01, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B
GATED = 0xA


class Mailbox:
    """The three registers of a fresh card."""

    def __init__(self, profile: str = "navi31", faults: str = "") -> None:
        self.machine = Machine.from_profile(profile, faults=FaultPlan.parse(faults))
        self.bar = self.machine.open(GPU).map_bar(5)
        self.gpu = self.machine.gpus[0]
        self.flash = self.gpu.rom.chip.memory

    def ask(self, command: int, data: int = 0) -> tuple[int, int]:
        """(error code, data register). An answer that never comes is an error of the test."""
        self.bar.write32(DATA, data)
        self.bar.write32(COMMAND, command << 16)
        self.bar.write32(DOORBELL, 1)
        for _ in range(1200):
            seen = self.bar.read32(COMMAND)
            if seen & READY:
                return seen & 0xFFFF, self.bar.read32(DATA)
            self.machine.clock.sleep(0.05)
        raise AssertionError(f"no answer to {command:#x}")

    def give(self, item: int, content: bytes) -> int:
        """Stream one item; the first error code, 0 when all went well."""
        size = len(content)
        error, _ = self.ask(START, size << 8 | item)
        for place in range(0, size, 4):
            if error:
                return error
            error, _ = self.ask(WORD, int.from_bytes(content[place : place + 4], "little"))
        return error or self.ask(END, size << 8 | item)[0]

    def wanted(self) -> tuple[int, int]:
        """Item and phase."""
        error, data = self.ask(TRANSFER_TYPE)
        assert not error
        return data & 0xFF, data >> 8


def content_of(image: bytes, item: int) -> bytes:
    """An item of a fabricated image, by hand."""
    if item in layout.FIXED:
        offset, size = layout.FIXED[item]
    elif item in layout.DIRECTORIES:
        offset, size = layout.DIRECTORIES[item], {0x02: 0x70, 0x03: 0x50}[item]
    elif item == layout.PAYLOAD:
        offset, size = ifwi.PAYLOADS["A"]
    elif item == layout.SIGNATURE_TABLE:
        offset, size = ifwi.TABLE_AT, 16 * (len(ifwi.COVERED_BY) + 1)
    else:
        kind = item - 0x81
        offset, size = ifwi.SIGNATURES_AT + ifwi.SIGNATURE_STEP * (kind - 1), 0x100 + 0x40 * kind
    return image[offset : offset + size]


def test_questions_start_nothing() -> None:
    box = Mailbox()
    before = box.flash.read(0, 0x200000)
    assert box.ask(BOOT_PARTITION) == (0, 0)
    assert box.ask(FB_STATE) == (0, 1)
    assert box.ask(MODEL) == (0, 0x1560C8)
    assert box.wanted() == (0x80, 0)
    assert box.flash.read(0, 0x200000) == before


def test_nobody_listens_on_a_stalled_card() -> None:
    box = Mailbox("navi31-empty-flash")
    assert box.bar.read32(COMMAND) == 0
    with pytest.raises(AssertionError, match="no answer"):
        box.ask(BOOT_PARTITION)


def test_a_doorbell_without_a_command_does_nothing() -> None:
    box = Mailbox()
    box.bar.write32(DOORBELL, 1)
    assert box.bar.read32(COMMAND) == READY


def test_the_answer_takes_time() -> None:
    box = Mailbox()
    box.bar.write32(COMMAND, BOOT_PARTITION << 16)
    box.bar.write32(DOORBELL, 1)
    assert box.bar.read32(COMMAND) == BOOT_PARTITION << 16


def test_unknown_commands_are_refused() -> None:
    assert Mailbox().ask(0x33)[0] == INVALID_COMMAND
    assert Mailbox().ask(0x04)[0] == INVALID_COMMAND, "the live update needs the secure OS"


def test_only_the_item_asked_for_with_a_sane_size_is_taken() -> None:
    box = Mailbox()
    assert box.ask(START, 4 << 8 | 0x81)[0] == INVALID_PARAMETER
    assert box.ask(START, 0 << 8 | 0x80)[0] == OUT_OF_BOUNDS
    assert box.ask(START, 6 << 8 | 0x80)[0] == OUT_OF_BOUNDS
    assert box.ask(WORD, 0)[0] == WRONG_STATE
    assert box.ask(END, 4 << 8 | 0x80)[0] == WRONG_STATE
    assert box.ask(START, 4 << 8 | 0x80)[0] == 0
    assert box.ask(START, 4 << 8 | 0x80)[0] == WRONG_STATE
    assert box.ask(WORD, 0x14000)[0] == 0
    assert box.ask(WORD, 0)[0] == OUT_OF_BOUNDS
    assert box.ask(END, 4 << 8 | 0x80)[0] == 0
    assert box.wanted() == (0x81, 1)


def test_a_broken_off_transfer_is_closed_and_asked_for_again() -> None:
    box = Mailbox()
    box.give(0x80, (0x14000).to_bytes(4, "little"))
    table = content_of(ifwi.fabricate(0), 0x81)
    box.ask(START, len(table) << 8 | 0x81)
    box.ask(WORD, int.from_bytes(table[:4], "little"))
    assert box.ask(END, 4 << 8 | 0x81)[0] == WRONG_STATE
    assert box.wanted() == (0x81, 1)
    assert box.give(0x81, table) == 0


def test_damaged_items_are_not_written() -> None:
    box = Mailbox()
    box.give(0x80, (0x14000).to_bytes(4, "little"))
    before = box.flash.read(0, 0x200000)
    assert box.give(0x81, b"$SGM" + bytes(12)) == BAD_SIGNATURE
    assert box.flash.read(0, 0x200000) == before
    assert box.wanted() == (0x81, 1)


def test_a_whole_update_leaves_the_new_image_and_the_marks_of_an_update() -> None:
    box = Mailbox()
    image = ifwi.fabricate(5)
    order = []
    while True:
        item, phase = box.wanted()
        assert box.give(item, content_of(image, item)) == 0
        order.append(item)
        if phase == 2:
            break
    assert sorted(order) == sorted(layout.ITEMS)
    assert box.ask(TRANSFER_TYPE)[0] == NO_STATE_MACHINE
    held = box.flash.read(0, 0x200000)
    changed = sorted({place >> 4 << 4 for place in range(0x200000) if held[place] != image[place]})
    assert changed == [0x13000, 0x15000, 0x1EF000]
    assert held[0x13010:0x13020] == image[0x13010:0x13020], "where the payload is does not change"
    assert held[0x15000:0x15008] == b"$AMDVBFL"
    assert ifwi.boot(held) == ifwi.Boot("")


def test_a_payload_that_its_signature_does_not_cover_is_refused() -> None:
    box = Mailbox()
    image = ifwi.fabricate(5)
    while (item := box.wanted()[0]) != layout.PAYLOAD:
        assert box.give(item, content_of(image, item)) == 0
    payload = bytearray(content_of(image, layout.PAYLOAD))
    payload[77] ^= 1
    assert box.give(layout.PAYLOAD, bytes(payload)) == BAD_SIGNATURE


def test_the_partition_that_was_not_booted_is_written_first() -> None:
    for profile_content, first in (("ifwi", "B"), ("ifwi:payload byte", "A")):
        box = Mailbox()
        box.gpu.rom.partition = 0 if profile_content == "ifwi" else 1
        places = [place for place, _ in box.gpu.blocks["psp_mailbox"]._destinations(layout.PAYLOAD, b"")]
        assert places[0] == ifwi.PAYLOADS[first][0]


def test_a_protected_chip_makes_the_update_fail() -> None:
    box = Mailbox()
    box.gpu.rom.chip._status[1] = 0x40
    assert box.give(0x80, b"\0\0\0\0") == WRITE_FAILED


def test_once_the_secure_os_runs_updates_are_gated_and_the_live_update_fails() -> None:
    box = Mailbox()
    box.gpu.psp.sos_alive = True
    assert [box.ask(command)[0] for command in (TRANSFER_TYPE, START, WORD, END)] == [GATED] * 4
    assert [box.ask(command)[0] for command in (BOOT_PARTITION, FB_STATE, MODEL)] == [0, 0, 0]
    assert [box.ask(command, 0x1000)[0] for command in (0x02, 0x03)] == [0, 0]
    assert box.ask(0x04)[0] == WRITE_FAILED
    assert box.flash.read(ifwi.COOKIE_AT, 8) == b"$AMDVBFL", "the cookie got there before"
    assert box.ask(0x11)[0] == INVALID_COMMAND


def test_planned_faults() -> None:
    assert Mailbox(faults="mailbox-error=0x08:0x12").ask(START, 4 << 8 | 0x80)[0] == 0x12
    second = Mailbox(faults="mailbox-error=1:3:2")
    assert [second.ask(BOOT_PARTITION)[0] for _ in range(3)] == [0, 3, 0]
    assert Mailbox(faults="mailbox-strange-item").wanted() == (0x0F, 0)
    with pytest.raises(AssertionError, match="no answer"):
        Mailbox(faults="mailbox-silent").ask(BOOT_PARTITION)
