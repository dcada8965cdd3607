"""Firmware for simulated GPUs: files with true headers around seeded noise, so that no vendor file is needed.

fabricate(chip, seed) gives the files; images(chip, seed) what a PSP of the same seed is to be handed. Every image carries the
header that published images carry, and a signature over its content: check_image() judges an image as the PSP would, knows the
fabricated ones by their key id, and can judge only the structure of others (nobody but AMD can check a real signature).
"""

from __future__ import annotations

import hashlib
import random
import zlib
from dataclasses import dataclass, field

from firmware.amd_layouts import (
    COMMON_SIZE,
    IMAGE_IDS,
    LAYOUT,
    PSP_IMAGE_HEADER_SIZE,
    PSP_IMAGE_MAGIC,
    PSP_IMAGE_SIGNATURE_SIZE,
    SOS_IMAGE_IDS,
    FirmwareType,
    SosPart,
    TaPart,
)

ARRAY_OFFSET = 0x100
"""where the microcode array begins in nearly all published files"""
KEY_ID = b"simulated-key-01"
IMAGE = "struct psp_image"
MEC_START = 0x2_0001_0000
"""byte address at which the fabricated compute engine firmware begins (navi31-mock-profile section 14)"""
RS64_DATA_SIZE = 0x22000


@dataclass(frozen=True)
class Chip:
    """IP versions and firmware versions of a chip."""

    gc: tuple[int, int, int]
    mp: tuple[int, int, int]
    sdma: tuple[int, int, int]
    smu_version: int
    sos_version: int
    dmcub: str


CHIPS = {
    "navi31": Chip((11, 0, 0), (13, 0, 0), (6, 0, 0), 0x004E8500, 0x0031003A, "dcn_3_2_0_dmcub"),
    "navi32": Chip((11, 0, 3), (13, 0, 10), (6, 0, 3), 0x00505300, 0x0032003A, "dcn_3_2_0_dmcub"),
    "navi33": Chip((11, 0, 2), (13, 0, 7), (6, 0, 2), 0x00525800, 0x0033003A, "dcn_3_2_1_dmcub"),
}
"""the simulated chips; the versions of SMU and SOS are those of navi31-mock-profile sections 6 and 12"""

MEC_VERSION = 0x226
SDMA_VERSION = 0x13
RLC_VERSION = 0x80
IMU_VERSION = 0x0B1F4B00

SOS_SIZES = {
    SosPart.KDB: 0x1700,
    SosPart.SYS_DRV: 0x26790,
    SosPart.SOC_DRV: 0x9000,
    SosPart.INTF_DRV: 0x8000,
    SosPart.DBG_DRV: 0x3000,
    SosPart.RAS_DRV: 0x4000,
    SosPart.SOS: 0x18380,
    SosPart.TOC: 0x900,
}
"""bytes of each part, in the order of the container; sizes as published where the parts exist there"""

TA_SIZES = {TaPart.ASD: 0x3100, TaPart.HDCP: 0x2100, TaPart.DTM: 0x2100, TaPart.RAS: 0x2100}


@dataclass
class Fabricated:
    """What one chip and seed give."""

    files: dict[str, bytes] = field(default_factory=dict)
    """file name -> content"""
    images: dict[int, bytes] = field(default_factory=dict)
    """firmware type of LOAD_IP_FW -> the exact bytes that belong to it"""
    sos_parts: dict[int, bytes] = field(default_factory=dict)
    """type of a part of the SOS container -> its bytes"""


_made: dict[tuple[str, int], Fabricated] = {}


def fabricate(chip: str, seed: int = 0) -> dict[str, bytes]:
    """The files of a chip ("navi31", "navi32", "navi33") by name; the same seed gives the same bytes."""
    return dict(_make(chip, seed).files)


def images(chip: str, seed: int = 0) -> dict[int, bytes]:
    """The image that belongs to each firmware type of LOAD_IP_FW."""
    return dict(_make(chip, seed).images)


def sos_parts(chip: str, seed: int = 0) -> dict[int, bytes]:
    """The parts of the SOS container by their type."""
    return dict(_make(chip, seed).sos_parts)


