"""The PSP's flash mailbox: command numbers, error codes, bits. Facts only.

Registers C2PMSG_115 (command and status), C2PMSG_116 (data) and C2PMSG_73 (doorbell) of MP0, the same in Linux psp_v13_0. Source of the
early commands: the flash tools of a GPU project; of the live ones also Linux amdgpu.
"""

from __future__ import annotations

from enum import IntEnum

READY = 1 << 31
"""in the command register: the firmware waits for a command, or has answered"""
COMMAND_SHIFT = 16
ERROR_MASK = 0xFFFF
RING = 1
"""what is written to the doorbell"""


class EarlyCommand(IntEnum):
    """Before the secure OS runs."""

    GET_BOOT_PARTITION = 0x01
    GET_FB_STATE = 0x06
    GET_TRANSFER_TYPE = 0x07
    START_TRANSFER = 0x08
    DATA_TRANSFER = 0x09
    END_TRANSFER = 0x0A
    SPI_GET_MODEL_ID = 0x0B


PROBE = (EarlyCommand.GET_BOOT_PARTITION, EarlyCommand.GET_FB_STATE, EarlyCommand.SPI_GET_MODEL_ID, EarlyCommand.GET_TRANSFER_TYPE)
"""the questions of a status probe, in order; they start nothing"""


class LiveCommand(IntEnum):
    """While the secure OS runs."""

    ADDRESS_LOW = 0x02
    ADDRESS_HIGH = 0x03
    UPDATE = 0x04


SIZE_SHIFT = 8
"""START and END carry size << 8 | item; GET_TRANSFER_TYPE answers phase << 8 | item"""
ITEM_MASK = 0xFF
LONGEST_ITEM = 0xFFFFFF
"""bytes"""
LAST_PHASE = 2
"""of the state that asks for the last item"""
MOST_ITEMS = 19
"""items of one update, at most"""

GATED = 0xA
"""what GET_TRANSFER_TYPE answers once the secure OS runs"""

ERRORS: dict[int, str] = {
    0x1: "generic error",
    0x2: "out of bounds",
    0x3: "invalid parameter",
    0x4: "off-chip boot",
    0x5: "address not set",
    0x6: "off-chip image cannot be parsed",
    0x7: "address map",
    0x8: "on-chip image cannot be parsed",
    0x9: "full update",
    0xA: "partition update",
    0xB: "on-chip map",
    0xC: "write to SPI",
    0xD: "signature validation",
    0xE: "invalid command",
    0xF: "signature not found",
    0x10: "state machine not initialized",
    0x11: "state machine: transfer",
    0x12: "initialization",
}
