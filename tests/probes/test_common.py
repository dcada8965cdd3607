"""Options that every command takes, exit statuses, errors as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.main

from hw.errors import UsageError
from probes import main
from probes.context import take_common
from probes.render import duration, size
from probes.schemas import FAILURE, SCHEMAS
from tests.probes.schema_check import problems


def test_common_options_are_taken_from_anywhere_on_the_line():
    common, rest = take_common(["--mock", "navi31", "boot", "amd", "--json", "-v", "--until", "psp", "--device=1"])
    assert rest == ["boot", "amd", "--until", "psp"]
    assert (common.mock, common.json, common.verbose, common.device) == ("navi31", True, 1, "1")


def test_nothing_after_a_double_dash_is_taken():
    common, rest = take_common(["lab", "run", "x", "--", "ls", "--json"])
    assert rest == ["lab", "run", "x", "--", "ls", "--json"]
    assert not common.json


def test_option_without_its_value_is_wrong_use():
    with pytest.raises(UsageError, match="--mock needs a value"):
        take_common(["probe", "--mock"])


@pytest.mark.parametrize("line", [["--mock", "", "probe"], ["--mock=", "probe"], ["probe", "--dev", ""], ["--device=", "probe"]])
def test_empty_value_of_an_unset_variable_never_means_another_machine(line):
    with pytest.raises(UsageError, match="has an empty value"):
        take_common(line)


def test_dev_with_a_bus_address_selects_a_device(monkeypatch):
    monkeypatch.delenv("DEV", raising=False)
    common, _ = take_common(["smi", "--dev", "0000:03:00.0"])
    selection = common.selection()
    assert selection.device == "0000:03:00.0"
    assert selection.target is None


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0 s"), (1.0, "1 s"), (0.135, "135 ms"), (1e-6, "1 us"), (9.999e-7, "1 us"), (2.5e-8, "25 ns"), (12.345, "12.3 s")])
def test_durations_have_three_digits_and_a_fitting_unit(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(256, "256 B"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB"), (24560 << 20, "24.0 GiB")])
def test_sizes_are_powers_of_two(count, text):
    assert size(count) == text


def test_unknown_command_is_wrong_use(tghw):
    result = tghw("fly")
    assert result.status == 2
    assert "fly" in result.err


@pytest.mark.parametrize(
    ("line", "text"), [("probe more", "unexpected extra argument"), ("boot", "Missing argument 'family'"), ("mock fly", "No such command 'fly'"), ("probe --bogus", "--bogus")]
)
def test_what_the_command_line_parser_refuses_is_an_error_like_any_other(tghw, line, text):
    result = tghw(*line.split(), "--json")
    assert result.status == 2
    assert problems(FAILURE, result.json) == []
    assert result.json["error"]["code"] == "usage"
    assert text in result.json["error"]["what"]
    assert "--help` lists what is accepted" in result.json["error"]["remedy"]


@pytest.mark.parametrize("line", [(), ("mock",)])
def test_command_without_words_shows_what_there_is(tghw, line):
    result = tghw(*line)
    assert result.status == 2
    assert result.err.startswith("Usage: tghw")
    assert "list" in result.err if line else "probe" in result.err


@pytest.mark.parametrize(
    ("dev", "text"), [("MOCKPCI+AMD,seed=x", "seed=NUMBER"), ("MOCKPCI+AMD,bogus=1", "allowed: profile, seed, fault"), ("PCI+AMD,profile=navi31", "none for AMD on a real bus")]
)
def test_option_of_a_device_string_that_nobody_reads_is_refused(tghw, dev, text):
    result = tghw("--dev", dev, "probe")
    assert result.status == 2
    assert text in result.err


@pytest.mark.parametrize("fault", ["all-ones-at=x", "all-ones-stage=attic", "smu-busy=-1", "psp-command-error=0x20:zz", "psp-never-ready=3", "tlp-completion", "mailbox-error=3"])
def test_fault_with_an_argument_that_it_does_not_take_is_refused(tghw, fault):
    result = tghw("--mock", "navi31", "--fault", fault, "probe")
    assert result.status == 2
    assert f"fault {fault.partition('=')[0]} cannot have the argument" in result.err


def test_a_lost_device_is_one_json_document_with_the_error_in_it(tghw):
    result = tghw("--mock", "dead-bus", "probe", "--json")
    assert result.status == 1
    assert problems(SCHEMAS["probe"], result.json) == []
    assert result.json["devices"][0]["problem"]["code"] == "bus-lost"


@pytest.mark.parametrize("line", ["options", "explain", "mock list", "mock show navi31-8"])
def test_documents_are_those_of_the_schema(tghw, line):
    result = tghw(*line.split(), "--json")
    assert result.status == 0
    schema = max((name for name in SCHEMAS if line.startswith(name)), key=len)
    assert problems(SCHEMAS[schema], result.json) == []


def test_a_mistake_of_our_own_is_told_without_a_traceback_unless_asked_for(tghw, monkeypatch):
    from probes import boot

    def broken(*arguments):
        raise ValueError("no such luck")

    monkeypatch.setattr(boot, "open_pci", broken)
    result = tghw("--mock", "navi31", "boot", "amd", "--json")
    assert result.status == 1
    assert problems(FAILURE, result.json) == []
    assert result.json["error"]["code"] == "internal"
    assert result.json["error"]["what"] == "ValueError: no such luck"
    assert "in broken, test_common.py line" in result.json["error"]["read"]
    assert "Traceback" not in result.err
    with pytest.raises(ValueError, match="no such luck"):
        tghw("--mock", "navi31", "boot", "amd", "-vv")


def test_an_option_without_its_value_is_an_error_document_too(tghw):
    result = tghw("probe", "--json", "--mock")
    assert result.status == 2
    assert result.json["error"]["what"] == "--mock needs a value"


def test_error_with_json_is_one_document_and_still_has_text_on_stderr(tghw):
    result = tghw("--mock", "no-such-machine", "probe", "--json")
    assert result.status == 2
    assert result.json["error"]["code"] == "bad-profile"
    assert "navi31" in result.err


def test_transport_that_is_not_built_says_so(tghw):
    result = tghw("probe", "--transport", "remote")
    assert result.status == 1
    assert "not-supported" in result.err
    assert "not built yet" in result.err


def test_bad_device_string_names_the_part(tghw):
    result = tghw("--dev", "PCI+GPU", "probe")
    assert result.status == 2
    assert "'GPU'" in result.err
    assert "AMD" in result.err


def commands(command, path=()) -> list[str]:
    """All commands, as they are typed."""
    below = getattr(command, "commands", None)
    return [each for name, one in below.items() for each in commands(one, (*path, name))] if below else [" ".join(path)]


def test_every_command_has_a_schema_and_help(tghw):
    tghw("options")  # attaches the commands
    names = commands(typer.main.get_command(main.app))
    assert set(names) - {"mock serve"} == set(SCHEMAS), "serving machines is not built yet"
    for name in names:
        result = tghw(*name.split(), "--help")
        assert result.status == 0
        assert result.out.startswith(f"Usage: tghw {name}")


@pytest.mark.parametrize("command", sorted(SCHEMAS))
def test_every_command_prints_its_schema(tghw, command):
    result = tghw(*command.split(), "--json-schema")
    assert result.status == 0
    assert result.json == {"oneOf": [SCHEMAS[command], FAILURE]}


def test_explain_knows_every_code_of_the_error_tree(tghw):
    from hw.errors import all_errors

    codes = tghw("explain", "--json").json["codes"]
    assert set(codes) >= {each.code for each in all_errors() if each.__module__ == "hw.errors"}
    shown = tghw("explain", "bus-lost", "--json")
    assert problems(SCHEMAS["explain"], shown.json) == []
    assert "link is down" in shown.json["means"]


def test_explain_refuses_an_unknown_code(tghw):
    result = tghw("explain", "nonsense")
    assert result.status == 2
    assert "bus-lost" in result.err


def test_schema_check_itself_sees_what_is_wrong():
    schema = SCHEMAS["boot"]
    good = {"address": "a", "arch": "b", "stages": [], "seconds": 1.0, "boot_state": "cold"}
    assert problems(schema, good) == []
    assert problems(schema, {**good, "seconds": "1"}) == ["$.seconds: str is not number"]
    assert problems(schema, {**good, "extra": 1}) == ["$: extra is not in the schema"]
    either = {"oneOf": [schema, {"type": "string"}]}
    assert problems(either, good) == problems(either, "x") == []
    assert problems(either, 1) == ["$: none of 2 forms fits", "$: int is not object"]


def test_mock_list_and_show_agree_with_the_profiles(tghw):
    from mocks.faults import FAULTS

    profiles = tghw("mock", "list", "--json").json
    assert problems(SCHEMAS["mock list"], profiles) == []
    names = {each["name"] for each in profiles["profiles"]}
    assert {"navi31", "navi33", "dead-bus"} <= names
    assert all(each["summary"] for each in profiles["profiles"])
    shown = tghw("mock", "show", "navi31", "--json").json
    assert problems(SCHEMAS["mock show"], shown) == []
    assert shown["faults"] == FAULTS
    gpu = next(each for each in shown["functions"] if each["role"] == "gpu")
    assert (gpu["vendor"], gpu["device"]) == (0x1002, 0x744C)


def test_disassembly_of_a_code_object_names_the_kernel(tghw, tmp_path: Path):
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu="gfx1100", opt=2)
    text = 'target triple = "amdgcn-amd-amdhsa"\ndefine amdgpu_kernel void @five(ptr addrspace(1) %p) {\n  store i32 5, ptr addrspace(1) %p\n  ret void\n}\n'
    file = tmp_path / "five.o"
    file.write_bytes(machine.emit_object(llvm.parse_assembly(text)))
    result = tghw("disasm", str(file), "--json")
    assert result.status == 0
    assert problems(SCHEMAS["disasm"], result.json) == []
    section = result.json["sections"][0]
    assert section["name"] == "five"
    texts = [line["text"] for line in section["lines"]]
    assert any(each.startswith("global_store_b32") for each in texts)
    assert texts[-1] == "s_endpgm"


def test_disassembly_of_a_damaged_file_is_a_typed_error(tghw, tmp_path: Path):
    file = tmp_path / "broken.o"
    file.write_bytes(b"\x7fELF" + bytes(20))
    result = tghw("disasm", str(file))
    assert result.status == 1
    assert "kernel-image" in result.err


def test_raw_machine_code_needs_an_architecture(tghw, tmp_path: Path):
    file = tmp_path / "raw.bin"
    file.write_bytes((0xBFB00000).to_bytes(4, "little"))
    assert tghw("disasm", str(file)).status == 2
    result = tghw("disasm", str(file), "--arch", "gfx1100")
    assert "s_endpgm" in result.out


def test_bytes_that_are_no_instruction_do_not_end_a_listing(tghw, tmp_path: Path):
    file = tmp_path / "raw.bin"
    file.write_bytes(b"\xc3\x06\xc3")  # 06 is nothing in 64-bit mode
    lines = tghw("disasm", str(file), "--arch", "x86_64", "--json").json["sections"][0]["lines"]
    assert [line["text"] for line in lines] == ["ret", ".byte 0x06", "ret"]


def test_ptx_kernels_are_listed(tghw, tmp_path: Path):
    file = tmp_path / "k.ptx"
    file.write_text(".version 7.0\n.target sm_80\n.visible .entry first() { ret; }\n.visible .entry second() { ret; }\n")
    document = json.loads(tghw("disasm", str(file), "--json").out)
    assert [each["name"] for each in document["sections"]] == ["first", "second"]
