"""The simulated PSP, handed its firmware by hand."""

from __future__ import annotations

import pytest

from drivers.amd.layouts.psp import BootLoaderCommand, Command
from firmware.amd_layouts import SosPart
from hw.errors import NotModelled
from tests.mocks.amd.card import BOOT_COMPONENTS, COMMAND_BUFFER, FENCE, MESSAGE, READY, RING, RING_BYTES, TMR, TMR_BYTES, Card, NeverHappened

KDB = BootLoaderCommand.LOAD_KEY_DATABASE
SPL = BootLoaderCommand.LOAD_TOS_SPL_TABLE
SYS = BootLoaderCommand.LOAD_SYS_DRV
SOS = BootLoaderCommand.LOAD_SOS

BAD_IMAGE = 0xF
BAD_ORDER = 0xD
TEE_BAD_FORMAT = 0xFFFF0005
TEE_BAD_PARAMETERS = 0xFFFF0006
TEE_BAD_STATE = 0xFFFF0007
TEE_NOT_SUPPORTED = 0xFFFF000A
TEE_SECURITY = 0xFFFF000F


@pytest.fixture
def card() -> Card:
    made = Card()
    made.open_hub()
    return made


@pytest.fixture
def ringed() -> Card:
    made = Card()
    made.boot_to_ring()
    return made


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


# --- boot loader ---


def test_boot_loader_is_ready_after_post_and_reports_its_version() -> None:
    card = Card("navi31-hotplug")
    assert (card.c2p(33), card.c2p(35), card.c2p(81)) == (0, 0, 0)
    took = card.wait(lambda: bool(card.c2p(33) & READY), "boot firmware")
    assert 0.079 < took < 0.081
    assert (card.c2p(35), card.c2p(59), card.c2p(64)) == (READY, 0x00310014, 0)


def test_components_in_order_start_the_sos(card: Card) -> None:
    start = card.clock.now()
    card.load_sos()
    assert card.c2p(81) == 0x0DF40B31
    assert card.c2p(64) == READY
    assert card.c2p(58) == 0x0031003A
    assert card.gpu.psp.components == [command for command, _ in BOOT_COMPONENTS]
    assert 0.050 + 8 * 0.002 < card.clock.now() - start < 0.050 + 8 * 0.009


def test_a_component_takes_time_and_the_mailbox_reads_0_meanwhile(card: Card) -> None:
    card.hand_over(card.parts[SosPart.KDB])
    card.set_c2p(36, card.mc_base + MESSAGE >> 20)
    card.set_c2p(35, KDB)
    assert card.c2p(35) == 0
    assert 0.0019 < card.wait(lambda: bool(card.c2p(35) & READY), "done") < 0.0081
    assert card.c2p(35) == READY


def as_published(image: bytes) -> bytes:
    """An image with another key id: the simulated PSP can judge its structure only, as with the real files."""
    return image[:0x38] + b"some other key.." + image[0x48:]


def test_published_containers_of_navi31_have_four_parts_and_start() -> None:
    card = Card()
    card.open_hub()
    for command, part in ((KDB, SosPart.KDB), (SPL, SosPart.KDB), (SYS, SosPart.SYS_DRV), (SOS, SosPart.SOS)):
        assert card.load_component(command, as_published(card.parts[part])) == 0
    assert card.c2p(81) != 0


def test_the_fabricated_sos_needs_every_driver_of_its_container() -> None:
    card = Card()
    card.open_hub()
    for command, part in BOOT_COMPONENTS[:-2]:
        assert card.load_component(command, card.parts[part]) == 0
    with pytest.raises(NeverHappened):
        card.load_component(SOS, card.parts[SosPart.SOS])
    assert card.c2p(35) == READY | BAD_ORDER


def test_navi32_needs_all_drivers_before_the_sos() -> None:
    card = Card("navi32")
    card.open_hub()
    for command, part in ((KDB, SosPart.KDB), (SPL, SosPart.KDB), (SYS, SosPart.SYS_DRV)):
        assert card.load_component(command, as_published(card.parts[part])) == 0
    with pytest.raises(NeverHappened):
        card.load_component(SOS, as_published(card.parts[SosPart.SOS]))
    assert card.c2p(35) == READY | BAD_ORDER


