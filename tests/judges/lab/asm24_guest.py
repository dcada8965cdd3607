"""Runs inside the guest: looks at the USB bridge with the guest's kernel, lsusb, libusb and pyusb, then through this project's own driver,
and prints what it found as JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import libusb_package
import usb.core
import usb.util
from usb.core import USBError

VENDORS = (0x3801, 0xADD1)


def find() -> Any:
    """The bridge by the guest's libusb."""
    backend = libusb_package.get_libusb1_backend()
    for _ in range(100):
        for device in usb.core.find(find_all=True, backend=backend):
            if device.idVendor in VENDORS:
                return device
        time.sleep(0.1)
    raise SystemExit("no bridge came up in the guest")


def by_kernel() -> dict[str, Any]:
    """What the kernel made of it."""
    for folder in Path("/sys/bus/usb/devices").iterdir():
        if (folder / "idVendor").exists() and int((folder / "idVendor").read_text(), 16) in VENDORS:
            drivers = {each.name: (each / "driver").resolve().name for each in folder.glob(f"{folder.name}:*") if (each / "driver").exists()}
            names = ("speed", "version", "product", "manufacturer", "serial", "bNumInterfaces", "bMaxPower", "bcdDevice")
            return {**{name: (folder / name).read_text().strip() for name in names}, "drivers": list(drivers.values())}
    return {}


def by_lsusb() -> str:
    """The bridge as lsusb decodes it, "" without lsusb."""
    if shutil.which("lsusb") is None:
        return ""
    vendor = next(each.read_text().strip() for each in Path("/sys/bus/usb/devices").glob("*/idVendor") if int(each.read_text(), 16) in VENDORS)
    return subprocess.run(["lsusb", "-v", "-d", f"{vendor}:"], capture_output=True, text=True, timeout=60, check=False).stdout


def disks() -> list[str]:
    """What the kernel's storage driver found: vendor and model of each logical unit."""
    return [f"{(each / 'vendor').read_text().strip()} {(each / 'model').read_text().strip()}" for each in Path("/sys/bus/scsi/devices").iterdir() if (each / "vendor").exists()]


def by_pyusb(device: Any) -> dict[str, Any]:
    """Requests and bulk data spelled out, as far as they need no PCIe."""
    found: dict[str, Any] = {"product": device.product, "serial": device.serial_number, "total": device[0].wTotalLength}
    if device.is_kernel_driver_active(0):
        device.detach_kernel_driver(0)
    device.set_configuration(1)
    usb.util.claim_interface(device, 0)
    device.set_interface_altsetting(0, 0)
    device.ctrl_transfer(0x40, 0xE5, 0x1234, 0x5A, None)
    found["xdata"] = bytes(device.ctrl_transfer(0xC0, 0xE4, 0x1234, 0, 1)).hex()
    data = bytes(range(256)) * 2048
    device.ctrl_transfer(0x40, 0xF2, 1024, 32 << 8, None)
    start = time.monotonic()
    found["written"] = device.write(0x02, data, 20000)
    found["bulk_mb_s"] = round(len(data) / (time.monotonic() - start) / 1e6, 1)
    found["window"] = bytes(device.ctrl_transfer(0xC0, 0xE4, 0xF000, 0, 64)).hex()
    try:
        device.read(0x81, 512, 300)
    except USBError as error:
        found["nothing_armed"] = error.errno
    try:
        device.ctrl_transfer(0xC0, 0x77, 0, 0, 4)
    except USBError as error:
        found["unknown_request"] = error.errno
    usb.util.dispose_resources(device)
    return found


def by_driver(size: int) -> dict[str, Any]:
    """The project's own driver on the guest's libusb, with so many bytes of the GPU's memory written and read back."""
    from bridges.asm24.device import Asm24PciDevice
    from bridges.asm24.usb import attached

    backend = libusb_package.get_libusb1_backend()
    bridges = attached(backend)
    with Asm24PciDevice.open(bridges[0], backend) as device:
        registers = device.map_bar(5)
        memory = device.map_bar(0)
        block = bytes((7 * i + 3) % 256 for i in range(size))
        memory.write(0x100000, block)
        return {
            "address": bridges[0].address,
            "speed": bridges[0].speed,
            "id": f"{device.id.vendor:04x}:{device.id.device:04x}",
            "bars": {str(index): bar.size for index, bar in device.bars.items()},
            "memsize": registers.read32(4 * 0xDE3),
            "memory": memory.read(0x100000, len(block)) == block,
        }


def main() -> None:
    what = sys.argv[1]
    device = find()
    if what == "custom":
        found = {"kernel": by_kernel(), "lsusb": by_lsusb(), "pyusb": by_pyusb(device), "driver": by_driver(65536)}
    else:
        for _ in range(100):  # until the kernel's storage driver has asked its questions
            if disks():
                break
            time.sleep(0.1)
        found = {"kernel": by_kernel(), "lsusb": by_lsusb(), "disks": disks()}
        found["driver"] = by_driver(64)
    sys.stdout.write(f"RESULT {json.dumps(found)}\n")


if __name__ == "__main__":
    main()
