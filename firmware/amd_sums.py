"""Sums of published files whose stored CRC-32 fits nothing in them.

Most published RLC and SMU files carry a sum that was taken before the last parts were appended. For the releases below the stored
value is a fingerprint all the same: the file with that value must have this content.
"""

from __future__ import annotations

STALE_SUMS: dict[int, int] = {
    0xF42FE7F4: 0x9B40B6CB,  # gc_11_0_0_rlc.bin of Debian 12
    0x33F7B26B: 0x92A81D0B,  # gc_11_0_0_rlc.bin of Debian 13
    0xF5F627FE: 0xE312CCCE,  # gc_11_0_2_rlc.bin of Debian 12
    0xC10F0F52: 0x6006C58A,  # gc_11_0_2_rlc.bin of Debian 13
    0x31458FE1: 0xAAF9099A,  # gc_11_0_3_rlc.bin of Debian 13
    0x027E658A: 0xC3C0A8C1,  # smu_13_0_0.bin of Debian 12
    0xB08B7EAE: 0x73403455,  # smu_13_0_0.bin of Debian 13
    0xB4EB974D: 0x08FF85F2,  # smu_13_0_10.bin of Debian 13
    0x12CD6FCE: 0x8B042149,  # smu_13_0_7.bin of Debian 12
    0x5CDC00A0: 0x3457D638,  # smu_13_0_7.bin of Debian 13
}
"""stored crc32 -> CRC-32 of the bytes from 32 to the end"""
