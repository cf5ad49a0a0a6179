"""In what two verdicts on the same recorded window differ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

from labkit import verdicts
from labkit.verdicts import Suspect

# Lost times that agree to a hundredth are the same: a statistic that is computed in another order moves in its last digits.
SAME_LOST = 0.01
# Of confidences, which verdicts round to two digits: one unit of the last.
SAME_CONFIDENCE = 0.0101


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
