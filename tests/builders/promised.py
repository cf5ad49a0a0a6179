"""What the schemas of the commands' JSON allow (diagnose/face/schemas), and how a document can be spoilt.

Stricter than what a reader would hold against a document: a field that no schema has is a complaint too, so that none is printed without
being described.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

SUFFIX = ".schema.json"
_ROOM = resources.files("rankscope.diagnose.face.schemas")


def index() -> dict[str, list[dict[str, Any]]]:
    """Command → its outputs: schema, exit codes, arguments, whether they are lines."""
    content: dict[str, list[dict[str, Any]]] = json.loads((_ROOM / "index.json").read_text(encoding="utf-8"))
    return content


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by its name, as it is shipped."""
    files = [one for one in _ROOM.iterdir() if one.name.endswith(SUFFIX)]
    return {one.name.removesuffix(SUFFIX): json.loads(one.read_text(encoding="utf-8")) for one in files}


def complaints(name: str, document: Any) -> list[str]:
    """What is wrong with a document by the schema of this name: where, and what."""
    errors = _validator(name).iter_errors(document)
    return [f"{'/'.join(map(str, one.absolute_path))}: {one.message[:300]}" for one in errors]


def allows(name: str, document: Any) -> bool:
    """Whether the schema has no complaint: sooner told than which."""
    return bool(_validator(name).is_valid(document))


@cache
def _validator(name: str) -> Draft202012Validator:
    closed = {f"{each}{SUFFIX}": _closed(schema) for each, schema in schemas().items()}
    registry: Registry[Any] = Registry().with_resources(
        [(each, Resource.from_contents(schema)) for each, schema in closed.items()]
    )
    return Draft202012Validator(closed[f"{name}{SUFFIX}"], registry=registry, format_checker=FormatChecker())


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with no room for other fields in the document, or in what it lists."""
    if schema.get("type") == "array":
        return {**schema, "items": {**schema["items"], "unevaluatedProperties": False}}
    return {**schema, "unevaluatedProperties": False}


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something lies in a document, as keys and indices."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key)
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for at, value in enumerate(document):
            yield from places(value, (*path, at))


def at(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


def without(document: Any, place: tuple[Any, ...]) -> Any:
    """A copy in which this field is missing."""
    return _changed(document, place, None)


def replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value there."""
    return _changed(document, place, (value,))


def _changed(document: Any, place: tuple[Any, ...], value: tuple[Any] | None) -> Any:
    key, *rest = place
    made = copy.copy(document)
    if rest:
        made[key] = _changed(made[key], tuple(rest), value)
    elif value is None:
        del made[key]
    else:
        (made[key],) = value
    return made
