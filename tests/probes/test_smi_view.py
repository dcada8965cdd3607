"""How `tghw smi` looks at different widths, and what its Prometheus endpoint says."""

from __future__ import annotations

import io
import sys
import time
import urllib.request
from typing import Any

import pytest
from rich.console import Console

from drivers.amd.telemetry import Figure, Reading, Throttle
from drivers.amd.usage import Usage
from hw.errors import NotSupported, UsageError
from hw.lock import Holder
from hw.processes import Hold
from probes import smi
from probes.smi import view
from probes.smi.export import Exporter, parse_place, values_of
from probes.smi.model import Row, Sample

GIB = 1 << 30


def reading(**changes: Any) -> Reading:
    figures = {
        "gfx_activity": Figure("gfx_activity", "GFX activity", 75, "%", 100.0),
        "memory_activity": Figure("memory_activity", "MEM activity", 30, "%", 100.0),
        "power": Figure("power", "power", 301, "W", 327),
        "gfx_clock": Figure("gfx_clock", "GFXCLK", 2450, "MHz", 2526),
        "memory_clock": Figure("memory_clock", "MCLK", 1249, "MHz", 1249),
        "fabric_clock": Figure("fabric_clock", "FCLK", 2250, "MHz", None),
        "fan_speed": Figure("fan_speed", "fan", 1800, "RPM"),
        "fan_pwm": Figure("fan_pwm", "fan PWM", 50, "%", 100.0),
        "temperature_edge": Figure("temperature_edge", "EDGE", 68, "C", 100.0),
        "temperature_hotspot": Figure("temperature_hotspot", "HOTSPOT", 88, "C", 110.0),
        "temperature_mem": Figure("temperature_mem", "MEM", 82, "C", 108.0),
        "voltage_gfx": Figure("voltage_gfx", "GFX", 0.9, "V"),
    }
    given: dict[str, Any] = {"throttle": (Throttle("PPT0", 12),), "counter": 7, "memory": Usage(6 * GIB, 3, 0, True), "memory_total": 24 * GIB}
    return Reading(tuple(figures.values()), **(given | changes))


