"""Reading GPUs for `tghw smi`, each with a deadline of its own.

A card of this machine is read by a worker process: a read of a register that never returns stops that process and nobody else. A
simulated card lives in this process; its deadline is by its own clock. Other transports belong to one process at a time: a free device is
opened for the look and given back. Real devices are never booted, never woken.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, Protocol

from bridges.open import ON_THE_BUS, Found, Selection, firmware_of, profile_of
from drivers.amd.device import AmdDevice
from drivers.amd.monitor import attach, check_booted, is_virtual_function
from drivers.amd.telemetry import Telemetry
from firmware.store import FirmwareStore
from hw.errors import DeviceBusy, DeviceError, NotReady, TghwError
from hw.host import HOST, HostFiles
from hw.pci import config
from hw.pci.device import PciDevice
from probes.smi.model import Sample

DEADLINE = 1.0
"""s that one device gets for one sample"""
MARGIN = 0.4
"""s on top for the answer to arrive: a device that does not answer its driver is told apart from one that answers nobody"""
START_WITHIN = 10.0
"""s for a worker process to start, before it touches anything"""

ASLEEP = "asleep: not woken, so nothing can be read"
NOT_ENABLED = "nobody uses it, so its registers are switched off: nothing can be read"
SIMULATED = "simulated: switched on and booted by this command, inside of which it lives"
VIRTUAL = "virtual function (SR-IOV): power, clocks and temperatures are its host's to read"
NOT_BOOTED = "not booted by tghw, so its power controller is not asked; `tghw boot amd` boots it"


class Reader(Protocol):
    """Samples one GPU."""

    def start(self, within: float) -> None:
        """Ask for a sample that may take that long (s)."""

    def poll(self) -> Sample | None:
        """The sample asked for, None while it is not there yet."""
        ...

    @property
    def deadline(self) -> float:
        """time.monotonic() at which to give up."""
        ...

    def give_up(self) -> Sample:
        """What to show of a device that did not answer in time."""
        ...

    def stream(self) -> IO[bytes] | None:
        """What becomes readable when poll() may have something new; None for readers whose poll() does the work itself."""
        ...

    def close(self) -> None: ...


def reader_for(found: Found, selection: Selection, host: HostFiles = HOST) -> Reader:
    """The right reader for a device that is awake."""
    if profile_of(selection) is not None:
        return OpenReader(found, lambda device: _boot(device, selection))
    if found.transport in ON_THE_BUS:
        return WorkerReader(found.address, host)
    return OpenReader(found)


def read_all(readers: Sequence[tuple[int, Reader]], on_sample: Callable[[int, Sample], None], within: float = DEADLINE) -> None:
    """A sample of every device, handed over as it comes; of those that do not answer in time, that they did not."""
    for _, reader in readers:
        reader.start(within)
    waiting = list(readers)
    while waiting:
        for number, reader in list(waiting):
            sample = reader.poll()
            if sample is None and time.monotonic() >= reader.deadline:
                sample = reader.give_up()
            if sample is not None:
                waiting.remove((number, reader))
                on_sample(number, sample)
        if waiting:
            _wait_for_any(waiting)


def _wait_for_any(readers: Sequence[tuple[int, Reader]]) -> None:
    until = min(reader.deadline for _, reader in readers)
    with selectors.DefaultSelector() as selector:
        for _, reader in readers:
            stream = reader.stream()
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ)
        selector.select(max(until - time.monotonic(), 0.0))


def look(device: PciDevice, telemetry: Telemetry | None, within: float, prepare: Callable[[PciDevice], AmdDevice] | None = None) -> tuple[Sample, Telemetry | None]:
    """One sample of an open device, and what takes the next one faster. prepare: boots it, where that is wanted."""
    sample = Sample()
    try:
        info = config.decode(device.config)
        if info.pcie is not None:
            sample.link, sample.link_max = info.pcie.link_status, info.pcie.link_capability
        sample.virtual = is_virtual_function(device)
        if sample.virtual:
            sample.note = VIRTUAL
            return sample, None
        if telemetry is None:
            telemetry = Telemetry(prepare(device) if prepare is not None else attach(device))
        check_booted(telemetry.dev)
        sample.reading = telemetry.sample(within)
        sample.boot_state = telemetry.dev.state()
        return sample, telemetry
    except NotReady as problem:
        sample.boot_state = _state(device)
        if sample.boot_state in ("cold", "sos-alive"):
            sample.note = NOT_BOOTED
        else:
            sample.problem = problem.to_dict()
    except TghwError as problem:
        sample.problem = problem.to_dict()
        with suppress(TghwError):
            sample.boot_state = _state(device)
    return sample, None


def _state(device: PciDevice) -> str:
    return AmdDevice(device, FirmwareStore.from_files({})).state()


def _boot(device: PciDevice, selection: Selection) -> AmdDevice:
    gpu = AmdDevice(device, firmware_of(selection))
    gpu.boot()
    return gpu


class OpenReader:
    """Opens the device in this process. prepare: boots a simulated one, which then stays open; others are given back after each look."""

    def __init__(self, found: Found, prepare: Callable[[PciDevice], AmdDevice] | None = None) -> None:
        self._found = found
        self._prepare = prepare
        self._device: PciDevice | None = None
        self._telemetry: Telemetry | None = None
        self._within = DEADLINE
        self._sampled: float | None = None
        self._dead: Sample | None = None
        """what a simulated device that does not boot showed: trying again each second would not help"""

    def start(self, within: float) -> None:
        self._within = within

    @property
    def deadline(self) -> float:
        return time.monotonic() + self._within

    def stream(self) -> IO[bytes] | None:
        return None

    def give_up(self) -> Sample:
        raise AssertionError("poll() of this reader always has an answer")

    def poll(self) -> Sample | None:
        if self._dead is not None:
            return self._dead
        try:
            if self._device is None:
                self._device = self._found.opener()
        except DeviceBusy as problem:
            return Sample(boot_state="running", note=f"held by {problem.holder or 'another process'}; over {self._found.transport} only its holder can read it")
        except TghwError as problem:
            return Sample.failed(problem)
        if self._prepare is None:
            sample, _ = look(self._device, None, self._within)
            self.close()
            return sample
        self._let_time_pass(self._device)
        booted = self._telemetry is not None
        sample, telemetry = look(self._device, self._telemetry, self._within, self._prepare)
        sample.note = sample.note or SIMULATED
        if telemetry is not None:
            self._telemetry = telemetry
        elif not booted:
            self._dead = sample
        return sample

    def _let_time_pass(self, device: PciDevice) -> None:
        """A simulated device's clock only moves when it is used: let it catch up with the time that a watching person spent."""
        now = time.monotonic()
        if self._sampled is not None:
            device.clock.sleep(now - self._sampled)
        self._sampled = now

    def close(self) -> None:
        device, self._device = self._device, None
        telemetry, self._telemetry = self._telemetry, None
        if device is None:
            return
        if telemetry is not None:
            with suppress(TghwError):  # a simulated device ends with this command
                telemetry.dev.finish()
        device.close()


