"""The bridge's own flash: through registers, through stock and ROM commands, through the boot stub; and what runs afterwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import usb.util

from hw.errors import NotModelled
from mocks.asm24 import images
from tests.mocks.asm24.bench import Bench
from tests.mocks.asm24.test_stock import BulkOnly
from tests.mocks.asm24.test_usb import fails

PIPE, TIMED_OUT = 32, 110
BUFFER = 0x7000
WREN, WRSR, RDSR, READ, PROGRAM, ERASE, ID = 0x06, 0x01, 0x05, 0x03, 0x02, 0x20, 0x9F


class Registers:
    """The flash controller by hand, as the open firmware's users reach it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.poke(0xCC33, 0x04)
        bench.poke(0xCA81, 0x01)
        bench.poke(0xC805, 0x02)
        bench.poke(0xC8A6, 0x04)

    def run(self, opcode: int, size: int = 0, address: int | None = None, *, to_flash: bool = False) -> None:
        bench = self.bench
        bench.poke(0xC8AD, int(to_flash))
        bench.poke(0xC8AE, 0, 0)
        bench.poke(0xC8AA, opcode)
        bench.poke(0xC8AC, 0x04 if address is None else 0x07)
        if address is not None:
            bench.poke(0xC8A1, address & 0xFF, address >> 8 & 0xFF)
            bench.poke(0xC8AB, address >> 16)
        bench.poke(0xC8A3, size >> 8, size & 0xFF)
        bench.poke(0xC8A9, 1)
        while bench.xdata(0xC8A9)[0] & 1:
            bench.clock.sleep(1e-4)

    def status(self) -> int:
        self.run(RDSR, 1)
        return self.bench.xdata(BUFFER)[0]

    def wait(self) -> None:
        for _ in range(1000):
            if not self.status() & 1:
                return
            self.bench.clock.sleep(1e-3)
        raise AssertionError("the flash stays busy")

    def unprotect(self) -> int:
        self.run(WREN)
        self.bench.poke(BUFFER, 0)
        self.run(WRSR, 1, to_flash=True)
        self.wait()
        return self.status() & 0x1C

    def erase(self, address: int) -> None:
        self.run(WREN)
        self.run(ERASE, 0, address)
        self.wait()

    def program(self, address: int, data: bytes) -> None:
        self.bench.poke(BUFFER, *data)
        self.run(WREN)
        self.run(PROGRAM, len(data), address, to_flash=True)
        self.wait()

    def read(self, address: int, size: int) -> bytes:
        self.run(READ, 0x1000, address)
        return b"".join(self.bench.xdata(BUFFER + at, min(64, size - at)) for at in range(0, size, 64))


def registers(faults: str = "") -> Registers:
    bench = Bench(faults=faults)
    bench.bridge.controller._stale_first = 0.0
    return Registers(bench)


# --- register by register ---


def test_id_and_content() -> None:
    chip = registers()
    chip.run(ID, 3)
    assert chip.bench.xdata(BUFFER, 3) == bytes([0xEF, 0x40, 0x14])
    assert chip.read(0, 0x100) == chip.bench.bridge.flash.read(0, 0x100)


def test_protection_must_be_lifted_first() -> None:
    chip = registers()
    assert chip.status() & 0x1C == 0x1C
    chip.program(0x80000, b"\x00")
    assert chip.bench.bridge.flash.read(0x80000, 1) == b"\xff"
    assert chip.unprotect() == 0
    chip.program(0x80000, b"\x5a\xa5")
    assert chip.bench.bridge.flash.read(0x80000, 2) == b"\x5a\xa5"


def test_programming_clears_bits_and_erasing_sets_them() -> None:
    chip = registers()
    chip.unprotect()
    chip.program(0x80010, b"\xf0\x0f")
    chip.program(0x80010, b"\x3c\x3c")
    assert chip.read(0x80010, 2) == b"\x30\x0c"
    chip.erase(0x80000)
    assert chip.read(0x80000, 0x40) == b"\xff" * 0x40


def test_changes_need_write_enable_and_the_controller_needs_its_enable_bit() -> None:
    chip = registers()
    chip.unprotect()
    chip.bench.poke(BUFFER, 0)
    chip.run(PROGRAM, 1, 0x80000, to_flash=True)
    assert chip.read(0x80000, 1) == b"\xff"
    chip.bench.poke(0xCA81, 0x00)
    chip.bench.poke(BUFFER, 0x77)
    chip.run(ID, 3)
    assert chip.bench.xdata(BUFFER) == b"\x77"


def test_only_half_a_page_survives_in_the_buffer() -> None:
    chip = registers()
    chip.unprotect()
    chip.program(0x80000, b"\x11" * 256)
    found = chip.bench.bridge.flash.read(0x80000, 256)
    assert found[:128] == b"\x11" * 128
    assert found[128:] != b"\x11" * 128


