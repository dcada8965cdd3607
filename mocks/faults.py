"""Faults that a simulated machine can be told to have.

A plan is a set of named faults, each with an optional argument: "psp-never-ready,smu-silent,psp-command-error=0x06:0xf".
"""

from __future__ import annotations

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
    "smu-unknown": "the power controller knows none of its commands (argument: one message id)",
    "rlc-never": "firmware autoload never completes",
    "engine-hang": "the compute engine stops fetching (argument: after how many dispatches, default at once)",
    "irq-lost": "no interrupt message leaves the GPU",
}
"""name -> what happens then"""


class FaultPlan:
    """Which faults a machine has. Blocks ask for theirs by name."""

    def __init__(self, faults: dict[str, str] | Iterable[str] = ()) -> None:
        self._faults = dict(faults) if isinstance(faults, dict) else dict.fromkeys(faults, "")
        for name in self._faults:
            if name not in FAULTS:
                raise UsageError(f"there is no fault {name!r}", read=f"known: {', '.join(sorted(FAULTS))}")

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """From "name,name=argument". Raises UsageError for an unknown name."""
        faults = {}
        for word in text.split(","):
            name, _, argument = word.strip().partition("=")
            if name:
                faults[name] = argument
        return cls(faults)

    def active(self, name: str) -> bool:
        """Is this fault planned? The name must be a known one (a block that asks for an unknown one has a bug)."""
        if name not in FAULTS:
            raise KeyError(name)
        return name in self._faults

    def argument(self, name: str) -> str | None:
        """The argument of a planned fault, None when it is not planned."""
        if name not in FAULTS:
            raise KeyError(name)
        return self._faults.get(name)

    def add(self, name: str, argument: str = "") -> None:
        """Plan one more fault, also while the machine runs."""
        if name not in FAULTS:
            raise UsageError(f"there is no fault {name!r}", read=f"known: {', '.join(sorted(FAULTS))}")
        self._faults[name] = argument

    def remove(self, name: str) -> None:
        """The fault is over."""
        self._faults.pop(name, None)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def __iter__(self) -> Iterator[str]:
        return iter(self._faults)
