"""The simulated power controller, spoken to through its mailboxes by hand."""

from __future__ import annotations

import pytest

from drivers.amd.layouts import smu as layout
from hw.errors import NotModelled
from tests.mocks.amd.card import SMU_TABLE, Card, NeverHappened

OK, BUSY, PREREQUISITE, UNKNOWN, FAILED = 1, 0xFC, 0xFD, 0xFE, 0xFF
IDS = layout.messages((13, 0, 0))
METRICS = layout.metrics((13, 0, 0))
GFX, SOC, UCLK, FCLK = 0, 1, 2, 3


def running(faults: str = "", profile: str = "navi31") -> Card:
    """A card whose SMU firmware was loaded."""
    card = Card(profile, faults=faults, strict=False)
    card.boot_to_ring()
    card.load_toc()
    assert card.load_ip_fw(18) == 0
    card.clock.sleep(0.01)
    return card


@pytest.fixture
def card() -> Card:
    return running()


@pytest.fixture
def enabled(card: Card) -> Card:
    """With its table address set and features on."""
    assert card.smu(IDS["SetDriverDramAddrHigh"], 0x80)[0] == OK
    assert card.smu(IDS["SetDriverDramAddrLow"], SMU_TABLE)[0] == OK
    assert card.smu(IDS["EnableAllSmuFeatures"])[0] == OK
    return card


def metrics(card: Card, table: int = 5) -> dict[str, int | tuple[int, ...]]:
    assert card.smu(IDS["TransferTableSmu2Dram"], table)[0] == OK
    return METRICS.decode(card.vram.read(SMU_TABLE, METRICS.size))


def current(card: Card, clock: int) -> int:
    clocks = metrics(card)["CurrClock"]
    assert isinstance(clocks, tuple)
    return clocks[clock]


def test_nothing_answers_before_its_firmware_is_loaded() -> None:
    card = Card(strict=False)
    with pytest.raises(NeverHappened):
        card.smu(IDS["TestMessage"], 1)
    assert card.read("MP1", "MP1_SMN_C2PMSG_90") == 0


def test_an_answer_takes_20_to_200_microseconds(card: Card) -> None:
    card.write("MP1", "MP1_SMN_C2PMSG_90", 0)
    card.write("MP1", "MP1_SMN_C2PMSG_82", 41)
    start = card.clock.now()
    card.write("MP1", "MP1_SMN_C2PMSG_66", IDS["TestMessage"])
    assert card.read("MP1", "MP1_SMN_C2PMSG_90") == 0
    while not card.read("MP1", "MP1_SMN_C2PMSG_90"):
        card.clock.sleep(1e-6)
    assert 19e-6 < card.clock.now() - start < 205e-6
    assert card.read("MP1", "MP1_SMN_C2PMSG_82") == 42


def test_versions_and_test_message(card: Card) -> None:
    assert card.smu(IDS["TestMessage"], 0x1233) == (OK, 0x1234)
    assert card.smu(IDS["TestMessage"], 0xFFFFFFFF) == (OK, 0)
    assert card.smu(IDS["GetSmuVersion"]) == (OK, 0x004E8500)
    assert card.smu(IDS["GetDriverIfVersion"]) == (OK, 0x41)


def test_an_unknown_message_is_answered_fe(card: Card) -> None:
    assert card.smu(0x77)[0] == UNKNOWN
    assert card.smu(0x4D)[0] == UNKNOWN


def test_every_message_of_the_interface_has_a_model_or_says_that_it_has_none(card: Card) -> None:
    unmodelled = set()
    for name, number in IDS.items():
        if name == "Mode1Reset":
            continue
        try:
            response, _ = card.smu(number, 0)
        except NotModelled as error:
            assert name in error.what
            unmodelled.add(name)
            continue
        assert response != UNKNOWN, name
    assert unmodelled == {"EnterBaco", "ExitBaco", "ArmD3", "GetDebugData", "DumpSTBtoDram", "TriggerVFFLR", "Mode2Reset"}


def test_a_message_sent_before_the_last_was_answered_is_rejected_as_busy(card: Card) -> None:
    card.write("MP1", "MP1_SMN_C2PMSG_90", 0)
    card.write("MP1", "MP1_SMN_C2PMSG_66", IDS["GetSmuVersion"])
    card.write("MP1", "MP1_SMN_C2PMSG_66", IDS["GetDriverIfVersion"])
    assert card.read("MP1", "MP1_SMN_C2PMSG_90") == BUSY
    card.clock.sleep(0.01)
    assert card.read("MP1", "MP1_SMN_C2PMSG_90") == OK
    assert card.read("MP1", "MP1_SMN_C2PMSG_82") == 0x004E8500
    assert [name for name, _, _ in card.gpu.smu.history] == ["GetSmuVersion"]


