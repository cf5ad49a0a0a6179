"""Two judgings of the same recorded windows: which verdicts differ, and in what."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from labkit import cases, verdicts
from labkit.machine.shell import EXIT_USAGE, LabError
from labkit.verdicts import Suspect

# Lost times that agree to a hundredth are the same: a statistic that is computed in another order moves in its last digits.
SAME_LOST = 0.01
# Of confidences, which verdicts round to two digits: one unit of the last.
SAME_CONFIDENCE = 0.0101


def judgings(place: Path) -> dict[str, str]:
    """Name of the case → its verdict as text, from a file of --json or from a folder of kept cases."""
    try:
        if place.is_dir():
            found = {kept.parent.name: kept.read_text() for kept in sorted(place.glob("*/verdict.json"))}
        else:
            found = {result.case.name: result.verdict for result in cases.read(place)}
    except (OSError, ValueError) as error:
        raise LabError(str(error), exit_code=EXIT_USAGE) from None
    if not found:
        raise LabError(f"{place} holds no verdicts", "Give a file of --json, or a folder of kept cases.", EXIT_USAGE)
    return found


def differences(before: str, after: str) -> list[str]:
    """In what two verdicts differ, one line each: status, who is suspected in which order, lost seconds, confidence."""
    try:
        one, other = verdicts.parse(before), verdicts.parse(after)
    except verdicts.BadVerdict as error:
        return [] if before == after else [f"not to be compared: {error}"]
    found = [] if one.status == other.status else [f"status {one.status} → {other.status}"]
    for place, (was, now) in enumerate(itertools.zip_longest(one.suspects, other.suspects), 1):
        found += [f"suspect {place}: {line}" for line in _of_suspect(was, now)]
    return found


def _of_suspect(was: Suspect | None, now: Suspect | None) -> Iterator[str]:
    if was is None or now is None or _identity(was) != _identity(now):
        yield f"{was or 'nobody'} → {now or 'nobody'}"
        return
    if abs(was.lost_s - now.lost_s) > SAME_LOST * max(was.lost_s, now.lost_s):
        yield f"{was}: lost {was.lost_s:.6f} → {now.lost_s:.6f} s per step"
    if abs(was.confidence - now.confidence) > SAME_CONFIDENCE:
        yield f"{was}: confidence {was.confidence:.2f} → {now.confidence:.2f}"


def _identity(suspect: Suspect) -> tuple[object, ...]:
    said = json.loads(suspect.said)
    return suspect.component, suspect.cause, suspect.ranks, suspect.host, suspect.instance, said["function"]


def comparison(before: dict[str, str], after: dict[str, str]) -> tuple[list[str], bool]:
    """What to print, and whether every case of the first judging is in the second with the same verdict."""
    lines = []
    differ = 0
    common = [name for name in before if name in after]
    for name in common:
        found = differences(before[name], after[name])
        differ += bool(found)
        lines += [f"{name}: {line}" for line in found]
    missing = [name for name in before if name not in after]
    lines += [f"{name}: only in the first" for name in missing]
    lines += [f"{name}: only in the second" for name in after if name not in before]
    lines.append(f"{len(common)} cases compared: {len(common) - differ} the same, {differ} differ")
    return lines, not differ and not missing
