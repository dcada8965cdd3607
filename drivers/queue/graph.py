"""A fixed list of commands, bound in device memory and replayed with changed arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivers.queue.memory import Slice
from drivers.queue.timeline import Point
from hw.errors import UsageError

POINTER_BYTES = 8


class GraphArgumentError(UsageError):
    """A replay that patches a place which the graph does not have. Nothing was changed."""

    code = "graph-argument"
    default_means = "patches are keyed by (number of the launch in the graph, byte offset in its arguments), 8 bytes each"
    default_remedy = "use the launch numbers and offsets of the recorded list"


class ArgumentBlock:
    """Where the arguments of one launch lie in the graph's argument memory."""

    __slots__ = ("offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size


class GraphArguments:
    """The arguments of a graph in device memory. Between replays only those that changed are stored.

    wait: waits for a point of the timeline. Changing arguments waits for the previous run, which may still read them.
    """

    def __init__(self, memory: Slice, blocks: list[ArgumentBlock], wait: Callable[[Point], None]) -> None:
        self._write = memory.view.write64
        self._blocks = blocks
        self._offsets: dict[tuple[int, int], int] = {}
        self._values: dict[tuple[int, int], int] = {}
        self._wait = wait
        self.last_run: Point | None = None

    def patch(self, values: Mapping[tuple[int, int], int]) -> None:
        """Store the arguments that differ from the previous run. Raises GraphArgumentError before anything is changed."""
        known = self._values
        changed = [key for key, value in values.items() if known.get(key) != value]
        if not changed:
            return
        for key in changed:
            if key not in self._offsets:
                self._offsets[key] = self._locate(key)
            if not 0 <= values[key] < 1 << 64:
                raise GraphArgumentError(f"argument {values[key]:#x} for launch {key[0]} does not fit 64 bits")
        if self.last_run is not None:
            self._wait(self.last_run)
        for key in changed:
            self._write(self._offsets[key], values[key])
            known[key] = values[key]

    def _locate(self, key: tuple[int, int]) -> int:
        launch, offset = key
        if not 0 <= launch < len(self._blocks):
            raise GraphArgumentError(f"launch {launch} of a graph of {len(self._blocks)} launches")
        block = self._blocks[launch]
        if offset < 0 or offset % POINTER_BYTES or offset + POINTER_BYTES > block.size:
            raise GraphArgumentError(f"8 bytes at offset {offset} of the {block.size} argument bytes of launch {launch}")
        return block.offset + offset
