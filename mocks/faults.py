"""Faults that a simulated machine can be told to have.

A plan is a set of named faults, each with an optional argument: "psp-never-ready,smu-silent,psp-command-error=0x06:0xf". A fault of a
GPU happens to every GPU, or to one of several: "smu-hang@0000:43:00.0=0x12".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hw.errors import UsageError

FAULTS: dict[str, str] = {
    "all-ones-at": "BAR reads of the GPU answer all ones from the n-th BAR access on (argument: n)",
    "all-ones-stage": "the GPU falls off the bus when the boot gets to a place (argument: psp-bootloader, sos, ring, autoload, smu)",
    "dead-bus": "nothing answers, not even configuration space",
    "bars-unassigned": "the firmware gave the GPU no BAR addresses",
    "memory-off": "the bridge above does not let the GPU's memory decoding be switched on",
    "resize-refused": "the bridge above has no room for a larger BAR",
    "discovery-magic": "the discovery binary's signature is wrong",
    "discovery-checksum": "a byte of the IP table is wrong",
    "discovery-size": "the discovery binary claims an impossible size",
    "memsize-zero": "the boot firmware never reports the memory size",
    "psp-never-ready": "the security processor's boot loader never becomes ready",
    "psp-sos-silent": "the secure OS is loaded but never gives a sign of life",
    "psp-command-silent": "the secure OS takes commands and never answers (argument: command id, default every one)",
    "psp-command-error": "the secure OS refuses a command (argument: command id, or id:status)",
    "smu-silent": "the power controller never answers",
    "smu-busy": "the power controller answers busy (argument: how often, default always)",
    "smu-hang": "the power controller takes a message and never answers again, until it is reset (argument: message id, default 0x12: the metrics)",
    "smu-unknown": "the power controller knows none of its commands (argument: one message id)",
    "rlc-never": "firmware autoload never completes",
    "engine-hang": "the compute engine stops fetching (argument: after how many dispatches, default at once)",
    "flash-power-cut": "the card loses power in the middle of a flash operation (argument: after how many bytes of programming and erasing)",
    "flash-flip": "reading the flash flips a bit (argument: in every n-th byte, default 4096)",
    "flash-stuck-busy": "the flash chip never finishes an operation",
    "flash-worn": "bit 0 of one byte of the flash neither programs nor erases (argument: address)",
    "flash-absent": "no flash chip answers",
    "rom-stuck": "the ROM_SW engine's status never clears",
    "mailbox-silent": "the security processor never answers on its flash mailbox",
    "mailbox-error": "the security processor refuses a flash command (argument: command:code, or command:code:n for the n-th only)",
    "mailbox-strange-item": "the security processor asks for a flash item that nobody knows",
    "mailbox-endless": "the security processor never says that a flash update is complete",
    "irq-lost": "no interrupt message leaves the GPU",
    "usb-no-access": "this user may not open the USB bridge",
    "usb-busy": "another process holds the USB bridge's interface",
    "usb-disconnect-at": "the USB bridge is unplugged in the n-th transfer (argument: n, or n:seconds until it is plugged in again)",
    "usb-bus-reset-at": "the USB port is reset in the n-th transfer; the bridge enumerates anew (argument: n)",
    "usb-stall-at": "the USB bridge stalls the n-th transfer; a bulk endpoint stays halted (argument: n)",
    "usb-timeout-at": "the USB bridge does not answer the n-th transfer (argument: n, or n:how many in a row)",
    "usb-short-at": "the n-th transfer ends early (argument: n, or n:bytes that still get through, default half)",
    "usb-overflow-at": "the n-th transfer meets stale data in the endpoint: more comes than was asked for (argument: n)",
    "usb-error-at": "the n-th transfer breaks off with an error of the cable (argument: n)",
    "usb-wedge-at": "the USB bridge's processor hangs from the n-th transfer on, until its power is cycled (argument: n)",
    "usb-kill-at": "the process that uses the USB bridge dies in its n-th transfer (argument: n, or n:bytes that still get through)",
    "scsi-fail-at": "the n-th SCSI command of the USB bridge fails with CHECK CONDITION (argument: n)",
    "scsi-wrong-tag-at": "the status of the n-th SCSI command carries another command's tag (argument: n)",
    "link-never": "the PCIe link behind the USB bridge never trains: a receiver is seen, nothing more",
    "link-slow": "the PCIe link behind the USB bridge takes long to train (argument: s)",
    "link-down-at": "the PCIe link behind the USB bridge drops at the n-th request, until it is trained again (argument: n)",
    "config-retry": "the first configuration requests behind the USB bridge are answered with retry (argument: how many)",
    "tlp-completion": "the n-th PCIe request of the USB bridge fails (argument: n:ur, n:crs, n:ca, n:reserved or n:timeout, then :how many in a row)",
    "completion-lost": "the USB bridge does not notice the GPU's writes to its completion page",
    "bridge-flash-protected": "the USB bridge's SPI flash is write-protected, and stays so (its other faults: flash-...@asm24)",
}
"""name -> what happens then"""

_COUNT = "(?:0|[1-9][0-9]*)"
_NUMBER = f"(?:0[xX][0-9a-fA-F]+|{_COUNT})"
_AT = f"{_COUNT}?(?::{_COUNT}(?:[.][0-9]+)?)?"

ARGUMENTS: dict[str, str] = {
    "all-ones-at": f"{_COUNT}?",
    "all-ones-stage": "psp-bootloader|sos|ring|autoload|smu",
    "psp-command-silent": f"{_NUMBER}?",
    "psp-command-error": f"{_NUMBER}?(?::{_NUMBER})?",
    "smu-busy": f"{_COUNT}?",
    "smu-hang": f"{_NUMBER}?",
    "smu-unknown": f"{_NUMBER}?",
    "engine-hang": f"{_COUNT}?",
    "flash-power-cut": f"{_COUNT}?",
    "flash-flip": f"{_COUNT}?",
    "flash-worn": f"{_NUMBER}?",
    "mailbox-error": f"{_NUMBER}:{_NUMBER}(?::{_COUNT})?",
    **{f"usb-{kind}-at": _AT for kind in ("disconnect", "bus-reset", "stall", "timeout", "short", "overflow", "error", "wedge", "kill")},
    "scsi-fail-at": f"{_COUNT}?",
    "scsi-wrong-tag-at": f"{_COUNT}?",
    "link-slow": f"{_COUNT}?(?:[.][0-9]+)?",
    "link-down-at": f"{_COUNT}?",
    "config-retry": f"{_COUNT}?",
    "tlp-completion": f"{_COUNT}:(?:ur|crs|ca|reserved|timeout)(?::{_COUNT})?",
}
"""name -> pattern of its argument; faults that are not here take none"""


def _name_of(key: str) -> str:
    """The fault's name in "name" or "name@address". Raises UsageError for one that does not exist."""
    name = key.partition("@")[0]
    if name not in FAULTS:
        raise UsageError(f"there is no fault {name!r}", read=f"known: {', '.join(sorted(FAULTS))}")
    return name


