"""Where the parts lie in an AMD firmware file: one function a kind and header version, and the table that names them all.

Parsing proper, with its checks, is in amd_ucode.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from firmware.amd_layouts import COMMON, LAYOUT, P2S_TABLE_ID, FirmwareType, SosPart, TaPart
from hw.errors import FirmwareInvalid


@dataclass(frozen=True)
class Cut:
    """Where a part lies: offset from the start of the file."""

    name: str
    offset: int
    size: int
    types: tuple[int, ...] = ()
    version: int = 0
    number: int = 0
    loaded: bool = True


@dataclass
class UcodeFile:
    """A file while it is being taken apart."""

    name: str
    data: bytes
    header: Any
    common: Any
    minor: int
    role: str
    """what the file's name adds to its kind: the engine of a gfx file"""

    @property
    def array(self) -> int:
        return int(self.common.ucode_array_offset_bytes)

    @property
    def size(self) -> int:
        return int(self.common.ucode_size_bytes)


Cutter = Callable[[UcodeFile], Iterator[Cut]]


def _cut_whole(part: str, *types: int) -> Cutter:
    def cut(file: UcodeFile) -> Iterator[Cut]:
        yield Cut(part, file.array, file.size, types, int(file.common.ucode_version))

    return cut


def _cut_sos_v1(file: UcodeFile) -> Iterator[Cut]:
    """The array begins with the system driver; the other offsets are counted from the array."""
    header, array = file.header, file.array
    version = int(file.common.ucode_version)
    yield Cut("SYS_DRV", array, int(header.sos.offset_bytes), (), version, SosPart.SYS_DRV)
    yield Cut("SOS", array + int(header.sos.offset_bytes), int(header.sos.size_bytes), (), version, SosPart.SOS)
    for member in _SOS_V1_PARTS.get(file.minor, ()):
        legacy = getattr(header, member)
        number = SosPart[member.upper()] if member.upper() in SosPart.__members__ else 0
        yield Cut(member.upper(), array + int(legacy.offset_bytes), int(legacy.size_bytes), (), int(legacy.fw_version), number)


_SOS_V1_PARTS = {1: ("toc", "kdb"), 2: ("res", "kdb"), 3: ("toc", "kdb", "spl", "rl", "sys_drv_aux", "sos_aux")}


def _bins(file: UcodeFile, count: int, start: int) -> list[Any]:
    entry = LAYOUT.sizeof("struct typed_bin")
    if start + count * entry > file.array:
        raise FirmwareInvalid(f"{file.name}: bin_count {count} leaves no room for the descriptors before the array", read=f"ucode_array_offset_bytes {file.array:#x}")
    return [LAYOUT.parse("struct typed_bin", file.data, start + index * entry) for index in range(count)]


def _cut_sos_v2(file: UcodeFile) -> Iterator[Cut]:
    """Typed parts. Version 2.1 holds a second, auxiliary set from aux_bin_index on; its names begin with AUX_."""
    count = int(file.header.bin_count)
    auxiliary = int(file.header.aux_bin_index) if file.minor >= 1 else count
    for index, part in enumerate(_bins(file, count, LAYOUT.sizeof(f"struct sos_v2_{file.minor}"))):
        number = int(part.fw_type)
        name = SosPart(number).name if number in SosPart._value2member_map_ else f"TYPE_{number}"
        types = (FirmwareType.REG_LIST,) if number == SosPart.RL else ()
        prefix = "AUX_" if index >= auxiliary else ""
        yield Cut(prefix + name, file.array + int(part.offset_bytes), int(part.size_bytes), types, int(part.fw_version), number, loaded=False)


def _cut_ta_v1(file: UcodeFile) -> Iterator[Cut]:
    for member in ("xgmi", "ras", "hdcp", "dtm", "securedisplay"):
        legacy = getattr(file.header, member)
        yield Cut(member.upper(), file.array + int(legacy.offset_bytes), int(legacy.size_bytes), (), int(legacy.fw_version), TaPart[member.upper()])


def _cut_ta_v2(file: UcodeFile) -> Iterator[Cut]:
    for part in _bins(file, int(file.header.bin_count), LAYOUT.sizeof("struct sos_v2_0")):
        number = int(part.fw_type)
        name = TaPart(number).name if number in TaPart._value2member_map_ else f"TYPE_{number}"
        yield Cut(name, file.array + int(part.offset_bytes), int(part.size_bytes), (), int(part.fw_version), number)


def _cut_smu(file: UcodeFile) -> Iterator[Cut]:
    yield Cut("SMU", file.array, file.size, (FirmwareType.SMU,), int(file.common.ucode_version))


