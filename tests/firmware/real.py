"""Real firmware files, which the project does not ship: where tests find them, or why they cannot."""

from __future__ import annotations

import os
from pathlib import Path

OLD_FOLDER = "TGHW_TEST_FIRMWARE"
"""environment variable: a folder with the older files that the parser is tried on"""
REAL_FOLDER = "TGHW_REAL_FIRMWARE"
"""environment variable: a folder into which a distribution's AMD firmware package was unpacked"""


def old_folder() -> Path | None:
    """The folder named by TGHW_TEST_FIRMWARE, or the one that may lie beside the checkout."""
    named = os.environ.get(OLD_FOLDER)
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data" / "amdgpu-firmware"
    return folder if folder.is_dir() else None


def real_folder() -> Path | None:
    """The folder of the unpacked package that holds the files themselves: the one named amdgpu, at any depth."""
    named = os.environ.get(REAL_FOLDER)
    if not named or not Path(named).is_dir():
        return None
    root = Path(named)
    if root.name == "amdgpu":
        return root
    return next((folder for folder in sorted(root.rglob("amdgpu")) if folder.is_dir()), None)
