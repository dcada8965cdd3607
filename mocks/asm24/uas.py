"""USB Attached SCSI: command units on one pipe, status and data on three more, told apart by stream (SuperSpeed) or by ready units (USB 2)."""

from __future__ import annotations

from collections import deque

from mocks.asm24.scsi import ScsiTarget, Task

COMMAND_PIPE, STATUS_PIPE, IN_PIPE, OUT_PIPE = 0x04, 0x83, 0x81, 0x02
COMMAND_UNIT, SENSE_UNIT, RESPONSE_UNIT, TASK_UNIT, READ_READY, WRITE_READY = 1, 3, 4, 5, 6, 7
COMMAND_SIZE, TASK_SIZE = 32, 16
INVALID_UNIT, OVERLAPPED_TAG, DONE, NOT_SUPPORTED = 0x02, 0x0A, 0x00, 0x04
TAGS = 31
ABORT_TASK, ABORT_SET, CLEAR_SET, UNIT_RESET, NEXUS_RESET = 0x01, 0x02, 0x04, 0x08, 0x10


class Uas:
    """The transport's state. Commands run in the order of their arrival; one that waits for data holds up those behind it."""

    def __init__(self, target: ScsiTarget, streams: bool) -> None:
        self._target = target
        self._streams = streams
        self.reset()

    def reset(self) -> None:
        """SET_INTERFACE, SET_CONFIGURATION or a port reset: every command is forgotten."""
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._running: Task | None = None
        """the command that takes data"""
        self._sending: dict[int, tuple[Task, int]] = {}
        """tag -> (command with data for the host, bytes gone)"""
        self._units: dict[int, deque[tuple[bytes, Task | None]]] = {}
        """stream -> status units to send; USB 2 has stream 0 only"""
        self._in_use: set[int] = set()
        self._ready_in: deque[int] = deque()

    # --- from the host ---

    def take(self, endpoint: int, data: memoryview, packet: int, stream: int) -> int:
        if endpoint == COMMAND_PIPE:
            unit = bytes(data[:packet])
            self._unit(unit)
            return len(unit)
        if endpoint == OUT_PIPE:
            task = self._running
            if task is None or (self._streams and stream != task.tag):
                return 0
            piece = bytes(data[: min(packet, task.wants - task.got)])
            task.accept(piece)
            if task.got >= task.wants:
                self._running = None
                self._finish(task)
                self._run()
            return len(piece)
        return 0

    def _unit(self, unit: bytes) -> None:
        kind = unit[0] if unit else 0
        tag = int.from_bytes(unit[2:4], "big")
        if kind == TASK_UNIT and len(unit) >= TASK_SIZE:
            self._manage(unit, tag)
        elif kind != COMMAND_UNIT or len(unit) < COMMAND_SIZE or not 1 <= tag <= TAGS:
            self._target.chip.note_misuse(f"UAS: {len(unit)} bytes that are no command unit: {unit[:4].hex()}")
            self._respond(tag, INVALID_UNIT)
        elif tag in self._in_use:
            self._target.chip.note_misuse(f"UAS: tag {tag} is in use")
            self._respond(tag, OVERLAPPED_TAG)
        else:
            self._in_use.add(tag)
            self._waiting.append((tag, unit[16:32]))
            self._run()

    def _manage(self, unit: bytes, tag: int) -> None:
        function = unit[4]
        if function == ABORT_TASK:
            self._forget(int.from_bytes(unit[6:8], "big"))
        elif function in (ABORT_SET, CLEAR_SET, UNIT_RESET, NEXUS_RESET):
            self.reset()
        else:
            self._respond(tag, NOT_SUPPORTED)
            return
        self._respond(tag, DONE)

    def _forget(self, tag: int) -> None:
        self._waiting = deque(each for each in self._waiting if each[0] != tag)
        self._sending.pop(tag, None)
        self._units.pop(tag, None)
        self._in_use.discard(tag)
        if self._running is not None and self._running.tag == tag:
            self._running = None
            self._run()

    # --- at work ---

    def _run(self) -> None:
        while self._waiting and self._running is None:
            tag, cdb = self._waiting.popleft()
            task = self._target.start(cdb, tag)
            self._target.chip.busy(self._target.chip.profile["scsi_command_time"])
            if task.wants:
                self._running = task
                self._announce(WRITE_READY, tag)
            elif task.data_in:
                self._sending[tag] = (task, 0)
                self._ready_in.append(tag)
                self._announce(READ_READY, tag)
            else:
                self._finish(task)

    def _announce(self, kind: int, tag: int) -> None:
        """Without streams the device says which command the data pipe is for."""
        if not self._streams:
            self._units.setdefault(0, deque()).append((bytes([kind, 0]) + tag.to_bytes(2, "big"), None))

    def _finish(self, task: Task) -> None:
        task.end_data()
        if task.hangs:
            return
        sense = task.sense_data() if task.sense is not None else b""
        unit = bytes([SENSE_UNIT, 0]) + task.shown_tag.to_bytes(2, "big") + bytes([0, 0, task.status]) + bytes(7) + len(sense).to_bytes(2, "big") + sense
        self._units.setdefault(task.tag if self._streams else 0, deque()).append((unit, task))

    def _respond(self, tag: int, code: int) -> None:
        unit = bytes([RESPONSE_UNIT, 0]) + tag.to_bytes(2, "big") + bytes([0, 0, 0, code])
        self._units.setdefault(tag if self._streams else 0, deque()).append((unit, None))

    # --- to the host ---

    def give(self, endpoint: int, packet: int, stream: int) -> bytes | None:
        if endpoint == STATUS_PIPE:
            return self._next_unit(stream)
        if endpoint != IN_PIPE:
            return None
        tag = stream if self._streams else (self._ready_in[0] if self._ready_in else 0)
        if tag not in self._sending:
            return None
        task, gone = self._sending[tag]
        piece = task.data_in[gone : gone + packet]
        if gone + len(piece) >= len(task.data_in):
            del self._sending[tag]
            self._ready_in.remove(tag)
            self._finish(task)
        else:
            self._sending[tag] = (task, gone + len(piece))
        return piece

    def _next_unit(self, stream: int) -> bytes | None:
        queue = self._units.get(stream)
        if not queue:
            return None
        unit, task = queue.popleft()
        if task is not None:
            self._in_use.discard(task.tag)
            if task.after is not None:
                self._target.chip.scheduler.call_later(1e-3, task.after)
        return unit
