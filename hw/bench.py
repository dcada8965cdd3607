"""How long one register access takes on this host, layer by layer, over plain memory (no device is touched)."""

from __future__ import annotations

import timeit
from collections.abc import Callable

from hw.mmio import LocalMmio
from hw.regs import RegisterBlock, RegisterSpace, RegisterTable

ROUNDS = 7
ACCESSES = 40_000
"""per round; the best round counts, as the others were disturbed by something"""

TABLE = "CP_ME_CNTL 0 3 me_halt:1c pfp_halt:1a ce_halt:18 cache:0-3\n"
OFFSET = 0x4C
"""of CP_ME_CNTL with base 0x10, bytes"""


def mmio_bench() -> dict[str, float]:
    """Nanoseconds per access: a bare memoryview, a mapped window, a named register, with its fields, and read-modify-write of two fields.

    `ratio` is a named read against a bare memoryview.
    """
    window = LocalMmio.anonymous(1 << 16)
    block = RegisterBlock(RegisterTable("GC", TABLE), [0x10], RegisterSpace(window))
    bare = window.memory.cast("I")
    index = OFFSET >> 2
    statements: dict[str, str] = {
        "memoryview_read": "bare[index]",
        "window_read32": "window.read32(offset)",
        "window_write32": "window.write32(offset, 1)",
        "register_read": "block.CP_ME_CNTL.read()",
        "register_write": "block.CP_ME_CNTL.write(1)",
        "register_read_fields": "block.CP_ME_CNTL.fields()",
        "register_update": "block.CP_ME_CNTL.update(me_halt=1, cache=2)",
    }
    names = {"bare": bare, "window": window, "block": block, "index": index, "offset": OFFSET}
    loop = _best(lambda count, number: timeit.repeat("pass", number=number, repeat=count))
    result = {name: _measure(statement, names, loop) for name, statement in statements.items()}
    result["ratio"] = round(result["register_read"] / result["memoryview_read"], 1)
    return result


def _measure(statement: str, names: dict[str, object], loop: float) -> float:
    """Nanoseconds of one execution without the loop around it."""
    return round(max(0.1, _best(lambda count, number: timeit.repeat(statement, globals=names, number=number, repeat=count)) - loop), 1)


def _best(run: Callable[[int, int], list[float]]) -> float:
    return min(run(ROUNDS, ACCESSES)) / ACCESSES * 1e9
