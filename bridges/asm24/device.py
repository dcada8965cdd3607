"""A PCI function behind an ASM24xx bridge, as the rest of the toolkit sees every PCI function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

from bridges.asm24.bringup import Topology, assign_bars, bring_link_up, largest_first, walk
from bridges.asm24.config import BridgeConfig
from bridges.asm24.errors import BarAssignment, TlpError
from bridges.asm24.ids import Protocol
from bridges.asm24.protocol import BridgeProtocol
from bridges.asm24.session import BridgeSession, Release
from bridges.asm24.sram import Sram, SramBuffer
from bridges.asm24.usb import TransferCounts, UsbBridge
from bridges.asm24.window import BridgeWindow, PendingAccesses
from hw.clock import HOST_CLOCK, Clock
from hw.errors import BusError, NotSupported, OutOfWindow, TghwError
from hw.mmio import Mmio
from hw.pci.device import COMMAND, Bar, DmaMemory, PciDevice
from hw.pci.extcaps import SizableBar
from hw.poll import poll

log = logging.getLogger(__name__)

BRIDGE_CONTROL = 0x3E
SECONDARY_RESET = 1 << 6
DOWNSTREAM_BUS = 1
"""bus of the bridge's downstream port"""
RESET_SECONDS = 0.1
ANSWER_WITHIN = 2.0
"""seconds for a device to answer configuration requests again after it reset itself"""


class Asm24PciDevice(PciDevice):
    """The device behind one bridge. It reaches no host memory; interrupts do not get through: drivers poll."""

    transport = "asm24"
    local = False

    def __init__(self, session: BridgeSession, *, resize: bool = True) -> None:
        """session: opened; the device owns it from here. resize: give the first resizable BAR its largest size."""
        if session.protocol is None:
            raise ValueError("a session without a protocol for PCIe")
        self.session = session
        self.address = session.address
        self.peer_group = session.address
        self.clock: Clock = session.clock
        self.protocol: BridgeProtocol = session.protocol
        self._pending = PendingAccesses(self.protocol)
        self._sram = Sram(self.protocol, self._pending.flush)
        self._windows: list[BridgeWindow] = []
        self._closed = False
        bring_link_up(self.protocol)
        self.topology: Topology = walk(self.protocol)
        self.config = BridgeConfig(self.protocol, self.topology.bus, before=self._pending.flush)
        self._bars = assign_bars(self.config, resize=largest_first if resize else lambda bar, position: None)

    @classmethod
    def open(
        cls,
        bridge: UsbBridge,
        backend: Any,
        *,
        clock: Clock = HOST_CLOCK,
        lock: Callable[[str], Release] | None = None,
        wanted: Protocol | None = None,
    ) -> Self:
        """Take a bridge, bring the link up, number the buses, assign addresses. Raises DeviceBusy, BridgeError, LinkDown, EndpointMissing, TlpError, BarAssignment."""
        session = BridgeSession.open(bridge, backend, clock=clock, lock=lock, wanted=wanted)
        try:
            return cls(session)
        except BaseException:
            session.close()
            raise

    @property
    def counts(self) -> TransferCounts:
        """USB transfers since the bridge was opened."""
        return self.session.link.counts

    # --- the contract ---

    @property
    def bars(self) -> dict[int, Bar]:
        return dict(self._bars)

    def map_bar(self, index: int, offset: int = 0, size: int | None = None) -> Mmio:
        bar = self.bar(index)
        length = bar.size - offset if size is None else size
        if offset < 0 or length < 0 or offset + length > bar.size:
            raise OutOfWindow(f"mapping {length:#x} bytes at {offset:#x} of BAR{index}, which has {bar.size:#x}")
        window = BridgeWindow(self.protocol, self._pending, bar.address + offset, length, f"BAR{index} of {self.address}")
        self._windows.append(window)
        return window

    def resize_bar(self, index: int, size: int) -> None:
        bar = self.bar(index)
        if size == bar.size:
            return
        if size not in bar.resizable_to:
            raise NotSupported(f"BAR{index} of {self.address} with {size:#x} bytes", read=f"offered: {', '.join(f'{each:#x}' for each in bar.resizable_to) or 'one size'}")
        self._forget_windows()
        before = self._bars
        self._bars = self._assign({each: size if each == index else place.size for each, place in before.items()})

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        return self._sram.allocate(size)

    @property
    def transfer_buffer(self) -> SramBuffer | None:
        return self._sram.buffer()

    def reset(self) -> None:
        """Hot reset of everything in the slot, by the port above it; addresses and command are restored."""
        command = self.config.read16(COMMAND)
        port = BridgeConfig(self.protocol, DOWNSTREAM_BUS, before=self._pending.flush)
        control = port.read16(BRIDGE_CONTROL)
        port.write16(BRIDGE_CONTROL, control | SECONDARY_RESET)
        self.clock.sleep(RESET_SECONDS)
        port.write16(BRIDGE_CONTROL, control & ~SECONDARY_RESET)
        self.clock.sleep(RESET_SECONDS)
        self._restore()
        self.config.write16(COMMAND, command)

    def reconnect(self) -> None:
        """Where the card's own ports lost their numbers or the link dropped: bring it up, number and assign anew, to the same addresses."""
        bring_link_up(self.protocol)

        def answers() -> bool:
            try:
                return self.config.read32(0) == self.topology.ids
            except TlpError as error:
                log.debug("not yet: %s", error)
                return False

        if not answers():
            self._restore()
        poll(answers, bool, what=f"an answer of {self.address} after its reset", within=ANSWER_WITHIN, clock=self.clock)

    def flush(self) -> None:
        """Send what waits in a batch."""
        self._pending.flush()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._forget_windows()
        try:
            self.set_bus_master(False)
        except BusError as error:
            log.info("closing %s: %s", self.address, error)
        finally:
            self.session.close()

    # --- inside ---

    def _restore(self) -> None:
        """After a reset that went through the ports: everything as it was, at the same addresses."""
        self.topology = walk(self.protocol)
        bars = self._assign({index: bar.size for index, bar in self._bars.items()})
        if bars != self._bars:
            raise BarAssignment(f"after its reset the BARs of {self.address} differ", read=f"{bars}", means="another device is in the slot now", remedy="open it anew")

    def _assign(self, sizes: dict[int, int]) -> dict[int, Bar]:
        def choose(bar: SizableBar, position: int) -> int | None:
            return sizes.get(bar.bar)

        return assign_bars(self.config, resize=choose)

    def _forget_windows(self) -> None:
        try:
            self._pending.flush()
        except TghwError as error:
            log.info("%s: writes that waited were lost: %s", self.address, error)
        for window in self._windows:
            window.close()
        self._windows.clear()

    def __repr__(self) -> str:
        return f"Asm24PciDevice({self.address}{', closed' if self._closed else ''})"
