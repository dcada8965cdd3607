"""Memory queue descriptor (MQD): 2048 bytes in VRAM from which the compute front end loads a queue. Fields are dwords.

Dwords FIRST_REGISTER..LAST_REGISTER have the order of the registers CP_MQD_BASE_ADDR..CP_HQD_PQ_WPTR_HI, so that a driver copies
them as one block. Source: public amdgpu headers (v11_structs).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent

SIZE = 2048
"""bytes"""
DWORDS = SIZE // 4
HEADER = 0xC0310800
FIRST_REGISTER = 128
LAST_REGISTER = 183
FIRST_REGISTER_NAME = "CP_MQD_BASE_ADDR"
DOORBELL_DWORDS_PER_SLOT = 2
"""doorbell registers count dwords, software counts 64-bit slots"""


@cache
def fields(generation: int = 11) -> dict[str, int]:
    """Dword index by field name, for a generation of the graphics block that has a table here."""
    text = (_HERE / f"mqd_{generation}.tbl").read_text(encoding="ascii")
    return {name: int(index, 16) for name, index in (line.split() for line in text.splitlines())}
