"""Checks, what they look at, and what they find."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from hw.dma import TRANSLATING, PagemapReader
from hw.doctor.families import Family
from hw.errors import NothingFound
from hw.host import HOST, HostFiles
from hw.pci import groups
from hw.pci.functions import PciFunction, scan

DAC_OVERRIDE, IPC_LOCK, SYS_RAWIO, SYS_ADMIN = 1, 14, 17, 21
"""numbers of capabilities (linux/capability.h)"""
MACHINE = "machine"
"""subject of findings that are about no single device"""


class State(Enum):
    OK = "ok"
    WARN = "warn"
    """works, but worse than it could"""
    BLOCK = "block"
    """the device cannot be used like this"""
    UNKNOWN = "unknown"
    """it could not be read, or cannot be told from one look"""


@dataclass(frozen=True)
class Answer:
    """What one check says: what was read, and for everything but OK what to do (an exact command where there is one)."""

    state: State
    read: str
    remedy: str = ""


def ok(read: str) -> Answer:
    return Answer(State.OK, read)


def warn(read: str, remedy: str) -> Answer:
    return Answer(State.WARN, read, remedy)


def block(read: str, remedy: str) -> Answer:
    return Answer(State.BLOCK, read, remedy)


def unknown(read: str, remedy: str) -> Answer:
    return Answer(State.UNKNOWN, read, remedy)


@dataclass(frozen=True)
class Finding:
    """An answer with the question it belongs to."""

    check: str
    """stable name; scripts match on it"""
    subject: str
    """a device's address, or MACHINE"""
    title: str
    why: str
    state: State
    read: str
    remedy: str

    def to_dict(self) -> dict[str, str]:
        """Stable keys for --json."""
        return {
            "check": self.check,
            "subject": self.subject,
            "title": self.title,
            "state": self.state.value,
            "why": self.why,
            "read": self.read,
            "remedy": self.remedy,
        }


class Route(Enum):
    """How a PCI function is to be reached from here."""

    SYSFS = "sysfs"
    VFIO = "vfio"


@dataclass
class Scene:
    """Where checks look: the files of a machine, the devices of one family, and what cannot be read from files.

    functions: every PCI function; devices: those of the family. pagemap: replaces reading /proc/self/pagemap.
    is_bridge: whether USB ids (vendor, product) are those of a bridge. system: name of the operating system.
    """

    family: Family
    host: HostFiles = HOST
    functions: list[PciFunction] = field(default_factory=list)
    lock_directory: Path | None = None
    pagemap: PagemapReader | None = None
    is_bridge: Callable[[int, int], bool] = lambda vendor, product: False
    system: str = field(default_factory=platform.system)

    @classmethod
    def of(cls, family: Family, host: HostFiles = HOST, **options: Any) -> Scene:
        """A scene with the functions that the machine has now."""
        try:
            functions = scan(host)
        except NothingFound:
            functions = []
        return cls(family, host, functions, **options)

    @property
    def devices(self) -> list[PciFunction]:
        return [function for function in self.functions if self.family.matches(function)]

    def function(self, address: str) -> PciFunction | None:
        """One function by its address; None when there is none."""
        return next((function for function in self.functions if function.address == address), None)

    def directory(self, device: PciFunction) -> Path:
        return self.host.pci / device.address

    @cached_property
    def status(self) -> dict[str, str]:
        """/proc/self/status by field."""
        lines = (self.host.text(self.host.proc / "self" / "status") or "").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def has_capability(self, number: int) -> bool:
        """Whether this process has a capability; root outside a container has all."""
        return bool(int(self.status.get("CapEff", "0"), 16) >> number & 1)

    @cached_property
    def lockdown(self) -> str:
        """The kernel's lockdown: "none", "integrity", "confidentiality"; "" where the kernel does not know it."""
        words = (self.host.text(self.host.sys / "kernel" / "security" / "lockdown") or "").split()
        return next((word.strip("[]") for word in words if word.startswith("[")), "")

    @property
    def is_locked_down(self) -> bool:
        return self.lockdown not in ("", "none")

    def may_write_sysfs(self, device: PciFunction) -> bool:
        """Whether this process may use the device's sysfs files at all."""
        return all(self.host.may_use(self.directory(device) / name) for name in ("config", "enable"))

    def group(self, device: PciFunction) -> str:
        """Number of the device's IOMMU group, "" for none."""
        return self.host.link_name(self.directory(device) / "iommu_group")

    def may_use_group(self, device: PciFunction) -> bool:
        group = self.group(device)
        return bool(group) and self.host.may_use(self.host.dev / "vfio" / group)

    def route(self, device: PciFunction) -> tuple[Route, str]:
        """How the device is to be reached, and why: VFIO where sysfs cannot work or the device is VFIO's already, else sysfs."""
        if device.driver == groups.VFIO_PCI:
            return Route.VFIO, "it is bound to vfio-pci"
        if device.iommu_type in TRANSLATING:
            return Route.VFIO, f"the IOMMU translates its addresses (group {self.group(device)}, {device.iommu_type})"
        if self.is_locked_down and self.group(device):
            return Route.VFIO, f"the kernel is locked down ({self.lockdown})"
        if not self.may_write_sysfs(device) and self.may_use_group(device):
            return Route.VFIO, "this user may use its VFIO group, but not its sysfs files"
        return Route.SYSFS, "no IOMMU translates its addresses" if not device.iommu_type else f"its IOMMU group is in {device.iommu_type} mode"

    def by_route(self, route: Route) -> list[PciFunction]:
        return [device for device in self.devices if self.route(device)[0] is route]


MachineCheck = Callable[[Scene], Answer | None]
DeviceCheck = Callable[[Scene, PciFunction], Answer | None]
NamedCheck = Callable[[Scene], Iterable[tuple[str, Answer]]]


@dataclass(frozen=True)
class Check:
    """One condition. Exactly one of the functions is set: about the machine, about each device of the family, or about things it names itself.

    A function answers None where its condition does not apply, or where another check tells the same.
    """

    name: str
    title: str
    why: str
    on_machine: MachineCheck | None = None
    on_device: DeviceCheck | None = None
    on_named: NamedCheck | None = None

    def run(self, scene: Scene) -> list[Finding]:
        answers: list[tuple[str, Answer | None]] = []
        if self.on_machine is not None:
            answers.append((MACHINE, self.on_machine(scene)))
        if self.on_device is not None:
            answers += [(device.address, self.on_device(scene, device)) for device in scene.devices]
        if self.on_named is not None:
            answers += self.on_named(scene)
        return [Finding(self.name, subject, self.title, self.why, answer.state, answer.read, answer.remedy) for subject, answer in answers if answer is not None]


def examine(scene: Scene, checks: Iterable[Check]) -> list[Finding]:
    """All findings, in the order of the checks."""
    return [finding for check in checks for finding in check.run(scene)]
