"""PCIe requests as the bridge's engine sends them: one dword each, of any kind; and what their completions say.

The engine takes a raw header (format and type, byte enables, address) and one data dword. Sources: PCI Express base specification,
register notes of the open bridge firmware.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridges.asm24.errors import TlpCompleterAbort, TlpConfigRetry, TlpError, TlpReserved, TlpTimeout, TlpUnsupportedRequest

MEMORY_READ = 0x20
MEMORY_WRITE = 0x60
"""with 64-bit addresses, which the bridge also uses below 4 GiB"""
CONFIG_READ_0, CONFIG_READ_1 = 0x04, 0x05
CONFIG_WRITE_0, CONFIG_WRITE_1 = 0x44, 0x45
WITH_DATA = 0x40

SUCCESS, UNSUPPORTED, CONFIG_RETRY, ABORT = 0, 1, 2, 4
"""completion status"""
STATUS_SHIFT = 5

DWORD = 4
ALL_BYTES = 0xF


@dataclass(frozen=True)
class Tlp:
    """One request. `address` is a multiple of 4; `enables` has a bit for each byte of the dword; `value` already lies in its lanes."""

    kind: int
    address: int
    enables: int = ALL_BYTES
    value: int = 0

    @property
    def is_write(self) -> bool:
        return bool(self.kind & WITH_DATA)

    @property
    def is_posted(self) -> bool:
        """Nothing comes back: memory writes and messages."""
        return self.kind & 0xDF == 0x40 or self.kind & 0xB8 == 0x30

    @property
    def is_config(self) -> bool:
        return self.kind & 0xBE == 0x04

    @property
    def shift(self) -> int:
        """Bits by which the first enabled byte is shifted in the dword."""
        return 8 * ((self.enables & -self.enables).bit_length() - 1)

    @property
    def size(self) -> int:
        """Bytes that are enabled."""
        return self.enables.bit_count()

    def describe(self) -> str:
        if self.is_config:
            bus, device, function = self.address >> 24 & 0xFF, self.address >> 19 & 0x1F, self.address >> 16 & 7
            return f"configuration {'write' if self.is_write else 'read'} of {bus:02x}:{device:02x}.{function} at {(self.address & 0xFFF) + self.shift // 8:#x}"
        return f"memory {'write' if self.is_write else 'read'} at {self.address + self.shift // 8:#x}"


def enables_of(address: int, size: int) -> int:
    """Byte enables of an access of 1 to 4 bytes inside one dword. A crossing one is our own mistake: it has to be split before."""
    offset = address & 3
    if size < 1 or offset + size > DWORD:
        raise ValueError(f"an access of {size} bytes at {address:#x} crosses a dword")
    return ((1 << size) - 1) << offset


def memory_read(address: int, size: int = DWORD) -> Tlp:
    """Read of 1 to 4 bytes inside a dword."""
    return Tlp(MEMORY_READ, address & ~3, enables_of(address, size))


def memory_write(address: int, value: int, size: int = DWORD) -> Tlp:
    """Write of 1 to 4 bytes inside a dword."""
    return Tlp(MEMORY_WRITE, address & ~3, enables_of(address, size), value << 8 * (address & 3))


def config_address(bus: int, device: int, function: int, offset: int) -> int:
    """The address field of a configuration request."""
    return bus << 24 | device << 19 | function << 16 | offset & 0xFFC


def config_read(bus: int, device: int, function: int, offset: int, size: int) -> Tlp:
    """Configuration read; of type 0 on the bridge's own bus, of type 1 beyond."""
    kind = CONFIG_READ_1 if bus else CONFIG_READ_0
    return Tlp(kind, config_address(bus, device, function, offset), enables_of(offset, size))


def config_write(bus: int, device: int, function: int, offset: int, value: int, size: int) -> Tlp:
    """Configuration write, as config_read()."""
    kind = CONFIG_WRITE_1 if bus else CONFIG_WRITE_0
    return Tlp(kind, config_address(bus, device, function, offset), enables_of(offset, size), value << 8 * (offset & 3))


@dataclass(frozen=True)
class Completion:
    """What the engine's completion registers hold. data: the dword; status_byte: 0xB22A; with_data: 0xB284."""

    data: int
    status_byte: int
    byte_count_low: int
    with_data: int

    @property
    def status(self) -> int:
        return self.status_byte >> STATUS_SHIFT


def value_of(request: Tlp, completion: Completion) -> int:
    """The bytes that a request asked for, shifted down (0 for a write). Raises TlpError by the completion's status."""
    status = completion.status
    if status != SUCCESS:
        raise failure(request, status)
    if request.is_config and bool(completion.with_data & 1) == request.is_write:
        raise TlpReserved(
            f"{request.describe()}: the completion does not fit the request",
            address=request.address,
            read=f"completion {'with' if completion.with_data & 1 else 'without'} data",
        )
    if request.is_write:
        return 0
    return completion.data >> request.shift & (1 << 8 * request.size) - 1


_BY_STATUS: dict[int, tuple[type[TlpError], str]] = {
    UNSUPPORTED: (TlpUnsupportedRequest, "unsupported request"),
    CONFIG_RETRY: (TlpConfigRetry, "configuration request retry"),
    ABORT: (TlpCompleterAbort, "completer abort"),
}


def failure(request: Tlp, status: int) -> TlpError:
    """The error for a completion status other than success."""
    kind, text = _BY_STATUS.get(status, (TlpReserved, "reserved"))
    return kind(f"{request.describe()} failed: {text}", address=request.address, read=f"completion status {status}")


def no_completion(request: Tlp, tries: int, read: str) -> TlpTimeout:
    """The error for a request that nobody completed."""
    return TlpTimeout(f"{request.describe()} was not completed, tried {tries} times", address=request.address, read=read)
