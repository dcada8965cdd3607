"""A simulated computer: clock, RAM, a PCI tree, and the devices in it, made from a profile."""

from __future__ import annotations

import copy
import os
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw.errors import BusLost, DeviceBusy, NothingFound, ProfileError
from hw.lock import acquire
from hw.pci.device import COMMAND, COMMAND_MEMORY
from mocks.clock import Scheduler, SimClock
from mocks.faults import FaultPlan
from mocks.memory import HostRam
from mocks.pci import BarSlot, BusCosts, MockFunction
from mocks.pci_config import BRIDGE_BUSES, build_bridge, build_config
from mocks.pci_device import Lease, MockPciDevice

if TYPE_CHECKING:
    from mocks.amd.gpu import Gpu
    from mocks.asm24.backend import MockBackend
    from mocks.asm24.chip import Asm24

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


def _merge(base: Any, over: Any) -> Any:
    """A profile on top of another: tables merge key by key; lists of tables entry by entry, matched by what names the entry; the rest replaces."""
    if isinstance(base, dict) and isinstance(over, dict):
        result = copy.deepcopy(base)
        for key, value in over.items():
            result[key] = _merge(result[key], value) if key in result else value
        return result
    if isinstance(base, list) and isinstance(over, list) and all(isinstance(entry, dict) for entry in (*base, *over)):
        merged = {_name_of(entry): copy.deepcopy(entry) for entry in base}
        for entry in over:
            merged[_name_of(entry)] = _merge(merged.get(_name_of(entry), {}), entry)
        return list(merged.values())
    return copy.deepcopy(over)


