"""What a job says of its own time, what its ledger says, and where they differ. Pure.

Both are counts and seconds by kind, with the names of the ledger's kinds. Seconds of a pause are those that a step took longer: of a
loader the longest wait of any rank, as the others wait for that one.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

KINDS = ("gc", "checkpoint", "loader", "hang", "down", "redone")
NEAR = 0.05  # of counts and of seconds
_TELLS_S = 1.0  # a launcher may start a job again in less, which no account of hours needs to know
_SAME_S = 10.0  # between the waits of ranks for one answer

Sums = dict[str, float]


def lines_of(text: str) -> list[dict[str, Any]]:
    """Read what a rank wrote; a last line that is cut off was cut by the kill."""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def of_job(told: Sequence[Sequence[Mapping[str, Any]]], steps: Sequence[tuple[float, float]], killed_at: float) -> Sums:
    """Sum up by kind what the ranks wrote. `steps`: end and number of each of rank 0's; `killed_at`: Unix seconds."""
    found: dict[str, list[float]] = defaultdict(list)
    waits = []
    for rows in told:
        for row in rows:
            if row["kind"] == "loader":
                waits.append((float(row["at"]), float(row["seconds"])))
            elif row["kind"] != "start":
                found[row["kind"]].append(float(row["seconds"]))
    found["loader"] = _longest(sorted(waits))
    again = [row for rows in told for row in rows if row["kind"] == "start" and row["at"] > killed_at]
    if again:
        found["down"].append(min(row["at"] for row in again) - killed_at)
        before = max((number for end, number in steps if end <= killed_at), default=0.0)
        usual_s = statistics.median(later - end for (end, _), (later, _) in pairwise(steps)) if len(steps) > 1 else 0.0
        found["redone"].append((before - float(again[0]["step"])) * usual_s)
    return {key: value for kind in KINDS for key, value in _sums(kind, "true", found[kind])}


def of_ledger(entries: Iterable[Mapping[str, Any]]) -> Sums:
    """Sum up the entries of `rankscope ledger --json` by kind; pauses that have no kind as `pause`."""
    found = {f"{kind} told{unit}": 0.0 for kind in (*KINDS, "pause") for unit in ("", "_s")}
    for entry in entries:
        if f"{entry['kind']} told" in found:
            found[f"{entry['kind']} told"] += entry["count"]
            found[f"{entry['kind']} told_s"] += round(entry["seconds"], 3)
    return found


def problems(sums: Mapping[str, float]) -> list[str]:
    """Name the kinds whose count or hours the ledger has wrong, by more than `NEAR`."""
    wrong = []
    for kind in KINDS:
        for unit, words in (("", "events"), ("_s", "seconds")):
            true, told = sums.get(f"{kind} true{unit}", 0.0), sums.get(f"{kind} told{unit}", 0.0)
            if not true:
                wrong.append(f"the job had no {kind}")
            elif abs(told - true) > NEAR * true and not (unit and max(told, true) < _TELLS_S):
                wrong.append(f"{kind}: {told:.5g} {words} in the ledger, {true:.5g} in the job")
    return list(dict.fromkeys(wrong))


def table(sums: Mapping[str, float]) -> list[str]:
    """A line for each kind: count and seconds in the job and in its ledger."""
    lines = [f"{'':14}{'in the job':>22}{'in its ledger':>22}"]
    for kind in (*KINDS, "pause"):
        cells = [
            f"{sums.get(f'{kind} {whose}', 0.0):>10.0f}{sums.get(f'{kind} {whose}_s', 0.0):>10.2f} s"
            for whose in ("true", "told")
        ]
        lines.append(f"{kind:14}" + "".join(cells))
    return lines


def _longest(waits: Sequence[tuple[float, float]]) -> list[float]:
    """Longest of the waits (begin, seconds; in order) that began within `_SAME_S` of the first of them."""
    found: list[tuple[float, float]] = []
    for at, seconds in waits:
        if found and at - found[-1][0] < _SAME_S:
            found[-1] = found[-1][0], max(found[-1][1], seconds)
        else:
            found.append((at, seconds))
    return [seconds for _, seconds in found]


def _sums(kind: str, whose: str, seconds: Sequence[float]) -> tuple[tuple[str, float], tuple[str, float]]:
    return (f"{kind} {whose}", float(len(seconds))), (f"{kind} {whose}_s", round(sum(seconds), 3))