def test_dpm_levels_are_answers_to_their_questions(card: Card) -> None:
    index = IDS["GetDpmFreqByIndex"]
    assert card.smu(index, GFX << 16 | 0xFF) == (OK, 0x80000002)
    assert [card.smu(index, GFX << 16 | each)[1] for each in range(2)] == [500, 2526]
    assert card.smu(index, UCLK << 16 | 0xFF) == (OK, 4)
    assert [card.smu(index, UCLK << 16 | each)[1] for each in range(4)] == [96, 456, 772, 1249]
    assert card.smu(index, UCLK << 16 | 4)[0] == FAILED
    assert card.smu(index, 8 << 16 | 0xFF)[0] == FAILED
    assert card.smu(IDS["GetMinDpmFreq"], FCLK << 16) == (OK, 500)
    assert card.smu(IDS["GetMaxDpmFreq"], FCLK << 16) == (OK, 2250)


def test_limits_need_running_features(card: Card) -> None:
    assert card.smu(IDS["SetSoftMinByFreq"], GFX << 16 | 2526)[0] == PREREQUISITE


def test_features_run_after_enabling_them(card: Card) -> None:
    assert card.smu(IDS["GetRunningSmuFeaturesLow"]) == (OK, 0)
    start = card.clock.now()
    assert card.smu(IDS["EnableAllSmuFeatures"])[0] == OK
    assert 0.030 < card.clock.now() - start < 0.161
    assert card.smu(IDS["GetRunningSmuFeaturesLow"]) == (OK, 0xFFFFFFFF)
    assert card.smu(IDS["GetRunningSmuFeaturesHigh"]) == (OK, 0x0003FFFF)
    assert card.smu(IDS["DisableSmuFeaturesLow"], 0xF)[0] == OK
    assert card.smu(IDS["GetRunningSmuFeaturesLow"]) == (OK, 0xFFFFFFF0)
    assert card.smu(IDS["EnableSmuFeaturesHigh"], 0x80000000)[0] == FAILED


def test_only_allowed_features_are_enabled(card: Card) -> None:
    card.smu(IDS["SetAllowedFeaturesMaskLow"], 0x0000FF00)
    card.smu(IDS["SetAllowedFeaturesMaskHigh"], 0x1)
    card.smu(IDS["EnableAllSmuFeatures"])
    assert card.smu(IDS["GetRunningSmuFeaturesLow"]) == (OK, 0x0000FF00)
    assert card.smu(IDS["GetRunningSmuFeaturesHigh"]) == (OK, 0x1)


def test_a_soft_minimum_raises_the_clock_and_its_release_lets_it_fall(enabled: Card) -> None:
    assert current(enabled, UCLK) == 96
    enabled.smu(IDS["SetSoftMinByFreq"], UCLK << 16 | 700)
    assert current(enabled, UCLK) == 772
    enabled.smu(IDS["SetSoftMinByFreq"], UCLK << 16)
    assert current(enabled, UCLK) == 96
    enabled.smu(IDS["SetSoftMinByFreq"], GFX << 16 | 2000)
    assert current(enabled, GFX) == 2000
    enabled.smu(IDS["SetSoftMaxByFreq"], GFX << 16 | 1500)
    assert current(enabled, GFX) == 1500
    enabled.smu(IDS["SetSoftMaxByFreq"], GFX << 16 | 0xFFFF)
    assert current(enabled, GFX) == 2000
    assert enabled.smu(IDS["SetSoftMinByFreq"], 9 << 16 | 100)[0] == FAILED


def test_power_limit_is_kept_within_its_headroom(card: Card) -> None:
    assert card.smu(IDS["GetPptLimit"]) == (OK, 327)
    assert card.smu(IDS["SetPptLimit"], 376)[0] == OK
    assert card.smu(IDS["GetPptLimit"]) == (OK, 376)
    assert card.smu(IDS["SetPptLimit"], 377)[0] == FAILED
    assert card.smu(IDS["SetPptLimit"], 0)[0] == FAILED
    assert card.smu(IDS["GetPptLimit"]) == (OK, 376)


