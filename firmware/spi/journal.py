"""A write's diary, so that an interrupted one is finished by the next.

One JSON line each: what is written where, then for every sector when it is begun (before its first change) and when it is done (read
back and right). That a sector is begun is on disk before the chip is touched; that it is done may get lost with the host's power, and then
it is written once more. The file disappears when the write is complete.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hw.files import replace_file

log = logging.getLogger(__name__)


@dataclass
class Unfinished:
    """What an interrupted write left."""

    image: str
    """sha256 of the image it wrote"""
    name: str
    """the image's file name"""
    start: int
    count: int
    chip: str
    """JEDEC id in hex"""
    begun: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)

    @property
    def damaged(self) -> set[int]:
        """Sectors begun and not done."""
        return self.begun - self.done


class Journal:
    """The diary of one device's flash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    def load(self) -> Unfinished | None:
        """The write that was interrupted, or None. A last line that was cut short does not count."""
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return None
        try:
            header = json.loads(lines[0])
            found = Unfinished(header["image"], header["name"], int(header["start"]), int(header["count"]), header["chip"], set(map(int, header["damaged"])))
            for line in lines[1:-1]:
                kind, numbers = json.loads(line)
                if kind == "done":
                    found.done.update(numbers)
                else:
                    found.begun.update(numbers)
                    found.done.difference_update(numbers)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("the journal %s is damaged and is not used: %s", self.path, error)
            return None
        return found

    def start(self, *, image: str, name: str, start: int, count: int, chip: str, damaged: Iterable[int]) -> None:
        """Begin a new write. damaged: sectors that an earlier one left half done."""
        header = {"image": image, "name": name, "start": start, "count": count, "chip": chip, "damaged": sorted(damaged)}
        replace_file(self.path, (json.dumps(header) + "\n").encode())
        self._file = self.path.open("a", encoding="utf-8")

    def begin(self, sectors: Iterable[int]) -> None:
        """These sectors are about to change."""
        self._line("begin", sectors)
        os.fsync(self._file.fileno())

    def done(self, sectors: Iterable[int]) -> None:
        """These sectors were read back and are right."""
        self._line("done", sectors)

    def _line(self, kind: str, sectors: Iterable[int]) -> None:
        self._file.write(json.dumps([kind, sorted(sectors)], separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Leave the diary as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def forget_complete(self, image: str) -> None:
        """The chip was found to hold the image (sha256): if the interrupted write was of that image and left nothing half done, it is complete."""
        found = self.load()
        if found is not None and found.image == image and not found.damaged:
            self.path.unlink(missing_ok=True)

    def finish(self) -> set[int]:
        """The write is complete. What an earlier one damaged elsewhere stays noted; returns those sectors."""
        self.close()
        found = self.load()
        left = found.damaged if found else set()
        if found is not None and left:
            replace_file(self.path, (json.dumps({"image": "", "name": "", "start": 0, "count": 0, "chip": found.chip, "damaged": sorted(left)}) + "\n").encode())
        else:
            self.path.unlink(missing_ok=True)
        return left
