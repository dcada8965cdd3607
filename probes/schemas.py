"""What the JSON documents of the commands look like; printed by --json-schema, checked by a test against real output."""

from __future__ import annotations

from typing import Any


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required if required is not None else list(properties)}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
NULLABLE_STRING: dict[str, Any] = {"type": ["string", "null"]}

ERROR = _object(
    {
        **dict.fromkeys(("code", "what", "read", "means", "remedy"), STRING),
        "stage": {**STRING, "description": "of a boot; only where one failed"},
        "attempts": {"type": "array", "description": "of no-transport: for each way its transport, what was tried, and its error"},
    },
    required=["code", "what", "read", "means", "remedy"],
)
FAILURE = {**_object({"error": ERROR}), "description": "instead of the command's own document, where it failed before it had one"}
BAR = _object({"index": INTEGER, "address": INTEGER, "size": INTEGER, "is_io": BOOLEAN, "is_64bit": BOOLEAN, "prefetchable": BOOLEAN, "resizable_to": _array(INTEGER)})

DEVICE = _object(
    {
        "index": {"type": ["integer", "null"], "description": "number that --device takes; null for functions that are no GPU"},
        "address": STRING,
        "transport": STRING,
        "vendor": {"type": ["integer", "null"]},
        "device": {"type": ["integer", "null"]},
        "revision": {"type": ["integer", "null"]},
        "class": {"type": ["integer", "null"]},
        "name": STRING,
        "arch": STRING,
        "supported": BOOLEAN,
        "bars": _array(BAR),
        "capabilities": {"type": "array", "description": "decoded capabilities of the configuration space, each with offset, id, name"},
        "link": {**NULLABLE_STRING, "description": "speed and width now, as 16GT/s x16"},
        "link_max": NULLABLE_STRING,
        "driver": NULLABLE_STRING,
        "power_state": NULLABLE_STRING,
        "boot_state": NULLABLE_STRING,
        "held_by": NULLABLE_STRING,
        "bridge": {"type": ["object", "null"], "description": "the USB bridge in front of it"},
        "problem": {**ERROR, "type": ["object", "null"]},
    }
)

STAGE = _object(
    {
        "name": STRING,
        "title": STRING,
        "outcome": {"enum": ["done", "skipped", "failed", "undone"]},
        "seconds": {**NUMBER, "description": "by the device's clock"},
        "error": STRING,
    }
)

NULLABLE_INTEGER: dict[str, Any] = {"type": ["integer", "null"]}
NULLABLE_NUMBER: dict[str, Any] = {"type": ["number", "null"]}

HOLDER = _object(
    {
        "pid": {**INTEGER, "description": "0 for a process of another container"},
        "command": STRING,
        "started": {**INTEGER, "description": "clock ticks after boot"},
        "uid": NULLABLE_INTEGER,
        "kind": {"enum": ["lock", "node"], "description": "our lock file, or a device node of the vendor's driver"},
        "path": STRING,
    }
)
GPU = _object(
    {
        "index": INTEGER,
        "address": STRING,
        "name": STRING,
        "arch": STRING,
        "transport": STRING,
        "driver": NULLABLE_STRING,
        "power_state": NULLABLE_STRING,
        "boot_state": NULLABLE_STRING,
        "link": NULLABLE_STRING,
        "link_max": NULLABLE_STRING,
        "virtual_function": {"type": ["boolean", "null"]},
        "taken": {**NUMBER, "description": "s since 1970"},
        "figures": {"type": "object", "description": "key (gfx_activity, temperature_edge, power ...) to label, value, unit, limit (null where there is none)"},
        "throttle": {"type": ["object", "null"], "description": "reason to percent; null where it is not known"},
        "memory": {**_object({"used": NULLABLE_INTEGER, "total": INTEGER}), "type": ["object", "null"], "description": "bytes of video memory"},
        "metrics_counter": {**NULLABLE_INTEGER, "description": "updates of the metrics table so far"},
        "holders": _array(HOLDER),
        "note": STRING,
        "problem": {**ERROR, "type": ["object", "null"]},
    }
)
RESET = _object(
    {
        "address": STRING,
        "before": NULLABLE_STRING,
        "after": NULLABLE_STRING,
        "method": {**NULLABLE_STRING, "description": "what did it"},
        "seconds": {**NULLABLE_NUMBER, "description": "by the device's clock"},
        "problem": {**ERROR, "type": ["object", "null"]},
    }
)
PLAN = _object(
    {"action": STRING, "modules": _array(STRING), "command": _array(STRING), "holders": _array(HOLDER), "dependents": _array(STRING), "consoles": _array(STRING)}
)
SMI = {
    "oneOf": [
        {**_object({"gpus": _array(GPU)}), "description": "--list; --watch writes one such document a line"},
        {**_object({"devices": _array(_object({"address": STRING, "holders": _array(HOLDER)}))}), "description": "--pids"},
        {
            **_object({"ended": _array(_object({"pid": INTEGER, "command": STRING, "outcome": STRING})), "left": _array(HOLDER), "remarks": _array(STRING)}),
            "description": "--kill-pids",
        },
        {**_object({"action": STRING, "loaded": _array(STRING)}), "description": "--module expect-unloaded"},
        {**_object({"action": STRING, "plan": PLAN, "done": BOOLEAN}), "description": "--module unload, load"},
        {**_object({"resets": _array(RESET)}), "description": "--reset"},
    ]
}