def _key(text: str) -> str:
    """A fault as plans keep it: the address, if any, with its domain."""
    name, at, address = text.partition("@")
    return f"{name}@0000:{address}" if at and address.count(":") == 1 else text


class FaultPlan:
    """Which faults a machine has. Blocks ask for theirs by name."""

    def __init__(self, faults: dict[str, str] | Iterable[str] = ()) -> None:
        given = faults if isinstance(faults, dict) else dict.fromkeys(faults, "")
        self._faults: dict[str, str] = {}
        for key, argument in given.items():
            self.add(key, argument)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """From "name,name=argument,name@address"; "+" separates as well (a DEV string has no room for commas).

        Raises UsageError for an unknown name, or an argument that the fault does not take.
        """
        faults = {}
        for word in re.split("[,+]", text):
            name, _, argument = word.strip().partition("=")
            if name:
                faults[name] = argument
        return cls(faults)

    def at(self, address: str) -> FaultsAt:
        """The faults of one device: those of all, and its own. Follows later changes of the plan."""
        return FaultsAt(self, address)

    def active(self, name: str) -> bool:
        """Is this fault planned for every device? The name must be a known one (a block that asks for an unknown one has a bug)."""
        return self.argument(name) is not None

    def argument(self, name: str) -> str | None:
        """The argument of a fault planned for every device, None when it is not planned."""
        if name not in FAULTS:
            raise KeyError(name)
        return self._faults.get(name)

    def argument_at(self, name: str, address: str) -> str | None:
        """The same for one device: its own plan before that of all."""
        if name not in FAULTS:
            raise KeyError(name)
        return self._faults.get(f"{name}@{address}", self._faults.get(name))

    def somewhere(self, name: str) -> bool:
        """Is this fault planned for any device?"""
        return any(key.partition("@")[0] == name for key in self._faults)

    def add(self, name: str, argument: str = "") -> None:
        """Plan one more fault, also while the machine runs. Raises UsageError."""
        plain = _name_of(name)
        if not re.fullmatch(ARGUMENTS.get(plain, ""), argument):
            raise UsageError(f"fault {name} cannot have the argument {argument!r}", read=f"{plain}: {FAULTS[plain]}")
        self._faults[_key(name)] = argument

    def merge(self, other: FaultPlan) -> None:
        """Plan what another plan has, too."""
        self._faults.update(other._faults)

    def remove(self, name: str) -> None:
        """The fault is over."""
        self._faults.pop(_key(name), None)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def __iter__(self) -> Iterator[str]:
        return iter(self._faults)


class FaultsAt(FaultPlan):
    """A plan as one device sees it; what is added or removed here is planned for all."""

    def __init__(self, plan: FaultPlan, address: str) -> None:
        self._faults = plan._faults
        self._address = address

    def argument(self, name: str) -> str | None:
        """The argument of a fault of this device, None when it is not planned."""
        return self.argument_at(name, self._address)
