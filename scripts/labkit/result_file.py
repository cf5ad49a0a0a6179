"""Results of a lab in a file of JSON: written in one piece, read with every reason to distrust it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from labkit.machine.shell import EXIT_USAGE, LabError


class Kept(Protocol):
    """A result that can be written down."""

    def as_json(self) -> dict[str, Any]: ...


class Ended(Protocol):
    """A result that says of which case it is."""

    @property
    def case(self) -> Any: ...


_Result = TypeVar("_Result")
_Ended = TypeVar("_Ended", bound=Ended)
_Case = TypeVar("_Case")


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


def resumed(
    args: argparse.Namespace,
    read_file: Callable[[Path], list[_Ended]],
    chosen: Sequence[_Case],
    key: Callable[[Any], Hashable],
) -> tuple[list[_Ended], list[_Case]]:
    """What the file of `--resume` holds, and which of the chosen cases are left, as told on standard output. LabError where it is not a
    file of that lab. `key`: what two runs of one case have in common."""
    try:
        results = read_file(args.resume) if args.resume else []
    except ValueError as error:
        raise LabError(str(error), exit_code=EXIT_USAGE) from None
    done = {key(result.case) for result in results}
    left = [case for case in chosen if key(case) not in done]
    if len(left) < len(chosen):
        print(f"{len(chosen) - len(left)} of {len(chosen)} cases are in {args.resume} already")
    return results, left
