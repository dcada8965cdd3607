"""`tghw flash`: look at a card's SPI flash, copy it, check it, write it, or lend it to flashrom."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer

from firmware.serprog import DEFAULT_PORT, Programmer, Server
from firmware.spi import backup
from firmware.spi.errors import ImageRefused, NoBackup, NotConfirmed
from firmware.spi.method import Choice
from firmware.spi.plan import Plan, make_plan
from firmware.spi.rom_index import IMAGE_MAGIC
from firmware.spi.writer import Writer, check_protection, first_difference
from hw.errors import UsageError
from probes import flash_ifwi, render
from probes.context import current
from probes.flash_card import Card, clocked, identity_of, open_card, plan_chip, protection_of, read_file
from probes.meter import meter

METHOD = typer.Option(help="way to the flash: auto (what the card answers decides), rom-sw, rom-index")
VALIDATED = typer.Option("--validated", help="read every piece by the two-transaction form, without the faster one and its check (rom-sw)")
START = typer.Option("--start-sector", help="first sector of the range")
COUNT = typer.Option("--sector-count", help="sectors of the range; default: to the end")
YES = typer.Option("--yes", help="really change the flash")
NO_BACKUP = typer.Option("--no-backup", help="write although there is no verified dump of this device")


def register(app: typer.Typer) -> None:
    flash = typer.Typer(help="The SPI flash of a GPU, see docs/flash.md.", no_args_is_help=True, rich_markup_mode=None)
    for name, command in (("info", info), ("read", read), ("dump", dump), ("verify", verify), ("write", write), ("serprog", serprog)):
        flash.command(name)(command)
    flash_ifwi.register(flash)
    app.add_typer(flash, name="flash")


def info(method: Annotated[str, METHOD] = "auto") -> None:
    """Say which way to the flash works and why, which chip is there, and what protects it."""
    with open_card() as card:
        choice = card.choose(method)
        with choice.source.session():
            first = choice.source.read(0, 16)
            status = choice.flash.status() if choice.flash else None
        unfinished = card.journal.load()
        document: dict[str, Any] = {
            "device": card.pci.address,
            "method": choice.method,
            "reasons": choice.reasons,
            "size": choice.source.size,
            "chip": identity_of(choice),
            "status": {"sr1": status.sr1, "sr2": status.sr2, "sr3": status.sr3} if status else None,
            "protection": protection_of(choice, status),
            "writable": choice.read_only is None,
            "read_only_because": f"{choice.read_only.what}: {choice.read_only.means}" if choice.read_only else None,
            "first_bytes": first.hex(),
            "content": _kind_of(first),
            "unfinished_write": _unfinished(card),
            "backup": vars(found) if (found := card.backups.usable(choice.source.size)) else None,
        }
    if current().json:
        render.document(document)
        return
    _say_choice(choice)
    chip = document["chip"]
    rows = [("size", render.size(choice.source.size))]
    if chip:
        erases = ", ".join(f"{render.size(int(size))} (0x{opcode:02x})" for size, opcode in chip["erases"].items())
        rows = [("chip", f"{chip['vendor']} {chip['name']}, id {chip['jedec']}"), *rows, ("erases", erases)]
    if status:
        rows.append(("status", f"SR1 {status.sr1:#04x}, SR2 {status.sr2:#04x}, SR3 {status.sr3:#04x}"))
        rows.append(("protection", document["protection"]["why"]))
        if document["protection"]["locked"]:
            rows.append(("", document["protection"]["locked"]))
    rows += [("begins with", f"{first.hex(' ')}  ({document['content']})"), ("writing", "possible" if document["writable"] else str(document["read_only_because"]))]
    if unfinished is not None:
        rows.append(("unfinished", f"a write of {unfinished.name or 'an image'} was interrupted: {len(unfinished.done)} sectors done, {len(unfinished.damaged)} half done"))
    rows.append(("backup", document["backup"]["path"] if document["backup"] else "no verified dump of this device is known"))
    for label, text in rows:
        render.say(f"  {label:<12}{text}")


def _kind_of(first: bytes) -> str:
    if first[:4] == IMAGE_MAGIC:
        return "an IFWI image"
    return "blank" if first.count(0xFF) == len(first) else "no IFWI image"


def _unfinished(card: Card) -> dict[str, Any] | None:
    found = card.journal.load()
    return None if found is None else {"image": found.image, "name": found.name, "done": len(found.done), "half_done": sorted(found.damaged)}


def _say_choice(choice: Choice) -> None:
    render.say(f"method: {choice.method}", style="bold")
    for reason in choice.reasons:
        render.say(f"  {reason}")
    if choice.flash is not None:
        identity = choice.flash.identity
        if identity.rotation:
            render.say(f"  the id came rotated by {identity.rotation}: {identity.captured.hex(' ')}")
        if identity.sfdp_offset is not None:
            render.say(f"  the id is not in the table; the chip describes itself (SFDP at offset {identity.sfdp_offset} of the capture)")


def read(
    address: Annotated[str, typer.Argument(help="offset in the flash, decimal or 0x...")],
    size: Annotated[str, typer.Argument(help="bytes")],
    out: Annotated[str | None, typer.Option(help="write them to this file instead of showing them")] = None,
    method: Annotated[str, METHOD] = "auto",
    validated: Annotated[bool, VALIDATED] = False,
) -> None:
    """Read bytes."""
    offset, count = _number(address), _number(size)
    with open_card(pipelined=not validated) as card:
        choice = card.choose(method)
        if count < 1 or offset + count > choice.source.size:
            raise UsageError(f"{count:#x} bytes at {offset:#x}", read=f"the flash has {choice.source.size:#x} bytes")
        with meter("reading") as show:
            data = choice.source.read(offset, count, show)
    if out is not None:
        _write_out(Path(out), data)
    if current().json:
        render.document({"offset": offset, "size": count, "method": choice.method, "sha256": hashlib.sha256(data).hexdigest(), "data": None if out else data.hex()})
        return
    if out is not None:
        render.say(f"{count} bytes in {out}")
        return
    for place in range(0, count, 16):
        row = data[place : place + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        render.say(f"{offset + place:08x}  {row.hex(' '):<47}  {text}")


def _number(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a number", remedy="decimal, or hexadecimal with 0x") from error
    if value < 0:
        raise UsageError(f"{text} is negative")
    return value


def _write_out(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", read=error.strerror or str(error)) from error


def dump(
    file: Annotated[str, typer.Argument(help="where to keep the copy; another file of that name is kept beside it")],
    method: Annotated[str, METHOD] = "auto",
    validated: Annotated[bool, VALIDATED] = False,
) -> None:
    """Copy the whole flash to a file: read twice, compared, checked, then put in place."""
    path = Path(file)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise UsageError(f"{path} cannot be a file", read="it is a folder" if path.is_dir() else "its folder does not exist")
    with open_card(pipelined=not validated) as card:
        choice = card.choose(method)
        _say_choice(choice)
        start = card.pci.clock.now()
        with clocked() as seconds, meter("reading twice") as show:
            content = backup.read_twice(choice, show)
        made, aside = backup.save(content, path, choice.method, card.backups)
    if current().json:
        render.document(
            {
                "file": str(path),
                "size": made.size,
                "sha256": made.sha256,
                "method": choice.method,
                "reasons": choice.reasons,
                "remarks": card.port.engine.remarks,
                "content": _kind_of(content),
                "kept": str(aside) if aside else None,
                "device_seconds": card.pci.clock.now() - start,
                "seconds": seconds(),
            }
        )
        return
    for remark in card.port.engine.remarks:
        render.say(f"  {remark}")
    if aside is not None:
        render.say(f"the file that was there holds something else and is now {aside}")
    render.say(f"{path}: {render.size(made.size)}, read twice and equal, {_kind_of(content)}", style="bold green")
    render.say(f"sha256 {made.sha256}")


def verify(
    file: Annotated[str, typer.Argument(help="what the flash should hold")],
    start_sector: Annotated[int, START] = 0,
    sector_count: Annotated[int | None, COUNT] = None,
    method: Annotated[str, METHOD] = "auto",
    validated: Annotated[bool, VALIDATED] = False,
) -> None:
    """Compare the flash with a file."""
    image = read_file(file)
    with open_card(pipelined=not validated) as card:
        choice = card.choose(method)
        _say_choice(choice)
        _check_size(file, image, choice)
        start, count = _range(choice, start_sector, sector_count)
        with meter("reading") as show:
            content = backup.read_whole(choice, show) if choice.aperture else choice.source.read(start, count, show)
        if choice.aperture:
            content = content[start : start + count]
    problem = first_difference(image[start : start + count], content, start)
    if problem is not None:
        problem.remedy = f"{sum(a != b for a, b in zip(image[start : start + count], content, strict=True))} bytes differ in all; `tghw flash write` brings the file's content in"
        raise problem
    digest = hashlib.sha256(content).hexdigest()
    if current().json:
        render.document({"file": file, "ok": True, "offset": start, "size": count, "sha256": digest, "method": choice.method, "reasons": choice.reasons})
        return
    render.say(f"the flash holds exactly what {file} says: {render.size(count)}, sha256 {digest}", style="bold green")


def _check_size(file: str, image: bytes, choice: Choice) -> None:
    if len(image) != choice.source.size:
        raise ImageRefused(
            f"{file} has not the size of the flash",
            read=f"{len(image):#x} bytes, the flash has {choice.source.size:#x}",
            means="an image is the content of the whole flash; a part of it, or one for another chip, would be put in the wrong place",
            remedy="use a complete image; --start-sector and --sector-count choose which part of it is written",
        )


def _range(choice: Choice, start_sector: int, sector_count: int | None) -> tuple[int, int]:
    """(offset, bytes) of a range in sectors."""
    sector = plan_chip(choice).sector
    sectors = choice.source.size // sector
    count = sectors - start_sector if sector_count is None else sector_count
    if start_sector < 0 or count < 1 or start_sector + count > sectors:
        raise UsageError(f"sectors {start_sector} to {start_sector + count - 1}", read=f"the flash has sectors 0 to {sectors - 1} of {sector:#x} bytes")
    return start_sector * sector, count * sector


def write(
    file: Annotated[str, typer.Argument(help="the content of the whole flash")],
    yes: Annotated[bool, YES] = False,
    clear_cmp: Annotated[bool, typer.Option("--clear-cmp", help="clear the chip's CMP protection bit first, where it is in the way")] = False,
    start_sector: Annotated[int, START] = 0,
    sector_count: Annotated[int | None, COUNT] = None,
    no_backup: Annotated[bool, NO_BACKUP] = False,
    method: Annotated[str, METHOD] = "auto",
    validated: Annotated[bool, VALIDATED] = False,
) -> None:
    """Write an image: compare first, then erase and program only what differs, read back; goes on where it was interrupted."""
    image = read_file(file)
    with open_card(pipelined=not validated) as card:
        choice = card.choose(method)
        _say_choice(choice)
        _check_size(file, image, choice)
        start, count = _range(choice, start_sector, sector_count)
        _say_unfinished(card, image)
        with choice.source.session():
            _write(card, choice, file, image, (start, count), yes=yes, clear_cmp=clear_cmp, no_backup=no_backup)


def _say_unfinished(card: Card, image: bytes) -> None:
    found = card.journal.load()
    if found is None:
        return
    same = found.image == hashlib.sha256(image).hexdigest()
    what = "goes on with" if same else "comes after"
    render.say(f"this {what} a write of {found.name or 'another image'} that was interrupted: {len(found.done)} sectors were done, {len(found.damaged)} half done")


def _write(card: Card, choice: Choice, file: str, image: bytes, span: tuple[int, int], *, yes: bool, clear_cmp: bool, no_backup: bool) -> None:
    start, count = span
    chip = plan_chip(choice)
    begin = card.pci.clock.now()
    with meter("reading what is there") as show:
        present = choice.source.read(start, count, show)
    reading = (card.pci.clock.now() - begin) / count
    unfinished = card.journal.load()
    content = image[:start] + present + image[start + count :]
    plan = make_plan(chip, content, image, start // chip.sector, count // chip.sector, unfinished.damaged if unfinished else ())
    transfers = 3 * reading * plan.program_bytes + reading * (count + len(plan.sectors) * chip.sector)
    _say_plan(plan, image, plan.device_seconds + transfers)
    if plan.nothing_to_do:
        card.journal.forget_complete(hashlib.sha256(image).hexdigest())
        _finished(file, image, choice, plan, None)
        return
    if choice.read_only is not None or choice.flash is None:
        assert choice.read_only is not None
        raise choice.read_only
    status = choice.flash.status()
    clear = check_protection(choice.flash, status, plan, clear_cmp=clear_cmp)
    if clear:
        render.say(f"{choice.flash.protection(status).why}: CMP will be cleared first (--clear-cmp)")
    if not yes:
        raise NotConfirmed(f"writing {len(plan.sectors)} sectors of the flash")
    if not no_backup and card.backups.usable(choice.source.size) is None:
        raise NoBackup("writing the flash", read=f"{len(card.backups.all())} dumps of this device are recorded, none of them usable")
    with meter("writing") as show:
        writer = Writer(choice.flash, image, plan, card.journal, show)
        try:
            report = writer.run(name=Path(file).name, clear_cmp=clear)
        except KeyboardInterrupt:
            render.note(f"stopped: {writer.state()}; the same command goes on from here", style=None)
            raise
    _finished(file, image, choice, plan, vars(report))


def _say_plan(plan: Plan, image: bytes, seconds: float) -> None:
    if plan.nothing_to_do:
        return
    render.say("plan:", style="bold")
    render.say(f"  {len(plan.differing)} of {plan.count} sectors differ" + (f", {len(plan.redo)} more were left half done by an interrupted write" if plan.redo else ""))
    erases = ", ".join(f"{number} x {render.size(size)}" for size, number in plan.erases.items()) or "none"
    render.say(f"  erases: {erases}; programs {render.size(plan.program_bytes)}; about {render.duration(seconds)}")
    if plan.sealed:
        render.say("  sector 0 is erased first and written last, so that the card cannot boot from half an image and a stopped write can be finished")
    if plan.start == 0 and image[:4] != IMAGE_MAGIC:
        render.say(f"  the file does not begin with {IMAGE_MAGIC.hex(' ')}: the card will not boot from it", style="yellow")


def _plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "start_sector": plan.start,
        "sector_count": plan.count,
        "differing": len(plan.differing),
        "redone": len(plan.redo),
        "written": len(plan.sectors),
        "erases": {str(size): number for size, number in plan.erases.items()},
        "program_bytes": plan.program_bytes,
        "chip_seconds": plan.device_seconds,
    }


def _finished(file: str, image: bytes, choice: Choice, plan: Plan, report: dict[str, Any] | None) -> None:
    digest = hashlib.sha256(image).hexdigest()
    if current().json:
        render.document({"file": file, "sha256": digest, "method": choice.method, "reasons": choice.reasons, "plan": _plan_document(plan), "report": report})
        return
    if report is None:
        render.say(f"nothing to do: the flash holds what {file} says", style="bold green")
        return
    render.say(f"written and read back: {report['sectors']} sectors, {report['erases']} erases, {render.size(report['bytes_programmed'])} programmed", style="bold green")
    if report["cmp_cleared"]:
        render.say("CMP was cleared and stays so")
    if report["damaged_elsewhere"]:
        render.say(f"sectors outside this range are still half done from an earlier write: {', '.join(map(str, report['damaged_elsewhere']))}", style="yellow")
    if plan.start == 0 and image[:4] == IMAGE_MAGIC:
        render.say("power-cycle the card to let it boot from the new image")


def serprog(
    listen: Annotated[str, typer.Option(help="HOST:PORT; by default this machine alone can connect")] = f"127.0.0.1:{DEFAULT_PORT}",
    yes: Annotated[bool, typer.Option("--yes", help="let the client erase and program")] = False,
    clear_cmp: Annotated[bool, typer.Option("--clear-cmp", help="clear the chip's CMP protection bit before anybody connects")] = False,
    no_backup: Annotated[bool, NO_BACKUP] = False,
) -> None:
    """Be a programmer for flashrom: flashrom -p serprog:ip=127.0.0.1:4444. Ends with Ctrl-C."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {listen}", remedy="HOST:PORT, for example 127.0.0.1:4444")
    with open_card() as card:
        choice = card.choose("rom-sw")
        flash = choice.flash
        assert flash is not None
        if yes and not no_backup and card.backups.usable(flash.size) is None:
            raise NoBackup("letting a client write the flash")
        with flash.session():
            if clear_cmp and flash.protection().by_cmp:
                if not yes:
                    raise NotConfirmed("clearing CMP")
                flash.clear_cmp()
            protection = flash.protection()
        programmer = Programmer(flash, may_write=yes, report=lambda text: render.note(text, style="yellow"))
        try:
            server = Server(programmer, host, int(port))
        except OSError as error:
            raise UsageError(f"listening on {listen}", read=error.strerror or str(error), remedy="choose another port") from error
        allowed = "reading and writing" if yes else "reading only (--yes allows writing)"
        render.note(f"{flash.chip.vendor} {flash.chip.name} on {server.address[0]}:{server.address[1]}; {allowed}", style=None)
        if not protection.nothing:
            render.note(f"{protection.why}: erase and program commands to it are refused", style="yellow")
        render.note(f"flashrom -p serprog:ip={server.address[0]}:{server.address[1]}", style=None)
        try:
            server.serve_forever()
        finally:
            server.close()
            if current().json:
                render.document({"device": card.pci.address, "chip": identity_of(choice), "listen": f"{server.address[0]}:{server.address[1]}", **vars(programmer.counts)})
