"""Host memory for devices: physical page addresses or a typed refusal that says what is missing; interrupts by eventfd."""

from __future__ import annotations

import mmap
import os
import platform
import resource
import struct
from pathlib import Path

import pytest

from hw import dma
from hw.dma import PagemapMemory
from hw.errors import DmaError, HugepagesExhausted, MemlockLimit, MemoryMovable, NotSupported, OutOfWindow, PagemapHidden
from hw.host import HostFiles
from hw.irq import EventfdIrq
from hw.mmio import LocalMmio

PRESENT = 1 << 63


def host_with(tmp_path: Path, **files: str) -> HostFiles:
    """A /proc with compaction of locked pages off, and these files below it ('__' for '/')."""
    for name, text in ({"sys__vm__compact_unevictable_allowed": "0"} | files).items():
        path = tmp_path / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return HostFiles(tmp_path)


def scattered(address: int, count: int) -> list[int]:
    return [PRESENT | 0x4000 + 5 * page for page in range(count)]


def test_every_page_has_its_own_address_and_memory_is_zero(tmp_path: Path) -> None:
    memory = PagemapMemory(host_with(tmp_path), pagemap=scattered).alloc(2 * mmap.PAGESIZE + 1)
    per_page = mmap.PAGESIZE // 4096
    assert memory.pages == [(0x4000 + 5 * page) * mmap.PAGESIZE + 4096 * part for page in range(3) for part in range(per_page)]
    assert memory.window.size == memory.size == 3 * mmap.PAGESIZE
    assert memory.window.read(0, memory.size) == bytes(memory.size)
    memory.release()
    with pytest.raises(OutOfWindow, match="closed"):
        memory.window.read32(0)


def test_pages_larger_than_4_kib_are_listed_in_4_kib_units(tmp_path: Path) -> None:
    allocator = PagemapMemory(host_with(tmp_path), pagemap=lambda address, count: [PRESENT | 7] * count)
    allocator._page = 4 * 4096  # a kernel with 16 KiB pages
    assert allocator.alloc(1).pages == [7 * 16384 + part * 4096 for part in range(4)]


def test_compaction_of_locked_pages_must_be_off(tmp_path: Path) -> None:
    with pytest.raises(MemoryMovable) as caught:
        PagemapMemory(host_with(tmp_path, sys__vm__compact_unevictable_allowed="1"), pagemap=scattered).alloc(4096)
    assert "compact_unevictable_allowed is 1" in caught.value.read
    assert "echo 0" in caught.value.remedy


def test_hidden_frames_mean_a_missing_capability(tmp_path: Path) -> None:
    with pytest.raises(PagemapHidden) as caught:
        PagemapMemory(host_with(tmp_path), pagemap=lambda address, count: [PRESENT] * count).alloc(4096)
    assert "frame 0" in caught.value.read
    assert "CAP_SYS_ADMIN" in caught.value.means


@pytest.mark.parametrize("entry", [0, 1 << 62 | 5, PRESENT | 1 << 62 | 5])
def test_a_page_that_is_not_in_memory_is_never_given_to_a_device(tmp_path: Path, entry: int) -> None:
    with pytest.raises(DmaError, match="not in RAM") as caught:
        PagemapMemory(host_with(tmp_path), pagemap=lambda address, count: [entry] * count).alloc(4096)
    assert f"{entry:#018x}" in caught.value.read


def test_missing_and_short_pagemap_files_are_typed(tmp_path: Path) -> None:
    host = host_with(tmp_path)
    with pytest.raises(PagemapHidden, match="opening") as caught:
        PagemapMemory(host).alloc(4096)
    assert "No such file" in caught.value.read
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "self" / "pagemap").write_bytes(b"")
    with pytest.raises(PagemapHidden, match="reading"):
        PagemapMemory(host).alloc(4096)


def test_pagemap_file_is_read_at_the_pages_own_place(tmp_path: Path) -> None:
    host = host_with(tmp_path, self__pagemap="")
    path = tmp_path / "proc" / "self" / "pagemap"
    with mmap.mmap(-1, mmap.PAGESIZE) as probe:
        window = LocalMmio.over(probe)
        with path.open("r+b") as file:
            file.seek(window.address // mmap.PAGESIZE * 8)
            file.write(struct.pack("<Q", PRESENT | 0xABCDE))
        assert PagemapMemory(host).read_pagemap(window.address, 1) == [PRESENT | 0xABCDE]
        del window


def test_contiguous_memory_comes_from_hugepages_or_names_the_empty_pool(tmp_path: Path) -> None:
    host = host_with(tmp_path, meminfo="MemTotal: 1 kB\nHugePages_Free:        0")
    allocator = PagemapMemory(host, pagemap=scattered)
    assert len(allocator.alloc(4096, contiguous=True).pages) == mmap.PAGESIZE // 4096
    with pytest.raises(DmaError, match="in one physical piece") as large:
        allocator.alloc(dma.HUGEPAGE + 1, contiguous=True)
    assert "every page's address is listed" in large.value.remedy
    if "HugePages_Free:        0" not in Path("/proc/meminfo").read_text():
        pytest.skip("this machine has free 2 MiB pages")
    with pytest.raises(HugepagesExhausted) as caught:
        allocator.alloc(8192, contiguous=True)
    assert caught.value.read == "Cannot allocate memory; HugePages_Free: 0"
    assert "nr_hugepages" in caught.value.remedy


def test_memlock_limit_is_named(tmp_path: Path) -> None:
    """In a child without CAP_IPC_LOCK the limit applies."""
    host = host_with(tmp_path)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            PagemapMemory(host, pagemap=scattered).alloc(1 << 20)
        except MemlockLimit as error:
            status = 0 if "limit 4096 bytes" in error.read and "ulimit -l" in error.remedy else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_this_machines_pagemap_gives_real_frames(tmp_path: Path) -> None:
    real = HostFiles()
    allocator = PagemapMemory(host_with(tmp_path), pagemap=PagemapMemory(real).read_pagemap)
    try:
        memory = allocator.alloc(16 * 4096)
    except PagemapHidden:
        pytest.skip("this process may not see physical addresses")
    assert len(set(memory.pages)) == 16
    assert all(page and page % 4096 == 0 for page in memory.pages)


def test_fence_is_refused_where_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    dma.memory_fence()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    dma._fence_function.cache_clear()

    class NoLibrary:
        def cdef(self, text: str) -> None: ...

        def dlopen(self, name: str) -> None:
            raise OSError("not found")

    monkeypatch.setattr("cffi.FFI", NoLibrary)
    with pytest.raises(NotSupported) as caught:
        dma.memory_fence()
    assert "libatomic" in caught.value.remedy
    dma._fence_function.cache_clear()


# --- interrupts ---------------------------------------------------------------------------------------------------------


def test_interrupts_are_counted_and_drained() -> None:
    irq = EventfdIrq()
    assert irq.wait(0) is False
    os.eventfd_write(irq.descriptor, 1)
    os.eventfd_write(irq.descriptor, 2)
    assert irq.wait(1.0) is True
    assert irq.count == 3
    assert irq.wait(0) is False
    assert not os.get_inheritable(irq.descriptor)
    irq.close()
    irq.close()
