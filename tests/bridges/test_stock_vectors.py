"""The stock protocol against recorded commands of an independent driver, over bulk-only transport and over UAS streams.

Commands that write a register byte which already holds that value may be left out (both drivers do, each by its own memory of what it
wrote), so the comparison is: the same requests reach PCIe, with no more commands. Where the recorded exchange does not depend on that
memory, the transfers themselves are compared.
"""

from __future__ import annotations

from typing import Any

import pytest

from bridges.asm24.errors import TlpCompleterAbort, TlpConfigRetry, TlpUnsupportedRequest
from bridges.asm24.session import BridgeSession
from bridges.asm24.stock import StockProtocol
from bridges.asm24.tlp import Tlp, config_read, config_write, memory_read, memory_write
from bridges.asm24.uas import Uas
from bridges.asm24.usb import attached
from bridges.asm24.window import BridgeWindow, PendingAccesses
from tests.bridges.model import VECTORS, ModelBackend, TestClock, shorten

PRODUCT = "USB 3.2 PCIe TinyEnclosure"
PATTERN = bytes((7 * i + 3) % 256 for i in range(1 << 17))
UAS = {vector["id"]: vector for vector in VECTORS["stock_firmware_uas"]}
BOT = {vector["id"]: vector for vector in VECTORS["stock_firmware_bot"]}


class StreamBackend(ModelBackend):
    """The model with bulk streams, as a libusb with stream support offers them."""

    def alloc_streams(self, handle: Any, count: int, endpoints: Any) -> int:
        self.streams = (count, tuple(endpoints))
        return count

    def run_streams(self, handle: Any, transfers: Any, timeout_ms: int) -> list[Any]:
        results: list[Any] = []
        command = b""
        for endpoint, stream, payload in transfers:
            if endpoint == 0x04:
                assert stream == 0 and payload[0] == 1
                command = payload[16:]
                self.transfers.append({"op": "submit", "type": "bulk", "endpoint": "0x04", "length": 32, "data": payload.hex()})
                results.append(32)
                self._data = b""
                if command[0] != 0x8A:
                    self._data = self.command(command, command[1] if command[0] == 0xE4 else 0)
            elif endpoint == 0x83:
                self.transfers.append({"op": "submit", "type": "bulk stream", "endpoint": "0x83", "length": payload, "stream": stream})
                results.append(bytes([3, 0]) + stream.to_bytes(2, "big") + bytes(12))
            elif endpoint == 0x81:
                self.transfers.append({"op": "submit", "type": "bulk stream", "endpoint": "0x81", "length": payload, "stream": stream, "answer": shorten(self._data)})
                results.append(self._data)
            else:
                self.transfers.append({"op": "submit", "type": "bulk stream", "endpoint": "0x02", "length": len(payload), "stream": stream, "data": shorten(payload)})
                self.sram[: len(payload)] = payload
                results.append(len(payload))
        return results


def opened(kind: str, *, kernel_driver: bool = False) -> tuple[ModelBackend, StockProtocol, BridgeSession]:
    backend = (StreamBackend if kind == "uas" else ModelBackend)(PRODUCT, stock=True, kernel_driver=kernel_driver)
    (bridge,) = attached(backend)
    session = BridgeSession.open(bridge, backend, clock=TestClock())
    assert isinstance(session.protocol, StockProtocol)
    assert isinstance(session.protocol.pipe, Uas) == (kind == "uas")
    return backend, session.protocol, session


def blocks(transfers: list[dict[str, Any]]) -> list[str]:
    """The command blocks that were sent, without what earlier commands left behind them."""
    found = []
    for each in transfers:
        data = each.get("data")
        if not isinstance(data, str):
            continue
        if each["endpoint"] == "0x04":
            found.append(data[32:])
        elif data.startswith("55534243"):
            found.append(data[30:])
    return [block[: 32 if block.startswith("8a") else 12] for block in found]


def replayed(vectors: dict[str, dict[str, Any]]) -> list[tuple[dict[str, Any], list[tuple[str, int, int, int]]]]:
    """What reached PCIe in each recorded exchange, by carrying its commands out on the model, in order."""
    backend = ModelBackend(PRODUCT, stock=True)
    result = []
    for vector in vectors.values():
        backend.pcie.log.clear()
        backend.pcie.completions = list(vector["inputs"].get("completions", ())) if isinstance(vector["inputs"], dict) else []
        for block in blocks(vector["transfers"]):
            raw = bytes.fromhex(block).ljust(16, b"\0")
            if raw[0] in (0xE4, 0xE5):
                backend.command(raw, raw[1] if raw[0] == 0xE4 else 0)
        result.append((vector, list(backend.pcie.log)))
    return result


def perform(protocol: StockProtocol, backend: ModelBackend, vector: dict[str, Any]) -> Any:
    """Do what the vector's name and inputs say."""
    name, given = vector["name"], vector["inputs"]
    backend.pcie.completions = list(given.get("completions", ()))
    if name.startswith("memory write of"):
        count = int(name.split()[3])
        values = [int(word, 16) for word in given["values"].split()] if " " in given["values"] else range(1, count + 1)
        protocol.write_runs([(int(given["address"], 0), b"".join(value.to_bytes(4, "little") for value in values))])
        return None
    if name.startswith("mapped view"):
        window = BridgeWindow(protocol, PendingAccesses(protocol), int(given["address"], 0), 64, "BAR")
        if "read" in name:
            return window.read(0, 8).hex()
        write = next(value for what, _, _, value in reversed(log_of(vector)) if what == "memory write")
        high = next(value for what, _, _, value in log_of(vector) if what == "memory write")
        window.write64(0, high << 32 | write)
        return None
    return protocol.request(request_of(vector))


