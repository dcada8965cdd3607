"""What the machine's fault plan means for the bridge: which transfer, request or command is hit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mocks.asm24.fabric import COMPLETER_ABORT, CONFIG_RETRY, UNSUPPORTED_REQUEST, Completion
from mocks.faults import FaultPlan

RESERVED_STATUS = 3
OUTCOMES: dict[str, Completion | None] = {
    "ur": Completion(UNSUPPORTED_REQUEST),
    "crs": Completion(CONFIG_RETRY),
    "ca": Completion(COMPLETER_ABORT),
    "reserved": Completion(RESERVED_STATUS),
    "timeout": None,
}
TRANSFER_FAULTS = ("disconnect", "bus-reset", "stall", "timeout", "short", "overflow", "error", "wedge", "kill")


@dataclass(frozen=True)
class TransferFault:
    """What happens to one USB transfer. kind: one of TRANSFER_FAULTS; argument: the number after the colon, if any."""

    kind: str
    argument: float | None


@dataclass(frozen=True)
class TlpFault:
    """How one PCIe request ends instead; None: nobody completes it."""

    completion: Completion | None


class BridgeFaults:
    """Counts what goes by and says what is hit."""

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self.transfers = 0
        """USB transfers so far, over all handles"""
        self._injected: deque[TlpFault] = deque()

    def next_transfer(self) -> TransferFault | None:
        """One more USB transfer: what happens to it?"""
        self.transfers += 1
        for kind in TRANSFER_FAULTS:
            text = self.plan.argument(f"usb-{kind}-at")
            if text is None:
                continue
            first, _, more = text.partition(":")
            at, argument = int(first or 1), float(more) if more else None
            last = at + (int(argument or 1) - 1 if kind == "timeout" else 0)
            if at <= self.transfers <= last:
                return TransferFault(kind, argument)
        return None

    @property
    def completions_planned(self) -> bool:
        """May some PCIe request end otherwise than its target wants?"""
        return bool(self._injected) or self.plan.active("tlp-completion") or self.plan.active("link-down-at")

    def inject(self, outcomes: Iterable[str]) -> None:
        """The next requests end like this, one each ("ur", "crs", "ca", "reserved", "timeout")."""
        self._injected.extend(TlpFault(OUTCOMES[each]) for each in outcomes)

    def next_completion(self, number: int) -> TlpFault | None:
        """The outcome planned for the `number`-th PCIe request."""
        if self._injected:
            return self._injected.popleft()
        text = self.plan.argument("tlp-completion")
        if text is None:
            return None
        at, outcome, *count = text.split(":")
        return TlpFault(OUTCOMES[outcome]) if int(at) <= number < int(at) + int(count[0] if count else 1) else None

    def hits(self, name: str, number: int) -> bool:
        """Is the `number`-th of something the one that a fault names?"""
        text = self.plan.argument(name)
        return text is not None and number == int(text or 1)
