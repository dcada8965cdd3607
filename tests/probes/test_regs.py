"""`tghw regs`: registers by name on simulated cards; what writes change and what refusals leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridges import open as door
from drivers.amd.registers import acting, differences
from drivers.amd.regs import table
from hw.errors import EXIT_REFUSED, UsageError
from mocks.machine import Machine
from probes.schemas import SCHEMAS
from tests.probes.schema_check import problems

WINDOW = {0x0, 0x6, 0x14}
"""index registers, which reading the discovery table through a small BAR moves"""


@pytest.fixture
def regs(tghw: Any) -> Any:
    return lambda *arguments: tghw("--mock", "navi31", "regs", *arguments)


def the_machine() -> Machine:
    (machine,) = door._machines.values()
    return machine


def test_list_names_registers_and_fields_and_reads_none(regs):
    result = regs("list", "ih_rb_cntl", "--json")
    assert problems(SCHEMAS["regs list"], result.json) == []
    (entry,) = [each for each in result.json["registers"] if each["name"] == "IH_RB_CNTL"]
    assert (entry["block"], entry["base"], entry["offset"]) == ("OSSSYS", 0, 0x80)
    assert entry["fields"]["rb_size"] == [1, 5]
    assert "rb_size[5:1]" in regs("list", "IH_RB_CNTL").out


def test_list_by_block_and_pattern(regs):
    names = {each["name"] for each in regs("list", "GCVM_*_SEM", "--block", "gc", "--json").json["registers"]}
    assert names == {f"GCVM_INVALIDATE_ENG{engine}_SEM" for engine in range(18)}
    assert regs("list", "NO_SUCH_THING").status == 2
    assert regs("list", "--block", "XYZ").status == 2


def test_read_shows_what_the_card_holds_with_its_fields(regs):
    result = regs("read", "RCC_CONFIG_MEMSIZE", "SCRATCH_REG7", "--json", "--until", "ready")
    assert result.status == 0
    assert problems(SCHEMAS["regs read"], result.json) == []
    memsize, tag = result.json["registers"]
    assert (memsize["block"], memsize["index"], memsize["value"], memsize["fields"]) == ("EARLY", 0xDE3, 24560, {"config_memsize_mib": 24560})
    assert tag["value"] == the_machine().gpus[0].reg("GC", "SCRATCH_REG7").value != 0
    assert the_machine().gpus[0].reg("GC", "SCRATCH_REG6").value == 0, "a card that was booted for this is left clean"


def test_block_may_be_named(regs):
    assert regs("read", "GC.CP_STAT", "--json").json["registers"][0]["block"] == "GC"
    assert regs("read", "MP0.CP_STAT").status == 1


def test_unknown_name_is_answered_with_similar_ones(regs):
    result = regs("read", "SCRATCH_REG")
    assert result.status == 1
    assert "SCRATCH_REG6" in result.err
    assert regs("read", "CP_*_NOWHERE").status == 2


def test_pattern_leaves_out_registers_that_act_when_read_and_a_name_does_not(regs):
    by_pattern = regs("read", "GCVM_INVALIDATE_ENG17_*", "--json", "--until", "ready").json["registers"]
    values = {each["name"]: each for each in by_pattern}
    assert values["GCVM_INVALIDATE_ENG17_SEM"]["value"] is None
    assert "takes it" in values["GCVM_INVALIDATE_ENG17_SEM"]["reason"]
    assert values["GCVM_INVALIDATE_ENG17_ACK"]["value"] is not None
    assert regs("read", "GCVM_INVALIDATE_ENG17_SEM", "--json", "--until", "ready").json["registers"][0]["value"] == 1


@pytest.mark.parametrize("name", ["MM_DATA", "BIF_BX0_PCIE_DATA2", "BIF_BX_PF0_RSMU_DATA", "ROM_DATA", "MMVM_INVALIDATE_ENG3_SEM", "IH_CLIENT_CFG_DATA"])
def test_registers_that_act_when_read_are_known(name):
    assert acting(name)


def test_write_needs_consent_and_says_what_it_would_do(regs):
    result = regs("write", "GRBM_SCRATCH_REG0", "0x1234")
    assert result.status == EXIT_REFUSED
    assert "--yes" in result.err
    result = regs("write", "SCRATCH_REG6", "0x55", "--until", "ready")
    assert result.status == EXIT_REFUSED
    assert "writing 0x00000055 to GC.SCRATCH_REG6 (it holds 0x00000001)" in result.err


def test_refused_write_changes_nothing(regs):
    regs("list", "CP_STAT")
    before = {index: value for index, value in the_machine().gpus[0].regs.items() if index not in WINDOW}
    assert regs("write", "SCRATCH_REG7", "7").status == EXIT_REFUSED
    assert {index: value for index, value in the_machine().gpus[0].regs.items() if index not in WINDOW} == before


def test_write_of_a_value_and_of_fields(regs):
    result = regs("write", "SCRATCH_REG7", "0xCAFE", "--yes", "--json")
    assert problems(SCHEMAS["regs write"], result.json) == []
    assert (result.json["written"], result.json["value"]) == (0xCAFE, 0xCAFE)
    assert the_machine().gpus[0].reg("GC", "SCRATCH_REG7").value == 0xCAFE
    encoded = table("OSSSYS", (6, 0, 0)).encode("IH_RB_CNTL", rb_size=9, mc_snoop=1)
    result = regs("write", "IH_RB_CNTL", "rb_size=9", "MC_SNOOP=1", "--yes", "--json")
    assert result.json["written"] == result.json["before"] | encoded
    assert the_machine().gpus[0].reg("OSSSYS", "IH_RB_CNTL").value == encoded


@pytest.mark.parametrize("words", [("banana",), ("-1",), ("0x1ffffffff",), ("rb_size=99",), ("no_field=1",), ("rb_size",), ("1", "2"), ("rb_size=x",)])
def test_wrong_values_are_refused_before_anything_is_written(regs, words):
    result = regs("write", "IH_RB_CNTL", "--yes", "--", *words)
    assert result.status in (1, 2)
    assert the_machine().gpus[0].reg("OSSSYS", "IH_RB_CNTL").value == 0


def test_dump_goes_on_where_the_simulated_card_has_no_model(regs, tmp_path: Path):
    file = tmp_path / "dump.json"
    result = regs("dump", str(file), "--json")
    assert result.status == 0
    assert problems(SCHEMAS["regs dump"], result.json) == []
    reasons = result.json["skipped"]
    assert result.json["read"] > 500
    assert reasons["the simulated card has no model of it"] > 100
    document = json.loads(file.read_text())
    assert problems(SCHEMAS["regs dump"], document) == []
    assert document["device"]["blocks"]["GC"] == "11.0.0"
    assert document["registers"]["EARLY"]["RCC_CONFIG_MEMSIZE"]["value"] == 24560
    assert "takes it" in document["registers"]["MMHUB"]["MMVM_INVALIDATE_ENG0_SEM"]["skipped"]
    assert regs("dump", "--block", "MP1").json["registers"].keys() == {"MP1"}


def test_dump_of_a_card_that_goes_away_is_a_lost_bus(tghw):
    result = tghw("--mock", "navi31", "--fault", "all-ones-at=900", "regs", "dump")
    assert result.status == 1
    assert "bus-lost" in result.err


def test_diff_tells_registers_and_fields_that_changed(regs, tmp_path: Path):
    cold, booted = str(tmp_path / "cold.json"), str(tmp_path / "booted.json")
    assert regs("dump", cold).status == regs("dump", booted, "--until", "ready").status == 0
    result = regs("diff", cold, booted, "--json")
    assert problems(SCHEMAS["regs diff"], result.json) == []
    found = {each["name"]: each for each in result.json["differences"]}
    assert found["RLC_RLCS_BOOTLOAD_STATUS"]["fields"]["bootload_complete"] == {"before": 0, "after": 1}
    assert "RCC_CONFIG_MEMSIZE" not in found
    shown = regs("diff", cold, booted).out
    assert "bootload_complete" in shown
    assert regs("diff", cold, cold).out.strip() == "no register differs"


def test_diff_refuses_what_is_no_dump(regs, tmp_path: Path):
    for name, text in (("missing", None), ("text", "hello"), ("list", "[]"), ("other", '{"format": "x"}')):
        file = tmp_path / name
        if text is not None:
            file.write_text(text)
        assert regs("diff", str(file), str(file)).status == 2


def dump(value: int, version: str = "11.0.0") -> dict[str, Any]:
    return {"format": "tghw registers", "version": 1, "device": {"blocks": {"GC": version}}, "registers": {"GC": {"RLC_RLCS_BOOTLOAD_STATUS": {"index": 1, "value": value}}}}


def test_bits_without_a_name_are_told_apart_from_fields():
    (found,) = differences(dump(0), dump(0x8000_0002))
    assert found.fields == {"bootload_complete": (0, 1), "": (0, 2)}


def test_dumps_of_different_chips_are_compared_by_value_alone():
    (found,) = differences(dump(0, "11.0.0"), dump(1, "11.0.3"))
    assert (found.before, found.after, found.fields) == (0, 1, {})
    with pytest.raises(UsageError):
        differences({}, dump(0))


def test_register_that_only_one_dump_could_read_differs():
    without = dump(5)
    without["registers"]["GC"]["RLC_RLCS_BOOTLOAD_STATUS"] = {"index": 1, "skipped": "reason"}
    (found,) = differences(without, dump(5))
    assert (found.before, found.after) == (None, 5)
