"""Pictures of the command's screens for docs/, drawn from simulated or recorded machines: `python -m tests.screenshots FOLDER [NAME...]`."""

from __future__ import annotations

import io
import re
import struct
import sys
import tempfile
import time
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


WORK_SECONDS = 2.0
"""of the simulated card's time that it works before its picture is taken"""
LOOPS = 30_000_000
"""it works a little longer than that"""
BUSY = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @busy(ptr addrspace(1) %place, i32 %count) #0 {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  store volatile i32 %i, ptr addrspace(1) %place
  %next = add i32 %i, 1
  %done = icmp eq i32 %next, %count
  br i1 %done, label %end, label %loop
end:
  ret void
}
attributes #0 = { "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" "amdgpu-no-implicitarg-ptr" "amdgpu-no-hostcall-ptr" "uniform-work-group-size"="true" }
"""
"""a kernel that takes its time"""


def smi() -> tuple[RenderableType, str]:
    """A simulated card beside a program that computes on it."""
    from bridges.open import Selection, find, firmware_of
    from drivers.amd.device import AmdDevice
    from drivers.amd.gpu import AmdGpu
    from drivers.amd.telemetry import Telemetry
    from probes.smi import view
    from probes.smi.model import Row
    from probes.smi.readers import look

    with tempfile.TemporaryDirectory() as state:
        selection = Selection(mock="navi31", state=Path(state))
        found = next(each for each in find(selection) if each.is_amd_gpu)
        device = AmdDevice(found.opener(), firmware_of(selection))
        device.boot()
        gpu = AmdGpu(device)
        try:
            place = gpu.alloc(6 << 30)
            program = gpu.load(_compile(BUSY))
            gpu.launch(program.kernels["busy"], (1, 1, 1), (64, 1, 1), struct.pack("<QI", place.va, LOOPS))
            device.clock.sleep(WORK_SECONDS)
            sample, _ = look(device.pci, Telemetry(device), within=1.0)
            gpu.synchronize()
        finally:
            gpu.close()
    row = Row.of(0, found)
    row.sample = sample
    row.sample.taken = PICTURED
    return view.panel_of(row, view.WIDEST), "tghw smi amd"


PICTURED = time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, 0))
"""noon on the picture's clock, so that the same screen always gives the same picture"""


def _compile(text: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu="gfx1100", opt=2)
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def smi_eight() -> tuple[RenderableType, str]:
    """Eight simulated cards, the power controller of one of which hangs."""
    from bridges.open import find
    from probes import context
    from probes.smi import Monitor, view

    with tempfile.TemporaryDirectory() as state:
        context.set_current(context.Common(mock="navi31-8", fault="smu-hang@0f:00.0", state=state))
        gpus = [each for each in find(context.current().selection()) if each.is_amd_gpu]
        with Monitor(gpus) as monitor:
            monitor.look()
            return view.table_of(monitor.rows, WIDTH), "tghw --mock navi31-8 --fault smu-hang@0f:00.0 smi amd"


SCREENS: dict[str, Callable[[], tuple[RenderableType, str]]] = {"doctor": doctor, "smi": smi, "smi-eight": smi_eight}
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