def check_image(data: bytes, firmware_type: int | None = None, *, image_ids: tuple[int, ...] = (), nameless: bool = False) -> str:
    """What a PSP finds wrong with an image: "" when nothing.

    Checks magic, sizes, the image's own id against the type it is loaded as (or against `image_ids`), and the signature of fabricated
    images. nameless: some key databases carry no magic; then none is asked for.
    """
    if len(data) < PSP_IMAGE_HEADER_SIZE:
        return f"{len(data)} bytes are less than an image header"
    header = LAYOUT.parse(IMAGE, data)
    magic = LAYOUT.ffi.buffer(header.magic)[:]
    if magic != PSP_IMAGE_MAGIC and not (nameless and magic == b"\0\0\0\0"):
        return f"magic {magic!r} instead of {PSP_IMAGE_MAGIC!r}"
    total = PSP_IMAGE_HEADER_SIZE + header.signed_size_bytes + PSP_IMAGE_SIGNATURE_SIZE
    if header.total_size_bytes != total:
        return f"total size {header.total_size_bytes:#x} does not fit the signed size {header.signed_size_bytes:#x}"
    if total > len(data):
        return f"image of {total:#x} bytes in {len(data):#x} bytes"
    if firmware_type in IMAGE_IDS:
        image_ids = (IMAGE_IDS[firmware_type],)
    if image_ids and header.image_id & 0xFFFF not in image_ids:
        expected = " or ".join(f"{each:#06x}" for each in image_ids)
        return f"image id {header.image_id & 0xFFFF:#06x} where {expected} belongs" + (f" (type {firmware_type})" if firmware_type else "")
    if bytes(LAYOUT.ffi.buffer(header.key_id)) == KEY_ID:
        signed = total - PSP_IMAGE_SIGNATURE_SIZE
        if data[signed:total] != _signature(data[:signed]):
            return "the signature does not fit the content"
    return ""


def is_simulated(data: bytes) -> bool:
    """Does the image name the simulated key? Only then can its signature be checked."""
    return bytes(LAYOUT.ffi.buffer(LAYOUT.parse(IMAGE, data).key_id)) == KEY_ID