REGISTER = _object(
    {
        "block": STRING,
        "name": STRING,
        "index": {**INTEGER, "description": "dword"},
        "value": {**NULLABLE_INTEGER, "description": "null: not read, reason says why"},
        "fields": {"type": "object", "description": "field to value"},
        "reason": STRING,
    }
)
WRITTEN = _object({**REGISTER["properties"], "before": NULLABLE_INTEGER, "written": INTEGER})
NAMED_REGISTER = _object(
    {
        "block": STRING,
        "name": STRING,
        "base": {**NULLABLE_INTEGER, "description": "which of the block's bases the offset counts from; null: absolute"},
        "offset": INTEGER,
        "fields": {"type": "object", "description": "field to [lowest, highest bit]"},
        "acts_when_read": {**STRING, "description": "what reading it does besides; empty for almost all"},
    }
)
DUMP = _object(
    {
        "format": STRING,
        "version": INTEGER,
        "device": {"type": "object"},
        "registers": {"type": "object", "description": "block to register to index and value, or skipped"},
    }
)
DIFFERENCE = _object({"block": STRING, "name": STRING, "before": NULLABLE_INTEGER, "after": NULLABLE_INTEGER, "fields": {"type": "object"}})

FLASH_CHIP = _object(
    {
        "vendor": STRING,
        "name": STRING,
        "jedec": STRING,
        "captured": {**STRING, "description": "the bytes that READ ID gave"},
        "rotation": {**INTEGER, "description": "by how many places they were rotated"},
        "sfdp_offset": NULLABLE_INTEGER,
        "size": INTEGER,
        "sector": INTEGER,
        "erases": {"type": "object", "description": "size in bytes to opcode"},
    }
)
FLASH_PROTECTION = _object({"start": INTEGER, "end": INTEGER, "why": STRING, "exact": BOOLEAN, "by_cmp": BOOLEAN, "locked": STRING})
FLASH_WAY = {"method": {"enum": ["rom-sw", "rom-index"]}, "reasons": {**_array(STRING), "description": "why this way to the flash"}}
FLASH: dict[str, dict[str, Any]] = {
    "flash info": _object(
        {
            "device": STRING,
            **FLASH_WAY,
            "size": INTEGER,
            "chip": {**FLASH_CHIP, "type": ["object", "null"]},
            "status": {**_object({"sr1": INTEGER, "sr2": INTEGER, "sr3": INTEGER}), "type": ["object", "null"]},
            "protection": {**FLASH_PROTECTION, "type": ["object", "null"]},
            "writable": BOOLEAN,
            "read_only_because": NULLABLE_STRING,
            "first_bytes": STRING,
            "content": STRING,
            "unfinished_write": {**_object({"image": STRING, "name": STRING, "done": INTEGER, "half_done": _array(INTEGER)}), "type": ["object", "null"]},
            "backup": {**_object({"path": STRING, "sha256": STRING, "size": INTEGER, "method": STRING}), "type": ["object", "null"]},
        }
    ),
    "flash read": _object({"offset": INTEGER, "size": INTEGER, "method": STRING, "sha256": STRING, "data": {**NULLABLE_STRING, "description": "hexadecimal; null with --out"}}),
    "flash dump": _object(
        {
            "file": STRING,
            "size": INTEGER,
            "sha256": STRING,
            **FLASH_WAY,
            "remarks": _array(STRING),
            "content": STRING,
            "kept": {**NULLABLE_STRING, "description": "new name of a different file that had this name"},
            "device_seconds": NUMBER,
            "seconds": NUMBER,
        }
    ),
    "flash verify": _object({"file": STRING, "ok": BOOLEAN, "offset": INTEGER, "size": INTEGER, "sha256": STRING, **FLASH_WAY}),
    "flash write": _object(
        {
            "file": STRING,
            "sha256": STRING,
            **FLASH_WAY,
            "plan": _object(
                {
                    "start_sector": INTEGER,
                    "sector_count": INTEGER,
                    "differing": INTEGER,
                    "redone": {**INTEGER, "description": "sectors that an interrupted write left half done and that read right"},
                    "written": INTEGER,
                    "erases": {"type": "object", "description": "size in bytes to how many"},
                    "program_bytes": INTEGER,
                    "chip_seconds": NUMBER,
                }
            ),
            "report": {
                **_object(
                    {
                        "sectors": INTEGER,
                        "erases": INTEGER,
                        "bytes_programmed": INTEGER,
                        "cmp_cleared": BOOLEAN,
                        "device_seconds": NUMBER,
                        "damaged_elsewhere": _array(INTEGER),
                    }
                ),
                "type": ["object", "null"],
                "description": "null when there was nothing to do",
            },
        }
    ),
    "flash serprog": _object(
        {
            "device": STRING,
            "chip": FLASH_CHIP,
            "listen": STRING,
            "operations": INTEGER,
            "bytes_read": INTEGER,
            "bytes_programmed": INTEGER,
            "erases": INTEGER,
            "refused": _array(STRING),
        }
    ),
    "flash mailbox probe": _object(
        {
            "device": STRING,
            "answers": _array(_object({"command": INTEGER, "name": STRING, "error": INTEGER, "error_text": STRING, "value": INTEGER})),
            "gated": BOOLEAN,
            "wanted": {**_object({"item": INTEGER, "phase": INTEGER}), "type": ["object", "null"]},
        }
    ),
    "flash ifwi show": _object(
        {
            "file": STRING,
            "size": INTEGER,
            "sha256": STRING,
            "valid": {**BOOLEAN, "description": "no problem was found; the exit status is 1 otherwise"},
            "items": _array(_object({"item": INTEGER, "name": STRING, "offset": INTEGER, "size": INTEGER, "sha256": STRING})),
            "directories": {"type": "object", "description": "item to its entries, four words each"},
            "slots": {"type": "object"},
            "signatures": _array(_object({"offset": INTEGER, "type": INTEGER, "size": INTEGER, "at": INTEGER})),
            "problems": _array(_object({"offset": INTEGER, "problem": STRING, "what": STRING, "read": STRING})),
            "remarks": _array(STRING),
        }
    ),
    "flash ifwi diff": _object(
        {
            "first": STRING,
            "second": STRING,
            "equal": BOOLEAN,
            "explained": {**BOOLEAN, "description": "an update by the security processor explains every difference"},
            "differences": _array(_object({"offset": INTEGER, "size": INTEGER, "item": NULLABLE_INTEGER, "where": STRING, "explained": STRING})),
        }
    ),
    "flash ifwi stream": _object({"file": STRING, "items": _array(INTEGER), "bytes": INTEGER, "device_seconds": NUMBER, "last_state": INTEGER}),
}

