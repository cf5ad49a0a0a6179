"""Find the ranks of this host, the processes that belong to them, and those that only look like ranks.

In: /proc. Out: RankCensus. A rank is a process that has a training library mapped and an identity:

1. its environment claims one (torchrun, Slurm, Open MPI, …; identity.py), as it was at the start or, if that names none,
   as it is now, and no ancestor that also has a training library claims the same one: then it is that ancestor's worker;
2. or its children claim all ranks but the lowest, and it is connected with them: a script that starts the others itself;
3. or none is claimed, but it holds TCP connections to siblings in the same situation: torch.multiprocessing.spawn, JAX, actors
   of Ray. numbering.py finds their numbers, and marks guesses;
4. or it works alone: no rank is above or below it, and it uses its CPU, or is asked for by its pid (rules/alone.py).

A process whose children claim all ranks is a launcher. Of several processes that claim the same
rank one counts; if another user claims ranks of a job, that is a separate job, in all rules.
Measured: 32 µs per process (0.16 s for 5,000), and 1-2 ms more for each one with torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from rankscope.observer.census.candidates import Candidate, scan
from rankscope.observer.census.describe import identity_of, local_rank, read_facts, run_of
from rankscope.observer.census.found import FoundRank, RankCensus, Rejected, Worker
from rankscope.observer.census.launchers import ray_actor
from rankscope.observer.census.reasons import ALONE, STARTING
from rankscope.observer.census.rules.alone import choose_alone
from rankscope.observer.census.rules.choose import (
    choose_claimants,
    choose_numbered_by_node,
    choose_parents_of_ranks,
    choose_spawned,
    choose_unnamed,
    refuse_absurd_numbers,
    reject_launchers,
)
from rankscope.observer.census.rules.contested import resolve_duplicates, separate_launchers, separate_users
from rankscope.observer.census.rules.draft import Draft
from rankscope.observer.census.rules.gone import find_gone
from rankscope.observer.census.rules.members import find_workers, reject_rest
from rankscope.observer.census.rules.taken import Chosen
from rankscope.observer.census.titles import runs_anothers, title
from rankscope.observer.window.missing import missing_ranks
from rankscope.probes.base.command_line import is_python
from rankscope.probes.base.patience import patiently
from rankscope.probes.base.text import printable
from rankscope.probes.host.procfs import ROOT

# In the order in which they apply.
_RULES = (
    reject_launchers,
    choose_claimants,
    choose_parents_of_ranks,
    choose_numbered_by_node,
    choose_spawned,
    choose_unnamed,
    separate_launchers,
    resolve_duplicates,
    refuse_absurd_numbers,
    separate_users,
    choose_alone,
)


def find_ranks(root: Path = ROOT, asked: Collection[int] = frozenset(), *, seeks_alone: bool = True) -> RankCensus:
    """Find the ranks among the processes of this host. Never raises.

    What cannot be read is in `rejected` or `notes`. `asked`: Python processes that are ranks
    whatever they do; `seeks_alone`: look for other ranks that work alone, which takes 0.3 s where a
    process may be one.
    """
    pids = frozenset(asked)
    found = scan(root, pids)
    return patiently(lambda: _census(Draft(found, root, pids, seeks_alone=seeks_alone)))


def _census(draft: Draft) -> RankCensus:
    """Apply all rules to the draft, in their order, and build the census from what they chose and rejected."""
    for rule in _RULES:
        rule(draft)
    workers = find_workers(draft)
    members = {worker.pid for group in workers.values() for worker in group}
    reject_rest(draft, members)
    ranks = [_describe(draft, chosen, tuple(workers.get(pid, ()))) for pid, chosen in draft.chosen.items()]
    ranks.sort(key=lambda rank: (rank.identity.job, rank.identity.rank, rank.pid))
    draft.notes += _notes_of_missing(ranks)
    rejected = [
        Rejected(pid, printable(draft.scan.processes[pid].comm, 32), reason)
        for pid, reason in sorted(draft.rejected.items(), key=lambda item: (item[0] in draft.scan.others, item[0]))
        if pid not in members and pid in draft.scan.processes
    ]
    alone = tuple(draft.loaded[one.pid] for one in rejected if one.reason.endswith(ALONE) and one.pid in draft.loaded)
    starting = tuple(draft.scan.candidates[one.pid] for one in rejected if one.reason.endswith(STARTING))
    gone = tuple(find_gone(draft, ranks, members))
    return RankCensus(tuple(ranks), tuple(rejected), tuple(dict.fromkeys(draft.notes)), alone, starting, gone)


def _notes_of_missing(ranks: list[FoundRank]) -> Iterator[str]:
    """Yield a note for each job on ranks that should run on this host and were not found."""
    for job, gone in missing_ranks(local_rank(rank.identity) for rank in ranks).items():
        numbers = ", ".join(map(str, gone.numbers[:16])) + (", …" if len(gone.numbers) > 16 else "")
        which = f": {numbers}" if numbers else ""
        yield f"{job}: {gone.count} of its ranks that should run on this host were not found{which}"


def _describe(draft: Draft, chosen: Chosen, workers: tuple[Worker, ...]) -> FoundRank:
    """Read the facts of a chosen process and build its rank; what could not be read is added to the draft's notes."""
    one, claim = chosen.process, chosen.claim
    if claim.this_host_only and not chosen.guessed and claim.world_size > max(claim.local_world_size, 1):
        draft.notes.append(f"{claim.job}: the master address names no host; ranks elsewhere may show as another job")
    facts = read_facts(one.pid, draft.root)
    draft.notes += facts.notes
    command = _command(draft, one)
    stat = draft.scan.processes[one.pid]
    return FoundRank(
        identity=identity_of(
            one,
            claim,
            facts,
            draft.host,
            command,
            title(_titled(draft, one, command), one.scheduler),
            run_of(one.pid, command, draft.root),
        ),
        pid=one.pid,
        start_ticks=stat.start_ticks,
        start_s=stat.start_s,
        workers=tuple(sorted(workers, key=lambda worker: worker.pid)),
        libraries=one.libraries,
        container=facts.container,
        cgroup=facts.cgroup,
        launcher=claim.launcher,
        guessed=chosen.guessed,
        owner=one.owner,
    )


def _command(draft: Draft, one: Candidate) -> tuple[str, ...]:
    """Return the command line that says what a rank runs: its own, or else that of the process
    which started it.

    That process need not have loaded a training library: a script that leaves its imports to its
    workers has none.
    """
    command = one.cmdline
    for above in draft.above(one.pid):
        if not runs_anothers(command):
            break
        started_by = draft.cmdline(above)
        if not is_python(started_by):  # it has ended, and its orphans' new parent is no job
            return one.cmdline
        command = started_by
    return command


def _titled(draft: Draft, one: Candidate, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line for a job's title: for an actor of Ray that of the script that
    started it, if found.
    """
    if not ray_actor(command):
        return command
    above = draft.ancestor(one.pid, launchers=True)
    return above.cmdline if above is not None else command
