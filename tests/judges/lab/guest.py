"""A QEMU guest with a stock Debian kernel that sees the host's files read-only: the project's own Python runs in it unchanged.

    result = run(script, devices=["-device", "edu"], kernel_options="intel_iommu=on", limit=60)
    result.status, result.output

Nothing is installed and no privilege is used on the host. The kernel comes from TGHW_LAB_KERNEL (a folder into which a linux-image
package was unpacked), else from the system, else apt-get downloads it once into the user's cache. What is missing is told by
LabMissing, for pytest.skip().
"""

from __future__ import annotations

import fcntl
import gzip
import lzma
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from elftools.elf.elffile import ELFFile

KERNEL_VARIABLE = "TGHW_LAB_KERNEL"
QEMU = "qemu-system-x86_64"
NEEDED = {QEMU: "qemu-system-x86", "busybox": "busybox-static", "modprobe": "kmod", "depmod": "kmod"}
"""program -> Debian package"""
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
XZ_MAGIC = bytes.fromhex("FD377A585A00")
DOWNLOAD_LIMIT = 300
"""seconds"""
KERNEL_COMMAND_LINE = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable no_timer_check nokaslr"

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules.order); do $b insmod /modules/$module; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=500000 hostroot /r || $b poweroff -f
$b mount -t tmpfs tmpfs /o
$b mkdir /o/upper /o/work /o/root
$b mount -t overlay -o lowerdir=/r,upperdir=/o/upper,workdir=/o/work overlay /o/root
for each in proc sys dev; do $b mount --move /$each /o/root/$each; done
$b mount -t tmpfs tmpfs /o/root/run
$b mkdir -p /o/root/dev/shm
$b mount -t tmpfs tmpfs /o/root/dev/shm
$b mkdir -p /o/root/usr/lib/modules
$b mount --bind /o/root$LABMODULES /o/root/usr/lib/modules
$b chroot /o/root /bin/sh $LABCMD
echo "EXIT $?"
$b poweroff -f
"""


class LabMissing(Exception):
    """The guest cannot be had here; says what is missing."""


@dataclass(frozen=True)
class Kernel:
    version: str
    image: Path
    """uncompressed where that was possible, which boots 3 s faster"""
    modules: Path
    """the folder that holds VERSION/modules.dep"""


@dataclass(frozen=True)
class Result:
    status: int
    """of the command in the guest; -1 when the guest did not get as far"""
    output: str
    seconds: float


def kernel() -> Kernel:
    """A kernel and its modules. Raises LabMissing."""
    for program, package in NEEDED.items():
        if shutil.which(program) is None:
            raise LabMissing(f"{program} is not installed (Debian: {package})")
    if named := os.environ.get(KERNEL_VARIABLE):
        return _prepared(Path(named), Path(named) / "boot")
    if installed := _newest(Path("/boot"), Path("/lib/modules")):
        return _ready(installed, Path("/boot"), Path("/lib/modules"))
    return _downloaded()


def _newest(boot: Path, modules: Path) -> str:
    """Version of the newest kernel that has modules too, "" for none."""
    versions = [path.name.removeprefix("vmlinuz-") for path in boot.glob("vmlinuz-*") if (modules / path.name.removeprefix("vmlinuz-") / "kernel").is_dir()]
    return max(versions, key=lambda version: [int(number) for number in re.findall(r"\d+", version)], default="")


@contextmanager
def _cache() -> Iterator[Path]:
    """The folder for what is made once, held alone."""
    folder = platformdirs.user_cache_path("tghw") / "lab"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _prepared(package: Path, boot: Path) -> Kernel:
    """From a folder into which a package was unpacked."""
    modules = next((folder for folder in (package / "lib" / "modules", package / "usr" / "lib" / "modules") if folder.is_dir()), package / "lib" / "modules")
    version = _newest(boot, modules)
    if not version:
        raise LabMissing(f"{package} has no boot/vmlinuz-* with modules")
    if not (modules / version / "modules.dep").exists():
        subprocess.run(["depmod", "-b", str(modules.parent.parent), version], check=True, timeout=60)
    return _ready(version, boot, modules)


def _ready(version: str, boot: Path, modules: Path) -> Kernel:
    with _cache() as cache:
        image = cache / f"vmlinux-{version}"
        if not image.exists():
            packed = (boot / f"vmlinuz-{version}").read_bytes()
            start = packed.find(XZ_MAGIC)
            if start < 0:
                return Kernel(version, boot / f"vmlinuz-{version}", modules)
            partial = cache / f"vmlinux-{version}.part"
            partial.write_bytes(lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(packed[start:]))
            partial.rename(image)
    return Kernel(version, image, modules)


def _downloaded() -> Kernel:
    with _cache() as cache:
        package = cache / "linux-image"
        if not package.exists():
            _download(cache, package)
    return _prepared(package, package / "boot")


def _download(cache: Path, package: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise LabMissing(f"no kernel: set {KERNEL_VARIABLE} to a folder with an unpacked linux-image package")
    known = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, timeout=60, check=False).stdout
    names = re.findall(r"Depends: (linux-image-\S+-amd64)", known)
    if not names:
        raise LabMissing("apt knows no linux-image-amd64 (apt-get update?)")
    work = cache / "download"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        done = subprocess.run(["apt-get", "-q", "download", names[0]], cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise LabMissing(f"downloading {names[0]} took too long") from error
    files = list(work.glob("*.deb"))
    if done.returncode or not files:
        raise LabMissing(f"{names[0]} could not be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    subprocess.run(["dpkg-deb", "-x", str(files[0]), str(work / "unpacked")], check=True, timeout=120)
    (work / "unpacked").rename(package)
    shutil.rmtree(work)


# --- the first file system ----------------------------------------------------------------------------------------------


def initramfs(chosen: Kernel, target: Path) -> None:
    """Write what the kernel starts from: busybox, the modules for the shared files, and INIT."""
    busybox = Path(shutil.which("busybox") or "")
    with busybox.open("rb") as file:
        if any(segment.header.p_type == "PT_INTERP" for segment in ELFFile(file).iter_segments()):
            raise LabMissing("busybox needs shared libraries (Debian: install busybox-static)")
    modules: list[Path] = []
    for name in BOOT_MODULES:
        shown = subprocess.run(
            ["modprobe", "-d", str(chosen.modules.parent.parent), "-S", chosen.version, "--show-depends", name], capture_output=True, text=True, timeout=20, check=False
        )
        if shown.returncode:
            raise LabMissing(f"kernel {chosen.version} has no module {name}: {shown.stderr.strip()}")
        modules += [path for path in (Path(line.split()[1]) for line in shown.stdout.splitlines() if line.startswith("insmod")) if path not in modules]
    entries = [_entry(name, 0o040755) for name in ("bin", "proc", "sys", "dev", "r", "o", "modules")]
    entries += [_entry("bin/busybox", 0o100755, busybox.read_bytes()), _entry("init", 0o100755, INIT.encode())]
    entries += [_entry(f"modules/{path.name.removesuffix('.xz')}", 0o100644, _plain(path)) for path in modules]
    entries.append(_entry("modules.order", 0o100644, "\n".join(path.name.removesuffix(".xz") for path in modules).encode()))
    entries.append(_entry("TRAILER!!!", 0))
    target.write_bytes(gzip.compress(b"".join(entries), 1))


def _plain(module: Path) -> bytes:
    """A module as busybox can load it; newer kernels' are compressed."""
    return lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes()


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One file of a cpio archive (format newc: everything padded to 4 bytes)."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


