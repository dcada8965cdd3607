"""Runs inside the guest: drives QEMU's `edu` device through this project's sysfs and VFIO transports and prints what happened as JSON.

The argument says what the IOMMU does there: "translated", or "identity" (device addresses are physical ones).

The edu device (QEMU documentation, specs/edu): 1 MiB of registers, an internal buffer of 4096 bytes at 0x40000 between which and host
memory it copies, and interrupts, by message or line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bridges.ways import first_that_serves, pci_ways
from hw.clock import HOST_CLOCK
from hw.doctor.checks import checks_for
from hw.doctor.families import Family
from hw.doctor.findings import Scene, examine
from hw.errors import TghwError
from hw.host import HOST
from hw.mmio import Mmio
from hw.pci.functions import scan
from hw.pci.sysfs import SysfsPciDevice
from hw.pci.vfio import VfioPciDevice
from hw.pci.vfio_abi import INTX
from hw.pci.vfio_calls import KernelCalls
from hw.pci.vfio_irq import VfioIrq
from hw.poll import poll

EDU = (0x1234, 0x11E8)
IDENTIFICATION, LIVENESS, FACTORIAL, STATUS, IRQ_STATUS, IRQ_RAISE, IRQ_ACK = 0x00, 0x04, 0x08, 0x20, 0x24, 0x60, 0x64
DMA_SOURCE, DMA_TARGET, DMA_COUNT, DMA_COMMAND = 0x80, 0x88, 0x90, 0x98
DMA_START, DMA_TO_HOST, DMA_INTERRUPT = 1, 2, 4
BUFFER = 0x40000
DMA_DONE = 0x100
"""interrupt status of a finished copy"""
COMPUTING = 1
FAMILY = Family("edu", "QEMU's educational device", (EDU[0],), (0x00,))
COMPACTION = Path("/proc/sys/vm/compact_unevictable_allowed")
PATTERN = bytes(range(256)) * 8
"""half of the buffer: QEMU refuses copies that end at its last byte"""


def name_of_error(action: Any) -> str:
    """Code and text of the typed error that an action ends with."""
    try:
        action()
    except TghwError as error:
        return f"{error} / {error.remedy}"
    return "no error"


def through_sysfs(address: str) -> dict[str, Any]:
    with SysfsPciDevice(address) as device:
        registers = device.map_bar(0)
        registers.write32(LIVENESS, 0x12345678)
        registers.write32(FACTORIAL, 5)
        poll(lambda: registers.read32(STATUS) & COMPUTING, lambda value: not value, what="factorial", within=5, clock=HOST_CLOCK)
        return {
            "id": f"{device.id.vendor:04x}:{device.id.device:04x}",
            "bar": device.bar(0).size,
            "identification": registers.read32(IDENTIFICATION),
            "liveness": registers.read32(LIVENESS),
            "factorial": registers.read32(FACTORIAL),
            "config_size": device.config.size,
            "dma": name_of_error(lambda: device.alloc_dma(4096)),
        }


def doctor() -> dict[str, str]:
    """Every check's state and what it read, on this kernel."""
    return {finding.check: f"{finding.state.value}: {finding.read}" for finding in examine(Scene.of(FAMILY), checks_for(FAMILY))}


def copy(registers: Mmio, source: int, target: int, command: int) -> None:
    registers.write64(DMA_SOURCE, source)
    registers.write64(DMA_TARGET, target)
    registers.write64(DMA_COUNT, len(PATTERN))
    registers.write64(DMA_COMMAND, DMA_START | command)
    poll(lambda: registers.read64(DMA_COMMAND) & DMA_START, lambda value: not value, what="copy of the edu device", within=10, clock=HOST_CLOCK)


