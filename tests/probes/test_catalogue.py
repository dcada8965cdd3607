"""docs/faults.md says of every error code what the code says, and the commands in it show what they promise."""

from __future__ import annotations

import re

import pytest

from mocks.faults import FAULTS
from probes import catalogue
from probes.schemas import SCHEMAS
from tests.probes.schema_check import problems

PAGE = catalogue.ROOT / "docs" / "faults.md"
REMEDY = "run `make faults`"

catalogue.load_everything()
ENTRIES = {entry.code: entry for entry in catalogue.entries()}


def test_page_and_code_are_in_step():
    """All of the page but what the commands printed, which is in no two places."""
    sections = re.split(r"(?m)^(?=### |## )", PAGE.read_text(encoding="utf-8"))
    on_page = {section.split("`")[1]: section for section in sections if section.startswith("### ")}
    assert list(on_page) == list(ENTRIES), REMEDY
    for code, entry in ENTRIES.items():
        printed = re.search(r"(?s)```\n\$ tghw [^\n]*\n(.*?)\n?```", on_page[code])
        expected = catalogue.section(entry, printed[1] if printed else "")
        assert on_page[code].strip() == expected.strip(), REMEDY


def test_every_entry_says_what_it_means_and_where_it_is_seen():
    for entry in ENTRIES.values():
        assert entry.kind or entry.means or entry.remedy, entry.code
        assert bool(entry.command) != bool(entry.only), entry.code


def test_data_names_codes_that_there_are():
    data = catalogue._data()
    assert set(data["run"]) <= set(ENTRIES)
    assert set(data["only"]) <= set(ENTRIES)
    assert not set(data["run"]) & set(data["only"])
    assert set(data["parts"]) == set(catalogue.PARTS)


def test_faults_that_the_commands_use_exist():
    for entry in ENTRIES.values():
        for word in re.findall(r"--fault (\S+)", entry.command):
            assert {each.partition("=")[0].partition("@")[0] for each in word.split(",")} <= set(FAULTS), entry.command


@pytest.mark.parametrize("code", ["smu", "bus-lost", "bar-unassigned", "not-ready", "refused", "bridge-busy"])
def test_commands_show_their_error(code):
    shows(code)


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for code, entry in ENTRIES.items() if entry.command])
def test_every_command_shows_its_error(code):
    shows(code)


def shows(code: str) -> None:
    entry = ENTRIES[code]
    status, output = catalogue.run(entry.command)
    first = next((line for line in output.splitlines() if line.startswith("tghw: ")), "")
    assert first.startswith(f"tghw: {code}: "), output
    assert status == entry.exit_status


def test_output_on_the_page_holds_nothing_of_this_machine():
    text = PAGE.read_text(encoding="utf-8")
    for word in ("/tmp", "/root", "/home", str(catalogue.ROOT)):
        assert word not in text


def test_explain_prints_the_entry(tghw):
    result = tghw("explain", "smu")
    for words in ("the power controller did not carry out a message", "tghw boot amd --cold", "tghw --mock navi31 --fault smu-silent boot amd"):
        assert words in result.out
    document = tghw("explain", "tlp-timeout", "--json").json
    assert problems(SCHEMAS["explain"], document) == []
    assert document["reproduced_by"].endswith("boot amd")
    document = tghw("explain", "iommu-active", "--json").json
    assert document["reproduced_by"] is None
    assert "real machine" in document["seen"]


def test_long_output_is_cut_and_progress_left_out():
    assert catalogue.told("progress\ntghw: smu: x\n  read:  " + "y" * 300).splitlines() == ["tghw: smu: x", "  read:  " + "y" * 211 + " ..."]
