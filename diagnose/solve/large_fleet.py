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
import pyarrow.compute as pc

from rankscope.diagnose.fleet.gather import DETAILS, detailed, joined, people
from rankscope.diagnose.fleet.labels import ints
from rankscope.diagnose.fleet.large.stand_out import Likeness, hosts_to_read, likeness
from rankscope.diagnose.fleet.large.survey import GROUP, Survey, survey, together
from rankscope.diagnose.fleet.large.topology import Group
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.roll_call import WINDOW, choose, jobs_in
from rankscope.diagnose.fleet.sources import Source, Sources, left_out, read
from rankscope.diagnose.solve.judge import judge
from rankscope.diagnose.verdict.contract import Verdict
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.errors import BadData

LARGE = 512  # hosts: below that all of it is read in seconds


def is_large(found: Sources) -> bool:
    """Whether all that lies there is too much to be read in full."""
    return sum(source.hosts for source in found.chosen) > LARGE


def diagnose_large(
    found: Sources, wanted: str | None, pool: Executor, shared: Sequence[Group] = ()
) -> Iterator[tuple[str, Verdict]]:
    """`shared`: hosts that share something. The title and the verdict of each job that is meant, the largest first. BadData, NoRanks."""
    groups = [found.chosen[at : at + GROUP] for at in range(0, len(found.chosen), GROUP)]
    seen = together(list(pool.map(survey, groups)), GROUP)
    if not seen.manifests:
        raise BadData(f"none of {len(found.chosen)} windows can be read: {seen.unread[0]}")
    notes = (*found.notes, *([left_out(seen.unread)] if seen.unread else []))
    for job, title in jobs_in(seen.roll, wanted).items():
        yield title, _judged(found.chosen, seen, job, notes, shared)


def _judged(
    sources: Sequence[Source], seen: Survey, job: str, notes: Sequence[Note], shared: Sequence[Group]
) -> Verdict:
    said = list(notes)
    _, mine = choose(seen.roll, job, said)
    tables = {name: _of_windows(getattr(seen, name), mine) for name in ("ranks", "steps")}
    fleet = people(job, [seen.manifests[number] for number in mine], tables, said)
    part = _in_full(sources, seen, job, mine, fleet, likeness(_of_job(tables["ranks"], job), fleet.ranks.number))
    everyone, read_ranks = len(fleet.ranks), len(part.ranks)
    text = f"{everyone} ranks were compared by their steps; {read_ranks} of them, who may be odd and a sample of their peers, in full"
    verdict = judge(replace(part, looked_at=everyone, groups=tuple(shared)))
    return replace(
        verdict,
        hosts=fleet.hosts,
        ranks=tuple(int(number) for number in fleet.ranks.number),
        notes=(*verdict.notes, Note(NoteCode.READ_IN_FULL, text)),
    )


def _in_full(
    sources: Sequence[Source], seen: Survey, job: str, mine: Sequence[int], fleet: Fleet, like: Likeness
) -> Fleet:
    """The fleet's ranks on the hosts that are worth it, with all that is known of them."""
    hosts = hosts_to_read(fleet, like)
    wanted = [number for number in mine if seen.manifests[number].host in hosts]
    windows, _ = read([sources[place] for place in sorted({seen.source[number] for number in wanted})])
    moments = {(seen.manifests[number].host, seen.manifests[number].start) for number in wanted}
    windows = [window for window in windows if (window.manifest.host, window.manifest.start) in moments]
    there = {window.manifest.host for window in windows}  # one may have gone since the survey
    rows = np.flatnonzero([host in there for host in fleet.ranks.observed_on])
    tables = {name: joined(windows, name) for name in DETAILS}
    return detailed(fleet, fleet.ranks.taken(rows), fleet.steps.taken(rows), tables)


def _of_windows(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    return table if not numbers else table.filter(pa.array(np.isin(ints(table, WINDOW), numbers)))


def _of_job(ranks: pa.Table, job: str) -> pa.Table:
    return ranks.filter(pc.equal(ranks["job"], job))
