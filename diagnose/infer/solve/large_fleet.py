"""Judge a fleet of thousands of hosts: compare all ranks by steps, read odd ones and a sample in
full.

1. Estimate the step grid of each large job from a few windows (fleet/large/placed.py).
2. Survey groups of hosts on the engine's workers into one table of ranks and a matrix of steps
   (fleet/large/survey.py).
3. Choose the hosts to read in full (fleet/large/stand_out.py).
4. Judge those as any fleet; the number of ranks compared raises what a suspect must prove.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from rankscope.diagnose import collector
from rankscope.diagnose.budgets import JOBS_MOST
from rankscope.diagnose.infer.fleet import from_windows
from rankscope.diagnose.infer.fleet.from_windows import rows_of
from rankscope.diagnose.infer.fleet.gather import fleet_of
from rankscope.diagnose.infer.fleet.labels import floats, labels
from rankscope.diagnose.infer.fleet.large.crowd import Crowd, crowd_of
from rankscope.diagnose.infer.fleet.large.engines import let_go, of_arrays
from rankscope.diagnose.infer.fleet.large.in_full import read_in_full
from rankscope.diagnose.infer.fleet.large.placed import grids_of, sample_of
from rankscope.diagnose.infer.fleet.large.stand_out import LONGEST, hosts_to_read
from rankscope.diagnose.infer.fleet.large.survey import GROUP, Survey, survey, together, with_right_clocks
from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roll_call import jobs_in, largest, of_job, windows_of
from rankscope.diagnose.infer.fleet.sources import Source, Sources, absent_notes, left_out, read
from rankscope.diagnose.infer.fleet.step_matrix import Grid, filled, possible
from rankscope.diagnose.infer.lacking import Lacking, seeing
from rankscope.diagnose.infer.past.baseline import Reference, read_baseline
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.solve.unjudged import each_by_itself, unjudged
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.jobs import shown
from rankscope.observer.window.store.keys import label_of
from rankscope.observer.window.store.same_names import plain_name
from rankscope.observer.window.store.users import by_user
from rankscope.probes.base.errors import BadData

LARGE = 512  # hosts; below that all of it is read in seconds
_ELSEWHERE = 128  # hosts whose older window may be of this time, by a wrong clock
_COMPARED = 8  # windows with which those of other clocks are compared: they end their steps together


def is_large(found: Sources) -> bool:
    """Whether the sources have too many hosts to be read in full."""
    return sum(source.hosts for source in found.chosen) > LARGE


def diagnose_large(
    found: Sources, wanted: str | None, pool: Executor, shared: Sequence[Group] = (), baseline: Sequence[Source] = ()
) -> Iterator[tuple[str, Verdict]]:
    """Yield (title, verdict) of each wanted job, the largest first, then the jobs that cannot be
    judged.

    `pool`: from large/engines.py, released once all is read. `shared`: hosts that share something.
        `baseline`: sources of earlier windows; those of the hosts read in full are used.
    Raises BadData and NoRanks.
    """
    with collector.paused():
        yield from _each_job(found, wanted, pool, shared, baseline)


def _each_job(
    found: Sources, wanted: str | None, pool: Executor, shared: Sequence[Group], baseline: Sequence[Source]
) -> Iterator[tuple[str, Verdict]]:
    """Yield (title, verdict) of each job, as `diagnose_large` does, with the garbage collector paused."""
    sample = survey(sample_of(found.chosen))
    grids = grids_of(sample.roll, sample.begins_s, sample.steps)
    seen, notes = _everyone(found, grids, pool)
    jobs = _jobs(seen, wanted, grids)
    if not all(_is_of_moment(grids.get(job), seen, called.windows) for job, called in jobs.items()):
        grids = {}  # windows of several times are there, and the sample shows another one
        seen, notes = _everyone(found, grids, pool)
        jobs = _jobs(seen, wanted, grids)
    sources = (*found.chosen, *_elsewhere(found))
    named = shown(jobs if wanted is None and len(jobs) < JOBS_MOST else jobs_in(seen.roll))
    last = next(reversed(jobs), None)

    def judged(job: str) -> Verdict:
        """Judge one job: compare all its ranks by their steps, and read the odd ones in full."""
        mine, said = jobs[job].windows, [*notes, *jobs[job].notes]
        crowd = crowd_of(seen, job, mine, grids.get(job), said)
        part = _in_full(sources, seen, mine, crowd, said, pool, job == last)
        return _judged(seen, mine, crowd, replace(part, groups=tuple(shared), unseen=jobs[job].unseen), baseline)

    def refused(job: str, why: Note) -> Verdict:
        """Return the unknown verdict on a job that cannot be judged; `why`: the reason."""
        return unjudged(seen.roll, job, jobs[job].windows, (why, *notes, *jobs[job].notes))

    for job, verdict in each_by_itself(jobs, judged, refused):
        yield jobs[job].title, replace(verdict, job=named[job])


@dataclass(frozen=True, slots=True)
class _Called:
    """A job's title, its windows to judge (numbers), notes on other windows, and sources that some hosts lack."""

    title: str
    windows: list[int]
    notes: list[Note]
    unseen: tuple[Lacking, ...]


def _jobs(seen: Survey, wanted: str | None, grids: Mapping[str, Grid]) -> dict[str, _Called]:
    """Choose the jobs to judge and the windows of each, largest job first.

    `wanted`: job to judge, None: all. `grids`: step grids by job, for the usual step. Raises
    NoRanks and BadData.
    """
    found = {}
    left: list[Note] = []
    for job, title in largest(seen.roll, jobs_in(seen.roll, wanted), left).items():
        notes = [*left]
        step_s = grids[job].step_s if job in grids else _usual_step_s(seen)
        windows, unseen = seeing(windows_of(seen.roll, job, notes, step_s), seen.manifests)
        found[job] = _Called(title, windows, notes, unseen)
    return found


