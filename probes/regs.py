"""`tghw regs`: registers of a GPU by name, decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bridges.open import open_amd
from drivers.amd.registers import Difference, Registers, Value, acting, differences, to_document
from hw.errors import Refused, UsageError
from probes import render
from probes.context import current

UNTIL_HELP = "boot the card up to this stage first (a simulated card is switched on anew by every command)"
BLOCK_HELP = "only registers of this block: NBIO, MP0, MP1, HDP, OSSSYS, MMHUB, GC, SMUIO, or EARLY for those at fixed places"
STDOUT = "-"


def register(app: typer.Typer) -> None:
    regs = typer.Typer(help="Registers by name, decoded.", no_args_is_help=True, rich_markup_mode=None)
    regs.command("list")(list_registers)
    regs.command("read")(read)
    regs.command("write")(write)
    regs.command("dump")(dump)
    regs.command("diff")(diff)
    app.add_typer(regs, name="regs")


@contextmanager
def _opened(until: str | None) -> Iterator[Registers]:
    """The registers of the selected card; a card that was booted for this is left clean."""
    device = open_amd(current().selection())
    try:
        if until is None:
            device.discover()
        else:
            names = [stage.name for stage in device.stages]
            if until not in names:
                raise UsageError(f"there is no stage {until}", remedy=f"the stages are {', '.join(names)}")
            device.boot(until=until)
        yield Registers(device)
        if device.booted:
            device.finish()
    finally:
        device.close()


def list_registers(
    pattern: Annotated[str, typer.Argument(help="piece of a name, or a pattern with * and ?")] = "",
    block: Annotated[str | None, typer.Option(help=BLOCK_HELP)] = None,
) -> None:
    """List the registers that the card's tables name, with their fields. None of them is read."""
    with _opened(None) as registers:
        found = list(registers.names(pattern, block))
        if not found:
            raise UsageError(f"no register matches {pattern!r}", remedy="`tghw regs list` without a pattern lists all")
        entries: list[dict[str, Any]] = []
        for each, name in found:
            base, offset = registers.tables[each].place(name)
            fields = {field: list(bits) for field, bits in registers.tables[each].fields(name).items()}
            entries.append({"block": each, "name": name, "base": base, "offset": offset, "fields": fields, "acts_when_read": acting(name)})
    if current().json:
        render.document({"registers": entries})
        return
    rows = []
    for entry in entries:
        place = f"{entry['offset']:#x}" if entry["base"] is None else f"base {entry['base']} + {entry['offset']:#x}"
        rows.append((entry["block"], entry["name"], place, " ".join(f"{name}[{_bits(bits)}]" for name, bits in entry["fields"].items())))
    render.table(["block", "register", "dword", "fields"], rows)


def _bits(bits: list[int]) -> str:
    low, high = bits
    return f"{low}" if low == high else f"{high}:{low}"


def read(
    names: Annotated[list[str], typer.Argument(help="exact names, or patterns with * and ?")],
    until: Annotated[str | None, typer.Option(help=UNTIL_HELP)] = None,
) -> None:
    """Read registers and decode their fields."""
    with _opened(until) as registers:
        values: list[Value] = []
        for name in names:
            if any(character in name for character in "*?["):
                values += [registers.read(block, found) for block, found in registers.names(name)]
            else:
                block, found_register = registers.find(name)
                values.append(registers.read(block, found_register.name, even_acting=True))
    if not values:
        raise UsageError(f"no register matches {' '.join(names)}", remedy="`tghw regs list` shows the names there are")
    if current().json:
        render.document({"registers": [each.to_dict() for each in values]})
        return
    for each in values:
        _show(each)


def _show(value: Value) -> None:
    if value.value is None:
        render.say(f"{value.block}.{value.name}: not read: {value.reason}", style="dim")
        return
    render.say(f"{value.block}.{value.name} = {value.value:#010x}   dword {value.index:#x}", style="bold")
    for name, number in value.fields.items():
        render.say(f"    {name:<40}{number:#x}" + (f" ({number})" if number > 9 else ""))


