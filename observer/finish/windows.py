"""Build one window per observed job from the gathered data and the last readings."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from rankscope.observer.census.found import FoundRank, user_of
from rankscope.observer.census.owners import uses_accelerator
from rankscope.observer.finish.last import LastReadings, ended_early
from rankscope.observer.finish.rank_rows import address_of, helper_rows, rank_row
from rankscope.observer.finish.raw import raw_process
from rankscope.observer.live import ras, samplers, sources
from rankscope.observer.live.gauges import Member
from rankscope.observer.live.observation import Observation, Totals
from rankscope.observer.live.process_watch import LOADER, TRAINING, ProcessWatch
from rankscope.observer.serving.rows import asked_in_steps, server_rows
from rankscope.observer.sources import States, states
from rankscope.observer.steps.find import common_guide
from rankscope.observer.tables import job as gpu_window
from rankscope.observer.tables import pattern_rows
from rankscope.observer.tables.collective_rows import collective_rows
from rankscope.observer.tables.cpu_rows import observer_rows
from rankscope.observer.tables.one_line import merge_turns
from rankscope.observer.tables.rank import RankWindow, find_rank, side_patterns, steps_alone
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.tables.silence_rows import silence_rows
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.rows import CollectiveRow, CounterRow, FlowRow, PatternRow, PauseRow, RankRow, StepRow
from rankscope.observer.window.stacks import StackTree
from rankscope.observer.window.tables import table_of
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.host.fair import concerning, group_by
from rankscope.probes.host.machine import machine_id
from rankscope.probes.host.namespaces import host_name
from rankscope.probes.network.flows import FlowSummary

_SILENCE_S = 1.0  # seconds without progress worth a report; shorter ones depend on the job's steps
_MAX_NOTES = 64
_MAX_RUNS = 8  # runs of rank numbers in a note


@dataclass(slots=True)
class _Tables:
    """The rows of a window under construction."""

    ranks: list[RankRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    patterns: list[PatternRow] = field(default_factory=list)
    stacks: StackTree = field(default_factory=StackTree)
    pauses: list[PauseRow] = field(default_factory=list)
    collectives: list[CollectiveRow] = field(default_factory=list)
    flows: list[FlowRow] = field(default_factory=list)
    counters: list[CounterRow] = field(default_factory=list)

    def add_patterns(self, rank: int, thread: str, found: Sequence[MeasuredPattern]) -> None:
        """Add patterns of one thread, or of threads of one kind."""
        self.patterns += [pattern_rows.pattern_row(rank, thread, pattern, self.stacks) for pattern in found]

    def window(self, manifest: Manifest) -> Window:
        """Build a window with this manifest from the rows."""
        return Window(
            manifest,
            ranks=table_of("ranks", self.ranks),
            steps=table_of("steps", self.steps),
            patterns=table_of("patterns", self.patterns),
            stacks=table_of("stacks", self.stacks.rows()),
            pauses=table_of("pauses", self.pauses),
            collectives=table_of("collectives", self.collectives),
            flows=table_of("flows", self.flows),
            counters=table_of("counters", self.counters),
        )


@dataclass(frozen=True, slots=True)
class _Whole:
    """All observed data. `processes`: by the pid of the rank that they belong to."""

    running: Observation
    last: LastReadings
    before: Totals
    processes: Mapping[int, Sequence[ProcessWatch]]
    flows: Mapping[str, Sequence[FlowSummary]]  # by job
    # user -> readings of windows that ended before the others'
    ended: dict[str, LastReadings] = field(default_factory=dict)

    def last_of(self, users: Set[str]) -> LastReadings:
        """Return the last readings for a job whose ranks belong to these users.

        Where windows of these users ended early for lack of room, cut at the earliest of these ends.
        """
        early = sorted(users & self.running.ended.keys(), key=lambda user: self.running.held.ended_ns[user])
        if not early:
            return self.last
        user = early[0]
        if user not in self.ended:
            self.ended[user] = ended_early(self.last, self.running.held.ended_ns[user], self.running.ended[user])
        return self.ended[user]


def windows_from(running: Observation, before: Totals, last: LastReadings, start: float) -> list[Window]:
    """Build one window per job from the totals at its begin and the last readings, which are closed.

    `start`: its begin, Unix s; `before`: totals then.
    """
    jobs = group_by(running.ranks, lambda rank: rank.identity.job)
    job_of = {rank.pid: job for job, ranks in jobs.items() for rank in ranks}
    whole = _Whole(
        running,
        last,
        before,
        group_by(running.processes.values(), lambda process: process.owner),
        group_by(last.flows, lambda flow: job_of.get(flow.pid, "")),
    )
    try:
        counters = [*running.gauges.host_rows(), *observer_rows(before.observer_cpu_s)]
        return [_job_window(whole, job, jobs[job], start, counters) for job in sorted(jobs)]
    finally:
        last.natives.close()
        running.kernels.release()


def _job_window(
    whole: _Whole, job: str, ranks: Sequence[FoundRank], start: float, host_counters: list[CounterRow]
) -> Window:
    """Build the window of one job from all observed data; `start`: its begin, Unix s."""
    running, before, users = whole.running, whole.before, {user_of(rank) for rank in ranks}
    last = whole.last_of(users)
    whole = replace(whole, last=last)
    members = [Member(rank.identity.rank, rank.pid, rank.identity.netns) for rank in ranks]
    tables = _Tables(counters=[*host_counters, *running.gauges.member_rows(members)])
    numbers = {rank.pid: rank.identity.rank for rank in ranks}
    flows = whole.flows.get(job, ())
    flows_of = group_by(flows, lambda flow: flow.pid)
    devices = samplers.of_job(last.hardware, ranks)
    raws, gpus = gpu_window.with_gpus(
        {rank.pid: merge_turns(raw_process(running, rank.pid, last), CALL_TABLE) for rank in ranks},
        numbers,
        max(rank.identity.world_size for rank in ranks),
        devices,
        CALL_TABLE,
    )
    notes = [*devices.notes, *gpus.notes]
    guide = common_guide([steps_alone(raw, CALL_TABLE) for raw in raws.values()])
    guide = replace(guide, one_rank=[rank.identity.world_size for rank in ranks] == [1])
    found = {rank.pid: find_rank(raws[rank.pid], CALL_TABLE, guide) for rank in ranks}
    for rank in ranks:
        _add_rank(tables, whole, rank, raws[rank.pid], found[rank.pid], flows_of.get(rank.pid, ()))
    notes += of_ranks({rank.identity.rank: found[rank.pid].steps.reason for rank in ranks})
    tables.counters += gpu_window.counter_rows(
        gpus, last.hardware, found, raws, CALL_TABLE, before.launches, last.launches
    )
    mine = [one for one in last.servers if one.server.job == job]
    tables.counters += server_rows(mine, last.start_ns / 1e9, last.start_ns / 1e9 + last.window_s)
    on_gpus = any(uses_accelerator(rank) for rank in ranks)
    if on_gpus and ras.is_hanging({pid: one.in_collective_s for pid, one in found.items()}, last.window_s):
        behind, said = ras.missing(ranks, {address_of(flow.local) for flow in flows})
        tables.counters += behind
        notes += said
    notes += [*last.mounts.notes, *last.seen.notes]
    tables.flows += [pattern_rows.flow_row(numbers[flow.pid], flow) for flow in flows]
    gpus_unseen = devices.notes if on_gpus and not last.hardware.gpus.growth else ()
    about = _manifest(running, job, last, start, _notes(running, notes, frozenset(numbers), users), users)
    return tables.window(replace(about, sources=_sources(running, last, ranks, bool(flows), gpus_unseen)))


def of_ranks(said: Mapping[int, str]) -> Iterator[str]:
    """Write notes from texts by rank ('': none), one per distinct text: `ranks 0-3, 6: …`."""
    for what in dict.fromkeys(filter(None, said.values())):
        numbers = sorted(number for number, words in said.items() if words == what)
        breaks = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
        runs = [numbers[begin:end] for begin, end in itertools.pairwise([0, *breaks, len(numbers)])]
        told = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        more = ", …" if len(told) > _MAX_RUNS else ""
        yield f"rank{'s' if len(numbers) > 1 else ''} {', '.join(told[:_MAX_RUNS])}{more}: {what}"


def _manifest(
    running: Observation, job: str, last: LastReadings, start: float, notes: tuple[str, ...], users: Set[str]
) -> Manifest:
    """Build the manifest of a job's window; `start`: its begin, Unix s; `users`: owners of its ranks."""
    return Manifest(
        schema=WINDOW_SCHEMA,
        host=host_name(running.root),
        start=start,
        seconds=last.window_s,
        jobs=(job,),
        version=importlib.metadata.version("rankscope"),
        notes=notes,
        losses=(*last.losses, *running.losses(users)),
        costs=last.costs,
        sampling_hz=float(last.hz),
        machine=machine_id(running.root),
    )


