"""The custom protocol against recorded transfers of an independent driver (tests/data/asm24_transfers.json.zst).

Where ours differ they are fewer, and what reaches PCIe is the same: see the tests whose names say so.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from bridges.asm24.config import BridgeConfig
from bridges.asm24.custom import CustomProtocol
from bridges.asm24.errors import LinkDown, TlpCompleterAbort, TlpConfigRetry, TlpReserved, TlpTimeout, TlpUnsupportedRequest
from bridges.asm24.ids import Protocol
from bridges.asm24.session import BridgeSession
from bridges.asm24.tlp import config_read, config_write, memory_read, memory_write
from bridges.asm24.usb import attached
from bridges.asm24.window import BridgeWindow, PendingAccesses
from hw.errors import BusError
from tests.bridges.model import VECTORS, ModelBackend, TestClock, shorten

CUSTOM = {vector["id"]: vector for vector in VECTORS["custom_firmware"]}
PATTERN = bytes((7 * i + 3) % 256 for i in range(1 << 20))
ERRORS = {
    "TlpUnsupportedRequest": TlpUnsupportedRequest,
    "TlpConfigRetry": TlpConfigRetry,
    "TlpCompleterAbort": TlpCompleterAbort,
    "TlpReserved": TlpReserved,
    "TlpTimeout": TlpTimeout,
}


class Opened:
    """A bridge with open firmware, opened; what opening did is forgotten."""

    def __init__(self) -> None:
        self.backend = ModelBackend()
        self.clock = TestClock()
        (bridge,) = attached(self.backend)
        self.session = BridgeSession.open(bridge, self.backend, clock=self.clock)
        assert isinstance(self.session.protocol, CustomProtocol)
        self.protocol = self.session.protocol
        self.backend.transfers.clear()

    def window(self, base: int, size: int = 1 << 30) -> BridgeWindow:
        return BridgeWindow(self.protocol, PendingAccesses(self.protocol), base, size, "BAR")


@pytest.fixture
def opened() -> Opened:
    return Opened()


def comparable(transfers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without time-outs (free) and remarks. A pause has no counterpart at the backend; after a reset pyusb opens the device again and we
    ask once more whether a kernel driver has it, which sends nothing."""
    seen: set[str] = set()
    kept = []
    for each in transfers:
        if each["op"] == "sleep" or (each["op"] in ("open", "kernel driver active?") and each["op"] in seen):
            continue
        seen.add(each["op"])
        kept.append(each)
    return [{key: value for key, value in each.items() if key not in ("timeout_ms", "class")} for each in kept]


def ids_with(pattern: str) -> list[str]:
    return [name for name, vector in CUSTOM.items() if re.match(pattern, vector["name"])]


def run_request(opened: Opened, vector: dict[str, Any]) -> Any:
    """What a vector of a single request asks for."""
    given = vector["inputs"]
    opened.backend.pcie.completions = list(given.get("completions", ()))
    name = vector["name"]
    if int(vector["transfers"][0]["wValue"], 0) & 0xBE == 0x04:
        bus, offset, size = given.get("bus", 4), given.get("offset", 0), given.get("size", 4)
        if "write" in name:
            offset, size = (given.get("offset", 4), given.get("size", 1))
            return opened.protocol.request(config_write(bus, 0, 0, offset, int(given.get("value", "7"), 0), size))
        return opened.protocol.request(config_read(bus, given.get("device", 0), given.get("function", 0), offset, size))
    address, size = int(given.get("address", "0x10000000"), 0), given.get("size", 4)
    if "write" in name:
        return opened.protocol.request(memory_write(address, int(given["value"], 0), size))
    return opened.protocol.request(memory_read(address, size))


@pytest.mark.parametrize("name", ids_with(r"(config|memory) (read|write),? |config read of device"))
def test_single_request_is_sent_and_decoded_as_recorded(opened: Opened, name: str) -> None:
    vector = CUSTOM[name]
    result = vector["result"]
    if isinstance(result, dict):
        with pytest.raises(ERRORS[result["raises"]]):
            run_request(opened, vector)
    else:
        value = run_request(opened, vector)
        assert value == (int(result, 0) if result else 0)
    assert comparable(opened.backend.transfers) == comparable(vector["transfers"])


@pytest.mark.parametrize(
    "name", [name for name in ids_with("error: ") if "inputs" in CUSTOM[name] and "completions" in CUSTOM[name]["inputs"] and "dead address" not in CUSTOM[name]["name"]]
)
def test_completion_status_becomes_a_typed_error_and_only_missing_completions_are_repeated(opened: Opened, name: str) -> None:
    vector = CUSTOM[name]
    if isinstance(vector["result"], dict):
        with pytest.raises(ERRORS[vector["result"]["raises"]]):
            run_request(opened, vector)
    else:
        assert run_request(opened, vector) == int(vector["result"], 0)
    assert comparable(opened.backend.transfers) == comparable(vector["transfers"])
    sleeps = sum(each["op"] == "sleep" for each in vector["transfers"])
    assert opened.clock.naps == [0.001] * min(sleeps, 10), "no pause after the last try"


