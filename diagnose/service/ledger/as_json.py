"""A ledger as JSON, schema `rankscope.ledger/1`, and back; what is read is not trusted. Pure.

```
schema, job, user, title, host
world_size, ranks_here, gpus        ranks of the job, on this host; whether they use GPUs
began, until                        Unix seconds: start of its first process; all until then is accounted for
ended                               how it ended, "" while it runs
steps, step_seconds                 seen, and their usual length (null: unknown)
runs, processes[[pid, start]]       starts of the job; processes of the last one
productive_seconds, saved_step      steps at their usual length; step of the last checkpoint, 0 for none
run_first_step                      steps of earlier runs
run                                 digest of the job's arguments and folder, "" if unknown
others{count, seconds}              pauses for which there was no entry left
entries[]   kind                    start-up, gc, checkpoint, evaluation, loader, pause, hang, down, redone, slow, unseen
            what                    function, or what a verdict named; "" if unknown
            scope, ranks[[rank, count]], of_more      some | all | none (all wait) | unknown; who works in it
            count, seconds, longest_seconds, first, last
            recent[[time, step]]    the last of them
            every_seconds, every_steps                recurrence, null if there is none (written, not read)
            named, asked, wrote     windows that saw one; windows for it; in how many a rank wrote to disk
```

`rankscope ledger --json` adds, for each ledger:

```
hours, lost_hours, lost_rank_hours  since its start; not productive; the same of all ranks (GPU-hours where `gpus`)
seconds{kind: seconds}              sums
gains[]     what, seconds, count, action      what would come back, the most first
```

`productive_seconds` and the seconds of all entries and `others` add up to `until` - `began`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rankscope.diagnose.service.ledger import recurrence
from rankscope.diagnose.service.ledger.entries import MOST
from rankscope.diagnose.service.ledger.entry import RANKS_MOST, RECENT_MOST, Entry, Kind, Ledger, Scope
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import BadData

SCHEMA = "rankscope.ledger/1"
TEXT_MOST = 256
_PROCESSES_MOST = 16
_COUNT_MOST = 1 << 53
_SECONDS_MOST = 1e10  # 300 years
_Read = TypeVar("_Read")


def to_json(ledger: Ledger, host: str) -> dict[str, Any]:
    """Convert a ledger to a JSON object of schema `rankscope.ledger/1`. `host`: name of this host."""
    return {
        "schema": SCHEMA, "job": ledger.job, "user": ledger.user, "title": ledger.title, "host": host,
        "world_size": ledger.world, "ranks_here": ledger.here, "gpus": ledger.gpus,
        "began": round(ledger.began, 3), "until": round(ledger.until, 3), "ended": ledger.ended,
        "steps": ledger.steps, "step_seconds": None if ledger.step_s is None else round(ledger.step_s, 6),
        "runs": ledger.runs, "processes": [list(one) for one in ledger.processes],
        "productive_seconds": round(ledger.productive_s, 3), "saved_step": ledger.saved_steps,
        "run_first_step": ledger.first_step, "run": ledger.run,
        "others": {"count": ledger.others[0], "seconds": round(ledger.others[1], 3)},
        "entries": [_entry_json(entry, ledger.step_s) for entry in ledger.entries],
    }  # fmt: skip


def _entry_json(entry: Entry, step_s: float | None) -> dict[str, Any]:
    """Convert an entry to a JSON object, with its recurrence. `step_s`: usual duration of a step, None if unknown."""
    rhythm = recurrence.find(entry.recent, step_s)
    return {
        "kind": entry.kind.value, "what": entry.what, "scope": entry.scope.value,
        "ranks": [list(one) for one in entry.ranks], "of_more": entry.of_more,
        "count": entry.count, "seconds": round(entry.seconds, 3), "longest_seconds": round(entry.longest_s, 3),
        "first": round(entry.first, 3), "last": round(entry.last, 3),
        "recent": [[round(at, 3), step] for at, step in entry.recent],
        "every_seconds": None if rhythm is None else round(rhythm.seconds, 3),
        "every_steps": None if rhythm is None else rhythm.steps,
        "named": entry.named, "asked": entry.asked, "wrote": entry.wrote,
    }  # fmt: skip


def from_json(content: object) -> Ledger:
    """Read a ledger from decoded JSON; ignore unknown fields. Raises BadData if malformed or of another schema."""
    try:
        return _ledger(_object(content))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadData(f"no ledger: {type(error).__name__} {clean(str(error), 80)}") from error


def _ledger(content: dict[str, Any]) -> Ledger:
    """Read a ledger from its JSON object. Raises KeyError, TypeError or ValueError if it is none."""
    if content["schema"] != SCHEMA:
        raise ValueError("another schema")
    others = _object(content["others"])
    step_s = content["step_seconds"]
    made = Ledger(
        _text(content["job"]), _text(content["user"]), _text(content["title"]),
        _count(content["world_size"]), _count(content["ranks_here"]), content["gpus"] is True,
        _seconds(content["began"]), _seconds(content["until"]), _seconds(content["productive_seconds"]),
        _count(content["steps"]), None if step_s is None else _seconds(step_s), _count(content["runs"]),
        _rows(content["entries"], MOST, _entry), (_count(others["count"]), _seconds(others["seconds"])),
        _text(content["ended"]), _rows(content["processes"], _PROCESSES_MOST, lambda row: _pair(row, _count)),
        _count(content["saved_step"]), _count(content["run_first_step"]), _text(content.get("run", "")),
    )  # fmt: skip
    if not made.job or made.until < made.began:
        raise ValueError("times or a name that cannot be")
    return made


def _entry(content: object) -> Entry:
    """Read an entry of a ledger from its JSON object. Raises KeyError, TypeError or ValueError if it is none."""
    row = _object(content)
    return Entry(
        _kind(row["kind"]), _text(row["what"]), Scope(row["scope"]), _count(row["count"]), _seconds(row["seconds"]),
        _seconds(row["longest_seconds"]), _seconds(row["first"]), _seconds(row["last"]),
        _rows(row["ranks"], RANKS_MOST, lambda one: _pair(one, _count)), _count(row["of_more"]),
        _rows(row["recent"], RECENT_MOST, lambda one: _pair(one, _seconds)),
        _count(row["named"]), _count(row["asked"]), _count(row["wrote"]),
    )  # fmt: skip


def _kind(value: object) -> Kind:
    """Return the kind with this name. Raises ValueError if unknown, and for `productive`, which has no entries."""
    kind = Kind(value)
    if kind is Kind.PRODUCTIVE:
        raise ValueError("no kind of an entry")
    return kind


def _object(value: object) -> dict[str, Any]:
    """Return a JSON object as it is. Raises TypeError for any other value."""
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _rows(value: object, most: int, read: Callable[[object], _Read]) -> tuple[_Read, ...]:
    """Read each item of a JSON list by `read`. Raises TypeError for no list, or one of more than `most` items."""
    if not isinstance(value, list) or len(value) > most:
        raise TypeError("no list, or too long")
    return tuple(read(one) for one in value)


def _pair(value: object, first: Callable[[object], _Read]) -> tuple[_Read, int]:
    """Read a JSON list of two: one value by `first`, and a count. Raises TypeError, ValueError."""
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError("no pair")
    return first(value[0]), _count(value[1])


def _text(value: object) -> str:
    """Return a string, cleaned and cut to `TEXT_MOST` characters. Raises TypeError for any other value."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return clean(value, TEXT_MOST)


def _count(value: object) -> int:
    """Return an integer from 0 to 2**53 as it is. Raises ValueError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _COUNT_MOST:
        raise ValueError("no count")
    return value


def _seconds(value: object) -> float:
    """Return a number from 0 to `_SECONDS_MOST` as a float. Raises ValueError for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _SECONDS_MOST:
        raise ValueError("no seconds")
    return float(value)  # what is not finite is not within these bounds
