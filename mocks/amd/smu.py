"""SMU: the power controller. Two mailboxes, clocks that obey their limits, a model of heat and power, the metrics table, resets.

A message is taken when its id is written; the answer comes later. Until the PSP has loaded the SMU's firmware nothing answers.
Settings that have no effect in this model are remembered and can be looked at in `settings`; messages for states that it does not have
(BACO, D3, virtual functions, debug dumps) raise NotModelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from drivers.amd.layouts import smu as layout
from drivers.amd.layouts.smu import Response
from hw.errors import NotModelled
from mocks.amd.block import Block, Reg, on_write, stored
from mocks.amd.smu_power import ClockDomain, PowerModel
from mocks.amd.vram import Unreachable
from mocks.clock import Engine, Task

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu

log = logging.getLogger(__name__)

INTERFACE = (13, 0, 0)
MESSAGES = {number: name for name, number in layout.messages(INTERFACE).items()}
METRICS_MESSAGE = layout.messages(INTERFACE)["TransferTableSmu2Dram"]
DEBUG_TEST = 0x1
DEBUG_MODE1_RESET = 0x2
START_TIME = 2e-3
"""from loaded firmware to the first answer (s, I)"""
UPDATE_INTERVAL = 1e-3
"""the metrics change at most this often (s)"""
METRICS_TABLES = (layout.TableId.SMU_METRICS, layout.TableId.OVERDRIVE)
"""5 is the interface's number; 8 is what a known driver sends (navi31 errata: both are served)"""
WRITABLE_TABLES = (layout.TableId.WATERMARKS, layout.TableId.DRIVER_SMU_CONFIG, layout.TableId.ACTIVITY_MONITOR_COEFF, layout.TableId.OVERDRIVE)

REMEMBERED = frozenset(
    [
        "SetToolsDramAddrHigh",
        "SetToolsDramAddrLow",
        "UseDefaultPPTable",
        "OverridePcieParameters",
        "DramLogSetDramAddrHigh",
        "DramLogSetDramAddrLow",
        "DramLogSetDramSize",
        "SetWorkloadMask",
        "SetVideoFps",
        "AllowGfxOff",
        "DisallowGfxOff",
        "PowerUpVcn",
        "PowerDownVcn",
        "PowerUpJpeg",
        "PowerDownJpeg",
        "SetSystemVirtualDramAddrHigh",
        "SetSystemVirtualDramAddrLow",
        "ReenableAcDcInterrupt",
        "NotifyPowerSource",
        "RunDcBtc",
        "SetTemperatureInputSelect",
        "SetFwDstatesMask",
        "SetThrottlerMask",
        "SetExternalClientDfCstateAllow",
        "SetMGpuFanBoostLimitRpm",
        "STBtoDramLogSetDramAddrHigh",
        "STBtoDramLogSetDramAddrLow",
        "STBtoDramLogSetDramSize",
        "SetGpoAllow",
        "AllowGfxDcs",
        "DisallowGfxDcs",
        "EnableAudioStutterWA",
        "PowerUpUmsch",
        "PowerDownUmsch",
        "SetDcsArch",
        "SetNumBadMemoryPagesRetired",
        "SetBadMemoryPagesRetiredFlagsPerChannel",
        "SetPriorityDeltaGain",
        "AllowIHHostInterrupt",
        "DALNotPresent",
        "EnableUCLKShadow",
        "BacoAudioD3PME",
    ]
)
"""messages whose argument is kept and has no further effect here"""


