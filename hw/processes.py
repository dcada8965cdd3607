"""Processes that use devices: who holds a lock file or has a device node open, and ending them.

Who holds a lock is asked of the kernel: /proc/locks names the process that took it, also another user's; /proc/PID/fdinfo shows which
open files carry it, which finds a child that inherited it from a process that is gone. That a process has a lock file open says nothing.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hw.clock import HOST_CLOCK, Clock
from hw.errors import NotSupported, WaitTimeout
from hw.host import HOST, HostFiles
from hw.lock import Holder, describe_process
from hw.pci.binding import DRIVER_NODES
from hw.poll import poll

log = logging.getLogger(__name__)

GRACE = 5.0
"""s between asking a process to end and ending it"""
KILL_WITHIN = 5.0
"""s for a killed process to be gone; one that waits inside the kernel for a device may stay longer"""
LOOK_EVERY = 0.1
"""s between two looks at processes that were asked to end"""
LOOKS_TO_BE_SURE = 3
"""an ending process gives up its files a moment before it counts as ended; one that lives on stays without them"""
ROUNDS = 8
"""how often to look for further holders: children that inherited a lock show up when their parent is gone"""
INIT = 1
UNSEEN = 0
"""pid of a holder that this process cannot see: another container's, or hidden from this user"""


@dataclass(frozen=True)
class Hold:
    """One way in which a process holds a device."""

    holder: Holder
    kind: str
    """"lock": our lock file; "node": a device node of the vendor's kernel driver"""
    path: str
    user: int | None = None
    """uid of the process, None when it cannot be seen"""

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.holder.pid, "command": self.holder.command, "started": self.holder.started, "uid": self.user, "kind": self.kind, "path": self.path}


OpenFiles = Mapping[int, "list[tuple[str, str]] | None"]
"""pid -> (descriptor, what it leads to) of its open files; None where this user may not see them"""


def open_files(host: HostFiles = HOST) -> OpenFiles:
    """What every process has open, as far as this user may see; for several questions about the same moment."""
    return {int(process.name): _descriptors(process) for process in host.proc.glob("[0-9]*")}


def lock_holds(path: Path, host: HostFiles = HOST, opened: OpenFiles | None = None) -> list[Hold]:
    """Every process that holds the lock on this file, by pid; pid 0 stands for one that cannot be seen. Takes no lock."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return []
    if not stat.S_ISREG(status.st_mode):
        return []
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    files = open_files(host) if opened is None else opened
    names = {str(path), os.path.realpath(path)}

    def carries(pid: int) -> bool:
        return any(target in names and _carries(host.proc / str(pid), descriptor, name) for descriptor, target in files.get(pid) or ())

    pids = {pid for pid in files if carries(pid)}
    lockers = set(_lockers(name, host))
    # The list names who took the lock, who may be gone: somebody else with that pid does not carry it.
    pids |= {pid for pid in lockers if pid <= 0 or (pid in files and files[pid] is None)}
    if lockers and not pids:
        pids = {UNSEEN}
    return [Hold(_describe(pid, host), "lock", str(path), _user(pid, host)) for pid in sorted(pids)]


def node_holds(nodes: Iterable[str], host: HostFiles = HOST, opened: OpenFiles | None = None) -> list[Hold]:
    """Processes that have one of these device nodes ("/dev/kfd") open, as far as this user may see."""
    wanted = set(nodes)
    if not wanted:
        return []
    found = []
    for pid, files in sorted((open_files(host) if opened is None else opened).items(), key=lambda item: item[0]):
        nodes_open = {target for _, target in files or () if target in wanted}
        found += [Hold(_describe(pid, host), "node", node, _user(pid, host)) for node in sorted(nodes_open)]
    return found


def nodes_of(address: str, driver: str, host: HostFiles = HOST, *, shared: bool = True) -> list[str]:
    """Device nodes through which programs reach a PCI function by way of its kernel driver; shared: also those that all its devices have in common."""
    nodes = [f"/dev/dri/{path.name}" for path in sorted((host.pci / address).glob("drm/*"))]
    for pattern in DRIVER_NODES.get(driver, ()) if shared else ():
        nodes += [f"/dev/{path.name}" for path in sorted(host.dev.glob(pattern))]
    return nodes


def _lockers(name: str, host: HostFiles) -> Iterator[int]:
    """Who took the lock, by the kernel's list: "1: FLOCK  ADVISORY  WRITE 4711 fe:00:2146531 0 EOF"; waiters have "->" as second word."""
    for line in (host.text(host.proc / "locks") or "").splitlines():
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == name:
            yield max(int(words[4]), 0)


def _carries(process: Path, descriptor: str, name: str) -> bool:
    """Does this open file of a process carry a lock on that file?"""
    try:
        text = (process / "fdinfo" / descriptor).read_text()
    except OSError:
        return False
    return re.search(rf"^lock:.*\bFLOCK\b.* {re.escape(name)} ", text, re.MULTILINE) is not None


def _descriptors(process: Path) -> list[tuple[str, str]] | None:
    """(number, what it leads to) of a process's open files; None when it is another user's."""
    found = []
    try:
        entries = list((process / "fd").iterdir())
    except PermissionError:
        return None
    except OSError:
        return []  # gone meanwhile
    for entry in entries:
        try:
            found.append((entry.name, os.readlink(entry)))
        except OSError:
            continue  # closed meanwhile
    return found


def _describe(pid: int, host: HostFiles) -> Holder:
    return (describe_process(pid, host.proc) if pid else None) or Holder(pid)


