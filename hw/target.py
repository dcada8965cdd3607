"""The DEV string: which device, over which interface, with which compiler.

    [INTERFACE[:WHICH]+]DEVICE[:RENDERER][:ARCH][,KEY=VALUE...]        several of them joined by ';'

WHICH picks among the devices found there, sorted by address: "0", "0-3", "0,2", or bus addresses ("0000:03:00.0", "03:00.0").
Interfaces may have MOCK in front for a simulated one; MOCK alone is the simulated form of the device's usual interface. Words are
accepted in any case. This module knows the whole grammar; which interfaces are built is known where devices are opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hw.errors import NothingFound, TargetError

VARIABLE = "DEV"
"""Environment variable that holds the string."""
OLD_VARIABLE = "HCQ_VISIBLE_DEVICES"
"""Another toolkit's way to hide devices; refused, because ignoring it would touch devices the user meant to keep out."""

MOCK = "MOCK"
MAX_INDEX = 255
"""More devices than a machine has; keeps a mistyped range from becoming a long list."""


@dataclass(frozen=True)
class _Device:
    interfaces: tuple[str, ...]
    renderers: tuple[str, ...]
    arch_pattern: str
    arch_example: str


_GFX = r"gfx[0-9]{2,3}[0-9a-f]"
_SM = r"sm_[0-9]{2,3}[af]?"
_HOST = r"x86_64|aarch64"

_DEVICES = {
    "AMD": _Device(("PCI", "KFD", "VFIO", "USB", "USB4", "REMOTE"), ("LLVM",), _GFX, "gfx1100, gfx1201, gfx950"),
    "NV": _Device(("PCI", "NVK", "VFIO", "USB", "USB4", "REMOTE"), ("LLVM", "PTX"), _SM, "sm_89, sm_90, sm_120"),
    "CPU": _Device((), ("LLVM",), _HOST, "x86_64, aarch64"),
    "NULL": _Device((), ("LLVM", "PTX"), f"{_GFX}|{_SM}|{_HOST}", "gfx1100, sm_89, x86_64"),
    "PYTHON": _Device((), (), "", ""),
}

DEVICES = tuple(_DEVICES)
INTERFACES = ("KFD", "PCI", "VFIO", "USB", "USB4", "REMOTE", "NVK")
"""Real interfaces; each exists with MOCK in front too."""

_BUS_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Target:
    """One DEV string, understood.

    interface: one of INTERFACES, or "" for the usual one of the device (always "" for CPU, NULL and PYTHON).
    mock: a simulated machine is asked for. indices, addresses: which of the devices found; both empty means any.
    renderer, arch: "" when not given. options: KEY=VALUE parts, keys lower case.
    """

    device: str
    interface: str = ""
    mock: bool = False
    indices: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()
    renderer: str = ""
    arch: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_hardware(self) -> bool:
        """False for CPU, NULL and PYTHON, which need no device on a bus."""
        return bool(_DEVICES[self.device].interfaces)

    def choose(self, found: Sequence[str]) -> list[str]:
        """The selected ones of the device addresses found. Raises TargetError when an index is beyond them, NothingFound for an absent address."""
        ordered = sorted(found)
        if not self.indices and not self.addresses:
            return ordered
        chosen: list[str] = []
        for index in self.indices:
            if index >= len(ordered):
                raise _error(str(self), "device index", str(index), f"0 to {len(ordered) - 1}" if ordered else "none", f"{len(ordered)} such devices were found")
            chosen.append(ordered[index])
        for address in self.addresses:
            if address not in ordered:
                raise NothingFound(f"no device at {address}", read=f"found: {', '.join(ordered) or 'none'}")
            chosen.append(address)
        return list(dict.fromkeys(chosen))

    def only(self, which: str) -> Target:
        """This target narrowed to one of the devices found: its index ("0", "usb:0") or bus address. Raises TargetError."""
        if not self.has_hardware:
            raise _error(str(self), "device index", which, f"nothing: {self.device} is not behind a bus")
        indices, addresses = _parse_which(str(self), which.removeprefix("usb:"))
        return replace(self, indices=indices, addresses=addresses)

    def check_options(self, known: Collection[str]) -> None:
        """Raises TargetError for an option that nobody would look at."""
        for key, value in self.options.items():
            if key not in known:
                raise _error(str(self), "option", f"{key}={value}", ", ".join(known) or f"none for {self.device}" + (" on a real bus" if self.has_hardware else ""))

    def number(self, option: str, default: int) -> int:
        """The value of an option that is a whole number. Raises TargetError."""
        text = self.options.get(option, str(default))
        if not text.isdecimal():
            raise _error(str(self), "option", f"{option}={text}", f"{option}=NUMBER")
        return int(text)

    def __str__(self) -> str:
        """The string that parses to this target."""
        text = self.device
        if self.interface or self.mock:
            which = ",".join([*map(str, self.indices), *self.addresses])
            text = (MOCK if self.mock else "") + self.interface + (f":{which}" if which else "") + "+" + text
        if self.renderer or self.arch:
            text += ":" + self.renderer
        if self.arch:
            text += ":" + self.arch
        return text + "".join(f",{key}={value}" for key, value in self.options.items())


def parse(text: str) -> Target:
    """Understand one DEV string. Raises TargetError naming the part, what was found and what is allowed."""
    targets = parse_list(text)
    if len(targets) != 1:
        raise _error(text, "string", f"{len(targets)} targets", "one target here", "';' joins several devices, and this place opens one")
    return targets[0]


