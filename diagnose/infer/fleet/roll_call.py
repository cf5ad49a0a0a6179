"""Select what is diagnosed from windows: the job, the windows of the same time, and their ranks.

No Python loop runs over ranks: a million of them come in 125,000 windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pyarrow as pa

from rankscope.diagnose.budgets import JOBS_MOST, TOLD
from rankscope.diagnose.infer.fleet.labels import distinct_texts, equals, ints, labels
from rankscope.diagnose.infer.fleet.moment import COLUMNS, of_one_moment
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import matching, names, without_user
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.arrays import Ints
from rankscope.probes.base.errors import BadData, NoRanks
from rankscope.probes.host.fair import group_by, interleave

_HOST, _SECONDS = attrgetter("host"), attrgetter("seconds")


def _nobody_knows(_: str) -> float | None:
    """Return None: the usual step of a job is unknown."""
    return None


class JobUnknown(BadData):
    """The requested job is in none of the windows."""

    help = "Name one of these, or leave --job out."


@dataclass(frozen=True, slots=True)
class RollCall:
    """Manifests of windows, and all their ranks in one table with the number of each row's
    window."""

    manifests: tuple[Manifest, ...]
    ranks: pa.Table

    def of(self, job: str) -> pa.Table:
        """Rows of the table `ranks` that belong to one job."""
        return of_job(self.ranks, job)


def of_job(ranks: pa.Table, job: str) -> pa.Table:
    """Rows of a table of ranks that belong to one job."""
    mine = equals(ranks, "job", job)
    return ranks if mine.all() else ranks.filter(pa.array(mine))


def roll_call(windows: Sequence[Window]) -> RollCall:
    """Collect the manifests and ranks of these windows. Raises NoRanks if there is no window."""
    pieces = [numbered(window.ranks, number) for number, window in enumerate(windows)]
    if not pieces:
        raise NoRanks("no rank was found in the window")
    return RollCall(tuple(window.manifest for window in windows), pa.concat_tables(pieces))


def numbered(table: pa.Table, window: int) -> pa.Table:
    """Append the window's number as a column to its table."""
    number = pa.array(np.full(table.num_rows, window, np.int32))
    return table.replace_schema_metadata(None).append_column(WINDOW, number)


def jobs_in(roll: RollCall, wanted: str | None = None) -> dict[str, str]:
    """Jobs in the windows with their titles, largest first.

    Only those that match `wanted`, if given. Raises NoRanks where there is none, JobUnknown
    (BadData) where none matches.
    """
    known = roll.ranks.select(["job", "title", WINDOW])
    if known["job"].null_count:
        known = known.filter(known["job"].is_valid())
    job_of, title_of, window_of = labels(known, "job"), labels(known, "title"), ints(known, WINDOW)
    shape = (len(job_of.values), len(roll.manifests), len(title_of.values))
    keys, place = distinct(np.ravel_multi_index((job_of.codes, window_of, title_of.codes), shape))
    counts = np.bincount(place)
    each = np.stack(np.unravel_index(keys, shape), axis=1)
    sizes: dict[str, int] = {}
    titles: dict[str, dict[str, int]] = {}
    later = distinct_texts(title_of.values)[1]
    # Title by window: the most frequent among its ranks, then the last by name; it sorts last.
    order = np.lexsort((later[each[:, 2]], counts, each[:, 1], each[:, 0]))
    each, counts = each[order], counts[order]
    last = np.flatnonzero(np.append((each[1:, :2] != each[:-1, :2]).any(axis=1), True)) if len(each) else order
    totals = np.diff(np.append(0, np.cumsum(counts)[last]))
    said, which = np.unique(each[last][:, [0, 2]], axis=0, return_inverse=True)
    for (job_code, title_code), count in zip(
        said.tolist(), np.bincount(which.reshape(-1), totals).tolist(), strict=True
    ):
        job = job_of.values[job_code]
        sizes[job] = sizes.get(job, 0) + int(count)
        title = title_of.values[title_code]
        titles.setdefault(job, {})[title] = titles.get(job, {}).get(title, 0) + int(count)
    if not sizes:
        raise NoRanks("no rank was found in the window")
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    found = {name: max(titles[name], key=lambda title: (titles[name][title], title)) for name in largest}
    if wanted is None:
        return found
    meant = matching(wanted, found)
    if not meant:
        known = ", ".join(clean(name, 100) for name in list(names(found).values())[:5])
        raise JobUnknown(f"job {clean(wanted, 60)!r} is not in these windows (jobs seen: {known})")
    return {name: title for name, title in found.items() if name in meant}


def largest(roll: RollCall, found: Mapping[str, str], notes: list[Note]) -> dict[str, str]:
    """Limit the jobs of `jobs_in` to JOBS_MOST, taking each user's largest before any user's
    second.

    That order matters since a user can name any number of jobs. Adds a note that lists the jobs
    left out."""
    if len(found) <= JOBS_MOST:
        return dict(found)
    owner = _owners(roll)
    of_users = group_by(found, owner.__getitem__)
    kept = frozenset(interleave(of_users, JOBS_MOST))
    called = names(found)
    others = [called[job] for job in found if job not in kept]
    which = (
        f"the {JOBS_MOST} with most ranks" if len(of_users) == 1 else f"{JOBS_MOST}, of each user the largest first,"
    )
    told = ", ".join(clean(name, 60) for name in others[:TOLD])
    text = f"{len(found)} jobs were seen; {which} are judged, name another with --job: "
    notes.append(Note(NoteCode.OTHER_JOBS, f"{text}{told}{', …' if len(others) > TOLD else ''}"))
    return {job: title for job, title in found.items() if job in kept}


