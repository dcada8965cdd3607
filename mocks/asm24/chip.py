"""One ASM2464PD: everything on the chip, its boot, its resets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mocks.asm24 import descriptors, images
from mocks.asm24.bootstub import firmware_for
from mocks.asm24.bulk import BulkEngine
from mocks.asm24.device import Firmware, Setup, UsbDevice
from mocks.asm24.fabric import Fabric
from mocks.asm24.faults import BridgeFaults
from mocks.asm24.flash import BridgeFlash, FlashController
from mocks.asm24.host import UsbHost
from mocks.asm24.link import Link
from mocks.asm24.sram import Sram
from mocks.asm24.tlp import TlpEngine
from mocks.asm24.xdata import Xdata

if TYPE_CHECKING:
    from mocks.machine import Machine

log = logging.getLogger(__name__)

SPEEDS = {480: descriptors.HIGH, 5000: descriptors.SUPER, 10000: descriptors.SUPER_PLUS}
LINK_SPEED = {descriptors.HIGH: 1, descriptors.SUPER: 2, descriptors.SUPER_PLUS: 3}
"""0x9100"""
RESTART_TIME = 0.32
"""s from a CPU reset until the device is on the bus again"""
BOOT_TIME = 0.5
"""s from power until the device is on the bus (I)"""


class Asm24:
    """The bridge. `entries` are the functions on its slot, as a profile lists them, outermost first."""

    def __init__(self, machine: Machine, profile: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        self.machine = machine
        self.profile = profile
        self.clock = machine.clock
        self.scheduler = machine.scheduler
        self.faults = BridgeFaults(machine.faults)
        self.sram = Sram(machine.seed)
        self.xdata = Xdata(self.sram)
        self.fabric = Fabric(machine, entries, lambda: self.link.is_up, self.sram)
        self.link = Link(self.xdata, self.scheduler, profile["link"], machine.faults, bool(entries))
        self.link.changed, self.link.on_reset = self._link_changed, self._slot_reset
        self.tlp = TlpEngine(self.xdata, self.fabric, self.clock, lambda: self.link.engine_runs, self.faults, profile["completion_timeout"])
        self.tlp.lose_link, self.tlp.note_misuse = self.link.drop, self.note_misuse
        self.bulk = BulkEngine(self.xdata, self.sram, self.scheduler, profile, machine.faults, profile["build"] == "newer", lambda: self.usb.wake())
        self.bulk.wire_rate = lambda: self.usb.wire_rate
        self.flash = BridgeFlash(machine, profile)
        self.controller = FlashController(self.xdata, self.flash, self.scheduler, profile["flash"]["stale_first"])
        self.misuse: list[str] = []
        """what hosts did that real hardware lets pass with wrong results: drivers' tests look whether it stayed empty"""
        self.console = bytearray()
        """what the firmware wrote to its UART"""
        self.wedged = False
        """the 8051 hangs in an interrupt handler: nothing that needs it goes on"""
        self.in_request = False
        """a control request is at work, so the 8051 has no time for anything else"""
        self._cpu_until = 0.0
        self._resetting_devices = False
        self.body = b""
        """the firmware in code RAM"""
        self.usb: UsbDevice
        self._hook_registers()
        self.host = UsbHost(self)

    def start(self) -> None:
        """Power comes, with the cable plugged in."""
        self._boot(load=True)
        self.host.attach(self.usb)

    # --- firmware ---

    def _boot(self, load: bool) -> None:
        if load:
            self.body = images.unwrap(self.flash.read(images.IMAGE_AT, images.LARGEST_IMAGE)) or b""
        self.wedged = self.in_request = False
        self._cpu_until = self.clock.now()
        self.bulk.reset()
        firmware = firmware_for(self)
        self.usb = UsbDevice(self, firmware, self._speed(firmware))
        firmware.boot()

    def _speed(self, firmware: Firmware) -> int:
        return min(SPEEDS[self.profile["usb"]["speed"]], firmware.fastest)

    def cpu_reset(self) -> None:
        """The 8051 and USB start again; code RAM and XDATA stay, the SPI flash is not read."""
        self.host.detach()
        self._boot(load=False)
        self.host.attach_later(RESTART_TIME, self.usb)

    def reenumerate(self) -> None:
        """USB alone drops off the bus and comes back."""
        self.host.detach()
        self.host.attach_later(RESTART_TIME, self.usb)

    def power_cycle(self) -> None:
        """The supply of the board goes and comes back: everything volatile is lost."""
        self.host.detach()
        self.flash.chip.power_cut()
        self.flash.chip.powered = True
        self.xdata.memory[:] = self.scheduler.random.randbytes(len(self.xdata.memory))
        self.xdata.reset_registers()
        self.tlp.reset()
        self.link.reset_registers()
        self.fabric.chip_reset()
        self._boot(load=True)
        self.host.attach_later(BOOT_TIME, self.usb)

    # --- the 8051's time ---

    def note_misuse(self, what: str) -> None:
        """A host did something that goes wrong without a sign."""
        self.misuse.append(what)
        log.info("misuse of the bridge: %s", what)

    def busy(self, seconds: float) -> None:
        """The 8051 is occupied for this long."""
        self._cpu_until = max(self._cpu_until, self.clock.now()) + seconds

    def cpu_wait(self) -> float:
        """s until the 8051 has time."""
        return self._cpu_until - self.clock.now()

    def wedge(self, why: str) -> None:
        """The 8051 never comes back from what it does. Only power helps."""
        log.warning("the bridge's processor hangs: %s", why)
        self.wedged = True

    # --- PCIe ---

    def _link_changed(self) -> None:
        if not self.link.is_up:
            self.fabric.fundamental_reset(False)
        else:
            self.fabric.retry_until = self.clock.now() + self.profile["link"]["retry_time"]
        self.machine.paths_changed()

    def _slot_reset(self, power_lost: bool) -> None:
        self.fabric.fundamental_reset(power_lost)
        self.machine.paths_changed()

    def paths_changed(self) -> None:
        """Something about a function changed. A device that resets itself takes the link with it for a while."""
        self.fabric.paths_changed()
        resetting = any(function.in_reset for function in self.fabric.behind)
        if resetting == self._resetting_devices:
            return
        self._resetting_devices = resetting
        if resetting:
            self.link.drop()
        else:
            self.link.retrain_later(self.profile["link"]["train_time"])

    # --- registers that belong to nobody else ---

    def _hook_registers(self) -> None:
        hook = self.xdata.hook
        hook("USB_STATUS", lambda _: 0x80, lambda *_: self.wedge("0x9000 was written, which stops USB"))
        hook("INT_MASK", lambda _: 0x80 | self.host.address)
        hook("USB_SPEED", lambda _: LINK_SPEED[self.usb.speed])
        hook("LINK_STATUS", lambda _: LINK_SPEED[self.usb.speed])
        hook("UART_THR", lambda _: 0, lambda _, value: self.console.append(value))
        hook("CHIP_MARK", lambda _: self.profile["chip_mark"])
        hook("CPU_RESET", lambda _: 0, lambda _, value: self._at_once(self.cpu_reset, value))
        hook("USB_POWER_CYCLE", lambda _: 0, lambda _, value: self._at_once(self.reenumerate, value))
        for index in range(4):
            hook(f"GPIO_IN{index}", lambda where: self._gpio_levels((where - 0xC650) * 8))

    def _at_once(self, action: Callable[[], None], value: int) -> None:
        """Bit 0 starts something that ends the running request, too."""
        if value & 1:
            action()

    def _gpio_levels(self, first: int) -> int:
        """Eight pins: driven ones show their level, inputs are pulled up."""
        levels = 0
        for bit in range(8):
            pin = first + bit
            driven_low = pin < 28 and self.xdata.memory[0xC620 + pin] & 0x1F == 0x02
            levels |= (not driven_low) << bit
        return levels

    def note_setup(self, setup: Setup) -> None:
        """The last SETUP packet stands in 0x9104 to 0x910B."""
        self.xdata.load(0x9104, setup.encode())