def parse_list(text: str) -> list[Target]:
    """Understand a DEV string that may name several targets, joined by ';'. Raises TargetError."""
    parts = text.split(";")
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise _error(text, "list", "an empty entry", "targets joined by single ';'")
    return [_parse_one(part.strip()) for part in parts]


def from_env(default: str, environ: Mapping[str, str] | None = None) -> Target:
    """The target that DEV names, or the default when it is unset or empty. Raises TargetError."""
    return parse(_read_env(default, environ))


def list_from_env(default: str, environ: Mapping[str, str] | None = None) -> list[Target]:
    """Like from_env(), for places that can use several targets."""
    return parse_list(_read_env(default, environ))


def _read_env(default: str, environ: Mapping[str, str] | None) -> str:
    variables = os.environ if environ is None else environ
    if variables.get(OLD_VARIABLE):
        raise TargetError(
            f"{OLD_VARIABLE} is set, and it is not read here",
            read=f"{OLD_VARIABLE}={variables[OLD_VARIABLE]}",
            means="a setting that hides devices must not be ignored silently",
            remedy=f"unset it and write the indices into {VARIABLE}, for example {VARIABLE}=PCI:{variables[OLD_VARIABLE]}+AMD",
        )
    return variables.get(VARIABLE) or default


def _parse_one(text: str) -> Target:
    before, plus, after = text.partition("+")
    head, separator, option_text = (after if plus and "=" not in before else text).partition(",")
    has_interface = bool(plus) and "=" not in before
    words = [word.strip() for word in head.split(":")]
    device = words[0].upper()
    if device not in _DEVICES:
        raise _error(text, "device", words[0], ", ".join(DEVICES), _device_hint(device))
    facts = _DEVICES[device]
    interface, mock, indices, addresses = _parse_interface(text, before, device) if has_interface else ("", False, (), ())
    if len(words) > 3:
        raise _error(text, "part after the architecture", ":".join(words[3:]), "DEVICE:RENDERER:ARCH and nothing more")
    renderer = words[1].upper() if len(words) > 1 else ""
    arch = words[2].lower() if len(words) > 2 else ""
    if renderer and renderer not in facts.renderers:
        raise _error(text, "renderer", words[1], ", ".join(facts.renderers) or f"nothing: {device} has no renderers", _renderer_hint(device, words[1]))
    if arch and not re.fullmatch(facts.arch_pattern or "(?!)", arch):
        raise _error(text, "architecture", words[2], f"for {device}: {facts.arch_example}" if facts.arch_example else f"nothing: {device} has no architectures")
    return Target(device, interface, mock, indices, addresses, renderer, arch, _parse_options(text, option_text) if separator else {})


def _parse_interface(text: str, part: str, device: str) -> tuple[str, bool, tuple[int, ...], tuple[str, ...]]:
    name, colon, which = part.partition(":")
    word = name.strip().upper()
    mock = word.startswith(MOCK)
    interface = word.removeprefix(MOCK)
    allowed = _DEVICES[device].interfaces
    if interface not in INTERFACES and not (mock and not interface):
        raise _error(text, "interface", name.strip(), ", ".join(INTERFACES) + f", each also with {MOCK} in front, or {MOCK} alone")
    if not allowed:
        raise _error(text, "interface", name.strip(), f"nothing: {device} is not behind a bus", f"write {device} alone")
    if interface and interface not in allowed:
        raise _error(text, "interface", name.strip(), f"for {device}: {', '.join(allowed)}, each also with {MOCK} in front")
    indices, addresses = _parse_which(text, which) if colon else ((), ())
    return interface, mock, indices, addresses


def _parse_which(text: str, which: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    indices: list[int] = []
    addresses: list[str] = []
    for word in which.split(","):
        word = word.strip()
        if match := _BUS_ADDRESS.fullmatch(word):
            domain, bus, slot, function = match.groups()
            addresses.append(f"{domain or '0000'}:{bus}:{slot}.{function}".lower())
            continue
        match = _RANGE.fullmatch(word)
        if not match:
            raise _error(text, "device index", word, "a number, a range like 0-3, a comma list of these, or a bus address like 0000:03:00.0")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MAX_INDEX:
            raise _error(text, "device index", word, f"ascending ranges up to {MAX_INDEX}")
        indices.extend(range(first, last + 1))
    return tuple(dict.fromkeys(indices)), tuple(dict.fromkeys(addresses))


def _parse_options(text: str, option_text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in option_text.split(","):
        key, equals, value = word.partition("=")
        key = key.strip().lower()
        if not equals or not _KEY.fullmatch(key) or not value.strip():
            raise _error(text, "option", word, "KEY=VALUE, both not empty")
        if key in options:
            raise _error(text, "option", word, f"{key} once")
        options[key] = value.strip()
    return options


def _device_hint(device: str) -> str:
    if device.removeprefix(MOCK) in INTERFACES or device == MOCK:
        return f"{device} is an interface: write {device}+AMD"
    return "the string has no device" if not device else ""


def _renderer_hint(device: str, found: str) -> str:
    if found.isdigit() and _DEVICES[device].interfaces:
        return f"to choose the device with index {found} write PCI:{found}+{device}"
    if re.fullmatch(f"{_GFX}|{_SM}|{_HOST}", found.lower()):
        return f"an architecture comes after a second colon: {device}::{found.lower()}"
    return ""


def _error(text: str, part: str, found: str, allowed: str, hint: str = "") -> TargetError:
    return TargetError(f"{part} in device string {text!r}", read=f"found {found!r}, allowed: {allowed}", means=hint)
