"""A fleet of thousands of hosts: all ranks are compared by their steps, those that may be odd and a sample of their peers in full.

1. Survey: groups of hosts on the engine's workers → one table of ranks and steps                    (fleet/large/survey.py)
2. Choose whom to read in full                                                                        (fleet/large/stand_out.py)
3. Read these, and judge them as any fleet; that a hundred thousand were looked at raises what an accusation must prove
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.from_windows import rows_of
from rankscope.diagnose.fleet.gather import DETAILS, fleet_of, joined, of_job
from rankscope.diagnose.fleet.labels import labels
from rankscope.diagnose.fleet.large import collector
from rankscope.diagnose.fleet.large.crowd import Crowd, crowd_of
from rankscope.diagnose.fleet.large.stand_out import hosts_to_read
from rankscope.diagnose.fleet.large.survey import GROUP, Survey, survey, together, with_right_clocks
from rankscope.diagnose.fleet.large.topology import Group
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.roll_call import jobs_in, windows_of
from rankscope.diagnose.fleet.sources import Source, Sources, absent_notes, left_out, read
from rankscope.diagnose.fleet.step_matrix import filled, possible
from rankscope.diagnose.past.baseline import Reference, read_baseline
from rankscope.diagnose.solve.judge import judge
from rankscope.diagnose.verdict.contract import Verdict
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.keys import label_of
from rankscope.observer.window.store.same_names import plain_name
from rankscope.probes.errors import BadData

LARGE = 512  # hosts: below that all of it is read in seconds


def is_large(found: Sources) -> bool:
    """Whether all that lies there is too much to be read in full."""
    return sum(source.hosts for source in found.chosen) > LARGE


def diagnose_large(
    found: Sources, wanted: str | None, pool: Executor, shared: Sequence[Group] = (), baseline: Sequence[Source] = ()
) -> Iterator[tuple[str, Verdict]]:
    """`shared`: hosts that share something. `baseline`: of earlier windows those of the hosts that are read in full are compared with.

    The title and the verdict of each job that is meant, the largest first. BadData, NoRanks.
    """
    with collector.paused():
        yield from _each_job(found, wanted, pool, shared, baseline)


def _each_job(
    found: Sources, wanted: str | None, pool: Executor, shared: Sequence[Group], baseline: Sequence[Source]
) -> Iterator[tuple[str, Verdict]]:
    firsts = range(0, len(found.chosen), GROUP)
    elsewhere = (*found.absent[:GROUP], *found.together)
    late = pool.submit(survey, elsewhere) if elsewhere else None
    groups = pool.map(survey, [found.chosen[at : at + GROUP] for at in firsts])  # a list: Dask takes no iterator
    seen = together(zip(firsts, groups, strict=True))
    if not seen.manifests:
        raise BadData(f"none of {len(found.chosen)} windows can be read: {seen.unread[0]}")
    gone = [*found.absent, *found.together]
    said: list[Note] = []
    if late is not None and (others := late.result()).manifests:
        right, said = with_right_clocks(seen, others)
        seen = together(((0, seen), (len(found.chosen), right)))
        there = {elsewhere[number] for number in right.source}
        gone = [each for each in gone if each not in there]
    notes = (*found.notes, *([left_out(seen.unread)] if seen.unread else []), *said, *absent_notes(gone))
    for job, title in jobs_in(seen.roll, wanted).items():
        yield title, _judged((*found.chosen, *elsewhere), seen, job, notes, shared, baseline)


def _judged(
    sources: Sequence[Source], seen: Survey, job: str, notes: Sequence[Note], shared: Sequence[Group],
    baseline: Sequence[Source],
) -> Verdict:  # fmt: skip
    said = list(notes)
    mine = windows_of(seen.roll, job, said)
    crowd = crowd_of(seen, job, mine, said)
    part = _in_full(sources, seen, mine, crowd, said)
    everyone, read_ranks = len(crowd.number), len(part.ranks)
    text = f"{everyone} ranks were compared by their steps; {read_ranks} of them, who may be odd and a sample of their peers, in full"
    read_hosts = frozenset(part.ranks.observed_on)
    about = [seen.manifests[number] for number in mine if seen.manifests[number].host in read_hosts]
    reference = _reference(baseline, frozenset(map(plain_name, about)), job)
    part = replace(part, looked_at=everyone, looked_at_hosts=frozenset(crowd.called), groups=tuple(shared))
    verdict = judge(part, reference)
    return replace(
        verdict,
        hosts=crowd.called,
        ranks=tuple(crowd.number.tolist()),
        notes=(*verdict.notes, Note(NoteCode.READ_IN_FULL, text)),
    )


def _as_surveyed(windows: Sequence[Window], seen: Survey, wanted: Sequence[int]) -> list[Window]:
    """Of these windows those that are meant, by the names and clocks that their hosts have in the survey."""
    known = {
        (plain_name(seen.manifests[number]), seen.manifests[number].machine, seen.begins_s[number]): number
        for number in wanted
    }
    found = []
    for window in windows:
        about = window.manifest
        if (number := known.get((about.host, about.machine, about.start))) is not None:
            as_seen = seen.manifests[number]
            found.append(replace(window, manifest=replace(about, host=as_seen.host, start=as_seen.start)))
    return found


def _reference(baseline: Sequence[Source], hosts: frozenset[str], job: str) -> Reference | None:
    """What these hosts were like before."""
    if not baseline:
        return None
    names = {label_of(host).partition("~")[0] for host in hosts}
    windows, _ = read([each for each in baseline if not each.host or each.host.partition("~")[0] in names])
    return read_baseline([window for window in windows if window.manifest.host in hosts], job)


def _in_full(sources: Sequence[Source], seen: Survey, mine: Sequence[int], crowd: Crowd, notes: list[Note]) -> Fleet:
    """The fleet's ranks on the hosts that are worth it, with all that is known of them."""
    hosts = hosts_to_read(crowd)
    wanted = [number for number in mine if seen.manifests[number].host in hosts]
    windows, unread = read([sources[place] for place in sorted({seen.source[number] for number in wanted})])
    notes.extend(unread)
    windows = _as_surveyed(windows, seen, wanted)
    tables = {name: joined(windows, name) for name in ("ranks", "steps", *DETAILS)}
    table = of_job(tables["ranks"], crowd.setting.job)
    place = rows_of(table, crowd.number)
    where = labels(table, "observed_on")
    numbers = {name: number for number, name in enumerate(crowd.hosts.names)}
    host = np.array([numbers.get(name, -1) for name in where.values], dtype=np.int64)[where.codes]
    ranks = from_windows.ranks(table.filter(pa.array((place >= 0) & (crowd.hosts.of_rank[place] == host))), [])
    of_rank = crowd.hosts.of_rank[np.searchsorted(crowd.number, ranks.number)]
    rows = possible(tables["steps"], rows_of(tables["steps"], ranks.number), crowd.setting.seconds, [])
    steps = filled(tables["steps"], rows, replace(crowd.hosts, of_rank=of_rank), crowd.columns)
    return fleet_of(crowd.setting, ranks, steps, tables, notes)
