"""How long one register access takes on this host, layer by layer, over plain memory (no device is touched); and one allocation."""

from __future__ import annotations

import random
import time
import timeit
from collections.abc import Callable
from functools import partial

from hw.alloc import Tlsf
from hw.mmio import LocalMmio
from hw.regs import RegisterBlock, RegisterSpace, RegisterTable

ROUNDS = 7
ACCESSES = 40_000
"""per round; the best round counts, as the others were disturbed by something"""

TABLE = "CP_ME_CNTL 0 3 me_halt:1c pfp_halt:1a ce_halt:18 cache:0-3\n"
OFFSET = 0x4C
"""of CP_ME_CNTL with base 0x10, bytes"""

ALLOCATIONS = 20_000
LIVE = 300
"""ranges handed out at any time"""


def mmio_bench() -> dict[str, float]:
    """CPU nanoseconds per access: a bare memoryview, a mapped window, a named register, with its fields, read-modify-write of two fields.

    `ratio` is a named read against a bare memoryview.
    """
    window = LocalMmio.anonymous(1 << 16)
    block = RegisterBlock(RegisterTable("GC", TABLE), [0x10], RegisterSpace(window))
    bare = window.memory.cast("I")
    index = OFFSET >> 2
    statements: dict[str, str] = {
        "memoryview_read_ns": "bare[index]",
        "window_read32_ns": "window.read32(offset)",
        "window_write32_ns": "window.write32(offset, 1)",
        "register_read_ns": "block.CP_ME_CNTL.read()",
        "register_write_ns": "block.CP_ME_CNTL.write(1)",
        "register_read_fields_ns": "block.CP_ME_CNTL.fields()",
        "register_update_ns": "block.CP_ME_CNTL.update(me_halt=1, cache=2)",
    }
    names = {"bare": bare, "window": window, "block": block, "index": index, "offset": OFFSET}
    loop = _best(partial(timeit.repeat, "pass", timer=time.process_time))
    result = {name: _measure(statement, names, loop) for name, statement in statements.items()}
    result["ratio"] = round(result["register_read_ns"] / result["memoryview_read_ns"], 1)
    return result


def alloc_bench() -> dict[str, float]:
    """Operations a second of the TLSF allocator, alloc and free each counted, with a few hundred ranges of 1 B to 16 MiB handed out."""
    choose = random.Random(1)
    sizes = [1 << choose.randrange(25) for _ in range(ALLOCATIONS)]
    victims = [choose.randrange(LIVE) for _ in range(ALLOCATIONS)]

    def run() -> float:
        allocator = Tlsf(1 << 36)
        live = [allocator.alloc(1 << 12) for _ in range(LIVE)]
        start = time.process_time()
        for size, victim in zip(sizes, victims, strict=True):
            allocator.free(live[victim])
            live[victim] = allocator.alloc(size)
        return time.process_time() - start

    return {"tlsf_operations_per_s": round(2 * ALLOCATIONS / min(run() for _ in range(ROUNDS)))}


def _measure(statement: str, names: dict[str, object], loop: float) -> float:
    """Nanoseconds of one execution without the loop around it."""
    return round(max(0.1, _best(partial(timeit.repeat, statement, timer=time.process_time, globals=names)) - loop), 1)


def _best(repeat: Callable[..., list[float]]) -> float:
    return min(repeat(number=ACCESSES, repeat=ROUNDS)) / ACCESSES * 1e9
