"""A real kernel as judge of the sysfs and VFIO transports: a QEMU guest with an emulated IOMMU and QEMU's `edu` device."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.judges.lab import guest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT = 120
"""seconds; it takes 15 to 20 on two idle cores"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("guest")
    script = folder / "edu.sh"
    program = ROOT / "tests" / "judges" / "lab" / "edu_guest.py"
    environment = f"export PYTHONPATH={shlex.quote(str(ROOT))} PYTHONDONTWRITEBYTECODE=1 TGHW_LOCK_DIR=/run HOME=/root"
    script.write_text(f"{environment}\n{shlex.quote(sys.executable)} {shlex.quote(str(program))}\n")
    try:
        result = guest.run(script, folder=folder, devices=["-device", "intel-iommu,intremap=off", "-device", "edu"], kernel_options="intel_iommu=on", limit=LIMIT)
    except guest.LabMissing as missing:
        pytest.skip(f"no QEMU guest here: {missing}")
    answer = re.search(r"^RESULT (.*)$", result.output, re.MULTILINE)
    assert result.status == 0 and answer, result.output[-4000:]
    return json.loads(answer[1])  # type: ignore[no-any-return]


def test_registers_and_refusals_through_sysfs(found: dict[str, Any]) -> None:
    seen = dict(found["sysfs"])
    assert "iommu-active" in seen.pop("dma")
    assert seen == {"id": "1234:11e8", "bar": 1 << 20, "identification": 0x010000ED, "liveness": 0xEDCBA987, "factorial": 120, "config_size": 256}


def test_what_is_missing_for_vfio_is_named(found: dict[str, Any]) -> None:
    assert found["before_modules"].startswith("vfio-unavailable") and "modprobe vfio-pci" in found["before_modules"]
    assert found["forgeable_interrupts"].startswith("iommu-refused") and "allow_unsafe_interrupts=1" in found["forgeable_interrupts"]


def test_memory_of_the_process_is_reached_through_the_iommu(found: dict[str, Any]) -> None:
    vfio = found["vfio"]
    assert (vfio["mode"], vfio["driver"], vfio["liveness"]) == ("type 1", "vfio-pci", 0xF0F0F0F0)
    assert vfio["addresses"] == [[0x100000], [0x101000, 0x102000]]
    assert vfio["copied"] and vfio["after_fault"]
    assert any("Write" in line for line in found["kernel_log"]), "the copy to memory that was given back must have been stopped"


def test_interrupts_by_message_and_by_line(found: dict[str, Any]) -> None:
    vfio = found["vfio"]
    assert (vfio["irq_kind"], vfio["quiet"], vfio["interrupt"], vfio["interrupt_status"]) == (1, False, True, 0x100)
    assert vfio["line"] == [True, True, False]


def test_one_process_at_a_time_and_everything_is_given_back(found: dict[str, Any]) -> None:
    vfio = found["vfio"]
    assert vfio["second_open"].startswith("device-busy") and "edu_guest.py" in vfio["second_open"]
    assert (vfio["driver_after"], vfio["override_after"]) == ("", "(null)")
