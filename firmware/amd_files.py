"""Which firmware files an AMD chip boots from, and in which order their parts are loaded. Names follow from the IP versions.

Source: the file names and load order that public drivers use; see also errata of the published containers in the SOS functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firmware.amd_layouts import FirmwareType
from firmware.amd_ucode import Part, Ucode
from firmware.store import FirmwareStore
from hw.errors import UnknownHardware

IpVersion = tuple[int, int, int]


@dataclass(frozen=True)
class _Family:
    """What the chips of one graphics generation need. Engines are suffixes of gc_V_*.bin files, in load order."""

    engines: tuple[str, ...]
    smu_image: bool = True
    """the SMU boots from the image in its file; False where only the file's tables for the PSP are used"""


_FAMILIES: dict[tuple[int, int], _Family] = {
    (9, 4): _Family(("mec", "rlc"), smu_image=False),
    (9, 5): _Family(("mec", "rlc"), smu_image=False),
    (11, 0): _Family(("mec", "imu", "rlc")),
    (12, 0): _Family(("pfp", "me", "mec", "imu", "rlc")),
}
"""by major and minor version of GC"""

_WITHOUT_SMU_FILE = ((13, 0, 12),)
"""versions of MP1 for which no file is published"""


@dataclass(frozen=True)
class FirmwareFiles:
    """File names by role: "sos", "smu", "sdma" and the graphics engines."""

    sos: str
    smu: str | None
    sdma: str
    engines: tuple[str, ...]

    @property
    def all(self) -> list[str]:
        return [name for name in (self.sos, self.smu, self.sdma, *self.engines) if name]


@dataclass(frozen=True)
class FirmwareSet:
    """Everything a boot needs, checked and taken apart."""

    sos: Ucode
    smu: Part | None
    """image for the SMU, loaded before everything else; None where it has its own"""
    load_list: tuple[Part, ...]
    """parts for LOAD_IP_FW in order, the SMU's image not among them"""
    mec_start: int
    """byte address at which the compute engine's firmware begins; 0 before gfx11"""


def files_for(versions: Mapping[str, IpVersion]) -> FirmwareFiles:
    """Names of the files for a chip. versions: of GC, MP0, MP1, SDMA0 from IP discovery. Raises UnknownHardware."""
    family = _family(versions["GC"])
    gc = "gc_" + _text(versions["GC"])
    smu = None if versions["MP1"] in _WITHOUT_SMU_FILE else f"smu_{_text(versions['MP1'])}.bin"
    return FirmwareFiles(
        sos=f"psp_{_text(versions['MP0'])}_sos.bin",
        smu=smu,
        sdma=f"sdma_{_text(versions['SDMA0'])}.bin",
        engines=tuple(f"{gc}_{engine}.bin" for engine in family.engines),
    )


def load_set(store: FirmwareStore, versions: Mapping[str, IpVersion]) -> FirmwareSet:
    """Find, check and take apart all files of a chip before anything on the device is touched.

    Raises FirmwareMissing, FirmwareInvalid (also for a file of another generation), UnknownHardware.
    """
    names = files_for(versions)
    sos = store.load(names.sos, ip_major=versions["MP0"][0])
    load_list: list[Part] = []
    smu_image: Part | None = None
    if names.smu:
        smu = store.load(names.smu, ip_major=versions["MP1"][0])
        if _family(versions["GC"]).smu_image:
            smu_image = smu.part("SMU")
        load_list += [part for part in smu.load_list if part.types != (FirmwareType.SMU,)]
    load_list += store.load(names.sdma, ip_major=versions["SDMA0"][0]).load_list
    mec_start = 0
    for name in names.engines:
        ucode = store.load(name, ip_major=versions["GC"][0])
        load_list += ucode.load_list
        if name.endswith("_mec.bin"):
            mec_start = ucode.start_address
    return FirmwareSet(sos, smu_image, tuple(load_list), mec_start)


def _family(gc: IpVersion) -> _Family:
    family = _FAMILIES.get(gc[:2])
    if family is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in _FAMILIES)
        raise UnknownHardware(f"no list of firmware files for GC {_text(gc, '.')}", read=f"known are GC {known}")
    return family


def _text(version: IpVersion, separator: str = "_") -> str:
    return separator.join(str(part) for part in version)
