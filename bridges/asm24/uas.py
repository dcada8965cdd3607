"""USB attached SCSI with bulk streams: up to 31 commands of the stock firmware in flight at once, each with its own stream.

pyusb has no call for streams; see streams.py. Where host or bridge cannot, the bulk-only transport is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bridges.asm24.errors import CswError
from bridges.asm24.scsi import Command, CommandPipe
from bridges.asm24.streams import Result, Streams, Transfer, streams_of
from bridges.asm24.usb import BULK_IN, BULK_OUT, COMMAND_OUT, STATUS_IN, TIMEOUT_MS, UsbLink

ALTERNATE = 1
TAGS = 31
STREAM_ENDPOINTS = (BULK_OUT, BULK_IN, STATUS_IN)
COMMAND_UNIT = struct.Struct(">BBH12x16s")
COMMAND_ID = 0x01
SENSE_ID = 0x03
STATUS_LIMIT = 64
SENSE_STATUS = 6
"""place of the SCSI status in a sense unit"""


class Uas(CommandPipe):
    """See the module."""

    name = "UAS"
    alternate = ALTERNATE

    def __init__(self, link: UsbLink, streams: Streams) -> None:
        super().__init__(link)
        self._streams = streams

    def start(self) -> None:
        super().start()
        for endpoint in (BULK_OUT, BULK_IN, STATUS_IN, COMMAND_OUT):
            self.link.clear_halt(endpoint)
        self.link.alloc_streams(self._streams, TAGS, STREAM_ENDPOINTS)

    def run(self, commands: Sequence[Command], *, timeout_ms: int = TIMEOUT_MS) -> list[bytes]:
        results: list[bytes] = []
        for start in range(0, len(commands), TAGS):
            results += self._run(commands[start : start + TAGS], timeout_ms)
        return results

    def _run(self, commands: Sequence[Command], timeout_ms: int) -> list[bytes]:
        """One batch: every command with its tag; then each status, and what the commands read."""
        transfers: list[Transfer] = []
        status_places, data_places = [], []
        for tag, command in enumerate(commands, 1):
            transfers.append((COMMAND_OUT, 0, COMMAND_UNIT.pack(COMMAND_ID, 0, tag, command.block)))
            status_places.append(len(transfers))
            transfers.append((STATUS_IN, tag, STATUS_LIMIT))
            data_places.append(len(transfers))
            if command.read:
                transfers.append((BULK_IN, tag, command.read))
            elif command.data:
                transfers.append((BULK_OUT, tag, command.data))
        results = self.link.run_streams(self._streams, transfers, timeout_ms)
        for tag, (command, place) in enumerate(zip(commands, status_places, strict=True), 1):
            self._check(command, tag, results[place])
        return [self._data(command, results[place]) if command.read else b"" for command, place in zip(commands, data_places, strict=True)]

    def _check(self, command: Command, tag: int, status: Result) -> None:
        what = f"SCSI command {command.block[0]:#04x} of {self.link.address}"
        if not isinstance(status, bytes) or len(status) <= SENSE_STATUS:
            raise CswError(what, read=f"status unit {status!r}")
        if status[0] != SENSE_ID or int.from_bytes(status[2:4], "big") != tag:
            raise CswError(what, read=f"status unit {status[:16].hex()}, tag {tag} expected")
        if status[SENSE_STATUS]:
            raise CswError(what, read=f"SCSI status {status[SENSE_STATUS]:#04x}")

    def _data(self, command: Command, data: Result) -> bytes:
        if not isinstance(data, bytes) or len(data) != command.read:
            raise CswError(f"SCSI command {command.block[0]:#04x} of {self.link.address}", read=f"{len(data) if isinstance(data, bytes) else 0} of {command.read} bytes")
        return data


def uas_of(link: UsbLink) -> Uas | None:
    """UAS, where the bridge has that setting, the connection is SuperSpeed and the host can do streams."""
    if link.is_usb2 or not link.has_setting(ALTERNATE):
        return None
    streams = streams_of(link.backend)
    return Uas(link, streams) if streams is not None else None
