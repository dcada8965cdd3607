"""`tghw flash ifwi` and `tghw flash mailbox`: IFWI images, and the security processor's flash mailbox."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from firmware import ifwi_layout
from firmware.ifwi import Difference, Ifwi, Report
from firmware.ifwi import diff as compare
from firmware.mailbox import MailboxGated
from firmware.mailbox_layout import GATED, ITEM_MASK, SIZE_SHIFT, EarlyCommand
from firmware.spi.errors import NoBackup, NotConfirmed
from hw.errors import EXIT_FAILED
from probes import render
from probes.context import current
from probes.flash_card import open_card, read_file
from probes.meter import meter

MOST_SHOWN = 32
"""rows of a list that people get to see"""


def register(flash: typer.Typer) -> None:
    ifwi = typer.Typer(help="IFWI images, the content of the flash.", no_args_is_help=True, rich_markup_mode=None)
    ifwi.command("show")(show)
    ifwi.command("diff")(diff)
    ifwi.command("stream")(stream)
    flash.add_typer(ifwi, name="ifwi")
    mailbox = typer.Typer(help="The security processor's flash mailbox.", no_args_is_help=True, rich_markup_mode=None)
    mailbox.command("probe")(probe)
    flash.add_typer(mailbox, name="mailbox")


# --- offline ----------------------------------------------------------------------------------------------------------


def show(file: Annotated[str, typer.Argument(help="an image, 2 MiB")]) -> None:
    """Show what is in an image: items with offsets, sizes and sha256, directories, slots, signatures, problems. Touches no device."""
    report = Ifwi(read_file(file)).report()
    if current().json:
        render.document({"file": file} | document(report))
        if report.problems:
            raise typer.Exit(EXIT_FAILED)
        return
    for line in lines(report):
        render.say(line)
    if report.problems:
        raise report.problems[0]


def document(report: Report) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "size": report.size,
        "sha256": report.sha256,
        "valid": not report.problems,
        "items": [{"item": item.number, "name": item.name, "offset": item.offset, "size": item.size, "sha256": digest} for item, digest in report.items],
        "directories": {f"{number:#04x}": [list(entry.words) for entry in entries] for number, entries in report.directories.items()},
        "slots": {f"{number:#04x}": {"payload_offset": offset, "payload_size": size} for number, (offset, size) in report.slots.items()},
        "signatures": [{"offset": entry.offset, "type": entry.words[0], "size": entry.words[2], "at": entry.words[3]} for entry in report.signatures],
        "problems": [{"offset": problem.offset, "problem": problem.problem, "what": problem.what, "read": problem.read} for problem in report.problems],
        "remarks": report.remarks,
    }


def lines(report: Report) -> list[str]:
    """A report for people."""
    text = [f"{render.size(report.size)}, sha256 {report.sha256}"]
    if report.items:
        text += ["", f"{'item':<6}{'offset':>10}{'size':>10}  {'sha256':<18}name"]
        text += [f"0x{item.number:02x}  {item.offset:>#10x}{item.size:>#10x}  {digest[:16]}  {item.name}" for item, digest in report.items]
    for number, entries in report.directories.items():
        text += ["", f"directory 0x{number:02x}: {len(entries)} entries"]
        text += [f"  {entry.offset:#08x}  " + " ".join(f"{word:08x}" for word in entry.words) for entry in entries[:MOST_SHOWN]]
        text += _rest(len(entries))
    for number, (offset, size) in report.slots.items():
        text += ["", f"slot 0x{number:02x} ({ifwi_layout.ITEM_NAMES[number]}): payload of {size:#x} bytes at {offset:#x}"]
    if report.signatures:
        text += ["", f"signature table: {len(report.signatures)} entries"]
        text += [f"  type {entry.words[0]:<#6x} {entry.words[2]:>#8x} bytes at {entry.words[3]:#x}" for entry in report.signatures[:MOST_SHOWN]]
        text += _rest(len(report.signatures))
    text += ["", *(f"remark: {remark}" for remark in report.remarks[:MOST_SHOWN])] if report.remarks else []
    text += ["", *(f"problem: {problem.what}" + (f" ({problem.read})" if problem.read else "") for problem in report.problems)] if report.problems else ["", "no problem found"]
    return text


def _rest(count: int) -> list[str]:
    return [f"  and {count - MOST_SHOWN} more"] if count > MOST_SHOWN else []


def diff(first: Annotated[str, typer.Argument(help="an image")], second: Annotated[str, typer.Argument(help="another one, for example a dump after an update")]) -> None:
    """Say where two images differ, by item, and which of it an update by the security processor explains."""
    found = compare(read_file(first), read_file(second))
    unexplained = [each for each in found if not each.explained]
    if current().json:
        render.document({"first": first, "second": second, "equal": not found, "explained": bool(found) and not unexplained, "differences": [each.to_dict() for each in found]})
        return
    if not found:
        render.say("the images are equal", style="bold green")
        return
    render.table(["offset", "bytes", "where", "explained by an update"], [_row(each) for each in found[:MOST_SHOWN]])
    for line in _rest(len(found)):
        render.say(line)
    render.say()
    if unexplained:
        render.say(f"{len(unexplained)} of {len(found)} differences ({sum(each.size for each in unexplained)} bytes) are not explained by an update", style="bold yellow")
    else:
        render.say("an update by the security processor explains every difference", style="bold green")


def _row(each: Difference) -> tuple[str, str, str, str]:
    return (f"{each.offset:#08x}", f"{each.size:#x}", (f"item 0x{each.item:02x}: " if each.item is not None else "") + each.where, each.explained or "no")


# --- mailbox ----------------------------------------------------------------------------------------------------------


def probe() -> None:
    """Ask the security processor four questions that start nothing: boot partition, memory, flash model, wanted item."""
    with open_card() as card:
        answers = card.port.mailbox.probe()
    wanted = next(each for each in answers if each.command == EarlyCommand.GET_TRANSFER_TYPE)
    gated = wanted.error == GATED
    if current().json:
        rows = [{"command": each.command, "name": each.command.name, "error": each.error, "error_text": each.error_text, "value": each.value} for each in answers]
        state = None if wanted.error else {"item": wanted.value & ITEM_MASK, "phase": wanted.value >> SIZE_SHIFT}
        render.document({"device": card.pci.address, "answers": rows, "gated": gated, "wanted": state})
        return
    for each in answers:
        render.say(f"  0x{each.command:02x} {each.command.name:<20}{each.error_text or f'{each.value:#010x}'}")
    if gated:
        render.say("the secure OS runs: updates are gated", style="yellow")
    elif not wanted.error:
        number = wanted.value & ITEM_MASK
        render.say(f"the firmware takes an update; it asks for item 0x{number:02x} ({ifwi_layout.ITEM_NAMES.get(number, 'unknown')})")


def stream(
    file: Annotated[str, typer.Argument(help="an image, 2 MiB")],
    yes: Annotated[bool, typer.Option("--yes", help="really change the flash")] = False,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="stream although there is no verified dump of this device")] = False,
) -> None:
    """Give an image to the security processor, which writes it item by item. The card must have booted by itself and nothing else may have."""
    image = Ifwi(read_file(file))
    problems = image.problems()
    if problems:
        raise problems[0]
    with open_card() as card:
        answers = {each.command: each for each in card.port.mailbox.probe()}
        wanted = answers[EarlyCommand.GET_TRANSFER_TYPE]
        if wanted.error == GATED:
            raise MailboxGated("flash updates through the security processor", read=f"GET_TRANSFER_TYPE answers {wanted.error_text}")
        total = sum(image.item(number).size for number in ifwi_layout.ITEMS)
        render.say(f"the security processor will be given up to {len(ifwi_layout.ITEMS)} items, {render.size(total)}; it chooses where they go")
        if not yes:
            raise NotConfirmed("streaming an image to the security processor")
        if not no_backup and card.backups.usable(ifwi_layout.SIZE) is None:
            raise NoBackup("streaming an image")
        sent: dict[int, int] = {}
        with meter("streaming") as progress:

            def on_progress(item: int, done: int, size: int) -> None:
                sent[item] = done
                progress(sum(sent.values()), total)

            report = card.port.mailbox.stream(image, on_progress)
    if current().json:
        render.document({"file": file, "items": report.items, "bytes": report.bytes_sent, "device_seconds": report.seconds, "last_state": report.last_state})
        return
    speed = render.size(int(report.bytes_sent / report.seconds)) if report.seconds else "-"
    render.say(f"the security processor took {len(report.items)} items, {render.size(report.bytes_sent)}, {speed}/s of device time", style="bold green")
    render.say("switch the card's power off and on; then `tghw flash dump` and `tghw flash ifwi diff` show what it wrote")

