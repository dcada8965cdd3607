"""Bulk streams through libusb, which pyusb does not offer: several transfers in flight, each on its own stream.

Structures and constants as in libusb.h of libusb 1.0.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from typing import Any, Protocol

import usb.core

Transfer = tuple[int, int, bytes | int]
"""endpoint, stream (0: none), bytes to send or number of bytes to get"""
Result = bytes | int
"""bytes that came, or number of bytes sent"""

TYPE_BULK, TYPE_BULK_STREAM = 2, 4
COMPLETED, FAILED, TIMED_OUT, CANCELLED, STALLED, NO_DEVICE, OVERFLOWED = range(7)
"""status of a transfer"""
_STATUS_ERRORS = {
    FAILED: (-1, errno.EIO),
    TIMED_OUT: (-7, errno.ETIMEDOUT),
    CANCELLED: (-10, errno.EINTR),
    STALLED: (-9, errno.EPIPE),
    NO_DEVICE: (-4, errno.ENODEV),
    OVERFLOWED: (-8, errno.EOVERFLOW),
}
"""libusb's error code and the system's for each"""
DIRECTION_IN = 0x80


class Streams(Protocol):
    """What a backend offers beside pyusb's interface. Errors are pyusb's."""

    def alloc_streams(self, handle: Any, count: int, endpoints: Sequence[int]) -> int:
        """Have streams 1..count on each endpoint; how many there are."""

    def run_streams(self, handle: Any, transfers: Sequence[Transfer], timeout_ms: int) -> list[Result]:
        """Submit all, wait for all. When one fails the others are cancelled."""


def streams_of(backend: Any) -> Streams | None:
    """The streams of a backend, None when it has none."""
    if hasattr(backend, "run_streams"):
        return backend  # type: ignore[no-any-return]
    library = getattr(backend, "lib", None)
    if library is not None and hasattr(library, "libusb_alloc_streams") and hasattr(library, "libusb_transfer_set_stream_id"):
        return LibusbStreams(library, getattr(backend, "ctx", None))
    return None


class _Timeval(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("microseconds", ctypes.c_long))


class _Transfer(ctypes.Structure):
    pass


_Callback = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Transfer))
_Transfer._fields_ = (
    ("handle", ctypes.c_void_p),
    ("flags", ctypes.c_uint8),
    ("endpoint", ctypes.c_uint8),
    ("type", ctypes.c_uint8),
    ("timeout", ctypes.c_uint),
    ("status", ctypes.c_int),
    ("length", ctypes.c_int),
    ("actual_length", ctypes.c_int),
    ("callback", _Callback),
    ("user_data", ctypes.c_void_p),
    ("buffer", ctypes.c_void_p),
    ("num_iso_packets", ctypes.c_int),
)


class LibusbStreams:
    """Streams of a loaded libusb."""

    def __init__(self, library: Any, context: Any) -> None:
        self._lib = library
        self._context = context
        library.libusb_alloc_transfer.restype = ctypes.POINTER(_Transfer)
        library.libusb_alloc_transfer.argtypes = [ctypes.c_int]
        library.libusb_free_transfer.argtypes = [ctypes.POINTER(_Transfer)]
        library.libusb_submit_transfer.argtypes = [ctypes.POINTER(_Transfer)]
        library.libusb_cancel_transfer.argtypes = [ctypes.POINTER(_Transfer)]
        library.libusb_transfer_set_stream_id.argtypes = [ctypes.POINTER(_Transfer), ctypes.c_uint32]
        library.libusb_transfer_set_stream_id.restype = None
        library.libusb_handle_events_timeout_completed.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Timeval), ctypes.c_void_p]
        library.libusb_alloc_streams.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int]

    def alloc_streams(self, handle: Any, count: int, endpoints: Sequence[int]) -> int:
        """See Streams."""
        got: int = self._lib.libusb_alloc_streams(handle.handle, count, bytes(endpoints), len(endpoints))
        if got < 0:
            raise usb.core.USBError("bulk streams", got)
        return got

    def run_streams(self, handle: Any, transfers: Sequence[Transfer], timeout_ms: int) -> list[Result]:
        """See Streams."""
        running: list[Any] = []
        buffers = [_buffer(payload) for _, _, payload in transfers]
        pending = [0]

        def ended(transfer: Any) -> None:
            pending[0] -= 1

        callback = _Callback(ended)
        try:
            for (endpoint, stream, payload), buffer in zip(transfers, buffers, strict=True):
                running.append(self._prepared(handle, endpoint, stream, len(payload) if isinstance(payload, bytes) else payload, buffer, callback, timeout_ms))
                code = self._lib.libusb_submit_transfer(running[-1])
                if code:
                    raise usb.core.USBError(f"submitting to endpoint {endpoint:#04x}", code)
                pending[0] += 1
            self._wait(running, pending)
            return [self._result(transfer.contents, buffer) for transfer, buffer in zip(running, buffers, strict=True)]
        finally:
            if pending[0]:
                for transfer in running:
                    self._lib.libusb_cancel_transfer(transfer)
                self._wait([], pending)
            for transfer in running:
                self._lib.libusb_free_transfer(transfer)

    def _prepared(self, handle: Any, endpoint: int, stream: int, length: int, buffer: Any, callback: Any, timeout_ms: int) -> Any:
        transfer = self._lib.libusb_alloc_transfer(0)
        fields = transfer.contents
        fields.handle = handle.handle
        fields.endpoint = endpoint
        fields.type = TYPE_BULK_STREAM if stream else TYPE_BULK
        fields.timeout = timeout_ms
        fields.length = length
        fields.callback = callback
        fields.buffer = ctypes.addressof(buffer)
        if stream:
            self._lib.libusb_transfer_set_stream_id(transfer, stream)
        return transfer

    def _wait(self, running: Sequence[Any], pending: list[int]) -> None:
        """Handle events until nothing is pending; the first failure cancels the rest."""
        step = _Timeval(0, 100_000)
        cancelled = False
        while pending[0]:
            self._lib.libusb_handle_events_timeout_completed(self._context, ctypes.byref(step), None)
            if not cancelled and any(each.contents.status not in (COMPLETED, CANCELLED) for each in running):
                cancelled = True
                for each in running:
                    self._lib.libusb_cancel_transfer(each)

    def _result(self, transfer: Any, buffer: Any) -> Result:
        if transfer.status != COMPLETED:
            code, number = _STATUS_ERRORS.get(transfer.status, (-99, errno.EIO))
            raise usb.core.USBError(f"endpoint {transfer.endpoint:#04x}: transfer status {transfer.status}", code, number)
        if transfer.endpoint & DIRECTION_IN:
            return bytes(buffer.raw[: transfer.actual_length])
        return int(transfer.actual_length)


def _buffer(payload: bytes | int) -> Any:
    """Memory for a transfer, with what is to be sent."""
    if isinstance(payload, bytes):
        return ctypes.create_string_buffer(payload, max(len(payload), 1))
    return ctypes.create_string_buffer(max(payload, 1))
