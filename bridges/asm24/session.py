"""One opened bridge: locked, claimed, its firmware's protocol chosen by the product string."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from bridges.asm24.custom import CustomProtocol
from bridges.asm24.errors import BridgeProtocolMismatch
from bridges.asm24.ids import Protocol, protocol_of
from bridges.asm24.protocol import BridgeProtocol
from bridges.asm24.scsi import BulkOnly, CommandPipe
from bridges.asm24.stock import StockProtocol
from bridges.asm24.uas import uas_of
from bridges.asm24.usb import UsbBridge, UsbLink
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BusError

log = logging.getLogger(__name__)

Release = Callable[[], None]


class BridgeSession:
    """Made by open(). `kind`: what runs on the bridge; `protocol`: how to talk to it, None for loaders that only write flash."""

    def __init__(self, link: UsbLink, clock: Clock, release: Release) -> None:
        self.link = link
        self.clock = clock
        self.address = link.address
        self._release = release
        self._closed = False
        self.product = link.product_string
        self.kind = protocol_of(link.bridge.product, self.product)
        self.protocol: BridgeProtocol | None = None
        if self.kind is Protocol.CUSTOM:
            self.protocol = CustomProtocol(link, clock)
        elif self.kind is Protocol.STOCK:
            self.protocol = StockProtocol(link, clock, command_pipe(link))

    @classmethod
    def open(cls, bridge: UsbBridge, backend: Any, *, clock: Clock = HOST_CLOCK, lock: Callable[[str], Release] | None = None, wanted: Protocol | None = None) -> Self:
        """Take a bridge that runs stock or open firmware. The product string is read before anything is changed.

        lock: takes the lock of an address and returns what gives it back. Raises DeviceBusy, BridgePermission, BridgeProtocolMismatch,
        BridgeWedged and the errors of transfers.
        """
        session = cls.look(bridge, backend, clock=clock, lock=lock)
        try:
            if wanted is not None and session.kind is not wanted:
                raise BridgeProtocolMismatch(f"{session.address} does not run {wanted.value} firmware", read=f"product string {session.product!r}")
            session.ready()
        except BaseException:
            session.close()
            raise
        return session

    @classmethod
    def look(cls, bridge: UsbBridge, backend: Any, *, clock: Clock = HOST_CLOCK, lock: Callable[[str], Release] | None = None) -> Self:
        """Take the lock and find out what runs on a bridge, claiming nothing yet."""
        release = lock(bridge.address) if lock is not None else (lambda: None)
        link = UsbLink(bridge, backend, clock)
        try:
            return cls(link, clock, release)
        except BaseException:
            link.close()
            release()
            raise

    def ready(self) -> BridgeProtocol:
        """Claim the interface and start the protocol. Raises BridgeProtocolMismatch for a loader."""
        if self.protocol is None:
            raise BridgeProtocolMismatch(
                f"{self.address} runs a loader that only writes its own flash",
                read=f"product string {self.product!r}",
                means="its flash holds no valid firmware, or it was told to stop in the loader",
                remedy="write a firmware with `tghw bridge flash FILE --yes`",
            )
        self.protocol.start()
        return self.protocol

    def close(self) -> None:
        """Give the interface and the lock back. Closing twice is allowed; a bridge that is gone is closed too."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.protocol is not None:
                self.protocol.stop()
        except BusError as error:
            log.info("leaving %s: %s", self.address, error)
        finally:
            self.link.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def command_pipe(link: UsbLink) -> CommandPipe:
    """The fastest way to send SCSI commands that bridge and host both know: UAS with streams, else bulk-only."""
    return uas_of(link) or BulkOnly(link)
