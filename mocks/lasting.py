"""What a simulated machine keeps when its process ends: files in its state directory.

A memory's file is made when the memory is first written, and from then on it is the memory: every change is in it at once, so that a
process that is killed leaves exactly what the device would hold. Without a directory everything ends with the process.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hw.errors import ProfileError
from hw.files import replace_file


def folder_name(text: str) -> str:
    """A device address or machine name as a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", text)


class LastingMemory:
    """Bytes that outlive the process. `factory` makes what the device was delivered with; it is asked only when somebody looks."""

    def __init__(self, path: Path | None, size: int, factory: Callable[[], bytes]) -> None:
        self.size = size
        self.written = False
        """changed since the device was delivered"""
        self._path = path
        self._factory = factory
        self._memory: bytes | bytearray | mmap.mmap | None = None
        if path is not None and path.exists():
            self._map(path)

    def _map(self, path: Path) -> None:
        found = path.stat().st_size
        if found != self.size:
            raise ProfileError(
                f"{path} holds {found:#x} bytes, the simulated chip has {self.size:#x}",
                means="the file belongs to another profile, or was changed by something else",
                remedy="remove it to start with a chip as delivered, or use another --state folder",
            )
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), self.size)
        self.written = True

    def _look(self) -> bytes | bytearray | mmap.mmap:
        if self._memory is None:
            self._memory = self._factory()
            if len(self._memory) != self.size:
                raise ProfileError(f"the chip's content has {len(self._memory):#x} bytes, the chip {self.size:#x}")
        return self._memory

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._look()[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        if not self.written:
            content = self._look()
            if self._path is not None:
                replace_file(self._path, bytes(content))
                self._map(self._path)
            else:
                self._memory = bytearray(content)
            self.written = True
        memory = self._memory
        assert isinstance(memory, bytearray | mmap.mmap)
        memory[offset : offset + len(data)] = data


class LastingValues:
    """A few values with names, kept as JSON. Written as a whole, in one step."""

    def __init__(self, path: Path | None, defaults: dict[str, Any]) -> None:
        self._path = path
        self.values = dict(defaults)
        if path is not None and path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self.values.update({key: stored[key] for key in defaults if key in stored})
            except (ValueError, AttributeError) as error:
                raise ProfileError(f"{path} is damaged", read=str(error), remedy="remove it to start with a chip as delivered") from error

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def update(self, **values: Any) -> None:
        """Change values; written only when something really changed."""
        if all(self.values[key] == value for key, value in values.items()):
            return
        self.values.update(values)
        if self._path is not None:
            replace_file(self._path, (json.dumps(self.values) + "\n").encode())
