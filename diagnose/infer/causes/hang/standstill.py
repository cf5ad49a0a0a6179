"""Decide whether the job hangs, and why; in a hang nothing is slow, something is missing.

A rank stalls if its last marker (collective, backward) is older than max(5 ordinary steps, 3 s, the
longest step of the window). The job hangs if every remaining rank stalls. Suspects, in this order:
ranks that are stopped; ranks that ended before the window (gone.py); ranks that ended since; ranks
in no collective while the others wait in one; ranks that NCCL's RAS reports as behind
(processes.py). Failed hardware (failed_hardware.py) beats all but the first, because ranks die of
their GPU. Where all ranks wait, the suspect is the link that data waits for (unacknowledged.py), or
ranks that wait elsewhere (other_place.py). Flight recorders add evidence (flight.py).

Where no rank was seen to enter or leave a collective in the whole window, the kind of wait is
unknown: the job may load, or the hang is older than the window. Such a job hangs if each rank waits
in one place throughout, and a rank is gone or sent data is not acknowledged for as long.

A job that is starting (model/still/starting.py) hangs only where a rank is stopped, gone or delayed by
failed hardware. While a job hangs the step in progress is lost altogether: lost time is the stall
so far, 100 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hang import unacknowledged
from rankscope.diagnose.infer.causes.hang.failed_hardware import (
    application_failures,
    failed_gpus,
    failed_ports,
    orphaned_gpus,
)
from rankscope.diagnose.infer.causes.hang.flight import with_flight
from rankscope.diagnose.infer.causes.hang.gone import gone_before, most_are_left
from rankscope.diagnose.infer.causes.hang.loading import longest_pattern
from rankscope.diagnose.infer.causes.hang.other_place import elsewhere
from rankscope.diagnose.infer.causes.hang.processes import by_process
from rankscope.diagnose.infer.causes.hang.silence import Standstill, patience_s, silent_s
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis, suspect_from
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence, Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode

_WAITS = frozenset({"sync", "collective"})


@dataclass(frozen=True, slots=True)
class Hang:
    """A job that makes no progress: its suspects, and notes."""

    suspects: tuple[Suspect, ...]
    notes: tuple[Note, ...]


def find_hang(fleet: Fleet, step_s: float | None) -> Hang | None:
    """Return the hang at the end of the window with its suspects; None if the job moves.

    `step_s`: an ordinary step, in seconds; None where none is known.
    """
    fleet = replace(fleet, ranks=fleet.ranks.with_gone(fleet.gone))
    still = _explained(fleet, step_s)
    if still is None:
        return None
    if fleet.flight:
        still = with_flight(fleet, still, fleet.flight)
    lost_s = max(still.stalled_s - (step_s or 0.0), 0.0)
    # When it began; unknown if it may have begun before the window.
    since = fleet.start + fleet.seconds - still.stalled_s if still.stalled_s < fleet.seconds else None
    suspects = []
    for found in still.found:
        suspect = suspect_from(fleet, replace(found, lost_s=lost_s, since=since), None, found.support)
        suspects.append(suspect if found.rows else replace(suspect, ranks=_only_missing(fleet)))
    return Hang(tuple(suspects), still.notes)


def _explained(fleet: Fleet, step_s: float | None) -> Standstill | None:
    """Return the standstill with its causes: by processes, hardware or links; None if the job moves.

    `step_s`: an ordinary step, in seconds; None where none is known.
    """
    still = by_process(fleet, step_s)
    failed = failed_gpus(fleet)
    if still is None:
        return _without_gpu(fleet, failed, step_s) or _older_than_the_window(fleet, step_s)
    if not failed:
        failed = application_failures(fleet, [row for found in still.found for row in found.rows])
    if not failed and not still.found:
        failed = orphaned_gpus(fleet) or failed_ports(fleet)
    if failed:
        return _by_hardware(fleet, still, failed)
    return still if still.found else _all_wait(fleet, still)


def _older_than_the_window(fleet: Fleet, step_s: float | None) -> Standstill | None:
    """Explain a silence of the whole window by a missing rank or a stuck link; None otherwise."""
    ranks, table = fleet.ranks, fleet.patterns
    here = np.flatnonzero(ranks.seen).tolist()
    silent = step_s is None and not np.isfinite(ranks.last_progress_s).any() and not (ranks.in_collective_s > 0).any()
    if not silent or any(ranks.state[row] != "running" for row in here) or fleet.seconds < limits.STALL_SECONDS:
        return None
    for row in here:
        each = longest_pattern(fleet, row)
        if each is None or table.kind.at(each) not in _WAITS or table.beta[each] < limits.NEARLY_ALWAYS:
            return None
    if fleet.gone:
        waiting = Evidence("stacks", "the others wait, each in one place", fleet.seconds, None, "s", len(here))
        return Standstill(fleet.seconds, gone_before(fleet, (waiting,))) if most_are_left(fleet) else None
    found = _all_wait(fleet, Standstill(fleet.seconds, ()))
    return found if any(each.component == "network" for each in found.found) else None


def _without_gpu(fleet: Fleet, failed: Sequence[Hypothesis], step_s: float | None) -> Standstill | None:
    """Explain a stall by a lost GPU where no rank is seen to wait in a collective.

    Its rank makes no progress after the loss, or ended before the window, and all others are
    silent.
    """
    silent, seen = silent_s(fleet), fleet.ranks.seen
    least = max(step_s or 0.0, limits.LOST_SECONDS)
    lost = tuple(each for each in failed if each.cause == "lost")
    still = tuple(each for each in lost if seen[each.rows[0]] and silent[each.rows[0]] >= least)
    if still:
        return _by_hardware(fleet, Standstill(min(float(silent[each.rows[0]]) for each in still), ()), still)
    stalled_s = float(silent[seen].min(initial=np.inf))
    if stalled_s < min(patience_s(fleet, step_s), 0.9 * fleet.seconds):
        return None
    orphans = tuple(each for each in lost if not seen[each.rows[0]]) or orphaned_gpus(fleet)
    return _by_hardware(fleet, Standstill(stalled_s, ()), orphans) if orphans else None


def _by_hardware(fleet: Fleet, still: Standstill, failed: Sequence[Hypothesis]) -> Standstill:
    """Return the hang with failed hardware as the cause; a stopped rank remains the first suspect."""
    ended = {row: each for each in still.found for row in each.rows}
    found = [each for each in still.found if each.cause == "stopped"]
    for each in failed[: budgets.INSTANCES_SHOWN]:
        row = each.rows[0] if each.rows else None
        evidence = list(each.evidence)
        if row in ended:
            evidence.extend(ended[row].evidence[:2])
        else:
            state = fleet.ranks.state[row] if row is not None else "not there"
            evidence.append(Evidence("process", "state at the end of the window", state, "running", ""))
        whose = "the others" if row is None else "the rank"
        silent = still.stalled_s if row is None else float(silent_s(fleet)[row])
        evidence.append(Evidence("calls", f"no progress of {whose}", silent, None, "s"))
        found.append(replace(each, evidence=tuple(evidence)))
    return Standstill(still.stalled_s, tuple(found))


def _all_wait(fleet: Fleet, still: Standstill) -> Standstill:
    """Explain a hang in which all wait: by a link, by ranks elsewhere, or by unseen peers (notes)."""
    stuck = unacknowledged.stuck_pairs(fleet, still.stalled_s)
    link = unacknowledged.judge(fleet, stuck, still.stalled_s)
    if link is not None:
        waiting = Evidence("calls", "no progress of any rank", still.stalled_s, None, "s", len(fleet.ranks))
        link = replace(link, evidence=(*link.evidence, waiting))
        return Standstill(still.stalled_s, (link,))
    if not stuck and (odd := elsewhere(fleet, still.stalled_s)):
        return Standstill(still.stalled_s, odd)
    unseen = sorted({peer for _, peer in stuck})
    notes = tuple(
        Note(NoteCode.UNACKNOWLEDGED, f"what is sent to {peer} is not acknowledged: look there first")
        for peer in unseen[: budgets.INSTANCES_SHOWN]
    )
    return Standstill(still.stalled_s, (), (*still.notes, *notes))


def _only_missing(fleet: Fleet) -> tuple[int, ...]:
    """Return the number of the missing rank as a tuple; empty unless exactly one is missing."""
    missing = fleet.ranks.missing()
    return (int(missing[0]),) if len(missing) == 1 else ()
