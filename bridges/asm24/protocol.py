"""What both firmwares of the bridge offer, in their own ways: XDATA registers, PCIe requests, runs of memory, the SRAM between USB and PCIe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bridges.asm24.errors import LinkDown
from bridges.asm24.registers import LINK_UP_STATES, address
from bridges.asm24.tlp import DWORD, Tlp
from bridges.asm24.usb import UsbLink
from hw.clock import Clock
from hw.mmio import BytesLike

Run = tuple[int, bytes]
"""bus address and data of consecutive dwords, written in ascending order"""

TLP_TRIES = 11
TLP_PAUSE = 1e-3
"""a request without completion is sent again after this many seconds; shorter and longer pauses are reported to work worse"""

SRAM_BUS_ADDRESS = 0x200000
SRAM_SIZE = 512 << 10
SLOT = 16 << 10
"""transfers to the SRAM begin at multiples of this"""
SECTOR = 512
"""and are multiples of this long"""
FLAGS_XDATA = 0xA800
FLAGS_BUS_ADDRESS = 0x820800
"""part of a small page that both sides reach at any time, and that the bulk engine leaves alone"""
RELEASE_BUS_ADDRESS = 0x82200C
"""a write of the device to the completion page lets the SRAM's content go out over USB"""


class BridgeProtocol(ABC):
    """One session with a bridge's firmware. Bus addresses and sizes are bytes; errors are those of errors.py."""

    name: str
    window_limit: int
    """bytes of one send to the SRAM"""
    receive_limit: int
    """bytes that receive() gets at once"""
    receive_waits: bool = True
    """receive() waits for the device's release word; otherwise the caller makes sure that the data is there"""
    wide_high_first: bool = False
    """64-bit writes go out high half first, as two requests; otherwise as one run of two dwords, low half first"""

    def __init__(self, link: UsbLink, clock: Clock) -> None:
        self.link = link
        self.clock = clock

    @abstractmethod
    def start(self) -> None:
        """Claim the interface and bring the firmware into the state in which the rest works."""

    @abstractmethod
    def stop(self) -> None:
        """Leave nothing armed. The link is closed by its owner."""

    @abstractmethod
    def resynchronise(self) -> None:
        """After a transfer that broke off: nothing armed, nothing left over."""

    # --- the bridge's registers ---

    @abstractmethod
    def read_xdata(self, start: int, size: int) -> bytes:
        """Bytes of XDATA, read one by one by the bridge's processor. Bit 16 of `start` selects the second page."""

    @abstractmethod
    def write_xdata(self, start: int, data: BytesLike) -> None:
        """Bytes to XDATA, one transfer each."""

    def read_register(self, name: str) -> int:
        """One register by name."""
        return self.read_xdata(address(name), 1)[0]

    def write_register(self, name: str, value: int) -> None:
        """One register by name."""
        self.write_xdata(address(name), bytes([value]))

    def link_state(self) -> int:
        """The LTSSM state of the PCIe link."""
        return self.read_register("LTSSM")

    def check_link(self) -> None:
        """Raise LinkDown unless the PCIe link is up."""
        state = self.link_state()
        if state not in LINK_UP_STATES:
            raise LinkDown(state)

    # --- PCIe ---

    @abstractmethod
    def request(self, tlp: Tlp, *, repeat: bool = True) -> int:
        """Send one request; the bytes it read, 0 for a write. Posted ones cannot fail. repeat: may be sent again when nobody completed it.

        Raises TlpTimeout, TlpUnsupportedRequest, TlpConfigRetry, TlpCompleterAbort, TlpReserved.
        """

    @abstractmethod
    def write_runs(self, runs: Sequence[Run]) -> None:
        """Write runs of whole dwords, in order. Errors on the PCIe side cannot be seen."""

    @abstractmethod
    def read_run(self, start: int, size: int) -> bytes:
        """Whole dwords of memory, in ascending order. Errors on the PCIe side may show as stale data: only for places known to answer."""

    @abstractmethod
    def power(self, on: bool) -> None:
        """Slot power and link training; returns when it is done or given up (look at link_state()). Raises NotSupported."""

    # --- SRAM ---

    @abstractmethod
    def send(self, data: BytesLike, offset: int = 0) -> None:
        """Host to SRAM, from a slot boundary on, padded to whole sectors. The last bytes may still be on their way when this returns."""

    @abstractmethod
    def expect(self, size: int) -> None:
        """Make ready to receive `size` bytes from the start of the SRAM. Only after this may the device write the release word."""

    @abstractmethod
    def receive(self, size: int) -> bytes:
        """The bytes announced by expect(): see receive_waits."""

    # --- the bridge itself ---

    @abstractmethod
    def firmware_version(self) -> str:
        """As the firmware tells it."""

    @abstractmethod
    def restart(self) -> None:
        """Restart the bridge's processor; the device leaves the USB and comes back."""


def check_run(start: int, size: int) -> None:
    """Runs are whole dwords; anything else is our own mistake."""
    if start % DWORD or size % DWORD:
        raise ValueError(f"a run of {size} bytes at {start:#x} is not whole dwords")