def _cut_smu_v2(file: UcodeFile) -> Iterator[Cut]:
    yield from _cut_smu(file)
    header = file.header
    if file.minor == 0:
        yield Cut("PPTABLE", int(header.ppt_offset_bytes), int(header.ppt_size_bytes), (FirmwareType.PPTABLE,), loaded=False)
        return
    entry = LAYOUT.sizeof("struct pptable_entry")
    start, count = int(header.pptable_entry_offset), int(header.pptable_count)
    if start + count * entry > len(file.data):
        raise FirmwareInvalid(f"{file.name}: pptable_count {count} at pptable_entry_offset {start:#x} runs past the end of the file", read=f"{len(file.data):#x} bytes")
    for index in range(count):
        table = LAYOUT.parse("struct pptable_entry", file.data, start + index * entry)
        p2s = table.id == P2S_TABLE_ID
        types = (FirmwareType.P2S_TABLE,) if p2s else (FirmwareType.PPTABLE,)
        yield Cut("P2S_TABLE" if p2s else f"PPTABLE_{table.id}", int(table.offset_bytes), int(table.size_bytes), types, number=int(table.id), loaded=p2s)


def _cut_sdma_v1(file: UcodeFile) -> Iterator[Cut]:
    """One microcode for all engines, loaded once for each of the four."""
    types = (FirmwareType.SDMA0, FirmwareType.SDMA1, FirmwareType.SDMA2, FirmwareType.SDMA3)
    yield Cut("SDMA", file.array, file.size, types, int(file.common.ucode_version))


def _cut_sdma_v2(file: UcodeFile) -> Iterator[Cut]:
    header, version = file.header, int(file.common.ucode_version)
    yield Cut("SDMA_UCODE_TH1", int(header.ctl_offset_bytes), int(header.ctl_size_bytes), (FirmwareType.SDMA_UCODE_TH1,), version)
    yield Cut("SDMA_UCODE_TH0", file.array, int(header.ctx_size_bytes), (FirmwareType.SDMA_UCODE_TH0,), version)


def _cut_sdma_v3(file: UcodeFile) -> Iterator[Cut]:
    yield Cut("SDMA_UCODE_TH0", file.array, int(file.header.ucode_size_bytes), (FirmwareType.SDMA_UCODE_TH0,), int(file.common.ucode_version))


_GFX_V1_TYPES = {"PFP": FirmwareType.CP_PFP, "ME": FirmwareType.CP_ME, "CE": FirmwareType.CP_CE, "MEC": FirmwareType.CP_MEC, "MEC2": FirmwareType.CP_MEC}
_GFX_V1_JUMP_TABLES = {"MEC": FirmwareType.CP_MEC_ME1, "MEC2": FirmwareType.CP_MEC_ME2}


def _cut_gfx_v1(file: UcodeFile) -> Iterator[Cut]:
    """Compute engines keep their jump table (counted in dwords) behind the signed image; in the others it is inside."""
    version = int(file.common.ucode_version)
    jump_table = _GFX_V1_JUMP_TABLES.get(file.role)
    table_size = 4 * int(file.header.jt_size) if jump_table else 0
    if table_size > file.size:
        raise FirmwareInvalid(f"{file.name}: jt_size {file.header.jt_size:#x} dwords are more than ucode_size_bytes {file.size:#x}")
    yield Cut(f"CP_{file.role}", file.array, file.size - table_size, (_GFX_V1_TYPES[file.role],), version)
    if jump_table:
        yield Cut(jump_table.name, file.array + 4 * int(file.header.jt_offset), table_size, (jump_table,), version)


def _cut_gfx_v2(file: UcodeFile) -> Iterator[Cut]:
    """RS64 engines: code, and the data of pipe 0's stack."""
    header, version = file.header, int(file.common.ucode_version)
    code, stack = FirmwareType[f"RS64_{file.role}"], FirmwareType[f"RS64_{file.role}_P0_STACK"]
    yield Cut(code.name, file.array, int(header.ucode_size_bytes), (code,), version)
    yield Cut(stack.name, int(header.data_offset_bytes), int(header.data_size_bytes), (stack,), version)


def _cut_mes(file: UcodeFile) -> Iterator[Cut]:
    header = file.header
    code, stack = (FirmwareType.CP_MES_KIQ, FirmwareType.MES_KIQ_STACK) if file.role == "KIQ" else (FirmwareType.CP_MES, FirmwareType.MES_STACK)
    yield Cut(code.name, int(header.ucode_offset_bytes), int(header.ucode_size_bytes), (code,), int(header.mes_ucode_version), loaded=False)
    yield Cut(stack.name, int(header.data_offset_bytes), int(header.data_size_bytes), (stack,), int(header.data_version), loaded=False)


def _cut_imu(file: UcodeFile) -> Iterator[Cut]:
    header, version = file.header, int(file.common.ucode_version)
    iram = int(header.iram_size_bytes)
    yield Cut("IMU_I", file.array, iram, (FirmwareType.IMU_I,), version)
    yield Cut("IMU_D", file.array + iram, int(header.dram_size_bytes), (FirmwareType.IMU_D,), version)


def _cut_dmcu(file: UcodeFile) -> Iterator[Cut]:
    vectors = int(file.header.intv_size_bytes)
    yield Cut("DMCU_ERAM", file.array, file.size - vectors, (FirmwareType.DMCU_ERAM,), loaded=False)
    yield Cut("DMCU_ISR", file.array + int(file.header.intv_offset_bytes), vectors, (FirmwareType.DMCU_ISR,), loaded=False)


