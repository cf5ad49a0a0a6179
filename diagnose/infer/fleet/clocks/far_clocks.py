"""Correct windows whose host clock is wrong by more than a window, so that they claim another time.

A step ends with a collective, which ends on all ranks at the same time: if a window has the same
step lengths as the others, one by one, the difference is the clock's (align.py). Windows with other
steps did observe another time, and are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from rankscope.diagnose.infer.fleet.clocks.align import far_offset
from rankscope.diagnose.infer.fleet.labels import floats, ints, texts
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import clean, minutes
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Manifest
from rankscope.probes.base.arrays import Floats


@dataclass(frozen=True, slots=True)
class Shown:
    """Part of a window needed to compare clocks: ranks (job, rank) and steps (rank, start_s,
    seconds)."""

    manifest: Manifest
    ranks: pa.Table
    steps: pa.Table


_Any = TypeVar("_Any", Window, Shown)


def with_right_clocks(windows: Sequence[_Any], elsewhere: Sequence[_Any]) -> tuple[list[_Any], list[_Any], list[Note]]:
    """Correct the start of windows whose host clock was wrong but whose steps match the others'.

    `windows`: chosen by their times; `elsewhere`: of other hosts, with other times. For each job
    those of `windows` off the time of most hosts, and those of `elsewhere`, are tried. Returns
    `windows` with the corrected ones added or replaced, the originals of the corrected ones, and
    notes.
    """
    right: list[_Any] = []
    were: list[_Any] = []
    notes: list[Note] = []
    for jobs in dict.fromkeys(window.manifest.jobs for window in windows):
        mine = [window for window in windows if window.manifest.jobs == jobs]
        best, others = _most(mine)
        others += [each for each in elsewhere if each.manifest.jobs == jobs]
        found, said = _set_right(best, others) if others else ([], [])
        were += [window for window, _ in found]
        right += [window for _, window in found]
        notes += said
    put = {id(window) for window in were}
    kept: list[_Any] = [window for window in windows if id(window) not in put]
    return kept + right, were, notes


def _most(windows: Sequence[_Any]) -> tuple[list[_Any], list[_Any]]:
    """Split windows into those of the time with most hosts, and the others."""
    moments: list[list[_Any]] = []
    for window in sorted(windows, key=lambda one: -one.manifest.start):
        if moments and moments[-1][0].manifest.start - window.manifest.start < window.manifest.seconds / 2:
            moments[-1].append(window)
        else:
            moments.append([window])
    best = max(moments, key=lambda moment: len({_who(window) for window in moment}))
    return best, [window for moment in moments if moment is not best for window in moment]


def _set_right(windows: Sequence[_Any], others: Sequence[_Any]) -> tuple[list[tuple[_Any, _Any]], list[Note]]:
    """Pair windows of `others` that observed the same time as `windows` with corrected copies.

    Also returns notes. Takes at most one window per host, and none with ranks that are present
    already.
    """
    found: list[tuple[_Any, _Any]] = []
    off: list[tuple[float, str]] = []
    there = {_who(window) for window in windows}
    ranks = {each for window in windows for each in _ranks(window)}
    for other in others:
        if _who(other) in there or (mine := _ranks(other)) & ranks:
            continue
        offset_s = _offset(windows, other)
        later_s = other.manifest.start - windows[0].manifest.start
        # Otherwise the clock is right and the window began at another time.
        if offset_s is not None and abs(offset_s) >= abs(later_s) / 2:
            there.add(_who(other))
            ranks |= mine
            start = other.manifest.start + offset_s
            found.append((other, replace(other, manifest=replace(other.manifest, start=start))))
            off.append((offset_s, other.manifest.host))
    return found, [_note(off)] if off else []


def _offset(windows: Sequence[_Any], other: _Any) -> float | None:
    """Return the seconds to add to the clock of `other` so that its steps match; None if undecided.

    Compares step lengths with the window of `windows` that shares a job with it and has most steps.
    """
    jobs = set(other.manifest.jobs)
    longest = max(
        (window for window in windows if jobs & set(window.manifest.jobs)), key=lambda each: each.steps.num_rows, default=None
    )  # fmt: skip
    if longest is None or longest.steps.num_rows == 0 or other.steps.num_rows == 0:
        return None
    return far_offset(_ends(longest), _ends(other))


def _ends(window: Window | Shown) -> Floats:
    """Unix times, sorted, at which the steps of the rank with most steps end."""
    rank = ints(window.steps, "rank")
    each, counts = np.unique(rank, return_counts=True)
    mine = rank == each[np.argmax(counts)]
    ends = window.manifest.start + (floats(window.steps, "start_s") + floats(window.steps, "seconds"))[mine]
    return np.sort(ends[np.isfinite(ends)])


def _who(window: Window | Shown) -> tuple[str, str]:
    """Return what identifies the host of a window: (name, machine id)."""
    return window.manifest.host, window.manifest.machine


def _ranks(window: Window | Shown) -> set[tuple[str, int]]:
    """Return (job, rank number) of each rank in a window."""
    return set(zip(texts(window.ranks, "job"), ints(window.ranks, "rank").tolist(), strict=True))


def _note(off: Sequence[tuple[float, str]]) -> Note:
    """Build the note on corrected clocks; `off`: (seconds added, host) of each, the largest 8 are named."""
    worst = sorted(off, key=lambda each: -abs(each[0]))
    named = ", ".join(
        f"{clean(host, 60)} {minutes(abs(by_s))} {'behind' if by_s > 0 else 'ahead'}" for by_s, host in worst[:8]
    )
    more = f" and {len(worst) - 8} more" if len(worst) > 8 else ""
    text = f"clocks are wrong ({named}{more}): the windows of these hosts were put with the others' by the lengths of their steps"
    return Note(NoteCode.CLOCKS_DIFFER, text)
