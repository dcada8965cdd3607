"""What the power controller is sent, against recorded exchanges. Free choice of ours: the response of the alive test is read once when it came in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from drivers.amd.layouts import smu as layout
from drivers.amd.smu import HIGHEST, LOWEST, Smu
from hw.errors import SmuError
from tests.drivers.amd.recorder import RecordedDevice, device, vectors

VECTORS = {name: vector for name, vector in vectors("amd_psp_smu").items() if ".smu." in name}
CHIPS = ("gfx1100", "gfx1102")
EXCHANGES: dict[str, Callable[[Smu], object]] = {
    "init": lambda smu: smu.init(),
    "alive": lambda smu: smu.alive(),
    "clocks_max": lambda smu: smu.pin_clocks(HIGHEST),  # asks for the levels first
    "clocks_min": lambda smu: smu.pin_clocks(LOWEST),
    "clocks_release": lambda smu: smu.release_clocks(),
    "power_limit": lambda smu: smu.set_power_limit(150.4),  # whole watts
    "mode1_reset": lambda smu: smu.request_mode1_reset(),  # through the debug mailbox
}
CLOCKS = {"GFXCLK": 0, "SOCCLK": 1, "UCLK": 2, "FCLK": 3}


class Controller:
    """Answers messages at once; levels from a vector."""

    def __init__(self, gpu: Any, pci: RecordedDevice, levels: dict[str, list[int]] | None = None, responses: list[int] | None = None) -> None:
        self.messages: list[tuple[int, int]] = []
        self.levels = {CLOCKS[name]: mhz for name, mhz in (levels or {}).items()}
        self.responses = responses or []
        self._values = pci.registers.values
        self._reg = lambda number: gpu.mp1[f"MP1_SMN_C2PMSG_{number}"].index
        pci.registers.reactions[self._reg(66)] = lambda message: self.take(message, 82, 90)
        pci.registers.reactions[self._reg(75)] = lambda message: self.take(message, 53, 54)

    def take(self, message: int, argument: int, response: int) -> None:
        value = self._values.get(self._reg(argument), 0)
        self.messages.append((message, value))
        if message == 0x1F:
            levels = self.levels[value >> 16]
            index = value & 0xFF
            flag = layout.FINE_GRAINED if value >> 16 == 0 else 0
            self._values[self._reg(argument)] = len(levels) | flag if index == layout.COUNT_INDEX else levels[index]
        self._values[self._reg(response)] = self.responses.pop(0) if self.responses else 1


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", EXCHANGES)
def test_messages_and_their_register_accesses_are_those_recorded(chip: str, name: str) -> None:
    vector = VECTORS[f"{chip}.smu.{name}"]
    gpu, pci = device(chip)
    levels = vector["inputs"].get("levels_mhz")
    controller = Controller(gpu, pci, levels)
    if name == "clocks_min":
        gpu.smu._levels = {layout.Clock(CLOCKS[clock]): mhz for clock, mhz in levels.items()}
    pci.log.clear()
    EXCHANGES[name](gpu.smu)
    accesses = [(kind, hex(index), hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] in "rw")]
    expected = [(access["kind"], access["dword"], access["value"]) for access in vector["expected"]["accesses"]]
    if name == "alive":
        expected = expected[:-1]  # one read of the response is enough when it came in time
    assert accesses[: len(expected)] == expected  # the vectors keep the first 40 accesses; the messages are complete
    assert len(accesses) == len(expected) or len(expected) == 40
    if vector["expected"]["messages"]:
        assert [(hex(message), hex(argument)) for message, argument in controller.messages] == [(number, argument) for _, number, argument in vector["expected"]["messages"]]


def test_every_recorded_exchange_is_compared() -> None:
    assert set(VECTORS) == {f"{chip}.smu.{name}" for chip in CHIPS for name in (*EXCHANGES, "metrics")}


@pytest.mark.parametrize(("chip", "version"), [("gfx1100", (13, 0, 0)), ("gfx1102", (13, 0, 7))])
def test_metrics_are_asked_from_table_5_and_decoded(chip: str, version: tuple[int, int, int]) -> None:
    vector = VECTORS[f"{chip}.smu.metrics"]
    gpu, pci = device(chip)
    controller = Controller(gpu, pci)
    table = layout.metrics(version)
    assert table.size == vector["inputs"]["table_bytes"]
    temperatures = tuple(range(30, 43))
    pci.memory.write(gpu.boot_memory.smu_table, table.encode({"AverageSocketPower": 327, "AvgTemperature": temperatures, "MetricsCounter": 0x12345678}))
    metrics = gpu.smu.metrics()
    assert controller.messages == [(0x12, 5)]
    assert metrics["AverageSocketPower"] == 327
    assert metrics["AvgTemperature"] == temperatures
    assert metrics["MetricsCounter"] == 0x12345678


def failing(responses: list[int]) -> tuple[Smu, Controller]:
    gpu, pci = device()
    controller = Controller(gpu, pci, responses=responses)
    return gpu.smu, controller


def test_busy_is_tried_again() -> None:
    smu, controller = failing([0xFC, 0xFC, 1])
    smu.send("GetSmuVersion")
    assert controller.messages == [(2, 0)] * 3


@pytest.mark.parametrize(("response", "text"), [(0xFF, "failed"), (0xFE, "unknown command"), (0xFD, "prerequisite is missing"), (0x77, "not a known response")])
def test_refusals_are_raised_at_once_with_message_and_argument(response: int, text: str) -> None:
    smu, controller = failing([response])
    with pytest.raises(SmuError, match=text) as caught:
        smu.send("SetPptLimit", 300)
    assert "SetPptLimit (0x32), argument 0x12c" in caught.value.what
    assert f"{response:#x}" in caught.value.read
    assert len(controller.messages) == 1


def test_more_levels_than_any_chip_has_are_refused() -> None:
    gpu, pci = device()
    Controller(gpu, pci, {"UCLK": [1] * 200})
    with pytest.raises(SmuError, match="UCLK has 200 levels"):
        gpu.smu.levels(layout.Clock.UCLK)
