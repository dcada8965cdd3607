"""The serprog server: recorded exchanges of flashrom replayed, and what it keeps from the chip."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from firmware.serprog import ACK, NAK, Programmer, Session
from firmware.spi.flash import SpiFlash
from mocks.spi import SpiChip
from mocks.spi_model import ChipModel
from tests.firmware.spi.card import FlashCard
from tests.firmware.spi.support import SIZE, Wire, make_chip

RECORDED: dict[str, Any] = json.loads(zstandard.decompress((Path(__file__).parents[1] / "data" / "serprog.json.zst").read_bytes()))
PATTERN = bytes((i ^ i >> 8 ^ i >> 16) & 0xFF for i in range(SIZE))
STEP = 1e-3
BUSY = 1.5 * STEP
"""the recorded chip is busy for exactly one status read"""

REFUSED_HERE = {"erase 4K", "erase 32K", "erase 64K", "chip erase"}


def board(sr1: int = 0, sr2: int = 0, **options: Any) -> tuple[SpiChip, Programmer]:
    times = dict.fromkeys((0x1000, 0x8000, 0x10000), BUSY)
    model = ChipModel("GD25LQ16", bytes.fromhex("c86015"), SIZE, bytes.fromhex("c814"), status=(sr1, sr2, 0), program_time=BUSY, erase_times=times, status_time=BUSY)
    chip = make_chip(model, content=PATTERN)
    wire = Wire(chip, STEP)
    return chip, Programmer(SpiFlash.open(wire), **options)


def test_the_recorded_pattern_is_ours() -> None:
    assert hashlib.sha256(PATTERN).hexdigest() == RECORDED["runs"][0]["inputs"]["sha256_before"]


FREE = {"query command map", "query name", "query max write", "query max read", "query serial buffer"}
"""answers that a server may choose"""


def replay(run: dict[str, Any]) -> tuple[SpiChip, list[str]]:
    """Feed a recorded run to a server of ours; the chip afterwards, and what differed."""
    chip, programmer = board(int(run["inputs"].get("sr1", "0"), 16), int(run["inputs"].get("sr2", "0"), 16), may_write=True)
    session = Session(programmer)
    wrong = []
    for number, exchange in enumerate(run["exchanges"]):
        request = bytes.fromhex(exchange["request_hex"])
        for _ in range(exchange.get("times", 1)):
            reply = session.feed(request)
            if exchange["op"] in FREE or (exchange.get("spi") == "RDID" and run["inputs"]["rdid"] != "c86015"):
                assert reply[:1] == ACK
                continue
            if not matches(exchange, reply):
                wrong.append(f"{number}: {exchange['op']} {exchange.get('spi', '')} {reply[:8].hex()}")
    return chip, wrong


def matches(exchange: dict[str, Any], reply: bytes) -> bool:
    """Long replies are recorded by length and hash."""
    recorded = exchange["reply_hex"]
    if isinstance(recorded, str):
        return reply.hex() == recorded
    return len(reply) == recorded["bytes"] and hashlib.sha256(reply).hexdigest() == recorded["sha256"]


RUNS = [run for run in RECORDED["runs"] if run["complete"] and "CMP set" not in run["name"]]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_recorded_runs_of_flashrom_are_answered_as_recorded(run: dict[str, Any]) -> None:
    chip, wrong = replay(run)
    assert wrong == []
    assert hashlib.sha256(chip.memory.read(0, SIZE)).hexdigest() == run["sha256_after"]
    assert [f"{chip.status(number):#04x}" for number in range(3)] == run["status_registers_after"]


def test_with_cmp_set_no_erase_reaches_the_chip_and_the_console_says_why() -> None:
    """flashrom does not look at CMP and tries every erase it knows, chip erase too."""
    said: list[str] = []
    run = next(run for run in RECORDED["runs"] if "CMP set" in run["name"])
    chip, programmer = board(0, 0x40, may_write=True, report=said.append)
    session = Session(programmer)
    refused = 0
    for exchange in run["exchanges"]:
        for _ in range(exchange.get("times", 1)):
            reply = session.feed(bytes.fromhex(exchange["request_hex"]))
            if exchange.get("spi") in REFUSED_HERE:
                assert reply == NAK
                refused += 1
    assert refused == 5
    assert not {0x20, 0x52, 0xD8, 0x60, 0xC7, 0x02} & set(chip.commands)
    assert len(said) == 5
    assert all("CMP turns 'nothing' into 'everything'" in each for each in said)
    assert chip.memory.read(0, SIZE) == PATTERN


# --- the protocol itself ---


def spi(send: bytes, receive: int) -> bytes:
    return b"\x13" + len(send).to_bytes(3, "little") + receive.to_bytes(3, "little") + send


def test_questions_about_the_server() -> None:
    session = Session(board()[1])
    assert session.feed(b"\x00") == ACK
    assert session.feed(b"\x10") == NAK + ACK
    assert session.feed(b"\x01") == ACK + b"\x01\x00"
    assert session.feed(b"\x03") == ACK + b"tghw".ljust(16, b"\0")
    assert session.feed(b"\x05") == ACK + b"\x08"
    assert session.feed(b"\x12\x08") == ACK
    assert session.feed(b"\x12\x01") == NAK
    assert session.feed(b"\x08") == ACK + (260).to_bytes(3, "little")
    commands = session.feed(b"\x02")[1:]
    assert {number for number in range(256) if commands[number // 8] >> number % 8 & 1} == {0, 1, 2, 3, 4, 5, 8, 0x10, 0x11, 0x12, 0x13, 0x15}


def test_unknown_commands_are_refused_and_the_next_is_understood() -> None:
    session = Session(board()[1])
    assert session.feed(b"\x77\x00") == NAK + ACK


def test_requests_may_arrive_in_any_pieces() -> None:
    whole, piecewise = Session(board()[1]), Session(board()[1])
    requests = b"\x00\x10" + spi(b"\x9f", 3) + spi(b"\x03\x00\x12\x34", 16) + b"\x12\x08"
    answers = whole.feed(requests)
    assert b"".join(piecewise.feed(requests[at : at + 1]) for at in range(len(requests))) == answers
    assert answers == ACK + NAK + ACK + ACK + bytes.fromhex("c86015") + ACK + PATTERN[0x1234:0x1244] + ACK


def test_operations_beyond_the_announced_limits_are_refused() -> None:
    chip, programmer = board(may_write=True)
    session = Session(programmer)
    before = dict(chip.commands)
    assert session.feed(spi(b"\x02\0\0\0" + bytes(300), 0)) == NAK
    assert session.feed(spi(b"\x03\0\0\0", 0x10001)) == NAK
    assert session.feed(b"\x13" + bytes(6)) == NAK
    assert chip.commands == before


def test_a_read_goes_around_the_end_of_the_chip() -> None:
    session = Session(board()[1])
    assert session.feed(spi(b"\x03\x1f\xff\xf8", 16)) == ACK + PATTERN[-8:] + PATTERN[:8]
    assert session.feed(spi(b"\x0b\x00\x00\x10\x00", 4)) == ACK + PATTERN[0x10:0x14]
    assert session.feed(spi(b"\x0b\x00\x00\x10", 4)) == ACK + b"\xff" + PATTERN[0x10:0x13]


def test_commands_that_nobody_knows_never_reach_the_chip() -> None:
    chip, programmer = board(may_write=True)
    before = chip.cycles
    assert Session(programmer).feed(spi(b"\x83\0\0\0", 3)) == ACK + b"\xff\xff\xff"
    assert Session(programmer).feed(spi(b"\xe8\0\0\0", 1)) == ACK + b"\xff"
    assert chip.cycles == before


def test_a_rotated_capture_is_passed_on_unrotated() -> None:
    flash = SpiFlash.open(FlashCard(id_rotation=1).port.engine)
    assert flash.identity.captured.hex() == "c8c86015"
    assert Session(Programmer(flash)).feed(spi(b"\x9f", 6)) == ACK + bytes.fromhex("c86015c86015")


@pytest.mark.parametrize("command", [b"\x06", b"\x02\0\0\0\0", b"\x20\0\0\0", b"\xd8\0\0\0", b"\xc7", b"\x60", b"\x01\x00", b"\x31\x00", b"\x42\0\0\0\0"])
def test_without_consent_nothing_that_changes_the_chip_reaches_it(command: bytes) -> None:
    said: list[str] = []
    chip, programmer = board(report=said.append)
    before = dict(chip.commands)
    assert Session(programmer).feed(spi(command, 0)) == NAK
    assert Session(programmer).feed(spi(command, 0)) == NAK
    assert chip.commands == before
    assert said == ["refused: the client wants to change the flash, and writing was not allowed (--yes)"]


def test_a_partly_protected_chip_is_written_where_it_is_not_protected() -> None:
    chip, programmer = board(sr1=0x04, may_write=True, report=lambda text: None)
    session = Session(programmer)

    def erase(address: bytes) -> bytes:
        session.feed(spi(b"\x06", 0))
        answer = session.feed(spi(b"\x20" + address, 0))
        while session.feed(spi(b"\x05", 1))[1] & 1:
            pass
        return answer

    assert erase(b"\x00\x10\x00") == ACK
    assert erase(b"\x1f\x00\x00") == NAK
    assert session.feed(spi(b"\xc7", 0)) == NAK
    assert chip.memory.read(0x1000, 0x1000) == b"\xff" * 0x1000
    session.feed(spi(b"\x06", 0))
    assert session.feed(spi(b"\x01\x00", 0)) == ACK
    while session.feed(spi(b"\x05", 1))[1] & 1:
        pass
    assert erase(b"\x1f\x00\x00") == ACK, "after the client has cleared the bits"


def test_a_one_byte_status_write_keeps_the_second_register() -> None:
    chip, programmer = board(sr2=0x02, may_write=True)
    session = Session(programmer)
    session.feed(spi(b"\x06", 0))
    sent: list[bytes] = []
    original = SpiChip._write_status

    def watching(self: SpiChip, data: bytes, receive: int, now: float) -> bytes:
        sent.append(data)
        return original(self, data, receive, now)

    chip._HANDLERS = {**SpiChip._HANDLERS, 0x01: watching}  # type: ignore[misc]
    session.feed(spi(b"\x01\x1c", 0))
    assert sent == [b"\x01\x1c\x02"]
