"""The DEV string: every form of it, and errors that name the part, what was found and what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw import target
from hw.errors import EXIT_NOTHING_FOUND, EXIT_USAGE, NothingFound, TargetError
from hw.target import Target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AMD", Target("AMD")),
        ("USB+AMD:LLVM", Target("AMD", "USB", renderer="LLVM")),
        ("MOCKPCI+AMD::gfx1201", Target("AMD", "PCI", mock=True, arch="gfx1201")),
        ("MOCK+NV:PTX:sm_89", Target("NV", mock=True, renderer="PTX", arch="sm_89")),
        ("NULL::gfx950", Target("NULL", arch="gfx950")),
        ("NULL::gfx90a", Target("NULL", arch="gfx90a")),
        ("CPU:LLVM", Target("CPU", renderer="LLVM")),
        ("PYTHON", Target("PYTHON")),
        ("MOCKUSB+AMD", Target("AMD", "USB", mock=True)),
        ("MOCKKFD+AMD", Target("AMD", "KFD", mock=True)),
        ("MOCKVFIO+AMD", Target("AMD", "VFIO", mock=True)),
        ("MOCKUSB4+AMD", Target("AMD", "USB4", mock=True)),
        ("MOCKREMOTE+AMD", Target("AMD", "REMOTE", mock=True)),
        ("MOCKNVK+NV", Target("NV", "NVK", mock=True)),
        ("NVK+NV", Target("NV", "NVK")),
        ("pci:0-2+amd::GFX1100", Target("AMD", "PCI", indices=(0, 1, 2), arch="gfx1100")),
        ("PCI:3,1+AMD", Target("AMD", "PCI", indices=(3, 1))),
        ("PCI:0,2-3,0+AMD", Target("AMD", "PCI", indices=(0, 2, 3))),
        ("PCI:0000:03:00.0+AMD", Target("AMD", "PCI", addresses=("0000:03:00.0",))),
        ("PCI:0A:00.1,2+AMD", Target("AMD", "PCI", indices=(2,), addresses=("0000:0a:00.1",))),
        ("MOCKPCI+AMD,profile=navi33,seed=7", Target("AMD", "PCI", mock=True, options={"profile": "navi33", "seed": "7"})),
        ("AMD:LLVM:gfx1100,fw=a+b", Target("AMD", renderer="LLVM", arch="gfx1100", options={"fw": "a+b"})),
    ],
)
def test_every_form_is_understood(text: str, expected: Target) -> None:
    assert target.parse(text) == expected
    assert target.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "part", "found", "allowed"),
    [
        ("", "device", "''", "AMD, NV, CPU, NULL, PYTHON"),
        ("INTEL", "device", "'INTEL'", "AMD, NV, CPU, NULL, PYTHON"),
        ("PCI+", "device", "''", "AMD"),
        ("THUNDER+AMD", "interface", "'THUNDER'", "KFD, PCI, VFIO, USB, USB4, REMOTE, NVK, each also with MOCK in front"),
        ("MOCKX+AMD", "interface", "'MOCKX'", "KFD, PCI"),
        ("+AMD", "interface", "''", "KFD, PCI"),
        ("NVK+AMD", "interface", "'NVK'", "for AMD: PCI, KFD"),
        ("KFD+NV", "interface", "'KFD'", "for NV: PCI, NVK"),
        ("PCI+CPU", "interface", "'PCI'", "CPU is not behind a bus"),
        ("MOCK+NULL", "interface", "'MOCK'", "NULL is not behind a bus"),
        ("PCI:+AMD", "device index", "''", "a number, a range"),
        ("PCI:x+AMD", "device index", "'x'", "a number, a range"),
        ("PCI:3-1+AMD", "device index", "'3-1'", "ascending"),
        ("PCI:0-99999999+AMD", "device index", "'0-99999999'", "255"),
        ("AMD:PTX", "renderer", "'PTX'", "LLVM"),
        ("PYTHON:LLVM", "renderer", "'LLVM'", "PYTHON has no renderers"),
        ("AMD::sm_89", "architecture", "'sm_89'", "for AMD: gfx1100"),
        ("NV::gfx1100", "architecture", "'gfx1100'", "for NV: sm_89"),
        ("AMD::gfx", "architecture", "'gfx'", "gfx1100"),
        ("AMD:LLVM:gfx1100:x", "part after the architecture", "'x'", "nothing more"),
        ("AMD,", "option", "''", "KEY=VALUE"),
        ("AMD,profile", "option", "'profile'", "KEY=VALUE"),
        ("AMD,=x", "option", "'=x'", "KEY=VALUE"),
        ("AMD,a=1,A=2", "option", "'A=2'", "a once"),
        ("AMD;", "list", "an empty entry", "single ';'"),
    ],
)
def test_an_error_names_part_found_and_allowed(text: str, part: str, found: str, allowed: str) -> None:
    with pytest.raises(TargetError) as caught:
        target.parse_list(text)
    assert caught.value.what.startswith(f"{part} in device string {text!r}")
    assert found in caught.value.read
    assert allowed in caught.value.read
    assert caught.value.exit_status == EXIT_USAGE


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("PCI", "PCI is an interface: write PCI+AMD"),
        ("AMD:0", "write PCI:0+AMD"),
        ("AMD:gfx1100", "AMD::gfx1100"),
    ],
)
def test_common_mistakes_get_the_right_form(text: str, hint: str) -> None:
    with pytest.raises(TargetError) as caught:
        target.parse(text)
    assert hint in caught.value.means


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="MOCKPIUSBAMDNVLTX0129:+,;=-._gfxsm ", max_size=30))
def test_any_string_is_understood_or_refused_with_a_type(text: str) -> None:
    try:
        targets = target.parse_list(text)
    except TargetError as error:
        assert "device string" in error.what and "allowed" in error.read
    else:
        assert target.parse_list(";".join(map(str, targets))) == targets


def test_semicolon_joins_targets() -> None:
    assert target.parse_list("PCI:0+AMD; CPU") == [Target("AMD", "PCI", indices=(0,)), Target("CPU")]
    with pytest.raises(TargetError, match="string in device string"):
        target.parse("AMD;CPU")


def test_environment_wins_over_the_default_and_empty_means_unset() -> None:
    assert target.from_env("CPU", {"DEV": "MOCKPCI+AMD"}) == Target("AMD", "PCI", mock=True)
    assert target.from_env("CPU", {}) == Target("CPU")
    assert target.from_env("CPU", {"DEV": ""}) == Target("CPU")
    assert target.list_from_env("CPU", {"DEV": "AMD;CPU"}) == [Target("AMD"), Target("CPU")]


def test_old_visibility_variable_is_refused_with_the_new_form() -> None:
    with pytest.raises(TargetError) as caught:
        target.from_env("AMD", {"HCQ_VISIBLE_DEVICES": "1,2"})
    assert "DEV=PCI:1,2+AMD" in caught.value.remedy


def test_indices_choose_from_the_sorted_list() -> None:
    found = ["0000:0c:00.0", "0000:03:00.0", "0000:07:00.0"]
    assert target.parse("AMD").choose(found) == ["0000:03:00.0", "0000:07:00.0", "0000:0c:00.0"]
    assert target.parse("PCI:2,0+AMD").choose(found) == ["0000:0c:00.0", "0000:03:00.0"]
    assert target.parse("PCI:07:00.0+AMD").choose(found) == ["0000:07:00.0"]


def test_an_index_beyond_the_devices_names_how_many_there_are() -> None:
    with pytest.raises(TargetError) as caught:
        target.parse("PCI:2+AMD").choose(["0000:03:00.0", "0000:07:00.0"])
    assert "allowed: 0 to 1" in caught.value.read
    assert "2 such devices" in caught.value.means
    with pytest.raises(NothingFound) as absent:
        target.parse("PCI:0000:09:00.0+AMD").choose(["0000:03:00.0"])
    assert absent.value.exit_status == EXIT_NOTHING_FOUND
    assert "0000:03:00.0" in absent.value.read


def test_a_target_is_narrowed_to_one_device() -> None:
    assert target.parse("MOCK+AMD,seed=1").only("2") == Target("AMD", mock=True, indices=(2,), options={"seed": "1"})
    assert target.parse("PCI:0-3+AMD").only("03:00.0") == Target("AMD", "PCI", addresses=("0000:03:00.0",))
    assert target.parse("USB+AMD").only("usb:1") == Target("AMD", "USB", indices=(1,))
    with pytest.raises(TargetError, match="device index"):
        target.parse("CPU").only("0")
    with pytest.raises(TargetError, match="device index"):
        target.parse("AMD").only("first")


def test_options_are_known_ones_and_numbers_are_numbers() -> None:
    chosen = target.parse("MOCKPCI+AMD,seed=7,profile=x")
    chosen.check_options(("seed", "profile"))
    assert (chosen.number("seed", 0), chosen.number("other", 3)) == (7, 3)
    with pytest.raises(TargetError, match="option in device string"):
        chosen.check_options(("seed",))
    with pytest.raises(TargetError, match="option in device string"):
        chosen.number("profile", 0)


def test_only_devices_on_a_bus_have_hardware() -> None:
    assert target.parse("MOCK+AMD").has_hardware
    assert not target.parse("CPU").has_hardware