def test_short_reads_leave_the_end_of_the_buffer_as_it_was() -> None:
    chip = registers()
    chip.bench.poke(BUFFER, *[0xEE] * 64)
    chip.run(READ, 64, 0)
    assert chip.bench.xdata(BUFFER, 64) == chip.bench.bridge.flash.read(0, 32) + b"\xee" * 32


def test_first_byte_is_stale_now_and_then() -> None:
    chip = registers()
    chip.bench.bridge.controller._stale_first = 0.5
    seen = set()
    for _ in range(20):
        chip.bench.poke(BUFFER, 0x33)
        chip.run(READ, 0x1000, 0x76)
        seen.add(chip.bench.xdata(BUFFER))
    assert seen == {b"\x33", chip.bench.bridge.flash.read(0x76, 1)}


def test_bulk_packet_received_by_hand_lands_in_the_buffer_but_only_64_bytes_of_it_at_usb_2() -> None:
    for profile, kept in (("navi31-asm24", 128), ("asm24-usb2", 64)):
        bench = Bench(profile)
        bench.bridge.xdata.load(BUFFER, bytes(128))
        bench.poke(0x9094, 0x10)
        assert bench.device.write(0x02, b"\x99" * 128) == 128
        assert bench.xdata(0x910D, 2) == b"\x00\x80"
        assert bench.bridge.xdata.read_block(BUFFER, 128) == b"\x99" * kept + bytes(128 - kept)
        assert fails(bench.device.write, 0x02, bytes(4), 50) == TIMED_OUT


def test_planned_faults_of_the_flash() -> None:
    assert registers("bridge-flash-protected").unprotect() == 0x1C
    worn = registers("flash-worn@asm24=0x80001")
    worn.unprotect()
    worn.program(0x80000, b"\x10\x10\x10")
    assert worn.read(0x80000, 3) == b"\x10\x11\x10"
    stuck = registers("flash-stuck-busy@asm24")
    stuck.unprotect()
    with pytest.raises(AssertionError, match="stays busy"):
        stuck.erase(0x80000)


def test_serial_number_is_ffffffff_with_a_blank_otp_area() -> None:
    bench = Bench()
    bench.bridge.flash._otp = b"\xff" * 256
    assert bench.bridge.flash.serial() == "ffffffff"


# --- images ---


def test_recorded_config_blocks_have_the_published_sums() -> None:
    block = images.config_block(0, (0xADD1, 1, 1), serial="x", manufacturer="y", t10_vendor="z", product="p", t10_product="q")
    assert images.config_valid(block, 0)
    assert not images.config_valid(block[:-1] + bytes([block[-1] ^ 1]), 0)
    assert not images.config_valid(block, 1)
    assert (block[0x74:0x7A], block[0x7E]) == (bytes.fromhex("d1ad01000100"), 0x5A)


@pytest.mark.parametrize("broken", [3, 100, -1, -5, -6])
def test_damaged_images_are_not_started(broken: int) -> None:
    image = bytearray(images.wrap(bytes(1000)))
    assert images.unwrap(bytes(image)) == bytes(1000)
    image[broken] ^= 0x01
    assert images.unwrap(bytes(image)) is None


def test_stock_image_has_the_size_of_the_published_one() -> None:
    assert len(images.made_up("stock", "", 0)) == 98006
    assert len(images.wrap(images.made_up("stock", "", 0))) == 98016


# --- stock firmware and ROM ---


def in_rom() -> BulkOnly:
    bench = Bench("asm24-rom", open_it=False)
    bench.open()
    return BulkOnly(bench)


def flash_by_scsi(pipe: BulkOnly, image: bytes) -> None:
    for number in range(2):
        pipe.write(bytes([0xE1, 0x50, number]) + bytes(12), pipe.bench.bridge.flash.read(0x80 * number, 0x80) if number else BLOCK)
    pipe.write(bytes([0xE3, 0x50]) + min(len(image), 0xFF00).to_bytes(4, "big"), image[:0xFF00])
    if image[0xFF00:]:
        pipe.write(bytes([0xE3, 0xD0]) + (len(image) - 0xFF00).to_bytes(4, "big"), image[0xFF00:])


BLOCK = images.config_block(0, (0xADD1, 1, 1), serial="S", manufacturer="tiny", t10_vendor="tiny", product="USB 3.2 PCIe TinyEnclosure", t10_product="Enclosure")
COMMIT = bytes([0xE8, 0x51]) + bytes(13)


