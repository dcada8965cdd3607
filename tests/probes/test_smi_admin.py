"""`tghw smi --pids`, `--kill-pids`, `--module`: on real processes that hold simulated cards, and on machines of files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hw import lock, processes
from hw.errors import EXIT_BUSY, EXIT_REFUSED
from probes.schemas import SCHEMAS
from tests.hw.fake_sysfs import FakeHost
from tests.probes.fake_card import use_host
from tests.probes.schema_check import problems

ROOT = Path(lock.__file__).parents[1]
PROFILE = "navi31-8"
FIRST, SECOND, THIRD = "0000:03:00.0", "0000:07:00.0", "0000:0b:00.0"

USE = """
import signal, sys, time
from pathlib import Path
profile, state, words, manner = sys.argv[1:]
addresses = [word for word in words.split(",") if word]
if manner == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if manner == "whole machine":
    from mocks.machine import Machine
    machine = Machine.from_profile(profile, state_dir=Path(state))
    devices = [machine.open(address) for address in addresses]
else:
    from hw import lock
    devices = [lock.acquire(f"mock:{profile}:{address}", Path(state)) for address in addresses]
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def use(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program that holds simulated cards of the state folder, with the machine they are in or by their locks alone; without addresses
    it only looks like one."""
    programs: list[subprocess.Popen[str]] = []

    def use(*addresses: str, manner: str = "polite") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USE, PROFILE, str(tmp_path), ",".join(addresses), manner]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        programs.append(program)
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        return program

    yield use
    for program in programs:
        program.kill()
        program.wait(10)
        assert program.stdout is not None
        program.stdout.close()


@pytest.fixture
def smi(tghw: Any, tmp_path: Path) -> Callable[..., Any]:
    return lambda *arguments: tghw("--mock", PROFILE, "--state", str(tmp_path), "smi", "amd", *arguments)


def test_exactly_the_holders_end(use, smi):
    first, second = use(FIRST, manner="whole machine"), use(SECOND, THIRD, manner="whole machine")
    bystander = use(manner="whole machine")
    result = smi("--kill-pids")
    assert result.status == 0
    assert (first.wait(5), second.wait(5)) == (-signal.SIGTERM, -signal.SIGTERM)
    assert bystander.poll() is None
    for program in (first, second):
        assert f"process {program.pid}" in result.out
    assert str(bystander.pid) not in result.out
    assert "no process holds a device" in smi("--kill-pids").out


def test_kill_as_json_names_every_outcome(use, smi, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.3)
    monkeypatch.setattr(processes.end_holders, "__kwdefaults__", processes.end_holders.__kwdefaults__ | {"grace": 0.3})
    polite, stubborn = use(FIRST), use(SECOND, manner="stubborn")
    result = smi("--kill-pids", "--json")
    assert problems(SCHEMAS["smi"], result.json) == []
    assert {each["pid"]: each["outcome"] for each in result.json["ended"]} == {polite.pid: "terminated", stubborn.pid: "killed"}
    assert result.json["left"] == []


def test_only_the_chosen_cards_holder_ends(use, smi):
    first, second = use(FIRST), use(SECOND)
    assert smi("--kill-pids", "--dev", SECOND).status == 0
    assert second.wait(5) == -signal.SIGTERM
    assert first.poll() is None


def test_pids_lists_holders_and_ends_nobody(use, smi):
    program = use(SECOND, THIRD)
    result = smi("--pids", "--json")
    assert problems(SCHEMAS["smi"], result.json) == []
    held = {each["address"]: [holder["pid"] for holder in each["holders"]] for each in result.json["devices"] if each["holders"]}
    assert held == {SECOND: [program.pid], THIRD: [program.pid]}
    assert f"{program.pid}" in smi("--pids").out
    assert program.poll() is None


def test_this_process_is_not_ended(smi, tmp_path):
    with lock.acquire(f"mock:{PROFILE}:{FIRST}", tmp_path):
        result = smi("--kill-pids")
    assert result.status == EXIT_BUSY
    assert f"process {os.getpid()}" in result.err


def test_held_card_is_shown_with_its_holder_and_left_alone(use, smi):
    program = use(SECOND)
    result = smi("--list", "--json")
    gpus = {gpu["address"]: gpu for gpu in result.json["gpus"]}
    assert [holder["pid"] for holder in gpus[SECOND]["holders"]] == [program.pid]
    assert gpus[SECOND]["figures"] == {}
    assert f"held by process {program.pid}" in gpus[SECOND]["note"]
    assert gpus[FIRST]["figures"]["power"]["value"] == 19
    assert program.poll() is None
    assert smi("--reset", "--dev", SECOND).status == EXIT_BUSY


# --- machines of files ----------------------------------------------------------------------------------------------------

DESKTOP = 4000001
"""a pid that no process of this machine can have"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A machine with a GPU that amdgpu drives, and a desktop on it."""
    host = FakeHost(tmp_path / "root")
    image = bytearray(4096)
    image[0:4], image[8:12] = bytes([0x02, 0x10, 0x4C, 0x74]), bytes([0xC8, 0, 0, 3])
    function = host.add_function(FIRST, bytes(image), driver="amdgpu", power_state="D3hot")
    (function.directory / "drm" / "card0").mkdir(parents=True)
    host.put(host.sys / "module" / "amdgpu" / "refcnt", "12")
    use_host(monkeypatch, host)
    return host


def test_users_of_the_vendors_driver_are_listed_and_not_ended_without_consent(tghw, host, monkeypatch):
    host.add_process(DESKTOP, "Xorg :0", ("/dev/dri/card0",))
    monkeypatch.setattr(os, "pidfd_open", lambda pid: pytest.fail("a process was taken hold of"))
    listed = tghw("smi", "amd", "--pids", "--json").json["devices"]
    assert [(each["address"], [(holder["pid"], holder["kind"], holder["path"]) for holder in each["holders"]]) for each in listed] == [
        (FIRST, [(DESKTOP, "node", "/dev/dri/card0")])
    ]
    result = tghw("smi", "amd", "--kill-pids")
    assert result.status == EXIT_REFUSED
    assert f"process {DESKTOP} (Xorg :0) (/dev/dri/card0)" in result.err
    assert "--yes" in result.err


def test_module_in_use_is_refused_with_exit_4(tghw, host):
    host.add_process(DESKTOP, "Xorg :0", ("/dev/dri/card0",))
    result = tghw("smi", "amd", "--module", "unload")
    assert result.status == EXIT_REFUSED
    assert "would run: modprobe -r amdgpu" in result.err
    assert f"process {DESKTOP} (Xorg :0)" in result.err


def test_expecting_no_module(tghw, host):
    result = tghw("smi", "amd", "--module", "expect-unloaded", "--json")
    assert result.status == 1
    assert result.json["error"]["code"] == "module-loaded"
    shutil.rmtree(host.sys / "module" / "amdgpu")
    result = tghw("smi", "amd", "--module", "expect-unloaded", "--json")
    assert result.status == 0
    assert problems(SCHEMAS["smi"], result.json) == []
    assert tghw("smi", "amd", "--module", "unload").status == 0
    assert tghw("smi", "amd", "--module", "explode").status == 2


def test_module_is_unloaded_and_loaded_by_modprobe(tghw, host, monkeypatch, tmp_path):
    host.put(host.sys / "module" / "amdgpu" / "refcnt", "0")
    tools = tmp_path / "tools"
    tools.mkdir()
    module = host.sys / "module" / "amdgpu"
    script = tools / "modprobe"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tools}/calls\nif [ "$1" = -r ]; then rm -r {module}; else mkdir -p {module}; fi\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(sys.modules["hw.modules"].carry_out, "__kwdefaults__", sys.modules["hw.modules"].carry_out.__kwdefaults__ | {"uid": lambda: 0})
    result = tghw("smi", "amd", "--module", "unload", "--json")
    assert result.status == 0
    assert problems(SCHEMAS["smi"], result.json) == []
    assert not module.exists()
    assert tghw("smi", "amd", "--module", "load").status == 0
    assert module.exists()
    assert tghw("smi", "amd", "--module", "load").out.strip() == "amdgpu: loaded already"
    assert (tools / "calls").read_text() == "-r amdgpu\namdgpu\n"


def test_card_of_a_kernel_driver_is_not_reset(tghw, host):
    host.put(host.pci / FIRST / "power_state", "D0")
    result = tghw("smi", "amd", "--reset")
    assert result.status == EXIT_REFUSED
    assert "driver-bound" in result.err
    assert host.written == []
