"""A simulated computer: clock, RAM, a PCI tree, and the devices in it, made from a profile."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

from hw.errors import DeviceBusy, NothingFound, ProfileError
from mocks.clock import Scheduler, SimClock
from mocks.faults import FaultPlan
from mocks.memory import HostRam
from mocks.pci import BarSlot, BusCosts, Lease, MockFunction, MockPciDevice, build_bridge, build_config

PROFILES = Path(__file__).parent / "profiles"
MIB = 1 << 20


def profile_names() -> list[str]:
    """Profiles that come with the project."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def load_profile(name_or_path: str | Path) -> dict[str, Any]:
    """A profile by name or file, with what it is based on merged in. Raises ProfileError."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = PROFILES / f"{name_or_path}.toml"
    if not path.is_file():
        raise ProfileError(f"there is no profile {str(name_or_path)!r}", read=f"known: {', '.join(profile_names())}")
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"profile {path.name} is not valid TOML", read=str(error)) from error
    base = own.pop("based_on", None)
    own.setdefault("name", path.stem)
    return own if base is None else _merge(load_profile(base), own)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(base)
    for key, value in over.items():
        result[key] = _merge(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


class Machine:
    """A simulated computer. Everything in it is deterministic: the same profile, seed and accesses give the same machine."""

    def __init__(self, profile: dict[str, Any], *, state_dir: Path | None = None, seed: int = 0, faults: FaultPlan | None = None, strict: bool = False) -> None:
        self.profile = profile
        self.name: str = profile["name"]
        self.state_dir = state_dir
        self.seed = seed
        self.strict = strict
        self.faults = faults or FaultPlan()
        self.clock = SimClock()
        self.scheduler = Scheduler(self.clock, seed)
        self.ram = HostRam(profile["host"]["ram_mib"] * MIB, seed)
        self.costs = BusCosts(**profile.get("bus", {}))
        self._functions: dict[str, MockFunction] = {}
        self._open: dict[str, MockPciDevice] = {}
        self.gpus: list[Any] = []
        for entry in profile["functions"]:
            self._build(entry)
        self.clock.sleep(profile["host"]["firmware_time"])

    @classmethod
    def from_profile(cls, name_or_path: str | Path, *, state_dir: Path | None = None, seed: int = 0, faults: FaultPlan | None = None, strict: bool = False) -> Machine:
        """A machine as the profile describes it, just switched on."""
        return cls(load_profile(name_or_path), state_dir=state_dir, seed=seed, faults=faults, strict=strict)

    def _build(self, entry: dict[str, Any]) -> None:
        slots = []
        for bar in entry.get("bars", []):
            sizes = tuple(each * MIB for each in bar.get("sizes_mib", []))
            slots.append(BarSlot(bar["index"], bar["size"], bar["flags"], sizes=sizes, control=bar.get("control", 0)))
        if entry.get("role") == "bridge":
            config = build_bridge(entry, self.profile["host"]["windows"])
        else:
            config = build_config(entry)
        function = MockFunction(self, entry["address"], config, slots, entry.get("role", ""))
        self._functions[function.address] = function
        for bar, slot in zip(entry.get("bars", []), slots, strict=True):
            if bar.get("address"):
                function.assign(slot, bar["address"])
        if entry.get("role") == "gpu":
            from mocks.amd.gpu import Gpu

            self.gpus.append(Gpu(self, function, self.profile["gpu"]))

    # --- what software sees ---

    def functions(self) -> list[MockFunction]:
        """Every PCI function, by address."""
        return [self._functions[address] for address in sorted(self._functions)]

    def function(self, address: str) -> MockFunction:
        """One function. Raises NothingFound."""
        found = self._functions.get(address)
        if found is None:
            raise NothingFound(f"no PCI function {address} in machine {self.name}", read=f"there are: {', '.join(sorted(self._functions))}")
        return found

    def open(self, address: str) -> MockPciDevice:
        """Take a function, as a driver does. Raises DeviceBusy, NothingFound."""
        function = self.function(address)
        if address in self._open:
            raise DeviceBusy(f"opening {address} of machine {self.name}", read="held by this process")

        def release() -> None:
            self._open.pop(address, None)

        device = MockPciDevice(self, function, Lease(release))
        self._open[address] = device
        device.set_memory_space(True)
        return device

    def export_config(self, address: str) -> bytes:
        """The configuration space as `lspci -F` and hexdump readers take it: 4096 bytes."""
        return bytes(self.function(address).config.data)

    def config_answers(self, function: MockFunction) -> bool:
        return True

    def bus_answers(self, function: MockFunction) -> bool:
        return True

    def window_of(self, slot: BarSlot) -> tuple[int, int]:
        """(base, size) of the bridge window that this BAR lies in."""
        windows = self.profile["host"]["windows"]
        kind = "prefetchable" if slot.flags & 0x8 else "memory"
        base, size_mib = windows[kind]
        return base, size_mib * MIB

    def place_bar(self, function: MockFunction, slot: BarSlot, size: int) -> int | None:
        """An address for a BAR of this size in its bridge's window, clear of the other BARs; None when there is no room."""
        base, room = self.window_of(slot)
        taken = sorted((other.address, other.size) for each in self.functions() for other in each.slots.values() if other is not slot and other.address)
        candidate = -(-base // size) * size
        for address, length in taken:
            if address < candidate + size and candidate < address + length:
                candidate = -(-(address + length) // size) * size
        return candidate if candidate + size <= base + room else None

    def save(self) -> None:
        """Write lasting state. A GPU's boot state ends with the process: switching the simulation off is a power cycle."""

    def close(self) -> None:
        """Close what is open and keep lasting state."""
        for device in list(self._open.values()):
            device.close()
        self.save()