@pytest.mark.parametrize(("command", "part"), [(SYS, SosPart.SYS_DRV), (SPL, SosPart.KDB), (BootLoaderCommand.LOAD_RAS_DRV, SosPart.RAS_DRV)], ids=["sys_drv", "spl", "ras_drv"])
def test_a_component_before_the_key_database_is_refused(card: Card, command: int, part: SosPart) -> None:
    assert card.load_component(command, card.parts[part]) == BAD_ORDER
    assert card.gpu.psp.components == []


def test_a_component_cannot_be_loaded_twice(card: Card) -> None:
    assert card.load_component(KDB, card.parts[SosPart.KDB]) == 0
    assert card.load_component(KDB, card.parts[SosPart.KDB]) == BAD_ORDER


def test_after_a_refusal_the_sos_never_starts(card: Card) -> None:
    assert card.load_component(SYS, card.parts[SosPart.SYS_DRV]) == BAD_ORDER
    for command, part in BOOT_COMPONENTS[:-1]:
        card.load_component(command, card.parts[part])
    with pytest.raises(NeverHappened, match="sign of life"):
        card.load_component(SOS, card.parts[SosPart.SOS])
    assert card.c2p(64) == 0


@pytest.mark.parametrize("at", [0x10, 0x14, 0x58, 0x6C, 0x200, -1], ids=["magic", "signed size", "image id", "total size", "content", "signature"])
def test_a_changed_bit_in_a_component_is_refused(card: Card, at: int) -> None:
    image = card.parts[SosPart.KDB]
    assert card.load_component(KDB, flipped(image, at % len(image))) == BAD_IMAGE


def test_the_wrong_component_is_refused(card: Card) -> None:
    assert card.load_component(KDB, card.parts[SosPart.SYS_DRV]) == BAD_IMAGE


def test_an_unknown_boot_loader_command_is_refused(card: Card) -> None:
    assert card.load_component(0x00990000, card.parts[SosPart.KDB]) == 0x100


def test_a_component_that_was_not_flushed_is_not_seen(card: Card) -> None:
    """Memory still holds noise where the host wrote through BAR0."""
    assert card.load_component(KDB, card.parts[SosPart.KDB], flush=False) == BAD_IMAGE


def test_an_address_outside_vram_hangs_the_boot_loader(card: Card) -> None:
    with pytest.raises(NeverHappened):
        card.load_component(KDB, card.parts[SosPart.KDB], address=0x90_0000_0000)
    assert card.c2p(35) == 0


def test_a_vram_offset_where_an_mc_address_is_due_hangs_the_boot_loader(card: Card) -> None:
    with pytest.raises(NeverHappened):
        card.load_component(KDB, card.parts[SosPart.KDB], address=MESSAGE)


def test_a_command_while_the_boot_loader_works_spoils_the_boot(card: Card) -> None:
    card.hand_over(card.parts[SosPart.KDB])
    card.set_c2p(36, card.mc_base + MESSAGE >> 20)
    card.set_c2p(35, KDB)
    card.set_c2p(35, KDB)
    for command, part in BOOT_COMPONENTS[1:-1]:
        card.load_component(command, card.parts[part])
    with pytest.raises(NeverHappened):
        card.load_component(SOS, card.parts[SosPart.SOS])


def test_the_boot_loader_is_gone_once_the_sos_runs(ringed: Card) -> None:
    ringed.set_c2p(35, KDB)
    ringed.clock.sleep(0.1)
    assert ringed.c2p(35) == KDB


# --- ring ---


def test_ring_creation_takes_a_millisecond_and_starts_empty(ringed: Card) -> None:
    ringed.set_c2p(64, 0x30000)
    ringed.clock.sleep(0.02)
    ringed.set_c2p(67, 0x40)
    for number, value in ((69, RING), (70, 0x80), (71, RING_BYTES), (64, 0x20000)):
        ringed.set_c2p(number, value)
    assert ringed.c2p(64) & READY == 0
    assert 0.0009 < ringed.wait(lambda: bool(ringed.c2p(64) & READY), "ring") < 0.0012
    assert (ringed.c2p(64), ringed.c2p(67)) == (READY, 0)


