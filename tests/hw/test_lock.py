"""The device lock: excludes other processes, names them, and cannot be turned against other files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hw import lock
from hw.errors import EXIT_BUSY, DeviceBusy, LockUnavailable, PermissionMissing, Refused

ADDRESS = "0000:03:00.0"

HOLD = """
import sys
from pathlib import Path
from hw import lock
held = lock.acquire(sys.argv[1], Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ADDRESS in tmp_path until its stdin is closed."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, ADDRESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(lock.__file__).parents[1])
    assert child.stdout and child.stdin
    assert child.stdout.readline() == "held\n"
    yield child
    child.stdin.close()
    child.wait(10)


def test_second_process_learns_who_holds_the_device(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    with pytest.raises(DeviceBusy) as caught:
        lock.acquire(ADDRESS, tmp_path)
    assert f"process {other_process.pid} (" in caught.value.what
    assert sys.executable in caught.value.what
    assert caught.value.holder.startswith(f"process {other_process.pid} (")
    assert str(lock.lock_path(ADDRESS, tmp_path)) in caught.value.read
    assert caught.value.exit_status == EXIT_BUSY
    assert caught.value.remedy


def test_lock_ends_with_a_process_that_is_killed(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    other_process.kill()
    other_process.wait(10)
    lock.acquire(ADDRESS, tmp_path).release()


def test_a_second_open_in_this_process_is_refused_too(tmp_path: Path) -> None:
    with lock.acquire(ADDRESS, tmp_path):
        with pytest.raises(DeviceBusy, match=f"process {os.getpid()} "):
            lock.acquire(ADDRESS, tmp_path)
        lock.acquire("0000:04:00.0", tmp_path).release()
    lock.acquire(ADDRESS, tmp_path).release()


def test_holders_lists_devices_without_taking_their_locks(tmp_path: Path, other_process: subprocess.Popen[str]) -> None:
    lock.acquire("remote:host_1:6667:0000:03:00.0", tmp_path).release()
    states = lock.holders(tmp_path)
    assert [state.address for state in states] == [ADDRESS, "remote:host_1:6667:0000:03:00.0"]
    assert states[0].holder and states[0].holder.pid == other_process.pid
    assert states[0].holder.started > 0
    assert states[1].holder is None


def test_file_is_usable_by_everyone_and_the_umask_stays(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        held = lock.acquire(ADDRESS, tmp_path)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(previous)
    assert held.path.stat().st_mode & 0o777 == 0o666
    assert re.fullmatch(rf"pid {os.getpid()} start \d+\n", held.path.read_text())
    held.release()
    held.release()
    assert held.path.read_text() == ""


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    held = lock.acquire(ADDRESS, tmp_path)
    child = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        held.release()
        lock.acquire(ADDRESS, tmp_path).release()
    finally:
        child.kill()
        child.wait()


def test_a_forked_child_cannot_release_its_parents_lock(tmp_path: Path) -> None:
    held = lock.acquire(ADDRESS, tmp_path)
    pid = os.fork()
    if pid == 0:
        held.release()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(DeviceBusy):
        lock.acquire(ADDRESS, tmp_path)
    held.release()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "directory", "fifo"])
def test_a_planted_file_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = lock.lock_path(ADDRESS, tmp_path)
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "hard link":
        path.hardlink_to(victim)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises((Refused, LockUnavailable)) as caught:
        lock.acquire(ADDRESS, tmp_path)
    assert str(path) in caught.value.what
    assert victim.read_text() == "precious"


def test_missing_directory_and_forbidden_file_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LockUnavailable) as missing:
        lock.acquire(ADDRESS, tmp_path / "nowhere")
    assert "No such file" in missing.value.read
    assert lock.DIRECTORY_VARIABLE in missing.value.remedy

    def forbidden(path: object, flags: int, mode: int = 0) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(PermissionMissing):
        lock.acquire(ADDRESS, tmp_path)


def test_directory_comes_from_argument_then_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lock.DIRECTORY_VARIABLE, str(tmp_path / "a"))
    assert lock.lock_directory() == tmp_path / "a"
    assert lock.lock_directory(tmp_path) == tmp_path
    assert lock.lock_path("usb:1-7", tmp_path).name == "tghw_usb_1-7.lock"
    assert lock.lock_path("a/../b_c", tmp_path).name == "tghw_a%2f..%2fb%5fc.lock"


def test_holder_of_another_container_is_said_to_be_one(tmp_path: Path) -> None:
    held = lock.acquire(ADDRESS, tmp_path)
    status = held.path.stat()
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 0 {os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino} 0 EOF\n")
    with pytest.raises(DeviceBusy, match="a process of another container"):
        lock.acquire(ADDRESS, tmp_path, proc=proc)
    held.release()


def test_a_lock_file_deleted_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lock.lock_path(ADDRESS, tmp_path)
    answers = iter([False])
    real = lock._same_file

    def deleted_once(descriptor: int, where: Path) -> bool:
        if next(answers, True) is False:
            path.unlink()
        return real(descriptor, where)

    monkeypatch.setattr(lock, "_same_file", deleted_once)
    held = lock.acquire(ADDRESS, tmp_path)
    assert path.exists()
    with pytest.raises(DeviceBusy):
        lock.acquire(ADDRESS, tmp_path)
    held.release()
