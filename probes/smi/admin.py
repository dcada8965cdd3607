"""What `tghw smi` does to processes, kernel modules and devices."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from bridges.open import ON_THE_BUS, Found, Selection, firmware_of, profile_of
from drivers.amd.chips import VENDOR_AMD
from drivers.amd.device import AmdDevice
from hw import lock, modules
from hw.errors import (
    EXIT_DONE,
    DeviceBusy,
    DriverBound,
    ModuleLoaded,
    NotSupported,
    PermissionMissing,
    Refused,
    TghwError,
    UsageError,
)
from hw.host import HostFiles
from hw.lock import Holder
from hw.processes import OUTCOMES, Ended, Hold, OpenFiles, end_holders, lock_holds, node_holds, nodes_of, open_files
from probes import render
from probes.context import current

log = logging.getLogger(__name__)

USB_LOCKS = "usb:"
"""locks of GPUs behind a USB bridge begin with this; the bridge need not be attached any more"""
HIVE_DEVICES = {0x74A1: "MI300X", 0x75A0: "MI350X"}
"""GPUs that can be linked to hives"""


@dataclass
class Held:
    """One device and who holds it."""

    address: str
    holds: list[Hold]

    def to_dict(self) -> dict[str, Any]:
        return {"address": self.address, "holders": [hold.to_dict() for hold in self.holds]}


def holds_of(found: Found, host: HostFiles, opened: OpenFiles, *, shared_nodes: bool = True) -> list[Hold]:
    """Who holds a device: by our lock, or by the vendor's device nodes."""
    holds = lock_holds(lock.lock_path(found.lock_name, found.lock_directory), host, opened) if found.lock_name else []
    if found.transport in ON_THE_BUS:
        holds += node_holds(nodes_of(found.address, found.details.get("driver") or "", host, shared=shared_nodes), host, opened)
    return holds


def held_devices(gpus: Sequence[Found], host: HostFiles, *, everything: bool) -> list[Held]:
    """Every selected device with its holders. everything: no device was singled out, so bridges that went away count, and shared device nodes."""
    opened = open_files(host)
    devices = [Held(each.address, holds_of(each, host, opened, shared_nodes=everything)) for each in gpus]
    if everything and all(each.lock_directory is None for each in gpus):
        known = {each.lock_name for each in gpus}
        devices += [
            Held(state.address, lock_holds(state.path, host, opened))
            for state in lock.holders(proc=host.proc)
            if state.address.startswith(USB_LOCKS) and state.address not in known and state.holder is not None
        ]
    return devices


# --- processes --------------------------------------------------------------------------------------------------------


def show_pids(devices: Sequence[Held]) -> None:
    """`--pids`."""
    if current().json:
        render.document({"devices": [each.to_dict() for each in devices]})
        return
    rows = [(each.address, str(hold.holder.pid or "?"), _holds_what(hold), _user(hold), hold.holder.command or "another container") for each in devices for hold in each.holds]
    if rows:
        render.table(["device", "pid", "holds", "uid", "command"], rows)
    else:
        render.say("no process holds a device")


def kill_pids(gpus: Sequence[Found], host: HostFiles, *, everything: bool, sudoless: bool, consent: bool) -> int:
    """`--kill-pids`: end the holders of locks; those of device nodes only with consent (--yes): a desktop is one of them."""
    before = held_devices(gpus, host, everything=everything)
    show = [hold for each in before for hold in each.holds]
    _show_holds(before)
    locks = [hold for hold in show if hold.kind == "lock"]
    wanted = show if consent else locks
    if wanted and not consent and sys.stdin.isatty() and not current().json:
        typer.confirm(f"end {len({hold.holder.pid for hold in wanted})} processes?", abort=True)

    def find() -> list[Holder]:
        held = held_devices(gpus, host, everything=everything)
        return [hold.holder for each in held for hold in each.holds if consent or hold.kind == "lock"]

    ended = end_holders(find, host=host) if wanted else []
    freed = [each for each in gpus if any(hold.kind == "lock" for held in before if held.address == each.address for hold in held.holds)]
    remarks = [remark for each in freed if (remark := _quieten(each)) is not None]
    left = [hold for each in held_devices(gpus, host, everything=everything) for hold in each.holds]
    if current().json:
        render.document({"ended": [each.to_dict() for each in ended], "left": [hold.to_dict() for hold in left], "remarks": remarks})
    for each in ended:
        render.say(f"{each.holder}: {each.outcome}, {OUTCOMES[each.outcome]}")
    for remark in remarks:
        render.note(remark)
    if not show:
        render.say("no process holds a device")
    _complain(ended, left, sudoless=sudoless, consent=consent)
    return EXIT_DONE


def _quieten(found: Found) -> str | None:
    """Stop a device whose user was ended from writing to memory that belongs to others now. A remark when that did not work, else None."""
    if found.transport == "mock":
        return None
    try:
        with found.opener() as device:
            device.set_bus_master(False)
    except TghwError as problem:
        return f"{found.address} may still be at work: {problem.what}; the next boot resets it"
    return None


