"""Holders of devices, found and ended: real processes, real locks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hw import lock
from hw.lock import Holder, describe_process
from hw.processes import Ended, end_holders, lock_holds, node_holds, nodes_of
from tests.hw.fake_sysfs import FakeHost

ROOT = Path(lock.__file__).parents[1]
FIRST, SECOND = "0000:03:00.0", "0000:07:00.0"

HOLD = """
import os, signal, sys, time
from pathlib import Path
from hw import lock
address, folder, manner = sys.argv[1:]
if manner == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if manner == "opener":
    held = open(lock.lock_path(address, Path(folder)), "a")
elif manner == "nothing":
    pass
else:
    held = lock.acquire(address, Path(folder))
if manner == "lets go":
    signal.signal(signal.SIGTERM, lambda *_: held.release())
if manner == "leaves a child":
    child = os.fork()
    if child == 0:
        held._owner = os.getpid()
        time.sleep(600)
    print(child, flush=True)
print("ready", flush=True)
time.sleep(600)
"""


class Child(subprocess.Popen[str]):
    """A process that holds a lock, or only looks as if it did."""

    def __init__(self, folder: Path, address: str = FIRST, manner: str = "holds") -> None:
        super().__init__([sys.executable, "-c", HOLD, address, str(folder), manner], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.stdout is not None
        self.lines = []
        while not self.lines or self.lines[-1] != "ready":
            line = self.stdout.readline()
            assert line, "the child died"
            self.lines.append(line.strip())

    @property
    def holder(self) -> Holder:
        found = describe_process(self.pid)
        assert found is not None
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(address: str = FIRST, manner: str = "holds") -> Child:
        children.append(Child(tmp_path, address, manner))
        return children[-1]

    yield start
    for child in children:
        for pid in [child.pid, *(int(line) for line in child.lines if line.isdigit())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait(10)
        assert child.stdout is not None
        child.stdout.close()


def finder(folder: Path, *addresses: str) -> Callable[[], list[Holder]]:
    return lambda: [hold.holder for address in addresses for hold in lock_holds(lock.lock_path(address, folder))]


def test_holder_is_found_with_its_command_and_start_time(tmp_path: Path, start: Callable[..., Child]) -> None:
    child = start()
    (hold,) = lock_holds(lock.lock_path(FIRST, tmp_path))
    assert hold.holder.pid == child.pid
    assert hold.holder.command.startswith(sys.executable)
    assert hold.holder.started > 0
    assert (hold.kind, hold.user) == ("lock", os.geteuid())
    assert hold.to_dict()["pid"] == child.pid


def test_having_the_file_open_is_not_holding_it(tmp_path: Path, start: Callable[..., Child]) -> None:
    lock.acquire(FIRST, tmp_path).release()
    start(manner="opener")
    assert lock_holds(lock.lock_path(FIRST, tmp_path)) == []


def test_exactly_the_holders_end_and_a_bystander_of_the_same_name_does_not(tmp_path: Path, start: Callable[..., Child]) -> None:
    first, second = start(FIRST), start(SECOND)
    bystander, opener, elsewhere = start(manner="nothing"), start(manner="opener"), start("0000:0b:00.0")
    ended = end_holders(finder(tmp_path, FIRST, SECOND))
    assert {(each.holder.pid, each.outcome) for each in ended} == {(first.pid, "terminated"), (second.pid, "terminated")}
    assert first.wait(5) == second.wait(5) == -signal.SIGTERM
    assert [child.poll() for child in (bystander, opener, elsewhere)] == [None, None, None]
    lock.acquire(FIRST, tmp_path).release()


def test_one_that_ignores_the_request_is_ended_after_the_grace(tmp_path: Path, start: Callable[..., Child]) -> None:
    child = start(manner="stubborn")
    before = time.monotonic()
    (ended,) = end_holders(finder(tmp_path, FIRST), grace=0.4)
    assert ended.outcome == "killed"
    assert child.wait(5) == -signal.SIGKILL
    assert time.monotonic() - before >= 0.4


def test_one_that_lets_go_when_asked_lives_on(tmp_path: Path, start: Callable[..., Child]) -> None:
    child = start(manner="lets go")
    (ended,) = end_holders(finder(tmp_path, FIRST), grace=5)
    assert ended.outcome == "let go"
    assert child.poll() is None


def test_child_that_shares_the_lock_of_a_dead_parent_is_found_and_ended(tmp_path: Path, start: Callable[..., Child]) -> None:
    parent = start(manner="leaves a child")
    grandchild = int(parent.lines[0])
    assert {hold.holder.pid for hold in lock_holds(lock.lock_path(FIRST, tmp_path))} == {parent.pid, grandchild}
    parent.kill()
    parent.wait(5)
    assert [hold.holder.pid for hold in lock_holds(lock.lock_path(FIRST, tmp_path))] == [grandchild]
    (ended,) = end_holders(finder(tmp_path, FIRST))
    assert (ended.holder.pid, ended.outcome) == (grandchild, "terminated")
    lock.acquire(FIRST, tmp_path).release()


def test_a_stopped_process_ends_too(tmp_path: Path, start: Callable[..., Child]) -> None:
    child = start()
    child.send_signal(signal.SIGSTOP)
    (ended,) = end_holders(finder(tmp_path, FIRST), grace=0.3)
    assert ended.outcome == "killed"
    assert child.wait(5) == -signal.SIGKILL


def test_this_process_and_those_that_started_it_are_never_ended(tmp_path: Path) -> None:
    ancestors = [os.getpid(), os.getppid(), 1]
    holders = [holder for pid in ancestors if (holder := describe_process(pid)) is not None]
    assert [each.outcome for each in end_holders(lambda: holders, grace=0.1)] == ["protected"] * len(holders)


def test_process_with_the_pid_of_a_former_holder_is_left_alone(start: Callable[..., Child]) -> None:
    child = start(manner="nothing")
    former = Holder(child.pid, "what was there before", child.holder.started - 100)
    (ended,) = end_holders(lambda: [former], grace=0.2)
    assert ended == Ended(former, "let go")
    assert child.poll() is None


def test_holder_that_lets_go_between_look_and_signal_is_left_alone(start: Callable[..., Child]) -> None:
    child = start(manner="nothing")
    answers = iter([[child.holder]])
    (ended,) = end_holders(lambda: next(answers, []), grace=0.2)
    assert ended.outcome == "let go"
    assert child.poll() is None


def test_holder_of_another_container_is_named_and_not_touched() -> None:
    assert [each.outcome for each in end_holders(lambda: [Holder(0)], grace=0.1)] == ["protected"]


# --- a tree of files ------------------------------------------------------------------------------------------------------


def test_locks_of_other_namespaces_and_waiters_are_told_apart(tmp_path: Path) -> None:
    host = FakeHost(tmp_path / "root")
    path = tmp_path / "file.lock"
    path.write_text("")
    status = path.stat()
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    lines = [
        f"1: FLOCK  ADVISORY  WRITE -1 {name} 0 EOF",
        f"1: -> FLOCK  ADVISORY  WRITE 77 {name} 0 EOF",
        f"2: POSIX  ADVISORY  WRITE 88 {name} 0 EOF",
        "3: FLOCK  ADVISORY  WRITE 99 00:00:1 0 EOF",
        f"4: FLOCK  ADVISORY  WRITE 66 {name} 0 EOF",
    ]
    host.put(host.proc / "locks", "\n".join(lines))
    for pid in (66, 77, 88, 99):  # 66 got the pid of a holder that is gone: it has the file open, but its descriptor carries no lock
        host.add_process(pid, "somebody", (str(path),))
    assert [hold.holder.pid for hold in lock_holds(path, host)] == [0]
    (host.proc / "66" / "fdinfo").mkdir()
    (host.proc / "66" / "fdinfo" / "0").write_text(f"pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 66 {name} 0 EOF\n")
    assert [hold.holder.pid for hold in lock_holds(path, host)] == [0, 66]


def test_processes_that_have_a_device_node_open_are_found(tmp_path: Path) -> None:
    host = FakeHost(tmp_path / "root")
    function = host.add_function(FIRST, bytes(4096), driver="amdgpu")
    for name in ("card0", "renderD128"):
        (function.directory / "drm" / name).mkdir(parents=True)
    host.put(host.dev / "kfd", "")
    host.add_process(500, "Xorg :0", ("/dev/dri/card0", "/dev/null"))
    host.add_process(501, "trainer", ("/dev/kfd", "/dev/dri/renderD128"))
    host.add_process(502, "other gpu", ("/dev/dri/renderD129",))
    assert nodes_of(FIRST, "amdgpu", host) == ["/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd"]
    assert nodes_of(FIRST, "amdgpu", host, shared=False) == ["/dev/dri/card0", "/dev/dri/renderD128"]
    found = [(hold.holder.pid, hold.path, hold.kind) for hold in node_holds(nodes_of(FIRST, "amdgpu", host), host)]
    assert found == [(500, "/dev/dri/card0", "node"), (501, "/dev/dri/renderD128", "node"), (501, "/dev/kfd", "node")]
    assert node_holds([], host) == []
