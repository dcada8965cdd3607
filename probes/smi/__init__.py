"""`tghw smi`: GPUs as they are now: figures, links, who uses them; and what can be done about that."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.live import Live

from bridges.open import ON_THE_BUS, Found, choose, find
from hw.errors import EXIT_DONE, EXIT_FAILED, NothingFound, NotSupported, UsageError
from hw.host import HOST
from hw.pci.functions import AWAKE
from hw.processes import open_files
from probes import render
from probes.context import current
from probes.smi import admin, view
from probes.smi.export import Exporter
from probes.smi.model import Row, Sample
from probes.smi.readers import ASLEEP, Reader, read_all, reader_for

INTERVAL = 1.0
"""s between two looks of the live view"""
SHORTEST = 0.1


def register(app: typer.Typer) -> None:
    app.command("smi")(smi)


def smi(
    family: Annotated[str, typer.Argument(help="amd (nv is not built yet)")],
    once: Annotated[bool, typer.Option("--list", help="show once and end; the default where output is no terminal")] = False,
    watch: Annotated[float | None, typer.Option("--watch", help="show again every so many seconds, until Ctrl-C")] = None,
    pids: Annotated[bool, typer.Option("--pids", help="list the processes that hold devices")] = False,
    kill: Annotated[bool, typer.Option("--kill-pids", help="end the processes that hold devices: asked first, after 5 s ended")] = False,
    sudoless: Annotated[bool, typer.Option("--sudoless", help="with --kill-pids: other users' processes are left alone without complaint")] = False,
    module: Annotated[str | None, typer.Option("--module", help="unload, load or expect-unloaded: the vendor's kernel module")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="reset the device")] = False,
    hive: Annotated[bool, typer.Option("--hive", help="reset GPUs that are linked to a hive, together")] = False,
    export: Annotated[str | None, typer.Option("--export", help="serve Prometheus metrics at [ADDRESS:]PORT; the address is 127.0.0.1 if not given")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="do also what would be refused for safety")] = False,
) -> int:
    """Show GPUs live: temperatures, power, clocks, activity, memory, throttling, link, who uses them. --dev ADDRESS selects one."""
    if family == "nv":
        raise NotSupported("smi nv", means="the NVIDIA driver is not built yet, so nothing can be asked of these GPUs", remedy="use the vendor's nvidia-smi")
    if family != "amd":
        raise UsageError(f"unknown device family {family}", remedy="one of amd, nv")
    actions = [name for name, given in (("--pids", pids), ("--kill-pids", kill), ("--module", module), ("--reset", reset), ("--hive", hive)) if given]
    shows = once or watch is not None or export is not None
    if len(actions) > 1 or (actions and shows) or (once and watch is not None):
        raise UsageError("these options exclude each other", read=" ".join(actions + ["--list"] * once + ["--watch"] * (watch is not None) + ["--export"] * (export is not None)))
    if watch is not None and watch < SHORTEST:
        raise UsageError(f"--watch {watch:g}", remedy=f"at least {SHORTEST} s")
    selection = current().selection()
    if module is not None:
        return admin.module(family, module, selection, HOST, consent=yes)
    everything = find(selection, host=HOST, touch=False)
    if hive:
        return admin.hive(everything)
    gpus = _gpus(everything, selection.device)
    if reset:
        return admin.reset(gpus, selection, consent=yes)
    if pids:
        admin.show_pids(admin.held_devices(gpus, HOST, everything=selection.device is None))
        return EXIT_DONE
    if kill:
        return admin.kill_pids(gpus, HOST, everything=selection.device is None, sudoless=sudoless, consent=yes)
    live = watch is not None or (not once and not current().json and sys.stdout.isatty())
    with Monitor(gpus) as monitor:
        if export is not None:
            return _serve(monitor, export, watch)
        if live:
            return _watch(monitor, watch or INTERVAL)
        monitor.look()
        _show_once(monitor.rows)
        return EXIT_FAILED if all(row.sample.problem for row in monitor.rows) else EXIT_DONE


def _gpus(everything: Sequence[Found], device: str | None) -> list[Found]:
    """The GPUs to show, also ones that do not answer. Raises NothingFound."""
    gpus = [each for each in everything if each.is_amd_gpu]
    lost = [each for each in everything if each.problem is not None]
    if not gpus and not lost:
        raise NothingFound("no AMD GPU was found", read=f"{len(everything)} PCI functions searched")
    return [choose(gpus + lost, device)] if device is not None else gpus + lost


class Monitor:
    """Reads the selected GPUs again and again."""

    def __init__(self, gpus: Sequence[Found]) -> None:
        self._selection = current().selection()
        self._gpus = list(gpus)
        self._readers: dict[int, Reader] = {}
        self.rows = [Row.of(number, each) for number, each in enumerate(self._gpus)]

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exc: object) -> None:
        for reader in self._readers.values():
            reader.close()

    def look(self, on_row: Callable[[Row], None] = lambda row: None) -> None:
        """Read every GPU; on_row is told of each as soon as it is known."""
        readers: list[tuple[int, Reader]] = []
        opened = open_files(HOST)
        for number, (found, row) in enumerate(zip(self._gpus, self.rows, strict=True)):
            row.holds = [hold for hold in admin.holds_of(found, HOST, opened) if hold.holder.pid != os.getpid()]
            row.power_state = self._power_state(found)
            if found.problem is not None:
                row.sample = Sample.failed(found.problem, boot_state="dead-bus")
            elif row.power_state not in (*AWAKE, None):
                row.sample = Sample(boot_state="gated", note=ASLEEP)
            else:
                reader = self._readers.get(number)
                if reader is None:
                    reader = self._readers[number] = reader_for(found, self._selection, HOST)
                readers.append((number, reader))
                continue
            on_row(row)

        def take(number: int, sample: Sample) -> None:
            self.rows[number].sample = sample
            on_row(self.rows[number])

        read_all(readers, take)

    def _power_state(self, found: Found) -> str | None:
        if found.transport not in ON_THE_BUS:
            return found.details.get("power_state") or None
        return HOST.text(HOST.pci / found.address / "power_state") or None


def _document(rows: Sequence[Row]) -> dict[str, Any]:
    return {"gpus": [row.to_dict() for row in rows]}


def _show_once(rows: Sequence[Row]) -> None:
    if current().json:
        render.document(_document(rows))
        return
    console = render.out()
    console.print(view.screen(rows, console))


def _watch(monitor: Monitor, interval: float) -> int:
    """Live view on a terminal, a JSON document a line with --json, one view after another elsewhere. Ctrl-C is its normal end."""
    with contextlib.suppress(KeyboardInterrupt):
        if current().json:
            for rows in _rounds(monitor, interval):
                sys.stdout.write(json.dumps(_document(rows)) + "\n")
                sys.stdout.flush()
        elif not sys.stdout.isatty():
            for rows in _rounds(monitor, interval):
                _show_once(rows)
        else:
            _watch_terminal(monitor, interval)
    return EXIT_DONE


def _watch_terminal(monitor: Monitor, interval: float) -> None:
    console = render.out()
    with Live(console=console, auto_refresh=False, screen=True) as live:

        def draw(row: Row | None = None) -> None:
            live.update(view.screen(monitor.rows, console, height=console.height), refresh=True)

        first = True
        while True:
            monitor.look(draw if first else lambda row: None)
            first = False
            draw()
            time.sleep(interval)


def _rounds(monitor: Monitor, interval: float) -> Iterator[list[Row]]:
    while True:
        monitor.look()
        yield monitor.rows
        time.sleep(interval)


def _serve(monitor: Monitor, place: str, watch: float | None) -> int:
    """Prometheus endpoint until Ctrl-C; with --watch the view as well."""
    exporter = Exporter(lambda: list(monitor.rows), place)
    monitor.look()
    render.note(f"serving {exporter.start()}; Ctrl-C ends it", style="bold")
    try:
        if watch is not None:
            return _watch(monitor, watch)
        with contextlib.suppress(KeyboardInterrupt):
            for _ in _rounds(monitor, INTERVAL):
                pass
    finally:
        exporter.close()
    return EXIT_DONE


