"""What runs after a start: looks at the image in code RAM as the boot ROM and the boot stub do, and picks the firmware model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mocks.asm24.custom import CustomFirmware
from mocks.asm24.device import Firmware

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24


def firmware_for(chip: Asm24) -> Firmware:
    """The firmware that an image is."""
    return CustomFirmware(chip)
