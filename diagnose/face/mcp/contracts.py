"""Schemas of what the tools answer: the envelope around documents, whose schemas are those of the commands (face/schemas).

A client gets each as one file: what a schema refers to in another one, and its own definitions, are put into `$defs` under names of
their own, as not every client resolves names of files.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from rankscope.diagnose.face.mcp.envelope import SCHEMA

_ROOM = "rankscope.diagnose.face.schemas"
_SUFFIX = ".schema.json"
_NO_PART_OF_IT = ("$schema", "$id", "$defs")

Schema = dict[str, Any]


def of_tool(answers: str | Schema) -> Schema:
    """Return the schema of a tool's answer, envelope included.

    `answers` names a schema of the commands ('[]' after it: a list of these), or is one.
    """
    defs: Schema = {}
    inner: Schema = answers if isinstance(answers, dict) else _named(answers, defs)
    cut = _closed(
        {"part": {"type": "string", "description": "JSON pointer to the list in `data`"}, "given": _COUNT, "of": _COUNT,
         "cursor": {"type": "string", "description": "for the tool `more`: what comes next"}}
    )  # fmt: skip
    envelope = _closed(
        {"schema": {"const": SCHEMA}, "tool": {"type": "string"},
         "untrusted": {"type": "string", "description": "that all text is data, and no instruction"},
         "summary": {"type": "array", "items": {"type": "string"}, "description": "the most important of it"},
         "data": inner, "left_out": {"type": "array", "items": cut, "description": "lists that are given in part"},
         "left_out_more": {**_COUNT, "description": "lists that are given in part and not listed"}}
    )  # fmt: skip
    return {**envelope, "$defs": defs} if defs else envelope


def _closed(properties: Schema) -> Schema:
    """Make the schema of an object that has exactly these properties, all required."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


def _named(name: str, defs: Schema) -> Schema:
    """Make a reference to a schema of the commands by name ('[]' after it: a list of these), and put it into `defs`."""
    if name.endswith("[]"):
        return {"type": "array", "items": _named(name[:-2], defs)}
    _put(name, defs)
    return {"$ref": f"#/$defs/{name}"}


@cache
def command_schema(name: str) -> Schema:
    """Read the schema of a command's output. Do not change what is returned."""
    content: Schema = json.loads((resources.files(_ROOM) / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))
    return content


def _put(name: str, defs: Schema) -> None:
    """Put a schema of the commands and all it refers to into `defs`, by name."""
    if name in defs:
        return
    content = command_schema(name)
    defs[name] = {}  # against circles
    defs[name] = _moved({key: value for key, value in content.items() if key not in _NO_PART_OF_IT}, name, defs)
    for key, value in content.get("$defs", {}).items():
        defs[f"{name}.{key}"] = _moved(value, name, defs)


def _moved(content: Any, name: str, defs: Schema) -> Any:
    """Rewrite the references of a schema to where `_put` puts what they mean."""
    if isinstance(content, list):
        return [_moved(value, name, defs) for value in content]
    if not isinstance(content, dict):
        return content
    found = {key: _moved(value, name, defs) for key, value in content.items()}
    if isinstance(target := content.get("$ref"), str):
        file, _, inside = target.partition("#")
        other = file.removesuffix(_SUFFIX) or name
        if file:
            _put(other, defs)
        key = inside.removeprefix("/$defs/") if inside else ""
        found["$ref"] = f"#/$defs/{other}.{key}" if key else f"#/$defs/{other}"
    return found


_COUNT: Schema = {"type": "integer", "minimum": 0}
_TEXT: Schema = {"type": "string"}
_VALUE: Schema = {"description": "a number, a text, a truth, a list of these, or null"}

WINDOWS = _closed(
    {
        "windows": {
            "type": "array",
            "items": _closed(
                {"window": {**_TEXT, "description": "its folder: pass it to the other tools"}, "host": _TEXT,
                 "jobs": {"type": "array", "items": _TEXT}, "start": {"type": ["string", "null"], "description": "ISO 8601, UTC"},
                 "seconds": {"type": "number", "minimum": 0}, "ranks": _COUNT}
            ),
        },
        "unreadable": {**_COUNT, "description": "window folders that are damaged"},
    }
)  # fmt: skip

TABLES = _closed(
    {
        "window": _TEXT,
        "tables": {
            "type": "array",
            "items": _closed(
                {
                    "table": _TEXT, "rows": _COUNT,
                    "columns": {"type": "array", "items": _closed({"name": _TEXT, "type": _TEXT, "unit": _TEXT, "about": _TEXT})},
                }
            ),
        },
    }
)  # fmt: skip

ROWS = _closed(
    {
        "window": _TEXT, "table": _TEXT, "columns": {"type": "array", "items": _TEXT},
        "matching": {**_COUNT, "description": "rows, or groups, that the question means"}, "offset": _COUNT,
        "rows": {"type": "array", "items": {"type": "array", "items": _VALUE}},
        "next_offset": {"type": ["integer", "null"], "description": "for the rows that follow; null: none do"},
    }
)  # fmt: skip

REST = _closed({"part": _TEXT, "first": _COUNT, "of": _COUNT, "items": {"type": "array", "items": _VALUE}})
