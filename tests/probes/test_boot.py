"""`tghw boot`, `tghw run` and `tghw demo`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hw.trace import load
from probes.schemas import FAILURE, SCHEMAS
from tests.probes.schema_check import problems


def test_boot_shows_every_stage_with_its_time(tghw):
    result = tghw("--mock", "navi31", "boot", "amd", "--json")
    assert result.status == 0
    assert problems(SCHEMAS["boot"], result.json) == []
    names = [stage["name"] for stage in result.json["stages"]]
    assert names[:2] == ["pci", "discovery"]
    assert names[-1] == "ready"
    assert result.json["boot_state"] == "running"
    times = {stage["name"]: stage["seconds"] for stage in result.json["stages"]}
    assert times["psp"] > 0.05
    assert result.json["seconds"] >= sum(times.values())


def test_boot_stops_after_the_named_stage(tghw):
    result = tghw("--mock", "navi31", "boot", "amd", "--until", "psp", "--json")
    assert [stage["name"] for stage in result.json["stages"]][-1] == "psp"
    assert result.json["boot_state"] == "sos-alive"


def test_unknown_stage_names_those_there_are(tghw):
    result = tghw("--mock", "navi31", "boot", "amd", "--until", "warp")
    assert result.status == 2
    assert "psp" in result.err


def test_boot_of_a_family_that_is_not_built_says_so(tghw):
    result = tghw("boot", "nv")
    assert result.status == 1
    assert "not-supported" in result.err


def test_failed_boot_names_the_stage_register_cause_and_remedy(tghw):
    result = tghw("--mock", "navi31", "--fault", "smu-silent", "boot", "amd")
    assert result.status == 1
    assert "smu" in result.out
    for word in ("smu:", "C2PMSG_90", "means:", "do:", "power-cycle"):
        assert word in result.err


def test_failed_boot_as_json_names_the_stage(tghw):
    result = tghw("--mock", "navi31", "--fault", "smu-silent", "boot", "amd", "--json")
    assert result.status == 1
    assert problems(FAILURE, result.json) == []
    assert result.json["error"]["stage"] == "smu"


def test_vv_shows_every_register_access_by_name_and_v_does_not(tghw):
    quiet = tghw("--mock", "navi31", "boot", "amd", "-v", "--until", "gmc")
    assert "MMVM_CONTEXT0_CNTL" not in quiet.err
    loud = tghw("--mock", "navi31", "boot", "amd", "-vv", "--until", "gmc")
    assert "write MMVM_CONTEXT0_CNTL = 0x01fffe07 (enable_context=0x1, page_table_depth=0x3," in loud.err
    assert "read  MMVM_CONTEXT0_CNTL = 0x01fffe07" in loud.err


def test_trace_of_a_boot_carries_the_stage_names(tghw, tmp_path):
    file = tmp_path / "boot.jsonl"
    assert tghw("--mock", "navi31", "boot", "amd", "--trace", str(file)).status == 0
    header, records = load(file)
    assert header["device"] == "0000:03:00.0"
    stages = [record.where for record in records if record.kind == "stage"]
    assert "psp" in stages
    assert len(records) > 500


def test_unknown_fault_lists_the_known_ones(tghw):
    result = tghw("--mock", "navi31", "--fault", "gremlins", "boot", "amd")
    assert result.status == 2
    assert "psp-never-ready" in result.err


@pytest.mark.parametrize("program", ["add", "matmul", "copy", "sum", "atomics"])
def test_built_in_programs_are_right_on_the_simulated_gpu(tghw, program):
    result = tghw("--mock", "navi31", "run", program, "--json")
    assert result.status == 0
    assert problems(SCHEMAS["run"], result.json) == []
    assert result.json["ok"] is True


def test_program_file_runs_on_the_selected_device(tghw, tmp_path):
    file = tmp_path / "program.py"
    file.write_text("from compute import Tensor\nassert (Tensor([1, 2]) + 1).tolist() == [2, 3]\n")
    assert tghw("--dev", "CPU", "run", str(file)).status == 0


def test_programs_run_on_the_chosen_one_of_several_devices(tghw):
    result = tghw("--mock", "navi31-8", "--device", "3", "run", "add", "--json")
    assert result.json["device"] == "MOCKPCI:3+AMD,profile=navi31-8"
    beyond = tghw("--mock", "navi31-8", "--device", "9", "run", "add")
    assert beyond.status == 2
    assert "allowed: 0 to 7" in beyond.err
    assert tghw("--dev", "CPU", "--device", "1", "run", "add").status == 2


def test_programs_get_the_firmware_folder_of_the_command_line(tghw, tmp_path):
    missing = tghw("--mock", "navi31", "--firmware", str(tmp_path), "run", "add")
    assert missing.status == 1
    assert f"looked in {tmp_path}, /lib" in missing.err


def test_programs_get_faults_and_state_of_the_command_line(tghw, tmp_path):
    sick = tghw("--mock", "navi31", "--fault", "resize-refused,smu-silent", "run", "add")
    assert sick.status == 1
    assert "tghw: smu: " in sick.err
    state = tmp_path / "state"
    assert tghw("--mock", "navi31", "--state", str(state), "run", "add").status == 0
    assert state.is_dir()


def test_program_that_goes_wrong_is_told_by_its_own_line(tghw, tmp_path):
    file = tmp_path / "program.py"
    file.write_text("x = 1\nraise ValueError('no')\n")
    result = tghw("--dev", "CPU", "run", str(file))
    assert result.status == 1
    assert "program-failed" in result.err
    assert "raised ValueError: no" in result.err
    assert "line 2: raise ValueError('no')" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("3", 1), ("'bad'", 1)])
def test_program_that_ends_by_itself(tghw, tmp_path, code, status):
    file = tmp_path / "program.py"
    file.write_text(f"raise SystemExit({code})\n")
    assert tghw("--dev", "CPU", "run", str(file)).status == status


def test_what_a_program_prints_does_not_mix_with_the_document(tghw, tmp_path):
    file = tmp_path / "program.py"
    file.write_text("print('hello')\n")
    result = tghw("--dev", "CPU", "run", str(file), "--json")
    assert problems(SCHEMAS["run"], result.json) == []
    assert "hello" in result.err


def test_unknown_program_is_wrong_use(tghw):
    assert tghw("run", "nothing").status == 2


def test_demo_shows_the_whole_story(tghw):
    result = tghw("demo")
    assert result.status == 0
    for word in ("Radeon RX 7900 XTX", "cold -> running", "edge 37 C", "agrees with numpy", "read twice and equal"):
        assert word in result.out
    assert lines_of(result.out) == recorded_demo(), "README.md shows another run: record it anew"


def lines_of(text: str) -> list[str]:
    """Lines without what the speed of this machine decides."""
    return [re.sub(r"[\d.]+ (s|ms|us)(?= of ours|;|$)", "TIME", line.rstrip()) for line in text.strip().splitlines()]


def recorded_demo() -> list[str]:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = readme.partition("<!-- demo:begin -->")[2].partition("<!-- demo:end -->")[0]
    return lines_of(block.strip().removeprefix("```\n$ make demo\n").removesuffix("```"))


def test_demo_as_json_has_every_step(tghw):
    document = tghw("demo", "--json").json
    assert problems(SCHEMAS["demo"], document) == []
    assert [step["step"] for step in document["steps"]] == ["find", "boot", "watch", "compute", "compute", "compute", "flash"]
    assert document["ok"] is True


def test_atomics_on_a_device_that_is_no_gpu_is_refused(tghw):
    result = tghw("--dev", "CPU", "run", "atomics")
    assert result.status == 1
    assert "GPU kernel" in result.err
