"""From the shader registers of a queue to waves: what a dispatch asks for, and whether the hardware could ever place it."""

from __future__ import annotations

from dataclasses import dataclass

from hw.errors import NotModelled

COMPUTE_SHADER_EN = 1 << 0
FORCE_START_AT_000 = 1 << 2
USE_THREAD_DIMENSIONS = 1 << 5
CS_W32_EN = 1 << 15
UNDERSTOOD = COMPUTE_SHADER_EN | FORCE_START_AT_000 | USE_THREAD_DIMENSIONS | CS_W32_EN | 1 << 6 | 1 << 10 | 1 << 11 | 1 << 17
"""bits of the dispatch initiator that mean nothing more than what is done here"""

# absolute dwords of the compute shader registers (COMPUTE_*)
START_X = 0x2E04
NUM_THREAD_X = 0x2E07
PGM_LO, PGM_HI = 0x2E0C, 0x2E0D
SCRATCH_BASE_LO, SCRATCH_BASE_HI = 0x2E10, 0x2E11
RSRC1, RSRC2 = 0x2E12, 0x2E13
TMPRING_SIZE = 0x2E18
RSRC3 = 0x2E28
STATIC_THREAD_MGMT = (0x2E16, 0x2E17, 0x2E19, 0x2E1A, 0x2E2B, 0x2E2C, 0x2E2D, 0x2E2E)
USER_DATA_0 = 0x2E40

LDS_GRANULE = 512
SCRATCH_UNIT = 256
"""bytes; unit of TMPRING_SIZE.WAVESIZE on gfx11"""
LARGEST_GROUP = 1024


@dataclass(frozen=True)
class Launch:
    """One dispatch, as the registers say. Sizes in bytes."""

    program: int
    """VA of the first instruction"""
    groups: tuple[int, int, int]
    block: tuple[int, int, int]
    """work-items of a group"""
    wave32: bool
    rsrc1: int
    rsrc2: int
    rsrc3: int
    user_data: tuple[int, ...]
    """the words that come to lie in s0 onwards"""
    lds_bytes: int
    scratch_base: int
    scratch_wave_bytes: int
    """0: no scratch"""
    scratch_waves: int
    impossible: str
    """why no wave of it can ever run; "" when they can"""

    @property
    def wave_size(self) -> int:
        return 32 if self.wave32 else 64

    @property
    def waves_per_group(self) -> int:
        x, y, z = self.block
        return -(-x * y * z // self.wave_size)


def read_launch(shader: dict[int, int], dims: tuple[int, int, int], initiator: int, *, engines: int, lds_limit: int) -> Launch | None:
    """What DISPATCH_DIRECT starts with these shader registers. None when it starts nothing.

    engines: shader engines of the chip. lds_limit: bytes of LDS a group can have.
    """
    if not initiator & COMPUTE_SHADER_EN:
        return None
    if initiator & ~UNDERSTOOD:
        raise NotModelled(f"dispatch initiator {initiator:#x}: bits {initiator & ~UNDERSTOOD:#x}")
    start = tuple(shader.get(START_X + axis, 0) for axis in range(3))
    if not initiator & FORCE_START_AT_000 and any(start):
        raise NotModelled(f"a dispatch that starts at group {start}")
    threads = [shader.get(NUM_THREAD_X + axis, 0) for axis in range(3)]
    if any(each >> 16 for each in threads):
        raise NotModelled(f"a dispatch with partial groups ({threads})")
    block = (threads[0], threads[1], threads[2])
    groups = dims
    if initiator & USE_THREAD_DIMENSIONS:
        if any(size == 0 or count % size for count, size in zip(dims, block, strict=True)):
            raise NotModelled(f"a dispatch of {dims} work-items in groups of {block}")
        groups = (dims[0] // block[0], dims[1] // block[1], dims[2] // block[2])
    if 0 in groups:
        return None
    rsrc2 = shader.get(RSRC2, 0)
    ring = shader.get(TMPRING_SIZE, 0)
    scratch = rsrc2 & 1
    wave_bytes = (ring >> 12 & 0x7FFF) * SCRATCH_UNIT if scratch else 0
    scratch_waves = (ring & 0xFFF) * engines
    lds_bytes = (rsrc2 >> 15 & 0x1FF) * LDS_GRANULE
    items = block[0] * block[1] * block[2]
    impossible = ""
    if not 0 < items <= LARGEST_GROUP:
        impossible = f"a group of {block} work-items"
    elif lds_bytes > lds_limit:
        impossible = f"{lds_bytes:#x} bytes of LDS, where a group can have {lds_limit:#x}"
    elif scratch and (not wave_bytes or not scratch_waves):
        impossible = "scratch is wanted, but COMPUTE_TMPRING_SIZE gives none"
    elif not any(shader.get(index, 0) for index in STATIC_THREAD_MGMT[:engines]):
        impossible = "COMPUTE_STATIC_THREAD_MGMT lets no compute unit take waves"
    return Launch(
        program=(shader.get(PGM_HI, 0) << 32 | shader.get(PGM_LO, 0)) << 8 & 0xFFFFFFFFFFFF,
        groups=groups,
        block=block,
        wave32=bool(initiator & CS_W32_EN),
        rsrc1=shader.get(RSRC1, 0),
        rsrc2=rsrc2,
        rsrc3=shader.get(RSRC3, 0),
        user_data=tuple(shader.get(USER_DATA_0 + number, 0) for number in range(rsrc2 >> 1 & 0x1F)),
        lds_bytes=lds_bytes,
        scratch_base=(shader.get(SCRATCH_BASE_HI, 0) << 32 | shader.get(SCRATCH_BASE_LO, 0)) << 8 & 0xFFFFFFFFFFFF,
        scratch_wave_bytes=wave_bytes,
        scratch_waves=scratch_waves,
        impossible=impossible,
    )
