"""Conditions of one PCI function: alive, awake, free, reachable, and as fast as it could be."""

from __future__ import annotations

import os
import re

from hw import lock
from hw.dma import TRANSLATING
from hw.doctor.findings import Answer, Check, Route, Scene, block, ok, unknown, warn
from hw.pci import groups
from hw.pci.binding import users_of
from hw.pci.config import BytesConfig, decode
from hw.pci.device import show_size
from hw.pci.extcaps import Acs
from hw.pci.functions import AWAKE, PciFunction

FOUR_GIB = 1 << 32
SMALL_BAR = 256 << 20
"""bytes; what the firmware gives a GPU whose BAR it does not resize"""
GPU_FAMILIES = ("amd", "nv")
NO_LINK = ("", "0", "63", "255")
"""widths that ports without a working link show"""


def config_alive(scene: Scene, device: PciFunction) -> Answer | None:
    if device.power_state not in AWAKE:
        return None  # reading it would wake it
    try:
        descriptor = scene.host.open(scene.directory(device) / "config", os.O_RDONLY)
        try:
            ids = os.pread(descriptor, 4, 0)
        finally:
            os.close(descriptor)
    except PermissionError:
        return None  # told by the check of permissions
    except OSError as error:
        return unknown(f"config: {os.strerror(error.errno or 0)}", f"look whether the device is still there: ls -l /sys/bus/pci/devices/{device.address}/")
    if ids == b"\xff" * 4:
        return block("vendor/device 0xffffffff", f"check the card's power; as root: echo 1 > /sys/bus/pci/devices/{device.address}/remove; echo 1 > /sys/bus/pci/rescan")
    return ok(f"{int.from_bytes(ids[:2], 'little'):04x}:{int.from_bytes(ids[2:], 'little'):04x}")


def driver_bound(scene: Scene, device: PciFunction) -> Answer | None:
    if not device.driver or device.driver == groups.VFIO_PCI:
        return ok(f"kernel driver: {device.driver or 'none'}")
    if users_of(device.address, scene.host):
        return None  # told by the next check
    path = f"/sys/bus/pci/devices/{device.address}/driver/unbind"
    return block(f"kernel driver: {device.driver}", f"as root: echo {device.address} > {path}; to keep it off: module_blacklist={device.driver} on the kernel's command line")


def driver_in_use(scene: Scene, device: PciFunction) -> Answer | None:
    users = users_of(device.address, scene.host) if device.driver and device.driver != groups.VFIO_PCI else []
    if not users:
        return None
    remedy = "end these processes (a display manager: systemctl isolate multi-user.target), then unbind the driver"
    return block(f"kernel driver {device.driver}, used by {', '.join(map(str, users))}", remedy)


def console(scene: Scene, device: PciFunction) -> Answer:
    if not device.is_console:
        return ok("not the boot display")
    return warn("this is the boot display", "let the firmware use another display adapter: the console on this one freezes when its driver is taken off")


def siblings(scene: Scene, device: PciFunction) -> Answer | None:
    if scene.route(device)[0] is Route.VFIO:
        return None  # told by the IOMMU group's check
    others = {name: scene.host.link_name(scene.host.pci / name / "driver") for name in device.siblings}
    owned = {name: driver for name, driver in others.items() if driver}
    if not owned:
        return ok(f"{len(others)} others, without drivers")
    named = ", ".join(f"{name} ({driver})" for name, driver in owned.items())
    return warn(named, "as root: " + "; ".join(f"echo {name} > /sys/bus/pci/devices/{name}/driver/unbind" for name in owned))


def lock_free(scene: Scene, device: PciFunction) -> Answer:
    for state in lock.holders(scene.lock_directory, proc=scene.host.proc):
        if state.address == device.address and state.holder is not None:
            return block(f"held by {state.holder}", f"wait for it, or end it: kill {state.holder.pid}" if state.holder.pid else "end the program in the other container")
    return ok("nobody holds it")


def power(scene: Scene, device: PciFunction) -> Answer:
    control = scene.host.text(scene.directory(device) / "power" / "control") or ""
    if device.power_state in AWAKE:
        return ok(device.power_state or "the kernel does not tell")
    command = f"as root: echo on > /sys/bus/pci/devices/{device.address}/power/control"
    if device.power_state.startswith("D"):
        return warn(f"{device.power_state}, power/control {control}", f"opening the device wakes it; to wake it now {command}")
    return block(f"power state {device.power_state}", f"{command}; if it stays: remove the device and rescan the bus")


def bars_assigned(scene: Scene, device: PciFunction) -> Answer:
    missing = {index: bar for index, bar in device.bars.items() if bar.size and not bar.address and not bar.is_io}
    if not missing:
        return ok(", ".join(f"BAR{index} {show_size(bar.size)}" for index, bar in device.bars.items()))
    named = ", ".join(f"BAR{index} ({show_size(bar.size)})" for index, bar in missing.items())
    remedy = "switch 'Above 4G Decoding' on in the firmware setup, or boot with pci=realloc"
    if device.parent:
        remedy += f"; behind a hot-plug port: pci=hpmmioprefsize=32G, then as root: echo 1 > /sys/bus/pci/devices/{device.parent}/remove; echo 1 > /sys/bus/pci/rescan"
    return block(f"no address for {named}; {_windows_text(scene, device)}", remedy)


