"""The command among other processes: a device that one of them holds, and signals in the middle of the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mocks.machine import Machine

HOLDER = """
import sys
from pathlib import Path
from bridges.open import Selection, open_pci
with open_pci(Selection(mock="navi31", state=Path(sys.argv[1]))) as pci:
    print(pci.address, flush=True)
    sys.stdin.read()
"""


def test_a_device_that_another_process_holds_is_refused_with_its_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "probes.main", "--mock", "navi31", "--state", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name not in ("DEV", "TGHW_MOCK", "TGHW_STATE", "TGHW_LOCK_DIR")}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "0000:03:00.0\n"
        boot = subprocess.run([*command, "boot", "amd"], capture_output=True, text=True, env=environment, check=False)
        probe = subprocess.run([*command, "probe", "--json"], capture_output=True, text=True, env=environment, check=False)
        holder.communicate("")
    assert boot.returncode == 5
    assert boot.stderr.startswith("tghw: device-busy: ")
    assert f"process {holder.pid}" in boot.stderr
    assert "means: one process at a time may drive a device" in boot.stderr
    assert "  do:    " in boot.stderr
    assert boot.stdout == "", "no stage began"
    (device,) = json.loads(probe.stdout)["devices"]
    assert f"process {holder.pid}" in device["held_by"]
    assert device["boot_state"] is None, "nobody looked"
    after = subprocess.run([*command, "boot", "amd", "--until", "discovery"], capture_output=True, text=True, env=environment, check=False)
    assert after.returncode == 0, after.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_boot_that_a_signal_ends_is_undone_and_exits_with_130(tghw, monkeypatch, number):
    machines = []
    make = Machine.from_profile.__func__

    def make_one(cls, *arguments, **options):
        machine = make(cls, *arguments, **options)
        machine.scheduler.call_later(0.16, lambda: os.kill(os.getpid(), number), "signal")
        machines.append(machine)
        return machine

    monkeypatch.setattr(Machine, "from_profile", classmethod(make_one))
    result = tghw("--mock", "navi31", "boot", "amd")
    assert result.status == 130
    assert "<-  psp" in result.out
    assert "tghw: interrupted: ended by a signal; the device was left restored" in result.err
    (gpu,) = machines[0].gpus
    assert not gpu.psp.sos_alive and not gpu.bus_master
    assert gpu.resets == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_a_signal_ends_leaves_the_device_cleanly(tmp_path, number):
    """The GPU is closed: the lock is given back, and closing is not a warning on the way out."""
    program = tmp_path / "program.py"
    program.write_text("import time\nfrom compute import Tensor\nprint((Tensor([1.0]) + 1).tolist(), flush=True)\ntime.sleep(100)\n")
    command = [sys.executable, "-m", "probes.main", "--mock", "navi31", "--state", str(tmp_path), "run", str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "[2.0]\n"
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines() == ["tghw: interrupted: ended by a signal; the device was left restored", "  means: Ctrl-C was pressed, or the process was asked to end"]


def test_an_interrupted_command_says_so_in_its_document(tghw, monkeypatch):
    from probes import boot

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(boot, "open_pci", interrupted)
    result = tghw("--mock", "navi31", "boot", "amd", "--json")
    assert result.status == 130
    assert result.json["error"]["code"] == "interrupted"
