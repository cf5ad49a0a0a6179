"""Convert dataclasses to plain JSON and back, treating the input as untrusted.

Only the expected types are decoded, and all text is made printable: an attacker in the confined
process can give wrong values, no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rankscope.probes.base.errors import BadData
from rankscope.probes.base.text import printable

_CHARACTERS = 65536  # per text; a command line has at most these
_LARGEST = 1 << 64
_MOST_LISTS = 1_000_000  # an empty one takes two bytes here, and 56 of memory
_Seen = TypeVar("_Seen")


def pack(value: object) -> bytes:
    """Encode a dataclass of dataclasses, tuples, mappings, text and numbers as JSON."""
    return json.dumps(_plain(value)).encode()


def unpack(kind: type[_Seen], data: bytes) -> _Seen:
    """Decode what `pack` encoded. Raises BadData for anything else."""
    try:
        if data.count(b"[") + data.count(b"{") > _MOST_LISTS:
            raise ValueError("absurdly much")
        found: _Seen = _of(kind, json.loads(data))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise BadData(f"the observing process sent unexpected data: {printable(str(error), 100)}") from error
    return found


def _plain(value: object) -> Any:
    """Convert nested data for JSON: dataclasses to lists of their fields, mappings to lists of [key, value]."""
    if is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


@lru_cache(maxsize=64)
def _parts(kind: Any) -> tuple[Any, ...]:
    """Return the types of the fields of a dataclass, in order."""
    hints = get_type_hints(kind)
    return tuple(hints[field.name] for field in fields(kind))


def _of(kind: Any, value: Any) -> Any:
    """Decode a plain value as the type `kind`, its text made printable. Raises TypeError, ValueError for any other."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        (kind,) = (one for one in inner if one is not NoneType)
        return _of(kind, value)
    if kind is str and isinstance(value, str):
        return printable(value, _CHARACTERS)
    if kind is float and isinstance(value, int | float):
        return float(value)
    if kind in (int, bool) and type(value) is kind and abs(value) < _LARGEST:
        return value
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} in place of {kind}")
    if is_dataclass(kind):
        make: Any = kind
        return make(*(_of(part, one) for part, one in zip(_parts(make), value, strict=True)))
    if origin is tuple and inner[1:] == (...,):
        return tuple(_of(inner[0], one) for one in value)
    if origin is tuple:
        return tuple(_of(part, one) for part, one in zip(inner, value, strict=True))
    if origin is dict:
        return {_of(inner[0], key): _of(inner[1], one) for key, one in value}
    raise TypeError(f"a list in place of {kind}")