@pytest.mark.parametrize("name", [name for name in ids_with("streaming write") if CUSTOM[name]["inputs"]["bytes"] > 4])
def test_run_of_dwords_is_one_stream_as_recorded(opened: Opened, name: str) -> None:
    vector = CUSTOM[name]
    size, address = vector["inputs"]["bytes"], int(vector["inputs"]["address"], 0)
    opened.protocol.write_runs([(address, PATTERN[:size])])
    assert comparable(opened.backend.transfers) == comparable(vector["transfers"])
    assert opened.backend.pcie.memory[address + size - 4] == int.from_bytes(PATTERN[size - 4 : size], "little")


@pytest.mark.parametrize("name", [name for name in ids_with("streaming read") if CUSTOM[name]["inputs"]["bytes"] > 4])
def test_block_read_is_one_stream_as_recorded(opened: Opened, name: str) -> None:
    vector = CUSTOM[name]
    size, address = vector["inputs"]["bytes"], int(vector["inputs"]["address"], 0)
    for offset in range(0, size, 4):
        opened.backend.pcie.memory[address + offset] = int.from_bytes(PATTERN[offset : offset + 4], "little")
    data = opened.protocol.read_run(address, size)
    assert shorten(data) == vector["result"]
    assert comparable(opened.backend.transfers) == comparable(vector["transfers"])


def test_one_dword_is_one_transfer_where_the_recorded_driver_streams_and_pcie_sees_the_same(opened: Opened) -> None:
    write, read = CUSTOM["custom_firmware.44"], CUSTOM["custom_firmware.43"]
    window = opened.window(0x800400000)
    window.write32(0x58, 0x11223344)
    assert len(opened.backend.transfers) == 1 < len(write["transfers"])
    assert opened.backend.pcie.log == [("memory write", 0x800400058, 0xF, 0x11223344)]
    opened.backend.transfers.clear()
    del opened.backend.pcie.memory[0x800400058]
    assert window.read32(0x58) == int(read["result"], 0)
    assert len(opened.backend.transfers) == 2 == len(read["transfers"])
    assert opened.backend.pcie.log[-1] == ("memory read", 0x800400058, 0xF, 0)


def test_doorbell_is_one_stream_of_two_dwords_low_first_as_recorded(opened: Opened) -> None:
    window = opened.window(0x810000000)
    window.write64(24, 0x1122334455667788)
    assert comparable(opened.backend.transfers) == comparable(CUSTOM["custom_firmware.45"]["transfers"])
    opened.backend.transfers.clear()
    assert window.read64(24) == 0x1122334455667788
    assert comparable(opened.backend.transfers) == comparable(CUSTOM["custom_firmware.46"]["transfers"])


def test_slice_write_as_recorded(opened: Opened) -> None:
    opened.window(0x800000000).write(0x1000, bytes(range(16)))
    assert comparable(opened.backend.transfers) == comparable(CUSTOM["custom_firmware.47"]["transfers"])


def test_access_across_a_dword_is_split_where_the_recorded_driver_loses_a_byte(opened: Opened) -> None:
    window = opened.window(0x10000000)
    window.write(3, b"\xaa\xbb")
    assert opened.backend.pcie.log == [("memory write", 0x10000000, 0x8, 0xAA000000), ("memory write", 0x10000004, 0x1, 0xBB)]
    assert window.read(3, 2) == b"\xaa\xbb"


def test_unaligned_block_is_padded_by_byte_enables_and_read_by_whole_dwords(opened: Opened) -> None:
    window = opened.window(0x10000000)
    window.write(5, bytes(range(1, 12)))
    assert [entry[1:3] for entry in opened.backend.pcie.log] == [(0x10000004, 0xE), (0x10000008, 0xF), (0x1000000C, 0xF)]
    assert window.read(4, 13)[1:12] == bytes(range(1, 12))


@pytest.mark.parametrize("name", ids_with("XDATA read"))
def test_xdata_read_as_recorded(opened: Opened, name: str) -> None:
    given = CUSTOM[name]["inputs"]
    data = opened.protocol.read_xdata(int(given["address"], 0), given["bytes"])
    assert shorten(data) == CUSTOM[name]["result"] or data.hex() == CUSTOM[name]["result"] or given["bytes"] == 1
    assert comparable(opened.backend.transfers) == comparable(CUSTOM[name]["transfers"])


def test_xdata_read_at_usb_2_asks_for_64_bytes_at_a_time() -> None:
    backend = ModelBackend(speed=3)
    (bridge,) = attached(backend)
    session = BridgeSession.open(bridge, backend, clock=TestClock())
    backend.transfers.clear()
    assert session.protocol is not None
    session.protocol.read_xdata(0xF000, 150)
    assert [each["wLength"] for each in backend.transfers] == [64, 64, 22]


def test_xdata_write_as_recorded(opened: Opened) -> None:
    opened.protocol.write_xdata(0xA800, b"\x12\x34\x56")
    assert comparable(opened.backend.transfers) == comparable(CUSTOM["custom_firmware.51"]["transfers"])


