"""Every recorded transfer is accepted by the simulated bridge, with its recorded result."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from mocks.asm24.sram import DATA
from tests.mocks.asm24.replay import OUTCOMES, Replay, endpoint, machine, pattern, vectors

CUSTOM = {each["id"]: each for each in vectors()["custom_firmware"]}
BRING_UP = "custom_firmware.4"
COMPLETION = 0x82200C
DRAIN_COUNTER = 0x820800
SENTINEL = 0x51000000
SIGNAL = 0x802106FF0


def opened(**bridge: Any) -> Replay:
    """A bridge with the older open firmware, link up, opened as recorded."""
    replay = Replay(machine(**bridge))
    replay.machine.clock.sleep(1.0)
    replay.play(CUSTOM["custom_firmware.1"]["transfers"])
    return replay


# --- the open firmware ---


@pytest.mark.parametrize("number", range(4))
def test_opening(number: int) -> None:
    vector = CUSTOM[f"custom_firmware.{number}"]
    inputs = vector["inputs"]
    bridge: dict[str, Any] = {"usb": {"kernel_driver": "usb-storage" if inputs.get("kernel_driver") else ""}}
    if inputs["product"].startswith("custom"):
        bridge["usb"]["product"] = inputs["product"]
    else:
        bridge["firmware"] = "stock"
    if "ltssm_after" in inputs:
        bridge["populated"] = False
    replay = Replay(machine(**bridge))
    if inputs.get("ltssm_before") == 0:
        replay.bridge.usb.firmware._power_registers(False)  # type: ignore[attr-defined]
    replay.machine.clock.sleep(1.0)
    replay.play_vector(vector)


def test_bring_up_and_every_access_after_it() -> None:
    replay = opened()
    for number in range(4, 61):
        vector = CUSTOM[f"custom_firmware.{number}"]
        if number == 23:
            endpoint(replay.machine).config_reset()  # the config writes before moved BAR0
            replay.play(CUSTOM[BRING_UP]["transfers"])
        if vector["name"].startswith("SRAM read"):
            size = vector["inputs"]["bytes"]
            sectors = -(-size // 512) * 512

            def gpu(op: dict[str, Any], size: int = sectors) -> None:
                if op["op"] == "control":
                    endpoint(replay.machine).memory.dma_write(DATA, pattern(size))
                    endpoint(replay.machine).memory.dma_write(COMPLETION, bytes(4))

            replay.after = gpu
        replay.play_vector(vector)
        replay.after = lambda op: None


def test_bars_after_bring_up_are_where_the_recorded_driver_put_them() -> None:
    replay = opened()
    replay.play(CUSTOM[BRING_UP]["transfers"])
    function = endpoint(replay.machine)
    found = {f"BAR{index}": {"address": hex(function.bar_address(slot)), "size": hex(slot.size)} for index, slot in function.slots.items() if not slot.is_io}
    assert found == CUSTOM[BRING_UP]["result"]
    assert function.command & 7 == 7
    assert function.bus_master


@pytest.mark.parametrize("number", range(61, 70))
def test_failures(number: int) -> None:
    vector = CUSTOM[f"custom_firmware.{number}"]
    replay = opened()
    replay.play(CUSTOM[BRING_UP]["transfers"])
    replay.bridge.faults.inject(OUTCOMES[each] for each in vector["inputs"].get("completions", []))
    replay.play_vector(vector)


def test_copies() -> None:
    """The copy pipeline; the GPU's part is played by hand: drain a window when its sentinel is there, fill the SRAM for a copy out."""
    replay = opened()
    replay.play(CUSTOM[BRING_UP]["transfers"])
    memory = endpoint(replay.machine).memory
    sram = replay.bridge.sram
    staging = {0: bytearray(0x40000), 16: bytearray(0x40000)}
    state = {"sequence": 0, "window": 0, "out": False}
    pending: list[bytes] = []

    def image(size: int, digest: str) -> bytes:
        """A copy-in image: payload, what the staging buffer held before, sentinel."""
        if size < 512:
            return b""
        if hashlib.sha256(bytes(size)).hexdigest() == digest:
            return bytes(size)
        return _image(pending, staging[state["window"]], size, state["sequence"])

    def gpu(op: dict[str, Any]) -> None:
        request = int(op.get("bRequest", "0"), 16)
        if request == 0xF2:
            state["window"] = int(op["wIndex"], 16) & 0xFF
            state["out"] = bool(int(op["wValue"], 16) & 0x8000)
        elif op["op"] == "bulk (queued)":
            replay.machine.clock.sleep(1e-3)
            address = DATA + state["window"] * 0x4000
            assert sram.read(address, op["length"])[-16:].hex() == op["data"]["last16"]
            assert int.from_bytes(sram.read(address + op["length"] - 4, 4), "little") == SENTINEL | state["sequence"]
            state["sequence"] += 1
            memory.dma_write(DRAIN_COUNTER, state["sequence"].to_bytes(8, "little"))
        if op.get("class") and op["wValue"] == "0x0f60" and op["data"].startswith("00080010") and state["out"]:
            memory.dma_write(DATA, pattern(state["bytes"]))
            memory.dma_write(COMPLETION, bytes(4))

    replay.image = image
    replay.unknown = 511  # ring contents, which depend on the GPU's driver
    replay.after = gpu
    for vector in vectors()["copy_pipeline"]:
        size = vector["inputs"]["bytes"]
        state["bytes"] = min(size, 0x80000)
        pending[:] = [pattern(size)]
        for op in vector["transfers"]:
            if op["op"] == "bulk" and op["endpoint"] == "0x81" and op["length"] == 8:
                # the driver reads the GPU's signal in VRAM: whatever the recorded GPU had got to
                replay.store.update((SIGNAL + at, value) for at, value in enumerate(bytes.fromhex(op["answer"])))
        replay.play_vector(vector)
    assert state["sequence"] == 10
    assert not sram.errors


