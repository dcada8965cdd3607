"""The process that looks at one card for `tghw smi`: `python -m probes.smi.worker ADDRESS ROOT`.

It says that it is ready ({"number": 0}); then one question a line on stdin ({"number": n, "within": s}), one answer a line on stdout
({"number": n, "sample": ...}). It ends when stdin does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from drivers.amd.telemetry import Telemetry
from hw.errors import MemoryDisabled, PowerStateError, TghwError
from hw.host import HostFiles
from hw.pci.functions import AWAKE
from hw.pci.observe import ObservedPciDevice
from probes.smi.model import Sample
from probes.smi.readers import ASLEEP, NOT_ENABLED, look


class Watcher:
    """Opens the card when it can be looked at, and lets it go when something is wrong or it goes to sleep."""

    def __init__(self, address: str, host: HostFiles) -> None:
        self.address = address
        self.host = host
        self._device: ObservedPciDevice | None = None
        self._telemetry: Telemetry | None = None

    def sample(self, within: float) -> Sample:
        if (self.host.text(self.host.pci / self.address / "power_state") or "") not in AWAKE:
            self._let_go()
            return Sample(boot_state="gated", note=ASLEEP)
        try:
            if self._device is None:
                self._device = ObservedPciDevice(self.address, host=self.host)
        except PowerStateError:
            return Sample(boot_state="gated", note=ASLEEP)
        except MemoryDisabled:
            return Sample(boot_state="gated", note=NOT_ENABLED)
        except TghwError as problem:
            return Sample.failed(problem)
        sample, self._telemetry = look(self._device, self._telemetry, within)
        if self._telemetry is None:
            self._let_go()
        return sample

    def _let_go(self) -> None:
        if self._device is not None:
            self._device.close()
        self._device = self._telemetry = None


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(address: str, root: str) -> None:
    watcher = Watcher(address, HostFiles(root))
    _say({"number": 0})
    for line in sys.stdin:
        question = json.loads(line)
        _say({"number": question["number"], "sample": watcher.sample(question["within"]).to_dict()})


if __name__ == "__main__":
    main(*sys.argv[1:])
