"""Figures of whole processes for `tghw bench process`: importing, the first result, memory, the small kernel suite. Each runs in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from hw import target
from hw.errors import DeviceError

SUITE_DEVICES = ("MOCKPCI+AMD", "CPU", "NULL::gfx1100")
IMPORTS = {"layers": "hw, drivers, compute", "driver": "drivers.amd.gpu", "command": "probes.main"}
REPEATS = 3
"""imports measured; the best counts"""

IMPORT = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"

FIRST_RESULT = """
import json, os, resource, time
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = time.process_time()
from compute import Tensor, runtime
runtime.device(os.environ["DEV"])
opened, memory = time.process_time(), peak()
assert (Tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]
first = time.process_time()
assert (Tensor([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]
print(json.dumps({
    "open_with_imports_cpu_s": opened - before, "open_peak_mib": memory,
    "first_result_cpu_s": first - opened, "first_result_peak_mib": peak(), "second_result_cpu_s": time.process_time() - first,
}))
"""

SUITE = """
import sys, time
from compute.tiny_test import main
status = main()
print(time.process_time(), file=sys.stderr)
sys.exit(status)
"""


def process_bench() -> dict[str, Any]:
    """CPU seconds of processes and their peak memory, on the simulated GPU and on this machine's CPU."""
    return {
        "import_cpu_s": {name: min(float(_run(IMPORT.format(modules)).stdout) for _ in range(REPEATS)) for name, modules in IMPORTS.items()},
        "first_result": json.loads(_run(FIRST_RESULT, SUITE_DEVICES[0]).stdout),
        "tiny_test_cpu_s": {device: float(_run(SUITE, device).stderr.split()[-1]) for device in SUITE_DEVICES},
    }


def _run(program: str, device: str = "") -> subprocess.CompletedProcess[str]:
    """A program in a new interpreter, with DEV set. Raises DeviceError when it fails."""
    environment = {name: value for name, value in os.environ.items() if name != target.VARIABLE} | ({target.VARIABLE: device} if device else {})
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise DeviceError(f"a measured process on {device or 'no device'} failed", read=(done.stderr or done.stdout).strip()[-400:])
    return done
