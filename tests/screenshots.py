"""Pictures of the command's screens for docs/, drawn from simulated or recorded machines: `python -m tests.screenshots FOLDER [NAME...]`."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

WIDTH = 130
"""columns of the pictured terminal"""

SVG_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
"""rich's frame, with a font of the reader's system in place of one from the network"""


def picture(content: RenderableType, title: str, name: str) -> str:
    """The SVG of a screen; the same content always gives the same text."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False)
    console.print(content)
    svg = console.export_svg(title=title, code_format=SVG_FORMAT, unique_id=name)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def doctor() -> tuple[RenderableType, str]:
    """A machine whose GPU shares its IOMMU group with a function that a kernel driver has, and whose slot is narrow."""
    from probes.doctor import report
    from tests.hw.doctor.roots import Root, conditions, examine

    recorded = {each.name: each for each in conditions()}
    shown = recorded["group-not-viable"]
    with tempfile.TemporaryDirectory() as folder:
        root = Root(Path(folder) / "root", shown.base)
        root.apply(shown)
        root.apply(recorded["narrow-link"])
        return report(examine(root, shown, Path(folder))), "tghw doctor amd"


SCREENS: dict[str, Callable[[], tuple[RenderableType, str]]] = {"doctor": doctor}
"""file name -> what is on the screen, and the command that shows it"""


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments[1:] or SCREENS:
        content, title = SCREENS[name]()
        path = folder / f"{name}.svg"
        path.write_text(picture(content, title, name), encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
