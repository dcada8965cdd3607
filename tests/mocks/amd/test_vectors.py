"""The vectors of third-party traffic, fed to the simulated PSP and SMU: their decoders must read what the peer's encoders wrote.

Free choices of ours that the vectors do not pin: status codes of refusals, response bytes, durations, the levels of the clocks. The
recorded containers are known by their sizes only, so the simulated card gets the parts of its own container in the recorded steps.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from drivers.amd.layouts import psp as layout
from drivers.amd.layouts import smu as smu_layout
from drivers.amd.layouts.psp import BootLoaderCommand, Command
from mocks.amd.psp_commands import decode_command
from tests.mocks.amd.card import BOOT_COMPONENTS, MESSAGE, READY, Card

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "amd_psp_smu.json").read_text())["vectors"]
BY_ID = {vector["id"]: vector for vector in VECTORS}
COMMANDS = sorted(name for name in BY_ID if ".cmd." in name)
CARDS = [("navi31", "gfx1100"), ("navi32", "gfx1100"), ("navi33", "gfx1102")]
"""profile, and whose recorded sequences it gets: those of gfx1100 apply to Navi32 too, same mailboxes, same messages"""
MESSAGES = ("alive", "init", "clocks_max", "clocks_min", "clocks_release", "power_limit", "metrics")


def decoded(vector: dict[str, Any]) -> list[Any]:
    found = []
    for each in vector["expected"]["commands"]:
        head = bytes.fromhex(each["command_buffer_first_128"])
        buffer = head.ljust(layout.COMMAND_BUFFER_SIZE, b"\0")
        assert hashlib.sha256(buffer[: layout.COMMAND_RESPONSE]).hexdigest() == each["command_buffer_sha256_of_first_864"]
        found.append(decode_command(bytes.fromhex(each["ring_frame"]), buffer))
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_ring_frames_point_where_the_vector_says(name: str) -> None:
    vector = BY_ID[name]
    for position, command in enumerate(decoded(vector)):
        assert command.command_buffer == int(vector["inputs"]["command_buffer_mc"], 16)
        assert command.fence_address == int(vector["inputs"]["fence_mc"], 16)
        assert command.fence_value == vector["inputs"]["write_pointer_before"] + 16 * position + 1
        assert (command.vmid, command.frame_type, command.command_buffer_size, command.buffer_version) == (0, 0, 0, 0)


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1102"])
def test_payloads_are_read_field_by_field(chip: str) -> None:
    message = 0x80_0010_0000

    toc = decoded(BY_ID[f"{chip}.cmd.load_toc"])[0]
    fields = layout.LAYOUT.parse("struct load_toc", toc.payload)
    assert (toc.command, fields.toc_phy_addr_hi << 32 | fields.toc_phy_addr_lo, fields.toc_size) == (Command.LOAD_TOC, message, 0x900)

    tmr = decoded(BY_ID[f"{chip}.cmd.setup_tmr"])[0]
    fields = layout.LAYOUT.parse("struct setup_tmr", tmr.payload)
    assert (tmr.command, fields.buf_phy_addr_hi << 32 | fields.buf_phy_addr_lo, fields.buf_size) == (Command.SETUP_TMR, 0x80_0020_0000, 0x1200000)
    assert (fields.flags, fields.system_phy_addr_lo, fields.system_phy_addr_hi) == (2, 0x200000, 0)

    loads = decoded(BY_ID[f"{chip}.cmd.load_ip_fw_four"])
    parsed = [layout.LAYOUT.parse("struct load_ip_fw", each.payload) for each in loads]
    assert [(each.fw_type, each.fw_size) for each in parsed] == [(kind, 0x4001) for kind in (9, 10, 52, 53)]
    assert {each.command for each in loads} == {Command.LOAD_IP_FW}

    assert decoded(BY_ID[f"{chip}.cmd.autoload_rlc"])[0].command == Command.AUTOLOAD_RLC
    partition = decoded(BY_ID[f"{chip}.cmd.spatial_partition"])[0]
    assert (partition.command, layout.LAYOUT.parse("struct spatial_part", partition.payload).mode) == (Command.SRIOV_SPATIAL_PART, 1)


def writes(name: str) -> list[tuple[int, int]]:
    """(dword, value) of a sequence's register writes."""
    sequence = BY_ID[name]["expected"].get("sequence") or BY_ID[name]["expected"]["accesses"]
    return [(int(each["dword"], 16), int(each["value"], 16)) for each in sequence if each.get("kind") == "w" and "dword" in each]


@pytest.mark.parametrize(("profile", "chip"), CARDS)
def test_the_recorded_boot_loader_steps_start_the_secure_os(profile: str, chip: str) -> None:
    """Each part fills the message buffer before its step. The recorded container had no further drivers, the card's own has: they go in before the last part."""
    card = Card(profile)
    card.open_hub()
    parts = {int(command): card.parts[part] for command, part in BOOT_COMPONENTS}
    steps = BY_ID[f"{chip}.boot_loader"]["expected"]["sequence"]
    for position, step in enumerate(steps):
        if step["do"] == "write message buffer":
            command = next(int(each["value"], 16) for each in steps[position:] if each.get("reg") == "MP0_SMN_C2PMSG_35" and each["do"] == "write")
            if command == BootLoaderCommand.LOAD_SOS:
                for further, part in BOOT_COMPONENTS[3:-1]:
                    assert card.load_component(further, card.parts[part]) == 0
            card.vram.write(MESSAGE, parts[command])
        elif step["do"] == "HDP flush":
            card.flush()
        elif step["do"] == "write":
            card.mmio.write32(4 * int(step["dword"], 16), int(step["value"], 16))
        else:
            value = int(step["value"], 16)
            card.wait(lambda index=int(step["dword"], 16), value=value: card.mmio.read32(4 * index) == value, "ready")
    card.wait(lambda: card.c2p(81) != 0, "sign of life")


