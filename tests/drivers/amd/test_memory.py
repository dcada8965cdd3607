"""Buffers of a GPU: where they lie, what is given back, what is refused. The last part looks through the simulated GPU's own walker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from drivers.amd import bootmem, memory
from drivers.amd.memory import MemoryManager, va_space
from drivers.amd.page_entries import GFX9
from drivers.amd.pagetables import VA_BASE
from hw.alloc import Tlsf
from hw.errors import BadFree, DmaError, MappingError, NotSupported, OutOfMemory, WrongPhase
from hw.mmio import LocalMmio, Mmio
from hw.pci.device import DmaMemory
from mocks.amd.hub import VmFault
from mocks.amd.tlb import READ, WRITE
from tests.drivers.amd.page_memory import ADDRESS, PAGE, SPANS, is_leaf
from tests.drivers.amd.support import Bench, bench

MIB = 1 << 20
GIB = 1 << 30
RESERVED = 64 * MIB


class FakePci:
    """Host memory whose pages are scattered, and a count of what is out."""

    def __init__(self) -> None:
        self.local = True
        self.out = 0
        self.limit = 64 * MIB
        self._random = random.Random(3)

    def alloc_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        count = -(-size // PAGE)
        if self.out + count * PAGE > self.limit:
            raise DmaError("no host memory left")
        self.out += count * PAGE
        first = self._random.randrange(1 << 20, 1 << 24)
        pages = [(first + index) * PAGE for index in range(count)] if contiguous else [page * PAGE for page in self._random.sample(range(1 << 24), count)]

        def release() -> None:
            self.out -= count * PAGE

        return DmaMemory(LocalMmio.anonymous(count * PAGE), pages, release)


class FakeGpu:
    """A GPU as memory management sees it: video memory, a BAR that shows the first `visible` bytes of it."""

    def __init__(self, vram: int = 512 * MIB, visible: int | None = None) -> None:
        self.pci = FakePci()
        self.vram_size = vram
        self.visible_vram = vram if visible is None else visible
        self.booted = False
        self.bar = LocalMmio.anonymous(self.visible_vram, "VRAM")
        self.invalidations = 0
        self.flushes = 0
        self._boot = Tlsf(bootmem.BOOT_SIZE, granule=PAGE, name="boot memory")
        self.boot_memory = bootmem.lay_out(self._boot)
        self.bar.fill(0, PAGE)

    def vram_write(self, paddr: int, data: bytes) -> None:
        self.bar.write(paddr, data)

    def vram_view(self, paddr: int, size: int) -> Mmio | None:
        return self.bar.view(paddr, size) if paddr + size <= self.visible_vram else None

    def boot_alloc(self, size: int, align: int = PAGE, zero: bool = True) -> int:
        if self.booted:
            raise WrongPhase("boot memory was asked for")
        return self._boot.alloc(size, align)

    def flush_hdp(self) -> None:
        self.flushes += 1

    def invalidate_tlb(self) -> None:
        self.invalidations += 1

    def entry(self, table: int, index: int) -> int:
        return self.bar.read64(table + 8 * index)

    def look_up(self, va: int) -> tuple[int, int, int]:
        """(level, entry, offset of the entry's table) that translates an address; level -1 when nothing does."""
        table, offset = self.boot_memory.root_table, va - VA_BASE
        for level, span in enumerate(SPANS):
            entry = self.entry(table, offset // span % 512)
            if not entry & 1:
                return -1, entry, table
            if is_leaf("gfx11", level, entry):
                return level, entry, table
            table = entry & ADDRESS
        raise AssertionError("not reached")

    def is_empty(self) -> bool:
        return self.bar.read(self.boot_memory.root_table, PAGE) == bytes(PAGE)


@pytest.fixture(autouse=True)
def own_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A window of addresses that no other test uses."""
    monkeypatch.setattr(memory, "_va_space", None)
    yield


def manager(vram: int = 512 * MIB, visible: int | None = None, *, booted: bool = True, **options: int) -> tuple[FakeGpu, MemoryManager]:
    gpu = FakeGpu(vram, visible)
    result = MemoryManager(gpu, **options)  # type: ignore[arg-type]
    gpu.booted = booted
    return gpu, result


# --- the layout of video memory --------------------------------------------------------------------------------------------


def test_boot_memory_lies_where_the_mock_profile_lists_it() -> None:
    """navi31-mock-profile section 3: fixed addresses, which a later run relies on."""
    boot = bootmem.lay_out(Tlsf(bootmem.BOOT_SIZE, granule=PAGE))
    assert (boot.root_table, boot.scratch_page, boot.dummy_page) == (0, 0x1000, 0x2000)
    assert (boot.ih_ring0, boot.ih_pointer0, boot.ih_ring1, boot.ih_pointer1) == (0x3000, 0x43000, 0x44000, 0x84000)
    assert (boot.psp_message, boot.psp_command, boot.psp_fence, boot.psp_ring) == (0x100000, 0x85000, 0x86000, 0x87000)
    assert (boot.tmr, boot.smu_table, boot.mqds) == (0x200000, 0x97000, (0x9B000, 0x9C000))


def test_buffers_begin_behind_boot_memory_and_end_before_the_firmware() -> None:
    _, mm = manager()
    assert mm.alloc(PAGE).segments == ((32 * MIB, PAGE),)
    assert mm.general.base + mm.general.size == 512 * MIB - RESERVED


def test_worked_example_of_three_buffers() -> None:
    """amd-memory section 19: 1 GiB managed, tables interleaved with buffers."""
    gpu, mm = manager(GIB + RESERVED)
    first = mm.alloc(0x3FF000)
    sizes = [0x200000, 0x100000, 0x80000, 0x40000, 0x20000, 0x10000, 0x8000, 0x4000, 0x2000, 0x1000]
    assert first.va == VA_BASE
    assert first.segments == tuple((0x2000000 + sum(sizes[:index]), size) for index, size in enumerate(sizes))
    level, entry, table = gpu.look_up(first.va)
    assert (level, entry, table) == (2, 0x0040_0000_0200_04F1, 0x2400000)
    second = mm.alloc(5 * MIB)
    assert second.va == VA_BASE + 0x400000
    assert second.segments == ((0x2600000, 4 * MIB), (0x2402000, MIB))
    assert gpu.look_up(second.va)[1] == 0x0040_0000_0260_04F1  # two pages of 2 MiB, memory aligned to 2 MiB only: fragment 9
    mm.general.alloc(PAGE, PAGE)
    third = mm.alloc(4 * MIB, contiguous=True)
    assert (third.va, third.segments) == (VA_BASE + 0xC00000, ((0x2A00000, 4 * MIB),))


def test_small_bar_keeps_page_tables_where_the_cpu_sees_them() -> None:
    gpu, mm = manager(4 * GIB, visible=256 * MIB)
    area = 8 * MIB  # (4096 - 64) MiB / 512, rounded up
    assert mm.general.base == 32 * MIB + area
    buffer = mm.alloc(64 * MIB)
    assert buffer.segments[0][0] >= 32 * MIB + area
    tables = {gpu.look_up(buffer.va + offset)[2] for offset in range(0, 64 * MIB, 2 * MIB)}
    assert all(32 * MIB <= table < 32 * MIB + area for table in tables)


def test_table_area_of_a_24_gib_card_with_a_small_bar() -> None:
    class Card(FakeGpu):
        def __init__(self) -> None:
            super().__init__(512 * MIB, visible=256 * MIB)
            self.vram_size = 24560 * MIB

    mm = MemoryManager(Card())  # type: ignore[arg-type]
    assert mm.general.base == 0x5000000, "first program block of a Navi31 with a small BAR"


def test_memory_too_small_to_manage_is_refused() -> None:
    with pytest.raises(NotSupported, match="managing 0x6000000 bytes"):
        manager(96 * MIB)


def test_reserved_part_follows_the_generation() -> None:
    gpu = FakeGpu()
    mm = MemoryManager(gpu, GFX9, reserved=384 * MIB)  # type: ignore[arg-type]
    assert mm.general.base + mm.general.size == 128 * MIB


# --- kinds of buffers ------------------------------------------------------------------------------------------------------


def test_ordinary_buffer_is_video_memory_without_a_view() -> None:
    gpu, mm = manager()
    buffer = mm.alloc(5000)
    assert (buffer.size, buffer.view) == (2 * PAGE, None)
    level, entry, _ = gpu.look_up(buffer.va + PAGE)
    assert (level, entry & ~(31 << 7)) == (3, buffer.segments[0][0] + PAGE | 0x71)
    assert gpu.pci.out == 0


def test_uncached_buffer_has_its_memory_type() -> None:
    gpu, mm = manager()
    entry = gpu.look_up(mm.alloc(PAGE, uncached=True).va)[1]
    assert entry >> 48 & 7 == 3 and not entry & 2


def test_large_buffers_use_large_pages_throughout() -> None:
    gpu, mm = manager()
    buffer = mm.alloc(8 * MIB + 1)
    assert buffer.size == 10 * MIB
    assert buffer.va % (8 * MIB) == 0
    assert {gpu.look_up(buffer.va + offset)[0] for offset in range(0, buffer.size, 2 * MIB)} == {2}
    assert mm.alloc(8 * MIB - PAGE).size == 8 * MIB - PAGE


def test_host_buffer_maps_scattered_pages_in_order() -> None:
    gpu, mm = manager()
    buffer = mm.alloc(5 * PAGE - 100, host=True)
    assert buffer.size == 5 * PAGE
    assert buffer.view is not None and buffer.view.size == 5 * PAGE
    assert len({address for address, _ in buffer.segments}) == 5
    for index, (address, size) in enumerate(buffer.segments):
        assert size == PAGE
        assert gpu.look_up(buffer.va + index * PAGE)[1] == 0x0003_0000_0000_0077 | address
    mm.free(buffer)
    assert gpu.pci.out == 0
    assert gpu.is_empty()


def test_contiguous_host_buffer_is_one_piece() -> None:
    _, mm = manager()
    addresses = [address for address, _ in mm.alloc(8 * PAGE, host=True, contiguous=True).segments]
    assert addresses == [addresses[0] + index * PAGE for index in range(8)]


def test_cpu_access_with_a_large_bar_is_one_piece_of_video_memory_with_a_window() -> None:
    gpu, mm = manager()
    gpu.bar.fill(32 * MIB, 4 * MIB, 0xA5)
    buffer = mm.alloc(3 * MIB, cpu_access=True)
    assert len(buffer.segments) == 1 and gpu.pci.out == 0
    assert buffer.view is not None
    assert buffer.view.read(0, 3 * MIB) == bytes(3 * MIB), "contiguous memory is zeroed"
    buffer.view.write(0x1234, b"seen")
    assert gpu.bar.read(buffer.segments[0][0] + 0x1234, 4) == b"seen"


def test_contiguous_video_memory_is_zeroed_and_flushed() -> None:
    gpu, mm = manager()
    gpu.bar.fill(32 * MIB, 4 * MIB, 0xA5)
    buffer = mm.alloc(2 * MIB + PAGE, contiguous=True)
    assert len(buffer.segments) == 1
    assert gpu.bar.read(*buffer.segments[0]) == bytes(buffer.size)
    assert gpu.flushes == 1


@pytest.mark.parametrize(("visible", "uncached", "system"), [(None, False, False), (None, True, True), (256 * MIB, False, True), (256 * MIB, True, True)])
def test_cpu_visible_buffers_go_to_system_memory_when_the_bar_is_small_or_they_are_uncached(visible: int | None, uncached: bool, system: bool) -> None:
    gpu, mm = manager(visible=visible)
    buffer = mm.alloc(PAGE, cpu_access=True, uncached=uncached)
    assert buffer.kind.system is system
    assert buffer.view is not None
    assert gpu.pci.out == (PAGE if system else 0)


def test_behind_a_bridge_host_memory_is_replaced_by_video_memory_with_a_view() -> None:
    gpu, mm = manager()
    gpu.pci.local = False
    buffer = mm.alloc(PAGE, host=True)
    assert not buffer.kind.system and buffer.view is not None and gpu.pci.out == 0


def test_view_that_the_bar_cannot_show_is_refused_and_changes_nothing() -> None:
    gpu, mm = manager(GIB, visible=64 * MIB)
    gpu.pci.local = False
    hold = mm.alloc(64 * MIB)
    free = (mm.available, va_space().available)
    with pytest.raises(NotSupported, match="that the CPU can reach"):
        mm.alloc(PAGE, cpu_access=True)
    assert (mm.available, va_space().available) == free
    mm.free(hold)


def test_memory_of_someone_else_is_mapped_and_stays_theirs() -> None:
    gpu, mm = manager()
    pages = [0x5000_0000, 0x1000, 0x7000_3000]
    buffer = mm.map_host(pages)
    assert [gpu.look_up(buffer.va + index * PAGE)[1] & ADDRESS for index in range(3)] == pages
    mm.free(buffer)
    assert gpu.is_empty()
    with pytest.raises(MappingError):
        mm.map_host([1 << 44])
    assert gpu.is_empty() and va_space().used == 0


# --- giving back, running out ----------------------------------------------------------------------------------------------


def test_everything_comes_back() -> None:
    gpu, mm = manager()
    free = mm.available
    buffers = [mm.alloc(size, **options) for size in (PAGE, 3 * MIB, 17 * MIB) for options in ({}, {"host": True}, {"contiguous": True}, {"cpu_access": True})]
    random.Random(1).shuffle(buffers)
    for buffer in buffers:
        mm.free(buffer)
    assert (mm.available, va_space().used, gpu.pci.out) == (free, 0, 0)
    assert gpu.is_empty()


def test_every_mapping_and_unmapping_invalidates_translations() -> None:
    gpu, mm = manager()
    buffer = mm.alloc(PAGE)
    assert gpu.invalidations == 1
    mm.free(buffer)
    assert gpu.invalidations == 2


def test_freeing_twice_is_refused() -> None:
    gpu, mm = manager()
    buffer = mm.alloc(PAGE)
    mm.free(buffer)
    invalidations = gpu.invalidations
    with pytest.raises(BadFree, match=f"{buffer.va:#x} is not allocated"):
        mm.free(buffer)
    assert gpu.invalidations == invalidations


def test_fragmented_memory_is_gathered_from_small_pieces() -> None:
    gpu, mm = manager()
    filler = [mm.alloc(MIB) for _ in range(mm.available // MIB - 2)]
    kept = filler[1::2]
    for buffer in filler[::2]:
        mm.free(buffer)
    assert mm.general.largest < 4 * MIB
    gathered = mm.alloc(64 * MIB)
    assert sum(size for _, size in gathered.segments) == 64 * MIB
    assert len(gathered.segments) > 16
    sizes = [size for _, size in gathered.segments]
    assert sizes == sorted(sizes, reverse=True)
    for offset in range(0, 64 * MIB, MIB // 2):
        level, entry, _ = gpu.look_up(gathered.va + offset)
        assert level >= 2 and entry & 1
    for buffer in [gathered, *kept]:
        mm.free(buffer)
    assert gpu.is_empty()


@pytest.mark.parametrize("options", [{}, {"contiguous": True}])
def test_exhausted_video_memory_is_told_and_nothing_is_lost(options: dict[str, bool]) -> None:
    _, mm = manager()
    hold = mm.alloc(64 * MIB)
    free = (mm.available, va_space().used)
    with pytest.raises(OutOfMemory) as caught:
        mm.alloc(400 * MIB, **options)
    assert "0x19000000 bytes" in caught.value.what
    assert isinstance(caught.value, MemoryError)
    assert (mm.available, va_space().used) == free
    mm.free(hold)
    assert mm.alloc(400 * MIB).size == 400 * MIB


def test_exhausted_host_memory_is_told_and_nothing_is_lost() -> None:
    gpu, mm = manager()
    with pytest.raises(DmaError):
        mm.alloc(65 * MIB, host=True)
    assert (va_space().used, gpu.pci.out) == (0, 0)
    assert gpu.is_empty()


def test_no_memory_left_for_tables_gives_buffer_and_addresses_back() -> None:
    gpu, mm = manager()
    rest = [mm.general.alloc(PAGE, PAGE) for _ in range(mm.available // PAGE - 2)]
    free = mm.available
    with pytest.raises(OutOfMemory):
        mm.alloc(2 * PAGE)
    assert (mm.available, va_space().used) == (free, 0)
    assert gpu.is_empty()
    assert rest


def test_closing_gives_addresses_and_host_memory_back_without_touching_the_gpu() -> None:
    gpu, mm = manager()
    mm.alloc(MIB)
    mm.alloc(MIB, host=True)
    before = (bytes(gpu.bar.read(0, PAGE)), gpu.invalidations)
    mm.close()
    assert (va_space().used, gpu.pci.out) == (0, 0)
    assert (bytes(gpu.bar.read(0, PAGE)), gpu.invalidations) == before


# --- two devices, phases ---------------------------------------------------------------------------------------------------


def test_two_gpus_never_use_the_same_addresses() -> None:
    (first_gpu, first), (second_gpu, second) = manager(), manager()
    buffers = []
    for size in (PAGE, 3 * MIB, 0x5000, 16 * MIB):
        buffers += [(first_gpu, second_gpu, first.alloc(size)), (second_gpu, first_gpu, second.alloc(size))]
    taken = sorted((buffer.va, buffer.va + buffer.size) for _, _, buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))
    for owner, other, buffer in buffers:
        assert owner.look_up(buffer.va)[0] >= 0
        assert other.look_up(buffer.va)[0] == -1


def test_phases_do_not_mix() -> None:
    gpu, mm = manager(booted=False)
    free = (mm.available, va_space().used)
    for options in ({}, {"host": True}, {"contiguous": True}):
        with pytest.raises(WrongPhase):
            mm.alloc(PAGE, **options)
    assert (mm.available, va_space().used, gpu.pci.out) == (*free, 0)
    early = mm.map_host([0x200000])
    assert gpu.look_up(early.va)[2] < bootmem.BOOT_SIZE, "tables made while booting lie in boot memory"
    gpu.booted = True
    late = mm.alloc(PAGE)
    assert late.segments[0][0] >= bootmem.BOOT_SIZE
    far = mm.map_host([0x300000] * 1024)
    assert gpu.look_up(far.va)[2] >= bootmem.BOOT_SIZE
    mm.free(early)
    mm.free(far)
    mm.free(late)
    assert gpu.is_empty()


# --- on the simulated GPU --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def booted() -> Iterator[Bench]:
    each = bench(strict=True)
    each.dev.boot()
    yield each
    each.dev.close()


@pytest.mark.parametrize("options", [{}, {"host": True}, {"uncached": True}, {"contiguous": True}, {"cpu_access": True}])
def test_the_gpu_finds_every_page_of_a_buffer_where_it_is(booted: Bench, options: dict[str, bool]) -> None:
    """Both hubs translate by walking video memory themselves; freed pages are no longer found, although translations are cached."""
    dev = booted.dev
    sizes = [PAGE, 7 * PAGE, 3 * MIB + PAGE, 9 * MIB]
    buffers = [dev.memory.alloc(size, **options) for size in sizes]
    for buffer in buffers:
        places = [address + offset for address, size in buffer.segments for offset in range(0, size, PAGE)]
        for hub in ("gfx", "mm"):
            for number, place in enumerate(places):
                host, room = booted.gpu.hub(hub).translate(0, buffer.va + number * PAGE, READ | WRITE)
                expected = booted.machine.ram.host_pointer(place)[0] if buffer.kind.system else booted.gpu.vram.address + place
                assert (host, room >= PAGE) == (expected, True)
    for buffer in buffers:
        dev.memory.free(buffer)
    faults = []
    for buffer in buffers:
        for hub in ("gfx", "mm"):
            try:
                host, _ = booted.gpu.hub(hub).translate(0, buffer.va, READ, fetch=True)
                faults.append(host)
            except VmFault:
                pass
    assert faults == []


def test_boot_memory_is_refused_once_the_gpu_runs(booted: Bench) -> None:
    with pytest.raises(WrongPhase, match="the GPU is booted"):
        booted.dev.boot_alloc(PAGE)


def test_what_the_cpu_writes_through_a_view_the_gpu_reads(booted: Bench) -> None:
    dev = booted.dev
    buffer = dev.memory.alloc(64 * 1024, cpu_access=True)
    assert buffer.view is not None
    buffer.view.write(0x8000, b"through BAR0")
    dev.flush_hdp()
    assert booted.gpu.hub("gfx").read(0, buffer.va + 0x8000, 12) == b"through BAR0"
    dev.memory.free(buffer)
