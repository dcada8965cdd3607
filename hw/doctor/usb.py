"""Conditions of USB bridges, from the kernel's view of the USB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hw.doctor.findings import Answer, Check, Scene, block, ok, unknown, warn

SUPER_SPEED = 5000
"""Mb/s of USB 3"""
USBFS_WANTED = 64
"""MiB for transfers in flight; the kernel's default is 16"""


def bridges(scene: Scene) -> list[Path]:
    """Directories of the attached bridges."""
    found = []
    for directory in sorted((scene.host.sys / "bus" / "usb" / "devices").glob("*")):
        vendor, product = (scene.host.number(directory / name, 16) for name in ("idVendor", "idProduct"))
        if vendor is not None and product is not None and scene.is_bridge(vendor, product):
            found.append(directory)
    return found


def each(answer: Callable[[Scene, Path], Answer | None]) -> Callable[[Scene], Iterator[tuple[str, Answer]]]:
    """A check of every bridge, from one of a single bridge."""

    def run(scene: Scene) -> Iterator[tuple[str, Answer]]:
        for directory in bridges(scene):
            found = answer(scene, directory)
            if found is not None:
                yield f"usb:{directory.name}", found

    return run


def present(scene: Scene) -> Answer:
    found = bridges(scene)
    if found:
        return ok(", ".join(f"usb:{directory.name}" for directory in found))
    attached = len(list((scene.host.sys / "bus" / "usb" / "devices").glob("*/idVendor")))
    return block(f"none among {attached} USB devices", "check cable and power of the enclosure; `lsusb` shows ADD1:0001 or 174C:246x when it is there")


def firmware(scene: Scene, directory: Path) -> Answer:
    product = scene.host.text(directory / "product")
    if not product:
        return unknown("no product string", "unplug the bridge and plug it in again")
    return ok(f"product string {product!r}")


def speed(scene: Scene, directory: Path) -> Answer:
    value = scene.host.text(directory / "speed") or ""
    number = float(value) if value.replace(".", "", 1).isdigit() else 0.0
    if not number:
        return unknown(f"speed {value!r}", "look at `lsusb -t`")
    if number >= SUPER_SPEED:
        return ok(f"{value} Mb/s")
    return warn(f"{value} Mb/s: USB 2", "use a USB 3 port and a cable for at least 5 Gb/s; turn a USB-C plug around")


def suspend(scene: Scene, directory: Path) -> Answer:
    value = scene.host.text(directory / "power" / "control")
    if value != "auto":
        return ok("stays awake")
    return warn("may be suspended when idle", f"as root: echo on > /sys/bus/usb/devices/{directory.name}/power/control")


def permission(scene: Scene, directory: Path) -> Answer:
    bus, device = (scene.host.number(directory / name, 10) or 0 for name in ("busnum", "devnum"))
    path = scene.host.dev / "bus" / "usb" / f"{bus:03d}" / f"{device:03d}"
    if scene.host.may_use(path):
        return ok(f"/dev/bus/usb/{bus:03d}/{device:03d}")
    return block(f"may not use /dev/bus/usb/{bus:03d}/{device:03d}", "install the udev rule of docs/permissions.md, then unplug the bridge and plug it in again")


def claimed(scene: Scene, directory: Path) -> Answer:
    """The interface's kernel driver: uas or usb-storage take a bridge with stock firmware for a disk."""
    driver = next((name for path in sorted(directory.glob(f"{directory.name}:*")) if (name := scene.host.link_name(path / "driver"))), "")
    if not driver:
        return ok("no kernel driver")
    if driver == "usbfs":
        return block("another program has it", f"end it: lsof /dev/bus/usb shows which; or unplug usb:{directory.name}")
    return ok(f"kernel driver {driver}, which is taken off while the bridge is in use")


def memory(scene: Scene) -> Answer | None:
    if not bridges(scene):
        return None
    value = scene.host.number(scene.host.sys / "module" / "usbcore" / "parameters" / "usbfs_memory_mb", 10)
    if value is None:
        return None
    if value == 0 or value >= USBFS_WANTED:
        return ok(f"{value} MiB" if value else "no limit")
    return warn(f"{value} MiB, {USBFS_WANTED} are wanted", f"as root: echo {USBFS_WANTED} > /sys/module/usbcore/parameters/usbfs_memory_mb")


CHECKS = (
    Check("usb-bridge", "bridge found", "the GPU is reached through it", on_machine=present),
    Check("usb-firmware", "bridge firmware", "its product string tells which protocol the bridge speaks", on_named=each(firmware)),
    Check("usb-speed", "USB speed", "USB 2 is twenty times slower than USB 3", on_named=each(speed)),
    Check("usb-suspend", "USB power saving", "a bridge that is suspended loses its link to the GPU", on_named=each(suspend)),
    Check("usb-permission", "permission for the bridge", "programs talk to it through its node", on_named=each(permission)),
    Check("usb-claimed", "other users of the bridge", "an interface has one user at a time", on_named=each(claimed)),
    Check("usb-memory", "memory for USB transfers", "long transfers in flight need more than the kernel's default", on_machine=memory),
)
