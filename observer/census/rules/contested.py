"""Resolve ranks or jobs that are claimed more than once: by several users, launchers or processes."""

from __future__ import annotations

from dataclasses import replace

from rankscope.observer.census.rules.draft import Draft
from rankscope.observer.census.rules.taken import Job
from rankscope.observer.window.jobs import names_a_user, of_user

_ALIKE_MOST = 64  # processes that claim the same rank: each is compared with all ranks of the job
_LAUNCHERS_DEEP = 4  # levels: mpiexec, its proxy, a shell that wraps the rank


def separate_users(draft: Draft) -> None:
    """Give each user who claims ranks of one job a separate job, so that nobody can hide another
    user's ranks.

    The earlier rules separate users as well; this one changes the jobs' names. A name that ends
    with a user is always that user's.
    """
    claims: dict[str, dict[int, list[int]]] = {}
    for pid in draft.in_order(draft.chosen):
        job, uid = draft.chosen[pid].job
        claims.setdefault(job, {}).setdefault(uid, []).append(pid)
    for job, owners in claims.items():
        main = next(iter(owners)) if len(owners) == 1 else _whose(draft, job, owners)
        for uid, pids in owners.items():
            if uid == main and not names_a_user(job):
                continue
            for pid in pids:
                one = draft.chosen[pid]
                draft.chosen[pid] = replace(one, claim=replace(one.claim, job=of_user(job, uid)))
            who = ", ".join(map(str, pids[:8])) + (", …" if len(pids) > 8 else "")
            if main >= 0 and uid != main:
                draft.notes.append(
                    f"{job}: its ranks are of user {main}; pids {who} of user {uid} claim ranks of it too"
                )


def _whose(draft: Draft, job: str, owners: dict[int, list[int]]) -> int:
    """Return the user who may use the job's plain name; -1 for none. `owners`: user -> pids that claim its ranks."""
    working = [uid for uid, pids in owners.items() if draft.together(pids)]
    if len(working) > 1:
        # By number of processes anybody could take the name from its owner: nobody gets it, and
        # both are shown.
        users = ", ".join(map(str, sorted(working)))
        draft.notes.append(f"{job}: users {users} each have ranks of it that work together: it is a job of each")
        return -1
    # The user whose processes work together; else the one with most; else the first.
    return working[0] if working else max(owners, key=lambda uid: len(owners[uid]))


def separate_launchers(draft: Draft) -> None:
    """Give each launcher a job of its own where several started the same ranks of one job.

    As two mpiexec of one batch script do. Only if each has the same two or more rank numbers, each
    once; they need not be all ranks of the job. Changes the draft's claims.
    """
    claims: dict[Job, list[int]] = {}
    for pid in draft.in_order(draft.chosen):
        claims.setdefault(draft.chosen[pid].job, []).append(pid)
    for (job, _), pids in claims.items():
        if len({draft.chosen[pid].claim.rank for pid in pids}) == len(pids):
            continue
        for depth in range(_LAUNCHERS_DEEP):
            below: dict[int, list[int]] = {}
            for pid in pids:
                above = list(draft.above(pid))
                below.setdefault(above[depth] if depth < len(above) else 0, []).append(pid)
            sets = [sorted(draft.chosen[pid].claim.rank for pid in group) for group in below.values()]
            whole = len(sets[0]) > 1 and all(each == sets[0] == sorted(set(each)) for each in sets)
            if whole and len(sets) > 1 and 0 not in below:
                _name_apart(draft, job, below)
                break


def _name_apart(draft: Draft, job: str, below: dict[int, list[int]]) -> None:
    """Append the pid of its launcher to each rank's job name, with a note; `below`: launcher's pid -> ranks' pids."""
    for launcher, pids in below.items():
        for pid in pids:
            one = draft.chosen[pid]
            draft.chosen[pid] = replace(one, claim=replace(one.claim, job=f"{job}-{launcher}", this_host_only=True))
    launchers = ", ".join(map(str, sorted(below)[:8]))
    draft.notes.append(f"{job}: started {len(below)} times side by side (pids {launchers}): a job each")


def resolve_duplicates(draft: Draft) -> None:
    """Choose one of several processes that claim one rank: one that works with other ranks, else the oldest.

    Those that are connected with each other become ranks of one job instead, and are numbered. Workers
    whose rank is gone are rejected.
    """
    claims: dict[tuple[Job, int], list[int]] = {}
    for pid in draft.in_order(draft.chosen):
        one = draft.chosen[pid]
        claims.setdefault((one.job, one.claim.rank), []).append(pid)
    for same in claims.values():
        pids = same[:_ALIKE_MOST]
        for pid in same[_ALIKE_MOST:]:
            claim = draft.chosen.pop(pid).claim
            draft.rejected[pid] = f"claims rank {claim.rank} of {claim.job}, as {len(same) - 1} others do"
        if len(pids) == 1:
            continue
        for group in draft.connections.groups(pids, {pid: draft.parents.get(pid, 0) for pid in pids}):
            if len({draft.cgroup(pid) for pid in group}) > 1:
                continue  # an impostor that connects to the rank
            # Their launcher gave all the same identity, but they work together: ranks of one task.
            base = draft.chosen[group[0]].claim
            draft.number(group, base.job, base, {pid: draft.parents.get(pid, 0) for pid in group})
            pids = [pid for pid in pids if pid not in group]
        if len(pids) < 2:
            continue
        scores = {pid: (not draft.is_orphan_worker(pid), *draft.evidence(pid), draft.is_connected(pid)) for pid in pids}
        best = max(pids, key=scores.__getitem__)  # the first of equals: the oldest
        for pid in pids:
            if pid != best:
                claim = draft.chosen.pop(pid).claim
                draft.rejected[pid] = f"claims rank {claim.rank} of {claim.job}, which is pid {best}"
    for pid in [pid for pid in draft.chosen if draft.is_orphan_worker(pid)]:
        draft.chosen.pop(pid)
        draft.rejected[pid] = "a data-loader worker whose rank is gone"
