"""Conditions of the machine as a whole: system, kernel, permissions, memory for devices, the kernel's log."""

from __future__ import annotations

import mmap
import os
import re

from hw.dma import FRAME_MASK, PRESENT, PagemapMemory, PagemapReader
from hw.doctor.findings import DAC_OVERRIDE, IPC_LOCK, SYS_ADMIN, Answer, Check, Route, Scene, block, ok, unknown, warn
from hw.errors import TghwError
from hw.mmio import LocalMmio

MIB = 1 << 20
MEMLOCK_WANTED = 64 * MIB
"""bytes; rings, page tables and staging buffers of one GPU"""
RESIZE_KERNEL, RESET_KERNEL = (6, 1), (5, 15)
"""kernels since which sysfs can resize BARs, and choose among reset methods"""
ONE_COMMAND = "setpriv --reuid USER --init-groups --inh-caps +dac_override,+sys_admin,+ipc_lock --ambient-caps +dac_override,+sys_admin,+ipc_lock tghw COMMAND"
LOG_BYTES = 1 << 20
LOG_SIGNS = {
    r"DMAR: .*fault|AMD-Vi: Event logged|IO_PAGE_FAULT": "a device touched memory that was not mapped for it",
    r"AER: .*(Uncorrect|Fatal|fatal)": "PCIe errors",
    r"ring \S+ timeout|GPU reset begin": "amdgpu lost a queue",
    r"NVRM: Xid": "the NVIDIA driver reported a fault",
}
"""pattern of a kernel message -> what it tells"""


def operating_system(scene: Scene) -> Answer:
    if scene.system == "Linux":
        return ok("Linux")
    return block(scene.system, "drive devices from Linux; simulated ones work here too: tghw --mock navi31 probe")


def kernel_version(scene: Scene) -> Answer:
    text = scene.host.text(scene.host.proc / "sys" / "kernel" / "osrelease") or ""
    found = re.match(r"(\d+)\.(\d+)", text)
    if not found:
        return unknown(f"kernel version {text!r}", "look at `uname -r`")
    version = (int(found[1]), int(found[2]))
    if version >= RESIZE_KERNEL:
        return ok(text)
    missing = "resize BARs" if version >= RESET_KERNEL else "resize BARs or tell its reset methods"
    return warn(f"{text}, which cannot {missing}", "use a kernel of at least 6.1; without it BARs keep the size the firmware gave them")


def container(scene: Scene) -> Answer:
    """Containers share the kernel's devices but not the directory of the locks."""
    host = scene.host
    signs = [str(path.relative_to(host.root)) for path in (host.root / ".dockerenv", host.root / "run" / ".containerenv") if path.exists()]
    if signs:
        return warn(f"in a container (/{signs[0]})", "mount one directory into every container that uses the device, and set TGHW_LOCK_DIR to it in each")
    virtual = re.search(r"^flags\s*:.*\bhypervisor\b", host.text(host.proc / "cpuinfo") or "", re.MULTILINE)
    return ok("in a virtual machine: only devices that its host passes through are here" if virtual else "on the machine itself")


def pci_bus(scene: Scene) -> Answer:
    if scene.functions:
        return ok(f"{len(scene.functions)} functions")
    return block(f"no functions in {scene.host.pci}", "run outside the container, or mount /sys into it")


def device_present(scene: Scene) -> Answer | None:
    if scene.devices:
        return ok(", ".join(device.address for device in scene.devices))
    if not scene.functions or _waiting_routers(scene):
        return None  # told by the bus's, and by Thunderbolt's own check
    return block(f"none among {len(scene.functions)} PCI functions", "check the card's power and seat, then as root: echo 1 > /sys/bus/pci/rescan")


def _waiting_routers(scene: Scene) -> bool:
    routers = scene.host.sys / "bus" / "thunderbolt" / "devices"
    return any(scene.host.text(path) == "0" for path in routers.glob("*/authorized"))


def permission(scene: Scene) -> Answer | None:
    """sysfs files belong to root; frame numbers and full configuration space need CAP_SYS_ADMIN."""
    devices = scene.by_route(Route.SYSFS)
    if not devices:
        return None
    closed = [f"{device.address}/{name}" for device in devices for name in ("enable", "config", "resource0") if not scene.host.may_use(scene.directory(device) / name)]
    missing = [] if scene.has_capability(SYS_ADMIN) else ["CAP_SYS_ADMIN"]
    if closed and not scene.has_capability(DAC_OVERRIDE):
        missing.append("CAP_DAC_OVERRIDE")
    if not closed and not missing:
        return ok("files of the devices may be written, CAP_SYS_ADMIN is there")
    read = "; ".join(part for part in (f"may not use {', '.join(closed)}" if closed else "", f"lacks {', '.join(missing)}" if missing else "") if part)
    return block(read, f"run as root; or as root, for one command of a user: {ONE_COMMAND}; or use VFIO, which needs none of this")


