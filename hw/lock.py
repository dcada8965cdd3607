"""One lock per device address, whatever transport or driver uses it, so that two processes never drive one device.

The lock is an exclusive flock() on a small file, held as long as the descriptor is open: when the process ends, however it ends,
the kernel gives it up. The file stays; that it exists says nothing. Its text (pid and start time) is for people and never trusted.
A process with another lock directory is not excluded: containers with a private temp directory need a shared one.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hw.errors import DeviceBusy, LockUnavailable, NotSupported, PermissionMissing, Refused, WaitTimeout
from hw.poll import poll

log = logging.getLogger(__name__)

DIRECTORY_VARIABLE = "TGHW_LOCK_DIR"
PREFIX = "tghw_"
GUARD_PREFIX = "tghwguard_"
GUARD_WITHIN = 5.0
"""s to wait for another process that talks to the device; a message takes milliseconds"""
SUFFIX = ".lock"
PROC = Path("/proc")


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. pid 0: one that this process cannot see (another container)."""

    pid: int
    command: str = ""
    """its command line; "" when it cannot be read"""
    started: int = 0
    """clock ticks after boot (field 22 of /proc/PID/stat); tells a reused pid from the holder; 0 when unknown"""

    def __str__(self) -> str:
        if not self.pid:
            return "a process of another container"
        return f"process {self.pid}" + (f" ({self.command})" if self.command else "")


@dataclass(frozen=True)
class LockState:
    """One lock file: which device, and who holds it now (None: nobody)."""

    address: str
    path: Path
    holder: Holder | None


def lock_directory(directory: Path | None = None) -> Path:
    """The argument, else TGHW_LOCK_DIR, else the system's temp directory."""
    if directory is not None:
        return directory
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    import tempfile

    return Path(tempfile.gettempdir())


def lock_path(address: str, directory: Path | None = None) -> Path:
    """Where the lock of this device address is. Distinct addresses have distinct files."""
    safe = "".join(_escape(character) for character in address.lower())
    return lock_directory(directory) / f"{PREFIX}{safe}{SUFFIX}"


def _escape(character: str) -> str:
    """':' becomes '_'; anything that is not a plain filename character its hexadecimal code."""
    if character == ":":
        return "_"
    if re.fullmatch(r"[a-z0-9.-]", character):
        return character
    return "".join(f"%{byte:02x}" for byte in character.encode())


def _address_of(path: Path) -> str:
    safe = path.name.removeprefix(PREFIX).removesuffix(SUFFIX).replace("_", ":")
    return re.sub(r"(?:%[0-9a-f]{2})+", lambda match: bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace"), safe)


class DeviceLock:
    """A held lock; made by acquire()."""

    def __init__(self, address: str, path: Path, descriptor: int) -> None:
        self.address = address
        self.path = path
        self._descriptor = descriptor
        self._owner = os.getpid()

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def release(self) -> None:
        """Give the lock up. Releasing twice is allowed. A forked child only closes its copy; the parent keeps the lock."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        if self._owner == os.getpid():
            import fcntl

            _write_note(descriptor, "")
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def acquire(address: str, directory: Path | None = None, *, proc: Path = PROC) -> DeviceLock:
    """Take the lock of a device without waiting. Raises DeviceBusy naming the holder, LockUnavailable, PermissionMissing, Refused."""
    try:
        import fcntl
    except ImportError as error:
        raise NotSupported(
            f"locking {address} on this system", means="device locks need flock(), which this system does not have", remedy="use a simulated or a remote device here"
        ) from error
    path = lock_path(address, directory)
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.fstat(descriptor), proc) or _opener(os.fstat(descriptor), proc)
            os.close(descriptor)
            who = str(holder) if holder else "a process that cannot be seen from here"
            raise DeviceBusy(f"{address} is held by {who}", read=f"lock file {path}", holder=who) from None
        except OSError as error:
            os.close(descriptor)
            raise LockUnavailable(f"locking {path}", read=os.strerror(error.errno or 0), means="the file system of the lock directory has no working flock()") from error
        if _same_file(descriptor, path):
            break
        os.close(descriptor)  # someone deleted the file between opening and locking it
    _write_note(descriptor, f"pid {os.getpid()} start {_start_time(os.getpid(), proc)}\n")
    log.debug("locked %s by %s", address, path)
    return DeviceLock(address, path, descriptor)


class Guard:
    """A lock for moments, between processes that use one device side by side: its owner, and a monitor that only asks questions.

    Held while accesses belong together (a message to a firmware and its answer, an index register and its data register). May be
    entered again by its holder. Entering waits for the other process, up to `within` seconds, then raises DeviceBusy naming it.
    """

    def __init__(self, address: str, name: str, directory: Path | None = None, *, within: float = GUARD_WITHIN, proc: Path = PROC) -> None:
        self.path = lock_directory(directory) / f"{GUARD_PREFIX}{lock_path(address).name.removeprefix(PREFIX).removesuffix(SUFFIX)}.{name}{SUFFIX}"
        self._what = f"{name} of {address}"
        self._within = within
        self._proc = proc
        self._inside = threading.RLock()
        self._depth = 0
        self._descriptor = -1
        self._owner = 0

    def __enter__(self) -> Guard:
        self._inside.acquire()
        try:
            if self._depth == 0:
                self._take()
            self._depth += 1
        except BaseException:
            self._inside.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._inside.release()

    def close(self) -> None:
        """Close the lock file; the guard may be entered again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self) -> None:
        if self._owner != os.getpid():  # after a fork the parent's descriptor would share the parent's lock
            self.close()
            self._owner = os.getpid()
        while True:
            if self._descriptor < 0:
                self._descriptor = _open(self.path)
            try:
                poll(self._try, bool, what=f"turn to use the {self._what}", within=self._within)
            except WaitTimeout as error:
                holder = _holder(os.fstat(self._descriptor), self._proc)
                raise DeviceBusy(
                    f"the {self._what} is in use by {holder or 'a process that cannot be seen from here'}",
                    read=f"lock file {self.path} held for {error.waited:.1f} s",
                    means="another process talks to the device and does not finish: it is stopped, or the device does not answer it",
                    remedy="look at the process named above; `tghw smi amd --pids` lists all that use devices",
                    holder=str(holder or ""),
                ) from error
            if _same_file(self._descriptor, self.path):
                return
            self.close()  # somebody deleted the file: a lock on it excludes nobody

    def _try(self) -> bool:
        import fcntl

        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Guards:
    """The guards of one device, by name, made on first use."""

    def __init__(self, address: str, directory: Path | None = None, *, proc: Path = PROC) -> None:
        self._address = address
        self._directory = directory
        self._proc = proc
        self._made: dict[str, Guard] = {}

    def __getitem__(self, name: str) -> Guard:
        if name not in self._made:
            self._made[name] = Guard(self._address, name, self._directory, proc=self._proc)
        return self._made[name]

    def close(self) -> None:
        for guard in self._made.values():
            guard.close()


