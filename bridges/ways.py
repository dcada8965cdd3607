"""Choosing a way to a device among several: each is tried in order until one really serves; when none does, one error tells about all.

A way serves when a device that came by it gives memory that it can reach, and lets a BAR be mapped: what is missing for that (a
translating IOMMU, kernel lockdown, hidden frame numbers) often shows only then, and would otherwise end a boot halfway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hw.dma import PagemapMemory, check_iommu
from hw.doctor.families import AMD
from hw.doctor.findings import Route, Scene
from hw.errors import Attempt, BarUnassigned, BusLost, DeviceBusy, NoTransport, PermissionMissing, PowerStateError, TghwError
from hw.host import HOST, HostFiles
from hw.pci.device import DMA_PAGE, PciDevice
from hw.pci.functions import describe
from hw.pci.sysfs import LOCKDOWN_MEANS, LOCKDOWN_REMEDY, SysfsPciDevice
from hw.pci.vfio import VfioPciDevice
from hw.pci.vfio_calls import KernelCalls

log = logging.getLogger(__name__)

SAME_EVERYWHERE = (DeviceBusy, BusLost, BarUnassigned, PowerStateError)
"""what is about the device itself: another way to it would find the same"""


@dataclass(frozen=True)
class Way:
    """A transport, what is done in words, and doing it."""

    transport: str
    tried: str
    open: Callable[[], PciDevice]


def first_that_serves(what: str, ways: Sequence[Way]) -> PciDevice:
    """The device by the first way that serves. Raises NoTransport, and at once what no other way would change (SAME_EVERYWHERE)."""
    attempts: list[Attempt] = []
    for way in ways:
        try:
            device = way.open()
        except SAME_EVERYWHERE:
            raise
        except TghwError as error:
            log.info("%s by %s: %s", what, way.transport, error)
            attempts.append(Attempt(way.transport, way.tried, error))
            continue
        log.info("%s is reached by %s", what, way.transport)
        return device
    raise NoTransport(f"no way to {what} works", attempts)


def pci_ways(address: str, host: HostFiles = HOST, *, lock_directory: Path | None = None, calls: KernelCalls | None = None, memory: PagemapMemory | None = None) -> list[Way]:
    """The ways to a function of this machine's PCI bus, the one first that its present state calls for. Raises NothingFound."""
    function = describe(address, host)
    needed, reason = Scene(AMD, host).route(function)

    def by_vfio() -> PciDevice:
        return _serving(VfioPciDevice(address, host=host, lock_directory=lock_directory, calls=calls, memory=memory))

    def by_sysfs() -> PciDevice:
        check_iommu(function.iommu_type, address)
        scene = Scene(AMD, host)
        if scene.is_locked_down:
            raise PermissionMissing(f"mapping registers of {address}", read=f"lockdown: {scene.lockdown}", means=LOCKDOWN_MEANS, remedy=LOCKDOWN_REMEDY)
        return _serving(SysfsPciDevice(address, host=host, lock_directory=lock_directory, memory=memory))

    vfio = Way("vfio", "vfio-pci, with the device's IOMMU", by_vfio)
    sysfs = Way("sysfs", "the device's files in /sys, with physical addresses", by_sysfs)
    log.debug("%s: %s first, because %s", address, needed.value, reason)
    return [vfio, sysfs] if needed is Route.VFIO else [sysfs, vfio]


def open_vfio(address: str, host: HostFiles = HOST) -> PciDevice:
    """A function by VFIO and nothing else; where no driver has it, vfio-pci becomes its driver until it is closed."""
    return VfioPciDevice(address, host=host)


def _serving(device: PciDevice) -> PciDevice:
    """The device, after it gave a page of memory and let a page of a BAR be mapped; closed again when it did not."""
    try:
        device.alloc_dma(DMA_PAGE).release()
        first = min((index for index, bar in device.bars.items() if not bar.is_io), default=None)
        if first is not None:
            device.map_bar(first, 0, min(DMA_PAGE, device.bar(first).size))
    except BaseException:
        device.close()
        raise
    return device