def _user(pid: int, host: HostFiles) -> int | None:
    """Effective uid, from the owner of the process's folder."""
    try:
        return (host.proc / str(pid)).stat().st_uid if pid else None
    except OSError:
        return None


# --- ending -----------------------------------------------------------------------------------------------------------

OUTCOMES: Mapping[str, str] = {
    "terminated": "ended by itself when asked to (SIGTERM)",
    "killed": "did not end when asked, was ended (SIGKILL)",
    "let go": "no longer holds a device; it was left alone",
    "protected": "is this process, one that started it, the system's first, or cannot be seen from here",
    "not permitted": "belongs to another user",
    "stays": "does not end: it waits inside the kernel, usually for a device",
}


@dataclass(frozen=True)
class Ended:
    """What became of one holder: one of OUTCOMES."""

    holder: Holder
    outcome: str

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.holder.pid, "command": self.holder.command, "outcome": self.outcome}


def end_holders(find: Callable[[], list[Holder]], *, grace: float = GRACE, host: HostFiles = HOST, clock: Clock = HOST_CLOCK) -> list[Ended]:
    """End the processes that find() names: ask, wait up to `grace` seconds, end those that stay.

    find() is asked again before every signal, and the signal goes through a descriptor of the process: neither one that let go meanwhile
    nor one that got the pid of a holder is touched. Never this process, its ancestors, or pid 1. Raises NotSupported without pidfds.
    """
    if not hasattr(os, "pidfd_open"):
        raise NotSupported("ending processes on this system", means="it has no process descriptors, without which a signal may reach the wrong process")
    protected = {UNSEEN, INIT, *_ancestry(os.getpid(), host)}
    results: dict[Identity, Ended] = {}
    for _ in range(ROUNDS):
        waiting = {_identity(holder): holder for holder in find() if _identity(holder) not in results}.values()
        if not waiting:
            break
        for holder in waiting:
            if holder.pid in protected:
                results[_identity(holder)] = Ended(holder, "protected")
        targets = [_Target(holder, host) for holder in waiting if holder.pid not in protected]
        try:
            _end(targets, find, grace, host, clock)
        finally:
            for target in targets:
                target.close()
        results |= {_identity(target.holder): Ended(target.holder, target.outcome) for target in targets}
    return list(results.values())


Identity = tuple[int, int]
"""pid and start time: a process, whatever becomes of its pid"""


def _identity(holder: Holder) -> Identity:
    return holder.pid, holder.started


def _identities(find: Callable[[], list[Holder]]) -> set[Identity]:
    return {_identity(holder) for holder in find()}


class _Target:
    """A process to be ended, held by a descriptor, which cannot come to mean another process."""

    def __init__(self, holder: Holder, host: HostFiles) -> None:
        self.holder = holder
        self.outcome = ""
        self.missed = 0
        """looks in a row at which it was running and held nothing"""
        try:
            self.descriptor = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            self.descriptor = -1
            self.outcome = "let go"
            return
        now = describe_process(holder.pid, host.proc)
        if now is not None and holder.started and now.started != holder.started:
            self.outcome = "let go"  # the holder is gone and another process has its pid

    @property
    def running(self) -> bool:
        import select

        watcher = select.poll()
        watcher.register(self.descriptor, select.POLLIN)
        return not watcher.poll(0)

    def signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self.descriptor, number)
            log.info("%s sent to %s", number.name, self.holder)
        except ProcessLookupError:
            pass  # it ended in this moment; that is what is wanted
        except PermissionError:
            self.outcome = "not permitted"

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _end(targets: list[_Target], find: Callable[[], list[Holder]], grace: float, host: HostFiles, clock: Clock) -> None:
    _signal_holders(targets, find, signal.SIGTERM)
    _wait(targets, find, grace, "terminated", clock)
    left = [target for target in targets if not target.outcome]
    _signal_holders(left, find, signal.SIGKILL)
    _wait(left, find, KILL_WITHIN, "killed", clock)
    for target in targets:
        target.outcome = target.outcome or "stays"


def _signal_holders(targets: list[_Target], find: Callable[[], list[Holder]], number: signal.Signals) -> None:
    """Send a signal to those that hold a device now; a process that got the pid of one is another process."""
    holding = _identities(find)
    for target in targets:
        if target.outcome:
            continue
        if _identity(target.holder) not in holding:
            target.outcome = "let go"
        else:
            target.signal(number)


def _wait(targets: list[_Target], find: Callable[[], list[Holder]], within: float, outcome: str, clock: Clock) -> None:
    """Until all have ended or let go, at most `within` seconds."""

    def look() -> int:
        undecided = [target for target in targets if not target.outcome]
        for target in undecided:
            if not target.running:
                target.outcome = outcome
        still = [target for target in undecided if not target.outcome]
        holding = _identities(find) if still else set()
        for target in still:
            target.missed = 0 if _identity(target.holder) in holding else target.missed + 1
            if target.missed >= LOOKS_TO_BE_SURE:
                target.outcome = "let go"
        return sum(1 for target in targets if not target.outcome)

    try:
        poll(look, lambda count: count == 0, what="end of the processes", within=within, typical=LOOK_EVERY, clock=clock)
    except WaitTimeout as error:
        log.info("%d processes are still there after %.1f s", error.last, error.waited)


def _ancestry(pid: int, host: HostFiles) -> list[int]:
    """A process and those that started it, up to the first."""
    line = []
    while pid > 0 and pid not in line:
        line.append(pid)
        text = host.text(host.proc / str(pid) / "stat") or ""
        fields = text.rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return line
