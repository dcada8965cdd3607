"""flashrom (Debian, 1.3) as judge of the simulated chip and of the serprog server: it identifies, reads, writes and verifies, and it meets
write protection. The server stands in front of a card's ROM_SW engine, as `tghw flash serprog` puts it there."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firmware.serprog import Programmer, Server
from firmware.spi.chips import Chip, chips
from firmware.spi.flash import SpiFlash
from mocks.amd import ifwi
from mocks.spi_model import ChipModel
from tests.firmware.spi.card import FlashCard
from tests.firmware.spi.support import Wire, make_chip

pytestmark = pytest.mark.skipif(shutil.which("flashrom") is None and not Path("/usr/sbin/flashrom").exists(), reason="flashrom is not installed (Debian: flashrom)")

FLASHROM = shutil.which("flashrom") or "/usr/sbin/flashrom"
LIMIT = 240
"""seconds for one run"""
SIZE = 0x200000
IMAGE = hashlib.shake_256(b"any file of two mebibytes").digest(SIZE)
FAST = {"program_time": 20e-6, "erase_times": {"0x1000": 1e-3, "0x8000": 2e-3, "0x10000": 3e-3}, "status_time": 1e-3}
"""times (s) that keep flashrom from waiting long; it waits in real time"""


def fast_card(status: tuple[int, int, int] = (0, 0, 0), **more: Any) -> FlashCard:
    chip = {"name": "GD25LQ16", "jedec": [0xC8, 0x60, 0x15], "rems": [0xC8, 0x14], "size": SIZE, "status": list(status), **FAST}
    return FlashCard("navi31-corrupt-flash", chip=chip, **more)


@contextmanager
def served(flash: SpiFlash, *, may_write: bool = True) -> Iterator[tuple[str, list[str]]]:
    """A server for one client; the programmer's name for flashrom, and what the server's console says."""
    said: list[str] = []
    server = Server(Programmer(flash, may_write=may_write, report=said.append), port=0)
    thread = threading.Thread(target=server.serve_one)
    thread.start()
    try:
        yield f"serprog:ip={server.address[0]}:{server.address[1]}", said
    finally:
        thread.join(LIMIT)
        server.close()
        assert not thread.is_alive()


def flashrom(programmer: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FLASHROM, "-p", programmer, *arguments], capture_output=True, text=True, timeout=LIMIT)


def write_part(programmer: str, folder: Path, image: bytes) -> subprocess.CompletedProcess[str]:
    """Have flashrom write 0x100000 to 0x101fff of an image, and look at nothing else."""
    (folder / "image.bin").write_bytes(image)
    (folder / "layout").write_text("00100000:00101fff part\n")
    return flashrom(programmer, "-c", "GD25LQ16", "-w", str(folder / "image.bin"), "-l", str(folder / "layout"), "-i", "part", "-N")


def on(card: FlashCard) -> SpiFlash:
    return SpiFlash.open(card.port.engine)


def test_the_chip_is_identified() -> None:
    card = fast_card()
    before = card.registers()
    with served(on(card)) as (programmer, _):
        done = flashrom(programmer)
    assert 'Found GigaDevice flash chip "GD25LQ16" (2048 kB, SPI) on serprog.' in done.stdout
    assert card.registers() == before, "after the client has left the registers are as before"


def test_a_rotated_capture_is_identified_too() -> None:
    card = fast_card(id_rotation=2)
    with served(on(card)) as (programmer, _):
        assert 'flash chip "GD25LQ16"' in flashrom(programmer).stdout


def test_the_chip_is_read(tmp_path: Path) -> None:
    card = fast_card()
    with served(on(card), may_write=False) as (programmer, said):
        done = flashrom(programmer, "-c", "GD25LQ16", "-r", str(tmp_path / "read.bin"))
    assert (done.returncode, said) == (0, [])
    assert (tmp_path / "read.bin").read_bytes() == card.content == ifwi.broken("block 4 byte")


def test_an_image_is_written_and_verified(tmp_path: Path) -> None:
    """Only a part differs, so that it does not take long; the rest is compared."""
    card = fast_card()
    image = card.content[:0x1E0000] + IMAGE[0x1E0000:]
    (tmp_path / "image.bin").write_bytes(image)
    with served(on(card)) as (programmer, said):
        done = flashrom(programmer, "-c", "GD25LQ16", "-w", str(tmp_path / "image.bin"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERIFIED" in done.stdout
    assert said == []
    assert card.content == image


@pytest.mark.slow
def test_any_file_of_the_flashs_size_survives_a_whole_write_and_verify(tmp_path: Path) -> None:
    card = fast_card()
    (tmp_path / "image.bin").write_bytes(IMAGE)
    flash = on(card)
    with served(flash) as (programmer, _):
        assert flashrom(programmer, "-c", "GD25LQ16", "-w", str(tmp_path / "image.bin")).returncode == 0
    assert card.content == IMAGE
    with served(flash) as (programmer, _):
        done = flashrom(programmer, "-c", "GD25LQ16", "-v", str(tmp_path / "image.bin"))
    assert "VERIFIED" in done.stdout


def test_a_file_that_differs_fails_to_verify(tmp_path: Path) -> None:
    card = fast_card()
    (tmp_path / "image.bin").write_bytes(b"\0" + card.content[1:])
    with served(on(card), may_write=False) as (programmer, _):
        done = flashrom(programmer, "-c", "GD25LQ16", "-v", str(tmp_path / "image.bin"))
    assert done.returncode == 3


def test_with_cmp_set_flashrom_fails_and_nothing_reaches_the_chip(tmp_path: Path) -> None:
    card = fast_card(status=(0, 0x40, 0))
    before = card.content
    with served(on(card)) as (programmer, said):
        done = write_part(programmer, tmp_path, before[:0x100000] + bytes(0x1000) + before[0x101000:])
    assert done.returncode != 0
    assert card.content == before
    assert said, "the console says what was refused"
    assert all("CMP = 1" in each for each in said)
    assert not {0x20, 0x52, 0xD8, 0x60, 0xC7, 0x02} & set(card.chip.commands)


def test_block_protection_that_flashrom_knows_is_cleared_by_it(tmp_path: Path) -> None:
    card = fast_card(status=(0x1C, 0, 0))
    image = card.content[:0x100000] + bytes(0x1000) + card.content[0x101000:]
    with served(on(card)) as (programmer, said):
        done = write_part(programmer, tmp_path, image)
    assert done.returncode == 0, done.stdout + done.stderr
    assert card.content == image
    assert said == []


def test_without_consent_flashrom_cannot_write(tmp_path: Path) -> None:
    card = fast_card()
    before = card.content
    with served(on(card), may_write=False) as (programmer, said):
        done = write_part(programmer, tmp_path, before[:0x100000] + bytes(0x1000) + before[0x101000:])
    assert done.returncode != 0
    assert card.content == before
    assert said == ["refused: the client wants to change the flash, and writing was not allowed (--yes)"]


QUICK = ("GD25LQ16", "W25Q32", "MX25U1635E")
NOT_IN_FLASHROM = ("MX25R8035F", "MX25R1635F")
"""rows whose id flashrom 1.3 does not know"""


@pytest.mark.parametrize("chip", [pytest.param(chip, id=chip.name, marks=[] if chip.name in QUICK else pytest.mark.slow) for chip in chips().values()])
def test_flashrom_knows_every_chip_of_the_table_by_the_same_id_and_size(chip: Chip) -> None:
    flash = SpiFlash.open(Wire(make_chip(ChipModel(chip.name, chip.jedec, chip.size))))
    with served(flash, may_write=False) as (programmer, _):
        done = flashrom(programmer)
    found = [line for line in done.stdout.splitlines() if line.startswith(f"Found {chip.vendor} flash chip")]
    assert any(f"({chip.size // 1024} kB, SPI)" in line for line in found) == (chip.name not in NOT_IN_FLASHROM), done.stdout