def through_vfio(address: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with VfioPciDevice(address) as device:
        found["mode"] = device.mode
        found["driver"] = HOST.link_name(HOST.pci / address / "driver")
        registers = device.map_bar(0)
        registers.write32(LIVENESS, 0x0F0F0F0F)
        found["liveness"] = registers.read32(LIVENESS)
        device.set_bus_master(True)
        irq = device.irq()
        assert isinstance(irq, VfioIrq)
        found["irq_kind"] = irq.index
        first, second = device.alloc_dma(4096), device.alloc_dma(8192)
        found["addresses"] = [first.pages, second.pages]
        first.window.write(0, PATTERN)
        copy(registers, first.pages[0], BUFFER, 0)
        found["quiet"] = irq.wait(0)
        copy(registers, BUFFER, second.pages[1], DMA_TO_HOST | DMA_INTERRUPT)
        found["interrupt"] = irq.wait(5)
        found["interrupt_status"] = registers.read32(IRQ_STATUS)
        registers.write32(IRQ_ACK, DMA_DONE)
        found["copied"] = second.window.read(4096, len(PATTERN)) == PATTERN and not any(second.window.read(0, 4096))
        gone = second.pages[1]
        second.release()
        copy(registers, BUFFER, gone, DMA_TO_HOST)  # nobody is there any more: the IOMMU stops it
        copy(registers, BUFFER, first.pages[0], DMA_TO_HOST)
        found["after_fault"] = first.window.read(0, len(PATTERN)) == PATTERN
        irq.close()
        found["line"] = line_interrupts(address, device, registers)
        with tempfile.TemporaryDirectory() as other:
            found["second_open"] = name_of_error(lambda: VfioPciDevice(address, lock_directory=Path(other)))
        found["reset"] = name_of_error(device.reset)
    found["driver_after"] = HOST.link_name(HOST.pci / address / "driver")
    found["override_after"] = HOST.text(HOST.pci / address / "driver_override")
    return found


def line_interrupts(address: str, device: VfioPciDevice, registers: Mmio) -> list[bool]:
    """Two interrupts by the line: each is masked by the kernel until the next wait."""
    line = VfioIrq(address, KernelCalls(), device._space.device, INTX)
    seen = []
    for _ in range(2):
        registers.write32(IRQ_RAISE, 1)
        seen.append(line.wait(5))
        registers.write32(IRQ_ACK, 1)
    seen.append(line.wait(0.05))
    line.close()
    return seen


def translated(address: str) -> dict[str, Any]:
    found: dict[str, Any] = {"doctor": doctor(), "before_modules": name_of_error(lambda: VfioPciDevice(address)), "sysfs": through_sysfs(address)}
    subprocess.run(["modprobe", "vfio_iommu_type1"], check=True)
    subprocess.run(["modprobe", "vfio_pci"], check=True)
    found["forgeable_interrupts"] = name_of_error(lambda: VfioPciDevice(address))
    (HOST.sys / "module" / "vfio_iommu_type1" / "parameters" / "allow_unsafe_interrupts").write_text("Y")
    with first_that_serves(address, pci_ways(address)) as device:
        found["chosen"] = device.transport
        found["doctor_while_open"] = doctor()
    found["vfio"] = through_vfio(address)
    found["doctor_after"] = doctor()
    return found


def identity(address: str) -> dict[str, Any]:
    """Physical addresses, as without an IOMMU: the kernel must keep pages in place and tell where they are."""
    COMPACTION.write_text("1")
    found: dict[str, Any] = {"doctor": doctor(), "movable": name_of_error(lambda: first_that_serves(address, pci_ways(address)))}
    COMPACTION.write_text("0")
    with first_that_serves(address, pci_ways(address)) as device:
        found["chosen"] = device.transport
        registers = device.map_bar(0)
        device.set_bus_master(True)
        source, target = device.alloc_dma(4 * 4096), device.alloc_dma(4 * 4096)
        found["pages"] = source.pages
        source.window.write(3 * 4096, PATTERN)
        copy(registers, source.pages[3], BUFFER, 0)
        copy(registers, BUFFER, target.pages[2], DMA_TO_HOST)
        found["copied"] = target.window.read(2 * 4096, len(PATTERN)) == PATTERN and not any(target.window.read(0, 2 * 4096))
        found["interrupts"] = device.irq() is not None
        found["reset"] = name_of_error(device.reset)
    found["enabled_after"] = HOST.text(HOST.pci / address / "enable")
    found["doctor_after"] = doctor()
    return found


def main() -> None:
    address = next(each.address for each in scan() if each.id and (each.id.vendor, each.id.device) == EDU)
    found = {"translated": translated, "identity": identity}[sys.argv[1]](address)
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    found["kernel_log"] = [line for line in log.splitlines() if "fault addr" in line][:4]
    sys.stdout.write(f"RESULT {json.dumps(found)}\n")


if __name__ == "__main__":
    main()
