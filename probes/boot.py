"""`tghw boot`: bring a GPU up stage by stage, with times."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridges.open import firmware_of, open_pci
from drivers.amd import stages
from drivers.amd.device import AmdDevice
from hw.errors import NotSupported, UsageError
from hw.trace import TracedDevice
from probes import render
from probes.context import current

if TYPE_CHECKING:
    from drivers.amd.stages import StageResult

NOT_YET = {"nv": "NVIDIA bring-up is not built yet", "mlx5": "the mlx5 driver is not built yet", "bnxt": "the bnxt driver is not built yet"}


def register(app: typer.Typer) -> None:
    app.command("boot")(boot)


def boot(
    family: Annotated[str, typer.Argument(help="amd (nv, mlx5 and bnxt are not built yet)")],
    cold: Annotated[bool, typer.Option("--cold", help="reset the GPU first, even when an earlier run left it alive")] = False,
    until: Annotated[str | None, typer.Option(help="stop after this stage")] = None,
    trace: Annotated[str | None, typer.Option(help="record every access to this file (JSON lines)")] = None,
) -> None:
    """Boot a device stage by stage; a failure shows the stage, what was read, and what usually causes it."""
    if family in NOT_YET:
        raise NotSupported(f"boot {family}", means=NOT_YET[family], remedy="`tghw boot amd` is what there is; `--mock navi31` for a simulated card")
    if family != "amd":
        raise UsageError(f"unknown device family {family}", remedy="one of amd, nv, mlx5, bnxt")
    logging.getLogger(stages.__name__).setLevel(logging.WARNING)  # the lines below say the same
    selection = current().selection()
    pci = open_pci(selection)
    traced = TracedDevice(pci) if trace else None
    device = AmdDevice(traced or pci, firmware_of(selection))
    results: list[dict[str, Any]] = []
    try:
        names = [stage.name for stage in device.stages]
        if until is not None and until not in names:
            raise UsageError(f"there is no stage {until}", remedy=f"the stages are {', '.join(names)}")
        start = device.clock.now()

        def on_stage(result: StageResult) -> None:
            results.append({"name": result.name, "title": result.title, "outcome": result.outcome, "seconds": result.seconds, "error": result.error})
            _show_stage(result)
            if traced is not None:
                traced.recorder.stage_done(result.name)

        try:
            device.boot(until=until, cold=cold, on_stage=on_stage)
        finally:
            if traced is not None and trace is not None:
                traced.recorder.save(Path(trace))
        seconds = device.clock.now() - start
        state = device.state()
        if current().json:
            render.document({"address": device.pci.address, "arch": device.arch, "stages": results, "seconds": seconds, "boot_state": state})
        else:
            reached = f"stopped after {until}" if until else "ready"
            render.say(f"{device.pci.address} {device.arch}: {reached}, {render.duration(seconds)} of device time, state {state}", style="bold green")
        if until is None:
            device.finish()
    finally:
        device.close()


MARKS = {"done": "ok", "skipped": "--", "failed": "!!", "undone": "<-"}


def _show_stage(result: StageResult) -> None:
    render.say(f"  {MARKS[result.outcome]}  {result.name:<12}{render.duration(result.seconds):>10}  {result.title}")
