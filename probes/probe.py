"""`tghw probe`: which devices are there, and in what state. Reading changes nothing on a device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bridges.asm24.errors import BridgeNotFound
from bridges.asm24.ids import UDEV_FILE, udev_rule
from bridges.open import Found, Selection, find, firmware_of, transport_of, usb_searched
from drivers.amd.chips import VENDOR_AMD, chip_of
from hw.errors import BarUnassigned, BusLost, DeviceBusy, MemoryDisabled, NothingFound, PermissionMissing, TghwError
from hw.pci import config
from hw.pci.caps import PowerManagement
from hw.pci.device import Bar, PciDevice
from probes import render
from probes.context import current

NO_DEVICE_REMEDY = (
    "check that the card has power and appears in `lspci`; for a USB bridge: `tghw probe --transport usb`; "
    "without hardware: `tghw --mock navi31 probe`"
)

USB_REMEDY = (
    "check cable and power of the bridge; a bridge that `lsusb` shows and this command may not open needs these lines in {file} "
    "(then `udevadm control --reload`, and plug it in again):\n{rule}\n  without hardware: `tghw --mock navi31-asm24 probe`"
)

CAPABILITY_HEAD = ("offset", "id", "name", "version", "extended")
"""what the line of a capability begins with, or leaves out"""
AWAKE = ("D0", "", None)
"""power states in which a function may be opened: opening one that sleeps would wake it"""


def register(app: typer.Typer) -> None:
    app.command("probe")(probe)


def probe(
    transport: Annotated[str, typer.Option(help="auto, pci, vfio, usb, usb4, remote or mock")] = "auto",
    everything: Annotated[bool, typer.Option("--all", help="also functions that are no GPU")] = False,
) -> None:
    """Find devices on every reachable bus: name, BARs, link, driver, boot state."""
    selection = current().selection()
    kind = transport_of(selection, transport)
    found = find(selection, transport)
    shown = [each for each in found if everything or each.is_amd_gpu or each.problem is not None]
    if not shown and kind == "usb":
        raise BridgeNotFound("no USB bridge was found", read=f"looked for {usb_searched()}", remedy=USB_REMEDY.format(rule=udev_rule(), file=UDEV_FILE))
    if not shown:
        raise NothingFound("no device was found", read=f"{len(found)} functions on {_bus_name(kind)}, none of them an AMD GPU", remedy=NO_DEVICE_REMEDY)
    described = []
    number = 0
    for each in shown:
        index = None
        if each.is_amd_gpu:
            index, number = number, number + 1
        described.append(_describe(each, index, selection))
    if current().json:
        render.document({"devices": described, "transport": kind})
    else:
        for item in described:
            _show(item)
    lost = [each.problem for each in shown if each.problem is not None]
    if len(lost) == len(shown):
        raise lost[0]


def _bus_name(kind: str) -> str:
    return {"pci": "this machine's PCI bus (/sys/bus/pci/devices)", "mock": "the simulated machine's PCI bus"}.get(kind, kind)


def _describe(each: Found, index: int | None, selection: Selection) -> dict[str, Any]:
    identity = each.id
    chip = chip_of(identity.device) if identity is not None and identity.vendor == VENDOR_AMD else None
    item: dict[str, Any] = {
        "index": index,
        "address": each.address,
        "transport": each.transport,
        "vendor": identity.vendor if identity else None,
        "device": identity.device if identity else None,
        "revision": identity.revision if identity else None,
        "class": identity.class_code if identity else None,
        "name": each.name,
        "arch": each.arch,
        "supported": bool(chip and chip.supported),
        "bars": [],
        "capabilities": [],
        "link": each.details.get("link") or None,
        "link_max": each.details.get("link_max") or None,
        "driver": each.details.get("driver") or None,
        "power_state": each.details.get("power_state") or None,
        "boot_state": None,
        "held_by": None,
        "problem": each.problem.to_dict() if each.problem else None,
        "bridge": each.details.get("bridge"),
    }
    if each.problem is not None:
        item["boot_state"] = "dead-bus"
        return item
    item["bars"] = [_bar_dict(bar) for bar in each.bars.values()]
    if item["power_state"] not in AWAKE:
        item["boot_state"] = "gated"
        return item
    try:
        with each.opener() as device:
            _read_device(item, device, each, selection)
    except BarUnassigned as problem:
        item["boot_state"], item["problem"] = "bars-unassigned", problem.to_dict()
    except BusLost as problem:
        item["boot_state"], item["problem"] = "dead-bus", problem.to_dict()
    except DeviceBusy as problem:
        item["held_by"] = problem.holder or problem.read or problem.what
    except (PermissionMissing, MemoryDisabled, TghwError) as problem:
        item["problem"] = problem.to_dict()
    return item


def _read_device(item: dict[str, Any], device: PciDevice, each: Found, selection: Selection) -> None:
    item["bars"] = [_bar_dict(bar) for bar in device.bars.values()]
    info = config.decode(device.config)
    if info.pcie is not None and not item["bridge"]:  # behind a bridge the slot's link counts, not that inside the card
        item["link"], item["link_max"] = info.pcie.link_status, info.pcie.link_capability
    item["capabilities"] = [capability.to_dict() for capability in info.capabilities]
    power = next((each for each in info.capabilities if isinstance(each, PowerManagement)), None)
    if power is not None:
        item["power_state"] = power.state
    if each.is_amd_gpu and item["supported"]:
        from drivers.amd.device import AmdDevice

        item["boot_state"] = AmdDevice(device, firmware_of(selection)).state()


def _bar_dict(bar: Bar) -> dict[str, Any]:
    return {
        "index": bar.index,
        "address": bar.address,
        "size": bar.size,
        "is_io": bar.is_io,
        "is_64bit": bar.is_64bit,
        "prefetchable": bar.prefetchable,
        "resizable_to": list(bar.resizable_to),
    }


def _capability_text(capability: dict[str, Any]) -> str:
    """One capability in a line: its name, and what is set in it."""
    facts = []
    for name, value in capability.items():
        words = name.replace("_", " ")
        if name in CAPABILITY_HEAD or value is False or value == []:
            continue
        if value is True:
            facts.append(words)
        elif isinstance(value, str | int):
            facts.append(f"{words} {value}")
        elif isinstance(value, list) and isinstance(value[0], str):
            facts.append(f"{words} {' '.join(value)}")
    return f"{capability['offset']:>6} {capability['name']}" + (f": {', '.join(facts)}" if facts else "")


def _show_bridge(bridge: dict[str, Any]) -> None:
    """What a GPU behind USB hangs on."""
    firmware = f", {bridge['firmware']} firmware {bridge['version']}".rstrip() if "firmware" in bridge else ""
    render.say(f"    bridge  {bridge['vendor']:04x}:{bridge['product_id']:04x} {bridge.get('product', '')}{firmware}")
    render.say(f"    USB     {bridge['usb_speed']:g} Mb/s")
    if bridge.get("degraded"):
        render.say(f"    note    {bridge['degraded']}", style="yellow")


def _show(item: dict[str, Any]) -> None:
    number = f"[{item['index']}] " if item["index"] is not None else "    "
    ids = f"{item['vendor']:04x}:{item['device']:04x} rev {item['revision']:02x}" if item["vendor"] is not None else "no answer"
    render.say(f"{number}{item['address']}  {item['name']}", style="bold")
    facts = [("ids", ids), ("arch", item["arch"] or "-"), ("state", item["boot_state"] or "-"), ("power", item["power_state"] or "-"), ("driver", item["driver"] or "none")]
    if item["held_by"]:
        facts.append(("held by", item["held_by"]))
    link = item["link"]
    if link:
        facts.append(("link", f"{link} (max {item['link_max']})"))
    for label, text in facts:
        render.say(f"    {label:<8}{text}")
    if item["bridge"]:
        _show_bridge(item["bridge"])
    for bar in item["bars"]:
        place = f"{bar['address']:#014x}" if bar["address"] else "unassigned    "
        kind = "I/O" if bar["is_io"] else ("64-bit" if bar["is_64bit"] else "32-bit") + (" prefetchable" if bar["prefetchable"] else "")
        up_to = f", resizable to {render.size(max(bar['resizable_to']))}" if bar["resizable_to"] else ""
        render.say(f"    BAR{bar['index']}    {place}  {render.size(bar['size'])}  {kind}{up_to}")
    if current().verbose:
        for capability in item["capabilities"]:
            render.say(f"    {_capability_text(capability)}")
    problem = item["problem"]
    if problem:
        for label, key in (("problem", "what"), ("read", "read"), ("means", "means"), ("do", "remedy")):
            if problem[key]:
                render.say(f"    {label:<8}{problem[key]}", style="red" if key == "what" else None)
