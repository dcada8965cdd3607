"""Finding firmware files: a folder that the user names, the environment, the system's firmware folders; plain or compressed.

Nothing is ever downloaded or copied. Compressed copies (.xz, .zst) are what many distributions install.
"""

from __future__ import annotations

import logging
import lzma
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from firmware.amd_ucode import Ucode, parse
from hw.errors import FirmwareInvalid, FirmwareMissing, PermissionMissing

log = logging.getLogger(__name__)

ENVIRONMENT = "TGHW_FIRMWARE"
"""environment variable: folders to look in first, separated like PATH"""
SYSTEM_FOLDERS = ("/lib/firmware/updates/amdgpu", "/lib/firmware/amdgpu", "/usr/lib/firmware/amdgpu")
SUBFOLDER = "amdgpu"
"""a folder may also be the parent of the files' folder, e.g. /lib/firmware"""
MAX_SIZE = 64 << 20
"""no firmware file is larger than this many bytes; a limit against decompression bombs"""

_INSTALL = "install it (Debian: apt-get install firmware-amd-graphics, component non-free-firmware), or name a folder that has it with --firmware DIR or in " + ENVIRONMENT


class FirmwareStore:
    """Where firmware comes from. Folders given here are looked at first, then those of TGHW_FIRMWARE, then the system's."""

    def __init__(self, *folders: str | os.PathLike[str]) -> None:
        named = [Path(folder) for folder in folders]
        environment = [Path(folder) for folder in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if folder]
        self.folders = list(dict.fromkeys([*named, *environment, *(Path(folder) for folder in SYSTEM_FOLDERS)]))
        self._files: dict[str, bytes] | None = None

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> FirmwareStore:
        """A store that has exactly these files and looks nowhere else."""
        store = cls()
        store.folders = []
        store._files = dict(files)
        return store

    def find(self, name: str) -> bytes:
        """Content of a firmware file by its plain name, decompressed. Raises FirmwareMissing, FirmwareInvalid, PermissionMissing."""
        data, place = self._look_up(name)
        if not data:
            raise FirmwareInvalid(f"{place} is empty", read="0 bytes", means="a copy of the file that did not finish")
        return data

    def load(self, name: str, *, ip_major: int | None = None) -> Ucode:
        """A firmware file, checked and taken apart (see amd_ucode.parse)."""
        ucode = parse(name, self.find(name), ip_major=ip_major)
        log.debug("%s: header %d.%d, version %#x, checksum %s", name, *ucode.header_version, ucode.version, ucode.checksum)
        return ucode

    def has(self, name: str) -> bool:
        """True when a file of that name is there, whatever is in it."""
        return name in self._files if self._files is not None else self.where(name) is not None

    def where(self, name: str) -> Path | None:
        """The path that find() would read, or None."""
        for folder in self.folders:
            for base in (folder, folder / SUBFOLDER):
                for suffix in _READERS:
                    path = base / (name + suffix)
                    if path.is_file():
                        return path
        return None

    def _look_up(self, name: str) -> tuple[bytes, str]:
        if self._files is not None:
            if name not in self._files:
                raise FirmwareMissing(f"firmware file {name} is not in this set", read="it has " + (", ".join(sorted(self._files)) or "no files"), remedy=_INSTALL)
            return self._files[name], name
        path = self.where(name)
        if path is None:
            places = ", ".join(str(folder) for folder in self.folders)
            raise FirmwareMissing(f"firmware file {name} was not found (plain, .xz or .zst)", read=f"looked in {places}", remedy=_INSTALL)
        try:
            raw = path.read_bytes()
        except PermissionError as error:
            raise PermissionMissing(f"reading {path}", read=str(error), remedy="make the file readable for this user") from error
        except OSError as error:
            raise FirmwareInvalid(f"{path} cannot be read", read=str(error)) from error
        return _READERS[path.suffix if path.suffix in _READERS else ""](raw, str(path)), str(path)


def _plain(raw: bytes, path: str) -> bytes:
    return raw


def _unxz(raw: bytes, path: str) -> bytes:
    if not raw:
        return raw
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    try:
        data = decompressor.decompress(raw, MAX_SIZE)
    except lzma.LZMAError as error:
        raise FirmwareInvalid(f"{path} cannot be decompressed", read=f"xz: {error}", means="the compressed file is damaged") from error
    if not decompressor.eof:
        raise FirmwareInvalid(f"{path} cannot be decompressed", read=f"xz: no end after {len(data)} bytes", means=_NO_END)
    return data


def _unzstd(raw: bytes, path: str) -> bytes:
    if not raw:
        return raw
    import zstandard

    decompressor = zstandard.ZstdDecompressor().decompressobj()
    data = bytearray()
    try:
        for start in range(0, len(raw), _ZSTD_STEP):
            data += decompressor.decompress(raw[start : start + _ZSTD_STEP])
            if decompressor.eof or len(data) > MAX_SIZE:
                break
    except zstandard.ZstdError as error:
        raise FirmwareInvalid(f"{path} cannot be decompressed", read=f"zstd: {error}", means="the compressed file is damaged") from error
    if not decompressor.eof or len(data) > MAX_SIZE:
        raise FirmwareInvalid(f"{path} cannot be decompressed", read=f"zstd: no end after {len(data)} bytes", means=_NO_END)
    return bytes(data)


_ZSTD_STEP = 256
"""compressed bytes a step: a block of 4 bytes may stand for 128 KiB, so that a step stays below 10 MiB"""
_NO_END = "the compressed file was cut short, or it is no firmware"

_READERS: dict[str, Callable[[bytes, str], bytes]] = {"": _plain, ".xz": _unxz, ".zst": _unzstd}
"""how a file of each suffix is read, in the order of preference"""