def write(
    name: Annotated[str, typer.Argument(help="exact name")],
    values: Annotated[list[str], typer.Argument(help="a whole value, or FIELD=VALUE ... (the other fields keep what they hold)")],
    yes: Annotated[bool, typer.Option("--yes", help="really write: a wrong value can hang the card or the machine")] = False,
    until: Annotated[str | None, typer.Option(help=UNTIL_HELP)] = None,
) -> None:
    """Write a register, and read it back."""
    with _opened(until) as registers:
        block, register = registers.find(name)
        before, new = _new_value(registers, block, register.name, values)
        shown = "" if before.value is None else f" (it holds {before.value:#010x})"
        if not yes:
            raise Refused(
                f"writing {new:#010x} to {block}.{register.name}{shown}",
                means="a register takes effect at once; a wrong value can hang the card or the machine",
                remedy="add --yes to write it",
            )
        register.write(new)
        after = registers.read(block, register.name)
    if current().json:
        render.document({**after.to_dict(), "before": before.value, "written": new})
        return
    render.say(f"{block}.{register.name}: wrote {new:#010x}{shown}")
    _show(after)


def _new_value(registers: Registers, block: str, name: str, words: list[str]) -> tuple[Value, int]:
    """(what the register holds, what is to be written). Raises UsageError, UnknownRegister; nothing is written yet."""
    before = registers.read(block, name)
    table = registers.tables[block]
    if len(words) == 1 and "=" not in words[0]:
        value = _number(words[0])
        if value >> 32:
            raise UsageError(f"{value:#x} does not fit into {name}", read="registers have 32 bits")
        return before, value
    fields = {}
    for word in words:
        field, equals, number = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is no FIELD=VALUE", remedy="give one whole value, or FIELD=VALUE for each field to change")
        fields[field.lower()] = _number(number)
    if before.value is None:
        raise UsageError(f"{name} cannot be read, so single fields cannot be changed", read=before.reason, remedy="give the whole value")
    try:
        mask, bits = table.select(name, fields)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return before, before.value & ~mask | bits


def _number(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError as error:
        raise UsageError(f"{text!r} is no number", remedy="like 17 or 0x11") from error
    if value < 0:
        raise UsageError(f"{text} is negative", remedy="registers hold 0 and up")
    return value


def dump(
    file: Annotated[str, typer.Argument(help="JSON file to write; - or nothing: stdout")] = STDOUT,
    block: Annotated[str | None, typer.Option(help=BLOCK_HELP)] = None,
    until: Annotated[str | None, typer.Option(help=UNTIL_HELP)] = None,
) -> None:
    """Read every register whose reading changes nothing, into a file for `tghw regs diff`."""
    with _opened(until) as registers:
        state = registers.dev.state()
        values = list(registers.dump(block))
        document = to_document(registers, values, state=state)
    if file == STDOUT:
        render.document(document)
        return
    try:
        Path(file).write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"writing {file}", read=error.strerror or str(error), remedy="give another file name") from error
    done = sum(1 for each in values if each.value is not None)
    reasons: dict[str, int] = {}
    for each in values:
        if each.value is None:
            reasons[each.reason] = reasons.get(each.reason, 0) + 1
    if current().json:
        render.document({"file": file, "read": done, "skipped": reasons})
        return
    render.say(f"{file}: {done} registers of {document['device']['address']}, state {state}")
    for reason, count in reasons.items():
        render.say(f"  {count} not read: {reason}", style="dim")


def diff(before: Annotated[str, typer.Argument(help="dump file")], after: Annotated[str, typer.Argument(help="dump file")]) -> None:
    """Compare two dumps by register and field."""
    found = differences(_load(before), _load(after))
    if current().json:
        render.document({"differences": [_difference(each) for each in found]})
        return
    for each in found:
        render.say(f"{each.block}.{each.name}: {_side(each.before)} -> {_side(each.after)}", style="bold")
        for name, (old, new) in each.fields.items():
            render.say(f"    {name or '(bits without a name)':<40}{old:#x} -> {new:#x}")
    render.say(f"{len(found)} registers differ" if found else "no register differs")


def _side(value: int | None) -> str:
    return "not read" if value is None else f"{value:#010x}"


def _difference(each: Difference) -> dict[str, Any]:
    fields = {name: {"before": old, "after": new} for name, (old, new) in each.fields.items()}
    return {"block": each.block, "name": each.name, "before": each.before, "after": each.after, "fields": fields}


def _load(file: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(file).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"reading {file}", read=str(error), remedy="give a file that `tghw regs dump` wrote") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file} is no register dump", read=type(document).__name__, remedy="give a file that `tghw regs dump` wrote")
    return document
