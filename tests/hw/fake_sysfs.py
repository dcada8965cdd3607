"""A Linux machine's /sys, /proc and /dev as a tree of ordinary files, with a small kernel behind the writable ones.

    host = FakeHost(tmp_path)
    host.add_function("0000:03:00.0", image=..., bars={0: FakeBar(0x8_0000_0000, 256 << 20)})
    device = SysfsPciDevice("0000:03:00.0", host=host, lock_directory=tmp_path)

The files are real: mapping resourceN maps a file, configuration space is the `config` file. Writing an attribute through the host
does what Linux does (enable, unbind, power/control, resourceN_resize, remove, rescan, reset), unless a fault is planned for it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hw.host import HostFiles

COMMAND = 0x04
IO_AND_MEMORY = 0x3


@dataclass
class FakeBar:
    """address 0: unassigned. flags as in linux/ioport.h; the default is 64-bit prefetchable memory."""

    address: int
    size: int
    flags: int = 0x10220C
    offered: int = 0
    """bit k: 2^(k+20) bytes may be chosen"""


@dataclass
class FakeFunction:
    directory: Path
    bars: dict[int, FakeBar]
    driver: str
    removed: bool = False


class FakeHost(HostFiles):
    """See the module. `faults` maps a path suffix to an errno that opening or writing such a path gives; `ignored` are writes without effect."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.functions: dict[str, FakeFunction] = {}
        self.open_faults: dict[str, int] = {}
        self.write_faults: dict[str, int] = {}
        self.ignored: set[str] = set()
        self.written: list[tuple[str, str]] = []
        """(path below the root, text) of every attribute written, in order"""
        self.on_write: dict[str, Callable[[Path, str], None]] = {}
        for directory in (self.pci, self.proc / "sys" / "vm", self.sys / "bus" / "pci" / "drivers", self.dev):
            directory.mkdir(parents=True)
        for name in ("rescan", "drivers_probe"):
            self.put(self.sys / "bus" / "pci" / name, "")
        self.put(self.proc / "sys" / "vm" / "compact_unevictable_allowed", "0")

    # --- building -----------------------------------------------------------------------------------------------------

    def put(self, path: Path, text: str) -> None:
        """A file with this text and the newline that the kernel adds."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n" if text else "")

    def add_function(
        self,
        address: str,
        image: bytes,
        bars: dict[int, FakeBar] | None = None,
        *,
        driver: str = "",
        power_state: str = "D0",
        enabled: int = 0,
        parent: str = "pci0000:00",
        iommu_type: str = "",
        iommu_group: str = "",
        **attributes: str,
    ) -> FakeFunction:
        """A function whose attributes follow from its configuration image; further attribute files by keyword."""
        directory = self.sys / "devices" / parent / address
        directory.mkdir(parents=True)
        (self.pci / address).symlink_to(directory)

        def word(offset: int, size: int) -> int:
            return int.from_bytes(image[offset : offset + size], "little")

        texts = {
            "vendor": f"{word(0, 2):#06x}",
            "device": f"{word(2, 2):#06x}",
            "revision": f"{word(8, 1):#04x}",
            "class": f"{word(8, 4) >> 8:#08x}",
            "subsystem_vendor": f"{word(0x2C, 2):#06x}",
            "subsystem_device": f"{word(0x2E, 2):#06x}",
            "enable": str(enabled),
            "power_state": power_state,
            "power/control": "auto",
            "numa_node": "-1",
            "driver_override": "(null)",
            "remove": "",
            "reset": "",
            "reset_method": "bus",
        }
        for name, text in (texts | attributes).items():
            self.put(directory / name, text)
        (directory / "config").write_bytes(image)
        function = FakeFunction(directory, dict(bars or {}), driver)
        self.functions[address] = function
        self._write_resources(function)
        if driver:
            (directory / "driver").symlink_to(self.add_driver(driver))
        if iommu_type:
            group = self.sys / "kernel" / "iommu_groups" / (iommu_group or str(len(self.functions)))
            self.put(group / "type", iommu_type)
            (group / "devices").mkdir(exist_ok=True)
            (group / "devices" / address).symlink_to(directory)
            (directory / "iommu_group").symlink_to(group)
        return function

    def add_driver(self, name: str) -> Path:
        """A loaded kernel driver."""
        home = self.sys / "bus" / "pci" / "drivers" / name
        home.mkdir(exist_ok=True)
        self.put(home / "unbind", "")
        return home

    def _write_resources(self, function: FakeFunction) -> None:
        lines = []
        for index in range(13):
            bar = function.bars.get(index)
            if bar is None:
                lines.append(f"{0:#018x} {0:#018x} {0:#018x}")
                continue
            lines.append(f"{bar.address:#018x} {bar.address + bar.size - 1:#018x} {bar.flags:#018x}")
            path = function.directory / f"resource{index}"
            with path.open("ab"):
                os.truncate(path, bar.size)
            if bar.offered:
                self.put(function.directory / f"resource{index}_resize", f"{bar.offered:016x}")
        self.put(function.directory / "resource", "\n".join(lines))

    def add_process(self, pid: int, command: str, opened: tuple[str, ...] = ()) -> None:
        """A process with these files open."""
        home = self.proc / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (home / "stat").write_text(f"{pid} ({command.split()[0]}) S " + " ".join(["0"] * 18) + " 4242 0\n")
        for number, target in enumerate(opened):
            (home / "fd" / str(number)).symlink_to(target)

    # --- the kernel ---------------------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        self._fail(self.open_faults, path)
        return super().open(path, flags)

    def write(self, path: Path, text: str) -> None:
        self._fail(self.write_faults, path)
        if not path.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.written.append((str(path.relative_to(self.root)), text))
        if path.name in self.on_write:
            self.on_write[path.name](path, text)
        elif path.name not in self.ignored:
            self._act(path, text)

    def _fail(self, faults: dict[str, int], path: Path) -> None:
        for suffix, number in faults.items():
            if str(path).endswith(suffix):
                raise OSError(number, os.strerror(number), str(path))

    def _act(self, path: Path, text: str) -> None:
        function = self.functions.get(path.parent.name) or self.functions.get(path.parent.parent.name)
        name = path.name
        if name == "unbind":
            function = self.functions[text.strip()]
            (function.directory / "driver").unlink()
            function.driver = ""
        elif name == "rescan":
            for address, gone in self.functions.items():
                if gone.removed:
                    (self.pci / address).symlink_to(gone.directory)
                    gone.removed = False
        elif name == "drivers_probe":
            function = self.functions[text.strip()]
            home = self.sys / "bus" / "pci" / "drivers" / (self.text(function.directory / "driver_override") or "(null)")
            if home.is_dir() and not function.driver:
                function.driver = home.name
                (function.directory / "driver").symlink_to(home)
        elif function is None or name == "reset":
            return
        elif name == "driver_override":
            self.put(path, text.strip() or "(null)")
        elif name == "enable":
            count = int(self.text(path) or 0) + (1 if text.strip() == "1" else -1)
            self.put(path, str(count))
            self.put(function.directory / "power_state", "D0" if count else self.text(function.directory / "power_state") or "")
            self.set_config(function, COMMAND, (self.config_word(function, COMMAND) | IO_AND_MEMORY) if count else self.config_word(function, COMMAND) & ~IO_AND_MEMORY)
        elif name == "control":
            self.put(path, text)
            if text == "on":
                self.put(function.directory / "power_state", "D0")
        elif name == "remove":
            (self.pci / function.directory.name).unlink()
            function.removed = True
        elif name.endswith("_resize"):
            if function.driver:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            bar = function.bars[int(name[len("resource") : -len("_resize")])]
            if not bar.offered >> int(text) & 1:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            bar.size = 1 << (int(text) + 20)
            self._write_resources(function)
        else:
            self.put(path, text)

    def config_word(self, function: FakeFunction, offset: int) -> int:
        """Two bytes of a function's configuration space."""
        return int.from_bytes((function.directory / "config").read_bytes()[offset : offset + 2], "little")

    def set_config(self, function: FakeFunction, offset: int, value: int, size: int = 2) -> None:
        with (function.directory / "config").open("r+b") as file:
            file.seek(offset)
            file.write(value.to_bytes(size, "little"))

    def snapshot(self, function: FakeFunction) -> dict[str, bytes]:
        """Every small file of a function, to show that nothing was changed."""
        return {str(path.relative_to(function.directory)): path.read_bytes() for path in function.directory.rglob("*") if path.is_file() and path.stat().st_size < 1 << 16} | {
            "driver": self.link_name(function.directory / "driver").encode()
        }
