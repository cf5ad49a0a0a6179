"""The page's timeline: steps of the shown rank above those of a peer, each split into parts."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.face.report.chosen import Chosen
from rankscope.diagnose.face.report.content import Timeline, Track
from rankscope.diagnose.face.report.words import moment
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.text import clean
from rankscope.probes.base.arrays import Floats, Ints

PARTS = ("own work", "files", "waits for a CPU", "locks and other threads", "waits for other ranks", "not known")
BARS_MOST = 480  # bars that a screen can distinguish


def timeline_of(fleet: Fleet, verdict: Verdict, chosen: Chosen) -> Timeline | None:
    """Build the timeline; None if no step of the rank was seen."""
    shown = [row for row in (chosen.culprit, chosen.peer) if row >= 0]
    if not fleet.steps.count or not np.isfinite(fleet.steps.seconds[chosen.culprit]).any():
        return None
    bundled = -(-fleet.steps.count // BARS_MOST)
    columns = _longest(fleet.steps.seconds[chosen.culprit], bundled)
    tracks = tuple(_track(fleet, chosen, row, columns) for row in shown)
    longest = max(float(np.nanmax(track.total_s)) for track in tracks if np.isfinite(track.total_s).any())
    onset, text = _onset(fleet, verdict)
    return Timeline(tracks, longest, bundled, onset // bundled if onset >= 0 else -1, text)


def _track(fleet: Fleet, chosen: Chosen, row: int, columns: Ints) -> Track:
    """Build the bars of one rank (`row`) from the steps in these columns, split into PARTS."""
    steps = fleet.steps
    io_s, sched_s, sync_s = (np.nan_to_num(part[row]) for part in (steps.io_s, steps.sched_s, steps.sync_s))
    work = np.maximum(steps.own_s[row] - io_s - sched_s - sync_s, 0.0)
    rest = np.maximum(steps.seconds[row] - steps.own_s[row] - steps.wait_s[row], 0.0)
    parts = np.stack([work, io_s, sched_s, sync_s, steps.wait_s[row], rest])
    parts = np.clip(np.nan_to_num(parts, posinf=0.0), 0.0, fleet.seconds)  # a forged window may contain anything
    parts[:, ~np.isfinite(steps.seconds[row])] = np.nan
    bars = parts[:, columns]
    return Track(clean(chosen.named(fleet, row)), bars, np.asarray(bars.sum(axis=0)))


def _longest(seconds: Floats, bundled: int) -> Ints:
    """Return the column of the rank's longest step in each bundle of so many; a mean would hide rare ones."""
    known = np.nan_to_num(seconds, nan=-1.0)
    padded = np.concatenate([known, np.full(-len(known) % bundled, -2.0)]).reshape(-1, bundled)
    columns: Ints = np.argmax(padded, axis=1) + np.arange(len(padded)) * bundled
    return columns


def _onset(fleet: Fleet, verdict: Verdict) -> tuple[int, str]:
    """Return the column at which the first suspect's slowness began, and the time in words; -1 and '' if unknown.

    The column is -1 also if no step begins after that.
    """
    since = verdict.suspects[0].since if verdict.suspects else None
    if since is None:
        return -1, ""
    after = np.flatnonzero(fleet.steps.start_s >= since - fleet.start - 1e-3)
    return (int(after[0]) if len(after) else -1), moment(since)