def lockdown(scene: Scene) -> Answer | None:
    if not scene.is_locked_down:
        return ok(f"lockdown: {scene.lockdown or 'not in this kernel'}")
    without = [device.address for device in scene.devices if not scene.group(device)]
    if without:
        return block(
            f"lockdown: {scene.lockdown}; no IOMMU group: {', '.join(without)}",
            "switch secure boot off, or switch the IOMMU on (firmware setup; kernel option intel_iommu=on) and use VFIO",
        )
    return warn(f"lockdown: {scene.lockdown}", "use VFIO (tghw does so by itself), or switch secure boot off")


def pagemap(scene: Scene) -> Answer | None:
    """Whether the kernel tells where a page of this process is."""
    if not scene.by_route(Route.SYSFS) or not scene.has_capability(SYS_ADMIN):
        return None  # not needed, or told by the check of permissions
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[0] = 1
    reader: PagemapReader = scene.pagemap or PagemapMemory(scene.host).read_pagemap
    try:
        [entry] = reader(LocalMmio.over(memory).address, 1)
    except TghwError as error:
        return block(error.read or error.what, "run where /proc/self/pagemap can be read, or use VFIO")
    if entry & PRESENT and entry & FRAME_MASK:
        return ok("frame numbers are shown")
    return block("frame numbers read as 0", "CAP_SYS_ADMIN counts only outside of a user namespace: run on the host itself, or use VFIO")


def compaction(scene: Scene) -> Answer | None:
    if not scene.by_route(Route.SYSFS):
        return None
    value = scene.host.text(scene.host.proc / "sys" / "vm" / "compact_unevictable_allowed")
    if value in ("0", None):
        return ok("locked pages stay where they are")
    return block(f"compact_unevictable_allowed is {value}", "as root: sysctl vm.compact_unevictable_allowed=0")


def hugepages(scene: Scene) -> Answer | None:
    if not scene.by_route(Route.SYSFS):
        return None
    found = re.search(r"^HugePages_Free:\s+(\d+)", scene.host.text(scene.host.proc / "meminfo") or "", re.MULTILINE)
    if not found:
        return unknown("no HugePages_Free in /proc/meminfo", "look whether this kernel has 2 MiB pages")
    if int(found[1]):
        return ok(f"{found[1]} pages of 2 MiB are free")
    return warn("no page of 2 MiB is free", "as root: sysctl vm.nr_hugepages=64")


def memlock(scene: Scene) -> Answer:
    found = re.search(r"^Max locked memory\s+(\S+)", scene.host.text(scene.host.proc / "self" / "limits") or "", re.MULTILINE)
    if not found:
        return unknown("no limit of locked memory in /proc/self/limits", "look at `ulimit -l`")
    if found[1] == "unlimited" or int(found[1]) >= MEMLOCK_WANTED:
        return ok(f"limit {found[1]}")
    if scene.has_capability(IPC_LOCK):
        return ok(f"limit {found[1]} bytes, which CAP_IPC_LOCK lifts")
    return warn(f"limit {int(found[1]) >> 10} KiB, {MEMLOCK_WANTED >> 10} KiB are wanted", "as root, in /etc/security/limits.conf: * - memlock unlimited; then log in anew")


def kernel_log(scene: Scene) -> Answer:
    """Faults that the kernel reported since it started."""
    try:
        descriptor = scene.host.open(scene.host.dev / "kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return unknown(f"/dev/kmsg: {os.strerror(error.errno or 0)}", "as root: dmesg")
    text = b""
    try:
        while len(text) < LOG_BYTES and (part := os.read(descriptor, 8192)):
            text += part
    except OSError:
        pass  # EAGAIN: the end; EPIPE: records were overwritten while reading
    finally:
        os.close(descriptor)
    for line in reversed(text.decode("utf-8", "replace").splitlines()):
        for pattern, meaning in LOG_SIGNS.items():
            if re.search(pattern, line):
                return warn(f"{meaning}: {line.partition(';')[2] or line}", "if the device misbehaves: reset it or reboot, then look at `dmesg` again")
    return ok("no faults reported")


CHECKS = (
    Check("operating-system", "operating system", "only Linux lets programs reach PCI devices", on_machine=operating_system),
    Check("kernel-version", "kernel", "older kernels cannot resize BARs or choose among ways to reset", on_machine=kernel_version),
    Check("container", "container or virtual machine", "containers have lock directories of their own, so that two could drive one device", on_machine=container),
    Check("pci-bus", "PCI bus", "without /sys/bus/pci no device can be found", on_machine=pci_bus),
    Check("device-present", "device found", "the card must be there before anything else matters", on_machine=device_present),
    Check("permission", "permission", "registers and physical addresses are only for processes with these rights", on_machine=permission),
    Check("lockdown", "kernel lockdown", "a locked-down kernel refuses to map registers or write configuration space through sysfs", on_machine=lockdown),
    Check("pagemap", "physical addresses", "without an IOMMU a device is given physical addresses, which the kernel must tell", on_machine=pagemap),
    Check("compaction", "compaction of locked pages", "a page that moves while a device uses it is silent corruption", on_machine=compaction),
    Check("hugepages", "pages of 2 MiB", "pieces of memory that are contiguous to the device come from this pool", on_machine=hugepages),
    Check("memlock", "locked memory", "memory that a device uses is locked, and the limit is soon reached", on_machine=memlock),
    Check("kernel-log", "kernel log", "a fault that happened before explains much that goes wrong later", on_machine=kernel_log),
)
