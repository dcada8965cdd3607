"""`tghw bench`: the numbers of docs/performance.md, reproducible. Times are CPU time of this process unless the name says otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridges.asm24.device import Asm24PciDevice
from bridges.open import Selection, firmware_of, open_gpu, open_pci
from drivers.amd.stages import StageResult
from hw.errors import UsageError
from hw.trace import Recorder
from probes import render
from probes.context import current

if TYPE_CHECKING:
    from drivers.amd.gpu import AmdGpu
    from hw.pci.device import PciDevice

PROFILE = "navi31"


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(what: Annotated[str, typer.Argument(help="mmio, boot, launch, copy, emulate, memory, compile, process, flash or all")] = "all") -> None:
    """Measure: register access, boot, launches, copies, the simulated GPU's speed, page tables, the compiler, whole processes."""
    chosen = list(BENCHES) if what == "all" else [what]
    if any(name not in BENCHES for name in chosen):
        raise UsageError(f"there is no benchmark {what}", remedy=f"one of {', '.join(BENCHES)} or all")
    figures: dict[str, dict[str, Any]] = {}
    for name in chosen:
        render.note(f"measuring {name} ...")
        figures[name] = BENCHES[name](_selection())
    if current().json:
        render.document(figures)
        return
    for name, values in figures.items():
        render.say(name, style="bold")
        render.table(["figure", "value"], [(key, _show(value)) for key, value in _flat(values)])


