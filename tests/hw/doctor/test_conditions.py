"""Every recorded condition gives exactly its own finding, with the words a person needs, and looking changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hw import lock
from hw.doctor.checks import checks_for
from hw.doctor.families import AMD, NV, USB
from hw.doctor.findings import State
from probes.doctor_software import Software, software_checks
from tests.hw.doctor.roots import GPU, PORT, Condition, Root, conditions, examine
from tests.hw.test_sysfs import image

CONDITIONS = conditions()


def tree(root: Path) -> dict[str, bytes]:
    """Every small file and link of a tree."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path).encode()
        elif path.is_file():
            found[str(path)] = path.read_bytes() if path.stat().st_size < 1 << 16 else str(path.stat().st_mtime_ns).encode()
    return found


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_condition_gives_its_finding_and_nothing_else(condition: Condition, tmp_path: Path) -> None:
    root = Root(tmp_path / "root", condition.base)
    root.apply(condition)
    before = tree(tmp_path)
    findings = examine(root, condition, tmp_path)
    assert tree(tmp_path) == before and root.written == []
    wrong = [finding for finding in findings if finding.state is not State.OK]
    assert {finding.check: finding.state.value for finding in wrong} == condition.expect
    text = "\n".join(f"{finding.read}\n{finding.remedy}" for finding in wrong)
    assert [word for word in condition.words if word not in text] == []
    by_check = {finding.check: finding for finding in findings}
    for check, words in condition.shown.items():
        assert (by_check[check].state, words in by_check[check].read) == (State.OK, True), by_check[check]
    assert all(finding.remedy and finding.why for finding in wrong)
    assert not any(finding.remedy for finding in findings if finding.state is State.OK)


def test_conditions_cover_every_check() -> None:
    """A check that no recorded root makes speak up is a check that nobody tried."""
    spoken = {check for condition in CONDITIONS for check in condition.expect}
    names = {check.name for family in (AMD, USB) for check in (*checks_for(family), *software_checks(Software(), family.name))}
    told_elsewhere = {"iommu", "lock", "peer-to-peer"}
    assert names - spoken == told_elsewhere
    assert len(CONDITIONS) >= 20


def test_a_held_lock_names_the_holder(tmp_path: Path) -> None:
    root = Root(tmp_path / "root", "sysfs")
    root.add_process(4242, "tghw run matmul")
    with lock.acquire(GPU, tmp_path) as held:
        status = os.stat(held.path)
        root.put(root.proc / "locks", f"1: FLOCK  ADVISORY  WRITE 4242 {os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino} 0 EOF")
        [finding] = [each for each in examine(root, Condition("lock", {}), tmp_path) if each.state is not State.OK]
    assert (finding.check, finding.state) == ("lock", State.BLOCK)
    assert "process 4242 (tghw run matmul)" in finding.read and "kill 4242" in finding.remedy


def test_redirecting_bridges_matter_with_two_devices(tmp_path: Path) -> None:
    root = Root(tmp_path / "root", "sysfs")
    (root.pci / PORT / "config").write_bytes(image(7))
    assert not [each for each in examine(root, Condition("one", {}), tmp_path) if each.state is not State.OK]
    shown = root.functions[GPU]
    attributes = {name: root.text(shown.directory / name) or "" for name in ("power/control", "numa_node", "local_cpulist")}
    root.add_function("0000:04:00.0", (shown.directory / "config").read_bytes(), shown.bars, parent=f"pci0000:00/{PORT}", **attributes)
    wrong = [each for each in examine(root, Condition("two", {}), tmp_path) if each.state is not State.OK]
    assert {(each.check, each.subject) for each in wrong} == {("peer-to-peer", GPU), ("peer-to-peer", "0000:04:00.0")}
    assert f"pci=disable_acs_redir={PORT}" in wrong[0].remedy


def test_every_kind_that_is_there_is_examined_once(tmp_path: Path) -> None:
    root = Root(tmp_path / "root", "usb")
    findings = examine(root, Condition("all", {}, family=""), tmp_path)
    assert {finding.subject for finding in findings} == {"machine", GPU, "usb:1-7"}
    assert len([finding for finding in findings if finding.check == "kernel-version"]) == 1
    assert all(finding.state is State.OK for finding in findings)


def test_families_are_told_apart_by_vendor_and_class(tmp_path: Path) -> None:
    root = Root(tmp_path / "root", "sysfs")
    root.add_function("0000:05:00.0", image(12))
    wrong = [each for each in examine(root, Condition("nv", {}, family=NV.name), tmp_path) if each.check == "device-present"]
    assert [each.read for each in wrong] == ["0000:05:00.0"]