def _complain(ended: Sequence[Ended], left: Sequence[Hold], *, sudoless: bool, consent: bool) -> None:
    """Raise for what is left, the most important first."""
    foreign = [each.holder for each in ended if each.outcome == "not permitted"]
    if foreign and not sudoless:
        pids = " ".join(str(holder.pid) for holder in foreign)
        raise PermissionMissing(f"ending {', '.join(map(str, foreign))}", means="these belong to another user", remedy=f"as root: kill {pids}")
    stuck = [each for each in ended if each.outcome in ("stays", "protected")]
    if stuck:
        raise DeviceBusy(
            f"{', '.join(str(each.holder) for each in stuck)} still holds a device",
            read="; ".join(f"{each.holder.pid}: {OUTCOMES[each.outcome]}" for each in stuck),
            holder=str(stuck[0].holder),
        )
    nodes = [hold for hold in left if hold.kind == "node"]
    if nodes and not consent:
        raise Refused(
            f"{len({hold.holder.pid for hold in nodes})} processes use GPUs through the vendor's driver and were left alone",
            read=", ".join(dict.fromkeys(f"{hold.holder} ({hold.path})" for hold in nodes)),
            means="they hold none of our locks; one of them may be the desktop",
            remedy="add --yes to end these too",
        )


def _show_holds(devices: Sequence[Held]) -> None:
    for each in devices:
        for hold in each.holds:
            render.say(f"{each.address}  {hold.holder} holds {_holds_what(hold)}")


def _holds_what(hold: Hold) -> str:
    return "our lock" if hold.kind == "lock" else hold.path


def _user(hold: Hold) -> str:
    return "?" if hold.user is None else str(hold.user)


# --- kernel modules ---------------------------------------------------------------------------------------------------


def module(family: str, action: str, selection: Selection, host: HostFiles, *, consent: bool) -> int:
    """`--module unload|load|expect-unloaded`."""
    if profile_of(selection) is not None:
        raise NotSupported("kernel modules of a simulated machine", means="no kernel runs on it", remedy="leave out --mock")
    names = modules.MODULES[family]
    if action == "expect-unloaded":
        present = modules.loaded(names, host)
        if current().json and not present:
            render.document({"action": action, "loaded": present})
        if present:
            raise ModuleLoaded(f"loaded: {', '.join(present)}", read=str(host.sys / "module"))
        render.say(f"none of {', '.join(names)} is loaded")
        return EXIT_DONE
    if action not in ("unload", "load"):
        raise UsageError(f"unknown module action {action}", remedy="one of unload, load, expect-unloaded")
    plan = modules.plan_unload(names, host) if action == "unload" else modules.plan_load(names, host)
    if not current().json:
        render.note(f"would run: {plan.line}" if plan.command else f"nothing to {action}")
    modules.carry_out(plan, take_console=consent, host=host)
    if current().json:
        render.document({"action": action, "plan": plan.to_dict(), "done": bool(plan.command)})
    elif plan.command:
        render.say(f"{', '.join(plan.modules)}: {action}ed")
    else:
        render.say(f"{', '.join(names)}: {'not loaded' if action == 'unload' else 'loaded already'}")
    return EXIT_DONE


# --- resets -----------------------------------------------------------------------------------------------------------


def reset(gpus: Sequence[Found], selection: Selection, *, consent: bool) -> int:
    """`--reset`: by the best means each card has; looks afterwards whether it came back."""
    if len(gpus) > 1 and not consent:
        raise Refused(
            f"resetting {len(gpus)} GPUs",
            read=", ".join(each.address for each in gpus),
            means="no device was named, so all of them were meant",
            remedy="name one with --dev ADDRESS, or add --yes for all",
        )
    done: list[dict[str, Any]] = []
    problems: list[TghwError] = []
    for each in gpus:
        item: dict[str, Any] = {"address": each.address, "before": None, "after": None, "method": None, "seconds": None, "problem": None}
        try:
            _reset_one(each, selection, item)
        except TghwError as problem:
            item["problem"] = problem.to_dict()
            problems.append(problem)
        done.append(item)
        if item["problem"] is None:
            render.say(f"{each.address}: reset by {item['method']} in {render.duration(item['seconds'])}, {item['before']} -> {item['after']}", style="bold green")
    if problems:
        for further in problems[1:]:
            log.error("%s", further)
        raise problems[0]
    if current().json:
        render.document({"resets": done})
    return EXIT_DONE


def _reset_one(found: Found, selection: Selection, item: dict[str, Any]) -> None:
    with found.opener() as pci:
        device = AmdDevice(pci, firmware_of(selection))
        item["before"] = device.state()
        start = device.clock.now()
        item["method"] = device.reset()
        item["seconds"] = device.clock.now() - start
        item["after"] = device.state()


def hive(everything: Sequence[Found]) -> int:
    """`--hive`: reset of GPUs that are linked with each other, which must happen to all at once."""
    members = [each for each in everything if each.id is not None and each.id.vendor == VENDOR_AMD and each.id.device in HIVE_DEVICES]
    kinds = " and ".join(HIVE_DEVICES.values())
    if not members:
        raise NotSupported(
            "reset of a hive",
            read=f"{len(everything)} PCI functions, none of them {kinds}",
            means=f"only {kinds} are linked to hives; every other GPU is reset alone",
            remedy="tghw smi amd --reset",
        )
    bound = [each for each in members if each.details.get("driver")]
    if bound:
        raise DriverBound(
            f"reset of a hive of {len(members)}",
            read=", ".join(f"{each.address}: {each.details['driver']}" for each in bound),
            means="all members of a hive are reset together, and a kernel driver owns some of them",
        )
    raise NotSupported(
        f"reset of a hive of {len(members)}",
        read=", ".join(each.address for each in members),
        means="bring-up of these GPUs (gfx9.4) is not built yet, and without it their power controllers cannot be told to reset",
        remedy="power-cycle the machine",
    )
