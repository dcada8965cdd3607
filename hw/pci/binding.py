"""Which kernel driver owns a PCI function, who uses the device through it, and changing that. Nothing here happens without consent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hw.clock import HOST_CLOCK, Clock
from hw.errors import DriverBound, DriverInUse, PermissionMissing, WaitTimeout
from hw.host import HOST, HostFiles
from hw.lock import Holder, describe_process
from hw.pci.functions import function_directory
from hw.poll import poll

log = logging.getLogger(__name__)

UNBIND_SECONDS = 30.0
"""A kernel driver's removal may take seconds; one that takes longer hangs."""
RELEASE_SECONDS = 5.0

DRIVER_NODES = {"amdgpu": ("kfd",), "nvidia": ("nvidia*",)}
"""Device nodes, below /dev, that a driver offers for all its devices together."""


def driver_of(address: str, host: HostFiles = HOST) -> str:
    """Name of the kernel driver that owns a function, "" for none. Raises NothingFound."""
    return host.link_name(function_directory(address, host) / "driver")


def users_of(address: str, host: HostFiles = HOST) -> list[Holder]:
    """Processes that have a device node of this function open, as far as this user may see."""
    directory = function_directory(address, host)
    nodes = {f"/dev/dri/{path.name}" for path in directory.glob("drm/*")}
    for pattern in DRIVER_NODES.get(driver_of(address, host), ()):
        nodes |= {f"/dev/{path.name}" for path in host.dev.glob(pattern)}
    return holders_of(nodes, host)


def holders_of(nodes: Collection[str], host: HostFiles = HOST) -> list[Holder]:
    """Processes that have one of these device nodes ("/dev/...") open, as far as this user may see."""
    holders = []
    for process in sorted(host.proc.glob("[0-9]*"), key=lambda path: int(path.name)) if nodes else ():
        if any(target in nodes for target in _open_files(process)):
            holders.append(describe_process(int(process.name), host.proc) or Holder(int(process.name)))
    return holders


def _open_files(process: Path) -> list[str]:
    """What a process has open, [] where this user may not see it. A file that is closed meanwhile does not hide the others."""
    targets = []
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                targets.append(os.readlink(descriptor))
    return targets


def unbind(address: str, host: HostFiles = HOST, *, clock: Clock = HOST_CLOCK) -> str:
    """Take a function away from its kernel driver. Returns the driver's name, "" when there was none.

    Raises DriverInUse (nothing changed) when processes use it, DriverBound when the driver stays, WaitTimeout when it hangs.
    """
    directory = function_directory(address, host)
    driver = driver_of(address, host)
    if not driver:
        return ""
    users = users_of(address, host)
    if users:
        raise DriverInUse(f"{address} is used through {driver} by {', '.join(map(str, users))}")
    log.info("unbinding %s from %s", address, driver)
    try:
        write_within(directory / "driver" / "unbind", address, UNBIND_SECONDS, f"unbinding {address} from {driver}", host)
    except PermissionError as error:
        raise PermissionMissing(f"unbinding {address} from {driver}", read=os.strerror(error.errno or 0)) from error
    except OSError as error:
        raise DriverBound(f"{address} could not be unbound from {driver}", read=os.strerror(error.errno or 0)) from error
    try:
        poll(lambda: driver_of(address, host), lambda name: not name, what=f"release of {address} by {driver}", within=RELEASE_SECONDS, clock=clock)
    except WaitTimeout as error:
        raise DriverBound(
            f"{address} is still bound to {driver} after unbinding", read=error.read, means="the driver refused to let go, or another one took the device at once"
        ) from error
    return driver


def override_driver(address: str, driver: str | None, host: HostFiles = HOST) -> None:
    """Let only this kernel driver (None: any) take the function, and have the kernel look for one now. Raises PermissionMissing, DriverBound."""
    directory = function_directory(address, host)
    try:
        host.write(directory / "driver_override", driver or "\n")
        host.write(host.sys / "bus" / "pci" / "drivers_probe", address)
    except PermissionError as error:
        raise PermissionMissing(f"choosing the driver of {address}", read=os.strerror(error.errno or 0)) from error
    except OSError as error:
        raise DriverBound(
            f"{address} was not taken by {driver or 'any driver'}",
            read=os.strerror(error.errno or 0),
            means="the driver's module is not loaded, or it refused the device",
            remedy=f"modprobe {driver}" if driver else "look at the kernel log",
        ) from error


def write_within(path: Path, text: str, seconds: float, what: str, host: HostFiles = HOST) -> None:
    """Write an attribute whose effect may block, giving up after `seconds`. Raises OSError as the write did, WaitTimeout when it hangs.

    A write that hangs in the kernel cannot be taken back; its thread stays behind.
    """
    failure: list[OSError] = []

    def write() -> None:
        try:
            host.write(path, text)
        except OSError as error:
            failure.append(error)

    thread = threading.Thread(target=write, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise WaitTimeout(
            f"{what} did not end within {seconds:g} s",
            read=f"the write to {path} is still blocked",
            means="the kernel driver hangs, usually because the device or a program using it does",
            remedy="look at the kernel log; a reboot may be needed",
            waited=seconds,
        )
    if failure:
        raise failure[0]
