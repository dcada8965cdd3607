"""Dumps of a flash: taken twice, compared, kept as a file, and remembered as what a write can be undone with."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from firmware.spi.controller import Progress, no_progress
from firmware.spi.errors import ReadUnstable
from firmware.spi.method import Choice
from firmware.spi.writer import first_difference
from hw.files import replace_file

log = logging.getLogger(__name__)

@dataclass(frozen=True)
class Backup:
    """A dump that was made of a device, read twice and equal both times."""

    path: str
    sha256: str
    size: int
    method: str


class Backups:
    """The dumps of one device, in a file of its record folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> list[Backup]:
        """Every recorded dump, the latest first."""
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            return [Backup(str(each["path"]), str(each["sha256"]), int(each["size"]), str(each["method"])) for each in stored]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            log.warning("the list of dumps %s is damaged and is not used: %s", self._path, error)
            return []

    def add(self, backup: Backup) -> None:
        """Remember a dump."""
        others = [each for each in self.all() if each.path != backup.path]
        replace_file(self._path, (json.dumps([asdict(each) for each in (backup, *others)], indent=1) + "\n").encode())

    def usable(self, size: int) -> Backup | None:
        """A dump of this size whose file is still there and unchanged."""
        for backup in self.all():
            path = Path(backup.path)
            if backup.size == size and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == backup.sha256:
                return backup
        return None


def read_whole(choice: Choice, progress: Progress = no_progress) -> bytes:
    """The whole flash, with what can be checked about a single reading. Raises ImageRefused, ApertureMirrored, FlashError, BusLost."""
    content = choice.source.read(0, choice.source.size, progress)
    if choice.aperture is not None:
        choice.aperture.check(content)
    return content


def read_twice(choice: Choice, progress: Progress = no_progress) -> bytes:
    """The whole flash, read twice and equal. Raises ReadUnstable, and what read_whole() raises."""
    with choice.source.session():
        first = read_whole(choice, lambda done, total: progress(done, 2 * total))
        second = read_whole(choice, lambda done, total: progress(total + done, 2 * total))
    problem = first_difference(first, second)
    if problem is not None:
        at = problem.address
        raise ReadUnstable(f"two readings differ at {at:#08x}", read=f"{first[at]:#04x}, then {second[at]:#04x}")
    return first


def keep_old(path: Path, content: bytes) -> Path | None:
    """Move a file that is in the way and holds something else aside; returns its new name."""
    if not path.exists() or path.read_bytes() == content:
        return None
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(aside)
    return aside


def save(content: bytes, path: Path, method: str, backups: Backups) -> tuple[Backup, Path | None]:
    """Keep a verified dump as a file and remember it; a different file of that name is moved aside, its new name is returned too."""
    aside = keep_old(path, content)
    if aside is not None:
        for backup in backups.all():
            if backup.path == str(path.resolve()):
                backups.add(Backup(str(aside.resolve()), backup.sha256, backup.size, backup.method))
    replace_file(path, content)
    made = Backup(str(path.resolve()), hashlib.sha256(content).hexdigest(), len(content), method)
    backups.add(made)
    return made, aside
