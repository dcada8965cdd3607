"""Machines like the models that the recorded transfers ran against, and the replay of such transfers on a simulated bridge."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import usb.core
import usb.util
import zstandard

from hw.mmio import BytesLike
from mocks.asm24 import transfers
from mocks.faults import FaultPlan
from mocks.machine import Machine, load_profile
from mocks.pci import BarModel, MockFunction

VECTORS = Path(__file__).parents[2] / "data" / "asm24_transfers.json.zst"
VENDORS = (0x3801, 0xADD1)
ENDPOINT = {
    "address": "0000:03:00.0",
    "role": "scratch",
    "vendor": 0x1002,
    "device": 0x744C,
    "revision": 0xC8,
    "class": 0x030000,
    "subsystem_vendor": 0x1002,
    "subsystem_device": 0x0E3B,
    "bars": [
        {"index": 0, "flags": 0xC, "size": 0x1000_0000},
        {"index": 2, "flags": 0xC, "size": 0x20_0000},
        {"index": 4, "flags": 0x1, "size": 0x100},
        {"index": 5, "flags": 0x0, "size": 0x10_0000},
    ],
    "extended": [
        {"offset": 0x100, "dwords": [0x2001000B, 0]},
        {"offset": 0x200, "dwords": [0x24010015, 0x0007F000, 0x00000820]},
        {"offset": 0x240, "dwords": [0x00020001]},
    ],
}
"""the endpoint that the recording describes; changing the size of its BAR has no effect there"""
OUTCOMES = {1: "ur", 2: "crs", 3: "reserved", 4: "ca", "timeout": "timeout"}


@cache
def vectors() -> dict[str, Any]:
    """The recorded transfers (provenance inside)."""
    raw = zstandard.ZstdDecompressor().decompress(VECTORS.read_bytes(), max_output_size=1 << 24)
    return json.loads(raw)  # type: ignore[no-any-return]


def pattern(size: int) -> bytes:
    """The recording's data: byte i = (7 i + 3) mod 256."""
    return (bytes((7 * i + 3) % 256 for i in range(256)) * (size // 256 + 1))[:size]


class PatternMemory(BarModel):
    """An unwritten dword at bus address A reads 0xa5000000 | (A & 0xffffff); what was written stays, at its bus address."""

    name = "recorded memory"

    def __init__(self, function: MockFunction, index: int, store: dict[int, int]) -> None:
        self._function = function
        self._index = index
        self._store = store

    def _bus(self, offset: int) -> int:
        return self._function.bar_address(self._function.slots[self._index]) + offset

    def read(self, offset: int, width: int) -> int:
        return int.from_bytes(self.read_block(offset, width), "little")

    def write(self, offset: int, value: int, width: int) -> None:
        self.write_block(offset, value.to_bytes(width, "little"))

    def read_block(self, offset: int, size: int) -> bytes:
        start = self._bus(offset)
        return bytes(self._store.get(at, (0xA5000000 | at & 0xFFFFFC) >> 8 * (at & 3) & 0xFF) for at in range(start, start + size))

    def write_block(self, offset: int, data: BytesLike) -> None:
        start = self._bus(offset)
        self._store.update((start + position, value) for position, value in enumerate(bytes(data)))


def machine(faults: str = "", **bridge: Any) -> Machine:
    """A machine whose bridge leads to the recorded endpoint. Keywords replace keys of the profile's [asm24], tables key by key."""
    profile = copy.deepcopy(load_profile("navi31-asm24-add1"))
    profile["functions"] = [each for each in profile["functions"] if each.get("role") == "bridge"] + [copy.deepcopy(ENDPOINT)]
    for key, value in bridge.items():
        if isinstance(value, dict):
            profile["asm24"][key].update(value)
        else:
            profile["asm24"][key] = value
    made = Machine(profile, faults=FaultPlan.parse(faults))
    assert made.asm24 is not None
    made.asm24.sram.window.write(0, bytes(made.asm24.sram.window.size))
    store = made.store = {}  # type: ignore[attr-defined]
    for function in made.asm24.fabric.behind:
        for index, slot in function.slots.items():
            if not slot.is_io:
                slot.model = PatternMemory(function, index, store)
    return made


def endpoint(made: Machine) -> MockFunction:
    """The function at the end of the bridge's bus."""
    assert made.asm24 is not None
    return made.asm24.fabric.behind[-1]


class Replay:
    """Plays recorded operations on a machine and compares every answer."""

    def __init__(self, made: Machine, image: Callable[[int, str], bytes] | None = None) -> None:
        assert made.asm24 is not None
        self.machine = made
        self.bridge = made.asm24
        self.backend = made.usb_backend()
        self.device: Any = None
        self.store: dict[int, int] = made.store  # type: ignore[attr-defined]
        """bytes written to the endpoint's memory, by bus address"""
        self.image = image
        """what a payload is of which only length and hash are recorded"""
        self.lengths: list[int] = []
        """how much of a zero-padded payload may be data"""
        self.unknown = 0
        """up to so many bytes a payload may be one that only its hash is known of"""
        self.after: Callable[[dict[str, Any]], None] = lambda op: None
        """called after each operation (the GPU at work)"""
        self._flying: list[tuple[dict[str, Any], transfers.Transfer]] = []

    def play_vector(self, vector: dict[str, Any]) -> None:
        size = vector["inputs"].get("bytes", 0)
        self.lengths = [size, size % 0x10000]
        self.play(vector["transfers"])

    def play(self, operations: list[dict[str, Any]]) -> None:
        for op in operations:
            if op["op"] == "submit" and op["endpoint"] == "0x04" and int(op["data"][4:8], 16) == 1:
                self.land()  # the recorded driver counts tags from 1 in every batch
            self._one(op)
            self.after(op)
        self.land()

    def land(self) -> None:
        """Wait for everything that was submitted."""
        for op, transfer in self._flying:
            assert self.bridge.host.wait(transfer) == transfers.COMPLETED, op
            if transfer.is_in:
                self._compare(op, transfer.data)
            else:
                assert transfer.actual == op["length"]
        self._flying.clear()

    def _one(self, op: dict[str, Any]) -> None:
        kind = op["op"].removesuffix(" (queued)")
        handler = getattr(self, "_" + "".join(each if each.isalnum() else "_" for each in kind.lower()).strip("_"))
        handler(op)

    # --- operations, by their name in the recording ---

    def _open(self, op: dict[str, Any]) -> None:
        found = [each for each in usb.core.find(find_all=True, backend=self.backend) if each.idVendor in VENDORS]
        assert len(found) == 1
        self.device = found[0]

    def _string_descriptor(self, op: dict[str, Any]) -> None:
        assert usb.util.get_string(self.device, op["index"]) == op["answer"]

    def _kernel_driver_active(self, op: dict[str, Any]) -> None:
        assert self.device.is_kernel_driver_active(op["interface"]) == bool(op["answer"])

    def _detach_kernel_driver(self, op: dict[str, Any]) -> None:
        self.device.detach_kernel_driver(op["interface"])

    def _port_reset(self, op: dict[str, Any]) -> None:
        self.device.reset()

    def _set_configuration(self, op: dict[str, Any]) -> None:
        self.device.set_configuration(op["value"])

    def _claim_interface(self, op: dict[str, Any]) -> None:
        usb.util.claim_interface(self.device, op["interface"])

    def _set_interface(self, op: dict[str, Any]) -> None:
        self.device.set_interface_altsetting(op["interface"], op["alternate"])

    def _clear_halt(self, op: dict[str, Any]) -> None:
        self.device.clear_halt(int(op["endpoint"], 16))

    def _allocate_streams(self, op: dict[str, Any]) -> None:
        assert self.backend is not None
        assert self.backend.alloc_streams(self._handle, op["count"], [int(each, 16) for each in op["endpoints"]]) == 31

    def _sleep(self, op: dict[str, Any]) -> None:
        self.machine.clock.sleep(op["seconds"])

    def _wait(self, op: dict[str, Any]) -> None:
        pass

    def _control(self, op: dict[str, Any]) -> None:
        kind, request, value, index = (int(op[name], 16) for name in ("bmRequestType", "bRequest", "wValue", "wIndex"))
        what = op["wLength"] if kind & 0x80 else bytes.fromhex(op.get("data", ""))
        answer = self.device.ctrl_transfer(kind, request, value, index, what, op.get("timeout_ms", 1000))
        if kind & 0x80:
            self._compare(op, bytes(answer))
        else:
            assert answer == op["wLength"]

    def _bulk(self, op: dict[str, Any]) -> None:
        endpoint = int(op["endpoint"], 16)
        timeout = op.get("timeout_ms", 10000)
        if endpoint & 0x80:
            self._compare(op, bytes(self.device.read(endpoint, op["length"], timeout)))
        else:
            assert self.device.write(endpoint, self._payload(op), timeout) == op["length"]

    def _submit(self, op: dict[str, Any]) -> None:
        endpoint = int(op["endpoint"], 16)
        what = op["length"] if endpoint & 0x80 else self._payload(op)
        assert self.backend is not None
        self._flying.append((op, self.backend.submit_bulk(self._handle, endpoint, what, 1000, op.get("stream", 0))))

    @property
    def _handle(self) -> Any:
        return self.device._ctx.handle

    def _payload(self, op: dict[str, Any]) -> bytes:
        data = op["data"]
        if isinstance(data, str):
            return bytes.fromhex(data)
        size = data["bytes"]
        for candidate in (pattern(size), *([self.image(size, data["sha256"])] if self.image else [])):
            if hashlib.sha256(candidate).hexdigest() == data["sha256"]:
                return candidate
        for filled in self.lengths:
            candidate = pattern(filled).ljust(size, b"\0")
            if hashlib.sha256(candidate).hexdigest() == data["sha256"]:
                return candidate
        assert size <= self.unknown, f"nothing known gives the recorded hash of {op}"
        return bytes.fromhex(data["first16"]) + bytes(size - 32) + bytes.fromhex(data["last16"])

    def _compare(self, op: dict[str, Any], answer: bytes) -> None:
        expected = op.get("answer")
        if isinstance(expected, str):
            assert answer.hex() == expected, op
        elif expected is not None:
            assert (len(answer), answer[:16].hex(), answer[-16:].hex()) == (expected["bytes"], expected["first16"], expected["last16"]), op
            assert hashlib.sha256(answer).hexdigest() == expected["sha256"], op
