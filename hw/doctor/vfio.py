"""Conditions of the VFIO route, asked only for devices that need it."""

from __future__ import annotations

from hw.doctor.findings import Answer, Check, Route, Scene, block, ok, warn
from hw.pci import groups
from hw.pci.binding import holders_of
from hw.pci.functions import PciFunction


def module(scene: Scene, device: PciFunction) -> Answer | None:
    needed, reason = scene.route(device)
    if needed is not Route.VFIO:
        return None
    modules = scene.host.sys / "module"
    missing = [name for name in ("vfio_pci", "vfio_iommu_type1") if not (modules / name).is_dir() and not (name == "vfio_iommu_type1" and (scene.host.dev / "iommu").exists())]
    if not missing:
        return ok("vfio_pci is loaded")
    return block(f"not loaded: {', '.join(missing)}; VFIO is needed because {reason}", "as root: modprobe vfio-pci")


def usable(scene: Scene, device: PciFunction) -> bool:
    """Whether there is a VFIO to ask further things about."""
    answer = module(scene, device)
    return answer is not None and not answer.remedy


def node(scene: Scene, device: PciFunction) -> Answer | None:
    if not usable(scene, device) or not scene.group(device):
        return None
    path = scene.host.dev / "vfio" / scene.group(device)
    container = scene.host.dev / "vfio" / "vfio"
    if not container.exists():
        return block("no /dev/vfio/vfio", "in a container: pass /dev/vfio in; else as root: modprobe vfio-pci")
    closed = [each for each in (container, path) if each.exists() and not scene.host.may_use(each)]
    if closed:
        names = " ".join(f"/dev/{each.relative_to(scene.host.dev)}" for each in closed)
        return block(f"may not use {names}", f"as root: chown $USER {names}; lastingly: a udev rule for the subsystem vfio (docs/permissions.md)")
    return ok(f"/dev/vfio/{path.name}" if path.exists() else "is made when the device is bound to vfio-pci")


def group_viable(scene: Scene, device: PciFunction) -> Answer | None:
    if not usable(scene, device) or not scene.group(device):
        return None
    others = {address: driver for address, driver in groups.blockers(scene.group(device), scene.host).items() if address != device.address}
    if not others:
        return ok(f"group {scene.group(device)}: {', '.join(groups.members(scene.group(device), scene.host)) or device.address}")
    named = ", ".join(f"{address} ({driver})" for address, driver in others.items())
    return block(f"group {scene.group(device)} also has {named}", "as root: " + "; ".join(f"echo {address} > /sys/bus/pci/devices/{address}/driver/unbind" for address in others))


def group_busy(scene: Scene, device: PciFunction) -> Answer | None:
    if not usable(scene, device) or not scene.group(device):
        return None
    holders = holders_of([f"/dev/vfio/{scene.group(device)}"], scene.host)
    if not holders:
        return ok("nobody has the group open")
    return block(f"group {scene.group(device)} is open in {', '.join(map(str, holders))}", f"end it: kill {' '.join(str(each.pid) for each in holders)}")


def no_iommu(scene: Scene, device: PciFunction) -> Answer | None:
    """A device of vfio-pci that no IOMMU group has, or only a made-up one."""
    if not usable(scene, device):
        return None
    group = scene.group(device)
    if group and not (scene.host.dev / "vfio" / f"noiommu-{group}").exists():
        return None
    if scene.host.text(scene.host.sys / "module" / "vfio" / "parameters" / "enable_unsafe_noiommu_mode") in ("Y", "1"):
        return warn("VFIO without an IOMMU", "nothing keeps the device from writing anywhere: switch the IOMMU on in the firmware setup where that matters")
    return block(
        "no IOMMU group, and VFIO's mode without one is off",
        "switch the IOMMU on (firmware setup; kernel option intel_iommu=on), or as root: echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode, then bind anew",
    )


def idle_power(scene: Scene, device: PciFunction) -> Answer | None:
    if not usable(scene, device):
        return None
    value = scene.host.text(scene.host.sys / "module" / "vfio_pci" / "parameters" / "disable_idle_d3")
    if value in ("Y", "1", None):
        return ok("idle devices stay awake")
    return warn(f"disable_idle_d3 is {value}", "as root: echo 'options vfio-pci disable_idle_d3=1' > /etc/modprobe.d/vfio.conf, then load the module anew")


CHECKS = (
    Check("vfio-module", "VFIO", "devices that sysfs cannot serve are reached through it", on_device=module),
    Check("vfio-node", "VFIO nodes", "whoever may open the group's node may use the device, without root", on_device=node),
    Check("vfio-group", "IOMMU group", "the IOMMU cannot keep its functions apart, so all must be free", on_device=group_viable),
    Check("vfio-busy", "use of the IOMMU group", "VFIO gives a group to one process at a time", on_device=group_busy),
    Check("vfio-no-iommu", "IOMMU behind VFIO", "without one VFIO protects nothing and must be told to go on", on_device=no_iommu),
    Check("vfio-idle", "sleep under VFIO", "a card that is put to sleep between runs loses its state and starts slowly", on_device=idle_power),
)
