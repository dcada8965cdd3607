"""Kernel modules of device vendors: which are loaded, who uses them, and a plan for unloading or loading them.

A plan says everything before anything is done: the command, who stands in the way, what it would take along. Nothing calls sudo.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hw.errors import ModuleFailed, ModuleInUse, NotSupported, PermissionMissing, Refused
from hw.host import HOST, HostFiles
from hw.pci.functions import scan
from hw.processes import Hold, node_holds, nodes_of

log = logging.getLogger(__name__)

MODULES: dict[str, tuple[str, ...]] = {"amd": ("amdgpu",)}
"""family -> modules in the order of unloading"""
MODPROBE = "modprobe"
MODPROBE_WITHIN = 120.0
"""s: a driver that takes its devices down may take long"""

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class ModulePlan:
    """What unloading or loading would do. `command` is empty when there is nothing to do."""

    action: str
    """"unload" or "load" """
    modules: tuple[str, ...]
    """those that would be unloaded or loaded, in order"""
    command: tuple[str, ...] = ()
    holders: tuple[Hold, ...] = ()
    """processes that use devices through the modules"""
    dependents: tuple[str, ...] = ()
    """modules that use them, and reference counts that nothing visible explains"""
    consoles: tuple[str, ...] = ()
    """devices of theirs that show the machine's console"""

    @property
    def in_use(self) -> bool:
        return bool(self.holders or self.dependents)

    @property
    def line(self) -> str:
        """The command as it would be typed."""
        return shlex.join(self.command)

    def to_dict(self) -> dict[str, Any]:
        return {
            "action": self.action,
            "modules": list(self.modules),
            "command": list(self.command),
            "holders": [hold.to_dict() for hold in self.holders],
            "dependents": list(self.dependents),
            "consoles": list(self.consoles),
        }


def loaded(modules: Sequence[str], host: HostFiles = HOST) -> list[str]:
    """Those of the modules that the kernel has, in the given order."""
    return [name for name in modules if (_home(name, host)).is_dir()]


def plan_unload(modules: Sequence[str], host: HostFiles = HOST) -> ModulePlan:
    """What unloading the loaded ones of these modules would mean. Looks only."""
    present = loaded(modules, host)
    if not present:
        return ModulePlan("unload", ())
    holders: list[Hold] = []
    consoles: list[str] = []
    for function in scan(host, touch=False):
        if function.driver in present:
            holders += node_holds(nodes_of(function.address, function.driver, host), host)
            if function.is_console:
                consoles.append(function.address)
    dependents = []
    for name in present:
        others = sorted(path.name for path in (_home(name, host) / "holders").glob("*") if path.name not in present)
        dependents += [f"{name} is used by the module {other}" for other in others]
        count = host.number(_home(name, host) / "refcnt") or 0
        if count > len(others) and not holders:
            dependents.append(f"{name} has {count} users in the kernel")
    return ModulePlan("unload", tuple(present), (MODPROBE, "-r", *present), _distinct(holders), tuple(dependents), tuple(consoles))


def plan_load(modules: Sequence[str], host: HostFiles = HOST) -> ModulePlan:
    """What loading these modules would mean; loaded ones are left alone."""
    missing = [name for name in reversed(modules) if name not in loaded(modules, host)]
    return ModulePlan("load", tuple(missing), (MODPROBE, *missing[:1]) if len(missing) == 1 else (MODPROBE, "-a", *missing) if missing else ())


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(command), capture_output=True, text=True, timeout=MODPROBE_WITHIN, check=False)


def carry_out(plan: ModulePlan, *, take_console: bool = False, host: HostFiles = HOST, run: Runner = _run, uid: Callable[[], int] = os.geteuid) -> None:
    """Do what a plan says. take_console: consent to lose the machine's console on the way.

    Raises ModuleInUse and Refused (nothing was done), PermissionMissing naming the command for root, NotSupported, ModuleFailed.
    """
    if not plan.command:
        return
    if plan.in_use:
        who = [f"{hold.holder} ({hold.path})" for hold in plan.holders] + list(plan.dependents)
        raise ModuleInUse(f"unloading {', '.join(plan.modules)}", read="; ".join(who))
    if plan.consoles and not take_console:
        raise Refused(
            f"unloading {', '.join(plan.modules)}",
            read=f"{', '.join(plan.consoles)} shows the machine's console",
            means="the screen goes dark, and stays so until the module is loaded again",
            remedy="add --yes when that is wanted",
        )
    what = f"{plan.action}ing {', '.join(plan.modules)}"
    if uid() != 0:
        raise PermissionMissing(what, read=f"uid {uid()}", means="only root may change the kernel's modules", remedy=f"as root: {plan.line}")
    if shutil.which(plan.command[0]) is None:
        raise NotSupported(what, read=f"no program {plan.command[0]}", means="it comes with the package kmod", remedy=f"install kmod, then as root: {plan.line}")
    log.info("%s", plan.line)
    try:
        done = run(plan.command)
    except subprocess.TimeoutExpired as error:
        raise ModuleFailed(f"`{plan.line}` did not end within {error.timeout:g} s", means="the driver hangs, usually because a device does") from error
    if done.returncode:
        raise ModuleFailed(f"`{plan.line}` failed", read=(done.stderr or done.stdout).strip() or f"exit status {done.returncode}")
    present = loaded(plan.modules, host)
    wrong = present if plan.action == "unload" else [name for name in plan.modules if name not in present]
    if wrong:
        state = "is still there" if plan.action == "unload" else "is not there"
        raise ModuleFailed(f"`{plan.line}` succeeded, but {', '.join(wrong)} {state}", read=f"{host.sys / 'module'}")


def _home(name: str, host: HostFiles) -> Path:
    return host.sys / "module" / name


def _distinct(holds: Sequence[Hold]) -> tuple[Hold, ...]:
    return tuple(dict.fromkeys(holds))
