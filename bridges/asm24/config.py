"""Configuration space of a function behind the bridge, by configuration requests."""

from __future__ import annotations

from collections.abc import Callable

from bridges.asm24.errors import TlpConfigRetry
from bridges.asm24.protocol import BridgeProtocol
from bridges.asm24.tlp import Tlp, config_read, config_write
from hw.pci.device import ConfigSpace, check_access

RETRY_WITHIN = 1.0
"""seconds that a device may answer "retry" after a reset"""
FIRST_PAUSE = 1e-3


class BridgeConfig(ConfigSpace):
    """4096 bytes of one function. `before`: sends what waits, so that requests keep their order."""

    size = 4096

    def __init__(self, protocol: BridgeProtocol, bus: int, device: int = 0, function: int = 0, before: Callable[[], None] = lambda: None) -> None:
        self._protocol = protocol
        self._place = (bus, device, function)
        self._before = before

    def read(self, offset: int, size: int) -> int:
        check_access(offset, size)
        return self._request(config_read(*self._place, offset, size))

    def write(self, offset: int, value: int, size: int) -> None:
        check_access(offset, size)
        self._request(config_write(*self._place, offset, value & (1 << 8 * size) - 1, size))

    def _request(self, tlp: Tlp) -> int:
        """Send; a device that asks for patience gets it."""
        self._before()
        pause, waited = FIRST_PAUSE, 0.0
        while True:
            try:
                return self._protocol.request(tlp)
            except TlpConfigRetry:
                if waited >= RETRY_WITHIN:
                    raise
            self._protocol.clock.sleep(pause)
            waited += pause
            pause *= 2