@pytest.mark.parametrize("name", ids_with("SRAM write"))
def test_sram_write_is_armed_then_sent_padded_as_recorded(opened: Opened, name: str) -> None:
    vector = CUSTOM[name]
    slot = vector["inputs"].get("slot", 0)
    opened.protocol.send(PATTERN[: vector["inputs"]["bytes"]], slot * 0x4000)
    assert comparable(opened.backend.transfers) == comparable(vector["transfers"])


@pytest.mark.parametrize("name", ids_with("SRAM read"))
def test_sram_read_is_armed_before_and_its_padding_dropped_as_recorded(opened: Opened, name: str) -> None:
    vector = CUSTOM[name]
    size = vector["inputs"]["bytes"]
    opened.protocol.expect(size)
    assert len(opened.backend.transfers) == 1
    opened.backend.sram[:] = PATTERN[: len(opened.backend.sram)]
    data = opened.protocol.receive(size)
    assert len(data) == size
    assert comparable(opened.backend.transfers) == comparable(vector["transfers"])


def test_power_as_recorded(opened: Opened) -> None:
    opened.protocol.power(False)
    opened.protocol.power(True)
    assert comparable(opened.backend.transfers) == comparable(CUSTOM["custom_firmware.59"]["transfers"] + CUSTOM["custom_firmware.60"]["transfers"])


# --- opening ----------------------------------------------------------------------------------------------------------


def open_as(vector: dict[str, Any]) -> list[dict[str, Any]]:
    """What opening does to the bridge of a vector."""
    from bridges.asm24.bringup import bring_link_up

    given = vector["inputs"]
    backend = ModelBackend(given["product"], kernel_driver=given.get("kernel_driver", False))
    backend.xdata[0xB450] = given.get("ltssm_before", 0x78)
    backend.ltssm_after = given.get("ltssm_after", 0x78)
    (bridge,) = attached(backend)
    session = BridgeSession.open(bridge, backend, clock=TestClock(), wanted=Protocol.CUSTOM)
    assert session.protocol is not None
    bring_link_up(session.protocol, within=5.0 if backend.ltssm_after == 0x78 else 0.0)
    return comparable(backend.transfers)


def test_opening_takes_the_interface_from_the_kernel_and_powers_the_slot_as_recorded() -> None:
    vector = CUSTOM["custom_firmware.0"]
    assert open_as(vector) == comparable(vector["transfers"])


def test_opening_a_bridge_whose_link_is_up_asks_once_where_the_recorded_driver_asks_twice() -> None:
    vector = CUSTOM["custom_firmware.1"]
    assert open_as(vector) == comparable(vector["transfers"])[:-1]


def test_link_that_does_not_come_up_is_named() -> None:
    with pytest.raises(LinkDown) as caught:
        open_as(CUSTOM["custom_firmware.2"])
    assert caught.value.ltssm == 0x00


def test_wrong_firmware_is_found_out_before_the_interface_is_touched() -> None:
    vector = CUSTOM["custom_firmware.3"]
    backend = ModelBackend(vector["inputs"]["product"])
    (bridge,) = attached(backend)
    with pytest.raises(BusError, match="bridge-protocol"):
        BridgeSession.open(bridge, backend, clock=TestClock(), wanted=Protocol.CUSTOM)
    assert comparable(backend.transfers) == comparable(vector["transfers"])


def test_bring_up_leaves_bridges_and_bars_as_the_recorded_one_with_fewer_transfers() -> None:
    from bridges.asm24.device import Asm24PciDevice

    vector = CUSTOM["custom_firmware.4"]
    theirs = ModelBackend()
    for transfer in vector["transfers"]:
        if transfer["bmRequestType"] == "0x40":
            theirs._vendor_out(0xF0, int(transfer["wValue"], 0), int(transfer["wIndex"], 0), bytes.fromhex(transfer["data"]))
    ours = ModelBackend()
    (bridge,) = attached(ours)
    device = Asm24PciDevice.open(bridge, ours, clock=TestClock())
    for bus in range(4):
        assert ours.pcie.spaces[bus] == theirs.pcie.spaces[bus], f"bridge on bus {bus}"
    gpu, expected = ours.pcie.spaces[4], theirs.pcie.spaces[4]
    assert gpu[4] == 3, "bus mastering is the driver's to allow; the recorded driver allows it at once"
    assert gpu[5:] == expected[5:]
    assert {f"BAR{index}": {"address": f"{bar.address:#x}", "size": f"{bar.size:#x}"} for index, bar in device.bars.items()} == vector["result"]
    written = [transfer for transfer in ours.transfers if transfer.get("bmRequestType") == "0x40" and int(transfer["wValue"], 0) & 0x40]
    assert len(written) < sum(transfer["bmRequestType"] == "0x40" and bool(int(transfer["wValue"], 0) & 0x40) for transfer in vector["transfers"])
    assert BridgeConfig(device.protocol, 4).read16(2) == 0x744C
