"""How `tghw smi` shows GPUs: a panel each, or a line each where there are many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from drivers.amd.telemetry import Figure, Reading
from probes import render
from probes.smi.model import Row

HOT, WARM = 87, 80
"""degrees C from which a temperature is red, yellow"""
BAR = 16
SMALL_BAR = 6
FULL, PARTS = "█", " ▏▎▍▌▋▊▉"
TWO_ABREAST = 180
"""columns from which two panels fit beside each other"""
WIDEST = 120
"""columns of a panel that has room"""
TWO_GROUPS, THREE_GROUPS = 84, 117
"""columns of a panel from which two, three groups of figures fit beside each other"""
PANELS = 4
"""more GPUs than this are shown a line each"""
STATE_STYLES = {"running": "green", "cold": "dim", "gated": "yellow", "dead-bus": "bold red", "bars-unassigned": "bold red"}


def screen(rows: Sequence[Row], console: Console, *, height: int | None = None) -> RenderableType:
    """All GPUs. height: lines there are; None where paging is no matter."""
    abreast = 2 if console.width >= TWO_ABREAST and len(rows) > 1 else 1
    if len(rows) <= PANELS * abreast:
        panels = panels_of(rows, abreast, min(console.width // abreast - abreast + 1, WIDEST))
        if height is None or len(console.render_lines(panels)) <= height:
            return panels
    return table_of(rows, console.width)


def panels_of(rows: Sequence[Row], abreast: int, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for _ in range(abreast):
        grid.add_column(width=width)
    for first in range(0, len(rows), abreast):
        cells = [panel_of(row, width) for row in rows[first : first + abreast]]
        grid.add_row(*cells, *[""] * (abreast - len(cells)))
    return grid


def panel_of(row: Row, width: int) -> Panel:
    """One GPU with everything that is known of it."""
    parts: list[RenderableType] = [_facts(row)]
    reading = row.sample.reading
    if reading is not None:
        parts += [Text(), _figures(reading, width), _throttle(reading)]
    for hold in row.holds:
        parts.append(_labelled("held by", f"{hold.holder}, {'our lock' if hold.kind == 'lock' else hold.path}"))
    parts += _remarks(row)
    title = Text.assemble((f" {row.address} ", "bold"), f"{row.name} ")
    return Panel(Group(*parts), title=title, title_align="left", border_style="red" if row.sample.problem else "cyan", subtitle=_clock(row.sample.taken), subtitle_align="right")


def _facts(row: Row) -> Text:
    link = f"{row.sample.link} (max {row.sample.link_max})" if row.sample.link else "N/A"
    parts: list[str | Text | tuple[str, str]] = [_state(row), f"  {row.arch or 'unknown arch'}  power {row.power_state or 'N/A'}  link {link}"]
    if row.driver:
        parts.append((f"  kernel driver {row.driver}", "yellow"))
    if row.sample.virtual:
        parts.append(("  virtual function", "yellow"))
    return Text.assemble(*parts)


def _remarks(row: Row) -> list[RenderableType]:
    remarks: list[RenderableType] = []
    problem = row.sample.problem
    if problem is not None:
        remarks.append(Text(f"{problem['code']}: {problem['what']}", style="bold red"))
        remarks += [_labelled(label, problem[key]) for label, key in (("read", "read"), ("means", "means"), ("do", "remedy")) if problem[key]]
    if row.sample.note:
        remarks.append(Text(row.sample.note, style="dim"))
    return remarks


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label:<9}", "dim"), text)


def _figures(reading: Reading, width: int) -> RenderableType:
    """The three groups of figures beside each other as far as there is room."""
    groups = [_loads(reading), _temperatures(reading), _clocks(reading)]
    if width < TWO_GROUPS:
        return Group(*groups)
    grid = Table.grid(padding=(0, 3))
    if width >= THREE_GROUPS:
        grid.add_row(*groups)
    else:
        grid.add_row(groups[0], Group(*groups[1:]))
    return grid


def _loads(reading: Reading) -> RenderableType:
    """Activity, memory, power, fan: bars."""
    grid = Table.grid(padding=(0, 1))
    for key, label in (("gfx_activity", "GFX"), ("memory_activity", "MEM"), ("power", "power"), ("fan_pwm", "fan")):
        figure = reading.get(key)
        if figure is None:
            grid.add_row(label, "", Text("N/A", style="dim"))
            continue
        grid.add_row(label, bar(figure.share), _value(figure, reading))
    memory = reading.memory
    if memory is None or not memory.complete:
        grid.add_row("memory", "", Text(f"N/A of {render.size(reading.memory_total)}", style="dim"))
    else:
        used = f"{render.size(memory.mapped)} of {render.size(reading.memory_total)}"
        grid.add_row("memory", bar(memory.mapped / reading.memory_total if reading.memory_total else None), used)
    return grid


def _value(figure: Figure, reading: Reading) -> str:
    if figure.key == "fan_pwm":
        speed = reading.get("fan_speed")
        return f"{figure.value:g} %" + (f", {speed.value:g} RPM" if speed is not None else "")
    limit = f" of {figure.limit:g}" if figure.limit is not None and figure.unit != "%" else ""
    return f"{figure.value:g}{limit} {figure.unit}"


def _temperatures(reading: Reading) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for figure in reading.group("temperature"):
        style = _heat_style(figure.value)
        limit = f" of {figure.limit:g}" if figure.limit else ""
        grid.add_row(figure.label, bar(figure.share, SMALL_BAR, style or "green"), Text(f"{figure.value:g}{limit} C", style=style))
    return grid


def _clocks(reading: Reading) -> RenderableType:
    """Clocks and voltages."""
    grid = Table.grid(padding=(0, 1))
    for key in ("gfx_clock", "memory_clock", "fabric_clock"):
        figure = reading.get(key)
        if figure is not None:
            grid.add_row(figure.label, bar(figure.share, SMALL_BAR), _value(figure, reading))
    for figure in reading.group("voltage"):
        grid.add_row(f"V {figure.label}", "", f"{figure.value:.3f} V")
    return grid


def _throttle(reading: Reading) -> Text:
    if reading.throttle is None:
        return Text.assemble(("throttle ", "dim"), ("N/A until the second sample", "dim"))
    if not reading.throttle:
        return Text.assemble(("throttle ", "dim"), ("none", "green"))
    return Text.assemble(("throttle ", "dim"), (", ".join(f"{each.name} {each.percent} %" for each in reading.throttle), "bold red"))


COLUMNS: tuple[tuple[str, int, Callable[[Row], RenderableType]], ...] = (
    ("#", 150, lambda row: str(row.index)),
    ("address", 0, lambda row: row.address),
    ("name", 170, lambda row: row.name),
    ("state", 0, lambda row: _state(row)),
    ("GFX %", 0, lambda row: _barred(row, "gfx_activity")),
    ("MEM %", 110, lambda row: _barred(row, "memory_activity")),
    ("power W", 0, lambda row: _barred(row, "power")),
    ("hottest C", 0, lambda row: _hottest(row)),
    ("GFX MHz", 120, lambda row: _number(row, "gfx_clock")),
    ("MEM MHz", 135, lambda row: _number(row, "memory_clock")),
    ("memory GiB", 100, lambda row: _memory(row)),
    ("held by", 190, lambda row: ", ".join(dict.fromkeys(str(hold.holder) for hold in row.holds)) or "-"),
)
"""title, columns of the screen from which it is shown, cell"""


def table_of(rows: Sequence[Row], width: int) -> RenderableType:
    """A line a GPU, and one below for what is wrong with it."""
    grid = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown = [each for each in COLUMNS if width >= each[1]]
    for title, _, _ in shown:
        grid.add_column(title, no_wrap=title != "held by")
    parts: list[RenderableType] = [grid]
    for row in rows:
        grid.add_row(*[cell(row) for _, _, cell in shown])
        if row.sample.problem:
            problem = row.sample.problem
            parts.append(Text.assemble((f"{row.address} {problem['code']}: {problem['what']}", "red"), f" ({problem['read']})" if problem["read"] else ""))
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.sample.note:
            notes.setdefault(row.sample.note, []).append(row.address)
    parts += [Text(note if len(named) == len(rows) else f"{', '.join(named)}: {note}", style="dim") for note, named in notes.items()]
    return Group(*parts)


def _state(row: Row) -> Text:
    state = row.sample.boot_state or "unknown"
    return Text(state, style="bold red" if row.sample.problem else STATE_STYLES.get(state, ""))


def _missing() -> Text:
    return Text("N/A", style="dim")


def _barred(row: Row, key: str) -> RenderableType:
    figure = row.sample.reading.get(key) if row.sample.reading else None
    if figure is None:
        return _missing()
    limit = f"/{figure.limit:g}" if figure.limit and figure.unit != "%" else ""
    return Text.assemble(bar(figure.share, SMALL_BAR), f" {figure.value:g}{limit}")


def _number(row: Row, key: str) -> RenderableType:
    figure = row.sample.reading.get(key) if row.sample.reading else None
    return _missing() if figure is None else f"{figure.value:g}"


def _hottest(row: Row) -> RenderableType:
    figures = row.sample.reading.group("temperature") if row.sample.reading else ()
    if not figures:
        return _missing()
    hottest = max(figures, key=lambda figure: figure.value)
    return Text(f"{hottest.value:g} {hottest.label}", style=_heat_style(hottest.value))


def _heat_style(degrees: float) -> str:
    return "red" if degrees >= HOT else "yellow" if degrees >= WARM else ""


def _memory(row: Row) -> RenderableType:
    reading = row.sample.reading
    if reading is None:
        return _missing()
    used = f"{reading.memory.mapped / (1 << 30):.1f}" if reading.memory and reading.memory.complete else "N/A"
    return f"{used}/{reading.memory_total / (1 << 30):.1f}"


def bar(share: float | None, width: int = BAR, style: str = "") -> Text:
    """A bar of eighths of a column; nothing where there is no limit to compare with. Not a number counts as 0."""
    if share is None:
        return Text()
    share = 0.0 if share != share else min(max(share, 0.0), 1.0)
    eighths = round(share * width * 8)
    filled = FULL * (eighths // 8) + (PARTS[eighths % 8] if eighths % 8 else "")
    colour = style or ("red" if share >= 0.95 else "yellow" if share >= 0.8 else "green")
    return Text.assemble((filled, colour), ("·" * (width - len(filled)), "dim"))


def _clock(taken: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(taken))
