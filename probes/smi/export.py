"""`tghw smi --export`: the latest samples as a Prometheus endpoint. Needs the package prometheus_client (`pip install tghw[metrics]`).

The endpoint only ever shows what the loop of `tghw smi` has read: a scrape never touches a device.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hw.errors import NotSupported, PermissionMissing, UsageError
from probes.smi.model import Row

LOOPBACK = "127.0.0.1"
SPLIT = {"temperature": "sensor", "voltage": "rail", "throttle": "reason"}
"""kinds of figures that become one metric with this label"""

METRICS = {
    "gfx_activity": ("activity_ratio", {"unit": "gfx"}, 0.01),
    "memory_activity": ("activity_ratio", {"unit": "memory"}, 0.01),
    "power": ("power_watts", {}, 1.0),
    "gfx_clock": ("clock_hertz", {"clock": "gfx"}, 1e6),
    "memory_clock": ("clock_hertz", {"clock": "memory"}, 1e6),
    "fabric_clock": ("clock_hertz", {"clock": "fabric"}, 1e6),
    "fan_speed": ("fan_speed_rpm", {}, 1.0),
    "fan_pwm": ("fan_pwm_ratio", {}, 0.01),
}
"""figure -> (metric, labels, factor to base units)"""

HELP = {
    "up": "1 when the figures of the GPU could be read",
    "activity_ratio": "share of time in which a unit worked",
    "power_watts": "power of the socket",
    "power_limit_watts": "limit of the power",
    "clock_hertz": "frequency of a clock",
    "fan_speed_rpm": "speed of the fan",
    "fan_pwm_ratio": "drive of the fan",
    "temperature_celsius": "temperature of a sensor",
    "voltage_volts": "voltage of a rail",
    "throttle_ratio": "share of time in which a reason held the GPU back",
    "memory_used_bytes": "video memory mapped for programs",
    "memory_total_bytes": "video memory of the card",
    "sample_timestamp_seconds": "when the figures were read, since 1970",
}
PREFIX = "tghw_gpu_"

Value = tuple[str, dict[str, str], float]
"""metric, labels, value"""


def parse_place(text: str) -> tuple[str, int]:
    """(address, port) of "PORT", "ADDRESS:PORT" or "[V6]:PORT"; without an address the loopback one. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or LOOPBACK
    try:
        number = int(port)
        ipaddress.ip_address(host)
    except ValueError as error:
        raise UsageError(f"cannot serve at {text!r}", read=str(error), remedy=f"give PORT or ADDRESS:PORT, for example {LOOPBACK}:9400") from error
    if not 0 <= number <= 65535:
        raise UsageError(f"cannot serve at {text!r}", read=f"port {number}", remedy="ports are 1..65535, 0 picks a free one")
    return host, number


def values_of(row: Row) -> Iterator[Value]:
    """The figures of one GPU in base units."""
    sample, reading = row.sample, row.sample.reading
    gpu = {"gpu": row.address}
    yield "up", gpu | {"name": row.name, "arch": row.arch}, 1.0 if reading is not None else 0.0
    if reading is None:
        return
    yield "sample_timestamp_seconds", gpu, sample.taken
    for figure in reading.figures:
        kind = figure.key.partition("_")[0]
        if figure.key in METRICS:
            metric, labels, factor = METRICS[figure.key]
            yield metric, gpu | labels, figure.value * factor
            if figure.key == "power" and figure.limit is not None:
                yield "power_limit_watts", gpu, figure.limit
        elif kind in SPLIT:
            yield ("temperature_celsius" if kind == "temperature" else "voltage_volts"), gpu | {SPLIT[kind]: figure.key.removeprefix(f"{kind}_")}, figure.value
    for each in reading.throttle or ():
        yield "throttle_ratio", gpu | {"reason": each.name.lower()}, each.percent * 0.01
    if reading.memory is not None and reading.memory.complete:
        yield "memory_used_bytes", gpu, float(reading.memory.mapped)
    yield "memory_total_bytes", gpu, float(reading.memory_total)


class Exporter:
    """The endpoint; serves from start() to close()."""

    def __init__(self, rows: Callable[[], Sequence[Row]], place: str) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise NotSupported("serving metrics", means="the package prometheus_client is not installed", remedy="pip install 'tghw[metrics]'") from error
        self._client: Any = prometheus_client
        self._rows = rows
        self.host, self.port = parse_place(place)
        self._server: Any = None

    def start(self) -> str:
        """Begin to serve; returns the URL. Raises PermissionMissing, UsageError when the port cannot be had."""
        registry = self._client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = self._client.start_http_server(self.port, addr=self.host, registry=registry)
        except PermissionError as error:
            raise PermissionMissing(f"serving at {self.host}:{self.port}", read=str(error), means="ports below 1024 belong to root", remedy="use a higher port") from error
        except (OSError, socket.gaierror) as error:
            raise UsageError(f"cannot serve at {self.host}:{self.port}", read=str(error), remedy="another program uses the port, or the address is not this machine's") from error
        self.port = self._server.server_port
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.port}/metrics"

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for at each scrape."""
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, Any] = {}
        for row in self._rows():
            for metric, labels, value in values_of(row):
                family = families.get(metric)
                if family is None:
                    family = families[metric] = GaugeMetricFamily(PREFIX + metric, HELP[metric], labels=list(labels))
                family.add_metric([labels[name] for name in labels], value)
        yield from families.values()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None
