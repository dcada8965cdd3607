"""Faults of the PCIe link and of single requests behind a USB bridge."""

from __future__ import annotations

import pytest

from bridges.asm24.errors import LinkDown, TlpCompleterAbort, TlpConfigRetry, TlpReserved, TlpTimeout, TlpUnsupportedRequest
from bridges.asm24.tlp import memory_read
from drivers.amd.device import AmdDevice
from hw.errors import BusError, BusLost, DiscoveryInvalid, TghwError
from tests.bridges.simulated import CUSTOM, FIRMWARE, STOCK, machine_with, open_pci
from tests.faults.test_usb_transfers import outcome, session


@pytest.mark.parametrize("profile", [CUSTOM, STOCK])
def test_link_that_never_trains(profile: str) -> None:
    machine = machine_with(profile, "link-never")
    with pytest.raises(LinkDown) as caught:
        open_pci(machine)
    assert caught.value.ltssm == 1 and "receiver is detected" in caught.value.means


def test_link_that_takes_long_is_waited_for() -> None:
    machine = machine_with(CUSTOM, "link-slow=3")
    open_pci(machine).close()


@pytest.mark.parametrize("number", [20, 70, 400, 5000])
def test_link_that_drops_is_told_and_trained_again_by_the_next_session(number: int) -> None:
    machine = machine_with(CUSTOM, f"link-down-at={number}")
    assert isinstance(outcome(machine), (BusLost, DiscoveryInvalid))
    session(machine)


def test_configuration_retries_are_patiently_repeated() -> None:
    machine = machine_with(CUSTOM, "config-retry=6")
    open_pci(machine).close()


STATUS = {"ur": TlpUnsupportedRequest, "crs": TlpConfigRetry, "ca": TlpCompleterAbort, "reserved": TlpReserved}


@pytest.mark.parametrize("profile", [CUSTOM, STOCK])
@pytest.mark.parametrize("status", list(STATUS))
def test_completion_status_of_a_register_read_is_told(profile: str, status: str) -> None:
    machine = machine_with(profile)
    with open_pci(machine) as pci:
        register = pci.map_bar(5)
        machine.asm24.faults.inject([status])
        with pytest.raises(STATUS[status]) as caught:
            register.read32(0xDE3 << 2)
        assert f"{pci.bars[5].address + (0xDE3 << 2):#x}" in caught.value.what
        assert register.read32(0xDE3 << 2) == 24560


@pytest.mark.parametrize("profile", [CUSTOM, STOCK])
def test_missing_completion_is_repeated_and_ten_more_are_told(profile: str) -> None:
    machine = machine_with(profile)
    with open_pci(machine) as pci:
        register = pci.map_bar(5)
        machine.asm24.faults.inject(["timeout"] * 10)
        assert register.read32(0xDE3 << 2) == 24560
        machine.asm24.faults.inject(["timeout"] * 11)
        with pytest.raises(TlpTimeout):
            register.read32(0xDE3 << 2)
        assert register.read32(0xDE3 << 2) == 24560


def test_request_that_must_not_be_repeated_is_not() -> None:
    machine = machine_with(CUSTOM)
    with open_pci(machine) as pci:
        machine.asm24.faults.inject(["timeout"])
        with pytest.raises(TlpTimeout, match="tried 1 times"):
            pci.protocol.request(memory_read(pci.bars[5].address), repeat=False)


@pytest.mark.parametrize("status", [*STATUS, "timeout:20"])
@pytest.mark.parametrize("number", [2, 9, 30, 60])
def test_bad_completion_while_addresses_are_given_ends_typed_and_the_next_session_works(status: str, number: int) -> None:
    machine = machine_with(CUSTOM, f"tlp-completion={number}:{status}")
    caught: TghwError | None = None
    try:
        open_pci(machine).close()
    except BusError as error:
        caught = error
    if status in ("ca", "ur", "reserved") and number > 2:
        assert caught is not None
    open_pci(machine).close()


def test_state_of_a_card_that_fell_off_is_told_without_an_error() -> None:
    machine = machine_with(CUSTOM)
    with open_pci(machine) as pci:
        device = AmdDevice(pci, FIRMWARE)
        assert device.state() == "cold"
        pci.protocol.power(False)
        assert device.state() == "dead-bus"


def test_release_that_gets_lost_ends_the_copy_and_resets_the_queues() -> None:
    machine = machine_with(CUSTOM, "completion-lost")
    error = outcome(machine)
    assert isinstance(error, BusError) and error.code == "usb-timeout"
