"""The set of firmware files that one chip boots from: found, checked and taken apart before anything on the card is touched."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.amd.discovery import Discovery, Version
from firmware.amd_ucode import Part, Ucode, parse
from firmware.store import FirmwareStore


@dataclass(frozen=True)
class FirmwareSet:
    """Everything that the PSP is handed in a boot."""

    sos: Ucode
    smu: Part
    engines: tuple[Part, ...]
    """in load order: copy engine, compute front end, start-up unit, run list controller"""
    mec_start: int
    """byte address where the compute front end begins"""

    @property
    def size(self) -> int:
        """Bytes handed over."""
        return sum(len(part.data) for part in (*self.sos.parts, self.smu, *self.engines))


def suffix(version: Version) -> str:
    return "_".join(map(str, version))


def file_names(ip: Discovery) -> dict[str, str]:
    """Names of the files by their role."""
    gc = suffix(ip.version("GC"))
    return {
        "sos": f"psp_{suffix(ip.version('MP0'))}_sos.bin",
        "smu": f"smu_{suffix(ip.version('MP1'))}.bin",
        "sdma": f"sdma_{suffix(ip.version('SDMA0'))}.bin",
        "mec": f"gc_{gc}_mec.bin",
        "imu": f"gc_{gc}_imu.bin",
        "rlc": f"gc_{gc}_rlc.bin",
    }


MAJOR_OF = {"sos": "MP0", "smu": "MP1", "sdma": "SDMA0", "mec": "GC", "imu": "GC", "rlc": "GC"}
"""block whose major version a file must carry"""


def load(store: FirmwareStore, ip: Discovery) -> FirmwareSet:
    """Find and check every file. Raises FirmwareMissing, FirmwareInvalid naming the file."""
    files = {role: parse(name, store.find(name), ip_major=ip.version(MAJOR_OF[role])[0]) for role, name in file_names(ip).items()}
    engines = [part for role in ("sdma", "mec", "imu", "rlc") for part in files[role].load_list]
    return FirmwareSet(files["sos"], files["smu"].part("SMU"), tuple(engines), files["mec"].start_address)
