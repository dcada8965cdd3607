"""`tghw mock`: the simulated machines that come with the project."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hw.errors import BusLost, NotSupported
from probes import render
from probes.context import current


def register(app: typer.Typer) -> None:
    mock = typer.Typer(help="Simulated machines.", no_args_is_help=True, rich_markup_mode=None)
    mock.command("list")(list_profiles)
    mock.command("show")(show_profile)
    mock.command("serve")(serve)
    app.add_typer(mock, name="mock")


def list_profiles() -> None:
    """List the simulated machines."""
    from mocks.machine import load_profile, profile_names

    profiles = [{"name": name, "summary": load_profile(name).get("summary", "")} for name in profile_names()]
    if current().json:
        render.document({"profiles": profiles})
    render.table(["profile", "machine"], [(each["name"], each["summary"]) for each in profiles])


def show_profile(profile: Annotated[str, typer.Argument(help="name or TOML file")]) -> None:
    """Show what is in a simulated machine, and which faults it can be given."""
    from mocks.faults import FAULTS
    from mocks.machine import Machine

    machine = Machine.from_profile(profile)
    functions: list[dict[str, Any]] = []
    for function in machine.functions():
        try:
            identity = function.identity()
        except BusLost as problem:
            functions.append({"address": function.address, "vendor": None, "device": None, "class": None, "role": function.role, "problem": problem.what})
            continue
        functions.append({"address": function.address, "vendor": identity.vendor, "device": identity.device, "class": identity.class_code, "role": function.role, "problem": None})
    summary = machine.profile.get("summary", "")
    if current().json:
        render.document({"name": machine.name, "summary": summary, "functions": functions, "faults": dict(FAULTS)})
        return
    render.say(f"{machine.name}: {summary}", style="bold")
    rows = []
    for each in functions:
        ids = f"{each['vendor']:04x}:{each['device']:04x}" if each["vendor"] is not None else each["problem"]
        rows.append((each["address"], ids, f"{each['class']:06x}" if each["class"] is not None else "-", each["role"] or "-"))
    render.table(["address", "ids", "class", "role"], rows)
    render.say()
    render.table(["fault (--fault NAME[=ARGUMENT],...)", "what happens"], sorted(FAULTS.items()))


def serve(profile: Annotated[str, typer.Argument(help="name or TOML file")]) -> None:
    """Run a simulated machine as a process of its own."""
    raise NotSupported(
        f"serving {profile}",
        means="machines are served over the TCP bridge, which is not built yet",
        remedy="use --mock PROFILE: the machine then lives inside the command",
    )
