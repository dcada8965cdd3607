"""Writing the simulated bridge's own flash, by each way, and when it goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridges.asm24.dfu import enter_stub
from bridges.asm24.errors import BridgeFlashRefused, BridgeLost, BridgeProtocolMismatch, DfuIncompatible, FlashBusyTimeout, FlashError, FlashProtected
from bridges.asm24.flash import ScsiWriter, SpiWriter, StubWriter, Writer, writer_for
from bridges.asm24.ids import Protocol
from bridges.asm24.image import parse, wrap
from bridges.asm24.session import BridgeSession
from hw.errors import TghwError
from mocks.asm24 import images
from mocks.asm24.host import Killed
from mocks.machine import Machine
from tests.bridges.simulated import CUSTOM, STOCK, bridge_of, machine_with
from tests.bridges.test_image import application

IMAGE_AT = 0x100
WRAPPED = wrap(bytes((17 * index + index // 255) & 0xFF for index in range(0x9000)))
LARGE = wrap(bytes((17 * index + index // 255) & 0xFF for index in range(98006)))


def quiet(done: int, total: int) -> None:
    """Nobody watches."""


def session_on(machine: Machine) -> BridgeSession:
    bridge, backend = bridge_of(machine)
    return BridgeSession.look(bridge, backend, clock=machine.clock)


def content(machine: Machine, start: int, size: int) -> bytes:
    """What is in the flash chip, past the controller."""
    assert machine.asm24 is not None
    return machine.asm24.flash.read(start, size)


def flash(machine: Machine, image: bytes) -> tuple[Writer, bytes]:
    """The whole procedure; the way it took, and the backup."""
    with session_on(machine) as session:
        writer = writer_for(session, parse(image))
        writer.prepare()
        kept = writer.backup(quiet)
        writer.write(quiet)
        return writer, kept


def rom_machine(tmp_path: Path) -> Machine:
    """A bridge whose flash holds nothing that starts."""
    profile = tmp_path / "rom.toml"
    profile.write_text('based_on = "navi31-asm24"\nname = "rom"\n[asm24]\nfirmware = "rom"\n', encoding="utf-8")
    return Machine.from_profile(profile)


@pytest.mark.parametrize("profile", [CUSTOM, pytest.param("asm24-usb2", marks=pytest.mark.slow)])
def test_open_firmware_writes_its_own_flash_and_leaves_the_configuration(profile: str) -> None:
    machine = machine_with(profile)
    before = content(machine, 0, 1 << 20)
    writer, kept = flash(machine, WRAPPED)
    assert isinstance(writer, SpiWriter)
    assert kept == before
    assert content(machine, IMAGE_AT, len(WRAPPED)) == WRAPPED
    assert content(machine, 0, IMAGE_AT) == before[:IMAGE_AT]
    end = -(-(IMAGE_AT + len(WRAPPED)) // 4096) * 4096
    assert content(machine, end, 4096) == before[end : end + 4096]


@pytest.mark.slow
def test_second_write_of_the_same_image_touches_nothing() -> None:
    machine = machine_with(CUSTOM)
    flash(machine, WRAPPED)
    with session_on(machine) as session:
        writer = writer_for(session, parse(WRAPPED))
        writer.prepare()
        writer.backup(quiet)
        before = session.link.counts.copy()
        writer.write(quiet)
        assert session.link.counts.since(before).transfers < 100


def test_stock_firmware_takes_an_image_in_two_parts() -> None:
    machine = machine_with(STOCK)
    before = content(machine, 0, IMAGE_AT)
    writer, kept = flash(machine, LARGE)
    assert isinstance(writer, ScsiWriter) and kept
    assert content(machine, IMAGE_AT, len(LARGE)) == LARGE
    assert content(machine, 0, IMAGE_AT) == before


def test_rom_loader_takes_an_image_too(tmp_path: Path) -> None:
    machine = rom_machine(tmp_path)
    with session_on(machine) as session:
        assert session.kind is Protocol.ROM
        with pytest.raises(BridgeProtocolMismatch, match="only writes its own flash"):
            session.ready()
    flash(machine, LARGE)
    assert content(machine, IMAGE_AT, len(LARGE)) == LARGE


def test_image_that_does_not_fit_what_runs_is_refused_with_nothing_changed(tmp_path: Path) -> None:
    for machine in (machine_with(STOCK), rom_machine(tmp_path)):
        with session_on(machine) as session, pytest.raises(BridgeFlashRefused, match="wrapped images only"):
            writer_for(session, parse(application("new")))
    machine = machine_with("navi31-asm24-add1")  # an older build: no boot stub
    before = content(machine, 0, 1 << 20)
    with session_on(machine) as session, pytest.raises(BridgeFlashRefused, match="no boot stub"):
        writer_for(session, parse(application("new"))).prepare()
    assert content(machine, 0, 1 << 20) == before


def test_boot_stub_takes_an_application_of_its_draft_and_starts_it() -> None:
    machine = machine_with(CUSTOM)
    new = images.application(images.made_up("custom", "custom 00c0ffee-CLEAN", 3))
    writer, kept = flash(machine, new)
    assert isinstance(writer, StubWriter) and kept
    assert content(machine, 0x4000, len(new)) == new
    with session_on(machine) as session:
        assert (session.kind, session.product) == (Protocol.CUSTOM, "custom 00c0ffee-CLEAN")


def test_boot_stub_refuses_the_other_draft_and_starts_its_application_again() -> None:
    machine = machine_with(CUSTOM)
    before = content(machine, 0, 1 << 20)
    with session_on(machine) as session, pytest.raises(DfuIncompatible, match="newer draft"):
        writer_for(session, parse(application("old"))).prepare()
    assert content(machine, 0, 1 << 20) == before
    with session_on(machine) as session:
        assert session.kind is Protocol.CUSTOM


def test_wrapped_image_is_refused_in_the_boot_stub() -> None:
    machine = machine_with(CUSTOM)
    with session_on(machine) as session:
        enter_stub(session.link)
    with session_on(machine) as session:
        assert session.kind is Protocol.DFU
        with pytest.raises(BridgeFlashRefused, match="application images only"):
            writer_for(session, parse(WRAPPED))


def test_protected_chip_is_told_and_nothing_is_erased() -> None:
    machine = machine_with(CUSTOM, "bridge-flash-protected")
    before = content(machine, 0, 1 << 20)
    with pytest.raises(FlashProtected):
        flash(machine, WRAPPED)
    assert content(machine, 0, 1 << 20) == before


@pytest.mark.parametrize(
    ("fault", "error"),
    [("flash-flip@asm24", FlashError), ("flash-stuck-busy@asm24", FlashBusyTimeout), ("flash-power-cut@asm24=20000", FlashError)],
)
@pytest.mark.slow
def test_sick_flash_chip_ends_in_a_typed_error(fault: str, error: type[TghwError]) -> None:
    machine = machine_with(CUSTOM, fault)
    with pytest.raises(error):
        flash(machine, WRAPPED)


@pytest.mark.slow
@pytest.mark.parametrize("number", [500, 9000])
def test_process_killed_while_writing_leaves_a_bridge_that_takes_the_image_again(number: int) -> None:
    machine = machine_with(CUSTOM)
    with session_on(machine) as session, pytest.raises(Killed):
        writer = writer_for(session, parse(WRAPPED))
        writer.prepare()
        writer.backup(quiet)
        assert machine.asm24 is not None
        machine.faults.add("usb-kill-at", str(machine.asm24.faults.transfers + number))
        writer.write(quiet)
    assert content(machine, IMAGE_AT, len(WRAPPED)) != WRAPPED
    flash(machine, WRAPPED)
    assert content(machine, IMAGE_AT, len(WRAPPED)) == WRAPPED


@pytest.mark.slow
def test_cable_pulled_while_writing_is_told() -> None:
    machine = machine_with(CUSTOM)
    with session_on(machine) as session:
        writer = writer_for(session, parse(WRAPPED))
        writer.prepare()
        writer.backup(quiet)
        assert machine.asm24 is not None
        machine.faults.add("usb-disconnect-at", f"{machine.asm24.faults.transfers + 500}:1")
        with pytest.raises(BridgeLost):
            writer.write(quiet)
    flash(machine, WRAPPED)
    assert content(machine, IMAGE_AT, len(WRAPPED)) == WRAPPED


def test_failing_command_of_the_stock_firmware_stops_the_update() -> None:
    machine = machine_with(STOCK)
    with session_on(machine) as session:
        writer = writer_for(session, parse(LARGE))
        writer.prepare()
        writer.backup(quiet)
        machine.faults.add("scsi-fail-at", "8")
        with pytest.raises(TghwError) as caught:
            writer.write(quiet)
        assert caught.value.code in ("bridge-flash-command", "bridge-command")