@pytest.mark.parametrize(("profile", "chip"), CARDS)
def test_the_recorded_ring_creation_makes_a_ring(profile: str, chip: str) -> None:
    card = Card(profile)
    card.open_hub()
    card.load_sos()
    for dword, value in writes(f"{chip}.ring_create"):
        card.mmio.write32(4 * dword, value)
    card.clock.sleep(0.02)
    assert card.c2p(64) & 0x8000FFFF == READY
    assert card.load_toc() == 0
    for step in BY_ID[f"{chip}.ring_recreate"]["expected"]["sequence"]:
        number = int(step.get("reg", "0").rpartition("_")[2])
        if step["kind"] == "w":
            card.set_c2p(number, int(step["value"], 16))
        elif step["kind"] == "sleep":
            card.clock.sleep(step["ms"] * 1e-3)
        elif number == 64:
            assert card.c2p(64) == int(step["value"], 16)
    assert card.c2p(67) == 0
    assert card.submit(Command.AUTOLOAD_RLC) != 0, "the new ring is served: out of order, so refused"


@pytest.mark.parametrize(("profile", "chip"), CARDS)
def test_the_recorded_smu_messages_are_understood(profile: str, chip: str) -> None:
    card = Card(profile, strict=False)
    card.boot_to_ring()
    card.load_toc()
    assert card.load_ip_fw(18) == 0
    card.clock.sleep(0.01)
    numbers = smu_layout.messages((13, 0, 0) if chip == "gfx1100" else (13, 0, 7))
    levels: list[int] = []
    for name in MESSAGES:
        for message, number, argument in BY_ID[f"{chip}.smu.{name}"]["expected"]["messages"]:
            assert numbers[message] == int(number, 16)
            response, value = card.smu(int(number, 16), int(argument, 16))
            assert response == 1, f"{name}: {message}"
            if message == "GetDpmFreqByIndex" and int(argument, 16) & 0xFF != 0xFF:
                levels.append(value)
    assert levels == [mhz for clock in ("UCLK", "FCLK", "SOCCLK", "GFXCLK") for mhz in recorded_levels(card, chip, clock)]
    assert card.smu(0x33)[1] == 150


def recorded_levels(card: Card, chip: str, clock: str) -> list[int]:
    """What the card answers for as many levels of a clock as the recording asked for: its own levels, in order."""
    count = len(BY_ID[f"{chip}.smu.clocks_max"]["inputs"]["levels_mhz"][clock])
    own: list[int] = card.gpu.profile["smu"]["clocks"][clock]["levels"]
    return own[:count]


@pytest.mark.parametrize(("profile", "chip"), CARDS)
def test_the_recorded_reset_resets(profile: str, chip: str) -> None:
    card = Card(profile, strict=False)
    card.boot_to_ring()
    card.load_toc()
    card.load_ip_fw(18)
    card.clock.sleep(0.01)
    for dword, value in writes(f"{chip}.smu.mode1_reset"):
        card.mmio.write32(4 * dword, value)
    card.clock.sleep(0.5)
    assert card.gpu.resets == 1
    assert (card.c2p(81), card.c2p(35)) == (0, READY)


@pytest.mark.parametrize(("profile", "chip"), CARDS)
def test_the_recorded_boot_order_is_accepted(profile: str, chip: str) -> None:
    card = Card(profile)
    card.boot_to_ring()
    for entry in BY_ID[f"{chip}.command_order"]["expected"]["commands"]:
        name, _, kind = entry.partition(" type ")
        status = {"LOAD_TOC": card.load_toc, "SETUP_TMR": card.setup_tmr, "AUTOLOAD_RLC": lambda: card.submit(Command.AUTOLOAD_RLC)}.get(name)
        # The recording's SDMA file had one part; types 72 and the optional RLC parts are loaded as the mock's own files have them.
        if name == "LOAD_IP_FW":
            assert card.load_ip_fw(int(kind)) == 0
            if kind == "71":
                assert card.load_ip_fw(72) == 0
        else:
            assert status is not None
            assert status() == 0
    card.wait(lambda: card.read("GC", "CP_STAT") == 0, "autoload")


def test_every_vector_is_fed_to_the_mock() -> None:
    sequences = ("boot_loader", "ring_create", "ring_recreate", "command_order", "smu.mode1_reset", *(f"smu.{name}" for name in MESSAGES))
    assert {name for name in BY_ID if name not in COMMANDS} == {f"{chip}.{name}" for chip in ("gfx1100", "gfx1102") for name in sequences}
    assert len(COMMANDS) == 12
