"""The layers: nothing imports upward, mocks share facts but no logic with what they stand for, only the command line prints."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "hw": {"hw"},
    "firmware": {"firmware", "hw"},
    "drivers": {"drivers", "firmware", "hw"},
    "bridges": {"bridges", "hw"},
    "compute": {"compute", "drivers", "bridges", "firmware", "hw"},
    "probes": {"probes", "compute", "drivers", "bridges", "firmware", "hw", "mocks"},
    "mocks": {"mocks", "drivers", "firmware", "hw"},
}
"""package -> packages below it; what mocks may take from drivers and firmware is narrower, see FACTS"""

THE_DOOR = "bridges.open"
"""opens every kind of device, simulated ones too, so it alone looks at all of them"""
THE_DOOR_MAY_IMPORT = {"bridges", "drivers", "firmware", "hw", "mocks"}

FACTS = (
    "drivers.amd.chips",
    "drivers.amd.isa",
    "drivers.amd.layouts",
    "drivers.amd.packets",
    "drivers.amd.regs",
    "firmware.amd_layouts",
    "firmware.ifwi_layout",
    "firmware.mailbox_layout",
)
"""tables and layouts of hardware, with no behaviour: driver and mock may both use them"""

MAY_PRINT = ("probes", "compute.tiny_test")

SCREEN_PACKAGES = {"rich", "typer"}


def sources() -> list[tuple[str, Path]]:
    """(module name, file) of every source file of the packages."""
    found = []
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


SOURCES = sources()


def inside(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def imports(module: str, path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also those inside functions and for type checking; "from x import y" gives x.y as well when y is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                base = module.split(".")[: None if path.name == "__init__.py" and node.level == 1 else -node.level + (path.name == "__init__.py")]
                source = ".".join([*base, source] if source else base)
            for alias in node.names:
                deeper = f"{source}.{alias.name}"
                is_module = (ROOT / deeper.replace(".", "/")).with_suffix(".py").exists() or (ROOT / deeper.replace(".", "/")).is_dir()
                yield node.lineno, deeper if is_module else source


def violations(module: str, path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module.split(".")[0]
    allowed = THE_DOOR_MAY_IMPORT if module == THE_DOOR else MAY_IMPORT[package]
    wrong = []
    for line, target in imports(module, path, tree):
        top = target.split(".")[0]
        where = f"{path.relative_to(ROOT)}:{line} imports {target}"
        if top == "tests" or (top in MAY_IMPORT and top not in allowed):
            wrong.append(f"{where}: not below {package}")
        elif package == "mocks" and top in ("drivers", "firmware") and not inside(target, FACTS):
            wrong.append(f"{where}: a mock shares facts with its driver, not logic")
        elif inside(module, FACTS) and top in MAY_IMPORT and top != "hw" and not inside(target, FACTS):
            wrong.append(f"{where}: {module} holds facts only")
        elif top in SCREEN_PACKAGES and package != "probes":
            wrong.append(f"{where}: only the command line shows things")
    if not inside(module, MAY_PRINT):
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} prints"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
    return wrong


def test_imports_follow_the_layers_and_only_commands_print() -> None:
    assert len(SOURCES) > 20
    wrong = [each for module, path in SOURCES for each in violations(module, path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("hw/x.py", "import drivers.amd", "not below hw"),
        ("hw/x.py", "from mocks import machine", "not below hw"),
        ("drivers/x.py", "def f():\n    from compute.tensor import Tensor", "not below drivers"),
        ("bridges/x.py", "import mocks.machine", "not below bridges"),
        ("firmware/x.py", "from drivers.amd import psp", "not below firmware"),
        ("compute/x.py", "import mocks", "not below compute"),
        ("mocks/x.py", "from drivers.amd import pm4", "shares facts"),
        ("mocks/x.py", "from firmware.store import FirmwareStore", "shares facts"),
        ("drivers/amd/layouts/x.py", "from drivers.amd.psp import Psp", "holds facts only"),
        ("drivers/amd/layouts/x.py", "from ..psp import Psp", "holds facts only"),
        ("probes/x.py", "import tests.hw", "not below probes"),
        ("compute/x.py", "print(1)", "prints"),
        ("hw/x.py", "import rich", "only the command line"),
        ("mocks/x.py", "from drivers.amd import regs\nfrom drivers.amd.packets import pm4\nimport hw.mmio", ""),
        ("probes/x.py", "import mocks.machine, rich\nprint(1)", ""),
        ("compute/tiny_test.py", "import drivers\nprint(1)", ""),
    ],
)
def test_the_check_itself_finds_what_it_should(place: str, text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for name in ("drivers/amd/psp.py", "drivers/amd/pm4.py", "drivers/amd/regs/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    found = violations(place.removesuffix(".py").replace("/", "."), path)
    assert [expected in each for each in found] == ([True] if expected else [])


def test_importing_the_base_layer_loads_nothing_heavy() -> None:
    """cffi, numpy and the like are loaded when they are first needed, so that commands which do not need them start fast."""
    modules = [module for module, _ in SOURCES if module.split(".")[0] == "hw"]
    script = f"import sys, {', '.join(modules)}\nprint(sorted(set(sys.modules) & {{'cffi', 'numpy', 'llvmlite', 'usb', 'rich', 'typer', 'elftools', 'tempfile'}}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