def _sources(
    running: Observation, last: LastReadings, ranks: Sequence[FoundRank], any_flow: bool, gpus: Sequence[str]
) -> States:
    """Return the state of each source for these ranks.

    `any_flow`: whether some connection of theirs was seen; `gpus`: reasons why their GPUs are unseen, if so.
    """
    probes = running.probes
    return states(
        [
            *sources.of_programs(probes.missing),
            *sources.of_calls(probes.calls.untimed_of({rank.pid for rank in ranks})),
            *sources.never_ran(last.costs),
            *sources.of_losses(last.losses),
            *sources.of_samplers(running.flows.notes, any_flow, gpus, running.gauges.notes),
        ]
    )


def _add_rank(
    tables: _Tables, whole: _Whole, rank: FoundRank, raw: RawProcess, found: RankWindow, flows: Sequence[FlowSummary]
) -> None:
    """Add the rows of one rank, its loader workers and its helper threads to the tables."""
    number, running, last = rank.identity.rank, whole.running, whole.last
    tables.ranks.append(rank_row(running, rank, found, last, flows))
    edges_s = last.start_ns / 1e9 + found.steps.edge_s
    asked = asked_in_steps(last.servers, rank.pid, edges_s, found.step_times.sync_s)
    tables.steps += pattern_rows.step_rows(number, found.step_times, asked)
    tables.add_patterns(number, TRAINING, found.training)
    tables.pauses += [pattern_rows.pause_row(number, pause) for pause in found.pauses]
    tables.add_patterns(number, "other", found.others)
    tables.add_patterns(number, "gpu", found.on_gpu)
    tables.collectives += collective_rows(number, raw, found.calls, CALL_TABLE, found.steps)
    for process in whole.processes.get(rank.pid, ()):
        if process.label == LOADER:
            worker = raw_process(running, process.pid, last)
            tables.add_patterns(number, LOADER, side_patterns(worker, CALL_TABLE, found.steps, worker.python_tids))
    tables.counters += last.cpu.rows(number, rank.pid, raw.members or (found.training_thread,))
    tables.counters += helper_rows(running, rank, last)
    if found.last_progress_s is None or found.last_progress_s >= _SILENCE_S:
        tables.counters += silence_rows(number, raw, found.training_thread, found.last_progress_s, flows)