def _usual_step_s(seen: Survey) -> float | None:
    """Median step length of the survey's steps, in seconds; None without steps."""
    return median(floats(seen.steps, "seconds")) if seen.steps.num_rows else None


def _is_of_moment(grid: Grid | None, seen: Survey, windows: Sequence[int]) -> bool:
    """Whether a step grid, if there is one, belongs to the time of these windows."""
    if grid is None:
        return True
    start = median([seen.manifests[number].start for number in windows])
    return abs(start - grid.origin_s) < grid.window_s / 2


def _elsewhere(found: Sources) -> tuple[Source, ...]:
    """Sources whose windows may be of the same time but for a wrong clock."""
    return (*found.absent[:_ELSEWHERE], *found.together)


def _everyone(found: Sources, grids: Mapping[str, Grid], pool: Executor) -> tuple[Survey, list[Note]]:
    """Survey all windows of this time; return it with notes on these and on missing windows.

    Raises BadData where none can be read.
    """
    elsewhere = _elsewhere(found)
    late = pool.submit(survey, elsewhere) if elsewhere else None
    seen = _surveyed(found.chosen, grids, pool)
    if not seen.manifests:
        raise BadData(f"none of {len(found.chosen)} windows can be read: {seen.unread[0]}")
    gone = [*found.absent, *found.together]
    said: list[Note] = []
    if late is not None and (others := late.result()).manifests:
        few = np.unique(np.linspace(0, len(found.chosen) - 1, _COMPARED).astype(np.int64)).tolist()
        right, said = with_right_clocks(seen, survey([found.chosen[number] for number in few]), others)
        seen = together(((0, seen), (len(found.chosen), right)))
        there = {elsewhere[number] for number in right.source}
        gone = [each for each in gone if each not in there]
    unread = [left_out(seen.unread)] if seen.unread else []
    return seen, [*found.notes, *unread, *said, *absent_notes(gone)]


def _surveyed(sources: Sequence[Source], grids: Mapping[str, Grid], pool: Executor) -> Survey:
    """Survey all sources in groups on the workers of `pool`, as one survey; `grids`: step grids by job."""
    firsts = range(0, len(sources), GROUP)
    groups = [sources[at : at + GROUP] for at in firsts]  # a list, because Dask takes no iterator
    return together(zip(firsts, pool.map(partial(survey, grids=grids), groups), strict=True))


def _judged(seen: Survey, mine: Sequence[int], crowd: Crowd, part: Fleet, baseline: Sequence[Source]) -> Verdict:
    """Judge one job from the ranks that were read in full; the verdict then names all its hosts and ranks.

    `mine`: windows of the job (numbers); `crowd`: all its ranks; `part`: those read in full;
    `baseline`: earlier windows.
    """
    everyone, read_ranks = len(crowd.number), len(part.ranks)
    text = f"{everyone} ranks were compared by their steps; {read_ranks} of them, who may be odd and a sample of their peers, in full"
    read_hosts = frozenset(part.ranks.observed_on)
    about = [seen.manifests[number] for number in mine if seen.manifests[number].host in read_hosts]
    reference = _reference(baseline, frozenset(map(plain_name, about)), crowd.setting.job)
    part = replace(part, looked_at=everyone, looked_at_hosts=frozenset(crowd.called), longest=LONGEST)
    verdict = judge(part, reference)
    return replace(
        verdict,
        hosts=crowd.called,
        ranks=tuple(crowd.number.tolist()),
        notes=(*verdict.notes, Note(NoteCode.READ_IN_FULL, text)),
    )


def _reference(baseline: Sequence[Source], hosts: frozenset[str], job: str) -> Reference | None:
    """Read the baseline of these hosts from earlier windows; None without any."""
    if not baseline:
        return None
    names = {label_of(host).partition("~")[0] for host in hosts}
    windows, _ = read([each for each in baseline if not each.host or each.host.partition("~")[0] in names])
    return read_baseline([by_user(window) for window in windows if window.manifest.host in hosts], job)


def _in_full(
    sources: Sequence[Source],
    seen: Survey,
    mine: Sequence[int],
    crowd: Crowd,
    notes: list[Note],
    pool: Executor,
    last: bool,
) -> Fleet:
    """Read the hosts that may be odd and a sample of others in full, and build their fleet.

    `mine`: windows of the job (numbers); `crowd`: all its ranks. `last`: nothing is read after it,
    so `pool` is released. Adds notes.
    """
    hosts = hosts_to_read(crowd, of_arrays(pool))
    wanted = [number for number in mine if seen.manifests[number].host in hosts]
    tables = read_in_full(sources, seen, wanted, notes, pool)
    if last:
        let_go(pool)
    table = of_job(tables["ranks"], crowd.setting.job)
    place = rows_of(table, crowd.number)
    where = labels(table, "observed_on")
    numbers = {name: number for number, name in enumerate(crowd.hosts.names)}
    host = np.array([numbers.get(name, -1) for name in where.values], dtype=np.int64)[where.codes]
    ranks = from_windows.ranks(table.filter(pa.array((place >= 0) & (crowd.hosts.of_rank[place] == host))), [])
    of_rank = crowd.hosts.of_rank[np.searchsorted(crowd.number, ranks.number)]
    rows = possible(tables["steps"], rows_of(tables["steps"], ranks.number), crowd.setting.seconds, [])
    steps = filled(tables["steps"], rows, replace(crowd.hosts, of_rank=of_rank), crowd.columns)
    gone = from_windows.gone(table, tables["counters"], ranks, crowd.number)
    return replace(fleet_of(crowd.setting, ranks, steps, tables, notes), gone=gone)
