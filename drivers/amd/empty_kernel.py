"""A code object with one kernel that ends at once, made without a compiler: for measuring what a launch costs."""

from __future__ import annotations

import struct

from drivers.amd import codeobject as layout
from hw.errors import UnknownHardware

S_ENDPGM = 0xBFB00000
S_CODE_END = 0xBF9F0000
"""gfx11 instructions; the second fills what instruction prefetch may touch"""
CODE_DWORDS = 64
KERNARG_BYTES = 24
"""as if for three pointers"""
RSRC1 = 0xE0AF0000
RSRC2_USER_SGPRS = 2 << 1
RSRC2_WORKGROUP_ID_X = 1 << 7
"""what LLVM gives a simple wave32 kernel"""

_SECTION_NAMES = b"\0.text\0.rodata\0.shstrtab\0"


def empty_object(arch: str) -> bytes:
    """The object file for a gfx11 chip. Raises UnknownHardware for other architectures."""
    flags = next((flags for flags, name in layout.ARCH_FLAGS.items() if name == arch), None)
    if flags is None or not arch.startswith("gfx11"):
        raise UnknownHardware(f"no hand-made kernel for {arch}")
    code = struct.pack(f"<{CODE_DWORDS}I", S_ENDPGM, *[S_CODE_END] * (CODE_DWORDS - 1))
    descriptor = struct.pack(
        "<IIIIq20xIIIHHI",
        0,
        0,
        KERNARG_BYTES,
        0,
        -len(code),
        0,
        RSRC1,
        RSRC2_USER_SGPRS | RSRC2_WORKGROUP_ID_X,
        layout.KERNARG_POINTER | layout.WAVE32,
        0,
        0,
    )
    bodies = ((b".text", code, layout.SHF_ALLOC, 256), (b".rodata", descriptor, layout.SHF_ALLOC, 64), (b".shstrtab", _SECTION_NAMES, 0, 1))
    sections = bytes(64)
    data = b""
    for name, body, section_flags, align in bodies:
        kind = layout.SHT_PROGBITS if section_flags else 3
        place = _SECTION_NAMES.index(name)
        sections += struct.pack("<IIQQQQIIQQ", place, kind, section_flags, 0, 64 + len(data), len(body), 0, 0, align, 0)
        data += body
    count = len(bodies) + 1
    header = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0x40, layout.TYPE_RELOCATABLE, layout.MACHINE_AMDGPU, 1, 0, 0, 64 + len(data), flags, 64, 0, 0, 64, count, count - 1
    )
    return header + data + sections
