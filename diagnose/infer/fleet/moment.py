"""Select the windows of a job that cover the same time.

    same time  windows that overlap by at least half of one of them; the group with most hosts wins
    besides    windows of hosts without one: those that share STEPS_FEW steps with the group, since steps
               are compared one by one; or, in a job without progress, those after a gap shorter than the
               silence that was observed

Hosts that were asked to observe at once begin later where loading takes long, and a busy host is
the one to look at. No Python loop runs over ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.labels import floats, ints
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import clean, minutes
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.arrays import Floats, Ints

COLUMNS = (WINDOW, "rank", "last_progress_s")  # columns of the table of ranks that are used here


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one job: host, start and length of each; and their ranks.

    `of_rank`, `rank`, `silent_s`: by rank, sorted by window: window, number, seconds without
    progress at the end of the window (NaN: the whole window).
    """

    hosts: tuple[str, ...]
    start: Floats
    seconds: Floats
    of_rank: Ints
    rank: Ints
    silent_s: Floats

    @classmethod
    def of(cls, manifests: Sequence[Manifest], numbers: Sequence[int], ranks: pa.Table) -> Windows:
        """Build from the manifests with these `numbers`, rising, and the table of their ranks.

        `numbers`: indices in `manifests` of all windows that the table refers to.
        """
        about = [manifests[number] for number in numbers]
        start, seconds = (np.array([getattr(each, name) for each in about]) for name in ("start", "seconds"))
        window = ints(ranks, WINDOW)
        order = np.argsort(window, kind="stable")
        of_rank = np.searchsorted(np.array(numbers), window[order])
        silent_s = floats(ranks, "last_progress_s")[order]
        return cls(tuple(each.host for each in about), start, seconds, of_rank, ints(ranks, "rank")[order], silent_s)

    def ranks_of(self, window: int) -> slice:
        """Slice of the rank rows of one window."""
        first, last = np.searchsorted(self.of_rank, (window, window + 1)).tolist()
        return slice(first, last)


def of_one_moment(
    manifests: Sequence[Manifest],
    numbers: Sequence[int],
    ranks: pa.Table,
    step_s: float | None,
    agreed_s: float | None,
    notes: list[Note],
) -> list[int]:
    """Select the windows of a job that cover the same time, newest first; add a note on the others.

    `numbers`: of the windows, rising. Among groups with equally many hosts choose the newest, or
    the one nearest to `agreed_s`. `step_s`: usual step length, None if unknown.
    """
    windows = Windows.of(manifests, numbers, ranks)
    best = _most_hosts(windows, agreed_s)
    best = np.concatenate([best, _of_the_same(windows, best, step_s)])
    if len(best) < len(numbers):
        text = "windows of other moments were given as well; the newest common one is judged, the others are left out"
        notes.append(Note(NoteCode.OTHER_MOMENTS, text))
        notes += _hosts_without(windows, best)
    return [numbers[at] for at in best[np.argsort(-windows.start[best], kind="stable")].tolist()]


def _most_hosts(windows: Windows, agreed_s: float | None) -> Ints:
    """Return the windows (indices, by start) that overlap and have most hosts.

    They begin within half of one window's length from its start. Of equal groups the newest, or the
    one nearest to `agreed_s` (Unix time).
    """
    order = np.argsort(windows.start, kind="stable")
    start, half = windows.start[order], windows.seconds[order] / 2
    first, last = np.searchsorted(start, start - half, "right"), np.searchsorted(start, start + half, "left")
    wanted = start if agreed_s is None else -np.abs(start - agreed_s)
    there = Counter[str]()  # windows per host among `low` .. `high` - 1
    low = high = 0
    best = (0, -np.inf, 0)
    for at, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        while high < end:
            there[windows.hosts[order[high]]] += 1
            high += 1
        while low < begin:
            host = windows.hosts[order[low]]
            there[host] -= 1
            if not there[host]:
                del there[host]
            low += 1
        best = max(best, (len(there), float(wanted[at]), at))
    return np.asarray(order[first[best[2]] : last[best[2]]], dtype=np.int64)


def _of_the_same(windows: Windows, moment: Ints, step_s: float | None) -> Ints:
    """Return further windows (indices) that belong to the group `moment`, of hosts and ranks not in it.

    They share STEPS_FEW steps with it, or no rank made progress from one to the other. `moment`:
    indices of windows; `step_s`: usual step, None if unknown.
    """
    inside = np.isin(windows.of_rank, moment)
    hosts, ranks = {windows.hosts[at] for at in moment.tolist()}, set(windows.rank[inside].tolist())
    begins_s, seconds = median(windows.start[moment]), median(windows.seconds[moment])
    here = _Silence.of(windows.silent_s[inside], seconds)
    others = np.setdiff1d(np.arange(len(windows.start)), moment)
    found = []
    for at in others[np.argsort(np.abs(windows.start[others] - begins_s), kind="stable")].tolist():
        begin, length = float(windows.start[at]), float(windows.seconds[at])
        common_s = min(begins_s + seconds, begin + length) - max(begins_s, begin)
        if windows.hosts[at] in hosts or common_s < -(seconds + length):
            continue
        rows = windows.ranks_of(at)
        there = _Silence.of(windows.silent_s[rows], length)
        still_s = there.after(here) if begin > begins_s else here.after(there)
        in_steps = step_s is not None and common_s >= limits.STEPS_FEW * step_s
        if (in_steps or still_s + common_s >= 0) and ranks.isdisjoint(mine := windows.rank[rows].tolist()):
            found.append(at)
            hosts.add(windows.hosts[at])
            ranks.update(mine)
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Silence:
    """Absence of progress in windows that begin together.

    `least_s`: shortest silence of a rank at the end; `moved`: whether any rank made progress;
    `seconds`: length.
    """

    least_s: float
    moved: bool
    seconds: float

    @classmethod
    def of(cls, silent_s: Floats, seconds: float) -> _Silence:
        """Summarise the silence by rank (NaN: the whole window) in windows of this length."""
        least_s = float(np.nan_to_num(silent_s, nan=seconds).min(initial=np.inf))
        return cls(least_s, bool(np.isfinite(silent_s).any()), seconds)

    def after(self, earlier: _Silence) -> float:
        """Return the seconds without any progress from the end of `earlier` through this window.

        -inf if this window had progress, or `earlier` less than limits.STALL_SECONDS (or its
        length) of silence at its end.
        """
        stood = not self.moved and earlier.least_s >= min(limits.STALL_SECONDS, earlier.seconds)
        return earlier.least_s + self.seconds if stood else -np.inf


def _hosts_without(windows: Windows, moment: Ints) -> list[Note]:
    """Return a note on hosts whose windows are all outside the group `moment` (indices); empty if there are none."""
    there = {windows.hosts[at] for at in moment.tolist()}
    begins_s = median(windows.start[moment])
    later_s: dict[str, float] = {}
    for host, begin in zip(windows.hosts, windows.start.tolist(), strict=True):
        if host not in there and abs(begin - begins_s) < abs(later_s.get(host, np.inf)):
            later_s[host] = begin - begins_s
    if not later_s:
        return []
    named = ", ".join(
        f"{clean(host, 60)} (its own began {minutes(abs(by_s))} {'later' if by_s > 0 else 'earlier'})"
        for host, by_s in sorted(later_s.items())[:8]
    )
    more = f" and {len(later_s) - 8} more" if len(later_s) > 8 else ""
    return [Note(NoteCode.HOSTS_MISSING, f"no window of this moment from: {named}{more}")]
