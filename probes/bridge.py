"""`tghw bridge`: the USB bridge itself, its identity, its resets, its firmware."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer

from bridges.asm24 import image as images
from bridges.asm24.bringup import bring_link_up
from bridges.asm24.errors import BridgeFlashRefused, BridgeNotFound
from bridges.asm24.flash import Writer, writer_for
from bridges.asm24.ids import Protocol
from bridges.asm24.info import Behind, look_behind
from bridges.asm24.session import BridgeSession
from bridges.asm24.usb import UsbBridge
from bridges.open import choose_bridge, state_folder, usb_bridges, usb_of, usb_searched
from hw.errors import Refused, TghwError, UsageError
from probes import render
from probes.context import current
from probes.meter import meter

KINDS = ("slot", "cpu", "usb")
RESETS = (
    "slot: switch the card's slot off and on and train the link (default with open firmware); "
    "cpu: restart the bridge's processor (default with stock firmware); usb: reset its USB port"
)
BACKUPS = "bridge-backups"


def register(app: typer.Typer) -> None:
    bridge = typer.Typer(help="The ASM24xx USB bridge itself, see docs/usb.md.", no_args_is_help=True, rich_markup_mode=None)
    for name, command in (("info", info), ("reset", reset), ("flash", flash)):
        bridge.command(name)(command)
    app.add_typer(bridge, name="bridge")


def info() -> None:
    """Tell what each bridge is: ids, firmware, USB speed, PCIe link, and the device behind it. The slot is powered if it was not."""
    selection = current().selection()
    usb = usb_of(selection)
    bridges = usb_bridges(selection) if selection.device is None else [choose_bridge(selection)]
    if not bridges:
        raise BridgeNotFound("no USB bridge was found", read=f"looked for {usb_searched()}")
    found: list[tuple[UsbBridge, Behind | TghwError]] = []
    for each in bridges:
        try:
            found.append((each, look_behind(each, usb.backend, clock=usb.clock, lock=usb.lock)))
        except TghwError as error:
            found.append((each, error))
    if current().json:
        render.document({"bridges": [_plain(bridge, seen) for bridge, seen in found]})
    else:
        for bridge, seen in found:
            _show(bridge, seen)
    problems = [seen for _, seen in found if isinstance(seen, TghwError)]
    if len(problems) == len(found):
        raise problems[0]


def _plain(bridge: UsbBridge, seen: Behind | TghwError) -> dict[str, Any]:
    if isinstance(seen, TghwError):
        return {"address": bridge.address, "vendor": bridge.vendor, "product_id": bridge.product, "usb_speed": bridge.speed, "problem": seen.to_dict()}
    behind = {"vendor": seen.identity.vendor, "device": seen.identity.device, "class": seen.identity.class_code} if seen.identity else None
    return seen.info.to_dict() | {"behind": behind, "problem": seen.problem.to_dict() if seen.problem else None}


def _show(bridge: UsbBridge, seen: Behind | TghwError) -> None:
    render.say(f"{bridge.address}  {bridge.vendor:04x}:{bridge.product:04x}  {bridge.title}", style="bold")
    if isinstance(seen, TghwError):
        _show_problem(seen)
        return
    facts = seen.info
    state = f"{facts.link_state:#04x}" if facts.link_state is not None else "not known"
    rows = [
        ("product", facts.product),
        ("maker", facts.manufacturer),
        ("serial", facts.serial),
        ("firmware", f"{facts.firmware} {facts.version}".strip()),
        ("commands", facts.commands),
        ("USB", f"{facts.usb_speed:g} Mb/s"),
        ("link", (f"up, {facts.link} (max {facts.link_max})" if facts.link else "up") if facts.link_up else f"down, state {state}"),
        ("behind", f"{seen.identity.vendor:04x}:{seen.identity.device:04x}, class {seen.identity.class_code:06x}" if seen.identity else "nothing that answers"),
    ]
    for label, text in rows:
        if text:
            render.say(f"    {label:<9}{text}")
    if facts.degraded:
        render.say(f"    note     {facts.degraded}", style="yellow")
    if seen.problem is not None:
        _show_problem(seen.problem)


def _show_problem(problem: TghwError) -> None:
    for label, text in (("problem", problem.what), ("read", problem.read), ("means", problem.means), ("do", problem.remedy)):
        if text:
            render.say(f"    {label:<9}{text}", style="red" if label == "problem" else None)


def reset(
    kind: Annotated[str, typer.Option(help=RESETS)] = "",
) -> None:
    """Start the link, the bridge's processor or the USB connection anew."""
    if kind and kind not in KINDS:
        raise UsageError(f"there is no reset {kind}", remedy=f"one of {', '.join(KINDS)}")
    selection = current().selection()
    usb = usb_of(selection)
    with BridgeSession.open(choose_bridge(selection), usb.backend, clock=usb.clock, lock=usb.lock) as session:
        protocol = session.protocol
        assert protocol is not None
        kind = kind or ("cpu" if session.kind is Protocol.STOCK else "slot")
        if kind == "slot":
            protocol.power(False)
            bring_link_up(protocol)
        elif kind == "cpu":
            protocol.restart()
        else:
            session.link.reset_port()
        if kind != "slot":
            protocol.start()
        state = protocol.link_state()
    document = {"address": session.address, "reset": kind, "link_state": state}
    if current().json:
        render.document(document)
    render.say(f"{session.address}: {kind} reset done, link state {state:#04x}")


