"""The flash mailbox's driver on the simulated security processor."""

from __future__ import annotations

import pytest

from firmware.ifwi import Ifwi, IfwiInvalid, diff
from firmware.mailbox import MailboxError, MailboxGated, MailboxSilent, live_update
from firmware.mailbox_layout import EarlyCommand
from hw.errors import BusLost, NotSupported
from hw.trace import TracedDevice
from mocks.amd import ifwi as fabricated
from tests.firmware.spi.card import GPU, FlashCard

IMAGE = Ifwi(fabricated.fabricate(9))
COMMAND, DATA, DOORBELL = 0x582CC, 0x582D0, 0x58224


def test_a_probe_asks_four_questions_in_order_and_changes_nothing() -> None:
    card = FlashCard("navi31")
    before = card.content
    answers = card.port.mailbox.probe()
    assert [(each.command, each.error, each.value) for each in answers] == [
        (EarlyCommand.GET_BOOT_PARTITION, 0, 0),
        (EarlyCommand.GET_FB_STATE, 0, 1),
        (EarlyCommand.SPI_GET_MODEL_ID, 0, 0x1560C8),
        (EarlyCommand.GET_TRANSFER_TYPE, 0, 0x80),
    ]
    assert card.content == before


def test_data_goes_first_then_the_command_then_the_doorbell() -> None:
    from drivers.amd.flash import open_port

    traced = TracedDevice(FlashCard("navi31").pci)
    mailbox = open_port(traced).mailbox
    traced.recorder.clear()
    mailbox.command(EarlyCommand.START_TRANSFER, 4 << 8 | 0x80)
    writes = [(access.offset, access.value) for access in traced.recorder.records if access.is_write]
    assert writes == [(DATA, 0x480), (COMMAND, 0x08 << 16), (DOORBELL, 1)]
    assert traced.recorder.records[0].offset == COMMAND, "readiness is looked at before anything is written"


def test_a_stream_gives_every_item_asked_for_and_the_flash_holds_the_image() -> None:
    card = FlashCard("navi31")
    seen: list[tuple[int, int, int]] = []
    report = card.port.mailbox.stream(IMAGE, lambda *step: seen.append(step))
    assert sorted(report.items) == sorted(item.number for item, _ in IMAGE.report().items)
    assert report.bytes_sent == sum(item.size for item, _ in IMAGE.report().items)
    assert report.last_state >> 8 == 2
    assert seen[-1] == (0x01, 0x54, 0x54)
    assert all(each.explained for each in diff(IMAGE.data, card.content))


def test_a_closed_door_is_a_refusal_with_its_reason() -> None:
    card = FlashCard("navi31")
    card.machine.gpus[0].psp.sos_alive = True
    before = card.content
    with pytest.raises(MailboxGated) as caught:
        card.port.mailbox.stream(IMAGE)
    assert caught.value.exit_status == 4
    assert caught.value.read == "GET_TRANSFER_TYPE answers 0xa (partition update)"
    assert card.content == before


def test_nobody_at_home() -> None:
    card = FlashCard()
    start = card.machine.clock.now()
    with pytest.raises(MailboxSilent, match="GET_BOOT_PARTITION: waiting for the mailbox"):
        card.port.mailbox.probe()
    assert 10 <= card.machine.clock.now() - start < 10.1
    card = FlashCard("navi31", faults="mailbox-silent")
    with pytest.raises(MailboxSilent, match="waiting for its end"):
        card.port.mailbox.probe()


def test_a_lost_bus_is_not_an_answer() -> None:
    card = FlashCard("navi31")
    card.machine.function(GPU).link_up = False
    with pytest.raises(BusLost):
        card.port.mailbox.probe()


def test_a_refused_start_ends_the_attempt_without_an_end() -> None:
    card = FlashCard("navi31", faults="mailbox-error=0x08:0x12")
    with pytest.raises(MailboxError) as caught:
        card.port.mailbox.stream(IMAGE)
    assert (caught.value.error, caught.value.read) == (0x12, "START_TRANSFER answers 0x12 (initialization), data 0x00000480")
    assert card.machine.gpus[0].blocks["psp_mailbox"]._counts.get(0x0A) is None


def test_a_transfer_that_breaks_is_closed_once_with_what_was_acknowledged() -> None:
    card = FlashCard("navi31", faults="mailbox-error=0x09:0x11:6")
    box = card.machine.gpus[0].blocks["psp_mailbox"]
    with pytest.raises(MailboxError) as caught:
        card.port.mailbox.stream(IMAGE)
    assert caught.value.error == 0x11
    assert box._counts[0x0A] == 2, "the item before, and the one that broke"
    assert box._data.value == 16 << 8 | 0x81, "four words were acknowledged"
    assert box._open is None


def test_a_failing_end_is_not_repeated() -> None:
    card = FlashCard("navi31", faults="mailbox-error=0x0a:0xd:3")
    with pytest.raises(MailboxError) as caught:
        card.port.mailbox.stream(IMAGE)
    assert caught.value.error == 0xD
    assert card.machine.gpus[0].blocks["psp_mailbox"]._counts[0x0A] == 3


def test_an_interrupted_stream_closes_its_transfer() -> None:
    card = FlashCard("navi31")
    box = card.machine.gpus[0].blocks["psp_mailbox"]

    def stop(item: int, done: int, size: int) -> None:
        if item == 0x04 and done == 1024:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        card.port.mailbox.stream(IMAGE, stop)
    assert box._open is None
    assert box._data.value == 1024 << 8 | 0x04


def test_an_item_that_nobody_knows_ends_the_stream() -> None:
    with pytest.raises(IfwiInvalid, match="item 0xf: unknown item"):
        FlashCard("navi31", faults="mailbox-strange-item").port.mailbox.stream(IMAGE)


def test_a_stream_without_end_is_given_up_after_nineteen_items() -> None:
    card = FlashCard("navi31", faults="mailbox-endless")
    card.machine.gpus[0].blocks["psp_mailbox"].numbers["order"] = [0x80]
    with pytest.raises(MailboxError, match="asked for 19 items") as caught:
        card.port.mailbox.stream(IMAGE)
    assert caught.value.read == "last state 0x0180"


def test_the_live_update_is_disabled_with_its_reason() -> None:
    with pytest.raises(NotSupported) as caught:
        live_update(IMAGE.data)
    assert "0xC (write to SPI)" in caught.value.means
