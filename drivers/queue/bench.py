"""What the host pays for launches, replays and signals. All times are CPU time of this process in microseconds.

"host" figures leave out bus and device: the ring is held, so that no doorbell rings (a simulated device would run on this CPU).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ROUNDS = 100
"""launches a measurement; they must fit into the ring"""
REPEATS = 3
"""measurements; the best one counts, the others were disturbed"""
GRAPH_LAUNCHES = 10
CHEAP_ROUNDS = 20_000

Figures = dict[str, float]


def launch_bench(gpu: Any) -> Figures:
    """Figures of an idle GPU (drivers.amd.gpu.AmdGpu). Leaves it idle."""
    obj = gpu.empty_object()
    (kernel,) = gpu.load(obj).kernels.values()
    arguments = bytes(kernel.kernarg_size)
    shape = (1, 1, 1), (32, 1, 1)

    def launch() -> Any:
        return gpu.launch(kernel, *shape, arguments)

    def launch_and_wait() -> None:
        gpu.wait(launch())

    launch_and_wait()
    graph = gpu.record([(kernel, *shape, arguments)] * GRAPH_LAUNCHES)
    places: dict[tuple[int, int], int] = {(number, 0): 0 for number in range(GRAPH_LAUNCHES)}
    ring = gpu.rings.compute
    before = ring.put
    launch_and_wait()
    words = ring.put - before
    signal = gpu.timeline.signal
    figures = {
        "launch_host_us": _held(gpu, launch),
        "launch_with_bus_us": _best(launch, ROUNDS // 10, gpu.synchronize),
        "launch_and_wait_us": _best(launch_and_wait, ROUNDS // 10),
        "launch_ring_dwords": float(words),
        "replay_10_bound_host_us": _held(gpu, graph.replay),
        "replay_10_same_patches_host_us": _held(gpu, lambda: graph.replay(places)),
        "replay_10_copied_host_us": GRAPH_LAUNCHES * _held(gpu, launch),
        "signal_read_us": _best(lambda: signal.value, CHEAP_ROUNDS),
        "wait_reached_us": _best(lambda: signal.wait(0), CHEAP_ROUNDS),
        "idle_synchronize_us": _best(gpu.synchronize, CHEAP_ROUNDS),
        "record_launch_us": _best(lambda: gpu.record_again(kernel), ROUNDS),
        "elf_parse_us": _best(lambda: gpu.parse(obj), ROUNDS),
    }
    graph.release()
    return {name: round(value, 3) for name, value in figures.items()}


def _held(gpu: Any, action: Callable[[], object]) -> float:
    """Microseconds of `action` on a held ring; afterwards the device catches up."""
    best = float("inf")
    for _ in range(REPEATS):
        action()
        gpu.synchronize()
        with gpu.rings.compute.hold():
            best = min(best, _once(action, ROUNDS))
        gpu.synchronize()
    return best


def _best(action: Callable[[], object], rounds: int, between: Callable[[], object] | None = None) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        best = min(best, _once(action, rounds))
        if between is not None:
            between()
    return best


def _once(action: Callable[[], object], rounds: int) -> float:
    start = time.process_time()
    for _ in range(rounds):
        action()
    return (time.process_time() - start) / rounds * 1e6