def _owners(roll: RollCall) -> dict[str, int]:
    """User id by job; -1 if unknown. Ended ranks have no owner: the others' counts."""
    known = roll.ranks.select(["job", "owner"])
    job = labels(known, "job")
    owner = np.full(len(job.values), -1, dtype=np.int64)
    np.maximum.at(owner, job.codes, ints(known, "owner"))
    return dict(zip(job.values, owner.tolist(), strict=True))


def choose(
    roll: RollCall,
    job: str | None,
    notes: list[Note],
    step_of: Callable[[str], float | None] = _nobody_knows,
    agreed_s: float | None = None,
) -> tuple[str, list[int]]:
    """Choose the job with most ranks (among those that match `job`) and the numbers of its windows.

    Windows as in `windows_of`; `step_of`: usual step of a job. Raises BadData if no window holds
    the job, NoRanks if no window holds a rank.
    """
    chosen = _choose_job(roll, job, notes)
    return chosen, windows_of(roll, chosen, notes, step_of(chosen), agreed_s)


def windows_of(
    roll: RollCall, job: str, notes: list[Note], step_s: float | None = None, agreed_s: float | None = None
) -> list[int]:
    """Numbers of the windows of a job to diagnose: those of the time with most hosts, each rank
    once.

    Among several such times choose the newest, or the nearest to `agreed_s`. `step_s`: usual step,
    None: unknown."""
    ranks = of_job(roll.ranks.select(["job", *COLUMNS]), job)
    mine = _choose_moment(roll.manifests, ranks, step_s, agreed_s, notes)
    if others := others_of_its_name(roll, job):
        text = "what other users' processes call by this name is a job of its own: "
        notes.append(Note(NoteCode.OTHER_USERS, text + ", ".join(clean(name, 100) for name in others[:8])))
    return _each_rank_once(roll.manifests, mine, ints(ranks, WINDOW), ints(ranks, "rank"), notes)


def others_of_its_name(roll: RollCall, job: str) -> list[str]:
    """Jobs of other users that have the same name, sorted."""
    known = labels(roll.ranks.select(["job"]), "job").values
    return sorted(each for each in known if each != job and without_user(each) == without_user(job))


def _choose_job(roll: RollCall, job: str | None, notes: list[Note]) -> str:
    """Choose the job with most ranks among those that match `job` (None: all); note the others.

    Raises NoRanks if there is no job, JobUnknown if none matches.
    """
    found = jobs_in(roll, job)
    best, *others = found
    if others:
        called = names(found)
        text = f"{len(found)} jobs were seen; the largest is judged, use --job for: "
        notes.append(Note(NoteCode.OTHER_JOBS, text + ", ".join(clean(called[name], 100) for name in others)))
    return best


def _choose_moment(
    manifests: Sequence[Manifest], ranks: pa.Table, step_s: float | None, agreed_s: float | None, notes: list[Note]
) -> list[int]:
    """Return the windows of a job (numbers, newest first) that cover the same time.

    `ranks`: table of the job's ranks in all its windows; other parameters as in `of_one_moment`.
    """
    mine = distinct(ints(ranks, WINDOW))[0].tolist()
    start = np.fromiter((manifests[number].start for number in mine), dtype=np.float64, count=len(mine))
    least_s = min(map(_SECONDS, map(manifests.__getitem__, mine)))
    if float(np.ptp(start)) < least_s / 2:  # the usual case
        return [mine[at] for at in np.argsort(-start, kind="stable").tolist()]
    return of_one_moment(manifests, mine, ranks, step_s, agreed_s, notes)


def _each_rank_once(
    manifests: Sequence[Manifest], mine: list[int], window: Ints, number: Ints, notes: list[Note]
) -> list[int]:
    """Drop windows that repeat ranks of another window of the same host; return the others.

    Keeps the one with most ranks, or the newest; adds a note. `mine`: numbers of windows; `window`,
    `number`: window and rank number of each rank row. Whole windows are dropped because times count
    from a window's begin.
    """
    if len(set(map(_HOST, map(manifests.__getitem__, mine)))) == len(mine):
        return mine
    of_host: dict[str, list[int]] = {}
    for each in mine:
        of_host.setdefault(manifests[each].host, []).append(each)
    left_out: set[int] = set()
    for several in of_host.values():
        held = {each: set(number[window == each].tolist()) for each in several} if len(several) > 1 else {}
        kept: list[int] = []
        for each in sorted(held, key=lambda one: (-len(held[one]), -manifests[one].start)):
            if any(held[each] & held[other] for other in kept):
                left_out.add(each)
            else:
                kept.append(each)
    if left_out:
        hosts = sorted({manifests[each].host for each in left_out})
        text = "two windows of one moment, of which one is used, from: "
        notes.append(Note(NoteCode.HOST_TWICE, text + ", ".join(clean(host, 60) for host in hosts[:8])))
    return [each for each in mine if each not in left_out]