def _selection() -> Selection:
    selection = current().selection()
    if selection.mock is None and selection.target is None:
        return Selection(mock=PROFILE, firmware=selection.firmware)
    return selection


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Rows for people; details a stage or a bus window at a time are left to --json."""
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        if key == "where":
            continue
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            rows.append((prefix + key, value))
    return rows


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _mmio(selection: Selection) -> dict[str, Any]:
    from hw.bench import mmio_bench

    return mmio_bench()


class UsbMeter:
    """USB transfers of a device behind a bridge; measures nothing on other devices."""

    def __init__(self, pci: PciDevice) -> None:
        self._device = pci if isinstance(pci, Asm24PciDevice) else None
        self.stages: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> None:
        """Count from here."""
        self._start = self._last = self._device.counts.copy() if self._device else None

    def stage_done(self, name: str) -> None:
        """What was sent since the last stage belongs to this one."""
        if self._device is not None and self._last is not None:
            now = self._device.counts.copy()
            self.stages.append({"name": name} | now.since(self._last).to_dict())
            self._last = now

    def counts(self) -> dict[str, int]:
        """Transfers and bytes since the start; empty without a bridge."""
        return self._device.counts.since(self._start).to_dict() if self._device is not None and self._start is not None else {}


def _boot(selection: Selection) -> dict[str, Any]:
    """Cold boot, opening (memory manager, queues, signals, staging), and a warm boot: accesses by kind, USB transfers, and times."""
    from drivers.amd.device import AmdDevice
    from drivers.amd.gpu import AmdGpu
    from hw.trace import TracedDevice

    figures: dict[str, Any] = {}
    for kind in ("cold", "warm"):
        pci = open_pci(selection)
        traced = TracedDevice(pci)
        device = AmdDevice(traced, firmware_of(selection))
        usb = UsbMeter(pci)
        attach = pci.counts.to_dict() if isinstance(pci, Asm24PciDevice) else {}
        try:
            start, clock = time.process_time(), traced.clock.now()
            device.boot(on_stage=_stage_marker(traced.recorder, usb))
            booted = time.process_time()
            boot_clock = traced.clock.now() - clock
            boot_stats, boot_usb = traced.recorder.stats(), usb.counts()
            gpu = AmdGpu(device)
            opened = time.process_time()
            open_stats, open_usb = traced.recorder.stats(), usb.counts()
            figures[kind] = {
                "boot": boot_stats,
                "boot_cpu_s": booted - start,
                "boot_device_clock_s": boot_clock,
                "open": {key: value for key, value in open_stats.items() if key != "stages"},
                "open_cpu_s": opened - start,
            }
            if attach:
                figures[kind]["usb"] = {"attach": attach, "boot": boot_usb, "open": open_usb, "stages": usb.stages}
            gpu.close()
        finally:
            device.close()
    return figures


def _stage_marker(recorder: Recorder, usb: UsbMeter) -> Callable[[StageResult], None]:
    def mark(result: StageResult) -> None:
        recorder.stage_done(result.name)
        usb.stage_done(result.name)

    return mark


def _launch(selection: Selection) -> dict[str, Any]:
    from drivers.queue.bench import launch_bench

    gpu = open_gpu(selection)
    try:
        figures: dict[str, Any] = dict(launch_bench(gpu))
        if isinstance(gpu.dev.pci, Asm24PciDevice):
            figures["usb"] = _launch_usb(gpu)
        return figures
    finally:
        gpu.close()


def _launch_usb(gpu: AmdGpu) -> dict[str, Any]:
    """USB transfers of one launch with arguments, alone and with waiting for its end. The device is idle before."""
    (kernel,) = gpu.load(gpu.empty_object()).kernels.values()
    arguments = bytes(kernel.kernarg_size)
    usb = UsbMeter(gpu.dev.pci)
    for _ in range(2):  # the first one records the packets
        gpu.synchronize()
        usb.restart()
        ticket = gpu.launch(kernel, (1, 1, 1), (1, 1, 1), arguments)
        launch = usb.counts()
        gpu.wait(ticket)
    return {"argument_bytes": len(arguments), "launch": launch, "launch_and_wait": usb.counts()}


def _copy(selection: Selection) -> dict[str, Any]:
    """Bus accesses, USB transfers and CPU time of copies in and out."""
    from drivers.amd.device import AmdDevice
    from drivers.amd.gpu import AmdGpu
    from hw.trace import TracedDevice

    pci = open_pci(selection)
    traced = TracedDevice(pci)
    usb = UsbMeter(pci)
    device = AmdDevice(traced, firmware_of(selection))
    figures: dict[str, Any] = {}
    try:
        device.boot()
        gpu = AmdGpu(device)
        for size in (4, 1 << 20, 4 << 20):
            buffer = gpu.alloc(size)
            data = bytes(size)
            for direction, action in (("in", lambda b=buffer, d=data: gpu.copy_in(b, d)), ("out", lambda b=buffer, s=size: gpu.copy_out(b, s))):
                action()
                gpu.synchronize()
                traced.recorder.clear()
                usb.restart()
                start, clock = time.process_time(), traced.clock.now()
                action()
                copied = usb.counts()
                gpu.synchronize()
                found = figures[f"{size}_bytes_{direction}"] = {"cpu_s": time.process_time() - start, **_counts(traced.recorder.stats())}
                if copied:
                    found["usb"] = _copy_usb(size, copied, usb.counts(), traced.clock.now() - clock)
            gpu.free(buffer)
        gpu.close()
    finally:
        device.close()
    return figures


def _copy_usb(size: int, copied: dict[str, int], waited: dict[str, int], seconds: float) -> dict[str, Any]:
    """Of one copy: transfers until the call returned, and those of waiting for its end afterwards."""
    found: dict[str, Any] = copied | {"transfers_to_synchronize": waited["transfers"] - copied["transfers"], "device_clock_s": seconds}
    if size >= 1 << 20:
        found["transfers_per_mib"] = copied["transfers"] / (size >> 20)
        found["mb_per_s"] = size / seconds / 1e6
    return found


def _counts(stats: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stats.items() if key != "stages"}


def _emulate(selection: Selection) -> dict[str, Any]:
    from mocks.isa.bench import emulate_bench

    return emulate_bench()


def _memory(selection: Selection) -> dict[str, Any]:
    from drivers.amd.bench import pagetable_bench
    from hw.bench import alloc_bench

    return {"page_tables": pagetable_bench(), "allocator": alloc_bench()}


def _compile(selection: Selection) -> dict[str, Any]:
    from compute.bench import compile_bench

    return dict(compile_bench())


def _process(selection: Selection) -> dict[str, Any]:
    from probes.bench_process import process_bench

    return process_bench()


def _flash(selection: Selection) -> dict[str, Any]:
    from probes.flash_bench import flash_bench

    return flash_bench(current().selection())


BENCHES: dict[str, Callable[[Selection], dict[str, Any]]] = {
    "mmio": _mmio,
    "boot": _boot,
    "launch": _launch,
    "copy": _copy,
    "emulate": _emulate,
    "memory": _memory,
    "compile": _compile,
    "process": _process,
    "flash": _flash,
}