def windows(scene: Scene, address: str) -> dict[str, int]:
    """Sizes in bytes of a bridge's windows, "prefetchable" and "memory", from the lines of its `resource` file behind the BARs and the ROM."""
    sizes = {"prefetchable": 0, "memory": 0}
    for line in (scene.host.text(scene.host.pci / address / "resource") or "").splitlines()[7:]:
        first, last, flags = (int(word, 16) for word in line.split())
        if flags & 0x200 and last > first:
            sizes["prefetchable" if flags & 0x2000 else "memory"] += last + 1 - first
    return sizes


def _windows_text(scene: Scene, device: PciFunction) -> str:
    if not device.parent:
        return "it is on the root bus"
    sizes = windows(scene, device.parent)
    return f"the bridge {device.parent} has " + ", ".join(f"{show_size(size) if size else 'no'} {kind} window" for kind, size in sizes.items())


def above_4g(scene: Scene, device: PciFunction) -> Answer | None:
    wide = [bar for bar in device.bars.values() if bar.is_64bit and bar.prefetchable and bar.address]
    if not wide:
        return None
    if any(bar.address >= FOUR_GIB for function in scene.functions for bar in function.bars.values()):
        return ok("addresses above 4 GiB are in use")
    return warn("every BAR of this machine lies below 4 GiB", "switch 'Above 4G Decoding' (and 'Re-Size BAR') on in the firmware setup")


def resizable_bar(scene: Scene, device: PciFunction) -> Answer | None:
    """Whether the BAR with the device's memory has, or can get, its full size."""
    below = above_4g(scene, device)
    if scene.family.name not in GPU_FAMILIES or below is None or below.remedy:
        return None
    bar = max((bar for bar in device.bars.values() if not bar.is_io), key=lambda bar: bar.size)
    largest = max(bar.resizable_to, default=0)
    if (largest and bar.size >= largest) or (not largest and bar.size > SMALL_BAR):
        return ok(f"BAR{bar.index} has {show_size(bar.size)}")
    if not largest:
        remedy = "switch 'Re-Size BAR' on in the firmware setup; a kernel of at least 6.1 shows the sizes"
        return warn(f"BAR{bar.index} has {show_size(bar.size)}, other sizes are not offered", remedy)
    room = windows(scene, device.parent)["prefetchable"] if device.parent else largest
    if room >= largest and not scene.host.may_use(scene.directory(device) / f"resource{bar.index}_resize"):
        command = f"echo {largest.bit_length() - 21} > /sys/bus/pci/devices/{device.address}/resource{bar.index}_resize"
        return warn(f"BAR{bar.index} has {show_size(bar.size)} of {show_size(largest)}, and this user may not resize it", f"as root, while no driver has the device: {command}")
    if room >= largest:
        return ok(f"BAR{bar.index} has {show_size(bar.size)}, and there is room for {show_size(largest)}: opening the device resizes it")
    read = f"BAR{bar.index} has {show_size(bar.size)} of {show_size(largest)}; {_windows_text(scene, device)}"
    return warn(read, "switch 'Re-Size BAR' on in the firmware setup, or boot with pci=realloc; behind a hot-plug port: pci=hpmmioprefsize=32G")


def link(scene: Scene, device: PciFunction) -> Answer | None:
    """The narrowest and slowest of all hops up to the root."""
    if device.power_state not in AWAKE:
        return None
    slow = []
    hop: PciFunction | None = device
    while hop is not None:
        now, most = (
            [scene.host.text(scene.directory(hop) / f"{which}_link_{what}") or "" for what in ("speed", "width")] for which in ("current", "max")
        )
        if now[1] not in NO_LINK and most[1] not in NO_LINK:
            if int(now[1]) < int(most[1]):
                remedy = "reseat the card and its riser, or use a slot with more lanes; look at the slot's setting in the firmware setup"
                return warn(f"{hop.address}: x{now[1]} of x{most[1]} lanes", remedy)
            if _rate(now[0]) < _rate(most[0]):
                slow.append(f"{hop.address}: {now[0]} of {most[0]}")
        hop = scene.function(hop.parent) if hop.parent else None
    if slow:
        return unknown("; ".join(slow), "normal while the card is idle: look again while it works; if it stays, reseat the card and its riser")
    return ok(device.link or "no link shown")


def _rate(text: str) -> float:
    found = re.match(r"[\d.]+", text)
    return float(found[0]) if found else 0.0


def aer(scene: Scene, device: PciFunction) -> Answer | None:
    counts = {}
    for kind in ("fatal", "nonfatal", "correctable"):
        found = re.search(r"^TOTAL_ERR_\w+ (\d+)", scene.host.text(scene.directory(device) / f"aer_dev_{kind}") or "", re.MULTILINE)
        if found:
            counts[kind] = int(found[1])
    if not counts:
        return None
    read = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    if counts.get("fatal") or counts.get("nonfatal"):
        return warn(read, "look at the kernel log; reseat the card, its riser and its cables")
    if counts.get("correctable"):
        return unknown(read, "look again in a minute: a count that grows means a bad riser, slot or cable")
    return ok("none")