def test_destroying_the_ring_clears_its_registers(ringed: Card) -> None:
    assert ringed.load_toc() == 0
    ringed.set_c2p(64, 0x30000)
    ringed.clock.sleep(0.02)
    assert ringed.c2p(64) == READY
    assert [ringed.c2p(number) for number in (67, 69, 70, 71)] == [0, 0, 0, 0]
    with pytest.raises(NeverHappened):
        ringed.submit(Command.AUTOLOAD_RLC, within=0.1)


def test_a_second_ring_is_refused(ringed: Card) -> None:
    assert ringed.create_ring() == READY | 0x2


@pytest.mark.parametrize(
    ("address", "size"),
    [(0x80_0008_7004, 0x10000), (0x80_0008_7000, 0), (0x80_0008_7000, 0x1010), (0x0008_7000, 0x10000), (0x85_FEFF_F000, 0x10000)],
    ids=["unaligned", "no size", "odd size", "not an MC address", "beyond VRAM"],
)
def test_a_ring_that_cannot_be_is_refused(ringed: Card, address: int, size: int) -> None:
    ringed.set_c2p(64, 0x30000)
    ringed.clock.sleep(0.02)
    assert ringed.create_ring(address, size) == READY | 0x6


def test_an_unknown_control_command_gets_status_0x100(ringed: Card) -> None:
    for command in (0xF0000, 0x20004, 0x30001):
        ringed.set_c2p(64, command)
        ringed.clock.sleep(0.02)
        assert ringed.c2p(64) == READY | 0x100


def test_no_control_mailbox_before_the_sos(card: Card) -> None:
    with pytest.raises(NeverHappened, match="sOS ready"):
        card.create_ring()


# --- commands ---


def test_load_toc_answers_the_tmr_size_then_the_fence(ringed: Card) -> None:
    assert ringed.load_toc() == 0
    assert ringed.response().tmr_size == TMR_BYTES
    assert ringed.vram.read32(FENCE) == 1


def test_firmware_is_copied_into_the_tmr_one_image_behind_the_other() -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(72) == 0
    assert card.response().fw_addr_hi << 32 | card.response().fw_addr_lo == card.mc_base + TMR
    assert card.load_ip_fw(71) == 0
    offset = -(-len(card.images[72]) // 0x1000) * 0x1000
    assert card.response().fw_addr_hi << 32 | card.response().fw_addr_lo == card.mc_base + TMR + offset
    assert card.gpu.vram.read(TMR, len(card.images[72])) == card.images[72]
    assert card.gpu.vram.read(TMR + offset, len(card.images[71])) == card.images[71]
    assert card.gpu.psp.loaded_types == {18, 72, 71}


def test_a_larger_image_takes_longer() -> None:
    card = Card()
    card.boot_to_tmr()
    start = card.clock.now()
    card.load_ip_fw(89)
    assert 0.0002 + 0x41300 / 2**28 <= card.clock.now() - start < 0.0016


def test_boot_by_hand_reaches_running_graphics_firmware() -> None:
    card = Card()
    card.boot_to_autoload()
    assert card.read("GC", "RLC_RLCS_BOOTLOAD_STATUS") == 0x80000002
    assert card.gpu.hdp.missed_flushes == 0


@pytest.mark.parametrize("missing", [18, 72, 71, 89, 94, 68, 69, 26, 48, 8])
def test_autoload_is_refused_when_a_needed_image_is_missing(missing: int) -> None:
    card = Card()
    card.boot_to_ring()
    card.load_toc()
    card.setup_tmr()
    for kind in (18, 72, 71, 89, 94, 68, 69, 26, 48, 8):
        if kind != missing:
            assert card.load_ip_fw(kind) == 0
    assert card.submit(Command.AUTOLOAD_RLC) == TEE_BAD_STATE
    card.clock.sleep(0.5)
    assert card.read("GC", "CP_STAT") == 0x80000000
    assert card.read("GC", "RLC_RLCS_BOOTLOAD_STATUS") == 0


def test_rlc_p_and_rlc_v_are_not_needed_for_autoload() -> None:
    card = Card()
    card.boot_to_tmr()
    for kind in (72, 71, 89, 94, 68, 69, 26, 48, 8):
        assert card.load_ip_fw(kind) == 0
    assert card.submit(Command.AUTOLOAD_RLC) == 0


def test_an_unknown_command_gets_status_0x100(ringed: Card) -> None:
    assert ringed.submit(0x55) == 0x100


def test_a_known_command_without_a_model_says_so(ringed: Card) -> None:
    with pytest.raises(NotModelled, match="LOAD_ASD"):
        ringed.submit(Command.LOAD_ASD)


def test_partitioning_is_not_supported_on_this_chip(ringed: Card) -> None:
    assert ringed.submit(Command.SRIOV_SPATIAL_PART, (1).to_bytes(16, "little")) == TEE_NOT_SUPPORTED


def test_tmr_before_the_table_of_contents_is_refused(ringed: Card) -> None:
    assert ringed.setup_tmr() == TEE_BAD_STATE


def test_firmware_before_the_tmr_is_refused_except_the_smu(ringed: Card) -> None:
    ringed.load_toc()
    assert ringed.load_ip_fw(72) == TEE_BAD_STATE
    assert ringed.load_ip_fw(18) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"buf_size": TMR_BYTES - 0x1000},
        {"buf_phy_addr_lo": TMR + 0x1000, "system_phy_addr_lo": TMR + 0x1000},
        {"buf_phy_addr_hi": 0},
        {"buf_phy_addr_hi": 0x86},
        {"system_phy_addr_lo": TMR + 0x100000},
    ],
    ids=["too small", "unaligned", "not an MC address", "outside VRAM", "wrong physical address"],
)
def test_a_tmr_that_cannot_be_is_refused(ringed: Card, changes: dict[str, int]) -> None:
    ringed.load_toc()
    assert ringed.setup_tmr(**changes) == TEE_BAD_PARAMETERS
    assert ringed.load_ip_fw(72) == TEE_BAD_STATE