def _over_budget(running: Observation, users: Set[str] | None = None) -> list[str]:
    """Write notes on data dropped for lack of room, for these users (None: everybody)."""
    said = []
    losses = {loss.name: loss.count for loss in running.losses(users)}
    if "events_over_budget" in losses:
        said.append("the window ended early: the observer reached its limit of events; record a shorter window")
    if unwatched := losses.get("processes_over_budget"):
        said.append(f"{unwatched} processes of ranks were not watched: there were too many")
    whose = running.users()
    for process in running.processes.values():
        if process.lost_threads and (users is None or whose(process) in users):
            said.append(
                f"pid {process.pid}: {process.lost_threads} of its Python threads were not followed: there were too many"
            )
    return said


def _notes(running: Observation, notes: Sequence[str], pids: frozenset[int], users: Set[str]) -> tuple[str, ...]:
    """Collect notes on what could not be seen of the ranks with these pids, without duplicates.

    `notes`: the job's own; `users`: owners of its ranks.
    """
    fallback = running.fallback.notes if running.fallback else []
    said = [
        *running.notes,
        *notes,
        *_over_budget(running, users),
        *fallback,
        *running.probes.notes,
        *running.probes.calls.notes,
        *running.gauges.notes,
        *running.flows.notes,
        *running.servers.notes,
    ]
    unseen = [one for one in running.processes.values() if one.reason and one.owner in pids]
    brief = {one.pid: one.reason for one in unseen if one.gone and one.label != TRAINING}
    said += [f"no Python stacks of pid {one.pid}: {one.reason}" for one in unseen if one.pid not in brief]
    if brief:
        pid, reason = next(iter(brief.items()))
        said.append(f"no Python stacks of {len(brief)} processes that ended soon, pid {pid} among them: {reason}")
    whose = running.users()
    ours = {process.pid for process in running.processes.values() if process.owner in pids or whose(process) in users}
    return tuple(dict.fromkeys(concerning(said, ours | pids)))[:_MAX_NOTES]
