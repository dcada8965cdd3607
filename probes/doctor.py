"""`tghw doctor`: what this machine lacks for driving a device, why it matters, and the exact remedy. Looks only; changes and runs nothing."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bridges.asm24.ids import identity_of
from bridges.open import Selection, profile_of
from hw.doctor.checks import checks_for
from hw.doctor.families import FAMILIES
from hw.doctor.findings import MACHINE, Finding, Scene, State, examine
from hw.doctor.usb import bridges
from hw.errors import EXIT_FAILED, NotSupported, UsageError
from hw.host import HOST, HostFiles
from probes import render
from probes.context import current
from probes.doctor_software import Software, software_checks

STYLES = {State.BLOCK: "bold red", State.WARN: "yellow", State.UNKNOWN: "cyan", State.OK: "green"}
"""most urgent first"""
DEFAULT_FAMILY = "amd"
"""what is looked for on a machine that has no device of any kind"""


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(family: Annotated[str | None, typer.Argument(help="amd, nv, rdma or usb; default: every kind that is there")] = None) -> None:
    """Check everything a device needs from this machine; exit status 1 when something blocks."""
    selection = current().selection()
    if profile_of(selection) is not None:
        raise NotSupported("a doctor for simulated machines", means="it examines this machine's kernel, permissions and files", remedy="leave --mock out")
    if family is not None and family not in FAMILIES:
        raise UsageError(f"unknown kind of device {family}", remedy=f"one of {', '.join(FAMILIES)}")
    findings = diagnose(family, HOST, _software(selection))
    if current().json:
        render.document(document(findings))
    else:
        render.out().print(report(findings, reasons=current().verbose > 0))
    if any(finding.state is State.BLOCK for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _software(selection: Selection) -> Software:
    return Software.installed((selection.firmware,) if selection.firmware else ())


def diagnose(family: str | None, host: HostFiles, software: Software, **options: Any) -> list[Finding]:
    """Findings for one kind of device, or for every kind that this machine has. options: as for Scene.of()."""
    options.setdefault("is_bridge", lambda vendor, product: identity_of(vendor, product) is not None)
    scenes = [Scene.of(each, host, **options) for each in FAMILIES.values()]
    chosen = [scene for scene in scenes if (scene.family.name == family if family else _is_there(scene))]
    chosen = chosen or [scene for scene in scenes if scene.family.name == DEFAULT_FAMILY]
    found: dict[Finding, None] = {}
    for scene in chosen:
        checks = (*checks_for(scene.family), *software_checks(software, scene.family.name))
        found |= dict.fromkeys(examine(scene, checks))  # what is the same for several kinds is said once
    return list(found)


def _is_there(scene: Scene) -> bool:
    return bool(scene.devices) if scene.family.on_pci else bool(bridges(scene))


def document(findings: list[Finding]) -> dict[str, Any]:
    """The JSON document."""
    counts = {state.value: sum(finding.state is state for finding in findings) for state in State}
    return {"usable": not counts["block"], "counts": counts, "findings": [finding.to_dict() for finding in findings]}


def report(findings: list[Finding], *, reasons: bool = False) -> Group:
    """What a person reads: every check in a line, and below, for what is not right, why it matters and what to do."""
    parts: list[Any] = []
    for subject in dict.fromkeys(finding.subject for finding in findings):
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=8)
        grid.add_column(width=30)
        grid.add_column(overflow="fold")
        for finding in findings:
            if finding.subject == subject:
                grid.add_row(Text(finding.state.value, style=STYLES[finding.state]), finding.title, Text(finding.read))
                if reasons and finding.state is State.OK:
                    grid.add_row("", "", Text(finding.why, style="dim"))
        parts += [Text("this machine" if subject == MACHINE else subject, style="bold"), Padding(grid, (0, 0, 1, 2), expand=False)]
    wrong = [finding for finding in findings if finding.state is not State.OK]
    for finding in sorted(wrong, key=lambda each: list(STYLES).index(each.state)):
        parts.append(_advice(finding))
    parts.append(_verdict(findings))
    return Group(*parts)


def _advice(finding: Finding) -> Group:
    where = "" if finding.subject == MACHINE else f" of {finding.subject}"
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=6)
    grid.add_column(overflow="fold")
    for label, text in (("read", finding.read), ("why", finding.why), ("do", finding.remedy)):
        grid.add_row(Text(label, style="dim"), Text(text))
    head = Text.assemble((finding.state.value, STYLES[finding.state]), f"  {finding.title}{where}  ", (f"[{finding.check}]", "dim"))
    return Group(head, Padding(grid, (0, 0, 1, 2), expand=False))


def _verdict(findings: list[Finding]) -> Text:
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    if counts[State.BLOCK]:
        return Text(f"{counts[State.BLOCK]} of {len(findings)} checks block the way", style=STYLES[State.BLOCK])
    rest = counts[State.WARN] + counts[State.UNKNOWN]
    return Text(f"nothing blocks; {rest} of {len(findings)} checks to look at" if rest else f"all {len(findings)} checks are fine", style=STYLES[State.OK])

