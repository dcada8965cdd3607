"""The host's side of the USB port: what is plugged in, who has it open, what the kernel does by itself.

Behaviour follows Linux: drivers bind by interface class, a claimed or bound interface keeps others away, a handle that is closed (also by
the end of its process) gives its interfaces back, and an interface given back in another setting than 0 is set to 0.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from mocks.asm24 import descriptors
from mocks.asm24.descriptors import BULK_ONLY, HIGH, SUPER, UAS, Descriptors
from mocks.asm24.device import FEATURE_HALT, TO_DEVICE, TO_ENDPOINT, TO_INTERFACE, Setup, Standard, UsbDevice
from mocks.asm24.faults import TransferFault
from mocks.asm24.transfers import CANCELLED, ERROR, NO_DEVICE, OVERFLOW, STALL, TIMED_OUT, Pipe, Transfer

if TYPE_CHECKING:
    from mocks.asm24.chip import Asm24

log = logging.getLogger(__name__)

BUS_USB2, BUS_USB3 = 1, 2
FIRST_ADDRESS = 2
ENUMERATION_TIME = 0.15
"""s from the device's connect to its place in the list"""
RESET_TIME = 0.12
KERNEL_TIMEOUT = 5.0
"""s that the kernel gives its own requests"""


class Killed(BaseException):
    """The process that used the bridge is dead: nothing it would still have done happens."""


class Node:
    """One device in the host's list. Gone for good once the device drops off the bus: the next time it is another node."""

    def __init__(self, bus: int, address: int, ports: tuple[int, ...], descriptors: Descriptors, device: UsbDevice | None, parent: Node | None) -> None:
        self.bus = bus
        self.address = address
        self.ports = ports
        self.descriptors = descriptors
        self.device = device
        """None for a root hub"""
        self.parent = parent
        self.present = True
        self.kernel_driver: str | None = None
        """who has interface 0"""
        self.claimed_by: Handle | None = None

    def __repr__(self) -> str:
        return f"Node({self.bus}-{self.address})"


class Handle:
    """An opened device."""

    def __init__(self, node: Node, process: int) -> None:
        self.node = node
        self.process = process
        self.streams: dict[int, int] = {}
        """endpoint -> streams allocated"""
        self.closed = False