def holders(directory: Path | None = None, *, proc: Path = PROC) -> list[LockState]:
    """Every device that was ever locked in this directory, by address, with its present holder. Takes no lock."""
    states = []
    for path in sorted(lock_directory(directory).glob(f"{PREFIX}*{SUFFIX}")):
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            states.append(LockState(_address_of(path), path, _holder(status, proc)))
    return states


def _open(path: Path) -> int:
    """A close-on-exec descriptor of the lock file, made when absent. Never follows a link, never truncates, leaves the umask alone."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            # Without O_CREAT first: sticky directories refuse O_CREAT on another user's file.
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # what the umask took away: other users must be able to lock it too
            except FileExistsError:
                descriptor = os.open(path, flags)
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)  # enough to lock, not to leave a note
    except PermissionError as error:
        raise PermissionMissing(
            f"opening the lock file {path}",
            read=os.strerror(error.errno or 0),
            remedy=f"remove the file, or set {DIRECTORY_VARIABLE} to a directory that every user of the device shares",
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused(
                f"the lock file {path} is a symbolic link",
                means="someone else put it there; writing through it would change the file it points to",
                remedy="look at it and remove it",
            ) from error
        raise LockUnavailable(f"opening the lock file {path}", read=os.strerror(error.errno or 0)) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        kind = "has a second name" if stat.S_ISREG(status.st_mode) else "is not a plain file"
        raise Refused(f"the lock file {path} {kind}", means="someone else put it there; writing to it would change something else", remedy="look at it and remove it")
    return descriptor


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _write_note(descriptor: int, text: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError as error:
        log.debug("no note in the lock file: %s", error)


def _holder(status: os.stat_result, proc: Path) -> Holder | None:
    """Who has a lock on this file: by the kernel's list of locks, else by looking for a process that has the file open."""
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return _opener(status, proc)
    for line in lines:
        words = line.split()
        # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:2146531 0 EOF"; lines of waiters have "->" as second word
        if len(words) >= 6 and words[1] == "FLOCK" and words[5] == wanted:
            pid = int(words[4])
            if pid <= 0:
                return Holder(0)
            # The process that took the lock may be gone while a child of it still has the descriptor.
            return describe_process(pid, proc) or _opener(status, proc) or Holder(pid)
    return None


def _opener(status: os.stat_result, proc: Path) -> Holder | None:
    for entry in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        if int(entry.name) == os.getpid():
            continue
        try:
            descriptors = list((entry / "fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                opened = descriptor.stat()
            except OSError:
                continue
            if (opened.st_dev, opened.st_ino) == (status.st_dev, status.st_ino):
                return describe_process(int(entry.name), proc)
    return None


def describe_process(pid: int, proc: Path = PROC) -> Holder | None:
    """A running process by its pid; None when there is none."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        raw = b""
    command = raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    if not command:
        try:
            command = (proc / str(pid) / "comm").read_text().strip()
        except OSError:
            command = ""
    return Holder(pid, command, _start_time(pid, proc))


def _start_time(pid: int, proc: Path) -> int:
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return 0
    # The second field is the name in parentheses and may hold spaces; the start time is field 22, the 20th after it.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0