def test_rom_loader_is_bulk_only_and_knows_flash_commands_alone() -> None:
    pipe = in_rom()
    device = pipe.bench.device
    assert (device.idVendor, device.idProduct, device.product, device.manufacturer) == (0x174C, 0x2463, "AS2462", "ASMedia")
    assert device[0].wTotalLength == 44
    assert len(bytes(device.ctrl_transfer(0x80, 6, 0x0F00, 0, 255))) == 42
    assert pipe.read(bytes([0xE0, 0x50, 0]) + bytes(12), 128) == b"\xff" * 128
    pipe.send(bytes([0xE4, 1, 0x50, 0x07, 0xF0, 0]), 1, to_host=True)
    assert fails(device.read, 0x81, 1) == PIPE
    device.clear_halt(0x81)
    assert pipe.status() == (1, 1)


def test_rom_loader_needs_a_port_reset_after_the_kernel_s_driver() -> None:
    bench = Bench("asm24-rom", open_it=False)
    device = bench.find()
    device.detach_kernel_driver(0)
    device.set_configuration(1)
    usb.util.claim_interface(device, 0)
    assert fails(device.write, 0x02, bytes(31), 100) == TIMED_OUT
    device.reset()
    usb.util.claim_interface(device, 0)
    bench.device = device
    assert BulkOnly(bench).read(bytes([0x12, 0, 0, 0, 36, 0]), 36)[8:12] == b"ASMT"


def test_flashing_stock_firmware_from_rom() -> None:
    pipe = in_rom()
    image = images.wrap(images.made_up("stock", "", 7))
    before = pipe.bench.clock.now()
    flash_by_scsi(pipe, image)
    pipe.write(COMMIT)
    assert 1.0 < pipe.bench.clock.now() - before < 10.0
    assert pipe.read(bytes([0xE2, 0x50]) + (0x2000).to_bytes(4, "big"), 0x2000) == pipe.bench.bridge.flash.read(0, 0x2000)
    assert pipe.bench.bridge.flash.read(0x100, len(image)) == image
    assert pipe.bench.find().product == "AS2462", "it runs after the next power cycle"
    pipe.bench.bridge.power_cycle()
    pipe.bench.clock.sleep(1.0)
    device = pipe.bench.open()
    assert (device.idVendor, device.product) == (0xADD1, "USB 3.2 PCIe TinyEnclosure")
    assert BulkOnly(pipe.bench).read(bytes([0xE4, 6, 0x50, 0x07, 0xF0, 0]), 6).hex() == "240417850000"


def test_flashing_older_open_firmware_over_stock() -> None:
    bench = Bench("navi31-asm24-stock")
    pipe = BulkOnly(bench)
    flash_by_scsi(pipe, images.wrap(images.made_up("custom", "custom v0.2", 1)))
    pipe.write(COMMIT)
    bench.bridge.power_cycle()
    bench.clock.sleep(1.0)
    assert bench.open().product == "custom v0.2"


def test_interrupted_flashing_leaves_the_rom_loader() -> None:
    bench = Bench("navi31-asm24-stock")
    pipe = BulkOnly(bench)
    image = images.wrap(images.made_up("stock", "", 9))
    pipe.send(bytes([0xE3, 0x50]) + (0xFF00).to_bytes(4, "big"), 0xFF00)
    bench.device.write(0x02, image[:0x8000], 5000)
    bench.backend.kill()
    bench.bridge.power_cycle()
    bench.clock.sleep(1.0)
    assert bench.bridge.usb.firmware.name == "rom"
    assert bench.bridge.flash.read(0x1000, 16) == image[0xF00:0xF10], "half of the new image is there"


def test_commit_refuses_an_image_that_is_not_whole() -> None:
    pipe = in_rom()
    flash_by_scsi(pipe, images.wrap(bytes(2000))[:-1] + b"\0")
    pipe.send(COMMIT)
    assert pipe.status() == (0, 1)


@pytest.mark.parametrize("faults", ["bridge-flash-protected", "flash-worn@asm24=0x3000"])
def test_flash_command_fails_when_the_chip_does_not_take_it(faults: str) -> None:
    bench = Bench("navi31-asm24-stock", faults)
    pipe = BulkOnly(bench)
    image = images.wrap(images.made_up("stock", "", 9))
    pipe.send(bytes([0xE3, 0x50]) + (0xFF00).to_bytes(4, "big"), 0xFF00)
    bench.device.write(0x02, image[:0xFF00], 20000)
    assert pipe.status()[1] == 1


def test_a_body_nobody_knows_cannot_be_run() -> None:
    bench = Bench("asm24-rom", open_it=False)
    bench.bridge.flash.rewrite(0x100, images.wrap(random.Random(1).randbytes(5000)))
    bench.clock.sleep(10.0)
    with pytest.raises(NotModelled, match="5000 bytes"):
        bench.bridge.power_cycle()


# --- boot stub ---