def iommu(scene: Scene, device: PciFunction) -> Answer:
    if not device.iommu_type:
        return ok("off: device addresses are physical ones; sysfs works, VFIO only without protection")
    if device.iommu_type in TRANSLATING:
        return ok(f"on, group {scene.group(device)} translates ({device.iommu_type}): VFIO works, sysfs does not (boot with iommu=pt for that)")
    return ok(f"on, group {scene.group(device)} in {device.iommu_type} mode: sysfs and VFIO work")


def numa(scene: Scene, device: PciFunction) -> Answer | None:
    if device.numa_node < 0:
        return None
    near = scene.host.text(scene.directory(device) / "local_cpulist") or ""
    allowed = scene.status.get("Cpus_allowed_list", "")
    if not near or not allowed or _cpus(near) & _cpus(allowed):
        return ok(f"node {device.numa_node}")
    read = f"the device is at node {device.numa_node} (CPUs {near}), this process runs on CPUs {allowed}"
    return warn(read, f"start it with: numactl --cpunodebind={device.numa_node} --membind={device.numa_node}")


def _cpus(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def peer_to_peer(scene: Scene, device: PciFunction) -> Answer | None:
    """With several devices: whether a bridge sends what they send each other up to the root first."""
    if len(scene.devices) < 2 or not device.parent:
        return None
    try:
        image = (scene.host.pci / device.parent / "config").read_bytes()
    except OSError as error:
        return unknown(f"configuration space of {device.parent}: {os.strerror(error.errno or 0)}", "run as root")
    acs = next((each for each in decode(BytesConfig(image)).capabilities if isinstance(each, Acs)), None)
    redirects = [name for name in acs.enabled if "redirect" in name] if acs else []
    if not redirects:
        return ok(f"{device.parent} passes it on directly")
    remedy = f"where copies between devices matter: switch ACS off in the firmware setup, or boot with pci=disable_acs_redir={device.parent}"
    return warn(f"{device.parent}: {', '.join(redirects)} on", remedy)


def virtual_function(scene: Scene, device: PciFunction) -> Answer:
    directory = scene.directory(device)
    if (directory / "physfn").is_symlink():
        return warn(f"a virtual function of {scene.host.link_name(directory / 'physfn')}", "resets, clocks and firmware belong to the physical function: use that one")
    count = scene.host.number(directory / "sriov_numvfs") or 0
    return warn(f"{count} virtual functions are on", f"as root: echo 0 > /sys/bus/pci/devices/{device.address}/sriov_numvfs") if count else ok("the physical function")


def reset_method(scene: Scene, device: PciFunction) -> Answer:
    methods = scene.host.text(scene.directory(device) / "reset_method")
    if methods:
        return ok(methods)
    if methods is None and (scene.directory(device) / "reset").exists():
        return ok("one that the kernel does not name")
    return warn("the kernel knows none", "a card that hangs then needs its own reset (tghw boot amd --cold) or a power cycle")


CHECKS = (
    Check("config-alive", "configuration space", "all ones means that nobody answers there", on_device=config_alive),
    Check("driver-bound", "kernel driver", "a device has one driver at a time; tghw never takes it away by itself", on_device=driver_bound),
    Check("driver-in-use", "use through the kernel driver", "taking the device away would end this work and can hang the kernel", on_device=driver_in_use),
    Check("console", "console", "the screen shows nothing more once the driver is off", on_device=console),
    Check("siblings", "other functions of the card", "drivers of the card's audio or USB part prevent resizing BARs and resets", on_device=siblings),
    Check("lock", "lock", "one process at a time may drive a device", on_device=lock_free),
    Check("power", "power state", "a sleeping device answers all ones", on_device=power),
    Check("bars-assigned", "addresses of the BARs", "a BAR without an address cannot be reached", on_device=bars_assigned),
    Check("above-4g", "addresses above 4 GiB", "below 4 GiB there is no room for the memory of a GPU", on_device=above_4g),
    Check("resizable-bar", "resizable BAR", "through a small BAR most of the GPU's memory is reached by slow detours", on_device=resizable_bar),
    Check("link", "PCIe link", "the narrowest hop limits every copy", on_device=link),
    Check("aer", "PCIe errors", "errors of the link cost time, or data", on_device=aer),
    Check("iommu", "IOMMU", "it decides how memory is given to the device", on_device=iommu),
    Check("numa", "NUMA node", "memory of another node is slower", on_device=numa),
    Check("peer-to-peer", "copies between devices", "bridges that redirect make them slow or impossible", on_device=peer_to_peer),
    Check("virtual-function", "virtual functions", "they cannot be booted or reset, and take part of the device away", on_device=virtual_function),
    Check("reset-method", "reset", "a device that hangs is brought back by it", on_device=reset_method),
)
