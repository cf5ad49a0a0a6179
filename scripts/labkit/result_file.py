"""Results of a lab in a file of JSON: written in one piece, read with every reason to distrust it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Kept(Protocol):
    """A result that can be written down."""

    def as_json(self) -> dict[str, Any]: ...


_Result = TypeVar("_Result")


def plain(value: Any) -> Any:
    """Sets as sorted lists, so that JSON can hold them."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def save(path: Path, results: Sequence[Kept]) -> None:
    """Write all results in one piece: an interrupted lab leaves the file of the case before."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps([result.as_json() for result in results], indent=1))
    draft.rename(path)


def read(path: Path, from_json: Callable[[dict[str, Any]], _Result], whose: str) -> list[_Result]:
    """The results in a file; none where there is no file. ValueError where it is not one of `whose`."""
    if not path.exists():
        return []
    try:
        return [from_json(item) for item in json.loads(path.read_text())]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} holds no results of {whose}: {error}") from None
