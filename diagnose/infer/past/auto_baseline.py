"""`--baseline auto`: choose healthy earlier windows of the same job, host and role from the
history; where it has none, of the newest earlier run of the same program (runs.py).

A window qualifies if it ended before the present one began, is of the same job, user and host, with
the same roles and world size and enough steps, and its verdict was healthy or imbalance (designed),
or unknown only because no rank has a peer. Among these, windows with steps 10 % longer than the
fastest third are left out: a slow-down that was not recognised must not become normal. The newest
few of the rest are used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.past.baseline import FLEETS_MOST
from rankscope.diagnose.infer.past.history import Entry, History, owner_of
from rankscope.diagnose.infer.past.runs import kind_of_run
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import of_user
from rankscope.observer.window.store.users import called

MOST = FLEETS_MOST  # windows per host
_LOOKED_AT = MOST * 20  # newest entries considered per host


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen windows, their names, and notes on the choice or on why there is none."""

    windows: tuple[Window, ...]
    names: tuple[str, ...]
    notes: tuple[Note, ...]


def choose(history: History, windows: Sequence[Window], job: str) -> Chosen:
    """Choose healthy earlier windows for each host of `windows`.

    Never raises; notes say what is missing.
    """
    found: list[Window] = []
    names: list[str] = []
    notes: list[Note] = []
    for window in windows:
        roles, world = _roles(window, job), _world(window, job)
        if roles is None:
            continue
        host, owner = window.manifest.host, owner_of(window, job)
        # A user who copies another's job name must neither define what is normal there, nor hide
        # its past where the census renamed the job because of that.
        of_host = history.entries(None, host)
        entries = [entry for entry in of_host if _same_job(entry, job, owner)]
        before = _ended_before(entries, window)
        usable, of_what = _usable(before, roles, world), "this job"
        if not usable:
            of_kind = _started_alike(_ended_before(of_host, window), kind_of_run(window, job), owner)
            usable, of_what = _of_newest_run(_usable(of_kind, roles, world)), "earlier runs of this job"
        fast = _not_slow(usable[-_LOOKED_AT:])
        chosen: list[tuple[Entry, Window]] = []
        for entry in reversed(fast):
            if len(chosen) < MOST and (earlier := history.window(entry)) is not None:
                chosen.append((entry, called(earlier, {entry.job: job})))
        if not chosen:
            notes.append(Note(NoteCode.BASELINE_NONE, _why_none(history, host, entries, before, usable)))
            continue
        found += [earlier for _, earlier in chosen]
        names += [entry.name for entry, _ in chosen]
        newest, oldest = chosen[0][0], chosen[-1][0]
        slow = len(usable[-_LOOKED_AT:]) - len(fast)
        left_out = f"; {slow} healthy but slower ones were left out" if slow else ""
        text = (
            f"baseline: {len(chosen)} earlier windows of {of_what} on {clean(host, 60)}, "
            f"{_moment(oldest.start)} to {_moment(newest.start)}{left_out}"
        )
        notes.append(Note(NoteCode.BASELINE_CHOSEN, text))
    return Chosen(tuple(found), tuple(names), tuple(dict.fromkeys(notes)))


def _ended_before(entries: Iterable[Entry], window: Window) -> list[Entry]:
    """Select the entries whose window ended before this one began."""
    return [entry for entry in entries if entry.start + entry.seconds <= window.manifest.start + 1e-3]


def _usable(entries: Iterable[Entry], roles: str, world: int) -> list[Entry]:
    """Select the entries that can be a baseline for a job of these roles and this world size."""
    return [entry for entry in entries if (entry.roles, entry.world_size) == (roles, world) and serves(entry)]


def _started_alike(entries: Iterable[Entry], run: str, owner: int) -> list[Entry]:
    """Select the entries of runs of the same user that were started alike; none where `run` is unknown."""
    return [entry for entry in entries if run and (entry.run, entry.owner) == (run, owner)]


def _of_newest_run(entries: Sequence[Entry]) -> list[Entry]:
    """Select the entries of the job of the last one; `entries`: oldest first."""
    return [entry for entry in entries if entry.job == entries[-1].job]


def _same_job(entry: Entry, job: str, owner: int) -> bool:
    """Whether an entry is of the same user's job.

    Entries without a known owner match only unknown owners.
    """
    return entry.owner == owner and of_user(entry.job, entry.owner) == of_user(job, owner)


def serves(entry: Entry) -> bool:
    """Whether a window can be a baseline: healthy, imbalance, or unknown for want of peers; enough steps."""
    judged = entry.status in ("healthy", "imbalance") or (entry.status == "unknown" and entry.peerless)
    return judged and entry.steps >= limits.STEPS_LEAST and np.isfinite(entry.step_p50)


def _not_slow(entries: Sequence[Entry]) -> list[Entry]:
    """Leave out entries with median steps over 10 % longer than those of the fastest third."""
    if not entries:
        return []
    fastest = float(np.quantile([entry.step_p50 for entry in entries], 1 / 3))
    return [entry for entry in entries if entry.step_p50 <= (1 + limits.ALONE_SHARE) * fastest]


def _why_none(
    history: History, host: str, entries: Sequence[Entry], before: Sequence[Entry], usable: Sequence[Entry]
) -> str:
    """Say why a host has no baseline, as the text of a note.

    `entries`: of this job on this host; `before`: those that ended before; `usable`: those that
    could be a baseline.
    """
    if history.strange:
        return f"no baseline: the history is not believed: {clean(history.strange, 200)}"
    start = f"no baseline: {history.folder} holds no healthy earlier window of this job on {clean(host, 60)}"
    if usable:
        return f"{start} that can be read"
    if not entries:
        return f"{start}, and no other one of it"
    if not before:
        return f"{start}: all {len(entries)} of it are of the same time or later"
    said = Counter(entry.status for entry in before)
    return f"{start} with these ranks and roles ({', '.join(f'{count} {status}' for status, count in said.items())})"


def _rows(window: Window, job: str) -> list[dict[str, object]]:
    """Rows of the job in the window's table of ranks: job, role, world size."""
    columns = ("job", "role", "world_size")
    return [row for row in window.ranks.select(columns).to_pylist() if row["job"] == job]


def _roles(window: Window, job: str) -> str | None:
    """Distinct roles of the job's ranks, like `Entry.roles`.

    None if the window has none of its ranks.
    """
    rows = _rows(window, job)
    return ",".join(sorted({str(row["role"]) for row in rows})) if rows else None


def _world(window: Window, job: str) -> int:
    """Largest world size that the job's ranks state in a window; 0 if unknown."""
    return max((int(str(row["world_size"] or 0)) for row in _rows(window, job)), default=0)


def _moment(unix: float) -> str:
    """Format Unix time as '2025-01-31 12:00:00Z'."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(unix))
