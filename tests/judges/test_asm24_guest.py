"""A real kernel and libusb as judges of the simulated USB bridge: it is a real USB device of a QEMU guest (usbredir).

Needs qemu-system-x86, busybox-static, kmod and a kernel (see tests/judges/lab/guest.py); usbutils for lsusb, whose part is left out
without it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mocks.lab.usbredir import UsbRedirServer
from mocks.machine import Machine
from tests.judges.lab import guest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT = 150
"""seconds; it takes 15 on two idle cores"""
DRIVER = {"id": "1002:744c", "bars": {"0": 32 << 30, "2": 2 << 20, "5": 1 << 20}, "memsize": 24560, "memory": True}


def in_guest(profile: str, what: str, folder: Path, modules: str) -> tuple[dict[str, Any], Machine]:
    """What the program in the guest found, and the machine whose bridge it was."""
    if shutil.which(guest.QEMU) and "usb-redir" not in subprocess.run([guest.QEMU, "-device", "help"], capture_output=True, text=True, timeout=60, check=False).stdout:
        pytest.skip("this QEMU has no usb-redir device (Debian: qemu-system-x86 brings it)")
    machine = Machine.from_profile(profile)
    # a path that fits a socket address
    server = UsbRedirServer(machine, folder / "ur")
    stop = threading.Event()
    thread = threading.Thread(target=server.serve, args=(stop.is_set,))
    thread.start()
    program = ROOT / "tests" / "judges" / "lab" / "asm24_guest.py"
    script = folder / "bridge.sh"
    environment = f"export PYTHONPATH={shlex.quote(str(ROOT))} PYTHONDONTWRITEBYTECODE=1 TGHW_LOCK_DIR=/run HOME=/root"
    script.write_text(f"{environment}\nfor module in {modules}; do modprobe $module || exit 9; done\n{shlex.quote(sys.executable)} {shlex.quote(str(program))} {what}\n")
    devices = ["-chardev", f"socket,id=ur,path={folder / 'ur'}", "-device", "qemu-xhci,id=x", "-device", "usb-redir,chardev=ur,bus=x.0"]
    try:
        result = guest.run(script, folder=folder, devices=devices, limit=LIMIT)
    except guest.LabMissing as missing:
        pytest.skip(f"no QEMU guest here: {missing}")
    finally:
        stop.set()
        thread.join()
    answer = re.search(r"^RESULT (.*)$", result.output, re.MULTILINE)
    assert result.status == 0 and answer, result.output[-4000:]
    return json.loads(answer[1]), machine


def lsusb_says(found: dict[str, Any], *lines: str) -> None:
    """Each line is in what lsusb printed, spaces apart; nothing is checked without lsusb."""
    text = re.sub(r"[ \t]+", " ", found["lsusb"])
    for line in lines:
        assert not text or line in text, f"{line}\n{found['lsusb']}"


@pytest.mark.parametrize(("profile", "speed", "version", "packet"), [("navi31-asm24", 5000, "3.20", 1024), ("asm24-usb2", 480, "2.00", 512)])
def test_open_firmware(profile: str, speed: int, version: str, packet: int, tmp_path: Path) -> None:
    found, machine = in_guest(profile, "custom", tmp_path, "xhci_pci")
    kernel = found["kernel"]
    assert (kernel["speed"], kernel["version"], kernel["bcdDevice"], kernel["bNumInterfaces"], kernel["drivers"]) == (str(speed), version, "0001", "1", [])
    assert (kernel["manufacturer"], kernel["product"], kernel["serial"]) == ("tiny", "custom 1f2e3d4c-CLEAN", "1a2b3c4d")
    lsusb_says(found, "idVendor 0x3801", f"bcdUSB {version}", "bInterfaceClass 255", "Self Powered")
    lsusb_says(found, "bEndpointAddress 0x81 EP 1 IN", f"wMaxPacketSize 0x{packet:04x} 1x {packet} bytes")
    if speed == 5000:
        lsusb_says(found, "bMaxBurst 15", "MaxStreams 32", "SuperSpeed USB Device Capability:", "wTotalLength 0x0079", "wTotalLength 0x0016")
    pyusb = found["pyusb"]
    assert (pyusb["xdata"], pyusb["written"], pyusb["window"]) == ("5a", 512 << 10, bytes(range(64)).hex())
    assert (pyusb["nothing_armed"], pyusb["unknown_request"]) == (110, 32), "a time limit and a stall must reach libusb as what they are"
    driver = found["driver"]
    assert {name: driver[name] for name in DRIVER} == DRIVER
    assert driver["speed"] == speed
    assert machine.asm24 is not None
    assert machine.gpus[0].vram.read(0x100000, 4) == bytes([3, 10, 17, 24])
    assert not machine.asm24.sram.errors


def test_stock_firmware_is_a_disk_to_the_kernel_and_a_bridge_to_the_driver(tmp_path: Path) -> None:
    found, machine = in_guest("navi31-asm24-stock", "stock", tmp_path, "xhci_pci usb_storage uas")
    assert found["disks"] == ["tiny TinyEnclosure"]
    assert found["kernel"]["drivers"] in (["uas"], ["usb-storage"])
    lsusb_says(found, "bInterfaceProtocol 80", "bInterfaceProtocol 98", "Command pipe (0x01)", "Data-out pipe (0x04)", "SuperSpeedPlus USB Device Capability:")
    assert {name: found["driver"][name] for name in DRIVER} == DRIVER
    assert machine.gpus[0].vram.read(0x100000, 4) == bytes([3, 10, 17, 24])