def _cut_dmcub(file: UcodeFile) -> Iterator[Cut]:
    constant = int(file.header.inst_const_bytes)
    yield Cut("DMUB", file.array, constant, (FirmwareType.DMUB,), int(file.common.ucode_version), loaded=False)
    yield Cut("DMUB_BSS_DATA", file.array + constant, int(file.header.bss_data_bytes), loaded=False)


_RLC_PARTS: tuple[tuple[int, str, FirmwareType], ...] = (
    (1, "cntl", FirmwareType.RLC_RESTORE_LIST_SRM_CNTL),
    (1, "gpm", FirmwareType.RLC_RESTORE_LIST_GPM_MEM),
    (1, "srm", FirmwareType.RLC_RESTORE_LIST_SRM_MEM),
    (2, "iram", FirmwareType.RLC_IRAM),
    (2, "dram", FirmwareType.RLC_DRAM_BOOT),
    (3, "rlcp", FirmwareType.RLC_P),
    (3, "rlcv", FirmwareType.RLC_V),
    (4, "global_tap_delays", FirmwareType.GLOBAL_TAP_DELAYS),
    (4, "se0_tap_delays", FirmwareType.SE0_TAP_DELAYS),
    (4, "se1_tap_delays", FirmwareType.SE1_TAP_DELAYS),
    (4, "se2_tap_delays", FirmwareType.SE2_TAP_DELAYS),
    (4, "se3_tap_delays", FirmwareType.SE3_TAP_DELAYS),
)
"""(header minor that brings it, prefix of its size and offset fields, type), in load order"""

_RLC_LOADED = {1: ("cntl", "gpm", "srm"), 2: ("iram", "dram"), 3: ("iram", "dram", "rlcp", "rlcv"), 4: ("iram", "dram")}
"""parts that a boot loads, by header minor; RLC_G always comes last"""


def _cut_rlc(file: UcodeFile) -> Iterator[Cut]:
    """Offsets of the extra parts count from the start of the file."""
    blocks = {minor: _nested(file.header, file.minor, minor) for minor in range(1, file.minor + 1)}
    for minor, prefix, number in _RLC_PARTS:
        if minor > file.minor:
            continue
        block = blocks[minor]
        version = int(getattr(block, f"{prefix}_version", 0))
        loaded = prefix in _RLC_LOADED.get(file.minor, ())
        yield Cut(number.name, int(getattr(block, f"{prefix}_offset_bytes")), int(getattr(block, f"{prefix}_size_bytes")), (number,), version, loaded=loaded)
    yield Cut("RLC_G", file.array, file.size, (FirmwareType.RLC_G,), int(file.common.ucode_version))


def _nested(header: Any, minor: int, wanted: int) -> Any:
    """Version 2.n contains version 2.(n-1) as its first member."""
    block = header
    for level in range(minor - 1, wanted - 1, -1):
        block = getattr(block, f"v2_{level}")
    return block


LAYOUTS: dict[tuple[str, int, int], tuple[str, Cutter]] = {
    **{("sos", 1, minor): (f"struct sos_v1_{minor}", _cut_sos_v1) for minor in range(4)},
    **{("sos", 2, minor): (f"struct sos_v2_{minor}", _cut_sos_v2) for minor in range(2)},
    ("toc", 1, 0): (COMMON, _cut_whole("TOC", FirmwareType.TOC)),
    ("asd", 1, 0): (COMMON, _cut_whole("ASD")),
    ("asd", 1, 1): (COMMON, _cut_whole("ASD")),
    ("ta", 1, 0): ("struct ta_v1_0", _cut_ta_v1),
    ("ta", 2, 0): ("struct sos_v2_0", _cut_ta_v2),
    ("smu", 1, 0): ("struct smu_v1_0", _cut_smu),
    ("smu", 2, 0): ("struct smu_v2_0", _cut_smu_v2),
    ("smu", 2, 1): ("struct smu_v2_1", _cut_smu_v2),
    ("sdma", 1, 0): ("struct sdma_v1_0", _cut_sdma_v1),
    ("sdma", 1, 1): ("struct sdma_v1_0", _cut_sdma_v1),
    ("sdma", 2, 0): ("struct sdma_v2_0", _cut_sdma_v2),
    ("sdma", 3, 0): ("struct sdma_v3_0", _cut_sdma_v3),
    ("gfx", 1, 0): ("struct gfx_v1_0", _cut_gfx_v1),
    ("gfx", 2, 0): ("struct gfx_v2_0", _cut_gfx_v2),
    ("mes", 1, 0): ("struct mes_v1_0", _cut_mes),
    ("imu", 1, 0): ("struct imu_v1_0", _cut_imu),
    ("dmcu", 1, 0): ("struct dmcu_v1_0", _cut_dmcu),
    ("dmcub", 1, 0): ("struct dmcub_v1_0", _cut_dmcub),
    ("vcn", 1, 0): (COMMON, _cut_whole("VCN", FirmwareType.VCN)),
    **{("rlc", 2, minor): (f"struct rlc_v2_{minor}", _cut_rlc) for minor in range(5)},
}
WITH_START = ("struct gfx_v2_0", "struct mes_v1_0")
"""layouts that say where the engine begins"""
