"""What goes into a run of machine code and what comes out: the dispatch, the state after a step, where waves are."""

from __future__ import annotations

from dataclasses import dataclass, field

RUNNING, DONE, FAULT, TRAP, ILLEGAL = "running", "done", "fault", "trap", "illegal"

DEFAULT_MODE = 0x3F0  # denormals kept, DX10_CLAMP, IEEE
SHARED_APERTURE, PRIVATE_APERTURE = 0x0001_0000_0000_0000, 0x0002_0000_0000_0000


def mode_from_rsrc1(rsrc1: int) -> int:
    """MODE at wave launch from COMPUTE_PGM_RSRC1: rounding, denormals, DX10_CLAMP, IEEE, FP16_OVFL."""
    return (rsrc1 >> 12 & 0xFF) | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9 | (rsrc1 >> 26 & 1) << 23


def vgprs_from_rsrc1(rsrc1: int) -> int:
    """VGPRs of a wave32 from COMPUTE_PGM_RSRC1: granules of 8, minus one, in bits 5:0."""
    return min(((rsrc1 & 0x3F) + 1) * 8, 256)


@dataclass(slots=True)
class Dispatch:
    """Everything wave launch needs.

    entry: GPU address of the first instruction, 256-byte aligned. group_size in work-items, grid in groups.
    user_sgprs: values of s0.. ; the enabled group ids (x, y, z) and the group info word follow in the next SGPRs.
    workitem_components: 1 to 3, how many of x, y, z are packed into v0 (10 bits each).
    vgprs: registers per lane. lds_bytes: LDS of a group. mode: initial MODE register.
    scratch_base: GPU address of scratch memory; scratch_wave_bytes: its bytes per wave (32 lanes interleaved by dword);
    scratch_waves: how many waves it has room for.
    shared_base, private_base: flat apertures. seed: of uninitialised registers and LDS, and of the order in strict mode.
    """

    entry: int
    group_size: tuple[int, int, int]
    grid: tuple[int, int, int]
    user_sgprs: list[int] = field(default_factory=list)
    group_ids: tuple[bool, bool, bool] = (True, False, False)
    group_info: bool = False
    workitem_components: int = 1
    vgprs: int = 256
    lds_bytes: int = 0
    scratch_base: int = 0
    scratch_wave_bytes: int = 0
    scratch_waves: int = 0
    mode: int = DEFAULT_MODE
    wave32: bool = True
    seed: int = 0
    shared_base: int = SHARED_APERTURE
    private_base: int = PRIVATE_APERTURE
    arch: str = "gfx1100"

    @property
    def threads(self) -> int:
        return self.group_size[0] * self.group_size[1] * self.group_size[2]

    @property
    def waves(self) -> int:
        """Waves of one group."""
        return -(-self.threads // 32)

    @property
    def groups(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class RunState:
    """What a step ended with. Anything but running and done is final: the waves stay where they are.

    va, access: of a memory fault (access bits of the port). words: the dwords at pc for an illegal instruction. trap: its number.
    """

    kind: str
    pc: int = 0
    va: int = 0
    access: int = 0
    words: tuple[int, ...] = ()
    trap: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WaveReport:
    """Where one resident wave is."""

    group: tuple[int, int, int]
    wave: int
    pc: int
    exec_mask: int
    status: str
    instruction: str
