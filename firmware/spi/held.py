"""Registers that a run has changed and will restore, remembered outside the process.

A process that is killed restores nothing. The next run on the same device finds the note, sees in the registers that they are still
as the killed run set them, and restores what was there before that run instead of what it finds.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from hw.files import replace_file

log = logging.getLogger(__name__)


class HeldRegisters:
    """The note about one device's registers, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, found: dict[str, int], settings: dict[str, int]) -> dict[str, int]:
        """Note that registers that hold `found` are about to be set. Returns the values to restore in the end."""
        originals = self._left_behind(found) or found
        replace_file(self._path, (json.dumps({"originals": originals, "settings": settings}) + "\n").encode())
        return originals

    def release(self) -> None:
        """The registers are restored."""
        self._path.unlink(missing_ok=True)

    def _left_behind(self, found: dict[str, int]) -> dict[str, int] | None:
        """The originals of a run that was killed, when the registers are still as it set them."""
        try:
            note = json.loads(self._path.read_text(encoding="utf-8"))
            originals = {name: int(note["originals"][name]) for name in found}
            settings = {name: int(note["settings"][name]) for name in found}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("a note about held registers cannot be read: %s", error)
            return None
        if settings != found or found == originals:
            return None
        log.warning("an earlier run was killed and left the flash controller's registers changed; its originals will be restored")
        return originals
