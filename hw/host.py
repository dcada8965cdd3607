"""The files through which Linux shows its devices and itself: /sys, /proc, /dev, under a root that can be another one.

Everything that asks the kernel something goes through a HostFiles, so that it can be tried on a tree of ordinary files.
"""

from __future__ import annotations

import os
from pathlib import Path


class HostFiles:
    """Reads and writes of kernel files. Paths given to its methods are complete ones, made from `sys`, `proc` or `dev`."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self.sys = self.root / "sys"
        self.proc = self.root / "proc"
        self.dev = self.root / "dev"

    @property
    def pci(self) -> Path:
        """Directory with one link a PCI function."""
        return self.sys / "bus" / "pci" / "devices"

    def text(self, path: Path) -> str | None:
        """Contents without surrounding white space; None when the file is absent or does not answer."""
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: Path, base: int = 0) -> int | None:
        """A file that holds one number ("0x1002", "16"); None when it is absent or holds something else."""
        text = self.text(path)
        try:
            return None if text is None else int(text, base)
        except ValueError:
            return None

    def link_name(self, path: Path) -> str:
        """Last part of what a link points to; "" when there is no link."""
        try:
            return os.path.basename(os.readlink(path))
        except OSError:
            return ""

    def may_use(self, path: Path) -> bool:
        """Whether this process may read and write a file, without opening it (opening some device nodes takes the device)."""
        return os.access(path, os.R_OK | os.W_OK)

    def open(self, path: Path, flags: int) -> int:
        """A close-on-exec descriptor. Raises OSError."""
        return os.open(path, flags | os.O_CLOEXEC)

    def write(self, path: Path, text: str) -> None:
        """Write one value in one write() call, as kernel attributes want it; never creates a file. Raises OSError."""
        descriptor = self.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


HOST = HostFiles()
"""This machine."""
