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

ERROR = _object({"code": STRING, "what": STRING, "read": STRING, "means": STRING, "remedy": STRING})
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
        "link": {**NULLABLE_STRING, "description": "speed and width now, as 16GT/s x16"},
        "link_max": NULLABLE_STRING,
        "driver": NULLABLE_STRING,
        "power_state": NULLABLE_STRING,
        "boot_state": NULLABLE_STRING,
        "held_by": NULLABLE_STRING,
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

SCHEMAS: dict[str, dict[str, Any]] = {
    "probe": _object({"devices": _array(DEVICE), "transport": STRING}),
    "boot": _object({"address": STRING, "arch": STRING, "stages": _array(STAGE), "seconds": NUMBER, "boot_state": STRING}),
    "run": _object({"program": STRING, "device": STRING, "ok": BOOLEAN, "seconds": NUMBER, "results": {"type": "object"}}),
    "disasm": _object({"arch": STRING, "sections": _array({"type": "object"})}),
    "mock list": _object({"profiles": _array(_object({"name": STRING, "summary": STRING}))}),
    "mock show": _object({"name": STRING, "summary": STRING, "functions": _array({"type": "object"}), "faults": {"type": "object"}}),
    "bench": {"type": "object", "description": "one key a benchmark; inside: figure name to value, unit in the name"},
    "demo": _object({"steps": _array({"type": "object"}), "ok": BOOLEAN}),
    "explain": _object({"code": STRING, "means": STRING, "remedy": STRING, "exit_status": INTEGER}),
}
