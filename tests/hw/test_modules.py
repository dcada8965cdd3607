"""Kernel modules: plans say what would happen; nothing happens to modules in use, or without root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hw import modules
from hw.errors import EXIT_REFUSED, ModuleFailed, ModuleInUse, NotSupported, PermissionMissing, Refused
from hw.modules import ModulePlan, carry_out, loaded, plan_load, plan_unload
from tests.hw.fake_sysfs import FakeHost

ADDRESS = "0000:03:00.0"
NAMES = modules.MODULES["amd"]


class Modprobe:
    """modprobe on a tree of files: records calls, and makes or removes the module's folder."""

    def __init__(self, host: FakeHost, status: int = 0, works: bool = True) -> None:
        self.host = host
        self.calls: list[list[str]] = []
        self.status = status
        self.works = works

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(command))
        if not self.status and self.works:
            for name in command[1:]:
                home = self.host.sys / "module" / name
                if "-r" in command and name != "-r":
                    shutil.rmtree(home)
                elif "-r" not in command:
                    home.mkdir(parents=True)
        return subprocess.CompletedProcess(command, self.status, "", "modprobe: FATAL: Module amdgpu is in use.\n" if self.status else "")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A machine with a GPU that amdgpu drives; nobody uses it."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    host = FakeHost(tmp_path / "root")
    host.put(host.sys / "module" / "amdgpu" / "refcnt", "0")
    function = host.add_function(ADDRESS, bytes(4096), driver="amdgpu")
    (function.directory / "drm" / "card0").mkdir(parents=True)
    return host


def root() -> int:
    return 0


def test_unloading_an_idle_module_runs_modprobe_once(host: FakeHost) -> None:
    plan = plan_unload(NAMES, host)
    assert plan.line == "modprobe -r amdgpu"
    assert not plan.in_use
    modprobe = Modprobe(host)
    carry_out(plan, host=host, run=modprobe, uid=root)
    assert modprobe.calls == [["modprobe", "-r", "amdgpu"]]
    assert loaded(NAMES, host) == []


def test_nothing_to_unload_does_nothing(host: FakeHost) -> None:
    shutil.rmtree(host.sys / "module" / "amdgpu")
    plan = plan_unload(NAMES, host)
    assert (plan.modules, plan.command) == ((), ())
    modprobe = Modprobe(host)
    carry_out(plan, host=host, run=modprobe, uid=root)
    assert modprobe.calls == []


@pytest.mark.parametrize("reason", ["process", "module", "count"])
def test_module_in_use_is_refused_and_left_alone(host: FakeHost, reason: str) -> None:
    if reason == "process":
        host.add_process(700, "Xorg :0", ("/dev/dri/card0",))
        words = ("process 700 (Xorg :0)", "/dev/dri/card0")
    elif reason == "module":
        (host.sys / "module" / "amdgpu" / "holders" / "amdxcp").mkdir(parents=True)
        words = ("amdgpu is used by the module amdxcp",)
    else:
        host.put(host.sys / "module" / "amdgpu" / "refcnt", "3")
        words = ("amdgpu has 3 users",)
    plan = plan_unload(NAMES, host)
    modprobe = Modprobe(host)
    with pytest.raises(ModuleInUse) as caught:
        carry_out(plan, host=host, run=modprobe, uid=root)
    assert caught.value.exit_status == EXIT_REFUSED
    assert all(word in caught.value.read for word in words)
    assert modprobe.calls == []
    assert loaded(NAMES, host) == ["amdgpu"]


def test_module_that_drives_the_console_needs_consent(host: FakeHost) -> None:
    host.put(host.pci / ADDRESS / "boot_vga", "1")
    plan = plan_unload(NAMES, host)
    modprobe = Modprobe(host)
    with pytest.raises(Refused, match="unloading amdgpu") as caught:
        carry_out(plan, host=host, run=modprobe, uid=root)
    assert ADDRESS in caught.value.read
    assert modprobe.calls == []
    carry_out(plan, take_console=True, host=host, run=modprobe, uid=root)
    assert len(modprobe.calls) == 1


def test_without_root_the_command_for_root_is_named_and_not_run(host: FakeHost) -> None:
    modprobe = Modprobe(host)
    with pytest.raises(PermissionMissing) as caught:
        carry_out(plan_unload(NAMES, host), host=host, run=modprobe, uid=lambda: 1000)
    assert caught.value.remedy == "as root: modprobe -r amdgpu"
    assert modprobe.calls == []


def test_loading_loads_what_is_missing(host: FakeHost) -> None:
    assert plan_load(NAMES, host).command == ()
    shutil.rmtree(host.sys / "module" / "amdgpu")
    plan = plan_load(NAMES, host)
    assert plan.line == "modprobe amdgpu"
    modprobe = Modprobe(host)
    carry_out(plan, host=host, run=modprobe, uid=root)
    assert loaded(NAMES, host) == ["amdgpu"]
    assert plan_load(("b", "a"), host).line == "modprobe -a a b"


def test_refusal_of_the_kernel_is_told_in_its_words(host: FakeHost) -> None:
    with pytest.raises(ModuleFailed) as caught:
        carry_out(plan_unload(NAMES, host), host=host, run=Modprobe(host, status=1), uid=root)
    assert caught.value.read == "modprobe: FATAL: Module amdgpu is in use."


def test_success_that_changed_nothing_is_a_failure(host: FakeHost) -> None:
    with pytest.raises(ModuleFailed, match="amdgpu is still there"):
        carry_out(plan_unload(NAMES, host), host=host, run=Modprobe(host, works=False), uid=root)


def test_missing_modprobe_and_one_that_hangs_are_explained(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 120)

    with pytest.raises(ModuleFailed, match="did not end within 120 s"):
        carry_out(plan_unload(NAMES, host), host=host, run=hangs, uid=root)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NotSupported, match="unloading amdgpu"):
        carry_out(plan_unload(NAMES, host), host=host, run=Modprobe(host), uid=root)


def test_plan_as_json_says_everything(host: FakeHost) -> None:
    host.add_process(700, "Xorg :0", ("/dev/dri/card0",))
    document = plan_unload(NAMES, host).to_dict()
    assert document["command"] == ["modprobe", "-r", "amdgpu"]
    assert document["holders"][0]["pid"] == 700
    assert ModulePlan("load", ()).to_dict()["consoles"] == []