def row(number: int = 0, **changes: Any) -> Row:
    made = Row(number, f"0000:{number + 3:02x}:00.0", "Radeon RX 7900 XTX (Navi31)", "gfx1100", "pci", None, "D0", "")
    made.sample = Sample(boot_state="running", link="16GT/s x16", link_max="16GT/s x16", reading=reading())
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def drawn(rows: list[Row], width: int, height: int | None = None, styled: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=styled, color_system="truecolor" if styled else None, legacy_windows=False)
    console.print(view.screen(rows, console, height=height))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("width", [80, 100, 125, 175, 240])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_nothing_is_wider_than_the_screen_and_nothing_important_is_cut(width: int, count: int) -> None:
    text = drawn([row(number) for number in range(count)], width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for number in range(count):
        assert f"0000:{number + 3:02x}:00.0" in text
    assert text.count("301") == count
    assert text.count("88") >= count


@pytest.mark.parametrize("width", [80, 100, 125])
def test_panel_shows_every_figure_with_unit_and_limit(width: int) -> None:
    text = drawn([row()], width)
    for words in (
        "75 %", "30 %", "301 of 327 W", "50 %, 1800 RPM", "6 GiB of 24 GiB", "68 of 100 C", "88 of 110 C", "82 of 108 C",
        "2450 of 2526 MHz", "1249 of 1249 MHz", "2250 MHz", "0.900 V", "PPT0 12 %", "16GT/s x16 (max 16GT/s x16)", "gfx1100", "power D0",
    ):  # fmt: skip
        assert words in text


def test_panels_that_do_not_fit_the_screens_height_become_lines() -> None:
    rows = [row(number) for number in range(3)]
    assert "╭" in drawn(rows, 120, height=60)
    text = drawn(rows, 120, height=29)
    assert "╭" not in text
    assert len(text.splitlines()) == 4


def test_two_panels_stand_side_by_side_where_there_is_room() -> None:
    rows = [row(0), row(1)]
    assert len(drawn(rows, 240).splitlines()) < len(drawn(rows, 120).splitlines())


def test_temperatures_are_coloured_by_their_height() -> None:
    text = drawn([row()], 120, styled=True)
    red, yellow = "\x1b[31m", "\x1b[33m"
    assert f"{red}88 of 110 C" in text
    assert f"{yellow}82 of 108 C" in text
    assert f"{red}68" not in text and f"{yellow}68" not in text


def test_what_cannot_be_read_is_na_and_never_zero() -> None:
    unread = row(sample=Sample(boot_state="gated", note="asleep: not woken, so nothing can be read"), power_state="D3hot")
    for text in (drawn([unread], 120), drawn([unread] * 8, 240)):
        assert "asleep" in text
        assert "0 W" not in text
    assert "N/A" in drawn([unread] * 8, 240)
    partial = row(sample=Sample(boot_state="running", reading=reading(memory=Usage(5, 1, 0, False), throttle=None)))
    text = drawn([partial], 120)
    assert "N/A of 24 GiB" in text
    assert "N/A until the second sample" in text


def test_problem_and_holders_stand_in_the_panel() -> None:
    problem = {"code": "smu", "what": "does not answer", "read": "0x0", "means": "it crashed", "remedy": "reset it"}
    holds = [Hold(Holder(77, "trainer"), "lock", "/x", 0), Hold(Holder(78, "Xorg"), "node", "/dev/kfd", 0)]
    text = drawn([row(sample=Sample(boot_state="running", problem=problem), holds=holds)], 120)
    for words in ("smu: does not answer", "it crashed", "reset it", "process 77 (trainer), our lock", "process 78 (Xorg), /dev/kfd"):
        assert words in text


@pytest.mark.parametrize(("share", "shown"), [(0.0, "····"), (1.0, "████"), (0.5, "██··"), (2.0, "████"), (-1.0, "····"), (float("nan"), "····"), (1 / 32, "▏···")])
def test_bars_stay_within_their_ends(share: float, shown: str) -> None:
    assert view.bar(share, 4).plain == shown


def test_no_limit_no_bar() -> None:
    assert view.bar(None, 4).plain == ""
    assert Figure("x", "x", 5, "W", None).share is None


def test_samples_survive_the_way_to_another_process() -> None:
    sample = row().sample
    assert Sample.from_dict(sample.to_dict()) == sample
    empty = Sample(problem={"code": "smu", "what": "", "read": "", "means": "", "remedy": ""})
    assert Sample.from_dict(empty.to_dict()) == empty
    unknown = Sample(reading=reading(throttle=None, memory=None))
    assert Sample.from_dict(unknown.to_dict()) == unknown


# --- Prometheus -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "host"), [("9400", "127.0.0.1"), ("127.0.0.1:9400", "127.0.0.1"), ("[::1]:9400", "::1"), (":9400", "127.0.0.1"), ("0.0.0.0:9400", "0.0.0.0")])
def test_address_is_the_loopback_one_unless_another_is_given(text: str, host: str) -> None:
    assert parse_place(text) == (host, 9400)


@pytest.mark.parametrize("text", ["", "host:9400", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:70000", "1.2.3:4"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot serve at"):
        parse_place(text)


def test_values_are_in_base_units() -> None:
    values = {(metric, *sorted(label for name, label in labels.items() if name not in ("gpu", "name", "arch"))): value for metric, labels, value in values_of(row())}
    assert values["up",] == 1
    assert values["power_watts",] == 301
    assert values["power_limit_watts",] == 327
    assert values["clock_hertz", "gfx"] == 2450e6
    assert values["activity_ratio", "memory"] == 0.3
    assert values["temperature_celsius", "hotspot"] == 88
    assert values["voltage_volts", "gfx"] == 0.9
    assert values["throttle_ratio", "ppt0"] == 0.12
    assert values["memory_used_bytes",] == 6 * GIB
    assert values["fan_speed_rpm",] == 1800


def test_card_without_figures_is_down() -> None:
    assert [(metric, value) for metric, _, value in values_of(row(sample=Sample()))] == [("up", 0.0)]


def test_endpoint_serves_the_latest_samples_and_nothing_more() -> None:
    pytest.importorskip("prometheus_client")
    rows = [row(0), row(1, sample=Sample())]
    exporter = Exporter(lambda: rows, "127.0.0.1:0")
    url = exporter.start()
    try:
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        assert 'tghw_gpu_power_watts{gpu="0000:03:00.0"} 301.0' in text
        assert 'tghw_gpu_clock_hertz{clock="gfx",gpu="0000:03:00.0"} 2.45e+09' in text
        assert 'tghw_gpu_up{arch="gfx1100",gpu="0000:04:00.0",name="Radeon RX 7900 XTX (Navi31)"} 0.0' in text
        assert "# TYPE tghw_gpu_temperature_celsius gauge" in text
        rows[0] = row(0, sample=Sample())
        assert "tghw_gpu_power_watts{" not in urllib.request.urlopen(url, timeout=10).read().decode()
    finally:
        exporter.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=2)


def test_command_serves_until_it_is_interrupted(tghw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    seen: list[str] = []
    started: list[str] = []
    original = Exporter.start

    def start(self: Exporter) -> str:
        started.append(original(self))
        return started[0]

    def sleep(seconds: float) -> None:
        seen.append(urllib.request.urlopen(started[0], timeout=10).read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Exporter, "start", start)
    monkeypatch.setattr(time, "sleep", sleep)
    result = tghw("--mock", "navi31", "smi", "amd", "--export", "127.0.0.1:0")
    assert result.status == 0
    assert f"serving {started[0]}" in result.err
    assert 'tghw_gpu_power_watts{gpu="0000:03:00.0"} 19.0' in seen[0]


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(NotSupported) as caught:
        Exporter(list, "9400")
    assert "tghw[metrics]" in caught.value.remedy


def test_taken_port_is_explained() -> None:
    pytest.importorskip("prometheus_client")
    first = Exporter(list, "127.0.0.1:0")
    first.start()
    try:
        with pytest.raises(UsageError, match="cannot serve at"):
            Exporter(list, f"127.0.0.1:{first.port}").start()
    finally:
        first.close()


def test_live_view_redraws_on_a_terminal(tghw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a screen of its own, drawn card by card the first time, then once a look."""
    drawings: list[int] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    original = view.screen

    def screen(rows: list[Row], console: Console, *, height: int | None = None) -> Any:
        drawings.append(sum(each.sample.reading is not None for each in rows))
        return original(rows, console, height=height)

    monkeypatch.setattr(view, "screen", screen)
    left = [2]

    def sleep(seconds: float) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(smi.time, "sleep", sleep)
    assert tghw("--mock", "navi31-8", "smi", "amd").status == 0
    assert drawings == [*range(1, 9), 8, 8]