def test_metrics_of_an_idle_card(enabled: Card) -> None:
    values = metrics(enabled)
    temperatures = values["AvgTemperature"]
    assert isinstance(temperatures, tuple)
    assert (temperatures[0], temperatures[1], temperatures[4]) == (37, 39, 60)
    assert (values["AverageSocketPower"], values["dGPU_W_MAX"], values["AvgFanRpm"], values["AvgFanPwm"]) == (19, 327, 0, 0)
    assert (values["AverageGfxActivity"], values["AverageUclkActivity"]) == (0, 0)
    assert (values["AverageGfxclkFrequencyPostDs"], values["AverageGfxclkFrequencyPreDs"]) == (23, 500)
    assert (values["AverageMemclkFrequencyPreDs"], values["AverageFclkFrequencyPreDs"]) == (96, 500)
    assert values["AvgVoltage"] == (684, 0, 0, 0, 0)
    assert (values["PcieRate"], values["PcieWidth"]) == (4, 16)


def test_metrics_are_served_under_both_ids_and_count_updates(enabled: Card) -> None:
    first = metrics(enabled, 5)["MetricsCounter"]
    enabled.clock.sleep(0.01)
    second = metrics(enabled, 8)["MetricsCounter"]
    assert isinstance(first, int)
    assert second == first + 1


def test_load_warms_the_card_and_its_end_cools_it(enabled: Card) -> None:
    for _ in range(200):
        enabled.clock.sleep(0.1)
        enabled.gpu.note_busy("gfx", 0.1)
        enabled.gpu.note_busy("memory", 0.06)
        enabled.gpu.smu.power.update()
    hot = metrics(enabled)
    assert isinstance(hot["AvgTemperature"], tuple)
    assert 80 <= hot["AvgTemperature"][1] <= 85
    assert 60 < hot["AvgTemperature"][0] <= 68
    assert hot["AverageGfxActivity"] in range(95, 101)
    assert hot["AverageUclkActivity"] in range(55, 62)
    assert hot["AverageSocketPower"] in range(290, 328)
    assert hot["AvgFanRpm"] in range(1500, 1801)
    enabled.clock.sleep(60)
    cool = metrics(enabled)
    assert isinstance(cool["AvgTemperature"], tuple)
    assert cool["AvgTemperature"][1] <= 40
    assert cool["AverageGfxActivity"] == 0


def test_a_power_limit_holds_power_down_and_is_shown_as_throttling(enabled: Card) -> None:
    enabled.smu(IDS["SetPptLimit"], 200)
    for _ in range(100):
        enabled.clock.sleep(0.1)
        enabled.gpu.note_busy("gfx", 0.1)
        enabled.gpu.smu.power.update()
    values = metrics(enabled)
    assert values["AverageSocketPower"] == 200
    assert values["dGPU_W_MAX"] == 200
    throttling = values["ThrottlingPercentage"]
    assert isinstance(throttling, tuple)
    assert throttling[16] > 30


def test_a_transfer_without_a_table_address_fails(card: Card) -> None:
    assert card.smu(IDS["TransferTableSmu2Dram"], 5)[0] == FAILED


def test_a_transfer_to_nowhere_fails(card: Card) -> None:
    card.smu(IDS["SetDriverDramAddrHigh"], 0)
    card.smu(IDS["SetDriverDramAddrLow"], SMU_TABLE)
    assert card.smu(IDS["TransferTableSmu2Dram"], 5)[0] == FAILED
    assert card.smu(IDS["TransferTableSmu2Dram"], 5) == (FAILED, 5)


def test_tables_that_there_are_not(enabled: Card) -> None:
    assert enabled.smu(IDS["TransferTableSmu2Dram"], 0x40)[0] == FAILED
    with pytest.raises(NotModelled, match="PPTABLE"):
        enabled.smu(IDS["TransferTableSmu2Dram"], 0)


def test_debug_mailbox_is_its_own(card: Card) -> None:
    assert card.smu(1, 7, debug=True) == (OK, 8)
    assert card.smu(0x70, debug=True)[0] == UNKNOWN
    assert card.read("MP1", "MP1_SMN_C2PMSG_90") == 0


def test_fault_silent() -> None:
    card = running("smu-silent")
    with pytest.raises(NeverHappened):
        card.smu(IDS["TestMessage"])


def test_fault_busy_for_a_number_of_messages() -> None:
    card = running("smu-busy=2")
    assert [card.smu(IDS["TestMessage"], 1) for _ in range(3)] == [(BUSY, 1), (BUSY, 1), (OK, 2)]


def test_fault_unknown_for_one_message() -> None:
    card = running("smu-unknown=0xe")
    assert card.smu(IDS["SetDriverDramAddrHigh"], 0x80)[0] == UNKNOWN
    assert card.smu(IDS["SetDriverDramAddrLow"], 0)[0] == OK
