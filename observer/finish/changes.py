"""Notes on jobs that were started, restarted or grew while a window ran. Pure.

A window contains the processes that were ranks when it began, and none that came later, whatever
their numbers. The notes say that they came, so that nobody takes the window for the whole job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankscope.observer.census.found import FoundRank, RankCensus
from rankscope.observer.census.titles import title
from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import names

_TOLD = 16  # ranks or pids named in a note


@dataclass(frozen=True, slots=True)
class _Process:
    """A rank, or a process that is about to be one."""

    job: str
    rank: int
    pid: int
    start_ticks: int
    title: str
    owner: int

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start time in ticks, which identify a process for ever."""
        return self.pid, self.start_ticks


def with_changes(windows: Sequence[Window], before: RankCensus, after: RankCensus) -> list[Window]:
    """Add notes to the windows on ranks and jobs that were started, or started again, while they ran.

    `before`, `after`: the host at begin and end of the window.
    """
    return [_with_notes(window, changes(window.manifest.jobs, before, after)) for window in windows]


def changes(jobs: Iterable[str], before: RankCensus, after: RankCensus) -> tuple[str, ...]:
    """Write notes on ranks and jobs that were started, or started again, between two censuses.

    `jobs`: those of the window that the notes are for.
    """
    mine, then, now = set(jobs), _ranks(before), _ranks(after)
    known, alive = {one.key for one in then}, {one.key for one in now}
    already = {one.key for one in _starting(before)}
    came = [one for one in now if one.key not in known] + [one for one in _starting(after) if one.key not in already]
    gone = [one for one in then if one.key not in alive and one.job in mine]
    titles = {one.job: one.title for one in (*came, *now, *then)}
    notes, numbers, others = list[str](), {one.rank for one in gone}, dict[int, None]()
    again = [one for one in came if one.job in mine and one.rank in numbers]
    if again:
        notes.append(
            f"{_describe(again)} started again while observed: what the new processes do is not in this window"
        )
    more = [one for one in came if one.job in mine and one.rank not in numbers]
    if more:
        notes.append(f"{_describe(more)} started while observed: not in this window")
    ours = {one.owner for one in (*then, *now) if one.job in mine}
    owners = {one.job: one.owner for one in came}
    for job in sorted({one.job for one in came} - mine - {one.job for one in then}):
        if owners[job] not in ours:  # the name of another user's job must not appear in this window
            others.setdefault(owners[job], None)
            continue
        same = titles[job] in {one.title for one in gone} and not (again or more)
        what = "the job was started again under another name" if same else "another job was started"
        notes.append(f"{what} while observed, and is not in this window: {names(titles)[job]}")
    notes += [f"another job was started while observed, and is not in this window: one of user {uid}" for uid in others]
    return tuple(notes)


def _with_notes(window: Window, notes: tuple[str, ...]) -> Window:
    """Return a copy of the window with these notes before those of its manifest."""
    return replace(window, manifest=replace(window.manifest, notes=(*notes, *window.manifest.notes)))


def _ranks(census: RankCensus) -> list[_Process]:
    """Convert the ranks of a census to processes."""
    return [_process(rank) for rank in census.ranks]


def _process(rank: FoundRank) -> _Process:
    one = rank.identity
    return _Process(one.job, one.rank, rank.pid, rank.start_ticks, one.title, rank.owner)


def _starting(census: RankCensus) -> list[_Process]:
    """List the processes of a census that claim a rank but have no training library yet."""
    return [
        _Process(one.claim.job, one.claim.rank, one.pid, one.start_ticks, title(one.cmdline, one.scheduler), one.owner)
        for one in census.starting
        if one.claim is not None
    ]


def _describe(processes: Sequence[_Process]) -> str:
    """Format processes: 'rank 1 (pid 77)', 'ranks 0, 1 (pids 76, 77)'."""
    ordered = sorted(processes, key=lambda one: one.rank)[:_TOLD]
    ending = ", …" if len(processes) > _TOLD else ""
    numbers = ", ".join(str(one.rank) for one in ordered) + ending
    pids = ", ".join(str(one.pid) for one in ordered) + ending
    return f"ranks {numbers} (pids {pids})" if len(processes) > 1 else f"rank {numbers} (pid {pids})"
