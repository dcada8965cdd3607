"""Giving a resizable BAR another size through the kernel (files resourceN_resize, Linux 6.1), which only works while no driver has the function."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from hw.errors import NotSupported, PermissionMissing, ResizeRefused
from hw.host import HOST, HostFiles
from hw.pci.device import Bar, show_size
from hw.pci.functions import read_resources

log = logging.getLogger(__name__)

SMALLEST_SHIFT = 20
"""the files count sizes as powers of two from 1 MiB on"""


def is_due(address: str, index: int, bar: Bar | None, size: int, directory: Path, host: HostFiles = HOST) -> bool:
    """Whether the BAR has another size than this one (bytes), which it can have. Raises NotSupported, ResizeRefused."""
    offered = bar.resizable_to if bar else ()
    if bar is None or not offered:
        path = directory / f"resource{index}_resize"
        raise NotSupported(
            f"resizing BAR{index} of {address}",
            read=f"{path} does not exist" if host.text(path) is None else f"{path} offers no sizes",
            means="the device has no resizable BAR capability for it, or the kernel is older than 6.1",
            remedy="nothing needs it: tghw goes on with the BAR as it is",
        )
    if size not in offered:
        read = f"offered: {', '.join(map(show_size, offered))}"
        raise ResizeRefused(f"BAR{index} of {address} cannot have {size:#x} bytes", read=read, means="the device does not support this size")
    return bar.size != size


def resize(address: str, index: int, size: int, directory: Path, host: HostFiles = HOST, *, others: str = "") -> None:
    """Have the kernel do it. The files of all BARs are made anew: nothing may have them mapped. others: clause about the card's other functions.

    Raises ResizeRefused, PermissionMissing.
    """
    path = directory / f"resource{index}_resize"
    try:
        host.write(path, str(size.bit_length() - 1 - SMALLEST_SHIFT))
    except PermissionError as error:
        raise PermissionMissing(f"writing {path}", read=os.strerror(error.errno or 0)) from error
    except OSError as error:
        means = {errno.EBUSY: "a kernel driver uses this or another function of the card"}.get(error.errno or 0, "")
        raise ResizeRefused(f"BAR{index} of {address} was not made {show_size(size)}", read=os.strerror(error.errno or 0) + others, means=means) from error
    bar = read_resources(directory, host).get(index)
    now = bar.size if bar else 0
    if now != size:
        raise ResizeRefused(f"BAR{index} of {address} did not become {show_size(size)}", read=f"{path.name} was written, its size is {show_size(now)}")
    log.info("BAR%d of %s is %s now", index, address, show_size(size))