def flash(
    file: Annotated[Path, typer.Argument(help="firmware image for the bridge", exists=True, dir_okay=False)],
    yes: Annotated[bool, typer.Option("--yes", help="really write")] = False,
    backup: Annotated[Path | None, typer.Option(help="where to keep what is in the flash now; default: the state folder")] = None,
) -> None:
    """Check an image, keep what is in the bridge's flash, write it, read it back."""
    checked = images.parse(file.read_bytes())
    selection = current().selection()
    usb = usb_of(selection)
    session = BridgeSession.look(choose_bridge(selection), usb.backend, clock=usb.clock, lock=usb.lock)
    with session:
        writer = writer_for(session, checked)
        plan = {
            "address": session.address,
            "product": session.product,
            "image": checked.title,
            "method": writer.title,
            "bytes": len(checked.data),
            "sha256": hashlib.sha256(checked.data).hexdigest(),
        }
        if not yes:
            _show_plan(plan)
            raise BridgeFlashRefused("the flash of the bridge was not written", read="--yes was not given", remedy="repeat with --yes once the plan is what you want")
        writer.prepare()
        kept = _keep(writer, session, backup)
        with meter("writing") as show:
            writer.write(show)
    if current().json:
        render.document(plan | {"backup": str(kept) if kept else None, "written": True})
        return
    _show_plan(plan)
    render.say(f"    {'kept':<9}{kept or 'nothing: this loader does not read its flash'}")
    render.say("written and read back; power-cycle the bridge to start it", style="green")


def _show_plan(plan: dict[str, Any]) -> None:
    render.say(f"{plan['address']}  {plan['product']}", style="bold")
    for label in ("image", "method", "sha256"):
        render.say(f"    {label:<9}{plan[label]}")


def _keep(writer: Writer, session: BridgeSession, path: Path | None) -> Path | None:
    """Save what is in the flash before it is touched. Raises Refused when it cannot be kept."""
    with meter("reading") as show:
        content = writer.backup(show)
    if not content:
        return None
    if path is None:
        folder = state_folder(current().selection())
        if folder is None:
            raise Refused("there is no place for the backup", read="no state folder", remedy="give --backup FILE")
        folder = folder / BACKUPS
        folder.mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in session.link.serial or session.address)
        path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}.bin"
    elif path.exists():
        raise Refused(f"{path} exists already", means="an older backup would be lost", remedy="choose another name")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise Refused(f"the backup {path} cannot be written", read=error.strerror or "", remedy="give --backup FILE in a folder that can be written") from error
    return path
