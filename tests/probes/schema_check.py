"""The part of JSON Schema that our schemas use."""

from __future__ import annotations

from typing import Any

KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def problems(schema: dict[str, Any], value: Any, place: str = "$") -> list[str]:
    """What in `value` the schema does not allow."""
    if "oneOf" in schema:
        found_in = [problems(each, value, place) for each in schema["oneOf"]]
        return [] if [] in found_in else [f"{place}: none of {len(found_in)} forms fits", *min(found_in, key=len)]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{place}: {value!r} is none of {schema['enum']}"]
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else wanted or []
    if names and not any(isinstance(value, KINDS[name]) and not (isinstance(value, bool) and name != "boolean") for name in names):
        return [f"{place}: {type(value).__name__} is not {' or '.join(names)}"]
    found: list[str] = []
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{place}: {name} is missing" for name in schema.get("required", []) if name not in value]
        found += [f"{place}: {name} is not in the schema" for name in value if name not in schema["properties"]]
        for name, part in schema["properties"].items():
            if name in value:
                found += problems(part, value[name], f"{place}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            found += problems(schema["items"], item, f"{place}[{number}]")
    return found
