"""USB mass storage, bulk-only transport: command block wrapper, data, status wrapper."""

from __future__ import annotations

from mocks.asm24.device import Stall
from mocks.asm24.scsi import ScsiTarget, Task

OUT, IN = 0x02, 0x81
CBW, CBW_SIGNATURE, CSW_SIGNATURE = 31, b"USBC", b"USBS"
FLAG_IN = 0x80
PHASE_ERROR = 2
COMMAND, DATA_OUT, DATA_IN, STATUS, BROKEN = "command", "data out", "data in", "status", "broken"


class BulkOnly:
    """The transport's state. It survives its host: a new one finds it where the old one stopped."""

    def __init__(self, target: ScsiTarget) -> None:
        self._target = target
        self.reset()

    def reset(self) -> None:
        """Reset recovery, SET_INTERFACE, SET_CONFIGURATION or a port reset: ready for a command."""
        self.state = COMMAND
        self._task = Task()
        self._expected = 0
        self._moved = 0
        self._tag = b"\0" * 4
        self._phase_error = False

    def take(self, data: memoryview, packet: int) -> int:
        """Data on the OUT endpoint: bytes accepted."""
        if self.state == BROKEN:
            raise Stall
        if self.state == COMMAND:
            first = bytes(data[:packet])
            self._command(first)
            return len(first)
        if self.state == DATA_OUT:
            piece = bytes(data[: min(packet, self._expected - self._moved)])
            useful = piece[: max(0, self._task.wants - self._task.got)]
            if useful:
                self._task.accept(useful)
            self._moved += len(piece)
            if self._moved >= self._expected or len(piece) < packet:
                self._end_data()
            return len(piece)
        return 0

    def _command(self, raw: bytes) -> None:
        if len(raw) != CBW or raw[:4] != CBW_SIGNATURE or raw[13] & 0xF or not 1 <= raw[14] & 0x1F <= 16:
            self._target.chip.note_misuse(f"bulk-only transport: {len(raw)} bytes that are no command")
            self.state = BROKEN
            raise Stall
        self._tag = raw[4:8]
        self._expected = int.from_bytes(raw[8:12], "little")
        self._moved = 0
        self._phase_error = False
        task = self._task = self._target.start(raw[15 : 15 + (raw[14] & 0x1F)].ljust(16, b"\0"), int.from_bytes(self._tag, "little"))
        to_host = bool(raw[12] & FLAG_IN)
        sends, wants = len(task.data_in), task.wants
        if sends > self._expected or wants > self._expected or (sends and not to_host) or (wants and to_host):
            self._phase_error = True
        if not self._expected:
            self._end_data()
        else:
            self.state = DATA_IN if to_host else DATA_OUT

    def _end_data(self) -> None:
        self._task.end_data()
        self.state = STATUS

    def give(self, packet: int) -> bytes | None:
        """What the IN endpoint has."""
        if self.state == BROKEN:
            raise Stall
        if self.state == DATA_IN:
            data = self._task.data_in[: self._expected] if not self._phase_error else b""
            piece = data[self._moved : self._moved + packet]
            if not piece and self._moved < self._expected:
                self._end_data()
                raise Stall
            self._moved += len(piece)
            if self._moved >= self._expected or len(piece) < packet:
                self._end_data()
            return piece
        if self.state == STATUS and not self._task.hangs:
            self.state = COMMAND
            task = self._task
            if task.after is not None:
                self._target.chip.scheduler.call_later(1e-3, task.after)
            useful = len(task.data_in) if task.data_in else task.got
            residue = self._expected - min(self._expected, useful)
            tag = self._tag if task.shown_tag == task.tag else task.shown_tag.to_bytes(4, "little")
            status = PHASE_ERROR if self._phase_error else int(task.sense is not None)
            return CSW_SIGNATURE + tag + residue.to_bytes(4, "little") + bytes([status])
        return None
