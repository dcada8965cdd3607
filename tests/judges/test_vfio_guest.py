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
DEVICES = ["-device", "intel-iommu,intremap=off", "-device", "edu,dma_mask=0xffffffff"]
LIMIT = 120
"""seconds for one guest; it takes 12 to 20 on two idle cores"""


def boot(folder: Path, mode: str, kernel_options: str) -> dict[str, Any]:
    """Run edu_guest.py in a guest; what it printed."""
    script = folder / "edu.sh"
    program = ROOT / "tests" / "judges" / "lab" / "edu_guest.py"
    environment = f"export PYTHONPATH={shlex.quote(str(ROOT))} PYTHONDONTWRITEBYTECODE=1 TGHW_LOCK_DIR=/run HOME=/root"
    script.write_text(f"{environment}\n{shlex.quote(sys.executable)} {shlex.quote(str(program))} {mode}\n")
    try:
        result = guest.run(script, folder=folder, devices=DEVICES, kernel_options=kernel_options, limit=LIMIT)
    except guest.LabMissing as missing:
        pytest.skip(f"no QEMU guest here: {missing}")
    answer = re.search(r"^RESULT (.*)$", result.output, re.MULTILINE)
    assert result.status == 0 and answer, result.output[-4000:]
    return json.loads(answer[1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened where the IOMMU translates."""
    return boot(tmp_path_factory.mktemp("guest"), "translated", "intel_iommu=on")


@pytest.fixture(scope="module")
def physical(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened where device addresses are physical ones."""
    return boot(tmp_path_factory.mktemp("guest"), "identity", "intel_iommu=on iommu=pt")


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


def test_the_kernels_state_decides_the_transport(found: dict[str, Any], physical: dict[str, Any]) -> None:
    assert (found["chosen"], physical["chosen"]) == ("vfio", "sysfs")


def test_physical_addresses_are_the_right_ones(physical: dict[str, Any]) -> None:
    assert physical["copied"]
    assert len(set(physical["pages"])) == 4 and all(page % 4096 == 0 and page >= 4096 for page in physical["pages"])
    assert physical["kernel_log"] == []
    assert (physical["interrupts"], physical["enabled_after"]) == (False, "0")
    assert physical["reset"].startswith("not-supported")


def test_every_way_that_fails_is_told_in_one_error(physical: dict[str, Any]) -> None:
    assert physical["movable"].startswith("no-transport") and "sysfs: memory-movable; vfio: vfio-unavailable" in physical["movable"]


def test_doctor_reads_this_kernel_right(found: dict[str, Any], physical: dict[str, Any]) -> None:
    before, during, after = found["doctor"], found["doctor_while_open"], found["doctor_after"]
    assert before["iommu"].startswith("ok: on, group") and "translates (DMA" in before["iommu"]
    assert before["vfio-module"].startswith("block: not loaded: vfio_pci, vfio_iommu_type1")
    assert before["kernel-log"] == "ok: no faults reported"
    assert during["driver-bound"] == "ok: kernel driver: vfio-pci"
    assert "edu_guest.py" in during["lock"] and during["lock"].startswith("block: held by process")
    assert "edu_guest.py" in during["vfio-busy"] and during["vfio-busy"].startswith("block: group")
    assert (after["vfio-module"], after["vfio-group"].split(":")[0]) == ("ok: vfio_pci is loaded", "ok")
    assert after["kernel-log"].startswith("warn: a device touched memory that was not mapped for it: DMAR")
    assert "in identity mode" in physical["doctor"]["iommu"]
    assert physical["doctor"]["compaction"] == "block: compact_unevictable_allowed is 1"
    assert (physical["doctor_after"]["compaction"], physical["doctor_after"]["pagemap"]) == ("ok: locked pages stay where they are", "ok: frame numbers are shown")
    assert physical["doctor_after"]["permission"].startswith("ok") and "vfio-module" not in physical["doctor_after"]