# --- running ------------------------------------------------------------------------------------------------------------


def run(command: Path, *, folder: Path, devices: Sequence[str] = (), kernel_options: str = "", limit: float, memory: str = "1G") -> Result:
    """Boot, run a shell script (a path that the guest sees too), power off. Raises LabMissing; the guest is ended after `limit` seconds."""
    chosen = kernel()
    initrd = folder / "initrd.gz"
    initramfs(chosen, initrd)
    line = [
        QEMU,
        *("-accel", "tcg,thread=multi", "-M", "q35,memory-backend=m", "-cpu", "max", "-m", memory, "-smp", "1"),
        *("-object", f"memory-backend-memfd,id=m,size={memory},share=on"),
        *("-kernel", str(chosen.image), "-initrd", str(initrd)),
        *("-append", f"{KERNEL_COMMAND_LINE} {kernel_options} LABMODULES={chosen.modules} LABCMD={command}"),
        *("-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio"),
        *("-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"),
        *devices,
    ]
    start = time.monotonic()
    try:
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=limit, check=False)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace") + f"\nguest ended after {limit:g} s"
    output = output.replace("\r\n", "\n")
    found = re.search(r"^EXIT (\d+)$", output, re.MULTILINE)
    return Result(int(found[1]) if found else -1, output, time.monotonic() - start)