class WorkerReader:
    """Has a process of its own look at a card of this machine, beside its owner."""

    def __init__(self, address: str, host: HostFiles = HOST) -> None:
        self._address = address
        # the worker finds the packages where this process found them, however it was started
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "probes.smi.worker", address, str(host.root)]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, env=environment)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        os.set_blocking(self._from.fileno(), False)
        self._buffer = b""
        self._ready = False
        """it has started; from here on only the device can make it slow"""
        self._number = 0
        self._answered = 0
        self._within = DEADLINE
        self._asked = time.monotonic()

    def start(self, within: float) -> None:
        self._within = within
        if self._answered < self._number:
            return  # it still works on the last one
        self._number += 1
        self._asked = time.monotonic()
        with suppress(BrokenPipeError):
            self._to.write(json.dumps({"number": self._number, "within": within}).encode() + b"\n")
            self._to.flush()

    @property
    def deadline(self) -> float:
        return self._asked + (self._within + MARGIN if self._ready else START_WITHIN)

    def stream(self) -> IO[bytes] | None:
        return self._from

    def poll(self) -> Sample | None:
        data = self._from.read(1 << 16)
        self._buffer += data or b""
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if not self._ready:
                self._ready = True
                self._asked = time.monotonic()
            self._answered = message["number"]
            if self._answered == self._number:
                return Sample.from_dict(message["sample"])
        return self._ended() if data == b"" else None

    def give_up(self) -> Sample:
        return Sample.failed(
            DeviceError(
                f"{self._address} does not answer",
                read=f"nothing for {time.monotonic() - self._asked:.1f} s",
                means="a read of the device does not return: it hangs, or its link does",
                remedy="look at the kernel log (AER, link messages); `tghw smi amd --reset --dev ADDRESS` tries to reset it; else power-cycle the card",
            )
        )

    def _ended(self) -> Sample:
        self._complaints.seek(0)
        last = self._complaints.read().decode(errors="replace").strip().splitlines()[-1:]
        said = "".join(f": {line}" for line in last)
        return Sample.failed(DeviceError(f"looking at {self._address}", read=f"the process that looks ended{said}", means="this is a mistake in tghw", remedy="please report it"))

    def close(self) -> None:
        """A worker that a device keeps inside the kernel cannot be ended now; it ends when the device lets go."""
        with suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        self._complaints.close()
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