def _image(pending: list[bytes], staging: bytearray, size: int, sequence: int) -> bytes:
    payload = pending[0][: 0x40000 - 4]
    staging[: len(payload)] = payload
    image = bytes(staging[: size - 4]) + (SENTINEL | sequence).to_bytes(4, "little")
    pending[0] = pending[0][len(payload) :]
    staging[:size] = image
    return image


# --- stock firmware ---


def test_uas() -> None:
    _stock("stock_firmware_uas", 28)


def test_bulk_only() -> None:
    _stock("stock_firmware_bot", 10)


def _stock(section: str, first_failure: int) -> None:
    replay = Replay(machine(firmware="stock", link={"ltssm_l0": 0x78}, completion_timeout=0.0))
    replay.machine.clock.sleep(1.0)
    programmed = False
    for number, vector in enumerate(vectors()[section]):
        if number >= first_failure:
            replay.bridge.faults.inject(OUTCOMES[each] for each in vector["inputs"]["completions"])
        replay.play_vector(vector)
        if not programmed:
            programmed = True
            _program_bridges(replay)


def _program_bridges(replay: Replay) -> None:
    """The stock recording starts on a hierarchy that is set up already."""
    fabric = replay.bridge.fabric
    for bus in range(4):
        for register, value in ((0x18, 0x040000 | bus + 1 << 8), (0x20, 0xFFFF1000), (0x24, 0xFFFF0000), (0x28, 8), (0x2C, 0xFFFFFFFF), (0x04, 7)):
            fabric.config(bus > 0, bus << 24 | register, 0xF, value)
    for register, value in ((0x10, 0), (0x14, 8), (0x18, 0x10000000), (0x1C, 8), (0x24, 0x10000000), (0x04, 7)):
        fabric.config(True, 4 << 24 | register, 0xF, value)