class UsbHost:
    """Port, bus and kernel."""

    def __init__(self, chip: Asm24) -> None:
        self.chip = chip
        self.scheduler = chip.scheduler
        self.process = 0
        """counts processes: `kill` ends one"""
        self.handles: list[Handle] = []
        self._pipes: dict[tuple[int, int], Pipe] = {}
        self._pending: list[Transfer] = []
        self.finished = 0
        """transfers that ended, over all"""
        self._usb: dict[str, Any] = chip.profile["usb"]
        self._next_address = FIRST_ADDRESS
        self._port: tuple[int, ...] = (self._usb["port"],)
        self._hubs = [_root_hub(BUS_USB2, HIGH), _root_hub(BUS_USB3, SUPER)]
        self.node: Node | None = None
        """the bridge, while it is there"""
        self.bytes_out = self.bytes_in = 0

    # --- plugging ---

    @property
    def address(self) -> int:
        return self.node.address if self.node is not None else 0

    def nodes(self) -> list[Node]:
        return [*self._hubs, *([self.node] if self.node is not None else [])]

    def attach(self, device: UsbDevice) -> None:
        """The device answers on the bus: the kernel enumerates it and binds a driver."""
        if self.node is not None:
            self.detach()
        high = device.speed == HIGH
        hub = self._hubs[0 if high else 1]
        self.node = Node(hub.bus, self._next_address, self._port, device.descriptors, device, hub)
        self._next_address = FIRST_ADDRESS + (self._next_address + 1 - FIRST_ADDRESS) % 126
        device.bus_reset()
        device.set_configuration(1)
        self._pipes = {}
        self.node.kernel_driver = self.driver_for(device)
        log.info("USB device %04x:%04x at bus %d address %d", device.descriptors.vendor, device.descriptors.product, self.node.bus, self.node.address)

    def attach_later(self, seconds: float, device: UsbDevice) -> None:
        def arrive() -> None:
            if device is self.chip.usb and self.node is None and not device.chip.wedged:
                self.attach(device)

        self.scheduler.call_later(seconds + ENUMERATION_TIME, arrive, "USB enumeration")

    def detach(self) -> None:
        """The device drops off the bus."""
        if self.node is None:
            return
        self.node.present = False
        self.node.claimed_by = None
        self.node = None
        for transfer in list(self._pending):
            transfer.finish(NO_DEVICE)
        self._pipes = {}

    def reconnect(self) -> None:
        """Plug the cable in again."""
        self.attach_later(0.0, self.chip.usb)

    def driver_for(self, device: UsbDevice) -> str | None:
        """The kernel driver that takes interface 0; the profile may name one."""
        named = self._usb.get("kernel_driver")
        if named is not None:
            return named or None
        kinds = [each.kind for each in device.descriptors.alternates]
        return "uas" if UAS in kinds else "usb-storage" if BULK_ONLY in kinds else None

    # --- transfers ---

    def latency(self, transfer: Transfer, speed: int) -> float:
        """s until a transfer's first packet, on the host's and the wire's account."""
        name = "control" if transfer.setup is not None else "bulk"
        return float(self._usb[f"{name}_time_usb2" if speed == HIGH else f"{name}_time"])

    def submit(self, transfer: Transfer, timeout: float) -> Transfer:
        """Start a transfer. timeout in s, 0 for none. Raises Killed when the process dies in it."""
        transfer.deadline = self.scheduler.clock.now() + timeout if timeout else float("inf")
        self._pending.append(transfer)
        fault = self.chip.faults.next_transfer()
        if fault is not None:
            self._apply(fault, transfer)
        if self.node is None:
            transfer.finish(NO_DEVICE)
        if not transfer.over:
            assert self.node is not None and self.node.device is not None
            key = (transfer.endpoint, transfer.stream)
            pipe = self._pipes.get(key)
            if pipe is None:
                pipe = self._pipes[key] = Pipe(self, self.node.device)
            pipe.add(transfer)
        return transfer

    def ended(self, transfer: Transfer) -> None:
        """A transfer is over."""
        self.finished += 1
        if transfer in self._pending:
            self._pending.remove(transfer)
        if transfer.is_in:
            self.bytes_in += transfer.actual
        else:
            self.bytes_out += transfer.actual
        if self.node is not None and self.node.device is not None:
            self.node.device.wake()

    def in_flight(self) -> int:
        """Bytes of transfers that are not over."""
        return sum(each.length for each in self._pending)

    def wait(self, transfer: Transfer) -> int:
        """Let time pass until a transfer is over. Returns its status."""
        process = self.process
        while not transfer.over:
            self.pass_time(transfer.deadline)
        if self.process != process:
            raise Killed
        assert transfer.status is not None
        return transfer.status

    def pass_time(self, limit: float) -> None:
        """One step of simulated time, at most up to `limit`; transfers beyond their deadline are taken back."""
        clock = self.scheduler.clock
        deadline = min([limit, *(each.deadline for each in self._pending)])
        due = min(self.scheduler.next_due(), deadline)
        if due == float("inf"):
            raise AssertionError("a USB transfer without time limit waits for something that never happens")
        clock.sleep(due - clock.now())
        now = clock.now()
        for transfer in list(self._pending):
            if transfer.deadline <= now:
                transfer.finish(TIMED_OUT)

    def run(self, transfer: Transfer, timeout: float) -> int:
        """Submit and wait."""
        return self.wait(self.submit(transfer, timeout))

    def _apply(self, fault: TransferFault, transfer: Transfer) -> None:
        log.info("planned fault: %s in USB transfer %d", fault.kind, self.chip.faults.transfers)
        count = None if fault.argument is None else int(fault.argument)
        match fault.kind:
            case "disconnect":
                self.detach()
                if fault.argument is not None:
                    self.attach_later(fault.argument, self.chip.usb)
            case "bus-reset":
                self.detach()
                self.attach_later(RESET_TIME, self.chip.usb)
            case "stall":
                if transfer.setup is None and self.node is not None and self.node.device is not None:
                    self.node.device.halted.add(transfer.endpoint)
                transfer.finish(STALL)
            case "timeout":
                transfer.lost = True
            case "short":
                transfer.limit = transfer.length // 2 if count is None else count
            case "overflow":
                transfer.finish(OVERFLOW if transfer.is_in else ERROR)
            case "error":
                transfer.finish(ERROR)
            case "wedge":
                self.chip.wedge("as planned")
            case "kill":
                if not count:
                    self.kill()
                    raise Killed
                transfer.limit, transfer.killer = count, True

    # --- the kernel ---

    def kernel_control(self, node: Node, recipient: int, request: int, value: int, index: int) -> int:
        """A request that the kernel makes on behalf of somebody. Returns the transfer's status."""
        if not node.present:
            return NO_DEVICE
        return self.run(Transfer(self, 0, b"", 0, Setup(recipient, request, value, index, 0)), KERNEL_TIMEOUT)

    def set_configuration(self, node: Node, value: int) -> int:
        return self.kernel_control(node, TO_DEVICE, Standard.SET_CONFIGURATION, value, 0)

    def set_interface(self, node: Node, alternate: int) -> int:
        return self.kernel_control(node, TO_INTERFACE, Standard.SET_INTERFACE, alternate, 0)

    def clear_halt(self, node: Node, endpoint: int) -> int:
        return self.kernel_control(node, TO_ENDPOINT, Standard.CLEAR_FEATURE, FEATURE_HALT, endpoint)

    def reset_port(self, node: Node) -> bool:
        """Reset the port. The device keeps address, configuration and setting. False when it does not come back."""
        self.scheduler.clock.sleep(RESET_TIME)
        if not node.present or node.device is None:
            return False
        for transfer in list(self._pending):
            transfer.finish(CANCELLED)
        if self.chip.wedged:
            self.detach()
            return False
        alternate = node.device.alternate
        node.device.bus_reset()
        node.device.set_configuration(1)
        if alternate:
            node.device.set_interface(alternate)
        return True

    def release(self, handle: Handle) -> None:
        """An interface is given back."""
        node = handle.node
        if node.claimed_by is not handle:
            return
        node.claimed_by = None
        handle.streams.clear()
        if node.present and node.device is not None and node.device.alternate and not self.chip.wedged:
            node.device.set_interface(0)

    def close(self, handle: Handle) -> None:
        if handle.closed:
            return
        handle.closed = True
        for transfer in list(self._pending):
            transfer.finish(CANCELLED)
        self.release(handle)
        if handle in self.handles:
            self.handles.remove(handle)

    def kill(self) -> None:
        """The process dies: the kernel takes back what it had in flight and closes its handles."""
        self.process += 1
        for handle in list(self.handles):
            self.close(handle)


def _root_hub(bus: int, speed: int) -> Node:
    hub = descriptors.Alternate((0x09, 0x00, 0x00), ())
    version, product = (0x0200, 0x0002) if speed == HIGH else (0x0300, 0x0003)
    about = Descriptors(0x1D6B, product, 0x0601, ("Linux", "xHCI Host Controller", "0000:00:14.0"), (1, 2, 3), (hub,), speed, version)
    return Node(bus, 1, (), about, None, None)