def test_a_second_tmr_is_refused() -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.setup_tmr() == TEE_BAD_STATE


@pytest.mark.parametrize("at", [0x10, 0x14, 0x58, 0x6C], ids=["magic", "signed size", "image id", "total size"])
def test_a_bad_image_header_is_refused(at: int) -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(72, flipped(card.images[72], at)) == BAD_IMAGE
    assert 72 not in card.gpu.psp.loaded_types


def test_a_changed_bit_in_the_content_breaks_the_signature() -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(72, flipped(card.images[72], 0x1234)) == TEE_SECURITY


def test_an_image_of_another_type_is_refused() -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(72, card.images[71]) == BAD_IMAGE


@pytest.mark.parametrize("kind", [4, 9, 10, 52, 53, 200], ids=str)
def test_a_type_of_another_generation_is_refused(kind: int) -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(kind, card.images[72]) == BAD_IMAGE


def test_a_size_shorter_than_the_image_is_refused() -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(72, size=len(card.images[72]) - 0x10) == BAD_IMAGE
    assert card.load_ip_fw(72, size=0) == BAD_IMAGE
    assert card.load_ip_fw(72, size=0x4000000) == BAD_IMAGE


@pytest.mark.parametrize("address", [MESSAGE, 0x80_0010_0040, 0x90_0000_0000], ids=["vram offset", "unaligned", "outside"])
def test_a_bad_buffer_address_is_refused(address: int) -> None:
    card = Card()
    card.boot_to_tmr()
    assert card.load_ip_fw(72, address=address) == TEE_BAD_PARAMETERS


def test_firmware_that_was_not_flushed_is_not_seen() -> None:
    """The ring frame is flushed with the command; the image, written after the last flush of its own, is what the PSP must not see."""
    card = Card()
    card.boot_to_tmr()
    card.hand_over(b"\0" * len(card.images[72]))
    image = card.images[72]
    pointer = card.c2p(67)
    assert card.load_ip_fw(72, image) == 0
    assert card.c2p(67) == pointer + 16
    card.vram.write(MESSAGE, card.images[71])  # and no flush
    assert card.gpu.mc_read(card.mc_base + MESSAGE, len(image)) == image