def _signature(signed: bytes) -> bytes:
    return hashlib.sha256(KEY_ID + signed).digest() * (PSP_IMAGE_SIGNATURE_SIZE // 32)


def _make(chip: str, seed: int) -> Fabricated:
    """One maker run a process for each chip and seed: the noise costs milliseconds, tests ask hundreds of times."""
    key = (chip, seed)
    if key not in _made:
        if chip not in CHIPS:
            raise ValueError(f"no firmware can be fabricated for {chip!r}: known chips {', '.join(CHIPS)}")
        _made[key] = _Maker(chip, seed).run()
    return _made[key]


class _Maker:
    """Builds the files of one chip."""

    def __init__(self, chip: str, seed: int) -> None:
        self.name = chip
        self.chip = CHIPS[chip]
        self.seed = seed
        self.made = Fabricated()

    def run(self) -> Fabricated:
        gc = "gc_" + _version(self.chip.gc)
        self._sos()
        self._smu()
        self._sdma()
        for engine, start in (("PFP", MEC_START), ("ME", MEC_START), ("MEC", MEC_START)):
            self._rs64(f"{gc}_{engine.lower()}.bin", engine, start)
        self._imu(f"{gc}_imu.bin")
        self._rlc(f"{gc}_rlc.bin")
        self._mes(f"{gc}_mes.bin")
        self._mes(f"{gc}_mes1.bin")
        self._ta()
        self._dmcub()
        return self.made

    def _noise(self, label: str, size: int) -> bytes:
        digest = hashlib.sha256(f"{self.name}/{label}/{self.seed}".encode()).digest()
        return random.Random(int.from_bytes(digest, "little")).randbytes(size)

    def _image(self, label: str, size: int, image_id: int, version: int, *, total: int | None = None) -> bytes:
        """An image of `size` bytes whose header counts `total` of them; the rest is zero padding (stacks are padded so)."""
        total = size if total is None else total
        signed_size = total - PSP_IMAGE_HEADER_SIZE - PSP_IMAGE_SIGNATURE_SIZE
        header = LAYOUT.pack(
            IMAGE,
            nonce=self._noise(label + "/nonce", 16),
            magic=PSP_IMAGE_MAGIC,
            signed_size_bytes=signed_size,
            signature_present=1,
            key_id=KEY_ID,
            image_id=0x81010000 | image_id,
            version=version,
            total_size_bytes=total,
        )
        signed = header + self._noise(label, signed_size)
        return (signed + _signature(signed)).ljust(size, b"\0")

    def _typed_image(self, number: FirmwareType, size: int, version: int, *, total: int | None = None) -> bytes:
        image = self._image(number.name, size, IMAGE_IDS[number], version, total=total)
        self.made.images[number] = image
        return image

    def _file(
        self, name: str, ctype: str, version: tuple[int, int], ip: tuple[int, int, int], ucode_version: int, array: bytes, fields: dict[str, int], behind: bytes = b""
    ) -> None:
        """Header of the kind, array at 0x100, then what lies behind it; the CRC covers all that follows the common header."""
        own = LAYOUT.pack(ctype, **fields)[COMMON_SIZE:]
        self._assemble(name, own, COMMON_SIZE + len(own), version, ip, ucode_version, array, behind)

    def _assemble(self, name: str, own: bytes, header_size: int, version: tuple[int, int], ip: tuple[int, int, int], ucode_version: int, array: bytes, behind: bytes) -> None:
        rest = own.ljust(ARRAY_OFFSET - COMMON_SIZE, b"\0") + array + behind
        common = LAYOUT.pack(
            "struct common_header",
            size_bytes=COMMON_SIZE + len(rest),
            header_size_bytes=header_size,
            header_version_major=version[0],
            header_version_minor=version[1],
            ip_version_major=ip[0],
            ip_version_minor=ip[1],
            ucode_version=ucode_version,
            ucode_size_bytes=len(array),
            ucode_array_offset_bytes=ARRAY_OFFSET,
            crc32=zlib.crc32(rest),
        )
        self.made.files[name] = common + rest

    def _container(self, name: str, bins: list[tuple[int, int, bytes]], ucode_version: int) -> None:
        """A container of typed parts (header version 2.0): (type, version, content)."""
        descriptors = b""
        array = b""
        for number, version, content in bins:
            descriptors += LAYOUT.pack("struct typed_bin", fw_type=number, fw_version=version, offset_bytes=len(array), size_bytes=len(content))
            array += content
        own = len(bins).to_bytes(4, "little") + descriptors
        self._assemble(name, own, COMMON_SIZE + 4, (2, 0), self.chip.mp, ucode_version, array, b"")

    def _sos(self) -> None:
        bins = []
        for part, size in SOS_SIZES.items():
            image = self._image(f"sos/{part.name}", size, SOS_IMAGE_IDS[part], self.chip.sos_version)
            self.made.sos_parts[part] = image
            bins.append((int(part), self.chip.sos_version, image))
        self._container(f"psp_{_version(self.chip.mp)}_sos.bin", bins, self.chip.sos_version)

    def _ta(self) -> None:
        bins = [(int(part), 0x17000043, self._image(f"ta/{part.name}", size, 0, 0x70001)) for part, size in TA_SIZES.items()]
        self._container(f"psp_{_version(self.chip.mp)}_ta.bin", bins, 0)

    def _smu(self) -> None:
        """SMU image, then one power table with its entry (header version 2.1)."""
        array = self._typed_image(FirmwareType.SMU, 0x3FE00, self.chip.smu_version)
        table = self._noise("pptable", 0x12C4)
        entries_at = ARRAY_OFFSET + len(array)
        entry_size = LAYOUT.sizeof("struct pptable_entry")
        entry = LAYOUT.pack("struct pptable_entry", id=3664, offset_bytes=entries_at + entry_size, size_bytes=len(table))
        name = f"smu_{_version(self.chip.mp)}.bin"
        fields = {"ucode_start_addr": 0x20000, "pptable_count": 1, "pptable_entry_offset": entries_at}
        self._file(name, "struct smu_v2_1", (2, 1), self.chip.mp, self.chip.smu_version, array, fields, entry + table)

    def _sdma(self) -> None:
        ctx = self._typed_image(FirmwareType.SDMA_UCODE_TH0, 0x4400, SDMA_VERSION)
        ctl = self._typed_image(FirmwareType.SDMA_UCODE_TH1, 0x4200, SDMA_VERSION)
        fields = {
            "feature_version": 0x3C,
            "ctx_size_bytes": len(ctx),
            "ctx_jt_offset": 0x1000,
            "ctx_jt_size": 0x80,
            "ctl_offset_bytes": ARRAY_OFFSET + len(ctx),
            "ctl_size_bytes": len(ctl),
            "ctl_jt_offset": 0x1000,
        }
        self._file(f"sdma_{_version(self.chip.sdma)}.bin", "struct sdma_v2_0", (2, 0), self.chip.sdma, SDMA_VERSION, ctx + ctl, fields)

    def _rs64(self, name: str, engine: str, start: int) -> None:
        code = self._typed_image(FirmwareType[f"RS64_{engine}"], 0x41300 if engine == "MEC" else 0x16360, MEC_VERSION)
        data = self._typed_image(FirmwareType[f"RS64_{engine}_P0_STACK"], RS64_DATA_SIZE, MEC_VERSION, total=0x1550)
        fields = {
            "feature_version": 0x1D,
            "ucode_size_bytes": len(code),
            "ucode_offset_bytes": ARRAY_OFFSET,
            "data_size_bytes": len(data),
            "data_offset_bytes": ARRAY_OFFSET + len(code),
            "ucode_start_addr_lo": start & 0xFFFFFFFF,
            "ucode_start_addr_hi": start >> 32,
        }
        self._file(name, "struct gfx_v2_0", (2, 0), self.chip.gc, MEC_VERSION, code + data, fields)

    def _imu(self, name: str) -> None:
        iram = self._typed_image(FirmwareType.IMU_I, 0x10200, IMU_VERSION)
        dram = self._typed_image(FirmwareType.IMU_D, 0x10200, IMU_VERSION)
        fields = {"iram_size_bytes": len(iram), "dram_size_bytes": len(dram), "dram_offset_bytes": len(iram)}
        self._file(name, "struct imu_v1_0", (1, 0), self.chip.gc, IMU_VERSION, iram + dram, fields)

    def _rlc(self, name: str) -> None:
        """Header version 2.3, as published for gfx11: RLC_G in the array, the other parts behind it."""
        array = self._typed_image(FirmwareType.RLC_G, 0x6200, RLC_VERSION)
        parts = {
            "gpm": self._typed_image(FirmwareType.RLC_RESTORE_LIST_GPM_MEM, 0xA00, 6),
            "srm": self._typed_image(FirmwareType.RLC_RESTORE_LIST_SRM_MEM, 0x8F20, 6),
            "iram": self._typed_image(FirmwareType.RLC_IRAM, 0x10200, RLC_VERSION),
            "dram": self._typed_image(FirmwareType.RLC_DRAM_BOOT, 0x8200, RLC_VERSION),
            "rlcp": self._typed_image(FirmwareType.RLC_P, 0x2200, 0x19),
            "rlcv": self._typed_image(FirmwareType.RLC_V, 0x3200, 0x22),
        }
        header = LAYOUT.new("struct rlc_v2_3")
        blocks = {"gpm": header.v2_2.v2_1, "srm": header.v2_2.v2_1, "iram": header.v2_2, "dram": header.v2_2, "rlcp": header, "rlcv": header}
        behind = b""
        for prefix, content in parts.items():
            setattr(blocks[prefix], f"{prefix}_size_bytes", len(content))
            setattr(blocks[prefix], f"{prefix}_offset_bytes", ARRAY_OFFSET + len(array) + len(behind))
            behind += content
        header.rlcp_version = 0x19
        header.rlcv_version = 0x22
        header.v2_2.v2_1.v2_0.feature_version = 1
        own = LAYOUT.bytes(header)[COMMON_SIZE:]
        self._assemble(name, own, COMMON_SIZE + len(own), (2, 3), self.chip.gc, RLC_VERSION, array, behind)

    def _mes(self, name: str) -> None:
        label = name.removesuffix(".bin").rsplit("_", 1)[1]
        code = self._image(label, 0x3D80, 0x2007, 0x75)
        data = self._noise(label + "/data", 0x2000)
        fields = {
            "mes_ucode_version": 0x75,
            "ucode_size_bytes": len(code),
            "ucode_offset_bytes": ARRAY_OFFSET,
            "data_size_bytes": len(data),
            "data_offset_bytes": ARRAY_OFFSET + len(code),
            "ucode_start_addr_lo": 0xF0005000,
            "ucode_start_addr_hi": 0xFFFFFFFF,
        }
        self._file(name, "struct mes_v1_0", (1, 0), self.chip.gc, 0, code + data, fields)

    def _dmcub(self) -> None:
        code = self._image("dmcub", 0x4610, 0x1005, 0x07002D00)
        self._file(f"{self.chip.dmcub}.bin", "struct dmcub_v1_0", (1, 0), (3, 2, 0), 0x07002D00, code, {"inst_const_bytes": len(code)})


def _version(version: tuple[int, int, int]) -> str:
    return "_".join(str(part) for part in version)
