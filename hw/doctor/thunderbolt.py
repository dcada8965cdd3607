"""Thunderbolt and USB4: devices behind such a port exist for PCI only once they are authorized."""

from __future__ import annotations

from collections.abc import Iterator

from hw.doctor.findings import Answer, Check, Scene, State, ok

NO_PCI = ("nopcie", "dponly", "usbonly")
"""security levels under which no PCIe is tunnelled"""


def _state(scene: Scene) -> State:
    """What hides a device that is not there blocks; where all are there it is a remark."""
    return State.WARN if scene.devices else State.BLOCK


def authorized(scene: Scene) -> Iterator[tuple[str, Answer]]:
    for path in sorted((scene.host.sys / "bus" / "thunderbolt" / "devices").glob("*/authorized")):
        router = path.parent
        if router.name.endswith("-0"):
            continue  # the machine's own router
        name = " ".join(part for part in (scene.host.text(router / each) for each in ("vendor_name", "device_name")) if part)
        if scene.host.text(path) != "0":
            yield router.name, ok(f"{name}: authorized")
            continue
        unique = scene.host.text(router / "unique_id") or "UUID"
        remedy = f"if you trust it: boltctl enroll {unique}; or as root: echo 1 > /sys/bus/thunderbolt/devices/{router.name}/authorized"
        yield router.name, Answer(_state(scene), f"{name}: not authorized", remedy)


def security(scene: Scene) -> Iterator[tuple[str, Answer]]:
    for path in sorted((scene.host.sys / "bus" / "thunderbolt" / "devices").glob("domain*/security")):
        level = scene.host.text(path) or ""
        if level in NO_PCI:
            yield path.parent.name, Answer(_state(scene), f"security level {level}", "set Thunderbolt security to 'user' (or lower) in the firmware setup")
        else:
            yield path.parent.name, ok(f"security level {level}")


CHECKS = (
    Check("thunderbolt-security", "Thunderbolt security", "at these levels the firmware tunnels no PCIe", on_named=security),
    Check("thunderbolt-authorized", "Thunderbolt devices", "until it is authorized a device behind Thunderbolt is not on the PCI bus", on_named=authorized),
)