def in_dfu() -> Bench:
    bench = Bench()
    bench.device.ctrl_transfer(0x40, 0xEC, 0, 0, None)
    bench.clock.sleep(1.0)
    bench.device = bench.find()
    return bench


def dfu_write(bench: Bench, address: int, data: bytes) -> None:
    bench.device.ctrl_transfer(0x40, 0xB1, address & 0xFFFF, address >> 16, None)
    for at in range(0, len(data), 64):
        bench.device.ctrl_transfer(0x40, 0xB2, 0, 0, data[at : at + 64])


def test_boot_stub_on_request() -> None:
    bench = in_dfu()
    device = bench.device
    assert (device.idVendor, device.idProduct, device.bcdUSB, device.bMaxPacketSize0, device.iProduct, device.speed) == (0x3801, 0xB007, 0x0200, 64, 0, 3)
    assert device[0].wTotalLength == 18
    info = bytes(device.ctrl_transfer(0xC0, 0xB4, 0, 0, 17))
    assert info == b"A24D" + bytes.fromhex("4000 0010 00400000 40100100 01")
    assert fails(device.ctrl_transfer, 0xC0, 0xB4, 0, 0, 20) == PIPE
    device.ctrl_transfer(0x40, 0xEB, 0, 0, None)
    bench.clock.sleep(1.0)
    assert bench.find().product == "custom 1f2e3d4c-CLEAN"


@pytest.mark.parametrize(("address", "size"), [(0x3000, 0x1000), (0x4100, 0x1000), (0x4000, 0x800), (0x11000, 0x2000), (0x4000, 0)])
def test_boot_stub_erases_only_whole_sectors_of_its_area(address: int, size: int) -> None:
    bench = in_dfu()
    before = bench.bridge.flash.read(0, 0x13000)
    assert fails(bench.device.ctrl_transfer, 0x40, 0xB0, 0, 0, address.to_bytes(4, "little") + size.to_bytes(4, "little"), 5000) == PIPE
    assert bench.bridge.flash.read(0, 0x13000) == before


def test_boot_stub_writes_and_reads_at_its_cursor() -> None:
    bench = in_dfu()
    bench.device.ctrl_transfer(0x40, 0xB0, 0, 0, (0x11000).to_bytes(4, "little") + (0x1000).to_bytes(4, "little"), 5000)
    dfu_write(bench, 0x11000, bytes(range(100)))
    bench.device.ctrl_transfer(0x40, 0xB1, 0x1000, 0x01, None)
    assert bytes(bench.device.ctrl_transfer(0xC0, 0xB3, 0, 0, 64)) == bytes(range(64))
    assert bytes(bench.device.ctrl_transfer(0xC0, 0xB3, 0, 0, 36)) == bytes(range(64, 100))
    assert fails(bench.device.ctrl_transfer, 0x40, 0xB2, 0, 0, bytes(65)) == PIPE
    bench.device.ctrl_transfer(0x40, 0xB1, 0x2000, 0x01, None)
    assert fails(bench.device.ctrl_transfer, 0xC0, 0xB3, 0, 0, 1) == PIPE


def test_new_application_through_the_boot_stub() -> None:
    bench = in_dfu()
    whole = images.application(images.made_up("custom", "custom 00c0ffee-CLEAN", 3))
    bench.device.ctrl_transfer(0x40, 0xB0, 0, 0, (0x4000).to_bytes(4, "little") + (0xA000).to_bytes(4, "little"), 5000)
    dfu_write(bench, 0x4040, whole[0x40:])
    dfu_write(bench, 0x4004, whole[4:0x40])
    bench.device.ctrl_transfer(0x40, 0xEB, 0, 0, None)
    bench.clock.sleep(1.0)
    bench.device = bench.find()
    assert bench.device.idProduct == 0xB007, "without its magic the application does not start"
    dfu_write(bench, 0x4000, whole[:4])
    bench.device.ctrl_transfer(0x40, 0xEB, 0, 0, None)
    bench.clock.sleep(1.0)
    assert bench.find().product == "custom 00c0ffee-CLEAN"


def test_older_firmware_has_no_boot_stub() -> None:
    bench = Bench("navi31-asm24-add1")
    assert bench.device.ctrl_transfer(0x40, 0xEC, 0, 0, None) == 0
    bench.clock.sleep(1.0)
    assert bench.xdata(0xB450) == b"\x78"


# --- lasting state ---


def test_flash_outlives_the_process(tmp_path: Path) -> None:
    first = Bench("navi31-asm24", state_dir=tmp_path)
    first.bridge.flash.rewrite(0x80000, b"still here")
    second = Bench("navi31-asm24", state_dir=tmp_path)
    assert second.bridge.flash.read(0x80000, 10) == b"still here"
    assert second.device.product == "custom 1f2e3d4c-CLEAN"
