"""Interrupts as eventfds: the kernel (VFIO) or a simulated machine counts them up, we wait and drain.

Plain sysfs has no interrupts: a device opened that way is polled.
"""

from __future__ import annotations

import os
import select

from hw.errors import NotSupported
from hw.pci.device import Irq


class EventfdIrq(Irq):
    """One interrupt vector. `descriptor` is handed to whoever signals; after close() it must not be used."""

    def __init__(self) -> None:
        if not hasattr(os, "eventfd"):
            raise NotSupported("interrupts on this system", means="they arrive through an eventfd, which only Linux has", remedy="poll the device instead")
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.count = 0
        """Interrupts seen so far. Several may be told by one wait(): process the device's ring fully each time."""

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; True when at least one interrupt arrived since the last call."""
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        if not poller.poll(max(0.0, timeout) * 1000):
            return False
        try:
            self.count += os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return False  # another thread drained it between poll and read
        return True

    def close(self) -> None:
        """Close the descriptor; the signalling side must have been told before. Closing twice is allowed."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
