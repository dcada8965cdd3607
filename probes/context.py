"""Options that every command takes, wherever on the line they stand."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from bridges.open import Selection
from hw import target
from hw.errors import UsageError

VALUE_OPTIONS = {
    "--device": "which device: N in `tghw probe`'s order, a bus address, or usb:N",
    "--dev": "device string, [INTERFACE+]DEVICE[:RENDERER][:ARCH][,KEY=VALUE...] (also the environment variable DEV)",
    "--remote": "HOST:PORT of a machine that exports its devices (also REMOTE)",
    "--mock": "profile of a simulated machine inside this process (also TGHW_MOCK)",
    "--state": "folder for lasting state of the simulated machine (default: the user's state folder)",
    "--firmware": "folder with firmware files (also TGHW_FIRMWARE)",
    "--fault": "faults of the simulated machine, comma separated; `tghw mock show PROFILE` lists them",
}
FLAG_OPTIONS = {
    "--json": "one JSON document on stdout, nothing else there",
    "--json-schema": "describe the JSON document of the command and stop",
    "--no-color": "plain text",
    "-v": "show stages and what is done",
    "-vv": "show every transaction",
}


@dataclass
class Common:
    """The common options of one run."""

    json: bool = False
    json_schema: bool = False
    no_color: bool = False
    verbose: int = 0
    device: str | None = None
    dev: str | None = None
    remote: str | None = None
    mock: str | None = None
    state: str | None = None
    firmware: str | None = None
    fault: str = ""
    documented: bool = False
    """the one JSON document was written"""

    def selection(self) -> Selection:
        """Where devices are, from options first, the environment second."""
        dev = self.dev or (None if self.mock else os.environ.get(target.VARIABLE))
        device = self.device
        if dev is not None and _looks_like_address(dev):
            dev, device = None, dev
        firmware = self.firmware or os.environ.get("TGHW_FIRMWARE")
        state = self.state or os.environ.get("TGHW_STATE")
        return Selection(
            target=target.parse(dev) if dev else None,
            mock=self.mock or os.environ.get("TGHW_MOCK") or None,
            state=Path(state) if state else None,
            firmware=Path(firmware) if firmware else None,
            faults=self.fault,
            device=device,
            remote=self.remote or os.environ.get("REMOTE") or None,
        )


    def use_for_compute(self, default: str) -> target.Target:
        """Make the device that these options choose the one that `compute` uses (DEV, TGHW_STATE, TGHW_FIRMWARE of this process); returns it.

        default: the DEV string where nothing is chosen. Raises TargetError, UsageError.
        """
        selection = self.selection()
        chosen = target.Target("AMD", "PCI", mock=True, options={"profile": selection.mock}) if selection.mock else selection.target or target.parse(default)
        if self.device is not None or selection.device is not None:
            chosen = chosen.only(selection.device or "")
        if selection.faults:
            chosen = replace(chosen, options={**chosen.options, "fault": selection.faults.replace(",", "+")})
        os.environ[target.VARIABLE] = str(chosen)
        for variable, value in (("TGHW_STATE", self.state), ("TGHW_FIRMWARE", self.firmware)):
            if value:
                os.environ[variable] = value
        return chosen


def _looks_like_address(text: str) -> bool:
    """True for a PCI address: `smi --dev BDF` selects a device, everywhere else --dev is a device string."""
    digits = text.replace(":", "").replace(".", "")
    return ":" in text and "." in text and all(each in "0123456789abcdefABCDEF" for each in digits)


def take_common(arguments: list[str]) -> tuple[Common, list[str]]:
    """Split the common options off a command line; everything after `--` is left alone. Raises UsageError for a missing value."""
    common = Common()
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if word == "--":
            rest += ["--", *arguments[position:]]
            break
        name, equals, value = word.partition("=")
        if name in VALUE_OPTIONS:
            if not equals:
                if position >= len(arguments):
                    raise UsageError(f"{name} needs a value", means=VALUE_OPTIONS[name])
                value = arguments[position]
                position += 1
            if not value:
                raise UsageError(f"{name} has an empty value", means=VALUE_OPTIONS[name], remedy="an unset variable in a script? leave the option out where it is not meant")
            setattr(common, name.lstrip("-"), value)
        elif word in ("-v", "--verbose"):
            common.verbose += 1
        elif word == "-vv":
            common.verbose += 2
        elif word in FLAG_OPTIONS:
            setattr(common, word.lstrip("-").replace("-", "_"), True)
        else:
            rest.append(word)
    return common, rest


CURRENT = Common()
"""the common options of this run; set by probes.main before a command starts"""


def current() -> Common:
    return CURRENT


def set_current(common: Common) -> None:
    global CURRENT
    CURRENT = common
