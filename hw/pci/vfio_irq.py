"""Interrupts of a VFIO device: the kernel counts them up in an eventfd."""

from __future__ import annotations

import errno
import logging
import os

from hw.errors import IrqUnavailable
from hw.irq import EventfdIrq
from hw.pci.vfio_abi import INTX, IRQ_NAMES, MSI, MSIX, IrqFlag, SetIrq, Vfio
from hw.pci.vfio_calls import KernelCalls, ask

log = logging.getLogger(__name__)

PREFERRED = (MSI, MSIX, INTX)


class VfioIrq(EventfdIrq):
    """One vector. With INTx the kernel masks the line at each interrupt; wait() opens it again, once the last one has been dealt with."""

    def __init__(self, address: str, calls: KernelCalls, device: int, index: int) -> None:
        super().__init__()
        self.index = index
        self._address = address
        self._calls = calls
        self._device = device
        self._masked = False
        try:
            self._set(SetIrq.DATA_EVENTFD | SetIrq.TRIGGER, "irq_set_fd", count=1, fd=self.descriptor)
        except OSError:
            super().close()
            raise

    def wait(self, timeout: float) -> bool:
        if self._masked:
            self._masked = False
            try:
                self._set(SetIrq.DATA_NONE | SetIrq.UNMASK, "irq_set", count=1)
            except OSError as error:
                raise IrqUnavailable(f"unmasking the interrupt line of {self._address}", read=os.strerror(error.errno or 0)) from error
        arrived = super().wait(timeout)
        self._masked = arrived and self.index == INTX
        return arrived

    def close(self) -> None:
        """Stop delivery, then close the descriptor. Closing twice is allowed."""
        if self.descriptor < 0:
            return
        try:
            self._set(SetIrq.DATA_NONE | SetIrq.TRIGGER, "irq_set", count=0)
        except OSError as error:
            log.warning("%s: its interrupt could not be switched off: %s", self._address, error)
        super().close()

    def _set(self, flags: SetIrq, ctype: str, **values: int) -> None:
        ask(self._calls, self._device, Vfio.DEVICE_SET_IRQS, ctype, flags=flags, index=self.index, start=0, **values)


def open_irq(address: str, calls: KernelCalls, device: int) -> VfioIrq | None:
    """The best kind of interrupt that the device and the kernel offer, None for a device without any. Raises IrqUnavailable."""
    refused = []
    for index in PREFERRED:
        try:
            info, _ = ask(calls, device, Vfio.DEVICE_GET_IRQ_INFO, "irq_info", index=index)
        except OSError as error:
            refused.append(f"{IRQ_NAMES[index]}: {os.strerror(error.errno or 0)}")
            continue
        if not info.count or not info.flags & IrqFlag.EVENTFD:
            continue
        try:
            return VfioIrq(address, calls, device, index)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSPC, errno.EBUSY):
                raise IrqUnavailable(f"asking for the {IRQ_NAMES[index]} of {address}", read=os.strerror(error.errno or 0)) from error
            refused.append(f"{IRQ_NAMES[index]}: {os.strerror(error.errno)}")
    if refused:
        raise IrqUnavailable(f"no interrupt of {address} can be had", read="; ".join(refused))
    return None