def log_of(vector: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    return next(log for each, log in RECORDED_UAS if each is vector)


def request_of(vector: dict[str, Any]) -> Tlp:
    name, given = vector["name"], vector["inputs"]
    size = given.get("size", 4)
    if "memory write" in name:
        return memory_write(int(given["address"], 0), int(given["value"], 0), size)
    if "memory read" in name:
        return memory_read(int(given.get("address", "0x10000000"), 0), size)
    if "config write" in name:
        return config_write(given["bus"], 0, 0, given["offset"], int(given["value"], 0), size)
    return config_read(given.get("bus", 4), 0, 0, given.get("offset", 0), size)


RECORDED_UAS = replayed(UAS)
RECORDED_BOT = replayed(BOT)
RAISES = {"TlpUnsupportedRequest": TlpUnsupportedRequest, "TlpConfigRetry": TlpConfigRetry, "TlpCompleterAbort": TlpCompleterAbort}


def is_request(vector: dict[str, Any]) -> bool:
    return vector["name"].startswith(("config", "memory", "mapped", "error"))


@pytest.mark.parametrize("kind", ["uas", "bot"])
def test_the_same_requests_reach_pcie_with_the_same_results_and_no_more_commands(kind: str) -> None:
    backend, protocol, _ = opened(kind)
    recorded = RECORDED_UAS if kind == "uas" else RECORDED_BOT
    sent = theirs = 0
    for vector, log in recorded:
        if not is_request(vector):
            continue
        backend.pcie.log.clear()
        backend.transfers.clear()
        result = vector.get("result")
        if isinstance(result, dict) and "raises" in result:
            with pytest.raises(RAISES[result["raises"]]):
                perform(protocol, backend, vector)
        else:
            value = perform(protocol, backend, vector)
            assert value in (None, 0) if result is None else value == (result if isinstance(value, str) else int(result, 0)), vector["id"]
        assert backend.pcie.log == log, vector["id"]
        sent += len(blocks(backend.transfers))
        theirs += len(blocks(vector["transfers"]))
    assert sent <= theirs


def test_opening_over_streams_sends_the_recorded_commands() -> None:
    backend, _, _ = opened("uas", kernel_driver=True)
    vector = UAS["stock_firmware_uas.0"]
    assert blocks(backend.transfers) == blocks(vector["transfers"])
    assert isinstance(backend, StreamBackend) and backend.streams == (31, (0x02, 0x81, 0x83))
    wanted = [
        each["op"]
        for each in vector["transfers"]
        if each["op"] in ("detach kernel driver", "port reset", "SET_CONFIGURATION", "claim interface", "SET_INTERFACE", "CLEAR_HALT")
    ]
    assert [each["op"] for each in backend.transfers if each["op"] in wanted] == wanted
    assert next(each for each in backend.transfers if each["op"] == "SET_INTERFACE")["alternate"] == 1


def test_opening_over_bulk_only_is_transfer_by_transfer_as_recorded() -> None:
    backend, _, _ = opened("bot", kernel_driver=True)
    vector = BOT["stock_firmware_bot.0"]
    ours = [{key: value for key, value in each.items() if key != "timeout_ms"} for each in backend.transfers if each["op"] == "bulk"]
    assert ours == [{key: value for key, value in each.items() if key != "timeout_ms"} for each in vector["transfers"] if each["op"] == "bulk"]


@pytest.mark.parametrize("name", [name for name, vector in UAS.items() if vector["name"].startswith("XDATA")])
def test_xdata_over_streams_as_recorded(name: str) -> None:
    backend, protocol, _ = opened("uas")
    vector = UAS[name]
    given = vector["inputs"]
    backend.xdata.update(dict(enumerate(bytes.fromhex("240417850000"), 0x07F0)))
    backend.transfers.clear()
    if "write" in vector["name"]:
        protocol.write_xdata(int(given["address"], 0), bytes.fromhex(given["data"]))
        assert [backend.xdata[0xA800], backend.xdata[0xA801]] == [0x12, 0x34]
    else:
        size = int(vector["name"].split()[3])
        data = protocol.read_xdata(int(given["address"], 0), size)
        assert len(data) == size
    assert blocks(backend.transfers) == blocks(vector["transfers"])


@pytest.mark.parametrize(("kind", "name"), [("uas", name) for name, vector in UAS.items() if vector["name"].startswith("SRAM")] + [("bot", "stock_firmware_bot.9")])
def test_sram_write_sends_the_recorded_commands_and_data(kind: str, name: str) -> None:
    backend, protocol, _ = opened(kind)
    vector = (UAS if kind == "uas" else BOT)[name]
    backend.transfers.clear()
    protocol.send(PATTERN[: vector["inputs"]["bytes"]])
    assert blocks(backend.transfers) == blocks(vector["transfers"])

    def payloads(transfers: list[dict[str, Any]]) -> list[Any]:
        return [(each["length"], each["data"]) for each in transfers if each.get("endpoint") == "0x02" and each["length"] != 31]

    assert payloads(backend.transfers) == payloads(vector["transfers"])


def test_firmware_version_is_told_as_the_maker_writes_it() -> None:
    backend, protocol, _ = opened("bot")
    backend.xdata.update(dict(enumerate(bytes.fromhex("240417850000"), 0x07F0)))
    assert protocol.firmware_version() == "240417_85_00_00"