def _name_of(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What tells the entries of a list apart: an IP by id and instance, a BAR by index, a capability by offset, a function by address."""
    if "hw_id" in entry:
        return (entry["hw_id"], entry["instance"])
    return next((entry[key],) for key in ("index", "offset", "address") if key in entry)


def _complete(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries that say `like = ADDRESS` are that entry with their own keys on top. Raises ProfileError."""
    done: dict[str, dict[str, Any]] = {}
    for entry in functions:
        own = dict(entry)
        like = own.pop("like", None)
        if like is not None and like not in done:
            raise ProfileError(f"function {own['address']} is like {like}", read=f"functions before it: {', '.join(done)}", remedy="put the function that is copied first")
        done[own["address"]] = own if like is None else _merge(done[like], own)
    return list(done.values())


class Machine:
    """A simulated computer. Everything in it is deterministic: the same profile, seed and accesses give the same machine."""

    def __init__(
        self, profile: dict[str, Any], *, state_dir: Path | None = None, seed: int = 0, faults: FaultPlan | None = None, strict: bool = False, exclusive: bool = True
    ) -> None:
        """state_dir: where lasting state is (flash contents); None: nothing lasts. exclusive: one process at a time drives a device of one state folder."""
        self.profile = profile
        self.name: str = profile["name"]
        self.state_dir = state_dir
        self.lock_dir = state_dir if exclusive else None
        """where locks of devices are; None: processes do not exclude each other"""
        self.seed = seed
        self.strict = strict
        self.faults = FaultPlan.parse(profile.get("faults", ""))
        """the profile's own and those asked for"""
        if faults is not None:
            self.faults.merge(faults)
        self.clock = SimClock()
        self.scheduler = Scheduler(self.clock, seed)
        self.ram = HostRam(profile["host"]["ram_mib"] * MIB, seed)
        self.costs = BusCosts(**profile.get("bus", {}))
        self._functions: dict[str, MockFunction] = {}
        self._open: dict[str, MockPciDevice] = {}
        self.gpus: list[Any] = []
        self.watch_bus = self.faults.somewhere("all-ones-at")
        """accesses are counted for a planned fault"""
        self._accesses: Counter[str] = Counter()
        self.asm24: Asm24 | None = None
        """the USB bridge with what sits behind it; None for a machine without one"""
        bridge = profile.get("asm24")
        behind = set(bridge["slot"]) if bridge else set()
        entries = _complete(profile["functions"])
        for entry in entries:
            if entry["address"] not in behind:
                self._build(entry)
        if bridge:
            self._build_bridge(bridge, [entry for entry in entries if entry["address"] in behind and bridge["populated"]])
        for gpu in self.gpus:
            if gpu.faults.active("dead-bus"):
                gpu.function.link_up = False
        self.clock.sleep(profile["host"]["firmware_time"])
        if self.asm24 is not None:
            self.asm24.start()

    @classmethod
    def from_profile(
        cls, name_or_path: str | Path, *, state_dir: Path | None = None, seed: int = 0, faults: FaultPlan | None = None, strict: bool = False, exclusive: bool = True
    ) -> Machine:
        """A machine as the profile describes it, just switched on."""
        return cls(load_profile(name_or_path), state_dir=state_dir, seed=seed, faults=faults, strict=strict, exclusive=exclusive)

    def _build(self, entry: dict[str, Any]) -> None:
        slots = []
        for bar in entry.get("bars", []):
            sizes = tuple(each * MIB for each in bar.get("sizes_mib", []))
            slots.append(BarSlot(bar["index"], bar["size"], bar["flags"], sizes=sizes, control=bar.get("control", 0)))
        role = entry.get("role", "")
        config = build_bridge(entry, self.profile["host"]["windows"]) if role == "bridge" else build_config(entry)
        function = MockFunction(self, entry["address"], config, slots, role, self._bridge_above(entry["address"]))
        self._functions[function.address] = function
        if role == "gpu" and self._add_gpu(function).faults.active("bars-unassigned"):
            return
        for bar, slot in zip(entry.get("bars", []), slots, strict=True):
            if bar.get("address"):
                function.assign(slot, bar["address"])

    def _add_gpu(self, function: MockFunction) -> Gpu:
        from mocks.amd.gpu import Gpu

        gpu = Gpu(self, function, self.profile["gpu"])
        self.gpus.append(gpu)
        if gpu.faults.active("memory-off"):
            function.config.forbid(COMMAND, COMMAND_MEMORY)
        return gpu

    def _build_bridge(self, profile: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        from mocks.asm24.chip import Asm24

        self.asm24 = Asm24(self, profile, entries)
        for function in self.asm24.fabric.behind:
            if function.role == "gpu":
                self._add_gpu(function)

    def _bridge_above(self, address: str) -> MockFunction | None:
        bus = int(address.split(":")[1], 16)
        return next((each for each in self._functions.values() if each.role == "bridge" and each.config.get(BRIDGE_BUSES + 1, 1) == bus), None)

    def paths_changed(self) -> None:
        """Something on the way to a device changed: configuration, link, reset."""
        for function in self._functions.values():
            function.update_paths()
        if self.asm24 is not None:
            self.asm24.paths_changed()

    def count_access(self, function: MockFunction) -> None:
        """One more access to a BAR of a GPU, for the fault that takes it off the bus at the n-th."""
        if function.role == "gpu":
            self._accesses[function.address] += 1
            lost_at = self.faults.argument_at("all-ones-at", function.address)
            if lost_at is not None and self._accesses[function.address] == int(lost_at or 1):
                function.link_up = False

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
        """Take a function, as a driver does: lock, look whether it is there, enable memory decoding (until it is closed, if it was off).

        Processes that share a state directory exclude each other. Raises DeviceBusy, NothingFound, BusLost.
        """
        function = self.function(address)
        if address in self._open:
            raise DeviceBusy(f"{address} of machine {self.name} is open already", read=f"held by this process ({os.getpid()})")
        held = None
        if self.lock_dir is not None:
            self.lock_dir.mkdir(parents=True, exist_ok=True)
            held = acquire(self.lock_name(address), self.lock_dir)

        was_off = not function.config.get(COMMAND, 2) & COMMAND_MEMORY

        def release() -> None:
            if was_off and function.link_up:
                device.set_memory_space(False)
            self._open.pop(address, None)
            if held is not None:
                held.release()

        device = MockPciDevice(self, function, Lease(release))
        self._open[address] = device
        try:
            function.identity()
        except BusLost:
            release()
            raise
        device.set_memory_space(True)
        return device

    def usb_backend(self) -> MockBackend | None:
        """The machine's USB buses as pyusb takes them (`usb.core.find(backend=...)`); None for a machine without a USB bridge."""
        if self.asm24 is None:
            return None
        from mocks.asm24.backend import MockBackend

        return MockBackend(self)

    def lock_name(self, address: str) -> str:
        """Under which address the lock of a function is taken in the state directory."""
        return f"mock:{self.name}:{address}"

    def export_config(self, address: str) -> bytes:
        """The configuration space as `lspci -F` and hexdump readers take it: 4096 bytes."""
        return bytes(self.function(address).config.data)

    def window_of(self, slot: BarSlot) -> tuple[int, int]:
        """(base, size) of the bridge window that this BAR lies in."""
        windows = self.profile["host"]["windows"]
        kind = "prefetchable" if slot.flags & 0x8 else "memory"
        base, size_mib = windows[kind]
        return base, size_mib * MIB

    def place_bar(self, function: MockFunction, slot: BarSlot, size: int) -> int | None:
        """An address for a BAR of this size in its bridge's window, clear of the other BARs; None when there is no room."""
        if self.faults.argument_at("resize-refused", function.address) is not None:
            return None
        base, room = self.window_of(slot)
        taken = sorted((other.address, other.size) for each in self.functions() for other in each.slots.values() if other is not slot and other.address)
        candidate = -(-base // size) * size
        for address, length in taken:
            if address < candidate + size and candidate < address + length:
                candidate = -(-(address + length) // size) * size
        return candidate if candidate + size <= base + room else None

    def save(self) -> None:
        """Write lasting state to the state directory: nothing is left to do, flash contents are written as they change.

        What a GPU was booted to ends with the process, as switching the computer off would end it.
        """

    @property
    def idle(self) -> bool:
        """Nothing of it is open."""
        return not self._open and (self.asm24 is None or not self.asm24.host.handles)

    def close(self) -> None:
        """Close what is open and keep lasting state."""
        for device in list(self._open.values()):
            device.close()
        self.save()