EXPLAINED = _object(
    {
        "code": STRING,
        "kind": STRING,
        "means": STRING,
        "remedy": STRING,
        "exit_status": INTEGER,
        "reproduced_by": {**NULLABLE_STRING, "description": "a command that shows it on a simulated machine"},
        "seen": {**NULLABLE_STRING, "description": "where it happens, when no such command does"},
    }
)

SCHEMAS: dict[str, dict[str, Any]] = {
    **FLASH,
    "probe": _object({"devices": _array(DEVICE), "transport": STRING}),
    "doctor": _object(
        {
            "usable": {**BOOLEAN, "description": "false when something blocks; the exit status is 1 then"},
            "counts": _object({"ok": INTEGER, "warn": INTEGER, "block": INTEGER, "unknown": INTEGER}),
            "findings": _array(
                _object(
                    {
                        "check": {**STRING, "description": "stable name of the check"},
                        "subject": {**STRING, "description": "machine, or a device's address"},
                        "title": STRING,
                        "state": {"enum": ["ok", "warn", "block", "unknown"]},
                        "why": STRING,
                        "read": STRING,
                        "remedy": STRING,
                    }
                )
            ),
        }
    ),
    "boot": _object({"address": STRING, "arch": STRING, "stages": _array(STAGE), "seconds": NUMBER, "boot_state": STRING}),
    "smi": SMI,
    "regs list": _object({"registers": _array(NAMED_REGISTER)}),
    "regs read": _object({"registers": _array(REGISTER)}),
    "regs write": WRITTEN,
    "regs dump": {"oneOf": [DUMP, _object({"file": STRING, "read": INTEGER, "skipped": {"type": "object"}})]},
    "regs diff": _object({"differences": _array(DIFFERENCE)}),
    "run": _object({"program": STRING, "device": STRING, "ok": BOOLEAN, "seconds": NUMBER, "results": {"type": "object"}}),
    "disasm": _object({"arch": STRING, "sections": _array({"type": "object"})}),
    "mock list": _object({"profiles": _array(_object({"name": STRING, "summary": STRING}))}),
    "mock show": _object({"name": STRING, "summary": STRING, "functions": _array({"type": "object"}), "faults": {"type": "object"}}),
    "bridge info": _object({"bridges": _array({"type": "object", "description": "one bridge: ids, firmware, usb_speed (Mb/s), link_state, link, behind, problem"})}),
    "bridge reset": _object({"address": STRING, "reset": {"enum": ["slot", "cpu", "usb"]}, "link_state": INTEGER}),
    "bridge flash": _object(
        {
            "address": STRING,
            "product": STRING,
            "image": STRING,
            "method": STRING,
            "bytes": INTEGER,
            "sha256": STRING,
            "backup": {**NULLABLE_STRING, "description": "file with what was in the flash before"},
            "written": BOOLEAN,
        }
    ),
    "bench": {"type": "object", "description": "one key a benchmark; inside: figure name to value, unit in the name"},
    "demo": _object({"steps": _array({"type": "object"}), "ok": BOOLEAN, "seconds": NUMBER}),
    "explain": {"oneOf": [EXPLAINED, _object({"codes": _array(STRING)})]},
    "options": _object({"options": {"type": "object", "description": "option to its meaning"}}),
}