def test_a_command_that_was_not_flushed_is_never_answered(ringed: Card) -> None:
    with pytest.raises(NeverHappened):
        ringed.submit(Command.AUTOLOAD_RLC, flush=False, within=0.5)


def test_a_frame_with_another_vmid_or_an_unknown_buffer_version_is_refused(ringed: Card) -> None:
    assert ringed.submit(Command.AUTOLOAD_RLC, vmid=3) == TEE_BAD_PARAMETERS
    assert ringed.submit(Command.AUTOLOAD_RLC, version=7) == TEE_BAD_FORMAT
    assert ringed.submit(Command.AUTOLOAD_RLC, buffer_size=0x80) == TEE_BAD_PARAMETERS
    assert ringed.submit(0x55, version=0, buffer_size=0) == 0x100


def test_reserved_fields_have_to_be_zero(ringed: Card) -> None:
    assert ringed.submit(0x55) == 0x100
    frame = bytearray(ringed.vram.read(RING, 64))
    frame[40] = 1
    ringed.vram.write(RING + 64, bytes(frame))
    ringed.flush()
    ringed.set_c2p(67, 32)
    ringed.clock.sleep(0.01)
    assert ringed.gpu.psp.commands.history == [(0x55, 0x100), (0x55, TEE_BAD_FORMAT)]


@pytest.mark.parametrize("fence", [0, FENCE, 0x80_0008_6002, 0x90_0000_0000], ids=["null", "vram offset", "unaligned", "outside"])
def test_without_fence_memory_there_is_no_answer(ringed: Card, fence: int) -> None:
    with pytest.raises(NeverHappened):
        ringed.submit(0x55, fence=fence, within=0.5)


@pytest.mark.parametrize("buffer", [COMMAND_BUFFER, 0x80_0008_5002, 0x90_0000_0000], ids=["vram offset", "unaligned", "outside"])
def test_without_a_command_buffer_there_is_no_answer(ringed: Card, buffer: int) -> None:
    with pytest.raises(NeverHappened):
        ringed.submit(0x55, buffer=buffer, within=0.5)


def test_the_ring_wraps(ringed: Card) -> None:
    frames = RING_BYTES // 64
    for _ in range(frames - 1):
        assert ringed.submit(0x55) == 0x100
    assert ringed.c2p(67) == 4 * RING_BYTES // 16 - 16
    assert ringed.submit(0x55) == 0x100
    ringed.set_c2p(67, 0)
    assert ringed.submit(0x56) == 0x100
    assert ringed.gpu.psp.commands.history[-1] == (0x56, 0x100)


@pytest.mark.parametrize("pointer", [3, 0x4010], ids=["inside a frame", "beyond the ring"])
def test_a_write_pointer_that_cannot_be_stops_the_ring(ringed: Card, pointer: int) -> None:
    ringed.set_c2p(67, pointer)
    ringed.clock.sleep(0.1)
    ringed.set_c2p(67, 0)
    with pytest.raises(NeverHappened):
        ringed.submit(0x55, within=0.1)


def test_only_known_images_are_accepted_when_the_machine_was_told_which() -> None:
    card = Card()
    card.boot_to_tmr()
    card.gpu.psp.known_images = set()
    assert card.load_ip_fw(72) == TEE_SECURITY


# --- planned faults ---


def test_fault_never_ready() -> None:
    card = Card(faults="psp-never-ready")
    card.open_hub()
    with pytest.raises(NeverHappened, match="boot loader ready"):
        card.load_component(KDB, card.parts[SosPart.KDB])
    assert card.c2p(33) & READY


def test_fault_silent_sos() -> None:
    card = Card(faults="psp-sos-silent")
    card.open_hub()
    with pytest.raises(NeverHappened, match="sign of life"):
        card.load_sos()


def test_fault_command_error_hits_the_named_command_only() -> None:
    card = Card(faults="psp-command-error=0x5:0x1234")
    card.boot_to_ring()
    assert card.load_toc() == 0
    assert card.setup_tmr() == 0x1234
    assert card.load_ip_fw(18) == 0


def test_fault_silent_command() -> None:
    card = Card(faults="psp-command-silent=0x20")
    card.boot_to_ring()
    with pytest.raises(NeverHappened):
        card.load_toc()