class Failed(Exception):
    """A message that is answered with something other than OK."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.name)
        self.response = response


class Smu(Block):
    """System management unit."""

    key = "smu"
    REGISTERS = (
        stored("MP1", *(f"MP1_SMN_C2PMSG_{number}" for number in layout.MAIN_MAILBOX)),
        stored("MP1", *(f"MP1_SMN_C2PMSG_{number}" for number in layout.DEBUG_MAILBOX)),
    )

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.numbers = self.profile["smu"]
        self.running = False
        self.features = 0
        """running features, 64 bits"""
        self.settings: dict[str, int] = {}
        self.history: list[tuple[str, int, int]] = []
        """(message, argument, response)"""
        self.tables: dict[int, bytes] = {}
        """tables that the driver sent"""
        self._tasks: dict[str, Task] = {}
        self._busy_left = 0
        self._last_metrics = 0.0
        self.hung = False
        """takes no further messages until it is reset"""
        self._set_defaults()

    def _set_defaults(self) -> None:
        self.clocks = {layout.Clock[name]: ClockDomain(**entry) for name, entry in self.numbers["clocks"].items()}
        self.power = PowerModel(self.gpu, self.numbers, self.clocks)
        self.ppt_limit = self.numbers["ppt_limit"]
        self._supported = self.numbers["features"][0] | self.numbers["features"][1] << 32
        self._allowed = (1 << 64) - 1
        self._table_address = 0
        planned = self.faults.argument("smu-busy")
        self._busy_left = 0 if planned is None else int(planned) if planned else 1 << 30

    def reset(self) -> None:
        super().reset()
        for task in self._tasks.values():
            self.scheduler.stop(task)
        self._tasks.clear()
        self.running = False
        self.hung = False
        self.features = 0
        self.settings.clear()
        self.tables.clear()
        self._set_defaults()

    def start(self) -> None:
        """The PSP has loaded the firmware."""
        if not self.running:
            self._tasks["start"] = self.scheduler.spawn("SMU start", self._start())

    def _start(self) -> Engine:
        yield START_TIME
        self.running = True

    # --- mailboxes ---

    @on_write("MP1", f"MP1_SMN_C2PMSG_{layout.MAIN_MAILBOX.message}")
    def main_message(self, value: int, reg: Reg) -> None:
        self._take("main", layout.MAIN_MAILBOX, value, self._answer)

    @on_write("MP1", f"MP1_SMN_C2PMSG_{layout.DEBUG_MAILBOX.message}")
    def debug_message(self, value: int, reg: Reg) -> None:
        self._take("debug", layout.DEBUG_MAILBOX, value, self._answer_debug)

    def _take(self, name: str, mailbox: layout.Mailbox, message: int, answer: Callable[[int, int], tuple[int, float]]) -> None:
        if not self.running or self.hung or self.faults.active("smu-silent"):
            return
        if name == "main" and message == self._hangs_at():
            self.hung = True
            return
        former = self._tasks.get(name)
        if former is not None and not former.done:
            log.warning("SMU: message %#x while another was in progress: rejected", message)
            self._set(mailbox.response, Response.REJECTED_BUSY)
            return
        self.gpu.reach("smu")
        self._tasks[name] = self.scheduler.spawn(f"SMU {name} message", self._carry_out(mailbox, message, answer))

    def _hangs_at(self) -> int | None:
        """The message that a planned fault makes the last one."""
        planned = self.faults.argument("smu-hang")
        return None if planned is None else int(planned, 0) if planned else METRICS_MESSAGE

    def _carry_out(self, mailbox: layout.Mailbox, message: int, answer: Callable[[int, int], tuple[int, float]]) -> Engine:
        argument = self._get(mailbox.argument)
        yield self.scheduler.between(*self.numbers["message_time"])
        response = Response.OK
        try:
            if self._busy_left > 0 and self.faults.active("smu-busy"):
                self._busy_left -= 1
                raise Failed(Response.REJECTED_BUSY)
            planned = self.faults.argument("smu-unknown")
            if planned is not None and (not planned or int(planned, 0) == message):
                raise Failed(Response.UNKNOWN_COMMAND)
            result, seconds = answer(message, argument)
            if seconds:
                yield seconds
            self._set(mailbox.argument, result)
        except Failed as failure:
            response = failure.response
        self.history.append((MESSAGES.get(message, hex(message)), argument, response))
        self._set(mailbox.response, response)

    def _answer_debug(self, message: int, argument: int) -> tuple[int, float]:
        if message == DEBUG_TEST:
            return argument + 1 & 0xFFFFFFFF, 0.0
        if message == DEBUG_MODE1_RESET:
            self.gpu.mode1_reset()
            return argument, 0.0
        raise Failed(Response.UNKNOWN_COMMAND)

    def _answer(self, message: int, argument: int) -> tuple[int, float]:
        """(result for the argument register, seconds it takes on top). Raises Failed."""
        name = MESSAGES.get(message)
        if name is None:
            raise Failed(Response.UNKNOWN_COMMAND)
        handler = getattr(self, f"_do_{name}", None)
        if handler is not None:
            answered = handler(argument)
            return answered if isinstance(answered, tuple) else (argument if answered is None else answered, 0.0)
        if name in REMEMBERED:
            self.settings[name] = argument
            return argument, 0.0
        raise NotModelled(f"SMU message {name} ({message:#x}) with argument {argument:#x}")

    # --- what the messages do; the result is what the argument register shows afterwards ---

    def _do_TestMessage(self, argument: int) -> int:
        return argument + 1 & 0xFFFFFFFF

    def _do_GetSmuVersion(self, argument: int) -> int:
        return int(self.numbers["version"])

    def _do_GetDriverIfVersion(self, argument: int) -> int:
        return int(self.numbers["interface"])

    # features

    def _do_SetAllowedFeaturesMaskLow(self, argument: int) -> None:
        self._allowed = self._allowed & ~0xFFFFFFFF | argument

    def _do_SetAllowedFeaturesMaskHigh(self, argument: int) -> None:
        self._allowed = self._allowed & 0xFFFFFFFF | argument << 32

    def _do_EnableAllSmuFeatures(self, argument: int) -> tuple[int, float]:
        self.features = self._supported & self._allowed
        return argument, self.scheduler.between(*self.numbers["features_time"])

    def _do_DisableAllSmuFeatures(self, argument: int) -> None:
        self.features = 0

    def _do_EnableSmuFeaturesLow(self, argument: int) -> None:
        self._enable(argument)

    def _do_EnableSmuFeaturesHigh(self, argument: int) -> None:
        self._enable(argument << 32)

    def _do_DisableSmuFeaturesLow(self, argument: int) -> None:
        self.features &= ~argument

    def _do_DisableSmuFeaturesHigh(self, argument: int) -> None:
        self.features &= ~(argument << 32)

    def _do_GetRunningSmuFeaturesLow(self, argument: int) -> int:
        return self.features & 0xFFFFFFFF

    def _do_GetRunningSmuFeaturesHigh(self, argument: int) -> int:
        return self.features >> 32

    def _enable(self, mask: int) -> None:
        if mask & ~(self._supported & self._allowed):
            raise Failed(Response.FAILED)
        self.features |= mask

    # clocks: argument bits 31:16 clock, 15:0 index or MHz

    def _clock(self, argument: int) -> ClockDomain:
        domain = self.clocks.get(argument >> 16)  # type: ignore[call-overload]
        if domain is None:
            raise Failed(Response.FAILED)
        return domain  # type: ignore[no-any-return]

    def _need_features(self) -> None:
        if not self.features:
            raise Failed(Response.REJECTED_PREREQUISITE)

    def _do_GetDpmFreqByIndex(self, argument: int) -> int:
        domain = self._clock(argument)
        index = argument & 0xFFFF
        if index == layout.COUNT_INDEX:
            return len(domain.levels) | (layout.FINE_GRAINED if domain.fine_grained else 0)
        if index >= len(domain.levels):
            raise Failed(Response.FAILED)
        return domain.levels[index]

    def _do_GetMinDpmFreq(self, argument: int) -> int:
        return self._clock(argument).levels[0]

    def _do_GetMaxDpmFreq(self, argument: int) -> int:
        return self._clock(argument).levels[-1]

    def _do_GetDcModeMaxDpmFreq(self, argument: int) -> int:
        return self._clock(argument).levels[-1]

    def _do_SetSoftMinByFreq(self, argument: int) -> None:
        self._need_features()
        self._clock(argument).set_soft_min(argument & 0xFFFF)

    def _do_SetSoftMaxByFreq(self, argument: int) -> None:
        self._need_features()
        self._clock(argument).set_soft_max(argument & 0xFFFF)

    def _do_SetHardMinByFreq(self, argument: int) -> None:
        self._need_features()
        self._clock(argument).set_hard_min(argument & 0xFFFF)

    def _do_SetHardMaxByFreq(self, argument: int) -> None:
        self._need_features()
        self._clock(argument).set_hard_max(argument & 0xFFFF)

    def _do_GetVoltageByDpm(self, argument: int) -> int:
        domain = self._clock(argument)
        index = argument & 0xFFFF
        if index >= len(domain.levels):
            raise Failed(Response.FAILED)
        return self.power.voltage_at(domain, domain.levels[index])

    # power

    def _do_GetPptLimit(self, argument: int) -> int:
        if argument >> 24:
            raise Failed(Response.FAILED)
        return int(self.ppt_limit)

    def _do_SetPptLimit(self, argument: int) -> None:
        watts = argument & 0xFFFFFF
        if argument >> 24 or not 0 < watts <= self.numbers["ppt_limit"] * (1 + self.numbers["ppt_headroom"]):
            raise Failed(Response.FAILED)
        self.ppt_limit = watts

    # tables

    def _do_SetDriverDramAddrHigh(self, argument: int) -> None:
        self._table_address = self._table_address & 0xFFFFFFFF | argument << 32

    def _do_SetDriverDramAddrLow(self, argument: int) -> None:
        self._table_address = self._table_address & ~0xFFFFFFFF | argument

    def _do_TransferTableSmu2Dram(self, argument: int) -> tuple[int, float]:
        if not self._table_address:
            raise Failed(Response.FAILED)
        if argument in METRICS_TABLES:
            data = self.metrics()
        elif argument in self.tables:
            data = self.tables[argument]
        elif argument in {each.value for each in layout.TableId}:
            raise NotModelled(f"SMU table {layout.TableId(argument).name}")
        else:
            raise Failed(Response.FAILED)
        try:
            self.gpu.mc_write(self._table_address, data)
        except Unreachable as error:
            log.warning("SMU table: %s", error)
            raise Failed(Response.FAILED) from error
        return argument, self.numbers["metrics_time"]

    def _do_TransferTableDram2Smu(self, argument: int) -> tuple[int, float]:
        if not self._table_address or argument not in WRITABLE_TABLES:
            raise Failed(Response.FAILED)
        try:
            self.tables[argument] = self.gpu.mc_read(self._table_address, layout.DRIVER_TABLE_SIZE)
        except Unreachable as error:
            raise Failed(Response.FAILED) from error
        return argument, self.numbers["metrics_time"]

    def metrics(self) -> bytes:
        """The metrics table as of now."""
        values = self.power.sample()
        values["dGPU_W_MAX"] = int(self.ppt_limit)
        return layout.metrics(INTERFACE).encode(values)

    # states of the chip

    def _do_Mode1Reset(self, argument: int) -> None:
        self.gpu.mode1_reset()

    def _do_PrepareMp1ForUnload(self, argument: int) -> None:
        self.features = 0

    # --- registers ---

    def _set(self, number: int, value: int) -> None:
        self.reg("MP1", f"MP1_SMN_C2PMSG_{number}").value = value

    def _get(self, number: int) -> int:
        return self.reg("MP1", f"MP1_SMN_C2PMSG_{number}").value


def blocks(gpu: Gpu) -> list[Block]:
    return [Smu(gpu)]
