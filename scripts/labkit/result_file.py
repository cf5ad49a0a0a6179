"""Results of a lab in a file of JSON: written in one piece, read with every reason to distrust it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_USAGE, LabError


class Ended(Protocol):
    """A result that says of which case it is."""

    @property
    def case(self) -> Any: ...


_Result = TypeVar("_Result")
_Ended = TypeVar("_Ended", bound=Ended)
_Case = TypeVar("_Case")


def plain(value: Any) -> Any:
    """What JSON can hold of it: dataclasses by their fields, sets as sorted lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def restored(kind: type[_Result], item: dict[str, Any]) -> _Result:
    """A dataclass from what `plain` made of it; what it has no field for is left out. TypeError or AttributeError where it is none."""
    hints = _hints(cast("Hashable", kind))
    return kind(**{name: _value(hints[name], value) for name, value in item.items() if name in hints})


def _value(hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _value(inner[0], value)
    if origin in (tuple, frozenset):
        return origin(_value(inner[0], one) for one in value)
    if origin is dict:
        return {name: _value(inner[1], one) for name, one in value.items()}
    return restored(hint, value) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of its fields by name; those that may be None say so last."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def save(path: Path, results: Sequence[object]) -> None:
    """Write all results in one piece: an interrupted lab leaves the file of the case before."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(plain(results), indent=1))
    draft.rename(path)


def read(path: Path, kind: type[_Result]) -> list[_Result]:
    """The results in a file; none where there is no file. ValueError where they are of another lab."""
    if not path.exists():
        return []
    try:
        return [restored(kind, item) for item in json.loads(path.read_text())]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} holds no results of this lab: {error}") from None


def examined(
    args: argparse.Namespace,
    kind: type[_Ended],
    chosen: Sequence[_Case],
    run: Callable[[Sequence[_Case]], Iterator[_Ended]],
    tell: Callable[[_Ended, int, int], object],
    key: Callable[[Any], Hashable] = lambda case: case,
    counts: Callable[[_Ended], bool] = lambda result: True,
) -> list[_Ended]:
    """Results of all cases: those that the file of `--resume` holds, then of those that are left, each told (result, number, of how many)
    and written into the file as it ends. `key`: what two runs of one case have in common; `counts`: whether an earlier one is one."""
    try:
        results = [one for one in read(args.resume, kind) if counts(one)] if args.resume else []
    except ValueError as error:
        raise LabError(str(error), exit_code=EXIT_USAGE) from None
    done = {key(result.case) for result in results}
    left = [case for case in chosen if key(case) not in done]
    if len(left) < len(chosen):
        print(f"{len(chosen) - len(left)} of {len(chosen)} cases are in {args.resume} already")
    file = args.resume or args.json
    for number, result in enumerate(run(left), 1):
        results.append(result)
        tell(result, number, len(left))
        if file:
            save(file, results)
    return results


def printed(lines: Iterator[str], good: bool) -> int:
    """Print a table; the exit code."""
    print()
    print("\n".join(lines))
    return 0 if good else EXIT_NOT_GOOD_ENOUGH
