"""Assign processes to ranks as workers, and give reasons for rejecting the rest."""

from __future__ import annotations

import itertools
import os
import time
from functools import partial

from rankscope.observer.census.candidates import EACH_S, FREELY_S
from rankscope.observer.census.found import Worker
from rankscope.observer.census.launchers import ray_actor
from rankscope.observer.census.reasons import why_no_candidate, why_no_rank
from rankscope.observer.census.rules.draft import Draft
from rankscope.observer.census.workers import worker_kind
from rankscope.probes.base.text import printable
from rankscope.probes.host.fair import Fair, whose

_MAX_WORKERS = 4096  # per rank


def find_workers(draft: Draft) -> dict[int, list[Worker]]:
    """Assign every living descendant of a rank to the nearest rank above it; return workers by the rank's pid."""
    workers: dict[int, list[Worker]] = {}
    fair = Fair(FREELY_S, EACH_S)
    for pid in draft.scan.processes:
        if pid in draft.chosen:
            continue
        rank = next((above for above in draft.above(pid) if above in draft.chosen), None)
        if rank is not None and len(workers.setdefault(rank, [])) < _MAX_WORKERS:
            user, began_s = partial(whose, rank, draft.root), time.thread_time()
            comm = printable(draft.scan.processes[pid].comm, 32)
            workers[rank].append(Worker(pid, _worker_kind(draft, pid, rank, read=fair.left(user) > 0), comm))
            fair.spend(time.thread_time() - began_s, user)
    return workers


def reject_rest(draft: Draft, members: set[int]) -> None:
    """Reject, with reasons, candidates and other Python programs that are no ranks. `members`: pids of workers."""
    above_ranks: dict[int, bool] = {}  # pid -> whether one of the ranks below is an actor of Ray
    for rank in draft.chosen:
        actor = rank in draft.loaded and bool(ray_actor(draft.loaded[rank].cmdline))
        for above in draft.above(rank):
            above_ranks[above] = above_ranks.get(above, False) or actor
    for pid, one in draft.scan.candidates.items():
        if pid not in draft.chosen and pid not in draft.rejected and pid not in members:
            draft.rejected[pid] = why_no_rank(one, pid in above_ranks, above_ranks.get(pid, False))
    for pid, other in draft.scan.others.items():
        reason = why_no_candidate(other)
        if reason and pid != os.getpid():  # the census itself is Python with numpy
            draft.rejected.setdefault(pid, reason)


def _worker_kind(draft: Draft, pid: int, rank: int, *, read: bool) -> str:
    """Determine a worker's kind; with `read` from its command line, else from its name alone."""
    between = list(itertools.takewhile(lambda above: above != rank, draft.above(pid)))
    compiles = any(map(draft.compiles, between)) if read else False
    comm = draft.scan.processes[pid].comm
    cmdline = draft.cmdline(pid) if read else ()
    return worker_kind(comm, cmdline, draft.loaded[rank].cmdline, pid in draft.loaded, bool(between), compiles)
