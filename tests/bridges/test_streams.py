"""Bulk streams through libusb's own calls: against a stand-in for the library, and the parts that need no device against the real one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import usb.core

from bridges.asm24.streams import COMPLETED, STALLED, TIMED_OUT, TYPE_BULK, TYPE_BULK_STREAM, LibusbStreams, _Transfer, streams_of

HANDLE = SimpleNamespace(handle=0x1234)


class Library:
    """As much of libusb as streams need. `answer(endpoint, stream, data)` gives (status, bytes that come back or None)."""

    def __init__(self, answer: Callable[[int, int, bytes], tuple[int, bytes]]) -> None:
        self.answer = answer
        self.pending: list[Any] = []
        self.streams: dict[int, int] = {}
        self.freed = 0
        self.cancelled = 0
        self.seen: list[tuple[int, int, int, int]] = []
        self.functions = SimpleNamespace()
        for name in ("alloc_streams", "alloc_transfer", "free_transfer", "submit_transfer", "cancel_transfer", "transfer_set_stream_id", "handle_events_timeout_completed"):
            method = getattr(self, name)
            setattr(self.functions, f"libusb_{name}", lambda *arguments, method=method: method(*arguments))

    def alloc_streams(self, handle: int, count: int, endpoints: bytes, number: int) -> int:
        assert (handle, number) == (HANDLE.handle, len(endpoints))
        return count

    def alloc_transfer(self, packets: int) -> Any:
        return ctypes.pointer(_Transfer())

    def free_transfer(self, transfer: Any) -> None:
        self.freed += 1

    def transfer_set_stream_id(self, transfer: Any, stream: int) -> None:
        self.streams[ctypes.addressof(transfer.contents)] = stream

    def submit_transfer(self, transfer: Any) -> int:
        self.pending.append(transfer)
        return 0

    def cancel_transfer(self, transfer: Any) -> int:
        self.cancelled += 1
        return 0

    def handle_events_timeout_completed(self, context: Any, step: Any, done: Any) -> int:
        transfer = self.pending.pop(0)
        fields = transfer.contents
        stream = self.streams.get(ctypes.addressof(fields), 0)
        self.seen.append((fields.endpoint, stream, fields.type, fields.timeout))
        sent = b"" if fields.endpoint & 0x80 else ctypes.string_at(fields.buffer, fields.length)
        fields.status, data = self.answer(fields.endpoint, stream, sent)
        fields.actual_length = len(data) if fields.endpoint & 0x80 else fields.length
        if data:
            ctypes.memmove(fields.buffer, data, len(data))
        fields.callback(transfer)
        return 0


def test_transfers_go_out_on_their_streams_and_come_back_in_order() -> None:
    library = Library(lambda endpoint, stream, sent: (COMPLETED, bytes([stream]) * 3 if endpoint & 0x80 else b""))
    streams = LibusbStreams(library.functions, None)
    assert streams.alloc_streams(HANDLE, 31, (0x02, 0x81, 0x83)) == 31
    results = streams.run_streams(HANDLE, [(0x04, 0, b"command"), (0x83, 1, 64), (0x81, 1, 3), (0x02, 2, b"data")], 500)
    assert results == [7, b"\x01\x01\x01", b"\x01\x01\x01", 4]
    assert library.seen == [(0x04, 0, TYPE_BULK, 500), (0x83, 1, TYPE_BULK_STREAM, 500), (0x81, 1, TYPE_BULK_STREAM, 500), (0x02, 2, TYPE_BULK_STREAM, 500)]
    assert library.freed == 4 and library.cancelled == 0


@pytest.mark.parametrize(("status", "code"), [(STALLED, -9), (TIMED_OUT, -7)])
def test_failure_cancels_the_others_and_becomes_pyusb_s_error(status: int, code: int) -> None:
    library = Library(lambda endpoint, stream, sent: (status if endpoint == 0x83 else COMPLETED, b""))
    with pytest.raises(usb.core.USBError) as caught:
        LibusbStreams(library.functions, None).run_streams(HANDLE, [(0x83, 1, 64), (0x04, 0, b"x"), (0x04, 0, b"y")], 500)
    assert caught.value.backend_error_code == code
    assert library.cancelled >= 2 and library.freed == 3 and not library.pending


def test_refused_submission_waits_for_what_is_running() -> None:
    library = Library(lambda endpoint, stream, sent: (COMPLETED, b""))
    plain = library.functions.libusb_submit_transfer
    library.functions.libusb_submit_transfer = lambda transfer: -4 if library.pending else plain(transfer)
    with pytest.raises(usb.core.USBError):
        LibusbStreams(library.functions, None).run_streams(HANDLE, [(0x04, 0, b"x"), (0x04, 0, b"y")], 500)
    assert not library.pending and library.freed == 2


def test_libusb_of_this_system_has_what_is_called_and_the_layout_that_is_assumed() -> None:
    import libusb_package
    import usb.backend.libusb1

    backend = usb.backend.libusb1.get_backend(find_library=libusb_package.find_library)
    if backend is None:
        pytest.skip("no libusb can be loaded here")
    streams = streams_of(backend)
    assert isinstance(streams, LibusbStreams)
    library = backend.lib
    transfer = library.libusb_alloc_transfer(0)
    library.libusb_transfer_set_stream_id(transfer, 17)
    library.libusb_transfer_get_stream_id.argtypes = [ctypes.POINTER(_Transfer)]
    assert library.libusb_transfer_get_stream_id(transfer) == 17
    fields = transfer.contents
    assert (fields.flags, fields.endpoint, fields.length, fields.num_iso_packets) == (0, 0, 0, 0)
    library.libusb_free_transfer(transfer)
    assert ctypes.sizeof(_Transfer) == 64 or ctypes.sizeof(ctypes.c_void_p) != 8


def test_backend_without_streams_has_none() -> None:
    assert streams_of(SimpleNamespace()) is None
    assert streams_of(SimpleNamespace(lib=SimpleNamespace())) is None
